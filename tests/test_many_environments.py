"""Several copies of an environment: the same transitions, one call of the model, no preference."""

from __future__ import annotations

import json

import gymnasium
import numpy as np
import pytest
from click.testing import CliRunner
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.testing import assert_array_equal

import retvar as rv
from retvar.cli import main
from retvar.errors import InputError
from retvar.experience import from_gymnasium
from tests.test_environments import MODES, same, singles, vector, whole
from tests.test_rollouts import Lengths


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


def test_the_first_episodes_of_many_environments_are_not_the_short_ones():
    """Half of the episodes have 100 steps: 32 of 64 ± 19 (4.9 standard errors)."""
    found = whole(from_gymnasium(Lengths, envs=32, episodes=64, seed=11))
    assert found["terminated"].sum() == 64
    assert abs(found["reward"].sum() - 64 * 50.5) < 4.9 * 8 * 49.5


def test_least_squares_over_eight_environments_is_that_of_the_exact_world():
    """A fixed seed; over 20 seeds the largest errors were 0.061 in a value, 0.031 in a std."""
    lake = from_gymnasium("FrozenLake-v1", envs=8, steps=40_000, seed=2)
    found = rv.estimate(lake, gamma=0.9, by="least_squares")
    truth = rv.solve(rv.MDP.from_gymnasium("FrozenLake-v1", gamma=0.9))
    left = np.isfinite(found.value())
    assert left.sum() == 11  # frozen ones
    assert np.abs(found.value() - truth.value)[left].max() < 0.06
    assert np.abs(found.std() - truth.std)[left].max() < 0.06


@pytest.mark.parametrize("envs", [0, 2.5, "many"])
def test_a_number_of_copies_is_a_whole_number(envs):
    with pytest.raises(InputError, match="envs"):
        from_gymnasium("FrozenLake-v1", envs=envs, steps=10)


def test_an_environment_cannot_be_copied():
    for env in (gymnasium.make("FrozenLake-v1"), singles("FrozenLake-v1")):
        with pytest.raises(InputError, match="needs an id, or a function that makes"):
            from_gymnasium(env, envs=2, steps=10)
        with pytest.raises(InputError, match="needs an id, or a function that makes"):
            rv.rollouts(env, gamma=0.9, envs=2)


def test_rollouts_of_copies_are_those_of_a_list():
    settings = {"gamma": 0.9, "episodes": 31, "seed": 5, "start": [0.0, 0.0, 0.05, 0.0]}
    a = rv.rollouts(singles("CartPole-v1"), **settings)
    b = rv.rollouts("CartPole-v1", envs=3, **settings)
    assert_array_equal(a.low, b.low)
    assert a.size == 31


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
def test_a_deterministic_model_acts_alike_one_by_one_and_in_batches(mode):
    def one(observation):
        return int(observation.sum() > 0)

    expected = whole(from_gymnasium(singles("CartPole-v1"), one, steps=703, seed=5))
    for env in (singles("CartPole-v1"), vector("CartPole-v1", mode)):
        same(whole(from_gymnasium(env, Model(), steps=703, seed=5)), expected)


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


# ---------------------------------------------------------------------- what is refused


def test_deterministic_is_for_models_that_have_it():
    class Plain:
        def predict(self, observation):
            return 0

    for policy in ("random", Plain()):
        with pytest.raises(InputError, match="deterministic"):
            from_gymnasium("FrozenLake-v1", policy, steps=5, deterministic=True)


def test_a_model_with_a_memory_is_refused():
    class Recurrent:
        def predict(self, observation, state=None, episode_start=None, deterministic=False):
            return np.zeros(1, int), (np.zeros(3),)

    with pytest.raises(InputError, match="has a memory"):
        list(from_gymnasium("CartPole-v1", Recurrent(), steps=5).chunks())


def test_a_model_of_other_spaces_is_refused():
    class Other(Model):
        observation_space = gymnasium.spaces.Box(-1, 1, (3,))

    with pytest.raises(InputError, match=r"Other \(deterministic\) was made for Box"):
        from_gymnasium("CartPole-v1", Other(), steps=5)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("ppo.zip", "can run any code .* say sb3:ALGORITHM:FILE, such as sb3:PPO:ppo.zip"),
        ("sb3:PPO", "must be sb3:ALGORITHM:FILE"),
        ("sb3::ppo.zip", "must be sb3:ALGORITHM:FILE"),
    ],
)
def test_a_zip_is_loaded_only_by_name(policy, message):
    with pytest.raises(InputError, match=message):
        from_gymnasium("CartPole-v1", policy, steps=5)
    for command in ("estimate", "rollouts"):
        done = CliRunner().invoke(
            main, [command, "gymnasium:CartPole-v1", "--gamma", "0.9", "--policy", policy]
        )
        assert done.exit_code == 2
        assert "--policy = " in done.stderr


# ---------------------------------------------------------------------- the command line


def test_the_commands_take_a_number_of_copies(tmp_path):
    common = ["gymnasium:FrozenLake-v1", "--gamma", "0.9", "--envs", "4", "--json"]
    done = CliRunner().invoke(main, ["rollouts", *common, "--episodes", "10"])
    assert done.exit_code == 0, done.output
    sample = rv.rollouts("FrozenLake-v1", gamma=0.9, envs=4, episodes=10)
    assert json.loads(done.stdout)["returns"] == sample.low.tolist()
    out = ["--out", str(tmp_path / "out"), "--formats", "none", "--steps", "500"]
    done = CliRunner().invoke(main, ["estimate", *common, *out])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["source"] == "gymnasium:FrozenLake-v1 × 4"


def test_the_options_of_environments_are_refused_for_logs():
    for words in (["--envs", "4"], ["--stochastic"], ["--deterministic"]):
        done = CliRunner().invoke(main, ["estimate", "log.parquet", "--gamma", "0.9", *words])
        assert done.exit_code == 2
        assert f"{words[0]} = " in done.stderr
        assert "only for environments" in done.stderr


def test_same_step_resets_bring_the_final_observation():
    """CartPole's last observation lies beyond the limits that end the episode."""
    env = vector("CartPole-v1", AutoresetMode.SAME_STEP)
    cut = whole(from_gymnasium(env, steps=600, seed=0))
    listed = whole(from_gymnasium(singles("CartPole-v1"), steps=600, seed=0))
    assert_array_equal(cut["next_state"], listed["next_state"])
