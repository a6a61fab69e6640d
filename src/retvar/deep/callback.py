"""A callback of Stable-Baselines3 that fits a critic beside the training, without changing it."""

from __future__ import annotations

import copy
import logging
import math
from collections import deque
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.callbacks import BaseCallback

from retvar import arguments, rules
from retvar.deep.critic import Calibration, Critic, Encoder, encode
from retvar.deep.deep_estimator import (
    FEWEST,
    HORIZONS,
    make_critic,
    make_settings,
    refuse_observations,
)
from retvar.deep.fitting import Fitting, LossDivergenceError, Scales
from retvar.deep.targets import discounted_sums
from retvar.deep.transition_columns import Chunk, Columns, Record
from retvar.errors import InputError
from retvar.estimation.setup import GAMMA, make_learner
from retvar.experience.observations import observation_reader
from retvar.format import count, literal
from retvar.networks import DEFAULT, NETWORKS

__all__ = ["SpreadCallback"]

Array = NDArray[np.float64]
log = logging.getLogger("retvar")
FIRST_SWEEPS = 10  # of networks that begin
SHORT = {"batches": 40, "batch_size": 256, "learning_rate": 5e-3}  # of a sweep
AVERAGE = 0.95  # decay of the mean of the weights, per step
OUTGROWN = 2.0  # factor by which observations or returns leave their scale, so that networks begin
OBSERVED = 0.5  # discount of what a return may lack at the end of a rollout, to be compared
POLICY = "{} (exploring, in training)"
ORIGINAL = "in the original units of observations and rewards, not those of VecNormalize"
UNITS = "of the environment"
SKIPPED = (
    "transitions between its calls are missing: give it to learn(callback=…) itself, or in a list, "
    "not to a callback that calls others now and then"
)
WRAPPED = "are not those of the model, {}: put VecNormalize around all other wrappers"


class SpreadCallback(BaseCallback):
    """Fits a critic to what training goes through, for ``model.learn(callback=…)``.

    The training is not changed: the policy has the same bits as without it. The newest transitions
    are kept, and networks are fitted to them every so often, from where they were. Answers are
    about the policy that collects the data, exploration included, and lag behind it; for the final
    policy, or a deterministic one, fit fresh experience by :func:`retvar.deep.fit`. They are in the
    units of the environment, also with ``VecNormalize``, whose normalisation is undone.

    The logger of the model (and with it TensorBoard, CSV and the screen) gets, at each fit:

    ==================== =========================================================================
    spread/value         mean over the newest transitions of the value
    spread/std           likewise of the standard deviation of the return; NaN if there is none
    spread/within_2std   share of the newest returns within two std of the value, before the critic
                         was fitted to them: 0.95 if normal
    spread/calibration   likewise, how many times as large as the std their deviations are
    spread/lag           by how many of the model's updates (train/n_updates) the data is older than
                         the policy, on average
    spread/error_share   share of the spread that is error of the value
    ==================== =========================================================================

    Parameters
    ----------
    gamma, lam
        γ and λ of the return. γ has no default; that of the model is ``model.gamma``.
    method
        ``"direct"``, ``"vtd"`` or ``"centred"``.
    window
        Number of transitions kept. Fewer follow the policy more closely, more are less noisy.
    every
        New transitions after which the critic is fitted again, at the end of a rollout.
    sweeps
        Number of times that targets are computed in a fit, with 40 steps of Adam for each.
    hidden
        Units of the hidden layers (tanh).
    encoder
        For images and the like: see :func:`retvar.deep.fit`. It has to stay as it is, so it cannot
        be a part of the policy in training, but can be a copy.
    device, seed
        Of the critic; it uses no random numbers but its own.

    Examples
    --------
    >>> from stable_baselines3 import PPO
    >>> beside = SpreadCallback(gamma=0.98)
    >>> model = PPO("MlpPolicy", "CartPole-v1", n_steps=512, seed=0, device="cpu")
    >>> _ = model.learn(1_024, callback=beside)
    >>> beside.critic
    <deep critic: direct, 1,024 transitions>
    >>> 5 < beside.critic.value([0.0, 0.0, 0.0, 0.0]) < 40
    True
    """

    def __init__(
        self,
        gamma: float | None = None,
        lam: float = 1.0,
        *,
        method: str = DEFAULT,
        window: int = 8_192,
        every: int = 2_048,
        sweeps: int = 2,
        hidden: tuple[int, ...] = (64, 64),
        encoder: Encoder | None = None,
        device: str = "cpu",
        seed: int = 0,
    ) -> None:
        super().__init__()
        if gamma is None:
            raise InputError("gamma", None, GAMMA)
        self.gamma, self.lam = arguments.number("gamma", gamma), arguments.number("lam", lam)
        self.description = make_learner(self.gamma, self.lam, method)
        self.window = arguments.integer("window", window, FEWEST)
        self.every = arguments.integer("every", every, 1)
        self.sweeps = arguments.integer("sweeps", sweeps, 1)
        if encoder is not None and not callable(encoder):
            raise InputError(
                "encoder", literal(encoder), "must be a function, such as a torch module"
            )
        self.encoder = encoder
        found = make_settings(members=1, hidden=hidden, device=device, seed=seed, **SHORT)
        self.settings = replace(found, average=AVERAGE)
        self._begin(None)

    def _begin(self, model: Any) -> None:
        """Forget everything, for a model."""
        self._own = model
        self._critic: Critic | None = None
        self._fitting: Fitting | None = None
        self._steps: _Steps | None = None
        self._record = self._empty(self.window)
        self._taken: deque[tuple[int, float]] = (
            deque()
        )  # rows of the record's chunks, their updates
        self._random = np.random.default_rng([self.settings.seed, 3])
        self.episodes = 0
        self.rejected = 0  #: transitions that were not finite, or came with such ones
        self.calibration: Calibration | None = None  #: of the newest returns, before they were used

    # ------------------------------------------------------------------ answers

    @property
    def critic(self) -> Critic:
        """The critic as it was fitted last; it does not change when training goes on."""
        if self._critic is None:
            remedy = f"there is none yet: train for {count(self._fewest, 'step')} at least"
            raise InputError("critic", "not fitted", remedy)
        return self._critic

    @property
    def lag(self) -> float:
        """By how many of the model's updates its data is older than the policy now, on average."""
        rows = sum(n for n, _ in self._taken)
        if not rows:
            return math.nan
        return _updates(self._own) - sum(n * updates for n, updates in self._taken) / rows

    # ------------------------------------------------------------------ what training calls

    def _on_training_start(self) -> None:
        model = self.model
        if model is not self._own:
            self._begin(model)
        env = self.training_env
        given = SimpleNamespace(
            name=_name(env), width=observation_reader(env.observation_space).width
        )
        refuse_observations(given, self.encoder)  # type: ignore[arg-type]
        self._source = given.name
        first = 0 if self._steps is None else self._steps.streams.stop
        self._steps = _Steps(model, env, first)
        if self._steps.normalised:
            self.logger.info(f"spread/…: {ORIGINAL}")

    def _on_step(self) -> bool:
        assert self._steps is not None
        self._steps.add(self.locals, self.num_timesteps)
        return True

    def _on_rollout_end(self) -> None:
        assert self._steps is not None
        if self._steps.rows >= self.every:
            self._use_new()

    def _on_training_end(self) -> None:
        assert self._steps is not None
        if self._steps.rows:
            self._use_new()

    # ------------------------------------------------------------------ fitting

    def _use_new(self) -> None:
        """Measure the critic on the new transitions, then fit it to them, and log."""
        assert self._steps is not None
        chunk = self._steps.take()
        fresh = self._empty(None)
        try:
            if self.encoder is not None:
                chunk |= {k: encode(self.encoder, chunk[k]) for k in ("state", "next_state")}
            fresh.add(chunk)
        except InputError as error:  # training goes on
            self.rejected += len(chunk["reward"])
            self._steps.break_streams()
            log.warning("%s: %s; these transitions are left out", self._source, error)
            return
        self._record.add(chunk)
        self.episodes += int(np.count_nonzero(chunk["terminated"] | chunk["truncated"]))
        self._taken.append((fresh.rows, _updates(self.model)))
        while sum(n for n, _ in self._taken) > self._record.rows:
            self._taken.popleft()
        new = fresh.columns()
        if self._critic is not None:
            self.calibration = calibrated(self._asked, new, len(self._steps.streams), self._random)
        if self._record.rows >= self._fewest and self._fit():
            self._write(new)

    def _fit(self) -> bool:
        """Fit to the record, from where the networks are unless its scale is another one."""
        columns = self._record.columns()
        scales, sweeps = Scales.of(columns, centred=True), self.sweeps
        if self._fitting is None or outgrown(self._fitting.scales, scales):
            network = NETWORKS[self.description.method]
            self._fitting = Fitting(network, self.settings, scales)
            sweeps = max(FIRST_SWEEPS, sweeps)
        try:
            with torch.enable_grad():
                self._fitting.run(columns, sweeps)
        except LossDivergenceError as error:
            log.warning("%s: %s; the networks begin anew", self._source, error)
            self._fitting = None
            return False
        found = make_critic(self._fitting, columns, self.description)
        found.about = replace(
            found.about, source=self._source, policy=POLICY.format(type(self.model).__name__),
            episodes=self.episodes, rejected=self.rejected,
        )  # fmt: skip
        module = copy.deepcopy(found.module)  # further fits change the other one
        self._asked = Critic(module, self.description, found.about)  # knows what is encoded
        self._critic = Critic(module, self.description, found.about, self.encoder)
        self._critic.notes["units"] = ORIGINAL if self._normalised else UNITS
        return True

    def _write(self, new: Columns) -> None:
        """Give the logger what is known."""
        critic = self._asked
        found = {name: critic.predict(new.left, name) for name in ("value", "std")}
        for name, column in found.items():
            known = column[np.isfinite(column)]
            self.logger.record(f"spread/{name}", float(known.mean()) if known.size else math.nan)
        if self.calibration is not None:
            self.logger.record("spread/within_2std", self.calibration.within(2.0))
            self.logger.record("spread/calibration", self.calibration.ratio)
        self.logger.record("spread/lag", self.lag)
        self.logger.record("spread/error_share", critic.about.error_share)

    @property
    def _normalised(self) -> bool:
        return self._steps is not None and self._steps.normalised

    @property
    def _fewest(self) -> int:
        """Transitions before the first fit."""
        return max(FEWEST, math.ceil(HORIZONS / (1 - self.gamma)) if self.gamma < 1 else 0)

    def _empty(self, most: int | None) -> Record:
        return Record(self.gamma, self.lam, most)


class _Steps:
    """Transitions of all environments since they were last taken, in original units."""

    def __init__(self, model: Any, env: Any, first: int) -> None:
        self.model, self.envs = model, int(env.num_envs)
        self.normalised = model.get_vec_normalize_env() is not None
        self.streams = range(first, first + self.envs)
        self._shape = env.observation_space.shape
        self._now = self._original(model._last_obs)
        self._clock = int(model.num_timesteps)
        self._columns: list[tuple[Any, ...]] = []

    @property
    def rows(self) -> int:
        return len(self._columns) * self.envs

    def add(self, given: dict[str, Any], clock: int) -> None:
        """Add what one step of all environments has brought."""
        if clock != self._clock + self.envs:
            raise InputError("callback", f"called after {clock - self._clock} steps", SKIPPED)
        self._clock = clock
        normalisation = self.model.get_vec_normalize_env()
        rewards = given["rewards"] if normalisation is None else normalisation.get_original_reward()
        now = self._original(given["new_obs"])
        after, cut = now, np.zeros(self.envs, dtype=bool)
        over = np.array(given["dones"], dtype=bool)
        if over.any():
            after = now.copy()
            for i in np.flatnonzero(over):
                info = given["infos"][i]
                cut[i] = bool(info.get("TimeLimit.truncated", False))
                last = info.get("terminal_observation")
                if last is None:  # an environment that does not tell: the one before
                    after[i] = self._now[i]
                elif normalisation is None:
                    after[i] = last
                else:
                    after[i] = normalisation.unnormalize_obs(last)
        row = self._now, after, np.array(rewards, dtype=np.float64), over & ~cut, cut
        self._columns.append(row)
        self._now = now

    def take(self) -> Chunk:
        """The transitions so far as columns, which are forgotten."""
        state, after, reward, ended, cut = (
            np.stack(each) for each in zip(*self._columns, strict=True)
        )
        self._columns = []
        n = reward.size
        return {
            "state": state.reshape(n, -1), "next_state": after.reshape(n, -1),
            "reward": reward.ravel(), "terminated": ended.ravel(), "truncated": cut.ravel(),
            "stream": np.tile(np.array(self.streams), len(reward)),
        }  # fmt: skip

    def break_streams(self) -> None:
        """What comes does not go on from what was taken."""
        self.streams = range(self.streams.stop, self.streams.stop + self.envs)

    def _original(self, given: Any) -> NDArray[np.float32]:
        """Observations before they were normalised."""
        normalisation = self.model.get_vec_normalize_env()
        if normalisation is not None:
            given = normalisation.get_original_obs()
        found = np.array(given, dtype=np.float32)
        if found.shape[1:] != self._shape:
            what = f"original ones of shape {found.shape[1:]}"
            raise InputError("observations", what, WRAPPED.format(self._shape))
        return found


def calibrated(critic: Critic, new: Columns, envs: int, random: np.random.Generator) -> Calibration:
    """Returns of new transitions beside what a critic says of where they began.

    A return that was cut off, also by the end of the rollout, is completed by a normal draw of mean
    and std of the critic's. None of those that begin so late that this would be most of it counts.
    """
    x = torch.from_numpy(new.observations).double().to(critic.module.centre.device)
    with torch.no_grad():
        value, variance = (each.cpu().numpy() for each in critic.module(x))
    after = value[new.follows]
    draws = random.normal(size=len(new)) * np.sqrt(np.maximum(variance[new.follows], 0.0))
    discount = rules.mean_discount(new.gamma, new.lam, np.ones(len(new)))
    reward = rules.mean_reward(new.reward, new.gamma, new.lam, after, np.ones(len(new)))
    rest = np.where(new.going, 0.0, discount * (after + draws))
    parts = (torch.from_numpy(each) for each in (reward + rest, discount * new.going))
    returns = discounted_sums(*parts).numpy()
    length = len(new) // envs
    typical = float(discount.max(initial=0.0))
    reach = math.log(OBSERVED) / math.log(typical) if 0 < typical < 1 else math.inf
    kept = np.arange(len(new)) % length < length - min(reach, length // 2)
    left = new.left[kept]
    return Calibration(critic.predict(left, "value"), critic.predict(left, "std"), returns[kept])


def outgrown(old: Scales, new: Scales) -> bool:
    """Whether observations or returns have left the scale that networks began with.

    >>> old = Scales(np.zeros(2), np.ones(2), 10.0, 5.0)
    >>> outgrown(old, Scales(np.ones(2), np.ones(2), 15.0, 9.0))
    False
    >>> outgrown(old, Scales(np.zeros(2), np.ones(2), 10.0, 11.0))
    True
    """
    pairs = ((old.centre, old.width, new.centre, new.width),
             (old.shift, old.scale, new.shift, new.scale))  # fmt: skip
    return any(
        bool(np.any(np.abs(there - here) > OUTGROWN * width))
        or bool(np.any(np.abs(np.log(wide / width)) > math.log(OUTGROWN)))
        for here, width, there, wide in pairs
    )


def _updates(model: Any) -> float:
    """How often the model has been updated, as it says in its log (train/n_updates)."""
    return float(getattr(model, "_n_updates", math.nan))


def _name(env: Any) -> str:
    """The id of the environment, if it can be reached."""
    inside = getattr(env.unwrapped, "envs", None) or [None]
    spec = getattr(inside[0], "spec", None)
    word = spec.id if spec is not None else type(env.unwrapped).__name__
    return f"gymnasium:{word}" + (f" × {env.num_envs}" if env.num_envs > 1 else "")
