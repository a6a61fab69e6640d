"""Transitions in the order in which they came, to be read as often as needed.

As long as they are few they stay in memory. Then they go to a temporary file, which has no name
and disappears with the record.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from retvar.errors import InputError

__all__ = ["TransitionRecord"]

Chunk = dict[str, NDArray[Any]]
LARGE = 64 * 2**20  # bytes from which a file is used
PIECE = 8 * 2**20  # bytes that are written together after that


class TransitionRecord:
    """Records columns of transitions.

    >>> record = TransitionRecord()
    >>> record.append({"reward": np.array([1.0, 2.0])})
    >>> record.append({"reward": np.array([3.0])})
    >>> len(record), [chunk["reward"].tolist() for chunk in record.chunks()]
    (3, [[1.0, 2.0], [3.0]])
    """

    def __init__(self) -> None:
        self._held: list[Chunk] = []
        self._bytes = 0  # of those held
        self._file: IO[bytes] | None = None
        self._pieces: list[tuple[int, tuple[str, ...]]] = []  # where each starts, and its columns
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    @property
    def in_file(self) -> bool:
        """Whether a file is used."""
        return self._file is not None

    def make_room(self) -> None:
        """Write what is held to the file if it is much; after an error everything is still held."""
        if self._bytes <= (PIECE if self.in_file else LARGE):
            return
        pieces = []
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="retvar-")  # noqa: SIM115
                weakref.finalize(self, self._file.close)
            self._file.seek(0, os.SEEK_END)
            for chunk in self._held:
                pieces.append((self._file.tell(), tuple(chunk)))
                for column in chunk.values():
                    np.save(self._file, column, allow_pickle=False)
            self._file.flush()
        except OSError as error:
            raise _failed(error, "written; TMPDIR names its folder") from None
        self._pieces += pieces
        self._held, self._bytes = [], 0

    def append(self, chunk: Chunk) -> None:
        """Record a chunk, columns of equal length."""
        self.make_room()
        self._held.append(chunk)
        self._bytes += sum(column.nbytes for column in chunk.values())
        self._rows += len(next(iter(chunk.values())))

    def chunks(self) -> Iterator[Chunk]:
        """The chunks, as they were recorded."""
        for start, names in self._pieces:
            yield self._read(start, names)
        yield from self._held

    def _read(self, start: int, names: tuple[str, ...]) -> Chunk:
        assert self._file is not None
        try:
            self._file.seek(start)
            return {name: np.load(self._file, allow_pickle=False) for name in names}
        except (OSError, ValueError) as error:
            raise _failed(error, "read") from None


def _failed(error: Exception, what: str) -> InputError:
    reason = getattr(error, "strerror", None) or error
    remedy = f"the temporary file of the transitions cannot be {what}: {reason}"
    return InputError("folder", tempfile.gettempdir(), remedy)
