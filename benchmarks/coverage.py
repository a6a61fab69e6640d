"""How often 90% intervals hold: value, std and fresh returns, on the worlds of the tests.

``python -m benchmarks.coverage [LOGS]`` prints a row for each world, then which cells are
significantly outside 0.90 ± 0.03 (Holm, at 5%) and the mean over cells; then how often the
self-check contradicts sound estimates of five Markov worlds, and those of a ward whose patients are
frail or not, which the log does not say. ``python -m benchmarks.coverage LOGS SEED alarms``: only
the latter.
"""

from __future__ import annotations

import math
import sys
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


def main(logs: int = 200, seed: int = 0) -> None:
    """Measure the intervals on all worlds, and print the table."""
    write: Any = sys.stdout.write
    cells: list[Cell] = []
    write("| world | rows | value | std | returns |\n|---|---|---|---|---|\n")
    for name, case in (PAGE | OTHERS).items():
        rng = np.random.default_rng([seed, len(cells)])
        row = []
        found = measured(case, logs, rng) if name in PAGE else {}
        shares = {what: found[what] for what in ("value", "std") if found.get(what)}
        if case.make().on_policy:
            shares["returns"] = returns_inside(case, logs, rng)
        for what in ("value", "std", "returns"):
            if what not in shares:
                row.append("–")
                continue
            _, mean, error = each = cell(f"{name}: {what}", shares[what])
            row.append(f"{100 * mean:.1f} ± {100 * error:.1f}%")
            if not (what == "returns" and name in FEW_SIZES):
                cells.append(each)
        write(f"| {name} | {case.rows:,} | {' | '.join(row)} |\n")
        sys.stdout.flush()
    wrong = outside(cells)
    write(f"\n{len(wrong)} of {len(cells)} cells outside {LEVEL} ± {SLACK}: {', '.join(wrong)}\n")
    for what in ("value", "std", "returns"):
        means = [mean for name, mean, _ in cells if name.endswith(f": {what}")]
        write(f"mean over cells, {what}: {np.mean(means):.3f}\n")


def alarms(logs: int = 200, seed: int = 0, rows: int = 5_000) -> None:
    """How often the data's own returns contradict estimates: of Markov states, of hidden ones."""
    write: Any = sys.stdout.write
    write("\n| self-check | logs | contradicts | agrees |\n|---|---|---|---|\n")

    def tell(name: str, number: int, make: Any, gamma: float) -> None:
        rng = np.random.default_rng([seed, 1, number])
        kinds = [rv.estimate(make(rng), gamma=gamma).self_check.kind for _ in range(logs)]
        wrong, right = kinds.count("disagrees"), kinds.count("agrees")
        write(f"| {name} | {logs} | {wrong} | {right} |\n")
        sys.stdout.flush()

    for k, (name, build) in enumerate(HELD_OUT.items()):
        world = build()
        tell(f"Markov: {name}", k, partial(markov_log, world, rows), world.gamma)
    for k, patients in enumerate((150, 300, 600)):
        make = partial(ward, missing=0.0, frail=0.5, patients=patients)
        tell(f"hidden: ward, {patients} patients", 10 + k, make, 0.95)


def markov_log(world: Any, rows: int, rng: np.random.Generator) -> rv.experience.Experience:
    """A log of a world whose states are Markov."""
    return rv.experience.from_table(world.log(rng, rows), states=world.states)


if __name__ == "__main__":
    *given, only = [*sys.argv[1:], ""] if sys.argv[-1] != "alarms" else sys.argv[1:]
    numbers = [int(each) for each in given]
    if not only:
        main(*numbers)
    alarms(*numbers)
