"""Whether estimates agree with Monte Carlo returns from fresh experience."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import xarray
from numpy.typing import NDArray

from retvar.errors import InputError
from retvar.experience.estimating import Estimate
from retvar.experience.regions import Regions
from retvar.experience.returns import Returns
from retvar.experience.seen import Discounts, Seen
from retvar.experience.stream import Chunk, Experience
from retvar.online.replicates import half_width

__all__ = ["Check", "check"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
ENOUGH = 30  # returns from a place, below which nothing is said about it
PLACES = 512  # that are checked
KEPT = 200_000  # returns
ALARM = 0.01  # chance of a false alarm over all places, for each of value and spread


@dataclass(frozen=True)
class Check:
    """Monte Carlo returns beside the estimates.

    >>> Check(xarray.Dataset(), 12, 0, {"value": 1.5, "std": 4.2}, 3.5).agrees
    False
    """

    data: xarray.Dataset  #: the estimates, with check_mean, check_std and check_count
    places: int  #: states or regions with enough returns
    cut_off: int  #: returns cut off by truncation
    largest: dict[str, float]  #: difference in standard errors, of value and of std
    limit: float  #: beyond which they do not agree

    @property
    def agrees(self) -> bool:
        """Whether no difference is larger than chance allows."""
        return bool(self.places) and all(z <= self.limit for z in self.largest.values())

    def text(self) -> str:
        """The verdict in words."""
        if not self.places:
            return f"no place was visited by {ENOUGH} fresh returns: nothing can be said"
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
                f"{self.cut_off:,} returns were cut off by truncation; the estimates stand in for "
                "their ends"
            )
        return "\n".join(lines)


def check(found: Estimate, fresh: Experience) -> Check:
    """Compare estimates with returns from fresh experience of the same policy.

    >>> import retvar as rv
    >>> lake = lambda seed: rv.experience.from_gymnasium("FrozenLake-v1", steps=30_000, seed=seed)
    >>> found = rv.estimate(lake(1), gamma=0.9)
    >>> rv.experience.check(found, lake(2)).agrees
    True
    """
    data = found.data
    tabular = "state" in data.dims
    if (fresh.width or 0) != (found.experience.width or 0):
        raise InputError("fresh", fresh.name, "must be experience of the same kind")
    keys = _Keys(data, found.seen, tabular)
    returns = Returns(keys.count, fresh.width or 1, KEPT)
    for chunk in fresh.chunks():
        discounts = Discounts.of(found.learner, chunk)
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
    learner, tabular = found.learner, keys.dim == "state"
    begun = returns.begun[:, 0].astype(np.int64) if tabular else returns.begun
    gap = returns.observed - learner.predict("value", begun)
    variance = learner.predict("variance", begun)
    columns = {name: np.full(data.sizes[keys.dim], np.nan) for name in ("mean", "std")}
    counts = np.zeros(data.sizes[keys.dim], dtype=np.int64)
    z = half_width(found.seen.level)
    scores: dict[str, list[float]] = {"value": [], "std": []}
    for k, place in enumerate(keys.places):
        mine = returns.key == k
        counts[place] = n = int(mine.sum())
        if n < 2:
            continue
        rest = gap[mine] - gap[mine].mean()
        spread = float((rest**2).sum() / (n - 1) + returns.missing[mine].mean())
        columns["mean"][place] = returns.observed[mine].mean()
        columns["std"][place] = np.sqrt(spread)
        if n >= ENOUGH:
            noise = spread / n, max(0.0, float((rest**4).mean()) - spread**2) / n
            differences = gap[mine].mean(), spread - variance[mine].mean()
            for what, name, difference, own in zip(
                ("value", "std"), ("value", "variance"), differences, noise, strict=True
            ):
                reach = 0.0
                if learner.replicates:
                    ends = [float(data[f"{name}_{end}"][place]) for end in ("low", "high")]
                    reach = (ends[1] - ends[0]) / (2 * z)
                scores[what].append(_score(float(difference), own + reach**2))
    for name, column in columns.items():
        data[f"check_{name}"] = (keys.dim, column)
    data["check_count"] = (keys.dim, counts)
    places = len(scores["value"])
    limit = NormalDist().inv_cdf(1 - ALARM / (2 * max(1, places)))
    largest = {what: max(found, default=0.0) for what, found in scores.items()}
    return Check(data, places, returns.cut_off, largest, limit)


def _score(difference: float, variance: float) -> float:
    if variance > 0:
        return abs(difference) / float(np.sqrt(variance))
    return 0.0 if abs(difference) < 1e-9 else float("inf")
