"""The exact answers that simulated learners are judged by."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.engine.lanes import Block, Draws, Form, Lane, side_by_side
from retvar.errors import InfiniteVarianceError
from retvar.exact.solution import solve, variance_function
from retvar.learners import Learner
from retvar.mdp import MDP, state_values, weigh_edges
from retvar.online import memory_layout as online

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
        self._frozen: dict[Any, Callable[[Array], Array]] = {}

    def of(self, form: Form) -> tuple[Array, Array]:
        """Value and variance of every state, as the learner should find them."""
        if form.question not in self._solved:
            self._solved[form.question] = self._solve(form.learner)
        return self._solved[form.question]

    def _asked(self, learner: Learner) -> dict[str, Any]:
        return {
            "mdp": self.mdp if learner.gamma is None else self.mdp.replace(gamma=learner.gamma),
            "target": self.target,
            "behaviour": self.behaviour,
            "estimand": learner.estimand,
            "lam": learner.lam,
        }

    def _solve(self, learner: Learner) -> tuple[Array, Array]:
        unknown = np.full(self.mdp.n_states, np.nan)
        if not self.wanted:
            return unknown, unknown
        asked = self._asked(learner)
        try:
            solution = solve(**asked)
        except InfiniteVarianceError as error:
            log.warning("the true variance is left out: %s", error)
            return state_values(weigh_edges(**asked)).x, unknown
        return np.asarray(solution.value), np.asarray(solution.variance)

    def _forms(self, block: Block) -> list[Form]:
        return [self.lanes[block.learner(lane)].form for lane in range(block.lanes)]

    def lanes_of(self, block: Block) -> Array:
        """Value and variance [2, state, lane] for the lanes of a block."""
        found = {form: np.stack(self.of(form)) for form in set(self._forms(block))}
        return side_by_side([found[form] for form in self._forms(block)])

    def frozen_lanes(self, block: Block, runs: range) -> Array:
        """Variance for the frozen value [run or one for all, state, lane], lane by lane."""
        return side_by_side(self.frozen(self._forms(block), runs))

    def frozen(self, forms: list[Form], runs: range) -> list[Array]:
        """Variance for the value that each holds fixed [run or one for all, state]."""
        if not self.wanted:
            return [np.full((1, self.mdp.n_states), np.nan)] * len(forms)
        draws = Draws(self.seed)
        by_question: dict[Any, dict[Any, Form]] = {}
        for form in forms:
            by_question.setdefault(form.question, {}).setdefault(form.value_start, form)
        found: dict[Any, Array] = {}
        for question, distinct in by_question.items():
            held = [self._held(form, runs, draws) for form in distinct.values()]
            ends = np.cumsum([len(values) for values in held])
            first = next(iter(distinct.values()))
            parts = np.split(self._variances(first, np.concatenate(held)), ends[:-1])
            found |= {(question, start): part for start, part in zip(distinct, parts, strict=True)}
        return [found[form.question, form.value_start] for form in forms]

    def _held(self, form: Form, runs: range, draws: Draws) -> Array:
        """The values that learners of a form hold fixed [run or one for all, state]."""
        weights = form.weights(runs, draws)[online.VALUE]
        rows = form.features[online.VALUE].rows()
        values = np.zeros((weights.shape[0], self.mdp.n_states))
        state = np.repeat(np.arange(self.mdp.n_states), np.diff(rows.indptr))
        np.add.at(values.T, state, (weights[:, rows.indices] * rows.values).T)
        return values

    def _variances(self, form: Form, values: Array) -> Array:
        try:
            if form.question not in self._frozen:
                edges = weigh_edges(**self._asked(form.learner))
                self._frozen[form.question] = variance_function(edges)
            return self._frozen[form.question](values)
        except InfiniteVarianceError:
            return np.full_like(values, np.nan)
