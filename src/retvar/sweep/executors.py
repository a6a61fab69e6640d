"""Where cells are computed: in this process, or by the workers of a dask cluster.

Whoever computes a cell writes it to the store, under a claim; what comes back is only how it went.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import CancelledError
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from retvar.errors import InputError, RetvarError
from retvar.sweep.cells import Cell
from retvar.sweep.claims import held
from retvar.sweep.store import Store

__all__ = ["TIMEOUT", "Dask", "Executor", "Local", "Outcome", "work"]

TIMEOUT = 10.0  # seconds that a scheduler has for answering
PAUSE = 0.25  # seconds between looks at cells that others are computing
LOCAL = {  # settings of a local cluster
    "distributed.scheduler.allowed-failures": 10,  # workers one cell may lose before it is given up
    "distributed.worker.memory.terminate": False,
    # looking at itself so often would cost dask a tenth of each core
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "500ms",
    "distributed.admin.system-monitor.interval": "5s",
}
NOISY = [  # what a worker's or scheduler's end makes them print is told by us, in a line
    f"distributed{part}" for part in ("", ".batched", ".client", ".core", ".nanny", ".utils")
]
Check = Callable[[], None]


class Outcome(NamedTuple):
    """How it went with a cell.

    ``done`` (computed now), ``there`` (it was already), ``busy`` (somebody else is at it),
    ``failed`` (`detail` is the traceback) or ``stopped`` (nothing can be; `detail` is why).
    """

    number: int
    state: str
    detail: str = ""
    seconds: float = 0.0


class Executor(Protocol):
    """Anything that can work on cells."""

    def outcomes(
        self, store: Store, cells: deque[Cell], check: Check
    ) -> Generator[Outcome, None, None]:
        """Work until `cells` is empty, which the caller may add to; call `check` often."""
        ...


def work(
    store: Store,
    cell: Cell,
    threads: int | None = 1,
    progress: Callable[[float], None] | None = None,
) -> Outcome:
    """Compute one cell and keep it, unless it is there or somebody else is at it.

    >>> import pathlib, tempfile
    >>> from retvar.sweep import Domain, Learners, Sweep
    >>> sweep = Sweep(runs=2, steps=9, domains=[Domain(id="chain")],
    ...               learners=[Learners(method="direct", alpha=0.1)])
    >>> store = Store.made(pathlib.Path(tempfile.mkdtemp()) / "out", sweep.plan())
    >>> cell = store.plan.cells[0]
    >>> work(store, cell).state, work(store, cell).state
    ('done', 'there')
    """
    began = time.monotonic()
    try:
        claim = store.claim(cell)
    except InputError as error:
        return Outcome(cell.number, "stopped", str(error))
    if claim is None:
        return Outcome(cell.number, "busy")
    with held(claim, store.stale):
        if store.sound(cell):
            return Outcome(cell.number, "there")
        try:
            data = store.plan.compute(cell, threads, progress)
        except Exception:  # whatever a cell does must not stop the others
            return Outcome(cell.number, "failed", traceback.format_exc())
        try:
            store.write(cell, data)
        except (InputError, OSError) as error:
            return Outcome(cell.number, "stopped", str(error))
    return Outcome(cell.number, "done", "", time.monotonic() - began)


class Local:
    """Cells one after the other in this process, each on the threads of the engine.

    >>> Local(threads=2).threads
    2
    """

    def __init__(self, threads: int | None = None) -> None:
        self.threads = threads

    def outcomes(
        self, store: Store, cells: deque[Cell], check: Check
    ) -> Generator[Outcome, None, None]:
        """Work on them, coming back later to those that others are at."""
        idle = 0  # cells in a row that others are at
        while cells:
            check()
            cell = cells.popleft()
            outcome = work(store, cell, self.threads, lambda _: check())
            if outcome.state != "busy":
                idle = 0
                yield outcome
                continue
            cells.append(cell)
            idle += 1
            if idle >= len(cells):
                idle = 0
                time.sleep(PAUSE)


@lru_cache(maxsize=4)
def _opened(folder: str, digest: str, stale: float) -> Store:
    return Store.opened(folder, stale)


def _remote(folder: str, digest: str, number: int, stale: float) -> Outcome:
    """What a worker is asked for; it learns of the sweep from the store's manifest."""
    try:
        store = _opened(folder, digest, stale)
    except InputError as error:
        return Outcome(number, "stopped", f"on worker process {os.getpid()}: {error}")
    if store.plan.digest != digest:
        told = f"{folder} is another store for worker process {os.getpid()}; share one folder"
        return Outcome(number, "stopped", told)
    import dask

    with dask.config.set(scheduler="synchronous"):  # or xarray asks the cluster for a lock to write
        return work(store, store.plan.cells[number], threads=1)


class Dask:
    """The workers of a dask cluster: that of a scheduler's address, or ``local`` processes.

    >>> Dask("tcp://10.0.0.1:8786").address
    'tcp://10.0.0.1:8786'
    >>> Dask("10.0.0.1")
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: cluster = 10.0.0.1: must be local, or the address of a scheduler such
    as tcp://host:8786
    """

    def __init__(self, address: str, workers: int | None = None, timeout: float = TIMEOUT) -> None:
        if address != "local" and "://" not in address:
            remedy = "must be local, or the address of a scheduler such as tcp://host:8786"
            raise InputError("cluster", address, remedy)
        if workers is not None and address != "local":
            raise InputError("workers", workers, "goes with a local cluster; theirs are there")
        self.address, self.workers, self.timeout = address, workers, timeout

    def outcomes(
        self, store: Store, cells: deque[Cell], check: Check
    ) -> Generator[Outcome, None, None]:
        """Keep the workers busy; a cell whose worker died goes to another one."""
        check()
        with self._client() as client:
            try:
                yield from _fed(client, store, cells, check)
            except (OSError, TimeoutError) as error:
                raise RetvarError(
                    f"the scheduler at {self.address} went away ({type(error).__name__}); what is "
                    "finished is kept, and the same command goes on from there"
                ) from None

    @contextlib.contextmanager
    def _client(self) -> Iterator[Any]:
        try:
            import distributed
        except ImportError:
            remedy = 'needs dask: pip install "retvar[cluster]"'
            raise InputError("cluster", self.address, remedy) from None
        for name in NOISY:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        if self.address != "local":
            client = self._connected(distributed)
            try:
                yield client
            finally:
                with contextlib.suppress(TimeoutError):
                    client.close(timeout=2)
            return
        with local_cluster(self.workers) as cluster, distributed.Client(cluster) as client:
            try:
                yield client
            except BaseException:
                _drop(cluster)
                raise

    def _connected(self, distributed: Any) -> Any:
        try:
            return distributed.Client(self.address, timeout=self.timeout)
        except (OSError, TimeoutError, ValueError) as error:
            remedy = (
                f"no scheduler answered within {self.timeout:g} seconds ({type(error).__name__})"
            )
            raise InputError("cluster", self.address, remedy) from None


@contextlib.contextmanager
def local_cluster(workers: int | None = None) -> Iterator[Any]:
    """Worker processes on this machine, one thread each; as many as there are cores."""
    import dask
    import distributed

    from retvar.engine.runner import usable_threads

    with dask.config.set(LOCAL):
        cluster = distributed.LocalCluster(
            n_workers=workers or usable_threads(),
            threads_per_worker=1,
            dashboard_address=":0",  # any free port: others may be at work on this machine
            scheduler_kwargs={"dashboard": False},
            memory_limit=0,
            silence_logs=50,
        )
        try:
            yield cluster
        finally:
            try:
                cluster.close(timeout=2)
            except TimeoutError:  # a busy machine; its workers have nothing to lose
                _drop(cluster)


def _drop(cluster: Any) -> None:
    """End the workers of a local cluster at once, whatever cell they are at."""
    for nanny in cluster.workers.values():
        with contextlib.suppress(OSError, AttributeError):
            nanny.auto_restart = False
            if nanny.pid:
                os.kill(nanny.pid, signal.SIGKILL)


def _fed(
    client: Any, store: Store, waiting: deque[Cell], check: Check
) -> Generator[Outcome, None, None]:
    """Hand out cells, a few more than there are threads, and take in how they went."""
    folder, digest = str(store.folder.resolve()), store.plan.digest
    flying: dict[Any, Cell] = {}
    later: list[tuple[float, Cell]] = []  # others are at them
    looked, room = 0.0, 4
    try:
        while waiting or flying or later:
            check()
            now = time.monotonic()
            if now - looked > 2.0:  # workers come and go
                room, looked = 2 + 2 * sum(client.nthreads().values()), now
            waiting.extend(cell for when, cell in later if when <= now)
            later = [(when, cell) for when, cell in later if when > now]
            while waiting and len(flying) < room:
                cell = waiting.popleft()
                future = client.submit(
                    _remote, folder, digest, cell.number, store.stale, pure=False
                )
                flying[future] = cell
            for future, outcome in _landed(list(flying)):
                cell = flying.pop(future)
                if outcome is None:
                    if client.status != "running":
                        raise ConnectionError("no longer connected")
                    waiting.append(cell)
                elif outcome.state == "busy":
                    later.append((now + PAUSE, cell))
                else:
                    yield outcome._replace(number=cell.number)
    finally:
        with contextlib.suppress(Exception):
            client.cancel(list(flying), force=True)


def _landed(futures: list[Any]) -> Iterator[tuple[Any, Outcome | None]]:
    """Those that have come back, None where the scheduler lost one; waits where there are none."""
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
            trace = "".join(traceback.format_exception(future.exception()))
            yield future, Outcome(-1, "failed", trace)
        elif future.status in ("lost", "cancelled"):
            yield future, None
