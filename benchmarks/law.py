"""Whether the law of the return is right: coverage from logs, brackets and shares by sampling.

``python benchmarks/law.py`` prints a row for each world: how often 90% intervals from 300 logs
contain the truth, which cells are significantly outside 0.90 ± 0.03 (Holm, at 5%), and the mean.
Then it compares brackets of 1,000 random MDPs with the exact std and a million returns, and shares
of the variance in 50 of them with sampled paths. It uses all cores; the result does not depend on
how many.
"""

from __future__ import annotations

import os

os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

import argparse
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numba
import numpy as np
from scipy.stats import binom, norm

import retvar as rv
from retvar.exact.sampling import sample_returns
from retvar.mdp import weigh_edges

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.test_attribution import ESTIMANDS, random_world, sampled_terms
from tests.test_law import world
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
RETURNS = 1_000_000  # that a bracket is compared with
PATHS = 100_000  # that shares are compared with


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


def coverage(truths: list[float], logs: int, tasks: list[Future]) -> Iterator[tuple[int, int]]:
    """Of each question: how many logs have an interval, and how many of these hold."""
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


@numba.njit
def walks(state, first, cumulated, after, gain, noise, decay, returns, rng):
    """Sample returns from a state."""
    for i in range(returns.size):
        s, weight = state, 1.0
        while abs(weight) > 1e-12:
            own = cumulated[first[s] : first[s + 1]]
            drawn = np.searchsorted(own, rng.random() * own[-1], side="right")
            e = first[s] + min(drawn, own.size - 1)
            returns[i] += weight * gain[e]
            if noise[e] > 0:
                returns[i] += weight * noise[e] * rng.standard_normal()
            weight, s = weight * decay[e], after[e]


def bracketed(seed: int) -> tuple[bool, list[float]]:
    """Of one MDP: whether the exact stds lie inside, and p-values of sampled CVaR and quantiles."""
    try:
        mdp, asked = world(seed, 31)
        exact = rv.solve(mdp, **asked)
    except rv.RetvarError:  # no such MDP, or no variance
        return True, []
    law, state = exact.law(), seed % mdp.n_states
    known = np.isfinite(exact.std)
    inside = (law.std.low <= exact.std) & (exact.std <= law.std.high)
    if not known[state]:
        return bool(inside[known].all()), []
    e, x = weigh_edges(mdp, **asked), np.zeros(RETURNS)
    first = np.searchsorted(e.state, np.arange(e.n + 1))
    cumulated = np.concatenate([np.cumsum(own) for own in np.split(e.b, first[1:-1])])
    gain = e.eta * (e.reward + e.gamma * (1 - e.lam) * exact.value[e.next_state])
    columns = first, cumulated, e.next_state, gain, e.eta * e.reward_std, e.decay
    walks(state, *columns, x, np.random.default_rng([seed, 1_000]))
    x.sort()
    found, chances, size = law[state], [], ROUNDING * max(1e-3, np.abs(x).max())
    for share in (0.05, 0.3):
        for tail, sign in (("lower", 1), ("upper", -1)):
            limit = np.quantile(x, share if sign > 0 else 1 - share)
            worst = sign * np.minimum(sign * (x - limit), 0.0) / share + limit
            low, high = found.cvar(share, tail)
            error = worst.std() / np.sqrt(x.size) + size
            z = max(low - worst.mean(), worst.mean() - high, 0.0) / error
            chances.append(float(2 * norm.sf(z)))
        low, high = found.quantile(share)
        below, up_to = np.searchsorted(x, [low - size, high + size])
        chances.append(2 * min(binom.sf(below - 1, x.size, share), binom.cdf(up_to, x.size, share)))
    return bool(inside[known].all()), chances


def shared(seed: int) -> list[float]:
    """Of one MDP: z of the share of each state that paths visit often, for both estimands."""
    found, rng = [], np.random.default_rng([seed, 50])
    mdp, pi, mu = random_world(rng)
    for estimand in ESTIMANDS:
        exact = rv.solve(mdp, pi, mu, estimand)
        shares = exact.attribution(0)
        if shares.note or abs(shares.by_edge.sum() - 1) > 1e-12:
            raise ArithmeticError(f"seed {seed}: {shares.note or 'shares do not add to 1'}")
        terms = sampled_terms(mdp, pi, mu, estimand, exact, PATHS, rng)
        often = (terms != 0).mean(axis=0) > 0.01
        squares = terms[:, often] ** 2 / shares.variance
        error = squares.std(axis=0) / np.sqrt(PATHS)
        found += list((squares.mean(axis=0) - shares.by_state[often]) / error)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logs", type=int, default=300)
    parser.add_argument("--mdps", type=int, default=1_000)
    parser.add_argument("--shares", type=int, default=50)
    parser.add_argument("--worlds", nargs="*", default=list(WORLDS))
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    args, cells = parser.parse_args(), {}
    worlds = args.worlds if args.logs else []

    def write(text: str) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    with ProcessPoolExecutor(args.processes, get_context("spawn")) as pool:
        truths = dict(zip(worlds, pool.map(truth_of, worlds), strict=True))
        blocks = range(-(-args.logs // BLOCK))
        tasks = {w: [pool.submit(held, w, k, truths[w][0]) for k in blocks] for w in worlds}
        shares = [pool.submit(shared, seed) for seed in range(args.shares)]
        mdps = [pool.submit(bracketed, seed) for seed in range(args.mdps)]
        write(f"| {' | '.join(HEADING)} |\n|{'---|' * len(HEADING)}")
        for name in worlds:
            row = list(coverage(truths[name][1], args.logs, tasks[name]))
            told = [f"{hits / n:.1%} of {n}" if n else "–" for n, hits in row]
            write(f"| {name} | {' | '.join(told)} |")
            cells |= {f"{name}: {q}": c for q, c in zip(HEADING[1:], row, strict=True) if c[0]}
        wrong = outside(cells)
        write(f"\n{len(wrong)} of {len(cells)} cells outside {LEVEL} ± {SLACK}: {', '.join(wrong)}")
        if cells:
            write(f"mean over cells: {np.mean([hits / n for n, hits in cells.values()]):.3f}")
        z = np.array([x for task in shares for x in task.result()])
        if z.size:
            largest = f"largest |z| {np.abs(z).max():.2f}, expected {norm.isf(0.5 / z.size):.2f}"
            write(f"shares: {z.size} in {args.shares} MDPs, {largest}; mean z² {np.mean(z**2):.2f}")
        kept, chances = [], []
        for k, task in enumerate(as_completed(mdps), 1):
            inside, own = task.result()
            kept += [inside] * bool(own)
            chances += own
            if k % 100 == 0 or k == len(mdps):
                least = f"least p {min(chances):.1g}, Holm {RATE / len(chances):.1g}"
                write(f"brackets: of {len(kept)} MDPs {sum(kept)} contain every std; {least}")


if __name__ == "__main__":
    main()
