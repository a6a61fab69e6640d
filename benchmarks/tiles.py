"""What learning from tile-coded observations costs, against NumPy as people usually write it.

Both see the same stream and do the same: tile indices, values, errors, traces, two weight vectors.
Everything is timed in one process, in turn; figures are medians, and ratios are medians of the
ratios within a round.
"""

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))  # for online

import retvar as rv
from online import measure
from retvar.files import write_text

LOW, HIGH = (-1.2, -0.07), (0.6, 0.07)
TILES, TILINGS = 34, 8  # 8 × 35 × 35 = 9,800 features
GAMMA, LAM, KAPPA = 0.99, 0.9, 0.9
STEP = 0.1 / TILINGS
ROWS = 100_000
STEPS = 2_000  # of the NumPy class in a round
ROUNDS = 9
TARGET = 50

Columns = dict[str, np.ndarray]


def car(rows: int, ends: bool, seed: int = 0) -> Columns:
    """A car that swings itself out of a valley, with some noise; at the top it starts again.

    Where nothing `ends`, the top is a wall instead.
    """
    rng = np.random.default_rng(seed)
    noise, starts = rng.random((rows, 2)), rng.uniform(-0.6, -0.4, rows)
    seen, after = np.empty((2, rows, 2))
    terminated = np.zeros(rows, dtype=bool)
    x, v = -0.5, 0.0
    for t in range(rows):
        seen[t] = x, v
        push = float(np.sign(v)) if noise[t, 0] > 0.3 else math.floor(3 * noise[t, 1]) - 1.0
        v = min(max(v + 0.001 * push - 0.0025 * math.cos(3 * x), -0.07), 0.07)
        x = min(max(x + v, -1.2), 0.5)
        if x == -1.2 or (x == 0.5 and not ends):
            v = 0.0
        after[t] = x, v
        if ends and x == 0.5:
            terminated[t] = True
            x, v = starts[t], 0.0
    reward = np.full(rows, -1.0)
    return {"state": seen, "reward": reward, "next_state": after, "terminated": terminated}


class Usual:
    """TD(λ) for value and variance with NumPy: dense traces, indices of tiles at every step."""

    def __init__(self) -> None:
        size = TILINGS * (TILES + 1) ** 2
        self.w, self.e, self.v, self.e_bar = np.zeros((4, size))
        self.low = np.array(LOW)
        self.scale = TILES / (np.array(HIGH) - self.low)
        tilings = np.arange(TILINGS)
        self.shift = (tilings[:, None] * np.array([1, 3]) % TILINGS) / TILINGS
        self.first = tilings * (TILES + 1) ** 2
        self.discount = self.discount_bar = 0.0

    def tiles(self, x: np.ndarray) -> np.ndarray:
        cell = np.floor((x - self.low) * self.scale + self.shift).astype(int)
        return self.first + cell[:, 0] * (TILES + 1) + cell[:, 1]

    def update(self, x: np.ndarray, reward: float, x_next: np.ndarray, ended: bool) -> None:
        now, after = self.tiles(x), self.tiles(x_next)
        gamma, lam = (0.0, 0.0) if ended else (GAMMA, LAM)
        gamma_bar = (gamma * lam) ** 2
        delta = reward + gamma * self.w[after].sum() - self.w[now].sum()
        delta_bar = delta**2 + gamma_bar * self.v[after].sum() - self.v[now].sum()
        self.e *= self.discount * KAPPA
        self.e[now] += 1.0
        self.w += STEP * delta * self.e
        self.e_bar *= self.discount_bar * KAPPA
        self.e_bar[now] += 1.0
        self.v += STEP * delta_bar * self.e_bar
        self.discount, self.discount_bar = gamma, gamma_bar


def learner() -> rv.OnlineEstimator:
    features = rv.features.TileCoding(LOW, HIGH, tiles=TILES, tilings=TILINGS)
    direct = rv.Direct(alpha=STEP, gamma=GAMMA, lam=LAM, kappa=KAPPA, kappa_bar=KAPPA)
    return direct.online(features=features)


def usual(columns: Columns, steps: int) -> Callable[[], int]:
    them = Usual()
    rows = list(zip(*(column[:steps] for column in columns.values()), strict=True))

    def run() -> int:
        for row in rows:
            them.update(*row)
        return steps

    return run


def one_by_one(columns: Columns, steps: int) -> Callable[[], int]:
    us = learner()
    rows = list(zip(*(column[:steps] for column in columns.values()), strict=True))

    def run() -> int:
        for state, reward, next_state, terminated in rows:
            us.update(state, reward, next_state, terminated=terminated)
        return steps

    return run


def chunk(columns: Columns) -> Callable[[], int]:
    us = learner()

    def run() -> int:
        us.update_many(columns)
        return ROWS

    return run


def agree(columns: Columns, steps: int = 3_000) -> None:
    """Both learn the same from the same."""
    us, them = learner(), Usual()
    us.update_many({name: column[:steps] for name, column in columns.items()})
    for row in zip(*(column[:steps] for column in columns.values()), strict=True):
        them.update(*row)
    np.testing.assert_allclose(us.weights["value"], them.w, atol=1e-9)
    np.testing.assert_allclose(us.weights["variance"], them.v, atol=1e-9)


def reached(columns: Columns) -> float:
    """How many weights a trace reaches, over both nodes, on average at the end of a step."""
    us, counts = learner(), []
    for first in range(0, 20_000, 97):
        us.update_many({name: column[first : first + 97] for name, column in columns.items()})
        traces = us._memory.traces[0, :-3]
        counts.append(np.count_nonzero(traces))
    return float(np.mean(counts))


def section(rounds: int = ROUNDS) -> str:
    """The part of docs/benchmarks.md about tile coding."""
    lines = [
        "## Tile-coded observations",
        "",
        f"A direct learner, κ = κ̄ = {KAPPA:g}, γ = {GAMMA:g}, λ = {LAM:g}; observations of a car "
        f"in a valley, {TILINGS} tilings of {TILES} × {TILES} tiles, "
        f"{TILINGS * (TILES + 1) ** 2:,} features. "
        "The NumPy class has dense traces and computes the indices of tiles with NumPy at every "
        "step; it learns the same weights, which is checked first. `update` is called from a "
        f"Python loop, `update_many` with {ROWS:,} rows; tile coding is included everywhere. All "
        f"are timed in turn in one process; medians of {rounds} rounds.",
        "",
        "| stream | weights that traces reach | NumPy | `update` | `update_many` | NumPy/`update` "
        "| NumPy/`update_many` |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    met = math.inf
    for name, ends in (("episodes", True), ("without end", False)):
        columns = car(ROWS, ends)
        agree(columns)
        runs = {
            "numpy": usual(columns, STEPS),
            "update": one_by_one(columns, 5_000),
            "update_many": chunk(columns),
        }
        cost, faster = measure(runs, rounds)
        met = min(met, faster["update_many"])
        lines.append(
            f"| {name} | {reached(columns):,.0f} | {cost['numpy']:,.0f} ns "
            f"| {cost['update']:,.0f} ns | {cost['update_many']:,.0f} ns "
            f"| {faster['update']:.2g}× | {faster['update_many']:,.3g}× |"
        )
    word = "met" if met >= TARGET else "NOT met"
    told = f"Target: `update_many` at least {TARGET}× is {word} ({met:,.1f}×)."
    return "\n".join([*lines, "", told, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="file to write; default: print")
    parser.add_argument("--append", action="store_true", help="add to the end of the file")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    text = section(options.rounds)
    print(text)
    if options.out:
        before = options.out.read_text(encoding="utf-8") + "\n" if options.append else ""
        write_text(options.out, before + text)


if __name__ == "__main__":
    main()
