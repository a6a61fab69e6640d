"""Does an estimate agree with returns that it has not seen? Three verdicts, with their power.

A check that cannot fail is worth nothing: "agrees" is said only where a difference of a quarter
would have been noticed, "disagrees" only where chance is an unlikely explanation. Everything else
is "too uncertain to tell". Many places are judged at once: returns are in groups, a place each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.estimation.returns import FEWEST
from retvar.support.format import count, number

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
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

    >>> z = np.random.default_rng(0).normal(size=2_090)
    >>> for verdict in judge_std(Groups(np.repeat([0, 1], [2_000, 90]), 2), z):
    ...     print(verdict)
    agrees (a difference of 4% would have been seen)
    too uncertain to tell (90 returns)
    """

    quantity: str  #: "std" or "value"
    kind: str  #: "agrees", "disagrees" or "too uncertain to tell"
    returns: int  #: that were compared
    difference: float  #: value: in std of the return; std: of its logarithm
    low: float
    high: float

    #: the smallest difference that would have been seen
    visible = property(lambda self: max(abs(self.low), abs(self.high)))
    #: how far off the estimate is, to compare verdicts: 0 where nothing is known
    distance = property(lambda self: abs(np.nan_to_num(self.difference, posinf=np.inf)))

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


def joint_kind(*verdicts: Verdict) -> str:
    """One word for several verdicts: a single "disagrees" decides, "agrees" takes all of them."""
    kinds = {verdict.kind for verdict in verdicts}
    if DISAGREES in kinds:
        return DISAGREES
    return AGREES if kinds == {AGREES} else UNCERTAIN


class Groups:
    """Numbers in groups; what is asked of them comes for every group, 0 for one without numbers.

    >>> pairs = Groups(np.array([0, 0, 1, 1]), 2)
    >>> pairs.mean([1.0, 2.0, 5.0, 7.0]), pairs.largest(np.array([1.0, 2.0, 5.0, 7.0]))
    (array([1.5, 6. ]), array([2., 7.]))
    """

    def __init__(self, of: Integers, groups: int) -> None:
        self.of, self.n = of, np.bincount(of, minlength=groups)

    def sum(self, x: Any) -> Array:
        """Sum of each group."""
        weights = np.broadcast_to(np.asarray(x, np.float64), self.of.shape)
        return np.asarray(np.bincount(self.of, weights, self.n.size), np.float64)

    def mean(self, x: Any) -> Array:
        """Mean of each group."""
        return self.sum(x) / np.maximum(self.n, 1)

    def variance(self, x: Array) -> Array:
        """Unbiased variance of each group."""
        return self.sum((x - self.mean(x)[self.of]) ** 2) / np.maximum(self.n - 1, 1)

    def largest(self, x: Array) -> Array:
        """The largest number of each group, −∞ for one without."""
        found = np.full(self.n.size, -np.inf)
        np.maximum.at(found, self.of, x)
        return found

    def known_mean(self, x: Array) -> Array:
        """Mean of the finite numbers of each group, ∞ for one without.

        That of standard errors is an upper bound for the one of a mean.
        """
        known = np.isfinite(x)
        n, total = self.sum(known), self.sum(np.where(known, x, 0.0))
        return np.where((n == 0) & (self.n > 0), np.inf, total / np.maximum(n, 1))

    def all(self, mask: Mask) -> Mask:
        """Whether something holds throughout each group."""
        return np.asarray(self.sum(~mask) == 0)


def _verdicts(
    quantity: str, n: Any, known: Any, middle: Array, low: Array, high: Array, off: Any
) -> list[Verdict]:
    """Verdicts on differences with intervals; `off` where chance is no likely explanation."""
    known = known & (n >= FEWEST)
    agrees = known & (n >= ENOUGH) & (np.maximum(-low, high) < TOLERATED[quantity])
    kind = np.where(agrees, AGREES, np.where(known & off, DISAGREES, UNCERTAIN))
    ends = (np.where(known, x, np.nan).tolist() for x in (middle, low, high))
    rows = zip(kind.tolist(), n.tolist(), *ends, strict=True)
    return [Verdict(quantity, *row) for row in rows]


@np.errstate(all="ignore")
def judge_value(
    groups: Groups, z: Array, missing: Any = 0.0, share: Any = 0.0, estimate_error: Any = 0.0,
    tests: int = 1,
) -> list[Verdict]:  # fmt: skip
    """Judge values by z = (G − Ĵ)/σ̂ of returns that do not overlap, one value for each group.

    `missing` is the share of the variance that each return lacks since it was cut off, and `share`
    the mean discount of what they lack. The estimate stands in for it, with its error: what shows
    of a difference is what is left of the return. `estimate_error` is the standard error of the
    value, in standard deviations of the return; `tests` the number of verdicts at once.
    """
    known, own = groups.all(np.isfinite(z)) & (share < 1.0), 1.0 - share
    z = np.clip(z, -FARTHEST, FARTHEST)
    least = np.maximum(0.0, 1.0 - groups.mean(missing))
    centre, error = groups.mean(z), np.sqrt(np.maximum(groups.variance(z), least) / groups.n)
    low, high = ((centre + sign * REACH * error) / own for sign in (-1, 1))
    off = np.abs(centre) > _limit(tests) * np.hypot(error, (1.0 + share) * estimate_error)
    return _verdicts("value", groups.n, known, centre / own, low, high, off)


@np.errstate(all="ignore")
def judge_std(
    groups: Groups, z: Array, missing: Any = 0.0, estimate_error: Any = 0.0, tests: int = 1
) -> list[Verdict]:
    """Judge stds by u = z² + missing, with arguments as for :func:`judge_value`.

    `estimate_error` is the standard error of the logarithm of the std. "Disagrees" allows for three
    large returns that were not seen: where three are to be expected, none is seen in one of 20
    samples. Where all returns lie on one side of the value, those on the other have not been seen
    yet: then no std is called too large.
    """
    lacking, limit = groups.mean(missing), _limit(tests)
    known = groups.all(np.isfinite(z)) & ~groups.all(z == 0) & (lacking < 1.0)
    z = np.clip(z, -FARTHEST, FARTHEST)
    spread = LogStd(z * z + missing, groups)
    seen = spread.middle, *spread.interval(REACH)
    middle, low, high = (_half_log((np.exp(2 * x) - lacking) / (1.0 - lacking)) for x in seen)
    ends = spread.interval(limit, unseen=UNSEEN)
    below, above = (np.hypot(end - spread.middle, limit * estimate_error) for end in ends)
    both_sides = (groups.largest(z) > 0) & (groups.largest(-z) > 0)
    off = (spread.middle > below) | ((-spread.middle > above) & both_sides)
    return _verdicts("std", groups.n, known, middle, low, high, off)


def judge_without_spread(
    groups: Groups, errors: Array, rounding: Any
) -> tuple[list[Verdict], list[Verdict]]:
    """Judge values and stds, by G − Ĵ, where the estimate says that returns do not vary."""
    known, limit = groups.all(np.isfinite(errors)), np.broadcast_to(rounding, groups.n.shape)
    far = [groups.mean(sign * errors > limit[groups.of]) > 0.5 for sign in (-1, 1)]
    width = groups.largest(errors) + groups.largest(-errors)
    found = {"value": far[0] | far[1], "std": width > limit}
    ends = {name: np.where(off, math.inf, 0.0) for name, off in found.items()}
    value, std = (_verdicts(n, groups.n, known, x, x, x, x > 0) for n, x in ends.items())
    return value, std


class LogStd:
    """½ log mean u of groups of squares u, and its intervals.

    A rare large return that the sample happens to lack is missing from its mean and from its
    standard error alike. So the interval of the sample is joined with that of the same sample with
    some such numbers more: e^(h/2) times the largest, where h is the mean of log u above the √n-th
    largest (Hill, 1975): 0 for returns of one size, and the larger the heavier the tail.
    """

    def __init__(self, u: Array, groups: Groups) -> None:
        self._u, self._groups = u, groups
        self.middle = _half_log(groups.mean(u))
        order, end = np.lexsort((u, groups.of)), np.cumsum(groups.n)
        u, of = u[order], groups.of[order]
        larger = end[of] - 1 - np.arange(u.size)  # in its group
        top = (larger <= np.sqrt(groups.n).astype(np.int64)[of]) & (u > 0)
        tail, logs = Groups(of[top], groups.n.size), np.log(u[top])
        excess = tail.sum(logs + tail.largest(-logs)[tail.of]) / np.maximum(tail.n - 1, 1)
        self._more = groups.largest(self._u) * np.exp(BEYOND * excess)

    def interval(
        self, reach: float, least: float = LEAST_KURTOSIS, unseen: int = 1
    ) -> tuple[Array, Array]:
        """Ends at `reach` standard errors, with or without some large u more."""
        low, high = zip(*(self._ends(reach, least, k) for k in (0, unseen)), strict=True)
        return np.minimum(*low), np.maximum(*high)

    @np.errstate(divide="ignore", invalid="ignore")
    def _ends(self, reach: float, least: float, more: int) -> tuple[Array, Array]:
        """Ends for skewed u (Johnson, 1978), at least as wide as without skew."""
        groups, n = self._groups, self._groups.n + more
        mean = (groups.sum(self._u) + more * self._more) / n
        off, beyond = self._u / mean[groups.of] - 1.0, self._more / mean - 1.0
        second = (groups.sum(off * off) + more * beyond**2) / n
        third = (groups.sum(off * off * off) + more * beyond**3) / n
        skew = np.where(second > 0, third / second**1.5, 0.0)
        relative = np.sqrt(np.maximum(second, least) / n)
        shift = skew * (2.0 * reach**2 + 1.0) / (6.0 * np.sqrt(n))
        half, centre = 0.5 * reach * relative, _half_log(mean)
        return (
            centre + np.minimum(-half, _half_log(1.0 + relative * (shift - reach))),
            centre + np.maximum(half, _half_log(1.0 + relative * (shift + reach))),
        )


def _half_log(x: Array) -> Array:
    """½ log x, −∞ where x is not positive."""
    return 0.5 * np.log(np.maximum(x, 0.0))


def _limit(tests: int) -> float:
    """Standard errors beyond which chance is an unlikely explanation, of several tests at once."""
    return NormalDist().inv_cdf(1.0 - ERROR_RATE / (2.0 * max(1, tests)))
