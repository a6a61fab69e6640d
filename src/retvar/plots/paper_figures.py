"""Networks of TD nodes (the paper's Figure 1), the MDP of an experiment, and Table 1."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path

from retvar import arguments
from retvar.errors import InputError
from retvar.experiments.claims import COLUMNS, measured_row, row_agrees
from retvar.mdp import MDP
from retvar.networks import NETWORKS, Network, Node, label_of
from retvar.plots import notebook_figures
from retvar.plots.axes import datasets
from retvar.plots.graph import draw_mdp
from retvar.plots.style import BLUE, INK, LINE, ORANGE, RC, SOFT

if TYPE_CHECKING:
    import xarray

__all__ = ["mdp", "networks", "table_1"]

# Figure 1, in inches
WIDTH, LOWEST, APART, ABOVE = 8.75, 0.65, 2.05, 1.05  # middles of the networks, inches
NODES, OPERATIONS = (1.3, 4.75, 7.5), (3.05, 6.15)  # x of their centres
HALF_WIDTH, HALF_HEIGHT = 0.65, 0.5  # of a node
UP, DOWN = 0.3, -0.3  # ports of a node: reward and error above, features and prediction below
BEND, RAIL = 2.2, -0.74  # x and y where lines turn

# Table 1, in inches
NAME_WIDTH, PAIR_WIDTH, VERDICT_WIDTH = 1.75, 1.4, 0.55
PAPER_EDGE, MEASURED_EDGE = 0.55, 1.25  # right edges within a pair of columns
LINE_HEIGHT, ROW_HEIGHT, HEAD_HEIGHT = 0.2, 0.36, 0.5
TEXT_SIZE, SMALL_SIZE = 8.0, 7.0  # points


def mdp(data: object, mdp: MDP) -> Figure:
    """Draw the MDP of an experiment without data; see :func:`draw_mdp`.

    Examples
    --------
    >>> import retvar as rv
    >>> len(rv.plots.mdp({}, rv.domains.chain()).axes)
    1
    """
    return draw_mdp(mdp)


def networks(data: object = None) -> Figure:
    """Draw each method as a network of TD nodes, with the inputs and outputs of every node.

    Parameters
    ----------
    data
        Ignored; experiments pass their datasets to every plot.

    Examples
    --------
    >>> import retvar as rv
    >>> figure = rv.plots.networks()
    >>> sum(patch.get_gid() == "node" for patch in figure.axes[0].patches)
    7
    """
    with matplotlib.rc_context(RC):
        top = LOWEST + APART * (len(NETWORKS) - 1)
        figure = notebook_figures.Figure(figsize=(WIDTH, top + ABOVE))
        ax = figure.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(0, top + ABOVE))
        ax.set_axis_off()
        for k, network in enumerate(NETWORKS.values()):
            _draw(network, NetworkRow(ax, top - APART * k))
        return figure


def _draw(network: Network, row: NetworkRow) -> None:
    """Draw a network: its nodes, what each takes of the node before it, and its outputs."""
    row.begin(network.title, network.nodes[0])
    for k, node in enumerate(network.nodes[1:], 1):
        if node.drawing.takes == "error":
            row.feed_error(k - 1, node)
        else:
            row.feed(node.drawing.operation)
        row.node(k, node)
    taken = {k - 1 for k, node in enumerate(network.nodes) if node.drawing.takes == "prediction"}
    last, value = len(network.nodes) - 1, network.variance.less_square_of
    if value is not None:
        row.output_difference(last, network.nodes[last], value)
        taken.add(last)
    for k in sorted(set(range(len(network.nodes))) - taken):
        row.output(k, network.nodes[k].drawing.symbol, bold=k == last)


class NetworkRow:
    """One network; heights are relative to its middle."""

    def __init__(self, ax: Axes, middle: float) -> None:
        self.ax, self.middle = ax, middle

    def begin(self, name: str, value: Node) -> None:
        """Draw the title and the value node."""
        self.text(0.1, 0.85, name, weight="bold", size=10)
        self.node(0, value, reward="R")

    def feed_error(self, k: int, node: Node) -> None:
        """Connect the TD error of node `k` to the reward of the next node."""
        _, _, _, error, operation, fed = node.drawing
        self.arrow((NODES[k] + HALF_WIDTH, UP), (OPERATIONS[k] - 0.3, UP), text=error)
        self.operation(k, operation, 0.3)
        self.arrow((OPERATIONS[k] + 0.3, UP), (NODES[k + 1] - HALF_WIDTH, UP), text=fed)

    def output_difference(self, k: int, node: Node, value: Node) -> None:
        """Draw the prediction of node `k` less the squared value as the output."""
        x, own, other = OPERATIONS[k], node.drawing.symbol, value.drawing.symbol
        self.operation(k, f"{own} − {other}²", 0.4, DOWN)
        self.arrow((NODES[k] + HALF_WIDTH, DOWN), (x - 0.4, DOWN), text=own)
        rail = (BEND, DOWN), (BEND, RAIL), (x, RAIL), (x, DOWN - 0.2)
        self.arrow(*rail, text=other, at=(x - 0.3, RAIL))
        self.arrow((x + 0.4, DOWN), (x + 0.75, DOWN))
        self.text(x + 0.83, DOWN, "V", weight="bold", size=10)

    def feed(self, formula: str) -> None:
        """Connect the prediction of the value node to the reward of the second node."""
        x, half = OPERATIONS[0], 0.68
        self.arrow((NODES[0] + HALF_WIDTH, DOWN), (BEND, DOWN), (BEND, UP), (x - half, UP))
        self.text((NODES[0] + HALF_WIDTH + BEND) / 2, DOWN + 0.1, "J", ha="center")
        self.operation(0, formula, half)
        self.arrow((x, 0.82), (x, UP + 0.2))
        self.text(x, 0.9, "R, γ′, λ′", ha="center")
        self.arrow((x + half, UP), (NODES[1] - HALF_WIDTH, UP))

    def node(self, k: int, node: Node, reward: str = "") -> None:
        """Draw a TD node with its name, its ports and its inputs from outside."""
        x, discount = NODES[k], node.drawing.discount
        self._box(x, 0, HALF_WIDTH, HALF_HEIGHT, "node", facecolor="#e3eef9", edgecolor=BLUE)
        self.text(x, HALF_HEIGHT + 0.12, node.title, ha="center", weight="bold")
        inputs = (("reward", UP, reward), ("discount", 0.0, discount), ("features", DOWN, "φ"))
        for port, y, what in inputs:
            self.text(x - HALF_WIDTH + 0.06, y, port, size=6.5, color=BLUE)
            if what:
                self.text(x - HALF_WIDTH - 0.3, y, what, ha="right")
                self.arrow((x - HALF_WIDTH - 0.26, y), (x - HALF_WIDTH, y))
        for port, y in (("TD error", UP), ("prediction", DOWN)):
            self.text(x + HALF_WIDTH - 0.06, y, port, size=6.5, ha="right", color=BLUE)

    def operation(self, k: int, formula: str, half: float, y: float = UP) -> None:
        """Draw an operation between two nodes."""
        self._box(OPERATIONS[k], y, half, 0.2, "operation", facecolor="white", edgecolor=ORANGE)
        self.text(OPERATIONS[k], y, formula, ha="center", size=8)

    def output(self, k: int, name: str, bold: bool = False) -> None:
        """Draw the prediction of a node as an output."""
        x = NODES[k] + HALF_WIDTH
        self.arrow((x, DOWN), (x + 0.35, DOWN))
        style: Any = {"weight": "bold", "size": 10} if bold else {"color": SOFT}
        self.text(x + 0.42, DOWN, name, **style)

    def arrow(self, *points: tuple[float, float], text: str = "", at: Any = None) -> None:
        """Draw an arrow through points, with a text above its middle, or above `at`."""
        path = Path([(x, self.middle + y) for x, y in points])
        head = "-|>,head_length=0.45,head_width=0.2"
        self.ax.add_patch(
            FancyArrowPatch(path=path, arrowstyle=head, mutation_scale=9, color=LINE, lw=1.0,
                            shrinkA=0, shrinkB=0, joinstyle="miter", gid="arrow")
        )  # fmt: skip
        x, y = at or ((points[0][0] + points[-1][0]) / 2, points[0][1])
        self.text(x, y + 0.1, text, ha="center")

    def text(self, x: float, y: float, text: str, size: float = 8.5, **style: Any) -> None:
        """Write text, vertically centred."""
        style = {"color": INK, "va": "center", **style}
        self.ax.text(x, self.middle + y, text, fontsize=size, **style)

    def _box(self, x: float, y: float, width: float, height: float, gid: str, **style: Any) -> None:
        """Draw a rounded box, given half its width and height."""
        corner = x - width, self.middle + y - height
        box = f"round,pad=0,rounding_size={0.06 if gid == 'node' else 0.18}"
        size = 2 * width, 2 * height
        self.ax.add_patch(FancyBboxPatch(corner, *size, boxstyle=box, lw=1.1, gid=gid, **style))


def table_1(data: Mapping[str, xarray.Dataset], published: Mapping[str, Sequence[str]]) -> Figure:
    """Draw a table of the mean absolute change of each estimate, next to published figures.

    Parameters
    ----------
    data
        Datasets by the names of the rows, recorded with ``Record(change=True)``, with learners
        ``direct`` and ``vtd``; cells without data are left blank.
    published
        Published figures of each row, as text: value, second moment, VTD and direct.

    Examples
    --------
    >>> import retvar as rv
    >>> learners = {"direct": rv.Direct(alpha=0.01), "vtd": rv.VTD(alpha=0.01)}
    >>> record = rv.Record(points=10, change=True)
    >>> mdp = rv.domains.complex_mdp()
    >>> data = rv.simulate(mdp, learners, steps=100, runs=2, seed=0, record=record)
    >>> figure = rv.plots.table_1({"mine": data}, {"mine": ("0.1", "0.1", "0.1", "0.1")})
    >>> "0.1" in [text.get_text() for text in figure.axes[0].texts]
    True
    """
    data = datasets(data)
    arguments.instance("published", published, Mapping, "a mapping from names to four texts")
    for name, printed in published.items():
        if len(arguments.texts(f"published[{name!r}]", printed)) != len(COLUMNS):
            raise InputError(f"published[{name!r}]", printed, f"must be {len(COLUMNS)} texts")
    width = NAME_WIDTH + PAIR_WIDTH * len(COLUMNS) + VERDICT_WIDTH
    below = HEAD_HEIGHT + ROW_HEIGHT * len(published)
    with matplotlib.rc_context(RC):
        figure = notebook_figures.Figure(figsize=(width, below + 0.3))
        ax = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(below + 0.3, 0))
        ax.set_axis_off()
        _table_head(ax, width)
        for k, (name, printed) in enumerate(published.items()):
            y = HEAD_HEIGHT + ROW_HEIGHT * k + LINE_HEIGHT * 0.6
            _table_row(ax, y, name, data.get(name), printed)
        _rule(ax, below, 0, width, 1.2)
        note = "✓: all within 4 standard errors of the difference and half a unit of the last digit"
        _write(ax, 0.05, below + 0.15, note, size=SMALL_SIZE, color=SOFT)
        return figure


def _table_head(ax: Axes, width: float) -> None:
    """Draw the head of the table."""
    _rule(ax, 0.03, 0, width, 1.2)
    _write(ax, 0.05, 0.37, "experiment")
    _write(ax, width - 0.05, 0.37, "agrees", ha="right")
    for k, column in enumerate(COLUMNS):
        left = NAME_WIDTH + PAIR_WIDTH * k
        title = label_of(column).replace("_", " ")
        _write(ax, left + (MEASURED_EDGE + 0.1) / 2, 0.15, title, ha="center", weight="bold")
        _rule(ax, 0.26, left + 0.1, left + MEASURED_EDGE, 0.6)
        _write(ax, left + PAPER_EDGE, 0.37, "paper", ha="right", color=SOFT)
        _write(ax, left + MEASURED_EDGE, 0.37, "measured", ha="right")
    _rule(ax, HEAD_HEIGHT, 0, width, 0.8)


def _table_row(
    ax: Axes, y: float, name: str, data: xarray.Dataset | None, printed: Sequence[str]
) -> None:
    """Draw the row of an experiment: its figures, and their standard errors below."""
    row, error = _measured(data)
    _write(ax, 0.05, y, name)
    for k, (column, text) in enumerate(zip(COLUMNS, printed, strict=True)):
        left = NAME_WIDTH + PAIR_WIDTH * k
        value, spread = _with_error(row[column], error[column])
        _write(ax, left + PAPER_EDGE, y, text, ha="right", color=SOFT)
        _write(ax, left + MEASURED_EDGE, y, value, ha="right")
        small: Any = {"size": SMALL_SIZE, "ha": "right", "color": SOFT}
        _write(ax, left + MEASURED_EDGE, y + 0.75 * LINE_HEIGHT, spread, **small)
    if data is not None and not any(math.isnan(error[column]) for column in COLUMNS):
        holds = row_agrees(name, tuple(printed)).check({name: data}).holds
        style: Any = {"color": INK} if holds else {"color": ORANGE, "weight": "bold"}
        x = NAME_WIDTH + PAIR_WIDTH * len(COLUMNS) + VERDICT_WIDTH / 2
        _write(ax, x, y, "✓" if holds else "✗", ha="center", **style)


def _measured(data: xarray.Dataset | None) -> tuple[dict[str, float], dict[str, float]]:
    """A row of figures and their standard errors; NaN where a method is missing."""
    if data is None:
        missing_row = dict.fromkeys(COLUMNS, math.nan)
        return missing_row, missing_row
    parts = [f"{node}_change_total" for node in ("value", "variance", "second_moment")]
    wanted = [part + suffix for part in parts for suffix in ("", "_std")]
    table = data[[name for name in wanted if name in data]].reindex(learner=["direct", "vtd"])
    missing = {name: ("learner", [math.nan, math.nan]) for name in wanted if name not in data}
    any_value = {name: table[name].fillna(data[name][0].item()) for name in wanted[:2]}
    return measured_row(table.assign(missing).assign(any_value))


def _with_error(value: float, error: float) -> tuple[str, str]:
    """A figure rounded to the first digit of its standard error, and that error.

    >>> _with_error(0.0041517, 0.0000046), _with_error(0.5, float("nan")), _with_error(0.0, 0.0)
    (('0.004152', '± 0.000005'), ('0.5', ''), ('0', ''))
    """
    if math.isnan(value):
        return "–", ""
    if not error > 0:
        return f"{value:.3g}", ""
    digits = max(0, -math.floor(math.log10(error)))
    return f"{value:.{digits}f}", f"± {error:.{digits}f}"


def _write(ax: Axes, x: float, y: float, text: str, size: float = TEXT_SIZE, **style: Any) -> None:
    ax.text(x, y, text, fontsize=size, va="center", **style)


def _rule(ax: Axes, y: float, left: float, right: float, width: float) -> None:
    ax.plot([left, right], [y, y], color=INK, linewidth=width, solid_capstyle="butt")
