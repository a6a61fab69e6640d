"""Wall-clock time in tests: limits that a loaded machine does not break."""

from __future__ import annotations

import os
import time
from pathlib import Path


def patience(seconds: float) -> float:
    """A limit for an idle machine, longer where processes wait for a core."""
    waiting = os.getloadavg()[0] if hasattr(os, "getloadavg") else 1.0
    return seconds * max(1.0, 4.0 * waiting / (os.cpu_count() or 1))


def at_work(pid: int, seconds: float) -> None:
    """Return once a process has computed for so long; on an idle machine, like sleeping."""
    path = Path(f"/proc/{pid}/stat")
    if not path.exists():
        time.sleep(seconds)
        return
    begun, end = _computed(path), time.monotonic() + patience(60.0)
    while _computed(path) - begun < seconds and time.monotonic() < end:
        time.sleep(0.01)


def _computed(path: Path) -> float:
    """Seconds of CPU time of a process so far."""
    fields = path.read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
