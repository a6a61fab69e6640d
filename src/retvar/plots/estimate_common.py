"""Columns, titles, units and notes shared by the figures of estimates from experience."""

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
from numpy.typing import NDArray

from retvar.errors import InputError
from retvar.format import listed, short_number
from retvar.plots.axes import SUPERSCRIPT
from retvar.plots.notebook_figures import Figure
from retvar.plots.style import RC, Array, shown, wrap_text

if TYPE_CHECKING:
    import xarray

__all__: list[str] = []  # names are imported one by one

TITLE_SIZE, NOTE_SIZE = 10.0, 7.5  # points
MARGIN = 0.1  # inches
TINY = 1e-150  # smaller numbers are drawn as 0, since their squares are not positive
MAX_NAME = 48  # characters of the name of a source or a policy
PLAIN_POWERS = range(-3, 5)  # powers of ten of numbers that need no common factor
LUMINANCE = np.array([0.2126, 0.7152, 0.0722])  # of red, green and blue light
TITLES = {"value": "expected return", "std": "spread (standard deviation)"}
COLOUR_MAPS = {  # monotonic in grey: a high value is bright, a large spread is dark
    "value": colormaps["viridis"],
    "std": ListedColormap(colormaps["magma_r"](np.linspace(0.02, 0.82, 256)), "spread"),
}
NEGATIVE_VARIANCE = "the variance was estimated below zero"  # then the std is unknown
NEED_ESTIMATES = "must have the value and the std of each state or region"
UNVISITED: Any = {"facecolor": "#fafafa", "edgecolor": "#c9c9c9", "hatch": "////", "lw": 0.0}


# ---------------------------------------------------------------------- data


@dataclass(frozen=True)
class Samples:
    """Observed returns with their predictions; all are finite."""

    observed: Array
    predicted: Array
    std: Array
    left_out: int  #: number of returns without a valid prediction

    @property
    def tolerance(self) -> float:
        """Deviations below this are rounding errors."""
        return 1e-9 * largest_magnitude(self.observed, self.predicted)

    def within(self, k: float) -> NDArray[np.bool_]:
        """Whether each return lies within k std of its prediction, ends included."""
        return np.abs(self.observed - self.predicted) <= k * self.std + self.tolerance


def require_columns(data: Any, *names: str, remedy: str) -> None:
    """Raise an InputError unless this is a dataset with these variables or attributes."""
    if not hasattr(data, "data_vars"):
        raise InputError("data", type(data).__name__, "must be a dataset of estimates")
    missing = [name for name in names if name not in data and name not in data.attrs]
    if missing:
        raise InputError("data", f"no {listed(missing)}", remedy)


def unit_name(data: xarray.Dataset) -> str:
    """``"state"`` or ``"region"``, by the dimension of the value."""
    found = next((str(d) for d in data["value"].dims), "") if "value" in data else ""
    if found not in ("state", "region") or data["value"].ndim != 1:
        remedy = "must have a value for each state or region"
        raise InputError("data", f"value over {tuple(data['value'].dims)}", remedy)
    return found


def finite_column(data: xarray.Dataset, name: str) -> Array:
    """A variable as numbers: NaN replaces infinities, 0 replaces tiny numbers."""
    try:
        found = np.asarray(data[name].values, dtype=float)
    except (TypeError, ValueError):
        raise InputError(f"data.{name}", data[name].dtype, "must hold numbers") from None
    found = np.where(np.isfinite(found), found, np.nan)
    return np.where(np.abs(found) < TINY, 0.0, found)


def visited(data: xarray.Dataset) -> NDArray[np.bool_]:
    """Whether each state or region was visited; without visits, whether it has a value."""
    if "visits" in data and np.isfinite(finite_column(data, "value")).any():
        return np.asarray(finite_column(data, "visits") > 0)
    return np.isfinite(finite_column(data, "value"))


def why_unknown(data: xarray.Dataset, cells: NDArray[np.bool_]) -> str:
    """Why the std of these states or regions is unknown, in the words of their notes."""
    notes: Any = data["note"].values[cells] if "note" in data else []
    found = sorted({str(note).partition(":")[0] for note in notes if note})
    return " or ".join(found) or NEGATIVE_VARIANCE


def observed_samples(data: xarray.Dataset) -> Samples:
    """The observed returns that have a valid prediction."""
    columns = [finite_column(data, name) for name in ("observed", "predicted", "predicted_std")]
    if len({c.shape for c in columns}) > 1 or columns[0].ndim != 1:
        raise InputError("data", "samples of unequal length", "must have one dimension, sample")
    complete = np.all(np.isfinite(columns), axis=0) & (columns[2] >= 0)
    observed, predicted, std = (c[complete] for c in columns)
    return Samples(observed, predicted, std, int(np.sum(~complete)))


# ---------------------------------------------------------------------- scales


def largest_magnitude(*values: Array) -> float:
    """The largest absolute value; 0 if there are no numbers."""
    return float(max((np.nanmax(np.abs(v), initial=0.0) for v in values), default=0.0))


def common_factor(*values: Array) -> tuple[float, str]:
    """A power of ten to divide huge or tiny numbers by, and how to write it at an axis.

    >>> common_factor(np.array([3.0, -0.02])), common_factor(np.array([2.5e7]))
    ((1.0, ''), (1000000.0, ' (×10⁶)'))
    """
    size = largest_magnitude(*values)
    power = math.floor(math.log10(size)) if size else 0
    if power in PLAIN_POWERS:
        return 1.0, ""
    power = power // 3 * 3
    return 10.0**power, f" (×10{str(power).translate(SUPERSCRIPT)})"


def value_range(*values: Array) -> tuple[float, float]:
    """The least and the largest number, moved apart if they are equal.

    >>> value_range(np.array([1.0, np.nan, 3.0])), value_range(np.array([2.0, 2.0]))
    ((1.0, 3.0), (1.5, 2.5))
    >>> value_range(np.array([]))
    (-0.5, 0.5)
    """
    every = np.concatenate([np.ravel(v) for v in values])
    every = every[np.isfinite(every)]
    low, high = (float(every.min()), float(every.max())) if every.size else (0.0, 0.0)
    if high - low > 1e-9 * max(abs(low), abs(high)):
        return low, high
    margin = max(0.25 * abs(low), 0.5 * (low == 0))
    return low - margin, high + margin


def text_colours(shades: Array) -> list[str]:
    """Black or white for text on each background [k, red green blue].

    >>> text_colours(np.array([[1.0, 1.0, 0.0], [0.2, 0.0, 0.4]]))
    ['black', 'white']
    """
    return ["black" if light > 0.25 else "white" for light in shades**2.2 @ LUMINANCE]


# ---------------------------------------------------------------------- text


def figure_title(data: xarray.Dataset, question: str) -> str:
    """The source and settings of the estimates, followed by the question of the figure.

    >>> import xarray
    >>> about = {"source": "gymnasium:CliffWalking-v1", "policy": "random", "gamma": 0.9, "lam": 1}
    >>> figure_title(xarray.Dataset(attrs=about), "what return to expect")
    'CliffWalking-v1, random policy, γ = 0.9: what return to expect'
    """
    source, policy = str(data.attrs.get("source", "")), str(data.attrs.get("policy", ""))
    kind, colon, name = source.partition(":")
    name = name if colon and len(kind) > 1 else PurePath(source.replace("\\", "/")).name
    parts = [_shorten(name)]
    if policy:
        parts.append(f"{policy} policy" if policy.isalpha() else f"policy {_shorten(policy)}")
    for letter, key in (("γ", "gamma"), ("λ", "lam")):
        setting = data.attrs.get(key, 1.0 if key == "lam" else "")
        if setting != "" and not (key == "lam" and np.all(setting == 1)):
            parts.append(f"{letter} {_shorten(_setting_text(setting))}")
    about = ", ".join(part for part in parts if part)
    return f"{about}: {question}" if about else question[:1].upper() + question[1:]


def _setting_text(setting: Any) -> str:
    """A number in full (0.9999 must not read as 1), or a text such as "in the data"."""
    try:
        return f"= {float(setting):g}"
    except (TypeError, ValueError):
        return str(setting)


def _shorten(name: str) -> str:
    return shown(name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…")


def share_text(part: int, whole: int, noun: str) -> str:
    """A share in percent that never rounds to all or none.

    >>> share_text(94, 100, "observed returns"), share_text(1999, 2000, "observed returns")
    ('94% of 100 observed returns', 'more than 99% of 2,000 observed returns')
    >>> share_text(3, 3, "states"), share_text(0, 3, "states")
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
    """The name of the intervals of a dataset.

    >>> import xarray
    >>> interval_name(xarray.Dataset(attrs={"level": 0.9})), interval_name(xarray.Dataset())
    ('90% interval', 'interval')
    """
    level = data.attrs.get("level")
    return (
        "interval" if level is None else f"{short_number(round(100 * float(level), 6))}% interval"
    )


# ---------------------------------------------------------------------- figures


def new_figure(width: float, height: float) -> Figure:
    """A figure of this size in inches, with a narrow margin."""
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.get_layout_engine().set(w_pad=MARGIN, h_pad=0.09)  # type: ignore[union-attr, call-arg]
    return figure


def message_figure(title: str, text: str) -> Figure:
    """A figure that explains why there is nothing to draw."""
    with matplotlib.rc_context(RC):
        figure = new_figure(6.0, 1.5)
        add_title(figure, title)
        style: Any = {"ha": "center", "va": "center", "fontsize": 9.5}
        ax = figure.add_subplot()
        ax.set_axis_off()
        ax.text(0.5, 0.5, wrap_text(text, 9.5, 5.4), transform=ax.transAxes, **style)
    return figure


def add_title(figure: Figure, text: str) -> None:
    """Write a title above all panels, flush left, wrapped."""
    width = figure.get_figwidth()
    style: Any = {"fontsize": TITLE_SIZE, "fontweight": "bold", "x": MARGIN / width, "ha": "left"}
    figure.suptitle(wrap_text(text, TITLE_SIZE, width - 2 * MARGIN, "bold"), **style)


def add_note(figure: Figure, sentences: Iterable[str]) -> None:
    """Write small text below all panels, wrapped; empty sentences are left out."""
    text = " · ".join(sentence for sentence in sentences if sentence)
    if text:
        width = figure.get_figwidth()
        style: Any = {"fontsize": NOTE_SIZE, "x": MARGIN / width, "ha": "left"}
        figure.supxlabel(wrap_text(text, NOTE_SIZE, width - 2 * MARGIN), **style)
