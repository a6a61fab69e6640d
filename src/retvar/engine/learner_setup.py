"""Prepare learners for a stream: arrays, discounts of the edges, and initial values of each run."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.engine import streams
from retvar.errors import InputError
from retvar.features import Features, States
from retvar.initial_values import InitialValues
from retvar.learners import Learner
from retvar.mdp import END, MDP
from retvar.networks import MEAN, VALUE, VARIANCE
from retvar.online import memory_layout as online
from retvar.online.memory import Memory, memory_of
from retvar.random import U
from retvar.step_sizes import CONSTANT
from retvar.td.steps import counts_visits

__all__ = ["InitialDraws", "LearnerSetup", "Template", "prepare_learners"]

Array = NDArray[np.float64]
Rule = tuple[int, bool, float]  # of a node: step-size kind, whether it has a trace, power
Kind = tuple[str, tuple[int, ...], tuple[Rule, ...]]  # of a learner: see LearnerSetup.kind
PLAIN: Rule = (CONSTANT, False, 0.0)


@dataclass(frozen=True, eq=False)
class Template:
    """Shared setup of learners that differ only in the parameters of their step sizes."""

    learner: Learner  #: one of them
    features: list[Features]
    memory: Memory
    gamma: Array  #: γ′ of each edge of the stream
    lam: Array  #: λ′ of each edge
    initial: dict[str, InitialValues]  #: fields that differ from run to run

    @property
    def learns_value(self) -> bool:
        """Whether the value node learns."""
        return self.learner.learn_value

    @property
    def tabular(self) -> bool:
        """Whether each state has a weight of its own in all nodes."""
        return all(isinstance(f, States) for f in self.features)

    @cached_property
    def solution_key(self) -> tuple[Any, ...]:
        """Equal for learners with the same exact solution."""
        return self.gamma.tobytes(), self.lam.tobytes(), self.learner.estimand

    @cached_property
    def value_start_key(self) -> tuple[Any, ...]:
        """Equal for learners whose value nodes start from the same weights, in every run."""
        start = self.initial.get("value")
        weights = self.memory.weights(VALUE).tobytes()
        return weights, None if start is None else repr(start.to_dict())

    @cached_property
    def start(self) -> tuple[Any, ...]:
        """Equal for learners that start from the same weights in all nodes, in every run."""
        random = [repr(self.initial[name].to_dict()) for name in sorted(self.initial)]
        return (self.learner.method, self.memory.w.tobytes(), *random)

    def weights(self, runs: range, draws: InitialDraws) -> list[Array]:
        """Initial weights [run or one for all, weight] of the nodes."""
        if not self.initial:
            return [self.memory.weights(node)[None, :] for node in range(self.memory.places)]
        drawn = {
            name: self.initial[name].of(runs, self.features[place].size, draws.of(number))
            for number, (name, place) in enumerate(_INITIAL.items())
            if name in self.initial
        }
        learner, found = _with_settings(self.learner, drawn), []
        tables: dict[int, Array] = {}  # nodes may start from the same weights
        for node, kind in zip(learner.nodes(tabular=self.tabular), self.features, strict=True):
            if id(node.initial) not in tables:
                table = tables[id(node.initial)] = np.asarray(node.initial, dtype=np.float64) + 0.0
                if not np.all(np.abs(table) <= online.LIMIT):
                    raise InputError("value", "too large", f"must stay below {online.LIMIT:g}")
            found.append(np.broadcast_to(tables[id(node.initial)], (len(runs), kind.size)))
        return found


@dataclass(frozen=True, eq=False)
class LearnerSetup:
    """A learner prepared for a stream."""

    template: Template
    settings: Array  #: per node: two parameters of its step-size rule, then κ

    def rule(self, node: int) -> Rule:
        """Step-size kind, whether there is a trace, and the power of a decaying rule."""
        if node == VALUE and not self.template.learns_value:
            return PLAIN
        plan = self.template.memory.plan[node]
        kind, traced = int(plan[online.KIND]), bool(plan[online.TRACED])
        return kind, traced, float(self.settings[node, 1]) if counts_visits(kind) else 0.0

    def shape(self) -> tuple[Any, ...]:
        """Equal for learners that may be in the same block."""
        rules = self.rule(VALUE), self.rule(VARIANCE)
        per_state = self.settings[0].size > 3  # one trace decay per state
        return (self.template.learner.estimand, self.template.learns_value, per_state, rules)

    def kind(self) -> Kind:
        """Method, codes of its nodes, and the rules of those that `shape` does not have."""
        network = self.template.learner.network
        others = (self.rule(place) for place in network.places if place not in (VALUE, VARIANCE))
        return network.method, tuple(node.code for node in network.nodes), tuple(others)

    @cached_property
    def value_node(self) -> tuple[Any, ...]:
        """Equal for learners with the same value node."""
        learned = self.settings[VALUE].tobytes() if self.template.learns_value else b""
        return learned, self.template.value_start_key, self.template.solution_key


_INITIAL = {
    "initial_mean": MEAN,
    "initial_variance": VARIANCE,
    "value": VALUE,
}


class InitialDraws:
    """Random numbers for initial values, drawn once and shared by all learners."""

    def __init__(self, seed: int) -> None:
        self.seed = U(seed)  # compiled functions take integers of Python for signed ones
        self._made: dict[Any, Array] = {}

    def of(self, number: int) -> Any:
        """Return the drawing function of setting `number`."""

        def draw(what: str, runs: range, size: int) -> Array:
            key = (number, what, runs.start, len(runs), size)
            if key not in self._made:
                fill = streams.uniforms if what == "uniform" else streams.normals
                first = int(streams.INITIAL) + (number << 50) + (what == "normal") * (1 << 49)
                self._made[key] = np.empty((len(runs), size))
                fill(self.seed, runs.start, first, self._made[key])
            return self._made[key]

        return draw


def prepare_learners(
    mdp: MDP,
    learners: Sequence[Learner],
    features: list[Features],
    used: NDArray[np.intp],
    runs: int = 1,
) -> list[LearnerSetup]:
    """Prepare each learner for a stream over the edges `used`; errors name the learner."""
    templates: dict[Any, Template] = {}
    setups = []
    for number, learner in enumerate(learners):
        steps = [node.step for node in learner.nodes(tabular=False)]
        given = {n: id(x) for n, x in vars(learner).items() if not n.startswith("alpha")}
        key = (type(learner), *(step.kind for step in steps), *given.values())
        if key not in templates:
            try:
                templates[key] = _template(mdp, learner, features, used, runs)
            except InputError as error:
                raise InputError(
                    f"learners[{number}].{error.field}", error.value, error.remedy
                ) from None
        settings = templates[key].memory.settings.copy()
        settings[:, :2] = [step.parameters() for step in steps]
        setups.append(LearnerSetup(templates[key], settings))
    return setups


def _template(
    mdp: MDP, learner: Learner, features: list[Features], used: NDArray[np.intp], runs: int
) -> Template:
    initial = {name: x for name, x in vars(learner).items() if isinstance(x, InitialValues)}
    typical = _with_settings(learner, {name: given.typical for name, given in initial.items()})
    network = learner.network
    own = [
        features[min(p, VARIANCE) if p in network.places else VALUE]
        for p in range(network.place_count)
    ]
    memory = memory_of(typical, own)
    for given in initial.values():
        given.of(range(runs - 1, runs), np.size(given.typical), _no_draw)
    return Template(learner, own, memory, *_discounts(mdp, memory, used), initial)


def _with_settings(learner: Learner, settings: dict[str, Any]) -> Learner:
    """Copy a learner with other settings, without validation."""
    learner = copy.copy(learner)
    vars(learner).update(settings)
    return learner


def _no_draw(what: str, runs: range, size: int) -> Array:
    return np.zeros((len(runs), size))


def _discounts(mdp: MDP, memory: Memory, used: NDArray[np.intp]) -> tuple[Array, Array]:
    """γ′ and λ′ of each edge: the learner's if it has them, otherwise the MDP's."""
    follows = mdp.edges.next_state[used]
    ends = follows == END
    gamma = mdp.edges.gamma[used]
    if memory.gammas.size:
        gamma = np.broadcast_to(memory.gammas, mdp.n_states)[follows]
    lam = np.broadcast_to(memory.lams if memory.lams.size else mdp.lam, mdp.n_states)[follows]
    return np.where(ends, 0.0, gamma), np.where(ends, 0.0, lam)
