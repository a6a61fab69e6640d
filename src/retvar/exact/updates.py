"""Expected TD updates of the learners, summed over all edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retvar import arguments, rules
from retvar.errors import ConvergenceError, InputError
from retvar.exact.moments import check_order
from retvar.mdp import END, MDP, Edges, weigh_edges
from retvar.mdp.weighted_edges import Estimand, importance_ratio, lam_on_arrival

__all__ = ["Estimates", "Method", "expected_updates"]

Array = NDArray[np.float64]
Method = Literal["direct", "vtd", "centred"]

# three-point Gauss–Hermite quadrature, exact for polynomials of a normal reward up to degree 5
NODES = np.array([-np.sqrt(3.0), 0.0, np.sqrt(3.0)])
WEIGHTS = np.array([1.0, 4.0, 1.0]) / 6


@dataclass(frozen=True, eq=False)
class Estimates:
    """Estimates of a learner: value, variance, and (for ``centred``) the mean of the λ-return.

    The third and fourth central moments are None unless the order asks for them.

    >>> Estimates(np.zeros(2), np.zeros(2), np.zeros(2)).variance
    array([0., 0.])
    """

    value: Array
    variance: Array
    mean: Array
    third_moment: Array | None = None
    fourth_moment: Array | None = None


@np.errstate(over="ignore", invalid="ignore")  # overflow raises an InputError later
def expected_updates(
    method: Method,
    mdp: MDP,
    estimates: Estimates | None = None,
    *,
    sweeps: int = 1,
    alpha: float = 1.0,
    alpha_bar: float = 1.0,
    learn_value: bool = True,
    target: object = None,
    behaviour: object = None,
    estimand: Estimand = "target_return",
    lam: ArrayLike | None = None,
    order: int = 2,
) -> Estimates:
    """Make synchronous sweeps of the expected TD update of a tabular learner.

    Each sweep changes every state by the step size times the expected TD error, weighted by the
    importance ratio, over all edges that the behaviour may take and normal rewards. All nodes use
    the estimates of the previous sweep. VTD's second moment is converted to a variance.

    Parameters
    ----------
    estimates
        Initial estimates; default: zero.
    alpha, alpha_bar
        Step sizes of the value node, and of all other nodes.
    learn_value
        Whether the value node learns; otherwise it stays fixed.
    order
        The highest central moment that the learner has a node for: 2, 3 or 4; VTD has 2 only.

    Examples
    --------
    >>> import retvar as rv
    >>> chain = rv.domains.chain()
    >>> rv.expected_updates("direct", chain, sweeps=1).value
    array([1., 1., 1., 1.])
    >>> rv.expected_updates("direct", chain, sweeps=8).variance
    array([2.997541, 2.4661  , 1.81    , 1.      ])
    """
    order = check_order(order)
    check_method(method, order)
    weigh_edges(mdp, target, behaviour, estimand, lam)  # validates the arguments
    sweeps = arguments.integer("sweeps", sweeps, 0)
    alpha, alpha_bar = (_step(f, x) for f, x in (("alpha", alpha), ("alpha_bar", alpha_bar)))
    learn_value = arguments.flag("learn_value", learn_value)
    outcomes = _Outcomes(mdp, target, behaviour, estimand, lam)
    zero = np.zeros(mdp.n_states)
    now = Estimates(zero, zero, zero) if estimates is None else _validated(mdp, estimates)
    higher = [zero if x is None else x for x in (now.third_moment, now.fourth_moment)[: order - 2]]
    now = Estimates(now.value, now.variance, now.mean, *higher)
    for sweep in range(sweeps):
        value_error, mean_error, secondary_error, *higher_errors = outcomes.errors(method, now)
        J = now.value + alpha * value_error if learn_value else now.value
        g = now.mean + alpha_bar * mean_error
        V = now.variance + alpha_bar * secondary_error
        if method == "vtd":  # the node holds V + J²
            V = V + now.value**2 - J**2
        higher = [x + alpha_bar * e for x, e in zip(higher, higher_errors, strict=True)]
        now = Estimates(J, V, g, *higher)
        if not np.isfinite(sum(higher, J + g + V)).all():
            raise ConvergenceError(f"the estimates are no longer finite after sweep {sweep + 1}")
    return now


def _step(field: str, given: float) -> float:
    step = arguments.numbers(field, given, 1)
    arguments.refuse(field, step, step < 0, "must not be negative")
    return float(step[0])


class _Outcomes:
    """All outcomes of a step of the behaviour: edges × quadrature points of the reward."""

    def __init__(
        self, mdp: MDP, target: object, behaviour: object, estimand: str, lam: ArrayLike | None
    ) -> None:
        pi = mdp.policy(target)
        mu = pi if behaviour is None else mdp.policy(behaviour)
        taken = mu.probabilities[mdp.edges.state, mdp.edges.action] * mdp.edges.probability
        e = Edges._make(column[taken > 0] for column in mdp.edges)
        self.n = mdp.n_states
        self.s = np.repeat(e.state, 3)
        self.s_next = np.repeat(np.where(e.next_state == END, 0, e.next_state), 3)
        self.probability = np.outer(taken[taken > 0], WEIGHTS).ravel()
        self.reward = (e.reward[:, None] + np.outer(e.reward_std, NODES)).ravel()
        self.gamma = np.repeat(e.gamma, 3)
        self.lam = lam_on_arrival(mdp, lam)[self.s_next]
        self.rho = np.repeat(importance_ratio(mdp, pi, mu)[e.state, e.action], 3)
        ones = np.ones_like(self.rho)
        self.eta, self.rho_bar = (
            (ones, self.rho) if estimand == "target_return" else (self.rho, ones)
        )

    def errors(self, method: Method, now: Estimates) -> list[Array]:
        """E[ρδ] of the value and E[ρ̄δ] of the mean, secondary and higher nodes in each state."""
        R, gamma, lam, eta = self.reward, self.gamma, self.lam, self.eta
        J, J_next = now.value[self.s], now.value[self.s_next]
        g, g_next = now.mean[self.s], now.mean[self.s_next]
        V, V_next = now.variance[self.s], now.variance[self.s_next]
        delta = rules.td_error(R, gamma, J_next, J)
        reward_of_mean = rules.mean_reward(R, gamma, lam, J_next, eta)
        discount = rules.mean_discount(gamma, lam, eta)
        delta_mean = rules.td_error(reward_of_mean, discount, g_next, g)
        if method == "direct":
            reward_bar = rules.direct_reward(delta, J, eta)
        elif method == "centred":
            reward_bar = delta_mean**2
        else:
            reward_bar = rules.vtd_reward(R, gamma, lam, J_next, eta)
            V, V_next = V + J**2, V_next + J_next**2
        delta_bar = rules.td_error(reward_bar, rules.variance_discount(discount), V_next, V)
        epsilon = delta_mean if method == "centred" else rules.direct_deviation(delta, J, eta)
        secondary = [delta_mean, delta_bar, *self._higher_errors(epsilon, discount, now)]
        return [
            self._mean(self.rho * delta),
            *(self._mean(self.rho_bar * each) for each in secondary),
        ]

    def _higher_errors(self, epsilon: Array, discount: Array, now: Estimates) -> list[Array]:
        """TD errors of the third and the fourth moment, as far as there are estimates."""
        errors: list[Array] = []
        if now.third_moment is None:
            return errors
        V_next = now.variance[self.s_next]
        M3, M3_next = now.third_moment[self.s], now.third_moment[self.s_next]
        reward = rules.third_moment_reward(epsilon, discount, V_next)
        errors.append(rules.td_error(reward, discount**3, M3_next, M3))
        if now.fourth_moment is None:
            return errors
        M4, M4_next = now.fourth_moment[self.s], now.fourth_moment[self.s_next]
        reward = rules.fourth_moment_reward(epsilon, discount, V_next, M3_next)
        errors.append(rules.td_error(reward, discount**4, M4_next, M4))
        return errors

    def _mean(self, x: Array) -> Array:
        total = np.bincount(self.s, weights=self.probability * x, minlength=self.n)
        return total.astype(np.float64)


def check_method(method: str, order: int = 2) -> None:
    """Raise an InputError for an unknown method, or one that has no node for the order."""
    arguments.choice("method", method, get_args(Method))
    if method == "vtd" and order > 2:
        raise InputError(
            "order", order, "VTD learns the second moment only; use direct or centred, or order=2"
        )


def _validated(mdp: MDP, estimates: Estimates) -> Estimates:
    if not isinstance(estimates, Estimates):
        raise InputError("estimates", type(estimates).__name__, "must be retvar.Estimates")
    given = {
        field: arguments.numbers(field, x, mdp.n_states, mdp.state_name)
        for field, x in vars(estimates).items()
        if x is not None
    }
    return Estimates(**given)
