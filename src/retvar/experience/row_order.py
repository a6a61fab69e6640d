"""Signs in the first rows of a log that its rows are mixed or out of order, with remedies."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.experience.arrow_columns import (
    booleans,
    episode_ids,
    is_number,
    is_time,
    numbers,
    row_hashes,
    times,
)
from retvar.experience.column_roles import Roles, first_rows_of, is_textual
from retvar.experience.readers import Reader
from retvar.format import listed

__all__ = ["order_suspicions", "resent_rows"]

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
IDS = re.compile(
    r"(^|_)(patient|user|device|entity|subject|customer|client|person|agent|unit|machine|vehicle|"
    r"session|trajectory|traj|stay|case|player|env|environment|episode|stream|id|ids|uuid|key)$"
    r"|[a-z]I[dD]$"
)
CLOCKS = re.compile(r"(time|timestamp|time_?step|step|t|ts)$", re.IGNORECASE)  # of numbers
DATES = re.compile(r"(?!.*(birth|due|dob)).*(time|timestamp|date|when)$", re.IGNORECASE)
OFTEN = 0.01  # share of rows from which on ids alternate, or times go back
LEAST = 3  # rows
MOST_COLUMNS = 50  # of a log in which rows that were sent twice are looked for
OWN = 0.5  # share of different values of a column that numbers the rows
LEFT = 0.4  # share of ties in time that remain where the entity is known


def order_suspicions(reader: Reader, roles: Roles) -> list[str]:
    """Warnings about the first rows, each with the probable remedy.

    Ids alternate where one comes back after another, although its episode has not ended.

    >>> from retvar.experience import from_table
    >>> log = {"patient": ["a", "b"] * 20, "state": [0] * 40, "reward": [1.0] * 40,
    ...        "terminated": [False] * 40}
    >>> from_table(log).warnings
    ["column 'patient' alternates, so that rows of several may be mixed: name entity='patient'"]
    """
    if roles.entity or roles.stream:
        ids: list[str] = []
    else:
        used = {*roles.state, *(roles.next_state or []), roles.reward, roles.action, roles.time}
        ids = [name for name in reader.types if _is_id(name, roles) and name not in used]
    clocks = [name for name in reader.types if CLOCKS.match(name) or DATES.match(name)]
    clocks = [] if roles.time or roles.stream else clocks
    clocks = [name for name in clocks if name not in (*roles.state, *(roles.next_state or []))]
    if not ids and not clocks and not roles.time:
        return []
    ended = _ended(reader, roles)
    found = []
    mixed = [name for name in ids if _alternates(reader, name, ended)]
    apart = None if mixed or roles.entity or roles.stream else _tells_apart(reader, roles, clocks)
    if apart is not None:
        entity, clock = apart
        more = "" if roles.time else f" and time={clock!r}"
        found.append(
            f"rows of equal {clock!r} differ in column {entity!r}, so that rows of several may be "
            f"mixed: name entity={entity!r}{more}"
        )
        return found
    if mixed:
        found.append(
            f"column {mixed[0]!r} alternates, so that rows of several may be mixed: "
            f"name entity={mixed[0]!r}"
            + (f" (or one of {listed(map(repr, mixed[1:]))})" if mixed[1:] else "")
        )
    if not mixed:
        back = [name for name in clocks if _goes_back(reader, name, roles, ended)]
        if back:
            found.append(
                f"column {back[0]!r} goes back between rows that follow one another, so that they "
                f"may be out of order: name time={back[0]!r}"
            )
    return found


def resent_rows(reader: Reader, roles: Roles) -> str:
    """A warning about first rows that equal another in all columns but one, such as a row id.

    >>> from retvar.experience import from_table
    >>> log = {"state": [0, 1] * 10, "reward": [1.0] * 20, "terminated": [False] * 20,
    ...        "t": [t // 2 for t in range(20)], "sent": range(20)}
    >>> for name in ("state", "reward", "t"):
    ...     log[name] = [log[name][2 * (k // 2)] for k in range(20)]
    >>> print(from_table(log, time="t").counts.resent)
    10 of the first 20 rows equal another in all columns but 'sent', and were probably sent twice:
    remove this column, so that duplicates are left out
    """
    used = _used(roles)
    if len(roles.identity) > MOST_COLUMNS:
        return ""
    columns = dict(zip(roles.identity, first_rows_of(reader, list(roles.identity)), strict=True))
    rows = len(columns[roles.time]) if roles.time else 0
    for name, column in columns.items():
        if name in used or _distinct([column]) < OWN * rows:
            continue
        others = [each for other, each in columns.items() if other != name]
        again = _distinct(list(columns.values())) - _distinct(others)
        if again >= max(LEAST, OFTEN * rows):
            return (
                f"{again:,} of the first {rows:,} rows equal another in all columns but {name!r}, "
                "and were probably sent twice: remove this column, so that duplicates are left out"
            )
    return ""


def _distinct(columns: list[Any]) -> int:
    return int(np.unique(row_hashes(columns)).size)


def _used(roles: Roles) -> set[Any]:
    """Columns that have a role."""
    return {name for role, given in vars(roles).items() if role != "identity"
            for name in (given if isinstance(given, list | tuple) else [given])}  # fmt: skip


def _tells_apart(reader: Reader, roles: Roles, clocks: list[str]) -> tuple[str, str] | None:
    """A column whose values tell rows of equal time apart, and that time."""
    used = _used(roles)
    for clock in [roles.time] if roles.time else clocks:
        time = _ids(reader, clock)
        ties = time.size - np.unique(time).size
        if ties < max(LEAST, OFTEN * time.size):
            continue
        for name in reader.types:
            if name in used or name in clocks:
                continue
            column = first_rows_of(reader, [name])[0]
            whole = numbers(column) if is_number(column.type) or reader.text else np.zeros(0)
            if whole.size and np.isfinite(whole).any() and not (whole % 1 == 0).all():
                continue  # measurements, not ids
            ids = episode_ids(column)[0]
            pairs = np.unique(np.stack([ids, time]), axis=1).shape[1]
            several = 2 <= np.unique(ids).size <= time.size / LEAST
            if several and time.size - pairs <= LEFT * ties:
                return name, clock
    return None


def _is_id(name: str, roles: Roles) -> bool:
    return name == roles.episode or bool(IDS.search(name))


def _ids(reader: Reader, name: str) -> Integers:
    return episode_ids(first_rows_of(reader, [name])[0])[0]


def _ended(reader: Reader, roles: Roles) -> Mask:
    """Where the first rows say that an episode ends."""
    flags = [name for name in (roles.terminated, roles.truncated) if name]
    columns = first_rows_of(reader, flags or [roles.reward])
    found = np.zeros(len(columns[0]), dtype=bool)
    for column in columns if flags else []:
        found |= booleans(column)[0]
    return found


def _alternates(reader: Reader, name: str, ended: Mask) -> bool:
    """Whether ids come back after others, in the middle of episodes.

    A number that falls back to the least one is a counter that starts anew.
    """
    column = first_rows_of(reader, [name])[0]
    ids, missing = episode_ids(column)
    if missing.all():
        return False
    starts = np.concatenate([[0], np.flatnonzero(ids[1:] != ids[:-1]) + 1]).astype(np.int64)
    again = np.ones(starts.size, dtype=bool)
    again[np.unique(ids[starts], return_index=True)[1]] = False
    value = numbers(column) if is_number(column.type) or reader.text else np.full(ids.size, np.nan)
    least = np.nanmin(value) if np.isfinite(value).all() else np.nan
    again &= value[starts] != least
    back = starts[again]
    interrupted = np.count_nonzero(~ended[back - 1]) if back.size else 0
    return bool(interrupted >= max(LEAST, OFTEN * ids.size))


def _goes_back(reader: Reader, name: str, roles: Roles, ended: Mask) -> bool:
    """Whether a time falls from a row to the next of the same entity and episode.

    A number that falls back to the least one is a counter that starts anew.
    """
    column = first_rows_of(reader, [name])[0]
    if not (is_number(column.type) or is_textual(column.type) or is_time(column.type)):
        return False
    dates = is_time(column.type) or bool(np.isnan(numbers(column)).all())
    if not (dates or CLOCKS.match(name)):  # a duration, perhaps
        return False
    whole, fraction, missing = times(column, dates)
    if missing.any():
        return False
    order = np.arange(whole.size)
    apart = ended[:-1].copy()
    if roles.entity:
        entity = _ids(reader, roles.entity)
        order = np.argsort(entity, kind="stable")
        apart = ended[order][:-1] | (entity[order][1:] != entity[order][:-1])
    if roles.episode:
        episode = _ids(reader, roles.episode)[order]
        apart |= episode[1:] != episode[:-1]
    whole, fraction = whole[order], fraction[order]
    falls = (whole[1:] < whole[:-1]) | ((whole[1:] == whole[:-1]) & (fraction[1:] < fraction[:-1]))
    if not dates:
        falls &= whole[1:] != whole.min()
    return bool(np.count_nonzero(falls & ~apart) >= max(LEAST, OFTEN * whole.size))
