"""The search for a policy with a large mean − penalty × variance of the return from a start.

From a policy, single states are switched to another action as long as that helps; then L-BFGS on
softmax parameters looks for a better mixture near by; then single states are switched again. Where
a policy never ends and so has no mean or variance, there is a barrier.

Small MDPs are solved with dense inverses, which also give the mean and variance of every policy
that differs in one state, by rank-one updates: for state s switched to action a, with X and Z the
inverses of I − PG and I − B, ε = r + γ′j′ − j and k, k_B the changes of row s of PG and B,

    α = A(s, a) / (1 − kX_s)             j_new = j + αX_s
    ΔC = αU_s + κ1_s,  U = 2 Σ bεγ′X′    the change of what the edges add to the variance
    β = k_B(v + ZΔC) / (1 − k_B Z_s)     v_new = v + Z(ΔC + β1_s), about the old j

The variance of the start follows from d·v_new and from j_new − j. Large MDPs are solved by
:func:`retvar.policy_gradient`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import scipy.optimize
from numpy.typing import NDArray

from retvar.exact.gradient import derivatives, policy_gradient, terms_by_action
from retvar.exact.moments import deviation, moment_reward
from retvar.mdp import END, MDP, Policy, WeightedEdges
from retvar.mdp.weighted_edges import sum_by_action
from retvar.support.errors import ConvergenceError, InputError

Array = NDArray[np.float64]
MAX_TABLE = 150  # most states for which inverses are computed
MAX_STEPS = 1e9  # a policy with γ = 1 that takes longer counts as never ending
Tick = Callable[[], None]  # called for every policy; may raise to stop
MIXED = 0.05  # share of the uniform policy in the start of L-BFGS
RARE = (0.05, 1e-3)  # actions that are less likely are left out, if nothing is lost
TOLERANCE = 1e-10  # relative; smaller gains are rounding
MAX_ROUNDS = 1_000  # of switches
MAX_ITERATIONS = 100  # of L-BFGS
MEMORY = 10  # steps that its curvature is known from
BARRIER = 1e9  # a loss, relative to the first, where a policy has no mean or variance


class Candidate(NamedTuple):
    """A policy, with the mean and variance of its return."""

    pi: Array
    mean: float
    variance: float

    def objective(self, penalty: float) -> float:
        """Mean − penalty × variance."""
        return self.mean - penalty * self.variance

    def rounding(self, penalty: float) -> float:
        """Differences of objectives that are too small to count."""
        return TOLERANCE * (abs(self.mean) + abs(penalty) * self.variance + 1e-300)


class Slope(NamedTuple):
    """A policy, with the derivatives of mean and variance [state, action]; rows not centred."""

    at: Candidate
    mean: Array
    variance: Array


class Landscape:
    """Mean and variance as functions of the policy; None where they do not exist.

    Each policy is solved by :func:`retvar.policy_gradient`; that is for large MDPs.
    """

    def __init__(self, mdp: MDP, start: Array) -> None:
        self.mdp, self.start = mdp, start
        self.evaluations = 0

    def at(self, pi: Array) -> Candidate | None:
        """Mean and variance of a policy."""
        slope = self.slope(pi)
        return None if slope is None else slope.at

    def slope(self, pi: Array) -> Slope | None:
        """Mean and variance with their derivatives."""
        self.evaluations += 1
        try:
            found = policy_gradient(self.mdp, Policy(pi), lam=1.0, start=self.start)
        except (InputError, ConvergenceError):  # it never ends, or hardly ever
            return None
        at = Candidate(pi, found.return_mean, found.return_variance)
        return Slope(at, found.mean, found.variance)

    def switches(self, pi: Array) -> tuple[Array, Array] | None:
        """Means and variances [state, action] if one state always takes one action.

        −∞ and ∞ where that cannot be done; None if there are too many states.
        """
        return None


@dataclass(frozen=True, eq=False)
class _Solved:
    """A policy solved with dense inverses."""

    edges: WeightedEdges
    X: Array  # (I − PG)⁻¹
    Z: Array  # (I − B)⁻¹
    j: Array
    epsilon: Array
    v: Array


class DenseLandscape(Landscape):
    """Each policy by dense inverses."""

    def __init__(self, mdp: MDP, start: Array) -> None:
        super().__init__(mdp, start)
        e = mdp.edges
        ends = e.next_state == END
        ones = np.ones(e.state.size)
        self._next = np.where(ends, 0, e.next_state)
        self._cell = e.state * mdp.n_states + self._next
        self._edges = WeightedEdges(
            n=mdp.n_states, number=np.arange(e.state.size), state=e.state, next_state=self._next,
            ends=ends, b=e.probability, rho=ones, eta=ones, rho_bar=ones, reward=e.reward,
            reward_std=e.reward_std, gamma=e.gamma, lam=ones, arriving=np.ones(mdp.n_states),
        )  # fmt: skip

    def at(self, pi: Array) -> Candidate | None:
        """Mean and variance of a policy."""
        solved = self._solve(pi)
        return None if solved is None else self._candidate(pi, solved)

    def slope(self, pi: Array) -> Slope | None:
        """Mean and variance with their derivatives."""
        f = self._solve(pi)
        if f is None:
            return None
        by_action = terms_by_action(self.mdp, f.j, f.v, np.ones(f.j.size), None)
        mean, variance = derivatives(
            f.edges, self.start, f.j, f.epsilon, by_action, lambda x: f.X.T @ x, lambda x: f.Z.T @ x
        )
        return Slope(self._candidate(pi, f), mean, variance)

    def switches(self, pi: Array) -> tuple[Array, Array] | None:
        """Means and variances [state, action] if one state always takes one action."""
        f = self._solve(pi)
        if f is None:
            return None
        e, here, there = self.mdp.edges, self.mdp.edges.state, self._next
        d, X, Z, n = self.start, f.X, f.Z, f.j.size

        def summed(x: Array) -> Array:
            return sum_by_action(self.mdp, e.probability * x)

        def diagonal(M: Array) -> Array:
            return np.diagonal(M)[:, None]

        g, g2 = e.gamma, e.gamma**2
        with np.errstate(all="ignore"):
            alpha = summed(f.epsilon) / (diagonal(X) - summed(g * X[there, here]))
            U = 2 * self._matrix(f.edges.b * f.epsilon * g, n) @ X
            W = Z @ U
            C = f.edges.expect(f.epsilon**2 + e.reward_std**2)[:, None]
            kappa = summed(f.epsilon**2 + e.reward_std**2) - C
            kappa += alpha * (2 * summed(f.epsilon * g * X[there, here]) - diagonal(U))
            into_Z = summed(g2 * Z[there, here]) - diagonal(Z) + 1
            beta = summed(g2 * f.v[there]) - (f.v[:, None] - C)
            beta += alpha * (summed(g2 * W[there, here]) - diagonal(W - U)) + kappa * into_Z
            beta /= 1 - into_Z
            y, z, centred = X.T @ d, Z.T @ d, f.j - d @ f.j
            change = alpha * y[:, None]
            means = d @ f.j + change
            variances = d @ (f.v + centred**2) - change**2
            variances += alpha * (2 * (d * centred) @ X + d @ W)[:, None]
            variances += z[:, None] * (kappa + beta)
        proper = (diagonal(X) - summed(g * X[there, here]) > 1 / MAX_STEPS) & self.mdp.available
        return np.where(proper, means, -np.inf), np.where(proper, np.maximum(variances, 0), np.inf)

    def _candidate(self, pi: Array, f: _Solved) -> Candidate:
        m = float(self.start @ f.j)
        return Candidate(pi, m, max(0.0, float(self.start @ (f.v + (f.j - m) ** 2))))

    def _matrix(self, weights: Array, n: int) -> Array:
        """Σ weights over the edges from s to s′; where an episode ends, γ is 0."""
        total = np.bincount(self._cell, weights, minlength=n * n).astype(np.float64)
        return total.reshape(n, n)

    def _solve(self, pi: Array) -> _Solved | None:
        """Solve a policy; None if it never ends."""
        self.evaluations += 1
        e, n = self.mdp.edges, self.mdp.n_states
        edges = replace(self._edges, b=pi[e.state, e.action] * e.probability)
        identity = np.eye(n)
        try:
            X, Z = (
                np.asarray(np.linalg.inv(identity - self._matrix(edges.b * x, n)), np.float64)
                for x in (e.gamma, e.gamma**2)
            )
        except np.linalg.LinAlgError:
            return None
        if not np.all(np.abs(X) < MAX_STEPS):  # also NaN
            return None
        j = X @ edges.expect(e.reward)
        epsilon = deviation(edges, j, j)
        v = Z @ moment_reward(edges, epsilon, [])
        return _Solved(edges, X, Z, j, epsilon, v)


# ---------------------------------------------------------------------- the search


def search(landscape: Landscape, pi: Array, penalty: float, tick: Tick) -> Candidate | None:
    """The best policy found from `pi`; None if `pi` never ends."""
    first = landscape.at(pi)
    if first is None:
        return None
    found = _climb(landscape, first, penalty, tick)
    while True:
        mixture = _polish(landscape, found, penalty, tick)
        mixture = _without_rare_actions(landscape, mixture, penalty)
        better = _climb(landscape, mixture, penalty, tick)
        gain = better.objective(penalty) - found.objective(penalty)
        if gain <= found.rounding(penalty):
            return found
        found = better


def _climb(landscape: Landscape, at: Candidate, penalty: float, tick: Tick) -> Candidate:
    """Switch states to single actions, the most promising half of them at a time."""
    for _ in range(MAX_ROUNDS):
        tick()
        gain = _gains(landscape, at, penalty)
        action = np.argmax(gain, axis=1)
        best = np.max(gain, axis=1)
        least = at.rounding(penalty)
        order = np.argsort(-best)[: int(np.sum(best > least))]
        while order.size:
            pi = at.pi.copy()
            pi[order] = np.eye(pi.shape[1])[action[order]]
            other = landscape.at(pi)
            if other is not None and other.objective(penalty) > at.objective(penalty) + least:
                at = other
                break
            order = order[: order.size // 2]
        else:
            return at
    return at


def _gains(landscape: Landscape, at: Candidate, penalty: float) -> Array:
    """What each switch gains: exactly in small MDPs, to first order in large ones."""
    switched = landscape.switches(at.pi)
    with np.errstate(invalid="ignore"):
        if switched is not None:
            means, variances = switched
            gain = means - penalty * variances - at.objective(penalty)
            gain = np.where(np.isfinite(means), gain, -np.inf)
        else:
            slope = landscape.slope(at.pi)
            if slope is None:
                return np.full(at.pi.shape, -np.inf)
            gain = slope.mean - penalty * slope.variance
            gain = gain - np.sum(at.pi * gain, axis=1, keepdims=True)
    return np.where(landscape.mdp.available & ~np.isnan(gain), gain, -np.inf)


def _polish(landscape: Landscape, at: Candidate, penalty: float, tick: Tick) -> Candidate:
    """L-BFGS on softmax parameters, from a policy with a little of every action."""
    available = landscape.mdp.available
    uniform = available / available.sum(axis=1, keepdims=True)
    first = np.log(((1 - MIXED) * at.pi + MIXED * uniform)[available])
    scale = abs(at.mean) + abs(penalty) * at.variance or 1.0
    best = at

    def policy(theta: Array) -> Array:
        table = np.full(available.shape, -np.inf)
        table[available] = theta
        pi = np.exp(table - table.max(axis=1, keepdims=True))
        return np.asarray(pi / pi.sum(axis=1, keepdims=True))

    def scaled(theta: Array) -> tuple[float, Array]:
        nonlocal best
        tick()
        pi = policy(theta)
        slope = landscape.slope(pi)
        if slope is None or not np.isfinite(slope.at[1:]).all():
            return BARRIER, np.zeros_like(theta)
        best = max(best, slope.at, key=lambda each: each.objective(penalty))
        ascent = slope.mean - penalty * slope.variance
        ascent = pi * (ascent - np.sum(pi * ascent, axis=1, keepdims=True))
        return -slope.at.objective(penalty) / scale, -ascent[available] / scale

    options = {"maxiter": MAX_ITERATIONS, "maxcor": MEMORY, "ftol": 1e-16, "gtol": 1e-9}
    with np.errstate(over="ignore", invalid="ignore"):  # huge penalties
        scipy.optimize.minimize(scaled, first, jac=True, method="L-BFGS-B", options=options)
    return best


def _without_rare_actions(landscape: Landscape, at: Candidate, penalty: float) -> Candidate:
    """Leave out actions that are rarely taken, if nothing is lost."""
    for share in RARE:
        pi = np.where(at.pi < share, 0.0, at.pi)
        pi /= pi.sum(axis=1, keepdims=True)
        other = landscape.at(pi)
        if other is not None and other.objective(penalty) >= at.objective(penalty) - at.rounding(
            penalty
        ):
            return other
    return at
