"""Observed returns: collected along the stream until the rest of a return is negligible.

At most one return is open for each key (a state, or a region) and stream. So the returns of a key
do not overlap: they are nearly independent, and whether one begins depends on the past alone.

A return that is cut off by truncation is completed with the value of the last state, and the
variance that is missing from it is computed; to leave it out would leave out the long ones. A
λ-return contains values of later states, too; they are given with the transitions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.online.columns import read_streams
from retvar.td import rules
from retvar.td.jit import compiled, inlined, read_only
from retvar.td.random import U, mix

__all__ = ["CLOSED", "Predictor", "Returns", "rows_of"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
Predictor = Callable[[Array], Array]  # of states or observations, as rows
TERMINATED, TRUNCATED = 1, 2  # flags of a transition
NEGLIGIBLE = 1e-4  # discount of the rest of a return at which it is closed
CLOSED = 0.05  # the same for a return that is compared
MOST_MISSING = 0.1  # mean discount of what compared returns lack that is not accounted for
MOST_COMPLETED = 0.9  # where too few lack so little: what they may lack at most
FEWEST = 100  # returns below which nothing is said
OPEN, SUM, DISCOUNT, AGE = range(4)  # columns of open returns
KEY, REWARDS, REST, START_AGE, LEAD = range(5)  # of stored ones; then two rows
PLENTY = 128  # times as many returns as are stored, from which on fewer begin
STREAM = 7  # column of the rows
NOWHERE, ELSEWHERE = -1, -2  # keys at which no return begins, and of rows of another log
BLOCK_BITS = 10  # blocks of 1,024 steps, in which returns begin or not

mean_reward = inlined(rules.mean_reward)
mean_discount = inlined(rules.mean_discount)


class Returns:
    """Collects returns; `keys` may be open in each stream, and `most` are stored.

    Where there are more, those stored are a random sample of all, and returns begin only in a
    random share of the blocks of steps, so that they cost little. A return is closed where the
    discount of its rest falls below `negligible`.
    """

    def __init__(
        self, keys: int, width: int, most: int = 4_000, *, negligible: float = NEGLIGIBLE,
        plenty: int = PLENTY,
    ) -> None:  # fmt: skip
        # of each stream: open returns, states in which they began, age of the episode, steps so
        # far, how many are open
        whole = np.zeros(0, dtype=np.int64)
        self._open: list[Any] = [np.zeros((0, keys, n)) for n in (4, width)]
        self._open += [np.zeros(0), whole, whole]
        self._stored = np.zeros((most, LEAD + 2 * width))
        self._counts = np.zeros(2, dtype=np.int64)  # collected; those of them at the present share
        self._level = 0  # returns begin in one of 2^level blocks
        self._width, self._negligible, self._plenty = width, negligible, plenty

    def add(self, key: Integers, rows: tuple[NDArray[Any], ...]) -> None:
        """Add what :func:`rows_of` returned; no return begins at the key `NOWHERE`.

        Rows with the key `ELSEWHERE` do not count.
        """
        more = int(rows[STREAM].max(initial=-1)) + 1 - len(self._open[0])
        if more > 0:
            self._open = [np.pad(x, [(0, more)] + [(0, 0)] * (x.ndim - 1)) for x in self._open]
        collect(
            tuple(map(read_only, (key, *rows))), tuple(self._open), self._stored, self._counts,
            self._negligible, U(2**self._level - 1),
        )  # fmt: skip
        self._thin(self._level)

    def _thin(self, level: int) -> None:
        """Lower the share of blocks to 2^−level, or further where returns are many."""
        while level > self._level or self._counts[1] > self._plenty * len(self._stored):
            stored, seen = len(self._rows), int(self._counts[1]) // 2
            if seen < stored:
                self._keep(np.random.default_rng(stored), seen)
            self._counts[1] = seen
            self._level += 1

    def _keep(self, rng: np.random.Generator, number: int) -> None:
        """Keep so many of the stored returns, at random."""
        self._stored[:number] = self._rows[np.sort(rng.permutation(len(self._rows))[:number])]

    def merge(self, other: Returns) -> None:
        """Add the stored returns of another part of the log: of both, a random sample remains."""
        self._thin(other._level)
        other._thin(self._level)
        seen = [int(each._counts[1]) for each in (self, other)]
        most = min(sum(seen), len(self._stored))
        rng = np.random.default_rng(sum(seen))
        own = int(rng.hypergeometric(seen[0], seen[1], most)) if sum(seen) else 0
        self._keep(rng, own)
        theirs = np.sort(rng.permutation(len(other._rows))[: most - own])
        self._stored[own:most] = other._rows[theirs]
        self._counts += other._counts

    @property
    def _rows(self) -> Array:
        return self._stored[: int(self._counts[1])]

    @property
    def count(self) -> int:
        """Number of returns that were collected, stored or not."""
        return int(self._counts[0])

    @property
    def start(self) -> Array:
        """State or observation in which each stored return began [return, number]."""
        return self._rows[:, LEAD : LEAD + self._width]

    @property
    def key(self) -> Integers:
        """Key of each stored return."""
        return self._rows[:, KEY].astype(np.int64)

    @property
    def end(self) -> Array:
        """State or observation in which each was closed or cut off [return, number]."""
        return self._rows[:, LEAD + self._width :]

    @property
    def age(self) -> Integers:
        """Steps of its episode before each began."""
        return self._rows[:, START_AGE].astype(np.int64)

    @property
    def rest(self) -> Array:
        """Discount of what is missing from each return, with its sign; 0 where nothing is."""
        return self._rows[:, REST]

    @property
    def missing_share(self) -> Array:
        """The same without its sign, at most 1."""
        return np.minimum(np.abs(self.rest), 1.0)

    def completed(self, value: Predictor) -> Array:
        """The stored returns, completed with these values."""
        return np.asarray(self._rows[:, REWARDS] + self._at_the_end(value, 1))

    def missing_variance(self, variance: Predictor) -> Array:
        """Variance that each return lacks because it was cut off."""
        return self._at_the_end(variance, 2)

    def _at_the_end(self, predict: Predictor, power: int) -> Array:
        """Prediction at the end of each return that is cut off, times its discount to a power."""
        found, cut = np.zeros(len(self._rows)), self.rest != 0
        if cut.any():
            found[cut] = self.rest[cut] ** power * predict(self.end[cut])
        return found

    def early(self, places: Integers | None = None, most: float = MOST_MISSING) -> Mask:
        """Which began so early in their episode that, in each place, little is cut off on average.

        Whether a return counts depends on when it began, not on how it went on: to leave out those
        that truncation cut off would leave out the long ones. Where too few lack little, as with
        missing rewards, which cut at any age: those that together have the most power, completed as
        they are with the estimate. If it is right their mean is still its value; if not, they show
        less of it.
        """
        age, share = self.age, self.missing_share
        places = np.zeros_like(age) if places is None else places
        early = np.zeros(age.size, dtype=bool)
        order = np.lexsort((age, places))
        for own in np.split(order, np.flatnonzero(np.diff(places[order])) + 1):
            mean = np.cumsum(share[own]) / np.arange(1, own.size + 1)
            last = np.flatnonzero(np.diff(age[own], append=-1))  # of its age
            fits = last[mean[last] <= most]
            if own.size >= FEWEST and (not fits.size or fits[-1] + 1 < FEWEST):
                fits = last[mean[last] <= MOST_COMPLETED]
                power = np.sqrt(fits + 1.0) * (1.0 - mean[fits])
                fits = fits[: int(np.argmax(power)) + 1] if fits.size else fits
            early[own[: fits[-1] + 1 if fits.size else 0]] = True
        return early


def rows_of(
    chunk: Mapping[str, Any], gamma: Array, lam: Array, eta: Array | None = None,
    next_value: Array | None = None,
) -> tuple[NDArray[Any], ...]:  # fmt: skip
    """The columns of a chunk as returns are collected from them.

    `next_value` is the value of the next state, where λ is below 1. No η stands for ones.
    """
    n = len(chunk["reward"])
    flags = np.zeros(n, dtype=np.int64)
    for name, flag in (("terminated", TERMINATED), ("truncated", TRUNCATED)):
        flags |= flag * np.asarray(chunk.get(name, 0), dtype=bool)
    stream = np.broadcast_to(read_streams(chunk.get("stream"), n), n)
    numbers = chunk["reward"], gamma, lam, np.zeros(0) if eta is None else eta
    return (
        *(_states(chunk[name], n) for name in ("state", "next_state")),
        *(np.ascontiguousarray(x, dtype=np.float64) for x in numbers),
        flags,
        np.ascontiguousarray(stream),
        np.zeros(0) if next_value is None else next_value,
    )


def _states(column: NDArray[Any], n: int) -> NDArray[Any]:
    """States as rows of one whole number, observations as rows of numbers."""
    kind = np.int64 if column.ndim == 1 and column.dtype.kind in "iu" else np.float64
    return np.ascontiguousarray(column.reshape(n, -1), dtype=kind)


@compiled
def collect(chunk: Any, begun: Any, stored: Any, counts: Any, negligible: Any, mask: Any) -> None:
    """Go through a chunk: begin returns, add rewards to the open ones, store those that end."""
    key, state, next_state, reward, gamma, lam, eta, flags, stream, next_value = chunk
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
            opened[at, k, AGE] = age[at]
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
                stored[slot, KEY], stored[slot, REWARDS] = j, opened[at, j, SUM]
                stored[slot, REST], stored[slot, START_AGE] = rest, opened[at, j, AGE]
                for i in range(width):
                    stored[slot, LEAD + i] = start[at, j, i]
                    stored[slot, LEAD + width + i] = next_state[t, i]
        age[at] = 0.0 if ended or cut else age[at] + 1.0
