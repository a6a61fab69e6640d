"""Learners of the third and fourth moment: against the reference, by identities, to the exact."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import retvar as rv
from retvar.exact.moments import IMPOSSIBLE, NO_SPREAD, notes_on
from tests import oracle, streams
from tests.streams import stream

LEARNERS = {"direct": rv.Direct, "centred": rv.Centred}


# ---------------------------------------------------------------------- identities


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


# ---------------------------------------------------------------------- answers


def test_without_spread_there_is_no_skewness_and_a_word_says_so():
    risk = rv.Direct(alpha=0.1, gamma=0.9, lam=0.9, initial_variance=[1.0, 0.0, -1.0], order=4)
    risk = risk.online(states=3)
    assert np.isnan(risk.skewness()).tolist() == [False, True, True]
    assert np.isnan(risk.kurtosis()).tolist() == [False, True, True]
    notes = notes_on(risk.variance(), risk.skewness(), risk.kurtosis())
    assert notes.tolist() == [IMPOSSIBLE, NO_SPREAD, NO_SPREAD]  # M₄ starts from 0


def test_divergence_names_the_moment():
    risk = rv.Direct(alpha=0.0, alpha_bar=1.0, gamma=0.9, lam=0.9, order=4).online(states=1)
    with pytest.raises(rv.DivergenceError) as caught:
        risk.update(0, 1e40, 0)
    assert caught.value.node == "fourth_moment"


# ---------------------------------------------------------------------- estimates from experience


def coins(rng, episodes=200):
    """Episodes of one or two steps whose rewards are 0 or 8, as a stream of two states."""
    reward = rng.choice([0.0, 8.0], p=[0.75, 0.25], size=2 * episodes)
    state = np.tile([0, 1], episodes)
    return rv.experience.from_table({"state": state, "reward": reward, "terminated": state == 1})


def test_a_learner_of_order_four_gives_all_moments_of_data():
    rng = np.random.default_rng(oracle.fresh_seed())
    learner = rv.Direct(
        alpha=rv.Averaged(), gamma=1.0, lam=1.0, kappa=0.99, kappa_bar=0.99, order=4
    )
    found = rv.estimate(coins(rng), learner, bootstrap_samples=10)
    data = found.data
    assert (data.attrs["by"], data.attrs["order"]) == ("td", 4)
    for name in ("third_moment", "fourth_moment", "skewness", "kurtosis"):
        assert_array_equal(data[name].values, getattr(found.estimator, name)()[:2])
        assert (data[f"{name}_low"] <= data[name]).all()


# ---------------------------------------------------------------------- simulations


@pytest.mark.parametrize("traced", [False, True])
def test_each_run_of_a_simulation_is_the_online_learner_to_the_bit(traced):
    """Learners of all orders and methods on one stream, off-policy; with traces and features."""
    steps = {"alpha": 0.05, "alpha_bar": 0.03} | (
        {"kappa": 0.5, "kappa_bar": 0.4} if traced else {}
    )
    learners = {f"{kind.__name__}{k}": kind(**steps, order=k)
                for kind in LEARNERS.values() for k in (2, 3, 4)}  # fmt: skip
    features = np.random.default_rng(0).normal(size=(5, 3)) if traced else None
    given = {"states": 5} if features is None else {"features": features}
    mdp, how = rv.domains.complex_mdp(), {"steps": 100, "target": "pi", "behaviour": "mu"}
    data = rv.simulate(mdp, learners, runs=2, seed=3, keep="runs", features=features, **how)
    columns = rv.replay(mdp, run=1, seed=3, **how)
    for label, learner in learners.items():
        alone, found = learner.online(**given), data.isel(step=-1).sel(learner=label, run=1)
        alone.update_many(columns)
        for name in ("value", "variance", *learner.network.higher):
            assert_array_equal(found[name].values, getattr(alone, name)(), f"{label} {name}")
        if learner.order < 4:
            assert np.isnan(found["kurtosis"]).all()


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
