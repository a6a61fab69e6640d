"""A log of transitions between points, laid out episode by episode: read in two passes.

The first pass counts the rows of every stream, the second puts each row in its place. An array
that is large lies in a temporary file that is mapped into memory, so that the system can take the
room back.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retvar.arguments import refuse
from retvar.errors import InputError
from retvar.jit import compiled

__all__ = ["EpisodeLog", "Source", "read_episodes", "room"]

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Integers = NDArray[np.int64]
LARGE = 128 * 2**20  # bytes from which an array lies in a file
BLOCK = 65_536  # rows that are looked at together
SAME = 1e-6  # share of a coordinate's std up to which two states are the same
SEGMENT = 3.0  # a segment is as long as its Σ(1 − γ) stays below this
COLUMNS = ("state", "reward", "next_state", "terminated")


class Source(Protocol):
    """Something that can be read more than once, in chunks of columns."""

    def chunks(self) -> Iterable[Mapping[str, ArrayLike]]:
        """Chunks of rows: columns by name."""
        ...


@dataclass(frozen=True)
class EpisodeLog:
    """Rows of a log in the order of their episodes, one episode after the other.

    >>> log = read_episodes({
    ...     "state": [[0.0], [1.0], [0.0]],
    ...     "reward": [1.0, 2.0, 3.0],
    ...     "next_state": [[1.0], [2.0], [1.0]],
    ...     "terminated": [False, True, False],
    ... }, gamma=0.9)
    >>> len(log), log.cut.tolist(), log.end_state.tolist(), log.segment.tolist()
    (3, [False, False, True], [[1.0]], [0, 0, 1])
    """

    state: Array  #: [row, coordinate]
    reward: Array
    discount: Array  #: γ of what follows, 0 where the episode terminated
    terminated: Mask
    cut: Mask  #: where the episode went on unseen: truncated, or its rows end here
    end_state: Array  #: state that followed each cut
    segment: Integers  #: number of the segment; episodes are split every 3/(1 − γ) steps
    streams: int
    breaks: int  #: rows whose next state is not the state of the next row

    def __len__(self) -> int:
        return len(self.reward)

    @property
    def segments(self) -> int:
        """How many segments there are."""
        return int(self.segment[-1]) + 1

    @property
    def episodes(self) -> int:
        """How many episodes there are, whole or cut."""
        return int(np.count_nonzero(self.terminated | self.cut))


def read_episodes(
    source: Source | Mapping[str, ArrayLike], *, gamma: float | None = None
) -> EpisodeLog:
    """Read a log, rows of different streams in any mixture.

    Parameters
    ----------
    source
        Columns, or an object whose ``chunks()`` gives them piece by piece, twice: `state` and
        `next_state` [row, coordinate], `reward`, `terminated`; and where there are such
        `truncated`, `stream` (numbers or strings) and `gamma`.
    gamma
        Discount where there is no such column.

    An episode ends where it is terminated or truncated, where its stream ends, and where the next
    row does not begin in the state that was reached.
    """
    order = _Streams()
    width = 0
    for chunk in _chunks(source, gamma):
        width = chunk["state"].shape[1]
        order.count(chunk["stream"])
    if not order.total:
        raise InputError("source", "no transition", "there is nothing to estimate from")
    n = order.total
    state, following = room((n, width)), room((n, width))
    reward, discount = room(n), room(n)
    terminated, cut = np.empty((2, n), dtype=np.bool_)
    order.begin()
    for chunk in _chunks(source, gamma):
        at = order.places(chunk["stream"])
        if chunk["state"].shape[1] != width or at.max(initial=-1) >= n:
            raise _changed()
        state[at], following[at] = chunk["state"], chunk["next_state"]
        reward[at], terminated[at] = chunk["reward"], chunk["terminated"]
        cut[at] = chunk["truncated"] & ~chunk["terminated"]
        discount[at] = np.where(chunk["terminated"], 0.0, chunk["gamma"])
    last = order.finish()
    cut[last] |= ~terminated[last]
    breaks = _cut_breaks(state, following, terminated, cut)
    ends = np.array(following[cut])
    segment = np.empty(n, dtype=np.int64)
    number_segments(discount, terminated, cut, segment)
    return EpisodeLog(
        state, reward, discount, terminated, cut, ends, segment, len(last), breaks
    )  # fmt: skip


def room(shape: int | tuple[int, ...], dtype: Any = np.float64) -> NDArray[Any]:
    """An array to be filled: in memory, or in a temporary file if it is large."""
    bytes_ = int(np.prod(shape)) * np.dtype(dtype).itemsize
    if bytes_ <= LARGE:
        return np.empty(shape, dtype=dtype)
    try:
        with tempfile.TemporaryFile(prefix="retvar-") as file:  # mapped, it stays until that goes
            if hasattr(os, "posix_fallocate"):  # a full disk raises here, not when it is used
                os.posix_fallocate(file.fileno(), 0, bytes_)
            return np.memmap(file, dtype=dtype, mode="w+", shape=shape)
    except OSError as error:
        remedy = f"has no room for {bytes_:,} bytes ({error.strerror}); set TMPDIR"
        raise InputError("folder", tempfile.gettempdir(), remedy) from None


def _changed() -> InputError:
    return InputError("source", "other rows", "must give the same rows when it is read again")


class _Streams:
    """Where the next row of each stream goes: streams lie one after the other."""

    def __init__(self) -> None:
        self._number: dict[Any, int] = {}
        self._counts = np.zeros(0, dtype=np.int64)
        self._next = self._last = np.zeros(0, dtype=np.int64)

    @property
    def total(self) -> int:
        """Rows counted."""
        return int(self._counts.sum())

    def count(self, stream: NDArray[Any]) -> None:
        """Count the rows of a chunk."""
        labels, first, counts = np.unique(stream, return_index=True, return_counts=True)
        for label in labels[np.argsort(first)].tolist():
            self._number.setdefault(label, len(self._number))
        more = len(self._number) - self._counts.size
        self._counts = np.concatenate([self._counts, np.zeros(more, dtype=np.int64)])
        self._counts[[self._number[label] for label in labels.tolist()]] += counts

    def begin(self) -> None:
        """Give each stream its room."""
        self._last = np.cumsum(self._counts) - 1
        self._next = self._last + 1 - self._counts

    def places(self, stream: NDArray[Any]) -> Integers:
        """Where the rows of a chunk go."""
        labels, inverse, counts = np.unique(stream, return_inverse=True, return_counts=True)
        try:
            number = np.array([self._number[label] for label in labels.tolist()], dtype=np.int64)
        except KeyError:
            raise _changed() from None
        if (self._next[number] + counts > self._last[number] + 1).any():
            raise _changed()
        order = np.argsort(inverse, kind="stable")
        starts = np.cumsum(counts) - counts
        rank = np.empty(stream.size, dtype=np.int64)
        rank[order] = np.arange(stream.size) - np.repeat(starts, counts)
        places: Integers = self._next[number][inverse] + rank
        self._next[number] += counts
        return places

    def finish(self) -> Integers:
        """The last row of each stream, once all have come."""
        if (self._next != self._last + 1).any():
            raise _changed()
        return self._last


def _chunks(
    source: Source | Mapping[str, ArrayLike], gamma: float | None
) -> Iterator[dict[str, NDArray[Any]]]:
    """The chunks of a source as arrays of equal length."""
    for chunk in [source] if isinstance(source, Mapping) else source.chunks():
        missing = [name for name in COLUMNS if name not in chunk]
        if missing:
            found = ", ".join(map(str, chunk))
            raise InputError("source", f"columns {found}", f"must have a column {missing[0]}")
        if "gamma" not in chunk and gamma is None:
            raise InputError("gamma", "nothing", "must be given, as a column or a number")
        columns = {name: _points(name, chunk[name]) for name in ("state", "next_state")}
        n = len(columns["state"])
        for name in ("reward", "gamma"):
            columns[name] = _column(name, chunk.get(name, gamma), n, np.float64)
        for name in ("terminated", "truncated"):
            columns[name] = _column(name, chunk.get(name, False), n, np.bool_)
        columns["stream"] = _column("stream", chunk.get("stream", 0), n, None)
        _refuse_bad(columns)
        if n:
            yield columns


def _points(name: str, given: ArrayLike | None) -> Array:
    points = np.asarray(given)
    if points.dtype.kind not in "biuf" or points.ndim != 2 or points.shape[1] == 0:
        found = f"an array of shape {points.shape} of {points.dtype}"
        raise InputError(name, found, "must be numbers [row, coordinate]")
    return points.astype(np.float64, copy=False)


def _column(name: str, given: Any, n: int, dtype: Any) -> NDArray[Any]:
    column = np.asarray(given)
    if column.shape not in ((), (n,)):
        raise InputError(name, f"an array of shape {column.shape}", f"must have {n:,} rows")
    try:
        return np.broadcast_to(column if dtype is None else column.astype(dtype), n)
    except (TypeError, ValueError):
        raise InputError(name, f"an array of {column.dtype}", "must hold numbers") from None


def _refuse_bad(columns: dict[str, NDArray[Any]]) -> None:
    """Refuse numbers that are not finite, discounts beyond [0, 1] and states of other width."""
    if columns["next_state"].shape != columns["state"].shape:
        found = f"an array of shape {columns['next_state'].shape}"
        raise InputError("next_state", found, f"must be {columns['state'].shape}, as state is")
    for name in ("state", "reward"):
        finite = np.isfinite(columns[name])
        flat = columns[name].ravel()
        refuse(name, flat, ~finite.ravel(), "must be finite")
    going = ~columns["terminated"]
    bad = ~np.isfinite(columns["next_state"]).all(axis=1) & going
    refuse("next_state", columns["next_state"][:, 0], bad, "must be finite")
    gamma = columns["gamma"]
    refuse("gamma", gamma, going & ~((gamma >= 0) & (gamma <= 1)), "must lie in [0, 1]")


def _cut_breaks(state: Array, following: Array, terminated: Mask, cut: Mask) -> int:
    """Cut where the next row begins elsewhere; how often."""
    breaks, n = 0, len(state)
    tolerance = SAME * state.std(axis=0)
    for first in range(0, n - 1, BLOCK):
        last = min(first + BLOCK, n - 1)
        gap = np.abs(following[first:last] - state[first + 1 : last + 1])
        apart = ~(gap <= tolerance).all(axis=1)
        apart &= ~terminated[first:last] & ~cut[first:last]
        cut[first:last] |= apart
        breaks += int(np.count_nonzero(apart))
    return breaks


@compiled
def number_segments(discount: Any, terminated: Any, cut: Any, segment: Any) -> None:
    """Number the segments: a new one with each episode, and after 3/(1 − γ) steps."""
    number, passed = 0, 0.0
    for t in range(discount.size):
        segment[t] = number
        passed += 1.0 - discount[t]
        if terminated[t] or cut[t] or passed >= SEGMENT - 1e-9:
            number, passed = number + 1, 0.0
