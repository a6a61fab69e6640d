"""Sampled λ-returns, as an independent check of the closed forms."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retvar import arguments
from retvar.errors import ConvergenceError, InputError
from retvar.exact.solution import Solution, variance_resolvent
from retvar.mdp import MDP, WeightedEdges, state_values, weigh_edges
from retvar.mdp.weighted_edges import Estimand

__all__ = ["MonteCarlo", "monte_carlo"]

Array = NDArray[np.float64]
MAX_WALKS = 1_000_000  # walks simulated at the same time
NEGLIGIBLE = 1e-12  # a walk stops when the rest of its return has less weight


@dataclass(frozen=True, eq=False)
class MonteCarlo:
    """Mean and variance of sampled λ-returns from each state, with standard errors.

    The standard error of the variance uses the fourth moment. Off-policy returns may have none; the
    standard error is then too small.
    """

    mdp: MDP
    samples: int  #: returns from each state
    mean: Array
    variance: Array
    mean_stderr: Array
    variance_stderr: Array

    @property
    def std(self) -> Array:
        """Standard deviation of the λ-returns."""
        return np.sqrt(self.variance)

    @property
    def second_moment(self) -> Array:
        """Variance + mean²."""
        return self.variance + self.mean**2

    def __getitem__(self, state: int | str) -> tuple[float, float]:
        """Mean and variance of one state."""
        s = self.mdp.state_index(state)
        return float(self.mean[s]), float(self.variance[s])

    def z(self, solution: Solution) -> tuple[Array, Array]:
        """Deviation from `solution` in standard errors, of the mean and of the variance.

        0 if both agree up to rounding, as without randomness.

        >>> import retvar as rv
        >>> chain = rv.domains.chain()
        >>> z_mean, z_variance = rv.monte_carlo(chain, samples=10_000).z(rv.solve(chain))
        >>> bool(abs(z_variance).max() < 5)
        True
        """
        return (
            _z(self.mean, solution.mean, self.mean_stderr),
            _z(self.variance, solution.variance, self.variance_stderr),
        )


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
    samples = arguments.integer("samples", samples, 2)
    max_steps = arguments.integer("max_steps", max_steps, 1)
    rng = arguments.generator("seed", seed)
    edges = weigh_edges(mdp, target, behaviour, estimand, lam)
    variance_resolvent(edges)  # raises an error if the variance is infinite
    if value is None:
        H = state_values(edges).x
    else:
        H = arguments.numbers("value", value, mdp.n_states, mdp.state_name)
    walk = _Walk(edges, H, rng, max_steps)
    batch = max(1, MAX_WALKS // samples)
    moments = [
        _moments(walk.returns(np.arange(first, min(first + batch, mdp.n_states)), samples))
        for first in range(0, mdp.n_states, batch)
    ]
    mean, variance, fourth = (np.concatenate(column) for column in zip(*moments, strict=True))
    if not np.isfinite(mean + variance + fourth).all():
        raise InputError("reward or value", "too large", "powers of it overflow; scale them down")
    return MonteCarlo(
        mdp=mdp,
        samples=samples,
        mean=mean,
        variance=variance,
        mean_stderr=np.sqrt(variance / samples),
        variance_stderr=np.sqrt(np.maximum(fourth - variance**2, 0.0) / samples),
    )


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


def _moments(returns: Array) -> tuple[Array, Array, Array]:
    """Mean, unbiased variance and central fourth moment of each row."""
    n = returns.shape[1]
    mean = returns.mean(axis=1)
    squared = (returns - mean[:, None]) ** 2
    return mean, squared.sum(axis=1) / (n - 1), (squared**2).mean(axis=1)


def _z(sampled: Array, exact: Array, stderr: Array) -> Array:
    gap = sampled - exact
    rounding = 1e-9 * np.maximum(1.0, np.abs(exact))
    safe = np.where(stderr > 0, stderr, 1.0)
    certain = np.where(np.abs(gap) <= rounding, 0.0, np.copysign(np.inf, gap))
    return np.where(np.abs(gap) <= rounding, 0.0, np.where(stderr > 0, gap / safe, certain))
