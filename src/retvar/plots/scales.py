"""Logarithmic axes: ticks as powers, and a place for zero."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedFormatter, FixedLocator, LogLocator, MaxNLocator, NullLocator

from retvar.format import short_number
from retvar.plots.style import LINE, Array

__all__ = ["SHADE", "compress_y", "log_together", "log_x", "powers"]

RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
SHADE = "#f1f1f1"
LOWER = 0.3  # of the height is for what is compressed
SHORT = 3  # digits of a power of ten that is written out


def powers(values: Sequence[float], base: int = 10) -> list[str]:
    """Numbers for an axis: as powers if all are such and some are long, otherwise plainly.

    >>> powers([0.01, 0.1, 1.0]), powers([0.0, 1e-5, 0.1]), powers([500.0, 2000.0])
    (['0.01', '0.1', '1'], ['0', '10⁻⁵', '10⁻¹'], ['500', '2000'])
    >>> powers([2**-9, 1.0], 2)
    ['2⁻⁹', '1']
    """
    exponents = [math.log(value, base) for value in values if value > 0]
    short = base == 10 and all(abs(exponent) <= SHORT for exponent in exponents)
    if short or any(abs(exponent - round(exponent)) > 1e-9 for exponent in exponents):
        return [short_number(value) for value in values]
    raised = [str(round(exponent)).translate(RAISED) for exponent in exponents]
    texts = iter("1" if text == "⁰" else f"{base}{text}" for text in raised)
    return [next(texts) if value > 0 else short_number(value) for value in values]


def log_together(axes: Sequence[Axes], values: Array) -> None:
    """The same logarithmic y axis for all, with room for these values."""
    positive = values[np.isfinite(values) & (values > 0)]
    low, high = (positive.min(), positive.max()) if positive.size else (0.1, 1.0)
    room = max(1.1, (high / low) ** 0.06)
    low, high = low / room, high * room
    decades = math.log10(high / low)
    subs = (1.0,) if decades > 2.6 else (1.0, 2.0, 5.0)
    ticks = [
        y for y in LogLocator(subs=subs, numticks=20).tick_values(low, high) if low <= y <= high
    ]
    ticks = ticks[:: 1 + len(ticks) // 12]
    for ax in axes:
        ax.set_yscale("log")
        ax.set_ylim(low, high)
        ax.yaxis.set_major_locator(FixedLocator(ticks))
        ax.yaxis.set_major_formatter(FixedFormatter(powers(ticks)))
        ax.yaxis.set_minor_locator(NullLocator())


def compress_y(ax: Axes, low: float, knee: float, high: float) -> None:
    """A linear y axis from the knee up; what is below it gets part of the height, shaded."""
    factor = max(1.0, (knee - low) / (high - knee) * (1 - LOWER) / LOWER)

    def there(y: Array) -> Array:
        return np.where(y >= knee, y, knee + (y - knee) / factor)

    def back(y: Array) -> Array:
        return np.where(y >= knee, y, knee + (y - knee) * factor)

    ax.set_yscale("function", functions=(there, back))
    ax.set_ylim(low, high)
    ax.axhspan(low, knee, color=SHADE, lw=0, zorder=0)
    above = [y for y in MaxNLocator(5).tick_values(0, high) if y >= 0]
    below = [y for y in MaxNLocator(3).tick_values(low, 0) if y < knee + (low - knee) / 5]
    ax.yaxis.set_major_locator(FixedLocator([*below, *above]))


def log_x(ax: Axes, values: Sequence[float], base: int = 10) -> Array:
    """A logarithmic x axis with ticks at these values; 0, if among them, is left of a break.

    Returns where on the axis each value is.
    """
    x = np.asarray(values, dtype=float)
    least = float(x[x > 0].min()) if (x > 0).any() else 1.0
    places = np.where(x > 0, x, least / base)
    ax.set_xscale("log", base=base)
    ax.set_xlim(places.min() / base**0.35, places.max() * base**0.35)
    ax.xaxis.set_major_locator(FixedLocator(np.unique(places).tolist()))
    ax.xaxis.set_major_formatter(FixedFormatter(powers(np.unique(x).tolist(), base)))
    ax.xaxis.set_minor_locator(NullLocator())
    if (x == 0).any():
        _break(ax, least / math.sqrt(base))
    return np.asarray(places)


def _break(ax: Axes, place: float) -> None:
    """Two strokes through the axis, with nothing between them."""
    look: Any = {"transform": ax.get_xaxis_transform(), "clip_on": False, "zorder": 10}
    ends = [place / 1.15, place * 1.15]
    ax.plot(ends, [0, 0], color="white", lw=2.5, **look)
    strokes: Any = {"marker": [(-0.5, -1), (0.5, 1)], "ms": 8, "ls": "none", "mew": 0.8}
    ax.plot(ends, [0, 0], color=LINE, gid="break", **strokes, **look)
