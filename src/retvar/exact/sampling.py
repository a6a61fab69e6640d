"""Sampled λ-returns, as an independent check of the closed forms."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retvar.exact.solution import Solution, checked_value, solve_weighted
from retvar.mdp import MDP, WeightedEdges, weigh_edges
from retvar.mdp.weighted_edges import Estimand
from retvar.support import arguments
from retvar.support.errors import ConvergenceError

Array = NDArray[np.float64]
MAX_WALKS = 1_000_000  # walks simulated at the same time
MAX_SAMPLES = 100_000_000  # returns from each state
NEGLIGIBLE = 1e-12  # a walk stops when the rest of its return has less weight


@dataclass(frozen=True, eq=False)
class MonteCarlo:
    """Mean and variance of sampled λ-returns from each state, with standard errors.

    A variance that is infinite is NaN, as in :func:`solve`. Its standard error uses the fourth
    moment; off-policy returns may have none, and it is then too small.
    """

    mdp: MDP
    samples: int  #: returns from each state
    mean: Array
    mean_stderr: Array
    variance: Array
    variance_stderr: Array

    @property
    def std(self) -> Array:
        """Standard deviation of the λ-return."""
        return np.sqrt(self.variance)

    def z(self, solution: Solution) -> tuple[Array, Array]:
        """Deviation of mean and variance from `solution`, in standard errors.

        0 if both agree up to rounding, as without randomness; NaN where a variance is infinite.

        >>> import retvar as rv
        >>> chain = rv.domains.chain()
        >>> z_mean, z_variance = rv.monte_carlo(chain, samples=10_000).z(rv.solve(chain))
        >>> bool(abs(z_variance).max() < 5)
        True
        """
        arguments.instance("solution", solution, Solution, "a solution of retvar.solve")
        mean = _deviation(self.mean, solution.mean, self.mean_stderr)
        return mean, _deviation(self.variance, solution.variance, self.variance_stderr)


def _deviation(found: Array, exact: Array, stderr: Array) -> Array:
    gap = found - exact
    with np.errstate(divide="ignore", invalid="ignore"):
        z = gap / stderr
    return np.where(np.abs(gap) <= 1e-9 * np.maximum(1.0, np.abs(exact)), 0.0, z)


@np.errstate(over="ignore", invalid="ignore")  # overflow raises an InputError later
def monte_carlo(
    mdp: MDP,
    target: object = None,
    behaviour: object = None,
    estimand: Estimand = "target_return",
    value: ArrayLike | None = None,
    lam: ArrayLike | None = None,
    *,
    samples: int = 10_000,
    seed: int | np.random.Generator = 0,
    max_steps: int = 1_000_000,
) -> MonteCarlo:
    """Sample `samples` λ-returns from every state; the arguments are those of :func:`solve`.

    For ``target_return`` the walks follow the target; for ``off_policy_return`` they follow the
    behaviour and the return has importance ratios. A walk stops when the rest of its return has a
    weight below 1e-12.

    >>> import retvar as rv
    >>> sampled = rv.monte_carlo(rv.domains.chain(lam=1), samples=100_000)
    >>> sampled.variance.round(1)
    array([4., 3., 2., 1.])
    """
    samples = arguments.integer("samples", samples, 2, MAX_SAMPLES)
    max_steps = arguments.integer("max_steps", max_steps, 1)
    rng = arguments.generator("seed", seed)
    edges = weigh_edges(mdp, target, behaviour, estimand, lam)
    H = None if value is None else checked_value(mdp, value)
    exact = solve_weighted(mdp, edges, H)  # knows which variances are infinite
    walk = _Walk(edges, exact.value if H is None else H, rng, max_steps)
    mean, V, fourth = np.zeros((3, mdp.n_states))
    batch = max(1, MAX_WALKS // samples)
    for first in range(0, mdp.n_states, batch):
        states = np.arange(first, min(first + batch, mdp.n_states))
        returns = walk.returns(states, samples)
        mean[states] = returns.mean(axis=1)
        squares = (returns - mean[states, None]) ** 2
        V[states], fourth[states] = squares.sum(axis=1) / (samples - 1), (squares**2).mean(axis=1)
    V[np.isnan(exact.variance)] = np.nan
    stderr = np.sqrt(np.maximum(fourth - V**2, 0.0) / samples)
    return MonteCarlo(mdp, samples, mean, np.sqrt(V / samples), V, stderr)


def sample_returns(
    mdp: MDP,
    policy: object = None,
    *,
    start: object = None,
    samples: int = 10_000,
    seed: int | np.random.Generator = 0,
    max_steps: int = 1_000_000,
) -> Array:
    """Sample discounted returns (λ = 1) of a policy from starts drawn from a distribution.

    >>> import retvar as rv
    >>> walk = rv.domains.chain(gamma=0.5, reward_std=0.0)
    >>> sample_returns(walk, start="s2", samples=2)
    array([1.5, 1.5])
    """
    rng = arguments.generator("seed", seed)
    samples = arguments.integer("samples", samples, 1, MAX_SAMPLES)
    edges = weigh_edges(mdp, policy, lam=1.0)
    walk = _Walk(edges, np.zeros(edges.n), rng, arguments.integer("max_steps", max_steps, 1))
    first = rng.choice(edges.n, size=samples, p=mdp.start_distribution(start))
    return walk.returns(first.astype(np.intp), 1)[:, 0]


class _Walk:
    """Simulates many walks over weighted edges at the same time."""

    def __init__(
        self, edges: WeightedEdges, H: Array, rng: np.random.Generator, max_steps: int
    ) -> None:
        self.edges, self.rng, self.max_steps = edges, rng, max_steps
        self.bootstrap = edges.gamma * (1 - edges.lam) * H[edges.next_state]
        self.decay = edges.eta * edges.gamma * edges.lam
        # an edge of state s is drawn by looking up s + uniform in s + cumulative probability
        total = np.cumsum(edges.b)
        first = np.searchsorted(edges.state, np.arange(edges.n))
        self.last = np.append(first[1:], edges.state.size) - 1
        before = np.concatenate([[0.0], total])[first]
        within = (total - before[edges.state]) / (total[self.last] - before)[edges.state]
        self.cumulative = edges.state + within

    def returns(self, states: NDArray[np.intp], samples: int) -> Array:
        """λ-returns [state, sample]."""
        f = self.edges
        G = np.zeros(states.size * samples)
        walk = np.arange(G.size)
        state = np.repeat(states, samples)
        weight = np.ones(G.size)
        for _ in range(self.max_steps):
            if walk.size == 0:
                return G.reshape(states.size, samples)
            edge = np.searchsorted(
                self.cumulative, state + self.rng.random(walk.size), side="right"
            )
            edge = np.minimum(edge, self.last[state])
            reward = f.reward[edge] + f.reward_std[edge] * self.rng.standard_normal(walk.size)
            G[walk] += weight * f.eta[edge] * (reward + self.bootstrap[edge])
            weight = weight * self.decay[edge]
            more = weight > NEGLIGIBLE
            walk, state, weight = walk[more], f.next_state[edge][more], weight[more]
        raise ConvergenceError(
            f"after {self.max_steps:,} steps {walk.size:,} of {G.size:,} returns are incomplete; "
            "raise max_steps"
        )
