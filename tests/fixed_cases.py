"""Simulations of fixed shapes: few enough to be compiled, together every flag of a shape.

Their numbers are fractions, no random ones, so that what they give can be recorded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import retvar as rv


@dataclass(frozen=True)
class Case:
    """Arguments of a simulation."""

    mdp: rv.MDP
    learners: list
    length: dict
    runs: int = 1
    seed: int = 0
    policies: dict = field(default_factory=dict)
    features: dict = field(default_factory=dict)
    record: dict = field(default_factory=dict)

    @property
    def unit(self) -> str:
        return "step" if "steps" in self.length else "episode"

    @property
    def total(self) -> int:
        return next(iter(self.length.values()))

    def simulate(self, **changes: Any) -> Any:
        settings = {"runs": self.runs, "seed": self.seed, "keep": "runs", "threads": 1}
        settings |= {"record": rv.Record(**self.record), **self.policies, **self.features}
        learners = changes.pop("learners", self.learners)
        return rv.simulate(self.mdp, learners, **self.length, **{**settings, **changes})

    def replay(self, run: int) -> dict:
        return rv.replay(self.mdp, run=run, seed=self.seed, **self.length, **self.policies)

    def online(self, learner: rv.Learner) -> Any:
        return learner.online(**(self.features or {"states": self.mdp.n_states}))

    def rows_of(self, node: str) -> np.ndarray:
        """Features [state, weight] of a node."""
        variance = self.features.get("features", np.eye(self.mdp.n_states))
        value = self.features.get("value_features", variance)
        mean = self.features.get("mean_features", value)
        return {"value": value, "mean": mean}.get(node, variance)


def bits(x: Any) -> bytes:
    """The bits of an array, all NaNs being one."""
    x = np.array(x, dtype=np.float64)
    x[np.isnan(x)] = np.nan
    return x.tobytes()


def digest(data: Any) -> str:
    """Of all variables of a dataset."""
    found = hashlib.sha256()
    for name in sorted(data.data_vars):
        found.update(f"{name}{data[name].dims}{data[name].shape}".encode() + bits(data[name]))
    return found.hexdigest()


def made_mdp(rng: np.random.Generator, states: int, actions: int, ends: bool, noisy: bool) -> Any:
    """A random MDP in which every state is visited; the target may avoid some actions."""
    edges = []
    for s in range(states):
        for a in range(actions):
            targets = [(s + 1) % states, *rng.integers(states, size=rng.integers(2)).tolist()]
            targets += [s] if rng.random() < 0.3 else []
            targets += [rv.END] if ends else []
            shares = rng.dirichlet(np.ones(len(targets)))
            noise = rng.random(len(targets)) * noisy
            edges += [
                rv.Edge(s, a, t, p, rng.normal(), sd)
                for t, p, sd in zip(targets, shares, noise, strict=True)
            ]
    pi, mu = rng.dirichlet(np.ones(actions), size=(2, states))
    pi[rng.random((states, actions)) < 0.3] = 0.0
    pi[:, 0] += pi.sum(axis=1) == 0
    start = rng.random(states) * (rng.random(states) < 0.7)
    start[rng.integers(states)] += 0.5
    return rv.MDP.from_edges(
        edges, gamma=rng.uniform(0, 0.95, states), lam=rng.random(states),
        start=start / start.sum(), states=states, actions=actions,
        policies={"mu": mu, "pi": pi / pi.sum(axis=1, keepdims=True)},
    )  # fmt: skip


# ------------------------------------------------------------------------ fixed ones
OFF = {"target": "pi", "behaviour": "mu"}
AT = [0, 1, 2, 3, 5, 17, 60]
EVERYTHING = {"at": AT, "window": 20, "rmse": True}
START = np.array([0.5, -0.25, 1.0, 0.125, -1.5])  # a list would span a grid
FEATURES = np.array([[1.0, 0.5, 0.0], [0.0, -1.0, 0.25], [0.5, 0.5, 1.0], [-0.75, 0.0, 0.5]])
VALUE_FEATURES = np.array([[1.0, 0.0], [0.5, -1.0], [0.25, 0.75], [0.0, 1.5]])
MANY = (np.arange(5 * 17).reshape(5, 17) * 7 % 19 - 9) / 32  # more than FEW features


def domain(ends: bool = True) -> rv.MDP:
    """Four states, two actions; noise, ends, γ and λ of each state, two policies."""
    last = "end" if ends else 0
    edges = [
        (0, 0, 1, 0.75, 1.0, 0.5), (0, 0, 2, 0.25, -1.0, 0.0), (0, 1, 3, 1.0, 0.5, 1.0),
        (1, 0, 1, 0.5, 0.25, 0.0), (1, 0, 3, 0.5, 2.0, 0.25), (1, 1, 0, 1.0, -0.5, 0.0),
        (2, 0, last, 0.5, 3.0, 1.0), (2, 0, 0, 0.5, 0.0, 0.0), (2, 1, 1, 1.0, 1.0, 0.5),
        (3, 0, last, 0.25, -2.0, 0.0), (3, 0, 2, 0.75, 1.0, 0.125), (3, 1, 2, 1.0, 0.0, 2.0),
    ]  # fmt: skip
    return rv.MDP.from_edges(
        edges, gamma=[0.5, 0.75, 0.9, 0.95], lam=[1.0, 0.25, 0.5, 0.75], states=4, actions=2,
        policies={
            "mu": [[0.5, 0.5], [0.75, 0.25], [0.5, 0.5], [0.25, 0.75]],
            "pi": [[0.75, 0.25], [0.5, 0.5], [1.0, 0.0], [0.5, 0.5]],
        },
    )  # fmt: skip


def _table_1(mdp, length, policies=None, **settings) -> Case:
    """The shapes of Table 1: Direct and VTD on one value node, changes recorded."""
    learners = rv.grid(rv.Direct, rv.VTD, alpha_bar=[0.01, 0.1], **settings)
    record = {**EVERYTHING, "change": True}
    return Case(mdp, learners, length, 2, 3, policies or {}, {}, record)


def shared() -> Case:
    return _table_1(rv.domains.complex_mdp(), {"steps": 200}, alpha=0.1)


def ratios() -> Case:
    return _table_1(rv.domains.complex_mdp(), {"steps": 200}, OFF, alpha=0.1)


def weighted_return() -> Case:
    return _table_1(
        rv.domains.complex_mdp(), {"steps": 200}, OFF, alpha=0.1, estimand="off_policy_return"
    )


def episodes() -> Case:
    return _table_1(rv.domains.chain(), {"episodes": 60}, alpha=0.1)


def frozen() -> Case:
    held = rv.Noisy([3.5, 3.0, 1.75, 1.25], uniform=0.3, normal=0.1)
    frozen = {"alpha": 0.0, "value": held, "learn_value": False}
    return _table_1(rv.domains.chain(), {"episodes": 60}, **frozen)


def rules() -> Case:
    """All three methods without traces; steps by rule; γ of their own."""
    learners = []
    for alpha, gamma in ((0.7, None), (0.9, 0.5)):
        learners += rv.grid(
            rv.Direct, rv.VTD, rv.Centred, alpha=rv.Decay(alpha, 0.6), gamma=gamma,
            value=START, alpha_bar=rv.Adadelta(alpha, 1e-2), alpha_mean=rv.Decay(),
        )  # fmt: skip
    record = {**EVERYTHING, "step_sizes": True}
    return Case(rv.domains.complex_mdp(), learners, {"steps": 200}, 2, 4, OFF, {}, record)


def averaged_traces() -> Case:
    """Means of weights that traces reach, with features; a single learner."""
    steps = {"alpha": rv.Averaged(0.3), "alpha_bar": rv.Averaged(0.1)}
    learners = rv.grid(rv.Direct, **steps, kappa=0.5, kappa_bar=0.7)
    record = {**EVERYTHING, "change": True, "step_sizes": True}
    return Case(domain(), learners, {"steps": 200}, 2, 15, {}, {"features": FEATURES}, record)


def features() -> Case:
    """Traces, more than FEW features, and λ of their own."""
    tables = {"features": MANY[:4], "value_features": VALUE_FEATURES}
    learners = []
    for alpha, lam in ((0.5, None), (0.05, 0.5)):
        learners += rv.grid(
            rv.Direct, alpha=rv.AlphaBound(alpha), lam=lam, alpha_bar=[0.01, 0.02], kappa=0.5,
            kappa_bar=0.7, value=START[:2], estimand="off_policy_return",
        )  # fmt: skip
    record = {**EVERYTHING, "at": [0, 1, 5, 24], "change": True, "step_sizes": True}
    return Case(domain(), learners, {"episodes": 24}, 2, 5, OFF, tables, record)


def traces() -> Case:
    """Centred learners whose value has no trace, in two groups of lanes; κ of each state."""
    learners = rv.grid(
        rv.Centred, alpha=rv.Adadelta(0.9, 1e-2), alpha_mean=rv.AlphaBound(),
        alpha_bar=[rv.AlphaBound(k / 16) for k in range(1, 10)],
        kappa_mean=np.array([0.25, 0.5, 0.75, 1.0]), kappa_bar=0.9,
    )  # fmt: skip
    record = {**EVERYTHING, "step_sizes": True}
    return Case(domain(ends=False), learners, {"steps": 150}, 2, 6, {}, {}, record)


def few_features() -> Case:
    """All three methods with few features and traces, each value node twice."""
    learners = rv.grid(
        rv.Direct, rv.VTD, rv.Centred, alpha=[0.05, 0.1], alpha_bar=[0.02, 0.03], kappa=0.95,
        kappa_bar=0.9, value=START[:2],
    )  # fmt: skip
    tables = {"features": FEATURES, "value_features": VALUE_FEATURES}
    return Case(domain(), learners, {"steps": 200}, 2, 16, OFF, tables, EVERYTHING)


def frozen_features() -> Case:
    """Many features without traces, and a value held fixed."""
    learners = rv.grid(
        rv.VTD, rv.Centred, alpha=0.0, alpha_mean=0.02, alpha_bar=[rv.Decay(0.2), rv.Decay(0.1)],
        value=4 * MANY[0], learn_value=False,
    )  # fmt: skip
    record = {**EVERYTHING, "change": True}
    tables = {"features": MANY}
    return Case(rv.domains.complex_mdp(), learners, {"steps": 150}, 2, 7, {}, tables, record)


def plain() -> Case:
    """The default shape of the tests."""
    learners = rv.grid(rv.Direct, alpha=[k / 32 for k in range(1, 31, 3)])
    return Case(rv.domains.complex_mdp(), learners, {"steps": 150}, 2, 8, {}, {}, EVERYTHING)


def wild() -> Case:
    """Two learners diverge, one of them early: it cannot be proved that none will."""
    learners = rv.grid(rv.Direct, alpha=[0.1, 1e60, 0.2, 30.0, 0.3])
    record = {**EVERYTHING, "at": [*AT, 700]}
    return Case(rv.domains.complex_mdp(), learners, {"steps": 700}, 2, 8, {}, {}, record)


FIXED_CASES: dict[str, Callable[[], Case]] = {
    make.__name__: make
    for make in (
        shared, ratios, weighted_return, episodes, frozen, rules, averaged_traces, features, traces,
        few_features, frozen_features, plain, wild,
    )
}  # fmt: skip
COMPILED = (
    "shared", "ratios", "weighted_return", "episodes", "frozen", "features", "plain", "wild"
)  # fmt: skip


def faded() -> Case:
    """More states than `MANY`; most traces fade, some do not."""
    learners = [
        rv.Direct(alpha=0.1, kappa=1e-3, kappa_bar=1e-2),
        rv.Centred(alpha=0.1, kappa=1e-2, kappa_bar=1e-3, kappa_mean=0.9),
        rv.VTD(alpha=0.2, kappa=0.9, kappa_bar=1e-3),
    ]
    record = {"at": [0, 100, 200, 300, 400]}
    return Case(
        rv.domains.random_walk(150, right=0.9), learners, {"steps": 400}, 1, 9, {}, {}, record
    )


def poisoned() -> Case:
    """TD errors whose squares would overflow ADADELTA's accumulators count as divergence."""
    far = {"alpha": 0.0, "learn_value": False, "value": 1e80, "alpha_bar": rv.Adadelta()}
    learners = [rv.Direct(**far), rv.Direct(**{**far, "value": 1.0}), rv.Centred(**far)]
    record = {"at": [0, 1, 2, 9], "window": 5, "change": True}
    return Case(rv.domains.complex_mdp(), learners, {"steps": 20}, 1, 10, OFF, {}, record)


def other_learners() -> Case:
    """Two equal learners without traces; one could share a value node with a traced one."""
    same = {"alpha": 0.1, "alpha_bar": 0.2}
    learners = [rv.Direct(**same), rv.Direct(**same), rv.Centred(**same, kappa_mean=0.5)]
    record = {"at": [0, 50], "window": 50, "change": True, "rmse": True}
    return Case(rv.domains.complex_mdp(), learners, {"steps": 50}, 1, 11, {}, {}, record)


def shared_steps() -> Case:
    """Learners with one value node and secondary steps of their own: each records its own step."""
    learners = [
        rv.Direct(alpha=rv.Decay(0.5), alpha_bar=rv.Decay(a, power=0.7)) for a in (0.1, 0.2, 0.3)
    ] + [rv.VTD(alpha=rv.Decay(0.5), alpha_bar=rv.Decay(a, power=0.7)) for a in (0.1, 0.2)]
    record = {"at": [0, 7, 50], "step_sizes": True}
    return Case(rv.domains.complex_mdp(), learners, {"steps": 50}, 1, 12, {}, {}, record)
