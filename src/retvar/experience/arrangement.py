"""Bring the rows of a log into order: entity by entity, by time, outside memory if need be.

An external merge sort. Runs of rows are sorted in memory and, if there are several, written to a
temporary folder; then they are merged block by block. Memory is bounded by the rows of a run,
unless more rows than that have the same entity and time.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.errors import WriteError
from retvar.experience.episodes import concatenate
from retvar.experience.stream import DUPLICATE, Chunk, Counts
from retvar.files import discard, make_temporary_folder

__all__ = ["arranged", "as_streams"]

Mask = NDArray[np.bool_]
Integers = NDArray[np.int64]
RUN_ROWS = 2_000_000  # that are sorted in memory
KEYS = ("position", "time_fraction", "time", "entity")  # the last one matters most


def arranged(
    parts: Iterator[Chunk], counts: Counts, *, chunk: int, keep_duplicates: bool = False
) -> Iterator[Chunk]:
    """Yield rows grouped by ``entity``, ordered by ``time`` and ``time_fraction`` where they exist.

    Entities come in the order of their numbers, rows of one time in the order in which they were
    read. Rows that are ``lost`` (their entity or time is not known) are removed; where one lay
    directly between two rows of an entity, these get different ``segment``s, so that they are not
    linked. Ties and duplicates (rows of equal ``hash``) are counted; duplicates are removed. If the
    source fails, what was read before is yielded first.

    >>> rows = {"entity": np.array([0, 1, 0]), "time": np.array([5, 1, 2]),
    ...         "time_fraction": np.zeros(3), "hash": np.arange(3), "lost": np.zeros(3, bool),
    ...         "reward": np.array([1.0, 2.0, 3.0])}
    >>> [part["reward"] for part in arranged(iter([rows]), Counts(), chunk=10)]
    [array([3., 1., 2.])]
    """
    with ExitStack() as stack:
        runs = _Runs(stack)
        failure: Exception | None = None
        try:
            for rows in _positioned(parts):
                runs.add(rows)
        except Exception as error:  # a source may raise anything
            failure = error
        clean = _Cleaner(counts, keep_duplicates)
        for block in runs.merged():
            rows = clean(block)
            for first in range(0, rows["reward"].size, chunk):
                yield {name: column[first : first + chunk] for name, column in rows.items()}
        if failure is not None:
            raise failure


def as_streams(parts: Iterator[Chunk]) -> Iterator[Chunk]:
    """Yield rows as they come, each entity as a ``stream`` of its own; lost rows are removed.

    >>> rows = {"entity": np.array([4, -1, 4]), "lost": np.array([False, True, False]),
    ...         "reward": np.array([1.0, 2.0, 3.0])}
    >>> [(part["stream"], part["reward"]) for part in as_streams(iter([rows]))]
    [(array([4, 4]), array([1., 3.]))]
    """
    for rows in parts:
        if "lost" in rows:
            kept = ~rows.pop("lost")
            rows = {name: column[kept] for name, column in rows.items()}
            rows["stream"] = rows.pop("entity")
        yield rows


def _positioned(parts: Iterator[Chunk]) -> Iterator[Chunk]:
    """Add the position of each row and whether a lost row lies before it; remove lost rows."""
    position, last, gap = 0, -1, False
    for rows in parts:
        lost = rows.pop("lost")
        n = lost.size
        segment = rows.pop("segment", None)
        rows["position"] = np.arange(position, position + n)
        position += n
        if "time" not in rows:
            holes = lost if segment is None else lost | (np.diff(segment, prepend=segment[:1]) > 0)
            rows["gap"] = _gaps(rows["entity"], lost, holes, last, gap)
        kept = np.flatnonzero(~lost)
        if kept.size:
            last, gap = int(rows["entity"][kept[-1]]), False
        gap = gap or bool(lost[kept[-1] + 1 if kept.size else 0 :].any())
        if kept.size < n:
            rows = {name: column[kept] for name, column in rows.items()}
        if kept.size:
            yield rows


def _gaps(entity: Integers, lost: Mask, holes: Mask, last: int, gap: bool) -> Mask:
    """Rows before which a row was lost, with a row of the same entity on its other side."""
    found = np.zeros(entity.size, dtype=bool)
    kept = np.flatnonzero(~lost)
    before = np.concatenate([[last], entity[kept][:-1]]) if kept.size else kept
    passed = np.cumsum(holes)[kept]
    since = np.diff(passed, prepend=0) > 0
    if kept.size:
        since[0] |= gap
    found[kept] = since & (before == entity[kept])
    return found


class _Runs:
    """Sorted runs of rows: one in memory, or several in files."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._folder: Path | None = None
        self._files: list[_File] = []
        self._parts: list[Chunk] = []
        self._rows = 0

    def add(self, rows: Chunk) -> None:
        """Add rows in the order of the log."""
        self._parts.append(rows)
        self._rows += rows["position"].size
        if self._rows >= RUN_ROWS:
            self._write()

    def _write(self) -> None:
        if self._folder is None:
            self._folder = make_temporary_folder("retvar-sort")
            self._stack.callback(discard, self._folder)
        try:
            self._files.append(_File(self._folder / str(len(self._files)), self._take()))
        except OSError as error:
            remedy = f"has no room for the sorted log ({error.strerror or error}); set TMPDIR"
            raise WriteError("folder", tempfile.gettempdir(), remedy) from None

    def _take(self) -> Chunk:
        rows = _in_order(concatenate(self._parts))
        self._parts, self._rows = [], 0
        return rows

    def merged(self) -> Iterator[Chunk]:
        """Yield all rows in order; rows of one entity and time are in one block."""
        if not self._files:
            if self._rows:
                yield self._take()
            return
        if self._rows:
            self._write()
        block = max(RUN_ROWS // len(self._files), 1_024)
        while any(file.left for file in self._files):
            yield self._next_block(block)

    def _next_block(self, size: int) -> Chunk:
        """All rows before the first key that may have further rows outside the buffers."""
        while True:
            bounds = [bound for file in self._files if (bound := file.look(size)) is not None]
            limit = min(bounds) if bounds else None
            parts = [rows for file in self._files if (rows := file.take(limit)) is not None]
            if parts:
                return _in_order(concatenate(parts))
            size *= 2  # more rows of one time than the buffers hold


class _File:
    """A sorted run in a folder, one file for each column, read in blocks."""

    def __init__(self, folder: Path, rows: Chunk) -> None:
        folder.mkdir()
        self._names, self._at = list(rows), 0
        self._folder, self._n = folder, int(rows["position"].size)
        for name, column in rows.items():
            raw = io.BytesIO()
            np.save(raw, column)  # to a file it does not tell why it failed
            (folder / f"{name}.npy").write_bytes(raw.getbuffer())
        self._end = 0  # of the buffer
        self._keys: Chunk = {}

    @property
    def left(self) -> int:
        """Rows not yet taken."""
        return self._n - self._at

    def look(self, size: int) -> tuple[Any, ...] | None:
        """Buffer the keys of the next rows; the last one, or None where the run ends there."""
        self._end = min(self._at + size, self._n)
        keys = KEYS[1:] if "time" in self._names else ("position", "entity")
        self._keys = {name: self._read(name, self._end) for name in keys}
        if self._end == self._n:
            return None
        return tuple(column[-1].item() for column in reversed(self._keys.values()))

    def take(self, limit: tuple[Any, ...] | None) -> Chunk | None:
        """The buffered rows before the limit."""
        count = self._end - self._at
        if limit is not None:
            count = _count_below(list(reversed(self._keys.values())), limit)
        if not count:
            return None
        rows = {name: self._read(name, self._at + count) for name in self._names}
        self._at += count
        return rows

    def _read(self, name: str, end: int) -> NDArray[Any]:
        column = np.load(self._folder / f"{name}.npy", mmap_mode="r")
        return np.array(column[self._at : end])


def _count_below(keys: list[NDArray[Any]], limit: tuple[Any, ...]) -> int:
    """Number of leading rows whose sorted keys, the first of which matters most, lie below."""
    low, high = 0, keys[0].size
    for column, bound in zip(keys, limit, strict=True):
        part = column[low:high]
        first, last = np.searchsorted(part, bound, "left"), np.searchsorted(part, bound, "right")
        low, high = low + int(first), low + int(last)
    return low


def _in_order(rows: Chunk) -> Chunk:
    """Sort rows; those of one entity and time are in the order of the log and keep it."""
    order = np.lexsort([rows[name] for name in KEYS[1:] if name in rows])
    return {name: column[order] for name, column in rows.items()}


class _Cleaner:
    """Counts ties and duplicates of sorted blocks, and numbers the segments of entities."""

    def __init__(self, counts: Counts, keep_duplicates: bool) -> None:
        self.counts, self.keep = counts, keep_duplicates
        self._segment = 0

    def __call__(self, rows: Chunk) -> Chunk:
        del rows["position"]
        if "gap" in rows:
            rows["segment"] = self._segment + np.cumsum(rows.pop("gap"))
            self._segment = int(rows["segment"][-1])
        if "time" not in rows:
            return rows
        again = _repeated(rows)
        if again.any():
            self.counts.duplicates += int(again.sum())
            if not self.keep:
                self.counts.rejected[DUPLICATE] += int(again.sum())
                rows = {name: column[~again] for name, column in rows.items()}
        self.counts.ties += int(np.count_nonzero(_equal_to_the_row_before(rows)))
        for name in ("time", "time_fraction", "hash"):
            del rows[name]
        return rows


def _equal_to_the_row_before(rows: Chunk) -> Mask:
    """Sorted rows with the entity and time of the one before."""
    same = np.logical_and.reduce([rows[name][1:] == rows[name][:-1] for name in KEYS[1:]])
    return np.concatenate([[False], same])


def _repeated(rows: Chunk) -> Mask:
    """Rows that equal an earlier one of the same entity and time."""
    found = np.zeros(rows["hash"].size, dtype=bool)
    tied = _equal_to_the_row_before(rows)
    among = np.flatnonzero(tied | np.append(tied[1:], False))
    keys = [rows[name][among] for name in ("hash", *KEYS[1:])]
    order = np.lexsort(keys)
    same = np.logical_and.reduce([key[order][1:] == key[order][:-1] for key in keys])
    found[among[order[1:]]] = same
    if "bad" in rows:
        found &= ~rows["bad"]
    return found
