"""How arrows run: arcs that bend apart, and loops where there is room."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from retvar.plots.curves import arc, crossings, direction, loop, nearness, part, points
from retvar.plots.layout import Nodes
from retvar.plots.links import Link
from retvar.plots.style import Array

__all__ = ["route"]

BENDS = (0.0, *(s * b for b in (0.07, 0.14, 0.21, 0.3, 0.4, 0.5, 0.62, 0.75) for s in (1, -1)))
SKEWS = (0.0, 0.4, -0.4, 0.8, -0.8)
FINE, SAMPLES = np.linspace(0, 1, 1001), np.linspace(0, 1, 21)
LOOP = 0.36  # inches that loops reach
LOOP_STEPS = (60.0, 90.0, 120.0, 180.0)  # degrees between loops of one state
NEAR = 0.14  # inches: arrows closer than this are hard to tell apart
SWEEPS = 4


@dataclass(frozen=True)
class Group:
    """Arrows between the same two nodes, which move together, and the ways they may run."""

    links: list[int]
    nodes: tuple[int, int]
    options: Array  #: curves [option, arrow, 4, xy]
    costs: list[float]  #: of each option by itself


def route(links: Sequence[Link], sizes: Array, nodes: Nodes) -> Array:
    """Choose ways so that arrows cross and touch as little as possible: curves [arrow, 4, xy].

    `sizes` are those of the arrows' texts, for which parallel arrows leave room.
    """
    groups = _groups(links, sizes, nodes)
    samples = [points(group.options, SAMPLES) for group in groups]
    choice = [int(np.argmin(group.costs)) for group in groups]
    for _ in range(SWEEPS):
        before = list(choice)
        for g, group in enumerate(groups):
            rest = [samples[h][choice[h]] for h in range(len(groups)) if h != g]
            others = np.concatenate([np.zeros((0, SAMPLES.size, 2)), *rest])
            choice[g] = _best(group, samples[g], others, nodes)
        if choice == before:
            break
    curves = np.zeros((len(links), 4, 2))
    for group, chosen in zip(groups, choice, strict=True):
        curves[group.links] = group.options[chosen]
    return curves


def _groups(links: Sequence[Link], sizes: Array, nodes: Nodes) -> list[Group]:
    """Arrows by the two nodes they join; short ones first, as long ones have more room to yield."""
    pairs: dict[tuple[int, int], list[int]] = defaultdict(list)
    for k, link in enumerate(links):
        ends = link.source, link.target
        a, b = sorted(ends, key=lambda node: tuple(nodes.centre[node].round(6)))
        pairs[a, b].append(k)
    way = {(a, b): nodes.centre[b] - nodes.centre[a] for a, b in pairs}
    return [
        _loops(a, pairs[a, b], nodes) if a == b else _arcs(a, b, pairs[a, b], links, sizes, nodes)
        for a, b in sorted(pairs, key=lambda pair: float(np.hypot(*way[pair]).round(6)))
    ]


def _loops(state: int, members: list[int], nodes: Nodes) -> Group:
    """Arrows from a state to itself: at any angle, better above, evenly apart."""
    count = len(members)
    steps = [step for step in LOOP_STEPS if step * count <= 360] if count > 1 else [0.0]
    around = np.arange(count) - (count - 1) / 2
    turns = [22.5 * k + step * around for step in steps for k in range(16)]
    where = nodes.centre[state], float(nodes.radius[state])
    options = [[loop(*where, angle, LOOP) for angle in turn] for turn in turns]
    costs = [sum(0.1 * (1 - direction(angle)[1]) for angle in turn) for turn in turns]
    return Group(members, (state, state), np.array(options), costs)


def _arcs(
    a: int, b: int, members: list[int], links: Sequence[Link], sizes: Array, nodes: Nodes
) -> Group:
    """Arcs side by side, far enough apart for their texts, about one that bends."""
    members = sorted(members, key=lambda k: links[k].source != a)
    start, end = nodes.centre[a], nodes.centre[b]
    length = float(np.hypot(*(end - start)))
    across = np.abs(end - start)[::-1] / length
    gap = np.clip(np.max(sizes[members] @ across) + 0.1, 0.3, 0.46)
    offsets = gap * ((len(members) - 1) / 2 - np.arange(len(members)))
    ahead = [links[k].source == a for k in members]
    skews = SKEWS if len(members) == 1 else (0.0,)
    options, costs = [], []
    for skew, bend in product(skews, BENDS):
        curves = [_clip(arc(start, end, bend * length + x, skew), a, b, nodes) for x in offsets]
        options.append([c if f else c[::-1] for c, f in zip(curves, ahead, strict=True)])
        effort = 0.15 * (bend != 0) + (1.5 + 0.1 * length) * abs(bend) + 0.15 * abs(skew)
        costs.append(effort)  # straight is best, and a wide detour worst
    return Group(members, (a, b), np.array(options), costs)


def _clip(curve: Array, a: int, b: int, nodes: Nodes) -> Array:
    """The part of a curve outside the two nodes that it joins."""
    gaps = nodes.gaps(points(curve, FINE), only=(a, b))
    outside = FINE[np.all(gaps > 0, axis=1)]
    return part(curve, outside[0], outside[-1]) if outside.size else curve


def _best(group: Group, samples: Array, others: Array, nodes: Nodes) -> int:
    """The cheapest option; options that cost more by themselves than the best are not looked at."""
    best, least = 0, np.inf
    for option in np.argsort(group.costs, kind="stable"):
        own = group.costs[option]
        if own >= least:
            break
        cost = own + _trouble(group, samples[option], others, nodes, least - own)
        if cost < least:
            best, least = int(option), cost
    return best


def _trouble(group: Group, lines: Array, others: Array, nodes: Nodes, most: float) -> float:
    """What a way costs: nodes it runs through, other arrows near or crossed; `most` is enough."""
    hit = np.any(nodes.gaps(lines) < NEAR, axis=1)
    hit[:, list(group.nodes)] = False
    cost = 8.0 * float(np.sum(hit))
    low, high = lines.min(axis=(0, 1)) - NEAR, lines.max(axis=(0, 1)) + NEAR
    rest = others[np.all((others.max(axis=1) > low) & (others.min(axis=1) < high), axis=1)]
    for line in lines:
        if cost < most:
            cost += 4 * nearness(line, rest, NEAR) + crossings(line[::2], rest[:, ::2])
    return cost
