"""Mean and variance of the return from a start, for one policy after another.

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

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from retvar.errors import ConvergenceError, InputError
from retvar.exact.moments import deviation, moment_reward
from retvar.mdp import END, MDP, Policy, WeightedEdges
from retvar.risk.gradient import ActionTerms, derivatives, policy_gradient, sum_by_action

__all__ = ["DenseLandscape", "Landscape", "Slope", "SparseLandscape", "Spot", "landscape_of"]

Array = NDArray[np.float64]
MAX_TABLE = 150  # most states for which inverses are computed
MAX_STEPS = 1e9  # a policy with γ = 1 that takes longer counts as never ending


class Spot(NamedTuple):
    """Mean and variance of the return of a policy."""

    mean: float
    variance: float

    def objective(self, penalty: float) -> float:
        """Mean − penalty × variance."""
        return self.mean - penalty * self.variance


class Slope(NamedTuple):
    """A spot, with the derivatives of mean and variance [state, action]; rows are not centred."""

    spot: Spot
    mean: Array
    variance: Array


class Landscape:
    """Mean and variance as functions of the policy; None where they do not exist."""

    def __init__(self, mdp: MDP, start: Array) -> None:
        self.mdp, self.start = mdp, start
        self.evaluations = 0

    def at(self, pi: Array) -> Spot | None:
        """Mean and variance of a policy."""
        raise NotImplementedError

    def slope(self, pi: Array) -> Slope | None:
        """Mean and variance with their derivatives."""
        raise NotImplementedError

    def switches(self, pi: Array) -> tuple[Array, Array] | None:
        """Means and variances [state, action] if one state always takes one action.

        −∞ and ∞ where that cannot be done; None if there are too many states.
        """
        raise NotImplementedError


class SparseLandscape(Landscape):
    """Each policy by :func:`retvar.policy_gradient`."""

    def at(self, pi: Array) -> Spot | None:
        """Mean and variance of a policy."""
        slope = self.slope(pi)
        return None if slope is None else slope.spot

    def slope(self, pi: Array) -> Slope | None:
        """Mean and variance with their derivatives."""
        self.evaluations += 1
        try:
            found = policy_gradient(self.mdp, Policy(pi), lam=1.0, start=self.start)
        except (InputError, ConvergenceError):  # it never ends, or hardly ever
            return None
        return Slope(Spot(found.return_mean, found.return_variance), found.mean, found.variance)

    def switches(self, pi: Array) -> None:
        """None: there are too many states."""
        return


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
            n=mdp.n_states, state=e.state, next_state=self._next, ends=ends, b=e.probability,
            rho=ones, eta=ones, rho_bar=ones, reward=e.reward, reward_std=e.reward_std,
            gamma=e.gamma, lam=ones, arriving=np.ones(mdp.n_states),
        )  # fmt: skip

    def at(self, pi: Array) -> Spot | None:
        """Mean and variance of a policy."""
        solved = self._solve(pi)
        return None if solved is None else self._spot(solved)

    def slope(self, pi: Array) -> Slope | None:
        """Mean and variance with their derivatives."""
        f = self._solve(pi)
        if f is None:
            return None
        by_action = ActionTerms.of(self.mdp, f.j, f.v, np.ones(f.j.size), None)
        mean, variance = derivatives(
            f.edges, self.start, f.j, f.epsilon, by_action, lambda x: f.X.T @ x, lambda x: f.Z.T @ x
        )
        return Slope(self._spot(f), mean, variance)

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

    def _spot(self, f: _Solved) -> Spot:
        m = float(self.start @ f.j)
        return Spot(m, max(0.0, float(self.start @ (f.v + (f.j - m) ** 2))))

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


def landscape_of(mdp: MDP, start: Array) -> Landscape:
    """The landscape of an MDP: dense for a small one, sparse for a large one."""
    kind = DenseLandscape if mdp.n_states <= MAX_TABLE else SparseLandscape
    return kind(mdp, start)
