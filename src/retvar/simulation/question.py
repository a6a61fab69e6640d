"""Learners on a stream of an MDP, and the exact solutions that they are compared with."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from itertools import compress
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.exact.moments import NAMES
from retvar.exact.solution import solve, variance_function
from retvar.exact.stationary import transitions
from retvar.mdp import MDP, state_values, weigh_edges
from retvar.mdp.weighted_edges import check_mdp
from retvar.simulation.blocks import Template, initial_draws, prepare_learners
from retvar.simulation.record import Record
from retvar.simulation.streams import stream_of
from retvar.support import arguments
from retvar.support.errors import InfiniteVarianceError, InputError
from retvar.support.format import listed, literal
from retvar.td.features import Features, States, features_of_nodes
from retvar.td.learners import Learner
from retvar.td.networks import DEFAULT, MEAN, NETWORKS, PLACES, VALUE, VARIANCE
from retvar.td.step_sizes import StepSize
from retvar.version import __version__

log = logging.getLogger("retvar")
Array = NDArray[np.float64]
MOST = 10**15  # steps, episodes and runs


class Question:
    """Which learners learn what: checked at the door; each distinct problem is solved once."""

    def __init__(
        self,
        mdp: MDP,
        learners: Any,
        policies: tuple[object, object],
        features: tuple[Any, Any, Any],
        truth: bool = True,
        seed: int = 0,
        runs: int = 1,
    ) -> None:
        check_mdp(mdp)
        self.mdp, (self.target, self.behaviour) = mdp, policies
        self.learners = _labelled(learners)
        self.stream, self.used = stream_of(mdp, *policies, seed)
        self.seed, self.enabled = int(seed), arguments.flag("truth", truth)
        kinds, given = _features(mdp, *features), list(self.learners.values())
        self.setups = prepare_learners(mdp, given, kinds, self.used, runs)
        self.templates = [setup.template for setup in self.setups]
        self.order = max(learner.order for learner in given)
        self._solved: dict[Any, dict[str, Array]] = {}
        self._frozen: dict[Any, Callable[[Array], Array]] = {}

    @property
    def actor(self) -> object:
        """The policy that acts."""
        return self.target if self.behaviour is None else self.behaviour

    # ------------------------------------------------------------------ exact solutions

    @property
    def higher(self) -> tuple[str, ...]:
        """Names of what is known beyond the variance."""
        return NETWORKS[DEFAULT].up_to(self.order).higher

    def truth(self, template: Template) -> dict[str, Array]:
        """Exact value, variance and higher moments of every state for a learner."""
        if template.solution_key not in self._solved:
            self._solved[template.solution_key] = self._solve(template.learner)
        return self._solved[template.solution_key]

    def _asked(self, learner: Learner) -> dict[str, Any]:
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
        asked = self._asked(learner)
        for order in range(self.order, 1, -1):
            try:
                solution = solve(**asked, order=order)
            except InfiniteVarianceError as error:
                log.warning("the true %s is left out: %s", NAMES[order], error)
                continue
            for note in solution.notes:
                what = "variance is" if order == 2 else "moments are"
                log.warning("the true %s left out in some states: %s", what, note)
            known = {name: getattr(solution, name) for name in names if name in solution.fields}
            return unknown | known
        return unknown | {"value": state_values(weigh_edges(**asked)).x}

    def of_lanes(self, block: Any) -> Array:
        """Value, variance and higher moments [row, state] for the lanes of a block."""
        found = self.truth(self.templates[block.learners()[0]])
        names = PLACES[VALUE], *PLACES[VARIANCE : self.order + 1]
        return np.stack([found[name] for name in names])

    def frozen(self, templates: Sequence[Template], runs: range) -> list[Array]:
        """Variance for the fixed value of each learner [run or one for all, state]."""
        draws, found = initial_draws(self.seed), {}
        for t in templates:
            key = t.solution_key, t.value_start_key
            if key in found:
                continue
            if not self.enabled:
                found[key] = np.full((1, self.mdp.n_states), np.nan)
                continue
            if t.solution_key not in self._frozen:
                edges = weigh_edges(**self._asked(t.learner))
                self._frozen[t.solution_key] = variance_function(edges)
            weights, rows = t.weights(runs, draws)[VALUE], t.features[VALUE].rows()
            values = np.zeros((weights.shape[0], self.mdp.n_states))
            state = np.repeat(np.arange(self.mdp.n_states), np.diff(rows.indptr))
            np.add.at(values.T, state, (weights[:, rows.indices] * rows.values).T)
            found[key] = self._frozen[t.solution_key](values)
        return [found[t.solution_key, t.value_start_key] for t in templates]

    # ------------------------------------------------------------------ parts of a dataset

    def exact_answers(self, at: Any) -> dict[str, Any]:
        """Exact answers in some states; the variance for a fixed value, where it is."""
        if not self.enabled:
            return {}
        dims = ("learner", "state")
        exact: dict[str, Any] = {
            f"true_{name}": (dims, np.array([self.truth(t)[name][at] for t in self.templates]))
            for name in ("value", "variance", *self.higher)
        }
        fixed = [not t.learner.learn_value and t.start is None for t in self.templates]
        if any(fixed):
            frozen = np.full((len(self.templates), at.size), np.nan)
            held = self.frozen(list(compress(self.templates, fixed)), range(1))
            frozen[fixed] = [table[0, at] for table in held]
            exact["frozen_variance"] = (dims, frozen)
        return exact

    def coords(self, states: Any) -> dict[str, Any]:
        """Learners, their class, the settings that differ, and all settings; states."""
        learners, labels = list(self.learners.values()), self.mdp.state_labels
        settings = [json.dumps(_without_tables(learner.to_dict())) for learner in learners]
        return {
            "learner": list(self.learners),
            "state": [labels[s] for s in states],
            "algorithm": ("learner", [type(learner).__name__ for learner in learners]),
            **{name: ("learner", column) for name, column in _varying(learners).items()},
            "settings": ("learner", settings),
        }

    @property
    def attributes(self) -> dict[str, Any]:
        """What the dataset is of."""

        def name(policy: object) -> str:
            if policy is None:
                return next(iter(self.mdp.policies))
            return policy if isinstance(policy, str) else repr(policy)

        return {
            "mdp": self.mdp.name or repr(self.mdp),
            "target": name(self.target),
            "behaviour": name(self.actor),
            "retvar": __version__,
        }

    # ------------------------------------------------------------------ checks

    def refuse_endless(self, episodes: Any) -> None:
        """Raise an InputError if a run may reach a state from which no episode ends."""
        from scipy.sparse.csgraph import breadth_first_order

        P, n = transitions(self.mdp, self.actor), self.mdp.n_states  # the end is the last state
        reached = breadth_first_order(P, n, return_predecessors=False)
        ending = breadth_first_order(P.T.tocsr(), n, return_predecessors=False)
        lost = np.setdiff1d(reached, ending)
        if lost.size:
            names = listed(self.mdp.state_name(int(s)) for s in lost)
            remedy = f"no episode ends from {names} under this policy; give steps"
            raise InputError("episodes", episodes, remedy)

    def recorded_states(self, record: Record) -> Any:
        """Indices of the states to record."""
        if record.states is None:
            return np.arange(self.mdp.n_states, dtype=np.int64)
        listed_states = isinstance(record.states, Sequence | np.ndarray)
        if not listed_states or isinstance(record.states, str) or len(record.states) == 0:
            raise InputError("record.states", literal(record.states), "must be a list of states")
        return np.array([self.mdp.state_index(s) for s in record.states], dtype=np.int64)


def length_of(mdp: MDP, steps: int | None, episodes: int | None) -> tuple[int, bool]:
    """Number of moments, and whether they are steps."""
    check_mdp(mdp)
    if (steps is None) == (episodes is None):
        given = "neither" if steps is None else "both"
        raise InputError("steps, episodes", given, "give one of the two")
    if steps is not None:
        return arguments.integer("steps", steps, 1, MOST), True
    if not mdp.episodic:
        remedy = "this MDP has no edge that ends an episode; give steps"
        raise InputError("episodes", episodes, remedy)
    return arguments.integer("episodes", episodes, 1, MOST), False


def _labelled(learners: Any) -> dict[str, Learner]:
    """Learners by label; raise an InputError if they are none."""
    if isinstance(learners, Learner):
        learners = [learners]
    if isinstance(learners, Mapping):
        labelled = {arguments.text("learners", label): each for label, each in learners.items()}
        if len(labelled) < len(learners):
            raise InputError("learners", list(learners), "labels must differ as text")
    elif isinstance(learners, Sequence) and all(isinstance(d, Learner) for d in learners):
        labelled = dict(zip(labels_of(list(learners)), learners, strict=True))
    else:
        labelled = {"": learners}
    remedy = "must be learners, at least one: Direct, VTD, Centred or a grid"
    for label, learner in labelled.items():
        if not isinstance(learner, Learner):
            found = f"{label}: {literal(learner)}" if label else literal(learner)
            raise InputError("learners", found, remedy)
    if not labelled:
        raise InputError("learners", "none", remedy)
    return labelled


def _features(mdp: MDP, features: Any, value: Any, mean: Any) -> list[Features]:
    """Features of the value, mean and variance node."""
    if features is None and not (value is None and mean is None):
        raise InputError("value_features", "alone", "give features too")
    given = States(mdp.n_states) if features is None else features
    kinds = features_of_nodes(given, value, mean)
    fields = {VARIANCE: "features", VALUE: "value_features", MEAN: "mean_features"}
    for place, field in fields.items():
        kind = kinds[place]
        if kind.states != mdp.n_states:
            found = "no table" if kind.states is None else f"{kind.states} rows"
            raise InputError(field, found, f"must be a table of {mdp.n_states} rows, one per state")
    return kinds


# ---------------------------------------------------------------------- settings of learners


def _columns(learners: Sequence[Learner]) -> dict[str, tuple[list[Any], list[str]]]:
    """All settings by name: those of each learner, and short texts; shared ones are made once."""
    kinds = dict.fromkeys(type(d) for d in learners)
    found = {}
    for name in dict.fromkeys(f.name for kind in kinds for f in dataclasses.fields(kind)):
        given = [getattr(d, name, None) for d in learners]
        short = {key: _short_text(x) for key, x in {id(x): x for x in given}.items()}
        found[name] = given, [short[id(x)] for x in given]
    return found


def _varying(learners: Sequence[Learner]) -> dict[str, Any]:
    """Settings that differ between learners (step sizes always) as columns."""
    columns = {}
    for name, (given, texts) in _columns(learners).items():
        if name == "alpha_bar":
            given = [d.alpha if x is None else x for d, x in zip(learners, given, strict=True)]
            texts = [_short_text(x) for x in given]
        if len(set(texts)) > 1 or name in ("alpha", "alpha_bar"):
            plain = all(x is None or arguments.is_real(x) for x in given)
            numbers = [np.nan if x is None else float(x) for x in given] if plain else []
            columns["initial_value" if name == "value" else name] = numbers or texts
    return columns


def _short_text(x: Any) -> str:
    """A setting as a short text."""
    if isinstance(x, StepSize):
        settings = ", ".join(f"{v:g}" for v in dataclasses.asdict(x).values())
        return f"{type(x).__name__}({settings})"
    if isinstance(x, bool) or x is None or isinstance(x, str):
        return str(x)
    if isinstance(x, Real):
        return f"{float(x):g}"
    if hasattr(x, "uniform"):
        return f"Noisy({x.uniform:g}, {x.normal:g})"
    text = json.dumps(x.to_dict() if hasattr(x, "to_dict") else np.asarray(x).tolist())
    return text if len(text) < 40 else f"{text[:24]}…#{sha256(text.encode()).hexdigest()[:6]}"


def labels_of(learners: list[Learner]) -> list[str]:
    """Unique labels: the method, and the settings that differ and that all of them have.

    >>> import retvar as rv
    >>> labels_of([rv.Direct(alpha=0.1), rv.VTD(alpha=0.1)])
    ['direct', 'vtd']
    >>> labels_of([rv.Direct(alpha=0.1), rv.Direct(alpha=0.2)])
    ['direct alpha=0.1', 'direct alpha=0.2']
    """
    kinds = {type(d) for d in learners}
    columns = {
        name: texts
        for name, (_, texts) in _columns(learners).items()
        if len(set(texts)) > 1 and all(name in kind.__dataclass_fields__ for kind in kinds)
    }
    labels = [
        " ".join([d.method, *(f"{name}={column[i]}" for name, column in columns.items())])
        for i, d in enumerate(learners)
    ]
    seen: dict[str, int] = {}
    for i, label in enumerate(labels):
        seen[label] = seen.get(label, 0) + 1
        if seen[label] > 1:
            labels[i] = f"{label} ({seen[label]})"
    return labels


def _without_tables(plain: Any) -> Any:
    """Settings without long tables."""
    if isinstance(plain, dict):
        return {name: _without_tables(given) for name, given in plain.items()}
    if isinstance(plain, list) and np.size(plain) > 1_000:
        return f"{np.shape(plain)} numbers"
    return plain
