"""Whether estimates agree with Monte Carlo returns from fresh experience."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import xarray
from numpy.typing import NDArray

from retvar.errors import InputError
from retvar.experience.estimation import Estimate
from retvar.experience.monitor import Discounts, Seen, at_rows
from retvar.experience.regions import Regions
from retvar.experience.returns import Returns
from retvar.experience.stream import Chunk, Experience
from retvar.online.bootstrap import half_width

__all__ = ["Check", "check"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
ENOUGH = 30  # returns from a place, below which nothing is said about it
PLACES = 512  # that are checked
KEPT = 200_000  # returns
SAME = 1e-9  # differences that are none
ENDS = ("low", "high")
ALARM = 0.01  # chance of a false alarm over all places, for each of value and spread


@dataclass(frozen=True)
class Check:
    """Monte Carlo returns beside the estimates.

    >>> Check(xarray.Dataset(), 12, 0, {"value": 1.5, "std": 4.2}, 3.5).agrees
    False
    """

    data: xarray.Dataset  #: the estimates, with check_mean, check_std and check_count
    places: int  #: states or regions with enough returns
    cut_off: int  #: returns, of those compared, cut off by truncation
    largest: dict[str, float]  #: difference in standard errors, of value and of std
    limit: float  #: beyond which they do not agree
    returns: int = 0  #: that were compared: those of which little can be cut off

    @property
    def agrees(self) -> bool:
        """Whether no difference is larger than chance allows."""
        return bool(self.places) and all(z <= self.limit for z in self.largest.values())

    def summary(self) -> str:
        """The verdict in words."""
        if not self.places:
            return f"nothing can be said: no place has {ENOUGH} fresh returns; take more steps"
        kind = "states" if "state" in self.data.dims else "regions"
        lines = []
        for what, z in self.largest.items():
            word = "agrees" if z <= self.limit else "DOES NOT AGREE"
            lines.append(
                f"{what} {word} with fresh Monte Carlo returns in {self.places} {kind}: the "
                f"largest difference is {z:.1f} standard errors; chance allows {self.limit:.1f}"
            )
        if self.cut_off:
            lines.append(
                f"{self.cut_off:,} of the {self.returns:,} returns compared were cut off by "
                "truncation; the estimates stand in for their ends"
            )
        return "\n".join(lines)


def check(found: Estimate, fresh: Experience) -> Check:
    """Compare estimates with returns from fresh experience of the same policy.

    Where the estimates are right, value and std are each found wrong by chance once in a hundred
    checks at most. Fresh experience of about the same length is best: where there is ten times as
    much, it is the intervals that are put to the test, and one check in twenty fails.

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
        fresh.labels[:] = found.experience.labels or ()  # numbered alike
    keys = _Keys(data, found.seen, tabular)
    returns = Returns(keys.count, fresh.width or 1, KEPT)
    for chunk in fresh.chunks():
        discounts = Discounts.of(found.estimator, chunk, at_rest=True)
        if not discounts.known:
            raise InputError("fresh", fresh.name, "is off-policy: its returns are not the target's")
        Seen.collect(returns, chunk, keys.of(chunk), discounts)
    return _compared(found, data, returns, keys)


class _Keys:
    """The places that are checked: states that were visited, or the regions most visited."""

    def __init__(self, data: xarray.Dataset, seen: Seen, tabular: bool) -> None:
        self.dim = "state" if tabular else "region"
        visits = data["visits"].values
        chosen = np.argsort(-visits, kind="stable")[:PLACES]
        self.places = chosen[visits[chosen] > 0]
        self.count = max(1, self.places.size)
        self.where = seen.where
        if tabular:
            names = self.places
        else:
            assert isinstance(seen.where, Regions)
            names = seen.where.cells(data["centre"].values[self.places])
        self._order = np.argsort(names)
        self._names = names[self._order]

    def of(self, chunk: Chunk) -> Integers:
        """The number of each transition's place; −1 where it is none of them."""
        state: Any = chunk["state"]
        names = self.where.cells(state) if isinstance(self.where, Regions) else state
        at = np.minimum(np.searchsorted(self._names, names), self._names.size - 1)
        return np.where(self._names[at] == names, self._order[at], -1)


def _compared(found: Estimate, data: xarray.Dataset, returns: Returns, keys: _Keys) -> Check:
    learner, size = found.estimator, data.sizes[keys.dim]
    early = _early(returns)  # of the others the estimates themselves are the larger part
    value, variance = at_rows(learner, "value"), at_rows(learner, "variance")
    observed, expected = returns.completed(value), variance(returns.begun)
    missing = returns.missing(lambda rows: np.maximum(variance(rows), 0.0))
    gap = observed - value(returns.begun)
    columns = {name: np.full(size, np.nan) for name in ("check_mean", "check_std")}
    counts = np.zeros(size, dtype=np.int64)
    rows = []
    for k, place in enumerate(keys.places):
        mine = early & (returns.key == k)
        counts[place] = n = int(mine.sum())
        if n < 2:
            continue
        rest = gap[mine] - gap[mine].mean()
        spread = float((rest**2).sum() / (n - 1) + missing[mine].mean())
        columns["check_mean"][place] = observed[mine].mean()
        columns["check_std"][place] = np.sqrt(spread)
        if n >= ENOUGH:
            fourth = float((rest**4).mean())
            rows.append((place, n, gap[mine].mean(), spread, expected[mine].mean(), fourth))
    for name, column in columns.items():
        data[name] = (keys.dim, column)
    data["check_count"] = (keys.dim, counts)
    limit = NormalDist().inv_cdf(1 - ALARM / (2 * max(1, len(rows))))
    largest = _largest(np.array(rows).reshape(-1, 6), data, found)
    cut = np.count_nonzero(returns.cut & early)
    return Check(data, len(rows), int(cut), largest, limit, int(np.count_nonzero(early)))


def _early(returns: Returns) -> NDArray[np.bool_]:
    """Returns of which little can be cut off; all, where those are too few to say anything."""
    early = returns.early
    counts = np.bincount(returns.key[early], minlength=1)
    return early if counts.max(initial=0) >= ENOUGH else np.ones_like(early)


def _largest(rows: Array, data: xarray.Dataset, found: Estimate) -> dict[str, float]:
    """Largest differences, of value and of std, in standard errors.

    Rare returns that make up much of a variance are missing from small samples, which then look
    surer than they are. So the noise is that of the larger variance, seen or predicted, and of a
    kurtosis that is at least the usual one of all places.
    """
    if not len(rows):
        return {"value": 0.0, "std": 0.0}
    place, n, gap, spread, variance, fourth = rows.T
    seen = spread > 0
    kurtosis = np.where(seen, fourth / np.where(seen, spread, 1.0) ** 2, 1.0)
    kurtosis = np.maximum(kurtosis, (kurtosis * n).sum() / n.sum())
    larger = np.maximum(spread, variance)
    noise = {"value": larger / n, "variance": (kurtosis - 1).clip(0) * larger**2 / n}
    z, scores = half_width(found.seen.level), {}
    for what, difference in (("value", gap), ("variance", spread - variance)):
        reach = np.zeros(len(rows))
        if found.estimator.bootstrap_samples:
            low, high = (data[f"{what}_{end}"].values[place.astype(int)] for end in ENDS)
            reach = (high - low) / (2 * z)
        scores[what] = _score(np.abs(difference), noise[what] + reach**2)
    return {"value": float(scores["value"].max()), "std": float(scores["variance"].max())}


def _score(difference: Array, variance: Array) -> Array:
    """Differences in standard errors; any at all is too large where there is no noise."""
    sure = variance <= 0
    score = difference / np.sqrt(np.where(sure, 1.0, variance))
    return np.where(sure, np.where(difference < SAME, 0.0, np.inf), score)
