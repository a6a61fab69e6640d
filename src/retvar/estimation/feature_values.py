"""The value of a policy with features, by least squares from a log at rest.

The weights are those of LSTD(κ) with ridge: the fixed point of {λ-returns with the present value
function, λ = κ; ridge regression of these on the features}. The regression is solved by conjugate
gradients that start from the weights before, so no matrix of LSTD is formed. With φ scaled so that
the largest φᵀφ is 1, and the intercept c free of the ridge:

    G(t) = r + γ[(1 − κ) J(t+1) + κ G(t+1)]        J = φᵀw + c
    (w, c) = argmin Σ (G − φᵀw − c)² + ridge·wᵀw
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike, NDArray

from retvar.errors import ConvergenceError, InputError
from retvar.estimation.episode_log import BLOCK, EpisodeLog, Source, read_episodes, room
from retvar.features import Features, Rows
from retvar.jit import compiled

__all__ = [
    "Design",
    "FeatureValues",
    "Weights",
    "completed_returns",
    "feature_values",
    "linear_values",
    "missing_variances",
]

Array = NDArray[np.float64]
KAPPA = 0.97
RIDGE = 1.0
TAIL_RIDGE = 50.0  # of the regression of squared errors
TOLERANCE = 1e-3  # largest change of the values, over their std, at which the iteration stops
ROUNDING = 1e-10  # errors below this share of the largest return are none
LEVEL = 0.1  # of the values' root mean square counts at least as their std
MOST_SHARE = 0.9999  # of the values in their own λ-returns
MOST_ITERATIONS = 1_000
MOST_STEPS = 2_000  # of conjugate gradients
LOOK_BACK = 4  # of these, by whose gain the error is judged
LEAST_RESIDUAL = 1e-30  # squared, over that of what is fitted
LEAST_CURVATURE = 1e-13  # over that of the diagonal
FINER = 0.1  # precision of a regression, over the change of the values before it
DENSE = 1 / 8  # share of features active from which ΦᵀΦ is formed
MOST_DENSE = 4_096  # features up to which it may be


@dataclass(frozen=True)
class Weights:
    """Weights of the features and the intercept."""

    feature: Array
    intercept: float = 0.0


class Design:
    """The features of many points, Φ [row, feature], as least squares needs them.

    Sparse rows are held; where most features are active, ΦᵀΦ is formed and the rows are made anew
    whenever they are needed.

    >>> from retvar.features import Vector
    >>> design = Design(Vector(2), np.array([[1.0, 0.0], [0.0, 2.0]]))
    >>> design.values(Weights(np.array([1.0, 3.0]), 0.5))
    array([1.5, 6.5])
    """

    def __init__(self, features: Features, state: Array) -> None:
        self.features, self._state = features, state
        n, size = len(state), features.size
        first = _rows(features, state[:BLOCK])
        share = first.indices.size / max(1, min(n, BLOCK) * size)
        self._dense = size <= MOST_DENSE and share > DENSE
        self._gram = np.zeros((size, size)) if self._dense else None
        self._indptr = np.zeros(n + 1 if not self._dense else 0, dtype=np.int64)
        self._indices = np.zeros(0, dtype=np.int32)
        self._data = np.zeros(0)
        self.sums, self.squares = np.zeros(size), np.zeros(size)  #: Σφ and Σφ² of each feature
        self.largest_square = 0.0  #: largest φᵀφ of a row
        self._collect(first)

    def __len__(self) -> int:
        return len(self._state)

    def _collect(self, first: Rows) -> None:
        """Go through the rows once: sums, and what is held."""
        held = 0
        for start, rows in self._fresh_rows(first):
            weights = rows.values * rows.values
            self.sums += np.bincount(rows.indices, rows.values, minlength=self.features.size)
            self.squares += np.bincount(rows.indices, weights, minlength=self.features.size)
            count = rows.indptr.size - 1
            norms = np.bincount(np.repeat(np.arange(count), np.diff(rows.indptr)), weights)
            self.largest_square = max(self.largest_square, float(norms.max(initial=0.0)))
            if self._gram is not None:
                block = self._dense_block(rows)
                self._gram += block.T @ block
                continue
            if start == 0:
                self._make_room(rows, count)
            if held + rows.indices.size > self._indices.size:
                self._grow(held + rows.indices.size)
            self._indices[held : held + rows.indices.size] = rows.indices
            if self._data.size == 0 and (rows.values != 1.0).any():
                self._data = room(self._indices.size)
                self._data[:held] = 1.0
            if self._data.size:
                self._data[held : held + rows.indices.size] = rows.values
            self._indptr[start + 1 : start + count + 1] = held + rows.indptr[1:]
            held += rows.indices.size

    def _make_room(self, rows: Rows, count: int) -> None:
        """Room for all rows, if they have as many entries as these."""
        expected = math.ceil(rows.indices.size / count * len(self))
        self._indices = room(expected, np.int32)

    def _grow(self, needed: int) -> None:
        size = max(needed, self._indices.size * 3 // 2)
        indices = room(size, np.int32)
        indices[: self._indices.size] = self._indices
        if self._data.size:
            data = room(size)
            data[: self._data.size] = self._data
            self._data = data
        self._indices = indices

    def _fresh_rows(self, first: Rows | None = None) -> Iterator[tuple[int, Rows]]:
        for start in range(0, len(self), BLOCK):
            if start == 0 and first is not None:
                yield 0, first
            else:
                yield start, _rows(self.features, self._state[start : start + BLOCK])

    def _dense_block(self, rows: Rows) -> Array:
        shape = (rows.indptr.size - 1, self.features.size)
        if rows.indices.size == shape[0] * shape[1]:
            return rows.values.reshape(shape)
        sparse = scipy.sparse.csr_array((rows.values, rows.indices, rows.indptr), shape=shape)
        return np.asarray(sparse.toarray())

    def values(self, weights: Weights) -> Array:
        """Φw + c."""
        found = np.empty(len(self))
        if self._dense:
            for start, rows in self._fresh_rows():
                block = self._dense_block(rows)
                found[start : start + len(block)] = block @ weights.feature
        else:
            multiply(self._indptr, self._indices, self._data, weights.feature, found)
        found += weights.intercept
        return found

    def transposed(self, y: Array) -> Array:
        """Φᵀy."""
        found = np.zeros(self.features.size)
        if self._dense:
            for start, rows in self._fresh_rows():
                block = self._dense_block(rows)
                found += block.T @ y[start : start + len(block)]
        else:
            multiply_transposed(self._indptr, self._indices, self._data, y, found)
        return found

    def normal(self, x: Array) -> Array:
        """ΦᵀΦx."""
        if self._gram is not None:
            return np.asarray(self._gram @ x)
        found = np.zeros_like(x)
        multiply_normal(self._indptr, self._indices, self._data, x, found)
        return found

    def regress(
        self, y: Array, ridge: float, *, start: Weights | None = None, precision: float = 0.0
    ) -> Weights:
        """Ridge regression of y with a free intercept, by preconditioned conjugate gradients.

        It stops where the fitted values are within `precision` of the solution's, root mean square.

        >>> from retvar.features import Vector
        >>> line = Design(Vector(1), np.array([[0.0], [1.0], [2.0]]))
        >>> found = line.regress(np.array([1.0, 3.0, 5.0]), ridge=0.0)
        >>> found.feature.round(6), round(found.intercept, 6)
        (array([2.]), 1.0)
        """
        n, penalty = len(self), ridge * self.largest_square
        x = np.zeros(self.features.size + 1)
        if start is not None:
            x[:-1], x[-1] = start.feature, start.intercept
        error = y - self.values(Weights(x[:-1], x[-1]))
        residual = np.append(self.transposed(error) - penalty * x[:-1], error.sum())
        diagonal = np.append(self.squares + penalty, n)
        diagonal[diagonal == 0.0] = 1.0

        def product(v: Array) -> Array:
            top = self.normal(v[:-1]) + penalty * v[:-1] + v[-1] * self.sums
            return np.append(top, _dot(self.sums, v[:-1]) + n * v[-1])

        goal = n * precision**2, LEAST_RESIDUAL * _dot(y, y)
        x = x + _conjugate_gradients(product, residual, 1.0 / diagonal, *goal)
        return Weights(x[:-1], float(x[-1]))


def _dot(a: Array, b: Array) -> float:
    """aᵀb; BLAS would wake threads for it, which costs more than it gives."""
    return float((a * b).sum())


def _conjugate_gradients(
    product: Any, residual: Array, inverse_diagonal: Array, goal: float, least: float
) -> Array:
    """Solve a positive semidefinite system, up to a squared error of `goal` in its own norm.

    That error is about what the last few steps have taken off it (Hestenes and Stiefel, 1952).
    A squared residual of `least` is rounding.
    """
    x = np.zeros_like(residual)
    z = inverse_diagonal * residual
    direction, size = z.copy(), _dot(residual, z)
    gains = [math.inf] * LOOK_BACK
    for _ in range(MOST_STEPS):
        if sum(gains) <= goal or size <= least:
            break
        Ad = product(direction)
        curvature = _dot(direction, Ad)
        flat = LEAST_CURVATURE * _dot(direction, direction / inverse_diagonal)
        if curvature <= flat:  # nothing but rounding is left
            break
        step = size / curvature
        gains = [*gains[1:], step * size]
        x += step * direction
        residual = residual - step * Ad
        z = inverse_diagonal * residual
        before, size = size, _dot(residual, z)
        direction = z + (size / before) * direction
    return x


@dataclass(frozen=True)
class FeatureValues:
    """A value function with features, and how far the returns of its log strayed from it."""

    features: Features
    weights: Weights
    log: EpisodeLog = field(repr=False)
    design: Design = field(repr=False)  #: features of the states of the log
    ends: Design = field(repr=False)  #: features of the states where it was cut
    kappa: float
    ridge: float
    iterations: int

    def value(self, states: ArrayLike) -> Array:
        """The value of states [place, coordinate]."""
        return linear_values(self.features, self.weights, np.asarray(states, dtype=np.float64))

    @cached_property
    def error(self) -> Array:
        """The errors e = G − J of the rows, with the return G completed by J where it was cut."""
        value = self.design.values(self.weights)
        found = completed_returns(self.log, self.ends.values(self.weights))
        rounding = ROUNDING * max(float(np.abs(found).max()), float(np.abs(value).max()))
        found -= value
        found[np.abs(found) <= rounding] = 0.0
        return found

    @cached_property
    def smooth(self) -> Weights:
        """A smooth regression of the squared errors."""
        squares = self.error**2
        return self.design.regress(squares, TAIL_RIDGE, precision=0.01 * float(squares.std()))

    @cached_property
    def tail(self) -> Array:
        """The variance that each row's return lacks since its end was not seen: Πγ² V(end).

        V is the smooth regression of the squared errors.
        """
        if not self.log.cut.any():
            return np.zeros(len(self.log))
        return missing_variances(self.log, np.maximum(self.ends.values(self.smooth), 0.0))


def feature_values(
    source: Source | Mapping[str, ArrayLike] | EpisodeLog,
    features: Features,
    *,
    gamma: float | None = None,
    kappa: float = KAPPA,
    ridge: float = RIDGE,
    tolerance: float = TOLERANCE,
) -> FeatureValues:
    """The value function of the policy that made a log: LSTD(κ) with ridge, on-policy, λ = 1.

    Parameters
    ----------
    source
        The log, or what :func:`read_episodes` reads.
    features
        Features of a state.
    gamma
        Discount where the log has no such column.
    kappa
        Decay of the traces, from 0 to 1; at 1 it is the regression of the observed returns.
    ridge
        Penalty of the weights, in rows: features are scaled to φᵀφ ≤ 1.
    tolerance
        Change of the values, over their std, at which the iteration stops.

    Examples
    --------
    >>> from retvar.features import TileCoding
    >>> rng = np.random.default_rng(0)
    >>> state = rng.uniform(size=(10_000, 1))
    >>> found = feature_values(
    ...     {"state": state, "next_state": state, "reward": state[:, 0] ** 2, "terminated": True},
    ...     TileCoding([0.0], [1.0], tiles=10), gamma=0.9,
    ... )
    >>> found.value([[0.25], [0.75]]).round(1)
    array([0.1, 0.6])
    """
    _refuse_settings(kappa, ridge, tolerance)
    log = source if isinstance(source, EpisodeLog) else read_episodes(source, gamma=gamma)
    design = Design(features, log.state)
    ends = Design(features, log.end_state)
    weights, iterations = _iterate(log, design, ends, kappa, ridge, tolerance)
    return FeatureValues(features, weights, log, design, ends, kappa, ridge, iterations)


def completed_returns(log: EpisodeLog, end_value: Array) -> Array:
    """The return of each row, completed with these values where an episode was cut.

    >>> log = read_episodes({"state": [[0.0]], "next_state": [[1.0]], "reward": [2.0],
    ...                      "terminated": [False]}, gamma=0.5)
    >>> completed_returns(log, np.array([8.0]))
    array([6.])
    """
    found = np.empty(len(log))
    lambda_returns(*_columns(log), np.zeros(len(log)), end_value, 1.0, found)
    return found


def missing_variances(log: EpisodeLog, end_variance: Array) -> Array:
    """The variance that each row's return lacks where the episode was cut: Πγ² V(end).

    >>> log = read_episodes({"state": [[0.0]], "next_state": [[1.0]], "reward": [2.0],
    ...                      "terminated": [False]}, gamma=0.5)
    >>> missing_variances(log, np.array([8.0]))
    array([2.])
    """
    found = np.zeros(len(log))
    discounted_tails(log.discount, log.terminated, log.cut, end_variance, found)
    return found


def linear_values(features: Features, weights: Weights, points: Array) -> Array:
    """φᵀw + c of points [place, coordinate].

    >>> from retvar.features import Vector
    >>> linear_values(Vector(2), Weights(np.array([1.0, 3.0]), 0.5), np.array([[0.0, 2.0]]))
    array([6.5])
    """
    rows = _rows(features, points)
    count = rows.indptr.size - 1
    row = np.repeat(np.arange(count), np.diff(rows.indptr))
    sums = np.bincount(row, rows.values * weights.feature[rows.indices], minlength=count)
    return np.asarray(sums + weights.intercept)


def _iterate(
    log: EpisodeLog, design: Design, ends: Design, kappa: float, ridge: float, tolerance: float
) -> tuple[Weights, int]:
    """Repeat λ-returns and regression until the values no longer change."""
    target = np.empty(len(log))
    weights = Weights(np.zeros(design.features.size), _constant(log, kappa))
    value, end_value = design.values(weights), ends.values(weights)
    change, once = math.inf, kappa == 1.0 and not len(log.end_state)
    for iteration in range(1, MOST_ITERATIONS + 1):
        lambda_returns(*_columns(log), value, end_value, kappa, target)
        size = max(float(target.std()), LEVEL * math.sqrt(float(np.mean(target**2))))
        finest = FINER * tolerance * size
        precision = finest if once else max(finest, FINER * min(change, size))
        weights = design.regress(target, ridge, start=weights, precision=precision)
        before, value = value, design.values(weights)
        end_value = ends.values(weights)
        change = math.sqrt(float(np.mean((value - before) ** 2)))
        if not math.isfinite(change):
            raise ConvergenceError("the values left the finite numbers: take a larger kappa")
        if once or change <= tolerance * size:
            return weights, iteration
    raise ConvergenceError(
        f"after {iteration:,} iterations the values still change by {change / size:.2g} of "
        "their std: take a larger kappa, or a larger ridge"
    )


def _constant(log: EpisodeLog, kappa: float) -> float:
    """The constant that is the mean of its own λ-returns: where the iteration starts."""
    rewards, *ends = _columns(log)
    own, shared = np.empty((2, len(log)))  # of the rewards alone, and of a value of 1 alone
    zeros, ones = np.zeros(len(log)), np.ones(len(log))
    lambda_returns(rewards, *ends, zeros, np.zeros(len(log.end_state)), kappa, own)
    lambda_returns(zeros, *ends, ones, np.ones(len(log.end_state)), kappa, shared)
    base, share = float(own.mean()), float(shared.mean())
    return base / (1.0 - share) if share < MOST_SHARE else base


def _refuse_settings(kappa: float, ridge: float, tolerance: float) -> None:
    if not 0.0 <= kappa <= 1.0:
        raise InputError("kappa", kappa, "must lie in [0, 1]")
    if not 0.0 <= ridge < math.inf:
        raise InputError("ridge", ridge, "must be a finite number of at least 0")
    if not 0.0 < tolerance < 1.0:
        raise InputError("tolerance", tolerance, "must lie between 0 and 1")


def _columns(log: EpisodeLog) -> tuple[Any, ...]:
    return log.reward, log.discount, log.terminated, log.cut


def _rows(features: Features, state: Array) -> Rows:
    """Rows of features, all finite."""
    rows = features.rows(state)
    if not np.isfinite(rows.values).all():
        raise InputError("state", "not finite", "must hold finite numbers only")
    return rows


@compiled
def lambda_returns(
    reward: Any, discount: Any, terminated: Any, cut: Any, value: Any, end_value: Any, kappa: Any,
    found: Any,
) -> None:  # fmt: skip
    """Write the λ-return of each row; where an episode was cut, the value of its end is taken."""
    following, value_after = 0.0, 0.0
    end = end_value.size
    for t in range(reward.size - 1, -1, -1):
        if terminated[t]:
            following = reward[t]
        elif cut[t]:
            end -= 1
            following = reward[t] + discount[t] * end_value[end]
        else:
            mixed = (1.0 - kappa) * value_after + kappa * following
            following = reward[t] + discount[t] * mixed
        found[t] = following
        value_after = value[t]


@compiled
def discounted_tails(discount: Any, terminated: Any, cut: Any, at_end: Any, found: Any) -> None:
    """Write Πγ² up to the cut, times what is there; 0 where the episode terminated."""
    tail = 0.0
    end = at_end.size
    for t in range(discount.size - 1, -1, -1):
        if terminated[t]:
            tail = 0.0
        elif cut[t]:
            end -= 1
            tail = at_end[end]
        tail *= discount[t] * discount[t]
        found[t] = tail


@compiled
def multiply(indptr: Any, indices: Any, data: Any, w: Any, found: Any) -> None:
    """Write Φw; no data stands for ones."""
    for t in range(found.size):
        total = 0.0
        for k in range(indptr[t], indptr[t + 1]):
            total += w[indices[k]] if data.size == 0 else data[k] * w[indices[k]]
        found[t] = total


@compiled
def multiply_transposed(indptr: Any, indices: Any, data: Any, y: Any, found: Any) -> None:
    """Add Φᵀy."""
    for t in range(y.size):
        for k in range(indptr[t], indptr[t + 1]):
            found[indices[k]] += y[t] if data.size == 0 else data[k] * y[t]


@compiled
def multiply_normal(indptr: Any, indices: Any, data: Any, x: Any, found: Any) -> None:
    """Add ΦᵀΦx."""
    for t in range(indptr.size - 1):
        total = 0.0
        for k in range(indptr[t], indptr[t + 1]):
            total += x[indices[k]] if data.size == 0 else data[k] * x[indices[k]]
        for k in range(indptr[t], indptr[t + 1]):
            found[indices[k]] += total if data.size == 0 else data[k] * total
