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

from retvar.td.jit import compiled, read_only
from retvar.td.random import U, mix

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
ORDER = 4  # largest power of ρ
PLAIN = 2 * ORDER + 1  # sums of a key on-policy: b = 0 … 8
WEIGHTED = (ORDER + 1) ** 2  # sums of a key off-policy: b = 0 … 2a for each a
ARRAYS = ("keys", "numbers", "sums", "rows")  # of a saved table
FIRST_ROOM = 10  # a new table has room for 2¹⁰ keys


class Sums:
    """Sums Σ ρᵃ(r − c)ᵇ for each (state, next state, γ′, γ′λ′) of a log.

    >>> sums = Sums()
    >>> sums.add([0, 0, 1], [1, 1, 0], [1.0, 3.0, 2.0], gamma=0.9, lam=1.0)
    >>> sums.state.tolist(), sums.next_state.tolist(), sums.moment(1, 0).tolist()
    ([0, 1], [1, 0], [2.0, 1.0])
    """

    def __init__(self) -> None:
        self.rows = 0  #: transitions added
        self._hold(np.zeros((0, 2), dtype=np.int64), np.zeros((0, 3)), np.zeros((0, PLAIN)))

    def _hold(self, keys: Integers, numbers: Array, sums: Array) -> None:
        """Take over keys (s, s′), their numbers (γ′, γ′λ′, c) and sums; leave room for more."""
        room = 1 << max(FIRST_ROOM, len(keys).bit_length())
        self._ints = np.zeros((room, 2), dtype=np.int64)
        self._floats, self._sums = np.zeros((room, 3)), np.zeros((room, sums.shape[1]))
        self._table = np.full(2 * room, -1, dtype=np.int64)  # the keys, at places by their hash
        self._count = 0
        self._find(*keys.T, *numbers.T)
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
        key = self._find(s, np.where(ended, s, s2), g, g * own, r)
        weight = weight if self.weighted else np.zeros(0)
        add_powers(read_only(key), _floats(r), _floats(weight), self._floats, self._sums)
        self.rows += s.size

    def _find(self, *columns: NDArray[Any]) -> Integers:
        """The number of the key (s, s′, γ′, γ′λ′) of each row; a new one takes its reward as c."""
        ends = (read_only(np.asarray(x, dtype=np.int64)) for x in columns[:2])
        rows = *ends, *map(_floats, columns[2:])
        found, first = np.zeros(columns[0].size, dtype=np.int64), 0
        while True:
            first, self._count = find_keys(
                rows, first, self._count, self._ints, self._floats, self._table, found
            )
            if first == found.size:
                return found
            self._hold(self._ints, self._floats, self._sums)

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
    state = property(lambda self: self._ints[: self._count, 0])
    next_state = property(lambda self: self._ints[: self._count, 1])  #: `state` at an end
    discount = property(lambda self: self._floats[: self._count, 0])  #: γ′
    trace_discount = property(lambda self: self._floats[: self._count, 1])  #: γ′λ′
    centre = property(lambda self: self._floats[: self._count, 2])  #: c

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
        ends = other._ints[: len(other)] if number is None else number[other._ints[: len(other)]]
        key = self._find(*ends.T, *other._floats[: len(other)].T)
        shift = other.centre - self._floats[key, 2]
        for a in range(ORDER + 1) if self.weighted else (ORDER,):
            for b in range(2 * a + 1):
                terms = (
                    math.comb(b, k) * shift ** (b - k) * other.moment(a, k) for k in range(b + 1)
                )
                self._sums[key, self._column(a, b)] += sum(terms)
        self.rows += other.rows

    def arrays(self, prefix: str = "") -> dict[str, NDArray[Any]]:
        """Everything as named arrays, from which :meth:`restored` makes it again."""
        held = [x[: self._count].copy() for x in (self._ints, self._floats, self._sums)]
        names = (f"{prefix}{name}" for name in ARRAYS)
        return dict(zip(names, [*held, np.array([self.rows], dtype=np.int64)], strict=True))

    @classmethod
    def restored(cls, arrays: Mapping[str, NDArray[Any]], prefix: str = "") -> Sums:
        """The sums that :meth:`arrays` came from."""
        *held, rows = (arrays[f"{prefix}{name}"] for name in ARRAYS)
        found = cls()
        found._hold(*held)
        found.rows = int(rows[0])
        return found


def _floats(column: NDArray[Any]) -> Array:
    return np.asarray(read_only(np.asarray(column, dtype=np.float64)))


@compiled
def find_keys(
    columns: Any, first: Any, count: Any, ints: Any, floats: Any, table: Any, found: Any
) -> Any:
    """Write the number of each row's key; stops where there is no room for a new one."""
    s, s2, g, trace, r = columns
    for t in range(first, s.size):
        word = U(s[t]) * U(0x9E3779B97F4A7C15) + U(s2[t]) * U(0xD1B54A32D192ED03)
        word = mix(word ^ U(np.int64(g[t] * 1e15)) ^ (U(np.int64(trace[t] * 1e15)) << U(1)))
        at = np.int64(word & U(table.size - 1))  # its size is a power of 2
        key = table[at]
        while key >= 0 and not (
            ints[key, 0] == s[t]
            and ints[key, 1] == s2[t]
            and floats[key, 0] == g[t]
            and floats[key, 1] == trace[t]
        ):
            at = (at + 1) & (table.size - 1)
            key = table[at]
        if key < 0:
            if count == ints.shape[0]:
                return t, count
            key = count
            count += 1
            table[at] = key
            ints[key, 0], ints[key, 1] = s[t], s2[t]
            floats[key, 0], floats[key, 1], floats[key, 2] = g[t], trace[t], r[t]
        found[t] = key
    return s.size, count


@compiled
def add_powers(key: Any, r: Any, rho: Any, floats: Any, sums: Any) -> None:
    """Add the powers of each row to the sums of its key; no ρ stands for ones."""
    least = 0 if rho.size else ORDER
    for t in range(key.size):
        k = key[t]
        x, weight = r[t] - floats[k, 2], 1.0
        for a in range(least, ORDER + 1):
            first, power = a * a - least * least, weight
            for b in range(2 * a + 1):
                sums[k, first + b] += power
                power *= x
            weight *= rho[t] if rho.size else 1.0
