"""Put a drawing of an MDP on the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path

from retvar.plots import style
from retvar.plots.curves import points
from retvar.plots.layout import Nodes
from retvar.plots.links import Link, Plan
from retvar.plots.style import LABEL, NAME, SMALL, Array, text_size

__all__ = ["Drawing", "paint"]

MARGIN = 0.08  # inches around the drawing
NARROWEST = 2.4  # inches that notes may take up in any case
HEAD = "-|>,head_length=0.55,head_width=0.25"
CUBIC = [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4]


@dataclass(frozen=True)
class Drawing:
    """Everything in its place, in inches."""

    said: Plan
    nodes: Nodes
    arrows: Array  #: a curve a link [link, 4, xy]
    labels: Array  #: the centre of the text of each link
    half: Array  #: half the size of each text
    faults: tuple[int, int]  #: texts that overlap something, and that cover an arrow

    @property
    def bounds(self) -> tuple[Array, Array]:
        """Lower left and upper right corner of all that is drawn."""
        way = points(self.arrows, np.linspace(0, 1, 41)).reshape(-1, 2)
        size = self.nodes.half + self.nodes.radius[:, None]
        low = [way, self.nodes.centre - size, self.labels - self.half]
        high = [way, self.nodes.centre + size, self.labels + self.half]
        return np.concatenate(low).min(axis=0), np.concatenate(high).max(axis=0)


def paint(drawing: Drawing, ax: Axes | None) -> Figure:
    """Draw into axes, or into a new figure of the right size, with the notes below."""
    said = drawing.said
    low, high = drawing.bounds
    note = _wrapped(said.notes, max(NARROWEST, high[0] - low[0]))
    width, height = text_size(note, LABEL)
    wider = max(0.0, width - (high[0] - low[0])) / 2
    low = low - np.array([wider, height + 0.12 * bool(note)]) - MARGIN
    high = high + np.array([wider, 0.0]) + MARGIN
    if ax is None:
        ax = Figure(figsize=tuple(high - low)).add_axes((0, 0, 1, 1))
    pen = _Pen(ax, low, high)
    for link, curve in zip(said.links, drawing.arrows, strict=True):
        pen.arrow(link, curve)
    n = len(said.names)
    for k in range(n):
        pen.state(k, drawing)
    for k, (_, text) in enumerate(said.marks, n):
        pen.mark(text, drawing.nodes.centre[k], drawing.nodes.half[k])
    for link, centre in zip(said.links, drawing.labels, strict=True):
        pen.label(link.text, centre)
    pen.write(((low[0] + high[0]) / 2, low[1] + MARGIN), note, LABEL, va="bottom", gid="note")
    return pen.figure


def _wrapped(notes: list[str], width: float) -> str:
    """Notes in as few lines as fit."""
    lines: list[str] = []
    for note in notes:
        longer = f"{lines[-1]};  {note}" if lines else note
        if lines and text_size(longer, LABEL)[0] <= width:
            lines[-1] = longer
        else:
            lines.append(note)
    return "\n".join(lines)


class _Pen:
    """Draws in axes that show the page between two corners, enlarged as far as they have room."""

    def __init__(self, ax: Axes, low: Array, high: Array) -> None:
        root = ax.figure
        self.figure = root if isinstance(root, Figure) else root.figure
        self.ax = ax
        ax.set_axis_off()
        ax.set_aspect("equal")
        ax.set_xlim(low[0], high[0])
        ax.set_ylim(low[1], high[1])
        box = ax.get_position(original=True)
        size = self.figure.get_size_inches() * [box.width, box.height]
        self.scale = float(np.min(size / (high - low)))

    def arrow(self, link: Link, curve: Array) -> None:
        look: Any = {"lw": 1.3 * self.scale, "color": style.SOFT, "gid": "start"}
        if link.edges:
            gid = "-".join(map(str, ("edge", *link.edges)))
            look = {"lw": 0.9 * self.scale, "color": style.LINE, "gid": gid}
        look |= {"capstyle": "butt", "joinstyle": "miter", "zorder": 2}
        look |= {"arrowstyle": HEAD, "mutation_scale": 8.5 * self.scale}
        self.ax.add_patch(FancyArrowPatch(path=Path(curve, CUBIC), **look))

    def state(self, k: int, drawing: Drawing) -> None:
        (x, y), radius = drawing.nodes.centre[k], float(drawing.nodes.radius[k])
        look: Any = {"fc": "#f3f6fa", "ec": style.INK, "lw": 1.1 * self.scale}
        self.ax.add_patch(Circle((x, y), radius, zorder=4, gid=f"state-{k}", **look))
        name, small = drawing.said.names[k], drawing.said.inside[k]
        below = text_size(small, SMALL)[1] + 0.03 * bool(small)
        self.write((x, y + below / 2), name, NAME, weight="bold")
        self.write((x, y - text_size(name, NAME)[1] / 2 - 0.015), small, SMALL)

    def mark(self, text: str, centre: Array, half: Array) -> None:
        if text != "end":
            self.label(text, centre)
            return
        look: Any = {"boxstyle": "round,pad=0,rounding_size=0.03", "fc": style.INK, "ec": "none"}
        (x, y), (width, height) = centre - half, 2 * half
        self.ax.add_patch(FancyBboxPatch((x, y), width, height, zorder=4, gid="end", **look))
        self.write(centre, text, SMALL, color="white")

    def label(self, text: str, centre: Array) -> None:
        pad = 0.015 / style.POINT * self.scale
        look = {"facecolor": "white", "edgecolor": "none", "pad": pad}
        self.write(centre, text, LABEL, bbox=look, zorder=3, gid="label")

    def write(self, centre: Sequence[float] | Array, text: str, size: float, **look: Any) -> None:
        settings: Any = {"ha": "center", "va": "center", "zorder": 5} | look
        settings |= {"fontsize": size * self.scale, "linespacing": style.LINE_SPACING}
        if text:
            self.ax.text(centre[0], centre[1], text, **settings)
