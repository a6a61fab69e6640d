"""Datasets saved as netCDF files with a footer: a key, a digest of the contents, a checksum."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import math
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from retvar.errors import InputError
from retvar.files import write_with
from retvar.format import visible
from retvar.reading import free_memory, read_bytes

if TYPE_CHECKING:
    import xarray

__all__ = [
    "Footer",
    "code_digest",
    "contents",
    "footer_of",
    "read",
    "storable",
    "write",
    "write_netcdf",
]

NOT_NUMERICAL = (  # modules and packages whose code changes no number
    *("__init__.py", "__main__.py", "errors.py", "files.py", "cache.py", "signals.py"),
    "reading.py",
    *("testing", "progress.py", "format.py", "cluster.py"),
    *("cli", "curves", "estimation", "experience", "experiments", "plots", "report", "sweep"),
    "web",
)
UNSTORABLE = re.compile("[\0\ud800-\udfff]")
MARK = b"\nretvar "  # begins the footer, after the end of the netCDF data
LONGEST_FOOTER = 1_000  # bytes
SPARE = 1 << 20  # bytes that data may have beyond four times those of their file
TEXT = 16  # bytes of an HDF5 variable per text: its length (4), and where it lies
PADDING = 1 << 28  # bytes by which texts may grow that become as long as the longest
MOST_PARTS = 2_000  # variables and attributes of a file
MOST_DIMENSIONS = 8
READS = 10  # of a classic netCDF file, for each variable or attribute


class Footer(NamedTuple):
    """The last line of a file."""

    key: str  #: digest of the settings that determine the data
    contents: str  #: digest of the data
    checksum: str  #: of all bytes before it


@cache
def code_digest() -> str:
    """A digest of all source files of the package that can change a number.

    >>> len(code_digest())
    64
    """
    root = Path(__file__).resolve().parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if name.parts[0] not in NOT_NUMERICAL:
            digest.update(name.as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def contents(data: xarray.Dataset) -> str:
    """A digest of the variables of a dataset, independent of the file format.

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


def storable(data: xarray.Dataset) -> xarray.Dataset:
    r"""The dataset with texts that netCDF can hold: NUL and lone surrogates become escapes.

    >>> import xarray
    >>> storable(xarray.Dataset({"x": ("a", ["b\0c"])}, attrs={"name": "d\0"})).x.item()
    'b\\x00c'
    """

    def stored(given: Any) -> Any:
        return UNSTORABLE.sub(lambda found: visible(found[0]), given) if _is_bad(given) else given

    names = [
        name
        for name, variable in data.variables.items()
        if variable.dtype.kind in "OUT" and any(map(_is_bad, variable.values.ravel().tolist()))
    ]
    fixed = {name: data[name].copy(data=_each(stored, data[name].values)) for name in names}
    attributes = {name: stored(given) for name, given in data.attrs.items()}
    return (
        data.assign_coords({n: x for n, x in fixed.items() if n in data.coords})
        .assign({n: x for n, x in fixed.items() if n not in data.coords})
        .assign_attrs(attributes)
    )


def _is_bad(given: Any) -> bool:
    return isinstance(given, str) and UNSTORABLE.search(given) is not None


def _each(function: Any, values: Any) -> Any:
    return np.array([function(x) for x in values.ravel().tolist()]).reshape(values.shape)


def write(path: Path, data: xarray.Dataset, key: str, *, classic: bool = False) -> xarray.Dataset:
    """Save a dataset; the file appears complete or not at all.

    Classic netCDF is written in a tenth of the time of netCDF-4, but has no 64-bit integers.

    >>> import tempfile, xarray
    >>> path = Path(tempfile.mkdtemp()) / "one.nc"
    >>> _ = write(path, xarray.Dataset({"x": 1.0}), key="one")
    >>> float(read(path, key="one").x)
    1.0
    """
    data = storable(data)
    data = data.assign_attrs(key=key, contents=contents(data))
    raw = memoryview(data.to_netcdf(engine="scipy")) if classic else _hdf5(data)
    with raw:  # released even if the disk is full: a traceback would hold it
        footer = Footer(key, data.attrs["contents"], _checksum(raw, key, data.attrs["contents"]))

        def fill(temporary: Path) -> None:
            with temporary.open("wb") as file:
                file.write(raw)
                file.write(MARK + " ".join(footer).encode() + b"\n")

        write_with(path, fill)
    return data


def write_netcdf(path: Path, data: xarray.Dataset) -> None:
    """Write a dataset as netCDF-4 without a footer; the file appears complete or not at all.

    >>> import tempfile, xarray
    >>> path = Path(tempfile.mkdtemp()) / "one.nc"
    >>> write_netcdf(path, xarray.Dataset({"x": 1.0}))
    >>> with xarray.open_dataset(path, engine="h5netcdf") as data:
    ...     float(data.x)
    1.0
    """
    with _hdf5(storable(data)) as raw:
        write_with(path, lambda temporary: temporary.write_bytes(raw))


def _hdf5(data: xarray.Dataset) -> memoryview:
    """The bytes of a netCDF-4 file; HDF5 itself may crash on a full disk."""
    buffer = io.BytesIO()
    data.to_netcdf(buffer, engine="h5netcdf")
    return buffer.getbuffer()  # a view, no copy


def _checksum(raw: Any, key: str, contents_digest: str) -> str:
    """Checksum of everything before it in the file."""
    digest = hashlib.sha256(raw)
    digest.update(f" {key} {contents_digest}".encode())
    return digest.hexdigest()


def _split(path: Path) -> tuple[bytes, Footer]:
    """The netCDF data and the footer of a file; ValueError if it is damaged."""
    whole = read_bytes(path, "results", int(free_memory() / 2))
    if MARK not in whole[-LONGEST_FOOTER:]:
        raise ValueError("the file is truncated")
    raw, mark, line = whole.rpartition(MARK)
    parts = line.decode("ascii").split(" ")
    if not mark or len(parts) != 3 or not line.endswith(b"\n"):
        raise ValueError("the file is truncated")
    footer = Footer(parts[0], parts[1], parts[2].strip())
    if _checksum(raw, footer.key, footer.contents) != footer.checksum:
        raise ValueError("the checksum is wrong")
    return raw, footer


def _largest(size: int) -> int:
    """The most bytes of data that a file of `size` bytes may have; retvar compresses nothing."""
    return 4 * size + SPARE


class _Bounded(io.BytesIO):
    """A classic netCDF file, whose bytes may not be read again and again as other variables."""

    left = 0
    reads = 0

    def __init__(self, raw: bytes) -> None:
        super().__init__(raw)
        self.left, self.reads = _largest(len(raw)), READS * MOST_PARTS

    def read(self, size: int | None = -1) -> bytes:
        found = super().read(size)
        self.left -= len(found)
        self.reads -= 1
        if self.left < 0:
            raise ValueError("its variables are larger than the file")
        if self.reads < 0:
            raise ValueError("it has too many variables or attributes")
        return found


def _refuse_absurd(raw: bytes) -> None:
    """Refuse an HDF5 file with anything that retvar does not write, before its data are read."""
    import h5py

    total, padded, parts = 0, 0, 0
    with h5py.File(io.BytesIO(raw), "r") as file:
        for name in [None, *itertools.islice(file, MOST_PARTS)]:
            if name and not isinstance(file.get(name, getlink=True), h5py.HardLink):
                raise ValueError("it has links to other files")
            found = file[name] if name else file
            parts += 1 + len(found.attrs)
            if parts > MOST_PARTS:
                raise ValueError("it has too many variables or attributes")
            size, wide = _variable_size(found, raw) if name else (0, 0)
            total += size + sum(_attribute_size(found, each) for each in found.attrs)
            padded += wide
            if total > _largest(len(raw)) or padded > _largest(len(raw)) + PADDING:
                raise ValueError("its variables are larger than the file")


def _variable_size(found: Any, raw: bytes) -> tuple[int, int]:
    """The bytes of a variable, and those of its texts once all are as long as the longest.

    It has plain numbers, or texts, that lie in the file as they are.
    """
    import h5py

    if not isinstance(found, h5py.Dataset) or found.external or found.is_virtual:
        raise ValueError("it has data in other files, or groups")
    settings, count = found.id.get_create_plist(), math.prod(found.shape or ())
    contiguous = settings.get_layout() == h5py.h5d.CONTIGUOUS
    if settings.get_nfilters() or (count and not contiguous) or found.ndim > MOST_DIMENSIONS:
        raise ValueError("its variables are compressed, in chunks, or of too many dimensions")
    if not _is_long_text(found.dtype):
        return count * _plain(found.dtype).itemsize, 0
    start = found.id.get_offset()
    if count and (start is None or found.id.get_storage_size() != TEXT * count):
        raise ValueError("its texts were never written")
    lengths = np.frombuffer(raw, "<u4", count * TEXT // 4, start or 0)[:: TEXT // 4]
    longest = int(lengths.max(initial=0))
    return TEXT * count + int(lengths.sum(dtype=np.uint64)), 4 * count * longest


def _attribute_size(of: Any, name: str) -> int:
    """The bytes of an attribute: plain numbers, one text, or the scales of dimensions."""
    import h5py

    found = of.attrs.get_id(name)
    size, kind = int(found.get_storage_size()), found.dtype
    if name == "DIMENSION_LIST":
        refers = h5py.check_ref_dtype(h5py.check_vlen_dtype(kind) or np.dtype(int))
        if not refers or found.shape != (of.ndim,):
            raise ValueError("its dimensions have no scales")
        if any(h5py.h5ds.get_num_scales(of.id, axis) > 1 for axis in range(of.ndim)):
            raise ValueError("a dimension has several scales")
    elif name == "REFERENCE_LIST":
        if kind.names != ("dataset", "dimension") or not h5py.check_ref_dtype(kind["dataset"]):
            raise ValueError("a scale has no dimensions")
    elif _is_long_text(kind):
        if found.shape not in ((), (1,)):
            raise ValueError("an attribute has several texts")
        size += len(np.asarray(of.attrs[name]).item())
    else:
        _plain(kind)
    return size


def _is_long_text(kind: Any) -> bool:
    """Whether a type is that of texts of any length, which lie elsewhere in the file."""
    import h5py

    text = h5py.check_string_dtype(kind)
    return text is not None and text.length is None


def _plain(kind: Any) -> Any:
    if kind.kind not in "biufS":
        raise ValueError("it has data that are neither numbers nor texts")
    return kind


def footer_of(path: Path) -> Footer | None:
    """The footer of a file; None if the file is missing or damaged.

    >>> import tempfile
    >>> damaged = Path(tempfile.mkdtemp()) / "one.nc"
    >>> _ = damaged.write_bytes(b"not netCDF")
    >>> footer_of(damaged)
    """
    try:
        return _split(path)[1]
    except ValueError:
        return None


def read(path: Path, key: str, remedy: str = "compute it again") -> xarray.Dataset:
    """Read a saved dataset and check it; errors name the file and the remedy."""
    problem = f"is damaged or no result of retvar; {remedy}"
    try:
        raw, footer = _split(path)
        data = _loaded(raw)
        stored = data.attrs.get("key"), data.attrs.get("contents")
        same = stored == footer[:2] == (key, contents(data))
    except Exception as error:  # a broken file can raise anything in the reader
        raise InputError("results", path, f"{problem} ({type(error).__name__})") from None
    if not same:
        raise InputError("results", path, problem)
    return data


def _loaded(raw: bytes) -> xarray.Dataset:
    """The dataset in the bytes of a netCDF file of either kind."""
    import xarray

    if raw.startswith(b"CDF"):
        with xarray.open_dataset(_Bounded(raw), engine="scipy") as opened:
            return opened.load()
    _refuse_absurd(raw)
    with xarray.open_dataset(io.BytesIO(raw), engine="h5netcdf") as opened:
        return opened.load()
