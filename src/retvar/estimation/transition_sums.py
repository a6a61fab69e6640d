"""Sums over the transitions of a finite world: all that least squares needs, in one pass.

A key is a state s, the next state s′, the discount γ′ and γ′λ′ of the transition. For each key the
sums Σ ρᵃ(r − c)ᵇ are accumulated, with ρ the importance ratio, r the reward, c the first reward of
the key, a = 0 … 4 and b = 0 … 2a. On-policy, ρ = 1 and Σ (r − c)ᵇ for b = 0 … 8 is enough. Sums of
different logs can be added, so a log can be read in pieces, resumed, and split over workers.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retvar.errors import InputError
from retvar.jit import compiled, read_only
from retvar.online.checkpoint import check_array
from retvar.random import U, mix

__all__ = ["TransitionSums"]

log = logging.getLogger("retvar")
Array = NDArray[np.float64]
Integers = NDArray[np.int64]
ORDER = 4  # largest power of ρ
PLAIN = 2 * ORDER + 1  # sums of a key on-policy: b = 0 … 8
WEIGHTED = (ORDER + 1) ** 2  # sums of a key off-policy: b = 0 … 2a for each a
FIRST_ROOM = 1_024  # keys of a new table
MANY_KEYS = 2_000_000  # from which on a warning says how much memory they take


class TransitionSums:
    """Sums Σ ρᵃ(r − c)ᵇ for each (state, next state, γ′, γ′λ′) of a log.

    >>> sums = TransitionSums()
    >>> sums.add([0, 0, 1], [1, 1, 0], [1.0, 3.0, 2.0], gamma=0.9, lam=1.0)
    >>> sums.state.tolist(), sums.next_state.tolist(), sums.moment(1, 0).tolist()
    ([0, 1], [1, 0], [2.0, 1.0])
    """

    def __init__(self) -> None:
        self.rows = 0  #: transitions added
        self._weighted = False
        self._count = 0
        self._ints = np.zeros((FIRST_ROOM, 2), dtype=np.int64)  # s, s′
        self._floats = np.zeros((FIRST_ROOM, 3))  # γ′, γ′λ′, c
        self._sums = np.zeros((FIRST_ROOM, PLAIN))
        self._table = np.full(2 * FIRST_ROOM, -1, dtype=np.int64)

    def add(
        self,
        state: ArrayLike,
        next_state: ArrayLike,
        reward: ArrayLike,
        *,
        gamma: ArrayLike,
        lam: ArrayLike,
        terminated: ArrayLike = False,
        rho: ArrayLike | None = None,
        off_policy_return: bool = False,
    ) -> None:
        """Add transitions; all arguments are columns, or one number for all.

        For the off-policy return, reward and discounts are multiplied by ρ, and ρ counts as 1.
        """
        s = np.ascontiguousarray(state, dtype=np.int64)
        n = s.size
        ended = np.broadcast_to(np.asarray(terminated, dtype=bool), n)
        follows = np.where(ended, s, np.asarray(next_state, dtype=np.int64))
        g = np.where(ended, 0.0, np.broadcast_to(np.asarray(gamma, dtype=np.float64), n))
        trace = g * np.broadcast_to(np.asarray(lam, dtype=np.float64), n)
        r = np.ascontiguousarray(np.broadcast_to(np.asarray(reward, dtype=np.float64), n))
        ratio = None if rho is None else np.broadcast_to(np.asarray(rho, dtype=np.float64), n)
        if ratio is not None and off_policy_return:
            r, g, trace, ratio = ratio * r, ratio * g, ratio * trace, None
        if ratio is not None and not self._weighted and bool((ratio != 1.0).any()):
            self._weigh()
        if self._weighted and ratio is None:
            ratio = np.ones(n)
        self._accumulate(s, follows, g, trace, r, ratio if self._weighted else None)
        self.rows += n

    def add_part(
        self, state: Integers, next_state: Integers, reward: Array, discount: Array,
        trace_discount: Array, part: Integers, which: int,
    ) -> None:  # fmt: skip
        """Add those transitions whose part is `which`, on-policy; γ′ and γ′λ′ are 0 at ends.

        >>> sums, one = TransitionSums(), np.ones(2)
        >>> state, part = np.array([0, 0]), np.array([0, 1])
        >>> sums.add_part(state, state, one, 0.9 * one, 0.9 * one, part, 1)
        >>> sums.rows, sums.moment(1, 0).tolist()
        (1, [1.0])
        """
        rho = np.ones(state.size) if self._weighted else None
        self._accumulate(state, next_state, discount, trace_discount, reward, rho, part, which)
        self.rows += int(np.count_nonzero(part == which))

    def _accumulate(
        self, s: Integers, s2: Integers, g: Array, trace: Array, r: Array, rho: Array | None,
        part: Integers | None = None, which: int = 0,
    ) -> None:  # fmt: skip
        weights = np.ones(0) if rho is None else rho
        parts = np.zeros(0, dtype=np.int64) if part is None else part
        rows = Rows(*map(read_only, (s, s2, g, trace, r, weights, parts)))
        first = 0
        while True:
            first, self._count = accumulate(
                rows, which, first, self._count,
                Keys(self._ints, self._floats, self._sums, self._table),
            )  # fmt: skip
            if first == s.size:
                return
            self._grow()

    def _grow(self) -> None:
        """Double the room for keys."""
        if self._count >= MANY_KEYS:
            size = self._count * (self._ints.itemsize * (2 + 3 + self._sums.shape[1]) + 16)
            log.warning(
                "%s different transitions (state, next state, γ, λ) so far take %.1f GB; where "
                "nearly all differ, merge states or round the γ and λ of the data",
                f"{self._count:,}", 2 * size / 1e9,
            )  # fmt: skip
        self._ints = np.concatenate([self._ints, np.zeros_like(self._ints)])
        self._floats = np.concatenate([self._floats, np.zeros_like(self._floats)])
        self._sums = np.concatenate([self._sums, np.zeros_like(self._sums)])
        self._table = np.full(2 * len(self._ints), -1, dtype=np.int64)
        rehash(self._count, self._ints, self._floats, self._table)

    def _weigh(self) -> None:
        """Make room for powers of ρ; so far all were 1."""
        sums = np.zeros((len(self._sums), WEIGHTED))
        for a in range(ORDER + 1):
            sums[:, a * a : (a + 1) ** 2] = self._sums[:, : 2 * a + 1]
        self._sums, self._weighted = sums, True

    # ------------------------------------------------------------------ what was summed

    def __len__(self) -> int:
        return self._count

    @property
    def weighted(self) -> bool:
        """Whether ratios other than 1 have come."""
        return self._weighted

    @property
    def state(self) -> Integers:
        """State of each key."""
        return self._ints[: self._count, 0]

    @property
    def next_state(self) -> Integers:
        """Next state of each key; the state itself where the episode terminated."""
        return self._ints[: self._count, 1]

    @property
    def discount(self) -> Array:
        """γ′ of each key, 0 where the episode terminated."""
        return self._floats[: self._count, 0]

    @property
    def trace_discount(self) -> Array:
        """γ′λ′ of each key."""
        return self._floats[: self._count, 1]

    @property
    def centre(self) -> Array:
        """The reward c that powers are taken around, of each key."""
        return self._floats[: self._count, 2]

    def moment(self, a: int, b: int) -> Array:
        """Σ ρᵃ(r − c)ᵇ of each key, for b ≤ 2a (on-policy, for b ≤ 8)."""
        column = a * a + b if self._weighted else b
        return self._sums[: self._count, column]

    def of_polynomial(self, a: int, coefficients: list[Array]) -> Array:
        """Σ ρᵃ Σ_b coefficients[b](r − c)ᵇ of each key."""
        total = np.zeros(self._count)
        for b, coefficient in enumerate(coefficients):
            total += coefficient * self.moment(a, b)
        return total

    # ------------------------------------------------------------------ adding, saving

    def renumber(self, number: Integers) -> None:
        """Give each state s the number ``number[s]``; no two states may get the same.

        >>> sums = TransitionSums()
        >>> sums.add([0, 1], [1, 0], [1.0, 2.0], gamma=0.9, lam=1.0)
        >>> sums.renumber(np.array([5, 3]))
        >>> sums.state.tolist(), sums.next_state.tolist()
        ([5, 3], [3, 5])
        """
        self._ints[: self._count] = number[self._ints[: self._count]]
        self._table[:] = -1
        rehash(self._count, self._ints, self._floats, self._table)

    def merge(self, other: TransitionSums) -> None:
        """Add the sums of another log.

        >>> one, two, whole = TransitionSums(), TransitionSums(), TransitionSums()
        >>> for sums in (one, whole):
        ...     sums.add([0], [0], [1.0], gamma=0.5, lam=1.0)
        >>> for sums in (two, whole):
        ...     sums.add([0, 0], [0, 0], [2.0, 4.0], gamma=0.5, lam=1.0)
        >>> one.merge(two)
        >>> [float(one.moment(2, b)[0]) == float(whole.moment(2, b)[0]) for b in range(5)]
        [True, True, True, True, True]
        """
        if other._weighted and not self._weighted:
            self._weigh()
        n = len(other)
        where = np.zeros(n, dtype=np.int64)
        first = 0
        while True:
            first, self._count = insert(
                first, other._ints[:n], other._floats[:n], where, self._count, self._ints,
                self._floats, self._table,
            )  # fmt: skip
            if first == n:
                break
            self._grow()
        shift = other.centre - self._floats[where, 2]
        shifts = [shift**k for k in range(PLAIN)]
        powers = range(ORDER + 1) if self._weighted else (ORDER,)
        for a in powers:
            base = a * a if self._weighted else 0
            for b in range(2 * a + 1):
                moved = sum(
                    math.comb(b, k) * shifts[b - k] * other.moment(a, k) for k in range(b + 1)
                )
                self._sums[where, base + b] += moved
        self.rows += other.rows

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Everything as named arrays, from which :meth:`restored` makes it again."""
        n = self._count
        return {
            "keys": self._ints[:n].copy(),
            "numbers": self._floats[:n].copy(),
            "sums": self._sums[:n].copy(),
            "rows": np.array([self.rows], dtype=np.int64),
        }

    @classmethod
    def restored(
        cls, arrays: Mapping[str, NDArray[Any]], states: int, largest: float = 1.0
    ) -> TransitionSums:
        """The sums that :meth:`arrays` came from: of so many states, discounts at most `largest`.

        >>> sums = TransitionSums()
        >>> sums.add([0, 1], [1, 0], [1.0, 2.0], gamma=0.9, lam=1.0, rho=[0.5, 2.0])
        >>> TransitionSums.restored(sums.arrays(), states=2).moment(1, 0).tolist()
        [0.5, 2.0]
        """
        found = cls()
        _check(arrays, states, largest)
        n = len(arrays["keys"])
        found.rows, found._count = int(arrays["rows"][0]), n
        found._weighted = arrays["sums"].shape[1] == WEIGHTED
        room = max(FIRST_ROOM, 2 ** math.ceil(math.log2(n + 1)))
        found._ints = np.zeros((room, 2), dtype=np.int64)
        found._floats = np.zeros((room, 3))
        found._sums = np.zeros((room, arrays["sums"].shape[1]))
        found._ints[:n], found._floats[:n] = arrays["keys"], arrays["numbers"]
        found._sums[:n] = arrays["sums"]
        found._table = np.full(2 * room, -1, dtype=np.int64)
        rehash(n, found._ints, found._floats, found._table)
        return found


def _check(arrays: Mapping[str, NDArray[Any]], states: int, largest: float) -> None:
    """Refuse arrays that no transitions lead to; compiled code does not check them."""
    keys, numbers, sums, rows = (arrays[name] for name in ("keys", "numbers", "sums", "rows"))
    n = len(keys)
    weighted = sums.shape[1:] == (WEIGHTED,)
    check_array("keys", keys, (n, 2), np.int64)
    check_array("numbers", numbers, (n, 3), np.float64)
    check_array("sums", sums, (n, WEIGHTED if weighted else PLAIN), np.float64)
    check_array("rows", rows, (1,), np.int64)
    if keys.min(initial=0) < 0 or keys.max(initial=0) >= states:
        raise InputError("keys", "unknown states", f"must be from 0 to {states - 1}")
    discounts = numbers[:, :2]
    if not (np.isfinite(numbers).all() and ((discounts >= 0) & (discounts <= largest)).all()):
        raise InputError("numbers", "out of range", "must be discounts and a finite reward")
    powers = range(ORDER + 1) if weighted else (ORDER,)
    even = [weighted * a * a + b for a in powers for b in range(0, 2 * a + 1, 2)]
    if not np.isfinite(sums).all() or (sums[:, even] < 0).any():
        raise InputError("sums", "out of range", "must be sums of powers")
    if sums[:, 0].sum() != rows[0] or (sums[:, 0] < 1).any():
        raise InputError("rows", rows[0], "must be as many as the sums count")


def _slot(s, s2, g, trace, ints, floats, table):
    """Where a key is in the hash table, or the free place for it."""
    word = U(s) * U(0x9E3779B97F4A7C15) + U(s2) * U(0xD1B54A32D192ED03)
    word = mix(word ^ U(np.int64(g * 1e15)) ^ (U(np.int64(trace * 1e15)) << U(1)))
    at = np.int64(word & U(table.size - 1))  # its size is a power of 2
    while True:
        key = table[at]
        if key < 0 or (
            ints[key, 0] == s
            and ints[key, 1] == s2
            and floats[key, 0] == g
            and floats[key, 1] == trace
        ):
            return at
        at += 1
        if at == table.size:
            at = np.int64(0)


class Keys(NamedTuple):
    """The arrays of :class:`TransitionSums`."""

    ints: Any  #: s, s′
    floats: Any  #: γ′, γ′λ′, c
    sums: Any
    table: Any  #: hash table of their numbers; −1: none


class Rows(NamedTuple):
    """Columns of transitions."""

    state: Any
    next_state: Any
    discount: Any  #: γ′
    trace: Any  #: γ′λ′
    reward: Any
    rho: Any  #: none: all 1
    part: Any  #: none: all are added


def _accumulate(rows, which, first, count, keys):
    """Add rows of a part from `first` on; stops where there is no room for a new key."""
    s, s2, g, trace, r, rho, part = rows
    ints, floats, sums, table = keys
    room = ints.shape[0]
    for t in range(first, s.size):
        if part.size and part[t] != which:
            continue
        at = slot(s[t], s2[t], g[t], trace[t], ints, floats, table)
        key = table[at]
        if key < 0:
            if count == room:
                return t, count
            key = count
            count += 1
            table[at] = key
            ints[key, 0], ints[key, 1] = s[t], s2[t]
            floats[key, 0], floats[key, 1], floats[key, 2] = g[t], trace[t], r[t]
        x = r[t] - floats[key, 2]
        if rho.size == 0:
            sums[key, 0] += 1.0
            if x != 0.0:
                power = x
                for b in range(1, PLAIN):
                    sums[key, b] += power
                    power *= x
        else:
            weight = 1.0
            for a in range(ORDER + 1):
                power = weight
                for b in range(2 * a + 1):
                    sums[key, a * a + b] += power
                    power *= x
                weight *= rho[t]
    return s.size, count


def _insert(first, ints, floats, where, count, to_ints, to_floats, table):
    """Find or make the keys of another table; stops where there is no room for a new one."""
    room = to_ints.shape[0]
    for k in range(first, ints.shape[0]):
        at = slot(ints[k, 0], ints[k, 1], floats[k, 0], floats[k, 1], to_ints, to_floats, table)
        if table[at] < 0:
            if count == room:
                return k, count
            table[at] = count
            to_ints[count] = ints[k]
            to_floats[count] = floats[k]
            count += 1
        where[k] = table[at]
    return ints.shape[0], count


def _rehash(count, ints, floats, table):
    """Enter all keys into an empty hash table."""
    for key in range(count):
        at = slot(ints[key, 0], ints[key, 1], floats[key, 0], floats[key, 1], ints, floats, table)
        table[at] = key


slot = compiled(_slot)
accumulate = compiled(_accumulate, nogil=True)
insert = compiled(_insert)
rehash = compiled(_rehash)
