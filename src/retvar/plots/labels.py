"""Where texts stand: on or beside their arrows, clear of each other and of everything else."""

from __future__ import annotations

import numpy as np

from retvar.plots.curves import points
from retvar.plots.layout import Nodes
from retvar.plots.style import Array

__all__ = ["place_labels"]

ALONG = np.array([0.5, 0.45, 0.55, 0.4, 0.6, 0.34, 0.66, 0.28, 0.72, 0.22, 0.78])
SIDES = np.array([0.0, 1.0, 0.8, 0.6, -1.0, -0.8, -0.6])  # 0: on the curve; ±1: clear of it
FINE = np.linspace(0, 1, 61)
CLEAR = 0.03  # inches kept free around a text
SWEEPS = 8
HARD, COVER = 20.0, 3.0  # costs of overlapping a text, node or head, and of covering an arrow


def place_labels(curves: Array, half: Array, nodes: Nodes) -> tuple[Array, tuple[int, int]]:
    """Centres of texts of half the size `half` [arrow, xy] at curves, and how badly they fit.

    That is, how many texts overlap something, and how many cover just an arrow.
    """
    lines = points(curves, FINE)
    spots = np.array([_spots(curve, size) for curve, size in zip(curves, half, strict=True)])
    written = np.flatnonzero(half[:, 0]).tolist()
    fixed = {i: _own(spots[i], lines[i], half[i]) for i in written}
    for i in written:
        fixed[i] += _others(spots[i], half[i], i, lines, nodes)
    choice = {i: int(np.argmin(cost)) for i, cost in fixed.items()}
    for _ in range(SWEEPS):
        before = dict(choice)
        for i in choice:
            choice[i] = int(np.argmin(fixed[i] + _clashes(i, spots, choice, half)))
        if choice == before:
            break
    centre = np.array([spots[i, choice.get(i, 0)] for i in range(len(curves))])
    paid = [(fixed[i] + _clashes(i, spots, choice, half))[k] for i, k in choice.items()]
    overlaps = int(np.sum(np.array(paid) >= HARD))
    return centre, (overlaps, int(np.sum(np.array(paid) >= COVER)) - overlaps)


def _spots(curve: Array, half: Array) -> Array:
    """Places on a curve and at both its sides [side and place along, xy]."""
    ahead = points(curve, ALONG + 0.01) - points(curve, ALONG - 0.01)
    across = np.stack([-ahead[:, 1], ahead[:, 0]], axis=1) / np.hypot(*ahead.T)[:, None]
    reach = np.abs(across) @ half + CLEAR + 0.03
    steps = SIDES[:, None, None] * across * reach[:, None]
    return np.asarray((points(curve, ALONG) + steps).reshape(-1, 2))


def _own(spots: Array, line: Array, half: Array) -> Array:
    """What spots cost by their own arrow: best in its middle, with much of it in sight."""
    hidden = np.all(np.abs(line - spots[:, None]) < half + CLEAR, axis=2)
    length = np.sum(np.hypot(*np.diff(line, axis=0).T))
    before, after = (np.argmax(h, axis=1) / FINE.size * length for h in (hidden, hidden[:, ::-1]))
    cramped = np.maximum(0, 0.16 - before) + np.maximum(0, 0.24 - after)
    on = 0.9 * hidden.mean(axis=1) + 6 * cramped
    side = np.repeat(np.abs(SIDES), ALONG.size)
    beside = 0.1 + 0.3 * side + COVER * hidden.any(axis=1)
    off_centre = np.tile(np.abs(ALONG - 0.5), SIDES.size)
    return np.asarray(np.where(side == 0, on, beside) + 1.2 * off_centre)


def _others(spots: Array, half: Array, own: int, lines: Array, nodes: Nodes) -> Array:
    """What spots cost by nodes, arrowheads, and other arrows that they would cover or touch."""
    box = half + CLEAR
    hard = np.sum(nodes.gaps(spots, box) <= 0, axis=1)
    heads = lines[:, -4:].reshape(-1, 2)
    hard += np.any(np.all(np.abs(spots[:, None] - heads) < box + 0.03, axis=2), axis=1)
    low, high = spots.min(axis=0) - box - 0.05, spots.max(axis=0) + box + 0.05
    near = np.all((lines.max(axis=1) > low) & (lines.min(axis=1) < high), axis=1)
    near[own] = False
    away = np.abs(spots[:, None, None] - lines[near])
    covered = np.all(away < half + 0.01, axis=3).any(axis=2).sum(axis=1)
    touched = np.all(away < box + 0.05, axis=3).any(axis=2).sum(axis=1)
    return np.asarray(HARD * hard + COVER * covered + 0.25 * touched)


def _clashes(i: int, spots: Array, choice: dict[int, int], half: Array) -> Array:
    """What the spots of a text cost by other texts that they would overlap, or come close to."""
    rest = [j for j in choice if j != i]
    centres = spots[rest, [choice[j] for j in rest]]
    away = np.max(np.abs(spots[i][:, None] - centres) - half[i] - half[rest], axis=2)
    return np.asarray(np.sum(HARD * (away < CLEAR) + 0.3 * (away < 3 * CLEAR), axis=1))
