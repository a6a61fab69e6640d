"""The law of the return, and the shares of its variance, from data."""

from __future__ import annotations

import numpy as np
import pytest

import retvar as rv
from retvar.experience import from_table
from retvar.plots.risk import law_panel
from tests.worlds import OTHERS, PAGE, World


def estimated(world, rows, seed, **how):
    log = world.log(np.random.default_rng(seed), rows)
    named = {"gamma": "gamma", "truncated": "truncated"}
    named |= {name: name for name in ("rho", "lam") if name in how.get("columns", ())}
    columns = {
        name: log[name] for name in {"state", "next_state", "reward", "terminated"} | {*named}
    }
    return rv.estimate(from_table(columns, **named), lam=how.get("lam"))


def noisy_ring(n=6):
    """A world without an end in which states, rewards and discounts differ."""
    rng = np.random.default_rng(3)
    edges = [
        (s, 0, (s + k) % n, p, rng.normal(), 0.3) for s in range(n) for k, p in ((1, 0.6), (2, 0.4))
    ]
    return World(
        rv.MDP.from_edges(edges, gamma=rng.uniform(0.5, 0.8, n), lam=rng.uniform(0.2, 1.0, n))
    )


@pytest.mark.parametrize("columns", [("lam",), ()])
def test_means_and_spreads_of_draws_vary_as_least_squares_says(columns):
    """Two ways to one number: a bootstrap of laws on grids, and influences of rows.

    With λ < 1 a row acts through the return and through the value in it.
    """
    found = estimated(noisy_ring(), 20_000, 1, columns=columns)
    law, known = found.law(), found.estimator.solution
    z, psi = law._points, law._draws
    means = z[:, -1] - psi[:, :, -1]
    assert np.std(means, axis=0) == pytest.approx(known.value_error, rel=0.2)
    excess = psi - np.maximum(z - means[:, :, None], 0.0)
    variances = np.sum((excess[:, :, 1:] + excess[:, :, :-1]) * np.diff(z), axis=2)
    assert np.std(variances, axis=0) == pytest.approx(known.variance_error, rel=0.25)
    assert law.std.estimate == pytest.approx(law.law.std.middle, rel=0.02)


def test_all_states_are_answered_at_once_and_each_as_if_alone():
    found = estimated(noisy_ring(), 20_000, 1)
    law = found.law()
    limit = law.mean.estimate
    for s in range(6):
        alone = found.law(s)
        for many, one in (
            (law.cvar(0.2), alone.cvar(0.2)),
            (law.quantile(0.3), alone.quantile(0.3)),
            (law.probability_below(limit), alone.probability_below(limit[s])),
            (law.std, alone.std),
        ):
            assert [x[s] for x in many] == pytest.approx(list(one))
    assert law["3"].name == alone.name[:-1] + "3"
    assert len(str(law).splitlines()) == 7


def test_rewards_keep_their_spread_where_pairs_of_states_are_many(monkeypatch):
    """Three rewards stand for those of a pair; the law is nearly that of all rewards."""
    found = estimated(noisy_ring(), 20_000, 1)
    fine = found.law()
    monkeypatch.setattr("retvar.estimation.empirical.MOST_EDGES", 20)
    coarse = estimated(noisy_ring(), 20_000, 1).law()
    assert coarse.law.solution.std == pytest.approx(found.std(), rel=1e-3)
    spread = found.std().max()
    assert coarse.cvar(0.1).estimate == pytest.approx(fine.cvar(0.1).estimate, abs=0.02 * spread)


@pytest.mark.parametrize("name", ["complex MDP, π", "complex MDP, π from μ"])
def test_nine_in_ten_intervals_hold_and_half_of_their_width_would_not_do(name):
    """Of 25 logs with fixed seeds; at half the width 59% would hold."""
    case, rng = PAGE[name], np.random.default_rng(5)
    world = case.make()
    truth = rv.law(world.mdp, rv.Policy(world.target), lam=1.0)[1]
    limit = truth.mean - 0.5 * truth.std.middle
    hits, halves = [], []
    for seed in rng.integers(2**31, size=25):
        columns = () if world.on_policy else ("rho",)
        law = estimated(world, case.rows, seed, columns=columns).law(1)
        pairs = [
            (law.probability_below(limit), truth.probability_below(limit)),
            (law.quantile(0.6), truth.quantile(0.6)),
            (law.cvar(0.2), truth.cvar(0.2)),
        ]
        given = [(a, b) for a, b in pairs if not np.isnan(a.low)]
        hits += [a.low <= b.high and b.low <= a.high for a, b in given]
        halves += [abs(b.middle - a.estimate) <= (a.high - a.low) / 4 for a, b in given]
    assert len(hits) > 50
    assert 0.7 < np.mean(hits) < 1.0
    assert np.mean(halves) < 0.7


def test_a_tail_of_few_events_has_no_interval():
    world = World(rv.domains.chain(lam=1.0))
    found = estimated(world, 400, 1).law(0)
    assert np.isnan(found.quantile(0.01).low)
    assert np.isfinite(found.quantile(0.01).estimate)
    assert np.isfinite(found.quantile(0.5)).all()
    assert np.isnan(found.probability_below(found.mean.estimate - 1e6).low)


def test_a_quantile_at_which_the_law_jumps_has_no_interval_but_a_word():
    """Of 8 coins the median is 4 in every log, so that an interval at 90% would hold always."""
    coins = [(s, 0, s + 1 if s < 7 else "end", 0.5, r) for s in range(8) for r in (0.0, 1.0)]
    coins = World(rv.MDP.from_edges(coins, gamma=1.0))
    for seed in range(4):
        found = estimated(coins, 8_000, seed).law(0)
        assert found.quantile(0.5) == pytest.approx([4, np.nan, np.nan], abs=1e-3, nan_ok=True)
        assert any("jumps" in note and "4.0" in note for note in found.notes)
        assert np.isfinite(found.probability_below(3.5)).all()
        assert np.isfinite(found.cvar(0.2)).all()
    smooth = estimated(noisy_ring(), 20_000, 1).law(0)
    assert np.isfinite(smooth.quantile(0.5)).all()
    assert not smooth.notes


def test_shares_of_the_variance_are_those_of_the_world():
    """Of the three largest shares in 20 logs with fixed seeds."""
    world = World(rv.domains.complex_mdp())
    truth = rv.solve(world.mdp, lam=1.0).attribution(0)
    largest = np.argsort(-truth.by_state)[:3]
    hits = []
    for seed in range(20):
        found = estimated(world, 5_000, seed).attribution(0)
        assert found.by_edge.sum() == pytest.approx(1)
        number = [found.mdp.state_index(str(s)) for s in largest]
        low, high = found.intervals["by_state"][:, number]
        hits.append((low <= truth.by_state[largest]) & (truth.by_state[largest] <= high))
    assert 0.6 < np.mean(hits) < 1


def test_shares_of_actions_are_told_where_a_log_has_actions():
    world = OTHERS["inventory"].make()
    log = world.log(np.random.default_rng(1), 20_000, acting=True)
    columns = {name: log[name] for name in ("state", "next_state", "reward", "terminated")}
    columns["action"] = np.array(list("abcdefgh"))[log["action"]]
    found = rv.estimate(from_table(columns, action="action"), gamma=0.9).attribution(0)
    truth = rv.solve(world.mdp, lam=1.0).attribution(0).by_action
    assert found.by_action.sum() == pytest.approx(1)
    assert {x.action for x in found.top()} <= set("abcdefgh")
    for k, name in enumerate(found.mdp.action_names):
        assert found.by_action[:, k] == pytest.approx(truth[:, "abcdefgh".index(name)], abs=0.02)


def test_states_that_are_not_markov_are_told():
    """A hidden mode doubles the spread: the law of the chain of states is not that of returns."""
    rng = np.random.default_rng(0)
    mode = np.repeat(rng.choice([-1.0, 1.0], 2_000), 5)
    step = np.tile(np.arange(5), 2_000)
    log = {"state": step, "reward": mode, "terminated": step == 4}
    found = rv.estimate(from_table(log), gamma=1.0)
    assert any("contradict" in note for note in found.law(0).notes)
    assert not estimated(noisy_ring(), 20_000, 1).law(0).notes


def test_what_cannot_be_told_is_refused():
    column = {
        "state": [0.5, 1.5, 0.5],
        "reward": [1.0, 2.0, 3.0],
        "terminated": [False, False, True],
    }
    with pytest.raises(rv.InputError) as caught:
        rv.estimate(from_table(column, state=["state"]), gamma=0.5, features="tiles").law([0.5])
    assert caught.value.field == "experience"
    found = estimated(noisy_ring(), 2_000, 1)
    for field, ask in (
        ("state", lambda: found.law("nowhere")),
        ("level", lambda: found.law(0, level=2)),
        ("share", lambda: found.law(0).cvar(0)),
        ("limit", lambda: found.law(0).probability_below(np.nan)),
    ):
        with pytest.raises(rv.InputError) as caught:
            ask()
        assert caught.value.field == field


def test_states_without_spread_have_a_law_too():
    """A race of three throws: the last square's return is certain."""
    edges = [
        (0, 0, 1, 0.5, -1.0),
        (0, 0, 2, 0.5, -1.0),
        (1, 0, 2, 1.0, -1.0),
        (2, 0, "end", 1.0, -1.0),
    ]
    found = estimated(World(rv.MDP.from_edges(edges, gamma=1.0)), 5_000, 1)
    first = found.law(0)
    assert first.quantile(0.1) == pytest.approx([-3.0, np.nan, np.nan], abs=1e-3, nan_ok=True)
    assert first.probability_below(-2.5).low < 0.5 < first.probability_below(-2.5).high
    assert found.law(2).quantile(0.5).estimate == pytest.approx(-1.0)
    assert np.isnan(found.attribution(2).by_state).all()


def test_a_state_that_was_entered_and_never_left_counts_as_the_mean_of_the_others():
    """As in least squares; the last row of a log that goes on often leads to one."""
    rng = np.random.default_rng(0)
    state = rng.integers(3, size=2_000)
    log = {
        "state": state,
        "next_state": np.append(state[1:], 3),
        "reward": state + rng.normal(size=2_000),
    }
    found = rv.estimate(from_table(log | {"terminated": np.zeros(2_000, bool)}), gamma=0.8)
    for s in range(3):
        assert found.law(s).law.mean == pytest.approx(found.value(s), rel=1e-9)
        assert found.attribution(s).by_edge.sum() == pytest.approx(1)
    with pytest.raises(rv.InputError) as caught:
        found.law(3)
    assert caught.value.field == "state"


def test_of_costs_the_largest_are_the_worst():
    rng = np.random.default_rng(0)
    columns = {"state": np.zeros(2_000, dtype=int), "terminated": np.ones(2_000, dtype=bool)}
    drawn = rng.exponential(size=2_000)
    costs = rv.estimate(from_table({**columns, "bill": drawn}, cost="bill"), gamma=0.9).law(0)
    losses = rv.estimate(from_table({**columns, "reward": -drawn}), gamma=0.9).law(0)
    for name, paid in costs.tails.items():
        assert paid.estimate == pytest.approx(-losses.tails[name].estimate, abs=0.03)
    assert costs.tails["CVaR 5%"].estimate > costs.mean.estimate
    assert (costs.cvar(), losses.cvar()) == (costs.tails["CVaR 5%"], losses.tails["CVaR 5%"])


def test_a_law_from_data_is_drawn_as_the_exact_one_with_its_intervals():
    found = estimated(noisy_ring(), 5_000, 1).law(2)
    line = law_panel(found).lines[0]
    middle = line.x.size // 2
    told = found.probability_below(line.x[middle])
    assert (line.y[middle], *(end[middle] for end in line.band)) == told
    figure = found.plot()
    assert [text.get_text().split()[0] for text in figure.axes[0].texts] == ["CVaR", "mean"]
