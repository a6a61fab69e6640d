"""Exact learning curves: the recursion of all moments against paths, simulations and algebra.

The oracle walks every path of a tiny MDP, with three quadrature points for each normal reward
(exact up to degree 5), feeds each path to the plain learners of ``tests/reference.py`` and
averages. It shares no code with the recursion.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest
from numpy.testing import assert_allclose

import retvar as rv
from tests import oracle
from tests.reference import Reference

METHODS = {"direct": rv.Direct, "vtd": rv.VTD, "centred": rv.Centred}
NOISE = [(-np.sqrt(3.0), 1 / 6), (0.0, 2 / 3), (np.sqrt(3.0), 1 / 6)]


def tiny(rng, states=2, ends=True):
    """A small MDP with self-loops, parallel edges, ends, γ and λ per state, two policies."""
    edges = []
    for s in range(states):
        nexts = ([s, 1 - s, "end"], [1 - s, 1 - s, s])
        for a in range(2):
            options = nexts[(a + s) % 2][: 2 if a else 3]
            p = rng.dirichlet(np.ones(len(options)))
            for i, s_next in enumerate(options):
                if s_next == "end" and not ends:
                    s_next = s
                std = rng.choice([0.0, 0.7]) if i else 0.5
                edges.append((s, a, s_next, p[i], rng.normal(), std))
    return rv.MDP.from_edges(
        edges,
        gamma=rng.uniform(0, 1, states),
        lam=rng.uniform(0, 1, states),
        policies={k: rng.dirichlet(np.ones(2), states) for k in ("pi", "mu")},
        start=rng.dirichlet(np.ones(states)),
    )


def outcomes(mdp, target, behaviour):
    """(s, s′ or END, probability, ρ, r, γ′, λ′) of every edge and quadrature point."""
    pi, mu = (mdp.policy(p).probabilities for p in (target, behaviour))
    found = [[] for _ in range(mdp.n_states)]
    for s, a, s_next, p, r, sd, g in zip(*mdp.edges, strict=True):
        lam = 0.0 if s_next == rv.END else mdp.lam[s_next]
        for z, share in NOISE if sd else [(0.0, 1.0)]:
            found[s].append((s_next, mu[s, a] * p * share, pi[s, a] / mu[s, a], r + sd * z, g, lam))
    return found


def walked(mdp, target, behaviour, begin, X, steps):
    """Σ over all paths of probability × estimates and × their squares, after `steps` steps."""
    moves = outcomes(mdp, target, behaviour)
    total = {}

    def walk(s, probability, learner, left):
        if left == 0:
            found = {"value": X @ learner.J, "variance": X @ learner.V}
            if learner.method == "vtd":
                found["second_moment"] = X @ learner.V
                found["variance"] = X @ learner.V - (X @ learner.J) ** 2
            if learner.method == "centred":
                found["mean"] = X @ learner.g
            for name, x in found.items():
                sums = total.setdefault(name, [0.0, 0.0])
                sums[0], sums[1] = sums[0] + probability * x, sums[1] + probability * x**2
            return
        for s_next, p, rho, r, g, lam in moves[s]:
            ended = s_next == rv.END
            after = copy.copy(learner)
            after.update(X[s], r, X[0 if ended else s_next], g, lam, rho, terminated=ended)
            if not ended:
                walk(s_next, probability * p, after, left - 1)
                continue
            for begun in np.flatnonzero(mdp.start):
                walk(begun, probability * p * mdp.start[begun], copy.copy(after), left - 1)

    for weight, learner in begin:
        for s in np.flatnonzero(mdp.start):
            walk(s, weight * mdp.start[s], copy.copy(learner), steps)
    return total


def agree(data, total):
    """Mean and standard deviation at the last moment, relative to the root of the mean square."""
    for name, (mean, square) in total.items():
        scale = np.sqrt(square.max())
        assert_allclose(data[name].values[0, -1], mean, rtol=0, atol=1e-12 * scale)
        std = data[f"{name}_std"].values[0, -1]
        assert_allclose(std**2, square - mean**2, rtol=0, atol=1e-12 * scale**2)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("estimand", ["target_return", "off_policy_return"])
@pytest.mark.parametrize("method", METHODS)
def test_curves_are_the_averages_over_all_paths(method, estimand, seed):
    rng = np.random.default_rng([seed, len(method), len(estimand)])
    mdp, n, steps = tiny(rng), 2, 3
    settings = {"alpha": rng.uniform(0, 1), "alpha_bar": rng.uniform(0, 1), "estimand": estimand}
    J, V = rng.normal(size=n), rng.uniform(size=n)
    extra = {"alpha_mean": rng.uniform(0, 1)} if method == "centred" and seed else {}
    learner = METHODS[method](value=J, initial_variance=V, **settings, **extra)
    data = rv.expected_curve(
        mdp, learner, steps=steps, record=[0, steps], target="pi", behaviour="mu"
    )
    plain = Reference(method, n, J=J, V=V, **settings, **extra)
    agree(data, walked(mdp, "pi", "mu", [(1.0, plain)], np.eye(n), steps))
    assert_allclose(data.value[0, 0], J, atol=1e-15)
    assert_allclose(data.variance[0, 0], V, atol=1e-15)
    assert float(data.variance_std[0, 0].max()) == 0


@pytest.mark.parametrize("kind", ["fewer", "overlapping", "dependent"])
@pytest.mark.parametrize("method", METHODS)
def test_linear_features_are_weights_that_states_share(method, kind):
    rng = np.random.default_rng([len(method), len(kind)])
    mdp, n, steps = tiny(rng), 2, 3
    X = {
        "fewer": np.array([[1.0], [0.5]]),
        "overlapping": np.array([[1.0, 0.5], [0.3, 1.0]]),
        "dependent": np.array([[1.0, 1.0, 0.0], [1.0, 0.0, 1.0]]),
    }[kind]
    k = X.shape[1]
    J, V = rng.normal(size=k), rng.uniform(size=k)
    settings = {"alpha": 0.4, "alpha_bar": 0.3}
    learner = METHODS[method](value=J, initial_variance=V, **settings)
    data = rv.expected_curve(
        mdp, learner, steps=steps, features=X, target="pi", behaviour="mu", record=[steps]
    )
    plain = Reference(method, k, J=J, **settings)
    plain.V = V  # the weights of the node, also of VTD's
    agree(data, walked(mdp, "pi", "mu", [(1.0, plain)], X, steps))


@pytest.mark.parametrize("method", METHODS)
def test_values_may_be_fixed_and_starts_may_be_random(method):
    """Tables with a row for each run are points; normal and uniform errors have 3 and 3 points."""
    rng = np.random.default_rng(len(method))
    mdp, n, steps = tiny(rng), 2, 2
    settings = {"alpha": 0.4, "alpha_bar": 0.3}
    rows = rng.normal(size=(3, n))
    gauss = [(x, w) for x, w in NOISE]
    uniform = [(-np.sqrt(0.6), 5 / 18), (0.0, 4 / 9), (np.sqrt(0.6), 5 / 18)]
    noisy = [
        (a * b * c * d, rows[0] + [0.3 * x + 0.5 * y, 0.3 * z + 0.5 * u])
        for x, a in uniform for y, b in gauss for z, c in uniform for u, d in gauss
    ]  # fmt: skip
    starts = {
        "table": (rv.PerRun(rows), [(1 / 3, row) for row in rows]),
        "noisy": (rv.Noisy(rows[0], uniform=0.3, normal=0.5), noisy),
        "fixed": (rows[0], [(1.0, rows[0])]),
    }
    for value, points in starts.values():
        for learn in (True, False):
            learner = METHODS[method](value=value, learn_value=learn, **settings)
            data = rv.expected_curve(mdp, learner, steps=steps, record=[steps])
            begin = [
                (w, Reference(method, n, J=J, learn_value=learn, **settings)) for w, J in points
            ]
            agree(data, walked(mdp, "pi", "pi", begin, np.eye(n), steps))
