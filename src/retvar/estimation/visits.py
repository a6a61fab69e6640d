"""Visit counts of states, or of regions: boxes of the observation space."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar import arguments
from retvar.errors import InputError
from retvar.online.checkpoint import read_count

__all__ = ["Regions", "Visits"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
SLACK = 0.05  # of the width, beyond the bounds
LARGEST = 1e290  # of the coordinates that are averaged, so that their sums are finite
MOST_REGIONS = 1_000_000  # boxes whose visits are counted
BINS = {
    1: 40,
    2: 20,
    3: 8,
    4: 6,
    5: 4,
    6: 4,
}  # boxes along each dimension, by the number of dimensions


class Visits:
    """Visit counts of states.

    >>> visits = Visits()
    >>> visits.add(np.array([0, 2, 2]))
    >>> visits.counts
    array([1, 0, 2])
    """

    def __init__(self) -> None:
        self.counts: Integers = np.zeros(0, dtype=np.int64)

    def add(self, state: Integers) -> None:
        """Count a chunk."""
        counts = np.bincount(state, minlength=self.counts.size)
        counts[: self.counts.size] += self.counts
        self.counts = counts

    def known(self, states: Integers) -> NDArray[np.bool_]:
        """Whether each state was visited."""
        inside = (states >= 0) & (states < self.counts.size)
        return inside & (np.append(self.counts, 0)[np.where(inside, states, -1)] > 0)

    def merge(self, other: Visits, number: Integers | None = None) -> None:
        """Add other counts; state s of theirs is ``number[s]`` here.

        >>> one, two = Visits(), Visits()
        >>> two.add(np.array([0, 0, 1]))
        >>> one.merge(two, np.array([2, 0]))
        >>> one.counts
        array([1, 0, 2])
        """
        theirs = np.arange(other.counts.size) if number is None else number[: other.counts.size]
        size = max(self.counts.size, int(theirs.max(initial=-1)) + 1)
        counts = np.zeros(size, dtype=np.int64)
        counts[: self.counts.size] = self.counts
        counts[theirs] += other.counts
        self.counts = counts

    def to_dict(self) -> dict[str, Any]:
        """JSON data for a checkpoint."""
        return {"counts": self.counts.tolist()}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Visits:
        """Restore what `to_dict` returned."""
        visits = cls()
        visits.counts = np.array([read_count(each) for each in saved["counts"]], dtype=np.int64)
        return visits


class Regions:
    """Visit counts and mean observations of equal boxes of the observation space.

    With `actions`, the last number of an observation is one of so many, each with its own boxes.

    >>> regions = Regions(np.array([0.0]), np.array([1.0]))
    >>> regions.add(np.array([[0.01], [0.015], [0.99]]))
    >>> counts, centres = regions.most_visited(1)
    >>> counts, centres
    (array([2]), array([[0.0125]]))
    """

    def __init__(self, low: Array, high: Array, actions: int = 0) -> None:
        self.low, self.high, self.actions = low, high, actions
        width = low.size - bool(actions)
        self.bins = BINS.get(width, 3 if width <= 12 else 2)
        self.dimensions = min(
            width, 30 if actions else 40
        )  # that are divided; numbers of boxes fit into int64
        self._count: dict[int, int] = {}
        self._sum: dict[int, Array] = {}

    def cells(self, observations: Array) -> Integers:
        """Number of the box that each observation lies in."""
        d = self.dimensions
        low, high = self.low[:d] / 2, self.high[:d] / 2  # differences of halves are finite
        with np.errstate(over="ignore"):
            scaled = np.clip((observations[:, :d] / 2 - low) / (high - low), 0.0, 1.0)
        bins = np.minimum(scaled * self.bins, self.bins - 1).astype(np.int64)
        found = np.asarray(bins @ self.bins ** np.arange(d, dtype=np.int64))
        if not self.actions:
            return found
        return found * self.actions + np.rint(observations[:, -1]).astype(np.int64)

    def add(self, observations: Array) -> None:
        """Count a chunk."""
        cells, inverse, counts = np.unique(
            self.cells(observations), return_inverse=True, return_counts=True
        )
        small = np.clip(observations, -LARGEST, LARGEST)
        sums = np.stack(
            [np.bincount(inverse, column, minlength=cells.size) for column in small.T], 1
        )
        for cell, count, total in zip(cells.tolist(), counts.tolist(), sums, strict=True):
            if cell in self._count:
                self._count[cell] += count
                self._sum[cell] += total
            elif len(self._count) < MOST_REGIONS:
                self._count[cell], self._sum[cell] = count, total

    def known(self, observations: Array) -> NDArray[np.bool_]:
        """Whether each observation lies in a box that was visited; none beyond the bounds does."""
        slack = SLACK * self.high - SLACK * self.low
        inside = (observations >= self.low - slack) & (observations <= self.high + slack)
        found = np.array([cell in self._count for cell in self.cells(observations).tolist()])
        return np.asarray(inside.all(axis=1) & found)

    def visits(self, observations: Array) -> list[int]:
        """Visits of the box that each observation lies in."""
        return [self._count.get(cell, 0) for cell in self.cells(observations).tolist()]

    def most_visited(self, count: int) -> tuple[Integers, Array]:
        """Visits of the most visited boxes, and the mean observation in each."""
        order = sorted(self._count, key=lambda cell: (-self._count[cell], cell))[:count]
        counts = np.array([self._count[cell] for cell in order], dtype=np.int64)
        centres = [self._sum[cell] / self._count[cell] for cell in order]
        return counts, np.array(centres).reshape(len(order), self.low.size)

    def map(self) -> Integers:
        """Visits of all boxes in two dimensions [second, first]."""
        visits = np.zeros(self.bins**2, dtype=np.int64)
        for cell, count in self._count.items():
            visits[cell] = count
        return visits.reshape(self.bins, self.bins)

    def to_dict(self) -> dict[str, Any]:
        """JSON data for a checkpoint."""
        return {
            "low": self.low.tolist(),
            "high": self.high.tolist(),
            "actions": self.actions,
            "cells": list(self._count),
            "counts": list(self._count.values()),
            "sums": [total.tolist() for total in self._sum.values()],
        }

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Regions:
        """Restore what `to_dict` returned."""
        low, high = (arguments.numbers(name, saved[name]) for name in ("low", "high"))
        if low.shape != high.shape or not (low < high).all():
            raise InputError("visits", "bounds", "low must lie below high")
        regions = cls(low, high, read_count(saved.get("actions", 0)))
        for cell, count, total in zip(saved["cells"], saved["counts"], saved["sums"], strict=True):
            regions._count[read_count(cell)] = read_count(count)
            regions._sum[cell] = arguments.numbers("sums", total, low.size)
        return regions
