"""Every source of experience keeps one contract: linked, at rest, read again, saved, stopped."""

import gymnasium
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import retvar as rv
from retvar.experience import (
    Experience,
    from_gymnasium,
    from_linear_gaussian,
    from_table,
)
from retvar.experience.moves import Moves, Workspace

WORLD = rv.domains.linear_gaussian(F=[[0.8, 0.3], [-0.3, 0.8]], S=0.3, Q=1.0, gamma=0.95)


def by_hand():
    """A source of one's own with two streams."""
    chunk = {"state": np.array([0, 5, 1, 6]), "next_state": np.array([1, 6, 2, 7]),
             "reward": np.arange(4.0), "stream": np.array([0, 1, 0, 1])}  # fmt: skip
    return Experience("by hand", lambda counts: iter([chunk]), states=8)


def a_log():
    state = np.tile([0, 1, 2], 40)
    return from_table({"state": state, "reward": state + 0.5, "action": state % 2,
                       "terminated": state == 2})  # fmt: skip


SOURCES = {
    "by hand": by_hand,
    "log": a_log,
    "one environment": lambda: from_gymnasium("FrozenLake-v1", steps=300),
    "episodes": lambda: from_gymnasium("FrozenLake-v1", episodes=20, envs=3),
    "copies": lambda: from_gymnasium("CartPole-v1", steps=300, envs=3),
    "vector environment": lambda: from_gymnasium(
        gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync"), steps=200
    ),
    "linear-Gaussian": lambda: from_linear_gaussian(WORLD, streams=4, steps=200),
}


def columns(moves, size=64):
    parts = list(moves.chunks(size))
    return {name: np.concatenate([part[name] for part in parts]) for name in moves.columns}


@pytest.mark.parametrize("name", SOURCES)
def test_moves_are_linked_trajectories_that_can_be_read_again(name):
    experience = SOURCES[name]()
    moves = experience.moves()
    assert experience.moves() is moves
    found, again = columns(moves), columns(moves)
    backwards = list(moves.chunks(64, backwards=True))[::-1]
    for column in found:
        assert_array_equal(found[column], again[column])
        assert_array_equal(found[column], np.concatenate([part[column] for part in backwards]))
    over = found["terminated"] | found["truncated"]
    assert over[-1]
    assert_array_equal(found["next_state"][:-1][~over[:-1]], found["state"][1:][~over[:-1]])
    counts = experience.counts
    assert counts.transitions == len(moves) == len(over)
    assert counts.ends == found["terminated"].sum()
    one_by_one = sorted(t.reward for t in SOURCES[name]())
    assert one_by_one == sorted(found["reward"].tolist())


@pytest.mark.parametrize("name", SOURCES)
def test_counts_are_those_of_one_reading(name):
    experience, first = SOURCES[name](), SOURCES[name]()
    list(first)
    for _ in range(2):
        list(experience)
        assert experience.counts == first.counts
    experience.moves()
    if experience.with_actions is not None:
        found = [rv.estimate(experience, gamma=0.9, actions=True).experience for _ in range(2)]
        assert found[0].counts == found[1].counts
        own = found[0].counts.transitions + found[0].counts.rejected.total()
        assert own == len(experience.moves())
        assert experience.counts == first.counts


@pytest.mark.parametrize("name", [name for name in SOURCES if name != "by hand"])
def test_what_is_saved_is_read_back(name, tmp_path):
    SOURCES[name]().save(tmp_path / "saved.parquet")
    found = columns(SOURCES[name]().moves())
    again = columns(from_table(tmp_path / "saved.parquet").moves())
    for column in ("state", "reward", "next_state", "terminated", "truncated"):
        assert_array_equal(found[column], again[column])


def test_more_rows_than_fit_in_memory_are_the_same_rows(monkeypatch, tmp_path):
    rng = np.random.default_rng(0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    parts = [
        {"state": x, "next_state": x, "reward": x[:, 0], "stream": rng.integers(0, 9, 20_000)}
        for x in (rng.normal(size=(20_000, 4)) for _ in range(15))
    ]
    small, large = Moves(Workspace("40MB")), Moves()
    for part in parts:
        small.append(part)
        large.append(part)
    one, other = columns(small, 30_000), columns(large, 30_000)
    assert_array_equal(one["state"], other["state"])
    assert_array_equal(one["truncated"], other["truncated"])
    del small, large
    assert not list(tmp_path.glob("retvar-moves-*"))


def test_moves_keep_numbers_that_are_missing_missing():
    """A database turns NaN into NULL; what is read must not be whatever lies there."""
    state = np.array([[1.0, np.nan], [np.nan, 2.0], [3.0, 4.0]])
    moves = Moves()
    moves.append({"state": state, "next_state": state[::-1], "reward": np.array([1.0, np.nan, 2])})
    (chunk,) = moves.chunks()
    assert_array_equal(chunk["state"], state)
    assert_array_equal(chunk["next_state"], state[::-1])
    assert_array_equal(chunk["reward"], [1.0, np.nan, 2.0])


@pytest.mark.parametrize("by", ["least_squares", "td"])
def test_what_was_read_can_be_saved_after_an_interruption(by, tmp_path):
    def interrupt(done):
        raise KeyboardInterrupt

    lake, path = from_gymnasium("FrozenLake-v1", steps=100_000), tmp_path / "a.parquet"
    with pytest.raises(KeyboardInterrupt) as caught:
        rv.estimate(lake, gamma=0.9, by=by, progress=interrupt)
    lake.save(path)
    assert len(from_table(path).moves()) == caught.value.estimate.estimator.steps > 0
