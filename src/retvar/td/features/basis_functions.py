"""Polynomial and Fourier bases, computed by recursive products."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from retvar.support import arguments
from retvar.td.features.bounds import ObservationFeatures, limit_weights
from retvar.td.jit import compiled

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
MOST_DEGREE = 1_000


@dataclass(frozen=True)
class _Basis(ObservationFeatures):
    """A dense basis, built up from the constant 1."""

    largest: ClassVar[str]  #: the setting that says how many there are

    def __post_init__(self) -> None:
        super().__post_init__()
        most = arguments.integer(self.largest, getattr(self, self.largest), 1, MOST_DEGREE)
        object.__setattr__(self, self.largest, most)
        limit_weights(self.size, self.largest, "take a smaller one")

    @property
    def entries(self) -> int:
        """Every feature."""
        return self.size

    @cached_property
    def _factors(self) -> tuple[Integers, Integers]:
        """For each feature: the feature and the dimension that it is the product of."""
        raise NotImplementedError

    def _fill(self, observations: Array, indices: Integers, values: Array) -> bool:
        bounds, waves = (self._lowest, self._range), self.kind == "fourier"
        return bool(fill(observations, *bounds, *self._factors, waves, indices, values))


@dataclass(frozen=True)
class Polynomial(_Basis):
    """All products of powers up to a total degree, of the observation scaled to [−1, 1].

    Parameters
    ----------
    low, high
        Bounds, one number per dimension. Observations outside are clipped.
    degree
        Largest sum of the powers in a product.

    Examples
    --------
    >>> import retvar as rv
    >>> rv.features.Polynomial([0.0, 0.0], [2.0, 4.0], degree=2).rows([[1.5, 1.0]]).values
    array([ 1.  ,  0.5 , -0.5 ,  0.25, -0.25,  0.25])
    """

    degree: int = 2

    kind = "polynomial"
    largest = "degree"

    @property
    def size(self) -> int:  # type: ignore[override]
        """One weight per product."""
        return math.comb(self.width + self.degree, self.degree)

    @cached_property
    def _factors(self) -> tuple[Integers, Integers]:
        """By degree, then by dimension: 1; x, y; x², xy, y²; …."""
        place: dict[tuple[int, ...], int] = {(): 0}
        parts: list[tuple[int, int]] = [(0, 0)]
        for degree in range(1, self.degree + 1):
            for product in itertools.combinations_with_replacement(range(self.width), degree):
                place[product] = len(parts)
                parts.append((place[product[:-1]], product[-1]))
        made_from, adds = np.array(parts, dtype=np.int64).T.copy()
        return made_from, adds


@dataclass(frozen=True)
class Fourier(_Basis):
    """cos(π c·x) of the observation x scaled to [0, 1], for all c of whole numbers up to `order`.

    Konidaris, Osentoski and Thomas (2011).

    Parameters
    ----------
    low, high
        Bounds, one number per dimension. Observations outside are clipped.
    order
        Largest entry of c: there are (`order` + 1) to the power of the dimension of them.

    Examples
    --------
    >>> import retvar as rv
    >>> rv.features.Fourier([0.0], [3.0], order=3).rows([[1.0]]).values.round(3)
    array([ 1. ,  0.5, -0.5, -1. ])
    """

    order: int = 3

    kind = "fourier"
    largest = "order"

    @property
    def size(self) -> int:  # type: ignore[override]
        """One weight per cosine."""
        return int((self.order + 1) ** self.width)

    @cached_property
    def _factors(self) -> tuple[Integers, Integers]:
        """In counting order: (0, 0), (0, 1), …; each adds 1 to its last nonzero entry."""
        number = np.arange(self.size)
        adds, made_from = np.zeros((2, self.size), dtype=np.int64)
        for j in range(self.width):
            step = (self.order + 1) ** (self.width - 1 - j)
            some = number // step % (self.order + 1) > 0
            adds[some] = j
            made_from[some] = number[some] - step
        return made_from, adds


@compiled
def scaled(x: Any, low: Any, span: Any) -> Any:
    """Scale a number from its bounds to [0, 1]; NaN if it is not finite."""
    if not math.isfinite(x):
        return math.nan
    return min(max((x - low) / span, 0.0), 1.0)


@compiled
def fill(
    observations: Any, low: Any, span: Any, made_from: Any, adds: Any, waves: Any, indices: Any,
    values: Any,
) -> Any:  # fmt: skip
    """Write the products of each observation; return whether all are finite.

    With x scaled to [0, 1], powers are products of 2x − 1, and cosines the real parts of products
    of exp(iπx).
    """
    n, size = observations.shape[0], adds.size
    all_finite = True
    factors = np.empty(observations.shape[1], dtype=np.complex128)
    products = np.empty(size, dtype=np.complex128)
    for r in range(n):
        value = 1.0
        for j in range(factors.size):
            x = scaled(observations[r, j], low[j], span[j])
            turn = math.pi * x
            wave = complex(math.cos(turn), math.sin(turn))
            factors[j] = wave if waves else complex(2.0 * x - 1.0, 0.0)
            value += 0.0 * x  # NaN makes the whole row NaN
        for k in range(size):
            products[k] = value if k == 0 else products[made_from[k]] * factors[adds[k]]
            values[r * size + k] = products[k].real
            indices[r * size + k] = k
        all_finite = all_finite and math.isfinite(value)
    return all_finite
