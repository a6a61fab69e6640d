"""The least-squares estimator for observations: files, memory, return intervals, self-check."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.testing import assert_array_equal

import retvar as rv
from retvar.cli import main
from retvar.estimation import transition_record
from retvar.estimation.feature_estimator import FeatureEstimator
from retvar.estimation.transition_record import TransitionRecord
from retvar.estimation.verdicts import DISAGREES
from retvar.experience import from_table
from tests.oracle import fresh_seed

TILES = rv.features.TileCoding([0.0], [1.0], tiles=8)
PLACES = np.array([[0.05], [0.35], [0.65], [0.95]])


def estimator(gamma=0.9, features=TILES):
    return FeatureEstimator(rv.Direct(alpha=0.0, gamma=gamma, lam=1.0), features)


def draws(rng, n, spread=1.0, length=1):
    """Episodes of `length` steps at random places in [0, 1]; a reward is 5x plus noise."""
    x = rng.random((n * length, 1))
    ended = np.arange(n * length) % length == length - 1
    return {
        "state": x,
        "next_state": np.concatenate([x[1:], x[:1]]),
        "reward": 5.0 * x[:, 0] + spread * rng.normal(size=n * length),
        "terminated": ended,
    }


def pieces(log, size):
    for start in range(0, len(log["reward"]), size):
        yield {name: column[start : start + size] for name, column in log.items()}


def add_all(estimator, chunks):
    for chunk in chunks:
        estimator.update_many(chunk)


def answers(estimator):
    return np.concatenate(
        [
            *(estimator.predict(PLACES, what) for what in ("value", "std")),
            *estimator.interval(states=PLACES),
            *estimator.interval(what="std", states=PLACES),
            *estimator.return_interval(PLACES),
            [estimator.calibration.cut_off],
        ]
    )


def test_a_saved_estimator_answers_and_continues_to_the_bit(tmp_path):
    log = draws(np.random.default_rng(0), 400, length=3)
    whole, half = estimator(), estimator()
    for k, chunk in enumerate(pieces(log, 250)):
        whole.update_many(chunk)
        half.update_many(chunk)
        if k == 2:
            before = answers(half)
            half.save(tmp_path / "a")
            half = FeatureEstimator.load(tmp_path / "a")
            assert_array_equal(answers(half), before)
    assert half.steps == whole.steps == 1_200
    assert_array_equal(answers(half), answers(whole))


def test_a_file_that_is_damaged_or_of_another_kind_is_refused(tmp_path):
    found = estimator()
    found.update_many(draws(np.random.default_rng(0), 50))
    found.save(tmp_path / "a")
    damaged = bytearray((tmp_path / "a").read_bytes())
    damaged[-1] ^= 1
    (tmp_path / "b").write_bytes(damaged)
    with pytest.raises(rv.InputError, match="damaged"):
        FeatureEstimator.load(tmp_path / "b")
    rv.Direct(alpha=0.1, gamma=0.9, lam=1.0).online(states=2).save(tmp_path / "c")
    with pytest.raises(rv.InputError, match="least squares with features"):
        FeatureEstimator.load(tmp_path / "c")


def test_how_transitions_are_recorded_does_not_matter(monkeypatch):
    log = draws(np.random.default_rng(1), 400, length=3)
    here = estimator()
    here.update_many(log)
    monkeypatch.setattr(transition_record, "LARGE", 4_000)
    monkeypatch.setattr(transition_record, "PIECE", 2_000)
    there = estimator()
    for chunk in pieces(log, 37):
        there.update_many(chunk)
    assert there._record.in_file
    assert not here._record.in_file
    assert_array_equal(answers(there), answers(here))


def test_a_record_is_read_by_several_at_once_and_in_order(monkeypatch):
    monkeypatch.setattr(transition_record, "LARGE", 100)
    monkeypatch.setattr(transition_record, "PIECE", 50)
    record = TransitionRecord()
    for k in range(30):
        record.append({"reward": np.full(3, float(k)), "stream": np.full(3, k)})
    for one, other in zip(record.chunks(), record.chunks(), strict=True):
        assert_array_equal(one["reward"], other["stream"])
    assert [int(chunk["stream"][0]) for chunk in record.chunks()] == list(range(30))
    assert len(record) == 90


def test_a_full_disk_keeps_what_is_known(monkeypatch):
    monkeypatch.setattr(transition_record, "LARGE", 4_000)
    chunks = list(pieces(draws(np.random.default_rng(2), 400), 50))
    found = estimator()
    add_all(found, chunks[:2])
    known = found.predict(PLACES)

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(np, "save", full)
        with pytest.raises(rv.InputError, match="No space left on device"):
            add_all(found, chunks[2:])
    done = found.steps // 50
    assert 2 <= done < len(chunks)
    add_all(found, chunks[done:])  # it goes on once there is room
    whole = estimator()
    add_all(whole, chunks)
    assert_array_equal(found.predict(PLACES), whole.predict(PLACES))
    assert not np.array_equal(known, whole.predict(PLACES))


@pytest.mark.parametrize("length", [1, 4])
def test_return_intervals_hold_nine_in_ten_new_returns(length):
    """Of visits at any step of an episode, which the observation does not tell.

    Over 60 seeds the shares were 0.90 ± 0.017: a false alarm in less than 1e-6.
    """
    rng = np.random.default_rng(fresh_seed())
    found = estimator()
    found.update_many(draws(rng, 1_500, length=length))
    fresh = draws(rng, 1_000, length=length)
    returns = fresh["reward"].reshape(-1, length)
    for k in range(length - 2, -1, -1):
        returns[:, k] += 0.9 * returns[:, k + 1]
    some = rng.choice(1_000 * length, 1_000, replace=False)
    returns, places = returns.ravel()[some], fresh["state"][some]
    low, high = found.return_interval(places)
    lower = found.return_interval(places, 0.9, above=True)
    assert abs(np.mean((low <= returns) & (returns <= high)) - 0.9) < 0.1
    assert abs(np.mean(returns >= lower) - 0.9) < 0.1


def test_too_few_or_cut_returns_are_named():
    found = estimator(gamma=0.99)
    found.update_many(draws(np.random.default_rng(3), 30))
    with pytest.raises(rv.InputError, match="needs 19 calibration returns; there are"):
        found.return_interval(PLACES)
    assert "none: 90% needs 19 calibration returns" in found.return_interval_note()
    log = draws(np.random.default_rng(3), 300, length=3)
    cut = log | {"truncated": log["terminated"], "terminated": np.zeros(900, dtype=bool)}
    found = rv.estimate(from_table(named(cut), state=["x"], next_state=["next_x"]), gamma=0.99,
                        by="least_squares")  # fmt: skip
    word = "doubtful: 100% of the calibration returns were cut off"
    assert word in found.data.attrs["return_intervals"]
    assert word in found.summary()
    assert "regions" in found.summary()


def named(log):
    columns = {"x": log["state"][:, 0], "next_x": log["next_state"][:, 0]}
    return columns | {name: log[name] for name in log if name not in ("state", "next_state")}


def test_the_self_check_notices_values_that_the_features_cannot_follow():
    """A straight line through a wave of height 10: returns are 7 times as far off as their std."""
    rng = np.random.default_rng(0)
    line = rv.features.Polynomial([0.0], [1.0], degree=1)
    straight, wave = draws(rng, 1_500), draws(rng, 1_500)
    wave["reward"] += 10.0 * np.sin(20.0 * wave["state"][:, 0])
    checked = [
        rv.estimate(from_table(named(log), state=["x"], next_state=["next_x"]), gamma=0.9,
                    features=line).self_check
        for log in (straight, wave)
    ]  # fmt: skip
    assert not checked[0].disagrees
    assert checked[1].std.kind == DISAGREES
    assert "features" in str(checked[1])


def test_bad_rows_break_the_episode_of_their_stream():
    log = draws(np.random.default_rng(4), 20, length=5)
    log["reward"][7] = np.nan
    with pytest.raises(rv.InputError, match="row = 7"):
        estimator().update_many(log)
    found = estimator()
    found.update_many(log, on_error="skip")
    assert (found.steps, found.rejected) == (99, 1)
    rows = next(found.chunks())
    assert rows["truncated"][6]
    assert rows["truncated"].sum() == 1


@pytest.mark.parametrize(
    ("column", "field"), [({"rho": np.full(10, 1.5)}, "rho"), ({"lam": np.full(10, 0.5)}, "lam")]
)
def test_off_policy_and_lambda_below_one_are_refused_before_anything_is_recorded(column, field):
    found = estimator()
    log = draws(np.random.default_rng(5), 1, length=10)
    with pytest.raises(rv.InputError, match='take by="td"') as error:
        found.update_many(log | column)
    assert error.value.field == field
    assert found.steps == 0


def test_the_command_line_saves_and_resumes(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    logs = [draws(np.random.default_rng(seed), 300, length=3) for seed in (6, 7)]
    for k, log in enumerate(logs):
        pq.write_table(pa.table(named(log)), tmp_path / f"{k}.parquet")
    columns = ["--state", "x", "--next-state", "next_x", "--formats", "none", "--json"]
    first = ["estimate", str(tmp_path / "0.parquet"), "--gamma", "0.9", "--by", "least_squares"]
    ran = CliRunner().invoke(main, [*first, *columns, "--out", str(tmp_path / "a")])
    assert ran.exit_code == 0, ran.output
    saved = tmp_path / "a" / "estimator.safetensors"
    second = ["estimate", str(tmp_path / "1.parquet"), "--resume", str(saved)]
    ran = CliRunner().invoke(main, [*second, *columns, "--out", str(tmp_path / "b")])
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.stdout)["transitions"] == 1_800
    both = FeatureEstimator.load(tmp_path / "b" / "estimator.safetensors")
    expected = FeatureEstimator.load(saved)
    for chunk in from_table(named(logs[1]), state=["x"], next_state=["next_x"]).chunks():
        expected.update_many(chunk)
    assert_array_equal(answers(both), answers(expected))
