"""An MDP drawn as a graph: the steps from an MDP to a figure."""

from __future__ import annotations

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from retvar.errors import InputError
from retvar.mdp import MDP
from retvar.plots.labels import place_labels
from retvar.plots.layout import spread, stand
from retvar.plots.links import Plan, plan
from retvar.plots.paint import Drawing, paint
from retvar.plots.routing import route
from retvar.plots.style import LABEL, RC, Array, text_size

__all__ = ["draw_mdp"]

MOST_STATES = 60
GROWTH = (1.0, 1.1, 1.2, 1.35, 1.5, 1.7, 1.9)


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
    drawing = _compose(said, mdp.positions)
    with matplotlib.rc_context(RC):
        return paint(drawing, ax)


def _compose(said: Plan, positions: Array | None) -> Drawing:
    """Lay out ever larger until no text overlaps anything; if none serves, take the best.

    >>> import retvar as rv
    >>> _compose(plan(rv.domains.chain()), None).faults
    (0, 0)
    """
    base = spread(said, positions)
    attempts = []
    for growth in GROWTH:
        attempts.append(_attempt(said, base * growth))
        if attempts[-1].faults == (0, 0):
            break
    return min(attempts, key=lambda drawing: drawing.faults)


def _attempt(said: Plan, centres: Array) -> Drawing:
    """One layout at one size."""
    nodes = stand(said, centres)
    sizes = np.array([text_size(link.text, LABEL) for link in said.links])
    arrows = route(said.links, sizes, nodes)
    labels, faults = place_labels(arrows, sizes / 2, nodes)
    return Drawing(said, nodes, arrows, labels, sizes / 2, faults)
