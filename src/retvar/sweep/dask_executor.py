"""The executor that lets the workers of a dask cluster compute cells."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import signal
import threading
import time
import traceback
import uuid
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import CancelledError
from functools import lru_cache
from typing import Any

from retvar import arguments
from retvar.errors import InputError, RetvarError
from retvar.progress import Progress
from retvar.sweep.executors import PAUSE, CellOutcome, WaitingNotes, compute_cell, waiting_for
from retvar.sweep.plan import Cell
from retvar.sweep.store import Store

__all__ = ["TIMEOUT", "Dask", "local_cluster"]

TIMEOUT = 10.0  # seconds in which a scheduler must answer
RECOUNT = 2.0  # seconds between counts of the workers, which come and go
ADDRESS = re.compile(r"(tcp|tls|ws|wss|ucx|ucxx)://([^\s:/\[\]]+|\[[^\s\[\]]+\]):[0-9]{1,5}")
CALL = "__import__('importlib').import_module('retvar.sweep.dask_executor')._compute(*arguments)"
CLUSTER_SETTINGS = {  # of a local cluster
    "distributed.scheduler.allowed-failures": 10,  # workers that may die of one cell
    "distributed.worker.memory.terminate": False,
    # dask's default intervals of self-monitoring cost a tenth of each core
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "500ms",
    "distributed.admin.system-monitor.interval": "5s",
}
NOISY_LOGGERS = [  # they print tracebacks when a worker or scheduler ends; retvar notes it itself
    f"distributed{part}" for part in ("", ".batched", ".client", ".core", ".nanny", ".utils")
]


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
        if address != "local" and not ADDRESS.fullmatch(address):
            remedy = "must be local, or a scheduler's address with its port: tcp://host:8786"
            raise InputError("cluster", address, remedy)
        if workers is not None and address != "local":
            raise InputError("workers", workers, "is only for a local cluster; leave it out")
        self.address, self.workers = address, workers
        self.timeout = arguments.seconds("timeout", timeout)

    def outcomes(
        self, store: Store, cells: deque[Cell], progress: Progress
    ) -> Generator[CellOutcome, None, None]:
        """Keep the workers busy; the cell of a worker that died goes to another one."""
        progress.check()
        with self._client(progress) as client:
            try:
                yield from _compute_all(client, store, cells, progress)
            except (OSError, TimeoutError) as error:
                raise RetvarError(
                    f"lost the scheduler at {self.address} ({type(error).__name__}); finished "
                    "cells are saved, and the same command continues from there"
                ) from None

    @contextlib.contextmanager
    def _client(self, progress: Progress) -> Iterator[Any]:
        try:
            import distributed
        except ImportError:
            remedy = 'needs dask: pip install "retvar[cluster]"'
            raise InputError("cluster", self.address, remedy) from None
        for name in NOISY_LOGGERS:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        if self.address != "local":
            client = self._connect(distributed, progress)
            try:
                with client.as_current():
                    yield client
            finally:
                with contextlib.suppress(TimeoutError):
                    client.close(timeout=2)
            return
        with local_cluster(self.workers) as cluster, distributed.Client(cluster) as client:
            try:
                yield client
            except BaseException:
                _kill_workers(cluster)
                raise

    def _connect(self, distributed: Any, progress: Progress) -> Any:
        """A client; raise if no scheduler answers within the timeout.

        The connection is made in a thread: dask itself may wait much longer.
        """
        found: list[Any] = []
        abandoned = threading.Event()
        reason = "TimeoutError"

        class Client(distributed.Client):  # type: ignore[misc]
            def __del__(self) -> None:
                """Do not close a client that failed: closing would wait for an answer, too."""

        def connect() -> None:
            nonlocal reason
            try:
                client = Client(self.address, timeout=self.timeout, set_as_default=False)
            except Exception as error:  # such as MemoryError, from a greeting read as a size
                reason = type(error).__name__
                return
            if abandoned.is_set():
                client.close(timeout=2)
            else:
                found.append(client)

        thread = threading.Thread(target=connect, name="retvar-connect", daemon=True)
        thread.start()
        deadline = time.monotonic() + self.timeout
        try:
            while thread.is_alive() and time.monotonic() < deadline:
                progress.check()
                thread.join(0.1)
            if found:
                return found[0]
        finally:
            abandoned.set()
        remedy = f"no scheduler answered within {self.timeout:g} seconds ({reason})"
        raise InputError("cluster", self.address, remedy)


@contextlib.contextmanager
def local_cluster(workers: int | None = None) -> Iterator[Any]:
    """Worker processes on this machine with one thread each; by default one for each core."""
    import dask
    import distributed

    from retvar.engine.runner import usable_threads

    with dask.config.set(CLUSTER_SETTINGS):
        cluster = distributed.LocalCluster(
            n_workers=workers or usable_threads(),
            threads_per_worker=1,
            dashboard_address=":0",  # any free port
            scheduler_kwargs={"dashboard": False},
            memory_limit=0,
            silence_logs=50,
        )
        try:
            yield cluster
        finally:
            try:
                cluster.close(timeout=2)
            except TimeoutError:  # on a busy machine; nothing is lost
                _kill_workers(cluster)


def _kill_workers(cluster: Any) -> None:
    """Kill the workers of a local cluster at once."""
    for nanny in cluster.workers.values():
        with contextlib.suppress(OSError, AttributeError):
            nanny.auto_restart = False
            if nanny.pid:
                os.kill(nanny.pid, signal.SIGKILL)


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
