"""A value that is a mixture of several families' values, and an interval that knows its errors.

No family of functions is good everywhere. The episodes are split into five folds, and each base is
fitted five times, without one of them. With the errors e = G − J of returns that the fits have not
seen, over those of the spread around:

1. weights w ≥ 0, Σw = 1, with the least mean square of e/σ: a small quadratic programme;
2. value J = Σ w J_b, the mean over the folds; its spread: neighbours, on the errors e;
3. half an interval: √[t₄² · jackknife² + z² · (disagreement² + (½ roughness)²)] with
   jackknife² = ⅘ Σ_f (J_f − J)², disagreement² = Σ_b w_b (J_b − J)², and roughness the std of the
   value among the nearest visits of the ten nearest episodes;
4. that of the spread: neighbours' own, whose lower end is lowered by what may be error of the
   value: its square by z² · (jackknife² + disagreement² + roughness²).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.spatial import cKDTree
from scipy.stats import norm
from scipy.stats import t as student

from retvar.estimation.bases import FEWEST, FOLDS, WHOLE, Base, Folds, held_out
from retvar.estimation.episodes import EpisodeLog, errors, lambda_returns, missing
from retvar.estimation.neighbours import BLOCK, NEAREST, LocalSpread, Neighbours, neighbours_of
from retvar.estimation.return_intervals import Calibration
from retvar.support.errors import ConvergenceError, InputError
from retvar.support.format import number

__all__ = ["HeldOut", "Place", "Stack"]

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Integers = NDArray[np.intp]
ROUGH = 0.5  # share of the roughness that counts
TOO_ROUGH = 0.5  # of the std
EDGE = 0.25  # of the std, from which on it counts that some end at once
SPARSE = 0.25  # of the distance that is far, from which on episodes are sparse
AT_ONCE = 6  # steps within which an episode ends at once
ROUNDS = 2  # of weights and spread
PLACES = 1_500  # where the spread is looked up for the weights
LEAST_SPREAD = 0.5  # of its median, for the weights: else places that are all but certain decide
RETURNS = 2_000  # held-out returns that calibrate at most; each needs its neighbours
FEWEST_EFFECTIVE = 5.0  # episodes around a place, off-policy
HEAVY = 1e3  # the equation Σw = 1 beside the others
NOTHING = 1e-6  # share of the largest value, below which an error is none
TINY = 1e-10
FIRM = 2.0  # standard errors by which a forecast has to be better than a constant

ROUGH_HERE = "the value changes faster here than the data can resolve: roll out (--at)"
SOON = 0.25  # of the steps that have passed, within which a visit is cut off soon
ENDS = 300  # of cut episodes, whose neighbours are asked; others take the answer of the nearest
MOST_UNSEEN = 0.5  # of the return, from which on there is no value

ENDS_AT_ONCE = "some episodes near here end at once: the interval holds theirs"
FEW_EFFECTIVE = "too few effective episodes near ({:.1f})"
FEW_EPISODES = "fewer than ten episodes: no intervals, and no spread; log more"
NEVER_SEEN = "{:.0%} of the return lies beyond where episodes were cut off, and was never seen"
LONGER = (
    "{:.0%} of the returns lies beyond cuts from which no episode near goes on: let episodes run "
    "longer"
)
ALL_CUT = "all returns are cut off early: longer episodes would help"
NOT_APART = (
    "the observations do not tell the return apart: a constant forecasts held-out returns as well"
)
HOPELESS = (
    "is off-policy with an effective sample size of {:.1f} of {:,} episodes: the policies differ "
    "too much over a horizon of 1/(1 − γ)"
)


@dataclass(frozen=True)
class Place(LocalSpread):
    """What a stack says of some places; NaN where nothing is known, and `note` says why."""

    value: Array
    jackknife: Array  #: standard error of the value, by fits without each fold
    apart: Array  #: how far the bases disagree
    rough: Array  #: how far the value varies among the nearest episodes
    ended: Array  #: [place, 2] least and largest return of near ends, to the last step; or NaN

    def value_interval(self, level: float) -> tuple[Array, Array]:
        """Value ± half an interval; it holds what near episodes did that end at once."""
        share = 0.5 + level / 2
        noise = student.ppf(share, FOLDS - 1) * self.jackknife
        bias = norm.ppf(share) * np.hypot(self.apart, ROUGH * self.rough)
        half, (least, largest) = np.hypot(noise, bias), self.ended.T
        return np.fmin(self.value - half, least), np.fmax(self.value + half, largest)

    def std_interval(self, level: float) -> tuple[Array, Array]:
        """Interval of the std; part of it may be error of the value, which its lower end lacks."""
        low, high = super().std_interval(level)
        error = np.hypot(np.hypot(self.jackknife, self.apart), self.rough)
        square = low**2 - (norm.ppf(0.5 + level / 2) * error) ** 2
        return np.sqrt(np.maximum(square, 0.0)), high


@dataclass(frozen=True)
class HeldOut:
    """Returns that the fits have not seen, hardly overlapping, beside what these say of them."""

    error: Array  #: G − J
    value: Array
    std: Array
    missing: Array  #: share of the variance that each return lacks
    total: Array  #: G, and what it lacks where it was cut off: drawn from the others
    fold: Integers

    def calibration(self, rows: Any = slice(None)) -> Calibration:
        """Scores of these returns."""
        return Calibration.of(self.total[rows], self.value[rows], self.std[rows])

    @property
    def ratio(self) -> float:
        """Root mean square of the errors over what was predicted."""
        known = (self.std > 0) & np.isfinite(self.error)
        squares = (self.error[known] / self.std[known]) ** 2 + self.missing[known]
        return float(np.sqrt(squares.mean())) if known.any() else np.nan

    def coverage(self, level: float = 0.9) -> Array:
        """Share of each fold's returns inside intervals that the other folds calibrate."""
        found = []
        for f in np.unique(self.fold):
            own, scores = self.fold == f, self.calibration(self.fold != f)
            if scores.scores.size >= Calibration.needed(level):
                low, high = scores.interval(self.value[own], self.std[own], level)
                inside = (low <= self.total[own]) & (self.total[own] <= high)
                found.append(np.mean(inside, where=np.isfinite(self.total[own] + low)))
        return np.array(found)


class Stack:
    """Bases, their weights, and the spread around the mixture of them."""

    def __init__(self, log: EpisodeLog, bases: Mapping[str, Base]) -> None:
        refuse_hopeless(log)
        folds = Folds(log)
        self.folds, self.bases = folds.count, dict[str, Base]()
        given = list(bases.items())[: None if folds.count > 1 else 1]
        for name, base in given:
            try:
                base.fit(log, folds)
            except ConvergenceError:
                if name == given[-1][0] and not self.bases:
                    raise
                continue  # the others may do without it
            if not self.bases:
                folds.learn(base)
            self.bases[name] = base
        self._log, self._along, rows = log, folds.value, folds.sample
        self._rows, self._state, self._fold = rows, log.state[rows], folds.fold[rows]
        self._segment = np.unique(log.segment[rows], return_inverse=True)[1]
        self._use, self._share = folds.whole[rows], folds.share[rows]
        last = np.flatnonzero(log.terminated | log.cut)
        self._last = last[np.searchsorted(last, rows)]  #: row of each row's episode
        points, fold = (self._state, log.end_state), (self._fold, folds.fold[log.cut])
        at_rows, at_ends = (
            np.stack([held_out(base, *x) for base in self.bases.values()])
            for x in zip(points, fold, strict=True)
        )
        self.weights = self._find_weights(at_rows, at_ends)
        self._value, ends = mixed(self.weights, at_rows), mixed(self.weights, at_ends)
        self._returns = lambda_returns(log, folds.value, ends)  #: of all rows
        self._error, beyond, self._weight = self._errors(self._value, ends, log.lam)
        self.near = neighbours_of(log, rows, self._error, beyond)

    def _errors(self, value: Array, ends: Array, lam: Any = 1.0) -> Array:
        """What :func:`errors` finds at the rows, for their values and those at the cuts."""
        along = self._along.copy()
        along[self._rows] = value
        found = np.stack(errors(self._log, along, ends, lam))[:, self._rows]
        found[0] *= np.abs(found[0]) > NOTHING * np.abs(value).max()
        return found

    def _find_weights(self, values: Array, ends: Array) -> Array:
        """Weights whose mixture forecasts held-out returns best, in units of the spread."""
        state, use, w = self._state, self._use, np.full(len(values), 1 / len(values))
        at = np.random.default_rng(0).permutation(len(state))[:PLACES]
        for _ in range(ROUNDS if len(values) > 1 else 0):
            value = mixed(w, values)
            error, beyond, _ = self._errors(value, mixed(w, ends))
            tail = self._share**2 * np.mean(error[use] ** 2)
            near = Neighbours(state, error, tail, self._segment, beyond)
            std = near.at(state[at], self._segment[at]).std
            known = std > 0
            std = np.where(known, std, np.median(std[known])) if known.any() else np.ones(len(at))
            tree = cKDTree(near.scaled(state[at]))
            local = std[tree.query(near.scaled(state[use]))[1]]
            local = np.maximum(local, LEAST_SPREAD * np.median(std))
            w = best_mixture((values - value - error)[:, use] / local)
        return w

    # ------------------------------------------------------------------ questions

    def at(self, places: Array) -> Place:
        """What is known of places [place, coordinate]."""
        blocks = range(0, max(1, len(places)), BLOCK)
        return Place.joined([self._at(places[first : first + BLOCK]) for first in blocks])

    @np.errstate(over="ignore", invalid="ignore")  # far away
    def _at(self, places: Array) -> Place:
        weights, used = self.weights[self.weights > 0], np.array([*self.bases])[self.weights > 0]
        values = np.stack([self.bases[name].predict(places) for name in used])
        by_fold = mixed(weights, values)  # of [base, fold, place]
        value = by_fold.mean(axis=0)
        noise = (self.folds - 1) / self.folds * ((by_fold - value) ** 2).sum(axis=0)
        known = {
            "value": value, "rough": 0.0 * value, "ended": np.full((len(value), 2), np.nan),
            "jackknife": np.sqrt(noise if self.folds > 1 else np.nan * noise),
            "apart": np.sqrt(mixed(weights, (values.mean(axis=1) - value) ** 2)),
        }  # fmt: skip
        if not self.near.enough:
            return Place(**vars(self.near.at(places)) | known)
        near = self.near.near(places)
        spread, visits = self.near.of(near), self.near.order[near.visits]
        rough = self._value[visits[:, :NEAREST]].std(axis=1, ddof=1)
        effective = effective_size(self._weight[visits])
        few = (effective < FEWEST_EFFECTIVE) | np.isnan(spread.variance)
        sparse = near.reach > SPARSE * self.near.far
        over = self._ends_at_once[visits]
        over[:, NEAREST:] &= sparse[:, None]  # there the next ones are hardly farther
        edge = (rough > EDGE * spread.std) | sparse  # the few that end may be those like this one
        most = 2 * over[:, :NEAREST].sum(axis=1) >= NEAREST
        at_once = over.any(axis=1) & (edge | most) & ~few
        known["ended"][at_once] = self._last_returns(visits[at_once], over[at_once])
        note = np.where(at_once & (spread.note == ""), ENDS_AT_ONCE, spread.note)
        too_rough = (rough > TOO_ROUGH * spread.std) & np.isfinite(spread.log_error)
        note = np.where(too_rough, ROUGH_HERE, note)
        note = np.where(few, [FEW_EFFECTIVE.format(x) for x in effective], note)
        beyond = self._unseen[visits[:, :NEAREST]].mean(axis=1)
        unseen = beyond > MOST_UNSEEN
        note = np.where(unseen, [NEVER_SEEN.format(x) for x in beyond], note)
        few |= unseen
        known |= {
            "value": np.where(few, np.nan, value), "rough": rough,
            "variance": np.where(few, np.nan, spread.variance),
            "note": np.where(spread.far, spread.note, note),
        }  # fmt: skip
        return Place(**vars(spread) | known)

    @cached_property
    def _ends_at_once(self) -> Mask:
        """Which rows are few steps from the end of their episode; none where most are."""
        found = self._log.terminated[self._last] & (self._last - self._rows < AT_ONCE)
        return np.asarray(found & (found.mean() <= 0.5))

    @cached_property
    def _unseen(self) -> Array:
        """Share of each row's return beyond a cut near which other episodes are cut off, too."""
        log, last = self._log, np.flatnonzero(self._log.terminated | self._log.cut)
        first = np.append(0, last[:-1] + 1)[np.searchsorted(last, self._rows)]
        left, passed = self._last - self._rows, self._rows - first
        stops = log.cut[self._last] & (left < SOON * passed)
        ends = self.near.scaled(log.end_state)
        some = np.linspace(0, len(ends) - 1, min(len(ends), ENDS)).astype(np.intp)
        if not some.size:
            return np.zeros(len(self._rows))
        near = self.near.near(log.end_state[some]).visits[:, :NEAREST]
        unseen = stops[self.near.order[near]].mean(axis=1) > 0.5
        nearest = cKDTree(ends[some]).query(ends)[1]
        return missing(log, unseen[nearest].astype(np.float64))[self._rows]

    def _last_returns(self, visits: Integers, over: Mask) -> Array:
        """Least and largest return of those visits that are over, from there to their last step."""
        steps = self._rows[visits][..., None] + np.arange(AT_ONCE)
        seen = self._returns[np.minimum(steps, self._last[visits][..., None])]
        least, largest = (np.where(over[..., None], seen, x) for x in (np.inf, -np.inf))
        return np.stack([least.min(axis=(1, 2)), largest.max(axis=(1, 2))], axis=1)

    # ------------------------------------------------------------------ held-out figures

    @cached_property
    def held_out(self) -> HeldOut:
        """Some held-out returns, each from a stretch of its own, beside what was predicted.

        All visits are equally likely, so that return intervals hold on average over visited places
        and not only where episodes begin. What a return lacks is computed as if the spread were
        the same at its end.
        """
        log, rng, segment = self._log, np.random.default_rng(0), self._segment
        count = min(RETURNS, int(segment[-1]) + 1)
        rows = ((np.arange(count) + rng.random(count)) / count * len(segment)).astype(np.intp)
        rows = rows[np.unique(segment[rows], return_index=True)[1]]
        std = self.near.at(self._state[rows], segment[rows]).std
        lacking = missing(log, np.ones(len(log.end_state)), 2, log.lam)[self._rows[rows]]
        value, error = self._value[rows], self._error[rows]
        # of all returns: those that are closed may be those of episodes that ended early
        known = std > 0
        seen = 1.0 - lacking[known].mean() if known.any() else 0.0
        drawn = (
            rng.choice(error[known] / std[known], len(rows)) / np.sqrt(seen) if seen > 0 else 0.0
        )
        total = value + error + np.sqrt(lacking) * np.nan_to_num(std) * drawn
        return HeldOut(error, value, std, lacking, total, self._fold[rows])

    @cached_property
    def explained(self) -> tuple[float, float]:
        """R² of held-out returns, and by how many standard errors it is above 0."""
        total, fold = self._returns[self._rows[self._use]], self._fold[self._use]
        sums, n = np.bincount(fold, total), np.bincount(fold)
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = ((sums.sum() - sums) / (n.sum() - n))[fold]  # of the other folds
        around, left = (total - mean) ** 2, (total - self._value[self._use]) ** 2
        if not around.sum() > (NOTHING * total).dot(NOTHING * total):
            return 0.0, 0.0
        gain = np.bincount(self._segment[self._use], around - left)
        error = float(gain.std()) * np.sqrt(len(gain))
        return 1.0 - float(left.sum() / around.sum()), float(gain.sum()) / max(error, TINY)

    def remarks(self) -> list[str]:
        """The weights, and what was measured on held-out returns."""
        if self.folds == 1:
            return [FEW_EPISODES]
        shares = zip(self.bases, self.weights, strict=True)
        parts = ", ".join(f"{name} {share:.0%}" for name, share in shares)
        found = [f"spread from neighbours in other episodes; value: {parts}"]
        if len(self._rows) < len(self._log):
            found.append(f"neighbours: {len(self._rows):,} transitions")
        if self._log.off_policy:
            return found
        (R2, firm), coverage = self.explained, self.held_out.coverage()
        words = [f"R² {R2:.2f}", f"errors {number(self.held_out.ratio)} times the spread"]
        if coverage.size:
            words.append(
                f"90% intervals hold {coverage.min():.0%} to {coverage.max():.0%} by folds"
            )
        found.append(f"held-out returns: {', '.join(words)}")
        found += [NOT_APART] if firm < FIRM else []
        unseen = float(self._unseen.mean()) if self.near.enough else 0.0
        found += [LONGER.format(unseen)] if unseen > EDGE else []
        return found + ([ALL_CUT] if not (self._share < WHOLE).any() else [])


def refuse_hopeless(log: EpisodeLog) -> None:
    """Refuse ratios of which next to no episode is left."""
    first = np.unique(log.segment, return_index=True)[1]
    weight = errors(log, np.zeros(len(log)), np.zeros(len(log.end_state)))[2]
    effective = float(effective_size(weight[first]))
    if log.off_policy and effective < FEWEST:
        raise InputError("experience", "log", HOPELESS.format(effective, len(first)))


def mixed(weights: Array, values: Array) -> Array:
    """Σ w x over the first axis."""
    return np.asarray(sum(w * x for w, x in zip(weights, values, strict=True)))


def best_mixture(errors: Array) -> Array:
    """Weights w ≥ 0, Σw = 1, with the least mean square of Σ w·error [base, row].

    >>> best_mixture(np.array([[1.0, -1.0, 1.0], [1.0, 1.0, -1.0], [9.0, 9.0, 9.0]])).round(2)
    array([0.5, 0.5, 0. ])
    """
    Q = np.array([[(a * b).mean() for a in errors] for b in errors])
    size = float(np.trace(Q)) or 1.0
    root = np.linalg.cholesky(Q / size + TINY * np.eye(len(Q))).T
    one = np.full((1, len(Q)), HEAVY)
    w = nnls(np.vstack([root, one]), np.append(np.zeros(len(Q)), HEAVY))[0]
    found: Array = w / w.sum()
    return found


def effective_size(weights: Array) -> Array:
    """(Σw)²/Σw² along the last axis."""
    squares = (weights**2).sum(axis=-1)
    return np.asarray(weights.sum(axis=-1) ** 2 / np.where(squares > 0, squares, 1.0))
