"""Sums over the transitions of a finite world: all that least squares needs.

A key is a state s, the next state s′, the discount γ′ and γ′λ′ of the transition. For each key the
sums Σ ρᵃ(r − c)ᵇ are accumulated, with ρ the importance ratio, r the reward, c the first reward of
the key, a = 0 … 4 and b = 0 … 2a. On-policy, ρ = 1 and Σ (r − c)ᵇ for b = 0 … 8 is enough. Sums of
different logs can be added, so a log can be read in pieces, resumed, and split over workers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retvar.td.jit import compiled
from retvar.td.random import U, mix

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
ORDER = 4  # largest power of ρ
PLAIN = 2 * ORDER + 1  # sums of a key on-policy: b = 0 … 8
WEIGHTED = (ORDER + 1) ** 2  # sums of a key off-policy: b = 0 … 2a for each a
CENTRE = 4  # column of c in a key
FIRST_ROOM = 10  # a new table has room for 2¹⁰ keys


class Sums:
    """Sums Σ ρᵃ(r − c)ᵇ for each (state, next state, γ′, γ′λ′) of a log.

    >>> sums = Sums()
    >>> sums.add([0, 0, 1], [1, 1, 0], [1.0, 3.0, 2.0], gamma=0.9, lam=1.0)
    >>> sums.state.tolist(), sums.next_state.tolist(), sums.moment(1, 0).tolist()
    ([0, 1], [1, 0], [2.0, 1.0])
    """

    def __init__(self) -> None:
        self._hold(np.zeros((0, CENTRE + 1)), np.zeros((0, PLAIN)))

    def _hold(self, keys: Array, sums: Array) -> None:
        """Take over keys (s, s′, γ′, γ′λ′, c) and their sums; leave room for more."""
        room = 1 << max(FIRST_ROOM, len(keys).bit_length())
        self._keys, self._sums = np.zeros((room, CENTRE + 1)), np.zeros((room, sums.shape[1]))
        self._table = np.full(2 * room, -1, dtype=np.int64)  # the keys, at places by their hash
        self._count = 0
        self._find(keys)
        self._sums[: len(sums)] = sums

    def add(
        self, state: ArrayLike, next_state: ArrayLike, reward: ArrayLike, *, gamma: ArrayLike,
        lam: ArrayLike, terminated: ArrayLike = False, rho: ArrayLike = 1.0,
    ) -> None:  # fmt: skip
        """Add transitions; all arguments are columns, or one number for all."""
        if not self.weighted and np.any(np.asarray(rho) != 1.0):
            self._weigh()
        s, s2, r, g, own, ended, weight = np.broadcast_arrays(
            state, next_state, reward, gamma, lam, terminated, rho
        )
        g = np.where(ended, 0.0, g)
        rows = np.column_stack([s, np.where(ended, s, s2), g, g * own, r]).astype(
            np.float64, copy=False
        )
        weight = np.array(weight if self.weighted else (), dtype=np.float64)
        add_powers(self._find(rows), rows, weight, self._keys, self._sums)

    def _find(self, rows: Array) -> Integers:
        """The number of the key (s, s′, γ′, γ′λ′) of each row; a new one takes its reward as c."""
        found, first = np.zeros(len(rows), dtype=np.int64), 0
        while True:
            first, self._count = find_keys(rows, first, self._count, self._keys, self._table, found)
            if first == found.size:
                return found
            self._hold(self._keys, self._sums)

    @property
    def weighted(self) -> bool:
        """Whether ratios other than 1 have come."""
        return self._sums.shape[1] == WEIGHTED

    def _weigh(self) -> None:
        """Make room for powers of ρ; so far all were 1."""
        powers = [self._sums[:, : 2 * a + 1] for a in range(ORDER + 1)]
        self._sums = np.concatenate(powers, axis=1)

    def __len__(self) -> int:
        return self._count

    # of each key: states, discounts (0 where the episode terminated), and the reward c
    state = property(lambda self: self._keys[: self._count, 0].astype(np.int64))
    next_state = property(lambda self: self._keys[: self._count, 1].astype(np.int64))
    discount = property(lambda self: self._keys[: self._count, 2])  #: γ′
    trace_discount = property(lambda self: self._keys[: self._count, 3])  #: γ′λ′
    centre = property(lambda self: self._keys[: self._count, CENTRE])  #: c

    def moment(self, a: int, b: int) -> Array:
        """Σ ρᵃ(r − c)ᵇ of each key, for b ≤ 2a (on-policy, for b ≤ 8)."""
        return np.asarray(self._sums[: self._count, self._column(a, b)])

    def _column(self, a: int, b: int) -> int:
        return a * a + b if self.weighted else b

    def of_polynomial(self, a: int, coefficients: list[Array]) -> Array:
        """Σ ρᵃ Σ_b coefficients[b](r − c)ᵇ of each key."""
        total = np.zeros(self._count)
        for b, coefficient in enumerate(coefficients):
            total += coefficient * self.moment(a, b)
        return total

    def merge(self, other: Sums, number: Integers | None = None) -> None:
        """Add the sums of another log; state s of its is ``number[s]`` here."""
        if other.weighted and not self.weighted:
            self._weigh()
        rows = other._keys[: len(other)].copy()
        if number is not None:
            rows[:, :2] = number[rows[:, :2].astype(np.int64)]
        key = self._find(rows)
        shift = other.centre - self._keys[key, CENTRE]
        for a in range(ORDER + 1) if self.weighted else (ORDER,):
            for b in range(2 * a + 1):
                terms = (
                    math.comb(b, k) * shift ** (b - k) * other.moment(a, k) for k in range(b + 1)
                )
                self._sums[key, self._column(a, b)] += sum(terms)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Everything as named arrays, from which :meth:`restored` makes it again."""
        held = {"keys": self._keys, "sums": self._sums}
        return {name: x[: self._count].copy() for name, x in held.items()}

    @classmethod
    def restored(cls, arrays: Mapping[str, NDArray[Any]]) -> Sums:
        """The sums that :meth:`arrays` came from."""
        found = cls()
        found._hold(arrays["keys"], arrays["sums"])
        return found


@compiled
def find_keys(rows: Any, first: Any, count: Any, keys: Any, table: Any, found: Any) -> Any:
    """Write the number of each row's key; stops where there is no room for a new one."""
    for t in range(first, found.size):
        s, s2, g, trace = rows[t, 0], rows[t, 1], rows[t, 2], rows[t, 3]
        word = U(np.int64(s)) * U(0x9E3779B97F4A7C15) + U(np.int64(s2)) * U(0xD1B54A32D192ED03)
        word = mix(word ^ U(np.int64(g * 1e15)) ^ (U(np.int64(trace * 1e15)) << U(1)))
        at = np.int64(word & U(table.size - 1))  # its size is a power of 2
        key = table[at]
        while key >= 0 and not (
            keys[key, 0] == s and keys[key, 1] == s2 and keys[key, 2] == g and keys[key, 3] == trace
        ):
            at = (at + 1) & (table.size - 1)
            key = table[at]
        if key < 0:
            if count == len(keys):
                return t, count
            key = count
            count += 1
            table[at] = key
            keys[key] = rows[t]
        found[t] = key
    return found.size, count


@compiled
def add_powers(key: Any, rows: Any, rho: Any, keys: Any, sums: Any) -> None:
    """Add the powers of each row to the sums of its key; no ρ stands for ones."""
    least = 0 if rho.size else ORDER
    for t in range(key.size):
        k = key[t]
        x, weight = rows[t, CENTRE] - keys[k, CENTRE], 1.0
        for a in range(least, ORDER + 1):
            first, power = a * a - least * least, weight
            for b in range(2 * a + 1):
                sums[k, first + b] += power
                power *= x
            weight *= rho[t] if rho.size else 1.0
