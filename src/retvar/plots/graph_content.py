"""What the graph of an MDP shows: its nodes, an arrow with a text per edge, and notes."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace

import numpy as np

from retvar.format import short_number
from retvar.mdp import END, MDP, Policy
from retvar.plots.style import Array, shown

__all__ = ["Arrow", "GraphContent", "graph_content"]

GREEK = {"mu": "μ", "pi": "π", "beta": "β"}
MAX_PARALLEL = 3  # more edges between two states are merged
MAX_LABELLED = 40  # with more arrows, what most of them share goes into a note
MAX_STARTS = 3  # more start states are not marked


@dataclass(frozen=True)
class Arrow:
    """An arrow between two nodes: one edge, several merged edges, or none for a start."""

    source: int
    target: int
    lines: tuple[str, ...] = ()  #: probability and reward; empty where a note gives them
    edges: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """The label of the arrow."""
        return "\n".join(line for line in self.lines if line)


@dataclass(frozen=True)
class GraphContent:
    """Arrows and texts of a graph. Nodes are the states, followed by start and end markers."""

    arrows: list[Arrow]
    names: list[str]  #: of the states
    discounts: list[str]  #: γ and λ of each state
    markers: list[tuple[int, str]]  #: state next to which each marker is drawn, and its text
    notes: list[str]


def graph_content(mdp: MDP, policy: object = None) -> GraphContent:
    """Collect what to draw for one policy, a list of policy names, or all policies (None).

    >>> import retvar as rv
    >>> print(graph_content(rv.domains.complex_mdp()).arrows[2].text)
    μ 0.2  π 0.4
    r = −1
    """
    e = mdp.edges
    policies = _policies(mdp, policy)
    symbols = _policy_symbols(list(policies))
    table = np.array(
        [p.probabilities[e.state, e.action] * e.probability for p in policies.values()]
    )
    taken = np.flatnonzero(np.any(table > 0, axis=0)).tolist()
    groups = _merged_edges(mdp, taken)
    arrows = [_arrow(mdp, group, table, symbols) for group in groups]
    arrows, shared_text = _shorten(arrows) if len(arrows) > MAX_LABELLED else (arrows, "")
    arrows, markers = _add_markers(mdp, arrows)
    discounts, shared_discounts = _discounts(mdp)
    legend = ", ".join(
        f"{s}: {shown(p)}" for p, s in symbols.items() if len(s) == 1 and p not in GREEK
    )
    merged = "probabilities of edges drawn as one are added" * (len(groups) < len(taken))
    notes = [note for note in (shared_discounts, legend, shared_text, merged) if note]
    names = [shown(mdp.state_name(s)) for s in range(mdp.n_states)]
    return GraphContent(arrows, names, discounts, markers, notes)


def _policies(mdp: MDP, policy: object) -> dict[str, Policy]:
    if policy is None:
        return dict(mdp.policies)
    if isinstance(policy, list | tuple) and policy and all(isinstance(n, str) for n in policy):
        return {name: mdp.policy(name) for name in policy}
    return {"": mdp.policy(policy)}


def _policy_symbols(names: list[str]) -> dict[str, str]:
    """A short symbol per policy; an empty one for a single policy.

    >>> _policy_symbols(["mu", "pi"]), _policy_symbols(["target", "behaviour"])
    ({'mu': 'μ', 'pi': 'π'}, {'target': 't', 'behaviour': 'b'})
    >>> _policy_symbols(["uniform"])
    {'uniform': ''}
    """
    if len(names) == 1:
        return {names[0]: ""}
    initials = Counter(name[:1] for name in names)
    short = {name: name[0] if initials[name[:1]] == 1 and name else name for name in names}
    return {name: GREEK.get(name, shown(short[name])) for name in names}


def _merged_edges(mdp: MDP, taken: list[int]) -> list[tuple[int, ...]]:
    """Groups of edges drawn as one arrow: single edges, or equal ones if there are many.

    Where more than three different edges join two states, all of them become one arrow.
    """
    e = mdp.edges
    table = np.stack([e.state, e.next_state, e.reward, e.reward_std, e.gamma], axis=1)
    rows = {i: tuple(table[i].tolist()) for i in taken}
    parallel = Counter(row[:2] for row in rows.values())
    if len(taken) <= MAX_LABELLED and max(parallel.values()) <= MAX_PARALLEL:
        return [(i,) for i in taken]
    distinct = Counter(row[:2] for row in set(rows.values()))
    groups: dict[tuple[float, ...], list[int]] = defaultdict(list)
    for i, row in rows.items():
        groups[row[:2] if distinct[row[:2]] > MAX_PARALLEL else row].append(i)
    return [tuple(members) for members in groups.values()]


def _arrow(mdp: MDP, edges: tuple[int, ...], table: Array, symbols: dict[str, str]) -> Arrow:
    probabilities = [_probability_text(float(p)) for p in table[:, edges].sum(axis=1)]
    parts = [f"{s} {p}".strip() for s, p in zip(symbols.values(), probabilities, strict=True)]
    rewards = {_reward_text(mdp, i) for i in edges}
    reward = rewards.pop() if len(rewards) == 1 else f"{len(edges)} edges"
    ends = int(mdp.edges.state[edges[0]]), int(mdp.edges.next_state[edges[0]])
    return Arrow(*ends, ("  ".join(parts), reward), edges)


def _probability_text(probability: float) -> str:
    """A probability; below 0.01, with one digit.

    >>> _probability_text(0.3), _probability_text(1 / 3), _probability_text(0.004123)
    ('0.3', '0.33', '0.004')
    """
    rounded = round(probability, 12)
    return short_number(rounded if rounded >= 0.01 else float(f"{rounded:.1g}"))


def _reward_text(mdp: MDP, edge: int) -> str:
    e = mdp.edges
    text = f"r = {short_number(float(e.reward[edge]))}"
    if e.reward_std[edge] > 0:
        text += f" ± {short_number(float(e.reward_std[edge]))}"
    return text if mdp.gamma is not None else f"{text}\nγ = {short_number(float(e.gamma[edge]))}"


def _shorten(arrows: list[Arrow]) -> tuple[list[Arrow], str]:
    """Remove the probability and the reward that most arrows share; return a note with them."""
    shared = []
    for k, prefix in enumerate(("p = ", "")):
        text, count = Counter(arrow.lines[k] for arrow in arrows).most_common(1)[0]
        if 2 * count >= len(arrows):
            shared.append(prefix + text)
            rest = [tuple("" if line == text else line for line in x.lines) for x in arrows]
            arrows = [replace(x, lines=lines) for x, lines in zip(arrows, rest, strict=True)]
    return arrows, f"{' and '.join(shared)} where not written" if shared else ""


def _add_markers(mdp: MDP, arrows: list[Arrow]) -> tuple[list[Arrow], list[tuple[int, str]]]:
    """Add start and end markers as nodes; return the arrows that use them, and the markers."""
    starts = _start_texts(mdp)
    ends = sorted({arrow.source for arrow in arrows if arrow.target == END})
    node = {state: k for k, state in enumerate(ends, mdp.n_states + len(starts))}
    arrows = [replace(a, target=node[a.source]) if a.target == END else a for a in arrows]
    arrows += [Arrow(k, state) for k, state in enumerate(starts, mdp.n_states)]
    return arrows, [*starts.items(), *((state, "end") for state in ends)]


def _discounts(mdp: MDP) -> tuple[list[str], str]:
    """γ and λ of each state as text, and a note for those that are the same in all states."""
    inside: list[list[str]] = [[] for _ in range(mdp.n_states)]
    shared = []
    for letter, values in (("γ", mdp.gamma), ("λ", mdp.lam)):
        known = {} if values is None else {s: float(v) for s, v in enumerate(values) if v == v}
        if len(set(known.values())) == 1:
            shared.append(f"{letter} = {short_number(next(iter(known.values())))}")
            continue
        for s, value in known.items():
            inside[s].append(f"{letter}={short_number(value)}")
    return ["\n".join(lines) for lines in inside], ", ".join(shared)


def _start_texts(mdp: MDP) -> dict[int, str]:
    """The text of the marker of each start state; empty if there are many."""
    found = np.flatnonzero(mdp.start).tolist()
    if len(found) > MAX_STARTS or len(found) == mdp.n_states > 1:
        return {}
    if len(found) == 1:
        return {found[0]: "start"}
    return {s: f"start {short_number(float(mdp.start[s]))}" for s in found}
