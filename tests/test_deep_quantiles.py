"""The quantile critic that deep critics are compared with finds known quantiles."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import expon, norm

pytest.importorskip("torch")

from retvar.deep.transition_columns import Record

FILE = Path(__file__).resolve().parent.parent / "benchmarks" / "quantile_critic.py"


@pytest.fixture(scope="module")
def critics():
    """The module, which is not part of the package."""
    spec = importlib.util.spec_from_file_location("quantile_critic", FILE)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def one_state(rewards, gamma, terminated):
    """A walk in a world with one state."""
    record, n = Record(gamma, 1.0), len(rewards)
    x = np.zeros((n, 1))
    record.add(
        {"state": x, "next_state": x, "reward": rewards, "terminated": np.full(n, terminated)}
    )
    return record.columns()


def quantiles(critics, columns, kappas, **settings):
    lanes = [critics.Lane(learning_rate=0.03, average=0.98, kappa=kappa) for kappa in kappas]
    critic = critics.fit(columns, lanes, hidden=(2,), steps=400, batch_size=256, **settings)
    return critic.quantiles(np.zeros((1, 1)))[:, 0]


def test_after_one_step_they_are_those_of_the_reward(critics):
    """The standard error of a quantile of 20,000 exponential rewards is below 0.06."""
    rewards = np.random.default_rng(1).exponential(size=20_000)
    (found,) = quantiles(critics, one_state(rewards, 0.9, True), [0.5])
    assert np.abs(found - expon.ppf(critics.LEVELS)).max() < 0.15


def test_by_one_step_by_several_and_by_monte_carlo_they_are_those_of_the_return(critics):
    """Σ γᵏR with R ~ N(1, 1) is N(1/(1 − γ), 1/(1 − γ²))."""
    gamma = 0.6
    rewards = np.random.default_rng(2).normal(1.0, size=20_000)
    exact = norm.ppf(critics.LEVELS, 1 / (1 - gamma), 1 / np.sqrt(1 - gamma**2))
    for found in quantiles(critics, one_state(rewards, gamma, False), [0.0, 0.7, 1.0]):
        assert np.abs(found - exact)[2:-2].max() < 0.12
