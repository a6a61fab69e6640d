"""Make the recursion of a learner on an MDP: edges, variables of the nodes, initial moments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from scipy.sparse.csgraph import breadth_first_order

from retvar.curves.random_starts import start_points
from retvar.curves.recursion import Edge, NodeVariables, Recursion
from retvar.engine import streams
from retvar.engine.learner_setup import LearnerSetup, prepare_learners
from retvar.errors import InputError
from retvar.exact.stationary import transitions
from retvar.features import Features, States
from retvar.learners import Learner
from retvar.mdp import MDP
from retvar.networks import MEAN, VALUE, VARIANCE
from retvar.simulation.truth import Truth
from retvar.step_sizes import CONSTANT

__all__ = ["Problem", "problems_of"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
POINT_BYTES = 2e8  # memory for monomials at initial points
LARGEST_FEATURE = 1e30  # powers up to the fourth are taken, times those of the step
MOST_WEIGHTS = 300  # weights of a node whose dependence is looked for
NOT_CLOSED = "has no closed recursion; use simulate, or a constant step and no trace"


@dataclass(frozen=True, eq=False)
class Problem:
    """One learner on one stream."""

    mdp: MDP
    setup: LearnerSetup
    stream: streams.Stream
    probability: Array  #: of each edge of the stream; 0 if its state is never reached
    truth: Truth

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
        if not self.setup.template.learns_value:
            found[VALUE] = 0.0
        return found

    def references(self) -> list[Array]:
        """Predictions of the nodes to measure deviations from: the truth, 0 where unknown."""
        value, variance = (np.nan_to_num(x, posinf=0.0) for x in self.truth.of(self.setup.template))
        second = self.learner.network.second_moment is not None
        return [value, value, variance + value**2 if second else variance]

    def recursion(self, kept: Integers | None = None) -> tuple[Recursion, Array]:
        """The recursion on all states or those kept, and the expected monomials at the start."""
        kept = np.arange(self.mdp.n_states) if kept is None else kept
        places = self.learner.network.places
        weights, shares = start_points(self.setup.template)
        references = self.references()
        nodes = {
            place: _node_variables(
                self.setup.template.features[place],
                kept,
                float(self.steps[place]),
                weights[place],
                references[place],
            )
            for place in places
        }
        start = self.mdp.start[kept]
        found = Recursion(self.learner.network, nodes, list(self._edges(kept)), start)
        points = np.concatenate([nodes[place].of(weights[place]) for place in places], axis=1)
        size = max(1, int(POINT_BYTES / (8 * found.monomials.count)))
        moments = np.zeros(found.monomials.count)
        for i in range(0, shares.size, size):
            moments += shares[i : i + size] @ found.monomials.at(points[i : i + size])
        return found, moments

    def _edges(self, kept: Integers) -> Any:
        n, s, template = self.mdp.n_states, self.stream, self.setup.template
        number = np.full(n + 1, kept.size)
        number[kept] = np.arange(kept.size)
        state = np.repeat(np.arange(n), s.fan.astype(np.int64))
        ones = np.ones_like(s.rho)
        target = template.learner.estimand == "target_return"
        eta, rho_bar = (ones, s.rho) if target else (s.rho, ones)
        columns = (self.probability, s.reward, s.noise, template.gamma, template.lam)
        for e in np.flatnonzero(np.isin(state, kept) & (self.probability > 0)).tolist():
            numbers = (float(column[e]) for column in (*columns, eta, s.rho, rho_bar))
            yield Edge(int(number[state[e]]), int(number[s.next_state[e]]), *numbers)


def problems_of(
    mdp: MDP,
    learners: Sequence[Learner],
    features: list[Features],
    policies: tuple[object, object],
    truth: bool = True,
) -> list[Problem]:
    """Prepare learners; raise an InputError for those without a closed recursion."""
    stream, used = streams.stream_of(mdp, *policies)
    setups = prepare_learners(mdp, learners, features, used)
    for number, setup in enumerate(setups):
        _refuse_unclosed(f"learners[{number}].", setup)
    actor = policies[0] if policies[1] is None else policies[1]
    taken = mdp.policy(actor).probabilities[mdp.edges.state, mdp.edges.action]
    chain = transitions(mdp, actor)  # the end is the last state, which leads to the starts
    reached = np.zeros(mdp.n_states + 1)
    reached[breadth_first_order(chain, mdp.n_states, return_predecessors=False)] = 1.0
    probability = (taken * mdp.edges.probability * reached[mdp.edges.state])[used]
    exact = Truth(mdp, setups, 0, *policies, truth)
    return [Problem(mdp, setup, stream, probability, exact) for setup in setups]


def _refuse_unclosed(prefix: str, setup: LearnerSetup) -> None:
    """Raise an InputError for traces and for steps that change."""
    learner = setup.template.learner
    order = learner.order
    if order != 2:
        raise InputError(f"{prefix}order", order, "must be 2 for exact curves; use simulate")
    names = {VALUE: "", VARIANCE: "_bar", MEAN: "_mean"}  # the mean's default is the variance's
    for place in (p for p in names if p in learner.network.places):
        kind, traced, _ = setup.rule(place)
        settings = learner.nodes(tabular=False)[place]
        if kind != CONSTANT:
            raise InputError(f"{prefix}alpha{names[place]}", settings.step, NOT_CLOSED)
        if traced:
            raise InputError(f"{prefix}kappa{names[place]}", settings.kappa, NOT_CLOSED)


def _node_variables(
    features: Features, kept: Integers, step: float, weights: Array, reference: Array
) -> NodeVariables:
    """Variables of a node: its weights, or fewer if features depend on each other."""
    rows = features.rows()
    if np.abs(rows.values).max(initial=0.0) > LARGEST_FEATURE:
        remedy = f"must stay below {LARGEST_FEATURE:g} in exact curves; scale them"
        raise InputError("features", f"{np.abs(rows.values).max():g}", remedy)
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
