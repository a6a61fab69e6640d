"""Where the return will fall: intervals calibrated on observed returns.

The quantiles of scores (G − Ĵ)/σ̂, with the n + 1 correction of conformal prediction, hold the
stated share of new returns on average over visited places, whatever the estimates' bias, as long as
these returns had little influence on the estimates for where they began. A state with enough
returns of its own needs no score: their quantiles hold in this state. Where returns are equal an
interval holds more of them than it says; a note tells how many.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.support import arguments
from retvar.support.errors import InputError

Array = NDArray[np.float64]
Integers = NDArray[np.intp]
SMALLEST = 1e-3  # of the median σ̂: smaller ones are raised to it, so that scores stay finite
MANY = 100  # returns from which on an interval ends where they end
CUT_OFF = 0.2  # share of returns that may be cut off by truncation before the result is doubtful
EXCESS = 0.03  # share that an interval may hold beyond its level before a word says so
ROUNDING = 1e-9  # of ranks


def ranks(n: Any, level: float, above: bool = False) -> list[Any]:
    """Ranks of the ends: of all places that may lie outside, half on each side; 0: there is none.

    With `above`, the rank of a number alone: a lower end, or an upper one for a small level.

    >>> ranks(np.array([18, 19, 99]), 0.9)
    [array([0, 1, 5]), array([ 0, 19, 95])]
    """
    share = (n + 1) * (1.0 - level)
    out = np.floor(share + ROUNDING).astype(np.int64)
    if above and level <= 0.5:
        out = np.ceil(share - ROUNDING).astype(np.int64)
    if above:
        return [np.where(out <= n, out, 0)]
    return [out // 2, np.where(out >= 2, n + 1 - (out - out // 2), 0)]


def few_values(ordered: Array, level: float) -> str:
    """A word where numbers take so few values that the interval holds more than its level."""
    low, high = ranks(n := ordered.size, level)
    if high < 1:
        return ""
    ends = ordered[low - 1], ordered[high - 1]
    inside = np.count_nonzero((ordered >= ends[0]) & (ordered <= ends[1]))
    # ends that are single returns leave out a place, many equal ones hardly any
    single = sum(1.0 / np.count_nonzero(ordered == end) for end in ends)
    if inside + 1 - single - (high - low) <= EXCESS * (n + 1):
        return ""
    held = f"this interval held {inside / n:.0%} of the calibration returns"
    return f"returns take few values here: {held}"


class ReturnsByState:
    """Returns of each state: where there are enough, its own quantiles.

    >>> found = ReturnsByState(np.arange(1.0, 20.0), np.zeros(19, dtype=int))
    >>> found.interval(np.array([0, 1]), 0.9)
    [array([ 1., nan]), array([19., nan])]
    """

    def __init__(self, returns: Array, state: Integers) -> None:
        known = np.isfinite(returns)
        returns, state = returns[known], state[known]
        order = np.lexsort((returns, state))
        self._returns, self._state = np.append(returns[order], np.nan), state[order]

    def interval(self, states: Integers, level: float, above: bool = False) -> list[Array]:
        """Ends between which a new return falls with this probability; NaN where they are few.

        With `above`, the number alone that it exceeds.
        """
        first, end = (np.searchsorted(self._state, states, side) for side in ("left", "right"))
        places = (np.where(rank, first + rank - 1, -1) for rank in ranks(end - first, level, above))
        return [self._returns[place] for place in places]

    def of(self, state: int) -> Array:
        """The returns of one state, in order."""
        return np.asarray(self._returns[:-1][self._state == state])


@dataclass(frozen=True)
class Calibration:
    """Scores of observed returns."""

    scores: Array  #: in order
    scale: float  #: smallest σ̂ that is used
    cut_off: float = 0.0  #: share of the returns that truncation cut off
    low: float = -math.inf  #: smallest and largest return, where so many were seen that hardly
    high: float = math.inf  #: any lies beyond

    @classmethod
    def of(cls, returns: Array, value: Array, std: Array, cut: Any = None) -> Calibration:
        """Scores of returns, with the estimates for where they began."""
        known = np.isfinite(value) & np.isfinite(std) & np.isfinite(returns)
        seen, error = returns[known], returns[known] - value[known]
        positive = std[known & (std > 0)]
        largest = float(np.abs(error).max(initial=0.0))  # where no σ̂ is positive
        scale = SMALLEST * float(np.median(positive)) if positive.size else largest
        scores = error / (np.maximum(std[known], scale) if scale else 1.0)
        share = 0.0 if cut is None or not known.any() else float(cut[known].mean())
        ends = (float(seen.min()), float(seen.max())) if seen.size >= MANY else ()
        return cls(np.sort(scores), scale, share, *ends)

    @property
    def note(self) -> str:
        """A word where so many returns were cut off that the interval may not hold."""
        share = f"{self.cut_off:.0%} of the calibration returns"
        return f"doubtful: {share} were cut off before their end" if self.cut_off > CUT_OFF else ""

    @staticmethod
    def needed(level: float, sides: int = 2) -> int:
        """Calibration returns that an interval of this level needs."""
        return math.ceil(sides / (1.0 - level) - ROUNDING) - 1

    def interval(
        self, value: Array, std: Array, level: float = 0.9, above: bool = False
    ) -> list[Array]:
        """Ends between which a new return falls with this probability; `above`: the lower one."""
        n, needed = self.scores.size, self.needed(arguments.level("level", level), 2 - above)
        if n < needed:
            remedy = f"needs {needed:,} calibration returns; there are {n:,}"
            raise InputError("level", f"{level:.6g}", remedy)
        centre, reach = np.asarray(value, dtype=np.float64), np.maximum(std, self.scale)
        scores = (np.append(self.scores, np.nan)[rank - 1] for rank in ranks(n, level, above))
        return [np.clip(centre + reach * score, self.low, self.high) for score in scores]
