"""What sweeping costs beyond computing: the store, dask, and what a second worker brings.

Cells take about a second on one thread. Ways of computing the same cells are timed in turn, round
after round; figures are medians over rounds of the ratios within a round. Worker processes are
started and warmed up before the clock, and ended before the next way has its turn, so that idle
ones cost nobody anything. Two bare processes that share the cells, without store and dask, tell
what two workers could bring at best on this machine. Cells that sleep a second in place of
computing tell what store and dask cost by themselves. Needs dask (the extra ``cluster``).
"""

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from distributed import Client

from retvar.files import write_text
from retvar.sweep import CellSize, Dask, Domain, Learners, Local, Points, Range, Sweep, run
from retvar.sweep.dask_executor import local_cluster
from retvar.sweep.executors import Executor

CELLS = 16
SECOND = 1.0
Way = Callable[[], AbstractContextManager[Callable[[], object]]]  # gets ready; what to time


def sweep(steps: int, seed: int = 0, cells: int = CELLS) -> Sweep:
    """As many cells, each with 84 learners and 30 runs."""
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


def bare(steps: int) -> Way:
    """Compute the cells and forget them."""
    return lambda: nullcontext(lambda: _compute(steps))


def _compute(steps: int, share: slice = slice(None)) -> None:
    plan = sweep(steps).plan()
    for cell in plan.cells[share]:
        plan.compute(cell, threads=1)


def shared(steps: int) -> Way:
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


def sleepy() -> None:
    """From now on, cells in this process sleep a second and give numbers of the right shape."""
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


def local(steps: int) -> Way:
    """Compute them into a store, in this process."""
    return lambda: nullcontext(_kept(steps, Local(threads=1)))


def dask(steps: int, workers: int, before: Callable[[], None] | None = None) -> Way:
    """Compute them into a store by worker processes, which have computed something beforehand."""

    @contextmanager
    def ready() -> Iterator[Callable[[], object]]:
        with local_cluster(workers) as cluster:
            executor = Dask(cluster.scheduler_address)
            with tempfile.TemporaryDirectory() as folder, Client(cluster) as client:
                client.wait_for_workers(workers)
                run(sweep(20, seed=1, cells=12 * workers), folder, executor)
                if before:
                    client.run(before)
            yield _kept(steps, executor)

    return ready


def _kept(steps: int, executor: Executor) -> Callable[[], object]:
    def work() -> None:
        with tempfile.TemporaryDirectory() as folder:
            assert run(sweep(steps), folder, executor).computed == CELLS

    return work


def measured(ways: dict[str, Way], rounds: int) -> dict[str, list[float]]:
    """Seconds of each, round by round."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            with way() as work:
                before = time.perf_counter()
                work()
                times[name].append(time.perf_counter() - before)
    return times


def ratio(times: dict[str, list[float]], a: str, b: str) -> float:
    """How many times as long `a` takes as `b`."""
    return statistics.median(x / y for x, y in zip(times[a], times[b], strict=True))


def verdict(met: bool) -> str:
    return "met" if met else "NOT met"


def table(times: dict[str, list[float]]) -> str:
    medians = {name: statistics.median(found) for name, found in times.items()}
    rows = [f"| {name} | {m:.2f} s | {m / CELLS:.3f} s |" for name, m in medians.items()]
    return "\n".join(["| way | all cells | a cell |", "|---|---:|---:|", *rows])


def computing(steps: int, times: dict[str, list[float]]) -> str:
    """What was found for cells that compute."""
    store = ratio(times, "into a store", "computed and forgotten") - 1
    dask = ratio(times, "dask, one worker", "computed and forgotten") - 1
    faster = ratio(times, "dask, one worker", "dask, two workers")
    best = ratio(times, "computed and forgotten", "the same, two processes")
    plain = times["computed and forgotten"]
    return f"""{CELLS} cells of 84 learners × 30 runs × {steps:,} steps, {len(plain)} rounds:

{table(times)}

The store costs less than 5%: {verdict(store < 0.05)} ({store:.1%}). Store and dask cost less than
5%: {verdict(dask < 0.05)} ({dask:.1%}). Two workers are at least 1.8 times one:
{verdict(faster >= 1.8)} ({faster:.2f}; without store and dask {best:.2f}). The slowest round of the
plain computation took {max(plain) / min(plain):.2f} times the fastest; where that is far from 1,
others used the machine: it says little.
"""


def sleeping(times: dict[str, list[float]]) -> str:
    """What was found for cells that sleep."""
    cost = {name: statistics.median(found) / CELLS - 1 for name, found in times.items()}
    store, dask = cost["into a store"], cost["dask, one worker"]
    faster = ratio(times, "dask, one worker", "dask, two workers")
    return f"""Cells that sleep a second and write as much:

{table(times)}

By themselves the store costs {store:.1%} of a second a cell, {verdict(store < 0.05)}, store and
dask {dask:.1%}, {verdict(dask < 0.05)}; two workers are {faster:.2f} times one.
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--append", action="store_true")
    arguments = parser.parse_args()
    steps = calibrated()
    ways = {
        "computed and forgotten": bare(steps),
        "the same, two processes": shared(steps),
        "into a store": local(steps),
        "dask, one worker": dask(steps, 1),
        "dask, two workers": dask(steps, 2),
    }
    times = measured(ways, 5)
    sleepy()
    ways = {
        "into a store": local(steps),
        "dask, one worker": dask(steps, 1, sleepy),
        "dask, two workers": dask(steps, 2, sleepy),
    }
    slept = measured(ways, 3)
    text = f"\n## Sweeps\n\n{computing(steps, times)}\n{sleeping(slept)}"
    print(text)
    if arguments.out:
        before = arguments.out.read_text(encoding="utf-8") if arguments.append else ""
        write_text(arguments.out, before.rstrip("\n") + "\n" + text if before else text.lstrip())


if __name__ == "__main__":
    main()
