"""What learning from real experience costs: a log in Parquet, and an environment of Gymnasium.

Everything is timed in one process, in turn, in several rounds; figures are medians, and ratios are
medians of the ratios within a round.
"""

import argparse
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

import retvar as rv
from retvar.files import write_text

STATES, GAMMA, LAM = 100, 0.9, 0.9
ROWS = 2_000_000
FEW = 20_000  # rows that the slow loops read in a round
STEPS = 40_000  # of the environment in a round
ROUNDS = 7

Timing = dict[str, Callable[[], int]]  # each runs once and says how many transitions it took


def write_log(path: Path, rows: int) -> None:
    """A random walk over numbered states."""
    rng = np.random.default_rng(0)
    walk = np.cumsum(rng.integers(-1, 2, rows + 1)) % STATES
    pq.write_table(
        pa.table({
            "state": walk[:-1], "next_state": walk[1:], "reward": rng.normal(size=rows),
            "terminated": np.zeros(rows, dtype=bool), "truncated": np.zeros(rows, dtype=bool),
        }),
        path,
    )  # fmt: skip


def usual(path: Path) -> Callable[[], int]:
    """Row by row, with a NumPy class of the kind that people write."""

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


def careful(path: Path) -> Callable[[], int]:
    """Row by row, with Python's own numbers and nothing to spare."""

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
    """The columns alone, into arrays."""

    def run() -> int:
        done = 0
        for batch in pq.ParquetFile(path).iter_batches(65_536):
            for column in batch.columns:
                column.to_numpy(zero_copy_only=False)
            done += batch.num_rows
        return done

    return run


def ours(path: Path, bootstrap_samples: int) -> Callable[[], int]:
    """from_table and a learner; with bootstrap samples also visits and observed returns."""
    learner = rv.Direct(alpha=0.01, gamma=GAMMA, lam=LAM)

    def run() -> int:
        log = rv.experience.from_table(path, states=STATES)
        if bootstrap_samples:
            rv.estimate(log, gamma=GAMMA, lam=LAM, kappa=0.0, bootstrap_samples=bootstrap_samples)
        else:
            risk = learner.online(states=STATES)
            for chunk in log.chunks():
                risk.update_many(chunk)
        return log.counts.transitions

    return run


def stepping() -> Callable[[], int]:
    """The environment alone, with actions drawn beforehand."""
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


def living(learn: Callable[[rv.experience.Experience], object]) -> Callable[[], int]:
    env = gymnasium.make("FrozenLake-v1")

    def run() -> int:
        learn(rv.experience.from_gymnasium(env, "random", steps=STEPS, seed=0))
        return STEPS

    return run


def plain_learner(lake: rv.experience.Experience) -> None:
    risk = rv.Direct(alpha=0.01, gamma=GAMMA, lam=LAM, kappa=0.5).online(states=16)
    for chunk in lake.chunks():
        risk.update_many(chunk)


def measure(timings: Timing) -> dict[str, list[float]]:
    """Nanoseconds a transition, in each round."""
    for run in timings.values():
        run()  # compile
    found: dict[str, list[float]] = {name: [] for name in timings}
    for _ in range(ROUNDS):
        for name, run in timings.items():
            began = time.perf_counter()
            done = run()
            found[name].append((time.perf_counter() - began) / done * 1e9)
    return found


def table(found: dict[str, list[float]], base: str, head: str, ratio: Callable[..., float]) -> str:
    lines = [f"| | ns a transition | {head} |", "|---|---:|---:|"]
    for name, times in found.items():
        pairs = zip(found[base], times, strict=True)
        r = statistics.median(ratio(b, t) for b, t in pairs)
        lines.append(f"| {name} | {statistics.median(times):,.0f} | {r:,.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--append", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.parquet"
        write_log(path, ROWS)
        logs = measure({
            "row by row, NumPy class": usual(path),
            "row by row, Python's numbers": careful(path),
            "reading the columns alone": reading(path),
            "`from_table` and a learner": ours(path, 0),
            "`estimate`, 100 bootstrap samples": ours(path, 100),
        })  # fmt: skip
    lake = measure({
        "stepping alone": stepping(),
        "`from_gymnasium`, nothing learned": living(lambda x: [None for _ in x.chunks()]),
        "… and a learner": living(plain_learner),
        "`estimate`, no bootstrap samples": living(
            lambda x: rv.estimate(x, gamma=GAMMA, bootstrap_samples=0)
        ),
        "`estimate`, 100 bootstrap samples": living(lambda x: rv.estimate(x, gamma=GAMMA)),
    })  # fmt: skip
    slow, quick = logs["row by row, NumPy class"], logs["`from_table` and a learner"]
    times = statistics.median(a / b for a, b in zip(slow, quick, strict=True))
    added = {
        name: statistics.median(
            a / b for a, b in zip(lake[name], lake["stepping alone"], strict=True)
        )
        for name in ("… and a learner", "`estimate`, 100 bootstrap samples")
    }
    said = [
        "\n## Real experience\n",
        f"A Parquet file of {ROWS:,} rows, {STATES} states as numbers, direct method, no traces",
        f"(the slow loops read its first {FEW:,} rows):\n",
        table(
            logs, "row by row, NumPy class", "times as fast as the NumPy class", lambda b, t: b / t
        ),
        f"\nAt least 100 times the loop over the rows: {'met' if times >= 100 else 'NOT met'}"
        f" ({times:.0f} times).\n",
        f"FrozenLake-v1, {STEPS:,} steps of a random policy, κ ½:\n",
        table(lake, "stepping alone", "times stepping alone", lambda b, t: t / b),
        "\nA learner adds at most 15%: "
        f"{'met' if added['… and a learner'] <= 1.15 else 'NOT met'}"
        f" ({added['… and a learner'] - 1:.0%}); with 100 bootstrap_samples for intervals "
        f"{added['`estimate`, 100 bootstrap_samples'] - 1:.0%}.\n",
    ]
    text = "\n".join(said)
    print(text)
    if arguments.out:
        before = arguments.out.read_text(encoding="utf-8") if arguments.append else ""
        write_text(arguments.out, before.rstrip("\n") + "\n" + text if before else text.lstrip())


if __name__ == "__main__":
    main()
