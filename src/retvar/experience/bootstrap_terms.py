"""What λ-returns take from values on their way: weights, kept until the values are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from retvar import rules

__all__ = ["Ahead", "Value"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Value = Callable[[Array], Array]  # of rows as they were reached


class Passed(NamedTuple):
    """The latest steps of a stream: what was reached, what a return takes of it, and goes on."""

    first: int  # number of the first of them
    reached: Array  # [step, number]
    weight: Array  # ηγ(1 − λ), of the value of what was reached
    discount: Array  # ηγλ


class Ahead:
    """Points of returns: G = … + Σ w v(reached), with the rows reached and the weights w.

    Steps are held as long as a return that began before them is open.

    >>> one, zero = np.ones(2), np.zeros(2, dtype=np.int64)
    >>> ahead = Ahead()
    >>> ahead.passed(np.array([[3.0], [4.0]]), one, one / 2, one, zero, np.zeros(1, dtype=np.int64))
    >>> ahead.take(place=0, stream=0, born=0, died=1, lead=1.0)
    >>> ahead.sums(1, lambda rows: rows[:, 0])  # ½·3 + ¼·4
    array([2.5])
    """

    def __init__(self) -> None:
        self._steps: dict[int, Passed] = {}
        self._taken: dict[int, tuple[Array, Array]] = {}  # by place
        self.points = 0

    def passed(
        self,
        reached: Array,
        gamma: Array,
        lam: Array,
        eta: Array,
        stream: Integers,
        clock: Integers,
    ) -> None:
        """Take in the steps of a chunk; `clock` numbers the first of each stream."""
        weight = rules.mean_reward(np.zeros(len(eta)), gamma, lam, np.ones(len(eta)), eta)
        discount = rules.mean_discount(gamma, lam, eta)
        for each in np.unique(stream).tolist():
            new = np.flatnonzero(stream == each)
            parts = (reached[new], weight[new], discount[new])
            held = self._steps.get(each)
            if held is None:
                self._steps[each] = Passed(int(clock[each]), *parts)
            else:
                joined = (np.concatenate(pair) for pair in zip(held[1:], parts, strict=True))
                self._steps[each] = Passed(held.first, *joined)

    def take(self, place: int, stream: int, born: int, died: int, lead: float) -> None:
        """Keep the points of a return, of which a share of `lead` was left at its first step."""
        self.drop(place)
        steps = self._steps[stream]
        own = slice(born - steps.first, died - steps.first + 1)
        share = np.cumprod(np.append(lead, steps.discount[own][:-1]))
        weight, rows = share * steps.weight[own], steps.reached[own]
        if rows.shape[1] == 1:  # states come again
            states, which = np.unique(rows[:, 0], return_inverse=True)
            rows, weight = states[:, None], _sums(which, weight)
        some = weight != 0
        self._taken[place] = weight[some], rows[some]
        self.points += int(np.count_nonzero(some))

    def drop(self, place: int) -> None:
        """Forget the points of a return."""
        if place in self._taken:
            self.points -= self._taken.pop(place)[0].size

    def move(self, places: dict[int, int]) -> None:
        """Give returns new places; those that have none are forgotten."""
        for place in self._taken.keys() - places.keys():
            self.drop(place)
        self._taken = {places[old]: taken for old, taken in self._taken.items()}

    def forget(self, before: Integers) -> None:
        """Drop the steps of each stream before the one of this number."""
        for each, steps in self._steps.items():
            gone = int(before[each]) - steps.first
            if gone > 0:
                rest = (column[gone:].copy() for column in steps[1:])
                self._steps[each] = Passed(int(before[each]), *rest)

    def sums(self, places: int, value: Value) -> Array:
        """Σ w v(reached) for the return in each place."""
        if not self.points:
            return np.zeros(places)
        weight, rows = (np.concatenate(part) for part in zip(*self._taken.values(), strict=True))
        at = np.repeat(list(self._taken), [taken[0].size for taken in self._taken.values()])
        return _sums(at, weight * value(rows), places)


def _sums(at: Integers, numbers: Array, places: int = 0) -> Array:
    """Sums of the numbers for each place."""
    return np.bincount(at, numbers, minlength=places).astype(np.float64, copy=False)
