"""Logs that grow: a CSV file to which lines are added, or a folder that gets further files."""

from __future__ import annotations

import glob
import io
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from retvar import arguments
from retvar.errors import InputError
from retvar.experience.episodes import SourceEnded
from retvar.experience.readers import SUFFIXES, Reader, open_csv, open_file, readable
from retvar.files import kind_of
from retvar.reading import require_file

__all__ = ["Growing"]

log = logging.getLogger("retvar")
TAIL = 256  # bytes before the end that must not change


@dataclass
class Growing:
    r"""A log that grows, as the source of :func:`from_table`; it is read until `wait` says no.

    A CSV file is read up to its last complete line. Of a folder, or of a pattern, further files are
    read once they can be opened; write them under another name and rename them. A file that becomes
    shorter, or changes where it was read, is an error.

    Parameters
    ----------
    source
        Path of a ``.csv`` file, a folder, or a pattern of ``.parquet`` or ``.csv`` files.
    every
        Seconds between looks.
    wait
        Called instead of sleeping; returns False to end the log.

    Examples
    --------
    >>> import tempfile, retvar as rv
    >>> path = Path(tempfile.mkdtemp()) / "log.csv"
    >>> _ = path.write_text("state,reward,next_state,terminated\n0,1,1,0\n1,2,0,1\n0,5")
    >>> log = rv.experience.from_table(Growing(path, wait=lambda: False))
    >>> [t.reward for t in log]
    [1.0, 2.0]
    """

    source: str | Path
    every: float = 1.0
    wait: Callable[[], bool] | None = None
    _read: dict[str, tuple[int, int, int]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "every", arguments.seconds("every", self.every))

    def _pause(self) -> bool:
        if self.wait is not None:
            return self.wait()
        time.sleep(self.every)
        return True

    def open_growing(self) -> list[Reader]:
        """Readers of what is there; the last one knows how to go on."""
        path = Path(self.source)
        kind = kind_of("source", path)
        if kind == "file":
            return self._open_lines(path)
        pattern = str(path / "*.parquet") if kind == "folder" else str(path)
        readers = list(self._new_files(pattern))
        if not readers:
            raise InputError("source", pattern, "there is no such file yet")
        return [*readers[:-1], replace(readers[-1], growth=lambda: self._files(pattern))]

    # ------------------------------------------------------------------ lines of a CSV file

    def _open_lines(self, path: Path) -> list[Reader]:
        if not path.name.lower().endswith(".csv"):
            remedy = "cannot grow; follow a .csv file, a folder, or a pattern of files"
            raise InputError("source", str(path), remedy)
        with readable(path):
            part = _Lines(path)
            part.advance()
            first = open_csv(part.opener(), str(path))
        return [replace(first, growth=lambda: self._lines(part, list(first.types)))]

    def _lines(self, part: _Lines, header: list[str]) -> Iterator[Reader | None]:
        while True:
            yield None
            if not self._pause():
                return
            if part.advance():
                name = f"{part.path}, from byte {part.start:,}"
                try:
                    with readable(part.path):
                        reader = open_csv(part.opener(), name, header)
                except InputError as error:  # what was learned is kept
                    raise SourceEnded(f"{error.field}: {error.remedy}") from None
                yield replace(reader, continues=True)

    # ------------------------------------------------------------------ files of a folder

    def _files(self, pattern: str) -> Iterator[Reader | None]:
        while True:
            yield None
            if not self._pause():
                return
            yield from self._new_files(pattern)

    def _new_files(self, pattern: str) -> Iterator[Reader]:
        """Open files that have not been read; those that cannot be opened are tried again."""
        for name in sorted(glob.glob(pattern)):
            if not name.lower().endswith(SUFFIXES):
                continue
            try:
                require_file(Path(name), "source")
                stat = os.stat(name)
                state = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
                if name in self._read:
                    if self._read[name] != state:
                        raise SourceEnded(f"{name} has changed after it was read; begin anew")
                    continue
                reader = open_file(Path(name))
            except InputError as error:  # perhaps it is being written
                log.warning("%s is not read yet: %s", name, error.remedy)
                continue
            self._read[name] = state
            yield reader


class _Lines:
    """The complete lines of a file from `start` to `end`; `advance` goes on to the next."""

    def __init__(self, path: Path) -> None:
        self.path, self.start, self.end = path, 0, 0
        self._inode = path.stat().st_ino
        self._tail = b""  # the last bytes before `end`

    def advance(self) -> bool:
        """Go on to the lines after `end`; False where there is no complete one."""
        try:
            with self.path.open("rb") as file:
                stat = os.fstat(file.fileno())
                if stat.st_ino != self._inode:
                    raise self._changed("it was replaced by another file")
                if stat.st_size < self.end:
                    raise self._changed(f"it was cut from {self.end:,} to {stat.st_size:,} bytes")
                file.seek(self.end - len(self._tail))
                if file.read(len(self._tail)) != self._tail:
                    raise self._changed("lines that were read have changed")
                end = _last_line_end(file, self.end, stat.st_size)
                self._tail = self._tail_before(file, end)
        except OSError as error:
            raise self._changed(error.strerror or str(error)) from None
        if end == self.end:
            return False
        self.start, self.end = self.end, end
        return True

    @staticmethod
    def _tail_before(file: Any, end: int) -> bytes:
        first = max(0, end - TAIL)
        file.seek(first)
        return bytes(file.read(end - first))

    def _changed(self, reason: str) -> SourceEnded:
        return SourceEnded(f"{reason}; begin anew")

    def opener(self) -> Callable[[], Any]:
        """A function that opens these lines as a file."""
        path, start, end = self.path, self.start, self.end
        return lambda: io.BufferedReader(_Part(path, start, end))


class _Part(io.RawIOBase):
    """The bytes of a file from `start` to `end`."""

    def __init__(self, path: Path, start: int, end: int) -> None:
        self._file = path.open("rb")
        self._file.seek(start)
        self._left = end - start

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        got = self._file.read(min(len(buffer), self._left))
        buffer[: len(got)] = got
        self._left -= len(got)
        return len(got)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def _last_line_end(file: Any, start: int, size: int, block: int = 1 << 16) -> int:
    """Where the last complete line between `start` and `size` ends; `start` where there is none."""
    at = size
    while at > start:
        first = max(start, at - block)
        file.seek(first)
        found = file.read(at - first).rfind(b"\n")
        if found >= 0:
            return int(first + found + 1)
        at = first
    return start
