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

What a return lacks that was cut is the variance at its end. A regression with the features says so
at first; it is far too large where the variance changes within the reach of a feature, as it does
near a goal. So the neighbours of the ends are asked, again and again until the answer stays: it is
the solution of V(end) = Σw r²/… + Σw Πγ² V(their ends).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import cKDTree
from scipy.stats import t as student

from retvar.estimation.linear_values import FeatureValues, missing_variances, room
from retvar.support import arguments
from retvar.support.errors import InputError
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
FAR = 3.0  # times the usual distance of a visit from other segments: far from all data
OUTSIDE = 1e100  # std of the coordinates: farther than any visit, and its square is finite
NEAR = 0.1  # std of the coordinates within which no place is far
SLOPE_RIDGE = 0.01
TINY = 1e-300
FLOOR = 1e-12  # smallest variance, over the mean square of e
REACH = 1.001  # h, over the distance of the farthest neighbour
NORMAL_KURTOSIS = 3.0
SHIFT_LIMIT = 50.0  # largest exponent of an interval of the std
MEAN, MEAN_VARIANCE, VARIANCE, KURTOSIS, DF = range(5)  # what a local fit finds

FAR_AWAY = "far from all data (distance {:.2g})"
TOO_FEW = "too few episodes"
NOTHING_VARIED = "nothing varied"
FEW_NEAR = "few episodes near ({})"


@dataclass(frozen=True)
class LocalSpread:
    """Spread of the return at places; NaN where nothing is known, and `note` says why.

    Intervals are approximate, and NaN where nothing varied.
    """

    variance: Array
    log_error: Array  #: standard error of log std, how it changes with K included
    df: Array  #: degrees of freedom of the std's interval
    value_error: Array  #: standard error of the value, the mean error around included
    distance: Array  #: of the nearest visit, in std of the coordinates
    note: NDArray[np.str_]  #: empty, or why an estimate is missing or weak

    @property
    def std(self) -> Array:
        """Standard deviation of the return."""
        return np.sqrt(self.variance)

    @property
    def far(self) -> NDArray[np.bool_]:
        """Which places are far from all data."""
        return np.char.startswith(self.note, FAR_AWAY.split("(")[0])

    def std_interval(self, level: float) -> tuple[Array, Array]:
        """Std × exp(± t × standard error of log std); approximate."""
        reach = np.minimum(self._quantile(level) * self.log_error, SHIFT_LIMIT)
        return self.std * np.exp(-reach), self.std * np.exp(reach)

    def value_interval(self, value: ArrayLike, level: float) -> tuple[Array, Array]:
        """Value ± t × standard error; approximate."""
        reach = self._quantile(level) * self.value_error
        centre = np.asarray(value, dtype=np.float64)
        return centre - reach, centre + reach

    def _quantile(self, level: float) -> Array:
        found: Array = student.ppf(
            0.5 + arguments.level("level", level) / 2, np.maximum(self.df, 1.0)
        )
        return found


class _Near(NamedTuple):
    """Places, and the nearest visits of segments to each."""

    points: Array  #: in units of the coordinates' std
    visits: Integers  #: [place, neighbour], the nearest first
    distances: Array
    nearest: Array  #: distance of the nearest
    close: Integers  #: number of segments that are not far, as far as they are neighbours


class Neighbours:
    """Errors of a log by place, and the number of neighbours that predicts the spread best.

    Of each visit it takes the coordinates [visit, coordinate], the return minus the value, the
    variance that the return lacks since its end was not seen, and the number of its segment. So
    many `neighbours` are asked everywhere; by default what forecasts best, and fewer where the
    value bends.

    >>> rng = np.random.default_rng(0)
    >>> x, error = rng.uniform(size=(4_000, 1)), 2.0 * rng.normal(size=4_000)
    >>> spread = Neighbours(x, error, np.zeros(4_000), np.arange(4_000))
    >>> found = spread.at([[0.5], [9.0]])
    >>> found.std.round(), found.note.tolist()
    (array([ 2., nan]), ['', 'far from all data (distance 28)'])
    """

    def __init__(
        self,
        state: ArrayLike,
        error: ArrayLike,
        tail: ArrayLike,
        segment: ArrayLike,
        *,
        neighbours: int | None = None,
    ) -> None:
        points = np.asarray(state, dtype=np.float64)
        self.segments = int(np.max(segment)) + 1  #: how many there are
        self.scale = _scale(points)  #: by which coordinates are divided
        self._order = in_boxes(points, self.scale)  # visits that are near one another together
        self._points = room((points.shape[1], len(points)))
        for j, scale in enumerate(self.scale):
            np.divide(points[self._order, j], scale, out=self._points[j])
        starts = np.arange(0, len(points), BOX)
        self._boxes = [
            np.ascontiguousarray(end.reduceat(self._points, starts, axis=1).T)
            for end in (np.minimum, np.maximum)
        ]
        self._error, self._tail = (np.asarray(x, np.float64)[self._order] for x in (error, tail))
        self._segment = np.asarray(segment, np.int64)[self._order]
        self._floor = FLOOR * float(np.mean(np.asarray(error, np.float64) ** 2))
        self.enough = self.segments > FEWEST  #: whether anything can be said
        self.scores: dict[int, float] = {}  #: by number of neighbours; the smallest is the best
        self.neighbours, self._typical_kurtosis, self.far = 0, NORMAL_KURTOSIS, np.nan
        self._given = neighbours is not None
        if self.enough:
            most = self.segments - 1
            self._tried = sorted(
                {min(k, most) for k in (CANDIDATES if neighbours is None else [neighbours])}
            )
            some = np.random.default_rng(0).permutation(len(points))[:VISITS]
            rows = np.argsort(self._order)[some]
            own = self._segment[rows]
            self._visits = rows, self._near(self._points[:, rows].T, self._tried[-1], own)
            self._choose()

    def with_tail(self, tail: ArrayLike) -> Neighbours:
        """The same errors, with other variances that cut returns lack."""
        other = copy.copy(self)
        other._tail = np.asarray(tail, np.float64)[self._order]
        other._choose()
        return other

    def _choose(self) -> None:
        """Compare numbers of neighbours at visits whose own segments are left out."""
        visits, near = self._visits
        found = self._fits(near, self._tried)
        self.far = max(FAR * float(np.quantile(near.nearest, 0.99)), NEAR)
        V = np.maximum(found[:, :, VARIANCE], self._floor).T
        missed = (self._error[visits] - found[:, :, MEAN].T) ** 2 + self._tail[visits]
        with np.errstate(invalid="ignore", divide="ignore"):
            score = np.where(V > 0, np.log(V) + missed / V, 0.0)
        self.scores = {k: float(np.mean(own)) for k, own in zip(self._tried, score, strict=True)}
        self.neighbours = min(self.scores, key=lambda k: self.scores[k])
        kurtosis = found[:, self._tried.index(self.neighbours), KURTOSIS]
        self._typical_kurtosis = max(NORMAL_KURTOSIS, float(np.median(kurtosis)))

    def _near(self, points: Array, most: int, left_out: Integers) -> _Near:
        """The nearest visits of other segments: in the units of `scale`; −1 leaves out none."""
        n, whole = len(points), np.int64
        found = _Near(
            np.ascontiguousarray(points), np.zeros((n, most), whole), np.zeros((n, most)),
            np.zeros(n), np.zeros(n, whole),
        )  # fmt: skip
        visits = Visits(self._points, self._segment, self._order, *self._boxes)
        find_nearest(found.points, left_out, self.segments, visits, self.far, *found[1:])
        return found

    def _fits(self, near: _Near, counts: list[int]) -> Array:
        """What local fits with these numbers of neighbours find [place, number, what]."""
        found = np.empty((len(near.points), len(counts), 5))
        fit_places(
            near.points, near.visits, near.distances, self._points, self._error, self._tail,
            np.array(counts), found,
        )  # fmt: skip
        return found

    def at(self, places: ArrayLike) -> LocalSpread:
        """The spread at places [place, coordinate]."""
        points, width = np.asarray(places, dtype=np.float64), len(self._points)
        if points.ndim != 2 or points.shape[1] != width or not np.isfinite(points).all():
            shape = f"an array of shape {points.shape}"
            raise InputError("places", shape, f"must be finite numbers [place, {width}]")
        if not self.enough:
            nan = np.full(len(points), np.nan)
            return LocalSpread(nan, nan, nan, nan, nan, np.full(len(points), TOO_FEW))
        firsts = range(0, max(1, len(points)), BLOCK)
        parts = [vars(self._at(self.near(points[i : i + BLOCK]))) for i in firsts]
        return LocalSpread(**{name: np.concatenate([p[name] for p in parts]) for name in parts[0]})

    def near(self, places: Array) -> _Near:
        """The neighbours of places."""
        return self._near(self.scaled(places), self._tried[-1], np.full(len(places), -1))

    def scaled(self, places: Array) -> Array:
        """Places in the units of `scale`; those beyond `OUTSIDE` lie there."""
        with np.errstate(over="ignore"):
            return np.clip(places / self.scale, -OUTSIDE, OUTSIDE)

    def _at(self, near: _Near) -> LocalSpread:
        choice = [k for k in self.scores if FEWEST_CHOSEN <= k < self.neighbours]
        choice = [*([] if self._given else choice), self.neighbours]
        quarter = [max(k // 4, FEWEST_NEIGHBOURS) for k in choice]
        found, every = self._fits(near, [*choice, *quarter]), np.arange(len(near.points))
        far = near.nearest > self.far
        found[far] = np.nan
        chosen = self._choose_locally(found[:, : len(choice)])
        fit, nearer = found[every, chosen], found[every, chosen + len(choice)]
        df = np.maximum(fit[:, DF], 1.0)
        still = fit[:, VARIANCE] <= self._floor
        note = np.where(near.close < FEWEST, [FEW_NEAR.format(k) for k in near.close], "")
        note = np.where(still, NOTHING_VARIED, note)
        note = np.where(far, [FAR_AWAY.format(d) for d in near.nearest], note)
        value_error = np.sqrt(fit[:, MEAN_VARIANCE] + fit[:, MEAN] ** 2)
        log_error = self._log_error(fit, nearer[:, VARIANCE], df)
        value_error[still] = log_error[still] = np.nan  # how sure that is, is not known
        return LocalSpread(fit[:, VARIANCE], log_error, df, value_error, near.nearest, note)

    def _choose_locally(self, found: Array) -> Integers:
        """Which of several numbers of neighbours, rising, to take at each place [place, number].

        The largest with a variance that is not significantly above that of a smaller one.
        """
        log_variance = np.log(np.maximum(found[:, :, VARIANCE], max(self._floor, TINY)))
        kurtosis = np.maximum(found[:, :, KURTOSIS], self._typical_kurtosis)
        error = np.sqrt((kurtosis - 1.0) / np.maximum(found[:, :, DF], 1.0))
        limit = np.minimum.accumulate(log_variance + BEND * error, axis=1)
        chosen = np.full(len(found), found.shape[1] - 1)
        for j in range(found.shape[1] - 1, 0, -1):
            bends = log_variance[:, j] > limit[:, j - 1]
            chosen[(chosen == j) & bends] = j - 1
        return chosen

    def _log_error(self, fit: Array, nearer: Array, df: Array) -> Array:
        """Standard error of log std: from the kurtosis, and how the std changes with K."""
        kurtosis = np.maximum(fit[:, KURTOSIS], self._typical_kurtosis)
        V, nearer = (np.maximum(x, self._floor) for x in (fit[:, VARIANCE], nearer))
        with np.errstate(invalid="ignore", divide="ignore"):
            change = np.where(V > 0, 0.5 * np.log(V / nearer), 0.0)
        found: Array = np.sqrt((kurtosis - 1.0) / (4.0 * df) + change**2)
        return np.where(np.isnan(fit[:, VARIANCE]), np.nan, found)


def neighbours_of(values: FeatureValues) -> Neighbours:
    """The errors of a value function along its log, by place.

    What cut returns lack comes from the neighbours of where they were cut.
    """
    log, smooth = values.log, values.end_variance
    tail = missing_variances(log, smooth)
    spread = Neighbours(log.state, values.error, tail, log.segment)
    if not spread.enough or not len(smooth):
        return spread
    some = log.end_state[np.random.default_rng(0).permutation(len(smooth))[:ENDS]]
    nearest = cKDTree(spread.scaled(some)).query(spread.scaled(log.end_state))[1]
    near, before = spread.near(some), smooth
    for _ in range(ROUNDS):
        found = spread._at(near).variance[nearest]
        variance = np.where(np.isfinite(found), found, smooth)
        spread = spread.with_tail(missing_variances(log, variance))
        if (np.abs(variance - before) <= SETTLED * variance).all():
            break
        before = variance
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
def find_nearest(
    places: Any, left_out: Any, segments: Any, visits: Any, far: Any, found: Any, distances: Any,
    distance: Any, near: Any,
) -> None:  # fmt: skip
    """Write the nearest visits of segments to each place, and how many segments are near.

    Boxes are searched from the nearest on, until enough segments are nearer than the next one. Of
    equally near visits the first is taken, and of equally near segments.
    """
    nearest, visit = np.full(segments, np.inf), np.empty(segments, dtype=np.int64)
    seen, visit[:] = np.empty(segments, dtype=np.int64), -1
    squares, K = np.empty(BOX), found.shape[1]
    wanted = max(K, FEWEST)
    for p in range(places.shape[0]):
        apart = box_distances(places[p], visits.low, visits.high)
        queue = np.argsort(apart)
        count, check = 0, 0
        for k in range(queue.size):
            if k >= check and count >= wanted:
                if np.count_nonzero(nearest[seen[:count]] < apart[queue[k]]) >= wanted:
                    break
                check = k + 1 + k // 4
            count = search_box(
                places[p], queue[k], visits, left_out[p], squares, nearest, visit, seen, count
            )
        known = np.sort(seen[:count])
        some = known[np.argsort(nearest[known], kind="mergesort")]
        for i in range(K):
            found[p, i], distances[p, i] = visit[some[i]], np.sqrt(nearest[some[i]])
        distance[p] = distances[p, 0]
        near[p] = np.count_nonzero(nearest[some] <= far * far)
        nearest[known], visit[known] = np.inf, -1


@compiled
def box_distances(place: Any, low: Any, high: Any) -> Any:
    """The squared distance of a place from each box; 0 inside."""
    found = np.zeros(low.shape[0])
    for b in range(found.size):
        for j in range(place.size):
            nearest = min(max(place[j], low[b, j]), high[b, j])
            found[b] += (nearest - place[j]) * (nearest - place[j])
    return found


@compiled
def search_box(
    place: Any, box: Any, visits: Any, left_out: Any, squares: Any, nearest: Any, visit: Any,
    seen: Any, count: Any,
) -> Any:  # fmt: skip
    """Find nearer visits of segments in a box; returns how many segments were seen so far."""
    points, segment, order = visits.points, visits.segment, visits.order
    first = box * BOX
    size = min(BOX, segment.size - first)
    squares[:] = 0.0
    for j in range(points.shape[0]):
        x, column = place[j], points[j, first : first + size]
        for t in range(size):
            squares[t] += (column[t] - x) * (column[t] - x)
    for t in range(size):
        at = segment[first + t]
        if at == left_out or (visit[at] >= 0 and squares[t] > nearest[at]):
            continue
        if visit[at] < 0:
            seen[count] = at
            count += 1
        elif squares[t] == nearest[at] and order[first + t] > order[visit[at]]:
            continue
        nearest[at], visit[at] = squares[t], first + t
    return count


@compiled
def fit_places(
    places: Any, visits: Any, distances: Any, points: Any, error: Any, tail: Any, counts: Any,
    found: Any,
) -> None:  # fmt: skip
    """Write what local fits with `counts` neighbours find at each place."""
    for p in range(places.shape[0]):
        for j in range(counts.size):
            K = counts[j]
            local_fit(places[p], points, visits[p, :K], distances[p, :K], error, tail, found[p, j])


@compiled
def local_fit(
    place: Any, points: Any, visits: Any, distances: Any, error: Any, tail: Any, found: Any
) -> None:
    """Fit e linearly around a place: its mean there, its spread, and how sure they are."""
    K, p = visits.size, points.shape[0] + 1
    h = REACH * distances[-1]
    Z, w, e = np.ones((K, p)), np.ones(K), error[visits]
    if h > 0.0:
        for i in range(K):
            w[i] = (1.0 - (distances[i] / h) ** 3) ** 3
            for j in range(1, p):
                Z[i, j] = (points[j - 1, visits[i]] - place[j - 1]) / h
    else:
        Z[:, 1:] = 0.0
    total = w.sum()
    w /= total
    A, squared = np.zeros((p, p)), np.zeros((p, p))
    for i in range(K):
        for a in range(p):
            for b in range(p):
                A[a, b] += w[i] * Z[i, a] * Z[i, b]
                squared[a, b] += w[i] * w[i] * Z[i, a] * Z[i, b]
    for j in range(1, p):
        A[j, j] += SLOPE_RIDGE
    inverse = np.ascontiguousarray(np.linalg.inv(A))
    slopes = inverse @ (Z.T @ (w * e))
    second = inverse @ squared @ inverse
    fitted, ZI, ZS = Z @ slopes, Z @ inverse, Z @ second
    trace, freedom, square, fourth, missing, mean_variance = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for i in range(K):
        own, twice = 0.0, 0.0
        for j in range(p):
            own += w[i] * ZI[i, j] * Z[i, j]
            twice += ZS[i, j] * Z[i, j]
        left = 1.0 - 2.0 * own + twice
        r = e[i] - fitted[i]
        trace += own
        freedom += w[i] * left
        square += w[i] * r * r
        fourth += w[i] * r * r * r * r
        missing += w[i] * tail[visits[i]]
        mean_variance += (w[i] * ZI[i, 0]) ** 2 * (r * r / max(left, 0.1) + tail[visits[i]])
    found[MEAN], found[MEAN_VARIANCE] = slopes[0], mean_variance
    found[VARIANCE] = square / max(freedom, 1e-12) + missing
    found[KURTOSIS] = fourth / (square * square) if square > 0.0 else NORMAL_KURTOSIS
    found[DF] = (1.0 - trace / K) / np.sum(w * w)
