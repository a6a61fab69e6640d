"""How often 90% intervals of the law of the return from a log contain the truth.

Five worlds of the tests: `python benchmarks/law.py --logs 300`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

import retvar as rv

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.worlds import OTHERS, PAGE

WORLDS = {  # and the state that is asked about
    "complex MDP, π": 1, "complex MDP, π from μ": 1, "random walk": 9,
    "dice race": 0, "random MDP, off-policy": 0,
}  # fmt: skip
POINTS = -1.0, 0.2, 1.1  # of P(G < x): mean + so many std
HEADING = ["world", *(f"P(G < mean {x:+g} std)" for x in POINTS), "median", "CVaR 10%"]


def covered(name: str, logs: int) -> list[list[bool]]:
    """Of each question, whether the interval of each log that has one contains the truth."""
    case, state = (PAGE | OTHERS)[name], WORLDS[name]
    world, rng = case.make(), np.random.default_rng(11)
    truth = rv.law(world.mdp, rv.Policy(world.target), lam=1.0)[state]
    limits = [float(f"{truth.mean + x * truth.std.middle:.4g}") for x in POINTS]
    hits: list[list[bool]] = [[] for _ in HEADING[1:]]
    for _ in range(logs):
        log = world.log(rng, case.rows)
        del log["lam"]
        given = {role: role for role in ("gamma", "truncated", "rho") if role in log}
        found = rv.estimate(rv.experience.from_table(log, **given)).law(state)
        asked: list[tuple[Any, Any]] = [
            (found.probability_below(x), truth.probability_below(x)) for x in limits
        ]
        asked += [(found.quantile(0.5), truth.quantile(0.5)), (found.cvar(0.1), truth.cvar(0.1))]
        for own, (one, true) in zip(hits, asked, strict=True):
            if not np.isnan(one.low):
                own.append(bool(one.low <= true.high and true.low <= one.high))
    return hits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logs", type=int, default=300)
    logs = parser.parse_args().logs
    sys.stdout.write(f"| {' | '.join(HEADING)} |\n|{'---|' * len(HEADING)}\n")
    for name in WORLDS:
        shares = [f"{np.mean(own):.1%}" if own else "–" for own in covered(name, logs)]
        sys.stdout.write(f"| {name} | {' | '.join(shares)} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
