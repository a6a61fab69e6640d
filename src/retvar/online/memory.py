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
from retvar.td.block import WIDTH, Prepared, block_of, end_row, per_state, prepare
from retvar.td.features import Features, Rows, States
from retvar.td.lazy import DEFERRED
from retvar.td.networks import network_of
from retvar.td.nodes import ALL, FEW, LAZY, LIMIT, SPARSE, TABLE, Block, Spec
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
        self.lanes = 1 + replicates
        try:
            nodes = prepare(description, features)
            self.nodes: list[Prepared] = [nodes[place] for place in self.places]
            self.specs = tuple(self._spec(k) for k in range(len(self.nodes)))
            self._allocate()
        except InputError:
            raise
        except (MemoryError, OverflowError, ValueError):
            size = f"{max(each.size for each in features):,} weights"
            raise InputError("states", size, "do not fit in memory; use fewer") from None
        self.kernel = kernel_of(self.specs, description.estimand == "off_policy_return")

    def _spec(self, k: int) -> Spec:
        node, one = self.nodes[k], self.network.nodes[k]
        kind = TABLE if isinstance(node.features, States) else SPARSE
        learns, alone = k > 0 or self.description.learn_value, self.lanes == 1
        few = node.features.size <= FEW and kind == TABLE
        size = ALL if few and learns and node.trace else 0
        return Spec(
            one.code, node.kind, learns, node.trace if learns else 0, size, kind, alone,
            coins=not alone, steps=True, checked=True,
        )  # fmt: skip

    def _allocate(self) -> None:
        settings = np.array([node.parameters for node in self.nodes]).T
        padded = 1 if self.lanes == 1 else -(-self.lanes // WIDTH) * WIDTH
        p, q = np.repeat(settings[..., None], padded, axis=-1)
        kappas = np.stack(np.broadcast_arrays(*(node.kappa for node in self.nodes)))
        features = [node.features for node in self.nodes]
        self.block: Block = block_of(self.specs, features, p, q, kappas)
        for k, node in enumerate(self.nodes):
            self.block.w[k][: node.initial.size] = node.initial[:, None]
            if self.averages(k):
                self.block.held[k][: node.initial.size] = node.initial[:, None]

    @property
    def streams(self) -> int:
        """Number of streams with traces."""
        return int(self.block.last.shape[0])

    @property
    def size(self) -> int:
        """Number of weights of all nodes."""
        return sum(node.initial.size for node in self.nodes)

    def grow(self, streams: int) -> None:
        """Add traces for more streams; existing traces do not change."""
        m, more = self.block, streams - self.streams

        def longer(x: Any, blank: float) -> Any:
            rows = None if x is None else np.full((more, x.shape[1]), blank, x.dtype)
            return None if x is None else np.concatenate([x, rows])

        if more > 0:
            E, live = tuple(longer(x, 0) for x in m.E), tuple(longer(x, -1) for x in m.live)
            for listed in (x for x in live if x is not None):
                listed[-more:, -1] = 0
            self.block = m._replace(E=E, live=live, last=longer(m.last, 0))

    def list_traces(self) -> None:
        """List the weights whose traces are not 0."""
        both = zip(self.block.E, self.block.live, strict=True)
        for E, live in ((E, live) for E, live in both if live is not None):
            for e, found in zip(E, live, strict=True):
                reached, found[:] = np.flatnonzero(e), -1
                found[: reached.size], found[-1] = reached, reached.size
                found[e.size - 1 + reached] = np.arange(reached.size)

    def set_rows(self, rows: list[Rows], states: int) -> None:
        """Take the features of the states of a chunk; those of one node, or of each."""
        given = tuple(map(end_row, rows))
        self.block = self.block._replace(rows=given * (len(self.nodes) // len(rows)))
        self.ints[COUNT] = states

    def averages(self, k: int) -> bool:
        """Whether a node predicts from means of the weights that learn."""
        return averages(self.specs[k].kind) and self.specs[k].learns

    def steps(self, k: int) -> Array:
        """α of each weight; 1 where it is common to all weights."""
        node = self.nodes[k]
        if not counts_visits(node.kind):
            return np.ones(1)
        found: Array = node.parameters[0] / self.block.rates[k][: node.initial.size]
        return found

    def weights(self, k: int) -> Array:
        """Weights of a node, copied, with what is deferred."""
        m, size = self.block, self.nodes[k].initial.size
        found: Array = m.w[k][:size, 0].copy()
        for stream in self._deferring(k):
            found += self.steps(k) * m.E[k][stream, :size] * m.sums[k][stream, 0]
        return found

    def _deferring(self, k: int) -> range:
        """Streams whose updates a prediction of a node lacks."""
        lacks = (self.specs[k].trace == LAZY) and not self.averages(k)
        return range(min(DEFERRED, self.streams) if lacks else 0)

    def predict(self, k: int, rows: Rows, lanes: int | slice) -> Array:
        """w·φ of sparse rows, [row] or [row, lane], with what is deferred."""
        m, n, size = self.block, rows.indptr.size - 1, self.nodes[k].initial.size
        row = np.repeat(np.arange(n), np.diff(rows.indptr))
        w = m.w[k][:size, lanes]
        columns = w[:, None] if w.ndim == 1 else w
        terms = (rows.values * lane[rows.indices] for lane in columns.T)
        found = np.stack([np.bincount(row, x, n).astype(np.float64) for x in terms], axis=-1)
        found = found.reshape(n, *w.shape[1:])
        for stream in self._deferring(k):
            steps = np.broadcast_to(self.steps(k), size)
            reach = rows.values * steps[rows.indices] * m.E[k][stream][rows.indices]
            found += np.multiply.outer(np.bincount(row, reach, n), m.sums[k][stream, lanes])
        return found

    def rule_state(self, k: int) -> Array:
        """Two numbers of the step-size rule for each weight, as checkpoints have them."""
        m, kind, size = self.block, self.nodes[k].kind, self.nodes[k].initial.size
        found = np.zeros((size, 2))
        if counts_visits(kind) and self.specs[k].learns:
            found[:, 0] = m.visits[k][:size]
        if depends_on_errors(kind) and self.specs[k].learns:
            found[:, 0], found[:, 1] = m.first[k][:size, 0], m.second[k][:size, 0]
        if is_bounded(kind):
            found[:, 0], found[0, 0] = self.nodes[k].parameters[0], m.p[k, 0]
        return found

    def set_rule_state(self, k: int, given: Array) -> None:
        """Take what :meth:`rule_state` gave."""
        m, node, size = self.block, self.nodes[k], self.nodes[k].initial.size
        if counts_visits(node.kind) and self.specs[k].learns:
            n = np.maximum(given[:, 0], 1.0)
            m.visits[k][:size] = given[:, 0]
            power = node.parameters[1]
            m.rates[k][:size] = n if power == 1.0 else [float(x**power) for x in n.tolist()]
        if depends_on_errors(node.kind) and self.specs[k].learns:
            m.first[k][:size, 0], m.second[k][:size, 0] = given.T
        if is_bounded(node.kind):
            m.p[k] = given[0, 0]

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
        for name, mine, theirs in zip(Block._fields, self.block, other.block, strict=True):
            by_weight = name in ("w", "held", "first", "second", "taken", "visits", "rates")
            if isinstance(mine, tuple):
                for x, y, node in zip(mine, theirs, other.nodes, strict=True):
                    if x is not None and y is not None:
                        old = y[: node.initial.size] if by_weight else y
                        x[tuple(slice(n) for n in old.shape)] = old
            elif mine is not None and mine.shape == theirs.shape:
                mine[...] = theirs
        self.list_traces()
        self.counts[:] = other.counts
