"""Whether importance ratios are right: where the behaviour covers the target, their mean is 1.

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
from numpy.typing import NDArray

from retvar.estimation.sums import Sums
from retvar.experience.stream import Counts
from retvar.support.format import count, listed, number

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
TOLERANCE = 0.02  # that the mean may be off 1, as by rounded propensities
MISSING = 0.1  # share of the target's actions without which there is no answer
ALPHA = 1e-5  # probability of a false alarm in a log
UNSEEN = 10.0  # ratios up to this one, or twice the largest, may exist although none was seen
LARGEST = 1e299  # of what is taken for a ratio
BETS = 0.9 * 0.5 ** np.arange(12)  # a


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
