"""The law of the return and the shares of its variance from data: those of the empirical MDP.

Its edges are transitions that are alike, and their weights the sums of importance ratios. Intervals
come from a Bayesian bootstrap: in each of some draws every edge weighs a gamma variable with as
many events as it stands for, and all is solved again.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from retvar.estimation.answers import find_state
from retvar.estimation.results import label_text
from retvar.estimation.return_sample import TAIL, Interval
from retvar.estimation.sums import Sums
from retvar.exact.attribution import Attribution, attribution
from retvar.exact.law import QUANTILES, Answers, Bracket, Law, law_of
from retvar.exact.law_bounds import SHARE
from retvar.exact.law_operators import Columns, Steps, grid_like, spread
from retvar.exact.moments import deviation
from retvar.exact.solution import Solution, solve_weighted
from retvar.experience.moves import Moves
from retvar.experience.stream import Counts
from retvar.mdp import END, MDP, WeightedEdges, weigh_edges
from retvar.mdp.linear import Resolvent
from retvar.support import arguments
from retvar.support.errors import InputError, RetvarError
from retvar.support.format import joined, number

__all__ = ["Empirical", "LawEstimate"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
MOST_EDGES = 5_000  # with more, rewards of a pair of states are gathered in bins
BINS = 1e-6, 0.1, 0.2  # of the standard deviation within pairs
FARTHEST = 2**28  # bins
TOLERANCE = {True: 1e-4, False: 0.03}  # of the empirical law, in std; with few edges it has atoms
FEW_EDGES = 300
BESIDE = 0.01  # std beside an atom
SMALL = 0.2  # part of an interval of F: with larger jumps one of quantiles holds in over 95%
DRAWS, FEWEST_DRAWS = 100, 50
POINTS = 65  # of the law of each draw
ROOM = 5e7  # points of all laws
TINY = 1e-300
BUDGET = 5e8  # points of edges, over all steps of all draws
HORIZONS = 4  # most steps of a draw
FEWEST = 30  # observed returns that a law is compared with
CONTRADICTED = 4.5  # standard errors
NO_ROWS = "the rows are gone; estimate again from the log"


class Rows(NamedTuple):
    """Transitions that are alike, as one row: columns of equal length."""

    state: Integers
    action: Integers
    next_state: Integers  #: END at an end
    gamma: Array
    lam: Array
    reward: Array
    reward_std: Array
    weight: Array  #: Σρ
    squares: Array  #: Σρ²

    def of(self, at: Any) -> Rows:
        """Some of the rows, by a mask or in another order."""
        return Rows._make(x[at] for x in self)


@dataclass(frozen=True, eq=False, repr=False)
class LawEstimate(Answers):
    """The law of the return with intervals; `law` is that of the empirical MDP.

    Answers have the names of :class:`retvar.Law` and of roll-outs. Each is an estimate with its
    interval, for one state or as arrays for all. Ends are NaN where fewer than 25 independent
    events stand for a tail, and of a quantile at which the law jumps: `notes` say where it lies.

    >>> import retvar as rv
    >>> lake = rv.experience.from_gymnasium("FrozenLake-v1", steps=50_000, seed=1)
    >>> found = rv.estimate(lake, gamma=0.99).law(14)
    >>> print(found.probability_below(0.5))
    0.601 [0.5..., 0.6...]
    """

    law: Law
    level: float
    _found: Any  # the estimate
    _points: Array  # of returns [state, point]
    _draws: Array  # ψ = E(x − G)₊ there [draw, state, point]

    def __getitem__(self, state: Any) -> LawEstimate:
        law = self.law[self._found._empirical.number(state)]
        at = np.array([law.state])
        return replace(self, law=law, _points=self._points[at], _draws=self._draws[:, at])

    @property
    def costs(self) -> bool:
        """Whether returns are costs."""
        return bool(self._found.experience.cost)

    @property
    def mean(self) -> Interval:
        """Expected return."""
        return self._known("value")

    @property
    def std(self) -> Interval:
        """Standard deviation of the return."""
        return self._known("std")

    def _known(self, what: str) -> Interval:
        """An estimate of least squares with its interval."""
        estimator, one = self._found.estimator, self.law.state
        states = np.arange(len(self.law)) if one is None else np.array([one])
        ends = estimator.interval(what=what, states=states, level=self.level)
        return self._interval(estimator.predict(states, what), *ends)

    def probability_below(self, limit: Any) -> Interval:
        """Probability of a return below `limit`: one number, or one a state."""
        limit = arguments.numbers("limit", limit, len(self))
        size, ends = self._size(limit), self._ends(self.law.probability_below(limit))
        p = (ends[0] + ends[1]) / 2
        return self._interval(p, *self._wilson(*ends, size), size * np.minimum(p, 1 - p))

    def quantile(self, share: float) -> Interval:
        """The return that a `share` of returns does not exceed; no interval where the law jumps."""
        low, high, events, jumps = self._quantile(share)
        return self._interval(self.law.quantile(share).middle, low, high, events * ~jumps)

    def cvar(self, share: float = SHARE, tail: str | None = None) -> Interval:
        """Mean of the worst `share`: of the lowest returns, or highest costs; or of this tail."""
        tail = self.worst_and_best[0] if tail is None else tail
        found, z, psi = self.law.cvar(share, tail), self._points, self._draws
        if tail == "lower":
            drawn = np.max(z - psi / share, axis=2)
        else:
            over = psi - psi[:, :, -1:] + z[:, -1:] - z  # E(G − x)₊
            drawn = np.min(z + over / share, axis=2)
        reach = self._t * np.std(drawn, axis=0, ddof=1)
        events = self._size_at(share if tail == "lower" else 1 - share) * min(share, 1 - share)
        return self._interval(found.middle, found.low - reach, found.high + reach, events)

    @property
    def notes(self) -> list[str]:
        """Where a quantile lies at which the law jumps; what observed returns contradict."""
        return [] if self.law.state is None else [*self._jumps(), *self._contradictions()]

    def _jumps(self) -> Iterator[str]:
        told = {}
        for share in QUANTILES:
            low, high, events, jumps = (x[0] for x in self._quantile(share))
            if jumps and events >= TAIL:
                told[f"{share:.0%}"] = " to ".join(dict.fromkeys(map(number, (low, high))))
        if told:
            where = f"the law jumps at the quantiles {joined(told)}: no intervals, but"
            yield f"{where} in at least {self.level:.0%} of such logs {joined(told.values())}"

    def _contradictions(self) -> Iterator[str]:
        if self._found.estimator.sums.weighted:
            return
        returns = self._found.return_intervals.by_state.of(self.law.state)
        for share in (0.1, 0.5, 0.9) if returns.size >= FEWEST else ():
            low, high = self.law.quantile(share)
            least, most = np.mean(returns < low), np.mean(returns <= high)
            error = float(np.std(self._below(np.array([(low + high) / 2])), axis=0)[0])
            noise = CONTRADICTED * math.hypot(math.sqrt(share * (1 - share) / returns.size), error)
            if not least - noise <= share <= most + noise:
                told = f"{least:.0%} of {returns.size:,} lie below {number(low)}, not {share:.0%}"
                why = "the states look non-Markov"
                yield f"the data's own returns contradict this: {told}; {why}"
                return

    @property
    def heading(self) -> str:
        """What is told."""
        return f"{super().heading}, with {self.level:.0%} intervals"

    def _interval(self, x: Any, low: Any, high: Any, events: Any = math.inf) -> Interval:
        """Without ends where too few events stand for them; numbers for one state."""
        one, value = self.law.state, self._found.estimator.solution.value
        known = np.isfinite(value if one is None else value[[one]])
        told = known & (np.asarray(events) >= TAIL)
        pairs = (x, known), (low, told), (high, told)
        found: list[Any] = [np.where(where, each, np.nan) for each, where in pairs]
        return Interval(*(each if one is None else float(each[0]) for each in found))

    def _ends(self, bracket: Bracket) -> tuple[Array, Array]:
        """The bracket, where the law may have atoms and gaps; otherwise its middle is near."""
        few = self.law.mdp.edges.state.size <= FEW_EDGES
        low, high = bracket if few else (bracket.middle, bracket.middle)
        return np.atleast_1d(low), np.atleast_1d(high)

    @property
    def _t(self) -> float:
        return float(stdtrit(len(self._draws) - 1, 0.5 + self.level / 2))

    def _quantile(self, share: float) -> tuple[Array, Array, Array, Mask]:
        """Ends of a quantile, events that stand for them, and whether the law jumps there.

        They hold with more than the level if it jumps by much of what the interval of its
        probability leaves open: estimates of F may then err by more, and the quantile is the same.
        """
        at, size = self._ends(self.law.quantile(share)), self._size_at(share)
        p = self._wilson(share, share, size)
        low, high = (self._ends(self.law._quantiles(x))[k] for k, x in enumerate(p))
        jumps = np.max([self._jump(x) for x in at], axis=0) > SMALL * (p[1] - p[0])
        return low, high, size * min(share, 1 - share), jumps

    def _jump(self, x: Array) -> Array:
        """By how much the law jumps at x, at least, beyond what its density explains."""
        step = BESIDE * np.atleast_1d(self.law.std.middle)
        near = [self.law.probability_below(x + k * step) for k in (-3, -1, 1, 3)]
        a, b, c, d = (each.middle for each in near)
        return np.atleast_1d(near[2].low - near[1].high - (b - a + d - c) / 2)

    def _below(self, limit: Array) -> Array:
        """P(G < limit) in each draw [draw, state]: the slope of ψ where it lies."""
        z, psi, rows = self._points, self._draws, np.arange(len(self))
        x = np.asarray(limit)[:, None]
        k = np.clip(np.sum(z <= x, axis=1) - 1, 0, z.shape[1] - 2)
        gap = np.maximum(z[rows, k + 1] - z[rows, k], TINY)
        slope = (psi[:, rows, k + 1] - psi[:, rows, k]) / gap
        inside = np.where((x > z[:, -1:])[:, 0], 1.0, slope) * (x >= z[:, :1])[:, 0]
        return np.asarray(np.clip(inside, 0, 1))

    def _size(self, limit: Array) -> Array:
        """How many independent returns would tell P(G < limit) as well; 0: none do."""
        drawn = self._below(limit)
        p, variance = drawn.mean(axis=0), drawn.var(axis=0, ddof=1)
        return np.asarray(p * (1 - p) / np.where(variance > 0, variance, np.inf))

    def _size_at(self, share: float) -> Array:
        """The same at a quantile: beside it, where it is an atom."""
        low, high = (np.atleast_1d(x) for x in self.law.quantile(share))
        step = BESIDE * np.atleast_1d(self.law.std.middle)
        sizes = np.stack([self._size(low - step), self._size(high + step)])
        least = np.min(np.where(sizes > 0, sizes, np.inf), axis=0)
        return np.where(np.isfinite(least), least, 0.0)

    def _wilson(self, low: Any, high: Any, size: Array) -> tuple[Array, Array]:
        """Wilson's interval of a share that lies between two others."""
        x = self._t**2 / np.maximum(size, 1.0)
        ends = (
            (p + x / 2 + sign * np.sqrt(x * p * (1 - p) + x * x / 4)) / (1 + x)
            for sign, p in ((-1, low), (1, high))
        )
        return next(ends), next(ends)


class Empirical:
    """The empirical MDP of the rows that an estimate was made from."""

    def __init__(self, found: Any) -> None:
        self.found, self.experience, self.estimator = found, found.experience, found.estimator
        if self.estimator.description.estimand == "off_policy_return":
            remedy = "is not bounded by data; use the target's return"
            raise InputError("estimand", "off_policy_return", remedy)
        rows = len(self.estimator.moves)
        if not rows or rows < self.estimator.steps:
            raise InputError("experience", f"{rows:,} of {self.estimator.steps:,} rows", NO_ROWS)

    def law(self, level: float) -> LawEstimate:
        """The law of the return from every state."""
        return replace(self._law, level=level)

    def number(self, state: Any) -> int:
        """The number of a state, if it has an estimate."""
        fit = self.estimator.solution
        number = int(find_state(self.experience, state, fit.value.size))
        if np.isnan(fit.value[number]):
            raise InputError("state", state, f"has no estimate: {fit.note[number]}")
        return number

    def attribution(self, state: int, level: float) -> Attribution:
        """The shares of the variance from a state, with intervals."""
        solution, draws = self._solutions
        found = attribution(solution, state)
        if found.note:
            return found
        drawn = [each for each in (attribution(draw, state) for draw in draws) if not each.note]
        reach = float(stdtrit(len(drawn) - 1, 0.5 + level / 2))
        intervals = {}
        for name in ("by_edge", "by_action", "by_state"):
            centre = getattr(found, name)
            error = reach * np.std([getattr(each, name) for each in drawn], axis=0, ddof=1)
            intervals[name] = np.clip([centre - error, centre + error], 0.0, 1.0)
        return replace(found, level=level, intervals=intervals)

    @cached_property
    def _solutions(self) -> tuple[Solution, list[Solution]]:
        """The solution for attributions, and those of some draws."""
        rows = self._rows(self._sums(actions=True), actions=True)
        solution = self._solved(rows)
        return solution, list(_draws(solution, rows, FEWEST_DRAWS))

    @cached_property
    def _law(self) -> LawEstimate:
        """The law of every state; and those of draws, on coarser grids."""
        rows = self._by_reward()
        solution = self._solved(rows)
        law = law_of(solution, TOLERANCE[rows.state.size <= FEW_EDGES])
        z, n, edges = law._bounds.points, len(law), solution._edges
        points = grid_like(z, np.ones((n, z.shape[1] - 1)), z[:, 0], z[:, -1], POINTS)
        horizon = float(np.max(Resolvent(edges.matrix(edges.decay)).solve(np.ones(n)).x))
        times = int(np.clip(ROOM / points.size, FEWEST_DRAWS, DRAWS))
        most = BUDGET / (times * POINTS * rows.state.size)
        count = int(min(max(most, 16), HORIZONS * horizon + 8))
        drawn = [_law_of_draw(law, draw, points, count) for draw in _draws(solution, rows, times)]
        returns = points + solution.mean[:, None]
        return LawEstimate(law, math.nan, self.found, returns, np.array(drawn))

    # ------------------------------------------------------------------ rows

    def _by_reward(self) -> Rows:
        """Rows of equal rewards, too; near ones are in bins, with their mean, if there are many.

        Where even bins are too many, three rewards stand for those of each pair of states, with the
        first five moments of normal noise.
        """
        pairs = self._rows(self._sums())
        within = math.sqrt(np.average(pairs.reward_std**2, weights=pairs.weight))
        for part in BINS if within > 0 else ():
            sums = self._sums(part * within)
            if len(sums) <= MOST_EDGES:
                rows = self._rows(sums)
                return rows._replace(reward_std=0.0 * rows.reward)
        if not within:
            return pairs
        many = pairs.of(np.repeat(np.arange(pairs.state.size), 3))
        step = many.reward_std * np.tile([-math.sqrt(3), 0.0, math.sqrt(3)], pairs.state.size)
        share = np.tile([1 / 6, 2 / 3, 1 / 6], pairs.state.size)
        reward, weight, squares = many.reward + step, share * many.weight, share * many.squares
        return many._replace(reward=reward, reward_std=0 * step, weight=weight, squares=squares)

    def _sums(self, width: float = math.inf, actions: bool = False) -> Sums:
        """Sums over rows with equal actions, or rewards within `width`, of which not too many."""
        estimator, sums = self.estimator, Sums()
        end, origin = estimator.solution.value.size, float(np.median(estimator.sums.centre))
        for chunk in (self._with_actions if actions else estimator.moves).chunks():
            rows = estimator._rows(chunk)
            after = np.where(rows["terminated"], end, rows["next_state"])
            place = np.clip(np.rint((rows["reward"] - origin) / width), -FARTHEST, FARTHEST)
            kind = chunk.get("action", 0) if actions else place
            given = {name: rows[name] for name in ("state", "reward", "gamma", "lam")}
            sums.add(next_state=kind * (end + 1) + after, rho=rows.get("rho", 1.0), **given)
            if len(sums) > MOST_EDGES and width < math.inf:
                break
        return sums

    def _rows(self, sums: Sums, actions: bool = False) -> Rows:
        """The rows of these sums, by state and action.

        States without an estimate end, as in least squares: there follows the mean of the others.
        """
        fit, w, gamma = self.estimator.solution, sums.moment(1, 0), sums.discount
        mean, square = (sums.moment(1, b) / np.where(w > 0, w, 1.0) for b in (1, 2))
        lam = np.divide(sums.trace_discount, gamma, out=np.ones_like(gamma), where=gamma > 0)
        kind, after = np.divmod(sums.next_state, fit.value.size + 1)
        after = np.where(after == fit.value.size, END, after)
        reward, std = sums.centre + mean, np.sqrt(np.maximum(square - mean**2, 0.0))
        found = (sums.state, kind * actions, after, gamma, lam, reward, std, w, sums.moment(2, 0))
        known = np.isfinite(fit.value)
        holes, kept = np.flatnonzero(~known), (w > 0) & known[sums.state]
        others = np.average(fit.value[known], weights=fit.visits[known]) if known.any() else 0.0
        own = (holes, *np.outer([0, END, 0, 1, others, 0, 1, 1], np.ones(holes.size)))
        whole = [np.append(x[kept], y.astype(x.dtype)) for x, y in zip(found, own, strict=True)]
        return Rows._make(whole).of(np.lexsort((whole[1], whole[0])))

    @property
    def _with_actions(self) -> Moves:
        """The rows with their actions, where a log has these."""
        acting, moves = self.experience.with_actions, self.estimator.moves
        given = acting(Counts()) if self.experience.is_log and acting is not None else moves
        return given if isinstance(given, Moves) and len(given) == len(moves) else moves

    def _solved(self, rows: Rows) -> Solution:
        """The solution of the MDP that the rows are edges of."""
        experience, n = self.experience, self.estimator.solution.value.size
        labels, names = experience.labels, experience.actions
        states = [str(s) if labels is None else label_text(labels[s]) for s in range(n)]
        count = int(rows.action.max(initial=0)) + 1
        actions = [str(names[a] if names else a) for a in range(count)] if count > 1 else ["any"]
        pair = rows.state * count + rows.action
        total = np.bincount(pair, rows.weight, n * count)
        pi = total.reshape(n, count) / np.bincount(rows.state, rows.weight, n)[:, None]
        mdp = MDP(
            (*rows[:3], rows.weight / total[pair], rows.reward, rows.reward_std, rows.gamma),
            states=states,
            actions=actions,
            policies={"of the data": pi},
            positions=self._positions(n),
        )
        edges = weigh_edges(mdp)
        return solve_weighted(mdp, replace(edges, lam=rows.lam[edges.number]), None)

    def _positions(self, states: int) -> Array | None:
        """Where the states of a map lie."""
        rows, columns = self.experience.grid or (0, 0)
        at = np.arange(states)
        return np.stack([at % columns, -(at // columns)], 1) if rows * columns == states else None


def _draws(solution: Solution, rows: Rows, times: int) -> Iterator[Solution]:
    """Solutions of a Bayesian bootstrap.

    Shares of edges vary as those of so many events, with the variance of n − 1; the mean of the
    rewards of an edge, and their variance, as those of normal numbers.
    """
    edges, rng = solution._edges, np.random.default_rng(0)
    rows = rows.of(edges.number)
    s, events = edges.state, rows.weight**2 / rows.squares
    n = np.bincount(s, rows.weight, edges.n) ** 2 / np.bincount(s, rows.squares, edges.n)
    shape = events * np.maximum(1 - 2 / n, 0.1)[s]
    degrees = np.maximum(events - 1, 1)
    for _ in range(times):
        weight = np.maximum(rows.weight * rng.gamma(shape) / shape, 1e-290)
        reward = edges.reward + edges.reward_std * rng.normal(size=s.size) / np.sqrt(events)
        std = edges.reward_std * np.sqrt(rng.chisquare(degrees) / degrees)
        b = weight / np.bincount(s, weight, edges.n)[s]
        drawn: WeightedEdges = replace(edges, b=b, reward=reward, reward_std=std)
        with contextlib.suppress(RetvarError):  # that some draws never end
            yield solve_weighted(solution.mdp, drawn, None)


def _law_of_draw(law: Law, draw: Solution, points: Array, count: int) -> Array:
    """ψ of a draw after so many steps from the law of the data, moved to its mean and std."""
    old, right = law.solution, points > 0
    ratio = np.divide(
        draw.std, old.std, out=np.ones(len(law)), where=(draw.std > 0) & (old.std > 0)
    )
    shift = draw.mean - old.mean
    own = spread(points, law._bounds.points, Columns.of_itself(ratio, shift), law._bounds.above)
    own -= shift[:, None] * right
    epsilon = deviation(draw._edges, draw.value, old.mean)
    steps = Steps.of(draw._edges, epsilon, draw.variance, 1).above
    shift = draw._edges.expect(epsilon)
    for _ in range(count):
        own = spread(points, points, steps, own) - shift[:, None] * right
    return np.asarray(own + np.maximum(points, 0.0))
