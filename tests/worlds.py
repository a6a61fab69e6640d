"""Finite worlds whose answers are known in closed form, and logs of them drawn by a compiled loop.

`PAGE` has the worlds that least squares was designed on, `OTHERS` worlds that were chosen when it
was finished.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import comb

import numba
import numpy as np

import retvar as rv


@numba.njit(cache=False)
def _walk(first, cumulated, next_state, start, limit, uniform, starts):
    """Edges taken, and where an episode was cut off at the limit."""
    taken = np.empty(uniform.size, dtype=np.int64)
    cut = np.zeros(uniform.size, dtype=np.bool_)
    draws = 0
    s = np.searchsorted(start, starts[draws], side="right")
    age = 0
    for t in range(uniform.size):
        low, high = first[s], first[s + 1]
        edge = low + np.searchsorted(cumulated[low:high], uniform[t], side="right")
        edge = min(edge, high - 1)
        taken[t] = edge
        age += 1
        s = next_state[edge]
        cut[t] = s >= 0 and age == limit
        if s < 0 or cut[t]:
            draws += 1
            s = np.searchsorted(start, starts[draws], side="right")
            age = 0
    return taken, cut


@numba.njit(cache=False)
def _returns(reward, gamma, ends, cut):
    """The return from each row, and the discount at which it is cut off; 0: it is complete."""
    total, rest = np.zeros(reward.size), np.zeros(reward.size)
    G, missing = 0.0, 1.0
    for t in range(reward.size - 1, -1, -1):
        if ends[t]:
            G, missing = 0.0, 0.0
        elif cut[t]:
            G, missing = 0.0, 1.0
        G = reward[t] + gamma[t] * G
        missing = 0.0 if ends[t] else gamma[t] * missing
        total[t], rest[t] = G, missing
    return total, rest


class World:
    """Logs of an MDP under a behaviour policy, episode after episode."""

    def __init__(self, mdp, behaviour=None, target=None, limit=0):
        uniform = np.full((mdp.n_states, mdp.n_actions), 1 / mdp.n_actions)
        self.mdp, self.limit = mdp, limit
        self.behaviour = uniform if behaviour is None else np.asarray(behaviour)
        self.target = self.behaviour if target is None else np.asarray(target)
        e = mdp.edges
        weight = e.probability * self.behaviour[e.state, e.action]
        order = np.argsort(e.state, kind="stable")
        self.order = order[weight[order] > 0]
        state = e.state[self.order]
        self.first = np.searchsorted(state, np.arange(mdp.n_states + 1))
        self.cumulated = np.empty(state.size)
        for s in range(mdp.n_states):
            own = slice(self.first[s], self.first[s + 1])
            w = weight[self.order[own]]
            self.cumulated[own] = np.cumsum(w) / w.sum()
        self.next_state = e.next_state[self.order]
        self.start = np.cumsum(mdp.start)

    @property
    def on_policy(self):
        return self.target is self.behaviour

    def log(self, rng, rows, acting=False):
        """Columns of so many transitions, with actions if `acting`."""
        e = self.mdp.edges
        last = np.flatnonzero(np.diff(self.start, prepend=0.0) > 0)[-1]
        start = np.where(np.arange(self.start.size) >= last, 2.0, self.start)
        taken, cut = _walk(
            self.first, self.cumulated, self.next_state, start, self.limit,
            rng.random(rows), rng.random(rows + 1),
        )  # fmt: skip
        taken = self.order[taken]
        state, ends = e.state[taken], e.next_state[taken] < 0
        log = {
            "state": state,
            "next_state": np.where(ends, state, e.next_state[taken]),
            "reward": e.reward[taken] + e.reward_std[taken] * rng.normal(size=rows),
            "terminated": ends,
            "truncated": cut,
            "gamma": e.gamma[taken],
            "lam": np.append(self.mdp.lam, 0.0)[e.next_state[taken]],
        }
        if acting:
            log["action"] = e.action[taken]
        if not self.on_policy:
            at = state, e.action[taken]
            log["rho"] = self.target[at] / self.behaviour[at]
        return log

    @cached_property
    def truth(self):
        """The exact answers."""
        return rv.solve(self.mdp, target=self.target)

    def mean_returns(self, log, negligible=0.01):
        """Mean of the observed returns of each state, of which at most 1% is cut off."""
        cut = log["truncated"].copy()
        cut[-1] |= not log["terminated"][-1]
        G, missing = _returns(log["reward"], log["gamma"], log["terminated"], cut)
        known = missing <= negligible
        n = self.mdp.n_states
        counts = np.bincount(log["state"][known], minlength=n)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.bincount(log["state"][known], G[known], minlength=n) / counts


def rows_of(pi, states):
    """The same action probabilities in every state."""
    return np.tile(pi, (states, 1))


def two_states(gamma, noisy):
    """The page's two states: with heavy noise, or with two actions."""
    if noisy:
        edges = [(0, 0, 0, 0.7, 1.0, 10.0), (0, 0, 1, 0.3, 0.0, 10.0),
                 (1, 0, 0, 0.4, 0.0, 5.0), (1, 0, 1, 0.6, -1.0, 5.0)]  # fmt: skip
        return rv.MDP.from_edges(edges, gamma=gamma, lam=1.0, start=[0.5, 0.5])
    edges = [(0, 0, 0, 0.6, 1.0), (0, 0, 1, 0.4, 0.0), (0, 1, 1, 1.0, -1.0),
             (1, 0, 0, 0.5, 0.5), (1, 0, 1, 0.5, 0.0), (1, 1, 0, 1.0, 2.0)]  # fmt: skip
    return rv.MDP.from_edges(edges, gamma=gamma, lam=1.0, start=[0.5, 0.5])


def off_policy(gamma=0.99):
    """Two states; the target prefers the first action, the behaviour neither."""
    return World(two_states(gamma, noisy=False), target=rows_of([0.9, 0.1], 2))


def complex_mdp(behaviour, target):
    """The paper's complex MDP under two of its policies."""
    mdp = rv.domains.complex_mdp()
    mu, pi = (mdp.policy(name).probabilities for name in (behaviour, target))
    return World(mdp, mu, None if behaviour == target else pi)


def toy_text(name, gamma, limit=0):
    """A uniform policy in a toy-text environment."""
    return World(rv.MDP.from_gymnasium(name, gamma=gamma), limit=limit)


@dataclass(frozen=True)
class Case:
    """A world, and how many transitions a log of it has."""

    make: Callable[[], World]
    rows: int
    quick: bool = False  #: whether make test has it


PAGE = {
    "chain": Case(lambda: World(rv.domains.chain(lam=1.0)), 1_000, True),
    "complex MDP, π": Case(lambda: complex_mdp("pi", "pi"), 2_000, True),
    "complex MDP, π from μ": Case(lambda: complex_mdp("mu", "pi"), 4_000, True),
    "two states, heavy noise": Case(lambda: World(two_states(0.8, noisy=True)), 2_000, True),
    "two states, off-policy": Case(off_policy, 20_000, True),
    "random walk": Case(lambda: World(rv.domains.random_walk()), 20_000, True),
    "random walk, longer": Case(lambda: World(rv.domains.random_walk()), 100_000),
    "FrozenLake-v1": Case(lambda: toy_text("FrozenLake-v1", 0.99, 100), 200_000),
    "CliffWalking-v1": Case(lambda: toy_text("CliffWalking-v1", 0.98), 200_000),
    "Taxi-v4": Case(lambda: toy_text("Taxi-v4", 0.95, 200), 40_000),
    "Taxi-v4, longer": Case(lambda: toy_text("Taxi-v4", 0.95, 200), 200_000),
}


def gamblers_ruin(goal=15, win=0.48):
    """A fair stake of 1 until ruin or the goal; the return is 1 at the goal, 0 at ruin."""
    edges = []
    for s in range(goal - 1):  # state s is a capital of s + 1
        edges += [(s, 0, s + 1 if s + 2 < goal else "end", win, float(s + 2 == goal))]
        edges += [(s, 0, s - 1 if s > 0 else "end", 1 - win, 0.0)]
    start = np.full(goal - 1, 1 / (goal - 1))
    return World(rv.MDP.from_edges(edges, gamma=1.0, lam=1.0, start=start))


def dice_race(squares=30):
    """A race with a die; from every seventh square one falls back by five. −1 a throw."""
    edges = []
    for s in range(squares):
        for eyes in range(1, 7):
            to = s + eyes
            to = to - 5 if to % 7 == 0 else to
            edges.append((s, 0, to if to < squares else "end", 1 / 6, -1.0))
    start = np.zeros(squares)
    start[0] = 1.0
    return World(rv.MDP.from_edges(edges, gamma=1.0, lam=1.0, start=start))


def inventory(most=8):
    """Orders up to a random level; binomial demand, holding costs and heavy fines for shortage."""
    chance = [comb(6, k) * 0.5**6 for k in range(7)]
    edges = []
    for s in range(most):
        for a in range(most):
            stock = max(s, a)
            for d, p in enumerate(chance):
                profit = 3.0 * min(d, stock) - stock - 15.0 * (d > stock)
                edges.append((s, a, max(0, stock - d), p, profit))
    return World(rv.MDP.from_edges(edges, gamma=0.9, lam=1.0, start=np.full(most, 1 / most)))


def garnet_off_policy(states=20, actions=3, branches=3):
    """A random MDP with noise; the target prefers the first action, the behaviour does not."""
    rng = np.random.default_rng(42)
    edges = []
    for s in range(states):
        for a in range(actions):
            follows = rng.choice(states, branches, replace=False)
            for to, p in zip(follows, rng.dirichlet(np.ones(branches)), strict=True):
                edges.append((s, a, int(to), float(p), float(rng.normal()), 0.5))
    start = np.full(states, 1 / states)
    mdp = rv.MDP.from_edges(edges, gamma=0.95, lam=1.0, start=start)
    return World(mdp, target=rows_of([0.6, 0.2, 0.2], states))


OTHERS = {  # chosen when the estimator was finished
    "gambler's ruin": Case(gamblers_ruin, 20_000),
    "dice race": Case(dice_race, 20_000),
    "inventory": Case(inventory, 10_000),
    "random MDP, off-policy": Case(garnet_off_policy, 50_000),
}
