"""Where a variance arises: a list of bars for edges, and the states coloured by their share."""

from __future__ import annotations

from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.ticker import PercentFormatter

from retvar.exact import Attribution
from retvar.plots import style
from retvar.plots.graph import MAX_STATES, draw_mdp
from retvar.plots.maps import COLOUR_MAPS, HeatMap, add_bar, draw_map, grid_cells
from retvar.plots.style import BLUE, LIGHT_BLUE, Array, Figure, shown
from retvar.support import arguments
from retvar.support.format import number

LIST, ROW = 4.6, 0.24  # inches: width of the list, height of a bar
NAMES = 2.1  # of the list
MOST_CELLS = 60  # of a grid, in a row or column


class Bars(NamedTuple):
    """The list: what happens, its share, and the part of it that is noise of the reward."""

    names: list[str]
    share: Array
    noise: Array


def bars_of(found: Attribution, most: int) -> Bars:
    """The edges with the largest shares."""
    top = found.top(most)
    names = [shown(f"{x.state}, {x.action} → {x.next_state}", 30) for x in top]
    return Bars(names, np.array([x.share for x in top]), np.array([x.noise for x in top]))


def attribution(found: Attribution, most: int = 10) -> Figure:
    """Draw the result of ``solution.attribution(state)``.

    A bar for each of the edges with the largest shares, light where it is noise of the reward.
    Beside it a grid world, or the graph of up to 30 states, coloured by the share of each state.

    Examples
    --------
    >>> import retvar as rv
    >>> found = rv.solve(rv.domains.chain()).attribution("s0")
    >>> rv.plots.attribution(found).axes[0].get_xlabel()
    'share of the variance'
    """
    arguments.instance("found", found, Attribution, "what solution.attribution returns")
    title = shown(f"variance of the return from {found.state}: {number(found.variance, 4)}")
    if found.note:
        return style.message_figure(title, found.note)
    bars, cells = bars_of(found, most), grid_cells(found.mdp.positions)
    height = ROW * len(bars.names) + 0.9
    with matplotlib.rc_context(style.RC):
        if cells is not None and cells.max() < MOST_CELLS:
            return _beside_grid(found, bars, cells, height, title)
        if found.mdp.n_states <= MAX_STATES:
            return _beside_graph(found, bars, height, title)
        figure = style.new_figure(LIST, height, title)
        _draw_bars(figure.add_subplot(), bars)
        return figure


def _draw_bars(ax: Axes, bars: Bars) -> None:
    """One bar below the other, with its share beside it."""
    y, moves = np.arange(len(bars.names)), bars.share - bars.noise
    ax.barh(y, moves, height=0.72, color=BLUE)
    ax.barh(y, bars.noise, height=0.72, left=moves, color=LIGHT_BLUE)
    for k, share in enumerate(bars.share.tolist()):
        ax.annotate(f"{share:.0%}", (share, k), (3, 0), textcoords="offset points", va="center")
    ax.set(xlim=(0, 1.15 * bars.share.max()), ylim=(y.size - 0.5, -0.5))
    ax.set_xlabel("share of the variance")
    ax.set_yticks(y, bars.names)
    ax.tick_params(axis="y", length=0)
    ax.locator_params(axis="x", nbins=5)
    ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def _beside_grid(found: Attribution, bars: Bars, cells: Any, height: float, title: str) -> Figure:
    """The list and a map of the grid; the state that the return starts from has a frame."""
    across, down = (int(x) + 1 for x in cells.max(axis=0))
    table = np.full((down, across), np.nan)
    table[cells[:, 1], cells[:, 0]] = found.by_state
    cell = float(np.clip(4.2 / max(across, down), 0.1, 0.5))
    width, high = max(cell * across, 1.2), max(cell * down, 0.8)
    figure = style.new_figure(LIST + width + 1.0, max(height, high + 0.9), title)
    left, right = figure.subplots(1, 2, width_ratios=[LIST, width + 1.0])
    _draw_bars(left, bars)
    right.set(aspect="equal", title="share of each state")
    mesh = draw_map(right, HeatMap(table, COLOUR_MAPS["std"], Normalize(0, np.nanmax(table))), cell)
    add_bar(right, mesh, width, high)
    x, y = cells[found.mdp.state_index(found.state)]
    right.plot(x, y, "o", mfc="none", mec=style.SOFT, ms=24 * cell)
    right.set_axis_off()
    return figure


def _beside_graph(found: Attribution, bars: Bars, height: float, title: str) -> Figure:
    """The list, left of the graph whose states are coloured by their share."""
    figure = draw_mdp(found.mdp)
    (wide, high), share = figure.get_size_inches(), found.by_state
    tall, width = max(height + 0.3, high), LIST + wide
    figure.set_size_inches(width, tall)
    graph = figure.axes[0]
    graph.set_position((LIST / width, (tall - high) / 2 / tall, wide / width, high / tall))
    for patch in graph.patches:
        kind, _, k = (patch.get_gid() or "").partition("-")
        if kind == "state":
            patch.set_facecolor(colormaps["Oranges"](0.6 * share[int(k)]))
    size = (LIST - NAMES - 0.3) / width, (height - 0.6) / tall
    ax = figure.add_axes((NAMES / width, 1 - size[1] - 0.4 / tall, *size))
    _draw_bars(ax, bars)
    figure.text(0.1 / width, 1 - 0.08 / tall, title, weight="bold", size=10, va="top")
    return figure
