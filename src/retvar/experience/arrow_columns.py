"""Convert Arrow columns to NumPy arrays, with masks of the entries that cannot be read."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.errors import InputError
from retvar.random import U, mix

__all__ = [
    "IdEncoder", "LabelEncoder", "booleans", "episode_ids", "import_pyarrow", "integers",
    "is_number", "is_text", "is_time", "leading_zeros",
    "number_rows", "numbers", "plain", "row_hashes", "times",
]  # fmt: skip

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
MOST_LABELS = 10_000_000
_mix: Any = getattr(mix, "py_func", mix)  # takes arrays
MISSING_KEY = U(0x9E3779B97F4A7C15)  # stands for missing entries in hashes of rows
BOOLEANS = ("false", "0", "0.0", "f", "no", "true", "1", "1.0", "t", "yes")


def import_pyarrow() -> Any:
    """Import PyArrow, or raise an error that says how to install it.

    >>> import_pyarrow().__name__
    'pyarrow'
    """
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError:
        remedy = 'reads and writes tables; install it: pip install "retvar[data]"'
        raise InputError("pyarrow", "missing", remedy) from None
    return pyarrow


def is_number(kind: Any) -> bool:
    """Whether an Arrow type holds numbers or booleans.

    >>> import pyarrow as pa
    >>> [is_number(kind) for kind in (pa.int8(), pa.float32(), pa.bool_(), pa.string())]
    [True, True, True, False]
    """
    t = import_pyarrow().types
    return any(check(kind) for check in (t.is_integer, t.is_floating, t.is_boolean, t.is_decimal))


def is_text(kind: Any) -> bool:
    """Whether an Arrow type holds text.

    >>> import pyarrow as pa
    >>> is_text(pa.string()), is_text(pa.int8())
    (True, False)
    """
    t = import_pyarrow().types
    return bool(t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind))


def is_time(kind: Any) -> bool:
    """Whether an Arrow type holds dates or times.

    >>> import pyarrow as pa
    >>> is_time(pa.date32()), is_time(pa.string())
    (True, False)
    """
    return bool(import_pyarrow().types.is_temporal(kind))


def numbers(column: Any) -> Array:
    """Convert a column to floats; NaN where an entry is no number.

    >>> import pyarrow as pa
    >>> numbers(pa.array(["1", "x", None, "2.5"]))
    array([1. , nan, nan, 2.5])
    """
    pa = import_pyarrow()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if is_text(column.type):
        try:
            return np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False))
        except pa.ArrowInvalid:
            return np.array([_number(each) for each in column.to_pylist()], dtype=np.float64)
    if not pa.types.is_floating(column.type):
        column = column.cast(pa.float64(), safe=False)
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)


def _number(given: str | None) -> float:
    truth = {"true": 1.0, "false": 0.0}.get((given or "").strip().lower())
    try:
        return truth if truth is not None else float("nan" if given is None else given)
    except ValueError:
        return float("nan")


def integers(column: Any) -> tuple[Integers, Mask]:
    """Convert a column to integers, with a mask of the entries that are none.

    >>> import pyarrow as pa
    >>> integers(pa.array([3.0, 0.5, None]))
    (array([3, 0, 0]), array([False,  True,  True]))
    """
    pa = import_pyarrow()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if is_text(column.type):
        try:
            column = column.cast(pa.int64())
        except pa.ArrowInvalid:
            return _to_integers(numbers(column))
    if not (pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)):
        return _to_integers(numbers(column))
    missing = np.zeros(len(column), dtype=bool)
    if column.null_count:
        missing = np.asarray(column.is_null().to_numpy(zero_copy_only=False))
        column = column.fill_null(False if pa.types.is_boolean(column.type) else 0)
    if column.type != pa.int64():
        column = column.cast(pa.int64(), safe=False)
    return np.asarray(column.to_numpy(zero_copy_only=False)), missing


def leading_zeros(column: Any) -> Mask:
    """Entries of a column of text that are whole numbers with leading zeros, such as 010.

    >>> import pyarrow as pa
    >>> leading_zeros(pa.array(["010", "10", "0", None, "0.5"]))
    array([ True, False, False, False, False])
    """
    if not is_text(column.type):
        return np.zeros(len(column), dtype=bool)
    found = _compute().match_substring_regex(column, r"^[+-]?0[0-9]+$")
    return np.asarray(found.fill_null(False).to_numpy(zero_copy_only=False))


def _to_integers(value: Array) -> tuple[Integers, Mask]:
    missing = ~(np.abs(value) < 2.0**53)
    missing |= np.where(missing, 0.0, value) != np.trunc(np.where(missing, 0.0, value))
    return np.where(missing, 0.0, value).astype(np.int64), missing


def booleans(column: Any) -> tuple[Mask, Mask]:
    """Convert a column to booleans, with a mask of the entries that are neither true nor false.

    >>> import pyarrow as pa
    >>> booleans(pa.array(["True", "0", "perhaps"]))
    (array([ True, False, False]), array([False, False,  True]))
    """
    pa = import_pyarrow()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_boolean(column.type) and not column.null_count:
        return np.asarray(column.to_numpy(zero_copy_only=False)), np.zeros(len(column), dtype=bool)
    if is_text(column.type):
        compute = _compute()
        lower = compute.utf8_lower(compute.utf8_trim_whitespace(column))
        code = compute.index_in(lower, value_set=pa.array(BOOLEANS, lower.type))
        code = code.fill_null(-1).to_numpy(zero_copy_only=False)
        return code >= len(BOOLEANS) // 2, code < 0
    value = numbers(column)
    return value == 1, ~((value == 0) | (value == 1))


def _compute() -> Any:
    import pyarrow.compute

    return pyarrow.compute


def episode_ids(column: Any) -> tuple[Integers, Mask]:
    """Map ids of episodes to integers, with a mask of the missing ones.

    >>> import pyarrow as pa
    >>> ids, missing = episode_ids(pa.array(["a", "a", None]))
    >>> bool(ids[0] == ids[1]), missing
    (True, array([False, False,  True]))
    """
    if import_pyarrow().types.is_integer(column.type):
        return integers(column)
    if is_number(column.type):
        value = numbers(column) + 0.0  # no −0
        return value.view(np.int64), np.isnan(value)
    code, values = _encode(column)
    keys = np.array([hash(value) for value in values] or [0], dtype=np.int64)
    return keys[code], code < 0


def number_rows(columns: list[Any]) -> tuple[Integers, list[Any]]:
    """Index of each row among the distinct tuples of several columns (−1: missing), and these.

    Whole numbers are the same label whether they are written as 1, 1.0 or text.

    >>> import pyarrow as pa
    >>> number_rows([pa.array(["a", "b", "a"]), pa.array([1.0, None, 1.0])])
    (array([ 0, -1,  0]), [('a', 1)])
    """
    parts = [_encode(column) for column in columns]
    codes = np.stack([code for code, _ in parts], axis=1)
    entries = [[plain(value) for value in values] for _, values in parts]
    present = (codes >= 0).all(axis=1)
    index = np.full(len(codes), -1, dtype=np.int64)
    rows, found = np.unique(codes[present], axis=0, return_inverse=True)
    index[present] = found.ravel()
    names = [tuple(values[k] for values, k in zip(entries, row, strict=True)) for row in rows]
    return index, names


def plain(value: Any) -> Any:
    """A whole number as an integer and a truth as a bool, also where they are written as text.

    >>> plain("12"), plain(3.0), plain("012"), plain(0.5), plain("true")
    (12, 3, '012', 0.5, True)
    """
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, str):
        return value
    if len(value) < 20 and value.removeprefix("-").isdecimal() and value.isascii():
        return int(value) if str(int(value)) == value else value
    return {"true": True, "false": False}.get(value, value)


def row_hashes(columns: list[Any]) -> Integers:
    """A number for each row that is the same for rows that are equal in all columns.

    >>> import pyarrow as pa
    >>> a, b, c = row_hashes([pa.array([1, 1, 2]), pa.array(["x", "x", None])])
    >>> bool(a == b), bool(b == c)
    (True, False)
    """
    found = np.zeros(len(columns[0]) if columns else 0, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for column in columns:
            key, missing = episode_ids(column)
            found = _mix(found) ^ np.where(missing, MISSING_KEY, _mix(key.view(U)))
    return np.asarray(found.view(np.int64))


def times(column: Any, dates: bool) -> tuple[Integers, Array, Mask]:
    """Times as whole numbers and fractions, with a mask of the entries that cannot be read.

    Numbers stay what they are; dates and times (`dates`) become seconds. So neither nanoseconds
    since 1970 nor fractions lose their order. Times without a zone are taken as UTC.

    >>> import pyarrow as pa
    >>> times(pa.array([3, None]), dates=False)
    (array([3, 0]), array([0., 0.]), array([False,  True]))
    >>> times(pa.array(["1970-01-02", "1970-01-01T00:00:01.5Z"]), dates=True)
    (array([86400,     1]), array([0. , 0.5]), array([False, False]))
    """
    pa = import_pyarrow()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if dates:
        moments, second = _moments(column if is_time(column.type) else _parsed_dates(column))
        whole, missing = integers(moments)
        seconds, rest = np.divmod(whole, second)
        return seconds, rest / second, missing
    whole, missing = integers(column)
    if pa.types.is_integer(column.type) or not missing.any():
        return whole, np.zeros(whole.size), missing
    value = numbers(column)
    missing = ~(np.abs(value) < 2.0**62)
    known = np.where(missing, 0.0, value)
    floor = np.floor(known)
    return floor.astype(np.int64), np.asarray(known - floor), missing


def _moments(column: Any) -> tuple[Any, int]:
    """A column of dates or times as integers, and how many of them are a second."""
    pa = import_pyarrow()
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("s"))
    second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[getattr(column.type, "unit", "s")]
    counted = column.cast(pa.int32()) if pa.types.is_time32(column.type) else column
    return counted.cast(pa.int64()), second


def _parsed_dates(column: Any) -> Any:
    """Text such as 2026-01-31 or 2026-01-31T12:00:00Z as timestamps."""
    pa = import_pyarrow()
    for unit in ("ns", "us"):
        for zone in (None, "UTC"):
            try:
                return column.cast(pa.timestamp(unit, zone))
            except pa.ArrowInvalid:
                continue
    coded = column.dictionary_encode()
    parsed = [_parsed_date(text) for text in coded.dictionary.to_pylist()]
    return pa.array(parsed, pa.timestamp("us", "UTC")).take(coded.indices)


def _parsed_date(text: str | None) -> datetime | None:
    try:
        found = datetime.fromisoformat((text or "").strip())
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _encode(column: Any) -> tuple[Integers, list[Any]]:
    """Index of each entry among the distinct values (−1: missing), and these values.

    Dates and times become text, as CSV files have them.
    """
    pa = import_pyarrow()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if is_time(column.type):
        column = column.cast(pa.string())
    if pa.types.is_floating(column.type) and len(column):
        column = _compute().if_else(_compute().is_nan(column), None, column)
    coded = column.dictionary_encode()
    code = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    values = coded.dictionary.to_pylist()
    return code, [plain(x) for x in values] if pa.types.is_floating(column.type) else values


class LabelEncoder:
    """Numbers labels in order of appearance.

    >>> import pyarrow as pa
    >>> encoder = LabelEncoder([])
    >>> encoder.encode([pa.array(["b", "a"]), pa.array(["c", None])])
    [array([0, 2]), array([ 1, -1])]
    >>> encoder.labels
    ['b', 'c', 'a']
    """

    def __init__(self, labels: list[Any], role: str = "state") -> None:
        self.labels, self.role = labels, role
        self._number = {label: k for k, label in enumerate(labels)}

    def encode(self, columns: list[Any], skip_last: Mask | None = None) -> list[Integers]:
        """Numbers of several columns, read row by row; −1 where a label is missing.

        A list of columns is one column of tuples. Entries of the last column are skipped where the
        mask `skip_last` is true.
        """
        parts = [number_rows(c) if isinstance(c, list) else _encode(c) for c in columns]
        order, offset = [], 0
        for code, values in parts:
            order.append(np.where(code < 0, -1, code + offset))
            offset += len(values)
        if skip_last is not None:
            order[-1] = np.where(skip_last, -1, order[-1])
        values = [value for _, part in parts for value in part]
        distinct, first = np.unique(np.stack(order, axis=1).ravel(), return_index=True)
        table = np.full(len(values) + 1, -1, dtype=np.int64)  # the last entry for missing labels
        for k in distinct[np.argsort(first)]:
            if k >= 0:
                table[k] = self._number_of(values[k])
        return [table[each] for each in order]

    def _number_of(self, label: Any) -> int:
        number = self._number.get(label)
        if number is None:
            number = self._number[label] = len(self.labels)
            self.labels.append(label)
            if number >= MOST_LABELS:
                remedy = "too many to be kept apart; name another column"
                if self.role == "state":
                    remedy = "too many to be states; name columns of numbers as observations"
                raise InputError(self.role, f"more than {MOST_LABELS:,} different ones", remedy)
        return number


class IdEncoder:
    """Numbers ids in order of appearance; whole numbers faster than by a LabelEncoder.

    >>> import pyarrow as pa
    >>> encoder = IdEncoder("entity")
    >>> encoder.encode(pa.array([7, 3, None])), encoder.encode(pa.array([3, 9])), encoder.count
    (array([ 0,  1, -1]), array([1, 2]), 3)
    """

    def __init__(self, role: str) -> None:
        self._labels = LabelEncoder([], role)
        self._known = np.zeros(0, dtype=np.int64)  # sorted
        self._numbers = np.zeros(0, dtype=np.int64)
        self._whole: bool | None = None

    @property
    def count(self) -> int:
        """Number of different ids so far."""
        return self._known.size if self._whole else len(self._labels.labels)

    def encode(self, column: Any) -> Integers:
        """Numbers of the entries; −1 where one is missing."""
        whole = bool(import_pyarrow().types.is_integer(column.type))
        if self._whole is None:
            self._whole = whole
        if whole != self._whole:
            kind = str(column.type)
            raise InputError(self._labels.role, kind, "must be of one kind in all files")
        if not whole:
            return self._labels.encode([column])[0]
        value, missing = integers(column)
        present = value[~missing] if missing.any() else value
        distinct, first, index = np.unique(present, return_index=True, return_inverse=True)
        self._learn(distinct, first)
        found = np.full(value.size, -1, dtype=np.int64)
        found[~missing] = self._numbers[np.searchsorted(self._known, distinct)][index.ravel()]
        return found

    def _learn(self, distinct: Integers, first: Any) -> None:
        """Number the new ones among sorted distinct ids, by their first appearance."""
        at = np.searchsorted(self._known, distinct)
        new = np.ones(distinct.size, dtype=bool)
        inside = at < self._known.size
        new[inside] = self._known[at[inside]] != distinct[inside]
        rank = np.empty(int(new.sum()), dtype=np.int64)
        rank[np.argsort(first[new])] = np.arange(rank.size)
        self._numbers = np.insert(self._numbers, at[new], self._known.size + rank)
        self._known = np.insert(self._known, at[new], distinct[new])
