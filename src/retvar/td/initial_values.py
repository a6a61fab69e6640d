"""Initial values that differ from run to run of a simulation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retvar.support import arguments
from retvar.support.errors import InputError

Array = NDArray[np.float64]
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
        settings = {f.name: np.asarray(getattr(self, f.name)).tolist() for f in fields(self)}
        return {"initial": type(self).__name__, **settings}


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
            if (size := arguments.number(field, getattr(self, field))) < 0:
                raise InputError(field, size, "must be one number of at least 0")
            object.__setattr__(self, field, size)

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


@dataclass(frozen=True, eq=False)
class PerRun(InitialValues):
    """Values given for each run: an array [run, state].

    >>> import numpy as np
    >>> PerRun(np.zeros((30, 4))).typical
    array([0., 0., 0., 0.])
    """

    values: Any

    def __post_init__(self) -> None:
        table = arguments.floats("values", self.values, "an array [run, state]")  # copied
        if table.ndim != 2 or 0 in table.shape or not np.isfinite(table).all():
            found = f"an array of shape {table.shape}"
            raise InputError("values", found, "must be an array [run, state] of finite numbers")
        table.flags.writeable = False
        object.__setattr__(self, "values", table)

    @property
    def typical(self) -> Any:
        """Values of the first run."""
        return self.values[0]

    def of(self, runs: range, size: int, draw: Draw) -> Array:
        """Return rows of the table."""
        if runs.stop > len(self.values):
            rows = f"{len(self.values)} rows"
            raise InputError("value", rows, f"must have a row for each of {runs.stop} runs")
        return np.asarray(self.values[runs.start : runs.stop])
