"""Simulations of fixed shapes: few enough to be compiled, together every flag of a shape."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import retvar as rv
from tests.cases import Case, made_mdp

OFF = {"target": "pi", "behaviour": "mu"}
AT = [0, 1, 2, 3, 5, 17, 60]
EVERYTHING = {"at": AT, "window": 20, "rmse": True}


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
    chain = rv.domains.chain()
    held = rv.Noisy(rv.solve(chain).value, uniform=0.3)
    return _table_1(chain, {"episodes": 60}, alpha=0.0, value=held, learn_value=False)


def rules() -> Case:
    """All three methods without traces; steps by rule; γ of their own."""
    rng = np.random.default_rng(0)
    learners = []
    for alpha, gamma in ((0.7, None), (0.9, 0.5)):
        learners += rv.grid(
            rv.Direct, rv.VTD, rv.Centred, alpha=rv.Decay(alpha, 0.6), gamma=gamma,
            value=rng.normal(size=5), alpha_bar=rv.Adadelta(alpha, 1e-2), alpha_mean=rv.Decay(),
        )  # fmt: skip
    record = {**EVERYTHING, "step_sizes": True}
    return Case(rv.domains.complex_mdp(), learners, {"steps": 200}, 2, 4, OFF, {}, record)


def averaged_traces() -> Case:
    """Means of weights that traces reach, with features; a single learner."""
    rng = np.random.default_rng(15)
    mdp = made_mdp(rng, 5, 2, ends=True, noisy=True)
    learners = rv.grid(
        rv.Direct, alpha=rv.Averaged(0.3), alpha_bar=rv.Averaged(0.1), kappa=0.5, kappa_bar=0.7,
    )  # fmt: skip
    record = {**EVERYTHING, "change": True, "step_sizes": True}
    tables = {"features": rng.normal(size=(5, 3))}
    return Case(mdp, learners, {"steps": 200}, 2, 15, {}, tables, record)


def features() -> Case:
    """Two methods with traces, more than FEW features, and λ of their own."""
    rng = np.random.default_rng(7)
    mdp = made_mdp(rng, 5, 2, ends=True, noisy=True)
    tables = {
        "features": rng.normal(size=(5, 17)) / 4,
        "value_features": rng.normal(size=(5, 2)) * (rng.random((5, 2)) < 0.8),
    }
    learners = []
    for alpha, lam in ((0.5, None), (0.05, 0.5)):
        learners += rv.grid(
            rv.Direct, rv.VTD, alpha=rv.AlphaBound(alpha), lam=lam, alpha_bar=[0.01, 0.02],
            kappa=0.5, kappa_bar=0.7, value=rng.normal(size=2), estimand="off_policy_return",
        )  # fmt: skip
    record = {**EVERYTHING, "change": True, "step_sizes": True}
    return Case(mdp, learners, {"episodes": 60}, 2, 5, OFF, tables, record)


def traces() -> Case:
    """Centred learners whose value has no trace, in two groups of lanes; κ of each state."""
    rng = np.random.default_rng(8)
    mdp = made_mdp(rng, 6, 2, ends=False, noisy=True)
    learners = rv.grid(
        rv.Centred, alpha=rv.Adadelta(0.9, 1e-2), alpha_mean=rv.AlphaBound(),
        alpha_bar=[rv.AlphaBound(k / 18) for k in range(1, 10)], kappa_mean=rng.random(6),
        kappa_bar=0.9,
    )  # fmt: skip
    record = {**EVERYTHING, "step_sizes": True}
    return Case(mdp, learners, {"steps": 150}, 2, 6, {}, {}, record)


def few_features() -> Case:
    """All three methods with few features and traces, each value node twice."""
    rng = np.random.default_rng(16)
    mdp = made_mdp(rng, 5, 2, ends=True, noisy=False)
    learners = rv.grid(
        rv.Direct, rv.VTD, rv.Centred, alpha=[0.05, 0.1], alpha_bar=[0.02, 0.03], kappa=0.95,
        kappa_bar=0.9, value=rng.normal(size=2),
    )  # fmt: skip
    tables = {"features": rng.normal(size=(5, 3)), "value_features": rng.normal(size=(5, 2))}
    return Case(mdp, learners, {"steps": 200}, 2, 16, OFF, tables, EVERYTHING)


def frozen_features() -> Case:
    """Many features without traces, and a value held fixed."""
    rng = np.random.default_rng(9)
    learners = rv.grid(
        rv.VTD, rv.Centred, alpha=0.0, alpha_mean=0.02, alpha_bar=[rv.Decay(0.2), rv.Decay(0.1)],
        value=rng.normal(size=17), learn_value=False,
    )  # fmt: skip
    record = {**EVERYTHING, "change": True}
    tables = {"features": rng.normal(size=(5, 17)) / 4}
    return Case(rv.domains.complex_mdp(), learners, {"steps": 150}, 2, 7, {}, tables, record)


def plain() -> Case:
    """The default shape of the tests."""
    learners = rv.grid(rv.Direct, alpha=np.linspace(0.05, 0.9, 20))
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
COMPILED = ("shared", "frozen", "features", "few_features", "plain", "wild")  # the others: not


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
