"""Networks of TD nodes (the paper's Figure 1), and the MDP of an experiment."""

from __future__ import annotations

from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path

from retvar.mdp import MDP
from retvar.plots.graph import draw_mdp
from retvar.plots.style import BLUE, LINE, ORANGE, SOFT, Figure, styled
from retvar.td.networks import NETWORKS, Network, Node

# Figure 1, in inches
WIDTH, LOWEST, APART, ABOVE = 8.75, 0.65, 2.05, 1.05  # middles of the networks
NODES, OPERATIONS = (1.3, 4.75, 7.5), (3.05, 6.15)  # x of their centres
HALF = 0.65, 0.5  # of the width and height of a node
UP, DOWN = 0.3, -0.3  # ports of a node: reward and error above, features and prediction below
BEND, RAIL = 2.2, -0.74  # x and y where lines turn


class Drawing(NamedTuple):
    """How a node appears in Figure 1."""

    symbol: str  #: its prediction
    discount: str
    operation: str = ""  #: what is done with what it takes of the node before it
    error: str = ""  #: which is this error; empty: the prediction
    fed: str = ""  #: the result


DRAWINGS = {  # by the name of what a node is fed with
    "reward": Drawing("J", "γ′"),
    "mean_reward": Drawing("g", "γ′λ′", "R + γ′(1 − λ′) J(s′)"),
    "direct_reward": Drawing("V", "(γ′λ′)²", "( · )²", "δ", "δ²"),
    "centred_reward": Drawing("V", "(γ′λ′)²", "( · )²", "δᵍ", "(δᵍ)²"),
    "vtd_reward": Drawing("M", "(γ′λ′)²", "(R + γ′J(s′))²\n− (γ′λ′)² J(s′)²"),
}


def drawing_of(node: Node) -> Drawing:
    """How a node appears in Figure 1; one that is not in ``DRAWINGS`` by its name."""
    return DRAWINGS.get(node.reward.__name__, Drawing(node.title, ""))


def mdp(data: object, mdp: MDP) -> Figure:
    """Draw the MDP of an experiment without data; see :func:`draw_mdp`."""
    return draw_mdp(mdp)


@styled
def networks(data: object = None) -> Figure:
    """Draw each method as a network of TD nodes, with the inputs and outputs of every node.

    `data` is ignored; experiments pass their datasets to every plot.
    """
    height = LOWEST + APART * len(NETWORKS) - 1.0
    figure = Figure(figsize=(WIDTH, height))
    for k, network in enumerate(NETWORKS.values(), 1):
        place = 0, 1 - k * APART / height, 1, APART / height
        ax = figure.add_axes(place, xlim=(0, WIDTH), ylim=(ABOVE - APART, ABOVE))
        ax.set_axis_off()
        _draw_network(network, ax)
    return figure


def _arrow(ax: Axes, *points: tuple[float, float], text: str = "", at: Any = None) -> None:
    """Draw an arrow through points, with a text above its middle, or above `at`."""
    look: Any = {"arrowstyle": "-|>,head_length=0.45,head_width=0.2", "mutation_scale": 9}
    look |= {"color": LINE, "lw": 1.0, "shrinkA": 0, "shrinkB": 0, "joinstyle": "miter"}
    ax.add_patch(FancyArrowPatch(path=Path(points), gid="arrow", **look))
    x, y = at or ((points[0][0] + points[-1][0]) / 2, points[0][1])
    ax.text(x, y + 0.1, text, ha="center", va="center")


def _box(ax: Axes, x: float, y: float, half: tuple[float, float], bend: float, **look: Any) -> None:
    """Draw a rounded box, given half its width and height."""
    corner, size = (x - half[0], y - half[1]), (2 * half[0], 2 * half[1])
    shape = f"round,pad=0,rounding_size={bend}"
    ax.add_patch(FancyBboxPatch(corner, *size, boxstyle=shape, lw=1.1, **look))


def _draw_operation(ax: Axes, k: int, formula: str, half: float, y: float = UP) -> None:
    """Draw an operation after the k-th node."""
    _box(ax, OPERATIONS[k], y, (half, 0.2), 0.18, fc="white", ec=ORANGE, gid="operation")
    ax.text(OPERATIONS[k], y, formula, ha="center", va="center", size=8)


def _draw_node(ax: Axes, k: int, node: Node, reward: str = "") -> None:
    """Draw a TD node with its name, its ports and its inputs from outside."""
    left, right = NODES[k] - HALF[0], NODES[k] + HALF[0]
    _box(ax, NODES[k], 0, HALF, 0.06, fc="#e3eef9", ec=BLUE, gid="node")
    ax.text(NODES[k], HALF[1] + 0.12, node.title, ha="center", va="center", weight="bold")
    small: Any = {"size": 6.5, "color": BLUE, "va": "center"}
    ports = (("reward", UP, reward), ("discount", 0.0, drawing_of(node).discount))
    for port, y, what in (*ports, ("features", DOWN, "φ")):
        ax.text(left + 0.06, y, port, **small)
        if what:
            ax.text(left - 0.3, y, what, ha="right", va="center")
            _arrow(ax, (left - 0.26, y), (left, y))
    for port, y in (("TD error", UP), ("prediction", DOWN)):
        ax.text(right - 0.06, y, port, ha="right", **small)


def _draw_network(network: Network, ax: Axes) -> None:
    """Draw a network: its nodes, what each takes of the node before it, and its outputs."""
    nodes, last, taken = network.nodes, len(network.nodes) - 1, set()
    ax.text(0.1, 0.85, network.title, weight="bold", size=10, va="center")
    _draw_node(ax, 0, nodes[0], reward="R")
    for k, node in enumerate(nodes[1:], 1):
        x, before, after = OPERATIONS[k - 1], NODES[k - 1] + HALF[0], NODES[k] - HALF[0]
        drawing = drawing_of(node)
        half = 0.3 if drawing.error else 0.68
        _draw_operation(ax, k - 1, drawing.operation, half)
        if drawing.error:
            _arrow(ax, (before, UP), (x - half, UP), text=drawing.error)
        else:  # the prediction of the node before it, and the reward
            _arrow(ax, (before, DOWN), (BEND, DOWN), (BEND, UP), (x - half, UP))
            ax.text((before + BEND) / 2, DOWN + 0.1, "J", ha="center", va="center")
            _arrow(ax, (x, 0.82), (x, UP + 0.2))
            ax.text(x, 0.9, "R, γ′, λ′", ha="center", va="center")
            taken.add(k - 1)
        _arrow(ax, (x + half, UP), (after, UP), text=drawing.fed)
        _draw_node(ax, k, node)
    value = network.variance.less_square_of
    if value is not None:  # the output is the last prediction less the squared value
        x, own, other = OPERATIONS[last], *(drawing_of(n).symbol for n in (nodes[last], value))
        _draw_operation(ax, last, f"{own} − {other}²", 0.4, DOWN)
        _arrow(ax, (NODES[last] + HALF[0], DOWN), (x - 0.4, DOWN), text=own)
        rail = (BEND, DOWN), (BEND, RAIL), (x, RAIL), (x, DOWN - 0.2)
        _arrow(ax, *rail, text=other, at=(x - 0.3, RAIL))
        _arrow(ax, (x + 0.4, DOWN), (x + 0.75, DOWN))
        ax.text(x + 0.83, DOWN, "V", weight="bold", size=10, va="center")
        taken.add(last)
    for k in sorted(set(range(last + 1)) - taken):
        x = NODES[k] + HALF[0]
        _arrow(ax, (x, DOWN), (x + 0.35, DOWN))
        look: Any = {"weight": "bold", "size": 10} if k == last else {"color": SOFT}
        ax.text(x + 0.42, DOWN, drawing_of(nodes[k]).symbol, **look, va="center")
