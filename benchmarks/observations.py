"""How good values, spreads and intervals are for observations, against roll-outs.

``python -m benchmarks.observations [STEPS] [SEED] [WORLD …]`` prints a row for each world: the
median error of the value in true std and of the log std, how often 90% intervals of value, std and
return hold over visited states, the share of states that are refused, and processor seconds.
"""

from __future__ import annotations

import math
import sys
import time
from typing import Any

import numpy as np
from tests.feature_worlds import World, cart_pole, mountain_car

import retvar as rv
from retvar.td.features import TileCoding

STATES, ROLLOUTS = 40, 1_000
Step = tuple[np.ndarray, np.ndarray, np.ndarray]
ANY = TileCoding([0.0], [1.0], tiles=1)  # features of the tests, not used here


def never(states: np.ndarray) -> np.ndarray:
    """No end."""
    return np.zeros(len(states), dtype=bool)


def diffusion() -> World:
    """A particle in a double well; its reward depends on where it is."""

    def reset(n: int, rng: np.random.Generator) -> np.ndarray:
        return rng.normal(size=(n, 2))

    def step(s: np.ndarray, rng: np.random.Generator) -> Step:
        drift = np.column_stack([s[:, 0] - s[:, 0] ** 3, 0.5 * s[:, 0] - s[:, 1]])
        after = s + 0.1 * drift + 0.25 * rng.normal(size=s.shape)
        return after, np.tanh(3 * s[:, 0]) - 0.3 * s[:, 1] ** 2, never(s)

    return World(reset, step, np.array, 0.95, 200, ANY, varies=True)


def pendulum() -> World:
    """A pendulum held up by a noisy hand, seen as cosine, sine and speed."""

    def reset(n: int, rng: np.random.Generator) -> np.ndarray:
        return np.column_stack([rng.uniform(-math.pi, math.pi, n), rng.uniform(-1, 1, n)])

    def step(s: np.ndarray, rng: np.random.Generator) -> Step:
        angle = (s[:, 0] + math.pi) % (2 * math.pi) - math.pi
        push = np.clip(-10 * angle - 2 * s[:, 1] + 2 * rng.normal(size=len(s)), -2, 2)
        speed = np.clip(s[:, 1] + 0.05 * (15 * np.sin(s[:, 0]) + 3 * push), -8, 8)
        after = np.column_stack([s[:, 0] + 0.05 * speed, speed])
        return after, -(angle**2 + 0.1 * s[:, 1] ** 2 + 0.001 * push**2), never(s)

    def observe(s: np.ndarray) -> np.ndarray:
        return np.column_stack([np.cos(s[:, 0]), np.sin(s[:, 0]), s[:, 1]])

    return World(reset, step, observe, 0.95, 200, ANY, varies=True)


def queues() -> World:
    """Three queues; most customers join the shortest, and one server is slow."""

    def reset(n: int, rng: np.random.Generator) -> np.ndarray:
        return rng.integers(0, 6, (n, 3)).astype(float)

    def step(s: np.ndarray, rng: np.random.Generator) -> Step:
        after, lane = s.copy(), np.arange(len(s))
        shortest = (s + 0.1 * rng.random(s.shape)).argmin(axis=1)
        joins = np.where(rng.random(len(s)) < 0.2, rng.integers(0, 3, len(s)), shortest)
        after[lane, joins] += rng.random(len(s)) < 0.8
        after -= (rng.random(s.shape) < [0.4, 0.3, 0.1]) & (after > 0)
        return np.minimum(after, 12), -s.sum(axis=1), never(s)

    return World(reset, step, np.array, 0.97, 300, ANY, varies=True)


def barrier() -> World:
    """A price whose volatility moves; it pays while it lasts, and costs 10 when it falls below."""

    def reset(n: int, rng: np.random.Generator) -> np.ndarray:
        return np.column_stack([rng.uniform(0.2, 1.5, n), rng.normal(-2.5, 0.3, n)])

    def step(s: np.ndarray, rng: np.random.Generator) -> Step:
        volatility = s[:, 1] + 0.1 * (-2.5 - s[:, 1]) + 0.2 * rng.normal(size=len(s))
        price = s[:, 0] + 0.05 * (0.8 - s[:, 0]) + np.exp(s[:, 1]) * rng.normal(size=len(s))
        over = price < 0
        after = np.column_stack([price, volatility])
        return after, np.where(over, -10.0, 0.3 * s[:, 0]), over

    return World(reset, step, np.array, 0.98, 250, ANY, varies=True)


def hills() -> World:
    """A walk to the right over six dimensions, of which four are noise; it ends at the far side."""

    def reset(n: int, rng: np.random.Generator) -> np.ndarray:
        return np.column_stack([np.zeros((n, 2)), rng.normal(size=(n, 4))])

    def step(s: np.ndarray, rng: np.random.Generator) -> Step:
        slope = 0.5 * np.cos(4 * s[:, 0]) * np.cos(2 * s[:, 1])
        move = np.column_stack([0.05 + 0.04 * slope, -0.02 * s[:, 1]])
        walked = s[:, :2] + move + 0.08 * rng.normal(size=(len(s), 2))
        after = np.column_stack([walked, 0.9 * s[:, 2:] + 0.4 * rng.normal(size=(len(s), 4))])
        return after, -1.0 - 0.5 * s[:, 1] ** 2 + 0.2 * s[:, 2], after[:, 0] > 2.0

    return World(reset, step, np.array, 0.98, 200, ANY, varies=True)


def rooms() -> World:
    """Two rooms with a door between them, whose wall parts the near from the far."""

    def reset(n: int, rng: np.random.Generator) -> np.ndarray:
        return rng.random((n, 2)) * [2.0, 1.0]

    def step(s: np.ndarray, rng: np.random.Generator) -> Step:
        left = s[:, 0] < 1
        way = np.column_stack([np.where(left, 1.1, 2.0), np.full(len(s), 0.5)]) - s
        move = 0.05 * way / np.hypot(*way.T)[:, None] + 0.06 * rng.normal(size=s.shape)
        after = np.clip(s + move, 0, [2.0, 1.0])
        wall = (left != (after[:, 0] < 1)) & (np.abs(after[:, 1] - 0.5) > 0.15)
        after[wall] = s[wall]
        return after, np.full(len(s), -1.0), after[:, 0] > 1.9

    return World(reset, step, np.array, 0.98, 300, ANY, varies=True)


def lander() -> World:
    """It falls and brakes with a noisy engine; a hard landing costs, and so does fuel."""

    def reset(n: int, rng: np.random.Generator) -> np.ndarray:
        return rng.normal([0.0, 1.5, 0.0, -0.2], [0.5, 0.2, 0.2, 0.2], (n, 4))

    def step(s: np.ndarray, rng: np.random.Generator) -> Step:
        x, height, drift, fall = s.T
        main = np.clip(-1.5 * (fall + 0.3 + 0.5 * height) + 0.4 * rng.normal(size=len(s)), 0, 2)
        side = np.clip(-0.8 * x - drift + 0.3 * rng.normal(size=len(s)), -1, 1)
        wind = 0.05 * rng.normal(size=len(s))
        after = s + 0.05 * np.column_stack([drift, fall, side, main - 0.8])
        after[:, 2] += wind
        over = after[:, 1] <= 0
        landing = 5.0 - 20 * np.maximum(np.abs(after[:, 3]) - 0.3, 0) - 5 * np.abs(after[:, 0])
        return after, np.where(over, landing, -0.05 * (main + np.abs(side))), over

    return World(reset, step, np.array, 0.99, 400, ANY, varies=True)


def warehouse() -> World:
    """Stock, what is on its way, and the demand's level; a truck brings all of it at times."""

    def reset(n: int, rng: np.random.Generator) -> np.ndarray:
        return np.column_stack([rng.integers(0, 20, n), np.zeros(n), rng.normal(3, 1, n)])

    def step(s: np.ndarray, rng: np.random.Generator) -> Step:
        stock, coming, level = s.T
        demand = rng.poisson(np.exp(0.3 * level))
        sold, comes = np.minimum(stock, demand), rng.random(len(s)) < 0.4
        order = np.maximum(15 - stock - coming, 0) * (rng.random(len(s)) < 0.7)
        left = stock - sold + comes * coming
        profit = 2 * sold - 0.1 * stock - 0.5 * (demand - sold) - comes
        moved = level + 0.1 * (3 - level) + 0.4 * rng.normal(size=len(s))
        return np.column_stack([left, ~comes * coming + order, moved]), profit, never(s)

    return World(reset, step, np.array, 0.95, 200, ANY, varies=True)


def assets() -> World:
    """Ten prices that return to their mean, some faster; what is held depends on two of them."""
    pull, mix = np.linspace(0.02, 0.3, 10), np.random.default_rng(0).normal(size=(10, 10)) / 10

    def reset(n: int, rng: np.random.Generator) -> np.ndarray:
        return rng.normal(size=(n, 10))

    def step(s: np.ndarray, rng: np.random.Generator) -> Step:
        after = s * (1 - pull) + rng.normal(size=s.shape) @ (0.2 * np.eye(10) + mix)
        held = np.tanh(-s[:, :2])
        gain = (held * (after - s)[:, :2]).sum(axis=1) - 0.02 * (s[:, 2:] ** 2).sum(axis=1)
        return after, gain, never(s)

    return World(reset, step, np.array, 0.97, 250, ANY, varies=True)


DESIGN: dict[str, Any] = {
    "mountain car, noise": lambda: mountain_car(0.3),
    "cart pole, stochastic": lambda: cart_pole(stochastic=True),
    "diffusion": diffusion, "pendulum, noise": pendulum, "queues": queues,
    "price with a barrier": barrier, "hills, six numbers": hills,
}  # fmt: skip
FRESH: dict[str, Any] = {
    "two rooms": rooms, "lander": lander, "warehouse": warehouse, "assets, ten numbers": assets,
}  # fmt: skip  # made when the code was frozen


def experience(log: dict[str, np.ndarray]) -> Any:
    """The log as a table of columns."""
    width = log["state"].shape[1]
    names = [[f"{kind}{j}" for j in range(width)] for kind in ("x", "y")]
    table = dict(zip(names[0], log["state"].T, strict=True))
    table |= dict(zip(names[1], log["next_state"].T, strict=True))
    table |= {name: log[name] for name in ("reward", "terminated", "truncated")}
    given = {"state": names[0], "next_state": names[1], "truncated": "truncated"}
    return rv.experience.from_table(table, **given)


def measured(world: World, steps: int, seed: int, features: Any = None) -> dict[str, float]:
    """Errors, coverage and costs of one log."""
    log, inner = world.log(steps, seed)
    some = np.random.default_rng(seed).choice(steps, STATES, replace=False)
    returns = world.returns(inner[some], ROLLOUTS, seed + 1)
    varies = returns.std(axis=1) > 1e-6
    some, returns = some[varies], returns[varies]
    mean, std = returns.mean(axis=1), returns.std(axis=1)
    places, began = log["state"][some], time.process_time()
    found = rv.estimate(experience(log), gamma=world.gamma, features=features)
    estimator = found.estimator
    value, spread = estimator.predict(places), estimator.predict(places, "std")
    ends = {what: estimator.interval(what=what, states=places) for what in ("value", "std")}
    low, high = found.return_interval(places)
    spent, known = time.process_time() - began, np.isfinite(value)
    inside = (low[:, None] <= returns) & (returns <= high[:, None])
    held = {
        what: (ends[what][0] <= truth) & (truth <= ends[what][1])
        for what, truth in (("value", mean), ("std", std))
    }
    width = (ends["value"][1] - ends["value"][0]) / 2 / std
    some = known & np.isfinite(spread)
    return {
        "value": float(np.median((np.abs(value - mean) / std)[known])),
        "std": float(np.median(np.abs(np.log(spread / std))[some])),
        "value holds": float(held["value"][known].mean()),
        "half width": float(np.nanmedian(width)),
        "std holds": float(held["std"][some].mean()),
        "returns hold": float(inside[some].mean()),
        "refused": float(1 - known.mean()),
        "seconds": spent,
    }


def main(steps: int = 30_000, seed: int = 0, *names: str) -> None:
    """Measure all worlds, or those named, and print the table."""
    write: Any = sys.stdout.write
    rows = []
    for name, make in (DESIGN | FRESH).items():
        if names and not any(part in name for part in names):
            continue
        rows.append(measured(make(), steps, seed))
        if len(rows) == 1:
            write(f"| {steps:,} steps | {' | '.join(rows[0])} |\n|---|{'---:|' * len(rows[0])}\n")
        write(f"| {name} | {' | '.join(f'{x:.3g}' for x in rows[-1].values())} |\n")
        sys.stdout.flush()
    means = (math.fsum(row[key] for row in rows) / len(rows) for key in rows[0])
    write(f"| mean | {' | '.join(f'{x:.3g}' for x in means)} |\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]), *sys.argv[3:])
