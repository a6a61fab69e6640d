"""simulate: arguments, results, and invalid input."""

import json
import logging
import math
import subprocess
import sys

import numpy as np
import pytest
import scipy.stats
import xarray
from numpy.testing import assert_allclose, assert_array_equal

import retvar as rv
from retvar.td.learners import from_dict
from tests import oracle
from tests.fixed_cases import FIXED_CASES, OFF, bits

COMPLEX = rv.domains.complex_mdp()
CHAIN = rv.domains.chain()
TWO = rv.grid(rv.Direct, alpha=[0.1, 0.2])  # of the shape that is compiled for most tests here
ONCE = rv.Record(points=1)


def simulate(learners=TWO, mdp=COMPLEX, **changes):
    """A short simulation, a few of its arguments changed."""
    length = {} if "steps" in changes or "episodes" in changes else {"steps": 50}
    return rv.simulate(mdp, learners, **{"runs": 2, "seed": 1, **length, **changes})


# ------------------------------------------------------------------------ Table 1

J = rv.solve(CHAIN).value
TABLE = {  # mdp, settings, length, policies; value, second moment, VTD, direct as printed
    "chain-step-size/equal": (
        CHAIN, {"alpha": 0.001}, {"episodes": 20_000}, {},
        ("0.00332", "0.0157", "0.00415", "0.00415"),
    ),
    "chain-step-size/smaller": (
        CHAIN, {"alpha": 0.01, "alpha_bar": 0.001}, {"episodes": 20_000}, {},
        ("0.0322", "0.0165", "0.143", "0.00387"),
    ),
    "chain-step-size/larger": (
        CHAIN, {"alpha": 0.001, "alpha_bar": 0.01}, {"episodes": 20_000}, {},
        ("0.00332", "0.156", "0.142", "0.0419"),
    ),
    "chain-frozen-value": (
        CHAIN, {"alpha": 0.0, "alpha_bar": 0.001, "value": J, "learn_value": False},
        {"episodes": 20_000}, {}, ("0.0", "0.0166", "0.0166", "0.00381"),
    ),
    "complex-on-policy": (
        COMPLEX, {"alpha": 0.01}, {"steps": 20_000}, {},
        ("0.00362", "0.00675", "0.00381", "0.00385"),
    ),
    "complex-off-policy/target": (
        COMPLEX, {"alpha": 0.01}, {"steps": 20_000}, OFF,
        ("0.00362", "0.00461", "0.00303", "0.00307"),
    ),
    "complex-off-policy/return": (
        COMPLEX, {"alpha": 0.01, "estimand": "off_policy_return"}, {"steps": 20_000}, OFF,
        ("0.00362", "0.0110", "0.0116", "0.00838"),
    ),
}  # fmt: skip


def table_1(name, runs):
    """Sums over states of the mean absolute changes [figure, run].

    Beside two other learners, in the shapes of the fixed cases.
    """
    mdp, settings, length, policies, _ = TABLE[name]
    learners = {"direct": rv.Direct(**settings), "vtd": rv.VTD(**settings)}
    if "value" in settings:  # all estimates start at 0, the second moment too: V = 0 − J²
        learners["vtd"] = rv.VTD(**settings, initial_variance=-(settings["value"] ** 2))
    others = {f"other {k}": d.replace(alpha_bar=0.1) for k, d in learners.items()}
    record = rv.Record(points=1, change=True)
    data = rv.simulate(
        mdp, learners | others, **length, **policies, runs=runs, seed=0, record=record, keep="runs"
    )
    vtd, direct = (data.sel(learner=name) for name in ("vtd", "direct"))
    found = [vtd.value_change, vtd.second_moment_change, vtd.variance_change]
    return np.array([x.sum("state") for x in [*found, direct.variance_change]])


@pytest.mark.compiled
@pytest.mark.parametrize("name", TABLE)
def test_table_1_comes_out_with_thirty_runs(name):
    """|measured − printed| ≤ 4√2 s.e. + ½ unit of the last printed digit; 0 is exactly 0.

    Both figures are means of 30 runs, so their difference has √2 standard errors. The seed is
    fixed: the bits are always the same, and there are no false alarms.
    """
    printed = TABLE[name][-1]
    x = table_1(name, 30)
    error = x.std(axis=1, ddof=1) / math.sqrt(30)
    for text, mean, se in zip(printed, x.mean(axis=1), error, strict=True):
        half = 0.5 * 10.0 ** -len(text.split(".")[1]) if float(text) else 0.0
        assert abs(mean - float(text)) <= 4 * math.sqrt(2) * se + half, (text, mean, se)


def test_totals_are_sums_over_all_states():
    """Of changes and of squared errors; which states are recorded makes no difference."""
    for name in ("shared", "frozen"):
        case = FIXED_CASES[name]()
        data = case.simulate()
        some = case.simulate(record=rv.Record(**{**case.record, "states": [1]}))
        for part in ("change", "window_mse"):
            for node in ("value", "variance"):
                expected = data[f"{node}_{part}"].sum("state")
                for found in (data, some):
                    assert_allclose(found[f"{node}_{part}_total"], expected, rtol=1e-12, atol=1e-15)


# ------------------------------------------------------------------------ truth


@pytest.mark.parametrize("question", [{}, {"gamma": 0.5}, {"lam": 0.3}, {"gamma": 0.9, "lam": 1.0}])
def test_the_truth_is_that_of_the_learners_own_question(question):
    """γ and λ of a learner replace the MDP's, in its updates and in its exact solution."""
    data = simulate(rv.grid(rv.Direct, alpha=[0.1, 0.2], **question), record=ONCE)
    mdp = COMPLEX.replace(gamma=question["gamma"]) if "gamma" in question else COMPLEX
    truth = rv.solve(mdp, lam=question.get("lam"))
    for k in range(2):
        assert_array_equal(data.true_value[k], truth.value)
        assert_array_equal(data.true_variance[k], truth.variance)


def test_gamma_and_lambda_of_a_learner_are_as_those_of_the_mdp():
    """One number for each state: the bits of an MDP that has them."""
    gamma, lam = np.linspace(0.2, 0.9, 5), np.linspace(1.0, 0.3, 5)
    learner = rv.Direct(alpha=0.3, alpha_bar=0.2)
    own = simulate([learner.replace(gamma=gamma, lam=lam)], record=ONCE)
    theirs = simulate([learner], COMPLEX.replace(gamma=gamma, lam=lam), record=ONCE)
    for name in ("value", "variance", "true_value", "true_variance"):
        assert bits(own[name]) == bits(theirs[name]), name


def test_an_infinite_variance_is_left_out_with_a_warning(caplog):
    """The value is finite, the variance of the weighted return is not: NaN, and a warning."""
    case = FIXED_CASES["weighted_return"]()
    learners = [d.replace(gamma=0.99, lam=1.0) for d in case.learners]
    with caplog.at_level(logging.WARNING, "retvar"):
        data = case.simulate(learners=learners)
    assert "the true variance is left out" in caplog.text
    assert np.isnan(data.true_variance).all()
    assert_allclose(data.true_value[0], rv.solve(COMPLEX.replace(gamma=0.99), "pi").value)


def test_the_truth_may_be_left_out():
    data = simulate(truth=False, record=ONCE)
    assert not {"true_value", "true_variance"} & set(data.data_vars)
    assert bits(data.value) == bits(simulate(record=ONCE).value)


def test_a_frozen_value_has_a_variance_of_its_own():
    """`frozen_variance` is that of the λ-return that bootstraps from the fixed value."""
    case, held = FIXED_CASES["frozen"](), [4.0, 2.0, 1.0, 3.0]
    data = case.simulate(learners=[d.replace(value=held) for d in case.learners])
    for k in range(len(case.learners)):
        assert_allclose(data.frozen_variance[k], rv.solve(CHAIN, value=held).variance)


# ------------------------------------------------------------------------ initial values


def initial_values(start, runs=2_000, seed=None):
    """Initial estimates [run, learner, state]."""
    learners = rv.grid(rv.Direct, alpha=[0.1, 0.2], value=start)
    seed = oracle.fresh_seed() if seed is None else seed
    record = rv.Record(at=[0])
    data = simulate(learners, steps=1, runs=runs, seed=seed, record=record, keep="runs")
    return data.value.values[:, :, 0]


@pytest.mark.compiled
def test_noisy_values_are_the_centre_plus_an_error_of_the_size_given():
    """Uniform in ±½, and normal with 0.2: distributions to Massart's bound for 10⁻⁷.

    10,000 numbers find a quantile off by 0.03.
    """
    center, bound = np.arange(5.0), math.sqrt(math.log(2e7) / 2e4)
    spread = initial_values(rv.Noisy(center, uniform=0.5))[:, 0] - center
    assert abs(spread).max() <= 0.5
    assert scipy.stats.kstest(spread.ravel(), "uniform", (-0.5, 1.0)).statistic < bound
    bell = initial_values(rv.Noisy(center, normal=0.2), seed=2**64 - 1)[:, 0] - center
    assert scipy.stats.kstest(bell.ravel(), "norm", (0.0, 0.2)).statistic < bound
    both = initial_values(rv.Noisy(2.0, uniform=0.5, normal=0.2), seed=5) - 2.0
    parts = [
        initial_values(rv.Noisy(0.0, **{k: v}), seed=5)
        for k, v in (("uniform", 0.5), ("normal", 0.2))
    ]
    assert_allclose(both, sum(parts), atol=1e-14)


@pytest.mark.compiled
def test_noise_is_the_same_for_all_learners_and_its_own_in_each_run():
    """Up to its size, and for any number of runs."""
    starts = [rv.Noisy(0.0, uniform=1.0), rv.Noisy(0.0, uniform=0.25)]
    found = initial_values(starts, seed=7)
    large, small = found[:, 0], found[:, 1]
    assert len(np.unique(large)) == large.size
    one = initial_values(starts[0], seed=7)
    assert bits(one[:, 0]) == bits(one[:, 1])
    assert bits(initial_values(starts[0], runs=10, seed=7)) == bits(one[:10])
    assert bits(initial_values(starts[1], seed=7)[:, 0]) == bits(0.25 * one[:, 0])
    assert bits(small) in (bits(large), bits(0.25 * large))  # in the order of the grid


def test_per_run_values_are_used_unchanged_and_can_be_saved():
    table = np.random.default_rng(0).normal(size=(8, 5))
    learner = rv.VTD(alpha=0.1, value=rv.PerRun(table))
    assert from_dict(json.loads(json.dumps(learner.to_dict()))) == learner
    found = initial_values(rv.PerRun(table), runs=6)
    for k in range(2):
        assert bits(found[:, k]) == bits(table[:6])


# ------------------------------------------------------------------------ learners and labels


def test_a_grid_spans_lists_and_keeps_the_rest():
    """Its size is the product of the spans; order is that of the arguments, the last fastest."""
    found = rv.grid(rv.Direct, rv.VTD, alpha=[0.1, 0.2], alpha_bar=(0.01, 0.02, 0.03), lam=0.5)
    assert [type(d) for d in found] == [rv.Direct] * 6 + [rv.VTD] * 6
    assert [(d.alpha, d.alpha_bar) for d in found[:6]] == [
        (a, b) for a in (0.1, 0.2) for b in (0.01, 0.02, 0.03)
    ]
    assert {d.lam for d in found} == {0.5}
    assert rv.grid("direct", "vtd", alpha=0.1) == rv.grid(rv.Direct, rv.VTD, alpha=0.1)
    assert len(rv.grid(rv.Direct, alpha=np.geomspace(0.001, 1, 7))) == 7
    table = np.array([0.1, 0.2, 0.3])
    (one,) = rv.grid(rv.Direct, alpha=0.1, lam=table)  # an array elsewhere: one a state
    assert_array_equal(one.lam, table)
    assert [d.value for d in rv.grid(rv.Direct, alpha=0.1, value=[1.0, 2.0])] == [1.0, 2.0]
    based = rv.grid(rv.Centred(alpha=0.1, kappa=0.9), alpha=[0.1, 0.2])
    assert [(d.alpha, d.kappa) for d in based] == [(0.1, 0.9), (0.2, 0.9)]
    mixed = rv.grid(rv.Direct, rv.Centred, alpha=0.1, alpha_mean=[0.1, 0.2])
    assert len(mixed) == 3  # Direct has no mean node


def test_learners_come_with_labels_and_settings():
    """A mapping gives labels; otherwise the settings that differ. Settings are complete."""
    data = simulate({"slow": TWO[0], "quick": TWO[1]}, record=ONCE)
    assert data.learner.values.tolist() == ["slow", "quick"]
    assert data.alpha.values.tolist() == [0.1, 0.2]
    assert data.algorithm.values.tolist() == ["Direct", "Direct"]
    for text, learner in zip(data.settings.values, TWO, strict=True):
        assert from_dict(json.loads(str(text))) == learner
    assert simulate(record=ONCE).learner.values.tolist() == ["direct alpha=0.1", "direct alpha=0.2"]
    again = simulate([TWO[0], TWO[1], TWO[0]], record=ONCE)
    assert len(set(again.learner.values.tolist())) == 3
    assert bits(again.value[0]) == bits(again.value[2])


# ------------------------------------------------------------------------ records


def test_moments_have_the_requested_spacing():
    """Every k, evenly, or by equal factors; the last is the end, none comes twice."""
    assert rv.Record(every=7).moments(30).tolist() == [7, 14, 21, 28]
    assert rv.Record(at=[5, 0, 5, 2]).moments(5).tolist() == [0, 2, 5]
    assert rv.Record().moments(10).tolist() == list(range(1, 11))
    for total in (1, 2, 17, 1_000, 123_456):
        for count in (1, 2, 50, 99):
            for log in (False, True):
                found = rv.Record(points=count, log=log).moments(total)
                assert found[-1] == total
                assert found[0] >= 1
                assert (np.diff(found) > 0).all()
                assert found.size <= min(count, total)
    factors = np.diff(np.log(rv.Record(points=7, log=True).moments(1_000_000).astype(float)))
    assert_allclose(factors, math.log(10), rtol=1e-12)
    assert np.ptp(np.diff(rv.Record(points=50).moments(12_345))) <= 1


# ------------------------------------------------------------------------ long runs, and their end


@pytest.mark.compiled
def test_progress_rises_to_one():
    """More threads than cores, so that runs do not finish in their order."""
    shares = []
    simulate(runs=9, steps=1_000_000, record=ONCE, progress=shares.append, threads=3, batch=1)
    assert shares == sorted(shares)
    assert shares[0] >= 0
    assert shares[-1] == 1.0


MEMORY = """
import resource, sys, retvar as rv
mdp, many = rv.domains.complex_mdp(), rv.grid(rv.Direct, alpha=[k / 20 for k in range(1, 20)])
record = rv.Record(points=100, window=100, rmse=True)
rv.simulate(mdp, many, steps=1_000, runs=10, seed=0, record=record)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rv.simulate(mdp, many, steps=1_000, runs=2_000, seed=0, record=record)
rv.simulate(mdp, many, steps=1, runs=200_000, seed=0, record=rv.Record(points=1))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.compiled
def test_memory_does_not_grow_with_the_runs():
    """10 runs, then 2,000 with 100 points, then 200,000: less than 100 MB more (ru_maxrss)."""
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, check=True)
    assert int(done.stdout) < 100_000  # kilobytes


@pytest.mark.parametrize("name", ["frozen", "wild"])
@pytest.mark.parametrize("keep", ["stats", "runs"])
def test_a_dataset_can_be_written_and_read_back(tmp_path, name, keep):
    """By netCDF: variables, coordinates and attributes are identical."""
    data = FIXED_CASES[name]().simulate(keep=keep)
    data.to_netcdf(tmp_path / "data.nc", engine="h5netcdf")
    with xarray.open_dataset(tmp_path / "data.nc", engine="h5netcdf") as back:
        assert back.load().identical(data)
