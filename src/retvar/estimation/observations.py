"""The least-squares estimator for observations: values with features, spread from neighbours.

The fit is made at the first question. What is kept of it are its weights, and the errors of its log
by place.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from retvar.estimation.least_squares_estimator import (
    CALIBRATION,
    FIT,
    QUANTITIES,
    LeastSquaresEstimator,
    first_part,
)
from retvar.estimation.linear_values import (
    EpisodeLog,
    completed_returns,
    feature_values,
    gathered,
    linear_values,
    missing_variances,
)
from retvar.estimation.neighbours import LocalSpread, Neighbours, neighbours_of
from retvar.estimation.returns import CLOSED
from retvar.experience.moves import Moves
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.td.features import Features, from_dict
from retvar.td.learners import Learner
from retvar.td.nodes import LIMIT

__all__ = ["ObservationEstimator"]

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Chunk = dict[str, NDArray[Any]]
COLUMNS = ("state", "next_state", "reward", "gamma", "terminated", "truncated")
RETURNS = 2_000  # that calibrate at most; each needs its neighbours
REMEDY = 'least squares with features needs {}; take by="td"'


class Fit(NamedTuple):
    """What is kept of a fit."""

    features: Features
    weights: Array
    neighbours: Neighbours

    def value(self, points: Array) -> Array:
        """The value of observations."""
        return linear_values(self.features, self.weights, points)


class Unseen(NamedTuple):
    """Episodes that a fit has not seen, and some of their rows."""

    log: EpisodeLog
    rows: NDArray[np.intp]


class ObservationEstimator(LeastSquaresEstimator):
    """Value, variance and std of observations; intervals are approximate."""

    file_kind = "least_squares_features"
    computed = ("solution", "fit", "unseen", "_answers")
    state_limits = -LIMIT, LIMIT

    def __init__(self, learner: Learner, features: Features) -> None:
        super().__init__(learner)
        lam = learner.lam
        if lam is not None and not np.all(np.asarray(lam) == 1.0):
            raise InputError("lam", lam, REMEDY.format("λ = 1"))
        if self.gammas.size != 1:
            raise InputError("gamma", f"{self.gammas.size} numbers", REMEDY.format("one γ"))
        self.features = [features]
        self._added = Moves()  # transitions, as they are used

    def add(self, chunk: Chunk) -> None:
        """Add transitions, one trajectory after the other; bad ones are left out."""
        rows = self._rows(chunk)
        for name, needed in (("rho", "on-policy data"), ("lam", "λ = 1")):
            own = rows[name][~rows["terminated"]] if name == "lam" else rows.get(name, np.ones(1))
            if name in chunk and bool((own != 1.0).any()):
                raise InputError(name, "not 1", REMEDY.format(needed))
        if self._count(rows, len(chunk["reward"])):
            self._added.append({name: rows[name] for name in COLUMNS})

    def _of_part(self, part: int) -> Iterator[Chunk]:
        """The transitions of a part, with endless episodes cut where it ends."""
        state = first_part()
        for chunk in self._added.chunks():
            own, cut, _ = self._split(chunk, state)
            chunk["truncated"] = chunk["truncated"] | cut
            yield {name: column[own == part] for name, column in chunk.items()}

    # ------------------------------------------------------------------ estimates

    @cached_property
    def solution(self) -> Fit:
        """Estimates from all transitions."""
        return self._solve(EpisodeLog.of(self._added.chunks(), self.steps))

    @cached_property
    def fit(self) -> Fit:
        """Estimates from the part that return intervals are not calibrated on."""
        return self._solve(EpisodeLog.of(self._of_part(FIT)))

    def _solve(self, log: EpisodeLog) -> Fit:
        values = feature_values(log, self.features[0])
        return Fit(self.features[0], values.weights, neighbours_of(values))

    @cached_property
    def _answers(self) -> dict[str, tuple[bytes, tuple[Array, LocalSpread]]]:
        """The last question to each fit, and its answer: value and spread are asked in turn."""
        return {}

    def _answer(self, fit: str, states: Any) -> tuple[Array, LocalSpread]:
        """Values, NaN where they are far from all data, and the spread."""
        points = arguments.floats("state", states, "rows of numbers")
        if points.ndim != 2 or not np.isfinite(points).all():
            raise InputError("state", f"shape {points.shape}", "must be rows of finite numbers")
        key = points.tobytes()
        if fit not in self._answers or self._answers[fit][0] != key:
            found: Fit = getattr(self, fit)
            spread = found.neighbours.at(points)
            value = np.where(spread.far, np.nan, found.value(points))
            self._answers[fit] = key, (value, spread)
        return self._answers[fit][1]

    def spread(self, states: Any) -> LocalSpread:
        """Spread, errors, distances and notes at some observations."""
        return self._answer("solution", states)[1]

    def predict(self, states: Any, what: str = "value") -> Array:
        """Estimates for rows of observations; NaN far from all data."""
        arguments.choice("what", what, QUANTITIES)
        value, spread = self._answer("solution", states)
        return np.array(value if what in ("value", "mean") else getattr(spread, what))

    def _all_states(self) -> Any:
        raise InputError("state", None, "must be given: there is no list of all observations")

    def _ends(self, states: Any, what: str, level: float) -> tuple[Array, Array]:
        value, spread = self._answer("solution", states)
        if what == "value":
            return spread.value_interval(value, level)
        return spread.std_interval(level)

    # ------------------------------------------------------------------ return intervals

    def _fitted(self, states: Any) -> tuple[Array, Array]:
        value, spread = self._answer("fit", states)
        return value, spread.std

    @cached_property
    def unseen(self) -> Unseen | None:
        """Visits of the part that the fit has not seen, drawn at random; None if there is none.

        All visits are equally likely, so that return intervals hold on average over visited places
        and not only where episodes begin. There are as many as segments of episodes, each drawn
        from a stretch of its own.
        """
        chunks = list(self._of_part(CALIBRATION))
        if not any(len(each["reward"]) for each in chunks):
            return None
        log = EpisodeLog.of(chunks)
        count = min(RETURNS, log.segments)
        place = (np.arange(count) + np.random.default_rng(0).random(count)) / count
        return Unseen(log, (place * len(log)).astype(np.intp))

    def _calibration_returns(self) -> tuple[Array, Any]:
        if self.unseen is None:
            return np.zeros(0), np.zeros((0, self.features[0].size))
        log, rows = self.unseen
        return completed_returns(log, self.fit.value(log.end_state))[rows], log.state[rows]

    def _missing(self) -> Array:
        """What each return that calibrates lacks, as a share of the variance at its end."""
        if self.unseen is None:
            return np.zeros(0)
        log, rows = self.unseen
        return missing_variances(log, np.ones(len(log.end_state)))[rows]

    def _cut_off(self) -> Mask:
        return self._missing() > CLOSED**2

    def held_out(self) -> tuple[Array, Array, Array, Array] | None:
        """Returns that the fit has not seen: G − Ĵ, Ĵ, σ̂, and the share of σ̂² that they lack.

        One return of each segment, so that they hardly overlap. What they lack since they were cut
        off is computed as if σ̂ were the same at the end. None where there are no such returns.
        """
        if self.unseen is None:
            return None
        total, start = self._calibration_returns()
        value, std = self._fitted(start)
        _, first = np.unique(self.unseen.log.segment[self.unseen.rows], return_index=True)
        some = first[np.isfinite(value[first]) & np.isfinite(std[first])]
        return (total - value)[some], value[some], std[some], self._missing()[some]

    # ------------------------------------------------------------------ files

    def _saved(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"features": self.features[0].to_dict()}, gathered(self._added.chunks(), self.steps)

    @classmethod
    def _restore(cls, learner: Learner, header: dict[str, Any], arrays: dict[str, Any]) -> Self:
        found = cls(learner, from_dict(header["features"]))
        if arrays:
            found.add(arrays | {"lam": np.ones(header["steps"])})
        return found
