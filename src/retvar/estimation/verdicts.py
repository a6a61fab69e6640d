"""Does an estimate agree with returns that it has not seen? Three verdicts, with their power.

A check that cannot fail is worth nothing: "agrees" is said only where a difference of a quarter
would have been noticed, "disagrees" only where chance is an unlikely explanation. Everything else
is "too uncertain to tell".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from retvar.estimation.returns import FEWEST
from retvar.support.format import count, number

Array = NDArray[np.float64]
AGREES, DISAGREES, UNCERTAIN = "agrees", "disagrees", "too uncertain to tell"
ENOUGH = 200  # returns below which agreement is not said
REACH = 1.8  # standard errors of the interval that "agrees" rests on
TOLERATED = math.log(1.25)  # difference of the std, in logarithms, that is still agreement
TOLERATED_SHIFT = 0.25  # difference of the value, in standard deviations of the return
ERROR_RATE = 0.005  # of "disagrees" where all is well, of all tests together
UNSEEN = 3  # large returns that may be missing from a sample where it disagrees
BEYOND = 0.5  # mean log excesses by which a large return that was not seen exceeds the largest
LEAST_KURTOSIS = 2.0  # var u / mean² of a normal distribution
FARTHEST = 1e20  # standard deviations; with larger numbers sixth powers would overflow


class Lack(NamedTuple):
    """How much the returns lack on average, where the estimate stands in for it.

    An error of the estimate is then in both ends of a return, and shows in what is left alone.
    """

    share: float = 0.0  #: discount of what is missing
    variance: float = 0.0  #: of it, as a share of the variance of the return

    def value(self, seen: float) -> float:
        """The difference of the value that shows as `seen`."""
        return seen / (1.0 - self.share)

    def log_std(self, seen: float) -> float:
        """The difference of the std that shows as `seen`, both in logarithms."""
        if not self.variance or math.isinf(seen):
            return seen
        return _half_log((math.exp(2.0 * seen) - self.variance) / (1.0 - self.variance))


NOTHING = Lack()


@dataclass(frozen=True)
class Verdict:
    """What returns say of an estimate.

    >>> rng = np.random.default_rng(0)
    >>> print(judge_std(rng.normal(size=2_000)))
    agrees (a difference of 4% would have been seen)
    >>> print(judge_std(rng.normal(0.0, 1.5, size=2_000)))
    disagrees by a factor of 1.49 [1.45, 1.54]
    >>> print(judge_std(rng.normal(size=90)))
    too uncertain to tell (90 returns)
    """

    quantity: str  #: "std" or "value"
    kind: str  #: "agrees", "disagrees" or "too uncertain to tell"
    returns: int  #: that were compared
    difference: float  #: std: factor between returns and estimate; value: in std of the return
    low: float
    high: float

    @property
    def visible(self) -> float:
        """The smallest difference that would have been seen."""
        if self.quantity == "std":
            return math.exp(max(abs(math.log(self.low)), abs(math.log(self.high)))) - 1.0
        return max(abs(self.low), abs(self.high))

    @property
    def distance(self) -> float:
        """How far off the estimate is, to compare verdicts: 0 where nothing is known."""
        off = 2.0 * _half_log(self.difference) if self.quantity == "std" else self.difference
        return 0.0 if math.isnan(self.difference) else abs(off)

    def __str__(self) -> str:
        if self.kind == UNCERTAIN:
            return f"{self.kind} ({count(self.returns, 'return')})"
        if self.kind == AGREES:
            if self.low == self.high:
                return "agrees exactly (nothing varied)"
            unit = f"{self.visible:.0%}" if self.quantity == "std" else f"{self.visible:.2f} std"
            return f"agrees (a difference of {unit} would have been seen)"
        if math.isinf(self.difference):
            return "disagrees: the estimate has no spread"
        show = number if self.quantity == "std" else "{:+.2f}".format
        middle, low, high = (show(x) for x in (self.difference, self.low, self.high))
        by = f"a factor of {middle}" if self.quantity == "std" else f"{middle} std"
        return f"disagrees by {by} [{low}, {high}]"


def nothing_said(quantity: str, returns: int) -> Verdict:
    """The verdict where nothing can be said."""
    return Verdict(quantity, UNCERTAIN, returns, math.nan, math.nan, math.nan)


def joint_kind(*verdicts: Verdict) -> str:
    """One word for several verdicts: a single "disagrees" decides, "agrees" takes all of them."""
    kinds = {verdict.kind for verdict in verdicts}
    if DISAGREES in kinds:
        return DISAGREES
    return AGREES if kinds == {AGREES} else UNCERTAIN


def judge_std(
    z: Array,
    missing: Array | float = 0.0,
    estimate_error: float = 0.0,
    tests: int = 1,
    lack: Lack = NOTHING,
) -> Verdict:
    """Judge a std by u = z² + missing of returns that do not overlap; z = (G − Ĵ)/σ̂.

    The interval of ½ log mean u is that of a mean of skewed numbers (Johnson, 1978), joined with
    the interval for the same sample with one large number more: a rare large return that the sample
    happens to lack is missing from its mean and from its standard error alike. This number is
    e^(h/2) times the largest, where h is the mean of log u above the √n-th largest (Hill, 1975): 0
    for returns of one size, and the larger the heavier the tail. "Disagrees" allows for three
    such numbers: where three are to be expected, none is seen in one of 20 samples. Where all
    returns lie on one side of the value, those on the other have not been seen yet: then no std is
    called too large.

    `missing` is the share of the variance that each return lacks, since it was cut off,
    `estimate_error` the standard error of the logarithm of the std, `tests` the number of verdicts
    at once, and `lack` what returns lack, where it is so much that less of a difference shows.
    """
    n, known = z.size, bool(np.isfinite(z + missing).all())
    z = _within_reach(z)
    u = z * z + missing
    if n < FEWEST or lack.variance >= 1.0 or not known or not (u > 0).any():
        return nothing_said("std", n)
    centre = 0.5 * math.log(float(u.mean()))
    low, high = map(lack.log_std, log_std_interval(u, REACH))
    kind = UNCERTAIN
    if n >= ENOUGH and low > -TOLERATED and high < TOLERATED:
        kind = AGREES
    else:
        limit = _limit(tests)
        ends = log_std_interval(u, limit, unseen=UNSEEN)
        below, above = (math.hypot(end - centre, limit * estimate_error) for end in ends)
        both_sides = z.min() < 0 < z.max()
        if centre > below or (-centre > above and both_sides):
            kind = DISAGREES
    return Verdict("std", kind, n, *map(math.exp, (lack.log_std(centre), low, high)))


def log_std_interval(
    u: Array, reach: float, least: float = LEAST_KURTOSIS, unseen: int = 1
) -> tuple[float, float]:
    """Interval of ½ log mean u of `reach` standard errors, with or without some large u more."""
    more = np.full(unseen, float(u.max()) * math.exp(BEYOND * _log_excess(u)))
    both = (_one_interval(sample, reach, least) for sample in (u, np.append(u, more)))
    low, high = zip(*both, strict=True)
    return min(low), max(high)


def _log_excess(u: Array) -> float:
    """Mean of log u above the √n-th largest: Hill's estimate of how heavy the tail is."""
    count = math.isqrt(u.size)
    top = np.partition(u, -count - 1)[-count - 1 :]
    top = top[top > 0]
    return float(np.log(top / top.min()).sum()) / max(1, top.size - 1)


def _one_interval(u: Array, reach: float, least: float) -> tuple[float, float]:
    """Johnson's interval of ½ log mean u, at least as wide as without skewness."""
    n, mean = u.size, float(u.mean())
    off = u - mean
    variance = float((off * off).mean())
    skew = float((off * off * off).mean()) / variance**1.5 if variance > 0 else 0.0
    relative = math.sqrt(max(variance / mean**2, least) / n)
    shift = skew * (2.0 * reach**2 + 1.0) / (6.0 * math.sqrt(n))
    half = 0.5 * reach * relative
    centre = 0.5 * math.log(mean)
    return (
        centre + min(-half, _half_log(1.0 + relative * (shift - reach))),
        centre + max(half, _half_log(1.0 + relative * (shift + reach))),
    )


def judge_value(
    z: Array, estimate_error: float = 0.0, tests: int = 1, lack: Lack = NOTHING
) -> Verdict:
    """Judge a value by z = (G − Ĵ)/σ̂ of returns that do not overlap.

    `estimate_error` is the standard error of the value, in standard deviations of the return.
    `lack` is what the returns lack, where it is so much that less of a difference shows.
    """
    n = z.size
    if n < FEWEST or not np.isfinite(z).all():
        return nothing_said("value", n)
    z = _within_reach(z)
    centre = float(z.mean())
    smallest = math.sqrt(max(0.0, 1.0 - lack.variance))
    error = max(float(z.std(ddof=1)), smallest) / math.sqrt(n)
    low, high = (lack.value(centre + sign * REACH * error) for sign in (-1, 1))
    if n >= ENOUGH and low > -TOLERATED_SHIFT and high < TOLERATED_SHIFT:
        kind = AGREES
    else:
        limit = _limit(tests) * math.hypot(error, estimate_error)
        kind = DISAGREES if abs(centre) > limit else UNCERTAIN
    return Verdict("value", kind, n, lack.value(centre), low, high)


def judge_without_spread(errors: Array, rounding: float) -> tuple[Verdict, Verdict]:
    """Judge value and std, by G − Ĵ, where the estimate says that returns do not vary."""
    n = errors.size
    if n < FEWEST or not np.isfinite(errors).all():
        return nothing_said("value", n), nothing_said("std", n)
    shift, spread = abs(float(np.median(errors))), float(np.ptp(errors))
    value, std = (
        Verdict(quantity, AGREES, n, *[none] * 3)
        if off <= rounding
        else Verdict(quantity, DISAGREES, n, *[math.inf] * 3)
        for quantity, off, none in (("value", shift, 0.0), ("std", spread, 1.0))
    )
    return value, std


def _within_reach(z: Array) -> Array:
    """Numbers whose powers do not overflow: no larger than a bound, and 0 below its inverse."""
    return np.where(np.abs(z) < 1.0 / FARTHEST, 0.0, np.clip(z, -FARTHEST, FARTHEST))


def _half_log(x: float) -> float:
    """½ log x, −∞ where x is not positive."""
    return 0.5 * math.log(x) if x > 0 else -math.inf


def _limit(tests: int) -> float:
    """Standard errors beyond which chance is an unlikely explanation, of several tests at once."""
    return NormalDist().inv_cdf(1.0 - ERROR_RATE / (2.0 * max(1, tests)))
