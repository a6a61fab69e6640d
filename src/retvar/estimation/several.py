"""Several returns from data: an estimate of each and of any combination, and their covariances.

The variance of least squares is a quadratic form in the rewards, so that covariances are those of
sums and differences: 4 Cov(A, B) = Var(A + B) − Var(A − B).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, partialmethod
from itertools import combinations_with_replacement
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from retvar.estimation.results import label_text
from retvar.exact.several import SeveralReturns, weights_of
from retvar.experience.moves import Moves
from retvar.experience.stream import Experience
from retvar.support import arguments
from retvar.support.html import Shown

if TYPE_CHECKING:
    from retvar.estimation.estimate import Estimate


log = logging.getLogger("retvar.estimate")


class Combined(Moves):
    """Moves whose reward is a weighted sum of several."""

    def __init__(self, inner: Moves, weights: NDArray[np.float64]) -> None:
        super().__init__(*inner.in_database(), {**inner._widths, "reward": 0})
        terms = [f"'{w!r}'::DOUBLE * reward_{k}" for k, w in enumerate(weights.tolist()) if w]
        self._sum = " + ".join(terms) or "0.0::DOUBLE"

    @property
    def _names(self) -> list[str]:
        return [f"{self._sum} AS reward" if x == "reward" else x for x in super()._names]


class SeveralEstimate(Shown):
    """What :func:`retvar.estimate` says of several rewards; by name it gives the estimate of one.

    >>> import retvar as rv
    >>> rng = np.random.default_rng(0)
    >>> log = {"state": np.zeros(1_000), "terminated": np.ones(1_000)}
    >>> log["energy"] = rng.normal(size=1_000)
    >>> log["profit"] = log["energy"] + rng.normal(size=1_000)
    >>> found = rv.estimate(rv.experience.from_table(log, reward=["profit", "energy"]), gamma=0.9)
    >>> found.returns.correlation[0, 1].round(2)    # exactly: 0.71
    array([0.71])
    >>> low, high = found.combine({"profit": 1, "energy": -1}).interval(0, "std")
    >>> bool(low < 1 < high)
    True
    """

    def __init__(self, experience: Experience, settings: dict[str, Any]) -> None:
        self.experience, self.names = experience, experience.rewards
        self._settings = settings
        self._known: dict[tuple[float, ...], Estimate] = {}
        self._moves = experience.moves(settings.get("progress"))
        for each in self.warnings:
            log.warning("%s: %s", experience.name, each)

    def combine(self, weights: Mapping[str, float]) -> Estimate:
        """The estimate of a weighted sum of the rewards; those left out have weight 0."""
        return self._combined(weights_of(self.names, weights))

    def __getitem__(self, name: str) -> Estimate:
        return self.combine({arguments.choice("name", name, self.names): 1.0})

    def _each(self, what: str, *asked: Any, **how: Any) -> dict[str, Any]:
        """The answers of each reward, by name."""
        return {name: getattr(self[name], what)(*asked, **how) for name in self.names}

    value = partialmethod(_each, "value")
    std = partialmethod(_each, "std")
    interval = partialmethod(_each, "interval")
    at = partialmethod(_each, "at")

    @property
    def warnings(self) -> list[str]:
        """Those of the log, then those of each reward."""
        of_all = self.experience.warnings
        own = (
            f"{name}: {x}" for name in self.names for x in self[name].warnings if x not in of_all
        )
        return [*of_all, *own]

    def summary(self, rows: int = 20) -> str:
        """Text: what :meth:`Estimate.summary` says of each reward, then how they vary together."""
        return "\n\n".join([*self._each("summary", rows).values(), str(self.returns)])

    def _combined(self, weights: NDArray[np.float64]) -> Estimate:
        from retvar.estimation.estimate import fitted

        key = tuple(weights.tolist())
        if key not in self._known:
            words = (f"{w:g} {name}" for w, name in zip(key, self.names, strict=True) if w)
            name = f"{self.experience.name}: {' + '.join(words)}".replace(": 1 ", ": ")
            cost = self.experience.cost
            cost *= [each for each, w in zip(self.names, key, strict=True) if w] == [cost]
            own = replace(
                self.experience, rewards=(), name=name, pieces=None, with_actions=None, cost=cost
            )
            own._table = Combined(self._moves, weights)
            self._known[key] = fitted(own, silent=True, **self._settings)
        return self._known[key]

    @cached_property
    def returns(self) -> SeveralReturns:
        """Values and covariances of all states; NaN where the data does not determine them."""
        each = np.eye(len(self.names))
        value = np.array([self._combined(w).value() for w in each])
        own = np.array([self._variance(w) for w in each])
        scale = np.sqrt(np.nan_to_num(own).mean(axis=1))
        each /= np.where(scale > 0, scale, 1.0)[:, None]  # as large as each other
        table = np.empty((len(own), *own.shape))
        for a, b in combinations_with_replacement(range(len(own)), 2):
            sizes = each[a, a] * each[b, b]
            sides = (self._variance(w) for w in (each[a] + each[b], each[a] - each[b]))
            table[a, b] = table[b, a] = own[a] if a == b else np.subtract(*sides) / 4 / sizes
        labels = self.experience.labels
        states = range(value.shape[1]) if labels is None else map(label_text, labels)
        known = list(states)[: value.shape[1]]
        return SeveralReturns(self.names, known, value, table, own != 0, "not known")

    def _variance(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """The variance of a weighted sum in each state."""
        return np.asarray(self._combined(weights).std() ** 2)

    def save(self, path: str | Path) -> None:
        """Write to a folder: a folder for each reward, and ``returns.nc`` with the covariances."""
        folder = arguments.path("path", path)
        for name in self.names:
            self[name].save(folder / name)
        self.returns.data.to_netcdf(folder / "returns.nc", engine="h5netcdf")

    __str__ = summary

    def __repr__(self) -> str:
        return f"SeveralEstimate({self.experience.name}: {', '.join(self.names)})"

    def _html(self) -> str:
        return self.returns._html()
