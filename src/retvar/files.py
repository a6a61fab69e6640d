"""Write files atomically: a file appears whole, or not at all, and survives a power cut.

The contents go to a temporary file in the same folder, which is synced and then moved into place.
Its name tells the process that writes it, so that the next write to the same path can remove what
a killed process left behind, and nothing of one that lives. Folders are made durable, too.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import socket
import stat
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Literal
from zlib import crc32

from retvar.errors import InputError

__all__ = [
    "create_temporary",
    "discard",
    "is_abandoned",
    "is_temporary",
    "kind_of",
    "machine",
    "make_folder",
    "put_first",
    "remove",
    "remove_abandoned",
    "remove_unfinished",
    "require_writable",
    "temporary_beside",
    "unfinished",
    "write_new",
    "write_text",
    "write_with",
    "written",
]

OLD = 24 * 3600.0  # seconds after which a temporary file of another machine counts as abandoned
LONGEST = 60  # letters of the name that a temporary file repeats
TEMPORARY = re.compile(r"\.(?P<stem>.*)-(?P<host>[0-9a-f]{8})\.(?P<pid>\d+)\.[0-9a-f]{8}(\.\w+)?")

unfinished: set[Path] = set()  #: temporary files and folders that this process is filling
written: deque[Path] = deque(maxlen=4)  #: the last files that it has written


def write_with(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file in the folder of `path`, then move it into place.

    A symbolic link is followed: the file that it points to is replaced, the link stays.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> write_with(folder / "a.txt", lambda temporary: temporary.write_text("whole"))
    >>> [file.name for file in folder.iterdir()]
    ['a.txt']
    """
    with temporary_beside(path) as temporary:
        write(temporary)


@contextlib.contextmanager
def temporary_beside(
    path: Path, place: Callable[[Path, Path], None] | None = None
) -> Iterator[Path]:
    """A temporary file that replaces `path` when the block ends without an error.

    `place` moves it there; default: :func:`os.replace`.
    """
    path = Path(path)
    target = _target(path)
    remove_abandoned(target)
    try:
        temporary = create_temporary(target)
    except OSError as error:
        raise _unwritable(path, error) from None
    try:
        yield temporary
        _sync(temporary, os.O_RDWR)
        (place or os.replace)(temporary, target)
        written.append(path)
        _sync(target.parent, os.O_RDONLY)
    except OSError as error:
        raise _unwritable(path, error) from None
    finally:
        discard(temporary)


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "a.txt"
    >>> write_text(file, "λ")
    >>> file.read_text(encoding="utf-8")
    'λ'
    """
    write_with(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_new(path: Path, text: str) -> None:
    """Write `text` as UTF-8 unless the file exists: of two that write at once, the first one wins.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "a.txt"
    >>> write_new(file, "first"); write_new(file, "second"); file.read_text()
    'first'
    """
    with temporary_beside(path, put_first) as temporary:
        temporary.write_text(text, encoding="utf-8")


def put_first(temporary: Path, target: Path) -> None:
    """Move a temporary file into place, unless another file is there.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> temporary = create_temporary(folder / "a.txt")
    >>> put_first(temporary, folder / "a.txt"); (folder / "a.txt").exists()
    True
    """
    try:
        os.link(temporary, target)
    except FileExistsError:
        return
    except OSError:  # some file systems have no links
        os.replace(temporary, target)


def make_folder(path: Path) -> None:
    """Make a folder and those above it, unless they exist; each survives a power cut.

    >>> import tempfile
    >>> make_folder(Path(tempfile.mkdtemp()) / "a" / "b")
    """
    path = Path(path)
    missing = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for each in missing:
        _sync(each.parent, os.O_RDONLY)


def require_writable(field: str, folder: Path) -> None:
    """Raise an InputError unless a file can be made in a folder.

    >>> import tempfile
    >>> require_writable("--out", Path(tempfile.mkdtemp()))
    >>> require_writable("--out", Path("missing"))
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: --out = missing: cannot be written: No such file or directory
    """
    try:
        discard(create_temporary(folder / "empty"))
    except OSError as error:
        raise InputError(field, folder, f"cannot be written: {_reason(error)}") from None


def kind_of(field: str, path: Path) -> Literal["file", "folder", "device", ""]:
    """What is at a path, links followed; empty where nothing is. A pipe is a device, too.

    >>> kind_of("--out", Path(__file__)), kind_of("--out", Path("missing"))
    ('file', '')
    >>> kind_of("--out", Path("a" * 300))
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: --out = aaa...: cannot be looked at: File name too long
    """
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, ValueError) as error:
        raise InputError(field, path, f"cannot be looked at: {_reason(error)}") from None
    return "folder" if stat.S_ISDIR(mode) else "file" if stat.S_ISREG(mode) else "device"


def remove(path: Path) -> None:
    """Remove a file, unless there is none.

    >>> remove(Path("missing"))
    >>> remove(Path(__file__).parent)
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: path = ...retvar: cannot be removed: Is a directory
    """
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise InputError("path", path, f"cannot be removed: {_reason(error)}") from None


def is_temporary(path: Path) -> bool:
    """Whether a file has the name of a temporary file.

    >>> is_temporary(Path(".a-01234567.99.89abcdef.txt")), is_temporary(Path(".a-notes.txt"))
    (True, False)
    """
    return TEMPORARY.fullmatch(path.name) is not None


def is_abandoned(path: Path) -> bool:
    """Whether a file is a temporary file whose writer is dead.

    >>> is_abandoned(Path("a.txt"))
    False
    """
    parts = TEMPORARY.fullmatch(path.name)
    return parts is not None and _abandoned(path, parts)


def remove_abandoned(path: Path) -> None:
    """Remove temporary files for `path` whose writers are dead.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "a.txt"
    >>> remove_abandoned(file)  # nothing to remove
    """
    with contextlib.suppress(OSError):
        for found in path.parent.glob(f".{_escaped(_stem(path))}-*"):
            parts = TEMPORARY.fullmatch(found.name)
            if parts is not None and parts["stem"] == _stem(path) and _abandoned(found, parts):
                with contextlib.suppress(OSError):
                    found.unlink()


def _target(path: Path) -> Path:
    """The regular file that is meant, links followed; it need not exist."""
    try:
        target = Path(os.path.realpath(path))
        if not target.parent.is_dir():
            raise InputError("path", path, "its folder does not exist; create it first")
        mode = target.stat().st_mode
    except FileNotFoundError:
        return target
    except (OSError, ValueError) as error:
        raise InputError("path", path, f"cannot be written: {_reason(error)}") from None
    if stat.S_ISDIR(mode):
        raise InputError("path", path, "is a folder; name a file")
    if not stat.S_ISREG(mode):
        raise InputError("path", path, "is a device or a pipe; name a file")
    return target


def create_temporary(target: Path, mode: int = 0o666) -> Path:
    """Create an empty temporary file in the folder of `target`; its name holds the process id.

    The kernel applies the umask to its `mode`.

    >>> import tempfile
    >>> create_temporary(Path(tempfile.mkdtemp()) / "a.txt").suffix
    '.txt'
    """
    owner = f"{_host()}.{os.getpid()}"
    temporary = target.with_name(f".{_stem(target)}-{owner}.{secrets.token_hex(4)}{target.suffix}")
    unfinished.add(temporary)
    try:
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, mode))
    except OSError:
        unfinished.discard(temporary)
        raise
    return temporary


def discard(temporary: Path) -> None:
    """Remove a temporary file of this process, unless it was moved.

    >>> import tempfile
    >>> temporary = create_temporary(Path(tempfile.mkdtemp()) / "a.txt")
    >>> discard(temporary); discard(temporary)
    """
    temporary.unlink(missing_ok=True)
    unfinished.discard(temporary)


def remove_unfinished() -> None:
    """Remove what this process has not finished, since it is about to be ended.

    >>> import tempfile
    >>> temporary = create_temporary(Path(tempfile.mkdtemp()) / "a.txt")
    >>> remove_unfinished()
    >>> temporary.exists()
    False
    """
    while unfinished:
        path = unfinished.pop()
        with contextlib.suppress(OSError):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _abandoned(temporary: Path, parts: re.Match[str]) -> bool:
    """Whether the process that wrote it is dead, or on another machine and the file old.

    A file that is dated far into the future is old, too.
    """
    if parts["host"] != _host():
        return abs(time.time() - temporary.stat().st_mtime) > OLD
    try:
        os.kill(int(parts["pid"]), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


@cache
def machine() -> str:
    """The host name, and on Linux the boot and the container, within which process ids are unique.

    >>> machine().startswith(socket.gethostname())
    True
    """
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _host() -> str:
    return f"{crc32(machine().encode()):08x}"


def _sync(path: Path, how: int) -> None:
    """Flush a file or folder to the disk; some file systems cannot sync folders."""
    handle = os.open(path, how)
    try:
        os.fsync(handle)
    except OSError:
        if how == os.O_RDWR:
            raise
    finally:
        os.close(handle)


def _stem(path: Path) -> str:
    """The start of the name of a temporary file; long names would exceed the file system's."""
    return path.stem[:LONGEST]


def _escaped(stem: str) -> str:
    """A name that glob takes literally."""
    return re.sub(r"([*?[])", r"[\1]", stem)


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError("path", path, f"cannot be written: {_reason(error)}")
