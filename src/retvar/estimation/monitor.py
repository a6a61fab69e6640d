"""What is observed beside an estimator: visits of states or regions, and returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from retvar.estimation.returns import CLOSED, NOWHERE, Returns, rows_of
from retvar.experience.stream import Chunk
from retvar.support import arguments
from retvar.td.features import ObservationFeatures, PerAction

if TYPE_CHECKING:
    from retvar.td.learners import Learner

__all__ = ["Monitor", "OwnDiscounts", "Regions", "Visits", "predict_rows"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
KEYS = 64  # returns that may be open at once; a power of 2
STORED = 4_000, 2_000  # returns by place: of states; of observations, whose predictions are costly
FRESH = 200_000, 4_000  # the same of fresh data
SEQUENCE = 20_000, 2_000  # returns in sequence
PLENTY = 8  # times as many returns as are stored, from which on fewer begin
SLACK = 0.05  # of the width, beyond the bounds
MOST_REGIONS = 1_000_000  # boxes whose visits are counted
BINS = dict(enumerate((40, 20, 8, 6, 4, 4), start=1))  # boxes along each of so many dimensions


class OwnDiscounts:
    """The γ and λ of an estimator, as its description has them."""

    description: Learner

    @property
    def gammas(self) -> Array:
        """γ of each state, or of all; NaN where it is in the data."""
        return _numbers(self.description.gamma)

    @property
    def lams(self) -> Array:
        """λ of each state, or of all; NaN where it is in the data."""
        return _numbers(self.description.lam)


def _numbers(given: Any) -> Array:
    return np.atleast_1d(np.asarray(np.nan if given is None else given, dtype=np.float64))


class Visits:
    """Visit counts of states."""

    def __init__(self, counts: Any = ()) -> None:
        self.counts: Integers = np.array(counts, dtype=np.int64)

    def add(self, state: Integers) -> None:
        """Count a chunk."""
        self.merge(np.bincount(state))

    def merge(self, counts: Integers) -> None:
        """Add counts, of more states or of fewer."""
        self.counts = np.pad(self.counts, (0, max(0, counts.size - self.counts.size)))
        self.counts[: counts.size] += counts

    def cells(self, rows: NDArray[Any]) -> Integers:
        """Numbers of states, from a column or from rows of one number."""
        return rows.reshape(len(rows), -1)[:, 0].astype(np.int64)

    def known(self, states: Integers) -> Mask:
        """Whether each state was visited."""
        return np.isin(states, np.flatnonzero(self.counts))

    def to_dict(self) -> dict[str, Any]:
        """JSON data, the arguments of the class."""
        return {"counts": self.counts.tolist()}


class Regions:
    """Visit counts and mean observations of equal boxes of the observation space.

    With `actions`, the last number of an observation is one of so many, each with its own boxes.
    """

    def __init__(
        self, low: Any, high: Any, actions: int = 0, cells: Any = (), counts: Any = (),
        sums: Any = (),
    ) -> None:  # fmt: skip
        self.low, self.high, self.actions = np.asarray(low), np.asarray(high), actions
        width = self.low.size - bool(actions)
        self.bins = BINS.get(width, 3 if width <= 12 else 2)
        self.dimensions = min(width, 30 if actions else 40)  # that are divided: numbers fit int64
        self._boxes, self._counts = (np.array(x, dtype=np.int64) for x in (cells, counts))
        self._sums = np.array(sums, dtype=np.float64).reshape(-1, self.low.size)

    def cells(self, rows: Array) -> Integers:
        """Number of the box that each observation lies in."""
        d = self.dimensions
        scaled = np.clip((rows[:, :d] - self.low[:d]) / (self.high - self.low)[:d], 0.0, 1.0)
        bins = np.minimum(scaled * self.bins, self.bins - 1).astype(np.int64)
        found = np.asarray(bins @ self.bins ** np.arange(d, dtype=np.int64))
        if self.actions:
            found = found * self.actions + np.rint(rows[:, -1]).astype(np.int64)
        return found

    def add(self, observations: Array) -> None:
        """Count a chunk."""
        cells = self.cells(observations)
        boxes = np.union1d(self._boxes, cells)
        if boxes.size > MOST_REGIONS:
            boxes, known = self._boxes, np.isin(cells, self._boxes)
            observations, cells = observations[known], cells[known]
        before, at = (np.searchsorted(boxes, x) for x in (self._boxes, cells))
        n = boxes.size
        counts = np.bincount(at, minlength=n)
        sums: Array = np.stack([np.bincount(at, x, minlength=n) for x in observations.T], axis=1)
        counts[before] += self._counts
        sums[before] += self._sums
        self._boxes, self._counts, self._sums = boxes, counts, sums

    def known(self, observations: Array) -> Mask:
        """Whether each observation lies in a box that was visited; none beyond the bounds does."""
        slack = SLACK * self.high - SLACK * self.low
        inside = (observations >= self.low - slack) & (observations <= self.high + slack)
        return np.asarray(inside.all(axis=1) & np.isin(self.cells(observations), self._boxes))

    def most_visited(self, count: int) -> tuple[Integers, Array]:
        """Visits of the most visited boxes, and the mean observation in each."""
        order = np.argsort(-self._counts, kind="stable")[:count]
        return self._counts[order], self._sums[order] / self._counts[order, None]

    def map(self) -> Integers:
        """Visits of all boxes in two dimensions [second, first]."""
        visits = np.zeros(self.bins**2, dtype=np.int64)
        visits[self._boxes] = self._counts
        return visits.reshape(self.bins, self.bins)

    def to_dict(self) -> dict[str, Any]:
        """JSON data, the arguments of the class."""
        arrays = {
            "low": self.low, "high": self.high, "cells": self._boxes, "counts": self._counts,
            "sums": self._sums,
        }  # fmt: skip
        return {name: x.tolist() for name, x in arrays.items()} | {"actions": self.actions}


class Monitor:
    """Counts visits and collects observed returns; with `only`, those that begin in some places.

    `like` are visits whose regions are taken, where those of the estimator would not be the same.
    """

    def __init__(self, level: float = 0.9, only: Integers | None = None, like: Any = None) -> None:
        self.level = arguments.level("level", level)
        self.visits: Any = None  # Visits or Regions
        if isinstance(like, Regions):
            self.visits = Regions(like.low, like.high, like.actions)
        self.returns: Returns | None = None
        self.sequence: Returns | None = None  # one after the other, wherever they begin
        self.remarks: list[str] = []  # what was decided for the caller
        self.off_policy = False  # returns of the target policy are not observed
        self._only = None if only is None else np.sort(only)

    def update(self, estimator: Any, chunk: Chunk) -> None:
        """Add a chunk, with the present values of the estimator."""
        state = chunk["state"]
        if self.visits is None:
            self.visits = _no_visits(estimator, state)
        if self.returns is None or self.sequence is None:
            self.returns, self.sequence = self._no_returns(state)
        self.visits.add(state)
        weighted = estimator.description.estimand == "off_policy_return"
        rho = np.asarray(chunk["rho"], dtype=np.float64) if "rho" in chunk else None
        # for good: rows with a ratio of 1 are no fair sample
        self.off_policy |= not weighted and rho is not None and bool((rho != 1).any())
        if not self.off_policy:
            cells = self.visits.cells(state)
            rows = rows_of(chunk, *_discounts(estimator, chunk, rho if weighted else None))
            self.returns.add(self._keys(cells), rows)
            self.sequence.add(np.zeros_like(cells), rows)

    def _no_returns(self, state: NDArray[Any]) -> tuple[Returns, Returns]:
        """Empty returns by place, and in sequence."""
        vector, width = state.ndim > 1, int(np.prod(state.shape[1:]))
        in_sequence = Returns(1, width, SEQUENCE[vector], negligible=CLOSED, plenty=PLENTY)
        if self._only is None:
            return Returns(KEYS, width, STORED[vector], plenty=PLENTY), in_sequence
        return Returns(self._only.size, width, FRESH[vector], negligible=CLOSED), in_sequence

    def _keys(self, cells: Integers) -> Integers:
        """The key of each place; those outside `only` have none."""
        if self._only is None:
            return cells & (KEYS - 1)
        at = np.minimum(np.searchsorted(self._only, cells), self._only.size - 1)
        return np.where(self._only[at] == cells, at, NOWHERE)

    def merge(self, other: Self) -> None:
        """Add what was counted elsewhere, of the same states."""
        if other.visits is None:
            return
        if self.visits is None:
            self.__dict__ |= other.__dict__ | {"level": self.level, "remarks": self.remarks}
            return
        self.visits.merge(other.visits.counts)
        for own, theirs in ((self.returns, other.returns), (self.sequence, other.sequence)):
            if own is not None and theirs is not None:
                own.merge(theirs)
        self.off_policy |= other.off_policy


def _no_visits(estimator: Any, state: Any) -> Visits | Regions:
    """Empty visit counts for the estimator's states or observations."""
    features = estimator.features[0]
    if features.states is not None:
        return Visits()
    if isinstance(features, ObservationFeatures):
        actions = features.actions if isinstance(features, PerAction) else 0
        return Regions(features.low, features.high, actions)
    low, high = getattr(features, "range", None) or (state.min(axis=0), state.max(axis=0))
    return Regions(low, np.where(high > low, high, low + 1.0))


def _discounts(estimator: Any, chunk: Chunk, eta: Array | None) -> tuple[Any, ...]:
    """γ, λ, η and the next value of each transition: the chunk's, or else the estimator's."""
    n, follows = len(chunk["reward"]), chunk["next_state"]
    gamma, lam = (
        np.asarray(chunk[name], dtype=np.float64)
        if name in chunk
        else np.broadcast_to(own[follows] if own.size > 1 else own, n)
        for name, own in (("gamma", estimator.gammas), ("lam", estimator.lams))
    )
    shorter = bool((lam < 1).any())
    value = predict_rows(estimator, "value", follows.reshape(n, -1)) if shorter else None
    return gamma, lam, eta, value


def predict_rows(estimator: Any, what: str, rows: Array) -> Array:
    """Predict for rows of numbers: states, or observations; NaN for a state that is not known."""
    states = estimator.features[0].states
    if states is None:
        return np.asarray(estimator.predict(rows, what))
    column = rows[:, 0].astype(np.int64)
    known = column < states
    found = np.asarray(estimator.predict(np.where(known, column, 0), what))
    return found if known.all() else np.where(known, found, np.nan)
