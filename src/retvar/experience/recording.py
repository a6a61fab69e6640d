"""Write a stream to a Parquet file, from which `from_table` reads the same transitions."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np

from retvar import arguments
from retvar.errors import InputError
from retvar.experience.arrow_columns import import_pyarrow
from retvar.experience.readers import METADATA_KEY
from retvar.experience.stream import Chunk, Counts, Experience
from retvar.files import (
    create_temporary,
    discard,
    kind_of,
    require_writable,
    target_of,
    unwritable,
    write_with,
)

__all__ = ["finish_recordings", "recorded", "write_table"]

GROUP = 65_536  # rows in a row group
Source = Callable[[Counts], Iterator[Chunk]]
_writing: WeakSet[_ParquetFile] = WeakSet()


def write_table(experience: Experience, path: str | Path) -> None:
    """Read a stream to its end and write it to a Parquet file.

    :func:`retvar.experience.from_table` reads the same transitions back, in the same order, to the
    last bit. If the source fails, everything before is written and the error is raised.

    >>> import pathlib, tempfile
    >>> from retvar.experience import from_gymnasium, from_table
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "lake.parquet"
    >>> write_table(from_gymnasium("FrozenLake-v1", steps=100), path)
    >>> again = from_table(path)
    >>> len(list(again)), again.states, again.grid
    (100, 16, (4, 4))
    """
    empty = True
    for _ in recorded(experience, path).chunks():
        empty = False
    if empty:
        raise InputError("experience", experience.name, "has no transitions; nothing is written")


def recorded(experience: Experience, path: str | Path) -> Experience:
    """Return the same stream, which is also written to a Parquet file while it is read.

    The file appears when the stream ends, fails or is abandoned, with everything read until then.

    >>> import pathlib, tempfile
    >>> from retvar.experience import from_gymnasium
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "lake.parquet"
    >>> lake = recorded(from_gymnasium("FrozenLake-v1", steps=100), path)
    >>> sum(t.reward for t in lake) >= 0, path.exists()
    (True, True)
    """
    arguments.instance("experience", experience, Experience, "experience: rv.experience.from_…")
    path = arguments.path("path", path)
    import_pyarrow()
    if kind_of("path", path.parent) != "folder":
        raise InputError("path", path, "its folder does not exist; create it first")
    if kind_of("path", path) == "folder" or path.suffix.lower() != ".parquet":
        raise InputError("path", path, "must be the name of a .parquet file")
    require_writable("path", path.parent)

    def source(inner: Source, counts: Counts) -> Iterator[Chunk]:
        file = _ParquetFile(path, experience)
        try:
            for chunk in inner(counts):
                file.write(chunk)
                yield chunk
        finally:
            file.finish()

    acting = experience.with_actions
    return replace(
        experience,
        source=partial(source, experience.source),
        with_actions=None if acting is None else partial(source, acting),
    )


def finish_recordings() -> None:
    """Complete all files that are being written, by a process that is about to be ended.

    >>> finish_recordings()  # none
    """
    for file in list(_writing):
        file.finish()


class _ParquetFile:
    """A Parquet file that is written under a temporary name and moved into place at the end."""

    def __init__(self, path: Path, experience: Experience) -> None:
        self.path, self.experience = path, experience
        self._parts: list[Any] = []
        self._rows = 0
        self._writer: Any = None
        self._temporary: Path | None = None
        self._lock, self._finished = threading.Lock(), False
        _writing.add(self)

    def write(self, chunk: Chunk) -> None:
        """Add a chunk; whole row groups are written at once."""
        actions = self.experience.actions
        if actions is not None and "action" in chunk:
            chunk = chunk | {"action": np.array([str(actions[k]) for k in chunk["action"]])}
        with self._lock:
            if self._finished:
                return
            self._parts.append(_table(chunk))
            self._rows += len(chunk["reward"])
            if self._rows >= GROUP:
                self._write_groups(self._rows // GROUP * GROUP)

    def _write_groups(self, rows: int) -> None:
        """Write the first of the pending rows, in row groups of one size."""
        pending = import_pyarrow().concat_tables(self._parts)
        table = pending.slice(0, rows)
        with self._errors_named():
            if self._writer is None:
                self._open(table.schema)
            self._writer.write_table(table, row_group_size=GROUP)
        self._rows -= rows
        self._parts = [pending.slice(rows)] if self._rows else []

    @contextmanager
    def _errors_named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise unwritable(self.path, error) from None

    def _open(self, schema: Any) -> None:
        self._temporary = create_temporary(target_of(self.path))
        schema = schema.with_metadata({METADATA_KEY: json.dumps(self._metadata())})
        pq = import_pyarrow().parquet
        self._writer = pq.ParquetWriter(self._temporary, schema, write_page_checksum=True)

    def _metadata(self) -> dict[str, Any]:
        """Properties of the stream that are not in its columns."""
        e = self.experience
        found = {
            "own": True, "name": e.name, "policy": e.policy, "states": e.states, "grid": e.grid,
            "names": e.names, "cells": e.cells or None,
            "low": None if e.low is None else e.low.tolist(),
            "high": None if e.high is None else e.high.tolist(),
            "labels": _to_json(e.labels),
        }  # fmt: skip
        return {name: given for name, given in found.items() if given is not None}

    def finish(self) -> None:
        """Write the remaining rows and move the file into place; no file for an empty stream."""
        with self._lock:
            if not self._finished:
                self._finished = True
                self._finish()

    def _finish(self) -> None:
        try:
            if self._parts:
                self._write_groups(self._rows)
            if self._writer is None or self._temporary is None:
                return
            if hasattr(self._writer, "add_key_value_metadata"):  # there may be new labels
                self._writer.add_key_value_metadata({METADATA_KEY: json.dumps(self._metadata())})
            with self._errors_named():
                self._writer.close()
            written = self._temporary
            write_with(self.path, lambda path: os.replace(written, path))
        finally:
            if self._writer is not None:
                with suppress(OSError):  # said above
                    self._writer.close()
            if self._temporary is not None:
                discard(self._temporary)
            self._writer = None


def _to_json(labels: list[Any] | None) -> list[Any] | None:
    """Labels that JSON can hold; others as text."""
    if labels is None:
        return None
    simple = (str, int, float, bool, type(None), tuple)
    return [each if isinstance(each, simple) else str(each) for each in labels]


def _table(chunk: Chunk) -> Any:
    """Convert a chunk to a table; observations become one column per number."""
    pa = import_pyarrow()
    columns: dict[str, Any] = {}
    for name, column in chunk.items():
        if column.ndim == 1:
            columns[name] = pa.array(column)
        else:
            for k in range(column.shape[1]):
                columns[f"{name}_{k}"] = pa.array(np.ascontiguousarray(column[:, k]))
    return pa.table(columns)
