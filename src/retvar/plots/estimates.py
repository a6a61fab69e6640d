"""Estimates from experience by state, their check by roll-outs, and all figures of a dataset."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from retvar import arguments
from retvar.format import count, natural_key, short_number
from retvar.plots.estimate_common import (
    NEED_ESTIMATES,
    NEGATIVE_VARIANCE,
    TITLES,
    add_title,
    common_factor,
    figure_title,
    finite_column,
    interval_name,
    message_figure,
    new_figure,
    require_columns,
    unit_name,
    value_range,
    visited,
    why_unknown,
)
from retvar.plots.estimate_maps import estimate_heat_maps, estimate_maps
from retvar.plots.layered_maps import layers_of
from retvar.plots.notebook_figures import Figure, Figures
from retvar.plots.observed_returns import SAMPLE_COLUMNS, calibration, observed_returns
from retvar.plots.style import (
    BLUE,
    GRID,
    LIGHT_BLUE,
    LONGEST_TICK,
    ORANGE,
    RC,
    SOFT,
    TRUTH,
    Array,
    add_legend,
    shown,
    text_size,
    wrap_text,
)

if TYPE_CHECKING:
    import xarray

__all__ = ["check", "estimate", "estimate_figures", "estimate_states"]

Indices = NDArray[np.intp]
MAX_ROWS = 60
ROW_HEIGHT, MAX_LABEL = 0.19, 2.6  # inches
TICK_SIZE, VISITS_SIZE = 8.0, 7.0  # points
DOT: Any = {"marker": "o", "ls": "none", "ms": 4.2, "color": "#08264a", "mec": "white", "mew": 0.6}
SMALL_DOT: Any = {**DOT, "mew": 0.5}
HOLLOW: Any = {**DOT, "color": "white", "mec": "#08264a", "mew": 1.0}
WORDS: Any = {"color": SOFT, "va": "center", "ha": "left", "fontsize": VISITS_SIZE}
MANY_STATES = 100  # more are drawn smaller
ORDERS = ("state", "visits")
PREDICTED = {"value": "check_value", "std": "check_predicted_std"}  # where fresh returns began
QUESTION = "what return to expect from each {unit}, and how far it may stray"


def estimate(data: xarray.Dataset) -> Figure:
    """Draw value and spread of a dataset of estimates: the first of :func:`estimate_figures`.

    Parameters
    ----------
    data
        From :func:`retvar.estimate`.

    Raises
    ------
    InputError
        If the dataset has no estimates.

    Examples
    --------
    >>> import numpy as np, xarray, retvar as rv
    >>> columns = {name: ("state", np.array([2.0, 3.0])) for name in ("value", "std", "visits")}
    >>> len(rv.plots.estimate(xarray.Dataset(columns)).axes)
    1
    """
    return MAIN[_kind(data)](data)


def _kind(data: xarray.Dataset) -> str:
    """Which figure shows a dataset of estimates best."""
    require_columns(data, "value", "std", remedy=NEED_ESTIMATES)
    grid = "grid_rows" in data.attrs and "grid_columns" in data.attrs
    if grid or layers_of(data) is not None:
        return "map"
    return "heat_map" if "value_map" in data and "std_map" in data else "states"


def estimate_figures(data: xarray.Dataset) -> Figures:
    """Draw all figures that suit a dataset of estimates.

    Parameters
    ----------
    data
        From :func:`retvar.estimate`.

    Returns
    -------
    dict
        First one of ``"map"`` (a grid world, Blackjack), ``"heat_map"`` (two-dimensional
        observations) and ``"states"``; then, if the dataset has their variables, ``"observed"``,
        ``"calibration"`` and ``"check"``.

    Raises
    ------
    InputError
        If the dataset has no estimates.

    Examples
    --------
    >>> import numpy as np, xarray, retvar as rv
    >>> columns = {name: ("state", np.array([2.0, 3.0])) for name in ("value", "std", "visits")}
    >>> list(rv.plots.estimate_figures(xarray.Dataset(columns)))
    ['states']
    """
    kind = _kind(data)
    figures = Figures({kind: MAIN[kind](data)})
    if all(name in data for name in SAMPLE_COLUMNS):
        figures |= {"observed": observed_returns(data), "calibration": calibration(data)}
    if "check_mean" in data:
        figures["check"] = check(data)
    return figures


def estimate_states(data: xarray.Dataset, order: str = "state") -> Figure:
    """Draw the value of each state with its interval, in a band of one standard deviation.

    At most 60 states are drawn, the most visited.

    Parameters
    ----------
    data
        From :func:`retvar.estimate`; of states, or of regions of observations.
    order
        From top to bottom: ``"state"``, by label (a2 before a10), or ``"visits"``, most visited
        first.

    Raises
    ------
    InputError
        If the dataset lacks a value or a std, or the order is unknown.

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
    require_columns(data, "value", "std", remedy=NEED_ESTIMATES)
    arguments.choice("order", order, ORDERS)
    unit = unit_name(data)
    rows = _choose_rows(data, order)
    title = figure_title(data, QUESTION.format(unit=unit))
    if not rows.size:
        return message_figure(title, f"No {unit} was visited, so there is nothing to draw.")
    with matplotlib.rc_context(RC):
        labels = [_shorten(label) for label in _labels(data, unit, rows)]
        width = max(text_size(label, TICK_SIZE)[0] for label in labels)
        figure = new_figure(max(6.4, width + 5.0), 1.5 + ROW_HEIGHT * max(rows.size, 3))
        ax = figure.add_subplot()
        _draw_rows(ax, data, rows)
        ax.set_yticks(range(rows.size), labels, fontsize=TICK_SIZE)
        subtitle = _subtitle(data, unit, rows.size, int(visited(data).sum()))
        ax.set_title(wrap_text(subtitle, 9, 4.0), fontsize=9)
        add_title(figure, title)
        entries = _legend_entries(data, rows)
        add_legend(figure, entries, ncols=3 if len(entries) < 4 else 2)
    return figure


def _choose_rows(data: xarray.Dataset, order: str) -> Indices:
    """The states to draw, from top to bottom."""
    known = np.flatnonzero(visited(data))
    labels = data["label"].values if "label" in data else np.arange(visited(data).size)
    by_label = np.array(sorted(known, key=lambda k: natural_key(labels[k])), dtype=np.intp)
    visits = finite_column(data, "visits") if "visits" in data else np.zeros(labels.size)
    most = by_label[np.argsort(-visits[by_label], kind="stable")[:MAX_ROWS]]
    return most if order == "visits" else by_label[np.isin(by_label, most)]


def _subtitle(data: xarray.Dataset, unit: str, shown: int, known: int) -> str:
    """Which states are drawn, if not all, and what the numbers that label a region mean."""
    most = f"the {shown} most visited of {known:,} {unit}s" if shown < known else ""
    if unit == "state" or "label" in data or "axis" not in data.coords:
        return most
    return f"{most or 'each region'}, by the centre ({', '.join(map(str, data['axis'].values))})"


def _labels(data: xarray.Dataset, unit: str, rows: Indices) -> list[str]:
    """Names of states or regions; centres of regions without a name."""
    if "label" in data:
        return [shown(str(label), LONGEST_TICK) for label in data["label"].values[rows]]
    if unit == "region" and "centre" in data:
        centres = np.asarray(data["centre"].transpose("region", "axis").values)[rows]
        short = [[short_number(float(f"{x:.3g}")) for x in centre] for centre in centres]
        return [f"({', '.join(texts)})" for texts in short]
    names = data[unit].values if unit in data.coords else np.arange(data.sizes[unit])
    return [shown(str(name), LONGEST_TICK) for name in names[rows]]


def _shorten(label: str) -> str:
    """A label of at most `MAX_LABEL` inches."""
    label = " ".join(label.split())
    while text_size(label, TICK_SIZE)[0] > MAX_LABEL:
        label = label.rstrip("…")[:-1] + "…"
    return label


def _draw_rows(ax: Axes, data: xarray.Dataset, rows: Indices) -> None:
    """Draw a dot, its interval and its band for each state, with its visits at the right."""
    columns = [
        finite_column(data, name)[rows] if name in data else np.full(rows.size, np.nan)
        for name in ("value", "std", "value_low", "value_high")
    ]
    factor, suffix = common_factor(*columns)
    value, std, low, high = (c / factor for c in columns)
    y = np.arange(rows.size)
    band: Any = {"height": 0.62, "color": LIGHT_BLUE, "lw": 0, "zorder": 2}
    ax.barh(y, 2 * np.nan_to_num(std), left=value - np.nan_to_num(std), **band)
    ax.hlines(y, low, high, color=BLUE, linewidth=2.4, zorder=3)
    known = np.isfinite(std)
    ax.plot(value[known], y[known], **DOT, zorder=4)
    if not known.all():
        ax.plot(value[~known], y[~known], **HOLLOW, zorder=4)
    for row in np.flatnonzero(np.isnan(value)):
        missing = np.arange(data.sizes[unit_name(data)]) == rows[row]
        words = why_unknown(data, missing)
        ax.text(0.01, float(row), words, transform=ax.get_yaxis_transform(), **WORDS)
    left, right = value_range(value - np.nan_to_num(std), value + np.nan_to_num(std), low, high)
    margin = 0.03 * (right - left)
    ax.set(xlim=(left - margin, right + margin), ylim=(rows.size - 0.4, -0.6), axisbelow=True)
    if left <= 0 <= right:
        ax.axvline(0, color=SOFT, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    ax.grid(axis="x", **GRID)
    ax.set_xlabel(f"return{suffix}")
    ax.tick_params(axis="y", length=0)
    if "visits" in data:
        _write_visits(ax, finite_column(data, "visits")[rows])


def _write_visits(ax: Axes, visits: Array) -> None:
    """Write the number of visits of each row at the right."""
    size = VISITS_SIZE
    style: Any = {"color": SOFT, "va": "center_baseline", "ha": "right", "fontsize": size}
    texts = [f"{int(count):,}" for count in visits]
    x = 1 + (max(text_size(text, size)[0] for text in [*texts, "visits"]) + 0.1) / 4
    place = ax.get_yaxis_transform()
    for y, text in enumerate(texts):
        ax.text(x, y, text, transform=place, **style)
    ax.text(x, -0.75, "visits", transform=place, **{**style, "va": "bottom"})


def _legend_entries(data: xarray.Dataset, rows: Indices) -> list[tuple[Any, str]]:
    """Legend entries of states."""
    entries: list[tuple[Any, str]] = [(Line2D([], [], **DOT), "expected return")]
    if "value_low" in data and "value_high" in data:
        entries.append((Line2D([], [], color=BLUE, lw=2.4), f"its {interval_name(data)}"))
    entries.append((Patch(facecolor=LIGHT_BLUE), "± 1 std: how far a return strays"))
    unknown = np.isnan(finite_column(data, "std")) & np.isfinite(finite_column(data, "value"))
    unknown &= np.isin(np.arange(unknown.size), rows)
    if unknown.any():
        entries.append((Line2D([], [], **HOLLOW), f"no band: {why_unknown(data, unknown)}"))
    return entries


# ---------------------------------------------------------------------- check by roll-outs


def check(data: xarray.Dataset) -> Figure:
    """Draw Monte Carlo returns of fresh roll-outs against the estimates, with the diagonal.

    The estimates are those for where the returns began, not for the centre of a region. The
    standard error of a mean is exact; that of a standard deviation assumes normal returns.

    Parameters
    ----------
    data
        From :func:`retvar.estimate`, with a check by roll-outs.

    Raises
    ------
    InputError
        If the dataset holds no such check.

    Examples
    --------
    >>> import numpy as np, xarray, retvar as rv
    >>> names = ("value", "std", "check_mean", "check_std", "check_count")
    >>> data = xarray.Dataset({name: ("state", np.array([2.0, 3.0])) for name in names})
    >>> [ax.get_title(loc="left") for ax in rv.plots.check(data).axes]
    ['expected return', 'spread (standard deviation)']
    """
    names = ("check_mean", "check_std", "check_count")
    require_columns(data, *TITLES, *names, remedy="must have been checked by roll-outs")
    unit = unit_name(data)
    title = figure_title(data, "do fresh roll-outs agree with the estimates?")
    compared = np.isfinite(finite_column(data, "check_mean"))
    compared &= np.isfinite(finite_column(data, "value"))
    if not compared.any():
        return message_figure(title, f"No {unit} was rolled out from: nothing to compare.")
    with matplotlib.rc_context(RC):
        figure = new_figure(8.6, 4.7)
        axes = figure.subplots(1, 2)
        for ax, name in zip(axes, TITLES, strict=True):
            _draw_check(ax, data, name, compared)
        axes[0].set_ylabel(f"Monte Carlo, {count(int(compared.sum()), unit)}")
        add_title(figure, title)
        add_legend(figure, _check_entries(data))
    return figure


def _draw_check(ax: Axes, data: xarray.Dataset, name: str, compared: Any) -> None:
    """Draw estimates with intervals along x, Monte Carlo with standard errors along y."""
    estimate = finite_column(data, name)[compared]
    low, high = (
        finite_column(data, end)[compared] if end in data else estimate
        for end in (f"{name}_low", f"{name}_high")
    )
    there = PREDICTED[name]
    x = finite_column(data, there)[compared] if there in data else estimate
    low, high = low + (x - estimate), high + (x - estimate)
    y, error = (column[compared] for column in _monte_carlo(data, name))
    factor, suffix = common_factor(x, y)
    x, low, high, y, error = (column / factor for column in (x, low, high, y, error))
    many = x.size > MANY_STATES
    ax.hlines(y, low, high, color=BLUE, linewidth=0.6 if many else 1.1, zorder=2)
    ax.vlines(x, y - error, y + error, color=ORANGE, linewidth=0.6 if many else 1.1, zorder=2)
    ax.plot(x, y, **{**SMALL_DOT, "ms": 3.0 if many else 4.5}, zorder=5)
    least, most = value_range(x, y)
    margin = 0.08 * (most - least)
    limits = least - margin, most + margin
    ax.plot(limits, limits, **{**TRUTH, "zorder": 1})
    ax.set(xlim=limits, ylim=limits, aspect="equal", axisbelow=True)
    ax.grid(**GRID)
    ax.locator_params(nbins=6)
    ax.set_title(f"{TITLES[name]}{suffix}")
    missing = int(np.sum(np.isnan(x)))
    more = f"\n({missing:,} left out: {NEGATIVE_VARIANCE})" if missing else ""
    ax.set_xlabel(f"estimate from experience{more}")


def _monte_carlo(data: xarray.Dataset, name: str) -> tuple[Array, Array]:
    """Mean or std of roll-outs and its standard error; NaN where unknown."""
    std, rollouts = finite_column(data, "check_std"), finite_column(data, "check_count")
    if name == "value":
        return finite_column(data, "check_mean"), std / np.sqrt(np.maximum(rollouts, 1))
    enough = np.where(rollouts > 1, rollouts, np.nan)
    return np.where(rollouts > 1, std, np.nan), std / np.sqrt(2 * (enough - 1))


def _check_entries(data: xarray.Dataset) -> list[tuple[Any, str]]:
    """Legend entries of the check."""
    intervals = (Line2D([], [], color=BLUE, lw=1.1), f"{interval_name(data)} of the estimate")
    return [
        (Line2D([], [], **{**SMALL_DOT, "ms": 4.5}), f"a {unit_name(data)}"),
        *([intervals] if "value_low" in data else []),
        (Line2D([], [], color=ORANGE, lw=1.1), "± standard error of Monte Carlo"),
        (Line2D([], [], **TRUTH), "equal"),
    ]


MAIN: dict[str, Callable[[xarray.Dataset], Figure]] = {
    "map": estimate_maps,
    "heat_map": estimate_heat_maps,
    "states": estimate_states,
}
