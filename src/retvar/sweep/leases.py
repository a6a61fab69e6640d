"""Leases: small files that show which worker is computing a cell.

Results are deterministic and written atomically, so two workers that compute the same cell only
waste time. A lease therefore need not be airtight. It is created exclusively and touched while its
owner works; it has expired when it was not touched for `stale` seconds, or when its owner ran on
this machine and has ended. One that is dated further than `stale` seconds into the future says
nothing about a living owner, and has expired, too. With `while_alive`, an owner that lives on this
machine holds its lease however old it is, for it may have been stopped for a while. An expired
lease is moved aside and looked at again before it is removed, so that of two workers that find it
at once only one takes it over.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from retvar.arguments import integer
from retvar.errors import InputError
from retvar.files import create_temporary, discard, put_first, unwritable
from retvar.format import visible
from retvar.processes import began, lives, machine
from retvar.reading import SMALL, parse_json, read_bytes
from retvar.signals import current

__all__ = ["STALE", "Lease", "acquire", "holder", "is_held", "remove_expired"]

MOST_PID = 2**31
STALE = 60.0  # seconds without a heartbeat after which a lease expires


class Lease:
    """A lease held by this process."""

    def __init__(self, path: Path, text: bytes) -> None:
        self.path, self.text = path, text

    def release(self) -> None:
        """Remove the lease file, unless another worker has taken it over."""
        with contextlib.suppress(OSError, InputError):
            if read_bytes(self.path, "lease", SMALL) == self.text:
                self.path.unlink()
        with contextlib.suppress(ValueError):
            current().leaving.remove(self.release)

    @contextlib.contextmanager
    def heartbeat(self, stale: float = STALE) -> Iterator[None]:
        """Touch the lease regularly in a ``with`` block, and release it at the end."""
        done = threading.Event()

        def beat() -> None:
            while not done.wait(stale / 4):
                with contextlib.suppress(OSError):
                    os.utime(self.path)

        threading.Thread(target=beat, name="retvar-lease", daemon=True).start()
        try:
            yield
        finally:
            done.set()
            self.release()


def acquire(path: Path, stale: float = STALE, *, while_alive: bool = False) -> Lease | None:
    """Lease a cell; None if another worker holds the lease.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "cell"
    >>> lease = acquire(path)
    >>> lease is not None, acquire(path) is None
    (True, True)
    >>> lease.release(); path.exists()
    False
    """
    try:
        lease = _create(path)
        if lease is None and remove_expired(path, stale, while_alive=while_alive):
            lease = _create(path)
    except OSError as error:
        raise unwritable(path, error, "lease") from None
    return lease


def _create(path: Path) -> Lease | None:
    """A new lease; None if the file exists."""
    pid = os.getpid()
    owner = {"machine": machine(), "pid": pid, "began": began(pid), "id": uuid.uuid4().hex}
    text = json.dumps(owner).encode()
    try:
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    except FileExistsError:
        return None
    lease = Lease(path, text)
    current().leaving.append(lease.release)  # for a process that is ended before it can do so
    try:
        if os.write(file, text) < len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(file)
    return lease


def is_held(path: Path, stale: float = STALE, *, while_alive: bool = False) -> bool:
    """Whether a live worker holds a lease.

    >>> is_held(Path("missing"))
    False
    """
    try:
        age = time.time() - path.stat().st_mtime
        owner = _owner(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _unreadable(path, error.strerror) from None
    alive = _lives(owner)
    if alive is None or (alive and not while_alive):
        return abs(age) <= stale  # a clock may have been set back
    return alive


def remove_expired(path: Path, stale: float = STALE, *, while_alive: bool = False) -> bool:
    """Remove a lease unless a live worker holds it; whether there is none any more.

    >>> remove_expired(Path("missing"))
    True
    """
    if is_held(path, stale, while_alive=while_alive):
        return False
    if not path.exists():
        return True
    aside = create_temporary(path)
    try:
        os.replace(path, aside)
        if is_held(aside, stale, while_alive=while_alive):  # another worker has taken it over since
            put_first(aside, path)
            return False
    except FileNotFoundError:
        pass  # another worker has removed it
    finally:
        discard(aside)
    return True


def holder(path: Path) -> str:
    """The machine and process that hold a lease, for messages.

    >>> holder(Path("missing"))
    'another worker'
    """
    with contextlib.suppress(OSError, InputError):
        owner = _owner(path)
        if owner:
            return f"{visible(owner['machine'].partition(' ')[0])} (process {owner['pid']})"
    return "another worker"


def _owner(path: Path) -> dict[str, Any]:
    """The owner of a lease; empty if the file holds no lease."""
    if path.is_dir():
        raise _unreadable(path, os.strerror(errno.EISDIR))
    try:
        text = read_bytes(path, "lease", SMALL)
    except InputError:
        if not path.exists():
            raise FileNotFoundError from None
        if not os.access(path, os.R_OK):
            raise _unreadable(path, os.strerror(errno.EACCES)) from None
        return {}
    try:
        owner = parse_json(text, "lease")
        pid = integer("pid", owner["pid"], 1, MOST_PID)
        since = str(owner.get("began") or "")
        return {"machine": str(owner["machine"]), "pid": pid, "began": since}
    except (ValueError, KeyError, TypeError):
        return {}


def _unreadable(path: Path, reason: str | None) -> InputError:
    return InputError("lease", path, f"cannot be read: {reason}; remove it, or make it readable")


def _lives(owner: dict[str, Any]) -> bool | None:
    """Whether the owner's process lives; None if that cannot be known here."""
    if owner.get("machine") != machine() or not Path("/proc/self").exists():
        return None
    return lives(owner["pid"], owner["began"])
