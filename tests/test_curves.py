"""Exact learning curves: the recursion of all moments against paths, simulations and algebra.

The oracle walks every path of a tiny MDP, with three quadrature points for each normal reward
(exact up to degree 5), feeds each path to the plain learners of ``tests/reference.py`` and
averages. It shares no code with the recursion.
"""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.testing import assert_allclose

import retvar as rv
from retvar.cli import main
from retvar.curves.problems import problems_of
from retvar.curves.step_polynomials import StepPolynomial
from retvar.curves.triangular import Triangle
from retvar.simulation.run import features_of_nodes
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
    mdp, steps = tiny(rng), 3
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
    """Tables with a row for each run are points; normal and uniform numbers have 3 points each."""
    rng = np.random.default_rng(len(method))
    mdp, n = tiny(rng), 2
    settings = {"alpha": 0.4, "alpha_bar": 0.3}
    rows, root = rng.normal(size=(3, n)), rng.normal(size=(n, n))
    gauss = NOISE
    uniform = [(-np.sqrt(0.6), 5 / 18), (0.0, 4 / 9), (np.sqrt(0.6), 5 / 18)]
    noisy = [
        (a * b * c * d, rows[0] + [0.3 * x + 0.5 * y, 0.3 * z + 0.5 * u])
        for x, a in uniform for y, b in gauss for z, c in uniform for u, d in gauss
    ]  # fmt: skip
    starts = {
        "table": (rv.PerRun(rows), [(1 / 3, row) for row in rows]),
        "noisy": (rv.Noisy(rows[0], uniform=0.3, normal=0.5), noisy),
        "normal": (
            rv.Normal(rows[0], root @ root.T),
            [(a * b, rows[0] + root @ [x, y]) for x, a in gauss for y, b in gauss],
        ),
        "fixed": (rows[0], [(1.0, rows[0])]),
    }
    for value, points in starts.values():
        steps = 1 if len(points) > 9 else 2
        for learn in (True, False):
            learner = METHODS[method](value=value, learn_value=learn, **settings)
            data = rv.expected_curve(mdp, learner, steps=steps, record=[steps])
            begin = [
                (w, Reference(method, n, J=J, learn_value=learn, **settings)) for w, J in points
            ]
            agree(data, walked(mdp, "pi", "pi", begin, np.eye(n), steps))


def small(rng):
    """A random MDP, learner and what else a simulation needs."""
    n = int(rng.integers(2, 6))
    mdp = rv.domains.random_mdp(
        n, 2, min(n, int(rng.integers(1, 4))), int(rng.integers(2**31)), gamma=(0.0, 0.95),
        ends=float(rng.choice([0.0, 0.2])), parallel=bool(rng.integers(2)),
    )  # fmt: skip
    settings = {"alpha": rng.uniform(0.05, 0.5), "alpha_bar": rng.uniform(0.05, 0.5)}
    settings["estimand"] = str(rng.choice(["target_return", "off_policy_return"]))
    given = {"target": "target"}
    if rng.random() < 0.5:
        pair = [mdp.policy(name).probabilities for name in ("target", "behaviour")]
        given["behaviour"] = rv.Policy(np.mean(pair, axis=0))
    if rng.random() < 0.3:
        given["features"] = 0.7 * rng.normal(size=(n, 2))
    if rng.random() < 0.3:
        weights = 2 if "features" in given else n
        settings["value"] = rv.Noisy(np.full(weights, 0.5), uniform=0.3, normal=0.5)
    if rng.random() < 0.2:
        settings["learn_value"] = False
    return mdp, list(METHODS.values())[rng.integers(3)](**settings), given


def test_simulations_scatter_around_the_curves():
    """z-scores of means over 2,000 runs, with the exact standard deviation.

    On 300 such MDPs (6,000 numbers) the largest was 3.4, as for normal numbers: no heavier tails
    than those. A limit of 7 has false alarms below 1e-7 in 200 MDPs; a bias of 0.3 standard
    deviations of one run is found almost surely.
    """
    seed, runs = oracle.fresh_seed(), 2_000
    for number in range(200 if oracle.SOAK else 4):
        rng = np.random.default_rng([seed, number])
        mdp, learner, given = small(rng)
        steps = int(rng.integers(5, 100))
        given |= {"steps": steps, "record": [steps // 2 + 1, steps], "truth": False}
        exact = rv.expected_curve(mdp, learner, **given)
        found = rv.simulate(mdp, learner, runs=runs, seed=seed, threads=1, **given)
        for name in ("value", "variance", "mean", "second_moment"):
            if name in found:
                std, off = exact[f"{name}_std"].values, (found[name] - exact[name]).values
                certain = std < 1e-9
                assert np.all(np.abs(off[certain]) < 1e-8), f"RETVAR_SEED={seed}, {number}: {name}"
                z = off[~certain] / std[~certain] * np.sqrt(runs)
                assert np.all(np.abs(z) < 7), f"RETVAR_SEED={seed}, case {number}: {name} {z}"


# ---------------------------------------------------------------------- known numbers

CHAIN = {
    "direct": [12.4641, 1.6967, 0.3733, 0.4465],
    "vtd": [14.8264, 22.8811, 4.7188, 2.7905],
}
WHEN = [20, 100, 400, 2_000]


@pytest.mark.parametrize("method", CHAIN)
def test_errors_on_the_chain(method):
    """Sums over states of the mean squared error of the variance, from zero, with λ = 0.9."""
    learner = METHODS[method](alpha=0.1, alpha_bar=0.05)
    data = rv.expected_curve(rv.domains.chain(lam=0.9), learner, steps=2_000, record=WHEN)
    assert_allclose(data.variance_mse.sum("state").values[0], CHAIN[method], atol=5e-5)


def test_errors_on_the_complex_mdp():
    learner = rv.Direct(alpha=0.05, alpha_bar=0.05)
    mdp = rv.domains.complex_mdp()
    data = rv.expected_curve(mdp, learner, steps=2_000, record=WHEN, target="mu")
    found = data.variance_mse.sum("state").values[0]
    assert_allclose(found, [1.1023, 0.7072, 0.1949, 0.0634], atol=5e-5)


@pytest.mark.parametrize("alpha", [0.02, 0.1, 0.7])
def test_on_the_chain_the_last_variance_rests_at_one_plus_or_minus_that_of_the_value(alpha):
    """δ² is 1 + Var J on average, and M − J² is 2 − (1 + Var J), with Var J = α/(2 − α)."""
    learners = [rv.Direct(alpha=alpha, alpha_bar=0.3), rv.VTD(alpha=alpha, alpha_bar=0.3)]
    chain = rv.domains.chain(lam=1.0)
    rest = rv.resting_error(chain, learners)
    off = alpha / (2 - alpha)
    assert_allclose(rest.variance.values[:, -1], [1 + off, 1 - off], rtol=0, atol=1e-12)
    assert rest.period == 4
    data = rv.expected_curve(chain, learners, steps=10_000, record=[10_000])
    assert_allclose(data.variance.values[:, -1, -1], [1 + off, 1 - off], rtol=0, atol=1e-12)


def test_centred_is_direct_where_the_mean_learns_as_the_value_does():
    """With α_mean = α and equal starts for every λ; with α_mean = ᾱ where also α = ᾱ."""
    mdp = rv.domains.random_mdp(3, 2, 2, 4, ends=0.2)
    off = {"target": "target", "behaviour": "behaviour", "steps": 50, "record": [50]}
    for alpha, alpha_bar, more in ((0.2, 0.1, {"alpha_mean": 0.2}), (0.3, 0.3, {})):
        steps = {"alpha": alpha, "alpha_bar": alpha_bar, "value": [0.5, -1.0, 2.0]}
        direct = rv.expected_curve(mdp, rv.Direct(**steps), **off)
        centred = rv.expected_curve(mdp, rv.Centred(**steps, **more), **off)
        for name in ("value", "variance", "variance_mse", "variance_std"):
            assert_allclose(centred[name], direct[name], rtol=1e-10)
        assert_allclose(centred["mean"], direct["value"], rtol=1e-12)


def test_discounts_of_a_learner_replace_those_of_the_mdp():
    mdp = rv.domains.random_mdp(3, 2, 2, 5, ends=0.2)
    own = {"gamma": [0.1, 0.5, 0.9], "lam": 0.3}
    for M in METHODS.values():
        one = rv.expected_curve(mdp, M(alpha=0.2, **own), steps=20)
        other = rv.expected_curve(mdp.replace(**own), M(alpha=0.2), steps=20)
        assert_allclose(one.variance_mse, other.variance_mse, rtol=1e-12)


def test_some_states_and_several_learners_are_parts_of_the_whole():
    mdp = rv.domains.complex_mdp()
    learners = rv.grid(rv.Direct, rv.Centred, alpha=0.1, learn_value=[True, False])
    all_states = rv.expected_curve(mdp, learners, steps=30, record=[0, 30])
    assert all_states.attrs["behaviour"] == "mu"
    assert all_states["mean"].isnull().sum() == 2 * 2 * 5  # direct has no mean node
    record = rv.Record(at=[30], states=["s3", "s1"])
    some = rv.expected_curve(mdp, learners[3], steps=30, record=record)
    assert_allclose(some.variance_mse[0, 0], all_states.variance_mse[3, 1, [3, 1]], rtol=1e-14)
    simulated = rv.simulate(mdp, learners, steps=30, runs=2, seed=0, record=[0, 30])
    assert set(simulated.coords) == set(all_states.coords)
    assert set(simulated.data_vars) - set(all_states) == {"diverged", "diverged_by"}
    for name in set(all_states.data_vars) & set(simulated.data_vars):
        assert all_states[name].dims == simulated[name].dims


# ---------------------------------------------------------------------- episodes


@pytest.mark.parametrize("method", METHODS)
def test_episodes_of_the_chain_are_four_steps(method):
    learner = METHODS[method](alpha=0.3, alpha_bar=0.1)
    chain = rv.domains.chain(lam=0.7)
    by_episode = rv.expected_curve(chain, learner, episodes=5)
    by_step = rv.expected_curve(chain, learner, steps=20, record=4)
    for name in by_step.data_vars:
        assert_allclose(by_episode[name].values, by_step[name].values, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_an_episode_of_random_length_is_the_sum_over_its_lengths(method):
    """Moments at its end: those of a chain that stays where it ends, after many steps."""
    rng = np.random.default_rng(len(method))
    edges = [(0, 0, 0, 0.3, 1.0, 0.5), (0, 0, 1, 0.5, -1.0, 0.2), (0, 0, 2, 0.2, 0.3, 0.0),
             (1, 0, 0, 0.4, 0.5, 0.0), (1, 0, 2, 0.6, 2.0, 1.0)]  # fmt: skip
    ended = [(s, a, "end" if s_next == 2 else s_next, *rest) for s, a, s_next, *rest in edges]
    J = np.append(rng.normal(size=2), 0.0)
    gamma = [0.9, 0.8, 0.0]
    learner = METHODS[method](alpha=0.4, alpha_bar=0.2, value=J)
    stays = rv.MDP.from_edges([*edges, (2, 0, 2, 1.0, 0.0, 0.0)], gamma=gamma, lam=0.6)
    long = rv.expected_curve(stays, learner, steps=400, record=[400])
    mdp = rv.MDP.from_edges(ended, gamma=gamma[:2], lam=0.6)
    short = rv.expected_curve(mdp, learner.replace(value=J[:2]), episodes=1, record=[1])
    for name in ("value", "variance", "value_std", "variance_std"):
        assert_allclose(short[name].values, long[name].values[..., :2], rtol=1e-10, atol=1e-12)


def test_states_that_are_never_reached_keep_their_values_and_do_no_harm():
    edges = [("a", 0, "b", 0.5, 1.0, 1.0), ("a", 0, "end", 0.5, 0.0, 0.0),
             ("b", 0, "end", 1.0, -1.0, 0.3), ("far", 0, "far", 1.0, 7.0, 1.0)]  # fmt: skip
    mdp = rv.MDP.from_edges(edges, gamma=0.9, lam=0.5)
    near = rv.MDP.from_edges(edges[:3], gamma=0.9, lam=0.5)
    for M in METHODS.values():
        learner = M(alpha=0.3, value=[0.0, 1.0, 2.0])
        alone = M(alpha=0.3, value=[0.0, 1.0])
        found = rv.expected_curve(mdp, learner, episodes=3)
        expected = rv.expected_curve(near, alone, episodes=3)
        assert_allclose(found.variance_mse[..., :2], expected.variance_mse, rtol=1e-12)
        assert_allclose(found.value[..., 2], 2.0)
        rest, expected = rv.resting_error(mdp, learner), rv.resting_error(near, alone)
        assert_allclose(rest.variance_mse[0, :2], expected.variance_mse[0], rtol=1e-12)


# ---------------------------------------------------------------------- at rest


@pytest.mark.parametrize("method", METHODS)
def test_curves_come_to_rest(method):
    for seed in range(3):
        mdp = rv.domains.random_mdp(3, 2, 2, seed, ends=0.2, gamma=0.8)
        learner = METHODS[method](alpha=0.4, alpha_bar=0.3)
        policies = {"target": "target", "behaviour": "behaviour"} if seed else {}
        rest = rv.resting_error(mdp, learner, **policies)
        data = rv.expected_curve(mdp, learner, steps=3_000, record=[2_999, 3_000], **policies)
        for name in ("value_mse", "variance", "variance_mse", "variance_std"):
            last = data[name].values[0].mean(axis=0)
            assert_allclose(rest[name].values[0], last, rtol=1e-9, atol=1e-12, err_msg=str(seed))


def test_the_radius_is_the_rate_at_which_the_start_is_forgotten():
    mdp = rv.domains.complex_mdp()
    learner = rv.Direct(alpha=0.2, alpha_bar=0.1)
    rest = rv.resting_error(mdp, learner)
    data = rv.expected_curve(mdp, learner, steps=1_200, record=[1_000, 1_200])
    off = np.abs(data.variance.values[0] - rest.variance.values).max(axis=1)
    assert_allclose((off[1] / off[0]) ** (1 / 200), rest.radius, rtol=1e-6)


@pytest.mark.parametrize("number", range(6))
def test_the_radius_is_the_largest_of_all_eigenvalues_but_those_of_the_chain(number):
    """The operator over all monomials that hold a weight, without the constant, as dense arrays."""
    rng = np.random.default_rng([3, number])
    mdp = rv.domains.random_mdp(3, 2, 2, int(rng.integers(2**31)), ends=0.2)
    learner = [rv.Direct, rv.VTD][number % 2](alpha=rng.uniform(0.1, 1.5), alpha_bar=0.4)
    tables = features_of_nodes(mdp, None, None, None)
    (problem,) = problems_of(mdp, [learner], tables, ("target", "behaviour"))
    recursion, _ = problem.recursion()
    weights = np.tile(recursion.monomials.degree > 0, recursion.states)
    dense = recursion.operator.toarray()[np.ix_(weights, weights)]
    expected = np.abs(np.linalg.eigvals(dense)).max()
    assert_allclose(Triangle(recursion, recursion.operator).radius, expected, rtol=1e-7)


def test_a_periodic_chain_rests_at_the_average_over_its_period():
    """A state of a table is updated once in a period, so its error has a limit; weights do not."""
    edges = [(0, 0, 1, 1.0, 1.0, 1.0), (1, 0, 0, 1.0, -1.0, 0.5)]
    mdp = rv.MDP.from_edges(edges, gamma=0.9, lam=0.8)
    for features in (None, [[1.0, 0.0], [0.5, 0.3]]):
        learners = [M(alpha=0.3, alpha_bar=0.2) for M in METHODS.values()]
        rest = rv.resting_error(mdp, learners, features=features)
        assert rest.period == 2
        when = {"steps": 5_001, "record": [5_000, 5_001]}
        data = rv.expected_curve(mdp, learners, features=features, **when)
        apart = np.abs(np.diff(data.variance_mse.values, axis=1)).max(axis=(1, 2))
        assert np.all(apart < 1e-12 if features is None else apart > 1e-3)
        assert_allclose(rest.variance_mse, data.variance_mse.mean("step"), rtol=1e-9)


def test_the_period_is_the_greatest_common_divisor_of_all_cycles():
    """Episodes of 4 or of 6 steps: what recurs does so after an even number of them."""
    edges = [(s, 0, s + 1, 1.0) for s in (0, 1, 2, 4)]
    edges += [(3, 0, 4, 0.5), (3, 0, "end", 0.5), (5, 0, "end", 1.0)]
    mdp = rv.MDP.from_edges(edges, gamma=0.9, lam=1.0)
    assert rv.resting_error(mdp, rv.Direct(alpha=0.1)).period == 2


def test_states_left_for_ever_have_no_resting_error():
    edges = [("first", 0, "loop", 1.0, 5.0, 1.0), ("loop", 0, "loop", 1.0, 1.0, 1.0)]
    mdp = rv.MDP.from_edges(edges, gamma=0.5)
    rest = rv.resting_error(mdp, rv.VTD(alpha=0.1))
    assert np.isnan(rest.variance_mse.sel(state="first").item())
    assert_allclose(rest.value.sel(state="loop").item(), 2.0)


def test_with_fixed_random_values_the_rest_is_an_average_over_them():
    mdp = rv.domains.random_mdp(3, 2, 2, 1, ends=0.2, gamma=0.8)
    rows = np.random.default_rng(0).normal(size=(4, 3))
    settings = {"alpha": 0.1, "alpha_bar": 0.2, "learn_value": False}
    each = [rv.resting_error(mdp, rv.VTD(value=row, **settings)) for row in rows]
    all_rows = rv.resting_error(mdp, rv.VTD(value=rv.PerRun(rows), **settings))
    for name in ("variance", "variance_mse", "value_mse"):
        mean = np.mean([one[name].values for one in each], axis=0)
        assert_allclose(all_rows[name].values, mean, rtol=1e-10)


@pytest.mark.parametrize(
    ("mean", "covariance"),
    [
        ([0.0, 0.0], [[1.0, 2.0], [2.0, 1.0]]),
        ([0.0, 0.0], [[1.0, 0.5], [0.0, 1.0]]),
        ([0.0, 0.0], [[1.0]]),
        ([0.0, 0.0], [[np.nan, 0.0], [0.0, 1.0]]),
        (0.0, [[1.0]]),
        ([0.0, 0.0], "x"),
    ],
)
def test_what_is_no_covariance_is_refused(mean, covariance):
    with pytest.raises(rv.InputError) as caught:
        rv.Normal(mean, covariance)
    assert caught.value.field == "covariance"


def test_correlated_starts_are_drawn_in_simulations_and_saved_with_learners():
    from retvar.learners import from_dict

    covariance = np.array([[2.0, -1.0], [-1.0, 1.0]])
    start = rv.Normal([1.0, -1.0], covariance)
    learner = rv.Direct(alpha=0.0, value=start)
    assert from_dict(learner.to_dict()) == learner
    mdp = rv.domains.random_mdp(2, 1, 2, 0)
    found = rv.simulate(mdp, learner, steps=1, runs=4_000, seed=0, keep="runs", record=[0])
    values = found.value.values[:, 0, 0]
    assert_allclose(values.mean(axis=0), [1.0, -1.0], atol=0.15)  # seeded; 6 standard errors
    assert_allclose(np.cov(values.T), covariance, atol=0.3)


# ---------------------------------------------------------------------- best steps


def test_no_steps_nearby_are_better_than_the_best():
    mdp = rv.domains.random_mdp(2, 1, 2, 3, gamma=0.7)
    best = rv.best_steps(mdp, rv.Direct, steps=30, points=5)
    assert best.at_edge == ()
    nearby = [
        best.learner.replace(alpha=best.learner.alpha * a, alpha_bar=best.learner.alpha_bar * b)
        for a in (0.97, 1.0, 1.03)
        for b in (0.97, 1.0, 1.03)
    ]
    data = rv.expected_curve(mdp, nearby, steps=30, record=[30])
    errors = data.variance_mse.sum("state").values[:, 0]
    assert np.argmin(errors) == 4
    assert_allclose(best.error, errors[4], rtol=1e-12)
    assert best.error < float(best.errors.min())


def test_best_steps_that_are_unstable_are_refused():
    mdp, _ = unstable()
    with pytest.raises(rv.InputError, match=r"unstable \(radius .* largest stable steps are about"):
        rv.best_steps(mdp, rv.Direct, steps=3, between=(1.5, 2.5), points=3)


def test_centred_learners_have_three_steps():
    mdp = rv.domains.random_mdp(2, 1, 2, 3, gamma=0.7)
    best = rv.best_steps(mdp, rv.Centred, steps=20, points=3, average=True)
    assert best.errors.dims == ("alpha", "alpha_bar", "alpha_mean")
    direct = rv.best_steps(mdp, rv.Direct, steps=20, points=5, average=True)
    assert best.error <= 1.0001 * direct.error  # with α_mean = α it is direct


@pytest.mark.parametrize("method", METHODS)
def test_operators_are_polynomials_of_the_steps(method):
    """With loops, ends and features; the curve of other steps is that of an operator made anew."""
    mdp, learner = tiny(np.random.default_rng(4)), METHODS[method](alpha=0.1)
    for X in (None, np.array([[1.0, 0.5], [0.3, 1.0]])):
        nodes = features_of_nodes(mdp, X, None, None)
        (problem,) = problems_of(mdp, [learner], nodes, ("pi", "mu"))
        places = list(learner.network.places)
        polynomial = StepPolynomial(problem, places)
        assert polynomial.holds
        steps = np.zeros(3)
        steps[places] = [0.3, 0.004, 0.8][: len(places)]
        recursion, initial = problem.with_steps(steps).recursion()
        operator, x = recursion.operator, recursion.begin(initial)
        found, right = polynomial.operator(steps[places]).toarray(), operator.toarray()
        scale = np.abs(right).max()
        assert_allclose(found, right, rtol=0, atol=1e-12 * scale)
        after, total = polynomial.walked(steps[places], x, 2)
        close = {"rtol": 0, "atol": 1e-11 * scale**2 * np.abs(x).max()}
        assert_allclose(after, operator @ (operator @ x), **close)
        assert_allclose(total, operator @ x + operator @ (operator @ x), **close)


def test_steps_that_are_not_free_stay_as_they_are():
    mdp = tiny(np.random.default_rng(3), ends=False)
    given = {"steps": 20, "points": 5, "average": True}
    all_free = rv.best_steps(mdp, rv.Direct, **given)
    one = rv.best_steps(mdp, all_free.learner.replace(alpha_bar=0.9), free=["alpha_bar"], **given)
    assert one.learner.alpha == all_free.learner.alpha
    assert one.errors.dims == ("alpha_bar",)
    assert_allclose(one.error, all_free.error, rtol=1e-5)
    rough = rv.best_steps(mdp, rv.Direct, tolerance=0.3, **given)
    assert all_free.error <= rough.error <= 1.01 * all_free.error


def test_the_steps_of_a_learner_are_refined_too():
    """A grid of three points does not come near the best, a start there does."""
    mdp = tiny(np.random.default_rng(3), ends=False)
    best = rv.best_steps(mdp, rv.Direct, steps=20, points=5, average=True)
    again = rv.best_steps(mdp, best.learner, steps=20, points=3, average=True)
    assert again.error <= best.error * (1 + 1e-9)


def test_the_best_step_of_one_mean_is_known():
    """J ← J + α(R − J) from 0: the error m²(1−α)²ᵗ + σ²α²(1 − (1−α)²ᵗ)/(1 − (1−α)²)."""
    mdp = rv.MDP.from_edges([("s", 0, "end", 1.0, 2.0, 1.5)], gamma=1.0)
    t = 7
    steps = np.linspace(0.01, 0.99, 9_801)
    left = (1 - steps) ** (2 * t)
    errors = 4 * left + 1.5**2 * steps**2 * (1 - left) / (1 - (1 - steps) ** 2)
    best = rv.best_steps(mdp, rv.VTD, steps=t, minimise="value")
    assert best.errors.dims == ("alpha",)
    assert_allclose(best.learner.alpha, steps[np.argmin(errors)], rtol=2e-3)
    assert_allclose(best.error, errors.min(), rtol=1e-6)


def test_best_steps_at_either_end_of_the_range_are_named():
    """After many steps the least one is best, after one step the largest."""
    mdp = rv.MDP.from_edges([("s", 0, "end", 1.0, 2.0, 1.5)], gamma=1.0)
    for steps, step in ((2_000, 0.3), (1, 0.5)):
        best = rv.best_steps(
            mdp, rv.VTD, steps=steps, minimise="value", between=(0.3, 0.5), points=5
        )
        assert best.at_edge == ("alpha",)
        assert_allclose(best.learner.alpha, step, rtol=2e-3)


def test_the_least_of_several_minima_is_found():
    """One step of VTD from 0, R ~ N(1, 1): ᾱR² has the error 1 − E[R²]²/E[R⁴] = 1 − 4/10.

    With α = ᾱ = 1 the variance is R² − R² = 0, and its error 1 is a minimum of the grid, too.
    """
    mdp = rv.MDP.from_edges([("s", 0, "end", 1.0, 1.0, 1.0)], gamma=1.0)
    best = rv.best_steps(mdp, rv.VTD, steps=1, points=9)
    assert_allclose(best.errors.values[-1, -1], 1.0)
    assert (best.errors.values[-1, :-1] > 1).all()
    assert_allclose(best.error, 0.6, rtol=1e-5)


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"alpha": 0.1, "kappa": 0.5}, "kappa"),
        ({"alpha": 0.1, "kappa_bar": 0.5}, "kappa_bar"),
        ({"alpha": rv.Decay()}, "alpha"),
        ({"alpha": 0.1, "alpha_bar": rv.Averaged()}, "alpha_bar"),
        ({"alpha": rv.Adadelta()}, "alpha"),
        ({"alpha": rv.AlphaBound()}, "alpha"),
        ({"alpha": 0.1, "alpha_mean": rv.Decay()}, "alpha_mean"),
        ({"alpha": 0.1, "kappa_mean": 0.5}, "kappa_mean"),
    ],
)
def test_what_has_no_closed_recursion_is_refused_by_name(settings, field):
    for ask in (lambda m, d: rv.expected_curve(m, d, steps=10), rv.resting_error):
        with pytest.raises(rv.InputError, match="use simulate") as caught:
            ask(rv.domains.chain(), rv.Centred(**settings))
        assert caught.value.field == f"learners[0].{field}"


def test_too_many_unknowns_are_refused_with_their_number():
    mdp = rv.domains.random_mdp(40, 1, 2, 0)
    with pytest.raises(rv.InputError, match="4,000,000") as caught:
        rv.expected_curve(mdp, rv.Direct(alpha=0.1), steps=10)
    assert "6,840,440" in caught.value.value
    mdp = rv.domains.random_mdp(11, 1, 2, 0, ends=0.3)
    with pytest.raises(rv.InputError, match="give steps"):
        rv.expected_curve(mdp, rv.Direct(alpha=0.1), episodes=10)


def unstable():
    """On-policy and off: rare actions with large ratios, and steps of 1.9."""
    mdp = rv.domains.random_mdp(3, 2, 2, 0, gamma=0.9, lam=1.0)
    return mdp, rv.Direct(alpha=1.9, alpha_bar=0.3)


def test_an_unstable_mean_square_is_refused_at_rest_with_the_largest_stable_steps():
    mdp, learner = unstable()
    with pytest.raises(rv.InputError, match=r"unstable \(radius") as caught:
        rv.resting_error(mdp, learner)
    words = caught.value.remedy.split("about alpha=")[1]
    alpha, alpha_bar = (float(x.split("=")[-1].rstrip(";,")) for x in words.split()[:2])
    assert_allclose(alpha / alpha_bar, 1.9 / 0.3, rtol=0.01)
    assert float(rv.resting_error(mdp, rv.Direct(alpha=0.98 * alpha, alpha_bar=0.3)).radius[0]) < 1
    with pytest.raises(rv.InputError, match="unstable"):
        rv.resting_error(mdp, rv.Direct(alpha=1.02 * alpha, alpha_bar=0.3))


def test_an_unstable_curve_is_finite_and_warns(caplog):
    mdp, learner = unstable()
    data = rv.expected_curve(mdp, learner, steps=2_000, record=[10, 2_000])
    assert "is unstable" in caplog.text
    assert np.isfinite(data.variance_mse.values[0, 0]).all()
    assert "too large for a number from moment 2,000 on" in caplog.text
    assert np.isnan(data.variance_mse.values[0, 1]).all()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"steps": 0}, "steps"),
        ({"steps": None}, "steps, episodes"),
        ({"steps": None, "episodes": 3}, "episodes"),
        ({"record": rv.Record(window=3)}, "record.window"),
        ({"record": rv.Record(rmse=True)}, "record.rmse"),
        ({"record": [11]}, "record.at"),
        ({"features": np.ones((2, 2))}, "features"),
        ({"learners": []}, "learners"),
        ({"target": "nobody"}, "target"),
    ],
)
def test_bad_arguments_are_named(change, field):
    given = {"learners": rv.Direct(alpha=0.1), "steps": 10, **change}
    with pytest.raises(rv.InputError) as caught:
        rv.expected_curve(rv.domains.complex_mdp(), **given)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"steps": 0}, "steps"),
        ({"method": "direct"}, "method"),
        ({"minimise": "mean"}, "minimise"),
        ({"between": (0.5, 0.1)}, "between"),
        ({"between": 0.1}, "between"),
        ({"points": 2}, "points"),
        ({"tolerance": 0.0}, "tolerance"),
        ({"free": ["alpha_mean"]}, "free"),
        ({"free": []}, "free"),
        ({"free": 5}, "free"),
        ({"free": [["alpha"]]}, "free"),
        ({"weights": -1.0}, "weights[s0]"),
        ({"method": rv.VTD(alpha=0.1, learn_value=False), "minimise": "value"}, "minimise"),
    ],
)
def test_bad_arguments_of_best_steps_are_named(change, field):
    given = {"method": rv.Direct, "steps": 10, **change}
    with pytest.raises(rv.InputError) as caught:
        rv.best_steps(rv.domains.chain(), **given)
    assert caught.value.field == field


# ---------------------------------------------------------------------- command line and figures


def run(*arguments):
    return CliRunner().invoke(main, ["curve", *arguments])


STEPS = ("--alpha", "0.1", "--alpha-bar", "0.05")


def test_the_command_prints_the_errors_and_draws_them(tmp_path):
    file = tmp_path / "curves.svg"
    both = ("--method", "direct", "--method", "vtd")
    result = run("chain", *both, *STEPS, "--steps", "100", "--plot", str(file))
    assert result.exit_code == 0, result.output
    last = result.stdout.splitlines()[-1].split()
    assert last[0] == "100"
    assert_allclose([float(x) for x in last[2::2]], [1.6967, 22.881], atol=1e-3)
    assert file.read_text(encoding="utf-8").startswith("<?xml")


def test_json_has_all_numbers():
    result = run("chain", *STEPS, "--episodes", "5", "--json", "--lam", "0.9")
    found = json.loads(result.stdout)
    assert found["episode"] == [1, 2, 3, 4, 5]
    assert_allclose(np.sum(found["variance_mse"][0][-1]), 12.4641, atol=5e-5)  # 20 steps


def test_the_command_gives_rest_and_best():
    result = run("chain", *STEPS, "--rest", "--lam", "1")
    assert "mean-square radius 0.98" in result.stdout
    assert "period of 4 steps" in result.stdout
    best = run("chain", "--option", "length=1", "--best", "--steps", "5", "--json")
    expected = rv.best_steps(rv.domains.chain(length=1), rv.Direct, steps=5)
    assert_allclose(json.loads(best.stdout)["direct"]["error"], expected.error)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--steps", "5"), "--alpha = missing"),
        (STEPS, "steps, episodes = neither"),
        ((*STEPS, "--rest", "--steps", "5"), "rest"),
        ((*STEPS, "--rest", "--best"), "best"),
        ((*STEPS, "--best", "--steps", "5"), "alpha = 0.1"),
        (("--best",), "--steps = missing"),
        (("--best", "--steps", "5", "--episodes", "5"), "episodes = 5"),
        ((*STEPS, "--rest", "--plot", "x.png"), "plot"),
    ],
)
def test_options_that_do_not_go_together_are_named(arguments, word):
    result = run("chain", *arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ")
    assert word in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_bands_are_standard_deviations_and_the_legend_says_exact():
    data = rv.expected_curve(rv.domains.chain(), {"direct": rv.Direct(alpha=0.1)}, steps=20)
    figure = rv.plots.learning_curves(data)
    assert "exact mean ± standard deviation" in figure.legends[0].get_texts()[0].get_text()
    band = figure.axes[1].collections[0].get_paths()[0].vertices[:, 1]
    top = (data.variance + data.variance_std).values[0, :, 0]
    assert_allclose(sorted(set(band.round(9)))[-1], top.max(), rtol=1e-6)


def test_contours_need_two_steps():
    one = rv.best_steps(rv.domains.chain(length=1), rv.VTD, steps=3, minimise="value", points=3)
    with pytest.raises(rv.InputError, match="depend on both"):
        rv.plots.step_contours(one)


@pytest.mark.parametrize("method", ["direct", "vtd", "centred"])
def test_steps_whose_powers_overflow_are_called_unstable(method):
    given = ["curve", "chain", "--alpha", "1e308", "--method", method]
    result = CliRunner().invoke(main, [*given, "--steps", "2"])
    assert result.exit_code == 0, result.output
    assert "is unstable: its mean square grows by a factor of inf" in result.output
    result = CliRunner().invoke(main, [*given, "--rest"])
    assert result.exit_code == 2
    assert "the mean square is unstable (radius inf)" in result.output
