"""The arrays of an online estimator, packed for the compiled update.

    ints     0–15 plan; 16–19 ends of the parts of floats; 20–23 state, next state, flags, stream
    floats   0–3 reward, ρ, γ, λ; then settings, gammas, lams, cells, report

Both are views of one buffer, so that one call writes a transition.

Only `cells`, `traces`, `scales` and `report` change while learning. The rest follows from the
description, and the list of weights with a trace (`live`) follows from the traces.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.errors import InputError
from retvar.features import Features, Rows, States
from retvar.online import lazy_traces, memory_layout
from retvar.step_sizes import ADADELTA, ALPHA_BOUND, AVERAGED

__all__ = ["Memory", "memory_of", "static_rows"]

METHODS = {
    "direct": memory_layout.DIRECT,
    "vtd": memory_layout.VTD,
    "centred": memory_layout.CENTRED,
}

Array = NDArray[np.float64]
Integers = NDArray[np.int64]


class Memory:
    """Packed arrays with named views."""

    def __init__(
        self,
        plan: Integers,
        settings: Array,
        gammas: Array,
        lams: Array,
        cells: Array,
    ) -> None:
        parts = [np.zeros(4), settings.ravel(), gammas, lams, cells.ravel(), np.zeros(6)]
        ends = np.cumsum([part.size for part in parts])
        self.buffer: Array = np.concatenate([np.zeros(24), *parts])
        self.floats = self.buffer[24:]
        self.ints: Integers = self.buffer[:24].view(np.int64)
        self.ints[:16] = plan.ravel()
        self.ints[16:20] = ends[1:5]
        self.plan = self.ints[:16].reshape(4, 4)
        self.settings = self.floats[ends[0] : ends[1]].reshape(settings.shape)
        self.gammas = self.floats[ends[1] : ends[2]]
        self.lams = self.floats[ends[2] : ends[3]]
        self.cells = self.floats[ends[3] : ends[4]].reshape(-1, 4)
        self.report = self.floats[ends[4] :]
        self.traces = np.zeros((0, self.cells.shape[0] + 3))
        self.live = np.zeros((0, 2 * self.cells.shape[0] + 3), dtype=np.int64)
        self.scales: Array | None = None
        if (self.plan[:3, memory_layout.TRACED] == memory_layout.LAZY).any():
            self.scales = np.zeros((memory_layout.DEFERRED_STREAMS + 1, 3, 2))
            self.scales[:, :, memory_layout.SCALE] = 1.0
            lazy_traces.fill_steps(self.plan, self.settings, self.cells)
        self.grow(1)

    @property
    def streams(self) -> int:
        """Number of streams with traces."""
        return int(self.traces.shape[0])

    def grow(self, streams: int) -> None:
        """Add traces for more streams; existing traces do not change."""
        total = self.cells.shape[0]
        fresh = streams - self.streams
        live = np.full((fresh, 2 * total + 3), -1, dtype=np.int64)
        live[:, 2 * total :] = 0
        self.live = np.concatenate([self.live, live])
        self.traces = np.concatenate([self.traces, np.zeros((fresh, total + 3))])

    def adopt(self, traces: Array) -> None:
        """Copy traces and list the weights where they are not 0."""
        self.traces = np.zeros((0, traces.shape[1]))
        self.live = self.live[:0]
        self.grow(traces.shape[0])
        self.traces[:] = traces
        total = self.cells.shape[0]
        ends = [*self.plan[1:3, memory_layout.OFFSET], total]
        for stream in range(self.streams):
            for node, end in enumerate(ends):
                offset = self.plan[node, memory_layout.OFFSET]
                reached = np.flatnonzero(self.traces[stream, offset:end])
                self.live[stream, offset : offset + reached.size] = reached
                self.live[stream, total + offset + reached] = np.arange(reached.size)
                self.live[stream, 2 * total + node] = reached.size

    def part(self, node: int) -> slice:
        """Slice of the weights of a node."""
        ends = [*self.plan[1:3, memory_layout.OFFSET], self.cells.shape[0]]
        return slice(int(self.plan[node, memory_layout.OFFSET]), int(ends[node]))

    def weights(self, node: int, at: Integers | slice = slice(None)) -> Array:
        """Weights of a node, all or some: a view, or a copy if its trace is lazy."""
        own = self.cells[self.part(node)][at]
        found: Array = own[:, memory_layout.WEIGHT]
        if self.plan[node, memory_layout.KIND] != AVERAGED:
            for stream, A in enumerate(self.sums(node)):
                trace = self.traces[stream, self.part(node)][at]
                found = found + own[:, memory_layout.STEP] * trace * A
        return found

    def sums(self, node: int) -> list[float]:
        """A of each stream whose lazy updates are deferred."""
        if self.scales is None or self.plan[node, memory_layout.TRACED] != memory_layout.LAZY:
            return []
        found: list[float] = self.scales[
            : memory_layout.DEFERRED_STREAMS, node, memory_layout.SUM
        ].tolist()
        return found[: self.streams]

    def sensitivity(self, node: int, stream: int, rows: Rows) -> Array:
        """Σ αeφ of each row: the change of its prediction when A of the stream grows by 1."""
        at = self.part(node).start + rows.indices
        terms = rows.values * self.cells[at, memory_layout.STEP] * self.traces[stream, at]
        count = rows.indptr.size - 1
        row = np.repeat(np.arange(count), np.diff(rows.indptr))
        found: Array = np.bincount(row, terms, count).astype(np.float64)
        return found


def _plan(
    method: int, off_policy: bool, learn_value: bool, features: list[Features], rules: list[int]
) -> Integers:
    """Return the plan array; see :mod:`retvar.online.memory_layout`."""
    plan = np.zeros((4, 4), dtype=np.int64)
    plan[:3, memory_layout.OFFSET] = np.cumsum([0, *(f.size for f in features[:2])])
    plan[:3, memory_layout.KIND] = rules
    plan[3] = method, off_policy, learn_value, 0
    return plan


def memory_of(description: Any, features: list[Features]) -> Memory:
    """Allocate the arrays of a learner for the compiled update."""
    count = features[0].states
    nodes = description.nodes(tabular=all(isinstance(f, States) for f in features))
    plan = _plan(
        METHODS[description.method],
        description.estimand == "off_policy_return",
        description.learn_value,
        features,
        [node.step.kind for node in nodes],
    )
    plan[3, memory_layout.COUNT] = count or 0
    for node in nodes:
        if np.size(node.kappa) not in (1, count):
            raise InputError("kappa", f"{np.size(node.kappa)} numbers", f"must be one or {count}")
    kappas = np.stack(np.broadcast_arrays(*(np.atleast_1d(node.kappa) for node in nodes)))
    bounded = plan[:3, memory_layout.KIND] == ALPHA_BOUND
    plan[:3, memory_layout.TRACED] = kappas.any(axis=1) | bounded
    if count is None:  # not Adadelta, whose steps depend on each error
        lazily = (plan[:3, memory_layout.TRACED] > 0) & (plan[:3, memory_layout.KIND] != ADADELTA)
        plan[:3, memory_layout.TRACED][lazily] = memory_layout.LAZY
    rates = np.array([node.step.parameters() for node in nodes])
    cells = np.concatenate(
        [_cells(node, f) for node, f in zip(nodes, features, strict=True)], axis=0
    )
    return Memory(
        plan,
        np.concatenate([rates, kappas], axis=1),
        _per_state("gamma", description.gamma, count),
        _per_state("lam", description.lam, count),
        cells,
    )


def _cells(node: Any, features: Features) -> Array:
    cells = np.zeros((features.size, 4))
    initial = np.asarray(node.initial, dtype=np.float64)
    if initial.ndim and initial.shape != (features.size,):
        raise InputError(
            node.initial_name, f"{initial.size} numbers", f"must be one or {features.size}"
        )
    if initial.ndim == 0 and initial != 0 and not isinstance(features, States):
        raise InputError(
            node.initial_name,
            float(initial),
            f"with features, give the {features.size} weights to start from",
        )
    if not np.all(np.abs(initial) <= memory_layout.LIMIT):
        raise InputError(node.initial_name, "too large", f"must stay below {memory_layout.LIMIT:g}")
    cells[:, memory_layout.WEIGHT] = initial + 0.0  # no −0
    cells[:, memory_layout.FIRST], cells[:, memory_layout.SECOND] = node.step.initial()
    if node.step.kind == AVERAGED:  # the weight; WEIGHT is its mean
        cells[:, memory_layout.SECOND] = cells[:, memory_layout.WEIGHT]
    return cells


def _per_state(field: str, given: Any, count: int | None) -> Array:
    if given is None:
        return np.zeros(0)
    array = np.atleast_1d(np.asarray(given, dtype=np.float64))
    if array.size > 1 and array.size != count:
        what = "one number" if count is None else f"one number or {count} of them"
        raise InputError(field, f"{array.size} numbers", f"must be {what}")
    return array


def static_rows(features: list[Features], memory: Memory) -> Rows | None:
    """Return the rows of all states for all nodes; None if each state has its own weight."""
    if features[0].states is None or all(isinstance(f, States) for f in features):
        return None
    if all(f is features[0] for f in features):
        return features[0].rows()
    parts = [f.rows() for f in features]
    shift = np.cumsum([0, *(p.values.size for p in parts)])
    indptr = np.concatenate([p.indptr + k for p, k in zip(parts, shift, strict=False)])
    count = features[0].states + 1
    memory.plan[:3, memory_layout.ROWS] = [0, count, 2 * count]
    return Rows(
        indptr,
        np.concatenate([p.indices for p in parts]),
        np.concatenate([p.values for p in parts]),
    )
