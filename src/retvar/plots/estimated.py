"""What figures of estimates from experience share: their columns, titles, units and notes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib import colormaps
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray

from retvar.errors import InputError
from retvar.format import listed, short_number
from retvar.plots.scales import RAISED
from retvar.plots.style import RC, Array, text_size

if TYPE_CHECKING:
    import xarray

__all__: list[str] = []  # taken by name

TITLE, NOTE = 10.0, 7.5  # points
LEAST = 1e-150  # smaller numbers are drawn as 0
LONGEST = 48  # characters of the name of a source or a policy
PLAIN = range(-3, 5)  # powers of ten that numbers are written in without a common factor
NARROWER = 0.97  # lines may be set a little wider than measured
LUMINANCE = np.array([0.2126, 0.7152, 0.0722])  # of red, green and blue light
MARGIN = 0.1  # inches
COLOURS = {  # both even in grey: a high value is bright, a large spread is dark
    "value": colormaps["viridis"],
    "std": ListedColormap(colormaps["magma_r"](np.linspace(0.02, 0.82, 256)), "spread"),
}
BELOW = "the variance was estimated below zero"  # as may happen; it then has no root
UNVISITED: Any = {"facecolor": "#fafafa", "edgecolor": "#c9c9c9", "hatch": "////", "lw": 0.0}


@dataclass(frozen=True)
class Samples:
    """Returns that were seen, each with what was predicted where it began; all are finite."""

    observed: Array
    predicted: Array
    std: Array
    left_out: int  #: how many lack a valid prediction

    @property
    def slack(self) -> float:
        """Deviations below this are rounding."""
        return 1e-9 * largest(self.observed, self.predicted)

    def within(self, k: float) -> NDArray[np.bool_]:
        """Whether each lies within k std of its prediction, both ends included."""
        return np.abs(self.observed - self.predicted) <= k * self.std + self.slack


def need(data: Any, *names: str, why: str) -> None:
    """Refuse what is no dataset of estimates, or lacks what is to be drawn."""
    if not hasattr(data, "data_vars"):
        raise InputError("data", type(data).__name__, "must be a dataset of estimates")
    missing = [name for name in names if name not in data and name not in data.attrs]
    if missing:
        raise InputError("data", f"no {listed(missing)}", why)


def place(data: xarray.Dataset) -> str:
    """What has a value: a state, or a region of the observations."""
    found = next((str(d) for d in data["value"].dims), "") if "value" in data else ""
    if found not in ("state", "region") or data["value"].ndim != 1:
        remedy = "must have a value for each state or region"
        raise InputError("data", f"value over {tuple(data['value'].dims)}", remedy)
    return found


def column(data: xarray.Dataset, name: str) -> Array:
    """A variable, with NaN for all that is not a number, and 0 for what has no square."""
    try:
        given = np.asarray(data[name].values, dtype=float)
    except (TypeError, ValueError):
        raise InputError(f"data.{name}", data[name].dtype, "must hold numbers") from None
    given = np.where(np.isfinite(given), given, np.nan)
    return np.where(np.abs(given) < LEAST, 0.0, given)


def visited(data: xarray.Dataset) -> NDArray[np.bool_]:
    """Where an estimate rests on experience."""
    known = np.isfinite(column(data, "value"))
    return known & (column(data, "visits") > 0) if "visits" in data else known


def samples(data: xarray.Dataset) -> Samples:
    """The observed returns that have a prediction."""
    columns = [column(data, name) for name in ("observed", "predicted", "predicted_std")]
    if len({c.shape for c in columns}) > 1 or columns[0].ndim != 1:
        raise InputError("data", "samples of unequal length", "must have one dimension, sample")
    complete = np.all(np.isfinite(columns), axis=0) & (columns[2] >= 0)
    observed, predicted, std = (c[complete] for c in columns)
    return Samples(observed, predicted, std, int(np.sum(~complete)))


def largest(*values: Array) -> float:
    """The largest size among numbers; 0 if there is none."""
    return float(max((np.nanmax(np.abs(v), initial=0.0) for v in values), default=0.0))


def unit_of(*values: Array) -> tuple[float, str]:
    """A common factor of numbers that are huge or tiny, and how an axis tells it.

    >>> unit_of(np.array([3.0, -0.02])), unit_of(np.array([2.5e7]))
    ((1.0, ''), (1000000.0, ' (×10⁶)'))
    """
    size = largest(*values)
    power = math.floor(math.log10(size)) if size else 0
    if power in PLAIN:
        return 1.0, ""
    power = power // 3 * 3
    return 10.0**power, f" (×10{str(power).translate(RAISED)})"


def span(*values: Array) -> tuple[float, float]:
    """The least and the largest number, apart even if they are equal.

    >>> span(np.array([1.0, np.nan, 3.0])), span(np.array([2.0, 2.0])), span(np.array([]))
    ((1.0, 3.0), (1.5, 2.5), (-0.5, 0.5))
    """
    every = np.concatenate([np.ravel(v) for v in values])
    every = every[np.isfinite(every)]
    low, high = (float(every.min()), float(every.max())) if every.size else (0.0, 0.0)
    if high - low > 1e-9 * max(abs(low), abs(high)):
        return low, high
    room = max(0.25 * abs(low), 0.5 * (low == 0))
    return low - room, high + room


def heading(data: xarray.Dataset, question: str) -> str:
    """Where the estimates are from, and what the figure tells.

    >>> import xarray
    >>> about = {"source": "gymnasium:CliffWalking-v1", "policy": "random", "gamma": 0.9, "lam": 1}
    >>> heading(xarray.Dataset(attrs=about), "what return to expect")
    'CliffWalking-v1, random policy, γ = 0.9: what return to expect'
    """
    source, policy = str(data.attrs.get("source", "")), str(data.attrs.get("policy", ""))
    kind, colon, name = source.partition(":")
    name = name if colon and len(kind) > 1 else PurePath(source.replace("\\", "/")).name
    parts = [_short(name)]
    if policy:
        parts.append(f"{policy} policy" if policy.isalpha() else f"policy {_short(policy)}")
    for letter, key in (("γ", "gamma"), ("λ", "lam")):
        given = data.attrs.get(key, 1.0 if key == "lam" else "")
        if given != "" and not (key == "lam" and np.all(given == 1)):
            parts.append(f"{letter} {_short(_told(given))}")
    about = ", ".join(part for part in parts if part)
    return f"{about}: {question}" if about else question[:1].upper() + question[1:]


def _told(given: Any) -> str:
    """A setting: a number in full (0.9999 must not read as 1), or words ("in the data")."""
    try:
        return f"= {float(given):g}"
    except (TypeError, ValueError):
        return str(given)


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"


def wrapped(text: str, size: float, width: float, weight: str = "normal") -> str:
    """Text in lines of at most so many inches, where words allow.

    >>> wrapped("what return to expect", 10, 1.2).splitlines()
    ['what return to', 'expect']
    """
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and text_size(longer, size, weight)[0] > NARROWER * width:
            lines.append(word)
        else:
            lines[-1] = longer
    return "\n".join(lines)


def page(width: float, height: float) -> Figure:
    """A figure of so many inches with a narrow margin."""
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.get_layout_engine().set(w_pad=MARGIN, h_pad=0.09)  # type: ignore[union-attr, call-arg]
    return figure


def inks(shades: Array) -> list[str]:
    """Black or white, such as stands out well from each shade [k, red green blue].

    >>> inks(np.array([[1.0, 1.0, 0.0], [0.2, 0.0, 0.4]]))
    ['black', 'white']
    """
    return ["black" if light > 0.25 else "white" for light in shades**2.2 @ LUMINANCE]


def put_title(figure: Figure, text: str) -> None:
    """A title above all panels, at the left, in as many lines as it needs."""
    width = figure.get_figwidth() - 2 * MARGIN
    look: Any = {"fontsize": TITLE, "fontweight": "bold", "x": MARGIN / figure.get_figwidth()}
    figure.suptitle(wrapped(text, TITLE, width, "bold"), ha="left", **look)


def put_note(figure: Figure, sentences: Iterable[str]) -> None:
    """Small text below all panels."""
    text = " · ".join(sentence for sentence in sentences if sentence)
    if text:
        width = figure.get_figwidth() - 2 * MARGIN
        look: Any = {"fontsize": NOTE, "x": MARGIN / figure.get_figwidth(), "ha": "left"}
        figure.supxlabel(wrapped(text, NOTE, width), **look)


def sentence(title: str, text: str) -> Figure:
    """A figure that says why there is nothing to draw."""
    with matplotlib.rc_context(RC):
        figure = page(6.0, 1.5)
        put_title(figure, title)
        look: Any = {"ha": "center", "va": "center", "fontsize": 9.5}
        ax = figure.add_subplot()
        ax.set_axis_off()
        ax.text(0.5, 0.5, wrapped(text, 9.5, 5.4), transform=ax.transAxes, **look)
    return figure


def share(part: int, whole: int, noun: str) -> str:
    """How many of many, in words that never round to all or none.

    >>> share(94, 100, "observed returns"), share(1999, 2000, "observed returns")
    ('94% of 100 observed returns', 'more than 99% of 2,000 observed returns')
    >>> share(3, 3, "states"), share(0, 3, "states")
    ('all 3 states', 'none of 3 states')
    """
    many = f"{whole:,} {noun}"
    if part in (0, whole):
        return f"all {many}" if part else f"none of {many}"
    percent = round(100 * part / whole)
    if percent in (0, 100):
        return f"{'more than 99%' if percent else 'less than 1%'} of {many}"
    return f"{percent}% of {many}"


def interval_name(data: xarray.Dataset) -> str:
    """What the intervals of a dataset are called.

    >>> import xarray
    >>> interval_name(xarray.Dataset(attrs={"level": 0.9})), interval_name(xarray.Dataset())
    ('90% interval', 'interval')
    """
    level = data.attrs.get("level")
    return (
        "interval" if level is None else f"{short_number(round(100 * float(level), 6))}% interval"
    )
