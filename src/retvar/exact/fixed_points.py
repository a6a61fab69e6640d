"""What learners do in expectation: expected TD updates, and fixed points for small steps.

An outcome of a step is an edge with one of three points of its normal reward (Gauss–Hermite
quadrature, exact for polynomials up to degree 5; seven points more tell whether a reward is one).
The functions of :mod:`retvar.td.networks` are applied to arrays [point, edge], so nothing here
knows a method.

An estimator is a network of TD nodes. A node with features Φ, discounts M (Σ b × its discount),
trace decay K and expected reward R has its fixed point where A w = b,

    A = Φᵀ D (I − M K)⁻¹ (I − M) Φ,    b = Φᵀ D (I − M K)⁻¹ R,

with D the stationary distribution of the behaviour. A table instead of features gives (I − M)⁻¹ R
for any traces. TD is stable if every eigenvalue of A has a positive real part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike, NDArray

from retvar.exact.moments import HigherMoments, check_order, moment_system, noisy_states
from retvar.exact.solution import ORDERS, Solution, checked_value, solve_weighted
from retvar.exact.stationary import stationary_distribution
from retvar.mdp import MDP, WeightedEdges, weigh_edges
from retvar.mdp.linear import Radius, Resolvent, reaching, spectral_radius
from retvar.mdp.weighted_edges import Estimand
from retvar.support import arguments
from retvar.support.errors import ConvergenceError, InfiniteVarianceError, InputError
from retvar.support.format import number
from retvar.support.html import MOST, Shown, page, table
from retvar.td import networks, rules
from retvar.td.networks import MEAN, NETWORKS, NODES, PLACES, VALUE, VARIANCE, Network, Reading

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
WEIGHTS = np.array([1.0, 4.0, 1.0]) / 6
FINER, FINER_WEIGHTS = np.polynomial.hermite_e.hermegauss(7)
POINTS = np.array([-np.sqrt(3.0), 0.0, np.sqrt(3.0), *FINER])
FAINT = 1e-5  # noise that is smaller, relative to predictions, tells nothing
MOST_STATES = 2_000  # of a table whose eigenvalues are computed
INDEPENDENT = 1e-10  # features whose relative singular values are smaller count as dependent


# ---------------------------------------------------------------------- outcomes of a step


def network_of_order(method: Any, order: int) -> Network:
    """The network of a method, given by its name or as a learner, with moments up to an order."""
    network = NETWORKS[arguments.choice("method", getattr(method, "method", method), NETWORKS)]
    if order > network.highest_order:
        others = [each.method for each in NETWORKS.values() if each.highest_order >= order]
        remedy = f"{network.label} has no node for it; use {' or '.join(others)}, or order=2"
        raise InputError("order", order, remedy)
    return network.up_to(order)


class Outcomes:
    """All outcomes of a step, and what nodes say about them."""

    def __init__(self, edges: WeightedEdges) -> None:
        self.edges = edges
        points = POINTS if edges.reward_std.any() else POINTS[:3]
        reward = edges.reward + points[:, None] * edges.reward_std
        same = (np.broadcast_to(x, reward.shape) for x in (edges.gamma, edges.lam, edges.eta))
        self.transition: Any = networks.Transition(reward, *same)  # type: ignore[arg-type]
        zero: Any = np.zeros_like(reward)
        self.silent: list[Any] = [Reading(zero, zero, zero, zero)] * len(networks.Readings._fields)

    def weight(self, node: networks.Node) -> Any:
        """The ratio that weighs a node's updates, as far as it is not in the edges' b already."""
        return self.edges.eta if node.by_rho else 1.0

    def discount(self, node: networks.Node) -> Array:
        """The weight of the next prediction on each edge."""
        found: Any = node.discount(self.transition)
        return np.asarray(self.weight(node) * found[0])

    def fed(self, node: networks.Node, said: Sequence[Any]) -> Array:
        """The node's reward [point, edge], given what the nodes before it say."""
        found = np.asarray(node.reward(self.transition, networks.Readings(*said)))
        if len(found) > 3:
            self._check(node, found, sum(abs(x.now[0]) + abs(x.after[0]) for x in said))
        return found

    def _check(self, node: networks.Node, fed: Array, predictions: Array) -> None:
        """Raise an error if three points do not give the expectation of a node's reward."""
        noise, weights = self.edges.reward_std, FINER_WEIGHTS / np.sqrt(2 * np.pi)
        wrong = np.abs(WEIGHTS @ fed[:3] - weights @ fed[3:]) > 1e-8 * (weights @ np.abs(fed[3:]))
        if np.any(wrong & (noise > FAINT * (np.abs(self.edges.reward) + predictions))):
            remedy = "its reward must be a polynomial of the noise, up to degree 5; simulate it"
            raise InputError("method", f"the node {node.name!r}", remedy)

    def expect(self, node: networks.Node, x: Array) -> Array:
        """The weighted expectation of x [point, edge] in each state."""
        return self.edges.expect(self.weight(node) * (WEIGHTS @ x[:3]))

    def reading(self, node: networks.Node, fed: Any, prediction: Array) -> Any:
        """What a node says, in the limit of small steps; an infinite prediction counts as 0."""
        e = self.edges
        known = np.where(np.isnan(prediction), 0.0, prediction)
        now: Any = np.broadcast_to(known[e.state], fed.shape)
        after: Any = np.broadcast_to(np.where(e.ends, 0.0, known[e.next_state]), fed.shape)
        error = rules.td_error(fed, node.discount(self.transition), after, now)
        return Reading(now, after, error, after)


# ---------------------------------------------------------------------- expected updates


@dataclass(frozen=True, eq=False)
class Estimates:
    """Estimates of a learner: value, variance, and the mean of the λ-return.

    The third and fourth central moments are None unless the order asks for them.

    >>> Estimates(np.zeros(2), np.zeros(2), np.zeros(2)).variance
    array([0., 0.])
    """

    value: Array
    variance: Array
    mean: Array
    third_moment: Array | None = None
    fourth_moment: Array | None = None


@np.errstate(over="ignore", invalid="ignore")  # overflow raises an error later
def expected_updates(
    method: Any,
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
    method
        ``"direct"``, ``"vtd"``, ``"centred"`` or any other name of a network.
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
    network = network_of_order(method, check_order(order))
    outcomes = Outcomes(weigh_edges(mdp, target, behaviour, estimand, lam))
    if estimates is not None:
        arguments.instance("estimates", estimates, Estimates, "retvar.Estimates")
    own, others = arguments.numbers("alpha", alpha, 1), arguments.numbers("alpha_bar", alpha_bar, 1)
    for field, step in (("alpha", own), ("alpha_bar", others)):
        arguments.refuse(field, step, step < 0, "must not be negative")
    own = own * arguments.flag("learn_value", learn_value)
    nodes = network.nodes
    if MEAN not in network.places:  # the mean of the return is learned beside them
        nodes = (*nodes, next(node for node in NODES if node.place == MEAN))
    now = {}
    for node in nodes:
        name = PLACES[node.place]
        given = getattr(estimates, name, None)
        known = 0.0 if given is None else given
        now[node.place] = arguments.numbers(name, known, mdp.n_states, mdp.state_name)
    square = network.variance.less_square_of
    if square is not None:
        now[VARIANCE] = now[VARIANCE] + now[square.place] ** 2
    for sweep in range(arguments.integer("sweeps", sweeps, 0)):
        said, before = list(outcomes.silent), now
        now = dict(before)
        for node in nodes:
            reading = outcomes.reading(node, outcomes.fed(node, said), before[node.place])
            if node.place < len(said):
                said[node.place] = reading
            step = own if node.place == VALUE else others
            now[node.place] = before[node.place] + step * outcomes.expect(node, reading.error)
        if not np.isfinite(sum(now.values())).all():
            raise ConvergenceError(f"the estimates are no longer finite after sweep {sweep + 1}")
    if square is not None:
        now[VARIANCE] = now[VARIANCE] - now[square.place] ** 2
    return Estimates(**{PLACES[place]: x for place, x in now.items()})


# ---------------------------------------------------------------------- fixed points


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
        Phi = self._features
        if Phi is None:
            if self._expands and np.any(self._K):
                raise InputError("spectrum", "an infinite moment", "is computed with κ = 0 only")
            if D.size > MOST_STATES:
                remedy = f"is computed for tables of up to {MOST_STATES} states"
                raise InputError("spectrum", f"{D.size} states", remedy)
            Phi = np.eye(D.size)[:, D > 0]
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
class FixedPoint(HigherMoments, Shown):
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

    network: Network
    value: Array
    mean: Array
    variance: Array
    truth: Solution
    nodes: Mapping[str, Node]
    _policy: tuple[MDP, object]

    @property
    def method(self) -> str:
        """The name of the method."""
        return self.network.method

    @property
    def bias(self) -> Array:
        """Error at the fixed point, `variance` − `truth.variance`."""
        return self.variance - self.truth.variance

    @property
    def second_moment(self) -> Array:
        """The prediction of a node (VTD), or variance + mean²."""
        node = self.network.second_moment
        return self.variance + self.mean**2 if node is None else self.nodes[node.name].prediction

    def _moment(self, order: int) -> Array:
        node = self.nodes.get(PLACES[order])
        if node is None:
            remedy = f"{PLACES[order]} needs order={order}, and a method with a node for it"
            raise InputError("order", self.truth.order, remedy)
        return node.prediction

    @property
    def rmse(self) -> float:
        """Root of the mean squared bias, weighted by the behaviour's stationary distribution."""
        D = stationary_distribution(*self._policy)
        bias = np.where(D > 0, self.bias, 0.0)  # infinite moments of transient states do not count
        return float(np.sqrt(D @ bias**2))

    @property
    def _columns(self) -> dict[str, Array]:
        """All that is known about each state, by name."""
        higher = [field for field, order in ORDERS.items() if order <= self.truth.order]
        fields = ("value", "mean", "variance", "bias", *higher)
        return {field: getattr(self, field) for field in fields}

    def __getitem__(self, state: int | str) -> dict[str, float]:
        s = self._policy[0].state_index(state)
        return {field: float(x[s]) for field, x in self._columns.items()}

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
            f"{'stable' if self.stable else 'unstable'}, traces "
            f"{'finite' if self.traces_finite else 'without second moment'})"
        )

    def _html(self) -> str:
        mdp, columns = self._policy[0], self._columns
        numbers = zip(*(x[:MOST].tolist() for x in columns.values()), strict=True)
        rows = ([mdp.state_name(s), *map(number, row)] for s, row in enumerate(numbers))
        name = f"{mdp.name}: " if mdp.name else ""
        shown = table(["state", *columns], rows, mdp.n_states)
        return page(f"{name}{self!r}", shown, notes=self.truth.notes)


@np.errstate(over="ignore", invalid="ignore")  # overflow raises an InputError later
def fixed_point(
    method: Any,
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
        ``"direct"``, ``"vtd"``, ``"centred"`` or any other name of a network.
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
    network = network_of_order(method, order)
    edges = weigh_edges(mdp, target, behaviour, estimand, lam)
    Phi = _feature_table("features", features, mdp)
    X = Phi if value_features is None else _feature_table("value_features", value_features, mdp)
    Y = X if mean_features is None else _feature_table("mean_features", mean_features, mdp)
    kappa_mean = kappa if kappa_mean is None else kappa_mean
    decays = {"kappa": kappa, "kappa_mean": kappa_mean, "kappa_bar": kappa_bar}
    K = [arguments.unit_interval(f, x, mdp.n_states, mdp.state_name) for f, x in decays.items()]
    given = None if value is None else checked_value(mdp, value)
    outcomes = Outcomes(edges)
    policy = (mdp, target if behaviour is None else behaviour)
    said, noisy = list(outcomes.silent), np.zeros(edges.n, dtype=bool)
    found: dict[str, Array] = {}
    nodes: dict[str, Node] = {}
    for node in network.nodes:
        fed = outcomes.fed(node, said)
        if node.place == VARIANCE:  # where it has a source
            noisy = noisy_states(edges, np.sqrt(np.abs(fed[:3]).max(axis=0)), *found.values())
        if node.place == VALUE and given is not None:
            found[node.name] = given
        else:
            place = min(node.place, VARIANCE)
            nodes[node.name] = _solved(
                outcomes, node, fed, noisy, (X, Y, Phi)[place], K[place], policy
            )
            found[node.name] = nodes[node.name].prediction
        if node.place < len(said):
            said[node.place] = outcomes.reading(node, fed, found[node.name])
    made = network.variance
    variance = found[made.node.name]
    if made.less_square_of is not None:
        variance = variance - found[made.less_square_of.name] ** 2
    H, mean = found[PLACES[VALUE]], found[network.mean.name]
    truth = solve_weighted(mdp, edges, None if given is None and X is None else H, order)
    return FixedPoint(network, H, mean, variance, truth, nodes, policy)


def _solved(
    outcomes: Outcomes,
    node: networks.Node,
    fed: Array,
    noisy: Mask,
    features: Array | None,
    K: Array,
    policy: tuple[MDP, object],
) -> Node:
    """The fixed point of a node, given its rewards and the states in which there is noise."""
    f, discount, R = outcomes.edges, outcomes.discount(node), outcomes.expect(node, fed)
    order = node.place if node.place >= VARIANCE else 1
    system = moment_system(f, order, lambda: noisy, discount)
    expands = bool(system.grows.any())
    ratio = f.eta * f.rho if node.by_rho else f.rho_bar
    own: Any = node.discount(outcomes.transition)
    traces = spectral_radius(f.matrix(ratio * (own[0] * K[f.next_state]) ** 2))
    M = f.matrix(discount)
    if features is None:
        return Node(system.solve(R).x, None, traces, M, K, None, policy, expands)
    D = stationary_distribution(*policy)
    if expands:  # only what is visited for ever counts
        if np.any((D > 0) & reaching(M, system.grows)):
            at_least = system.radius.kind != "exact"
            raise InfiniteVarianceError(system.radius.value, at_least, order)
        M = f.matrix(np.where(D[f.state] > 0, discount, 0.0))
    weights = _solve_weights(features, D, M, K, R)
    return Node(features @ weights, weights, traces, M, K, features, policy, expands)


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
    basis = _row_space(Phi, D)
    if basis.shape[1] == 0:
        raise InputError("features", "0", "are zero in every state visited; add a constant")
    reduced = basis.T @ A @ basis
    size = np.linalg.svd(reduced, compute_uv=False)
    if size[-1] <= 1e-13 * size[0]:
        remedy = (
            "A is singular under this behaviour, so TD has no fixed point; use other features, "
            "a larger κ, or a behaviour closer to the target"
        )
        raise InputError("features", f"{Phi.shape[1]} columns", remedy)
    return np.asarray(basis @ np.linalg.solve(reduced, basis.T @ (Z.T @ R)))


def _feature_table(field: str, features: Any, mdp: MDP) -> Array | None:
    if features is None:
        return None
    dense = features.toarray() if scipy.sparse.issparse(features) else features
    table = arguments.floats(field, dense, "an array [state, feature]")
    if table.ndim != 2 or table.shape[0] != mdp.n_states or table.shape[1] == 0:
        remedy = f"must be [state, feature] with {mdp.n_states} rows"
        raise InputError(field, f"an array of shape {table.shape}", remedy)
    arguments.refuse(field, table.ravel(), ~np.isfinite(table.ravel()), "must be a finite number")
    return table
