"""What people do with a sweep: run it, see how it stands, try again what failed."""

from __future__ import annotations

import contextlib
import time
from collections import Counter, deque
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from retvar import cache
from retvar.errors import InputError, RetvarError
from retvar.progress import Progress
from retvar.sweep.executors import Executor, Local
from retvar.sweep.leases import STALE
from retvar.sweep.plan import Cell, Plan, digest
from retvar.sweep.spec import Sweep
from retvar.sweep.store import Store

__all__ = ["Estimate", "Status", "Stopped", "estimate", "retry", "run", "status"]

TRIES = 3  # before a cell is set aside
TOLD = 5  # cells set aside that are told of
TIMED = 0.3  # seconds that a timing should take
KINDS = 5  # domains that are timed
OVERHEAD = 12_000  # bytes of a file beside its numbers


class Stopped(RetvarError):
    """Nothing more can be computed, such as when the disk is full; what is finished is kept.

    >>> print(Stopped("the disk is full"))
    the disk is full
    """


@dataclass(frozen=True)
class Status:
    """How a store stands.

    >>> Status(cells=3, done=2, failed=1, running=0).missing
    0
    """

    cells: int
    done: int
    failed: int
    running: int
    damaged: tuple[str, ...] = ()
    computed: int = 0  #: by this run
    digest: str | None = None  #: of the contents of all cells, once they are there

    @property
    def missing(self) -> int:
        """Cells that are still to be computed."""
        return self.cells - self.done - self.failed

    @property
    def complete(self) -> bool:
        """Whether everything is there."""
        return self.done == self.cells

    def plain(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        return {**asdict(self), "missing": self.missing, "complete": self.complete}


def run(
    sweep: Sweep | Plan | str | Path,
    out: str | Path,
    executor: Executor | None = None,
    *,
    extend: bool = False,
    progress: Progress | None = None,
    stale: float = STALE,
) -> Status:
    """Compute every cell that is not in the store yet; the same call goes on where one broke off.

    Parameters
    ----------
    sweep
        What to compute, or the path of a specification in TOML.
    out
        Folder of the store, made if it is not there. Any number of runs may share it.
    executor
        Where: :class:`~retvar.sweep.Local` (the default) or :class:`~retvar.sweep.Dask`.
    extend
        Let `out` be the store of a smaller sweep, to which this one adds domains, learners or runs;
        what is there and in both is not computed again.
    progress
        Progress callback.
    stale
        Seconds after which the claim of a worker that gives no sign of life is void.

    Examples
    --------
    >>> import tempfile
    >>> from retvar.sweep import Domain, Learners
    >>> sweep = Sweep(runs=4, steps=50, domains=[Domain(id="chain"), Domain(id="complex-mdp")],
    ...               learners=[Learners(method=["direct", "vtd"], alpha=[0.1, 0.2])])
    >>> out = Path(tempfile.mkdtemp()) / "out"
    >>> run(sweep, out).computed, run(sweep, out).computed
    (2, 0)
    """
    progress = progress or Progress()
    progress.check()
    sweep = Sweep.from_toml(sweep) if isinstance(sweep, str | Path) else sweep
    plan = sweep if isinstance(sweep, Plan) else sweep.plan()
    store = Store.made(out, plan, stale, extend=extend)
    for note in store.notes:
        progress.note(note)
    waiting = _waiting(store, progress)
    computed = _work(store, waiting, executor or Local(), progress) if waiting else 0
    store.tidy()
    return status(store, computed=computed)


def _waiting(store: Store, progress: Progress) -> deque[Cell]:
    """What is to be done; a damaged file is named, and counts as missing."""
    waiting: deque[Cell] = deque()
    aside = {cell.number for cell in store.failed()}
    for cell in store.plan.cells:
        progress.check()
        if store.sound(cell):
            continue
        if store.has(cell):
            told = f"{store.path(cell)} is damaged ({store.plan.name(cell)})"
            progress.note(f"{told}; it is computed again")
        if cell.number not in aside:
            waiting.append(cell)
    progress.start(store.plan.count, store.plan.count - len(waiting) - len(aside))
    return waiting


def _work(store: Store, waiting: deque[Cell], executor: Executor, progress: Progress) -> int:
    """See to it that each cell is computed or set aside; how many were computed."""
    failures: Counter[int] = Counter()
    done = store.plan.count - len(waiting) - len(store.failed())
    computed = aside = 0
    with contextlib.closing(
        executor.outcomes(store, waiting, progress.check, progress.note)
    ) as outcomes:
        for outcome in outcomes:
            cell = store.plan.cells[outcome.number]
            if outcome.state == "stopped":
                raise Stopped(f"{outcome.detail}; what is finished is kept")
            if outcome.state != "failed":
                done, computed = done + 1, computed + (outcome.state == "done")
                progress.advance(done)
                continue
            failures[cell.number] += 1
            if failures[cell.number] < TRIES:
                waiting.append(cell)
                continue
            store.set_aside(cell, outcome.detail)
            aside += 1
            if aside <= TOLD:
                progress.note(_failure(store, cell, outcome.detail, aside == TOLD))
    return computed


def _failure(store: Store, cell: Cell, trace: str, last: bool) -> str:
    reason = trace.strip().rpartition("\n")[2]
    told = f"{store.plan.name(cell)} failed {TRIES} times and is set aside: {reason}"
    return f"{told} (others are not told; see {store.folder / 'failed'})" if last else told


def status(store: Store, computed: int = 0) -> Status:
    """How a store stands, every file checked.

    >>> import tempfile
    >>> from retvar.sweep import Domain, Learners
    >>> sweep = Sweep(runs=2, steps=9, domains=[Domain(id="chain")],
    ...               learners=[Learners(method="direct", alpha=0.1)])
    >>> status(Store.made(Path(tempfile.mkdtemp()) / "out", sweep.plan())).missing
    1
    """
    aside = {cell.number for cell in store.failed()}
    held, damaged, failed, running = [], [], 0, 0
    for cell in store.plan.cells:
        seal = cache.seal_of(store.path(cell))
        if seal is not None and seal.key == store.key(cell):
            held.append(seal.contents)
            continue
        if store.has(cell):
            damaged.append(str(store.path(cell)))
        failed += cell.number in aside
        running += store.claimed(cell)
    whole = len(held) == store.plan.count
    found = digest(held) if whole else None
    return Status(store.plan.count, len(held), failed, running, tuple(damaged), computed, found)


def retry(store: Store) -> int:
    """Let the cells that were set aside be tried again; how many there were.

    >>> import tempfile
    >>> from retvar.sweep import Domain, Learners
    >>> sweep = Sweep(runs=2, steps=9, domains=[Domain(id="chain")],
    ...               learners=[Learners(method="direct", alpha=0.1)])
    >>> store = Store.made(Path(tempfile.mkdtemp()) / "out", sweep.plan())
    >>> store.set_aside(store.plan.cells[0], "it did not work")
    >>> retry(store), retry(store)
    (1, 0)
    """
    failed = store.failed()
    try:
        for cell in failed:
            store.failure(cell).unlink(missing_ok=True)
    except OSError as error:
        raise InputError("folder", store.folder, f"cannot be changed: {error.strerror}") from None
    return len(failed)


# ---------------------------------------------------------------------- before it is run


@dataclass(frozen=True)
class Estimate:
    """What a sweep will take.

    >>> Estimate(cells=10, seconds=20.0, bytes=1_000).per_cell
    2.0
    """

    cells: int
    seconds: float  #: of one processor core
    bytes: int

    @property
    def per_cell(self) -> float:
        """Seconds that one takes."""
        return self.seconds / self.cells


def estimate(plan: Plan, check: Any = lambda: None) -> Estimate:
    """How long a sweep takes and how large it gets, from a short timing of the engine.

    >>> from retvar.sweep import Domain, Learners
    >>> sweep = Sweep(runs=2, steps=9, domains=[Domain(id="chain")],
    ...               learners=[Learners(method="direct", alpha=0.1)])
    >>> estimate(sweep.plan()).cells
    1
    """
    tables = Counter(id(place.domain) for place in plan.places)
    first = {id(p.domain): i for i, p in reversed(list(enumerate(plan.places)))}
    timed = list(first.items())[-KINDS:]
    each = len(plan.cells) / len(plan.places)  # cells of a domain
    seconds, weight = 0.0, 0
    for table, place in timed:
        cell = next(cell for cell in plan.cells if cell.place == place)
        seconds += tables[table] * each * _seconds(plan, cell, check)
        weight += tables[table]
    entries = len(plan.places) * len(plan.learners) * plan.sweep.runs
    size = entries * (16 * plan.moments.size + 1) + OVERHEAD * plan.count
    return Estimate(plan.count, seconds * len(plan.places) / weight, int(size))


def _seconds(plan: Plan, cell: Cell, check: Any) -> float:
    """What a cell takes, from ever longer pieces of it."""
    length = min(plan.length, 16)
    plan.compute(cell, length=length, progress=lambda _: check())  # compiles
    fixed = _timed(plan, cell, length)
    while True:
        check()
        longer = min(plan.length, length * 4)
        took = _timed(plan, cell, longer)
        if longer == plan.length or took > TIMED:
            slope = max(took - fixed, 0.0) / max(longer - min(plan.length, 16), 1)
            return fixed + slope * (plan.length - min(plan.length, 16))
        length = longer


def _timed(plan: Plan, cell: Cell, length: int) -> float:
    before = time.perf_counter()
    plan.compute(cell, length=length)
    return time.perf_counter() - before
