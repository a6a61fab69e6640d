"""The edges of an MDP, weighted for a target policy, a behaviour policy and an estimand.

Let b be the probability of an edge under the policy that the return is sampled from, and η its
weight in the return. Every closed form consists of two operations: E[x](s) = Σ b x over the edges
that leave s, and matrices Σ b x from s to s′. On-policy and for ``target_return``, b = π and η = 1;
for ``off_policy_return``, b = μ and η = ρ = π/μ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike, NDArray

from retvar.mdp.edges import END
from retvar.mdp.linear import LinearSolution, Resolvent, reaching
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.support.format import listed, literal

if TYPE_CHECKING:
    from retvar.mdp.model import MDP
    from retvar.mdp.policy import Policy

Array = NDArray[np.float64]
Estimand = Literal["target_return", "off_policy_return"]


@dataclass(frozen=True, eq=False)
class WeightedEdges:
    """The edges with positive probability b, as columns with one entry per edge."""

    n: int
    number: NDArray[np.intp]  #: in the edges of the MDP
    state: NDArray[np.intp]
    next_state: NDArray[np.intp]  #: 0 if the episode ends; γ is then 0
    ends: NDArray[np.bool_]
    b: Array  #: probability of the edge under the policy that the return is sampled from
    rho: Array  #: importance ratio π/μ of the edge's action
    eta: Array  #: weight of the edge in the return
    rho_bar: Array  #: weight of the edge in the updates of the variance node
    reward: Array
    reward_std: Array
    gamma: Array  #: γ on arrival in the next state
    lam: Array  #: λ on arrival in the next state
    arriving: Array  #: λ on arrival in each state

    @property
    def decay(self) -> Array:
        """The weight c = ηγ′λ′ of the rest of the λ-return."""
        return self.eta * self.gamma * self.lam

    def expect(self, x: Array) -> Array:
        """E[x](s) = Σ b x over the edges that leave s."""
        return np.bincount(self.state, weights=self.b * x, minlength=self.n).astype(np.float64)

    def matrix(self, x: Array) -> scipy.sparse.csr_array:
        """Sparse matrix of Σ b x over the edges from s to s′, without edges that end episodes."""
        weights = self.b * x
        used = ~self.ends & (weights != 0)
        state, next_state, weights = self.state[used], self.next_state[used], weights[used]
        counts = np.bincount(state, minlength=self.n)
        indptr = np.concatenate([[0], np.cumsum(counts)])
        dtype = np.int32 if max(indptr[-1], self.n) < 2**31 else np.int64
        return scipy.sparse.csr_array(
            (weights, next_state.astype(dtype), indptr.astype(dtype)), shape=(self.n, self.n)
        )


def weigh_edges(
    mdp: MDP,
    target: object = None,
    behaviour: object = None,
    estimand: Estimand = "target_return",
    lam: ArrayLike | None = None,
) -> WeightedEdges:
    """Weight the edges of `mdp` for the return of `target`; the arguments are those of ``solve``.

    >>> import retvar as rv
    >>> from retvar.mdp import weigh_edges
    >>> edges = weigh_edges(rv.domains.complex_mdp(), "pi", "mu", "off_policy_return")
    >>> edges.rho[:3].tolist()
    [1.0, 1.0, 2.0]
    """
    check_mdp(mdp)
    pi = mdp.policy(target, "target")
    mu = pi if behaviour is None else mdp.policy(behaviour, "behaviour")
    arguments.choice("estimand", estimand, get_args(Estimand))
    arriving = lam_on_arrival(mdp, lam)
    sampled_from_target = estimand == "target_return"
    e = mdp.edges
    rho = importance_ratio(mdp, pi, mu)[e.state, e.action]
    b = (pi if sampled_from_target else mu).probabilities[e.state, e.action] * e.probability
    used = slice(None) if (b > 0).all() else b > 0
    ends = (e.next_state == END)[used]
    next_state = np.where(ends, 0, e.next_state[used])
    rho, ones = rho[used], np.ones(next_state.size)
    edges = WeightedEdges(
        n=mdp.n_states,
        number=np.arange(b.size)[used],
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
        arriving=arriving,
    )
    _check_proper(mdp, edges)
    return edges


def check_mdp(mdp: object) -> None:
    """Raise an InputError if `mdp` is not an MDP."""
    if not hasattr(mdp, "edges"):
        raise InputError("mdp", literal(mdp), "must be an MDP; domains.find makes one from a name")


def lam_on_arrival(mdp: MDP, lam: ArrayLike | None) -> Array:
    """λ on arrival in each state: `lam`, or the MDP's if it is None."""
    if lam is None:
        return np.asarray(mdp.lam)
    return arguments.unit_interval("lam", lam, mdp.n_states, mdp.state_name)


def importance_ratio(mdp: MDP, target: Policy, behaviour: Policy) -> Array:
    """ρ[s, a] = π/μ, 0 if neither takes the action; the behaviour must cover the target."""
    pi, mu = target.probabilities, behaviour.probabilities
    uncovered = (pi > 0) & (mu == 0)
    if np.any(uncovered):
        s, a = (int(i) for i in np.argwhere(uncovered)[0])
        where = f"behaviour[{mdp.state_name(s)}, {mdp.action_name(a)}]"
        taken = f"since the target takes this action with probability {pi[s, a]:g}"
        raise InputError(where, "0", f"must be positive, {taken}")
    return np.divide(pi, mu, out=np.zeros_like(pi), where=mu > 0)


def sum_by_action(mdp: MDP, x: Array) -> Array:
    """Sums over the edges of each state and action [state, action]."""
    shape = mdp.n_states, mdp.n_actions
    pair = mdp.edges.state * mdp.n_actions + mdp.edges.action
    return np.bincount(pair, x, minlength=shape[0] * shape[1]).astype(np.float64).reshape(shape)


def state_values(edges: WeightedEdges) -> LinearSolution:
    """Value of each state: J = (I − PG)⁻¹ E[ηr] with PG = Σ b ηγ′."""
    discounted = Resolvent(edges.matrix(edges.eta * edges.gamma))
    return discounted.solve(edges.expect(edges.eta * edges.reward))


def _check_proper(mdp: MDP, edges: WeightedEdges) -> None:
    """Raise an InputError if the target never reaches an edge with γ < 1 from some state."""
    taken = edges.eta > 0  # edges that are part of the return
    stops = taken & (edges.gamma < 1)
    if stops.sum() == taken.sum():
        return
    continues = taken & ~stops
    graph = edges.matrix(continues.astype(np.float64))
    reached = reaching(graph, np.bincount(edges.state, stops, edges.n) > 0)
    if not reached.all():
        names = listed(mdp.state_name(int(s)) for s in np.flatnonzero(~reached))
        remedy = (
            "never reach a discount below 1 under this policy, so their return has no "
            "expectation; lower γ there, end the episode, or use another policy"
        )
        raise InputError("states", names, remedy)
