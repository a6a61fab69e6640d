"""Signs in the first rows of a log that its rows are mixed or out of order, with remedies."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from retvar.experience.arrow_columns import (
    booleans,
    episode_ids,
    is_number,
    is_time,
    numbers,
    times,
)
from retvar.experience.column_roles import Roles, first_rows_of, is_textual
from retvar.experience.readers import Reader
from retvar.format import listed

__all__ = ["order_suspicions"]

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
    if not ids and not clocks:
        return []
    ended = _ended(reader, roles)
    found = []
    mixed = [name for name in ids if _alternates(reader, name, ended)]
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
