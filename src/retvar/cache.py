"""Datasets kept on disk: named by what determines them, whole or not there, damage found."""

from __future__ import annotations

import hashlib
import io
import json
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from retvar.errors import InputError
from retvar.files import write_with

if TYPE_CHECKING:
    import xarray

__all__ = ["Seal", "code_digest", "contents", "read", "seal_of", "write"]

ASIDE = (  # these change no number
    *("__init__.py", "__main__.py", "errors.py", "files.py", "cache.py", "signals.py"),
    "testing.py",
    *("cli", "experience", "experiments", "plots", "report", "sweep"),
)
MARK = b"\nretvar "  # what comes before the seal, after the end of the netCDF file proper


class Seal(NamedTuple):
    """The last line of a file: what determines it, what it holds, and a checksum of its bytes."""

    key: str
    contents: str
    checksum: str


@cache
def code_digest() -> str:
    """A digest of every file of the package that can change a number.

    >>> len(code_digest())
    64
    """
    root = Path(__file__).resolve().parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if name.parts[0] not in ASIDE:
            digest.update(name.as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def contents(data: xarray.Dataset) -> str:
    """A digest of all that a dataset holds, whatever file it is in.

    >>> import xarray
    >>> contents(xarray.Dataset({"x": 1.0})) == contents(xarray.Dataset({"x": 2.0}))
    False
    """
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
    """Keep a dataset; the file appears whole or not at all.

    Classic netCDF takes a tenth of netCDF-4's time to write, but has no integers of 64 bits.

    >>> import tempfile, xarray
    >>> path = Path(tempfile.mkdtemp()) / "one.nc"
    >>> _ = write(path, xarray.Dataset({"x": 1.0}), key="one")
    >>> float(read(path, key="one").x)
    1.0
    """
    data = data.assign_attrs(key=key, contents=contents(data))
    if classic:
        raw = memoryview(data.to_netcdf(engine="scipy"))
    else:
        room = io.BytesIO()  # HDF5 itself does not say when a disk is full
        data.to_netcdf(room, engine="h5netcdf")
        raw = room.getbuffer()  # no copy of it is made
    with raw:  # let go of even if the disk is full: a traceback would keep it, and with it the room
        seal = Seal(key, data.attrs["contents"], _checksum(raw, key, data.attrs["contents"]))

        def fill(temporary: Path) -> None:
            with temporary.open("wb") as file:
                file.write(raw)
                file.write(MARK + " ".join(seal).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())

        write_with(path, fill)
    return data


def _checksum(raw: Any, key: str, held: str) -> str:
    """Of all that stands before it in the file."""
    digest = hashlib.sha256(raw)
    digest.update(f" {key} {held}".encode())
    return digest.hexdigest()


def _unsealed(path: Path) -> tuple[bytes, Seal]:
    """The bytes of the netCDF file, checked, and its seal; ValueError for damage."""
    raw, mark, line = path.read_bytes().rpartition(MARK)
    words = line.decode("ascii").split(" ")
    if not mark or len(words) != 3 or not line.endswith(b"\n"):
        raise ValueError("it is cut off")
    seal = Seal(words[0], words[1], words[2].strip())
    if _checksum(raw, seal.key, seal.contents) != seal.checksum:
        raise ValueError("its checksum is wrong")
    return raw, seal


def seal_of(path: Path) -> Seal | None:
    """The seal of a file that is sound, None where it is missing or damaged.

    >>> import tempfile
    >>> damaged = Path(tempfile.mkdtemp()) / "one.nc"
    >>> _ = damaged.write_bytes(b"netCDF, or so it says")
    >>> seal_of(damaged)
    """
    try:
        return _unsealed(path)[1]
    except (OSError, ValueError):
        return None


def read(path: Path, key: str, remedy: str = "compute it again") -> xarray.Dataset:
    """A dataset that was kept, checked; what is wrong with it names the file and the remedy."""
    import xarray

    trouble = f"is damaged or no result of retvar; {remedy}"
    try:
        raw, seal = _unsealed(path)
        engine = "scipy" if raw.startswith(b"CDF") else "h5netcdf"
        with xarray.open_dataset(io.BytesIO(raw), engine=engine) as opened:
            data = opened.load()
    except Exception as error:  # whatever a broken file makes the reader do
        raise InputError("results", path, f"{trouble} ({type(error).__name__})") from None
    if not data.attrs.get("key") == seal.key == key:
        raise InputError("results", path, trouble)
    if not data.attrs.get("contents") == seal.contents == contents(data):
        raise InputError("results", path, trouble)
    return data
