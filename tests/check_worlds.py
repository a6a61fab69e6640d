"""Finite worlds under fixed policies, with exact answers, to measure verdicts on.

All are Markov reward processes: `p[s, t]` and `reward[s, t]`, where the last column is the end of
an episode. They need nothing but NumPy and SciPy; answers come from dense linear systems.
"""

from __future__ import annotations

import numpy as np
import scipy.stats


class World:
    """A world, its value and the variance of its returns."""

    def __init__(self, p, reward, gamma, start=None):
        self.p, self.reward, self.gamma, self.states = p, reward, gamma, len(p)
        self.start = np.full(self.states, 1 / self.states) if start is None else start
        inner, one = p[:, :-1], np.eye(self.states)
        self.value = np.linalg.solve(one - gamma * inner, (p * reward).sum(1))
        error = reward + gamma * np.append(self.value, 0.0) - self.value[:, None]
        self.variance = np.linalg.solve(one - gamma**2 * inner, (p * error**2).sum(1))

    def scores(self, rng, trials, n, closed=0.05):
        """Scores z and the missing share of the variance of n returns in sequence [trial, n].

        A return is over where its episode ends, or where the discount of its rest is below
        `closed`: then it is completed with the exact value.
        """
        z, missing = np.empty((trials, n)), np.empty((trials, n))
        cumulated = np.minimum(self.p.cumsum(1), 1.0)
        cumulated[:, -1] = 1.0
        value, variance = np.append(self.value, 0.0), np.append(self.variance, 0.0)
        state = self._starts(rng, trials)
        for i in range(n):
            first, total, share = state.copy(), np.zeros(trials), np.ones(trials)
            live = np.arange(trials)
            while live.size:
                before = state[live]
                after = (rng.random(live.size)[:, None] > cumulated[before]).sum(1)
                total[live] += share[live] * self.reward[before, after]
                share[live] *= np.where(after == self.states, 0.0, self.gamma)
                state[live] = after
                live = live[share[live] >= closed]
            z[:, i] = (total + share * value[state] - value[first]) / np.sqrt(variance[first])
            missing[:, i] = share**2 * variance[state] / variance[first]
            ended = state == self.states
            state[ended] = self._starts(rng, int(ended.sum()))
        return z, missing

    def _starts(self, rng, count):
        return rng.choice(self.states, count, p=self.start)

    def log(self, rng, rows):
        """Columns of a log, one episode after the other."""
        cumulated = self.p.cumsum(1)
        columns = {name: np.zeros(rows, int) for name in ("state", "next_state", "terminated")}
        columns["reward"], s = np.zeros(rows), int(self._starts(rng, 1)[0])
        for t, u in enumerate(rng.random(rows)):
            after = min(int(np.searchsorted(cumulated[s], u)), self.states)
            ended = after == self.states
            for name, x in (("state", s), ("next_state", s if ended else after),
                            ("terminated", ended), ("reward", self.reward[s, after])):  # fmt: skip
                columns[name][t] = x
            s = int(self._starts(rng, 1)[0]) if ended else after
        return columns


def queue(capacity=15, arrival=0.3, service=0.4):
    """A queue that costs its length: a birth-death process."""
    p = np.zeros((capacity + 1, capacity + 2))
    for x in range(capacity + 1):
        up, down = arrival * (x < capacity), service * (x > 0)
        p[x, min(x + 1, capacity)] += up
        p[x, max(x - 1, 0)] += down
        p[x, x] += 1 - up - down
    return World(p, np.repeat(-np.arange(capacity + 1.0)[:, None], capacity + 2, axis=1), 0.95)


def garnet(seed=3, states=30, branches=3, gamma=0.9):
    """Random transitions and rewards."""
    rng = np.random.default_rng(seed)
    p, reward = np.zeros((states, states + 1)), np.zeros((states, states + 1))
    for s in range(states):
        follows = rng.choice(states, branches, replace=False)
        p[s, follows] = rng.dirichlet(np.ones(branches))
        reward[s, follows] = rng.normal(size=branches)
    return World(p, reward, gamma)


def gambler(goal=10, win=0.48):
    """Gambler's ruin: 1 for reaching the goal, 0 otherwise, not discounted."""
    p, reward = np.zeros((goal, goal + 1)), np.zeros((goal, goal + 1))  # state i has i + 1 coins
    for i in range(goal - 1):
        p[i, i + 1] = win
        p[i, i - 1 if i else goal] = 1 - win
    p[goal - 1, goal] = reward[goal - 1, goal] = 1.0
    return World(p, reward, 1.0, np.append(np.full(goal - 1, 1 / (goal - 1)), 0.0))


def inventory(top=10, reorder=4, demand=5.0):
    """Stock is filled up below a level; lost sales cost, and so do orders and storage."""
    p, reward = np.zeros((top + 1, top + 2)), np.zeros((top + 1, top + 2))
    for x in range(top + 1):
        stock = top if x < reorder else x
        for wanted in range(40):
            left, q = max(stock - wanted, 0), scipy.stats.poisson.pmf(wanted, demand)
            lost, ordered = max(wanted - stock, 0), stock - x
            gain = 4 * min(stock, wanted) - 2 * ordered - 3 * (ordered > 0) - 0.2 * left - 5 * lost
            p[x, left] += q
            reward[x, left] += q * gain
    reward = np.divide(reward, p, out=reward, where=p > 0)
    return World(p / p.sum(1, keepdims=True), reward, 0.95)


def machine():
    """A machine that wears out: a rare failure costs 100, a replacement 12."""
    p, reward = np.zeros((7, 8)), np.full((7, 8), -1.0)
    for wear in range(6):
        fails = 0.005 * (1 + wear)
        p[wear, 6] = fails
        p[wear, wear] += 0.5 * (1 - fails)
        p[wear, (wear + 1) % 6] += 0.5 * (1 - fails)
    reward[5, 0], reward[6, :], p[6, 0] = -12.0, -100.0, 1.0
    return World(p, reward, 0.9)


def epidemic(people=20, contact=0.5, recovery=0.2):
    """The infected among few people, at one event at a time; each step costs their number."""
    p, reward = np.zeros((people, people + 1)), np.zeros((people, people + 1))
    for i in range(people):  # i + 1 are infected
        sick = i + 1
        spread, heal = contact * sick * (people - sick) / people, recovery * sick
        share = spread / (spread + heal)
        if i + 1 < people:
            p[i, i + 1] = share
        p[i, i - 1 if i else people] = 1 - share
        reward[i, :] = -sick / people
    return World(p, reward, 0.97, np.eye(people)[2])


def urn(balls=12):
    """Ehrenfest's urn; a step pays for the balls on the left."""
    p, reward = np.zeros((balls + 1, balls + 2)), np.zeros((balls + 1, balls + 2))
    for x in range(balls + 1):
        p[x, max(x - 1, 0)] += x / balls
        p[x, min(x + 1, balls)] += 1 - x / balls
        reward[x, :] = x - balls / 2
    return World(p, reward, 0.9)


def jackpot(chance=0.06):
    """A round ends with a prize of 20 seldom, and with a small loss otherwise."""
    p = np.array([[0.0, chance, 1 - chance, 0.0], [0, 0, 0, 1.0], [0, 0, 0, 1.0]])
    reward = np.array([[0.0] * 4, [20.0] * 4, [-1.0] * 4])
    return World(p, reward, 1.0, np.array([1.0, 0.0, 0.0]))


def foraging(stay=0.9):
    """Gains until a patch is left: returns are geometric, not discounted."""
    p = np.array([[stay, 0.0, 1 - stay], [0.5, 0.3, 0.2]])
    return World(p, np.array([[1.0] * 3, [0.2] * 3]), 1.0)


def sparse_garnet(states=40):
    """A random world where one state in eight pays, and pays 5."""
    world = garnet(11, states, 4, 0.95)
    reward = np.where(np.arange(states)[:, None] % 8 == 0, 5.0, 0.0) + np.zeros(states + 1)
    return World(world.p, reward, 0.95)


WORLDS = {  # by these the interval of the std was chosen among several
    "birth-death queue": queue,
    "garnet": garnet,
    "gambler's ruin": gambler,
    "inventory": inventory,
    "machine replacement": machine,
}
HELD_OUT = {  # chosen when the verdicts were final
    "epidemic": epidemic,
    "Ehrenfest urn": urn,
    "jackpot": jackpot,
    "foraging": foraging,
    "sparse garnet": sparse_garnet,
}
