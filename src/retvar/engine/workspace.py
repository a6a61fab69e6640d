"""The arrays in which a worker runs a block of lanes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar import networks
from retvar.engine.blocks import Block
from retvar.engine.kernel import WIDTH, Node
from retvar.engine.learner_setup import InitialDraws, LearnerSetup
from retvar.engine.streams import Stream
from retvar.networks import ESTIMATES, NETWORKS, NODES, VALUE, VARIANCE
from retvar.step_sizes import ADADELTA, ALPHA_BOUND, AVERAGED, DECAY

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
        self.width = block.lanes
        self.values = -(-len(block.value_lanes) // WIDTH) * WIDTH
        own = block.shape.own
        self.members = {node: self._members(node) for node in NODES if self._has(node)}
        self.differs = any(m.template.initial for each in self.members.values() for m in each)
        self.nodes = {node: self._node(node) for node in self.members}
        templates = [
            setups[block.learner(lane)].template for lane in range(self.width if own else 1)
        ]
        self.gammas = stack_lanes([template.gamma for template in templates])
        self.lams = stack_lanes([template.lam for template in templates])
        values = self.members[NODES[0]][: self.values if own else 1]
        self.value_gammas = stack_lanes([lane.template.gamma for lane in values])
        alone = block.shape.local and not block.shape.shared
        self.share = None if alone else block.share  # None: one value node per lane
        self.slot = np.full(len(ESTIMATES), -1, dtype=np.int64)
        self.slot[block.rows] = np.arange(len(block.rows))
        self.scratch = [aligned_zeros(self.values) for _ in range(4)]
        self.scratch += [aligned_zeros(self.width) for _ in range(4)]

    def _has(self, node: networks.Node) -> bool:
        return self.block.shape.nodes[node.code]

    def _members(self, node: networks.Node) -> list[LearnerSetup]:
        """Learner of the node in each lane; padding repeats the first."""
        columns, width, method = self.block.value_lanes, self.values, None
        if node.place != VALUE:
            columns, width = list(range(len(self.block.columns))), self.width
            method = next(m for m in self.block.columns[0] if node in NETWORKS[m].nodes)
        at = [columns[i] if i < len(columns) else columns[0] for i in range(width)]
        return [self.setups[self.block.learner(column, method)] for column in at]

    def _node(self, node: networks.Node) -> Node:
        shape, place, members = self.block.shape, node.place, self.members[node]
        kind, traced = shape.kind[place], shape.traced[place]
        learns = place != VALUE or shape.learn
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
        if self.differs or self.nodes[NODES[0]].initial is None:
            draws = InitialDraws(self.seed)
            templates = {
                m.template.start: m.template for each in self.members.values() for m in each
            }
            found = {start: template.weights(runs, draws) for start, template in templates.items()}
            for node, members in self.members.items():
                initial = stack_lanes([found[m.template.start][node.place] for m in members])
                self.nodes[node] = self.nodes[node]._replace(initial=initial)
        return [self.nodes.get(node) for node in NODES[:5]]  # those that the kernel knows

    def rows(self) -> tuple[Any, ...]:
        """Features of the variance nodes; None if each state has its own weight."""
        if self.block.shape.local:
            return None, None, None
        return tuple(self.setups[self.block.learner(0)].template.features[VARIANCE].rows())


def _aligned_copy(numbers: Array) -> Array:
    out = aligned_zeros(*numbers.shape)
    out[:] = numbers
    return out
