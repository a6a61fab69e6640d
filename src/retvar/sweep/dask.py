"""The executor that lets the workers of a dask cluster compute cells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from retvar.cluster import TIMEOUT, connected, refuse_address
from retvar.support import arguments
from retvar.support.errors import InputError, RetvarError
from retvar.support.progress import Progress
from retvar.sweep.plan import Cell
from retvar.sweep.store import Store


@dataclass(frozen=True)
class Dask:
    """Compute cells on a dask cluster: at a scheduler's address, or ``local`` processes.

    >>> Dask("tcp://10.0.0.1:8786").address
    'tcp://10.0.0.1:8786'
    """

    address: str
    workers: int | None = None
    timeout: float = TIMEOUT

    def __post_init__(self) -> None:
        refuse_address(self.address, self.workers)
        arguments.seconds("timeout", self.timeout)

    def outcomes(
        self, store: Store, cells: Iterable[Cell], progress: Progress
    ) -> Iterator[tuple[Cell, str]]:
        """Let the workers compute; dask gives the cell of a worker that died to another one."""
        from distributed import KilledWorker, as_completed

        folder, digest = str(store.folder.resolve()), store.plan.digest
        with connected(self.address, self.workers, self.timeout) as client:
            waiting = {
                client.submit(_compute, folder, digest, cell.number, pure=False): cell
                for cell in cells
            }
            for future in as_completed(list(waiting)):
                cell = waiting[future]
                if future.status in ("cancelled", "lost"):
                    raise RetvarError(
                        f"lost the scheduler at {self.address}; finished cells are saved, and the "
                        "same command continues from there"
                    )
                try:
                    yield cell, future.result()
                except KilledWorker as error:
                    store.mark_failed(cell, str(error))
                    yield cell, "failed"


@lru_cache(maxsize=4)
def _opened(folder: str, digest: str) -> Store:
    store = Store.open(folder)
    if store.plan.digest != digest:
        raise InputError("store", folder, "is another one for the workers; share one folder")
    return store


def _compute(folder: str, digest: str, number: int) -> str:
    """Compute a cell on a worker, which reads the sweep from the store's manifest."""
    import dask

    store = _opened(folder, digest)
    with dask.config.set(scheduler="synchronous"):  # or xarray asks the cluster for a lock
        return store.compute(store.plan.cells[number])
