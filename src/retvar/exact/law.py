"""The law of the return in every state, as a bracket that certainly contains it."""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retvar.exact.law_bounds import SHARE, Bounds, Refinement
from retvar.exact.solution import Solution, solve
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.support.format import align, number, visible
from retvar.support.html import Shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from retvar.mdp import MDP
    from retvar.mdp.weighted_edges import Estimand

__all__ = ["Answers", "Bracket", "Law", "law", "law_of"]

Array = NDArray[np.float64]
PLOTS = "retvar.plots"  # lies above this module, and is looked up when a figure is asked for
FINEST = 1e-8  # tolerance, in std, that grids may meet
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)  # of summaries
ROWS = 100  # states of a summary
APART = "beside it the variance of small ones is lost; solve them apart"


class Bracket(NamedTuple):
    """A number that certainly lies between two others; or arrays of such, one entry a state.

    >>> print(Bracket(1.23456, 1.23499))
    [1.23456, 1.23499]
    """

    low: Any
    high: Any

    def __str__(self) -> str:
        width = float(np.max(self.high - self.low))
        if np.ndim(self.low) or not 0 < width < math.inf:
            return f"[{self.low}, {self.high}]" if np.ndim(self.low) else number(self.low)
        decimals = int(np.clip(1 - math.floor(math.log10(width)), 0, 12))
        low, high = (f"{round(x, decimals) + 0.0:.{decimals}f}" for x in self)
        return f"[{low}, {high}]" if low != high else low

    @property
    def middle(self) -> Any:
        """Half-way between the ends."""
        return (self.low + self.high) / 2


class Answers(Shown):
    """What can be asked of the law of a return; each answer is a number with its ends."""

    law: Any  #: the exact one; from data, that of the empirical MDP
    mean: Any
    std: Any
    quantile: Any
    cvar: Any
    probability_below: Any
    notes: Any
    costs: Any = False  #: whether returns are costs

    def __len__(self) -> int:
        return len(self.law.solution) if self.law.state is None else 1

    @property
    def name(self) -> str:
        """The name of the state."""
        state = self.law.state
        return "all states" if state is None else str(self.law.mdp.state_name(state))

    def rows(self) -> dict[str, Any]:
        """What a summary shows: std, quantiles, both tails; of one state probabilities, by name."""
        quantiles = {f"quantile {q:.0%}": self.quantile(q) for q in QUANTILES}
        rows = {"mean": self.mean, "std": self.std, **quantiles, **self.tails}
        limits = []
        if self.law.state is not None:
            away = (1, 2) if self.costs else (-1, -2)
            limits = [0.0, *(self.law.mean + k * self.law.std.middle for k in away)]
        for x in (float(f"{limit:.4g}") for limit in limits):
            rows[f"below {x:.4g}"] = self.probability_below(x)
        return rows

    @property
    def tails(self) -> dict[str, Any]:
        """The mean of the worst 5% of returns, and of the best."""
        names = f"CVaR {SHARE:.0%}", f"best {SHARE:.0%}"
        return {name: self.cvar(tail=x) for name, x in zip(names, self.worst_and_best, strict=True)}

    @property
    def worst_and_best(self) -> tuple[str, str]:
        """The tail of the worst returns, and of the best; of costs the largest are worst."""
        return ("upper", "lower") if self.costs else ("lower", "upper")

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: each answer as a list."""
        rows = {k: list(x) if isinstance(x, tuple) else x for k, x in self.rows().items()}
        return {"at": self.name, **rows, "notes": self.notes}

    @property
    def heading(self) -> str:
        """What is told."""
        return f"return from {visible(self.name)}"

    def summary(self) -> str:
        """The answers for one state; a table of the numbers of the first 100 states."""
        rows = self.rows()
        if self.law.state is not None:
            text = [[k, str(x) if isinstance(x, tuple) else number(x)] for k, x in rows.items()]
            return "\n".join([self.heading, *align(text, left=True), *self.notes])
        columns: Any = [
            getattr(x, "middle", x[0] if isinstance(x, tuple) else x) for x in rows.values()
        ]
        table = [["state", *rows]]
        for s, numbers in enumerate(np.transpose(columns)[:ROWS]):
            table.append([self.law.mdp.state_name(s), *(f"{x:.4g}" for x in numbers)])
        rest = [f"… and {len(self) - ROWS:,} more states"] * (len(self) > ROWS)
        return "\n".join([*align(table), *rest, *self.notes])

    __str__ = summary

    def __repr__(self) -> str:
        within = f"within {np.max(self.law.width):.1g} std"
        return f"{type(self).__name__}({visible(self.name)}, {within})"

    def plot(self) -> Figure:
        """Draw the law of one state by :func:`retvar.plots.law`."""
        figure: Figure = importlib.import_module(PLOTS).law(self)
        return figure


@dataclass(frozen=True, eq=False, repr=False)
class Law(Answers):
    """The law of the return in every state; index it by state for that of one.

    Every answer is a :class:`~retvar.exact.law.Bracket` that certainly contains the truth: two
    arrays with one entry a state, or two numbers for one state. States with an infinite variance
    have NaN. `width` says how wide the brackets of the std and of CVaR 5%, lower and upper, are at
    most, in std, rounding aside.

    >>> import retvar as rv
    >>> found = rv.law(rv.domains.chain(lam=1), tolerance=1e-3)
    >>> found.cvar(0.05).middle.round(2)    # of a normal distribution: mean − 2.0627 std
    array([-0.13, -0.57, -0.92, -1.06])
    >>> print(found["s0"].quantile(0.5))
    [3.96..., 4.03...]
    """

    solution: Solution
    tolerance: float
    width: Array
    _bounds: Bounds
    state: int | None = None  #: the one that this is about; None: all

    @property
    def law(self) -> Law:
        """Itself."""
        return self

    @property
    def mdp(self) -> MDP:
        """The MDP."""
        return self.solution.mdp

    @property
    def mean(self) -> Any:
        """Exact mean, a number or one a state."""
        found = np.where(np.isfinite(self.solution.variance), self.solution.mean, np.nan)
        return found if self.state is None else float(found[self.state])

    def _bracket(self, low: Array, high: Array, shift: float = 1.0) -> Bracket:
        ends = (x if self.state is None else float(x[0]) for x in (low, high))
        return Bracket(*(end + shift * self.mean for end in ends))  # NaN: no answer

    @property
    def variance(self) -> Bracket:
        """Variance."""
        return Bracket(*(x**2 for x in self.std))

    @property
    def std(self) -> Bracket:
        """Standard deviation."""
        return self._bracket(*self._bounds.std(), 0.0)

    def cvar(self, share: float = SHARE, tail: str = "lower") -> Bracket:
        """Mean of the worst `share` of returns; with ``tail="upper"`` of the best."""
        share = arguments.level("share", share)
        lower = arguments.choice("tail", tail, ("lower", "upper")) == "lower"
        return self._bracket(*(self._bounds.worst if lower else self._bounds.best)(share))

    def quantile(self, share: float) -> Bracket:
        """The return that a `share` of returns does not exceed; wide where the law has a gap."""
        return self._quantiles(np.array([arguments.level("share", share)]))

    def _quantiles(self, shares: Array) -> Bracket:
        """Quantiles of a share for each state."""
        return self._bracket(*self._bounds.quantile(shares[:, None]))

    def probability_below(self, limit: ArrayLike) -> Bracket:
        """Probability of a return below `limit`: one number, or one a state."""
        x = arguments.numbers("limit", limit, len(self))
        return self._bracket(*self._bounds.below(x - self.mean), 0.0)

    @property
    def reached(self) -> bool:
        """Whether all states are within the tolerance."""
        return bool(np.max(self.width) <= self.tolerance)

    @property
    def notes(self) -> list[str]:
        """A sentence if the tolerance was not reached, and one for infinite variances."""
        wide = f"std and CVaR are known to {np.max(self.width):.1g} std in the widest state, "
        return [f"{wide}not to {self.tolerance:g}"] * (not self.reached) + self.solution.notes

    def __getitem__(self, state: int | str) -> Law:
        if self.state is not None:
            remedy = f"must be asked of the law of all states, not {self!r}"
            raise InputError("state", state, remedy)
        s = self.mdp.state_index(state)
        return replace(self, _bounds=self._bounds.of(np.array([s])), width=self.width[[s]], state=s)


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
    `tolerance` std, or half a minute of work is spent; ``Law.width`` then says how wide they
    are. Probabilities and quantiles have the width they have: at an atom a probability covers it,
    in a gap of the law a quantile covers that.

    Normal noise, γ = 1 and importance ratios make returns without bounds; brackets hold all the
    same, wherever the variance is finite.

    >>> import retvar as rv
    >>> cliff = rv.law(rv.MDP.from_gymnasium("CliffWalking-v1", gamma=0.9))
    >>> print(cliff[36].cvar(0.05))
    [-397.82..., -397.81...]
    """
    return law_of(solve(mdp, target, behaviour, estimand, None, lam), tolerance)


def law_of(solution: Solution, tolerance: float = 1e-3) -> Law:
    """The law of the returns that a solution is about."""
    tolerance = arguments.between("tolerance", tolerance, 1.0, "must lie between 0 and 1, in std")
    if tolerance < FINEST:
        raise InputError("tolerance", tolerance, f"must be at least {FINEST:g}: no grid is finer")
    for bounds in Refinement(solution, tolerance).iterates():  # noqa: B007
        pass
    if np.any(bounds.contradicts()):
        largest = np.max(np.abs(solution._edges.reward))
        raise InputError("reward", f"up to {largest:.3g}", APART)
    return Law(solution, tolerance, bounds.width(), bounds)
