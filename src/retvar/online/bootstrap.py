"""Intervals by multiplier bootstrap: replicates of an estimator on the same stream.

Each replicate weighs every transition by a random multiplier, 0 or 2, of its own. The deviations of
the replicates from the estimate are then distributed like that of the estimate from its target, so
estimate ± z times their standard deviation is an interval for the target.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.support.format import literal
from retvar.td.nodes import LIMIT
from retvar.td.random import seed_of
from retvar.td.step_sizes import depends_on_errors

Array = NDArray[np.float64]
MOST = 16_384  # replicates that the random counter allows
FEWEST = 2


def replicates_of(description: Any, count: Any) -> int:
    """Return how many replicates an estimator has, if it may have so many."""
    if arguments.is_integer(count) and count == 0:
        return 0
    if not arguments.is_integer(count) or not FEWEST <= count <= MOST:
        remedy = f"must be 0, or from {FEWEST} to {MOST:,}"
        raise InputError("bootstrap_samples", literal(count), remedy)
    if any(depends_on_errors(node.step.kind) for node in description.nodes(tabular=False)):
        remedy = "cannot be used with Adadelta, whose steps depend on the errors"
        raise InputError("bootstrap_samples", count, remedy)
    return int(count)


def key_of(seed: object) -> NDArray[np.uint64]:
    """Two random words that depend on the seed, the key of the multipliers, and their counter."""
    words = np.random.SeedSequence(int(seed_of(seed))).generate_state(2, dtype=np.uint64)
    return np.array([*words, 0], dtype=np.uint64)


def spread(predictions: Array) -> Array:
    """Standard deviation over replicates, without those that diverged."""
    usable = np.isfinite(predictions) & (np.abs(predictions) <= LIMIT)
    count = usable.sum(axis=-1)
    with np.errstate(invalid="ignore", over="ignore"):
        mean = np.where(usable, predictions, 0.0).sum(axis=-1) / np.maximum(count, 1)
        squares = np.where(usable, predictions - mean[..., None], 0.0) ** 2
        found: Array = np.sqrt(squares.sum(axis=-1) / np.where(count >= FEWEST, count - 1, np.nan))
    return found


def half_width(level: object) -> float:
    """Half-width of a normal interval of this level, in standard deviations."""
    return NormalDist().inv_cdf((1 + arguments.level("level", level)) / 2)
