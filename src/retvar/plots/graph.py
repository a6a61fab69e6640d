"""An MDP drawn as a graph, or as a matrix of probabilities where it has many states.

What is drawn (:func:`graph_content`), where nodes, arrows and labels lie (:func:`arrange`), and the
drawing. Lengths are inches, points and sizes complex numbers; a curve is a row of points.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path
from numpy.typing import NDArray

from retvar.mdp import END, MDP
from retvar.plots import style
from retvar.plots.maps import draw_matrix
from retvar.plots.style import INK, LINE, SOFT, Array, Figure, shown, text_size
from retvar.support import arguments
from retvar.support.format import short_number

Points = NDArray[np.complex128]

MAX_STATES = 30  # with more, the graph becomes a matrix
MAX_PARALLEL = 3  # more edges between two states are merged
MAX_LABELLED = 40  # with more arrows, what most of them share goes into a note
MAX_STARTS = 3  # more start states are not marked
MAX_LAYER = 4  # states in one layer of an acyclic graph
GREEK = {"mu": "μ", "pi": "π", "beta": "β"}
NAME_SIZE, SMALL_SIZE, LABEL_SIZE = 9.0, 6.5, 7.5  # points
END_HALF = 0.13  # half the side of an end
LOOP_LENGTH = 0.36
CLOSE = 0.14  # arrows closer than this are hard to distinguish
LABEL_MARGIN, MARGIN = 0.03, 0.08
EVEN = 1 + 1j  # as far along x as along y
SCALES = (1.0, 1.1, 1.2, 1.35, 1.5, 1.7, 1.9)  # of distances, tried until no label overlaps
ROUNDS = 6  # of choosing routes, and spots of labels, given those of the others
POINTS = 41  # of a curve
BENDS = (0.0, *(s * b for b in (0.07, 0.14, 0.21, 0.3, 0.4, 0.5, 0.62, 0.75) for s in (1, -1)))
SKEWS = (0.0, 0.4, -0.4, 0.8, -0.8)
ALONG = np.array([20, 18, 22, 16, 24, 14, 26, 11, 29, 9, 31])  # points where a label may lie
SIDES = np.array([0.0, 1.0, 0.8, 0.6, -1.0, -0.8, -0.6])  # 0: on the curve; ±1: clear of it
OVERLAP, COVER = 20.0, 3.0  # cost of overlapping a label, node or head; of covering an arrow


class Arrow(NamedTuple):
    """An arrow between two nodes: one edge, several merged edges, or none for a start."""

    source: int
    target: int
    lines: tuple[str, ...] = ()  #: probability and reward; empty where a note gives them
    edges: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """The label of the arrow."""
        return "\n".join(filter(None, self.lines))


class GraphContent(NamedTuple):
    """Arrows and texts of a graph. Nodes are the states, followed by start and end markers."""

    arrows: list[Arrow]
    names: list[str]  #: of the states
    discounts: list[str]  #: γ and λ of each state
    markers: list[tuple[int, str]]  #: state next to which each marker is drawn, and its text
    note: str


def graph_content(mdp: MDP, policy: object = None) -> GraphContent:
    """Collect what to draw for one policy, or for all of the MDP's (None)."""
    policies = dict(mdp.policies) if policy is None else {"": policy}
    e, chosen = mdp.edges, [mdp.policy(one).probabilities for one in policies.values()]
    table = np.array([p[e.state, e.action] * e.probability for p in chosen])
    taken = np.flatnonzero(np.any(table > 0, axis=0)).tolist()
    groups, initials = _merged_edges(mdp, taken), Counter(name[:1] for name in policies)
    short = [name[:1] if initials[name[:1]] == 1 else shown(name) for name in policies]
    symbols = [GREEK.get(*both) for both in zip(policies, short, strict=True)]
    symbols = symbols if len(policies) > 1 else [""]
    arrows = [_arrow(mdp, group, table, symbols) for group in groups]
    arrows, shared = _shorten(arrows) if len(arrows) > MAX_LABELLED else (arrows, "")
    arrows, markers = _add_markers(mdp, arrows)
    discounts, everywhere = _discounts(mdp)
    named = [(s, p) for s, p in zip(symbols, policies, strict=True) if len(s) == 1]
    meant = [f"{s}: {shown(p)}" for s, p in named if p not in GREEK]
    merged = "probabilities of edges drawn as one are added" * (len(groups) < len(taken))
    note = ";  ".join(filter(None, (everywhere, ", ".join(meant), shared, merged)))
    names = [shown(mdp.state_name(s)) for s in range(mdp.n_states)]
    return GraphContent(arrows, names, discounts, markers, note)


def _merged_edges(mdp: MDP, taken: list[int]) -> list[tuple[int, ...]]:
    """Edges drawn as one arrow: if there are many, equal ones, or all between two states."""
    e = mdp.edges
    table = np.stack([e.state, e.next_state, e.reward, e.reward_std, e.gamma], axis=1)
    rows = {i: tuple(table[i].tolist()) for i in taken}
    parallel = Counter(row[:2] for row in rows.values())
    if len(taken) <= MAX_LABELLED and max(parallel.values()) <= MAX_PARALLEL:
        return [(i,) for i in taken]
    distinct = Counter(row[:2] for row in set(rows.values()))
    groups: dict[tuple[float, ...], tuple[int, ...]] = defaultdict(tuple)
    for i, row in rows.items():
        groups[row[:2] if distinct[row[:2]] > MAX_PARALLEL else row] += (i,)
    return list(groups.values())


def _arrow(mdp: MDP, edges: tuple[int, ...], table: Array, symbols: list[str]) -> Arrow:
    """An arrow with its probability under each policy (small ones with one digit) and reward."""
    chances = table[:, edges].sum(axis=1).round(12).tolist()
    short = [short_number(p if p >= 0.01 else float(f"{p:.1g}")) for p in chances]
    parts = [f"{s} {p}".strip() for s, p in zip(symbols, short, strict=True)]
    e, rewards = mdp.edges, set()
    for i in edges:
        mean, spread, gamma = (short_number(float(x[i])) for x in (e.reward, e.reward_std, e.gamma))
        text = f"r = {mean} ± {spread}" if e.reward_std[i] > 0 else f"r = {mean}"
        rewards.add(text if mdp.gamma is not None else f"{text}\nγ = {gamma}")
    lines = "  ".join(parts), rewards.pop() if len(rewards) == 1 else f"{len(edges)} edges"
    return Arrow(int(e.state[edges[0]]), int(e.next_state[edges[0]]), lines, edges)


def _shorten(arrows: list[Arrow]) -> tuple[list[Arrow], str]:
    """Remove the probability and the reward that most arrows share; return a note with them."""
    shared = []
    for k, prefix in enumerate(("p = ", "")):
        text, count = Counter(arrow.lines[k] for arrow in arrows).most_common(1)[0]
        if 2 * count >= len(arrows):
            shared.append(prefix + text)
            left = [["" if line == text else line for line in x.lines] for x in arrows]
            arrows = [x._replace(lines=tuple(y)) for x, y in zip(arrows, left, strict=True)]
    return arrows, f"{' and '.join(shared)} where not written" if shared else ""


def _add_markers(mdp: MDP, arrows: list[Arrow]) -> tuple[list[Arrow], list[tuple[int, str]]]:
    """Add start and end markers as nodes; return the arrows that use them, and the markers."""
    starts = np.flatnonzero(mdp.start).tolist()
    if len(starts) > MAX_STARTS or len(starts) == mdp.n_states > 1:
        starts = []
    shares = [f" {short_number(float(mdp.start[s]))}" * (len(starts) > 1) for s in starts]
    ends = sorted({arrow.source for arrow in arrows if arrow.target == END})
    node = {state: k for k, state in enumerate(ends, mdp.n_states + len(starts))}
    arrows = [a._replace(target=node[a.source]) if a.target == END else a for a in arrows]
    arrows += [Arrow(k, state) for k, state in enumerate(starts, mdp.n_states)]
    texts = [f"start{share}" for share in shares] + ["end"] * len(ends)
    return arrows, list(zip(starts + ends, texts, strict=True))


def _discounts(mdp: MDP) -> tuple[list[str], str]:
    """γ and λ of each state as text, and a note for those that are the same in all states."""
    inside, shared = [""] * mdp.n_states, []
    for letter, values in (("γ", mdp.gamma), ("λ", mdp.lam)):
        known = {} if values is None else {s: float(v) for s, v in enumerate(values) if v == v}
        if len(set(known.values())) == 1:
            shared.append(f"{letter} = {short_number(next(iter(known.values())))}")
            continue
        for s, value in known.items():
            inside[s] += "\n" * bool(inside[s]) + f"{letter}={short_number(value)}"
    return inside, ", ".join(shared)


class Nodes(NamedTuple):
    """Nodes as circles; ends and starts fill theirs."""

    centre: Points
    radius: Array

    def gaps(self, spots: Points, half: complex = 0.0) -> Array:
        """Distances of points, or of boxes around them, from nodes [..., node]; ≤ 0: touching."""
        away, half = spots[..., None] - self.centre, complex(half)
        x, y = np.abs(away.real) - half.real, np.abs(away.imag) - half.imag
        return np.asarray(np.hypot(np.maximum(x, 0), np.maximum(y, 0)) - self.radius)


def _sizes(texts: Iterable[str], size: float, weight: str = "normal") -> Points:
    """Widths and heights of texts."""
    return np.array([complex(*text_size(text, size, weight)) for text in texts])


def _outside(vectors: Points, half: Any) -> Array:
    """How far vectors lie outside of a box of half this size, along x or y; negative: inside."""
    x, y = np.abs(vectors.real) - half.real, np.abs(vectors.imag) - half.imag
    return np.asarray(np.maximum(x, y))


def place_nodes(
    content: GraphContent, positions: Array | None, sizes: Points, scale: float
) -> Nodes:
    """All nodes: states far enough apart for labels, and each marker at a free spot near one."""
    n, arrows = len(content.names), content.arrows
    ends = [(a.source, a.target) for a in arrows]
    pairs = [pair for pair in ends if max(pair) < n and pair[0] != pair[1]]
    if positions is None or len(np.unique(positions, axis=0)) < n:
        positions = networkx_layout(n, pairs)
    names, small = _sizes(content.names, NAME_SIZE, "bold"), _sizes(content.discounts, SMALL_SIZE)
    corners = np.maximum(names.real, small.real) + 1j * (names + small).imag
    radius = max(0.2, float(np.abs(corners).max()) / 2 + 0.05)
    centres: Points = positions @ np.array([1, 1j])
    length = np.abs(centres[:, None] - centres)
    np.fill_diagonal(length, np.inf)
    need = np.full((n, n), 2 * radius + 0.35)
    for a, b in pairs:
        along = (centres[b] - centres[a]) / length[a, b]
        widest = abs(along.real) * sizes.real.max() + abs(along.imag) * sizes.imag.max()
        need[a, b] = 2 * radius + 0.6 + widest
    nodes = Nodes(centres * np.max(need / length) * scale, np.full(n, radius))
    for marker, (state, text) in enumerate(content.markers, n):
        size = END_HALF if text == "end" else text_size(text, LABEL_SIZE)[0] / 2 + 0.03
        width = max(w for pair, w in zip(ends, sizes.real, strict=True) if marker in pair)
        spot = _free_spot(state, nodes, pairs, radius + size + width + 0.45, text == "end")
        nodes = Nodes(np.append(nodes.centre, spot), np.append(nodes.radius, size))
    return nodes


def networkx_layout(n: int, pairs: Sequence[tuple[int, int]]) -> Array:
    """Positions of n states: layers if the graph has no cycles, otherwise Kamada and Kawai's."""
    import networkx as nx

    graph = nx.DiGraph()
    graph.add_nodes_from(range(n))
    graph.add_edges_from(pairs)
    if pairs and nx.is_directed_acyclic_graph(graph):
        layers = list(nx.topological_generations(graph))
        if max(map(len, layers)) <= MAX_LAYER:
            downwards = {k: sorted(layer, reverse=True) for k, layer in enumerate(layers)}
            found = nx.multipartite_layout(graph, subset_key=downwards)
            return np.array([found[state] for state in range(n)])
    steps = dict(nx.all_pairs_shortest_path_length(graph.to_undirected()))
    far = 1.5 + max(max(row.values()) for row in steps.values())  # where no path joins states
    lengths = {a: {b: steps[a].get(b, far) for b in graph} for a in graph}
    found = nx.kamada_kawai_layout(graph, dist=lengths)
    x = np.array([found[state] for state in range(n)])
    x -= x.mean(axis=0)
    _, extents, axes = np.linalg.svd(x, full_matrices=False)
    if n > 1 and extents[0] > 1.05 * extents[1]:  # the longest extent becomes horizontal
        x = x @ axes.T
        x[:, 1] *= extents[1] > 0.02 * extents[0]  # nearly a line: exactly a line
    x = x.round(6) + 0.0
    flip = np.array([x[0, 0] > 0, x[1:2, 1].sum() < 0])  # the first state left, the next above
    return np.asarray(np.where(flip, -x, x))


def _free_spot(
    state: int, nodes: Nodes, pairs: Sequence[tuple[int, int]], reach: float, end: bool
) -> complex:
    """A spot near a state, away from nodes and lines between them; ends right, starts left."""
    ways = np.exp(1j * np.radians(22.5 * np.arange(16)))
    preference = (0.01 * ways.real - 0.004 * ways.imag) * (1 if end else -1)
    preference += 0.04 * (np.arange(16) % 4 == 0)
    centres, share = nodes.centre - nodes.centre[state], np.linspace(0, 1, 15)
    taken = [centres, *(centres[a] * (1 - share) + centres[b] * share for a, b in pairs)]
    away = np.concatenate(taken)
    apart = np.abs(centres[nodes.radius == nodes.radius[0]])  # of states
    nearest = np.min(apart, initial=np.inf, where=apart > 0)
    reaches = np.minimum(reach, [nearest, 0.7 * nearest])[:, None]
    spots = reaches * ways
    free = np.abs(spots[..., None] - away[np.abs(away) > 1e-9]).min(axis=2, initial=np.inf)
    score = np.minimum(free, 0.9 * reaches) + preference
    return complex(nodes.centre[state] + spots.ravel()[np.argmax(score.round(9))])


def route(arrows: Sequence[Arrow], sizes: Points, nodes: Nodes) -> Points:
    """Curves [arrow, point] that cross and touch as little as possible.

    Arrows between the same two nodes are routed together, with space for labels of these sizes.
    Short arrows are first, since long ones can avoid them.
    """
    pairs: dict[tuple[int, int], list[int]] = defaultdict(list)
    for k, arrow in enumerate(arrows):
        a, b = sorted((arrow.source, arrow.target), key=lambda i: nodes.centre[i].round(6))
        pairs[a, b].append(k)
    groups, curves = [], np.zeros((len(arrows), POINTS), dtype=complex)
    for a, b in sorted(pairs, key=lambda p: np.abs(np.diff(nodes.centre[list(p)])).round(6)):
        own = sorted(pairs[a, b], key=lambda k: arrows[k].source != a)
        ways = [1 if arrows[k].source == a else -1 for k in own]
        found, costs = _loops(a, ways, nodes) if a == b else _arcs(a, b, ways, sizes[own], nodes)
        curves[own] = found[np.argmin(costs)]
        hit = np.any(nodes.gaps(found[..., ::2]) < CLOSE, axis=2)
        hit[..., [a, b]] = False
        groups.append((own, found, costs + 8 * hit.sum(axis=(1, 2))))
    for _, (own, found, costs) in product(range(ROUNDS), groups):
        others, least = np.delete(curves, own, axis=0)[:, ::2], np.inf
        for k in np.argsort(costs, kind="stable"):
            if costs[k] >= least:
                break
            cost = costs[k] + sum(_conflicts(line, others) for line in found[k, :, ::2])
            if cost < least:
                curves[own], least = found[k], cost
    return curves


def _bezier_points(curve: Points, count: int = POINTS) -> Points:
    """Points of a Bézier curve, or of several [..., 4]."""
    t = np.linspace(0, 1, count)
    weights = np.array([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3])
    return np.asarray(curve @ weights)


def _loops(state: int, ways: list[int], nodes: Nodes) -> tuple[Points, Array]:
    """Loops at all angles, evenly spaced [route, arrow, point], and their costs: least above."""
    count, radius = len(ways), nodes.radius[state]
    steps = [step for step in (60, 90, 120, 180) if step * count <= 360] if count > 1 else [0]
    apart = np.arange(count) - (count - 1) / 2
    turns = np.array([22.5 * k + step * apart for step in steps for k in range(16)])
    far = 1.08 * (radius + LOOP_LENGTH * 4 / 3)
    angles = np.exp(1j * np.radians(turns[..., None] + [26, 26, -26, -26]))
    curves = nodes.centre[state] + angles * [radius, far, far, radius]
    return _bezier_points(curves), np.sum(0.1 * (1 - np.sin(np.radians(turns))), axis=1)


def _arcs(a: int, b: int, ways: list[int], sizes: Points, nodes: Nodes) -> tuple[Points, Array]:
    """Parallel arcs [route, arrow, point], raised near an end by skew; straight ones cost least."""
    (start, end), count = nodes.centre[[a, b]], len(ways)
    along, length = end - start, abs(end - start)
    room = np.max(sizes.real * abs(along.imag) + sizes.imag * abs(along.real)) / length
    offsets = np.clip(room + 0.1, 0.3, 0.46) * ((count - 1) / 2 - np.arange(count))
    skews, bends = np.array(list(product(SKEWS if count == 1 else [0.0], BENDS))).T
    heights, skew = bends[:, None] * length + offsets, skews[:, None]
    rise = 1j * along / length * heights * 4 / 3
    ahead = along * np.maximum(0.0, 1 - np.abs(heights) / length / 0.8) / 3
    raised = start + ahead + rise * (1 + skew), end - ahead + rise * (1 - skew)
    ends = np.broadcast_arrays(start, *raised, end)
    points = _bezier_points(np.stack(ends, axis=-1), 801)
    away = [np.abs(points - nodes.centre[i]) > nodes.radius[i] for i in (a, b)]
    between = np.logical_and(*away)
    first, last = between.argmax(axis=-1), 800 - between[..., ::-1].argmax(axis=-1)
    places = np.linspace(first, last, POINTS, axis=-1).round().astype(int)
    curves = np.take_along_axis(points, places, axis=-1)
    back = np.array(ways) < 0
    curves[:, back] = curves[:, back, ::-1]
    costs = 0.15 * (bends != 0) + (1.5 + 0.1 * length) * np.abs(bends) + 0.15 * np.abs(skews)
    return curves, costs


def _conflicts(line: Points, others: Points) -> float:
    """Cost of the other arrows that a line touches or crosses; touching at its ends is worst."""
    middle = line[line.size // 2]
    reach = np.abs(line - middle).max() + CLOSE
    near = others[np.abs(others - middle).min(axis=1) < reach]
    closest = np.min(np.abs(line[:, None] - near.ravel()), axis=1, initial=np.inf)
    weight = np.where(np.abs(np.arange(line.size) - line.size // 2) > line.size // 3, 5.0, 1.0)
    touching = np.mean(weight * np.maximum(0, 1 - (closest / CLOSE) ** 2))

    def side(a: Any, b: Any, c: Any) -> Any:  # its sign says on which side of a line c is
        return np.imag(np.conj(b - a) * (c - a))

    a, b, c, d = line[:-1, None], line[1:, None], near[:, :-1].ravel(), near[:, 1:].ravel()
    crossed = (side(a, b, c) * side(a, b, d) < 0) & (side(c, d, a) * side(c, d, b) < 0)
    return 4 * float(touching) + int(crossed.sum())


def place_labels(curves: Points, half: Points, nodes: Nodes) -> tuple[Points, int]:
    """Centres of labels of half the size `half`, and how badly some fit; 0: all fit well."""
    ahead = curves[:, ALONG + 1] - curves[:, ALONG - 1]
    across, x, y = 1j * ahead / np.abs(ahead), half.real[:, None], half.imag[:, None]
    across *= np.abs(across.real) * x + np.abs(across.imag) * y + LABEL_MARGIN + 0.03
    spots = (curves[:, None, ALONG] + SIDES[:, None] * across[:, None]).reshape(len(curves), -1)
    named = np.flatnonzero(half).tolist()
    fixed = {i: _costs(i, spots[i], curves, half[i], nodes) for i in named}
    choice = {i: int(np.argmin(cost)) for i, cost in fixed.items()}

    def costs(i: int) -> Array:  # with those of other labels that are overlapped, or close
        rest = [j for j in choice if j != i]
        centres = spots[rest, [choice[j] for j in rest]]
        away = _outside(spots[i][:, None] - centres, half[i] + half[rest])
        near = OVERLAP * (away < LABEL_MARGIN) + 0.3 * (away < 3 * LABEL_MARGIN)
        return np.asarray(fixed[i] + near.sum(axis=1))

    for _, i in product(range(ROUNDS), choice):
        choice[i] = int(np.argmin(costs(i)))
    found = np.array([costs(i)[k] for i, k in choice.items()])
    places = [choice.get(i, 0) for i in range(len(curves))]
    return spots[np.arange(len(curves)), places], int(np.sum(found // COVER))


def _costs(own: int, spots: Points, curves: Points, half: complex, nodes: Nodes) -> Array:
    """Costs of spots: least in the middle of the arrow, away from nodes, heads and other arrows."""
    line, side = curves[own], np.repeat(np.abs(SIDES), ALONG.size)
    hidden = _outside(line - spots[:, None], half) < LABEL_MARGIN
    step = np.sum(np.abs(np.diff(line))) / POINTS
    before, after = (step * np.argmax(h, axis=1) for h in (hidden, hidden[:, ::-1]))
    cramped = np.maximum(0, 0.16 - before) + np.maximum(0, 0.24 - after)
    beside = 0.1 + 0.3 * side + COVER * hidden.any(axis=1)
    cost = np.where(side == 0, 0.9 * hidden.mean(axis=1) + 6 * cramped, beside)
    cost += 1.2 * np.tile(np.abs(ALONG / (POINTS - 1) - 0.5), SIDES.size)
    overlaps = np.sum(nodes.gaps(spots, half + LABEL_MARGIN * EVEN) <= 0, axis=1)
    heads = _outside(spots[:, None] - curves[:, -3:].ravel(), half)
    overlaps += np.any(heads < LABEL_MARGIN + 0.03, axis=1)
    away = _outside(spots[:, None, None] - np.delete(curves, own, axis=0), half).min(axis=2)
    covered, touched = (np.sum(away < gap, axis=1) for gap in (0.01, LABEL_MARGIN + 0.05))
    return np.asarray(cost + OVERLAP * overlaps + COVER * covered + 0.25 * touched)


class Drawing(NamedTuple):
    """The place of each part."""

    nodes: Nodes
    curves: Points  #: of the arrows [arrow, point]
    labels: Points  #: centres of their labels
    half: Points  #: half the size of each label


def arrange(content: GraphContent, positions: Array | None) -> Drawing:
    """Enlarge the layout until no label overlaps anything; if none fits, return the best."""
    sizes, least = _sizes((arrow.text for arrow in content.arrows), LABEL_SIZE), np.inf
    for scale in SCALES:
        nodes = place_nodes(content, positions, sizes, scale)
        curves = route(content.arrows, sizes, nodes)
        labels, faults = place_labels(curves, sizes / 2, nodes)
        if faults < least:
            best, least = Drawing(nodes, curves, labels, sizes / 2), faults
        if not faults:
            break
    return best


def draw_mdp(mdp: MDP, policy: object = None) -> Figure:
    """Draw an MDP as a graph: states are circles, ends of episodes are squares, edges are arrows.

    The label of an edge gives its probability under each policy and its reward (mean ± standard
    deviation). Edges that no policy takes are left out. γ and λ are written in the states, or once
    below if all states share them. In crowded graphs equal edges are merged, and what most edges
    share is written once below. More than 30 states are drawn as a matrix of probabilities, and the
    figure says so.

    States lie at the MDP's ``positions``, or networkx arranges them. `policy` is a policy; default:
    all of the MDP's, of which a matrix shows the first.

    Examples
    --------
    >>> import retvar as rv
    >>> figure = rv.plots.draw_mdp(rv.domains.complex_mdp())
    >>> sum((patch.get_gid() or "").startswith("edge") for patch in figure.axes[0].patches)
    14
    """
    arguments.instance("mdp", mdp, MDP, "an MDP")
    if mdp.n_states > MAX_STATES:
        return draw_matrix(mdp, policy)
    content = graph_content(mdp, policy)
    return _draw(content, arrange(content, mdp.positions))


@style.styled
def _draw(content: GraphContent, drawing: Drawing) -> Figure:
    """Draw into a figure of the right size, with the note below."""
    (centres, radii), n, note = drawing.nodes, len(content.names), content.note
    around = np.concatenate([centres, drawing.labels, drawing.curves.ravel()])
    sizes = np.concatenate([radii * EVEN, drawing.half, 0 * drawing.curves.ravel()])
    low, high = (
        complex(end(reach.real), end(reach.imag))
        for end, reach in ((np.min, around - sizes), (np.max, around + sizes))
    )
    if text_size(note, LABEL_SIZE)[0] > max(2.4, (high - low).real):
        note = note.replace(";  ", "\n")
    width, height = text_size(note, LABEL_SIZE)
    wider = max(0.0, width - (high - low).real) / 2
    low -= complex(wider, height + 0.12 * bool(note)) + MARGIN * EVEN
    high += wider + MARGIN * EVEN
    figure = Figure(figsize=((high - low).real, (high - low).imag))
    ax = figure.add_axes((0, 0, 1, 1), xlim=(low.real, high.real), ylim=(low.imag, high.imag))
    ax.set_axis_off()
    head: Any = {"arrowstyle": "-|>,head_length=0.55,head_width=0.25", "mutation_scale": 8.5}
    head |= {"capstyle": "butt", "joinstyle": "miter", "zorder": 2}
    for arrow, curve in zip(content.arrows, drawing.curves, strict=True):
        gid = "-".join(map(str, ("edge", *arrow.edges))) if arrow.edges else "start"
        look: Any = {"lw": 0.9, "color": LINE} if arrow.edges else {"lw": 1.3, "color": SOFT}
        path = Path(np.stack([curve.real, curve.imag], axis=1))
        ax.add_patch(FancyArrowPatch(path=path, gid=gid, **look, **head))
    for k, (name, small) in enumerate(zip(content.names, content.discounts, strict=True)):
        centre, look = centres[k], {"fc": "#f3f6fa", "ec": INK, "lw": 1.1, "gid": f"state-{k}"}
        ax.add_patch(Circle((centre.real, centre.imag), radii[k], zorder=4, **look))
        up = text_size(small, SMALL_SIZE)[1] / 2 + 0.015 * bool(small)
        _write(ax, centre + 1j * up, name, NAME_SIZE, weight="bold")
        down = text_size(name, NAME_SIZE)[1] / 2 + 0.015
        _write(ax, centre - 1j * down, small, SMALL_SIZE)
    white = {"facecolor": "white", "edgecolor": "none", "pad": 1.08}
    texts = [arrow.text for arrow in content.arrows] + [text for _, text in content.markers]
    for centre, text in zip([*drawing.labels, *centres[n:]], texts, strict=True):
        if text == "end":
            box: Any = {"boxstyle": "round,pad=0,rounding_size=0.03", "fc": INK, "ec": "none"}
            corner, side = centre - END_HALF * EVEN, 2 * END_HALF
            corner = corner.real, corner.imag
            ax.add_patch(FancyBboxPatch(corner, side, side, zorder=4, gid="end", **box))
            _write(ax, centre, text, SMALL_SIZE, color="white")
        else:
            _write(ax, centre, text, LABEL_SIZE, bbox=white, zorder=3, gid="label")
    below = complex((low + high).real / 2, low.imag + MARGIN)
    _write(ax, below, note, LABEL_SIZE, va="bottom", gid="note")
    return figure


def _write(ax: Axes, at: complex, text: str, size: float, **more: Any) -> None:
    look: Any = {"ha": "center", "va": "center", "zorder": 5} | more
    if text:
        ax.text(at.real, at.imag, text, fontsize=size, linespacing=style.LINE_SPACING, **look)
