"""How often 90% intervals hold: value, std and fresh returns, on the worlds of the tests.

``python -m benchmarks.coverage [LOGS [SEED]]`` uses all processors and prints a row for each world,
then which cells are significantly outside 0.90 ± 0.03 (Holm, at 5%) and the mean over cells; then
how often the self-check contradicts sound estimates of five Markov worlds, and those of a ward
whose patients are frail or not, which the log does not say (``LOGS SEED alarms``: only these).
"""

from __future__ import annotations

import math
import sys
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from functools import partial
from statistics import NormalDist
from typing import Any

import numpy as np
from tests.check_worlds import HELD_OUT
from tests.test_checks import ward
from tests.test_coverage import FEW_SIZES, measured, returns_inside
from tests.worlds import OTHERS, PAGE

import retvar as rv

LEVEL, SLACK, RATE = 0.9, 0.03, 0.05
write: Any = sys.stdout.write
Cell = tuple[str, float, float]  # name, mean share, its standard error


def cell(name: str, shares: list[float]) -> Cell:
    """The mean share of the logs of a cell, and its standard error, that of a binomial at least."""
    n = len(shares)
    least = math.sqrt(LEVEL * (1 - LEVEL)) / n
    return name, float(np.mean(shares)), max(float(np.std(shares, ddof=1)) / math.sqrt(n), least)


def outside(cells: list[Cell]) -> list[str]:
    """Cells that are significantly outside, by Holm's procedure."""
    tails = [
        (2 * NormalDist().cdf(-max(0.0, (abs(mean - LEVEL) - SLACK) / error)), name)
        for name, mean, error in cells
    ]
    found = []
    for k, (p, name) in enumerate(sorted(tails)):
        if p > RATE / (len(tails) - k):
            break
        found.append(name)
    return found


def shares_of(name: str, what: str, logs: int, seed: list[int]) -> dict[str, list[float]]:
    """Of each log of a world, the share of intervals that hold."""
    case, rng = (PAGE | OTHERS)[name], np.random.default_rng(seed)
    if what == "returns":
        return {what: returns_inside(case, logs, rng)}
    found = measured(case, logs, rng)
    return {key: found[key] for key in ("value", "std") if found.get(key)}


def intervals(pool: Executor, logs: int, seed: int) -> None:
    """Measure the intervals on all worlds, and print the table."""
    jobs: dict[str, list[Future[dict[str, list[float]]]]] = {}
    for k, (name, case) in enumerate((PAGE | OTHERS).items()):
        kinds = ["estimates"] * (name in PAGE) + ["returns"] * case.make().on_policy
        jobs[name] = [
            pool.submit(shares_of, name, what, logs, [seed, k, j]) for j, what in enumerate(kinds)
        ]
    cells: list[Cell] = []
    write("| world | rows | value | std | returns |\n|---|---|---|---|---|\n")
    for name, parts in jobs.items():
        shares = {what: x for part in parts for what, x in part.result().items()}
        found = {what: cell(f"{name}: {what}", x) for what, x in shares.items()}
        row = [
            f"{100 * found[what][1]:.1f} ± {100 * found[what][2]:.1f}%" if what in found else "–"
            for what in ("value", "std", "returns")
        ]
        cells += [x for what, x in found.items() if not (what == "returns" and name in FEW_SIZES)]
        write(f"| {name} | {(PAGE | OTHERS)[name].rows:,} | {' | '.join(row)} |\n")
        sys.stdout.flush()
    wrong = outside(cells)
    write(f"\n{len(wrong)} of {len(cells)} cells outside {LEVEL} ± {SLACK}: {', '.join(wrong)}\n")
    for what in ("value", "std", "returns"):
        means = [mean for name, mean, _ in cells if name.endswith(f": {what}")]
        write(f"mean over cells, {what}: {np.mean(means):.3f}\n")


def verdicts(make: Any, gamma: float, logs: int, seed: list[int]) -> tuple[int, int]:
    """How often the self-check contradicts, and how often it agrees."""
    rng = np.random.default_rng(seed)
    kinds = [rv.estimate(make(rng), gamma=gamma).self_check.kind for _ in range(logs)]
    return kinds.count("disagrees"), kinds.count("agrees")


def alarms(pool: Executor, logs: int, seed: int, rows: int = 5_000) -> None:
    """How often the data's own returns contradict estimates: of Markov states, of hidden ones."""
    cases = {f"Markov: {name}": (partial(markov_log, name, rows), build().gamma)
             for name, build in HELD_OUT.items()}  # fmt: skip
    for patients in (150, 300, 600):
        make = partial(ward, missing=0.0, frail=0.5, patients=patients)
        cases[f"hidden: ward, {patients} patients"] = make, 0.95
    jobs = {
        name: pool.submit(verdicts, make, gamma, logs, [seed, 1, k])
        for k, (name, (make, gamma)) in enumerate(cases.items())
    }
    write("\n| self-check | logs | contradicts | agrees |\n|---|---|---|---|\n")
    for name, job in jobs.items():
        wrong, right = job.result()
        write(f"| {name} | {logs} | {wrong} | {right} |\n")
        sys.stdout.flush()


def markov_log(name: str, rows: int, rng: np.random.Generator) -> rv.experience.Experience:
    """A log of a world whose states are Markov."""
    world = HELD_OUT[name]()
    return rv.experience.from_table(world.log(rng, rows), states=world.states)


if __name__ == "__main__":
    *numbers, only = sys.argv[1:] if sys.argv[-1] == "alarms" else [*sys.argv[1:], ""]
    logs, seed = [*map(int, numbers), *(200, 0)[len(numbers) :]]
    with ProcessPoolExecutor() as processes:
        if not only:
            intervals(processes, logs, seed)
        alarms(processes, logs, seed)
