"""Prepare learners for a stream, and group them into blocks of lanes.

Lanes of a block see the same γ, λ, κ and features; see :mod:`retvar.td.nodes`. A lane is one value
node with one learner of each method of the block, so learners of different methods with the same
value node share it. A value node that is the same in all lanes is computed once.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from retvar.mdp import END, MDP
from retvar.simulation import streams
from retvar.simulation.streams import Stream
from retvar.support.errors import InputError
from retvar.td.block import Prepared, per_state, prepare, spec_of
from retvar.td.features import Features, States
from retvar.td.initial_values import InitialValues
from retvar.td.learners import Learner
from retvar.td.networks import ESTIMATES, NODES, VALUE, VARIANCE, Estimate
from retvar.td.nodes import LIMIT, Spec
from retvar.td.random import U
from retvar.td.step_sizes import CONSTANT, common_parameters

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Rule = tuple[int, bool, tuple[float, ...], bytes]  # of a node: see LearnerSetup.rule
Kind = tuple[str, tuple[int, ...], tuple[Rule, ...]]  # of a learner: see LearnerSetup.kind
PLAIN: Rule = (CONSTANT, False, (), b"")
WIDTH = 8  # the doubles in the widest registers: several lanes are padded to a multiple of it
MOST_LANES = 512  # in a block, so that its arrays fit in the CPU caches


# ---------------------------------------------------------------------- learners


@dataclass(frozen=True, eq=False)
class Template:
    """Shared setup of learners that differ only in the parameters of their step sizes."""

    learner: Learner  #: one of them
    features: list[Features]
    nodes: list[Prepared]  #: by place
    gamma: Array  #: γ′ of each edge of the stream
    lam: Array  #: λ′ of each edge
    start: InitialValues | None  #: values that differ from run to run

    @cached_property
    def solution_key(self) -> tuple[Any, ...]:
        """Equal for learners with the same exact solution."""
        return self.gamma.tobytes(), self.lam.tobytes(), self.learner.estimand

    @cached_property
    def value_start_key(self) -> tuple[Any, ...]:
        """Equal for learners whose value nodes start from the same weights, in every run."""
        own = None if self.start is None else repr(self.start.to_dict())
        return self.nodes[VALUE].initial.tobytes(), own

    @cached_property
    def start_key(self) -> tuple[Any, ...]:
        """Equal for learners that start from the same weights in all nodes, in every run."""
        others = (node.initial.tobytes() for node in self.nodes)
        return self.learner.method, self.value_start_key, *others

    def weights(self, runs: range, drawn: Any) -> list[Array]:
        """Initial weights [run or one for all, weight] of the nodes."""
        if self.start is None:
            return [node.initial[None, :] for node in self.nodes]
        values, found = drawn(self.start, runs, self.features[VALUE].size), []
        learner, places = _with_value(self.learner, values), self.learner.network.places
        tabular = all(isinstance(f, States) for f in self.features)
        for place, node in enumerate(learner.nodes(tabular=tabular)):
            if place in places:
                table = np.asarray(node.initial, dtype=np.float64) + 0.0
                if not -LIMIT <= table.min() <= table.max() <= LIMIT:
                    raise InputError("value", "too large", f"must stay below {LIMIT:g}")
            found.append(np.broadcast_to(table, (len(values), self.features[place].size)))
        return found


@dataclass(frozen=True, eq=False)
class LearnerSetup:
    """A learner prepared for a stream."""

    template: Template
    settings: Array  #: two parameters of the step-size rule of each node

    def rule(self, node: int) -> Rule:
        """Step-size kind, whether there is a trace, parameters that lanes have in common, and κ."""
        if node == VALUE and not self.template.learner.learn_value:
            return PLAIN
        given = self.template.nodes[node]
        common = tuple(float(self.settings[node, k]) for k in common_parameters(given.kind))
        return given.kind, bool(given.trace), common, given.kappa.tobytes() if given.trace else b""

    def shape(self) -> tuple[Any, ...]:
        """Equal for learners that may be in the same block."""
        traced = any(self.rule(place)[1] for place in self.template.learner.network.places)
        rules = self.rule(VALUE), self.rule(VARIANCE), traced  # traces change how sums are made
        return self.template.solution_key, self.template.learner.learn_value, rules

    def kind(self) -> Kind:
        """Method, codes of its nodes, and the rules of those that `shape` does not have."""
        network = self.template.learner.network
        others = (self.rule(place) for place in network.places if place not in (VALUE, VARIANCE))
        return network.method, tuple(node.code for node in network.nodes), tuple(others)

    @cached_property
    def value_node(self) -> tuple[Any, ...]:
        """Equal for learners with the same value node."""
        learned = self.settings[VALUE].tobytes() if self.template.learner.learn_value else b""
        return learned, self.template.value_start_key, self.template.solution_key


def initial_draws(seed: int) -> Any:
    """A function that draws initial values [run, weight], once for all learners.

    Its arguments are the initial values, the runs, and how many numbers each has.
    """

    @cache
    def draw(what: str, runs: range, size: int) -> Array:
        first, normals = streams.INITIAL, what == "normal"
        first += U(normals << 49)  # compiled code takes Python's integers for signed
        found = np.empty((len(runs), size))
        streams.draws(U(seed), runs.start, first, normals, found)
        return found

    return cache(lambda start, runs, size: start.of(runs, size, draw))


def prepare_learners(
    mdp: MDP,
    learners: Sequence[Learner],
    features: list[Features],
    used: NDArray[np.intp],
    runs: int = 1,
) -> list[LearnerSetup]:
    """Prepare each learner for a stream over the edges `used`; errors name the learner."""
    templates: dict[Any, Template] = {}
    setups = []
    for number, learner in enumerate(learners):
        steps = [node.step for node in learner.nodes(tabular=False)]
        given = {n: id(x) for n, x in vars(learner).items() if not n.startswith("alpha")}
        key = (type(learner), *(step.kind for step in steps), *given.values())
        if key not in templates:
            try:
                templates[key] = _template(mdp, learner, features, used, runs)
            except InputError as error:
                raise InputError(
                    f"learners[{number}].{error.field}", error.value, error.remedy
                ) from None
        settings = np.array([step.parameters() for step in steps])
        setups.append(LearnerSetup(templates[key], settings))
    return setups


def _template(
    mdp: MDP, learner: Learner, features: list[Features], used: NDArray[np.intp], runs: int
) -> Template:
    start = learner.value if isinstance(learner.value, InitialValues) else None
    typical = learner if start is None else _with_value(learner, start.typical)
    network = learner.network
    own = [
        features[min(p, VARIANCE) if p in network.places else VALUE]
        for p in range(network.place_count)
    ]
    nodes = prepare(typical, own)
    if start is not None:
        start.of(range(runs - 1, runs), np.size(start.typical), lambda *_: np.zeros(1))
    gamma, lam = _discounts(mdp, typical, used)
    return Template(learner, own, nodes, gamma, lam, start)


def _with_value(learner: Learner, value: Any) -> Learner:
    """Copy a learner with another initial value, without validation."""
    learner = copy.copy(learner)
    vars(learner)["value"] = value
    return learner


def _discounts(mdp: MDP, learner: Learner, used: NDArray[np.intp]) -> Iterator[Array]:
    """γ′ and λ′ of each edge: the learner's if it has them, otherwise the MDP's."""
    follows = mdp.edges.next_state[used]
    ends = follows == END
    given = mdp.edges.gamma[used], np.broadcast_to(mdp.lam, mdp.n_states)[follows]
    for field, column in zip(("gamma", "lam"), given, strict=True):
        own = per_state(field, getattr(learner, field), mdp.n_states)
        found = np.broadcast_to(own, mdp.n_states)[follows] if own.size else column
        yield np.where(ends, 0.0, found)


# ---------------------------------------------------------------------- blocks


@dataclass(frozen=True, eq=False)
class Recording:
    """What to record and when, in the form that the kernel uses."""

    points: Integers  #: moments to record; the last is the end
    by_step: bool  #: whether moments are steps (otherwise episodes)
    states: Integers  #: states whose estimates are recorded
    window: int  #: number of last moments to sum over
    shares: Array  #: stationary distribution; empty: no RMSE
    change: bool
    steps: bool


class Shape(NamedTuple):
    """What a kernel is made for."""

    specs: tuple[Spec, ...]  #: nodes of a lane, the value node first
    off_policy: bool  #: estimand: the ρ-weighted return
    weighted: bool  #: whether ratios differ from 1
    noisy: bool  #: whether rewards are random
    change: bool  #: record the mean absolute change of each estimate
    window: bool  #: … sums over a window
    rmse: bool

    @property
    def local(self) -> bool:
        """Whether a transition changes the estimates of the state being left alone."""
        return all(spec.local for spec in self.specs)

    @property
    def frozen(self) -> bool:
        """Whether errors are also those from the variance for the frozen value."""
        return self.window and not self.specs[0].learns

    @property
    def rows(self) -> list[int]:
        """Numbers of what is estimated, in ``ESTIMATES``; their positions here are slots.

        First the predictions of the nodes in their order, then what is made of them.
        """
        codes = [spec.code for spec in self.specs]
        made = [k for k, e in enumerate(ESTIMATES) if e.less_square_of and e.node.code in codes]
        return [*(ESTIMATES.index(Estimate(NODES[code])) for code in codes), *made]


@dataclass(frozen=True, eq=False)
class Block:
    """Learners in lanes: each column has one learner per method."""

    shape: Shape
    columns: list[dict[str, int]]  #: method → index of the learner
    owners: list[tuple[str, int]]  #: method and place of each node
    lanes: int  #: their number with padding, which repeats the first

    def learners(self, number: int = 0) -> list[int]:
        """Index of the learner of a node in each lane; of a common node in one."""
        method, _ = self.owners[number]
        found = [column[method] for column in self.columns]
        if self.shape.specs[number].common:
            return found[:1]
        return found + found[:1] * (self.lanes - len(found))


def plan_blocks(
    setups: list[LearnerSetup], stream: Stream, recording: Recording, parts: int = 1
) -> list[Block]:
    """Return blocks of all learners, split so that `parts` workers can run at once."""
    shapes: dict[Any, dict[Any, dict[Kind, list[int]]]] = {}
    for number, setup in enumerate(setups):
        by_kind = shapes.setdefault(setup.shape(), {}).setdefault(setup.value_node, {})
        by_kind.setdefault(setup.kind(), []).append(number)
    blocks = []
    for by_value in shapes.values():
        groups: dict[tuple[Kind, ...], list[dict[str, int]]] = {}
        for by_kind in by_value.values():
            for kinds, column in _columns(by_kind):
                groups.setdefault(kinds, []).append(column)
        for columns in groups.values():
            most = min(MOST_LANES, -(-len(columns) // parts))
            most = -(-most // WIDTH) * WIDTH
            for first in range(0, len(columns), most):
                blocks.append(_block(setups, columns[first : first + most], stream, recording))
    return blocks


def most_weights(blocks: list[Block], setups: list[LearnerSetup]) -> int:
    """The most weights of a node in blocks whose nodes have features or traces; 0: none have."""
    learners = [k for b in blocks if not b.shape.local for c in b.columns for k in c.values()]
    return max((f.size for k in learners for f in setups[k].template.features), default=0)


def _columns(
    by_kind: dict[Kind, list[int]],
) -> Iterator[tuple[tuple[Kind, ...], dict[str, int]]]:
    """Group learners with the same value node into columns, at most one per method."""
    first_of = {kind[0]: kind for kind in sorted(by_kind, reverse=True)}
    together = sorted(first_of.values())
    for kinds in [together, *([kind] for kind in sorted(set(by_kind) - set(together)))]:
        for numbers in zip_longest(*(by_kind[kind] for kind in kinds)):
            pairs = zip(kinds, numbers, strict=True)
            there = {kind: number for kind, number in pairs if number is not None}
            yield tuple(there), {kind[0]: number for kind, number in there.items()}


def _block(
    setups: list[LearnerSetup], columns: list[dict[str, int]], stream: Stream, recording: Recording
) -> Block:
    members, count = {method: setups[k] for method, k in columns[0].items()}, len(columns)
    first = next(iter(members))
    nodes = {method: setup.template.learner.network.nodes for method, setup in members.items()}
    owners = [(first, VALUE), *((m, node.place) for m in nodes for node in nodes[m][1:])]
    codes = [0, *(node.code for method in nodes for node in nodes[method][1:])]
    common = count > 1 and len({setups[column[first]].value_node for column in columns}) == 1
    specs = tuple(
        spec_of(
            code,
            members[method].template.nodes[place],
            place != VALUE or members[method].template.learner.learn_value,
            changes=False,
        )._replace(alone=count == 1, common=common and place == VALUE, steps=recording.steps)
        for code, (method, place) in zip(codes, owners, strict=True)
    )
    off_policy = members[first].template.learner.estimand == "off_policy_return"
    shape = Shape(
        specs, off_policy, stream.weighted, stream.noisy,
        recording.change, recording.window > 0, recording.shares.size > 0,
    )  # fmt: skip
    return Block(shape, columns, owners, 1 if count == 1 else -(-count // WIDTH) * WIDTH)
