"""Derivatives of the mean and variance of the return with respect to the policy.

The notation is that of :mod:`retvar.exact.solution`, with H = g = j. For a start distribution d,

    m = d·j    s = d·v + d·(j − m)²    mean and variance of the return from a drawn start
    y = (I − PG)⁻ᵀ d                   discounted visits
    z = (I − B)⁻ᵀ d                    visits discounted as the variance is
    h = Σ 2 z b ε̄ ηγ′ + 2d(j − m)      what a change of j(s′) does to s; the sum over edges into s′
    u = (I − PG)⁻ᵀ h

    ∂m = y(s) A(s, a)                  ∂s = z(s) e(s, a) + u(s) A(s, a)

A(s, a) = Σ p (r + γ′j′) − j(s) is the advantage of an action. e(s, a) is the derivative of what
its edges add to the variance of s, Σ p x: x = ε̄² + w + (γ′λ′)²v′ for ``target_return``, where π is
their probability; x = 2((η(r + γ′j′) − j)(r + γ′j′) + η(w + (γ′λ′)²v′)) for ``off_policy_return``,
where π is a factor of their weight η = π/μ. E[ε̄] = 0 in every state, so −j(s) in ε̄ adds nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retvar.exact.moments import MomentSystem, deviation, moment_reward, moment_system, noisy_states
from retvar.mdp import MDP, Policy, WeightedEdges, weigh_edges
from retvar.mdp.linear import Apply, Resolvent, reaching
from retvar.mdp.weighted_edges import Estimand, importance_ratio, sum_by_action
from retvar.support.errors import InputError
from retvar.support.format import listed

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


class SoftmaxGradient(NamedTuple):
    """Derivatives with respect to softmax parameters θ[state, action], π = exp θ / Σ exp θ."""

    mean: Array
    variance: Array


@dataclass(frozen=True, eq=False)
class PolicyGradient:
    """Mean and variance of the return from a start distribution, with their derivatives.

    Rows are centred: Σ_a π(a|s)·∂ = 0, so an entry says what happens if the policy takes this
    action a little more often, at the cost of all its actions in proportion. Entries are 0 where
    a state does not have an action, and, for ``off_policy_return``, where the behaviour never
    takes it. That of the variance is ∞ for an action not taken that makes the variance infinite.

    Attributes
    ----------
    mean, variance
        Derivatives with respect to π(a|s), as arrays [state, action].
    return_mean, return_variance
        The mean and the variance themselves. The variance includes the spread between the starts.
    policy
        The target policy.
    start
        The start distribution.

    Examples
    --------
    >>> import retvar as rv
    >>> gradient = rv.policy_gradient(rv.domains.complex_mdp(), "pi", start="s2")
    >>> gradient
    PolicyGradient(5 states, 5 actions; mean 0.689, variance 0.9644)
    >>> gradient.variance[2, :3].round(2)  # to s0; to s4 for 1; to s4 for 3
    array([-0.  , -0.87,  4.36])
    """

    mean: Array
    variance: Array
    return_mean: float
    return_variance: float
    policy: Policy = field(repr=False)
    start: Array = field(repr=False)

    @property
    def softmax(self) -> SoftmaxGradient:
        """Derivatives with respect to softmax parameters, π(a|s)·∂ of the centred rows.

        They are 0 for actions that are never taken.

        >>> import retvar as rv
        >>> gradient = rv.policy_gradient(rv.domains.complex_mdp(), "pi").softmax
        >>> bool(abs(gradient.variance.sum(axis=1)).max() < 1e-15)
        True
        """
        pi = self.policy.probabilities
        taken = pi > 0
        return SoftmaxGradient(
            *(np.where(taken, pi * np.where(taken, x, 0), 0) for x in (self.mean, self.variance))
        )

    def __repr__(self) -> str:
        n, k = self.mean.shape
        return (
            f"PolicyGradient({n:,} states, {k:,} actions; mean {self.return_mean:.4g}, "
            f"variance {self.return_variance:.4g})"
        )


class ActionTerms(NamedTuple):
    """What each action of each state adds, as arrays [state, action]."""

    advantage: Array  #: A(s, a)
    own: Array  #: e(s, a)
    blocked: Mask  #: whether it leads to an infinite variance


def terms_by_action(mdp: MDP, j: Array, v: Array, lam: Array, ratio: Array | None) -> ActionTerms:
    """What actions add; `ratio` is π/μ for ``off_policy_return``, None for ``target_return``."""
    e = mdp.edges
    c2 = (e.gamma * lam[e.next_state]) ** 2
    blocked = np.isnan(v)[e.next_state] & (c2 > 0) & (e.probability > 0)
    x = e.reward + e.gamma * j[e.next_state]
    rest = e.reward_std**2 + c2 * np.where(np.isnan(v), 0.0, v)[e.next_state]
    gain = x - j[e.state]
    own = gain**2 + rest
    if ratio is not None:
        eta = ratio[e.state, e.action]
        own = 2 * ((eta * x - j[e.state]) * x + eta * rest)
    columns = (e.probability * gain, e.probability * own, blocked.astype(np.float64))
    advantage, added, ways = (sum_by_action(mdp, column) for column in columns)
    return ActionTerms(advantage, added, ways > 0)


@np.errstate(over="ignore", invalid="ignore")  # overflow raises an InputError below
def policy_gradient(
    mdp: MDP,
    target: object = None,
    behaviour: object = None,
    estimand: Estimand = "target_return",
    lam: ArrayLike | None = None,
    *,
    start: object = None,
) -> PolicyGradient:
    """Compute exact derivatives of mean and variance of the return with respect to the policy.

    Two solutions and three adjoint solutions of the linear systems of :func:`solve`.

    Parameters
    ----------
    mdp, target, behaviour, estimand, lam
        As in :func:`solve`. A behaviour that is given stays as it is when the target changes;
        otherwise the target is the behaviour. The λ-return bootstraps from the true value
        function, which changes with the target.
    start
        Where episodes start: a state, a mapping from states to probabilities, or an array of
        them; default: the MDP's. The variance of a distribution includes the spread between its
        states.

    Raises
    ------
    InputError
        If the variance is infinite from the start.

    Examples
    --------
    >>> import numpy as np, retvar as rv
    >>> coins = rv.MDP.from_edges(  # a bet of 1 on a coin, or none
    ...     [(0, "bet", "end", 0.5, 1.0), (0, "bet", "end", 0.5, -1.0), (0, "pass", "end")],
    ...     gamma=1.0)
    >>> gradient = rv.policy_gradient(coins, [[0.25, 0.75]])
    >>> gradient.return_variance, gradient.variance
    (0.25, array([[ 0.75, -0.25]]))
    """
    edges = weigh_edges(mdp, target, behaviour, estimand, lam)
    pi = mdp.policy(target, "target")
    d = mdp.start_distribution(start)
    values = Resolvent(edges.matrix(edges.eta * edges.gamma))
    j = values.solve(edges.expect(edges.eta * edges.reward)).x
    epsilon = deviation(edges, j, j)
    variances = moment_system(edges, 2, lambda: noisy_states(edges, epsilon, j))
    v = variances.solve(moment_reward(edges, epsilon, [])).x
    m = float(d @ j)
    used = d > 0
    s = max(0.0, float(d[used] @ v[used])) + float(d @ (j - m) ** 2)
    reached = np.ones(edges.n, dtype=bool)
    if variances.keep is not None:
        variances, reached = _restricted(mdp, edges, d, variances)
    ratio, movable = None, mdp.available  # π is no factor of the weights, and can move anywhere
    if behaviour is not None and estimand == "off_policy_return":
        mu = mdp.policy(behaviour)
        ratio, movable = importance_ratio(mdp, pi, mu), mu.probabilities > 0
    by_action = terms_by_action(mdp, j, v, edges.arriving, ratio)
    mean, variance = derivatives(
        edges, d, j, epsilon, by_action,
        lambda x: values.solve(x, transpose=True).x, variances.visits,
    )  # fmt: skip
    mean, variance = (_centred(x, pi.probabilities, movable) for x in (mean, variance))
    if not (np.isfinite(s) and np.isfinite(mean).all() and np.isfinite(variance).all()):
        raise InputError("reward", "too large", "a power of it overflows; scale rewards down")
    variance[by_action.blocked & movable & reached[:, None]] = np.inf
    for array in (mean, variance):
        array.flags.writeable = False
    return PolicyGradient(mean, variance, m, s, pi, d)


def derivatives(
    edges: WeightedEdges,
    d: Array,
    j: Array,
    epsilon: Array,
    by_action: ActionTerms,
    values_adjoint: Apply,
    variances_adjoint: Apply,
) -> tuple[Array, Array]:
    """∂m and ∂s [state, action], not centred; the adjoints apply (I − PG)⁻ᵀ and (I − B)⁻ᵀ."""
    y, z = values_adjoint(d), variances_adjoint(d)
    after = 2 * z[edges.state] * edges.b * epsilon * edges.eta * edges.gamma
    into = np.bincount(edges.next_state, weights=after, minlength=edges.n)
    u = values_adjoint(into + 2 * d * (j - d @ j))
    A, own = by_action.advantage, by_action.own
    return y[:, None] * A, z[:, None] * own + u[:, None] * A


def _restricted(
    mdp: MDP, edges: WeightedEdges, d: Array, system: MomentSystem
) -> tuple[MomentSystem, Mask]:
    """The system on the states that the start leads to; an InputError if it is infinite there."""
    powers = edges.decay**2
    reached = reaching(edges.matrix(powers).T.tocsr(), d > 0)
    bad = reached & (system.infinite | system.grows)
    if bad.any():
        starts, there = (listed(map(mdp.state_name, np.flatnonzero(x).tolist())) for x in (d, bad))
        remedy = (
            f"the variance of its return is infinite, since it leads to {there}; lower γ or λ, or "
            "use a behaviour policy closer to the target"
        )
        raise InputError("start", starts, remedy)
    rest = Resolvent(edges.matrix(np.where(reached[edges.state], powers, 0.0)))
    return replace(system, resolvent=rest), reached


def _centred(derivative: Array, pi: Array, movable: Mask) -> Array:
    """Rows minus their mean under π; 0 where π cannot move."""
    row = np.sum(pi * derivative, axis=1, keepdims=True)
    return np.where(movable, derivative - row, 0.0)
