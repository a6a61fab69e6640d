"""Monte Carlo: the return of a policy from where an environment starts, or from a given state."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import wraps
from typing import Any

import numpy as np

from retvar.estimation.episodes import Chunk, EpisodeLog, lambda_returns, missing
from retvar.estimation.return_sample import ReturnSample
from retvar.experience import from_gymnasium
from retvar.experience.environments import is_vector, opened
from retvar.support import arguments
from retvar.support.errors import InputError

Value = Callable[[Any], Any]
CUT_OFF, AS_END = "cut_off", "as_end"  # what truncation means
NEGLIGIBLE = 1e-3  # discount of what follows a cut that counts no longer: the return is whole
NEAR = 0.01  # of an observation asked for: the same
FUNCTION = "give a function that puts the environment into a state and returns the observation"


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
    precision: float | None = None,
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
        What truncation means: ``"cut_off"``, that the return goes on unseen, which is an error
        where what follows counts for more than a thousandth and there is no `value`; or
        ``"as_end"``: the question is the return up to the limit of steps, which evaluation scripts
        report.
    value
        Value of an observation, or of a state by its label, which completes returns that were
        cut off.
    reward_range
        Smallest and largest reward: they bound returns, for the interval of the worst ones.
    precision
        Run as many more episodes as the interval of the mean needs to be ± this, or less:
        ``sample.episodes_for(precision)`` of the first `episodes`.
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
    >>> sample.episodes_for(0.01)  # for a mean known to ± 0.01
    5688
    """
    gamma = float(arguments.unit_interval("gamma", gamma, 1)[0])
    episodes = arguments.integer("episodes", episodes, 2)
    level = arguments.level("level", level)
    arguments.choice("truncated", truncated, (CUT_OFF, AS_END))
    if truncated == AS_END and value is not None:
        raise InputError("value", value, "completes cut-off returns; leave it out with as_end")
    if reward_range is not None:
        reward_range = low, high = arguments.numbers("reward_range", reward_range, 2).tolist()
        if low > high:
            raise InputError("reward_range", reward_range, "must be (smallest, largest)")
    with ExitStack() as after:
        used = after.enter_context(opened(env, envs, options))
        placed = _placed(used, start, max_steps, after)
        question = gamma, truncated, value, reward_range, level
        ran = [_run(placed, policy, episodes, deterministic, seed)]
        needed = 0 if precision is None else _sample(ran, *question).episodes_for(precision)
        if needed > episodes:
            another = int(np.random.SeedSequence([int(seed), 1]).generate_state(1)[0])
            ran.append(_run(placed, policy, needed - episodes, deterministic, another))
    return _sample(ran, *question)


def _run(
    envs: list[Any], policy: Any, episodes: int, greedy: bool | None, seed: int
) -> tuple[Chunk, list[Any] | None]:
    """Columns of so many episodes, one after the other; and the labels of their states."""
    experience = from_gymnasium(envs, policy, episodes=episodes, deterministic=greedy, seed=seed)
    return next(experience.moves().chunks(experience.counts.transitions)), experience.labels


def _sample(
    ran: list[Any], gamma: float, truncated: str, value: Value | None,
    reward_range: tuple[float, float] | None, level: float,
) -> ReturnSample:  # fmt: skip
    """The returns of episodes; those that were cut off are completed with their value."""
    columns, labels = ran[0]
    rows = {name: np.concatenate([part[name] for part, _ in ran]) for name in columns}
    bounds = -math.inf, math.inf
    if reward_range is not None and gamma < 1.0:
        low, high = (reward / (1.0 - gamma) for reward in reward_range)
        bounds = min(low, 0.0), max(high, 0.0)
    log = EpisodeLog.of(rows | {"gamma": np.full(len(rows["reward"]), gamma)})
    begins = np.append(True, (log.terminated | log.cut)[:-1])
    one = np.ones(len(log.end_state))
    returns = lambda_returns(log, np.zeros(len(log)), 0.0 * one)[begins]
    follows = missing(log, one)[begins]  # discount of what follows the end
    if truncated == AS_END:
        return ReturnSample(returns, one.size, level, within_limit=True, bounds=bounds)
    cut_off = int(np.count_nonzero(follows > NEGLIGIBLE))
    if value is None and cut_off:
        remedy = (
            f"cuts returns off where what follows counts {follows.max():.0%}: allow more steps, "
            "give its value, or ask for the return up to the limit (as_end, --within-limit)"
        )
        raise InputError("truncated", CUT_OFF, remedy)
    if value is None:
        return ReturnSample(returns, level=level, bounds=bounds)
    ends, values = np.append(begins[1:], True), np.zeros(one.size)
    counts = follows[log.cut[ends]] > NEGLIGIBLE  # which cuts leave out something
    last = [x if labels is None else labels[x] for x in log.end_state[counts]]
    values[counts] = [np.asarray(value(x)).item() for x in last]
    if not np.isfinite(values).all():
        raise InputError("value", f"{value!r}", "must give a finite number for an observation")
    rest = missing(log, values)[begins]
    completed = float(np.abs(rest).max())
    return ReturnSample(returns + rest, cut_off, level, completed=completed, bounds=bounds)


def _placed(envs: list[Any], start: Any, max_steps: int | None, after: ExitStack) -> list[Any]:
    """The environments, with the given limit of steps, and the start until `after`."""
    import gymnasium

    if start is None and max_steps is None:
        return envs
    if is_vector(envs):
        name, given = ("start", start) if start is not None else ("max_steps", max_steps)
        raise InputError(name, given, "needs single environments: give an id, one, or a list")
    found = []
    for each in envs:
        arguments.instance("env", each, gymnasium.Env, "a Gymnasium environment or its id")
        if start is not None:
            after.enter_context(_starting(each.unwrapped, start))
        if max_steps is not None:
            limit = arguments.integer("max_steps", max_steps, 1)
            each = gymnasium.wrappers.TimeLimit(each, limit)
        found.append(each)
    return found


@contextmanager
def _starting(inner: Any, start: Any) -> Iterator[None]:
    """Let the episodes of an environment, without its wrappers, start in a given state."""
    if not callable(start):
        _refuse_deaf(inner, start)
    reset = inner.reset

    @wraps(reset)
    def put(**settings: Any) -> tuple[Any, dict[str, Any]]:
        _, info = reset(**settings)
        return _put(inner, start), info

    inner.reset = put
    try:
        yield
    finally:
        inner.reset = reset


@dataclass(frozen=True, eq=False)
class Observed:
    """A start for :func:`rollouts`: the state in which an environment shows this observation.

    The observation is the state itself, or holds the cosine and sine of its angles, as Pendulum's
    and Acrobot's do.
    """

    observation: Any


def _refuse_deaf(inner: Any, start: Any) -> None:
    """Refuse a ``state`` that is not what is observed, or that moves nothing where it is set."""
    space, name = deepcopy(inner.action_space), type(inner).__name__
    space.seed(0)
    action = space.sample()
    seen, _ = inner.reset(seed=0)
    if not _has_state(inner):
        return  # it is told in another way
    shown = _shown(inner), seen
    after, *told = inner.step(action)[:3]
    if not (_alike(*shown) and _alike(_shown(inner), after)):
        raise InputError("start", start, f"{name}'s state is not what it shows; {FUNCTION}")
    inner.reset(seed=0)
    put = _put(inner, start)
    then = inner.step(action)[:3]
    if np.array_equal(after, then[0]) and told == [*then[1:]] and not _alike(put, seen):
        raise InputError("start", start, f"{name} does not go on from a state set; {FUNCTION}")


def _put(inner: Any, start: Any) -> Any:
    """Put an environment into a state; returns its observation."""
    observation = start(inner) if callable(start) else _set(inner, start)
    if not inner.observation_space.contains(observation):
        remedy = f"gives {observation!r}, no observation of the environment"
        raise InputError("start", start, remedy)
    return observation


def _set(inner: Any, start: Any) -> Any:
    """Set the state of an environment; returns its observation."""
    name = type(inner).__name__
    if isinstance(start, Observed):
        shown = _set(inner, start.observation)
        if not _alike(shown, start.observation, NEAR):
            remedy = f"{name} has no state known to show this observation"
            raise InputError("start", start.observation, remedy)
        return shown
    if hasattr(inner, "P") and hasattr(inner, "s"):  # toy text
        if not arguments.is_integer(start) or start not in inner.P:
            raise InputError("start", start, f"must be a state from 0 to {len(inner.P) - 1}")
        inner.s = int(start)
        return inner.s
    if hasattr(inner, "set_state") and hasattr(inner, "_get_obs"):  # MuJoCo
        sizes = [int(inner.model.nq), int(inner.model.nv)]
        state = np.concatenate([np.ravel(np.asarray(x, dtype=np.float64)) for x in start])
        if state.size != sum(sizes):  # two arrays, or all numbers in one
            remedy = f"must be {sizes[0]} positions and {sizes[1]} velocities, (qpos, qvel)"
            raise InputError("start", start, remedy)
        inner.set_state(state[: sizes[0]], state[sizes[0] :])
        return inner._get_obs()
    if not _has_state(inner):
        raise InputError("start", start, f"{name} has no state that can be set; {FUNCTION}")
    state, size = arguments.floats("start", start, "the numbers of the state"), np.size(inner.state)
    if state.ndim == 1 and state.size > size:  # an observation: cosine and sine of each angle
        angles = state.size - size
        pairs = state[: 2 * angles].reshape(-1, 2)
        state = np.append(np.arctan2(pairs[:, 1], pairs[:, 0]), state[2 * angles :])
    if state.shape != np.shape(inner.state):
        raise InputError("start", start, f"{name} must get {size} numbers, as its state has")
    inner.state = tuple(state.tolist()) if isinstance(inner.state, tuple) else state
    return _shown(inner)


def _has_state(inner: Any) -> bool:
    """Whether its ``state`` is numbers, as in classic control."""
    return np.asarray(getattr(inner, "state", None)).dtype.kind in "iuf"


def _shown(inner: Any) -> Any:
    """What an environment shows in its state."""
    show = getattr(inner, "_get_obs", getattr(inner, "_get_ob", lambda: inner.state))
    return np.asarray(show(), dtype=np.float32)


def _alike(shown: Any, given: Any, near: float = 1e-4) -> bool:
    """Whether two observations are the same, up to rounding."""
    same = np.shape(shown) == np.shape(given)
    return same and np.allclose(shown, given, rtol=0.1 * near, atol=near)
