"""Exact solutions that simulated learners are compared with."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.engine.blocks import Block
from retvar.engine.learner_setup import InitialDraws, LearnerSetup, Template
from retvar.engine.workspace import stack_lanes
from retvar.errors import InfiniteVarianceError
from retvar.exact.solution import solve, variance_function
from retvar.learners import Learner
from retvar.mdp import MDP, state_values, weigh_edges
from retvar.networks import VALUE

__all__ = ["Truth"]

log = logging.getLogger("retvar")
Array = NDArray[np.float64]


class Truth:
    """Exact value and variance of each learner; each distinct problem is solved once."""

    def __init__(
        self,
        mdp: MDP,
        setups: list[LearnerSetup],
        seed: int,
        target: object,
        behaviour: object,
        enabled: bool,
    ) -> None:
        self.mdp, self.setups, self.seed, self.enabled = mdp, setups, seed, enabled
        self.target, self.behaviour = target, behaviour
        self._solved: dict[Any, tuple[Array, Array]] = {}
        self._frozen: dict[Any, Callable[[Array], Array]] = {}

    def of(self, template: Template) -> tuple[Array, Array]:
        """Exact value and variance of every state for a learner."""
        if template.solution_key not in self._solved:
            self._solved[template.solution_key] = self._solve(template.learner)
        return self._solved[template.solution_key]

    def _question(self, learner: Learner) -> dict[str, Any]:
        return {
            "mdp": self.mdp if learner.gamma is None else self.mdp.replace(gamma=learner.gamma),
            "target": self.target,
            "behaviour": self.behaviour,
            "estimand": learner.estimand,
            "lam": learner.lam,
        }

    def _solve(self, learner: Learner) -> tuple[Array, Array]:
        unknown = np.full(self.mdp.n_states, np.nan)
        if not self.enabled:
            return unknown, unknown
        question = self._question(learner)
        try:
            solution = solve(**question)
        except InfiniteVarianceError as error:
            log.warning("the true variance is left out: %s", error)
            return state_values(weigh_edges(**question)).x, unknown
        for note in solution.notes:
            log.warning("the true variance is left out in some states: %s", note)
        return np.asarray(solution.value), np.asarray(solution.variance)

    def _templates(self, block: Block) -> list[Template]:
        return [self.setups[block.learner(lane)].template for lane in range(block.lanes)]

    def of_lanes(self, block: Block) -> Array:
        """Value and variance [2, state, lane] for the lanes of a block."""
        found = {template: np.stack(self.of(template)) for template in set(self._templates(block))}
        return stack_lanes([found[template] for template in self._templates(block)])

    def frozen_of_lanes(self, block: Block, runs: range) -> Array:
        """Variance for the frozen value [run or one for all, state, lane] of a block."""
        return stack_lanes(self.frozen(self._templates(block), runs))

    def frozen(self, templates: list[Template], runs: range) -> list[Array]:
        """Variance for the fixed value of each learner [run or one for all, state]."""
        if not self.enabled:
            return [np.full((1, self.mdp.n_states), np.nan)] * len(templates)
        draws = InitialDraws(self.seed)
        by_solution: dict[Any, dict[Any, Template]] = {}
        for template in templates:
            by_solution.setdefault(template.solution_key, {}).setdefault(
                template.value_start_key, template
            )
        found: dict[Any, Array] = {}
        for solution_key, distinct in by_solution.items():
            fixed = [self._fixed_values(template, runs, draws) for template in distinct.values()]
            ends = np.cumsum([len(values) for values in fixed])
            first = next(iter(distinct.values()))
            parts = np.split(self._variances(first, np.concatenate(fixed)), ends[:-1])
            found |= {
                (solution_key, start): part for start, part in zip(distinct, parts, strict=True)
            }
        return [found[template.solution_key, template.value_start_key] for template in templates]

    def _fixed_values(self, template: Template, runs: range, draws: InitialDraws) -> Array:
        """Fixed values of the learners of a template [run or one for all, state]."""
        weights = template.weights(runs, draws)[VALUE]
        rows = template.features[VALUE].rows()
        values = np.zeros((weights.shape[0], self.mdp.n_states))
        state = np.repeat(np.arange(self.mdp.n_states), np.diff(rows.indptr))
        np.add.at(values.T, state, (weights[:, rows.indices] * rows.values).T)
        return values

    def _variances(self, template: Template, values: Array) -> Array:
        if template.solution_key not in self._frozen:
            self._frozen[template.solution_key] = variance_function(
                weigh_edges(**self._question(template.learner))
            )
        return self._frozen[template.solution_key](values)
