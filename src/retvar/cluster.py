"""Connect to a dask cluster: a scheduler's address, or worker processes on this machine."""

from __future__ import annotations

import contextlib
import logging
import re
import signal
from collections.abc import Iterator
from typing import Any

from retvar.support import arguments
from retvar.support.errors import InputError

TIMEOUT = 10.0  # seconds in which a scheduler must answer
ADDRESS = re.compile(r"[a-z]+://\S+:[0-9]{1,5}")
LOOPBACK = "127.0.0.1"
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
NOISY = ("", ".batched", ".client", ".core", ".nanny", ".utils")  # print tracebacks at the end


def refuse_address(address: Any, workers: int | None = None) -> None:
    """Refuse what is neither ``local`` nor the address of a scheduler."""
    if not isinstance(address, str) or not (address == "local" or ADDRESS.fullmatch(address)):
        remedy = "must be local, or a scheduler's address with its port: tcp://host:8786"
        raise InputError("cluster", address, remedy)
    if workers is not None:
        arguments.integer("workers", workers, 1)
        if address != "local":
            raise InputError("workers", workers, "is only for a local cluster; leave it out")


@contextlib.contextmanager
def connected(address: str, workers: int | None = None) -> Iterator[Any]:
    """A client of the scheduler at `address`, or of a local cluster that lives as long."""
    try:
        import distributed
    except ImportError:
        remedy = 'needs dask: pip install "retvar[cluster]"'
        raise InputError("cluster", address, remedy) from None
    for part in NOISY:
        logging.getLogger(f"distributed{part}").setLevel(logging.CRITICAL)
    with contextlib.ExitStack() as stack:
        where = address if address != "local" else stack.enter_context(local_cluster(workers))
        try:
            client = distributed.Client(where, timeout=TIMEOUT)
        except (OSError, TimeoutError) as error:
            reason = f"no scheduler answered within {TIMEOUT:g} seconds ({type(error).__name__})"
            raise InputError("cluster", address, reason) from None
        yield stack.enter_context(client)


@contextlib.contextmanager
def local_cluster(workers: int | None = None) -> Iterator[Any]:
    """Worker processes on this machine with one thread each; by default one for each core.

    They listen on the loopback interface only and speak TLS with certificates that are made for
    this cluster and kept in memory: nobody else can join or send work by their address.
    """
    import dask
    import distributed

    from retvar.simulation.runner import usable_threads

    with dask.config.set(SETTINGS):
        # processes that Ctrl-C in a terminal does not reach; this one ends them
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            cluster = distributed.LocalCluster(
                n_workers=workers or usable_threads(),
                threads_per_worker=1,
                host=LOOPBACK,
                security=True,
                dashboard_address=f"{LOOPBACK}:0",  # any free port
                scheduler_kwargs={"dashboard": False},
                memory_limit=0,
                silence_logs=50,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        with cluster:
            yield cluster
