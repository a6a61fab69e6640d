"""Experience from Gymnasium: the same transitions however environments are put together."""

import itertools
import signal

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.testing import assert_array_equal

import retvar as rv
from retvar.experience import from_gymnasium
from retvar.support.errors import InputError, SourceError
from tests.test_rollouts import Lengths

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
        self.script, self.first, self.at = script, first, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.first, {}

    def step(self, action):
        entry = self.script[self.at % len(self.script)]
        self.at += 1
        if isinstance(entry, Exception):
            raise entry
        return (*entry, {})


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


# ---------------------------------------------------------------------- spaces


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


# ---------------------------------------------------------------------- what goes wrong


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


def observe(value):
    return np.array([value], dtype=np.float32)


FAULTY = [(observe(0), float("nan")), (observe(0), None), (observe(0), -1e25),
          (observe(np.nan), 1.0), (np.zeros(2), 1.0)]  # fmt: skip


@pytest.mark.parametrize("chunk", [1, 2, 100])
@pytest.mark.parametrize(("shown", "reward"), FAULTY)
def test_numbers_that_are_not_finite_end_the_stream(shown, reward, chunk):
    """After the transitions before them, of which the last one of each environment is cut off."""
    script = [(observe(k), float(k), False, False) for k in range(3)]
    script.append((shown, reward, False, False))
    envs = [Scripted(script, spaces.Box(-9, 9, (1,)), observe(0)) for _ in range(2)]
    stream = from_gymnasium(envs, steps=9, chunk=chunk)
    with pytest.raises(SourceError, match="after 6 transitions"):
        stream.moves()
    (found,) = stream.moves().chunks()
    assert_array_equal(found["reward"], [0, 1, 2, 0, 1, 2])
    assert_array_equal(found["truncated"], [False, False, True] * 2)


ODD = {
    "reward": (observe(0), np.ones(2), False, False),
    "observation": ({"x": 0.0}, 0.0, False, False),
}


@pytest.mark.parametrize("name", ODD)
def test_what_a_step_gives_is_called_by_its_name(name):
    with pytest.raises(SourceError, match=name):
        from_gymnasium(Scripted([ODD[name]], spaces.Box(-1, 1, (1,)), observe(0)), steps=4).moves()


def test_a_policy_for_many_is_told_that_it_gets_one_observation_at_a_time():
    with pytest.raises(InputError, match="one observation at a time"):
        from_gymnasium("CartPole-v1", lambda seen: np.array([1]), steps=4).moves()


def test_observations_out_of_bounds_are_clipped_and_counted():
    script = [(observe(value), 0.0, False, False) for value in (7, 0, -3, 0)]
    stream = from_gymnasium(Scripted(script, spaces.Box(-1, 1, (1,)), observe(0)), steps=4)
    assert_array_equal(whole(stream)["state"].ravel(), [0, 1, 0, -1])
    assert_array_equal(whole(stream)["next_state"].ravel(), [1, 0, -1, 0])
    assert stream.counts.out_of_bounds == 2


OUTSIDE = [  # observations, actions; of 3 and of 4
    *(((1, shown), (0, 0, 0), SourceError) for shown in (3, -1, 0.5, None, "x", np.array([1, 2]))),
    *(((1, 1), (0, a), InputError) for a in (4, -1, 0.5, "left", None, [0, 1])),
]


@pytest.mark.parametrize(("shown", "taken", "error"), OUTSIDE)
def test_states_and_actions_outside_their_spaces_end_the_stream(shown, taken, error):
    """After the transitions before them."""
    env = Scripted([(s, 1.0, False, False) for s in shown], spaces.Discrete(3))
    env.action_space, answers = spaces.Discrete(4), iter(taken)
    stream = from_gymnasium(env, lambda _: next(answers), steps=10)
    with pytest.raises(error):
        list(stream.chunks())
    assert stream.counts.transitions == 1


class Model:
    """Like a model of Stable-Baselines3: takes batches; its random actions are NumPy's."""

    def __init__(self, actions=2):
        self.actions, self.sizes = actions, []

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        batch = np.atleast_1d(np.asarray(observation).reshape(len(observation), -1).sum(axis=1))
        self.sizes.append(len(batch))
        if deterministic:
            return (batch > 0).astype(int), None
        return np.random.randint(0, self.actions, len(batch)), None  # noqa: NPY002


# ---------------------------------------------------------------------- copies


@pytest.mark.parametrize("name", ["FrozenLake-v1", "CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("limit", [{"steps": 403}, {"episodes": 3}])
def test_one_copy_is_one_environment_and_several_are_a_list(name, limit):
    one = whole(from_gymnasium(name, seed=4, **limit))
    same(whole(from_gymnasium(name, envs=1, seed=4, **limit)), one)
    listed = whole(from_gymnasium(singles(name), seed=4, **limit))
    same(whole(from_gymnasium(name, envs=3, seed=4, **limit)), listed)
    made = from_gymnasium(lambda: gymnasium.make(name), envs=3, seed=4, **limit)
    same(whole(made), listed)
    same(whole(made), listed)  # made anew


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("episodes", [2, 7, 24])
def test_every_environment_runs_the_same_number_of_episodes(mode, episodes):
    """In the first ones one more, in a list and in each kind of vector environment."""
    found = whole(from_gymnasium([Lengths() for _ in range(3)], episodes=episodes, seed=3))
    ends = found["stream"][found["terminated"]]
    each, rest = divmod(episodes, 3)
    assert_array_equal(np.bincount(ends, minlength=3), [each + (i < rest) for i in range(3)])
    assert not found["truncated"].any()
    env = SyncVectorEnv([Lengths] * 3, autoreset_mode=mode)
    same(whole(from_gymnasium(env, episodes=episodes, seed=3, chunk=19)), found)


# ---------------------------------------------------------------------- batches


@pytest.mark.parametrize("stochastic", [False, True])
def test_a_model_is_asked_once_for_all_environments(stochastic):
    model = Model()
    stream = from_gymnasium(
        "CartPole-v1", model, envs=8, steps=160, seed=1, deterministic=not stochastic
    )
    found = whole(stream)
    assert model.sizes == [8] * 20
    assert stream.policy == ("Model (stochastic)" if stochastic else "Model (deterministic)")
    again = from_gymnasium(
        "CartPole-v1", Model(), envs=8, steps=160, seed=1, deterministic=not stochastic
    )
    np.random.seed(3)  # noqa: NPY002
    same(whole(again), found)  # whatever the global generator is at
    assert np.random.rand() == np.random.RandomState(3).rand()  # noqa: NPY002


@pytest.mark.parametrize("mode", MODES)
def test_a_model_acts_where_all_environments_end_at_once(mode):
    """Also in a mode in which they then only reset."""
    model, short = Model(), {"max_episode_steps": 5}
    found = whole(from_gymnasium(vector("CartPole-v1", mode, **short), model, steps=60))
    same(found, whole(from_gymnasium(singles("CartPole-v1", **short), Model(), steps=60)))
    assert set(model.sizes) == {3}


def test_a_stream_that_is_read_again_is_the_same():
    stream = from_gymnasium("CartPole-v1", Model(), envs=2, steps=99, deterministic=False)
    same(whole(stream), whole(stream))


# ---------------------------------------------------------------------- what is refused


class Plain:
    def predict(self, observation):
        return 0


class Recurrent:
    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        return np.zeros(1, int), (np.zeros(3),)


REFUSALS = [
    ({"steps": None}, "steps, episodes"),
    ({"episodes": 5}, "steps, episodes"),
    ({"seed": -1}, "seed"),
    ({"env": gymnasium.make("FrozenLake-v1"), "envs": 2}, "envs"),
    ({"policy": "clever"}, "policy"),
    ({"policy": [4] * 16}, "policy[0]"),
    ({"policy": np.full((16, 4), 0.3)}, "sum of policy[0]"),
    ({"policy": [0] * 4, "env": "CartPole-v1"}, "policy"),
    ({"policy": "ppo.zip"}, "policy"),
    ({"policy": Recurrent()}, "policy"),
    ({"policy": Plain(), "deterministic": True}, "deterministic"),
    ({"deterministic": True}, "deterministic"),
    ({"env": "FrozenLake-v2"}, "environment"),
    ({"env": [gymnasium.make("FrozenLake-v1")] * 2}, "environment"),
    ({"env": [*singles("FrozenLake-v1"), *singles("Taxi-v4")]}, "environment"),
    ({"is_slippery": "x", "wings": 2}, "environment"),
    ({"env": Scripted([], spaces.Dict({"a": spaces.Discrete(2)}))}, "observation_space"),
    ({"env": Scripted([], spaces.MultiDiscrete([100] * 4))}, "observation_space"),
]


@pytest.mark.parametrize(("arguments", "field"), REFUSALS)
def test_wrong_arguments_are_refused_by_field(arguments, field):
    arguments = {"env": "FrozenLake-v1", "steps": 5, **arguments}
    with pytest.raises(InputError) as error:
        list(from_gymnasium(arguments.pop("env"), **arguments).chunks())
    assert error.value.field == field


# ---------------------------------------------------------------------- names


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


def test_a_policy_table_knows_composed_states():
    """Rows of the table are numbers of states, not first parts of observations."""
    table = np.zeros(704, dtype=int)
    stream = from_gymnasium("Blackjack-v1", table, steps=100)
    assert whole(stream)["terminated"].all()  # sticking ends the episode


class CtrlC:
    """A reward; Ctrl-C comes when its number is asked for."""

    def __float__(self):
        signal.raise_signal(signal.SIGINT)
        return 3.0


@pytest.mark.parametrize("by", ["least_squares", "td"])
def test_no_transition_that_was_read_is_lost_by_ctrl_c(by):
    script = [(0, float(k), False, False) for k in range(100)]
    script[13] = 0, CtrlC(), False, False
    source = from_gymnasium(Scripted(script, spaces.Discrete(1)), steps=99, chunk=10)
    with pytest.raises(KeyboardInterrupt) as caught:
        rv.estimate(source, gamma=0.9, by=by)
    assert caught.value.estimate.estimator.steps == source.counts.transitions == 13
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_model_that_explores_with_one_coin_for_a_batch_is_asked_one_by_one():
    """As DQN's: the actions of its environments would depend on each other."""

    class Exploring:
        exploration_rate, action_space = 0.05, gymnasium.spaces.Discrete(2)
        calls = 0

        def predict(self, observation, state=None, episode_start=None, deterministic=False):
            self.calls += 1
            return (np.zeros(len(observation), int) if observation.ndim > 1 else 0), None

    for deterministic, calls in ((True, 10), (False, 80)):
        model = Exploring()
        how = {"envs": 8, "steps": 80, "deterministic": deterministic}
        list(from_gymnasium("CartPole-v1", model, **how).chunks())
        assert model.calls == calls
