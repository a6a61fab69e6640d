"""An MDP drawn as a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path
from numpy.typing import NDArray

from retvar.errors import InputError
from retvar.mdp import MDP
from retvar.plots.compose import LABEL, NAME, SMALL, Drawing, compose
from retvar.plots.links import Link, Plan, plan
from retvar.plots.routing import Nodes
from retvar.plots.style import INK, LINE, LINE_SPACING, POINT, RC, SOFT, text_size

__all__ = ["draw_mdp"]

Array = NDArray[np.float64]
MOST_STATES = 60
NOTE = 7.5  # points
MARGIN = 0.08  # inches around the drawing
NARROWEST = 2.4  # inches of a figure that has notes
CUBIC = [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4]


def draw_mdp(mdp: MDP, policy: object = None, ax: Axes | None = None) -> Figure:
    """Draw an MDP as a graph: states are circles, ends of episodes are squares, edges are arrows.

    Every edge is labelled with its probability under each policy shown and with its reward (mean
    ± standard deviation). Edges that no policy shown takes are left out. γ and λ stand in the
    states, or once below where they are the same in all. In crowded drawings, edges alike are
    merged and what most edges share is written once below.

    Parameters
    ----------
    mdp
        The MDP, of at most 60 states. Its ``positions`` are used where it has any.
    policy
        A policy, or a list of names of policies; default: all of the MDP's.
    ax
        Axes to draw in; default: a new figure of the size that the drawing needs.

    Returns
    -------
    Figure
        The figure drawn in; see :func:`save`.

    Examples
    --------
    >>> import retvar as rv
    >>> figure = rv.plots.draw_mdp(rv.domains.complex_mdp())
    >>> sum((patch.get_gid() or "").startswith("edge") for patch in figure.axes[0].patches)
    14
    """
    if mdp.n_states > MOST_STATES:
        remedy = f"too many to draw as a graph (at most {MOST_STATES}); see plots.solution"
        raise InputError("states", mdp.n_states, remedy)
    said = plan(mdp, policy)
    drawing = compose(mdp, said)
    low, high = drawing.bounds
    note = _wrapped(said.notes, max(NARROWEST, float(high[0] - low[0])))
    low, high = _page(low, high, note)
    with matplotlib.rc_context(RC):
        if ax is None:
            width, height = (float(x) for x in high - low)
            ax = Figure(figsize=(width, height)).add_axes((0, 0, 1, 1))
        scale = _frame(ax, low, high)
        _arrows(ax, drawing, said.links, scale)
        _nodes(ax, mdp, said, drawing.nodes, scale)
        _texts(ax, drawing, scale)
        middle = float(low[0] + high[0]) / 2
        _write(ax, middle, low[1] + MARGIN, note, NOTE * scale, va="bottom", gid="note")
    root = ax.figure
    return root if isinstance(root, Figure) else root.figure


def _wrapped(notes: Sequence[str], width: float) -> str:
    """Notes in as few lines as fit."""
    lines: list[str] = []
    for note in notes:
        longer = f"{lines[-1]};  {note}" if lines else note
        if lines and text_size(longer, NOTE)[0] <= width:
            lines[-1] = longer
        else:
            lines.append(note)
    return "\n".join(lines)


def _page(low: Array, high: Array, note: str) -> tuple[Array, Array]:
    """Corners of the page: the drawing, the notes below it, and a margin."""
    width, height = text_size(note, NOTE) if note else (0.0, -0.12)
    wider = max(0.0, width - float(high[0] - low[0])) / 2
    below, around = np.array([wider, height + 0.12]), np.array([wider, 0.0])
    return low - below - MARGIN, high + around + MARGIN


def _frame(ax: Axes, low: Array, high: Array) -> float:
    """Make the axes show the page; return by how much it is enlarged."""
    ax.set_axis_off()
    ax.set_aspect("equal")
    ax.set_xlim(low[0], high[0])
    ax.set_ylim(low[1], high[1])
    root = ax.figure if isinstance(ax.figure, Figure) else ax.figure.figure
    box = ax.get_position(original=True)
    size = root.get_size_inches() * [box.width, box.height]
    return float(np.min(size / (high - low)))


def _arrows(ax: Axes, drawing: Drawing, links: Sequence[Link], scale: float) -> None:
    for k, curve in enumerate(drawing.arrows):
        is_edge = k < len(links)
        arrow = FancyArrowPatch(
            path=Path(curve, CUBIC),
            arrowstyle="-|>,head_length=0.55,head_width=0.25",
            mutation_scale=8.5 * scale,
            linewidth=(0.9 if is_edge else 1.3) * scale,
            color=LINE if is_edge else SOFT,
            capstyle="butt",
            joinstyle="miter",
            zorder=2,
        )
        gid = "edge-" + "-".join(map(str, links[k].edges)) if is_edge else "start"
        arrow.set_gid(gid)
        ax.add_patch(arrow)


def _nodes(ax: Axes, mdp: MDP, said: Plan, nodes: Nodes, scale: float) -> None:
    for i, ((x, y), size) in enumerate(zip(nodes.centre, nodes.size, strict=True)):
        if nodes.square[i]:
            box = FancyBboxPatch(
                (x - size, y - size),
                2 * size,
                2 * size,
                boxstyle="round,pad=0,rounding_size=0.03",
                facecolor=INK,
                edgecolor="none",
                zorder=4,
                gid="end",
            )
            ax.add_patch(box)
            _write(ax, x, y, "end", SMALL * scale, color="white")
        else:
            look: dict[str, Any] = {
                "facecolor": "#f3f6fa",
                "edgecolor": INK,
                "linewidth": 1.1 * scale,
            }
            ax.add_patch(Circle((x, y), size, zorder=4, gid=f"state-{i}", **look))
            _inside(ax, x, y, mdp.state_name(i), said.inside[i], scale)


def _inside(ax: Axes, x: float, y: float, name: str, small: str, scale: float) -> None:
    """The name of a state, and γ and λ below it."""
    height = text_size(name, NAME, "bold")[1]
    below = text_size(small, SMALL)[1] + 0.03 if small else 0.0
    _write(ax, x, y + below / 2, name, NAME * scale, weight="bold")
    if small:
        _write(ax, x, y - height / 2 - 0.015, small, SMALL * scale)


def _texts(ax: Axes, drawing: Drawing, scale: float) -> None:
    for (x, y), text in zip(drawing.labels.centre, drawing.texts, strict=True):
        if text:
            look = {"facecolor": "white", "edgecolor": "none", "pad": 0.015 / POINT * scale}
            _write(ax, x, y, text, LABEL * scale, bbox=look, zorder=3, gid="label")


def _write(ax: Axes, x: float, y: float, text: str, size: float, **look: Any) -> None:
    settings: dict[str, Any] = {
        "ha": "center",
        "va": "center",
        "linespacing": LINE_SPACING,
        "zorder": 5,
    } | look
    ax.text(x, y, text, fontsize=size, **settings)
