"""Linked transitions at rest: one table that every source fills and every estimator reads."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.support.errors import InputError, WriteError

Chunk = dict[str, NDArray[Any]]
CHUNK = 262_144  # rows of a chunk, unless asked otherwise
AT_ONCE = 4_000_000  # numbers that are fetched at once, if a chunk has no more
LARGEST_REWARD = 1e24  # its eighth power is summed, times that of the ratio, and stays finite
LARGEST_RATIO = 1e12
SHARE = 4  # of the machine's memory, one part in so many is used by default


class Workspace:
    """A DuckDB database with a limit of memory; beyond it, it uses a temporary folder."""

    def __init__(self, memory: str | None = None, source: str = "") -> None:
        import duckdb

        self.source = source  # what is read, for messages
        self.folder = tempfile.mkdtemp(prefix="retvar-moves-")
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        settings: dict[str, Any] = {
            "temp_directory": self.folder,
            "memory_limit": f"{machine // SHARE // 1_000_000}MB" if memory is None else memory,
            "autoinstall_known_extensions": "false", "autoload_known_extensions": "false",
            "python_enable_replacements": "false", "threads": 1,
        }  # fmt: skip
        try:
            self.db = duckdb.connect(":memory:", config=settings)
        except (duckdb.Error, TypeError):
            shutil.rmtree(self.folder)
            raise InputError("memory", memory, "must be an amount such as '2GB'") from None
        weakref.finalize(self, _remove, self.db, self.folder)

    def execute(self, query: str) -> Any:
        """Run a query; Ctrl-C ends it."""
        try:
            return self.db.execute(query)
        except Exception as error:  # DuckDB wraps what the handler of a signal raises
            cause = error.__cause__
            if isinstance(cause, KeyboardInterrupt) or "Interrupt" in str(error):
                self.db.interrupt()
                raise cause or KeyboardInterrupt from None
            if not self.source:
                remedy = f"has no room for the transitions ({error}); set TMPDIR"
                raise WriteError("folder", tempfile.gettempdir(), remedy) from None
            raise InputError(
                "source", self.source, f"cannot be read: {describe_error(error)}"
            ) from None

    def in_parallel(self, query: str) -> Any:
        """Run a query on all cores: those that take one row after another only wait on them."""
        self.db.execute("RESET threads")
        try:
            return self.execute(query)
        finally:
            self.db.execute("SET threads = 1")

    def all(self, query: str) -> list[tuple[Any, ...]]:
        """All rows that a query gives."""
        return list(self.execute(query).fetchall())

    def one(self, query: str) -> Any:
        """The one value that a query gives."""
        return self.execute(query).fetchone()[0]

    def insert(self, start: str, columns: dict[str, NDArray[Any]], select: str = "*") -> None:
        """Run ``start SELECT select FROM columns``."""
        self.db.register("retvar_new", columns)
        self.execute(f"{start} SELECT {select} FROM retvar_new")
        self.db.unregister("retvar_new")


def _remove(db: Any, folder: str) -> None:
    db.close()
    shutil.rmtree(folder, ignore_errors=True)


class Moves:
    """Linked transitions at rest, trajectory by trajectory.

    Rows of one trajectory are adjacent and in the order of time; the last row of each is terminated
    or truncated. It may be read as often as one likes, forwards or backwards. Rows beyond the limit
    of memory are in a temporary folder (``TMPDIR``), which goes with this object.

    >>> moves = Moves()
    >>> moves.append({"state": np.array([0, 5, 1]), "next_state": np.array([1, 6, 2]),
    ...               "reward": np.array([1.0, 2.0, 3.0]), "stream": np.array([0, 1, 0])})
    >>> [(chunk["reward"], chunk["truncated"]) for chunk in moves.chunks()]
    [(array([1., 3., 2.]), array([False,  True,  True]))]
    """

    def __init__(
        self, work: Workspace | None = None, table: str = "", widths: dict[str, int] | None = None
    ) -> None:
        self._work, self._table = work, table  # without a table: rows that were appended
        self._widths = widths or {}  # numbers in a row of each column; 0: it is one number

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns; empty before the first row."""
        return tuple(self._widths)

    def __len__(self) -> int:
        return self.count("true")

    def __iter__(self) -> Iterator[Chunk]:
        return self.chunks()

    def append(self, chunk: Chunk) -> None:
        """Add transitions, all or none; those of one ``stream`` come in the order of time."""
        rows, before = len(chunk["reward"]), len(self)
        if not rows:
            return
        none = np.zeros(rows, dtype=bool)
        chunk = {"terminated": none, "truncated": none, **chunk}
        stream = chunk.pop("stream", np.zeros(rows, dtype=np.int64))
        widths = {name: 0 if x.ndim == 1 else x.shape[1] for name, x in chunk.items()}
        flat = {"retvar_stream": stream, "retvar_n": np.arange(before, before + rows)}
        for name, x in chunk.items():
            parts = map(np.ascontiguousarray, np.atleast_2d(x.T))
            flat |= zip(_parts({name: widths[name]}), parts, strict=True)
        self._table, self._work = "", self._work or Workspace()
        start = "INSERT INTO added BY NAME" if before else "CREATE OR REPLACE TABLE added AS"
        self._work.insert(start, flat)
        self._widths = widths

    def count(self, condition: str = "terminated OR truncated") -> int:
        """Rows with a condition; by default trajectories, of which each ends in one row."""
        if not self._widths:
            return 0
        work, table = self.in_database() if condition != "true" else (self._work, self._table)
        assert work is not None
        return int(work.one(f"SELECT count(*) FROM {table or 'added'} WHERE {condition}"))

    def in_database(self) -> tuple[Workspace, str]:
        """The database and the table, in order; the last row of each stream is truncated.

        Rows that were appended have the columns ``retvar_stream`` and ``retvar_n``, too.
        """
        assert self._work is not None
        if not self._table:
            self._work.execute(
                "CREATE OR REPLACE TABLE moves AS SELECT * REPLACE (truncated OR (NOT terminated "
                "AND retvar_n IN (SELECT max(retvar_n) FROM added GROUP BY retvar_stream)) "
                "AS truncated) FROM added ORDER BY retvar_stream, retvar_n"
            )
            self._table = "moves"
        return self._work, self._table

    def chunks(self, size: int = CHUNK, *, backwards: bool = False) -> Iterator[Chunk]:
        """Yield the rows in chunks; backwards: from the last chunk to the first.

        Rows within a chunk are in the order of time either way.
        """
        rows = len(self)
        if not rows:
            return
        (work, table), turn = self.in_database(), reversed if backwards else iter
        names = ", ".join(self._names)
        at_once = size * max(AT_ONCE // (size * len(self._names)), 1)
        for first in turn(range(0, rows, at_once)):
            where = f"rowid >= {first} AND rowid < {first + at_once}"
            found = work.execute(f"SELECT {names} FROM {table} WHERE {where}").fetchnumpy()
            chunk = {}
            for name, width in self._widths.items():
                parts = [_plain(found[part]) for part in _parts({name: width})]
                chunk[name] = np.stack(parts, axis=1) if width else parts[0]
            for k in turn(range(0, min(at_once, rows - first), size)):
                yield {name: column[k : k + size] for name, column in chunk.items()}

    @property
    def _names(self) -> list[str]:
        return _parts(self._widths)

    def write(self, path: Path, about: str, actions: list[str] | None = None) -> None:
        """Write a Parquet file with a text about it; actions are written by their names."""
        work, table = self.in_database()
        names = self._names
        if actions is not None and "action" in names:
            known = ", ".join(map(text_literal, actions))
            names[names.index("action")] = f"[{known}][action + 1] AS action"
        work.execute(
            f"COPY (SELECT {', '.join(names)} FROM {table}) TO {text_literal(os.fspath(path))} "
            f"(FORMAT parquet, ROW_GROUP_SIZE 65536, KV_METADATA {{retvar: {text_literal(about)}}})"
        )


def _parts(widths: dict[str, int]) -> list[str]:
    """Columns of the database that columns of so many numbers in a row consist of."""
    return [x for name, n in widths.items() for x in [f"{name}_{k}" for k in range(n)] or [name]]


def _plain(column: NDArray[Any]) -> NDArray[Any]:
    """A column as it was appended: whole numbers of 64 bits; NaN, where the database has NULL."""
    if column.dtype.kind == "i":
        return np.asarray(column, dtype=np.int64)
    return np.asarray(np.ma.filled(column, np.nan) if column.dtype.kind == "f" else column)


def selected(columns: dict[str, list[str]], widths: dict[str, int]) -> str:
    """SQL for columns, each of one expression, or of one for each number in a row."""
    pairs = zip(itertools.chain(*columns.values()), _parts(widths), strict=True)
    return ", ".join(f"{sql} AS {name}" for sql, name in pairs)


def quoted(name: str) -> str:
    """A name in SQL."""
    return '"' + name.replace('"', '""') + '"'


def text_literal(text: str) -> str:
    """A text in SQL."""
    return "'" + text.replace("'", "''") + "'"


def describe_error(error: BaseException) -> str:
    """Type and message of an error, on one line."""
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
