"""The arrays of an online estimator, packed for the compiled update.

    ints     the plan; the ends of the parts of floats; counts; state, next state, flags, stream
    floats   0–3 reward, ρ, γ, λ; then settings, gammas, lams, weights, held, steps, report

Both are views of one buffer, so that one call writes a transition. With bootstrap replicates the
arrays that have lanes are separate, and transitions come in columns.

Only `weights`, `held`, `steps`, `traces`, `scales`, `sums` and `report` change while learning. The
rest follows from the description, and the list of weights with a trace (`live`) follows from the
traces.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.errors import InputError
from retvar.features import Features, Rows, States
from retvar.networks import THIRD, network_of
from retvar.online import lazy_traces, memory_layout
from retvar.online.kernel import COUNTS, ENDS, INPUT, INTS
from retvar.online.memory_layout import Arrays
from retvar.td.feeds import Said
from retvar.td.steps import averages, depends_on_errors, is_bounded

__all__ = ["Memory", "memory_of", "static_rows"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
_REPORT = 2 * memory_layout.LEARNER


class Memory:
    """Packed arrays with named views; see :mod:`retvar.online.memory_layout`."""

    def __init__(
        self, plan: Integers, settings: Array, gammas: Array, lams: Array, weights: Array,
        held: Array, steps: Array,
    ) -> None:  # fmt: skip
        parts = [np.zeros(4), settings, gammas, lams, weights, held, steps, np.zeros(_REPORT)]
        ends = np.cumsum([part.size for part in parts])
        self.buffer: Array = np.concatenate([np.zeros(INTS), *(part.ravel() for part in parts)])
        self.floats = self.buffer[INTS:]
        self.ints: Integers = self.buffer[:INTS].view(np.int64)
        self.ints[:ENDS] = plan.ravel()
        self.ints[ENDS:COUNTS] = ends[1:7]
        self.counts = self.ints[COUNTS:INPUT]
        self.plan = self.ints[:ENDS].reshape(memory_layout.PLAN)
        views = [
            self.floats[first:last].reshape(part.shape)
            for first, last, part in zip(ends[:-1], ends[1:], parts[1:], strict=True)
        ]
        self.settings, self.gammas, self.lams, self.w, self.held, self.steps = views[:6]
        self.report = views[6]
        self.said: Said | None = None
        self.places = len(settings)
        self.traces = np.zeros((0, self.steps.shape[0] + self.places))
        self.live = np.zeros((0, 2 * self.steps.shape[0] + self.places), dtype=np.int64)
        self.coins: Array | None = None
        self.draws: NDArray[np.uint64] | None = None
        self.scales: Array | None = None
        self.sums: Array | None = None
        if (self.plan[: self.places, memory_layout.TRACED] == memory_layout.LAZY).any():
            self.scales = np.ones((memory_layout.DEFERRED_STREAMS + 1, self.places))
            self.sums = np.zeros((memory_layout.DEFERRED_STREAMS + 1, self.places, 1))
        lazy_traces.fill_steps(self.plan, self.settings, self.steps)
        self.grow(1)

    def arrays(self) -> Arrays:
        """The arrays as compiled functions take them."""
        return Arrays(
            self.plan, self.settings, self.w, self.held, self.steps, self.traces, self.live,
            self.scales, self.sums, self.report, self.coins, self.draws, self.said, self.counts,
            self.moments,
        )  # fmt: skip

    def add_replicates(self, count: int, draws: NDArray[np.uint64]) -> None:
        """Add lanes that start as the estimator does; arrays with lanes are then separate."""
        lanes = 1 + count
        self.w = np.repeat(self.w, lanes, axis=1)
        self.held = np.repeat(self.held, lanes, axis=1)
        by_place, of_one = (
            (np.zeros((self.places, lanes)) for _ in range(4)),
            (np.zeros(lanes) for _ in range(4)),
        )
        self.said = Said(*by_place, *of_one)
        if self.sums is not None:
            self.sums = np.repeat(self.sums, lanes, axis=2)
        self.coins, self.draws = np.ones(lanes), draws

    @property
    def moments(self) -> bool | None:
        """True if there are nodes of higher moments, otherwise None, as compiled code wants it."""
        return True if self.places > THIRD else None

    @property
    def lanes(self) -> int:
        """The estimator and its replicates."""
        return int(self.w.shape[1])

    @property
    def streams(self) -> int:
        """Number of streams with traces."""
        return int(self.traces.shape[0])

    def grow(self, streams: int) -> None:
        """Add traces for more streams; existing traces do not change."""
        total = self.steps.shape[0]
        fresh = streams - self.streams
        live = np.full((fresh, 2 * total + self.places), -1, dtype=np.int64)
        live[:, 2 * total :] = 0
        self.live = np.concatenate([self.live, live])
        self.traces = np.concatenate([self.traces, np.zeros((fresh, total + self.places))])

    def adopt(self, traces: Array) -> None:
        """Copy traces and list the weights where they are not 0."""
        self.traces = np.zeros((0, traces.shape[1]))
        self.live = self.live[:0]
        self.grow(traces.shape[0])
        self.traces[:] = traces
        total = self.steps.shape[0]
        for stream in range(self.streams):
            for place in range(self.places):
                part = self.part(place)
                reached = np.flatnonzero(self.traces[stream, part])
                self.live[stream, part.start : part.start + reached.size] = reached
                self.live[stream, total + part.start + reached] = np.arange(reached.size)
                self.live[stream, 2 * total + place] = reached.size

    def part(self, place: int) -> slice:
        """Slice of the weights of a node."""
        ends = [*self.plan[1 : self.places, memory_layout.OFFSET], self.steps.shape[0]]
        return slice(int(self.plan[place, memory_layout.OFFSET]), int(ends[place]))

    def begin_rows(self, first: list[int]) -> None:
        """Set the first row of the features of value, mean and variance; moments have the last."""
        self.plan[:THIRD, memory_layout.ROWS] = first
        self.plan[THIRD : memory_layout.LEARNER, memory_layout.ROWS] = first[-1]

    def averages(self, place: int) -> bool:
        """Whether a node predicts from means of the weights that learn."""
        return averages(int(self.plan[place, memory_layout.KIND]))

    def is_lazy(self, place: int) -> bool:
        """Whether a node has lazy traces."""
        return bool(self.plan[place, memory_layout.TRACED] == memory_layout.LAZY)

    def learning(self, place: int) -> Array:
        """What learns in a node [weight, lane]."""
        return (self.held if self.averages(place) else self.w)[self.part(place)]

    def weights(self, place: int, at: Integers | slice = slice(None)) -> Array:
        """Weights of a node, all or some: a view, or a copy if its trace is lazy."""
        own = self.part(place)
        found: Array = self.w[own][at][:, 0]
        if not self.averages(place):
            for stream, A in enumerate(self.deferred(place)):
                steps = self.steps[own][at][:, memory_layout.STEP]
                found = found + steps * self.traces[stream, own][at] * A[0]
        return found

    def deferred(self, place: int) -> Array:
        """A of each stream whose lazy updates are deferred [stream, lane]."""
        if self.sums is None or not self.is_lazy(place):
            return np.zeros((0, self.lanes))
        found: Array = self.sums[: min(memory_layout.DEFERRED_STREAMS, self.streams), place]
        return found

    def sensitivity(self, place: int, stream: int, rows: Rows) -> Array:
        """Σ αeφ of each row: the change of its prediction when A of the stream grows by 1."""
        at = self.part(place).start + rows.indices
        terms = rows.values * self.steps[at, memory_layout.STEP] * self.traces[stream, at]
        count = rows.indptr.size - 1
        row = np.repeat(np.arange(count), np.diff(rows.indptr))
        found: Array = np.bincount(row, terms, count).astype(np.float64)
        return found

    def clone(self) -> Memory:
        """An independent copy."""
        m = Memory(
            self.plan, self.settings, self.gammas, self.lams, self.w[:, :1], self.held[:, :1],
            self.steps,
        )  # fmt: skip
        m.adopt(self.traces)
        m.report[:], m.counts[:] = self.report, self.counts
        if self.coins is not None and self.draws is not None:
            m.add_replicates(self.lanes - 1, self.draws.copy())
            m.w[:], m.held[:] = self.w, self.held
        if m.scales is not None and m.sums is not None:
            m.scales[:], m.sums[:] = self.scales, self.sums
        return m


def _plan(description: Any, features: list[Features], rules: list[int]) -> Integers:
    """Return the plan array; see :mod:`retvar.online.memory_layout`."""
    plan = np.zeros(memory_layout.PLAN, dtype=np.int64)
    network = network_of(description)
    places = network.place_count
    plan[:places, memory_layout.OFFSET] = [*accumulate((f.size for f in features[:-1]), initial=0)]
    plan[:places, memory_layout.KIND] = rules
    plan[:, memory_layout.CODE] = -1
    for node in network.nodes:
        plan[node.place, memory_layout.CODE] = node.code
        plan[node.place, memory_layout.BY_RHO] = node.by_rho
        if node.reads_updated:
            plan[node.reads, memory_layout.AGAIN] = 1
    own = plan[memory_layout.LEARNER]
    own[memory_layout.OFF_POLICY] = description.estimand == "off_policy_return"
    own[memory_layout.LEARN_VALUE] = description.learn_value
    own[memory_layout.COUNT] = features[0].states or 0
    own[memory_layout.PLACE_COUNT] = places
    return plan


def memory_of(description: Any, features: list[Features]) -> Memory:
    """Allocate the arrays of a learner for the compiled update."""
    size = max(each.size for each in features)
    try:
        return _allocated(description, features)
    except (MemoryError, OverflowError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError("states", f"{size:,} weights", "do not fit in memory; use fewer") from None


def _allocated(description: Any, features: list[Features]) -> Memory:
    count = features[0].states
    nodes = description.nodes(tabular=all(isinstance(f, States) for f in features))
    kinds = [node.step.kind for node in nodes]
    plan = _plan(description, features, kinds)
    for node in nodes:
        if np.size(node.kappa) not in (1, count):
            raise InputError("kappa", f"{np.size(node.kappa)} numbers", f"must be one or {count}")
    kappas = np.stack(np.broadcast_arrays(*(np.atleast_1d(node.kappa) for node in nodes)))
    by_place = plan[: len(nodes)]
    bounded = np.array([is_bounded(kind) for kind in kinds])
    by_place[:, memory_layout.TRACED] = kappas.any(axis=1) | bounded
    if count is None:
        lazily = (by_place[:, memory_layout.TRACED] > 0) & ~np.array(
            [depends_on_errors(kind) for kind in kinds]
        )
        by_place[:, memory_layout.TRACED][lazily] = memory_layout.LAZY
    rates = np.array([node.step.parameters() for node in nodes])
    weights = np.concatenate([_initial(node, f) for node, f in zip(nodes, features, strict=True)])
    has_means = any(map(averages, kinds))
    steps = [
        np.tile([*node.step.initial(), 0.0, 0.0], (f.size, 1))
        for node, f in zip(nodes, features, strict=True)
    ]
    return Memory(
        plan,
        np.concatenate([rates, kappas], axis=1),
        _per_state("gamma", description.gamma, count),
        _per_state("lam", description.lam, count),
        weights[:, None],
        weights[:, None] if has_means else np.zeros((0, 1)),
        np.concatenate(steps),
    )


def _initial(node: Any, features: Features) -> Array:
    """Initial weights of a node."""
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
    return np.broadcast_to(initial + 0.0, features.size)  # no −0


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
    parts = [f.rows() for f in features[:THIRD]]  # moments have those of the variance
    shift = np.cumsum([0, *(p.values.size for p in parts)])
    indptr = np.concatenate([p.indptr + k for p, k in zip(parts, shift, strict=False)])
    count = features[0].states + 1
    memory.begin_rows([0, count, 2 * count])
    return Rows(
        indptr,
        np.concatenate([p.indices for p in parts]),
        np.concatenate([p.values for p in parts]),
    )
