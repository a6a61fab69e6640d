"""What the states of a table are: numbers as they stand, labels, or observations."""

from __future__ import annotations

from typing import Any

import numpy as np

from retvar.errors import InputError, RetvarError
from retvar.experience.arrow_columns import arrow, is_number, numbers, wholes
from retvar.experience.column_roles import Search
from retvar.experience.decoder import MOST_STATES, Roles
from retvar.experience.episodes import in_words
from retvar.experience.readers import ROWS, Reader
from retvar.format import listed

__all__ = ["roles_of"]


def roles_of(search: Search, roles: dict[str, Any], states: Any) -> Roles:
    """Decide, by types and by the first rows, what the states are."""
    if not (states is None or states == "labels"):
        whole = isinstance(states, int | np.integer) and not isinstance(states, bool)
        if not whole or states < 1:
            raise InputError("states", repr(states), "must be how many there are, or 'labels'")
    elif states is None and not search.many:
        states = _told_states(search.readers)
    if isinstance(states, int | np.integer):
        roles["states"] = int(states)
    columns = [*roles["state"], *(roles["next_state"] or [])]
    for reader in search.readers:
        for name in columns:
            if arrow().types.is_nested(reader.types[name]):
                kind, need = str(reader.types[name]), "must hold one number or text a row"
                raise InputError(f"column {name!r} of {reader.name}", kind, need)
    plan = Roles(**roles, kind="vector")
    if search.many:
        if states is not None:
            raise InputError("states", states, "observations are no states; name one column")
        _must_be_numbers(search, columns)
    else:
        plan = Roles(**roles, kind=_kind(search, columns, states))
    sample = _sample(search.readers[0], plan)
    _must_parse(search.readers[0], plan, sample)
    return plan


def _told_states(readers: list[Reader]) -> int | None:
    """How many states there are, where the files are our own and say it."""
    said = [reader.told.get("states") for reader in readers]
    known = [each for each in said if isinstance(each, int) and 0 < each <= MOST_STATES]
    return max(known) if len(known) == len(readers) else None


def _kind(search: Search, columns: list[str], states: Any) -> str:
    types = arrow().types
    if states == "labels":
        return "label"
    kinds = [reader.types[name] for reader in search.readers for name in columns]
    if isinstance(states, int | np.integer):
        _must_be_numbers(search, columns)
        return "number"
    if search.readers[0].text:
        return _kind_of_text(search, columns)
    if all(types.is_integer(kind) or types.is_boolean(kind) for kind in kinds):
        spans = [r.span(name) for r in search.readers for name in columns]
        spans = [_sampled_span(search, columns)] if None in spans else spans
        low = min((s[0] for s in spans if s and s[0] is not None), default=0)
        high = max((s[1] for s in spans if s and s[1] is not None), default=0)
        return "number" if low >= 0 and high < MOST_STATES else "label"
    if all(is_number(kind) for kind in kinds):
        return _kind_of_numbers([numbers(c) for c in _first(search.readers[0], columns)])
    if any(is_number(kind) for kind in kinds):
        return _kinds_differ(columns, kinds)
    return "label"


def _kinds_differ(columns: list[str], kinds: list[Any]) -> str:
    found = ", ".join(str(kind) for kind in kinds)
    raise InputError(f"columns {listed(columns)}", found, "must be of one kind")


def _kind_of_numbers(found: list[Any]) -> str:
    value = np.concatenate(found)
    value = value[np.isfinite(value)]
    if np.any(value != np.trunc(value)):
        return "vector"
    inside = not value.size or (value.min() >= 0 and value.max() < MOST_STATES)
    return "number" if inside else "vector"


def _kind_of_text(search: Search, columns: list[str]) -> str:
    """Text that is numbers throughout is taken as such."""
    pa = arrow()
    found = [column.drop_null() for column in _first(search.readers[0], columns)]
    try:
        return _kind_of_whole([wholes(column.cast(pa.int64()))[0] for column in found])
    except pa.ArrowInvalid:
        pass
    value = [numbers(column) for column in found]
    return "label" if any(np.isnan(each).any() for each in value) else _kind_of_numbers(value)


def _kind_of_whole(found: list[Any]) -> str:
    value = np.concatenate(found)
    inside = not value.size or (value.min() >= 0 and value.max() < MOST_STATES)
    return "number" if inside else "label"


def _sampled_span(search: Search, columns: list[str]) -> tuple[int, int]:
    value = np.concatenate([wholes(c)[0] for c in _first(search.readers[0], columns)])
    return int(value.min()), int(value.max())


def _first(reader: Reader, columns: list[str]) -> list[Any]:
    """The first rows of some columns."""
    try:
        batch = next(iter(reader.batches(columns, ROWS)))
    except StopIteration:
        raise InputError("source", reader.name, "has no rows") from None
    except RetvarError:
        raise
    except Exception as error:  # whatever the bytes of a broken file lead to
        raise InputError("source", reader.name, f"cannot be read: {in_words(error)}") from None
    return [batch[name] for name in columns]


def _sample(reader: Reader, roles: Roles) -> dict[str, Any]:
    return dict(zip(roles.columns, _first(reader, roles.columns), strict=True))


def _must_be_numbers(search: Search, columns: list[str]) -> None:
    for reader in search.readers:
        for name in columns:
            if not (is_number(reader.types[name]) or reader.text):
                search.wrong("state", name, reader.types[name], reader)


def _must_parse(reader: Reader, roles: Roles, sample: dict[str, Any]) -> None:
    """Text of which nothing is a number does not belong where numbers are needed."""
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
