"""How the arrows of an MDP's graph run, as cubic Bézier curves, and where their labels go.

Arrows choose among arcs of different height, and loops at different angles, one after the other,
so that few cross or touch. Labels then choose among spots on and next to their arrows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from retvar.plots.graph_content import Arrow
from retvar.plots.graph_layout import Nodes
from retvar.plots.style import Array

__all__ = ["bezier_points", "place_labels", "route"]

BENDS = (0.0, *(s * b for b in (0.07, 0.14, 0.21, 0.3, 0.4, 0.5, 0.62, 0.75) for s in (1, -1)))
SKEWS = (0.0, 0.4, -0.4, 0.8, -0.8)
CLIP_POINTS, ROUTE_POINTS = np.linspace(0, 1, 1001), np.linspace(0, 1, 21)
LOOP_LENGTH = 0.36  # inches
LOOP_SPACINGS = (60.0, 90.0, 120.0, 180.0)  # degrees between loops of one state
CLOSE = 0.14  # inches; arrows closer than this are hard to distinguish
ROUTE_ROUNDS, LABEL_ROUNDS = 4, 8

LABEL_POINTS = np.linspace(0, 1, 61)
ALONG = np.array([0.5, 0.45, 0.55, 0.4, 0.6, 0.34, 0.66, 0.28, 0.72, 0.22, 0.78])
SIDES = np.array([0.0, 1.0, 0.8, 0.6, -1.0, -0.8, -0.6])  # 0: on the curve; ±1: clear of it
LABEL_MARGIN = 0.03  # inches
OVERLAP_COST, COVER_COST = 20.0, 3.0  # of overlapping a label, node or head; of covering an arrow


# ---------------------------------------------------------------------- curves


def bezier_points(curve: Array, t: Array) -> Array:
    """Points of a curve, or of several [..., 4, xy], at each t in [0, 1].

    >>> bezier_points(np.array([[0, 0], [1, 0], [2, 0], [3, 0.0]]), np.array([0.0, 0.5])).tolist()
    [[0.0, 0.0], [1.5, 0.0]]
    """
    return np.asarray(_bernstein(t) @ curve)


def _bernstein(t: Array) -> Array:
    t = t[:, None]
    return np.hstack([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3])


CONTROL_POINTS = np.linalg.inv(_bernstein(np.linspace(0, 1, 4)))  # of four points of a curve


def _part(curve: Array, start: float, end: float) -> Array:
    """The part of a curve from one t to another.

    >>> _part(np.array([[0, 0], [1, 0], [2, 0], [3, 0.0]]), 0.5, 1.0)[:, 0].round(6).tolist()
    [1.5, 2.0, 2.5, 3.0]
    """
    return np.asarray(CONTROL_POINTS @ bezier_points(curve, np.linspace(start, end, 4)))


def _arc(start: Array, end: Array, height: float, skew: float = 0.0) -> Array:
    """Curve whose middle is `height` to the left of the straight line; rounder if it is high.

    A positive skew raises it near its start, a negative one near its end.

    >>> bezier_points(_arc(np.zeros(2), np.array([2.0, 0.0]), 0.5), np.array([0.5])).tolist()
    [[1.0, 0.5]]
    """
    along = end - start
    length = float(np.hypot(*along))
    rise = np.array([-along[1], along[0]]) / length * height * 4 / 3
    ahead = along * max(0.0, 1 - abs(height) / length / 0.8) / 3
    controls = start + ahead + rise * (1 + skew), end - ahead + rise * (1 - skew)
    return np.stack([start, *controls, end])


def _loop(centre: Array, radius: float, angle: float) -> Array:
    """Curve that leaves a circle at an angle in degrees and returns to it."""
    far = 1.08 * (radius + LOOP_LENGTH * 4 / 3)
    reach = np.array([radius, far, far, radius])[:, None]
    turns = np.radians([angle + 26, angle + 26, angle - 26, angle - 26])
    return np.asarray(centre + reach * np.stack([np.cos(turns), np.sin(turns)], axis=1))


# ---------------------------------------------------------------------- routes


@dataclass(frozen=True)
class ParallelArrows:
    """Arrows between the same two nodes, which are routed together, and their possible routes."""

    arrows: list[int]
    nodes: tuple[int, int]
    routes: Array  #: curves [route, arrow, 4, xy]
    costs: list[float]  #: of each route, regardless of other arrows


def route(arrows: Sequence[Arrow], sizes: Array, nodes: Nodes) -> Array:
    """Curves [arrow, 4, xy] that cross and touch as little as possible.

    `sizes` are those of the labels, for which parallel arrows leave space.
    """
    groups = _parallel_arrows(arrows, sizes, nodes)
    samples = [bezier_points(group.routes, ROUTE_POINTS) for group in groups]
    choice = [int(np.argmin(group.costs)) for group in groups]
    for _ in range(ROUTE_ROUNDS):
        before = list(choice)
        for g, group in enumerate(groups):
            rest = [samples[h][choice[h]] for h in range(len(groups)) if h != g]
            others = np.concatenate([np.zeros((0, ROUTE_POINTS.size, 2)), *rest])
            choice[g] = _best_route(group, samples[g], others, nodes)
        if choice == before:
            break
    curves = np.zeros((len(arrows), 4, 2))
    for group, chosen in zip(groups, choice, strict=True):
        curves[group.arrows] = group.routes[chosen]
    return curves


def _parallel_arrows(arrows: Sequence[Arrow], sizes: Array, nodes: Nodes) -> list[ParallelArrows]:
    """Arrows by the two nodes they join; short ones first, since long ones can avoid them."""
    pairs: dict[tuple[int, int], list[int]] = defaultdict(list)
    for k, arrow in enumerate(arrows):
        ends = arrow.source, arrow.target
        a, b = sorted(ends, key=lambda node: tuple(nodes.centre[node].round(6)))
        pairs[a, b].append(k)
    apart = {(a, b): np.hypot(*(nodes.centre[b] - nodes.centre[a])).round(6) for a, b in pairs}
    return [
        _loops(a, pairs[a, b], nodes) if a == b else _arcs(a, b, pairs[a, b], arrows, sizes, nodes)
        for a, b in sorted(pairs, key=lambda pair: float(apart[pair]))
    ]


def _loops(state: int, members: list[int], nodes: Nodes) -> ParallelArrows:
    """Loops of one state at all angles, evenly spaced; those above cost least."""
    count = len(members)
    steps = [step for step in LOOP_SPACINGS if step * count <= 360] if count > 1 else [0.0]
    around = np.arange(count) - (count - 1) / 2
    turns = [22.5 * k + step * around for step in steps for k in range(16)]
    circle = nodes.centre[state], float(nodes.radius[state])
    routes = [[_loop(*circle, angle) for angle in turn] for turn in turns]
    costs = [float(np.sum(0.1 * (1 - np.sin(np.radians(turn))))) for turn in turns]
    return ParallelArrows(members, (state, state), np.array(routes), costs)


def _arcs(
    a: int, b: int, members: list[int], arrows: Sequence[Arrow], sizes: Array, nodes: Nodes
) -> ParallelArrows:
    """Parallel arcs, spaced for their labels; straight ones cost least."""
    members = sorted(members, key=lambda k: arrows[k].source != a)
    start, end = nodes.centre[a], nodes.centre[b]
    length = float(np.hypot(*(end - start)))
    across = np.abs(end - start)[::-1] / length
    gap = np.clip(np.max(sizes[members] @ across) + 0.1, 0.3, 0.46)
    offsets = gap * ((len(members) - 1) / 2 - np.arange(len(members)))
    forward = [arrows[k].source == a for k in members]
    skews = SKEWS if len(members) == 1 else (0.0,)
    routes, costs = [], []
    for skew, bend in product(skews, BENDS):
        arcs = [_arc(start, end, bend * length + x, skew) for x in offsets]
        curves = [_outside(arc, a, b, nodes) for arc in arcs]
        routes.append([c if f else c[::-1] for c, f in zip(curves, forward, strict=True)])
        costs.append(0.15 * (bend != 0) + (1.5 + 0.1 * length) * abs(bend) + 0.15 * abs(skew))
    return ParallelArrows(members, (a, b), np.array(routes), costs)


def _outside(curve: Array, a: int, b: int, nodes: Nodes) -> Array:
    """The part of a curve outside the two nodes that it joins."""
    gaps = nodes.gaps(bezier_points(curve, CLIP_POINTS), only=(a, b))
    outside = CLIP_POINTS[np.all(gaps > 0, axis=1)]
    return _part(curve, outside[0], outside[-1]) if outside.size else curve


def _best_route(group: ParallelArrows, samples: Array, others: Array, nodes: Nodes) -> int:
    """The cheapest route, given the points of other arrows [arrow, point, xy]."""
    best, least = 0, np.inf
    for k in np.argsort(group.costs, kind="stable"):
        if group.costs[k] >= least:
            break
        cost = group.costs[k] + _conflicts(group, samples[k], others, nodes)
        if cost < least:
            best, least = int(k), cost
    return best


def _conflicts(group: ParallelArrows, lines: Array, others: Array, nodes: Nodes) -> float:
    """Cost of the nodes that a route runs through and of the arrows that it touches or crosses."""
    hit = np.any(nodes.gaps(lines) < CLOSE, axis=1)
    hit[:, list(group.nodes)] = False
    low, high = lines.min(axis=(0, 1)) - CLOSE, lines.max(axis=(0, 1)) + CLOSE
    near = others[np.all((others.max(axis=1) > low) & (others.min(axis=1) < high), axis=1)]
    arrows = sum(4 * _closeness(line, near) + _crossings(line[::2], near[:, ::2]) for line in lines)
    return 8.0 * float(np.sum(hit)) + arrows


def _crossings(one: Array, others: Array) -> int:
    """How often a line of points crosses other lines [line, point, xy].

    >>> flat = np.array([[-1.0, 0.0], [1.0, 0.0]])
    >>> _crossings(flat, np.array([[[0.0, -1.0], [0.0, 1.0]], [[2.0, -1.0], [2.0, 1.0]]]))
    1
    """
    a, b = one[:-1, None], one[1:, None]
    c, d = others[:, :-1].reshape(-1, 2), others[:, 1:].reshape(-1, 2)
    crossed = (_side(a, b, c) * _side(a, b, d) < 0) & (_side(c, d, a) * _side(c, d, b) < 0)
    return int(np.sum(crossed))


def _side(a: Array, b: Array, c: Array) -> Array:
    """Positive where c is left of the line from a to b, negative where it is right of it."""
    ab, ac = b - a, c - a
    return np.asarray(ab[..., 0] * ac[..., 1] - ab[..., 1] * ac[..., 0])


def _closeness(one: Array, others: Array) -> float:
    """Share of a line's points that are close to other lines; points at its ends count five."""
    x, y = (one[:, None] - others.reshape(-1, 2)).transpose(2, 0, 1)
    closest = np.min(x**2 + y**2, axis=1, initial=np.inf)
    weight = np.ones(len(one))
    weight[:3] = weight[-3:] = 5.0
    return float(np.mean(weight * np.maximum(0, 1 - closest / CLOSE**2)))


# ---------------------------------------------------------------------- labels


def place_labels(curves: Array, half: Array, nodes: Nodes) -> tuple[Array, tuple[int, int]]:
    """Centres of labels of half the size `half` [arrow, xy], and how many fit badly.

    The latter are the labels that overlap something, and those that only cover an arrow.
    """
    lines = bezier_points(curves, LABEL_POINTS)
    spots = np.array([_spots(curve, size) for curve, size in zip(curves, half, strict=True)])
    labelled = np.flatnonzero(half[:, 0]).tolist()
    fixed = {i: _own_costs(spots[i], lines[i], half[i]) for i in labelled}
    for i in labelled:
        fixed[i] += _other_costs(spots[i], half[i], i, lines, nodes)
    choice = {i: int(np.argmin(cost)) for i, cost in fixed.items()}
    for _ in range(LABEL_ROUNDS):
        before = dict(choice)
        for i in choice:
            choice[i] = int(np.argmin(fixed[i] + _label_costs(i, spots, choice, half)))
        if choice == before:
            break
    centres = np.array([spots[i, choice.get(i, 0)] for i in range(len(curves))])
    costs = [(fixed[i] + _label_costs(i, spots, choice, half))[k] for i, k in choice.items()]
    overlaps = int(np.sum(np.array(costs) >= OVERLAP_COST))
    return centres, (overlaps, int(np.sum(np.array(costs) >= COVER_COST)) - overlaps)


def _spots(curve: Array, half: Array) -> Array:
    """Candidate centres of a label, on a curve and on both sides [side and place along, xy]."""
    ahead = bezier_points(curve, ALONG + 0.01) - bezier_points(curve, ALONG - 0.01)
    across = np.stack([-ahead[:, 1], ahead[:, 0]], axis=1) / np.hypot(*ahead.T)[:, None]
    reach = np.abs(across) @ half + LABEL_MARGIN + 0.03
    steps = SIDES[:, None, None] * across * reach[:, None]
    return np.asarray((bezier_points(curve, ALONG) + steps).reshape(-1, 2))


def _own_costs(spots: Array, line: Array, half: Array) -> Array:
    """Cost of spots by their own arrow: least in its middle and where much of it stays visible."""
    hidden = np.all(np.abs(line - spots[:, None]) < half + LABEL_MARGIN, axis=2)
    length = np.sum(np.hypot(*np.diff(line, axis=0).T))
    before, after = (
        np.argmax(h, axis=1) / LABEL_POINTS.size * length for h in (hidden, hidden[:, ::-1])
    )
    cramped = np.maximum(0, 0.16 - before) + np.maximum(0, 0.24 - after)
    on_curve = 0.9 * hidden.mean(axis=1) + 6 * cramped
    side = np.repeat(np.abs(SIDES), ALONG.size)
    next_to_curve = 0.1 + 0.3 * side + COVER_COST * hidden.any(axis=1)
    off_centre = np.tile(np.abs(ALONG - 0.5), SIDES.size)
    return np.asarray(np.where(side == 0, on_curve, next_to_curve) + 1.2 * off_centre)


def _other_costs(spots: Array, half: Array, own: int, lines: Array, nodes: Nodes) -> Array:
    """Cost of spots by nodes and arrowheads, and by other arrows that they cover or touch."""
    box = half + LABEL_MARGIN
    overlaps = np.sum(nodes.gaps(spots, box) <= 0, axis=1)
    heads = lines[:, -4:].reshape(-1, 2)
    overlaps += np.any(np.all(np.abs(spots[:, None] - heads) < box + 0.03, axis=2), axis=1)
    low, high = spots.min(axis=0) - box - 0.05, spots.max(axis=0) + box + 0.05
    near = np.all((lines.max(axis=1) > low) & (lines.min(axis=1) < high), axis=1)
    near[own] = False
    away = np.abs(spots[:, None, None] - lines[near])
    covered = np.all(away < half + 0.01, axis=3).any(axis=2).sum(axis=1)
    touched = np.all(away < box + 0.05, axis=3).any(axis=2).sum(axis=1)
    return np.asarray(OVERLAP_COST * overlaps + COVER_COST * covered + 0.25 * touched)


def _label_costs(i: int, spots: Array, choice: dict[int, int], half: Array) -> Array:
    """Cost of the spots of a label by other labels that they overlap or come close to."""
    rest = [j for j in choice if j != i]
    centres = spots[rest, [choice[j] for j in rest]]
    away = np.max(np.abs(spots[i][:, None] - centres) - half[i] - half[rest], axis=2)
    overlap, close = away < LABEL_MARGIN, away < 3 * LABEL_MARGIN
    return np.asarray(np.sum(OVERLAP_COST * overlap + 0.3 * close, axis=1))
