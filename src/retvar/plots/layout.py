"""Where states stand when the MDP does not say."""

from __future__ import annotations

from itertools import permutations

import numpy as np
from numpy.typing import NDArray

__all__ = ["place"]

Array = NDArray[np.float64]
Pairs = NDArray[np.intp]
ROUND = 8  # up to this many states may stand on a circle
WIDEST = 4  # states in one layer
STEPS = 300  # of stress majorisation


def place(n: int, pairs: Pairs) -> Array:
    """Positions for n states joined by `pairs` [pair, (from, to)], neighbours about 1 apart.

    >>> place(3, np.array([[0, 1], [1, 2]])).tolist()
    [[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]]
    """
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    joined = np.zeros((n, n), dtype=bool)
    joined[pairs[:, 0], pairs[:, 1]] = True
    layers = _layers(joined)
    if layers is not None:
        return _columns(layers, joined)
    joined |= joined.T
    row = _row(joined)
    if row is not None:
        return np.array([[row.index(s), 0.0] for s in range(n)])
    return _circle(joined) if n <= ROUND else _stress(joined)


def _layers(joined: NDArray[np.bool_]) -> Array | None:
    """Longest way to each state from a state that nothing leads to; None where there is a cycle."""
    n = joined.shape[0]
    if not joined.any():
        return None
    layer = np.zeros(n)
    for _ in range(n):
        deeper = np.max(np.where(joined, layer[:, None] + 1, 0), axis=0, initial=0)
        if np.array_equal(deeper, layer):
            return layer if np.bincount(layer.astype(int)).max() <= WIDEST else None
        layer = deeper
    return None


def _columns(layers: Array, joined: NDArray[np.bool_]) -> Array:
    """Layers from left to right; within one, states near the mean height of those before."""
    positions = np.stack([layers, np.zeros_like(layers)], axis=1)
    for layer in range(int(layers.max()) + 1):
        members = np.flatnonzero(layers == layer)
        before = [positions[joined[:, s], 1] for s in members]
        heights = [float(y.mean()) if y.size else 0.0 for y in before]
        order = members[np.argsort(np.negative(heights), kind="stable")]
        positions[order, 1] = (len(order) - 1) / 2 - np.arange(len(order))
    return positions


def _row(joined: NDArray[np.bool_]) -> list[int] | None:
    """States in order, where they form one row without branches; otherwise None."""
    degree = joined.sum(axis=1)
    n = degree.size
    if n == 1:
        return [0]
    if degree.max() > 2 or degree.sum() != 2 * (n - 1) or degree.min() == 0:
        return None
    row = [int(np.argmin(degree))]
    while len(row) < n:
        beyond = [int(s) for s in np.flatnonzero(joined[row[-1]]) if s not in row]
        if not beyond:
            return None
        row.append(beyond[0])
    return row


def _circle(joined: NDArray[np.bool_]) -> Array:
    """On a circle, clockwise from the left, in the order that keeps joined states closest."""
    n = joined.shape[0]
    orders = np.array([(0, *rest) for rest in permutations(range(1, n))])
    a, b = np.nonzero(np.triu(joined))
    steps = np.abs(orders[:, a] - orders[:, b])  # orders[k, s]: place of state s
    slots = orders[np.argmin(np.sum(np.minimum(steps, n - steps) ** 2, axis=1))]
    angle = np.pi - 2 * np.pi * slots / n - (np.pi / n if n == 4 else 0)
    radius = 0.5 / np.sin(np.pi / n)
    return np.asarray(radius * np.stack([np.cos(angle), np.sin(angle)], axis=1))


def _stress(joined: NDArray[np.bool_]) -> Array:
    """Stress majorisation: distances on paper like the number of steps between states."""
    n = joined.shape[0]
    ideal = _distances(joined)
    weight = np.divide(1.0, ideal**2, out=np.zeros((n, n)), where=ideal > 0)
    angle = np.pi - 2 * np.pi * np.arange(n) / n
    x = n / 6 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    laplacian = np.diag(weight.sum(axis=1)) - weight
    inverse = np.linalg.pinv(laplacian)
    for _ in range(STEPS):
        away = np.hypot(*(x[:, None] - x[None]).transpose(2, 0, 1))
        pull = weight * np.divide(ideal, away, out=np.zeros((n, n)), where=away > 1e-9)
        x = inverse @ ((np.diag(pull.sum(axis=1)) - pull) @ x)
    return np.asarray(x)


def _distances(joined: NDArray[np.bool_]) -> Array:
    """Steps between any two states; a little more than the longest where there is no way."""
    n = joined.shape[0]
    steps = np.where(joined, 1.0, np.inf)
    np.fill_diagonal(steps, 0.0)
    for k in range(n):
        steps = np.minimum(steps, steps[:, [k]] + steps[[k]])
    return np.where(np.isinf(steps), np.max(steps[np.isfinite(steps)]) + 1.5, steps)
