"""The closed recursion of the expectations of all monomials of a learner's weights.

Give weights of value and mean nodes degree 1, weights of variance and second-moment nodes degree 2.
With constant steps and without traces, a TD update replaces each weight by a polynomial of the
weights whose weighted degree is not larger. So, with m a monomial of degree up to 4, S the state of
the chain and w′ the weights after a step along an edge from s to s′,

    x′[s′, m] = E[m(w′) 1{S′ = s′}] = Σ over edges, p E[m(w′) 1{S = s}] = Σ A[s′ m, s k] x[s, k],

a linear recursion. Degree 4 is that of the square of a variance. The polynomials are made by the
functions of :mod:`retvar.td.networks` themselves, applied to polynomials instead of numbers.
Variables are deviations of weights from a reference (the truth), which leaves few digits to cancel.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy.sparse
import scipy.sparse.csgraph
import scipy.sparse.linalg
from numpy.typing import NDArray

from retvar.exact.stationary import transitions
from retvar.mdp.linear import Resolvent
from retvar.simulation.blocks import LearnerSetup, Template, initial_draws
from retvar.simulation.curve_polynomials import (
    NOISE,
    NOTHING,
    Monomials,
    Polynomial,
    count_monomials,
)
from retvar.simulation.question import Question
from retvar.support.errors import ConvergenceError, InputError
from retvar.td import networks, rules
from retvar.td.features import Features, States
from retvar.td.initial_values import PerRun
from retvar.td.learners import Learner
from retvar.td.networks import MEAN, PLACES, VALUE, VARIANCE, Network, Reading, Readings
from retvar.td.step_sizes import CONSTANT

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Sparse: TypeAlias = scipy.sparse.csr_array

MOST_UNKNOWNS = 4_000_000
MAX_DENSE = 40  # most unknowns for which all eigenvalues are computed
TOLERANCE = 1e-11  # of eigenvalues of larger matrices
RESIDUAL = 1e-10  # relative; a larger one raises a ConvergenceError
POINT_BYTES = 2e8  # memory for monomials at initial points
MOST_WEIGHTS = 300  # weights of a node whose dependence is looked for
NO_CURVE = "has no exact curve; use PerRun, or simulate"
NOT_CLOSED = "has no closed recursion; use simulate, or a constant step and no trace"


class Edge(NamedTuple):
    """A transition that the behaviour may take, with everything that updates depend on."""

    state: int
    next_state: int  #: the number of states where the episode ends
    probability: float
    reward: float
    noise: float  #: standard deviation of the reward
    gamma: float
    lam: float
    eta: float
    rho: float
    rho_bar: float


@dataclass(frozen=True, eq=False)
class NodeVariables:
    """The variables of one node: prediction[s] = offset[s] + Σ table[s, i] × variable i."""

    step: float  #: 0 if the node does not learn
    table: Array  #: [state, variable]
    offset: Array  #: [state]
    basis: Array  #: [weight, variable]; variables are weights × basis − shift
    shift: Array

    def of(self, weights: Array) -> Array:
        """Variables [point, variable] of weights [point, weight]."""
        return np.asarray(weights @ self.basis - self.shift)


class Recursion:
    """The operator of the recursion, and the polynomials of all estimates.

    States are numbered by their position among the states that are kept.
    """

    def __init__(
        self,
        network: Network,
        nodes: dict[int, NodeVariables],
        edges: list[Edge],
        start: Array,
        most: int,
    ) -> None:
        self.network, self.nodes, self.edges, self.start = network, nodes, edges, start
        self.states = start.size
        counts = [nodes[place].table.shape[1] for place in network.places]
        self.first = dict(zip(network.places, np.cumsum([0, *counts]).tolist(), strict=False))
        self.place_of = np.repeat(np.array(network.places), counts)
        degrees = np.where(self.place_of == VARIANCE, 2, 1)
        unknowns = self.states * count_monomials(*np.bincount(degrees, minlength=3)[1:].tolist())
        if unknowns > most:
            weights = f"{self.states:,} states × monomials of {degrees.size:,} weights"
            remedy = f"must be at most {most:,} here; use simulate, or fewer states or features"
            raise InputError("unknowns", f"{unknowns:,} ({weights})", remedy)
        self.monomials = Monomials(degrees)

    def with_steps(self, steps: Sequence[float]) -> Recursion:
        """The same with other steps of the nodes, by place; those of 0 stay 0."""
        found = copy.copy(self)
        found.nodes = {p: replace(node, step=steps[p]) for p, node in self.nodes.items()}
        for made in ("walked", "operator"):
            vars(found).pop(made, None)
        return found

    @property
    def unknowns(self) -> int:
        """Number of unknowns: states × monomials."""
        return self.states * self.monomials.count

    @cached_property
    def _parts(self) -> dict[int, _Parts]:
        return {s: _Parts(self, s) for s in sorted({edge.state for edge in self.edges})}

    @cached_property
    def _predictions(self) -> dict[int, list[Polynomial]]:
        """The predictions of the nodes in each state, and after the end, by place."""
        found = {}
        for place, node in self.nodes.items():
            variables = self.first[place] + np.arange(node.table.shape[1])
            each = zip(node.offset.tolist(), node.table, strict=True)
            found[place] = [self.monomials.affine(at, variables, row) for at, row in each]
            found[place].append(NOTHING)
        return found

    def estimates(self) -> dict[str, list[Polynomial]]:
        """Polynomials of all estimates in each state, by name."""
        predicted = {
            node.name: self._predictions[node.place][: self.states] for node in self.network.nodes
        }
        made = self.network.variance
        if made.less_square_of is not None:
            pairs = zip(predicted[made.node.name], predicted[made.less_square_of.name], strict=True)
            predicted[PLACES[VARIANCE]] = [second - mean * mean for second, mean in pairs]
        return predicted

    # ------------------------------------------------------------------ one transition

    def updated(self, edge: Edge) -> dict[int, Polynomial]:
        """The variables that a transition changes, after it, as polynomials of those before."""
        noise = Polynomial.of([0, NOISE], [edge.reward, edge.noise])
        transition: Any = networks.Transition(noise, edge.gamma, edge.lam, edge.eta)  # type: ignore[arg-type]
        read = [Reading(0.0, 0.0, 0.0, 0.0)] * len(Readings._fields)
        found: dict[int, Polynomial] = {}
        for node in self.network.nodes:
            own, first = self.nodes[node.place], self.first[node.place]
            now: Any = self._predictions[node.place][edge.state]
            after: Any = self._predictions[node.place][edge.next_state]
            fed: Any = _fed(node, transition, Readings(*read))
            error = rules.td_error(fed, node.discount(transition), after, now)
            weight = edge.rho if node.by_rho else edge.rho_bar
            row = weight * own.table[edge.state]
            overlap = 0.0
            if own.step > 0:
                for i in np.flatnonzero(own.table[edge.state]).tolist():
                    variable: Any = self.monomials.affine(0.0, np.array([first + i]), np.ones(1))
                    found[first + i] = rules.moved(variable, own.step, error, row[i])
                if edge.next_state < self.states:
                    overlap = float(row @ own.table[edge.next_state])
            moved: Any = rules.moved(after, own.step, error, overlap) if overlap else after
            read[node.place] = Reading(now, after, error, moved)
        return found

    # ------------------------------------------------------------------ the operator

    @cached_property
    @np.errstate(over="ignore", invalid="ignore")  # powers of huge steps
    def walked(self) -> Sparse:
        """One step before restarts: rows of the states, then of the end; columns of the states."""
        count = self.monomials.count
        pieces: list[tuple[Any, Any, Array]] = []  # 16 bytes for each entry
        leaving: dict[tuple[int, int], list[Edge]] = {}
        for edge in self.edges:
            leaving.setdefault((edge.state, edge.next_state), []).append(edge)
        for (s, s_next), edges in leaving.items():
            updated = [(edge.probability, self.updated(edge)) for edge in edges]
            rows, columns, data = self._parts[s].entries(updated)
            place = (rows + s_next * count).astype(np.int32)
            pieces.append((place, (columns + s * count).astype(np.int32), data))
        rows, columns, data = (np.concatenate(part) for part in zip(*pieces, strict=True))
        pieces.clear()
        shape = ((self.states + 1) * count, self.states * count)
        return scipy.sparse.coo_array((data, (rows, columns)), shape=shape).tocsr()

    @cached_property
    def operator(self) -> Sparse:
        """One step: after the end of an episode the next one starts."""
        count = self.monomials.count
        stay, end = self.walked[: self.unknowns], self.walked[self.unknowns :]
        if end.nnz == 0:
            return stay
        starts = scipy.sparse.csr_array(self.start[:, None])
        restarted = scipy.sparse.kron(starts, scipy.sparse.eye_array(count), format="csr")
        return (stay + restarted @ end).tocsr()

    def begin(self, moments: Array) -> Array:
        """The unknowns at the beginning, from the expectations of all monomials."""
        return np.outer(self.start, moments).ravel()

    def moments(self, x: Array) -> Array:
        """Expectations of all monomials, in whatever state the chain is."""
        return np.asarray(x.reshape(self.states, -1).sum(axis=0))

    def rows(self, polynomials: list[Polynomial]) -> Sparse:
        """A matrix whose product with the moments gives the expectations of polynomials."""
        counts = [p.keys.size for p in polynomials]
        keys = np.concatenate([p.keys for p in polynomials])
        data = np.concatenate([p.coefficients for p in polynomials])
        rows = np.repeat(np.arange(len(polynomials)), counts)
        shape = (len(polynomials), self.monomials.count)
        return scipy.sparse.csr_array((data, (rows, self.monomials.positions(keys))), shape=shape)


class _Parts:
    """Monomials as products of a part that a transition from a state changes, and a rest."""

    def __init__(self, recursion: Recursion, s: int) -> None:
        m = self.monomials = recursion.monomials
        changed = np.zeros(m.variables + 1, dtype=bool)
        for place, node in recursion.nodes.items():
            if node.step > 0:
                active = np.flatnonzero(node.table[s])
                changed[recursion.first[place] + active] = True
        inside = changed[m.factors]
        keys = np.where(inside, m.variable_keys[m.factors], np.uint64(0))
        part = keys.sum(axis=1, dtype=np.uint64)
        self.rest = m.keys - part
        _, first, group = np.unique(part, return_index=True, return_inverse=True)
        order = np.argsort(group, kind="stable")
        self.members = np.split(order, np.cumsum(np.bincount(group))[:-1])
        self.parts = [tuple(m.factors[i][inside[i]].tolist()) for i in first]

    def entries(
        self, updated: list[tuple[float, dict[int, Polynomial]]]
    ) -> tuple[Integers, Integers, Array]:
        """Entries (monomial after, monomial before, coefficient), given what edges make of it."""
        total: dict[tuple[int, ...], Polynomial] = {}
        for probability, variables in updated:
            products: dict[tuple[int, ...], Polynomial] = {(): Polynomial.constant(1.0)}
            for part in self.parts:
                found = probability * _product(part, variables, products).expected
                total[part] = total[part] + found if part in total else found
        rows, keys, data = [], [], []
        for part, members in zip(self.parts, self.members, strict=True):
            polynomial = total[part]
            rows.append(np.repeat(members, polynomial.keys.size))
            keys.append((self.rest[members][:, None] + polynomial.keys).ravel())
            data.append(np.tile(polynomial.coefficients, members.size))
        columns = self.monomials.positions(np.concatenate(keys))
        return np.concatenate(rows), columns, np.concatenate(data)


def _fed(node: networks.Node, transition: networks.Transition, read: Readings) -> Any:
    """What a node is fed with, a polynomial of degree 2 at most."""
    try:
        return node.reward(transition, read)
    except TypeError:
        remedy = "its reward is not a polynomial, so that there is no exact curve; use simulate"
        raise InputError("method", f"a network with the node {node.name}", remedy) from None


def _product(
    part: tuple[int, ...],
    updated: dict[int, Polynomial],
    products: dict[tuple[int, ...], Polynomial],
) -> Polynomial:
    """The product of updated variables; shorter products are made once."""
    if part not in products:
        products[part] = _product(part[:-1], updated, products) * updated[part[-1]]
    return products[part]


# ---------------------------------------------------------------------- block triangular form


class Block(NamedTuple):
    """Unknowns with the same numbers of factors."""

    unknowns: Integers
    learns: bool  #: whether a factor is a weight that learns
    rows: Sparse  #: rows of the operator
    own: Sparse  #: those columns of it that belong to the block


class Triangle:
    """A matrix over the unknowns of a recursion, in block triangular form.

    A monomial depends on monomials of lower degree, and of the same degree on those with fewer
    factors of the variance and then of the mean: a block for each number of factors of each node.
    Blocks are nonnegative where no step overshoots its target.
    """

    def __init__(self, recursion: Recursion, matrix: Sparse) -> None:
        self.recursion, self.matrix = recursion, matrix
        self._solvers: dict[int, Any] = {}

    @cached_property
    def blocks(self) -> list[Block]:
        """The blocks, each after those that it depends on."""
        r = self.recursion
        places = r.network.places[::-1]  # the variance first
        columns = [r.monomials.degree, *(r.monomials.powers(r.place_of == p) for p in places)]
        signature, group = np.unique(np.stack(columns, 1), axis=0, return_inverse=True)
        learns = [r.nodes[place].step > 0 for place in places]
        found = []
        for k, counts in enumerate(signature):
            members = np.flatnonzero(group.ravel() == k)
            offsets = np.arange(r.states)[:, None] * r.monomials.count
            unknowns = (offsets + members).ravel()
            rows = self.matrix[unknowns]
            moving = bool(np.any((counts[1:] > 0) & np.array(learns)))
            found.append(Block(unknowns, moving, rows, rows[:, unknowns].tocsr()))
        return found

    @cached_property
    def radius(self) -> float:
        """The largest modulus of an eigenvalue of the blocks with weights that learn."""
        return max((_radius(block.own) for block in self.blocks if block.learns), default=0.0)

    def solve(self, b: Array, known: Array | None = None) -> Array:
        """Solve x = Mx + b by block; `known` gives x where nothing learns."""
        x = np.zeros_like(b)
        for k, block in enumerate(self.blocks):
            if known is not None and not block.learns:
                x[block.unknowns] = known[block.unknowns]
                continue
            right = b[block.unknowns] + block.rows @ x
            if k not in self._solvers:
                self._solvers[k] = _solver(block.own)
            x[block.unknowns] = self._solvers[k](right)
        return x


def _radius(M: Sparse) -> float:
    """The spectral radius of a block: the largest of its strongly connected parts.

    Whole blocks may have many equal eigenvalues with few eigenvectors, as those of chains do.
    """
    if not np.isfinite(M.data).all():  # steps whose powers overflow
        return np.inf
    _, part = scipy.sparse.csgraph.connected_components(M, connection="strong")
    sizes = np.bincount(part)
    alone = sizes[part] == 1
    largest = float(np.abs(M.diagonal()[alone]).max(initial=0.0))
    order = np.argsort(part, kind="stable")
    for members in np.split(order, np.cumsum(sizes)[:-1]):
        if members.size > 1:
            own = M[members][:, members]
            if _norm(own) > largest:
                largest = max(largest, _radius_of_part(own))
    return largest


def _norm(M: Sparse) -> float:
    """A bound on the spectral radius: the largest sum of a row or of a column."""
    size = abs(M)
    return float(min(size.sum(axis=1).max(), size.sum(axis=0).max()))


def _radius_of_part(M: Sparse) -> float:
    """The spectral radius of a matrix that is strongly connected."""
    if M.shape[0] <= MAX_DENSE:
        return float(np.abs(np.linalg.eigvals(M.toarray())).max())
    which = "LR" if M.data.min() >= 0 else "LM"  # M ≥ 0: its radius is an eigenvalue
    first = np.linspace(1.0, 1.1, M.shape[0])
    try:
        found = scipy.sparse.linalg.eigs(
            M, k=1, which=which, v0=first, ncv=40, maxiter=1_000, tol=TOLERANCE,
            return_eigenvectors=False,
        )  # fmt: skip
    except scipy.sparse.linalg.ArpackNoConvergence:
        message = f"the largest eigenvalue of {M.shape[0]:,} unknowns was not found"
        raise ConvergenceError(message) from None
    return float(np.abs(found[0]))


def _solver(M: Sparse) -> Any:
    """A function that solves (I − M)x = b."""
    if M.nnz == 0 or M.data.min() >= 0:
        resolvent = Resolvent(M)
        return lambda b: resolvent.solve(b).x
    factors = scipy.sparse.linalg.splu((scipy.sparse.eye_array(M.shape[0]) - M).tocsc())

    def solve(b: Array) -> Array:
        x = factors.solve(b)
        x = x + factors.solve(b - (x - M @ x))
        left = np.abs(b - (x - M @ x)).max(initial=0.0)
        if not left <= RESIDUAL * max(np.abs(b).max(initial=0.0), np.abs(x).max(initial=0.0)):
            raise ConvergenceError(f"a system of {M.shape[0]:,} unknowns was not solved")
        return np.asarray(x)

    return solve


# ---------------------------------------------------------------------- learners on an MDP


@dataclass(frozen=True, eq=False)
class Problem:
    """One learner on one stream."""

    question: Question
    setup: LearnerSetup
    probability: Array  #: of each edge of the stream; 0 if its state is never reached

    @property
    def learner(self) -> Learner:
        """The learner."""
        return self.setup.template.learner

    def with_steps(self, steps: Array) -> Problem:
        """The same with other step sizes of the value, mean and variance node."""
        settings = self.setup.settings.copy()
        settings[:, 0] = steps
        return replace(self, setup=replace(self.setup, settings=settings))

    @property
    def steps(self) -> Array:
        """Step sizes of the value, mean and variance node; 0 where a node does not learn."""
        found = self.setup.settings[:, 0].copy()
        if not self.setup.template.learner.learn_value:
            found[VALUE] = 0.0
        return found

    def recursion(
        self, kept: Integers | None = None, most: int = MOST_UNKNOWNS
    ) -> tuple[Recursion, Array]:
        """The recursion on all states or those kept, and the expected monomials at the start."""
        kept = np.arange(self.question.mdp.n_states) if kept is None else kept
        template, network = self.setup.template, self.learner.network
        truth = self.question.truth(template)
        value, variance = (np.nan_to_num(truth[name]) for name in ("value", "variance"))
        second = variance if network.second_moment is None else variance + value**2
        weights, shares = _start_points(template)
        nodes = {
            place: _node_variables(
                template.features[place],
                kept,
                float(self.steps[place]),
                weights[place],
                (value, value, second)[place],  # deviations are measured from the truth
            )
            for place in network.places
        }
        found = Recursion(
            network, nodes, list(self._edges(kept)), self.question.mdp.start[kept], most
        )
        points = np.concatenate([nodes[p].of(weights[p]) for p in network.places], axis=1)
        size = max(1, int(POINT_BYTES / (8 * found.monomials.count)))
        moments = np.zeros(found.monomials.count)
        for i in range(0, shares.size, size):
            moments += shares[i : i + size] @ found.monomials.at(points[i : i + size])
        return found, moments

    def _edges(self, kept: Integers) -> Iterator[Edge]:
        e, used, template = self.question.mdp.edges, self.question.used, self.setup.template
        number = np.full(self.question.mdp.n_states + 1, kept.size)  # END is the last
        number[kept] = np.arange(kept.size)
        rho = self.question.stream.rho
        target = self.learner.estimand == "target_return"
        eta, rho_bar = (np.ones_like(rho), rho) if target else (rho, np.ones_like(rho))
        given = (self.probability, e.reward[used], e.reward_std[used])
        columns = (*given, template.gamma, template.lam, eta, rho, rho_bar)
        here, there = number[e.state[used]], number[e.next_state[used]]
        for i in np.flatnonzero((here < kept.size) & (self.probability > 0)).tolist():
            yield Edge(int(here[i]), int(there[i]), *(float(column[i]) for column in columns))


def problems_of(question: Question) -> list[Problem]:
    """The learners, one by one; raise an InputError for those without a closed recursion."""
    for number, setup in enumerate(question.setups):
        _refuse_unclosed(f"learners[{number}].", setup)
    mdp, e = question.mdp, question.mdp.edges
    chain = transitions(mdp, question.actor)  # the end is the last state, which leads to the starts
    reached = np.zeros(mdp.n_states + 1)
    reached[
        scipy.sparse.csgraph.breadth_first_order(chain, mdp.n_states, return_predecessors=False)
    ] = 1.0
    probability = mdp.policy(question.actor).probabilities[e.state, e.action] * e.probability
    probability = (probability * reached[e.state])[question.used]
    return [Problem(question, setup, probability) for setup in question.setups]


def _refuse_unclosed(prefix: str, setup: LearnerSetup) -> None:
    """Raise an InputError for traces and for steps that change."""
    learner = setup.template.learner
    if learner.order != 2:
        remedy = "must be 2 for exact curves; use simulate"
        raise InputError(f"{prefix}order", learner.order, remedy)
    if not isinstance(setup.template.start, PerRun | None):
        raise InputError(f"{prefix}value", learner.value, NO_CURVE)
    names = {VALUE: "", VARIANCE: "_bar", MEAN: "_mean"}  # the mean's default is another's
    for place in (p for p in names if p in learner.network.places):
        kind, traced, *_ = setup.rule(place)
        settings = learner.nodes(tabular=False)[place]
        if kind != CONSTANT:
            raise InputError(f"{prefix}alpha{names[place]}", settings.step, NOT_CLOSED)
        if traced:
            raise InputError(f"{prefix}kappa{names[place]}", settings.kappa, NOT_CLOSED)


def _start_points(template: Template) -> tuple[list[Array], Array]:
    """Initial weights [point, weight] of the nodes: a point for each run; and its share."""
    runs = len(template.start.values) if isinstance(template.start, PerRun) else 1
    return template.weights(range(runs), initial_draws(0)), np.full(runs, 1 / runs)


def _node_variables(
    features: Features, kept: Integers, step: float, weights: Array, reference: Array
) -> NodeVariables:
    """Variables of a node: its weights, or fewer if features depend on each other."""
    rows = features.rows()
    csr = scipy.sparse.csr_array(
        (rows.values, rows.indices, rows.indptr), shape=(reference.size, features.size)
    )[kept]
    if step == 0 and np.all(weights == weights[0]):  # constant predictions
        nothing = np.zeros((kept.size, 0)), csr @ weights[0], np.zeros((features.size, 0))
        return NodeVariables(step, *nothing, np.zeros(0))
    basis = _basis(csr, isinstance(features, States))
    table = csr @ basis
    goal = reference[kept]
    shift = goal if isinstance(features, States) else np.linalg.lstsq(table, goal, rcond=None)[0]
    return NodeVariables(step, table, table @ shift, basis, shift)


def _basis(table: Any, tabular: bool) -> Array:
    """Orthonormal vectors [weight, variable] that span the features of the states kept."""
    active = np.flatnonzero(np.asarray(abs(table).sum(axis=0)).ravel())
    basis = np.zeros((table.shape[1], active.size))
    basis[active, np.arange(active.size)] = 1.0
    if tabular or min(table.shape[0], active.size) > MOST_WEIGHTS:
        return basis
    _, size, rows = np.linalg.svd(table[:, active].toarray(), full_matrices=False)
    rank = int(np.sum(size > 1e-12 * size.max(initial=0.0)))
    return basis if rank == active.size else basis @ rows[:rank].T
