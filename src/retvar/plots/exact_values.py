"""The solution of an MDP: maps of a grid world, or the value and spread of each state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from retvar import arguments
from retvar.errors import InputError
from retvar.exact import Solution
from retvar.plots.notebook_figures import Figure
from retvar.plots.style import (
    BLUE,
    LIGHT_BLUE,
    LONGEST_TICK,
    ORANGE,
    RC,
    SOFT,
    Array,
    shown,
    text_size,
)

__all__ = ["solution"]

Indices = NDArray[np.intp]
MAX_DOTS = 200  # more states are drawn as lines
TICK_SIZE, CELL_SIZE, MIN_SIZE = 8.5, 8.0, 5.0  # points
TICK_STEPS = [k * 10**power for power in range(8) for k in (1, 2, 5)]


def solution(solution: Solution, states: Iterable[int | str] | None = None) -> Figure:
    """Draw the value and the standard deviation of each state from :func:`retvar.solve`.

    A grid world gives two maps. Otherwise each state has a dot for its value and bars of one and
    two standard deviations; more than 200 states give a line with bands. If the skewness and the
    excess kurtosis are known, they have maps or a panel of their own. An infinite standard
    deviation is a ring without bars, or ∞ in a map.

    Parameters
    ----------
    solution
        From :func:`retvar.solve`.
    states
        States to draw, as dots and bars in this order; default: all.

    Examples
    --------
    >>> import retvar as rv
    >>> figure = rv.plots.solution(rv.solve(rv.domains.chain()))
    >>> figure.axes[0].get_ylabel()
    'return'
    """
    arguments.instance("solution", solution, Solution, "a solution of retvar.solve")
    mdp = solution.mdp
    chosen = np.arange(mdp.n_states)
    if states is not None:
        chosen = np.array([mdp.state_index(s) for s in _listed(states)], dtype=np.intp)
    if chosen.size == 0:
        raise InputError("states", "none", "must name at least one state")
    grid = _grid(mdp.positions) if states is None else None
    with matplotlib.rc_context(RC):
        return _draw_states(solution, chosen) if grid is None else _draw_maps(solution, grid)


def _listed(states: Iterable[int | str]) -> list[int | str]:
    return arguments.entries("states", states, "a list of states")


def _grid(positions: Array | None) -> Indices | None:
    """States by row (from below) and column if they fill a grid, otherwise None.

    >>> _grid(np.array([[0, 0], [1, 0], [0, 1], [1, 1.0]])).tolist()
    [[0, 1], [2, 3]]
    """
    if positions is None or not np.array_equal(positions, np.round(positions)):
        return None
    column, row = (positions - positions.min(axis=0)).astype(np.intp).T
    shape = int(row.max()) + 1, int(column.max()) + 1
    if min(shape) < 2 or shape[0] * shape[1] != len(positions):
        return None
    table = np.full(shape, -1, dtype=np.intp)
    table[row, column] = np.arange(len(positions))
    return None if np.any(table < 0) else table


def _draw_maps(solution: Solution, grid: Indices) -> Figure:
    """Draw maps of the value and the standard deviation, stacked if the grid is wide."""
    rows, columns = grid.shape
    maps = [(solution.value, "value", "viridis"), (solution.std, "standard deviation", "magma")]
    maps += [(values, title, "coolwarm") for title, values in _shape(solution).items()]
    stacked = columns >= 2 * rows
    cell = float(np.clip(8 / columns if stacked else 4 / max(grid.shape), 0.12, 0.85))
    width, height = max(cell * columns, 1.6) + 0.9, max(cell * rows, 1.2) + 0.5
    count = len(maps)
    down, across = (count, 1) if stacked else ((count + 1) // 2, 2)
    figure = Figure(figsize=(across * width, down * height + 0.3), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False).ravel()
    figure.suptitle(shown(solution.mdp.name), fontweight="bold", fontsize=10)
    for ax, (values, title, cmap) in zip(axes, maps, strict=False):
        _draw_map(ax, values[grid], title, cmap, cell)
    for ax in axes[count:]:
        ax.set_axis_off()
    return figure


def _shape(solution: Solution) -> dict[str, Array]:
    """Skewness and kurtosis by title, if they are known and finite somewhere."""
    titles = {"skewness": "skewness", "kurtosis": "excess kurtosis"}
    known = {title: getattr(solution, f) for f, title in titles.items() if f in solution.fields}
    return {title: values for title, values in known.items() if np.isfinite(values).any()}


def _draw_map(ax: Axes, table: Array, title: str, cmap: str, cell: float) -> None:
    """Draw one map, with numbers if they fit in cells of so many inches."""
    limits: Any = {}
    if cmap == "coolwarm":  # white is 0
        largest = float(np.nanmax(np.abs(table))) or 1.0
        limits = {"vmin": -largest, "vmax": largest}
    image = ax.imshow(np.ma.masked_invalid(table), origin="lower", cmap=cmap, **limits)
    ax.set_title(title, loc="center")
    ax.set_axis_off()
    width = cell * table.shape[1]
    bar = ax.figure.colorbar(image, cax=ax.inset_axes((1 + 0.1 / width, 0, 0.14 / width, 1)))
    bar.outline.set_visible(False)
    texts = _same_decimals(table.ravel(), "–" if limits else "∞")
    widest = max(text_size(text, CELL_SIZE)[0] for text in texts)
    size = CELL_SIZE * min(1.0, 0.85 * cell / widest)
    if size < MIN_SIZE:
        return
    shades = np.asarray(image.cmap(image.norm(table.ravel())))[:, :3]
    light = (shades @ [0.299, 0.587, 0.114] > 0.5) | np.isnan(table.ravel())
    colours = np.where(light, "black", "white")
    for (row, column), text, colour in zip(np.ndindex(table.shape), texts, colours, strict=True):
        ax.text(column, row, text, fontsize=size, color=colour, ha="center", va="center")


def _same_decimals(values: Array, missing: str = "∞") -> list[str]:
    """Numbers with the decimals that give the largest three digits; `missing` stands for NaN.

    >>> _same_decimals(np.array([0.43, -0.00001])), _same_decimals(np.array([-209.4, 3.0]))
    (['0.430', '0.000'], ['−209', '3'])
    """
    largest = float(np.max(np.abs(values), where=np.isfinite(values), initial=0.0))
    decimals = int(np.clip(2 - np.floor(np.log10(largest)), 0, 4)) if largest else 0
    rounded = np.round(values, decimals) + 0.0  # no negative zero
    texts = (f"{value:.{decimals}f}".replace("-", "−") for value in rounded)
    return [missing if text == "nan" else text for text in texts]


def _draw_states(solution: Solution, chosen: Indices) -> Figure:
    """Draw value, mean and spread of each state, from left to right; below it the shape."""
    width = float(np.clip(1.6 + 0.42 * chosen.size, 4.4, 8.5))
    shape = {title: values[chosen] for title, values in _shape(solution).items()}
    heights = (2.6, 1.4) if shape else (2.6,)
    figure = Figure(figsize=(width, sum(heights) + 0.8), layout="constrained")
    panels = figure.subplots(len(heights), sharex=True, squeeze=False, height_ratios=heights)
    ax, lowest = panels[0, 0], panels[-1, 0]
    ax.set(ylabel="return", axisbelow=True)
    lowest.set_xlabel("state")
    ax.set_title(shown(solution.mdp.name), fontweight="bold")
    ax.grid(axis="y", color="#e6e6e6", linewidth=0.6)
    same = solution.mean is solution.value
    _draw_spread(ax, solution.mean[chosen], solution.std[chosen], "value" if same else "mean")
    if not same:
        ax.plot(
            solution.value[chosen], "D", mfc="none", ms=5, c=ORANGE, label="true value", zorder=5
        )
    low, high = ax.get_ylim()
    if low - (high - low) / 2 <= 0 <= high + (high - low) / 2:  # zero is in or near the panel
        ax.axhline(0, color=SOFT, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    if shape:
        _draw_shape(lowest, shape)
    _state_ticks(
        lowest, [shown(solution.mdp.state_name(int(s)), LONGEST_TICK) for s in chosen], width - 1.0
    )
    figure.legend(loc="outside lower center", ncols=4, handlelength=1.4, columnspacing=1.6)
    return figure


def _draw_shape(ax: Axes, shape: dict[str, Array]) -> None:
    """Draw the skewness and the excess kurtosis of each state; of a normal return both are 0."""
    ax.set(ylabel="shape", axisbelow=True)
    ax.grid(axis="y", color="#e6e6e6", linewidth=0.6)
    ax.axhline(0, color=SOFT, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    styles = {"skewness": ("^", BLUE), "excess kurtosis": ("s", ORANGE)}
    for title, values in shape.items():
        marker, colour = styles[title]
        many = values.size > MAX_DOTS
        style: Any = {"lw": 1.2} if many else {"marker": marker, "ls": "none", "ms": 4.5}
        ax.plot(np.arange(values.size), values, c=colour, label=title, zorder=3, **style)


def _draw_spread(ax: Axes, mean: Array, std: Array, name: str) -> None:
    """Draw dots with bars of one and two standard deviations; for many states, lines and bands."""
    x = np.arange(mean.size)
    many = mean.size > MAX_DOTS
    thick, size = np.clip(350 / mean.size, 2, 8), np.clip(250 / mean.size, 3, 6)
    dots = {"marker": "o", "ls": "none", "ms": size, "mec": "white", "mew": size / 8}
    style: Any = {"c": BLUE, "lw": 1.2} if many else {"c": "#08264a", **dots}
    ax.plot(x, mean, label=name, zorder=4, **style)
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
        ax.plot(x[infinite], mean[infinite], c=ORANGE, label="std infinite", zorder=5, **ring)


def _state_ticks(ax: Axes, names: list[str], width: float) -> None:
    """Write as many names as fit into `width` inches, long ones slanted."""
    widest = max(text_size(name, TICK_SIZE)[0] for name in names)
    available = width / len(names)
    slanted = widest > max(0.9, available)
    need = 0.2 if slanted else widest + 0.1
    step = next(k for k in TICK_STEPS if k * available >= need or k >= len(names))
    style: Any = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if slanted else {}
    ax.set_xticks(range(0, len(names), step), names[::step], **style)
    ax.set_xlim(-0.6, len(names) - 0.4)
