"""How good values, spreads and intervals are for observations, against roll-outs.

``python -m benchmarks.observations --steps 30000 --steps 100000 --seeds 2 --workers 16 [WORLD …]``
prints a table for each number of steps, with the mean over the seeds for each world: the median
error of the value in true std, that of tiles alone, that of the log std; how often 90% intervals of
value, std and return hold over visited states; the share of states that are refused; processor
seconds; how often the value's interval holds shortly before a fall; and the error of the value with
networks in the stack (``--networks``). Set ``OMP_NUM_THREADS=1`` beside many workers.
"""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any

import click
import numpy as np
from tests.feature_worlds import World, cart_pole, mountain_car

import retvar as rv
from retvar.td.features import TileCoding

STATES, ROLLOUTS = 40, 20_000  # so many that the truth's own error hardly counts
PARTS = 20  # in which they are made
LOG, SEED = 20_000, 12_345  # steps of the log whose places are asked, and its seed
NETWORKS = 30_000  # steps of the logs for which networks are tried, too
FALLS = "cart pole, stochastic", "inverted pendulum"  # worlds of which doomed states are asked
AT_ONCE = 6  # steps before a fall
CERTAIN = 1e-6  # std of the return, below which errors are not divided by it
ROUNDING = 1e-9
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


def inverted_pendulum() -> World:
    """A pole on a cart, held up by a weak and noisy hand until it leans by 0.2."""

    def reset(n: int, rng: np.random.Generator) -> np.ndarray:
        return rng.uniform(-0.01, 0.01, (n, 4))

    def step(s: np.ndarray, rng: np.random.Generator) -> Step:
        x, angle, v, spin = s.T
        push = 18 * angle + 3 * spin + 0.3 * x + 0.8 * v + 3 * rng.normal(size=len(s))
        pull = np.clip(push, -3, 3)
        turn = 16 * np.sin(angle) - 2.5 * pull * np.cos(angle)
        after = s + 0.04 * np.column_stack([v, spin, pull, turn])
        return after, np.ones(len(s)), np.abs(after[:, 1]) > 0.2

    return World(reset, step, np.array, 0.99, 1_000, ANY, varies=True)


def epidemic() -> World:
    """Shares of the healthy and of the ill; measures begin from a tenth on, and it ends."""

    def reset(n: int, rng: np.random.Generator) -> np.ndarray:
        return np.column_stack([rng.uniform(0.5, 0.95, n), rng.uniform(0.02, 0.15, n)])

    def step(s: np.ndarray, rng: np.random.Generator) -> Step:
        healthy, ill = s.T
        spread = np.where(ill > 0.1, 0.15, 0.3) * np.exp(0.3 * rng.normal(size=len(s)))
        caught = np.minimum(spread * healthy * ill, healthy)
        after = np.column_stack([healthy - caught, ill + caught - 0.12 * ill])
        return after, -10 * ill - 0.3 * (ill > 0.1), after[:, 1] < 0.01

    return World(reset, step, np.array, 0.98, 200, ANY, varies=True)


def road() -> World:
    """Following another car: gap, own speed, its speed. A crash costs 20."""

    def reset(n: int, rng: np.random.Generator) -> np.ndarray:
        return rng.uniform([5.0, 10.0, 10.0], [30.0, 25.0, 25.0], (n, 3))

    def step(s: np.ndarray, rng: np.random.Generator) -> Step:
        gap, own, other = s.T
        wanted = 0.3 * (gap - 5 - 0.6 * own) + 0.5 * (other - own) + 1.5 * rng.normal(size=len(s))
        push = np.clip(wanted, -6, 2)
        brakes = np.where(rng.random(len(s)) < 0.03, -10.0, 0.5 * (20 - other) / 5)
        leader = np.clip(other + 0.5 * (brakes + rng.normal(size=len(s))), 0, 30)
        speed = np.clip(own + 0.5 * push, 0, 30)
        after = np.column_stack([gap + 0.5 * (other - own), speed, leader])
        crash = after[:, 0] < 0
        return after, np.where(crash, -20.0, own / 20 - 0.02 * push**2), crash

    return World(reset, step, np.array, 0.97, 200, ANY, varies=True)


def battery() -> World:
    """A battery that is charged when power is cheap, and sold when it is dear."""

    def reset(n: int, rng: np.random.Generator) -> np.ndarray:
        return rng.uniform([0.0, 0.0, -1.0], [24.0, 1.0, 1.0], (n, 3))

    def step(s: np.ndarray, rng: np.random.Generator) -> Step:
        hour, charge, wind = s.T
        price = 3 - 1.5 * np.cos(2 * math.pi * (hour - 4) / 24) - wind
        flow = np.where(price < 2.5, np.minimum(0.2, 1 - charge), -np.minimum(0.2, charge))
        flow *= rng.random(len(s)) < 0.9
        moved = 0.9 * wind + 0.4 * rng.normal(size=len(s))
        after = np.column_stack([(hour + 1) % 24, charge + flow, moved])
        return after, -price * flow - 0.05 * np.abs(flow), never(s)

    def observe(s: np.ndarray) -> np.ndarray:
        angle = 2 * math.pi * s[:, 0] / 24
        return np.column_stack([np.cos(angle), np.sin(angle), s[:, 1:]])

    return World(reset, step, observe, 0.95, 200, ANY, varies=True)


def tanks() -> World:
    """Three tanks, one above the other, fed by rain; overflow costs, and so does drought."""

    def reset(n: int, rng: np.random.Generator) -> np.ndarray:
        return rng.uniform(0.0, 1.0, (n, 3))

    def step(s: np.ndarray, rng: np.random.Generator) -> Step:
        rain = np.where(rng.random(len(s)) < 0.2, rng.exponential(0.4, len(s)), 0.0)
        down = np.minimum(np.sqrt(s) * [0.1, 0.12, 0.14], s)
        after = s - down
        after += np.column_stack([rain, down[:, :2]])
        over = np.maximum(after - 1, 0.0)
        cost = 5 * over.sum(axis=1) + 0.5 * (s[:, 2] < 0.1)
        return after - over, down[:, 2] * 3 - cost, never(s)

    return World(reset, step, np.array, 0.96, 200, ANY, varies=True)


DESIGN: dict[str, Any] = {
    "mountain car, noise": lambda: mountain_car(0.3),
    "cart pole, stochastic": lambda: cart_pole(stochastic=True),
    "inverted pendulum": inverted_pendulum, "diffusion": diffusion, "pendulum, noise": pendulum,
    "queues": queues, "price with a barrier": barrier, "hills, six numbers": hills,
    "warehouse": warehouse,
}  # fmt: skip
FRESH: dict[str, Any] = {
    "two rooms": rooms, "lander": lander, "assets, ten numbers": assets, "epidemic": epidemic,
    "road": road, "battery": battery, "three tanks": tanks,
}  # fmt: skip  # the last four were made when the code was frozen, the others for an earlier one
WORLDS = DESIGN | FRESH


def experience(log: dict[str, np.ndarray]) -> Any:
    """The log as a table of columns."""
    width = log["state"].shape[1]
    names = [[f"{kind}{j}" for j in range(width)] for kind in ("x", "y")]
    table = dict(zip(names[0], log["state"].T, strict=True))
    table |= dict(zip(names[1], log["next_state"].T, strict=True))
    table |= {name: log[name] for name in ("reward", "terminated", "truncated")}
    given = {"state": names[0], "next_state": names[1], "truncated": "truncated"}
    return rv.experience.from_table(table, **given)


@dataclass(frozen=True)
class Truth:
    """What roll-outs say of places that another log visits, the same for all logs of a world."""

    places: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    returns: np.ndarray  #: some of them [place, roll-out]
    doomed: np.ndarray  #: places where an episode is all but over
    doomed_mean: np.ndarray


def truth(name: str) -> Truth:
    """Roll out from visited places of a world."""
    world, rng = WORLDS[name](), np.random.default_rng(SEED)
    log, inner = world.log(LOG, SEED)
    visited = rng.choice(LOG, STATES, replace=False)
    parts = []
    sums = np.zeros((2, STATES))
    for part in range(PARTS):
        found = world.returns(inner[visited], ROLLOUTS // PARTS, SEED + part)
        sums += found.sum(axis=1), (found**2).sum(axis=1)
        parts += [found] if part == 0 else []
    mean = sums[0] / ROLLOUTS
    std = np.sqrt(np.maximum(sums[1] / ROLLOUTS - mean**2, 0.0))
    last, doom = doomed(world, log, inner, rng) if name in FALLS else ([], np.zeros(0))
    return Truth(log["state"][visited], mean, std, parts[0], log["state"][last], doom)


def doomed(
    world: World, log: dict[str, np.ndarray], inner: np.ndarray, rng: np.random.Generator
) -> tuple[Any, np.ndarray]:
    """Rows of a world that pays 1 a step, whose episodes are all but over; their mean returns."""
    ends = np.flatnonzero(log["terminated"] | log["truncated"])
    rows = np.arange(len(inner))
    last = ends[np.searchsorted(ends, rows)]
    near = rng.permutation(np.flatnonzero(log["terminated"][last] & (last - rows < AT_ONCE)))
    near = near[: 4 * STATES]
    mean = world.returns(inner[near], ROLLOUTS // PARTS, SEED).mean(axis=1)
    return near[mean < AT_ONCE][:STATES], mean[mean < AT_ONCE][:STATES]


def measured(
    task: tuple[int, str, int], truths: dict[str, Truth], networks: bool = False
) -> dict[str, float]:
    """Errors, coverage and costs of one log: of so many steps, of a world, from a seed."""
    steps, name, seed = task
    world, known = WORLDS[name](), truths[name]
    table, began = experience(world.log(steps, seed)[0]), time.process_time()
    found = rv.estimate(table, gamma=world.gamma)
    estimator, places = found.estimator, known.places
    value, spread = estimator.predict(places), estimator.predict(places, "std")
    ends = {what: estimator.interval(what=what, states=places) for what in ("value", "std")}
    low, high = found.return_interval(places)
    spent = time.process_time() - began
    tiles = estimator.solution.bases["tiles"].predict(places).mean(axis=0)
    unit, told = np.where(known.std > CERTAIN, known.std, np.nan), np.isfinite(spread)
    inside = (low[:, None] <= known.returns) & (known.returns <= high[:, None])
    row = {
        "value": np.nanmedian(np.abs(value - known.mean) / unit),
        "tiles": np.nanmedian(np.abs(tiles - known.mean) / unit),
        "std": np.nanmedian(np.abs(np.log(np.maximum(spread, CERTAIN) / unit))),
        "value holds": holds(ends["value"], known.mean)[np.isfinite(value)].mean(),
        "std holds": holds(ends["std"], known.std)[told].mean(),
        "returns hold": inside[told].mean(),
        "refused": 1 - told.mean(), "seconds": spent, "doomed": math.nan, "networks": math.nan,
    }  # fmt: skip
    if networks and steps == NETWORKS:
        bases = ["tiles", "waves", "neighbours", rv.deep.Networks()]
        mixed = rv.estimate(table, gamma=world.gamma, features=bases).value(places)
        row["networks"] = np.nanmedian(np.abs(mixed - known.mean) / unit)
    if len(known.doomed):
        few = estimator.interval(what="value", states=known.doomed)
        row["doomed"] = (holds(few, known.doomed_mean) | np.isnan(few[0])).mean()
    return {key: float(x) for key, x in row.items()}


def holds(ends: Any, truth: np.ndarray) -> np.ndarray:
    """Which intervals contain the truth."""
    return np.asarray((ends[0] - ROUNDING <= truth) & (truth <= ends[1] + ROUNDING))


def table_row(name: str, rows: list[dict[str, float]]) -> str:
    """The mean of some rows, of what was measured in each."""
    columns = (
        [x for x in each if not math.isnan(x)] for each in zip(*map(dict.values, rows), strict=True)
    )
    means = (f"{np.mean(each):.3g}" if each else "–" for each in columns)
    return f"| {name} | {' | '.join(means)} |"


@click.command()
@click.argument("worlds", nargs=-1)
@click.option("--steps", type=int, multiple=True, default=[30_000])
@click.option("--seeds", type=int, default=1)
@click.option("--workers", type=int, default=1)
@click.option("--networks", is_flag=True, help="Networks as a base, too; needs torch.")
def main(
    worlds: tuple[str, ...], steps: tuple[int, ...], seeds: int, workers: int, networks: bool
) -> None:
    """Measure all worlds, or those named, and print the tables."""
    names = [n for n in WORLDS if not worlds or any(part in n for part in worlds)]
    tasks = list(itertools.product(sorted(steps, reverse=True), names, range(seeds)))
    found = {}
    with get_context("spawn").Pool(workers) as pool:
        truths = dict(zip(names, pool.imap(truth, names, chunksize=1), strict=True))
        rows = pool.imap(partial(measured, truths=truths, networks=networks), tasks)
        for (size, name, seed), row in zip(tasks, rows, strict=True):
            found[size, name, seed] = row
            click.echo(f"{size:,} {seed} {table_row(name, [row])}", err=True)
    for size in sorted(steps):
        click.echo(f"\n| {size:,} steps | {' | '.join(row)} |\n|---|{'---:|' * len(row)}")
        own = {n: [found[size, n, seed] for seed in range(seeds)] for n in names}
        for name in names:
            click.echo(table_row(name, own[name]))
        for kind, part in (("design", DESIGN), ("fresh", FRESH), ("all", WORLDS)):
            if every := [row for n in names if n in part for row in own[n]]:
                click.echo(table_row(f"**{kind}**", every))


if __name__ == "__main__":
    main()
