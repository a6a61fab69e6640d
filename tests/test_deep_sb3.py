"""Critics beside the training of Stable-Baselines3, and of a PPO of one's own."""

from __future__ import annotations

import csv
import logging
import random
import re
import sys
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import retvar as rv
from retvar.errors import InputError
from retvar.experience import from_gymnasium
from tests.test_examples import run

sb3 = pytest.importorskip("stable_baselines3", reason="Stable-Baselines3: make test-deep")
torch = pytest.importorskip("torch", reason="Stable-Baselines3: make test-deep")

from stable_baselines3.common.callbacks import EveryNTimesteps  # noqa: E402
from stable_baselines3.common.env_util import make_vec_env  # noqa: E402
from stable_baselines3.common.logger import configure  # noqa: E402
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize  # noqa: E402

from retvar.deep import SpreadCallback  # noqa: E402
from retvar.deep.callback import calibrated  # noqa: E402
from retvar.deep.transition_columns import Record  # noqa: E402

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

    def _use_new(self):
        take, self.chunks = self._steps.take, [*getattr(self, "chunks", []), self._steps.take()]
        self._steps.take = lambda: dict(self.chunks[-1])
        try:
            super()._use_new()
        finally:
            self._steps.take = take

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


def test_a_random_number_drawn_by_it_would_be_noticed():
    """The test above can fail: one draw from torch's generator changes the policy."""

    class Drawing(SpreadCallback):
        def _on_rollout_end(self):
            torch.rand(1)

    plain, other = (ppo().learn(600, callback=each) for each in (None, Drawing(**SMALL)))
    assert any(
        not torch.equal(a, b)
        for a, b in zip(plain.policy.parameters(), other.policy.parameters(), strict=True)
    )


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
    units = "original units" if normalise else "of the environment"
    assert units in beside.critic.notes["units"]


def test_a_critic_of_a_policy_that_stays_agrees_with_roll_outs():
    """Learning rate 0: then nothing lags. All random numbers are seeded."""
    model = ppo(make_vec_env("CartPole-v1", 8, seed=1), learning_rate=0.0, n_epochs=1)
    beside = SpreadCallback(gamma=0.9)
    model.learn(10_000, callback=beside)
    sample = rv.rollouts("CartPole-v1", model, gamma=0.9, episodes=300, start=START, seed=1,
                         deterministic=False, envs=16)  # fmt: skip
    assert abs(beside.critic.value(START) / sample.returns.mean() - 1) < 0.05
    assert abs(beside.critic.std(START) / sample.returns.std() - 1) < 0.25
    assert 0.85 < beside.calibration.ratio < 1.15
    assert 0.9 < beside.calibration.within(2) < 0.99
    assert beside.lag == np.mean([4, 3, 2, 1])  # in updates, of the four rollouts that are kept


# ---------------------------------------------------------------------- what it says


def exact(variance):
    """A critic of rewards that are independent and standard normal."""

    def module(x):
        return torch.zeros(len(x)), torch.full((len(x),), variance)

    module.centre = torch.zeros(1)
    found = {"value": 0.0, "std": np.sqrt(variance)}
    return SimpleNamespace(
        module=module, predict=lambda rows, what: np.full(len(rows), found[what])
    )


@pytest.mark.parametrize("gamma", [0.5, 0.9, 0.99])
def test_calibration_of_an_exact_critic_is_right_however_short_the_rollouts(gamma):
    """20,000 pieces of 40 steps: standard error of the ratio below 0.006."""
    rng, streams, length = np.random.default_rng(3), 20_000, 40
    n = streams * length
    record = Record(gamma, 1.0)
    nothing, stream = np.zeros((n, 1)), np.repeat(np.arange(streams), length)
    record.add({"state": nothing, "next_state": nothing, "reward": rng.normal(size=n),
                "stream": stream})  # fmt: skip
    found = calibrated(exact(1 / (1 - gamma**2)), record.columns(), streams, rng)
    assert abs(found.ratio - 1) < 0.03
    assert abs(found.within(2) - 0.9545) < 0.01
    assert abs(found.offset) < 0.03
    wrong = calibrated(exact(4 / (1 - gamma**2)), record.columns(), streams, rng)
    assert wrong.ratio < 0.95


def test_returns_are_compared_before_the_critic_is_fitted_to_them(monkeypatch):
    asked = []

    def spy(critic, new, *others):
        asked.append((critic.about.steps, len(new)))
        return calibrated(critic, new, *others)

    monkeypatch.setattr("retvar.deep.callback.calibrated", spy)
    beside = SpreadCallback(**SMALL)
    ppo().learn(1_536, callback=beside)
    assert asked == [(256, 256), (512, 256), (768, 256), (1_024, 256), (1_024, 256)]
    assert beside.critic.steps == 1_024


def test_the_logger_gets_everything(tmp_path):
    """PPO updates twice a rollout; four rollouts are kept."""
    model = ppo()
    model.set_logger(configure(str(tmp_path), ["csv"]))
    beside = SpreadCallback(**SMALL)
    model.learn(1_536, callback=beside)
    model.logger.close()
    with (tmp_path / "progress.csv").open() as file:
        rows = list(csv.DictReader(file))
    names = ("value", "std", "within_2std", "calibration", "lag", "error_share")
    assert [float(row["spread/lag"]) for row in rows] == [0, 1, 2, 3, 3, 3]
    for name in names:
        told = [row[f"spread/{name}"] for row in rows]
        assert all(np.isfinite(float(each)) for each in told if each), name
        assert ("" in told) == (name in ("within_2std", "calibration"))  # not before the first fit
    assert 3 < float(rows[-1]["spread/value"]) < 10
    assert float(rows[-1]["spread/calibration"]) == pytest.approx(
        beside.calibration.ratio, rel=1e-5
    )
    assert beside.lag == 5.0  # and one update after the last


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


def test_learning_again_does_not_join_episodes():
    """A reset between: the last transition before does not go on with the first after it."""
    beside = Keeping(**SMALL)
    model = ppo().learn(256, callback=beside)
    model.learn(256, callback=beside)
    assert set(beside.column("stream")) == {0, 1}


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "gamma = None: must be given"),
        ({"gamma": "much"}, "gamma = 'much'"),
        ({"gamma": 1.5}, "gamma"),
        ({"gamma": [0.9, 0.8]}, "gamma"),
        ({"gamma": 0.9, "lam": None}, "lam"),
        ({"gamma": 0.9, "method": "quantile"}, "method = 'quantile'"),
        ({"gamma": 0.9, "window": 10}, "window = 10"),
        ({"gamma": 0.9, "every": 0}, "every = 0"),
        ({"gamma": 0.9, "sweeps": 1.5}, "sweeps = 1.5"),
        ({"gamma": 0.9, "hidden": 64}, "hidden = 64"),
        ({"gamma": 0.9, "encoder": 3}, "encoder"),
        ({"gamma": 0.9, "device": "abacus"}, "device = abacus"),
    ],
)
def test_settings_that_make_no_sense_are_refused(given, message):
    with pytest.raises(InputError, match=re.escape(message)):
        SpreadCallback(**given)


class Odd(gymnasium.Env):
    """Zeros of any space, for ever; `reward` of each step."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, space, reward=lambda step: 0.0):
        self.observation_space, self.reward, self.steps = space, reward, 0
        self.zero = np.zeros(space.shape, space.dtype)

    def reset(self, *, seed=None, options=None):
        return self.zero, {}

    def step(self, action):
        self.steps += 1
        return self.zero, self.reward(self.steps), False, self.steps % 50 == 0, {}


BOX = gymnasium.spaces.Box


def test_observations_that_it_cannot_use_are_refused_before_the_first_step():
    beside = SpreadCallback(gamma=0.9)
    with pytest.raises(InputError, match=r"are numbered states: .* take rv.estimate"):
        ppo("FrozenLake-v1").learn(256, callback=beside)
    wide = ppo(Odd(BOX(-1, 1, (2_000,))))
    with pytest.raises(InputError, match="give an encoder"):
        wide.learn(256, callback=beside)
    assert wide.num_timesteps == 0
    stacked = VecFrameStack(VecNormalize(make_vec_env("CartPole-v1", 1)), 2)
    with pytest.raises(InputError, match="put VecNormalize around all other wrappers"):
        ppo(stacked).learn(256, callback=beside)


def test_an_encoder_makes_wide_observations_narrow():
    beside = SpreadCallback(**SMALL, encoder=lambda x: x[:, :3])
    ppo(Odd(BOX(-1, 1, (2_000,)), lambda step: step % 2)).learn(512, callback=beside)
    assert beside.critic.value(np.zeros((4, 2_000))).shape == (4,)


def test_a_callback_that_is_called_now_and_then_is_refused():
    with pytest.raises(InputError, match=r"called after 64 steps.*in a list"):
        ppo().learn(256, callback=EveryNTimesteps(64, SpreadCallback(gamma=0.9)))
    beside = SpreadCallback(**SMALL)
    ppo().learn(256, callback=[beside])
    assert beside.critic.steps == 256


def test_transitions_that_are_not_finite_are_left_out_and_training_goes_on(caplog):
    env = Odd(BOX(-1, 1, (2,)), lambda step: np.nan if step == 300 else 1.0)
    model = sb3.DQN("MlpPolicy", env, learning_starts=5_000, device="cpu")
    beside = SpreadCallback(**SMALL)
    with caplog.at_level(logging.WARNING, "retvar"):
        model.learn(1_024, callback=beside)
    assert "reward = not finite: must hold finite numbers" in caplog.text
    assert "these transitions are left out" in caplog.text
    assert beside.rejected == 256
    assert beside.critic.steps == 768


def test_networks_that_diverge_begin_anew_and_training_goes_on(monkeypatch, caplog):
    from retvar.deep.fitting import Fitting, LossDivergenceError

    right, times = Fitting.run, []

    def failing(self, *given):
        times.append(self)
        if len(times) == 2:
            raise LossDivergenceError("value", 40, 0.1)
        right(self, *given)

    monkeypatch.setattr(Fitting, "run", failing)
    beside = SpreadCallback(**SMALL)
    with caplog.at_level(logging.WARNING, "retvar"):
        ppo().learn(768, callback=beside)
    assert "diverged" in caplog.text
    assert len(times) == 3
    assert times[2] is not times[0]
    assert beside.critic.steps == 768


def test_without_stable_baselines_the_extra_is_named(monkeypatch):
    monkeypatch.delitem(sys.modules, "retvar.deep.callback")
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    monkeypatch.setitem(sys.modules, "stable_baselines3.common.callbacks", None)
    with pytest.raises(InputError, match=r'pip install "retvar\[sb3\]"; rv.deep.SpreadCallback'):
        _ = rv.deep.SpreadCallback


# ---------------------------------------------------------------------- trained policies


@pytest.mark.parametrize(
    ("deterministic", "word"), [(False, "stochastic"), (True, "deterministic")]
)
def test_a_critic_of_a_vec_env_says_which_policy_it_is_about(deterministic, word):
    env = VecNormalize(make_vec_env("CartPole-v1", 4, seed=0), norm_reward=False, training=False)
    model = ppo(env)
    stream = from_gymnasium(env, model, deterministic=deterministic, steps=600, seed=0)
    critic = rv.deep.fit(stream, gamma=0.9, members=1, sweeps=2, batches=10, hidden=(8,))
    assert critic.about.policy == f"PPO ({word})"
    assert critic.about.source == "gymnasium:CartPole-v1 × 4"


def test_the_example_trains_a_variance_head_beside_ppo(capsys):
    """In small."""
    output = run("ppo_with_spread", capsys, 2_048)
    pairs = re.findall(r"value (-?[\d.]+) ± ([\d.]+)", output)
    assert len(pairs) == 2
    assert re.search(r"fresh returns: [\d.]+ ± [\d.]+", output)
