"""Where a stream has been: visits of states, or of boxes that observations lie in."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Regions", "Visits"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
MOST_CELLS = 1_000_000  # boxes whose visits are counted
FINEST = {1: 40, 2: 20, 3: 8, 4: 6, 5: 4, 6: 4}  # boxes along a dimension, by their number


class Visits:
    """Counts of states.

    >>> visits = Visits()
    >>> visits.add(np.array([0, 2, 2]))
    >>> visits.counts
    array([1, 0, 2])
    """

    def __init__(self) -> None:
        self.counts: Integers = np.zeros(0, dtype=np.int64)

    def add(self, state: Integers) -> None:
        """Count a chunk."""
        found = np.bincount(state, minlength=self.counts.size)
        found[: self.counts.size] += self.counts
        self.counts = found

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for a checkpoint."""
        return {"counts": self.counts.tolist()}

    @classmethod
    def restored(cls, plain: dict[str, Any]) -> Visits:
        """From what `to_dict` gave."""
        visits = cls()
        visits.counts = np.array(plain["counts"], dtype=np.int64)
        return visits


class Regions:
    """Boxes of the space of observations: how often each was visited, and where in it.

    >>> regions = Regions(np.array([0.0]), np.array([1.0]))
    >>> regions.add(np.array([[0.01], [0.015], [0.99]]))
    >>> counts, centres = regions.most_visited(1)
    >>> counts, centres
    (array([2]), array([[0.0125]]))
    """

    def __init__(self, low: Array, high: Array) -> None:
        self.low, self.high = low, high
        width = low.size
        self.bins = FINEST.get(width, 3 if width <= 12 else 2)
        self.dimensions = min(width, 40)  # of which boxes are made; more would not be told apart
        self._count: dict[int, int] = {}
        self._sum: dict[int, Array] = {}

    def cells(self, observations: Array) -> Integers:
        """The number of the box that each observation lies in."""
        d = self.dimensions
        scaled = (observations[:, :d] - self.low[:d]) / (self.high[:d] - self.low[:d])
        bins = np.clip(scaled * self.bins, 0, self.bins - 1).astype(np.int64)  # so large fits too
        return np.asarray(bins @ self.bins ** np.arange(d, dtype=np.int64))

    def add(self, observations: Array) -> None:
        """Count a chunk."""
        cells, inverse, counts = np.unique(
            self.cells(observations), return_inverse=True, return_counts=True
        )
        sums = np.stack(
            [np.bincount(inverse, column, minlength=cells.size) for column in observations.T], 1
        )
        for cell, count, total in zip(cells.tolist(), counts.tolist(), sums, strict=True):
            if cell in self._count:
                self._count[cell] += count
                self._sum[cell] += total
            elif len(self._count) < MOST_CELLS:
                self._count[cell], self._sum[cell] = count, total

    def most_visited(self, most: int) -> tuple[Integers, Array]:
        """Visits of the boxes most visited, and the mean observation in each."""
        order = sorted(self._count, key=lambda cell: (-self._count[cell], cell))[:most]
        counts = np.array([self._count[cell] for cell in order], dtype=np.int64)
        centres = [self._sum[cell] / self._count[cell] for cell in order]
        return counts, np.array(centres).reshape(len(order), self.low.size)

    def map(self) -> Integers:
        """Visits on the boxes of two dimensions [second, first]."""
        out = np.zeros(self.bins**2, dtype=np.int64)
        for cell, count in self._count.items():
            out[cell] = count
        return out.reshape(self.bins, self.bins)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for a checkpoint."""
        return {
            "low": self.low.tolist(),
            "high": self.high.tolist(),
            "cells": list(self._count),
            "counts": list(self._count.values()),
            "sums": [total.tolist() for total in self._sum.values()],
        }

    @classmethod
    def restored(cls, plain: dict[str, Any]) -> Regions:
        """From what `to_dict` gave."""
        regions = cls(np.array(plain["low"]), np.array(plain["high"]))
        for cell, count, total in zip(plain["cells"], plain["counts"], plain["sums"], strict=True):
            regions._count[int(cell)] = int(count)
            regions._sum[int(cell)] = np.array(total, dtype=np.float64)
        return regions
