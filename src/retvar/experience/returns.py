"""Returns that were really seen: from states along the stream to where their rest no longer counts.

At most one return is open for each key (a state, or a region) and stream, so that those of a key do
not overlap: they are nearly independent, and whether one is begun depends on the past alone.
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
TERMINATED, TRUNCATED = 1, 2
OPEN, SUM, SHARE = range(3)  # of an open return

mean_reward = inlined(rules.mean_reward)
mean_discount = inlined(rules.mean_discount)


class Returns:
    """Collects returns; `keys` is how many may be open in a stream, `most` how many are kept.

    Where there are more, those kept are a random choice of all.

    >>> import numpy as np
    >>> seen = Returns(keys=2, width=1, most=10)
    >>> zero = np.zeros(3)
    >>> seen.add(np.array([0, 1, 0]), np.array([[0.0], [1.0], [0.0]]), np.array([1.0, 2.0, 4.0]),
    ...          np.array([0.5, 0.5, 0.0]), np.ones(3), zero, np.ones(3), np.array([0, 0, 1]),
    ...          np.zeros(3, dtype=np.int64))
    >>> seen.key.tolist(), seen.observed.tolist()
    ([0, 1], [3.0, 4.0])
    """

    def __init__(self, keys: int, width: int, most: int = 4_000) -> None:
        self._open = np.zeros((0, keys, 3))
        self._begun = np.zeros((0, keys, width))  # what was seen when it began
        self._kept = np.zeros((most, 2 + width))  # key, return, what was seen
        self._counts = np.zeros(2, dtype=np.int64)  # finished; cut off

    def add(
        self,
        key: Integers,
        seen: Array,
        reward: Array,
        gamma: Array,
        lam: Array,
        next_value: Array,
        eta: Array,
        flags: Integers,
        stream: Integers,
    ) -> None:
        """Take in a chunk, in its order; a key below 0 begins nothing."""
        streams = int(stream.max(initial=-1)) + 1
        more = streams - self._open.shape[0]
        if more > 0:
            _, keys, width = self._begun.shape
            self._open = np.concatenate([self._open, np.zeros((more, keys, 3))])
            self._begun = np.concatenate([self._begun, np.zeros((more, keys, width))])
        collect(
            key, seen, reward, gamma, lam, next_value, eta, flags, stream,
            self._open, self._begun, self._kept, self._counts,
        )  # fmt: skip

    @property
    def finished(self) -> int:
        """How many returns came to their end."""
        return int(self._counts[0])

    @property
    def cut_off(self) -> int:
        """How many were lost to truncation: their rest was not seen."""
        return int(self._counts[1])

    @property
    def key(self) -> Integers:
        """Key of each return kept."""
        return self._rows()[:, 0].astype(np.int64)

    @property
    def observed(self) -> Array:
        """The returns kept."""
        return self._rows()[:, 1]

    @property
    def begun(self) -> Array:
        """What was seen when each began [return, number]."""
        return self._rows()[:, 2:]

    def _rows(self) -> Array:
        return self._kept[: min(self.finished, self._kept.shape[0])]

    def forget(self) -> None:
        """Drop the returns that are open: what comes next does not follow."""
        self._open[:] = 0.0


@compiled
def collect(
    key, seen, reward, gamma, lam, next_value, eta, flags, stream, opened, begun, kept, counts
):  # fmt: skip
    """Go through a chunk: begin returns, add to those that are open, keep those that end."""
    keys, width = begun.shape[1], begun.shape[2]
    for t in range(key.size):
        at, k = stream[t], key[t]
        if k >= 0 and opened[at, k, OPEN] == 0.0:
            opened[at, k, OPEN], opened[at, k, SUM], opened[at, k, SHARE] = 1.0, 0.0, 1.0
            for i in range(width):
                begun[at, k, i] = seen[t, i]
        ended = flags[t] & TERMINATED != 0
        g, lm = (0.0, 0.0) if ended else (gamma[t], lam[t])
        fed = mean_reward(reward[t], g, lm, next_value[t], eta[t])
        discount = mean_discount(g, lm, eta[t])
        for j in range(keys):
            if opened[at, j, OPEN] == 0.0:
                continue
            opened[at, j, SUM] += opened[at, j, SHARE] * fed
            opened[at, j, SHARE] *= discount
            if abs(opened[at, j, SHARE]) < ENOUGH:
                opened[at, j, OPEN] = 0.0
                n = counts[0]
                counts[0] += 1
                place = n
                if n >= kept.shape[0]:  # any of the n + 1 is left out with the same chance
                    place = np.int64(mix(U(n)) % U(n + 1))
                if place < kept.shape[0]:
                    kept[place, 0], kept[place, 1] = j, opened[at, j, SUM]
                    for i in range(width):
                        kept[place, 2 + i] = begun[at, j, i]
            elif flags[t] & TRUNCATED != 0:
                opened[at, j, OPEN] = 0.0
                counts[1] += 1
