"""The exact answers that simulated learners are judged by."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.engine.lanes import Block, Draws, Lane, aligned
from retvar.errors import InfiniteVarianceError
from retvar.exact.solution import solve, variances_for
from retvar.learners import Learner
from retvar.mdp import MDP, Flow, ask, state_values
from retvar.online import layout as online

__all__ = ["Truth"]

log = logging.getLogger("retvar")
Array = NDArray[np.float64]


class Truth:
    """Value and variance for each learner's question, each question solved once."""

    def __init__(
        self,
        mdp: MDP,
        lanes: list[Lane],
        seed: int,
        target: object,
        behaviour: object,
        wanted: bool,
    ) -> None:
        self.mdp, self.lanes, self.seed, self.wanted = mdp, lanes, seed, wanted
        self.target, self.behaviour = target, behaviour
        self._solved: dict[Any, tuple[Array, Array]] = {}
        self._flows: dict[Any, Flow] = {}

    def of(self, number: int) -> tuple[Array, Array]:
        """Value and variance of every state, as the learner should find them."""
        key = self._question(number)
        if key not in self._solved:
            self._solved[key] = self._solve(self.lanes[number].learner)
        return self._solved[key]

    def _question(self, number: int) -> Any:
        lane = self.lanes[number]
        return lane.gamma.tobytes(), lane.lam.tobytes(), lane.learner.estimand

    def _mdp(self, learner: Learner) -> MDP:
        return self.mdp if learner.gamma is None else self.mdp.replace(gamma=learner.gamma)

    def _ask(self, number: int) -> Flow:
        key = self._question(number)
        if key not in self._flows:
            learner = self.lanes[number].learner
            mdp = self._mdp(learner)
            self._flows[key] = ask(mdp, self.target, self.behaviour, learner.estimand, learner.lam)
        return self._flows[key]

    def _solve(self, learner: Learner) -> tuple[Array, Array]:
        unknown = np.full(self.mdp.n_states, np.nan)
        if not self.wanted:
            return unknown, unknown
        mdp, question = self._mdp(learner), (self.target, self.behaviour, learner.estimand)
        try:
            solution = solve(mdp, *question, lam=learner.lam)
        except InfiniteVarianceError as error:
            log.warning("the true variance is left out: %s", error)
            return state_values(ask(mdp, *question, learner.lam)).x, unknown
        return np.asarray(solution.value), np.asarray(solution.variance)

    def lanes_of(self, block: Block) -> Array:
        """Value and variance [2, state, lane] for the lanes of a block."""
        table = aligned(2, self.mdp.n_states, block.lanes)
        for lane in range(block.lanes):
            table[0, :, lane], table[1, :, lane] = self.of(block.learner(lane))
        return table

    def frozen(self, number: int, runs: range, draws: Draws | None = None) -> Array:
        """Variance for the value that a learner holds fixed [run or one for all, state]."""
        lane = self.lanes[number]
        weights = lane.weights(online.VALUE, runs, draws or Draws(self.seed))
        if not self.wanted:
            return np.full((weights.shape[0], self.mdp.n_states), np.nan)
        rows = lane.features[online.VALUE].rows()
        values = np.zeros((weights.shape[0], self.mdp.n_states))
        state = np.repeat(np.arange(self.mdp.n_states), np.diff(rows.indptr))
        np.add.at(values.T, state, (weights[:, rows.indices] * rows.values).T)
        try:
            return variances_for(self._ask(number), values)
        except InfiniteVarianceError:
            return np.full_like(values, np.nan)

    def frozen_lanes(self, block: Block, runs: range) -> Array:
        """The same for the lanes of a block [run or one for all, state, lane]."""
        found: dict[Any, Array] = {}
        draws = Draws(self.seed)
        tables = []
        for lane in range(block.lanes):
            number = block.learner(lane)
            key = self.lanes[number].value_node, self.lanes[number].learner.estimand
            if key not in found:
                found[key] = self.frozen(number, runs, draws)
            tables.append(found[key])
        out = aligned(max(t.shape[0] for t in tables), self.mdp.n_states, block.lanes)
        for lane, table in enumerate(tables):
            out[:, :, lane] = table
        return out
