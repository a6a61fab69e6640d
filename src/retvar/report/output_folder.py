"""The output folder of a reproduction; locked while in use."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from retvar import arguments
from retvar.errors import InputError
from retvar.experiments import SimulationCache
from retvar.files import (
    FULL,
    is_temporary,
    kind_of,
    make_folder,
    remove_abandoned,
    unwritable,
    write_text,
)
from retvar.format import listed
from retvar.reading import SMALL, read_json
from retvar.sweep import leases

__all__ = ["OutputFolder"]

MARKER = "retvar-reproduction.json"
LEASE = ".retvar-lease"  # while a run uses the folder
MADE_BY = {"made_by": "retvar reproduce", "format": 1}
REFUSED = {errno.EROFS, errno.EACCES, errno.EPERM}


class OutputFolder:
    """A folder with ``data/``, ``figures/``, ``times.json`` and the report.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "mine"
    >>> with OutputFolder(path).opened():
    ...     sorted(file.name for file in path.iterdir())
    ['.retvar-lease', 'data', 'figures', 'retvar-reproduction.json']
    """

    def __init__(self, path: str | Path) -> None:
        self.path = arguments.path("out", path)
        self.store = SimulationCache(self.path / "data")
        self.times: dict[str, float] = {}

    @contextlib.contextmanager
    def opened(self) -> Iterator[OutputFolder]:
        """Create or check the folder, and lock it; a folder with other contents is refused."""
        self._refuse_other()
        try:
            make_folder(self.path)
        except OSError as error:
            raise unwritable(self.path, error, "out") from None
        with self._leased():
            self.remove_temporary_files()
            try:
                if not kind_of("out", self.path / MARKER):
                    write_text(self.path / MARKER, json.dumps(MADE_BY) + "\n")
                for name in ("data", "figures"):
                    make_folder(self.path / name)
            except InputError as error:
                raise self._renamed(error) from None
            except OSError as error:
                raise unwritable(self.path, error, "out") from None
            if not os.access(self.path, os.W_OK):
                raise InputError("out", self.path, "cannot be written: permission denied")
            self.times = self._read_times()
            try:
                yield self
            except OSError as error:
                if error.errno not in REFUSED | FULL:
                    raise
                raise unwritable(self.path, error, "out") from None

    def remove_temporary_files(self) -> None:
        """Remove what killed runs left here, and in the folders below if they are retvar's own."""
        marked = _is_marker(self.path / MARKER)
        below = [path for path in self.path.rglob("*") if path.is_dir()] if marked else []
        for folder in (self.path, *below):
            remove_abandoned(folder)

    def record_time(self, name: str, seconds: float) -> None:
        """Write a run time to ``times.json``; data files hold none, to be comparable."""
        self.times[name] = round(seconds, 3)
        text = json.dumps(dict(sorted(self.times.items())), indent=1, ensure_ascii=False)
        write_text(self.path / "times.json", text + "\n")

    def _refuse_other(self) -> None:
        marker = self.path / MARKER
        kind = kind_of("out", self.path)
        if kind not in ("folder", ""):
            raise InputError("out", self.path, f"is a {kind}; name a folder")
        try:
            names = sorted(file.name for file in self.path.iterdir()) if kind else []
        except OSError as error:
            raise unwritable(self.path, error, "out") from None
        names = [name for name in names if name != LEASE and not is_temporary(Path(name))]
        if not names or (marker.name in names and _is_marker(marker)):
            return
        remedy = f"holds other files ({listed(names, 3)}); name a new or empty folder"
        raise InputError("out", self.path, remedy)

    def _renamed(self, error: InputError) -> InputError:
        """The same error, of this folder."""
        return type(error)("out", self.path, error.remedy)

    @contextlib.contextmanager
    def _leased(self) -> Iterator[None]:
        """Keep other runs out, by a lock where the file system has locks, and by a lease."""
        with self._locked():
            try:
                lease = leases.acquire(self.path / LEASE, while_alive=True)
            except InputError as error:
                raise self._renamed(error) from None
            if lease is None:
                raise self._in_use()
            with lease.heartbeat():
                yield

    def _in_use(self) -> InputError:
        who = leases.holder(self.path / LEASE)
        return InputError("out", self.path, f"another run is using it: {who}; wait until it ends")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            import fcntl
        except ImportError:  # not on Windows
            yield
            return
        handle = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise self._in_use() from None
            except OSError:  # a file system without locks
                pass
            yield
        finally:
            os.close(handle)

    def _read_times(self) -> dict[str, float]:
        with contextlib.suppress(OSError, ValueError):
            found = read_json(self.path / "times.json")
            if isinstance(found, Mapping):
                return {str(k): float(v) for k, v in found.items() if isinstance(v, int | float)}
        return {}  # a damaged file loses only times


def _is_marker(marker: Path) -> bool:
    with contextlib.suppress(OSError, ValueError):
        found = read_json(marker, most=SMALL)
        return isinstance(found, dict) and found.get("made_by") == MADE_BY["made_by"]
    return False
