"""Statistics of sampled returns: intervals that hold, and bounds for returns that were cut off."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import scipy.stats
from numpy.testing import assert_allclose

import retvar as rv
from retvar.estimation.return_intervals import Calibration, ReturnsByState
from retvar.estimation.return_sample import ReturnSample
from tests.oracle import SOAK, fresh_seed

LAW = scipy.stats.gamma(3.0)
REPETITIONS = 4_000 if SOAK else 400
STATISTICS = {
    "mean": (lambda s: s.mean, LAW.mean()),
    "std": (lambda s: s.std, LAW.std()),
    "median": (lambda s: s.quantile(0.5), LAW.ppf(0.5)),
    "5% quantile": (lambda s: s.quantile(0.05), LAW.ppf(0.05)),
    "P(return < 2)": (lambda s: s.probability_below(2.0), LAW.cdf(2.0)),
    "CVaR 10%": (lambda s: s.cvar(0.1), LAW.expect(ub=LAW.ppf(0.1)) / 0.1),
}


@pytest.mark.parametrize("name", STATISTICS)
def test_intervals_hold_about_as_often_as_they_say(name):
    """90% intervals from 400 skewed returns: the lowest share in 1,500 samples was 87%, of the std.

    Thresholds of binomials with a false alarm rate of 1e-6; a coverage of 68% is noticed.
    """
    rng = np.random.default_rng(fresh_seed())
    statistic, exact = STATISTICS[name]
    held = 0
    for _ in range(REPETITIONS):
        _, low, high = statistic(ReturnSample.whole(LAW.rvs(400, random_state=rng)))
        held += low <= exact <= high
    assert held >= scipy.stats.binom.ppf(1e-6, REPETITIONS, 0.86)
    assert scipy.stats.binom.ppf(1 - 1e-6, REPETITIONS, 0.68) < held


def test_the_mean_of_two_returns_has_the_interval_of_cauchy():
    """Student's law with one degree of freedom has the quantiles tan(π(q − ½))."""
    low, high = 3.0, 5.0
    for level in (0.5, 0.9, 0.99):
        found = ReturnSample.whole(np.array([low, high]), level=level).mean
        reach = (high - low) / 2 * math.tan(math.pi * level / 2)
        assert_allclose(found, (4.0, 4.0 - reach, 4.0 + reach), rtol=1e-12)


def test_ends_of_a_probability_leave_out_its_tails():
    """As many below or more are as likely as the tail at the lower end, and so at the upper one."""
    n, tail = 20, 0.05
    for k in range(n + 1):
        found = ReturnSample.whole(np.arange(n) / 1.0).probability_below(k - 0.5)
        assert found.estimate == k / n
        if k > 0:
            assert scipy.stats.binom.sf(k - 1, n, found.low) == pytest.approx(tail)
        if k < n:
            assert scipy.stats.binom.cdf(k, n, found.high) == pytest.approx(tail)


def test_ends_of_a_quantile_leave_out_its_tails():
    """They are the innermost returns beyond which the quantile lies with less than the tail."""
    n, tail = 40, 0.05
    sample = ReturnSample.whole(np.arange(1.0, n + 1))
    for share in (0.1, 0.25, 0.5, 0.9):
        below = scipy.stats.binom(n, share)  # number of returns below the quantile
        found = sample.quantile(share)
        left = [k for k in range(1, n + 1) if below.cdf(k - 1) <= tail]
        right = [k for k in range(1, n + 1) if below.sf(k - 1) <= tail]
        assert found.low == max(left, default=-math.inf)
        assert found.high == min(right, default=math.inf)


def test_the_std_of_few_returns_is_unbiased_in_its_square():
    x = np.random.default_rng(0).normal(size=5)
    assert_allclose(ReturnSample.whole(x).std.estimate, x.std(ddof=1))


def test_the_mean_of_the_worst_share_has_the_tails_of_its_level():
    """Of nearly all returns it is the mean, whose interval is ± a normal quantile of its error.

    The bootstrap's ends vary by a few percent; tails of half the size make it 19% wider.
    """
    x = np.random.default_rng(0).normal(size=2_000)
    _, low, high = ReturnSample.whole(x, level=0.9).cvar(1 - 1e-9)
    reach = scipy.stats.norm.ppf(0.95) * x.std() / math.sqrt(x.size)
    assert_allclose((high - low) / 2, reach, rtol=0.08)


def test_bounds_hold_the_statistics_of_every_possible_completion():
    """Whatever the missing ends were, the whole sample's interval lies within the bounds."""
    rng = np.random.default_rng(fresh_seed())
    returns = rng.normal(size=200)
    low, high = returns.copy(), returns.copy()
    low[:15] -= 2.0
    high[:15] += 3.0
    bounds = ReturnSample(low, high, cut_off=15)
    for share in (0.0, 0.3, 1.0):
        whole = ReturnSample.whole(low + share * (high - low))
        for of in (
            lambda s: s.mean,
            lambda s: s.std,
            lambda s: s.skewness,
            lambda s: s.quantile(0.25),
            lambda s: s.cvar(0.2),
            lambda s: s.probability_below(0.5),
        ):
            inner, outer = of(whole), of(bounds)
            assert math.isnan(outer.estimate)
            assert outer.low <= inner.estimate <= outer.high
    assert "15 returns cut off by truncation, given as bounds" in bounds.summary()


@pytest.mark.parametrize("width", [0.01, 0.3, 2.0, 30.0])
def test_no_completion_leaves_the_bounds_of_std_and_skewness(width):
    """Also the worst found among many: ends drawn together, apart, and by their distance."""
    rng = np.random.default_rng(fresh_seed())
    low = rng.gamma(2.0, size=60)
    high = low + width * rng.random(60) * (rng.random(60) < 0.5)
    bounds = ReturnSample(low, high, cut_off=30)
    std, skewness = bounds.std, bounds.skewness
    assert math.isfinite(std.high)
    assert std.high < 5 * (1 + width)
    weights = [rng.random((200, 60)), rng.integers(0, 2, (200, 60)), rng.random((200, 1))]
    weights.append(low > np.quantile(low, rng.random((200, 1))))
    weights.append(low < np.quantile(low, rng.random((200, 1))))
    for weight in weights:
        whole = low + weight * (high - low)
        spread, third = whole.std(axis=1, ddof=1), scipy.stats.skew(whole, axis=1)
        assert std.low <= spread.min()
        assert spread.max() <= std.high
        assert skewness.low <= third.min()
        assert third.max() <= skewness.high


def test_a_negligible_rest_leaves_estimates_as_they_are():
    """A rest below a thousandth of the std: the same answers to a hundredth, and no alarm."""
    rng = np.random.default_rng(0)
    whole = ReturnSample.whole(rng.normal(-500.0, 100.0, 300))
    cut = ReturnSample(whole.low - 0.02, whole.low, cut_off=300)
    for of in (lambda s: s.mean, lambda s: s.std, lambda s: s.skewness, lambda s: s.cvar(0.1),
               lambda s: s.quantile(0.5), lambda s: s.probability_below(-480.0)):  # fmt: skip
        assert of(cut) == pytest.approx(of(whole), rel=0.01, abs=0.01)
    assert np.isfinite(cut.returns).all()
    assert "300 returns cut off by truncation (the rest is below 0.0200)" in cut.summary()
    assert "bounds" not in cut.summary()


def test_unbounded_ends_leave_quantiles_known():
    """Cut-off returns without any bound: the mean is unknown above, the median is not."""
    low = np.arange(100.0)
    high = np.where(low > 95, np.inf, low)
    sample = ReturnSample(low, high, cut_off=4)
    assert sample.mean.high == math.inf
    assert math.isfinite(sample.quantile(0.5).high)


def test_returns_that_do_not_vary():
    sample = ReturnSample.whole(np.full(50, 3.0))
    assert sample.std == (0.0, 0.0, 0.0)
    assert sample.skewness.estimate == 0.0
    assert sample.cvar(0.1) == (3.0, 3.0, 3.0)


def test_the_worst_share_counts_fractions():
    """The worst 25% of 0, 1, …, 9 are 0, 1 and half of 2."""
    assert ReturnSample.whole(np.arange(10.0)).cvar(0.25).estimate == (0 + 1 + 2 / 2) / 2.5


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: ReturnSample.whole(np.ones(1)), "returns"),
        (lambda: ReturnSample.whole(np.ones(9), level=90), "level"),
        (lambda: ReturnSample.whole(np.ones(9)).quantile(5), "share"),
        (lambda: ReturnSample.whole(np.ones(9)).cvar(0), "share"),
    ],
)
def test_bad_settings_are_refused(call, field):
    with pytest.raises(rv.InputError) as error:
        call()
    assert error.value.field == field


# ------------------------------------------------------------------------ conformal intervals


def test_new_returns_fall_within_calibrated_intervals_whatever_the_estimates():
    """Estimates may be wrong by any factor: 90% of new returns lie inside on average.

    19,000 new returns over 100 calibrations; the threshold is 4.9 standard errors over calibrations
    (false alarms below 1e-6) and would notice 88% or 92% at 400 calibrations.
    """
    rng = np.random.default_rng(fresh_seed())
    shares = []
    for _ in range(400 if SOAK else 100):
        value, std = rng.normal(size=199), rng.uniform(0.2, 3.0, 199)  # not the law's own
        fit = Calibration.of(LAW.rvs(199, random_state=rng), value, std)
        low, high = fit.interval(v := rng.normal(size=190), s := rng.uniform(0.2, 3.0, 190))
        assert v.size == s.size
        fresh = LAW.rvs(190, random_state=rng)
        shares.append(np.mean((low <= fresh) & (fresh <= high)))
    mean, error = np.mean(shares), np.std(shares, ddof=1) / np.sqrt(len(shares))
    assert abs(mean - 0.9) < 4.9 * error + 0.005  # ranks of 199 returns: 190/200 = .90 to 1/200


def test_one_sided_limits_are_exceeded_as_often_as_they_say():
    ranks = np.arange(1.0, 100.0)  # 99 scores: the 5th smallest is exceeded by 95 of 100
    fit = Calibration.of(ranks, np.zeros(99), np.ones(99))
    assert fit.above(np.zeros(1), np.ones(1), 0.95)[0] == 5.0


def test_too_few_calibration_returns_are_named():
    fit = Calibration.of(np.zeros(30), np.zeros(30), np.ones(30))
    assert fit.needed(0.9) == 19
    with pytest.raises(rv.InputError, match="needs 199 calibration returns; there are 30"):
        fit.interval(np.zeros(1), np.ones(1), level=0.99)


def test_many_cut_off_returns_make_it_doubtful():
    cut = np.arange(50) < 11
    assert Calibration.of(np.zeros(50), np.zeros(50), np.ones(50), cut).doubtful
    assert not Calibration.of(np.zeros(50), np.zeros(50), np.ones(50), cut & False).doubtful


def test_only_returns_with_a_score_count_as_cut_off():
    known, cut = np.arange(50) < 20, np.arange(50) % 5 == 0
    for gap in range(3):
        columns = [np.ones(50), np.zeros(50), np.ones(50)]
        columns[gap][~known] = np.nan
        all_cut = np.where(known, cut, True)
        assert Calibration.of(*columns, all_cut).cut_off == 0.2
        assert not Calibration.of(*columns, all_cut).doubtful


def test_intervals_end_where_many_returns_ended():
    """Few may not have reached the ends yet: then the ends are the estimates' own."""
    value, std = np.array([0.0, 0.5, -0.5]), np.array([1.0, 3.0, 3.0])
    for n in (99, 199):
        returns = np.linspace(-1.0, 1.0, n)
        fit = Calibration.of(returns, np.zeros(n), np.ones(n))
        (low,), (high,) = fit.interval(np.zeros(1), np.ones(1))  # scores are returns here
        ends = [value + std * low, value + std * high]
        limit = fit.above(value, std)
        if n >= 100:
            ends = [np.clip(end, returns.min(), returns.max()) for end in ends]
            assert (limit >= returns.min()).all()
        assert_allclose(fit.interval(value, std), ends, rtol=1e-12)
        assert (ends[1].max() > returns.max()) == (n < 100)


# ------------------------------------------------------------------------ returns of few values


def left_out(returns, most):
    """The values that the rule leaves out of a sample, read off its definition."""
    values, below, above, gone = sorted(Counter(returns).items()), 0, 0, set()
    while values:
        low, high = below + values[0][1], above + values[-1][1]
        value, times = values[0] if low < high else values[-1]
        if below + above + times > most:
            break
        values.remove((value, times))
        below, above = (low, above) if low < high else (below, high)
        gone.add(value)
    return gone


def ends_by_trial(returns, level):
    """The smallest and largest new return that is not left out, tried one by one."""
    most = math.floor((len(returns) + 1) * (1 - level) + 1e-9)
    seen = np.unique(returns)
    between = (seen[1:] + seen[:-1]) / 2
    tried = [seen[0] - 1, *seen, *between, seen[-1] + 1]
    inside = [y for y in tried if y not in left_out([*returns, y], most)]
    low, high = min(inside), max(inside)
    return seen[seen <= low].max(), seen[seen >= high].min()


def own_interval(returns, level=0.9):
    of = ReturnsByState(returns, np.zeros(returns.size, dtype=np.intp))
    low, high = of.interval(np.zeros(1, dtype=np.intp), level)
    share, excess = of.held(np.zeros(1, dtype=np.intp), level)
    return low[0], high[0], share[0], excess[0]


def test_intervals_hold_every_new_return_that_the_rule_does_not_leave_out():
    """Samples with and without ties, against a trial of each possible new return."""
    rng = np.random.default_rng(fresh_seed())
    for _ in range(4_000 if SOAK else 400):
        level = rng.choice([0.5, 0.8, 0.9])
        size = rng.integers(math.ceil(2 / (1 - level)) + 1, 60)
        returns = rng.binomial(rng.integers(1, 60), rng.uniform(0.02, 0.5), size).astype(float)
        low, high, share, _ = own_interval(returns, level)
        assert (low, high) == ends_by_trial(returns, level)
        assert share == pytest.approx(np.mean((low <= returns) & (returns <= high)))


def test_a_higher_level_has_the_interval_of_a_lower_one_inside():
    rng = np.random.default_rng(fresh_seed())
    for _ in range(50):
        returns = rng.poisson(rng.uniform(0.05, 5.0), 300).astype(float)
        ends = [own_interval(returns, level)[:2] for level in (0.6, 0.7, 0.8, 0.9, 0.95)]
        for (low, high), (lower, higher) in pairwise(ends):
            assert lower <= low <= high <= higher


@pytest.mark.parametrize(
    ("law", "most"),
    [
        (scipy.stats.binom(12, 0.3), 0.940),  # measured 92.8%; with each side apart 95.1%
        (scipy.stats.binom(1, 0.08), 0.956),  # 94.4%; 99.0%
        (scipy.stats.poisson(0.3), 0.966),  # 96.3%, which no interval can avoid; 97.4%
        (scipy.stats.poisson(20), 0.922),  # 91.2%; 92.1%
    ],
)
def test_with_few_values_intervals_hold_their_level_and_little_more(law, most):
    """P(new return inside), exact for each sample of 79, on average over 400 samples.

    Its standard deviation over samples was at most 3.9%: six standard errors are 1.2%.
    """
    rng = np.random.default_rng(fresh_seed())
    held = []
    for _ in range(400):
        low, high, _, _ = own_interval(law.rvs(79, random_state=rng).astype(float))
        held.append(law.cdf(high) - law.cdf(low - 1))
    assert 0.9 - 0.012 <= np.mean(held) <= most


def test_returns_that_all_differ_have_no_word_at_any_size_or_level():
    rng = np.random.default_rng(fresh_seed())
    for level in (0.5, 0.8, 0.9, 0.95):
        for size in range(math.ceil(2 / (1 - level)), 130):
            *_, share, excess = own_interval(rng.normal(size=size), level)
            assert excess == pytest.approx(0.0, abs=1e-12)
            assert rv.estimation.return_intervals.Held(share, excess).note == ""


def test_the_word_comes_with_the_share_where_two_values_are_all_there_is():
    returns = np.repeat([0.0, 1.0], [60, 40])
    low, high, share, excess = own_interval(returns)
    assert (low, high, share) == (0.0, 1.0, 1.0)
    assert excess > 0.09
    assert Calibration.of(returns, np.zeros(100), np.ones(100)).held(0.9).note == (
        "returns take few values here: this interval held 100% of the calibration returns"
    )
