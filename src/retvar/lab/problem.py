"""What a view is about: an MDP, and the Python that makes it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from retvar import arguments, domains
from retvar.exact import Solution, solve
from retvar.mdp import MDP

__all__ = ["DOMAINS", "Problem"]

DOMAINS = ("chain", "complex-mdp", "random-walk", "windy-cliff")
"""Names of the domains that the views offer."""


@dataclass(frozen=True, eq=False)
class Problem:
    """An MDP with the lines of Python that make it, and its exact solution.

    Attributes
    ----------
    mdp
        The MDP.
    code
        Lines that assign it to ``mdp``; they may use ``rv``.

    Examples
    --------
    >>> problem = Problem.named("chain", lam=1.0)
    >>> problem.code
    'mdp = rv.domains.find("chain").replace(lam=1.0)'
    >>> problem.solution.variance
    array([4., 3., 2., 1.])
    """

    mdp: MDP
    code: str

    @classmethod
    def named(cls, name: str, gamma: float | None = None, lam: float | None = None) -> Problem:
        """A domain by name, with its own γ and λ or with others."""
        arguments.choice("domain", name, DOMAINS)
        return cls(domains.find(name), f'mdp = rv.domains.find("{name}")').discounted(gamma, lam)

    def discounted(self, gamma: float | None = None, lam: float | None = None) -> Problem:
        """The same with another γ and λ; None leaves them as they are."""
        changes = {"gamma": gamma, "lam": lam}
        changes = {name: x for name, x in changes.items() if x is not None}
        if not changes:
            return self
        given = ", ".join(f"{name}={x!r}" for name, x in changes.items())
        return Problem(self.mdp.replace(**changes), f"{self.code}.replace({given})")

    @cached_property
    def solution(self) -> Solution:
        """Exact value and variance."""
        return solve(self.mdp)

    @cached_property
    def error_size(self) -> NDArray[np.float64]:
        """Root mean square of the TD error δ in each state, at the exact value."""
        return np.sqrt(solve(self.mdp, lam=0.0).variance)

    @cached_property
    def states(self) -> list[str]:
        """Names of the states."""
        return [self.mdp.state_name(s) for s in range(self.mdp.n_states)]

    def telling(self) -> int:
        """The state whose value is farthest from zero, in units of its standard deviation."""
        spread = np.maximum(self.solution.std, 1e-9)
        known = np.nan_to_num(np.abs(self.solution.value) / spread, posinf=0.0)
        return int(np.argmax(np.where(self.solution.std > 1e-9, known, -1.0)))
