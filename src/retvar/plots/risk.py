"""Risk, exactly: the mean–variance frontier, the law of a return, and where a variance arises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.patches import Rectangle
from matplotlib.ticker import PercentFormatter

from retvar.exact.attribution import Attribution
from retvar.exact.frontiers import Frontier, FrontierPoint
from retvar.exact.law import Answers
from retvar.exact.sampling import sample_returns
from retvar.mdp import weigh_edges
from retvar.mdp.linear import Resolvent
from retvar.plots import style
from retvar.plots.graph import MAX_STATES, draw_mdp
from retvar.plots.maps import COLOUR_MAPS, HeatMap, add_bar, draw_map, grid_cells
from retvar.plots.panels import Line, Panel, XAxis, name_rows, panels
from retvar.plots.style import BLUE, INK, LIGHT_BLUE, LINE, Array, Figure, LineStyle, shown
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.support.format import minus, number

MOST_DETAILS = 6  # points with a policy and a distribution of their own
MOST_CELLS = 60  # of a grid, in a row or column
WAYS = {"up": (0, 1), "right": (1, 0), "down": (0, -1), "left": (-1, 0)}
WAYS |= {"north": (0, 1), "east": (1, 0), "south": (0, -1), "west": (-1, 0)}
SEEN = 1e-4  # of the steps; cells that are visited less have no arrow
NEAR = 0.04  # of the panel; dots closer than this have one text
BINS = 48
LAW_POINTS = 241
LIST, ROW, NAMES = 4.6, 0.24, 2.1  # inches: width of a list, height of a bar, width of its names


@style.styled
def frontier(
    found: Frontier, points: Sequence[int] | None = None, *, samples: int = 10_000, seed: int = 0
) -> Figure:
    """Draw the result of :func:`retvar.frontier`.

    On the left the mean of the return against its standard deviation, one dot for each penalty.
    Beside it, for some of them, the policy as arrows, if the MDP is a grid whose actions are named
    up, right, down and left (darker cells are visited more often), and sampled returns with their
    exact mean and one standard deviation.

    `points` are the indices of those to draw in detail, at most six; default: up to three different
    ones. `samples` returns are drawn for each of them, with `seed`.

    Examples
    --------
    >>> import retvar as rv
    >>> found = rv.frontier(rv.domains.windy_cliff(), penalties=[0, 0.5])
    >>> figure = rv.plots.frontier(found, samples=1_000)
    >>> figure.axes[0].get_xlabel()
    'standard deviation of the return'
    """
    arguments.instance("found", found, Frontier, "the result of retvar.frontier")
    chosen = typical_points(found)
    if points is not None:
        chosen = arguments.indices("points", points, 0, len(found)).tolist()
    if not 0 < len(chosen) <= MOST_DETAILS:
        raise InputError("points", f"{len(chosen)} of them", f"must be 1 to {MOST_DETAILS}")
    samples = arguments.integer("samples", samples, 1, 10_000_000)
    how: Any = {"start": found.start, "samples": samples, "seed": seed}
    returns = [sample_returns(found.mdp, found[k].policy, **how) for k in chosen]
    cells, columns = grid_cells(found.mdp.positions, MOST_CELLS), [3.3, 2.9]
    ways = [WAYS.get(name.lower()) for name in found.mdp.action_names or [""]]
    if arrows := cells is not None and None not in ways:
        across, down = cells.max(axis=0) + 1
        columns.insert(1, float(np.clip(1.25 * across / down, 1.4, 3.6)))
    size = sum(columns) + 0.4, max(3.3, 1.35 * len(chosen) + 0.7)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.add_gridspec(len(chosen), len(columns), width_ratios=columns)
    colours = {k: style.line_style(i).colour for i, k in enumerate(chosen)}
    _draw_points(figure.add_subplot(grid[:, 0]), found, colours)
    ends = np.array([np.quantile(x, (0.002, 0.998)) for x in returns])
    low, high = ends.min(), ends.max()
    pad = 0.04 * (high - low) or 0.5
    bins = np.linspace(low - pad, high + pad, BINS + 1)
    for row, k in enumerate(chosen):
        if arrows:
            ax = figure.add_subplot(grid[row, 1])
            _draw_policy(ax, found, found[k], np.array(ways, dtype=float), cells, colours[k])
        ax = figure.add_subplot(grid[row, -1])
        _draw_returns(ax, found[k], returns[row], bins, colours[k])
        ax.tick_params(labelbottom=row == len(chosen) - 1)
    ax.set_xlabel("sampled returns")
    return figure


def typical_points(found: Frontier) -> list[int]:
    """The first, the last and a middle one of the different points."""
    different, spread = [0], [point.std for point in found]
    for k in range(1, len(found)):
        last = spread[different[-1]]
        if abs(spread[k] - last) > 1e-3 * max(spread[k], last):
            different.append(k)
    halfway = (spread[0] + spread[different[-1]]) / 2
    middle = min(different, key=lambda k: abs(spread[k] - halfway))
    return different if len(different) <= 3 else [0, middle, different[-1]]


def _draw_points(ax: Axes, found: Frontier, colours: dict[int, str]) -> None:
    """Draw a dot for each penalty, which is written beside it; near dots have one text."""
    std, mean = (np.array([getattr(p, field) for p in found]) for field in ("std", "mean"))
    ax.plot(std, mean, color=style.SOFT, lw=1.0, zorder=2)
    endless = [p.ending is not None and p.ending <= 0.5 for p in found]
    for k in range(len(found)):
        colour, size, order = (colours[k], 7, 4) if k in colours else (LINE, 5, 3)
        look: Any = {"mec": colour, "mfc": "white" if endless[k] else colour, "mew": 1.4}
        ax.plot(std[k], mean[k], "o", ms=size, zorder=order, **look)
    ax.margins(0.14)
    ax.autoscale_view()  # the limits are read below
    ax.set(xlabel="standard deviation of the return", ylabel="mean of the return", axisbelow=True)
    ax.set_title(found.mdp.name or "frontier", fontweight="bold")
    ax.grid(**style.GRID)
    if any(endless):
        ax.plot([], [], "o", mfc="white", mec=LINE, mew=1.4, label="most episodes never end")
        ax.legend(loc="lower right")
    at = ax.transLimits.transform(np.stack([std, mean], axis=1))  # in the panel, from 0 to 1
    jumps = np.abs(np.diff(at, axis=0)).max(axis=1) > NEAR
    for group in np.split(np.arange(len(found)), 1 + np.flatnonzero(jumps)):
        first, last = found[group[0]], found[group[-1]]
        words = minus(f"c = {first.penalty:g}" + f" … {last.penalty:g}" * (group.size > 1))
        shade = next((colours[k] for k in group if k in colours), INK)
        left = at[group[0], 0] > 0.5  # texts lie on either side of a line that rises
        side: Any = {"ha": "right", "va": "bottom"} if left else {"ha": "left", "va": "top"}
        side |= {"color": LineStyle(shade, "").text_colour, "textcoords": "offset points"}
        shift = (-5, 3) if left else (5, -3)
        ax.annotate(words, (first.std, first.mean), shift, gid="point", fontsize=7, **side)


def _draw_returns(ax: Axes, point: FrontierPoint, returns: Array, bins: Array, colour: str) -> None:
    """A histogram of the returns, with the exact mean and one standard deviation around it."""
    share = np.histogram(np.clip(returns, bins[0], bins[-1]), bins)[0] / returns.size
    ax.axvspan(point.mean - point.std, point.mean + point.std, color=style.SHADE, lw=0, zorder=0)
    ax.stairs(share, bins, fill=True, color=colour, alpha=0.75, lw=0, zorder=2)
    ax.axvline(point.mean, color=INK, lw=1.0, zorder=3)
    ax.set(xlim=(bins[0], bins[-1]), yticks=[])
    ax.spines["left"].set_visible(False)
    size = max(abs(point.mean), point.std) or 1.0
    decimals = int(np.clip(3 - np.floor(np.log10(size)), 0, 9))
    std = point.std if point.std > 1e-6 * size else 0.0
    text = minus(f"c = {point.penalty:g}:  {point.mean:.{decimals}f} ± {std:.{decimals}f}")
    if point.ending is not None and point.ending < 1:
        text += f"; {point.ending:.0%} end"
    ax.set_title(text, color=LineStyle(colour, "").text_colour, fontsize=9)


def _draw_policy(
    ax: Axes, found: Frontier, point: FrontierPoint, ways: Array, cells: Any, colour: str
) -> None:
    """Arrows for the actions in the cells visited; cells without a state are dark."""
    pi, edges = point.policy.probabilities, weigh_edges(found.mdp, point.policy)
    visits = Resolvent(edges.matrix(edges.gamma)).solve(np.asarray(found.start), transpose=True)
    share = np.maximum(visits.x, 0.0)  # discounted visits of each state
    strength = np.sqrt(share / share.max())
    across, down = (int(x) + 1 for x in cells.max(axis=0))
    ax.add_patch(Rectangle((-0.5, -0.5), across, down, color="#c9c9c9", lw=0, zorder=0))
    for s, (x, y) in enumerate(cells):
        ax.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, fc="white", ec="#dddddd", lw=0.5))
        ax.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, fc=colour, lw=0, alpha=0.5 * strength[s]))
        for a in np.flatnonzero(pi[s] > 0.01) if share[s] > SEEN * share.sum() else ():
            dx, dy = ways[a] * 0.36 * np.sqrt(pi[s, a])
            look: Any = {"arrowstyle": "-|>", "color": INK, "lw": 1.0, "mutation_scale": 7}
            look |= {"shrinkA": 0, "shrinkB": 0, "alpha": 0.35 + 0.65 * float(strength[s])}
            ax.annotate("", (x + dx, y + dy), (x - dx, y - dy), arrowprops=look)
    ax.set(xlim=(-0.5, across - 0.5), ylim=(-0.5, down - 0.5), aspect="equal")
    ax.set_axis_off()


def law_panel(found: Answers) -> Panel:
    """The data of :func:`law`: probabilities as a line, their brackets or intervals as a band.

    The limits go from where nearly no return is below to where nearly all are.
    """
    ends = found.law.quantile(1e-3).low, found.law.quantile(1 - 1e-3).high
    pad = 0.02 * (ends[1] - ends[0]) or 0.5
    x = np.linspace(ends[0] - pad, ends[1] + pad, LAW_POINTS)
    told = [found.probability_below(limit) for limit in x]
    y = np.array([getattr(each, "middle", each[0]) for each in told])
    low, high = (np.where(np.isfinite(end), end, y) for end in np.array(told)[:, -2:].T)
    line = Line(x, y, LineStyle(BLUE, ""), (low, high), outlined=True)
    mean, std = number(found.law.mean), number(found.law.std.middle)
    title = minus(f"{found.heading}: {mean} ± {std}")
    return Panel(title, [line], limits=(0.0, 1.0), ylabel="probability of a return below")


@style.styled
def law(found: Answers) -> Figure:
    """Draw the law of one state with CVaR 5% and the mean as vertical lines.

    The band is the bracket of an exact law, and of one from data the intervals.

    >>> import retvar as rv
    >>> figure = rv.plots.law(rv.law(rv.domains.chain())["s0"])
    >>> figure.axes[0].get_xlabel()
    'return'
    """
    arguments.instance("found", found, Answers, "the law of a state: rv.law(mdp)[state]")
    if found.law.state is None:
        raise InputError("found", found, "must be the law of a state: rv.law(mdp)[state]")
    panel = law_panel(found)
    limits = float(panel.lines[0].x[0]), float(panel.lines[0].x[-1])
    figure = panels([panel], XAxis("return", limits), (1, 5.2, 3.2))
    ax = figure.axes[0]
    worst = found.law.cvar(tail=found.worst_and_best[0]).middle
    for x, name in ((worst, "CVaR 5%"), (found.law.mean, "mean")):
        ax.axvline(x, **style.TRUTH)
        text = minus(f"{name} {number(x)}")
        ax.annotate(text, (x, 1), (3, -10), textcoords="offset points", fontsize=8, color=INK)
    return figure


@style.styled
def attribution(found: Attribution, most: int = 10) -> Figure:
    """Draw the result of ``solution.attribution(state)``.

    A bar for each of the edges with the largest shares, light where it is noise of the reward, with
    the interval of the share where it is from data. Beside it a grid world, or the graph of up to
    30 states, coloured by the share of each state.

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
    cells, height = grid_cells(found.mdp.positions, MOST_CELLS), ROW * len(found.top(most)) + 0.9
    if cells is not None:
        return _beside_grid(found, most, cells, height, title)
    if found.mdp.n_states <= MAX_STATES:
        return _beside_graph(found, most, height, title)
    figure = style.new_figure(LIST, height, title)
    _draw_bars(figure.add_subplot(), found, most)
    return figure


def _draw_bars(ax: Axes, found: Attribution, most: int) -> None:
    """One bar below the other, with its share beside it, and its interval from data."""
    top, (low, high) = found.top(most), found.top_intervals(most)
    y, share, noise = np.arange(len(top)), *np.array([(x.share, x.noise) for x in top]).T
    ax.barh(y, share - noise, height=0.72, color=BLUE)
    ax.barh(y, noise, height=0.72, left=share - noise, color=LIGHT_BLUE)
    if noise.any():
        ax.set_title("light: reward noise", loc="right", size=8, color=style.SOFT)
    for k, x in enumerate(top):
        at: Any = (high[k], k), (3, 0), "data", "offset points"
        ax.annotate(f"{x.share:.0%}", *at, va="center")
    names = [shown(f"{x.state}, {x.action} → {x.next_state}", 30) for x in top]
    name_rows(ax, names)
    ax.hlines(y, low, high, color=INK, lw=1.0)
    ax.set(xlim=(0, 1.15 * high.max()), xlabel="share of the variance")
    ax.locator_params(axis="x", nbins=5)
    ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def _beside_grid(found: Attribution, most: int, cells: Any, height: float, title: str) -> Figure:
    """The list and a map of the grid; the state that the return starts from has a frame."""
    across, down = (int(x) + 1 for x in cells.max(axis=0))
    table = np.full((down, across), np.nan)
    table[cells[:, 1], cells[:, 0]] = found.by_state
    cell = float(np.clip(4.2 / max(across, down), 0.1, 0.5))
    width, high = max(cell * across, 1.2), max(cell * down, 0.8)
    figure = style.new_figure(LIST + width + 1.0, max(height, high + 0.9), title)
    left, right = figure.subplots(1, 2, width_ratios=[LIST, width + 1.0])
    _draw_bars(left, found, most)
    right.set(aspect="equal", title="share of each state")
    mesh = draw_map(right, HeatMap(table, COLOUR_MAPS["std"], Normalize(0, np.nanmax(table))), cell)
    add_bar(right, mesh, width, high)
    x, y = cells[found.mdp.state_index(found.state)]
    right.plot(x, y, "o", mfc="none", mec=style.SOFT, ms=24 * cell)
    right.set_axis_off()
    return figure


def _beside_graph(found: Attribution, most: int, height: float, title: str) -> Figure:
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
    _draw_bars(figure.add_axes((NAMES / width, 1 - size[1] - 0.4 / tall, *size)), found, most)
    figure.text(0.1 / width, 1 - 0.08 / tall, title, weight="bold", size=10, va="top")
    return figure
