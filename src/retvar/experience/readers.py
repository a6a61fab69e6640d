"""Read files and tables in record batches of bounded size.

``pyarrow.dataset`` is not used for Parquet: it reads ahead, so that intact row groups before a
damaged one are lost, and it ends a batch at every row group.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import glob
import hashlib
import os
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar import arguments
from retvar.errors import InputError
from retvar.experience.arrow_columns import import_pyarrow, integers, is_text
from retvar.experience.episodes import SourceEnded, describe_error
from retvar.files import kind_of
from retvar.format import listed
from retvar.reading import parse_json, require_file

__all__ = ["Reader", "all_readers", "open_csv", "open_file", "open_readers", "readable"]

BLOCK = 4 << 20  # bytes of a CSV file read at a time
ENCODING = "utf-8-sig"  # decoding while reading makes invalid text an error, not a warning
NULLS = ["", "null", "NULL", "nan", "NaN"]  # not NA, which may be the name of a state
METADATA_KEY = b"retvar"  # of the metadata that retvar writes into its files
SCAN_ROWS = 65_536  # of a batch of `value_range`, and of the first look at the types of columns
MOST_COLUMNS = 10_000
LONGEST_HEADER = 1_000_000  # characters
LONGEST_TEXT = 10_000  # bytes of one entry; of longer ones a digest is kept
BEGINNING = 40  # characters of a longer one that are kept
TEXT_BYTES = 1 << 26  # of one column of a batch
LARGE_GROUP = 1 << 30  # bytes of the texts of a row group
LOOK = 4096  # bytes of a buffer that is not filled
PACKED = 200  # how many times smaller than its texts a large row group may be
SUFFIXES = (".parquet", ".csv", ".csv.gz")
SOURCE = "must be a path or pattern of .parquet or .csv files, a list of paths, or a table"

Mask = NDArray[np.bool_]
Batches = Callable[[list[str], int], Iterator[Any]]


@dataclass
class Reader:
    """One table: its columns, and how to read them in batches.

    ``batches(columns, chunk)`` yields record batches; `malformed` collects the numbers, from 1, of
    rows with a wrong number of fields, as far as the file has been read.
    """

    name: str
    types: dict[str, Any]
    batches: Batches
    rows: int | None = None
    groups: list[int] = field(default_factory=list)  #: rows of each row group of a Parquet file
    text: bool = False  #: all columns are text, as in CSV
    metadata: dict[str, Any] = field(default_factory=dict)  #: written by retvar into its files
    malformed: list[int] = field(default_factory=list)
    continues: bool = False  #: its rows follow those of the reader before, in the same file
    growth: Callable[[], Iterator[Reader | None]] | None = None
    """Gives readers of what is added to the source later, and None where nothing new is there."""
    known_ranges: dict[str, tuple[int, int] | None] = field(default_factory=dict, repr=False)

    def value_range(self, column: str) -> tuple[int, int] | None:
        """Least and largest integer of a column; None if it has none or cannot be read to its end.

        The statistics in Parquet files are not used: PyArrow aborts where they are damaged.
        """
        if column not in self.known_ranges:
            self.known_ranges[column] = _value_range(self.batches([column], SCAN_ROWS))
        return self.known_ranges[column]


def open_readers(source: Any) -> list[Reader]:
    """Open a source: one reader for each file, or one for a table in memory.

    >>> [reader.types for reader in open_readers({"state": [0, 1], "reward": [1.0, 2.0]})]
    [{'state': DataType(int64), 'reward': DataType(double)}]
    """
    pa = import_pyarrow()
    if hasattr(source, "open_growing"):
        return list(source.open_growing())
    if isinstance(source, str | Path):
        return [open_file(path) for path in _paths(source)]
    if isinstance(source, list | tuple):
        if not source or not all(isinstance(each, str | Path) for each in source):
            raise InputError("source", f"a list of {len(source)}", SOURCE)
        return [open_file(path) for each in source for path in _paths(each)]
    if isinstance(source, Mapping):
        return [_open_table(_to_table(source))]
    if isinstance(source, pa.Table):
        return [_open_table(source)]
    if isinstance(source, pa.RecordBatch):
        return [_open_table(pa.Table.from_batches([source]))]
    if hasattr(source, "columns") and hasattr(source, "index"):  # a DataFrame
        return [_open_table(_to_table({str(name): source[name] for name in source.columns}))]
    raise InputError("source", type(source).__name__, SOURCE)


def all_readers(readers: list[Reader]) -> Iterator[Reader | None]:
    """The readers, then those of what is added later; None where nothing new is there."""
    yield from readers
    if readers[-1].growth is not None:
        yield from readers[-1].growth()


def _paths(given: str | Path) -> list[Path]:
    path = arguments.path("source", given)
    here = kind_of("source", path) == "file"
    found = [path] if here else [Path(each) for each in sorted(glob.glob(str(given)))]
    if not found:
        raise InputError("source", str(given), "there is no such file")
    for each in found:
        if not each.name.lower().endswith(SUFFIXES):
            raise InputError("source", str(each), f"must be a file {' or '.join(SUFFIXES)}")
    return found


def open_file(path: Path, groups: range | None = None, *, threads: bool = True) -> Reader:
    """Open a Parquet or CSV file; of a Parquet file, perhaps some row groups only.

    With `threads`, a Parquet file is read ahead and decoded in other threads.
    """
    with readable(path):
        if path.name.lower().endswith(".parquet"):
            return _open_parquet(path, groups, threads)
        return open_csv(lambda: _open_native(path), str(path))


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """A block that opens a file; whatever is wrong with the file is an InputError.

    >>> with readable(Path("missing.csv")):
    ...     pass
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: source = missing.csv: does not exist; check the path
    """
    require_file(path, "source")
    try:
        with path.open("rb"):
            pass
        yield
    except (InputError, SourceEnded):
        raise
    except Exception as error:  # a broken file may raise anything
        raise InputError("source", str(path), f"cannot be read: {describe_error(error)}") from None


def _open_native(path: Path) -> Any:
    """A file of PyArrow, unpacked; PyArrow takes names that are not UTF-8 as bytes only."""
    pa = import_pyarrow()
    file = pa.OSFile(os.fsencode(path))
    return pa.CompressedInputStream(file, "gzip") if path.name.lower().endswith(".gz") else file


@contextlib.contextmanager
def _parquet_file(path: Path, **options: Any) -> Iterator[Any]:
    with (
        _open_native(path) as source,
        import_pyarrow().parquet.ParquetFile(source, **options) as file,
    ):
        yield file


def _open_parquet(path: Path, groups: range | None, threads: bool) -> Reader:
    with _parquet_file(path) as file:
        schema, meta = file.schema_arrow, file.metadata
    own = range(meta.num_row_groups) if groups is None else groups
    leaves = [meta.schema.column(k) for k in range(len(meta.schema))]
    place = {leaf.path: k for k, leaf in enumerate(leaves) if leaf.physical_type == "BYTE_ARRAY"}
    chunks_of = cache(lambda name: _text_chunks(path, meta, own, place[name]))

    def batches(columns: list[str], chunk: int) -> Iterator[Any]:
        rows = read(columns, chunk)
        return _ahead(rows) if threads else rows

    def read(columns: list[str], chunk: int) -> Iterator[Any]:
        texts = {name: chunks_of(name) for name in columns if name in place}
        _require_unpackable(str(path), schema, columns, texts)
        packed = [name for name, parts in texts.items() if _as_numbers(schema.field(name), parts)]
        options = {"page_checksum_verification": True, "read_dictionary": packed}
        with _parquet_file(path, **options) as file:
            for some in _row_groups(meta, own, chunk):  # so that a damaged one costs no other
                found = file.iter_batches(
                    chunk, row_groups=some, columns=columns, use_threads=threads
                )
                found = _checked_texts(str(path), found, sum(sizes[: some[0]]))
                yield from _decoded(map(_short_batch, found), schema, chunk)

    sizes = [int(meta.row_group(group).num_rows) for group in range(own.stop)]
    rows = sizes[own.start :]
    return replace(_reader(str(path), schema, batches, sum(rows)), groups=rows)


@dataclass(frozen=True)
class _TextChunk:
    """What the metadata of a Parquet file say of the texts of one column in one row group."""

    size: int
    compressed: int
    prefixed: bool  #: texts share their beginnings; PyArrow cannot give these as numbers


def _text_chunks(path: Path, meta: Any, groups: range, column: int) -> list[_TextChunk]:
    """The chunks of a column, one for each row group.

    PyArrow aborts the process if a chunk whose metadata are wrong is looked at. So a batch of no
    rows is asked for first: that checks the same metadata with an exception, and reads nothing.
    """
    found = []
    with _parquet_file(path, metadata=meta, buffer_size=LOOK, pre_buffer=False) as file:
        for group in groups:
            for _ in file.reader.iter_batches(0, [group], [column], use_threads=False):
                pass
            part = meta.row_group(group).column(column)
            prefixed = any(encoding.startswith("DELTA") for encoding in part.encodings)
            sizes = part.total_uncompressed_size, part.total_compressed_size
            found.append(_TextChunk(*sizes, prefixed))
    return found


def _require_unpackable(
    name: str, schema: Any, columns: list[str], texts: dict[str, list[_TextChunk]]
) -> None:
    """Refuse entries that are too long, and row groups that are far smaller than their texts."""
    fixed = import_pyarrow().types.is_fixed_size_binary
    for column in columns:
        kind = schema.field(column).type
        if fixed(kind) and kind.byte_width > LONGEST_TEXT:
            shown, remedy = f"texts of {kind.byte_width:,} bytes", "are too long for a log"
            raise InputError(f"{name}: {column}", shown, f"{remedy}; {LONGEST_TEXT:,} are allowed")
    for parts in zip(*texts.values(), strict=True):
        size = sum(part.size for part in parts)
        if size > max(LARGE_GROUP, PACKED * sum(part.compressed for part in parts)):
            raise InputError(name, f"texts of {size:,} bytes", "are too much for so small a file")


def _as_numbers(field: Any, parts: list[_TextChunk]) -> bool:
    """Whether PyArrow can give the texts of a column as numbers of different texts."""
    return _holds_text(field.type) and not any(part.prefixed for part in parts)


def _checked_texts(name: str, batches: Iterator[Any], first: int) -> Iterator[Any]:
    """The same batches, until a text is not UTF-8; the first row is that after `first` others."""
    for batch in batches:
        named = zip(batch.schema.names, batch.columns, strict=True)
        yield _with_columns(batch, [_checked(each, column, name, first) for column, each in named])
        first += batch.num_rows


def _checked(texts: Any, column: str, name: str, first: int) -> Any:
    """A column; an error if a row has a text that is not UTF-8.

    Where no row has such a text of a dictionary, a missing one takes its place.
    """
    pa = import_pyarrow()
    coded = pa.types.is_dictionary(texts.type)
    values = texts.dictionary if coded else texts
    wrong = _not_utf8(values)
    if not wrong.any():
        return texts
    code = np.arange(len(texts))
    if coded:
        code = texts.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    raw = _raw(values)
    rows = np.flatnonzero(wrong[code] & (code >= 0))
    if rows.size:
        text = raw[int(code[rows[0]])] or b""
        shown = text[:BEGINNING].decode(errors="backslashreplace")
        remedy = "is not UTF-8; write the texts of this column as UTF-8"
        raise InputError(f"{name}, row {first + rows[0] + 1:,}: {column}", shown, remedy)
    kept = [None if bad else text for bad, text in zip(wrong, raw, strict=True)]
    return pa.DictionaryArray.from_arrays(texts.indices, pa.array(kept, values.type))


def _not_utf8(texts: Any) -> Mask:
    """Which entries of a column are texts that are not UTF-8; empty where there is none."""
    try:
        if is_text(texts.type):
            texts.validate(full=True)
    except import_pyarrow().ArrowInvalid:
        return np.array([not _is_utf8(raw or b"") for raw in _raw(texts)])
    return np.zeros(0, dtype=bool)


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _raw(texts: Any) -> list[bytes | None]:
    """The bytes of a column of text."""
    pa = import_pyarrow()
    kind = pa.binary_view() if pa.types.is_string_view(texts.type) else pa.large_binary()
    found: list[bytes | None] = texts.cast(kind).to_pylist()
    return found


def _decoded(batches: Iterator[Any], schema: Any, chunk: int) -> Iterator[Any]:
    """Batches with texts in place of numbers of texts, as large as before or as memory allows.

    Few bytes of a Parquet file may hold a long text many times.
    """
    parts: list[Any] = []
    rows = 0
    for batch in batches:
        most = _rows_in_memory(batch)
        for first in range(0, batch.num_rows, most):
            parts.append(batch.slice(first, most))
            rows += parts[-1].num_rows
            if rows >= chunk or most < batch.num_rows:
                yield _joined(parts, schema)
                parts, rows = [], 0
    if parts:
        yield _joined(parts, schema)


def _joined(parts: list[Any], schema: Any) -> Any:
    """One batch of several, with the types of the schema."""
    pa = import_pyarrow()
    names = parts[0].schema.names
    wanted = pa.schema([(name, _plain_text(schema.field(name).type)) for name in names])
    if len(parts) == 1 and parts[0].schema.types == wanted.types:
        return parts[0]
    (batch,) = pa.Table.from_batches(parts).cast(wanted).combine_chunks().to_batches()
    return batch


def _rows_in_memory(batch: Any) -> int:
    """How many rows of a batch may be decoded at a time."""
    most: int = max(batch.num_rows, 1)
    for column in batch.columns:
        values = getattr(column, "dictionary", None)
        if values is not None and most * values.nbytes > TEXT_BYTES:  # one text may be that long
            longest = int(_lengths(values).max(initial=1))
            most = max(1, min(most, TEXT_BYTES // longest))
    return most


def _short_texts(batches: Batches) -> Batches:
    """The same batches; a digest stands for what a very long text has beyond its beginning.

    Such texts are hardly labels, but comments and the like, which only tell rows apart.
    """

    def shortened(columns: list[str], chunk: int) -> Iterator[Any]:
        with contextlib.closing(_generator(batches(columns, chunk))) as found:
            yield from map(_short_batch, found)

    return shortened


def _generator(items: Iterator[Any]) -> Generator[Any, None, None]:
    yield from items


def _short_batch(batch: Any) -> Any:
    return _with_columns(batch, [_short(column) for column in batch.columns])


def _with_columns(batch: Any, columns: list[Any]) -> Any:
    """The batch with these columns in place of its own."""
    if all(new is old for new, old in zip(columns, batch.columns, strict=True)):
        return batch
    return import_pyarrow().RecordBatch.from_arrays(columns, batch.schema.names)


def _short(column: Any) -> Any:
    """The column; the column of what stands for its texts, if one of them is very long."""
    pa = import_pyarrow()
    if pa.types.is_dictionary(column.type):
        values = _short(column.dictionary)
        if values is column.dictionary:
            return column
        return pa.DictionaryArray.from_arrays(column.indices, values)
    if _lengths(column).max(initial=0) <= LONGEST_TEXT:
        return column
    return pa.array([_stand_in(text) for text in column.to_pylist()], column.type)


def _stand_in(text: Any) -> Any:
    """A text that is not too long; another text has another one.

    >>> _stand_in("short"), _stand_in("a" * 20_000)[:46]
    ('short', 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa… (20,')
    """
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if raw is None or len(raw) <= LONGEST_TEXT:
        return text
    about = f"… ({len(raw):,} bytes, {hashlib.sha256(raw).hexdigest()[:32]})"
    return text[:BEGINNING] + (about if isinstance(text, str) else about.encode())


def _holds_text(kind: Any) -> bool:
    types = import_pyarrow().types
    binary = types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)
    return is_text(kind) or bool(binary)


def _plain_text(kind: Any) -> Any:
    """The type, or one that numbers of texts can be made into."""
    pa = import_pyarrow()
    if pa.types.is_string_view(kind):
        return pa.large_string()
    return pa.large_binary() if pa.types.is_binary_view(kind) else kind


def _lengths(column: Any) -> NDArray[np.int64]:
    """The bytes of the texts of a column; empty where it has other data."""
    pa = import_pyarrow()
    if pa.types.is_dictionary(column.type):
        found = _lengths(column.dictionary)
        return found[column.indices.fill_null(0)] if found.size else found
    if not _holds_text(column.type):
        return np.zeros(0, dtype=np.int64)
    column = column.cast(_plain_text(column.type))
    found = pa.compute.binary_length(column).fill_null(0)
    return np.asarray(found.to_numpy(zero_copy_only=False), dtype=np.int64)


def _ahead(batches: Iterator[Any]) -> Iterator[Any]:
    """The same batches; from the second on, the next one is read while one is being used."""
    first = next(batches, None)
    if first is None:
        return
    yield first
    with ThreadPoolExecutor(1, "retvar-read") as thread:
        following = thread.submit(next, batches, None)
        while (batch := following.result()) is not None:
            following = thread.submit(next, batches, None)
            yield batch


def _row_groups(meta: Any, own: range, rows: int) -> Iterator[list[int]]:
    """Yield lists of consecutive row groups with at least `rows` rows each."""
    groups: list[int] = []
    count = 0
    for g in own:
        groups.append(g)
        count += meta.row_group(g).num_rows
        if count >= rows:
            yield groups
            groups, count = [], 0
    if groups:
        yield groups


def _open_table(table: Any) -> Reader:
    def batches(columns: list[str], chunk: int) -> Iterator[Any]:
        found = table.select(columns).to_batches(max_chunksize=chunk)
        yield from _checked_texts("the table", iter(found), 0)

    return _reader("the table", table.schema, batches, int(table.num_rows))


def _reader(name: str, schema: Any, batches: Batches, rows: int) -> Reader:
    _require_rows(name, schema, rows)
    return Reader(name, _types(schema), _short_texts(batches), rows, metadata=_own_metadata(schema))


def open_csv(open_part: Callable[[], Any], name: str, header: list[str] | None = None) -> Reader:
    """A reader of a CSV file, or of a part of one without its first line, the `header`.

    `open_part` opens it.
    """
    _require_short_lines(open_part(), name, header)
    pa = import_pyarrow()
    extra = 1 if header is None else 0  # the header has number 1
    malformed: list[int] = []

    def skip(row: Any) -> str:
        malformed.append(int(row.number) - extra)
        return "skip"

    def open_columns(columns: list[str]) -> Any:
        malformed.clear()
        return pa.csv.open_csv(
            open_part(),
            read_options=pa.csv.ReadOptions(
                use_threads=False, block_size=BLOCK, encoding=ENCODING, column_names=header
            ),
            parse_options=pa.csv.ParseOptions(invalid_row_handler=skip),
            convert_options=pa.csv.ConvertOptions(
                column_types=dict.fromkeys(columns, pa.string()),
                include_columns=columns, strings_can_be_null=True, null_values=NULLS,
            ),
        )  # fmt: skip

    def batches(columns: list[str], chunk: int) -> Iterator[Any]:
        with _advice(), open_columns(columns) as file:
            for batch in _whole_rows(name, file):
                for first in range(0, batch.num_rows, chunk):
                    yield batch.slice(first, chunk)

    with _advice(), open_columns([]) as file:
        schema = file.schema
    if any(next(batches([column], 1), None) is None for column in schema.names[:1]):
        _require_rows(name, schema, 0)
    text = pa.schema([(column, pa.string()) for column in schema.names])
    return Reader(name, _types(text), _short_texts(batches), text=True, malformed=malformed)


def _require_short_lines(opened: Any, name: str, header: list[str] | None) -> None:
    """Refuse a header or first lines that PyArrow cannot take: it would wait for ever at exit."""
    with opened as file:
        start = file.read(2 * BLOCK)
    if header is None:
        _require_narrow(name, start)
        first, _, start = start.partition(b"\n")
        if len(first) > LONGEST_HEADER:
            shown, remedy = f"more than {LONGEST_HEADER:,} characters", "must hold names of columns"
            raise InputError(f"header of {name}", shown, f"the first line {remedy}")
        names = next(csv.reader([first.decode(ENCODING, "replace").rstrip("\r")]), [])
        _require_names(name, names)
        _require_commas(name, names)
    if max(map(len, start.split(b"\n")), default=0) >= BLOCK:
        raise _too_long(name)


def _require_narrow(name: str, start: bytes) -> None:
    """Refuse text whose first characters take two or four bytes each."""
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)):
        why = "it begins with the byte order mark of UTF-16 or UTF-32"
    elif b"\0" in start[:4]:
        why = "its first characters have empty bytes, as in UTF-16"
    else:
        return
    raise InputError("source", name, f"is not UTF-8: {why}; save it as UTF-8")


def _require_commas(name: str, names: list[str]) -> None:
    """Refuse a header whose columns are not separated by commas."""
    for sign, word in (";", "semicolons"), ("\t", "tabs"), ("|", "bars"):
        if len(names) == 1 and sign in names[0]:
            remedy = f"has {word} between columns; write it with commas and decimal points"
            raise InputError(f"header of {name}", names[0], remedy)


def _whole_rows(name: str, batches: Any) -> Iterator[Any]:
    """Yield record batches until a row does not fit into a block."""
    try:
        yield from batches
    except import_pyarrow().ArrowInvalid as error:
        if "straddl" not in str(error):
            raise
        raise _too_long(name) from None


@contextlib.contextmanager
def _advice() -> Iterator[None]:
    """A block that decodes text; an error names the remedy."""
    try:
        yield
    except UnicodeDecodeError as error:
        error.reason += "; save the file as UTF-8"
        raise


def _too_long(name: str) -> InputError:
    shown = f"a row of more than {BLOCK >> 20} MB"
    return InputError(name, shown, "is too long to be a row of a log; is it one?")


def _value_range(batches: Iterator[Any]) -> tuple[int, int] | None:
    least, largest = [], []
    try:
        for batch in batches:
            value, missing = integers(batch.column(0))
            value = value[~missing] if missing.any() else value
            if value.size:
                least.append(int(value.min()))
                largest.append(int(value.max()))
    except Exception:  # which is raised again, and reported, when the rows are read
        return None
    return (min(least), max(largest)) if least else None


def _to_table(columns: Mapping[Any, Any]) -> Any:
    """Convert a mapping to a table; a two-dimensional entry becomes one column per number."""
    pa = import_pyarrow()
    table: dict[str, Any] = {}
    for name, given in columns.items():
        arguments.text("column", name)
        try:
            if np.ndim(given) == 2:
                array = np.asarray(given)
                table |= {f"{name}_{k}": pa.array(array[:, k]) for k in range(array.shape[1])}
            else:
                found = pa.array(given)
                chunked = isinstance(found, pa.ChunkedArray)
                table[str(name)] = found.combine_chunks() if chunked else found
        except Exception as error:  # a list may hold anything
            remedy = f"cannot be read as a column: {describe_error(error)}"
            raise InputError(f"column {name!r}", type(given).__name__, remedy) from None
    lengths = {name: len(column) for name, column in table.items()}
    if len(set(lengths.values())) > 1:
        raise InputError("columns", lengths, "must have the same length")
    return pa.table(table)


def _require_rows(name: str, schema: Any, rows: int) -> None:
    if not rows:
        raise InputError("source", name, "has no rows")
    _require_names(name, schema.names)


def _require_names(name: str, names: list[str]) -> None:
    """Refuse too many columns, and names that occur twice."""
    if len(names) > MOST_COLUMNS:
        remedy = f"more than {MOST_COLUMNS:,} cannot be a log; keep the columns that are needed"
        raise InputError("columns", f"{len(names):,} of {name}", remedy)
    twice = sorted(each for each, times in Counter(names).items() if times > 1)
    if twice:
        raise InputError("columns", listed(twice), f"occur in {name} more than once; rename them")


def _types(schema: Any) -> dict[str, Any]:
    return {column.name: column.type for column in schema}


def _own_metadata(schema: Any) -> dict[str, Any]:
    """Metadata that retvar wrote into the file; empty where it cannot be read."""
    try:
        metadata = parse_json((schema.metadata or {}).get(METADATA_KEY, b"{}"), "metadata")
    except InputError:
        return {}
    return metadata if isinstance(metadata, dict) else {}
