"""Value and std from a log: retvar beside plain means of returns with Polars, in five worlds.

    python benchmarks/logs.py                          errors in five worlds
    python benchmarks/logs.py --rows 10000000 --speed  kinds of logs, with peak memory
    python benchmarks/logs.py --speed --before SRC     … and the same with another version's `src`

Each program runs in a process of its own, alternately; processor time is that of the whole process,
so start and compilation count. Errors are root mean squares over states visited 100 times or more.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

GAMMA, END, SEED = 0.97, 0.02, 7
LIMIT_OF_VISITS = 100

Array = np.ndarray
World = tuple[Array, Array, Array]  # successors, their probabilities, rewards [state, edge]
Columns = dict[str, list[float]]


# ------------------------------------------------------------------------ worlds


def garnet(rng: np.random.Generator) -> World:
    """Five random successors of each of 1,000 states, rewards by edge."""
    successors = rng.integers(0, 1_000, (1_000, 5))
    return successors, rng.dirichlet(np.ones(5), 1_000), rng.normal(size=(1_000, 5))


def walk(rng: np.random.Generator) -> World:
    """A walk on a ring of 200 states, with a prize in one."""
    s = np.arange(200)
    successors = np.stack([(s - 1) % 200, s, (s + 1) % 200], axis=1)
    rewards = np.where(successors == 100, 10.0, -0.1)
    return successors, np.tile([0.4, 0.2, 0.4], (200, 1)), rewards


def queue(rng: np.random.Generator) -> World:
    """A queue of up to 99 customers, each of whom costs 1 a step."""
    s = np.arange(100)
    successors = np.stack([np.maximum(s - 1, 0), np.minimum(s + 1, 99)], axis=1)
    return successors, np.tile([0.55, 0.45], (100, 1)), -np.stack([s, s], axis=1).astype(float)


def machine(rng: np.random.Generator) -> World:
    """A machine that wears out over 50 ages and breaks, at a price, the sooner the older."""
    age = np.arange(50)
    successors = np.stack([np.minimum(age + 1, 49), np.zeros(50, dtype=int)], axis=1)
    breaks = 0.02 + 0.2 * age / 49
    rewards = np.tile([1.0, -20.0], (50, 1))
    return successors, np.stack([1.0 - breaks, breaks], axis=1), rewards


def lottery(rng: np.random.Generator) -> World:
    """300 states with rare large rewards."""
    successors = rng.integers(0, 300, (300, 3))
    rewards = np.zeros((300, 3))
    rewards[rng.integers(0, 300, 20), 2] = 50.0
    return successors, np.tile([0.49, 0.49, 0.02], (300, 1)), rewards


WORLDS = {each.__name__: each for each in (garnet, walk, queue, machine, lottery)}


def truth(world: World) -> tuple[Array, Array]:
    """Value and std of the return by Bellman's equations, with NumPy alone."""
    successors, chance, rewards = world
    states = len(successors)
    P = np.zeros((states, states))
    np.add.at(P, (np.arange(states)[:, None], successors), chance)
    eye, go = np.eye(states), GAMMA * (1.0 - END)
    J = np.linalg.solve(eye - go * P, (chance * rewards).sum(1))
    goes_on = rewards + GAMMA * J[successors] - J[:, None]
    squares = (1.0 - END) * goes_on**2 + END * (rewards - J[:, None]) ** 2
    V = np.linalg.solve(eye - GAMMA * go * P, (chance * squares).sum(1))
    return J, np.sqrt(V)


def sample(world: World, rows: int, seed: int = 0) -> dict[str, Array]:
    """A log of 200 entities at once; episodes end with probability `END` after each step."""
    successors, chance, rewards = world
    rng, entities = np.random.default_rng(seed), 200
    steps, bounds = rows // entities, np.cumsum(chance, axis=1)
    state, next_state = (np.empty((steps, entities), dtype=np.int64) for _ in range(2))
    reward, over = np.empty((steps, entities)), rng.random((steps, entities)) < END
    at = rng.integers(0, len(successors), entities)
    for t in range(steps):
        choice = (rng.random(entities)[:, None] > bounds[at]).sum(1).clip(max=chance.shape[1] - 1)
        state[t], next_state[t] = at, successors[at, choice]
        reward[t] = rewards[at, choice]
        at = np.where(over[t], rng.integers(0, len(successors), entities), next_state[t])
    episode = np.cumsum(np.concatenate([np.zeros((1, entities)), over[:-1]]), axis=0, dtype=int)
    columns = {
        "entity": np.tile(np.arange(entities), (steps, 1)),
        "time": np.tile(np.arange(steps), (entities, 1)).T,
        "episode": episode, "state": state, "reward": reward, "terminated": over,
    }  # fmt: skip
    return {name: column.T.ravel() for name, column in columns.items()}


# ------------------------------------------------------------------------ programs


def with_retvar(path: Path, kind: str) -> Columns:
    """Value and std of each state, by `retvar.estimate`."""
    import retvar as rv

    names = {"time": "time"} if kind == "shuffled" else {}
    if kind == "off-policy":
        names |= {"behaviour": "mu", "target": "pi"}
    log = rv.experience.from_table(path, entity="entity", **names)
    found = rv.estimate(log, gamma=GAMMA)
    return {"value": found.value().tolist(), "std": found.std().tolist()}


def with_polars(path: Path, kind: str) -> Columns:
    """Mean and std of the returns that began in each state; the last episodes are cut off."""
    import polars as pl

    by = ["entity", "episode"]
    log = pl.scan_parquet(path).select("entity", "time", "episode", "state", "reward")
    if kind == "shuffled":
        log = log.sort("entity", "time")
    ordered = log.with_columns(k=pl.int_range(pl.len()).over(by) - pl.len().over(by)).with_columns(
        weight=GAMMA ** pl.col("k").cast(pl.Float64)
    )
    returns = ordered.with_columns(
        G=(pl.col("weight") * pl.col("reward")).cum_sum(reverse=True).over(by) / pl.col("weight")
    )
    found = returns.group_by("state").agg(value=pl.col("G").mean(), std=pl.col("G").std())
    table = found.collect()
    answer = np.full((2, table["state"].max() + 1), np.nan)
    answer[:, table["state"].to_numpy()] = table["value"].to_numpy(), table["std"].to_numpy()
    return {"value": answer[0].tolist(), "std": answer[1].tolist()}


def alone(program: str, path: Path, kind: str) -> None:
    """Run one program and print what it found, with its cost."""
    started = time.perf_counter()
    found = {"retvar": with_retvar, "polars": with_polars}[program](path, kind)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    cost = {
        "cpu": usage.ru_utime + usage.ru_stime,
        "wall": time.perf_counter() - started,
        "memory": usage.ru_maxrss / 1024,
    }
    print(json.dumps(found | cost))


def run(program: str, path: Path, kind: str = "plain", source: str = "") -> Columns:
    """The same in a process of its own, perhaps with another version of retvar."""
    environment = os.environ | ({"PYTHONPATH": source} if source else {})
    words = [sys.executable, __file__, "--alone", program, str(path), kind]
    out = subprocess.run(words, check=True, capture_output=True, text=True, env=environment)
    return json.loads(out.stdout.splitlines()[-1])


# ------------------------------------------------------------------------ tables


def squared_errors(found: Columns, exact: tuple[Array, Array], often: Array) -> Array:
    """Mean squared errors of value and std, in units of the std of the return."""
    pairs = zip((found["value"], found["std"]), exact, strict=True)
    seen = np.flatnonzero(often)
    return np.array(
        [np.mean(((np.array(a)[seen] - b[seen]) / exact[1][seen]) ** 2) for a, b in pairs]
    )


def compare(rows: int, logs: int, folder: Path) -> str:
    """Errors in every world, of retvar as a share of those of plain means."""
    lines = ["| world | states | error of the value | of the std |", "|---|---:|---:|---:|"]
    shares = []
    for name, make in WORLDS.items():
        world = make(np.random.default_rng(SEED))
        exact, ours, theirs = truth(world), np.zeros(2), np.zeros(2)
        for seed in range(logs):
            log = sample(world, rows, seed)
            path = write(log, folder / f"{name}.parquet")
            often = np.bincount(log["state"], minlength=len(exact[0])) >= LIMIT_OF_VISITS
            ours += squared_errors(with_retvar(path, "plain"), exact, often)
            theirs += squared_errors(with_polars(path, "plain"), exact, often)
        shares.append(np.sqrt(ours / theirs))
        lines.append(f"| {name} | {len(exact[0])} | {shares[-1][0]:.2f} | {shares[-1][1]:.2f} |")
    mean = np.mean(shares, axis=0)
    lines.append(f"| mean | | {mean[0]:.2f} | {mean[1]:.2f} |")
    title = (
        "Errors of retvar as a share of those of plain means of returns (Polars): root mean "
        f"squares over {logs} logs of {rows:,} rows"
    )
    return "\n".join([title, "", *lines])


def speed(rows: int, folder: Path, before: str) -> str:
    """Processor time and peak memory for kinds of logs of the first world."""
    log = sample(garnet(np.random.default_rng(SEED)), rows)
    order = np.random.default_rng(0).permutation(len(log["state"]))
    mu = np.where(np.random.default_rng(1).random(len(order)) < 0.5, 0.4, 0.6)
    kinds = {
        "plain": write(log, folder / "plain.parquet"),
        "shuffled": write({k: v[order] for k, v in log.items()}, folder / "shuffled.parquet"),
        "off-policy": write(log | {"mu": mu, "pi": np.full(len(mu), 0.5)}, folder / "off.parquet"),
        "csv": write(log, folder / "plain.csv"),
    }
    lines = [
        "| log | processor time | peak memory | share of before | share of Polars |",
        "|---|---:|---:|---:|---:|",
    ]
    for kind, path in kinds.items():
        ours, old, theirs = [], [], []
        for _ in range(3):
            ours.append(run("retvar", path, kind))
            old.append(run("retvar", path, kind, before)["cpu"] if before else float("nan"))
            polars = kind in ("plain", "shuffled")
            theirs.append(run("polars", path, kind)["cpu"] if polars else float("nan"))
        cpu = [each["cpu"] for each in ours]
        shares = [
            statistics.median(a / b for a, b in zip(cpu, other, strict=True))
            for other in (old, theirs)
        ]  # type: ignore[operator]
        memory = max(each["memory"] for each in ours)
        lines.append(
            f"| {kind} | {min(cpu):.1f} s | {memory:,.0f} MB | {shares[0]:.2f} | {shares[1]:.2f} |"
        )
    return "\n".join([f"A log of {rows:,} rows and 1,000 states", "", *lines])


def write(log: dict[str, Array], path: Path) -> Path:
    """Write columns as Parquet or CSV, with DuckDB."""
    import duckdb

    connection = duckdb.connect()
    connection.register("log", log)
    connection.execute(f"COPY (SELECT * FROM log) TO '{path}'")
    return path


if __name__ == "__main__":
    if sys.argv[1:2] == ["--alone"]:
        alone(sys.argv[2], Path(sys.argv[3]), sys.argv[4])
        sys.exit()
    import document  # asks for this version of retvar, which another may run beside

    asked = document.options(
        __doc__, rows=(200_000, "rows of a log"), logs=(10, "logs a world"),
        speed=(False, "kinds of logs instead of worlds"),
        before=("", "folder src of another version"),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        text = (
            speed(asked.rows, Path(name), asked.before)
            if asked.speed
            else compare(asked.rows, asked.logs, Path(name))
        )
    document.publish(f"## Logs\n\n{text}\n", asked.out, asked.append)
