"""The mean–variance frontier: means against spreads, policies as arrows, sampled returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from retvar.exact.frontiers import Frontier, FrontierPoint
from retvar.exact.sampling import sample_returns
from retvar.mdp import MDP, weigh_edges
from retvar.mdp.linear import Resolvent
from retvar.plots import style
from retvar.plots.maps import grid_cells
from retvar.plots.style import INK, LINE, Array, Figure, Indices
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.support.format import minus

MOST_DETAILS = 6  # points with a policy and a distribution of their own
MOST_CELLS = 60  # of a grid, in a row or column
WAYS = {"up": (0, 1), "right": (1, 0), "down": (0, -1), "left": (-1, 0)}
WAYS |= {"north": (0, 1), "east": (1, 0), "south": (0, -1), "west": (-1, 0)}
SEEN = 1e-4  # of the steps; cells that are visited less have no arrow
NEAR = 0.04  # of the panel; dots closer than this have one text
BINS = 48


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
    return _draw(found, chosen, returns)


def typical_points(found: Frontier) -> list[int]:
    """The first, the last and a middle one of the different points."""
    different = [0]
    for k in range(1, len(found)):
        gap = abs(found[k].std - found[different[-1]].std)
        if gap > 1e-3 * max(found[k].std, found[different[-1]].std):
            different.append(k)
    spread = np.array([found[k].std for k in different])
    middle = different[int(np.argmin(np.abs(spread - (spread[0] + spread[-1]) / 2)))]
    return different if len(different) <= 3 else [different[0], middle, different[-1]]


@style.styled
def _draw(found: Frontier, chosen: list[int], returns: list[Array]) -> Figure:
    ways, cells, columns = action_ways(found.mdp), grid_cells(found.mdp.positions), [3.3, 2.9]
    if ways is not None and cells is not None and cells.max() < MOST_CELLS:
        across, down = cells.max(axis=0) + 1
        columns.insert(1, float(np.clip(1.25 * across / down, 1.4, 3.6)))
    size = sum(columns) + 0.4, max(3.3, 1.35 * len(chosen) + 0.7)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.add_gridspec(len(chosen), len(columns), width_ratios=columns)
    colours = {k: style.line_style(i).colour for i, k in enumerate(chosen)}
    _draw_points(figure.add_subplot(grid[:, 0]), found, colours)
    low = min(float(np.quantile(x, 0.002)) for x in returns)
    high = max(float(np.quantile(x, 0.998)) for x in returns)
    pad = 0.04 * (high - low) or 0.5
    bins = np.linspace(low - pad, high + pad, BINS + 1)
    for row, k in enumerate(chosen):
        if ways is not None and cells is not None and len(columns) == 3:
            _draw_policy(figure.add_subplot(grid[row, 1]), found, found[k], ways, cells, colours[k])
        ax = figure.add_subplot(grid[row, -1])
        _draw_returns(ax, found[k], returns[row], bins, colours[k])
        ax.tick_params(labelbottom=row == len(chosen) - 1)
    ax.set_xlabel("sampled returns")
    return figure


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
        more = f" … {last.penalty:g}" if group.size > 1 else ""
        shade = next((colours[k] for k in group if k in colours), INK)
        left = at[group[0], 0] > 0.5  # texts lie on either side of a line that rises
        side: Any = {"ha": "right", "va": "bottom"} if left else {"ha": "left", "va": "top"}
        shift, words = (-5, 3) if left else (5, -3), minus(f"c = {first.penalty:g}{more}")
        side |= {"color": style.LineStyle(shade, "").text_colour, "textcoords": "offset points"}
        ax.annotate(words, (first.std, first.mean), shift, gid="point", fontsize=7, **side)


def _draw_returns(ax: Axes, point: FrontierPoint, returns: Array, bins: Array, colour: str) -> None:
    """A histogram of the returns, with the exact mean and one standard deviation around it."""
    share = np.histogram(np.clip(returns, bins[0], bins[-1]), bins)[0] / returns.size
    low, high = point.mean - point.std, point.mean + point.std
    ax.axvspan(low, high, color=style.SHADE, lw=0, zorder=0)
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
    ax.set_title(text, color=style.LineStyle(colour, "").text_colour, fontsize=9)


def _draw_policy(
    ax: Axes, found: Frontier, point: FrontierPoint, ways: Array, cells: Indices, colour: str
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


def action_ways(mdp: MDP) -> Array | None:
    """The direction of each action, None if its name says nothing."""
    ways = [WAYS.get(name.lower()) for name in mdp.action_names or [""]]
    return None if None in ways else np.array(ways, dtype=float)
