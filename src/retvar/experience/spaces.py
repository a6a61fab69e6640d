"""Spaces of observations: which are states, which are vectors, and what states are called."""

from __future__ import annotations

import itertools
import math
from array import array as words
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.errors import InputError

__all__ = ["Reading", "reading_of"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
MOST_LABELS = 1_000_000
WRAP = (
    "is none that can be read; wrap the environment so that it gives a number or a vector, for "
    "instance in gymnasium.wrappers.FlattenObservation"
)


class Reading:
    """How the observations of a space become states, or vectors of one width.

    >>> from gymnasium.spaces import Discrete, Tuple
    >>> reading = reading_of(Tuple((Discrete(3, start=1), Discrete(2))))
    >>> reading.states, reading.labels[:3], reading.column([(1, 1), (3, 0), (0, 0)])
    (6, [(1, 0), (1, 1), (2, 0)], array([ 1,  4, -1]))
    """

    states: int | None = None
    width: int | None = None
    low: Array | None = None
    high: Array | None = None
    labels: list[Any] | None = None
    #: makes a copy of an observation that its environment may write over; None: it cannot
    keep: Callable[[Any], Any] | None = None

    def column(self, given: Any) -> NDArray[Any]:
        """Observations as a column: states, −1 where it is none of them, or rows of numbers."""
        raise NotImplementedError


class _Numbers(Reading):
    """Whole numbers, one or several to an observation, as one number by mixed radix."""

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
        self.keep = np.array if copy else None

    def column(self, given: Any) -> Integers:
        """States; −1 for what is none."""
        try:
            if isinstance(given, list) and self.labels is None:
                array = np.frombuffer(words("q", given), dtype=np.int64)  # refuses fractions
                if array.size and array.min() >= 0 and array.max() < self.states:
                    return array
            array = np.asarray(given)
            array = array.reshape(len(array), self.counts.size)
            if array.dtype.kind not in "iub":
                raise ValueError
        except (TypeError, ValueError, OverflowError):
            array = np.array([self._one(each) for each in given])
        digits = array.astype(np.int64) - self.starts
        good = ((digits >= 0) & (digits < self.counts)).all(axis=1)
        state = digits[:, 0]
        for k in range(1, self.counts.size):
            state = state * self.counts[k] + digits[:, k]
        return np.asarray(np.where(good, state, -1))

    def _one(self, given: Any) -> Integers:
        """One observation, whatever it is; something outside where it cannot be read."""
        try:
            array = np.asarray(given).reshape(self.counts.size)
            if array.dtype.kind in "iub" or np.all(array == np.trunc(array.astype(np.float64))):
                return array.astype(np.int64)
        except (TypeError, ValueError, OverflowError):
            pass
        return self.starts - 1


class _Vectors(Reading):
    """Boxes, flattened."""

    def __init__(self, space: Any) -> None:
        self.width = math.prod(space.shape)
        self.low = np.asarray(space.low, dtype=np.float64).ravel()
        self.high = np.asarray(space.high, dtype=np.float64).ravel()
        dtype, shape = space.dtype, space.shape

        def keep(given: Any) -> NDArray[Any]:
            array = np.array(given, dtype=dtype)
            if array.shape != shape:
                raise ValueError(f"an observation of shape {array.shape}, not {shape}")
            return array

        self.keep = keep

    def column(self, given: Any) -> Array:
        """Rows of numbers, not finite where they were not."""
        return np.asarray(given, dtype=np.float64).reshape(len(given), self.width or 0)


def reading_of(space: Any) -> Reading:
    """How to read the observations of a Gymnasium space.

    >>> from gymnasium.spaces import Box
    >>> reading_of(Box(-1, 1, (2, 3))).width
    6
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return _Numbers([int(space.n)], [int(space.start)], single=True, copy=False)
    if isinstance(space, spaces.MultiDiscrete):
        counts, starts = (np.ravel(x).tolist() for x in (space.nvec, space.start))
        return _Numbers(counts, starts, single=False, copy=True)
    if isinstance(space, spaces.MultiBinary):
        size = math.prod(space.shape)
        return _Numbers([2] * size, [0] * size, single=False, copy=True)
    if isinstance(space, spaces.Tuple) and space.spaces:
        parts = list(space.spaces)
        if all(isinstance(part, spaces.Discrete) for part in parts):
            counts, starts = [int(p.n) for p in parts], [int(p.start) for p in parts]
            return _Numbers(counts, starts, single=False, copy=False)
    if isinstance(space, spaces.Box) and space.dtype.kind in "fiub" and math.prod(space.shape):
        return _Vectors(space)
    raise InputError("observation_space", space, WRAP)
