"""Steps of the MDP that keep a bracket around the law of the return, on a grid for each state.

X = G − g is the deviation of the return from its mean in each state, X(s) = ε + dX(s′) on an edge
with d = ηγ′λ′. Its stop-loss function

    W(x) = E(x − X)₊ for x ≤ 0,  E(X − x)₊ for x > 0,      ψ(x) = E(x − X)₊ = W(x) + x₊,

decides the convex order: μ ≤ ν if and only if ψ_μ ≤ ψ_ν, for equal means. One step makes

    ψ(x) = Σ b dψ′((x − ε)/d),

which is monotone and linear. Known on a grid, ψ is below its chords (mass spread over the two grid
points around it) and above its tangents (mass of a cell gathered at its mean). So from a function
above ψ, steps with chords stay above it, and from lines below ψ, steps with tangents stay below.

Normal noise is a step of its own, to atoms: those of a law above the normal one, and of one below.

A grid is an array of points [state, point] in order; 0 is one of them, neither first nor last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from retvar.mdp import WeightedEdges
from retvar.mdp.linear import Apply, Resolvent
from retvar.td.jit import compiled

__all__ = ["Lines", "Steps", "gather", "grid_like", "spread"]

Array = NDArray[np.float64]
Integers = NDArray[np.intp]
Mask = NDArray[np.bool_]
FARTHEST_NOISE = 9.0  # std; what is beyond is less than rounding


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


def grid_like(z: Array, weight: Array, low: Array, high: Array, m: int) -> Array:
    """Points from `low` to `high`, each gap with the same share of the weights of gaps of z."""
    points = np.empty((len(z), m))
    for s, (x, w) in enumerate(zip(z, weight, strict=True)):
        w = np.maximum(w, 0.02 * w.sum() * np.diff(x) / (x[-1] - x[0]))
        total = np.append(0.0, np.cumsum(w))
        first, last = np.interp([low[s], high[s]], x, total)
        points[s] = np.interp(np.linspace(float(first), float(last), m), total, x)
        points[s, [0, -1]] = low[s], high[s]
        points[s, np.argmin(np.abs(points[s, 1:-1])) + 1] = 0.0
    return points


def normal_atoms(count: int) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Atoms and probabilities of laws above and below a standard normal one, in convex order.

    Between points its mass is spread over both, or gathered at its mean; they lie so that the
    variances differ least, by 8.2/count².

    >>> (above, p), (below, q) = normal_atoms(100)
    >>> bool(1 < p @ above**2 < 1.0006), bool(0.9997 < q @ below**2 < 1)
    (True, True)
    """
    tail = ndtr(-FARTHEST_NOISE / np.sqrt(3))
    t = np.sqrt(3) * ndtri(np.linspace(tail, 0.5, count // 2 + 1))
    t = np.append(t[:-1], -t[::-1])
    density, cumulated = np.exp(-t * t / 2) / np.sqrt(2 * np.pi), ndtr(t)
    rise = np.diff(density + t * cumulated) / np.diff(t)
    density[[0, -1]], cumulated[[0, -1]] = 0.0, (0.0, 1.0)
    mass = np.diff(cumulated)
    middle = np.clip(-np.diff(density) / mass, t[:-1], t[1:])
    return (t, np.diff(rise, prepend=0.0, append=1.0)), (middle, mass)


class Columns(NamedTuple):
    """X(s) = ε + dX(s′) with probability b, on edges sorted by state."""

    state: Integers
    next_state: Integers
    b: Array
    d: Array
    epsilon: Array


@dataclass(frozen=True, eq=False)
class Steps:
    """The steps above and below; from `states` on, each state is what noise of one σ is added to.

    All X have mean 0.
    """

    states: int  #: of the MDP
    n: int
    above: Columns
    below: Columns
    variance: Array

    @classmethod
    def of(cls, edges: WeightedEdges, epsilon: Array, variance: Array, atoms: int) -> Steps:
        """Merge edges that are alike; states whose variance is NaN have X = 0."""
        kept = np.isfinite(variance)[edges.state]
        columns = edges.eta * edges.reward_std, edges.next_state, edges.decay, epsilon
        table = np.stack([edges.state, *(np.where(kept, x, 0.0) for x in columns)], axis=1)
        merged, which = np.unique(table, axis=0, return_inverse=True)
        b = np.bincount(which.ravel(), edges.b).astype(np.float64)
        s, sigma, after, d, epsilon = np.ascontiguousarray(merged.T)
        state, after = s.astype(np.intp), after.astype(np.intp)
        noisy = sigma > 0
        first = np.append(True, (np.diff(s) != 0) | (np.diff(sigma) != 0)) & noisy
        row, rows = edges.n - 1 + np.cumsum(first)[noisy], state[first]
        n = edges.n + rows.size
        share = np.bincount(row, b[noisy], n)[edges.n :]
        mean = np.bincount(row, (b * epsilon)[noisy], n)[edges.n :] / share
        state[noisy] = row
        b[noisy] /= share[row - edges.n]
        epsilon[noisy] -= mean[row - edges.n]
        variance = np.append(np.nan_to_num(variance), np.zeros(rows.size))
        inside = b * (epsilon**2 + d**2 * variance[after])
        variance[edges.n :] = np.bincount(state, inside, n)[edges.n :]
        plain = Columns(state, after, b, d, epsilon)
        sides: list[Columns] = []
        for t, p in normal_atoms(atoms) if rows.size else [(np.zeros(0), np.zeros(0))] * 2:
            noise = (
                np.repeat(rows, t.size), np.repeat(np.arange(edges.n, n), t.size),
                np.outer(share, p).ravel(), np.ones(rows.size * t.size),
                (mean[:, None] + np.outer(sigma[first], t)).ravel(),
            )  # fmt: skip
            whole = [np.append(*pair) for pair in zip(plain, noise, strict=True)]
            order = np.argsort(whole[0], kind="stable")
            sides.append(Columns(*(x[order] for x in whole)))
        return cls(edges.n, n, sides[0], sides[1], variance)

    def matrix(self, power: int) -> scipy.sparse.csr_array:
        """Sparse matrix of Σ b dᵏ from s to s′."""
        e = self.above
        where = e.state, e.next_state
        return scipy.sparse.coo_array((e.b * e.d**power, where), shape=(self.n, self.n)).tocsr()

    def resolvent(self, power: int) -> Apply:
        """(I − M)⁻¹ for this matrix; noise leads to states of the MDP alone, and is eliminated."""
        M, k = self.matrix(power), self.states
        to_noise, from_noise = M[:k, k:], M[k:, :k]
        states = Resolvent((M[:k, :k] + to_noise @ from_noise).tocsr())

        def solve(b: Array) -> Array:
            x = states.solve(b[:k] + to_noise @ b[k:]).x
            return np.append(x, b[k:] + from_noise @ x)

        return solve

    def extremes(self, most: Array) -> tuple[Array, Array]:
        """The least and greatest X of each state, as far as `most` from 0, as steps go on."""
        e, ends = self.above, []
        first = np.searchsorted(e.state, np.arange(self.n))
        for sign in (-1.0, 1.0):
            x = np.zeros(self.n)
            for _ in range(2_000):
                step = sign * e.epsilon + e.d * x[e.next_state]
                x, before = np.clip(np.maximum.reduceat(step, first), 0.0, most), x
                if not (np.abs(x - before) > 1e-14 * x).any():
                    break
            ends.append(sign * x)
        return ends[0], ends[1]


@compiled
def spread(points: Any, edges: Any, W: Any) -> Any:
    """A function above W after one step: each edge takes a chord between two points."""
    state, after, b, d, epsilon = edges
    new, last = np.zeros_like(W), points.shape[1] - 1
    rise = (W[:, 1:] - W[:, :-1]) / (points[:, 1:] - points[:, :-1])
    for e in range(b.size):
        s, a, k = state[e], after[e], 0
        inverse = 1 / d[e] if d[e] > 1e-300 else 0.0
        for j in range(last + 1):
            past = points[s, j] - epsilon[e]
            y = min(max(past * inverse, points[a, 0]), points[a, last])
            while k < last - 1 and points[a, k + 1] <= y:
                k += 1
            rest = d[e] * (W[a, k] + rise[a, k] * (y - points[a, k]))
            new[s, j] += b[e] * (rest + max(past if points[s, j] <= 0 else -past, 0.0))
    return new


@compiled
def gather(points: Any, edges: Any, height: Any, slope: Any) -> Any:
    """Lines below ψ after one step: each edge takes that of the nearer point."""
    state, after, b, d, epsilon = edges
    last = points.shape[1] - 1
    new, turned = np.zeros_like(height), np.where(points > 0, -1.0, 0.0)
    for e in range(b.size):
        s, a, k = state[e], after[e], 0
        inverse = 1 / d[e] if d[e] > 1e-300 else np.inf
        for j in range(last + 1):
            past = points[s, j] - epsilon[e]
            found, rise = max(past if points[s, j] <= 0 else -past, 0.0), 1.0 * (past > 0)
            y = past * inverse
            if points[a, 0] <= y <= points[a, last]:
                while k < last and points[a, k] + points[a, k + 1] < 2 * y:
                    k += 1
                turn = slope[a, k] - (points[a, k] == 0 and y > 0)
                found += d[e] * (height[a, k] + turn * (y - points[a, k]))
                rise = slope[a, k] + (points[a, k] > 0)
            new[s, j] += b[e] * found
            turned[s, j] += b[e] * rise
    return new, turned
