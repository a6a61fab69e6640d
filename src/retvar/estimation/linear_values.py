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
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from retvar.estimation.episodes import BLOCK, EpisodeLog, lambda_returns
from retvar.support.errors import ConvergenceError, InputError
from retvar.td.features import Features
from retvar.td.nodes import LIMIT

__all__ = ["constant_value", "feature_values", "linear_values"]

Array = NDArray[np.float64]
KAPPA, OFF_POLICY = 0.97, 0.5  # the latter with importance ratios, whose products vary
RIDGE = 1.0
TOLERANCE = 1e-3  # largest change of the values, over their std, at which the iteration stops
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


class Design:
    """The features of many points, and 1 [row, feature]: weights end with the intercept c."""

    def __init__(self, features: Features, state: Array) -> None:
        self.rows = feature_rows(features, state)
        squares = self.rows.power(2)
        self._squares = squares.sum(axis=0)
        self._largest = float(squares.sum(axis=1).max(initial=1.0)) - 1.0  #: of φᵀφ
        size = self.rows.shape[1]
        dense = size <= MOST_DENSE and self.rows.nnz > DENSE * len(state) * size
        self._gram = (self.rows.T @ self.rows).toarray() if dense else None

    def regress(self, y: Array, ridge: float, start: Array, precision: float = 0.0) -> Array:
        """Ridge regression of y with a free intercept, by preconditioned conjugate gradients.

        It stops where the fitted values are within `precision` of the solution's, root mean square.
        """
        penalty = np.full(start.size, ridge * self._largest)
        penalty[-1] = 0.0
        residual = self.rows.T @ (y - self.rows @ start) - penalty * start
        diagonal = self._squares + penalty
        diagonal[diagonal == 0.0] = 1.0

        def product(v: Array) -> Array:
            square = self.rows.T @ (self.rows @ v) if self._gram is None else self._gram @ v
            return np.asarray(square + penalty * v)

        goal = len(y) * precision**2, LEAST_RESIDUAL * _dot(y, y)
        return start + _conjugate_gradients(product, residual, 1.0 / diagonal, *goal)


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


def feature_values(log: EpisodeLog, features: Features) -> Array:
    """Weights and intercept of the value function of a log: LSTD(κ) with ridge.

    Repeats λ-returns and regression until the values no longer change.
    """
    design, ends = Design(features, log.state), feature_rows(features, log.end_state)
    weights = np.append(np.zeros(features.size), constant_value(log))
    value, end_value, change = design.rows @ weights, ends @ weights, math.inf
    kappa = OFF_POLICY if log.off_policy else KAPPA
    for _ in range(MOST_ITERATIONS):
        target = lambda_returns(log, value, end_value, kappa)
        if not np.abs(target).max() < LIMIT:
            break
        size = max(float(target.std()), LEVEL * math.sqrt(float(np.mean(target**2))))
        precision = FINER * max(TOLERANCE * size, min(change, size))
        weights = design.regress(target, RIDGE, weights, precision)
        before, value, end_value = value, design.rows @ weights, ends @ weights
        change = math.sqrt(float(np.mean((value - before) ** 2)))
        if change <= TOLERANCE * size:
            return weights
    problem = "the values of least squares with features do not settle"
    raise ConvergenceError(f'{problem}; take by="td"')


def constant_value(log: EpisodeLog) -> float:
    """The constant that is the mean of its own λ-returns: where the iteration starts."""
    base, with_one = (
        float(lambda_returns(log, one, np.full(len(log.end_state), one[0]), KAPPA).mean())
        for one in (np.zeros(len(log)), np.ones(len(log)))
    )
    share = with_one - base
    return base / (1.0 - share) if share < MOST_SHARE else base


def linear_values(features: Features, weights: Array, points: Array) -> Array:
    """φᵀw + c of points [place, coordinate], for several w [fit, weight]."""
    parts = [points[first : first + BLOCK] for first in range(0, max(1, len(points)), BLOCK)]
    return np.concatenate([feature_rows(features, part) @ weights.T for part in parts]).T


def feature_rows(features: Features, state: Array) -> scipy.sparse.csr_array:
    """Rows of features, all finite, and 1."""
    rows, size = features.rows(state), features.size
    if not np.isfinite(rows.values).all():
        raise InputError("state", "not finite", "must hold finite numbers only")
    ends = rows.indptr[1:]
    values, indices = np.insert(rows.values, ends, 1.0), np.insert(rows.indices, ends, size)
    first = rows.indptr + np.arange(rows.indptr.size)
    return scipy.sparse.csr_array((values, indices, first), shape=(ends.size, size + 1))
