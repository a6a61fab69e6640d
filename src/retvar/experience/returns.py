"""Returns that were really seen: from states along the stream to where their rest no longer counts.

At most one return is open for each key (a state, or a region) and stream, so that those of a key do
not overlap: they are nearly independent, and whether one is begun depends on the past alone.

A return that is cut off by truncation is completed with the value of the state reached, and the
variance that is missing from it is noted. Leaving it out would leave out the long ones. A λ-return
takes values on its way, too. Both are those known at last, when all has been learned: a learner's
first values are near 0. So what is kept of a return is linear in them, G = Σ c R + Σ w v(reached).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from retvar import rules
from retvar.experience.bootstrap_terms import Ahead, Value
from retvar.jit import compiled, inlined
from retvar.random import U, mix

__all__ = ["Returns"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
ENOUGH = 1e-4  # share of the return at which its rest no longer counts
FEW = 0.02  # share of returns that do not matter
LITTLE = 0.3  # share of a return that may be cut off where it is shown as observed
ROOM = 2**20  # numbers held of what is reached on the way
TERMINATED, TRUNCATED = 1, 2
OPEN, SUM, SHARE, AGE, LEAD, BORN = range(6)  # of an open return
KEY, SEEN, REST, BEGAN, STREAM, FROM, TO, LED = range(8)  # of one that is kept; then two rows

mean_reward = inlined(rules.mean_reward)
mean_discount = inlined(rules.mean_discount)


class Returns:
    """Collects returns; `keys` is how many may be open in a stream, `most` how many are kept.

    Where there are more, those kept are a random choice of all.

    >>> import numpy as np
    >>> seen = Returns(keys=2, width=1, most=10)
    >>> state, none = np.array([[0.0], [1.0], [0.0]]), np.zeros(3, dtype=np.int64)
    >>> seen.add(np.array([0, 1, 0]), state, 1 - state, np.array([1.0, 2.0, 4.0]),
    ...          np.full(3, 0.5), np.ones(3), np.ones(3), np.array([0, 0, 2]), none)
    >>> seen.key.tolist(), seen.completed(lambda reached: 8 * reached[:, 0]).tolist()
    ([0, 1], [4.0, 6.0])
    """

    def __init__(self, keys: int, width: int, most: int = 4_000, room: int = ROOM) -> None:
        self._open = np.zeros((0, keys, 6))
        self._begun = np.zeros((0, keys, width))  # what was seen when it began
        self._age = np.zeros(0)  # of the episode, in each stream
        self._clock = np.zeros(0, dtype=np.int64)  # steps of each stream
        self._kept = np.zeros((most, LED + 1 + 2 * width))
        self._counts = np.zeros(2, dtype=np.int64)  # all; those cut off
        self._width, self._room = width, room
        self._ahead: Ahead | None = None  # none, as long as λ is 1

    def add(
        self,
        key: Integers,
        seen: Array,
        reached: Array,
        reward: Array,
        gamma: Array,
        lam: Array,
        eta: Array,
        flags: Integers,
        stream: Integers,
        next_value: Array | None = None,
    ) -> None:
        """Take in a chunk, in its order; a key below 0 begins nothing.

        `next_value` is that of what was reached, where it is known for good.
        """
        self._make_room(int(stream.max(initial=-1)) + 1)
        ended = flags & TERMINATED != 0
        gamma, lam = np.where(ended, 0.0, gamma), np.where(ended, 0.0, lam)
        late = next_value is None and bool(np.any((lam < 1) & ~ended))
        if self._ahead is None and late:  # what is open begins anew, with the share that is left
            self._ahead = Ahead()
            self._open[:, :, LEAD] = self._open[:, :, SHARE]
            self._open[:, :, BORN] = self._clock[:, None]
        if self._ahead is not None:
            self._ahead.passed(reached, gamma, lam, eta, stream, self._clock)
        fresh = np.zeros(self._kept.shape[0], dtype=np.bool_)
        collect(
            key, seen, reached, reward, gamma, lam, np.zeros(key.size) if next_value is None
            else next_value, eta, flags, stream, self._open, self._begun, self._age, self._clock,
            self._kept, fresh, self._counts,
        )  # fmt: skip
        if self._ahead is not None:
            self._look_back(self._ahead, fresh)

    def _make_room(self, streams: int) -> None:
        more = streams - self._open.shape[0]
        if more > 0:
            _, keys, width = self._begun.shape
            self._open = np.concatenate([self._open, np.zeros((more, keys, 6))])
            self._begun = np.concatenate([self._begun, np.zeros((more, keys, width))])
            self._age = np.concatenate([self._age, np.zeros(more)])
            self._clock = np.concatenate([self._clock, np.zeros(more, dtype=np.int64)])

    def _look_back(self, ahead: Ahead, fresh: NDArray[np.bool_]) -> None:
        """Keep what the returns that have just ended took on their way."""
        for place in np.flatnonzero(fresh).tolist():
            ahead.drop(place)
        while fresh.any():
            place = int(np.argmax(fresh))
            fresh[place] = False
            stream, born, died = self._kept[place, [STREAM, FROM, TO]].astype(np.int64).tolist()
            ahead.take(place, stream, born, died, float(self._kept[place, LED]))
            while self.room_taken > self._room and len(self._rows()) > 1:
                fresh = fresh[self._halve(ahead)]
        opened = self._open[:, :, OPEN] > 0
        oldest = np.where(opened, self._open[:, :, BORN], np.inf).min(axis=1)
        ahead.forget(np.minimum(oldest, self._clock).astype(np.int64))

    def _halve(self, ahead: Ahead) -> Integers:
        """Keep any half of the returns, and from now on so many; their places before."""
        n = len(self._rows())
        stay = np.sort(np.random.default_rng(self.count).permutation(n)[: n // 2])
        ahead.move({int(old): new for new, old in enumerate(stay)})
        self._kept = self._kept[stay]
        return stay

    @property
    def room_taken(self) -> int:
        """Numbers held of what was reached on the way, where λ is below 1."""
        return 0 if self._ahead is None else self._ahead.points * (1 + self._width)

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

    def completed(self, value: Value) -> Array:
        """The returns kept, with these values of what was reached."""
        found = self._rows()[:, SEEN] + self._at_the_end(value, 1)
        if self._ahead is not None:
            found += self._ahead.sums(len(found), value)
        return found

    def missing(self, variance: Value) -> Array:
        """Variance that each lacks since its end was not seen."""
        return self._at_the_end(variance, 2)

    def _at_the_end(self, answer: Value, power: int) -> Array:
        """Answers for what was reached where returns were cut off, times the share to a power."""
        rows, found = self._rows(), np.zeros(len(self._rows()))
        if self.cut.any():
            rest = rows[self.cut, REST] ** power
            found[self.cut] = rest * answer(rows[self.cut, LED + 1 + self._width :])
        return found

    @property
    def cut(self) -> NDArray[np.bool_]:
        """Whether the end of each was cut off."""
        return np.asarray(self._rows()[:, REST] != 0)

    @property
    def begun(self) -> Array:
        """What was seen when each began [return, number]."""
        return self._rows()[:, LED + 1 : LED + 1 + self._width]

    @property
    def early(self) -> NDArray[np.bool_]:
        """Which began so early in their episode that little can be cut off.

        That does not depend on how they went on, as leaving out those that were cut off would.
        """
        rows = self._rows()
        much = np.abs(rows[:, REST]) > LITTLE
        if np.count_nonzero(much) <= FEW * len(rows):  # such as at the end of the stream
            return np.ones(len(rows), dtype=bool)
        return np.asarray(rows[:, BEGAN] < np.quantile(rows[much, BEGAN], FEW))

    @property
    def whole(self) -> NDArray[np.bool_]:
        """Which began early, and of which little was cut off indeed."""
        return self.early & (np.abs(self._rows()[:, REST]) <= LITTLE)

    def _rows(self) -> Array:
        return self._kept[: min(self.count, self._kept.shape[0])]


@compiled
def collect(
    key, seen, reached, reward, gamma, lam, next_value, eta, flags, stream,
    opened, begun, age, clock, kept, fresh, counts,
):  # fmt: skip
    """Go through a chunk: begin returns, add to those that are open, keep those that end."""
    keys, width = begun.shape[1], begun.shape[2]
    for t in range(key.size):
        at, k = stream[t], key[t]
        if k >= 0 and opened[at, k, OPEN] == 0.0:
            opened[at, k, OPEN], opened[at, k, SUM], opened[at, k, SHARE] = 1.0, 0.0, 1.0
            opened[at, k, AGE], opened[at, k, LEAD] = age[at], 1.0
            opened[at, k, BORN] = clock[at]
            for i in range(width):
                begun[at, k, i] = seen[t, i]
        ended, cut = flags[t] & TERMINATED != 0, flags[t] & TRUNCATED != 0
        fed = mean_reward(reward[t], gamma[t], lam[t], next_value[t], eta[t])
        discount = mean_discount(gamma[t], lam[t], eta[t])
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
                fresh[place] = True
                kept[place, KEY], kept[place, SEEN] = j, opened[at, j, SUM]
                kept[place, REST], kept[place, BEGAN] = rest, opened[at, j, AGE]
                kept[place, STREAM], kept[place, TO] = at, clock[at]
                kept[place, FROM], kept[place, LED] = opened[at, j, BORN], opened[at, j, LEAD]
                for i in range(width):
                    kept[place, LED + 1 + i] = begun[at, j, i]
                    kept[place, LED + 1 + width + i] = reached[t, i]
        clock[at] += 1
        age[at] = 0.0 if ended or cut else age[at] + 1.0
