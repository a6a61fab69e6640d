"""Observed returns: one backward scan over a table, when the values are known.

Going back from the end of its trajectory, the sum of rewards from every row is one addition. Of
these returns some that do not overlap are taken: at most one is open at a time for each key (a
state, or a region), and it is closed where the discount of its rest is small. So the returns of a
key are nearly independent, and whether one begins depends on the past alone.

A return that is cut off by truncation is completed with the value of the last state, and the
variance that is missing from it is computed; to leave it out would leave out the long ones. A
λ-return contains values of later states, too. Visits of states or regions are counted beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from retvar.experience.moves import CHUNK, Moves
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.td import rules
from retvar.td.features import ObservationFeatures, PerAction
from retvar.td.jit import compiled, read_only

if TYPE_CHECKING:
    from retvar.td.learners import Learner

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
Predictor = Callable[[Array], Array]  # of states or observations, as rows
NEGLIGIBLE = 1e-4  # discount of the rest of a return at which it is closed
CLOSED = 0.05  # the same for a return that is compared
MOST_MISSING = 0.1  # mean discount of what compared returns lack that is not accounted for
MOST_COMPLETED = 0.9  # where too few lack so little: what they may lack at most
FEWEST = 100  # returns below which nothing is said
LOT, REWARDS, REST, AGE, LEAD = range(5)  # columns of returns; then two rows
NOWHERE = -1  # a key at which no return begins
KEYS = 1 << 16  # returns that may be open at once; a power of 2
STORED = 4_000, 2_000  # returns by place: of states; of observations, whose predictions are costly
FRESH = 200_000, 4_000  # the same of fresh data
SEQUENCE = 20_000, 2_000  # returns in sequence
SLACK = 0.05  # of the width, beyond the bounds
MOST_REGIONS = 1_000_000  # boxes whose visits are counted
BINS = dict(enumerate((40, 20, 8, 6, 4, 4), start=1))  # boxes along each of so many dimensions


class Rows(NamedTuple):
    """Rows of whole trajectories, as returns are taken from them."""

    state: NDArray[Any]  #: a row of numbers each
    next_state: NDArray[Any]
    reward: Array  #: that of a λ-return, with what λ leaves to the values of next states
    discount: Array  #: of what follows; 0 where the episode terminates
    over: Mask  #: whether the trajectory ends here


def whole_trajectories(moves: Moves) -> Iterator[dict[str, NDArray[Any]]]:
    """Chunks of a table that end where a trajectory does; only very long ones are cut."""
    left: dict[str, NDArray[Any]] = {}
    for chunk in moves.chunks():
        rows = {name: np.concatenate([left[name], x]) if left else x for name, x in chunk.items()}
        ends = np.flatnonzero(rows["terminated"] | rows["truncated"])
        stop = int(ends[-1]) + 1 if ends.size else 0
        if len(rows["reward"]) - stop >= CHUNK:
            stop = len(rows["reward"])
        left = {name: x[stop:] for name, x in rows.items()}
        if stop:
            yield {name: x[:stop] for name, x in rows.items()}


def rows_of(
    chunk: Mapping[str, Any], gamma: Array, lam: Array, eta: Any = 1.0, next_value: Any = 0.0
) -> Rows:
    """The rows of a chunk; `next_value` is that of the next states, where λ is below 1."""
    n, ended = len(chunk["reward"]), np.asarray(chunk.get("terminated", False), dtype=bool)
    g, trace, value = (np.where(ended, 0.0, x) for x in (gamma, lam, next_value))
    over = np.broadcast_to(ended | np.asarray(chunk.get("truncated", False), dtype=bool), n).copy()
    over[-1:] = True
    state, next_state = (np.reshape(chunk[name], (n, -1)) for name in ("state", "next_state"))
    reward = rules.mean_reward(chunk["reward"], g, trace, value, eta)
    discount = rules.mean_discount(g, trace, np.broadcast_to(eta, n))
    return Rows(state, next_state, np.asarray(reward, float), np.asarray(discount, float), over)


@compiled
def observe(key: Any, reward: Any, discount: Any, over: Any, negligible: Any, keys: Any) -> Any:
    """Begin a return wherever its key has none.

    Gives the rows in which they begin and the last of each, the sums of rewards, and what is left.
    """
    n, count, end, rest = key.size, 0, 0, 1.0
    total, free = np.zeros(n + 1), np.zeros(keys, np.int64)
    begun, last, sums, rests = (
        np.empty(n, np.int64),
        np.empty(n, np.int64),
        np.empty(n),
        np.empty(n),
    )
    for t in range(n - 1, -1, -1):
        total[t] = reward[t] + (0.0 if over[t] else discount[t] * total[t + 1])
    for t in range(n):
        if end <= t:
            end, rest = t, 1.0
        while end == t or (abs(rest) >= negligible and not over[end - 1]):
            rest *= discount[end]
            end += 1
        if key[t] >= 0 and free[key[t]] <= t:
            free[key[t]] = end
            begun[count], last[count], rests[count] = t, end - 1, rest
            sums[count] = total[t] - (0.0 if over[end - 1] else rest * total[end])
            count += 1
        if discount[t] != 0.0:
            rest /= discount[t]
    return begun[:count], last[:count], sums[:count], rests[:count]


class Returns:
    """Returns that do not overlap; where there are more than `most`, a random sample of them.

    A return is closed where the discount of its rest falls below `negligible`.
    """

    def __init__(self, width: int, most: int, negligible: float = NEGLIGIBLE) -> None:
        self._rows = np.zeros((0, LEAD + 2 * width))
        self._width, self._most, self._negligible = width, most, negligible
        self.count = 0  #: of all that were seen

    def add(self, key: Integers, rows: Rows) -> None:
        """Add those of some trajectories, by the keys of their rows; none begins below 0."""
        columns = map(read_only, (key, rows.reward, rows.discount, rows.over))
        keys = int(key.max(initial=0)) + 1
        begun, last, sums, rest = observe(*columns, self._negligible, keys)
        rest = np.where(np.abs(rest) < NEGLIGIBLE, 0.0, rest)
        lots, at = np.random.default_rng(self.count).random(begun.size), np.arange(key.size)
        age = at - np.maximum.accumulate(at * np.append(True, rows.over[:-1]))
        ends = rows.state[begun], rows.next_state[last]
        self._keep(np.column_stack([lots, sums, rest, age[begun], *ends]), begun.size)

    def merge(self, other: Returns) -> None:
        """Add the returns of another part of the log."""
        self._keep(other._rows, other.count)

    def _keep(self, rows: Array, count: int) -> None:
        """Add these; of all, the smallest lots remain."""
        self.count += count
        self._rows = np.concatenate([self._rows, rows])
        if len(self._rows) > self._most:
            chosen = np.argpartition(self._rows[:, LOT], self._most)[: self._most]
            self._rows = self._rows[np.sort(chosen)]

    @property
    def start(self) -> Array:
        """State or observation in which each return began [return, number]."""
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
        """The returns, completed with these values."""
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
        age, share = self._rows[:, AGE], self.missing_share
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


# ------------------------------------------------------------------ what estimators know


class OwnDiscounts:
    """The γ and λ of an estimator, as its description has them; NaN where they are in the data."""

    description: Learner
    gammas = property(lambda self: _numbers(self.description.gamma))  #: γ of each state, or of all
    lams = property(lambda self: _numbers(self.description.lam))  #: λ of each state, or of all


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
    """Counts visits and collects observed returns: of data of one's own, or of `fresh` data.

    `like` are visits whose regions are taken, where those of the estimator would not be the same.
    """

    def __init__(
        self, level: float = 0.9, remarks: list[str] | None = None, *, fresh: bool = False,
        like: Any = None,
    ) -> None:  # fmt: skip
        self.level = arguments.level("level", level)
        self.remarks = [] if remarks is None else remarks  # what was decided for the caller
        regions = isinstance(like, Regions)
        self.visits: Any = Regions(like.low, like.high, like.actions) if regions else None
        self.returns: Any = None  # by place
        self.sequence: Any = None  # one after the other, wherever they begin
        self.off_policy = False  # returns of the target policy are not observed
        self._fresh = fresh

    def read(self, estimator: Any, moves: Moves) -> None:
        """Add a table, with the present values of the estimator."""
        weighted = estimator.description.estimand == "off_policy_return"
        for chunk in whole_trajectories(moves):
            state, follows, rho = chunk["state"], chunk["next_state"], chunk.get("rho", 1.0)
            self._begin(estimator, state)
            self.visits.add(state)
            # for good: rows with a ratio of 1 are no fair sample
            self.off_policy |= not weighted and bool(np.any(rho != 1))
            if self.off_policy:
                continue
            gamma, lam = discounts(estimator, chunk, follows)
            value: Any = 0.0
            if bool((lam < 1).any()):
                value = predict_rows(estimator, "value", follows.reshape(len(state), -1))
            rows = rows_of(chunk, gamma, lam, rho if weighted else 1.0, value)
            cells = self.visits.cells(state)
            self.returns.add(cells & (KEYS - 1), rows)
            self.sequence.add(np.zeros_like(cells), rows)

    def _begin(self, estimator: Any, state: NDArray[Any]) -> None:
        """Make room, when the first states show of which kind they are."""
        vector, width = state.ndim > 1, int(np.prod(state.shape[1:]))
        self.visits = _no_visits(estimator, state) if self.visits is None else self.visits
        if self.returns is None:
            by_place = (FRESH[vector], CLOSED) if self._fresh else (STORED[vector], NEGLIGIBLE)
            self.returns = Returns(width, *by_place)
            self.sequence = Returns(width, SEQUENCE[vector], CLOSED)

    def merge(self, other: Self) -> None:
        """Add what was counted elsewhere, of the same states."""
        if other.visits is None:
            return
        self.visits = Visits() if self.visits is None else self.visits
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
