"""Compare estimates with Monte Carlo returns from fresh experience."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import xarray
from numpy.typing import NDArray

from retvar.errors import InputError
from retvar.experience.estimation import Estimate
from retvar.experience.monitor import Discounts, Monitor, collect_returns, row_predictor
from retvar.experience.returns import Returns
from retvar.experience.stream import Chunk, Experience
from retvar.experience.visits import Regions
from retvar.online.bootstrap import half_width

__all__ = ["Check", "check"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
ENOUGH = 30  # returns from a state or region that are needed to check it
PLACES = 512  # states or regions that are checked
STORED = 200_000  # returns
ROUNDING = 1e-9  # smaller differences count as none
ENDS = ("low", "high")
FALSE_ALARM = 0.01  # probability over all places, for each of value and std


@dataclass(frozen=True)
class Check:
    """Estimates compared with Monte Carlo returns.

    >>> Check(xarray.Dataset(), 12, 0, {"value": 1.5, "std": 4.2}, 3.5).agrees
    False
    """

    data: xarray.Dataset  #: the estimates, with check_mean, check_std and check_count
    places: int  #: states or regions with enough returns
    truncated: int  #: compared returns that truncation cut off
    largest: dict[str, float]  #: difference in standard errors, of value and of std
    limit: float  #: of differences that agree
    returns: int = 0  #: that were compared: those of which little can be cut off

    @property
    def agrees(self) -> bool:
        """Whether no difference exceeds the limit."""
        return bool(self.places) and all(z <= self.limit for z in self.largest.values())

    def summary(self) -> str:
        """The verdict as text."""
        if not self.places:
            return f"not checked: no state or region has {ENOUGH} fresh returns; take more steps"
        kind = "states" if "state" in self.data.dims else "regions"
        lines = []
        for what, z in self.largest.items():
            verdict = "agrees" if z <= self.limit else "DOES NOT AGREE"
            lines.append(
                f"{what} {verdict} with fresh Monte Carlo returns in {self.places} {kind}: the "
                f"largest difference is {z:.1f} standard errors; chance allows {self.limit:.1f}"
            )
        if self.truncated:
            lines.append(
                f"{self.truncated:,} of the {self.returns:,} returns compared were cut off by "
                "truncation and completed with the estimates"
            )
        return "\n".join(lines)


def check(found: Estimate, fresh: Experience) -> Check:
    """Compare estimates with returns from fresh experience of the same policy.

    Correct estimates fail the check by chance in at most 1% of cases, for each of value and std.
    Fresh experience of about the same length is best: ten times as much tests the intervals rather
    than the estimates, and one check in twenty fails.

    >>> import retvar as rv
    >>> lake = lambda seed: rv.experience.from_gymnasium("FrozenLake-v1", steps=30_000, seed=seed)
    >>> found = rv.estimate(lake(1), gamma=0.9)
    >>> rv.experience.check(found, lake(2)).agrees
    True
    """
    data = found.data
    tabular = "state" in data.dims
    if fresh.width != found.experience.width:
        raise InputError("fresh", fresh.name, "must be experience of the same kind")
    if fresh.labels is not None and fresh.states is None:
        fresh.labels[:] = found.experience.labels or ()  # same numbers for the same labels
    places = _Places(data, found.monitor, tabular)
    returns = Returns(places.count, fresh.width or 1, STORED)
    for chunk in fresh.chunks():
        discounts = Discounts.of(found.estimator, chunk, final=True)
        if not discounts.on_policy:
            raise InputError(
                "fresh", fresh.name, "is off-policy: its returns are not those of the target policy"
            )
        collect_returns(returns, chunk, places.keys(chunk), discounts)
    return _compare(found, data, returns, places)


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
        else:
            assert isinstance(monitor.visits, Regions)
            names = monitor.visits.cells(data["centre"].values[self.indices])
        self._order = np.argsort(names)
        self._names = names[self._order]

    def keys(self, chunk: Chunk) -> Integers:
        """Number of the place in which each transition starts; −1 where it is not checked."""
        state: Any = chunk["state"]
        names = self._visits.cells(state) if isinstance(self._visits, Regions) else state
        at = np.minimum(np.searchsorted(self._names, names), self._names.size - 1)
        return np.where(self._names[at] == names, self._order[at], -1)


def _compare(found: Estimate, data: xarray.Dataset, returns: Returns, places: _Places) -> Check:
    size = data.sizes[places.dim]
    early = _early(returns)  # later ones consist mostly of the estimates themselves
    value, variance = (row_predictor(found.estimator, what) for what in ("value", "variance"))
    observed, expected = returns.completed(value), variance(returns.start)
    missing = returns.missing_variance(lambda rows: np.maximum(variance(rows), 0.0))
    difference = observed - value(returns.start)
    columns = {name: np.full(size, np.nan) for name in ("check_mean", "check_std")}
    counts = np.zeros(size, dtype=np.int64)
    rows = []
    for k, place in enumerate(places.indices):
        own = early & (returns.key == k)
        counts[place] = n = int(own.sum())
        if n < 2:
            continue
        rest = difference[own] - difference[own].mean()
        spread = float((rest**2).sum() / (n - 1) + missing[own].mean())
        columns["check_mean"][place] = observed[own].mean()
        columns["check_std"][place] = np.sqrt(spread)
        if n >= ENOUGH:
            fourth = float((rest**4).mean())
            mean = difference[own].mean()
            rows.append((place, n, mean, spread, expected[own].mean(), fourth))
    for name, column in columns.items():
        data[name] = (places.dim, column)
    data["check_count"] = (places.dim, counts)
    limit = NormalDist().inv_cdf(1 - FALSE_ALARM / (2 * max(1, len(rows))))
    largest = _largest(np.array(rows).reshape(-1, 6), data, found)
    truncated = np.count_nonzero(returns.truncated & early)
    return Check(data, len(rows), int(truncated), largest, limit, int(np.count_nonzero(early)))


def _early(returns: Returns) -> NDArray[np.bool_]:
    """Returns of which little can be cut off; all, where those are too few."""
    early = returns.early
    counts = np.bincount(returns.key[early], minlength=1)
    return early if counts.max(initial=0) >= ENOUGH else np.ones_like(early)


def _largest(rows: Array, data: xarray.Dataset, found: Estimate) -> dict[str, float]:
    """Largest differences, of value and of std, in standard errors.

    Small samples miss rare returns that make up much of a variance, and then underestimate the
    noise. So the noise is computed with the larger of the observed and the predicted variance, and
    with a kurtosis of at least the average over all places.
    """
    if not len(rows):
        return {"value": 0.0, "std": 0.0}
    place, n, mean, spread, variance, fourth = rows.T
    varies = spread > 0
    kurtosis = np.where(varies, fourth / np.where(varies, spread, 1.0) ** 2, 1.0)
    kurtosis = np.maximum(kurtosis, (kurtosis * n).sum() / n.sum())
    larger = np.maximum(spread, variance)
    noise = {"value": larger / n, "variance": (kurtosis - 1).clip(0) * larger**2 / n}
    z, scores = half_width(found.monitor.level), {}
    for what, difference in (("value", mean), ("variance", spread - variance)):
        error = np.zeros(len(rows))
        if found.estimator.bootstrap_samples:
            low, high = (data[f"{what}_{end}"].values[place.astype(int)] for end in ENDS)
            error = (high - low) / (2 * z)
        scores[what] = _score(np.abs(difference), noise[what] + error**2)
    return {"value": float(scores["value"].max()), "std": float(scores["variance"].max())}


def _score(difference: Array, variance: Array) -> Array:
    """Differences in standard errors; infinite for any difference without noise."""
    exact = variance <= 0
    score = difference / np.sqrt(np.where(exact, 1.0, variance))
    return np.where(exact, np.where(difference < ROUNDING, 0.0, np.inf), score)
