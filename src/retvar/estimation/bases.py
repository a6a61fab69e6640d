"""Bases of a stack: value functions of several families, each fitted without each fold in turn.

A base is an object with two methods: ``fit(moves, folds)`` takes an :class:`EpisodeLog` and
:class:`Folds`, and fits one value function without each fold; ``predict(points)`` returns what
these say of rows of numbers [fold, place]. :class:`Folds` has the returns of the rows, for
regressions, and the values of the first base along the log, to bootstrap from. An example is
``examples/regressor_base.py``.
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
from retvar.support.errors import ConvergenceError
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
WAVES = 400
WIDTHS = (0.35, 0.8, 2.0)  # of waves, over the square root of the number of coordinates
STRAIGHT = 0.1  # scale of the coordinates beside the waves
KAPPA = 0.9  # of waves
RIDGES = 10.0 ** np.arange(-6, -1)  # of waves, over the mean squares
CHUNK = 2_048  # rows whose waves are held
TINY = 1e-12
TOO_FEW = "neighbours need more than 20 episodes with whole returns: log more, or take tiles"


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

    def __init__(self, moves: EpisodeLog) -> None:
        self.moves, rng = moves, np.random.default_rng(0)
        self.count = FOLDS if moves.segments >= FEWEST else 1
        own = rng.permutation(moves.segments) % FOLDS if self.count > 1 else -1
        self.fold = np.broadcast_to(own, moves.segments)[moves.segment]  #: of each row
        self.value = np.full(len(moves), constant_value(moves))  #: of the rows, held out
        self.end_value = np.full(len(moves.end_state), self.value[0])  #: where they were cut
        most = int(min(MOST_ROWS, (MOST_WORK / max(1, moves.state.shape[1])) ** 0.5))
        self.sample = np.sort(rng.permutation(len(moves))[:most])  #: rows for slow methods

    def others(self) -> Iterator[Mask]:
        """The rows that are not held out, of each fold."""
        yield from (self.fold != f for f in range(self.count))

    @cached_property
    def share(self) -> Array:
        """The discount of what each row's return lacks."""
        return missing(self.moves, np.ones(len(self.end_value)))

    @cached_property
    def whole(self) -> Mask:
        """Rows whose return lacks little; the better half where there are none.

        All rows where episodes end: those that were cut off would else be left out for not having
        ended, and what remains be those that ended early.
        """
        if self.moves.terminated.any():
            return np.ones(len(self.moves), dtype=bool)
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

    def fit(self, moves: EpisodeLog, folds: Folds) -> None:
        """Sum up the equations of each fold once, and solve those of the others."""
        rng, state = np.random.default_rng(0), moves.state
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
        use = np.flatnonzero(folds.whole)
        use = use[:: -(-len(use) // MOST_ROWS)]
        self._weights = fits.reshape(-1, b.shape[1])  #: [fit, feature]
        values = self.predict(state[use]).reshape(len(RIDGES), folds.count, -1)
        own = values[:, np.maximum(folds.fold[use], 0), np.arange(len(use))]
        missed = ((own - folds.returns[use]) ** 2).mean(axis=1)
        self._weights = fits[int(np.argmin(missed))]

    def _sums(self, moves: EpisodeLog, folds: Folds) -> tuple[Array, Array]:
        """Σ z(φ − γφ′)ᵀ and Σ zr of each fold, and of rows without one [fold, feature, …]."""
        p = WAVES + moves.state.shape[1] + 1
        A, b = np.zeros((folds.count + 1, p, p)), np.zeros((folds.count + 1, p))
        decay = KAPPA * moves.rho * moves.discount * ~moves.cut
        follows = np.append((moves.next_state[:-1] == moves.state[1:]).all(axis=1), False)
        trace, sums = np.zeros(p), np.zeros((p, p), np.float32)
        for first in range(0, len(moves), CHUNK):
            here = slice(first, first + CHUNK)
            x, other = self._features(moves.state[here]), ~follows[here]
            other[-1], after = True, np.roll(x, -1, axis=0)
            after[other] = self._features(moves.next_state[here][other])
            difference = x - moves.discount[here, None].astype(np.float32) * after
            follow(x, trace, decay, first)
            x *= moves.rho[here, None].astype(np.float32)
            for f in np.unique(folds.fold[here]):
                own = folds.fold[here] == f
                sums[:] = 0.0
                add_products(x[own], difference[own], sums)
                A[f] += sums
                b[f] += (x[own] * moves.reward[here][own, None]).sum(axis=0)
        return A, b

    def _features(self, points: Array) -> NDArray[np.float32]:
        found = np.empty((len(points), WAVES + points.shape[1] + 1), np.float32)
        waves((points - self._middle) / self._scale, self._frequency, self._phase, found)
        return found

    def predict(self, points: Array) -> Array:
        """Values [fold, place]."""
        parts = (self._features(points[k : k + CHUNK]) for k in range(0, len(points), CHUNK))
        # not by BLAS, whose bits depend on the number of threads
        found = [np.einsum("fj,tj->ft", self._weights, x) for x in parts]
        return np.concatenate([np.zeros((len(self._weights), 0)), *found], axis=1)


class Returns:
    """The mean return of neighbours in other episodes, by local lines."""

    def fit(self, moves: EpisodeLog, folds: Folds) -> None:
        """Keep the returns by place."""
        use = folds.sample[folds.whole[folds.sample]]
        segment = np.unique(moves.segment[use], return_inverse=True)[1]
        returns, none = folds.returns[use], np.zeros(len(use))
        self.near = Neighbours(moves.state[use], returns, none, segment)
        if not self.near.enough:
            raise ConvergenceError(TOO_FEW)
        self._fold = np.ascontiguousarray(folds.fold[use][self.near.order])
        self._folds = folds.count

    def predict(self, points: Array) -> Array:
        """Values [fold, place]."""
        parts = (points[k : k + BLOCK] for k in range(0, max(1, len(points)), BLOCK))
        found = [self.near.without(self._fold, self._folds, part) for part in parts]
        return np.concatenate(found, axis=1)


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
def solve(A: Any, b: Any) -> Any:
    """Solve Ax = b by elimination with pivots: the same bits whatever the number of threads."""
    A, x, n = A.copy(), b.copy(), b.size
    for k in range(n):
        best = k + np.argmax(np.abs(A[k:, k]))
        row, x[k], x[best] = A[best].copy(), x[best], x[k]
        A[best] = A[k]
        A[k] = row
        for i in range(k + 1, n):
            share = A[i, k] / A[k, k]
            for j in range(k, n):
                A[i, j] -= share * row[j]
            x[i] -= share * x[k]
    for k in range(n - 1, -1, -1):
        x[k] = (x[k] - (A[k, k + 1 :] * x[k + 1 :]).sum()) / A[k, k]
    return x
