"""The executor that lets the workers of a dask cluster compute cells."""

from __future__ import annotations

import contextlib
import math
import os
import time
import traceback
import uuid
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import CancelledError
from functools import lru_cache
from typing import Any

from retvar import arguments
from retvar.cluster import TIMEOUT, connected, refuse_address
from retvar.errors import InputError, RetvarError
from retvar.progress import Progress
from retvar.sweep.executors import PAUSE, CellOutcome, WaitingNotes, compute_cell, waiting_for
from retvar.sweep.plan import Cell
from retvar.sweep.store import Store

__all__ = ["Dask"]

RECOUNT = 2.0  # seconds between counts of the workers, which come and go
CALL = "__import__('importlib').import_module('retvar.sweep.dask_executor')._compute(*arguments)"


@lru_cache(maxsize=4)
def _open_store(folder: str, digest: str, stale: float) -> Store:
    return Store.open(folder, stale)


def _compute(folder: str, digest: str, number: int, stale: float) -> CellOutcome:
    """Compute a cell on a worker, which reads the sweep from the store's manifest.

    It is called through text (`CALL`): a worker without retvar would die silently of a function
    that it cannot unpickle.
    """
    try:
        store = _open_store(folder, digest, stale)
    except InputError as error:
        return CellOutcome(number, "stopped", f"on worker process {os.getpid()}: {error}")
    if store.plan.digest != digest:
        problem = f"{folder} is another store for worker process {os.getpid()}; share one folder"
        return CellOutcome(number, "stopped", problem)
    import dask

    # otherwise xarray asks the cluster for a lock before it writes
    with dask.config.set(scheduler="synchronous"):
        return compute_cell(store, store.plan.cells[number], threads=1)


class Dask:
    """Compute cells on a dask cluster: at a scheduler's address, or ``local`` processes.

    >>> Dask("tcp://10.0.0.1:8786").address
    'tcp://10.0.0.1:8786'
    >>> Dask("10.0.0.1")
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: cluster = 10.0.0.1: must be local, or a scheduler's address with its
    port: tcp://host:8786
    """

    def __init__(self, address: str, workers: int | None = None, timeout: float = TIMEOUT) -> None:
        refuse_address(address, workers)
        self.address, self.workers = address, workers
        self.timeout = arguments.seconds("timeout", timeout)

    def __repr__(self) -> str:
        return f"Dask({self.address!r}, workers={self.workers}, timeout={self.timeout:g})"

    def outcomes(
        self, store: Store, cells: deque[Cell], progress: Progress
    ) -> Generator[CellOutcome, None, None]:
        """Keep the workers busy; the cell of a worker that died goes to another one."""
        progress.check()
        with connected(self.address, self.workers, self.timeout, progress.check) as client:
            try:
                yield from _compute_all(client, store, cells, progress)
            except (OSError, TimeoutError) as error:
                raise RetvarError(
                    f"lost the scheduler at {self.address} ({type(error).__name__}); finished "
                    "cells are saved, and the same command continues from there"
                ) from None


def _compute_all(
    client: Any, store: Store, cells: deque[Cell], progress: Progress
) -> Generator[CellOutcome, None, None]:
    """Submit cells, a few more than there are threads, and yield their outcomes."""
    folder, digest = str(store.folder.resolve()), store.plan.digest
    submitted: dict[Any, Cell] = {}
    later: list[tuple[float, Cell]] = []  # cells that were busy, and when to try them again
    holders: dict[int, str] = {}  # workers that held cells when last tried
    notes, scheduler = WaitingNotes(progress), client.scheduler.address
    counted, threads, had_workers = -math.inf, 0, False
    try:
        while cells or submitted or later:
            progress.check()
            now = time.monotonic()
            if now - counted > RECOUNT:
                threads, counted = sum(client.nthreads().values()), now
                had_workers = had_workers or threads > 0
            if not threads:
                word = "left" if had_workers else "yet"
                notes.waiting(f"no workers {word} at {scheduler}; waiting")
            elif len(holders) == len(cells) + len(submitted) + len(later):
                notes.waiting(waiting_for(holders))
            else:
                notes.reset()
            cells.extend(cell for when, cell in later if when <= now)
            later = [(when, cell) for when, cell in later if when > now]
            while cells and len(submitted) < 2 + 2 * threads:
                cell = cells.popleft()
                names = {"arguments": (folder, digest, cell.number, store.stale)}
                future = client.submit(eval, CALL, names, key=f"cell-{uuid.uuid4().hex}")
                submitted[future] = cell
            for future, outcome in _completed(list(submitted)):
                cell = submitted.pop(future)
                if outcome is None:
                    if client.status != "running":
                        raise ConnectionError("no longer connected")
                    cells.append(cell)
                elif outcome.state == "busy":
                    holders[cell.number] = outcome.detail
                    later.append((now + PAUSE, cell))
                else:
                    holders.pop(cell.number, None)
                    yield outcome._replace(number=cell.number)
    finally:
        with contextlib.suppress(Exception):
            client.cancel(list(submitted), force=True)


def _completed(futures: list[Any]) -> Iterator[tuple[Any, CellOutcome | None]]:
    """Futures that have ended, with None if the scheduler lost one; waits a moment for them."""
    from distributed import wait

    if not futures:
        time.sleep(0.05)
        return
    with contextlib.suppress(TimeoutError, CancelledError):
        wait(futures, timeout=0.1, return_when="FIRST_COMPLETED")
    for future in futures:
        if future.status == "finished":
            yield future, future.result()
        elif future.status == "error":
            yield future, _worker_error(future.exception())
        elif future.status in ("lost", "cancelled"):
            yield future, None


def _worker_error(error: BaseException) -> CellOutcome:
    """The outcome if the worker itself raised; errors of a cell are returned, not raised."""
    if isinstance(error, ImportError):
        problem = f"a worker cannot load retvar ({error})"
        return CellOutcome(
            -1, "stopped", f'{problem}; install it there: pip install "retvar[cluster]"'
        )
    return CellOutcome(-1, "failed", "".join(traceback.format_exception(error)))
