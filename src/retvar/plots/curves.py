"""Cubic Bézier curves: arcs, loops, parts of them, and where lines of points meet."""

from __future__ import annotations

import numpy as np

from retvar.plots.style import Array

__all__ = ["DIRECTIONS", "arc", "crossings", "loop", "nearness", "part", "points"]


def direction(angle: float) -> Array:
    """Unit vector at an angle in degrees."""
    return np.array([np.cos(np.radians(angle)), np.sin(np.radians(angle))])


DIRECTIONS = np.array([direction(22.5 * k) for k in range(16)])


def arc(start: Array, end: Array, height: float, skew: float = 0.0) -> Array:
    """Curve whose middle lies `height` to the left of the straight way; rounder if it is high.

    With `skew` it rises more towards its start, or, if that is negative, towards its end.

    >>> points(arc(np.zeros(2), np.array([2.0, 0.0]), 0.5), np.array([0.5])).tolist()
    [[1.0, 0.5]]
    """
    way = end - start
    length = float(np.hypot(*way))
    rise = np.array([-way[1], way[0]]) / length * height * 4 / 3
    ahead = way * max(0.0, 1 - abs(height) / length / 0.8) / 3
    return np.stack(
        [start, start + ahead + rise * (1 + skew), end - ahead + rise * (1 - skew), end]
    )


def loop(centre: Array, radius: float, angle: float, length: float) -> Array:
    """Curve that leaves a circle at an angle, reaches `length` beyond it and comes back."""
    far = 1.08 * (radius + length * 4 / 3)
    reach = np.array([radius, far, far, radius])[:, None]
    turns = (angle + 26, angle + 26, angle - 26, angle - 26)
    return np.asarray(centre + reach * np.array([direction(turn) for turn in turns]))


def _weights(t: Array) -> Array:
    t = t[:, None]
    return np.hstack([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3])


FIT = np.linalg.inv(_weights(np.linspace(0, 1, 4)))  # from four points of a curve to the curve


def points(curve: Array, t: Array) -> Array:
    """Points of a curve, or of several [..., 4, xy], at each t in [0, 1].

    >>> points(np.array([[0, 0], [1, 0], [2, 0], [3, 0.0]]), np.array([0.0, 0.5])).tolist()
    [[0.0, 0.0], [1.5, 0.0]]
    """
    return np.asarray(_weights(t) @ curve)


def part(curve: Array, start: float, end: float) -> Array:
    """The same curve from one t to another.

    >>> part(np.array([[0, 0], [1, 0], [2, 0], [3, 0.0]]), 0.5, 1.0)[:, 0].round(6).tolist()
    [1.5, 2.0, 2.5, 3.0]
    """
    return np.asarray(FIT @ points(curve, np.linspace(start, end, 4)))


def crossings(one: Array, others: Array) -> int:
    """How often a line of points crosses other such lines [line, point, xy].

    >>> flat = np.array([[-1.0, 0.0], [1.0, 0.0]])
    >>> crossings(flat, np.array([[[0.0, -1.0], [0.0, 1.0]], [[2.0, -1.0], [2.0, 1.0]]]))
    1
    """
    a, b = one[:-1, None], one[1:, None]
    c, d = others[:, :-1].reshape(-1, 2), others[:, 1:].reshape(-1, 2)
    apart = (_side(a, b, c) * _side(a, b, d) < 0) & (_side(c, d, a) * _side(c, d, b) < 0)
    return int(np.sum(apart))


def _side(a: Array, b: Array, c: Array) -> Array:
    ab, ac = b - a, c - a
    return np.asarray(ab[..., 0] * ac[..., 1] - ab[..., 1] * ac[..., 0])


def nearness(one: Array, others: Array, near: float) -> float:
    """Share of a line's points that come near some point of other lines; its ends count most."""
    x, y = (one[:, None] - others.reshape(-1, 2)).transpose(2, 0, 1)
    closest = np.min(x**2 + y**2, axis=1, initial=np.inf)
    weight = np.ones(len(one))
    weight[:3] = weight[-3:] = 5.0
    return float(np.mean(weight * np.maximum(0, 1 - closest / near**2)))
