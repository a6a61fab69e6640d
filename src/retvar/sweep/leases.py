"""Who is computing a cell: small files that say so, on any file system that many can write to.

A claim is created exclusively, so only one can have it, and is touched while its owner works. It is
stale when it was not touched for long, or when its owner ran on this machine and is gone.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from retvar.errors import InputError

__all__ = ["STALE", "Claim", "abandoned", "held", "holder", "owner", "seconds", "take", "void"]

STALE = 60.0  # seconds without a touch
HALF_MADE = 2.0  # seconds that a claim may be without its text
LONGEST = 1e6  # seconds that may be asked for
TICK = 1.0  # seconds for which the file system's clock is believed to go like ours
_ahead: dict[Path, tuple[float, float]] = {}  # when looked, and by how much its clock was ahead


def seconds(field: str, value: float) -> float:
    """A time that can be waited for.

    >>> seconds("stale", 60)
    60
    >>> seconds("stale", float("nan"))
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: stale = nan: must be a number of seconds above 0, at most 1,000,000
    """
    whole = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not whole or not 0 < value <= LONGEST:
        remedy = f"must be a number of seconds above 0, at most {LONGEST:,.0f}"
        raise InputError(field, value, remedy)
    return value


@cache
def owner(pid: int) -> dict[str, Any]:
    """What tells this process apart from any other on any machine.

    >>> owner(os.getpid())["pid"] == os.getpid()
    True
    """
    return {"host": socket.gethostname(), "space": _space(), "pid": pid, "began": _began(pid)}


@cache
def _space() -> str:
    """Where process ids mean the same: this boot of this machine, this container."""
    parts = []
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _began(pid: int) -> str:
    """When a process began, empty where it is gone; ids are used again."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    fields = words.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]


class Claim:
    """A claim that this process holds."""

    def __init__(self, path: Path, token: str) -> None:
        self.path, self.token = path, token

    def touch(self) -> None:
        """Say that its owner is alive."""
        with contextlib.suppress(OSError):  # it may have been taken for stale: no harm
            os.utime(self.path)

    def release(self) -> None:
        """Give it up, if it is still this one."""
        with contextlib.suppress(OSError):
            if (_read(self.path) or {}).get("token") == self.token:
                self.path.unlink(missing_ok=True)


def take(path: Path, stale: float = STALE) -> Claim | None:
    """Claim a cell; None where somebody else has it.

    >>> path = Path(tempfile.mkdtemp()) / "cell"
    >>> claim = take(path)
    >>> claim is not None, take(path) is None
    (True, True)
    >>> claim.release(); path.exists()
    False
    """
    claim = _created(path)
    if claim is None and _broken(path, stale):
        claim = _created(path)
    return claim


def _created(path: Path) -> Claim | None:
    """A new claim; None where there is one."""
    token = uuid.uuid4().hex
    text = json.dumps({**owner(os.getpid()), "token": token, "time": time.time()}).encode()
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    except FileExistsError:
        return None
    except OSError as error:
        raise _unwritable(path, error) from None
    try:
        if os.write(handle, text) < len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        path.unlink(missing_ok=True)
        raise _unwritable(path, error) from None
    finally:
        os.close(handle)
    return Claim(path, token)


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError("path", path, f"cannot be written: {error.strerror or error}")


@contextlib.contextmanager
def held(claim: Claim, stale: float = STALE) -> Iterator[None]:
    """Touch a claim as long as the work goes on, and release it at the end."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(stale / 4):
            claim.touch()

    threading.Thread(target=beat, name="retvar-claim", daemon=True).start()
    try:
        yield
    finally:
        over.set()
        claim.release()


def alive(path: Path, stale: float = STALE) -> bool:
    """Whether somebody is at work under this claim."""
    return void(path, stale) is False


def void(path: Path, stale: float) -> bool | None:
    """Whether nobody is at work under a claim any more; None where there is none.

    >>> void(Path("nowhere"), STALE)
    """
    try:
        path.stat()  # most have none, and to look at the clock costs a file
        now = _now(path.parent)  # before the last touch is read: nothing looks older than it is
        age = now - path.stat().st_mtime
    except FileNotFoundError:
        return None
    except OSError as error:
        remedy = f"cannot be read: {error.strerror}; put it right, or remove it"
        raise InputError("claims", path.parent, remedy) from None
    found = _read(path)
    if found is None:
        return age > min(HALF_MADE, stale)
    if age > stale:
        return True
    mine = owner(os.getpid())
    if not mine["space"] or (found.get("host"), found.get("space")) != (
        mine["host"],
        mine["space"],
    ):
        return False  # its process cannot be seen from here
    began = _began(int(found.get("pid", 0)))
    return not began or began != found.get("began")


def abandoned(path: Path, stale: float) -> bool:
    """Whether whoever wrote a temporary file is gone: by the id in its name, or its age.

    >>> abandoned(Path("nowhere"), STALE)
    False
    """
    try:
        age = _now(path.parent) - path.stat().st_mtime
    except OSError:
        return False
    pid = path.name.rpartition("-")[2]
    return age > stale or (pid.isdecimal() and not _began(int(pid)))


def holder(path: Path) -> str:
    """Who has a claim, in words.

    >>> holder(Path("nowhere"))
    'another'
    """
    found = _read(path)
    return f"{found.get('host')} (process {found['pid']})" if found else "another"


def _read(path: Path) -> dict[str, Any] | None:
    """What a claim says, None where it is not (yet) whole."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    whole = isinstance(found, dict) and "token" in found and isinstance(found.get("pid"), int)
    return found if whole else None


def _now(folder: Path) -> float:
    """The time by the clock of the file system, which may differ from this machine's."""
    looked, ahead = _ahead.get(folder, (-math.inf, 0.0))
    if time.monotonic() - looked > TICK:
        clock = _clock(folder)
        looked = time.monotonic()
        ahead = clock - looked
        _ahead[folder] = looked, ahead
    return time.monotonic() + ahead


def _clock(folder: Path) -> float:
    """What the clock of the file system says, by a file that is made."""
    try:
        handle, name = tempfile.mkstemp(dir=folder, prefix=".now-")
    except OSError:
        return time.time()
    try:
        return os.fstat(handle).st_mtime
    finally:
        os.close(handle)
        with contextlib.suppress(OSError):
            os.unlink(name)


def _broken(path: Path, stale: float) -> bool:
    """Whether a stale claim is gone: put away by one at a time, or it might be a new one.

    Only what was seen is removed: what was gone may have come again.
    """
    gone = void(path, stale)
    if not gone:
        return gone is None
    door = path.with_name(f".break-{path.name}")
    key = _created(door)
    if key is None:
        if void(door, stale):
            _remove(door)  # whoever was at it was killed; next time it is free
        return False
    try:
        gone = void(path, stale)  # somebody was faster, and may have it anew
        if gone:
            _remove(path)
        return gone is not False
    finally:
        key.release()


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:  # such as a folder in its place
        remedy = f"is no claim, or cannot be removed: {error.strerror}; remove it"
        raise InputError("claim", path, remedy) from None
