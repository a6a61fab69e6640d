"""The executor interface, and the executor for this process.

The process that computes a cell writes it to the store and returns only the outcome.
"""

from __future__ import annotations

import math
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator
from typing import NamedTuple, Protocol

from retvar.engine.cuda_device import chosen_device
from retvar.errors import InputError
from retvar.format import count, listed
from retvar.progress import Progress
from retvar.sweep.leases import holder
from retvar.sweep.plan import Cell
from retvar.sweep.store import Store

__all__ = ["CellOutcome", "Executor", "Local", "compute_cell"]

PAUSE = 0.25  # seconds before a cell that another worker holds is tried again
FIRST_NOTE = 5.0  # seconds of waiting before the first note
NEXT_NOTE = 60.0  # seconds between notes


class CellOutcome(NamedTuple):
    """The outcome of trying to compute a cell.

    ``state`` is ``done`` (computed now), ``exists`` (it was in the store), ``busy`` (`detail` is
    the worker that holds the lease), ``failed`` (`detail` is the traceback) or ``stopped`` (no cell
    can be computed; `detail` is the reason).
    """

    number: int
    state: str
    detail: str = ""


class Executor(Protocol):
    """Anything that computes cells."""

    def outcomes(
        self, store: Store, cells: deque[Cell], progress: Progress
    ) -> Generator[CellOutcome, None, None]:
        """Compute until `cells` is empty; the caller may append to it. Call ``check`` often."""
        ...


class WaitingNotes:
    """Notes what is waited for: after a few seconds, then once a minute."""

    def __init__(self, progress: Progress) -> None:
        self.progress, self.since, self.noted = progress, math.inf, -math.inf

    def reset(self) -> None:
        """The wait is over."""
        self.since = math.inf

    def waiting(self, line: str) -> None:
        """Still waiting; `line` says for what."""
        now = time.monotonic()
        self.since = min(self.since, now)
        if now - self.since >= FIRST_NOTE and now - self.noted >= NEXT_NOTE:
            self.noted = now
            self.progress.note(line)


def waiting_for(holders: dict[int, str]) -> str:
    """The note on waiting for cells that other workers compute.

    >>> waiting_for({3: "node1 (process 7)"})
    'waiting for 1 cell that node1 (process 7) is computing'
    """
    workers = sorted(set(holders.values()))
    verb = "is" if len(workers) == 1 else "are"
    return f"waiting for {count(len(holders), 'cell')} that {listed(workers, 3)} {verb} computing"


def compute_cell(
    store: Store,
    cell: Cell,
    threads: int | None = 1,
    progress: Callable[[float], None] | None = None,
    device: str = "cpu",
) -> CellOutcome:
    """Compute and save a cell, unless it is in the store or another worker holds its lease.

    >>> import pathlib, tempfile
    >>> from retvar.sweep import Domain, Learners, Sweep
    >>> sweep = Sweep(runs=2, steps=9, domains=[Domain(id="chain")],
    ...               learners=[Learners(method="direct", alpha=0.1)])
    >>> store = Store.create(pathlib.Path(tempfile.mkdtemp()) / "out", sweep.plan())
    >>> cell = store.plan.cells[0]
    >>> compute_cell(store, cell).state, compute_cell(store, cell).state
    ('done', 'exists')
    """
    try:
        lease = store.lease(cell)
    except InputError as error:
        return CellOutcome(cell.number, "stopped", str(error))
    if lease is None:
        return CellOutcome(cell.number, "busy", holder(store.lease_path(cell)))
    with lease.heartbeat(store.stale):
        if store.is_finished(cell):
            return CellOutcome(cell.number, "exists")
        try:
            data = store.plan.compute(cell, threads, progress, device=device)
        except Exception:  # a cell that fails must not stop the others
            return CellOutcome(cell.number, "failed", traceback.format_exc())
        try:
            store.write(cell, data)
        except (InputError, OSError) as error:
            return CellOutcome(cell.number, "stopped", str(error))
    return CellOutcome(cell.number, "done")


class Local:
    """Compute cells one after the other in this process, with several threads or on a GPU.

    >>> Local(threads=2).threads
    2
    """

    def __init__(self, threads: int | None = None, device: str = "cpu") -> None:
        chosen_device(device, 1)  # raises an error now if there is none
        self.threads, self.device = threads, device

    def __repr__(self) -> str:
        return f"Local(threads={self.threads}, device={self.device!r})"

    def outcomes(
        self, store: Store, cells: deque[Cell], progress: Progress
    ) -> Generator[CellOutcome, None, None]:
        """Compute the cells; those that other workers hold are tried again later."""
        holders: dict[int, str] = {}  # of the cells that were busy, since the last that was not
        notes = WaitingNotes(progress)
        while cells:
            progress.check()
            cell = cells.popleft()
            outcome = compute_cell(
                store, cell, self.threads, lambda _: progress.check(), self.device
            )
            if outcome.state != "busy":
                holders.clear()
                notes.reset()
                yield outcome
                continue
            cells.append(cell)
            holders[cell.number] = outcome.detail
            if len(holders) >= len(cells):
                notes.waiting(waiting_for(holders))
                holders.clear()
                time.sleep(PAUSE)
