"""The arrays in which a worker runs a block of lanes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.engine.blocks import Block
from retvar.engine.lane_nodes import Discounts, Lanes, Spread, Table
from retvar.engine.learner_setup import InitialDraws, LearnerSetup
from retvar.engine.shapes import DENSE, LOCAL, SPREAD, WIDTH, NodeShape
from retvar.engine.streams import Stream
from retvar.features import Features
from retvar.td.steps import averages, counts_visits, depends_on_errors, is_bounded

__all__ = ["Workspace", "aligned_zeros", "stack_lanes"]

Array = NDArray[np.float64]


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
        shape, self.width = block.shape, block.lanes
        self.values = -(-len(block.value_lanes) // shape.width) * shape.width
        self.members = [self._members(number) for number in range(len(shape.nodes))]
        self.differs = any(m.template.initial for each in self.members for m in each)
        self.nodes: list[Lanes] = [self._lanes(number) for number in range(len(shape.nodes))]
        self.discounts = self._discounts([setups[block.learner(i)] for i in range(self.width)])
        self.value_discounts = self._discounts(self.members[0])
        by_number = shape.form == SPREAD or shape.shared
        self.share = block.share if by_number else None  # None: one value node per lane

    def _members(self, number: int) -> list[LearnerSetup]:
        """Learner of the node in each lane; padding repeats the first."""
        columns, width, method = self.block.value_lanes, self.values, None
        if number > 0:
            columns, width = list(range(len(self.block.columns))), self.width
            networks = zip(self.block.columns[0], self.block.shape.networks, strict=True)
            method = next(name for name, network in networks if number in network)
        at = [columns[i] if i < len(columns) else columns[0] for i in range(width)]
        return [self.setups[self.block.learner(column, method)] for column in at]

    def _discounts(self, members: list[LearnerSetup]) -> Discounts:
        templates = [m.template for m in (members if self.block.shape.own else members[:1])]
        return Discounts(
            stack_lanes([template.gamma for template in templates]),
            stack_lanes([template.lam for template in templates]),
        )

    def _lanes(self, number: int) -> Lanes:
        """Arrays of a node; None where its shape needs none."""
        shape, members = self.block.shape, self.members[number]
        spec = shape.nodes[number]
        place, lanes, learns, kind = spec.node.place, len(members), spec.learns, spec.kind
        features = members[0].template.features[place]
        size, settings = features.size, np.array([member.settings[place] for member in members])
        rows = size + 1  # 0 for the end
        weights = (rows * lanes,) if shape.form == DENSE else (rows, lanes)
        averaged, by_errors = learns and averages(kind), learns and depends_on_errors(kind)
        counts = learns and counts_visits(kind)
        looked_up = shape.form == DENSE and spec.tabular
        return Lanes(
            table=self._table(features, spec),
            w=aligned_zeros(*weights),
            held=aligned_zeros(*weights) if averaged else None,
            p=_aligned_copy(settings[:, 0]) if learns else None,
            q=_aligned_copy(settings[:, 1]) if counts or by_errors else None,
            first=aligned_zeros(*weights) if by_errors else None,
            second=aligned_zeros(*weights) if by_errors else None,
            visits=np.zeros(size) if counts else None,
            rates=np.ones(size) if counts else None,
            powers=None,
            bound=aligned_zeros(lanes) if learns and is_bounded(kind) else None,
            peak=aligned_zeros(lanes) if learns and not shape.safe else None,
            used=aligned_zeros(self.stream.first.size, lanes) if shape.steps else None,
            reported=_last_features(features) if shape.steps else None,
            now=aligned_zeros(lanes) if looked_up else None,
            after=aligned_zeros(lanes) if looked_up else None,
            trace=aligned_zeros(*weights) if spec.traced else None,
            kappa=_aligned_copy(settings[:, 2:].T) if spec.traced else None,
            last=aligned_zeros(lanes) if spec.traced else None,
            spread=self._spread(number, size, lanes) if shape.form == SPREAD else None,
            initial=None,
            carried=None,
            ahead=None,
        )

    def _table(self, features: Features, spec: NodeShape) -> Table:
        if self.block.shape.form == SPREAD:
            return Table(None, *features.rows())
        if self.block.shape.form == LOCAL or spec.tabular:
            return Table(None, None, None, None)
        rows, states = features.rows(), self.stream.first.size
        dense = np.zeros((states + 1, features.size))
        dense[np.repeat(np.arange(states), np.diff(rows.indptr)), rows.indices] = rows.values
        return Table(dense.reshape(-1), None, None, None)

    def _spread(self, number: int, size: int, lanes: int) -> Spread:
        spec = self.block.shape.nodes[number]
        averaged = spec.learns and averages(spec.kind)
        live = np.full(2 * size + 1, -1, dtype=np.int64)
        live[2 * size] = 0
        there: list[Any] = [aligned_zeros(lanes) for _ in range(9)]
        if not self.block.shape.is_reread(number):
            there[6] = None
        if not averaged:
            there[7:] = None, None
        there += [np.zeros(size), live] if spec.traced else [None, None]
        return Spread(*there)

    def nodes_for(self, runs: range) -> tuple[Lanes, ...]:
        """Return the nodes with the initial values of these runs."""
        if self.differs or self.nodes[0].initial is None:
            draws = InitialDraws(self.seed)
            templates = {m.template.start: m.template for each in self.members for m in each}
            found = {start: template.weights(runs, draws) for start, template in templates.items()}
            for number, members in enumerate(self.members):
                place = self.block.shape.nodes[number].node.place
                initial = stack_lanes([found[m.template.start][place] for m in members])
                self.nodes[number] = self.nodes[number]._replace(initial=initial)
        return tuple(self.nodes)


def _last_features(features: Features) -> NDArray[np.int64]:
    """The last feature of each state; −1: it has none."""
    rows = features.rows()
    last = np.append(rows.indices, -1)[rows.indptr[1:] - 1]
    return np.where(np.diff(rows.indptr) > 0, last, -1)


def _aligned_copy(numbers: Array) -> Array:
    out = aligned_zeros(*numbers.shape)
    out[:] = numbers
    return out
