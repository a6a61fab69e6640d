"""Environments at work: one after the other in turn, or a vector of them put into that order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from retvar.errors import InputError
from retvar.experience.policies import Acting
from retvar.experience.spaces import Reading
from retvar.experience.stream import Chunk, Counts
from retvar.experience.validate import checked

__all__ = ["Limit", "columns", "in_turn", "mode_of", "side_by_side"]


class Limit(NamedTuple):
    """When to stop."""

    steps: int
    episodes: int

    @classmethod
    def of(cls, steps: Any, episodes: Any) -> Limit:
        """Check that one of the two is given.

        >>> Limit.of(None, 5).episodes
        5
        """
        if (steps is None) == (episodes is None):
            found = "neither" if steps is None else "both"
            raise InputError("steps, episodes", found, "give one of them: how long to go on")
        field, given = ("steps", steps) if episodes is None else ("episodes", episodes)
        if not isinstance(given, int | np.integer) or isinstance(given, bool) or given < 1:
            raise InputError(field, repr(given), "must be a whole number of at least 1")
        never = 2**63 - 1
        return cls(int(steps or never), int(episodes or never))


class Raw:
    """Transitions of a chunk as plain lists; flags only where there are any."""

    def __init__(self) -> None:
        self.state: list[Any] = []
        self.reward: list[Any] = []
        self.after: list[Any] = []
        self.flags: list[tuple[int, Any, Any]] = []  # row, terminated, truncated

    def __len__(self) -> int:
        return len(self.after)

    def flag(self, which: int) -> NDArray[np.bool_]:
        """A column of flags: 1 terminated, 2 truncated."""
        column = np.zeros(len(self), dtype=bool)
        column[[row[0] for row in self.flags if row[which]]] = True
        return column


def in_turn(
    envs: list[Any], acting: Acting, reading: Reading, seeds: list[int], limit: Limit, chunk: int
) -> Iterator[Raw]:
    """Step single environments in turn; what came before an error is handed over before it."""
    keep = reading.keep
    steps, resets = [env.step for env in envs], [env.reset for env in envs]
    current: list[Any] = [None] * len(envs)
    done, ended, raw = 0, 0, Raw()
    try:
        for i, seed in enumerate(seeds):
            shown = resets[i](seed=seed)[0]
            current[i] = shown if keep is None else keep(shown)
        moves = acting.in_turn(current)
        while done < limit.steps and ended < limit.episodes:
            raw = Raw()
            state, reward, after = raw.state.append, raw.reward.append, raw.after.append
            for i, action in islice(moves, min(chunk, limit.steps - done)):
                shown, gain, terminated, truncated, _ = steps[i](action)
                if keep is not None:
                    shown = keep(shown)
                state(current[i])
                reward(gain)
                after(shown)
                if terminated or truncated:
                    raw.flags.append((len(raw) - 1, terminated, truncated))
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


def side_by_side(
    env: Any, acting: Acting, reading: Reading, seeds: list[int], limit: Limit, chunk: int
) -> Iterator[Raw]:
    """Step a vector environment, and put its transitions into the order of single ones in turn."""
    count = int(env.num_envs)
    queues: list[deque[tuple[Any, ...]]] = [deque() for _ in range(count)]
    rounds = _rounds(env, acting, reading, seeds, queues)
    done, ended, turn, raw = 0, 0, 0, Raw()
    problem: Exception | None = None
    while problem is None:
        try:
            next(rounds)
        except Exception as error:  # an environment may raise anything
            problem = error
        while queues[turn]:
            state, reward, after, terminated, truncated = queues[turn].popleft()
            turn = (turn + 1) % count
            raw.state.append(state)
            raw.reward.append(reward)
            raw.after.append(after)
            done += 1
            if terminated or truncated:
                raw.flags.append((len(raw) - 1, terminated, truncated))
                ended += 1
            if done == limit.steps or ended == limit.episodes:
                yield raw
                return
            if len(raw) == chunk:
                yield raw
                raw = Raw()
    if len(raw):
        yield raw
    raise problem


def _rounds(
    env: Any, acting: Acting, reading: Reading, seeds: list[int], queues: list[Any]
) -> Iterator[None]:
    """Step all at once and queue the transitions of each; a reset is none."""
    from gymnasium.vector import AutoresetMode

    mode, n = mode_of(env), int(env.num_envs)
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


def mode_of(env: Any) -> Any:
    """How a vector environment resets itself; it must say so."""
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


def columns(pieces: Iterator[Raw], count: int, reading: Reading, counts: Counts) -> Iterator[Chunk]:
    """Lists as columns, bad rows marked and counted."""
    first = 0
    for raw in pieces:
        if not len(raw):
            continue
        rows: Chunk = {
            "state": reading.column(raw.state),
            "reward": _rewards(raw.reward),
            "next_state": reading.column(raw.after),
            "terminated": raw.flag(1),
            "truncated": raw.flag(2),
        }
        if count > 1:
            rows["stream"] = (first + np.arange(len(raw))) % count
        first += len(raw)
        yield from checked(rows, reading, counts, raw.state, raw.after)


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
