"""A sample of returns from one place: its mean, spread and tail, each with an interval."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest, quantile_test, skew
from scipy.stats import t as student

from retvar.estimation.verdicts import log_std_interval
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.support.format import count, number

Array = NDArray[np.float64]
TAIL = 25  # returns in the tail below which its mean has no interval from them alone
SHOWN = (0.05, 0.25, 0.5, 0.75, 0.95)  # quantiles of the summary
SMALL = 1e-3  # share of the std below which what is missing from returns does not matter
WITHIN_LIMIT = 'truncated="as_end" asks for the return up to the limit'
ROUNDING = 1e-13  # std, as a share of the largest return, that counts as none


class Interval(NamedTuple):
    """An estimate and the interval around it; NaN for ends that cannot be told.

    Where returns were cut off, nothing completes them and what is missing matters, the estimate is
    NaN and the interval holds every value that the missing ends could give.
    """

    estimate: float
    low: float
    high: float

    def __str__(self) -> str:
        if math.isnan(self.low + self.high) and not math.isinf(self.low):
            return number(self.estimate)
        ends = f"[{number(self.low)}, {number(self.high)}]"
        return ends if math.isnan(self.estimate) else f"{number(self.estimate)} {ends}"


@dataclass(frozen=True, eq=False)
class ReturnSample:
    """Independent returns, and what they say of the distribution they come from.

    `low` and `high` are bounds on each return; they differ only where truncation cut one off and no
    value function completed it.

    >>> rng = np.random.default_rng(0)
    >>> sample = ReturnSample.whole(rng.normal(5.0, 2.0, 1_000))
    >>> print(sample.mean)
    4.90 [4.80, 5.01]
    >>> print(sample.std)
    1.95 [1.88, 2.06]
    >>> print(sample.probability_below(3.0))
    0.167 [0.148, 0.188]
    """

    low: Array
    high: Array
    cut_off: int = 0  #: returns that truncation cut off
    level: float = 0.9
    within_limit: bool = False  #: whether these are returns up to a limit of steps, by intention
    rest: float = 0.0  #: the largest part of a return that a value function stands in for
    bounds: tuple[float, float] = (-math.inf, math.inf)  #: between which every return lies

    def __post_init__(self) -> None:
        arguments.level("level", self.level)
        if self.low.size < 2:
            raise InputError("returns", self.low.size, "must be at least 2")

    @classmethod
    def whole(cls, returns: Array, level: float = 0.9) -> ReturnSample:
        """Returns that are all known to their end."""
        returns = arguments.numbers("returns", returns)
        return cls(returns, returns, level=level)

    #: number of returns
    size = property(lambda self: int(self.low.size))
    #: whether every return is known, or completed
    exact = property(lambda self: np.array_equal(self.low, self.high))
    #: whether a value function stands in for what was cut off
    completed = property(lambda self: self.rest > 0.0)
    #: the largest part of a return that was not observed; 0 where all are whole
    missing = property(lambda self: max(self.rest, float((self.high - self.low).max())))
    # outside the interval on each side, and Student's quantile: half that of a mean, in its errors
    _tail = property(lambda self: (1.0 - self.level) / 2.0)
    _reach = property(lambda self: float(student.ppf(1.0 - self._tail, self.size - 1)))

    @property
    def negligible(self) -> bool:
        """Whether what is missing is below a thousandth of the std, so that it does not matter."""
        if not 0.0 < self.missing < math.inf:
            return bool(self.missing == 0.0)
        return bool(self.missing <= SMALL * self._centre.std(ddof=1))

    @property
    def _known(self) -> bool:
        """Whether all returns are known, but for what does not matter."""
        return bool(self.negligible or self.exact)

    @property
    def _centre(self) -> Array:
        """The middle between the bounds."""
        with np.errstate(invalid="ignore"):
            return np.asarray(self.low + (self.high - self.low) / 2.0)

    @property
    def returns(self) -> Array:
        """The returns; NaN where only bounds are known that matter."""
        known = np.asarray(self.low == self.high) | (self.negligible and not self.completed)
        return np.where(known, self._centre, np.nan)

    def _statistic(self, of: Callable[[Array], Interval], falls: bool = False) -> Interval:
        """An interval that holds for all returns between their bounds.

        `of` must rise with every return, or fall.
        """
        low, high = (of(x) for x in ((self.high, self.low) if falls else (self.low, self.high)))
        return Interval(of(self._centre).estimate if self._known else math.nan, low.low, high.high)

    @property
    def middle(self) -> tuple[float, float]:
        """Quantiles between which the share `level` of returns lies; bounds where some are."""
        ends = ((self.low, self._tail), (self.high, 1.0 - self._tail))
        low, high = (float(np.quantile(x, q, method="inverted_cdf")) for x, q in ends)
        return low, high

    @property
    def mean(self) -> Interval:
        """Mean, with Student's interval."""

        def of(x: Array) -> Interval:
            centre, finite = float(x.mean()), bool(np.isfinite(x).all())
            reach = self._reach * float(x.std(ddof=1)) / math.sqrt(x.size) if finite else 0.0
            return Interval(centre, centre - reach, centre + reach)

        return self._statistic(of)

    def episodes_for(self, precision: float) -> int:
        """Returns that the mean needs for an interval of ± `precision` (Stein, 1945)."""
        if not arguments.number("precision", precision) > 0:
            raise InputError("precision", precision, "must be positive")
        if not self._known:
            remedy = "cut-off returns have no mean to estimate: give value=, or truncated='as_end'"
            raise InputError("precision", precision, remedy)
        reach = float(self._reach * self._centre.std(ddof=1) / precision)
        return max(2, math.ceil(reach * reach))

    @property
    def std(self) -> Interval:
        """Standard deviation; its interval knows that rare large returns may not be in the sample.

        Of returns that were cut off, nothing is known but that they vary.
        """
        if not self._known:
            return Interval(math.nan, 0.0, math.inf)
        y, n = self._centre - self._centre.mean(), self.size
        spread = math.sqrt(float((y * y).sum()) / (n - 1))
        if spread <= ROUNDING * float(np.abs(self.low).max()):
            return Interval(0.0, 0.0, 0.0)
        low, high = log_std_interval(y * y * (n / (n - 1)), self._reach, least=0.0)
        estimate = spread if self.negligible else math.nan
        return Interval(estimate, math.exp(low), math.exp(high))

    @property
    def skewness(self) -> Interval:
        """Third standardised moment; it has no interval, since rare returns decide it."""
        y = self._centre if self.negligible else np.full(2, np.nan)
        flat = float(y.std()) <= ROUNDING * float(np.abs(self.low).max())
        return Interval(0.0 if flat else float(skew(y)), math.nan, math.nan)

    def quantile(self, share: float) -> Interval:
        """A quantile; its interval needs no assumption on the distribution (order statistics)."""
        share = arguments.level("share", share)

        def of(x: Array) -> Interval:
            low, high = quantile_test(x, p=share).confidence_interval(self.level)
            ends = -math.inf if math.isnan(low) else low, math.inf if math.isnan(high) else high
            middle = np.quantile(x, share, method="inverted_cdf")
            return Interval(*map(float, (middle, *ends)))

        return self._statistic(of)

    def cvar(self, share: float = 0.05) -> Interval:
        """Mean of the worst `share` of returns (conditional value at risk).

        From 25 returns in the tail on, the interval is that of the mean of q + min(x − q, 0)/share
        with the quantile q, whose influence on it is of second order; skewness as Johnson (1978).
        With fewer: a band around the distribution function (Dvoretzky, Kiefer and Wolfowitz, 1956)
        where `bounds` are known, and otherwise none.
        """
        share = arguments.level("share", share)
        band = np.isfinite(self.bounds).all()
        of = self._tail_mean if share * self.size >= TAIL else self._band if band else _no_interval
        return self._statistic(lambda x: of(x, share))

    def _tail_mean(self, x: Array, share: float) -> Interval:
        estimate, n = _worst(x, share), x.size
        if not np.isfinite(x).all():
            return Interval(estimate, estimate, estimate)
        limit = float(np.quantile(x, share, method="inverted_cdf"))
        parts = np.minimum(x - limit, 0.0) / share
        z, error = parts - parts.mean(), float(parts.std(ddof=1))
        if error <= ROUNDING * float(np.abs(x).max()):
            return Interval(estimate, estimate, estimate)
        reach, unit = float(student.ppf(1.0 - self._tail, share * n - 1.0)), error / math.sqrt(n)
        shift = float(((z / error) ** 3).mean()) * (2.0 * reach**2 + 1.0) / (6.0 * math.sqrt(n))
        low, high = min(-reach, shift - reach), max(reach, shift + reach)
        return Interval(estimate, estimate + low * unit, estimate + high * unit)

    def _band(self, x: Array, share: float) -> Interval:
        """As far as the distribution may lie from the sample, all of it at one of the bounds."""
        apart = min(1.0, math.sqrt(-math.log(self._tail) / (2.0 * x.size)))
        low = min(apart, share) * self.bounds[0] + _tail_sum(x, max(share - apart, 0.0))
        high = max(share + apart - 1.0, 0.0) * self.bounds[1] - _tail_sum(x, apart)
        high += _tail_sum(x, min(share + apart, 1.0))
        return Interval(_worst(x, share), low / share, high / share)

    def probability_below(self, limit: float) -> Interval:
        """Probability of a return below `limit`, with the Clopper–Pearson interval."""
        limit, n = arguments.number("limit", limit), self.size

        def of(x: Array) -> Interval:
            k = int(np.count_nonzero(x < limit))
            low, high = binomtest(k, n).proportion_ci(self.level)
            return Interval(k / n, float(low), float(high))

        return self._statistic(of, falls=True)

    def summary(self) -> str:
        """A few lines: mean, spread, tail, and what was cut off."""
        kind = " up to the limit of steps" if self.within_limit else ""
        rows = {"mean": self.mean, "std": self.std, "skewness": self.skewness}
        rows |= {f"quantile {q:.0%}": self.quantile(q) for q in SHOWN}
        rows["CVaR 5%"] = worst = self.cvar(0.05)
        held = f"intervals hold in about {self.level:.0%} of cases"
        lines = [
            f"{count(self.size, 'return')}{kind}; {held}",
            *(f"{name:14}{interval}" for name, interval in rows.items()),
        ]
        if math.isnan(worst.low):
            least = 20 * TAIL
            lines.append(f"CVaR 5% has an interval from {least} returns, or with a reward_range")
        if self.cut_off:
            how = f"cut off by truncation{self.remark()}"
            how = "stopped by the limit" if self.within_limit else how
            lines.append(f"{count(self.cut_off, 'return')} {how}")
        if not np.isfinite(self.high - self.low).all():
            lines.append(f"what follows a cut has no bound: {WITHIN_LIMIT}")
        return "\n".join(lines)

    def remark(self) -> str:
        """What was done about returns that were cut off."""
        how = "completed with the value function" if self.completed else "given as bounds"
        rest = f" (the rest is below {number(self.missing)})" if math.isfinite(self.missing) else ""
        return rest if self.negligible else f", {how}{rest}"


def _no_interval(x: Array, share: float) -> Interval:
    return Interval(_worst(x, share), math.nan, math.nan)


def _worst(x: Array, share: float) -> float:
    """Mean of the smallest numbers that make up `share` of all, fractions included."""
    return _tail_sum(x, share) / share


def _tail_sum(x: Array, share: float) -> float:
    """Sum of these numbers, over the size of the sample."""
    weight = np.clip(share * x.size - np.arange(x.size), 0.0, 1.0)
    used = weight > 0
    return float((np.sort(x)[used] * weight[used]).sum() / x.size)
