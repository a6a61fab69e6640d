"""Speed and memory of least squares from Parquet logs, on one machine and on dask workers.

Each figure is the best of several rounds, in seconds of wall time and of processor time; ratios are
medians of ratios within a round. Memory is the peak of a process of its own.
"""

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numba
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import document
import retvar as rv
from retvar.cluster import local_cluster
from retvar.estimation.estimate import prepare

GAMMA = 0.95
SUCCESSORS = 5
GROUP = 500_000  # rows of a row group
ROUNDS = 5

Seconds = tuple[float, float]  # wall time, processor time


@numba.njit  # type: ignore[untyped-decorator]
def walk(successors, choice, ended, begins):  # type: ignore[no-untyped-def]
    state = np.empty(choice.size + 1, np.int64)
    follows = np.empty(choice.size, np.int64)
    state[0] = 0
    for t in range(choice.size):
        follows[t] = successors[state[t], choice[t]]
        state[t + 1] = begins[t] if ended[t] else follows[t]
    return state[:-1], follows


def write_log(path: Path, rows: int, states: int, distinct: bool = False) -> Path:
    """A walk to random successors, whose episodes last 50 steps on average."""
    rng = np.random.default_rng(0)
    ended = rng.random(rows) < 0.02
    if distinct:
        state, follows = rng.integers(0, states, (2, rows))
    else:
        successors = rng.integers(0, states, (states, SUCCESSORS))
        choice, begins = rng.integers(0, SUCCESSORS, rows), rng.integers(0, states, rows)
        state, follows = walk(successors, choice, ended, begins)
    table = pa.table(
        {
            "state": state,
            "next_state": follows,
            "reward": rng.normal(size=rows),
            "terminated": ended,
        }
    )
    pq.write_table(table, path, row_group_size=GROUP)
    return path


def timed(run: Callable[[], object]) -> Seconds:
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - wall, time.process_time() - cpu


def best(run: Callable[[], object], rounds: int = ROUNDS) -> Seconds:
    found = [timed(run) for _ in range(rounds)]
    return min(each[0] for each in found), min(each[1] for each in found)


def read(path: Path, states: int) -> None:
    for _ in rv.experience.from_table(path, states=states).chunks():
        pass


def estimate(path: Path, states: int) -> None:
    log = rv.experience.from_table(path, states=states)
    rv.estimate(log, gamma=GAMMA, by="least_squares").data.load()


def large(path: Path, states: int) -> tuple[Seconds, Seconds]:
    """Time to value and std of all states, and to the intervals of 512 of them."""
    found = prepare(rv.experience.from_table(path), by="least_squares", gamma=GAMMA)

    def values() -> None:
        found.learn()
        whole = rv.estimation.transition_sums.TransitionSums()
        for sums in found.estimator.sums:
            whole.merge(sums)
        none = np.zeros(0, dtype=np.intp)
        rv.estimation.least_squares.least_squares(whole, states, at=none)

    first = timed(values)
    both = timed(lambda: found.estimator.solution)
    return first, both


def workers(path: Path) -> tuple[list[float], list[float]]:
    """Seconds with one worker and with two, alternately; the clusters are already running."""
    with local_cluster(1) as one, local_cluster(2) as two:
        addresses = (one.scheduler_address, two.scheduler_address)

        def run(address: str) -> float:
            log = rv.experience.from_table(path, states=1_000)
            return timed(lambda: rv.estimate(log, gamma=GAMMA, cluster=address))[0]

        for address in addresses:  # compile
            run(address)
        pairs = [[run(address) for address in addresses] for _ in range(ROUNDS)]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def peak(path: Path) -> float:
    """Peak memory in MB of a process that estimates from this log."""
    program = [sys.executable, __file__, "--peak", str(path)]
    return float(subprocess.run(program, capture_output=True, check=True, text=True).stdout)


def main() -> None:
    if sys.argv[1:2] == ["--peak"]:
        rv.estimate(rv.experience.from_table(sys.argv[2]), gamma=GAMMA, by="least_squares")
        status = Path("/proc/self/status").read_text()  # ru_maxrss has that of the parent, too
        print(float(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1e3)  # type: ignore[index]
        return
    options = document.options(__doc__)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        small = write_log(folder / "small.parquet", 200_000, 500)
        middle = write_log(folder / "middle.parquet", 2_500_000, 1_000)
        big = write_log(folder / "big.parquet", 10_000_000, 1_000)
        many = write_log(folder / "many.parquet", 2_000_000, 100_000)
        distinct = write_log(folder / "distinct.parquet", 10_000_000, 100_000, distinct=True)
        estimate(small, 500)  # compile
        times = {
            "200,000 rows, 500 states: only reading": best(lambda: read(small, 500)),
            "200,000 rows, 500 states: estimate with intervals": best(lambda: estimate(small, 500)),
            "10⁷ rows, 1,000 states: only reading": best(lambda: read(big, 1_000)),
            "10⁷ rows, 1,000 states: estimate with intervals": best(lambda: estimate(big, 1_000)),
        }
        first, both = large(many, 100_000)
        times["2·10⁶ rows, 10⁵ states: value and std"] = first
        times["2·10⁶ rows, 10⁵ states: value, std and 512 intervals"] = both
        one, two = workers(big)
        memory = [peak(path) for path in (middle, big, distinct)]
    document.publish(report(times, one, two, memory), options.out, options.append)


def report(
    times: dict[str, Seconds], one: list[float], two: list[float], memory: list[float]
) -> str:
    rows = list(times.values())
    beyond = rows[1][0] - rows[0][0]
    rate = 1e7 / rows[3][0] / 1e6
    ratio = statistics.median(a / b for a, b in zip(one, two, strict=True))
    lines = ["## Least squares from logs\n", "| | seconds | of processor time |", "|---|---:|---:|"]
    lines += [f"| {name} | {wall:.3g} | {cpu:.3g} |" for name, (wall, cpu) in times.items()]
    lines += [
        f"| 10⁷ rows, one dask worker | {min(one):.3g} | |",
        f"| 10⁷ rows, two dask workers | {min(two):.3g} | |\n",
        f"Targets: 200,000 rows in less than 0.3 s beyond reading: {_met(beyond < 0.3)} "
        f"({beyond:.2f} s).",
        f"10⁷ rows at 5 million rows a second: {_met(rate >= 5)} ({rate:.1f}).",
        f"10⁵ states, value and std, in less than 60 s: {_met(rows[4][0] < 60)}.",
        f"Two workers at least 1.8 times as fast as one: {_met(ratio >= 1.8)} ({ratio:.2f}).\n",
        f"Peak memory: {memory[0]:,.0f} MB for 2.5·10⁶ and {memory[1]:,.0f} MB for 10⁷ rows of",
        f"1,000 states; {memory[2]:,.0f} MB for 10⁷ rows of 10⁵ states, nearly all transitions",
        f"different. Load of the machine at the end: {os.getloadavg()[0]:.1f} on {os.cpu_count()}",
        "cores; where others cause it, the figures are unreliable.\n",
    ]
    return "\n".join(lines)


def _met(holds: bool) -> str:
    return "met" if holds else "NOT met"


if __name__ == "__main__":
    main()
