"""Rows that follow one another: traces are cut where they do not, and what is bad is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.errors import InputError, RetvarError, SourceError
from retvar.experience.stream import Chunk, Counts

__all__ = ["Chain", "Stop", "handed_over", "in_words", "joined", "stopped"]

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
Where = Callable[[int, int], str]  # a file and a row of it, for a message
HORIZON = 65_536  # rows within which the next one of a stream must come
INTERNAL = ("bad", "lost", "episode", "piece", "file", "row")
FAR = f"the next row of its stream is more than {HORIZON:,} rows away"
UNCHAINED = "does not chain"
NO_NEXT = "no next state"


class Chain:
    """Takes rows in, and gives them out once it is known whether the next of their stream follows.

    Rows are columns as in a chunk, and, where they matter: ``bad`` (to be left out), ``lost``
    (whose state cannot be read), ``episode`` (its id), ``piece`` (nothing follows over its end),
    ``file`` (what follows over its end need not chain) and ``row`` (its number, for messages). A
    row before one that is left out, or that belongs elsewhere, is marked truncated, so that no
    learner's trace leads over the gap.

    >>> column = {"state": np.array([0, 1, 2]), "next_state": np.array([1, 2, 0]),
    ...           "reward": np.ones(3), "terminated": np.zeros(3, dtype=bool),
    ...           "truncated": np.zeros(3, dtype=bool), "bad": np.array([False, True, False])}
    >>> chain = Chain(Counts())
    >>> [(c["state"], c["truncated"]) for c in (*chain.feed(column), *chain.finish())]
    [(array([0]), array([ True])), (array([2]), array([ True]))]
    """

    def __init__(
        self,
        counts: Counts,
        *,
        lookup: bool = False,
        check: bool = False,
        where: Where | None = None,
    ) -> None:
        self.counts = counts
        self.lookup = lookup  # next states are those of the next rows
        self.check = check  # next states must be those of the next rows
        self.where = where  # what does not chain is an error, and so it is told where
        self._held: Chunk | None = None

    def feed(self, rows: Chunk) -> Iterator[Chunk]:
        """Take in rows; give out those about which nothing can change any more."""
        return self._release(rows, last=False)

    def finish(self) -> Iterator[Chunk]:
        """Give out the rest; the last row of each stream is cut off there."""
        return iter(()) if self._held is None else self._release(None, last=True)

    def _release(self, rows: Chunk | None, *, last: bool) -> Iterator[Chunk]:
        if self._held is not None:
            rows = self._held if rows is None else joined([self._held, rows])
        if rows is None or not rows["reward"].size:
            return
        links = _Links(rows, last)
        drop = self._look_up(rows, links) if self.lookup else None
        unchained = self._unchained(rows, links) if self.check else None
        end = links.decided()
        broken = end
        if unchained is not None:
            links.cut |= unchained
            if "file" in rows:
                unchained &= ~links.border(rows)
            broken = _first(unchained, end) if self.where else end
        self._count(unchained, drop, links, min(end, broken + 1))
        self._held = (
            {name: column[end:] for name, column in rows.items()} if end < links.n else None
        )
        yield from _given_out(rows, links.cut, drop, min(end, broken + 1))
        if self.where and broken < end:
            self._held = None
            raise _not_chained(rows, links, broken, self.where)

    def _look_up(self, rows: Chunk, links: _Links) -> Mask:
        """Take next states from the next rows; which rows have none and are left out."""
        found = links.same if "lost" not in rows else links.same & ~links.follow(rows["lost"])
        if "file" in rows and "episode" not in rows:
            found = found & ~links.border(rows)
            links.cut |= links.open & links.seen & links.border(rows)
        state = rows["state"]
        keep = rows["terminated"] | ~found
        rows["next_state"] = np.where(
            keep if state.ndim == 1 else keep[:, None], state, links.follow(state)
        )
        drop: Mask = ~found & ~rows["terminated"]
        drop |= rows["truncated"] & ~rows["terminated"]
        if "bad" in rows:
            drop &= ~rows["bad"]
        links.undecided |= links.open & links.seen & links.follow(links.undecided)
        links.cut |= links.open & links.seen & links.follow(drop)
        return drop

    def _unchained(self, rows: Chunk, links: _Links) -> Mask:
        """Rows whose next state is not the state of the row that follows."""
        differ = rows["next_state"] != links.follow(rows["state"])
        if differ.ndim > 1:
            differ = differ.any(axis=1)
        differ &= links.open & links.seen & ~links.cut
        return np.asarray(differ)

    def _count(self, unchained: Mask | None, drop: Mask | None, links: _Links, end: int) -> None:
        counts = {UNCHAINED: unchained, FAR: links.far}
        for reason, mask in counts.items():
            if mask is not None and (count := int(np.count_nonzero(mask[:end]))):
                self.counts.cuts[reason] += count
        if drop is not None and (count := int(np.count_nonzero(drop[:end]))):
            self.counts.rejected[NO_NEXT] += count


class _Links:
    """Which row of its stream follows each row, and whether it belongs to it."""

    def __init__(self, rows: Chunk, last: bool) -> None:
        self.n = n = int(rows["reward"].size)
        self._next = _successors(rows["stream"]) if "stream" in rows else None
        self.seen: Mask = np.ones(n, dtype=bool)
        self.far: Mask | None = None
        if self._next is None:
            self.seen[-1] = False
        else:
            self.seen = (self._next < n) & (self._next - np.arange(n) <= HORIZON)
        late = np.zeros(n, dtype=bool)  # where no next row can come any more
        late[: n if last else max(n - HORIZON, 0)] = True
        self.open = ~(rows["terminated"] | rows["truncated"])
        self.same = self.seen.copy()
        if "bad" in rows:
            self.open &= ~rows["bad"]
        for name in ("episode", "piece"):
            if name in rows:
                self.same &= rows[name] == self.follow(rows[name])
        self.undecided = self.open & ~self.seen & ~late
        self.cut = self.open & ~self.same & ~self.undecided
        if self._next is not None:
            late[max(n - HORIZON, 0) :] = False
            self.far = self.open & ~self.seen & late
        if "bad" in rows:
            self.cut |= self.open & self.seen & self.follow(rows["bad"])

    def follow(self, column: NDArray[Any]) -> NDArray[Any]:
        """The entry of the row that follows; anything where there is none."""
        if self._next is not None:
            return np.asarray(column[np.minimum(self._next, self.n - 1)])
        shifted = np.empty_like(column)
        shifted[:-1] = column[1:]
        shifted[-1] = column[-1]
        return shifted

    def border(self, rows: Chunk) -> Mask:
        """Rows that are followed by one of another file."""
        return np.asarray(self.seen & (rows["file"] != self.follow(rows["file"])))

    def decided(self) -> int:
        """How many rows, from the first, are decided."""
        return _first(self.undecided, self.n)


def joined(parts: list[Chunk]) -> Chunk:
    """Rows one after the other; marks that only some of them have are not set for the others.

    >>> first, second = {"reward": np.ones(1)}, {"reward": np.ones(1), "bad": np.array([True])}
    >>> joined([first, second])["bad"]
    array([False,  True])
    """
    names = dict.fromkeys(name for part in parts for name in part)
    missing = {name: np.zeros(1, dtype=bool) for name in ("bad", "lost")}
    return {
        name: np.concatenate(
            [
                part[name] if name in part else np.repeat(missing[name], part["reward"].size)
                for part in parts
            ]
        )
        for name in names
    }


def _successors(stream: Integers) -> Integers:
    """Number of the next row of the same stream; the number of rows where there is none."""
    n = stream.size
    small = stream.size and stream.min() >= -1 and stream.max() < 2**15
    order = np.argsort(stream.astype(np.int16) if small else stream, kind="stable")
    ordered = stream[order]
    same = ordered[1:] == ordered[:-1]
    following = np.full(n, n, dtype=np.int64)
    following[order[:-1][same]] = order[1:][same]
    return following


def _first(mask: Mask | None, otherwise: int) -> int:
    """First true entry before `otherwise`, or that."""
    if mask is None:
        return otherwise
    at = int(np.argmax(mask)) if mask.size else 0
    return min(at, otherwise) if mask.size and mask[at] else otherwise


def _given_out(rows: Chunk, cut: Mask, drop: Mask | None, end: int) -> Iterator[Chunk]:
    """The first rows as a chunk, without those left out."""
    whole = {name: column[:end] for name, column in rows.items() if name not in INTERNAL}
    whole["truncated"] = whole["truncated"] | cut[:end]
    gone = [mask[:end] for mask in (drop, rows.get("bad")) if mask is not None]
    if any(mask.any() for mask in gone):
        kept = ~np.logical_or.reduce(gone)
        whole = {name: column[kept] for name, column in whole.items()}
    if whole["reward"].size:
        ended = whole["terminated"]
        if ended.any():
            wide = ended if whole["state"].ndim == 1 else ended[:, None]
            whole["next_state"] = np.where(wide, whole["state"], whole["next_state"])
        yield whole


def _not_chained(rows: Chunk, links: _Links, at: int, where: Where) -> InputError:
    follows = links.follow(rows["state"])[at]
    file = int(rows["file"][at]) if "file" in rows else 0
    return InputError(
        f"{where(file, int(rows['row'][at]))}: next_state",
        rows["next_state"][at],
        f"the next row of the episode has state {follows}; mark where episodes end or are cut off",
    )


def handed_over(
    pieces: Iterator[Chunk], chain: Chain, failed: Callable[[Exception], RetvarError]
) -> Iterator[Chunk]:
    """Chain pieces; where they fail, give out everything before, then the error as `failed` says.

    Errors of retvar's own stay as they are.
    """
    problem: Exception | None = None
    while True:
        try:
            rows = next(pieces)
        except StopIteration:
            break
        except Exception as error:  # an environment may raise anything
            problem = error
            break
        yield from chain.feed(rows)
    yield from chain.finish()
    if problem is not None:
        raise problem if isinstance(problem, RetvarError) else failed(problem) from problem


class Stop(Exception):
    """A source can give no more, for the reason said."""


def in_words(error: Exception) -> str:
    """An error on one line: its kind and what it says.

    >>> in_words(RuntimeError("motor 3 does not answer"))
    'RuntimeError: motor 3 does not answer'
    """
    told = " ".join(str(error).split())
    return f"{type(error).__name__}: {told}" if told else type(error).__name__


def stopped(name: str, counts: Counts) -> Callable[[Exception], RetvarError]:
    """How a failure is told: a SourceError with what had been handed over.

    >>> print(stopped("gymnasium:Robot-v0", Counts(transitions=2))(RuntimeError("stuck")))
    gymnasium:Robot-v0 failed after 2 transitions, which are kept: RuntimeError: stuck
    """

    def failed(error: Exception) -> RetvarError:
        reason = str(error) if isinstance(error, Stop) else in_words(error)
        return SourceError(name, counts.transitions, reason)

    return failed
