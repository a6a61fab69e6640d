"""Simulations computed in a thread, so that figures are drawn meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

from retvar.experiments import Simulation

if TYPE_CHECKING:
    import xarray

__all__ = ["Ahead"]

HELD = 256_000_000  # bytes of results that are kept in memory
PAUSE = 0.1  # seconds between reports of progress

Report = Callable[[float], None]  # receives the share that is finished


class Stopped(Exception):
    """Raised in the thread to end a simulation that is not wanted any more."""


class Ahead:
    """Computes simulations in a thread, in the order in which they are submitted.

    After an error nothing more is computed; on leaving the context, what runs is stopped.

    Parameters
    ----------
    compute
        Called in the thread with a simulation and a function to report the finished share to.
    save
        Called in the caller's thread with a simulation, its result, and the seconds it took. (A
        thread that writes files waits for Python's lock at every step while another one draws.)

    Examples
    --------
    >>> import retvar as rv
    >>> one = Simulation("one", rv.domains.chain(), {"direct": rv.Direct(alpha=0.1)}, episodes=10)
    >>> run = lambda simulation, report: simulation.run(0, progress=report)
    >>> with Ahead(run, lambda simulation, data, seconds: data) as ahead:
    ...     ahead.submit("one", one)
    ...     ahead.result("one").sizes["episode"]
    10
    """

    def __init__(
        self,
        compute: Callable[[Simulation, Report], xarray.Dataset],
        save: Callable[[Simulation, xarray.Dataset, float], xarray.Dataset],
    ) -> None:
        self._compute, self._save = compute, save
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="retvar-simulations")
        self._simulations: dict[str, Simulation] = {}
        self._running: dict[str, Future[tuple[xarray.Dataset, float]]] = {}
        self._saved: dict[str, xarray.Dataset | None] = {}  # None: too large to keep
        self._shares: dict[str, float] = {}
        self._unsaved = 0  # bytes
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def __contains__(self, name: str) -> bool:
        return name in self._running or name in self._saved

    def submit(self, name: str, simulation: Simulation) -> None:
        """Compute a simulation after those before it."""
        self._simulations[name] = simulation
        self._running[name] = self._pool.submit(self._run, name, simulation)

    def _run(self, name: str, simulation: Simulation) -> tuple[xarray.Dataset, float]:
        def report(share: float) -> None:
            self._shares[name] = share
            if self._stopped.is_set():
                raise Stopped

        try:
            while self._unsaved > HELD:
                report(0.0)
                time.sleep(PAUSE)
            report(0.0)
            began = time.monotonic()
            data = self._compute(simulation, report)
        except BaseException:
            self._stopped.set()
            raise
        self._count(data.nbytes)
        return data, time.monotonic() - began

    def _count(self, size: int) -> None:
        with self._lock:
            self._unsaved += size

    def save_finished(self) -> None:
        """Save the results that there are; errors of simulations wait for :meth:`result`."""
        for name, future in list(self._running.items()):
            if not future.done() or future.cancelled() or future.exception() is not None:
                break
            data, seconds = future.result()
            del self._running[name], future
            self._saved[name] = None
            saved = self._save(self._simulations[name], data, seconds)
            self._count(-data.nbytes)
            held = sum(each.nbytes for each in self._saved.values() if each is not None)
            self._saved[name] = saved if held + saved.nbytes <= HELD else None

    def result(
        self, name: str, report: Report = lambda share: None, *, last: bool = True
    ) -> xarray.Dataset | None:
        """Wait for a result; None if it is saved but was too large to keep.

        An exception raised by `report` ends the waiting. The result is kept unless this is the
        `last` time that it is asked for.
        """
        self.save_finished()
        while name in self._running:
            wait([self._running[name]], timeout=PAUSE)
            report(self._shares.get(name, 0.0))
            self.save_finished()
            if name in self._running and self._running[name].done():
                self._running[name].result()  # raises its error
        return self._saved.pop(name) if last else self._saved[name]
