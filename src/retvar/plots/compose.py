"""Put a drawing of an MDP together: states, ends, arrows and texts, each in its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from retvar.mdp import END, MDP
from retvar.plots.curves import points
from retvar.plots.labels import Placed, place_labels
from retvar.plots.layout import place
from retvar.plots.links import Link, Plan
from retvar.plots.routing import Nodes, arcs, free_spot, loops, route, starts
from retvar.plots.style import number, text_size, widest

__all__ = ["Drawing", "compose"]

Array = NDArray[np.float64]
MOST_STARTS = 3
NAME, SMALL, LABEL = 9.0, 6.5, 7.5  # points
SQUARE = 0.13  # inches: half the side of an end
GROWTH = (1.0, 1.1, 1.2, 1.35, 1.5, 1.7, 1.9)


@dataclass(frozen=True)
class Drawing:
    """Everything in its place, in inches."""

    nodes: Nodes  #: states, then ends
    arrows: Array  #: curves [arrow, 4, xy]: one a link, then one into each start
    texts: tuple[str, ...]  #: one an arrow
    half: Array  #: half the size of each text
    labels: Placed

    @property
    def bounds(self) -> tuple[Array, Array]:
        """Lower left and upper right corner of all that is drawn."""
        nodes, centre = self.nodes, self.labels.centre
        way = np.concatenate([points(curve, np.linspace(0, 1, 41)) for curve in self.arrows])
        low = [nodes.centre - nodes.size[:, None], way, centre - self.half]
        high = [nodes.centre + nodes.size[:, None], way, centre + self.half]
        return np.concatenate(low).min(axis=0), np.concatenate(high).max(axis=0)


def compose(mdp: MDP, said: Plan) -> Drawing:
    """Lay out ever larger until no text overlaps anything; if none serves, take the best.

    >>> import retvar as rv
    >>> from retvar.plots.links import plan
    >>> chain = rv.domains.chain()
    >>> compose(chain, plan(chain)).labels.overlaps
    0
    """
    base = _positions(mdp, said)
    attempts = []
    for growth in GROWTH:
        drawing = _attempt(mdp, said, base * growth)
        attempts.append(drawing)
        if _faults(drawing) == (0, 0):
            break
    return min(attempts, key=_faults)


def _faults(drawing: Drawing) -> tuple[int, int]:
    return drawing.labels.overlaps, drawing.labels.covers


def _radius(mdp: MDP, said: Plan) -> float:
    """Inches: one radius for all states, to hold the longest name and γ and λ below it."""
    largest = 0.0
    for s, inside in enumerate(said.inside):
        width, height = text_size(mdp.state_name(s), NAME, "bold")
        small_width, small_height = text_size(inside, SMALL) if inside else (0.0, 0.0)
        corner = np.hypot(max(width, small_width) / 2, (height + small_height) / 2)
        largest = max(largest, float(corner))
    return max(0.2, largest + 0.05)


def _positions(mdp: MDP, said: Plan) -> Array:
    """Centres of states, so far apart that arrows and their texts fit between neighbours."""
    links, radius = said.links, _radius(mdp, said)
    pairs = np.array([(k.source, k.target) for k in links if k.target != END], dtype=np.intp)
    pairs = pairs.reshape(-1, 2)
    given = mdp.positions
    if given is None or len(np.unique(given, axis=0)) < mdp.n_states:
        given = place(mdp.n_states, pairs)
    if mdp.n_states == 1:
        return given * 0.0
    width, height = widest([link.text for link in links], LABEL)
    away = np.abs(given[:, None] - given[None])
    length = np.hypot(away[..., 0], away[..., 1])
    length[length == 0] = np.inf
    joined = np.zeros_like(length, dtype=bool)
    joined[pairs[:, 0], pairs[:, 1]] = True
    along = (away[..., 0] * width + away[..., 1] * height) / length
    need = np.where(joined | joined.T, 2 * radius + along + 0.6, 2 * radius + 0.35)
    return np.asarray(given * np.max(need / length))


def _attempt(mdp: MDP, said: Plan, positions: Array) -> Drawing:
    """One layout at one size."""
    nodes, ends = _nodes(mdp, said, positions)
    begin = _starts(mdp)
    texts = (*(link.text for link in said.links), *begin.values())
    sizes = [text_size(text, LABEL) if text else (0.0, 0.0) for text in texts]
    groups = [*starts(begin, nodes, len(ends)), *loops(ends, nodes), *arcs(ends, sizes, nodes)]
    arrows = route(groups, nodes)
    half = np.array(sizes) / 2
    labels = place_labels(arrows, half, nodes, tails=range(len(ends), len(texts)))
    return Drawing(nodes, arrows, texts, half, labels)


def _starts(mdp: MDP) -> dict[int, str]:
    """States where episodes start, if they are few, with the text at the arrow."""
    found = [int(s) for s in np.flatnonzero(mdp.start)]
    if len(found) > MOST_STARTS or (len(found) == mdp.n_states > 1):
        return {}
    if len(found) == 1:
        return {found[0]: "start"}
    return {s: f"start {number(float(mdp.start[s]))}" for s in found}


def _nodes(mdp: MDP, said: Plan, positions: Array) -> tuple[Nodes, list[tuple[int, int]]]:
    """States, and an end for each state that has one; the two nodes that each arrow joins."""
    radius = _radius(mdp, said)
    nodes = Nodes(positions, np.full(len(positions), radius), np.zeros(len(positions), dtype=bool))
    ends = [(link.source, link.target) for link in said.links]
    for home in sorted({source for source, target in ends if target == END}):
        spot = _end_spot(home, nodes, ends, said.links)
        ends = [(s, len(nodes.size) if (s, t) == (home, END) else t) for s, t in ends]
        nodes = Nodes(
            np.vstack([nodes.centre, spot]),
            np.append(nodes.size, SQUARE),
            np.append(nodes.square, True),
        )
    return nodes, ends


def _end_spot(
    home: int, nodes: Nodes, ends: Sequence[tuple[int, int]], links: Sequence[Link]
) -> Array:
    """A place for the end of a state: near, but with room for the text of the arrow to it."""
    states = nodes.centre[~nodes.square]
    away = np.hypot(*(states - nodes.centre[home]).T)
    nearest = float(np.min(away[away > 0], initial=np.inf))
    mine = [link.text for link in links if link.source == home and link.target == END]
    need = nodes.size[home] + SQUARE + widest(mine, LABEL)[0] + 0.45
    inside = [(a, b) for a, b in ends if b != END]
    return free_spot(home, nodes, inside, [min(need, nearest), min(need, 0.7 * nearest)])
