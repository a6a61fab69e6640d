"""Write files whole or not at all, and read what others wrote, with typed errors.

A file is written beside its target under a temporary name, synced, then moved by `os.replace`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from retvar.support.errors import InputError, WriteError

if TYPE_CHECKING:
    from numpy.typing import NDArray

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}  # the disk's fault, not the path's
LONGEST = 60  # characters of a name that a temporary file repeats


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8."""
    write_with(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_with(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file in the folder of `path`, then move it into place.

    A symbolic link is followed: the file that it points to is replaced, the link stays.
    """
    target = _target_of(path)
    stem = target.stem[:LONGEST].encode()[:LONGEST].decode(errors="ignore")
    # it keeps the suffix, from which some writers take the format
    name = f".{stem}.{secrets.token_hex(4)}.part{target.suffix[:LONGEST]}"
    temporary = target.with_name(name)
    try:
        temporary.touch(exist_ok=False)
        write(temporary)
        _sync(temporary, os.O_RDWR)
        os.replace(temporary, target)
        with contextlib.suppress(OSError):  # not every file system can do that with a folder
            _sync(target.parent, os.O_RDONLY)
    except OSError as error:
        raise unwritable(path, error) from None
    finally:
        temporary.unlink(missing_ok=True)


def remove(path: Path) -> None:
    """Remove a file, unless there is none."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise InputError("path", path, f"cannot be removed: {_reason(error)}") from None


def is_temporary(path: Path) -> bool:
    """Whether a file has the name of a temporary file, which a killed process may leave."""
    return path.name.startswith(".") and ".part" in path.suffixes[-2:]


def require_writable(field: str, folder: Path) -> None:
    """Raise an InputError unless a file can be made in a folder."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise unwritable(folder, error, field) from None


def kind_of(field: str, path: Path) -> Literal["file", "folder", "device", ""]:
    """What is at a path, links followed; empty where nothing is. A pipe is a device, too."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, ValueError) as error:
        raise InputError(field, path, f"cannot be looked at: {_reason(error)}") from None
    return "folder" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "device"


def _target_of(path: Path) -> Path:
    """The file that is meant, links followed; it need not exist."""
    target = Path(os.path.realpath(path))
    if kind_of("path", target.parent) != "folder":
        raise InputError("path", path, "its folder does not exist; create it first")
    if (kind := kind_of("path", target)) not in ("file", ""):
        raise InputError("path", path, f"is a {kind}; name a file")
    return target


def unwritable(path: object, error: OSError, field: str = "path") -> InputError:
    """The error for a place that cannot be written; a WriteError if the disk is to blame."""
    kind = WriteError if error.errno in FULL else InputError
    return kind(field, path, f"cannot be written: {_reason(error)}")


def _sync(path: Path, how: int) -> None:
    """Flush a file or a folder to the disk."""
    handle = os.open(path, how)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


# ---------------------------------------------------------------------- reading


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
