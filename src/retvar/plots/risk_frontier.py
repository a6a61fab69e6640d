"""The mean–variance frontier: means against spreads, policies as arrows, sampled returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from retvar import arguments
from retvar.errors import InputError
from retvar.exact.sampling import sample_returns
from retvar.format import minus
from retvar.linear import Resolvent
from retvar.mdp import MDP, Policy, weigh_edges
from retvar.plots.axes import label_points
from retvar.plots.notebook_figures import Figure
from retvar.plots.style import COLOURS, GRID, INK, LINE, RC, SHADE, SOFT, LineStyle
from retvar.risk import Frontier, FrontierPoint

__all__ = ["frontier"]

Array = NDArray[np.float64]
MOST_DETAILS = 6  # points with a policy and a distribution of their own
WAYS = {
    "up": (0, 1), "north": (0, 1), "right": (1, 0), "east": (1, 0),
    "down": (0, -1), "south": (0, -1), "left": (-1, 0), "west": (-1, 0),
}  # fmt: skip
SEEN = 1e-4  # of the steps; cells that are visited less have no arrow
BINS = 48


def frontier(
    found: Frontier,
    points: Sequence[int] | None = None,
    *,
    samples: int = 10_000,
    seed: int = 0,
) -> Figure:
    """Draw the result of :func:`retvar.frontier`.

    On the left the mean of the return against its standard deviation, one dot for each penalty.
    Beside it, for some of them, the policy as arrows, if the MDP is a grid whose actions are named
    up, right, down and left (darker cells are visited more often), and sampled returns with their
    exact mean and one standard deviation.

    Parameters
    ----------
    found
        From :func:`retvar.frontier`.
    points
        Indices of the points to draw in detail, at most six; default: up to three different ones.
    samples, seed
        Number of returns to sample for each of them, and the seed.

    Examples
    --------
    >>> import retvar as rv
    >>> found = rv.frontier(rv.domains.windy_cliff(), penalties=[0, 0.5])
    >>> figure = rv.plots.frontier(found, samples=1_000)
    >>> figure.axes[0].get_xlabel()
    'standard deviation of the return'
    """
    arguments.instance("found", found, Frontier, "the result of retvar.frontier")
    chosen = _typical(found) if points is None else _validated(points, found)
    samples = arguments.integer("samples", samples, 1, 10_000_000)
    returns = [
        sample_returns(found.mdp, found[k].policy, start=found.start, samples=samples, seed=seed)
        for k in chosen
    ]
    with matplotlib.rc_context(RC):
        return _draw(found, chosen, returns)


def _typical(found: Frontier) -> list[int]:
    """The first, the last and a middle one of the different points."""
    different = [0]
    for k in range(1, len(found)):
        gap = abs(found[k].std - found[different[-1]].std)
        if gap > 1e-3 * max(found[k].std, found[different[-1]].std):
            different.append(k)
    if len(different) <= 3:
        return different
    spread = np.array([found[k].std for k in different])
    middle = 1 + int(np.argmin(np.abs(spread[1:-1] - (spread[0] + spread[-1]) / 2)))
    return [different[0], different[middle], different[-1]]


def _validated(points: Sequence[int], found: Frontier) -> list[int]:
    given = arguments.indices("points", points, 0, len(found))
    if not 0 < given.size <= MOST_DETAILS:
        raise InputError("points", f"{given.size} of them", f"must be 1 to {MOST_DETAILS}")
    return [int(k) for k in given]


def _draw(found: Frontier, chosen: list[int], returns: list[Array]) -> Figure:
    arrows = action_ways(found.mdp)
    cells = None if arrows is None else grid_cells(found.mdp)
    width = 0.0
    if cells is not None:
        across, down = cells.max(axis=0) + 1
        width = float(np.clip(1.25 * across / down, 1.4, 3.6))
    heights = 1.35 * len(chosen)
    figure = Figure(figsize=(6.6 + width, max(3.3, heights + 0.7)), layout="constrained")
    columns = [3.3, *([width] if width else []), 2.9]
    grid = figure.add_gridspec(len(chosen), len(columns), width_ratios=columns)
    left = figure.add_subplot(grid[:, 0])
    colours = {k: COLOURS[i % len(COLOURS)] for i, k in enumerate(chosen)}
    low = min(float(np.quantile(x, 0.002)) for x in returns)
    high = max(float(np.quantile(x, 0.998)) for x in returns)
    panels: list[Axes] = []
    for row, k in enumerate(chosen):
        if cells is not None and arrows is not None:
            ax = figure.add_subplot(grid[row, 1])
            _draw_policy(ax, found, found[k], arrows, cells, colours[k])
        ax = figure.add_subplot(grid[row, -1], sharex=panels[0] if panels else None)
        _draw_returns(ax, found[k], returns[row], (low, high), colours[k])
        panels.append(ax)
    for ax in panels[:-1]:
        ax.tick_params(labelbottom=False)
    panels[-1].set_xlabel("sampled returns")
    _draw_points(left, found, colours)
    figure.draw_without_rendering()
    _label(left, found, colours)
    return figure


def _draw_points(ax: Axes, found: Frontier, colours: dict[int, str]) -> None:
    std, mean = (np.array([getattr(p, field) for p in found]) for field in ("std", "mean"))
    ax.plot(std, mean, color=SOFT, lw=1.0, zorder=2)
    for k, point in enumerate(found):
        colour = colours.get(k, LINE)
        ends = point.ending is None or point.ending > 0.5
        ax.plot(
            std[k], mean[k], "o", ms=7 if k in colours else 5, zorder=4 if k in colours else 3,
            mec=colour, mfc=colour if ends else "white", mew=1.4,
        )  # fmt: skip
    ax.margins(0.14)
    ax.set(xlabel="standard deviation of the return", ylabel="mean of the return")
    ax.set_title(found.mdp.name or "frontier", fontweight="bold")
    ax.grid(**GRID)
    ax.set_axisbelow(True)
    if any(p.ending is not None and p.ending <= 0.5 for p in found):
        ax.plot([], [], "o", mfc="white", mec=LINE, mew=1.4, label="most episodes never end")
        ax.legend(loc="lower right")


def _label(ax: Axes, found: Frontier, colours: dict[int, str]) -> None:
    """Write the penalties next to the dots; several of one dot together."""
    groups: dict[tuple[float, float], list[int]] = {}
    for k, p in enumerate(found):
        size = max(abs(p.mean), p.std, 1e-300)
        key = round(p.std / size, 4), round(p.mean / size, 4)
        groups.setdefault(key, []).append(k)
    path, texts, shades = [], [], []
    for members in groups.values():
        own = [found[k] for k in members]
        names = [f"{p.penalty:g}" for p in own]
        path.append((own[0].std, own[0].mean))
        texts.append(minus(f"c = {names[0] if len(names) == 1 else f'{names[0]} … {names[-1]}'}"))
        shades.append(next((colours[k] for k in members if k in colours), INK))
    label_points(ax, [np.array(path)], [texts], [INK])
    for text, shade in zip((t for t in ax.texts if t.get_gid() == "point"), shades, strict=True):
        text.set_color(_dark(shade))


def _draw_returns(
    ax: Axes, point: FrontierPoint, returns: Array, limits: tuple[float, float], colour: str
) -> None:
    """A histogram of the returns, with the exact mean and one standard deviation around it."""
    low, high = limits
    pad = 0.04 * (high - low) or 0.5
    bins = np.linspace(low - pad, high + pad, BINS + 1)
    inside = np.clip(returns, bins[0], bins[-1])
    share = np.histogram(inside, bins)[0] / returns.size
    ax.axvspan(point.mean - point.std, point.mean + point.std, color=SHADE, lw=0, zorder=0)
    ax.stairs(share, bins, fill=True, color=colour, alpha=0.75, lw=0, zorder=2)
    ax.axvline(point.mean, color=INK, lw=1.0, zorder=3)
    ax.set_xlim(bins[0], bins[-1])
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    size = max(abs(point.mean), point.std) or 1.0
    decimals = int(np.clip(3 - np.floor(np.log10(size)), 0, 9))
    std = point.std if point.std > 1e-6 * size else 0.0
    text = minus(f"c = {point.penalty:g}:  {point.mean:.{decimals}f} ± {std:.{decimals}f}")
    if point.ending is not None and point.ending < 1:
        text += f"; {point.ending:.0%} end"
    ax.set_title(text, color=_dark(colour), fontsize=9)


def _draw_policy(
    ax: Axes,
    found: Frontier,
    point: FrontierPoint,
    ways: Array,
    cells: NDArray[np.intp],
    colour: str,
) -> None:
    """Arrows for the actions in the cells visited; cells without a state are dark."""
    mdp, pi = found.mdp, point.policy.probabilities
    share = discounted_visits(mdp, point.policy, found.start)
    across, down = (int(x) + 1 for x in cells.max(axis=0))
    ax.add_patch(Rectangle((-0.5, -0.5), across, down, color="#c9c9c9", lw=0, zorder=0))
    strength = np.sqrt(share / share.max())
    for s, (x, y) in enumerate(cells):
        ax.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, fc="white", ec="#dddddd", lw=0.5))
        ax.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, fc=colour, lw=0, alpha=0.5 * strength[s]))
        if share[s] <= SEEN * share.sum():
            continue
        for a in np.flatnonzero(pi[s] > 0.01):
            dx, dy = ways[a] * 0.36 * np.sqrt(pi[s, a])
            style: Any = {"arrowstyle": "-|>", "color": INK, "lw": 1.0, "mutation_scale": 7}
            style |= {"shrinkA": 0, "shrinkB": 0, "alpha": 0.35 + 0.65 * float(strength[s])}
            ax.annotate("", (x + dx, y + dy), (x - dx, y - dy), arrowprops=style)
    ax.set(xlim=(-0.5, across - 0.5), ylim=(-0.5, down - 0.5), aspect="equal")
    ax.set_axis_off()


def _dark(colour: str) -> Any:
    """A colour dark enough for text."""
    return LineStyle(colour, "").text_colour


def discounted_visits(mdp: MDP, policy: Policy, start: Array) -> Array:
    """Discounted visits of each state."""
    edges = weigh_edges(mdp, policy)
    system = Resolvent(edges.matrix(edges.gamma))
    return np.maximum(system.solve(np.asarray(start), transpose=True).x, 0.0)


def action_ways(mdp: MDP) -> Array | None:
    """The direction of each action, None if its name says nothing."""
    names = [name.lower() for name in mdp.action_names or ()]
    if not names or any(name not in WAYS for name in names):
        return None
    return np.array([WAYS[name] for name in names], dtype=float)


def grid_cells(mdp: MDP) -> NDArray[np.intp] | None:
    """Column and row (from below) of each state, None if positions are no cells."""
    at = mdp.positions
    if at is None or not np.array_equal(at, np.round(at)) or len(np.unique(at, axis=0)) < len(at):
        return None
    cells = (at - at.min(axis=0)).astype(np.intp)
    return cells if cells.max() < 60 else None
