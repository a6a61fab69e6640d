"""Any way to the same experience gives the same bits; checkpoints; other files are refused.

``tests/data/checkpoint-v4.safetensors`` was written by the first version of this format, by
``fixture_learner`` after ``fixture_stream(0, 30)``. It stays as it is: later versions must read it.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

import retvar as rv
from retvar.online import estimator as estimators
from retvar.online.checkpoint import read_tensors, write_tensors
from retvar.td import features
from tests import oracle, streams
from tests.streams import feed, same, stream
from tests.test_lazy_traces import MANY

TIMES = 30 if oracle.SOAK else 3
DATA = Path(__file__).parent / "data"
FIXTURE = DATA / "checkpoint-v4.safetensors"
NODES = ("value", "mean", "variance")
CAR = ([-1.2, -0.07], [0.6, 0.07])  # the mountain car's bounds


# ---------------------------------------------------------------------- the same bits


def table(rng):
    return 0.5 * rng.normal(size=(4, 4)) * (rng.random((4, 4)) < 0.7)


def tables(rng):
    """Another one for each node."""
    return {f"{node}features": table(rng) for node in ("", "value_", "mean_")}


KINDS = {
    "states": lambda rng: {"states": 4},
    "table": lambda rng: {"features": table(rng)},
    "tables": tables,
    "vectors": lambda rng: {"features": 4},
} | {
    repr(kind): lambda rng, kind=kind: {"features": kind}
    for kind in (
        features.States(4), features.Active(4), features.TileCoding(*CAR, tiles=(3, 4), tilings=4),
        features.TileCoding(*CAR, tiles=5, tilings=3, memory=50),
        features.Polynomial(*CAR, degree=2), features.Fourier(*CAR, order=1),
    )
}  # fmt: skip


def a_kind(kind, seed, replicates=0):
    """A function that makes a random learner with features of a kind; experience for it."""
    rng = np.random.default_rng(seed)
    learner, given, columns = streams.learner(rng), KINDS[kind](rng), stream(rng, 30, streams=MANY)
    columns["rho"] = np.minimum(columns["rho"], 1.25)
    seen = given.get("features")
    if isinstance(seen, int | features.ObservationFeatures | features.Active):
        learner = learner.replace(kappa=0.5, kappa_bar=0.25, value=0.0, initial_variance=0.0)
        for name in ("state", "next_state"):
            columns[name] = observed(rng, seen)
    adapts = any(isinstance(node.step, rv.Adadelta) for node in learner.nodes())
    count = 0 if adapts else replicates
    return lambda samples=count: learner.online(**given, bootstrap_samples=samples), columns


def observed(rng, seen):
    """What comes with 30 transitions in place of states; some points lie outside the bounds."""
    if seen == 4:
        return 0.5 * rng.normal(size=(30, 4)) * (rng.random((30, 4)) < 0.7)
    if isinstance(seen, features.Active):
        return rng.integers(4, size=(30, 2))
    low, high = np.array(CAR)
    return low + rng.uniform(-0.1, 1.1, (30, 2)) * (high - low)


def part(columns, first, last):
    return {name: column[first:last] for name, column in columns.items()}


@pytest.mark.soak
@pytest.mark.parametrize("replicates", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_however_it_is_fed_copied_and_saved_an_estimator_has_the_same_bits(
    kind, replicates, tmp_path, monkeypatch
):
    """One by one, whole, as lists with gaps where nothing follows, in small blocks, or stopped.

    What was stopped is saved, loaded, cloned and continued. Replicates do not change the estimator;
    traces that are cleared change no weight.
    """
    base = oracle.fresh_seed()
    for k in range(TIMES):
        make, columns = a_kind(kind, [base, k], replicates)
        single, whole, listed, narrow, stopped = (make() for _ in range(5))
        feed(single, columns)
        whole.update_many(columns)
        lists = {name: list(column) for name, column in columns.items()}
        for t in np.flatnonzero(columns["terminated"]):
            lists["next_state"][t] = None
        listed.update_many(lists)
        with monkeypatch.context() as small:
            small.setattr(estimators, "ENTRIES", 7)
            narrow.update_many(columns)
        cut = int(np.random.default_rng([base, k, 1]).integers(31))
        stopped.update_many(part(columns, 0, cut))
        stopped.save(tmp_path / "cut.safetensors")
        resumed = rv.load(tmp_path / "cut.safetensors")
        assert resumed.description == stopped.description
        amid = [resumed, stopped.clone(), stopped]
        for each in amid:
            each.update_many(part(columns, cut, 30))
        alone = make(0)
        alone.update_many(columns)
        for other in (single, listed, narrow, *amid, alone):
            assert same(other, whole), (base, k, cut)
        before = whole.weights
        whole.reset_traces()
        assert not any(np.any(m.E) for m in whole._memory.block if m.E is not None)
        for name, wanted in before.items():
            assert_allclose(whole.weights[name], wanted, rtol=1e-12, atol=1e-12)


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


@pytest.mark.parametrize("kind", ["states", "table"])
def test_damaged_files_are_refused(kind, tmp_path):
    """A byte changed anywhere, or a part of the file missing; 1E-5 for 1e-5 is no damage."""
    path, rng = tmp_path / "good.safetensors", np.random.default_rng(oracle.fresh_seed())
    make, columns = a_kind(kind, 0)
    whole = make()
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
