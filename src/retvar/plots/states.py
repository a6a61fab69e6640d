"""Values and spreads by state: of estimates from experience, and of exact solutions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import xarray
from matplotlib.axes import Axes

from retvar.exact.solution import Solution
from retvar.plots import estimates as e
from retvar.plots import style
from retvar.plots.estimates import (
    SAMPLE_COLUMNS,
    calibration,
    check,
    column,
    observed_returns,
    visited,
)
from retvar.plots.maps import (
    draw_solution_maps,
    estimate_heat_maps,
    estimate_maps,
    grid_cells,
    grid_shape,
)
from retvar.plots.panels import name_rows, value_range
from retvar.plots.style import BLUE, LIGHT_BLUE, NAVY, Array, Figure, Indices, shown
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.support.format import natural_key, short_number

SHAPE = {"skewness": "skewness", "kurtosis": "excess kurtosis"}
MAX_ROWS = 60
MAX_DOTS = 200  # more states are drawn as lines
MAX_NAMES = 15  # of states along an axis
DOT: Any = {**e.DOT, "ms": 4.2, "mew": 0.6, "zorder": 4}
HOLLOW: Any = {**DOT, "color": "white", "mec": NAVY, "mew": 1.0}


def estimate(data: xarray.Dataset) -> Figure:
    """Draw value and spread of an estimate's dataset: the first of :func:`estimate_figures`."""
    return _main(data)[1]


def _main(data: xarray.Dataset) -> tuple[str, Figure]:
    """The figure that shows a dataset of estimates best, and its name."""
    e.require_columns(data, "value", "std", remedy=e.NEED_ESTIMATES)
    if grid_shape(data) is not None:
        return "map", estimate_maps(data)
    if "value_map" in data and "std_map" in data:
        return "heat_map", estimate_heat_maps(data)
    return "states", estimate_states(data)


def estimate_figures(data: xarray.Dataset) -> dict[str, Figure]:
    """Draw all figures that suit the dataset of an estimate, by name.

    First one of ``"map"`` (a grid world), ``"heat_map"`` (two-dimensional observations)
    and ``"states"``; then, if the dataset has their variables, ``"observed"``, ``"calibration"``
    and ``"check"``.

    Examples
    --------
    >>> import numpy as np, xarray, retvar as rv
    >>> columns = {name: ("state", np.array([2.0, 3.0])) for name in ("value", "std", "visits")}
    >>> list(rv.plots.estimate_figures(xarray.Dataset(columns)))
    ['states']
    """
    figures = dict([_main(data)])
    if all(name in data for name in SAMPLE_COLUMNS):
        figures |= {"observed": observed_returns(data), "calibration": calibration(data)}
    if "check_mean" in data:
        figures["check"] = check(data)
    return figures


class StateRows(NamedTuple):
    """Estimates of some states or regions, from top to bottom."""

    places: Indices  #: of the states in the dataset
    labels: list[str]
    value: Array
    std: Array
    low: Array  #: of the interval of the value
    high: Array


def state_rows(data: xarray.Dataset) -> StateRows:
    """The rows to draw: by label, at most 60, the most visited."""
    unit, known = e.unit_name(data), np.flatnonzero(visited(data))
    names: Any = data[unit].values if unit in data.coords else np.arange(data.sizes[unit])
    names = data["label"].values if "label" in data else names
    by_label = np.array(sorted(known, key=lambda k: natural_key(names[k])), dtype=np.intp)
    visits = np.nan_to_num(column(data, "visits"))
    most = by_label[np.argsort(-visits[by_label], kind="stable")[:MAX_ROWS]]
    rows = by_label[np.isin(by_label, most)]
    labels = [shown(str(names[k]), style.LONGEST_TICK) for k in rows]
    if unit == "region" and "centre" in data and "label" not in data:
        centres = data["centre"].transpose("region", "axis").values[rows]
        short = [[short_number(float(f"{x:.3g}")) for x in centre] for centre in centres]
        labels = [f"({', '.join(texts)})" for texts in short]
    names = ("value", "std", "value_low", "value_high")
    return StateRows(rows, labels, *(column(data, name)[rows] for name in names))


@style.styled
def estimate_states(data: xarray.Dataset) -> Figure:
    """Draw the value of each state with its interval, in a band of one standard deviation.

    `data` is from :func:`retvar.estimate`, of states or of regions of observations. At most 60 are
    drawn, the most visited, from top to bottom by label (a2 before a10).
    """
    e.require_columns(data, "value", "std", remedy=e.NEED_ESTIMATES)
    unit, rows, known = e.unit_name(data), state_rows(data), int(visited(data).sum())
    question = f"what return to expect from each {unit}, and how far it may stray"
    title = e.figure_title(data, question)
    if not known:
        return style.message_figure(title, f"No {unit} was visited, so there is nothing to draw.")
    words = f"the {len(rows.labels)} most visited of {known:,} {unit}s" * (known > MAX_ROWS)
    if unit == "region" and "label" not in data and "axis" in data.coords:
        axes = ", ".join(map(str, data["axis"].values))
        words = f"{words or 'each region'}, by the centre ({axes})"
    width = max(6.4, max(style.text_size(label, 8)[0] for label in rows.labels) + 5.0)
    figure = style.new_figure(width, 1.5 + 0.19 * max(len(rows.labels), 3), title)
    sums = e.in_costs(data, "return")
    ax = figure.add_subplot(xlabel=sums)
    ax.set_title(style.wrap_text(words, 9, 4.0), fontsize=9)
    _draw_rows(ax, rows, sums, f"its {e.interval_name(data)}" if "value_low" in data else "")
    unknown = np.isnan(rows.std) & np.isfinite(rows.value)
    if unknown.any():
        why = e.why_unknown(data, rows.places[unknown])
        ax.plot(rows.value[unknown], np.flatnonzero(unknown), **HOLLOW, label=f"no band: {why}")
    small: Any = {"color": style.SOFT, "fontsize": 7, "transform": ax.get_yaxis_transform()}
    for row in np.flatnonzero(np.isnan(rows.value)):
        words = e.why_unknown(data, rows.places[[row]])
        ax.text(0.01, float(row), words, va="center", ha="left", **small)
    if "visits" in data:
        texts = [f"{int(visits):,}" for visits in column(data, "visits")[rows.places]]
        x = 1 + (max(style.text_size(text, 7)[0] for text in [*texts, "visits"]) + 0.1) / 4
        for k, text in enumerate(texts):
            ax.text(x, k, text, va="center_baseline", ha="right", **small)
        ax.text(x, -0.75, "visits", va="bottom", ha="right", **small)
    style.add_legend(figure)
    return figure


def _draw_rows(ax: Axes, rows: StateRows, sums: str, interval: str) -> None:
    """A dot for each state, with its interval and its band."""
    y, band = np.arange(rows.places.size), np.nan_to_num(rows.std)
    left, right = rows.value - band, rows.value + band
    bars: Any = {"height": 0.62, "color": LIGHT_BLUE, "lw": 0, "zorder": 2}
    ax.barh(y, 2 * band, left=left, **bars, label=f"± 1 std: how far a {sums} strays")
    ax.plot(rows.value, y, **DOT, label=f"expected {sums}")
    ax.hlines(y, rows.low, rows.high, color=BLUE, linewidth=2.4, zorder=3, label=interval)
    low, high = value_range(left, right, rows.low, rows.high)
    ax.set_xlim(1.03 * low - 0.03 * high, 1.03 * high - 0.03 * low)
    if low <= 0 <= high:
        ax.axvline(0, **style.ZERO)
    name_rows(ax, rows.labels, fontsize=8)
    ax.grid(axis="x", **style.GRID)


@style.styled
def solution(solution: Solution, states: Iterable[int | str] | None = None) -> Figure:
    """Draw the value and the standard deviation of each state from :func:`retvar.solve`.

    A grid world gives two maps. Otherwise each state has a dot for its value and bars of one and
    two standard deviations; more than 200 states give a line with bands. If the skewness and the
    excess kurtosis are known, they have maps or a panel of their own. An infinite standard
    deviation is a ring without bars, or ∞ in a map. Of some `states` dots and bars are drawn, in
    this order.

    Examples
    --------
    >>> import retvar as rv
    >>> figure = rv.plots.solution(rv.solve(rv.domains.chain()))
    >>> figure.axes[0].get_ylabel()
    'return'
    """
    arguments.instance("solution", solution, Solution, "a solution of retvar.solve")
    mdp = solution.mdp
    cells, chosen = grid_cells(mdp.positions), np.arange(mdp.n_states)
    if states is not None:
        named = arguments.entries("states", states, "a list of states")
        cells, chosen = None, np.array([mdp.state_index(s) for s in named], dtype=np.intp)
    if chosen.size == 0:
        raise InputError("states", "none", "must name at least one state")
    across, down = (0, 0) if cells is None else cells.max(axis=0) + 1
    known = {title: getattr(solution, f) for f, title in SHAPE.items() if f in solution.fields}
    shape = {title: values for title, values in known.items() if np.isfinite(values).any()}
    if cells is not None and min(across, down) > 1 and across * down == mdp.n_states:
        return draw_solution_maps(solution, np.lexsort(cells.T).reshape(down, across), shape)
    width = float(np.clip(1.6 + 0.42 * chosen.size, 4.4, 8.5))
    heights = (2.6, 1.4) if shape else (2.6,)
    figure = Figure(figsize=(width, sum(heights) + 0.8), layout="constrained")
    axes = figure.subplots(len(heights), sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for ax, label in zip(axes, ("return", "shape"), strict=False):
        ax.set(ylabel=label, axisbelow=True)
        ax.grid(axis="y", **style.GRID)
    axes[0].set_title(shown(mdp.name), fontweight="bold")
    same = solution.mean is solution.value
    _draw_spread(axes[0], solution.mean[chosen], solution.std[chosen], "value" if same else "mean")
    if not same:
        true: Any = {"mfc": "none", "ms": 5, "c": style.ORANGE, "label": "true value", "zorder": 5}
        axes[0].plot(solution.value[chosen], "D", **true)
    low, high = axes[0].get_ylim()
    if low - (high - low) / 2 <= 0 <= high + (high - low) / 2:  # zero is in or near the panel
        axes[0].axhline(0, **style.ZERO)
    for title, marker, colour in zip(SHAPE.values(), "^s", (BLUE, style.ORANGE), strict=True):
        dots: Any = {"marker": marker, "ls": "none", "ms": 4.5}
        look: Any = {"lw": 1.2} if chosen.size > MAX_DOTS else dots
        if title in shape:
            axes[1].plot(shape[title][chosen], c=colour, label=title, zorder=3, **look)
    if shape:
        axes[1].axhline(0, **style.ZERO)
    step = -(-chosen.size // MAX_NAMES)
    names = [shown(mdp.state_name(int(s)), style.LONGEST_TICK) for s in chosen[::step]]
    axes[-1].set(xlabel="state", xlim=(-0.6, chosen.size - 0.4))
    slanted = max(style.text_size(n, 8.5)[0] for n in names) > (width - 1.0) / len(names) - 0.1
    turned: Any = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if slanted else {}
    axes[-1].set_xticks(range(0, chosen.size, step), names, **turned)
    figure.legend(loc="outside lower center", ncols=4, handlelength=1.4, columnspacing=1.6)
    return figure


def _draw_spread(ax: Axes, mean: Array, std: Array, name: str) -> None:
    """Draw dots with bars of one and two standard deviations; for many states, lines and bands."""
    x = np.arange(mean.size)
    many = mean.size > MAX_DOTS
    thick, size = np.clip(350 / mean.size, 2, 8), np.clip(250 / mean.size, 3, 6)
    dots = {"marker": "o", "ls": "none", "ms": size, "mec": "white", "mew": size / 8}
    look: Any = {"c": BLUE, "lw": 1.2} if many else {"c": NAVY, **dots}
    ax.plot(x, mean, label=name, zorder=4, **look)
    for k, bar, band in ((1, "#4a86c5", LIGHT_BLUE), (2, LIGHT_BLUE, "#d3e3f3")):
        ends = mean - k * std, mean + k * std
        rest: Any = {"label": f"± {k} std", "zorder": 4 - k}
        if many:
            ax.fill_between(x, *ends, color=band, lw=0, **rest)
        else:
            ax.vlines(x, *ends, bar, linewidth=thick / k, **rest)
    infinite = np.isnan(std)
    if infinite.any():
        ring: Any = {"ls": "none", "marker": "o", "mfc": "none", "ms": size + 4}
        ax.plot(x[infinite], mean[infinite], c=style.ORANGE, label="std infinite", zorder=5, **ring)
