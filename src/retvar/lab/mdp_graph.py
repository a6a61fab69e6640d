"""The graph of an MDP as SVG, drawn within milliseconds: for pages on which it changes.

What is drawn and where the states lie is that of :func:`retvar.plots.draw_mdp`. The arrows are not
searched for: an arc for each, side by side where several join two states.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from retvar.format import short_number
from retvar.html import escaped
from retvar.lab.svg import INK, ORANGE, PAPER, SOFT, colour, svg
from retvar.mdp import END, MDP
from retvar.plots.graph_content import Arrow, GraphContent, graph_content
from retvar.plots.graph_layout import (
    DISCOUNT_SIZE,
    LABEL_SIZE,
    NAME_SIZE,
    Nodes,
    networkx_layout,
    place_nodes,
    place_states,
)
from retvar.plots.style import POINT, Array, text_size

__all__ = ["MOST_DRAWN", "graph_svg"]

MOST_DRAWN = 30  #: states; of more there is a sentence instead
MOST_COLOURS = 5  # actions that have a colour of their own
SCALE = 118.0  # pixels per inch
MARGIN = 0.1  # inches around the drawing
GAP = 0.36  # inches between arrows that join the same two states
LOOP = 0.5  # inches: how far a loop reaches
SHARES = np.linspace(0.0, 1.0, 41)  # of a curve, where it is looked at
PLACES = (0.5, 0.4, 0.6, 0.32, 0.68)  # of a label along its arrow, the best first
TURNS = np.radians(22.5 * np.arange(16))


def graph_svg(
    mdp: MDP,
    policy: object = None,
    *,
    numbers: Sequence[str] | None = None,
    marked: Collection[int] = (),
) -> str:
    """Draw an MDP as a graph; an arrow says what it stands for when one points at it.

    Parameters
    ----------
    mdp, policy
        Edges that the policy never takes are left out; default: the MDP's first policy.
    numbers
        A text in each state, such as its value; default: its γ and λ where these differ.
    marked
        States with a border in another colour.

    Examples
    --------
    >>> import retvar as rv
    >>> drawn = graph_svg(rv.domains.chain())
    >>> drawn.count("<circle"), drawn.count("data-arrow")
    (4, 5)
    """
    title = f"The graph of {mdp.name or 'the MDP'}"
    if mdp.n_states > MOST_DRAWN:
        return f"<p>{mdp.n_states:,} states are too many to draw here.</p>"
    content = graph_content(mdp, mdp.policy(policy))
    if numbers is not None:
        content = replace(content, discounts=list(numbers))
    nodes = place_nodes(content, place_states(content, _positions(mdp, content)))
    curves = _curves(content.arrows, nodes)
    labels = _place_labels(content.arrows, curves, nodes)
    view = _View(curves, nodes, labels, content)
    parts = [view.arrow(k, mdp) for k in range(len(curves))]
    parts += [view.state(k, k in marked) for k in range(mdp.n_states)]
    parts += [view.marker(k) for k in range(mdp.n_states, len(nodes.centre))]
    parts += [view.label(k) for k in range(len(curves))]
    legend, below = _legend(mdp, content, view)
    told = f"{mdp!r}. " + "; ".join(_told(mdp, a) for a in content.arrows if a.edges)
    return svg(title, told, view.width, view.height + below, [*parts, *legend])


def _positions(mdp: MDP, content: GraphContent) -> Array:
    """Where states lie: as the MDP says, or by networkx, once for each set of arrows."""
    n = mdp.n_states
    if mdp.positions is not None and len(np.unique(mdp.positions, axis=0)) == n:
        return np.asarray(mdp.positions)
    pairs = [(a.source, a.target) for a in content.arrows if max(a.source, a.target) < n]
    return np.array(_layout(n, tuple(sorted(set(pairs)))))


@lru_cache(maxsize=256)
def _layout(n: int, pairs: tuple[tuple[int, int], ...]) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, networkx_layout(n, pairs).tolist()))


# ---------------------------------------------------------------------- curves


def _curves(arrows: Sequence[Arrow], nodes: Nodes) -> list[Array]:
    """Quadratic curves for arcs and cubic ones for loops, outside of the nodes they join."""
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for k, arrow in enumerate(arrows):
        a, b = sorted((arrow.source, arrow.target))
        groups[a, b].append(k)
    found: dict[int, Array] = {}
    for (a, b), members in groups.items():
        if a == b:
            found |= dict(zip(members, _loops(a, len(members), groups, nodes), strict=True))
            continue
        middle = _clear_height(a, b, nodes) if len(members) == 1 else 0.0
        for k, at in enumerate(members):
            height = middle + GAP * ((len(members) - 1) / 2 - k)
            curve = _arc(nodes.centre[a], nodes.centre[b], height)
            curve = _outside(curve, a, b, nodes)
            found[at] = curve if arrows[at].source == a else curve[::-1]
    return [found[k] for k in range(len(arrows))]


def _arc(start: Array, end: Array, height: float) -> Array:
    """Control points of an arc whose middle is `height` to the left of the straight line."""
    along = end - start
    left = np.array([-along[1], along[0]]) / max(float(np.hypot(*along)), 1e-9)
    return np.stack([start, (start + end) / 2 + 2 * height * left, end])


def _points(curve: Array, t: Array) -> Array:
    """Points of a curve with three or four control points, by de Casteljau's scheme."""
    layer = np.repeat(curve[None], len(t), axis=0)
    share = t[:, None, None]
    while layer.shape[1] > 1:
        layer = (1 - share) * layer[:, :-1] + share * layer[:, 1:]
    return np.asarray(layer[:, 0])


def _clear_height(a: int, b: int, nodes: Nodes) -> float:
    """How far an arc must bend so that it passes by the other nodes."""
    others = [k for k in range(len(nodes.centre)) if k not in (a, b)]
    if not others:
        return 0.0
    length = float(np.hypot(*(nodes.centre[b] - nodes.centre[a])))
    heights = [0.0, *(side * share * length for share in (0.15, 0.3, 0.45) for side in (1, -1))]
    ends = nodes.centre[a], nodes.centre[b]
    gaps = [nodes.gaps(_points(_arc(*ends, height), SHARES)) for height in heights]
    clear = [float(each[:, others].min()) for each in gaps]
    good = (h for h, gap in zip(heights, clear, strict=True) if gap > 0.05)
    return next(good, heights[int(np.argmax(clear))])


def _outside(curve: Array, a: int, b: int, nodes: Nodes) -> Array:
    """The part of an arc between the borders of two nodes."""
    gaps = nodes.gaps(_points(curve, SHARES), only=(a, b)).min(axis=1)
    out = np.flatnonzero(gaps > 0)
    if out.size < 2:
        return curve
    first, last = _border(gaps, out[0] - 1), _border(gaps, out[-1])
    (p, q, r), (s, e) = curve, (first, last)
    middle = (1 - s) * (1 - e) * p + (s * (1 - e) + e * (1 - s)) * q + s * e * r
    ends = _points(curve, np.array([s, e]))
    return np.stack([ends[0], middle, ends[1]])


def _border(gaps: Array, k: int) -> float:
    """The share at which the gap is 0, between the shares k and k + 1."""
    k = int(np.clip(k, 0, len(gaps) - 2))
    before, after = gaps[k], gaps[k + 1]
    within = 0.0 if before == after else float(np.clip(before / (before - after), 0, 1))
    return float(SHARES[k] + within * (SHARES[1] - SHARES[0]))


def _loops(
    state: int, count: int, groups: dict[tuple[int, int], list[int]], nodes: Nodes
) -> list[Array]:
    """Loops of a state, where most room is left by the nodes around and the arrows to them."""
    away = nodes.centre - nodes.centre[state]
    distance = np.hypot(*away.T)
    near = (distance > 0) & (distance < 3.5)
    joined = {a + b - state for a, b in groups if state in (a, b) and a != b}
    weight = np.array([1.0 + 2.0 * (k in joined) for k in range(len(distance))])
    angles = np.arctan2(away[:, 1], away[:, 0])
    crowd = np.zeros(TURNS.size)
    for angle, far, heavy in zip(angles[near], distance[near], weight[near], strict=True):
        crowd += heavy * np.maximum(0, np.cos(TURNS - angle)) ** 6 / (0.4 + far)
    crowd += 0.02 * (1 - np.sin(TURNS))  # above rather than below
    radius, found = float(nodes.radius[state]), []
    for _ in range(count):
        turn = TURNS[int(np.argmin(crowd))]
        crowd += 3.0 * np.maximum(0, np.cos(TURNS - turn)) ** 6
        sides = np.array([turn + 0.45, turn + 0.6, turn - 0.6, turn - 0.45])
        reach = np.array([radius, radius + 1.5 * LOOP, radius + 1.5 * LOOP, radius])
        shape = reach[:, None] * np.stack([np.cos(sides), np.sin(sides)], axis=1)
        found.append(nodes.centre[state] + shape)
    return found


def _place_labels(arrows: Sequence[Arrow], curves: Sequence[Array], nodes: Nodes) -> Array:
    """Centres of the labels: on their arrows, where they overlap least what is there already."""
    spots = np.array([_points(curve, np.array(PLACES)) for curve in curves])
    half = np.array([text_size(arrow.text, LABEL_SIZE) for arrow in arrows]) / 2
    chosen = spots[:, 0].copy()
    done: list[int] = []
    for k in np.argsort(-half[:, 0], kind="stable").tolist():
        if half[k, 0] == 0:
            continue
        hidden = (nodes.gaps(spots[k], half[k]) <= 0).sum(axis=1)
        overlaps = np.zeros(len(PLACES))
        if done:
            away = np.abs(spots[k][:, None] - chosen[done]) - half[k] - half[done]
            overlaps = np.all(away < 0.02, axis=2).sum(axis=1)
        chosen[k] = spots[k, int(np.argmin(2 * hidden + overlaps + 0.01 * np.arange(len(PLACES))))]
        done.append(k)
    return chosen


# ---------------------------------------------------------------------- parts


class _View:
    """The parts of a drawing as SVG, in pixels from the upper left corner."""

    def __init__(
        self, curves: Sequence[Array], nodes: Nodes, labels: Array, content: GraphContent
    ) -> None:
        self.curves, self.nodes, self.labels, self.content = curves, nodes, labels, content
        sizes = np.array([text_size(arrow.text, LABEL_SIZE) for arrow in content.arrows])
        spread = nodes.half + nodes.radius[:, None]
        lines = np.concatenate([_points(curve, SHARES) for curve in curves])
        low = [lines, nodes.centre - spread, labels - sizes / 2]
        high = [lines, nodes.centre + spread, labels + sizes / 2]
        self.low = np.concatenate(low).min(axis=0) - MARGIN
        self.high = np.concatenate(high).max(axis=0) + MARGIN
        self.width, self.height = (float(x) for x in (self.high - self.low) * SCALE)

    def at(self, point: Array) -> tuple[float, float]:
        return (
            float(point[0] - self.low[0]) * SCALE,
            float(self.high[1] - point[1]) * SCALE,
        )

    def arrow(self, k: int, mdp: MDP) -> str:
        arrow, points = self.content.arrows[k], [self.at(point) for point in self.curves[k]]
        ink = _arrow_colour(mdp, arrow)
        (tip, before), back = (np.array(points[j]) for j in (-1, -2)), 8.5
        ahead = (tip - before) / max(float(np.hypot(*(tip - before))), 1e-9)
        side = np.array([-ahead[1], ahead[0]])
        root = tip - back * ahead
        head = [tip, root + 0.42 * back * side, root - 0.42 * back * side]
        points[-1] = (float(root[0]), float(root[1]))
        texts = [f"{x:.1f} {y:.1f}" for x, y in points]
        command = "Q" if len(points) == 3 else "C"
        path = f"M{texts[0]}{command}{' '.join(texts[1:])}"
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in head)
        told = f"<title>{escaped(_told(mdp, arrow))}</title>" if arrow.edges else ""
        return (
            f'<g data-arrow="{"-".join(map(str, arrow.edges)) or "start"}">{told}'
            f'<path d="{path}" fill="none" stroke="{ink}" stroke-width="1.6"/>'
            f'<polygon points="{corners}" fill="{ink}"/></g>'
        )

    def state(self, k: int, marked: bool) -> str:
        x, y = self.at(self.nodes.centre[k])
        radius = float(self.nodes.radius[k]) * SCALE
        name, small = self.content.names[k], self.content.discounts[k].split("\n")
        small = [line for line in small if line]
        look = f'stroke="{ORANGE if marked else INK}" stroke-width="{3 if marked else 1.4}"'
        drawn = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{PAPER}" {look}/>'
        step = DISCOUNT_SIZE * POINT * SCALE * 1.2
        top = y - step * len(small) / 2
        drawn += _written(x, top, name, NAME_SIZE, ' font-weight="600"')
        for j, line in enumerate(small):
            drawn += _written(x, top + 3 + step * (j + 1), line, DISCOUNT_SIZE)
        return f'<g data-state="{escaped(name)}">{drawn}</g>'

    def marker(self, k: int) -> str:
        text = self.content.markers[k - len(self.content.names)][1]
        x, y = self.at(self.nodes.centre[k])
        if text != "end":
            return _written(x, y, text, LABEL_SIZE, ink=SOFT)
        w, h = (float(side) * SCALE for side in self.nodes.half[k])
        box = f'x="{x - w:.1f}" y="{y - h:.1f}" width="{2 * w:.1f}" height="{2 * h:.1f}"'
        return f'<rect {box} rx="3" fill="{INK}"/>' + _written(x, y, text, DISCOUNT_SIZE, ink=PAPER)

    def label(self, k: int) -> str:
        arrow = self.content.arrows[k]
        lines = arrow.text.split("\n") if arrow.text else []
        if not lines:
            return ""
        x, y = self.at(self.labels[k])
        w, h = (side * SCALE for side in text_size(arrow.text, LABEL_SIZE))
        box = f'x="{x - w / 2:.1f}" y="{y - h / 2:.1f}" width="{w:.1f}" height="{h:.1f}"'
        drawn = f'<rect {box} fill="{PAPER}" opacity="0.86"/>'
        step = LABEL_SIZE * POINT * SCALE * 1.2
        for j, line in enumerate(lines):
            drawn += _written(x, y + step * (j - (len(lines) - 1) / 2), line, LABEL_SIZE)
        return f'<g pointer-events="none">{drawn}</g>'


def _written(x: float, y: float, text: str, size: float, more: str = "", ink: str = INK) -> str:
    pixels = size * POINT * SCALE
    return (
        f'<text x="{x:.1f}" y="{y + 0.36 * pixels:.1f}" font-size="{pixels:.1f}" '
        f'text-anchor="middle" fill="{ink}"{more}>{escaped(text)}</text>'
    )


def _arrow_colour(mdp: MDP, arrow: Arrow) -> str:
    """The colour of the arrow's action, if there are a few actions."""
    actions = {int(mdp.edges.action[k]) for k in arrow.edges}
    if not 1 < mdp.n_actions <= MOST_COLOURS or len(actions) != 1:
        return INK if arrow.edges else SOFT
    return colour(actions.pop())


def _told(mdp: MDP, arrow: Arrow) -> str:
    """What an arrow stands for, in words."""
    e, told = mdp.edges, []
    for k in arrow.edges:
        to = "end" if e.next_state[k] == END else mdp.state_name(int(e.next_state[k]))
        noise = f" ± {short_number(float(e.reward_std[k]))}" if e.reward_std[k] else ""
        told.append(
            f"{mdp.state_name(int(e.state[k]))}, {mdp.action_name(int(e.action[k]))} → {to}: "
            f"probability {short_number(float(e.probability[k]))}, "
            f"reward {short_number(float(e.reward[k]))}{noise}"
        )
    return "; ".join(told)


def _legend(mdp: MDP, content: GraphContent, view: Any) -> tuple[list[str], float]:
    """Colours of the actions and what all states share, below the drawing; and its height."""
    parts, x, y, size = [], 8.0, view.height + 14, LABEL_SIZE * POINT * SCALE
    if 1 < mdp.n_actions <= MOST_COLOURS:
        for a in range(mdp.n_actions):
            name = mdp.action_name(a)[:24]
            width = 30 + text_size(name, LABEL_SIZE)[0] * SCALE
            if x > 8 and x + width > view.width:
                x, y = 8.0, y + 1.5 * size
            look = f'stroke="{colour(a)}" stroke-width="2.5"'
            parts.append(f'<path d="M{x:.1f} {y:.1f}h18" {look}/>')
            parts.append(
                f'<text x="{x + 23:.1f}" y="{y + 0.36 * size:.1f}" font-size="{size:.1f}" '
                f'fill="{INK}">{escaped(name)}</text>'
            )
            x += width + 8
        y += 1.5 * size
    for note in content.notes:
        parts.append(
            f'<text x="8" y="{y + 0.36 * size:.1f}" font-size="{size:.1f}" fill="{SOFT}">'
            f"{escaped(note)}</text>"
        )
        y += 1.5 * size
    return parts, y - view.height - (0.5 * size if parts else 14)
