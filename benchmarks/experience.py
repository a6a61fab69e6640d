"""Cost of learning from a Parquet log and from a Gymnasium environment.

All programs are timed in one process, alternately, in several rounds. Figures are medians; ratios
are medians of the ratios within a round.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import gymnasium
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for tests.reference

from tests.reference import Reference

import document
import retvar as rv

STATES, GAMMA, LAM = 100, 0.9, 0.9
ROWS = 2_000_000
FEW = 20_000  # rows that the slow loops read in a round
STEPS = 40_000  # of the environment in a round
ROUNDS = 7

Timing = dict[str, Callable[[], int]]  # each runs once and returns its number of transitions


def write_log(path: Path, rows: int) -> None:
    """Write a random walk over numbered states."""
    rng = np.random.default_rng(0)
    walk = np.cumsum(rng.integers(-1, 2, rows + 1)) % STATES
    pq.write_table(
        pa.table({
            "state": walk[:-1], "next_state": walk[1:], "reward": rng.normal(size=rows),
            "terminated": np.zeros(rows, dtype=bool), "truncated": np.zeros(rows, dtype=bool),
        }),
        path,
    )  # fmt: skip


def numpy_class(path: Path) -> Callable[[], int]:
    """Update the straightforward NumPy class row by row."""

    def run() -> int:
        learner = Reference("direct", STATES, alpha=0.01, alpha_bar=0.01)
        eye, done = np.eye(STATES), 0
        for batch in pq.ParquetFile(path).iter_batches(FEW):
            for row in batch.to_pylist():
                learner.update(
                    eye[row["state"]], row["reward"], eye[row["next_state"]], GAMMA, LAM,
                    terminated=row["terminated"], truncated=row["truncated"],
                )  # fmt: skip
                done += 1
            break
        return done

    return run


def python_floats(path: Path) -> Callable[[], int]:
    """Update lists of Python floats row by row."""

    def run() -> int:
        J, V, done = [0.0] * STATES, [0.0] * STATES, 0
        for batch in pq.ParquetFile(path).iter_batches(FEW):
            for row in batch.to_pylist():
                s, follows = row["state"], row["next_state"]
                g, lam = (0.0, 0.0) if row["terminated"] else (GAMMA, LAM)
                delta = row["reward"] + g * J[follows] - J[s]
                V[s] += 0.01 * (delta * delta + (g * lam) ** 2 * V[follows] - V[s])
                J[s] += 0.01 * delta
                done += 1
            break
        return done

    return run


def reading(path: Path) -> Callable[[], int]:
    """Read the columns into arrays without learning."""

    def run() -> int:
        done = 0
        for batch in pq.ParquetFile(path).iter_batches(65_536):
            for column in batch.columns:
                column.to_numpy(zero_copy_only=False)
            done += batch.num_rows
        return done

    return run


def retvar_log(path: Path, bootstrap_samples: int) -> Callable[[], int]:
    """Update an estimator from from_table, or run estimate() with bootstrap samples."""
    learner = rv.Direct(alpha=0.01, gamma=GAMMA, lam=LAM)

    def run() -> int:
        log = rv.experience.from_table(path, states=STATES)
        if bootstrap_samples:
            rv.estimate(log, gamma=GAMMA, lam=LAM, kappa=0.0, bootstrap_samples=bootstrap_samples)
        else:
            estimator = learner.online(states=STATES)
            for chunk in log.chunks():
                estimator.update_many(chunk)
        return log.counts.transitions

    return run


def stepping() -> Callable[[], int]:
    """Step the environment without learning; actions are drawn beforehand."""
    env = gymnasium.make("FrozenLake-v1")
    actions = np.random.default_rng(0).integers(4, size=STEPS).tolist()

    def run() -> int:
        env.reset(seed=0)
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        return STEPS

    return run


def environment(learn: Callable[[rv.experience.Experience], object]) -> Callable[[], int]:
    env = gymnasium.make("FrozenLake-v1")

    def run() -> int:
        learn(rv.experience.from_gymnasium(env, "random", steps=STEPS, seed=0))
        return STEPS

    return run


def plain_estimator(lake: rv.experience.Experience) -> None:
    estimator = rv.Direct(alpha=0.01, gamma=GAMMA, lam=LAM, kappa=0.5).online(states=16)
    for chunk in lake.chunks():
        estimator.update_many(chunk)


def measure(timings: Timing) -> dict[str, list[float]]:
    """Nanoseconds per transition in each round."""
    for run in timings.values():
        run()  # compile
    costs: dict[str, list[float]] = {name: [] for name in timings}
    for _ in range(ROUNDS):
        for name, run in timings.items():
            began = time.perf_counter()
            done = run()
            costs[name].append((time.perf_counter() - began) / done * 1e9)
    return costs


def table(costs: dict[str, list[float]], base: str, head: str, ratio: Callable[..., float]) -> str:
    lines = [f"| | ns per transition | {head} |", "|---|---:|---:|"]
    for name, times in costs.items():
        pairs = zip(costs[base], times, strict=True)
        r = statistics.median(ratio(b, t) for b, t in pairs)
        lines.append(f"| {name} | {statistics.median(times):,.0f} | {r:,.2f} |")
    return "\n".join(lines)


def main() -> None:
    options = document.options(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.parquet"
        write_log(path, ROWS)
        logs = measure({
            "row by row, NumPy class": numpy_class(path),
            "row by row, Python floats": python_floats(path),
            "only reading the columns": reading(path),
            "`from_table` and an estimator": retvar_log(path, 0),
            "`estimate`, 100 bootstrap samples": retvar_log(path, 100),
        })  # fmt: skip
    lake = measure({
        "only stepping": stepping(),
        "`from_gymnasium` without learning": environment(lambda x: [None for _ in x.chunks()]),
        "… and an estimator": environment(plain_estimator),
        "`estimate`, no bootstrap samples": environment(
            lambda x: rv.estimate(x, gamma=GAMMA, bootstrap_samples=0)
        ),
        "`estimate`, 100 bootstrap samples": environment(lambda x: rv.estimate(x, gamma=GAMMA)),
    })  # fmt: skip
    slow, fast = logs["row by row, NumPy class"], logs["`from_table` and an estimator"]
    times = statistics.median(a / b for a, b in zip(slow, fast, strict=True))
    added = {
        name: statistics.median(
            a / b for a, b in zip(lake[name], lake["only stepping"], strict=True)
        )
        for name in ("… and an estimator", "`estimate`, 100 bootstrap samples")
    }
    lines = [
        "## Real experience\n",
        f"A Parquet file of {ROWS:,} rows, {STATES} states as numbers, direct method, no traces",
        f"(the slow loops read its first {FEW:,} rows):\n",
        table(
            logs, "row by row, NumPy class", "times as fast as the NumPy class", lambda b, t: b / t
        ),
        "\nTarget: at least 100 times as fast as the NumPy class: "
        f"{'met' if times >= 100 else 'NOT met'} ({times:.0f} times).\n",
        f"FrozenLake-v1, {STEPS:,} steps of a random policy, κ ½:\n",
        table(lake, "only stepping", "relative to only stepping", lambda b, t: t / b),
        "\nTarget: an estimator adds at most 15%: "
        f"{'met' if added['… and an estimator'] <= 1.15 else 'NOT met'}"
        f" ({added['… and an estimator'] - 1:.0%}); with 100 bootstrap samples "
        f"{added['`estimate`, 100 bootstrap samples'] - 1:.0%}.\n",
    ]
    document.publish("\n".join(lines), options.out, options.append)


if __name__ == "__main__":
    main()
