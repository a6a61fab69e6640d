"""A callback of Stable-Baselines3 that fits a critic beside the training, without changing it."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.callbacks import BaseCallback

from retvar.deep.critic import Calibration, Critic, Encoder, encoded
from retvar.deep.fit_critic import FEWEST, fewest_rows, make_critic, refuse_observations
from retvar.deep.fitting import Columns, Fitting, Record, Scales, Settings
from retvar.deep.targets import discounted_sums
from retvar.estimation.episodes import GAMMA
from retvar.estimation.settings import make_learner
from retvar.experience.observations import ObservationReader
from retvar.experience.stream import Chunk
from retvar.support import arguments
from retvar.support.errors import DivergenceError, InputError
from retvar.support.format import count
from retvar.td import rules
from retvar.td.networks import DEFAULT, NETWORKS

Array = NDArray[np.float64]
log = logging.getLogger("retvar")
FIRST_SWEEPS = 10  # of networks that begin
SHORT = {"batches": 40, "batch_size": 256, "learning_rate": 5e-3}  # of a sweep
AVERAGE = 0.95  # decay of the mean of the weights, per step
OUTGROWN = 2.0  # factor by which observations or returns leave their scale, so that networks begin
OBSERVED = 0.5  # discount of what a return may lack at the end of a rollout, to be compared
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
    <deep critic: direct, 1,024 transitions, uncalibrated>
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
        refuse_observations("", 1, encoder)
        self.encoder = encoder
        own = {"hidden": hidden, "device": device, "seed": seed}
        self.settings = Settings(members=1, average=AVERAGE, **own, **SHORT)  # type: ignore[arg-type]
        self._begin(None)

    def _begin(self, model: Any) -> None:
        """Forget everything, for a model."""
        self._own = model
        self._critic: Critic | None = None
        self._fitting: Fitting | None = None
        self._record = Record(self.gamma, self.lam, self.window)
        self._random = np.random.default_rng([self.settings.seed, 3])
        self._streams = range(0)  # of the environments; their numbers are new in each training
        self._rows: list[tuple[Any, ...]] = []  # steps of all environments that were not used yet
        self.episodes = 0
        self.calibration: Calibration | None = None  #: of the newest returns, before they were used

    @property
    def critic(self) -> Critic:
        """The critic as it was fitted last; it does not change when training goes on."""
        if self._critic is None:
            steps = count(fewest_rows(self.gamma), "step")
            raise InputError("critic", "not fitted", f"train for {steps} at least")
        return self._critic

    def _on_training_start(self) -> None:
        env = self.training_env
        if self.model is not self._own:
            self._begin(self.model)
        self._source, space = _name(env), env.observation_space
        refuse_observations(self._source, ObservationReader(space).width, self.encoder)
        self._streams = range(self._streams.stop, self._streams.stop + env.num_envs)
        self._now, self._clock = self._original(self.model._last_obs), self.model.num_timesteps
        self._rows = []

    def _original(self, given: Any) -> NDArray[np.float32]:
        """Observations before they were normalised."""
        normalisation, shape = (
            self.model.get_vec_normalize_env(),
            self.model.observation_space.shape,
        )
        found = np.array(given if normalisation is None else normalisation.get_original_obs())
        if found.shape[1:] != shape:
            what = f"original ones of shape {found.shape[1:]}"
            raise InputError("observations", what, WRAPPED.format(shape))
        return found.astype(np.float32)

    def _on_step(self) -> bool:
        """Keep what one step of all environments has brought, in original units."""
        given, normalisation = self.locals, self.model.get_vec_normalize_env()
        steps, self._clock = self.num_timesteps - self._clock, self.num_timesteps
        if steps != len(self._streams):
            raise InputError("callback", f"called after {steps} steps", SKIPPED)
        rewards = given["rewards"] if normalisation is None else normalisation.get_original_reward()
        now = self._original(given["new_obs"])
        after, over = now.copy(), np.array(given["dones"], dtype=bool)
        cut = np.array([bool(info.get("TimeLimit.truncated")) for info in given["infos"]]) & over
        for i in np.flatnonzero(over):
            last = given["infos"][i].get("terminal_observation")
            if last is None:  # an environment that does not tell: the one before
                after[i] = self._now[i]
            else:
                after[i] = last if normalisation is None else normalisation.unnormalize_obs(last)
        self._rows.append((self._now, after, np.array(rewards, dtype=float), over & ~cut, cut))
        self._now = now
        return True

    def _take(self) -> Chunk:
        """The transitions so far as columns, which are forgotten."""
        names = ("state", "next_state", "reward", "terminated", "truncated")
        columns = zip(names, zip(*self._rows, strict=True), strict=True)
        found = {name: np.concatenate(each) for name, each in columns}
        n, stream = len(found["reward"]), np.tile(np.array(self._streams), len(self._rows))
        self._rows = []
        flat = {name: found[name].reshape(n, -1) for name in names[:2]}
        return {**found, **flat, "stream": stream}

    def _on_rollout_end(self) -> None:
        self._use_new(self.every)

    def _on_training_end(self) -> None:
        self._use_new(1)

    def _use_new(self, fewest: int) -> None:
        """Measure the critic on the new transitions, then fit it to them, and log."""
        if len(self._rows) * len(self._streams) < fewest:
            return
        chunk, fresh = encoded(self.encoder, self._take()), Record(self.gamma, self.lam)
        fresh.add(chunk)
        self._record.add(chunk)
        self.episodes += int(np.count_nonzero(chunk["terminated"] | chunk["truncated"]))
        new = fresh.columns()
        if self._critic is not None:
            self.calibration = calibrated(self._asked, new, len(self._streams), self._random)
        if self._record.rows >= fewest_rows(self.gamma) and self._fit():
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
        except DivergenceError as error:
            log.warning("%s: %s; the networks begin anew", self._source, error)
            self._fitting = None
            return False
        held_out = 0 if self.calibration is None else self.calibration.observed.size
        found = self._asked = make_critic(  # knows what is encoded
            self._fitting, columns, self.description, None, source=self._source,
            policy=f"{type(self.model).__name__} (exploring, in training)", episodes=self.episodes,
            held_out=held_out,
        )  # fmt: skip
        self._critic = Critic(found.module, self.description, found.about, self.encoder)
        return True

    def _write(self, new: Columns) -> None:
        """Give the logger what is known."""
        for name in ("value", "std"):
            found = self._asked.predict(new.left, name)
            known = found[np.isfinite(found)]
            self.logger.record(f"spread/{name}", float(known.mean()) if known.size else math.nan)
        if self.calibration is not None:
            self.logger.record("spread/within_2std", self.calibration.within(2.0))
            self.logger.record("spread/calibration", self.calibration.ratio)
        self.logger.record("spread/error_share", self._asked.about.error_share)


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
    here, there = (np.append(scales.centre, scales.shift) for scales in (old, new))
    width, wide = (np.append(scales.width, scales.scale) for scales in (old, new))
    factor = np.abs(np.log(wide / width))
    return bool(np.any((np.abs(there - here) > OUTGROWN * width) | (factor > math.log(OUTGROWN))))


def _name(env: Any) -> str:
    """The id of the environment, if it can be reached."""
    (spec,) = env.get_attr("spec", [0])
    copies = f" × {env.num_envs}" if env.num_envs > 1 else ""
    return f"gymnasium:{getattr(spec, 'id', type(env.unwrapped).__name__)}{copies}"
