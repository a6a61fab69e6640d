"""Base of features that are computed from bounded observations."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from retvar import arguments
from retvar.errors import InputError
from retvar.features.base import Rows, TransitionFeatures

__all__ = ["MOST_WEIGHTS", "ObservationFeatures"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
MOST_WEIGHTS = 10_000_000


@dataclass(frozen=True)
class ObservationFeatures(TransitionFeatures):
    """Base of features of an observation: a point between `low` and `high`, per dimension.

    Observations outside the bounds are clipped to them. Use :class:`TileCoding`,
    :class:`Polynomial` or :class:`Fourier`.

    >>> import retvar as rv
    >>> issubclass(rv.features.Fourier, ObservationFeatures)
    True
    """

    low: Any
    high: Any

    def __post_init__(self) -> None:
        low, high = _bounds(self.low, self.high)
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)

    @classmethod
    def from_space(cls, space: Any, **settings: Any) -> Self:
        """Take the bounds from a Gymnasium Box; other settings as for the class.

        >>> import gymnasium
        >>> import retvar as rv
        >>> box = gymnasium.spaces.Box(-1.0, 1.0, shape=(2,))
        >>> rv.features.Polynomial.from_space(box, degree=3).size
        10
        """
        if not hasattr(space, "low") or not hasattr(space, "high"):
            raise InputError("space", space, "must be a Box, which has low and high")
        low, high = (np.asarray(x).ravel() for x in (space.low, space.high))
        largest = np.finfo(low.dtype).max if low.dtype.kind == "f" else np.inf
        endless = (np.abs(low) >= largest) | (np.abs(high) >= largest)
        if endless.any():
            k = int(np.argmax(endless))
            raise InputError(
                f"space[{k}]",
                f"{low[k]} to {high[k]}",
                "has no bounds; give low and high, or use from_data(observations)",
            )
        return cls(low, high, **settings)

    @classmethod
    def from_data(cls, observations: Any, margin: float = 0.05, **settings: Any) -> Self:
        """Take the bounds from observations [n, dimension], widened by `margin` of the range.

        A dimension that never changes gets a range around its only value.

        >>> import retvar as rv
        >>> rv.features.Fourier.from_data([[0.0, 7.0], [10.0, 7.0]], margin=0.1).high
        (11.0, 10.5)
        """
        data = _numbers("observations", observations)
        if data.ndim == 0 or data.size == 0:
            raise InputError("observations", "none", "must be an array [n, dimension]")
        if not np.isfinite(data).all():
            raise InputError("observations", "not finite", "must hold finite numbers only")
        wide = _numbers("margin", margin)
        if wide.ndim or not 0 <= wide < np.inf:
            raise InputError("margin", margin, "must be a finite number of at least 0")
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

    def write(self, state: Any, next_state: Any, rows: Rows) -> bool:
        """Write the features of two states into two rows; return whether all are finite."""
        observations = self._read([state, self.blank if next_state is None else next_state])
        return bool(self._fill(observations, rows.indices, rows.values))

    def _read(self, given: Any) -> Array:
        """Observations as an array [n, dimension]."""
        observations = _numbers("state", given, f"must be {self.width} numbers")
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


def _numbers(field: str, given: Any, remedy: str = "must hold numbers") -> Array:
    try:
        array = arguments.array(field, given, "numbers")
        if array.dtype.kind not in "biufO":
            raise TypeError
        with np.errstate(over="ignore"):
            found: Array = array.astype(np.float64, copy=False)
            return found
    except Exception:  # also an error of an entry
        raise InputError(field, "no array of numbers", remedy) from None


def _bounds(low: Any, high: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Validate bounds and return them as tuples of floats."""
    pair = []
    for field, given in (("low", low), ("high", high)):
        bound = np.atleast_1d(_numbers(field, given))
        if bound.ndim != 1 or bound.size == 0:
            shape = f"an array of shape {bound.shape}"
            raise InputError(field, shape, "must have one number per dimension")
        if not np.isfinite(bound).all():
            raise InputError(field, given, "must hold finite numbers only")
        pair.append(bound)
    if pair[0].size != pair[1].size:
        found = f"{pair[1].size} numbers"
        raise InputError("high", found, f"must have {pair[0].size}, as low has")
    for k, (a, b) in enumerate(zip(*(bound.tolist() for bound in pair), strict=True)):
        if not a < b:
            raise InputError(f"high[{k}]", b, f"must be above low[{k}] = {a:g}")
        if not 1e-300 < b - a < 1e300:
            raise InputError(f"high[{k}]", b, f"is too close to low[{k}] = {a:g}, or too far")
    return tuple(pair[0].tolist()), tuple(pair[1].tolist())
