"""Write files atomically: a file appears complete or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from retvar.errors import InputError

__all__ = ["write_text", "write_with"]


def write_with(path: Path, write: Callable[[Path], object]) -> None:
    """Call `write` with a temporary path in the same folder, then move that file to `path`.

    >>> folder = Path(tempfile.mkdtemp())
    >>> write_with(folder / "a.txt", lambda temporary: temporary.write_text("text"))
    >>> [file.name for file in folder.iterdir()]
    ['a.txt']
    """
    if not path.parent.is_dir():
        raise InputError("path", path, "its folder does not exist; create it first")
    if path.is_dir():
        raise InputError("path", path, "is a folder; name a file")
    try:
        handle, name = tempfile.mkstemp(
            dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix
        )
    except OSError as error:
        raise _unwritable(path, error) from None
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        os.replace(temporary, path)
    except OSError as error:
        raise _unwritable(path, error) from None
    finally:
        temporary.unlink(missing_ok=True)


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError("path", path, f"cannot be written: {error.strerror or error}")


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8.

    >>> file = Path(tempfile.mkdtemp()) / "a.txt"
    >>> write_text(file, "λ")
    >>> file.read_text(encoding="utf-8")
    'λ'
    """
    write_with(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
