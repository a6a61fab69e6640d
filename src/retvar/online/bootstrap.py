"""How sure an estimate is: replicates on the same stream, each with other coins.

A multiplier bootstrap: each replicate takes every transition 0 times or twice, as a coin of its own
says. The replicates then stray from the estimate as the estimate strays from its target, so that
estimate ± z times their standard deviation is an interval for the target.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from retvar.errors import InputError
from retvar.features import Rows
from retvar.online import memory_layout
from retvar.online.memory import Memory
from retvar.random import U, seed_of
from retvar.step_sizes import ADADELTA, AVERAGED

__all__ = ["BootstrapSamples"]

Array = NDArray[np.float64]
MOST = 16_384  # replicates that the counter of coins has room for
FEWEST = 2


class BootstrapSamples:
    """Weights of `count` replicates of a learner, and the coins that they toss.

    >>> import retvar as rv
    >>> learner = rv.Direct(alpha=rv.Averaged(), gamma=0.0, lam=0.0)
    >>> risk = learner.online(states=1, bootstrap_samples=50)
    >>> for reward in (0.0, 2.0) * 500:
    ...     risk.update(0, reward, None, terminated=True)
    >>> low, high = risk.interval(0, "value")
    >>> 0.9 < low < 1.0 < high < 1.1
    True
    """

    def __init__(self, memory: Memory, count: int, seed: int = 0) -> None:
        whole = isinstance(count, int | np.integer) and not isinstance(count, bool)
        if not whole or not FEWEST <= count <= MOST:
            raise InputError(
                "bootstrap_samples", repr(count), f"must be 0, or from {FEWEST} to {MOST:,}"
            )
        if (memory.plan[:3, memory_layout.KIND] == ADADELTA).any():
            raise InputError(
                "bootstrap_samples", count, "need steps that do not depend on errors: not Adadelta"
            )
        self.coins = np.array([*_key(seed), 0], dtype=np.uint64)
        self.copies = np.repeat(memory.cells[:, [memory_layout.WEIGHT]], count, axis=1)
        averaged = (memory.plan[:3, memory_layout.KIND] == AVERAGED).any()
        self.learning = self.copies.copy() if averaged else np.zeros((0, count))
        lazy = memory.scales is not None
        self.sums = np.zeros((memory_layout.OPEN + 1 if lazy else 0, 3, count))
        self.room = np.zeros((memory_layout.ROOM, count))

    @property
    def count(self) -> int:
        """How many there are."""
        return int(self.copies.shape[1])

    def arrays(self) -> tuple[Any, ...]:
        """What the compiled update wants."""
        return self.copies, self.learning, self.sums, self.room, self.coins

    def clone(self) -> BootstrapSamples:
        """An independent copy."""
        twin = object.__new__(BootstrapSamples)
        names = ("copies", "learning", "sums", "room", "coins")
        for name, array in zip(names, self.arrays(), strict=True):
            setattr(twin, name, array.copy())
        return twin

    def tensors(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        kept = {"copies": self.copies, "learning": self.learning, "coins": self.coins}
        return kept | ({"sums": self.sums} if self.sums.size else {})

    @classmethod
    def restored(cls, memory: Memory, tensors: dict[str, Any]) -> BootstrapSamples:
        """From a checkpoint, if it is sound: compiled code trusts it."""
        fresh = cls(memory, tensors["copies"].shape[-1])
        for name, wanted in fresh.tensors().items():
            if name == "sums" and "scales" not in tensors:  # written when all traces were eager
                continue
            given = tensors[name]
            if given.dtype != wanted.dtype or given.shape != wanted.shape:
                shape = f"{given.dtype} of shape {given.shape}"
                raise InputError(name, shape, f"must be {wanted.dtype} of shape {wanted.shape}")
            wanted[...] = given
        return fresh

    def grown(self, memory: Memory, place: NDArray[np.intp]) -> BootstrapSamples:
        """The same replicates of a learner with more weights; `place` is where the old ones are."""
        fresh = BootstrapSamples(memory, self.count)
        fresh.coins[:] = self.coins
        fresh.copies[place] = self.copies
        if self.learning.size:
            fresh.learning[place] = self.learning
        return fresh


def weighted(rows: Rows | None, weights: Array) -> Array:
    """w·φ of sparse rows, for weights [weight] or [weight, replicate]; None: of each weight."""
    if rows is None:
        return weights.copy()
    shape = (rows.indptr.size - 1, weights.shape[0])
    table = scipy.sparse.csr_array((rows.values, rows.indices, rows.indptr), shape=shape)
    return np.asarray(table @ weights)


def _key(seed: object) -> tuple[Any, Any]:
    """The key of the coins: any two words that differ with the seed will do."""
    whole = int(seed_of(seed))
    made = np.random.SeedSequence(whole).generate_state(2, dtype=np.uint64)
    return U(made[0]), U(made[1])


def spread(predictions: Array) -> Array:
    """Standard deviation over replicates; those that diverged are left out."""
    usable = np.isfinite(predictions) & (np.abs(predictions) <= memory_layout.LIMIT)
    count = usable.sum(axis=-1)
    with np.errstate(invalid="ignore", over="ignore"):
        mean = np.where(usable, predictions, 0.0).sum(axis=-1) / np.maximum(count, 1)
        squares = np.where(usable, predictions - mean[..., None], 0.0) ** 2
        found: Array = np.sqrt(squares.sum(axis=-1) / np.where(count >= FEWEST, count - 1, np.nan))
    return found


def half_width(level: object) -> float:
    """z: how many standard deviations a normal interval of this level reaches to either side."""
    if isinstance(level, bool) or not isinstance(level, float | int) or not 0 < level < 1:
        raise InputError("level", repr(level), "must lie between 0 and 1, such as 0.9")
    return NormalDist().inv_cdf((1 + float(level)) / 2)
