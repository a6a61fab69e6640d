"""Two operators on local grids that keep a bracket around the law of the return.

X = G − g is the deviation of the return from its mean in each state, X(s) = ε + σN + dX(s′) on an
edge with c = ηγ′λ′ = d and normal noise N. Its stop-loss function

    W(x) = E(x − X)₊ for x ≤ 0,  E(X − x)₊ for x > 0,      ψ(x) = E(x − X)₊ = W(x) + x₊,

decides the convex order: μ ≤ ν if and only if ψ_μ ≤ ψ_ν, for equal means. One step makes

    ψ(x) = Σ b E[dψ′((x − ε − σN)/d)],

which is monotone and linear. Known on a grid, ψ is below its chords (mass spread over the two grid
points around it) and above its tangents (mass of a cell gathered at its mean). So from a function
above ψ, steps with chords stay above it, and from lines below ψ, steps with tangents stay below.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy.fft
import scipy.sparse
from numpy.typing import NDArray
from scipy.special import ndtr

from retvar.mdp import WeightedEdges

__all__ = ["Grid", "Lines", "Operators", "Steps"]

Array = NDArray[np.float64]
Integers = NDArray[np.intp]
Mask = NDArray[np.bool_]
BLOCK = 2_000_000  # entries that are worked on at once
HUGE = 1e300


class Lines(NamedTuple):
    """Lines below ψ, one through each grid point: [state, point]."""

    height: Array  #: at its point, less x₊
    slope: Array  #: less 1 right of 0


@dataclass(frozen=True, eq=False)
class Grid:
    """Points of each state, in order; 0 is one of them, neither the first nor the last."""

    points: Array  #: [state, point]
    zero: Integers  #: index of 0

    @classmethod
    def even(cls, low: Array, high: Array, m: int) -> Grid:
        """Evenly spaced points, beyond the ends where 0 needs it."""
        zero = np.clip(np.rint(-low / (high - low) * (m - 1)), 1, m - 2).astype(np.intp)
        spacing = np.maximum(-low / zero, high / (m - 1 - zero))
        return cls(np.asarray((np.arange(m) - zero[:, None]) * spacing[:, None], float), zero)

    @classmethod
    def spread_like(cls, z: Array, weight: Array, low: Array, high: Array, m: int) -> Grid:
        """Points from `low` to `high`, each gap with the same share of the weights of gaps of z."""
        points = np.empty((len(z), m))
        for s, (x, w) in enumerate(zip(z, weight, strict=True)):
            w = np.maximum(w, 0.02 * w.sum() * np.diff(x) / (x[-1] - x[0]))
            total = np.append(0.0, np.cumsum(w))
            first, last = np.interp([low[s], high[s]], x, total)
            points[s] = np.interp(np.linspace(float(first), float(last), m), total, x)
            points[s, [0, -1]] = low[s], high[s]
        zero = np.clip(np.argmin(np.abs(points), axis=1), 1, m - 2)
        points[np.arange(len(z)), zero] = 0.0
        return cls(points, zero)

    @property
    def m(self) -> int:
        """Number of points."""
        return int(self.points.shape[1])

    @cached_property
    def right(self) -> Mask:
        """Whether a point lies right of 0."""
        return np.asarray(np.arange(self.m) > self.zero[:, None])

    @cached_property
    def _keys(self) -> tuple[Array, Array, Array]:
        """Points in one ordered array, first points, and widths."""
        first = self.points[:, :1]
        width = self.points[:, -1:] - first
        keys = 2.0 * np.arange(len(first))[:, None] + (self.points - first) / width
        return keys.ravel(), first[:, 0], width[:, 0]

    def place(self, state: Integers, y: Array) -> tuple[Integers, Array]:
        """The point before y, and y's share of the gap; below 0 or above 1 only outside."""
        keys, first, width = self._keys
        with np.errstate(over="ignore"):
            inside = np.clip((y - first[state]) / width[state], -0.5, 1.5)
        k = np.searchsorted(keys, 2.0 * state + inside, side="right") - 1 - state * self.m
        k = np.clip(k, 0, self.m - 2)
        k = np.clip(k - (y < self.points[state, k]), 0, self.m - 2)  # rounding of the keys
        k = np.clip(k + (y > self.points[state, k + 1]), 0, self.m - 2)
        z = self.points[state, k]
        with np.errstate(over="ignore"):
            return k, np.clip((y - z) / (self.points[state, k + 1] - z), -1.0, 2.0)

    def chord(self, W: Array, points: Array) -> Array:
        """The chords of W at other points [state, point]; its ends beyond them."""
        state = np.arange(self.zero.size)[:, None]
        k, t = self.place(state, points)
        t = np.clip(t, 0, 1)
        return np.asarray(W[state, k] * (1 - t) + W[state, k + 1] * t)

    def tangent(self, lines: Lines, points: Array) -> Lines:
        """The nearest lines at other points; that of a constant beyond the ends."""
        state, right = np.arange(self.zero.size)[:, None], points > 0
        k, t = self.place(state, points)
        within, k = (t >= 0) & (t <= 1), k + (t > 0.5)
        slope = lines.slope[state, k] - ((k == self.zero[state]) & right)
        height = lines.height[state, k] + slope * (points - self.points[state, k])
        return Lines(*(np.where(within, x, 0.0) for x in (height, slope)))


@dataclass(frozen=True, eq=False)
class Steps:
    """X(s) = ε + σN + dX(s′): equal edges merged; a row is a state with one σ."""

    n: int
    state: Integers  #: of each row
    sigma: Array  #: of each row
    row: Integers  #: of each edge, sorted
    next_state: Integers
    b: Array
    d: Array
    epsilon: Array

    @classmethod
    def of(cls, edges: WeightedEdges, epsilon: Array, used: Mask) -> Steps:
        """Merge edges that are alike; states that are not `used` have X = 0."""
        sigma, d = edges.eta * edges.reward_std, edges.decay
        kept = used[edges.state]
        columns = [edges.state, *(np.where(kept, x, 0) for x in (sigma, edges.next_state, d))]
        columns.append(np.where(kept, epsilon, 0.0))
        merged, which = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
        b = np.bincount(which.ravel(), edges.b).astype(np.float64)
        first = np.append(True, np.any(np.diff(merged[:, :2], axis=0) != 0, axis=1))
        state, sigma = merged[first, 0].astype(np.intp), merged[first, 1]
        row = np.cumsum(first) - 1
        return cls(edges.n, state, sigma, row, merged[:, 2].astype(np.intp), b, *merged[:, 3:].T)

    @cached_property
    def of_edge(self) -> Integers:
        """The state of each edge."""
        return self.state[self.row]

    def matrix(self, x: Array) -> scipy.sparse.csr_array:
        """Sparse matrix of Σ b x from s to s′."""
        where = self.of_edge, self.next_state
        return scipy.sparse.coo_array((self.b * x, where), shape=(self.n, self.n)).tocsr()

    def extremes(self, most: Array) -> tuple[Array, Array]:
        """The least and greatest X of each state, as far as `most` from 0, as steps go on."""
        first = np.searchsorted(self.of_edge, np.arange(self.n))
        reach = 9.0 * self.sigma[self.row]
        ends = []
        for sign in (-1.0, 1.0):
            x = np.zeros(self.n)
            for _ in range(2_000):
                step = reach + sign * self.epsilon + self.d * x[self.next_state]
                new = np.clip(np.maximum.reduceat(step, first), 0.0, most)
                moved = np.abs(new - x) > 1e-14 * new
                x = new
                if not moved.any():
                    break
            ends.append(sign * x)
        return ends[0], ends[1]


class Operators:
    """One step of the bracket: `spread` for functions above ψ, `gather` for lines below."""

    def __init__(self, steps: Steps, grid: Grid) -> None:
        self.steps, self.grid = steps, grid
        live = np.flatnonzero(steps.d > 0)
        self._row, self._next = steps.row[live], steps.next_state[live]
        self._b, self._d, self._epsilon = steps.b[live], steps.d[live], steps.epsilon[live]
        self.size = live.size
        rows, m = steps.state.size, grid.m
        counts = np.bincount(self._row, minlength=rows)
        self._start = np.concatenate([[0], np.cumsum(counts)])
        ends = self._start[:-1, None] * m + counts[:, None] * np.arange(1, m + 1)
        self._indptr = np.concatenate([[0], ends.ravel()])
        self._counts = counts
        self._noise = Noise(steps, grid) if steps.sigma.any() else None
        self._constants = self._constant_parts()
        self._build()

    @property
    def entries(self) -> int:
        """Multiplications of one step of both sides."""
        return self.grid.m * int(1 + 5 * self.size + 100 * np.count_nonzero(self.steps.sigma))

    def spread(self, W: Array) -> Array:
        """One step of a function above W, which lies below its chords."""
        rows = (self._chords @ W.ravel()).reshape(-1, self.grid.m) + self._constants[0]
        return rows if self._noise is None else self._noise.spread(rows)

    def gather(self, lines: Lines) -> Lines:
        """One step of lines below ψ."""
        height, slope = (x.ravel() for x in lines)
        gathered = self._heights @ height + self._moved @ slope, self._slopes @ slope
        rows = (x.reshape(-1, self.grid.m) for x in gathered)
        new = Lines(*(x + more for x, more in zip(rows, self._constants[1:], strict=True)))
        return new if self._noise is None else self._noise.gather(new)

    def _build(self) -> None:
        """Matrices: each y takes its chord from two points, and the line of the nearer one."""
        size, m, grid = self.size * self.grid.m, self.grid.m, self.grid
        pairs, near = np.empty(2 * size, dtype=np.int32), np.empty(size, dtype=np.int32)
        chords, (heights, moved, slopes) = np.empty(2 * size), np.empty((3, size))
        _, height, slope = self._constants
        for block, where, y in self._blocks():
            after, b, row = self._next[block, None], self._b[block, None], self._row[block]
            weight = b * self._d[block, None]
            k, t = grid.place(after, y)
            within, beyond, t = (t >= 0) & (t <= 1), t > 1, np.clip(t, 0, 1)
            pairs[2 * where], pairs[2 * where + 1] = after * m + k, after * m + k + 1
            chords[2 * where], chords[2 * where + 1] = weight * (1 - t), weight * t
            k = k + (t > 0.5)
            weight = weight * within
            near[where], heights[where], slopes[where] = after * m + k, weight, b * within
            moved[where] = weight * (y - grid.points[after, k])
            zero = grid.zero[after]
            _add_by_row(height, row, -weight * y * ((k == zero) & (y > 0)))  # the slope is 1 less
            _add_by_row(slope, row, b * ((within & (k > zero)) | beyond))
        self._chords = self._matrix(chords, pairs, 2)
        self._heights, self._moved, self._slopes = (
            self._matrix(x, near, 1) for x in (heights, moved, slopes)
        )

    def _blocks(self) -> Iterator[tuple[slice, Integers, Array]]:
        """Some edges at a time: where their entries are stored, and y = (z − ε)/d."""
        m, size = self.grid.m, max(1, BLOCK // self.grid.m)
        rank = np.arange(self.size) - self._start[self._row]
        first, step = self._start[self._row] * m + rank, self._counts[self._row]
        for i in range(0, self.size, size):
            block = slice(i, i + size)
            z = self.grid.points[self.steps.state[self._row[block]]]
            with np.errstate(over="ignore"):
                y = (z - self._epsilon[block, None]) / self._d[block, None]
            y = np.clip(y, -HUGE, HUGE)
            yield block, first[block, None] + step[block, None] * np.arange(m), y

    def _matrix(self, data: Array, index: NDArray[np.int32], each: int) -> scipy.sparse.csr_array:
        shape = (self.steps.state.size * self.grid.m, self.steps.n * self.grid.m)
        indptr = (each * self._indptr).astype(np.int32)
        return scipy.sparse.csr_array((data, index, indptr), shape=shape)

    def _constant_parts(self) -> tuple[Array, Array, Array]:
        """What a step adds to W, to heights and to slopes, whatever follows: Σ b(z − ε)₊ − z₊."""
        s, grid = self.steps, self.grid
        W, slope = np.zeros((2, s.state.size, grid.m))
        size = max(1, BLOCK // grid.m)
        for i in range(0, s.row.size, size):
            block = slice(i, i + size)
            state = s.of_edge[block]
            past = grid.points[state] - s.epsilon[block, None]
            add = np.maximum(np.where(grid.right[state], -past, past), 0.0)
            _add_by_row(W, s.row[block], s.b[block, None] * add)
            ended = (past > 0) & (s.d[block, None] == 0)
            _add_by_row(slope, s.row[block], s.b[block, None] * ended)
        mean, share = (np.bincount(s.row, x) for x in (s.b * s.epsilon, s.b))
        right = grid.right[s.state]
        if np.any(s.sigma > 0):  # all rows of a state together have mean 0
            W -= mean[:, None] * right
        return W, W.copy(), slope - share[:, None] * right


def _add_by_row(total: Array, row: Integers, x: Array) -> None:
    """Add rows of x, in order of their rows of the total, to it."""
    if row.size:
        first = np.flatnonzero(np.append(True, np.diff(row) > 0))
        total[row[first]] += np.add.reduceat(x, first, axis=0)


class Noise:
    """Adds normal noise to the rows, and sums them by state; the grids are even there.

    Between grid points a function is its chords, in a cell it is the cell's line. The expectation
    over the noise is then a sum over points with weights that depend on their distance alone.
    """

    def __init__(self, steps: Steps, grid: Grid) -> None:
        self._sum = scipy.sparse.csr_array(
            (np.ones(steps.state.size), (steps.state, np.arange(steps.state.size)))
        )
        self._rows = np.flatnonzero(steps.sigma > 0)
        state, sigma = steps.state[self._rows], steps.sigma[self._rows, None]
        h = (grid.points[state, 1] - grid.points[state, 0])[:, None]
        self._size = scipy.fft.next_fast_len(2 * grid.m, real=True)
        tau, lag = sigma / h, np.arange(grid.m)
        share = np.bincount(steps.row, steps.b)[self._rows, None]
        mean = np.bincount(steps.row, steps.b * steps.epsilon)[self._rows, None]
        cell = ndtr((0.5 - lag) / tau) - ndtr((-0.5 - lag) / tau)
        moved = lag * cell + tau * (_density((lag + 0.5) / tau) - _density((lag - 0.5) / tau))
        self._hat, self._cell = (self._transform(x, x) for x in (_hat(lag, tau), cell))
        self._moved = self._transform(h * moved, -h * moved)
        self._ramp = tau * (_gain((1 - lag) / tau) - _gain(-lag / tau))  # what the end takes
        i = lag - grid.zero[state][:, None]  # distance from 0
        self._added = share * sigma * _gain(-np.abs(i) / tau)
        half = i * (ndtr((0.5 - i) / tau) - ndtr(-i / tau))
        half += tau * (_density(i / tau) - _density((0.5 - i) / tau))
        beyond = ndtr((lag - grid.m + 0.5) / tau)
        self._height = self._added - share * h * half - mean * beyond
        self._slope = share * (ndtr((i - 0.5) / tau) - grid.right[state])

    def spread(self, rows: Array) -> Array:
        """Rows above W with noise, by state."""
        x = rows[self._rows]
        inner = x.copy()
        inner[:, [0, -1]] = 0.0
        rows[self._rows] = self._back(self._forth(inner) * self._hat, x) + self._added
        rows[self._rows] += x[:, :1] * self._ramp + x[:, -1:] * self._ramp[:, ::-1]
        return np.asarray(self._sum @ rows)

    def gather(self, rows: Lines) -> Lines:
        """Lines below ψ with noise, by state."""
        height, slope = (x[self._rows] for x in rows)
        at, turning = self._forth(height), self._forth(slope)
        shifted = self._back(at * self._cell + turning * self._moved, height)
        rows.height[self._rows] = shifted + self._height
        rows.slope[self._rows] = self._back(turning * self._cell, slope) + self._slope
        return Lines(*(np.asarray(self._sum @ x) for x in rows))

    def _transform(self, right: Array, left: Array) -> NDArray[np.complex128]:
        """The transform of a kernel, from its values at lags ≥ 0 and ≤ 0."""
        kernel = np.zeros((right.shape[0], self._size))
        kernel[:, : right.shape[1]] = right
        kernel[:, self._size - right.shape[1] + 1 :] = left[:, :0:-1]
        return np.asarray(scipy.fft.rfft(kernel))

    def _forth(self, x: Array) -> NDArray[np.complex128]:
        return np.asarray(scipy.fft.rfft(x, self._size))

    def _back(self, x: NDArray[np.complex128], like: Array) -> Array:
        return np.asarray(scipy.fft.irfft(x, self._size)[:, : like.shape[1]])


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
