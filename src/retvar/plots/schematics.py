"""Drawings that need no data: the networks of TD nodes, and an experiment's MDP."""

from __future__ import annotations

from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path

from retvar.mdp import MDP
from retvar.plots.graph import draw_mdp
from retvar.plots.style import BLUE, INK, LINE, ORANGE, RC, SOFT

__all__ = ["mdp", "networks"]

# inches, from the middle of a row
WIDTH, HEIGHT, ROWS = 8.75, 5.8, (4.75, 2.8, 0.65)
NODES, OPERATIONS = (1.3, 4.75, 7.5), (3.05, 6.15)  # middles
HALF, TALL = 0.65, 0.5  # half a node
UP, DOWN = 0.3, -0.3  # its ports: reward and error above, features and prediction below
BEND, RAIL = 2.2, -0.74  # where lines turn


def mdp(data: object, mdp: MDP) -> Figure:
    """Draw the MDP of an experiment, which has no data; see :func:`draw_mdp`.

    Examples
    --------
    >>> import retvar as rv
    >>> len(rv.plots.mdp({}, rv.domains.chain()).axes)
    1
    """
    return draw_mdp(mdp)


def networks(data: object = None) -> Figure:
    """Draw each method as a network of TD nodes: what every node is fed with and what it gives.

    Parameters
    ----------
    data
        Not needed.

    Returns
    -------
    Figure
        See :func:`save`.

    Examples
    --------
    >>> import retvar as rv
    >>> figure = rv.plots.networks()
    >>> sum(patch.get_gid() == "node" for patch in figure.axes[0].patches)
    7
    """
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(WIDTH, HEIGHT))
        ax = figure.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(0, HEIGHT))
        ax.set_axis_off()
        for y, draw in zip(ROWS, (_direct, _vtd, _centred), strict=True):
            draw(Row(ax, y))
        return figure


def _direct(row: Row) -> None:
    row.begin("Direct")
    row.arrow((NODES[0] + HALF, UP), (OPERATIONS[0] - 0.3, UP), text="δ")
    row.operation(0, "( · )²", 0.3)
    row.arrow((OPERATIONS[0] + 0.3, UP), (NODES[1] - HALF, UP), text="δ²")
    row.node(1, "variance", "(γ′λ′)²")
    row.output(0, "J")
    row.output(1, "V", bold=True)


def _vtd(row: Row) -> None:
    row.begin("VTD")
    row.feed("(R + γ′J(s′))²\n− (γ′λ′)² J(s′)²")
    row.node(1, "second moment", "(γ′λ′)²")
    row.operation(1, "M − J²", 0.4, DOWN)
    row.arrow((NODES[1] + HALF, DOWN), (OPERATIONS[1] - 0.4, DOWN), text="M")
    x = OPERATIONS[1]
    row.arrow((BEND, DOWN), (BEND, RAIL), (x, RAIL), (x, DOWN - 0.2), text="J", at=(x - 0.3, RAIL))
    row.arrow((x + 0.4, DOWN), (x + 0.75, DOWN))
    row.text(x + 0.83, DOWN, "V", weight="bold", size=10)


def _centred(row: Row) -> None:
    row.begin("Centred")
    row.feed("R + γ′(1 − λ′) J(s′)")
    row.node(1, "mean", "γ′λ′")
    row.arrow((NODES[1] + HALF, UP), (OPERATIONS[1] - 0.3, UP), text="δᵍ")
    row.operation(1, "( · )²", 0.3)
    row.arrow((OPERATIONS[1] + 0.3, UP), (NODES[2] - HALF, UP), text="(δᵍ)²")
    row.node(2, "variance", "(γ′λ′)²")
    row.output(1, "g")
    row.output(2, "V", bold=True)


class Row:
    """One network; heights are told from its middle."""

    def __init__(self, ax: Axes, middle: float) -> None:
        self.ax, self.middle = ax, middle

    def begin(self, name: str) -> None:
        """Title and the value node, which all have."""
        self.text(0.1, 0.85, name, weight="bold", size=10)
        self.node(0, "value", "γ′", reward="R")

    def feed(self, formula: str) -> None:
        """From the value node's prediction to the reward of the second node."""
        x, half = OPERATIONS[0], 0.68
        self.arrow((NODES[0] + HALF, DOWN), (BEND, DOWN), (BEND, UP), (x - half, UP))
        self.text((NODES[0] + HALF + BEND) / 2, DOWN + 0.1, "J", ha="center")
        self.operation(0, formula, half)
        self.arrow((x, 0.82), (x, UP + 0.2))
        self.text(x, 0.9, "R, γ′, λ′", ha="center")
        self.arrow((x + half, UP), (NODES[1] - HALF, UP))

    def node(self, k: int, name: str, discount: str, reward: str = "") -> None:
        """A TD node with its ports, its name above it, and its inputs from outside."""
        x = NODES[k]
        self._box(x, 0, HALF, TALL, "node", facecolor="#e3eef9", edgecolor=BLUE)
        self.text(x, TALL + 0.12, name, ha="center", weight="bold")
        inputs = (("reward", UP, reward), ("discount", 0.0, discount), ("features", DOWN, "φ"))
        for port, y, what in inputs:
            self.text(x - HALF + 0.06, y, port, size=6.5, color=BLUE)
            if what:
                self.text(x - HALF - 0.3, y, what, ha="right")
                self.arrow((x - HALF - 0.26, y), (x - HALF, y))
        for port, y in (("TD error", UP), ("prediction", DOWN)):
            self.text(x + HALF - 0.06, y, port, size=6.5, ha="right", color=BLUE)

    def operation(self, k: int, formula: str, half: float, y: float = UP) -> None:
        """What is done between nodes."""
        self._box(OPERATIONS[k], y, half, 0.2, "operation", facecolor="white", edgecolor=ORANGE)
        self.text(OPERATIONS[k], y, formula, ha="center", size=8)

    def output(self, k: int, name: str, bold: bool = False) -> None:
        """The prediction of a node, as a result."""
        x = NODES[k] + HALF
        self.arrow((x, DOWN), (x + 0.35, DOWN))
        look: Any = {"weight": "bold", "size": 10} if bold else {"color": SOFT}
        self.text(x + 0.42, DOWN, name, **look)

    def arrow(self, *way: tuple[float, float], text: str = "", at: Any = None) -> None:
        """Through points, to the last of them; with a text above its middle, or elsewhere."""
        path = Path([(x, self.middle + y) for x, y in way])
        head = "-|>,head_length=0.45,head_width=0.2"
        self.ax.add_patch(
            FancyArrowPatch(path=path, arrowstyle=head, mutation_scale=9, color=LINE, lw=1.0,
                            shrinkA=0, shrinkB=0, joinstyle="miter", gid="arrow")
        )  # fmt: skip
        x, y = at or ((way[0][0] + way[-1][0]) / 2, way[0][1])
        self.text(x, y + 0.1, text, ha="center")

    def text(self, x: float, y: float, text: str, size: float = 8.5, **look: Any) -> None:
        """Text with its middle at a height."""
        look = {"color": INK, "va": "center", **look}
        self.ax.text(x, self.middle + y, text, fontsize=size, **look)

    def _box(self, x: float, y: float, wide: float, tall: float, gid: str, **look: Any) -> None:
        corner = x - wide, self.middle + y - tall
        style = f"round,pad=0,rounding_size={0.06 if gid == 'node' else 0.18}"
        self.ax.add_patch(
            FancyBboxPatch(corner, 2 * wide, 2 * tall, boxstyle=style, lw=1.1, gid=gid, **look)
        )
