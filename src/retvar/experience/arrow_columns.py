"""Columns of tables as numbers: whatever they are kept in, and with what cannot be read marked."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.errors import InputError

__all__ = ["Labels", "arrow", "episodes", "flags", "is_number", "is_text", "numbers", "wholes"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
MOST_LABELS = 10_000_000
WORDS = ("false", "0", "0.0", "f", "no", "true", "1", "1.0", "t", "yes")


def arrow() -> Any:
    """PyArrow, or how to get it.

    >>> arrow().__name__
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
    """Whether a type of PyArrow holds numbers, or true and false.

    >>> import pyarrow as pa
    >>> [is_number(kind) for kind in (pa.int8(), pa.float32(), pa.bool_(), pa.string())]
    [True, True, True, False]
    """
    t = arrow().types
    return any(check(kind) for check in (t.is_integer, t.is_floating, t.is_boolean, t.is_decimal))


def is_text(kind: Any) -> bool:
    """Whether a type of PyArrow holds text.

    >>> import pyarrow as pa
    >>> is_text(pa.string()), is_text(pa.int8())
    (True, False)
    """
    t = arrow().types
    return bool(t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind))


def numbers(column: Any) -> Array:
    """A column as numbers; NaN where there is none.

    >>> import pyarrow as pa
    >>> numbers(pa.array(["1", "x", None, "2.5"]))
    array([1. , nan, nan, 2.5])
    """
    pa = arrow()
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


def wholes(column: Any) -> tuple[Integers, Mask]:
    """A column as whole numbers, and where there are none.

    >>> import pyarrow as pa
    >>> wholes(pa.array([3.0, 0.5, None]))
    (array([3, 0, 0]), array([False,  True,  True]))
    """
    pa = arrow()
    if is_text(column.type):
        try:
            column = column.cast(pa.int64())
        except pa.ArrowInvalid:
            return _whole(numbers(column))
    if not (pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)):
        return _whole(numbers(column))
    none = np.zeros(len(column), dtype=bool)
    if column.null_count:
        none = np.asarray(column.is_null().to_numpy(zero_copy_only=False))
        column = column.fill_null(False if pa.types.is_boolean(column.type) else 0)
    if column.type != pa.int64():
        column = column.cast(pa.int64(), safe=False)
    return np.asarray(column.to_numpy(zero_copy_only=False)), none


def _whole(given: Array) -> tuple[Integers, Mask]:
    none = ~(np.abs(given) < 2.0**53)
    none |= np.where(none, 0.0, given) != np.trunc(np.where(none, 0.0, given))
    return np.where(none, 0.0, given).astype(np.int64), none


def flags(column: Any) -> tuple[Mask, Mask]:
    """A column as true and false, and where it is neither.

    >>> import pyarrow as pa
    >>> flags(pa.array(["True", "0", "perhaps"]))
    (array([ True, False, False]), array([False, False,  True]))
    """
    pa = arrow()
    if pa.types.is_boolean(column.type) and not column.null_count:
        return np.asarray(column.to_numpy(zero_copy_only=False)), np.zeros(len(column), dtype=bool)
    if is_text(column.type):
        compute = _compute()
        plain = compute.utf8_lower(compute.utf8_trim_whitespace(column))
        code = compute.index_in(plain, value_set=pa.array(WORDS, plain.type))
        code = code.fill_null(-1).to_numpy(zero_copy_only=False)
        return code >= len(WORDS) // 2, code < 0
    value = numbers(column)
    return value == 1, ~((value == 0) | (value == 1))


def _compute() -> Any:
    import pyarrow.compute

    return pyarrow.compute


def episodes(column: Any) -> tuple[Integers, Mask]:
    """Something to tell ids apart by, and where there is none.

    >>> import pyarrow as pa
    >>> ids, none = episodes(pa.array(["a", "a", None]))
    >>> bool(ids[0] == ids[1]), none
    (True, array([False, False,  True]))
    """
    if arrow().types.is_integer(column.type):
        return wholes(column)
    if is_number(column.type):
        value = numbers(column) + 0.0  # no −0
        return value.view(np.int64), np.isnan(value)
    code, values = _encoded(column)
    keys = np.array([hash(value) for value in values] or [0], dtype=np.int64)
    return keys[code], code < 0


def _encoded(column: Any) -> tuple[Integers, list[Any]]:
    """Numbers of the entries among the different ones, −1 for none, and those."""
    pa = arrow()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    coded = column.dictionary_encode()
    code = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return code, coded.dictionary.to_pylist()


class Labels:
    """Numbers for what states are called, in the order in which they come.

    >>> import pyarrow as pa
    >>> labels = Labels([])
    >>> labels.numbers([pa.array(["b", "a"]), pa.array(["c", None])])
    [array([0, 2]), array([ 1, -1])]
    >>> labels.names
    ['b', 'c', 'a']
    """

    def __init__(self, names: list[Any]) -> None:
        self.names = names
        self._number = {name: k for k, name in enumerate(names)}

    def numbers(self, columns: list[Any], unless: Mask | None = None) -> list[Integers]:
        """Numbers of columns side by side, read row by row; `unless`: not the last one's."""
        parts = [_encoded(column) for column in columns]
        order, offset = [], 0
        for code, values in parts:
            order.append(np.where(code < 0, -1, code + offset))
            offset += len(values)
        if unless is not None:
            order[-1] = np.where(unless, -1, order[-1])
        values = [value for _, part in parts for value in part]
        seen, first = np.unique(np.stack(order, axis=1).ravel(), return_index=True)
        table = np.full(len(values) + 1, -1, dtype=np.int64)  # the last one for none
        for k in seen[np.argsort(first)]:
            if k >= 0:
                table[k] = self._number_of(values[k])
        return [table[each] for each in order]

    def _number_of(self, name: Any) -> int:
        number = self._number.get(name)
        if number is None:
            number = self._number[name] = len(self.names)
            self.names.append(name)
            if number >= MOST_LABELS:
                remedy = "too many to be states; name columns of numbers as observations"
                raise InputError("state", f"more than {MOST_LABELS:,} different ones", remedy)
        return number
