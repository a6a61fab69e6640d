"""Exact solutions that simulated learners are compared with."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar import arguments
from retvar.engine.blocks import Block
from retvar.engine.learner_setup import InitialDraws, LearnerSetup, Template
from retvar.engine.workspace import stack_lanes
from retvar.errors import InfiniteVarianceError
from retvar.exact.moments import NAMES
from retvar.exact.solution import solve, variance_function
from retvar.learners import Learner
from retvar.mdp import MDP, state_values, weigh_edges
from retvar.networks import DEFAULT, NETWORKS, PLACES, VALUE, VARIANCE

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
        self.mdp, self.setups, self.seed = mdp, setups, seed
        self.enabled = arguments.flag("truth", enabled)
        self.target, self.behaviour = target, behaviour
        self.order = max(setup.template.learner.order for setup in setups)
        self._solved: dict[Any, dict[str, Array]] = {}
        self._frozen: dict[Any, Callable[[Array], Array]] = {}

    def of(self, template: Template) -> tuple[Array, Array]:
        """Exact value and variance of every state for a learner."""
        found = self.moments(template)
        return found["value"], found["variance"]

    @property
    def higher(self) -> tuple[str, ...]:
        """Names of what is known beyond the variance."""
        return NETWORKS[DEFAULT].up_to(self.order).higher

    def moments(self, template: Template) -> dict[str, Array]:
        """Exact value, variance and higher moments of every state for a learner."""
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

    def _solve(self, learner: Learner) -> dict[str, Array]:
        names = ("value", "variance", *self.higher)
        unknown = dict.fromkeys(names, np.full(self.mdp.n_states, np.nan))
        if not self.enabled:
            return unknown
        question = self._question(learner)
        for order in range(self.order, 1, -1):
            try:
                solution = solve(**question, order=order)
            except InfiniteVarianceError as error:
                log.warning("the true %s is left out: %s", NAMES[order], error)
                continue
            for note in solution.notes:
                what = "variance is" if order == 2 else "moments are"
                log.warning("the true %s left out in some states: %s", what, note)
            known = {name: getattr(solution, name) for name in names if name in solution.fields}
            return unknown | known
        return unknown | {"value": state_values(weigh_edges(**question)).x}

    def _templates(self, block: Block) -> list[Template]:
        return [self.setups[block.learner(lane)].template for lane in range(block.lanes)]

    def of_lanes(self, block: Block) -> Array:
        """Value, variance and higher moments [row, state, lane] for the lanes of a block."""
        names = (PLACES[VALUE], *PLACES[VARIANCE : self.order + 1])
        found = {
            template: np.stack([self.moments(template)[name] for name in names])
            for template in set(self._templates(block))
        }
        return stack_lanes([found[template] for template in self._templates(block)])

    def frozen_of_lanes(self, block: Block, runs: range) -> list[Array]:
        """Variance for the frozen value [run or one for all, state] of the lanes of a block."""
        return self.frozen(self._templates(block), runs)

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
