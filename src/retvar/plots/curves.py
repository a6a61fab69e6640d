"""Cubic Bézier curves: arcs, loops, where they meet a node, and where they meet each other."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["arc", "clip", "crossings", "direction", "distances", "loop", "nearness", "points"]

Array = NDArray[np.float64]


def direction(angle: float) -> Array:
    """Unit vector at an angle in degrees.

    >>> direction(90).round(3).tolist()
    [0.0, 1.0]
    """
    return np.array([np.cos(np.radians(angle)), np.sin(np.radians(angle))])


def normal(start: Array, end: Array) -> Array:
    """Unit vector to the left of the way from one point to another."""
    dx, dy = (end - start) / max(float(np.hypot(*(end - start))), 1e-12)
    return np.array([-dy, dx])


def arc(start: Array, end: Array, height: float, skew: float = 0.0) -> Array:
    """Curve whose middle lies `height` to the left of the straight way; rounder if it is high.

    With `skew` it rises more towards its start, or, if that is negative, towards its end.

    >>> points(arc(np.zeros(2), np.array([2.0, 0.0]), 0.5), np.array([0.5])).tolist()
    [[1.0, 0.5]]
    """
    way = end - start
    rise = normal(start, end) * height * 4 / 3
    ahead = way * max(0.0, 1 - abs(height) / max(float(np.hypot(*way)), 1e-12) / 0.8) / 3
    return np.stack(
        [start, start + ahead + rise * (1 + skew), end - ahead + rise * (1 - skew), end]
    )


def loop(centre: Array, radius: float, angle: float, length: float) -> Array:
    """Curve that leaves a circle and comes back to it.

    >>> loop(np.zeros(2), 1.0, 90, 0.5).shape
    (4, 2)
    """
    out, back = angle + 26, angle - 26
    far = radius + length * 4 / 3
    return np.stack(
        [
            centre + radius * direction(out),
            centre + far * direction(out) * 1.08,
            centre + far * direction(back) * 1.08,
            centre + radius * direction(back),
        ]
    )


def points(curve: Array, t: Array) -> Array:
    """Points of a curve at each t in [0, 1].

    >>> points(np.array([[0, 0], [1, 0], [2, 0], [3, 0.0]]), np.array([0.0, 0.5])).tolist()
    [[0.0, 0.0], [1.5, 0.0]]
    """
    t = t[:, None]
    weights = np.hstack([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3])
    return np.asarray(weights @ curve)


def clip(curve: Array, first: tuple[float, bool], last: tuple[float, bool]) -> Array:
    """The part of a curve outside the nodes at its two ends, each (half its size, square?).

    >>> straight = np.array([[0, 0], [1, 0], [2, 0], [3, 0.0]])
    >>> clip(straight, (0.5, False), (0.25, True))[[0, -1], 0].round(2).tolist()
    [0.5, 2.75]
    """
    t = np.linspace(0, 1, 2001)
    way = points(curve, t)
    inside = _inside(way - curve[0], *first)
    leaves = t[np.argmin(inside)]
    inside = _inside(way[::-1] - curve[-1], *last)
    enters = t[::-1][np.argmin(inside)]
    if leaves >= enters:
        return curve
    return _part(curve, float(leaves), float(enters))


def _inside(offset: Array, size: float, square: bool) -> NDArray[np.bool_]:
    far = np.max(np.abs(offset), axis=1) if square else np.hypot(offset[:, 0], offset[:, 1])
    return np.asarray(far < size)


def _part(curve: Array, start: float, end: float) -> Array:
    """The same curve from one t to another (by its values and slopes at both)."""
    first, last = points(curve, np.array([start, end]))
    slopes = [_slope(curve, t) * (end - start) / 3 for t in (start, end)]
    return np.stack([first, first + slopes[0], last - slopes[1], last])


def _slope(curve: Array, t: float) -> Array:
    steps = np.diff(curve, axis=0)
    return np.asarray(3 * ((1 - t) ** 2 * steps[0] + 2 * t * (1 - t) * steps[1] + t**2 * steps[2]))


def crossings(one: Array, others: Array) -> int:
    """How often a line of points crosses other such lines [line, point, xy].

    >>> flat = np.array([[-1.0, 0.0], [1.0, 0.0]])
    >>> crossings(flat, np.array([[[0.0, -1.0], [0.0, 1.0]], [[2.0, -1.0], [2.0, 1.0]]]))
    1
    """
    a, b = one[:-1, None], one[1:, None]
    c, d = others[:, :-1].reshape(-1, 2), others[:, 1:].reshape(-1, 2)
    close = np.all(
        (np.maximum(c, d) > one.min(axis=0)) & (np.minimum(c, d) < one.max(axis=0)), axis=1
    )
    c, d = c[close][None], d[close][None]
    apart = (_side(a, b, c) * _side(a, b, d) < 0) & (_side(c, d, a) * _side(c, d, b) < 0)
    return int(np.sum(apart))


def _side(a: Array, b: Array, c: Array) -> Array:
    ab, ac = b - a, c - a
    return np.asarray(ab[..., 0] * ac[..., 1] - ab[..., 1] * ac[..., 0])


def nearness(one: Array, others: Array, near: float) -> float:
    """Share of a line's points that come near some point of other lines; its ends count most.

    >>> nearness(np.zeros((2, 2)), np.ones((1, 2, 2)), near=0.5)
    0.0
    """
    rest = others.reshape(-1, 2)
    rest = rest[np.all((rest > one.min(axis=0) - near) & (rest < one.max(axis=0) + near), axis=1)]
    away = one[:, None] - rest[None]
    closest = np.min(np.sum(away**2, axis=2), axis=1, initial=np.inf)
    weight = np.ones(len(one))
    weight[:3] = weight[-3:] = 5.0
    return float(np.mean(weight * np.maximum(0, 1 - closest / near**2)))


def distances(line: Array, spots: Array) -> Array:
    """How close a line of points, joined straight, comes to each of some spots.

    >>> distances(np.array([[0.0, 0.0], [2.0, 0.0]]), np.array([[1.0, 3.0], [6.0, 3.0]])).tolist()
    [3.0, 5.0]
    """
    start, way = line[:-1, None], np.diff(line, axis=0)[:, None]
    length = np.maximum(np.sum(way**2, axis=2), 1e-18)
    share = np.clip(np.sum((spots[None] - start) * way, axis=2) / length, 0, 1)
    away = spots[None] - start - share[..., None] * way
    return np.asarray(np.sqrt(np.min(np.sum(away**2, axis=2), axis=0)))
