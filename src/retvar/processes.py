"""Which processes live: by their numbers, and by when they began, since numbers are used again."""

from __future__ import annotations

import contextlib
import os
import socket
from functools import cache
from pathlib import Path

__all__ = ["began", "lives", "machine"]

ENDED = ("Z", "X")  # the kernel's letters for processes that have ended and are only listed


def lives(pid: int, since: str = "") -> bool:
    """Whether a process of this machine lives; with `since`, only the one that began then.

    One that was killed and is still listed, since its parent has not asked for its status, is dead.

    >>> lives(os.getpid()), lives(os.getpid(), began(os.getpid())), lives(os.getpid(), "0")
    (True, True, False)
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # that of another user
        pass
    state, found = _entry(pid)
    return state not in ENDED and (not since or found in (since, ""))


def began(pid: int) -> str:
    """When a process began, in the kernel's count; empty where that is not known.

    >>> began(2**40)
    ''
    """
    return _entry(pid)[1]


def _entry(pid: int) -> tuple[str, str]:
    """State and beginning in the kernel's list; empty where that is not known."""
    with contextlib.suppress(OSError, IndexError):
        text = Path(f"/proc/{pid}/stat").read_text(encoding="latin-1")
        fields = text.rpartition(")")[2].split()
        return fields[0], fields[19]
    return "", ""


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
