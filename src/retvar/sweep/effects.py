"""Ratios and differences of errors, their centre over runs and domains, and its interval."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.errors import InputError
from retvar.sweep.options import ComparisonOptions
from retvar.sweep.statistics import Array, Interval, interquartile_mean

__all__ = ["centre", "contenders", "difference", "log_ratio", "overall_interval"]

EQUAL = 1e-9  # relative; with equal step sizes direct and centred differ by rounding only


def log_ratio(a: Array, b: Array) -> Array:
    """Logarithms of a / b; 0 where both are equal, also where both are infinite.

    >>> log_ratio(np.array([1.0, np.inf, np.inf]), np.array([1.0, 1.0, np.inf])).tolist()
    [0.0, inf, 0.0]
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(_equal(a, b), 0.0, np.log(a) - np.log(b))


def difference(a: Array, b: Array) -> Array:
    """Differences a − b; 0 where both are equal, also where both are infinite."""
    with np.errstate(invalid="ignore"):
        return np.where(_equal(a, b), 0.0, a - b)


def _equal(a: Array, b: Array) -> NDArray[np.bool_]:
    """Whether errors are equal except for rounding, which must not decide who is better."""
    return np.isclose(a, b, rtol=EQUAL, atol=0.0)


def centre(x: Array, axis: Any = -1) -> Array:
    """The interquartile mean over runs, then over domains; 0 where opposite infinities cancel.

    >>> centre(np.array([-np.inf, np.inf])).item()
    0.0
    """
    for _ in np.atleast_1d(axis):  # the last axis, or the last two
        found = np.asarray(interquartile_mean(x, axis=-1))
        x = np.where(np.isnan(found), 0.0, found)
    return x


def overall_interval(x: Array, options: ComparisonOptions) -> Interval:
    """Interval of the centre of [..., domain, run], over runs or over domains."""
    if options.over == "domains":
        return options.interval(centre(x), centre)
    return options.interval(x, centre, stratified=True)


def contenders(errors: Array, options: ComparisonOptions, *, split: bool) -> NDArray[np.bool_]:
    """Which settings [setting, domain, run] are not significantly worse than the best one.

    One half of the runs (of the domains, if intervals are over domains) selects the setting that
    seems best; the other half decides which are worse than it. The truly best setting is left out
    only if the interval of its ratio lies above 1, although the true ratio is at most 1. With
    `split`, the even runs have selected other settings before and decide nothing here.

    >>> errors = np.array([1.0, 1.0, 2.0])[:, None, None] * np.ones((1, 8))
    >>> contenders(errors, ComparisonOptions(over="runs"), split=False).tolist()
    [True, True, False]
    """
    if options.over == "runs":
        selecting, judging = errors[..., ::2], errors[..., 1::2]
    elif errors.shape[1] < 4:
        raise InputError("over", "'domains'", "needs at least 4 of them here; give 'runs'")
    else:
        runs = errors[..., 1::2] if split else errors
        selecting, judging = runs[:, ::2], runs[:, 1::2]
    with np.errstate(divide="ignore"):
        best = int(np.argmin(centre(np.log(selecting), (-2, -1))))
    ratios = log_ratio(judging, judging[best])
    return np.asarray(overall_interval(ratios, options).low <= 0)
