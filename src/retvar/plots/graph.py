"""An MDP drawn as a graph.

``graph_content`` collects what is drawn, ``graph_layout`` places the nodes, ``graph_edges`` routes
the arrows and places their labels, and this module draws the result. Many states are drawn by
``large_graph`` and ``transition_matrix``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path

from retvar import arguments
from retvar.mdp import MDP
from retvar.plots import notebook_figures
from retvar.plots.graph_content import Arrow, GraphContent, graph_content
from retvar.plots.graph_edges import bezier_points, place_labels, route
from retvar.plots.graph_layout import (
    DISCOUNT_SIZE,
    LABEL_SIZE,
    NAME_SIZE,
    Nodes,
    place_nodes,
    place_states,
)
from retvar.plots.large_graph import draw_large_graph
from retvar.plots.style import INK, LINE, LINE_SPACING, POINT, RC, SOFT, Array, text_size
from retvar.plots.transition_matrix import draw_matrix

__all__ = ["draw_mdp", "how_drawn"]

MAX_LABELLED_STATES = 30  # with more, arrows have no labels
MAX_STATES = 100  # with more, the graph becomes a matrix
SCALES = (1.0, 1.1, 1.2, 1.35, 1.5, 1.7, 1.9)  # of distances, tried until no label overlaps
MARGIN = 0.08  # inches around the drawing
MIN_NOTE_WIDTH = 2.4  # inches
HEAD = "-|>,head_length=0.55,head_width=0.25"
CUBIC = [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4]


@dataclass(frozen=True)
class Drawing:
    """The content of a graph with the place of each part, in inches."""

    content: GraphContent
    nodes: Nodes
    curves: Array  #: of the arrows [arrow, 4, xy]
    labels: Array  #: centres of their labels
    half: Array  #: half the size of each label
    faults: tuple[int, int]  #: labels that overlap something, labels that only cover an arrow

    @property
    def bounds(self) -> tuple[Array, Array]:
        """Lower left and upper right corner."""
        points = bezier_points(self.curves, np.linspace(0, 1, 41)).reshape(-1, 2)
        size = self.nodes.half + self.nodes.radius[:, None]
        low = [points, self.nodes.centre - size, self.labels - self.half]
        high = [points, self.nodes.centre + size, self.labels + self.half]
        return np.concatenate(low).min(axis=0), np.concatenate(high).max(axis=0)


def draw_mdp(mdp: MDP, policy: object = None, ax: Axes | None = None) -> Figure:
    """Draw an MDP as a graph: states are circles, ends of episodes are squares, edges are arrows.

    Up to 30 states have labels at their edges. Of up to 100 states the arrows have none and are
    darker where they are more probable. Of more states the transitions are drawn as a matrix. The
    figure says so.

    The label of an edge gives its probability under each policy and its reward (mean ± standard
    deviation). Edges that no policy takes are left out. γ and λ are written in the states, or once
    below if all states share them. In crowded graphs equal edges are merged, and what most edges
    share is written once below.

    Parameters
    ----------
    mdp
        Its ``positions`` are used if it has any; otherwise networkx arranges the states.
    policy
        A policy, or a list of names of policies; default: all of the MDP's. Without labels, the
        first of them.
    ax
        Axes to draw in; default: a new figure of the size that the drawing needs.

    Examples
    --------
    >>> import retvar as rv
    >>> figure = rv.plots.draw_mdp(rv.domains.complex_mdp())
    >>> sum((patch.get_gid() or "").startswith("edge") for patch in figure.axes[0].patches)
    14
    """
    arguments.instance("mdp", mdp, MDP, "an MDP")
    if ax is not None:
        arguments.instance("ax", ax, Axes, "the axes of a figure of matplotlib")
    if mdp.n_states > MAX_LABELLED_STATES:
        draw = draw_matrix if mdp.n_states > MAX_STATES else draw_large_graph
        with matplotlib.rc_context(RC):
            return draw(mdp, policy, ax)
    drawing = _arrange(graph_content(mdp, policy), mdp.positions)
    with matplotlib.rc_context(RC):
        return _draw(drawing, ax)


def how_drawn(states: int) -> str:
    """What :func:`draw_mdp` makes of many states, in one line; empty if all is drawn.

    >>> how_drawn(30), how_drawn(500)
    ('', '500 states are many for a graph: drawn as a matrix of probabilities')
    """
    if states > MAX_STATES:
        return f"{states:,} states are many for a graph: drawn as a matrix of probabilities"
    if states > MAX_LABELLED_STATES:
        return f"{states} states are many for a graph: its arrows have no labels"
    return ""


def _arrange(content: GraphContent, positions: Array | None) -> Drawing:
    """Enlarge the layout until no label overlaps anything; if none fits, return the best.

    >>> import retvar as rv
    >>> _arrange(graph_content(rv.domains.chain()), None).faults
    (0, 0)
    """
    centres = place_states(content, positions)
    attempts = []
    for scale in SCALES:
        attempts.append(_arrange_at(content, centres * scale))
        if attempts[-1].faults == (0, 0):
            break
    return min(attempts, key=lambda drawing: drawing.faults)


def _arrange_at(content: GraphContent, centres: Array) -> Drawing:
    """The drawing with states at these centres."""
    nodes = place_nodes(content, centres)
    sizes = np.array([text_size(arrow.text, LABEL_SIZE) for arrow in content.arrows])
    curves = route(content.arrows, sizes, nodes)
    labels, faults = place_labels(curves, sizes / 2, nodes)
    return Drawing(content, nodes, curves, labels, sizes / 2, faults)


def _draw(drawing: Drawing, ax: Axes | None) -> Figure:
    """Draw into axes, or into a new figure of the right size, with the notes below."""
    content = drawing.content
    low, high = drawing.bounds
    note = _join_notes(content.notes, max(MIN_NOTE_WIDTH, high[0] - low[0]))
    width, height = text_size(note, LABEL_SIZE)
    wider = max(0.0, width - (high[0] - low[0])) / 2
    low = low - np.array([wider, height + 0.12 * bool(note)]) - MARGIN
    high = high + np.array([wider, 0.0]) + MARGIN
    if ax is None:
        ax = notebook_figures.Figure(figsize=tuple(high - low)).add_axes((0, 0, 1, 1))
    canvas = _Canvas(ax, low, high)
    for arrow, curve in zip(content.arrows, drawing.curves, strict=True):
        canvas.arrow(arrow, curve)
    n = len(content.names)
    for k in range(n):
        canvas.state(k, drawing)
    for k, (_, text) in enumerate(content.markers, n):
        canvas.marker(text, drawing.nodes.centre[k], drawing.nodes.half[k])
    for arrow, centre in zip(content.arrows, drawing.labels, strict=True):
        canvas.label(arrow.text, centre)
    place = (low[0] + high[0]) / 2, low[1] + MARGIN
    canvas.text(place, note, LABEL_SIZE, va="bottom", gid="note")
    return canvas.figure


def _join_notes(notes: list[str], width: float) -> str:
    """Notes in as few lines of `width` inches as possible."""
    lines: list[str] = []
    for note in notes:
        longer = f"{lines[-1]};  {note}" if lines else note
        if lines and text_size(longer, LABEL_SIZE)[0] <= width:
            lines[-1] = longer
        else:
            lines.append(note)
    return "\n".join(lines)


class _Canvas:
    """Axes that show a rectangle given in inches; line widths and text scale with it."""

    def __init__(self, ax: Axes, low: Array, high: Array) -> None:
        parent = ax.figure
        self.figure = parent if isinstance(parent, Figure) else parent.figure
        self.ax = ax
        ax.set_axis_off()
        ax.set_aspect("equal")
        ax.set_xlim(low[0], high[0])
        ax.set_ylim(low[1], high[1])
        box = ax.get_position(original=True)
        size = self.figure.get_size_inches() * [box.width, box.height]
        self.scale = float(np.min(size / (high - low)))

    def arrow(self, arrow: Arrow, curve: Array) -> None:
        style: Any = {"lw": 1.3 * self.scale, "color": SOFT, "gid": "start"}
        if arrow.edges:
            gid = "-".join(map(str, ("edge", *arrow.edges)))
            style = {"lw": 0.9 * self.scale, "color": LINE, "gid": gid}
        style |= {"capstyle": "butt", "joinstyle": "miter", "zorder": 2}
        style |= {"arrowstyle": HEAD, "mutation_scale": 8.5 * self.scale}
        self.ax.add_patch(FancyArrowPatch(path=Path(curve, CUBIC), **style))

    def state(self, k: int, drawing: Drawing) -> None:
        (x, y), radius = drawing.nodes.centre[k], float(drawing.nodes.radius[k])
        style: Any = {"fc": "#f3f6fa", "ec": INK, "lw": 1.1 * self.scale}
        self.ax.add_patch(Circle((x, y), radius, zorder=4, gid=f"state-{k}", **style))
        name, small = drawing.content.names[k], drawing.content.discounts[k]
        below = text_size(small, DISCOUNT_SIZE)[1] + 0.03 * bool(small)
        self.text((x, y + below / 2), name, NAME_SIZE, weight="bold")
        self.text((x, y - text_size(name, NAME_SIZE)[1] / 2 - 0.015), small, DISCOUNT_SIZE)

    def marker(self, text: str, centre: Array, half: Array) -> None:
        if text != "end":
            self.label(text, centre)
            return
        style: Any = {"boxstyle": "round,pad=0,rounding_size=0.03", "fc": INK, "ec": "none"}
        (x, y), (width, height) = centre - half, 2 * half
        self.ax.add_patch(FancyBboxPatch((x, y), width, height, zorder=4, gid="end", **style))
        self.text(centre, text, DISCOUNT_SIZE, color="white")

    def label(self, text: str, centre: Array) -> None:
        pad = 0.015 / POINT * self.scale
        box = {"facecolor": "white", "edgecolor": "none", "pad": pad}
        self.text(centre, text, LABEL_SIZE, bbox=box, zorder=3, gid="label")

    def text(self, centre: Sequence[float] | Array, text: str, size: float, **more: Any) -> None:
        style: Any = {"ha": "center", "va": "center", "zorder": 5} | more
        style |= {"fontsize": size * self.scale, "linespacing": LINE_SPACING}
        if text:
            self.ax.text(centre[0], centre[1], text, **style)
