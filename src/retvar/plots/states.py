"""The states most visited, one below the other: what return to expect from each, and its spread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from retvar.errors import InputError
from retvar.format import short_number
from retvar.plots import estimated as e
from retvar.plots.legend import key
from retvar.plots.series import GRID
from retvar.plots.style import BLUE, LIGHT_BLUE, RC, SOFT, Array, text_size

if TYPE_CHECKING:
    import xarray

__all__ = ["estimate_states"]

MOST = 60
ROW = 0.19  # inches
WIDEST = 2.6  # inches of a label
TICK = 8.0  # points
DOT: Any = {"marker": "o", "ls": "none", "ms": 4.2, "color": "#08264a", "mec": "white", "mew": 0.6}
HOLLOW: Any = {**DOT, "color": "white", "mec": "#08264a", "mew": 1.0}
ORDERS = ("state", "visits")
QUESTION = "what return to expect from each {place}, and how far it may stray"


def estimate_states(data: xarray.Dataset, order: str = "state") -> Figure:
    """Draw the value of each state with its interval, in a band of one standard deviation.

    At most 60 are drawn: those most visited.

    Parameters
    ----------
    data
        From :func:`retvar.estimate`; of states, or of regions of observations.
    order
        From above: ``"state"``, as in the dataset, or ``"visits"``, the most visited first.

    Returns
    -------
    Figure
        See :func:`save`.

    Raises
    ------
    InputError
        Where the dataset lacks a value or a std, or there is no such order.

    Examples
    --------
    >>> import numpy as np, xarray, retvar as rv
    >>> names = ("value", "value_low", "value_high", "std", "visits")
    >>> columns = {name: ("state", np.array([2.0, 3.0])) for name in names}
    >>> data = xarray.Dataset(columns, {"label": ("state", ["left", "right"])})
    >>> ax = rv.plots.estimate_states(data).axes[0]
    >>> [text.get_text() for text in ax.get_yticklabels()]
    ['left', 'right']
    """
    e.need(data, "value", "std", why="must have the value and the std of each state or region")
    if order not in ORDERS:
        raise InputError("order", repr(order), f"must be one of {', '.join(ORDERS)}")
    place = e.place(data)
    chosen, seen = _chosen(data, order), int(e.visited(data).sum())
    title = e.heading(data, QUESTION.format(place=place))
    if not chosen.size:
        return e.sentence(title, f"No {place} was visited, so there is nothing to draw.")
    with matplotlib.rc_context(RC):
        labels = [_cut(label) for label in _labels(data, place, chosen)]
        left = max(text_size(label, TICK)[0] for label in labels)
        figure = e.page(max(6.4, left + 5.0), 1.5 + ROW * max(chosen.size, 3))
        ax = figure.add_subplot()
        _rows(ax, data, chosen)
        ax.set_yticks(range(chosen.size), labels, fontsize=TICK)
        told = _told(data, place, chosen.size, seen)
        ax.set_title(e.wrapped(told, 9, 4.0), fontsize=9)
        e.put_title(figure, title)
        entries = _entries(data, chosen)
        key(figure, entries, ncols=3 if len(entries) < 4 else 2)
    return figure


def _chosen(data: xarray.Dataset, order: str) -> NDArray[np.intp]:
    """The states to draw, from above."""
    seen = np.flatnonzero(e.visited(data))
    visits = e.column(data, "visits")[seen] if "visits" in data else np.zeros(seen.size)
    most = seen[np.argsort(-visits, kind="stable")[:MOST]]
    return most if order == "visits" else np.sort(most)


def _told(data: xarray.Dataset, place: str, shown: int, seen: int) -> str:
    """Which states are drawn, if not all, and what the numbers that name a region are."""
    most = f"the {shown} most visited of {seen:,} {place}s" if shown < seen else ""
    if place == "state" or "label" in data or "axis" not in data.coords:
        return most
    return f"{most or 'each region'}, by the centre ({', '.join(map(str, data['axis'].values))})"


def _labels(data: xarray.Dataset, place: str, chosen: NDArray[np.intp]) -> list[str]:
    """Names of states; of regions without a name, their centres."""
    if "label" in data:
        return [str(label) for label in data["label"].values[chosen]]
    if place == "region" and "centre" in data:
        centres = np.asarray(data["centre"].transpose("region", "axis").values)[chosen]
        short = [[short_number(float(f"{x:.3g}")) for x in centre] for centre in centres]
        return [f"({', '.join(texts)})" for texts in short]
    names = data[place].values if place in data.coords else np.arange(data.sizes[place])
    return [str(name) for name in names[chosen]]


def _cut(label: str) -> str:
    """A label that leaves room for the data."""
    label = " ".join(label.split())
    while text_size(label, TICK)[0] > WIDEST:
        label = label.rstrip("…")[:-1] + "…"
    return label


def _rows(ax: Axes, data: xarray.Dataset, chosen: NDArray[np.intp]) -> None:
    """A dot, its interval and its band for each state; how often it was visited at the right."""
    value, std = (e.column(data, name)[chosen] for name in ("value", "std"))
    low, high = (_or_nan(data, name, chosen) for name in ("value_low", "value_high"))
    unit, suffix = e.unit_of(value, std, low, high)
    value, std, low, high = (c / unit for c in (value, std, low, high))
    y = np.arange(chosen.size)
    wide: Any = {"height": 0.62, "color": LIGHT_BLUE, "lw": 0, "zorder": 2}
    ax.barh(y, 2 * np.nan_to_num(std), left=value - np.nan_to_num(std), **wide)
    ax.hlines(y, low, high, color=BLUE, linewidth=2.4, zorder=3)
    known = np.isfinite(std)
    ax.plot(value[known], y[known], **DOT, zorder=4)
    if not known.all():
        ax.plot(value[~known], y[~known], **HOLLOW, zorder=4)
    least, most = e.span(value - np.nan_to_num(std), value + np.nan_to_num(std), low, high)
    room = 0.03 * (most - least)
    ax.set(xlim=(least - room, most + room), ylim=(chosen.size - 0.4, -0.6), axisbelow=True)
    if least <= 0 <= most:
        ax.axvline(0, color=SOFT, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    ax.grid(axis="x", **GRID)
    ax.set_xlabel(f"return{suffix}")
    ax.tick_params(axis="y", length=0)
    if "visits" in data:
        _visits(ax, e.column(data, "visits")[chosen])


def _or_nan(data: xarray.Dataset, name: str, chosen: NDArray[np.intp]) -> Array:
    return e.column(data, name)[chosen] if name in data else np.full(chosen.size, np.nan)


def _visits(ax: Axes, visits: Array) -> None:
    """How often each was visited, at the right."""
    look: Any = {"color": SOFT, "va": "center_baseline", "ha": "right", "fontsize": 7}
    texts = [f"{int(count):,}" for count in visits]
    away = 1 + (max(text_size(text, 7)[0] for text in [*texts, "visits"]) + 0.1) / 4
    place = ax.get_yaxis_transform()
    for y, text in enumerate(texts):
        ax.text(away, y, text, transform=place, **look)
    ax.text(away, -0.75, "visits", transform=place, **{**look, "va": "bottom"})


def _entries(data: xarray.Dataset, chosen: NDArray[np.intp]) -> list[tuple[Any, str]]:
    """For the legend."""
    entries: list[tuple[Any, str]] = [(Line2D([], [], **DOT), "expected return")]
    if "value_low" in data and "value_high" in data:
        entries.append((Line2D([], [], color=BLUE, lw=2.4), f"its {e.interval_name(data)}"))
    entries.append((Patch(facecolor=LIGHT_BLUE), "± 1 std: how far a return strays"))
    if np.isnan(e.column(data, "std")[chosen]).any():
        entries.append((Line2D([], [], **HOLLOW), f"no band: {e.BELOW}"))
    return entries
