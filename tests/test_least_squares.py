"""Least squares from the sums of a log: exact on the empirical MDP, honest where it knows nothing.

The oracle works row by row on dense matrices, as the formulas are written, and shares no code with
the sums.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import t as student

import retvar as rv
from retvar.estimation import inverse
from retvar.estimation.feature_estimator import FeatureEstimator
from retvar.estimation.least_squares import Solver, least_squares
from retvar.estimation.tabular import TabularEstimator
from retvar.estimation.transition_sums import TransitionSums
from retvar.experience.stream import LARGEST_RATIO, LARGEST_REWARD
from tests.oracle import fresh_seed

# ------------------------------------------------------------------------ logs


def random_log(rng, states=6, rows=400, weighted=False, ends=0.1):
    """Transitions of no particular MDP: every column is drawn by itself."""
    log = {
        "state": rng.integers(0, states, rows),
        "next_state": rng.integers(0, states, rows),
        "reward": np.where(rng.random(rows) < 0.3, 1.0, rng.normal(size=rows)),
        "terminated": rng.random(rows) < ends,
        "gamma": rng.choice([0.9, 0.5], rows),
        "lam": rng.choice([1.0, 0.8], rows),
    }
    if weighted:
        log["rho"] = rng.choice([0.0, 0.5, 1.0, 1.8], rows)
    return log


def summed(log, **settings):
    sums = TransitionSums()
    sums.add(**log, **settings)
    return sums


# ------------------------------------------------------------------------ the oracle


def by_rows(log, n):
    """Steps 1 to 8, row by row; a state visited once takes its noise from the others.

    Its squared error is taken for that of a normal error of their variance σ², which varies by 2σ⁴.
    """
    S, N, R, ended = (log[name] for name in ("state", "next_state", "reward", "terminated"))
    rho = log.get("rho", np.ones(R.size))
    g = np.where(ended, 0.0, log["gamma"])
    length = g * log["lam"]
    W, visits = np.bincount(S, rho, n), np.bincount(S, minlength=n)
    kish = np.minimum(W**2 / np.bincount(S, rho**2, n), W)
    alone = visits < 2
    f = np.where(alone, 1.0, kish / np.where(alone, 1.0, kish - 1))

    def matrix(x):
        return np.bincount(S * n + N, x, n * n).reshape(n, n) / W[:, None]

    M = np.linalg.inv(np.eye(n) - matrix(rho * g))
    J = M @ (np.bincount(S, rho * R, n) / W)
    delta = R + g * J[N] - J[S]
    xi = rho * delta / W[S]
    raw = f * np.bincount(S, rho * delta**2, n) / W
    pool = np.average(raw, weights=np.where(alone, 0, visits))
    raw = np.where(alone, pool, raw)
    cov = (M * np.where(alone, pool, f * np.bincount(S, xi**2, n))) @ M.T
    P = matrix(rho * g)
    bias = matrix(rho * g**2) @ np.diag(cov) - np.diag(P @ cov @ P.T)
    M2 = np.linalg.inv(np.eye(n) - matrix(rho * length**2))
    V = M2 @ np.maximum(raw - bias, raw / 2)
    zeta = rho * (f[S] * delta**2 + length**2 * V[N] - V[S]) / W[S]
    zeta = zeta - np.where(alone, 0.0, np.bincount(S, zeta, n) / visits)[S]
    K = M2 @ matrix(2 * rho * delta * g) @ M
    for_J = M[:, S] * xi
    for_V = M2[:, S] * zeta + K[:, S] * xi
    found = {"value": J, "variance": V}
    shared = {"value": M**2 * pool, "variance": M2**2 * 2 * pool**2 + K**2 * pool}
    for name, each in (("value", for_J), ("variance", for_V)):
        own = f**2 * np.array([np.bincount(S, row**2, n) for row in each])
        by_state = np.where(alone, shared[name], own)
        total = by_state.sum(1)
        spread = total**2 / (by_state**2 / np.where(alone, 1.0, kish - 1)).sum(1)
        found[f"{name}_error"] = np.sqrt(total)
        found[f"{name}_events"] = total**2 / (each**4).sum(1)
        found[f"{name}_df"] = np.minimum(spread, 2 * found[f"{name}_events"])
    return found


@pytest.mark.parametrize("weighted", [False, True], ids=["on-policy", "off-policy"])
def test_sums_give_what_the_rows_give(weighted):
    """Every formula is a polynomial of the sums: the answer is that of the rows themselves."""
    rng = np.random.default_rng(fresh_seed())
    for _ in range(20):
        log = random_log(rng, weighted=weighted)
        found, oracle = least_squares(summed(log), 6), by_rows(log, 6)
        for name, column in oracle.items():
            assert_allclose(getattr(found, name), column, rtol=1e-8, err_msg=name)


def test_a_state_visited_once_takes_its_noise_from_the_others():
    rng = np.random.default_rng(fresh_seed())
    for _ in range(20):
        log = random_log(rng)
        log["state"] = np.append(log["state"][:-1] % 5, 5)
        log["next_state"][-1], log["terminated"][-1] = 0, False
        found, oracle = least_squares(summed(log), 6), by_rows(log, 6)
        for name, column in oracle.items():
            assert_allclose(getattr(found, name)[:5], column[:5], rtol=1e-8, err_msg=name)


def rewards_of_one_state(reward):
    """Episodes of one step."""
    sums, zero = TransitionSums(), np.zeros(len(reward), dtype=int)
    sums.add(zero, zero, reward, gamma=0.9, lam=1.0, terminated=True)
    return least_squares(sums, 1)


def test_a_mean_of_returns_of_one_size_has_a_degree_of_freedom_less_than_returns():
    assert_allclose(rewards_of_one_state(np.tile([-1.0, 1.0], 10)).value_df, 19.0)


def test_one_event_among_many_returns_has_two_degrees_of_freedom():
    """Its fourth power is nearly all there is of the sum: Student's law is that of 1 to 2."""
    (df,) = rewards_of_one_state(np.append(np.zeros(9_999), 1.0)).value_df
    assert_allclose(df, 2.0, rtol=1e-3)


def test_a_state_that_was_never_left_is_worth_as_much_as_the_others():
    """Half of the steps earn 1 and end, half earn 1 and lead there: J = 1 + ½·½·J."""
    sums, n = TransitionSums(), 20
    sums.add(np.zeros(2 * n, int), np.repeat([0, 1], n), np.ones(2 * n), gamma=0.5, lam=1.0,
             terminated=np.repeat([True, False], n))  # fmt: skip
    assert_allclose(least_squares(sums, 2).value[0], 4 / 3)


def test_off_policy_return_is_that_of_weighted_rewards_and_discounts():
    rng = np.random.default_rng(fresh_seed())
    log = random_log(rng, weighted=True)
    rho = log.pop("rho")
    found = least_squares(summed(log, rho=rho, off_policy_return=True), 6)
    log["reward"], log["gamma"] = rho * log["reward"], rho * log["gamma"]
    found_directly = least_squares(summed(log), 6)
    assert_allclose(found.value, found_directly.value, rtol=1e-12)
    assert_allclose(found.variance, found_directly.variance, rtol=1e-12)


def test_the_correction_takes_half_of_the_squared_errors_at_most():
    """Two visits each, one of which leads on to the next state: the oracle's raw/2 binds."""
    rng = np.random.default_rng(fresh_seed())
    for _ in range(20):
        log = random_log(rng, states=6, rows=18) | {"state": np.arange(18) % 6}
        log["terminated"][:6] = True
        found, oracle = Solver(summed(log), 6)._problem.V, by_rows(log, 6)
        assert_allclose(found, oracle["variance"], rtol=1e-8, atol=1e-12)


def test_intervals_are_those_of_student_and_of_the_delta_method():
    """Of the value ± t·error; of log std, half the error of log variance."""
    rng = np.random.default_rng(fresh_seed())
    found = least_squares(summed(random_log(rng, rows=600)), 6)
    for level in (0.5, 0.9, 0.99):
        low, high = found.value_interval(level)
        expected = student.interval(level, found.value_df, found.value, found.value_error)
        assert_allclose((low, high), expected, rtol=1e-10)
        low, high = found.std_interval(level)
        expected = student.interval(
            level, found.variance_df, 0.0, found.variance_error / found.variance
        )
        assert_allclose(np.log([low**2, high**2] / found.variance), expected, rtol=1e-10)


def test_value_and_variance_are_those_of_the_empirical_mdp():
    """On-policy, without the two corrections for few visits, V solves the empirical MDP."""
    rng = np.random.default_rng(fresh_seed())
    log = random_log(rng, rows=50_000) | {"gamma": np.full(50_000, 0.9), "lam": np.ones(50_000)}
    sums = summed(log)
    edges = [
        (int(s), 0, int(s2) if g > 0 else "end", p, r, sd)
        for s, s2, g, p, r, sd in zip(
            sums.state, sums.next_state, sums.discount,
            sums.moment(1, 0) / np.bincount(sums.state, sums.moment(1, 0))[sums.state],
            sums.centre + sums.moment(1, 1) / sums.moment(1, 0),
            np.sqrt(np.maximum(sums.moment(1, 2) / sums.moment(1, 0)
                               - (sums.moment(1, 1) / sums.moment(1, 0)) ** 2, 0)),
            strict=True,
        )
    ]  # fmt: skip
    exact = rv.solve(rv.MDP.from_edges(edges, gamma=0.9, lam=1.0))
    found = least_squares(sums, 6)
    assert_allclose(found.value, exact.value, rtol=1e-10)
    assert_allclose(found.variance, exact.variance, rtol=3e-3)  # corrections of order 1/n


# ------------------------------------------------------------------------ sums


def test_pieces_of_a_log_add_up():
    """Any split, in any order, with ratios or without: the same answer to 1e-12."""
    rng = np.random.default_rng(fresh_seed())
    for weighted in (False, True):
        log = random_log(rng, rows=3_000, weighted=weighted)
        whole, pieces = summed(log), TransitionSums()
        for part in np.split(rng.permutation(3_000), np.sort(rng.integers(0, 3_000, 5))):
            pieces.merge(summed({name: column[part] for name, column in log.items()}))
        assert pieces.rows == whole.rows == 3_000
        for name in ("value", "variance", "value_error", "variance_error", "variance_events"):
            a, b = (getattr(least_squares(sums, 6), name) for sums in (pieces, whole))
            assert_allclose(a, b, rtol=1e-9 if "events" in name else 1e-11, err_msg=name)


def test_ratios_may_come_late():
    """A log whose first chunk has ratios of 1 only is the same as one chunk."""
    rng = np.random.default_rng(fresh_seed())
    log = random_log(rng, weighted=True)
    log["rho"][:100] = 1.0
    whole, parts = summed(log), TransitionSums()
    parts.add(**{name: x[:100] for name, x in log.items() if name != "rho"})
    parts.add(**{name: x[100:] for name, x in log.items()})
    assert_allclose(least_squares(parts, 6).variance, least_squares(whole, 6).variance, rtol=1e-12)


def test_transitions_without_ratios_may_come_after_some_with_ratios():
    """They count as ratios of 1, also where they are added as a part of a chunk."""
    rng = np.random.default_rng(fresh_seed())
    log = random_log(rng, weighted=True)
    log["rho"][200:] = 1.0
    whole, parts = summed(log), summed({name: x[:200] for name, x in log.items()})
    later = {name: x[200:] for name, x in log.items()}
    discount = np.where(later["terminated"], 0.0, later["gamma"])
    follows = np.where(later["terminated"], later["state"], later["next_state"])
    parts.add_part(later["state"], follows, later["reward"], discount, discount * later["lam"],
                   np.zeros(200, dtype=np.int64), 0)  # fmt: skip
    for a in range(5):
        for b in range(2 * a + 1):
            assert_allclose(parts.moment(a, b), whole.moment(a, b), rtol=1e-12)


def test_sums_resume_to_the_bit():
    rng = np.random.default_rng(fresh_seed())
    log = random_log(rng, weighted=True)
    halves = [{name: x[part] for name, x in log.items()} for part in (slice(200), slice(200, None))]
    saved = TransitionSums.restored(summed(halves[0]).arrays(), states=6)
    going_on = summed(halves[0])
    for sums in (saved, going_on):
        sums.add(**halves[1])
    assert_array_equal(least_squares(saved, 6).variance, least_squares(going_on, 6).variance)


def test_many_keys_make_the_table_grow():
    rng = np.random.default_rng(fresh_seed())
    rows = 20_000
    state, follows = rng.integers(0, 500, (2, rows))
    sums = TransitionSums()
    sums.add(state, follows, np.ones(rows), gamma=0.9, lam=1.0)
    pairs = np.unique(500 * state + follows)
    assert_array_equal(np.sort(500 * sums.state + sums.next_state), pairs)
    assert sums.moment(0, 0).sum() == rows


# ------------------------------------------------------------------------ equivariance


def test_rewards_scale_and_shift():
    """Rewards × c: value × c, variance × c², same relative errors; episodes of one length shift."""
    rng = np.random.default_rng(fresh_seed())
    log = random_log(rng)
    found = least_squares(summed(log), 6)
    scaled = least_squares(summed(log | {"reward": -3.0 * log["reward"]}), 6)
    assert_allclose(scaled.value, -3.0 * found.value, rtol=1e-10)
    assert_allclose(scaled.variance, 9.0 * found.variance, rtol=1e-10)
    assert_allclose(scaled.variance_error, 9.0 * found.variance_error, rtol=1e-9)
    assert_allclose(scaled.variance_events, found.variance_events, rtol=1e-8)


def test_far_from_zero_rewards_lose_no_digits():
    """A constant of 10⁶ in every reward leaves the variance of a bandit as it was."""
    rng = np.random.default_rng(fresh_seed())
    reward, zero = rng.normal(size=2_000), np.zeros(2_000, dtype=int)
    near, far = TransitionSums(), TransitionSums()
    near.add(zero, zero, reward, gamma=0.9, lam=1.0, terminated=True)
    far.add(zero, zero, reward + 1e6, gamma=0.9, lam=1.0, terminated=True)
    a, b = least_squares(near, 1), least_squares(far, 1)
    assert_allclose(b.variance, a.variance, rtol=1e-8)
    assert_allclose(b.variance_error, a.variance_error, rtol=1e-6)


@pytest.mark.parametrize("bandwidth", [1_000, 0])
def test_sparse_and_dense_agree(monkeypatch, bandwidth):
    """Above the dense size: the same values and standard errors; the bias is from probes.

    Standard errors come from sparse factors, or to five digits from BiCGSTAB.
    """
    rng = np.random.default_rng(fresh_seed())
    log = random_log(rng, states=40, rows=40_000)
    dense = least_squares(summed(log), 40)
    monkeypatch.setattr(inverse, "DENSE", 10)
    monkeypatch.setattr(inverse, "BANDWIDTH", bandwidth)
    sparse = least_squares(summed(log), 40, at=np.arange(40))
    assert sparse.probes
    assert not dense.probes
    assert_allclose(sparse.value, dense.value, rtol=1e-9)
    assert_allclose(sparse.value_error, dense.value_error, rtol=1e-9 if bandwidth else 1e-4)
    assert_allclose(sparse.std, dense.std, rtol=1e-3)
    assert_allclose(sparse.variance_error, dense.variance_error, rtol=1e-2)


# ------------------------------------------------------------------------ honesty


def one_by_one(*rows, gamma=1.0):
    sums = TransitionSums()
    for state, follows, reward, ended in rows:
        sums.add([state], [follows], [reward], gamma=gamma, lam=1.0, terminated=[ended])
    return sums


def test_a_state_visited_once_has_no_spread():
    found = least_squares(one_by_one((0, 0, 10.0, True)), 1)
    assert found.value[0] == 10.0
    assert np.isnan(found.std[0])
    assert np.isnan(found.value_interval(0.9)[0][0])
    assert found.note[0] == "one visit"


def test_never_left_and_never_visited_states_are_not_answered():
    found = least_squares(one_by_one((0, 1, 1.0, False), (0, 0, 2.0, True), gamma=0.9), 3)
    assert np.isnan(found.value[1:]).all()
    assert found.note[1:].tolist() == ["never left", "never visited"]


def test_no_end_seen_is_not_answered_and_the_rest_is():
    """State 1 only loops with γ = 1; state 0 may get there; state 2 ends."""
    rows = [(0, 1, 1.0, False), (0, 0, 0.0, True), (1, 1, 1.0, False), (2, 2, 5.0, True)]
    found = least_squares(one_by_one(*rows), 3)
    assert np.isnan(found.value[:2]).all()
    assert found.value[2] == 5.0
    assert found.note[:2].tolist() == ["no end was seen from here"] * 2


def test_nothing_varied_is_said():
    found = least_squares(one_by_one(*[(0, 0, 3.0, True)] * 30), 1)
    assert found.value[0] == 3.0
    assert found.std[0] == 0.0
    assert np.isnan(found.std_interval(0.9)[0][0])
    assert found.note[0] == "nothing varied"


def test_rare_events_are_marked():
    """200 visits, of which 3 had another reward: the spread rests on few events."""
    rows = [(0, 0, 100.0 if t < 3 else 0.0, True) for t in range(200)]
    assert least_squares(one_by_one(*rows), 1).note[0] == "rests on few events"


def test_an_infinite_variance_is_named_where_it_is():
    """Off-policy return with ratios of 2: (ργλ)² = 2·0.81 doubles in expectation; no number."""
    rng = np.random.default_rng(fresh_seed())
    rho = rng.choice([0.0, 2.0], 4_000)
    state = np.zeros(4_000, dtype=int)
    sums = TransitionSums()
    sums.add(state, state, rng.normal(size=4_000), gamma=0.9, lam=1.0, rho=rho,
             off_policy_return=True)  # fmt: skip
    sums.add(state + 1, state + 1, rng.normal(size=4_000), gamma=0.9, lam=1.0, terminated=True)
    found = least_squares(sums, 2)
    assert np.isnan(found.variance[0])
    assert np.isfinite(found.variance[1])
    assert found.note[0] == "the variance is infinite"
    assert np.isfinite(found.value[0])


def test_off_policy_answers_need_support_everywhere():
    """Where the target's action hardly occurs, and wherever that state is reached, no answer."""
    log = {
        "state": np.r_[np.zeros(100, int), np.ones(100, int)],
        "next_state": np.r_[np.ones(100, int), np.ones(100, int)],
        "reward": np.linspace(0, 1, 200),
        "terminated": np.r_[np.zeros(100, bool), np.ones(100, bool)],
        "rho": np.r_[np.ones(100), np.full(100, 0.02)],
    }
    found = least_squares(summed(log, gamma=0.9, lam=1.0), 2)
    assert np.isnan(found.value).all()
    assert found.note.tolist() == ["rests on states with too few effective visits"] * 2


def test_an_empty_log_is_refused():
    with pytest.raises(rv.InputError, match="nothing to estimate from"):
        least_squares(TransitionSums(), 3)


# ------------------------------------------------------------------------ large and small rewards


def estimator_of(kind, **columns):
    """A least-squares estimator that has seen 3,000 random transitions, some rewards replaced."""
    rng, n = np.random.default_rng(5), 3_000
    if kind == "observations":
        state, follows = rng.random((2, n, 1))
        own = rv.features.Polynomial([0.0], [1.0], degree=2)
        found = FeatureEstimator(rv.Direct(alpha=0.0, gamma=0.9, lam=1.0), own)
    else:
        state, follows = rng.integers(0, 4, (2, n))
        estimand = "off_policy_return" if kind == "off-policy return" else "target_return"
        found = TabularEstimator(
            rv.Direct(alpha=0.0, gamma=0.9, lam=1.0, estimand=estimand), states=4
        )
    reward, rho = rng.normal(1.0, 2.0, n).clip(-5, 5), rng.uniform(0.6, 1.4, n)
    chunk = {"state": state, "next_state": follows, "terminated": rng.random(n) < 0.2,
             "reward": columns.pop("scale", 1.0) * reward}  # fmt: skip
    found.update_many(chunk | ({"rho": rho} if "policy" in kind else {}) | columns)
    return found


KINDS = ["states", "target policy", "off-policy return", "observations"]


@pytest.mark.parametrize("scale", [2.0**77, 2.0**-60])
@pytest.mark.parametrize("kind", KINDS)
def test_rewards_in_other_units_give_the_answers_in_these_units(kind, scale, tmp_path):
    """The unit is a power of 2, so that nothing rounds otherwise; 5·2⁷⁷ is almost the limit."""
    assert 0.5 < 5 * 2.0**77 / LARGEST_REWARD < 1
    plain, scaled = estimator_of(kind), estimator_of(kind, scale=scale)
    scaled.save(tmp_path / "a.safetensors")
    states = [[0.2], [0.7]] if kind == "observations" else [0, 1, 2, 3]
    for found in (scaled, rv.load(tmp_path / "a.safetensors")):
        for what in ("value", "std"):
            expected = plain.predict(states, what)
            assert np.isfinite(expected).all()
            assert_allclose(found.predict(states, what) / scale, expected, rtol=1e-9)
            ends = (
                plain.interval(states=states, what=what),
                found.interval(states=states, what=what),
            )
            for own, other in zip(*ends, strict=True):
                assert_allclose(other / scale, own, rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reward", [1.01 * LARGEST_REWARD, -1e60, 1e160, -1e308, np.inf, np.nan])
def test_rewards_whose_powers_would_overflow_are_refused(kind, reward):
    found = estimator_of(kind)
    rewards = np.where(np.arange(3_000) == 7, reward, 1.0)
    with pytest.raises(rv.InputError, match=r"reward.*at most 1e\+24 in size"):
        estimator_of(kind, reward=rewards)
    chunk = {name: np.array([0.5]) for name in ("state", "next_state")} | {"reward": [reward]}
    if kind == "observations":
        chunk |= {name: np.array([[0.5]]) for name in ("state", "next_state")}
    found.update_many(chunk, on_error="skip")
    assert (found.steps, found.rejected) == (3_000, 1)


@pytest.mark.parametrize("kind", KINDS[1:3])
def test_ratios_up_to_the_limit_leave_finite_sums_and_larger_ones_are_refused(kind, tmp_path):
    ratios = np.where(np.arange(3_000) % 10 == 7, LARGEST_RATIO, 0.5)
    found = estimator_of(kind, rho=ratios, scale=2.0**77)
    assert all(np.isfinite(sums.moment(4, 8)).all() for sums in found.sums)
    found.save(tmp_path / "a.safetensors")
    assert rv.load(tmp_path / "a.safetensors").steps == 3_000
    with pytest.raises(rv.InputError, match=r"rho\[7\].*from 0 to 1e\+12"):
        estimator_of(kind, rho=1.01 * ratios)
