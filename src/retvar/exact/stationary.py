"""The stationary distribution of a policy."""

from __future__ import annotations

import numpy as np
import scipy.sparse
import scipy.sparse.csgraph
from numpy.typing import NDArray

from retvar.mdp import END, MDP
from retvar.mdp.linear import Resolvent
from retvar.mdp.weighted_edges import check_mdp
from retvar.support.errors import InputError
from retvar.support.format import listed

Array = NDArray[np.float64]


def stationary_distribution(mdp: MDP, policy: object = None) -> Array:
    """Long-run share of steps taken from each state, including restarts.

    After the end of an episode the next step is taken from a state of the start distribution.
    Transient states have share 0.

    >>> import retvar as rv
    >>> rv.stationary_distribution(rv.domains.chain())
    array([0.25, 0.25, 0.25, 0.25])
    >>> rv.stationary_distribution(rv.domains.complex_mdp()).round(4)
    array([0.2011, 0.2186, 0.2226, 0.0874, 0.2703])
    """
    check_mdp(mdp)
    P = transitions(mdp, policy)
    members = _recurrent(mdp, P)
    Q = P[members][:, members]
    # visits to the other states between two visits to the first one: x(I − Q₋₁) = first row of Q
    visits = Resolvent(Q[1:, 1:].tocsr()).solve(Q[[0], 1:].toarray().ravel(), transpose=True).x
    share = np.zeros(mdp.n_states + 1)
    share[members] = np.concatenate([[1.0], np.maximum(visits, 0.0)])
    share = share[: mdp.n_states]  # the end of an episode takes no time
    return np.asarray(share / share.sum())


def transitions(mdp: MDP, policy: object) -> scipy.sparse.csr_array:
    """Transition matrix with an extra last state: the end of an episode, followed by a start."""
    n, e = mdp.n_states, mdp.edges
    weights = mdp.policy(policy).probabilities[e.state, e.action] * e.probability
    starts = np.flatnonzero(mdp.start)
    rows = np.concatenate([e.state, np.full(starts.size, n)])
    columns = np.concatenate([np.where(e.next_state == END, n, e.next_state), starts])
    data = np.concatenate([weights, mdp.start[starts]])
    P = scipy.sparse.csr_array((data, (rows, columns)), shape=(n + 1, n + 1))
    P.eliminate_zeros()
    return P


def _recurrent(mdp: MDP, P: scipy.sparse.csr_array) -> NDArray[np.intp]:
    """States of the recurrent class; raise an InputError if there are several."""
    n = mdp.n_states
    reached = np.zeros(n + 1, dtype=bool)
    reached[scipy.sparse.csgraph.breadth_first_order(P, n)[0]] = True
    reached[n] = bool(np.any(P[:n, [n]].toarray().ravel()[reached[:n]]))
    count, label = scipy.sparse.csgraph.connected_components(P, connection="strong")
    coo = P.tocoo()
    leaves = label[coo.row] != label[coo.col]
    closed = np.ones(count, dtype=bool)
    closed[label[coo.row[leaves]]] = False
    final = list(dict.fromkeys(label[reached & closed[label]].tolist()))  # in the order of states
    if len(final) != 1:
        members = (map(mdp.state_name, np.flatnonzero(label[:n] == c).tolist()) for c in final)
        remedy = (
            "the policy has several recurrent classes, so there is no unique stationary "
            "distribution; change the policy, or end episodes there"
        )
        raise InputError("policy", listed(("{" + listed(m, 3) + "}" for m in members), 3), remedy)
    return np.flatnonzero(label == final[0])
