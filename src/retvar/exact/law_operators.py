"""Steps of the MDP that keep a bracket around the law of the return, on a grid for each state.

X = G − g is the deviation of the return from its mean in each state, X(s) = ε + σN + dX(s′) on an
edge with c = ηγ′λ′ = d and normal noise N. Its stop-loss function

    W(x) = E(x − X)₊ for x ≤ 0,  E(X − x)₊ for x > 0,      ψ(x) = E(x − X)₊ = W(x) + x₊,

decides the convex order: μ ≤ ν if and only if ψ_μ ≤ ψ_ν, for equal means. One step makes

    ψ(x) = Σ b E[dψ′((x − ε − σN)/d)],

which is monotone and linear. Known on a grid, ψ is below its chords (mass spread over the two grid
points around it) and above its tangents (mass of a cell gathered at its mean). So from a function
above ψ, steps with chords stay above it, and from lines below ψ, steps with tangents stay below.

A grid is an array of points [state, point] in order; 0 is one of them, neither first nor last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.fft
import scipy.sparse
from numpy.typing import NDArray
from scipy.special import ndtr

from retvar.mdp import WeightedEdges
from retvar.td.jit import compiled

__all__ = ["Lines", "Operators", "Steps", "grid_like"]

Array = NDArray[np.float64]
Integers = NDArray[np.intp]
Mask = NDArray[np.bool_]


class Lines(NamedTuple):
    """Lines below ψ, one through each grid point: [state, point]."""

    height: Array  #: at its point, less x₊
    slope: Array  #: less 1 right of 0

    def at(self, old: Array, new: Array) -> Lines:
        """The nearest lines at the points of another grid; that of a constant beyond the ends."""
        found = Lines(np.zeros_like(new), np.zeros_like(new))
        for s, (z, x) in enumerate(zip(old, new, strict=True)):
            within = (x >= z[0]) & (x <= z[-1])
            k = np.searchsorted((z[1:] + z[:-1]) / 2, x)
            slope = self.slope[s, k] - ((z[k] == 0) & (x > 0))
            found.slope[s] = np.where(within, slope, 0.0)
            found.height[s] = np.where(within, self.height[s, k] + slope * (x - z[k]), 0.0)
        return found


def grid_like(z: Array, weight: Array, low: Array, high: Array, m: int, even: Mask) -> Array:
    """Points from `low` to `high`, each gap with the same share of the weights of gaps of z.

    Where it is to be even, a grid goes on beyond its ends so that 0 is one of its points.
    """
    points = np.empty((len(z), m))
    for s, (x, w) in enumerate(zip(z, weight, strict=True)):
        if even[s]:
            zero = min(max(round(-low[s] / (high[s] - low[s]) * (m - 1)), 1), m - 2)
            spacing = max(-low[s] / zero, high[s] / (m - 1 - zero))
            points[s] = (np.arange(m) - zero) * spacing
            continue
        w = np.maximum(w, 0.02 * w.sum() * np.diff(x) / (x[-1] - x[0]))
        total = np.append(0.0, np.cumsum(w))
        first, last = np.interp([low[s], high[s]], x, total)
        points[s] = np.interp(np.linspace(float(first), float(last), m), total, x)
        points[s, [0, -1]] = low[s], high[s]
        points[s, np.argmin(np.abs(points[s, 1:-1])) + 1] = 0.0
    return points


@dataclass(frozen=True, eq=False)
class Steps:
    """X(s) = ε + σN + dX(s′): equal edges merged; a row is a state with one σ."""

    n: int
    state: Integers  #: of each edge, sorted
    row: Integers  #: of each edge, sorted
    next_state: Integers
    b: Array
    d: Array
    epsilon: Array
    row_state: Integers  #: of each row
    sigma: Array  #: of each row

    @classmethod
    def of(cls, edges: WeightedEdges, epsilon: Array, used: Mask) -> Steps:
        """Merge edges that are alike; states that are not `used` have X = 0."""
        columns = [edges.eta * edges.reward_std, edges.next_state, edges.decay, epsilon]
        kept = used[edges.state]
        table = np.stack([edges.state, *(np.where(kept, x, 0.0) for x in columns)], axis=1)
        merged, which = np.unique(table, axis=0, return_inverse=True)
        b = np.bincount(which.ravel(), edges.b).astype(np.float64)
        state, sigma, after, d, epsilon = np.ascontiguousarray(merged.T)
        first = np.append(True, (np.diff(state) != 0) | (np.diff(sigma) != 0))
        s, row = state.astype(np.intp), np.cumsum(first) - 1
        return cls(edges.n, s, row, after.astype(np.intp), b, d, epsilon, s[first], sigma[first])

    def matrix(self, x: Array) -> scipy.sparse.csr_array:
        """Sparse matrix of Σ b x from s to s′."""
        where = self.state, self.next_state
        return scipy.sparse.coo_array((self.b * x, where), shape=(self.n, self.n)).tocsr()

    def by_row(self, x: Array) -> Array:
        """Sums over the edges of each row, as a column."""
        return np.asarray(np.bincount(self.row, x), dtype=np.float64)[:, None]

    @property
    def noisy(self) -> Mask:
        """States with noise."""
        return np.bincount(self.row_state, self.sigma, self.n) > 0

    def extremes(self, most: Array) -> tuple[Array, Array]:
        """The least and greatest X of each state, as far as `most` from 0, as steps go on."""
        first = np.searchsorted(self.state, np.arange(self.n))
        reach = 9.0 * self.sigma[self.row]
        ends = []
        for sign in (-1.0, 1.0):
            x = np.zeros(self.n)
            for _ in range(2_000):
                step = reach + sign * self.epsilon + self.d * x[self.next_state]
                x, before = np.clip(np.maximum.reduceat(step, first), 0.0, most), x
                if not (np.abs(x - before) > 1e-14 * x).any():
                    break
            ends.append(sign * x)
        return ends[0], ends[1]


class Operators:
    """One step of both sides of the bracket."""

    def __init__(self, steps: Steps, points: Array) -> None:
        self._steps, self._points = steps, points
        self._noise = Noise(steps, points) if steps.noisy.any() else None
        live, rows = np.count_nonzero(steps.d), np.count_nonzero(steps.sigma)
        self.work = points.shape[1] * (1 + 5 * live + 100 * rows)  #: multiplications of a step

    def __call__(self, W: Array, lines: Lines) -> tuple[Array, Lines]:
        """A function above W and lines below ψ, after one step."""
        s, points = self._steps, self._points
        right = points[s.row_state] > 0
        share, mean = s.by_row(s.b) * right, s.by_row(s.b * s.epsilon) * right
        own = -mean if self._noise else 0.0 * mean  # of all rows of a state: 0
        rows: tuple[Array, ...] = own, own.copy(), -share
        step(points, (s.state, s.row, s.next_state, s.b, s.d, s.epsilon), (W, *lines), rows)
        if self._noise is not None:
            first = np.searchsorted(s.row_state, np.arange(s.n))
            rows = tuple(np.add.reduceat(x, first, axis=0) for x in self._noise.add(*rows))
        return rows[0], Lines(*rows[1:])


@compiled
def step(points: Any, edges: Any, now: Any, new: Any) -> None:
    """Add what each edge brings: a chord between two points, and the line of the nearer one."""
    state, row, after, b, d, epsilon = edges
    (W, height, slope), m = now, points.shape[1]
    for e in range(b.size):
        s, r, a, k = state[e], row[e], after[e], 0
        for j in range(m):
            z, past = points[s, j], points[s, j] - epsilon[e]
            own = b[e] * max(past if z <= 0 else -past, 0.0)
            new[0][r, j] += own
            new[1][r, j] += own
            if d[e] == 0:
                new[2][r, j] += b[e] * (past > 0)
                continue
            y = past / d[e]
            while k < m - 2 and points[a, k + 1] <= y:
                k += 1
            t = (y - points[a, k]) / (points[a, k + 1] - points[a, k])
            u = min(max(t, 0.0), 1.0)
            new[0][r, j] += b[e] * d[e] * ((1 - u) * W[a, k] + u * W[a, k + 1])
            if t != u:
                new[2][r, j] += b[e] * (t > 1)
                continue
            near = k + (t > 0.5)
            at = points[a, near]
            turn = slope[a, near] - (at == 0 and y > 0)
            new[1][r, j] += b[e] * d[e] * (height[a, near] + turn * (y - at))
            new[2][r, j] += b[e] * (slope[a, near] + (at > 0))


class Noise:
    """Adds normal noise to the rows; the grids are even there.

    Between grid points a function is its chords, in a cell it is the cell's line. The expectation
    over the noise is then a sum over points with weights that depend on their distance alone.
    """

    def __init__(self, steps: Steps, points: Array) -> None:
        self._rows = np.flatnonzero(steps.sigma)
        z, sigma = points[steps.row_state[self._rows]], steps.sigma[self._rows, None]
        self._m = m = points.shape[1]
        self._size = scipy.fft.next_fast_len(2 * m, real=True)
        h, lag = z[:, 1:2] - z[:, :1], np.arange(m)
        tau = sigma / h
        share, mean = (steps.by_row(x)[self._rows] for x in (steps.b, steps.b * steps.epsilon))
        cell = ndtr((0.5 - lag) / tau) - ndtr((-0.5 - lag) / tau)
        moved = lag * cell + tau * (_density((lag + 0.5) / tau) - _density((lag - 0.5) / tau))
        self._hat, self._cell = self._kernel(_hat(lag, tau)), self._kernel(cell)
        self._moved = self._kernel(h * moved, -1.0)
        self._ramp = tau * (_gain((1 - lag) / tau) - _gain(-lag / tau))  # what the end takes
        i = lag - np.count_nonzero(z < 0, axis=1)[:, None]  # distance from 0
        half = i * (ndtr((0.5 - i) / tau) - ndtr(-i / tau))
        half += tau * (_density(i / tau) - _density((0.5 - i) / tau))
        self._added = share * sigma * _gain(-np.abs(i) / tau)
        self._height = self._added - share * h * half - mean * ndtr((lag - m + 0.5) / tau)
        self._slope = share * (ndtr((i - 0.5) / tau) - (i > 0))

    def add(self, *rows: Array) -> tuple[Array, ...]:
        """Rows of W, heights and slopes, with noise."""
        W, height, slope = (x[self._rows] for x in rows)
        inner = np.pad(W[:, 1:-1], ((0, 0), (1, 1)))
        ends = W[:, :1] * self._ramp + W[:, -1:] * self._ramp[:, ::-1]
        inner, height, slope = (scipy.fft.rfft(x, self._size) for x in (inner, height, slope))
        found = (
            self._back(inner * self._hat) + self._added + ends,
            self._back(height * self._cell + slope * self._moved) + self._height,
            self._back(slope * self._cell) + self._slope,
        )
        for x, new in zip(rows, found, strict=True):
            x[self._rows] = new
        return rows

    def _kernel(self, right: Array, sign: float = 1.0) -> NDArray[np.complex128]:
        """The transform of a kernel from its values at lags ≥ 0; `sign` times them on the left."""
        kernel = np.zeros((right.shape[0], self._size))
        kernel[:, : self._m] = right
        kernel[:, self._size - self._m + 1 :] = sign * right[:, :0:-1]
        return np.asarray(scipy.fft.rfft(kernel))

    def _back(self, x: NDArray[np.complex128]) -> Array:
        return np.asarray(scipy.fft.irfft(x, self._size)[:, : self._m])


def _density(x: Array) -> Array:
    return np.asarray(np.exp(-0.5 * np.minimum(x * x, 1_400.0)) / np.sqrt(2 * np.pi))


def _gain(x: Array) -> Array:
    """E(x + N)₊ = φ(x) + xΦ(x)."""
    return np.asarray(np.maximum(_density(x) + x * ndtr(x), 0.0))


def _hat(lag: Integers, tau: Array) -> Array:
    """E(1 − |lag + τN|)₊."""
    centre = 1 + 2 * tau * (_gain(-1 / tau) - _gain(np.zeros(1)))
    side = tau * (_gain(-(lag + 1) / tau) - 2 * _gain(-lag / tau) + _gain((1 - lag) / tau))
    return np.maximum(np.where(lag == 0, centre, side), 0.0)
