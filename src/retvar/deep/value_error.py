"""How much of the spread is error of the value.

The reward of the variance node is δ². Where neither world nor policy is random, δ is a function of
the observation: the error of the value, and nothing else. Two transitions that leave nearly the
same observation in different episodes share it, while their noise is independent; so the mean of
δᵢδⱼ over such pairs, beside that of δ², is the share of δ² that is error of the value.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

__all__ = ["error_share"]

Array = NDArray[np.float64]
PAIRS = 4_000  # of neighbours
ROWS = 200_000  # among which neighbours are searched
NEIGHBOURS = 16  # that are looked at to find one of another episode


def error_share(points: Array, errors: Array, block: NDArray[np.int64], seed: int = 0) -> float:
    """The share of mean δ² that neighbours in other blocks explain; NaN without such neighbours.

    >>> rng = np.random.default_rng(0)
    >>> x, block = rng.random((20_000, 1)), np.arange(20_000) // 2
    >>> round(error_share(x, np.sin(9 * x[:, 0]), block), 2)
    1.0
    >>> abs(error_share(x, rng.normal(size=20_000), block)) < 0.1
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
    squares = float((errors[own] ** 2).mean()) if own.size else 0.0
    if squares == 0.0:
        return 0.0 if own.size else float("nan")
    return float((errors[own] * errors[other]).mean() / squares)
