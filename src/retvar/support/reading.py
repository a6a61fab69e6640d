"""Read what others wrote: files, JSON, TOML and arrays, with typed errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retvar.support.errors import InputError
from retvar.support.files import kind_of

if TYPE_CHECKING:
    from numpy.typing import NDArray


def require_file(path: Path, field: str = "file") -> int:
    """The size of a regular file in bytes; an InputError for anything else."""
    if not (kind := kind_of(field, path)):
        raise InputError(field, path, "does not exist; check the path")
    if kind != "file":
        raise InputError(field, path, f"is a {kind}; name a file")
    return path.stat().st_size


def read_bytes(path: Path, field: str = "file") -> bytes:
    """The contents of a regular file."""
    require_file(path, field)
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(field, path, f"cannot be read: {error.strerror}") from None


def read_json(path: Path, field: str = "file") -> Any:
    """The JSON in a file."""
    return parse_json(read_bytes(path, field), field, path)


def parse_json(text: str | bytes, field: str, given: object = None) -> Any:
    """The data in a JSON text; errors show `given`, by default the text."""
    try:
        return json.loads(text if isinstance(text, str) else str(text, "utf-8-sig"))
    except (ValueError, RecursionError) as error:
        given = text if given is None else given
        raise InputError(field, given, f"is not JSON: {error}") from None


def parse_toml(text: str | bytes, name: str, kind: Any = dict[str, Any]) -> Any:
    """The data in a TOML text, as an object of `kind`; errors begin with `name`, the file's name.

    A wrong type raises a :class:`msgspec.ValidationError`.
    """
    import msgspec

    try:
        decoded = text if isinstance(text, str) else str(text, "utf-8")
        return msgspec.toml.decode(decoded, type=kind)
    except msgspec.ValidationError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(name, "not TOML", str(error)) from None


def load_array(path: Path, field: str = "file") -> NDArray[Any]:
    """The array in a ``.npy`` file; no pickled objects."""
    import numpy as np

    require_file(path, field)
    try:
        return np.asarray(np.load(path, allow_pickle=False))
    except Exception as error:  # a damaged header may raise anything
        raise InputError(field, path, f"cannot be read: {error}") from None


def free_memory() -> float:
    """The free memory in bytes, as far as it is known."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            found = {line.split(":")[0]: line.split()[1] for line in lines}
        return 1024.0 * float(found["MemAvailable"])
    except (OSError, KeyError, IndexError, ValueError):
        return 8e9
