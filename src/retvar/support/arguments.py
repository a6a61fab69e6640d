"""Validate arguments: return numbers or arrays, or raise an :class:`InputError`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from numbers import Real
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retvar.support.errors import InputError
from retvar.support.format import literal

Array = NDArray[np.float64]
Namer = Callable[[int], str]
TOLERANCE = 1e-9  # largest deviation from 1 of a sum of probabilities
EXACT = 1e-15  # rounding error per summand; sums farther from 1 than this are rescaled
SEEDS = (np.random.Generator, np.random.BitGenerator, np.random.SeedSequence, np.random.RandomState)


def is_integer(given: object) -> TypeGuard[int]:
    """Whether this is a Python or NumPy integer; booleans are not."""
    return isinstance(given, int | np.integer) and not isinstance(given, bool | np.timedelta64)


def is_real(given: object) -> TypeGuard[Real]:
    """Whether this is a real number of any type; booleans and durations are not."""
    return isinstance(given, Real) and not isinstance(given, bool | np.timedelta64)


def integer(field: str, given: object, low: int | None = None, high: int | None = None) -> int:
    """Return an integer from `low` to `high`, both included.

    >>> integer("runs", 0, 1)
    Traceback (most recent call last):
    ...
    retvar.InputError: runs = 0: must be a whole number of at least 1
    """
    if is_integer(given) and (low is None or given >= low) and (high is None or given <= high):
        return int(given)
    if high is not None:
        limit = f" from {0 if low is None else low:,} to {high:,}"
    else:
        limit = "" if low is None else f" of at least {low:,}"
    raise InputError(field, literal(given), f"must be a whole number{limit}")


def number(field: str, given: object, remedy: str = "must be a finite number") -> float:
    """Return a finite real number."""
    try:
        with np.errstate(over="ignore"):
            found = float(given) if is_real(given) else math.nan
    except OverflowError:
        found = math.nan
    if not math.isfinite(found):
        raise InputError(field, literal(given), remedy)
    return found


def flag(field: str, given: object) -> bool:
    """Return True or False."""
    if not isinstance(given, bool | np.bool_):
        raise InputError(field, literal(given), "must be True or False")
    return bool(given)


def choice(field: str, given: object, among: Iterable[str]) -> str:
    """Return one of some names."""
    names = list(among)
    if not isinstance(given, str) or given not in names:
        quoted = [repr(name) for name in names]
        one = " or ".join(quoted) if len(quoted) < 3 else f"one of {', '.join(quoted)}"
        raise InputError(field, literal(given), f"must be {one}")
    return given


def instance(field: str, given: Any, kind: Any, what: str) -> Any:
    """Return an object of some class; otherwise say `what` it must be."""
    if not isinstance(given, kind):
        raise InputError(field, literal(given), f"must be {what}")
    return given


def text(field: str, given: Any) -> str:
    """Return a name as text that can be written and shown."""
    try:
        found = str(given)
        found.encode()
    except Exception:  # nested too deeply, or half of a surrogate pair
        raise InputError(field, literal(given), "must be a text") from None
    return found


def texts(field: str, given: Any) -> tuple[str, ...]:
    """Return a list of texts; one text alone is not a list."""
    found = [None] if isinstance(given, str) else entries(field, given, "a list of texts")
    if not all(isinstance(text, str) for text in found):
        raise InputError(field, literal(given), "must be a list of texts")
    return tuple(found)


def path(field: str, given: Any) -> Path:
    """Return a path."""
    try:
        return Path(given)
    except TypeError:
        raise InputError(field, literal(given), "must be the path of a file") from None


def level(field: str, given: object) -> float:
    """Return the level of an interval, between 0 and 1."""
    return between(field, given, 1.0, "must lie between 0 and 1, such as 0.9")


def seconds(field: str, given: object) -> float:
    """Return a duration that can be waited for."""
    return between(field, given, 1e6, "must be a number of seconds above 0, below 1,000,000")


def between(field: str, given: object, high: float, remedy: str) -> float:
    """Return a number between 0 and `high`, both excluded."""
    if not 0 < (found := number(field, given, remedy)) < high:
        raise InputError(field, literal(given), remedy)
    return found


def numbers(field: str, given: ArrayLike, length: int | None = None, name: Namer = str) -> Array:
    """Return `length` finite numbers (default: as many as there are); one number is repeated."""
    array = floats(field, given, "a number or a list of numbers")
    length = array.size if length is None else length
    if array.ndim == 0:
        if not np.isfinite(array):
            raise InputError(field, f"{float(array):g}", "must be a finite number")
        array = np.full(length, float(array))
    if array.shape != (length,):
        shape = f"an array of shape {array.shape}"
        raise InputError(field, shape, f"must be one number or {length} of them")
    refuse(field, array, ~np.isfinite(array), "must be a finite number", name)
    return array


def unit_interval(
    field: str, given: ArrayLike, length: int | None = None, name: Namer = str
) -> Array:
    """Return `length` numbers in [0, 1] (default: as many as there are)."""
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
    with np.errstate(over="ignore"):
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
    """Return a copy as an array of float64; raise an InputError unless it holds real numbers."""
    found = array(field, given, what)
    try:
        if given is None or found.dtype.kind in "cSUMmV":  # numbers, not dates
            raise TypeError
        with np.errstate(over="ignore"):
            return found.astype(np.float64)
    except Exception:  # also an error of an entry
        value = "nothing" if given is None else given
        raise InputError(field, value, f"must be {what}") from None


def array(field: str, given: Any, what: str) -> NDArray[Any]:
    """Return an array of any type; raise an InputError if NumPy can make none."""
    try:
        return np.asarray(given)
    except Exception:  # rows of different lengths, or an error of its own
        raise InputError(field, literal(given), f"must be {what}") from None


def entries(field: str, given: Any, what: str) -> list[Any]:
    """Return a list of what can be gone through."""
    try:
        return list(given)
    except Exception:  # it cannot be gone through, or an error of its own
        raise InputError(field, literal(given), f"must be {what}") from None


def generator(field: str, seed: Any) -> np.random.Generator:
    """Return NumPy's random generator for a seed; a generator is returned as it is."""
    if seed is None or isinstance(seed, SEEDS):
        return np.random.default_rng(seed)
    if isinstance(seed, list | tuple | range | np.ndarray):
        if not len(seed) or not all(is_integer(word) and word >= 0 for word in seed):
            raise InputError(field, literal(seed), "must be a whole number, or a few of them")
        return np.random.default_rng([int(word) for word in seed])
    return np.random.default_rng(integer(field, seed, 0))


def refuse(
    field: str, array: NDArray[np.generic], bad: NDArray[np.bool_], remedy: str, name: Namer = str
) -> None:
    """Raise an InputError that names the first bad entry, if there is one."""
    if np.any(bad):
        where = int(np.argmax(bad))
        raise InputError(f"{field}[{name(where)}]", f"{array[where]:.12g}", remedy)
