"""How much of the spread is error of the value.

The reward of the variance node is δ². Where neither world nor policy is random, δ is a function of
the observation: the error of the value, and nothing else. Two transitions that leave nearly the
same observation in different episodes share it, while their noise is independent; so the mean of
δᵢδⱼ over such pairs, beside that of δ², is the share of δ² that is error of the value. Where
outcomes are rare and large, a few pairs decide; so the share comes with its standard error.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

__all__ = ["ErrorShare", "error_share"]

Array = NDArray[np.float64]
PAIRS = 16_000  # of neighbours
ROWS = 200_000  # among which neighbours are searched
NEIGHBOURS = 16  # that are looked at to find one of another episode


class ErrorShare(NamedTuple):
    """A share, and how far it may be off.

    >>> ErrorShare(0.4, 0.1).at_least
    0.2
    """

    share: float
    standard_error: float = 0.0

    @property
    def at_least(self) -> float:
        """Two standard errors below."""
        return self.share - 2 * self.standard_error


def error_share(
    points: Array, errors: Array, block: NDArray[np.int64], seed: int = 0
) -> ErrorShare:
    """The share of mean δ² that neighbours in other blocks explain; NaN without such neighbours.

    >>> rng = np.random.default_rng(0)
    >>> x, block = rng.random((20_000, 1)), np.arange(20_000) // 2
    >>> round(error_share(x, np.sin(9 * x[:, 0]), block).share, 2)
    1.0
    >>> abs(error_share(x, rng.normal(size=20_000), block).share) < 0.1
    True
    """
    rng = np.random.default_rng(seed)
    if len(errors) > ROWS:
        kept = np.sort(rng.choice(len(errors), ROWS, replace=False))
        points, errors, block = points[kept], errors[kept], block[kept]
    asked = rng.choice(len(errors), min(PAIRS, len(errors)), replace=False)
    most = min(NEIGHBOURS, len(errors))
    _, near = cKDTree(points).query(points[asked], k=most)
    near = near.reshape(asked.size, -1)
    elsewhere = np.abs(block[near] - block[asked][:, None]) > 1
    found = elsewhere.any(axis=1)
    own = asked[found]
    other = near[found, np.argmax(elsewhere[found], axis=1)]
    if not own.size:
        return ErrorShare(float("nan"))
    squares, products = errors[own] ** 2, errors[own] * errors[other]
    mean = float(squares.mean())
    if mean == 0.0:
        return ErrorShare(0.0)
    share = float(products.mean()) / mean
    return ErrorShare(share, float((products - share * squares).std()) / mean / own.size**0.5)
