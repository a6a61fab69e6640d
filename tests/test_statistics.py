"""Statistics of sweeps: intervals have their nominal coverage, and selection causes no bias."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import xarray
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

import retvar as rv
from retvar.sweep import (
    bootstrap_interval,
    compare,
    holm,
    interquartile_mean,
    signed_rank,
)

LAWS = {
    "normal": stats.norm(),
    "exponential": stats.expon(),
    "lognormal": stats.lognorm(1.0),
    "heavy": stats.t(2),
}


def swept(errors, methods, settings=None, lam=None, diverged=None):
    """A collected sweep with these errors [domain, learner, run]."""
    errors = np.asarray(errors, dtype=float)
    learners = [f"{m} {k}" for k, m in enumerate(methods)]
    coords = {
        "domain": [f"d{k}" for k in range(errors.shape[0])],
        "learner": learners,
        "step": [100],
        "algorithm": ("learner", list(methods)),
        "alpha": ("learner", [1.0] * len(methods) if settings is None else list(settings)),
    }
    if lam is not None:
        coords["lam"] = ("learner", list(lam))
    died = np.isnan(errors) if diverged is None else diverged
    variables = {
        "variance_rmse": (("domain", "learner", "step", "run"), errors[:, :, None, :]),
        "diverged": (("domain", "learner", "run"), died),
    }
    return xarray.Dataset(variables, coords)


def pair(a, b):
    """Two learners on one domain."""
    return swept(np.stack([a, b])[None], ["Direct", "VTD"])


def row(comparison, settings="best", domain="all"):
    return comparison.data.sel(settings=settings, domain=domain).isel(question=0, pair=0)


# ---------------------------------------------------------------------- interquartile mean


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40))
def test_the_interquartile_mean_is_that_of_the_middle_half(x):
    """By the definition, and by SciPy's trimmed mean."""
    ordered, cut = sorted(x), len(x) // 4
    middle = ordered[cut : len(x) - cut]
    found = interquartile_mean(x)
    assert found == pytest.approx(sum(middle) / len(middle), abs=1e-6)
    assert found == pytest.approx(stats.trim_mean(x, 0.25), abs=1e-6)


def test_up_to_a_quarter_of_infinite_runs_leave_the_mean_finite():
    x = np.arange(8.0)
    assert interquartile_mean(np.where(x >= 6, np.inf, x)) == interquartile_mean(x)
    assert interquartile_mean(np.where(x >= 5, np.inf, x)) == np.inf
    assert np.isnan(interquartile_mean([-np.inf, np.inf]))


# ---------------------------------------------------------------------- bootstrap


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("runs", [8, 20])
def test_intervals_have_their_nominal_coverage(law, runs):
    """90% intervals of the interquartile mean, 800 samples: 90% less 3 sigma, at most 97%."""
    law = LAWS[law]
    truth = 2 * integrate.quad(law.ppf, 0.25, 0.75)[0]
    data = law.rvs(size=(800, runs), random_state=np.random.default_rng(runs))
    low, _, high = bootstrap_interval(data, level=0.9, resamples=800, seed=1)
    share = np.mean((low <= truth) & (truth <= high))
    assert 0.9 - 3 * np.sqrt(0.09 / 800) < share < 0.97


def test_stratified_intervals_have_their_nominal_coverage():
    """300 samples of 5 domains with 6 runs each, means far apart: pooled, all would hold."""
    random = np.random.default_rng(5)
    shift = np.array([0.0, 5.0, -3.0, 100.0, 7.0])
    data = random.normal(size=(300, 5, 6)) + shift[:, None]
    low, _, high = bootstrap_interval(data, np.mean, 0.9, 500, stratified=True)
    share = np.mean((low <= shift.mean()) & (shift.mean() <= high))
    assert 0.9 - 3 * np.sqrt(0.09 / 300) < share < 0.97


def test_the_same_seed_gives_the_same_bits_with_and_without_other_rows():
    data = np.random.default_rng(0).normal(size=(4, 12))
    whole = bootstrap_interval(data, seed=7)
    alone = bootstrap_interval(data[2], seed=7)
    assert (alone.low, alone.high) == (whole.low[2], whole.high[2])
    assert bootstrap_interval(data[2], seed=8).low != alone.low


def test_an_interval_reaches_infinity_where_resamples_do():
    data = np.append(np.arange(14.0), [np.inf, np.inf, np.inf])
    low, middle, high = bootstrap_interval(data)
    assert np.isfinite([low, middle]).all()
    assert high == np.inf


# ---------------------------------------------------------------------- signed ranks, Holm


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=30, unique_by=abs))
def test_signed_ranks_are_those_of_scipy(x):
    x = [v for v in x if v != 0] or [1.0]
    expected = stats.wilcoxon(x, method="exact").pvalue
    assert signed_rank(x) == pytest.approx(expected, abs=1e-12)


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=9))
def test_signed_ranks_with_ties_zeros_and_infinities_are_exact(x):
    """Against all ways to set the signs of what is not zero; 3 stands for infinity."""
    x = np.where(np.abs(x) == 3, np.copysign(np.inf, x), x)
    ranks = stats.rankdata(np.abs(x))[x != 0]
    found = abs(np.sum(np.sign(x[x != 0]) * ranks))
    sums = [abs(np.dot(signs, ranks)) for signs in product([-1, 1], repeat=ranks.size)]
    assert signed_rank(x) == pytest.approx(np.mean(np.array(sums) >= found - 1e-9))


def test_many_signed_ranks_are_close_to_exact():
    x = np.random.default_rng(0).normal(0.1, 1, 201)
    expected = stats.wilcoxon(x, method="exact").pvalue
    assert signed_rank(x) == pytest.approx(expected, rel=0.05)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_rejects_step_by_step(p):
    """p_(k) is rejected at a level iff (n − j) p_(j) ≤ level for all j ≤ k."""
    found = holm(p)
    for level in (0.01, 0.05, 0.3):
        rejected, left = set(), sorted(range(len(p)), key=lambda k: p[k])
        while left and p[left[0]] * len(left) <= level:
            rejected.add(left.pop(0))
        assert {k for k, x in enumerate(found) if x <= level} == rejected


# ---------------------------------------------------------------------- pairs of runs


def test_paired_ratios_have_the_variance_that_pairing_promises():
    """The common factor of the stream cancels: widths are those of Va + Vb − 2 Cov, within 20%."""
    random = np.random.default_rng(1)
    stream, own = random.normal(3, 2.0, 400), random.normal(0, 0.1, (2, 400))
    a, b = np.exp(stream + own[0] + 0.05), np.exp(stream + own[1])
    found = row(compare(pair(a, b)), domain="d0")
    low, high = np.log(found.low.item()), np.log(found.high.item())
    gaps = (own[0] - own[1])[1::2]
    trimmed = gaps[np.abs(gaps - np.median(gaps)).argsort()[:100]]
    huber = (np.sum((trimmed - trimmed.mean()) ** 2) + 100 * trimmed.max() ** 2) / 200 / 0.25
    assert high - low == pytest.approx(2 * 1.96 * np.sqrt(huber / 200), rel=0.2)
    unpaired = bootstrap_interval(np.log(a[1::2]))
    assert high - low < (unpaired.high - unpaired.low) / 5
    assert low < 0.05 < high


def test_ratios_are_inverted_under_exchange():
    random = np.random.default_rng(4)
    errors = random.lognormal(size=(2, 21))
    one, other = (row(compare(pair(*each)), domain="d0") for each in (errors, errors[::-1]))
    for name, opposite in (("ratio", "ratio"), ("low", "high"), ("high", "low")):
        assert other[name].item() == pytest.approx(1 / one[opposite].item())
    assert other.better.item() == pytest.approx(1 - one.better.item())
    assert other.p.item() == pytest.approx(one.p.item())


def test_diverged_runs_are_worse_than_all_others_and_are_counted():
    a, b = np.full(24, 2.0), np.full(24, 1.0)
    a[[1, 3]], b[3] = np.nan, np.nan  # of the runs that judge
    found = row(compare(pair(a, b)), domain="d0")
    assert found.ratio.item() == pytest.approx(2.0)
    assert found.better.item() == pytest.approx(0.5 / 12)
    assert 12 * np.array([found.diverged_a, found.diverged_b]) == pytest.approx([2, 1])
    a[:13] = np.nan
    assert row(compare(pair(a, b)), domain="d0").ratio.item() == np.inf


# ---------------------------------------------------------------------- comparisons


def lucky(random, domains, runs, settings=(8, 8), effect=1.0):
    """Two methods whose settings are all equally good; b's errors are `effect` times a's."""
    methods = ["Direct"] * settings[0] + ["VTD"] * settings[1]
    stream = random.normal(0, 0.5, (domains, 1, runs))
    own = random.normal(0, 0.3, (domains, len(methods), runs))
    scale = np.array([1.0 if m == "Direct" else effect for m in methods])
    alphas = [float(k) for count in settings for k in range(count)]
    return swept(np.exp(stream + own) * scale[:, None], methods, alphas)


@pytest.mark.parametrize("over", ["runs", "domains"])
def test_without_a_difference_winners_are_as_rare_as_stated(over):
    """100 sweeps of 12 domains: a winner over all in at most 10% of them, give or take 3 sigma."""
    random = np.random.default_rng(11)
    alarms, covered = 0, 0
    for _ in range(100):
        data = lucky(random, 12, 12, settings=(4, 4))
        found = compare(data, over=over, level=0.9, resamples=200)
        alarms += any(row(found, way).winner != "" for way in ("best", "shared", "typical"))
        best = row(found)
        covered += bool(best.low <= 1 <= best.high)
    assert alarms / 100 < 0.1 + 3 * np.sqrt(0.09 / 100)
    assert 0.9 - 3 * np.sqrt(0.09 / 100) < covered / 100


def test_selection_among_many_settings_causes_no_bias():
    """A method with 30 equal settings is no better than one with 1; by a naive minimum it is."""
    random = np.random.default_rng(6)
    data = lucky(random, 200, 10, settings=(30, 1))
    best = row(compare(data, over="domains"))
    assert best.low.item() < 1 < best.high.item()
    errors = np.log(data.variance_rmse.values[:, :, 0])
    naive = interquartile_mean(errors, axis=-1)[:, :30].min(axis=1) - interquartile_mean(
        errors[:, 30], axis=-1
    )
    assert np.exp(naive.mean()) < 0.9


@pytest.mark.parametrize("over", ["runs", "domains"])
def test_a_difference_is_found_and_its_interval_has_the_nominal_coverage(over):
    """40 sweeps of 20 domains where b errs 1.5 times as much: 95% intervals, less 3 sigma."""
    random, ways = np.random.default_rng(7), ("best", "shared", "typical")
    held = dict.fromkeys(ways, 0)
    for _ in range(40):
        found = compare(lucky(random, 20, 20, (4, 4), effect=1.5), over=over, resamples=400)
        for way in ways:
            one = row(found, way)
            assert one.winner == "Direct"
            held[way] += bool(one.low <= 1 / 1.5 <= one.high)
    assert min(held.values()) / 40 > 0.95 - 3 * np.sqrt(0.05 * 0.95 / 40)


def test_comparisons_are_symmetric_under_exchange():
    data = lucky(np.random.default_rng(8), 4, 10, settings=(3, 3), effect=1.2)
    there, back = compare(data).data, compare(data.isel(learner=[3, 4, 5, 0, 1, 2])).data
    assert back.pair.values.tolist() == ["VTD / Direct"]
    np.testing.assert_allclose(back.ratio.values, 1 / there.ratio.values)
    np.testing.assert_allclose(back.low.values, 1 / there.high.values)
    np.testing.assert_allclose(back.better.values, 1 - there.better.values)
    np.testing.assert_allclose(back.p_holm.values, there.p_holm.values)
    np.testing.assert_array_equal(back.winner.values, there.winner.values)


def test_the_best_setting_is_selected_by_even_runs_and_judged_by_odd_ones():
    """A setting that is good in even runs only is chosen, and judged as bad as it is."""
    even = np.arange(20) % 2 == 0
    errors = np.ones((1, 3, 20))
    errors[0, 0] = np.where(even, 0.1, 5.0)
    data = swept(errors, ["Direct", "Direct", "VTD"], [1.0, 2.0, 1.0])
    best = row(compare(data), domain="d0")
    assert best.setting_a == "Direct 0"
    assert best.ratio.item() == pytest.approx(5.0)


def test_the_shared_setting_is_the_one_at_which_the_larger_error_is_least():
    """One setting suits a and not b, the other both fairly: the second is shared."""
    levels = np.array([1.0, 3.0, 10.0, 3.5])  # a and b, at two settings each
    errors = np.tile(levels[:, None], (1, 1, 8))
    data = swept(errors, ["Direct", "Direct", "VTD", "VTD"], [1.0, 2.0, 1.0, 2.0])
    one = row(compare(data), "shared", "d0")
    assert (one.setting_a, one.setting_b) == ("Direct 1", "VTD 3")
    assert one.ratio.item() == pytest.approx(3 / 3.5)
    assert row(compare(data), "best", "d0").ratio.item() == pytest.approx(1 / 3.5)
    middle = np.sqrt(1 / 10 * 3 / 3.5)
    assert row(compare(data), "typical", "d0").ratio.item() == pytest.approx(middle)


def test_settings_that_define_the_question_are_never_selected():
    """Methods are compared for each λ, however much easier one λ is than another."""
    errors = np.random.default_rng(0).lognormal(size=(2, 4, 10)) * np.array([1, 9, 2, 9])[:, None]
    data = swept(errors, ["Direct", "Direct", "VTD", "VTD"], lam=[0.0, 1.0, 0.0, 1.0])
    found = compare(data).data
    assert found.question.values.tolist() == ["lam = 0", "lam = 1"]
    chosen = found.setting_a.sel(settings="best", domain="d0").values.ravel().tolist()
    assert chosen == ["Direct 0", "Direct 1"]


def four(**settings):
    """Two learners of two methods each, with settings; those of a method in the order given."""
    errors = np.random.default_rng(0).lognormal(size=(2, 4, 10))
    data = swept(errors, ["Direct", "Direct", "VTD", "VTD"])
    return data.assign_coords({name: ("learner", list(x)) for name, x in settings.items()})


def test_settings_that_are_close_are_different():
    """Of κ = 0.9991 and 0.9992 each method's learners are matched with those of the other."""
    found = compare(four(kappa=[0.9991, 0.9992, 0.9992, 0.9991]))
    assert found.data.settings.values.tolist() == ["best", "shared", "typical"]
    one = row(found, "shared", "d0")
    matched = {"Direct 0": "VTD 3", "Direct 1": "VTD 2"}
    assert matched[one.setting_a.item()] == one.setting_b.item()
    by = compare(four(kappa=[0.9991, 0.9992] * 2), by="kappa").data
    assert by.pair.values.tolist() == ["0.9991 / 0.9992"]


def test_several_values_of_one_setting_are_their_union():
    data = swept(
        np.random.default_rng(0).lognormal(size=(2, 6, 8)),
        ["Direct"] * 3 + ["VTD"] * 3,
        lam=[0.0, 0.5, 1.0] * 2,
    )
    both = compare(data, where={"lam": [0.5, 1.0]})
    assert both.data.question.values.tolist() == ["lam = 0.5", "lam = 1"]
    assert both.data.identical(compare(data.isel(learner=[1, 2, 4, 5])).data)
    own = data.assign_coords(lam=("learner", [0.5, np.nan, np.nan] * 2))
    for value in (None, np.nan, "the domain's"):
        found = compare(own, where={"lam": value, "alpha": 1})
        assert found.data.question.values.tolist() == [""]


def test_a_method_that_diverges_loses_and_the_summary_says_so():
    random = np.random.default_rng(9)
    errors = random.lognormal(0, 0.1, (3, 2, 40))
    errors[:, 1, ::3] = np.nan
    found = compare(swept(errors, ["Direct", "VTD"]))
    one = row(found)
    assert one.winner == "Direct"
    assert one.ratio.item() == 0.0


def test_methods_that_differ_by_rounding_tie():
    """With equal step sizes direct and centred are the same, on random MDPs of different sizes."""
    learners = rv.grid(rv.Direct, rv.Centred, alpha=[0.05, 0.1], lam=0.5, gamma=0.8)
    record = rv.Record(at=[300], rmse=True)
    parts = []
    for seed, states in enumerate((4, 7)):
        mdp = rv.domains.random_mdp(states, seed=seed, gamma=0.8)
        part = rv.simulate(
            mdp, learners, steps=300, runs=8, seed=seed, record=record, keep="runs", threads=1
        )
        part = part.assign(diverged=part.diverged_by.notnull())
        parts.append(part[["value_rmse", "variance_rmse", "diverged"]])
    data = xarray.concat(parts, xarray.Variable("domain", ["four", "seven"]))
    one = row(compare(data))
    assert (one.ratio, one.low, one.high, one.better, one.p) == (1, 1, 1, 0.5, 1)
    assert one.winner == ""


@pytest.mark.parametrize("over", ["runs", "domains"])
@pytest.mark.parametrize(("domains", "runs"), [(1, 8), (3, 8), (3, 40), (12, 8), (12, 60)])
def test_the_least_possible_p_says_whether_a_difference_can_be_significant(domains, runs, over):
    """VTD errs 9 times as much in every run: p is the least possible."""
    if over == "domains" and domains == 1:
        return
    data = swept(
        np.tile([[1.0], [9.0]], (domains, 1, runs)) * np.random.default_rng(0).uniform(1, 2, runs),
        ["Direct", "VTD"],
    )
    found = compare(data, over=over)
    single, whole = (found.data.sel(domain=d) for d in ("d0", "all"))
    near = {"rtol": 1e-9, "atol": 1e-50}  # beyond 200 signs p is that of the normal distribution
    np.testing.assert_allclose(np.minimum(single.least_p, 1), single.p_holm.max(), **near)
    np.testing.assert_allclose(np.minimum(whole.least_p, 1), whole.p_holm.max(), **near)
    for rows in (single, whole):
        possible = rows.least_p.item() < 0.05
        assert (rows.winner.values == ("Direct" if possible else "")).all()


@pytest.mark.parametrize("chosen", [[0, 3], [0, 0, 2]])
def test_methods_that_cannot_be_matched_are_compared_only_at_their_best(chosen):
    """With one learner of each, the best are those two: the ratio of errors in judging runs."""
    data = lucky(np.random.default_rng(0), 2, 8, settings=(2, 2)).isel(learner=chosen)
    found = compare(data)
    assert found.data.settings.values.tolist() == ["best"]
    one, other = np.log(data.variance_rmse.values[:, [0, -1], 0, 1::2]).swapaxes(0, 1)
    wanted = np.exp(interquartile_mean(one - other, axis=-1))
    assert found.data.ratio[0, 0, 0, :2].values == pytest.approx(wanted)
