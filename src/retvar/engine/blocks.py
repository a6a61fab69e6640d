"""Group learners into blocks of lanes.

A block holds learners of one shape (estimand, step-size rules, with or without traces). A lane of a
block is one value node with one learner of each method of the block, so learners of different
methods with the same value node share it. With traces or features, where value nodes are expensive,
lanes also share equal value nodes. Without them (one weight per state, no traces) they share it
only if it is the same in all lanes, because computing it again is cheaper than a lookup.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.engine.kernel import WIDTH, Shape
from retvar.engine.learner_setup import PLAIN, Kind, LearnerSetup
from retvar.engine.streams import Stream
from retvar.initial_values import InitialValues
from retvar.networks import ESTIMATES, MEAN, NETWORKS, NODES, VALUE, VARIANCE
from retvar.online import memory_layout as online
from retvar.step_sizes import ADADELTA

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

    @property
    def lanes(self) -> int:
        """Number of lanes, including padding."""
        return int(self.share.size)

    @property
    def rows(self) -> list[int]:
        """Recorded quantities in the order of the kernel's slots."""
        has = self.shape.nodes
        return [row for row, made in enumerate(ESTIMATES) if has[made.node.code]]

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
    with_mean = sorted(kind for kind in by_kind if MEAN in NETWORKS[kind[0]].places)
    fitting = [kind for kind in with_mean if traced or not kind[2]]
    apart = [kind for kind in with_mean if kind not in fitting[:1]]
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
    means = [number for method, number in methods.items() if MEAN in NETWORKS[method].places]
    mean = setups[means[0]].rule(MEAN) if means else PLAIN
    rules = [one.rule(VALUE), mean, one.rule(VARIANCE)]
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
        nodes=tuple(any(node in NETWORKS[method].nodes for method in methods) for node in NODES),
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
        places = set(setup.template.learner.network.places)
        places -= set() if setup.template.learns_value else {VALUE}
        for node in places:
            ratio = largest_ratio if node == VALUE else rho_bar
            if setup.rule(node)[0] == ADADELTA or setup.settings[node, 0] * ratio > 1:
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
