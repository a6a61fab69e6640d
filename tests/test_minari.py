"""Experience from Minari: episodes as they were recorded."""

import warnings

import numpy as np
import pytest
from gymnasium import spaces
from numpy.testing import assert_array_equal

from retvar.experience import from_minari
from retvar.support.errors import InputError, SourceError

minari = pytest.importorskip("minari")
from minari.data_collector.episode_buffer import EpisodeBuffer  # noqa: E402


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))


def episode(observations, rewards, terminated=False, truncated=False):
    n = len(rewards)
    return EpisodeBuffer(
        observations=observations if isinstance(observations, tuple) else np.array(observations),
        actions=np.zeros(n, dtype=np.int64),
        rewards=list(rewards),
        terminations=[False] * (n - 1) + [terminated],
        truncations=[False] * (n - 1) + [truncated],
    )


def dataset(space, episodes, name="test/log-v0"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that no author is named
        return minari.create_dataset_from_buffers(
            name, episodes, observation_space=space, action_space=spaces.Discrete(2)
        )


def whole(stream):
    chunks = list(stream.chunks())
    return {name: np.concatenate([c[name] for c in chunks]) for name in chunks[0]}


DISCRETE = [
    episode([0, 1, 2], [1.0, 2.0], terminated=True),
    episode([3, 0, 1], [3.0, 4.0], truncated=True),
    episode([1, 1], [5.0]),
]


@pytest.mark.parametrize("how", ["object", "id", "folder", "data folder"])
def test_episodes_come_in_order(how, tmp_path):
    """Terminated, truncated, and truncated where the data says neither."""
    data = dataset(spaces.Discrete(4), DISCRETE)
    folder = tmp_path / "test" / "log-v0"
    given = {"object": data, "id": "test/log-v0", "folder": folder, "data folder": folder / "data"}
    stream = from_minari(given[how])
    found = whole(stream)
    assert_array_equal(found["state"], [0, 1, 3, 0, 1])
    assert_array_equal(found["next_state"], [1, 1, 0, 1, 1])  # repeated after the end
    assert_array_equal(found["reward"], [1, 2, 3, 4, 5])
    assert_array_equal(found["terminated"], [False, True, False, False, False])
    assert_array_equal(found["truncated"], [False, False, False, True, True])
    assert (stream.states, stream.length, stream.name) == (4, 5, "minari:test/log-v0")


def test_boxes_are_vectors_within_their_bounds():
    """Observations as rows of numbers; values out of bounds are clipped and counted."""
    box = spaces.Box(-1, 1, (2,), dtype=np.float32)
    observations = np.array([[0, 0], [0.5, 3], [0, 0], [1, 1]], dtype=np.float32)
    stream = from_minari(dataset(box, [episode(observations, [0.0, 1.0, 2.0], truncated=True)]))
    found = whole(stream)
    assert_array_equal(found["next_state"], [[0.5, 1], [0, 0], [1, 1]])
    assert_array_equal(found["truncated"], [False, False, True])
    assert (stream.width, stream.counts.out_of_bounds) == (2, 1)


@pytest.mark.parametrize(("shown", "reward"), [(np.nan, 1.0), (0.0, np.inf), (0.0, 1e25)])
def test_episodes_before_one_that_is_not_finite_are_read(shown, reward):
    data = dataset(spaces.Box(-1, 1, (1,)), [
        episode(np.zeros((3, 1), np.float32), [1.0, 2.0]),
        episode(np.array([[0.0], [shown]], np.float32), [reward]),
    ])  # fmt: skip
    stream = from_minari(data)
    with pytest.raises(SourceError, match="after 2 transitions"):
        stream.moves()
    assert len(stream.moves()) == 2


def test_episodes_before_a_state_outside_the_space_are_read():
    """The first episode, then the error."""
    data = dataset(spaces.Discrete(4), [DISCRETE[0], episode([0, 9, 1], [1.0, 1.0])])
    stream = from_minari(data)
    with pytest.raises(SourceError, match="after 2 transitions"):
        list(stream.chunks())
    assert stream.counts.transitions == 2


def test_invalid_data_sets_are_refused(tmp_path):
    """Unknown ids, other things, and folders with nothing or rubbish in them."""
    dataset(spaces.Discrete(4), DISCRETE)
    with pytest.raises(InputError, match="is not on this disk"):
        from_minari("test/log-v1")
    with pytest.raises(InputError):
        from_minari(3)
    (tmp_path / "metadata.json").write_text("{")
    with pytest.raises(InputError, match="cannot be read"):
        from_minari(tmp_path)
    with pytest.raises(InputError):
        from_minari("not an id at all!")
