"""Plain data, as it stands in TOML, made into objects; errors name the path of the field."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any

import msgspec

from retvar.errors import InputError
from retvar.mdp.toml import field_and_problem

__all__ = ["Plain", "converted", "nearest", "short"]

WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}


class Plain(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Frozen, compared by value, and refused where a name is unknown."""


def converted(plain: Any, kind: Any, field: str = "") -> Any:
    """Plain data, which stand at `field`, as something else.

    >>> converted([1, 2], list[float])
    [1.0, 2.0]
    >>> converted([1, "b"], list[float], "alpha")
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: alpha[1] = 'b': must be a number, not text
    """
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        below, problem = field_and_problem(error)
        where = f"{field}.{below}" if field and below[:1] not in ("", "[") else field + below
        missing = re.search("missing required field `(.*)`", problem)
        if missing:
            place = f"{where}.{missing[1]}" if where else missing[1]
            raise InputError(place, "nothing", "must be given") from None
        raise InputError(where or "sweep", _at(plain, below), _in_words(problem)) from None


def _in_words(problem: str) -> str:
    """What is wrong, in the words of TOML.

    >>> _in_words("Expected `int | array | null`, got `str`")
    'must be a whole number or a list, not text'
    """
    found = re.fullmatch("Expected `(.*)`, got `(.*)`", problem)
    if found is None:
        return problem[:1].lower() + problem[1:].replace("`", "")
    kinds = [WORDS.get(kind, kind) for kind in found[1].split(" | ") if kind != "null"]
    return f"must be {' or '.join(kinds)}, not {WORDS.get(found[2], found[2])}"


def nearest(name: str, known: Iterable[str]) -> str:
    """What is said of an unknown name.

    >>> nearest("alfa", ["alpha", "lam"])
    'unknown; did you mean alpha? There are alpha, lam'
    """
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"unknown; {hint}There are {', '.join(names)}"


def short(given: Any) -> str:
    """Something in few letters.

    >>> short("word"), len(short(list(range(100))))
    ("'word'", 58)
    """
    text = repr(given)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _at(plain: Any, field: str) -> str:
    """What stands at a path such as ``learners[1].alpha``."""
    for name, number in re.findall(r"([^.\[\]]+)|\[(\d+)\]", field):
        try:
            plain = plain[name] if name else plain[int(number)]
        except (KeyError, IndexError, TypeError):
            return "malformed"
    return short(plain) if field or not isinstance(plain, dict) else "malformed"
