"""The engine has the bits of the online estimator, for any other learners, threads and batches."""

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import retvar as rv
from retvar.td import block
from tests import cases, fixed_cases, oracle
from tests.cases import check_statistics
from tests.fixed_cases import FIXED_CASES, bits, digest

BATCHES = range(10 if oracle.SOAK else 1)
compiled = pytest.mark.compiled


def examples(push: int, nightly: int):
    return settings(
        max_examples=nightly if oracle.SOAK else push,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


# ------------------------------------------------------------------------ the online learner's bits


@pytest.mark.parametrize("name", FIXED_CASES)
def test_a_run_is_the_online_learner_fed_the_replayed_stream(name):
    """Estimates and step sizes to the bit at every point; windows, changes, RMSE and truth too.

    That compiled code has the same bits is a test of the digests.
    """
    data = cases.check(FIXED_CASES[name]())
    assert (data.diverged > 0).any() == (name == "wild")


@compiled
def test_a_long_run_ends_as_the_online_learner_does():
    """20,000 steps: many checks of the stop flag."""
    case = replace(FIXED_CASES["plain"](), length={"steps": 20_000}, runs=1)
    data, columns = case.simulate(record=rv.Record(at=[20_000])), case.replay(0)
    for i, learner in enumerate(case.learners):
        alone = case.online(learner)
        alone.update_many(columns)
        assert bits(data.value[0, i, 0]) == bits(alone.value())
        assert bits(data.variance[0, i, 0]) == bits(alone.variance())


@pytest.mark.soak
@pytest.mark.parametrize("batch", BATCHES)
@examples(100, 1_000)
@given(cases.cases(), st.sampled_from([0, block.FEW]))
def test_any_simulation_is_the_online_learner_fed_the_replayed_stream(batch, case, few):
    """In plain Python, so that every kind of learner can be tried; with 0 all weights are listed.

    Methods, estimands, policies, rules, features, traces, initial values, γ and λ of one's own,
    steps and episodes, records; learners that diverge. 100 simulations, 10,000 in `make nightly`.
    """
    with mock.patch.object(block, "FEW", few):
        cases.check(case)


def test_rare_cases_are_as_the_online_learner_has_them():
    """150 states, more than 64 with traces; squares beyond 10¹⁵⁰; other learners.

    Two equal learners, one of which could share a lane with one with traces: their windows, too,
    have the same bits.
    """
    cases.check(fixed_cases.faded())
    cases.check(fixed_cases.shared_steps())
    assert cases.check(fixed_cases.poisoned()).diverged.values.tolist() == [1, 0, 1]
    data = cases.check(fixed_cases.other_learners())
    assert digest(data.isel(learner=0)) == digest(data.isel(learner=1))


@compiled
@pytest.mark.skipif(not oracle.SOAK, reason="compiles for minutes: make nightly")
@pytest.mark.soak
@pytest.mark.parametrize("batch", BATCHES)
@examples(6, 6)
@given(case=cases.cases())
def test_any_compiled_simulation_is_the_online_learner(batch, case):
    """The same, compiled: 60 simulations."""
    cases.check(case)


# ------------------------------------------------------------------------ determinism


@compiled
@pytest.mark.parametrize("name", ["plain", "features", "frozen"])
def test_threads_and_batches_and_repeats_leave_the_digest_alone(name):
    """1, 2 and 8 threads; runs by one, by three, all at once; twice: the same bits throughout.

    With 8 threads and 3 runs, learners are spread over threads too. What is summed over runs is
    summed in the order of the runs.
    """
    case = replace(FIXED_CASES[name](), runs=7)
    for keep in ("runs", "stats"):
        expected = digest(case.simulate(keep=keep))
        for threads, batch in ((1, 1), (1, 3), (1, 7), (2, None), (8, None), (8, 3), (1, None)):
            found = digest(case.simulate(keep=keep, threads=threads, batch=batch))
            assert found == expected, (keep, threads, batch)
        few = replace(case, runs=3)
        assert digest(few.simulate(keep=keep, threads=8)) == digest(few.simulate(keep=keep))


@compiled
def test_more_lanes_than_a_block_has():
    """700 learners in two blocks; each has the bits that it has among a few."""
    alphas = np.linspace(0.01, 0.99, 700)
    case = replace(FIXED_CASES["plain"](), learners=rv.grid(rv.Direct, alpha=alphas))
    whole = case.simulate(threads=2)
    assert len(np.unique(whole.value.values[0, :, -1, 1])) == 700
    for few in ([0, 699], [511, 512], [3, 510, 513]):
        part = case.simulate(learners=[case.learners[k] for k in few])
        assert digest(part) == digest(whole.isel(learner=few)), few
    stats = case.simulate(keep="stats", threads=8)
    check_statistics(whole, stats)


@pytest.mark.soak
@pytest.mark.parametrize("batch", BATCHES)
@examples(20, 200)
@given(cases.cases(longest=20), st.data())
def test_order_other_learners_threads_and_batches_do_not_matter(batch, case, data):
    """20 simulations, 2,000 in `make nightly`. Statistics over runs are NumPy's over the runs."""
    cases.check_invariance(case, data.draw)


# ------------------------------------------------------------------------ divergence


@compiled
@pytest.mark.parametrize("name", ["wild", "features"])
def test_a_lane_that_diverges_leaves_the_others_alone(name):
    """Their bits are those of a simulation without it; it is flagged, and NaN from there on."""
    case = FIXED_CASES[name]()
    if name == "wild":  # without them it can be proved that none diverges: another kernel
        mad = [1, 3]
        calm = replace(case, learners=[case.learners[k] for k in (0, 2, 4)])
    else:  # one more on the first value node
        calm, mad, first = case, [0], case.learners[0]
        case = replace(case, learners=[first.replace(alpha_bar=1e40), *case.learners])
    whole, alone = case.simulate(), calm.simulate()
    others = [k for k in range(len(case.learners)) if k not in mad]
    assert digest(whole.isel(learner=others)) == digest(alone)
    assert (whole.diverged[mad] == case.runs).all()
    assert (whole.diverged[others] == 0).all()
    last = whole.isel(learner=mad).isel({case.unit: -1})
    assert np.isnan(last.variance).all()
    assert np.isnan(last.variance_rmse).all()
    assert np.isnan(whole.variance_window[:, mad]).all()


@compiled
def test_a_weight_that_is_too_large_at_a_recorded_moment_has_diverged():
    """δ = −10¹⁰⁰ at the first step and 0 from then on; with a step of 1 the variance is δ²."""
    mdp = rv.MDP.from_edges([(0, 0, 0, 1.0, 0.0)], gamma=0.0)
    learners = [rv.Direct(alpha=1.0, alpha_bar=1.0, value=v) for v in (1e100, 1e50)]
    data = rv.simulate(mdp, learners, steps=3, runs=1, seed=0, record=[0, 1, 3])
    assert data.diverged.values.tolist() == [1, 0]
    assert np.isnan(data.variance.isel(learner=0, step=-1)).all()
    assert (data.variance.isel(learner=1, step=-1) == 0.0).all()


@compiled
def test_averages_are_over_the_runs_that_have_not_diverged():
    """One run starts so far out that it diverges by the recorded moment; the others do not."""
    far = np.zeros((5, 5))
    far[2] = 1e149
    learners = [rv.Direct(alpha=5.0, value=rv.PerRun(far)), rv.Direct(alpha=0.1)]
    base = replace(FIXED_CASES["wild"](), learners=learners, length={"steps": 40}, runs=5)
    record = rv.Record(at=[0, 3, 20, 40], window=10, rmse=True)
    runs, stats = base.simulate(record=record), base.simulate(record=record, keep="stats")
    assert runs.diverged.values.tolist() == [1, 0]
    by = runs.diverged_by.values
    assert np.isfinite(by).tolist() == [[False, False]] * 2 + [[True, False]] + [[False] * 2] * 2
    assert stats.diverged_by[0] == by[2, 0]
    assert np.isnan(stats.diverged_by[1])
    late = runs.isel(step=-1, learner=0).value.values
    assert np.isnan(late[2]).all()
    kept = np.delete(late, 2, axis=0)
    assert_allclose(stats.value[0, -1], kept.mean(axis=0), rtol=1e-12)
    assert_allclose(stats.value_std[0, -1], kept.std(axis=0, ddof=1), rtol=1e-9)
    check_statistics(runs, stats)


# ------------------------------------------------------------------------ what is summed on the way


@compiled
def test_what_is_recorded_does_not_depend_on_when():
    """Every moment, some of them, spaced by factors: the same bits where they meet."""
    case = FIXED_CASES["plain"]()
    every = case.simulate(record=1)
    assert_array_equal(every.step, np.arange(1, case.total + 1))
    for record in ("log", 7, [3, 90, 5], rv.Record(points=10), rv.Record(points=6, log=True), None):
        data = case.simulate(record=record)
        there = every.sel(step=data.step)
        for node in ("value", "variance"):
            assert bits(data[node]) == bits(there[node]), record
    some = case.simulate(record=rv.Record(every=1, states=["s3", 1]))
    assert some.state.values.tolist() == ["s3", "s1"]
    assert bits(some.value) == bits(every.value[..., [3, 1]])
    assert bits(some.true_variance) == bits(every.true_variance[:, [3, 1]])
