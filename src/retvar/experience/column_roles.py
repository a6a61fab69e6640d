"""Which columns of a table mean what: those named, and those found by their names."""

from __future__ import annotations

import logging
from typing import Any

from retvar.errors import InputError
from retvar.experience.arrow_columns import arrow, is_number, is_text
from retvar.experience.readers import Reader
from retvar.format import listed

log = logging.getLogger("retvar")
QUESTIONS = ("gamma", "lam", "rho", "behaviour", "target")  # columns that change the answer

__all__ = ["Search", "refuse_half_a_ratio", "tell_unused", "terminated_of"]

OWN = ("gamma", "lam", "rho")  # taken without being named from files of our own only


class Search:
    """Looks columns up by name, in all files alike."""

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
        """A column that must be there, in every file."""
        if not isinstance(name, str):
            raise InputError(role, repr(name), "must be the name of a column")
        for reader in self.readers:
            if name not in reader.types:
                there = listed(reader.types, most=12)
                raise InputError(role, name, f"{reader.name} has no such column; it has {there}")
        return name

    def needed(self, role: str, name: Any) -> str:
        """A column that must be there and hold what its role needs."""
        return self._typed(role, self.column(role, name))

    def named(self, role: str, name: Any) -> str | None:
        """A column with a name of its own by default: there, or absent under that name."""
        if name is None or name is False or (name == role and not self.has(role)):
            return None
        found = self.column(role, name)
        return found if role == "action" else self._typed(role, found)

    def optional(self, role: str, name: Any) -> str | None:
        """A column that is looked for where none was named, unless that would be a surprise."""
        if name is None:
            own = role not in (*OWN, "behaviour", "target") or (
                role in OWN and self.readers[0].told.get("own")
            )
            return self._typed(role, self.column(role, role)) if own and self.has(role) else None
        return None if name is False else self._typed(role, self.column(role, name))

    def beside(self, state: Any, next_state: Any) -> tuple[list[str], list[str] | None]:
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
        self.many = not isinstance(state, str) or names != [state]
        if next_state is None or next_state is False:
            return names, None
        if next_state == "next_state":
            guess = [f"next_{name}" for name in names]
            if not self.many and self.has("next_state"):
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

    def _typed(self, role: str, name: str) -> str:
        for reader in self.readers:
            kind = reader.types[name]
            if not (is_number(kind) or reader.text or role == "episode"):
                if role == "stream" and is_text(kind):
                    continue
                self.wrong(role, name, kind, reader)
            if role == "episode" and arrow().types.is_nested(kind):
                self.wrong(role, name, kind, reader)
        return name

    def wrong(self, role: str, name: str, kind: Any, reader: Reader) -> None:
        """Refuse a column of the wrong type."""
        need = {
            "terminated": "true and false, or 0 and 1",
            "truncated": "true and false, or 0 and 1",
            "stream": "whole numbers from 0 on",
            "episode": "one number or text a row",
        }.get(role, "numbers")
        raise InputError(f"column {name!r} of {reader.name}", str(kind), f"must hold {need}")


def terminated_of(search: Search, given: Any) -> str | None:
    """The column that says where episodes end; None only where they never do."""
    if given is False:
        return None
    if given == "terminated" and not search.has("terminated"):
        there = listed(search.types, most=12)
        raise InputError(
            "terminated", "missing",
            f"name the column that says where episodes end (there are {there}), or pass "
            "terminated=False where they never do",
        )  # fmt: skip
    return search.needed("terminated", given)


def refuse_half_a_ratio(roles: dict[str, Any]) -> None:
    """Refuse one probability without the other, and ratios given twice.

    >>> refuse_half_a_ratio({"behaviour": "mu", "target": None, "rho": None})
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


def tell_unused(search: Search, roles: dict[str, Any]) -> None:
    """Log a warning where columns that would change the answer are there but were not named."""
    unused = [name for name in QUESTIONS if roles[name] is None and search.has(name)]
    if unused:
        log.warning("not used, since not named: the columns %s", listed(unused))
