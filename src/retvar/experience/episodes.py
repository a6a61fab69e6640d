"""Link rows within episodes: mark truncation where they do not continue, leave out bad rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.errors import InputError, RetvarError, SourceError
from retvar.experience.stream import MISMATCH, NO_NEXT, Chunk, Counts, first_rows

__all__ = ["RowLinker", "SourceEnded", "concatenate", "describe_error", "linked", "source_error"]

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
Locator = Callable[[int, int], str]  # text for a row, from the number of its file and its own
HORIZON = 65_536  # rows within which the next one of a stream must come
INTERNAL = ("bad", "unreadable", "entity", "episode", "segment", "file", "row")  # not passed on
TOO_FAR = f"the next row of its stream is more than {HORIZON:,} rows away"


class RowLinker:
    """Buffers rows until it is known whether the next row of their stream continues them.

    Rows are columns as in a chunk and, where they matter: ``bad`` (to be left out), ``unreadable``
    (its state cannot be read), ``entity`` and ``episode`` (their ids), ``segment`` (rows of
    different segments are never linked), ``file`` (across files, next states may differ) and
    ``row`` (its number, for messages). A row is marked truncated if the next one is left out or
    belongs to another episode, so that no eligibility trace crosses the gap.

    >>> column = {"state": np.array([0, 1, 2]), "next_state": np.array([1, 2, 0]),
    ...           "reward": np.ones(3), "terminated": np.zeros(3, dtype=bool),
    ...           "truncated": np.zeros(3, dtype=bool), "bad": np.array([False, True, False])}
    >>> linker = RowLinker(Counts())
    >>> [(c["state"], c["truncated"]) for c in (*linker.feed(column), *linker.finish())]
    [(array([0]), array([ True])), (array([2]), array([ True]))]
    """

    def __init__(
        self,
        counts: Counts,
        *,
        infer_next: bool = False,
        keep_last: bool = False,
        check_next: bool = False,
        count_repeats: bool = False,
        locate: Locator | None = None,
    ) -> None:
        self.counts = counts
        self.infer_next = infer_next  # take next states from the next rows
        self.keep_last = keep_last  # mark rows that have none truncated, in place of dropping them
        self.check_next = check_next  # compare next states with the next rows
        self.count_repeats = count_repeats  # count rows that repeat one that they cannot follow
        self.locate = locate  # given where a mismatch is an error
        self._pending: Chunk | None = None

    def feed(self, rows: Chunk) -> Iterator[Chunk]:
        """Add rows; yield those that are decided."""
        return self._release(rows, last=False)

    def finish(self) -> Iterator[Chunk]:
        """Yield the pending rows; the last row of each stream is truncated."""
        return iter(()) if self._pending is None else self._release(None, last=True)

    def _release(self, rows: Chunk | None, *, last: bool) -> Iterator[Chunk]:
        if self._pending is not None:
            rows = self._pending if rows is None else concatenate([self._pending, rows])
        if rows is None or not rows["reward"].size:
            return
        links = _Successors(rows, last)
        drop = self._infer_next_states(rows, links) if self.infer_next else None
        mismatch = self._mismatches(rows, links) if self.check_next else None
        end = links.decided()
        broken = end
        if mismatch is not None:
            links.cut |= mismatch
            if "file" in rows and "entity" not in rows:
                mismatch &= ~links.crosses_files(rows)
            broken = _first(mismatch, end) if self.locate else end
        self._count(rows, mismatch, drop, links, min(end, broken + 1))
        self._pending = (
            {name: column[end:] for name, column in rows.items()} if end < links.n else None
        )
        yield from _to_chunk(rows, links.cut, drop, min(end, broken + 1))
        if self.locate and broken < end:
            self._pending = None
            raise _mismatch_error(rows, links, broken, self.locate)

    def _infer_next_states(self, rows: Chunk, links: _Successors) -> Mask:
        """Take next states from the next rows; return which rows have none and are dropped."""
        found = links.same
        if "unreadable" in rows:
            found = found & ~links.follow(rows["unreadable"])
        if "file" in rows and "episode" not in rows and "entity" not in rows:
            found = found & ~links.crosses_files(rows)
            links.cut |= links.ongoing & links.known & links.crosses_files(rows)
        state = rows["state"]
        own = rows["terminated"] | ~found
        rows["next_state"] = np.where(
            own if state.ndim == 1 else own[:, None], state, links.follow(state)
        )
        drop: Mask = ~found & ~rows["terminated"]
        drop |= rows["truncated"] & ~rows["terminated"]
        if "bad" in rows:
            drop &= ~rows["bad"]
        if self.keep_last:
            links.cut |= drop
            return np.zeros_like(drop)
        links.undecided |= links.ongoing & links.known & links.follow(links.undecided)
        links.cut |= links.ongoing & links.known & links.follow(drop)
        return drop

    def _mismatches(self, rows: Chunk, links: _Successors) -> Mask:
        """Rows whose next state is not the state of the row that follows."""
        differ = rows["next_state"] != links.follow(rows["state"])
        if differ.ndim > 1:
            differ = differ.any(axis=1)
        differ &= links.ongoing & links.known & ~links.cut
        return np.asarray(differ)

    def _count(
        self,
        rows: Chunk,
        mismatch: Mask | None,
        drop: Mask | None,
        links: _Successors,
        end: int,
    ) -> None:
        if mismatch is not None and self.count_repeats:
            again = mismatch & links.repeats(rows)
            self.counts.duplicates += int(np.count_nonzero(again[:end]))
        for reason, mask in ((MISMATCH, mismatch), (TOO_FAR, links.too_far)):
            if mask is not None and (count := int(np.count_nonzero(mask[:end]))):
                self.counts.unmarked_ends[reason] += count
        if drop is not None and (count := int(np.count_nonzero(drop[:end]))):
            self.counts.rejected[NO_NEXT] += count


class _Successors:
    """For each row the next row of its stream, and whether it belongs to the same episode."""

    def __init__(self, rows: Chunk, last: bool) -> None:
        self.n = n = int(rows["reward"].size)
        self._next = _next_in_stream(rows["stream"]) if "stream" in rows else None
        self.known: Mask = np.ones(n, dtype=bool)  # whether the next row has been read
        self.too_far: Mask | None = None
        if self._next is None:
            self.known[-1] = False
        else:
            self.known = (self._next < n) & (self._next - np.arange(n) <= HORIZON)
        late = np.zeros(n, dtype=bool)  # where no next row can come any more
        late[: n if last else max(n - HORIZON, 0)] = True
        self.ongoing = ~(rows["terminated"] | rows["truncated"])
        self.same = self.known.copy()
        if "bad" in rows:
            self.ongoing &= ~rows["bad"]
        for name in ("entity", "episode", "segment"):
            if name in rows:
                self.same &= rows[name] == self.follow(rows[name])
        self.undecided = self.ongoing & ~self.known & ~late
        self.cut = self.ongoing & ~self.same & ~self.undecided  # to be marked truncated
        if self._next is not None:
            late[max(n - HORIZON, 0) :] = False
            self.too_far = self.ongoing & ~self.known & late
        if "bad" in rows:
            self.cut |= self.ongoing & self.known & self.follow(rows["bad"])

    def follow(self, column: NDArray[Any]) -> NDArray[Any]:
        """The column's entry in the next row; arbitrary where there is none."""
        if self._next is not None:
            return np.asarray(column[np.minimum(self._next, self.n - 1)])
        shifted = np.empty_like(column)
        shifted[:-1] = column[1:]
        shifted[-1] = column[-1]
        return shifted

    def repeats(self, rows: Chunk) -> Mask:
        """Rows that the next one repeats."""
        found = self.known.copy()
        for name in ("state", "next_state", "reward"):
            same = rows[name] == self.follow(rows[name])
            found &= same if same.ndim == 1 else same.all(axis=1)
        return found

    def crosses_files(self, rows: Chunk) -> Mask:
        """Rows whose next row is in another file."""
        return np.asarray(self.known & (rows["file"] != self.follow(rows["file"])))

    def decided(self) -> int:
        """Number of leading rows that are decided."""
        return _first(self.undecided, self.n)


def concatenate(parts: list[Chunk]) -> Chunk:
    """Concatenate rows; masks that only some parts have are False in the others.

    >>> first, second = {"reward": np.ones(1)}, {"reward": np.ones(1), "bad": np.array([True])}
    >>> concatenate([first, second])["bad"]
    array([False,  True])
    """
    names = dict.fromkeys(name for part in parts for name in part)
    missing = {name: np.zeros(1, dtype=bool) for name in ("bad", "unreadable")}
    return {
        name: np.concatenate(
            [
                part[name] if name in part else np.repeat(missing[name], part["reward"].size)
                for part in parts
            ]
        )
        for name in names
    }


def _next_in_stream(stream: Integers) -> Integers:
    """Index of the next row of the same stream; the number of rows where there is none."""
    n = stream.size
    small = stream.size and stream.min() >= -1 and stream.max() < 2**15
    order = np.argsort(stream.astype(np.int16) if small else stream, kind="stable")
    ordered = stream[order]
    same = ordered[1:] == ordered[:-1]
    following = np.full(n, n, dtype=np.int64)
    following[order[:-1][same]] = order[1:][same]
    return following


def _first(mask: Mask | None, otherwise: int) -> int:
    """Index of the first true entry before `otherwise`, or that."""
    if mask is None:
        return otherwise
    at = int(np.argmax(mask)) if mask.size else 0
    return min(at, otherwise) if mask.size and mask[at] else otherwise


def _to_chunk(rows: Chunk, cut: Mask, drop: Mask | None, end: int) -> Iterator[Chunk]:
    """Yield the first `end` rows as a chunk, without those left out."""
    chunk = first_rows({n: column for n, column in rows.items() if n not in INTERNAL}, end)
    chunk["truncated"] = chunk["truncated"] | cut[:end]
    dropped = [mask[:end] for mask in (drop, rows.get("bad")) if mask is not None]
    if any(mask.any() for mask in dropped):
        good = ~np.logical_or.reduce(dropped)
        chunk = {name: column[good] for name, column in chunk.items()}
    if chunk["reward"].size:
        ended = chunk["terminated"]
        if ended.any():
            wide = ended if chunk["state"].ndim == 1 else ended[:, None]
            chunk["next_state"] = np.where(wide, chunk["state"], chunk["next_state"])
        yield chunk


def _mismatch_error(rows: Chunk, links: _Successors, at: int, locate: Locator) -> InputError:
    """The error for a mismatch; where it is no error, it is counted under `MISMATCH`."""
    follows = links.follow(rows["state"])[at]
    file = int(rows["file"][at]) if "file" in rows else 0
    return InputError(
        f"{locate(file, int(rows['row'][at]))}: next_state",
        rows["next_state"][at],
        f"the next row of the episode has state {follows}; mark where episodes end or are cut off",
    )


def linked(
    parts: Iterator[Chunk], linker: RowLinker, to_error: Callable[[Exception], RetvarError]
) -> Iterator[Chunk]:
    """Link rows; if the source fails, yield everything before, then raise ``to_error(failure)``.

    A RetvarError is raised unchanged.
    """
    failure: Exception | None = None
    while True:
        try:
            rows = next(parts)
        except StopIteration:
            break
        except Exception as error:  # an environment may raise anything
            failure = error
            break
        if "state" not in rows:  # a source that grows has nothing new
            yield rows
            continue
        yield from linker.feed(rows)
    yield from linker.finish()
    if failure is not None:
        raise failure if isinstance(failure, RetvarError) else to_error(failure) from failure


class SourceEnded(Exception):
    """A source cannot continue, for the reason in the message."""


def describe_error(error: Exception) -> str:
    """Type and message of an error, on one line.

    >>> describe_error(RuntimeError("motor 3 does not answer"))
    'RuntimeError: motor 3 does not answer'
    """
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def source_error(name: str, counts: Counts) -> Callable[[Exception], RetvarError]:
    """Return a function that turns a failure of the source `name` into a SourceError.

    >>> print(source_error("gymnasium:Robot-v0", Counts(transitions=2))(RuntimeError("stuck")))
    gymnasium:Robot-v0 failed after 2 transitions, which are kept: RuntimeError: stuck
    """

    def to_error(error: Exception) -> RetvarError:
        reason = str(error) if isinstance(error, SourceEnded) else describe_error(error)
        return SourceError(name, counts.transitions, reason)

    return to_error
