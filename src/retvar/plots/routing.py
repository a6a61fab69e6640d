"""How arrows run: arcs that bend apart, loops and ends where there is room."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from retvar.plots.curves import arc, clip, crossings, direction, distances, loop, nearness, points

__all__ = ["Group", "Nodes", "arcs", "free_spot", "loops", "route", "starts"]

Array = NDArray[np.float64]
BENDS = (
    0.0,
    *(sign * b for b in (0.07, 0.14, 0.21, 0.3, 0.4, 0.5, 0.62, 0.75) for sign in (1, -1)),
)
SWAYS = (
    *((bend, 0.0) for bend in BENDS),
    *((b, skew) for b in BENDS[7:] for skew in (0.4, -0.4, 0.8, -0.8)),
)
ANGLES = tuple(22.5 * k for k in range(16))
LIKED = {0.0: 0.05, 270.0: 0.04, 90.0: 0.03, 180.0: 0.03, 315.0: 0.02, 45.0: 0.01}  # of an end
SAMPLES = np.linspace(0, 1, 21)
LOOP, ENTRY = 0.36, 0.34  # inches: how far loops reach, how long the arrow into a start is
NEAR = 0.14  # inches: arrows closer than this are hard to tell apart
SWEEPS = 4
FEW = 40  # groups: up to this many are worth a second try


@dataclass(frozen=True)
class Nodes:
    """Everything that arrows join: states are circles, ends are squares. In inches."""

    centre: Array
    size: Array  #: radius, or half the side
    square: NDArray[np.bool_]

    def shape(self, node: int) -> tuple[float, bool]:
        """Half the size of a node, and whether it is square."""
        return float(self.size[node]), bool(self.square[node])


@dataclass(frozen=True)
class Group:
    """Arrows that move together, and the ways they may run: curves [arrow, 4, xy], and a cost."""

    links: tuple[int, ...]
    nodes: tuple[int, ...]
    options: tuple[Array, ...]
    costs: tuple[float, ...]


def arcs(
    ends: Sequence[tuple[int, int]], sizes: Sequence[tuple[float, float]], nodes: Nodes
) -> list[Group]:
    """Group arrows by the two nodes they join; `sizes` are those of their texts."""
    pairs: dict[tuple[int, int], list[int]] = defaultdict(list)
    for link, (a, b) in enumerate(ends):
        if a != b:
            forward = tuple(nodes.centre[a].round(6)) <= tuple(nodes.centre[b].round(6))
            pairs[(a, b) if forward else (b, a)].append(link)
    groups = []
    for (a, b), members in pairs.items():
        members = sorted(members, key=lambda link: ends[link][0] != a)
        gap = _gap(nodes.centre[b] - nodes.centre[a], [sizes[link] for link in members])
        ahead = [ends[link][0] == a for link in members]
        sways = SWAYS if len(members) == 1 else SWAYS[: len(BENDS)]
        options = tuple(_fan(nodes, a, b, ahead, gap, *sway) for sway in sways)
        length = float(np.hypot(*(nodes.centre[b] - nodes.centre[a])))
        costs = tuple(_effort(bend, skew, length) for bend, skew in sways)
        groups.append(Group(tuple(members), (a, b), options, costs))
    return groups


def _effort(bend: float, skew: float, length: float) -> float:
    """What an arc costs by itself: straight is best, and a wide detour worst."""
    return 0.15 * (bend != 0) + (1.5 + 0.1 * length) * abs(bend) + 0.15 * abs(skew)


def _gap(along: Array, sizes: Iterable[tuple[float, float]]) -> float:
    """Inches between the middles of neighbouring arcs, so that their texts fit side by side."""
    across = np.abs(along[::-1]) / np.hypot(*along)
    need = max(w * across[0] + h * across[1] for w, h in sizes) + 0.1
    return float(np.clip(need, 0.3, 0.46))


def _fan(
    nodes: Nodes, a: int, b: int, forward: list[bool], gap: float, bend: float, skew: float
) -> Array:
    """Arcs side by side about one that bends by a share of its length."""
    start, end = nodes.centre[a], nodes.centre[b]
    middle = bend * float(np.hypot(*(end - start)))
    curves = []
    for k, ahead in enumerate(forward):
        height = middle + ((len(forward) - 1) / 2 - k) * gap
        curve = arc(start, end, height, skew) if ahead else arc(end, start, -height, -skew)
        first, last = (a, b) if ahead else (b, a)
        curves.append(clip(curve, nodes.shape(first), nodes.shape(last)))
    return np.array(curves)


def loops(ends: Sequence[tuple[int, int]], nodes: Nodes) -> list[Group]:
    """Arrows from a state to itself: at any angle, better above."""
    return [
        Group(
            (link,),
            (a,),
            tuple(loop(nodes.centre[a], nodes.size[a], angle, LOOP)[None] for angle in ANGLES),
            tuple(0.1 * (1 - direction(angle)[1]) for angle in ANGLES),
        )
        for link, (a, b) in enumerate(ends)
        if a == b
    ]


def starts(states: Iterable[int], nodes: Nodes, first: int) -> list[Group]:
    """Short arrows into states where episodes start, numbered from `first`; better at the left."""
    groups = []
    for link, s in enumerate(states, first):
        centre, radius = nodes.centre[s], nodes.size[s]
        options = tuple(
            arc(
                centre + (radius + ENTRY) * direction(angle), centre + radius * direction(angle), 0
            )[None]
            for angle in ANGLES
        )
        costs = tuple(0.2 * (1 + direction(angle)[0]) for angle in ANGLES)
        groups.append(Group((link,), (s,), options, costs))
    return groups


def free_spot(
    home: int, nodes: Nodes, ends: Iterable[tuple[int, int]], distances: Sequence[float]
) -> Array:
    """A place for an end near a state: away from other nodes and the straight ways between them."""
    taken = [nodes.centre[i] for i in range(len(nodes.centre)) if i != home]
    share = np.linspace(0, 1, 15)[:, None]
    taken += [
        point
        for a, b in ends
        if a != b
        for point in nodes.centre[a] * (1 - share) + nodes.centre[b] * share
        if np.hypot(*(point - nodes.centre[home])) > 1e-9
    ]
    best, spot = -np.inf, nodes.centre[home]
    for distance in distances:
        for angle in ANGLES:
            place = nodes.centre[home] + distance * direction(angle)
            clear = min((float(np.hypot(*(place - p))) for p in taken), default=np.inf)
            score = min(clear, 0.9 * distance) + LIKED.get(angle, 0.0)
            if score > best + 1e-9:
                best, spot = score, place
    return np.asarray(spot)


def route(groups: Sequence[Group], nodes: Nodes) -> Array:
    """Choose a way for every group so that arrows cross and touch as little as possible.

    Returns the curves [arrow, 4, xy] in the order of the arrows' numbers.
    """
    samples = [[np.array([points(c, SAMPLES) for c in o]) for o in g.options] for g in groups]
    order = list(range(len(groups)))
    orders = (order, order[::-1]) if len(order) <= FEW else (order,)
    tries = [_descend(groups, samples, nodes, o) for o in orders]
    choice = min(tries, key=lambda found: found[0])[1]
    curves = {
        link: curve
        for g, group in enumerate(groups)
        for link, curve in zip(group.links, group.options[choice[g]], strict=True)
    }
    return np.array([curves[link] for link in sorted(curves)]).reshape(-1, 4, 2)


def _descend(
    groups: Sequence[Group], samples: list[list[Array]], nodes: Nodes, order: list[int]
) -> tuple[float, list[int]]:
    """Improve one group after another until nothing changes; the cost, and the options chosen."""
    choice = [int(np.argmin(g.costs)) for g in groups]
    costs = [0.0] * len(groups)
    for _ in range(SWEEPS):
        before = list(choice)
        for g in order:
            chosen = [samples[h][choice[h]] for h in range(len(groups)) if h != g]
            others = np.concatenate(chosen) if chosen else np.zeros((0, SAMPLES.size, 2))
            choice[g], costs[g] = _best(groups[g], samples[g], others, nodes)
        if choice == before:
            break
    return sum(costs), choice


def _best(group: Group, samples: list[Array], others: Array, nodes: Nodes) -> tuple[int, float]:
    """The cheapest option; options that cost more by themselves than the best are not looked at."""
    order = np.argsort(group.costs, kind="stable")
    best, least = int(order[0]), np.inf
    for option in order:
        if group.costs[option] >= least:
            break
        own = group.costs[option]
        cost = own + _trouble(group, samples[option], others, nodes, least - own)
        if cost < least:
            best, least = int(option), cost
    return best, least


def _trouble(group: Group, lines: Array, others: Array, nodes: Nodes, most: float) -> float:
    """What a way costs: nodes it runs through, other arrows near or crossed; stops at `most`."""
    low, high = lines.min(axis=(0, 1)) - NEAR, lines.max(axis=(0, 1)) + NEAR
    rest = others[np.all((others.max(axis=1) > low) & (others.min(axis=1) < high), axis=1)]
    hit = np.array([distances(line, nodes.centre) for line in lines]) < nodes.size + 0.14
    hit[:, list(group.nodes)] = False
    cost = 8.0 * float(np.sum(hit))
    for line in lines:
        if rest.size and cost < most:
            cost += 4.0 * nearness(line, rest, NEAR)
            cost += float(crossings(line[::2], rest[:, ::2]))
    return cost
