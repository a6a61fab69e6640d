"""Finished simulations on disk: netCDF files named by what determines their contents."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from retvar.errors import InputError
from retvar.experiments.declare import Simulation
from retvar.files import write_with

if TYPE_CHECKING:
    import xarray

__all__ = ["Store", "code_digest", "contents"]

DRAWN = ("cli.py", "report.py", "plots", "experiments", "testing.py", "__main__.py")


@cache
def code_digest() -> str:
    """A digest of every file of the package that can change a number."""
    root = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if name.parts[0] not in DRAWN:
            digest.update(name.as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def contents(data: xarray.Dataset) -> str:
    """A digest of all that a dataset holds, whatever file it is in."""
    digest = hashlib.sha256()
    for name in sorted(data.variables, key=str):
        variable = data.variables[name]
        values = np.asarray(variable.values)
        if values.dtype.kind in "OUST":
            raw = json.dumps(values.astype(str).tolist()).encode()
        else:
            raw = np.ascontiguousarray(values).tobytes()
        digest.update(f"{name} {variable.dims} {variable.shape}".encode() + raw)
    return digest.hexdigest()


class Store:
    """A folder of finished simulations."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, simulation: Simulation, seed: int) -> Path:
        """Where a simulation's result is, or will be."""
        name = simulation.name.replace("/", "-")
        return self.folder / f"{name}-{simulation.key(seed, code_digest())[:16]}.nc"

    def has(self, simulation: Simulation, seed: int) -> bool:
        """Whether it has been computed."""
        return self.path(simulation, seed).exists()

    def read(self, simulation: Simulation, seed: int) -> xarray.Dataset:
        """The result, checked."""
        import xarray

        path = self.path(simulation, seed)
        remedy = "is damaged or no result of retvar; compute it again with --force"
        try:
            with xarray.open_dataset(path, engine="h5netcdf") as opened:
                data = opened.load()
        except Exception as error:  # whatever a broken file makes the reader do
            raise InputError("results", path, f"{remedy} ({type(error).__name__})") from None
        if data.attrs.get("key") != simulation.key(seed, code_digest()):
            raise InputError("results", path, remedy)
        if data.attrs.get("contents") != contents(data):
            raise InputError("results", path, remedy)
        return data

    def write(self, simulation: Simulation, seed: int, data: xarray.Dataset) -> xarray.Dataset:
        """Keep a result; the file appears whole or not at all."""
        data = data.assign_attrs(key=simulation.key(seed, code_digest()), contents=contents(data))
        path = self.path(simulation, seed)

        def write(temporary: Path) -> None:
            data.to_netcdf(temporary, engine="h5netcdf")
            with temporary.open("rb") as file:
                import os

                os.fsync(file.fileno())

        write_with(path, write)
        return data

    def get(
        self, simulation: Simulation, seed: int, force: bool, compute: Callable[[], Any]
    ) -> tuple[xarray.Dataset, bool]:
        """The result, read or computed, and whether it was computed now."""
        if self.has(simulation, seed) and not force:
            return self.read(simulation, seed), False
        return self.write(simulation, seed, compute()), True
