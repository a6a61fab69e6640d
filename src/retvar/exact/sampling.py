"""Sampled λ-returns: an independent check of the closed forms that anyone can run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retvar import arguments
from retvar.errors import ConvergenceError, InputError
from retvar.exact.solution import Solution, variance_resolvent
from retvar.mdp import MDP, WeightedEdges, ask, state_values
from retvar.mdp.weighted_edges import Estimand

__all__ = ["MonteCarlo", "monte_carlo"]

Array = NDArray[np.float64]
LANES = 1_000_000  # walks that are under way together
NEGLIGIBLE = 1e-12  # weight of the rest of a return at which a walk stops


@dataclass(frozen=True, eq=False)
class MonteCarlo:
    """Mean and variance of sampled λ-returns from each state, with standard errors.

    The standard error of the variance rests on the fourth moment; off-policy returns may have
    none, and it is then too small.
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

        0 where both agree to rounding, as they do where nothing is random.

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


@np.errstate(over="ignore", invalid="ignore")  # told as an error where it happens
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

    For ``target_return`` the walks follow the target, for ``off_policy_return`` the behaviour, with
    importance ratios in the return. A walk stops when what is still to come weighs less than 1e-12.

    >>> import retvar as rv
    >>> sampled = rv.monte_carlo(rv.domains.chain(lam=1), samples=100_000)
    >>> sampled.variance.round(1)
    array([4., 3., 2., 1.])
    """
    for field, given, least in (("samples", samples, 2), ("max_steps", max_steps, 1)):
        if not isinstance(given, int | np.integer) or isinstance(given, bool) or given < least:
            raise InputError(field, repr(given), f"must be a whole number of at least {least}")
    try:
        rng = np.random.default_rng(seed)
    except (TypeError, ValueError) as error:
        raise InputError("seed", repr(seed), f"must be a whole number: {error}") from None
    flow = ask(mdp, target, behaviour, estimand, lam)
    variance_resolvent(flow)  # an infinite variance is an error here too, never a number
    if value is None:
        H = state_values(flow).x
    else:
        H = arguments.numbers("value", value, mdp.n_states, mdp.state_name)
    walk = _Walk(flow, H, rng, max_steps)
    batch = max(1, LANES // samples)
    moments = [
        _moments(walk.returns(np.arange(first, min(first + batch, mdp.n_states)), samples))
        for first in range(0, mdp.n_states, batch)
    ]
    mean, variance, fourth = (np.concatenate(column) for column in zip(*moments, strict=True))
    if not np.isfinite(mean + variance + fourth).all():
        raise InputError("reward or value", "too large", "powers of it overflow; scale them down")
    return MonteCarlo(
        mdp=mdp,
        samples=int(samples),
        mean=mean,
        variance=variance,
        mean_stderr=np.sqrt(variance / samples),
        variance_stderr=np.sqrt(np.maximum(fourth - variance**2, 0.0) / samples),
    )


class _Walk:
    """Walks over the edges of a flow, many at once."""

    def __init__(
        self, flow: WeightedEdges, H: Array, rng: np.random.Generator, max_steps: int
    ) -> None:
        self.flow, self.rng, self.max_steps = flow, rng, max_steps
        self.bootstrap = flow.gamma * (1 - flow.lam) * H[flow.next_state]
        self.keeps = flow.eta * flow.gamma * flow.lam
        # an edge of state s is drawn by looking up s + uniform among s + cumulated probability
        total = np.cumsum(flow.b)
        first = np.searchsorted(flow.state, np.arange(flow.n))
        self.last = np.append(first[1:], flow.state.size) - 1
        before = np.concatenate([[0.0], total])[first]
        within = (total - before[flow.state]) / (total[self.last] - before)[flow.state]
        self.ladder = flow.state + within

    def returns(self, states: NDArray[np.intp], samples: int) -> Array:
        """λ-returns [state, sample]."""
        f = self.flow
        G = np.zeros(states.size * samples)
        lane = np.arange(G.size)
        here = np.repeat(states, samples)
        weight = np.ones(G.size)
        for _ in range(self.max_steps):
            if lane.size == 0:
                return G.reshape(states.size, samples)
            edge = np.searchsorted(self.ladder, here + self.rng.random(lane.size), side="right")
            edge = np.minimum(edge, self.last[here])
            reward = f.reward[edge] + f.reward_std[edge] * self.rng.standard_normal(lane.size)
            G[lane] += weight * f.eta[edge] * (reward + self.bootstrap[edge])
            weight = weight * self.keeps[edge]
            on = weight > NEGLIGIBLE
            lane, here, weight = lane[on], f.next_state[edge][on], weight[on]
        raise ConvergenceError(
            f"after {self.max_steps:,} steps {lane.size:,} of {G.size:,} returns are not complete; "
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
