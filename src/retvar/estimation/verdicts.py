"""Does an estimate agree with returns that it has not seen? Three verdicts, with their power.

A check that cannot fail is worth nothing: "agrees" is said only where a difference of a quarter
would have been noticed, "disagrees" only where chance is an unlikely explanation. Everything else
is "too uncertain to tell".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from retvar.estimation.returns import FEWEST
from retvar.support.format import count, number

Array = NDArray[np.float64]
AGREES, DISAGREES, UNCERTAIN = "agrees", "disagrees", "too uncertain to tell"
ENOUGH = 200  # returns below which agreement is not said
REACH = 1.8  # standard errors of the interval that "agrees" rests on
TOLERATED = {  # difference that is still agreement
    "value": 0.25,  # in standard deviations of the return
    "std": math.log(1.25),  # in logarithms
}
ERROR_RATE = 0.005  # of "disagrees" where all is well, of all tests together
UNSEEN = 3  # large returns that may be missing from a sample where it disagrees
BEYOND = 0.5  # mean log excesses by which a large return that was not seen exceeds the largest
LEAST_KURTOSIS = 2.0  # var u / mean² of a normal distribution
FARTHEST = 1e50  # standard deviations; squares of larger numbers would overflow


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
    difference: float  #: value: in std of the return; std: of its logarithm
    low: float
    high: float

    @property
    def visible(self) -> float:
        """The smallest difference that would have been seen."""
        return max(abs(self.low), abs(self.high))

    @property
    def distance(self) -> float:
        """How far off the estimate is, to compare verdicts: 0 where nothing is known."""
        return 0.0 if math.isnan(self.difference) else abs(self.difference)

    def __str__(self) -> str:
        value, ends = self.quantity == "value", (self.difference, self.low, self.high)
        if self.kind == UNCERTAIN:
            return f"{self.kind} ({count(self.returns, 'return')})"
        if self.kind == AGREES and self.visible == 0.0:
            return "agrees exactly (nothing varied)"
        if self.kind == AGREES:
            unit = f"{self.visible:.2f} std" if value else f"{math.expm1(self.visible):.0%}"
            return f"agrees (a difference of {unit} would have been seen)"
        if math.isinf(self.difference):
            return "disagrees: the estimate has no spread"
        middle, low, high = (f"{x:+.2f}" if value else number(math.exp(x)) for x in ends)
        by = f"{middle} std" if value else f"a factor of {middle}"
        return f"disagrees by {by} [{low}, {high}]"


def _verdict(quantity: str, n: int, middle: float, low: float, high: float, off: bool) -> Verdict:
    """The verdict on a difference and its interval; `off` where chance is no likely explanation."""
    agrees = n >= ENOUGH and max(-low, high) < TOLERATED[quantity]
    kind = AGREES if agrees else DISAGREES if off else UNCERTAIN
    return Verdict(quantity, kind, n, middle, low, high)


def _nothing_said(quantity: str, n: int) -> Verdict:
    return Verdict(quantity, UNCERTAIN, n, math.nan, math.nan, math.nan)


def joint_kind(*verdicts: Verdict) -> str:
    """One word for several verdicts: a single "disagrees" decides, "agrees" takes all of them."""
    kinds = {verdict.kind for verdict in verdicts}
    if DISAGREES in kinds:
        return DISAGREES
    return AGREES if kinds == {AGREES} else UNCERTAIN


def judge_value(
    z: Array,
    missing: Array | float = 0.0,
    share: float = 0.0,
    estimate_error: float = 0.0,
    tests: int = 1,
) -> Verdict:
    """Judge a value by z = (G − Ĵ)/σ̂ of returns that do not overlap.

    `missing` is the share of the variance that each return lacks since it was cut off, and `share`
    the mean discount of what they lack. The estimate stands in for it, with its error: what shows
    of a difference is what is left of the return. `estimate_error` is the standard error of the
    value, in standard deviations of the return; `tests` the number of verdicts at once.
    """
    n, own = z.size, 1.0 - share
    if n < FEWEST or not np.isfinite(z).all() or own <= 0.0:
        return _nothing_said("value", n)
    z = np.clip(z, -FARTHEST, FARTHEST)
    least = math.sqrt(max(0.0, 1.0 - float(np.mean(missing))))
    centre, error = float(z.mean()), max(float(z.std(ddof=1)), least) / math.sqrt(n)
    low, high = ((centre + sign * REACH * error) / own for sign in (-1, 1))
    limit = _limit(tests) * math.hypot(error, (1.0 + share) * estimate_error)
    return _verdict("value", n, centre / own, low, high, abs(centre) > limit)


def judge_std(
    z: Array, missing: Array | float = 0.0, estimate_error: float = 0.0, tests: int = 1
) -> Verdict:
    """Judge a std by u = z² + missing, with arguments as for :func:`judge_value`.

    `estimate_error` is the standard error of the logarithm of the std. "Disagrees" allows for three
    large returns that were not seen: where three are to be expected, none is seen in one of 20
    samples. Where all returns lie on one side of the value, those on the other have not been seen
    yet: then no std is called too large.
    """
    n, lacking = z.size, float(np.mean(missing)) if z.size else 0.0
    if n < FEWEST or not np.isfinite(z).all() or not z.any() or not lacking < 1.0:
        return _nothing_said("std", n)
    z = np.clip(z, -FARTHEST, FARTHEST)
    u = z * z + missing
    centre, limit = 0.5 * math.log(float(u.mean())), _limit(tests)
    seen = centre, *log_std_interval(u, REACH)
    middle, low, high = (_half_log((math.exp(2 * x) - lacking) / (1.0 - lacking)) for x in seen)
    ends = log_std_interval(u, limit, unseen=UNSEEN)
    below, above = (math.hypot(end - centre, limit * estimate_error) for end in ends)
    off = centre > below or (-centre > above and z.min() < 0 < z.max())
    return _verdict("std", n, middle, low, high, off)


def judge_without_spread(errors: Array, rounding: float) -> tuple[Verdict, Verdict]:
    """Judge value and std, by G − Ĵ, where the estimate says that returns do not vary."""
    n = errors.size
    if n < FEWEST or not np.isfinite(errors).all():
        return _nothing_said("value", n), _nothing_said("std", n)
    found = {"value": abs(float(np.median(errors))), "std": float(np.ptp(errors))}
    off = {name: 0.0 if x <= rounding else math.inf for name, x in found.items()}
    value, std = (_verdict(name, n, x, x, x, x > 0) for name, x in off.items())
    return value, std


def log_std_interval(
    u: Array, reach: float, least: float = LEAST_KURTOSIS, unseen: int = 1
) -> tuple[float, float]:
    """Interval of ½ log mean u of `reach` standard errors, with or without some large u more.

    A rare large return that the sample happens to lack is missing from its mean and from its
    standard error alike. So the interval of the sample is joined with that of the same sample with
    such numbers more: e^(h/2) times the largest, where h is the mean of log u above the √n-th
    largest (Hill, 1975): 0 for returns of one size, and the larger the heavier the tail.
    """
    count = math.isqrt(u.size)
    top = np.partition(u, -count - 1)[-count - 1 :]
    top = top[top > 0]
    excess = float(np.log(top / top.min()).sum()) / max(1, top.size - 1)
    more = np.full(unseen, float(u.max()) * math.exp(BEYOND * excess))
    both = (_interval_of(sample, reach, least) for sample in (u, np.append(u, more)))
    low, high = zip(*both, strict=True)
    return min(low), max(high)


def _interval_of(u: Array, reach: float, least: float) -> tuple[float, float]:
    """Interval of ½ log mean u for skewed u (Johnson, 1978), at least as wide as without skew."""
    n, mean = u.size, float(u.mean())
    off = u / mean - 1.0
    variance = float((off * off).mean())
    skew = float((off * off * off).mean()) / variance**1.5 if variance > 0 else 0.0
    relative = math.sqrt(max(variance, least) / n)
    shift = skew * (2.0 * reach**2 + 1.0) / (6.0 * math.sqrt(n))
    half, centre = 0.5 * reach * relative, 0.5 * math.log(mean)
    return (
        centre + min(-half, _half_log(1.0 + relative * (shift - reach))),
        centre + max(half, _half_log(1.0 + relative * (shift + reach))),
    )


def _half_log(x: float) -> float:
    """½ log x, −∞ where x is not positive."""
    return 0.5 * math.log(x) if x > 0 else -math.inf


def _limit(tests: int) -> float:
    """Standard errors beyond which chance is an unlikely explanation, of several tests at once."""
    return NormalDist().inv_cdf(1.0 - ERROR_RATE / (2.0 * max(1, tests)))
