"""Answers for single states: those of the estimate, NaN with a note, and roll-outs beside them."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.testing import assert_allclose, assert_array_equal

import retvar as rv
from retvar.cli import main
from retvar.experience import from_gymnasium, from_table
from retvar.support.errors import InputError


def lake(**settings):
    return rv.estimate(from_gymnasium("FrozenLake-v1", steps=5_000, seed=1), gamma=0.9, **settings)


@pytest.mark.parametrize("by", ["td", "least_squares"])
def test_an_answer_is_that_of_the_estimate(by):
    found = lake(by=by)
    for state in range(16):
        answer = found.at(state)
        if state in (5, 7, 11, 12, 15):  # holes and goal, where every episode ends
            assert math.isnan(answer.value.estimate)
            assert math.isnan(answer.std.low)
            assert answer.note == "never visited"
            continue
        assert answer.value == (found.value(state), *found.interval(state))
        assert answer.std == (found.std(state), *found.interval(state, "std"))
        assert answer.level == 0.9
        if by == "least_squares":
            low, high = found.return_interval([state])
            assert answer.return_interval == (low[0], high[0])
        else:
            assert math.isnan(answer.return_interval[0])
    assert found.at(14, level=0.5).value.low > found.at(14).value.low


def log(labels):
    rng = np.random.default_rng(0)
    state = rng.integers(len(labels), size=600)
    column = np.array(labels, dtype=object)[state]
    return {"state": column, "reward": rng.normal(size=600) + state, "terminated": np.ones(600)}


@pytest.mark.parametrize("by", ["td", "least_squares"])
def test_several_states_get_the_answers_that_each_of_them_gets(by):
    found = rv.estimate(from_table(log(["a10", "a2", "a1"])), gamma=0.9, by=by)
    names = ["a2", "a10", "a2", "a1"]
    for several in (names, np.array(names), tuple(names)):
        assert found.value(several).tolist() == [found.value(name) for name in names]
        assert found.std(several).tolist() == [found.std(name) for name in names]
        ends = np.transpose(found.interval(several, "std"))
        assert [tuple(pair) for pair in ends] == [found.interval(name, "std") for name in names]
    assert found.value([]).size == 0
    for wrong in (["a1", "snow"], np.zeros((2, 2), dtype=int), [0]):
        with pytest.raises(InputError):
            found.value(wrong)
    assert np.isnan(lake(by=by).value([5, 0])).tolist() == [True, False]  # 5 is a hole


@pytest.mark.parametrize("labels", [[2, 1, 0, 3], ["2", "1", "03"], [-1, 0, 1], [1.5, 0.0]])
def test_labels_name_states_in_every_question_also_after_saving(labels, tmp_path):
    rows = {"state": labels * 30, "reward": [10.0 * float(x) for x in labels] * 30}
    kept = from_table(rows | {"terminated": [1] * len(labels) * 30}, states="labels")
    found = rv.estimate(kept, gamma=1)
    found.save(tmp_path / "kept.safetensors")
    again = rv.load(tmp_path / "kept.safetensors")
    for label in labels:
        law = found.law()[label]
        asked = found.at(label).value[0], law.mean[0], found.law(label).mean[0], again.value(label)
        asked += *np.ravel(found.return_interval(label)), found.value([label])[0]
        assert_allclose([found.value(label), *asked], 10 * float(label))
        assert_array_equal(found.interval(label), again.interval(label))
    for ask in (found.value, found.at, found.law, again.value, found.attribution):
        with pytest.raises(InputError) as caught:
            ask(7)
        assert caught.value.field == "state"


def test_rows_of_observations_get_the_answers_that_each_of_them_gets():
    rng = np.random.default_rng(0)
    rows = {"x": rng.random(50), "y": rng.random(50), "reward": rng.random(50)}
    stream = from_table(rows | {"terminated": np.ones(50)}, state=["x", "y"])
    found = rv.estimate(stream, gamma=0.9, by="td", features=rv.features.Vector(2))
    several = np.stack([rows["x"], rows["y"]], axis=1)[:3]
    for given in (several, several.tolist(), [tuple(row) for row in several]):
        assert_allclose(found.value(given), [found.value(row) for row in several], rtol=1e-12)
        assert_allclose(
            found.interval(given), np.transpose([found.interval(row) for row in several])
        )
    with pytest.raises(InputError):
        found.value([[0.1, 0.2], [0.3]])


def test_returns_stay_within_those_that_were_seen():
    """CartPole's rewards are 1: no return lies beyond 1/(1 − γ)."""
    cart = from_gymnasium("CartPole-v1", lambda o: int(o[2] + o[3] > 0), steps=12_000, seed=1,
                          max_episode_steps=150)  # fmt: skip
    found = rv.estimate(cart, gamma=0.98)
    low, high = found.return_interval(np.concatenate([c["state"] for c in cart.chunks()])[:300])
    assert np.nanmin(low) >= 1.0
    assert np.nanmax(high) <= 50.0 * (1 + 1e-6)


def test_what_is_no_state_is_refused():
    found = lake()
    for state in (16, -1, 1.5, "x", None, True):
        with pytest.raises(InputError) as caught:
            found.at(state)
        assert caught.value.field == "state"


@pytest.mark.parametrize("by", ["td", "least_squares"])
def test_observations_far_from_all_data_have_no_answer(by):
    car = from_gymnasium("MountainCar-v0", envs=4, steps=6_000, seed=1)
    found = rv.estimate(car, gamma=0.9, by=by)
    near = found.at([-0.5, 0.0])
    assert near.value.low <= near.value.estimate <= near.value.high
    assert near.value.estimate == pytest.approx(found.value([-0.5, 0.0]))
    assert str(found.at("-0.5, 0")) == str(near)
    far = found.at([0.55, -0.069])
    assert math.isnan(far.value.estimate)
    assert math.isnan(far.std.estimate)
    assert far.note.startswith("no visit in this region" if by == "td" else "far from the data")
    for wrong in ([0.0], "0,0,0", "a,b", [math.nan, 0.0]):
        with pytest.raises(InputError) as caught:
            found.at(wrong)
        assert caught.value.field == "state"


# ---------------------------------------------------------------------- the command line


def command(tmp_path, *words):
    common = ["--out", str(tmp_path / "out"), "--formats", "none"]
    return CliRunner().invoke(main, ["estimate", *map(str, words), *common])


def test_roll_outs_whose_ends_the_estimate_does_not_know_are_left_out(tmp_path):
    """Taxi is cut after 200 steps, mostly in states that 300 steps have not seen."""
    words = ("gymnasium:Taxi-v4", "--gamma", 0.99, "--steps", 300, "--at", 0, "--rollouts", 20)
    done = command(tmp_path, *words, "--by", "least_squares", "--json")
    assert done.exit_code == 0, done.output
    (answer,) = json.loads(done.stdout)["at"]
    assert "rollouts" not in answer
    assert "no roll-outs" in answer["note"]


def test_the_command_answers_with_roll_outs_beside(tmp_path):
    words = ("gymnasium:FrozenLake-v1", "--gamma", 0.9, "--steps", 5000, "--seed", 1,
             "--by", "least_squares", "--at", 14, "--at", 5, "--rollouts", 40)  # fmt: skip
    done = command(tmp_path, *words, "--json")
    assert done.exit_code == 0, done.output
    first, second = json.loads(done.stdout)["at"]
    found = lake(by="least_squares")
    assert first["state"] == 14
    assert first["value"] == list(found.at(14).value)
    sample = rv.rollouts("FrozenLake-v1", gamma=0.9, start=14, episodes=40, seed=3)
    assert first["rollouts"]["mean"] == list(sample.mean)
    assert second["value"] == [None] * 3
    assert second["note"] == "never visited"
    text = command(tmp_path, *words).stdout
    assert "roll-outs" in text
    assert "40 returns" in text
    assert "never visited" in text


# ------------------------------------------------------------------------ what was saved


def rooms():
    rng = np.random.default_rng(3)
    ends, seen = np.arange(3_000) % 10 == 9, rng.choice(["hall", "den"], 3_000)
    rows = {"room": seen, "x": rng.random(3_000), "reward": rng.normal(size=3_000)}
    return rows | {"terminated": ends, "action": rng.integers(0, 2, 3_000)}


SAVED = {
    "labels": (lambda: from_table(rooms(), state="room"), {}, "den"),
    "actions": (lambda: from_table(rooms(), state="room", action="action"), {"actions": True},
                ("den", 1)),
    "a map": (lambda: rv.experience.from_gymnasium("FrozenLake-v1", steps=3_000), {}, 14),
    "td": (lambda: rv.experience.from_gymnasium("FrozenLake-v1", steps=3_000), {"by": "td"}, 14),
    "observations": (lambda: from_table(rooms(), state=["x"]), {}, [0.3]),
}  # fmt: skip


@pytest.mark.parametrize("kind", SAVED)
def test_what_is_loaded_answers_as_the_estimate_that_was_saved(kind, tmp_path):
    """Return intervals of states need the rows."""
    make, settings, place = SAVED[kind]
    found = rv.estimate(make(), gamma=0.9, **settings)
    found.save(tmp_path / "folder")
    again = rv.load(tmp_path / "folder")
    assert again.summary() == found.summary()
    found.save(tmp_path / "file.safetensors")
    assert rv.load(tmp_path / "file.safetensors").summary().splitlines()[0] in found.summary()
    for several in ([place], [place, place]):
        for ask in (rv.Estimate.value, rv.Estimate.std, rv.Estimate.interval):
            assert_array_equal(ask(again, several), ask(found, several))
    mine, own = again.at(place), found.at(place)
    assert (mine.state, mine.value, mine.std) == (own.state, own.value, own.std)
    if kind == "observations":
        assert mine.return_interval == own.return_interval
        assert str(again.self_check) == str(found.self_check)
    if kind == "actions":
        assert again.action_values().equals(found.action_values())
