"""The edges of an MDP as a question about the return weighs them.

With b the probability of an edge under the policy that the return is sampled from and η its weight
in the return, every closed form is made of two operations: E[x](s) = Σ b x over the edges that
leave s, and matrices Σ b x from s to s′. On-policy and for ``target_return`` b = π, η = 1; for
``off_policy_return`` b = μ, η = ρ = π/μ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import scipy.sparse
import scipy.sparse.csgraph
from numpy.typing import ArrayLike, NDArray

from retvar import arguments
from retvar.errors import InputError
from retvar.format import listed
from retvar.linear import Resolvent, Solved
from retvar.mdp.parsing import END

if TYPE_CHECKING:
    from retvar.mdp.model import MDP
    from retvar.mdp.policy import Policy

__all__ = ["Estimand", "WeightedEdges", "ask", "importance_ratio", "state_values"]

Array = NDArray[np.float64]
Estimand = Literal["target_return", "off_policy_return"]


@dataclass(frozen=True, eq=False)
class WeightedEdges:
    """Edges with positive probability b, and what each carries; arrays have one entry an edge."""

    n: int
    state: NDArray[np.intp]
    next_state: NDArray[np.intp]  #: 0 where the episode ends; γ is 0 there
    ends: NDArray[np.bool_]
    b: Array  #: probability of the edge under the policy that the return is sampled from
    rho: Array  #: importance ratio π/μ of the edge's action
    eta: Array  #: its weight in the return
    rho_bar: Array  #: its weight in the variance learner's updates
    reward: Array
    reward_std: Array
    gamma: Array  #: γ′
    lam: Array  #: λ′

    def expect(self, x: Array) -> Array:
        """E[x](s) = Σ b x over the edges that leave s."""
        return np.bincount(self.state, weights=self.b * x, minlength=self.n).astype(np.float64)

    def matrix(self, x: Array) -> scipy.sparse.csr_array:
        """Σ b x over the edges from s to s′, as a sparse matrix; ends lead nowhere."""
        weights = self.b * x
        keep = ~self.ends & (weights != 0)
        if keep.all():
            state, next_state = self.state, self.next_state
        else:
            state, next_state, weights = self.state[keep], self.next_state[keep], weights[keep]
        counts = np.bincount(state, minlength=self.n)
        indptr = np.concatenate([[0], np.cumsum(counts)])
        kind = np.int32 if max(indptr[-1], self.n) < 2**31 else np.int64
        return scipy.sparse.csr_array(
            (weights, next_state.astype(kind), indptr.astype(kind)), shape=(self.n, self.n)
        )


def ask(
    mdp: MDP,
    target: object = None,
    behaviour: object = None,
    estimand: Estimand = "target_return",
    lam: ArrayLike | None = None,
) -> WeightedEdges:
    """Weigh the edges of `mdp` for a question about the return of `target`.

    >>> import retvar as rv
    >>> from retvar.mdp import ask
    >>> flow = ask(rv.domains.complex_mdp(), "pi", "mu", "off_policy_return")
    >>> flow.rho[:3].tolist()
    [1.0, 1.0, 2.0]
    """
    must_be_mdp(mdp)
    pi = mdp.policy(target, "target")
    mu = pi if behaviour is None else mdp.policy(behaviour, "behaviour")
    if not isinstance(estimand, str) or estimand not in get_args(Estimand):
        choices = " or ".join(map(repr, get_args(Estimand)))
        raise InputError("estimand", repr(estimand), f"must be {choices}")
    arriving = lam_of(mdp, lam)
    sampled_from_target = estimand == "target_return"
    e = mdp.edges
    rho = importance_ratio(mdp, pi, mu)[e.state, e.action]
    b = (pi if sampled_from_target else mu).probabilities[e.state, e.action] * e.probability
    used = slice(None) if (b > 0).all() else b > 0
    ends = (e.next_state == END)[used]
    next_state = np.where(ends, 0, e.next_state[used])
    rho, ones = rho[used], np.ones(next_state.size)
    flow = WeightedEdges(
        n=mdp.n_states,
        state=e.state[used],
        next_state=next_state,
        ends=ends,
        b=b[used],
        rho=rho,
        eta=ones if sampled_from_target else rho,
        rho_bar=rho if sampled_from_target else ones,
        reward=e.reward[used],
        reward_std=e.reward_std[used],
        gamma=e.gamma[used],
        lam=arriving[next_state],
    )
    _refuse_improper(mdp, flow)
    return flow


def must_be_mdp(mdp: object) -> None:
    """Refuse what is no MDP."""
    if not hasattr(mdp, "edges"):
        raise InputError("mdp", repr(mdp), "must be an MDP; domains.find makes one from a name")


def lam_of(mdp: MDP, lam: ArrayLike | None) -> Array:
    """λ on arriving in each state: the MDP's, or the one given in its place."""
    if lam is None:
        return np.asarray(mdp.lam)
    return arguments.unit_interval("lam", lam, mdp.n_states, mdp.state_name)


def importance_ratio(mdp: MDP, target: Policy, behaviour: Policy) -> Array:
    """ρ[s, a] = π/μ, 0 where neither takes the action; the behaviour must cover the target."""
    pi, mu = target.probabilities, behaviour.probabilities
    bare = (pi > 0) & (mu == 0)
    if np.any(bare):
        s, a = (int(i) for i in np.argwhere(bare)[0])
        raise InputError(
            f"behaviour[{mdp.state_name(s)}, {mdp.action_name(a)}]",
            "0",
            f"must be positive, since the target takes this action with probability {pi[s, a]:g}",
        )
    return np.divide(pi, mu, out=np.zeros_like(pi), where=mu > 0)


def state_values(flow: WeightedEdges) -> Solved:
    """J = (I − PG)⁻¹ E[ηr], with PG = Σ b ηγ′: the value of each state."""
    discounted = Resolvent(flow.matrix(flow.eta * flow.gamma))
    return discounted.solve(flow.expect(flow.eta * flow.reward))


def _refuse_improper(mdp: MDP, flow: WeightedEdges) -> None:
    """Name the states from which the target never reaches an edge with γ < 1."""
    taken = flow.eta > 0  # where the return goes on
    stops = taken & (flow.gamma < 1)
    if stops.sum() == taken.sum():
        return
    goes_on = taken & ~stops
    # backwards from the states that have a stopping edge, which a virtual state n leads to
    stopping = np.unique(flow.state[stops])
    rows = np.concatenate([flow.next_state[goes_on], np.full(stopping.size, flow.n)])
    columns = np.concatenate([flow.state[goes_on], stopping])
    shape = (flow.n + 1, flow.n + 1)
    graph = scipy.sparse.csr_array((np.ones(rows.size), (rows, columns)), shape)
    reached = np.zeros(flow.n + 1, dtype=bool)
    reached[scipy.sparse.csgraph.breadth_first_order(graph, flow.n)[0]] = True
    if not reached.all():
        names = listed(mdp.state_name(int(s)) for s in np.flatnonzero(~reached))
        raise InputError(
            "states",
            names,
            "never reach a discount below 1 under this policy, so their return has no "
            "expectation; lower γ there, end the episode, or take another policy",
        )
