"""Features of an observation and an action: those of the observation, apart for each action."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar import arguments
from retvar.features.bounds import ObservationFeatures, limit_weights

__all__ = ["PerAction"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, init=False)
class PerAction(ObservationFeatures):
    """Weights of their own for each action; the last number of an observation is the action.

    >>> from retvar.features import Polynomial
    >>> both = PerAction(Polynomial([0.0], [1.0], degree=1), actions=2)
    >>> both.size, both.rows([[0.5, 1.0]]).indices
    (4, array([2, 3]))
    """

    basis: Any
    actions: int
    kind = "per_action"

    def __init__(self, basis: ObservationFeatures, actions: int) -> None:
        count = arguments.integer("actions", actions, 1)
        arguments.instance("basis", basis, ObservationFeatures, "features of observations")
        limit_weights(basis.size * count, "actions", "take fewer features or actions")
        object.__setattr__(self, "basis", basis)
        object.__setattr__(self, "actions", count)
        object.__setattr__(self, "low", (*basis.low, -0.5))
        object.__setattr__(self, "high", (*basis.high, count - 0.5))

    @property
    def size(self) -> int:  # type: ignore[override]
        """Those of the basis, for each action."""
        return int(self.basis.size * self.actions)

    @property
    def entries(self) -> int:
        """As many as the basis has."""
        return int(self.basis.entries)

    @property
    def largest_square(self) -> float:
        """That of the basis."""
        return float(self.basis.largest_square)

    def _fill(self, observations: Array, indices: Integers, values: Array) -> bool:
        inside = np.ascontiguousarray(observations[:, :-1])
        finite = bool(self.basis._fill(inside, indices, values))
        action = np.rint(observations[:, -1])
        known = (action >= 0) & (action < self.actions)
        own = np.where(known, action, 0).astype(np.int64)
        n = len(observations) * self.entries
        indices[:n] += np.repeat(own * self.basis.size, self.entries)
        if not known.all():
            values[:n][np.repeat(~known, self.entries)] = np.nan
        return finite and bool(known.all())

    def _settings(self) -> dict[str, Any]:
        return {"basis": self.basis.to_dict(), "actions": self.actions}
