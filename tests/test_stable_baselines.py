"""Stable-Baselines3: its models as policies, its vector environments, its files."""

from __future__ import annotations

import json

import gymnasium
import numpy as np
import pytest
from click.testing import CliRunner
from numpy.testing import assert_array_equal

import retvar as rv
from retvar.cli import main
from retvar.experience import from_gymnasium
from retvar.support.errors import SourceError
from tests.test_environments import same, singles, whole

sb3 = pytest.importorskip("stable_baselines3", reason="Stable-Baselines3: make test-deep")
torch = pytest.importorskip("torch", reason="Stable-Baselines3: make test-deep")

from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize  # noqa: E402

torch.set_num_threads(1)


def model(name="CartPole-v1", kind=sb3.PPO, **settings):
    """A model as it is before it has learned anything."""
    return kind("MlpPolicy", name, seed=0, device="cpu", **settings)


@pytest.fixture(scope="module")
def ppo():
    return model()


def one_by_one(ppo, deterministic=True):
    return lambda observation: ppo.predict(observation, deterministic=deterministic)[0]


# ---------------------------------------------------------------------- models


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1"])
def test_a_model_acts_alike_in_batches_and_one_by_one(name):
    own = model(name)
    expected = whole(from_gymnasium(singles(name), one_by_one(own), steps=400, seed=1))
    stream = from_gymnasium(name, own, envs=3, steps=400, seed=1)
    found = whole(stream)
    assert stream.policy == "PPO (deterministic)"
    assert_array_equal(found["stream"], expected["stream"])
    for column in ("state", "reward"):  # batches round differently
        np.testing.assert_allclose(found[column], expected[column], atol=2e-3)


def test_a_stochastic_model_draws_numbers_of_its_own(ppo):
    """The same for the same seed, whatever torch's generator is at, which is left alone."""

    def read(seed):
        stream = from_gymnasium("CartPole-v1", ppo, envs=4, steps=200, seed=seed,
                                deterministic=False)  # fmt: skip
        assert stream.policy == "PPO (stochastic)"
        return whole(stream)

    torch.manual_seed(1)
    first = read(5)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    same(read(5), first)
    assert torch.equal(torch.get_rng_state(), before)
    assert not np.array_equal(read(6)["state"], first["state"])


def test_stochastic_actions_have_the_probabilities_of_the_model(ppo):
    """One step from one state, 4,000 times: 4.9 standard errors."""
    start, taken = np.array([0.0, 0.5, 0.05, -0.5], dtype=np.float32), []

    class Watched(gymnasium.Wrapper):
        def reset(self, **settings):
            super().reset(**settings)
            return start, {}

        def step(self, action):
            taken.append(action)
            return start, 0.0, True, False, {}

    def make():
        return Watched(gymnasium.make("CartPole-v1"))

    list(from_gymnasium(make, ppo, envs=16, steps=4_000, deterministic=False).chunks())
    observation = torch.as_tensor(start[None])
    p = float(ppo.policy.get_distribution(observation).distribution.probs[0, 1].detach())
    assert abs(np.mean(taken) - p) < 4.9 * np.sqrt(p * (1 - p) / 4_000)


def test_a_model_of_another_environment_is_refused(ppo):
    for name in ("Pendulum-v1", "FrozenLake-v1"):
        with pytest.raises(SourceError, match="Unexpected observation shape"):
            from_gymnasium(name, ppo, steps=5).moves()


@pytest.mark.parametrize("norm_obs", [True, False])
def test_a_model_is_shown_observations_as_it_learned_from_them(norm_obs):
    """Normalised ones; the experience has those of the environment, and its rewards."""
    learned = VecNormalize(DummyVecEnv([lambda: gymnasium.make("CartPole-v1")]), norm_obs=norm_obs)
    own = sb3.PPO("MlpPolicy", learned, n_steps=256, seed=0, device="cpu").learn(512)

    def policy(observation):
        return own.predict(learned.normalize_obs(observation), deterministic=True)[0]

    expected = whole(from_gymnasium(singles("CartPole-v1", 1), policy, steps=200, seed=1))
    same(whole(from_gymnasium("CartPole-v1", own, steps=200, seed=1)), expected)
    assert (expected["reward"] == 1.0).all()


# ---------------------------------------------------------------------- files


def test_a_file_is_loaded_when_asked_for_by_name(ppo, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ppo.save("model.zip")
    expected = whole(from_gymnasium("CartPole-v1", ppo, steps=200, seed=1))
    same(whole(from_gymnasium("CartPole-v1", "sb3:PPO:model.zip", steps=200, seed=1)), expected)
    common = ["gymnasium:CartPole-v1", "--gamma", "0.9", "--policy", "sb3:PPO:model.zip"]
    done = CliRunner().invoke(
        main, ["rollouts", *common, "--episodes", "4", "--json", "--envs", "2"]
    )
    assert done.exit_code == 0, done.output
    sample = rv.rollouts("CartPole-v1", ppo, gamma=0.9, episodes=4, envs=2)
    assert json.loads(done.stdout)["returns"] == sample.returns.tolist()
    done = CliRunner().invoke(
        main,
        ["estimate", *common, "--stochastic", "--steps", "300", "--formats", "none", "--json",
         "--at", "0,0,0,0", "--rollouts", "3"],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["policy"] == "PPO (stochastic)"
    assert found["at"][0]["rollouts"]["episodes"] == 3
