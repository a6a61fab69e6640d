"""What to draw of an MDP: the nodes, an arrow an edge with its text, and notes for all."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace

import numpy as np

from retvar.format import short_number
from retvar.mdp import END, MDP, Policy
from retvar.plots.style import Array

__all__ = ["Link", "Plan", "plan"]

GREEK = {"mu": "μ", "pi": "π", "beta": "β"}
PARALLEL = 3  # more edges than this between two states are merged
MANY = 40  # more arrows than this leave out what most of them share
MOST_STARTS = 3  # more are not marked: that would say little


@dataclass(frozen=True)
class Link:
    """An arrow from node to node: an edge of the MDP, several merged, or none into a start."""

    source: int
    target: int
    lines: tuple[str, ...] = ()  #: probability, reward; empty where a note says it
    edges: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """What stands at the arrow."""
        return "\n".join(line for line in self.lines if line)


@dataclass(frozen=True)
class Plan:
    """What a drawing says. Nodes are the states, then the marks (start, end) beside them."""

    links: list[Link]
    names: list[str]  #: of states
    inside: list[str]  #: γ and λ of each state
    marks: list[tuple[int, str]]  #: the state that each stands beside, and what it says
    notes: list[str]


def plan(mdp: MDP, policy: object = None) -> Plan:
    """Decide what to draw under one policy, several names of policies, or all of them (None).

    >>> import retvar as rv
    >>> print(plan(rv.domains.complex_mdp()).links[2].text)
    μ 0.2  π 0.4
    r = −1
    """
    e = mdp.edges
    policies = _policies(mdp, policy)
    signs = _signs(list(policies))
    chances = [p.probabilities[e.state, e.action] * e.probability for p in policies.values()]
    taken = np.flatnonzero(np.any(np.array(chances) > 0, axis=0)).tolist()
    bundles = _bundles(mdp, taken)
    links = [_link(mdp, bundle, np.array(chances), signs) for bundle in bundles]
    links, elided = _elide(links) if len(links) > MANY else (links, "")
    links, marks = _marked(mdp, links)
    inside, shared = _discounts(mdp)
    legend = ", ".join(f"{s}: {p}" for p, s in signs.items() if len(s) == 1 and p not in GREEK)
    merged = "probabilities of edges drawn as one are added" * (len(bundles) < len(taken))
    notes = [note for note in (shared, legend, elided, merged) if note]
    return Plan(links, [mdp.state_name(s) for s in range(mdp.n_states)], inside, marks, notes)


def _policies(mdp: MDP, policy: object) -> dict[str, Policy]:
    if policy is None:
        return dict(mdp.policies)
    if isinstance(policy, list | tuple) and policy and all(isinstance(n, str) for n in policy):
        return {name: mdp.policy(name) for name in policy}
    return {"": mdp.policy(policy)}


def _signs(names: list[str]) -> dict[str, str]:
    """A short sign for each policy; none where there is only one.

    >>> _signs(["mu", "pi"]), _signs(["target", "behaviour"]), _signs(["uniform"])
    ({'mu': 'μ', 'pi': 'π'}, {'target': 't', 'behaviour': 'b'}, {'uniform': ''})
    """
    if len(names) == 1:
        return {names[0]: ""}
    initials = Counter(name[:1] for name in names)
    short = {name: name[0] if initials[name[:1]] == 1 and name else name for name in names}
    return {name: GREEK.get(name, short[name]) for name in names}


def _bundles(mdp: MDP, taken: list[int]) -> list[tuple[int, ...]]:
    """Edges apart; in a crowd, those alike together, and all where too many would still differ."""
    e = mdp.edges
    table = np.stack([e.state, e.next_state, e.reward, e.reward_std, e.gamma], axis=1)
    looks = {i: tuple(table[i].tolist()) for i in taken}
    if len(taken) <= MANY and max(Counter(k[:2] for k in looks.values()).values()) <= PARALLEL:
        return [(i,) for i in taken]
    kinds = Counter(look[:2] for look in set(looks.values()))
    bundles: dict[tuple[float, ...], list[int]] = defaultdict(list)
    for i, look in looks.items():
        bundles[look[:2] if kinds[look[:2]] > PARALLEL else look].append(i)
    return [tuple(members) for members in bundles.values()]


def _link(mdp: MDP, edges: tuple[int, ...], table: Array, signs: dict[str, str]) -> Link:
    chances = [_chance(float(p)) for p in table[:, edges].sum(axis=1)]
    parts = [f"{sign} {p}".strip() for sign, p in zip(signs.values(), chances, strict=True)]
    rewards = {_reward(mdp, i) for i in edges}
    reward = rewards.pop() if len(rewards) == 1 else f"{len(edges)} edges"
    ends = int(mdp.edges.state[edges[0]]), int(mdp.edges.next_state[edges[0]])
    return Link(*ends, ("  ".join(parts), reward), edges)


def _chance(probability: float) -> str:
    """Small probabilities with one digit.

    >>> _chance(0.3), _chance(1 / 3), _chance(0.004123)
    ('0.3', '0.33', '0.004')
    """
    rounded = round(probability, 12)
    return short_number(rounded if rounded >= 0.01 else float(f"{rounded:.1g}"))


def _reward(mdp: MDP, edge: int) -> str:
    e = mdp.edges
    text = f"r = {short_number(float(e.reward[edge]))}"
    if e.reward_std[edge] > 0:
        text += f" ± {short_number(float(e.reward_std[edge]))}"
    return text if mdp.gamma is not None else f"{text}\nγ = {short_number(float(e.gamma[edge]))}"


def _elide(links: list[Link]) -> tuple[list[Link], str]:
    """Leave out the probability and the reward that most arrows share; say so in a note."""
    said = []
    for k, sign in enumerate(("p = ", "")):
        text, count = Counter(link.lines[k] for link in links).most_common(1)[0]
        if 2 * count >= len(links):
            said.append(sign + text)
            rest = [tuple("" if line == text else line for line in x.lines) for x in links]
            links = [replace(x, lines=lines) for x, lines in zip(links, rest, strict=True)]
    return links, f"{' and '.join(said)} where not written" if said else ""


def _marked(mdp: MDP, links: list[Link]) -> tuple[list[Link], list[tuple[int, str]]]:
    """Give starts and ends nodes of their own, beside the states: links that lead there, marks."""
    starts = _starts(mdp)
    ends = sorted({link.source for link in links if link.target == END})
    node = {home: k for k, home in enumerate(ends, mdp.n_states + len(starts))}
    links = [replace(k, target=node[k.source]) if k.target == END else k for k in links]
    links += [Link(k, home) for k, home in enumerate(starts, mdp.n_states)]
    return links, [*starts.items(), *((home, "end") for home in ends)]


def _discounts(mdp: MDP) -> tuple[list[str], str]:
    """γ and λ of each state as text inside it, or once for all where they do not differ."""
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


def _starts(mdp: MDP) -> dict[int, str]:
    """States where episodes start, if they are few, with the text of the mark."""
    found = np.flatnonzero(mdp.start).tolist()
    if len(found) > MOST_STARTS or len(found) == mdp.n_states > 1:
        return {}
    if len(found) == 1:
        return {found[0]: "start"}
    return {s: f"start {short_number(float(mdp.start[s]))}" for s in found}
