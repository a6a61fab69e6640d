"""Monte Carlo: the return of a policy from where an environment starts, or from a given state."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar import arguments
from retvar.errors import InputError
from retvar.estimation.return_sample import ReturnSample
from retvar.experience import from_gymnasium
from retvar.experience.environments import is_vector, make_copies
from retvar.format import reasons

__all__ = ["rollouts"]

Array = NDArray[np.float64]
Value = Callable[[Any], Any]
CUT_OFF, AS_END = "cut_off", "as_end"  # what truncation means
NEGLIGIBLE = 1e-6  # share of what follows that no longer counts: the return is whole
NEAR = 0.01  # of an observation asked for: the same


def rollouts(
    env: Any,
    policy: Any = "random",
    *,
    gamma: float,
    start: Any = None,
    episodes: int = 500,
    envs: int | None = None,
    deterministic: bool | None = None,
    max_steps: int | None = None,
    truncated: str = "cut_off",
    value: Value | None = None,
    reward_range: tuple[float, float] | None = None,
    level: float = 0.9,
    seed: int = 0,
    **options: Any,
) -> ReturnSample:
    """Sample returns by letting the policy act, one return for each episode.

    Parameters
    ----------
    env, policy, envs, deterministic, options
        As for :func:`retvar.experience.from_gymnasium`: an id or a function that makes an
        environment, with the number of copies; an environment, a list of them, or a vector
        environment. Each environment runs the same number of episodes, so that short episodes are
        not preferred.
    gamma
        Discount.
    start
        Where every episode starts; default: where the environment starts it. A state of a toy-text
        environment, the ``state`` of a classic-control one, ``(qpos, qvel)`` of a MuJoCo one, or a
        function that puts an environment (unwrapped, just reset) into a state and returns the
        observation. Needs an id, a function, a single environment or a list.
    episodes
        Number of returns.
    max_steps
        Steps after which an episode is cut off; default: the environment's own limit, if any.
    truncated
        What truncation means: ``"cut_off"``, that the return goes on unseen; or ``"as_end"``: the
        question is the return up to the limit of steps, which evaluation scripts report. With γ = 1
        a cut-off return has no bound.
    value
        Value of an observation, which completes returns that were cut off.
    reward_range
        Smallest and largest reward; default: those seen. Without `value` they bound what a cut-off
        return misses.
    level, seed
        Of the intervals; of environments and actions.

    Examples
    --------
    >>> import retvar as rv
    >>> sample = rv.rollouts("FrozenLake-v1", gamma=0.9, start=14, episodes=2_000)
    >>> print(sample.mean)  # exactly 0.391
    0.398 [0.382, 0.415]
    >>> print(sample.std)  # exactly 0.457
    0.458 [0.454, 0.462]
    """
    gamma = float(arguments.unit_interval("gamma", gamma, 1)[0])
    episodes = arguments.integer("episodes", episodes, 2)
    level = arguments.level("level", level)
    arguments.choice("truncated", truncated, (CUT_OFF, AS_END))
    if truncated == AS_END and value is not None:
        raise InputError("value", value, "completes cut-off returns; leave it out with as_end")
    if reward_range is not None:
        smallest, largest = arguments.numbers("reward_range", reward_range, 2).tolist()
        reward_range = smallest, largest
        _rest(gamma, smallest, largest)
    made = make_copies(env, envs, options)
    placed = _placed(env if made is None else made(), start, max_steps)
    found = _Sampled()
    try:
        experience = from_gymnasium(
            placed, policy, episodes=episodes, deterministic=deterministic, seed=seed
        )
        found.collect(experience, gamma)
    finally:
        if made is not None:
            for each in placed:
                each.close()
    if truncated == AS_END:
        returns = np.array(found.totals)
        return ReturnSample(returns, returns, found.cuts, False, level, seed, within_limit=True)
    return found.sample(gamma, value, reward_range, level, seed)


def _rest(gamma: float, smallest: float, largest: float) -> tuple[float, float]:
    """Bounds on the return that follows a cut."""
    low, high = arguments.numbers("reward_range", (smallest, largest), 2).tolist()
    if low > high:
        raise InputError("reward_range", (smallest, largest), "must be (smallest, largest)")
    if gamma == 1.0:
        return (-math.inf if low < 0 else 0.0), (math.inf if high > 0 else 0.0)
    return min(low / (1.0 - gamma), 0.0), max(high / (1.0 - gamma), 0.0)


def _answer(value: Value, observation: Any) -> float:
    """The value of one observation, a finite number; 0 where none is needed."""
    if observation is None:
        return 0.0
    try:
        found = float(np.asarray(value(observation), dtype=np.float64).reshape(()))
    except (TypeError, ValueError):
        found = math.nan
    if not math.isfinite(found):
        raise InputError("value", f"{value!r}", "must give a finite number for an observation")
    return found


class _Sampled:
    """Returns of whole episodes."""

    def __init__(self) -> None:
        self.totals: list[float] = []
        self.shares: list[float] = []  # of what follows; 0 where the return is whole
        self.ends: list[Any] = []  # the last observation, None where the return is whole
        self.least, self.most = math.inf, -math.inf  # rewards seen
        self.cuts = 0  # episodes that were truncated, whatever that matters

    def sample(
        self,
        gamma: float,
        value: Value | None,
        reward_range: tuple[float, float] | None,
        level: float,
        seed: int,
    ) -> ReturnSample:
        """The returns, those that were cut off completed or with bounds."""
        returns, share = np.array(self.totals), np.array(self.shares)
        cut: NDArray[np.bool_] = share > 0.0
        count = int(np.count_nonzero(cut))
        if value is not None and count:
            rest = share * np.array([_answer(value, end) for end in self.ends])
            returns, largest = returns + rest, float(np.abs(rest).max())
            return ReturnSample(returns, returns, count, True, level, seed, rest=largest)
        low, high = _rest(gamma, *(reward_range or (self.least, self.most)))
        with np.errstate(invalid="ignore"):
            lower, upper = (np.where(cut, returns + share * end, returns) for end in (low, high))
        return ReturnSample(lower, upper, count, False, level, seed)

    def collect(self, experience: Any, gamma: float) -> None:
        """Go through the stream; refuse one with steps that cannot be used."""
        total: dict[int, float] = defaultdict(float)
        weight: dict[int, float] = defaultdict(lambda: 1.0)
        for chunk in experience.chunks():
            _require_whole(experience)
            reward = chunk["reward"]
            self.least, self.most = min(self.least, reward.min()), max(self.most, reward.max())
            stream = np.asarray(chunk.get("stream", np.zeros(reward.size, dtype=np.int64)))
            columns = (stream, reward, chunk["terminated"], chunk["truncated"])
            for row, (i, gain, ended, cut) in enumerate(
                zip(*(column.tolist() for column in columns), strict=True)
            ):
                total[i] += weight[i] * gain
                weight[i] *= gamma
                if not (ended or cut):
                    continue
                whole = ended or weight[i] <= NEGLIGIBLE
                self.cuts += not ended
                self.totals.append(total[i])
                self.shares.append(0.0 if whole else weight[i])
                self.ends.append(None if whole else chunk["next_state"][row])
                total[i], weight[i] = 0.0, 1.0
        _require_whole(experience)


def _require_whole(experience: Any) -> None:
    """Refuse episodes of which a step is left out: the rest of one is no return."""
    if left_out := experience.counts.rejected:
        problem = f"has steps without a return ({reasons(left_out)})"
        raise InputError("env", experience.name, f"{problem}; correct its rewards or observations")


def _placed(env: Any, start: Any, max_steps: int | None) -> Any:
    """The environments, with the given start and limit of steps."""
    import gymnasium

    if start is None and max_steps is None:
        return env
    if is_vector(env):
        field, given = ("start", start) if start is not None else ("max_steps", max_steps)
        raise InputError(field, given, "needs single environments: give an id, one, or a list")
    several = list(env) if isinstance(env, list | tuple) else [env]
    for each in several:
        arguments.instance("env", each, gymnasium.Env, "a Gymnasium environment or its id")
    if max_steps is not None:
        limit = arguments.integer("max_steps", max_steps, 1)
        several = [gymnasium.wrappers.TimeLimit(each, limit) for each in several]
    if start is not None:
        several = [_starting(each, start) for each in several]
    return several if isinstance(env, list | tuple) else several[0]


def _starting(env: Any, start: Any) -> Any:
    """An environment whose episodes start in a given state."""
    import gymnasium

    class StartAt(gymnasium.Wrapper):  # type: ignore[misc, unused-ignore]
        """Puts the environment into a state after each reset."""

        def reset(self, **settings: Any) -> tuple[Any, dict[str, Any]]:
            _, info = self.env.reset(**settings)
            observation = _put(self.env.unwrapped, start)
            for wrapper in _observation_wrappers(self.env):
                observation = wrapper.observation(observation)
            if not self.env.observation_space.contains(observation):
                raise InputError(
                    "start", start, f"gives {observation!r}, no observation of the environment"
                )
            return observation, info

    return StartAt(env)


def _observation_wrappers(env: Any) -> list[Any]:
    """The wrappers that change observations, from the inside out."""
    import gymnasium

    found: list[Any] = []
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, gymnasium.ObservationWrapper):
            found.insert(0, env)
        env = env.env
    return found


def observed(observation: Any) -> Callable[[Any], Any]:
    """A start for :func:`rollouts`: the state in which an environment shows this observation.

    The observation is the state itself, or holds the cosine and sine of its angles, as Pendulum's
    and Acrobot's do.
    """

    def put(inner: Any) -> Any:
        if np.ndim(observation) == 0 or isinstance(observation, tuple):
            return _put(inner, observation)
        wanted = np.asarray(observation, dtype=np.float64)
        size = np.size(getattr(inner, "state", ()))
        for state in (wanted, _angles(wanted)):
            if state.size == size and size:
                shown = _put(inner, state.tolist())
                if np.allclose(shown, wanted, rtol=1e-3, atol=NEAR):
                    return shown
        remedy = f"{type(inner).__name__} has no state known to show this observation"
        raise InputError("start", wanted.tolist(), remedy)

    return put


def _angles(observation: Array) -> Array:
    """Angles from leading pairs of cosine and sine: one of three numbers, two of more."""
    pairs = 1 if observation.size < 6 else 2
    heads = observation[: 2 * pairs].reshape(pairs, -1)
    if heads.shape != (pairs, 2):
        return observation
    return np.concatenate([np.arctan2(heads[:, 1], heads[:, 0]), observation[2 * pairs :]])


def _put(inner: Any, start: Any) -> Any:
    """Put an environment into a state; returns its observation."""
    if callable(start):
        return start(inner)
    if hasattr(inner, "set_state") and hasattr(inner, "_get_obs"):  # MuJoCo
        try:
            position, velocity = (np.asarray(x, dtype=np.float64) for x in start)
            inner.set_state(position, velocity)
        except (TypeError, ValueError, AssertionError) as error:
            raise InputError("start", start, f"must be (qpos, qvel): {error}") from None
        return inner._get_obs()
    if hasattr(inner, "P") and hasattr(inner, "s"):  # toy text
        if not arguments.is_integer(start) or start not in inner.P:
            raise InputError("start", start, f"must be a state from 0 to {len(inner.P) - 1}")
        inner.s = int(start)
        return int(start)
    if hasattr(inner, "state"):  # classic control
        state = arguments.floats("start", start, "the numbers of the environment's state")
        current = np.asarray(inner.state)
        if state.shape != current.shape:
            raise InputError("start", start, f"must hold {current.size} numbers, as its state does")
        inner.state = tuple(state.tolist()) if isinstance(inner.state, tuple) else state
        if hasattr(inner, "_get_obs"):
            return np.asarray(inner._get_obs(), dtype=np.float32)
        if hasattr(inner, "_get_ob"):
            return np.asarray(inner._get_ob(), dtype=np.float32)
        return state.astype(np.float32)
    raise InputError(
        "start", start,
        f"{type(inner).__name__} has no state that can be set; give a function that puts the "
        "environment into a state and returns the observation",
    )  # fmt: skip
