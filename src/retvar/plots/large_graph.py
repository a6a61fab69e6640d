"""The graph of an MDP of many states: arrows without labels, darker where they are more probable.

A layout of networkx, or the MDP's own positions, is scaled and its nodes are moved apart; a long
line is folded into rows. What the arrows and colours mean is written below.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, Rectangle
from numpy.typing import NDArray

from retvar.format import count, short_number
from retvar.mdp import END, MDP, Policy
from retvar.plots import notebook_figures
from retvar.plots.graph_layout import networkx_layout
from retvar.plots.style import BLUE, INK, POINT, Array, shown, text_size, wrap_text

__all__ = ["Moves", "draw_large_graph", "moves_of"]

MAX_ARROWS = 400  # with more, each state keeps its most probable ones
NAME_SIZE, NOTE_SIZE = 7.5, 8.0  # points
LONGEST = 8  # characters of a name
MIN_RADIUS, MAX_RADIUS = 0.14, 0.26  # inches
GAP = 0.24  # inches between states
SPACING = 0.85  # inches from a state to its nearest neighbour, at the median
MARGIN = 0.12  # inches around the drawing
WIDEST = 12.0  # inches, beyond which a line is folded
FLAT = 0.12  # height of a layout relative to its width, below which it is a line
ROUNDS = 300  # of moving states apart
PALE, DARK = np.array([0.85, 0.85, 0.87]), np.array([0.2, 0.2, 0.22])
BEND = 0.13  # of arrows, relative to their length


@dataclass(frozen=True)
class Moves:
    """Probabilities of moving between states under one policy, those of equal ends added."""

    source: NDArray[np.intp]
    target: NDArray[np.intp]
    probability: Array
    ends: Array  #: probability that the episode ends, of each state
    reward: Array  #: expected reward of the next step, of each state
    policy: str  #: its name, where there is more than one


def moves_of(mdp: MDP, policy: object = None) -> Moves:
    """Collect the moves of an MDP under a policy, the first of several.

    >>> import retvar as rv
    >>> moves = moves_of(rv.domains.chain(length=3))
    >>> moves.source.tolist(), moves.target.tolist(), moves.ends.tolist()
    ([0, 1], [1, 2], [0.0, 0.0, 1.0])
    """
    named = isinstance(policy, list | tuple) and policy and all(isinstance(n, str) for n in policy)
    first = policy[0] if named else policy  # type: ignore[index]
    chosen = mdp.policy(first)
    e = mdp.edges
    p = np.asarray(chosen.probabilities[e.state, e.action] * e.probability)
    n = mdp.n_states
    ends = _summed(e.state, p * (e.next_state == END), n)
    reward = _summed(e.state, p * e.reward, n)
    inside = (e.next_state != END) & (p > 0)
    key, at = np.unique(e.state[inside] * n + e.next_state[inside], return_inverse=True)
    total = _summed(at, p[inside], key.size)
    return Moves(key // n, key % n, total, ends, reward, _policy_name(mdp, first, chosen))


def _summed(at: Any, weights: Array, size: int) -> Array:
    """Sums of weights by index."""
    return np.asarray(np.bincount(at, weights, size), dtype=np.float64)


def _policy_name(mdp: MDP, given: object, chosen: Policy) -> str:
    if isinstance(given, str):
        return given
    known = [name for name, each in mdp.policies.items() if each is chosen]
    return known[0] if known and len(mdp.policies) > 1 else ""


def draw_large_graph(mdp: MDP, policy: object, ax: Axes | None) -> Figure:
    """Draw the graph of some 30 to 100 states.

    >>> import retvar as rv
    >>> figure = draw_large_graph(rv.domains.random_walk(40), None, None)
    >>> [text.get_text() for text in figure.axes[0].texts if text.get_gid() == "note"][0][:40]
    '40 states, so without labels; arrows are'
    """
    moves = moves_of(mdp, policy)
    kept, most = _kept(moves, mdp.n_states)
    names = [shown(mdp.state_name(s), LONGEST) for s in range(mdp.n_states)]
    radius, size = _node_size(names)
    centres = _centres(mdp, moves, radius)
    low, high = centres.min(axis=0) - radius - MARGIN, centres.max(axis=0) + radius + MARGIN
    high[1] += 0.1  # rings
    note = wrap_text(_note(mdp, moves, most), NOTE_SIZE, max(4.0, high[0] - low[0]))
    width, height = text_size(note, NOTE_SIZE)
    wider = max(0.0, width + 2 * MARGIN - (high[0] - low[0])) / 2
    low, high = low - np.array([wider, height + MARGIN]), high + np.array([wider, 0.0])
    if ax is None:
        ax = notebook_figures.Figure(figsize=tuple(high - low)).add_axes((0, 0, 1, 1))
    scale = _prepare(ax, low, high)
    _draw_arrows(ax, moves, kept, centres, radius, scale)
    _draw_states(ax, mdp, moves, centres, radius)
    for (x, y), name in zip(centres, names, strict=True):
        ax.text(x, y, name, fontsize=size * scale, ha="center", va="center", zorder=6)
    middle = (low[0] + high[0]) / 2
    style: Any = {"ha": "center", "va": "bottom", "fontsize": NOTE_SIZE * scale, "gid": "note"}
    ax.text(middle, low[1] + MARGIN / 2, note, **style)
    parent: Any = ax.figure
    return parent if isinstance(parent, Figure) else parent.figure


def _prepare(ax: Axes, low: Array, high: Array) -> float:
    """Let axes show a rectangle in inches; return the scale of text and lines."""
    ax.set_axis_off()
    ax.set_aspect("equal")
    ax.set_xlim(low[0], high[0])
    ax.set_ylim(low[1], high[1])
    box, figure = ax.get_position(original=True), ax.figure
    size = np.array(figure.bbox.size) / figure.dpi * [box.width, box.height]
    return float(np.min(size / (high - low)))


def _kept(moves: Moves, states: int) -> tuple[NDArray[np.intp], int]:
    """The arrows to draw, the least probable first, and how many of each state; 0: all."""
    apart = np.flatnonzero(moves.source != moves.target)
    order = apart[np.argsort(moves.probability[apart], kind="stable")]
    if order.size <= MAX_ARROWS:
        return order, 0
    most = max(1, MAX_ARROWS // states)
    place: dict[int, int] = {}
    chosen = []
    for k in order[::-1].tolist():
        source = int(moves.source[k])
        place[source] = place.get(source, 0) + 1
        if place[source] <= most:
            chosen.append(k)
    return np.array(chosen[::-1], dtype=np.intp), most


def _note(mdp: MDP, moves: Moves, most: int) -> str:
    """What is drawn, and what it means."""
    under = f" under {shown(moves.policy)}" if moves.policy else ""
    parts = [f"{mdp.n_states} states, so without labels; arrows are darker where more probable"]
    parts[0] += under
    if most:
        parts.append(f"only the {count(most, 'most probable arrow')} of each state")
    if np.any(moves.source == moves.target):
        parts.append("ring: it may stay")
    if moves.ends.any():
        parts.append("square: the episode may end")
    if _start(mdp).size:
        parts.append("thick border: start")
    if np.ptp(moves.reward) > 0:
        span = float(np.abs(moves.reward).max())
        parts.append(f"blue to red: expected reward from {short_number(-span)} to "
                     f"{short_number(span)}")  # fmt: skip
    return "; ".join(parts)


def _start(mdp: MDP) -> NDArray[np.intp]:
    """The start states, unless all are."""
    found = np.flatnonzero(mdp.start)
    return found if found.size < mdp.n_states else found[:0]


# ---------------------------------------------------------------------- places


def _node_size(names: list[str]) -> tuple[float, float]:
    """The radius of all states, and the size of their names."""
    half = max(float(np.hypot(*text_size(name, NAME_SIZE))) for name in names) / 2
    radius = float(np.clip(half + 0.03, MIN_RADIUS, MAX_RADIUS))
    return radius, NAME_SIZE * min(1.0, (radius - 0.02) / half) if half else NAME_SIZE


def _centres(mdp: MDP, moves: Moves, radius: float) -> Array:
    """Centres of the states in inches, none closer than two radii and a gap."""
    places = mdp.positions
    n = mdp.n_states
    if places is None or len(np.unique(places, axis=0)) < n:
        pairs = list(zip(moves.source.tolist(), moves.target.tolist(), strict=True))
        places = networkx_layout(n, pairs)
    places = places - places.mean(axis=0)
    away = np.hypot(*(places[:, None] - places[None]).transpose(2, 0, 1))
    np.fill_diagonal(away, np.inf)
    nearest = float(np.median(away.min(axis=1))) or 1.0
    places = places * (SPACING / nearest)
    extent = np.ptp(places, axis=0)
    if extent[0] > WIDEST and extent[1] <= FLAT * extent[0]:
        return _folded(places)
    return _moved_apart(places, 2 * radius + GAP)


def _folded(places: Array) -> Array:
    """A line of states in rows, from left to right and back.

    >>> line = np.stack([np.arange(30.0), np.zeros(30)], axis=1)
    >>> (_folded(line)[[0, 13, 14, 29]] + 0.0).round(2).tolist()
    [[0.0, 0.0], [11.05, 0.0], [11.05, -0.85], [0.85, -1.7]]
    """
    columns = int(WIDEST // SPACING)
    rank = np.argsort(np.argsort(places[:, 0], kind="stable"))
    row, column = rank // columns, rank % columns
    column = np.where(row % 2 == 1, columns - 1 - column, column)
    return SPACING * np.stack([column, -row], axis=1).astype(np.float64)


def _moved_apart(places: Array, least: float) -> Array:
    """Push states that are closer than `least` apart, a little at a time."""
    found = places + 1e-6 * np.stack([np.sin(np.arange(len(places))), np.arange(len(places))], 1)
    for _ in range(ROUNDS):
        offset = found[:, None] - found[None]
        away = np.hypot(offset[..., 0], offset[..., 1])
        np.fill_diagonal(away, np.inf)
        lacking = np.maximum(least - away, 0)
        if not lacking.any():
            break
        found = found + np.sum(offset * (0.5 * lacking / away)[..., None], axis=1)
    return np.asarray(found)


# ---------------------------------------------------------------------- drawing


def _shade(probability: float) -> tuple[float, float, float]:
    """The colour of an arrow: dark if it is probable."""
    red, green, blue = PALE + (DARK - PALE) * np.sqrt(min(1.0, probability))
    return float(red), float(green), float(blue)


def _draw_arrows(
    ax: Axes, moves: Moves, kept: NDArray[np.intp], centres: Array, radius: float, scale: float
) -> None:
    """Draw an arc from state to state, the most probable on top."""
    shrink = (radius + 0.015) / POINT * scale
    style: Any = {"shrinkA": shrink, "shrinkB": shrink, "capstyle": "butt"}
    style |= {"arrowstyle": "-|>,head_length=0.5,head_width=0.22", "mutation_scale": 7.5 * scale}
    for rank, k in enumerate(kept.tolist()):
        p, ends = float(moves.probability[k]), (int(moves.source[k]), int(moves.target[k]))
        arrow = FancyArrowPatch(
            tuple(centres[ends[0]]), tuple(centres[ends[1]]), color=_shade(p),
            lw=(0.5 + 0.8 * p) * scale, connectionstyle=f"arc3,rad={BEND}",
            zorder=2 + rank / (kept.size + 1), gid=f"edge-{ends[0]}-{ends[1]}", **style,
        )  # fmt: skip
        ax.add_patch(arrow)


def _draw_states(ax: Axes, mdp: MDP, moves: Moves, centres: Array, radius: float) -> None:
    """Draw circles in the colour of their reward, rings for loops, squares for ends."""
    span = float(np.abs(moves.reward).max())
    varies = float(np.ptp(moves.reward)) > 0
    colours = colormaps["coolwarm"](0.5 + 0.5 * moves.reward / (span or 1.0))[:, :3]
    colours = 0.45 * colours + 0.55 if varies else np.tile([0.95, 0.965, 0.98], (len(centres), 1))
    start = set(_start(mdp).tolist())
    stays = {
        int(s): float(p)
        for s, t, p in zip(moves.source, moves.target, moves.probability, strict=True)
        if s == t
    }
    for k, (x, y) in enumerate(centres.tolist()):
        if k in stays:
            ring = (x, y + radius + 0.03)
            ax.add_patch(Circle(ring, 0.075, fill=False, ec=_shade(stays[k]), lw=1.0, zorder=3.5))
        edge = {"ec": BLUE, "lw": 2.4} if k in start else {"ec": INK, "lw": 0.8}
        circle: Any = {"fc": tuple(colours[k]), "zorder": 4, "gid": f"state-{k}", **edge}
        ax.add_patch(Circle((x, y), radius, **circle))
        if moves.ends[k] > 0:
            corner = (x + 0.62 * radius, y - 0.62 * radius - 0.09)
            style: Any = {"fc": INK, "ec": "white", "lw": 0.6, "zorder": 5, "gid": "end"}
            ax.add_patch(Rectangle(corner, 0.09, 0.09, **style))
