"""Features that are computed from bounded observations: their base, and those of each action."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.td.features.base import Rows, TransitionFeatures

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
MOST_WEIGHTS = 10_000_000


@dataclass(frozen=True)
class ObservationFeatures(TransitionFeatures):
    """Base of features of an observation: a point between `low` and `high`, per dimension.

    Observations outside the bounds are clipped to them. Use :class:`TileCoding`,
    :class:`Polynomial` or :class:`Fourier`.
    """

    low: Any
    high: Any

    def __post_init__(self) -> None:
        low = arguments.numbers("low", np.atleast_1d(self.low))
        if low.size == 0:
            raise InputError("low", "no numbers", "must have one number per dimension")
        high = arguments.numbers("high", self.high, low.size)
        remedy = "must be above low, and not by more than the largest number"
        with np.errstate(over="ignore"):
            arguments.refuse("high", high, ~((low < high) & np.isfinite(high - low)), remedy)
        object.__setattr__(self, "low", tuple(low.tolist()))
        object.__setattr__(self, "high", tuple(high.tolist()))

    @classmethod
    def from_data(cls, observations: Any, margin: float = 0.05, **settings: Any) -> Self:
        """Take the bounds from observations [n, dimension], widened by `margin` of the range.

        A dimension that never changes gets a range around its only value.

        >>> import retvar as rv
        >>> rv.features.Fourier.from_data([[0.0, 7.0], [10.0, 7.0]], margin=0.1).high
        (11.0, 10.5)
        """
        data = arguments.floats("observations", observations, "an array [n, dimension]")
        if data.ndim == 0 or data.size == 0 or not np.isfinite(data).all():
            remedy = "must be an array [n, dimension] of finite numbers"
            raise InputError("observations", f"an array of shape {data.shape}", remedy)
        wide = arguments.number("margin", margin)
        if wide < 0:
            raise InputError("margin", margin, "must be at least 0")
        data = data.reshape(data.shape[0], -1)
        low, high = data.min(axis=0), data.max(axis=0)
        with np.errstate(over="ignore"):  # infinite bounds are refused later
            extra = np.where(low < high, wide * (high - low), np.maximum(np.abs(low), 1.0) / 2)
            return cls(low - extra, high + extra, **settings)

    @property
    def width(self) -> int:
        """Number of dimensions of an observation."""
        return len(self.low)

    @property
    def entries(self) -> int:
        """Number of entries of every row."""
        raise NotImplementedError

    @property
    def largest_square(self) -> float:
        """Upper bound of Σφ²; a step size divided by it does not overshoot.

        >>> import retvar as rv
        >>> rv.features.TileCoding([0.0], [1.0], tilings=4).largest_square
        4.0
        """
        return float(self.entries)  # each at most 1

    @property
    def blank(self) -> Array:
        """Zeros, in place of a missing observation."""
        return np.zeros(self.width)

    def rows(self, given: Any = None) -> Rows:
        """Features of observations [n, dimension]; NaN where an observation is not finite."""
        observations = self._read(given)
        n, entries = len(observations), self.entries
        indices = np.empty(n * entries, dtype=np.int64)
        values = np.empty(n * entries)
        self._fill(observations, indices, values)
        return Rows(np.arange(0, n * entries + 1, entries), indices, values)

    def write(self, state: Any, next_state: Any, rows: Rows | None) -> tuple[Rows, bool]:
        """Write the features of two states into two rows."""
        rows = self.rows([self.blank] * 2) if rows is None else rows
        observations = self._read([state, self.blank if next_state is None else next_state])
        return rows, bool(self._fill(observations, rows.indices, rows.values))

    def _read(self, given: Any) -> Array:
        """Observations as an array [n, dimension]."""
        observations = arguments.floats("state", given, f"{self.width} numbers")
        if observations.ndim == 0 or observations.size != len(observations) * self.width:
            shape = f"an observation of shape {observations.shape[1:]}"
            raise InputError("state", shape, f"must be {self.width} numbers")
        return np.ascontiguousarray(observations.reshape(-1, self.width))

    def _fill(self, observations: Array, indices: Integers, values: Array) -> bool:
        """Write the entries of all rows; return whether all are finite."""
        raise NotImplementedError

    def _settings(self) -> dict[str, Any]:
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {k: list(x) if isinstance(x, tuple) else x for k, x in fields.items()}

    @cached_property
    def _lowest(self) -> Array:
        return np.array(self.low)

    @cached_property
    def _range(self) -> Array:
        return np.array(self.high) - self._lowest


def limit_weights(size: int, field: str, remedy: str) -> None:
    """Raise an InputError if there are more than `MOST_WEIGHTS` weights."""
    if size > MOST_WEIGHTS:
        raise InputError(field, f"{size:,} weights", f"more than {MOST_WEIGHTS:,}; {remedy}")


@dataclass(frozen=True, init=False)
class PerAction(ObservationFeatures):
    """Weights of their own for each action; the last number of an observation is the action.

    >>> from retvar.td.features import Polynomial
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
        bounds = {"low": (*basis.low, -0.5), "high": (*basis.high, count - 0.5)}
        for name, given in {"basis": basis, "actions": count, **bounds}.items():
            object.__setattr__(self, name, given)

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
