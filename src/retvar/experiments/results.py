"""Results of simulations on disk: netCDF files named by a digest of settings and code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from retvar import cache
from retvar.cache import code_digest, contents
from retvar.experiments.definitions import Simulation
from retvar.files import kind_of

if TYPE_CHECKING:
    import xarray

__all__ = ["SimulationCache", "code_digest", "contents"]


class SimulationCache:
    """A folder with results of simulations.

    >>> import tempfile, retvar as rv
    >>> store = SimulationCache(Path(tempfile.mkdtemp()))
    >>> one = Simulation("one", rv.domains.chain(), {"direct": rv.Direct(alpha=0.1)}, episodes=10)
    >>> _ = store.write(one, 0, one.run(seed=0))
    >>> store.has(one, 0), store.has(one, 1), store.read(one, 0).sizes["episode"]
    (True, False, 10)
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, simulation: Simulation, seed: int) -> Path:
        """The path of a simulation's result."""
        name = re.sub(r"[^\w.+-]+", "-", simulation.name).lstrip(".")[:80]
        return self.folder / f"{name}-{simulation.key(seed, code_digest())[:16]}.nc"

    def has(self, simulation: Simulation, seed: int) -> bool:
        """Whether the result exists."""
        return bool(kind_of("out", self.path(simulation, seed)))

    def read(self, simulation: Simulation, seed: int) -> xarray.Dataset:
        """The result; an InputError if the file is damaged."""
        key = simulation.key(seed, code_digest())
        return cache.read(self.path(simulation, seed), key, "compute it again with --force")

    def write(self, simulation: Simulation, seed: int, data: xarray.Dataset) -> xarray.Dataset:
        """Save a result and return it; the file appears whole or not at all."""
        key = simulation.key(seed, code_digest())
        return cache.write(self.path(simulation, seed), data, key)
