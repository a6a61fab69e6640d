"""Compare estimates with observed returns: for all places together, and for each apart.

Returns one after the other judge the whole: they are nearly independent. Opposite errors cancel
there; so each state or region is judged as well, by returns that begin in it and do not overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from retvar import arguments
from retvar.estimation.bootstrap_terms import Predictor
from retvar.estimation.monitor import CLOSED, Monitor, row_predictor
from retvar.estimation.returns import Returns
from retvar.estimation.verdicts import (
    AGREES,
    DISAGREES,
    FEWEST,
    NOTHING,
    UNCERTAIN,
    Lack,
    Verdict,
    joint_kind,
    judge_std,
    judge_value,
    judge_without_spread,
)
from retvar.estimation.visits import Regions
from retvar.experience.stream import Experience
from retvar.format import count, number
from retvar.online import OnlineEstimator
from retvar.online.bootstrap import half_width

__all__ = ["Agreement", "PlaceVerdict", "Predictions", "ScoredReturns", "judge", "self_check"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
MOST_MISSING = 0.1  # mean discount of what compared returns lack that is not accounted for
MOST_COMPLETED = 0.9  # where too few lack so little: what they may lack at most
MOST_MISSING_VARIANCE = 0.2  # share of the variance that a return held out may lack
NO_SPREAD = 1e-6  # std, as a share of the largest value, that counts as none
ROUNDING = 2e-4  # difference, as a share of the largest value, that counts as none beside it
LEVEL = 0.9  # of the intervals from which standard errors are computed
SHOWN = 3  # places that are named
SUSPICION = {
    "state": "the labels look non-Markov, or the estimates have not converged",
    "region": "the features may not represent the value, or the observations not the state",
}
SAMPLE = 1_000  # returns that are compared where predictions are costly
CONTRADICTED = "the data's own returns contradict the estimates"
OFF_POLICY = "cannot be checked on this log: it is off-policy"
TOO_SHORT = "cannot be checked: no return was observed"


class Predictions(NamedTuple):
    """What an estimator says of rows of states or observations.

    `value_error` is the standard error of the value, `std_error` that of the logarithm of the std;
    0 where there are no intervals.
    """

    value: Predictor
    variance: Predictor
    value_error: Predictor
    std_error: Predictor

    @classmethod
    def of(cls, estimator: Any, own_data: bool = False) -> Predictions:
        """Those of an estimator; without errors for least squares on its `own_data`, with states.

        An efficient estimate and the mean of the same returns differ by less than the mean's own
        error: there is nothing to add to it (Hausman, 1978). TD learning is not efficient.
        """
        value, variance = (row_predictor(estimator, what) for what in ("value", "variance"))
        tabular = estimator.features[0].states is not None
        efficient = own_data and tabular and not isinstance(estimator, OnlineEstimator)
        if efficient or not estimator.has_intervals:
            return cls(value, variance, _nothing, _nothing)
        z = half_width(LEVEL)

        def value_error(rows: Array) -> Array:
            low, high = _ends(estimator, rows, "value")
            return np.asarray((high - low) / (2 * z))

        def std_error(rows: Array) -> Array:
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = _ends(estimator, rows, "variance")[1] / variance(rows)
                return np.asarray(np.log(ratio) / (2 * z))

        return cls(value, variance, value_error, std_error)


def _nothing(rows: Array) -> Array:
    return np.zeros(len(rows))


def _ends(estimator: Any, rows: Array, what: str) -> tuple[Array, Array]:
    states = estimator.features[0].states
    column = rows if states is None else np.minimum(rows[:, 0].astype(np.int64), states - 1)
    low, high = estimator.interval(what=what, states=column, level=LEVEL)
    return low, high


class PlaceVerdict(NamedTuple):
    """The verdicts on one state or region."""

    place: int  #: number of the state or region
    name: str
    value: Verdict
    std: Verdict

    @property
    def kind(self) -> str:
        """Both in one word."""
        return joint_kind(self.value, self.std)

    def __str__(self) -> str:
        wrong = [v for v in (self.value, self.std) if v.kind == DISAGREES]
        return f"{self.name}: " + ", ".join(f"{v.quantity} {v}" for v in wrong or self[2:])


@dataclass(frozen=True)
class Agreement:
    """Verdicts of returns on estimates; `reason` says why where there are none.

    >>> print(Agreement(None, None, reason=OFF_POLICY))
    cannot be checked on this log: it is off-policy
    """

    value: Verdict | None  #: on the value, over all places together
    std: Verdict | None  #: on the standard deviation, likewise
    places: tuple[PlaceVerdict, ...] = ()  #: states or regions with enough returns
    sparse: int = 0  #: places with too few returns
    unknown: int = 0  #: returns from where there is no estimate
    cut_off: int = 0  #: returns left out, since truncation cut too much from them
    completed: int = 0  #: compared returns that truncation cut off
    lacking: float = 0.0  #: share of each, on average, that the estimates complete, if above 10%
    kind_of_place: str = "state"
    own_data: bool = False  #: whether the estimates come from the same data
    reason: str = ""

    @property
    def kind(self) -> str:
        """One word for everything; a place that disagrees decides."""
        if self.value is None or self.std is None:
            return UNCERTAIN
        if any(place.kind == DISAGREES for place in self.places):
            return DISAGREES
        return joint_kind(self.value, self.std)

    @property
    def agrees(self) -> bool:
        """Whether value and std agree over all places, and no place disagrees."""
        return self.kind == AGREES

    @property
    def disagrees(self) -> bool:
        """Whether a verdict contradicts the estimates."""
        return self.kind == DISAGREES

    def worst(self, most: int = SHOWN) -> list[PlaceVerdict]:
        """Places that disagree, those that are furthest off first."""
        most = arguments.integer("most", most, 0)
        wrong = [place for place in self.places if place.kind == DISAGREES]
        return sorted(wrong, key=lambda p: -max(p.value.distance, p.std.distance))[:most]

    @property
    def warning(self) -> str:
        """A word where the returns contradict the estimates; empty otherwise."""
        if not self.disagrees:
            return ""
        return f"{CONTRADICTED} – {SUSPICION[self.kind_of_place]}"

    def warning_at(self, place: int) -> str:
        """A word on one state or region: what its own returns say, or else all together."""
        own = next((each for each in self.places if each.place == place), None)
        if own is None or own.kind != DISAGREES:
            return self.warning
        wrong = [v for v in (own.value, own.std) if v.kind == DISAGREES]
        return f"{CONTRADICTED} here: " + ", ".join(f"{v.quantity} {v}" for v in wrong)

    def __str__(self) -> str:
        if self.value is None or self.std is None:
            return self.reason
        if self.cut_off and not self.value.returns and not self.disagrees:
            return f"cannot be checked: too much is cut off from all {self.cut_off:,} returns"
        parts = [f"value {self.value}", f"std {self.std}"]
        if any(place.kind == DISAGREES for place in self.places):
            parts.append(self._tally())
        if self.lacking:
            parts.append(
                f"{self.lacking:.0%} of each return was cut off and is the estimate itself"
            )
        text = "; ".join(parts)
        if self.own_data and self.disagrees:
            text += f" – {SUSPICION[self.kind_of_place]}"
        return text

    def _tally(self) -> str:
        kinds = [place.kind for place in self.places]
        words = {AGREES: "agree", DISAGREES: "disagree", UNCERTAIN: "too uncertain"}
        parts = [f"{kinds.count(k):,} {word}" for k, word in words.items() if k in kinds]
        return f"of {count(len(kinds), self.kind_of_place)} {', '.join(parts)}"

    def summary(self) -> str:
        """All verdicts as text."""
        if self.value is None or self.std is None:
            return self.reason
        lines = [f"value {self.value}", f"std {self.std}"]
        if self.places:
            lines.append(f"{self._tally()} with {FEWEST} returns or more each")
        else:
            lines.append(f"no {self.kind_of_place} has {FEWEST} returns to be judged by itself")
        lines += [f"  {place}" for place in self.worst()]
        if self.unknown:
            lines.append(f"{count(self.unknown, 'return')} from where there is no estimate")
        if self.cut_off:
            lines.append(f"{count(self.cut_off, 'return')} left out: cut off by truncation")
        if self.completed:
            returns = self.value.returns
            lines.append(
                f"{self.completed:,} of the {returns:,} returns compared were cut off by "
                "truncation and completed with the estimates"
                + (f", {self.lacking:.0%} of each on average" if self.lacking else "")
            )
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """JSON data."""
        kinds = [place.kind for place in self.places]
        return {
            "verdict": self.kind,
            "value": str(self.value or self.reason),
            "std": str(self.std or self.reason),
            "returns": 0 if self.value is None else self.value.returns,
            "places": len(kinds),
            "places_agree": kinds.count(AGREES),
            "places_disagree": kinds.count(DISAGREES),
            "furthest_off": [str(place) for place in self.worst()],
        }


class ScoredReturns:
    """Returns beside what was predicted where they began.

    >>> returns = Returns(keys=1, width=1, most=10)
    >>> state, one = np.zeros((2, 1)), np.ones(2)
    >>> returns.add(np.zeros(2, dtype=int), state, state, np.array([3.0, 5.0]), one, one, one,
    ...             np.ones(2, dtype=int), np.zeros(2, dtype=int))
    >>> four, one = (lambda rows: np.full(len(rows), 4.0)), (lambda rows: np.ones(len(rows)))
    >>> scored = ScoredReturns(returns, Predictions(four, one, _nothing, _nothing))
    >>> scored.error.tolist(), scored.usable.tolist()
    ([-1.0, 1.0], [True, True])
    """

    def __init__(
        self, returns: Returns, predict: Predictions, places: Integers | None = None
    ) -> None:
        self.start, self.share = returns.start, np.minimum(returns.missing_share, 1.0)
        self.truncated = returns.missing_share > CLOSED
        self.value, self.variance = predict.value(self.start), predict.variance(self.start)
        self.observed = returns.completed(_filled(predict.value, self.value))
        self.missing = returns.missing_variance(_filled(predict.variance, self.variance))
        self.error = self.observed - self.value
        self.known = np.isfinite(self.error) & np.isfinite(self.variance)
        self.known &= np.isfinite(self.missing) & (self.variance >= 0)
        whole = np.zeros(len(self.start), dtype=np.int64)
        self.early = _early(returns, whole if places is None else places)
        self.usable = self.known & self.early
        self.scale = float(np.abs(self.value[self.known]).max(initial=0.0))
        self.varies = self.variance > (NO_SPREAD * self.scale) ** 2
        self._predict = predict

    def judge(self, own: NDArray[Any], tests: int) -> tuple[Verdict, Verdict]:
        """Verdicts on value and std by the returns `own` (indices)."""
        own = own[self.usable[own]]
        varying = own[self.varies[own]]
        if own.size and not varying.size:
            return judge_without_spread(self.error[own], ROUNDING * self.scale)
        std = np.sqrt(self.variance[varying])
        z = self.error[varying] / std
        start = self.start[varying]
        value_error = _mean(self._predict.value_error(start) / std)
        std_error = _mean(self._predict.std_error(start))
        missing, lacking = self.missing[varying] / std**2, _mean(self.share[varying])
        if lacking <= MOST_MISSING:
            lack = NOTHING
        else:  # the estimate is in both ends of these returns, with its errors
            lack, value_error = Lack(lacking, _mean(missing)), value_error * (1.0 + lacking)
        return (
            judge_value(z, value_error, tests, lack),
            judge_std(z, missing, std_error, tests, lack),
        )


def _mean(errors: Array) -> float:
    """Mean standard error, an upper bound for that of a mean; infinite where none is known."""
    known = errors[np.isfinite(errors)]
    return float(known.mean()) if known.size else (0.0 if not errors.size else np.inf)


def _filled(predict: Predictor, at_starts: Array) -> Predictor:
    """Predictions with their mean where there are none: only ends of returns are asked."""
    known = at_starts[np.isfinite(at_starts)]
    mean = float(known.mean()) if known.size else 0.0

    def filled(rows: Array) -> Array:
        found = predict(rows)
        return np.where(np.isfinite(found), found, mean)

    return filled


def _early(returns: Returns, places: Integers) -> NDArray[np.bool_]:
    """Which began so early in their episode that, in each place, little is cut off on average.

    Whether a return counts depends on when it began, not on how it went on: to leave out those that
    truncation cut off would leave out the long ones. Where too few lack little, as with missing
    rewards, which cut at any age: those that together have the most power, completed as they are
    with the estimate. If it is right their mean is still its value; if not, they show less of it.
    """
    age, share = returns.age, np.minimum(returns.missing_share, 1.0)
    early = np.zeros(age.size, dtype=bool)
    order = np.lexsort((age, places))
    for own in np.split(order, np.flatnonzero(np.diff(places[order])) + 1):
        if not own.size:
            continue
        mean = np.cumsum(share[own]) / np.arange(1, own.size + 1)
        last = np.flatnonzero(np.append(age[own][1:] != age[own][:-1], True))  # of its age
        fits = last[mean[last] <= MOST_MISSING]
        if own.size >= FEWEST and (not fits.size or fits[-1] + 1 < FEWEST):
            fits = last[mean[last] <= MOST_COMPLETED]
            power = np.sqrt(fits + 1.0) * (1.0 - mean[fits])
            fits = fits[: int(np.argmax(power)) + 1] if fits.size else fits
        early[own[: fits[-1] + 1 if fits.size else 0]] = True
    return early


def judge(
    sequence: ScoredReturns,
    placed: ScoredReturns,
    places: Integers,
    names: Callable[[int], str],
    **about: Any,
) -> Agreement:
    """Judge the whole by `sequence`, and each place by the returns of `placed` that begin there.

    `places` has the number of the place of each return of `placed`; −1 where it does not count.
    """
    groups = group(places, placed.usable & (places >= 0))
    enough = {place: own for place, own in groups.items() if own.size >= FEWEST}
    tests = 2 * len(enough)
    verdicts = tuple(
        PlaceVerdict(place, names(place), *placed.judge(own, tests))
        for place, own in enough.items()
    )
    own = np.arange(sequence.error.size)
    used = sequence.usable & sequence.varies
    value, std = sequence.judge(own, 2 if tests else 1)
    lacking = _mean(sequence.share[used])
    return Agreement(
        value, std, verdicts, len(groups) - len(enough),
        int(np.count_nonzero(~sequence.known)),
        int(np.count_nonzero(sequence.known & ~sequence.early)),
        int(np.count_nonzero(used & sequence.truncated)),
        lacking if lacking > MOST_MISSING else 0.0, **about,
    )  # fmt: skip


def group(places: Integers, used: NDArray[np.bool_]) -> dict[int, Integers]:
    """Indices of the returns that are used, by place.

    >>> group(np.array([4, 7, 4]), np.array([True, True, True]))
    {4: array([0, 2]), 7: array([1])}
    """
    at = np.flatnonzero(used)
    at = at[np.argsort(places[at], kind="stable")]
    parts = np.split(at, np.flatnonzero(np.diff(places[at])) + 1)
    return {int(places[part[0]]): part for part in parts if part.size}


def self_check(
    estimator: Any, monitor: Monitor, experience: Experience, own_data: bool = True
) -> Agreement:
    """Judge estimates by observed returns: of the data that they come from, if `own_data`."""
    if monitor.off_policy:
        return Agreement(None, None, reason=OFF_POLICY)
    returns, sequence = monitor.returns, monitor.sequence
    if returns is None or sequence is None or not sequence.count:
        return Agreement(None, None, reason=TOO_SHORT)
    predict = Predictions.of(estimator, own_data)
    visits = monitor.visits
    regions = visits if isinstance(visits, Regions) else None
    if regions is not None and not isinstance(estimator, OnlineEstimator):
        returns, sequence = returns.sample(2 * SAMPLE), sequence.sample(SAMPLE)
    places = places_of(returns.start, regions)
    placed = ScoredReturns(returns, predict, places)
    labels = experience.labels

    def name(place: int) -> str:
        if regions is None:
            return f"state {place if labels is None or place >= len(labels) else labels[place]}"
        return f"region {describe_point(placed.start[places == place].mean(axis=0))}"

    found = judge(
        ScoredReturns(sequence, predict), placed, places, name, own_data=own_data,
        kind_of_place="state" if regions is None else "region",
    )  # fmt: skip
    if not own_data:
        return found
    return _with_held_out(found, estimator, gaps=experience.counts.rejected.total() > 0)


def _with_held_out(found: Agreement, estimator: Any, gaps: bool) -> Agreement:
    """The verdicts on the whole by returns that a fit of features has not seen.

    Features may follow their own data too closely; a table cannot. Where rows were left out, which
    cuts returns at any age, all are used: those that lack little would be the short ones.
    """
    scores = getattr(estimator, "held_out", lambda: None)()
    if scores is None or scores[0].size < FEWEST:
        return found
    used = (scores[3] <= MOST_MISSING_VARIANCE) | gaps
    error, value, std, missing = (column[used] for column in scores)
    share = _mean(np.sqrt(missing))
    if gaps and share > MOST_COMPLETED:
        return found
    scale = float(np.abs(value).max(initial=0.0))
    varies = std > NO_SPREAD * scale
    if not varies.any():
        verdicts, lack = judge_without_spread(error, ROUNDING * scale), NOTHING
    else:
        z, tests = error[varies] / std[varies], 2 if found.places else 1
        lack = Lack(share, _mean(missing)) if share > MOST_MISSING and gaps else NOTHING
        verdicts = judge_value(z, 0.0, tests, lack), judge_std(z, missing[varies], 0.0, tests, lack)
    return replace(found, value=verdicts[0], std=verdicts[1], lacking=share if lack.share else 0.0)


def places_of(start: Array, regions: Regions | None) -> Integers:
    """Number of the state or region in which each return began."""
    return start[:, 0].astype(np.int64) if regions is None else regions.cells(start)


def describe_point(point: Sequence[float] | Array) -> str:
    """An observation as text.

    >>> describe_point([0.5, -1.0])
    '(0.500, -1.00)'
    """
    return f"({', '.join(number(float(x)) for x in point)})"
