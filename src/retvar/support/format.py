"""Format numbers, durations, lists and tables as text."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest

HUGE, TINY = 1e7, 1e-4  # numbers beyond these are written with a power of ten
MISSING = "–"
SHORT_DIGITS = (2, 3, 4)
INVISIBLE = (  # what moves the cursor, breaks lines, turns the direction, or cannot be encoded
    "\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ufffe\uffff\ud800-\udfff\U000e0000-\U000e0fff"
)
ONE_LINE, MANY_LINES = re.compile(f"[{INVISIBLE}]"), re.compile(f"(?![\n\t])[{INVISIBLE}]")


def visible(text: str, *, lines: bool = False) -> str:
    r"""Text with control characters, marks of direction and the like as escapes.

    Line breaks and tabs are escaped, too, except with `lines`.

    >>> visible("a\nb\x1b[31m")
    'a\\nb\\x1b[31m'
    >>> visible("a\nb\u202e", lines=True)
    'a\nb\\u202e'
    """
    return (MANY_LINES if lines else ONE_LINE).sub(
        lambda found: found[0].encode("unicode_escape").decode(), text
    )


def literal(value: object, write: Callable[[object], str] = repr) -> str:
    """A value as Python writes it; its type if it cannot be written."""
    try:
        return write(value)
    except Exception:  # nested too deeply, too many digits, or an error of its own
        return f"of type {type(value).__name__}"


def duration(seconds: float) -> str:
    """Format a duration with a suitable unit.

    >>> [duration(s) for s in (0.04, 3.21, 42, 200, 5_000, 100_000, 9e6)]
    ['0.04 s', '3.2 s', '42 s', '3 min 20 s', '1 h 23 min', '28 hours', '104 days']
    """
    if seconds < 9.95:
        return f"{seconds:.2f} s" if seconds < 0.1 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if minutes else f"{rest} s"
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    hours = minutes / 60
    return f"{hours:.0f} hours" if hours < 3 * 24 else f"{hours / 24:,.0f} days"


def joined(items: Iterable[object]) -> str:
    """Join items as ``a, b and c``."""
    texts = [visible(str(item)) for item in items]
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def count(number: int, one: str, many: str | None = None) -> str:
    """Format a count with its noun: ``1 claim``, ``2,000 claims``."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question that suggests the most similar of the known names; empty if none is similar."""
    from difflib import get_close_matches

    close = get_close_matches(name, list(known), n=1)
    return f"did you mean {visible(close[0])}? " if close else ""


def natural_key(label: object) -> tuple[object, ...]:
    """Key by which labels are sorted as people do: numbers by size, also those within text."""
    text = str(label)
    with contextlib.suppress(ValueError):
        if math.isfinite(number := float(text)):
            return 0, number, text
    parts = re.split(r"(\d+)", text)
    return 1, [int(x) if k % 2 else x for k, x in enumerate(parts)], text


def minus(text: str) -> str:
    """Replace hyphens before numbers by minus signs."""
    return re.sub(r"(?<!\w)-(?=\d)", "−", text)


def listed(names: Iterable[object], most: int = 5) -> str:
    """List the first names: ``a, b, c and 7 more``."""
    texts = [visible(str(name)) for name in names]
    rest = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {rest} more" if rest > 0 else "")


def number(
    x: float, digits: int = 3, *, magnitude: int | None = None, last: int | None = None
) -> str:
    """Format a number with `digits` digits, or down to 10 to the power `last`; extremes as 1e+09.

    >>> [number(x) for x in (0.0, -0.0, 1234.5, 0.05, 1.5e9, -2e-12, float("inf"))]
    ['0', '0', '1,234', '0.0500', '1.50e+09', '-2.00e-12', '∞']
    >>> number(-0.0001, magnitude=0, last=-2)
    '0.00'
    """
    if not math.isfinite(x):
        return MISSING if math.isnan(x) else "∞" if x > 0 else "−∞"
    if magnitude is None:
        if x == 0:
            return "0"
        magnitude = math.floor(math.log10(abs(x)))
    last = magnitude - digits + 1 if last is None else last
    if TINY <= 10.0**magnitude < HUGE:
        return _unsigned_zero(f"{x:,.{max(0, -last)}f}")
    own = math.floor(math.log10(abs(x))) if x else magnitude
    return _unsigned_zero(f"{x:.{min(max(own - last, 0), 9)}e}") if own >= last else "0"


def plus_minus(value: float, spread: float, missing: str = MISSING) -> str:
    """A value ± its spread, both to three digits of the spread; at most six of the larger one.

    `missing` stands for a spread that is NaN.

    >>> plus_minus(4.0, 2.0), plus_minus(1e3, 0.5), plus_minus(-1.5, math.nan, "∞")
    ('4.00 ± 2.00', '1,000.000 ± 0.500', '-1.50 ± ∞')
    """
    sizes = [math.floor(math.log10(abs(x))) for x in (value, spread) if math.isfinite(x) and x]
    magnitude = max(sizes, default=0)
    last = magnitude - 2 if len(sizes) < 2 else min(max(sizes[1] - 2, magnitude - 6), magnitude - 2)
    shown = [number(x, magnitude=magnitude, last=last) for x in (value, spread)]
    return f"{shown[0]} ± {missing if math.isnan(spread) else shown[1]}"


def _unsigned_zero(text: str) -> str:
    return text if any(digit in text.split("e")[0] for digit in "123456789") else text.lstrip("-")


def short_number(value: float) -> str:
    """Format a number with few digits and a minus sign.

    >>> [short_number(x) for x in (-0.5, 1 / 3, 0.125, -100, 12345.6, 1e-7)]
    ['−0.5', '0.33', '0.125', '−100', '12346', '1e−7']
    """
    if value == 0 or not math.isfinite(value):
        text = f"{value + 0.0:g}"
    elif 100 <= abs(value) < 1e6:
        text = f"{value:.0f}"
    else:
        exact = (f"{value:.{d}g}" for d in SHORT_DIGITS if float(f"{value:.{d}g}") == value)
        text = next(exact, f"{value:.{SHORT_DIGITS[0]}g}")
    mantissa, e, power = text.partition("e")
    return (mantissa + (e and f"e{int(power)}")).replace("-", "−")


def align(rows: Sequence[Sequence[str]], *, left: bool = False) -> list[str]:
    """Format rows as lines of a table, with columns aligned right or left.

    Rows may differ in length.

    >>> align([["state", "value"], ["a", "10.5"]])
    ['state  value', '    a   10.5']
    >>> align([["state", "value"], ["a"]], left=True)
    ['state  value', 'a']
    """
    rows = [[visible(cell) for cell in row] for row in rows]
    columns = zip_longest(*rows, fillvalue="")
    widths = [max(map(len, column)) for column in columns]
    pad = str.ljust if left else str.rjust
    lines = ("  ".join(map(pad, row, widths)) for row in rows)
    return [line.rstrip() if left else line for line in lines]


def reasons(counted: Mapping[str, int]) -> str:
    """Reasons with their counts: ``1 × no next state, 2 × reward is missing``."""
    return ", ".join(f"{times:,} × {reason}" for reason, times in sorted(counted.items()))
