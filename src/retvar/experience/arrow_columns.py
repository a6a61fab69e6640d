"""Convert Arrow columns to NumPy arrays, with masks of the entries that cannot be read."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.errors import InputError

__all__ = [
    "LabelEncoder", "booleans", "episode_ids", "import_pyarrow", "integers", "is_number", "is_text",
    "numbers",
]  # fmt: skip

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
MOST_LABELS = 10_000_000
BOOLEANS = ("false", "0", "0.0", "f", "no", "true", "1", "1.0", "t", "yes")


def import_pyarrow() -> Any:
    """Import PyArrow, or raise an error that says how to install it.

    >>> import_pyarrow().__name__
    'pyarrow'
    """
    try:
        import pyarrow
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


def numbers(column: Any) -> Array:
    """Convert a column to floats; NaN where an entry is no number.

    >>> import pyarrow as pa
    >>> numbers(pa.array(["1", "x", None, "2.5"]))
    array([1. , nan, nan, 2.5])
    """
    pa = import_pyarrow()
    if is_text(column.type):
        try:
            return np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False))
        except pa.ArrowInvalid:
            return np.array([_number(each) for each in column.to_pylist()], dtype=np.float64)
    if not pa.types.is_floating(column.type):
        column = column.cast(pa.float64(), safe=False)
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)


def _number(given: str | None) -> float:
    try:
        return float("nan" if given is None else given)
    except ValueError:
        return float("nan")


def integers(column: Any) -> tuple[Integers, Mask]:
    """Convert a column to integers, with a mask of the entries that are none.

    >>> import pyarrow as pa
    >>> integers(pa.array([3.0, 0.5, None]))
    (array([3, 0, 0]), array([False,  True,  True]))
    """
    pa = import_pyarrow()
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


def _encode(column: Any) -> tuple[Integers, list[Any]]:
    """Index of each entry among the distinct values (−1: missing), and these values."""
    pa = import_pyarrow()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    coded = column.dictionary_encode()
    code = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return code, coded.dictionary.to_pylist()


class LabelEncoder:
    """Numbers labels in order of appearance.

    >>> import pyarrow as pa
    >>> encoder = LabelEncoder([])
    >>> encoder.encode([pa.array(["b", "a"]), pa.array(["c", None])])
    [array([0, 2]), array([ 1, -1])]
    >>> encoder.labels
    ['b', 'c', 'a']
    """

    def __init__(self, labels: list[Any]) -> None:
        self.labels = labels
        self._number = {label: k for k, label in enumerate(labels)}

    def encode(self, columns: list[Any], skip_last: Mask | None = None) -> list[Integers]:
        """Numbers of several columns, read row by row; −1 where a label is missing.

        Entries of the last column are skipped where the mask `skip_last` is true.
        """
        parts = [_encode(column) for column in columns]
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
                remedy = "too many to be states; name columns of numbers as observations"
                raise InputError("state", f"more than {MOST_LABELS:,} different ones", remedy)
        return number
