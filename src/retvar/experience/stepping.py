"""Step environments: single ones in turn, or a vector environment in the same order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from retvar.arguments import integer
from retvar.errors import InputError
from retvar.experience.observations import ObservationReader, validated
from retvar.experience.policies import ActionSelection
from retvar.experience.stream import Chunk, Counts
from retvar.experience.vec_envs import is_vec_env, queue_vec_env_steps

__all__ = ["RolloutLimit", "autoreset_mode", "step_in_turn", "step_vector", "to_columns"]


class RolloutLimit(NamedTuple):
    """How many steps or episodes to take."""

    steps: int
    episodes: int

    @classmethod
    def of(cls, steps: Any, episodes: Any) -> RolloutLimit:
        """Check that one of the two is given.

        >>> RolloutLimit.of(None, 5).episodes
        5
        """
        if (steps is None) == (episodes is None):
            found = "neither" if steps is None else "both"
            raise InputError("steps, episodes", found, "give one of them: how long to go on")
        unlimited = 2**63 - 1
        if episodes is None:
            return cls(integer("steps", steps, 1), unlimited)
        return cls(unlimited, integer("episodes", episodes, 1))

    def shares(self, count: int) -> list[int]:
        """Episodes of each environment: the same number, so that short ones are not preferred.

        >>> RolloutLimit.of(None, 5).shares(3)
        [2, 2, 1]
        """
        each, rest = divmod(self.episodes, count)
        return [each + (i < rest) for i in range(count)]


class RolloutBuffer:
    """Transitions of a chunk as Python lists; flags only for the rows that have one."""

    def __init__(self) -> None:
        self.stream: list[int] = []
        self.state: list[Any] = []
        self.action: list[Any] = []
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


def step_in_turn(
    envs: list[Any], selection: ActionSelection, reader: ObservationReader, seeds: list[int],
    limit: RolloutLimit, chunk: int,
) -> Iterator[RolloutBuffer]:  # fmt: skip
    """Step single environments in turn; transitions before an error are yielded before it."""
    copy = reader.copy
    steps, resets = [env.step for env in envs], [env.reset for env in envs]
    current: list[Any] = [None] * len(envs)
    left = limit.shares(len(envs))
    active = [share > 0 for share in left]
    done, ended, buffer = 0, 0, RolloutBuffer()
    try:
        for i, seed in enumerate(seeds):
            observation = resets[i](seed=seed)[0]
            current[i] = observation if copy is None else copy(observation)
        moves = selection.in_turn(current, active)
        while done < limit.steps and ended < limit.episodes:
            buffer = RolloutBuffer()
            add_state, add_reward = buffer.state.append, buffer.reward.append
            add_after, add_stream = buffer.after.append, buffer.stream.append
            add_action = buffer.action.append
            for i, action in islice(moves, min(chunk, limit.steps - done)):
                observation, reward, terminated, truncated, _ = steps[i](action)
                if copy is not None:
                    observation = copy(observation)
                add_state(current[i])
                add_action(action)
                add_reward(reward)
                add_after(observation)
                add_stream(i)
                if terminated or truncated:
                    buffer.flags.append((len(buffer) - 1, terminated, truncated))
                    ended += 1
                    left[i] -= 1
                    active[i] = left[i] > 0
                    if ended == limit.episodes or done + len(buffer) == limit.steps:
                        break
                    if active[i]:
                        observation = resets[i]()[0]
                        if copy is not None:
                            observation = copy(observation)
                current[i] = observation
            done += len(buffer)
            yield buffer
    except Exception:
        yield buffer
        raise


def step_vector(
    env: Any, selection: ActionSelection, reader: ObservationReader, seeds: list[int],
    limit: RolloutLimit, chunk: int,
) -> Iterator[RolloutBuffer]:  # fmt: skip
    """Step a vector environment of Gymnasium or Stable-Baselines3; the order of `step_in_turn`."""
    count = int(env.num_envs)
    left = limit.shares(count)
    queues: list[deque[tuple[Any, ...]]] = [deque(maxlen=None if k else 0) for k in left]
    queue_steps = queue_vec_env_steps if is_vec_env(env) else _queue_steps
    rounds = queue_steps(env, selection, reader, seeds, queues)
    done, ended, turn, buffer = 0, 0, 0, RolloutBuffer()
    failure: Exception | None = None
    while failure is None:
        try:
            next(rounds)
        except Exception as error:  # an environment may raise anything
            failure = error
        while queues[turn]:
            state, action, reward, after, terminated, truncated = queues[turn].popleft()
            buffer.stream.append(turn)
            buffer.state.append(state)
            buffer.action.append(action)
            buffer.reward.append(reward)
            buffer.after.append(after)
            done += 1
            if terminated or truncated:
                buffer.flags.append((len(buffer) - 1, terminated, truncated))
                ended += 1
                left[turn] -= 1
                if not left[turn]:
                    queues[turn] = deque(maxlen=0)  # its later steps are not asked for
            if done == limit.steps or ended == limit.episodes:
                yield buffer
                return
            turn = next(i % count for i in range(turn + 1, turn + 1 + count) if left[i % count])
            if len(buffer) == chunk:
                yield buffer
                buffer = RolloutBuffer()
    if len(buffer):
        yield buffer
    raise failure


def _queue_steps(
    env: Any, selection: ActionSelection, reader: ObservationReader, seeds: list[int],
    queues: list[Any],
) -> Iterator[None]:  # fmt: skip
    """Step the vector environment again and again, and queue the transitions of each; no resets."""
    from gymnasium.vector import AutoresetMode

    mode, n = autoreset_mode(env), int(env.num_envs)
    single = hasattr(env.unwrapped, "env_fns") or hasattr(env.unwrapped, "envs")
    current = _split(env, reader, env.reset(seed=seeds if single else seeds[0])[0])
    act = selection.of_some(n)
    actions: list[Any] = [None] * n
    over = np.zeros(n, dtype=bool)
    while True:
        if mode is AutoresetMode.DISABLED and over.any():
            fresh = _split(env, reader, env.reset(options={"reset_mask": over.copy()})[0])
            current = [fresh[i] if over[i] else current[i] for i in range(n)]
            over[:] = False
        resets = over if mode is AutoresetMode.NEXT_STEP else np.zeros(n, dtype=bool)
        live = np.flatnonzero(~resets).tolist()  # a step that only resets ignores its action
        for i, action in zip(live, act(current, live), strict=True):
            actions[i] = action
        batch, rewards, ends, cuts, infos = env.step(_stack(env, actions))
        observations = _split(env, reader, batch)
        over = np.logical_or(ends, cuts)
        for i in live:
            after = observations[i]
            if over[i] and mode is AutoresetMode.SAME_STEP:
                after = infos["final_obs"][i]
                after = after if reader.copy is None else reader.copy(after)
            moved = current[i], actions[i], float(rewards[i]), after
            queues[i].append((*moved, bool(ends[i]), bool(cuts[i])))
        current = observations
        yield


def autoreset_mode(env: Any) -> Any:
    """The autoreset mode of a vector environment, which must be in its metadata."""
    from gymnasium.vector import AutoresetMode

    given = env.metadata.get("autoreset_mode")
    try:
        return given if isinstance(given, AutoresetMode) else AutoresetMode(given)
    except ValueError:
        known = ", ".join(mode.value for mode in AutoresetMode)
        remedy = f"the vector environment must say how it resets: one of {known}"
        raise InputError('metadata["autoreset_mode"]', given, remedy) from None


def _split(env: Any, reader: ObservationReader, batch: Any) -> list[Any]:
    """Split a batch into observations."""
    from gymnasium.vector.utils import iterate

    parts = list(iterate(env.observation_space, batch))
    return parts if reader.copy is None else [reader.copy(part) for part in parts]


def _stack(env: Any, actions: list[Any]) -> Any:
    """Stack actions to a batch."""
    from gymnasium.vector.utils import concatenate, create_empty_array

    space = env.single_action_space
    return concatenate(space, actions, create_empty_array(space, len(actions)))


def to_columns(
    buffers: Iterator[RolloutBuffer], count: int, reader: ObservationReader, counts: Counts,
    acting: bool = False,
) -> Iterator[Chunk]:  # fmt: skip
    """Convert lists to columns, with actions if `acting`; bad rows are marked and counted."""
    for buffer in buffers:
        if not len(buffer):
            continue
        rows: Chunk = {
            "state": reader.column(buffer.state),
            "reward": _rewards(buffer.reward),
            "next_state": reader.column(buffer.after),
            "terminated": buffer.flag(1),
            "truncated": buffer.flag(2),
        }
        if acting:
            rows["action"] = np.array(buffer.action, dtype=np.int64).reshape(len(buffer))
        if count > 1:
            rows["stream"] = np.array(buffer.stream, dtype=np.int64)
        yield from validated(rows, reader, counts, buffer.state, buffer.after)


def _rewards(given: list[Any]) -> NDArray[np.float64]:
    """Convert rewards to floats; NaN where one is no number."""
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
