"""The folder of a reproduction: results under a digest of settings and code, times, the report."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from retvar.paper.declarations import Simulation
from retvar.support import arguments, cache
from retvar.support.cache import code_digest
from retvar.support.errors import InputError
from retvar.support.files import is_temporary, kind_of, unwritable, write_text
from retvar.support.format import listed

if TYPE_CHECKING:
    import xarray

MARKER = "retvar-reproduction.json"
LOCK = ".retvar-lock"  # held while a run uses the folder
MADE_BY = {"made_by": "retvar reproduce", "format": 1}


class SimulationCache:
    """A folder with results of simulations."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, simulation: Simulation, seed: int) -> Path:
        """The path of a simulation's result."""
        name = re.sub(r"[^\w.+-]+", "-", simulation.name).lstrip(".")[:80]
        return self.folder / f"{name}-{simulation.key(seed, code_digest())[:16]}.nc"

    def has(self, simulation: Simulation, seed: int) -> bool:
        """Whether the result exists."""
        return bool(kind_of("out", self.path(simulation, seed)))

    def read(self, simulation: Simulation, seed: int) -> xarray.Dataset:
        """The result; an InputError if the file is damaged."""
        key = simulation.key(seed, code_digest())
        return cache.read(self.path(simulation, seed), key, "compute it again with --force")

    def write(self, simulation: Simulation, seed: int, data: xarray.Dataset) -> xarray.Dataset:
        """Save a result and return it; the file appears whole or not at all."""
        key = simulation.key(seed, code_digest())
        return cache.write(self.path(simulation, seed), data, key)


class OutputFolder:
    """A folder with ``data/``, ``figures/``, ``times.json`` and the report."""

    def __init__(self, path: str | Path) -> None:
        self.path = arguments.path("out", path)
        self.store = SimulationCache(self.path / "data")
        self.times: dict[str, float] = {}  #: seconds of each data file and drawing

    @contextlib.contextmanager
    def opened(self) -> Iterator[OutputFolder]:
        """Create or check the folder, and lock it; a folder with other contents is refused."""
        self._refuse_other()
        try:
            for name in ("data", "figures"):
                (self.path / name).mkdir(parents=True, exist_ok=True)
            with FileLock(self.path / LOCK, timeout=0):
                write_text(self.path / MARKER, json.dumps(MADE_BY) + "\n")
                with contextlib.suppress(OSError, ValueError):  # only times are lost
                    self.times = json.loads((self.path / "times.json").read_text(encoding="utf-8"))
                yield self
        except Timeout:
            raise InputError("out", self.path, "another run is using it; wait") from None
        except OSError as error:
            raise unwritable(self.path, error, "out") from None

    def record_time(self, name: str, seconds: float) -> None:
        """Write a run time to ``times.json``; data files hold none, to be comparable."""
        self.times[name] = round(seconds, 3)
        text = json.dumps(dict(sorted(self.times.items())), indent=1, ensure_ascii=False)
        write_text(self.path / "times.json", text + "\n")

    def _refuse_other(self) -> None:
        kind = kind_of("out", self.path)
        if kind not in ("folder", ""):
            raise InputError("out", self.path, f"is a {kind}; name a folder")
        try:
            names = sorted(file.name for file in self.path.iterdir()) if kind else []
        except OSError as error:
            raise unwritable(self.path, error, "out") from None
        names = [name for name in names if name != LOCK and not is_temporary(Path(name))]
        if names and MARKER not in names:
            remedy = f"holds other files ({listed(names, 3)}); name a new or empty folder"
            raise InputError("out", self.path, remedy)
