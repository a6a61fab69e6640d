"""Statistics of runs: the interquartile mean, bootstrap intervals, signed ranks, Holm's correction.

Intervals are percentile intervals of the bootstrap, widened as Student's t is wider than the normal
distribution (Hesterberg, 2015). For the interquartile mean of 8 to 30 runs (normal, exponential,
lognormal and t₂ data) plain percentile and BCa intervals of 95% covered the truth in 92 to 95% of
cases, these in 95 to 97%.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, stdtrit

from retvar.support import arguments
from retvar.support.errors import InputError

Array = NDArray[np.float64]
AT_ONCE = 4_000_000  # resampled numbers in memory
EXACT = 200  # differences; for more the normal approximation is used
EQUAL = 1e-9  # relative; with equal step sizes direct and centred differ by rounding only


class Interval(NamedTuple):
    """An estimate with its interval.

    >>> Interval(0.9, 1.0, 1.2).high
    1.2
    """

    low: Any
    estimate: Any
    high: Any


def interquartile_mean(x: ArrayLike, axis: int | tuple[int, ...] | None = None) -> Any:
    """Mean of the middle half: a quarter of the numbers, rounded down, is cut off at each end.

    Infinite numbers (runs that diverged) are cut off with the largest; where more than a quarter
    are infinite, so is the mean. It is NaN where both infinities are in the middle half.

    >>> float(interquartile_mean([1.0, 2.0, 3.0, float("inf")]))
    2.5
    """
    values = _numbers("x", x)
    axes = tuple(range(values.ndim)) if axis is None else tuple(np.atleast_1d(axis))
    moved = np.moveaxis(values, axes, range(-len(axes), 0))
    flat = np.sort(moved.reshape(*moved.shape[: moved.ndim - len(axes)], -1), axis=-1)
    cut = flat.shape[-1] // 4
    with np.errstate(invalid="ignore"):  # inf − inf
        return flat[..., cut : flat.shape[-1] - cut].mean(axis=-1)


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
        Numbers [..., run]; leading axes have intervals of their own, from the same resamples.
    statistic
        A function of an array and ``axis``.
    level
        The coverage of the interval.
    resamples, seed
        The number of resamples, and the seed; the same seed gives the same interval.
    stratified
        The data are [..., stratum, run]: runs are resampled within each stratum (such as a
        domain), and the statistic is over both axes (``axis=(-2, -1)``).

    Examples
    --------
    >>> low, estimate, high = bootstrap_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    >>> bool(low < estimate < high), float(estimate)
    (True, 3.5)
    """
    values = _numbers("data", data)
    if values.ndim < 1 + stratified or values.shape[-1] < 2:
        raise InputError("data", f"shape {values.shape}", "must have at least two runs")
    level = arguments.level("level", level)
    resamples = arguments.integer("resamples", resamples, 100)
    values = values if stratified else values[..., None, :]
    *shape, strata, runs = values.shape
    rows = values.reshape(-1, strata, runs)
    random = np.random.Generator(np.random.Philox(arguments.integer("seed", seed, 0)))
    drawn = random.integers(runs, size=(resamples, strata, runs))
    found = np.sort([_resampled(row, drawn, statistic) for row in rows], axis=-1)
    estimates = np.asarray(statistic(rows, axis=(-2, -1)))
    # the percentile for t instead of z, and for the unbiased variance of the sample
    t = stdtrit(strata * (runs - 1), (1 - level) / 2)
    tail = float(ndtr(math.sqrt(runs / (runs - 1)) * t))
    low, high = (_quantile(found, q).reshape(shape) for q in (tail, 1 - tail))
    return Interval(low, estimates.reshape(shape), high)


def _resampled(row: Array, drawn: NDArray[np.int64], statistic: Callable[..., Any]) -> Array:
    """The statistic of each resample of data [stratum, run]."""
    size = max(1, AT_ONCE // drawn[0].size)
    every = np.arange(len(row))[:, None]
    parts = [row[every, drawn[k : k + size]] for k in range(0, len(drawn), size)]
    return np.concatenate([statistic(part, axis=(-2, -1)) for part in parts])


def _quantile(ordered: Array, q: float) -> Array:
    """The quantile of each sorted row, linearly interpolated; infinite where a neighbour is."""
    position = q * (ordered.shape[-1] - 1)
    k, share = int(position), position - int(position)
    below, above = ordered[:, k], ordered[:, min(k + 1, ordered.shape[-1] - 1)]
    with np.errstate(invalid="ignore"):
        between = below + share * (above - below)
    return np.where((below == above) | (share == 0), below, between)


def signed_rank(differences: ArrayLike) -> float:
    """The two-sided p-value of Wilcoxon's signed-rank test.

    Exact, also with ties, infinities and zeros (which are ranked and then left out, after Pratt);
    the normal approximation for more than 200 differences. Of differences [stratum, run] the ranks
    are those within each stratum.

    >>> signed_rank([1.0, 2.0, 3.0, 4.0, 5.0])
    0.0625
    """
    from scipy.stats import rankdata  # slow to import

    values = np.atleast_2d(_numbers("differences", differences))
    ranks = np.rint(2 * rankdata(np.abs(values), axis=-1)).astype(np.int64)  # integers
    signs = np.sign(values)
    total = abs(int(np.sum(signs * ranks)))
    nonzero = np.sort(ranks[signs != 0])
    if not total:
        return 1.0
    if nonzero.size > EXACT:
        return float(2 * ndtr(-total / math.sqrt(np.sum(nonzero.astype(float) ** 2))))
    at_least = int(nonzero.sum()) + total  # twice the sum of the positive ranks
    return min(1.0, 2 * float(_rank_sums(tuple(nonzero.tolist()))[-(-at_least // 2) :].sum()))


@lru_cache(maxsize=256)
def _rank_sums(ranks: tuple[int, ...]) -> Array:
    """The distribution of the sum of a random subset of the ranks."""
    shares = np.ones(1)
    for rank in ranks:
        shares = 0.5 * (np.pad(shares, (0, rank)) + np.pad(shares, (rank, 0)))
    return shares


def holm(p: ArrayLike) -> Array:
    """P-values adjusted by Holm's method.

    If all adjusted p-values below α are rejected, the chance of any false rejection is at most α.

    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    values = _numbers("p", p)
    if np.any((values < 0) | (values > 1)):
        raise InputError("p", f"{values.min():g} to {values.max():g}", "must lie in [0, 1]")
    order = np.argsort(values, axis=None, kind="stable")
    found = np.empty(values.size)
    steps = values.ravel()[order] * np.arange(values.size, 0, -1)
    found[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return found.reshape(values.shape)


def _numbers(field: str, given: ArrayLike) -> Array:
    """An array without NaN."""
    values = arguments.floats(field, given, "numbers")
    if values.size == 0 or np.isnan(values).any():
        value = "nothing" if values.size == 0 else f"{int(np.isnan(values).sum())} NaN"
        raise InputError(field, value, "give numbers, and inf where a run diverged")
    return values


def log_ratio(a: Array, b: Array) -> Array:
    """Logarithms of a / b; 0 where both are equal except for rounding, or both infinite."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(np.isclose(a, b, rtol=EQUAL, atol=0.0), 0.0, np.log(a) - np.log(b))


def centre(x: Array, axis: Any = -1) -> Array:
    """The interquartile mean over runs, then over domains; 0 where opposite infinities cancel."""
    for _ in np.atleast_1d(axis):  # the last axis, or the last two
        found = np.asarray(interquartile_mean(x, axis=-1))
        x = np.where(np.isnan(found), 0.0, found)
    return x
