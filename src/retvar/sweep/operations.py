"""Operations on sweeps: run one, show its status, retry failed cells, estimate the cost."""

from __future__ import annotations

import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from retvar import arguments
from retvar.errors import InputError, RetvarError
from retvar.format import listed, literal
from retvar.html import Shown, page, settings
from retvar.progress import Progress
from retvar.sweep.executors import Executor, Local
from retvar.sweep.leases import STALE
from retvar.sweep.plan import Cell, Plan, digest
from retvar.sweep.spec import Sweep
from retvar.sweep.store import Store, check_store

__all__ = ["CostEstimate", "Status", "Stopped", "estimate_cost", "retry", "run", "status"]

TRIES = 3  # before a cell is marked as failed
MAX_NOTES = 5  # on failed cells
TIMING = 0.3  # seconds that a timing should take
TIMED_DOMAINS = 5
FILE_OVERHEAD = 12_000  # bytes of a cell's file in addition to its numbers


class Stopped(RetvarError):
    """No more cells can be computed, such as when the disk is full; finished cells are saved.

    >>> print(Stopped("the disk is full"))
    the disk is full
    """


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

    def _html(self) -> str:
        share = self.done / self.cells if self.cells else 1.0
        counts = {name: f"{getattr(self, name):,}" for name in ("done", "failed", "running")}
        shown = {"cells": f"{self.cells:,}", **counts, "missing": f"{self.missing:,}"}
        shown |= {"damaged": listed(self.damaged), "computed by this run": f"{self.computed:,}"}
        return page(f"Sweep: {share:.0%} done", settings(shown))


def run(
    sweep: Sweep | Plan | str | Path,
    out: str | Path,
    executor: Executor | None = None,
    *,
    extend: bool = False,
    progress: Progress | None = None,
    stale: float = STALE,
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
    extend
        Allow `out` to be the store of a smaller sweep, to which this one adds domains, learners or
        runs; cells of both are not computed again.
    progress
        Callback that is informed of the progress in cells.
    stale
        Seconds without a heartbeat after which the lease of another worker expires.

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
    progress = Progress() if progress is None else progress
    arguments.instance("progress", progress, Progress, "a Progress")
    executor = Local() if executor is None else executor
    if not callable(getattr(executor, "outcomes", None)):
        raise InputError("executor", literal(executor), "must be Local(…) or Dask(…)")
    progress.check()
    sweep = Sweep.from_toml(sweep) if isinstance(sweep, str | Path) else sweep
    arguments.instance("sweep", sweep, Sweep | Plan, "a Sweep, its plan, or a path to its TOML")
    plan = sweep if isinstance(sweep, Plan) else sweep.plan()
    store = Store.create(out, plan, stale, extend=extend)
    for note in store.notes:
        progress.note(note)
    failed = {cell.number for cell in store.failed()}
    cells = _unfinished(store, failed, progress)
    done = plan.count - len(cells) - len(failed)
    progress.start(plan.count, done)
    try:
        computed = _compute(store, cells, done, executor, progress) if cells else 0
    finally:
        store.clean_up()  # workers that were killed leave temporary files
    return status(store, computed=computed)


def _unfinished(store: Store, failed: set[int], progress: Progress) -> deque[Cell]:
    """Cells to compute; damaged files are noted and count as missing."""
    cells: deque[Cell] = deque()
    for cell in store.plan.cells:
        progress.check()
        if store.is_finished(cell):
            continue
        if store.has_file(cell):
            damaged = f"{store.path(cell)} is damaged ({store.plan.describe(cell)})"
            progress.note(f"{damaged}; it is computed again")
        if cell.number not in failed:
            cells.append(cell)
    return cells


def _compute(
    store: Store, cells: deque[Cell], done: int, executor: Executor, progress: Progress
) -> int:
    """Compute each cell or mark it as failed; returns how many were computed."""
    failures: Counter[int] = Counter()
    computed = failed = 0
    with contextlib.closing(executor.outcomes(store, cells, progress)) as outcomes:
        for outcome in outcomes:
            cell = store.plan.cells[outcome.number]
            if outcome.state == "stopped":
                raise Stopped(f"{outcome.detail}; finished cells are saved")
            if outcome.state != "failed":
                done, computed = done + 1, computed + (outcome.state == "done")
                progress.advance(done)
                continue
            failures[cell.number] += 1
            if failures[cell.number] < TRIES:
                cells.append(cell)
                continue
            store.mark_failed(cell, outcome.detail)
            failed += 1
            if failed <= MAX_NOTES:
                progress.note(_failure_note(store, cell, outcome.detail, failed == MAX_NOTES))
    return computed


def _failure_note(store: Store, cell: Cell, trace: str, last: bool) -> str:
    reason = trace.strip().rpartition("\n")[2]
    note = f"{store.plan.describe(cell)} failed {TRIES} times and is skipped: {reason}"
    return f"{note} (no more notes on failures; see {store.folder / 'failed'})" if last else note


def status(store: Store, computed: int = 0) -> Status:
    """Count the cells of a store, and check every file.

    >>> import tempfile
    >>> from retvar.sweep import Domain, Learners
    >>> sweep = Sweep(runs=2, steps=9, domains=[Domain(id="chain")],
    ...               learners=[Learners(method="direct", alpha=0.1)])
    >>> status(Store.create(Path(tempfile.mkdtemp()) / "out", sweep.plan())).missing
    1
    """
    check_store(store)
    marked = {cell.number for cell in store.failed()}
    contents, damaged, failed, running = [], [], 0, 0
    for cell in store.plan.cells:
        found = store.contents_of(cell)
        if found is not None:
            contents.append(found)
            continue
        if store.has_file(cell):
            damaged.append(str(store.path(cell)))
        failed += cell.number in marked
        running += store.is_leased(cell)
    done, count = len(contents), store.plan.count
    whole = digest(contents) if done == count else None
    return Status(count, done, failed, running, tuple(damaged), computed, whole)


def retry(store: Store) -> int:
    """Let the next run compute failed cells again; returns how many there are.

    >>> import tempfile
    >>> from retvar.sweep import Domain, Learners
    >>> sweep = Sweep(runs=2, steps=9, domains=[Domain(id="chain")],
    ...               learners=[Learners(method="direct", alpha=0.1)])
    >>> store = Store.create(Path(tempfile.mkdtemp()) / "out", sweep.plan())
    >>> store.mark_failed(store.plan.cells[0], "it did not work")
    >>> retry(store), retry(store)
    (1, 0)
    """
    check_store(store)
    failed = store.failed()
    try:
        for cell in failed:
            store.failure_path(cell).unlink(missing_ok=True)
    except OSError as error:
        raise InputError("folder", store.folder, f"cannot be changed: {error.strerror}") from None
    return len(failed)


# ---------------------------------------------------------------------- cost


@dataclass(frozen=True)
class CostEstimate:
    """The estimated cost of a sweep.

    >>> CostEstimate(cells=10, seconds=20.0, bytes=1_000).seconds_per_cell
    2.0
    """

    cells: int
    seconds: float  #: on one processor core
    bytes: int

    @property
    def seconds_per_cell(self) -> float:
        """Mean time of a cell."""
        return self.seconds / self.cells


def estimate_cost(plan: Plan, check: Callable[[], None] = lambda: None) -> CostEstimate:
    """Estimate the time and disk space of a sweep from a short timing of the engine.

    >>> from retvar.sweep import Domain, Learners
    >>> sweep = Sweep(runs=2, steps=9, domains=[Domain(id="chain")],
    ...               learners=[Learners(method="direct", alpha=0.1)])
    >>> estimate_cost(sweep.plan()).cells
    1
    """
    arguments.instance("plan", plan, Plan, "the plan of a sweep: sweep.plan()")
    arguments.function("check", check)
    instances = Counter(id(domain.spec) for domain in plan.domains)
    first = {id(domain.spec): i for i, domain in reversed(list(enumerate(plan.domains)))}
    timed = list(first.items())[-TIMED_DOMAINS:]
    cells_per_domain = len(plan.cells) / len(plan.domains)
    seconds, weight = 0.0, 0
    for spec, number in timed:
        cell = next(cell for cell in plan.cells if cell.domain == number)
        seconds += instances[spec] * cells_per_domain * _cell_seconds(plan, cell, check)
        weight += instances[spec]
    entries = len(plan.domains) * len(plan.learners) * plan.sweep.runs
    size = entries * (16 * plan.moments.size + 1) + FILE_OVERHEAD * plan.count
    return CostEstimate(plan.count, seconds * len(plan.domains) / weight, int(size))


def _cell_seconds(plan: Plan, cell: Cell, check: Callable[[], None]) -> float:
    """The time of a cell, extrapolated from ever longer pieces of it."""
    shortest = length = min(plan.length, 16)
    plan.compute(cell, length=length, progress=lambda _: check())  # compiles
    fixed = _time(plan, cell, length)
    while True:
        check()
        length = min(plan.length, length * 4)
        taken = _time(plan, cell, length)
        if length == plan.length or taken > TIMING:
            slope = max(taken - fixed, 0.0) / max(length - shortest, 1)
            return fixed + slope * (plan.length - shortest)


def _time(plan: Plan, cell: Cell, length: int) -> float:
    before = time.perf_counter()
    plan.compute(cell, length=length)
    return time.perf_counter() - before
