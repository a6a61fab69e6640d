"""Central moments of the λ-return: their rewards, and in which states they are finite.

X = G − g is the deviation of the λ-return from its mean g. With c = ηγ′λ′,

    X = ε + cX′,    E[X′] = 0,    ε = ε̄ + normal noise with σ = η·reward_std,
    ε̄ = η(r + γ′((1−λ′)H′ + λ′g′)) − g,

so that the moments of orders 2, 3 and 4 are

    V  = E[ε̄² + σ²] + E[c²V′]
    M₃ = E[ε̄³ + 3ε̄σ² + 3c²ε̄V′] + E[c³M₃′]
    M₄ = E[ε̄⁴ + 6ε̄²σ² + 3σ⁴ + 6c²(ε̄² + σ²)V′ + 4c³ε̄M₃′] + E[c⁴M₄′].

Each is a linear system with the matrix E[cᵏ]. The moment of order k is infinite in s if and only if
s leads, along edges with c ≠ 0, to a strongly connected part whose block of E[cᵏ] has a radius of 1
or more, and this part to a state with noise (ε ≠ 0). Where no noise is reached, X = 0.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from retvar.mdp import WeightedEdges
from retvar.mdp.linear import (
    LinearSolution,
    Radius,
    Resolvent,
    expanding,
    reaching,
    spectral_radius,
)
from retvar.support import arguments
from retvar.support.errors import ConvergenceError, InfiniteVarianceError, InputError

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
NAMES = {2: "variance", 3: "third moment", 4: "fourth moment"}
BELOW_ONE = Radius(float(np.nextafter(1.0, 0.0)), "upper bound")
ROUNDING = 1e-12  # deviations that are this small, relative to the largest return, are not noise
NO_SPREAD = "the variance is not above 0: no skewness, no kurtosis"
IMPOSSIBLE = "the kurtosis is below skewness² − 2, which no return has: not yet learned"


def check_order(order: object) -> int:
    """Return the highest moment asked for: 2, 3 or 4."""
    return arguments.integer("order", order, 2, max(NAMES))


def mean_reward(edges: WeightedEdges, H: Array) -> Array:
    """Reward of the mean node, η(r + γ′(1−λ′)H′), of each edge; H is [state] or [case, state]."""
    return edges.eta * (edges.reward + edges.gamma * (1 - edges.lam) * H[..., edges.next_state])


def mean_of_return(edges: WeightedEdges, H: Array) -> LinearSolution:
    """Mean of the λ-return that bootstraps from H: g = (I − PGL)⁻¹ E[η(r + γ′(1−λ′)H′)]."""
    return Resolvent(edges.matrix(edges.decay)).solve(edges.expect(mean_reward(edges, H)))


def deviation(edges: WeightedEdges, H: Array, G: Array) -> Array:
    """ε̄ = η(r + γ′((1−λ′)H′ + λ′G′)) − G of each edge; H and G are [state] or [case, state].

    With G = g it belongs to the moments of the return; with G = H it is what the direct method
    takes for it.
    """
    inside = mean_reward(edges, H) + edges.decay * G[..., edges.next_state]
    return inside - G[..., edges.state]


def moment_reward(edges: WeightedEdges, epsilon: Array, lower: Sequence[Array]) -> Array:
    """Expected reward of the moment that follows the `lower` ones (none, V, or V and M₃).

    NaN in a lower moment counts as 0: edges lead there only with c = 0, or from states in which the
    next moment is infinite too.
    """
    noise = edges.eta * edges.reward_std
    c, e = edges.decay, epsilon
    if not lower:
        return covariance_reward(edges, e, e, noise**2)
    V, *M3 = (np.where(np.isnan(x), 0.0, x)[edges.next_state] for x in lower)
    if not M3:
        return edges.expect(e * (e**2 + 3 * noise**2 + 3 * c**2 * V))
    within = e**4 + 6 * e**2 * noise**2 + 3 * noise**4
    across = 6 * c**2 * (e**2 + noise**2) * V + 4 * c**3 * e * M3[0]
    return edges.expect(within + across)


def covariance_reward(edges: WeightedEdges, first: Array, second: Array, noise: Array) -> Array:
    """Expected reward of a covariance, E[ε̄_A ε̄_B + noise]; the variance's if A = B."""
    return edges.expect(first * second + noise)


def noisy_states(edges: WeightedEdges, epsilon: Array, *known: Array) -> Mask:
    """States with an edge on which ε is not 0, rounding of it and of what is known aside."""
    sizes = (epsilon, edges.eta * edges.reward, *known)
    scale = max(float(np.max(np.abs(x), initial=0.0)) for x in sizes)
    noisy = (np.abs(epsilon) > ROUNDING * scale) | (edges.eta * edges.reward_std > 0)
    return np.bincount(edges.state, noisy, edges.n) > 0


@dataclass(frozen=True, eq=False)
class MomentSystem:
    """(I − E[cᵏ])⁻¹ on the states in which the moment of order k is finite."""

    order: int
    resolvent: Resolvent
    radius: Radius  #: of E[cᵏ] on all states
    infinite: Mask
    grows: Mask  #: states in parts that do not contract, with noise or without
    keep: Mask | None  #: states of the system; None: all

    def solve(self, reward: Array) -> LinearSolution:
        """The moment of each state: NaN where it is infinite, 0 where no noise is reached."""
        if self.keep is None:
            return self.resolvent.solve(reward, by_state=True)
        solved = self.resolvent.solve(np.where(self.keep, reward, 0.0), by_state=True)
        return solved._replace(x=np.where(self.infinite, np.nan, solved.x))

    def visits(self, start: Array) -> Array:
        """(I − E[cᵏ])⁻ᵀ d: visits of each state after a start, weighted by the product of cᵏ."""
        return self.resolvent.solve(start, transpose=True).x


def moment_system(
    edges: WeightedEdges,
    order: int,
    noisy: Callable[[], Mask] | None,
    discount: Array | None = None,
) -> MomentSystem:
    """Decide where the moment of an order is finite; raise an error if it is nowhere.

    `noisy` gives the states with noise, and is called only if some part does not contract; None
    stands for no noise anywhere. `discount` is that of each edge; default: cᵏ.

    If no discount exceeds ηγ′, then its matrix is at most PG, and :func:`~retvar.mdp.weigh_edges`
    has checked that the radius of PG is below 1. The radius is then reported as below 1 even if
    rounding hides it.
    """
    powers = edges.decay**order if discount is None else discount
    resolvent = Resolvent(edges.matrix(powers))
    M, nowhere = resolvent.M, np.zeros(edges.n, dtype=bool)
    contracts = bool(np.all(powers <= edges.eta * edges.gamma))
    radius = BELOW_ONE
    if not contracts or order == 2:  # only the radius of B is reported
        try:
            radius = spectral_radius(M, resolvent)
        except ConvergenceError:  # some part may decide it; otherwise `expanding` raises this error
            radius = Radius(1.0, "lower bound")
        radius = BELOW_ONE if contracts and not radius.below_one else radius
    if radius.below_one:
        return MomentSystem(order, resolvent, radius, nowhere, nowhere, None)
    grows = expanding(M)
    if not grows.any():  # part by part it could be decided
        return MomentSystem(order, resolvent, BELOW_ONE, nowhere, nowhere, None)
    loud = reaching(M, nowhere if noisy is None else noisy())
    infinite = reaching(M, grows & loud)
    if infinite.all():
        raise InfiniteVarianceError(radius.value, at_least=radius.kind != "exact", order=order)
    keep = loud & ~infinite
    inside = keep[edges.state] & keep[edges.next_state]
    rest = Resolvent(edges.matrix(np.where(inside, powers, 0.0)))
    return MomentSystem(order, rest, radius, infinite, grows, keep)


def central_moments(
    edges: WeightedEdges, H: Array, g: Array, order: int
) -> list[tuple[MomentSystem, LinearSolution]]:
    """Solve for the moments of orders 2, 3, … about g, one order after the other."""
    epsilon = deviation(edges, H, g)
    noisy = functools.partial(noisy_states, edges, epsilon, g)
    solved: list[tuple[MomentSystem, LinearSolution]] = []
    for k in range(2, order + 1):
        system = moment_system(edges, k, noisy)
        found = system.solve(moment_reward(edges, epsilon, [lower.x for _, lower in solved]))
        x = found.x if k == 3 else np.maximum(found.x, 0.0)  # rounding
        if not np.isfinite((x + g * g)[~system.infinite]).all():
            remedy = "a power of it overflows; scale them down"
            raise InputError("reward or value", "too large", remedy)
        solved.append((system, found._replace(x=x)))
    return solved


class HigherMoments:
    """Base of answers with a mean, a variance and, from `_moment`, higher central moments."""

    mean: Array
    variance: Array

    def _moment(self, order: int) -> Array:
        """The moment of order 3 or 4, or an InputError if it is not known."""
        raise NotImplementedError

    @property
    def _spread(self) -> Array:
        """The variance that ratios are taken with."""
        return self.variance

    @property
    def std(self) -> Array:
        """Standard deviation of the λ-return."""
        return np.sqrt(self.variance)

    @property
    def second_moment(self) -> Array:
        """Second moment of the λ-return, variance + mean²."""
        return self.variance + self.mean**2

    @property
    def third_moment(self) -> Array:
        """Third central moment of the λ-return; NaN where it is infinite (``order=3`` or 4)."""
        return self._moment(3)

    @property
    def fourth_moment(self) -> Array:
        """Fourth central moment of the λ-return; NaN where it is infinite (``order=4``)."""
        return self._moment(4)

    @property
    def skewness(self) -> Array:
        """Third moment / variance^1.5; NaN where the variance is 0 or the moment infinite."""
        return shape("skewness", self._spread, self._moment(3))

    @property
    def kurtosis(self) -> Array:
        """Excess kurtosis, fourth moment / variance² − 3; NaN as for the skewness."""
        return shape("kurtosis", self._spread, self._moment(4))


def shape(name: str, variance: Array, moment: Array) -> Array:
    """Skewness M₃/V^1.5, or excess kurtosis M₄/V² − 3; NaN where V ≤ 0.

    >>> shape("kurtosis", np.array([1.0, 0.0]), np.array([3.0, 0.0]))
    array([ 0., nan])
    """
    with np.errstate(over="ignore", invalid="ignore"):
        V = np.where(variance > 0, variance, np.nan)
        return np.asarray(moment / V / np.sqrt(V) if name == "skewness" else moment / V / V - 3)


def notes_on(variance: Array, skewness: Array, kurtosis: Array | None) -> NDArray[np.str_]:
    """Why a skewness or kurtosis is missing or wrong, for each state; empty where none is."""
    found = np.where(variance > 0, "", NO_SPREAD)
    if kurtosis is None:
        return found
    least = skewness**2 - 2
    with np.errstate(invalid="ignore"):
        below = kurtosis < least - ROUNDING * (4 + np.abs(least))
    return np.where(below, IMPOSSIBLE, found)
