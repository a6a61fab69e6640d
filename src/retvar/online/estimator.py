"""The online estimator: updated with transitions, queried for value and variance at any time."""

from __future__ import annotations

import copy
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import get_ident
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.online import driver
from retvar.online.columns import Columns, Transition, read_columns
from retvar.online.driver import TERMINATED, TRUNCATED
from retvar.online.memory import COUNT, Memory, half_width, key_of, replicates_of, spread
from retvar.support import arguments
from retvar.support.errors import DivergenceError, InputError, ThreadError
from retvar.support.format import count, literal, number, plus_minus
from retvar.support.html import MOST, Shown, page, settings, table
from retvar.td.block import words_of
from retvar.td.features import Features, Rows, States
from retvar.td.networks import PLACES, SHAPES, THIRD, network_of

__all__ = ["OnlineEstimator", "Transition"]

Array = NDArray[np.float64]
BLOCK = 4_096  # transitions whose features are in memory at a time
ENTRIES = 1 << 20  # or fewer, if each has many features
FIRST_PIECE, SHORT = 64, 0.02  # rows learned from in one call; more while it takes so few seconds
MOST_TRACES = 100_000_000  # streams × weights
UNREADABLE = -1  # a transition that cannot be packed
_FLAGS = (False, True)
_KNOWN = "unknown; states are 0 to {}"
_UNIT = "must lie in [0, 1]; give it here or to the learner"
FAULTS = {  # error codes of a transition: field and remedy
    driver.STATE: ("state", _KNOWN),
    driver.NEXT_STATE: ("next_state", _KNOWN),
    driver.NO_NEXT: ("next_state", "must be given unless terminated"),
    driver.REWARD: ("reward", "must be a finite number"),
    driver.RHO: ("rho", "must be a finite number of at least 0"),
    driver.GAMMA: ("gamma", _UNIT),
    driver.LAM: ("lam", _UNIT),
}

_pack = struct.Struct("4q4d").pack_into


class OnlineEstimator(Shown):
    """An estimator that learns from a stream; made by ``Direct(...).online(...)`` and the like.

    >>> import retvar as rv
    >>> risk = rv.Direct(alpha=0.5, gamma=0.9, lam=0.9).online(states=2)
    >>> risk.update(0, 1.0, 1)
    >>> risk.update(1, 3.0, None, terminated=True)
    >>> risk.value(), risk.variance()
    (array([0.5, 1.5]), array([0.5, 4.5]))
    """

    by = "td"

    def __init__(
        self, description: Any, features: list[Features], bootstrap_samples: int = 0, seed: int = 0
    ) -> None:
        self.description = description
        self.features: list[Any] = features
        self._owner = 0  # the thread that is learning
        self.notes: dict[str, Any] = {}  #: JSON data of your own, saved in checkpoints
        replicates = replicates_of(description, bootstrap_samples)
        self._memory = Memory(description, features, replicates, key_of(seed))
        self._network = network_of(description)
        self._tabular = features[0].states is not None
        same = all(kind is features[0] for kind in features)
        self._shared_features = same and not self._tabular  # all nodes have the same features
        self._quick = self._tabular or same  # a transition can be packed
        self._rows: Rows | None = None  # of one transition, where features come with it
        direct = {"value": self._network.nodes[0], "mean": self._network.mean}
        if self._network.second_moment is None:
            direct["variance"] = self._network.variance.node
        self._tables = {  # estimates that are weights of states: number of the node
            what: self._memory.places[node.place]
            for what, node in direct.items()
            if isinstance(features[node.place], States)
        }
        self._attach()

    @property
    def steps(self) -> int:
        """Transitions learned from."""
        return int(self._memory.counts[0])

    @property
    def rejected(self) -> int:
        """Transitions refused."""
        return int(self._memory.counts[1])

    def _attach(self) -> None:
        """Store what every update needs."""
        m = self._memory
        if self._rows is not None:
            m.set_rows([self._rows], 2)
        self._advance, self._bytes = m.kernel.advance_one, m.buffer.data.cast("B")
        words = words_of(m.block)
        self._packed = (m.ints, m.buffer, words, m.draws, m.gammas, m.lams, m.streams)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Work in this thread; another thread that changes or copies the arrays is an error."""
        me, before = get_ident(), self._owner
        if before and before != me:
            raise ThreadError
        self._owner = me
        try:
            yield
        finally:
            self._owner = before

    # ------------------------------------------------------------------ learning

    def update(
        self,
        state: Any,
        reward: Any = None,
        next_state: Any = None,
        *,
        terminated: bool = False,
        truncated: bool = False,
        rho: float = 1.0,
        gamma: float | None = None,
        lam: float | None = None,
        stream: int = 0,
    ) -> None:
        """Learn from one transition, or from an object that has its fields.

        Terminated: γ′ = 0, then the traces are cleared. Truncated: bootstraps from `next_state`,
        then the traces are cleared. Both: terminated. ``DivergenceError`` is raised as soon as a
        weight gets too large; if features come with each transition, at the latest when the trace
        that moves it has faded or its episode ends.
        """
        if reward is None:
            others = (terminated, truncated, rho, gamma, lam, stream)
            return self._update_from(state, next_state, others)
        me, code = get_ident(), UNREADABLE
        if self._owner and self._owner != me:
            raise ThreadError
        if self._quick:
            self._owner = me
            try:
                s, s2 = state, -1 if next_state is None else next_state
                if self._shared_features:
                    s, s2 = self._write_features(state, next_state)
                if terminated in _FLAGS and truncated in _FLAGS:
                    flags = (TERMINATED if terminated else 0) + (TRUNCATED if truncated else 0)
                    g = -1.0 if gamma is None else gamma if gamma >= 0 else np.nan
                    lm = -1.0 if lam is None else lam if lam >= 0 else np.nan
                    _pack(self._bytes, 0, s, s2, flags, stream, reward, rho, g, lm)
                    code = self._advance(*self._packed)
            except (struct.error, TypeError, ValueError, ArithmeticError):
                code = UNREADABLE
            finally:
                self._owner = 0
            if not code:
                return None
            if code >= driver.DIVERGED:
                self._raise_divergence(code, state)
        # a new stream, features of each node, or something that is refused
        row = (state, reward, next_state, terminated, truncated, rho, gamma, lam, stream)
        return self._update_row(Transition(*row)._asdict())

    def _update_from(self, transition: Any, next_state: Any, rest: tuple[Any, ...]) -> None:
        """Update from an object or mapping with the fields of a transition."""
        fields = transition
        if not isinstance(transition, Mapping):
            fields = {f: getattr(transition, f, None) for f in Transition._fields}
            fields = {name: given for name, given in fields.items() if given is not None}
        wrong = sorted(map(str, set(fields) - set(Transition._fields)))
        if next_state is not None or rest != (False, False, 1.0, None, None, 0):
            wrong.append("other arguments")
        lacking = [name for name in ("state", "reward") if fields.get(name) is None]
        if lacking or wrong:
            self._memory.counts[1] += 1
            if lacking:
                raise InputError(lacking[0], None, "must be given")
            raise InputError("transition", wrong, "must be the only argument")
        self.update(**fields)

    def _update_row(self, row: dict[str, Any]) -> None:
        """Learn from a transition as a chunk of one row."""
        with self._alone():
            try:
                self._learn({name: [given] for name, given in row.items()}, skip=False, where="")
            except InputError as error:
                if error.field not in row or (error.field == "state" and not self._tabular):
                    raise
                given = row[error.field]
                shown = literal(given) if isinstance(given, str) else given
                raise InputError(error.field, shown, error.remedy) from None

    def _write_features(self, state: Any, next_state: Any) -> tuple[int, int]:
        """Write the features of one transition into rows 0 and 1."""
        rows, finite = self.features[0].write(state, next_state, self._rows)
        if rows is not self._rows:  # compiled code is to read these
            self._rows = rows
            self._attach()
        if not finite:
            raise ValueError
        ends = self._memory.block[0].rows[0]
        ends[:3], ends[3] = rows.indptr, rows.indptr[-1]
        self._memory.ints[COUNT] = 2
        return 0, -1 if next_state is None else 1

    def update_many(self, arrays: Any, on_error: str = "raise") -> None:
        """Learn from a chunk: columns ``state``, ``reward``, ``next_state``, and optional others.

        The results are those of one-by-one updates to the bit. With ``on_error="raise"`` an invalid
        row means that nothing of the chunk is applied; with ``"skip"`` it is counted in `rejected`
        and clears the traces of its stream. Ctrl-C takes effect between rows: the rows before it
        have been learned and are counted.
        """
        arguments.choice("on_error", on_error, ("raise", "skip"))
        with self._alone():
            self._learn(arrays, skip=on_error == "skip", where="row {}: ")

    def _learn(self, arrays: Any, *, skip: bool, where: str) -> None:
        """Check the whole chunk (unless invalid rows are skipped), then learn in blocks."""
        self._rows = None  # those of the chunk take their place
        try:
            columns = read_columns(arrays, self._tabular)
            size = max(1, len(columns)) if self._tabular else self._block_size()
            starts = range(0, len(columns), size)
            blocks = [columns] * len(starts)
            if len(starts) > 1:
                blocks = [columns.part(first, first + size) for first in starts]
            for first, block in zip(starts, blocks, strict=True) if not skip else ():
                self._read_features(block, skip)
                self._check(block, first, where)
            self._grow(int(columns.numbers.stream.max(initial=0)) + 1)
        except InputError:
            self._memory.counts[1] += 1
            raise
        for block in blocks:
            try:
                if skip or len(blocks) > 1:  # the rows of a single block are still there
                    self._read_features(block, skip)
                self._run(block, skip)
            except InputError:  # features that cannot be read: find the rows
                self._learn_readable(block)

    def _learn_readable(self, block: Columns) -> None:
        """Learn from the rows of a block whose features can be read."""
        for t in range(len(block)):
            row = block.part(t, t + 1)
            try:
                self._read_features(row, skip=True)
            except InputError:
                self._memory.counts[1] += 1
                self._clear(int(row.numbers.stream[0]))
            else:
                self._run(row, skip=True)

    def _block_size(self) -> int:
        """Number of transitions whose features fit in memory at a time."""
        return max(1, min(BLOCK, ENTRIES // max(kind.entries or 1 for kind in self.features)))

    def _run(self, c: Columns, skip: bool) -> None:
        """Learn in pieces that take a fraction of a second each, so that Ctrl-C is noticed."""
        m, mode = self._memory, driver.SKIP if skip else driver.TRUST
        first, size, states = 0, FIRST_PIECE, int(m.ints[COUNT])
        while first < len(c):
            began, piece = perf_counter(), c.rows(first, first + size)
            done, code = m.kernel.advance(
                piece, mode, m.block, m.draws, m.gammas, m.lams, states, m.counts
            )
            if code:
                self._raise_divergence(code, c.at("state", first + int(done)))
            first, took = first + size, perf_counter() - began
            size *= 2 if took < SHORT else 1

    def _check(self, c: Columns, first: int, where: str) -> None:
        """Raise an error that names the first invalid row."""
        m, states = self._memory, int(self._memory.ints[COUNT])
        bad, code = driver.check(c.numbers, states, m.gammas.size > 0, m.lams.size > 0)
        if code:
            field, remedy = FAULTS[code]
            shown = c.at(field, int(bad))
            raise InputError(where.format(first + bad) + field, shown, remedy.format(states - 1))

    def _read_features(self, c: Columns, skip: bool) -> None:
        """Take the features that come with a chunk."""
        if self._tabular:
            return
        kinds = [self.features[node.place] for node in self._network.nodes]
        rows, finite = c.read_features(kinds[:1] if self._shared_features else kinds)
        self._memory.set_rows(rows, 2 * len(c))
        if not (finite or skip):
            raise InputError("state", "not finite", "must hold finite numbers only")

    def _grow(self, streams: int) -> None:
        """Have traces for so many streams."""
        if streams > self._memory.streams:
            if streams * self._memory.size > MOST_TRACES:
                shape = f"{streams:,} streams × {self._memory.size:,} weights"
                remedy = f"more than {MOST_TRACES:,} traces; number streams from 0"
                raise InputError("stream", shape, remedy)
            self._memory.grow(streams)
            self._attach()

    def reset_traces(self, stream: int | None = None) -> None:
        """Clear the traces of a stream, or of all streams."""
        with self._alone():
            streams = self._memory.streams
            for each in range(streams) if stream is None else (stream,):
                self._clear(arguments.integer("stream", each, 0, streams - 1))

    def _clear(self, stream: int) -> None:
        code = self._memory.kernel.clear(self._memory.block, stream)
        if code:  # found when deferred updates were applied
            self._raise_divergence(code, None)

    def _raise_divergence(self, code: int, state: Any) -> None:
        k = code - driver.DIVERGED
        step_size = float(self._memory.block[k].used[0, 0])
        for each in self._memory.block:
            each.lost[0] = 0.0
        raise DivergenceError(self._network.nodes[k].name, self.steps + 1, state, step_size)

    # ------------------------------------------------------------------ estimates

    def value(self, state: Any = None) -> Any:
        """Value of a state, or of all states."""
        return self._estimate("value", state)

    def variance(self, state: Any = None) -> Any:
        """Variance of the λ-return; VTD's may be negative and is returned unclipped."""
        return self._estimate("variance", state)

    def std(self, state: Any = None) -> Any:
        """Square root of the variance; NaN where the estimate of the variance is negative."""
        return self._estimate("std", state)

    def mean(self, state: Any = None) -> Any:
        """Mean of the λ-return: the mean node's of a centred learner, otherwise the value."""
        return self._estimate("mean", state)

    def second_moment(self, state: Any = None) -> Any:
        """Second moment of the λ-return: VTD's own, otherwise variance + mean²."""
        return self._estimate("second_moment", state)

    def third_moment(self, state: Any = None) -> Any:
        """Third central moment of the λ-return, with ``order=3`` or 4.

        >>> import retvar as rv
        >>> risk = rv.Direct(alpha=0.5, gamma=0.9, lam=0.9, order=4).online(states=1)
        >>> risk.update(0, 2.0, None, terminated=True)
        >>> risk.third_moment(0), risk.fourth_moment(0)
        (4.0, 8.0)
        """
        return self._estimate("third_moment", state)

    def fourth_moment(self, state: Any = None) -> Any:
        """Fourth central moment of the λ-return, with ``order=4``."""
        return self._estimate("fourth_moment", state)

    def skewness(self, state: Any = None) -> Any:
        """Third moment / variance^1.5, with ``order=3`` or 4; NaN where the variance is ≤ 0."""
        return self._estimate("skewness", state)

    def kurtosis(self, state: Any = None) -> Any:
        """Excess kurtosis, fourth moment / variance² − 3, with ``order=4``; NaN as above.

        Moments are learned apart, so it may be one that no return has: below skewness² − 2.
        """
        return self._estimate("kurtosis", state)

    def predict(self, states: Any, what: str = "value") -> Array:
        """Estimates for a column of states (or features).

        ``"value"``, ``"mean"``, ``"variance"`` or ``"std"``; with a higher order also
        ``"third_moment"``, ``"skewness"``, ``"fourth_moment"`` or ``"kurtosis"``.

        >>> import retvar as rv
        >>> risk = rv.Direct(alpha=0.5, gamma=0.9, lam=0.9).online(features=2)
        >>> risk.update([1.0, 0.0], 2.0, None, terminated=True)
        >>> risk.predict([[1.0, 0.0], [2.0, 5.0]], "value")
        array([1., 2.])
        """
        return self._combine(what, states)

    def bootstrap_estimates(
        self, state: Any = None, what: str = "value", *, states: Any = None
    ) -> Array:
        """Estimates of ``"value"``, ``"mean"``, ``"variance"`` or a moment by all replicates.

        An array [state, replicate] of all states or of the column `states`; [replicate] for one
        `state`.
        """
        if not self.has_intervals:
            remedy = "no replicates; use online(…, bootstrap_samples=100)"
            raise InputError("bootstrap_samples", 0, remedy)
        column = states if state is None else [state]
        found = self._combine(what, column, slice(1, self._memory.lanes))
        return found if state is None else found[0]

    def interval(
        self, state: Any = None, what: str = "value", *, states: Any = None, level: float = 0.9
    ) -> tuple[Any, Any]:
        """Interval for what :meth:`predict` gives: lower and upper end.

        Estimate ± z × the standard deviation over replicates. The ends for the std are the square
        roots of those for the variance. For one `state`, a column `states`, or all states.
        """
        z, column = half_width(level), states if state is None else [state]
        base = "variance" if isinstance(what, str) and what == "std" else what
        reach = z * spread(self.bootstrap_estimates(what=base, states=column))
        estimate = self._combine(base, column)
        ends = estimate - reach, estimate + reach
        if base is not what:
            ends = tuple(np.sqrt(np.maximum(end, 0.0)) for end in ends)  # type: ignore[assignment]
        return ends if state is None else (float(ends[0][0]), float(ends[1][0]))

    def _estimate(self, what: str, state: Any) -> Any:
        """An estimate for a state, or for all states."""
        if state is None:
            return self._combine(what)
        if type(state) is int and what in self._tables and 0 <= state < self.features[0].size:
            return float(self._memory.block[self._tables[what]].w[state, 0])
        return float(self._combine(what, [state])[0])

    def _combine(self, what: str, states: Any = None, lanes: int | slice = 0) -> Array:
        """An estimate for states, of the estimator (lane 0) or of its replicates."""

        def of(name: str) -> Array:
            return self._combine(name, states, lanes)

        network, moments = self._network, {shape: moment for moment, shape in SHAPES.items()}
        if isinstance(what, str) and (moment := moments.get(what, what)) in SHAPES:
            if moment not in network.higher:
                remedy = f"{what} needs a learner with order={PLACES.index(moment)}"
                raise InputError("order", network.order, remedy)
            if what in moments:
                from retvar.exact.moments import shape  # slow to import

                return shape(what, of("variance"), of(moment))
        arguments.choice("what", what, (*PLACES[:THIRD], *network.higher, "second_moment", "std"))
        if what == "std":
            with np.errstate(invalid="ignore"):
                return np.asarray(np.sqrt(of("variance")))
        if what == "variance" and (square := network.variance.less_square_of) is not None:
            return of("second_moment") - of(square.name) ** 2
        if what == "second_moment" and network.second_moment is None:
            return of("variance") + of("mean") ** 2
        own = {"mean": network.mean, "second_moment": network.second_moment}.get(what)
        return self._linear(PLACES.index(what) if own is None else own.place, states, lanes)

    def _linear(self, place: int, states: Any, lanes: int | slice) -> Array:
        """Predictions of a node for a column of states or features, or for all states."""
        m, kind = self._memory, self.features[place]
        k = m.places[place]
        if self._tabular:
            chosen = slice(kind.states) if states is None else self._check_states(states)
            if isinstance(kind, States):
                return np.array(m.block[k].w[chosen, lanes])
            return m.predict(k, kind.rows(), lanes)[chosen]
        if states is None:
            raise InputError("state", None, "must be given: there is no list of all states")
        rows = kind.rows(states)
        if not np.isfinite(rows.values).all():
            raise InputError("state", "not finite", "must hold finite numbers only")
        return m.predict(k, rows, lanes)

    def _check_states(self, states: Any) -> Any:
        """A column of states; raise an InputError if one does not exist."""
        column = arguments.array("state", states, "a column of states")
        known = self.features[0].states or 0
        if column.ndim != 1 or column.dtype.kind not in "iub":
            raise InputError("state", literal(states), "must be whole numbers")
        column = column.astype(np.int64, copy=False)
        bad = (column < 0) | (column >= known)
        if bad.any():
            raise InputError("state", int(column[np.argmax(bad)]), _KNOWN.format(known - 1))
        return column

    # ------------------------------------------------------------------ what there is

    @property
    def has_intervals(self) -> bool:
        """Whether there are bootstrap samples, from which intervals are made."""
        return self.bootstrap_samples > 0

    @property
    def bootstrap_samples(self) -> int:
        """Number of bootstrap replicates, for intervals."""
        return self._memory.lanes - 1

    @property
    def gammas(self) -> Array:
        """γ on arrival in each state, or one for all; empty where it comes with the data."""
        return self._memory.gammas

    @property
    def lams(self) -> Array:
        """λ on arrival in each state, or one for all; empty where it comes with the data."""
        return self._memory.lams

    @property
    def td_error(self) -> float:
        """TD error of the value node on the last transition."""
        return float(self._memory.block[0].error[0])

    @property
    def td_errors(self) -> dict[str, float]:
        """TD error of each node on the last transition."""
        return self._by_node(lambda k: float(self._memory.block[k].error[0]))

    @property
    def step_sizes(self) -> dict[str, float]:
        """Step size that each node last used."""
        return self._by_node(lambda k: float(self._memory.block[k].used[0, 0]))

    @property
    def weights(self) -> dict[str, Array]:
        """Weights of each node, copied."""
        return self._by_node(self._memory.weights)

    def _by_node(self, get: Any) -> dict[str, Any]:
        return {node.name: get(k) for k, node in enumerate(self._network.nodes)}

    # ------------------------------------------------------------------ copies

    def grow(self, states: int) -> None:
        """Add states, which start from the initial estimates.

        >>> import retvar as rv
        >>> risk = rv.Direct(alpha=0.5, gamma=0.9, lam=0.9).online(states=1)
        >>> risk.update(0, 2.0, 0)
        >>> risk.grow(3)
        >>> risk.value()
        array([1., 0., 0.])
        """
        with self._alone():
            if not all(isinstance(kind, States) for kind in self.features):
                raise InputError("states", states, "can only grow if each state has its own weight")
            features: list[Features] = [States(states)] * len(self.features)
            if features[0].size < self.features[0].size:
                raise InputError("states", states, f"must be at least {self.features[0].size}")
            m = Memory(self.description, features, self.bootstrap_samples, self._memory.draws)
            m.take(self._memory)
            self._memory, self.features = m, features
            self._attach()

    def clone(self) -> OnlineEstimator:
        """An independent copy, traces and counters included."""
        with self._alone():
            twin = copy.copy(self)
            twin._memory = self._memory.clone()
        twin._owner = 0
        twin.notes = copy.deepcopy(self.notes)
        twin._attach()
        return twin

    def __deepcopy__(self, memo: Any) -> OnlineEstimator:
        return self.clone()

    def save(self, path: Any) -> None:
        """Save to a safetensors file that ``retvar.load`` reads."""
        from retvar.online.checkpoint import save

        with self._alone():
            save(self, path)

    def __repr__(self) -> str:
        kind = type(self.description).__name__
        return f"<{kind} online: {self.steps:,} steps, {self.rejected:,} rejected>"

    def _html(self) -> str:
        title, states = repr(self).strip("<>"), self.features[0].states
        if states is None:
            names = dict.fromkeys(type(kind).__name__ for kind in self.features)
            weights = count(self._memory.size, "weight")
            return page(title, settings({"features": ", ".join(names), "weights": weights}))
        first = np.arange(min(states, MOST))
        columns = [self.predict(first, what) for what in ("value", "std", "variance")]
        heading = ["state", "value ± std", "variance"]
        ends: list[Any] = []
        if self.has_intervals:
            heading += ["value, 90%", "std, 90%"]
            ends = [self.interval(what=what, states=first) for what in ("value", "std")]
        rows = []
        for s, (value, std, variance) in enumerate(zip(*columns, strict=True)):
            row = [str(s), plus_minus(value, std), number(variance)]
            rows.append([*row, *(f"{number(low[s])} … {number(high[s])}" for low, high in ends)])
        return page(title, table(heading, rows, states))
