"""Where nodes stand, and how large they are: states, and the marks (start, end) beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import shortest_path

from retvar.plots.curves import DIRECTIONS
from retvar.plots.links import Link, Plan
from retvar.plots.style import LABEL, NAME, SMALL, Array, text_size

__all__ = ["Nodes", "spread", "stand"]

Matrix = NDArray[np.bool_]
ROUND = 8  # up to this many states may stand on a circle
WIDEST = 4  # states in one layer
STEPS = 300  # of stress majorisation
SQUARE = 0.13  # inches: half the side of an end
LIKED = 0.04 * (np.arange(len(DIRECTIONS)) % 4 == 0)  # of places for marks: straight ones
TOWARDS = {"end": (0.01, -0.004), "start": (-0.01, 0.004)}  # then right or left


@dataclass(frozen=True)
class Nodes:
    """Boxes of half a size each, widened all around by a radius: circles have no box. Inches."""

    centre: Array
    half: Array  #: [node, xy]
    radius: Array

    def gaps(self, spots: Array, half: Array | float = 0.0, only: Sequence[int] = ()) -> Array:
        """How far spots, or boxes around them, are from nodes [spot, node]; at most 0: they touch.

        >>> circle = Nodes(np.zeros((1, 2)), np.zeros((1, 2)), np.ones(1))
        >>> circle.gaps(np.array([[3.0, 4.0]])).tolist()
        [[4.0]]
        """
        which = list(only) or slice(None)
        away = np.abs(spots[..., None, :] - self.centre[which]) - self.half[which] - half
        away = np.maximum(away, 0)
        return np.asarray(np.hypot(away[..., 0], away[..., 1]) - self.radius[which])


def spread(said: Plan, given: Array | None) -> Array:
    """Centres of states, so far apart that arrows and their texts fit between neighbours."""
    n = len(said.names)
    joined = np.zeros((n, n), dtype=bool)
    for link in said.links:
        if max(link.source, link.target) < n:
            joined[link.source, link.target] = True
    if given is None or len(np.unique(given, axis=0)) < n:
        given = _arrange(joined)
    away = np.abs(given[:, None] - given[None])
    length = np.hypot(away[..., 0], away[..., 1])
    np.fill_diagonal(length, np.inf)
    along = away @ _widest(said.links) / length
    need = 2 * _radius(said) + np.where(joined | joined.T, along + 0.6, 0.35)
    return np.asarray(given * np.max(need / length))


def stand(said: Plan, centres: Array) -> Nodes:
    """All nodes: states at their centres, and each mark in a free place beside its state."""
    n = len(centres)
    nodes = Nodes(centres, np.zeros((n, 2)), np.full(n, _radius(said)))
    ways = [(k.source, k.target) for k in said.links if max(k.source, k.target) < n]
    for mark, (home, name) in enumerate(said.marks, n):
        half = np.full(2, SQUARE)
        if name != "end":
            half = np.array(text_size(name, LABEL)) / 2 + 0.03
        texts = _widest([k for k in said.links if mark in (k.source, k.target)])
        reach = float(nodes.radius[home] + half[0] + texts[0] + 0.45)
        spot = _free_spot(home, nodes, ways, reach, LIKED + DIRECTIONS @ TOWARDS[name.split()[0]])
        nodes = Nodes(
            np.vstack([nodes.centre, spot]),
            np.vstack([nodes.half, half]),
            np.append(nodes.radius, 0.0),
        )
    return nodes


def _free_spot(
    home: int, nodes: Nodes, ways: Sequence[tuple[int, int]], reach: float, liked: Array
) -> Array:
    """A place near a state, away from other nodes and the straight ways between states."""
    centre = nodes.centre[home]
    share = np.linspace(0, 1, 15)[:, None]
    lines = [nodes.centre[a] * (1 - share) + nodes.centre[b] * share for a, b in ways]
    taken = np.concatenate([nodes.centre, *lines])
    taken = taken[np.hypot(*(taken - centre).T) > 1e-9]
    states = nodes.centre[nodes.radius > 0] - centre
    nearest = np.min(np.hypot(*states.T)[np.any(states != 0, axis=1)], initial=np.inf)
    reaches = np.minimum(reach, [nearest, 0.7 * nearest])[:, None]
    spots = centre + reaches[..., None] * DIRECTIONS
    away = np.hypot(*(spots[:, :, None] - taken).transpose(3, 0, 1, 2))
    score = np.minimum(away.min(axis=2, initial=np.inf), 0.9 * reaches) + liked
    return np.asarray(spots.reshape(-1, 2)[np.argmax(score.round(9))])


def _radius(said: Plan) -> float:
    """One radius for all states, to hold the longest name and γ and λ below it."""
    names = [text_size(name, NAME, "bold") for name in said.names]
    small = [text_size(text, SMALL) for text in said.inside]
    corners = [
        np.hypot(max(a, b) / 2, (c + d) / 2) for (a, c), (b, d) in zip(names, small, strict=True)
    ]
    return max(0.2, float(max(corners)) + 0.05)


def _widest(links: Sequence[Link]) -> Array:
    """Width and height that hold the text of each of some links."""
    sizes = [text_size(link.text, LABEL) for link in links]
    return np.asarray(np.max(sizes, axis=0, initial=0.0))


# ---------------------------------------------------------------------- where the MDP does not say


def _arrange(joined: Matrix) -> Array:
    """Positions for states, neighbours about 1 apart, given which leads to which [from, to].

    >>> _arrange(np.eye(3, k=1, dtype=bool)).tolist()
    [[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]]
    """
    joined = joined & ~np.eye(len(joined), dtype=bool)
    layers = _layers(joined)
    if layers is not None:
        return _columns(layers, joined)
    steps = shortest_path(joined, unweighted=True, directed=False)
    steps[np.isinf(steps)] = np.max(steps[np.isfinite(steps)]) + 1.5
    from_end = steps[np.argmax(steps.max(axis=1))]
    if np.unique(from_end).size == len(joined):  # one row, without branches
        return np.stack([from_end, np.zeros_like(from_end)], axis=1)
    return _circle(joined | joined.T) if len(joined) <= ROUND else _stress(steps)


def _layers(joined: Matrix) -> Array | None:
    """Longest way to each state from where none leads to; None with cycles or a wide layer."""
    layer = np.zeros(len(joined))
    for _ in layer:
        deeper = np.max(np.where(joined, layer[:, None] + 1, 0), axis=0)
        if np.array_equal(deeper, layer):
            wide = np.bincount(layer.astype(int)).max() > WIDEST
            return None if wide or not joined.any() else layer
        layer = deeper
    return None


def _columns(layers: Array, joined: Matrix) -> Array:
    """Layers from left to right; within one, states near the mean height of those before."""
    positions = np.stack([layers, np.zeros_like(layers)], axis=1)
    before = np.maximum(joined.sum(axis=0), 1)
    for layer in range(int(layers.max()) + 1):
        members = np.flatnonzero(layers == layer)
        heights = (positions[:, 1] @ joined / before)[members]
        order = members[np.argsort(-heights, kind="stable")]
        positions[order, 1] = (len(order) - 1) / 2 - np.arange(len(order))
    return positions


def _circle(joined: Matrix) -> Array:
    """On a circle, clockwise from the left, in the order that keeps joined states closest."""
    n = len(joined)
    orders = np.array([(0, *rest) for rest in permutations(range(1, n))])
    a, b = np.nonzero(np.triu(joined))
    steps = np.abs(orders[:, a] - orders[:, b])  # orders[k, s]: place of state s
    slots = orders[np.argmin(np.sum(np.minimum(steps, n - steps) ** 2, axis=1))]
    angle = np.pi - 2 * np.pi * slots / n - (np.pi / n if n == 4 else 0)
    radius = 0.5 / np.sin(np.pi / n)
    return np.asarray(radius * np.stack([np.cos(angle), np.sin(angle)], axis=1))


def _stress(ideal: Array) -> Array:
    """Stress majorisation: distances on paper like the number of steps between states."""
    n = len(ideal)
    weight = np.divide(1.0, ideal**2, out=np.zeros((n, n)), where=ideal > 0)
    angle = np.pi - 2 * np.pi * np.arange(n) / n
    x = n / 6 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    inverse = np.linalg.pinv(np.diag(weight.sum(axis=1)) - weight)
    for _ in range(STEPS):
        away = np.hypot(*(x[:, None] - x[None]).transpose(2, 0, 1))
        pull = weight * np.divide(ideal, away, out=np.zeros((n, n)), where=away > 1e-9)
        x = inverse @ ((np.diag(pull.sum(axis=1)) - pull) @ x)
    return np.asarray(x)
