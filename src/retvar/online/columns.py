"""Chunks of transitions as columns, read from mappings, structured arrays or objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar import arguments
from retvar.errors import InputError
from retvar.features import Features, Rows, TransitionFeatures
from retvar.networks import PLACES, THIRD, VARIANCE
from retvar.online.memory_layout import TERMINATED, TRUNCATED

__all__ = ["MOST_STREAMS", "Columns", "read_columns", "read_streams"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
FIELDS = (
    "state", "reward", "next_state", "terminated", "truncated", "rho", "gamma", "lam", "stream",
)  # fmt: skip
UNKNOWN = -2  # marks an invalid state
MOST_STREAMS = 1_000_000


class Columns:
    """Columns of transitions; `rho`, `gamma`, `lam` and `stream` may have one entry for all."""

    def __init__(
        self, state: Any, next_state: Any, flags: Integers, reward: Array,
        rho: Array, gamma: Array, lam: Array, stream: Integers, tabular: bool,
    ) -> None:  # fmt: skip
        self.state, self.next_state = state, next_state
        self.flags, self.reward = flags, reward
        self.rho, self.gamma, self.lam, self.stream = rho, gamma, lam, stream
        self.tabular = tabular
        self._row = state if tabular else np.arange(reward.size)
        self._next = next_state if tabular else None

    def __len__(self) -> int:
        return int(self.reward.size)

    def numbers(self, first: int = 0, last: int | None = None) -> tuple[Any, ...]:
        """Return rows of the columns in the order of the compiled update."""
        cut = slice(first, last)
        shared = (self.flags, self.rho, self.gamma, self.lam, self.stream)
        flags, *rest = (x if x.size == 1 else x[cut] for x in shared)
        return self._row[cut], self._next[cut], flags, self.reward[cut], *rest  # type: ignore[index]

    def part(self, first: int, last: int) -> Columns:
        """Return the rows from `first` to `last` (excluded)."""
        cut = slice(first, last)
        shared: tuple[Any, ...] = (self.rho, self.gamma, self.lam, self.stream)
        rho, gamma, lam, stream = (x if x.size == 1 else x[cut] for x in shared)
        return Columns(
            _rows_at(self.state, cut), _rows_at(self.next_state, cut),
            self.flags if self.flags.size == 1 else self.flags[cut], self.reward[cut],
            rho, gamma, lam, stream, self.tabular,
        )  # fmt: skip

    def state_at(self, t: int) -> Any:
        """Return the state of a row."""
        return _rows_at(self.state, t)

    def row(self, t: int) -> tuple[Any, ...]:
        """Return (state, reward, next state, ρ, γ, λ) of a row, for a message."""
        rho, gamma, lam = (
            float(x[t if x.size > 1 else 0]) for x in (self.rho, self.gamma, self.lam)
        )
        return (
            _rows_at(self.state, t),
            float(self.reward[t]),
            _rows_at(self.next_state, t),
            rho,
            gamma,
            lam,
        )

    def features(self, nodes: list[Features]) -> tuple[Rows, list[int], NDArray[np.bool_]]:
        """Return feature rows, the first of value, mean and variance, and which are not finite."""
        n = len(self)
        missing = _missing(self.next_state, n)
        self._next = np.where(missing, -1, np.arange(n, 2 * n))
        if all(node is nodes[0] for node in nodes) and not isinstance(self.state, Mapping):
            rows = _rows_of_both(nodes[0], self.state, self.next_state, missing)
            first = [0, 0, 0]
        else:
            pairs = [
                (features_of_node(self.state, name), features_of_node(self.next_state, name))
                for name in PLACES[:THIRD]
            ]
            parts = [
                _rows_of_both(node, s, t, missing)
                for node, (s, t) in zip(nodes[:THIRD], pairs, strict=True)
            ]
            shift = np.cumsum([0, *(p.values.size for p in parts)])
            indptr = [p.indptr + k for p, k in zip(parts, shift, strict=False)]
            rows = Rows(
                np.concatenate(indptr),
                np.concatenate([p.indices for p in parts]),
                np.concatenate([p.values for p in parts]),
            )
            first = [0, 2 * n + 1, 2 * (2 * n + 1)]
        finite = np.isfinite(rows.values)
        bad = np.zeros(n, dtype=bool)
        if not finite.all():
            row_of = np.searchsorted(rows.indptr, np.flatnonzero(~finite), side="right") - 1
            bad[(row_of % (2 * n + 1)) % n] = True
        return rows, first, bad

    def without_unreadable(self, nodes: list[Features]) -> Columns:
        """Return the chunk with placeholders for unreadable features; those rows are invalid."""
        try:
            self.features(nodes)
            return self
        except InputError:  # find the rows
            pass
        bad = np.zeros(len(self), dtype=bool)
        for t in range(len(self)):
            try:
                self.part(t, t + 1).features(nodes)
            except InputError:
                bad[t] = True
        if bad.all():
            blank = [[_placeholder(node)] * len(self) for node in nodes[:THIRD]]
            state = next_state = dict(zip(PLACES, blank, strict=False))
        else:
            state = _with_placeholders(self.state, bad)
            next_state = _with_placeholders(self.next_state, bad)
        readable = Columns(
            state, next_state, self.flags, self.reward,
            self.rho, self.gamma, self.lam, self.stream, self.tabular,
        )  # fmt: skip
        readable.mark(bad)
        return readable

    def mark(self, bad: NDArray[np.bool_]) -> None:
        """Mark rows as invalid."""
        self._row = np.where(bad, UNKNOWN, self._row)


def features_of_node(column: Any, name: str) -> Any:
    """Return the features of a node, or those of all; the mean's default to the value's.

    Moments have those of the variance.
    """
    if not isinstance(column, Mapping):
        return column
    if name in PLACES[THIRD:]:
        name = PLACES[VARIANCE]
    if name == "mean" and "mean" not in column:
        name = "value"
    if name not in column:
        raise InputError("state", sorted(map(str, column)), f"must hold features for {name!r}")
    return column[name]


def _with_placeholders(column: Any, bad: NDArray[np.bool_]) -> Any:
    """Return a column whose invalid entries repeat a valid one."""
    if isinstance(column, Mapping):
        return {name: _with_placeholders(part, bad) for name, part in column.items()}
    good = next((x for x, absent in zip(column, bad, strict=True) if not absent), None)
    return [good if absent else x for x, absent in zip(column, bad, strict=True)]


def _missing(next_state: Any, n: int) -> NDArray[np.bool_]:
    """Return which rows have no next state."""
    if isinstance(next_state, Mapping):
        parts = [_missing(part, n) for part in next_state.values()]
        return np.asarray(np.logical_or.reduce(parts))
    if isinstance(next_state, np.ndarray) and next_state.dtype != object:
        return np.zeros(n, dtype=bool)
    return np.array([x is None for x in next_state], dtype=bool)


def _rows_of_both(node: Features, state: Any, next_state: Any, missing: NDArray[np.bool_]) -> Rows:
    """Return rows of the states, then of the next states; placeholders where there is none."""
    for field, given in (("state", state), ("next_state", next_state)):
        _same_length(field, len(given), missing.size)
    arrays = isinstance(state, np.ndarray) and isinstance(next_state, np.ndarray)
    if arrays and not missing.any() and state.shape[1:] == next_state.shape[1:]:
        return node.rows(np.concatenate([state, next_state]))
    blank = _placeholder(node)
    follows = [blank if absent else x for x, absent in zip(next_state, missing, strict=True)]
    return node.rows([*state, *follows])


def _placeholder(node: Features) -> Any:
    """Return features that stand for a missing state."""
    return node.blank if isinstance(node, TransitionFeatures) else []


def read_columns(arrays: Any, tabular: bool) -> Columns:
    """Read a mapping, a structured array, or an object with columns as attributes."""
    get = _column_getter(arrays)
    for field in FIELDS[:3]:
        if get(field) is None:
            raise InputError(field, "missing", f"give the columns {', '.join(FIELDS[:3])}")
    reward = _numbers("reward", get("reward"))
    n = reward.size
    state, next_state = get("state"), get("next_state")
    if tabular:
        state, next_state = _states("state", state), _states("next_state", next_state)
        _same_length("state", state.size, n)
        _same_length("next_state", next_state.size, n)
    else:
        for field, column in (("state", state), ("next_state", next_state)):
            for part in column.values() if isinstance(column, Mapping) else (column,):
                if not hasattr(part, "__len__") or isinstance(part, str):
                    raise InputError(field, part, "must be a column of features")
                _same_length(field, len(part), n)
    terminated, truncated = (_flags(f, get(f), n) for f in ("terminated", "truncated"))
    return Columns(
        state, next_state, TERMINATED * terminated + TRUNCATED * truncated, reward,
        _shared("rho", get("rho"), 1.0, n), _shared("gamma", get("gamma"), -1.0, n),
        _shared("lam", get("lam"), -1.0, n), read_streams(get("stream"), n), tabular,
    )  # fmt: skip


def _column_getter(arrays: Any) -> Any:
    if isinstance(arrays, Mapping):
        unknown = set(arrays) - set(FIELDS)
        if unknown:
            raise InputError("columns", sorted(map(str, unknown)), f"known are {', '.join(FIELDS)}")
        return arrays.get
    if isinstance(arrays, np.ndarray) and arrays.dtype.names:
        names = arrays.dtype.names
        return lambda field: arrays[field] if field in names else None
    if hasattr(arrays, "reward"):
        return lambda field: getattr(arrays, field, None)
    raise InputError("arrays", type(arrays).__name__, "must be a mapping from columns to arrays")


def _rows_at(column: Any, at: Any) -> Any:
    if isinstance(column, Mapping):
        return {name: part[at] for name, part in column.items()}
    return column[at]


def _numbers(field: str, given: Any) -> Array:
    try:
        column = arguments.array(field, given, "numbers")
        if column.dtype.kind == "c":
            raise TypeError
        with np.errstate(over="ignore"):
            array = np.ascontiguousarray(column, dtype=np.float64)
    except Exception:  # also an error of an entry
        raise InputError(field, "a column", "must hold numbers") from None
    if array.ndim != 1:
        raise InputError(field, f"an array of shape {array.shape}", "must have one dimension")
    return array


def _same_length(field: str, size: int, n: int) -> None:
    if size != n:
        raise InputError(field, f"{size} rows", f"must have {n}, as reward has")


def _column(field: str, given: Any) -> Any:
    """An array of one dimension."""
    try:
        array = arguments.array(field, given, "a column")
    except InputError:  # rows of different lengths
        raise InputError(field, "a column", "must have one dimension") from None
    if array.ndim != 1:
        raise InputError(field, f"an array of shape {array.shape}", "must have one dimension")
    return array


def _states(field: str, given: Any) -> Integers:
    """Return state indices; UNKNOWN for anything but integers, −1 for None."""
    array = _column(field, given)
    if array.dtype == np.int64:
        return np.ascontiguousarray(array)
    if np.issubdtype(array.dtype, np.integer):
        return np.asarray(array, dtype=np.int64)
    if array.dtype == object:
        array = np.array([-1 if x is None else x for x in array], dtype=object)
    try:
        if array.dtype.kind in "cMmV":
            raise TypeError
        with np.errstate(over="ignore"):
            numbers = array.astype(np.float64)
    except Exception:  # also an error of an entry
        raise InputError(field, "a column", "must hold indices of states") from None
    with np.errstate(invalid="ignore"):
        whole = numbers.astype(np.int64)
    return np.where(whole == numbers, whole, UNKNOWN)


def _flags(field: str, given: Any, n: int) -> Integers:
    if given is None:
        return np.zeros(1, dtype=np.int64)
    array = _column(field, given)
    _same_length(field, array.size, n)
    try:
        known = array.dtype == bool or bool(np.isin(array, (0, 1)).all())
    except Exception:  # of an entry that cannot be compared
        known = False
    if not known or array.dtype.kind in "mMV":
        raise InputError(field, "a column", "must hold true or false")
    found: Integers = array.astype(np.int64)
    return found


def _shared(field: str, given: Any, otherwise: float, n: int) -> Array:
    """Return a column, or one number for all rows; a negative default marks missing numbers."""
    if given is None:
        return np.array([otherwise])
    is_list = isinstance(given, list | tuple)
    if not is_list and arguments.array(field, given, "a number or a column").ndim == 0:
        given = [given]
    original = given
    if isinstance(given, list):
        given = [otherwise if x is None and otherwise < 0 else x for x in given]
    array = _numbers(field, given)
    if otherwise < 0:  # negative numbers mark missing ones
        marked = [x is None for x in original] if isinstance(original, list) else False
        array = np.where((array < 0) & ~np.asarray(marked), np.nan, array)
    if array.size != 1:
        _same_length(field, array.size, n)
    return array


def read_streams(given: Any, n: int) -> Integers:
    """Return numbers of streams, `n` or one for all; compiled code does not check them.

    >>> read_streams([0, 1_000_000], 2)
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: stream = 1000000: must be a whole number from 0 to 999,999
    """
    if given is None:
        return np.zeros(1, dtype=np.int64)
    array = _states("stream", np.atleast_1d(arguments.array("stream", given, "whole numbers")))
    if array.size != 1:
        _same_length("stream", array.size, n)
    for number in (array.min(initial=0), array.max(initial=0)):
        arguments.integer("stream", int(number), 0, MOST_STREAMS - 1)
    return array
