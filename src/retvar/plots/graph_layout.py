"""Where the nodes of an MDP's graph are placed, and how large they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from retvar.plots.graph_content import Arrow, GraphContent
from retvar.plots.style import Array, text_size

if TYPE_CHECKING:
    import networkx as nx

__all__ = ["Nodes", "networkx_layout", "place_nodes", "place_states"]

NAME_SIZE, DISCOUNT_SIZE, LABEL_SIZE = 9.0, 6.5, 7.5  # points
MAX_LAYER = 4  # states in one layer of an acyclic graph
MAX_STRESSED = 60  # states that Kamada and Kawai's method places in a second or two
FLAT = 0.02  # second eigenvalue of a layout relative to the first, below which it is a line
UNCONNECTED = 1.5  # steps added to the longest path between states that no path joins
END_HALF = 0.13  # inches: half the side of an end
ANGLES = np.radians(22.5 * np.arange(16))
DIRECTIONS = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1)
AXIS_BONUS = 0.04 * (np.arange(len(DIRECTIONS)) % 4 == 0)  # prefer horizontal and vertical
SIDE_BONUS = {"end": (0.01, -0.004), "start": (-0.01, 0.004)}  # ends right, starts left


@dataclass(frozen=True)
class Nodes:
    """Nodes as boxes of half a size, widened by a radius: circles have an empty box. Inches."""

    centre: Array
    half: Array  #: [node, xy]
    radius: Array

    def gaps(self, spots: Array, half: Array | float = 0.0, only: Sequence[int] = ()) -> Array:
        """Distances of points, or of boxes around them, from nodes [spot, node]; ≤ 0: touching.

        >>> circle = Nodes(np.zeros((1, 2)), np.zeros((1, 2)), np.ones(1))
        >>> circle.gaps(np.array([[3.0, 4.0]])).tolist()
        [[4.0]]
        """
        which = list(only) or slice(None)
        away = np.abs(spots[..., None, :] - self.centre[which]) - self.half[which] - half
        away = np.maximum(away, 0)
        return np.asarray(np.hypot(away[..., 0], away[..., 1]) - self.radius[which])


def place_states(content: GraphContent, positions: Array | None) -> Array:
    """Centres of the states in inches, far enough apart for arrows and their labels.

    Without positions, or if two states share one, a layout of networkx is used.
    """
    n = len(content.names)
    pairs = [(a.source, a.target) for a in content.arrows if max(a.source, a.target) < n]
    if positions is None or len(np.unique(positions, axis=0)) < n:
        positions = networkx_layout(n, pairs)
    joined = np.zeros((n, n), dtype=bool)
    for a, b in pairs:
        joined[a, b] = joined[b, a] = True
    away = np.abs(positions[:, None] - positions[None])
    length = np.hypot(away[..., 0], away[..., 1])
    np.fill_diagonal(length, np.inf)
    along = away @ _largest_label(content.arrows) / length
    need = 2 * _state_radius(content) + np.where(joined, along + 0.6, 0.35)
    return np.asarray(positions * np.max(need / length))


def networkx_layout(n: int, pairs: Sequence[tuple[int, int]]) -> Array:
    """Positions of n states: layers if the graph has no cycles, otherwise Kamada and Kawai's.

    >>> networkx_layout(3, [(0, 1), (1, 2)])[:, 1].tolist()
    [0.0, 0.0, 0.0]
    """
    import networkx as nx

    graph = nx.DiGraph()
    graph.add_nodes_from(range(n))
    graph.add_edges_from((a, b) for a, b in pairs if a != b)
    if graph.number_of_edges() and nx.is_directed_acyclic_graph(graph):
        layers = list(nx.topological_generations(graph))
        if max(map(len, layers)) <= MAX_LAYER:
            downwards = {k: sorted(layer, reverse=True) for k, layer in enumerate(layers)}
            found = nx.multipartite_layout(graph, subset_key=downwards)
            return np.array([found[state] for state in range(n)])
    lengths = _path_lengths(graph)
    if n > MAX_STRESSED:
        return _rotated(_sprung(graph, lengths))
    found = nx.kamada_kawai_layout(graph, dist=lengths)
    return _rotated(np.array([found[state] for state in range(n)]))


def _sprung(graph: nx.DiGraph, lengths: dict[int, dict[int, float]]) -> Array:
    """Positions of many states: by classical scaling of path lengths, then by springs.

    A line stays a line.

    >>> import networkx as nx
    >>> line = nx.path_graph(4, create_using=nx.DiGraph)
    >>> np.ptp(_sprung(line, _path_lengths(line)), axis=0).round(6).tolist()
    [3.0, 0.0]
    """
    import networkx as nx

    n = len(graph)
    squared = np.array([[lengths[a][b] for b in range(n)] for a in range(n)]) ** 2
    centred = np.eye(n) - 1 / n
    sizes, axes = np.linalg.eigh(-centred @ squared @ centred / 2)
    places = axes[:, [-1, -2]] * np.sqrt(np.maximum(sizes[[-1, -2]], 0))
    if sizes[-2] <= FLAT * sizes[-1]:
        return np.asarray(places * [1.0, 0.0])
    found = nx.spring_layout(graph, pos=dict(enumerate(places / np.ptp(places))), seed=0)
    return np.array([found[state] for state in range(n)])


def _path_lengths(graph: nx.DiGraph) -> dict[int, dict[int, float]]:
    """Steps between all states, in either direction; finite also where no path joins them."""
    import networkx as nx

    steps = dict(nx.all_pairs_shortest_path_length(graph.to_undirected()))
    far = UNCONNECTED + max(max(row.values()) for row in steps.values())
    return {a: {b: steps[a].get(b, far) for b in graph} for a in graph}


def _rotated(positions: Array) -> Array:
    """Turn the longest extent to the horizontal, with the first state left and the next above."""
    x = positions - positions.mean(axis=0)
    _, extents, axes = np.linalg.svd(x, full_matrices=False)
    if len(x) > 1 and extents[0] > 1.05 * extents[1]:
        x = x @ axes.T
        x[:, 1] *= extents[1] > 0.02 * extents[0]  # nearly a line: exactly a line
    x = x.round(6) + 0.0
    flip = np.array([x[0, 0] > 0, x[1:2, 1].sum() < 0])
    return np.asarray(np.where(flip, -x, x))


def place_nodes(content: GraphContent, centres: Array) -> Nodes:
    """All nodes: states at their centres, and each marker at a free spot next to its state."""
    n = len(centres)
    nodes = Nodes(centres, np.zeros((n, 2)), np.full(n, _state_radius(content)))
    pairs = [(a.source, a.target) for a in content.arrows if max(a.source, a.target) < n]
    for marker, (state, name) in enumerate(content.markers, n):
        half = np.full(2, END_HALF)
        if name != "end":
            half = np.array(text_size(name, LABEL_SIZE)) / 2 + 0.03
        label = _largest_label([a for a in content.arrows if marker in (a.source, a.target)])
        reach = float(nodes.radius[state] + half[0] + label[0] + 0.45)
        bonus = AXIS_BONUS + DIRECTIONS @ SIDE_BONUS[name.split()[0]]
        spot = _free_spot(state, nodes, pairs, reach, bonus)
        nodes = Nodes(
            np.vstack([nodes.centre, spot]),
            np.vstack([nodes.half, half]),
            np.append(nodes.radius, 0.0),
        )
    return nodes


def _free_spot(
    state: int, nodes: Nodes, pairs: Sequence[tuple[int, int]], reach: float, bonus: Array
) -> Array:
    """A spot near a state, away from other nodes and from the lines between joined states."""
    centre = nodes.centre[state]
    share = np.linspace(0, 1, 15)[:, None]
    lines = [nodes.centre[a] * (1 - share) + nodes.centre[b] * share for a, b in pairs]
    taken = np.concatenate([nodes.centre, *lines])
    taken = taken[np.hypot(*(taken - centre).T) > 1e-9]
    states = nodes.centre[nodes.radius > 0] - centre
    nearest = np.min(np.hypot(*states.T)[np.any(states != 0, axis=1)], initial=np.inf)
    reaches = np.minimum(reach, [nearest, 0.7 * nearest])[:, None]
    spots = centre + reaches[..., None] * DIRECTIONS
    away = np.hypot(*(spots[:, :, None] - taken).transpose(3, 0, 1, 2))
    score = np.minimum(away.min(axis=2, initial=np.inf), 0.9 * reaches) + bonus
    return np.asarray(spots.reshape(-1, 2)[np.argmax(score.round(9))])


def _state_radius(content: GraphContent) -> float:
    """The radius of all states, large enough for the longest name with γ and λ below it."""
    names = [text_size(name, NAME_SIZE, "bold") for name in content.names]
    small = [text_size(text, DISCOUNT_SIZE) for text in content.discounts]
    corners = [
        np.hypot(max(a, b) / 2, (c + d) / 2) for (a, c), (b, d) in zip(names, small, strict=True)
    ]
    return max(0.2, float(max(corners)) + 0.05)


def _largest_label(arrows: Sequence[Arrow]) -> Array:
    """Width and height that hold each label of some arrows."""
    sizes = [text_size(arrow.text, LABEL_SIZE) for arrow in arrows]
    return np.asarray(np.max(sizes, axis=0, initial=0.0))
