"""Compare estimates with observed returns: those of their own data, or fresh ones.

Returns one after the other judge the whole: they are nearly independent. Opposite errors cancel
there; so each state or region is judged as well, by returns that begin in it and do not overlap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from retvar.estimation.results import dataset
from retvar.estimation.returns import (
    CLOSED,
    FEWEST,
    MOST_COMPLETED,
    MOST_MISSING,
    Monitor,
    Regions,
    Returns,
    predict_rows,
)
from retvar.estimation.verdicts import (
    AGREES,
    DISAGREES,
    NOTHING,
    UNCERTAIN,
    Lack,
    Verdict,
    joint_kind,
    judge_std,
    judge_value,
    judge_without_spread,
)
from retvar.experience.action_pairs import by_action
from retvar.experience.stream import Experience
from retvar.online import OnlineEstimator
from retvar.online.bootstrap import half_width
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.support.format import count, number
from retvar.support.html import Shown, preformatted

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
Pair = tuple[Verdict, Verdict]
MOST_MISSING_VARIANCE = 0.2  # share of the variance that a return held out may lack
NO_SPREAD = 1e-6  # std, as a share of the largest value, that counts as none
ROUNDING = 2e-4  # difference, as a share of the largest value, that counts as none beside it
LEVEL = 0.9  # of the intervals from which standard errors are computed
SHOWN = 3  # places that are named
SUSPICION = {
    "state": "the labels look non-Markov, or the estimates have not converged",
    "region": "the features may not represent the value, or the observations not the state",
}
CONTRADICTED = "the data's own returns contradict the estimates"
OFF_POLICY = "cannot be checked on this log: it is off-policy"
TOO_SHORT = "cannot be checked: no return was observed"
NO_ESTIMATE = "no estimate"
UNSURE = "too uncertain"


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

    @property
    def words(self) -> str:
        """What is wrong, or else both verdicts."""
        wrong = [v for v in (self.value, self.std) if v.kind == DISAGREES]
        return ", ".join(f"{v.quantity} {v}" for v in wrong or (self.value, self.std))


@dataclass(frozen=True)
class Check(Shown):
    """Estimates compared with returns: verdicts on the whole, and on each state or region.

    >>> z = np.random.default_rng(0).normal(0.0, 1.5, 1_000)
    >>> found = Check(judge_value(z), judge_std(z))
    >>> print(found.summary())
    value agrees (a difference of 0.16 std would have been seen)
    std disagrees by a factor of 1.47 [1.40, 1.55]
    no state has 100 returns to be judged by itself
    >>> found.agrees, found.disagrees
    (False, True)
    """

    value: Verdict | None  #: on the value, over all places together
    std: Verdict | None  #: on the standard deviation, likewise
    places: tuple[PlaceVerdict, ...] = ()  #: states or regions with enough returns
    unknown: int = 0  #: returns from where there is no estimate
    cut_off: int = 0  #: returns left out, since truncation cut too much from them
    completed: int = 0  #: compared returns that truncation cut off
    lacking: float = 0.0  #: share of each, on average, that the estimates complete, if above 10%
    kind_of_place: str = "state"
    own_data: bool = False  #: whether the estimates come from the same data
    reason: str = ""  #: why there are no verdicts
    #: of fresh returns: the estimates, with check_mean, check_std, check_count, check_verdict;
    #: check_value and check_predicted_std are what was predicted where these returns began
    data: Any = None

    @property
    def kind(self) -> str:
        """One word for everything; a place that disagrees decides."""
        if self.value is None or self.std is None:
            return UNCERTAIN
        return DISAGREES if self.worst(1) else joint_kind(self.value, self.std)

    @property
    def agrees(self) -> bool:
        """Whether value and std agree over all places, and no place disagrees."""
        return self.kind == AGREES

    @property
    def disagrees(self) -> bool:
        """Whether chance is an unlikely explanation of a difference."""
        return self.kind == DISAGREES

    def worst(self, most: int = SHOWN) -> list[PlaceVerdict]:
        """Places that disagree, those that are furthest off first."""
        wrong = [place for place in self.places if place.kind == DISAGREES]
        return sorted(wrong, key=lambda p: -max(p.value.distance, p.std.distance))[:most]

    @property
    def warning(self) -> str:
        """A word where the returns contradict the estimates; empty otherwise."""
        return f"{CONTRADICTED} – {SUSPICION[self.kind_of_place]}" if self.disagrees else ""

    def warning_at(self, place: int) -> str:
        """A word on one state or region: what its own returns say, or else all together."""
        own = (p for p in self.places if p.place == place and p.kind == DISAGREES)
        return next((f"{CONTRADICTED} here: {p.words}" for p in own), self.warning)

    def __str__(self) -> str:
        if self.value is None:
            return self.reason
        if self.cut_off and not self.value.returns and not self.disagrees:
            return f"cannot be checked: too much is cut off from all {self.cut_off:,} returns"
        parts = [f"value {self.value}", f"std {self.std}"]
        if self.worst(1):
            parts.append(self._tally())
        if self.lacking:
            parts.append(
                f"{self.lacking:.0%} of each return was cut off and is the estimate itself"
            )
        doubt = self.own_data and self.disagrees
        return "; ".join(parts) + (f" – {SUSPICION[self.kind_of_place]}" if doubt else "")

    @property
    def _kinds(self) -> Counter[str]:
        return Counter(place.kind for place in self.places)

    def _tally(self) -> str:
        words, kinds = {AGREES: "agree", DISAGREES: "disagree", UNCERTAIN: UNSURE}, self._kinds
        parts = [f"{kinds[kind]:,} {word}" for kind, word in words.items() if kinds[kind]]
        return f"of {count(len(self.places), self.kind_of_place)} {', '.join(parts)}"

    def summary(self) -> str:
        """All verdicts as text."""
        if self.value is None:
            return self.reason
        lines = [f"value {self.value}", f"std {self.std}"]
        if self.places:
            lines.append(f"{self._tally()} with {FEWEST} returns or more each")
        else:
            lines.append(f"no {self.kind_of_place} has {FEWEST} returns to be judged by itself")
        lines += [f"  {place.name}: {place.words}" for place in self.worst()]
        if self.unknown:
            lines.append(f"{count(self.unknown, 'return')} from where there is no estimate")
        if self.cut_off:
            lines.append(f"{count(self.cut_off, 'return')} left out: cut off by truncation")
        if self.completed:
            share = f", {self.lacking:.0%} of each on average" if self.lacking else ""
            own = f"{self.completed:,} of the {self.value.returns:,} returns compared"
            lines.append(f"{own} were cut off and completed with the estimates{share}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """JSON data."""
        return {
            "verdict": self.kind,
            "value": str(self.value or self.reason),
            "std": str(self.std or self.reason),
            "returns": 0 if self.value is None else self.value.returns,
            "places": len(self.places),
            "places_agree": self._kinds[AGREES],
            "places_disagree": self._kinds[DISAGREES],
            "furthest_off": [f"{place.name}: {place.words}" for place in self.worst()],
        }

    def _html(self) -> str:
        return preformatted(self.summary())


class ScoredReturns:
    """Returns beside what was predicted where they began, which is in `places`.

    Whether an error of the estimates counts depends on `own_data`: an efficient estimate and the
    mean of the same returns differ by less than the mean's own error, so that there is nothing to
    add to it (Hausman, 1978). Least squares with states is efficient; TD learning is not.
    """

    def __init__(
        self, returns: Returns, estimator: Any, places: Integers | None = None,
        own_data: bool = False,
    ) -> None:  # fmt: skip
        self.start, self.share = returns.start, returns.missing_share
        ask = partial(predict_rows, estimator)
        self.value, self.variance = ask("value", self.start), ask("variance", self.start)
        self.observed = returns.completed(_filled(partial(ask, "value"), self.value))
        self.missing = returns.missing_variance(_filled(partial(ask, "variance"), self.variance))
        self.error = self.observed - self.value
        self.known = np.isfinite(self.error + self.variance + self.missing) & (self.variance >= 0)
        self.places = np.zeros(len(self.start), dtype=np.int64) if places is None else places
        self.early = returns.early(self.places)
        self.usable = self.known & self.early
        self.scale = float(np.abs(self.value[self.known]).max(initial=0.0))
        self.varies = self.variance > (NO_SPREAD * self.scale) ** 2
        self._estimator, self._own_data = estimator, own_data

    @property
    def by_place(self) -> dict[int, Integers]:
        """Indices of the returns that are used, by place."""
        at = np.flatnonzero(self.usable)
        at = at[np.argsort(self.places[at], kind="stable")]
        parts = np.split(at, np.flatnonzero(np.diff(self.places[at])) + 1)
        return {int(self.places[part[0]]): part for part in parts if part.size}

    def judge(self, own: NDArray[Any], tests: int) -> Pair:
        """Verdicts on value and std by the returns `own` (indices)."""
        own = own[self.usable[own]]
        varying = own[self.varies[own]]
        if own.size and not varying.size:
            return judge_without_spread(self.error[own], ROUNDING * self.scale)
        variance, share = self.variance[varying], _mean(self.share[varying])
        z, missing = self.error[varying] / np.sqrt(variance), self.missing[varying] / variance
        return _verdicts(z, missing, share, tests, *self._errors(varying))

    def _errors(self, own: NDArray[Any]) -> tuple[float, float]:
        """Standard errors: of the value, in std, and of the logarithm of the std; 0 if unknown."""
        estimator, start, variance = self._estimator, self.start[own], self.variance[own]
        states, z = estimator.features[0].states, half_width(LEVEL)
        online = isinstance(estimator, OnlineEstimator)
        if not estimator.has_intervals or (self._own_data and states is not None and not online):
            return 0.0, 0.0
        at = start if states is None else np.minimum(start[:, 0].astype(np.int64), states - 1)
        low, high = estimator.interval(what="value", states=at, level=LEVEL)
        _, most = estimator.interval(what="variance", states=at, level=LEVEL)
        with np.errstate(divide="ignore", invalid="ignore"):
            relative = np.log(most / variance) / (2 * z)
        return _mean((high - low) / (2 * z) / np.sqrt(variance)), _mean(relative)


def _verdicts(
    z: Array, missing: Array, share: float, tests: int, value_error: float = 0.0,
    std_error: float = 0.0,
) -> Pair:  # fmt: skip
    """Verdicts on value and std by scores of returns, of which so much is missing."""
    lack = NOTHING
    if share > MOST_MISSING:  # the estimate is in both ends of these returns, with its errors
        lack, value_error = Lack(share, _mean(missing)), value_error * (1.0 + share)
    return judge_value(z, value_error, tests, lack), judge_std(z, missing, std_error, tests, lack)


def _mean(errors: Array) -> float:
    """Mean standard error, an upper bound for that of a mean; infinite where none is known."""
    known = errors[np.isfinite(errors)]
    return float(known.mean()) if known.size else (0.0 if not errors.size else np.inf)


def _filled(predict: Callable[[Array], Array], at_starts: Array) -> Callable[[Array], Array]:
    """Predictions with their mean where there are none: only ends of returns are asked."""
    known = at_starts[np.isfinite(at_starts)]
    mean = float(known.mean()) if known.size else 0.0
    return lambda rows: np.nan_to_num(predict(rows), nan=mean, posinf=mean, neginf=mean)


def judge(
    sequence: ScoredReturns, placed: ScoredReturns, names: Callable[[int], str] = str, **about: Any
) -> Check:
    """Judge the whole by `sequence`, and each place by the returns of `placed` that begin there.

    All verdicts together are wrong seldom (Holm, 1979): what disagrees among all tests is set
    aside, and the rest is judged as so many fewer.
    """
    enough = {p: own for p, own in placed.by_place.items() if own.size >= FEWEST}
    whole, used = np.arange(sequence.error.size), sequence.usable & sequence.varies
    tests, rejected, found = 2 * (len(enough) + 1), -1, list[Pair]()
    while (now := sum(v.kind == DISAGREES for pair in found for v in pair)) > rejected:
        rejected, left = now, max(1, tests - now)
        found = [sequence.judge(whole, left), *(placed.judge(x, left) for x in enough.values())]
    (value, std), *others = found
    judged = (PlaceVerdict(p, names(p), *pair) for p, pair in zip(enough, others, strict=True))
    lacking, known = _mean(sequence.share[used]), sequence.known
    return Check(
        value, std, tuple(judged), unknown=int((~known).sum()),
        cut_off=int((known & ~sequence.early).sum()),
        completed=int((used & (sequence.share > CLOSED)).sum()),
        lacking=lacking if lacking > MOST_MISSING else 0.0, **about,
    )  # fmt: skip


def self_check(found: Any) -> Check:
    """Judge an estimate by the returns of the data that it comes from."""
    estimator, monitor, experience = found.estimator, found.monitor, found.experience
    if monitor.off_policy:
        return Check(None, None, reason=OFF_POLICY)
    if monitor.sequence is None or not monitor.sequence.count:
        return Check(None, None, reason=TOO_SHORT)
    verdicts = _judged(estimator, monitor, experience.labels, own_data=True)[0]
    return _with_held_out(verdicts, estimator, experience.counts.rejected.total() > 0)


def _judged(
    estimator: Any, monitor: Any, labels: Any, own_data: bool
) -> tuple[Check, ScoredReturns]:
    """The verdicts, and the returns by place that they rest on."""
    start, visits = monitor.returns.start, monitor.visits
    places, kind = visits.cells(start), "region" if isinstance(visits, Regions) else "state"

    def name(place: int) -> str:
        if kind == "state":
            return f"state {place if labels is None or place >= len(labels) else labels[place]}"
        centre = start[places == place].mean(axis=0)
        return f"region ({', '.join(number(float(x)) for x in centre)})"

    scored = ScoredReturns(monitor.returns, estimator, places, own_data)
    whole = ScoredReturns(monitor.sequence, estimator, own_data=own_data)
    return judge(whole, scored, name, own_data=own_data, kind_of_place=kind), scored


def _with_held_out(found: Check, estimator: Any, gaps: bool) -> Check:
    """The verdicts on the whole by returns that a fit of features has not seen.

    Features may follow their own data too closely; a table cannot. Where rows were left out, which
    cuts returns at any age, all are used: those that lack little would be the short ones.
    """
    scores = getattr(estimator, "held_out", lambda: None)()
    if scores is None or scores[0].size < FEWEST:
        return found
    used = (scores[3] <= MOST_MISSING_VARIANCE) | gaps
    error, value, std, missing = (column[used] for column in scores)
    share = _mean(np.sqrt(missing)) if gaps else 0.0
    if share > MOST_COMPLETED:
        return found
    scale = float(np.abs(value).max(initial=0.0))
    varies = std > NO_SPREAD * scale
    if not varies.any():
        value_verdict, std_verdict = judge_without_spread(error, ROUNDING * scale)
        return replace(found, value=value_verdict, std=std_verdict, lacking=0.0)
    z, tests = error[varies] / std[varies], 2 * (len(found.places) + 1)
    pair = _verdicts(z, missing[varies], share, tests)
    lacking = share if share > MOST_MISSING else 0.0
    return replace(found, value=pair[0], std=pair[1], lacking=lacking)


def check(found: Any, fresh: Experience) -> Check:
    """Compare estimates with returns from fresh experience of the same policy.

    `found` is an estimate, or an estimator by itself, such as a :class:`retvar.deep.Critic`.

    The verdict on value and std is "agrees", where a std that is off by a quarter, or a value that
    is off by a quarter of a std, would have been seen; "disagrees", where chance is an unlikely
    explanation (correct estimates: one of 200 cases, all verdicts together); or "too uncertain to
    tell". Each state or region with 100 returns is judged as well, since opposite errors cancel.

    >>> import retvar as rv
    >>> cliff = lambda k: rv.experience.from_gymnasium("CliffWalking-v1", steps=30_000, seed=k)
    >>> found = rv.estimate(cliff(1), gamma=0.9)
    >>> print(rv.check(found, cliff(2)).value)
    agrees (a difference of 0.07 std would have been seen)
    """
    arguments.instance("fresh", fresh, Experience, "experience: rv.experience.from_…")
    alone = not hasattr(found, "monitor")
    estimator = found if alone else found.estimator
    if not all(hasattr(estimator, name) for name in ("predict", "gammas", "description")):
        remedy = "must be an estimate, rv.estimate(…), or a critic, rv.deep.fit(…)"
        raise InputError("found", type(found).__name__, remedy)
    monitor = Monitor() if alone else Monitor(fresh=True, like=found.monitor.visits)
    if not alone:
        fresh, before = by_action(fresh) if found.experience.pairs else fresh, found.experience
        if fresh.width != before.width:
            raise InputError("fresh", fresh.name, "must be experience of the same kind")
        if fresh.labels is not None and fresh.states is None:
            fresh.labels[:] = before.labels or ()  # same numbers for the same labels
    monitor.read(estimator, fresh.moves())
    if monitor.off_policy:
        remedy = "is off-policy: its returns are not those of the target policy"
        raise InputError("fresh", fresh.name, remedy)
    if monitor.sequence is None:
        raise InputError("fresh", fresh.name, "has no usable transition")
    about = SimpleNamespace(experience=fresh, estimator=estimator, monitor=monitor)
    data = dataset(about) if alone else found.data
    labels = data["label"].values if "label" in data else None
    verdicts, scored = _judged(estimator, monitor, labels, own_data=False)
    by_state = "state" in data.dims
    places = data["state"].values if by_state else monitor.visits.cells(data["centre"].values)
    return replace(verdicts, data=data.assign(_by_place(places.tolist(), verdicts, scored)))


def _by_place(places: list[int], verdicts: Check, scored: ScoredReturns) -> dict[str, Any]:
    """Columns of a dataset: what was observed and predicted in each place."""
    groups, kinds = scored.by_place, {p.place: p.kind for p in verdicts.places}
    unknown, rows = set(scored.places[~scored.known].tolist()), []
    for place in places:
        own = groups.get(place, np.zeros(0, dtype=np.int64))
        numbers = [np.nan] * 4
        if own.size > 1:
            mean, value = scored.observed[own].mean(), scored.value[own].mean()
            spread = scored.error[own].var(ddof=1) + scored.missing[own].mean()
            numbers = [mean, np.sqrt(spread), value, np.sqrt(scored.variance[own].mean())]
        word = UNCERTAIN if own.size else NO_ESTIMATE if place in unknown else ""
        rows.append((*numbers, own.size, kinds.get(place, word)))
    names = ("mean", "std", "value", "predicted_std", "count", "verdict")
    return {
        f"check_{name}": (verdicts.kind_of_place, np.array(column))
        for name, column in zip(names, zip(*rows, strict=True), strict=True)
    }
