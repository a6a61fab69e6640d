"""Rows of environments and data sets: observations read, rows checked, and linked in time."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.experience.moves import LARGEST_REWARD, Chunk, describe_error, uninterrupted
from retvar.experience.stream import Counts, Experience
from retvar.support.errors import InputError, RetvarError, SourceError

MOST_LABELS = 1_000_000
WRAP = "is not supported; wrap the environment so that it gives a number or a vector, such as in {}"
FLAT = WRAP.format("gymnasium.wrappers.FlattenObservation")


class SourceEnded(Exception):
    """A source cannot continue, for the reason in the message."""


@dataclass
class ObservationReader:
    """Reads the observations of a space as states, or as vectors of one width."""

    copy: Callable[[Any], Any]  #: of an observation, which its environment may overwrite
    read: Callable[[Any], Any]  #: the number of its state; SourceEnded, if it is not in the space
    states: int | None = None
    labels: list[Any] | None = None
    width: int | None = None
    low: NDArray[np.float64] | None = None
    high: NDArray[np.float64] | None = None

    def column(self, read: Any) -> NDArray[Any]:
        """Observations that were read as a column of states, or as rows of numbers."""
        if self.width is None:
            return np.array(read, dtype=np.int64)
        return np.asarray(read, dtype=np.float64).reshape(len(read), self.width)


def observation_reader(space: Any) -> ObservationReader:
    """Return the reader for the observations of a Gymnasium space.

    >>> from gymnasium.spaces import Box, Discrete, Tuple
    >>> observation_reader(Box(-1, 1, (2, 3))).width
    6
    >>> reader = observation_reader(Tuple((Discrete(3, start=1), Discrete(2))))
    >>> reader.states, reader.labels[:3], reader.read((3, 0))
    (6, [(1, 0), (1, 1), (2, 0)], 4)
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return _of_integers([int(space.n)], [int(space.start)])
    if isinstance(space, spaces.MultiDiscrete):
        return _of_integers(space.nvec.ravel().tolist(), space.start.ravel().tolist(), np.array)
    if isinstance(space, spaces.MultiBinary):
        size = math.prod(space.shape)
        return _of_integers([2] * size, [0] * size, np.array)
    if isinstance(space, spaces.Tuple) and space.spaces:
        parts: Any = space.spaces
        if all(isinstance(part, spaces.Discrete) for part in parts):
            return _of_integers([int(p.n) for p in parts], [int(p.start) for p in parts], tuple)
    if isinstance(space, spaces.Box) and space.dtype.kind in "fiub" and math.prod(space.shape):
        low, high = (np.asarray(x, dtype=np.float64).ravel() for x in (space.low, space.high))

        def copy(given: Any) -> NDArray[Any]:
            array = np.array(given, dtype=space.dtype)
            if array.shape != space.shape:
                raise ValueError(f"an observation of shape {array.shape}, not {space.shape}")
            return array

        return ObservationReader(copy, lambda x: x, width=low.size, low=low, high=high)
    raise InputError("observation_space", space, FLAT)


def _of_integers(
    counts: list[int], starts: list[int], copy: Callable[[Any], Any] | None = None
) -> ObservationReader:
    """One or several integers per observation, combined to one number by mixed radix.

    The label of a state is their tuple; single ones (without a `copy`) have labels only if they do
    not start at 0.
    """
    labels: list[Any] | None = None
    states = math.prod(counts)
    ranges = [range(first, first + n) for first, n in zip(starts, counts, strict=True)]
    if copy is None:
        labels = list(ranges[0]) if starts[0] else None
    elif states > MOST_LABELS:
        raise InputError("observation_space", f"{states:,} combinations", FLAT)
    else:
        labels = list(itertools.product(*ranges))

    def read(observation: Any) -> int:
        number = 0
        try:
            digits = [observation] if copy is None else np.ravel(observation).tolist()
            for x, numbers in zip(digits, ranges, strict=True):
                number = number * len(numbers) + numbers.index(int(x))
                if x != int(x):
                    raise ValueError
        except (TypeError, ValueError, OverflowError):
            remedy = f"the observation {observation!r} is not in the observation space"
            raise SourceEnded(remedy) from None
        return number

    return ObservationReader(copy or (lambda observation: observation), read, states, labels)


def experience_of(
    name: str, rows: Callable[[bool], Iterator[Chunk]], reader: ObservationReader, actions: Any,
    **about: Any,
) -> Experience:  # fmt: skip
    """Experience from rows of one width, with their actions where `rows` is told so.

    Actions of a space that numbers them count from 0; they have labels where the space does not.
    """
    from gymnasium.spaces import Discrete

    numbered = isinstance(actions, Discrete)
    first, count = (int(actions.start), int(actions.n)) if numbered else (0, None)

    def source(counts: Counts, acting: bool = False) -> Iterator[Chunk]:
        for chunk in linked(rows(acting), reader, name, counts):
            yield chunk | {"action": chunk["action"] - first} if acting else chunk

    return Experience(
        name=name, source=source, states=reader.states, fixed_states=reader.states is not None,
        labels=reader.labels, width=reader.width, low=reader.low, high=reader.high,
        with_actions=partial(source, acting=True) if numbered else None, action_count=count,
        actions=list(range(first, first + int(actions.n))) if first else None, **about,
    )  # fmt: skip


def linked(
    parts: Iterator[Chunk], reader: ObservationReader, name: str, counts: Counts
) -> Iterator[Chunk]:
    """Leave out rows that cannot be used; truncate a row whose next one is, or never comes.

    If the source fails, everything before is yielded, then a SourceError is raised, or a
    RetvarError or an interruption as it is.
    """
    held: Chunk = {}
    ready: list[Chunk] = []
    failure: BaseException | None = None
    try:
        for new in parts:
            with uninterrupted():
                _check(new, reader, counts)
                rows = {k: np.concatenate([held[k], x]) if held else x for k, x in new.items()}
                found, held = _decided(rows, last=False)
                ready += [found] if len(found["reward"]) else []
            while ready:
                yield ready.pop()
    except (Exception, KeyboardInterrupt) as error:  # an environment may raise anything
        failure = error
    yield from ready
    if held:
        yield _decided(held, last=True)[0]
    if isinstance(failure, RetvarError | KeyboardInterrupt):
        raise failure
    if failure is not None:
        ended = isinstance(failure, SourceEnded)
        reason = str(failure) if ended else describe_error(failure)
        raise SourceError(name, counts.transitions, reason) from failure


def _check(rows: Chunk, reader: ObservationReader, counts: Counts) -> None:
    """Mark rows that cannot be used as ``bad``, and count them; clip observations to bounds."""
    ended, size = rows["terminated"], np.abs(rows["reward"])
    readable = np.ones(len(size), dtype=bool)
    if reader.width is not None:
        state, after = (np.isfinite(rows[name]).all(axis=1) for name in ("state", "next_state"))
        readable = state & (after | ended)
        last = readable & rows["truncated"] & ~ended
        for name, counted in (("state", readable), ("next_state", last)):
            clipped = np.clip(rows[name], reader.low, reader.high)
            counts.out_of_bounds += int(((clipped != rows[name]).any(axis=1) & counted).sum())
            rows[name] = clipped
    finite, usable = np.isfinite(size), size <= LARGEST_REWARD
    for reason, bad in {
        "observation not finite": ~readable,
        "reward not finite": readable & ~finite,
        f"reward beyond {LARGEST_REWARD:g} in size": readable & finite & ~usable,
    }.items():
        counts.rejected += Counter({reason: int(np.count_nonzero(bad))})
    rows["bad"] = ~(readable & finite & usable)


def _decided(rows: Chunk, *, last: bool) -> tuple[Chunk, Chunk]:
    """Rows up to the first one whose next row is not known yet, without bad ones; and the rest."""
    n, bad = len(rows["reward"]), rows["bad"]
    stream = rows.get("stream", np.zeros(n))
    order, follows = np.argsort(stream, kind="stable"), np.full(n, n)
    same = np.diff(stream[order]) == 0
    follows[order[:-1][same]] = order[1:][same]  # the next row of the same stream; n: there is none
    goes_on = ~(rows["terminated"] | rows["truncated"] | bad)
    waits = goes_on & (follows == n) & (not last)
    end = int(np.argmax(waits)) if waits.any() else n
    cut = goes_on & np.append(bad, True)[follows]
    ended = rows["terminated"].reshape(-1, *[1] * (rows["state"].ndim - 1))
    after = np.where(ended, rows["state"], rows["next_state"])
    found = rows | {"truncated": rows["truncated"] | cut, "next_state": after}
    kept = np.flatnonzero(~bad[:end])
    rest = {name: x[end:] for name, x in rows.items()} if end < n else {}
    return {name: x[kept] for name, x in found.items() if name != "bad"}, rest
