"""The closed recursion of the expectations of all monomials of a learner's weights.

Give weights of value and mean nodes degree 1, weights of variance and second-moment nodes degree 2.
With constant steps and without traces, a TD update replaces each weight by a polynomial of the
weights whose weighted degree is not larger. So, with m a monomial of degree up to 4, S the state of
the chain and w′ the weights after a step along an edge from s to s′,

    x′[s′, m] = E[m(w′) 1{S′ = s′}] = Σ over edges, p E[m(w′) 1{S = s}] = Σ A[s′ m, s k] x[s, k],

a linear recursion. Degree 4 is that of the square of a variance. The polynomials are made by the
functions of :mod:`retvar.networks` themselves, applied to polynomials instead of numbers. Variables
are deviations of weights from a reference (the truth), which leaves few digits to cancel.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from retvar import rules
from retvar.curves.polynomials import NOISE, NOTHING, Monomials, Polynomial, count_monomials
from retvar.errors import InputError
from retvar.networks import PLACES, VARIANCE, Network, Node, Reading, Readings, Transition

__all__ = ["Edge", "NodeVariables", "Recursion", "Sparse"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Sparse: TypeAlias = scipy.sparse.csr_array

MOST_UNKNOWNS = 4_000_000
MOST_ENTRIES = 150_000_000  # of the operator; 12 bytes each


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

    @property
    def count(self) -> int:
        """Number of variables."""
        return int(self.table.shape[1])

    def of(self, weights: Array) -> Array:
        """Variables [point, variable] of weights [point, weight]."""
        return np.asarray(weights @ self.basis - self.shift)


class Recursion:
    """The operator of the recursion, and the polynomials of all estimates.

    States are numbered by their position among the states that are kept.
    """

    def __init__(
        self, network: Network, nodes: dict[int, NodeVariables], edges: list[Edge], start: Array
    ) -> None:
        self.network, self.nodes, self.edges, self.start = network, nodes, edges, start
        self.states = start.size
        counts = [nodes[place].count for place in network.places]
        self.first = dict(zip(network.places, np.cumsum([0, *counts]).tolist(), strict=False))
        self.place_of = np.repeat(np.array(network.places), counts)
        _refuse_too_many(self.states, counts, network)
        self.monomials = Monomials(np.where(self.place_of == VARIANCE, 2, 1))
        learns = np.array([nodes[place].step > 0 for place in network.places])
        self.learns = np.repeat(learns, counts)  #: whether each variable ever changes

    @property
    def unknowns(self) -> int:
        """Number of unknowns: states × monomials."""
        return self.states * self.monomials.count

    def prediction(self, place: int, s: int) -> Polynomial:
        """The prediction of a node in a state."""
        node, first = self.nodes[place], self.first[place]
        variables = first + np.arange(node.count)
        return self.monomials.affine(float(node.offset[s]), variables, node.table[s])

    @cached_property
    def _predictions(self) -> dict[int, list[Polynomial]]:
        return {
            place: [*(self.prediction(place, s) for s in range(self.states)), NOTHING]
            for place in self.network.places
        }

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
        transition: Any = Transition(noise, edge.gamma, edge.lam, edge.eta)  # type: ignore[arg-type]
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
        count, entries = self.monomials.count, 0
        pieces: list[tuple[Any, Any, Array]] = []  # 16 bytes for each entry
        leaving: dict[int, dict[int, list[Edge]]] = {}
        for edge in self.edges:
            leaving.setdefault(edge.state, {}).setdefault(edge.next_state, []).append(edge)
        for s, by_next in leaving.items():
            parts = _Parts(self, s)
            for s_next, edges in by_next.items():
                rows, columns, data = parts.entries(edges)
                entries += data.size
                _refuse_too_dense(entries, self.unknowns)
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
        self.recursion, self.monomials = recursion, recursion.monomials
        m = self.monomials
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

    def entries(self, edges: list[Edge]) -> tuple[Integers, Integers, Array]:
        """Entries (monomial after, monomial before, coefficient) of edges between two states."""
        total: dict[tuple[int, ...], Polynomial] = {}
        for edge in edges:
            updated = self.recursion.updated(edge)
            products: dict[tuple[int, ...], Polynomial] = {(): Polynomial.constant(1.0)}
            for part in self.parts:
                found = edge.probability * _product(part, updated, products).expected
                total[part] = total[part] + found if part in total else found
        rows, keys, data = [], [], []
        for part, members in zip(self.parts, self.members, strict=True):
            polynomial = total[part]
            rows.append(np.repeat(members, polynomial.keys.size))
            keys.append((self.rest[members][:, None] + polynomial.keys).ravel())
            data.append(np.tile(polynomial.coefficients, members.size))
        columns = self.monomials.positions(np.concatenate(keys))
        return np.concatenate(rows), columns, np.concatenate(data)


def _fed(node: Node, transition: Transition, read: Readings) -> Any:
    """What a node is fed with, a polynomial of degree 2 at most."""
    try:
        return node.reward(transition, read)
    except TypeError:
        raise InputError(
            "method",
            f"a network with the node {node.name}",
            "its reward is not a polynomial, so that there is no exact curve; use simulate",
        ) from None


def _product(
    part: tuple[int, ...],
    updated: dict[int, Polynomial],
    products: dict[tuple[int, ...], Polynomial],
) -> Polynomial:
    """The product of updated variables; shorter products are made once."""
    if part not in products:
        products[part] = _product(part[:-1], updated, products) * updated[part[-1]]
    return products[part]


def _refuse_too_many(states: int, counts: list[int], network: Network) -> None:
    quadratic = sum(c for c, p in zip(counts, network.places, strict=True) if p == VARIANCE)
    unknowns = states * count_monomials(sum(counts) - quadratic, quadratic)
    if unknowns > MOST_UNKNOWNS:
        weights = f"{states:,} states × monomials of {sum(counts):,} weights"
        raise InputError(
            "unknowns",
            f"{unknowns:,} ({weights})",
            f"must be at most {MOST_UNKNOWNS:,}; use simulate, or fewer states or features",
        )


def _refuse_too_dense(entries: int, unknowns: int) -> None:
    if entries > MOST_ENTRIES:
        raise InputError(
            "unknowns",
            f"{unknowns:,} with more than {MOST_ENTRIES:,} entries",
            "the recursion does not fit in memory; use simulate, or fewer states or features",
        )
