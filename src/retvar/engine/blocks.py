"""Group learners into blocks of lanes.

A block holds learners of one shape (estimand, step-size rules, with or without traces). A lane of a
block is one value node with one learner of each method of the block, so learners of different
methods with the same value node share it. In the spread form, where value nodes are expensive,
lanes also share equal value nodes. In the local form they share it only if it is the same in all
lanes, and in the dense form not at all, because computing it again is cheaper than a lookup.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.engine.learner_setup import Kind, LearnerSetup
from retvar.engine.recorder import rows_of
from retvar.engine.shapes import DENSE, LOCAL, MOST_WEIGHTS, SPREAD, WIDTH, NodeShape, Shape
from retvar.engine.streams import Stream
from retvar.features import States
from retvar.initial_values import InitialValues
from retvar.networks import VALUE, VARIANCE
from retvar.online import memory_layout as online
from retvar.td.steps import depends_on_errors

__all__ = ["Block", "Recording", "plan_blocks"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
MOST_LANES = 512  # in a block, so that its arrays fit in the CPU caches
LONGEST = 1e15  # upper bound on the number of steps of a run


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
    layout: Any = None  #: on a GPU; see :mod:`retvar.engine.cuda_layout`

    @property
    def lanes(self) -> int:
        """Number of lanes, including padding."""
        return int(self.share.size)

    @property
    def rows(self) -> list[int]:
        """Recorded quantities in the order of the kernel's slots."""
        return [row.number for row in rows_of(self.shape)]

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

    A learner that has a trace where others of its shape have none gets its own column, because a
    trace would change how the others are computed.
    """
    fitting = sorted(kind for kind in by_kind if traced or not any(rule[1] for rule in kind[2]))
    first_of = {kind[0]: kind for kind in reversed(fitting)}
    together = sorted(first_of.values())
    apart = sorted(set(by_kind) - set(together))
    for kinds in [*([together] if together else []), *([kind] for kind in apart)]:
        for numbers in zip_longest(*(by_kind[kind] for kind in kinds)):
            pairs = zip(kinds, numbers, strict=True)
            there = {kind: number for kind, number in pairs if number is not None}
            yield tuple(there), {kind[0]: number for kind, number in there.items()}


def _nodes(
    learners: list[LearnerSetup],
) -> tuple[int, tuple[tuple[int, ...], ...], tuple[NodeShape, ...]]:
    """Form, networks and nodes of the learners of a lane."""
    found: dict[int, tuple[LearnerSetup, int]] = {}  # code → learner, place
    for setup in learners:
        for node in setup.template.learner.network.nodes:
            found.setdefault(node.code, (setup, node.place))
    found = dict(sorted(found.items()))
    features = {code: setup.template.features[place] for code, (setup, place) in found.items()}
    tabular = {code: isinstance(each, States) for code, each in features.items()}
    rules = {code: setup.rule(place) for code, (setup, place) in found.items()}
    form = SPREAD
    if all(tabular.values()) and not any(traced for _, traced, _ in rules.values()):
        form = LOCAL
    elif all(each.size <= MOST_WEIGHTS for each in features.values()):
        form = DENSE
    nodes = tuple(
        NodeShape(
            code, kind, place != VALUE or setup.template.learns_value, traced,
            features[code].size if form == DENSE else 0, tabular[code],
        )
        for (code, (setup, place)), (kind, traced, _) in zip(
            found.items(), rules.values(), strict=True
        )
    )  # fmt: skip
    number = {code: k for k, code in enumerate(found)}
    networks = tuple(
        tuple(number[node.code] for node in setup.template.learner.network.nodes)
        for setup in learners
    )
    return form, networks, nodes


def _block(
    setups: list[LearnerSetup], columns: list[dict[str, int]], stream: Stream, recording: Recording
) -> Block:
    members = [setups[next(iter(column.values()))] for column in columns]
    one = members[0]
    form, networks, nodes = _nodes([setups[number] for number in columns[0].values()])
    keys: dict[tuple[Any, ...], int] = {}
    group = group_width(form, len(columns))
    width = -(-len(columns) // group) * group
    for column, member in enumerate(members):
        keys.setdefault(member.value_node, column)
    shared = form == LOCAL and len(keys) == 1
    if form == SPREAD or shared:
        value_lanes = list(keys.values())
        number = {key: i for i, key in enumerate(keys)}
        share = np.zeros(width, dtype=np.int64)
        share[: len(members)] = [number[member.value_node] for member in members]
    else:
        value_lanes, share = list(range(len(columns))), np.arange(width, dtype=np.int64)
    off_policy = one.template.learner.estimand == "off_policy_return"
    learners = [setups[i] for column in columns for i in column.values()]
    shape = Shape(
        networks=networks,
        nodes=nodes,
        form=form,
        width=group,
        off_policy=off_policy,
        weighted=stream.weighted,
        noisy=stream.noisy,
        shared=shared,
        own=len({member.template.solution_key for member in members}) > 1,
        safe=form == LOCAL and _safe(learners, stream, off_policy),
        change=recording.change,
        steps=recording.steps,
    )
    return Block(shape, columns, value_lanes, share)


def group_width(form: int, lanes: int) -> int:
    """Lanes in a group: few in the dense form if there are few, because padding costs as much.

    >>> group_width(DENSE, 1), group_width(DENSE, 3), group_width(DENSE, 56), group_width(LOCAL, 1)
    (1, 4, 8, 8)
    """
    return min(WIDTH, 1 << (lanes - 1).bit_length()) if form == DENSE else WIDTH


def _safe(members: list[LearnerSetup], stream: Stream, off_policy: bool) -> bool:
    """Whether weights provably stay below LIMIT in a run of any length.

    Without traces a weight becomes (1 − a)w + a(R̄ + γ̄w′), a = step × ratio. With a and γ̄ in [0, 1]
    it grows by at most the largest R̄ in each step, and R̄ is bounded by rewards and values.
    """
    largest_ratio = float(stream.rho.max())
    eta, rho_bar = (largest_ratio, 1.0) if off_policy else (1.0, largest_ratio)
    reward = float(np.max(np.abs(stream.reward) + 9 * stream.noise))
    for setup in members:
        places = set(setup.template.learner.network.places)
        if max(places) > VARIANCE:  # rewards of higher orders
            return False
        places -= set() if setup.template.learns_value else {VALUE}
        for node in places:
            ratio = largest_ratio if node == VALUE else rho_bar
            if depends_on_errors(setup.rule(node)[0]) or setup.settings[node, 0] * ratio > 1:
                return False
    for template in {setup.template for setup in members}:
        if np.max(eta * template.gamma * template.lam) > 1:
            return False
        start = float(np.abs(template.memory.w).max())
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
