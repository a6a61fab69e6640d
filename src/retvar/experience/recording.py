"""A stream written to a Parquet file as it passes, from which it comes back as it was."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from retvar.errors import InputError
from retvar.experience.arrow_columns import arrow
from retvar.experience.readers import KEY
from retvar.experience.stream import Chunk, Counts, Experience
from retvar.files import write_with

__all__ = ["recorded", "write_table"]

GROUP = 65_536  # rows kept together in the file


def write_table(experience: Experience, path: str | Path) -> None:
    """Read a stream to its end and write it to a Parquet file.

    :func:`retvar.experience.from_table` gives the same transitions back, in the same order, down
    to the last bit. Where the source fails on the way, what came before is kept, and the error is
    raised.

    >>> import pathlib, tempfile
    >>> from retvar.experience import from_gymnasium, from_table
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "lake.parquet"
    >>> write_table(from_gymnasium("FrozenLake-v1", steps=100), path)
    >>> again = from_table(path)
    >>> len(list(again)), again.states, again.grid
    (100, 16, (4, 4))
    """
    came = False
    for _ in recorded(experience, path).chunks():
        came = True
    if not came:
        raise InputError("experience", experience.name, "gave no transitions; nothing is written")


def recorded(experience: Experience, path: str | Path) -> Experience:
    """The same stream, which also writes itself to a Parquet file as it passes.

    The file appears when the stream ends, fails or is left: with everything that came until then.

    >>> import pathlib, tempfile
    >>> from retvar.experience import from_gymnasium
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "lake.parquet"
    >>> lake = recorded(from_gymnasium("FrozenLake-v1", steps=100), path)
    >>> sum(t.reward for t in lake) >= 0, path.exists()
    (True, True)
    """
    path = Path(path)
    arrow()
    if not path.parent.is_dir():
        raise InputError("path", path, "its folder does not exist; create it first")
    if path.is_dir() or path.suffix.lower() != ".parquet":
        raise InputError("path", path, "must be the name of a .parquet file")
    inner = experience.source

    def source(counts: Counts) -> Iterator[Chunk]:
        file = _File(path, experience)
        try:
            for chunk in inner(counts):
                file.take(chunk)
                yield chunk
        finally:
            file.finish()

    return replace(experience, source=source)


class _File:
    """A Parquet file that grows beside its place, and is moved there in the end."""

    def __init__(self, path: Path, experience: Experience) -> None:
        self.path, self.experience = path, experience
        self._parts: list[Any] = []
        self._rows = 0
        self._writer: Any = None
        self._temporary: Path | None = None

    def take(self, chunk: Chunk) -> None:
        self._parts.append(_table(chunk))
        self._rows += len(chunk["reward"])
        if self._rows >= GROUP:
            self._write(self._rows // GROUP * GROUP)

    def _write(self, rows: int) -> None:
        """Write the first rows that have been taken, in groups of one size."""
        taken = arrow().concat_tables(self._parts)
        table = taken.slice(0, rows)
        try:
            if self._writer is None:
                self._open(table.schema)
            self._writer.write_table(table, row_group_size=GROUP)
        except OSError as error:
            told = error.strerror or error
            raise InputError("path", self.path, f"cannot be written: {told}") from None
        self._rows -= rows
        self._parts = [taken.slice(rows)] if self._rows else []

    def _open(self, schema: Any) -> None:
        handle, name = tempfile.mkstemp(
            dir=self.path.parent, prefix=f".{self.path.stem}-", suffix=".parquet"
        )
        os.close(handle)
        self._temporary = Path(name)
        schema = schema.with_metadata({KEY: json.dumps(self._told())})
        self._writer = arrow().parquet.ParquetWriter(name, schema, write_page_checksum=True)

    def _told(self) -> dict[str, Any]:
        """What the file says about itself."""
        e = self.experience
        told = {
            "own": True, "name": e.name, "policy": e.policy, "states": e.states, "grid": e.grid,
            "names": e.names, "cells": e.cells or None,
            "low": None if e.low is None else e.low.tolist(),
            "high": None if e.high is None else e.high.tolist(),
            "labels": _plain(e.labels),
        }  # fmt: skip
        return {name: given for name, given in told.items() if given is not None}

    def finish(self) -> None:
        """Write the rest and move the file into place; nothing where nothing came."""
        try:
            if self._parts:
                self._write(self._rows)
            if self._writer is None or self._temporary is None:
                return
            if hasattr(self._writer, "add_key_value_metadata"):  # labels have come since
                self._writer.add_key_value_metadata({KEY: json.dumps(self._told())})
            self._writer.close()
            whole = self._temporary
            write_with(self.path, lambda beside: os.replace(whole, beside))
        finally:
            if self._writer is not None:
                self._writer.close()
            if self._temporary is not None:
                self._temporary.unlink(missing_ok=True)
            self._writer = None


def _plain(labels: list[Any] | None) -> list[Any] | None:
    """Labels as they can be written as JSON."""
    if labels is None:
        return None
    simple = (str, int, float, bool, type(None), tuple)
    return [each if isinstance(each, simple) else str(each) for each in labels]


def _table(chunk: Chunk) -> Any:
    """A chunk as a table; observations as a column for each number."""
    pa = arrow()
    columns: dict[str, Any] = {}
    for name, column in chunk.items():
        if column.ndim == 1:
            columns[name] = pa.array(column)
        else:
            for k in range(column.shape[1]):
                columns[f"{name}_{k}"] = pa.array(np.ascontiguousarray(column[:, k]))
    return pa.table(columns)
