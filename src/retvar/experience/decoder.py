"""Batches of a table as rows of experience: what cannot be used is marked, counted, or refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.errors import InputError
from retvar.experience.arrow_columns import Labels, episodes, flags, is_number, numbers, wholes
from retvar.experience.readers import Reader
from retvar.experience.stream import Chunk, Counts

__all__ = ["Decoder", "Roles"]

Mask = NDArray[np.bool_]
MOST_STATES = 10_000_000
MOST_STREAMS = 1_000_000
GONE = "wrong number of fields"


@dataclass(frozen=True)
class Roles:
    """Which columns mean what; None: there is no such column."""

    state: list[str]
    next_state: list[str] | None
    reward: str
    terminated: str | None
    truncated: str | None
    kind: str = "number"  #: states are 'number', 'label' or 'vector'
    states: int | None = None  #: how many, where they are numbers and it was said
    episode: str | None = None
    stream: str | None = None
    gamma: str | None = None
    lam: str | None = None
    rho: str | None = None
    behaviour: str | None = None
    target: str | None = None

    @property
    def columns(self) -> list[str]:
        """All columns needed."""
        single = (
            self.reward, self.terminated, self.truncated, self.episode, self.stream,
            self.gamma, self.lam, self.rho, self.behaviour, self.target,
        )  # fmt: skip
        names = [*self.state, *(self.next_state or []), *(name for name in single if name)]
        return list(dict.fromkeys(names))


class Decoder:
    """Turns the batches of a table into rows, and remembers what goes on between them."""

    def __init__(
        self, roles: Roles, labels: list[Any] | None, counts: Counts, strict: bool
    ) -> None:
        self.roles, self.counts, self.strict = roles, counts, strict
        self.labels = Labels(labels if labels is not None else [])
        self.streams = Labels([])
        self.piece = 0

    def rows(self, reader: Reader, file: int | None, chunk: int) -> Iterator[Chunk]:
        """The rows of a file; what comes before a row that is refused comes before the error."""
        place = 0
        counted = 0
        for batch in reader.batches(self.roles.columns, chunk):
            if not batch.num_rows:
                continue
            part = _Part(reader, batch, place)
            place += batch.num_rows
            if reader.gone:
                counted = self._gone(part, counted)
            rows = self._decoded(part)
            if file is not None:
                rows["file"] = np.full(batch.num_rows, file)
            end = part.refused[0] if part.refused else batch.num_rows
            part.count(self.counts, end)
            yield {name: column[:end] for name, column in rows.items()}
            if part.refused:
                raise part.refused[1]
        self.piece += len(reader.gone)
        if left := len(reader.gone) - counted:
            if self.strict:
                raise self._wrong_fields(reader, counted)
            self.counts.rejected[GONE] += left

    def _wrong_fields(self, reader: Reader, which: int) -> InputError:
        where = f"{reader.name}, row {sorted(reader.gone)[which]:,}"
        return InputError("row", where, "has more or fewer fields than the header")

    def _gone(self, part: _Part, counted: int) -> int:
        """Number rows as in the file, where some could not be taken apart: nothing leads over."""
        gone = np.sort(np.array(part.reader.gone))
        before = np.searchsorted(gone - 1 - np.arange(gone.size), part.number, side="right")
        part.gaps = before
        last = int(before[-1])
        if self.strict and last > counted:
            at = int(np.argmax(before > counted))
            part.refuse(at, self._wrong_fields(part.reader, counted))
        elif last > counted:
            self.counts.rejected[GONE] += last - counted
        return last

    def _decoded(self, part: _Part) -> Chunk:
        r, strict = self.roles, self.strict
        rows: Chunk = {"reward": part.floats(r.reward, strict)}
        ended = part.flags(r.terminated, strict)
        rows["terminated"], rows["truncated"] = ended, part.flags(r.truncated, strict)
        self._states(part, rows, ended)
        for name in ("gamma", "lam"):
            if column := getattr(r, name):
                rows[name] = part.floats(column, strict, least=0.0, most=1.0)
        if r.rho:
            rows["rho"] = part.floats(r.rho, strict, least=0.0)
        if r.behaviour and r.target:
            rows["rho"] = part.ratios(r.behaviour, r.target)
        if r.episode:
            rows["episode"], none = episodes(part.batch[r.episode])
            part.reject(none, f"{r.episode} is missing", r.episode, strict)
        self._pieces(part, rows)
        if part.bad.any():
            rows["bad"] = part.bad
        if strict:
            rows["row"] = part.number
        return rows

    def _states(self, part: _Part, rows: Chunk, ended: Mask) -> None:
        r = self.roles
        names = [r.state] if r.next_state is None else [r.state, r.next_state]
        columns = [[part.batch[name] for name in each] for each in names]
        found: list[NDArray[Any]]
        none: list[Mask]
        if r.kind == "vector":
            found = [np.stack([numbers(c) for c in each], axis=1) for each in columns]
            none = [~np.isfinite(each).all(axis=1) for each in found]
        elif r.kind == "label":
            unless = ended if r.next_state is not None else None
            found = [*self.labels.numbers([each[0] for each in columns], unless)]
            none = [each < 0 for each in found]
        else:
            pairs = [wholes(each[0]) for each in columns]
            most = r.states or MOST_STATES
            found = [pair[0] for pair in pairs]
            none = [gap | (value.view(np.uint64) >= most) for value, gap in pairs]
        rows["state"], rows["next_state"] = found[0], found[-1]
        part.reject(none[0], self._unread("state"), r.state[0], self.strict)
        if r.next_state is not None:
            gap = none[1] & ~ended
            part.reject(gap, self._unread("next_state"), r.next_state[0], self.strict)
            rows["next_state"] = _instead(none[1], found[0], found[1])
        if none[0].any():
            rows["lost"] = none[0]
            nothing = np.zeros_like(found[0])
            for name in ("state", "next_state"):
                rows[name] = _instead(none[0], nothing, rows[name])

    def _unread(self, name: str) -> str:
        most = self.roles.states or MOST_STATES
        return {
            "vector": f"{name} is missing or not finite",
            "label": f"{name} is missing",
            "number": f"{name} is no whole number from 0 to {most - 1:,}",
        }[self.roles.kind]

    def _pieces(self, part: _Part, rows: Chunk) -> None:
        """Streams; nothing leads over a row of which it is not known to which it belongs."""
        r = self.roles
        piece: Any = self.piece + (part.gaps if part.gaps is not None else 0)
        if r.stream:
            column = part.batch[r.stream]
            if is_number(column.type) or part.reader.text:
                stream, none = wholes(column)
                none = none | (stream < 0) | (stream >= MOST_STREAMS)
            else:
                stream = self.streams.numbers([column])[0]
                none = stream < 0
            part.reject(none, f"{r.stream} is no number of a stream", r.stream, self.strict)
            rows["stream"] = np.where(none, -1, stream)
            piece = piece + np.cumsum(none)
        if r.stream or part.reader.text:
            rows["piece"] = np.broadcast_to(piece, part.bad.shape).astype(np.int64)
            if r.stream:
                self.piece += int(np.count_nonzero(none))


def _instead(mask: Mask, other: NDArray[Any], column: NDArray[Any]) -> NDArray[Any]:
    """A column with `other` where `mask` says so."""
    if not mask.any():
        return column
    return np.where(mask if column.ndim == 1 else mask[:, None], other, column)


class _Part:
    """One batch: which of its rows are bad and why, and the first that is refused."""

    def __init__(self, reader: Reader, batch: Any, place: int) -> None:
        self.reader, self.batch, self._place = reader, batch, place
        self.bad: Mask = np.zeros(batch.num_rows, dtype=bool)
        self.gaps: NDArray[np.int64] | None = None
        self.refused: tuple[int, InputError] | None = None
        self._reasons: list[tuple[str, Mask]] = []

    @property
    def number(self) -> NDArray[np.int64]:
        """The numbers of its rows in the file, from 0."""
        plain = np.arange(self._place, self._place + self.batch.num_rows)
        return plain if self.gaps is None else plain + self.gaps

    def where(self, at: int) -> str:
        return f"{self.reader.name}, row {int(self.number[at]) + 1:,}"

    def refuse(self, at: int, error: InputError) -> None:
        if self.refused is None or at < self.refused[0]:
            self.refused = at, error

    def reject(self, mask: Mask, reason: str, column: str, strict: bool) -> None:
        """Leave rows out; where that is not wanted, refuse the first."""
        mask = mask & ~self.bad
        if not mask.any():
            return
        at = int(np.argmax(mask))
        if strict:
            value = self.batch[column][at].as_py()
            error = InputError(f"{self.where(at)}: {column}", value, f"{reason}; correct the row")
            self.refuse(at, error)
        self._reasons.append((reason, mask))
        self.bad |= mask

    def count(self, counts: Counts, end: int) -> None:
        for reason, mask in self._reasons:
            if count := int(np.count_nonzero(mask[:end])):
                counts.rejected[reason] += count

    def floats(
        self, column: str, strict: bool, least: float = -np.inf, most: float = np.inf
    ) -> NDArray[np.float64]:
        """A column of numbers within bounds."""
        value = numbers(self.batch[column])
        self.reject(~np.isfinite(value), f"{column} is missing or not finite", column, strict)
        within = f"[{least:g}, {most:g}]" if most < np.inf else "0 or more"
        if least > -np.inf:
            outside = (value < least) | (value > most)
            self.reject(outside, f"{column} is not within {within}", column, strict)
        return value

    def flags(self, column: str | None, strict: bool) -> Mask:
        if column is None:
            return np.zeros(self.batch.num_rows, dtype=bool)
        value, neither = flags(self.batch[column])
        self.reject(neither, f"{column} is neither true nor false", column, strict)
        return np.asarray(value)

    def ratios(self, behaviour: str, target: str) -> NDArray[np.float64]:
        """ρ = target / behaviour; what is wrong with probabilities is refused, never left out."""
        b, p = numbers(self.batch[behaviour]), numbers(self.batch[target])
        for column, value in ((behaviour, b), (target, p)):
            self._refuse_first(~((value >= 0) & (value <= 1)), column, "must be a probability")
        remedy = "the behaviour never does what the target would; there is no ratio"
        self._refuse_first((b == 0) & (p > 0), behaviour, remedy)
        nothing = "an action that the behaviour never takes cannot have been taken"
        self._refuse_first((b == 0) & (p == 0), behaviour, nothing)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ratio = p / b
        endless = "so small that target / behaviour is no finite number"
        self._refuse_first((b > 0) & ~np.isfinite(ratio), behaviour, endless)
        return np.asarray(np.where(np.isfinite(ratio), ratio, 0.0))

    def _refuse_first(self, mask: Mask, column: str, remedy: str) -> None:
        if mask.any():
            at = int(np.argmax(mask))
            value = self.batch[column][at].as_py()
            self.refuse(at, InputError(f"{self.where(at)}: {column}", value, remedy))
