"""Learners of the third and fourth moment: against the reference, by identities, to the exact."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.testing import assert_allclose, assert_array_equal

import retvar as rv
from retvar.cli import main
from retvar.mdp import weigh_edges
from retvar.online.higher_moments import IMPOSSIBLE, NO_SPREAD
from tests import oracle, streams
from tests.reference import Reference
from tests.streams import METHODS, feed, same, stream
from tests.test_fixed_points import drawn_mdp
from tests.test_online import teach
from tests.test_solve import QUESTIONS

LEARNERS = {"direct": rv.Direct, "centred": rv.Centred}
MODES = ["target_return", "off_policy_return"]
NODES = ("value", "mean", "variance", "third_moment", "fourth_moment")


def pair(rng, method, estimand, size=4):
    """The same learner of order 4 twice: the package's, and the reference."""
    settings = {
        "alpha": rng.uniform(0, 0.3), "alpha_bar": rng.uniform(0, 0.3),
        "kappa": rng.random(), "kappa_bar": rng.random(), "order": 4,
        "estimand": estimand, "learn_value": bool(rng.random() < 0.8),
    }  # fmt: skip
    if method == "centred":
        settings |= {"alpha_mean": rng.uniform(0, 0.3), "kappa_mean": rng.random()}
    J, V = rng.normal(size=size), rng.random(size)
    ours = LEARNERS[method](**settings, value=J, initial_variance=V)
    return ours, Reference(method, size, **settings, J=J, V=V)


def assert_equal_moments(estimator, asked, theirs, X):
    """Compare what is found for states with the reference for their features X."""
    for name, weights in (("value", theirs.J), ("variance", theirs.V),
                          ("third_moment", theirs.M3), ("fourth_moment", theirs.M4)):  # fmt: skip
        scale = max(1.0, np.abs(weights).max(), np.abs(theirs.V).max() ** 2)
        found = estimator.predict(asked, name)
        assert_allclose(found, X @ weights, rtol=1e-9, atol=1e-10 * scale, err_msg=name)


def proper_mdp(rng, question):
    """A random MDP whose returns have an expectation."""
    while True:
        try:
            weigh_edges(mdp := drawn_mdp(rng), *question)
            return mdp
        except rv.InputError:
            continue


# ---------------------------------------------------------------------- against the reference


@pytest.mark.parametrize("estimand", MODES)
@pytest.mark.parametrize("method", LEARNERS)
def test_moments_learned_one_by_one_equal_the_reference(method, estimand):
    """Random streams with ends, cuts, ratios, γ and λ of each transition, and traces."""
    rng = np.random.default_rng(oracle.fresh_seed())
    for _ in range(20):
        ours, theirs = pair(rng, method, estimand)
        columns = stream(rng, 60)
        feed(estimator := ours.online(states=4), columns)
        teach(theirs, columns, np.eye(4))
        assert_equal_moments(estimator, range(4), theirs, np.eye(4))


@pytest.mark.parametrize("estimand", MODES)
@pytest.mark.parametrize("method", LEARNERS)
def test_moments_learned_with_features_equal_the_reference(method, estimand):
    """As a table, whose traces are eager, and as vectors, whose traces are lazy."""
    rng = np.random.default_rng(oracle.fresh_seed())
    for _ in range(10):
        X = rng.normal(size=(4, 3)) * (rng.random((4, 3)) < 0.7)
        ours, theirs = pair(rng, method, estimand, size=3)
        columns = stream(rng, 30)
        table, vectors = ours.online(features=X), ours.online(features=3)
        feed(table, columns)
        given = {name: X[columns[name]] for name in ("state", "next_state")}
        vectors.update_many({**columns, **given})
        teach(theirs, columns, X)
        assert_equal_moments(table, range(4), theirs, X)
        assert_equal_moments(vectors, X, theirs, X)


def test_the_stream_of_a_simulation_teaches_the_moments_of_the_reference():
    mdp = rv.domains.complex_mdp()
    columns = rv.replay(mdp, seed=3, steps=5_000, target="pi", behaviour="mu")
    for method, kind in LEARNERS.items():
        settings = {"alpha": 0.02, "alpha_bar": 0.01, "kappa": 0.5, "kappa_bar": 0.3, "order": 4}
        estimator = kind(**settings).online(states=5)
        estimator.update_many(columns)
        theirs = Reference(method, 5, **settings)
        for row in streams.rows(columns):
            x, x_next = np.eye(5)[row["state"]], np.eye(5)[row["next_state"]]
            theirs.update(x, row["reward"], x_next, row["gamma"], row["lam"], row["rho"])
        assert_equal_moments(estimator, range(5), theirs, np.eye(5))


# ---------------------------------------------------------------------- identities


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("method", LEARNERS)
def test_the_mean_update_of_a_learner_is_its_expected_update(method, question):
    """From any estimates, over all transitions of random MDPs and five points of normal rewards."""
    rng = np.random.default_rng(oracle.fresh_seed())
    points, weights = np.polynomial.hermite_e.hermegauss(5)
    target, behaviour, estimand = question
    for _ in range(3):
        mdp = proper_mdp(rng, question)
        n = mdp.n_states
        start = rv.Estimates(*rng.normal(size=(5, n)))
        learner = LEARNERS[method](alpha=1.0, estimand=estimand, order=4).online(states=n)
        for place in range(5):
            learner.memory.w[learner.memory.part(place), 0] = getattr(start, NODES[place])
        wanted = rv.expected_updates(
            method, mdp, start, target=target, behaviour=behaviour, estimand=estimand, order=4
        )
        change = {name: np.zeros(n) for name in NODES}
        for s, t, p, rho, _, _, r, sd, gamma, lam in oracle.transitions(mdp, *question):
            for x, w in zip(points, weights / weights.sum(), strict=True):
                twin = learner.clone()
                twin.update(int(s), r + sd * x, int(t), rho=rho, gamma=gamma, lam=lam)
                for name in NODES:
                    moved = getattr(twin, name)(int(s)) - getattr(learner, name)(int(s))
                    change[name][int(s)] += p * w * moved
        for name in NODES[2:]:
            expected = getattr(wanted, name) - getattr(start, name)
            scale = max(1.0, np.abs(expected).max())
            assert_allclose(change[name], expected, atol=1e-10 * scale, err_msg=name)


@pytest.mark.parametrize("method", LEARNERS)
def test_higher_orders_do_not_change_lower_moments(method):
    """To the bit, with every step-size rule, on tables and vectors, with replicates."""
    rng = np.random.default_rng(oracle.fresh_seed())
    for k in range(12):
        description = streams.learner(rng, method).replace(kappa=0.5, kappa_bar=0.3)
        adapts = any(isinstance(description.nodes()[p].step, rv.Adadelta) for p in range(3))
        given = [{"states": 4}, {"features": rng.normal(size=(4, 4))}, {"features": 4}][k % 3]
        given |= {"bootstrap_samples": 0 if adapts else 10}
        columns = stream(rng, 80, streams=2)
        if k % 3 == 2:
            X = rng.normal(size=(4, 4))
            columns |= {name: X[columns[name]] for name in ("state", "next_state")}
        found = [description.replace(order=order).online(**given) for order in (2, 3, 4)]
        for each in found:
            each.update_many(columns)
        for name, weights in found[0].weights.items():
            for each in found[1:]:
                assert_array_equal(weights, each.weights[name])
        assert_array_equal(found[1].weights["third_moment"], found[2].weights["third_moment"])


@pytest.mark.parametrize("method", LEARNERS)
def test_chunks_clones_and_growth_keep_every_bit_of_the_moments(method):
    rng = np.random.default_rng(oracle.fresh_seed())
    for _ in range(10):
        description = streams.learner(rng, method).replace(
            kappa=0.5, kappa_bar=0.9, value=0.0, initial_variance=0.0, order=4
        )
        columns = stream(rng, 60, states=3, streams=2)
        one, many, grown = (description.online(states=n) for n in (4, 4, 3))
        feed(one, columns)
        many.update_many(columns)
        grown.update_many(columns)
        grown.grow(4)
        assert same(one, many)
        assert same(one, grown)
        assert same(one, one.clone())


def test_separate_features_of_value_and_variance_serve_the_moments():
    """The moments have the features of the variance, from tables and from vectors."""
    rng = np.random.default_rng(oracle.fresh_seed())
    X, Y = rng.normal(size=(4, 2)), rng.normal(size=(4, 3))
    columns = stream(rng, 40)
    learner = rv.Centred(alpha=0.1, kappa=0.4, kappa_bar=0.2, order=4)
    table = learner.online(features=Y, value_features=X)
    table.update_many(columns)
    vectors = learner.online(features=3, value_features=2)
    both = {name: {"value": X[columns[name]], "variance": Y[columns[name]]}
            for name in ("state", "next_state")}  # fmt: skip
    vectors.update_many({**columns, **both})
    assert table.weights["fourth_moment"].shape == (3,)
    for name, weights in table.weights.items():
        assert_allclose(vectors.weights[name], weights, rtol=1e-10, atol=1e-12, err_msg=name)
    asked = {"value": X, "variance": Y}
    assert_allclose(vectors.predict(asked, "kurtosis"), table.kurtosis(), rtol=1e-8)


# ---------------------------------------------------------------------- towards the exact


def test_a_coin_has_the_moments_that_are_learned():
    """Rewards 0 and 8 with probabilities 3/4 and 1/4: V = 12, M₃ = 48, M₄ = 336."""
    risk = rv.Direct(alpha=0.0, alpha_bar=rv.Decay(), value=2.0, order=4).online(states=1)
    for reward in (0.0, 0.0, 0.0, 8.0) * 5:
        risk.update(0, reward, None, terminated=True)
    assert_allclose([risk.variance(0), risk.third_moment(0), risk.fourth_moment(0)], [12, 48, 336])
    assert_allclose([risk.skewness(0), risk.kurtosis(0)], [48 / 12**1.5, 336 / 144 - 3])
    assert risk.note(0) == IMPOSSIBLE or risk.kurtosis(0) >= risk.skewness(0) ** 2 - 2 - 1e-9


@pytest.mark.parametrize("method", LEARNERS)
def test_skewness_and_kurtosis_of_the_complex_mdp_are_learned(method):
    """From a million steps.

    Over 8 seeds the errors have standard deviations of up to 0.008 for the skewness and 0.035 for
    the kurtosis, and means of up to 0.007 and 0.016: six of the former beyond the latter are below
    0.06 and 0.25, which a normal error exceeds once in 10⁸ times.
    """
    mdp = rv.domains.complex_mdp()
    truth = rv.solve(mdp, "mu", order=4)
    learner = LEARNERS[method](alpha=rv.Averaged(), order=4).online(states=5)
    learner.update_many(rv.replay(mdp, seed=oracle.fresh_seed(), steps=1_000_000, target="mu"))
    assert_allclose(learner.skewness(), truth.skewness, atol=0.06)
    assert_allclose(learner.kurtosis(), truth.kurtosis, atol=0.25)
    assert not any(learner.note())


# ---------------------------------------------------------------------- answers


def test_answers_by_state_by_column_and_by_replicate_agree():
    rng = np.random.default_rng(oracle.fresh_seed())
    risk = rv.Direct(alpha=rv.Averaged(), order=4).online(states=4, bootstrap_samples=20)
    risk.update_many(stream(rng, 400))
    for what in ("third_moment", "fourth_moment", "skewness", "kurtosis"):
        every = getattr(risk, what)()
        assert_array_equal(every, risk.predict(range(4), what))
        assert_array_equal(every[2], getattr(risk, what)(2))
        replicates = risk.bootstrap_estimates(what=what)
        assert replicates.shape == (4, 20)
        low, high = risk.interval(what=what)
        reach = (high - low) / 2
        assert_allclose((low + high) / 2, every)
        assert_allclose(reach, 1.6448536 * replicates.std(axis=1, ddof=1), rtol=1e-6)
    V, M3 = (risk.bootstrap_estimates(what=w) for w in ("variance", "third_moment"))
    assert_allclose(risk.bootstrap_estimates(what="skewness"), M3 / V**1.5)


def test_without_spread_there_is_no_skewness_and_a_word_says_so():
    risk = rv.Direct(alpha=0.1, gamma=0.9, lam=0.9, initial_variance=[1.0, 0.0, -1.0], order=4)
    risk = risk.online(states=3)
    assert np.isnan(risk.skewness()).tolist() == [False, True, True]
    assert np.isnan(risk.kurtosis()).tolist() == [False, True, True]
    assert risk.note().tolist() == [IMPOSSIBLE, NO_SPREAD, NO_SPREAD]  # M₄ starts from 0
    assert risk.note(1) == NO_SPREAD


def test_a_learner_of_order_three_says_nothing_about_the_kurtosis():
    risk = rv.Direct(alpha=0.1, gamma=0.9, lam=0.9, initial_variance=1.0, order=3).online(states=2)
    assert risk.note().tolist() == ["", ""]
    assert risk.skewness(0) == 0.0
    with pytest.raises(
        rv.InputError, match="order = 3: fourth_moment needs a learner with order=4"
    ):
        risk.kurtosis()


# ---------------------------------------------------------------------- files


@pytest.mark.parametrize("given", [{"states": 4}, {"features": 4}], ids=["states", "vectors"])
@pytest.mark.parametrize("samples", [0, 5])
def test_saved_moments_continue_to_the_bit(given, samples, tmp_path):
    rng = np.random.default_rng(oracle.fresh_seed())
    for method in LEARNERS:
        settings = {"alpha": rv.Averaged(), "kappa": 0.7, "kappa_bar": 0.4, "order": 4}
        estimator = LEARNERS[method](**settings).online(**given, bootstrap_samples=samples)
        columns = [stream(rng, 40, streams=2) for _ in range(2)]
        if "features" in given:
            X = rng.normal(size=(4, 4))
            for each in columns:
                each |= {name: X[each[name]] for name in ("state", "next_state")}
        estimator.update_many(columns[0])
        estimator.save(path := tmp_path / "risk.safetensors")
        loaded = rv.load(path)
        assert loaded.description == estimator.description
        for each in (estimator, loaded):
            each.update_many(columns[1])
        assert same(estimator, loaded)


def test_files_of_order_two_do_not_mention_the_order(tmp_path):
    """So that those written by versions without it are read, and read by them."""
    risk = rv.Direct(alpha=0.1, gamma=0.9, lam=0.9).online(states=2)
    risk.save(path := tmp_path / "risk.safetensors")
    assert b"order" not in path.read_bytes()
    assert rv.load(path).description.order == 2


def test_settings_of_higher_orders_survive_as_json():
    for learner in (rv.Direct(alpha=0.1, order=3), rv.Centred(alpha=rv.Decay(), order=4)):
        plain = learner.to_dict()
        assert plain["order"] == learner.order
        assert rv.learners.from_dict(plain) == learner
    assert "order" not in rv.Direct(alpha=0.1).to_dict()
    assert rv.Direct(alpha=0.1) != rv.Direct(alpha=0.1, order=3)


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize("order", [1, 5, 0, -2, 2.0, True, "4", None])
@pytest.mark.parametrize("method", METHODS)
def test_learners_have_orders_two_three_and_four(method, order):
    with pytest.raises(rv.InputError, match=r"order = .*: must be a whole number from 2 to 4"):
        METHODS[method](alpha=0.1, order=order)


@pytest.mark.parametrize("order", [3, 4])
def test_vtd_has_no_node_for_higher_moments(order):
    remedy = "VTD has moments up to order 2 only; use Direct or Centred, or order=2"
    with pytest.raises(rv.InputError, match=f"order = {order}: {remedy}"):
        rv.VTD(alpha=0.1, order=order)
    with pytest.raises(rv.InputError, match=remedy):
        rv.grid(rv.Direct, rv.VTD, alpha=0.1, order=order)
    assert rv.VTD(alpha=0.1, order=np.int64(2)).order == 2


@pytest.mark.parametrize("what", ["third_moment", "fourth_moment", "skewness", "kurtosis"])
def test_a_learner_of_order_two_names_the_order_that_is_needed(what):
    risk = rv.Direct(alpha=0.1, gamma=0.9, lam=0.9).online(states=2, bootstrap_samples=5)
    for ask in (
        getattr(risk, what),
        lambda: risk.predict([0], what),
        lambda: risk.interval(0, what),
    ):
        with pytest.raises(rv.InputError, match=r"order = 2: \w+ needs a learner with order=[34]"):
            ask()
    assert risk.note().tolist() == ["", ""]


def test_divergence_names_the_moment():
    risk = rv.Direct(alpha=0.0, alpha_bar=1.0, gamma=0.9, lam=0.9, order=4).online(states=1)
    with pytest.raises(rv.DivergenceError, match="fourth_moment"):
        risk.update(0, 1e40, 0)


# ---------------------------------------------------------------------- estimates from experience


def coins(rng, episodes=200):
    """Episodes of one or two steps whose rewards are 0 or 8, as a stream of two states."""
    reward = rng.choice([0.0, 8.0], p=[0.75, 0.25], size=2 * episodes)
    state = np.tile([0, 1], episodes)
    return rv.experience.from_table({"state": state, "reward": reward, "terminated": state == 1})


def test_estimates_of_order_four_are_learned_by_td():
    rng = np.random.default_rng(oracle.fresh_seed())
    found = rv.estimate(coins(rng), gamma=1.0, order=4, bootstrap_samples=10)
    data = found.data
    assert (data.attrs["by"], data.attrs["order"]) == ("td", 4)
    for name in ("third_moment", "fourth_moment", "skewness", "kurtosis"):
        assert_array_equal(data[name].values, getattr(found.estimator, name)()[:2])
        assert (data[f"{name}_low"] <= data[name]).all()
    assert set(data["moment_note"].values) <= {"", IMPOSSIBLE, NO_SPREAD}
    assert "skewness  kurtosis" in found.summary()
    answer = found.at(1)
    assert answer.shapes["skewness"].estimate == data["skewness"].values[1]
    assert answer.to_dict()["kurtosis"][0] == data["kurtosis"].values[1]
    assert "kurtosis, 90%" in str(answer)


def test_an_order_above_two_implies_td_and_says_so():
    rng = np.random.default_rng(0)
    found = rv.estimate(coins(rng), gamma=1.0, order=3)
    why = "TD learning, since least squares has no moments beyond the variance (order = 3)"
    assert why in found.data.attrs["remarks"]
    assert "kurtosis" not in found.data
    plain = rv.estimate(coins(rng), gamma=1.0)
    assert plain.data.attrs["by"] == "least_squares"
    assert "skewness" not in plain.data
    with pytest.raises(rv.InputError, match='order = 4: goes with by="td"'):
        rv.estimate(coins(rng), gamma=1.0, order=4, by="least_squares")
    with pytest.raises(rv.InputError, match="use Direct or Centred, or order=2"):
        rv.estimate(coins(rng), gamma=1.0, order=4, method="vtd")
    with pytest.raises(rv.InputError, match="order = 5: must be a whole number from 2 to 4"):
        rv.estimate(coins(rng), gamma=1.0, order=5)
    with pytest.raises(rv.InputError, match="order = 4: is a setting of the learner"):
        rv.estimate(coins(rng), rv.Direct(alpha=0.1, gamma=1.0, lam=1.0), order=4)


def test_the_command_line_estimates_moments(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = "\n".join(f"{k % 2},{8.0 * (k % 7 == 0)},{k % 2}" for k in range(400))
    (tmp_path / "log.csv").write_text("state,reward,terminated\n" + rows + "\n")
    ask = ["estimate", "log.csv", "--gamma", "1", "--order", "4", "--bootstrap-samples", "10"]
    ask += ["--formats", "none"]
    shown = CliRunner().invoke(main, ask)
    assert shown.exit_code == 0, shown.output
    assert "skewness  kurtosis" in shown.output
    found = json.loads(CliRunner().invoke(main, [*ask, "--json"]).stdout)
    assert found["order"] == 4
    assert len(found["third_moment"]) == len(found["kurtosis_low"]) == 2
    refused = CliRunner().invoke(main, [*ask[:4], "--order", "4", "--method", "vtd"])
    assert refused.exit_code == 2
    assert "use Direct or Centred" in refused.stderr


# ---------------------------------------------------------------------- simulations


def simulated(learners, features=None, **how):
    mdp = rv.domains.complex_mdp()
    settings = {"steps": 200, "runs": 2, "seed": 3, "target": "pi", "behaviour": "mu", **how}
    return rv.simulate(mdp, learners, keep="runs", features=features, **settings)


@pytest.mark.parametrize("traced", [False, True])
def test_each_run_of_a_simulation_is_the_online_learner_to_the_bit(traced):
    """Learners of all orders and methods on one stream, off-policy; with traces and features."""
    kappas = {"kappa": 0.5, "kappa_bar": 0.4} if traced else {}
    steps = {"alpha": 0.05, "alpha_bar": 0.03, **kappas}
    learners = {f"{kind.__name__}{k}": kind(**steps, order=k)
                for kind in LEARNERS.values() for k in (2, 3, 4)}  # fmt: skip
    learners["VTD"] = rv.VTD(**steps)
    features = np.random.default_rng(0).normal(size=(5, 3)) if traced else None
    given = {"states": 5} if features is None else {"features": features}
    data = simulated(learners, features).isel(step=-1)
    mdp = rv.domains.complex_mdp()
    for run in range(2):
        columns = rv.replay(mdp, run=run, seed=3, steps=200, target="pi", behaviour="mu")
        for label, learner in learners.items():
            alone, found = learner.online(**given), data.sel(learner=label, run=run)
            alone.update_many(columns)
            for name in ("value", "variance", *learner.network.higher):
                assert_array_equal(found[name].values, getattr(alone, name)(), f"{label} {name}")
            if learner.order < 4:
                assert np.isnan(found["kurtosis"]).all()
    truth = rv.solve(mdp, "pi", "mu", order=4)
    for name in learners["Direct4"].network.higher:
        for label in learners:
            assert_array_equal(data[f"true_{name}"].sel(learner=label), getattr(truth, name))


def test_averages_of_moments_are_those_over_runs():
    learner = rv.Direct(alpha=0.05, alpha_bar=0.03, order=4)
    runs, mdp = simulated(learner).isel(learner=0, step=-1), rv.domains.complex_mdp()
    how = {"steps": 200, "runs": 2, "seed": 3, "target": "pi", "behaviour": "mu"}
    stats = rv.simulate(mdp, learner, **how).isel(learner=0, step=-1)
    assert_allclose(stats.fourth_moment, runs.fourth_moment.mean("run"), rtol=1e-12)
    assert_allclose(stats.fourth_moment_std, runs.fourth_moment.std("run", ddof=1), rtol=1e-9)
    assert_allclose(stats.kurtosis, stats.fourth_moment / stats.variance**2 - 3, rtol=1e-12)


def test_simulated_moments_settle_around_the_fixed_point():
    """A fixed wrong value, where the direct method's moments are biased and the centred are not.

    Means over 200 runs of one seed, within six standard errors and, for what is left of the start,
    3% of the largest moment.
    """
    mdp = rv.domains.complex_mdp()
    value = rv.solve(mdp, "mu").value + 0.5
    for method, kind in LEARNERS.items():
        point = rv.fixed_point(method, mdp, "mu", value=value, order=4)
        learner = kind(alpha=0.0, alpha_bar=rv.Averaged(), value=value, learn_value=False, order=4)
        if method == "centred":
            learner = learner.replace(alpha_mean=rv.Averaged())
        found = rv.simulate(
            mdp, learner, steps=20_000, runs=200, seed=1, target="mu", record=[20_000]
        )
        last = found.isel(learner=0, step=-1)
        for name in ("variance", "third_moment", "fourth_moment"):
            error = np.abs(last[name].values - getattr(point, name))
            allowed = 6 * last[f"{name}_std"].values / np.sqrt(200)
            scale = np.abs(getattr(point, name)).max()
            assert (error < allowed + 0.03 * scale).all(), (method, name, error, allowed)


def test_errors_of_moments_are_those_of_their_estimates():
    """RMSE and window of simulate, from its estimates of every step and the exact moments."""
    mdp = rv.domains.complex_mdp()
    learners = [rv.Direct(alpha=0.1, order=4), rv.Centred(alpha=0.2, order=3), rv.VTD(alpha=0.1)]
    record = rv.Record(every=1, rmse=True, window=7)
    data = rv.simulate(mdp, learners, steps=20, runs=1, seed=3, record=record, keep="runs")
    truth, shares = rv.solve(mdp, order=4), rv.stationary_distribution(mdp)
    for moment, who in (("third_moment", [0, 1]), ("fourth_moment", [0])):
        found = data[moment].transpose("run", "learner", "step", "state").values[0]
        error = found - getattr(truth, moment)
        rmse = np.sqrt(error**2 @ shares)
        assert_allclose(data[f"{moment}_rmse"].values[0][who], rmse[who], rtol=1e-12)
        window = data[f"{moment}_window_mse"].values[0]
        assert_allclose(window[who], (error[:, -7:] ** 2).mean(axis=1)[who], rtol=1e-9)
        others = [k for k in range(3) if k not in who]
        assert np.isnan(data[f"{moment}_rmse"].values[0][others]).all()
