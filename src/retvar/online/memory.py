"""The arrays of an online estimator: a block of 1 + B lanes, and what its driver needs besides.

Lanes from 1 on are bootstrap replicates. Each weighs every transition by a random multiplier, 0 or
2, of its own. Their deviations from the estimate are distributed like that of the estimate from its
target, so estimate ± z times their standard deviation is an interval for the target.
"""

from __future__ import annotations

import copy
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.online.driver import kernel_of
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.support.format import literal
from retvar.td.block import (
    WIDTH,
    Prepared,
    arrays_of,
    end_row,
    no_traces,
    per_state,
    prepare,
    spec_of,
)  # fmt: skip
from retvar.td.features import Features, Rows
from retvar.td.lazy import DEFERRED
from retvar.td.networks import network_of
from retvar.td.nodes import KEPT, LAZY, LIMIT, Arrays, Spec
from retvar.td.random import seed_of
from retvar.td.step_sizes import averages, counts_visits, depends_on_errors, is_bounded

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
FEWEST, MOST = 2, 16_384  # replicates; the random counter allows no more
COUNT, COUNTS = 8, 9  # of ints: number of states; transitions learned from and skipped


def replicates_of(description: Any, count: Any) -> int:
    """Return how many replicates an estimator has, if it may have so many."""
    if arguments.is_integer(count) and count == 0:
        return 0
    if not arguments.is_integer(count) or not FEWEST <= count <= MOST:
        remedy = f"must be 0, or from {FEWEST} to {MOST:,}"
        raise InputError("bootstrap_samples", literal(count), remedy)
    if any(depends_on_errors(node.step.kind) for node in description.nodes(tabular=False)):
        remedy = "cannot be used with Adadelta, whose steps depend on the errors"
        raise InputError("bootstrap_samples", count, remedy)
    return int(count)


def key_of(seed: object) -> NDArray[np.uint64]:
    """Two random words that depend on the seed, the key of the multipliers, and their counter."""
    words = np.random.SeedSequence(int(seed_of(seed))).generate_state(2, dtype=np.uint64)
    return np.array([*words, 0], dtype=np.uint64)


def spread(predictions: Array) -> Array:
    """Standard deviation over replicates, without those that diverged."""
    usable = np.isfinite(predictions) & (np.abs(predictions) <= LIMIT)
    count = usable.sum(axis=-1)
    with np.errstate(invalid="ignore", over="ignore"):
        mean = np.where(usable, predictions, 0.0).sum(axis=-1) / np.maximum(count, 1)
        squares = np.where(usable, predictions - mean[..., None], 0.0) ** 2
        found: Array = np.sqrt(squares.sum(axis=-1) / np.where(count >= FEWEST, count - 1, np.nan))
    return found


def half_width(level: object) -> float:
    """Half-width of a normal interval of this level, in standard deviations."""
    return NormalDist().inv_cdf((1 + arguments.level("level", level)) / 2)


class Memory:
    """A block of lanes, the estimator's first; and one transition, packed for a quick call."""

    def __init__(
        self, description: Any, features: list[Features], replicates: int = 0, draws: Any = None
    ) -> None:
        self.description, self.features = description, features
        self.network, states = network_of(description), features[0].states
        self.places = {node.place: k for k, node in enumerate(self.network.nodes)}
        self.buffer = np.zeros(COUNTS + 2)  # state, next state, flags, stream; reward, ρ, γ, λ; …
        self.ints: Integers = self.buffer.view(np.int64)
        self.counts, self.ints[COUNT] = self.ints[COUNTS:], states or 2
        self.gammas = per_state("gamma", description.gamma, states)
        self.lams = per_state("lam", description.lam, states)
        self.draws = np.zeros(3, dtype=np.uint64) if draws is None else draws
        self.lanes, self.streams = 1 + replicates, 1  #: of traces
        try:
            nodes = prepare(description, features)
            self.nodes: list[Prepared] = [nodes[place] for place in self.places]
            self.specs = tuple(self._spec(k) for k in range(len(self.nodes)))
            self.block = tuple(self._arrays(k) for k in range(len(self.nodes)))
        except InputError:
            raise
        except (MemoryError, OverflowError, ValueError):
            size = f"{max(each.size for each in features):,} weights"
            raise InputError("states", size, "do not fit in memory; use fewer") from None
        self.kernel = kernel_of(self.specs, description.estimand == "off_policy_return")

    def _spec(self, k: int) -> Spec:
        learns, alone = k > 0 or self.description.learn_value, self.lanes == 1
        found = spec_of(self.network.nodes[k].code, self.nodes[k], learns, changes=True)
        return found._replace(alone=alone, coins=not alone, steps=True, checked=True)

    def _arrays(self, k: int) -> Arrays:
        node, lanes = self.nodes[k], 1 if self.lanes == 1 else -(-self.lanes // WIDTH) * WIDTH
        p, q = np.repeat(np.array(node.parameters)[:, None], lanes, axis=1)
        found = arrays_of(self.specs[k], node.features, p, q, node.kappa)
        for learned in (found.w, found.held):
            if learned is not None:
                learned[: node.initial.size] = node.initial[:, None]
        return found

    @property
    def size(self) -> int:
        """Number of weights of all nodes."""
        return sum(node.initial.size for node in self.nodes)

    def grow(self, streams: int) -> None:
        """Add traces for more streams; existing traces do not change."""
        more = streams - self.streams

        def longer(name: str, x: Any) -> Any:
            if x is None or not KEPT.get(name, " ")[0].startswith("stream"):
                return x
            lists = name == "live"
            rows = no_traces(more, x.shape[1] // 2) if lists else np.zeros((more, *x.shape[1:]))
            return np.concatenate([x, rows])

        if more > 0:
            self.block = tuple(Arrays(*map(longer, m._fields, m)) for m in self.block)
            self.streams = streams

    def list_traces(self) -> None:
        """List the weights whose traces are not 0."""
        for m in self.block:
            for e, found in zip(m.E, m.live, strict=True) if m.live is not None else ():
                reached, found[:] = np.flatnonzero(e), -1
                found[: reached.size], found[-1] = reached, reached.size
                found[e.size - 1 + reached] = np.arange(reached.size)

    def set_rows(self, rows: list[Rows], states: int) -> None:
        """Take the features of the states of a chunk; those of one node, or of each."""
        given = [end_row(each) for each in rows] * (len(self.nodes) // len(rows))
        both = zip(self.block, given, strict=True)
        self.block = tuple(m._replace(rows=each) for m, each in both)
        self.ints[COUNT] = states

    def averages(self, k: int) -> bool:
        """Whether a node predicts from means of the weights that learn."""
        return averages(self.specs[k].kind)

    def steps(self, k: int) -> Array:
        """α of each weight; 1 where it is common to all weights."""
        node = self.nodes[k]
        if not counts_visits(node.kind):
            return np.ones(1)
        found: Array = node.parameters[0] / self.block[k].rates[: node.initial.size]
        return found

    def weights(self, k: int) -> Array:
        """Weights of a node, copied, with what is deferred."""
        m, size = self.block[k], self.nodes[k].initial.size
        found: Array = m.w[:size, 0].copy()
        for stream in self._deferring(k):
            found += self.steps(k) * m.E[stream, :size] * m.sums[stream, 0]
        return found

    def _deferring(self, k: int) -> range:
        """Streams whose updates a prediction of a node lacks."""
        lacks = (self.specs[k].trace == LAZY) and not self.averages(k)
        return range(min(DEFERRED, self.streams) if lacks else 0)

    def predict(self, k: int, rows: Rows, lanes: int | slice) -> Array:
        """w·φ of sparse rows, [row] or [row, lane], with what is deferred."""
        m, n, size = self.block[k], rows.indptr.size - 1, self.nodes[k].initial.size
        row = np.repeat(np.arange(n), np.diff(rows.indptr))
        w = m.w[:size, lanes]
        columns = w[:, None] if w.ndim == 1 else w
        terms = (rows.values * lane[rows.indices] for lane in columns.T)
        found = np.stack([np.bincount(row, x, n).astype(np.float64) for x in terms], axis=-1)
        found = found.reshape(n, *w.shape[1:])
        for stream in self._deferring(k):
            steps = np.broadcast_to(self.steps(k), size)
            reach = rows.values * steps[rows.indices] * m.E[stream][rows.indices]
            found += np.multiply.outer(np.bincount(row, reach, n), m.sums[stream, lanes])
        return found

    def rule_state(self, k: int) -> Array:
        """Two numbers of the step-size rule for each weight, as checkpoints have them."""
        m, kind, size = self.block[k], self.nodes[k].kind, self.nodes[k].initial.size
        found = np.zeros((size, 2))
        if m.visits is not None:
            found[:, 0] = m.visits[:size]
        if m.first is not None:
            found[:, 0], found[:, 1] = m.first[:size, 0], m.second[:size, 0]
        if is_bounded(kind):
            found[:, 0], found[0, 0] = self.nodes[k].parameters[0], m.p[0]
        return found

    def set_rule_state(self, k: int, given: Array) -> None:
        """Take what :meth:`rule_state` gave."""
        m, node, size = self.block[k], self.nodes[k], self.nodes[k].initial.size
        if m.visits is not None:
            n = np.maximum(given[:, 0], 1.0)
            m.visits[:size] = given[:, 0]
            power = node.parameters[1]
            m.rates[:size] = n if power == 1.0 else [float(x**power) for x in n.tolist()]
        if m.first is not None:
            m.first[:size, 0], m.second[:size, 0] = given.T
        if is_bounded(node.kind):
            m.p[:] = given[0, 0]

    def clone(self) -> Memory:
        """An independent copy."""
        twin = copy.copy(self)
        twin.block, twin.buffer, twin.draws = copy.deepcopy((self.block, self.buffer, self.draws))
        twin.ints = twin.buffer.view(np.int64)
        twin.counts = twin.ints[COUNTS:]
        return twin

    def take(self, other: Memory) -> None:
        """Copy what another has learned, which may have fewer states."""
        self.grow(other.streams)
        for mine, theirs, node in zip(self.block, other.block, other.nodes, strict=True):
            for name, (axes, _) in KEPT.items():
                x, y = getattr(mine, name), getattr(theirs, name)
                if x is not None and y is not None:
                    old = y[: node.initial.size] if axes.startswith("weight") else y
                    x[tuple(slice(n) for n in old.shape)] = old
            mine.p[:] = theirs.p
        self.list_traces()
        self.counts[:] = other.counts
