"""Where texts beside data go: at the ends of lines and at points, clear of each other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

from retvar.plots.style import Array, text_size

__all__ = ["apart", "at_points", "ends", "settle"]

SIZE = 8.0  # points
GAP = 1.15  # lines of text from one label to the next
AWAY = (4.0, 7.0, 11.0, 16.0, 22.0)  # points from a point to its text
ROUND = [
    (x, y) for x in (0, -0.6, 0.6, -1, 1) for y in (1, -1, 0.6, -0.6, 0) if x or y
]  # best first


def apart(y: Array, gap: float, low: float, high: float) -> Array:
    """The positions nearest to `y` that are at least `gap` apart and, if they fit, in [low, high].

    Least squares under order: those that come too near are put about their common mean.

    >>> apart(np.array([0.0, 0.0, 5.0]), 1.0, -9.0, 9.0).tolist()
    [-0.5, 0.5, 5.0]
    >>> apart(np.array([0.0, 0.0]), 1.0, 0.0, 9.0).tolist()
    [0.0, 1.0]
    """
    order = np.argsort(y, kind="stable")
    steps = gap * np.arange(y.size)
    groups: list[list[float]] = []  # mean and size, as if packed
    for wish in y[order] - steps:
        groups.append([float(wish), 1])
        while len(groups) > 1 and groups[-2][0] > groups[-1][0]:
            (a, m), (b, n) = groups[-2:]
            groups[-2:] = [[(a * m + b * n) / (m + n), m + n]]
    packed = np.concatenate([np.full(int(size), mean) for mean, size in groups])
    top = high - (steps[-1] if y.size else 0.0)
    found = np.empty_like(y)
    found[order] = np.clip(packed, low, max(low, top)) + steps
    return found


def ends(ax: Axes, heights: Sequence[float], texts: Sequence[str], inks: Sequence[Any]) -> None:
    """Write what each line is right of where it ends; needs the limits of y and all else drawn.

    Lines that end outside the panel are named at its edge, with an arrow; such as have no end are
    not named.
    """
    keep = [k for k, height in enumerate(heights) if np.isfinite(height)]
    if not keep:
        return
    for k in keep:
        ax.annotate(
            texts[k], (1, heights[k]), (5, 0), ("axes fraction", "data"),
            textcoords="offset points", fontsize=SIZE, color=inks[k], va="center",
            annotation_clip=False, gid="end",
        )  # fmt: skip


def settle(axes: Sequence[Axes]) -> None:
    """Lay the figure out, then move labels at ends apart."""
    figure: Any = axes[0].figure
    for ax in axes:  # labels whose lines end outside would widen the layout
        for label in _end_labels(ax):
            low, high = ax.get_ylim()
            height = label.xy[1]
            label.xy = (1, min(max(height, low), high))
            arrow = "↑" if height > high else "↓" if height < low else ""
            label.set_text(label.get_text() + arrow)
    figure.draw_without_rendering()
    point = figure.dpi / 72
    for ax in axes:
        labels = _end_labels(ax)
        if not labels:
            continue
        at = ax.transData.transform([(0, label.xy[1]) for label in labels])[:, 1]
        box = ax.get_window_extent()
        found = apart(at, GAP * SIZE * point, box.y0, box.y1)
        for label, old, new in zip(labels, at, found, strict=True):
            label.set_position((5, (new - old) / point))


def _end_labels(ax: Axes) -> list[Annotation]:
    return [text for text in ax.texts if isinstance(text, Annotation) and text.get_gid() == "end"]


def at_points(
    ax: Axes, lines: Sequence[Array], texts: Sequence[Sequence[str]], inks: Sequence[Any]
) -> None:
    """Write a text at each point of lines [point, xy], where it covers no line and no other text.

    The figure must have been laid out.
    """
    figure: Any = ax.figure
    ways = [ax.transData.transform(line) for line in lines]
    ink = np.concatenate([_dense(way) for way in ways])
    taken: list[Bbox] = []
    for way, names, colour in zip(ways, texts, inks, strict=True):
        for place, name in zip(way, names, strict=True):
            size = np.array(text_size(name, SIZE - 1)) * figure.dpi
            box = _best(place, size, ink, taken, ax.get_window_extent(), figure.dpi / 72)
            taken.append(box)
            x, y = ax.transAxes.inverted().transform(box.get_points().mean(axis=0))
            ax.text(
                x, y, name, transform=ax.transAxes, ha="center", va="center", gid="point",
                fontsize=SIZE - 1, color=colour,
            )  # fmt: skip


def _best(
    place: Array, size: Array, ink: Array, taken: list[Bbox], inside: Bbox, point: float
) -> Bbox:
    """The box around a point that covers least; the nearer the better."""
    best, least = Bbox.unit(), np.inf
    for far, side in product(AWAY, ROUND):
        centre = place + np.array(side) * (far * point + size / 2)
        box = Bbox([centre - size / 2, centre + size / 2])
        grown = box.padded(point)
        low, high = grown.get_points()
        covered = np.sum(np.all((ink > low) & (ink < high), axis=1))
        clashes = sum(grown.overlaps(other) for other in taken)
        out = not all(inside.contains(x, y) for x, y in box.get_points())
        cost = 1000 * clashes + 20 * int(covered) + 100 * out + far
        if cost < least:
            best, least = box, cost
    return best


def _dense(way: Array) -> Array:
    """Points close to each other along a line."""
    t = np.linspace(0, len(way) - 1, 40 * len(way))
    return np.stack([np.interp(t, np.arange(len(way)), way[:, i]) for i in (0, 1)], axis=1)
