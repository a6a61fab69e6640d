"""Checks that mean updates vanish at the exact solutions and fixed points of a random MDP."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from retvar.domains import random_mdp
from retvar.errors import InfiniteVarianceError
from retvar.exact import fixed_point, solve
from retvar.mdp import END, MDP
from retvar.online import Transition
from retvar.testing.case import PER_STATE, STEP_SIZES, Case, expect

ROOT = math.sqrt(3.0)


def exact_value_is_stationary(case: Case) -> None:
    """At the exact value, its mean update over all transitions of a random MDP is zero."""
    mdp, _ = _problem(case)
    value = solve(mdp, "target").value  # for either estimand: the ratio weighs its updates
    scale = max(1.0, np.abs(value).max())
    _expect_stationary(case, mdp, "value", scale, value=value, learn_value=True)


def exact_variance_is_stationary(case: Case) -> None:
    """At the exact value and variance, the variance's mean update over all transitions is zero."""
    mdp, question = _problem(case)
    truth = solve(mdp, **question)
    _expect_stationary(
        case, mdp, "variance", max(1.0, truth.second_moment.max(), (truth.value**2).max()),
        value=truth.value, initial_variance=truth.variance, initial_mean=truth.mean,
        learn_value=False,
    )  # fmt: skip


def fixed_point_is_stationary(case: Case) -> None:
    """With a wrong fixed value, :func:`retvar.fixed_point` is stationary."""
    mdp, question = _problem(case)
    value = solve(mdp, **question).value + case.rng.normal(size=3)
    exact = solve(mdp, **question, value=value)
    point = fixed_point(case.description.method, mdp, **question, value=value)
    _expect_stationary(
        case, mdp, "variance", max(1.0, exact.second_moment.max(), (value**2).max()),
        value=value, initial_variance=point.variance, initial_mean=exact.mean, learn_value=False,
    )  # fmt: skip


def _problem(case: Case) -> tuple[MDP, dict[str, Any]]:
    """Return a small random MDP of finite variance, and the arguments of `solve`."""
    estimand = getattr(case.description, "estimand", "target_return")
    question: dict[str, Any] = {"target": "target", "behaviour": "behaviour", "estimand": estimand}
    while True:
        mdp = random_mdp(
            3, 2, 2, seed=int(case.rng.integers(2**31)), gamma=(0.0, 0.9), lam=(0.0, 0.9), ends=0.2
        )
        try:
            finite = np.isfinite(solve(mdp, **question).variance).all()
        except InfiniteVarianceError:
            continue
        if finite:
            return mdp, question


def _outcomes(mdp: MDP) -> Iterator[tuple[float, dict[str, Any]]]:
    """Yield every transition with its probability, with three rewards each (Gauss–Hermite)."""
    pi, mu = (mdp.policy(name).probabilities for name in ("target", "behaviour"))
    for s, a, t, p, r, sd, gamma in zip(*(c.tolist() for c in mdp.edges), strict=True):
        ahead: dict[str, Any] = {"next_state": None, "terminated": True}
        if t != END:
            ahead = {"next_state": t, "gamma": gamma, "lam": float(mdp.lam[t])}
        for x, weight in ((-ROOT, 1 / 6), (0.0, 2 / 3), (ROOT, 1 / 6)):
            rho = float(pi[s, a] / mu[s, a])
            yield mu[s, a] * p * weight, {"state": s, "reward": r + x * sd, "rho": rho, **ahead}


def _expect_stationary(case: Case, mdp: MDP, answer: str, scale: float, **settings: Any) -> None:
    """Expect updates with step size 1 to leave an answer unchanged on average."""
    zeros: dict[str, Any] = dict.fromkeys(PER_STATE, 0.0)
    plain = {**zeros, "gamma": None, "lam": None, **dict.fromkeys(STEP_SIZES, 1.0)}
    description = case.changed(**{**plain, **settings})
    start = description.online(states=mdp.n_states)
    change = np.zeros(mdp.n_states)
    for probability, transition in _outcomes(mdp):
        estimator, s = start.clone(), transition["state"]
        estimator.update(Transition(**transition))
        change[s] += probability * (getattr(estimator, answer)(s) - getattr(start, answer)(s))
    ratios = mdp.policy("target").probabilities / mdp.policy("behaviour").probabilities
    limit = 1e-11 * scale * max(1.0, float(ratios.max())) ** 2
    expect(np.abs(change).max() < limit, f"the {answer} would change by {change} on average")
