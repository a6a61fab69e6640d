"""Statistics of sampled returns: intervals that hold, and bounds for returns that were cut off."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import scipy.stats
from numpy.testing import assert_allclose

import retvar as rv
from retvar.estimation.return_intervals import Calibration, ReturnsByState, few_values
from retvar.estimation.return_sample import ReturnSample
from tests.oracle import SOAK, fresh_seed

REPETITIONS = 4_000 if SOAK else 300
LAWS = {
    "normal": scipy.stats.norm().rvs,
    "log-normal": scipy.stats.lognorm(0.7).rvs,
    "exponential": scipy.stats.expon().rvs,
    "losses": lambda size, random_state: -scipy.stats.lognorm(0.7).rvs(size, random_state),
    "mixture": lambda size, random_state: np.where(
        random_state.random(size) < 0.1,
        random_state.normal(-8.0, 1.0, size),
        random_state.normal(size=size),
    ),
}
STATISTICS = {
    "mean": (lambda s: s.mean, np.mean),
    "std": (lambda s: s.std, np.std),
    "5% quantile": (lambda s: s.quantile(0.05), lambda x: np.quantile(x, 0.05)),
    "CVaR 5%": (lambda s: s.cvar(), lambda x: np.sort(x)[: x.size // 20].mean()),
}


@pytest.mark.parametrize("size", [100, 300, 500])
@pytest.mark.parametrize("law", LAWS)
def test_intervals_hold_as_often_as_they_say_or_are_not_given(law, size):
    """At least 87% of 90% intervals; a threshold of binomials with a false alarm rate of 1e-6.

    Of 4,000 repetitions the lowest share was 87.6%, of the mean of 100 losses.
    """
    rng = np.random.default_rng(fresh_seed())
    many = LAWS[law](1_000_000, random_state=rng)
    truth = {name: float(exact(many)) for name, (_, exact) in STATISTICS.items()}
    held: Counter[str] = Counter()
    for _ in range(REPETITIONS):
        sample = ReturnSample(LAWS[law](size, random_state=rng))
        for name, (statistic, _) in STATISTICS.items():
            _, low, high = statistic(sample)
            held[name] += low <= truth[name] <= high
            assert math.isnan(low) == (name == "CVaR 5%" and size < 500)
    for name in STATISTICS:
        if size >= 500 or name != "CVaR 5%":
            assert held[name] >= scipy.stats.binom.ppf(1e-6, REPETITIONS, 0.87), name


def test_bounded_returns_have_a_band_for_their_worst_share():
    """It holds at any size, and ends between the bounds."""
    rng, held = np.random.default_rng(0), 0
    for _ in range(REPETITIONS):
        x = rng.beta(2.0, 1.0, 60)
        estimate, low, high = ReturnSample(x, bounds=(0.0, 1.0)).cvar(0.2)
        held += low <= 2 / 3 * math.sqrt(0.2) <= high
        assert 0.0 <= low < estimate < high <= 1.0
    assert held >= 0.9 * REPETITIONS


def test_the_number_of_episodes_for_a_precision_gives_it():
    rng = np.random.default_rng(0)
    pilot = ReturnSample(rng.exponential(size=200))
    more = ReturnSample(rng.exponential(size=pilot.episodes_for(0.05)))
    assert (more.mean.high - more.mean.low) / 2 == pytest.approx(0.05, rel=0.2)


def test_the_mean_of_two_returns_has_the_interval_of_cauchy():
    """Student's law with one degree of freedom has the quantiles tan(π(q − ½))."""
    low, high = 3.0, 5.0
    for level in (0.5, 0.9, 0.99):
        found = ReturnSample(np.array([low, high]), level=level).mean
        reach = (high - low) / 2 * math.tan(math.pi * level / 2)
        assert_allclose(found, (4.0, 4.0 - reach, 4.0 + reach), rtol=1e-12)


def test_ends_of_a_probability_leave_out_its_tails():
    """As many below or more are as likely as the tail at the lower end, and so at the upper one."""
    n, tail = 20, 0.05
    for k in range(n + 1):
        found = ReturnSample(np.arange(n) / 1.0).probability_below(k - 0.5)
        assert found.estimate == k / n
        if k > 0:
            assert scipy.stats.binom.sf(k - 1, n, found.low) == pytest.approx(tail)
        if k < n:
            assert scipy.stats.binom.cdf(k, n, found.high) == pytest.approx(tail)


def test_ends_of_a_quantile_leave_out_its_tails():
    """They are the innermost returns beyond which the quantile lies with less than the tail."""
    n, tail = 40, 0.05
    sample = ReturnSample(np.arange(1.0, n + 1))
    for share in (0.1, 0.25, 0.5, 0.9):
        below = scipy.stats.binom(n, share)  # number of returns below the quantile
        found = sample.quantile(share)
        left = [k for k in range(1, n + 1) if below.cdf(k - 1) <= tail]
        right = [k for k in range(1, n + 1) if below.sf(k - 1) <= tail]
        assert found.low == max(left, default=-math.inf)
        assert found.high == min(right, default=math.inf)


def test_the_std_of_few_returns_is_unbiased_in_its_square():
    x = np.random.default_rng(0).normal(size=5)
    assert_allclose(ReturnSample(x).std.estimate, x.std(ddof=1))


def test_the_mean_of_the_worst_share_has_the_tails_of_its_level():
    """Of nearly all returns it is the mean, whose interval is ± a normal quantile of its error."""
    x = np.random.default_rng(0).normal(size=2_000)
    _, low, high = ReturnSample(x, level=0.9).cvar(1 - 1e-9)
    reach = scipy.stats.norm.ppf(0.95) * x.std() / math.sqrt(x.size)
    assert_allclose((high - low) / 2, reach, rtol=0.02)


def test_a_value_that_completes_returns_hides_their_spread_unless_it_is_negligible():
    returns = np.random.default_rng(0).normal(-500.0, 100.0, 300)
    for completed, known in ((0.05, True), (5.0, False)):
        sample = ReturnSample(returns, cut_off=300, completed=completed)
        assert sample.mean == ReturnSample(returns).mean
        assert math.isfinite(sample.std.estimate) == known
        assert math.isfinite(sample.skewness.estimate) == known


def test_returns_that_do_not_vary():
    sample = ReturnSample(np.full(50, 3.0))
    assert sample.std == (0.0, 0.0, 0.0)
    assert sample.skewness.estimate == 0.0
    assert sample.cvar(0.6) == (3.0, 3.0, 3.0)


def test_the_worst_share_counts_fractions():
    """The worst 25% of 0, 1, …, 9 are 0, 1 and half of 2."""
    assert ReturnSample(np.arange(10.0)).cvar(0.25).estimate == (0 + 1 + 2 / 2) / 2.5


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: ReturnSample(np.arange(9.0)).episodes_for(0.0), "precision"),
        (lambda: ReturnSample(np.ones(1)), "returns"),
        (lambda: ReturnSample(np.ones(9), level=90), "level"),
        (lambda: ReturnSample(np.ones(9)).quantile(5), "share"),
        (lambda: ReturnSample(np.ones(9)).cvar(0), "share"),
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
        fit = Calibration.of(scipy.stats.gamma(3.0).rvs(199, random_state=rng), value, std)
        low, high = fit.interval(v := rng.normal(size=190), s := rng.uniform(0.2, 3.0, 190))
        assert v.size == s.size
        fresh = scipy.stats.gamma(3.0).rvs(190, random_state=rng)
        shares.append(np.mean((low <= fresh) & (fresh <= high)))
    mean, error = np.mean(shares), np.std(shares, ddof=1) / np.sqrt(len(shares))
    assert abs(mean - 0.9) < 4.9 * error + 0.005  # ranks of 199 returns: 190/200 = .90 to 1/200


def test_intervals_end_where_many_returns_ended():
    """Few may not have reached the ends yet: then the ends are the estimates' own."""
    value, std = np.array([0.0, 0.5, -0.5]), np.array([1.0, 3.0, 3.0])
    for n in (99, 199):
        returns = np.linspace(-1.0, 1.0, n)
        fit = Calibration.of(returns, np.zeros(n), np.ones(n))
        (low,), (high,) = fit.interval(np.zeros(1), np.ones(1))  # scores are returns here
        ends = [value + std * low, value + std * high]
        if n >= 100:
            ends = [np.clip(end, returns.min(), returns.max()) for end in ends]
        assert_allclose(fit.interval(value, std), ends, rtol=1e-12)
        assert (ends[1].max() > returns.max()) == (n < 100)


# ------------------------------------------------------------------------ returns of few values


def own_interval(returns, level=0.9):
    of = ReturnsByState(returns, np.zeros(returns.size, dtype=np.intp))
    (low,), (high,) = of.interval(np.zeros(1, dtype=np.intp), level)
    return low, high, few_values(of.of(0), level)


def test_with_few_values_intervals_hold_their_level_or_more():
    """P(new return inside), exact for each sample of 79; six standard errors are 1.2%."""
    rng = np.random.default_rng(fresh_seed())
    for law in (scipy.stats.binom(12, 0.3), scipy.stats.binom(1, 0.08), scipy.stats.poisson(20)):
        held = []
        for _ in range(400):
            low, high, _ = own_interval(law.rvs(79, random_state=rng).astype(float))
            held.append(law.cdf(high) - law.cdf(low - 1))
        assert np.mean(held) >= 0.9 - 0.012


def test_a_word_comes_where_returns_take_few_values_and_only_there():
    rng = np.random.default_rng(fresh_seed())
    for level in (0.5, 0.8, 0.9, 0.95):
        for size in range(math.ceil(2 / (1 - level)), 130):
            assert own_interval(rng.normal(size=size), level)[2] == ""
    low, high, note = own_interval(np.repeat([0.0, 1.0], [60, 40]))
    assert (low, high) == (0.0, 1.0)
    assert note
