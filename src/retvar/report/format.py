"""Times and lists in words."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

__all__ = ["count", "digits", "duration", "joined", "minus", "z_text"]


def duration(seconds: float) -> str:
    """A time that people can take in.

    >>> [duration(s) for s in (0.04, 3.21, 42, 200, 5_000, 100_000, 9e6)]
    ['0.04 s', '3.2 s', '42 s', '3 min 20 s', '1 h 23 min', '28 hours', '104 days']
    """
    if seconds < 0.1:
        return f"{seconds:.2f} s"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3_600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 24 * 3_600:
        return f"{whole // 3_600} h {whole % 3_600 // 60} min"
    if whole < 3 * 24 * 3_600:
        return f"{whole / 3_600:.0f} hours"
    return f"{whole / 86_400:,.0f} days"


def joined(words: Iterable[object]) -> str:
    """``a, b and c``.

    >>> joined("abc"), joined("a"), joined("")
    ('a, b and c', 'a', '')
    """
    texts = [str(word) for word in words]
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def count(number: int, one: str, many: str | None = None) -> str:
    """``1 claim``, ``2 claims``.

    >>> count(1, "claim"), count(2_000, "claim"), count(2, "entry", "entries")
    ('1 claim', '2,000 claims', '2 entries')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def minus(text: str) -> str:
    """Numbers with a real minus sign.

    >>> minus("from -1.5 to 1e-6, state-0")
    'from −1.5 to 1e-6, state-0'
    """
    return re.sub(r"(?<!\w)-(?=\d)", "−", text)


def digits(value: float, significant: int = 4) -> str:
    """A small number with so many digits; a dash for none.

    >>> digits(0.0041503), digits(0.0000123, 2), digits(math.nan), digits(0.0)
    ('0.004150', '0.000012', '–', '0')
    """
    if not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    places = max(0, significant - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{places}f}"


def z_text(z: float) -> str:
    """The number z with its sign; a dash for none.

    >>> z_text(-1.234), z_text(0.0), z_text(math.nan)
    ('−1.2', '0.0', '–')
    """
    if not math.isfinite(z):
        return "–"
    return f"{z:+.1f}".replace("-", "−") if z else "0.0"
