"""Turn what people give into arrays, or say what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retvar.errors import InputError

Array = NDArray[np.float64]
Namer = Callable[[int], str]


def numbers(field: str, given: ArrayLike, length: int, name: Namer = str) -> Array:
    """Return `length` finite numbers: a copy of those given, or one number spread."""
    array = floats(field, given, "a number or a list of numbers")
    if array.ndim == 0:
        if not np.isfinite(array):
            raise InputError(field, f"{float(array):g}", "must be a finite number")
        array = np.full(length, float(array))
    if array.shape != (length,):
        raise InputError(
            field, f"an array of shape {array.shape}", f"must be one number or {length} of them"
        )
    refuse(field, array, ~np.isfinite(array), "must be a finite number", name)
    return array


def unit_interval(field: str, given: ArrayLike, length: int, name: Namer = str) -> Array:
    """Return `length` numbers in [0, 1]."""
    array = numbers(field, given, length, name)
    outside = (array < 0) | (array > 1)
    if np.ndim(given) == 0 and np.any(outside):
        raise InputError(field, f"{array[0]:.12g}", "must lie in [0, 1]")
    refuse(field, array, outside, "must lie in [0, 1]", name)
    return array


def distribution(field: str, given: ArrayLike, length: int, name: Namer = str) -> Array:
    """Return `length` probabilities that sum to 1."""
    array = numbers(field, given, length, name)
    refuse(field, array, array < 0, "must not be negative", name)
    total = float(array.sum())
    if abs(total - 1) > TOLERANCE:
        raise InputError(f"sum of {field}", f"{total:.12g}", "must be 1")
    return array if abs(total - 1) <= EXACT * length else array / total


def indices(field: str, given: ArrayLike, low: int, high: int) -> NDArray[np.intp]:
    """Return whole numbers from `low` to `high` (excluded), in one dimension."""
    array = floats(field, given, "whole numbers")
    if array.ndim != 1:
        raise InputError(field, f"an array of shape {array.shape}", "must have one dimension")
    refuse(field, array, ~np.isfinite(array) | (array != np.rint(array)), "must be a whole number")
    bad = (array < low) | (array >= high)
    refuse(field, array, bad, f"must lie between {low} and {high - 1}")
    return array.astype(np.intp)


def floats(field: str, given: Any, what: str) -> Array:
    """An array of float64, copied; anything else than real numbers is refused."""
    try:
        if given is None or np.asarray(given).dtype.kind in "cSU":
            raise TypeError
        return np.array(given, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        shown = "nothing" if given is None else given
        raise InputError(field, shown, f"must be {what}") from None


def refuse(
    field: str, array: NDArray[np.generic], bad: NDArray[np.bool_], remedy: str, name: Namer = str
) -> None:
    """Raise an InputError that names the first bad entry, if there is one."""
    if np.any(bad):
        where = int(np.argmax(bad))
        raise InputError(f"{field}[{name(where)}]", f"{array[where]:.12g}", remedy)


TOLERANCE = 1e-9  # how far a sum of probabilities may be from 1 before it is refused
EXACT = 1e-15  # per summand: what rounding leaves; beyond it, sums are scaled to 1
