"""The arrays of a block of learners on a GPU: what its threads are given, their memory, results."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.engine import cuda_fold
from retvar.engine.blocks import Block, Recording
from retvar.engine.cuda_device import Device
from retvar.engine.cuda_layout import Plan
from retvar.engine.cuda_views import Columns, Given, Has
from retvar.engine.learner_setup import InitialDraws
from retvar.engine.recorder import Batch, Scratch
from retvar.engine.shapes import DENSE, LOCAL, SPREAD
from retvar.engine.streams import Stream
from retvar.engine.workspace import Workspace
from retvar.jit import compiled
from retvar.networks import ESTIMATES
from retvar.td.steps import rate_at

__all__ = ["BlockArrays", "batch_shapes", "shortened"]

Array = NDArray[np.float64]
MOST_POWERS = 1 << 22  # visits whose powers are in a table
FEWEST_POWERS = 1 << 20  # … where runs are counted in episodes
NONE = (1,)  # shape of what is not needed


@compiled
def fill_rates(kind, q, out):
    """By what a step is divided after 0, 1, 2 … visits."""
    for n in range(out.size):
        out[n] = rate_at(kind, q, float(n))


def shortened(stream: Stream) -> Stream:
    """The stream with short integers without a sign."""
    short: list[Any] = [x.astype(np.uint32) if x.dtype == np.int64 else x for x in stream]
    return Stream(*short)


def batch_shapes(block: Block, recording: Recording, states: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the results of one run, but for lanes; (): they are not wanted."""
    rec, slots = recording, len(block.rows)
    points = (rec.points.size, slots)
    window = (slots, states) if rec.window else ()
    return {
        "estimates": (*points, rec.states.size),
        "rmse": points if rec.shares.size else (),
        "steps": (*points, rec.states.size) if rec.steps else (),
        "sums": window,
        "squares": window,
        "frozen_squares": window if not block.shape.learns_value else (),
        "changes": (slots, states) if rec.change else (),
        "diverged_at": () if block.shape.safe else (len(ESTIMATES),),
    }


DIMENSIONS = Batch(3, 2, 3, 2, 2, 2, 2, 1)  # of the results of a run, but for lanes


class BlockArrays:
    """Arrays of a block for launches of up to `runs` runs."""

    def __init__(self, device: Device, plan: Plan, workspace: Workspace, runs: int) -> None:
        self.device, self.plan, self.workspace = device, plan, workspace
        block, layout = workspace.block, plan.layout
        self.parts = block.lanes // (layout.group * layout.lanes)
        self.lanes = (self.parts, layout.lanes, layout.group)
        self.blocks = -(-runs * self.parts * layout.group // layout.threads)
        self.runs_at_once = runs
        self.runs = -(-self.blocks * layout.threads // (layout.group * self.parts))
        self.states = workspace.stream.first.size
        self.number = np.float32 if layout.bytes < 8 else np.float64

    def column_shapes(self, number: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the memory of a node in a thread; (): it has none."""
        shape, spec = self.plan.shape, self.plan.shape.nodes[number]
        has = Has.of(spec, shape.safe, shape.steps)
        size = self.workspace.members[number][0].template.features[spec.node.place].size
        lanes = shape.update(number).lanes
        weights = () if shape.form == DENSE else (size + 1, lanes)
        traced = has.traced and shape.form == SPREAD
        return {
            "w": weights if shape.form == SPREAD else (),
            "held": weights if has.averages else (),
            "first": weights if has.by_errors else (),
            "second": weights if has.by_errors else (),
            "trace": weights if has.traced else (),
            "visits": (size,) if has.counts else (),
            "rates": (size,) if has.counts else (),
            "used": (self.states, lanes) if has.steps else (),
            "phi": (size,) if traced else (),
            "live": (2 * size + 1,) if traced else (),
        }

    def scratch_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of what a thread remembers between steps, and of weights in global memory."""
        shape = self.plan.shape
        home = shape.form == LOCAL and not self.plan.layout.rows
        slots = len(self.workspace.block.rows)
        return {
            "home": (self.states + 1, len(shape.nodes), shape.lanes) if home else (),
            "previous": (slots, self.states, shape.lanes) if shape.change else (),
            "counted": (self.states,),
        }

    def bytes_of_a_run(self, recording: Recording) -> int:
        """Memory of a run on the GPU."""
        thread = sum(map(_size, self.scratch_shapes().values()))
        for number in range(len(self.plan.shape.nodes)):
            thread += sum(map(_size, self.column_shapes(number).values()))
        block = self.workspace.block
        results = sum(map(_size, batch_shapes(block, recording, self.states).values()))
        if self.workspace.differs:
            results += sum(len(m[0].template.memory.w) for m in self.workspace.members)
        if self.plan.frozen:
            results += 2 * self.states
        return 8 * (thread * self.parts * self.plan.layout.group + results * block.lanes)

    # ------------------------------------------------------------------ memory

    def columns(self, number: int) -> Columns:
        """Memory of a node for all threads."""
        dimensions = Columns(2, 2, 2, 2, 2, 1, 1, 2, 1, 1)
        found = {}
        for (name, shape), count in zip(
            self.column_shapes(number).items(), dimensions, strict=True
        ):
            dtype = np.int64 if name == "live" else self.number
            found[name] = self._memory(shape, count, dtype)
        for name in ("w", "held"):  # a weight after the end is never set
            if self.column_shapes(number)[name]:
                cuda_fold.clear(found[name])
        if self.column_shapes(number)["rates"]:
            cuda_fold.clear(found["rates"], 1.0)  # read before a first visit, too
        if self.column_shapes(number)["phi"]:
            cuda_fold.clear(found["phi"])
            cuda_fold.clear(found["trace"])
            cuda_fold.clear_lists(found["live"])
        return Columns(**found)

    def _memory(self, shape: tuple[int, ...], dimensions: int, dtype: Any) -> Any:
        if not shape:
            return self.device.dummy(*(1,) * (dimensions + 2), dtype=dtype)
        return self.device.empty(self.blocks, *shape, self.plan.layout.threads, dtype=dtype)

    def scratch(self) -> tuple[Any, Scratch]:
        """Weights in global memory, and what threads remember."""
        shapes = self.scratch_shapes()
        home = self._memory(shapes["home"], 3, self.number)
        counted = self._memory(shapes["counted"], 1, np.int64)
        return home, Scratch(
            self.device.empty(1), self._memory(shapes["previous"], 3, self.number), counted
        )

    def results(self, recording: Recording) -> Batch:
        """Results of the runs of a launch, not initialised."""
        found = {}
        shapes = batch_shapes(self.workspace.block, recording, self.states)
        for (name, shape), count in zip(shapes.items(), DIMENSIONS, strict=True):
            dtype = np.int64 if name == "diverged_at" else np.float64
            whole = (self.runs, *shape) if shape else (1,) * (count + 1)
            make = self.device.empty if shape else self.device.dummy
            found[name] = make(*whole, *self.lanes, dtype=dtype)
        return Batch(**found)

    # ------------------------------------------------------------------ what nodes are given

    def given(self, number: int, steps: int, by_step: bool) -> Given:
        """What a node is given, but for its initial values; to be put on the GPU."""
        node, shape = self.workspace.nodes[number], self.plan.shape
        has = Has.of(shape.nodes[number], shape.safe, shape.steps)
        table, lanes = node.table, self._lanes_of(number)
        powers = None
        if has.counts:
            most = min(steps + 2, MOST_POWERS) if by_step else FEWEST_POWERS
            powers = np.empty(most)
            fill_rates(shape.nodes[number].kind, float(node.q[0]), powers)
        kappa = None if node.kappa is None else node.kappa.reshape(-1, *lanes)
        settings = [None if x is None else x.reshape(lanes) for x in (node.p, node.q)]
        p, q = (self._there(x, *lanes) for x in settings)
        integers = (table.indptr, table.indices, node.reported)
        indptr, indices, reported = (self._there(x, 1, dtype=np.int64) for x in integers)
        features, values = self._there(table.features, 1), self._there(table.values, 1)
        return Given(
            p, q, self._there(kappa, 1, *lanes), self._there(None, 1, 1, *lanes), features, indptr,
            indices, values, reported, self._there(powers, 1),
        )  # fmt: skip

    def _there(self, x: Any, *shape: int, dtype: Any = None) -> Any:
        """An array of numbers or `dtype`; one of no use on the GPU if there is none."""
        dtype = self.number if dtype is None else dtype
        if x is None or x.size == 0:
            return self.device.dummy(*shape, dtype=dtype)
        return x.astype(dtype, copy=False)

    def _lanes_of(self, number: int) -> tuple[int, ...]:
        return (1, 1, 1) if self.plan.shape.shared and number == 0 else self.lanes

    def initial_weights(self, runs: range) -> list[Any]:
        """Initial weights of the nodes [run or one for all, weight, part, lane, member]."""
        draws, found = InitialDraws(self.workspace.seed), {}
        for member in (m for members in self.workspace.members for m in members):
            template = member.template
            if template.start not in found:
                some = runs if template.initial else range(1)
                found[template.start] = template.weights(some, draws)
        tables = [self._tables(number, found) for number in range(len(self.workspace.members))]
        return [
            self._expanded(each, which, self._lanes_of(number))
            for number, (each, which) in enumerate(self.device.put_all(tables))
        ]

    def _tables(self, number: int, found: dict[Any, list[Array]]) -> tuple[Array, Any]:
        """Distinct initial weights of a node, and which of them each lane has."""
        place = self.plan.shape.nodes[number].node.place
        starts = [member.template.start for member in self.workspace.members[number]]
        numbers = {start: k for k, start in enumerate(dict.fromkeys(starts))}
        tables = _distinct([found[start][place] for start in numbers], self.number)
        return tables, np.array([numbers[start] for start in starts])

    def per_run(self, tables: list[Array]) -> Any:
        """Tables of each lane [run or one for all, state] as [run or one, state, part, …]."""
        distinct = {id(table): table for table in tables}
        which = np.array([list(distinct).index(id(table)) for table in tables])
        given, which = self.device.put_all((_distinct(list(distinct.values()), self.number), which))
        return self._expanded(given, which, self.lanes)

    def _expanded(self, tables: Any, which: Any, lanes: tuple[int, ...]) -> Any:
        count = self.runs if tables.shape[1] > 1 else 1
        out = self.device.empty(count, tables.shape[2], math.prod(lanes), dtype=self.number)
        cuda_fold.expand(tables, which, out)
        return out.reshape(count, tables.shape[2], *lanes)


def _size(shape: tuple[int, ...]) -> int:
    return math.prod(shape) if shape else 0


def _distinct(tables: list[Array], number: Any) -> Any:
    """Tables [run or one for all, weight] as one array; single rows are repeated."""
    shape = len(tables), max(map(len, tables)), tables[0].shape[1]
    found = np.empty(shape, dtype=number)
    for at, table in enumerate(tables):
        found[at] = table
    return found
