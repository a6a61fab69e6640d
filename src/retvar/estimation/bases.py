"""Bases of a stack: value functions of several families, each fitted without each fold in turn.

A base is an object with two methods: ``fit(moves, folds)`` takes an :class:`EpisodeLog` and
:class:`Folds`, and fits one value function without each fold; ``predict(points)`` returns what
these say of rows of numbers [fold, place]. :class:`Folds` has the returns of the rows, for
regressions, and the values of the first base along the log, to bootstrap from.

>>> class Constant:
...     def fit(self, moves, folds):
...         self.means = [folds.returns[rows & folds.whole].mean() for rows in folds.others()]
...     def predict(self, points):
...         return np.repeat(np.array(self.means)[:, None], len(points), axis=1)
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from retvar.estimation.episodes import EpisodeLog, lambda_returns, missing
from retvar.estimation.linear_values import constant_value, feature_values, linear_values
from retvar.estimation.neighbours import BLOCK, Neighbours
from retvar.td.features import Features
from retvar.td.jit import compiled

__all__ = ["Base", "Folds", "Linear", "Returns", "Waves", "held_out"]

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Integers = NDArray[np.int64]
FOLDS = 5
FEWEST = 10  # segments; of fewer there are no folds
WHOLE = 0.3  # a return may lack this share, and counts as whole
MOST_ROWS = 60_000  # whose neighbours are asked, and whose held-out errors are
MOST_WORK = 9e9  # rows² times coordinates: searching in many dimensions looks at nearly all
LONG = 10  # segments that stay together in a sample of episodes
WAVES = 400
WIDTHS = (0.35, 0.8, 2.0)  # of waves, over the square root of the number of coordinates
STRAIGHT = 0.1  # scale of the coordinates beside the waves
KAPPA = 0.9  # of waves
RIDGES = 10.0 ** np.arange(-6, -1)  # of waves, over the mean squares
CHUNK = 2_048  # rows whose waves are held
TINY = 1e-12


class Base(Protocol):
    """One value function for each fold, fitted without it."""

    def fit(self, moves: EpisodeLog, folds: Folds) -> Any:
        """Fit them all."""

    def predict(self, points: Array) -> Array:
        """Their values of some points [fold, place]."""


class Folds:
    """Which episodes are held out from which fit: long ones in segments.

    Where there are fewer than ten segments there are no folds: one fit has all rows, and nothing
    is held out.
    """

    def __init__(self, moves: EpisodeLog, seed: int = 0) -> None:
        self.moves, rng = moves, np.random.default_rng(seed)
        self.count = FOLDS if moves.segments >= FEWEST else 1
        own = rng.permutation(moves.segments) % FOLDS if self.count > 1 else -1
        self.fold = np.broadcast_to(own, moves.segments)[moves.segment]  #: of each row
        self.value = np.full(len(moves), constant_value(moves))  #: of the rows, held out
        self.end_value = np.full(len(moves.end_state), self.value[0])  #: where they were cut
        self.sample = some_rows(moves, rng)  #: for slow methods

    def others(self) -> Iterator[Mask]:
        """The rows that are not held out, of each fold."""
        yield from (self.fold != f for f in range(self.count))

    @cached_property
    def share(self) -> Array:
        """The discount of what each row's return lacks."""
        return missing(self.moves, np.ones(len(self.end_value)))

    @cached_property
    def whole(self) -> Mask:
        """Rows whose return lacks little; the better half where there are none."""
        found = self.share < WHOLE
        return found if found.any() else self.share <= np.median(self.share)

    @property
    def returns(self) -> Array:
        """The return of each row, completed with the values where it was cut."""
        return lambda_returns(self.moves, self.value, self.end_value)

    def learn(self, base: Base) -> None:
        """Take over the values of a base."""
        self.value = held_out(base, self.moves.state, self.fold)
        self.end_value = held_out(base, self.moves.end_state, self.fold[self.moves.cut])


def some_rows(moves: EpisodeLog, rng: np.random.Generator) -> Integers:
    """Rows of all episodes, or all rows of some where the values along an episode count.

    Off-policy and for λ < 1 they do; then long parts of endless episodes are taken, too.
    """
    most = int(min(MOST_ROWS, (MOST_WORK / max(1, moves.state.shape[1])) ** 0.5))
    if not (moves.off_policy or (moves.lam[~moves.terminated] != 1.0).any()):
        return np.sort(rng.permutation(len(moves))[:most])
    ended = np.append(0, np.cumsum(moves.terminated | moves.cut)[:-1])  # episodes before each row
    first = moves.segment[np.searchsorted(ended, ended)]  # segment in which its episode began
    part = (moves.segment - first) // LONG
    group = np.cumsum(np.append(0, (np.diff(ended) != 0) | (np.diff(part) != 0)))
    size = np.bincount(group)
    order = rng.permutation(len(size))
    kept = order[: max(1, int(np.searchsorted(np.cumsum(size[order]), most, "right")))]
    return np.flatnonzero(np.isin(group, kept))


def held_out(base: Base, points: Array, fold: Integers) -> Array:
    """Values of points by the fit that has not seen their fold."""
    if not len(points):
        return np.zeros(0)
    found = np.asarray(base.predict(points), dtype=np.float64)
    return np.asarray(np.take_along_axis(found, np.maximum(fold, 0)[None], axis=0)[0])


class Linear:
    """Features, by least squares from λ-returns."""

    def __init__(self, features: Features) -> None:
        self.features = features

    def fit(self, moves: EpisodeLog, folds: Folds) -> None:
        """Fit weights without each fold."""
        self._weights = np.stack(
            [feature_values(moves.only(rows), self.features) for rows in folds.others()]
        )

    def predict(self, points: Array) -> Array:
        """Values [fold, place]."""
        return linear_values(self.features, self._weights, points)


class Waves:
    """Random Fourier features of three widths (Rahimi and Recht, 2007), by LSTD(κ).

    The ridge is the one whose values forecast held-out returns best.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def fit(self, moves: EpisodeLog, folds: Folds) -> None:
        """Sum up the equations of each fold once, and solve those of the others."""
        rng, state = np.random.default_rng(self.seed), moves.state
        width = np.repeat(WIDTHS, -(-WAVES // len(WIDTHS)))[:WAVES]
        self._middle, self._scale = state.mean(axis=0), state.std(axis=0)
        self._scale = np.where(self._scale > TINY * np.abs(self._middle), self._scale, 1.0)
        d = state.shape[1]
        self._frequency = rng.normal(size=(WAVES, d)) / (width[:, None] * np.sqrt(d))
        self._phase = rng.uniform(0.0, 2 * np.pi, WAVES)
        A, b = self._sums(moves, folds)
        fits = np.empty((len(RIDGES), folds.count, b.shape[1]))
        for f, rows in enumerate(folds.others()):
            left, right = (np.delete(x, f, axis=0).sum(axis=0) for x in (A, b))
            for k, ridge in enumerate(RIDGES * np.count_nonzero(rows)):
                penalty = np.append(np.full(right.size - 1, ridge), 0.0)
                fits[k, f] = solve(left + np.diag(penalty), right)
        self._columns = np.ascontiguousarray(fits.reshape(-1, b.shape[1]).T)
        use = np.flatnonzero(folds.whole)
        use = use[:: -(-len(use) // MOST_ROWS)]
        values = self.predict(state[use]).reshape(len(RIDGES), folds.count, -1)
        fold, goal = np.maximum(folds.fold[use], 0), folds.returns[use]
        missed = [np.mean((each[fold, np.arange(len(use))] - goal) ** 2) for each in values]
        self._columns = np.ascontiguousarray(fits[int(np.argmin(missed))].T)

    def _sums(self, moves: EpisodeLog, folds: Folds) -> tuple[Array, Array]:
        """Σ z(φ − γφ′)ᵀ and Σ zr of each fold, and of rows without one [fold, feature, …]."""
        p = WAVES + moves.state.shape[1] + 1
        A, b = np.zeros((folds.count + 1, p, p)), np.zeros((folds.count + 1, p))
        decay = KAPPA * moves.rho * moves.discount * ~moves.cut
        trace, sums, ends = np.zeros(p), np.zeros((p, p), np.float32), np.cumsum(moves.cut)
        for first in range(0, len(moves), CHUNK):
            here = slice(first, min(first + CHUNK, len(moves)))
            x = self._features(moves.state[first : here.stop + 1])
            after = np.zeros((here.stop - first, p), np.float32)
            after[: len(x) - 1] = x[1:]
            cut = moves.cut[here]
            after[cut] = self._features(moves.end_state[ends[here][cut] - 1])
            z = x[: len(after)].copy()
            follow(z, trace, decay, first)
            after *= -moves.discount[here, None].astype(np.float32)
            after += x[: len(after)]
            z *= moves.rho[here, None].astype(np.float32)
            for f in np.unique(folds.fold[here]):
                own = folds.fold[here] == f
                sums[:] = 0.0
                add_products(z[own], after[own], sums)
                A[f] += sums
                b[f] += (z[own] * moves.reward[here][own, None]).sum(axis=0)
        return A, b

    def _features(self, points: Array) -> NDArray[np.float32]:
        found = np.empty((len(points), WAVES + points.shape[1] + 1), np.float32)
        waves((points - self._middle) / self._scale, self._frequency, self._phase, found)
        return found

    def predict(self, points: Array) -> Array:
        """Values [fold, place]."""
        found = np.empty((self._columns.shape[1], len(points)))
        for first in range(0, len(points), CHUNK):
            here = slice(first, first + CHUNK)
            weighted_sums(self._features(points[here]), self._columns, found[:, here])
        return found


class Returns:
    """The mean return of neighbours in other episodes, by local lines."""

    def fit(self, moves: EpisodeLog, folds: Folds) -> None:
        """Keep the returns by place."""
        use = folds.sample[folds.whole[folds.sample]]
        segment = np.unique(moves.segment[use], return_inverse=True)[1]
        returns, none = folds.returns[use], np.zeros(len(use))
        self.near = Neighbours(moves.state[use], returns, none, segment)
        self._fold = np.ascontiguousarray(folds.fold[use][self.near.order])
        self._mean, self._folds = float(returns.mean()), folds.count

    def predict(self, points: Array) -> Array:
        """Values [fold, place]."""
        found = np.full((self._folds, len(points)), self._mean)
        for first in range(0, len(points) if self.near.enough else 0, BLOCK):
            here = slice(first, first + BLOCK)
            self.near.without(self._fold, points[here], found[:, here])
        return found


@compiled
def waves(points: Any, frequency: Any, phase: Any, found: Any) -> None:
    """Write the features of points: waves, coordinates, and one."""
    count, scale = phase.size, np.sqrt(2.0 / phase.size)
    for t in range(points.shape[0]):
        for k in range(count):
            angle = phase[k]
            for j in range(points.shape[1]):
                angle += frequency[k, j] * points[t, j]
            found[t, k] = scale * np.cos(angle)
        for j in range(points.shape[1]):
            found[t, count + j] = STRAIGHT * points[t, j]
        found[t, -1] = 1.0


@compiled
def follow(z: Any, trace: Any, decay: Any, first: Any) -> None:
    """Make traces of rows of features; `trace` is that of the row before, and of the last."""
    for t in range(z.shape[0]):
        share = decay[first + t - 1] if first + t > 0 else 0.0
        for j in range(trace.size):
            trace[j] = z[t, j] + share * trace[j]
            z[t, j] = trace[j]


@compiled
def add_products(z: Any, d: Any, sums: Any) -> None:
    """Add Σ zdᵀ over rows to `sums`, the same bits whatever the number of threads."""
    n, p = z.shape
    for t in range(0, n - 3, 4):
        for i in range(p):
            a, b, c, e = z[t, i], z[t + 1, i], z[t + 2, i], z[t + 3, i]
            for j in range(p):
                sums[i, j] += a * d[t, j] + b * d[t + 1, j] + c * d[t + 2, j] + e * d[t + 3, j]
    for t in range(n - n % 4, n):
        for i in range(p):
            for j in range(p):
                sums[i, j] += z[t, i] * d[t, j]


@compiled
def weighted_sums(x: Any, weights: Any, found: Any) -> None:
    """Write Σ xw for each row of features and each fit [fit, row]."""
    total = np.empty(weights.shape[1])
    for t in range(x.shape[0]):
        total[:] = 0.0
        for j in range(x.shape[1]):
            for f in range(total.size):
                total[f] += x[t, j] * weights[j, f]
        found[:, t] = total


@compiled
def solve(A: Any, b: Any) -> Any:
    """Solve Ax = b by elimination with pivots: the same bits whatever the number of threads."""
    A, x, n = A.copy(), b.copy(), b.size
    for k in range(n):
        best = k + np.argmax(np.abs(A[k:, k]))
        if best != k:
            for j in range(k, n):
                A[k, j], A[best, j] = A[best, j], A[k, j]
            x[k], x[best] = x[best], x[k]
        for i in range(k + 1, n):
            share = A[i, k] / A[k, k]
            if share != 0.0:
                for j in range(k + 1, n):
                    A[i, j] -= share * A[k, j]
                x[i] -= share * x[k]
    for k in range(n - 1, -1, -1):
        for j in range(k + 1, n):
            x[k] -= A[k, j] * x[j]
        x[k] /= A[k, k]
    return x
