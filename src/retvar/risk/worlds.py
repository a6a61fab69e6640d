"""MDPs with the interface of an environment."""

from __future__ import annotations

from typing import Any

import numpy as np

from retvar.mdp import END, MDP

__all__ = ["MDPWorld"]


class MDPWorld:
    """An MDP with ``reset`` and ``step`` of an environment; ``info["gamma"]`` is the discount.

    >>> import retvar as rv
    >>> world = MDPWorld(rv.domains.chain(reward_std=0.0), None, np.random.default_rng(0))
    >>> world.reset(), world.step(0)
    ((0, {}), (1, 1.0, False, False, {'gamma': 1.0}))
    """

    def __init__(self, mdp: MDP, start: object, rng: np.random.Generator) -> None:
        e = mdp.edges
        self._start = np.cumsum(mdp.start_distribution(start))
        pair = e.state * mdp.n_actions + e.action
        order = np.argsort(pair, kind="stable")
        self._first = np.searchsorted(pair[order], np.arange(mdp.n_states * mdp.n_actions + 1))
        self._total = np.cumsum(e.probability[order])
        columns = (e.next_state, e.reward, e.reward_std, e.gamma)
        self._next, self._reward, self._noise, self._gamma = (c[order].tolist() for c in columns)
        self._actions, self._rng, self._state = mdp.n_actions, rng, 0

    def reset(self, *, seed: int | None = None) -> tuple[int, dict[str, Any]]:
        """Draw a start; the seed is that of the random generator given."""
        self._state = self._draw(self._start, 0, self._start.size)
        return self._state, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Draw an edge of an action."""
        pair = self._state * self._actions + action
        edge = self._draw(self._total, self._first[pair], self._first[pair + 1])
        self._state = self._next[edge]
        reward = self._reward[edge]
        if noise := self._noise[edge]:
            reward += noise * self._rng.standard_normal()
        return self._state, reward, self._state == END, False, {"gamma": self._gamma[edge]}

    def _draw(self, total: Any, first: int, last: int) -> int:
        """Draw a number from `first` to `last` (excluded), given sums of probabilities."""
        below = total[first - 1] if first else 0.0
        point = below + self._rng.random() * (total[last - 1] - below)
        return min(int(np.searchsorted(total[first:last], point, side="right")) + first, last - 1)
