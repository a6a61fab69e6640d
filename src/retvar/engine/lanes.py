"""Learners → lanes: which learners go side by side, and the arrays that the kernel works on.

Learners of one shape (estimand, step-size rules, traces or none) form a block. A lane of a block is
one value node with a learner of each method that the block has, so learners of different methods
with the same value node share it. Where traces or features make value nodes expensive, lanes with
the same value node share it too; where they are cheap (a weight for each state, no traces) they do
so if all lanes have the same: computing a value node again costs less than fetching its result.
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
    "Block", "Draws", "Form", "Lane", "Recording", "Room", "aligned", "lanes_of", "plan",
    "side_by_side",
]  # fmt: skip

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Rule = tuple[int, bool, float]  # of a node: step sizes, whether there is a trace, power
Kind = tuple[str, int, bool, float]  # of a learner: its method, and its mean node's rule
PLAIN: Rule = (CONSTANT, False, 0.0)
MOST_LANES = 512  # of a block: what it works on should stay in the nearer caches
LONGEST = 1e15  # steps, more than can be run
PLACE = {  # of each sort of node in a learner's memory, in the order that the kernel takes them
    "value": online.VALUE,
    "mean": online.MEAN,
    "direct": online.SECONDARY,
    "vtd": online.SECONDARY,
    "centred": online.SECONDARY,
}
ROW = {"direct": k.DIRECT_, "vtd": k.VTD_, "centred": k.CENTRED_}


@dataclass(frozen=True, eq=False)
class Form:
    """What learners have in common that differ in the numbers of their step sizes alone."""

    learner: Learner  #: one of them
    features: list[Features]
    memory: Memory
    gamma: Array  #: of each edge of the stream
    lam: Array
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
    def question(self) -> tuple[Any, ...]:
        """Equal for learners that ask for the same exact answers."""
        return self.gamma.tobytes(), self.lam.tobytes(), self.learner.estimand

    @cached_property
    def value_start(self) -> tuple[Any, ...]:
        """Equal for learners whose value nodes start from the same weights, in every run."""
        start = self.initial.get("value")
        weights = self.memory.weights(online.VALUE).tobytes()
        return weights, None if start is None else repr(start.to_dict())

    @cached_property
    def start(self) -> tuple[Any, ...]:
        """Equal for learners that start from the same weights in all nodes, in every run."""
        random = [repr(self.initial[name].to_dict()) for name in sorted(self.initial)]
        return (self.learner.method, self.memory.cells[:, online.WEIGHT].tobytes(), *random)

    def weights(self, runs: range, draws: Draws) -> list[Array]:
        """Initial weights [run or one for all, weight] of the nodes."""
        if not self.initial:
            return [self.memory.weights(node)[None, :] for node in range(3)]
        drawn = {
            name: self.initial[name].of(runs, self.features[place].size, draws.of(number))
            for number, (name, place) in enumerate(_INITIAL.items())
            if name in self.initial
        }
        twin, found = _twin(self.learner, drawn), []
        for node, kind in zip(twin.nodes(tabular=self.tabular), self.features, strict=True):
            table = np.asarray(node.initial, dtype=np.float64) + 0.0
            if not np.all(np.abs(table) <= online.LIMIT):
                raise InputError("value", "too large", f"must stay below {online.LIMIT:g}")
            found.append(np.broadcast_to(table, (len(runs), kind.size)))
        return found


@dataclass(frozen=True, eq=False)
class Lane:
    """A learner laid out for a stream."""

    form: Form
    settings: Array  #: of each node: two numbers of its step-size rule, then κ

    def rule(self, node: int) -> Rule:
        """Step-size rule, whether there is a trace, and the power of a decaying rule."""
        if node == online.VALUE and not self.form.learns_value:
            return PLAIN
        plan = self.form.memory.plan[node]
        kind, traced = int(plan[online.KIND]), bool(plan[online.TRACED])
        return kind, traced, float(self.settings[node, 1]) if kind in (DECAY, AVERAGED) else 0.0

    def shape(self) -> tuple[Any, ...]:
        """What lanes of a block have in common."""
        rules = self.rule(online.VALUE), self.rule(online.SECONDARY)
        per_state = self.settings[0].size > 3  # trace decay for each state
        return (self.form.learner.estimand, self.form.learns_value, per_state, rules)

    def kind(self) -> Kind:
        """The method, with the rule of its mean node where it has one."""
        method = self.form.learner.method
        return (method, *(self.rule(online.MEAN) if method == "centred" else PLAIN))

    @cached_property
    def value_node(self) -> tuple[Any, ...]:
        """Equal for learners whose value nodes are the same."""
        learned = self.settings[online.VALUE].tobytes() if self.form.learns_value else b""
        return learned, self.form.value_start, self.form.question


_INITIAL = {
    "initial_mean": online.MEAN,
    "initial_variance": online.SECONDARY,
    "value": online.VALUE,
}


class Draws:
    """Random numbers for initial values, the same for all learners; each made once."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._made: dict[Any, Array] = {}

    def of(self, number: int) -> Any:
        """A function that draws for one of the settings."""

        def draw(what: str, runs: range, size: int) -> Array:
            key = (number, what, runs.start, len(runs), size)
            if key not in self._made:
                fill = streams.uniforms if what == "uniform" else streams.normals
                first = int(streams.INITIAL) + (number << 50) + (what == "normal") * (1 << 49)
                self._made[key] = np.empty((len(runs), size))
                fill(self.seed, runs.start, first, self._made[key])
            return self._made[key]

        return draw


def lanes_of(
    mdp: MDP,
    learners: Sequence[Learner],
    features: list[Features],
    used: NDArray[np.intp],
    runs: int = 1,
) -> list[Lane]:
    """Lay out each learner for a stream over the edges `used`; errors name the learner."""
    forms: dict[Any, Form] = {}
    lanes = []
    for number, learner in enumerate(learners):
        steps = [node.step for node in learner.nodes(tabular=False)]
        given = {n: id(x) for n, x in vars(learner).items() if not n.startswith("alpha")}
        key = (type(learner), *(step.kind for step in steps), *given.values())
        if key not in forms:
            try:
                forms[key] = _form(mdp, learner, features, used, runs)
            except InputError as error:
                raise InputError(
                    f"learners[{number}].{error.field}", error.value, error.remedy
                ) from None
        settings = forms[key].memory.settings.copy()
        settings[:, :2] = [step.parameters() for step in steps]
        lanes.append(Lane(forms[key], settings))
    return lanes


def _form(
    mdp: MDP, learner: Learner, features: list[Features], used: NDArray[np.intp], runs: int
) -> Form:
    initial = {name: x for name, x in vars(learner).items() if isinstance(x, InitialValues)}
    typical = _twin(learner, {name: given.typical for name, given in initial.items()})
    own = features if learner.method == "centred" else [features[0], features[0], features[2]]
    memory = memory_of(typical, own)
    for given in initial.values():
        given.of(range(runs - 1, runs), np.size(given.typical), _no_draw)
    return Form(learner, own, memory, *_discounts(mdp, memory, used), initial)


def _twin(learner: Learner, settings: dict[str, Any]) -> Learner:
    """The learner with other settings, which are known to be good."""
    twin = copy.copy(learner)
    vars(twin).update(settings)
    return twin


def _no_draw(what: str, runs: range, size: int) -> Array:
    return np.zeros((len(runs), size))


def _discounts(mdp: MDP, memory: Memory, used: NDArray[np.intp]) -> tuple[Array, Array]:
    """γ′ and λ′ of each edge: the learner's where it has its own, otherwise the MDP's."""
    follows = mdp.edges.next_state[used]
    ends = follows == END
    gamma = mdp.edges.gamma[used]
    if memory.gammas.size:
        gamma = np.broadcast_to(memory.gammas, mdp.n_states)[follows]
    lam = np.broadcast_to(memory.lams if memory.lams.size else mdp.lam, mdp.n_states)[follows]
    return np.where(ends, 0.0, gamma), np.where(ends, 0.0, lam)


@dataclass(frozen=True, eq=False)
class Recording:
    """What is recorded, and when: as the kernel wants it."""

    points: Integers  #: moments, the last being the end
    by_step: bool  #: whether moments are steps (or episodes)
    states: Integers  #: states whose estimates are recorded
    window: int  #: length
    shares: Array  #: of the states in the stationary distribution; empty: no RMSE
    change: bool
    steps: bool


@dataclass(frozen=True, eq=False)
class Block:
    """Learners side by side: columns of lanes, each with a learner of some methods."""

    shape: Shape
    columns: list[dict[str, int]]  #: method → number of the learner
    value_lanes: list[int]  #: a column for each value node
    share: Integers  #: value node of each lane

    @property
    def lanes(self) -> int:
        """How many, padding included."""
        return int(self.share.size)

    @property
    def rows(self) -> list[int]:
        """What is recorded, in the order of the kernel's slots."""
        s = self.shape
        has = [True, s.centred, s.direct, s.vtd, s.vtd, s.centred]
        return [row for row in range(k.ROWS) if has[row]]

    def learner(self, lane: int, method: str | None = None) -> int:
        """The learner in a lane; those that fill up repeat the first."""
        column = self.columns[lane if lane < len(self.columns) else 0]
        return next(iter(column.values())) if method is None else column[method]


def plan(lanes: list[Lane], stream: Stream, recording: Recording, parts: int = 1) -> list[Block]:
    """Blocks for all learners, each at least in so many parts that `parts` can work at once."""
    shapes: dict[Any, dict[Any, dict[Kind, list[int]]]] = {}
    for number, lane in enumerate(lanes):
        by_kind = shapes.setdefault(lane.shape(), {}).setdefault(lane.value_node, {})
        by_kind.setdefault(lane.kind(), []).append(number)
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
                blocks.append(_block(lanes, columns[first : first + most], stream, recording))
    return blocks


def _columns(
    by_kind: dict[Kind, list[int]], traced: bool
) -> Iterator[tuple[tuple[Kind, ...], dict[str, int]]]:
    """Learners with one value node, put together: at most one of each method in a column.

    A trace in a mean node alone stays alone: others would be computed another way beside it.
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
    lanes: list[Lane], columns: list[dict[str, int]], stream: Stream, recording: Recording
) -> Block:
    members = [lanes[next(iter(column.values()))] for column in columns]
    one, methods = members[0], columns[0]
    mean = lanes[methods["centred"]].rule(online.MEAN) if "centred" in methods else PLAIN
    rules = [one.rule(online.VALUE), mean, one.rule(online.SECONDARY)]
    kind = tuple(rule[0] for rule in rules)
    traced = tuple(rule[1] for rule in rules)
    local = one.form.tabular and not any(traced)
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
    off_policy = one.form.learner.estimand == "off_policy_return"
    shape = Shape(
        direct="direct" in methods,
        vtd="vtd" in methods,
        centred="centred" in methods,
        learn=one.form.learns_value,
        off_policy=off_policy,
        weighted=stream.weighted,
        noisy=stream.noisy,
        local=local,
        shared=shared,
        own=len({member.form.question for member in members}) > 1,
        safe=local and _safe([lanes[i] for c in columns for i in c.values()], stream, off_policy),
        kind=kind,  # type: ignore[arg-type]
        traced=traced,  # type: ignore[arg-type]
        change=recording.change,
        steps=recording.steps,
    )
    return Block(shape, columns, value_lanes, share)


def _safe(members: list[Lane], stream: Stream, off_policy: bool) -> bool:
    """Whether no weight can come near the limit, however long the run.

    Without traces a weight becomes (1 − a)w + a(R̄ + γ̄w′), a = step × ratio. With a and γ̄ in [0, 1]
    it grows by no more than the largest R̄ at a step; R̄ is bounded likewise by rewards and values.
    """
    largest_ratio = float(stream.rho.max())
    eta, rho_bar = (largest_ratio, 1.0) if off_policy else (1.0, largest_ratio)
    reward = float(np.max(np.abs(stream.reward) + 9 * stream.noise))
    for lane in members:
        nodes = [online.SECONDARY]
        nodes += [online.MEAN] if lane.form.learner.method == "centred" else []
        nodes += [online.VALUE] if lane.form.learns_value else []
        for node in nodes:
            ratio = largest_ratio if node == online.VALUE else rho_bar
            if lane.rule(node)[0] == ADADELTA or lane.settings[node, 0] * ratio > 1:
                return False
    for form in {lane.form for lane in members}:
        if np.max(eta * form.gamma * form.lam) > 1:
            return False
        start = float(np.abs(form.memory.cells[:, online.WEIGHT]).max())
        start += sum(_size(initial) for initial in form.initial.values())
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


def aligned(*shape: int) -> Array:
    """Zeros at an address that vector loads like."""
    size = math.prod(shape)
    room = np.zeros(size + WIDTH)
    first = (-room.ctypes.data % 64) // 8
    return room[first : first + size].reshape(shape)


def side_by_side(tables: Sequence[Array]) -> Array:
    """Tables as lanes [row, …, lane]; one row stands for as many as others have."""
    out = aligned(max(len(table) for table in tables), *tables[0].shape[1:], len(tables))
    places: dict[int, list[int]] = {}
    for lane, table in enumerate(tables):
        places.setdefault(id(table), []).append(lane)
    for at in places.values():
        out[..., at] = tables[at[0]][..., None]
    return out


class Room:
    """The arrays that one worker runs a block in."""

    def __init__(self, block: Block, lanes: list[Lane], stream: Stream, seed: int) -> None:
        self.block, self.lanes, self.stream, self.seed = block, lanes, stream, seed
        self.width = block.lanes
        self.values = -(-len(block.value_lanes) // WIDTH) * WIDTH
        own = block.shape.own
        self.members = {name: self._members(name) for name in PLACE if self._has(name)}
        self.differs = any(m.form.initial for each in self.members.values() for m in each)
        self.nodes = {name: self._node(name) for name in self.members}
        forms = [lanes[block.learner(lane)].form for lane in range(self.width if own else 1)]
        self.gammas = side_by_side([form.gamma for form in forms])
        self.lams = side_by_side([form.lam for form in forms])
        values = self.members["value"][: self.values if own else 1]
        self.value_gammas = side_by_side([lane.form.gamma for lane in values])
        alone = block.shape.local and not block.shape.shared
        self.share = None if alone else block.share  # None: each lane has its own value node
        self.slot = np.full(k.ROWS, -1, dtype=np.int64)
        self.slot[block.rows] = np.arange(len(block.rows))
        self.scratch = [aligned(self.values) for _ in range(4)]
        self.scratch += [aligned(self.width) for _ in range(4)]

    def _has(self, name: str) -> bool:
        return name == "value" or getattr(self.block.shape, "centred" if name == "mean" else name)

    def _members(self, name: str) -> list[Lane]:
        """The learner whose node stands in each lane; lanes that fill up repeat the first."""
        if name == "value":
            columns, width, method = self.block.value_lanes, self.values, None
        else:
            columns, width = list(range(len(self.block.columns))), self.width
            method = "centred" if name == "mean" else name
        at = [columns[i] if i < len(columns) else columns[0] for i in range(width)]
        return [self.lanes[self.block.learner(column, method)] for column in at]

    def _node(self, name: str) -> Node:
        shape, place, members = self.block.shape, PLACE[name], self.members[name]
        kind, traced = shape.kind[place], shape.traced[place]
        learns = name != "value" or shape.learn
        features, lanes = members[0].form.features[place], len(members)
        size, local = features.size, shape.local
        settings = np.array([member.settings[place] for member in members])
        weights = (size, lanes)
        rows = None if local else features.rows()
        traced = traced and learns
        live = np.full(2 * size + 1, -1, dtype=np.int64)
        live[2 * size] = 0
        return Node(
            w=aligned(size + 1, lanes),
            p=_table(settings[:, 0]) if learns else None,
            q=_table(settings[:, 1]) if learns and kind in (DECAY, ADADELTA, AVERAGED) else None,
            first=aligned(*weights) if kind == ADADELTA else None,
            second=aligned(*weights) if kind == ADADELTA else None,
            visits=np.zeros(size) if kind in (DECAY, AVERAGED) else None,
            bound=aligned(lanes) if kind == ALPHA_BOUND else None,
            peak=aligned(lanes) if learns and not shape.safe else None,
            held=aligned(size + 1, lanes) if learns and kind == AVERAGED else None,
            trace=aligned(*weights) if traced else None,
            live=live if traced else None,
            phi=np.zeros(size) if traced else None,
            kappa=None if local else _table(settings[:, 2:].T),
            last=None if local else aligned(lanes),
            now=None if local else aligned(lanes),
            after=None if local else aligned(lanes),
            delta=None if local else aligned(lanes),
            own=aligned(2, lanes) if learns and kind == AVERAGED and not local else None,
            indptr=None if rows is None else rows.indptr,
            indices=None if rows is None else rows.indices,
            values=None if rows is None else rows.values,
            initial=None,
        )

    def nodes_for(self, runs: range) -> list[Node | None]:
        """The nodes with the initial values of these runs."""
        if self.differs or self.nodes["value"].initial is None:
            draws = Draws(self.seed)
            forms = {m.form.start: m.form for each in self.members.values() for m in each}
            found = {start: form.weights(runs, draws) for start, form in forms.items()}
            for name, members in self.members.items():
                initial = side_by_side([found[m.form.start][PLACE[name]] for m in members])
                self.nodes[name] = self.nodes[name]._replace(initial=initial)
        return [self.nodes.get(name) for name in PLACE]

    def rows(self) -> tuple[Any, ...]:
        """Features of the variance nodes; None where each state has its own weight."""
        if self.block.shape.local:
            return None, None, None
        return tuple(self.lanes[self.block.learner(0)].form.features[online.SECONDARY].rows())


def _table(numbers: Array) -> Array:
    out = aligned(*numbers.shape)
    out[:] = numbers
    return out
