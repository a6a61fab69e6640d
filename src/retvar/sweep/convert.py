"""Convert data from TOML into objects; errors name the path of the field."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any

import msgspec

from retvar import arguments
from retvar.errors import InputError
from retvar.format import literal
from retvar.mdp.toml import field_and_problem

__all__ = ["Table", "abbreviate", "convert", "suggest"]

TYPE_NAMES = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of TOML tables: frozen, compared by value, without unknown fields."""


def convert(data: Any, kind: Any, field: str = "") -> Any:
    """Convert the data at the path `field` to a type.

    >>> convert([1, 2], list[float])
    [1.0, 2.0]
    >>> convert([1, "b"], list[float], "alpha")
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: alpha[1] = 'b': must be a number, not text
    """
    try:
        return msgspec.convert(data, kind)
    except UnicodeEncodeError as error:
        arguments.text(field or "sweep", error.object)  # refuses it
        raise
    except msgspec.ValidationError as error:
        below, problem = field_and_problem(error)
        where = f"{field}.{below}" if field and below[:1] not in ("", "[") else field + below
        missing = re.search("missing required field `(.*)`", problem)
        if missing:
            path = f"{where}.{missing[1]}" if where else missing[1]
            raise InputError(path, "nothing", "must be given") from None
        raise InputError(where or "sweep", _value_at(data, below), _remedy(problem)) from None


def _remedy(problem: str) -> str:
    """A message of msgspec with the type names of TOML.

    >>> _remedy("Expected `int | array | null`, got `str`")
    'must be a whole number or a list, not text'
    """
    found = re.fullmatch("Expected `(.*)`, got `(.*)`", problem)
    if found is None:
        return problem[:1].lower() + problem[1:].replace("`", "")
    kinds = [TYPE_NAMES.get(kind, kind) for kind in found[1].split(" | ") if kind != "null"]
    return f"must be {' or '.join(kinds)}, not {TYPE_NAMES.get(found[2], found[2])}"


def suggest(name: str, known: Iterable[str]) -> str:
    """The remedy for an unknown name: the most similar one, and all known ones.

    >>> suggest("alfa", ["alpha", "lam"])
    'unknown; did you mean alpha? There are alpha, lam'
    """
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"unknown; {hint}There are {', '.join(names)}"


def abbreviate(value: Any) -> str:
    """The ``repr`` of a value, cut off after 57 characters.

    >>> abbreviate("word"), len(abbreviate(list(range(100))))
    ("'word'", 58)
    """
    text = literal(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _value_at(data: Any, field: str) -> str:
    """The value at a path such as ``learners[1].alpha``, abbreviated."""
    for name, number in re.findall(r"([^.\[\]]+)|\[(\d+)\]", field):
        try:
            data = data[name] if name else data[int(number)]
        except (KeyError, IndexError, TypeError):
            return "malformed"
    return abbreviate(data) if field or not isinstance(data, dict) else "malformed"
