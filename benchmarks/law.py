"""How often 90% intervals of the law of the return from a log contain the truth.

``python benchmarks/law.py --logs 300`` prints a row for each world, which cells are significantly
outside 0.90 ± 0.03 (Holm, at 5%), and the mean over cells. It uses all cores; the result does not
depend on how many.
"""

from __future__ import annotations

import os

os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

import argparse
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binom

import retvar as rv
from retvar.exact.sampling import sample_returns

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.worlds import OTHERS, PAGE, World

WORLDS = {  # and the state that is asked about; the last ones were chosen when all was built
    "complex MDP, π": 1, "complex MDP, π from μ": 1, "random walk": 9, "dice race": 0,
    "random MDP, off-policy": 0, "inventory": 0, "two states, heavy noise": 0,
}  # fmt: skip
POINTS = -1.0, 0.2, 1.1  # of P(G < x): mean + so many std
HEADING = ["world", *(f"P(G < mean {x:+g} std)" for x in POINTS), "median", "CVaR 10%"]
LEVEL, SLACK, RATE = 0.9, 0.03, 0.05
ROUNDING = 1e-6  # of atoms
BLOCK = 5  # logs of a task
SAMPLES = 400_000  # returns that say what probabilities and the median are


@cache
def made(name: str) -> World:
    """A world of the tests."""
    return (PAGE | OTHERS)[name].make()


def truth_of(name: str) -> tuple[list[float], list[float]]:
    """Limits, and the answers: probabilities and the median by sampling, brackets are wider."""
    world, policy, state = made(name), rv.Policy(made(name).target), WORLDS[name]
    law = rv.law(world.mdp, policy, lam=1.0)[state]
    start = np.eye(world.mdp.n_states)[state]
    returns = sample_returns(world.mdp, policy, start=start, samples=SAMPLES)
    limits = [float(f"{law.mean + x * law.std.middle:.4g}") for x in POINTS]
    shares = [float(np.mean(returns < x)) for x in limits]
    return limits, [*shares, float(np.median(returns)), law.cvar(0.1).middle]


def held(name: str, block: int, limits: list[float]) -> list[list[tuple[float, float]]]:
    """Of each log of a block, the interval of each question."""
    found, rng = [], np.random.default_rng([11, list(WORLDS).index(name), block])
    for _ in range(BLOCK):
        log: Any = made(name).log(rng, (PAGE | OTHERS)[name].rows)
        del log["lam"]
        given = {role: role for role in ("gamma", "truncated", "rho") if role in log}
        law = rv.estimate(rv.experience.from_table(log, **given)).law(WORLDS[name])
        asked = [*map(law.probability_below, limits), law.quantile(0.5), law.cvar(0.1)]
        found.append([(x.low, x.high) for x in asked])
    return found


def coverage(name: str, logs: int, pool: ProcessPoolExecutor) -> Iterator[tuple[int, int]]:
    """Of each question: how many logs have an interval, and how many of these hold."""
    limits, truths = truth_of(name)
    tasks = [pool.submit(held, name, k, limits) for k in range(-(-logs // BLOCK))]
    ends = np.array([row for task in tasks for row in task.result()])[:logs]
    for truth, own in zip(truths, ends.transpose(1, 0, 2), strict=True):
        low, high = own[np.isfinite(own[:, 0])].T
        yield low.size, int(np.sum((low <= truth + ROUNDING) & (truth <= high + ROUNDING)))


def outside(cells: dict[str, tuple[int, int]]) -> list[str]:
    """Cells that are significantly outside, by Holm's procedure and exact binomial tails."""
    tails = []
    for name, (n, hits) in cells.items():
        few = binom.cdf(hits, n, LEVEL - SLACK)
        many = binom.sf(hits - 1, n, LEVEL + SLACK)
        tails.append((2 * min(few, many), name))
    wrong = []
    for k, (p, name) in enumerate(sorted(tails)):
        if p > RATE / (len(tails) - k):
            break
        wrong.append(name)
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logs", type=int, default=300)
    parser.add_argument("--worlds", nargs="*", default=list(WORLDS))
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    args, cells, write = parser.parse_args(), {}, sys.stdout.write
    write(f"| {' | '.join(HEADING)} |\n|{'---|' * len(HEADING)}\n")
    with ProcessPoolExecutor(args.processes, get_context("spawn")) as pool:
        for name in args.worlds:
            row = list(coverage(name, args.logs, pool))
            shares = [f"{hits / n:.1%} of {n}" if n else "–" for n, hits in row]
            write(f"| {name} | {' | '.join(shares)} |\n")
            sys.stdout.flush()
            cells |= {f"{name}: {q}": c for q, c in zip(HEADING[1:], row, strict=True) if c[0]}
    wrong = outside(cells)
    write(f"\n{len(wrong)} of {len(cells)} cells outside {LEVEL} ± {SLACK}: {', '.join(wrong)}\n")
    write(f"mean over cells: {np.mean([hits / n for n, hits in cells.values()]):.3f}\n")


if __name__ == "__main__":
    main()
