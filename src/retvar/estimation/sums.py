"""Sums over the transitions of a finite world: all that least squares and a test of ratios need.

A key is a state s, the next state s′, the discount γ′ and γ′λ′ of the transition. For each key the
sums Σ ρᵃ(r − c)ᵇ are accumulated, with ρ the importance ratio, r the reward, c the first reward of
the key, a = 0 … 4 and b = 0 … 2a. On-policy, ρ = 1 and Σ (r − c)ᵇ for b = 0 … 8 is enough. Sums of
different logs can be added, so a log can be read in pieces, resumed, and split over workers.

The test asks whether importance ratios are right. Where the behaviour covers the target,
E[ρ | s] = Σ_a μ(a|s) π(a|s)/μ(a|s) = 1 in every state, whatever the world does. A mean below 1 says
that the target takes actions that the log (nearly) never takes, or that propensities are too large;
a mean above 1 that they are too small. The test bets against the ratios: with y = λ(ρ − b) ≥ −a the
product of 1 + y is a supermartingale if E[ρ | s] ≤ b, and by Ville's inequality it exceeds 1/α with
a probability of at most α, however many rows there are and however they depend on one another. By
log(1 + y) ≥ y − y²ψ(a)/a² with ψ(a) = −log(1 − a) − a (Fan's inequality), sums of ρ and ρ² suffice.
Against a mean below b it needs a bound m on ratios that the log may not have seen:

    above b: Σρ − nb,  reach b        below b: nb − Σρ,  reach m − b
    evidence = max over a of  a D/reach − ψ(a) Σ(ρ − b)²/reach²
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retvar.experience.stream import Counts
from retvar.support.format import count, listed, number
from retvar.td.jit import compiled
from retvar.td.random import U, mix

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
ORDER = 4  # largest power of ρ
PLAIN = 2 * ORDER + 1  # sums of a key on-policy: b = 0 … 8
WEIGHTED = (ORDER + 1) ** 2  # sums of a key off-policy: b = 0 … 2a for each a
CENTRE = 4  # column of c in a key
FIRST_ROOM = 10  # a new table has room for 2¹⁰ keys
TOLERANCE = 0.02  # that the mean may be off 1, as by rounded propensities
MISSING = 0.1  # share of the target's actions without which there is no answer
ALPHA = 1e-5  # probability of a false alarm in a log
UNSEEN = 10.0  # ratios up to this one, or twice the largest, may exist although none was seen
LARGEST = 1e299  # of what is taken for a ratio
BETS = 0.9 * 0.5 ** np.arange(12)  # a


class Sums:
    """Sums Σ ρᵃ(r − c)ᵇ for each (state, next state, γ′, γ′λ′) of a log.

    >>> sums = Sums()
    >>> sums.add([0, 0, 1], [1, 1, 0], [1.0, 3.0, 2.0], gamma=0.9, lam=1.0)
    >>> sums.state.tolist(), sums.next_state.tolist(), sums.moment(1, 0).tolist()
    ([0, 1], [1, 0], [2.0, 1.0])
    """

    def __init__(self, keys: Any = (), sums: Any = ()) -> None:
        """Sums as :meth:`arrays` gives them; by default there are none."""
        if not len(keys):
            keys, sums = np.zeros((0, CENTRE + 1)), np.zeros((0, PLAIN))
        self._hold(keys, sums)

    def _hold(self, keys: Array, sums: Array) -> None:
        """Take over keys (s, s′, γ′, γ′λ′, c) and their sums; leave room for more."""
        room = 1 << max(FIRST_ROOM, len(keys).bit_length())
        self._keys, self._sums = np.zeros((room, CENTRE + 1)), np.zeros((room, sums.shape[1]))
        self._table = np.full(2 * room, -1, dtype=np.int64)  # the keys, at places by their hash
        self._count = 0
        self._find(*_columns(keys))
        self._sums[: len(sums)] = sums

    def add(
        self, state: ArrayLike, next_state: ArrayLike, reward: ArrayLike, *, gamma: ArrayLike,
        lam: ArrayLike, terminated: ArrayLike = False, rho: ArrayLike = 1.0,
    ) -> None:  # fmt: skip
        """Add transitions; all arguments are columns, or one number for all."""
        if not self.weighted and np.any(np.asarray(rho) != 1.0):
            self._weigh()
        ended = np.asarray(terminated)
        g, follows = np.where(ended, 0.0, gamma), np.where(ended, state, next_state)
        states = (np.asarray(x, np.int64) for x in (state, follows))
        numbers = (np.asarray(x, np.float64) for x in (g, np.multiply(g, lam), reward, rho))
        columns = map(np.ascontiguousarray, np.broadcast_arrays(*states, *numbers))
        *key, r, weight = columns
        found = self._find(*key, r)
        add_powers(found, r, weight[: r.size * self.weighted], self._keys, self._sums)

    def _find(self, *columns: NDArray[Any]) -> Integers:
        """The number of the key (s, s′, γ′, γ′λ′) of each row; a new one takes its reward as c."""
        found, first = np.zeros(columns[0].size, dtype=np.int64), 0
        while True:
            held = self._count, self._keys, self._table
            first, self._count = find_keys(*columns, first, *held, found)
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
        key = self._find(*_columns(rows))
        shift = other.centre - self._keys[key, CENTRE]
        for a in range(ORDER + 1) if self.weighted else (ORDER,):
            for b in range(2 * a + 1):
                terms = (
                    math.comb(b, k) * shift ** (b - k) * other.moment(a, k) for k in range(b + 1)
                )
                self._sums[key, self._column(a, b)] += sum(terms)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Everything as named arrays, the arguments of the class."""
        held = {"keys": self._keys, "sums": self._sums}
        return {name: x[: self._count].copy() for name, x in held.items()}


def _columns(keys: Array) -> list[NDArray[Any]]:
    """The columns of keys."""
    states, numbers = keys[:, :2].astype(np.int64).T, keys[:, 2:].T
    return [np.ascontiguousarray(column) for column in (*states, *numbers)]


@compiled
def find_keys(
    s: Any, s2: Any, g: Any, trace: Any, c: Any, first: Any, count: Any, keys: Any, table: Any,
    found: Any,
) -> Any:  # fmt: skip
    """Write the number of each row's key; stops where there is no room for a new one."""
    for t in range(first, found.size):
        word = U(s[t]) * U(0x9E3779B97F4A7C15) + U(s2[t]) * U(0xD1B54A32D192ED03)
        word = mix(word ^ U(np.int64(g[t] * 1e15)) ^ (U(np.int64(trace[t] * 1e15)) << U(1)))
        at = np.int64(word & U(table.size - 1))  # its size is a power of 2
        key = table[at]
        while key >= 0 and not (
            keys[key, 0] == s[t] and keys[key, 1] == s2[t]
            and keys[key, 2] == g[t] and keys[key, 3] == trace[t]
        ):  # fmt: skip
            at = (at + 1) & (table.size - 1)
            key = table[at]
        if key < 0:
            if count == len(keys):
                return t, count
            key = count
            count += 1
            table[at] = key
            keys[key, 0], keys[key, 1], keys[key, 2] = s[t], s2[t], g[t]
            keys[key, 3], keys[key, CENTRE] = trace[t], c[t]
        found[t] = key
    return found.size, count


@compiled
def add_powers(key: Any, reward: Any, rho: Any, keys: Any, sums: Any) -> None:
    """Add the powers of each row to the sums of its key; no ρ stands for ones."""
    least = 0 if rho.size else ORDER
    for t in range(key.size):
        k = key[t]
        x, weight = reward[t] - keys[k, CENTRE], 1.0
        for a in range(least, ORDER + 1):
            first, power = a * a - least * least, weight
            for b in range(2 * a + 1):
                sums[k, first + b] += power
                power *= x
            weight *= rho[t] if rho.size else 1.0


# ---------------------------------------------------------------------- ratios


@dataclass(frozen=True)
class RatioCheck:
    """The mean ratio of each state, and whether it can be 1."""

    rows: Array
    mean: Array  #: NaN where a state was never left
    wrong: Mask  #: not 1
    uncovered: Mask  #: so far below 1 that a tenth of what the target does is missing


def check_ratios(rows: Array, total: Array, squares: Array, largest: float) -> RatioCheck:
    """Test the mean ratios of all states, from their numbers of rows, Σρ and Σρ².

    `largest` is the largest ratio of the log.
    """
    states = max(1, int(np.count_nonzero(rows)))
    limit = math.log(3 * states * len(BETS) / ALPHA)
    doubled = max(2.0 * min(largest, LARGEST) / UNSEEN, 1.0)
    bound = UNSEEN * 2.0 ** math.ceil(math.log2(doubled))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        above, below, far_below = (
            _evidence(sign * (total - b * rows), squares - 2.0 * b * total + b * b * rows, reach)
            for sign, b, reach in (
                (1.0, 1.0 + TOLERANCE, 1.0 + TOLERANCE),
                (-1.0, 1.0 - TOLERANCE, bound - 1.0 + TOLERANCE),
                (-1.0, 1.0 - MISSING, bound - 1.0 + MISSING),
            )
        )
        mean = np.where(rows > 0, total / rows, np.nan)
    uncovered = far_below > limit
    return RatioCheck(rows, mean, uncovered | (above > limit) | (below > limit), uncovered)


def _evidence(excess: Array, squares: Array, reach: float) -> Array:
    """The largest log of a bet's gain; 0 where numbers overflow."""
    squares = np.maximum(squares, 0.0) / reach / reach
    gains = [a * excess / reach + (math.log1p(-a) + a) * squares for a in BETS]
    best: Array = np.max(gains, axis=0)
    return np.where(np.isfinite(best), best, 0.0)


def check_sums(sums: Sums, states: int, place: Any = None) -> RatioCheck | None:
    """Test the ratios in sums of transitions; None where all are 1.

    `place` are the numbers of the states of the keys, where they are not those of the log.
    """
    if not sums.weighted or not len(sums):
        return None
    place = sums.state if place is None else place
    rows, total, squares = (
        np.bincount(place, sums.moment(power, 0), minlength=states).astype(np.float64)
        for power in range(3)
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        dominant = sums.moment(4, 0) / sums.moment(3, 0)  # at most the largest, and near it
    largest = float(np.nan_to_num(dominant, nan=0.0, posinf=1e300).max())
    return check_ratios(rows, total, squares, largest)


def check_counts(counts: Counts) -> RatioCheck | None:
    """Test the ratios of a log as a whole; None where it has none."""
    if not counts.weighted:
        return None
    sums = (float(counts.weighted), counts.ratio_sum, counts.squared_ratio_sum)
    rows, total, squares = (np.array([x]) for x in sums)
    return check_ratios(rows, total, squares, counts.largest_ratio)


def ratio_warning(found: RatioCheck, labels: Sequence[Any] | None, whole: bool = False) -> str:
    """A warning that names the states whose ratios are wrong; empty where there is none."""
    if not found.wrong.any():
        return ""
    at = np.flatnonzero(found.wrong)
    at = at[np.argsort(-np.abs(np.log(np.maximum(found.mean[at], 1e-9))), kind="stable")]
    names = []
    for k in at.tolist():
        state = str(k) if labels is None or k >= len(labels) else repr(labels[k])
        where = "" if whole else f" in state {state}"
        names.append(f"{number(found.mean[k], 2)}{where} ({count(int(found.rows[k]), 'row')})")
    low = bool((found.mean[at] < 1.0).any())
    never = "actions of the target policy are never taken, or " if low else ""
    return (
        f"the mean importance ratio must be 1, and is {listed(names, most=5)}: {never}"
        "propensities are wrong; the answer is not that of the target policy"
    )
