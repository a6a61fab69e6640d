"""Terms of λ-returns in the values of later states, stored until these values are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from retvar import rules

__all__ = ["BootstrapTerms", "Predictor"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Predictor = Callable[[Array], Array]  # of states or observations, as rows


class Steps(NamedTuple):
    """The latest steps of a stream."""

    first: int  # number of the first of them
    reached: Array  # next states [step, number]
    weight: Array  # ηγ(1 − λ), of the value of the next state
    discount: Array  # ηγλ, of the rest of the return


class BootstrapTerms:
    """The bootstrap part Σ w v(next state) of each stored return: next states and weights w.

    Steps are stored as long as a return that began before them is open.

    >>> one, zero = np.ones(2), np.zeros(2, dtype=np.int64)
    >>> terms = BootstrapTerms()
    >>> terms.add_steps(np.array([[3.0], [4.0]]), one, one / 2, one, zero, np.zeros(1, np.int64))
    >>> terms.add_return(slot=0, stream=0, start=0, end=1, discount=1.0)
    >>> terms.sums(1, lambda rows: rows[:, 0])  # ½·3 + ¼·4
    array([2.5])
    """

    def __init__(self) -> None:
        self._steps: dict[int, Steps] = {}  # by stream
        self._terms: dict[int, tuple[Array, Array]] = {}  # weights and next states, by slot
        self.count = 0

    def add_steps(
        self,
        reached: Array,
        gamma: Array,
        lam: Array,
        eta: Array,
        stream: Integers,
        clock: Integers,
    ) -> None:
        """Store the steps of a chunk; `clock` is the number of the first step of each stream."""
        weight = rules.mean_reward(np.zeros(len(eta)), gamma, lam, np.ones(len(eta)), eta)
        discount = rules.mean_discount(gamma, lam, eta)
        for each in np.unique(stream).tolist():
            new = np.flatnonzero(stream == each)
            parts = (reached[new], weight[new], discount[new])
            old = self._steps.get(each)
            if old is None:
                self._steps[each] = Steps(int(clock[each]), *parts)
            else:
                joined = (np.concatenate(pair) for pair in zip(old[1:], parts, strict=True))
                self._steps[each] = Steps(old.first, *joined)

    def add_return(self, slot: int, stream: int, start: int, end: int, discount: float) -> None:
        """Store the terms of a return over these steps; `discount` is that of its first step."""
        self.remove(slot)
        steps = self._steps[stream]
        own = slice(start - steps.first, end - steps.first + 1)
        share = np.cumprod(np.append(discount, steps.discount[own][:-1]))
        weight, rows = share * steps.weight[own], steps.reached[own]
        if rows.shape[1] == 1:  # states recur: one term for each
            states, which = np.unique(rows[:, 0], return_inverse=True)
            rows, weight = states[:, None], _sums(which, weight)
        nonzero = weight != 0
        self._terms[slot] = weight[nonzero], rows[nonzero]
        self.count += int(np.count_nonzero(nonzero))

    def remove(self, slot: int) -> None:
        """Remove the terms of a return."""
        if slot in self._terms:
            self.count -= self._terms.pop(slot)[0].size

    def move(self, slots: dict[int, int]) -> None:
        """Move returns to new slots; those without one are removed."""
        for slot in self._terms.keys() - slots.keys():
            self.remove(slot)
        self._terms = {slots[old]: terms for old, terms in self._terms.items()}

    def merge(
        self, other: BootstrapTerms, slots: dict[int, int], number: Integers | None = None
    ) -> None:
        """Add the returns of others that have a slot; state s of theirs is ``number[s]`` here."""
        for old, slot in slots.items():
            if old in other._terms:
                weight, rows = other._terms[old]
                if number is not None:
                    rows = number[rows.astype(np.int64)].astype(np.float64)
                self.remove(slot)
                self._terms[slot] = weight, rows
                self.count += weight.size

    def remove_steps(self, before: Integers) -> None:
        """Remove the steps of each stream before the step of this number."""
        for each, steps in self._steps.items():
            count = int(before[each]) - steps.first
            if count > 0:
                rest = (column[count:].copy() for column in steps[1:])
                self._steps[each] = Steps(int(before[each]), *rest)

    def sums(self, slots: int, value: Predictor) -> Array:
        """Σ w v(next state) for the return in each slot."""
        if not self.count:
            return np.zeros(slots)
        weight, rows = (np.concatenate(part) for part in zip(*self._terms.values(), strict=True))
        at = np.repeat(list(self._terms), [terms[0].size for terms in self._terms.values()])
        return _sums(at, weight * value(rows), slots)


def _sums(at: Integers, numbers: Array, slots: int = 0) -> Array:
    """Sum of the numbers in each slot."""
    return np.bincount(at, numbers, minlength=slots).astype(np.float64, copy=False)
