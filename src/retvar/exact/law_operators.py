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
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from retvar.mdp import WeightedEdges
from retvar.td.jit import compiled

__all__ = ["Columns", "Steps", "gather", "grid_like", "spread"]

Array = NDArray[np.float64]
Integers = NDArray[np.intp]
FARTHEST_NOISE = 9.0  # std; what is beyond is less than rounding


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

    @classmethod
    def of_itself(cls, d: Array, epsilon: Array) -> Columns:
        """From each state to itself; with d = 1 and ε = 0 a step to another grid."""
        return cls(np.arange(d.size), np.arange(d.size), np.ones(d.size), d, epsilon)


@dataclass(frozen=True, eq=False)
class Steps:
    """The steps above and below; after the states, each row is what noise of one σ is added to.

    All X have mean 0.
    """

    parent: Integers  #: the state that each belongs to
    variance: Array
    above: Columns
    below: Columns

    @classmethod
    def of(cls, edges: WeightedEdges, epsilon: Array, variance: Array, atoms: int) -> Steps:
        """Merge edges that are alike, and give noise of each σ so many atoms."""
        sigma = edges.eta * edges.reward_std
        table = np.stack([edges.state, sigma, edges.next_state, edges.decay, epsilon], axis=1)
        merged, which = np.unique(table, axis=0, return_inverse=True)
        b = np.bincount(which.ravel(), edges.b).astype(np.float64)
        state, after = (merged[:, k].astype(np.intp) for k in (0, 2))
        d, epsilon = merged[:, 3].copy(), merged[:, 4].copy()
        noisy = merged[:, 1] > 0
        sources, row = np.unique(merged[noisy, :2], axis=0, return_inverse=True)
        source, sigma = sources[:, 0].astype(np.intp), sources[:, 1]
        row = row.ravel()
        share = np.bincount(row, b[noisy])
        mean = np.bincount(row, (b * epsilon)[noisy]) / share
        state[noisy] = edges.n + row
        b[noisy] /= share[row]
        epsilon[noisy] -= mean[row]
        variance = np.append(variance, np.zeros(source.size))
        inside = b * (epsilon**2 + d**2 * variance[after])
        variance[edges.n :] = np.bincount(state, inside, variance.size)[edges.n :]
        parent = np.append(np.arange(edges.n), source)
        sides, rows = list[Columns](), np.arange(edges.n, parent.size)
        for t, p in normal_atoms(atoms):
            noise = (
                np.repeat(source, t.size), np.repeat(rows, t.size), np.outer(share, p).ravel(),
                np.ones(rows.size * t.size), (mean[:, None] + np.outer(sigma, t)).ravel(),
            )  # fmt: skip
            pairs = zip((state, after, b, d, epsilon), noise, strict=True)
            whole = [np.append(*pair) for pair in pairs]
            order = np.argsort(whole[0], kind="stable")
            sides.append(Columns(*(x[order] for x in whole)))
        return cls(parent, variance, *sides)

    def extremes(self, most: Array) -> tuple[Array, Array]:
        """The least and greatest X of each state, as far as `most` from 0, as steps go on."""
        e, ends = self.above, []
        first = np.searchsorted(e.state, np.arange(most.size))
        for sign in (-1.0, 1.0):
            x = np.zeros(most.size)
            for _ in range(2_000):
                step = sign * e.epsilon + e.d * x[e.next_state]
                x, before = np.clip(np.maximum.reduceat(step, first), 0.0, most), x
                if not (np.abs(x - before) > 1e-14 * x).any():
                    break
            ends.append(sign * x)
        return ends[0], ends[1]


@compiled
def spread(points: Any, before: Any, edges: Any, W: Any) -> Any:
    """A function above W after one step: each edge takes a chord between two points.

    `before` are the points of W, some of which may coincide.
    """
    state, after, b, d, epsilon = edges
    new, last = np.zeros_like(points), before.shape[1] - 1
    gap = before[:, 1:] - before[:, :-1]
    rise = (W[:, 1:] - W[:, :-1]) / np.where(gap > 0, gap, np.inf)
    for e in range(b.size):
        s, a, k = state[e], after[e], 0
        inverse = 1 / d[e] if d[e] > 1e-300 else 0.0
        for j in range(points.shape[1]):
            past = points[s, j] - epsilon[e]
            y = min(max(past * inverse, before[a, 0]), before[a, last])
            while k < last - 1 and before[a, k + 1] <= y:
                k += 1
            rest = d[e] * (W[a, k] + rise[a, k] * (y - before[a, k]))
            new[s, j] += b[e] * (rest + max(past if points[s, j] <= 0 else -past, 0.0))
    return new


@compiled
def gather(points: Any, before: Any, edges: Any, height: Any, slope: Any) -> Any:
    """Lines below ψ after one step, one at each point: each edge takes that of the nearer point.

    A height is that of ψ(x) − x₊, a slope that of ψ, less 1 right of 0.
    """
    state, after, b, d, epsilon = edges
    last = before.shape[1] - 1
    new, turned = np.zeros_like(points), np.where(points > 0, -1.0, 0.0)
    for e in range(b.size):
        s, a, k = state[e], after[e], 0
        inverse = 1 / d[e] if d[e] > 1e-300 else np.inf
        for j in range(points.shape[1]):
            past = points[s, j] - epsilon[e]
            found, rise = max(past if points[s, j] <= 0 else -past, 0.0), 1.0 * (past > 0)
            y = past * inverse
            if before[a, 0] <= y <= before[a, last]:
                while k < last and before[a, k] + before[a, k + 1] < 2 * y:
                    k += 1
                turn = slope[a, k] - (before[a, k] == 0 and y > 0)
                found += d[e] * (height[a, k] + turn * (y - before[a, k]))
                rise = slope[a, k] + (before[a, k] > 0)
            new[s, j] += b[e] * found
            turned[s, j] += b[e] * rise
    return new, turned
