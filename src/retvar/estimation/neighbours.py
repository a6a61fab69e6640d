"""The spread of the return around a place, from neighbours in other episodes.

With features the error of the value is as large as the spread, so whatever learns from squared TD
errors is misled. Returns of different episodes that passed close by have independent noise, and
almost the same value: their scatter around a local line is the spread.

At a place x, with e = G − J the errors of a log, `tail` the variance that a cut return lacks, and a
segment a stretch of an episode:

1. take the visit of each segment that is nearest to x, and the K nearest of these;
2. weights w = (1 − (distance/h)³)³, h the distance of the farthest;
3. a weighted linear fit of e, slopes with a ridge of 0.01 Σw; H its smoother, r its residuals;
4. V = Σw r² / Σ w[(I − H)(I − H)ᵀ]ᵢᵢ + Σw·tail / Σw.

K is the number with the best forecasts of visits from the others' segments. Where V with K
neighbours exceeds V with half or a quarter as many by more than chance, fewer are taken (Lepski's
method): there the value bends within the reach of K.

What a return lacks that was cut is the variance at its end. So the neighbours of the ends are
asked, again and again until the answer stays: it is the solution of V(end) = Σw r²/… +
Σw Πγ² V(their ends).

Off-policy, e is a sum of weighted terms, and `beyond` is what the weighted square lacks of e².
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import cKDTree

from retvar.estimation.episodes import EpisodeLog, missing
from retvar.estimation.least_squares import around_std
from retvar.td.jit import compiled

__all__ = ["LocalSpread", "Neighbours", "neighbours_of"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
CANDIDATES = (20, 40, 80, 160, 320)
VISITS = 300  # at which numbers of neighbours are compared
ENDS = 300  # of cut returns, whose neighbours are asked; others take the answer of the nearest
ROUNDS = 30  # in which they are asked
SETTLED = 0.02  # relative change of their variances at which that ends
BOX = 256  # visits that are searched together
LOOKED_AT = 1_000  # visits that show along which coordinate they vary most
BLOCK = 1_024  # places that are looked up together
FEWEST_CHOSEN = 40  # neighbours at a place where the value bends
BEND = 2.5  # standard errors of log V beyond which it does
FEWEST = 20  # segments below which there is no answer
FEWEST_NEIGHBOURS = 5
NEAREST = 10  # segments whose mean distance says how far a place is
FAR = 2.0  # times that of nearly all visits: far from the data
MOST = 0.99  # share of the visits that these are
OUTSIDE = 1e100  # std of the coordinates: farther than any visit, and its square is finite
NEAR = 0.1  # std of the coordinates within which no place is far
SLOPE_RIDGE = 0.01
TINY = 1e-300
FLOOR = 1e-12  # smallest variance, over the mean square of e
REACH = 1.001  # h, over the distance of the farthest neighbour
NORMAL_KURTOSIS = 3.0
MEAN, VARIANCE, KURTOSIS, DF = range(4)  # what a local fit finds

FAR_AWAY = "far from the data (distance {:.2g})"
TOO_FEW = "too few episodes"
NOTHING_VARIED = "nothing varied"


@dataclass(frozen=True)
class LocalSpread:
    """Spread of the return at places; NaN where nothing is known, and `note` says why.

    Its interval is approximate, and NaN where nothing varied.
    """

    variance: Array
    log_error: Array  #: standard error of log std, how it changes with K included
    df: Array  #: degrees of freedom of the std's interval
    distance: Array  #: of the nearest episodes, in std of the coordinates
    far: NDArray[np.bool_]  #: which places are far from the data
    note: NDArray[np.str_]  #: empty, or why an estimate is missing or weak

    @classmethod
    def joined(cls, parts: list[Self]) -> Self:
        """The spread at the places of all parts."""
        return cls(*map(np.concatenate, zip(*(vars(p).values() for p in parts), strict=True)))

    @property
    def std(self) -> Array:
        """Standard deviation of the return."""
        return np.sqrt(self.variance)

    def std_interval(self, level: float) -> tuple[Array, Array]:
        """Approximate interval of the std."""
        return around_std(self.std, self.log_error, self.df, level)


class _Near(NamedTuple):
    """Places, and the nearest visits of segments to each."""

    points: Array  #: in units of the coordinates' std
    visits: Integers  #: [place, neighbour], the nearest first
    distances: Array

    @property
    def reach(self) -> Array:
        """Mean distance of the nearest segments."""
        return np.asarray(self.distances[:, :NEAREST].mean(axis=1))


class Neighbours:
    """Errors of a log by place, and the number of neighbours that predicts the spread best.

    Of each visit it takes the coordinates [visit, coordinate], the return minus the value, the
    variance that the return lacks since its end was not seen, the number of its segment, and what
    its square lacks, if anything. Of the `candidates` it asks so many neighbours as forecast best,
    and fewer where the value bends.
    """

    def __init__(
        self, state: ArrayLike, error: ArrayLike, tail: ArrayLike, segment: ArrayLike,
        beyond: ArrayLike = 0.0, candidates: Sequence[int] = CANDIDATES,
    ) -> None:  # fmt: skip
        points = np.asarray(state, dtype=np.float64)
        self.scale = _scale(points)  #: by which coordinates are divided
        self.order = in_boxes(points, self.scale)  #: visits that are near one another together
        scaled, starts = (points[self.order] / self.scale).T.copy(), np.arange(0, len(points), BOX)
        low, high = (end.reduceat(scaled, starts, axis=1).T for end in (np.minimum, np.maximum))
        own = np.asarray(segment, np.int64)[self.order]
        self._visits = Visits(scaled, own, self.order, low.copy(), high.copy())
        self._error, self._tail, self._beyond = (
            np.broadcast_to(np.asarray(x, np.float64), len(points))[self.order]
            for x in (error, tail, beyond)
        )
        self._floor = FLOOR * float(np.mean(np.asarray(error, np.float64) ** 2))
        self.segments = int(own.max()) + 1  #: how many there are
        self.enough = self.segments > FEWEST  #: whether anything can be said
        if self.enough:
            self.tried = sorted({min(k, self.segments - 1) for k in candidates})  #: numbers
            some = np.random.default_rng(0).permutation(len(points))[:VISITS]
            self._rows = np.argsort(self.order)[some]
            self._others = self.near(points[some], own[self._rows], self.tried[-1])
            self._choose()

    def lack(self, tail: Array) -> None:
        """Take other variances that cut returns lack."""
        self._tail = tail[self.order]
        self._choose()

    def _choose(self) -> None:
        """Compare numbers of neighbours at visits whose own segments are left out."""
        rows, near = self._rows, self._others
        mean, variance, kurtosis, _ = self._fits(near, self.tried)
        self.far = max(FAR * float(np.quantile(near.reach, MOST)), NEAR)
        V = np.maximum(variance.T, self._floor)
        missed = (self._error[rows] - mean.T) ** 2 + self._tail[rows] + self._beyond[rows]
        with np.errstate(invalid="ignore", divide="ignore"):
            score = np.where(V > 0, np.log(V) + missed / V, 0.0).mean(axis=1)
        #: by number of neighbours; the smallest is the best
        self.scores = dict(zip(self.tried, score.tolist(), strict=True))
        self.neighbours = min(self.scores, key=lambda k: self.scores[k])
        usual = float(np.median(kurtosis[:, self.tried.index(self.neighbours)]))
        self._typical_kurtosis = max(NORMAL_KURTOSIS, usual)

    def _fits(self, near: _Near, counts: Any) -> Array:
        """What local fits with these numbers of neighbours find [what, place, number]."""
        found = np.empty((len(near.points), len(counts), 4))
        numbers = self._error, self._tail, self._beyond
        fit_places(near, self._visits.points, numbers, np.asarray(counts), found)
        return np.moveaxis(found, 2, 0)

    def at(self, places: ArrayLike, left_out: Integers | int = -1) -> LocalSpread:
        """The spread at places [place, coordinate]; each may leave out a segment."""
        points = np.asarray(places, dtype=np.float64)
        if self.enough:
            return self.of(self.near(points, left_out))
        nan, none = np.full(len(points), np.nan), np.zeros(len(points), dtype=bool)
        return LocalSpread(nan, nan, nan, nan, none, np.full(len(points), TOO_FEW))

    def near(self, places: Array, left_out: Integers | int = -1, most: int = 0) -> _Near:
        """The nearest visits of other segments; −1 leaves out none."""
        points, own = np.ascontiguousarray(self.scaled(places)), np.full(len(places), left_out)
        shape = len(places), most or max(self.neighbours, NEAREST)
        found = _Near(points, np.zeros(shape, int), np.zeros(shape))
        find_nearest(found, own, self.segments, self._visits)
        return found

    def without(self, fold: Integers, folds: int, places: Array) -> Array:
        """The local means at places without the visits of each fold [fold, place]."""
        found = np.empty((folds, len(places)))
        fold_means(self.near(places), self._visits.points, self._error, fold, found)
        return found

    def scaled(self, places: Array) -> Array:
        """Places in the units of `scale`; those beyond `OUTSIDE` lie there."""
        with np.errstate(over="ignore"):
            return np.clip(places / self.scale, -OUTSIDE, OUTSIDE)

    def of(self, near: _Near) -> LocalSpread:
        """The spread at places with these neighbours."""
        choice = [k for k in self.scores if FEWEST_CHOSEN <= k < self.neighbours]
        choice.append(self.neighbours)
        quarter = [max(k // 4, FEWEST_NEIGHBOURS) for k in choice]
        asked = [*choice, *quarter]
        counts, at = np.unique(asked, return_inverse=True)
        found, every = self._fits(near, counts)[..., at], np.arange(len(near.points))
        far = near.reach > self.far
        found[:, far] = np.nan
        _, variances, kurtosis, df = found
        df, kurtosis = np.maximum(df, 1.0), np.maximum(kurtosis, self._typical_kurtosis)
        logs = np.log(np.maximum(variances, max(self._floor, TINY)))
        chosen = _unbent(logs[:, : len(choice)], np.sqrt((kurtosis - 1.0) / df))
        variance, narrow = variances[every, chosen], df[every, chosen + len(choice)]
        df = df[every, chosen]
        change = (logs[every, chosen] - logs[every, chosen + len(choice)]) ** 2
        peaked = kurtosis[every, chosen] - 1.0
        by_chance = peaked * (1.0 / narrow - 1.0 / df)
        error = np.sqrt(peaked / (4.0 * df) + 0.25 * np.maximum(change - by_chance, 0.0))
        still = variance <= self._floor
        error[still] = np.nan  # how sure that is, is not known
        note = np.where(still, NOTHING_VARIED, "")
        note = np.where(far, [FAR_AWAY.format(d) for d in near.reach], note)
        variance = np.where(variance < 0, np.nan, variance)  # weighted squares
        return LocalSpread(variance, error, df, near.reach, far, note)


def _unbent(log_variance: Array, error: Array) -> Integers:
    """Which of several numbers of neighbours, rising, to take at each place [place, number].

    The largest with a variance that is not significantly above that of a smaller one.
    """
    count = log_variance.shape[1]
    limit = np.minimum.accumulate(log_variance + BEND * error[:, :count], axis=1)
    chosen = np.full(len(log_variance), count - 1)
    for j in range(count - 1, 0, -1):
        chosen[(chosen == j) & (log_variance[:, j] > limit[:, j - 1])] = j - 1
    return chosen


def neighbours_of(log: EpisodeLog, rows: Integers, error: Array, beyond: Array) -> Neighbours:
    """The errors of a value function at some rows of its log, by place.

    What cut returns lack comes from the neighbours of where they were cut.
    """
    variance = np.full(len(log.end_state), np.mean(error**2 + beyond))
    tail, segment = missing(log, variance, 2, log.lam)[rows], log.segment[rows]
    segment = np.unique(segment, return_inverse=True)[1]
    spread = Neighbours(log.state[rows], error, tail, segment, beyond)
    if not spread.enough or not len(variance):
        return spread
    some = log.end_state[np.random.default_rng(0).permutation(len(variance))[:ENDS]]
    nearest = cKDTree(spread.scaled(some)).query(spread.scaled(log.end_state))[1]
    near, first = spread.near(some, most=spread.tried[-1]), variance
    for _ in range(ROUNDS):
        found = spread.of(near).variance[nearest]
        before, variance = variance, np.where(np.isfinite(found), np.maximum(found, 0.0), first)
        spread.lack(missing(log, variance, 2, log.lam)[rows])
        if (np.abs(variance - before) <= SETTLED * variance).all():
            break
    return spread


def _scale(points: Array) -> Array:
    """The std of each coordinate; where it never changes a hundredth of its size."""
    std, size = points.std(axis=0), np.abs(points[0])
    still = std <= 1e-12 * size
    return np.where(still, np.where(size > 0, 0.01 * size, 1.0), std)


class Visits(NamedTuple):
    """Visits in boxes, each around the next few."""

    points: Any  #: [coordinate, visit]
    segment: Any
    order: Any  #: number of each in the log
    low: Any  #: ends of each box [box, coordinate]
    high: Any


def in_boxes(points: Array, scale: Array) -> Integers:
    """An order of points [visit, coordinate] in which each `BOX` of them lie close together.

    Halves, again and again, along the coordinate that varies most in units of its scale.
    """
    order = np.arange(len(points))
    parts = [(0, len(points))]
    while parts:
        first, end = parts.pop()
        if end - first <= BOX:
            continue
        own = order[first:end]
        some = points[own[:: -(-own.size // LOOKED_AT)]]
        widest = int(np.argmax(np.ptp(some, axis=0) / scale))
        half = -(-own.size // (2 * BOX)) * BOX  # whole boxes
        order[first:end] = own[np.argpartition(points[own, widest], half - 1)]
        parts += [(first, first + half), (first + half, end)]
    return order


@compiled
def find_nearest(near: Any, left_out: Any, segments: Any, visits: Any) -> None:
    """Write the nearest visits of segments to each place.

    Boxes are searched from the nearest on, until enough segments are nearer than the next one. Of
    equally near visits the first is taken, and of equally near segments. What was found at the
    place before limits how far one has to look.
    """
    nearest, visit = np.full(segments, np.inf), np.full(segments, -1)
    seen, squares, limit = np.empty(segments, dtype=np.int64), np.empty(BOX), np.inf
    P, K = near.visits.shape
    few = segments > 2 * K  # else hardly a visit is too far
    for p in range(P):
        place, moved = near.points[p], np.inf
        if few and p > 0 and left_out[p] == left_out[p - 1]:
            moved = np.sqrt(((place - near.points[p - 1]) ** 2).sum())
        limit = (REACH * (np.sqrt(limit) + moved)) ** 2
        gap = np.maximum(np.maximum(visits.low - place, place - visits.high), 0.0)
        apart = (gap * gap).sum(axis=1)  # from the boxes, squared
        queue = np.argsort(apart)
        count, check = 0, 0 if few else queue.size // 2
        for k in range(queue.size):
            if k >= check and count >= K:
                limit = np.partition(nearest[seen[:count]], K - 1)[K - 1]
                check = 3 * k + 2
            if apart[queue[k]] > limit:
                break
            count = search_box(
                place, queue[k], visits, left_out[p], limit, squares, nearest, visit, seen, count
            )
        known = np.sort(seen[:count])
        some = known[np.argsort(nearest[known], kind="mergesort")[:K]]
        limit = nearest[some[-1]]
        near.visits[p], near.distances[p] = visit[some], np.sqrt(nearest[some])
        nearest[seen[:count]], visit[seen[:count]] = np.inf, -1


@compiled
def search_box(
    place: Any, box: Any, visits: Any, left_out: Any, limit: Any, squares: Any, nearest: Any,
    visit: Any, seen: Any, count: Any,
) -> Any:  # fmt: skip
    """Find nearer visits of segments in a box; returns how many segments were seen so far."""
    points, segment, order = visits.points, visits.segment, visits.order
    first = box * BOX
    size = min(BOX, segment.size - first)
    squares[:] = 0.0
    for j in range(len(points)):
        x, column = place[j], points[j, first : first + size]
        for t in range(size):
            squares[t] += (column[t] - x) * (column[t] - x)
    for t in range(size):
        at = segment[first + t]
        if squares[t] > limit or squares[t] > nearest[at] or at == left_out:
            continue
        if visit[at] < 0:
            seen[count] = at
            count += 1
        elif squares[t] == nearest[at] and order[first + t] > order[visit[at]]:
            continue
        nearest[at], visit[at] = squares[t], first + t
    return count


@compiled
def fit_places(near: Any, points: Any, numbers: Any, counts: Any, found: Any) -> None:
    """Write what local fits with `counts` neighbours find at each place."""
    error, tail, beyond = numbers
    for p in range(near.points.shape[0]):
        for j in range(counts.size):
            at, distances = near.visits[p, : counts[j]], near.distances[p, : counts[j]]
            Z, w = local_design(near.points[p], points, at, distances)
            local_fit(Z, w / w.sum(), error[at], tail[at], beyond[at], found[p, j])


@compiled
def local_fit(Z: Any, w: Any, e: Any, tail: Any, beyond: Any, found: Any) -> None:
    """Fit e linearly around a place: its mean there, its spread, and how sure they are.

    With M the inverse of S = ZᵀWZ and the ridge, and T = ZᵀW²Z, Σ wᵢHᵢᵢ is tr MT, and
    Σ wᵢ(HHᵀ)ᵢᵢ is tr MTMS.
    """
    none = np.zeros(w.size, dtype=np.int64)
    S, T = moments(Z, w, e, none, 1), moments(Z, w * w, e, none, 1)[0]
    M = np.linalg.inv(with_ridge(S[0][0]))
    slopes, MS, MT = M @ S[1][0], M @ S[0][0], M @ T[0]
    squares = (e - Z @ slopes) ** 2 + beyond
    square, fourth = (w * squares).sum(), (w * squares * squares).sum()
    left = 1.0 - 2.0 * np.trace(MT) + (MT * MS.T).sum()
    found[MEAN] = slopes[0]
    found[VARIANCE] = square / max(left, 1e-12) + (w * tail).sum()
    found[KURTOSIS] = fourth / (square * square) if square > 0.0 else NORMAL_KURTOSIS
    found[DF] = (1.0 - np.trace(MS) / w.size) / (w * w).sum()


@compiled
def local_design(place: Any, points: Any, visits: Any, distances: Any) -> Any:
    """One and the coordinates of visits around a place [visit, number], and their weights."""
    h, Z = REACH * distances[-1], np.zeros((visits.size, points.shape[0] + 1))
    Z[:, 0] = 1.0
    if h == 0.0:
        return Z, np.ones(visits.size)
    for j in range(points.shape[0]):
        Z[:, j + 1] = (points[j][visits] - place[j]) / h
    return Z, (1.0 - (distances / h) ** 3) ** 3


@compiled
def moments(Z: Any, w: Any, e: Any, group: Any, groups: Any) -> Any:
    """ZᵀWZ and ZᵀWe of the rows of each group [group, …]."""
    size = Z.shape[1]
    S, right = np.zeros((groups, size, size)), np.zeros((groups, size))
    for k in range(w.size):
        g = group[k]
        for i in range(size):
            share = w[k] * Z[k, i]
            right[g, i] += share * e[k]
            for j in range(i + 1):
                S[g, i, j] += share * Z[k, j]
    for i in range(size):
        for j in range(i):
            S[:, j, i] = S[:, i, j]
    return S, right


@compiled
def with_ridge(S: Any) -> Any:
    """ZᵀWZ with the ridge of the slopes."""
    A = S.copy()
    for j in range(1, len(A)):
        A[j, j] += SLOPE_RIDGE * A[0, 0]
    return A


@compiled
def fold_means(near: Any, points: Any, error: Any, fold: Any, found: Any) -> None:
    """Write the local fits around each place without the visits of each fold [fold, place]."""
    folds = found.shape[0]
    for k in range(near.points.shape[0]):
        at = near.visits[k]
        Z, w = local_design(near.points[k], points, at, near.distances[k])
        S, right = moments(Z, w, error[at], fold[at], folds)
        for f in range(folds):
            others = np.arange(folds) != f
            others[f] = S[others, 0, 0].sum() <= 0.0  # only this fold is near
            A, b = S[others].sum(axis=0), right[others].sum(axis=0)
            found[f, k] = np.linalg.solve(with_ridge(A), b)[0]
