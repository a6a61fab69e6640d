"""Tile coding: several overlapping grids, each shifted against the others."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy import uintp as u
from numpy.typing import NDArray

from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.td.features.bounds import ObservationFeatures, limit_weights
from retvar.td.jit import compiled
from retvar.td.random import GOLDEN, U, mix

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
MOST_TILES = 1_000_000  # in one dimension
MOST_TILINGS = 1_024
MOST_MEMORY = 100_000_000
HALF = U(32)


@dataclass(frozen=True)
class TileCoding(ObservationFeatures):
    """Tile coding: in each grid the tile that contains the observation has feature 1.

    Tiling t is shifted by t·(1, 3, 5, …)/`tilings` of a tile, so that generalisation is the same in
    all directions (Sutton and Barto, 2018, section 9.5.4; they recommend a power of 2 that is at
    least 4 times the dimension). Each tiling has one extra tile per dimension, so that it covers
    the space when shifted.

    Parameters
    ----------
    low, high
        Bounds, one number per dimension. Observations outside are clipped.
    tiles
        Tiles of a grid in each dimension: one number, or one per dimension.
    tilings
        Number of grids. Divide the usual step size α by `tilings`.
    memory
        Number of weights to hash the tiles into, if there are too many tiles; each tiling has its
        own share of them. Several tiles may then share a weight.

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
        tilings = arguments.integer("tilings", self.tilings, 1, MOST_TILINGS)
        object.__setattr__(self, "tilings", tilings)
        tiles = self.tiles if np.iterable(self.tiles) else [self.tiles] * self.width
        if len(each := arguments.entries("tiles", tiles, "whole numbers")) != self.width:
            remedy = f"must be one, or {self.width} as in low"
            raise InputError("tiles", f"{len(each)} numbers", remedy)
        each = [arguments.integer("tiles", count, 1, MOST_TILES) for count in each]
        object.__setattr__(self, "tiles", tuple(each))
        if self.memory is None:
            limit_weights(self.size, "tiles", "use fewer, or hash them with memory=…")
            return
        memory = arguments.integer("memory", self.memory, 1, MOST_MEMORY)
        if memory < tilings:
            raise InputError("memory", memory, f"must be at least {tilings}, one weight per tiling")
        object.__setattr__(self, "memory", memory)

    @property
    def size(self) -> int:  # type: ignore[override]
        """One weight per tile, or `memory`."""
        return self.tilings * self._share if self.memory is None else self.memory

    @property
    def entries(self) -> int:
        """One tile per tiling."""
        return self.tilings

    @property
    def _share(self) -> int:
        """Number of weights of a tiling."""
        if self.memory is not None:
            return self.memory // self.tilings
        return math.prod(n + 1 for n in self.tiles)

    @cached_property
    def _grid(self) -> tuple[Any, ...]:
        """Arguments of the compiled code."""
        top = np.array(self.tiles, dtype=np.int64) * self.tilings
        odd = 2 * np.arange(self.width, dtype=np.int64)[:, None] + 1
        shift = (odd * np.arange(self.tilings)) % self.tilings
        if self.memory is None:
            counts = [n + 1 for n in self.tiles]
            steps = np.array([math.prod(counts[j + 1 :]) for j in range(self.width)])
        else:
            steps = odd_multipliers(self.width)
        hashed = self.memory is not None
        return self._lowest, top / self._range, top, shift, steps, self._share, hashed

    def _fill(self, observations: Array, indices: Integers, values: Array) -> bool:
        return bool(fill_tiles(observations, *self._grid, indices, values))


@compiled
def odd_multipliers(count: Any) -> Any:
    """Multipliers of the coordinates before hashing."""
    found = np.empty(count, dtype=np.int64)
    for j in range(count):
        found[j] = np.int64(mix(U(j + 1) * GOLDEN) | U(1))
    return found


@compiled
def fill_tiles(
    observations: Any, low: Any, scale: Any, top: Any, shift: Any, steps: Any, share: Any,
    hashed: Any, indices: Any, values: Any,
) -> Any:  # fmt: skip
    """Write the active tile of each tiling for each observation; return whether all are finite.

    A dimension is divided into tiles × tilings slices. In a tiling shifted by s slices, slice q
    belongs to tile (q + s) // tilings: the tile of q, or the next one.
    """
    n, width = observations.shape
    tilings = shift.shape[1]
    all_finite = True
    for r in range(n):
        first = u(r * tilings)
        value = 1.0
        for t in range(tilings):
            indices[first + u(t)] = t if hashed else t * share
        for j in range(width):
            x = observations[u(r), u(j)]
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
        if hashed:  # saved estimators depend on this hash
            for t in range(tilings):
                upper = mix(U(indices[first + u(t)])) >> HALF
                indices[first + u(t)] = t * share + np.int64((upper * U(share)) >> HALF)
        for t in range(tilings):
            values[first + u(t)] = value
        all_finite = all_finite and value == 1.0
    return all_finite
