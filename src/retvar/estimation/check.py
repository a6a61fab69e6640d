"""Compare estimates with observed returns: those of their own data, or fresh ones.

Returns one after the other judge the whole: they are nearly independent. Opposite errors cancel
there; so each state or region is judged as well, by returns that begin in it and do not overlap.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from retvar.estimation.returns import FEWEST, Monitor, Returns, predict_rows
from retvar.estimation.verdicts import (
    AGREES,
    DISAGREES,
    UNCERTAIN,
    Groups,
    Verdict,
    joint_kind,
    judge_std,
    judge_value,
    judge_without_spread,
)
from retvar.experience.action_pairs import by_action
from retvar.experience.stream import Experience
from retvar.online import OnlineEstimator
from retvar.online.memory import half_width
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.support.format import count, number
from retvar.support.html import Shown, preformatted

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Table = NDArray[Any]  # a row for each return
COLUMNS: list[tuple[str, type]] = [
    ("place", int), ("known", bool), ("error", float), ("scale", float), ("value", float),
    ("variance", float), ("observed", float), ("missing", float), ("share", float),
    ("value_error", float), ("std_error", float),
]  # fmt: skip  # `missing` is the variance that a return lacks, `share` the discount of that
Pair = tuple[Verdict, Verdict]
NO_SPREAD = 1e-6  # std, as a share of the largest value, that counts as none
ROUNDING = 2e-4  # difference, as a share of the largest value, that counts as none beside it
LACKING = 0.1  # mean share that is cut off from returns, from which on it is told
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
SHORT = {AGREES: "agree", DISAGREES: "disagree", UNCERTAIN: "too uncertain"}


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

    >>> z, one = np.random.default_rng(0).normal(0.0, 1.5, 1_000), Groups(np.zeros(1_000, int), 1)
    >>> found = Check(*judge_value(one, z), *judge_std(one, z))
    >>> print(found.summary())
    value agrees (a difference of 0.16 std would have been seen)
    std disagrees by a factor of 1.47 [1.40, 1.55]
    >>> found.agrees, found.disagrees
    (False, True)
    """

    value: Verdict | None  #: on the value, over all places together
    std: Verdict | None  #: on the standard deviation, likewise
    places: tuple[PlaceVerdict, ...] = ()  #: states or regions with enough returns
    unknown: int = 0  #: returns from where there is no estimate
    lacking: float = 0.0  #: mean share of returns that was cut off, and is the estimate itself
    kind_of_place: str = "state"
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

    #: whether value and std agree over all places, and no place disagrees
    agrees = property(lambda self: self.kind == AGREES)
    #: whether chance is an unlikely explanation of a difference
    disagrees = property(lambda self: self.kind == DISAGREES)

    def worst(self, most: int = SHOWN) -> list[PlaceVerdict]:
        """Places that disagree, those that are furthest off first."""
        wrong = [place for place in self.places if place.kind == DISAGREES]
        return sorted(wrong, key=lambda p: -max(p.value.distance, p.std.distance))[:most]

    @property
    def warning(self) -> str:
        """A word where the returns contradict the estimates; empty otherwise."""
        return f"{CONTRADICTED} – {SUSPICION[self.kind_of_place]}" if self.disagrees else ""

    _kinds = property(lambda self: Counter(place.kind for place in self.places))

    def _lines(self, whole: bool) -> list[str]:
        """The verdicts as text; of places all that is known, or only that some disagree."""
        if self.value is None:
            return [self.reason]
        lines = [f"{what} {self._words(what)}" for what in ("value", "std")]
        wrong = self.worst()
        if self.places and (wrong or whole):
            parts = (f"{n:,} {SHORT[kind]}" for kind, n in sorted(self._kinds.items()))
            lines.append(f"of {count(len(self.places), self.kind_of_place)} {', '.join(parts)}")
        if self.lacking > LACKING:
            lines.append(
                f"{self.lacking:.0%} of each return was cut off and is the estimate itself"
            )
        return lines + [f"  {place.name}: {place.words}" for place in wrong if whole]

    def _words(self, what: str) -> str:
        """The verdict on value or std; of observations it agrees on the whole, not everywhere."""
        verdict = getattr(self, what)
        agrees = verdict.kind == AGREES and self.kind_of_place == "region"
        return str(verdict).replace(AGREES, f"{AGREES} on the whole") if agrees else str(verdict)

    def __str__(self) -> str:
        return "; ".join(self._lines(whole=False))

    def summary(self) -> str:
        """All verdicts as text."""
        return "\n".join(self._lines(whole=True))

    def to_dict(self) -> dict[str, Any]:
        """JSON data."""
        return {
            "verdict": self.kind,
            "value": self._words("value") if self.value else self.reason,
            "std": self._words("std") if self.std else self.reason,
            "returns": 0 if self.value is None else self.value.returns,
            "places": len(self.places),
            "places_agree": self._kinds[AGREES],
            "places_disagree": self._kinds[DISAGREES],
            "furthest_off": [f"{place.name}: {place.words}" for place in self.worst()],
        }

    def _html(self) -> str:
        return preformatted(self.summary())


def score(
    returns: Returns, estimator: Any, places: Integers | int = 0, own_data: bool = False
) -> Table:
    """Returns beside what an estimator says of where they began, which is in `places`."""
    start, ask = returns.start, partial(predict_rows, estimator)
    value, variance = ask("value", start), ask("variance", start)

    def filled(what: str, known: Array) -> Callable[[Array], Array]:
        """Predictions, and their mean where there are none: only ends of returns are asked."""
        seen = known[np.isfinite(known)]
        mean = float(seen.mean()) if seen.size else 0.0
        return lambda rows: np.nan_to_num(ask(what, rows), nan=mean, posinf=mean, neginf=mean)

    return _table(
        places, value, variance, returns.completed(filled("value", value)),
        returns.missing_variance(filled("variance", variance)), returns.missing_share,
        *_errors(estimator, start, variance, own_data),
    )  # fmt: skip


def _table(place: Any, value: Array, variance: Array, observed: Array, *more: Any) -> Table:
    """A table of returns; one is known where all that is compared is."""
    table, error = np.empty(value.size, COLUMNS), observed - value
    known = np.isfinite(error + variance + more[0]) & (variance >= 0)
    scale = np.abs(value[known]).max(initial=0.0)
    columns = place, known, error, scale, value, variance, observed, *more
    for (name, _), column in zip(COLUMNS, columns, strict=True):
        table[name] = column
    return table


def _errors(estimator: Any, start: Array, variance: Array, own_data: bool) -> list[Any]:
    """Standard errors: of the value, in std, and of the logarithm of the std; 0 if unknown.

    An efficient estimate and the mean of its own data's returns differ by less than the mean's own
    error, so that there is nothing to add to it (Hausman, 1978). Least squares with states is
    efficient; TD learning is not.
    """
    states, z = estimator.features[0].states, half_width(LEVEL)
    efficient = states is not None and not isinstance(estimator, OnlineEstimator)
    if not estimator.has_intervals or (own_data and efficient):
        return [0.0, 0.0]
    at = start if states is None else np.minimum(start[:, 0].astype(np.int64), states - 1)
    low, high = estimator.interval(what="value", states=at, level=LEVEL)
    _, most = estimator.interval(what="variance", states=at, level=LEVEL)
    with np.errstate(divide="ignore", invalid="ignore"):
        return [(high - low) / (2 * z) / np.sqrt(variance), np.log(most / variance) / (2 * z)]


def judge(whole: Table, placed: Table, names: Callable[[int], str] = str, **about: Any) -> Check:
    """Judge the whole, and each place by the returns of `placed` that begin there.

    All verdicts together are wrong seldom (Holm, 1979): what disagrees among all tests is set
    aside, and the rest is judged as so many fewer.
    """
    used, rows = whole[whole["known"]], placed[placed["known"]]
    places, size = np.unique(rows["place"], return_counts=True)
    places = places[size >= FEWEST]
    rows = rows[np.isin(rows["place"], places)]
    of = np.append(np.zeros(len(used), np.int64), 1 + np.searchsorted(places, rows["place"]))
    groups, both = Groups(of, 1 + places.size), np.concatenate([used, rows])
    rejected, found = -1, list[Pair]()
    while (now := sum(v.kind == DISAGREES for pair in found for v in pair)) > rejected:
        rejected, found = now, _verdicts(both, groups, max(1, 2 * groups.n.size - now))
    judged = (PlaceVerdict(p, names(p), *found[k]) for k, p in enumerate(places.tolist(), start=1))
    unknown, lacking = len(whole) - len(used), float(groups.known_mean(both["share"])[0])
    return Check(*found[0], tuple(judged), unknown, lacking, **about)


def _verdicts(table: Table, groups: Groups, tests: int) -> list[Pair]:
    """Verdicts on value and std by the returns of each group."""
    varies = table["variance"] > (NO_SPREAD * table["scale"]) ** 2
    own, of = table[varies], Groups(groups.of[varies], groups.n.size)
    z, missing = own["error"] / np.sqrt(own["variance"]), own["missing"] / own["variance"]
    share, *errors = (of.known_mean(own[x]) for x in ("share", "value_error", "std_error"))
    values = judge_value(of, z, missing, share, errors[0], tests)
    found = list(zip(values, judge_std(of, z, missing, errors[1], tests), strict=True))
    if (still := (of.n == 0) & (groups.n > 0)).any():
        rest, rounding = still[groups.of], ROUNDING * groups.largest(table["scale"])
        same = Groups(groups.of[rest], groups.n.size)
        pairs = zip(*judge_without_spread(same, table["error"][rest], rounding), strict=True)
        found = [b if flat else a for a, b, flat in zip(found, pairs, still, strict=True)]
    return found


def self_check(found: Any) -> Check:
    """Judge an estimate by the returns of the data that it comes from."""
    estimator, monitor = found.estimator, found.monitor
    if monitor.off_policy:
        return Check(None, None, reason=OFF_POLICY)
    if monitor.sequence is None or not monitor.sequence.count:
        return Check(None, None, reason=TOO_SHORT)
    return _judged(estimator, monitor, found.experience.labels, own_data=True)[0]


def _judged(estimator: Any, monitor: Any, labels: Any, own_data: bool) -> tuple[Check, Table]:
    """The verdicts, and the returns by place that they rest on."""
    start, visits = monitor.returns.start, monitor.visits
    places, kind = visits.cells(start), "region" if visits.regions else "state"

    def name(place: int) -> str:
        if kind == "state":
            return f"state {place if labels is None or place >= len(labels) else labels[place]}"
        centre = start[places == place].mean(axis=0)
        return f"region ({', '.join(number(float(x)) for x in centre)})"

    placed = score(monitor.returns, estimator, places, own_data)
    whole = _held_out(estimator) if own_data else None
    if whole is None:
        whole = score(monitor.sequence, estimator, own_data=own_data)
    return judge(whole, placed, name, kind_of_place=kind), placed


def _held_out(estimator: Any) -> Table | None:
    """Returns that a fit of features has not seen, where there are enough.

    Features may follow their own data too closely; a table cannot.
    """
    error, value, std, missing = getattr(estimator, "held_out", lambda: [np.zeros(0)] * 4)()
    if error.size < FEWEST:
        return None
    square = std**2
    return _table(0, value, square, value + error, missing * square, np.sqrt(missing), 0.0, 0.0)


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
    agrees (a difference of 0.08 std would have been seen)
    """
    arguments.instance("fresh", fresh, Experience, "experience: rv.experience.from_…")
    estimator = getattr(found, "estimator", found)
    if not all(hasattr(estimator, name) for name in ("predict", "features", "description")):
        remedy = "must be an estimate, rv.estimate(…), or a critic, rv.deep.fit(…)"
        raise InputError("found", type(found).__name__, remedy)
    if estimator is found:
        from retvar.estimation.estimate import Estimate  # which imports this module

        found = Estimate(fresh, estimator, Monitor(), moves=fresh.moves())
    fresh, before = by_action(fresh) if found.experience.pairs else fresh, found.experience
    if fresh.width != before.width:
        raise InputError("fresh", fresh.name, "must be experience of the same kind")
    if fresh.labels is not None and fresh.states is None:
        fresh.labels[:] = before.labels or ()  # same numbers for the same labels
    monitor = Monitor(visits=copy.deepcopy(found.monitor.visits))  # for its regions
    for chunk in fresh.moves().chunks():
        monitor.add(estimator, chunk)
    if monitor.off_policy:
        remedy = "is off-policy: its returns are not those of the target policy"
        raise InputError("fresh", fresh.name, remedy)
    if monitor.sequence is None:
        raise InputError("fresh", fresh.name, "has no usable transition")
    data = found.data
    labels = data["label"].values if "label" in data else None
    verdicts, placed = _judged(estimator, monitor, labels, own_data=False)
    by_state = "state" in data.dims
    places = data["state"].values if by_state else monitor.visits.cells(data["centre"].values)
    return replace(verdicts, data=data.assign(_by_place(places, verdicts, placed)))


def _by_place(places: Integers, verdicts: Check, placed: Table) -> dict[str, Any]:
    """Columns of a dataset: what was observed and predicted in each place."""
    unknown = np.isin(places, placed["place"][~placed["known"]])
    rows = placed[placed["known"] & np.isin(placed["place"], places)]
    order = np.argsort(places)
    groups = Groups(order[np.searchsorted(places, rows["place"], sorter=order)], places.size)

    def mean(name: str) -> Array:
        return np.where(groups.n > 1, groups.mean(rows[name]), np.nan)

    kinds = {p.place: p.kind for p in verdicts.places}
    words = np.where(groups.n, UNCERTAIN, np.where(unknown, NO_ESTIMATE, ""))
    found = {
        "mean": mean("observed"), "value": mean("value"),
        "std": np.sqrt(groups.variance(rows["error"]) + mean("missing")),
        "predicted_std": np.sqrt(mean("variance")), "count": groups.n,
        "verdict": [kinds.get(*x) for x in zip(places.tolist(), words.tolist(), strict=True)],
    }  # fmt: skip
    return {f"check_{x}": (verdicts.kind_of_place, np.array(own)) for x, own in found.items()}
