"""A stack of value functions for observations, against exact answers and what must not leak."""

import os
import subprocess
import sys

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import retvar as rv
from retvar.estimation.bases import Folds, Linear, Returns, Waves
from retvar.estimation.episodes import EpisodeLog
from retvar.experience import from_table
from retvar.td.features import TileCoding
from tests.feature_worlds import cart_pole

GAMMA, STAYS, NOISE = 0.9, 0.7, 0.5
PLACES = np.linspace(0.1, 0.9, 9)[:, None]


def line(seed, n=6_000, target=0.5):
    """Anywhere on a line x, action 1 is rewarded by 2x; the next place is drawn anew."""
    rng = np.random.default_rng(seed)
    x, action, ended = rng.random(n), rng.random(n) < 0.5, rng.random(n) > STAYS
    after = np.append(x[1:], 0.5)
    reward = 2 * x * action + NOISE * rng.normal(size=n)
    log = {"x": x, "y": after, "reward": reward, "terminated": ended}
    if target != 0.5:
        log["rho"] = np.where(action, target, 1 - target) / 0.5
    return log


def fitted(log, **settings):
    named = {"state": ["x"], "next_state": ["y"], **({"rho": "rho"} if "rho" in log else {})}
    return rv.estimate(from_table(log, **named), gamma=GAMMA, **settings)


def truth(target=0.5, lam=1.0):
    """Value and std at the places: integrals over the line, by Gauss–Legendre."""
    nodes, weights = np.polynomial.legendre.leggauss(8)
    x, w = (nodes + 1) / 2, weights / 2
    own = lambda x: NOISE**2 + target * (1 - target) * (2 * x) ** 2  # noqa: E731
    mean = w @ (2 * target * x) / (1 - GAMMA * STAYS)
    J = 2 * target * x + GAMMA * STAYS * mean
    rest = GAMMA**2 * (STAYS * (w @ J**2) - (STAYS * mean) ** 2)  # of λ = 0
    share = GAMMA**2 * STAYS * lam**2
    V = (w @ own(x) + rest) / (1 - share)
    at = PLACES[:, 0]
    return 2 * target * at + GAMMA * STAYS * mean, np.sqrt(own(at) + rest + share * V)


@pytest.mark.parametrize(("target", "lam"), [(0.5, 1.0), (0.5, 0.4), (0.75, 1.0)])
def test_value_and_spread_are_those_of_the_target_policy_and_of_the_lambda_return(target, lam):
    value, std = truth(target, lam)
    logs = [fitted(line(seed, target=target), lam=lam) for seed in range(3)]
    held = []
    for found in logs:
        low, high = found.estimator.interval(states=PLACES)
        held.append(np.mean((low <= value) & (value <= high)))
        assert np.abs(np.log(found.std(PLACES) / std)).max() < 0.35
        assert np.abs(found.value(PLACES) - value).max() < 0.35
    assert np.mean(held) > 0.6


def test_policies_that_differ_too_much_are_refused_with_the_effective_sample_size():
    log, rng = line(0, 4_000), np.random.default_rng(0)
    log["rho"] = np.where(rng.random(4_000) < 0.05, 19.8, 0.0105)
    log["terminated"] = np.arange(4_000) % 200 == 199
    with pytest.raises(rv.InputError, match="effective sample size of"):
        fitted(log).value(PLACES)


@pytest.mark.parametrize("make", [Waves, Returns, lambda: Linear(TileCoding([0.0], [1.0]))])
def test_no_fit_knows_the_rewards_that_it_is_tested_with(make):
    log = line(1)
    columns = {"state": log["x"][:, None], "next_state": log["y"][:, None], **log}
    columns |= {"gamma": np.full(6_000, GAMMA), "truncated": np.zeros(6_000, bool)}
    predicted = []
    for change in (0.0, 5.0):
        moves = EpisodeLog.of(columns | {"reward": log["reward"]})
        folds = Folds(moves)
        reward = log["reward"] + change * (folds.fold == 2) * (np.arange(6_000) % 2)
        base, moves = make(), EpisodeLog.of(columns | {"reward": reward})
        folds = Folds(moves)
        base.fit(moves, folds)
        predicted.append(base.predict(PLACES))
    same = np.isclose(*predicted, rtol=1e-9).all(axis=1)
    assert same.tolist() == [False, False, True, False, False]


SCRIPT = """
from tests.test_observations import PLACES, fitted, line
found = fitted(line(3))
print(found.value(PLACES).tobytes().hex(), found.std(PLACES).tobytes().hex())
"""


def test_the_bits_do_not_depend_on_the_number_of_threads():
    names = "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS"
    runs = [
        subprocess.run([sys.executable, "-c", SCRIPT], env=os.environ | dict.fromkeys(names, k),
                       capture_output=True, text=True, check=True).stdout
        for k in ("1", "2")
    ]  # fmt: skip
    assert runs[0] == runs[1] != ""


def test_a_saved_fit_is_asked_later_without_the_log(tmp_path):
    found = fitted(line(4, 2_000))
    found.save(tmp_path / "fit.safetensors")
    again = rv.load(tmp_path / "fit.safetensors")
    assert_array_equal(again.value(PLACES), found.value(PLACES))
    assert_array_equal(again.std(PLACES), found.std(PLACES))


def test_it_says_what_it_cannot_know():
    noise = line(5, 3_000)
    noise["reward"] = np.random.default_rng(0).normal(size=3_000)
    noise["terminated"][:] = True
    assert "do not tell the return apart" in fitted(noise).summary()
    assert "do not tell" not in fitted(line(5, 3_000)).summary()
    few = line(6, 30)
    few["terminated"] = np.arange(30) % 5 == 4
    found = fitted(few)
    assert "fewer than ten episodes" in found.summary()
    assert np.isfinite(found.value([0.5]))
    assert np.isnan(found.interval([0.5])).all()
    assert np.isnan(found.value([9.0])) or np.isnan(found.std([9.0]))
    assert fitted(line(5)).at([9.0]).note.startswith("far from the data")


def test_before_a_fall_the_interval_holds_what_is_left():
    world, few = cart_pole(stochastic=True), 6  # steps
    log = world.log(30_000, 2)[0]
    kinds = {"state": "x", "next_state": "y"}
    named = {kind: [f"{letter}{j}" for j in range(4)] for kind, letter in kinds.items()}
    table = {name: log[name] for name in ("reward", "terminated", "truncated")}
    for kind, columns in named.items():
        table |= dict(zip(columns, log[kind].T, strict=True))
    found = rv.estimate(from_table(table, truncated="truncated", **named), gamma=0.99)
    fresh, inner = world.log(60_000, 52)
    near = (np.flatnonzero(fresh["terminated"])[:, None] - [0, 2, 4]).ravel()
    left = world.returns(inner[near], 200, 2).mean(axis=1)
    near, left = near[left < few], left[left < few]
    low, high = found.estimator.interval(states=fresh["state"][near])
    held = np.isnan(low) | ((low <= left + 1e-9) & (left <= high + 1e-9))
    assert held.mean() >= 0.9


def cut_short(n, steps, reward):
    """Episodes of so many steps that never end; where one goes next is drawn anew."""
    rng = np.random.default_rng(0)
    x = rng.random(n + 1)
    log = {"x": x[:-1], "y": x[1:], "reward": reward(rng, n), "terminated": np.zeros(n, bool)}
    log["truncated"] = np.arange(n) % steps == steps - 1
    given = {"state": ["x"], "next_state": ["y"], "truncated": "truncated"}
    return rv.estimate(from_table(log, **given), gamma=GAMMA)


@pytest.mark.parametrize("steps", [1, 3])
def test_return_intervals_hold_what_lies_beyond_the_cuts(steps):
    low, high = cut_short(3_000, steps, lambda rng, n: rng.normal(size=n)).return_interval([[0.5]])
    sigma = 1 / np.sqrt(1 - GAMMA**2)  # the return is normal around 0
    assert_allclose([low[0], high[0]], [-1.645 * sigma, 1.645 * sigma], atol=0.25 * sigma)


@pytest.mark.parametrize(("steps", "seen"), [(8, False), (40, True)])
def test_what_no_episode_has_seen_has_no_value(steps, seen):
    """A walk of some twenty steps to a prize of 10 begins at 0, and stops after so many steps."""
    rng, columns = np.random.default_rng(0), []
    for _ in range(400):
        x = np.cumsum(rng.uniform(0.5, 1.5, steps))
        last = min(int(np.searchsorted(x, 20.0)), steps - 1)
        ended = x[: last + 1] >= 20.0
        cut = ~ended & (np.arange(last + 1) == steps - 1)
        columns.append([np.append(0.0, x[:last]), x[: last + 1], 10.0 * ended, ended, cut])
    names = ("x", "y", "reward", "terminated", "truncated")
    log = dict(zip(names, np.concatenate(columns, axis=1), strict=True))
    log |= {name: log[name].astype(bool) for name in names[3:]}
    given = {"state": ["x"], "next_state": ["y"], "truncated": "truncated"}
    found = rv.estimate(from_table(log, **given), gamma=GAMMA)
    place = found.estimator.spread([[6.0]])
    assert np.isfinite(place.value[0]) == seen
    assert bool(place.note[0]) != seen
    if seen:  # 14 is passed after some 14 steps
        assert_allclose(place.value[0], 10 * GAMMA**13.5, rtol=0.1)


def test_where_all_returns_are_the_same_nothing_is_said_to_vary():
    found = cut_short(2_000, 200, lambda rng, n: np.ones(n))
    assert found.value([0.5]) == pytest.approx(1 / (1 - GAMMA), rel=1e-3)
    assert found.std([0.5]) < 1e-3
    assert "roll out" not in found.summary()


def test_between_ten_and_twenty_episodes_intervals_have_a_width():
    few = line(7, 60)
    few["terminated"] = np.arange(60) % 4 == 3
    low, high = fitted(few).interval([0.5])
    assert high - low > 0.1


def test_what_cannot_be_fitted_is_refused_by_name():
    endless = line(7, 500)
    endless["terminated"][:] = False
    endless = from_table(endless, state=["x"], next_state=["y"])
    with pytest.raises(rv.ConvergenceError):
        rv.estimate(endless, gamma=1.0)
    with pytest.raises(rv.InputError) as caught:
        fitted(line(7, 500), features=[])
    assert caught.value.field == "features"


class Straight:
    """A base of a user: a line through the returns."""

    def fit(self, moves, folds):
        self.lines = [
            np.polyfit(moves.state[rows & folds.whole, 0], folds.returns[rows & folds.whole], 1)
            for rows in folds.others()
        ]

    def predict(self, points):
        return np.array([np.polyval(each, points[:, 0]) for each in self.lines])


def test_a_base_of_ones_own_takes_part_and_is_preferred_where_it_is_right():
    found = fitted(line(8), features=["tiles", "neighbours", Straight()])
    weights = found.estimator.solution.weights
    assert weights.min() >= 0
    assert weights.sum() == pytest.approx(1.0)
    assert weights[2] > 0.5
    assert "Straight" in found.summary()
    with pytest.raises(rv.InputError) as caught:
        fitted(line(8), features=["tiles", "wavelets"])
    assert caught.value.field == "features"


def test_cutting_episodes_off_does_not_bias_the_value():
    """1 a step until an end that comes with chance .1: cut after 12 steps, or anywhere.

    To use returns only where little is missing would leave the episodes that ended early.
    """
    rng, gamma, p = np.random.default_rng(3), 0.97, 0.1
    rows = 8_000
    over = rng.random(rows) < p
    step = np.zeros(rows, dtype=int)
    for t in range(1, rows):
        step[t] = 0 if over[t - 1] or step[t - 1] == 11 else step[t - 1] + 1
    for cut in (step == 11, rng.random(rows) < 0.06):
        x = rng.random((rows + 1, 2))
        log = rv.experience.from_table(
            {"state_0": x[:-1, 0], "state_1": x[:-1, 1], "next_state_0": x[1:, 0],
             "next_state_1": x[1:, 1], "reward": np.ones(rows), "terminated": over,
             "truncated": cut & ~over}
        )  # fmt: skip
        value = rv.estimate(log, gamma=gamma).value(rng.random((40, 2)))
        assert_allclose(value.mean(), 1 / (1 - gamma * (1 - p)), atol=1.0)  # 5 std
