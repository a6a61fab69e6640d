"""Initial values that differ from run to run of a simulation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retvar import arguments
from retvar.errors import InputError

__all__ = ["InitialValues", "Noisy", "Normal", "PerRun"]

Array = NDArray[np.float64]
TINY = 1e-12  # share of the largest eigenvalue that counts as rounding
Draw = Callable[[str, range, int], Array]  # what, runs, how many in each: [run, number]


@dataclass(frozen=True, eq=False)
class InitialValues:
    """Base of initial values that differ from run to run.

    >>> issubclass(Noisy, InitialValues) and issubclass(PerRun, InitialValues)
    True
    """

    @property
    def typical(self) -> Any:
        """Values of the right shape: without error, or of the first run."""
        raise NotImplementedError

    def of(self, runs: range, size: int, draw: Draw) -> Array:
        """Return values [run, weight] of some runs."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary of JSON data."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Noisy(InitialValues):
    """Values with a random error in each run: uniform in ± `uniform`, plus `normal` times a normal.

    All learners of a simulation have the same errors, up to their size.

    >>> import retvar as rv
    >>> mdp = rv.domains.complex_mdp()
    >>> start = rv.Noisy(rv.solve(mdp).value, uniform=0.3)
    >>> learner = rv.Direct(alpha=0.0, alpha_bar=0.01, value=start, learn_value=False)
    """

    center: ArrayLike
    uniform: float = 0.0
    normal: float = 0.0

    def __post_init__(self) -> None:
        values = arguments.numbers("center", self.center)
        object.__setattr__(self, "center", values if np.ndim(self.center) else float(values[0]))
        for field in ("uniform", "normal"):
            given = arguments.numbers(field, getattr(self, field), 1)
            if np.ndim(getattr(self, field)) or given[0] < 0:
                raise InputError(field, getattr(self, field), "must be one number of at least 0")
            object.__setattr__(self, field, float(given[0]))

    @property
    def typical(self) -> Any:
        """The values without error."""
        return self.center

    def of(self, runs: range, size: int, draw: Draw) -> Array:
        """Return centre plus error."""
        out = np.empty((len(runs), size))
        out[:] = self.center
        if self.uniform:
            out += self.uniform * (2.0 * draw("uniform", runs, size) - 1.0)
        if self.normal:
            out += self.normal * draw("normal", runs, size)
        return out

    def to_dict(self) -> dict[str, Any]:
        """Return centre and sizes of the error."""
        center = np.asarray(self.center).tolist()
        return {
            "initial": "Noisy",
            "center": center,
            "uniform": self.uniform,
            "normal": self.normal,
        }


@dataclass(frozen=True, eq=False)
class Normal(InitialValues):
    """Values drawn in each run from a normal distribution with a mean and a covariance.

    >>> import retvar as rv
    >>> start = rv.Normal(mean=[1.0, 0.0], covariance=[[1.0, 0.9], [0.9, 1.0]])
    >>> learner = rv.Direct(alpha=0.1, value=start)
    """

    mean: ArrayLike
    covariance: ArrayLike

    def __post_init__(self) -> None:
        mean = arguments.numbers("mean", self.mean)
        n = mean.size
        given = arguments.floats("covariance", self.covariance, f"a matrix of {n} × {n} numbers")
        if np.ndim(self.mean) != 1 or given.shape != (n, n) or not np.isfinite(given).all():
            found = f"an array of shape {given.shape}"
            raise InputError("covariance", found, f"must be {n} × {n} finite numbers, as the mean")
        values, vectors = np.linalg.eigh((given + given.T) / 2)
        least = -TINY * float(np.abs(values).max(initial=0.0))
        if np.any(np.abs(given - given.T) > -least) or np.any(values < least):
            remedy = "must be symmetric, without negative eigenvalues"
            raise InputError("covariance", given.tolist(), remedy)
        for array in (mean, given):
            array.flags.writeable = False
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "covariance", given)
        object.__setattr__(self, "_root", vectors * np.sqrt(np.maximum(values, 0.0)))

    @property
    def typical(self) -> Any:
        """The mean."""
        return self.mean

    def of(self, runs: range, size: int, draw: Draw) -> Array:
        """Return the mean plus correlated normal numbers."""
        root: Array = self._root  # type: ignore[attr-defined]
        return np.asarray(self.mean) + draw("normal", runs, size) @ root.T

    def to_dict(self) -> dict[str, Any]:
        """Return mean and covariance."""
        mean, covariance = (np.asarray(x).tolist() for x in (self.mean, self.covariance))
        return {"initial": "Normal", "mean": mean, "covariance": covariance}


@dataclass(frozen=True, eq=False)
class PerRun(InitialValues):
    """Values given for each run: an array [run, state].

    >>> import numpy as np
    >>> PerRun(np.zeros((30, 4))).typical
    array([0., 0., 0., 0.])
    """

    values: ArrayLike

    def __post_init__(self) -> None:
        table = arguments.floats("values", self.values, "an array [run, state]")
        if table.ndim != 2 or 0 in table.shape or not np.isfinite(table).all():
            found = f"an array of shape {table.shape}"
            raise InputError("values", found, "must be an array [run, state] of finite numbers")
        table = table.copy()
        table.flags.writeable = False
        object.__setattr__(self, "values", table)

    @property
    def typical(self) -> Any:
        """Values of the first run."""
        return np.asarray(self.values)[0]

    def of(self, runs: range, size: int, draw: Draw) -> Array:
        """Return rows of the table."""
        table = np.asarray(self.values)
        if runs.stop > table.shape[0]:
            rows = f"{table.shape[0]} rows"
            raise InputError("value", rows, f"must have a row for each of {runs.stop} runs")
        return table[runs.start : runs.stop]

    def to_dict(self) -> dict[str, Any]:
        """Return the table."""
        return {"initial": "PerRun", "values": np.asarray(self.values).tolist()}
