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
import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from retvar.support.errors import ConvergenceError, InputError
from retvar.td.features import Features
from retvar.td.jit import compiled

__all__ = [
    "EpisodeLog", "FeatureValues", "completed_returns", "feature_values", "gathered",
    "linear_values", "missing_variances", "room",
]  # fmt: skip

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Chunk = dict[str, NDArray[Any]]
LARGE = 128 * 2**20  # bytes from which an array lies in a file
BLOCK = 65_536  # rows that are looked at together
SAME = 1e-6  # share of a coordinate's std up to which two states are the same
SEGMENT = 3.0  # a segment is as long as its Σ(1 − γ) stays below this
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
class EpisodeLog:
    """Transitions between points, one episode after the other.

    An episode ends where it is terminated or truncated, and where the next row does not begin in
    the state that was reached.
    """

    state: Array  #: [row, coordinate]
    reward: Array
    discount: Array  #: γ of what follows, 0 where the episode terminated
    terminated: Mask
    cut: Mask  #: where the episode went on unseen
    end_state: Array  #: state that followed each cut
    segment: NDArray[np.int64]  #: number of the segment; episodes are split every 3/(1 − γ) steps

    @classmethod
    def of(cls, chunks: Iterable[Chunk], rows: int | None = None) -> EpisodeLog:
        """The log of some chunks, with so many rows in all where that is known."""
        if rows is None:
            chunks = list(chunks)
            rows = sum(len(chunk["reward"]) for chunk in chunks)
        if not rows:
            raise InputError("experience", "no transition", "there is nothing to estimate from")
        columns = gathered(chunks, rows)
        state, following, terminated = (columns[n] for n in ("state", "next_state", "terminated"))
        cut = np.asarray(columns["truncated"]) & ~terminated
        cut[-1] |= not terminated[-1]
        tolerance = SAME * state.std(axis=0)
        for first in range(0, rows - 1, BLOCK):
            here = slice(first, min(first + BLOCK, rows - 1))
            gap = np.abs(following[here] - state[first + 1 : here.stop + 1])
            cut[here] |= ~(gap <= tolerance).all(axis=1) & ~terminated[here]
        discount = np.where(terminated, 0.0, columns["gamma"])
        segment = np.empty(rows, dtype=np.int64)
        number_segments(discount, terminated, cut, segment)
        ends = np.array(following[cut])
        return cls(state, columns["reward"], discount, terminated, cut, ends, segment)

    def __len__(self) -> int:
        return len(self.reward)

    @property
    def segments(self) -> int:
        """How many segments there are."""
        return int(self.segment[-1]) + 1


def gathered(chunks: Iterable[Chunk], rows: int) -> Chunk:
    """The columns of some chunks, with so many rows in all."""
    columns: Chunk = {}
    done = 0
    for chunk in chunks:
        n = len(chunk["reward"])
        for name, column in chunk.items():
            if name not in columns:
                columns[name] = room((rows, *column.shape[1:]), column.dtype)
            columns[name][done : done + n] = column
        done += n
    return columns


def room(shape: int | tuple[int, ...], dtype: Any = np.float64) -> NDArray[Any]:
    """An array to be filled: in memory, or in a temporary file if it is large."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    if size <= LARGE:
        return np.empty(shape, dtype=dtype)
    try:
        with tempfile.TemporaryFile(prefix="retvar-") as file:  # mapped, it stays until that goes
            if hasattr(os, "posix_fallocate"):  # a full disk raises here, not when it is used
                os.posix_fallocate(file.fileno(), 0, size)
            return np.memmap(file, dtype=dtype, mode="w+", shape=shape)
    except OSError as error:
        remedy = f"has no room for {size:,} bytes ({error.strerror}); set TMPDIR"
        raise InputError("folder", tempfile.gettempdir(), remedy) from None


@compiled
def number_segments(discount: Any, terminated: Any, cut: Any, segment: Any) -> None:
    """Number the segments: a new one with each episode, and after 3/(1 − γ) steps."""
    number, passed = 0, 0.0
    for t in range(discount.size):
        segment[t] = number
        passed += 1.0 - discount[t]
        if terminated[t] or cut[t] or passed >= SEGMENT - 1e-9:
            number, passed = number + 1, 0.0


class Design:
    """The features of many points, Φ [row, feature], as least squares needs them.

    Sparse rows are held; where most features are active, ΦᵀΦ is formed and the rows are made anew
    whenever they are needed. Weights w have the intercept c as their last number.
    """

    def __init__(self, features: Features, state: Array) -> None:
        self.features, self._state = features, state
        size = features.size
        self.sums, self.squares = np.zeros(size), np.zeros(size)  #: Σφ and Σφ² of each feature
        self.largest_square, entries = 0.0, 0  #: largest φᵀφ of a row
        for first in range(0, len(self), BLOCK):
            block = self._made(first)
            squares = block.data * block.data
            self.sums += np.bincount(block.indices, block.data, minlength=size)
            self.squares += np.bincount(block.indices, squares, minlength=size)
            norms = np.bincount(
                np.repeat(np.arange(block.shape[0]), np.diff(block.indptr)), squares
            )
            self.largest_square = max(self.largest_square, float(norms.max(initial=0.0)))
            entries += squares.size
        dense = size <= MOST_DENSE and entries > DENSE * max(1, len(self) * size)
        self._held = None if dense else self._hold(entries)
        self._gram = sum(block.T @ block for _, block in self._blocks()) if dense else None

    def __len__(self) -> int:
        return len(self._state)

    def _made(self, first: int) -> scipy.sparse.csr_array:
        return _rows(self.features, self._state[first : first + BLOCK])

    def _hold(self, entries: int) -> list[scipy.sparse.csr_array]:
        """The rows, in memory or in files."""
        indices, data, done, found = room(entries, np.int32), room(entries), 0, []
        for first in range(0, len(self), BLOCK):
            block = self._made(first)
            here = slice(done, done + block.nnz)
            indices[here], data[here], done = block.indices, block.data, here.stop
            parts = data[here], indices[here], block.indptr.astype(np.int32)
            found.append(scipy.sparse.csr_array(parts, shape=block.shape))
        return found

    def _blocks(self) -> Iterator[tuple[slice, Any]]:
        """All rows, some at a time: as they are held, or dense."""
        for k, first in enumerate(range(0, len(self), BLOCK)):
            block = self._made(first).toarray() if self._held is None else self._held[k]
            yield slice(first, first + block.shape[0]), block

    def values(self, weights: Array) -> Array:
        """Φw + c."""
        found = np.empty(len(self))
        for here, block in self._blocks():
            found[here] = block @ weights[:-1]
        found += weights[-1]
        return found

    def transposed(self, y: Array) -> Array:
        """Φᵀy."""
        found = np.zeros(self.features.size)
        for here, block in self._blocks():
            found += block.T @ y[here]
        return found

    def normal(self, x: Array) -> Array:
        """ΦᵀΦx."""
        if self._gram is not None:
            return np.asarray(self._gram @ x)
        found = np.zeros_like(x)
        for _, block in self._blocks():
            found += block.T @ (block @ x)
        return found

    def regress(self, y: Array, ridge: float, start: Array, precision: float = 0.0) -> Array:
        """Ridge regression of y with a free intercept, by preconditioned conjugate gradients.

        It stops where the fitted values are within `precision` of the solution's, root mean square.
        """
        n, penalty = len(self), ridge * self.largest_square
        error = y - self.values(start)
        residual = np.append(self.transposed(error) - penalty * start[:-1], error.sum())
        diagonal = np.append(self.squares + penalty, n)
        diagonal[diagonal == 0.0] = 1.0

        def product(v: Array) -> Array:
            top = self.normal(v[:-1]) + penalty * v[:-1] + v[-1] * self.sums
            return np.append(top, _dot(self.sums, v[:-1]) + n * v[-1])

        goal = n * precision**2, LEAST_RESIDUAL * _dot(y, y)
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


@dataclass(frozen=True)
class FeatureValues:
    """A value function with features, and how far the returns of its log strayed from it."""

    weights: Array
    log: EpisodeLog
    design: Design  #: features of the states of the log
    ends: Design  #: features of the states where it was cut

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
    def end_variance(self) -> Array:
        """The variance at the end of each cut, by a smooth regression of the squared errors."""
        if not len(self.ends):
            return np.zeros(0)
        squares = self.error**2
        start, precision = np.zeros_like(self.weights), 0.01 * float(squares.std())
        smooth = self.design.regress(squares, TAIL_RIDGE, start, precision)
        return np.maximum(self.ends.values(smooth), 0.0)


def feature_values(log: EpisodeLog, features: Features) -> FeatureValues:
    """The value function of the policy that made a log: LSTD(κ) with ridge, on-policy, λ = 1.

    Repeats λ-returns and regression until the values no longer change.
    """
    design, ends = Design(features, log.state), Design(features, log.end_state)
    weights = np.append(np.zeros(features.size), _constant(log))
    value, end_value, change = design.values(weights), ends.values(weights), math.inf
    for _ in range(MOST_ITERATIONS):
        target = lambda_returns(*_columns(log), value, end_value, KAPPA)
        size = max(float(target.std()), LEVEL * math.sqrt(float(np.mean(target**2))))
        precision = FINER * max(TOLERANCE * size, min(change, size))
        weights = design.regress(target, RIDGE, weights, precision)
        before, value, end_value = value, design.values(weights), ends.values(weights)
        change = math.sqrt(float(np.mean((value - before) ** 2)))
        if change <= TOLERANCE * size:
            return FeatureValues(weights, log, design, ends)
        if not math.isfinite(change):
            break
    problem = f"the values still change by {change / size:.2g} of their std"
    raise ConvergenceError(f'least squares with features: {problem}; take by="td"')


def _constant(log: EpisodeLog) -> float:
    """The constant that is the mean of its own λ-returns: where the iteration starts."""
    rewards, *ends = _columns(log)
    zeros, ones = np.zeros(len(log)), np.ones(len(log))
    own = lambda_returns(rewards, *ends, zeros, np.zeros(len(log.end_state)), KAPPA)
    shared = lambda_returns(zeros, *ends, ones, np.ones(len(log.end_state)), KAPPA)
    base, share = float(own.mean()), float(shared.mean())
    return base / (1.0 - share) if share < MOST_SHARE else base


def completed_returns(log: EpisodeLog, end_value: Array) -> Array:
    """The return of each row, completed with these values where an episode was cut."""
    found: Array = lambda_returns(*_columns(log), np.zeros(len(log)), end_value, 1.0)
    return found


def missing_variances(log: EpisodeLog, end_variance: Array) -> Array:
    """The variance that each row's return lacks where the episode was cut: Πγ² V(end)."""
    zeros, (_, discount, *ends) = np.zeros(len(log)), _columns(log)
    found: Array = lambda_returns(zeros, discount**2, *ends, zeros, end_variance, 1.0)
    return found


def linear_values(features: Features, weights: Array, points: Array) -> Array:
    """φᵀw + c of points [place, coordinate]."""
    return np.asarray(_rows(features, points) @ weights[:-1] + weights[-1])


def _columns(log: EpisodeLog) -> tuple[Any, ...]:
    return log.reward, log.discount, log.terminated, log.cut


def _rows(features: Features, state: Array) -> scipy.sparse.csr_array:
    """Rows of features, all finite."""
    rows = features.rows(state)
    if not np.isfinite(rows.values).all():
        raise InputError("state", "not finite", "must hold finite numbers only")
    shape = rows.indptr.size - 1, features.size
    return scipy.sparse.csr_array((rows.values, rows.indices, rows.indptr), shape=shape)


@compiled
def lambda_returns(
    reward: Any, discount: Any, terminated: Any, cut: Any, value: Any, end_value: Any, kappa: Any
) -> Any:
    """The λ-return of each row; where an episode was cut, the value of its end is taken."""
    following, value_after, found = 0.0, 0.0, np.empty(reward.size)
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
    return found
