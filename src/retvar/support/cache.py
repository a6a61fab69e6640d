"""Datasets saved as netCDF files with a footer: a key, a digest of the contents, a checksum."""

from __future__ import annotations

import hashlib
import io
import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from retvar.support.errors import InputError
from retvar.support.files import read_bytes, write_with

if TYPE_CHECKING:
    import xarray

PACKAGE = Path(__file__).resolve().parents[1]
ROOMS = ("support", "mdp", "td", "exact", "online", "simulation")
MARK = b"\nretvar "  # begins the footer, after the end of the netCDF data


class Footer(NamedTuple):
    """The last line of a file."""

    key: str  #: digest of the settings that determine the data
    contents: str  #: digest of the data
    checksum: str  #: of all bytes before it


@cache
def code_digest(package: Path = PACKAGE) -> str:
    """A digest of the source files of the rooms that simulations are made of."""
    digest = hashlib.sha256()
    for path in sorted(path for room in ROOMS for path in (package / room).rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def contents(data: xarray.Dataset) -> str:
    """A digest of the variables of a dataset, independent of the file format."""
    digest = hashlib.sha256()
    for name in sorted(data.variables, key=str):
        variable = data.variables[name]
        values = np.asarray(variable.values)
        if values.dtype.kind in "OUST":
            raw: Any = json.dumps(values.astype(str).tolist()).encode()
        else:
            raw = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        digest.update(f"{name} {variable.dims} {variable.shape}".encode())
        digest.update(raw)
    return digest.hexdigest()


def write(path: Path, data: xarray.Dataset, key: str, *, classic: bool = False) -> xarray.Dataset:
    """Save a dataset; the file appears whole or not at all.

    Classic netCDF is written in a tenth of the time of netCDF-4, but has no 64-bit integers.
    """
    data = data.assign_attrs(key=key, contents=contents(data))
    raw = bytes(data.to_netcdf(engine="scipy")) if classic else _hdf5(data)
    footer = Footer(key, data.attrs["contents"], _checksum(raw, key, data.attrs["contents"]))
    whole = b"".join([raw, MARK, " ".join(footer).encode(), b"\n"])
    write_with(path, lambda temporary: temporary.write_bytes(whole))
    return data


def write_netcdf(path: Path, data: xarray.Dataset) -> None:
    """Write a dataset as netCDF-4 without a footer; the file appears whole or not at all."""
    raw = _hdf5(data)
    write_with(path, lambda temporary: temporary.write_bytes(raw))


def read(path: Path, key: str, remedy: str = "compute it again") -> xarray.Dataset:
    """Read a saved dataset and check it; errors name the file and the remedy."""
    import xarray

    try:
        raw, footer = _split(path)
        engine: Any = "scipy" if raw.startswith(b"CDF") else "h5netcdf"
        with xarray.open_dataset(io.BytesIO(raw), engine=engine) as opened:
            data = opened.load()
    except ValueError as error:
        remedy = f"is damaged or no result of retvar; {remedy} ({error})"
        raise InputError("results", path, remedy) from None
    if footer.key != key:
        raise InputError("results", path, f"is the result of another computation; {remedy}")
    return data


def footer_of(path: Path) -> Footer | None:
    """The footer of a file; None if the file is missing or damaged."""
    try:
        return _split(path)[1]
    except ValueError:
        return None


def _split(path: Path) -> tuple[bytes, Footer]:
    """The netCDF data and the footer of a file; ValueError if it is damaged."""
    raw, _, line = read_bytes(path, "results").rpartition(MARK)
    parts = line.decode("ascii", "replace").split()
    if not raw or len(parts) != 3 or not line.endswith(b"\n"):
        raise ValueError("the file is truncated")
    footer = Footer(*parts)
    if _checksum(raw, *footer[:2]) != footer.checksum:
        raise ValueError("the checksum is wrong")
    return raw, footer


def _checksum(raw: bytes, key: str, contents: str) -> str:
    """Checksum of everything before it in the file."""
    return hashlib.sha256(raw + f" {key} {contents}".encode()).hexdigest()


def _hdf5(data: xarray.Dataset) -> bytes:
    """The bytes of a netCDF-4 file; HDF5 itself may crash on a full disk."""
    buffer = io.BytesIO()
    data.to_netcdf(buffer, engine="h5netcdf")
    return buffer.getvalue()
