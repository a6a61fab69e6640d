"""Connect to a dask cluster: a scheduler's address, or worker processes on this machine."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from retvar import arguments
from retvar.errors import InputError
from retvar.files import discard, make_temporary_folder

__all__ = ["TIMEOUT", "connected", "local_cluster", "refuse_address"]

MOST_WORKERS = 10_000
TIMEOUT = 10.0  # seconds in which a scheduler must answer
ADDRESS = re.compile(r"(tcp|tls|ws|wss|ucx|ucxx)://([^\s:/\[\]]+|\[[^\s\[\]]+\]):[0-9]{1,5}")
SETTINGS = {  # of a local cluster
    "distributed.scheduler.allowed-failures": 10,  # workers that may die of one task
    "distributed.worker.memory.terminate": False,
    # dask's default intervals of self-monitoring cost a tenth of each core
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "500ms",
    "distributed.admin.system-monitor.interval": "5s",
    # dask starts an HTTP server in any case; without routes it answers nothing
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
}
LOOPBACK = "127.0.0.1"
NOISY_LOGGERS = [  # they print tracebacks when a worker or scheduler ends; retvar notes it itself
    f"distributed{part}" for part in ("", ".batched", ".client", ".core", ".nanny", ".utils")
]


def refuse_address(address: Any, workers: int | None = None) -> None:
    """Refuse what is neither ``local`` nor the address of a scheduler.

    >>> refuse_address("10.0.0.1")
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: cluster = 10.0.0.1: must be local, or a scheduler's address with its
    port: tcp://host:8786
    """
    known = isinstance(address, str) and (address == "local" or ADDRESS.fullmatch(address))
    if not known:
        remedy = "must be local, or a scheduler's address with its port: tcp://host:8786"
        raise InputError("cluster", address, remedy)
    if workers is not None and address != "local":
        raise InputError("workers", workers, "is only for a local cluster; leave it out")
    if workers is not None:
        arguments.integer("workers", workers, 1, MOST_WORKERS)


@contextlib.contextmanager
def connected(
    address: str,
    workers: int | None = None,
    timeout: float = TIMEOUT,
    check: Callable[[], object] = lambda: None,
) -> Iterator[Any]:
    """A client of the scheduler at `address`, or of a local cluster that lives as long.

    `check` is called while waiting for an answer; it may raise.
    """
    try:
        import distributed
    except ImportError:
        remedy = 'needs dask: pip install "retvar[cluster]"'
        raise InputError("cluster", address, remedy) from None
    for name in NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if address != "local":
        client = _connect(distributed, address, timeout, check)
        try:
            with client.as_current():
                yield client
        finally:
            with contextlib.suppress(TimeoutError):
                client.close(timeout=2)
        return
    with local_cluster(workers) as cluster, distributed.Client(cluster) as client:
        try:
            yield client
        except BaseException:
            _kill_workers(cluster)
            raise


def _connect(distributed: Any, address: str, timeout: float, check: Callable[[], object]) -> Any:
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
            client = Client(address, timeout=timeout, set_as_default=False)
        except Exception as error:  # such as MemoryError, from a greeting read as a size
            reason = type(error).__name__
            return
        if abandoned.is_set():
            client.close(timeout=2)
        else:
            found.append(client)

    thread = threading.Thread(target=connect, name="retvar-connect", daemon=True)
    thread.start()
    deadline = time.monotonic() + timeout
    try:
        while thread.is_alive() and time.monotonic() < deadline:
            check()
            thread.join(0.1)
        if found:
            return found[0]
    finally:
        abandoned.set()
    remedy = f"no scheduler answered within {timeout:g} seconds ({reason})"
    raise InputError("cluster", address, remedy)


@contextlib.contextmanager
def local_cluster(workers: int | None = None, *, private: bool = True) -> Iterator[Any]:
    """Worker processes on this machine with one thread each; by default one for each core.

    They listen on the loopback interface only. If they are `private`, they speak TLS with
    certificates that are made for this cluster and kept in memory: nobody else can join or send
    work by their address.
    """
    import dask
    import distributed

    from retvar.engine.runner import usable_threads

    setting = "temporary-directory"  # of dask
    folder = make_temporary_folder("retvar-cluster", dask.config.get(setting, None), setting)
    # the scheduler knows no other way to its folder; one that others can write would let them in
    with dask.config.set({**SETTINGS, setting: str(folder)}), contextlib.ExitStack() as stack:
        stack.callback(discard, folder)
        with _quiet_children():
            cluster = distributed.LocalCluster(
                n_workers=workers or usable_threads(),
                threads_per_worker=1,
                host=LOOPBACK,
                security=True if private else None,
                dashboard_address=f"{LOOPBACK}:0",  # any free port
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


@contextlib.contextmanager
def _quiet_children() -> Iterator[None]:
    """Start processes that print nothing at Ctrl-C in a terminal, or when this one is ended.

    The threads that are made here, and what they start, inherit the mask of signals.
    """
    option = "ignore::UserWarning:multiprocessing.resource_tracker"
    mask = getattr(signal, "pthread_sigmask", None)
    if mask is None:  # not on Windows
        yield
        return
    from multiprocessing.resource_tracker import ensure_running

    sys.warnoptions.append(option)
    try:
        ensure_running()  # now, since it changes the mask of the thread that starts it
    finally:
        sys.warnoptions.remove(option)
    before = mask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        mask(signal.SIG_SETMASK, before)


def _kill_workers(cluster: Any) -> None:
    """Kill the workers of a local cluster at once."""
    for nanny in cluster.workers.values():
        with contextlib.suppress(OSError, AttributeError):
            nanny.auto_restart = False
            if nanny.pid:
                os.kill(nanny.pid, signal.SIGKILL)
