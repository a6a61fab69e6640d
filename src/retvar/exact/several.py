"""Several returns at once: their covariances, and mean and spread of any combination of them.

With X = ε + cX′ the deviation of each return from its mean, as in :mod:`retvar.exact.moments`,

    Cov(G_A, G_B) = (I − B)⁻¹ (E[ε̄_A ε̄_B] + E[η² σ_A σ_B ϱ])        ϱ: correlation of the noise

so that a pair needs one more solution, and is the variance if A = B. A combination Σ w G has the
mean Σ w J and the variance wᵀCw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, combinations_with_replacement
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retvar.exact.moments import Mask, covariance_reward, deviation
from retvar.mdp import MDP, WeightedEdges
from retvar.mdp.linear import Resolvent
from retvar.mdp.model import expanded
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.support.format import align, count, joined, listed, literal, plus_minus
from retvar.support.html import MOST, Shown, page, table

if TYPE_CHECKING:
    import xarray as xr

    from retvar.exact.solution import Solution

__all__ = ["Combination", "SeveralReturns", "solve_several", "weights_of"]

Array = NDArray[np.float64]
Rewards = Mapping[str, ArrayLike]
Noise = Mapping[Any, ArrayLike]
ROWS = 100  # states of a printed table


class Combination(NamedTuple):
    """Mean and variance of a weighted sum of returns, in each state."""

    mean: Array
    variance: Array

    @property
    def std(self) -> Array:
        """Standard deviation; NaN where the variance is infinite."""
        return np.sqrt(self.variance)


@dataclass(frozen=True, eq=False)
class SeveralReturns(Shown):
    """Values and covariances of several returns, for each state.

    >>> import retvar as rv
    >>> mdp = rv.domains.complex_mdp()
    >>> found = rv.solve(mdp, rewards={"profit": mdp.edges.reward, "energy": [1, 2, 0, 1, 3]})
    >>> found.std.round(3)
    array([[0.376, 1.045, 0.722, 0.487, 0.176],
           [0.21 , 0.584, 0.314, 0.442, 0.52 ]])
    >>> found.correlation[0, 1].round(3)
    array([ 0.457,  0.457, -0.551, -0.262, -0.599])
    >>> found.combine({"profit": 1, "energy": -0.3}).std.round(3)
    array([0.352, 0.977, 0.778, 0.538, 0.297])
    """

    names: tuple[str, ...]  #: of the rewards, in the order of all arrays
    states: Sequence[Any]  #: labels
    value: Array  #: of each return [reward, state]
    covariance: Array  #: [reward, reward, state]; NaN where a variance is infinite or not known
    varies: Mask  #: whether a return differs from its value at all [reward, state]
    missing: str = "infinite"  #: what a variance is that is NaN

    @property
    def variance(self) -> Array:
        """Variance of each return [reward, state]."""
        return np.ascontiguousarray(np.diagonal(self.covariance).T)

    @property
    def std(self) -> Array:
        """Standard deviation of each return [reward, state]."""
        return np.sqrt(self.variance)

    @property
    def correlation(self) -> Array:
        """Correlations [reward, reward, state]; NaN where one of both does not vary."""
        std = np.where(self.varies, self.std, np.nan)
        return np.clip(self.covariance / std[:, None] / std, -1.0, 1.0)

    @property
    def note(self) -> NDArray[np.str_]:
        """Why a number is missing, for each state; empty where none is."""
        found, names = [], np.array(self.names)
        words = f"the variance of {{}} is {self.missing}", "{} does not vary: no correlation"
        for pair in np.stack([np.isnan(self.variance), ~self.varies]).transpose(2, 0, 1):
            told = zip(words, pair, strict=True)
            found.append("; ".join(x.format(joined(names[own])) for x, own in told if own.any()))
        return np.array(found)

    def combine(self, weights: Mapping[str, float]) -> Combination:
        """Mean and variance of a weighted sum of the returns; those left out have weight 0."""
        w = weights_of(self.names, weights)
        used = np.flatnonzero(w)  # an infinite variance without weight does not matter
        table = self.covariance[np.ix_(used, used)]
        variance = np.einsum("a,b,abs->s", w[used], w[used], table)
        return Combination(w[used] @ self.value[used], np.maximum(variance, 0.0))

    @property
    def data(self) -> xr.Dataset:
        """All numbers and notes as an ``xarray.Dataset``; `other` is a second axis of rewards."""
        import xarray

        each, pair = ("reward", "state"), ("reward", "other", "state")
        axes = {"value": each, "std": each, "covariance": pair, "correlation": pair}
        columns: dict[str, Any] = {name: (axis, getattr(self, name)) for name, axis in axes.items()}
        labels = {"reward": list(self.names), "other": list(self.names), "state": self.states}
        return xarray.Dataset({**columns, "note": ("state", self.note)}, labels)

    def table(self, most: int | None = None) -> list[list[str]]:
        """Rows of text: a heading, then value ± std and correlations of the first states."""
        pairs = list(combinations(range(len(self.names)), 2))
        titles = [f"correlation {self.names[a]}, {self.names[b]}" for a, b in pairs]
        rows = [["state", *(f"{name} ± std" for name in self.names), *titles]]
        std, alike = self.std, self.correlation
        for s, label in enumerate(self.states[:most]):
            cells = map(plus_minus, self.value[:, s].tolist(), std[:, s].tolist())
            rows.append([str(label), *cells, *(f"{alike[a, b, s]:.3f}" for a, b in pairs)])
        return rows

    def __str__(self) -> str:
        rest = [f"… and {len(self.states) - ROWS:,} more states"] * (len(self.states) > ROWS)
        return "\n".join([*align(self.table(ROWS)), *rest])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({listed(self.names)}; {count(len(self.states), 'state')})"

    def _html(self) -> str:
        heading, *rows = self.table(MOST)
        return page(repr(self), table(heading, rows, len(self.states)))


def weights_of(names: Sequence[str], weights: Mapping[str, float]) -> Array:
    """The weight of each of some returns, 0 where none is given.

    >>> weights_of(["profit", "energy"], {"energy": -0.3})
    array([ 0. , -0.3])
    """
    arguments.instance("weights", weights, Mapping, "a mapping from names of rewards to numbers")
    for name in weights:
        arguments.choice("weights", name, names)
    given = {name: arguments.number(f"weights[{name}]", x) for name, x in weights.items()}
    return np.array([given.get(name, 0.0) for name in names])


@np.errstate(over="ignore", invalid="ignore")  # overflow raises an InputError
def solve_several(mdp: MDP, edges: WeightedEdges, rewards: Rewards, noise: Noise) -> SeveralReturns:
    """Values and covariances of several rewards of an MDP; see :func:`retvar.solve`."""
    from retvar.exact.solution import solve_weighted

    arguments.instance("rewards", rewards, Mapping, "a mapping from names to rewards")
    if not rewards:
        raise InputError("rewards", "{}", "must name at least one reward")
    names = tuple(arguments.text("rewards", name) for name in rewards)
    (std, alike), n = _noise_of(mdp, names, noise), edges.number
    found = []
    for k, (name, given) in enumerate(zip(names, rewards.values(), strict=True)):
        reward = per_edge(mdp, f"rewards[{name}]", given)
        own = replace(edges, reward=reward[n], reward_std=std[k, n])
        found.append(solve_weighted(mdp, own, None))
    table = np.empty((len(names), len(names), edges.n))
    for a, b in combinations_with_replacement(range(len(names)), 2):
        table[a, b] = table[b, a] = _covariance(found[a], found[b], alike[a, b, n])
    value, varies = np.array([x.value for x in found]), np.array([x._spread != 0 for x in found])
    return SeveralReturns(names, mdp.state_labels, value, table, varies)


def _covariance(one: Solution, other: Solution, alike: Array) -> Array:
    """The covariance of two returns; `alike` correlates their noise on each edge."""
    if other is one:
        return one.variance
    e, f = one._edges, other._edges
    noise = (e.eta * e.reward_std) * (f.eta * f.reward_std) * alike
    epsilon, second = (deviation(x._edges, x.value, x.value) for x in (one, other))
    finite = np.isfinite(one.variance + other.variance)
    vary = (one._spread != 0) & (other._spread != 0)
    keep = finite & (vary | finite.all())
    inside = keep[e.state] & keep[e.next_state]
    resolvent = Resolvent(e.matrix(np.where(inside, e.decay**2, 0.0)))
    reward = np.where(keep, covariance_reward(e, epsilon, second, noise), 0.0)
    found = resolvent.solve(reward, by_state=True).x
    return np.where(vary, np.where(finite, found, np.nan), 0.0)


def per_edge(mdp: MDP, field: str, given: ArrayLike) -> Array:
    """A number for each edge from one for all, one an edge, R[s], R[s, a] or R[s, a, s′]."""
    e, last = mdp.edges, 1 if mdp.episodic else mdp.n_states
    array = arguments.floats(field, given, f"a number, {e.state.size} (one an edge), or a table")
    if array.shape == e.state.shape and isinstance(given, list | tuple) and not mdp._as_given:
        remedy = "the edges were sorted: give an array in the order of mdp.edges, or a table"
        raise InputError(field, "a list, one an edge", remedy)
    if array.shape in ((), e.state.shape):
        return arguments.numbers(field, array, e.state.size)
    table = expanded(field, array, (mdp.n_states, mdp.n_actions, last))
    return np.asarray(table[e.state, e.action, np.minimum(e.next_state, last - 1)])


def _noise_of(mdp: MDP, names: tuple[str, ...], noise: Noise) -> tuple[Array, Array]:
    """Standard deviations [reward, edge] and correlations [reward, reward, edge] of the noise."""
    arguments.instance("noise", noise, Mapping, "a mapping from names, or pairs of names, to noise")
    edges = mdp.edges.state.size
    std, alike = np.zeros((len(names), edges)), np.eye(len(names))[..., None] * np.ones(edges)
    for key, given in noise.items():
        pair = key if isinstance(key, tuple) else (key,)
        if not 0 < len(set(pair)) == len(pair) < 3:
            raise InputError("noise", literal(key), "must be a name, or a pair of different names")
        a, *b = (names.index(arguments.choice("noise", name, names)) for name in pair)
        field = f"noise[{', '.join(pair)}]"
        x = per_edge(mdp, field, given)
        if b:
            arguments.refuse(field, x, np.abs(x) > 1, "a correlation lies in [−1, 1]")
            alike[a, b] = alike[b, a] = x
        else:
            arguments.refuse(field, x, x < 0, "must not be negative")
            std[a] = x
    return std, alike
