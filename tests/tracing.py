"""What a command does: files opened for writing, renamed and synced, folders made, sockets bound.

    python -m tests.tracing EVENTS COMMANDS

runs the commands in the JSON file COMMANDS, one after the other, and writes the events to EVENTS.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

WRITING = os.O_WRONLY | os.O_RDWR
events: list[tuple[str, str, str]] = []


def note(kind: str, path: Any, other: Any = "") -> None:
    if isinstance(path, str | bytes | os.PathLike):
        events.append((kind, os.path.abspath(os.fsdecode(path)), str(other)))


def hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and arguments[2] & WRITING:
        note("open", arguments[0])
    elif event == "os.rename":
        note("move", arguments[0], os.path.abspath(os.fsdecode(arguments[1])))
    elif event == "os.link":
        note("link", arguments[0], os.path.abspath(os.fsdecode(arguments[1])))
    elif event == "os.mkdir":
        note("folder", arguments[0])
    elif event == "socket.bind":
        events.append(("bind", repr(arguments[1]), ""))


def synced(real: Callable[[int], None]) -> Callable[[int], None]:
    def fsync(handle: int) -> None:
        real(handle)
        events.append(("sync", os.readlink(f"/proc/self/fd/{handle}"), ""))

    return fsync


def main() -> None:
    found, commands = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
    os.fsync = synced(os.fsync)
    sys.addaudithook(hook)
    from retvar.cli import main as retvar

    for words in commands:
        retvar(words, standalone_mode=False)
    found.write_text(json.dumps(events))


if __name__ == "__main__":
    main()
