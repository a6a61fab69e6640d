"""Experience from Minari: episodes as they were recorded."""

import json
import warnings

import gymnasium
import h5py
import numpy as np
import pytest
from gymnasium import spaces
from numpy.testing import assert_array_equal

from retvar.errors import InputError, SourceError
from retvar.experience import from_minari

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
    """Observations as rows of numbers; values out of bounds are counted; NaN is left out."""
    box = spaces.Box(-1, 1, (2,), dtype=np.float32)
    observations = np.array([[0, 0], [0.5, 3], [np.nan, 0], [0, 0], [1, 1]], dtype=np.float32)
    stream = from_minari(
        dataset(box, [episode(observations, [0.0, 1.0, 2.0, 3.0], truncated=True)])
    )
    found = whole(stream)
    assert_array_equal(found["reward"], [0, 3])
    assert_array_equal(found["next_state"], [[0.5, 1], [1, 1]])
    assert_array_equal(found["truncated"], [True, True])
    assert stream.counts.rejected == {"observation not finite": 2}
    assert stream.width == 2


def test_tuples_are_numbered_as_in_the_environment():
    """Blackjack's observations."""
    space = gymnasium.make("Blackjack-v1").observation_space
    observations = (np.array([12, 20]), np.array([3, 3]), np.array([0, 1]))
    stream = from_minari(dataset(space, [episode(observations, [1.0], truncated=True)]))
    found = whole(stream)
    assert stream.labels[found["state"][0]] == (12, 3, 0)
    assert stream.labels[found["next_state"][0]] == (20, 3, 1)


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
    with pytest.raises(InputError, match="did you mean test/log-v0"):
        from_minari("test/log-v1")
    with pytest.raises(InputError, match="must be a Minari data set"):
        from_minari(3)
    (tmp_path / "metadata.json").write_text("{")
    with pytest.raises(InputError, match="cannot be read"):
        from_minari(tmp_path)
    with pytest.raises(InputError):
        from_minari("not an id at all!")


@pytest.mark.parametrize(
    ("field", "value"),
    [("total_steps", "x"), ("total_steps", float("inf")), ("total_episodes", 10**11),
     ("total_episodes", -1), ("dataset_id", "not an id!"), ("dataset_id", 3)],
)  # fmt: skip
def test_wrong_metadata_are_refused(field, value, tmp_path):
    dataset(spaces.Discrete(4), DISCRETE)
    path = tmp_path / "test" / "log-v0" / "data" / "metadata.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    with pytest.raises(InputError):
        from_minari("test/log-v0")


def test_metadata_without_an_end_are_refused(tmp_path):
    dataset(spaces.Discrete(4), DISCRETE)
    path = tmp_path / "test" / "log-v0" / "data" / "metadata.json"
    path.unlink()
    path.symlink_to("/dev/zero")
    for given in ("test/log-v0", path.parent, path.parent.parent):
        with pytest.raises(InputError, match="is a device"):
            from_minari(given)


def test_arrays_that_were_never_written_are_refused_before_they_are_read(tmp_path):
    """Rewards of 1.6 GB in a file of a few kB."""
    dataset(spaces.Discrete(4), DISCRETE)
    path = tmp_path / "test" / "log-v0" / "data" / "main_data.hdf5"
    with h5py.File(path, "a") as file:
        del file["episode_1/rewards"]
        file.create_dataset("episode_1/rewards", (2 * 10**8,), "f8", chunks=(1_000,))
    with pytest.raises(SourceError, match="but few are stored"):
        list(from_minari("test/log-v0").chunks())
