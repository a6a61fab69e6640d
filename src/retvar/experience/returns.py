"""Returns that were really seen: from states along the stream to where their rest no longer counts.

At most one return is open for each key (a state, or a region) and stream, so that those of a key do
not overlap: they are nearly independent, and whether one is begun depends on the past alone.

A return that is cut off by truncation is completed with the value of the state reached, and the
variance that is missing from it is noted. Leaving it out would leave out the long ones.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from retvar import rules
from retvar.jit import compiled, inlined
from retvar.words import U, mix

__all__ = ["Returns"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
ENOUGH = 1e-4  # share of the return at which its rest no longer counts
FEW = 0.02  # share of returns that do not matter
LITTLE = 0.3  # share of a return that may be cut off where it is shown as observed
TERMINATED, TRUNCATED = 1, 2
OPEN, SUM, SHARE, AGE = range(4)  # of an open return
KEY, RETURN, CUT, MISSING, BEGAN = range(5)  # of a return that is kept; then what was seen

mean_reward = inlined(rules.mean_reward)
mean_discount = inlined(rules.mean_discount)


class Returns:
    """Collects returns; `keys` is how many may be open in a stream, `most` how many are kept.

    Where there are more, those kept are a random choice of all.

    >>> import numpy as np
    >>> seen = Returns(keys=2, width=1, most=10)
    >>> zero = np.zeros(3)
    >>> seen.add(np.array([0, 1, 0]), np.array([[0.0], [1.0], [0.0]]), np.array([1.0, 2.0, 4.0]),
    ...          np.array([0.5, 0.5, 0.0]), np.ones(3), zero, zero, np.ones(3), np.array([0, 0, 1]),
    ...          np.zeros(3, dtype=np.int64))
    >>> seen.key.tolist(), seen.observed.tolist()
    ([0, 1], [3.0, 4.0])
    """

    def __init__(self, keys: int, width: int, most: int = 4_000) -> None:
        self._open = np.zeros((0, keys, 4))
        self._begun = np.zeros((0, keys, width))  # what was seen when it began
        self._age = np.zeros(0)  # of the episode, in each stream
        self._kept = np.zeros((most, BEGAN + 1 + width))
        self._counts = np.zeros(2, dtype=np.int64)  # all; those cut off

    def add(
        self,
        key: Integers,
        seen: Array,
        reward: Array,
        gamma: Array,
        lam: Array,
        next_value: Array,
        next_variance: Array,
        eta: Array,
        flags: Integers,
        stream: Integers,
    ) -> None:
        """Take in a chunk, in its order; a key below 0 begins nothing."""
        streams = int(stream.max(initial=-1)) + 1
        more = streams - self._open.shape[0]
        if more > 0:
            _, keys, width = self._begun.shape
            self._open = np.concatenate([self._open, np.zeros((more, keys, 4))])
            self._begun = np.concatenate([self._begun, np.zeros((more, keys, width))])
            self._age = np.concatenate([self._age, np.zeros(more)])
        collect(
            key, seen, reward, gamma, lam, next_value, next_variance, eta, flags, stream,
            self._open, self._begun, self._age, self._kept, self._counts,
        )  # fmt: skip

    @property
    def count(self) -> int:
        """How many returns there were, kept or not."""
        return int(self._counts[0])

    @property
    def cut_off(self) -> int:
        """How many of them were cut off by truncation."""
        return int(self._counts[1])

    @property
    def key(self) -> Integers:
        """Key of each return kept."""
        return self._rows()[:, KEY].astype(np.int64)

    @property
    def observed(self) -> Array:
        """The returns kept."""
        return self._rows()[:, RETURN]

    @property
    def missing(self) -> Array:
        """Variance that each lacks since its end was not seen."""
        return self._rows()[:, MISSING]

    @property
    def cut(self) -> NDArray[np.bool_]:
        """Whether the end of each was cut off."""
        return np.asarray(self._rows()[:, CUT] > 0)

    @property
    def begun(self) -> Array:
        """What was seen when each began [return, number]."""
        return self._rows()[:, BEGAN + 1 :]

    @property
    def early(self) -> NDArray[np.bool_]:
        """Which began so early in their episode that little can be cut off.

        That does not depend on how they went on, as leaving out those that were cut off would.
        """
        rows = self._rows()
        much = rows[:, CUT] > LITTLE
        if np.count_nonzero(much) <= FEW * len(rows):  # such as at the end of the stream
            return np.ones(len(rows), dtype=bool)
        return np.asarray(rows[:, BEGAN] < np.quantile(rows[much, BEGAN], FEW))

    @property
    def whole(self) -> NDArray[np.bool_]:
        """Which began early, and of which little was cut off indeed."""
        return self.early & (self._rows()[:, CUT] <= LITTLE)

    def _rows(self) -> Array:
        return self._kept[: min(self.count, self._kept.shape[0])]

    def forget(self) -> None:
        """Drop the returns that are open: what comes next does not follow."""
        self._open[:] = 0.0
        self._age[:] = 0.0


@compiled
def collect(
    key, seen, reward, gamma, lam, next_value, next_variance, eta, flags, stream,
    opened, begun, age, kept, counts,
):  # fmt: skip
    """Go through a chunk: begin returns, add to those that are open, keep those that end."""
    keys, width = begun.shape[1], begun.shape[2]
    for t in range(key.size):
        at, k = stream[t], key[t]
        if k >= 0 and opened[at, k, OPEN] == 0.0:
            opened[at, k, OPEN], opened[at, k, SUM], opened[at, k, SHARE] = 1.0, 0.0, 1.0
            opened[at, k, AGE] = age[at]
            for i in range(width):
                begun[at, k, i] = seen[t, i]
        ended, cut = flags[t] & TERMINATED != 0, flags[t] & TRUNCATED != 0
        g, lm = (0.0, 0.0) if ended else (gamma[t], lam[t])
        fed = mean_reward(reward[t], g, lm, next_value[t], eta[t])
        discount = mean_discount(g, lm, eta[t])
        for j in range(keys):
            if opened[at, j, OPEN] == 0.0:
                continue
            opened[at, j, SUM] += opened[at, j, SHARE] * fed
            opened[at, j, SHARE] *= discount
            rest = opened[at, j, SHARE]
            over = abs(rest) < ENOUGH
            if not over and not cut:
                continue
            opened[at, j, OPEN] = 0.0
            n = counts[0]
            counts[0] += 1
            if over:
                rest = 0.0
            else:
                counts[1] += 1
            place = n
            if n >= kept.shape[0]:  # any of the n + 1 is left out with the same chance
                place = np.int64(mix(U(n)) % U(n + 1))
            if place < kept.shape[0]:
                kept[place, KEY], kept[place, CUT] = j, abs(rest)
                kept[place, RETURN] = opened[at, j, SUM] + rest * next_value[t]
                kept[place, MISSING] = rest * rest * next_variance[t]
                kept[place, BEGAN] = opened[at, j, AGE]
                for i in range(width):
                    kept[place, BEGAN + 1 + i] = begun[at, j, i]
        age[at] = 0.0 if ended or cut else age[at] + 1.0
