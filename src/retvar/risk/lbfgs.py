"""L-BFGS with a barrier: where the function does not exist, steps are shortened."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = ["maximise"]

Array = NDArray[np.float64]
Function = Callable[[Array], tuple[float, Array] | None]
MEMORY = 10  # steps that the curvature is known from
LONGEST = 5.0  # largest change of a coordinate in one step
SUFFICIENT = 1e-4  # share of the predicted gain that a step must have (Armijo)
CURVATURE = 0.9  # steps that flatten the slope less than this are lengthened (Wolfe)
MAX_TRIALS = 25  # lengths of a step


def maximise(f: Function, x: Array, *, iterations: int = 100, tolerance: float = 1e-11) -> Array:
    """Climb from x by the limited-memory BFGS method; return the last point.

    `f` returns a value and a gradient, or None where it does not exist. The climb ends when the
    slope promises a gain below `tolerance`, or no step gains anything.

    >>> maximise(lambda x: (-float((x - 3) @ (x - 3)), -2 * (x - 3)), np.zeros(2))
    array([3., 3.])
    """
    with np.errstate(over="ignore", invalid="ignore"):  # huge penalties; what is not finite is left
        return _climb(f, x, iterations, tolerance)


def _climb(f: Function, x: Array, iterations: int, tolerance: float) -> Array:
    here = f(x)
    pairs: deque[tuple[Array, Array]] = deque(maxlen=MEMORY)
    while here is not None and iterations > 0:
        iterations -= 1
        value, slope = here
        direction = _direction(slope, pairs)
        rise = float(slope @ direction)
        if not rise > 0:  # rounding
            pairs.clear()
            direction, rise = slope, float(slope @ slope)
        if not rise > tolerance:
            break
        step = _step(f, x, value, direction, rise)
        if step is None:
            if not pairs:
                break
            pairs.clear()  # once more, along the slope
            continue
        moved, there = step
        change, bend = moved - x, slope - there[1]
        if float(change @ bend) > 1e-12 * float(np.sqrt((change @ change) * (bend @ bend))):
            pairs.append((change, bend))
        x, here = moved, there
    return x


def _direction(slope: Array, pairs: deque[tuple[Array, Array]]) -> Array:
    """The inverse Hessian that the pairs stand for, times the slope (two-loop recursion)."""
    direction = slope.copy()
    weights = []
    for change, bend in reversed(pairs):
        weight = float(change @ direction) / float(change @ bend)
        direction -= weight * bend
        weights.append(weight)
    if pairs:
        change, bend = pairs[-1]
        direction *= float(change @ bend) / float(bend @ bend)
    for (change, bend), weight in zip(pairs, reversed(weights), strict=True):
        direction += (weight - float(bend @ direction) / float(change @ bend)) * change
    return direction


def _step(
    f: Function, x: Array, value: float, direction: Array, rise: float
) -> tuple[Array, tuple[float, Array]] | None:
    """A point along the direction that fulfils the Wolfe conditions, or nearly; None if none."""
    length = min(1.0, LONGEST / float(np.max(np.abs(direction))))
    longest = LONGEST / float(np.max(np.abs(direction)))
    low, high, best = 0.0, np.inf, None
    for _ in range(MAX_TRIALS):
        moved = x + length * direction
        there = f(moved)
        if there is None or there[0] < value + SUFFICIENT * length * rise:
            high = length
        else:
            best = moved, there
            if float(there[1] @ direction) <= CURVATURE * rise or length >= longest:
                return best
            low = length
        length = (low + high) / 2 if np.isfinite(high) else min(2 * length, longest)
        if length <= low:
            break
    return best
