"""The transitions of an MDP of very many states as a matrix of probabilities."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from retvar.format import count
from retvar.mdp import MDP
from retvar.plots import notebook_figures
from retvar.plots.large_graph import Moves, moves_of
from retvar.plots.style import LONGEST_TICK, Array, shown, wrap_text

__all__ = ["draw_matrix"]

MAX_CELLS = 250  # along each side; with more states a cell stands for several
TICKS = 6
NOTE_SIZE = 8.0  # points


def draw_matrix(mdp: MDP, policy: object, ax: Axes | None) -> Figure:
    """Draw the probability of going from each state to each other, and of ending.

    >>> import retvar as rv
    >>> figure = draw_matrix(rv.domains.random_walk(120), None, None)
    >>> figure.axes[0].get_xlabel(), figure.axes[0].child_axes[0].get_title()
    ('next state', 'end')
    """
    moves = moves_of(mdp, policy)
    n = mdp.n_states
    each = -(-n // MAX_CELLS)
    cells, ends = _grouped(moves, n, each)
    if ax is None:
        ax = notebook_figures.Figure(figsize=(6.9, 5.6), layout="constrained").add_subplot()
    style: Any = {"cmap": "Blues", "norm": PowerNorm(0.5, 0, 1), "interpolation": "nearest"}
    image = ax.imshow(np.ma.masked_equal(cells, 0), **style)
    ax.set(xlabel="next state", ylabel="state")
    marked = range(0, n, _round_step(n / TICKS))
    names = [shown(mdp.state_name(s), LONGEST_TICK) for s in marked]
    places = [(s + 0.5) / each - 0.5 for s in marked]
    ax.set_xticks(places, names)
    ax.set_yticks(places, names)
    for side in ax.spines.values():
        side.set_visible(True)
    parent: Any = ax.figure
    if ends.any():
        edge = ax.inset_axes((1.02, 0.0, 0.035, 1.0))
        edge.imshow(np.ma.masked_equal(ends[:, None], 0), aspect="auto", **style)
        edge.set_title("end", fontsize=NOTE_SIZE, loc="center")
        edge.set_xticks([])
        edge.set_yticks([])
    bar = parent.colorbar(image, ax=ax, fraction=0.05, pad=0.08)
    bar.outline.set_visible(False)
    bar.set_label("probability")
    note = wrap_text(_note(n, each, moves), NOTE_SIZE, 6.0)
    ax.set_title(note, fontsize=NOTE_SIZE, loc="left", gid="note")
    return parent if isinstance(parent, Figure) else parent.figure


def _round_step(least: float) -> int:
    """The least of 1, 2, 5, 10, 20, … that is not below a number.

    >>> _round_step(83.3), _round_step(17)
    (100, 20)
    """
    power = int(10 ** max(0, math.floor(math.log10(least))))
    return next(k * power for k in (1, 2, 5, 10) if k * power >= least)


def _grouped(moves: Moves, states: int, each: int) -> tuple[Array, Array]:
    """Probabilities from groups of `each` states to groups, and of ending from them."""
    groups = -(-states // each)
    sizes = np.bincount(np.arange(states) // each, minlength=groups)
    table = np.zeros((groups, groups))
    np.add.at(table, (moves.source // each, moves.target // each), moves.probability)
    ends = np.bincount(np.arange(states) // each, moves.ends, groups)
    return table / sizes[:, None], ends / sizes


def _note(states: int, each: int, moves: Moves) -> str:
    """What is drawn, in one line."""
    under = f" under {shown(moves.policy)}" if moves.policy else ""
    text = f"{states:,} states, so a matrix: where each leads{under}"
    return f"{text}; a cell stands for {count(each, 'state')}" if each > 1 else text
