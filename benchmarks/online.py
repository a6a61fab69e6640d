"""Cost of an online update in nanoseconds, compared with a straightforward NumPy class.

All programs are timed in one process, alternately, in many short rounds. Figures are medians;
ratios are medians of the ratios within a round.
"""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for tests.reference

from tests.reference import Reference

import document
import retvar as rv
from timing import Timing

METHODS = {"direct": rv.Direct, "vtd": rv.VTD, "centred": rv.Centred}
NAMES = {"direct": "direct", "vtd": "VTD", "centred": "centred"}
STATES = 5
ROWS = 1_000_000
ROUNDS = 15
TARGETS = {"update": 8, "update_many": 300}  # times faster than the class, for direct, no traces


def walk(states: int, rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Columns of a random walk over all states."""
    rng = np.random.default_rng(seed)
    path = rng.integers(states, size=rows + 1)
    return {"state": path[:-1], "reward": rng.normal(size=rows), "next_state": path[1:]}


def settings(kappa: float) -> dict[str, float]:
    return {"alpha": 0.01, "alpha_bar": 0.01, "kappa": kappa, "kappa_bar": kappa}


def numpy_class(method: str, kappa: float, steps: int) -> Callable[[], int]:
    """A run of the NumPy class; one-hot features are built for each step."""
    learner = Reference(method, STATES, **settings(kappa))
    rows = list(zip(*(c.tolist() for c in walk(STATES, steps).values()), strict=True))

    def run() -> int:
        for state, reward, next_state in rows:
            x, x_next = np.zeros(STATES), np.zeros(STATES)
            x[state] = x_next[next_state] = 1.0
            learner.update(x, reward, x_next, 0.9, 0.9)
        return steps

    return run


def one_by_one(method: str, kappa: float, steps: int) -> Callable[[], int]:
    learner = METHODS[method](gamma=0.9, lam=0.9, **settings(kappa)).online(states=STATES)
    rows = list(zip(*(c.tolist() for c in walk(STATES, steps).values()), strict=True))

    def run() -> int:
        for state, reward, next_state in rows:
            learner.update(state, reward, next_state)
        return steps

    return run


def chunk(method: str, kappa: float, states: int = STATES, rows: int = ROWS) -> Callable[[], int]:
    learner = METHODS[method](gamma=0.9, lam=0.9, **settings(kappa)).online(states=states)
    columns = walk(states, rows)

    def run() -> int:
        learner.update_many(columns)
        return rows

    return run


def feature_timing(size: int, active: int, kappa: float, sets: bool, steps: int) -> Timing:
    """Features that come with each transition: dense vectors, or sets of active indices."""
    rng = np.random.default_rng(0)
    path = np.sort(rng.integers(size, size=(20_001, active)), axis=1)
    reward = rng.normal(size=20_000)
    inputs = path
    if not sets:
        inputs = np.zeros((len(path), size))
        np.put_along_axis(inputs, path, 1.0, axis=1)
    columns = {"state": inputs[:-1], "reward": reward, "next_state": inputs[1:]}
    step = {"alpha": 0.01 / active, "alpha_bar": 0.01 / active, "kappa_bar": kappa}
    features = rv.features.Active(size) if sets else rv.features.Vector(size)
    single, many = (
        rv.Direct(gamma=0.9, lam=0.9, **step).online(features=features) for _ in range(2)
    )
    dense = Reference("direct", size, **step)

    def by_class() -> int:
        for t in range(steps):
            x, x_next = np.zeros(size), np.zeros(size)
            x[path[t]] = x_next[path[t + 1]] = 1.0
            dense.update(x, reward[t], x_next, 0.9, 0.9)
        return steps

    def by_update() -> int:
        for t in range(steps):
            single.update(inputs[t], reward[t], inputs[t + 1])
        return steps

    def by_chunk() -> int:
        many.update_many(columns)
        return len(reward)

    return {"class": by_class, "update": by_update, "update_many": by_chunk}


def with_features(rounds: int) -> list[str]:
    lines = [
        "| features | κ̄ | class | `update` | `update_many` | class/`update` "
        "| class/`update_many` |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, kappa, runs in (
        ("vector of 5", 0.0, feature_timing(5, 1, 0.0, False, 1_000)),
        ("8 active of 10,000", 0.0, feature_timing(10_000, 8, 0.0, True, 300)),
        ("8 active of 10,000", 0.9, feature_timing(10_000, 8, 0.9, True, 300)),
    ):
        lines.append(line(f"{name} | {kappa:g}", *measure(runs, max(3, rounds // 2))))
    return lines


def line(name: str, cost: dict[str, float], faster: dict[str, float]) -> str:
    digits = 1 if cost["update_many"] < 100 else 0
    return (
        f"| {name} | {cost['class']:,.0f} ns | {cost['update']:,.0f} ns "
        f"| {cost['update_many']:,.{digits}f} ns | {faster['update']:.2g}× "
        f"| {faster['update_many']:,.3g}× |"
    )


def measure(runs: Timing, rounds: int) -> tuple[dict[str, float], dict[str, float]]:
    """Median nanoseconds per update, and median speed-up over the first; timed alternately."""
    for run in runs.values():  # compile and warm up
        run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            before = time.perf_counter_ns()
            updates = run()
            times[name].append((time.perf_counter_ns() - before) / updates)
    first = next(iter(runs))
    faster = {
        name: statistics.median(a / b for a, b in zip(times[first], each, strict=True))
        for name, each in times.items()
    }
    return {name: statistics.median(each) for name, each in times.items()}, faster


def against_the_class(rounds: int) -> tuple[list[str], dict[str, float]]:
    lines = [
        "| learner | κ = κ̄ | class | `update` | `update_many` | class/`update` "
        "| class/`update_many` |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    met: dict[str, float] = {}
    for method, name in NAMES.items():
        for kappa in (0.0, 0.9):
            runs = {
                "class": numpy_class(method, kappa, 2_000),
                "update": one_by_one(method, kappa, 10_000),
                "update_many": chunk(method, kappa),
            }
            cost, faster = measure(runs, rounds)
            met = met or faster
            lines.append(line(f"{name} | {kappa:g}", cost, faster))
    return lines, met


def growth(rounds: int) -> list[str]:
    lines = [
        "| states | κ = κ̄ | `update_many` |",
        "|---:|---:|---:|",
    ]
    sizes = (5, 1_000, 1_000_000)
    for kappa in (0.0, 0.9):
        runs = {f"{n:,}": chunk("direct", kappa, n, 200_000) for n in sizes}
        cost, _ = measure(runs, rounds)
        lines += [f"| {name} | {kappa:g} | {ns:,.0f} ns |" for name, ns in cost.items()]
    return lines


def verdict(met: dict[str, float]) -> str:
    parts = []
    for name, target in TARGETS.items():
        word = "met" if met[name] >= target else "NOT met"
        parts.append(f"`{name}` at least {target}× is {word} ({met[name]:,.1f}×)")
    return "Targets, for a direct learner without traces: " + "; ".join(parts) + "."


def section(rounds: int = ROUNDS) -> str:
    """The section of benchmarks/results.md about online estimators."""
    table, met = against_the_class(rounds)
    lines = [
        "## Online estimators",
        "",
        "Cost of one update of all nodes. The NumPy class (`tests/reference.py`) follows the "
        "equations of the paper directly: one object per learner, dot products, new arrays; "
        f"{STATES} one-hot features are built for each step. `update` is called with one "
        f"transition at a time from a Python loop, `update_many` with {ROWS:,} rows. All are timed "
        f"alternately in one process; medians of {rounds} rounds.",
        "",
        *table,
        "",
        verdict(met),
        "",
        "Cost by the number of states: a direct learner, states visited at random, chunks of "
        "200,000 rows.",
        "",
        *growth(rounds),
        "",
        "A trace covers every state whose entry is above 1e-100: here the states of the last 1,090 "
        "steps for the value node and of the last 440 for the variance node, or all states. "
        "Without traces, the cost grows with the time to fetch weights from memory.",
        "",
        "Features given with each transition, a direct learner with κ = 0. The class has dense "
        "vectors.",
        "",
        *with_features(rounds),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    options = document.options(__doc__, rounds=(ROUNDS, "number of rounds"))
    document.publish(section(options.rounds), options.out, options.append)


if __name__ == "__main__":
    main()
