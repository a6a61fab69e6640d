"""Group learners into blocks of lanes, and allocate the arrays of the kernel.

A block holds learners of one shape (estimand, step-size rules, with or without traces). A lane of a
block is one value node with one learner of each method of the block, so learners of different
methods with the same value node share it. With traces or features, where value nodes are expensive,
lanes also share equal value nodes. Without them (one weight per state, no traces) they share it
only if it is the same in all lanes, because computing it again is cheaper than a lookup.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.engine import kernel as k
from retvar.engine import streams
from retvar.engine.kernel import WIDTH, Node, Shape
from retvar.engine.streams import Stream
from retvar.errors import InputError
from retvar.features import Features, States
from retvar.initial_values import InitialValues
from retvar.learners import Learner
from retvar.mdp import END, MDP
from retvar.online import memory_layout as online
from retvar.online.memory import Memory, memory_of
from retvar.step_sizes import ADADELTA, ALPHA_BOUND, AVERAGED, CONSTANT, DECAY

__all__ = [
    "Block",
    "InitialDraws",
    "LearnerSetup",
    "Recording",
    "Template",
    "Workspace",
    "aligned_zeros",
    "plan_blocks",
    "prepare_learners",
    "stack_lanes",
]  # fmt: skip

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Rule = tuple[int, bool, float]  # of a node: step-size kind, whether it has a trace, power
Kind = tuple[str, int, bool, float]  # of a learner: its method and the rule of its mean node
PLAIN: Rule = (CONSTANT, False, 0.0)
MOST_LANES = 512  # in a block, so that its arrays fit in the CPU caches
LONGEST = 1e15  # upper bound on the number of steps of a run
PLACE = {  # node in a learner's memory, in the order of the kernel's arguments
    "value": online.VALUE,
    "mean": online.MEAN,
    "direct": online.SECONDARY,
    "vtd": online.SECONDARY,
    "centred": online.SECONDARY,
}
ROW = {"direct": k.DIRECT_, "vtd": k.VTD_, "centred": k.CENTRED_}


@dataclass(frozen=True, eq=False)
class Template:
    """Shared setup of learners that differ only in the parameters of their step sizes."""

    learner: Learner  #: one of them
    features: list[Features]
    memory: Memory
    gamma: Array  #: γ′ of each edge of the stream
    lam: Array  #: λ′ of each edge
    initial: dict[str, InitialValues]  #: fields that differ from run to run

    @property
    def learns_value(self) -> bool:
        """Whether the value node learns."""
        return self.learner.learn_value

    @property
    def tabular(self) -> bool:
        """Whether each state has a weight of its own in all nodes."""
        return all(isinstance(f, States) for f in self.features)

    @cached_property
    def solution_key(self) -> tuple[Any, ...]:
        """Equal for learners with the same exact solution."""
        return self.gamma.tobytes(), self.lam.tobytes(), self.learner.estimand

    @cached_property
    def value_start_key(self) -> tuple[Any, ...]:
        """Equal for learners whose value nodes start from the same weights, in every run."""
        start = self.initial.get("value")
        weights = self.memory.weights(online.VALUE).tobytes()
        return weights, None if start is None else repr(start.to_dict())

    @cached_property
    def start(self) -> tuple[Any, ...]:
        """Equal for learners that start from the same weights in all nodes, in every run."""
        random = [repr(self.initial[name].to_dict()) for name in sorted(self.initial)]
        return (self.learner.method, self.memory.cells[:, online.WEIGHT].tobytes(), *random)

    def weights(self, runs: range, draws: InitialDraws) -> list[Array]:
        """Initial weights [run or one for all, weight] of the nodes."""
        if not self.initial:
            return [self.memory.weights(node)[None, :] for node in range(3)]
        drawn = {
            name: self.initial[name].of(runs, self.features[place].size, draws.of(number))
            for number, (name, place) in enumerate(_INITIAL.items())
            if name in self.initial
        }
        learner, found = _with_settings(self.learner, drawn), []
        for node, kind in zip(learner.nodes(tabular=self.tabular), self.features, strict=True):
            table = np.asarray(node.initial, dtype=np.float64) + 0.0
            if not np.all(np.abs(table) <= online.LIMIT):
                raise InputError("value", "too large", f"must stay below {online.LIMIT:g}")
            found.append(np.broadcast_to(table, (len(runs), kind.size)))
        return found


@dataclass(frozen=True, eq=False)
class LearnerSetup:
    """A learner prepared for a stream."""

    template: Template
    settings: Array  #: per node: two parameters of its step-size rule, then κ

    def rule(self, node: int) -> Rule:
        """Step-size kind, whether there is a trace, and the power of a decaying rule."""
        if node == online.VALUE and not self.template.learns_value:
            return PLAIN
        plan = self.template.memory.plan[node]
        kind, traced = int(plan[online.KIND]), bool(plan[online.TRACED])
        return kind, traced, float(self.settings[node, 1]) if kind in (DECAY, AVERAGED) else 0.0

    def shape(self) -> tuple[Any, ...]:
        """Equal for learners that may be in the same block."""
        rules = self.rule(online.VALUE), self.rule(online.SECONDARY)
        per_state = self.settings[0].size > 3  # one trace decay per state
        return (self.template.learner.estimand, self.template.learns_value, per_state, rules)

    def kind(self) -> Kind:
        """Method, and the rule of the mean node if there is one."""
        method = self.template.learner.method
        return (method, *(self.rule(online.MEAN) if method == "centred" else PLAIN))

    @cached_property
    def value_node(self) -> tuple[Any, ...]:
        """Equal for learners with the same value node."""
        learned = self.settings[online.VALUE].tobytes() if self.template.learns_value else b""
        return learned, self.template.value_start_key, self.template.solution_key


_INITIAL = {
    "initial_mean": online.MEAN,
    "initial_variance": online.SECONDARY,
    "value": online.VALUE,
}


class InitialDraws:
    """Random numbers for initial values, drawn once and shared by all learners."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._made: dict[Any, Array] = {}

    def of(self, number: int) -> Any:
        """Return the drawing function of setting `number`."""

        def draw(what: str, runs: range, size: int) -> Array:
            key = (number, what, runs.start, len(runs), size)
            if key not in self._made:
                fill = streams.uniforms if what == "uniform" else streams.normals
                first = int(streams.INITIAL) + (number << 50) + (what == "normal") * (1 << 49)
                self._made[key] = np.empty((len(runs), size))
                fill(self.seed, runs.start, first, self._made[key])
            return self._made[key]

        return draw


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
        settings = templates[key].memory.settings.copy()
        settings[:, :2] = [step.parameters() for step in steps]
        setups.append(LearnerSetup(templates[key], settings))
    return setups


def _template(
    mdp: MDP, learner: Learner, features: list[Features], used: NDArray[np.intp], runs: int
) -> Template:
    initial = {name: x for name, x in vars(learner).items() if isinstance(x, InitialValues)}
    typical = _with_settings(learner, {name: given.typical for name, given in initial.items()})
    own = features if learner.method == "centred" else [features[0], features[0], features[2]]
    memory = memory_of(typical, own)
    for given in initial.values():
        given.of(range(runs - 1, runs), np.size(given.typical), _no_draw)
    return Template(learner, own, memory, *_discounts(mdp, memory, used), initial)


def _with_settings(learner: Learner, settings: dict[str, Any]) -> Learner:
    """Copy a learner with other settings, without validation."""
    learner = copy.copy(learner)
    vars(learner).update(settings)
    return learner


def _no_draw(what: str, runs: range, size: int) -> Array:
    return np.zeros((len(runs), size))


def _discounts(mdp: MDP, memory: Memory, used: NDArray[np.intp]) -> tuple[Array, Array]:
    """γ′ and λ′ of each edge: the learner's if it has them, otherwise the MDP's."""
    follows = mdp.edges.next_state[used]
    ends = follows == END
    gamma = mdp.edges.gamma[used]
    if memory.gammas.size:
        gamma = np.broadcast_to(memory.gammas, mdp.n_states)[follows]
    lam = np.broadcast_to(memory.lams if memory.lams.size else mdp.lam, mdp.n_states)[follows]
    return np.where(ends, 0.0, gamma), np.where(ends, 0.0, lam)


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


@dataclass(frozen=True, eq=False)
class Block:
    """Learners in lanes: each column has one learner per method."""

    shape: Shape
    columns: list[dict[str, int]]  #: method → index of the learner
    value_lanes: list[int]  #: one column of each value node
    share: Integers  #: index of the value node of each lane

    @property
    def lanes(self) -> int:
        """Number of lanes, including padding."""
        return int(self.share.size)

    @property
    def rows(self) -> list[int]:
        """Recorded quantities in the order of the kernel's slots."""
        s = self.shape
        has = [True, s.centred, s.direct, s.vtd, s.vtd, s.centred]
        return [row for row in range(k.ROWS) if has[row]]

    def learner(self, lane: int, method: str | None = None) -> int:
        """Index of the learner in a lane; padding repeats the first."""
        column = self.columns[lane if lane < len(self.columns) else 0]
        return next(iter(column.values())) if method is None else column[method]


def plan_blocks(
    setups: list[LearnerSetup], stream: Stream, recording: Recording, parts: int = 1
) -> list[Block]:
    """Return blocks of all learners, split so that `parts` workers can run at once."""
    shapes: dict[Any, dict[Any, dict[Kind, list[int]]]] = {}
    for number, setup in enumerate(setups):
        by_kind = shapes.setdefault(setup.shape(), {}).setdefault(setup.value_node, {})
        by_kind.setdefault(setup.kind(), []).append(number)
    blocks = []
    for (*_, rules), by_value in shapes.items():
        traced = any(rule[1] for rule in rules)
        groups: dict[tuple[Kind, ...], list[dict[str, int]]] = {}
        for by_kind in by_value.values():
            for kinds, column in _columns(by_kind, traced):
                groups.setdefault(kinds, []).append(column)
        for columns in groups.values():
            most = min(MOST_LANES, -(-len(columns) // parts))
            most = -(-most // WIDTH) * WIDTH
            for first in range(0, len(columns), most):
                blocks.append(_block(setups, columns[first : first + most], stream, recording))
    return blocks


def _columns(
    by_kind: dict[Kind, list[int]], traced: bool
) -> Iterator[tuple[tuple[Kind, ...], dict[str, int]]]:
    """Group learners with the same value node into columns, at most one per method.

    A learner that has a trace only in its mean node gets its own column, because a trace would
    change how the others are computed.
    """
    centred = sorted(kind for kind in by_kind if kind[0] == "centred")
    fitting = [kind for kind in centred if traced or not kind[2]]
    apart = [kind for kind in centred if kind not in fitting[:1]]
    together = sorted(set(by_kind) - set(apart))
    for kinds in [*([together] if together else []), *([kind] for kind in apart)]:
        for numbers in zip_longest(*(by_kind[kind] for kind in kinds)):
            pairs = zip(kinds, numbers, strict=True)
            there = {kind: number for kind, number in pairs if number is not None}
            yield tuple(there), {kind[0]: number for kind, number in there.items()}


def _block(
    setups: list[LearnerSetup], columns: list[dict[str, int]], stream: Stream, recording: Recording
) -> Block:
    members = [setups[next(iter(column.values()))] for column in columns]
    one, methods = members[0], columns[0]
    mean = setups[methods["centred"]].rule(online.MEAN) if "centred" in methods else PLAIN
    rules = [one.rule(online.VALUE), mean, one.rule(online.SECONDARY)]
    kind = tuple(rule[0] for rule in rules)
    traced = tuple(rule[1] for rule in rules)
    local = one.template.tabular and not any(traced)
    keys: dict[tuple[Any, ...], int] = {}
    width = -(-len(columns) // WIDTH) * WIDTH
    for column, member in enumerate(members):
        keys.setdefault(member.value_node, column)
    shared = local and len(keys) == 1
    if local and not shared:
        value_lanes, share = list(range(len(columns))), np.arange(width, dtype=np.int64)
    else:
        value_lanes = list(keys.values())
        number = {key: i for i, key in enumerate(keys)}
        share = np.zeros(width, dtype=np.int64)
        share[: len(members)] = [number[member.value_node] for member in members]
    off_policy = one.template.learner.estimand == "off_policy_return"
    shape = Shape(
        direct="direct" in methods,
        vtd="vtd" in methods,
        centred="centred" in methods,
        learn=one.template.learns_value,
        off_policy=off_policy,
        weighted=stream.weighted,
        noisy=stream.noisy,
        local=local,
        shared=shared,
        own=len({member.template.solution_key for member in members}) > 1,
        safe=local and _safe([setups[i] for c in columns for i in c.values()], stream, off_policy),
        kind=kind,  # type: ignore[arg-type]
        traced=traced,  # type: ignore[arg-type]
        change=recording.change,
        steps=recording.steps,
    )
    return Block(shape, columns, value_lanes, share)


def _safe(members: list[LearnerSetup], stream: Stream, off_policy: bool) -> bool:
    """Whether weights provably stay below LIMIT in a run of any length.

    Without traces a weight becomes (1 − a)w + a(R̄ + γ̄w′), a = step × ratio. With a and γ̄ in [0, 1]
    it grows by at most the largest R̄ in each step, and R̄ is bounded by rewards and values.
    """
    largest_ratio = float(stream.rho.max())
    eta, rho_bar = (largest_ratio, 1.0) if off_policy else (1.0, largest_ratio)
    reward = float(np.max(np.abs(stream.reward) + 9 * stream.noise))
    for setup in members:
        nodes = [online.SECONDARY]
        nodes += [online.MEAN] if setup.template.learner.method == "centred" else []
        nodes += [online.VALUE] if setup.template.learns_value else []
        for node in nodes:
            ratio = largest_ratio if node == online.VALUE else rho_bar
            if setup.rule(node)[0] == ADADELTA or setup.settings[node, 0] * ratio > 1:
                return False
    for template in {setup.template for setup in members}:
        if np.max(eta * template.gamma * template.lam) > 1:
            return False
        start = float(np.abs(template.memory.cells[:, online.WEIGHT]).max())
        start += sum(_size(initial) for initial in template.initial.values())
        start = max(start, start * start)  # VTD's second moment
        value = start + LONGEST * reward
        mean = start + LONGEST * eta * (reward + value)
        error = (1 + eta) * (reward + 3 * max(value, mean))
        if start + LONGEST * 3 * error * error > online.LIMIT:
            return False
    return True


def _size(initial: InitialValues) -> float:
    plain = initial.to_dict()
    numbers = (np.abs(v).max() for v in plain.values() if not isinstance(v, str))
    return 10.0 * float(sum(numbers))


# ---------------------------------------------------------------------- arrays


def aligned_zeros(*shape: int) -> Array:
    """Zeros that are aligned to 64 bytes."""
    size = math.prod(shape)
    buffer = np.zeros(size + WIDTH)
    first = (-buffer.ctypes.data % 64) // 8
    return buffer[first : first + size].reshape(shape)


def stack_lanes(tables: Sequence[Array]) -> Array:
    """Stack tables along a last axis of lanes; a single row is repeated to the longest table."""
    out = aligned_zeros(max(len(table) for table in tables), *tables[0].shape[1:], len(tables))
    places: dict[int, list[int]] = {}
    for lane, table in enumerate(tables):
        places.setdefault(id(table), []).append(lane)
    for at in places.values():
        out[..., at] = tables[at[0]][..., None]
    return out


class Workspace:
    """Arrays in which a worker runs a block."""

    def __init__(self, block: Block, setups: list[LearnerSetup], stream: Stream, seed: int) -> None:
        self.block, self.setups, self.stream, self.seed = block, setups, stream, seed
        self.width = block.lanes
        self.values = -(-len(block.value_lanes) // WIDTH) * WIDTH
        own = block.shape.own
        self.members = {name: self._members(name) for name in PLACE if self._has(name)}
        self.differs = any(m.template.initial for each in self.members.values() for m in each)
        self.nodes = {name: self._node(name) for name in self.members}
        templates = [
            setups[block.learner(lane)].template for lane in range(self.width if own else 1)
        ]
        self.gammas = stack_lanes([template.gamma for template in templates])
        self.lams = stack_lanes([template.lam for template in templates])
        values = self.members["value"][: self.values if own else 1]
        self.value_gammas = stack_lanes([lane.template.gamma for lane in values])
        alone = block.shape.local and not block.shape.shared
        self.share = None if alone else block.share  # None: one value node per lane
        self.slot = np.full(k.ROWS, -1, dtype=np.int64)
        self.slot[block.rows] = np.arange(len(block.rows))
        self.scratch = [aligned_zeros(self.values) for _ in range(4)]
        self.scratch += [aligned_zeros(self.width) for _ in range(4)]

    def _has(self, name: str) -> bool:
        return name == "value" or getattr(self.block.shape, "centred" if name == "mean" else name)

    def _members(self, name: str) -> list[LearnerSetup]:
        """Learner of the node in each lane; padding repeats the first."""
        if name == "value":
            columns, width, method = self.block.value_lanes, self.values, None
        else:
            columns, width = list(range(len(self.block.columns))), self.width
            method = "centred" if name == "mean" else name
        at = [columns[i] if i < len(columns) else columns[0] for i in range(width)]
        return [self.setups[self.block.learner(column, method)] for column in at]

    def _node(self, name: str) -> Node:
        shape, place, members = self.block.shape, PLACE[name], self.members[name]
        kind, traced = shape.kind[place], shape.traced[place]
        learns = name != "value" or shape.learn
        features, lanes = members[0].template.features[place], len(members)
        size, local = features.size, shape.local
        settings = np.array([member.settings[place] for member in members])
        weights = (size, lanes)
        rows = None if local else features.rows()
        traced = traced and learns
        live = np.full(2 * size + 1, -1, dtype=np.int64)
        live[2 * size] = 0
        return Node(
            w=aligned_zeros(size + 1, lanes),
            p=_aligned_copy(settings[:, 0]) if learns else None,
            q=_aligned_copy(settings[:, 1])
            if learns and kind in (DECAY, ADADELTA, AVERAGED)
            else None,
            first=aligned_zeros(*weights) if kind == ADADELTA else None,
            second=aligned_zeros(*weights) if kind == ADADELTA else None,
            visits=np.zeros(size) if kind in (DECAY, AVERAGED) else None,
            bound=aligned_zeros(lanes) if kind == ALPHA_BOUND else None,
            peak=aligned_zeros(lanes) if learns and not shape.safe else None,
            iterates=aligned_zeros(size + 1, lanes) if learns and kind == AVERAGED else None,
            trace=aligned_zeros(*weights) if traced else None,
            live=live if traced else None,
            phi=np.zeros(size) if traced else None,
            kappa=None if local else _aligned_copy(settings[:, 2:].T),
            last=None if local else aligned_zeros(lanes),
            now=None if local else aligned_zeros(lanes),
            after=None if local else aligned_zeros(lanes),
            delta=None if local else aligned_zeros(lanes),
            own=aligned_zeros(2, lanes) if learns and kind == AVERAGED and not local else None,
            indptr=None if rows is None else rows.indptr,
            indices=None if rows is None else rows.indices,
            values=None if rows is None else rows.values,
            initial=None,
        )

    def nodes_for(self, runs: range) -> list[Node | None]:
        """Return the nodes with the initial values of these runs."""
        if self.differs or self.nodes["value"].initial is None:
            draws = InitialDraws(self.seed)
            templates = {
                m.template.start: m.template for each in self.members.values() for m in each
            }
            found = {start: template.weights(runs, draws) for start, template in templates.items()}
            for name, members in self.members.items():
                initial = stack_lanes([found[m.template.start][PLACE[name]] for m in members])
                self.nodes[name] = self.nodes[name]._replace(initial=initial)
        return [self.nodes.get(name) for name in PLACE]

    def rows(self) -> tuple[Any, ...]:
        """Features of the variance nodes; None if each state has its own weight."""
        if self.block.shape.local:
            return None, None, None
        return tuple(self.setups[self.block.learner(0)].template.features[online.SECONDARY].rows())


def _aligned_copy(numbers: Array) -> Array:
    out = aligned_zeros(*numbers.shape)
    out[:] = numbers
    return out
