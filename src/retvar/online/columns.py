"""Chunks of transitions as columns, read from mappings, structured arrays or objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from retvar.online.driver import TERMINATED, TRUNCATED, Transitions
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.td.features import Rows
from retvar.td.jit import read_only

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
UNKNOWN = -2  # marks an invalid state
MOST_STREAMS = 1_000_000


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


FIELDS = Transition._fields


class Columns:
    """Columns of transitions: states (or features) as given, and numbers for compiled code.

    Where features are given, the states of compiled code are rows of a table: those of the chunk,
    then those of the next states.
    """

    def __init__(self, state: Any, next_state: Any, numbers: Transitions) -> None:
        self.state, self.next_state = state, next_state
        self.numbers = Transitions(*map(read_only, numbers))

    def __len__(self) -> int:
        return int(self.numbers.reward.size)

    def rows(self, first: int, last: int) -> Transitions:
        """Numbers of the rows from `first` to `last` (excluded)."""
        n = len(self)
        return Transitions(*(x[first:last] if x.size == n else x for x in self.numbers))

    def part(self, first: int, last: int) -> Columns:
        """The rows from `first` to `last` (excluded)."""
        states = self.state[first:last], self.next_state[first:last]
        return Columns(*states, self.rows(first, last))

    def at(self, field: str, t: int) -> Any:
        """The entry of a row, for a message."""
        if field in ("state", "next_state"):
            return getattr(self, field)[t]
        column = getattr(self.numbers, field)
        return float(column[t if column.size > 1 else 0])

    def read_features(self, kinds: list[Any]) -> tuple[list[Rows], bool]:
        """Rows of each kind of features, and whether all are finite; others are invalid."""
        n, known = len(self), isinstance(self.next_state, np.ndarray)
        missing = np.zeros(n, dtype=bool)
        if not known or self.next_state.dtype == object:
            missing = np.array([x is None for x in self.next_state], dtype=bool)
        found = [_rows_of_both(kind, self.state, self.next_state, missing) for kind in kinds]
        bad = np.zeros(n, dtype=bool)
        for each in found:
            wrong = np.flatnonzero(~np.isfinite(each.values))
            bad[(np.searchsorted(each.indptr, wrong, side="right") - 1) % n] = True
        own, following = np.arange(2 * n).reshape(2, n)
        rows = np.where(bad, UNKNOWN, own), np.where(missing, -1, following)
        self.numbers = Transitions(*map(read_only, (*rows, *self.numbers[2:])))
        return found, not bad.any()


def _rows_of_both(kind: Any, state: Any, next_state: Any, missing: NDArray[np.bool_]) -> Rows:
    """Rows of the states, then of the next states; blank ones where there is none."""
    arrays = isinstance(state, np.ndarray) and isinstance(next_state, np.ndarray)
    if arrays and not missing.any() and state.shape[1:] == next_state.shape[1:]:
        return kind.rows(np.concatenate([state, next_state]))  # type: ignore[no-any-return]
    follows = [kind.blank if lacks else x for x, lacks in zip(next_state, missing, strict=True)]
    return kind.rows([*state, *follows])  # type: ignore[no-any-return]


def read_columns(arrays: Any, tabular: bool) -> Columns:
    """Read a mapping, a structured array, or an object with columns as attributes."""
    given = _by_name(arrays)
    for field in FIELDS[:3]:
        if given.get(field) is None:
            raise InputError(field, "missing", f"give the columns {', '.join(FIELDS[:3])}")
    reward = _numbers("reward", _column("reward", given["reward"]))
    n = reward.size
    states: list[Any] = [given["state"], given["next_state"]]
    if tabular:
        fields = ("state", "next_state")
        states = [_states(f, _column(f, x, n)) for f, x in zip(fields, states, strict=True)]
    for field, column in zip(("state", "next_state"), states, strict=True):
        if not hasattr(column, "__len__") or isinstance(column, str) or len(column) != n:
            raise InputError(field, "a column", f"must have {n} rows, as reward has")
    flags = _flags("terminated", given.get("terminated"), n, TERMINATED)
    if given.get("truncated") is not None:
        flags = flags | _flags("truncated", given["truncated"], n, TRUNCATED)
    rho, gamma, lam = (
        _shared(field, given.get(field), otherwise, n)
        for field, otherwise in (("rho", 1.0), ("gamma", -1.0), ("lam", -1.0))
    )
    stream = read_streams(given.get("stream"), n)
    s, t = states if tabular else [np.arange(n)] * 2
    numbers = Transitions(s, t, flags, reward, rho, gamma, lam, stream)
    return Columns(states[0], states[1], numbers)


def _by_name(arrays: Any) -> Mapping[str, Any]:
    if isinstance(arrays, np.ndarray) and arrays.dtype.names:
        return {field: arrays[field] for field in FIELDS if field in arrays.dtype.names}
    if not isinstance(arrays, Mapping):
        if not hasattr(arrays, "reward"):
            remedy = "must be a mapping from columns to arrays"
            raise InputError("arrays", type(arrays).__name__, remedy)
        return {field: getattr(arrays, field, None) for field in FIELDS}
    unknown = set(arrays) - set(FIELDS)
    if unknown:
        raise InputError("columns", sorted(map(str, unknown)), f"known are {', '.join(FIELDS)}")
    return arrays


def _column(field: str, given: Any, n: int | None = None, shared: bool = False) -> Any:
    """An array of one dimension, with n entries; where it is `shared` also one for all."""
    array = arguments.array(field, given, "a column")
    array = np.atleast_1d(array) if shared else array
    if array.ndim != 1:
        raise InputError(field, f"an array of shape {array.shape}", "must have one dimension")
    if n is not None and array.size != n and not (shared and array.size == 1):
        raise InputError(field, f"{array.size} rows", f"must have {n}, as reward has")
    return array


def _numbers(field: str, column: Any) -> Array:
    try:
        if column.dtype.kind in "cmMSUV":
            raise TypeError
        if column.dtype == np.float64:
            return np.ascontiguousarray(column)
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(column, dtype=np.float64)
    except Exception:  # also an error of an entry
        raise InputError(field, "a column", "must hold numbers") from None


def _states(field: str, column: Any) -> Integers:
    """Indices of states; UNKNOWN for anything but whole numbers, −1 for None."""
    if column.dtype.kind in "iu":
        return np.ascontiguousarray(column, dtype=np.int64)
    if column.dtype == object:
        column = np.array([-1 if x is None else x for x in column], dtype=object)
    numbers = _numbers(field, column)
    with np.errstate(invalid="ignore"):
        whole = numbers.astype(np.int64)
    return np.where(whole == numbers, whole, UNKNOWN)


def _flags(field: str, given: Any, n: int, flag: int) -> NDArray[np.uint8]:
    """`flag` where a column is true."""
    if given is None:
        return np.zeros(1, dtype=np.uint8)
    column = _column(field, given, n)
    known = column.dtype == bool or (column.dtype.kind in "iuf" and np.isin(column, (0, 1)).all())
    if not known:
        raise InputError(field, "a column", "must hold true or false")
    return np.where(column, np.uint8(flag), np.uint8(0))


def _shared(field: str, given: Any, otherwise: float, n: int) -> Array:
    """A column, or one number for all rows; −1 where γ or λ is not given."""
    if given is None:
        return np.full(1, otherwise)
    column = _column(field, given, n, shared=True)
    if field == "rho":
        return _numbers(field, column)
    absent = np.zeros(1, bool)
    if column.dtype == object:
        absent = np.array([x is None for x in column], dtype=bool)
        column = np.where(absent, 0.0, column)
    array = _numbers(field, column)
    if array.min(initial=0.0) >= 0.0 and not absent.any():
        return array
    return np.where(absent, otherwise, np.where(array < 0, np.nan, array))


def read_streams(given: Any, n: int) -> Integers:
    """Numbers of streams, `n` or one for all; compiled code does not check them."""
    if given is None:
        return np.zeros(1, dtype=np.int64)
    found = _states("stream", _column("stream", given, n, shared=True))
    for number in (found.min(initial=0), found.max(initial=0)):
        arguments.integer("stream", int(number), 0, MOST_STREAMS - 1)
    return found
