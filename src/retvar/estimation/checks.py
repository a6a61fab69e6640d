"""Compare estimates with Monte Carlo returns from fresh experience."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray
from numpy.typing import NDArray

from retvar import arguments
from retvar.errors import InputError
from retvar.estimation.agreement import (
    Agreement,
    Predictions,
    ScoredReturns,
    describe_point,
    group,
    judge,
    self_check,
)
from retvar.estimation.estimate import Estimate
from retvar.estimation.monitor import CLOSED, Discounts, Monitor, collect_returns
from retvar.estimation.results import dataset
from retvar.estimation.returns import Returns
from retvar.estimation.verdicts import AGREES, DISAGREES, UNCERTAIN, Verdict
from retvar.estimation.visits import Regions
from retvar.experience.action_pairs import by_action
from retvar.experience.stream import Chunk, Experience
from retvar.html import Shown, preformatted

__all__ = ["Check", "check"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
PLACES = 512  # states or regions that are checked
STORED = {True: 200_000, False: 4_000}  # returns: of states; of observations, which cost more
IN_SEQUENCE = {True: 20_000, False: 2_000}
NO_ESTIMATE = "no estimate"


@dataclass(frozen=True)
class Check(Shown):
    """Estimates compared with fresh Monte Carlo returns.

    >>> from retvar.estimation.verdicts import judge_std, judge_value
    >>> z = np.random.default_rng(0).normal(0.0, 1.5, 1_000)
    >>> found = Check(xarray.Dataset(), Agreement(judge_value(z), judge_std(z)))
    >>> print(found)
    value agrees (a difference of 0.16 std would have been seen)
    std disagrees by a factor of 1.47 [1.40, 1.55]
    no state has 100 returns to be judged by itself
    >>> found.agrees, found.disagrees
    (False, True)
    """

    data: xarray.Dataset  #: the estimates, with check_mean, check_std, check_count, check_verdict;
    #: check_value and check_predicted_std are what was predicted where these returns began
    verdicts: Agreement  #: on the whole, and on each state or region

    @property
    def value(self) -> Verdict | None:
        """The verdict on the value, over all places together."""
        return self.verdicts.value

    @property
    def std(self) -> Verdict | None:
        """The verdict on the standard deviation, over all places together."""
        return self.verdicts.std

    @property
    def agrees(self) -> bool:
        """Whether value and std agree over all places, and no place disagrees."""
        return self.verdicts.kind == AGREES

    @property
    def disagrees(self) -> bool:
        """Whether chance is an unlikely explanation of a difference."""
        return self.verdicts.kind == DISAGREES

    def summary(self) -> str:
        """The verdicts as text."""
        return self.verdicts.summary()

    def __str__(self) -> str:
        return self.summary()

    def _html(self) -> str:
        return preformatted(self.summary())


def check(found: Any, fresh: Experience) -> Check:
    """Compare estimates with returns from fresh experience of the same policy.

    `found` is an estimate, or an estimator by itself, such as a :class:`retvar.deep.Critic`.

    The verdict on value and std is "agrees", where a std that is off by a quarter, or a value that
    is off by a quarter of a std, would have been seen; "disagrees", where chance is an unlikely
    explanation (correct estimates: 1% of cases, for each of value and std); or "too uncertain to
    tell". Each state or region with 100 returns is judged as well, since opposite errors cancel.

    >>> import retvar as rv
    >>> cliff = lambda k: rv.experience.from_gymnasium("CliffWalking-v1", steps=30_000, seed=k)
    >>> found = rv.estimate(cliff(1), gamma=0.9)
    >>> print(rv.check(found, cliff(2)).value)
    agrees (a difference of 0.07 std would have been seen)
    """
    arguments.instance("fresh", fresh, Experience, "experience: rv.experience.from_…")
    if not isinstance(found, Estimate):
        return _check_estimator(found, fresh)
    data = found.data
    tabular = "state" in data.dims
    if found.experience.pairs:
        fresh = by_action(fresh)
    if fresh.width != found.experience.width:
        raise InputError("fresh", fresh.name, "must be experience of the same kind")
    if fresh.labels is not None and fresh.states is None:
        fresh.labels[:] = found.experience.labels or ()  # same numbers for the same labels
    places, width = _Places(data, found.monitor, tabular), fresh.width or 1
    sequence = Returns(1, width, IN_SEQUENCE[tabular], negligible=CLOSED)
    placed = Returns(places.count, width, STORED[tabular], negligible=CLOSED)
    for chunk in fresh.chunks():
        discounts = Discounts.of(found.estimator, chunk, final=True)
        _refuse_off_policy(not discounts.on_policy, fresh)
        keys = places.keys(chunk)
        collect_returns(chunk, discounts, (placed, keys), (sequence, np.zeros_like(keys)))
    return _compare(found, data, sequence, placed, places)


def _check_estimator(estimator: Any, fresh: Experience) -> Check:
    """Judge an estimator without an estimate around it: all is monitored on the fresh data."""
    if not all(hasattr(estimator, name) for name in ("predict", "gammas", "description")):
        remedy = "must be an estimate, rv.estimate(…), or a critic, rv.deep.fit(…)"
        raise InputError("found", type(estimator).__name__, remedy)
    monitor = Monitor()
    for chunk in fresh.chunks():
        monitor.update(estimator, chunk)
        _refuse_off_policy(monitor.off_policy, fresh)
    verdicts = self_check(estimator, monitor, fresh, own_data=False)
    return Check(dataset(fresh, estimator, monitor), verdicts)


def _refuse_off_policy(off_policy: bool, fresh: Experience) -> None:
    if off_policy:
        remedy = "is off-policy: its returns are not those of the target policy"
        raise InputError("fresh", fresh.name, remedy)


class _Places:
    """The places that are checked: visited states, or the most visited regions."""

    def __init__(self, data: xarray.Dataset, monitor: Monitor, tabular: bool) -> None:
        self.dim = "state" if tabular else "region"
        visits = data["visits"].values
        chosen = np.argsort(-visits, kind="stable")[:PLACES]
        self.indices = chosen[visits[chosen] > 0]
        self.count = max(1, self.indices.size)
        self._visits = monitor.visits
        if tabular:
            names = self.indices
            self.name: Callable[[int], str] = lambda i: f"state {data['label'].values[i]}"
        else:
            assert isinstance(monitor.visits, Regions)
            centres = data["centre"].values
            names = monitor.visits.cells(centres[self.indices])
            self.name = lambda i: f"region {describe_point(centres[i])}"
        self._order = np.argsort(names)
        self._names = names[self._order]

    def keys(self, chunk: Chunk) -> Integers:
        """Number of the place in which each transition starts; −1 where it is not checked."""
        state: Any = chunk["state"]
        names = self._visits.cells(state) if isinstance(self._visits, Regions) else state
        at = np.minimum(np.searchsorted(self._names, names), self._names.size - 1)
        return np.where(self._names[at] == names, self._order[at], -1)


def _compare(
    found: Estimate, data: xarray.Dataset, sequence: Returns, placed: Returns, places: _Places
) -> Check:
    predict = Predictions.of(found.estimator)
    at = places.indices[placed.key] if placed.count else np.zeros(0, dtype=np.int64)
    scored = ScoredReturns(placed, predict, at)
    verdicts = judge(
        ScoredReturns(sequence, predict), scored, at, places.name, kind_of_place=places.dim
    )
    size = data.sizes[places.dim]
    names = ("check_mean", "check_std", "check_value", "check_predicted_std")
    columns = {name: np.full(size, np.nan) for name in names}
    counts = np.zeros(size, dtype=np.int64)
    words = np.full(size, "", dtype=f"<U{len(UNCERTAIN)}")
    words[at[~scored.known]] = NO_ESTIMATE
    for place, own in group(at, scored.usable).items():
        counts[place], words[place] = own.size, UNCERTAIN
        if own.size > 1:
            columns["check_mean"][place] = scored.observed[own].mean()
            spread = scored.error[own].var(ddof=1) + scored.missing[own].mean()
            columns["check_std"][place] = np.sqrt(spread)
            columns["check_value"][place] = scored.value[own].mean()
            columns["check_predicted_std"][place] = np.sqrt(scored.variance[own].mean())
    for verdict in verdicts.places:
        words[verdict.place] = verdict.kind
    for name, column in columns.items():
        data[name] = (places.dim, column)
    data["check_count"], data["check_verdict"] = (places.dim, counts), (places.dim, words)
    return Check(data, verdicts)
