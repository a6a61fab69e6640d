"""Finished simulations on disk: netCDF files named by what determines their contents."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from retvar.errors import InputError
from retvar.experiments.declare import Simulation
from retvar.files import write_with

if TYPE_CHECKING:
    import xarray

__all__ = ["Store", "code_digest", "contents"]

ASIDE = (  # these change no number
    *("__init__.py", "__main__.py", "errors.py", "files.py", "signals.py", "testing.py"),
    *("cli", "experience", "experiments", "plots", "report"),
)


@cache
def code_digest() -> str:
    """A digest of every file of the package that can change a number."""
    root = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if name.parts[0] not in ASIDE:
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
    """A folder of finished simulations.

    >>> import tempfile, retvar as rv
    >>> store = Store(Path(tempfile.mkdtemp()))
    >>> one = Simulation("one", rv.domains.chain(), {"direct": rv.Direct(alpha=0.1)}, episodes=10)
    >>> _ = store.write(one, 0, one.run(seed=0))
    >>> store.has(one, 0), store.has(one, 1), store.read(one, 0).sizes["episode"]
    (True, False, 10)
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, simulation: Simulation, seed: int) -> Path:
        """Where a simulation's result is, or will be."""
        name = re.sub(r"[^\w.+-]+", "-", simulation.name).lstrip(".")[:80]
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
        room = io.BytesIO()  # HDF5 itself does not say when a disk is full
        data.to_netcdf(room, engine="h5netcdf")

        def write(temporary: Path) -> None:
            with temporary.open("wb") as file:
                file.write(room.getbuffer())
                file.flush()
                os.fsync(file.fileno())

        write_with(self.path(simulation, seed), write)
        return data
