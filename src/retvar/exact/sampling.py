"""Sampled λ-returns, as an independent check of the closed forms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retvar.exact.moments import ROUNDING, HigherMoments, check_order
from retvar.exact.solution import ORDERS, Solution, checked_value, solve_weighted
from retvar.mdp import MDP, WeightedEdges, weigh_edges
from retvar.mdp.weighted_edges import Estimand
from retvar.support import arguments
from retvar.support.errors import ConvergenceError, InputError

Array = NDArray[np.float64]
COMPARED = ("mean", "variance", "third_moment", "fourth_moment")
MAX_WALKS = 1_000_000  # walks simulated at the same time
MAX_SAMPLES = 100_000_000  # returns from each state
NEGLIGIBLE = 1e-12  # a walk stops when the rest of its return has less weight


@dataclass(frozen=True, eq=False)
class MonteCarlo(HigherMoments):
    """Mean and variance of sampled λ-returns from each state, with standard errors.

    With a higher `order` also the third and fourth central moment, which are unbiased as these are,
    and the skewness and the excess kurtosis. A moment that is infinite is NaN, as in :func:`solve`.
    The standard error of a moment of order k uses that of order 2k. Off-policy returns may have
    none; the standard error is then too small.
    """

    mdp: MDP
    samples: int  #: returns from each state
    mean: Array
    mean_stderr: Array
    variance: Array
    variance_stderr: Array
    spread: Array  #: the variance, 0 where it is rounding
    order: int = 2
    third_moment: Array | None = None  # type: ignore[assignment]  #: None below order 3
    third_moment_stderr: Array | None = None
    fourth_moment: Array | None = None  # type: ignore[assignment]  #: None below order 4
    fourth_moment_stderr: Array | None = None

    def _moment(self, order: int) -> Any:
        found = getattr(self, COMPARED[order - 1])
        if found is None:
            raise InputError("order", self.order, f"must be at least {order} for this")
        return found

    @property
    def _spread(self) -> Array:
        return self.spread

    def z(self, solution: Solution) -> tuple[Array, ...]:
        """Deviation from `solution` in standard errors: mean, variance, third and fourth moment.

        As many as both know. 0 if both agree up to rounding, as without randomness; NaN where a
        moment is infinite.

        >>> import retvar as rv
        >>> chain = rv.domains.chain()
        >>> z_mean, z_variance = rv.monte_carlo(chain, samples=10_000).z(rv.solve(chain))
        >>> bool(abs(z_variance).max() < 5)
        True
        """
        arguments.instance("solution", solution, Solution, "a solution of retvar.solve")
        found = []
        for field in COMPARED[: min(self.order, solution.order)]:
            exact, stderr = getattr(solution, field), getattr(self, f"{field}_stderr")
            gap = getattr(self, field) - exact
            with np.errstate(divide="ignore", invalid="ignore"):
                z = gap / stderr
            found.append(np.where(np.abs(gap) <= 1e-9 * np.maximum(1.0, np.abs(exact)), 0.0, z))
        return tuple(found)


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
    order: int = 2,
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
    order = check_order(order)
    samples = arguments.integer("samples", samples, order, MAX_SAMPLES)
    max_steps = arguments.integer("max_steps", max_steps, 1)
    rng = arguments.generator("seed", seed)
    edges = weigh_edges(mdp, target, behaviour, estimand, lam)
    H = None if value is None else checked_value(mdp, value)
    exact = solve_weighted(mdp, edges, H, order)  # knows which moments are infinite
    walk = _Walk(edges, exact.value if H is None else H, rng, max_steps)
    batch = max(1, MAX_WALKS // samples)
    parts = [
        _moments(walk.returns(np.arange(first, min(first + batch, mdp.n_states)), samples), order)
        for first in range(0, mdp.n_states, batch)
    ]
    found = {field: np.concatenate([part[field] for part in parts]) for field in parts[0]}
    for field in found.keys() - {"mean"}:
        needs = ORDERS.get(field.removesuffix("_stderr"), 2)
        found[field][exact.finite_order < needs] = np.nan
    return MonteCarlo(mdp=mdp, samples=samples, order=order, **found)


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


def _moments(returns: Array, order: int) -> dict[str, Array]:
    """Mean and unbiased central moments of each row, with standard errors.

    A standard error is the root mean square of the influence of one return, over √n.
    """
    n = returns.shape[1]
    found: dict[str, Array] = {}

    def add(field: str, estimate: Array, influence: Array) -> None:
        found[field] = estimate
        found[f"{field}_stderr"] = np.sqrt((influence**2).mean(axis=1) / n)

    mean = returns.mean(axis=1)
    d = returns - mean[:, None]
    squared = d**2
    m2, m3, m4 = (x.mean(axis=1) for x in (squared, squared * d, squared**2))
    V = squared.sum(axis=1) / (n - 1)
    found |= {"mean": mean, "variance": V, "mean_stderr": np.sqrt(V / n)}
    found["variance_stderr"] = np.sqrt(np.maximum(m4 - V**2, 0.0) / n)
    found["spread"] = np.where(m2 > (ROUNDING * np.abs(returns).max(axis=1)) ** 2, V, 0.0)
    s2, s3, s4 = (m[:, None] for m in (m2, m3, m4))
    if order > 2:
        third = n * n / ((n - 1) * (n - 2)) * m3
        add("third_moment", third, squared * d - s3 - 3 * s2 * d)
    if order > 3:
        fourth = n * ((n * n - 2 * n + 3) * m4 - 3 * (2 * n - 3) * m2**2)
        fourth /= (n - 1) * (n - 2) * (n - 3)
        add("fourth_moment", fourth, squared**2 - s4 - 4 * s3 * d)
    return found
