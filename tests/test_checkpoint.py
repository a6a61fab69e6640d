"""Checkpoints: resumed to the bit, written whole or not at all; other files are refused.

``tests/data/checkpoint-v4.safetensors`` was written by the first version of this format, by
``fixture_learner`` after ``fixture_stream(0, 30)``. It stays as it is: later versions must read it.
"""

import json
from pathlib import Path

import numpy as np
import pytest

import retvar as rv
from retvar.online.checkpoint import read_tensors, write_tensors
from tests import oracle, streams
from tests.streams import same, stream

TIMES = 5 if oracle.SOAK else 1
DATA = Path(__file__).parent / "data"
FIXTURE = DATA / "checkpoint-v4.safetensors"
NODES = ("value", "mean", "variance")


# ---------------------------------------------------------------------- resuming


def by_states(rng, description, columns):
    return description.online(states=4), columns


def by_table(rng, description, columns):
    return description.online(features=table(rng)), columns


def by_tables(rng, description, columns):
    """Another table for each node."""
    value, mean, variance = (table(rng) for _ in range(3))
    kinds = {"features": variance, "value_features": value, "mean_features": mean}
    return description.online(**kinds), columns


def by_vectors(rng, description, columns):
    given = table(rng)
    return uniform(description).online(features=4), look_up(columns, lambda s: given[s])


def by_active_sets(rng, description, columns):
    sets = [[0, 1], [1], [2, 3, 3], [3, 0]]
    online = uniform(description).online(features=rv.features.Active(4))
    return online, look_up(columns, lambda s: [sets[k] for k in s])


KINDS = [by_states, by_table, by_tables, by_vectors, by_active_sets]


def table(rng):
    return 0.5 * rng.normal(size=(4, 4)) * (rng.random((4, 4)) < 0.7)


def uniform(description):
    """With features of each transition there are no settings per state."""
    return description.replace(kappa=0.5, kappa_bar=0.25)


def look_up(columns, seen):
    return columns | {name: seen(columns[name]) for name in ("state", "next_state")}


def part(columns, first, last):
    return {name: column[first:last] for name, column in columns.items()}


def a_kind(kind, seed):
    """A random learner with features of a kind, and experience for it."""
    rng = np.random.default_rng(seed)
    columns = stream(rng, 40, streams=3)
    columns["rho"] = np.minimum(columns["rho"], 1.25)
    return kind(rng, streams.learner(rng), columns)


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_saving_and_loading_at_any_step_changes_nothing(kind, tmp_path):
    """Saved, loaded and continued: the same bits. 200 random steps, 1,000 in `make nightly`."""
    path = tmp_path / "cut.safetensors"
    base = oracle.fresh_seed()
    for k in range(29 * TIMES):
        seed = [base, k]
        whole, columns = a_kind(kind, seed)
        stopped, _ = a_kind(kind, seed)
        cut = int(np.random.default_rng([base, k, 1]).integers(41))
        whole.update_many(columns)
        stopped.update_many(part(columns, 0, cut))
        stopped.save(path)
        resumed = rv.load(path)
        assert same(resumed, stopped), (seed, cut)
        assert resumed.description == stopped.description
        resumed.update_many(part(columns, cut, 40))
        assert same(resumed, whole), (seed, cut)


# ---------------------------------------------------------------------- older versions


def fixture_learner():
    description = rv.Centred(
        alpha=rv.AlphaBound(0.5), alpha_bar=rv.Decay(), alpha_mean=rv.Adadelta(0.9, 1e-4),
        gamma=[0.5, 0.75, 1.0, 0.25], lam=0.5, kappa=[0.5, 1.0, 0.25, 0.75], kappa_bar=0.5,
        kappa_mean=0.75, value=[1.0, -1.0], initial_variance=[0.5, 0.0, 0.25],
        estimand="off_policy_return",
    )  # fmt: skip
    X = np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0], [0.25, -0.5]])
    Phi = np.array([[1.0, 0.0, 0.0], [0.0, 0.5, 0.0], [0.0, 0.25, 1.0], [0.5, 0.0, 0.5]])
    return description.online(features=Phi, value_features=X)


def fixture_stream(first, last):
    """Experience that needs no random numbers, which might not be the same in all versions."""
    t = np.arange(first, last)
    return {
        "state": t * 7 % 4, "reward": (t * 5 % 11) / 4 - 1.0, "next_state": (t * 7 + 1) % 4,
        "terminated": t % 9 == 8, "truncated": t % 13 == 12, "rho": (t * 3 % 5) / 4,
        "stream": t % 2,
    }  # fmt: skip


def fixture_answers(estimator):
    answers = {name: getattr(estimator, name)().tolist() for name in NODES}
    return {name: [x.hex() for x in numbers] for name, numbers in answers.items()}


def test_a_file_of_this_format_is_read_by_later_versions():
    estimator = rv.load(FIXTURE)
    assert (estimator.steps, estimator.rejected) == (30, 0)
    assert estimator.description == fixture_learner().description
    expected = json.loads(FIXTURE.with_suffix(".json").read_text(encoding="utf-8"))
    assert fixture_answers(estimator) == expected["at 30"]
    estimator.update_many(fixture_stream(30, 60))
    assert fixture_answers(estimator) == expected["at 60"]


# ---------------------------------------------------------------------- other files


@pytest.mark.parametrize("kind", [by_states, by_table], ids=lambda kind: kind.__name__)
def test_damaged_files_are_refused(kind, tmp_path):
    """A byte changed anywhere, or a part of the file missing; 1E-5 for 1e-5 is no damage."""
    path, rng = tmp_path / "good.safetensors", np.random.default_rng(oracle.fresh_seed())
    whole, columns = a_kind(kind, 0)
    whole.update_many(part(columns, 0, 20))
    whole.save(path)
    good = path.read_bytes()
    for at in rng.integers(len(good), size=100):
        path.write_bytes(good[:at])
        with pytest.raises(rv.InputError):
            rv.load(path)
        damaged = bytearray(good)
        damaged[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(bytes(damaged))
        try:
            assert same(rv.load(path), whole)
            assert good[at : at + 1] == b"e"
        except rv.InputError:
            pass


def test_a_later_format_is_refused(tmp_path):
    header, tensors = read_tensors(FIXTURE)
    write_tensors(tmp_path / "later.safetensors", header | {"format": 5}, tensors)
    with pytest.raises(rv.InputError):
        rv.load(tmp_path / "later.safetensors")
