"""The online estimator: updated with transitions, queried for value and variance at any time."""

from __future__ import annotations

import copy
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import get_ident
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from retvar import arguments
from retvar.errors import DivergenceError, InputError, ThreadError
from retvar.features import Features, ObservationFeatures, Rows, States, TransitionFeatures, Vector
from retvar.format import count, literal, number, plus_minus
from retvar.html import MOST, Shown, page, settings, table
from retvar.networks import PLACES, SHAPES, THIRD, VALUE, network_of
from retvar.online import higher_moments, kernel, memory_layout
from retvar.online.bootstrap import add_bootstrap_samples, half_width, spread, weighted
from retvar.online.columns import MOST_STREAMS, Columns, features_of_node, read_columns
from retvar.online.memory import Memory, memory_of, static_rows
from retvar.online.memory_layout import LEARNER, TERMINATED, TRUNCATED, FeatureRows, Transitions

__all__ = ["OnlineEstimator", "Transition"]

Array = NDArray[np.float64]
BLOCK = 4_096  # transitions whose features are in memory at a time
ENTRIES = 1 << 20  # or fewer, if each has many features
FIRST_PIECE, CHECKED = 64, 1 << 22  # rows learned from, and checked, in one call
SHORT, LONG = 0.02, 0.08  # seconds; pieces between these are of the right size
MOST_TRACES = 100_000_000  # streams × weights
_STREAMS = f"must be a whole number from 0 to {MOST_STREAMS - 1}"
_FLAGS = (False, True)

_pack = struct.Struct("4q4d").pack_into
_INPUT = kernel.INPUT * 8  # position of the transition in the buffer
_NO_ROWS = FeatureRows(None, None, None)


class Transition(NamedTuple):
    """One step of experience; ``update`` takes any object with these attributes.

    >>> Transition(state=0, reward=1.0, next_state=1).terminated
    False
    """

    state: Any
    reward: float
    next_state: Any = None
    terminated: bool = False
    truncated: bool = False
    rho: float = 1.0
    gamma: float | None = None
    lam: float | None = None
    stream: int = 0


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
        self.features = features
        self._owner = 0  # the thread that is learning
        self.notes: dict[str, Any] = {}  #: JSON data of your own, saved in checkpoints
        self._memory = memory_of(description, features)
        self._rows = static_rows(features, self._memory)
        self._network = network_of(description)
        if not arguments.is_integer(bootstrap_samples) or bootstrap_samples != 0:
            add_bootstrap_samples(self._memory, bootstrap_samples, seed)
        self._attach()

    @property
    def steps(self) -> int:
        """Transitions learned from."""
        return int(self._memory.counts[0])

    @steps.setter
    def steps(self, count: int) -> None:
        self._memory.counts[0] = count

    @property
    def rejected(self) -> int:
        """Transitions refused."""
        return int(self._memory.counts[1])

    @rejected.setter
    def rejected(self, count: int) -> None:
        self._memory.counts[1] = count

    def _attach(self) -> None:
        """Store what every update needs."""
        m = self._memory
        self._tabular = self.features[0].states is not None
        self._bytes = m.buffer.data.cast("B")
        same = all(f is self.features[0] for f in self.features)
        self._shared_features = same and not self._tabular  # all nodes have the same features
        if self._rows is None:
            self._advance = (
                kernel.advance_one_state_moments if m.moments else kernel.advance_one_state
            )
            self._packed: tuple[Any, ...] = (m.ints, m.floats, m.traces, m.live)
        else:
            self._advance = kernel.advance_one_moments if m.moments else kernel.advance_one
            rows = FeatureRows(*self._rows)
            self._packed = (m.ints, m.floats, rows, m.traces, m.live, m.scales, m.sums)

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
            return self._update_from(
                state, next_state, (terminated, truncated, rho, gamma, lam, stream)
            )
        given = state
        if self._memory.coins is not None or not (self._tabular or self._shared_features):
            row: dict[str, Any] = {"state": [state], "reward": [reward], "next_state": [next_state]}
            if isinstance(state, Mapping):  # separate features for each node
                row["state"] = {name: [part] for name, part in state.items()}
                follows = dict.fromkeys(state) if next_state is None else next_state
                arguments.instance("next_state", follows, Mapping, "a mapping, as the state is")
                row["next_state"] = {name: [part] for name, part in follows.items()}
            row |= {"terminated": [terminated], "truncated": [truncated], "rho": [rho]}
            row |= {"gamma": [gamma], "lam": [lam], "stream": [stream]}
            return self._learn(row, skip=False, where="")
        try:
            known = terminated in _FLAGS and truncated in _FLAGS
        except Exception:  # an array, or what cannot be compared
            known = False
        if not known:
            self._reject("terminated, truncated", (terminated, truncated), "must be true or false")
        me = get_ident()
        if self._owner and self._owner != me:
            raise ThreadError
        self._owner = me
        try:
            if self._shared_features:
                state, next_state = self._write_features(state, next_state)
            try:
                _pack(
                    self._bytes,
                    _INPUT,
                    state,
                    -1 if next_state is None else next_state,
                    (TERMINATED if terminated else 0) + (TRUNCATED if truncated else 0),
                    stream,
                    reward,
                    rho,
                    -1.0 if gamma is None else gamma if gamma >= 0 else np.nan,
                    -1.0 if lam is None else lam if lam >= 0 else np.nan,
                )
            except (struct.error, TypeError, ValueError, ArithmeticError):
                self._reject_types(state, reward, next_state, rho, gamma, lam, stream)
            code = self._advance(*self._packed)
            if code == memory_layout.STREAM:
                self._add_stream(stream, (state, reward, next_state, rho, gamma, lam))
                code = self._advance(*self._packed)
        finally:
            self._owner = 0
        if code:
            if code >= memory_layout.DIVERGED:
                self._raise_divergence(code, given)
            self.rejected += 1
            raise self._input_error(code, state, reward, next_state, rho, gamma, lam)
        return None

    def _update_from(self, transition: Any, next_state: Any, rest: tuple[Any, ...]) -> None:
        """Update from an object or mapping with the fields of a transition."""
        if isinstance(transition, Mapping):
            fields = {str(name): given for name, given in transition.items()}
        else:
            names = (f for f in Transition._fields if hasattr(transition, f))
            fields = {name: getattr(transition, name) for name in names}
        if fields.get("reward") is None or "state" not in fields:
            self._reject("reward", None, "must be given")
        unknown = set(fields) - set(Transition._fields)
        if unknown or next_state is not None or rest != (False, False, 1.0, None, None, 0):
            extra = sorted(unknown) or "other arguments"
            self._reject("transition", extra, "must be the only argument")
        fields.setdefault("next_state", None)
        self.update(fields.pop("state"), fields.pop("reward"), fields.pop("next_state"), **fields)

    def _write_features(self, state: Any, next_state: Any) -> tuple[int, int | None]:
        """Write the features of one transition into rows 0 and 1."""
        kind, finite = self.features[0], True
        try:
            if isinstance(kind, Vector):
                if self._rows is None:
                    length = 2 * kind.size
                    index = np.zeros(length, dtype=np.int64)
                    self._rows = Rows(np.zeros(3, dtype=np.int64), index, np.zeros(length))
                    self._attach()
                x, x_next = kind.read(state), kind.read(next_state, True)
                finite = kernel.write_rows(x, x_next, *self._rows)
            elif isinstance(kind, ObservationFeatures):
                if self._rows is None:
                    self._rows = kind.rows([kind.blank] * 2)
                    self._attach()
                finite = kind.write(state, next_state, self._rows)
            else:
                self._rows = kind.rows([state, [] if next_state is None else next_state])
                self._attach()
        except InputError:
            self.rejected += 1
            raise
        if not finite:
            self._reject("state", "not finite", "must hold finite numbers only")
        self._memory.begin_rows([0, 0, 0])
        self._memory.plan[LEARNER, memory_layout.COUNT] = 2
        return 0, None if next_state is None else 1

    def update_many(self, arrays: Any, on_error: str = "raise") -> None:
        """Learn from a chunk: columns ``state``, ``reward``, ``next_state``, and optional others.

        The results are those of one-by-one updates to the bit. With ``on_error="raise"`` an invalid
        row means that nothing of the chunk is applied; with ``"skip"`` it is counted in `rejected`
        and clears the traces of its stream. Ctrl-C takes effect between rows: the rows before it
        have been learned and are counted.
        """
        arguments.choice("on_error", on_error, ("raise", "skip"))
        before = self.steps
        try:
            self._learn(arrays, skip=on_error == "skip", where="row {}: ")
        except KeyboardInterrupt as stop:
            learned = count(self.steps - before, "transition")
            stop.add_note(f"{learned} of this chunk had been learned and are counted")
            raise

    def _learn(self, arrays: Any, *, skip: bool, where: str) -> None:
        """Learn from a chunk in this thread."""
        with self._alone():
            self._learn_chunk(arrays, skip, where)

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

    def _learn_chunk(self, arrays: Any, skip: bool, where: str) -> None:
        """Check the whole chunk (unless invalid rows are skipped), then learn in blocks."""
        try:
            columns = read_columns(arrays, self._tabular)
            size = max(1, len(columns)) if self._tabular else self._block_size()
            blocks = [
                (first, columns.part(first, first + size)) for first in range(0, len(columns), size)
            ]
            if not skip:
                for first, block in blocks:
                    rows = self._feature_rows(block, skip)
                    self._check(block, rows, first, where)
        except InputError:
            self.rejected += 1
            raise
        self._grow(int(columns.stream.max(initial=0)) + 1)
        for _, block in blocks:
            if skip and not self._tabular:
                block = block.without_unreadable(self.features)
            if skip or len(blocks) > 1:  # the rows of a single block are still there
                rows = self._feature_rows(block, skip)
            self._run(block, rows, skip)

    def _block_size(self) -> int:
        """Number of transitions whose features fit in memory at a time."""
        entries = [f.entries for f in self.features if isinstance(f, TransitionFeatures)]
        return max(1, min(BLOCK, ENTRIES // max(each or 1 for each in entries)))

    def _run(self, c: Columns, rows: Rows | None, skip: bool) -> None:
        """Learn in pieces that take a fraction of a second each, so that Ctrl-C is noticed."""
        m, mode = self._memory, memory_layout.SKIP if skip else memory_layout.TRUST
        sparse = _NO_ROWS if rows is None else FeatureRows(*rows)
        first, size = 0, FIRST_PIECE
        while first < len(c):
            began = perf_counter()
            piece = Transitions(*c.numbers(first, first + size))
            done, code = kernel.advance(piece, mode, m.arrays(), m.gammas, m.lams, sparse)
            if code:
                self._raise_divergence(code, c.state_at(first + int(done)))
            first, took = first + size, perf_counter() - began
            size = max(1, size * 2 if took < SHORT else size // 2 if took > LONG else size)

    def _check(self, c: Columns, rows: Rows | None, first: int, where: str) -> None:
        m = self._memory
        for begin in range(0, len(c), CHECKED):
            piece = Transitions(*c.numbers(begin, begin + CHECKED))
            bad, code = kernel.check(piece, m.plan, m.gammas, m.lams)
            if code:
                at = begin + int(bad)
                raise self._input_error(code, *c.row(at), where=where.format(first + at))

    def _feature_rows(self, c: Columns, skip: bool) -> Rows | None:
        """Feature rows of all states, or of the features that come with a chunk."""
        if self._tabular:
            return self._rows
        rows, first, bad = c.features(self.features)
        self._memory.begin_rows(first)
        self._memory.plan[LEARNER, memory_layout.COUNT] = 2 * len(c)
        if bad.any() and not skip:
            raise InputError("state", "not finite", "must hold finite numbers only")
        c.mark(bad)
        return rows

    def reset_traces(self, stream: int | None = None) -> None:
        """Clear the traces of a stream, or of all streams."""
        codes = [0]
        with self._alone():
            m = self._memory
            for each in range(m.streams) if stream is None else (stream,):
                number = arguments.integer("stream", each, 0, m.streams - 1)
                codes.append(kernel.end_traces(number, m.arrays()))
        if any(codes):  # found when deferred updates were applied
            self._raise_divergence(next(filter(None, codes)), None)

    # ------------------------------------------------------------------ estimates

    def value(self, state: Any = None) -> Any:
        """Value of a state, or of all states."""
        return self._predict_one(VALUE, state)

    def variance(self, state: Any = None) -> Any:
        """Variance of the λ-return; VTD's may be negative and is returned unclipped."""
        node, value = self._network.variance
        found = self._predict_one(node.place, state)
        J = 0.0 if value is None else self._predict_one(value.place, state)
        return found - J * J

    def std(self, state: Any = None) -> Any:
        """Square root of the variance; NaN where the estimate of the variance is negative."""
        variance = self.variance(state)
        with np.errstate(invalid="ignore"):
            return np.sqrt(variance) if state is None else float(np.sqrt(variance))

    def mean(self, state: Any = None) -> Any:
        """Mean of the λ-return: the mean node's of a centred learner, otherwise the value."""
        return self._predict_one(self._network.mean.place, state)

    def second_moment(self, state: Any = None) -> Any:
        """Second moment of the λ-return: VTD's own, otherwise variance + mean²."""
        node = self._network.second_moment
        if node is not None:
            return self._predict_one(node.place, state)
        mean = self.mean(state)
        return self.variance(state) + mean * mean

    def third_moment(self, state: Any = None) -> Any:
        """Third central moment of the λ-return, with ``order=3`` or 4.

        >>> import retvar as rv
        >>> risk = rv.Direct(alpha=0.5, gamma=0.9, lam=0.9, order=4).online(states=1)
        >>> risk.update(0, 2.0, None, terminated=True)
        >>> risk.third_moment(0), risk.fourth_moment(0)
        (4.0, 8.0)
        """
        return self._predict_one(self._moment("third_moment"), state)

    def fourth_moment(self, state: Any = None) -> Any:
        """Fourth central moment of the λ-return, with ``order=4``."""
        return self._predict_one(self._moment("fourth_moment"), state)

    def skewness(self, state: Any = None) -> Any:
        """Third moment / variance^1.5, with ``order=3`` or 4; NaN where the variance is ≤ 0."""
        return self._shape("skewness", state)

    def kurtosis(self, state: Any = None) -> Any:
        """Excess kurtosis, fourth moment / variance² − 3, with ``order=4``; NaN as above.

        Moments are learned apart, so it may be one that no return has; see :meth:`note`.
        """
        return self._shape("kurtosis", state)

    def note(self, state: Any = None) -> Any:
        """Why a skewness or kurtosis is missing or impossible, in words; empty where all is well.

        The kurtosis of a distribution is at least skewness² − 2.

        >>> import retvar as rv
        >>> risk = rv.Direct(alpha=0.5, gamma=0.9, lam=0.9, order=4).online(states=1)
        >>> risk.note(0)
        'the variance is not above 0: no skewness, no kurtosis'
        """
        found = np.full(np.shape(self.variance(state)), "")
        if self._network.higher:
            kurtosis = self.kurtosis(state) if "kurtosis" in self._network.higher else None
            found = higher_moments.notes_on(self.variance(state), self.skewness(state), kurtosis)
        return found if state is None else str(found)

    def _moment(self, name: str) -> int:
        """Place of the node of a moment."""
        place = PLACES.index(name)
        if self._network.at(place) is None:
            least = f"{name} needs a learner with order={place}"
            raise InputError("order", self._network.order, least)
        return place

    def _shape(self, name: str, state: Any) -> Any:
        moment = self._predict_one(self._moment(higher_moments.moment_of(name)), state)
        found = higher_moments.shape(name, self.variance(state), moment)
        return found if state is None else float(found)

    # ------------------------------------------------------------------ bootstrap

    @property
    def has_intervals(self) -> bool:
        """Whether there are bootstrap samples, from which intervals are made."""
        return self.bootstrap_samples > 0

    @property
    def gammas(self) -> Array:
        """γ on arrival in each state, or one for all; NaN where it comes with the data."""
        return self._memory.gammas

    @property
    def lams(self) -> Array:
        """λ on arrival in each state, or one for all; NaN where it comes with the data."""
        return self._memory.lams

    @property
    def bootstrap_samples(self) -> int:
        """Number of bootstrap replicates, for intervals."""
        return self._memory.lanes - 1

    def bootstrap_estimates(
        self, state: Any = None, what: str = "value", *, states: Any = None
    ) -> Array:
        """Estimates of ``"value"``, ``"mean"``, ``"variance"`` or a moment by all replicates.

        An array [state, replicate] of all states or of the column `states`; [replicate] for one
        `state`.
        """
        if not self.has_intervals:
            raise InputError(
                "bootstrap_samples",
                0,
                "no replicates; use online(…, bootstrap_samples=100)",
            )
        found = self._combine(what, slice(1, None), state, states)
        return found if state is None else found[0]

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
        if isinstance(what, str) and what == "std":
            with np.errstate(invalid="ignore"):
                return np.asarray(np.sqrt(self.predict(states, "variance")))
        return self._combine(what, 0, None, states)

    def interval(
        self, state: Any = None, what: str = "value", *, states: Any = None, level: float = 0.9
    ) -> tuple[Any, Any]:
        """Interval for what :meth:`predict` gives: lower and upper end.

        Estimate ± z × the standard deviation over replicates. The ends for the std are the square
        roots of those for the variance. For one `state`, a column `states`, or all states.
        """
        z = half_width(level)
        if isinstance(what, str) and what == "std":
            ends = self.interval(state, "variance", states=states, level=level)
            low, high = (np.sqrt(np.maximum(end, 0.0)) for end in ends)
        else:
            reach = z * spread(self.bootstrap_estimates(state, what, states=states))
            column = states if state is None else _as_column(state)
            estimate = self._combine(what, 0, None, column)
            low, high = estimate - reach, estimate + reach
        return (low, high) if state is None else (float(np.ravel(low)[0]), float(np.ravel(high)[0]))

    def _combine(self, what: str, lanes: int | slice, state: Any, states: Any) -> Array:
        """Estimate `what` of states, of the estimator (lane 0) or of its replicates."""
        if isinstance(what, str) and what in SHAPES.values():
            self._moment(higher_moments.moment_of(what))
            parts = (
                self._combine(part, lanes, state, states)
                for part in ("variance", higher_moments.moment_of(what))
            )
            return higher_moments.shape(what, *parts)
        if not isinstance(what, str) or what not in PLACES:
            known = (*PLACES[:THIRD], *self._network.higher)
            raise InputError(
                "what", literal(what), f"must be {', '.join(map(repr, known))} or 'std'"
            )
        node = self._network.mean.place if what == "mean" else PLACES.index(what)
        if node >= THIRD:
            self._moment(what)
        states = states if state is None else _as_column(state)
        if self._tabular:
            rows = self.features[node].rows() if self._rows is not None else None
            found = self._linear(node, rows, lanes)
            if states is not None:
                found = found[self._check_states(states)]
        else:
            if states is None:
                raise InputError("state", None, "must be given: there is no list of all states")
            column = features_of_node(states, PLACES[node])
            rows = self.features[node].rows(column)
            if not np.isfinite(rows.values).all():
                raise InputError("state", "not finite", "must hold finite numbers only")
            found = self._linear(node, rows, lanes)
        value = self._network.variance.less_square_of
        if what == "variance" and value is not None:
            found = found - self._combine(value.name, lanes, None, states) ** 2
        return found

    def _linear(self, place: int, rows: Rows | None, lanes: int | slice) -> Array:
        """w·φ of sparse rows, [row] or [row, replicate], including deferred updates."""
        m = self._memory
        found = weighted(rows, m.w[m.part(place), lanes])
        if rows is not None and not m.averages(place):
            for stream, A in enumerate(m.deferred(place)):
                reached = m.sensitivity(place, stream, rows)
                some = np.flatnonzero(reached)
                found[some] += np.multiply.outer(reached[some], A[lanes])
        return found

    @property
    def td_error(self) -> float:
        """TD error of the value node on the last transition."""
        return float(self._memory.report[VALUE])

    @property
    def td_errors(self) -> dict[str, float]:
        """TD error of each node on the last transition."""
        return {name: float(self._memory.report[k]) for k, name in self._active_nodes()}

    @property
    def step_sizes(self) -> dict[str, float]:
        """Step size that each node last used."""
        return {name: float(self._memory.report[LEARNER + k]) for k, name in self._active_nodes()}

    @property
    def weights(self) -> dict[str, Array]:
        """Weights of each node, copied."""
        return {name: np.array(self._memory.weights(k)) for k, name in self._active_nodes()}

    @property
    def memory(self) -> Memory:
        """The arrays of the estimator, to be read only."""
        return self._memory

    def _active_nodes(self) -> list[tuple[int, str]]:
        return [(node.place, node.name) for node in self._network.nodes]

    def _predict_one(self, node: int, state: Any) -> Any:
        m = self._memory
        if self._tabular:
            rows = _NO_ROWS if self._rows is None else FeatureRows(*self._rows)
            s = 0 if state is None else self._check_state(state)
            found = np.zeros(self.features[0].states if state is None else 1)  # type: ignore[arg-type]
            kernel.predict_rows(node, s, m.plan, rows, m.w, found)
            return found if state is None else float(found[0])
        if state is None:
            raise InputError("state", None, "must be given: there is no list of all states")
        given = features_of_node(state, PLACES[node])
        _, indices, values = self.features[node].rows([given])
        if not np.isfinite(values).all():
            raise InputError("state", "not finite", "must hold finite numbers only")
        return float(m.weights(node, indices) @ values)

    def _check_states(self, states: Any) -> Any:
        """Return a column of states; raise an InputError if one does not exist."""
        column = arguments.array("states", states, "a column of states")
        if column.ndim != 1:
            raise InputError("states", literal(states), "must be a column of states")
        if column.dtype.kind not in "iu":
            return [self._check_state(s) for s in column.tolist()]
        bad = (column < 0) | (column >= self.features[0].states)
        if bad.any():
            self._check_state(column[int(np.argmax(bad))])
        return column

    def _check_state(self, state: Any) -> int:
        count = self.features[0].states
        whole = arguments.is_integer(state) or isinstance(state, bool)
        if whole and 0 <= state < count:
            return int(state)
        raise InputError("state", state, f"unknown; states are 0 to {count - 1}")  # type: ignore[operator]

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
            self._add_states(states)

    def _add_states(self, states: int) -> None:
        """Move everything into arrays with more states."""
        count = self.features[0].states
        if not all(isinstance(kind, States) for kind in self.features):
            raise InputError("states", states, "can only grow if each state has its own weight")
        if arguments.integer("states", states) < count:  # type: ignore[operator]
            raise InputError("states", states, f"must be at least the present {count}")
        fresh = OnlineEstimator(self.description, [States(states)] * len(self.features))
        parts = [fresh._memory.part(node) for node in range(len(self.features))]
        place = np.concatenate([np.arange(count) + part.start for part in parts])  # type: ignore[arg-type]
        old, new = self._memory, fresh._memory
        if old.coins is not None and old.draws is not None:
            new.add_replicates(old.lanes - 1, old.draws)
        new.w[place], new.steps[place], new.report[:] = old.w, old.steps, old.report
        new.counts[:] = old.counts
        if old.held.size:
            new.held[place] = old.held
        traces = np.zeros((old.streams, new.traces.shape[1]))
        traces[:, place] = old.traces[:, : -old.places]
        traces[:, -old.places :] = old.traces[:, -old.places :]
        new.adopt(traces)
        self._memory, self.features = new, fresh.features
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
            kinds = dict.fromkeys(type(kind).__name__ for kind in self.features)
            weights = count(int(self._memory.steps.shape[0]), "weight")
            return page(title, settings({"features": ", ".join(kinds), "weights": weights}))
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

    # ------------------------------------------------------------------ errors

    def _add_stream(self, stream: Any, transition: tuple[Any, ...]) -> None:
        """Add a stream if its first transition is valid."""
        m = self._memory
        number = int(m.ints[kernel.INPUT + 3])  # what the kernel was given
        if not 0 <= number < MOST_STREAMS:
            self._reject("stream", stream, _STREAMS)
        ints = m.ints[kernel.INPUT :].reshape(4, 1)
        given: list[Any] = [*ints[:3], *m.floats[:4].reshape(4, 1), ints[3]]
        _, code = kernel.check(Transitions(*given), m.plan, m.gammas, m.lams)
        if code:
            self.rejected += 1
            raise self._input_error(code, *transition)
        try:
            self._grow(number + 1)
        except InputError:
            self.rejected += 1
            raise

    def _grow(self, streams: int) -> None:
        if streams > self._memory.streams:
            weights = self._memory.steps.shape[0]
            if streams * weights > MOST_TRACES:
                shape = f"{streams:,} streams × {weights:,} weights"
                raise InputError(
                    "stream", shape, f"more than {MOST_TRACES:,} traces; number streams from 0"
                )
            self._memory.grow(streams)
            self._attach()

    def _reject(self, field: str, value: object, remedy: str) -> None:
        self.rejected += 1
        raise InputError(field, value, remedy)

    def _reject_types(
        self, state: Any, reward: Any, next_state: Any, rho: Any, gamma: Any, lam: Any, stream: Any
    ) -> None:
        whole = {"state": state, "next_state": next_state, "stream": stream}
        for field, given in whole.items():
            known = arguments.is_integer(given) or isinstance(given, bool)
            if not known and (given is not None or field != "next_state"):
                self._reject(field, literal(given), "must be a whole number")
        for field, given in {"reward": reward, "rho": rho, "gamma": gamma, "lam": lam}.items():
            if not (given is None and field in ("gamma", "lam")):
                try:
                    float(given)
                except Exception:
                    self._reject(field, literal(given), "must be a number")
        self._reject("transition", (state, reward, next_state), "cannot be read")

    def _input_error(
        self, code: int, state: Any, reward: Any, next_state: Any, rho: Any, gamma: Any, lam: Any,
        *, where: str = "",
    ) -> InputError:  # fmt: skip
        """Return the error for an error code of a transition."""
        states = int(self._memory.plan[LEARNER, memory_layout.COUNT])
        known = f"unknown; states are 0 to {states - 1}"
        field, value, remedy = {
            memory_layout.STATE: ("state", state, known),
            memory_layout.NEXT_STATE: ("next_state", next_state, known),
            memory_layout.NO_NEXT: ("next_state", next_state, "must be given unless terminated"),
            memory_layout.REWARD: ("reward", reward, "must be a finite number"),
            memory_layout.RHO: ("rho", rho, "must be a finite number of at least 0"),
            memory_layout.GAMMA: (
                "gamma",
                gamma,
                "must lie in [0, 1]; give it here or to the learner",
            ),
            memory_layout.LAM: ("lam", lam, "must lie in [0, 1]; give it here or to the learner"),
        }[code]
        return InputError(where + field, value, remedy)

    def _raise_divergence(self, code: int, state: Any) -> None:
        place = code - memory_layout.DIVERGED
        step_size = float(self._memory.report[LEARNER + place])
        node = self._network.at(place)
        assert node is not None
        raise DivergenceError(node.name, self.steps + 1, state, step_size)


def _as_column(state: Any) -> Any:
    """Return one state (or its features) as a column."""
    if isinstance(state, Mapping):
        return {name: [part] for name, part in state.items()}
    return [state]
