"""The least-squares estimator through `estimate`: honest answers, files, intervals, self-check."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.testing import assert_allclose, assert_array_equal

import retvar as rv
from retvar.cli import main
from retvar.estimation.feature_estimator import FeatureEstimator
from retvar.estimation.least_squares import least_squares
from retvar.estimation.tabular import TabularEstimator
from retvar.estimation.transition_sums import TransitionSums
from retvar.experience import from_gymnasium, from_table
from tests.oracle import fresh_seed

LAKE = rv.MDP.from_gymnasium("FrozenLake-v1", gamma=0.9)


def lake(steps=20_000, seed=0):
    return from_gymnasium("FrozenLake-v1", "random", steps=steps, seed=seed)


def walk(rng, rows=20_000, length=7, noise=0.0):
    """A symmetric walk that ends at both sides; every step counts 1, plus noise."""
    columns = {name: [] for name in ("state", "next_state", "reward", "terminated")}
    s = length // 2
    for move in rng.choice([-1, 1], rows).tolist():
        follows = s + move
        ended = not 0 <= follows < length
        columns["state"].append(s)
        columns["next_state"].append(s if ended else follows)
        columns["reward"].append(1.0 + noise * rng.normal())
        columns["terminated"].append(ended)
        s = length // 2 if ended else follows
    return {name: np.array(column) for name, column in columns.items()}


def test_it_agrees_with_the_exact_answer():
    """FrozenLake, 200,000 steps: 5 standard errors of the value in every state, 7 of the variance.

    In 60 logs the largest were 3.0 and 3.6. A bias of 5 standard errors is one of about 10%.
    """
    found = rv.estimate(lake(200_000, fresh_seed()), gamma=0.9, by="least_squares")
    truth, solved = rv.solve(LAKE), found.estimator.solution
    left = np.isfinite(solved.value)
    assert left.sum() == 11  # holes and the goal are never left
    z = (solved.value - truth.value)[left] / solved.value_error[left]
    assert np.abs(z).max() < 5
    z = (solved.variance - truth.variance)[left] / solved.variance_error[left]
    assert np.abs(z).max() < 7  # of a skewed estimate


def test_data_and_summary_say_what_an_estimate_rests_on():
    many = np.zeros(200, dtype=int)
    data = {"state": np.r_[many, 1, 2], "next_state": np.r_[many, 2, 3],
            "reward": np.r_[np.random.default_rng(0).normal(size=200), 10.0, 1.0],
            "terminated": np.r_[many == 0, False, False],
            "truncated": np.r_[many == 1, False, True]}  # fmt: skip
    found = rv.estimate(from_table(data), gamma=0.9, by="least_squares")
    notes = found.data["note"].values.tolist()
    assert notes[:2] == ["", "one visit"]
    assert np.isnan(found.std(1))
    text = found.summary()
    assert "least squares" in text
    assert "3 states, 1 with both intervals, 2: one visit" in text
    assert found.data.attrs["by"] == "least_squares"


def test_saved_sums_continue_to_the_bit(tmp_path):
    whole = TabularEstimator(rv.Direct(alpha=0.0, gamma=0.9, lam=1.0), 16)
    half = TabularEstimator(rv.Direct(alpha=0.0, gamma=0.9, lam=1.0), 16)
    chunks = list(lake(8_000).chunks())
    for k, chunk in enumerate(chunks):
        whole.update_many(chunk)
        if k == 0:
            half.update_many(chunk)
            half.save(tmp_path / "a")
            half = TabularEstimator.load(tmp_path / "a")
        else:
            half.update_many(chunk)
    assert half.steps == whole.steps == 8_000
    assert_array_equal(half.value(), whole.value())
    assert_array_equal(half.std(), whole.std())


def test_estimate_resumes_a_saved_least_squares_estimator(tmp_path):
    first = rv.estimate(lake(4_000, 1), gamma=0.9, by="least_squares")
    first.save(tmp_path / "a.safetensors")
    second = rv.estimate(lake(4_000, 2), resume=tmp_path / "a.safetensors")
    both = rv.estimate(lake(4_000, 1), gamma=0.9, by="least_squares").estimator
    for chunk in lake(4_000, 2).chunks():
        both.update_many(chunk)
    assert second.estimator.steps == 8_000
    assert_allclose(second.value(), both.value(), rtol=1e-10)


def test_a_file_of_another_kind_or_damaged_is_refused(tmp_path):
    rv.Direct(alpha=0.1, gamma=0.9, lam=1.0).online(states=2).save(tmp_path / "online")
    with pytest.raises(rv.InputError, match="is not a file of the least-squares estimator"):
        TabularEstimator.load(tmp_path / "online")
    estimator = TabularEstimator(rv.Direct(alpha=0.0, gamma=0.9, lam=1.0), 16)
    estimator.update_many(next(lake(100).chunks()))
    estimator.save(tmp_path / "sums")
    damaged = bytearray((tmp_path / "sums").read_bytes())
    damaged[-1] ^= 1
    (tmp_path / "sums").write_bytes(damaged)
    with pytest.raises(rv.InputError, match="damaged"):
        TabularEstimator.load(tmp_path / "sums")


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"by": "magic"}, "by"),
        ({"by": "least_squares", "kappa": 0.5}, "kappa"),
        ({"by": "least_squares", "method": "vtd"}, "method"),
        ({"by": "least_squares", "bootstrap_samples": 10}, "bootstrap_samples"),
        ({"by": "least_squares", "level": 90}, "level"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, field):
    with pytest.raises(rv.InputError) as error:
        rv.estimate(lake(100), gamma=0.9, **settings)
    assert error.value.field == field


def line(rng, episodes, noise):
    """Observations on a line move right by 0.1 until 1; every reward is −1 plus noise."""
    rows = []
    for x in rng.random(episodes):
        here = float(x)
        while here < 1:
            rows.append((here, here + 0.1, -1 + noise * rng.normal(), here + 0.1 >= 1))
            here += 0.1
    x, y, reward, ended = (np.array(column) for column in zip(*rows, strict=True))
    return {"x": x, "next_x": y, "reward": reward, "terminated": ended}


def test_observations_are_answered_with_features_and_neighbours():
    """On a line of 0.1 a step the return from 0.05 is −10 with a std of √10 × 0.5.

    In 40 logs the value was −9.8 ± 0.2 and the std 0.97 ± 0.09 times the truth: the thresholds are
    5 standard deviations, and would notice a std that is 1.5 times too large.
    """
    rng = np.random.default_rng(fresh_seed())
    log = from_table(line(rng, 400, 0.5), state=["x"], next_state=["next_x"])
    found = rv.estimate(log, gamma=1.0, by="least_squares", features="fourier")
    assert found.value([0.05]) == pytest.approx(-10.0, abs=1.2)
    assert found.std([0.05]) == pytest.approx(10**0.5 * 0.5, rel=0.46)
    low, high = found.interval([0.05])
    assert low < found.value([0.05]) < high
    assert np.isnan(found.value([50.0]))
    assert "approximate" in found.summary()


def test_a_spread_with_features_is_small_where_nothing_varies():
    rng = np.random.default_rng(fresh_seed())
    log = from_table(line(rng, 300, 0.0), state=["x"], next_state=["next_x"])
    found = rv.estimate(log, gamma=1.0, by="least_squares", features="tiles")
    assert found.std([0.35]) < 0.35  # at most 0.03 in 40 logs


def test_what_least_squares_with_features_cannot_do_is_refused():
    log = from_table(line(np.random.default_rng(0), 30, 0.1), state=["x"], next_state=["next_x"])
    with pytest.raises(rv.InputError, match='λ = 1; take by="td"'):
        rv.estimate(log, gamma=1.0, lam=0.5, by="least_squares")


def test_bad_rows_are_refused_or_left_out():
    estimator = TabularEstimator(rv.Direct(alpha=0.0, gamma=0.9, lam=1.0), 2)
    chunk = {"state": np.array([0, 0, 5]), "next_state": np.array([1, 1, 1]),
             "reward": np.array([1.0, np.nan, 1.0])}  # fmt: skip
    with pytest.raises(rv.InputError, match=r"state\[2\] = 5"):
        estimator.update_many(chunk)
    assert estimator.steps == 0
    estimator.update_many(chunk, on_error="skip")
    assert (estimator.steps, estimator.rejected) == (1, 2)


def test_off_policy_logs_have_no_return_intervals():
    log = walk(np.random.default_rng(0), 500)
    log["rho"] = np.where(np.arange(500) % 2, 0.5, 1.5)
    found = rv.estimate(from_table(log, rho="rho", states=7), gamma=0.9, by="least_squares")
    with pytest.raises(rv.InputError, match="returns of the target are not observed"):
        found.return_interval()


def test_return_intervals_hold_for_fresh_returns():
    """A walk with γ = 1 and noisy rewards: 90% of fresh returns from the middle lie inside.

    The noise matters: the lengths alone are even numbers from 4 on, of which the shortest is 13%,
    so that no interval can leave out 5% below, and 96% lie inside. Over 12 logs the mean share has
    a standard error of 0.5%; the threshold is 6 of them.
    """
    rng = np.random.default_rng(fresh_seed())
    shares = []
    for _ in range(12):
        log = from_table(walk(rng, noise=1.0), states=7)
        found = rv.estimate(log, gamma=1.0, by="least_squares")
        low, high = found.return_interval([3])
        fresh = walk(rng, 20_000, noise=1.0)
        ends = np.flatnonzero(fresh["terminated"])
        returns = np.diff(np.cumsum(fresh["reward"])[ends])
        shares.append(np.mean((low[0] <= returns) & (returns <= high[0])))
    assert abs(np.mean(shares) - 0.9) < 0.03
    assert found.return_interval([3], 0.95, above=True)[0] < found.value(3)


def test_an_endless_episode_is_split_without_cutting_returns_off():
    """It is cut into parts every 10/(1 − γ) steps; no return begins shortly before a cut."""
    rng = np.random.default_rng(0)
    state = rng.integers(0, 3, 20_001)
    log = {"state": state[:-1], "next_state": state[1:], "reward": rng.normal(size=20_000)}
    found = rv.estimate(from_table(log, terminated=False), gamma=0.9).estimator
    assert found.calibration.cut_off < 0.01
    assert found.calibration.scores.size > 150
    assert found.return_interval_note() == ""


def test_where_returns_of_a_state_are_many_its_interval_is_theirs():
    """Two states, one all or nothing, one certain: each has its own interval, pooled ones not."""
    rng = np.random.default_rng(0)
    state = rng.integers(0, 2, 3_000)
    reward = np.where(state == 0, 10.0 * rng.integers(0, 2, 3_000), 5.0)
    log = from_table({"state": state, "reward": reward, "terminated": np.ones(3_000, bool)})
    low, high = rv.estimate(log, gamma=0.9).return_interval([0, 1])
    assert low.tolist() == [0.0, 5.0]
    assert high.tolist() == [10.0, 5.0]


def test_td_has_no_return_intervals():
    found = rv.estimate(lake(500), gamma=0.9, by="td")
    with pytest.raises(rv.InputError, match='need by="least_squares"'):
        found.return_interval()


def test_the_command_line_takes_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["estimate", "gymnasium:FrozenLake-v1", "--gamma", "0.9", "--steps", "3000"]
    words += ["--by", "least_squares", "--formats", "none"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert "least squares" in done.stdout
    more = ["estimate", "gymnasium:FrozenLake-v1", "--steps", "1000", "--out", "b"]
    more += ["--resume", "estimate/estimator.safetensors", "--formats", "none"]
    done = CliRunner().invoke(main, more)
    assert done.exit_code == 0, done.output
    assert "4,000 transitions" in done.stdout


def test_a_state_that_is_asked_for_has_an_interval_however_many_there_are():
    """2,600 states on a ring, half of them visited more often: the others have none at first."""
    rng = np.random.default_rng(0)
    n = 2_600
    state = np.tile(np.concatenate([np.arange(n), np.arange(n // 2)]), 12)
    found = TabularEstimator(rv.Direct(alpha=0.0, gamma=0.5, lam=1.0), n)
    found.update_many({"state": state, "next_state": (state + 1) % n,
                       "reward": rng.normal(size=state.size)})  # fmt: skip
    rare = n - 7
    everything = found.interval()
    assert np.isnan(everything[0][rare])
    assert np.isfinite(everything[0]).sum() == 512
    low, high = found.interval(rare)
    assert low < found.value(rare) < high
    assert found.interval(rare, "std")[0] < found.std(rare) < found.interval(rare, "std")[1]
    again = least_squares(_whole(found), n, at=np.array([rare]))
    assert_allclose([low, high], [x[rare] for x in again.value_interval(0.9)])
    assert np.isfinite(found.interval()[0]).sum() == 513


def _whole(found):
    sums = TransitionSums()
    for part in found.sums:
        sums.merge(part)
    return sums


def test_a_log_where_some_discounts_are_one_and_nothing_ends_is_split():
    """γ is 1 on half of the steps: the endless episode is cut, and one part in three calibrates."""
    rng = np.random.default_rng(1)
    n = 4_000
    state = np.arange(n) % 2
    found = TabularEstimator(rv.Direct(alpha=0.0, gamma=0.9, lam=1.0), 2)
    found.update_many({"state": state, "next_state": 1 - state, "reward": rng.normal(size=n),
                       "gamma": np.where(state == 0, 1.0, 0.5)})  # fmt: skip
    parts = [len(sums) for sums in found.sums]
    assert min(parts) > 0
    low, high = found.return_interval([0, 1])
    assert (low < high).all()


def test_what_is_left_of_a_return_varies_too():
    """Rewards of ±1 with γ = ½: returns fill [−2, 2]; closed ones alone would have gaps.

    A return is closed after five steps: 1/16 of its spread is open. New returns are uniform, so the
    90% interval is ±1.8; the mean of 40 ends was ±1.80 ± 0.02 (±1.77 without the rest).
    """
    rng = np.random.default_rng(2)
    ends = []
    for _ in range(10):
        found = TabularEstimator(rv.Direct(alpha=0.0, gamma=0.5, lam=1.0), 1)
        zero = np.zeros(6_000, dtype=int)
        found.update_many(
            {"state": zero, "next_state": zero, "reward": rng.choice([-1.0, 1.0], 6_000)}
        )
        low, high = found.return_interval([0])
        ends += [-low[0], high[0]]
        total, _ = found._completed(found.placed)
        assert len(np.unique(total.round(9))) > 60  # of 32 sums of five rewards
    assert abs(np.mean(ends) - 1.8) < 0.1


def test_what_is_left_of_a_return_counts_once():
    """A reward of 1 for ever, with γ = 0.9: every return is 10, wherever it was closed."""
    zero = np.zeros(2_000, dtype=int)
    found = TabularEstimator(rv.Direct(alpha=0.0, gamma=0.9, lam=1.0), 1)
    found.update_many({"state": zero, "next_state": zero, "reward": np.ones(2_000)})
    for returns in (found.returns, found.placed):
        assert (returns.rest != 0).any()
        assert_allclose(found._completed(returns)[0], 10.0, rtol=1e-6)


STATES, POINTS = np.arange(50) % 16, np.linspace(0.0, 1.0, 50)[:, None]
WRONG = [
    {"stream": np.full(50, -3_000_000)}, {"stream": np.full(50, 10**9)},
    {"stream": np.full(50, 0.5)}, {"stream": np.zeros(49, int)}, {"stream": ["a"] * 50},
    {"state": STATES[:49]}, {"next_state": STATES[:2]}, {"terminated": np.zeros(49, bool)},
    {"truncated": np.zeros((50, 2), bool)}, {"reward": np.zeros((50, 2))}, {"reward": 1.0},
    {"reward": np.zeros(500)}, {"gamma": np.full(3, 0.9)}, {"lam": np.ones(2)},
    {"rho": np.ones(2)}, {"state": ["a"] * 50}, {"state": [[0], [1, 2]]},
]  # fmt: skip


@pytest.mark.parametrize("state", [STATES, POINTS], ids=["states", "points"])
def test_columns_are_checked_before_compiled_code_reads_them(state):
    learner = rv.Direct(alpha=0.0, gamma=0.9, lam=1.0)
    basis = rv.features.Polynomial([0.0], [1.0])
    found = FeatureEstimator(learner, basis) if state.ndim > 1 else TabularEstimator(learner, 16)
    chunk = {"state": state, "next_state": state, "reward": np.ones(50)}
    found.update_many(chunk)
    for wrong in WRONG:
        with pytest.raises(rv.InputError):
            found.update_many(chunk | wrong)
    for name in chunk:
        with pytest.raises(rv.InputError, match=f"{name} = missing"):
            found.update_many({key: each for key, each in chunk.items() if key != name})
    assert (found.steps, found.rejected) == (50, 0)
    found.update_many(chunk)
    assert found.steps == 100
