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
from retvar.deep.record import Record  # noqa: E402

torch.set_num_threads(1)
SMALL = {"gamma": 0.9, "every": 256, "window": 1_024, "hidden": (16,), "sweeps": 1}
START = [0.0, 0.0, 0.0, 0.0]


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
    """All weights, those of the optimiser, and every generator of random numbers after it."""

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
