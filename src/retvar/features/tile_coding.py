"""Tile coding: several grids laid over a space, each shifted against the others."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy import uintp as u
from numpy.typing import NDArray

from retvar.errors import InputError
from retvar.features.base import positive
from retvar.features.bounds import Observed, within
from retvar.jit import compiled
from retvar.random import GOLDEN, U, mix

__all__ = ["TileCoding"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
MOST_TILES = 1_000_000  # in one dimension
MOST_TILINGS = 1_024
MOST_MEMORY = 100_000_000
HALF = U(32)


@dataclass(frozen=True)
class TileCoding(Observed):
    """Grids laid over a space: in each of them an observation lies in one tile, whose feature is 1.

    Tiling t is shifted by t·(1, 3, 5, …)/`tilings` of a tile, so that tilings lie unevenly to each
    other and what is learned at a point spreads to all sides alike (Sutton and Barto, 2018,
    section 9.5.4, who advise a power of 2, of at least 4 times the dimension). Each has one tile
    more a dimension than asked for, to cover the space when it is shifted.

    Parameters
    ----------
    low, high
        Bounds, one number a dimension. A point outside is taken at the nearest point within.
    tiles
        Tiles of a grid in each dimension: a number, or one a dimension.
    tilings
        How many grids. A step size α of the usual kind becomes α/`tilings`.
    memory
        How many weights tiles are hashed into, each tiling into its own share of them, where
        there would be too many; tiles may then share a weight.

    Examples
    --------
    >>> import retvar as rv
    >>> tiles = rv.features.TileCoding([-1.2, -0.07], [0.6, 0.07], tiles=8, tilings=8)
    >>> tiles.size, tiles.largest_square
    (648, 8.0)
    >>> tiles.rows([[-0.5, 0.0]]).indices
    array([ 31, 112, 193, 274, 355, 436, 517, 598])
    >>> step = 0.5 / tiles.largest_square
    >>> risk = rv.Direct(alpha=step, gamma=0.9, lam=0.9).online(features=tiles)
    >>> risk.update([-0.5, 0.0], -1.0, [-0.51, -0.001])
    >>> risk.value([-0.5, 0.0])
    -0.5
    """

    tiles: Any = 8
    tilings: int = 8
    memory: int | None = None

    kind = "tile_coding"

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("tilings", self.tilings, MOST_TILINGS)
        object.__setattr__(self, "tilings", int(self.tilings))
        object.__setattr__(self, "tiles", _tiles(self.tiles, self.width))
        if self.memory is None:
            within(self.size, "tiles", "take fewer, or hash them into fewer weights with memory=…")
            return
        positive("memory", self.memory, MOST_MEMORY)
        if self.memory < self.tilings:
            raise InputError("memory", self.memory, f"must be one weight a tiling, {self.tilings}")
        object.__setattr__(self, "memory", int(self.memory))

    @property
    def size(self) -> int:  # type: ignore[override]
        """One weight a tile, or as many as they are hashed into."""
        return self.tilings * self._share if self.memory is None else self.memory

    @property
    def entries(self) -> int:
        """One tile a tiling."""
        return self.tilings

    @property
    def _share(self) -> int:
        """Weights of a tiling."""
        if self.memory is not None:
            return self.memory // self.tilings
        return math.prod(n + 1 for n in self.tiles)

    @cached_property
    def _grid(self) -> tuple[Any, ...]:
        """How the compiled code wants to be told."""
        top = np.array(self.tiles, dtype=np.int64) * self.tilings
        odd = 2 * np.arange(self.width, dtype=np.int64)[:, None] + 1
        shift = (odd * np.arange(self.tilings)) % self.tilings
        if self.memory is None:
            counts = [n + 1 for n in self.tiles]
            steps = np.array([math.prod(counts[j + 1 :]) for j in range(self.width)])
        else:
            steps = odd_words(self.width)
        hashed = self.memory is not None
        return self._lowest, top / self._range, top, shift, steps, self._share, hashed

    def _fill(self, seen: Array, indices: Integers, values: Array) -> bool:
        return bool(lay_tiles(seen, *self._grid, indices, values))


def _tiles(given: Any, width: int) -> tuple[int, ...]:
    """Tiles in each dimension."""
    each = [given] * width if np.ndim(given) == 0 else list(given)
    if len(each) != width:
        raise InputError("tiles", f"{len(each)} numbers", f"must be one, or {width} as low has")
    for count in each:
        positive("tiles", count, MOST_TILES)
    return tuple(int(count) for count in each)


@compiled
def odd_words(count: Any) -> Any:
    """What coordinates are multiplied by before they are hashed."""
    found = np.empty(count, dtype=np.int64)
    for j in range(count):
        found[j] = np.int64(mix(U(j + 1) * GOLDEN) | U(1))
    return found


@compiled
def lay_tiles(
    seen: Any, low: Any, scale: Any, top: Any, shift: Any, steps: Any, share: Any, hashed: Any,
    indices: Any, values: Any,
) -> Any:  # fmt: skip
    """Write the tile of each tiling that each observation lies in; whether all are finite.

    A dimension is divided into tiles × tilings slices: a tiling shifted by s slices has slice q in
    its tile (q + s) // tilings, which is that of q, or one more where s goes beyond its end.
    """
    n, width = seen.shape
    tilings = shift.shape[1]
    all_finite = True
    for r in range(n):
        first = u(r * tilings)
        value = 1.0
        for t in range(tilings):
            indices[first + u(t)] = t if hashed else t * share
        for j in range(width):
            x = seen[u(r), u(j)]
            place = (x - low[u(j)]) * scale[u(j)]
            q = 0
            if not math.isfinite(x):
                value = math.nan
            elif place >= top[u(j)]:
                q = top[u(j)] - 1
            elif place > 0.0:
                q = int(place)
            tile, step = q // tilings, steps[u(j)]
            over, begin = tilings - (q - tile * tilings), step * tile
            for t in range(tilings):
                indices[first + u(t)] += begin + (step if shift[u(j), u(t)] >= over else 0)
        if hashed:  # saved learners depend on what is hashed where
            for t in range(tilings):
                upper = mix(U(indices[first + u(t)])) >> HALF
                indices[first + u(t)] = t * share + np.int64((upper * U(share)) >> HALF)
        for t in range(tilings):
            values[first + u(t)] = value
        all_finite = all_finite and value == 1.0
    return all_finite
