"""Files in pieces, for workers: whole files, or row groups where next states are in the data.

A piece is read like a log of its own. Where the next state is that of the next row, no episode may
lie in two pieces: each piece reports which ids it has seen, and `SplitCheck` compares them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.errors import InputError
from retvar.experience.arrow_columns import import_pyarrow
from retvar.experience.column_roles import Roles
from retvar.experience.readers import Reader, open_file
from retvar.experience.stream import Experience
from retvar.format import count
from retvar.random import U, mix

__all__ = ["Ids", "Piece", "Pieces", "SplitCheck", "open_piece", "plan_pieces"]

Words = NDArray[np.uint64]
ROWS = 1_000_000  # rows of a piece, at least, where files are not smaller
BYTES = 16 << 20  # of CSV files that make up a piece
MOST_IDS = 2**20  # ids of a piece that are compared; where there are more, a random sample
MOST_KEPT = 2**24  # ids of all pieces that are kept
MISSING = U(0x9E3779B97F4A7C15)
mix_words = getattr(mix, "py_func", mix)  # of arrays


@dataclass(frozen=True)
class Piece:
    """A file, or some consecutive row groups of it.

    >>> str(Piece("log.parquet", (2, 4)))
    'log.parquet, row groups 2 to 3'
    """

    path: str
    groups: tuple[int, int] | None = None  #: first row group, and the one after the last

    def __str__(self) -> str:
        if self.groups is None:
            return self.path
        return f"{self.path}, row groups {self.groups[0]} to {self.groups[1] - 1}"


@dataclass(frozen=True)
class Pieces:
    """The pieces of a log and how to read one; can be sent to workers."""

    plan: list[list[Piece]]
    roles: Roles
    again: Callable[[list[Reader]], Experience]

    def open(self, number: int, states: int | None) -> tuple[Experience, Ids]:
        """Piece `number` as a log of its own, with the ids that will be seen in it."""
        ids = Ids(self.roles)
        readers = [ids.watch(open_piece(piece)) for piece in self.plan[number]]
        if states is not None:  # so that no reader has to look for the largest state
            for reader in readers:
                names = (*self.roles.state, *(self.roles.next_state or ()))
                reader.known_ranges.update(dict.fromkeys(names, (0, states - 1)))
        return self.again(readers), ids


def plan_pieces(readers: list[Reader], roles: Roles) -> list[list[Piece]]:
    """Divide files into pieces of similar size; this depends on the files alone.

    >>> plan_pieces([], Roles(["state"], None, "reward", None, None))
    []
    """
    units = [unit for reader in readers for unit in _units(reader, roles.next_state is not None)]
    plan: list[list[Piece]] = []
    size = 1.0
    for piece, share in units:
        if size >= 1.0:
            plan.append([])
            size = 0.0
        plan[-1].append(piece)
        size += share
    return plan


def _units(reader: Reader, split: bool) -> Iterator[tuple[Piece, float]]:
    """The smallest pieces of a file, with their share of a full piece."""
    path = str(Path(reader.name).resolve())
    if reader.rows is None:
        yield Piece(path), Path(path).stat().st_size / BYTES
        return
    if not split:
        yield Piece(path), reader.rows / ROWS
        return
    first = rows = 0
    for group, more in enumerate(reader.groups):
        rows += more
        if rows >= ROWS or group == len(reader.groups) - 1:
            yield Piece(path, (first, group + 1)), rows / ROWS
            first, rows = group + 1, 0


def open_piece(piece: Piece) -> Reader:
    """A reader of the piece, in one thread: a worker has one for each of its cores."""
    groups = None if piece.groups is None else range(*piece.groups)
    return replace(open_file(Path(piece.path), groups, threads=False), name=str(piece))


class Ids:
    """The ids of entities and episodes in a piece, as 64-bit words that are equal on all machines.

    Entities (streams) may come in any order: all of them are recorded, with their episodes. Where
    there are episodes alone, only neighbouring rows are linked: the first and last one matter.
    """

    def __init__(self, roles: Roles) -> None:
        self.columns = [name for name in (roles.entity, roles.episode) if name]
        self.anywhere = bool(roles.entity)
        self.words: Words = np.zeros(0, dtype=np.uint64)
        self.limit = 2**64  # ids from here on are not recorded
        self.first: int | None = None
        self.last: int | None = None

    def watch(self, reader: Reader) -> Reader:
        """The same reader, whose ids are recorded as they are read."""

        def batches(columns: list[str], chunk: int) -> Iterator[Any]:
            for batch in reader.batches(columns, chunk):
                if batch.num_rows and all(name in columns for name in self.columns):
                    self._record(batch)
                yield batch

        return replace(reader, batches=batches) if self.columns else reader

    def _record(self, batch: Any) -> None:
        word = np.zeros(batch.num_rows, dtype=np.uint64)
        for name in self.columns:
            word = mix_words(word + id_words(batch[name]))
        if self.first is None:
            self.first = int(word[0])
        self.last = int(word[-1])
        if self.anywhere:
            self._keep(word[np.append(True, word[1:] != word[:-1])], MOST_IDS)

    def _keep(self, words: Words, most: int) -> None:
        self.words = np.unique(np.concatenate([self.words, words]))
        if self.words.size > most:
            self.limit = int(self.words[most])
        if self.limit < 2**64:
            self.words = self.words[self.words < U(self.limit)]


def id_words(column: Any) -> Words:
    """A 64-bit word for each entry, equal in all processes; integers keep their value.

    >>> import pyarrow as pa
    >>> one, two = id_words(pa.array(["a", "b", "a"])), id_words(pa.array(["b"]))
    >>> bool(one[0] == one[2]), bool(one[1] == two[0]), bool(one[0] == one[1])
    (True, True, False)
    """
    pa = import_pyarrow()
    if pa.types.is_integer(column.type) and not column.null_count:
        words: Words = np.asarray(column.cast(pa.int64(), safe=False)).view(np.uint64)
        return words
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    coded = column.dictionary_encode()
    code = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    texts = (str(value).encode() for value in coded.dictionary.to_pylist())
    codes = [int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) for text in texts]
    found: Words = np.array([*codes, MISSING], dtype=np.uint64)[code]
    return found


class SplitCheck:
    """Refuses an entity or episode that lies in two pieces, where that would lose transitions."""

    def __init__(self, roles: Roles) -> None:
        self.needed = roles.next_state is None
        self._kept = Ids(roles)
        self._piece: NDArray[np.int32] = np.zeros(0, dtype=np.int32)
        self._names: list[str] = []

    def add(self, name: str, ids: Ids) -> None:
        """Compare the ids of the next piece with those before."""
        if not self.needed:
            return
        before = self._names[-1] if self._names else ""
        self._names.append(name)
        if not ids.anywhere:
            if ids.first is not None and ids.first == self._kept.last:
                raise _split("an episode", before, name)
            self._kept.last = ids.last if ids.last is not None else self._kept.last
            return
        kept = self._kept
        both, where, _ = np.intersect1d(kept.words, ids.words, return_indices=True)
        if both.size:
            raise _split(
                count(int(both.size), "entity", "entities"),
                self._names[self._piece[where[0]]],
                name,
            )
        words = np.concatenate([kept.words, ids.words])
        piece = np.concatenate(
            [self._piece, np.full(ids.words.size, len(self._names) - 1, dtype=np.int32)]
        )
        order = np.argsort(words, kind="stable")[:MOST_KEPT]
        kept.words, self._piece = words[order], piece[order]


def _split(what: str, one: str, other: str) -> InputError:
    remedy = (
        f"in {one} and in {other}, which workers read apart; write each entity and episode into "
        "one file, or log next states and name their column (next_state)"
    )
    return InputError("cluster", what, remedy)
