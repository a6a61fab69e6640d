"""Observed returns: collected along the stream until the rest of a return is negligible.

At most one return is open for each key (a state, or a region) and stream. So the returns of a key
do not overlap: they are nearly independent, and whether one begins depends on the past alone.

A return that is cut off by truncation is completed with the value of the last state, and the
variance that is missing from it is computed; to leave it out would leave out the long ones. A
λ-return contains values of later states, too; they are given with the transitions. Visits of states
or regions are counted beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from retvar.experience.stream import Chunk
from retvar.online.columns import read_streams
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.td import rules
from retvar.td.features import ObservationFeatures, PerAction
from retvar.td.jit import compiled, inlined, read_only
from retvar.td.random import U, mix

if TYPE_CHECKING:
    from retvar.td.learners import Learner

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
Predictor = Callable[[Array], Array]  # of states or observations, as rows
TERMINATED, TRUNCATED = 1, 2  # flags of a transition
NEGLIGIBLE = 1e-4  # discount of the rest of a return at which it is closed
CLOSED = 0.05  # the same for a return that is compared
MOST_MISSING = 0.1  # mean discount of what compared returns lack that is not accounted for
MOST_COMPLETED = 0.9  # where too few lack so little: what they may lack at most
FEWEST = 100  # returns below which nothing is said
OPEN, SUM, DISCOUNT, AGE = range(4)  # columns of open returns
KEY, REWARDS, REST, START_AGE, LEAD = range(5)  # of stored ones; then two rows
PLENTY = 128  # times as many returns as are stored, from which on fewer begin
STREAM = 7  # column of the rows
NOWHERE, ELSEWHERE = -1, -2  # keys at which no return begins, and of rows of another log
BLOCK_BITS = 10  # blocks of 1,024 steps, in which returns begin or not
KEYS = 64  # returns that may be open at once beside an estimate; a power of 2
STORED = 4_000, 2_000  # returns by place: of states; of observations, whose predictions are costly
FRESH = 200_000, 4_000  # the same of fresh data
SEQUENCE = 20_000, 2_000  # returns in sequence
SOON = 8  # times as many returns as are stored, from which on fewer begin beside an estimate
SLACK = 0.05  # of the width, beyond the bounds
MOST_REGIONS = 1_000_000  # boxes whose visits are counted
BINS = dict(enumerate((40, 20, 8, 6, 4, 4), start=1))  # boxes along each of so many dimensions

mean_reward = inlined(rules.mean_reward)
mean_discount = inlined(rules.mean_discount)


class Returns:
    """Collects returns; `keys` may be open in each stream, and `most` are stored.

    Where there are more, those stored are a random sample of all, and returns begin only in a
    random share of the blocks of steps, so that they cost little. A return is closed where the
    discount of its rest falls below `negligible`.
    """

    def __init__(
        self, keys: int, width: int, most: int = 4_000, *, negligible: float = NEGLIGIBLE,
        plenty: int = PLENTY,
    ) -> None:  # fmt: skip
        # of each stream: open returns, states in which they began, age of the episode, steps so
        # far, how many are open
        whole = np.zeros(0, dtype=np.int64)
        self._open: list[Any] = [np.zeros((0, keys, n)) for n in (4, width)]
        self._open += [np.zeros(0), whole, whole]
        self._stored = np.zeros((most, LEAD + 2 * width))
        self._counts = np.zeros(2, dtype=np.int64)  # collected; those of them at the present share
        self._level = 0  # returns begin in one of 2^level blocks
        self._width, self._negligible, self._plenty = width, negligible, plenty

    def add(self, key: Integers, rows: tuple[NDArray[Any], ...]) -> None:
        """Add what :func:`rows_of` returned; no return begins at the key `NOWHERE`.

        Rows with the key `ELSEWHERE` do not count.
        """
        more = int(rows[STREAM].max(initial=-1)) + 1 - len(self._open[0])
        if more > 0:
            self._open = [np.pad(x, [(0, more)] + [(0, 0)] * (x.ndim - 1)) for x in self._open]
        collect(
            tuple(map(read_only, (key, *rows))), tuple(self._open), self._stored, self._counts,
            self._negligible, U(2**self._level - 1),
        )  # fmt: skip
        self._thin(self._level)

    def _thin(self, level: int) -> None:
        """Lower the share of blocks to 2^−level, or further where returns are many."""
        while level > self._level or self._counts[1] > self._plenty * len(self._stored):
            stored, seen = len(self._rows), int(self._counts[1]) // 2
            if seen < stored:
                self._keep(np.random.default_rng(stored), seen)
            self._counts[1] = seen
            self._level += 1

    def _keep(self, rng: np.random.Generator, number: int) -> None:
        """Keep so many of the stored returns, at random."""
        self._stored[:number] = self._rows[np.sort(rng.permutation(len(self._rows))[:number])]

    def merge(self, other: Returns) -> None:
        """Add the stored returns of another part of the log: of both, a random sample remains."""
        self._thin(other._level)
        other._thin(self._level)
        seen = [int(each._counts[1]) for each in (self, other)]
        most = min(sum(seen), len(self._stored))
        rng = np.random.default_rng(sum(seen))
        own = int(rng.hypergeometric(seen[0], seen[1], most)) if sum(seen) else 0
        self._keep(rng, own)
        theirs = np.sort(rng.permutation(len(other._rows))[: most - own])
        self._stored[own:most] = other._rows[theirs]
        self._counts += other._counts

    @property
    def _rows(self) -> Array:
        return self._stored[: int(self._counts[1])]

    @property
    def count(self) -> int:
        """Number of returns that were collected, stored or not."""
        return int(self._counts[0])

    @property
    def start(self) -> Array:
        """State or observation in which each stored return began [return, number]."""
        return self._rows[:, LEAD : LEAD + self._width]

    @property
    def end(self) -> Array:
        """State or observation in which each was closed or cut off [return, number]."""
        return self._rows[:, LEAD + self._width :]

    @property
    def rest(self) -> Array:
        """Discount of what is missing from each return, with its sign; 0 where nothing is."""
        return self._rows[:, REST]

    @property
    def missing_share(self) -> Array:
        """The same without its sign, at most 1."""
        return np.minimum(np.abs(self.rest), 1.0)

    def completed(self, value: Predictor) -> Array:
        """The stored returns, completed with these values."""
        return np.asarray(self._rows[:, REWARDS] + self._at_the_end(value, 1))

    def missing_variance(self, variance: Predictor) -> Array:
        """Variance that each return lacks because it was cut off."""
        return self._at_the_end(variance, 2)

    def _at_the_end(self, predict: Predictor, power: int) -> Array:
        """Prediction at the end of each return that is cut off, times its discount to a power."""
        found, cut = np.zeros(len(self._rows)), self.rest != 0
        if cut.any():
            found[cut] = self.rest[cut] ** power * predict(self.end[cut])
        return found

    def early(self, places: Integers | None = None, most: float = MOST_MISSING) -> Mask:
        """Which began so early in their episode that, in each place, little is cut off on average.

        Whether a return counts depends on when it began, not on how it went on: to leave out those
        that truncation cut off would leave out the long ones. Where too few lack little, as with
        missing rewards, which cut at any age: those that together have the most power, completed as
        they are with the estimate. If it is right their mean is still its value; if not, they show
        less of it.
        """
        age, share = self._rows[:, START_AGE], self.missing_share
        places = np.zeros(age.size, dtype=np.int64) if places is None else places
        early = np.zeros(age.size, dtype=bool)
        order = np.lexsort((age, places))
        for own in np.split(order, np.flatnonzero(np.diff(places[order])) + 1):
            mean = np.cumsum(share[own]) / np.arange(1, own.size + 1)
            last = np.flatnonzero(np.diff(age[own], append=-1))  # of its age
            fits = last[mean[last] <= most]
            if own.size >= FEWEST and (not fits.size or fits[-1] + 1 < FEWEST):
                fits = last[mean[last] <= MOST_COMPLETED]
                power = np.sqrt(fits + 1.0) * (1.0 - mean[fits])
                fits = fits[: int(np.argmax(power)) + 1] if fits.size else fits
            early[own[: fits[-1] + 1 if fits.size else 0]] = True
        return early


def rows_of(
    chunk: Mapping[str, Any], gamma: Array, lam: Array, eta: Array | None = None,
    next_value: Array | None = None,
) -> tuple[NDArray[Any], ...]:  # fmt: skip
    """The columns of a chunk as returns are collected from them.

    `next_value` is the value of the next state, where λ is below 1. No η stands for ones.
    """
    n = len(chunk["reward"])
    flags = np.zeros(n, dtype=np.int64)
    for name, flag in (("terminated", TERMINATED), ("truncated", TRUNCATED)):
        flags |= flag * np.asarray(chunk.get(name, 0), dtype=bool)
    ends = []  # states as rows of one whole number, observations as rows of numbers
    for column in (chunk["state"], chunk["next_state"]):
        kind = np.int64 if column.ndim == 1 and column.dtype.kind in "iu" else np.float64
        ends.append(np.ascontiguousarray(column.reshape(n, -1), dtype=kind))
    numbers = chunk["reward"], gamma, lam, np.zeros(0) if eta is None else eta
    stream = np.broadcast_to(read_streams(chunk.get("stream"), n), n)
    return (
        *ends, *(np.ascontiguousarray(x, dtype=np.float64) for x in numbers), flags,
        np.ascontiguousarray(stream), np.zeros(0) if next_value is None else next_value,
    )  # fmt: skip


@compiled
def collect(chunk: Any, begun: Any, stored: Any, counts: Any, negligible: Any, mask: Any) -> None:
    """Go through a chunk: begin returns, add rewards to the open ones, store those that end."""
    key, state, next_state, reward, gamma, lam, eta, flags, stream, next_value = chunk
    opened, start, age, clock, open_count = begun
    keys, width = start.shape[1], start.shape[2]
    for t in range(key.size):
        at, k = stream[t], key[t]
        if k <= ELSEWHERE:
            continue
        begins = k >= 0 and opened[at, k, OPEN] == 0.0
        if begins and mask != U(0):
            block = (U(at) << U(32)) ^ (U(clock[at]) >> U(BLOCK_BITS))
            begins = mix(block) & mask == U(0)
        if begins:
            open_count[at] += 1
            opened[at, k, OPEN], opened[at, k, SUM], opened[at, k, DISCOUNT] = 1.0, 0.0, 1.0
            opened[at, k, AGE] = age[at]
            for i in range(width):
                start[at, k, i] = state[t, i]
        ended, cut = flags[t] & TERMINATED != 0, flags[t] & TRUNCATED != 0
        clock[at] += 1
        if open_count[at] == 0:
            age[at] = 0.0 if ended or cut else age[at] + 1.0
            continue
        g, trace = (0.0, 0.0) if ended else (gamma[t], lam[t])
        value = next_value[t] if next_value.size else 0.0
        weight = eta[t] if eta.size else 1.0
        fed = mean_reward(reward[t], g, trace, value, weight)
        discount = mean_discount(g, trace, weight)
        for j in range(keys):
            if opened[at, j, OPEN] == 0.0:
                continue
            opened[at, j, SUM] += opened[at, j, DISCOUNT] * fed
            opened[at, j, DISCOUNT] *= discount
            rest = opened[at, j, DISCOUNT]
            over = abs(rest) < negligible
            if not over and not cut:
                continue
            opened[at, j, OPEN] = 0.0
            open_count[at] -= 1
            n = counts[1]
            counts[0] += 1
            counts[1] += 1
            if abs(rest) < NEGLIGIBLE:
                rest = 0.0
            slot = n
            if n >= stored.shape[0]:  # reservoir sampling: each of the n + 1 is dropped alike
                slot = np.int64(mix(U(n)) % U(n + 1))
            if slot < stored.shape[0]:
                stored[slot, KEY], stored[slot, REWARDS] = j, opened[at, j, SUM]
                stored[slot, REST], stored[slot, START_AGE] = rest, opened[at, j, AGE]
                for i in range(width):
                    stored[slot, LEAD + i] = start[at, j, i]
                    stored[slot, LEAD + width + i] = next_state[t, i]
        age[at] = 0.0 if ended or cut else age[at] + 1.0


# ------------------------------------------------------------------ what estimators know


class OwnDiscounts:
    """The γ and λ of an estimator, as its description has them; NaN where they are in the data."""

    description: Learner

    @property
    def gammas(self) -> Array:
        """γ of each state, or of all."""
        return _numbers(self.description.gamma)

    @property
    def lams(self) -> Array:
        """λ of each state, or of all."""
        return _numbers(self.description.lam)


def _numbers(given: Any) -> Array:
    return np.atleast_1d(np.asarray(np.nan if given is None else given, dtype=np.float64))


def discounts(estimator: Any, chunk: Mapping[str, Any], follows: NDArray[Any]) -> list[Array]:
    """γ and λ of each transition: the chunk's, or else the estimator's."""
    found = []
    for name, own in (("gamma", estimator.gammas), ("lam", estimator.lams)):
        if own.size > 1 and name not in chunk:
            if own.size <= follows.max(initial=0):
                raise InputError(
                    name, f"{own.size} numbers", "must be one number, or one per state"
                )
            own = own[follows]
        column = np.asarray(chunk.get(name, own), dtype=np.float64)
        found.append(np.broadcast_to(column, len(follows)))
    return found


def predict_rows(estimator: Any, what: str, rows: Array) -> Array:
    """Predict for rows of numbers: states, or observations; NaN for a state that is not known."""
    states = estimator.features[0].states
    if states is None:
        return np.asarray(estimator.predict(rows, what))
    column = rows[:, 0].astype(np.int64)
    known = column < states
    return np.where(known, estimator.predict(np.where(known, column, 0), what), np.nan)


# ------------------------------------------------------------------ visits


class Visits:
    """Visit counts of states."""

    def __init__(self, counts: Any = ()) -> None:
        self.counts: Integers = np.array(counts, dtype=np.int64)

    def add(self, state: Integers) -> None:
        """Count a chunk."""
        self.merge(Visits(np.bincount(state)))

    def merge(self, other: Visits) -> None:
        """Add other visits, of more states or of fewer."""
        counts = other.counts
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
        arrays = self.low, self.high, self._boxes, self._counts, self._sums
        names = ("low", "high", "cells", "counts", "sums")
        return dict(zip(names, (x.tolist() for x in arrays), strict=True)) | {
            "actions": self.actions
        }


class Monitor:
    """Counts visits and collects observed returns; with `only`, those that begin in some places.

    `like` are visits whose regions are taken, where those of the estimator would not be the same.
    """

    def __init__(
        self, level: float = 0.9, remarks: list[str] | None = None, *,
        only: Integers | None = None, like: Any = None,
    ) -> None:  # fmt: skip
        self.level = arguments.level("level", level)
        self.remarks = [] if remarks is None else remarks  # what was decided for the caller
        regions = isinstance(like, Regions)
        self.visits: Any = Regions(like.low, like.high, like.actions) if regions else None
        self.returns: Returns | None = None  # by place
        self.sequence: Returns | None = None  # one after the other, wherever they begin
        self.off_policy = False  # returns of the target policy are not observed
        self._only = None if only is None else np.sort(only)

    def update(self, estimator: Any, chunk: Chunk) -> None:
        """Add a chunk, with the present values of the estimator."""
        state, follows = chunk["state"], chunk["next_state"]
        if self.visits is None:
            self.visits = _no_visits(estimator, state)
        if self.returns is None or self.sequence is None:
            vector, width = state.ndim > 1, int(np.prod(state.shape[1:]))
            keys, most, plenty = KEYS, STORED[vector], SOON
            if self._only is not None:
                keys, most, plenty = self._only.size, FRESH[vector], PLENTY
            negligible = NEGLIGIBLE if self._only is None else CLOSED
            self.returns = Returns(keys, width, most, negligible=negligible, plenty=plenty)
            self.sequence = Returns(1, width, SEQUENCE[vector], negligible=CLOSED, plenty=SOON)
        self.visits.add(state)
        weighted = estimator.description.estimand == "off_policy_return"
        rho = np.asarray(chunk["rho"], dtype=np.float64) if "rho" in chunk else None
        # for good: rows with a ratio of 1 are no fair sample
        self.off_policy |= not weighted and rho is not None and bool((rho != 1).any())
        if self.off_policy:
            return
        cells, value = self.visits.cells(state), None
        gamma, lam = discounts(estimator, chunk, follows)
        if bool((lam < 1).any()):
            value = predict_rows(estimator, "value", follows.reshape(len(cells), -1))
        rows = rows_of(chunk, gamma, lam, rho if weighted else None, value)
        self.returns.add(self._keys(cells), rows)
        self.sequence.add(np.zeros_like(cells), rows)

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
            self.visits = Visits()
        self.visits.merge(other.visits)
        for name in ("returns", "sequence"):
            own, theirs = getattr(self, name), getattr(other, name)
            if own is None:
                setattr(self, name, theirs)
            elif theirs is not None:
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
