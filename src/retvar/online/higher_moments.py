"""Skewness and kurtosis of what an estimator has learned, and words on those that cannot be."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from retvar.networks import FOURTH, PLACES, SHAPES, THIRD

__all__ = ["moment_of", "notes_on", "shape"]

Array = NDArray[np.float64]
NO_SPREAD = "the variance is not above 0: no skewness, no kurtosis"
IMPOSSIBLE = "the kurtosis is below skewness² − 2, which no return has: not yet learned"
ROUNDING = 1e-12


def moment_of(shape: str) -> str:
    """The moment that a skewness or kurtosis is made of.

    >>> moment_of("skewness")
    'third_moment'
    """
    return next(moment for moment, name in SHAPES.items() if name == shape)


def shape(name: str, variance: Array, moment: Array) -> Array:
    """Skewness, or excess kurtosis, from the variance and its moment; NaN where V ≤ 0.

    >>> shape("kurtosis", np.array([1.0, 0.0]), np.array([3.0, 0.0]))
    array([ 0., nan])
    """
    from retvar.exact.moments import kurtosis, skewness  # slow to import

    made = {SHAPES[PLACES[THIRD]]: skewness, SHAPES[PLACES[FOURTH]]: kurtosis}
    with np.errstate(over="ignore", invalid="ignore"):
        return made[name](variance, moment)


def notes_on(variance: Array, skewness: Array, kurtosis: Array | None) -> NDArray[np.str_]:
    """Why a skewness or kurtosis is missing or wrong, for each state; empty where none is.

    >>> found = notes_on(np.array([1.0, 0.0]), np.array([0.0, 0.0]), np.array([-2.5, 0.0]))
    >>> str(found[1])
    'the variance is not above 0: no skewness, no kurtosis'
    """
    found = np.where(variance > 0, "", NO_SPREAD)
    if kurtosis is None:
        return found
    least = skewness**2 - 2
    with np.errstate(invalid="ignore"):
        below = kurtosis < least - ROUNDING * (4 + np.abs(least))
    return np.where(below, IMPOSSIBLE, found)
