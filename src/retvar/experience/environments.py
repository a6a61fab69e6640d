"""Experience from Gymnasium environments: one, several in turn, or a vector of them."""

from __future__ import annotations

import difflib
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from retvar.errors import InputError, listed
from retvar.experience.acting import Acting, acting_of
from retvar.experience.chaining import Chain, handed_over, stopped
from retvar.experience.legible import checked
from retvar.experience.spaces import Reading, reading_of
from retvar.experience.stream import Chunk, Experience, Tally
from retvar.words import seed_of

__all__ = ["from_gymnasium"]

ENVIRONMENT = (
    "must be an id, a Gymnasium environment, a vector environment, or a list of single ones"
)


def from_gymnasium(
    env: Any,
    policy: Any = "random",
    *,
    steps: int | None = None,
    episodes: int | None = None,
    seed: int = 0,
    chunk: int = 4_096,
    **options: Any,
) -> Experience:
    """Let a policy act in an environment, for so many steps or episodes, and watch.

    Several environments, as a list or a vector environment in any autoreset mode, are watched in
    turn: the first transition of each, the second of each, …, every one with its number as
    ``stream``. Each has a seed of its own, made from `seed`. Truncation is not termination; the
    last transition of each environment is marked truncated where its episode was still going on.

    Parameters
    ----------
    env
        An id (`options` then go to ``gymnasium.make``), a ``gymnasium.Env``, a vector environment,
        or a list of single environments.
    policy
        ``"random"``; an array of actions [state] or of probabilities [state, action]; a
        :class:`retvar.Policy`; a function of a single observation; or an object with
        ``predict(observation)``, as Stable-Baselines3's are.
    steps, episodes
        How many in all: give one of them.
    seed
        Of environments and actions.
    chunk
        Transitions handed over at a time.

    >>> lake = from_gymnasium("FrozenLake-v1", steps=1_000, seed=1)
    >>> sum(len(part["reward"]) for part in lake.chunks()), lake.states, lake.grid
    (1000, 16, (4, 4))
    >>> from_gymnasium("FrozenLake-v7", steps=10)
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: environment = FrozenLake-v7: unknown to Gymnasium; did you mean
    FrozenLake-v1, FrozenLake8x8-v1...?
    """
    limit = _Limit.of(steps, episodes)
    whole = isinstance(chunk, int | np.integer) and not isinstance(chunk, bool)
    if not whole or chunk < 1:
        raise InputError("chunk", repr(chunk), "must be a whole number of at least 1")
    crowd = _Crowd(env, options)
    observed, acted = crowd.spaces
    reading = reading_of(observed)
    children = np.random.SeedSequence(int(seed_of(seed))).spawn(crowd.count)
    seeds = [[int(word) >> 1 for word in child.generate_state(2)] for child in children]
    acting = acting_of(policy, reading, acted, seed, lambda i: seeds[i][1])
    name, count, own = crowd.name, crowd.count, [pair[0] for pair in seeds]

    def source(tally: Tally) -> Iterator[Chunk]:
        steps_of = _in_turn if crowd.vector is None else _side_by_side
        raw = steps_of(crowd, acting, reading, own, limit, chunk)
        pieces = _columns(raw, count, reading, tally)
        try:
            yield from handed_over(pieces, Chain(tally), stopped(name, tally))
        finally:
            crowd.close()

    return Experience(
        name=name, source=source, states=reading.states, width=reading.width,
        low=reading.low, high=reading.high, labels=reading.labels,
        grid=_grid(crowd.inner, reading.states), policy=acting.words, length=steps,
    )  # fmt: skip


class _Limit(NamedTuple):
    """When to stop."""

    steps: int
    episodes: int

    @classmethod
    def of(cls, steps: Any, episodes: Any) -> _Limit:
        if (steps is None) == (episodes is None):
            found = "neither" if steps is None else "both"
            raise InputError("steps, episodes", found, "give one of them: how long to go on")
        field, given = ("steps", steps) if episodes is None else ("episodes", episodes)
        if not isinstance(given, int | np.integer) or isinstance(given, bool) or given < 1:
            raise InputError(field, repr(given), "must be a whole number of at least 1")
        never = 2**63 - 1
        return cls(int(steps or never), int(episodes or never))


class _Crowd:
    """The environments meant: a list of single ones, or a vector; those made here are closed."""

    def __init__(self, env: Any, options: dict[str, Any]) -> None:
        import gymnasium

        self.vector: Any = None
        self._make: Callable[[], Any] | None = None
        if isinstance(env, str):
            self._make = lambda: made(env, options)
            self.singles = [self._make()]
        elif options:
            raise InputError("options", listed(sorted(options)), "go with the id of an environment")
        elif isinstance(env, gymnasium.vector.VectorEnv):
            self.vector, self.singles = env, []
        else:
            self.singles = list(env) if isinstance(env, list | tuple) else [env]
        for single in self.singles:
            if not isinstance(single, gymnasium.Env):
                raise InputError("environment", single, ENVIRONMENT)
        if not self.singles and self.vector is None:
            raise InputError("environment", "an empty list", ENVIRONMENT)
        if len({id(single) for single in self.singles}) < len(self.singles):
            raise InputError(
                "environment", "one of them twice", "each must be an object of its own"
            )
        self._agree()

    def _agree(self) -> None:
        for single in self.singles[1:]:
            for name in ("observation_space", "action_space"):
                found, first = getattr(single, name), getattr(self.singles[0], name)
                if found != first:
                    raise InputError(name, found, f"must be that of the first one, {first}")

    @property
    def count(self) -> int:
        return len(self.singles) if self.vector is None else int(self.vector.num_envs)

    @property
    def spaces(self) -> tuple[Any, Any]:
        """Spaces of a single observation and action."""
        if self.vector is not None:
            return self.vector.single_observation_space, self.vector.single_action_space
        return self.singles[0].observation_space, self.singles[0].action_space

    @property
    def inner(self) -> Any:
        """What is within the wrappers of the first one, if it can be reached."""
        if self.vector is None:
            return self.singles[0].unwrapped
        inside = getattr(self.vector.unwrapped, "envs", None) or [None]
        return getattr(inside[0], "unwrapped", None)

    @property
    def name(self) -> str:
        env = self.singles[0] if self.vector is None else self.vector
        spec = getattr(env, "spec", None) or getattr(self.inner, "spec", None)
        word = spec.id if spec is not None else type(self.inner or env.unwrapped).__name__
        return f"gymnasium:{word}" + (f" × {self.count}" if self.count > 1 else "")

    def opened(self) -> list[Any]:
        """The single environments, made anew where they have been closed."""
        if not self.singles and self._make is not None:
            self.singles = [self._make()]
        return self.singles

    def close(self) -> None:
        if self._make is not None:
            for single in self.singles:
                single.close()
            self.singles = []


def made(name: str, options: dict[str, Any]) -> Any:
    """``gymnasium.make``, with a word about what might have been meant."""
    import gymnasium

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is out of date is told by the error
            return gymnasium.make(name, **options)
    except Exception as error:  # an environment may raise anything
        told = " ".join(str(error).split()) or type(error).__name__
        if name in gymnasium.registry:
            raise InputError("environment", name, f"cannot be made: {told}") from None
        near = difflib.get_close_matches(name, gymnasium.registry, n=3)
        hint = f"; did you mean {', '.join(near)}?" if near else f": {told}"
        raise InputError("environment", name, f"unknown to Gymnasium{hint}") from None


def _grid(inner: Any, states: int | None) -> tuple[int, int] | None:
    shape = getattr(inner, "shape", None) or (getattr(inner, "nrow", 0), getattr(inner, "ncol", 0))
    if states is None or len(shape) != 2 or shape[0] * shape[1] != states:
        return None
    return int(shape[0]), int(shape[1])


# ---------------------------------------------------------------------- transitions as they come


class _Raw:
    """Transitions of a chunk as plain lists."""

    def __init__(self) -> None:
        self.lists: tuple[list[Any], ...] = ([], [], [], [], [])

    def __len__(self) -> int:
        return len(self.lists[0])


def _in_turn(
    crowd: _Crowd, acting: Acting, reading: Reading, seeds: list[int], limit: _Limit, chunk: int
) -> Iterator[_Raw]:
    """Step single environments in turn; what came before an error is handed over before it."""
    envs, keep = crowd.opened(), reading.keep
    steps, resets = [env.step for env in envs], [env.reset for env in envs]
    current: list[Any] = [None] * len(envs)
    done, ended, raw = 0, 0, _Raw()
    try:
        for i, seed in enumerate(seeds):
            shown = resets[i](seed=seed)[0]
            current[i] = shown if keep is None else keep(shown)
        moves = acting.in_turn(current)
        while done < limit.steps and ended < limit.episodes:
            raw = _Raw()
            state, reward, after, end, cut = (column.append for column in raw.lists)
            for i, action in islice(moves, min(chunk, limit.steps - done)):
                shown, gain, terminated, truncated, _ = steps[i](action)
                if keep is not None:
                    shown = keep(shown)
                state(current[i])
                reward(gain)
                after(shown)
                end(terminated)
                cut(truncated)
                if terminated or truncated:
                    ended += 1
                    if ended == limit.episodes or done + len(raw) == limit.steps:
                        break
                    shown = resets[i]()[0]
                    if keep is not None:
                        shown = keep(shown)
                current[i] = shown
            done += len(raw)
            yield raw
    except Exception:
        yield raw
        raise


def _side_by_side(
    crowd: _Crowd, acting: Acting, reading: Reading, seeds: list[int], limit: _Limit, chunk: int
) -> Iterator[_Raw]:
    """Step a vector environment, and put its transitions into the order of single ones in turn."""
    queues: list[deque[tuple[Any, ...]]] = [deque() for _ in range(crowd.count)]
    rounds = _rounds(crowd.vector, acting, reading, seeds, queues)
    done, ended, turn, raw = 0, 0, 0, _Raw()
    problem: Exception | None = None
    while problem is None:
        try:
            next(rounds)
        except Exception as error:  # an environment may raise anything
            problem = error
        while queues[turn]:
            row = queues[turn].popleft()
            turn = (turn + 1) % crowd.count
            for column, entry in zip(raw.lists, row, strict=True):
                column.append(entry)
            done += 1
            ended += bool(row[3] or row[4])
            if done == limit.steps or ended == limit.episodes:
                yield raw
                return
            if len(raw) == chunk:
                yield raw
                raw = _Raw()
    if len(raw):
        yield raw
    raise problem


def _rounds(
    env: Any, acting: Acting, reading: Reading, seeds: list[int], queues: list[Any]
) -> Iterator[None]:
    """Step all at once and queue the transitions of each; a reset is none."""
    from gymnasium.vector import AutoresetMode

    mode, n = _mode(env), int(env.num_envs)
    single = hasattr(env.unwrapped, "env_fns") or hasattr(env.unwrapped, "envs")
    current = _apart(env, reading, env.reset(seed=seeds if single else seeds[0])[0])
    choosers = [acting.chooser(i) for i in range(n)]
    actions: list[Any] = [None] * n
    over = np.zeros(n, dtype=bool)
    while True:
        if mode is AutoresetMode.DISABLED and over.any():
            shown = _apart(env, reading, env.reset(options={"reset_mask": over.copy()})[0])
            current = [shown[i] if over[i] else current[i] for i in range(n)]
            over[:] = False
        resets = over if mode is AutoresetMode.NEXT_STEP else np.zeros(n, dtype=bool)
        for i in range(n):
            if not resets[i]:  # an action that only resets is not looked at
                actions[i] = choosers[i](current[i])
        batch, rewards, ends, cuts, infos = env.step(_together(env, actions))
        shown = _apart(env, reading, batch)
        over = np.logical_or(ends, cuts)
        for i in np.flatnonzero(~resets).tolist():
            after = shown[i]
            if over[i] and mode is AutoresetMode.SAME_STEP:
                after = infos["final_obs"][i]
                after = after if reading.keep is None else reading.keep(after)
            queues[i].append((current[i], float(rewards[i]), after, bool(ends[i]), bool(cuts[i])))
        current = shown
        yield


def _mode(env: Any) -> Any:
    from gymnasium.vector import AutoresetMode

    given = env.metadata.get("autoreset_mode")
    try:
        return given if isinstance(given, AutoresetMode) else AutoresetMode(given)
    except ValueError:
        known = ", ".join(mode.value for mode in AutoresetMode)
        remedy = f"the vector environment must say how it resets: one of {known}"
        raise InputError('metadata["autoreset_mode"]', given, remedy) from None


def _apart(env: Any, reading: Reading, batch: Any) -> list[Any]:
    """The observations of a batch, one by one."""
    from gymnasium.vector.utils import iterate

    parts = list(iterate(env.observation_space, batch))
    return parts if reading.keep is None else [reading.keep(part) for part in parts]


def _together(env: Any, actions: list[Any]) -> Any:
    """Actions as a batch."""
    from gymnasium.vector.utils import concatenate, create_empty_array

    space = env.single_action_space
    return concatenate(space, actions, create_empty_array(space, len(actions)))


# ---------------------------------------------------------------------- lists into columns


def _columns(pieces: Iterator[_Raw], count: int, reading: Reading, tally: Tally) -> Iterator[Chunk]:
    """Lists as columns, bad rows marked and counted."""
    first = 0
    for raw in pieces:
        if not len(raw):
            continue
        rows: Chunk = {
            "state": reading.column(raw.lists[0]),
            "reward": _rewards(raw.lists[1]),
            "next_state": reading.column(raw.lists[2]),
            "terminated": np.array(raw.lists[3], dtype=bool),
            "truncated": np.array(raw.lists[4], dtype=bool),
        }
        if count > 1:
            rows["stream"] = (first + np.arange(len(raw))) % count
        first += len(raw)
        yield from checked(rows, reading, tally, raw.lists[0], raw.lists[2])


def _rewards(given: list[Any]) -> NDArray[np.float64]:
    """Rewards as numbers; NaN for what is none."""
    try:
        array = np.array(given, dtype=np.float64)
        if array.ndim == 1:
            return array
    except (TypeError, ValueError, OverflowError):
        pass
    return np.array([_number(each) for each in given])


def _number(given: Any) -> float:
    try:
        return float(np.asarray(given, dtype=np.float64).reshape(()))
    except (TypeError, ValueError, OverflowError):
        return float("nan")
