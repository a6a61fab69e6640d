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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from retvar.exact.law_operators import Lines, Steps, gather, grid_like, spread
from retvar.exact.moments import deviation, mean_reward
from retvar.mdp.linear import EPSILON, reaching
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
MARGIN = 1.25  # by which a grid goes on beyond
STEEP = 1e-12  # slopes that differ by less are taken for equal


class Bounds(NamedTuple):
    """ψ⁻ ≤ ψ ≤ ψ⁺ on a grid, for each state; a bracket of everything else."""

    points: Array  #: [state, point]
    above: Array  #: ψ⁺ − x₊ at the points
    lines: Lines  #: whose highest is ψ⁻
    slack: Array
    slack_std: Array
    escapes: Mask  #: whether returns may lie outside the grid
    known: Array  #: the variance of `solve`, which says how much of it lies there

    def of(self, rows: NDArray[np.intp]) -> Bounds:
        """Those of some states."""
        lines = Lines(*(x[rows] for x in self.lines))
        chosen: Any = (lines if x is self.lines else np.asarray(x)[rows] for x in self)
        return Bounds(*chosen)

    @property
    def _upper(self) -> Array:
        """ψ⁺ at the points."""
        return np.asarray(self.above + np.maximum(self.points, 0.0) + self.slack[:, None])

    @property
    def _lower(self) -> tuple[Array, Array]:
        """Intercepts and slopes of the lines, between those of 0 and x."""
        flat = np.zeros((self.points.shape[0], 1))
        slope = np.hstack([flat, self.lines.slope + (self.points > 0), flat + 1])
        intercept = self.lines.height - self.lines.slope * self.points - self.slack[:, None]
        return np.hstack([flat, intercept, flat - self.slack[:, None]]), np.clip(slope, 0.0, 1.0)

    def inside(self) -> tuple[Array, Array]:
        """2∫W on the grid, of lines (in each gap up to where two meet) and of chords."""
        gap = np.diff(self.points, axis=1)
        height, slope = self.lines
        bent = slope.copy()  # right of 0
        bent[self.points == 0] -= 1.0
        at_left, at_right = bent[:, :-1], slope[:, 1:]
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

    def variance(self) -> tuple[Array, Array]:
        """2∫W; where returns may lie outside the grid, what lies there is known from `solve`."""
        low, high = self.inside()
        ends = []
        for sign, end in ((-1, low), (1, high)):
            whole = np.where(self.escapes, self.known + sign * (high - low), end)
            std = np.sqrt(np.maximum(whole, 0.0)) + sign * self.slack_std
            ends.append(np.maximum(std, 0.0) ** 2)
        return ends[0], ends[1]

    def contradicts(self) -> Mask:
        """Whether the variance of `solve` is not what the law allows, rounding aside."""
        low, high = self.inside()[0], self.variance()[1]
        least = np.sqrt(np.maximum(low, 0.0)) - 2 * self.slack_std
        std = np.sqrt(self.known)
        return np.asarray((std < least) | (std > np.sqrt(high)))

    def worst(self, share: float) -> tuple[Array, Array]:
        """The mean of the worst share; the high end where two lines meet, one on either side."""
        low = np.max(self.points - self._upper / share, axis=1)
        a, f = self._lower
        left, right = share - f[:, :-1], f[:, 1:] - share
        across, total = (left >= 0) & (right >= 0), left + right
        with np.errstate(divide="ignore", invalid="ignore"):
            meet = (a[:, :-1] * right + a[:, 1:] * left) / total
        meet = np.where(total > 0, meet, np.maximum(a[:, :-1], a[:, 1:]))
        return low, -np.max(np.where(across, meet, -np.inf), axis=1) / share

    def best(self, share: float) -> tuple[Array, Array]:
        """The mean of the best share: that of the worst share of −X, with its sign changed."""
        height, slope = (x[:, ::-1] for x in self.lines)
        points = -self.points[:, ::-1]
        lines = Lines(height, np.where(points == 0, 1.0, 0.0) - slope)
        mirrored = self._replace(points=points, above=self.above[:, ::-1], lines=lines)
        low, high = mirrored.worst(share)
        return -high, -low

    def quantile(self, share: Array) -> tuple[Array, Array]:
        """Where the lines lie below the least of ψ⁺(y) − py, of a column of shares."""
        level = np.min(self._upper - share * self.points, axis=1, keepdims=True)
        level = level + self.slack[:, None]
        a, f = self._lower
        with np.errstate(divide="ignore", invalid="ignore"):
            ends = (level - a) / (f - share)
        low = np.max(np.where(f < share - STEEP, ends, -np.inf), axis=1)
        return low, np.min(np.where(f > share + STEEP, ends, np.inf), axis=1)

    def below(self, x: Array) -> tuple[Array, Array]:
        """P(X < x), one x for each state."""
        a, f = self._lower
        at = np.max(a + f * x[:, None], axis=1, keepdims=True)
        apart = self.points - x[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            slopes = (self._upper - at) / apart
        low = np.max(np.where(apart < 0, slopes, 0.0), axis=1)
        high = np.min(np.where(apart > 0, slopes, 1.0), axis=1)
        return np.clip(low, 0.0, 1.0), np.clip(high, 0.0, 1.0)

    def width(self, std: Array) -> Array:
        """How wide std and CVaR are, in std, beyond what rounding makes of them."""
        low, high = map(np.sqrt, self.variance())
        tails = [high - low for low, high in (self.worst(SHARE), self.best(SHARE))]
        tail = np.maximum(*tails) - 4 * self.slack / SHARE
        reach = self.points[:, -1] - self.points[:, 0]
        with np.errstate(divide="ignore", invalid="ignore"):
            rounding = 2 * self.slack_std + np.where(std > 0, 4 * reach * self.slack / std, 0.0)
        widest = np.maximum(np.maximum(high - low - rounding, tail), 0.0)
        return np.divide(widest, std, out=np.zeros_like(std), where=std > 0)


@dataclass(eq=False)
class Refinement:
    """The bracket of a solution, refined until it is narrow enough or the budget is spent."""

    solution: Solution
    tolerance: float

    def __post_init__(self) -> None:
        found, edges = self.solution, self.solution._edges
        H, g = found._bootstrap, found.mean
        scale = float(np.max(np.abs(edges.eta * edges.reward) + edges.eta * edges.reward_std))
        if scale and not SMALLEST < scale < 1 / SMALLEST:
            raise InputError("reward", f"up to {scale:.3g}", "scale rewards; their squares vanish")
        epsilon = deviation(edges, H, g)
        residual = edges.expect(epsilon)
        self._model = edges, epsilon - residual[edges.state], found.variance
        self.steps = s = Steps.of(*self._model, FEWEST)
        self.std = np.sqrt(np.maximum(s.variance, 0.0))
        sizes = [edges.eta * edges.reward, mean_reward(edges, H), edges.decay * g[edges.next_state]]
        size = np.max(np.abs([*sizes, g[edges.state]]), axis=0)
        self._rounding = np.zeros(s.n)
        np.maximum.at(self._rounding, edges.state, 16 * EPSILON * size)
        self._rounding[: edges.n] += np.abs(residual)
        self._set_slack()
        start = self.std * (1 + 1e-9) + 2 * self.slack_std
        self.start = np.maximum(start, np.finfo(float).tiny)
        self.support = s.extremes(FARTHEST * self.start)

    def _set_slack(self) -> None:
        """How far errors in each step move the return, in the mean and in L₂."""
        number = np.bincount(self.steps.above.state, minlength=self.steps.n)
        rounding = self._rounding + EPSILON * (4 * number + 1_000) * self.std
        known = np.append(np.isfinite(self.solution.variance), self.std[self.steps.states :] >= 0)
        rounding, once = np.where(known, rounding, 0.0), self.steps.resolvent(1)
        self.horizon = float(np.max(once(np.ones(self.steps.n))))
        moved = once(rounding)
        squares = rounding**2 + 2 * rounding * (self.steps.matrix(1) @ moved)
        scale = float(np.max(squares, initial=0.0)) or 1.0
        second = self.steps.resolvent(2)(squares / scale)
        self.slack = 1.01 * np.maximum(moved, 0.0)
        self.slack_std = 1.01 * np.sqrt(np.maximum(second, 0.0)) * np.sqrt(scale)
        self.slack_std += self.solution.error * self.std

    def iterates(self, every: int | None = None) -> Iterator[Bounds]:
        """The bracket after each `every` steps (default: half a horizon), to the last."""
        most = MOST // self.steps.n
        points = self._grid(int(np.clip(most, FEWEST, FIRST)))
        upper, lines = self._scarf(points), Lines(*np.zeros((2, *points.shape)))
        work, level, idle = 0.0, np.inf, 0
        while True:
            before, m = np.inf, points.shape[1]
            self.steps = Steps.of(*self._model, min(m // ATOMS, MOST_ATOMS))
            self._set_slack()
            step = WORK * m * self.steps.above.b.size
            enough = math.ceil(self.horizon / 2)
            steps = every or max(LEAST, enough if work else min(enough, int(BUDGET / step)))
            cost = steps * step
            if work and work + cost > BUDGET:
                return
            while True:
                for _ in range(steps):
                    upper = spread(points, self.steps.above, upper)
                    lines = Lines(*gather(points, self.steps.below, *lines))
                bounds = self._bounds(points, upper, lines)
                yield bounds.of(np.arange(self.steps.states))
                width = float(np.max(bounds.width(self.std)[: self.steps.states]))
                work += cost
                if width <= self.tolerance or work + cost > BUDGET:
                    return
                if width > SETTLED * before:
                    break
                before = width
            idle = idle + 1 if width > SETTLED * level else 0
            if idle > 1 and m > LARGE and width < VAGUE:  # no finer grid helps: heavy tails
                return
            ratio, level = width / self.tolerance, width
            grow = max(2, min(math.ceil(math.sqrt(1.3 * ratio)), GROWTH))
            finer = min(grow * (m - 1) + 1, most)
            if finer < 1.25 * m:
                return
            points, old = self._grid(finer, bounds, max(ratio / grow**2, 1.0)), points
            chords = [np.interp(*each) for each in zip(points, old, upper, strict=True)]
            upper, lines = np.minimum(chords, self._scarf(points)), lines.at(old, points)

    def _scarf(self, x: Array) -> Array:
        """The largest E(x − X)₊ of any law with mean 0 and this std (Scarf, 1958), less x₊."""
        std = self.start[:, None]
        return np.asarray(0.5 * std * (std / (np.hypot(std, x) + np.abs(x))))

    def _grid(self, m: int, before: Bounds | None = None, ratio: float = 1.0) -> Array:
        """The first grid, or one with more points where the mass is."""
        if before is None:
            ends = [np.clip(x, -REACH * self.start, REACH * self.start) for x in self.support]
        else:
            ends = list(self._ends(before, ratio))
        least = np.maximum(1e-6 * (ends[1] - ends[0]) + 1e-9 * self.start, 1e-290)
        low, high = np.minimum(ends[0], -least), np.maximum(ends[1], least)
        if before is None:
            return grid_like(np.stack([low, high], axis=1), np.ones((low.size, 1)), low, high, m)
        z = before.points
        gap = np.diff(z, axis=1)
        turn = np.diff(np.diff(before._upper, axis=1) / gap, axis=1, prepend=0.0, append=1.0)
        weight = np.sqrt(np.maximum(turn[:, 1:] + turn[:, :-1], 0.0) / 2 * gap)
        z = np.column_stack([np.minimum(low, z[:, 0]), z, np.maximum(high, z[:, -1])])
        return grid_like(z, np.pad(weight, ((0, 0), (1, 1))), low, high, m)

    def _ends(self, bounds: Bounds, ratio: float) -> tuple[Array, Array]:
        """Beyond where W⁻ becomes negligible; farther out where it does not, within the support.

        `ratio` is what the next grid is to reach, in tolerances. Any ends make a bracket.
        """
        z, last, rows = bounds.points, bounds.points.shape[1] - 1, np.arange(self.steps.n)
        least = NEGLIGIBLE * ratio * self.tolerance * self.start
        seen = bounds.lines.height > least[:, None]
        first, final = np.argmax(seen, axis=1), last - np.argmax(seen[:, ::-1], axis=1)
        low, high = z[rows, np.maximum(first - 1, 0)], z[rows, np.minimum(final + 1, last)]
        vague = bounds.width(self.std) > VAGUE  # or nothing was seen on one side
        low = np.where(vague | (low >= 0), z[:, 0], np.where(first == 0, 2.0, MARGIN) * low)
        high = np.where(vague | (high <= 0), z[:, -1], np.where(final == last, 2.0, MARGIN) * high)
        return np.maximum(low, self.support[0]), np.minimum(high, self.support[1])

    def _bounds(self, points: Array, upper: Array, lines: Lines) -> Bounds:
        """The bracket; returns may lie outside the grid of a state, or of one that follows."""
        e, ends = self.steps.above, points[:, [0, -1]]
        over = (e.epsilon[:, None] + e.d[:, None] * ends[e.next_state] - ends[e.state]) * [-1, 1]
        outside = (over > 1e-12 * np.ptp(ends, axis=1)[e.state, None]).any(axis=1)
        goal = np.bincount(e.state, outside, self.steps.n) > 0
        escapes = reaching(self.steps.matrix(1), goal)
        return Bounds(points, upper, lines, self.slack, self.slack_std, escapes, self.std**2)
