"""Validate arguments: return numbers or arrays, or raise an :class:`InputError`."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from numbers import Real
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retvar.errors import InputError
from retvar.format import literal

__all__ = [
    "array",
    "choice",
    "distribution",
    "entries",
    "flag",
    "floats",
    "function",
    "generator",
    "indices",
    "instance",
    "integer",
    "is_integer",
    "is_iterable",
    "is_real",
    "level",
    "number",
    "numbers",
    "path",
    "refuse",
    "seconds",
    "text",
    "texts",
    "unit_interval",
]

Array = NDArray[np.float64]
Namer = Callable[[int], str]
TOLERANCE = 1e-9  # largest deviation from 1 of a sum of probabilities
MAX_SECONDS = 1e6
MOST_ENTRIES = 10**9  # of an array
MOST_WORDS = 1_000  # of a seed
SEEDS = (np.random.Generator, np.random.BitGenerator, np.random.SeedSequence, np.random.RandomState)
LONGEST_NAME = 255  # bytes of the name of a file
EXACT = 1e-15  # rounding error per summand; sums farther from 1 than this are rescaled


def is_integer(given: object) -> TypeGuard[int]:
    """Whether this is a Python or NumPy integer; booleans are not.

    >>> is_integer(3), is_integer(np.int32(3)), is_integer(True), is_integer(3.0)
    (True, True, False, False)
    """
    return isinstance(given, int | np.integer) and not isinstance(given, bool | np.timedelta64)


def is_real(given: object) -> TypeGuard[Real]:
    """Whether this is a real number of any type; booleans and durations are not.

    >>> is_real(0.5), is_real(np.longdouble(0.5)), is_real(True), is_real(np.timedelta64(1, "s"))
    (True, True, False, False)
    """
    return isinstance(given, Real) and not isinstance(given, bool | np.timedelta64)


def integer(field: str, given: object, low: int | None = None, high: int | None = None) -> int:
    """Return an integer from `low` to `high`, both included.

    >>> integer("runs", np.int64(3), 1)
    3
    >>> integer("runs", 0, 1)
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: runs = 0: must be a whole number of at least 1
    """
    if is_integer(given) and (low is None or given >= low) and (high is None or given <= high):
        return int(given)
    if high is not None:
        limit = f" from {0 if low is None else low:,} to {high:,}"
    else:
        limit = "" if low is None else f" of at least {low:,}"
    raise InputError(field, literal(given), f"must be a whole number{limit}")


def number(field: str, given: object, remedy: str = "must be a finite number") -> float:
    """Return a finite real number.

    >>> number("reward", 2)
    2.0
    >>> number("reward", 10**400)
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: reward = a number of 1,329 bits: must be a finite number
    """
    try:
        with np.errstate(over="ignore"):
            found = float(given) if is_real(given) else math.nan
    except OverflowError:
        size = f"of {given.bit_length():,} bits" if isinstance(given, int) else "that is too large"
        raise InputError(field, f"a number {size}", remedy) from None
    if not math.isfinite(found):
        raise InputError(field, literal(given), remedy)
    return found


def flag(field: str, given: object) -> bool:
    """Return True or False.

    >>> flag("average", np.bool_(True))
    True
    """
    if not isinstance(given, bool | np.bool_):
        raise InputError(field, literal(given), "must be True or False")
    return bool(given)


def choice(field: str, given: object, among: Iterable[str]) -> str:
    """Return one of some names.

    >>> choice("by", "luck", ["td", "least_squares"])
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: by = 'luck': must be 'td' or 'least_squares'
    """
    names = list(among)
    if not isinstance(given, str) or given not in names:
        quoted = [repr(name) for name in names]
        one = " or ".join(quoted) if len(quoted) < 3 else f"one of {', '.join(quoted)}"
        raise InputError(field, literal(given), f"must be {one}")
    return given


def instance(field: str, given: Any, kind: Any, what: str) -> Any:
    """Return an object of some class; otherwise say `what` it must be.

    >>> instance("source", 3, str, "a text")
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: source = 3: must be a text
    """
    if not isinstance(given, kind):
        raise InputError(field, literal(given), f"must be {what}")
    return given


def function(field: str, given: Any) -> Callable[..., Any]:
    """Return a function, or another object that can be called.

    >>> function("check", 3)
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: check = 3: must be a function
    """
    if not callable(given):
        raise InputError(field, literal(given), "must be a function")
    return given  # type: ignore[no-any-return]


def text(field: str, given: Any) -> str:
    r"""Return a name as text that can be written and shown.

    >>> text("name", 3), text("name", "Zoë")
    ('3', 'Zoë')
    >>> text("name", "a\ud800")
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: name = 'a\ud800': has half of a surrogate pair, which is no
        character; leave it out
    """
    try:
        found = str(given)
    except Exception:  # nested too deeply, or an error of its own
        raise InputError(field, literal(given), "must be a text") from None
    try:
        found.encode()
    except UnicodeEncodeError:
        remedy = "has half of a surrogate pair, which is no character; leave it out"
        raise InputError(field, ascii(found), remedy) from None
    return found


def texts(field: str, given: Any) -> tuple[str, ...]:
    """Return a list of texts; one text alone is not a list.

    >>> texts("settings", ["best", "same"])
    ('best', 'same')
    >>> texts("settings", "best")
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: settings = 'best': must be a list of texts
    """
    what = "a list of texts"
    found = () if isinstance(given, str) else tuple(entries(field, given, what))
    if isinstance(given, str) or not all(isinstance(text, str) for text in found):
        raise InputError(field, literal(given), f"must be {what}")
    return found


def path(field: str, given: Any) -> Path:
    """Return a path that a file system can have.

    >>> path("out", "a.png").suffix
    '.png'
    >>> path("out", 3)
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: out = 3: must be the path of a file
    """
    try:
        found = Path(given)
        usable = b"\0" not in os.fsencode(found)
        usable &= all(len(os.fsencode(part)) <= LONGEST_NAME for part in found.parts)
    except (TypeError, UnicodeEncodeError):
        usable = False
    if not usable:
        raise InputError(field, literal(given), "must be the path of a file")
    return found


def level(field: str, given: object) -> float:
    """Return the level of an interval, between 0 and 1.

    >>> level("level", 0.9)
    0.9
    >>> level("level", 90)
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: level = 90: must lie between 0 and 1, such as 0.9
    """
    remedy = "must lie between 0 and 1, such as 0.9"
    if not 0 < (found := number(field, given, remedy)) < 1:
        raise InputError(field, literal(given), remedy)
    return found


def seconds(field: str, given: object) -> float:
    """A duration that can be waited for.

    >>> seconds("timeout", 60)
    60.0
    >>> seconds("timeout", float("nan"))
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: timeout = nan: must be a number of seconds above 0, at most 1,000,000
    """
    remedy = f"must be a number of seconds above 0, at most {MAX_SECONDS:,.0f}"
    if not 0 < (found := number(field, given, remedy)) <= MAX_SECONDS:
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
        raise InputError(
            field, f"an array of shape {array.shape}", f"must be one number or {length} of them"
        )
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
    """Return an array of any type; raise an InputError if NumPy can make none.

    >>> array("states", range(10**12), "whole numbers")
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: states = range(0, 1000000000000): must be whole numbers, at most
    1,000,000,000 of them
    """
    if not isinstance(given, np.ndarray) and _length(given) > MOST_ENTRIES:
        most = f"at most {MOST_ENTRIES:,} of them"
        raise InputError(field, literal(given), f"must be {what}, {most}")
    try:
        return np.asarray(given)
    except Exception:  # rows of different lengths, no memory, or an error of its own
        raise InputError(field, literal(given), f"must be {what}") from None


def entries(field: str, given: Any, what: str) -> list[Any]:
    """Return a list of what can be gone through.

    >>> entries("states", (1, 2), "a list of states")
    [1, 2]
    >>> entries("states", range(10**12), "a list of states")
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: states = range(0, 1000000000000): must be a list of states
    """
    try:
        if _length(given) <= MOST_ENTRIES:
            return list(given)
    except Exception:  # it cannot be gone through, or an error of its own
        pass
    raise InputError(field, literal(given), f"must be {what}")


def is_iterable(given: Any) -> bool:
    """Whether this can be gone through; what raises an error of its own cannot.

    >>> is_iterable([1, 2]), is_iterable(3)
    (True, False)
    """
    try:
        iter(given)
    except Exception:
        return False
    return True


def _length(given: Any) -> float:
    """Number of entries; 0 if it has no length, infinite if Python cannot say."""
    try:
        return len(given)
    except OverflowError:
        return math.inf
    except Exception:
        return 0


def generator(field: str, seed: Any) -> np.random.Generator:
    """Return NumPy's random generator for a seed; a generator is returned as it is.

    >>> generator("seed", 0).integers(10, size=3)
    array([8, 6, 5])
    >>> generator("seed", "luck")
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: seed = 'luck': must be a whole number of at least 0
    """
    if seed is None or isinstance(seed, SEEDS):
        return np.random.default_rng(seed)
    if isinstance(seed, list | tuple | range | np.ndarray):
        words = seed if 0 < _length(seed) <= MOST_WORDS else ()
        if not len(words) or not all(is_integer(word) and word >= 0 for word in words):
            raise InputError(field, literal(seed), "must be a whole number, or a few of them")
        return np.random.default_rng([int(word) for word in words])
    return np.random.default_rng(integer(field, seed, 0))


def refuse(
    field: str, array: NDArray[np.generic], bad: NDArray[np.bool_], remedy: str, name: Namer = str
) -> None:
    """Raise an InputError that names the first bad entry, if there is one."""
    if np.any(bad):
        where = int(np.argmax(bad))
        raise InputError(f"{field}[{name(where)}]", f"{array[where]:.12g}", remedy)
