"""Critics beside the training of Stable-Baselines3, and of a PPO of one's own."""

from __future__ import annotations

import csv
import random
import re

import gymnasium
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import retvar as rv
from retvar.support.errors import InputError
from tests.test_examples import run

sb3 = pytest.importorskip("stable_baselines3", reason="Stable-Baselines3: make test-deep")
torch = pytest.importorskip("torch", reason="Stable-Baselines3: make test-deep")

from stable_baselines3.common.callbacks import EveryNTimesteps  # noqa: E402
from stable_baselines3.common.env_util import make_vec_env  # noqa: E402
from stable_baselines3.common.logger import configure  # noqa: E402
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize  # noqa: E402

from retvar.deep import SpreadCallback  # noqa: E402

torch.set_num_threads(1)
SMALL = {"gamma": 0.9, "every": 256, "window": 1_024, "hidden": (16,), "sweeps": 1}
START = [0.0, 0.0, 0.0, 0.0]


@pytest.fixture(autouse=True)
def brief(request, monkeypatch):
    """Networks begin with few sweeps, where it does not matter how good they are."""
    if "agrees" not in request.node.name:
        monkeypatch.setattr("retvar.deep.callback.FIRST_SWEEPS", 2)


def ppo(env="CartPole-v1", **settings):
    settings = {"n_steps": 256, "batch_size": 128, "n_epochs": 2, "seed": 0} | settings
    return sb3.PPO("MlpPolicy", env, device="cpu", **settings)


def dqn():
    how = {"learning_starts": 200, "buffer_size": 2_000, "train_freq": 8, "seed": 0}
    return sb3.DQN(
        "MlpPolicy", "CartPole-v1", device="cpu", policy_kwargs={"net_arch": [16]}, **how
    )


def sac():
    how = {"learning_starts": 250, "buffer_size": 2_000, "batch_size": 16, "seed": 0}
    return sb3.SAC("MlpPolicy", "Pendulum-v1", device="cpu", policy_kwargs={"net_arch": [8]}, **how)


def normalised_ppo():
    return ppo(VecNormalize(make_vec_env("CartPole-v1", 2, seed=0), gamma=0.9), n_steps=128)


class Keeping(SpreadCallback):
    """Keeps what it was given, as chunks."""

    def _take(self):
        self.chunks = [*getattr(self, "chunks", []), super()._take()]
        return dict(self.chunks[-1])

    def column(self, name):
        return np.concatenate([chunk[name] for chunk in self.chunks])


# ---------------------------------------------------------------------- the training is the same


@pytest.mark.parametrize(
    ("make", "steps"), [(ppo, 1_100), (normalised_ppo, 1_100), (dqn, 900), (sac, 420)]
)
def test_the_policy_has_the_same_bits_with_and_without_it(make, steps):
    """All weights; after it also every generator of random numbers, and torch's settings."""

    def train(callback):
        model = make().learn(steps, callback=callback)
        weights = {**model.policy.state_dict()}
        if model.get_vec_normalize_env() is not None:
            rms = model.get_vec_normalize_env().obs_rms
            weights["mean"] = torch.from_numpy(np.array(rms.mean))
        state = torch.get_rng_state(), np.random.get_state()[1], random.getstate()  # noqa: NPY002
        modes = [part.training for part in model.policy.modules()]
        return weights, state, (modes, torch.is_grad_enabled(), torch.get_num_threads())

    beside = SpreadCallback(**SMALL)
    (plain, plain_state, plain_modes), (found, state, modes) = train(None), train(beside)
    assert beside.critic.steps >= 400  # it has done something
    assert plain.keys() == found.keys()
    for name in plain:
        assert torch.equal(plain[name], found[name]), name
    assert torch.equal(plain_state[0], state[0])
    assert_array_equal(plain_state[1], state[1])
    assert plain_state[2] == state[2]
    assert plain_modes == modes


# ---------------------------------------------------------------------- what it records


class Watched(gymnasium.Wrapper):
    """Remembers its transitions, as they are."""

    def __init__(self, env):
        super().__init__(env)
        self.seen = []

    def reset(self, **settings):
        self.now, info = super().reset(**settings)
        return self.now, info

    def step(self, action):
        found = super().step(action)
        self.seen.append((self.now, found[0], float(found[1]), bool(found[2]), bool(found[3])))
        self.now = found[0]
        return found


def watched(count=2, limit=15):
    made = [Watched(gymnasium.make("CartPole-v1", max_episode_steps=limit)) for _ in range(count)]
    return DummyVecEnv([lambda env=env: env for env in made]), made


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("kind", ["PPO", "DQN"])
def test_it_records_the_transitions_as_the_environments_have_them(kind, normalise):
    """Also those that were normalised: raw observations, rewards, and the last ones of episodes."""
    env, made = watched()
    if normalise:
        env = VecNormalize(env)
    how = {"train_freq": 5, "seed": 0, "device": "cpu"}
    model = ppo(env, n_steps=128) if kind == "PPO" else sb3.DQN("MlpPolicy", env, **how)
    beside = Keeping(**SMALL)
    model.learn(400, callback=beside)
    stream, cut = beside.column("stream"), beside.column("truncated")
    for i, single in enumerate(made):
        before, after, reward, ended, late = (np.array(c) for c in zip(*single.seen, strict=True))
        own = stream == i
        assert_array_equal(beside.column("state")[own], before)
        assert_array_equal(beside.column("reward")[own], reward)
        assert_array_equal(beside.column("terminated")[own], ended)
        assert_array_equal(cut[own], late & ~ended)
        going = ~(ended | late)
        assert_array_equal(beside.column("next_state")[own][going], after[going])
        assert_allclose(beside.column("next_state")[own], after, rtol=1e-4, atol=1e-5)
    assert cut.any()
    assert beside.column("terminated").any()


def test_a_critic_of_a_policy_that_stays_agrees_with_roll_outs():
    """Learning rate 0: all data is of the policy now. All random numbers are seeded."""
    model = ppo(make_vec_env("CartPole-v1", 8, seed=1), learning_rate=0.0, n_epochs=1)
    beside = SpreadCallback(gamma=0.9)
    model.learn(10_000, callback=beside)
    sample = rv.rollouts("CartPole-v1", model, gamma=0.9, episodes=300, start=START, seed=1,
                         deterministic=False, envs=16)  # fmt: skip
    assert abs(beside.critic.value(START) / sample.returns.mean() - 1) < 0.05
    assert abs(beside.critic.std(START) / sample.returns.std() - 1) < 0.25
    assert 0.85 < beside.calibration.ratio < 1.15
    assert beside.critic.about.held_out == beside.calibration.observed.size > 0
    assert 0.9 < beside.calibration.within(2) < 0.99


# ---------------------------------------------------------------------- what it says


def test_the_logger_gets_everything(tmp_path):
    model = ppo()
    model.set_logger(configure(str(tmp_path), ["csv"]))
    beside = SpreadCallback(**SMALL)
    model.learn(1_536, callback=beside)
    model.logger.close()
    with (tmp_path / "progress.csv").open() as file:
        rows = list(csv.DictReader(file))
    names = ("value", "std", "within_2std", "calibration", "error_share")
    for name in names:
        told = [row[f"spread/{name}"] for row in rows]
        assert all(np.isfinite(float(each)) for each in told if each), name
        assert ("" in told) == (name in ("within_2std", "calibration"))  # not before the first fit
    assert 3 < float(rows[-1]["spread/value"]) < 10
    assert float(rows[-1]["spread/calibration"]) == pytest.approx(
        beside.calibration.ratio, rel=1e-5
    )


def test_a_critic_stays_as_it_is_when_training_goes_on(tmp_path):
    beside = SpreadCallback(**SMALL)
    with pytest.raises(InputError, match="train for 200 steps at least"):
        _ = beside.critic
    model = ppo().learn(300, callback=beside)  # the last fit comes at the end
    critic = beside.critic
    assert critic.steps == 512
    assert critic.about.policy == "PPO (exploring, in training)"
    assert critic.about.source == "gymnasium:CartPole-v1"
    before = critic.std(START)
    critic.save(tmp_path / "critic.safetensors")
    model.learn(600, callback=beside, reset_num_timesteps=False)
    assert beside.critic.steps == 1_024
    assert beside.critic.std(START) != before
    assert critic.std(START) == before
    assert rv.deep.Critic.load(tmp_path / "critic.safetensors").std(START) == before
    ppo(seed=1).learn(256, callback=beside)  # another model: what was learned is of no use
    assert beside.critic.steps == 256


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("field", "env"),
    [
        ("experience", lambda: "FrozenLake-v1"),
        ("observations", lambda: VecFrameStack(VecNormalize(make_vec_env("CartPole-v1", 1)), 2)),
    ],
)
def test_observations_that_it_cannot_use_are_refused(field, env):
    with pytest.raises(InputError) as refused:
        ppo(env()).learn(256, callback=SpreadCallback(gamma=0.9))
    assert refused.value.field == field


def test_a_callback_that_is_called_now_and_then_is_refused():
    with pytest.raises(InputError, match=r"called after 64 steps.*in a list"):
        ppo().learn(256, callback=EveryNTimesteps(64, SpreadCallback(gamma=0.9)))
    beside = SpreadCallback(**SMALL)
    ppo().learn(256, callback=[beside])
    assert beside.critic.steps == 256
    with pytest.raises(InputError, match="window"):
        SpreadCallback(gamma=0.9, window=10)


def test_the_example_trains_a_variance_head_beside_ppo(capsys):
    """In small."""
    output = run("ppo_with_spread", capsys, 2_048)
    pairs = re.findall(r"value (-?[\d.]+) ± ([\d.]+)", output)
    assert len(pairs) == 2
    assert re.search(r"fresh returns: [\d.]+ ± [\d.]+", output)
