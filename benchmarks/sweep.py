"""Overhead of sweeps: the store, dask, and the speed-up by a second worker.

Cells take about a second on one thread. The setups that compute the same cells are timed
alternately; figures are medians over rounds of the ratios within a round. Worker processes are
started and warmed up before the timing, and end before the next setup is timed. Two processes that
share the cells, without store and dask, show the best possible speed-up on this machine. Cells that
sleep for a second instead of computing show the cost of store and dask alone. Needs dask (the extra
``cluster``).
"""

import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from distributed import Client

import document
from retvar.cluster import local_cluster
from retvar.sweep import CellSize, Dask, Domain, Learners, Local, Points, Range, Sweep, run

CELLS = 16
SECOND = 1.0
Setup = Callable[[], AbstractContextManager[Callable[[], object]]]  # yields the work to time


def sweep(steps: int, seed: int = 0, cells: int = CELLS) -> Sweep:
    """A sweep of `cells` cells, each with 84 learners and 30 runs."""
    family = Learners(
        method=["direct", "vtd", "centred"], alpha=Range(log=(1e-3, 1), count=7),
        lam=[0.0, 0.5, 0.9, 1.0],
    )  # fmt: skip
    garnet = Domain(
        random={"states": 20, "actions": 3, "branching": 4}, seeds={"first": 0, "count": cells}
    )
    return Sweep(
        name="bench", seed=seed, runs=30, steps=steps, domains=[garnet], learners=[family],
        record=Points(at="log", points=20), cell=CellSize(learners=128, runs=30),
    )  # fmt: skip


def calibrated() -> int:
    """Steps for which a cell takes a second on one thread."""
    steps = 2_000
    while True:
        plan = sweep(steps).plan()
        plan.compute(plan.cells[0])
        before = time.perf_counter()
        plan.compute(plan.cells[0])
        took = time.perf_counter() - before
        if took > 0.3:
            return int(steps * SECOND / took)
        steps *= 4


def bare(steps: int) -> Setup:
    """Compute the cells and discard the results."""
    return lambda: nullcontext(lambda: _compute(steps))


def _compute(steps: int, share: slice = slice(None)) -> None:
    plan = sweep(steps).plan()
    for cell in plan.cells[share]:
        plan.compute(cell, threads=1)


def shared(steps: int) -> Setup:
    """Two processes that compute every second cell."""

    @contextmanager
    def ready() -> Iterator[Callable[[], object]]:
        begin, ends = multiprocessing.Barrier(3), multiprocessing.Barrier(3)
        pair = [
            multiprocessing.Process(target=_share, args=(steps, slice(i, None, 2), begin, ends))
            for i in range(2)
        ]
        for process in pair:
            process.start()
        begin.wait()
        yield lambda: (begin.wait(), ends.wait())
        for process in pair:
            process.join()

    return ready


def _share(steps: int, share: slice, begin: Any, ends: Any) -> None:
    _compute(20)
    begin.wait()
    begin.wait()
    _compute(steps, share)
    ends.wait()


def replace_by_sleep() -> None:
    """Replace the computation of cells in this process by a second of sleep."""
    import numpy as np
    import xarray

    from retvar.sweep.plan import Plan

    def compute(self, cell, *_, **__):  # type: ignore[no-untyped-def]
        time.sleep(SECOND)
        dims, shape = ("learner", "run", "step"), (len(cell.learners), len(cell.runs), 20)
        errors = np.random.default_rng(cell.number).random((2, *shape))
        return xarray.Dataset({
            "value_rmse": (dims, errors[0]),
            "variance_rmse": (dims, errors[1]),
            "diverged": (dims[:2], np.zeros(shape[:2], dtype=bool)),
        })  # fmt: skip

    Plan.compute = compute  # type: ignore[method-assign]


def local(steps: int) -> Setup:
    """Compute the cells into a store, in this process."""
    return lambda: nullcontext(_work(steps, Local(threads=1)))


def dask(steps: int, workers: int, before: Callable[[], None] | None = None) -> Setup:
    """Compute the cells into a store by warmed-up worker processes."""

    @contextmanager
    def ready() -> Iterator[Callable[[], object]]:
        with local_cluster(workers, private=False) as cluster:
            executor = Dask(cluster.scheduler_address)
            with tempfile.TemporaryDirectory() as folder, Client(cluster) as client:
                client.wait_for_workers(workers)
                run(sweep(20, seed=1, cells=12 * workers), folder, executor)
                if before:
                    client.run(before)
            yield _work(steps, executor)

    return ready


def _work(steps: int, executor: Local | Dask) -> Callable[[], object]:
    def work() -> None:
        with tempfile.TemporaryDirectory() as folder:
            assert run(sweep(steps), folder, executor).computed == CELLS

    return work


def measured(setups: dict[str, Setup], rounds: int) -> dict[str, list[float]]:
    """Seconds of each setup, round by round."""
    times: dict[str, list[float]] = {name: [] for name in setups}
    for _ in range(rounds):
        for name, setup in setups.items():
            with setup() as work:
                before = time.perf_counter()
                work()
                times[name].append(time.perf_counter() - before)
    return times


def ratio(times: dict[str, list[float]], a: str, b: str) -> float:
    """Median ratio of the times of `a` and `b`."""
    return statistics.median(x / y for x, y in zip(times[a], times[b], strict=True))


def verdict(met: bool) -> str:
    return "met" if met else "NOT met"


def table(times: dict[str, list[float]]) -> str:
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    rows = [f"| {name} | {m:.2f} s | {m / CELLS:.3f} s |" for name, m in medians.items()]
    return "\n".join(["| setup | all cells | a cell |", "|---|---:|---:|", *rows])


def computing(steps: int, times: dict[str, list[float]]) -> str:
    """Text about cells that compute."""
    store = ratio(times, "into a store", "without store") - 1
    dask = ratio(times, "dask, one worker", "without store") - 1
    faster = ratio(times, "dask, one worker", "dask, two workers")
    best = ratio(times, "without store", "without store, two processes")
    plain = times["without store"]
    return f"""{CELLS} cells of 84 learners × 30 runs × {steps:,} steps, {len(plain)} rounds:

{table(times)}

Targets: the store costs less than 5%: {verdict(store < 0.05)} ({store:.1%}). Store and dask cost
less than 5%: {verdict(dask < 0.05)} ({dask:.1%}). Two workers are at least 1.8 times as fast as
one: {verdict(faster >= 1.8)} ({faster:.2f}; without store and dask {best:.2f}). The slowest round
without store took {max(plain) / min(plain):.2f} times as long as the fastest. If that is far from
1, other
programs were using the machine, and the figures are unreliable.
"""


def sleeping(times: dict[str, list[float]]) -> str:
    """Text about cells that sleep."""
    cost = {name: statistics.median(seconds) / CELLS - 1 for name, seconds in times.items()}
    store, dask = cost["into a store"], cost["dask, one worker"]
    faster = ratio(times, "dask, one worker", "dask, two workers")
    return f"""Cells that sleep for a second and write as much:

{table(times)}

The store alone costs {store:.1%} of a second per cell ({verdict(store < 0.05)}), store and dask
{dask:.1%} ({verdict(dask < 0.05)}); two workers are {faster:.2f} times as fast as one.
"""


def main() -> None:
    options = document.options(__doc__)
    steps = calibrated()
    setups = {
        "without store": bare(steps),
        "without store, two processes": shared(steps),
        "into a store": local(steps),
        "dask, one worker": dask(steps, 1),
        "dask, two workers": dask(steps, 2),
    }
    times = measured(setups, 5)
    replace_by_sleep()
    setups = {
        "into a store": local(steps),
        "dask, one worker": dask(steps, 1, replace_by_sleep),
        "dask, two workers": dask(steps, 2, replace_by_sleep),
    }
    slept = measured(setups, 3)
    text = f"## Sweeps\n\n{computing(steps, times)}\n{sleeping(slept)}"
    document.publish(text, options.out, options.append)


if __name__ == "__main__":
    main()
