"""Intervals by multiplier bootstrap: replicates of an estimator on the same stream.

Each replicate weighs every transition by a random multiplier, 0 or 2, of its own. The deviations of
the replicates from the estimate are then distributed like that of the estimate from its target, so
estimate ± z times their standard deviation is an interval for the target.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from retvar import arguments
from retvar.errors import InputError
from retvar.features import Rows
from retvar.format import literal
from retvar.online import memory_layout
from retvar.online.memory import Memory
from retvar.random import U, seed_of
from retvar.td.steps import depends_on_errors

__all__ = ["add_bootstrap_samples", "half_width", "spread", "weighted"]

Array = NDArray[np.float64]
MOST = 16_384  # replicates that the random counter allows
FEWEST = 2


def add_bootstrap_samples(memory: Memory, count: int, seed: int = 0) -> None:
    """Add lanes for `count` replicates to an estimator's arrays, and their random multipliers.

    >>> import retvar as rv
    >>> learner = rv.Direct(alpha=rv.Averaged(), gamma=0.0, lam=0.0)
    >>> risk = learner.online(states=1, bootstrap_samples=50)
    >>> for reward in (0.0, 2.0) * 500:
    ...     risk.update(0, reward, None, terminated=True)
    >>> low, high = risk.interval(0, "value")
    >>> 0.9 < low < 1.0 < high < 1.1
    True
    """
    if not arguments.is_integer(count) or not FEWEST <= count <= MOST:
        raise InputError(
            "bootstrap_samples", literal(count), f"must be 0, or from {FEWEST} to {MOST:,}"
        )
    if any(map(depends_on_errors, memory.plan[: memory.places, memory_layout.KIND])):
        raise InputError(
            "bootstrap_samples",
            count,
            "cannot be used with Adadelta, whose steps depend on the errors",
        )
    memory.add_replicates(int(count), np.array([*_key(seed), 0], dtype=np.uint64))


def weighted(rows: Rows | None, weights: Array) -> Array:
    """w·φ of sparse rows, for weights [weight] or [weight, replicate]; all weights without rows."""
    if rows is None:
        return weights.copy()
    shape = (rows.indptr.size - 1, weights.shape[0])
    table = scipy.sparse.csr_array((rows.values, rows.indices, rows.indptr), shape=shape)
    return np.asarray(table @ weights)


def _key(seed: object) -> tuple[Any, Any]:
    """Return the key of the multipliers: two random words that depend on the seed."""
    words = np.random.SeedSequence(int(seed_of(seed))).generate_state(2, dtype=np.uint64)
    return U(words[0]), U(words[1])


def spread(predictions: Array) -> Array:
    """Standard deviation over replicates, without those that diverged."""
    usable = np.isfinite(predictions) & (np.abs(predictions) <= memory_layout.LIMIT)
    count = usable.sum(axis=-1)
    with np.errstate(invalid="ignore", over="ignore"):
        mean = np.where(usable, predictions, 0.0).sum(axis=-1) / np.maximum(count, 1)
        squares = np.where(usable, predictions - mean[..., None], 0.0) ** 2
        found: Array = np.sqrt(squares.sum(axis=-1) / np.where(count >= FEWEST, count - 1, np.nan))
    return found


def half_width(level: object) -> float:
    """Half-width of a normal interval of this level, in standard deviations."""
    return NormalDist().inv_cdf((1 + arguments.level("level", level)) / 2)
