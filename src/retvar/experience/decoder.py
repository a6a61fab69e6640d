"""Decode record batches into rows of experience; bad rows are marked and counted, or refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.errors import InputError
from retvar.experience.action_coverage import ActionCoverage
from retvar.experience.arrow_columns import (
    IdEncoder,
    LabelEncoder,
    booleans,
    episode_ids,
    integers,
    leading_zeros,
    numbers,
    row_hashes,
    times,
)
from retvar.experience.column_roles import MOST_STATES, Roles
from retvar.experience.readers import Reader
from retvar.experience.stream import (
    LARGEST_RATIO,
    LARGEST_REWARD,
    Chunk,
    Counts,
    first_rows,
)
from retvar.experience.target_policy import TargetPolicy
from retvar.online.columns import MOST_STREAMS

__all__ = ["Decoder"]

Mask = NDArray[np.bool_]
MALFORMED = "wrong number of fields"


class Decoder:
    """Decodes the batches of one or several files; labels and segments go on between them."""

    def __init__(
        self,
        roles: Roles,
        labels: list[Any] | None,
        counts: Counts,
        strict: bool,
        policy: TargetPolicy | None = None,
        actions: list[Any] | None = None,
    ) -> None:
        self.roles, self.counts, self.strict, self.policy = roles, counts, strict, policy
        self.labels = LabelEncoder(labels if labels is not None else [])
        self.actions = None if actions is None else LabelEncoder(actions, "action")
        self.entities = IdEncoder("entity")
        self.segment = 0
        self.taken: Counter[tuple[Any, Any]] | None = None
        if policy is not None and policy.listed is not None:
            counts.actions = counts.actions or ActionCoverage(policy.listed)
            self.taken = counts.actions.taken

    def rows(self, reader: Reader, file: int | None, chunk: int) -> Iterator[Chunk]:
        """Yield the rows of a file; the rows before a refused one are yielded before the error."""
        first, counted = 0, 0
        for batch in reader.batches(self.roles.columns, chunk):
            if not batch.num_rows:
                continue
            part = _Batch(reader, batch, first, self.strict)
            first += batch.num_rows
            if reader.malformed:
                counted = self._skip_malformed(part, counted)
            rows = self._decode(part)
            if file is not None:
                rows["file"] = np.full(batch.num_rows, file)
            end = part.refused[0] if part.refused else batch.num_rows
            part.count(self.counts, end)
            yield first_rows(rows, end)
            if part.refused:
                raise part.refused[1]
        self.segment += len(reader.malformed)
        if left := len(reader.malformed) - counted:
            if self.strict:
                raise _malformed_error(reader, counted)
            self.counts.rejected[MALFORMED] += left

    def _skip_malformed(self, part: _Batch, counted: int) -> int:
        """Number the rows as in the file, with gaps for malformed rows; return how many so far."""
        malformed = np.sort(np.array(part.reader.malformed))
        offsets = malformed - 1 - np.arange(malformed.size)
        before = np.searchsorted(offsets, part.number, side="right")
        part.gaps = before
        last = int(before[-1])
        if self.strict and last > counted:
            at = int(np.argmax(before > counted))
            part.refuse(at, _malformed_error(part.reader, counted))
        elif last > counted:
            self.counts.rejected[MALFORMED] += last - counted
        return last

    def _decode(self, part: _Batch) -> Chunk:
        r = self.roles
        rows: Chunk = {"reward": part.floats(r.reward, -LARGEST_REWARD, LARGEST_REWARD)}
        if r.cost:
            rows["reward"] = 0.0 - rows["reward"]  # no −0
        part.ended = ended = part.booleans(r.terminated)
        rows["terminated"], rows["truncated"] = ended, part.booleans(r.truncated)
        self._states(part, rows, ended)
        if self.actions is not None and r.action is not None:
            rows["action"] = self.actions.encode([part.batch[r.action]])[0]
            part.reject(rows["action"] < 0, f"{r.action} is missing", r.action)
        for name in ("gamma", "lam"):
            if column := getattr(r, name):
                rows[name] = part.floats(column, 0.0, 1.0)
        if r.rho:
            rows["rho"] = part.floats(r.rho, 0.0, LARGEST_RATIO)
        if r.behaviour and r.target:
            rows["rho"] = part.ratios(r.behaviour, part.probabilities(r.target))
        elif r.behaviour and self.policy is not None:
            rows["rho"] = part.ratios(r.behaviour, self._asked(part, rows))
        if r.episode:
            rows["episode"], missing = episode_ids(part.batch[r.episode])
            part.reject(missing, f"{r.episode} is missing", r.episode)
        self._segments(part, rows)
        if r.entity or r.time:
            self._places(part, rows)
        if part.bad.any():
            rows["bad"] = part.bad
        if self.strict:
            rows["row"] = part.number
        return rows

    def _states(self, part: _Batch, rows: Chunk, ended: Mask) -> None:
        """Add the columns state and next_state; 0 where the state cannot be read."""
        r = self.roles
        names = [r.state] if r.next_state is None else [r.state, r.next_state]
        columns = [[part.batch[name] for name in each] for each in names]
        found: list[NDArray[Any]]
        missing: list[Mask]
        if r.kind == "vector":
            found = [np.stack([numbers(c) for c in each], axis=1) for each in columns]
            missing = [~np.isfinite(each).all(axis=1) for each in found]
        elif r.kind == "label":
            skip = ended if r.next_state is not None else None
            one = len(r.state) == 1
            found = [*self.labels.encode([each[0] if one else each for each in columns], skip)]
            missing = [each < 0 for each in found]
        else:
            if part.reader.text:
                self._count_zeros([each[0] for each in columns])
            pairs = [integers(each[0]) for each in columns]
            most = r.states or MOST_STATES
            found = [pair[0] for pair in pairs]
            missing = [gap | (value.view(np.uint64) >= most) for value, gap in pairs]
        rows["state"], rows["next_state"] = found[0], found[-1]
        part.reject(missing[0], self._reason("state"), r.state[0])
        if r.next_state is not None:
            part.reject(missing[1] & ~ended, self._reason("next_state"), r.next_state[0])
            rows["next_state"] = _replace(found[1], missing[1], found[0])
        if missing[0].any():
            rows["unreadable"] = missing[0]
            zeros = np.zeros_like(found[0])
            for name in ("state", "next_state"):
                rows[name] = _replace(rows[name], missing[0], zeros)

    def _count_zeros(self, columns: list[Any]) -> None:
        """Count codes such as 010, which are read as numbers here."""
        for column in columns:
            padded = leading_zeros(column)
            if padded.any():
                self.counts.padded[str(column[int(np.argmax(padded))])] += int(padded.sum())

    def _reason(self, name: str) -> str:
        """Why a row is rejected whose state cannot be read."""
        most = self.roles.states or MOST_STATES
        return {
            "vector": f"{name} is missing or not finite",
            "label": f"{name} is missing",
            "number": f"{name} is no whole number from 0 to {most - 1:,}",
        }[self.roles.kind]

    def _asked(self, part: _Batch, rows: Chunk) -> NDArray[np.float64]:
        """Probabilities of the logged actions under the target policy."""
        assert self.policy is not None
        assert self.roles.action is not None
        action = self.roles.action
        labels = self.labels.labels if self.roles.kind == "label" else None
        good = ~part.bad
        found = np.full(good.size, np.nan)
        if good.any():
            at = np.flatnonzero(good)
            found[at] = self.policy.probabilities(
                rows["state"][at], part.batch[action].take(at), labels, self.taken
            )
        part.reject(np.isnan(found), "the target policy has no probability", action)
        return found

    def _segments(self, part: _Batch, rows: Chunk) -> None:
        """Add streams and segments; a row of unknown stream ends the segment of all streams."""
        r = self.roles
        segment: Any = self.segment + (part.gaps if part.gaps is not None else 0)
        if r.stream:
            stream, missing = integers(part.batch[r.stream])
            missing = missing | (stream < 0) | (stream >= MOST_STREAMS)
            part.reject(missing, f"{r.stream} is no number of a stream", r.stream)
            rows["stream"] = np.where(missing, -1, stream)
            segment = segment + np.cumsum(missing)
            self.segment += int(np.count_nonzero(missing))
        if r.stream or part.reader.text:
            rows["segment"] = np.broadcast_to(segment, part.bad.shape).astype(np.int64)

    def _places(self, part: _Batch, rows: Chunk) -> None:
        """Add entity and time, and which rows are lost, since their place is not known."""
        r = self.roles
        lost = np.zeros(part.bad.size, dtype=bool)
        rows["entity"] = np.zeros(part.bad.size, dtype=np.int64)
        if r.entity:
            before = self.entities.count
            rows["entity"] = self.entities.encode(part.batch[r.entity])
            self.counts.entities += self.entities.count - before
            lost |= rows["entity"] < 0
            part.reject(lost, f"{r.entity} is missing", r.entity)
        if r.time:
            rows["time"], rows["time_fraction"], missing = times(part.batch[r.time], r.dates)
            part.reject(missing, f"{r.time} is missing or no time", r.time)
            lost |= missing
            rows["hash"] = row_hashes([part.batch[name] for name in r.identity])
        rows["lost"] = lost


def _malformed_error(reader: Reader, which: int) -> InputError:
    where = f"{reader.name}, row {sorted(reader.malformed)[which]:,}"
    return InputError("row", where, "has more or fewer fields than the header; correct the row")


def _replace(column: NDArray[Any], mask: Mask, other: NDArray[Any]) -> NDArray[Any]:
    """Replace the masked entries of a column by those of `other`."""
    if not mask.any():
        return column
    return np.where(mask if column.ndim == 1 else mask[:, None], other, column)


class _Batch:
    """One batch: which of its rows are bad and why, and the first that is refused."""

    def __init__(self, reader: Reader, batch: Any, first: int, strict: bool) -> None:
        self.reader, self.batch, self._first, self._strict = reader, batch, first, strict
        self.bad: Mask = np.zeros(batch.num_rows, dtype=bool)
        self.ended = self.bad
        self.gaps: NDArray[np.int64] | None = None
        self.refused: tuple[int, InputError] | None = None
        self._reasons: list[tuple[str, Mask]] = []

    @property
    def number(self) -> NDArray[np.int64]:
        """Numbers of the rows in the file, from 0."""
        number = np.arange(self._first, self._first + self.batch.num_rows)
        return number if self.gaps is None else number + self.gaps

    def where(self, at: int) -> str:
        """File and row number, for messages."""
        return f"{self.reader.name}, row {int(self.number[at]) + 1:,}"

    def refuse(self, at: int, error: InputError) -> None:
        """Note an error to raise at a row; the first row counts."""
        if self.refused is None or at < self.refused[0]:
            self.refused = at, error

    def reject(self, mask: Mask, reason: str, column: str) -> None:
        """Mark rows as bad; with ``on_error="raise"``, refuse the first of them."""
        mask = mask & ~self.bad
        if not mask.any():
            return
        at = int(np.argmax(mask))
        if self._strict:
            value = self.batch[column][at].as_py()
            error = InputError(f"{self.where(at)}: {column}", value, f"{reason}; correct the row")
            self.refuse(at, error)
        self._reasons.append((reason, mask))
        self.bad |= mask

    def count(self, counts: Counts, end: int) -> None:
        """Count the bad rows before `end`, by reason."""
        for reason, mask in self._reasons:
            if count := int(np.count_nonzero(mask[:end])):
                counts.rejected[reason] += count
        counts.ends_left_out += int(np.count_nonzero((self.bad & self.ended)[:end]))

    def floats(self, column: str, least: float, most: float) -> NDArray[np.float64]:
        """Decode a column of numbers within bounds."""
        value = numbers(self.batch[column])
        self.reject(~np.isfinite(value), f"{column} is missing or not finite", column)
        outside = (value < least) | (value > most)
        self.reject(outside, f"{column} is not within [{least:g}, {most:g}]", column)
        return value

    def booleans(self, column: str | None) -> Mask:
        """Decode a column of true and false; all false where there is none."""
        if column is None:
            return np.zeros(self.batch.num_rows, dtype=bool)
        value, neither = booleans(self.batch[column])
        self.reject(neither, f"{column} is neither true nor false", column)
        return np.asarray(value)

    def probabilities(self, column: str) -> NDArray[np.float64]:
        """Decode a column of probabilities; missing ones are left out, invalid ones refused."""
        value = numbers(self.batch[column])
        self.reject(np.isnan(value), f"{column} is missing", column)
        known = ~np.isnan(value)
        self._refuse_first(known & ~((value >= 0) & (value <= 1)), column, "must be a probability")
        return value

    def ratios(self, behaviour: str, p: NDArray[np.float64]) -> NDArray[np.float64]:
        """ρ = p / behaviour; what is impossible is refused, never left out."""
        b = self.probabilities(behaviour)
        remedy = "the behaviour never does what the target would; there is no ratio"
        self._refuse_first((b == 0) & (p > 0), behaviour, remedy)
        impossible = "an action that the behaviour never takes cannot have been taken"
        self._refuse_first((b == 0) & (p == 0), behaviour, impossible)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ratio = p / b
        overflow = "so small that target / behaviour is no finite number"
        self._refuse_first((b > 0) & (p > 0) & ~np.isfinite(ratio), behaviour, overflow)
        too_large = f"{behaviour} is so small that the ratio is beyond {LARGEST_RATIO:g}"
        self.reject(ratio > LARGEST_RATIO, too_large, behaviour)
        return np.asarray(np.where(np.isfinite(ratio), ratio, 0.0))

    def _refuse_first(self, mask: Mask, column: str, remedy: str) -> None:
        if mask.any():
            at = int(np.argmax(mask))
            value = self.batch[column][at].as_py()
            self.refuse(at, InputError(f"{self.where(at)}: {column}", value, remedy))
