"""A sample of returns from one place: its mean, spread and tail, each with an interval."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from retvar.estimation.verdicts import Groups, LogStd
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.support.format import count, number

Array = NDArray[np.float64]
TAIL = 25  # returns in the tail below which its mean has no interval from them alone
SHOWN = (0.05, 0.25, 0.5, 0.75, 0.95)  # quantiles of the summary
SMALL = 1e-3  # share of the std below which what completes returns does not matter
ROUNDING = 1e-13  # std, as a share of the largest return, that counts as none


class Interval(NamedTuple):
    """An estimate and the interval around it; NaN for what cannot be told."""

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

    >>> rng = np.random.default_rng(0)
    >>> sample = ReturnSample(rng.normal(5.0, 2.0, 1_000))
    >>> print(sample.mean)
    4.90 [4.80, 5.01]
    >>> print(sample.std)
    1.95 [1.88, 2.06]
    >>> print(sample.probability_below(3.0))
    0.167 [0.148, 0.188]
    """

    returns: Array
    cut_off: int = 0  #: returns that truncation cut off
    level: float = 0.9
    within_limit: bool = False  #: whether these are returns up to a limit of steps, by intention
    completed: float = 0.0  #: the largest part of a return that a value function stands in for
    bounds: tuple[float, float] = (-math.inf, math.inf)  #: between which every return lies

    def __post_init__(self) -> None:
        arguments.level("level", self.level)
        if arguments.numbers("returns", self.returns).size < 2:
            raise InputError("returns", self.returns.size, "must be at least 2")

    #: number of returns
    size = property(lambda self: int(self.returns.size))
    # outside the interval on each side, and Student's quantile: half that of a mean, in its errors
    _tail = property(lambda self: (1.0 - self.level) / 2.0)
    _reach = property(lambda self: float(stdtrit(self.size - 1, 1.0 - self._tail)))

    @property
    def varies_as_seen(self) -> bool:
        """Whether what completes returns is below a thousandth of the std."""
        return bool(self.completed <= SMALL * self.returns.std(ddof=1))

    @property
    def middle(self) -> tuple[float, float]:
        """Quantiles between which the share `level` of returns lies."""
        ends = (self._tail, 1.0 - self._tail)
        low, high = np.quantile(self.returns, ends, method="inverted_cdf").tolist()
        return low, high

    @property
    def mean(self) -> Interval:
        """Mean, with Student's interval."""
        centre = float(self.returns.mean())
        reach = self._reach * float(self.returns.std(ddof=1)) / math.sqrt(self.size)
        return Interval(centre, centre - reach, centre + reach)

    def episodes_for(self, precision: float) -> int:
        """Returns that the mean needs for an interval of ± `precision` (Stein, 1945)."""
        if not arguments.number("precision", precision) > 0:
            raise InputError("precision", precision, "must be positive")
        reach = float(self._reach * self.returns.std(ddof=1) / precision)
        return max(2, math.ceil(reach * reach))

    @property
    def std(self) -> Interval:
        """Standard deviation; its interval knows that rare large returns may not be in the sample.

        There is no estimate where a value function, which does not vary, completes the returns.
        """
        y, n = self.returns - self.returns.mean(), self.size
        spread = math.sqrt(float((y * y).sum()) / (n - 1))
        if spread <= ROUNDING * float(np.abs(self.returns).max()):
            return Interval(0.0, 0.0, 0.0)
        found = LogStd(y * y * (n / (n - 1)), Groups(np.zeros(n, np.int64), 1))
        low, high = (math.exp(end[0]) for end in found.interval(self._reach, least=0.0))
        return Interval(spread if self.varies_as_seen else math.nan, low, high)

    @property
    def skewness(self) -> Interval:
        """Third standardised moment; it has no interval, since rare returns decide it."""
        off, spread = self.returns - self.returns.mean(), float(self.returns.std())
        flat = spread <= ROUNDING * float(np.abs(self.returns).max())
        third = 0.0 if flat else float((off**3).mean()) / spread**3
        return Interval(third if self.varies_as_seen else math.nan, math.nan, math.nan)

    def quantile(self, share: float) -> Interval:
        """A quantile; its interval needs no assumption on the distribution (order statistics)."""
        from scipy.stats import quantile_test  # slow to import

        share = arguments.level("share", share)
        low, high = quantile_test(self.returns, p=share).confidence_interval(self.level)
        ends = -math.inf if math.isnan(low) else low, math.inf if math.isnan(high) else high
        middle = np.quantile(self.returns, share, method="inverted_cdf")
        return Interval(*map(float, (middle, *ends)))

    def probability_below(self, limit: float) -> Interval:
        """Probability of a return below `limit`, with the Clopper–Pearson interval."""
        from scipy.stats import binomtest  # slow to import

        below = int(np.count_nonzero(self.returns < arguments.number("limit", limit)))
        low, high = binomtest(below, self.size).proportion_ci(self.level)
        return Interval(below / self.size, float(low), float(high))

    def cvar(self, share: float = 0.05) -> Interval:
        """Mean of the worst `share` of returns (conditional value at risk).

        From 25 returns in the tail on, the interval is that of the mean of q + min(x − q, 0)/share
        with the quantile q, whose influence on it is of second order; skewness as Johnson (1978).
        With fewer: a band around the distribution function (Dvoretzky, Kiefer and Wolfowitz, 1956)
        where `bounds` are known, and otherwise none.
        """
        share = arguments.level("share", share)
        estimate, ends = self._tail_sum(share) / share, (math.nan, math.nan)
        if share * self.size >= TAIL:
            low, high = self._tail_reach(share)
            ends = estimate + low, estimate + high
        elif np.isfinite(self.bounds).all():
            ends = self._band(share)
        return Interval(estimate, *ends)

    def _tail_reach(self, share: float) -> tuple[float, float]:
        """Ends of the interval of the worst share's mean, from that mean."""
        x, n = self.returns, self.size
        limit = float(np.quantile(x, share, method="inverted_cdf"))
        parts = np.minimum(x - limit, 0.0) / share
        error = float(parts.std(ddof=1))
        if error <= ROUNDING * float(np.abs(x).max()):
            return 0.0, 0.0
        z, unit = (parts - parts.mean()) / error, error / math.sqrt(n)
        reach = float(stdtrit(share * n - 1.0, 1.0 - self._tail))
        shift = float((z**3).mean()) * (2.0 * reach**2 + 1.0) / (6.0 * math.sqrt(n))
        return min(-reach, shift - reach) * unit, max(reach, shift + reach) * unit

    def _band(self, share: float) -> tuple[float, float]:
        """As far as the distribution may lie from the sample, all of it at one of the bounds."""
        apart = min(1.0, math.sqrt(-math.log(self._tail) / (2.0 * self.size)))
        low = min(apart, share) * self.bounds[0] + self._tail_sum(max(share - apart, 0.0))
        high = max(share + apart - 1.0, 0.0) * self.bounds[1] - self._tail_sum(apart)
        high += self._tail_sum(min(share + apart, 1.0))
        return low / share, high / share

    def _tail_sum(self, share: float) -> float:
        """Sum of the smallest returns that make up `share` of all, fractions included, over n."""
        weight = np.clip(share * self.size - np.arange(self.size), 0.0, 1.0)
        return float((np.sort(self.returns) * weight).sum() / self.size)

    def summary(self) -> str:
        """A few lines: mean, spread, tail, and what was cut off."""
        kind = " up to the limit of steps" if self.within_limit else ""
        worst = self.cvar(0.05)
        rows = {"mean": self.mean, "std": self.std, "skewness": self.skewness}
        rows |= {f"quantile {q:.0%}": self.quantile(q) for q in SHOWN} | {"CVaR 5%": worst}
        held = f"intervals hold in about {self.level:.0%} of cases"
        lines = [f"{count(self.size, 'return')}{kind}; {held}"]
        lines += [f"{name:14}{interval}" for name, interval in rows.items()]
        if math.isnan(worst.low):
            lines.append(
                f"CVaR 5% has an interval from {20 * TAIL} returns, or with a reward_range"
            )
        if self.cut_off:
            lines.append(f"{count(self.cut_off, 'return')} {self.remark()}")
        return "\n".join(lines)

    def remark(self) -> str:
        """What was done about returns that were cut off."""
        if self.within_limit:
            return "stopped by the limit"
        return f"cut off, completed with the value function (below {number(self.completed)})"
