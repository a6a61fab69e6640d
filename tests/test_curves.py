"""Exact learning curves: the recursion of all moments against paths, simulations and algebra.

The oracle walks every path of a tiny MDP, with three quadrature points for each normal reward
(exact up to degree 5), feeds each path to the plain learners of ``tests/reference.py`` and
averages. It shares no code with the recursion.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.testing import assert_allclose

import retvar as rv
from retvar.cli import main
from tests import oracle
from tests.reference import Reference
from tests.streams import METHODS

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
    """Tables have a row for each run; other random starts have no curve."""
    rng = np.random.default_rng(len(method))
    mdp, n = tiny(rng), 2
    settings = {"alpha": 0.4, "alpha_bar": 0.3}
    rows = rng.normal(size=(3, n))
    starts = {
        "table": (rv.PerRun(rows), [(1 / 3, row) for row in rows]),
        "fixed": (rows[0], [(1.0, rows[0])]),
    }
    for value, points in starts.values():
        for learn in (True, False):
            learner = METHODS[method](value=value, learn_value=learn, **settings)
            data = rv.expected_curve(mdp, learner, steps=2, record=[2])
            begin = [
                (w, Reference(method, n, J=J, learn_value=learn, **settings)) for w, J in points
            ]
            agree(data, walked(mdp, "pi", "pi", begin, np.eye(n), 2))
    with pytest.raises(rv.InputError) as caught:
        rv.expected_curve(
            mdp, METHODS[method](value=rv.Noisy(0.0, uniform=0.6), **settings), steps=2
        )
    assert caught.value.field == "learners[0].value"


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
        settings["value"] = rv.PerRun(rng.uniform(-0.3, 1.3, size=(2_000, weights)))
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


def test_states_left_for_ever_have_no_resting_error():
    edges = [("first", 0, "loop", 1.0, 5.0, 1.0), ("loop", 0, "loop", 1.0, 1.0, 1.0)]
    mdp = rv.MDP.from_edges(edges, gamma=0.5)
    rest = rv.resting_error(mdp, rv.VTD(alpha=0.1))
    assert np.isnan(rest.variance_mse.sel(state="first").item())
    assert_allclose(rest.value.sel(state="loop").item(), 2.0)


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
    with pytest.raises(rv.InputError) as caught:
        rv.best_steps(mdp, rv.Direct, steps=3, between=(1.5, 2.5), points=3)
    assert caught.value.field == "learner"


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


def unstable():
    """On-policy and off: rare actions with large ratios, and steps of 1.9."""
    mdp = rv.domains.random_mdp(3, 2, 2, 0, gamma=0.9, lam=1.0)
    return mdp, rv.Direct(alpha=1.9, alpha_bar=0.3)


def test_an_unstable_mean_square_is_refused_at_rest():
    mdp, learner = unstable()
    with pytest.raises(rv.InputError, match=r"unstable \(radius") as caught:
        rv.resting_error(mdp, learner)
    assert caught.value.field == "learner"


def test_an_unstable_curve_is_finite_and_warns(caplog):
    mdp, learner = unstable()
    data = rv.expected_curve(mdp, learner, steps=2_000, record=[10, 2_000])
    assert np.isfinite(data.variance_mse.values[0, 0]).all()
    assert "too large for a number from moment 2,000 on" in caplog.text
    assert np.isnan(data.variance_mse.values[0, 1]).all()


# ---------------------------------------------------------------------- command line and figures


def test_the_command_prints_the_errors_and_draws_them(tmp_path):
    line = "curve chain --method direct --method vtd --alpha 0.1 --alpha-bar 0.05 --steps 100"
    result = CliRunner().invoke(main, [*line.split(), "--plot", str(tmp_path / "curves.svg")])
    assert result.exit_code == 0, result.output
    last = result.stdout.splitlines()[-1].split()
    assert_allclose([float(x) for x in last[2::2]], [1.6967, 22.881], atol=1e-3)
    assert (tmp_path / "curves.svg").stat().st_size > 1_000
