"""Write files whole or not at all: a temporary file beside the target, fsync, then `os.replace`."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from retvar.support.errors import InputError, WriteError

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
