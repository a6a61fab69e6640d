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

from retvar import arguments
from retvar.errors import InputError
from retvar.format import literal

__all__ = ["Interval", "bootstrap_interval", "holm", "interquartile_mean", "signed_rank"]

Array = NDArray[np.float64]
Axis = int | tuple[int, ...] | None
MOST_RESAMPLES = 10_000_000
AT_ONCE = 4_000_000  # resampled numbers in memory
EXACT = 200  # differences; for more the normal approximation is used


class Interval(NamedTuple):
    """An estimate with its interval.

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
        Axis or axes of the mean; default: all.

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
    axes = tuple(range(values.ndim)) if axis is None else _axes(axis, values.ndim)
    moved = np.moveaxis(values, axes, range(-len(axes), 0))
    flat = moved.reshape(*moved.shape[: moved.ndim - len(axes)], -1)
    if flat.shape[-1] == 0:
        raise InputError("x", "nothing", "must hold at least one number")
    cut = flat.shape[-1] // 4
    middle = np.sort(flat, axis=-1)[..., cut : flat.shape[-1] - cut]
    with np.errstate(invalid="ignore", over="ignore"):  # inf − inf
        mean = np.asarray(middle.mean(axis=-1))
        beyond = ~np.isfinite(mean) & np.isfinite(middle).all(axis=-1)  # the sum, not the mean
        if beyond.any():
            mean[beyond] = (middle[beyond] / middle.shape[-1]).sum(axis=-1)
    return mean[()]


def _axes(axis: Any, dimensions: int) -> tuple[int, ...]:
    """Axes as positive numbers, each once."""
    given = axis if isinstance(axis, tuple) else (axis,)
    found = [arguments.integer("axis", k, -dimensions, dimensions - 1) % dimensions for k in given]
    if not found or len(set(found)) < len(found):
        raise InputError("axis", axis, "must name one axis or several different ones")
    return tuple(found)


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
    stratified = arguments.flag("stratified", stratified)
    if not callable(statistic) or isinstance(statistic, type):
        raise InputError("statistic", literal(statistic), "must be a function of data and axis")
    if values.ndim < 1 + stratified or values.shape[-1] < 2 or 0 in values.shape:
        raise InputError("data", f"shape {values.shape}", "must have at least two runs")
    level = arguments.level("level", level)
    resamples = arguments.integer("resamples", resamples, 100)
    if resamples > MOST_RESAMPLES:
        raise InputError("resamples", f"{resamples:,}", f"must be at most {MOST_RESAMPLES:,}")
    seed = arguments.integer("seed", seed, 0)
    strata, runs = (values.shape[-2] if stratified else 1), values.shape[-1]
    whole = values if stratified else values[..., None, :]
    random = np.random.Generator(np.random.Philox(seed))
    drawn = random.integers(runs, size=(resamples, strata, runs))
    rows = whole.reshape(-1, strata, runs)
    with np.errstate(over="ignore", invalid="ignore"):  # sums of large numbers
        found = np.array([_resampled(row, drawn, statistic) for row in rows])
        estimates = _numbers("statistic", statistic(rows, axis=(-2, -1)))
    tail = _widened(1 - level, runs, strata)
    low, high = (_quantile(found, q).reshape(whole.shape[:-2]) for q in (tail, 1 - tail))
    return Interval(low, estimates.reshape(whole.shape[:-2]), high)


def _resampled(row: Array, drawn: NDArray[np.int64], statistic: Callable[..., Any]) -> Array:
    """The statistic of each resample of data [stratum, run]."""
    size = max(1, AT_ONCE // drawn[0].size)
    every = np.arange(len(row))[:, None]
    parts = []
    for k in range(0, len(drawn), size):
        some = row[every, drawn[k : k + size]]
        try:
            found = _numbers("statistic", statistic(some, axis=(-2, -1)))
        except TypeError as error:
            raise InputError("statistic", literal(statistic), f"cannot be used: {error}") from None
        if found.shape != (len(some),):
            remedy = f"must be one number for each of {len(some):,} resamples"
            raise InputError("statistic", f"an array of shape {found.shape}", remedy)
        parts.append(found)
    return np.sort(np.concatenate(parts))


def _widened(tail: float, runs: int, strata: int) -> float:
    """The percentile for t instead of z, and for the unbiased variance of the sample."""
    t = stdtrit(strata * (runs - 1), tail / 2)
    return float(ndtr(math.sqrt(runs / (runs - 1)) * t))


def _quantile(ordered: Array, q: float) -> Array:
    """The quantile of each sorted row, linearly interpolated; infinite where a neighbour is."""
    position = q * (ordered.shape[-1] - 1)
    k, share = int(position), position - int(position)
    below, above = ordered[:, k], ordered[:, min(k + 1, ordered.shape[-1] - 1)]
    with np.errstate(invalid="ignore", over="ignore"):
        apart = above - below
        between = below + share * apart
        finite = np.isfinite(below) & np.isfinite(above) & ~np.isfinite(apart)
        between = np.where(finite, (1 - share) * below + share * above, between)
    return np.where((below == above) | (share == 0), below, between)


def signed_rank(differences: ArrayLike) -> float:
    """The p-value of Wilcoxon's signed-rank test.

    Exact, also with ties, infinities and zeros (which are ranked and then left out, after Pratt);
    the normal approximation for more than 200 differences.

    Parameters
    ----------
    differences
        One for each run, or [stratum, run] with ranks within each stratum.

    Returns
    -------
    float
        The two-sided p-value.

    Examples
    --------
    >>> signed_rank([1.0, 2.0, 3.0, 4.0, 5.0])
    0.0625
    """
    from scipy.stats import rankdata  # slow to import

    values = np.atleast_2d(_numbers("differences", differences))
    ranks = np.rint(2 * rankdata(np.abs(values), axis=-1)).astype(np.int64)  # integers
    signs = np.sign(values)
    total = abs(int(np.sum(signs * ranks)))
    nonzero = np.sort(ranks[signs != 0])
    if nonzero.size == 0:
        return 1.0
    if nonzero.size > EXACT:
        return float(2 * ndtr(-total / math.sqrt(np.sum(nonzero.astype(float) ** 2))))
    shares = _rank_sums(tuple(nonzero.tolist()))
    at_least = int(nonzero.sum()) + total  # twice the sum of the positive ranks
    return min(1.0, 2 * float(shares[-(-at_least // 2) :].sum())) if total else 1.0


@lru_cache(maxsize=256)
def _rank_sums(ranks: tuple[int, ...]) -> Array:
    """The distribution of the sum of a random subset of the ranks."""
    shares = np.ones(1)
    for rank in ranks:
        with_it = np.concatenate([np.zeros(rank), shares])
        shares = 0.5 * (np.pad(shares, (0, rank)) + with_it)
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
    ranked = values.ravel()[order]
    steps = np.maximum.accumulate(ranked * np.arange(ranked.size, 0, -1))
    found = np.empty(values.size)
    found[order] = np.minimum(steps, 1.0)
    return found.reshape(values.shape)


def _numbers(field: str, given: ArrayLike) -> Array:
    """An array without NaN."""
    values = arguments.floats(field, given, "numbers")
    if np.isnan(values).any():
        count = int(np.isnan(values).sum())
        raise InputError(field, f"{count} NaN", "leave them out, or give inf where a run diverged")
    return values
