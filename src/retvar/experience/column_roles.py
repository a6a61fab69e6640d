"""Find the columns of a table by role, and decide what its states are: numbers, labels, vectors."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np

from retvar.arguments import is_integer
from retvar.errors import InputError, RetvarError
from retvar.experience.arrow_columns import import_pyarrow, integers, is_number, is_text, numbers
from retvar.experience.episodes import describe_error
from retvar.experience.readers import SCAN_ROWS, Reader
from retvar.format import listed

__all__ = ["MOST_STATES", "ColumnFinder", "Roles", "find_roles"]

log = logging.getLogger("retvar")
MOST_STATES = 10_000_000
FROM_OWN_FILES = ("gamma", "lam", "rho")  # found by name only in files that retvar wrote
ONLY_NAMED = ("behaviour", "target")  # never found by name
MUST_HOLD = {
    "terminated": "true and false, or 0 and 1",
    "truncated": "true and false, or 0 and 1",
    "stream": "whole numbers from 0 on",
    "episode": "one number or text a row",
}


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
            raise InputError(role, repr(name), "must be the name of a column")
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
        if name is None or name is False or (name == role and not self.has(role)):
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

    def terminated(self, name: Any) -> str | None:
        """The column that says where episodes end; None only for ``terminated=False``."""
        if name is False:
            return None
        if name == "terminated" and not self.has("terminated"):
            columns = listed(self.types, most=12)
            raise InputError(
                "terminated", "missing",
                f"name the column that says where episodes end (there are {columns}), or pass "
                "terminated=False where they never do",
            )  # fmt: skip
        return self.required("terminated", name)

    def state_columns(self, state: Any, next_state: Any) -> tuple[list[str], list[str] | None]:
        """Columns of the state and of the next state."""
        names = [state] if isinstance(state, str) else list(state)
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
        return names, after

    def warn_unused(self, roles: dict[str, Any]) -> None:
        """Log a warning about columns that would change the answer but were not named."""
        names = (*FROM_OWN_FILES, *ONLY_NAMED)
        unused = [name for name in names if roles[name] is None and self.has(name)]
        if unused:
            log.warning("columns not used, since not named: %s", listed(unused))

    def _check_type(self, role: str, name: str) -> str:
        for reader in self.readers:
            kind = reader.types[name]
            if not (is_number(kind) or reader.text or role == "episode"):
                if role == "stream" and is_text(kind):
                    continue
                raise wrong_type(role, name, reader)
            if role == "episode" and import_pyarrow().types.is_nested(kind):
                raise wrong_type(role, name, reader)
        return name


def wrong_type(role: str, name: str, reader: Reader) -> InputError:
    """The error for a column of the wrong type."""
    found, need = str(reader.types[name]), MUST_HOLD.get(role, "numbers")
    return InputError(f"column {name!r} of {reader.name}", found, f"must hold {need}")


def refuse_incomplete_ratio(roles: dict[str, Any]) -> None:
    """Refuse one probability without the other, and ratios given twice.

    >>> refuse_incomplete_ratio({"behaviour": "mu", "target": None, "rho": None})
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: target = missing: behaviour is given; the ratio needs both
    """
    pair = [name for name in ("behaviour", "target") if roles[name]]
    if len(pair) == 1:
        other = "target" if pair == ["behaviour"] else "behaviour"
        raise InputError(other, "missing", f"{pair[0]} is given; the ratio needs both")
    if pair and roles["rho"]:
        raise InputError("rho", roles["rho"], "give ρ, or the two probabilities, not both")


def find_roles(finder: ColumnFinder, roles: dict[str, Any], states: Any) -> Roles:
    """Check the roles, and decide by types and by the first rows what the states are."""
    refuse_incomplete_ratio(roles)
    finder.warn_unused(roles)
    if not (states is None or states == "labels"):
        if not is_integer(states) or states < 1:
            raise InputError("states", repr(states), "must be how many there are, or 'labels'")
    elif states is None and not finder.vector:
        states = _recorded_states(finder.readers)
    if is_integer(states):
        roles["states"] = int(states)
    columns = [*roles["state"], *(roles["next_state"] or [])]
    for reader in finder.readers:
        for name in columns:
            if import_pyarrow().types.is_nested(reader.types[name]):
                raise wrong_type("episode", name, reader)
    found = Roles(**roles, kind="vector")
    if finder.vector:
        if states is not None:
            raise InputError("states", states, "observations are no states; name one column")
        _require_numbers(finder, columns)
    else:
        found = Roles(**roles, kind=_kind(finder, columns, states))
    _require_parsable(finder.readers[0], found)
    return found


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
        return _kind_of_text(_first_rows(readers[0], columns))
    if all(types.is_integer(kind) or types.is_boolean(kind) for kind in kinds):
        ranges = [reader.value_range(name) for reader in readers for name in columns]
        known = [each for each in ranges if each is not None]
        if len(known) < len(ranges):
            known = [_sampled_range(readers[0], columns)]
        low, high = min(each[0] for each in known), max(each[1] for each in known)
        return "number" if low >= 0 and high < MOST_STATES else "label"
    if all(is_number(kind) for kind in kinds):
        return _kind_of_numbers([numbers(c) for c in _first_rows(readers[0], columns)], "vector")
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
    try:
        return _kind_of_numbers([integers(c.cast(pa.int64()))[0] for c in found], "label")
    except pa.ArrowInvalid:
        pass
    value = [numbers(column) for column in found]
    if any(np.isnan(each).any() for each in value):
        return "label"
    return _kind_of_numbers(value, "vector")


def _sampled_range(reader: Reader, columns: list[str]) -> tuple[int, int]:
    value = np.concatenate([integers(c)[0] for c in _first_rows(reader, columns)])
    return int(value.min()), int(value.max())


def _first_rows(reader: Reader, columns: list[str]) -> list[Any]:
    """The first rows of some columns."""
    try:
        batch = next(iter(reader.batches(columns, SCAN_ROWS)))
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
    sample = dict(zip(roles.columns, _first_rows(reader, roles.columns), strict=True))
    if not reader.text:
        return
    single = [roles.reward, roles.gamma, roles.lam, roles.rho, roles.behaviour, roles.target]
    vector = [*roles.state, *(roles.next_state or [])] if roles.kind != "label" else []
    for name in (*single, *vector):
        if name is None:
            continue
        column = sample[name].drop_null()
        if len(column) and np.isnan(numbers(column)).all():
            shown = repr(column[0].as_py())
            raise InputError(f"column {name!r} of {reader.name}", shown, "must hold numbers")
