"""Find the columns of a table by role, and decide what its states are: numbers, labels, vectors."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np

from retvar.arguments import is_integer
from retvar.errors import InputError, RetvarError
from retvar.experience.arrow_columns import (
    booleans,
    import_pyarrow,
    integers,
    is_number,
    is_text,
    is_time,
    leading_zeros,
    numbers,
    times,
)
from retvar.experience.episodes import describe_error
from retvar.experience.readers import SCAN_ROWS, Reader
from retvar.format import listed, literal

__all__ = ["MOST_STATES", "ColumnFinder", "Roles", "find_roles", "first_rows_of", "is_textual"]

log = logging.getLogger("retvar")
MOST_STATES = 10_000_000
FROM_OWN_FILES = ("gamma", "lam", "rho")  # found by name only in files that retvar wrote
ONLY_NAMED = ("behaviour", "target")  # never found by name
ANY = ("episode", "entity", "action")  # roles of columns that may hold numbers or text
MUST_HOLD = {
    "terminated": "true and false, or 0 and 1",
    "truncated": "true and false, or 0 and 1",
    "time": "numbers, or dates and times such as 2026-01-31 or 2026-01-31T12:00",
} | dict.fromkeys(("episode", "entity", "action", "state"), "one number or text a row")
BINNED = "has fractions beside columns of text; bin or leave out the numbers, or number the text"
MOMENTS = (
    "nearly every row has its own, so that no state occurs twice; name it time=, and derive a "
    "state such as the hour of the day"
)
OPPOSED = (("state", "next_state"), ("terminated", "truncated"))
MANY_MOMENTS, FEW_ROWS = 0.5, 20  # share of distinct dates that are no states; in at least so many


@dataclass(frozen=True)
class Roles:
    """The column of each role; None: there is no such column."""

    state: list[str]
    next_state: list[str] | None
    reward: str
    terminated: str | None
    truncated: str | None
    kind: str = "number"  #: of states: 'number', 'label' or 'vector'
    states: int | None = None  #: number of states, where they are numbers and it is known
    episode: str | None = None
    entity: str | None = None
    time: str | None = None
    dates: bool = False  #: whether times are dates, not numbers
    identity: tuple[str, ...] = ()  #: columns in which duplicates are equal
    stream: str | None = None  #: only in files that retvar wrote
    action: str | None = None  #: where the target policy needs it
    cost: bool = False  #: whether the reward is a cost, to be negated
    gamma: str | None = None
    lam: str | None = None
    rho: str | None = None
    behaviour: str | None = None
    target: str | None = None

    @property
    def columns(self) -> list[str]:
        """All columns needed."""
        single = (
            self.reward, self.terminated, self.truncated, self.episode, self.entity, self.time,
            self.stream, self.gamma, self.lam, self.rho, self.behaviour, self.target, self.action,
            *self.identity,
        )  # fmt: skip
        names = [*self.state, *(self.next_state or []), *(name for name in single if name)]
        return list(dict.fromkeys(names))


class ColumnFinder:
    """Looks up columns by name, in all files alike."""

    def __init__(self, readers: list[Reader]) -> None:
        self.readers = readers
        self.types = readers[0].types
        for reader in readers[1:]:
            if reader.text != readers[0].text:
                raise InputError("source", reader.name, "files must be of one kind")

    def has(self, name: str) -> bool:
        """Whether the first file has a column."""
        return name in self.types

    def column(self, role: str, name: Any) -> str:
        """A column that must be in every file."""
        if not isinstance(name, str):
            raise InputError(role, literal(name), "must be the name of a column")
        for reader in self.readers:
            if name not in reader.types:
                columns = listed(reader.types, most=12)
                raise InputError(role, name, f"{reader.name} has no such column; it has {columns}")
        return name

    def required(self, role: str, name: Any) -> str:
        """A column that must be in every file, with a type that fits its role."""
        return self._check_type(role, self.column(role, name))

    def default(self, role: str, name: Any) -> str | None:
        """A column whose default name is its role; None if the default is absent."""
        absent = isinstance(name, str) and name == role and not self.has(role)
        if name is None or name is False or absent:
            return None
        found = self.column(role, name)
        return found if role == "action" else self._check_type(role, found)

    def optional(self, role: str, name: Any) -> str | None:
        """A named column, or one called like its role unless that could change the answer."""
        if name is None:
            own = bool(self.readers[0].metadata.get("own"))
            allowed = role not in (*FROM_OWN_FILES, *ONLY_NAMED) or (role in FROM_OWN_FILES and own)
            return self.required(role, role) if allowed and self.has(role) else None
        return None if name is False else self.required(role, name)

    def own(self, role: str) -> str | None:
        """A column called like its role, in files that retvar wrote."""
        return role if self.readers[0].metadata.get("own") and self.has(role) else None

    def reward(self, reward: Any, cost: Any) -> str:
        """The column of rewards, or of costs."""
        if cost is None or cost is False:
            return self.required("reward", reward)
        if not (isinstance(reward, str) and reward == "reward"):
            raise InputError("cost", cost, f"reward is given, too ({reward}); name one of them")
        return self.required("cost", cost)

    def simple_columns(self) -> tuple[str, ...]:
        """Columns that all files have, with one number or text a row."""
        nested = import_pyarrow().types.is_nested
        return tuple(
            name for name in self.types
            if all(name in r.types and not nested(r.types[name]) for r in self.readers)
        )  # fmt: skip

    def terminated(self, name: Any) -> str | None:
        """The column that says where episodes end; None only for ``terminated=False``."""
        if name is False:
            return None
        if isinstance(name, str) and name == "terminated" and not self.has("terminated"):
            columns = listed(self.types, most=12)
            raise InputError(
                "terminated", "missing",
                f"name the column that says where episodes end (there are {columns}), or pass "
                "terminated=False where they never do",
            )  # fmt: skip
        return self.required("terminated", name)

    def state_columns(self, state: Any, next_state: Any) -> tuple[list[str], list[str] | None]:
        """Columns of the state and of the next state."""
        for field, given in (("state", state), ("next_state", next_state)):
            if not (given is None or given is False or isinstance(given, str | list | tuple)):
                raise InputError(field, literal(given), "must be names of columns")
        names = [state] if isinstance(state, str) else list(state or ())
        if state == "state" and not self.has("state"):
            names = []
            while self.has(f"state_{len(names)}"):
                names.append(f"state_{len(names)}")
            names = names or [state]
        names = [self.column("state", name) for name in names]
        if not names or len(set(names)) < len(names):
            raise InputError("state", names, "must be names of different columns")
        self.vector = not isinstance(state, str) or names != [state]
        if next_state is None or next_state is False:
            return names, None
        if next_state == "next_state":
            guess = [f"next_{name}" for name in names]
            if not self.vector and self.has("next_state"):
                guess = ["next_state"]
            if not any(self.has(name) for name in guess):
                return names, None
            next_state = guess
        after = [next_state] if isinstance(next_state, str) else list(next_state)
        after = [self.column("next_state", name) for name in after]
        if len(after) != len(names):
            found = f"{len(after)} columns"
            raise InputError("next_state", found, f"must be as many as for state: {len(names)}")
        if len(set(after)) < len(after):
            raise InputError("next_state", after, "must be names of different columns")
        return names, after

    def warn_unused(self, roles: dict[str, Any]) -> None:
        """Log a warning about columns that would change the answer but were not named."""
        names = (*FROM_OWN_FILES, *ONLY_NAMED)
        unused = [name for name in names if roles[name] is None and self.has(name)]
        if unused:
            log.warning("columns not used, since not named: %s", listed(unused))

    def _check_type(self, role: str, name: str) -> str:
        nested = import_pyarrow().types.is_nested
        for reader in self.readers:
            kind = reader.types[name]
            readable = is_number(kind) or is_textual(kind) or (role == "time" and is_time(kind))
            if nested(kind) or not (readable or role in ANY):
                raise wrong_type(role, name, reader)
        return name


def is_textual(kind: Any) -> bool:
    """Whether an Arrow type holds text, which may be coded as a dictionary.

    >>> import pyarrow as pa
    >>> is_textual(pa.string()), is_textual(pa.dictionary(pa.int8(), pa.string()))
    (True, True)
    """
    dictionary = import_pyarrow().types.is_dictionary(kind)
    return is_text(kind.value_type if dictionary else kind)


def wrong_type(role: str, name: str, reader: Reader) -> InputError:
    """The error for a column of the wrong type."""
    found, need = str(reader.types[name]), MUST_HOLD.get(role, "numbers")
    return InputError(f"column {name!r} of {reader.name}", found, f"must hold {need}")


def refuse_incomplete_ratio(roles: dict[str, Any], policy: bool = False) -> None:
    """Refuse one probability without the other, and ratios given twice.

    >>> refuse_incomplete_ratio({"behaviour": "mu", "target": None, "rho": None})
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: target = missing: behaviour is given; the ratio needs both
    """
    if policy and roles["target"]:
        raise InputError("target", roles["target"], "target_policy is given, too; leave one out")
    pair = [name for name in ("behaviour", "target") if roles[name]]
    given = "target_policy" if policy else "target"
    if roles["behaviour"] is None and (policy or roles["target"]):
        raise InputError("behaviour", "missing", f"{given} is given; the ratio needs both")
    if roles["behaviour"] and not (policy or roles["target"]):
        raise InputError("target", "missing", "behaviour is given; the ratio needs both")
    if pair and roles["rho"]:
        raise InputError("rho", roles["rho"], "give ρ, or the two probabilities, not both")
    if policy and roles["action"] is None:
        raise InputError("action", "missing", "target_policy needs the column of the action")


def refuse_one_for_two(roles: dict[str, Any]) -> None:
    """Refuse one column for two roles of which each needs its own.

    >>> refuse_one_for_two({"state": ["s"], "next_state": ["s"]})
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: next_state = s: is the column of state, too; name another for one of
        them
    """
    for first, second in OPPOSED:
        found = roles.get(second)
        if found and found == roles.get(first):
            shown = listed(found) if isinstance(found, list) else found
            remedy = f"is the column of {first}, too; name another for one of them"
            raise InputError(second, shown, remedy)


def find_roles(
    finder: ColumnFinder, roles: dict[str, Any], states: Any, policy: bool = False
) -> Roles:
    """Check the roles, and decide by types and by the first rows what the states are."""
    refuse_incomplete_ratio(roles, policy)
    refuse_one_for_two(roles)
    finder.warn_unused(roles)
    if not (states is None or (isinstance(states, str) and states == "labels")):
        if not is_integer(states) or states < 1:
            raise InputError("states", literal(states), "must be how many there are, or 'labels'")
    elif states is None and not finder.vector:
        states = _recorded_states(finder.readers)
    if is_integer(states):
        roles["states"] = int(states)
    columns = [*roles["state"], *(roles["next_state"] or [])]
    for reader in finder.readers:
        for name in columns:
            if import_pyarrow().types.is_nested(reader.types[name]):
                raise wrong_type("state", name, reader)
    if finder.vector:
        if is_integer(states):
            raise InputError("states", states, "observations are no states; name one column")
        kind = "label" if states == "labels" else _kind_of_several(finder, roles)
    else:
        kind = _kind(finder, columns, states)
    if kind == "label":
        _refuse_moments(finder.readers[0], roles["state"])
    if roles["time"]:
        roles["dates"] = _has_dates(finder.readers[0], roles["time"])
    found = Roles(**roles, kind=kind)
    _require_parsable(finder.readers[0], found)
    return found


def _kind_of_several(finder: ColumnFinder, roles: dict[str, Any]) -> str:
    """Observations where all columns hold numbers, otherwise labels: tuples of their entries."""
    reader = finder.readers[0]
    pairs = [[name] for name in roles["state"]]
    if roles["next_state"] is not None:
        pairs = [[*pair, name] for pair, name in zip(pairs, roles["next_state"], strict=True)]
    fractions: list[str] = []
    numeric = []
    for names in pairs:
        columns = first_rows_of(reader, names)
        numeric.append(all(_mostly_numbers(column) for column in columns))
        if numeric[-1]:
            value = np.concatenate([numbers(column) for column in columns])
            value = value[np.isfinite(value)]
            fractions += names[:1] if np.any(value != np.trunc(value)) else []
    if all(numeric):
        return "vector"
    if fractions:
        raise InputError("state", listed(fractions), BINNED)
    return "label"


def _mostly_numbers(column: Any) -> bool:
    """Whether a column holds numbers, or text of which more than half is numbers."""
    if is_number(column.type):
        return True
    if not is_textual(column.type):
        return False
    present = column.drop_null()
    return not len(present) or bool(np.isfinite(numbers(present)).mean() > 0.5)


def _refuse_moments(reader: Reader, names: list[str]) -> None:
    """Refuse dates and times as states where hardly any occurs twice."""
    for name, column in zip(names, first_rows_of(reader, names), strict=True):
        present = column.drop_null()
        dated = is_time(column.type) or (is_textual(column.type) and not _mostly_numbers(column))
        if len(present) < FEW_ROWS or not dated:
            continue
        distinct = len(present.unique()) / len(present)
        if distinct > MANY_MOMENTS and not times(present, dates=True)[2].any():
            shown = str(present[0].as_py())
            raise InputError(f"column {name!r} of {reader.name}", shown, MOMENTS)


def _has_dates(reader: Reader, name: str) -> bool:
    """Whether a column of times holds dates; refuse it where it holds neither these nor numbers."""
    column = first_rows_of(reader, [name])[0]
    if is_time(column.type) or is_number(column.type):
        return is_time(column.type)
    present = column.drop_null()
    if not len(present) or _mostly_numbers(present):
        return False
    readable = ~times(present, dates=True)[2]
    if readable.mean() <= 0.5:
        shown = repr(present[int(np.argmin(readable))].as_py())
        raise InputError(
            f"column {name!r} of {reader.name}", shown, f"must hold {MUST_HOLD['time']}"
        )
    return True


def _recorded_states(readers: list[Reader]) -> int | None:
    """Number of states, where retvar wrote all files and recorded it."""
    found = [reader.metadata.get("states") for reader in readers]
    known = [each for each in found if isinstance(each, int) and 0 < each <= MOST_STATES]
    return max(known) if len(known) == len(readers) else None


def _kind(finder: ColumnFinder, columns: list[str], states: Any) -> str:
    types, readers = import_pyarrow().types, finder.readers
    if states == "labels":
        return "label"
    kinds = [reader.types[name] for reader in readers for name in columns]
    if is_integer(states):
        _require_numbers(finder, columns)
        return "number"
    if readers[0].text:
        return _kind_of_text(first_rows_of(readers[0], columns))
    if all(types.is_integer(kind) or types.is_boolean(kind) for kind in kinds):
        ranges = [reader.value_range(name) for reader in readers for name in columns]
        known = [each for each in ranges if each is not None]
        if len(known) < len(ranges):
            known = [_sampled_range(readers[0], columns)]
        low, high = min(each[0] for each in known), max(each[1] for each in known)
        return "number" if low >= 0 and high < MOST_STATES else "label"
    if all(is_number(kind) for kind in kinds):
        return _kind_of_numbers([numbers(c) for c in first_rows_of(readers[0], columns)], "label")
    if any(is_number(kind) for kind in kinds):
        found = ", ".join(str(kind) for kind in kinds)
        raise InputError(f"columns {listed(columns)}", found, "must be of one kind")
    return "label"


def _kind_of_numbers(columns: list[Any], otherwise: str) -> str:
    """'number' where all are numbers of states, 'vector' for fractions, else `otherwise`."""
    value = np.concatenate(columns)
    value = value[np.isfinite(value)]
    if value.dtype.kind == "f" and np.any(value != np.trunc(value)):
        return "vector"
    inside = not value.size or (value.min() >= 0 and value.max() < MOST_STATES)
    return "number" if inside else otherwise


def _kind_of_text(columns: list[Any]) -> str:
    """The kind of states in text; text that is numbers throughout is taken as numbers."""
    pa = import_pyarrow()
    found = [column.drop_null() for column in columns]
    if all(_is_boolean(column) for column in found):
        return "number"
    if any(leading_zeros(column).any() for column in found):
        whole = [each == np.trunc(each) for each in map(numbers, found)]
        return "label" if all(each.all() for each in whole) else "vector"
    try:
        return _kind_of_numbers([integers(c.cast(pa.int64()))[0] for c in found], "label")
    except pa.ArrowInvalid:
        pass
    value = [numbers(column) for column in found]
    if any(np.isnan(each).any() for each in value):
        return "label"
    return _kind_of_numbers(value, "label")


def _is_boolean(column: Any) -> bool:
    """Whether a column of text holds true and false."""
    return {str(each).lower() for each in column.unique().to_pylist()} <= {"true", "false"}


def _sampled_range(reader: Reader, columns: list[str]) -> tuple[int, int]:
    value = np.concatenate([integers(c)[0] for c in first_rows_of(reader, columns)])
    return int(value.min()), int(value.max())


def first_rows_of(reader: Reader, columns: list[str]) -> list[Any]:
    """The first rows of some columns."""
    try:
        batch = next(iter(reader.batches(list(dict.fromkeys(columns)), SCAN_ROWS)))
    except StopIteration:
        raise InputError("source", reader.name, "has no rows") from None
    except RetvarError:
        raise
    except Exception as error:  # a broken file may raise anything
        remedy = f"cannot be read: {describe_error(error)}"
        raise InputError("source", reader.name, remedy) from None
    return [batch[name] for name in columns]


def _require_numbers(finder: ColumnFinder, columns: list[str]) -> None:
    for reader in finder.readers:
        for name in columns:
            if not (is_number(reader.types[name]) or reader.text):
                raise wrong_type("state", name, reader)


def _require_parsable(reader: Reader, roles: Roles) -> None:
    """Refuse text without any number where numbers are needed; every file must have rows."""
    sample = dict(zip(roles.columns, first_rows_of(reader, roles.columns), strict=True))
    single = [roles.reward, roles.gamma, roles.lam, roles.rho, roles.behaviour, roles.target]
    states = [*roles.state, *(roles.next_state or [])] if roles.kind != "label" else []
    for name in (*single, *states):
        if name is None or not is_textual(reader.types[name]):
            continue
        column = sample[name].drop_null()
        if len(column) and np.isnan(numbers(column)).all():
            shown = repr(column[0].as_py()) if reader.text else str(reader.types[name])
            raise InputError(f"column {name!r} of {reader.name}", shown, "must hold numbers")
    for role in ("terminated", "truncated"):
        name = getattr(roles, role)
        if name is None or not is_textual(reader.types[name]):
            continue
        if booleans(sample[name])[1].all():
            present = sample[name].drop_null()
            shown = repr(present[0].as_py()) if len(present) else "blank"
            remedy = f"every row must hold {MUST_HOLD[role]}; write 0 in place of blanks"
            raise InputError(f"column {name!r} of {reader.name}", shown, remedy)
