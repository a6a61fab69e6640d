"""Files and tables as batches of columns, so that more than memory holds can be read."""

from __future__ import annotations

import glob
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from retvar.errors import InputError
from retvar.experience.arrow_columns import arrow, wholes
from retvar.experience.episodes import in_words
from retvar.format import listed

__all__ = ["Reader", "readers_of"]

BLOCK = 4 << 20  # bytes of a CSV file read at a time
ENCODING = "utf-8-sig"  # decoded as it is read, so that what is no text is an error, not a warning
MISSING = ["", "null", "NULL", "nan", "NaN"]  # not NA, which may be what a state is called
KEY = b"retvar"  # of what a file of ours says about itself
ROWS = 65_536  # looked at together
KINDS = (".parquet", ".csv", ".csv.gz")
SOURCE = "must be a path or pattern of .parquet or .csv files, a list of paths, or a table"


@dataclass
class Reader:
    """One table: its columns, and how to read them a batch at a time.

    `batches(columns, chunk)` yields record batches; `gone` has the numbers, from 1, of rows that
    could not even be taken apart, as far as they are known.
    """

    name: str
    types: dict[str, Any]
    batches: Callable[[list[str], int], Iterator[Any]]
    rows: int | None = None
    text: bool = False  #: everything is text, as in CSV
    told: dict[str, Any] = field(default_factory=dict)  #: what a file of ours says about itself
    span: Callable[[str], tuple[Any, Any] | None] = lambda _: None  #: least and largest, if known
    gone: list[int] = field(default_factory=list)


def readers_of(source: Any) -> list[Reader]:
    """Open what is given: files one after the other, or one table in memory.

    >>> [reader.types for reader in readers_of({"state": [0, 1], "reward": [1.0, 2.0]})]
    [{'state': DataType(int64), 'reward': DataType(double)}]
    """
    pa = arrow()
    if isinstance(source, str | Path):
        return [_file(path) for path in _paths(source)]
    if isinstance(source, list | tuple):
        if not source or not all(isinstance(each, str | Path) for each in source):
            raise InputError("source", f"a list of {len(source)}", SOURCE)
        return [_file(path) for each in source for path in _paths(each)]
    if isinstance(source, Mapping):
        return [_memory(_tabulated(source))]
    if isinstance(source, pa.Table):
        return [_memory(source)]
    if isinstance(source, pa.RecordBatch):
        return [_memory(pa.Table.from_batches([source]))]
    if hasattr(source, "columns") and hasattr(source, "index"):  # a DataFrame
        return [_memory(_tabulated({str(name): source[name] for name in source.columns}))]
    raise InputError("source", type(source).__name__, SOURCE)


def _paths(given: str | Path) -> list[Path]:
    path = Path(given)
    found = [path] if path.is_file() else [Path(each) for each in sorted(glob.glob(str(given)))]
    if not found:
        raise InputError("source", str(given), "there is no such file")
    for each in found:
        if not each.name.lower().endswith(KINDS):
            raise InputError("source", str(each), f"must be a file {' or '.join(KINDS)}")
    return found


def _file(path: Path) -> Reader:
    try:
        with path.open("rb"):
            pass
        opened = _parquet(path) if path.name.lower().endswith(".parquet") else _csv(path)
    except InputError:
        raise
    except Exception as error:  # whatever the bytes of a broken file lead to
        raise InputError("source", str(path), f"cannot be read: {in_words(error)}") from None
    return opened


def _parquet(path: Path) -> Reader:
    pq = arrow().parquet
    with pq.ParquetFile(path) as file:
        schema, meta = file.schema_arrow, file.metadata
    _some(str(path), schema, meta.num_rows)

    def batches(columns: list[str], chunk: int) -> Iterator[Any]:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for groups in _grouped(meta, chunk):  # one failing takes no other with it
                yield from file.iter_batches(chunk, row_groups=groups, columns=columns)

    # not by the statistics in the file: PyArrow aborts where those are damaged
    @cache
    def span(column: str) -> tuple[Any, Any] | None:
        return _span(batches([column], ROWS))

    return Reader(
        str(path), _types(schema), batches, int(meta.num_rows), told=_told(schema), span=span
    )


def _grouped(meta: Any, rows: int) -> Iterator[list[int]]:
    """Row groups, put together until they have enough rows."""
    groups: list[int] = []
    count = 0
    for g in range(meta.num_row_groups):
        groups.append(g)
        count += meta.row_group(g).num_rows
        if count >= rows:
            yield groups
            groups, count = [], 0
    if groups:
        yield groups


def _csv(path: Path) -> Reader:
    csv, pa = arrow().csv, arrow()
    gone: list[int] = []

    def invalid(row: Any) -> str:
        gone.append(int(row.number) - 1)  # the header has number 1
        return "skip"

    def opened(columns: list[str]) -> Any:
        gone.clear()
        return csv.open_csv(
            str(path),
            read_options=csv.ReadOptions(use_threads=False, block_size=BLOCK, encoding=ENCODING),
            parse_options=csv.ParseOptions(invalid_row_handler=invalid),
            convert_options=csv.ConvertOptions(
                column_types=dict.fromkeys(columns, pa.string()),
                include_columns=columns, strings_can_be_null=True, null_values=MISSING,
            ),
        )  # fmt: skip

    def batches(columns: list[str], chunk: int) -> Iterator[Any]:
        with opened(columns) as file:
            for batch in file:
                for first in range(0, batch.num_rows, chunk):
                    yield batch.slice(first, chunk)

    with opened([]) as file:
        schema = file.schema
    if any(next(batches([name], 1), None) is None for name in schema.names[:1]):
        _some(str(path), schema, 0)
    text = pa.schema([(name, pa.string()) for name in schema.names])
    return Reader(str(path), _types(text), batches, text=True, gone=gone)


def _memory(table: Any) -> Reader:
    _some("the table", table.schema, table.num_rows)

    def batches(columns: list[str], chunk: int) -> Iterator[Any]:
        yield from table.select(columns).to_batches(max_chunksize=chunk)

    @cache
    def span(column: str) -> tuple[Any, Any] | None:
        return _span(batches([column], ROWS))

    return Reader(
        "the table", _types(table.schema), batches, int(table.num_rows),
        told=_told(table.schema), span=span,
    )  # fmt: skip


def _span(batches: Iterator[Any]) -> tuple[Any, Any] | None:
    """Least and largest number of a column; None where it cannot be read to its end."""
    least, largest = [], []
    try:
        for batch in batches:
            value, none = wholes(batch.column(0))
            value = value[~none] if none.any() else value
            if value.size:
                least.append(int(value.min()))
                largest.append(int(value.max()))
    except Exception:  # which will be met, and told, when the rows are read
        return None
    return (min(least), max(largest)) if least else None


def _tabulated(columns: Mapping[Any, Any]) -> Any:
    """A mapping as a table; what has two dimensions becomes a column for each number."""
    pa = arrow()
    made: dict[str, Any] = {}
    for name, given in columns.items():
        try:
            if np.ndim(given) == 2:
                array = np.asarray(given)
                made |= {f"{name}_{k}": pa.array(array[:, k]) for k in range(array.shape[1])}
            else:
                found = pa.array(given)
                made[str(name)] = (
                    found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found
                )
        except Exception as error:  # anything may be in a list
            remedy = f"cannot be read as a column: {in_words(error)}"
            raise InputError(f"column {name!r}", type(given).__name__, remedy) from None
    lengths = {name: len(column) for name, column in made.items()}
    if len(set(lengths.values())) > 1:
        raise InputError("columns", lengths, "must have the same length")
    return pa.table(made)


def _some(name: str, schema: Any, rows: int) -> None:
    if not rows:
        raise InputError("source", name, "has no rows")
    twice = sorted({each for each in schema.names if schema.names.count(each) > 1})
    if twice:
        raise InputError("columns", listed(twice), f"stand in {name} more than once")


def _types(schema: Any) -> dict[str, Any]:
    return {column.name: column.type for column in schema}


def _told(schema: Any) -> dict[str, Any]:
    """What a file of ours says about itself; nothing where that cannot be read."""
    try:
        told = json.loads((schema.metadata or {}).get(KEY, b"{}"))
    except (ValueError, UnicodeDecodeError):
        return {}
    return told if isinstance(told, dict) else {}
