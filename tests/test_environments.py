"""Experience from Gymnasium: the same transitions however environments are put together."""

import ast
import itertools
import re
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.testing import assert_array_equal

import retvar as rv
from retvar import experience
from retvar.errors import InputError, SourceError
from retvar.experience import from_gymnasium, from_table, recorded
from retvar.experience.environment_names import documented_names, observation_names

MODES = list(AutoresetMode)


def whole(stream):
    """All chunks of a stream as one."""
    chunks = list(stream.chunks())
    return {name: np.concatenate([c[name] for c in chunks]) for name in chunks[0]}


def same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].dtype == other[name].dtype
        assert_array_equal(one[name], other[name], err_msg=name)


def singles(name, count=3, **options):
    return [gymnasium.make(name, **options) for _ in range(count)]


def vector(name, mode, count=3, **options):
    return SyncVectorEnv([lambda: gymnasium.make(name, **options)] * count, autoreset_mode=mode)


def plain_loop(envs, choose, seeds, steps):
    """Step environments in turn, without code of the package."""
    rows, current = [], [env.reset(seed=seed)[0] for env, seed in zip(envs, seeds, strict=True)]
    for i in itertools.cycle(range(len(envs))):
        after, reward, terminated, truncated, _ = envs[i].step(choose(i, current[i]))
        rows.append((i, current[i], reward, after, terminated, truncated))
        current[i] = envs[i].reset()[0] if terminated or truncated else after
        if len(rows) == steps:
            return rows
    raise AssertionError


def seeds_of(seed, count):
    children = np.random.SeedSequence(seed).spawn(count)
    return [int(child.generate_state(2)[0]) >> 1 for child in children]


class Scripted(gymnasium.Env):
    """Replays tuples (observation, reward, terminated, truncated)."""

    def __init__(self, script, space, first=0):
        self.observation_space, self.action_space = space, spaces.Discrete(2)
        self.script, self.first, self.at, self.resets = script, first, 0, 0
        self.closed = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.resets += 1
        return self.first, {}

    def step(self, action):
        entry = self.script[self.at % len(self.script)]
        self.at += 1
        if isinstance(entry, Exception):
            raise entry
        return (*entry, {})

    def close(self):
        self.closed = True


# ---------------------------------------------------------------------- the transitions


@pytest.mark.parametrize("name", ["FrozenLake-v1", "CliffWalking-v1"])
def test_the_stream_is_that_of_a_plain_loop(name):
    """State, reward, next state, flags: as a loop written by hand sees them."""
    table = np.random.default_rng(3).integers(4, size=48)
    table = table[: gymnasium.make(name).observation_space.n]
    stream = from_gymnasium(singles(name, 2), table, steps=501, seed=7, chunk=64)
    found = whole(stream)
    rows = plain_loop(singles(name, 2), lambda _, s: table[s], seeds_of(7, 2), 501)
    for column, k in (("stream", 0), ("state", 1), ("reward", 2), ("terminated", 4)):
        assert_array_equal(found[column], [row[k] for row in rows], err_msg=column)
    after = [row[1] if row[4] else row[3] for row in rows]
    assert_array_equal(found["next_state"], after)
    cut = np.array([row[5] for row in rows])
    cut[-2:] |= ~np.array([row[4] for row in rows[-2:]])  # each stream is cut off at its end
    assert_array_equal(found["truncated"], cut)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["FrozenLake-v1", "CartPole-v1", "Blackjack-v1", "Pendulum-v1"])
@pytest.mark.parametrize("limit", [{"steps": 703}, {"episodes": 5}])
def test_a_vector_environment_gives_the_transitions_of_single_ones(name, mode, limit):
    """In every autoreset mode, in the same order, down to the last bit, whatever the chunks."""
    expected = whole(from_gymnasium(singles(name), seed=5, chunk=100, **limit))
    same(whole(from_gymnasium(vector(name, mode), seed=5, chunk=37, **limit)), expected)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("policy", ["table", "probabilities", "function", "predict"])
def test_a_policy_acts_alike_in_every_mode(policy, mode):
    """Random numbers belong to (environment, step), not to the order of calls."""
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet([1, 1, 1, 1], size=16)

    class Model:
        def predict(self, observation):
            return np.array(int(observation) % 4), None

    given = {
        "table": rng.integers(4, size=16),
        "probabilities": rv.Policy(probabilities),
        "function": lambda observation: int(observation * 7) % 4,
        "predict": Model(),
    }[policy]
    expected = whole(from_gymnasium(singles("FrozenLake-v1"), given, steps=500, seed=1))
    same(whole(from_gymnasium(vector("FrozenLake-v1", mode), given, steps=500, seed=1)), expected)


def learned(chunks, estimator):
    for chunk in chunks:
        estimator.update_many(chunk)
    return estimator.weights


@pytest.mark.parametrize("kind", [rv.Direct, rv.Centred])
@pytest.mark.parametrize("name", ["FrozenLake-v1", "CartPole-v1"])
def test_singles_vectors_and_the_file_read_back_teach_the_same_bits(kind, name, tmp_path):
    """The list of environments, a vector in each autoreset mode, and what Parquet gives back."""
    features = {"states": 16} if name == "FrozenLake-v1" else {"features": rv.features.Vector(4)}

    def estimator():
        return kind(alpha=0.001, alpha_bar=0.0001, gamma=0.9, lam=0.8, kappa=0.8).online(**features)

    stream = from_gymnasium(singles(name), steps=4_001, seed=11, chunk=512)
    expected = learned(recorded(stream, tmp_path / "log.parquet").chunks(), estimator())
    assert all(np.isfinite(w).all() and w.any() for w in expected.values())
    others = [from_gymnasium(vector(name, m), steps=4_001, seed=11, chunk=300) for m in MODES]
    others += [
        from_table(tmp_path / "log.parquet", chunk=997),
        from_table(tmp_path / "log.parquet"),
    ]
    for other in others:
        found = learned(other.chunks(), estimator())
        for node, weights in expected.items():
            assert_array_equal(found[node], weights, err_msg=f"{other.name} {node}")


def test_one_by_one_is_the_same_stream():
    """Iterating gives the rows of the chunks."""
    found = whole(from_gymnasium("FrozenLake-v1", steps=300))
    rows = list(from_gymnasium("FrozenLake-v1", steps=300))
    assert_array_equal([t.state for t in rows], found["state"])
    assert_array_equal([t.truncated for t in rows], found["truncated"])


def test_random_actions_are_uniform_and_differ_between_environments_and_seeds():
    """A chi-square test at 10⁻⁶, and no two streams alike."""
    taken = []

    class Watched(Scripted):
        def step(self, action):
            taken.append(action)
            return super().step(action)

    script = [(0, 0.0, False, False)]
    for seed in (0, 1):
        envs = [Watched(script, spaces.Discrete(1)) for _ in range(2)]
        list(from_gymnasium(envs, steps=20_000, seed=seed).chunks())
    streams = np.array(taken).reshape(2, 10_000, 2).transpose(0, 2, 1).reshape(4, -1)
    counts = streams.sum(axis=1)
    assert np.all(np.abs(counts - 5_000) < 4.9 * 50)
    for one, other in itertools.combinations(streams, 2):
        assert abs(np.mean(one == other) - 0.5) < 0.025


def test_seeds_of_environments_are_not_next_to_each_other():
    """Seed s, environment i + 1 is not seed s + 1, environment i."""
    first, second = (
        whole(from_gymnasium(singles("CartPole-v1", 2), steps=2, seed=s))["state"] for s in (0, 1)
    )
    assert len({tuple(row) for row in (*first, *second)}) == 4


def test_a_stream_can_be_read_again():
    """An environment named by its id is made anew."""
    stream = from_gymnasium("FrozenLake-v1", steps=50)
    same(whole(stream), whole(stream))


# ---------------------------------------------------------------------- spaces


def test_composed_observations_are_numbered_and_labelled():
    """Blackjack's tuples: the label of a state is the observation."""
    stream = from_gymnasium("Blackjack-v1", lambda hand: int(hand[0] < 18), steps=200)
    found = whole(stream)
    assert stream.states == 32 * 11 * 2 == len(stream.labels)
    hands = {stream.labels[s][0] for s in found["state"].tolist()}
    assert hands <= set(range(4, 22))


@pytest.mark.parametrize(
    ("space", "first", "labels"),
    [
        (spaces.Discrete(3, start=5), 6, [5, 6, 7]),
        (spaces.MultiDiscrete([2, 2], start=[1, 0]), np.array([2, 1]), None),
        (spaces.MultiBinary(2), np.array([1, 0], dtype=np.int8), None),
    ],
)
def test_spaces_of_whole_numbers_become_states(space, first, labels):
    """States count from 0 in the order of labels."""
    script = [(first, 1.0, False, False)]
    stream = from_gymnasium(Scripted(script, space, first), steps=5)
    found = whole(stream)
    label = stream.labels[int(found["state"][0])]
    assert_array_equal(label, first)
    assert labels is None or stream.labels == labels


def test_a_policy_table_knows_composed_states():
    """Rows of the table are numbers of states, not first parts of observations."""
    table = np.zeros(704, dtype=int)
    stream = from_gymnasium("Blackjack-v1", table, steps=100)
    assert whole(stream)["terminated"].all()  # sticking ends the episode


def test_observations_that_an_environment_overwrites_are_copied():
    """An environment that returns the same array every time changes no earlier transition."""

    class Same(Scripted):
        shown = np.zeros(1, dtype=np.float32)

        def reset(self, **_):
            self.shown[0] = 0
            return self.shown, {}

        def step(self, action):
            self.shown[0] += 1
            return self.shown, 0.0, False, False, {}

    found = whole(from_gymnasium(Same([], spaces.Box(0, 100, (1,))), steps=5))
    assert_array_equal(found["state"].ravel(), [0, 1, 2, 3, 4])
    assert_array_equal(found["next_state"].ravel(), [1, 2, 3, 4, 5])


def test_grids_are_known():
    """Rows and columns of FrozenLake and CliffWalking, nothing elsewhere."""
    grids = {"FrozenLake-v1": (4, 4), "CliffWalking-v1": (4, 12), "CartPole-v1": None}
    assert {name: from_gymnasium(name, steps=1).grid for name in grids} == grids


# ---------------------------------------------------------------------- what goes wrong


def test_truncation_is_not_termination():
    """MountainCar's 200 steps: cut off, never ended."""
    found = whole(from_gymnasium("MountainCar-v0", steps=400))
    assert not found["terminated"].any()
    assert_array_equal(np.flatnonzero(found["truncated"]), [199, 399])


@pytest.mark.parametrize("at", [0, 1, 7, 8, 20])
def test_transitions_before_an_error_are_yielded(at):
    """Then the error says how much that was, and why it ended."""
    script = [(0, float(k), False, False) for k in range(at)] + [RuntimeError("motor 3")]
    stream = from_gymnasium(Scripted(script, spaces.Discrete(1)), steps=100, chunk=8)
    rewards = []
    when = f"after {at} transitions, which are kept" if at else "before its first transition"
    with pytest.raises(SourceError, match=f"failed {when}: RuntimeError: motor 3"):
        rewards.extend(t.reward for t in stream)
    assert rewards == list(range(at))
    assert stream.counts.transitions == at


@pytest.mark.parametrize("mode", MODES)
def test_a_vector_that_fails_yields_the_rounds_before(mode):
    """Whole rounds before the one that failed."""
    script = [(0, 1.0, False, False)] * 5 + [RuntimeError("stuck")]
    env = SyncVectorEnv(
        [lambda: Scripted(script, spaces.Discrete(1)) for _ in range(2)], autoreset_mode=mode
    )
    stream = from_gymnasium(env, steps=100)
    with pytest.raises(SourceError, match="stuck"):
        list(stream.chunks())
    assert stream.counts.transitions == 10


def test_a_reset_that_is_not_needed_is_not_made():
    """After the last episode the environment is not reset."""
    env = Scripted([(0, 1.0, True, False)], spaces.Discrete(1))
    list(from_gymnasium(env, episodes=3).chunks())
    list(from_gymnasium(env, steps=3).chunks())
    assert env.resets == 6


def test_only_environments_made_here_are_closed():
    """An environment passed by the caller stays open."""
    env = Scripted([(0, 1.0, False, False)], spaces.Discrete(1))
    list(from_gymnasium(env, steps=3).chunks())
    assert not env.closed


@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
@pytest.mark.parametrize("streams", [1, 2])
def test_rows_that_are_not_finite_are_left_out_and_truncate_the_row_before(chunk, streams):
    """Whatever the chunks: the row before is truncated, and reasons are counted."""
    box, nan = spaces.Box(-1, 1, (1,)), float("nan")

    def observe(value):
        return np.array([value], dtype=np.float32)

    script = [
        (observe(0), 0.0, False, False),
        (observe(0), nan, False, False),
        (observe(0), 2.0, False, False),
        (observe(nan), 3.0, False, False),
        (observe(0), 4.0, False, False),
        (observe(0), None, True, False),
        (observe(0), 1e25, True, False),
        (observe(7), 6.0, False, False),
        (observe(nan), 7.0, True, False),
    ]
    envs = [Scripted(script, box, observe(0)) for _ in range(streams)]
    stream = from_gymnasium(envs, steps=9 * streams, chunk=chunk)
    found = whole(stream)
    own = found["stream"] == streams - 1 if streams > 1 else slice(None)
    assert_array_equal(found["reward"][own], [0, 2, 6, 7])
    assert_array_equal(found["truncated"][own], [True, True, False, False])
    assert_array_equal(found["state"][own].ravel(), [0, 0, 0, 1])
    assert_array_equal(found["next_state"][own].ravel(), [0, 0, 1, 1])
    assert stream.counts.rejected == {
        "reward not finite": 2 * streams, "reward beyond 1e+24 in size": streams,
        "observation not finite": 2 * streams,
    }  # fmt: skip
    assert stream.counts.out_of_bounds == streams


@pytest.mark.parametrize("shown", [3, -1, 0.5, None, "x", np.array([1, 2])])
def test_a_state_outside_the_space_ends_the_stream(shown):
    """After the transitions before it, with the observation in the message."""
    script = [(1, 1.0, False, False), (shown, 2.0, False, False), (1, 3.0, False, False)]
    stream = from_gymnasium(Scripted(script, spaces.Discrete(3)), steps=10)
    with pytest.raises(SourceError, match=r"after 1 transitions.*not in the observation space"):
        list(stream.chunks())
    assert stream.counts.transitions == 1


@pytest.mark.parametrize("action", [4, -1, 0.5, "left", None, [0, 1], True])
def test_an_action_outside_the_space_is_refused(action):
    """After the transitions before it."""
    answers = iter([0, 1, action])
    env = gymnasium.make("FrozenLake-v1", is_slippery=False)
    stream = from_gymnasium(env, lambda _: next(answers), steps=10)
    with pytest.raises(InputError, match=r"must return an action of Discrete\(4\)"):
        list(stream.chunks())
    assert stream.counts.transitions == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give one of them"),
        ({"steps": 5, "episodes": 5}, "give one of them"),
        ({"steps": 0}, "at least 1"),
        ({"steps": 2.5}, "at least 1"),
        ({"steps": 5, "seed": -1}, "seed"),
        ({"steps": 5, "chunk": 0}, "chunk"),
        ({"steps": 5, "policy": "clever"}, "policy"),
        ({"steps": 5, "policy": [0, 1]}, "one for each of 16"),
        ({"steps": 5, "policy": [4] * 16}, r"policy\[0\]"),
        ({"steps": 5, "policy": [0.5] * 16}, "numbers of actions"),
        ({"steps": 5, "policy": np.full((16, 3), 1 / 3)}, "16 states × 4 actions"),
        ({"steps": 5, "policy": np.full((16, 4), 0.3)}, "must be 1"),
        ({"steps": 5, "env": "FrozenLake-v2"}, "did you mean FrozenLake-v1"),
        ({"steps": 5, "env": 3}, "must be an id"),
        ({"steps": 5, "env": []}, "empty"),
        ({"steps": 5, "env": "CartPole-v1", "policy": [0] * 4}, "function of the observation"),
        ({"steps": 5, "is_slippery": "x", "wings": 2}, "cannot be made"),
    ],
)
def test_wrong_arguments_are_refused_before_the_first_step(arguments, message):
    """Each in a sentence that names the field."""
    arguments = {"env": "FrozenLake-v1", **arguments}
    with pytest.raises(InputError, match=message):
        from_gymnasium(arguments.pop("env"), **arguments)


def test_observations_that_cannot_be_read_are_refused_with_a_remedy():
    """Dictionaries, and more combinations than a table can hold."""
    space = spaces.Dict({"a": spaces.Discrete(2)})
    with pytest.raises(InputError, match="FlattenObservation"):
        from_gymnasium(Scripted([], space), steps=1)
    with pytest.raises(InputError, match="wrap the environment"):
        from_gymnasium(Scripted([], spaces.MultiDiscrete([100] * 4)), steps=1)


def test_a_vector_environment_must_have_an_autoreset_mode():
    """Guessing would make transitions of resets."""
    env = vector("FrozenLake-v1", AutoresetMode.NEXT_STEP)
    del env.metadata["autoreset_mode"]
    with pytest.raises(InputError, match="must say how it resets"):
        from_gymnasium(env, steps=5)


def test_a_recording_has_the_transitions_before_an_error(tmp_path):
    """The file is whole, and gives the same transitions back."""
    script = [(0, float(k), False, False) for k in range(10)] + [RuntimeError("motor")]
    path = tmp_path / "robot.parquet"
    stream = recorded(from_gymnasium(Scripted(script, spaces.Discrete(1)), steps=99), path)
    with pytest.raises(SourceError, match="motor"):
        list(stream.chunks())
    assert stream.counts.transitions == 10
    assert_array_equal(whole(from_table(path))["reward"], np.arange(10.0))
    assert [file.name for file in tmp_path.iterdir()] == ["robot.parquet"]


def test_an_abandoned_recording_has_what_was_read(tmp_path):
    """A consumer that stops in the middle."""
    path = tmp_path / "lake.parquet"
    chunks = recorded(from_gymnasium("FrozenLake-v1", steps=100, chunk=10), path).chunks()
    first = next(chunks)
    chunks.close()
    assert_array_equal(whole(from_table(path))["state"], first["state"])


def test_every_name_is_exported():
    """The module's list of names is what it has."""
    assert {"Experience", "Counts", "from_gymnasium", "from_minari", "from_table"} <= set(
        experience.__all__
    )


# ---------------------------------------------------------------------- names


def docstring(module):
    """The docstring of the environment in a module of Gymnasium that need not be importable."""
    folder = Path(gymnasium.__file__).parent / "envs"
    classes = [
        x for x in ast.parse((folder / module).read_text()).body if isinstance(x, ast.ClassDef)
    ]
    return max((ast.get_docstring(each) or "" for each in classes), key=len)


WIDTHS = {
    "mujoco/hopper_v5.py": 11,
    "mujoco/walker2d_v5.py": 17,
    "mujoco/half_cheetah_v5.py": 17,
    "mujoco/swimmer_v5.py": 8,
    "mujoco/inverted_pendulum_v5.py": 4,
    "mujoco/reacher_v5.py": 10,
    "classic_control/cartpole.py": 4,
    "classic_control/pendulum.py": 3,
}


@pytest.mark.parametrize("module", WIDTHS)
def test_observations_have_the_names_that_gymnasium_documents(module):
    """One for each number, in order, none twice, and each in the words of its row of the table."""
    text = docstring(module)
    names = documented_names(text)
    assert len(names) == len(set(names)) == WIDTHS[module]
    rows = [line for line in text.splitlines() if line.startswith("|")]
    for k, name in enumerate(names):
        own = [row for row in rows if re.match(rf"\|\s*{k}\s*\|", row)]
        words = name.removesuffix(" velocity")
        assert any(words in row.replace("`", "") for row in own), name
        if name.endswith(" velocity"):
            assert any("velocity" in row.rsplit("|", 2)[1] for row in own)


def test_names_of_the_lander_and_the_walker_are_as_many_as_documented():
    """The documentation lists these in prose: 8 numbers, and 14 with 10 of a lidar."""
    assert "8-dimensional vector" in docstring("box2d/lunar_lander.py")
    assert len(observation_names("gymnasium:LunarLander-v3", None, 8)) == 8
    assert "10 lidar rangefinder measurements" in " ".join(
        docstring("box2d/bipedal_walker.py").split()
    )
    walker = observation_names("gymnasium:BipedalWalker-v3", None, 24)
    assert len(set(walker)) == 24
    assert sum(name.startswith("lidar") for name in walker) == 10


def test_undocumented_observations_have_no_names():
    assert observation_names("gymnasium:Own-v0", object(), 2) is None
    assert observation_names("gymnasium:CartPole-v1", None, 5) is None
    assert documented_names(None) == documented_names("| Num | Action |") == []


def test_states_of_taxi_say_where_everything_is():
    """Numbers stay what they are; tables and questions have the names, too."""
    found = rv.estimate(from_gymnasium("Taxi-v4", steps=3_000, seed=0), gamma=0.9)
    labels = found.data["label"].values
    row, column, passenger, destination = 3, 1, 4, 2
    number = ((row * 5 + column) * 5 + passenger) * 4 + destination  # from the documentation
    assert labels[number] == "row 3, col 1, taxi to Y"
    assert labels[((0 * 5 + 2) * 5 + 0) * 4 + 3] == "row 0, col 2, R to B"
    assert len(set(labels)) == 500
    visited = int(np.argmax(found.data["visits"].values))
    assert (
        found.at(labels[visited]).value == found.at(visited).value == found.at(str(visited)).value
    )
    assert labels[visited] in found.summary()
