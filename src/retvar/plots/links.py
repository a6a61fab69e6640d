"""What to draw of an MDP: one arrow an edge, with its text, and notes that hold for all."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from retvar.mdp import MDP, Policy
from retvar.plots.style import number

__all__ = ["Link", "Plan", "plan"]

Array = NDArray[np.float64]
GREEK = {"mu": "μ", "pi": "π", "beta": "β"}
PARALLEL = 3  # more edges than this between two states are merged
MANY = 40  # more arrows than this leave out what most of them share


@dataclass(frozen=True)
class Link:
    """An arrow to draw: one edge of the MDP, or several merged."""

    source: int
    target: int
    probability: str
    reward: str
    edges: tuple[int, ...]

    @property
    def text(self) -> str:
        """What stands at the arrow."""
        return "\n".join(line for line in (self.probability, self.reward) if line)


@dataclass(frozen=True)
class Plan:
    """What a drawing says: its arrows, the text inside each state, and the notes below."""

    links: tuple[Link, ...]
    inside: tuple[str, ...]
    notes: tuple[str, ...]


def plan(mdp: MDP, policy: object = None) -> Plan:
    """Decide what to draw under one policy, several names of policies, or all of them (None).

    >>> import retvar as rv
    >>> print(plan(rv.domains.complex_mdp()).links[2].text)
    μ 0.2  π 0.4
    r = −1
    """
    policies = _policies(mdp, policy)
    symbols = _symbols(list(policies))
    table = np.array([_probabilities(mdp, p) for p in policies.values()])
    alive = [int(i) for i in np.flatnonzero(np.any(table > 0, axis=0))]
    bundles = _crowd(mdp, alive)
    links = tuple(_link(mdp, group, table, list(symbols.values())) for group in bundles)
    elided: tuple[str, ...] = ()
    if len(links) > MANY:
        links, elided = _elide(links)
    inside, shared = _discounts(mdp)
    named = tuple(
        f"{s}: {name}" for name, s in symbols.items() if len(s) == 1 and s != GREEK.get(name)
    )
    merged = ("probabilities of edges drawn as one are added",) * (len(bundles) < len(alive))
    return Plan(links, inside, (*shared, *_together(named), *elided, *merged))


def _policies(mdp: MDP, policy: object) -> dict[str, Policy]:
    if policy is None:
        return dict(mdp.policies)
    if isinstance(policy, list | tuple) and policy and all(isinstance(n, str) for n in policy):
        return {name: mdp.policy(name) for name in policy}
    return {"": mdp.policy(policy)}


def _symbols(names: list[str]) -> dict[str, str]:
    """A short sign for each policy; none where there is only one.

    >>> _symbols(["mu", "pi"]), _symbols(["target", "behaviour"]), _symbols(["uniform"])
    ({'mu': 'μ', 'pi': 'π'}, {'target': 't', 'behaviour': 'b'}, {'uniform': ''})
    """
    if len(names) == 1:
        return {names[0]: ""}
    initials = Counter(name[:1] for name in names)
    return {
        name: GREEK.get(name) or (name[0] if name and initials[name[0]] == 1 else name)
        for name in names
    }


def _probabilities(mdp: MDP, policy: Policy) -> Array:
    e = mdp.edges
    return np.asarray(policy.probabilities[e.state, e.action] * e.probability)


def _crowd(mdp: MDP, alive: list[int]) -> list[tuple[int, ...]]:
    """Edges apart; where many join the same two states, those alike together."""
    e = mdp.edges
    pairs = Counter((int(e.state[i]), int(e.next_state[i])) for i in alive)
    if len(alive) <= MANY and max(pairs.values(), default=0) <= PARALLEL:
        return [(i,) for i in alive]
    alike: dict[tuple[float, ...], list[int]] = defaultdict(list)
    for i in alive:
        look = (e.state[i], e.next_state[i], e.reward[i], e.reward_std[i], e.gamma[i])
        alike[tuple(map(float, look))].append(i)
    left = Counter((int(key[0]), int(key[1])) for key in alike)
    groups: dict[tuple[float, ...], list[int]] = defaultdict(list)
    for key, members in alike.items():
        groups[key[:2] if left[int(key[0]), int(key[1])] > PARALLEL else key] += members
    return [tuple(members) for members in groups.values()]


def _link(mdp: MDP, group: tuple[int, ...], table: Array, symbols: list[str]) -> Link:
    e = mdp.edges
    chances = [_chance(float(p)) for p in table[:, group].sum(axis=1)]
    parts = [f"{s} {p}" if s else p for s, p in zip(symbols, chances, strict=True)]
    rewards = dict.fromkeys(_reward(mdp, i) for i in group)
    reward = next(iter(rewards)) if len(rewards) == 1 else f"{len(group)} edges"
    return Link(
        int(e.state[group[0]]), int(e.next_state[group[0]]), "  ".join(parts), reward, group
    )


def _chance(probability: float) -> str:
    """Small probabilities with one digit.

    >>> _chance(0.3), _chance(1 / 3), _chance(0.004123)
    ('0.3', '0.33', '0.004')
    """
    rounded = round(probability, 12)
    return number(rounded if rounded >= 0.01 else float(f"{rounded:.1g}"))


def _reward(mdp: MDP, edge: int) -> str:
    e = mdp.edges
    text = f"r = {number(float(e.reward[edge]))}"
    if e.reward_std[edge] > 0:
        text += f" ± {number(float(e.reward_std[edge]))}"
    return text if mdp.gamma is not None else f"{text}\nγ = {number(float(e.gamma[edge]))}"


def _elide(links: tuple[Link, ...]) -> tuple[tuple[Link, ...], tuple[str, ...]]:
    """Leave out the probability and the reward that most arrows share; say so in a note."""
    said = []
    for field in ("probability", "reward"):
        text, count = Counter(getattr(link, field) for link in links).most_common(1)[0]
        if 2 * count >= len(links):
            said.append(f"p = {text}" if field == "probability" else text)
            links = tuple(
                _without(link, field) if getattr(link, field) == text else link for link in links
            )
    note = f"{' and '.join(said)} where not written"
    return links, (note,) if said else ()


def _without(link: Link, field: str) -> Link:
    return replace(link, probability="") if field == "probability" else replace(link, reward="")


def _discounts(mdp: MDP) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """γ and λ of each state as text inside it, or once for all where they do not differ."""
    inside = [""] * mdp.n_states
    shared = []
    for letter, values in (("γ", mdp.gamma), ("λ", mdp.lam)):
        if values is None:
            continue
        known = values[np.isfinite(values)]
        if np.unique(known).size <= 1:
            shared += [f"{letter} = {number(float(v))}" for v in known[:1]]
            continue
        for s, value in enumerate(values):
            line = f"{letter}={number(float(value))}" if np.isfinite(value) else ""
            inside[s] = "\n".join(part for part in (inside[s], line) if part)
    return tuple(inside), _together(shared)


def _together(parts: Iterable[str]) -> tuple[str, ...]:
    joined = ", ".join(parts)
    return (joined,) if joined else ()
