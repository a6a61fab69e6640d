"""Worlds with continuous states under fixed policies: logs of them, and the truth by roll-outs.

All act on many states at once, [lane, coordinate], and need nothing but NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from retvar.td.features import TileCoding

Step = Callable[[np.ndarray, np.random.Generator], tuple[np.ndarray, np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class World:
    """A world under a policy: how it begins and goes on, and the features of the trials."""

    reset: Callable[[int, np.random.Generator], np.ndarray]
    step: Step
    observe: Callable[[np.ndarray], np.ndarray]
    gamma: float
    limit: int  # steps after which an episode is truncated
    features: TileCoding
    varies: bool  # whether anything is random after the start

    def log(self, steps: int, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Columns of a log, one episode after the other, and the inner state of each row."""
        rng = np.random.default_rng(seed)
        episodes: list[dict[str, np.ndarray]] = []
        total = 0
        while total < steps:
            new = self._episodes(50, rng)
            episodes += new
            total += sum(len(each["reward"]) for each in new)
        log = {k: np.concatenate([e[k] for e in episodes])[:steps] for k in episodes[0]}
        log["truncated"][-1] = not log["terminated"][-1]
        inner = log.pop("inner")
        return log, inner

    def _episodes(self, count: int, rng: np.random.Generator) -> list[dict[str, np.ndarray]]:
        state, alive = self.reset(count, rng), np.arange(count)
        kept: list[list[tuple[Any, ...]]] = [[] for _ in range(count)]
        for k in range(1, self.limit + 1):
            after, reward, ended = self.step(state, rng)
            for i, lane in enumerate(alive):
                cut = k == self.limit and not ended[i]
                kept[lane].append((state[i], after[i], reward[i], ended[i], cut))
            state, alive = after[~ended], alive[~ended]
            if not alive.size:
                break
        return [self._columns(rows) for rows in kept]

    def _columns(self, rows: list[tuple[Any, ...]]) -> dict[str, np.ndarray]:
        before, after, reward, ended, cut = (np.array(c) for c in zip(*rows, strict=True))
        return {
            "state": self.observe(before),
            "next_state": self.observe(after),
            "reward": reward,
            "terminated": ended,
            "truncated": cut,
            "inner": before,
        }

    def returns(self, inner: np.ndarray, rollouts: int, seed: int) -> np.ndarray:
        """Returns from inner states [state, roll-out], to where γᵗ is 1e-5."""
        rng = np.random.default_rng(seed)
        state = np.repeat(inner, rollouts, axis=0)
        lane, total, share = np.arange(len(state)), np.zeros(len(state)), 1.0
        for _ in range(math.ceil(math.log(1e-5) / math.log(self.gamma))):
            state, reward, ended = self.step(state, rng)
            total[lane] += share * reward
            share *= self.gamma
            state, lane = state[~ended], lane[~ended]
            if not lane.size:
                break
        return total.reshape(len(inner), rollouts)

    def truth(self, inner: np.ndarray, rollouts: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Mean and std of the return from inner states."""
        returns = self.returns(inner, rollouts if self.varies else 1, seed)
        return returns.mean(axis=1), returns.std(axis=1, ddof=1 if self.varies else 0)


def mountain_car(noise: float) -> World:
    """Push the way it moves; with some probability at random instead."""

    def reset(n: int, rng: np.random.Generator) -> np.ndarray:
        return np.column_stack([rng.uniform(-0.6, -0.4, n), np.zeros(n)])

    def step(s: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        push = np.where(s[:, 1] >= 0, 1, -1)
        if noise:
            push = np.where(rng.random(len(s)) < noise, rng.integers(-1, 2, len(s)), push)
        v = np.clip(s[:, 1] + 0.001 * push - 0.0025 * np.cos(3 * s[:, 0]), -0.07, 0.07)
        x = np.clip(s[:, 0] + v, -1.2, 0.6)
        v = np.where((x == -1.2) & (v < 0), 0.0, v)
        return np.column_stack([x, v]), np.full(len(s), -1.0), x >= 0.5

    tiles = TileCoding([-1.2, -0.07], [0.6, 0.07], tiles=20)
    return World(reset, step, np.array, 0.99, 200, tiles, varies=noise > 0)


def cart_pole(stochastic: bool) -> World:
    """Push towards where the pole falls; or with a probability that depends on how much."""

    def reset(n: int, rng: np.random.Generator) -> np.ndarray:
        return rng.uniform(-0.05, 0.05, (n, 4))

    def step(s: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x, v, angle, spin = s.T
        lean = angle + 0.4 * spin + 0.01 * x + 0.05 * v
        right = rng.random(len(s)) < 1 / (1 + np.exp(-8 * lean)) if stochastic else lean > 0
        force = np.where(right, 10.0, -10.0)
        c, sine = np.cos(angle), np.sin(angle)
        push = (force + 0.05 * spin**2 * sine) / 1.1
        turn = (9.8 * sine - c * push) / (0.5 * (4 / 3 - 0.1 * c * c / 1.1))
        pull = push - 0.05 * turn * c / 1.1
        after = s + 0.02 * np.column_stack([v, pull, spin, turn])
        over = (np.abs(after[:, 0]) > 2.4) | (np.abs(after[:, 2]) > math.radians(12))
        return after, np.ones(len(s)), over

    bound = [2.4, 3.0, 0.21, 3.0]
    tiles = TileCoding([-b for b in bound], bound, tiles=6)
    return World(reset, step, np.array, 0.99, 500, tiles, varies=stochastic)
