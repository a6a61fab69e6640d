"""Where texts stand: on or beside their arrows, clear of each other and of everything else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from retvar.plots.curves import points
from retvar.plots.routing import Nodes

__all__ = ["Placed", "place_labels"]

Array = NDArray[np.float64]
ALONG = np.array([0.5, 0.45, 0.55, 0.4, 0.6, 0.34, 0.66, 0.28, 0.72, 0.22, 0.78])
FINE = np.linspace(0, 1, 61)
CLEAR = 0.03  # inches kept free around a text
HEAD = 0.09  # inches that an arrowhead takes up
SWEEPS = 8
REACHES = (1.0, 0.8, 0.6)  # of what surely clears the curve
HARD, COVER, BESIDE = 20.0, 3.0, 0.1


@dataclass(frozen=True)
class Placed:
    """Centres of texts; how many overlap something; how many cover another arrow."""

    centre: Array
    overlaps: int
    covers: int


def place_labels(curves: Array, half: Array, nodes: Nodes, tails: Sequence[int] = ()) -> Placed:
    """Place a text of half its size `half` [arrow, (x, y)] at each curve.

    Those numbered in `tails` stand behind where their arrow begins.
    """
    lines = np.array([points(curve, FINE) for curve in curves]).reshape(-1, FINE.size, 2)
    count = len(curves)
    spots, costs = [], []
    for i in range(count):
        spot, cost = (
            _tail(lines[i], half[i]) if i in tails else _spots(curves[i], lines[i], half[i])
        )
        spots.append(spot)
        costs.append(cost + _static(spot, half[i], lines, i, nodes) if half[i, 0] else cost)
    written = np.flatnonzero(half[:, 0] > 0)
    choice = {int(i): int(np.argmin(costs[i])) for i in written}
    for _ in range(SWEEPS):
        before = dict(choice)
        for i in choice:
            choice[i] = int(np.argmin(costs[i] + _clashes(i, spots, choice, half)))
        if choice == before:
            break
    centre = np.array([spots[i][choice.get(i, 0)] for i in range(count)]).reshape(-1, 2)
    chosen = [costs[i][c] + _clashes(i, spots, choice, half)[c] for i, c in choice.items()]
    overlaps = sum(bool(cost >= HARD) for cost in chosen)
    return Placed(centre, overlaps, sum(bool(cost >= COVER) for cost in chosen) - overlaps)


def _spots(curve: Array, line: Array, half: Array) -> tuple[Array, Array]:
    """Places on a curve and at both its sides, with what each costs by itself."""
    on = points(curve, ALONG)
    ahead = points(curve, ALONG + 0.01) - points(curve, ALONG - 0.01)
    across = np.stack([-ahead[:, 1], ahead[:, 0]], axis=1)
    across /= np.maximum(np.hypot(across[:, 0], across[:, 1]), 1e-12)[:, None]
    reach = np.abs(across) @ half + CLEAR + 0.03
    steps = [sign * share * across * reach[:, None] for sign in (1, -1) for share in REACHES]
    spots = np.concatenate([on, *(on + step for step in steps)])
    off_centre = 1.2 * np.abs(ALONG - 0.5)
    beside = BESIDE + COVER * _hidden(spots[len(on) :], line, half + 0.015).any(axis=1)
    beside += np.tile(np.repeat(REACHES, ALONG.size), 2) * 0.3
    costs = np.concatenate([_visible(on, line, half), beside])
    costs += np.tile(off_centre, 1 + len(steps))
    return spots, costs


def _hidden(spots: Array, line: Array, half: Array) -> NDArray[np.bool_]:
    """Which points of a line [spot, point] a text at each spot covers."""
    return np.asarray(np.all(np.abs(line[None] - spots[:, None]) < half + CLEAR, axis=2))


def _visible(on: Array, line: Array, half: Array) -> Array:
    """What a text on its own curve costs: the share hidden, and more if little shows at an end."""
    length = float(np.sum(np.hypot(*np.diff(line, axis=0).T)))
    hidden = _hidden(on, line, half)
    before = np.argmax(hidden, axis=1) / FINE.size * length
    after = np.argmax(hidden[:, ::-1], axis=1) / FINE.size * length
    cramped = np.maximum(0, 0.16 - before) + np.maximum(0, 0.24 - after)
    return np.asarray(0.9 * hidden.mean(axis=1) + 6 * cramped)


def _tail(line: Array, half: Array) -> tuple[Array, Array]:
    back = (line[0] - line[-1]) / np.hypot(*(line[0] - line[-1]))
    reach = float(np.abs(back) @ half) + CLEAR
    return (line[0] + back * reach)[None], np.zeros(1)


def _static(spots: Array, half: Array, lines: Array, own: int, nodes: Nodes) -> Array:
    """Cost of each spot from nodes, arrowheads, and other arrows that it would cover or touch."""
    box = half + CLEAR
    away = np.abs(spots[:, None] - nodes.centre[None])
    outside = np.maximum(away - box, 0)
    far = np.where(nodes.square, outside.max(axis=2), np.hypot(outside[..., 0], outside[..., 1]))
    cost = HARD * np.sum(far < nodes.size, axis=1)
    heads = lines[:, -4:].reshape(-1, 2)
    at_head = np.all(np.abs(spots[:, None] - heads[None]) < box + HEAD / 3, axis=2)
    cost = cost + HARD * at_head.any(axis=1)
    low, high = spots.min(axis=0) - box - 0.05, spots.max(axis=0) + box + 0.05
    near = np.all((lines.max(axis=1) > low) & (lines.min(axis=1) < high), axis=1)
    near[own] = False
    foreign = lines[near]
    gap = np.abs(spots[:, None, None] - foreign[None])
    covered = np.all(gap < half + 0.01, axis=3).any(axis=2).sum(axis=1)
    touched = np.all(gap < box + 0.05, axis=3).any(axis=2).sum(axis=1)
    return np.asarray(cost + COVER * covered + 0.25 * touched)


def _clashes(i: int, spots: list[Array], choice: dict[int, int], half: Array) -> Array:
    """Cost of each spot of a text from other texts that it would overlap, or come close to."""
    rest = [j for j in choice if j != i]
    if not rest:
        return np.zeros(len(spots[i]))
    centres = np.array([spots[j][choice[j]] for j in rest])
    away = np.max(np.abs(spots[i][:, None] - centres[None]) - half[i] - half[rest], axis=2)
    return np.asarray(np.sum(HARD * (away < CLEAR) + 0.3 * (away < 3 * CLEAR), axis=1))
