"""The law of the return and the shares of its variance from data: those of the empirical MDP.

A functional f = E g(G) of the return from one state is linear in each row's distribution. Going
forwards from that state, w₀ = g and wₖ₊₁(s′, z) = Σ b wₖ(s, c + dz) over the edges to s′; with
W = Σ wₖ, what an edge of weight ω adds to f is

    ω/Σω(s) · (E W(s, c + dG′) − W̄(s)),      W̄(s) the mean of this over the edges of s,

and Σ of its squares over the rows is the variance of f. With λ < 1 the estimated value is part of
c = R + γ′(1−λ′)J′; a second adjoint, of its derivative, adds what each row does to J.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from scipy.stats import norm

from retvar.estimation.results import label_text
from retvar.estimation.return_sample import TAIL, Interval
from retvar.estimation.returns import discounts
from retvar.exact import Attribution, Solution, solve
from retvar.exact.attribution import attribution
from retvar.exact.law import QUANTILES, Bracket, Law, law_of
from retvar.exact.law_bounds import SHARE
from retvar.mdp import END, MDP
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.support.format import align, number, visible
from retvar.support.html import Shown, preformatted
from retvar.td.jit import compiled

__all__ = ["Empirical", "LawEstimate"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
MOST_EDGES = 20_000  # with more, rewards of a pair of states are gathered in bins
BINS = 0.1, 0.2, 0.5, 1.0
TOLERANCE = {True: 1e-3, False: 0.03}  # of the empirical law, in std; with few edges it has atoms
FEW_EDGES = 300
BESIDE = 0.01  # std beside an atom
SETTLED = 1e-3  # of the range of g that later steps may still add
MOST_STEPS = 100_000
TINY = 1e-300  # width of the cells of a return without spread
SAMPLES = 50  # of the Bayesian bootstrap
FEWEST = 30  # observed returns that a law is compared with
CONTRADICTED = 4.5  # standard errors
FEW = f"no interval where fewer than {TAIL} independent events stand for the tail"
NEW_ROWS = "rests on the rows read last: those of an earlier estimate are gone"


class Rows(NamedTuple):
    """Transitions that are alike, as one row: columns of equal length."""

    state: Integers
    next_state: Integers  #: END at an end
    gamma: Array
    lam: Array
    reward: Array
    reward_std: Array
    weight: Array  #: Σρ
    squares: Array  #: Σρ²


@dataclass(frozen=True, eq=False)
class LawEstimate(Shown):
    """The law of the return from one state, with intervals; `law` is that of the empirical MDP.

    Answers have the names of :class:`retvar.Law` and of roll-outs; each is an estimate with its
    interval, NaN where too few events stand for a tail.

    >>> import retvar as rv
    >>> lake = rv.experience.from_gymnasium("FrozenLake-v1", steps=50_000, seed=1)
    >>> found = rv.estimate(lake, gamma=0.99).law(14)
    >>> print(found.probability_below(0.5))
    0.601 [0.550, 0.651]
    """

    law: Law  #: of the state
    mean: Interval
    std: Interval
    level: float
    notes: tuple[str, ...]
    _all: Law  #: of all states that follow
    _rows: Rows

    def probability_below(self, limit: float) -> Interval:
        """Probability of a return below `limit`."""
        limit = arguments.number("limit", limit)
        low, high = self._ends(self.law.probability_below(limit))
        p = (low + high) / 2
        size = self._size(limit, p)
        if size * min(p, 1 - p) < TAIL:
            return Interval(p, math.nan, math.nan)
        return Interval(p, self._wilson(low, size)[0], self._wilson(high, size)[1])

    def quantile(self, share: float) -> Interval:
        """The return that a `share` of returns does not exceed."""
        found, size = self.law.quantile(arguments.level("share", share)), self._size_at(share)
        if size * min(share, 1 - share) < TAIL:
            return self._interval(found.middle, math.nan, math.nan)
        low, high = (self._ends(self.law.quantile(x)) for x in self._wilson(share, size))
        return self._interval(found.middle, low[0], high[1])

    def cvar(self, share: float = SHARE, tail: str = "lower") -> Interval:
        """Mean of the worst `share` of returns; with ``tail="upper"`` of the best."""
        found, sign = self.law.cvar(share, tail), 1.0 if tail == "lower" else -1.0
        at = share if sign > 0 else 1 - share
        if self._size_at(at) * min(share, 1 - share) < TAIL:
            return self._interval(found.middle, math.nan, math.nan)
        q = self.law.quantile(at).middle
        error = self._error(lambda z, h: np.maximum(sign * (q - z), 0.0) / share)
        reach = self._z * error
        return self._interval(found.middle, found.low - reach, found.high + reach)

    def _ends(self, bracket: Bracket) -> tuple[float, float]:
        """The bracket, where the law may have atoms and gaps; otherwise its middle is near."""
        atoms = self._rows.state.size <= FEW_EDGES
        return bracket if atoms else (bracket.middle, bracket.middle)

    def _interval(self, *numbers: float) -> Interval:
        """Returns, as exactly as the empirical law is known."""
        h = 1e-4 * self.law.std.middle or 1.0
        return Interval(*(round(x / h) * h if math.isfinite(x) else x for x in numbers))

    @property
    def _z(self) -> float:
        return float(norm.ppf(0.5 + self.level / 2))

    def _error(self, g: Callable[..., Array]) -> float:
        """Standard error of E g(G), for a function of the return and the width of a cell."""
        return influence(self._all, self._rows, g)

    def _size(self, limit: float, p: float) -> float:
        """How many independent returns would tell P(G < limit) = p as well; 0: none do."""
        error = self._error(lambda z, h: np.clip((limit - z) / h, 0.0, 1.0))
        return p * (1 - p) / error**2 if error > 0 else 0.0

    def _size_at(self, share: float) -> float:
        """The same at a quantile: beside it, where it is an atom."""
        low, high = self.law.quantile(share)
        step = BESIDE * self.law.std.middle
        sizes = []
        for limit in (low - step, high + step):
            p = self.law.probability_below(limit).middle
            sizes.append(self._size(limit, p))
        return min((size for size in sizes if size > 0), default=0.0)

    def _wilson(self, p: float, size: float) -> tuple[float, float]:
        """Wilson's interval of a share."""
        share = self._z**2 / size
        middle, root = p + share / 2, math.sqrt(share * p * (1 - p) + share**2 / 4)
        return (middle - root) / (1 + share), (middle + root) / (1 + share)

    def rows(self) -> dict[str, Interval]:
        """What a summary shows, by name."""
        quantiles = {f"quantile {q:.0%}": self.quantile(q) for q in QUANTILES}
        lower, upper = self.cvar(), self.cvar(tail="upper")
        tails = {f"CVaR {SHARE:.0%}": lower, f"upper CVaR {SHARE:.0%}": upper}
        return {"mean": self.mean, "std": self.std, **quantiles, **tails}

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: each answer as [estimate, low, high]."""
        return {**{name: list(x) for name, x in self.rows().items()}, "notes": list(self.notes)}

    def summary(self) -> str:
        """Mean, std, quantiles and tails with their intervals."""
        rows = self.rows()
        lines = align([[name, str(x)] for name, x in rows.items()], left=True)
        few = [FEW] if any(math.isnan(x.low) for x in rows.values()) else []
        heading = f"return of {visible(self.law.name)}, with {self.level:.0%} intervals"
        return "\n".join([heading, *lines, *few, *self.notes])

    __str__ = summary

    def _html(self) -> str:
        return preformatted(self.summary())


class Empirical:
    """The empirical MDP of the rows that an estimate was made from."""

    def __init__(self, found: Any) -> None:
        self._found, self._estimator = found, found.estimator
        if self._estimator.description.estimand == "off_policy_return":
            remedy = "is not bounded by data; use the target's return"
            raise InputError("estimand", "off_policy_return", remedy)

    def law(self, state: int, level: float) -> LawEstimate:
        """The law of the return from a state."""
        solution, rows = self._solved(state, self._rewards())
        law, estimator = law_of(solution, TOLERANCE[rows.state.size <= FEW_EDGES]), self._estimator
        asked = np.array([state])

        def known(what: str) -> Interval:
            ends = estimator.interval(what=what, states=asked, level=level)
            return Interval(*(float(x[0]) for x in (estimator.predict(asked, what), *ends)))

        found = LawEstimate(law[0], known("value"), known("std"), level, (), law, rows)
        return replace(found, notes=tuple(self._notes(found, state)))

    def attribution(self, state: int, level: float) -> Attribution:
        """The shares of the variance from a state, with intervals of a Bayesian bootstrap.

        Each sample weighs the rows that are alike by a gamma variable of as many events; the mean
        of their reward, and its variance, vary as those of so many normal numbers.
        """
        solution, rows = self._solved(state, self._pairs())
        found, rng = attribution(solution, 0), np.random.default_rng(0)
        if found.note:
            return found
        events = rows.weight**2 / rows.squares
        shares = []
        for _ in range(SAMPLES):
            weight = rows.weight * rng.gamma(events) / events
            reward = rows.reward + rows.reward_std * rng.normal(size=events.size) / np.sqrt(events)
            spread = rows.reward_std * np.sqrt(rng.chisquare(np.maximum(events - 1, 1)))
            other = rows._replace(
                weight=weight, reward=reward, reward_std=spread / np.sqrt(np.maximum(events - 1, 1))
            )
            one = attribution(_solve(other, solution.mdp.state_names), 0)
            if not one.note:
                shares.append(one.by_edge)
        by_state = [replace(found, by_edge=x).by_state for x in shares]
        intervals = {}
        for name, drawn in (("by_edge", shares), ("by_state", by_state)):
            reach = norm.ppf(0.5 + level / 2) * np.std(drawn, axis=0, ddof=1)
            centre = getattr(found, name)
            intervals[name] = np.clip([centre - reach, centre + reach], 0.0, 1.0)
        return replace(found, level=level, intervals=intervals)

    # ------------------------------------------------------------------ rows

    def _pairs(self) -> Rows:
        """Rows of equal states and discounts, from the sums: reward and its std."""
        parts = []
        for sums in [self._estimator.sums]:
            ends = np.where(sums.discount > 0, sums.next_state, END)
            key = np.stack([sums.state, ends, sums.discount, sums.trace_discount])
            (w, first, second), c = (sums.moment(1, b) for b in range(3)), sums.centre
            columns = w, first + c * w, second + 2 * c * first + c**2 * w, sums.moment(2, 0)
            parts.append(np.concatenate([key, columns]))
        table = np.concatenate(parts, axis=1)
        key, at = np.unique(table[:4], axis=1, return_inverse=True)
        found = np.stack([np.bincount(at.ravel(), x) for x in table[4:]])
        kept = found[0] > 0
        (s, after, gamma, trace), (weight, first, second, squares) = key[:, kept], found[:, kept]
        mean = first / weight
        std = np.sqrt(np.maximum(second / weight - mean**2, 0.0))
        lam = np.divide(trace, gamma, out=np.ones_like(gamma), where=gamma > 0)
        s, after = s.astype(np.int64), after.astype(np.int64)
        return Rows(s, after, gamma, lam, mean, std, weight, squares)

    def _rewards(self) -> Rows:
        """Rows of equal states, discounts and rewards, by a reading of the moves.

        Many different rewards are gathered in bins, with their mean.
        """
        moves = self._estimator.moves
        if not len(moves):
            raise InputError("law", "no rows", "the rows are gone; estimate again from the log")
        work, table = moves.in_database()
        given = [name for name in ("gamma", "lam") if name in moves.columns]
        keys = ", ".join(["state", "next_state", "terminated", *given])
        rho = "rho" if "rho" in moves.columns else "1.0"
        count = work.one(f"SELECT count(*) FROM (SELECT DISTINCT {keys}, reward FROM {table})")
        bins = "reward"
        if count > MOST_EDGES:
            within = f"SELECT var_pop(reward) v, count(*) n FROM {table} GROUP BY {keys}"
            width = math.sqrt(work.one(f"SELECT sum(v * n) / sum(n) FROM ({within})"))
            for part in BINS:  # of the standard deviation within pairs
                bins = f"round(reward / {part * width!r})"
                alike = f"SELECT DISTINCT {keys}, {bins} FROM {table}"
                if work.one(f"SELECT count(*) FROM ({alike})") <= MOST_EDGES:
                    break
        names = [*keys.split(", "), "weight", "first", "squares"]
        columns = work.execute(
            f"SELECT {keys}, sum({rho}) AS weight, sum({rho} * reward) AS first, "
            f"sum({rho} * {rho}) AS squares FROM {table} GROUP BY {keys}, {bins} "
            f"HAVING sum({rho}) > 0 ORDER BY {keys}, min(reward)"
        ).fetchnumpy()
        found = {name: np.asarray(columns[name]) for name in names}
        ended, after = found["terminated"].astype(bool), found["next_state"].astype(np.int64)
        gamma, lam = discounts(self._estimator, found, after)
        reward = found["first"] / found["weight"]
        ends = found["state"].astype(np.int64), np.where(ended, END, after)
        sums = found["weight"], found["squares"]
        return Rows(*ends, np.where(ended, 0.0, gamma), lam, reward, np.zeros_like(reward), *sums)

    def _solved(self, state: int, rows: Rows) -> tuple[Solution, Rows]:
        """The empirical MDP of the states that follow `state`, which is its first."""
        solution = self._estimator.solution
        value = solution.value
        if np.isnan(value[state]):
            raise InputError("state", state, f"has no estimate: {solution.note[state]}")
        live = rows.next_state != END
        ends = rows.state[live], rows.next_state[live]
        graph = scipy.sparse.coo_array((np.ones(live.sum()), ends), shape=(value.size,) * 2)
        order = scipy.sparse.csgraph.breadth_first_order(
            graph.tocsr(), state, return_predecessors=False
        )
        holes = np.setdiff1d(order, rows.state)  # entered and never left: as in least squares
        if holes.size:
            known, ones = np.isfinite(value), np.ones(holes.size)
            mean = np.average(value[known], weights=solution.visits[known])
            columns = 0 * ones, ones, mean * ones, 0 * ones, ones, ones
            rows = Rows(*map(np.append, rows, (holes, np.full_like(holes, END), *columns)))
        number = np.full(value.size + 1, END)
        number[order] = np.arange(order.size)
        kept = np.flatnonzero(number[rows.state] >= 0)
        kept = kept[np.argsort(number[rows.state[kept]], kind="stable")]  # as edges are sorted
        ends = number[rows.state[kept]], number[rows.next_state[kept]]
        own = Rows(*ends, *(np.asarray(x[kept]) for x in rows[2:]))
        labels = self._found.experience.labels
        names = [str(s) if labels is None else label_text(labels[s]) for s in order.tolist()]
        return _solve(own, names), own

    def _notes(self, found: LawEstimate, state: int) -> list[str]:
        """Whether rows are missing, and whether observed returns contradict the law."""
        notes = [NEW_ROWS] if len(self._estimator.moves) < self._estimator.steps else []
        if self._estimator.off_policy:
            return notes
        returns = self._found.return_intervals.by_state.of(state)
        for share in (0.1, 0.5, 0.9) if returns.size >= FEWEST else ():
            low, high = found.law.quantile(share)
            least, most = np.mean(returns < low), np.mean(returns <= high)
            noise = math.hypot(
                math.sqrt(share * (1 - share) / returns.size),
                found._error(lambda z, h, x=(low + high) / 2: np.clip((x - z) / h, 0.0, 1.0)),
            )
            if not least - CONTRADICTED * noise <= share <= most + CONTRADICTED * noise:
                notes.append(
                    f"the data's own returns contradict this: {least:.0%} of {returns.size:,} "
                    f"lie below {number(low)}, not {share:.0%}; the states look non-Markov"
                )
        return notes


def _solve(rows: Rows, names: Any) -> Solution:
    """The solution of the MDP that the rows are edges of."""
    n = len(names)
    total = np.bincount(rows.state, rows.weight, n)
    zero = np.zeros_like(rows.state)
    lam = np.ones(n)
    live = rows.next_state != END
    lam[rows.next_state[live]] = rows.lam[live]
    if np.any(np.abs(lam[rows.next_state[live]] - rows.lam[live]) > 1e-12):
        raise InputError("lam", "of each row", "must be one number for each state arrived in")
    probability = rows.weight / total[rows.state]
    columns = rows.state, zero, rows.next_state, probability, rows.reward, rows.reward_std
    mdp = MDP((*columns, rows.gamma), states=list(names), actions=["any"], lam=lam)
    return solve(mdp)


# ---------------------------------------------------------------------- influence


def influence(law: Law, rows: Rows, g: Callable[..., Array]) -> float:
    """Standard error of E g(G) of the first state of an empirical MDP."""
    edges, bounds, H = law.solution._edges, law._bounds, law.solution._bootstrap
    weight, squares = rows.weight[edges.number], rows.squares[edges.number]
    points = bounds.points + law.solution.mean[:, None]
    c = edges.reward + edges.gamma * (1 - edges.lam) * H[edges.next_state]
    ends = np.where(edges.ends, -1, edges.next_state)
    own = g(points[0], np.maximum(np.gradient(points[0]), TINY))
    columns = edges.state, ends, edges.b, c, edges.decay
    total = weights(points, columns, own, SETTLED)
    share = np.diff(bounds._upper, axis=1) / np.diff(bounds.points, axis=1)
    mass = np.maximum(np.diff(share, axis=1, prepend=0.0, append=1.0), 0.0)
    mass /= mass.sum(axis=1, keepdims=True)
    inner, slope = expectations(points, mass, columns, total)
    total_weight = np.bincount(edges.state, weight, edges.n)
    inner -= edges.expect(inner)[edges.state]
    bent = edges.gamma * (1 - edges.lam)
    if bent.any():
        push = np.bincount(edges.next_state, edges.b * bent * slope, edges.n)
        inverse = scipy.sparse.eye_array(edges.n) - edges.matrix(edges.gamma).T
        adjoint = scipy.sparse.linalg.spsolve(inverse.tocsc(), push)
        delta = edges.reward + edges.gamma * H[edges.next_state] - H[edges.state]
        inner += adjoint[edges.state] * delta
    events = total_weight**2 / np.bincount(edges.state, squares, edges.n)
    factor = events / np.maximum(events - 1, 1.0)
    added = factor[edges.state] * squares * (inner / total_weight[edges.state]) ** 2
    return math.sqrt(added.sum())


@compiled
def weights(points: Any, edges: Any, own: Any, settled: Any) -> Any:
    """W = Σ wₖ on the grids, from g on that of the first state."""
    state, after, b, c, d = edges
    n, m = points.shape
    now, total = np.zeros((n, m)), np.zeros((n, m))
    now[0] = own
    most = own.max() - own.min()
    for _ in range(MOST_STEPS):
        new = np.zeros((n, m))
        total += now
        for e in range(b.size):
            s, a, k = state[e], after[e], 0
            if a < 0 or d[e] == 0:
                continue
            for j in range(m):
                z = c[e] + d[e] * points[a, j]
                while k < m - 2 and points[s, k + 1] <= z:
                    k += 1
                t = (z - points[s, k]) / max(points[s, k + 1] - points[s, k], TINY)
                t = min(max(t, 0.0), 1.0)
                new[a, j] += b[e] * ((1 - t) * now[s, k] + t * now[s, k + 1])
        now = new
        widest = 0.0
        for s in range(n):
            widest = max(widest, now[s].max() - now[s].min())
        if widest <= settled * most:
            break
    return total


@compiled
def expectations(points: Any, mass: Any, edges: Any, total: Any) -> Any:
    """E W(s, c + dG′) of each edge, and its derivative by c."""
    state, after, b, c, d = edges
    inner, slope = np.zeros(b.size), np.zeros(b.size)
    m = points.shape[1]
    for e in range(b.size):
        s, a, k = state[e], after[e], 0
        alone = a < 0 or d[e] == 0
        for j in range(1 if alone else m):
            z = c[e] if alone else c[e] + d[e] * points[a, j]
            p = 1.0 if alone else mass[a, j]
            while k < m - 2 and points[s, k + 1] <= z:
                k += 1
            width = max(points[s, k + 1] - points[s, k], TINY)
            t = (z - points[s, k]) / width
            u = min(max(t, 0.0), 1.0)
            inner[e] += p * ((1 - u) * total[s, k] + u * total[s, k + 1])
            if t == u:
                slope[e] += p * (total[s, k + 1] - total[s, k]) / width
    return inner, slope
