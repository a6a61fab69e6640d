"""Write files atomically: a file appears whole, or not at all, and survives a power cut.

The contents go to a temporary file in the same folder, which is synced and then moved into place.
Its name tells the process that writes it, so that the next write in the same folder can remove what
a killed process left behind, and nothing of one that lives. Folders are made durable, too.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal
from zlib import crc32

from retvar.errors import InputError, WriteError
from retvar.processes import lives, machine

__all__ = [
    "FULL",
    "create_temporary",
    "discard",
    "is_temporary",
    "kind_of",
    "make_folder",
    "make_temporary_folder",
    "put_first",
    "remove",
    "remove_abandoned",
    "remove_unfinished",
    "require_writable",
    "target_of",
    "temporary_beside",
    "unfinished",
    "unwritable",
    "write_new",
    "write_text",
    "write_with",
    "written",
]

OLD = 24 * 3600.0  # seconds after which a temporary file of another machine counts as abandoned
LONGEST = 60  # bytes of the name, and of the suffix, that a temporary file repeats
TEMPORARY = re.compile(
    r"\..*-(?P<host>[0-9a-f]{8})\.(?P<pid>\d+)\.[0-9a-f]{8}(\.[^.]+)?", re.DOTALL
)
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}  # the disk's fault, not the path's

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
    target = target_of(path)
    remove_abandoned(target.parent)
    try:
        temporary = create_temporary(target)
    except OSError as error:
        raise unwritable(path, error) from None
    try:
        yield temporary
        _sync(temporary, os.O_RDWR)
        (place or os.replace)(temporary, target)
        written.append(path)
        _sync_folder(target.parent)
    except OSError as error:
        raise unwritable(path, error) from None
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
        _sync_folder(each.parent)


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
        raise unwritable(folder, error, field) from None


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


def remove_abandoned(folder: Path) -> None:
    """Remove the temporary files and folders in a folder whose writers are dead.

    Whether a writer on another machine lives is not known here: what it has not touched for a day
    counts as abandoned.

    >>> import tempfile
    >>> remove_abandoned(Path(tempfile.mkdtemp()))  # nothing to remove
    """
    with contextlib.suppress(OSError):
        with os.scandir(folder) as entries:
            found = [parts for entry in entries if (parts := TEMPORARY.fullmatch(entry.name))]
        for parts in found:
            if parts["host"] == _host() and not lives(int(parts["pid"])):
                _try_to_delete(folder / parts[0])
        if theirs := [folder / parts[0] for parts in found if parts["host"] != _host()]:
            now = _time_in(folder)
            for path in theirs:
                if _youngest(path, now) > OLD:
                    _try_to_delete(path)


def _youngest(path: Path, now: float) -> float:
    """Seconds between now and the nearest date of a file, or of anything in a folder.

    A date far in the future is as old as one in the past.
    """
    inside = () if path.is_symlink() else path.rglob("*")
    try:
        return float(min(abs(now - each.lstat().st_mtime) for each in (path, *inside)))
    except OSError:  # it is changing
        return 0.0


def _try_to_delete(path: Path) -> None:
    with contextlib.suppress(OSError):
        _delete(path)


def _time_in(folder: Path) -> float:
    """The time by the clock that dates files in a folder, which may be that of a file server."""
    probe = create_temporary(folder / "now")
    try:
        return probe.stat().st_mtime
    finally:
        discard(probe)


def target_of(path: Path) -> Path:
    """The regular file that is meant, links followed; it need not exist.

    >>> target_of(Path(__file__)) == Path(__file__).resolve()
    True
    """
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
    temporary = _temporary_name(target)
    unfinished.add(temporary)
    try:
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, mode))
    except OSError:
        unfinished.discard(temporary)
        raise
    return temporary


def make_temporary_folder(name: str, root: str | Path | None = None, field: str = "root") -> Path:
    """Make a folder of this user for temporary files, which :func:`discard` removes.

    It is made in `root`, which the setting `field` names, or in the system's folder for such files.
    Folders of processes that were killed are removed first.

    >>> folder = make_temporary_folder("retvar-sort")
    >>> discard(folder); folder.exists()
    False
    """
    if root is None:
        field = "TMPDIR"
    given = os.environ.get("TMPDIR", "not set") if root is None else root
    try:
        where = Path(root or tempfile.gettempdir()).absolute()
        if root is not None:
            make_folder(where)
        remove_abandoned(where)
        folder = _temporary_name(where / name)
        unfinished.add(folder)
        folder.mkdir(0o700)
    except OSError as error:
        remedy = f"no folder for temporary files can be made ({_reason(error)}); set {field} to one"
        raise _kind(error)(field, given, remedy) from None
    return folder


def discard(temporary: Path) -> None:
    """Remove a temporary file or folder of this process, unless it was moved.

    >>> import tempfile
    >>> temporary = create_temporary(Path(tempfile.mkdtemp()) / "a.txt")
    >>> discard(temporary); discard(temporary)
    """
    _delete(temporary)
    unfinished.discard(temporary)


def _delete(path: Path) -> None:
    """Remove a file, or a folder of this user with all that is in it."""
    try:
        own = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(own.st_mode):
        path.unlink(missing_ok=True)
    elif own.st_uid == os.getuid():
        shutil.rmtree(path, ignore_errors=True)


def remove_unfinished() -> None:
    """Remove what this process has not finished, since it is about to be ended.

    >>> import tempfile
    >>> temporary = create_temporary(Path(tempfile.mkdtemp()) / "a.txt")
    >>> remove_unfinished()
    >>> temporary.exists()
    False
    """
    while unfinished:
        _try_to_delete(unfinished.pop())


def _host() -> str:
    return f"{crc32(machine().encode()):08x}"


def _sync(path: Path, how: int) -> None:
    """Flush a file or folder to the disk."""
    handle = os.open(path, how)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_folder(folder: Path) -> None:
    """Flush a folder, where the file system can do that and this user may read it."""
    with contextlib.suppress(OSError):
        _sync(folder, os.O_RDONLY)


def _temporary_name(target: Path) -> Path:
    """A new name beside `target`; it repeats as much of its name as file systems have room for."""
    stem = os.fsencode(target.stem)[:LONGEST].decode("utf-8", "ignore")
    suffix = target.suffix if len(os.fsencode(target.suffix)) <= LONGEST else ""
    owner = f"{_host()}.{os.getpid()}"
    return target.with_name(f".{stem}-{owner}.{secrets.token_hex(4)}{suffix}")


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def unwritable(path: Path, error: OSError, field: str = "path") -> InputError:
    """The error for a place that cannot be written; a WriteError if the disk is to blame.

    >>> unwritable(Path("a.txt"), OSError(errno.ENOSPC, "No space left on device"))
    WriteError('path', PosixPath('a.txt'), 'cannot be written: No space left on device')
    """
    return _kind(error)(field, path, f"cannot be written: {_reason(error)}")


def _kind(error: OSError) -> type[InputError]:
    return WriteError if error.errno in FULL else InputError
