"""A sample of returns from one place: its mean, spread and tail, each with an interval."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta
from scipy.stats import t as student

from retvar import arguments
from retvar.errors import InputError
from retvar.format import count, number

__all__ = ["Interval", "ReturnSample"]

Array = NDArray[np.float64]
RESAMPLES = 2_000  # of the bootstrap for skewness and CVaR
BLOCK = 2**22  # numbers of resamples that are held at once
SHOWN = (0.05, 0.25, 0.5, 0.75, 0.95)  # quantiles of the summary
SMALL = 1e-3  # share of the std below which what is missing from returns does not matter
WITHIN_LIMIT = 'truncated="as_end" asks for the return up to the limit'
ROUNDING = 1e-13  # std, as a share of the largest return, that counts as none


class Interval(NamedTuple):
    """An estimate and the interval around it.

    Where returns were cut off, nothing completes them and what is missing matters, the estimate is
    NaN and the interval holds every value that the missing ends could give.
    """

    estimate: float
    low: float
    high: float

    def __str__(self) -> str:
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
    1.95 [1.88, 2.03]
    >>> print(sample.probability_below(3.0))
    0.167 [0.148, 0.188]
    """

    low: Array
    high: Array
    cut_off: int = 0  #: returns that truncation cut off
    completed: bool = False  #: whether a value function stands in for what was cut off
    level: float = 0.9
    seed: int = field(default=0, repr=False)
    within_limit: bool = False  #: whether these are returns up to a limit of steps, by intention
    rest: float = math.nan  #: the largest part that a value function stands in for

    def __post_init__(self) -> None:
        object.__setattr__(self, "level", arguments.level("level", self.level))
        if self.low.size < 2:
            raise InputError("returns", self.low.size, "must be at least 2")

    @classmethod
    def whole(cls, returns: Array, level: float = 0.9, seed: int = 0) -> ReturnSample:
        """Returns that are all known to their end."""
        returns = arguments.numbers("returns", returns)
        arguments.generator("seed", seed)
        return cls(returns, returns, level=level, seed=seed)

    @property
    def size(self) -> int:
        """Number of returns."""
        return int(self.low.size)

    @property
    def exact(self) -> bool:
        """Whether every return is known."""
        return bool(np.array_equal(self.low, self.high))

    @cached_property
    def missing(self) -> float:
        """The largest part of a return that was not observed; 0 where all are whole."""
        if self.completed:
            return self.rest
        return float((self.high - self.low).max())

    @cached_property
    def negligible(self) -> bool:
        """Whether what is missing is below a thousandth of the std, so that it does not matter."""
        if self.exact and not self.completed:
            return True
        if not math.isfinite(self.missing):
            return False
        return self.missing <= SMALL * float(self._middle.std(ddof=1))

    @property
    def _middle(self) -> Array:
        with np.errstate(invalid="ignore"):
            return np.asarray(self.low + (self.high - self.low) / 2.0)

    @property
    def returns(self) -> Array:
        """The returns; NaN where only bounds are known that matter."""
        known = np.asarray(self.low == self.high) | (self.negligible and not self.completed)
        return np.where(known, self._middle, np.nan)

    def _statistic(self, of: Callable[[Array], Interval]) -> Interval:
        """An interval that holds for all returns between their bounds (`of` must be monotone)."""
        if self.exact:
            return of(self.low)
        low, high = of(self.low), of(self.high)
        estimate = of(self._middle).estimate if self.negligible else math.nan
        return Interval(estimate, low.low, high.high)

    def _tail(self) -> float:
        return (1.0 - self.level) / 2.0

    @property
    def mean(self) -> Interval:
        """Mean, with Student's interval."""
        z = float(student.ppf(1.0 - self._tail(), self.size - 1))

        def of(x: Array) -> Interval:
            if not np.isfinite(x).all():
                end = float(x[~np.isfinite(x)][0])
                return Interval(end, end, end)
            centre, reach = float(x.mean()), z * float(x.std(ddof=1)) / math.sqrt(x.size)
            return Interval(centre, centre - reach, centre + reach)

        return self._statistic(of)

    @property
    def std(self) -> Interval:
        """Standard deviation; its interval knows the kurtosis of the sample.

        Returns x within h of y have a std within √mean h² of that of y, and a fourth root of the
        fourth moment within twice that of h (Minkowski).
        """
        y, half, n = self._middle, (self.high - self.low) / 2.0, self.size
        if not np.isfinite(half).all():
            return Interval(math.nan, 0.0, math.inf)
        y = y - y.mean()
        spread, apart = (math.sqrt(float((v * v).sum()) / (n - 1)) for v in (y, half))
        if spread + apart <= ROUNDING * float(np.abs(self.low).max()):
            return Interval(0.0, 0.0, 0.0)
        least, most = max(0.0, spread - apart), spread + apart
        root = float((y**4).mean()) ** 0.25 + 2.0 * float((half**4).mean()) ** 0.25
        kurtosis = min((root / least) ** 4 if least > 0 else math.inf, float(n))
        z = float(student.ppf(1.0 - self._tail(), n - 1))
        reach = z * math.sqrt((max(kurtosis, 1.0 + 2.0 / n) - 1.0) / (4.0 * n))
        estimate = spread if self.negligible else math.nan
        return Interval(estimate, least * math.exp(-reach), most * math.exp(reach))

    @property
    def skewness(self) -> Interval:
        """Third standardised moment, with a bootstrap interval."""
        if self.exact:
            return self._bootstrap(_skewness)
        if not np.isfinite(self.high - self.low).all():
            return Interval(math.nan, -math.inf, math.inf)
        found, apart = self._bootstrap(_skewness, self._middle), self._skewness_apart()
        if self.negligible:
            return Interval(found.estimate, found.low - apart, found.high + apart)
        limit = (self.size - 2) / math.sqrt(self.size - 1)  # of any sample of this size
        return Interval(math.nan, max(found.low - apart, -limit), min(found.high + apart, limit))

    def _skewness_apart(self) -> float:
        """How far the skewness of returns between the bounds can be from that of the middle."""
        y, half = self._middle - self._middle.mean(), (self.high - self.low) / 2.0
        d = half + half.mean()  # bounds the change of a centred return
        third = float((y**3).mean())
        change = float((3.0 * y * y * d + 3.0 * np.abs(y) * d * d + d**3).mean())
        spread, apart = (math.sqrt(float((v * v).mean())) for v in (y, half))
        if spread <= apart:
            return math.inf
        ends = [(third + a) / (spread + b) ** 3 for a in (-change, change) for b in (-apart, apart)]
        return max(abs(end - third / spread**3) for end in ends)

    def quantile(self, share: float) -> Interval:
        """A quantile; its interval needs no assumption on the distribution (order statistics)."""
        share = arguments.level("share", share)
        n, tail = self.size, self._tail()
        ranks = np.arange(1, n + 1)
        below = beta.sf(share, ranks, n + 1 - ranks)  # P(order statistic > quantile)
        lows, highs = np.flatnonzero(below <= tail), np.flatnonzero(below >= 1.0 - tail)

        def of(x: Array) -> Interval:
            ordered = np.sort(x)
            low = -math.inf if lows.size == 0 else float(ordered[lows[-1]])
            high = math.inf if highs.size == 0 else float(ordered[highs[0]])
            estimate = float(np.quantile(ordered, share, method="inverted_cdf"))
            return Interval(estimate, low, high)

        return self._statistic(of)

    def cvar(self, share: float = 0.05) -> Interval:
        """Mean of the worst `share` of returns (conditional value at risk)."""
        share = arguments.level("share", share)
        return self._statistic(lambda x: self._bootstrap(lambda y: _worst(y, share), x))

    def probability_below(self, limit: float) -> Interval:
        """Probability of a return below `limit`, with the Clopper–Pearson interval."""
        limit = arguments.number("limit", limit)
        n, tail = self.size, self._tail()

        def share(x: Array) -> Interval:
            k = int(np.count_nonzero(x < limit))
            low = float(beta.ppf(tail, k, n - k + 1)) if k else 0.0
            high = float(beta.ppf(1.0 - tail, k + 1, n - k)) if k < n else 1.0
            return Interval(k / n, low, high)

        if self.exact:
            return share(self.low)
        estimate = share(self._middle).estimate if self.negligible else math.nan
        return Interval(estimate, share(self.high).low, share(self.low).high)

    def _bootstrap(self, statistic: Callable[[Array], Array], x: Array | None = None) -> Interval:
        """Percentile interval of a statistic of rows."""
        x = self.low if x is None else x
        estimate = float(statistic(x[None])[0])
        if not np.isfinite(x).all():
            return Interval(estimate, estimate, estimate)
        rng = np.random.default_rng(self.seed)
        rows = max(1, BLOCK // x.size)
        found = [
            statistic(x[rng.integers(0, x.size, (min(rows, RESAMPLES - first), x.size))])
            for first in range(0, RESAMPLES, rows)
        ]
        low, high = np.quantile(np.concatenate(found), [self._tail(), 1.0 - self._tail()])
        return Interval(estimate, float(low), float(high))

    def summary(self) -> str:
        """A few lines: mean, spread, tail, and what was cut off."""
        share = f"{self.level:.0%}"
        rows = {
            "mean": self.mean,
            "std": self.std,
            "skewness": self.skewness,
            **{f"quantile {q:.0%}": self.quantile(q) for q in SHOWN},
            "CVaR 5%": self.cvar(0.05),
        }
        kind = " up to the limit of steps" if self.within_limit else ""
        lines = [f"{count(self.size, 'return')}{kind}; intervals hold in {share} of cases"]
        lines += [f"{name:14}{interval}" for name, interval in rows.items()]
        if self.within_limit:
            lines.append(f"{count(self.cut_off, 'return')} stopped by the limit")
        elif self.cut_off:
            lines.append(f"{count(self.cut_off, 'return')} cut off by truncation{self.remark()}")
        if not np.isfinite(self.high - self.low).all():
            lines.append(f"what follows a cut has no bound: {WITHIN_LIMIT}")
        return "\n".join(lines)

    def remark(self) -> str:
        """What was done about returns that were cut off."""
        how = "completed with the value function" if self.completed else "given as bounds"
        rest = f" (the rest is below {number(self.missing)})" if math.isfinite(self.missing) else ""
        return rest if self.negligible else f", {how}{rest}"


def _skewness(x: Array) -> Array:
    """Skewness of each row; 0 where nothing varies."""
    centred = x - x.mean(axis=-1, keepdims=True)
    spread = (centred**2).mean(axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        found = (centred**3).mean(axis=-1) / spread**1.5
    return np.where(spread > 0, found, 0.0)


def _worst(x: Array, share: float) -> Array:
    """Mean of the smallest numbers of each row that make up `share` of it, fractions included."""
    ordered = np.sort(x, axis=-1)
    amount = share * x.shape[-1]
    weight = np.clip(amount - np.arange(x.shape[-1]), 0.0, 1.0)
    used = weight > 0
    return np.asarray((ordered[..., used] * weight[used]).sum(axis=-1) / amount)
