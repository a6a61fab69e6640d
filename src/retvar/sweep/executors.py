"""Where cells are computed: in this process, or by the workers of a dask cluster.

Whoever computes a cell writes it to the store, under a claim; what comes back is only how it went.
"""

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
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import CancelledError
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from retvar.errors import InputError, RetvarError
from retvar.format import listed
from retvar.sweep.leases import held, seconds
from retvar.sweep.plan import Cell
from retvar.sweep.store import Store

__all__ = ["TIMEOUT", "Dask", "Executor", "Local", "Outcome", "work"]

TIMEOUT = 10.0  # seconds that a scheduler has for answering
PAUSE = 0.25  # seconds between looks at cells that others are computing
SOON = 5.0  # seconds of waiting before it is told
MINUTE = 60.0  # seconds before it is told again
ADDRESS = re.compile(r"(tcp|tls|ws|wss|ucx|ucxx)://([^\s:/\[\]]+|\[[^\s\[\]]+\]):[0-9]{1,5}")
CALL = "__import__('importlib').import_module('retvar.sweep.executors')._remote(*given)"
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
Tell = Callable[[str], None]


class Outcome(NamedTuple):
    """How it went with a cell.

    ``done`` (computed now), ``there`` (it was already), ``busy`` (`detail` is who is at it),
    ``failed`` (`detail` is the traceback) or ``stopped`` (nothing can be; `detail` is why).
    """

    number: int
    state: str
    detail: str = ""
    seconds: float = 0.0


class Executor(Protocol):
    """Anything that can work on cells."""

    def outcomes(
        self, store: Store, cells: deque[Cell], check: Check, tell: Tell
    ) -> Generator[Outcome, None, None]:
        """Work until `cells` is empty, which the caller may add to.

        Call `check` often, and `tell` people what they may want to know.
        """
        ...


class _Patience:
    """Tells what is waited for: when that takes a while, and then once a minute."""

    def __init__(self, tell: Tell) -> None:
        self.tell, self.since, self.told = tell, math.inf, -math.inf

    def over(self) -> None:
        """Something came."""
        self.since = math.inf

    def waiting(self, line: str) -> None:
        """Nothing came yet."""
        now = time.monotonic()
        self.since = min(self.since, now)
        if now - self.since >= SOON and now - self.told >= MINUTE:
            self.told = now
            self.tell(line)


def _theirs(busy: dict[int, str]) -> str:
    """What is waited for when others have all that is left."""
    owners = sorted(set(busy.values()))
    cells = "1 cell" if len(busy) == 1 else f"{len(busy):,} cells"
    verb = "is" if len(owners) == 1 else "are"
    return f"waiting for {cells} that {listed(owners, 3)} {verb} computing"


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
        return Outcome(cell.number, "busy", store.holder(cell))
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
        self, store: Store, cells: deque[Cell], check: Check, tell: Tell
    ) -> Generator[Outcome, None, None]:
        """Work on them, coming back later to those that others are at."""
        busy: dict[int, str] = {}  # cells in a row that others are at
        patience = _Patience(tell)
        while cells:
            check()
            cell = cells.popleft()
            outcome = work(store, cell, self.threads, lambda _: check())
            if outcome.state != "busy":
                busy.clear()
                patience.over()
                yield outcome
                continue
            cells.append(cell)
            busy[cell.number] = outcome.detail
            if len(busy) >= len(cells):
                patience.waiting(_theirs(busy))
                busy.clear()
                time.sleep(PAUSE)


@lru_cache(maxsize=4)
def _opened(folder: str, digest: str, stale: float) -> Store:
    return Store.opened(folder, stale)


def _remote(folder: str, digest: str, number: int, stale: float) -> Outcome:
    """What a worker is asked for; it learns of the sweep from the store's manifest.

    It is asked in words (`CALL`): a worker that has no retvar dies of a function that it cannot
    load, and would be silent about it.
    """
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
    retvar.errors.InputError: cluster = 10.0.0.1: must be local, or a scheduler's address with its
    port: tcp://host:8786
    """

    def __init__(self, address: str, workers: int | None = None, timeout: float = TIMEOUT) -> None:
        if address != "local" and not ADDRESS.fullmatch(address):
            remedy = "must be local, or a scheduler's address with its port: tcp://host:8786"
            raise InputError("cluster", address, remedy)
        if workers is not None and address != "local":
            raise InputError("workers", workers, "goes with a local cluster; theirs are there")
        self.address, self.workers, self.timeout = address, workers, seconds("timeout", timeout)

    def outcomes(
        self, store: Store, cells: deque[Cell], check: Check, tell: Tell
    ) -> Generator[Outcome, None, None]:
        """Keep the workers busy; a cell whose worker died goes to another one."""
        check()
        with self._client(check) as client:
            try:
                yield from _fed(client, store, cells, check, tell)
            except (OSError, TimeoutError) as error:
                raise RetvarError(
                    f"the scheduler at {self.address} went away ({type(error).__name__}); what is "
                    "finished is kept, and the same command goes on from there"
                ) from None

    @contextlib.contextmanager
    def _client(self, check: Check) -> Iterator[Any]:
        try:
            import distributed
        except ImportError:
            remedy = 'needs dask: pip install "retvar[cluster]"'
            raise InputError("cluster", self.address, remedy) from None
        for name in NOISY:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        if self.address != "local":
            client = self._connected(distributed, check)
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
                _drop(cluster)
                raise

    def _connected(self, distributed: Any, check: Check) -> Any:
        """A client. Whatever listens there, dask is not waited for longer than was said."""
        found: list[Any] = []
        over = threading.Event()
        why = "TimeoutError"

        class Client(distributed.Client):  # type: ignore[misc]
            def __del__(self) -> None:
                """One that failed is not closed: that would wait for an answer, too."""

        def connect() -> None:
            nonlocal why
            try:
                client = Client(self.address, timeout=self.timeout, set_as_default=False)
            except Exception as error:  # such as MemoryError, from a greeting taken for a size
                why = type(error).__name__
                return
            if over.is_set():
                client.close(timeout=2)
            else:
                found.append(client)

        thread = threading.Thread(target=connect, name="retvar-connect", daemon=True)
        thread.start()
        deadline = time.monotonic() + self.timeout
        try:
            while thread.is_alive() and time.monotonic() < deadline:
                check()
                thread.join(0.1)
            if found:
                return found[0]
        finally:
            over.set()
        remedy = f"no scheduler answered within {self.timeout:g} seconds ({why})"
        raise InputError("cluster", self.address, remedy)


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
    client: Any, store: Store, waiting: deque[Cell], check: Check, tell: Tell
) -> Generator[Outcome, None, None]:
    """Hand out cells, a few more than there are threads, and take in how they went."""
    folder, digest = str(store.folder.resolve()), store.plan.digest
    flying: dict[Any, Cell] = {}
    later: list[tuple[float, Cell]] = []  # others are at them
    busy: dict[int, str] = {}  # who has those that others were at when last seen
    looked, room, threads, seen, patience = -math.inf, 4, 0, False, _Patience(tell)
    where = client.scheduler.address
    try:
        while waiting or flying or later:
            check()
            now = time.monotonic()
            if now - looked > 2.0:  # workers come and go
                threads, looked = sum(client.nthreads().values()), now
                room, seen = 2 + 2 * threads, seen or threads > 0
            if not threads:
                patience.waiting(f"no workers {'left' if seen else 'yet'} at {where}; waiting")
            elif len(busy) == len(waiting) + len(flying) + len(later):
                patience.waiting(_theirs(busy))
            else:
                patience.over()
            waiting.extend(cell for when, cell in later if when <= now)
            later = [(when, cell) for when, cell in later if when > now]
            while waiting and len(flying) < room:
                cell = waiting.popleft()
                given = {"given": (folder, digest, cell.number, store.stale)}
                flying[client.submit(eval, CALL, given, key=f"cell-{uuid.uuid4().hex}")] = cell
            for future, outcome in _landed(list(flying)):
                cell = flying.pop(future)
                if outcome is None:
                    if client.status != "running":
                        raise ConnectionError("no longer connected")
                    waiting.append(cell)
                elif outcome.state == "busy":
                    busy[cell.number] = outcome.detail
                    later.append((now + PAUSE, cell))
                else:
                    busy.pop(cell.number, None)
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
            yield future, _erred(future.exception())
        elif future.status in ("lost", "cancelled"):
            yield future, None


def _erred(error: BaseException) -> Outcome:
    """What it means that a worker raised: whatever a cell itself does, it reports."""
    if isinstance(error, ImportError):
        told = f"a worker cannot load retvar ({error})"
        return Outcome(-1, "stopped", f'{told}; install it there: pip install "retvar[cluster]"')
    return Outcome(-1, "failed", "".join(traceback.format_exception(error)))
