"""Values with features by least squares: against plain linear algebra, and what must not matter."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from retvar.errors import InputError
from retvar.estimation import episode_log, feature_values
from retvar.estimation.episode_log import read_episodes
from retvar.estimation.feature_values import Design, Weights
from retvar.features import Fourier, TileCoding, Vector

GAMMA = 0.9
FINE = 1e-11


def walk_log(steps, seed, states=5):
    """A random walk on a ring of one-hot states that ends now and then; some rows are cut."""
    rng = np.random.default_rng(seed)
    place = np.cumsum(rng.choice([-1, 1, 2], steps + 1)) % states
    terminated = rng.random(steps) < 0.05
    truncated = ~terminated & (rng.random(steps) < 0.05)
    hot = np.eye(states)[place]
    return {
        "state": hot[:-1],
        "next_state": hot[1:],
        "reward": place[:-1] + rng.normal(size=steps),
        "terminated": terminated,
        "truncated": truncated,
    }


def smooth_log(steps, seed):
    """A point that moves at random in a square, in episodes of any length."""
    rng = np.random.default_rng(seed)
    log = walk_log(steps, seed)
    after = rng.uniform(size=(steps, 2))
    state = np.concatenate([rng.uniform(size=(1, 2)), after[:-1]])
    reward = np.sin(3 * state[:, 0]) + rng.normal(size=steps)
    return log | {"state": state, "next_state": after, "reward": reward}


def rows_of(log, rows):
    return {name: column[rows] for name, column in log.items()}


def episodes_of(log):
    last = np.flatnonzero(log["terminated"] | log["truncated"])
    return np.split(np.arange(len(log["reward"])), last + 1)


def lstd_table(log, kappa):
    """LSTD(κ) in a table, with its matrix and traces."""
    width = log["state"].shape[1]
    A, b, trace = np.zeros((width, width)), np.zeros(width), np.zeros(width)
    for t in range(len(log["reward"])):
        trace = trace + log["state"][t]
        discount = 0.0 if log["terminated"][t] else GAMMA
        A += np.outer(trace, log["state"][t] - discount * log["next_state"][t])
        b += trace * log["reward"][t]
        trace = trace * GAMMA * kappa * (not (log["terminated"][t] or log["truncated"][t]))
    return np.linalg.solve(A, b)


@pytest.mark.parametrize("kappa", [0.0, 0.6, 0.97, 1.0])
def test_a_table_without_ridge_gives_the_fixed_point_of_lstd(kappa):
    log = walk_log(3_000, seed=1)
    found = feature_values.feature_values(
        log, Vector(5), gamma=GAMMA, kappa=kappa, ridge=0.0, tolerance=FINE
    )
    assert_allclose(found.value(np.eye(5)), lstd_table(log, kappa), rtol=1e-8)


@pytest.mark.parametrize("dense", [True, False])
def test_regression_is_ridge_with_scaled_features_and_a_free_intercept(dense, monkeypatch):
    if not dense:
        monkeypatch.setattr(feature_values, "MOST_DENSE", 0)
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(200, 4)), rng.normal(size=200) + 7.0
    found = Design(Vector(4), x).regress(y, ridge=3.0)
    scaled = x / np.sqrt((x**2).sum(axis=1).max())
    X = np.column_stack([scaled, np.ones(200)])
    w = np.linalg.solve(X.T @ X + np.diag([3.0, 3.0, 3.0, 3.0, 0.0]), X.T @ y)
    assert_allclose(Design(Vector(4), x).values(found), X @ w, rtol=1e-9)
    assert_allclose(found.intercept, w[-1], rtol=1e-9)


@pytest.mark.parametrize("features", [Fourier([0, 0], [1, 1], order=3), TileCoding([0, 0], [1, 1])])
def test_rows_held_and_rows_made_anew_agree(features, monkeypatch):
    x = np.random.default_rng(3).uniform(size=(500, 2))
    w = Weights(np.random.default_rng(4).normal(size=features.size), 0.5)
    found = []
    for share in (0.0, 2.0):  # of active features from which ΦᵀΦ is formed
        monkeypatch.setattr(feature_values, "DENSE", share)
        monkeypatch.setattr(feature_values, "BLOCK", 128)
        design = Design(features, x)
        found.append(
            [design.values(w), design.transposed(x[:, 0]), design.normal(w.feature), design.squares]
        )
    for a, b in zip(*found, strict=True):
        assert_allclose(a, b, rtol=1e-10, atol=1e-10)


def test_rows_with_different_numbers_of_entries_are_held(monkeypatch):
    monkeypatch.setattr(feature_values, "BLOCK", 16)
    monkeypatch.setattr(feature_values, "DENSE", 2.0)
    rng = np.random.default_rng(5)
    x = rng.normal(size=(100, 6)) * (np.arange(100)[:, None] // 20 + 1 > np.arange(6))
    x[:40] = x[:40] != 0  # ones at first, other numbers later
    w = Weights(rng.normal(size=6))
    assert_allclose(Design(Vector(6), x).values(w), x @ w.feature, atol=1e-12)


def test_the_largest_row_counts_wherever_it_is(monkeypatch):
    rng = np.random.default_rng(6)
    x, y = rng.normal(size=(200, 2)), rng.normal(size=200)
    x[0] *= 30.0
    whole = Design(Vector(2), x)
    monkeypatch.setattr(feature_values, "BLOCK", 64)
    cut = Design(Vector(2), x)
    assert_allclose(cut.largest_square, (x**2).sum(axis=1).max(), rtol=1e-12)
    assert_allclose(cut.regress(y, 1.0).feature, whole.regress(y, 1.0).feature, rtol=1e-8)


def test_a_reward_of_one_for_ever_is_worth_one_over_one_minus_gamma():
    x = np.random.default_rng(6).uniform(size=(1_001, 1))
    log = {"state": x[:-1], "next_state": x[1:], "reward": np.ones(1_000), "terminated": False}
    found = feature_values.feature_values(log, TileCoding([0], [1]), gamma=0.99)
    assert_allclose(found.value([[0.1], [0.9]]), 100.0, rtol=1e-9)
    assert_array_equal(found.error, 0.0)
    assert_array_equal(found.tail, 0.0)


def test_returns_are_completed_where_they_were_cut():
    log = rows_of(smooth_log(400, seed=7), slice(0, 400))
    found = feature_values.feature_values(log, TileCoding([0, 0], [1, 1]), gamma=GAMMA)
    value, after = found.value(log["state"]), found.value(log["next_state"])
    G = 0.0
    for t in range(399, -1, -1):
        if log["terminated"][t]:
            G = log["reward"][t]
        elif log["truncated"][t] or t == 399:
            G = log["reward"][t] + GAMMA * after[t]
        else:
            G = log["reward"][t] + GAMMA * G
        assert_allclose(found.error[t], G - value[t], atol=1e-9)


def test_tails_are_discounted_twice_and_end_with_the_episode():
    log = smooth_log(400, seed=8)
    found = feature_values.feature_values(log, TileCoding([0, 0], [1, 1]), gamma=GAMMA)
    ends = log["truncated"].copy()
    ends[-1] = not log["terminated"][-1]
    going = ~log["terminated"] & ~ends
    assert (found.tail >= 0).all()
    assert_array_equal(found.tail[log["terminated"]], 0.0)
    assert_allclose(found.tail[:-1][going[:-1]], GAMMA**2 * found.tail[1:][going[:-1]])


class Chunked:
    """A log in pieces."""

    def __init__(self, log, size):
        self.log, self.size, self.passes = log, size, 0

    def chunks(self):
        self.passes += 1
        for first in range(0, len(self.log["reward"]), self.size):
            yield rows_of(self.log, slice(first, first + self.size))


def test_chunks_streams_and_files_do_not_matter(monkeypatch):
    log = smooth_log(1_000, seed=9)
    log["truncated"][[499, 999]] = ~log["terminated"][[499, 999]]
    whole = read_episodes(log, gamma=GAMMA)
    mixed = np.argsort(np.arange(1_000) % 500, kind="stable")  # two streams, row by row
    log["stream"] = np.where(np.arange(1_000) < 500, "b", "a")
    monkeypatch.setattr(episode_log, "LARGE", 100)
    source = Chunked(rows_of(log, mixed), 77)
    apart = read_episodes(source, gamma=GAMMA)
    assert source.passes == 2
    assert apart.streams == 2
    assert apart.breaks == 0
    assert isinstance(apart.state, np.memmap)
    assert_array_equal(apart.segment, whole.segment)
    for name in ("state", "reward", "discount", "terminated", "cut", "end_state"):
        assert_array_equal(getattr(apart, name), getattr(whole, name))


def test_a_row_that_begins_elsewhere_cuts_the_episode():
    log = smooth_log(50, seed=10)
    log["terminated"][:], log["truncated"][:] = False, False
    gone = np.delete(np.arange(50), 20)
    read = read_episodes(rows_of(log, gone), gamma=GAMMA)
    assert read.breaks == 1
    assert np.flatnonzero(read.cut).tolist() == [19, 48]
    assert_array_equal(read.end_state, log["next_state"][[19, 49]])


def test_segments_split_long_episodes():
    log = smooth_log(100, seed=11)
    log["terminated"][:], log["truncated"][:] = False, False
    assert read_episodes(log, gamma=GAMMA).segment.tolist() == [t // 30 for t in range(100)]
    assert read_episodes(log, gamma=1.0).segments == 1


def test_the_order_of_episodes_does_not_matter():
    log = smooth_log(2_000, seed=12)
    log["truncated"][-1] = not log["terminated"][-1]
    parts = episodes_of(log)
    other = np.concatenate([parts[k] for k in np.random.default_rng(0).permutation(len(parts))])
    tiles = TileCoding([0, 0], [1, 1])
    found = [
        feature_values.feature_values(each, tiles, gamma=GAMMA, tolerance=FINE)
        for each in (log, rows_of(log, other))
    ]
    x = log["state"][:50]
    assert_allclose(found[0].value(x), found[1].value(x), rtol=1e-7, atol=1e-9)
    assert_allclose(found[0].error[other], found[1].error, atol=1e-8)


def test_values_scale_with_the_rewards():
    log = smooth_log(2_000, seed=13)
    tiles, x = TileCoding([0, 0], [1, 1]), log["state"][:50]
    one, many = (
        feature_values.feature_values(log | {"reward": c * log["reward"]}, tiles, gamma=GAMMA)
        for c in (1.0, 1e6)
    )
    assert one.iterations == many.iterations
    assert_allclose(many.value(x), 1e6 * one.value(x), rtol=1e-9)
    assert_allclose(many.tail, 1e12 * one.tail, rtol=1e-7)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"state": np.full((50, 2), np.nan)}, "state[0]"),
        ({"state": np.zeros(50)}, "state"),
        ({"reward": np.full(50, np.inf)}, "reward[0]"),
        ({"reward": np.zeros(49)}, "reward"),
        ({"reward": np.array(["x"] * 50)}, "reward"),
        ({"next_state": np.zeros((50, 3))}, "next_state"),
        ({"next_state": np.full((50, 2), np.inf)}, "next_state[0]"),
        ({"gamma": 1.5}, "gamma[0]"),
    ],
)
def test_bad_columns_are_named(change, field):
    log = smooth_log(50, seed=14)
    log["terminated"][:] = False
    with pytest.raises(InputError) as told:
        read_episodes(log | change, gamma=GAMMA)
    assert told.value.field == field


def test_what_is_missing_is_named():
    log = smooth_log(50, seed=15)
    with pytest.raises(InputError, match="must have a column reward"):
        read_episodes({k: v for k, v in log.items() if k != "reward"}, gamma=GAMMA)
    with pytest.raises(InputError, match="gamma"):
        read_episodes(log)
    with pytest.raises(InputError, match="nothing to estimate from"):
        read_episodes(Chunked(rows_of(log, slice(0, 0)), 10), gamma=GAMMA)


@pytest.mark.parametrize("setting", [{"kappa": 1.1}, {"ridge": -1.0}, {"tolerance": 0.0}])
def test_bad_settings_are_named(setting):
    with pytest.raises(InputError) as told:
        feature_values.feature_values(smooth_log(50, 16), Vector(2), gamma=GAMMA, **setting)
    assert told.value.field in setting


@pytest.mark.parametrize("change", ["more", "fewer", "other"])
def test_a_source_that_changes_between_passes_is_refused(change):
    class Changing(Chunked):
        def chunks(self):
            again = self.passes > 0
            yield from super().chunks()
            if change == "more" and again:
                yield rows_of(self.log, slice(0, 1))
            if change == "other" and again:
                yield rows_of(self.log | {"stream": np.ones(50)}, slice(0, 1))
            if change == "fewer" and not again:
                yield rows_of(self.log, slice(0, 1))

    with pytest.raises(InputError, match="the same rows"):
        read_episodes(Changing(smooth_log(50, 17), 20), gamma=GAMMA)
