"""Observed returns: one backward scan over a table, when the values are known.

Going back from the end of its trajectory, the sum of rewards from every row is one addition. Of
these returns some that do not overlap are taken: at most one is open at a time for each key (a
state, or a region), and it is closed where the discount of its rest is small. So the returns of a
key are nearly independent, and whether one begins depends on the past alone. The rest of a return,
where it was closed or cut off by truncation, is the value of the last state, and the variance that
is missing from it is computed. A λ-return contains values of later states, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from retvar.estimation.episodes import Chunk, complete
from retvar.support import arguments
from retvar.td.features import ObservationFeatures
from retvar.td.jit import compiled, read_only

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
Begun = tuple[Integers, Array]  # first and last rows of returns; sums of rewards, what is left
Predictor = Callable[[Array], Array]  # of states or observations, as rows
CLOSED = 0.05  # discount of the rest of a return at which it is closed
NEGLIGIBLE = 1e-4  # the same of a rest that is none
FEWEST = 100  # returns below which nothing is said
LOT, REWARDS, REST, LEAD = range(4)  # columns of returns; then two rows
KEYS = 1 << 16  # returns that may be open at once; a power of 2
BY_PLACE = 200_000, 4_000  # returns stored: of states; of observations, which are slow to predict
SEQUENCE = 20_000, 2_000  # returns one after the other
SLACK = 0.05  # of the width, beyond the bounds
DIVIDED = 20  # dimensions at most
BINS = dict(enumerate((40, 20, 8, 6, 4, 4), start=1))  # boxes along each of so many dimensions


@compiled
def observe(keys: Any, reward: Any, discount: Any, over: Any, closed: Any, places: Any) -> Any:
    """Begin a return wherever a key has none, for each column of keys.

    Gives the rows in which they begin and the last of each, the sums of rewards, and what is left;
    and how many there are.
    """
    n, end, rest, count = reward.size, 0, 1.0, np.zeros(len(keys), np.int64)
    total, free = np.zeros(n + 1), np.zeros((len(keys), places), np.int64)
    rows, numbers = np.empty((len(keys), 2, n), np.int64), np.empty((len(keys), 2, n))
    for t in range(n - 1, -1, -1):
        total[t] = reward[t] + (0.0 if over[t] else discount[t] * total[t + 1])
    for t in range(n):
        if end <= t:
            end, rest = t, 1.0
        while end == t or (abs(rest) >= closed and not over[end - 1]):
            rest *= discount[end]
            end += 1
        for k in range(len(keys)):
            key, i = keys[k, t], count[k]
            if key >= 0 and free[k, key] <= t:
                free[k, key] = end
                rows[k, 0, i], rows[k, 1, i], numbers[k, 1, i] = t, end - 1, rest
                numbers[k, 0, i] = total[t] - (0.0 if over[end - 1] else rest * total[end])
                count[k] += 1
        if discount[t] != 0.0:
            rest /= discount[t]
    return rows, numbers, count


def begin(keys: Any, rows: Chunk, next_value: Array | None = None) -> list[Begun]:
    """The returns of complete trajectories, for each column of keys; none begins below 0.

    `next_value` is that of the next states, of which a λ-return with λ < 1 contains a part.
    """
    keys, reward, over = np.array(keys), rows["reward"], rows["terminated"] | rows["truncated"]
    over[-1] = True
    if next_value is not None:
        reward = reward + rows["gamma"] * (1.0 - rows["lam"]) * next_value
    columns = map(read_only, (keys, reward, rows["gamma"] * rows["lam"], over))
    found = observe(*columns, CLOSED, int(keys.max(initial=0)) + 1)
    return [(at[:, :n], numbers[:, :n]) for at, numbers, n in zip(*found, strict=True)]


class Returns:
    """Returns that do not overlap; where there are more than `most`, a random sample of them."""

    def __init__(self, width: int, most: int) -> None:
        self._parts, self._limit = [np.zeros((0, LEAD + 2 * width))], 1.0  # of lots
        self._width, self._most = width, most
        self.count = 0  #: of all that were seen

    # of each return: state or observation in which it began, and in which it was closed or cut off
    start = property(lambda self: self._rows[:, LEAD : LEAD + self._width])  #: [return, number]
    end = property(lambda self: self._rows[:, LEAD + self._width :])  #: [return, number]
    rest = property(lambda self: self._rows[:, REST])  #: discount, with its sign; 0: it is whole
    missing_share = property(lambda self: np.minimum(np.abs(self.rest), 1.0))  #: without its sign

    def add(self, begun: Begun, rows: Chunk) -> None:
        """Add returns along some rows."""
        (first, last), (sums, rest) = begun
        lots = np.random.default_rng(self.count).random(first.size)
        self.count += first.size
        chosen = np.flatnonzero(lots < self._limit)
        rest = np.where(np.abs(rest[chosen]) < NEGLIGIBLE, 0.0, rest[chosen])
        ends = rows["state"][first[chosen]], rows["next_state"][last[chosen]]
        self._keep(np.column_stack([lots[chosen], sums[chosen], rest, *ends]))

    def merge(self, other: Returns) -> None:
        """Add the returns of another part of the log."""
        self.count += other.count
        self._keep(other._rows)

    def _keep(self, rows: Array) -> None:
        """Add these; there may be twice as many as wanted for a while."""
        self._parts.append(rows)
        if sum(map(len, self._parts)) > 2 * self._most:
            _ = self._rows

    @property
    def _rows(self) -> Array:
        """Of all, those with the smallest lots."""
        if len(self._parts) > 1:
            rows = np.concatenate(self._parts)
            if len(rows) > self._most:
                self._limit = float(np.partition(rows[:, LOT], self._most)[self._most])
                rows = rows[rows[:, LOT] < self._limit]
            self._parts = [rows]
        return self._parts[0]

    def completed(self, value: Predictor) -> Array:
        """The returns, completed with these values."""
        return np.asarray(self._rows[:, REWARDS] + self._at_the_end(value, 1))

    def missing_variance(self, variance: Predictor) -> Array:
        """Variance that each return lacks because it was closed or cut off."""
        return self._at_the_end(variance, 2)

    def _at_the_end(self, predict: Predictor, power: int) -> Array:
        """Prediction at the end of each return that is not whole, times its discount to a power."""
        found, cut = np.zeros(len(self._rows)), self.rest != 0
        if cut.any():
            found[cut] = self.rest[cut] ** power * predict(self.end[cut])
        return found


def predict_rows(estimator: Any, what: str, rows: Array) -> Array:
    """Predict for rows of numbers: states, or observations; NaN for a state that is not known."""
    states = estimator.features[0].states
    if states is None:
        return np.asarray(estimator.predict(rows, what))
    column = rows[:, 0].astype(np.int64)
    known = column < states
    return np.where(known, estimator.predict(np.where(known, column, 0), what), np.nan)


class Visits:
    """Visit counts of states, or those of equal boxes of the observation space.

    Boxes lie between `low` and `high`, and have mean observations. With `actions`, the last number
    of an observation is one of so many, each with its own boxes.
    """

    def __init__(
        self, low: Any = None, high: Any = None, actions: int = 0, cells: Any = None,
        counts: Any = (), sums: Any = (),
    ) -> None:  # fmt: skip
        self.regions, self.actions = low is not None, actions
        self.low, self.high = (np.asarray([] if x is None else x, float) for x in (low, high))
        width = max(1, self.low.size - bool(actions))
        self.bins, self.dimensions = BINS.get(width, 3 if width <= 12 else 2), min(width, DIVIDED)
        self._cells, self._totals = np.zeros(0, np.int64), np.zeros((0, 1 + self.low.size))
        table = np.column_stack([counts, np.reshape(sums, (len(counts), self.low.size))])
        self._include(np.arange(len(counts)) if cells is None else cells, table)

    def cells(self, rows: NDArray[Any]) -> Integers:
        """The state, or the number of the box, in which each row lies."""
        rows, d = rows.reshape(len(rows), -1), self.dimensions
        if not self.regions:
            return rows[:, 0].astype(np.int64)
        scaled = np.clip((rows[:, :d] - self.low[:d]) / (self.high - self.low)[:d], 0.0, 1.0)
        bins = np.minimum(scaled * self.bins, self.bins - 1).astype(np.int64)
        found = np.asarray(bins @ self.bins ** np.arange(d, dtype=np.int64))
        if self.actions:
            found = found * self.actions + np.rint(rows[:, -1]).astype(np.int64)
        return found

    def add(self, rows: NDArray[Any]) -> None:
        """Count a chunk."""
        cells, table = self.cells(rows), np.column_stack([np.ones(len(rows)), rows])
        if not self.regions:
            counts = np.bincount(cells)
            cells = np.flatnonzero(counts)
            table = counts[cells, None]
        self._include(cells, table)

    def merge(self, other: Visits) -> None:
        """Add other visits, of the same boxes."""
        self._include(other._cells, other._totals)

    def _include(self, cells: Any, table: Array) -> None:
        """Add visits, and sums of observations, of some cells."""
        table = np.concatenate([self._totals, table])
        self._cells, at = np.unique(np.append(self._cells, cells), return_inverse=True)
        size = self._cells.size
        self._totals = np.column_stack([np.bincount(at, column, size) for column in table.T])

    @property
    def counts(self) -> Integers:
        """Visits of all states up to the last that was visited."""
        found = np.zeros(int(self._cells.max(initial=-1)) + 1, np.int64)
        found[self._cells] = self._totals[:, 0]
        return found

    def at(self, rows: NDArray[Any]) -> Integers:
        """Visits of the state or box of each row."""
        cells = self.cells(rows)
        place = np.searchsorted(self._cells, cells)
        known = np.append(self._cells, -1)[place] == cells
        return np.where(known, np.append(self._totals[:, 0], 0)[place], 0).astype(np.int64)

    def known(self, rows: NDArray[Any]) -> Mask:
        """Whether each state or box was visited; none beyond the bounds was."""
        visited = self.at(rows) > 0
        if self.regions:
            slack = SLACK * self.high - SLACK * self.low
            inside = (rows >= self.low - slack) & (rows <= self.high + slack)
            visited &= inside.all(axis=1)
        return visited

    def most_visited(self, count: int) -> tuple[Integers, Array]:
        """Visits of the most visited boxes, and the mean observation in each."""
        most = self._totals[np.argsort(-self._totals[:, 0], kind="stable")[:count]]
        return most[:, 0].astype(np.int64), most[:, 1:] / most[:, :1]

    def to_dict(self) -> dict[str, Any]:
        """JSON data, the arguments of the class."""
        if not self.regions:
            return {"counts": self.counts.tolist()}
        counts, sums = self._totals[:, 0].astype(np.int64), self._totals[:, 1:]
        arrays = {"low": self.low, "high": self.high, "cells": self._cells, "counts": counts}
        plain = {name: each.tolist() for name, each in arrays.items()}
        return plain | {"sums": sums.tolist(), "actions": self.actions}


class Monitor:
    """Counts visits and collects observed returns, of states or regions as in `visits`."""

    def __init__(
        self, level: float = 0.9, remarks: list[str] | None = None, visits: Visits | None = None
    ) -> None:
        self.level = arguments.level("level", level)
        self.remarks = [] if remarks is None else remarks  # what was decided for the caller
        self.visits: Any = visits
        self.returns: Any = None  # by place
        self.sequence: Any = None  # one after the other, wherever they begin
        self.off_policy = False  # returns of the target policy are not observed

    def add(self, estimator: Any, chunk: Chunk) -> None:
        """Add some trajectories; where λ < 1 the estimator is asked for the values on the way."""
        rows = complete(estimator.description, chunk)
        state, follows = rows["state"], rows["next_state"]
        if self.visits is None:
            self.visits = _no_visits(estimator, state)
        if self.returns is None:
            vector, width = state.ndim > 1, int(np.prod(state.shape[1:]))
            self.returns = Returns(width, BY_PLACE[vector])
            self.sequence = Returns(width, SEQUENCE[vector])
        self.visits.add(state)
        self.off_policy |= bool(np.any(rows["rho"] != 1))  # for good: the others are no fair sample
        if self.off_policy:
            return
        value = None
        if bool((rows["lam"] < 1).any(where=~rows["terminated"])):
            value = predict_rows(estimator, "value", follows.reshape(len(state), -1))
        keys = self.visits.cells(state) & (KEYS - 1), np.zeros(len(state), np.int64)
        by_place, in_turn = begin(keys, rows, value)
        self.returns.add(by_place, rows)
        self.sequence.add(in_turn, rows)

    def merge(self, other: Self) -> None:
        """Add what was counted elsewhere, of the same states."""
        self.off_policy |= other.off_policy
        for name in ("visits", "returns", "sequence"):
            own, theirs = getattr(self, name), getattr(other, name)
            if own is None:
                setattr(self, name, theirs)
            elif theirs is not None:
                own.merge(theirs)


def _no_visits(estimator: Any, state: Any) -> Visits:
    """Empty visit counts for the estimator's states or observations."""
    features = estimator.features[0]
    if features.states is not None:
        return Visits()
    if isinstance(features, ObservationFeatures):
        return Visits(features.low, features.high, getattr(features, "actions", 0))
    low, high = getattr(features, "range", None) or (state.min(axis=0), state.max(axis=0))
    return Visits(low, np.where(high > low, high, low + 1.0))
