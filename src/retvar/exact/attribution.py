"""Where the variance of a return arises: the share of each edge, action and state.

The deviation of the λ-return from its mean is Σ_t D_t ε_t, with D_t the product of the c = ηγ′λ′ of
the steps before t and ε of :mod:`retvar.exact.moments`. E[ε] = 0 in every state, so that its terms
are uncorrelated, and the variance from s₀ is a sum over edges:

    v(s₀) = Σ z(s) b (ε̄² + η²w)        z = (I − B)⁻ᵀ e(s₀)    visits, weighted by D²
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from retvar.exact.moments import deviation, moment_system, noisy_states
from retvar.mdp import END, MDP
from retvar.support import arguments
from retvar.support.format import align, visible
from retvar.support.html import Shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from retvar.exact.solution import Solution

__all__ = ["Attribution", "Contribution"]

Array = NDArray[np.float64]
PLOTS = "retvar.plots"  # lies above this module, and is looked up when a figure is asked for
SHOWN, LEAST = 10, 5e-4  # edges of a table, and the least share of one
INFINITE = "the variance is infinite: it has no shares"
NO_VARIANCE = "the variance is 0: it has no shares"


class Contribution(NamedTuple):
    """What an edge adds to the variance of a return, as a share of it.

    >>> import retvar as rv
    >>> rv.solve(rv.domains.chain(lam=1)).attribution("s2").top(1)
    [Contribution(state='s2', action='go', next_state='s3', share=0.5, noise=0.5)]
    """

    state: str
    action: str
    next_state: str  #: ``end`` where the episode ends
    share: float
    noise: float  #: the part of the share that is noise of the reward


@dataclass(frozen=True, eq=False)
class Attribution(Shown):
    """Shares of the variance of the return from a state; they add to 1.

    >>> import retvar as rv
    >>> found = rv.solve(rv.domains.complex_mdp()).attribution("s1")
    >>> found.by_state.round(3)
    array([0.   , 0.981, 0.   , 0.019, 0.   ])
    >>> [(x.next_state, round(x.share, 3)) for x in found.top(2)]
    [('s2', 0.433), ('s3', 0.368)]
    """

    mdp: MDP
    state: str  #: name of the state that the return starts from
    variance: float  #: shares times this are contributions in its unit
    by_edge: Array  #: share of each edge of ``mdp.edges``; 0 for edges that are not taken
    noise: Array  #: the part of it that is noise of the reward, not from which edge is taken
    note: str  #: why there are no shares, which are then NaN; otherwise empty
    intervals: Mapping[str, Array] = field(default_factory=dict)  #: ends, by name; if from data
    level: float = math.nan  #: of these intervals

    @property
    def by_action(self) -> Array:
        """Share of each action of each state [state, action]."""
        shape = self.mdp.n_states, self.mdp.n_actions
        pair = self.mdp.edges.state * shape[1] + self.mdp.edges.action
        found = np.bincount(pair, self.by_edge, shape[0] * shape[1])
        return np.asarray(found, dtype=np.float64).reshape(shape)

    @property
    def by_state(self) -> Array:
        """Share of each state."""
        return np.asarray(self.by_action.sum(axis=1))

    def top(self, most: int = SHOWN) -> list[Contribution]:
        """The edges with the largest shares; those below 0.05% are left out."""
        e, found = self.mdp.edges, []
        for k in self._largest(most):
            after = "end" if e.next_state[k] == END else self.mdp.state_name(int(e.next_state[k]))
            state, action = (int(column[k]) for column in (e.state, e.action))
            names = self.mdp.state_name(state), self.mdp.action_name(action), after
            found.append(Contribution(*names, float(self.by_edge[k]), float(self.noise[k])))
        return found

    def top_intervals(self, most: int = SHOWN) -> Array:
        """Lower and upper ends of these shares; without data, the shares."""
        ends = self.intervals.get("by_edge", np.stack([self.by_edge, self.by_edge]))
        return np.asarray(ends[:, self._largest(most)])

    def _largest(self, most: int) -> NDArray[np.intp]:
        order = np.argsort(-self.by_edge, kind="stable")[: arguments.integer("most", most, 1)]
        return order[self.by_edge[order] >= LEAST]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "state": self.state,
            "note": self.note,
            "by_state": self.by_state.tolist(),
            "top": [contribution._asdict() for contribution in self.top()],
            **{f"{name}_interval": ends.tolist() for name, ends in self.intervals.items()},
        }

    def __str__(self) -> str:
        top, heading = self.top(), ["state", "action", "next state", "share"]
        known, noisy = bool(self.intervals), any(x.noise for x in top)
        rows = [[*heading, *[f"{self.level:.0%}"] * known, *["of it reward noise"] * noisy]]
        for x, ends in zip(top, self.top_intervals().T, strict=True):
            interval = [" … ".join(f"{end:.1%}" for end in ends)] * known
            rows.append([*x[:3], f"{x.share:.1%}", *interval, *[f"{x.noise:.1%}"] * noisy])
        title = f"variance of the return from {visible(self.state)}: {self.variance:.6g}"
        return "\n".join([title, *([self.note] if self.note else align(rows, left=True))])

    def plot(self) -> Figure:
        """Draw it by :func:`retvar.plots.attribution`."""
        figure: Figure = importlib.import_module(PLOTS).attribution(self)
        return figure


def attribution(solution: Solution, state: int | str) -> Attribution:
    """The shares of a solution; see :meth:`retvar.Solution.attribution`."""
    mdp, edges = solution.mdp, solution._edges
    s = mdp.state_index(state)
    variance = float(solution._spread[s])
    by_edge, noise = np.full((2, mdp.edges.state.size), np.nan)
    note = INFINITE if np.isnan(variance) else NO_VARIANCE if variance == 0 else ""
    if not note:
        epsilon = deviation(edges, solution._bootstrap, solution.mean)
        system = moment_system(edges, 2, lambda: noisy_states(edges, epsilon, solution.mean))
        weight = system.visits(np.eye(1, edges.n, s)[0])[edges.state] * edges.b
        shares = np.stack([weight * epsilon**2, weight * (edges.eta * edges.reward_std) ** 2])
        shares /= shares.sum()
        by_edge[:] = noise[:] = 0.0
        by_edge[edges.number], noise[edges.number] = shares.sum(axis=0), shares[1]
    return Attribution(mdp, mdp.state_name(s), variance, by_edge, noise, note)
