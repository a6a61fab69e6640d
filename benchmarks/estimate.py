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
from typing import NamedTuple

import numba
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import document
import retvar as rv
from retvar.cluster import local_cluster
from retvar.engine.runner import usable_threads
from retvar.estimation.estimate import prepare
from tiles import HIGH, LOW, car

GAMMA = 0.95
SUCCESSORS = 5
GROUP = 500_000  # rows of a row group
ROUNDS = 5
TILES = rv.features.TileCoding(LOW, HIGH, tiles=48, tilings=8)  # 8 × 49 × 49 = 19,208
TILE_ROWS = 200_000

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


def write_observations(path: Path, rows: int) -> Path:
    """A car in a valley, whose observations are two numbers."""
    columns = car(rows, ends=True)
    named: dict[str, np.ndarray] = {
        f"{name}_{i}": columns[name][:, i] for name in ("state", "next_state") for i in range(2)
    }
    noise = np.random.default_rng(1).normal(size=rows)
    table = pa.table(
        {**named, "reward": columns["reward"] + noise, "terminated": columns["terminated"]}
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


def estimate_tiles(path: Path) -> None:
    log = rv.experience.from_table(path)
    rv.estimate(log, gamma=GAMMA, by="least_squares", features=TILES).data.load()


def large(path: Path, states: int) -> tuple[Seconds, Seconds]:
    """Time to value and std of all states, and to the intervals of 512 of them besides."""
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


class Workers(NamedTuple):
    """Seconds with one dask worker and with two, and of processor time in this process."""

    one: list[float]
    two: list[float]
    client: float

    @property
    def ratio(self) -> float:
        """How many times as fast two are, the median over rounds."""
        return statistics.median(a / b for a, b in zip(self.one, self.two, strict=True))


def workers(path: Path) -> Workers:
    """One worker and two, alternately; the clusters are already running."""
    with local_cluster(1, private=False) as one, local_cluster(2, private=False) as two:
        addresses = (one.scheduler_address, two.scheduler_address)

        def run(address: str) -> Seconds:
            log = rv.experience.from_table(path, states=1_000)
            return timed(lambda: rv.estimate(log, gamma=GAMMA, cluster=address))

        for address in addresses:  # compile
            run(address)
        pairs = [[run(address) for address in addresses] for _ in range(ROUNDS)]
    client = min(pair[1][1] for pair in pairs)
    return Workers([pair[0][0] for pair in pairs], [pair[1][0] for pair in pairs], client)


def peak(path: Path, tiles: bool = False) -> float:
    """Peak memory in MB of a process that estimates from this log."""
    program = [sys.executable, __file__, "--peak", str(path), *(["--tiles"] if tiles else [])]
    return float(subprocess.run(program, capture_output=True, check=True, text=True).stdout)


def print_peak(path: Path, tiles: bool) -> None:
    """Estimate, and print the peak memory of this process in MB."""
    if tiles:
        estimate_tiles(path)
    else:
        rv.estimate(rv.experience.from_table(path), gamma=GAMMA, by="least_squares")
    status = Path("/proc/self/status").read_text()  # ru_maxrss has that of the parent, too
    print(float(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1e3)  # type: ignore[index]


def main() -> None:
    if sys.argv[1:2] == ["--peak"]:
        print_peak(Path(sys.argv[2]), "--tiles" in sys.argv)
        return
    options = document.options(__doc__)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        small = write_log(folder / "small.parquet", 200_000, 500)
        middle = write_log(folder / "middle.parquet", 2_500_000, 1_000)
        big = write_log(folder / "big.parquet", 10_000_000, 1_000)
        many = write_log(folder / "many.parquet", 2_000_000, 100_000)
        distinct = write_log(folder / "distinct.parquet", 10_000_000, 100_000, distinct=True)
        observed = write_observations(folder / "observed.parquet", TILE_ROWS)
        few = write_observations(folder / "few.parquet", 2_000)
        estimate(small, 500)  # compile
        estimate_tiles(few)
        times = {
            "small read": best(lambda: read(small, 500)),
            "small": best(lambda: estimate(small, 500)),
            "big read": best(lambda: read(big, 1_000)),
            "big": best(lambda: estimate(big, 1_000)),
            "tiles": best(lambda: estimate_tiles(observed), 2),
        }
        times["many"], times["many intervals"] = large(many, 100_000)
        found = workers(big)
        memory = {path.stem: peak(path) for path in (middle, big, distinct)}
        memory |= {path.stem: peak(path, tiles=True) for path in (few, observed)}
    document.publish(report(times, found, memory, load), options.out, options.append)


ROWS = {
    "small read": "200,000 rows, 500 states: only reading",
    "small": "200,000 rows, 500 states: estimate with intervals",
    "big read": "10⁷ rows, 1,000 states: only reading",
    "big": "10⁷ rows, 1,000 states: estimate with intervals",
    "tiles": f"{TILE_ROWS:,} rows, {TILES.size:,} tiles: estimate",
    "many": "2·10⁶ rows, 10⁵ states: value and std",
    "many intervals": "2·10⁶ rows, 10⁵ states: value and std, and 512 intervals, from the sums",
}


def report(times: dict[str, Seconds], dask: Workers, memory: dict[str, float], load: float) -> str:
    """The section of the benchmark page."""
    lines = [
        "## Least squares from logs\n",
        f"Parquet files; γ {GAMMA:g}, {SUCCESSORS} successors of each state, episodes of 50 steps "
        f"on average. Best of {ROUNDS} rounds, on {usable_threads()} cores: one process, which "
        "reads in a second thread, unless dask workers are named; these have one thread each, and "
        "have been started before.\n",
        "| | seconds | of processor time |",
        "|---|---:|---:|",
    ]
    lines += [f"| {text} | {times[n][0]:.3g} | {times[n][1]:.3g} |" for n, text in ROWS.items()]
    lines += [
        f"| 10⁷ rows, 1,000 states: one dask worker | {min(dask.one):.3g} | |",
        f"| 10⁷ rows, 1,000 states: two dask workers | {min(dask.two):.3g} | "
        f"{dask.client:.3g} besides the workers |",
        "",
        *targets(times, dask, memory),
        "",
        f"Peak memory of a process: {memory['middle']:,.0f} MB for 2.5·10⁶ and "
        f"{memory['big']:,.0f} MB for 10⁷ rows of 1,000 states; {memory['distinct']:,.0f} MB for "
        "10⁷ rows of 10⁵ states, nearly all transitions different; "
        f"{memory['observed']:,.0f} MB for the tiles ({memory['few']:,.0f} MB for a hundredth of "
        "the rows).",
        "",
        f"Load of the machine before: {load:.1f}. Where it is above 0.5, others were at work, and "
        "seconds and ratios are unreliable.\n",
    ]
    return "\n".join(lines)


def targets(times: dict[str, Seconds], dask: Workers, memory: dict[str, float]) -> list[str]:
    """The targets, and whether they are met."""
    beyond = times["small"][0] - times["small read"][0]
    rate = 1e7 / times["big"][0] / 1e6
    growth = memory["big"] / memory["middle"]
    tiles, many = times["tiles"][0], times["many"][0]
    rows = [
        ("200,000 rows beyond reading, s", f"{beyond:.2f}", "below 0.3", beyond < 0.3),
        ("10⁷ rows, million rows a second", f"{rate:.1f}", "5 or more", rate >= 5),
        ("10⁷ rows, two workers against one", f"{dask.ratio:.2f}×", "1.8×", dask.ratio >= 1.8),
        ("memory, four times the rows", f"{growth:.2f}×", "below 1.1×", growth < 1.1),
        ("tiles, s", f"{tiles:.1f}", "below 10", tiles < 10),
        ("tiles, MB", f"{memory['observed']:,.0f}", "below 500", memory["observed"] < 500),
        ("10⁵ states, value and std, s", f"{many:.1f}", "below 60", many < 60),
    ]
    lines = ["| | measured | target | |", "|---|---:|---:|---|"]
    lines += [
        f"| {name} | {found} | {target} | {'met' if holds else 'NOT met'} |"
        for name, found, target, holds in rows
    ]
    return lines


if __name__ == "__main__":
    main()
