"""The law of the return in every state, as a bracket that certainly contains it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retvar.exact.law_bounds import SHARE, Bounds, Refinement
from retvar.exact.solution import Solution, solve
from retvar.support import arguments
from retvar.support.errors import ConvergenceError, InputError
from retvar.support.format import align, count, number, visible

if TYPE_CHECKING:
    from retvar.mdp import MDP
    from retvar.mdp.weighted_edges import Estimand

__all__ = ["Bracket", "Law", "StateLaw", "law", "law_of"]

Array = NDArray[np.float64]
FINEST = 1e-8  # tolerance, in std, that grids may meet
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)  # of summaries
TAILS = ("lower", "upper")


class Bracket(NamedTuple):
    """A number that certainly lies between two others; or arrays of such, one entry a state.

    >>> print(Bracket(1.23456, 1.23499))
    [1.23456, 1.23499]
    """

    low: Any
    high: Any

    def __str__(self) -> str:
        width = float(np.max(self.high - self.low))
        if not (0 < width < math.inf) or np.ndim(self.low):
            return f"[{self.low}, {self.high}]" if np.ndim(self.low) else number(self.low)
        decimals = int(np.clip(1 - math.floor(math.log10(width)), 0, 12))
        low, high = (f"{x:.{decimals}f}" for x in self)
        return f"[{low}, {high}]" if low != high else low

    @property
    def middle(self) -> Any:
        """Half-way between the ends."""
        return (self.low + self.high) / 2


class StateLaw:
    """The law of the return of one state: each answer is a :class:`Bracket` of two numbers.

    >>> import retvar as rv
    >>> start = rv.law(rv.MDP.from_gymnasium("FrozenLake-v1", gamma=0.9))[14]
    >>> start.probability_below(0.5)
    Bracket(low=0.5..., high=0.5...)
    """

    def __init__(self, law: Law, state: int) -> None:
        self.law, self.index = law, state
        self._bounds = law._bounds.of(np.array([state]))
        self.mean = float(law.mean[state])

    @property
    def name(self) -> str:
        """The state's name."""
        return self.law.solution.mdp.state_name(self.index)

    def _bracket(self, ends: tuple[Array, Array], shift: bool = True) -> Bracket:
        return Bracket(*(float(x[0]) + self.mean * shift for x in ends))

    @property
    def variance(self) -> Bracket:
        """Variance."""
        return self._bracket(self._bounds.variance(), False)

    @property
    def std(self) -> Bracket:
        """Standard deviation."""
        return Bracket(*map(math.sqrt, self.variance))

    def cvar(self, share: float = SHARE, tail: str = "lower") -> Bracket:
        """Mean of the worst `share` of returns; with ``tail="upper"`` of the best."""
        return self._bracket(_tail_mean(self._bounds, share, tail))

    def quantile(self, share: float) -> Bracket:
        """The return that a `share` of returns does not exceed."""
        return self._bracket(self._bounds.quantile(arguments.level("share", share)))

    def probability_below(self, limit: float) -> Bracket:
        """Probability of a return below `limit`."""
        x = np.array([arguments.number("limit", limit) - self.mean])
        return self._bracket(self._bounds.below(x), False)

    def distribution(self, limits: ArrayLike | None = None) -> tuple[Array, Array, Array]:
        """Limits, and the ends of the brackets of the probability of a return below each.

        By default 241 limits, from where nearly no return is below to where nearly all are.

        >>> import retvar as rv
        >>> x, low, high = rv.law(rv.domains.chain())["s0"].distribution()
        >>> bool(np.all(low <= high)), round(float(high[0]), 3), round(float(low[-1]), 3)
        (True, 0.001, 0.999)
        """
        if limits is None:
            ends = self.quantile(1e-3).low, self.quantile(1 - 1e-3).high
            pad = 0.02 * (ends[1] - ends[0]) or 0.5
            limits = np.linspace(ends[0] - pad, ends[1] + pad, 241)
        x = arguments.numbers("limits", limits)
        bounds = self._bounds.of(np.zeros(x.size, dtype=np.intp))
        return x, *bounds.below(x - self.mean)

    def rows(self) -> dict[str, Bracket]:
        """What a summary shows: std, quantiles and both tails, by name."""
        rows = {"std": self.std}
        rows |= {f"quantile {q:.0%}": self.quantile(q) for q in QUANTILES}
        return rows | {
            f"CVaR {SHARE:.0%}": self.cvar(),
            f"best {SHARE:.0%}": self.cvar(tail="upper"),
        }

    def summary(self) -> str:
        """A few lines: mean, spread, quantiles and tails."""
        lines = [f"{'mean':14}{number(self.mean)}"]
        lines += [f"{name:14}{bracket}" for name, bracket in self.rows().items()]
        return "\n".join([f"return of {visible(self.name)}, bracketed", *lines, *self.law.notes])

    __str__ = summary


@dataclass(frozen=True, eq=False)
class Law:
    """The law of the return in every state; index it by state for one of them.

    Every answer is a :class:`Bracket` with one entry a state, which certainly contains the truth.
    Those of states with an infinite variance are NaN. `width` says for each state how wide the
    brackets of the std and of CVaR 5%, lower and upper, are at most, in std, rounding aside.

    >>> import retvar as rv
    >>> found = rv.law(rv.domains.chain(lam=1), tolerance=1e-4)
    >>> found.cvar(0.05).middle.round(2)    # of a normal distribution: mean − 2.0627 std
    array([-0.13, -0.57, -0.92, -1.06])
    >>> print(found["s0"].quantile(0.5))
    [3.98..., 4.01...]
    """

    solution: Solution
    tolerance: float
    width: Array
    _bounds: Bounds

    @property
    def mdp(self) -> MDP:
        """The MDP."""
        return self.solution.mdp

    @property
    def mean(self) -> Array:
        """The mean of the return."""
        return np.where(np.isfinite(self.solution.variance), self.solution.mean, np.nan)

    @cached_property
    def variance(self) -> Bracket:
        """Variance."""
        return self._bracket(self._bounds.variance(), False)

    @property
    def std(self) -> Bracket:
        """Standard deviation."""
        return Bracket(*map(np.sqrt, self.variance))

    def cvar(self, share: float = SHARE, tail: str = "lower") -> Bracket:
        """Mean of the worst `share` of returns; with ``tail="upper"`` of the best."""
        return self._bracket(_tail_mean(self._bounds, share, tail))

    def quantile(self, share: float) -> Bracket:
        """The return that a `share` of returns does not exceed; wide where the law has a gap."""
        return self._bracket(self._bounds.quantile(arguments.level("share", share)))

    def probability_below(self, limit: ArrayLike) -> Bracket:
        """Probability of a return below `limit`: one number, or one a state."""
        x = arguments.numbers("limit", limit, len(self)) - self.solution.mean
        return self._bracket(self._bounds.below(x), False)

    def _bracket(self, ends: tuple[Array, Array], shift: bool = True) -> Bracket:
        move = self.mean if shift else 0.0 * self.mean  # NaN where there is no answer
        return Bracket(*(x + move for x in ends))

    @property
    def reached(self) -> bool:
        """Whether all states are within the tolerance."""
        return bool(np.max(self.width) <= self.tolerance)

    @property
    def notes(self) -> list[str]:
        """A sentence if the tolerance was not reached, and one for infinite variances."""
        if self.reached:
            return list(self.solution.notes)
        wide = f"std and CVaR are known to {np.max(self.width):.1g} std in the widest state, "
        return [f"{wide}not to {self.tolerance:g}", *self.solution.notes]

    def __len__(self) -> int:
        return len(self.solution)

    def __getitem__(self, state: int | str) -> StateLaw:
        return StateLaw(self, self.mdp.state_index(state))

    def __repr__(self) -> str:
        return f"Law({count(len(self), 'state')}, within {np.max(self.width):.1g} std)"

    def summary(self, most: int = 100) -> str:
        """A table of the first `most` states: in the middle of each bracket."""
        columns = {"mean": self.mean, "std": self.std.middle}
        columns |= {f"CVaR {SHARE:.0%}": self.cvar().middle}
        columns |= {f"{q:.0%}": self.quantile(q).middle for q in QUANTILES}
        rows = [["state", *columns]]
        for s, numbers in enumerate(zip(*(x[:most] for x in columns.values()), strict=True)):
            rows.append([visible(self.mdp.state_name(s)), *(f"{x:.4g}" for x in numbers)])
        width = max(len(row[0]) for row in rows)
        lines = align([[row[0].ljust(width), *row[1:]] for row in rows])
        rest = len(self) + 1 - len(rows)
        return "\n".join([*lines, *[f"… and {rest:,} more states"] * (rest > 0), *self.notes])

    __str__ = summary


def law(
    mdp: MDP,
    target: object = None,
    behaviour: object = None,
    estimand: Estimand = "target_return",
    lam: ArrayLike | None = None,
    *,
    tolerance: float = 1e-3,
) -> Law:
    """Bracket the law of the λ-return of every state; the other arguments are those of `solve`.

    Two laws on a grid, one above and one below in convex order, enclose that of the return. They
    are refined until in every state the std and the CVaR of 5%, lower and upper, are known within
    `tolerance` std, or half a minute of work is spent; :attr:`Law.width` then says how wide they
    are. Probabilities and quantiles have the width they have: at an atom a probability covers it,
    in a gap of the law a quantile covers that.

    Normal noise, γ = 1 and importance ratios make returns without bounds; brackets hold all the
    same, wherever the variance is finite.

    >>> import retvar as rv
    >>> cliff = rv.law(rv.MDP.from_gymnasium("CliffWalking-v1", gamma=0.9))
    >>> print(cliff[36].cvar(0.05))
    [-397.8237, -397.8171]
    """
    return law_of(solve(mdp, target, behaviour, estimand, None, lam), tolerance)


def law_of(solution: Solution, tolerance: float = 1e-3) -> Law:
    """The law of the returns that a solution is about."""
    tolerance = arguments.between("tolerance", tolerance, 1.0, "must lie between 0 and 1, in std")
    if tolerance < FINEST:
        raise InputError("tolerance", tolerance, f"must be at least {FINEST:g}: no grid is finer")
    refinement = Refinement(solution, tolerance)
    for bounds in refinement.iterates():  # noqa: B007
        pass
    low, high = (np.sqrt(x) for x in bounds.variance())
    wrong = ((solution.std < low) | (solution.std > high)) & refinement.finite
    if wrong.any() or np.any(bounds.contradicts() & refinement.finite):
        raise ConvergenceError("the variance lies outside the bracket of the law: please report it")
    return Law(solution, tolerance, bounds.width(refinement.std), bounds)


def _tail_mean(bounds: Bounds, share: float, tail: str) -> tuple[Array, Array]:
    share = arguments.level("share", share)
    lower = arguments.choice("tail", tail, TAILS) == "lower"
    return bounds.worst(share) if lower else bounds.best(share)
