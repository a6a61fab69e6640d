"""Observations of a Gymnasium space as columns of states or vectors, and validated rows."""

from __future__ import annotations

import itertools
import math
from array import array as c_array
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.errors import InputError
from retvar.experience.episodes import SourceEnded
from retvar.experience.stream import LARGEST_REWARD, Chunk, Counts, first_rows

__all__ = ["ObservationReader", "acting_fields", "observation_reader", "validated"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
MOST_LABELS = 1_000_000
WRAP = (
    "is not supported; wrap the environment so that it gives a number or a vector, for "
    "instance in gymnasium.wrappers.FlattenObservation"
)


class ObservationReader:
    """Converts the observations of a space to states, or to vectors of one width.

    >>> from gymnasium.spaces import Discrete, Tuple
    >>> reader = observation_reader(Tuple((Discrete(3, start=1), Discrete(2))))
    >>> reader.states, reader.labels[:3], reader.column([(1, 1), (3, 0), (0, 0)])
    (6, [(1, 0), (1, 1), (2, 0)], array([ 1,  4, -1]))
    """

    states: int | None = None
    width: int | None = None
    low: Array | None = None
    high: Array | None = None
    labels: list[Any] | None = None
    #: copies an observation, which its environment may overwrite; None: no copy is needed
    copy: Callable[[Any], Any] | None = None

    def column(self, given: Any) -> NDArray[Any]:
        """Convert observations to a column of states (−1: not in the space) or rows of numbers."""
        raise NotImplementedError


class _DiscreteReader(ObservationReader):
    """One or several integers per observation, combined to one number by mixed radix."""

    def __init__(self, counts: list[int], starts: list[int], *, single: bool, copy: bool) -> None:
        self.counts, self.starts = np.array(counts), np.array(starts)
        self.states = math.prod(counts)
        if self.states > MOST_LABELS and not single:
            raise InputError(
                "observation_space", f"{self.states:,} combinations",
                f"more than {MOST_LABELS:,} states; wrap the environment so that it gives fewer, "
                "or a vector",
            )  # fmt: skip
        if not single:
            ranges = (range(s, s + n) for s, n in zip(starts, counts, strict=True))
            self.labels = list(itertools.product(*ranges))
        elif starts[0]:
            self.labels = list(range(starts[0], starts[0] + counts[0]))
        self.copy = np.array if copy else None

    def column(self, given: Any) -> Integers:
        """States; −1 for observations that are not in the space."""
        try:
            if isinstance(given, list) and self.labels is None:
                array = np.frombuffer(c_array("q", given), dtype=np.int64)  # refuses fractions
                if array.size and array.min() >= 0 and array.max() < self.states:
                    return array
            array = np.asarray(given)
            array = array.reshape(len(array), self.counts.size)
            if array.dtype.kind not in "iub":
                raise ValueError
        except (TypeError, ValueError, OverflowError):
            array = np.array([self._digits(each) for each in given])
        digits = array.astype(np.int64) - self.starts
        good = ((digits >= 0) & (digits < self.counts)).all(axis=1)
        state = digits[:, 0]
        for k in range(1, self.counts.size):
            state = state * self.counts[k] + digits[:, k]
        return np.asarray(np.where(good, state, -1))

    def _digits(self, given: Any) -> Integers:
        """The integers of one observation; outside the space where it cannot be read."""
        try:
            array = np.asarray(given).reshape(self.counts.size)
            if array.dtype.kind in "iub" or np.all(array == np.trunc(array.astype(np.float64))):
                return array.astype(np.int64)
        except (TypeError, ValueError, OverflowError):
            pass
        return self.starts - 1


class _BoxReader(ObservationReader):
    """Vectors of a Box, flattened."""

    def __init__(self, space: Any) -> None:
        self.width = math.prod(space.shape)
        self.low = np.asarray(space.low, dtype=np.float64).ravel()
        self.high = np.asarray(space.high, dtype=np.float64).ravel()
        dtype, shape = space.dtype, space.shape

        def copy(given: Any) -> NDArray[Any]:
            array = np.array(given, dtype=dtype)
            if array.shape != shape:
                raise ValueError(f"an observation of shape {array.shape}, not {shape}")
            return array

        self.copy = copy

    def column(self, given: Any) -> Array:
        """Rows of numbers."""
        return np.asarray(given, dtype=np.float64).reshape(len(given), self.width or 0)


def observation_reader(space: Any) -> ObservationReader:
    """Return the reader for the observations of a Gymnasium space.

    >>> from gymnasium.spaces import Box
    >>> observation_reader(Box(-1, 1, (2, 3))).width
    6
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return _DiscreteReader([int(space.n)], [int(space.start)], single=True, copy=False)
    if isinstance(space, spaces.MultiDiscrete):
        counts, starts = (np.ravel(x).tolist() for x in (space.nvec, space.start))
        return _DiscreteReader(counts, starts, single=False, copy=True)
    if isinstance(space, spaces.MultiBinary):
        size = math.prod(space.shape)
        return _DiscreteReader([2] * size, [0] * size, single=False, copy=True)
    if isinstance(space, spaces.Tuple) and space.spaces:
        parts = list(space.spaces)
        if all(isinstance(part, spaces.Discrete) for part in parts):
            counts, starts = [int(p.n) for p in parts], [int(p.start) for p in parts]
            return _DiscreteReader(counts, starts, single=False, copy=False)
    if isinstance(space, spaces.Box) and space.dtype.kind in "fiub" and math.prod(space.shape):
        return _BoxReader(space)
    raise InputError("observation_space", space, WRAP)


def acting_fields(space: Any, source: Callable[..., Iterator[Chunk]]) -> dict[str, Any]:
    """What an experience says of its actions, where they are numbered.

    >>> from gymnasium.spaces import Box, Discrete
    >>> acting_fields(Discrete(3, start=1), iter)["actions"], acting_fields(Box(0, 1), iter)
    ([1, 2, 3], {})
    """
    from gymnasium.spaces import Discrete

    if not isinstance(space, Discrete):
        return {}
    first, count = int(space.start), int(space.n)

    def acting(counts: Counts) -> Iterator[Chunk]:
        for chunk in source(counts, acting=True):
            if first and "action" in chunk:
                chunk = chunk | {"action": chunk["action"] - first}
            yield chunk

    labels = list(range(first, first + count)) if first else None
    return {"with_actions": acting, "actions": labels, "action_count": count}


def validated(
    rows: Chunk, reader: ObservationReader, counts: Counts, before: Any, after: Any
) -> Iterator[Chunk]:
    """Mark rows whose observation or reward cannot be used; clip observations to their bounds.

    `before` and `after` are the raw observations. One that is not in the space ends the stream:
    the rows before it are yielded, then :class:`SourceEnded` is raised.

    >>> from gymnasium.spaces import Box
    >>> state = np.array([[0.5], [2.0]])
    >>> rows = {"state": state, "next_state": state, "reward": np.array([1.0, np.nan]),
    ...         "terminated": np.zeros(2, dtype=bool), "truncated": np.zeros(2, dtype=bool)}
    >>> counts = Counts()
    >>> next(validated(rows, observation_reader(Box(0, 1, (1,))), counts, state, state))["bad"]
    array([False,  True])
    >>> counts.rejected, counts.out_of_bounds
    (Counter({'reward not finite': 1}), 1)
    """
    state, follows, ended = rows["state"], rows["next_state"], rows["terminated"]
    size = np.abs(rows["reward"])
    usable = size <= LARGEST_REWARD
    readable = np.ones_like(usable)
    if reader.width is None:
        unknown = (state < 0) | ((follows < 0) & ~ended)
        if unknown.any():
            at = int(np.argmax(unknown))
            yield from validated(first_rows(rows, at), reader, counts, before, after)
            given = (before if state[at] < 0 else after)[at]
            raise SourceEnded(f"the observation {given!r} is not in the observation space")
    else:
        readable = np.isfinite(state).all(axis=1) & (np.isfinite(follows).all(axis=1) | ended)
        last = readable & rows["truncated"] & ~ended
        rows["state"] = _clip(state, reader, readable, counts)
        rows["next_state"] = _clip(follows, reader, last, counts)
    reasons = {
        "observation not finite": ~readable,
        "reward not finite": readable & ~np.isfinite(size),
        f"reward beyond {LARGEST_REWARD:g} in size": readable & np.isfinite(size) & ~usable,
    }
    for reason, bad in reasons.items():
        if bad.any():
            counts.rejected[reason] += int(np.count_nonzero(bad))
    good = readable & usable
    if not good.all():
        rows["bad"] = ~good
    yield rows


def _clip(
    column: Array, reader: ObservationReader, counted: NDArray[np.bool_], counts: Counts
) -> Array:
    """Clip observations to the bounds, and count those outside among `counted`."""
    clipped = np.clip(column, reader.low, reader.high)
    counts.out_of_bounds += int(np.count_nonzero((clipped != column).any(axis=1) & counted))
    return np.asarray(clipped)
