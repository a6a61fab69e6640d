"""Where the return will fall: intervals calibrated on returns that the fit has not seen.

Split conformal prediction: the estimates Ĵ and σ̂ come from one part of the episodes, the scores
(G − Ĵ)/σ̂ from returns of the other. Their quantiles, with the n + 1 correction, hold the stated
share of new returns on average over visited places, whatever the estimates' bias. A state with
enough such returns of its own needs no score: their quantiles hold in this state.

Of n returns and a new one, at most ⌊(n + 1)(1 − level)⌋ are left out, value by value from outside:
next is the side of which fewer would then be left out, until a value does not fit. The interval
has every new return that is not left out. Since the rule treats all n + 1 alike, it holds at least
as often as it says; returns that are equal are left out together or not at all, so that where they
take few values it holds more often, by less than the share of the next value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from retvar import arguments
from retvar.errors import InputError
from retvar.jit import compiled

__all__ = ["Calibration", "Held", "ReturnsByState"]

Array = NDArray[np.float64]
TINY = 1e-9  # share beyond a level, at least, in messages
SMALLEST = 1e-3  # of the median σ̂: smaller ones are raised to it, so that scores stay finite
MANY = 100  # returns from which on an interval ends where they end
CUT_OFF = 0.2  # share of returns that may be cut off by truncation before the result is doubtful
EXCESS = 0.03  # share that an interval may hold beyond its level before a word says so


class Held(NamedTuple):
    """How many of the calibration returns lie inside an interval.

    >>> Held(0.98, 0.07).note
    'returns take few values here: this interval held 98% of the calibration returns'
    >>> Held(0.94, 0.0).note
    ''
    """

    share: float  #: of the calibration returns that lie inside
    excess: float  #: share of new returns beyond the level, because returns are equal

    @property
    def note(self) -> str:
        """A word where returns take so few values that the interval holds more than its level."""
        if not self.excess > EXCESS:
            return ""
        held = f"this interval held {self.share:.0%} of the calibration returns"
        return f"returns take few values here: {held}"


@dataclass(frozen=True)
class Calibration:
    """Scores of returns that the fit has not seen, sorted.

    >>> rng = np.random.default_rng(0)
    >>> fit = Calibration.of(rng.normal(5.0, 2.0, 999), np.full(999, 5.0), np.full(999, 2.0))
    >>> low, high = fit.interval(np.array([5.0]), np.array([2.0]), level=0.9)
    >>> f"{low[0]:.1f} … {high[0]:.1f}"  # about 5 ± 1.645 × 2
    '1.9 … 8.0'
    """

    scores: Array
    scale: float  #: smallest σ̂ that is used
    cut_off: float = 0.0  #: share of the returns that truncation cut off
    low: float = -math.inf  #: smallest and largest return, where so many were seen that hardly
    high: float = math.inf  #: any lies beyond

    @classmethod
    def of(
        cls, returns: Array, value: Array, std: Array, cut: NDArray[np.bool_] | None = None
    ) -> Calibration:
        """Scores of returns, with the estimates for where they began."""
        known = np.isfinite(value) & np.isfinite(std) & np.isfinite(returns)
        positive = std[known & (std > 0)]
        error = returns[known] - value[known]
        scale = SMALLEST * float(np.median(positive)) if positive.size else _largest(error)
        least = np.maximum(std[known], scale)
        with np.errstate(divide="ignore", invalid="ignore"):
            scores = np.where(
                least > 0, error / least, np.where(error == 0, 0.0, np.sign(error) * np.inf)
            )
        share = 0.0 if cut is None or not known.any() else float(cut[known].mean())
        seen = returns[known]
        if seen.size < MANY:
            return cls(np.sort(scores), scale, share)
        return cls(np.sort(scores), scale, share, float(seen.min()), float(seen.max()))

    @property
    def doubtful(self) -> bool:
        """Whether so many returns were cut off that the interval may not hold."""
        return self.cut_off > CUT_OFF

    @property
    def note(self) -> str:
        """A word where the interval may not hold.

        >>> Calibration(np.zeros(9), 0.0, cut_off=0.5).note
        'doubtful: 50% of the calibration returns were cut off before their end'
        """
        if not self.doubtful:
            return ""
        share = f"{self.cut_off:.0%}"
        return f"doubtful: {share} of the calibration returns were cut off before their end"

    @staticmethod
    def needed(level: float, sides: int = 2) -> int:
        """Calibration returns that an interval of this level needs."""
        return math.ceil(sides / (1.0 - level) - 1e-9) - 1

    def interval(self, value: Array, std: Array, level: float = 0.9) -> tuple[Array, Array]:
        """Ends between which a new return falls with probability `level`."""
        level = arguments.level("level", level)
        n = self.scores.size
        if n < self.needed(level):
            remedy = f"needs {self.needed(level):,} calibration returns; there are {n:,}"
            raise InputError("level", f"{level:.6g}", remedy)
        first, last = self._ends(level)[:2]
        low, high = float(self.scores[first]), float(self.scores[last])
        return self._at(value, std, low), self._at(value, std, high)

    def held(self, level: float = 0.9) -> Held:
        """How many of the scores lie inside; NaN where there are too few for this level."""
        if self.scores.size < self.needed(level):
            return Held(math.nan, math.nan)
        return Held(*map(float, self._ends(level)[2:]))

    def _ends(self, level: float) -> Any:
        n = self.scores.size
        return ends_of(self.scores, _left_out(np.int64(n), level))

    def above(self, value: Array, std: Array, level: float = 0.95) -> Array:
        """The number that a new return exceeds with probability `level`."""
        level = arguments.level("level", level)
        return self._at(value, std, self.quantile(1.0 - level))

    def quantile(self, share: float) -> float:
        """The score below which (above ½: above which no more than the rest) of new scores lie."""
        n = self.scores.size
        rank = int(_rank(np.int64(n), share))
        if not 1 <= rank <= n:
            outside = max(min(share, 1.0 - share), TINY)
            needed = math.ceil(1.0 / outside - 1e-9) - 1
            raise InputError(
                "level", f"{1.0 - outside:.6g} on this side",
                f"needs {needed:,} calibration returns; there are {n:,}",
            )  # fmt: skip
        return float(self.scores[rank - 1])

    def _at(self, value: Array, std: Array, score: float) -> Array:
        found = np.asarray(value, dtype=np.float64)
        if score != 0.0:
            found = found + np.maximum(std, self.scale) * score
        return np.clip(found, self.low, self.high)


class ReturnsByState:
    """Returns that the fit has not seen, of each state: where there are enough, its own quantiles.

    >>> found = ReturnsByState(np.arange(1.0, 20.0), np.zeros(19, dtype=int))
    >>> found.quantile(np.array([0, 1]), 0.05), found.quantile(np.array([0]), 0.95)
    (array([ 1., nan]), array([19.]))
    """

    def __init__(self, returns: Array, state: NDArray[np.intp]) -> None:
        known = np.isfinite(returns)
        returns, state = returns[known], state[known]
        order = np.lexsort((returns, state))
        self._returns, self._state = np.append(returns[order], np.nan), state[order]

    def quantile(self, states: NDArray[np.intp], share: float) -> Array:
        """As that of :class:`Calibration`, of the returns themselves; NaN where they are few."""
        first, n = self._own(states)
        return self._ranked(first, n, _rank(n, share))

    def interval(self, states: NDArray[np.intp], level: float) -> tuple[Array, Array]:
        """Ends between which a new return falls with probability `level`; NaN where they are few.

        >>> returns = ReturnsByState(np.arange(1.0, 30.0), np.zeros(29, dtype=int))
        >>> returns.interval(np.array([0]), 0.9)
        (array([1.]), array([28.]))
        """
        first, n = self._own(states)
        low, high, _, _ = all_ends(self._returns, first, n, _left_out(n, level))
        return self._returns[low], self._returns[high]

    def held(self, states: NDArray[np.intp], level: float) -> tuple[Array, Array]:
        """Of each state, the two numbers of :class:`Held`; NaN where returns are few."""
        first, n = self._own(states)
        _, _, share, excess = all_ends(self._returns, first, n, _left_out(n, level))
        return share, excess

    def _own(self, states: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Where the returns of each state begin, and how many there are."""
        first, end = (np.searchsorted(self._state, states, side) for side in ("left", "right"))
        return first, end - first

    def _ranked(self, first: Any, n: Any, rank: Any) -> Array:
        known = (rank >= 1) & (rank <= n)
        return self._returns[np.where(known, first + rank - 1, self._returns.size - 1)]


def _rank(n: Any, share: float) -> Any:
    """Rank of the order statistic of n that bounds this share of new draws, from outside."""
    if share < 0.5:
        return np.floor((n + 1) * share + 1e-9).astype(np.int64)
    return np.ceil((n + 1) * share - 1e-9).astype(np.int64)


def _left_out(n: Any, level: float) -> Any:
    """How many of n returns and a new one may lie outside an interval."""
    return np.floor((n + 1) * (1.0 - level) + 1e-9).astype(np.int64)


@compiled
def _equal(x: Any, at: Any, tied: Any, k: Any) -> Any:
    """Whether return k of x, with a new one before x[at], equals that before it."""
    if k < at:
        return x[k] == x[k - 1]
    if k == at:
        return False
    return tied if k == at + 1 else x[k - 1] == x[k - 2]


@compiled
def _ties(x: Any, at: Any, step: Any) -> Any:
    """How many of x from x[at] on, in one direction, equal it."""
    found = 1
    while 0 <= at + step * found < x.size and x[at + step * found] == x[at]:
        found += 1
    return found


@compiled
def stays(x: Any, at: Any, tied: Any, out: Any) -> Any:
    """Whether a new return is not left out with at most `out` of x and itself.

    It comes before x[at]; `tied`: it equals x[at]. Equal returns of x begin at x[at].
    """
    size = x.size + 1
    low = high = 0  # left out below and above
    while True:
        below, above = 1, 1  # returns that are equal to the next one on each side
        room = out - low - high
        if room < 1:
            break
        while below <= out and low + below < size and _equal(x, at, tied, low + below):
            below += 1
        while above <= out and above < size - high and _equal(x, at, tied, size - high - above):
            above += 1
        lower = low + below < high + above
        if (below if lower else above) > room:
            break
        if lower:
            low += below
        else:
            high += above
    return low <= at < size - high


@compiled
def ends_of(x: Any, out: Any) -> Any:
    """First and last index of the interval in sorted x, the share inside, and its excess."""
    n, low = x.size, 0
    while low < n:
        if stays(x, low, False, out):  # as does all between this value and the one before
            low = max(low - 1, 0)
            break
        if stays(x, low, True, out):
            break
        low += _ties(x, low, 1)
    high = n - 1
    while high > low:
        first = high - _ties(x, high, -1) + 1
        if stays(x, high + 1, False, out):
            high = min(high + 1, n - 1)
            break
        if stays(x, first, True, out):
            break
        high = first - 1
    low = min(low, high)
    # of both ends: how many of x equal it, and how many lie beyond
    at_low = _ties(x, low, 1) + _ties(x, low, -1) - 1
    at_high = _ties(x, high, 1) + _ties(x, high, -1) - 1
    beyond = low - _ties(x, low, -1) + 1 + n - high - _ties(x, high, 1)
    # ends that are single returns leave out a place, many equal ones hardly any
    excess = (out - beyond - 1.0 / at_low - 1.0 / at_high) / (n + 1)
    return low, high, 1.0 - beyond / n, excess


@compiled
def all_ends(x: Any, first: Any, n: Any, out: Any) -> Any:
    """The ends of many samples, parts of x from `first` on; the last place of x where few."""
    low, high = np.full(n.size, x.size - 1), np.full(n.size, x.size - 1)
    share, excess = np.full(n.size, np.nan), np.full(n.size, np.nan)
    for k in range(n.size):
        if out[k] >= 2:
            part = x[first[k] : first[k] + n[k]]
            low[k], high[k], share[k], excess[k] = ends_of(part, out[k])
            low[k] += first[k]
            high[k] += first[k]
    return low, high, share, excess


def _largest(error: Array) -> float:
    """The largest error: a unit where no σ̂ is positive, so that errors are their own scores."""
    return float(np.abs(error).max(initial=0.0))
