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
from retvar.estimation import least_squares
from retvar.estimation.least_squares import Solver
from retvar.estimation.sums import Sums
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
    sums = Sums()
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
        found, oracle = Solver(summed(log), 6).solution(), by_rows(log, 6)
        for name, column in oracle.items():
            assert_allclose(getattr(found, name), column, rtol=1e-8, err_msg=name)


def test_a_state_visited_once_takes_its_noise_from_the_others():
    rng = np.random.default_rng(fresh_seed())
    for _ in range(20):
        log = random_log(rng)
        log["state"] = np.append(log["state"][:-1] % 5, 5)
        log["next_state"][-1], log["terminated"][-1] = 0, False
        found, oracle = Solver(summed(log), 6).solution(), by_rows(log, 6)
        for name, column in oracle.items():
            assert_allclose(getattr(found, name)[:5], column[:5], rtol=1e-8, err_msg=name)


def rewards_of_one_state(reward):
    """Episodes of one step."""
    sums, zero = Sums(), np.zeros(len(reward), dtype=int)
    sums.add(zero, zero, reward, gamma=0.9, lam=1.0, terminated=True)
    return Solver(sums, 1).solution()


def test_a_mean_of_returns_of_one_size_has_a_degree_of_freedom_less_than_returns():
    assert_allclose(rewards_of_one_state(np.tile([-1.0, 1.0], 10)).value_df, 19.0)


def test_one_event_among_many_returns_has_two_degrees_of_freedom():
    """Its fourth power is nearly all there is of the sum: Student's law is that of 1 to 2."""
    (df,) = rewards_of_one_state(np.append(np.zeros(9_999), 1.0)).value_df
    assert_allclose(df, 2.0, rtol=1e-3)


def test_a_state_that_was_never_left_is_worth_as_much_as_the_others():
    """Half of the steps earn 1 and end, half earn 1 and lead there: J = 1 + ½·½·J."""
    sums, n = Sums(), 20
    sums.add(np.zeros(2 * n, int), np.repeat([0, 1], n), np.ones(2 * n), gamma=0.5, lam=1.0,
             terminated=np.repeat([True, False], n))  # fmt: skip
    assert_allclose(Solver(sums, 2).solution().value[0], 4 / 3)


def test_the_correction_takes_half_of_the_squared_errors_at_most():
    """Two visits each, one of which leads on to the next state: the oracle's raw/2 binds."""
    rng = np.random.default_rng(fresh_seed())
    for _ in range(20):
        log = random_log(rng, states=6, rows=18) | {"state": np.arange(18) % 6}
        log["terminated"][:6] = True
        found, oracle = Solver(summed(log), 6).V, by_rows(log, 6)
        assert_allclose(found, oracle["variance"], rtol=1e-8, atol=1e-12)


def test_intervals_are_those_of_student_and_of_the_delta_method():
    """Of the value ± t·error; of log std, half the error of log variance."""
    rng = np.random.default_rng(fresh_seed())
    found = Solver(summed(random_log(rng, rows=600)), 6).solution()
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
    found = Solver(sums, 6).solution()
    assert_allclose(found.value, exact.value, rtol=1e-10)
    assert_allclose(found.variance, exact.variance, rtol=3e-3)  # corrections of order 1/n


# ------------------------------------------------------------------------ sums


def test_pieces_of_a_log_add_up():
    """Any split, in any order, with ratios or without: the same answer to 1e-12."""
    rng = np.random.default_rng(fresh_seed())
    for weighted in (False, True):
        log = random_log(rng, rows=3_000, weighted=weighted)
        whole, pieces = summed(log), Sums()
        for part in np.split(rng.permutation(3_000), np.sort(rng.integers(0, 3_000, 5))):
            pieces.merge(summed({name: column[part] for name, column in log.items()}))
        assert pieces.moment(0, 0).sum() == whole.moment(0, 0).sum() == 3_000
        for name in ("value", "variance", "value_error", "variance_error", "variance_events"):
            a, b = (getattr(Solver(sums, 6).solution(), name) for sums in (pieces, whole))
            assert_allclose(a, b, rtol=1e-9 if "events" in name else 1e-11, err_msg=name)


def test_sums_resume_to_the_bit():
    rng = np.random.default_rng(fresh_seed())
    log = random_log(rng, weighted=True)
    halves = [{name: x[part] for name, x in log.items()} for part in (slice(200), slice(200, None))]
    saved = Sums(**summed(halves[0]).arrays())
    going_on = summed(halves[0])
    for sums in (saved, going_on):
        sums.add(**halves[1])
    assert_array_equal(
        Solver(saved, 6).solution().variance, Solver(going_on, 6).solution().variance
    )


# ------------------------------------------------------------------------ equivariance


def test_rewards_scale_and_shift():
    """Rewards × c: value × c, variance × c², same relative errors; episodes of one length shift."""
    rng = np.random.default_rng(fresh_seed())
    log = random_log(rng)
    found = Solver(summed(log), 6).solution()
    scaled = Solver(summed(log | {"reward": -3.0 * log["reward"]}), 6).solution()
    assert_allclose(scaled.value, -3.0 * found.value, rtol=1e-10)
    assert_allclose(scaled.variance, 9.0 * found.variance, rtol=1e-10)
    assert_allclose(scaled.variance_error, 9.0 * found.variance_error, rtol=1e-9)
    assert_allclose(scaled.variance_events, found.variance_events, rtol=1e-8)


def test_far_from_zero_rewards_lose_no_digits():
    """A constant of 10⁶ in every reward leaves the variance of a bandit as it was."""
    rng = np.random.default_rng(fresh_seed())
    reward, zero = rng.normal(size=2_000), np.zeros(2_000, dtype=int)
    near, far = Sums(), Sums()
    near.add(zero, zero, reward, gamma=0.9, lam=1.0, terminated=True)
    far.add(zero, zero, reward + 1e6, gamma=0.9, lam=1.0, terminated=True)
    a, b = Solver(near, 1).solution(), Solver(far, 1).solution()
    assert_allclose(b.variance, a.variance, rtol=1e-8)
    assert_allclose(b.variance_error, a.variance_error, rtol=1e-6)


@pytest.mark.parametrize("bandwidth", [1_000, 0])
def test_sparse_and_dense_agree(monkeypatch, bandwidth):
    """Above the dense size: the same values and standard errors; the bias is from probes.

    Standard errors come from sparse factors, or to five digits from BiCGSTAB.
    """
    rng = np.random.default_rng(fresh_seed())
    log = random_log(rng, states=40, rows=40_000)
    dense = Solver(summed(log), 40).solution()
    monkeypatch.setattr(least_squares, "DENSE", 10)
    monkeypatch.setattr(least_squares, "BANDWIDTH", bandwidth)
    sparse = Solver(summed(log), 40).solution(np.arange(40))
    assert sparse.probes
    assert not dense.probes
    assert_allclose(sparse.value, dense.value, rtol=1e-9)
    assert_allclose(sparse.value_error, dense.value_error, rtol=1e-9 if bandwidth else 1e-4)
    assert_allclose(sparse.std, dense.std, rtol=1e-3)
    assert_allclose(sparse.variance_error, dense.variance_error, rtol=1e-2)


# ------------------------------------------------------------------------ honesty


NAN = np.nan
LOOP = [(0, 1, 1.0, False), (0, 0, 0.0, True), (1, 1, 1.0, False), (2, 2, 5.0, True)]
RARE = [(0, 0, 100.0 * (t < 3), True) for t in range(200)]
NOTED = [
    # rows (state, next state, reward, ended), γ; of each state: note, value, std
    ([(0, 0, 10.0, True)], 1.0, ["one visit"], [10.0], [NAN]),
    ([(0, 1, 1.0, False), (0, 0, 2.0, True)], 0.9,
     ["few visits", "never left", "never visited"], [1.5 / 0.55, NAN, NAN], [NAN] * 3),
    (LOOP, 1.0, ["no end was seen from here"] * 2 + ["one visit"], [NAN, NAN, 5.0], [NAN] * 3),
    ([(0, 0, 3.0, True)] * 30, 1.0, ["nothing varied"], [3.0], [0.0]),
    (RARE, 1.0, ["rests on few events"], [1.5], [12.185]),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "gamma", "notes", "value", "std"), NOTED)
def test_what_a_log_does_not_say_is_not_answered_and_a_note_says_why(
    rows, gamma, notes, value, std
):
    """Nor are there intervals, but where only few events were seen."""
    state, follows, reward, ended = (np.array(column) for column in zip(*rows, strict=True))
    sums = Sums()
    sums.add(state, follows, reward, gamma=gamma, lam=1.0, terminated=ended)
    found = Solver(sums, len(notes)).solution()
    assert found.note.tolist() == notes
    assert_allclose(found.value, value, rtol=1e-6)
    assert_allclose(found.std, std, rtol=1e-4)
    known = np.isfinite(found.std_interval(0.9)[0])
    assert known.tolist() == [note == "rests on few events" for note in notes]


def test_an_infinite_variance_is_named_where_it_is():
    """Off-policy return with ratios of 2: (ργλ)² = 2·0.81 doubles in expectation; no number."""
    rng = np.random.default_rng(fresh_seed())
    rho = rng.choice([0.0, 2.0], 4_000)
    state = np.zeros(4_000, dtype=int)
    sums = Sums()
    sums.add(state, state, rho * rng.normal(size=4_000), gamma=0.9 * rho, lam=1.0)
    sums.add(state + 1, state + 1, rng.normal(size=4_000), gamma=0.9, lam=1.0, terminated=True)
    found = Solver(sums, 2).solution()
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
    found = Solver(summed(log, gamma=0.9, lam=1.0), 2).solution()
    assert np.isnan(found.value).all()
    assert found.note.tolist() == ["rests on states with too few effective visits"] * 2


def test_an_empty_log_is_refused():
    with pytest.raises(rv.InputError, match="nothing to estimate from"):
        Solver(Sums(), 3).solution()
