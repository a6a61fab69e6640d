"""Statistics of runs: the interquartile mean, bootstrap intervals, signed ranks, Holm's correction.

Intervals are percentile intervals of the bootstrap, widened as Student's t is wider than the normal
distribution (Hesterberg, 2015): for the interquartile mean of 8 to 30 runs plain percentile and BCa
intervals of 95% held the truth in 92 to 95% of cases, these in 95 to 97% (normal, exponential,
lognormal and t₂ data), and they need nothing but the resamples.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, stdtrit

from retvar.errors import InputError

__all__ = ["Interval", "bootstrap_interval", "holm", "interquartile_mean", "signed_rank"]

Array = NDArray[np.float64]
Axis = int | tuple[int, ...] | None
AT_ONCE = 4_000_000  # numbers of resamples in memory
EXACT = 200  # differences; the distribution of more is taken as normal


class Interval(NamedTuple):
    """An estimate between the ends of its interval.

    >>> Interval(0.9, 1.0, 1.2).high
    1.2
    """

    low: Any
    estimate: Any
    high: Any


def interquartile_mean(x: ArrayLike, axis: Axis = None) -> Any:
    """Mean of the middle half: a quarter of the numbers, rounded down, is cut off at each end.

    Infinite numbers (runs that diverged) are cut off with the largest; where more than a quarter
    are infinite, so is the mean.

    Parameters
    ----------
    x
        Numbers; no NaN.
    axis
        Along which axis or axes; default: all.

    Returns
    -------
    float or numpy.ndarray
        The mean; NaN where both infinities are in the middle half.

    Examples
    --------
    >>> float(interquartile_mean([1.0, 2.0, 3.0, float("inf")]))
    2.5
    """
    values = _numbers("x", x)
    axes = tuple(range(values.ndim)) if axis is None else np.atleast_1d(axis)
    moved = np.moveaxis(values, axes, range(-len(axes), 0))
    flat = moved.reshape(*moved.shape[: moved.ndim - len(axes)], -1)
    if flat.shape[-1] == 0:
        raise InputError("x", "nothing", "must hold at least one number")
    cut = flat.shape[-1] // 4
    with np.errstate(invalid="ignore"):  # inf − inf
        return np.sort(flat, axis=-1)[..., cut : flat.shape[-1] - cut].mean(axis=-1)


def bootstrap_interval(
    data: ArrayLike,
    statistic: Callable[..., Any] = interquartile_mean,
    level: float = 0.95,
    resamples: int = 2_000,
    seed: int = 0,
    *,
    stratified: bool = False,
) -> Interval:
    """Interval of a statistic over runs: percentiles of the bootstrap, widened for few runs.

    Parameters
    ----------
    data
        Numbers [..., run]; whatever is before gets intervals of its own, from the same resamples.
    statistic
        A function of an array and ``axis``.
    level
        How often intervals made so hold the truth, about.
    resamples, seed
        How many resamples to draw, and their seed; the same seed gives the same interval.
    stratified
        The data are [..., stratum, run]: runs are drawn from each stratum (a domain, say) by
        itself, and the statistic is that of all (``axis=(-2, -1)``).

    Returns
    -------
    Interval
        ``low``, ``estimate`` and ``high``.

    Examples
    --------
    >>> low, estimate, high = bootstrap_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    >>> bool(low < estimate < high), float(estimate)
    (True, 3.5)
    """
    values = _numbers("data", data)
    if values.ndim < 1 + stratified or values.shape[-1] < 2 or 0 in values.shape:
        raise InputError("data", f"shape {values.shape}", "must have at least two runs")
    unit_level("level", level)
    if not isinstance(resamples, int | np.integer) or resamples < 100:
        raise InputError("resamples", resamples, "must be a whole number of at least 100")
    strata, runs = (values.shape[-2] if stratified else 1), values.shape[-1]
    whole = values if stratified else values[..., None, :]
    drawn = _generator(seed).integers(runs, size=(int(resamples), strata, runs))
    rows = whole.reshape(-1, strata, runs)
    found = np.array([_resampled(row, drawn, statistic) for row in rows])
    estimates = np.asarray(statistic(rows, axis=(-2, -1)), dtype=float)
    tail = _widened(1 - level, runs, strata)
    low, high = (_quantile(found, q).reshape(whole.shape[:-2]) for q in (tail, 1 - tail))
    return Interval(low, estimates.reshape(whole.shape[:-2]), high)


def _resampled(row: Array, drawn: NDArray[np.int64], statistic: Callable[..., Any]) -> Array:
    """The statistic of each resample of data [stratum, run]."""
    size = max(1, AT_ONCE // drawn[0].size)
    every = np.arange(len(row))[:, None]
    parts = [
        np.asarray(statistic(row[every, drawn[k : k + size]], axis=(-2, -1)), dtype=float)
        for k in range(0, len(drawn), size)
    ]
    return np.sort(np.concatenate(parts))


def _widened(tail: float, runs: int, strata: int) -> float:
    """The percentile to take: t in place of z, and the variance of a sample in place of its own."""
    t = stdtrit(strata * (runs - 1), tail / 2)
    return float(ndtr(math.sqrt(runs / (runs - 1)) * t))


def _quantile(ordered: Array, q: float) -> Array:
    """That of each row, linear between neighbours, and infinite only where a neighbour is."""
    place = q * (ordered.shape[-1] - 1)
    k, share = int(place), place - int(place)
    below, above = ordered[:, k], ordered[:, min(k + 1, ordered.shape[-1] - 1)]
    with np.errstate(invalid="ignore"):
        between = below + share * (above - below)
    return np.where((below == above) | (share == 0), below, between)


def signed_rank(differences: ArrayLike) -> float:
    """Wilcoxon's signed-rank test: how likely signs so one-sided are if there is no difference.

    Exact, also with ties, infinities and zeros (which are ranked and then left out, after Pratt);
    beyond 200 differences the normal approximation.

    Parameters
    ----------
    differences
        One a run, or [stratum, run], where ranks are those within a stratum.

    Returns
    -------
    float
        The two-sided p-value: if a and b may be exchanged, p ≤ x at most x of the time.

    Examples
    --------
    >>> signed_rank([1.0, 2.0, 3.0, 4.0, 5.0])
    0.0625
    """
    from scipy.stats import rankdata  # slow to import, and figures need not wait for it

    values = np.atleast_2d(_numbers("differences", differences))
    ranks = np.rint(2 * rankdata(np.abs(values), axis=-1)).astype(np.int64)  # whole numbers
    signs = np.sign(values)
    total = abs(int(np.sum(signs * ranks)))
    kept = np.sort(ranks[signs != 0])
    if kept.size == 0:
        return 1.0
    if kept.size > EXACT:
        return float(2 * ndtr(-total / math.sqrt(np.sum(kept.astype(float) ** 2))))
    shares = _rank_sums(tuple(kept.tolist()))
    at_least = int(kept.sum()) + total  # twice the sum of the positive ranks
    return min(1.0, 2 * float(shares[-(-at_least // 2) :].sum())) if total else 1.0


@lru_cache(maxsize=256)
def _rank_sums(ranks: tuple[int, ...]) -> Array:
    """How likely each sum of the ranks that have heads is."""
    shares = np.ones(1)
    for rank in ranks:
        with_it = np.concatenate([np.zeros(rank), shares])
        shares = 0.5 * (np.pad(shares, (0, rank)) + with_it)
    return shares


def holm(p: ArrayLike) -> Array:
    """P-values corrected for their number by Holm's method; at most one false alarm in a family.

    Compare what is returned with the level asked for: the chance that any true "no difference"
    falls below it is at most that level.

    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    values = _numbers("p", p)
    order = np.argsort(values, axis=None, kind="stable")
    ranked = values.ravel()[order]
    steps = np.maximum.accumulate(ranked * np.arange(ranked.size, 0, -1))
    found = np.empty(values.size)
    found[order] = np.minimum(steps, 1.0)
    return found.reshape(values.shape)


def unit_level(field: str, level: Any) -> float:
    """The level of an interval, which must be a share."""
    if isinstance(level, bool) or not isinstance(level, float | int) or not 0 < level < 1:
        raise InputError(field, repr(level), "must lie between 0 and 1, like 0.95")
    return float(level)


def _generator(seed: Any) -> np.random.Generator:
    if not isinstance(seed, int | np.integer) or isinstance(seed, bool) or seed < 0:
        raise InputError("seed", repr(seed), "must be a whole number of at least 0")
    return np.random.Generator(np.random.Philox(int(seed)))


def _numbers(field: str, given: ArrayLike) -> Array:
    """An array without NaN."""
    try:
        values = np.asarray(given, dtype=float)
    except (TypeError, ValueError):
        raise InputError(field, type(given).__name__, "must be numbers") from None
    if np.isnan(values).any():
        count = int(np.isnan(values).sum())
        raise InputError(field, f"{count} NaN", "leave them out, or give inf where a run diverged")
    return values
