"""Values of a setting in a sweep: numbers, lists, ranges, and step-size rules."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from retvar.arguments import instance, integer, number
from retvar.errors import InputError
from retvar.step_sizes import RULES, Constant, StepSize
from retvar.sweep.convert import Table, abbreviate, convert, suggest

__all__ = ["Choice", "Number", "Range", "Step", "steps_of", "to_toml"]

MAX_VALUES = 100_000  # of one setting
BY_NAME = {name.lower(): rule for name, rule in RULES.items()}


class Range(Table, frozen=True):
    """Values between two ends, spaced evenly or logarithmically.

    >>> Range(log=(0.001, 1.0), count=4).values("alpha")
    [0.001, 0.01, 0.1, 1.0]
    >>> Range(linear=(0.0, 1.0), count=5).values("lam")
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """

    count: int
    linear: tuple[float, float] | None = None
    log: tuple[float, float] | None = None

    def values(self, field: str) -> list[float]:
        """All values; errors name `field`."""
        instance("field", field, str, "the name of a field")
        if (self.linear is None) == (self.log is None):
            given = "neither" if self.linear is None else "both"
            raise InputError(field, given, "give one of linear and log")
        ends = self.linear or self.log
        assert ends is not None
        low, high = ends
        count = integer(f"{field}.count", self.count, 1, MAX_VALUES)
        if not (math.isfinite(low) and math.isfinite(high)) or low > high:
            raise InputError(field, list(ends), "must go from a number up to a greater one")
        if self.log is not None and low <= 0:
            raise InputError(f"{field}.log", list(ends), "must lie above 0")
        if self.log is None:
            return [float(x) for x in np.linspace(low, high, count)]
        grown = np.geomspace(low, high, count)
        return [float(f"{x:.12g}") for x in grown]  # 0.01 rather than 0.010000000000000002


Number = float | str | list[float] | Range  # a string names another setting
Step = Any  # the same, or a rule, or a list of numbers and rules
Choice = str | list[str]


def steps_of(field: str, given: Any) -> list[float | StepSize]:
    """All step sizes: numbers, and rules with every combination of their settings.

    >>> steps_of("alpha", [0.1, {"rule": "decay", "power": [0.6, 0.8]}])
    [0.1, Decay(alpha=1.0, power=0.6), Decay(alpha=1.0, power=0.8)]
    """
    if isinstance(given, list):
        parts = [_step(f"{field}[{i}]", x, listed=True) for i, x in enumerate(given)]
        return [x for part in parts for x in part]
    return _step(field, given)


def _step(field: str, given: Any, *, listed: bool = False) -> list[float | StepSize]:
    if isinstance(given, Mapping) and "rule" in given:
        return _rules(field, given)
    if isinstance(given, Mapping) and not listed:
        return list(convert(given, Range, field).values(field))
    if isinstance(given, bool) or not isinstance(given, int | float):
        remedy = "must be a number, a list, a range, a rule or the name of another setting"
        raise InputError(field, abbreviate(given), remedy)
    return [number(field, given)]


def _rules(field: str, given: Mapping[str, Any]) -> list[float | StepSize]:
    """The rules of a table such as ``{ rule = "decay", power = [0.6, 0.8] }``."""
    kind = BY_NAME.get(str(given["rule"]).lower())
    if kind is None:
        raise InputError(
            f"{field}.rule", abbreviate(given["rule"]), suggest(str(given["rule"]), BY_NAME)
        )
    known = [setting.name for setting in dataclasses.fields(kind)]
    spans: dict[str, list[float]] = {}
    for name, x in given.items():
        where = f"{field}.{name}"
        if name == "rule":
            continue
        if name not in known:
            raise InputError(where, abbreviate(x), suggest(str(name), known))
        numbers = convert(x, float | list[float] | Range, where)
        numbers = numbers.values(where) if isinstance(numbers, Range) else numbers
        spans[name] = numbers if isinstance(numbers, list) else [numbers]
        if not spans[name]:
            raise InputError(where, "[]", "is empty; must hold at least one value")
    try:
        found = [
            kind(**dict(zip(spans, values, strict=True)))
            for values in itertools.product(*spans.values())
        ]
    except (InputError, TypeError) as error:
        if not isinstance(error, InputError):
            raise InputError(field, abbreviate(given), f"must have {', '.join(known)}") from None
        raise InputError(f"{field}.{error.field}", error.value, error.remedy) from None
    return [rule.alpha if isinstance(rule, Constant) else rule for rule in found]


def to_toml(given: Any) -> Any:
    """A step size as in TOML: rules are tables.

    >>> to_toml([0.1, RULES["Decay"](power=0.6)])
    [0.1, {'rule': 'decay', 'alpha': 1.0, 'power': 0.6}]
    """
    if isinstance(given, list | tuple):
        return [_table(x) for x in given]
    return _table(given)


def _table(given: Any) -> Any:
    """A rule as a table; anything else as it is."""
    if isinstance(given, StepSize):
        return {"rule": type(given).__name__.lower(), **dataclasses.asdict(given)}
    return given
