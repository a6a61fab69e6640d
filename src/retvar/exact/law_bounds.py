"""A bracket of the law of the return in convex order: what it says, and how it is refined.

With ψ⁻ ≤ ψ ≤ ψ⁺ for ψ(x) = E(x − X)₊, and X = G − g of mean 0:

    variance         2∫(ψ(x) − x₊)dx
    CVaR of p        max_x (x − ψ(x)/p)                                    of the worst share p
    P(X < x)         at most (ψ⁺(y) − ψ⁻(x))/(y − x) for y > x, at least that for y < x
    quantile of p    where ψ⁻(x) − px ≤ min_y (ψ⁺(y) − py)

`slack` bounds how far rounding, and the residual of g, move ψ; `slack_std` how far the std.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from retvar.exact.law_operators import Columns, Steps, gather, grid_like, spread
from retvar.exact.moments import deviation, mean_reward
from retvar.mdp.linear import EPSILON, Resolvent, reaching
from retvar.support.errors import InputError

if TYPE_CHECKING:
    from retvar.exact.solution import Solution

__all__ = ["SHARE", "Bounds", "Refinement"]

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
SHARE = 0.05  # of the CVaR that is refined, at both ends
FIRST = 129  # points of the first grid
REACH = 12.0  # std from the mean to the ends of the first grid, at most
FARTHEST = 1e4  # of any grid
GROWTH = 8  # most that a grid grows at once
SETTLED = 0.8  # of the width left after half a horizon: the grid limits it, not the steps
BUDGET = 1.5e10  # multiplications: half a minute
WORK = 5  # multiplications for each edge and point
LEAST = 4  # steps between looks
ATOMS, MOST_ATOMS = 8, 2_000  # of noise: one for so many points, at most
MOST = 8_000_000  # states times points of one grid: a gigabyte
LARGE = 1_025
VAGUE = 0.3  # width in std from which the lower side does not tell where mass is
FEWEST = 17  # points of a grid
NEGLIGIBLE = SHARE / 100  # share of the tolerance that W may have at the ends of a grid
SMALLEST = 1e-130  # reward
VANISHING = 1e-150  # beside the largest reward
TINY = 1e-306  # rounding of no rewards at all
MARGIN = 1.25  # by which a grid goes on beyond
STEEP = 1e-12  # slopes that differ by less are taken for equal


class Bounds(NamedTuple):
    """ψ⁻ ≤ ψ ≤ ψ⁺ on a grid, for each state; a bracket of everything else."""

    points: Array  #: [state, point]
    above: Array  #: ψ⁺ − x₊ at the points
    height: Array  #: at its point, of lines whose highest is ψ⁻, less x₊
    slope: Array  #: of these lines, less 1 right of 0
    slack: Array
    slack_std: Array
    escapes: Mask  #: whether returns may lie outside the grid
    known: Array  #: the std of `solve`, which says how much of the variance lies there

    def of(self, rows: NDArray[np.intp]) -> Bounds:
        """Those of some states."""
        return Bounds._make(x[rows] for x in self)

    @property
    def upper(self) -> Array:
        """ψ⁺ at the points."""
        return np.asarray(self.above + np.maximum(self.points, 0.0) + self.slack[:, None])

    @property
    def lower(self) -> tuple[Array, Array]:
        """Intercepts and slopes of the lines, between those of 0 and x."""
        flat = np.zeros((self.points.shape[0], 1))
        slope = np.hstack([flat, self.slope + (self.points > 0), flat + 1])
        intercept = self.height - self.slope * self.points - self.slack[:, None]
        return np.hstack([flat, intercept, flat - self.slack[:, None]]), np.clip(slope, 0.0, 1.0)

    def inside(self) -> tuple[Array, Array]:
        """2∫W on the grid, of lines (in each gap up to where two meet) and of chords."""
        gap, height = np.diff(self.points, axis=1), self.height
        at_left, at_right = (self.slope - (self.points == 0))[:, :-1], self.slope[:, 1:]
        with np.errstate(divide="ignore", invalid="ignore"):
            meet = height[:, 1:] - at_right * gap - height[:, :-1]
            meet = np.nan_to_num(meet / (at_left - at_right), nan=0.0)
        t = np.clip(meet, 0.0, gap)
        rest = gap - t
        lines = height[:, :-1] * t + at_left * t**2 / 2 + height[:, 1:] * rest
        lines -= at_right * rest**2 / 2
        chords = ((self.above[:, 1:] + self.above[:, :-1]) * gap).sum(axis=1)
        wide = 2 * (self.points[:, -1] - self.points[:, 0]) * self.slack
        return 2 * np.maximum(lines, 0.0).sum(axis=1) - wide, chords + wide

    def std(self) -> tuple[Array, Array]:
        """Where returns may lie outside the grid, what lies there is known from `solve`."""
        low, high = self.inside()
        around = self.known**2 - (high - low), self.known**2 + (high - low)
        ends = (np.where(self.escapes, *x) for x in zip(around, (low, high), strict=True))
        low, high = (np.sqrt(np.maximum(x, 0.0)) for x in ends)
        return np.maximum(low - self.slack_std, 0.0), high + self.slack_std

    def contradicts(self) -> Mask:
        """Whether the std of `solve` is not what the law allows, rounding aside."""
        least = np.sqrt(np.maximum(self.inside()[0], 0.0)) - 2 * self.slack_std
        return np.asarray((self.known < least) | (self.known > self.std()[1]))

    def worst(self, share: float) -> tuple[Array, Array]:
        """The mean of the worst share; the high end where two lines meet, one on either side."""
        low = np.max(self.points - self.upper / share, axis=1)
        a, f = self.lower
        left, right = share - f[:, :-1], f[:, 1:] - share
        across, total = (left >= 0) & (right >= 0), left + right
        with np.errstate(divide="ignore", invalid="ignore"):
            meet = (a[:, :-1] * right + a[:, 1:] * left) / total
        meet = np.where(total > 0, meet, np.maximum(a[:, :-1], a[:, 1:]))
        return low, -np.max(np.where(across, meet, -np.inf), axis=1) / share

    def best(self, share: float) -> tuple[Array, Array]:
        """The mean of the best share: that of the worst share of −X, with its sign changed."""
        points, above, height, slope = (x[:, ::-1] for x in self[:4])
        slope = np.where(points == 0, 1.0, 0.0) - slope
        mirrored = self._replace(points=-points, above=above, height=height, slope=slope)
        low, high = mirrored.worst(share)
        return -high, -low

    def quantile(self, share: Array) -> tuple[Array, Array]:
        """Where the lines lie below the least of ψ⁺(y) − py, of a column of shares."""
        level = np.min(self.upper - share * self.points, axis=1, keepdims=True)
        level = level + self.slack[:, None]
        a, f = self.lower
        with np.errstate(divide="ignore", invalid="ignore"):
            ends = (level - a) / (f - share)
        low = np.max(np.where(f < share - STEEP, ends, -np.inf), axis=1)
        return low, np.min(np.where(f > share + STEEP, ends, np.inf), axis=1)

    def below(self, x: Array) -> tuple[Array, Array]:
        """P(X < x), one x for each state."""
        a, f = self.lower
        at = np.max(a + f * x[:, None], axis=1, keepdims=True)
        apart = self.points - x[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            slopes = (self.upper - at) / apart
        low = np.max(np.where(apart < 0, slopes, 0.0), axis=1)
        high = np.min(np.where(apart > 0, slopes, 1.0), axis=1)
        return np.clip(low, 0.0, 1.0), np.clip(high, 0.0, 1.0)

    def width(self) -> Array:
        """How wide std and CVaR are, in std, rounding aside."""
        exact = self._replace(slack=0 * self.slack, slack_std=0 * self.slack_std)
        brackets = exact.std(), exact.worst(SHARE), exact.best(SHARE)
        widest = np.max([0 * self.known, *(high - low for low, high in brackets)], axis=0)
        return np.asarray(widest / np.where(self.known > 0, self.known, np.inf))


@dataclass(eq=False)
class Refinement:
    """The bracket of a solution, refined until it is narrow enough or the budget is spent."""

    solution: Solution
    tolerance: float

    def __post_init__(self) -> None:
        found, edges = self.solution, self.solution._edges
        H, g = found._bootstrap, found.mean
        rewards = edges.eta * edges.reward
        scale = float(np.max(np.abs(rewards) + edges.eta * edges.reward_std))
        if scale and not SMALLEST < scale < 1 / SMALLEST:
            raise InputError("reward", f"up to {scale:.3g}", "scale rewards; their squares vanish")
        epsilon = deviation(edges, H, g)
        residual = edges.expect(epsilon)
        finite = np.isfinite(found.variance)
        kept = finite[edges.state]  # elsewhere X = 0
        self._edges = replace(edges, lam=edges.lam * kept, reward_std=edges.reward_std * kept)
        self._epsilon = (epsilon - residual[edges.state]) * kept
        sizes = [rewards, mean_reward(edges, H), edges.decay * g[edges.next_state], g[edges.state]]
        rounding = np.zeros(edges.n)
        np.maximum.at(rounding, edges.state, 16 * EPSILON * np.max(np.abs(sizes), axis=0))
        least = max(VANISHING * scale, TINY)
        self._rounding = np.where(finite, rounding + np.abs(residual) + least, 0.0)
        decay = self._edges.decay
        self._once, self._twice = (Resolvent(self._edges.matrix(x)) for x in (decay, decay**2))
        self._begin(FEWEST)
        start = self.std * (1 + 1e-9) + 2 * self.slack_std
        self.start = np.maximum(start, np.finfo(float).tiny)
        self.support = self.steps.extremes(FARTHEST * self.start)

    def _begin(self, points: int) -> None:
        """Steps for a grid of so many points; how far their errors move the mean, and X in L₂."""
        variance, atoms = np.nan_to_num(self.solution.variance), min(points // ATOMS, MOST_ATOMS)
        self.steps = s = Steps.of(self._edges, self._epsilon, variance, atoms)
        self.std = np.sqrt(np.maximum(s.variance, 0.0))
        n, parts = variance.size, 1 + (s.parent.size > variance.size)
        self.horizon = parts * float(np.max(self._once.solve(np.ones(n)).x))
        number = np.bincount(s.parent[s.above.state], minlength=n)
        rounding = self._rounding + EPSILON * (4 * number + 1_000) * parts * self.std[:n]
        moved = _summed(self._once, rounding)
        second = np.sqrt(_summed(self._twice, rounding**2 + 2 * rounding * (self._once.M @ moved)))
        self.slack = 1.01 * moved[s.parent]
        self.slack_std = 1.01 * second[s.parent] + self.solution.error * self.std

    def iterates(self, every: int | None = None) -> Iterator[Bounds]:
        """The bracket after each `every` steps (default: half a horizon), to the last."""
        n, states = self.steps.parent.size, len(self.solution)
        points = self._grid(int(np.clip(MOST // n, FEWEST, FIRST)))
        upper, lines = self._scarf(points), np.zeros((2, *points.shape))
        work, level = 0.0, np.inf
        while True:
            before, m = np.inf, points.shape[1]
            self._begin(m)
            step = WORK * m * self.steps.above.b.size
            enough = math.ceil(self.horizon / 2)
            steps = every or max(LEAST, enough if work else min(enough, int(BUDGET / step)))
            cost = steps * step
            while not work or work + cost <= BUDGET:
                for _ in range(steps):
                    upper = spread(points, points, self.steps.above, upper)
                    lines = gather(points, points, self.steps.below, *lines)
                bounds = self._bounds(points, upper, *lines)
                yield bounds.of(np.arange(states))
                width = float(np.max(bounds.width()[:states]))
                work += cost
                if width <= self.tolerance:
                    return
                if width > SETTLED * before:
                    break
                before = width
            else:
                return
            if m > LARGE and SETTLED * level < width < VAGUE:  # no finer grid helps: heavy tails
                return
            ratio, level = width / self.tolerance, width
            grow = max(2, min(math.ceil(math.sqrt(1.3 * ratio)), GROWTH))
            finer = min(grow * (m - 1) + 1, MOST // n)
            if finer < 1.25 * m:
                return
            points, old = self._grid(finer, bounds, max(ratio / grow**2, 1.0)), points
            itself = Columns.of_itself(np.ones(n), np.zeros(n))
            upper = np.minimum(spread(points, old, itself, upper), self._scarf(points))
            lines = gather(points, old, itself, *lines)

    def _scarf(self, x: Array) -> Array:
        """The largest E(x − X)₊ of any law with mean 0 and this std (Scarf, 1958), less x₊."""
        std = self.start[:, None]
        return np.asarray(0.5 * std * (std / (np.hypot(std, x) + np.abs(x))))

    def _grid(self, m: int, before: Bounds | None = None, ratio: float = 1.0) -> Array:
        """The first grid, or one with more points where the mass is."""
        near = np.clip(self.support, -REACH * self.start, REACH * self.start)
        low, high = near if before is None else self._ends(before, ratio)
        least = np.maximum(1e-6 * (high - low) + 1e-9 * self.start, 1e-290)
        low, high = np.minimum(low, -least), np.maximum(high, least)
        if before is None:
            return grid_like(np.stack([low, high], axis=1), np.ones((low.size, 1)), low, high, m)
        z = before.points
        gap = np.diff(z, axis=1)
        slope = np.diff(before.upper, axis=1) / np.where(gap > 0, gap, np.inf)
        turn = np.diff(slope, axis=1, prepend=0.0, append=1.0)
        weight = np.sqrt(np.maximum(turn[:, 1:] + turn[:, :-1], 0.0) / 2 * gap)
        z = np.column_stack([np.minimum(low, z[:, 0]), z, np.maximum(high, z[:, -1])])
        return grid_like(z, np.pad(weight, ((0, 0), (1, 1))), low, high, m)

    def _ends(self, bounds: Bounds, ratio: float) -> tuple[Array, Array]:
        """Beyond where W⁻ becomes negligible; farther out where it does not, within the support.

        `ratio` is what the next grid is to reach, in tolerances. Any ends make a bracket.
        """
        z, last, rows = bounds.points, bounds.points.shape[1] - 1, np.arange(len(bounds.points))
        least = NEGLIGIBLE * ratio * self.tolerance * self.start
        seen = bounds.height > least[:, None]
        first, final = np.argmax(seen, axis=1), last - np.argmax(seen[:, ::-1], axis=1)
        low, high = z[rows, np.maximum(first - 1, 0)], z[rows, np.minimum(final + 1, last)]
        vague = bounds.width() > VAGUE  # or nothing was seen on one side
        low = np.where(vague | (low >= 0), z[:, 0], np.where(first == 0, 2.0, MARGIN) * low)
        high = np.where(vague | (high <= 0), z[:, -1], np.where(final == last, 2.0, MARGIN) * high)
        return np.maximum(low, self.support[0]), np.minimum(high, self.support[1])

    def _bounds(self, points: Array, upper: Array, height: Array, slope: Array) -> Bounds:
        """The bracket; returns may lie outside the grid of a state, or of one that follows."""
        s, e, ends = self.steps, self.steps.above, points[:, [0, -1]]
        over = (e.epsilon[:, None] + e.d[:, None] * ends[e.next_state] - ends[e.state]) * [-1, 1]
        outside = (over > 1e-12 * np.ptp(ends, axis=1)[e.state, None]).any(axis=1)
        goal = np.bincount(s.parent[e.state], outside, self._once.n) > 0
        escapes = reaching(self._once.M, goal)[s.parent]
        return Bounds(points, upper, height, slope, self.slack, self.slack_std, escapes, self.std)


def _summed(resolvent: Resolvent, b: Array) -> Array:
    """(I − M)⁻¹b of b ≥ 0; scaled, since iterative solvers take small numbers for 0."""
    scale = float(np.max(b, initial=0.0)) or 1.0
    return np.maximum(resolvent.solve(b / scale).x, 0.0) * scale
