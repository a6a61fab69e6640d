"""Where the return will fall: intervals calibrated on returns that the fit has not seen.

Split conformal prediction: the estimates Ĵ and σ̂ come from one part of the episodes, the scores
(G − Ĵ)/σ̂ from returns of the other. Their quantiles, with the n + 1 correction and each side apart,
hold the stated share of new returns on average over visited places, whatever the estimates' bias.
A state with enough such returns of its own needs no score: their quantiles hold in this state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar import arguments
from retvar.errors import InputError

__all__ = ["Calibration", "ReturnsByState"]

Array = NDArray[np.float64]
SMALLEST = 1e-3  # of the median σ̂: smaller ones are raised to it, so that scores stay finite
MANY = 100  # returns from which on an interval ends where they end
CUT_OFF = 0.2  # share of returns that may be cut off by truncation before the result is doubtful


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
        arguments.level("level", level)
        tail = (1.0 - level) / 2.0
        low, high = self.quantile(tail), self.quantile(1.0 - tail)
        return self._at(value, std, low), self._at(value, std, high)

    def above(self, value: Array, std: Array, level: float = 0.95) -> Array:
        """The number that a new return exceeds with probability `level`."""
        arguments.level("level", level)
        return self._at(value, std, self.quantile(1.0 - level))

    def quantile(self, share: float) -> float:
        """The score below which (above ½: above which no more than the rest) of new scores lie."""
        n = self.scores.size
        rank = int(_rank(np.int64(n), share))
        if not 1 <= rank <= n:
            outside = min(share, 1.0 - share)
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

        ⌊(n + 1)(1 − level)⌋ of the n + 1 places between returns are left out, half of them on each
        side: where their number is odd, one more above. Each side rounded apart would hold 94%
        where 90% is meant, with a few dozen returns.

        >>> returns = ReturnsByState(np.arange(1.0, 30.0), np.zeros(29, dtype=int))
        >>> returns.interval(np.array([0]), 0.9)
        (array([1.]), array([28.]))
        """
        first, n = self._own(states)
        out = np.floor((n + 1) * (1.0 - level) + 1e-9).astype(np.int64)
        enough = out >= 2
        ranks = np.where(enough, out // 2, 0), np.where(enough, n + 1 - (out - out // 2), 0)
        return self._ranked(first, n, ranks[0]), self._ranked(first, n, ranks[1])

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


def _largest(error: Array) -> float:
    """The largest error: a unit where no σ̂ is positive, so that errors are their own scores."""
    return float(np.abs(error).max(initial=0.0))
