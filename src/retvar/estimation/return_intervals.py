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
EXCESS = 0.03  # share that an interval may hold beyond its level before a word says so
ROUNDING = 1e-9  # of ranks
OFF_POLICY = "returns of the target policy are not observed"


def ranks(n: Any, level: float) -> tuple[Any, Any]:
    """Ranks of the ends: of all places that may lie outside, half on each side; 0: there is none.

    >>> ranks(np.array([18, 19, 99]), 0.9)
    (array([0, 1, 5]), array([ 0, 19, 95]))
    """
    out = np.floor((n + 1) * (1.0 - level) + ROUNDING).astype(np.int64)
    return out // 2, np.where(out >= 2, n + 1 - (out - out // 2), 0)


def few_values(ordered: Array, level: float) -> str:
    """A word where numbers take so few values that the interval holds more than its level."""
    low, high = ranks(n := ordered.size, level)
    if high < 1:
        return ""
    inside = np.count_nonzero((ordered >= ordered[low - 1]) & (ordered <= ordered[high - 1]))
    if inside - (high - low + 1) <= EXCESS * (n + 1):
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

    def interval(self, states: Integers, level: float) -> list[Array]:
        """Ends between which a new return falls with this probability; NaN where they are few."""
        first, end = (np.searchsorted(self._state, states, side) for side in ("left", "right"))
        places = (np.where(rank, first + rank - 1, -1) for rank in ranks(end - first, level))
        return [self._returns[place] for place in places]

    def of(self, state: int) -> Array:
        """The returns of one state, in order."""
        return np.asarray(self._returns[:-1][self._state == state])


@dataclass(frozen=True)
class Calibration:
    """Scores of observed returns."""

    scores: Array  #: in order
    scale: float  #: smallest σ̂ that is used
    low: float = -math.inf  #: smallest and largest return, where so many were seen that hardly
    high: float = math.inf  #: any lies beyond

    @classmethod
    def of(cls, returns: Array, value: Array, std: Array) -> Calibration:
        """Scores of returns, with the estimates for where they began."""
        known = np.isfinite(value) & np.isfinite(std) & np.isfinite(returns)
        seen, error = returns[known], returns[known] - value[known]
        positive = std[known & (std > 0)]
        largest = float(np.abs(error).max(initial=0.0))  # where no σ̂ is positive
        scale = SMALLEST * float(np.median(positive)) if positive.size else largest
        scores = error / (np.maximum(std[known], scale) if scale else 1.0)
        ends = (float(seen.min()), float(seen.max())) if seen.size >= MANY else ()
        return cls(np.sort(scores), scale, *ends)

    @staticmethod
    def needed(level: float) -> int:
        """Calibration returns that an interval of this level needs."""
        return math.ceil(2 / (1.0 - level) - ROUNDING) - 1

    def interval(self, value: Array, std: Array, level: float = 0.9) -> list[Array]:
        """Ends between which a new return falls with this probability."""
        reach = np.maximum(std, self.scale)
        scores = (self.scores[rank - 1] for rank in ranks(self.scores.size, level))
        return [np.clip(value + reach * score, self.low, self.high) for score in scores]


class ReturnIntervals:
    """Where returns will fall, by the returns that were observed.

    A state with enough of its own gets their quantiles, which hold there. Elsewhere value and std
    are scaled by the scores of all returns, so that the intervals hold on average over places.
    """

    def __init__(self, estimator: Any, monitor: Any) -> None:
        self._estimator, self._off_policy = estimator, monitor.off_policy
        self.calibration, self.by_state = Calibration(np.zeros(0), 0.0), None
        if not self._off_policy and monitor.returns is not None:  # as of states that were loaded
            self.calibration, self.by_state = estimator.calibrated(monitor.returns)

    def interval(self, states: Any, level: float = 0.9) -> list[Array]:
        """Ends between which new returns fall with this probability."""
        if problem := self.missing(arguments.level("level", level)):
            raise InputError("level", f"{level:.6g}", problem)
        value, std = (self._estimator.predict(states, what) for what in ("value", "std"))
        ends = self.calibration.interval(value, std, level)
        if self.by_state is None:
            return ends
        own = self.by_state.interval(np.asarray(states, dtype=np.intp), level)
        return [np.where(np.isfinite(own[0]), *pair) for pair in zip(own, ends, strict=True)]

    def at(self, state: Any, level: float) -> tuple[tuple[float, float], str, bool]:
        """Ends for one state; a word on them; and whether they rest on its own returns."""
        if problem := self.missing(level):
            return (math.nan, math.nan), f"no interval of returns: {problem}", False
        low, high = (float(end[0]) for end in self.interval([state], level))
        own = np.zeros(0) if self.by_state is None else self.by_state.of(state)
        here = own.size >= Calibration.needed(level)
        return (low, high), few_values(own if here else self.calibration.scores, level), here

    def missing(self, level: float) -> str:
        """Why there are no intervals of this level; otherwise empty."""
        n, needed = self.calibration.scores.size, Calibration.needed(level)
        if self._off_policy:
            return OFF_POLICY
        return f"needs {needed:,} calibration returns; there are {n:,}" if n < needed else ""
