"""A folder of finished cells, which any number of processes on any number of machines may share.

``manifest.json`` describes the sweep; ``cells/`` holds a netCDF file for each finished cell, named
by a digest of everything that determines it; ``leases/`` shows which cells are being computed;
``failed/`` has the traceback of each cell that failed.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from retvar import arguments, cache
from retvar.errors import InputError
from retvar.files import (
    is_temporary,
    kind_of,
    make_folder,
    remove,
    remove_abandoned,
    write_new,
    write_text,
)
from retvar.sweep import leases, manifest
from retvar.sweep.manifest import MANIFEST
from retvar.sweep.plan import Cell, Plan, digest

if TYPE_CHECKING:
    import xarray

__all__ = ["Store"]

CELLS, LEASES, FAILED = SUBFOLDERS = ("cells", "leases", "failed")


def check_store(store: object) -> None:
    """Raise an InputError unless this is a store.

    >>> check_store("folder")
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: store = 'folder': must be a Store: Store.open(folder)
    """
    arguments.instance("store", store, Store, "a Store: Store.open(folder)")


class Store:
    """The finished cells of one plan.

    >>> import tempfile
    >>> from retvar.sweep import Domain, Learners, Sweep
    >>> sweep = Sweep(runs=2, steps=9, domains=[Domain(id="chain")],
    ...               learners=[Learners(method="direct", alpha=0.1)])
    >>> folder = Path(tempfile.mkdtemp()) / "out"
    >>> store = Store.create(folder, sweep.plan())
    >>> cell = store.plan.cells[0]
    >>> store.is_finished(cell)
    False
    >>> store.write(cell, store.plan.compute(cell))
    >>> store.is_finished(cell), Store.open(folder).read(cell).sizes["run"]
    (True, 2)
    """

    def __init__(self, folder: Path, plan: Plan, stale: float = leases.STALE) -> None:
        self.folder, self.plan, self.stale = folder, plan, arguments.seconds("stale", stale)
        self.notes: list[str] = []  #: messages about opening the store

    def __repr__(self) -> str:
        return f"Store({str(self.folder)!r}, {self.plan!r})"

    @classmethod
    def create(
        cls, folder: str | Path, plan: Plan, stale: float = leases.STALE, *, extend: bool = False
    ) -> Store:
        """Open the store of `plan`, or create it; raise if it belongs to another sweep.

        With `extend` the store may be that of a smaller sweep, to which `plan` adds domains,
        learners or runs; cells of both plans are reused.
        """
        arguments.instance("plan", plan, Plan, "the plan of a sweep: sweep.plan()")
        extend = arguments.flag("extend", extend)
        store = cls(arguments.path("folder", folder), plan, stale)
        try:
            for name in SUBFOLDERS:
                make_folder(store.folder / name)
        except OSError as error:
            problem = f"cannot become a store: {error.strerror or error}"
            raise InputError("out", folder, problem) from None
        found = manifest.read(store.folder)
        if found is None:
            store._write_manifest()
            found = manifest.read(store.folder)
        if found is None:
            raise InputError("out", folder, f"its {MANIFEST} cannot be read back")
        manifest.check_versions(store.folder, found)
        if extend:
            store._extend(manifest.plan_of(found))
        else:
            manifest.check_same_sweep(store.folder, found, plan)
        store.clean_up()
        return store

    @classmethod
    def open(cls, folder: str | Path, stale: float = leases.STALE) -> Store:
        """Open an existing store, with the sweep of its manifest.

        A store made with other versions can be read, but no cells can be added to it.
        """
        path = arguments.path("folder", folder)
        if kind_of("folder", path / MANIFEST) != "file":
            raise InputError("folder", path, "holds no sweep; `retvar sweep run` makes one")
        found = manifest.read(path)
        if found is None:
            remedy = "is damaged; `retvar sweep run` with the specification writes it again"
            raise InputError("manifest", path / MANIFEST, remedy)
        manifest.check_format(path, found)
        store = cls(path, manifest.plan_of(found), stale)
        manifest.check_same_sweep(path, found, store.plan)
        if store.other_versions:
            store.notes.append(f"{path} was made with {store.other_versions}")
        return store

    @property
    def other_versions(self) -> str:
        """How the versions it was made with differ from those in use; empty if they do not."""
        return manifest.other_versions(self.plan.made_with)

    def _write_manifest(self) -> None:
        """Write a missing or damaged manifest, unless there are cells of another sweep.

        One that another run has written meanwhile is kept: it appears whole.
        """
        path = self.folder / MANIFEST
        foreign = self._foreign_cells()
        if foreign:
            remedy = (
                f"holds {len(foreign):,} cells of another specification or version, and its "
                f"{MANIFEST} is missing or damaged; give another folder, or move them away"
            )
            raise InputError("out", self.folder, remedy)
        if kind_of("out", path) and manifest.read(self.folder) is None:
            self.notes.append(f"{path} was damaged and is written again")
            try:
                write_text(path, manifest.text_of(self.plan))
            except InputError as error:
                raise InputError("out", path, f"cannot be replaced: {error.remedy}") from None
            return
        write_new(path, manifest.text_of(self.plan))

    def _extend(self, smaller: Plan) -> None:
        """Turn the store of a smaller plan into that of this one; remove cells of other sizes."""
        missing = self.plan.missing_from(smaller)
        if missing:
            remedy = f"has {missing}, which this specification lacks; extending can only add"
            raise InputError("store", self.folder, remedy)
        if smaller.digest != self.plan.digest:
            new = self.plan.count - len(set(self.plan.keys) & set(smaller.keys))
            self.notes.append(f"{self.folder} is extended by {new:,} cells")
            write_text(self.folder / MANIFEST, manifest.text_of(self.plan))
        for path in self._foreign_cells():
            remove(path)

    def _foreign_cells(self) -> list[Path]:
        """Files of finished cells that are not in this plan."""
        keys = set(self.plan.keys)
        return [path for path in (self.folder / CELLS).glob("*.nc")
                if path.stem not in keys and not path.name.startswith(".")]  # fmt: skip

    # ------------------------------------------------------------------ cells

    def key(self, cell: Cell) -> str:
        """A digest of everything that determines a cell."""
        arguments.instance("cell", cell, Cell, "one of plan.cells")
        return self.plan.keys[cell.number]

    def path(self, cell: Cell) -> Path:
        """The file of a cell's result."""
        return self.folder / CELLS / f"{self.key(cell)}.nc"

    def has_file(self, cell: Cell) -> bool:
        """Whether there is a file for a cell, damaged or not."""
        return bool(kind_of("folder", self.path(cell)))

    def is_finished(self, cell: Cell) -> bool:
        """Whether a cell has a file that is not damaged."""
        return self.contents_of(cell) is not None

    def contents_of(self, cell: Cell) -> str | None:
        """A digest of a cell's data; None if its file is missing or damaged."""
        footer = cache.footer_of(self.path(cell))
        return footer.contents if footer is not None and footer.key == self.key(cell) else None

    def read(self, cell: Cell) -> xarray.Dataset:
        """The checked result of a cell."""
        remedy = "run the sweep again, which computes this cell again"
        return cache.read(self.path(cell), self.key(cell), remedy)

    def write(self, cell: Cell, data: xarray.Dataset) -> None:
        """Save the result of a cell; the file appears complete or not at all."""
        cache.write(self.path(cell), data, self.key(cell), classic=True)

    def digest(self) -> str | None:
        """A digest of the data of all cells; None while some are missing."""
        found = [self.contents_of(cell) for cell in self.plan.cells]
        return None if None in found else digest(found)

    # ------------------------------------------------------------------ leases and failures

    def lease(self, cell: Cell) -> leases.Lease | None:
        """Lease a cell; None if another worker holds the lease."""
        if self.other_versions:
            remedy = f"was made with {self.other_versions}; continue with that version"
            raise InputError("store", self.folder, remedy)
        return leases.acquire(self.lease_path(cell), self.stale)

    def is_leased(self, cell: Cell) -> bool:
        """Whether a live worker holds the lease of a cell."""
        return leases.is_held(self.lease_path(cell), self.stale)

    def lease_path(self, cell: Cell) -> Path:
        """The lease file of a cell."""
        return self.folder / LEASES / self.key(cell)

    def failure_path(self, cell: Cell) -> Path:
        """The file of a failed cell's traceback."""
        return self.folder / FAILED / f"{self.key(cell)}.txt"

    def mark_failed(self, cell: Cell, trace: str) -> None:
        """Save the traceback of a cell that failed; it is not computed until :func:`retry`."""
        write_text(self.failure_path(cell), f"{self.plan.describe(cell)}\n\n{trace}")

    def failed(self) -> list[Cell]:
        """Cells that are marked as failed."""
        keys = {path.stem for path in (self.folder / FAILED).glob("*.txt")}
        return [cell for cell in self.plan.cells if self.key(cell) in keys]

    def clean_up(self) -> None:
        """Remove expired leases and temporary files of killed workers."""
        for folder in (self.folder, *(self.folder / name for name in SUBFOLDERS)):
            remove_abandoned(folder)
        with contextlib.suppress(OSError):
            for path in list((self.folder / LEASES).iterdir()):
                with contextlib.suppress(OSError, InputError):
                    if not is_temporary(path):
                        leases.remove_expired(path, self.stale)
