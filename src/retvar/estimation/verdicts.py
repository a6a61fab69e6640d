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

__all__ = ["AGREES", "DISAGREES", "UNCERTAIN", "Verdict", "judge_std", "judge_value"]

Array = NDArray[np.float64]
AGREES, DISAGREES, UNCERTAIN = "agrees", "disagrees", "too uncertain to tell"
FEWEST = 100  # returns below which nothing is said
REACH = 1.8  # standard errors of the interval that "agrees" rests on
TOLERATED = math.log(1.25)  # difference of the std, in logarithms, that is still agreement
TOLERATED_SHIFT = 0.25  # difference of the value, in standard deviations of the return
ERROR_RATE = 0.01  # of "disagrees" where all is well
LEAST_KURTOSIS = 2.0  # var u / mean² of a normal distribution


@dataclass(frozen=True)
class Verdict:
    """What returns say of an estimate.

    >>> rng = np.random.default_rng(0)
    >>> print(judge_std(rng.normal(size=2_000) ** 2))
    agrees (a difference of 3% would have been seen)
    >>> print(judge_std(2.0 * rng.normal(size=2_000) ** 2))
    disagrees by a factor of 1.41 [1.37, 1.45]
    >>> print(judge_std(rng.normal(size=90) ** 2))
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

    def __str__(self) -> str:
        if self.kind == UNCERTAIN:
            return f"{self.kind} ({self.returns:,} return{'s' if self.returns != 1 else ''})"
        if self.quantity == "std":
            if self.kind == AGREES:
                return f"agrees (a difference of {self.visible:.0%} would have been seen)"
            return (
                f"disagrees by a factor of {self.difference:.2f} [{self.low:.2f}, {self.high:.2f}]"
            )
        if self.kind == AGREES:
            return f"agrees (a difference of {self.visible:.2f} std would have been seen)"
        return f"disagrees by {self.difference:+.2f} std [{self.low:+.2f}, {self.high:+.2f}]"


def judge_std(u: Array, estimate_error: float = 0.0, tests: int = 1) -> Verdict:
    """Judge a std by u = ((G − Ĵ)² + missing variance)/V̂ of returns G that do not overlap.

    Parameters
    ----------
    u
        One number for each return; 1 on average where the std is right.
    estimate_error
        Standard error of the logarithm of the estimated std.
    tests
        Number of places that are judged at once: "disagrees" needs the more evidence.
    """
    n = u.size
    if n < FEWEST or not np.isfinite(u).all() or not (u > 0).any():
        return Verdict("std", UNCERTAIN, n, math.nan, math.nan, math.nan)
    mean = float(u.mean())
    deviations = u - mean
    variance = float((deviations**2).mean())
    skew = float((deviations**3).mean()) / variance**1.5 if variance > 0 else 0.0
    relative = math.sqrt(max(variance / mean**2, LEAST_KURTOSIS) / n)
    shift = skew * (2.0 * REACH**2 + 1.0) / (6.0 * math.sqrt(n))
    centre, error = 0.5 * math.log(mean), 0.5 * relative
    low = centre + min(-REACH * error, _half_log(1.0 + relative * (shift - REACH)))
    high = centre + max(REACH * error, _half_log(1.0 + relative * (shift + REACH)))
    limit = _limit(tests) * math.hypot(error, estimate_error)
    if low > -TOLERATED and high < TOLERATED:
        kind = AGREES
    else:
        kind = DISAGREES if abs(centre) > limit else UNCERTAIN
    return Verdict("std", kind, n, math.exp(centre), math.exp(low), math.exp(high))


def judge_value(z: Array, estimate_error: float = 0.0, tests: int = 1) -> Verdict:
    """Judge a value by z = (G − Ĵ)/σ̂ of returns that do not overlap.

    `estimate_error` is the standard error of the value, in standard deviations of the return.

    >>> rng = np.random.default_rng(0)
    >>> print(judge_value(rng.normal(size=2_000)))
    agrees (a difference of 0.07 std would have been seen)
    >>> print(judge_value(rng.normal(0.5, 1.0, size=2_000)))
    disagrees by +0.50 std [+0.46, +0.54]
    """
    n = z.size
    if n < FEWEST or not np.isfinite(z).all():
        return Verdict("value", UNCERTAIN, n, math.nan, math.nan, math.nan)
    centre = float(z.mean())
    error = max(float(z.std(ddof=1)), 1.0) / math.sqrt(n)
    low, high = centre - REACH * error, centre + REACH * error
    if low > -TOLERATED_SHIFT and high < TOLERATED_SHIFT:
        kind = AGREES
    else:
        limit = _limit(tests) * math.hypot(error, estimate_error)
        kind = DISAGREES if abs(centre) > limit else UNCERTAIN
    return Verdict("value", kind, n, centre, low, high)


def _half_log(x: float) -> float:
    """½ log x, −∞ where x is not positive."""
    return 0.5 * math.log(x) if x > 0 else -math.inf


def _limit(tests: int) -> float:
    """Standard errors beyond which chance is an unlikely explanation, of several tests at once."""
    return NormalDist().inv_cdf(1.0 - ERROR_RATE / (2.0 * max(1, tests)))
