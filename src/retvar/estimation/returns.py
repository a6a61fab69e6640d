"""Observed returns: collected along the stream until the rest of a return is negligible.

At most one return is open for each key (a state, or a region) and stream. So the returns of a key
do not overlap: they are nearly independent, and whether one begins depends on the past alone.

A return that is cut off by truncation is completed with the value of the last state, and the
variance that is missing from it is computed; to leave it out would leave out the long ones. A
λ-return contains values of later states, too. All these values are the final ones, since an
estimator's first values are near 0: a stored return is linear in them, G = Σ c R + Σ w v(state).
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from retvar import rules
from retvar.estimation.bootstrap_terms import BootstrapTerms, Predictor
from retvar.jit import compiled, inlined, read_only
from retvar.online import memory_layout
from retvar.online.memory_layout import TERMINATED, TRUNCATED
from retvar.random import U, mix

__all__ = ["Returns"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
NEGLIGIBLE = 1e-4  # discount of the rest of a return at which it is closed
IGNORED_SHARE = 0.02  # share of returns that may be ignored
FEW = 0.05  # share of returns that are not enough to show
MAX_TRUNCATED_SHARE = 0.3  # share of a return that may be cut off where it is shown as observed
CAPACITY = 2**20  # numbers stored of bootstrap terms
OPEN, SUM, DISCOUNT, AGE, FIRST_DISCOUNT, START = range(6)  # columns of open returns
KEY, REWARDS, REST, START_AGE, STREAM, FROM, TO, LEAD = range(8)  # of stored ones; then two rows
PLENTY = 128  # times as many returns as are stored, from which on fewer begin
NOWHERE, ELSEWHERE = -1, -2  # keys at which no return begins, and of rows of another log
BLOCK_BITS = 10  # blocks of 1,024 steps, in which returns begin or not

mean_reward = inlined(rules.mean_reward)
mean_discount = inlined(rules.mean_discount)


class Returns:
    """Collects returns; `keys` may be open in each stream, and `most` are stored.

    Where there are more, those stored are a random sample of all, and returns begin only in a
    random share of the blocks of steps, so that they cost little. A return is closed where the
    discount of its rest falls below `negligible`.

    >>> import numpy as np
    >>> returns = Returns(keys=2, width=1, most=10)
    >>> state, none = np.array([[0.0], [1.0], [0.0]]), np.zeros(3, dtype=np.int64)
    >>> returns.add(np.array([0, 1, 0]), state, 1 - state, np.array([1.0, 2.0, 4.0]),
    ...             np.full(3, 0.5), np.ones(3), np.ones(3), np.array([0, 0, 2]), none)
    >>> returns.key.tolist(), returns.completed(lambda state: 8 * state[:, 0]).tolist()
    ([0, 1], [4.0, 6.0])
    """

    def __init__(
        self,
        keys: int,
        width: int,
        most: int = 4_000,
        capacity: int = CAPACITY,
        negligible: float = NEGLIGIBLE,
        plenty: int = PLENTY,
    ) -> None:
        self._open = np.zeros((0, keys, 6))
        self._open_start = np.zeros((0, keys, width))  # state in which each began
        self._age = np.zeros(0)  # of the episode, in each stream
        self._clock = np.zeros(0, dtype=np.int64)  # steps of each stream
        self._stored = np.zeros((most, LEAD + 1 + 2 * width))
        self._open_count = np.zeros(0, dtype=np.int64)  # in each stream
        self._counts = np.zeros(2, dtype=np.int64)  # collected; those of them at the present share
        self._level = 0  # returns begin in one of 2^level blocks
        self._width, self._capacity, self._negligible = width, capacity, negligible
        self._plenty = plenty
        self._terms: BootstrapTerms | None = None  # None as long as λ is 1

    def add(
        self,
        key: Integers,
        state: Array | Integers,
        next_state: Array | Integers,
        reward: Array,
        gamma: Array,
        lam: Array,
        eta: Array | None,
        flags: Integers,
        stream: Integers,
        next_value: Array | None = None,
    ) -> None:
        """Add a chunk; no return begins at the key `NOWHERE`, and rows `ELSEWHERE` do not count.

        No `eta` stands for ones. `next_value` is the value of the next state, where it is final.
        """
        self._grow(int(stream.max(initial=-1)) + 1)
        bootstraps = next_value is None and bootstrapping(key, lam, flags)
        if self._terms is None and bootstraps:  # terms of open returns start here
            self._terms = BootstrapTerms()
            self._open[:, :, FIRST_DISCOUNT] = self._open[:, :, DISCOUNT]
            self._open[:, :, START] = self._clock[:, None]
        if self._terms is not None:
            self._add_terms(self._terms, key, next_state, gamma, lam, eta, flags, stream)
        fresh = np.zeros(self._stored.shape[0], dtype=np.bool_)
        none = np.zeros(0)
        columns = (
            key, state, next_state, reward, gamma, lam, none if next_value is None else next_value,
            none if eta is None else eta, flags, stream,
        )  # fmt: skip
        chunk = Chunk(*map(read_only, columns))
        begun = Begun(self._open, self._open_start, self._age, self._clock, self._open_count)
        mask = U(2**self._level - 1)
        collect(chunk, begun, self._stored, fresh, self._counts, self._negligible, mask)
        if self._terms is not None:
            self._store_terms(self._terms, fresh)
        self._thin(self._level)

    def _add_terms(
        self, terms: BootstrapTerms, key: Integers, next_state: Array | Integers, gamma: Array,
        lam: Array,
        eta: Array | None, flags: Integers, stream: Integers,
    ) -> None:  # fmt: skip
        """Store the steps of a chunk, for the bootstrap terms of returns."""
        own, ended = key > ELSEWHERE, flags & TERMINATED != 0
        gamma, lam = np.where(ended, 0.0, gamma), np.where(ended, 0.0, lam)
        eta = np.ones(key.size) if eta is None else eta
        reached = np.asarray(next_state[own], dtype=np.float64)
        terms.add_steps(reached, gamma[own], lam[own], eta[own], stream[own], self._clock)

    def _thin(self, level: int) -> None:
        """Lower the share of blocks to 2^−level, or further where returns are many."""
        while level > self._level or self._counts[1] > self._plenty * self._stored.shape[0]:
            stored, seen = len(self._rows()), int(self._counts[1]) // 2
            if seen < stored:
                self._keep(np.random.default_rng(stored).permutation(stored)[:seen])
            self._counts[1] = seen
            self._level += 1

    def _keep(self, stay: Integers) -> None:
        """Keep these of the stored returns."""
        stay = np.sort(stay)
        self._stored[: stay.size] = self._stored[stay]
        if self._terms is not None:
            self._terms.move({int(old): new for new, old in enumerate(stay)})

    def merge(self, other: Returns, number: Integers | None = None) -> None:
        """Add the stored returns of another part of the log, none of which is open any more.

        State s of theirs is ``number[s]`` here. Of both together a random sample remains.
        """
        self._thin(other._level)
        other._thin(self._level)
        seen = [int(each._counts[1]) for each in (self, other)]
        most = min(sum(seen), len(self._stored), len(other._stored))
        rng = np.random.default_rng(sum(seen))
        own = int(rng.hypergeometric(seen[0], seen[1], most)) if sum(seen) else 0
        self._keep(rng.permutation(len(self._rows()))[:own])
        theirs = np.sort(rng.permutation(len(other._rows()))[: most - own])
        rows = other._stored[theirs]
        if number is not None:
            rows[:, LEAD + 1 :] = number[rows[:, LEAD + 1 :].astype(np.int64)]
        self._stored[own:most] = rows
        if other._terms is not None:
            self._terms = self._terms or BootstrapTerms()
            slots = {int(old): own + k for k, old in enumerate(theirs)}
            self._terms.merge(other._terms, slots, number)
        if most < min(sum(seen), len(self._stored)):
            self._stored = self._stored[:most]
        self._counts += other._counts

    def _grow(self, streams: int) -> None:
        more = streams - self._open.shape[0]
        if more > 0:
            _, keys, width = self._open_start.shape
            self._open = np.concatenate([self._open, np.zeros((more, keys, 6))])
            self._open_start = np.concatenate([self._open_start, np.zeros((more, keys, width))])
            self._age = np.concatenate([self._age, np.zeros(more)])
            self._clock = np.concatenate([self._clock, np.zeros(more, dtype=np.int64)])
            none = np.zeros(more, dtype=np.int64)
            self._open_count = np.concatenate([self._open_count, none])

    def _store_terms(self, terms: BootstrapTerms, fresh: NDArray[np.bool_]) -> None:
        """Store the bootstrap terms of the returns that have just ended."""
        for slot in np.flatnonzero(fresh).tolist():
            terms.remove(slot)
        while fresh.any():
            slot = int(np.argmax(fresh))
            fresh[slot] = False
            stream, start, end = self._stored[slot, [STREAM, FROM, TO]].astype(np.int64).tolist()
            terms.add_return(slot, stream, start, end, float(self._stored[slot, LEAD]))
            while self.stored_numbers > self._capacity and len(self._rows()) > 1:
                fresh = fresh[self._halve(terms)]
        is_open = self._open[:, :, OPEN] > 0
        oldest = np.where(is_open, self._open[:, :, START], np.inf).min(axis=1)
        terms.remove_steps(np.minimum(oldest, self._clock).astype(np.int64))

    def _halve(self, terms: BootstrapTerms) -> Integers:
        """Keep a random half of the returns, and no more from now on; return their old slots."""
        n = len(self._rows())
        stay = np.sort(np.random.default_rng(self.count).permutation(n)[: n // 2])
        terms.move({int(old): new for new, old in enumerate(stay)})
        self._stored = self._stored[stay]
        return stay

    def sample(self, most: int) -> Returns:
        """At most so many of the stored returns, at random; all where λ is below 1."""
        rows = self._rows()
        if len(rows) <= most or self._terms is not None:
            return self
        found = copy.copy(self)
        found._stored = rows[np.random.default_rng(self.count).permutation(len(rows))[:most]]
        return found

    @property
    def stored_numbers(self) -> int:
        """Numbers stored of bootstrap terms, where λ is below 1."""
        return 0 if self._terms is None else self._terms.count * (1 + self._width)

    @property
    def count(self) -> int:
        """Number of returns that were collected, stored or not."""
        return int(self._counts[0])

    @property
    def key(self) -> Integers:
        """Key of each stored return."""
        return self._rows()[:, KEY].astype(np.int64)

    def completed(self, value: Predictor) -> Array:
        """The stored returns, completed with these values."""
        found = self._rows()[:, REWARDS] + self._at_the_end(value, 1)
        if self._terms is not None:
            found += self._terms.sums(len(found), value)
        return found

    def missing_variance(self, variance: Predictor) -> Array:
        """Variance that each return lacks because it was cut off."""
        return self._at_the_end(variance, 2)

    def _at_the_end(self, predict: Predictor, power: int) -> Array:
        """Prediction at the end of each truncated return, times its discount to a power."""
        rows, found = self._rows(), np.zeros(len(self._rows()))
        if self.truncated.any():
            rest = rows[self.truncated, REST] ** power
            found[self.truncated] = rest * predict(rows[self.truncated, LEAD + 1 + self._width :])
        return found

    @property
    def truncated(self) -> NDArray[np.bool_]:
        """Whether each return was cut off."""
        return np.asarray(self._rows()[:, REST] != 0)

    @property
    def missing_share(self) -> Array:
        """Discount of what is missing from each return; 0 where nothing is."""
        return np.abs(self._rows()[:, REST])

    @property
    def start(self) -> Array:
        """State or observation in which each began [return, number]."""
        return self._rows()[:, LEAD + 1 : LEAD + 1 + self._width]

    @property
    def end(self) -> Array:
        """State or observation in which each was closed or cut off [return, number]."""
        return self._rows()[:, LEAD + 1 + self._width :]

    @property
    def rest(self) -> Array:
        """Discount of what is missing from each return, with its sign; 0 where nothing is."""
        return self._rows()[:, REST]

    @property
    def age(self) -> Integers:
        """Steps of its episode before each began."""
        return self._rows()[:, START_AGE].astype(np.int64)

    @property
    def early(self) -> NDArray[np.bool_]:
        """Which began so early in their episode that little can be cut off.

        This does not depend on how they went on, as leaving out truncated ones would.
        """
        rows = self._rows()
        much = np.abs(rows[:, REST]) > MAX_TRUNCATED_SHARE
        if np.count_nonzero(much) <= IGNORED_SHARE * len(rows):  # such as at the end of the stream
            return np.ones(len(rows), dtype=bool)
        return np.asarray(rows[:, START_AGE] < np.quantile(rows[much, START_AGE], IGNORED_SHARE))

    @property
    def cut_at_any_age(self) -> bool:
        """Whether returns are cut off at any age, as by missing rewards, so that few are early."""
        little = self.missing_share <= MAX_TRUNCATED_SHARE
        both = np.count_nonzero(self.early & little)
        return bool(little.any() and both < FEW * little.size)

    @property
    def nearly_complete(self) -> NDArray[np.bool_]:
        """Which began early and had little cut off; all of the latter where few began early."""
        little = self.missing_share <= MAX_TRUNCATED_SHARE
        return np.asarray(little if self.cut_at_any_age else self.early & little)

    def _rows(self) -> Array:
        return self._stored[: min(int(self._counts[1]), self._stored.shape[0])]


class Chunk(NamedTuple):
    """Columns of transitions."""

    key: Any
    state: Any
    next_state: Any
    reward: Any
    gamma: Any
    lam: Any
    next_value: Any
    eta: Any
    flags: Any
    stream: Any


class Begun(NamedTuple):
    """Returns that are open, and the time, in each stream."""

    opened: Any  #: [stream, key, column]
    start: Any  #: state in which each began
    age: Any
    clock: Any
    count: Any  #: how many are open


def _compiled(function: Any) -> Any:
    return compiled(function, memory_layout.__file__, nogil=True)


@_compiled
def bootstrapping(key, lam, flags):
    """Whether values of later states are in returns: λ is below 1 somewhere."""
    for t in range(lam.size):
        if lam[t] < 1.0 and key[t] > ELSEWHERE and flags[t] & TERMINATED == 0:
            return True
    return False


@_compiled
def collect(chunk, begun, stored, fresh, counts, negligible, mask):
    """Go through a chunk: begin returns, add rewards to the open ones, store those that end."""
    key, state, next_state, reward, gamma, lam, next_value, eta, flags, stream = chunk
    opened, start, age, clock, open_count = begun
    keys, width = start.shape[1], start.shape[2]
    for t in range(key.size):
        at, k = stream[t], key[t]
        if k <= ELSEWHERE:
            continue
        begins = k >= 0 and opened[at, k, OPEN] == 0.0
        if begins and mask != U(0):
            block = (U(at) << U(32)) ^ (U(clock[at]) >> U(BLOCK_BITS))
            begins = mix(block) & mask == U(0)
        if begins:
            open_count[at] += 1
            opened[at, k, OPEN], opened[at, k, SUM], opened[at, k, DISCOUNT] = 1.0, 0.0, 1.0
            opened[at, k, AGE], opened[at, k, FIRST_DISCOUNT] = age[at], 1.0
            opened[at, k, START] = clock[at]
            for i in range(width):
                start[at, k, i] = state[t, i]
        ended, cut = flags[t] & TERMINATED != 0, flags[t] & TRUNCATED != 0
        clock[at] += 1
        if open_count[at] == 0:
            age[at] = 0.0 if ended or cut else age[at] + 1.0
            continue
        g, trace = (0.0, 0.0) if ended else (gamma[t], lam[t])
        value = next_value[t] if next_value.size else 0.0
        weight = eta[t] if eta.size else 1.0
        fed = mean_reward(reward[t], g, trace, value, weight)
        discount = mean_discount(g, trace, weight)
        for j in range(keys):
            if opened[at, j, OPEN] == 0.0:
                continue
            opened[at, j, SUM] += opened[at, j, DISCOUNT] * fed
            opened[at, j, DISCOUNT] *= discount
            rest = opened[at, j, DISCOUNT]
            over = abs(rest) < negligible
            if not over and not cut:
                continue
            opened[at, j, OPEN] = 0.0
            open_count[at] -= 1
            n = counts[1]
            counts[0] += 1
            counts[1] += 1
            if abs(rest) < NEGLIGIBLE:
                rest = 0.0
            slot = n
            if n >= stored.shape[0]:  # reservoir sampling: each of the n + 1 is dropped alike
                slot = np.int64(mix(U(n)) % U(n + 1))
            if slot < stored.shape[0]:
                fresh[slot] = True
                stored[slot, KEY], stored[slot, REWARDS] = j, opened[at, j, SUM]
                stored[slot, REST], stored[slot, START_AGE] = rest, opened[at, j, AGE]
                stored[slot, STREAM], stored[slot, TO] = at, clock[at] - 1
                stored[slot, FROM] = opened[at, j, START]
                stored[slot, LEAD] = opened[at, j, FIRST_DISCOUNT]
                for i in range(width):
                    stored[slot, LEAD + 1 + i] = start[at, j, i]
                    stored[slot, LEAD + 1 + width + i] = next_state[t, i]
        age[at] = 0.0 if ended or cut else age[at] + 1.0
