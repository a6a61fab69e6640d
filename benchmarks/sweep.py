"""What sweeping costs beyond computing: the store, dask, and what a second worker brings.

Cells take about a second on one thread. Ways of computing the same cells are timed in turn, round
after round; figures are medians over rounds of the ratios within a round. Workers are started and
warmed up beforehand. The same with cells that sleep a second in place of computing tells what store
and dask cost by themselves, also on a machine whose cores others use. Needs dask (the extra
``cluster``).
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from distributed import Client, LocalCluster

from retvar.files import write_text
from retvar.sweep import Cut, Dask, Domain, Learners, Local, Points, Range, Sweep, run

CELLS, ROUNDS = 8, 3
SECOND = 1.0


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
        record=Points(at="log", points=20), cell=Cut(learners=128, runs=30),
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


def bare(steps: int) -> Callable[[], None]:
    """Compute the cells and forget them."""

    def work() -> None:
        plan = sweep(steps).plan()
        for cell in plan.cells:
            plan.compute(cell, threads=1)

    return work


def sleepy() -> None:
    """From now on, cells in this process sleep a second and give numbers of the right shape."""
    import numpy as np
    import xarray

    from retvar.sweep.cells import Plan

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


def kept(steps: int, executor: Local | Dask) -> Callable[[], None]:
    """Compute them into a store."""

    def work() -> None:
        with tempfile.TemporaryDirectory() as folder:
            assert run(sweep(steps), folder, executor).computed == CELLS

    return work


def warmed(workers: int) -> LocalCluster:
    """A cluster all of whose workers have computed something."""
    cluster = LocalCluster(
        n_workers=workers, threads_per_worker=1, dashboard_address=None, memory_limit=0
    )
    with tempfile.TemporaryDirectory() as folder, Client(cluster) as client:
        client.wait_for_workers(workers)
        run(sweep(20, seed=1, cells=12 * workers), folder, Dask(cluster.scheduler_address))
    return cluster


def measured(ways: dict[str, Callable[[], None]]) -> dict[str, list[float]]:
    """Seconds of each, round by round."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            before = time.perf_counter()
            way()
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
    spread = max(times["computed and forgotten"]) / min(times["computed and forgotten"])
    return f"""{CELLS} cells of 84 learners × 30 runs × {steps:,} steps, {ROUNDS} rounds:

{table(times)}

The store costs less than 5%: {verdict(store < 0.05)} ({store:.1%}). Store and dask cost less than
5%: {verdict(dask < 0.05)} ({dask:.1%}). Two workers are at least 1.8 times one:
{verdict(faster >= 1.8)} ({faster:.2f}). The slowest round of the plain computation took
{spread:.2f} times the fastest; where that is far from 1, others used the machine: it says little.
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
    with warmed(1) as one, warmed(2) as two:
        stores = {
            "into a store": kept(steps, Local(threads=1)),
            "dask, one worker": kept(steps, Dask(one.scheduler_address)),
            "dask, two workers": kept(steps, Dask(two.scheduler_address)),
        }
        times = measured({"computed and forgotten": bare(steps), **stores})
        sleepy()
        for cluster in (one, two):
            with Client(cluster) as client:
                client.run(sleepy)
        slept = measured(stores)
    text = f"\n## Sweeps\n\n{computing(steps, times)}\n{sleeping(slept)}"
    print(text)
    if arguments.out:
        before = arguments.out.read_text(encoding="utf-8") if arguments.append else ""
        write_text(arguments.out, before.rstrip("\n") + "\n" + text if before else text.lstrip())


if __name__ == "__main__":
    main()
