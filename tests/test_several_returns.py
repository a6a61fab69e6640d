"""Covariances of several returns: exact against other ways to the same numbers, then learned."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats

import retvar as rv
from retvar.cli import main
from tests.test_attribution import ESTIMANDS, random_world


def with_reward(mdp, reward, reward_std):
    """The same MDP with another reward."""
    edges = mdp.edges._replace(reward=reward, reward_std=reward_std, gamma=None)
    settings = {"gamma": mdp.gamma, "lam": mdp.lam, "start": mdp.start}
    return rv.MDP(tuple(edges), states=mdp.n_states, actions=mdp.n_actions, **settings)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("estimand", ESTIMANDS)
def test_a_combination_is_the_return_of_the_combined_reward(seed, estimand):
    rng = np.random.default_rng(seed)
    mdp, pi, mu = random_world(rng)
    a, b = rng.normal(size=(2, mdp.edges.state.size))
    s, t, alike = rng.uniform(0, 1, (3, a.size))
    noise = {"a": s, "b": t, ("b", "a"): alike}
    found = rv.solve(mdp, pi, mu, estimand, rewards={"a": a, "b": b}, noise=noise)
    for w, x in rng.normal(size=(3, 2)):
        together = np.sqrt((w * s) ** 2 + (x * t) ** 2 + 2 * w * x * s * t * alike)
        truth = rv.solve(with_reward(mdp, w * a + x * b, together), pi, mu, estimand)
        mean, variance = found.combine({"a": w, "b": x})
        assert mean == pytest.approx(truth.value, rel=1e-9, abs=1e-12)
        assert variance == pytest.approx(truth.variance, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("estimand", ESTIMANDS)
def test_of_a_return_and_itself_the_covariance_is_the_variance_to_the_bit(estimand):
    mdp, pi, mu = random_world(np.random.default_rng(1))
    e = mdp.edges
    noise = {"a": e.reward_std, "b": e.reward_std, ("a", "b"): 1.0}
    found = rv.solve(mdp, pi, mu, estimand, rewards={"a": e.reward, "b": e.reward}, noise=noise)
    variance = rv.solve(mdp, pi, mu, estimand).variance
    assert all(np.array_equal(x, variance) for x in found.covariance.reshape(4, -1))


def test_rewards_have_the_forms_of_arrays_and_one_number_an_edge():
    P = [[[0.5, 0.5], [1, 0]], [[0, 1], [0.2, 0.8]]]
    mdp = rv.MDP.from_dense(P, [0, 0], gamma=0.9)
    R = np.arange(8.0).reshape(2, 2, 2)
    e = mdp.edges
    forms = {"table": R, "edges": R[e.state, e.action, e.next_state], "states": [1, 2], "one": 3}
    found = rv.solve(mdp, rewards=forms)
    assert np.array_equal(found.covariance[0], found.covariance[1])
    assert found.value[3] == pytest.approx([30, 30])
    assert found.note[0] == "one does not vary: no correlation"
    assert np.isnan(found.correlation[3]).all()
    assert found.correlation[0, 1].min() > 1 - 1e-12
    assert found.data.covariance.sel(reward="table", other="states").dims == ("state",)


def test_a_list_in_another_order_than_the_edges_is_refused():
    """Its numbers would go to other edges."""
    rows = [("a", "x", "b", 1, 1.0), ("b", "x", "end", 1, 2.0), ("a", "y", "end", 1, 3.0)]
    mdp = rv.MDP.from_edges(rows, gamma=0.9)
    with pytest.raises(rv.InputError) as error:
        rv.solve(mdp, rewards={"mine": [1.0, 2.0, 3.0]})
    assert error.value.field == "rewards[mine]"
    found = rv.solve(mdp, rewards={"mine": mdp.edges.reward})
    assert found.value[0] == pytest.approx(rv.solve(mdp).value)
    ordered = rv.MDP.from_edges([rows[0], rows[2], rows[1]], gamma=0.9)
    again = rv.solve(ordered, rewards={"mine": [1.0, 3.0, 2.0]})
    assert again.value == pytest.approx(found.value)


def test_an_infinite_variance_of_one_return_does_not_spoil_the_other():
    mdp = rv.MDP.from_edges(
        [("a", "x", "a"), ("a", "y", "end"), ("b", "x", "end"), ("b", "y", "end")], gamma=0.9
    )
    how = {"target": [[0.9, 0.1]] * 2, "behaviour": "uniform", "estimand": "off_policy_return"}
    found = rv.solve(mdp, **how, rewards={"both": 1.0, "in b": [0, 0, 1, 2]})
    alone = rv.solve(with_reward(mdp, np.array([0.0, 0, 1, 2]), np.zeros(4)), **how)
    assert np.isnan(found.variance).tolist() == [[True, False], [False, False]]
    assert np.array_equal(found.variance[1], alone.variance)
    assert found.covariance[0, 1, 0] == 0  # the second does not vary there
    # ρ is 1.8 or 0.2: the returns from b are (1.8, 1.8) or (0.2, 0.4)
    assert found.covariance[0, 1, 1] == pytest.approx(0.8 * 0.7)
    assert found.note[0] == "the variance of both is infinite; in b does not vary: no correlation"
    assert np.isfinite(found.combine({"in b": 2.0}).std).all()


CHAIN = rv.domains.chain()
REFUSED = {
    "rewards": lambda: rv.solve(CHAIN, rewards={}),
    "rewards[a]": lambda: rv.solve(CHAIN, rewards={"a": [1.0, 2.0]}),
    "noise": lambda: rv.solve(CHAIN, rewards={"a": 1, "b": 2}, noise={("a", "a"): 1}),
    "noise ": lambda: rv.solve(CHAIN, rewards={"a": 1}, noise={(): 1}),
    "noise[a, b][0]": lambda: rv.solve(CHAIN, rewards={"a": 1, "b": 1}, noise={("a", "b"): 2}),
    "order": lambda: rv.solve(CHAIN, rewards={"a": 1}, order=3),
    "weights": lambda: rv.solve(CHAIN, rewards={"a": 1}).combine({"b": 1}),
    "reward": lambda: rv.Direct(alpha=0.1, gamma=1, lam=1).online(1, rewards=2).update(0, (1,), 0),
    "learner": lambda: rv.VTD(alpha=0.1).online(1, rewards=2),
    "bootstrap_samples": lambda: rv.Direct(alpha=0.1).online(1, rewards=2, bootstrap_samples=9),  # type: ignore
}


@pytest.mark.parametrize("field", REFUSED)
def test_bad_input_is_refused_by_name(field):
    with pytest.raises(rv.InputError) as caught:
        REFUSED[field]()
    assert caught.value.field == field.strip()


# ---------------------------------------------------------------------- online


SETTINGS = {"alpha": rv.Decay(1.0, 0.7), "gamma": 0.9, "lam": 0.7}
LEARNERS = [kind(**SETTINGS, estimand="off_policy_return") for kind in (rv.Direct, rv.Centred)]


@pytest.mark.parametrize("learner", LEARNERS)
def test_online_the_covariance_of_equal_rewards_is_the_variance_to_the_bit(learner):
    rng = np.random.default_rng(3)
    both, one = learner.online(states=3, rewards=2), learner.online(states=3)
    columns = {
        "state": rng.integers(3, size=60), "next_state": rng.integers(3, size=60),
        "rho": rng.uniform(0.5, 1.5, 60), "terminated": rng.random(60) < 0.1,
    }  # fmt: skip
    reward = rng.normal(size=60)
    for t in range(60):
        row = {field: column[t] for field, column in columns.items()}
        one.update(reward=reward[t], **row)
        both.update(reward=(reward[t], reward[t]), **row)
    assert all(np.array_equal(x, one.variance()) for x in both.covariance().reshape(4, -1))
    assert np.array_equal(both.value()[1], one.value())


@pytest.mark.parametrize("learner", LEARNERS)
def test_the_learned_covariance_converges_to_the_exact_one(learner):
    """24 comparisons by t-tests of 30 runs, each at 4e-8: false alarms below one in a million.

    It detects a covariance that is off by a tenth of the product of the standard deviations.
    """
    mdp = rv.MDP.from_edges(
        [("a", "x", "b", 0.4), ("a", "x", "c", 0.6), ("b", "x", "c", 0.5), ("b", "x", "end", 0.5),
         ("c", "x", "end", 0.3), ("c", "x", "end", 0.7)], gamma=0.9, lam=0.7,
    )  # fmt: skip
    e, rng = mdp.edges, np.random.default_rng(5)
    rewards = np.array([[1, -1, 2, 0, 3, 0.5], [0, 2, 1, -2, 1, -1]]).T
    truth = rv.solve(mdp, rewards={"0": rewards[:, 0], "1": rewards[:, 1]})
    errors = []
    for _ in range(30):
        risk = learner.online(states=3, rewards=2)
        for _ in range(1_500):
            s = 0
            while s >= 0:
                own = np.flatnonzero(e.state == s)
                edge = own[np.searchsorted(np.cumsum(e.probability[own]), rng.random())]
                s2 = int(e.next_state[edge])
                risk.update(s, rewards[edge], None if s2 < 0 else s2, terminated=s2 < 0)
                s = s2
        errors.append(np.ravel(risk.covariance() - truth.covariance))
    assert stats.ttest_1samp(errors, 0.0).pvalue.min() > 4e-8
    spread = np.ravel(truth.std[:, None] * truth.std[None])
    assert np.all(np.abs(np.mean(errors, axis=0)) < 0.1 * spread)


# ---------------------------------------------------------------------- from data


def test_from_data_a_combination_is_the_estimate_of_the_combined_column(tmp_path):
    """And covariances are those of the returns, here the rewards of one state."""
    rng = np.random.default_rng(0)
    n = 400
    log = {"state": np.where(rng.random(n) < 0.5, "a", "b"), "terminated": rng.random(n) < 0.3}
    log["profit"] = rng.normal(size=n)
    log["energy"] = 0.5 * log["profit"] + rng.normal(size=n) + 3.0
    log["sum"] = log["profit"] - 0.25 * log["energy"]
    reads = rv.experience.from_table
    both = rv.estimate(reads(log, reward=["profit", "energy"]), gamma=0.9)
    found = both.combine({"profit": 1.0, "energy": -0.25})
    alone = rv.estimate(reads(log, reward="sum"), gamma=0.9)
    assert found.value() == pytest.approx(alone.value(), rel=1e-9)
    assert np.ravel(found.interval(what="std")) == pytest.approx(
        np.ravel(alone.interval(what="std"))
    )
    w = np.array([1.0, -0.25])
    variance = np.einsum("a,b,abs->s", w, w, both.returns.covariance)
    assert np.sqrt(variance) == pytest.approx(alone.std(), rel=1e-6)
    assert both.value("a")["energy"] == both["energy"].value("a")
    assert both["energy"].law("a").mean.estimate == pytest.approx(both["energy"].value("a"))
    billed = rv.estimate(reads(log, reward="profit", cost="energy"), gamma=0.9)
    assert billed["energy"].law("a").cvar() > billed["energy"].law("a").mean
    assert billed["profit"].law("a").cvar() < billed["profit"].law("a").mean
    bandit = reads(log | {"terminated": np.ones(n, bool)}, reward=["profit", "energy"])
    own = log["state"] == "a"
    sampled = np.corrcoef(log["profit"][own], log["energy"][own])[0, 1]
    known = rv.estimate(bandit, gamma=0.9).returns.data.correlation.sel(state="a")
    assert float(known.sel(reward="profit", other="energy")) == pytest.approx(sampled)


def test_the_command_prints_both_and_saves_each(capsys, tmp_path):
    log = tmp_path / "log.csv"
    log.write_text(
        "state,terminated,profit,energy\n" + ("a,1,1,2\na,1,3,-1\nb,1,1,0\n" * 40) + "b,1,,0\n" * 4
    )
    asked = ["estimate", str(log), "--gamma", "0.9", "--reward", "profit,energy"]
    main([*asked, "--out", str(tmp_path / "out"), "--json"], standalone_mode=False)
    shown = capsys.readouterr()
    told = json.loads(shown.out)
    assert told["warnings"]
    assert shown.err.splitlines() == [f"WARNING: {each}" for each in told["warnings"]]
    assert told["of"]["profit"]["understood"].startswith("124 rows, 120 ends, 0 cut off")
    assert told["of"]["profit"]["value_low"][0] < 2 < told["of"]["profit"]["value_high"][0]
    assert told["state"] == ["a", "b"]
    assert told["correlation"][0][1][0] == pytest.approx(-1)
    assert "does not vary" in told["note"][1]
    assert (tmp_path / "out" / "energy" / "estimator.safetensors").exists()
    with pytest.raises(SystemExit):
        main([*asked, "--at", "a"], standalone_mode=False)
    assert capsys.readouterr().err.startswith("Error: at =")
