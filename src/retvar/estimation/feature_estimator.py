"""The least-squares estimator for observations: values with features, spread from neighbours.

Transitions are recorded; the fit is made at the first question after an update. It reads the record
twice. What is kept of a fit are its weights, and the errors of its log by place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from retvar import arguments
from retvar.errors import InputError
from retvar.estimation.episode_log import EpisodeLog, read_episodes, room
from retvar.estimation.feature_values import (
    Weights,
    completed_returns,
    feature_values,
    linear_values,
    missing_variances,
)
from retvar.estimation.least_squares_estimator import (
    CALIBRATION,
    FIT,
    LeastSquaresEstimator,
    read_column,
    refuse_unknown,
    row_count,
)
from retvar.estimation.monitor import CLOSED
from retvar.estimation.neighbours import LocalSpread, Neighbours, neighbours_of
from retvar.estimation.transition_record import TransitionRecord
from retvar.experience.stream import LARGEST_REWARD
from retvar.features import Features, from_dict
from retvar.learners import Learner
from retvar.online.checkpoint import check_array, write_tensors
from retvar.online.memory_layout import LIMIT, TERMINATED, TRUNCATED

__all__ = ["FeatureEstimator"]

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Chunk = dict[str, NDArray[Any]]
KIND = "least_squares_features"  # of saved files
TYPES = {
    "state": np.float64, "next_state": np.float64, "reward": np.float64, "gamma": np.float64,
    "terminated": np.bool_, "truncated": np.bool_, "stream": np.int64,
}  # fmt: skip  # of recorded columns
RETURNS = 2_000  # that calibrate at most; each needs its neighbours
ANSWERS = 8  # questions whose answers are kept
ROWS = 65_536  # that a saved file gives at a time
REMEDY = 'least squares with features needs {}; take by="td"'


class FeatureEstimator(LeastSquaresEstimator):
    """Value, variance and std of observations; intervals are approximate.

    >>> import numpy as np, retvar as rv
    >>> rng = np.random.default_rng(0)
    >>> x = rng.random((2_000, 1))
    >>> risk = FeatureEstimator(rv.Direct(alpha=0.0, gamma=0.9, lam=1.0),
    ...                         rv.features.Polynomial([0.0], [1.0], degree=2))
    >>> risk.update_many({"state": x, "next_state": x, "terminated": np.ones(2_000, bool),
    ...                   "reward": x[:, 0] + rng.normal(0.0, 0.5, 2_000)})
    >>> round(float(risk.value([0.5])), 1), round(float(risk.std([0.5])), 1)
    (0.5, 0.5)
    """

    file_kind, file_of = KIND, "least squares with features"

    def __init__(self, learner: Learner, features: Features) -> None:
        super().__init__(learner)
        lam = learner.lam
        if lam is not None and not np.all(np.asarray(lam) == 1.0):
            raise InputError("lam", lam, REMEDY.format("λ = 1"))
        if self.gammas.size != 1:
            raise InputError("gamma", f"{self.gammas.size} numbers", REMEDY.format("one γ"))
        self._features = features
        self._record = TransitionRecord()
        self._unseen = 0  # transitions that calibrate
        self._answers: dict[tuple[str, bytes], tuple[Array, LocalSpread]] = {}

    @property
    def features(self) -> list[Features]:
        """The features of an observation."""
        return [self._features]

    # ------------------------------------------------------------------ adding transitions

    def update_many(self, chunk: Chunk, on_error: str = "raise") -> None:
        """Record transitions; bad ones are refused or, with ``"skip"``, left out."""
        rows = self._rows(chunk)
        for name, needed in (("rho", "on-policy data"), ("lam", "λ = 1")):
            own = read_column({name: np.ones(1)} | chunk, name, np.float64, len(rows["reward"]))
            if bool(((own != 1.0) & (~rows["terminated"] | (name == "rho"))).any()):
                raise InputError(name, "not 1", REMEDY.format(needed))
        bad = _bad(rows)
        if bad.any():
            if on_error != "skip":
                row = int(np.argmax(bad))
                remedy = (
                    f"must hold finite numbers, states below {LIMIT:g}, rewards of at most "
                    f"{LARGEST_REWARD:g} in size, and γ in [0, 1]"
                )
                raise InputError("row", row, remedy)
            _break_episodes(rows, bad)
            rows = {name: column[~bad] for name, column in rows.items()}
        self._take(rows)
        self.rejected += int(bad.sum())

    def _rows(self, chunk: Chunk) -> Chunk:
        """The columns that are recorded, as copies."""
        n = row_count(chunk)
        chunk = {"gamma": self.gammas} | chunk
        rows: Chunk = {
            name: np.array(read_column(chunk, name, kind, n, *self._width(name)))
            for name, kind in TYPES.items()
        }
        rows["gamma"][rows["terminated"]] = 0.0
        return rows

    def _width(self, name: str) -> tuple[int, ...]:
        """The numbers of an observation; none of other columns."""
        width = getattr(self._features, "width", self._features.size)
        return (width,) if name in ("state", "next_state") else ()

    def _take(self, rows: Chunk) -> None:
        """Record good rows, and which part they belong to."""
        n = len(rows["reward"])
        if n == 0:
            return
        self._record.make_room()
        self._forget()
        self._see(rows["reward"])
        flags = TERMINATED * rows["terminated"].astype(np.int64)
        flags |= TRUNCATED * rows["truncated"].astype(np.int64)
        part, cut, _ = self._assign(rows["stream"], flags, rows["gamma"])
        self._record.append(rows | {"part": part.astype(np.int8), "cut": cut})
        self.steps += n
        self._unseen += int(np.count_nonzero(part == CALIBRATION))

    def chunks(self) -> Iterator[Chunk]:
        """The recorded transitions."""
        yield from self._record.chunks()

    # ------------------------------------------------------------------ estimates

    def _forget(self) -> None:
        super()._forget()
        self._answers.clear()
        for name in ("solution", "fit", "unseen"):
            self.__dict__.pop(name, None)

    @cached_property
    def solution(self) -> _Fit:
        """Estimates from all transitions."""
        return self._solve(self.chunks)

    @cached_property
    def fit(self) -> _Fit:
        """Estimates from the part that return intervals are not calibrated on."""
        return self._solve(lambda: _part_of(self.chunks(), FIT))

    def _solve(self, chunks: Callable[[], Iterator[Chunk]]) -> _Fit:
        if not self.steps:
            raise InputError("experience", "no transition", "there is nothing to estimate from")
        values = feature_values(_Again(chunks), self._features)
        return _Fit(self._features, values.weights, neighbours_of(values))

    def spread(self, states: Any) -> LocalSpread:
        """Spread, errors, distances and notes at some observations."""
        return self._answer("solution", states)[1]

    def _answer(self, fit: str, states: Any) -> tuple[Array, LocalSpread]:
        """Values, NaN where they are far from all data, and the spread; the last are kept."""
        points = _points(states)
        key = fit, points.tobytes()
        if key not in self._answers:
            found: _Fit = getattr(self, fit)
            spread = found.neighbours.at(points)
            value = np.where(spread.far, np.nan, found.value(points))
            while len(self._answers) >= ANSWERS:
                del self._answers[next(iter(self._answers))]
            self._answers[key] = value, spread
        return self._answers[key]

    def predict(self, states: Any, what: str = "value") -> Array:
        """Estimates for rows of observations; NaN far from all data."""
        refuse_unknown(what)
        value, spread = self._answer("solution", states)
        found = value if what in ("value", "mean") else getattr(spread, what)
        return np.array(found)

    def _all_states(self) -> Any:
        raise InputError("state", None, "must be given: there is no list of all observations")

    def _ends(self, states: Any, what: str, level: float) -> tuple[Array, Array]:
        value, spread = self._answer("solution", states)
        return (
            spread.value_interval(value, level) if what == "value" else spread.std_interval(level)
        )

    def _fitted(self, states: Any) -> tuple[Array, Array]:
        value, spread = self._answer("fit", states)
        return value, spread.std

    @cached_property
    def unseen(self) -> _Unseen | None:
        """Visits of the part that the fit has not seen, drawn at random; None if there is none.

        All visits are equally likely, so that return intervals hold on average over visited places
        and not only where episodes begin. There are as many as segments of episodes, each drawn
        from a stretch of its own.
        """
        if not self._unseen:
            return None
        log = read_episodes(_Again(lambda: _part_of(self.chunks(), CALIBRATION)))
        count = min(RETURNS, log.segments)
        place = (np.arange(count) + np.random.default_rng(0).random(count)) / count
        return _Unseen(log, (place * len(log)).astype(np.intp))

    def _calibration_returns(self) -> tuple[Array, Any]:
        if self.unseen is None:
            return np.zeros(0), np.zeros((0, self._features.size))
        log, rows = self.unseen
        return completed_returns(log, self.fit.value(log.end_state))[rows], log.state[rows]

    def _cut_off(self) -> Mask:
        if self.unseen is None:
            return np.zeros(0, dtype=bool)
        log, rows = self.unseen
        share = missing_variances(log, np.ones(len(log.end_state)))[rows]
        return np.asarray(share > CLOSED**2)

    def held_out(self) -> tuple[Array, Array, Array, Array] | None:
        """Returns that the fit has not seen: G − Ĵ, Ĵ, σ̂, and the share of σ̂² that they lack.

        One return of each segment, so that they hardly overlap. What they lack since they were cut
        off is computed as if σ̂ were the same at the end. None where there are no such returns.
        """
        if self.unseen is None:
            return None
        log, rows = self.unseen
        total, start = self._calibration_returns()
        value, std = self._fitted(start)
        missing = missing_variances(log, np.ones(len(log.end_state)))[rows]
        _, first = np.unique(log.segment[rows], return_index=True)
        some = first[np.isfinite(value[first]) & np.isfinite(std[first])]
        return (total - value)[some], value[some], std[some], missing[some]

    # ------------------------------------------------------------------ files

    def save(self, path: Any) -> None:
        """Write the recorded transitions to a file; what is loaded answers as what was saved.

        The spread at a place comes from the transitions around it, so a file has all of them.
        """
        header = self._header() | {"features": self._features.to_dict()}
        tensors: dict[str, NDArray[Any]] = {}
        done = 0
        for chunk in self.chunks():
            n = len(chunk["reward"])
            for name in TYPES:
                if not done:
                    tensors[name] = room((self.steps, *chunk[name].shape[1:]), TYPES[name])
                tensors[name][done : done + n] = chunk[name]
            done += n
        write_tensors(path, header, tensors)

    @classmethod
    def _restored(cls, header: dict[str, Any], learner: Learner, tensors: dict[str, Any]) -> Self:
        found = cls(learner, from_dict(header["features"]))
        if not header["steps"]:
            return found
        steps = len(tensors["reward"])
        for name, kind in TYPES.items():
            check_array(name, tensors[name], (steps, *found._width(name)), kind)
        for start in range(0, steps, ROWS):
            found.update_many({name: tensors[name][start : start + ROWS] for name in TYPES})
        return found

    def __repr__(self) -> str:
        return f"<least squares with features: {self.steps:,} steps, {self.rejected:,} rejected>"


class _Fit(NamedTuple):
    """What is kept of a fit."""

    features: Features
    weights: Weights
    neighbours: Neighbours

    def value(self, points: Array) -> Array:
        """The value of observations."""
        return linear_values(self.features, self.weights, points)


class _Unseen(NamedTuple):
    """Episodes that a fit has not seen, and some of their rows."""

    log: EpisodeLog
    rows: NDArray[np.intp]


class _Again(NamedTuple):
    """A source that is read by calling a function again."""

    chunks: Callable[[], Iterator[Chunk]]


def _part_of(chunks: Iterator[Chunk], part: int) -> Iterator[Chunk]:
    """The transitions of a part; an endless episode is cut where the part ends."""
    for chunk in chunks:
        own = chunk["part"] == part
        rows = {name: chunk[name][own] for name in TYPES}
        rows["truncated"] = rows["truncated"] | chunk["cut"][own]
        yield rows


def _bad(rows: Chunk) -> Mask:
    """Rows with numbers that cannot be used."""
    bad = ~(np.abs(rows["reward"]) <= LARGEST_REWARD)
    bad |= ~(np.abs(rows["state"]) <= LIMIT).all(axis=1)
    bad |= ~(np.abs(rows["next_state"]) <= LIMIT).all(axis=1) & ~rows["terminated"]
    found: Mask = bad | ~((rows["gamma"] >= 0) & (rows["gamma"] <= 1))
    return found


def _break_episodes(rows: Chunk, bad: Mask) -> None:
    """Truncate an episode at the row before a bad one."""
    order = np.argsort(rows["stream"], kind="stable")
    before, after = order[:-1], order[1:]
    same = rows["stream"][before] == rows["stream"][after]
    breaks = before[same & bad[after] & ~rows["terminated"][before]]
    rows["truncated"][breaks] = True


def _points(states: Any) -> Array:
    points = arguments.floats("state", states, "rows of numbers")
    if points.ndim != 2 or not np.isfinite(points).all():
        raise InputError("state", f"shape {points.shape}", "must be rows of finite numbers")
    return points
