"""Fixed points of the learners in the limit of small steps.

An estimator is a network of TD nodes. A node with features Φ, discounts M (Σ b × its discount),
trace decay K and expected reward R has its fixed point where A w = b,

    A = Φᵀ D (I − M K)⁻¹ (I − M) Φ,    b = Φᵀ D (I − M K)⁻¹ R,

with D the stationary distribution of the behaviour. A table instead of features gives (I − M)⁻¹ R
for any traces. TD is stable if every eigenvalue of A has a positive real part. The nodes:

    value      M = PG    R = E[ηr]                             predicts H (unless H is given)
    mean       M = PGL   R = E[η(r + γ′(1−λ′)H′)]              centred only
    variance   M = B     R = E[(η(r + γ′((1−λ′)H′ + λ′G′)) − G)²] + E[η²w]
                         with G from the mean node (centred) or G = H (direct)
    second     M = B     R = E[η²((r + γ′H′)² − (γ′λ′H′)²)] + E[η²w]    VTD; variance: this − H²

The nodes of higher moments have M = E[cᵏ] with c = ηγ′λ′, and the rewards of
:mod:`retvar.exact.moments` with the predictions of the variance and third-moment nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike, NDArray

from retvar import arguments
from retvar.errors import InfiniteVarianceError, InputError
from retvar.exact.moments import (
    MomentSystem,
    check_order,
    deviation,
    kurtosis,
    mean_of_return,
    mean_reward,
    moment_reward,
    moment_system,
    noisy_states,
    skewness,
)
from retvar.exact.solution import FIELDS, Solution, solve_weighted
from retvar.exact.stationary import stationary_distribution
from retvar.exact.updates import Method, check_method
from retvar.format import number
from retvar.html import MOST, Shown, page, table
from retvar.linear import Radius, Resolvent, reaching, spectral_radius
from retvar.mdp import MDP, WeightedEdges, state_values, weigh_edges
from retvar.mdp.weighted_edges import Estimand

__all__ = ["FixedPoint", "Node", "fixed_point"]

Array = NDArray[np.float64]
MOMENTS = {3: "third_moment", 4: "fourth_moment"}
MOST_FEATURES = 300  # of a node whose stability is told unasked
INDEPENDENT = 1e-10  # features whose relative singular values are smaller count as dependent


@dataclass(frozen=True, eq=False)
class Node:
    """Fixed point of one TD node.

    Attributes
    ----------
    prediction
        Prediction at the fixed point, one number per state.
    weights
        Weights of the features; None for a table.
    trace_radius
        Spectral radius of the second moment of the traces, which is finite if it is below 1.

    Examples
    --------
    >>> import retvar as rv
    >>> node = rv.fixed_point("direct", rv.domains.chain(), kappa_bar=0.9).nodes["variance"]
    >>> node.stable, node.trace_radius.value
    (True, 0.0)
    """

    prediction: Array
    weights: Array | None
    trace_radius: Radius
    _M: scipy.sparse.csr_array
    _K: Array
    _features: Array | None
    _policy: tuple[MDP, object]
    _expands: bool = False  # whether a part of M has a radius of 1 or more

    @cached_property
    def spectrum(self) -> NDArray[np.complex128]:
        """Eigenvalues of A on the span of the features in the states visited."""
        D = stationary_distribution(*self._policy)
        if self._features is None and self._expands and np.any(self._K):
            raise InputError("spectrum", "an infinite moment", "is computed with κ = 0 only")
        if self._features is None and D.size > 2_000:
            raise InputError(
                "spectrum", f"{D.size} states", "is computed for tables of up to 2000 states"
            )
        Phi = np.eye(D.size)[:, D > 0] if self._features is None else self._features
        A, _ = _system(Phi, D, self._M, self._K)
        basis = _row_space(Phi, D)
        return np.linalg.eigvals(basis.T @ A @ basis).astype(np.complex128)

    @property
    def stable(self) -> bool:
        """Whether TD with small steps converges here.

        True for a table (A is an M-matrix), unless some part of the MDP does not contract.
        """
        if self._features is None:
            return not self._expands
        return bool(np.all(self.spectrum.real > 0))

    @property
    def traces_finite(self) -> bool:
        """Whether the traces have a finite second moment."""
        return self.trace_radius.below_one


@dataclass(frozen=True, eq=False)
class FixedPoint(Shown):
    """Fixed point of a learner, and its bias.

    Attributes
    ----------
    value, mean, variance
        Predictions at the fixed point, one per state: H, the mean around which the variance is
        taken (H itself except for ``centred``), and the variance.
    truth
        Exact solution for the λ-return that bootstraps from `value`.
    nodes
        Name → :class:`Node` of the nodes that learn: ``value``, ``mean``, and ``variance`` or
        ``second_moment``; with a higher order ``third_moment`` and ``fourth_moment``.

    Examples
    --------
    >>> import retvar as rv
    >>> mdp = rv.domains.complex_mdp()
    >>> wrong = rv.solve(mdp).value + 0.5
    >>> for method in ("direct", "vtd", "centred"):
    ...     print(method, rv.fixed_point(method, mdp, value=wrong).bias.round(3) + 0.0)
    direct [0.119 0.221 0.182 0.207 0.122]
    vtd [-0.129 -0.506 -1.333 -1.699 -0.254]
    centred [0. 0. 0. 0. 0.]
    """

    method: str
    value: Array
    mean: Array
    variance: Array
    truth: Solution
    nodes: Mapping[str, Node]
    _policy: tuple[MDP, object]

    @property
    def bias(self) -> Array:
        """Error at the fixed point, `variance` − `truth.variance`."""
        return self.variance - self.truth.variance

    @property
    def second_moment(self) -> Array:
        """VTD's second moment; for the others, variance + mean²."""
        node = self.nodes.get("second_moment")
        return self.variance + self.mean**2 if node is None else node.prediction

    @property
    def third_moment(self) -> Array:
        """Third central moment at the fixed point (``order=3`` or 4)."""
        return self._moment(3)

    @property
    def fourth_moment(self) -> Array:
        """Fourth central moment at the fixed point (``order=4``)."""
        return self._moment(4)

    @property
    def skewness(self) -> Array:
        """Third moment / variance^1.5; NaN where the variance is not positive."""
        return skewness(self.variance, self.third_moment)

    @property
    def kurtosis(self) -> Array:
        """Excess kurtosis, fourth moment / variance² − 3; NaN as for the skewness."""
        return kurtosis(self.variance, self.fourth_moment)

    def _moment(self, k: int) -> Array:
        node = self.nodes.get(MOMENTS[k])
        if node is None:
            remedy = f"{MOMENTS[k]} needs order={k}, with the direct or centred method"
            raise InputError("order", self.truth.order, remedy)
        return node.prediction

    @property
    def rmse(self) -> float:
        """Root of the mean squared bias, weighted by the behaviour's stationary distribution."""
        D = stationary_distribution(*self._policy)
        bias = np.where(D > 0, self.bias, 0.0)  # infinite moments of transient states do not count
        largest = float(np.max(np.abs(bias))) or 1.0
        return largest * float(np.sqrt(D @ (bias / largest) ** 2))

    @property
    def spectrum(self) -> NDArray[np.complex128]:
        """Eigenvalues of A of the variance node (VTD's second moment)."""
        return self._variance_node.spectrum

    @property
    def trace_radius(self) -> float:
        """Spectral radius of the second moment of the variance node's traces."""
        return self._variance_node.trace_radius.value

    @property
    def _variance_node(self) -> Node:
        return self.nodes["second_moment" if self.method == "vtd" else "variance"]

    def __getitem__(self, state: int | str) -> dict[str, float]:
        s = self._policy[0].state_index(state)
        higher = [field for k in range(3, self.truth.order + 1) for field in FIELDS[k]]
        fields = ("value", "mean", "variance", "bias", *higher)
        return {field: float(getattr(self, field)[s]) for field in fields}

    @property
    def stable(self) -> bool:
        """Whether TD is stable in every node."""
        return all(node.stable for node in self.nodes.values())

    @property
    def traces_finite(self) -> bool:
        """Whether the traces of every node have a finite second moment."""
        return all(node.traces_finite for node in self.nodes.values())

    def __repr__(self) -> str:
        largest = float(np.max(np.abs(self.bias), where=np.isfinite(self.bias), initial=0.0))
        return (
            f"FixedPoint({self.method}, {self.value.size:,} states, largest bias {largest:.4g}, "
            f"{self._stability}traces "
            f"{'finite' if self.traces_finite else 'without second moment'})"
        )

    @property
    def _stability(self) -> str:
        """Whether it is stable, in words; nothing where that takes long to find out."""
        sizes = (0 if n.weights is None or "spectrum" in vars(n) else n.weights.size
                 for n in self.nodes.values())  # fmt: skip
        return "" if max(sizes) > MOST_FEATURES else "stable, " if self.stable else "unstable, "

    def _html(self) -> str:
        mdp, own = self._policy[0], self.mean is not self.value
        heading = ["state", "value", *(["mean"] if own else []), "variance", "exact", "bias"]
        columns = [self.value, *([self.mean] if own else []), self.variance]
        columns += [self.truth.variance, self.bias]
        numbers = (row.tolist() for row in np.stack([column[:MOST] for column in columns], axis=1))
        rows = ([mdp.state_name(s), *map(number, row)] for s, row in enumerate(numbers))
        name = f"{mdp.name}: " if mdp.name else ""
        return page(f"{name}{self!r}", table(heading, rows, mdp.n_states), notes=self.truth.notes)


@np.errstate(over="ignore", invalid="ignore")  # overflow raises an InputError later
def fixed_point(
    method: Method,
    mdp: MDP,
    target: object = None,
    behaviour: object = None,
    estimand: Estimand = "target_return",
    *,
    value: ArrayLike | None = None,
    lam: ArrayLike | None = None,
    features: ArrayLike | None = None,
    value_features: ArrayLike | None = None,
    mean_features: ArrayLike | None = None,
    kappa: ArrayLike = 0.0,
    kappa_bar: ArrayLike = 0.0,
    kappa_mean: ArrayLike | None = None,
    order: int = 2,
) -> FixedPoint:
    """Compute the fixed point of a learner in the limit of small steps.

    A moment that is infinite in a state is NaN there. With features, it must be finite in every
    state that the behaviour visits for ever.

    Parameters
    ----------
    method
        ``"direct"``, ``"vtd"`` or ``"centred"``.
    mdp, target, behaviour, estimand, lam
        As in :func:`solve`.
    value
        Fixed value function; default: the fixed point of the value node.
    features
        Variance features [state, feature], dense or sparse; default: a table.
    value_features
        Features of the value node; default: the variance features.
    mean_features
        Features of the centred mean node; default: those of the value node.
    kappa, kappa_bar, kappa_mean
        Trace decay of the value, variance and mean node: a number or one per state. `kappa_mean`
        defaults to `kappa`.
    order
        The highest central moment that the learner has a node for: 2, 3 or 4; VTD has 2 only.

    Raises
    ------
    InfiniteVarianceError
        If a moment asked for is infinite in every state, or, with features, in one visited for
        ever.

    Examples
    --------
    >>> import numpy as np, retvar as rv
    >>> walk = rv.domains.random_walk()
    >>> x = np.arange(1, 31) / 30
    >>> line, curve = np.stack([x**0, x], 1), np.stack([x**0, x, x**2], 1)
    >>> for method in ("direct", "vtd"):
    ...     found = rv.fixed_point(method, walk, features=curve, value_features=line,
    ...                            kappa=0.95, kappa_bar=0.95)
    ...     print(f"{method}: RMSE {found.rmse:.2f}, {'stable' if found.stable else 'unstable'}")
    direct: RMSE 5.32, stable
    vtd: RMSE 30.60, stable
    """
    order = check_order(order)
    check_method(method, order)
    edges = weigh_edges(mdp, target, behaviour, estimand, lam)
    network = _Network(mdp, edges, (mdp, target if behaviour is None else behaviour))
    Phi = _feature_table("features", features, mdp)
    X = Phi if value_features is None else _feature_table("value_features", value_features, mdp)
    Y = X if mean_features is None else _feature_table("mean_features", mean_features, mdp)
    decays = {
        "kappa": kappa,
        "kappa_bar": kappa_bar,
        "kappa_mean": kappa if kappa_mean is None else kappa_mean,
    }
    K = {f: arguments.unit_interval(f, x, mdp.n_states, mdp.state_name) for f, x in decays.items()}
    nodes: dict[str, Node] = {}
    if value is not None:
        H = arguments.numbers("value", value, mdp.n_states, mdp.state_name)
    else:
        nodes["value"] = network.value(X, K["kappa"])
        H = nodes["value"].prediction
    G = H
    if method == "centred":
        nodes["mean"] = network.mean(H, Y, K["kappa_mean"])
        G = nodes["mean"].prediction
    if method == "vtd":
        node = nodes["second_moment"] = network.second_moment(H, Phi, K["kappa_bar"])
        variance = node.prediction - H**2
    else:
        nodes |= network.moments(H, G, Phi, K["kappa_bar"], order)
        variance = nodes["variance"].prediction
    tabular_value = value is None and X is None
    truth = solve_weighted(mdp, edges, None if tabular_value else H, order)
    return FixedPoint(method, H, G, variance, truth, nodes, network.policy)


@dataclass(frozen=True, eq=False)
class _Network:
    """Fixed points of the nodes of all methods on the same weighted edges."""

    mdp: MDP
    edges: WeightedEdges
    policy: tuple[MDP, object]

    def value(self, features: Array | None, K: Array) -> Node:
        f = self.edges
        M, R = f.matrix(f.eta * f.gamma), f.expect(f.eta * f.reward)
        table = state_values(f).x if features is None else None
        trace = f.eta * f.rho * (f.gamma * K[f.next_state]) ** 2
        return self._node(M, R, table, features, K, trace)

    def mean(self, H: Array, features: Array | None, K: Array) -> Node:
        f = self.edges
        M, R = f.matrix(f.decay), f.expect(mean_reward(f, H))
        table = mean_of_return(f, H).x if features is None else None
        trace = f.rho_bar * (f.decay * K[f.next_state]) ** 2
        return self._node(M, R, table, features, K, trace)

    def moments(
        self, H: Array, G: Array, features: Array | None, K: Array, order: int
    ) -> dict[str, Node]:
        """The variance node and those of higher moments, for deviations from G."""
        f, lower = self.edges, list[Array]()
        nodes: dict[str, Node] = {}
        epsilon = deviation(f, H, G)
        for k in range(2, order + 1):
            system = moment_system(f, k, lambda: noisy_states(f, epsilon, G))
            R = moment_reward(f, epsilon, lower)
            name = MOMENTS.get(k, "variance")
            nodes[name] = self._secondary(system, R, features, K)
            lower.append(nodes[name].prediction)
        return nodes

    def second_moment(self, H: Array, features: Array | None, K: Array) -> Node:
        f = self.edges
        H_next = H[f.next_state]
        certain = (f.reward + f.gamma * H_next) ** 2 - (f.gamma * f.lam * H_next) ** 2
        R = f.expect(f.eta**2 * (certain + f.reward_std**2))
        nothing = np.zeros(f.n)
        system = moment_system(f, 2, lambda: noisy_states(f, mean_reward(f, H), nothing))
        return self._secondary(system, R, features, K)

    def _secondary(self, system: MomentSystem, R: Array, features: Array | None, K: Array) -> Node:
        """A node with discount cᵏ."""
        f, k = self.edges, system.order
        table, M = None, f.matrix(f.decay**k)
        expands = bool(system.grows.any())
        if features is None:
            table = system.solve(R).x
        elif expands:
            M = self._visited_only(system)
        trace = f.rho_bar * f.decay ** (2 * k) * K[f.next_state] ** 2
        node = self._node(M, R, table, features, K, trace)
        return replace(node, _expands=expands)

    def _visited_only(self, system: MomentSystem) -> scipy.sparse.csr_array:
        """E[cᵏ] from states visited for ever; raise an error if one leads to an expanding part."""
        f = self.edges
        visited = stationary_distribution(*self.policy) > 0
        if np.any(visited & reaching(f.matrix(f.decay), system.grows)):
            at_least = system.radius.kind != "exact"
            raise InfiniteVarianceError(system.radius.value, at_least, system.order)
        return f.matrix(np.where(visited[f.state], f.decay**system.order, 0.0))

    def _node(
        self,
        M: scipy.sparse.csr_array,
        R: Array,
        table: Array | None,
        features: Array | None,
        K: Array,
        trace: Array,
    ) -> Node:
        radius = spectral_radius(self.edges.matrix(trace))
        if features is None:
            assert table is not None
            return Node(table, None, radius, M, K, None, self.policy)
        D = stationary_distribution(*self.policy)
        weights = _solve_weights(features, D, M, K, R)
        return Node(features @ weights, weights, radius, M, K, features, self.policy)


def _system(Phi: Array, D: Array, M: scipy.sparse.csr_array, K: Array) -> tuple[Array, Array]:
    """A = Zᵀ(I − M)Φ and Z = (I − MK)⁻ᵀ D Φ; then b = ZᵀR."""
    weighted = D[:, None] * Phi
    Z = weighted
    if np.any(K):
        decayed = M.copy()
        decayed.data = decayed.data * K[decayed.indices]
        Z = Resolvent(decayed).solve(weighted, transpose=True).x
    return Z.T @ (Phi - M @ Phi), Z


def _row_space(Phi: Array, D: Array) -> Array:
    """Orthonormal basis of the weights that change predictions; features may be dependent."""
    _, size, rows = np.linalg.svd(np.sqrt(D)[:, None] * Phi, full_matrices=False)
    return np.asarray(rows[size > INDEPENDENT * size.max(initial=0.0)].T)


def _solve_weights(Phi: Array, D: Array, M: scipy.sparse.csr_array, K: Array, R: Array) -> Array:
    """Weights with A w = b; if there are many, the smallest, which TD reaches from zero."""
    A, Z = _system(Phi, D, M, K)
    if not np.isfinite(A).all():
        raise InputError("features", "too large", "their squares overflow; scale them down")
    basis = _row_space(Phi, D)
    if basis.shape[1] == 0:
        raise InputError("features", "0", "are zero in every state visited; add a constant")
    reduced = basis.T @ A @ basis
    size = np.linalg.svd(reduced, compute_uv=False)
    if size[-1] <= 1e-13 * size[0]:
        raise InputError(
            "features",
            f"{Phi.shape[1]} columns",
            "A is singular under this behaviour, so TD has no fixed point; use other features, "
            "a larger κ, or a behaviour closer to the target",
        )
    return np.asarray(basis @ np.linalg.solve(reduced, basis.T @ (Z.T @ R)))


def _feature_table(field: str, features: Any, mdp: MDP) -> Array | None:
    if features is None:
        return None
    dense = features.toarray() if scipy.sparse.issparse(features) else features
    table = arguments.floats(field, dense, "an array [state, feature]")
    if table.ndim != 2 or table.shape[0] != mdp.n_states or table.shape[1] == 0:
        raise InputError(
            field,
            f"an array of shape {table.shape}",
            f"must be [state, feature] with {mdp.n_states} rows",
        )
    arguments.refuse(field, table.ravel(), ~np.isfinite(table.ravel()), "must be a finite number")
    return table
