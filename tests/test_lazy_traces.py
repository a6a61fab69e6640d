"""Lazy traces: features that come with each transition are learned as with eager traces.

The oracle is the same learner with tables of features, whose traces are eager. Both equal the dense
reference in tests/test_bootstrap.py.
"""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import retvar as rv
from retvar.td.lazy import DEFERRED
from tests import oracle, streams
from tests.streams import stream

TIMES = 5 if oracle.SOAK else 1
MANY = DEFERRED + 3  # streams: with and without deferred updates


def close(found, wanted, tolerance=1e-9):
    """Equal, as numbers of the size of the largest."""
    scale = np.abs(wanted).max() + 1e-12
    assert_allclose(found, wanted, rtol=tolerance, atol=tolerance * scale)


def sparse(rng, states, size):
    return rng.choice([-0.5, 0.3, 0.7], size=(states, size)) * (rng.random((states, size)) < 0.5)


def as_features(columns, table):
    """The same experience with the features in place of states."""
    return columns | {name: table[columns[name]] for name in ("state", "next_state")}


def pair(description, table, **settings):
    """The same learner with a table, whose traces are eager, and with vectors."""
    size = table.shape[1]
    start = {"value": np.linspace(-1, 1, size), "initial_variance": np.ones(size)}
    description = description.replace(**start, **settings)
    return description.online(features=table), description.online(features=size)


@pytest.mark.soak
@pytest.mark.parametrize("batch", range(10 if oracle.SOAK else 1))
def test_vectors_learn_what_tables_do(batch):
    """Any learner, any step sizes, any number of streams: 40 cases a batch, 200 steps each."""
    rng = np.random.default_rng([oracle.fresh_seed(), batch])
    for _ in range(40):
        table = sparse(rng, 5, 4)
        eager, lazy = pair(
            streams.learner(rng), table, kappa=float(rng.random()), kappa_bar=float(rng.random())
        )
        columns = stream(rng, 200, states=5, streams=int(rng.integers(1, MANY)))
        columns["rho"] = np.minimum(columns["rho"], 1.25)
        columns["terminated"] &= rng.random(200) < 0.3
        eager.update_many(columns)
        lazy.update_many(as_features(columns, table))
        for node, wanted in eager.weights.items():
            close(lazy.weights[node], wanted)
        close(list(lazy.td_errors.values()), list(eager.td_errors.values()))
        close(list(lazy.step_sizes.values()), list(eager.step_sizes.values()))


TINY = [rv.Constant(1e-60), rv.Decay(1e-60, 0.7), rv.Averaged(1e-60), rv.AlphaBound(1e-60)]


@pytest.mark.parametrize("rule", TINY, ids=repr)
def test_scales_may_leave_their_range_at_every_step(rule):
    """Ratios of 10⁻⁵ to 10⁵ between steps, and of 0: flushed again and again, in both directions.

    With steps so small that no error feeds on the weights.
    """
    rng = np.random.default_rng(oracle.fresh_seed())
    for _ in range(20 * TIMES):
        table = sparse(rng, 5, 4)
        description = rv.Direct(alpha=rule, gamma=1.0, lam=1.0, kappa=0.9, kappa_bar=0.9)
        eager, lazy = description.online(features=table), description.online(features=4)
        columns = stream(rng, 60, states=5, streams=2)
        size = rng.permutation(np.repeat([1e-5, 1.0, 1e5, 1e-2, 1e2], 12))
        columns["rho"] = np.where(columns["stream"] == 0, size, columns["rho"])
        for name in ("gamma", "lam", "terminated"):
            columns.pop(name)
        eager.update_many(columns)
        lazy.update_many(as_features(columns, table))
        for node, wanted in eager.weights.items():
            close(lazy.weights[node] * 1e60, wanted * 1e60)


@pytest.mark.compiled
def test_a_long_stream_without_end_does_not_drift():
    """10⁵ steps (10⁶ in `make nightly`), no end, flushed thousands of times: error below 10⁻¹⁰.

    In a table of states traces are eager; the same states as vectors have lazy ones.
    """
    rng, steps = np.random.default_rng(oracle.fresh_seed()), 1_000_000 if oracle.SOAK else 100_000
    path = rng.integers(12, size=steps + 1)
    columns = {"state": path[:-1], "reward": rng.normal(size=steps), "next_state": path[1:]}
    for rule in (rv.Averaged(0.3), rv.Constant(0.01)) if oracle.SOAK else (rv.Averaged(0.3),):
        learner = rv.Direct(alpha=rule, gamma=0.95, lam=0.9, kappa=0.9, kappa_bar=0.9)
        eager, lazy = (
            learner.online(**{k: 12}, bootstrap_samples=2) for k in ("states", "features")
        )
        eager.update_many(columns)
        lazy.update_many(as_features(columns, np.eye(12)))
        for node, wanted in eager.weights.items():
            close(lazy.weights[node], wanted, 1e-10)


# ---------------------------------------------------------------------- divergence


@pytest.mark.parametrize("stream_number", [0, DEFERRED])
@pytest.mark.parametrize("wild", [(1.0, 1e200), (1e70, 1e100)], ids=["error", "feature"])
@pytest.mark.parametrize("step", [rv.Constant(0.05), rv.Decay(), rv.Averaged()], ids=repr)
def test_divergence_of_an_active_weight_is_noticed_at_once(step, wild, stream_number):
    estimator = rv.Direct(alpha=step, gamma=0.9, lam=0.9, kappa=0.9).online(features=2)
    estimator.update([1.0, 0.5], 1.0, [0.5, 1.0], stream=stream_number)
    with pytest.raises(rv.DivergenceError, match="value node diverged at step 2"):
        estimator.update([0.5, wild[0]], wild[1], [0.0, 0.0], stream=stream_number)


@pytest.mark.parametrize("how", ["terminated", "truncated", "cut", "bad row", "fold"])
def test_divergence_of_another_weight_is_noticed_when_it_is_flushed(how):
    """A trace of 10⁹⁰ is moved by an error of 10⁸⁰, while only another weight is active."""
    learner = rv.Direct(
        alpha=0.1, alpha_bar=0.0, gamma=0.9, lam=0.9, kappa=0.9, value=[0.0, 0.0, 2.0]
    ).online(features=3)
    learner.update([1e90, 0.0, 0.0], 0.0, [0.0, 0.0, 0.0])
    learner.update([0.0, 1.0, 0.0], 1e70, [0.0, 0.0, 0.0])
    small = {"state": [[0.0, 0.0, 1.0]], "reward": [2.0], "next_state": [[0.0, 0.0, 0.0]]}
    act = {
        "cut": learner.reset_traces,
        "bad row": lambda: learner.update_many({**small, "reward": [np.nan]}, on_error="skip"),
        "fold": lambda: learner.update_many({n: c * 100 for n, c in small.items()}),
    }.get(how, lambda: learner.update_many({**small, how: [True]}))
    with pytest.raises(rv.DivergenceError, match="value node"):
        act()
