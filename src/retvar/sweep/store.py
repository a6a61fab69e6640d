"""Run a sweep into a folder, which any number of processes on any number of machines may share.

``manifest.json`` describes the sweep; ``cells/`` holds a netCDF file for each finished cell, named
by a digest of everything that determines it; ``locks/`` has a file, locked by the kernel, for each
cell that is being computed; ``failed/`` has the traceback of each cell that failed.
"""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from filelock import FileLock, Timeout

from retvar.cluster import connected, refuse_address
from retvar.simulation.cuda_device import chosen_device
from retvar.support import arguments, cache
from retvar.support.errors import InputError, RetvarError
from retvar.support.files import kind_of, read_bytes, write_text
from retvar.support.format import count
from retvar.support.html import Shown
from retvar.support.progress import Progress
from retvar.sweep.plan import Cell, Plan, identity
from retvar.sweep.spec import Sweep, digest

if TYPE_CHECKING:
    import xarray

MANIFEST = "manifest.json"
CELLS, LOCKS, FAILED = SUBFOLDERS = ("cells", "locks", "failed")
PAUSE = 0.25  # seconds before cells that others compute are looked at again


class Store:
    """The finished cells of one plan."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder, self.plan = folder, plan

    @classmethod
    def create(cls, folder: str | Path, plan: Plan) -> Store:
        """Open the store of `plan`, or create it; raise if it belongs to another sweep."""
        arguments.instance("plan", plan, Plan, "the plan of a sweep: sweep.plan()")
        path = arguments.path("folder", folder)
        try:
            for name in SUBFOLDERS:
                (path / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError("out", folder, f"cannot become a store: {error.strerror}") from None
        with FileLock(path / LOCKS / MANIFEST):
            if not kind_of("out", path / MANIFEST):
                ours = Manifest(plan.made_with, len(plan.cells), plan.digest, plan.sweep.to_dict())
                text = msgspec.json.format(msgspec.json.encode(ours), indent=1)
                write_text(path / MANIFEST, text.decode())
        _refuse_other(path, _read_manifest(path), plan)
        return cls(path, plan)

    @classmethod
    def open(cls, folder: str | Path) -> Store:
        """Open an existing store, with the sweep of its manifest.

        A store made with other versions can be read, but no cells can be added to it.
        """
        path = arguments.path("folder", folder)
        if kind_of("folder", path / MANIFEST) != "file":
            raise InputError("folder", path, "holds no sweep; `retvar sweep run` makes one")
        found = _read_manifest(path)
        plan = Plan.from_sweep(Sweep.from_dict(found.sweep), found.made_with)
        _refuse_other(path, found, plan)
        return cls(path, plan)

    @property
    def other_versions(self) -> str:
        """How the versions it was made with differ from those in use; empty if they do not."""
        return _differing(self.plan.made_with)

    def key(self, cell: Cell) -> str:
        """A digest of everything that determines a cell."""
        return self.plan.keys[cell.number]

    def path(self, cell: Cell) -> Path:
        """The file of a cell's result."""
        return self.folder / CELLS / f"{self.key(cell)}.nc"

    def contents_of(self, cell: Cell) -> str | None:
        """A digest of a cell's data; None if its file is missing or damaged."""
        footer = cache.footer_of(self.path(cell))
        return footer.contents if footer is not None and footer.key == self.key(cell) else None

    def read(self, cell: Cell) -> xarray.Dataset:
        """The checked result of a cell."""
        remedy = "run the sweep again, which computes this cell again"
        return cache.read(self.path(cell), self.key(cell), remedy)

    def compute(self, cell: Cell, threads: int | None = 1, **how: Any) -> str:
        """Compute and save a cell: ``done``, ``exists``, ``busy`` (with another) or ``failed``."""
        _refuse_versions(self.folder, self.plan.made_with)
        with self.locked(cell) as ours:
            if not ours:
                return "busy"
            if self.contents_of(cell) is not None:
                return "exists"
            try:
                data = self.plan.compute(cell, threads, **how)
            except Exception:  # a cell that fails must not stop the others
                self.mark_failed(cell, traceback.format_exc())
                return "failed"
            cache.write(self.path(cell), data, self.key(cell), classic=True)
        return "done"

    @contextlib.contextmanager
    def locked(self, cell: Cell) -> Iterator[bool]:
        """Whether this process has the cell to itself; the kernel frees the locks of the dead.

        Where a file system has no locks, two may compute one cell: to the same bits.
        """
        lock = FileLock(self.folder / LOCKS / self.key(cell))
        try:
            lock.acquire(timeout=0)
        except (Timeout, NotImplementedError, OSError) as error:
            yield not isinstance(error, Timeout)
            return
        try:
            yield True
        finally:
            Path(lock.lock_file).unlink(missing_ok=True)
            lock.release()

    def is_running(self, cell: Cell) -> bool:
        """Whether another process is computing a cell."""
        if not (self.folder / LOCKS / self.key(cell)).exists():
            return False
        with self.locked(cell) as ours:
            return not ours

    def failure_path(self, cell: Cell) -> Path:
        """The file of a failed cell's traceback; the cell waits for :func:`retry`."""
        return self.folder / FAILED / f"{self.key(cell)}.txt"

    def mark_failed(self, cell: Cell, trace: str) -> None:
        """Save the traceback of a cell that failed."""
        write_text(self.failure_path(cell), f"{self.plan.describe(cell)}\n\n{trace}")


# ---------------------------------------------------------------------- manifest


class Manifest(msgspec.Struct):
    """What ``manifest.json`` says."""

    made_with: dict[str, str]
    cells: int
    digest: str
    sweep: dict[str, Any]


def _read_manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST
    try:
        found = msgspec.json.decode(read_bytes(path, "manifest"), type=Manifest)
    except ValueError as error:
        raise InputError("manifest", path, f"is none ({error}); give another folder") from None
    if found.made_with.get("cells") != identity()["cells"]:
        made = f"retvar {found.made_with.get('retvar')}"
        raise InputError("store", folder, f"was made by {made} in another format; read it there")
    return found


def _differing(made_with: dict[str, str]) -> str:
    pairs = [(name, made_with.get(name), here) for name, here in identity().items()]
    return ", ".join(f"{name} {made}, not {here}" for name, made, here in pairs if made != here)


def _refuse_versions(folder: Path, made_with: dict[str, str]) -> None:
    if other := _differing(made_with):
        remedy = f"was made with {other}; continue with that version, or give another folder"
        raise InputError("store", folder, remedy)


def _refuse_other(folder: Path, found: Manifest, plan: Plan) -> None:
    """Raise if the manifest is that of another sweep, and name the fields that differ."""
    if found.digest == plan.digest:
        return
    _refuse_versions(folder, found.made_with)  # which the digest depends on
    other, ours = Sweep.from_dict(found.sweep).to_dict(), plan.sweep.to_dict()
    fields = [name for name in {**other, **ours} if other.get(name) != ours.get(name)]
    differ = f"; they differ in {', '.join(fields)}" if fields else ""
    remedy = f"holds another sweep, {other.get('name')!r}{differ}; give another folder"
    raise InputError("store", folder, remedy)


# ---------------------------------------------------------------------- running


@dataclass(frozen=True)
class Local:
    """Compute cells one after the other in this process, with several threads or on a GPU.

    >>> Local(threads=2).threads
    2
    """

    threads: int | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        chosen_device(self.device, 1)  # raises an error now if there is none

    def outcomes(
        self, store: Store, cells: Iterable[Cell], progress: Progress
    ) -> Iterator[tuple[Cell, str]]:
        """Compute the cells in order."""
        for cell in cells:
            how = {"progress": lambda _: progress.check(), "device": self.device}
            yield cell, store.compute(cell, self.threads, **how)


@dataclass(frozen=True)
class Dask:
    """Compute cells on a dask cluster: at a scheduler's address, or ``local`` processes.

    >>> Dask("tcp://10.0.0.1:8786").address
    'tcp://10.0.0.1:8786'
    """

    address: str
    workers: int | None = None

    def __post_init__(self) -> None:
        refuse_address(self.address, self.workers)

    def outcomes(
        self, store: Store, cells: Iterable[Cell], progress: Progress
    ) -> Iterator[tuple[Cell, str]]:
        """Let the workers compute; dask gives the cell of a worker that died to another one."""
        from distributed import CancelledError, KilledWorker, as_completed

        folder, digest = str(store.folder.resolve()), store.plan.digest
        with connected(self.address, self.workers) as client:
            waiting = {
                client.submit(_compute, folder, digest, cell.number, pure=False): cell
                for cell in cells
            }
            for future in as_completed(list(waiting)):
                cell = waiting[future]
                try:
                    yield cell, future.result()
                except KilledWorker as error:
                    store.mark_failed(cell, str(error))
                    yield cell, "failed"
                except CancelledError:
                    raise RetvarError(
                        f"lost the scheduler at {self.address}; finished cells are saved, and the "
                        "same command continues from there"
                    ) from None


@lru_cache(maxsize=4)
def _opened(folder: str, digest: str) -> Store:
    store = Store.open(folder)
    if store.plan.digest != digest:
        raise InputError("store", folder, "is another one for the workers; share one folder")
    return store


def _compute(folder: str, digest: str, number: int) -> str:
    """Compute a cell on a worker, which reads the sweep from the store's manifest."""
    import dask

    store = _opened(folder, digest)
    with dask.config.set(scheduler="synchronous"):  # or xarray asks the cluster for a lock
        return store.compute(store.plan.cells[number])


def run(
    sweep: Sweep | Plan | str | Path,
    out: str | Path,
    executor: Any = None,
    *,
    progress: Progress | None = None,
) -> Status:
    """Compute all cells that are not in the store; the same call continues an interrupted run.

    Parameters
    ----------
    sweep
        The sweep, its plan, or the path of a specification in TOML.
    out
        Folder of the store, created if it does not exist. Any number of runs may share it.
    executor
        :class:`~retvar.sweep.Local` (the default) or :class:`~retvar.sweep.Dask`.
    progress
        Callback that is informed of the progress in cells.
    """
    progress = Progress() if progress is None else progress
    arguments.instance("progress", progress, Progress, "a Progress")
    executor = Local() if executor is None else executor
    arguments.instance("executor", executor, Local | Dask, "Local(…) or Dask(…)")
    sweep = Sweep.from_toml(sweep) if isinstance(sweep, str | Path) else sweep
    arguments.instance("sweep", sweep, Sweep | Plan, "a Sweep, its plan, or a path to its TOML")
    store = Store.create(out, sweep if isinstance(sweep, Plan) else sweep.plan())
    missing = [cell for cell in store.plan.cells if store.contents_of(cell) is None]
    for path in filter(Path.exists, map(store.path, missing)):
        progress.note(f"{path} is damaged and is computed again")
    cells = [cell for cell in missing if not store.failure_path(cell).exists()]
    done, computed = len(store.plan.cells) - len(missing), 0
    progress.start(len(store.plan.cells), done)
    while cells:
        busy = []
        for cell, outcome in executor.outcomes(store, cells, progress):
            if outcome == "busy":
                busy.append(cell)
            elif outcome == "failed":
                where = store.failure_path(cell)
                progress.note(f"{store.plan.describe(cell)} failed and is skipped; see {where}")
            else:
                done, computed = done + 1, computed + (outcome == "done")
                progress.advance(done)
        if cells := busy:  # those that others have finished exist by then
            progress.check()
            time.sleep(PAUSE)
    return status(store, computed=computed)


# ---------------------------------------------------------------------- status


@dataclass(frozen=True)
class Status(Shown):
    """How many cells of a store are done, failed or running.

    >>> Status(cells=3, done=2, failed=1, running=0).missing
    0
    """

    cells: int
    done: int
    failed: int
    running: int
    damaged: tuple[str, ...] = ()
    computed: int = 0  #: cells computed by this run
    digest: str | None = None  #: of the data of all cells, once all are done

    @property
    def missing(self) -> int:
        """How many cells are still to be computed."""
        return self.cells - self.done - self.failed

    @property
    def complete(self) -> bool:
        """Whether all cells are done."""
        return self.done == self.cells

    def to_dict(self) -> dict[str, Any]:
        """The fields as a dictionary, as ``--json`` prints them."""
        return {**asdict(self), "missing": self.missing, "complete": self.complete}

    def summary(self) -> str:
        """The counts as text, those that are not 0, and the digest."""
        counts = {
            "computed by this run": self.computed,
            "being computed": self.running,
            "to be computed": self.missing,
            "failed, with tracebacks in failed/": self.failed,
            "damaged; run the sweep again:": len(self.damaged),
        }
        lines = [f"{self.done:,} of {count(self.cells, 'cell')} done"]
        lines += [f"{number:,} {text}" for text, number in counts.items() if number]
        lines += [f"  {path}" for path in self.damaged]
        if self.digest is not None:
            lines.append(f"digest of the contents: {self.digest}")
        return "\n".join(lines)

    __str__ = summary


def status(store: Store, computed: int = 0) -> Status:
    """Count the cells of a store, and check every file."""
    check_store(store)
    found = {cell.number: store.contents_of(cell) for cell in store.plan.cells}
    left = [cell for cell in store.plan.cells if found[cell.number] is None]
    return Status(
        cells=len(store.plan.cells),
        done=len(store.plan.cells) - len(left),
        failed=sum(store.failure_path(cell).exists() for cell in left),
        running=sum(map(store.is_running, left)),
        damaged=tuple(str(store.path(cell)) for cell in left if store.path(cell).exists()),
        computed=computed,
        digest=None if left else digest(list(found.values())),
    )


def retry(store: Store) -> int:
    """Let the next run compute failed cells again; returns how many there are."""
    check_store(store)
    failed = [path for path in map(store.failure_path, store.plan.cells) if path.exists()]
    for path in failed:
        path.unlink(missing_ok=True)
    return len(failed)


def check_store(store: object) -> None:
    """Refuse what is no store."""
    arguments.instance("store", store, Store, "a Store: Store.open(folder)")
