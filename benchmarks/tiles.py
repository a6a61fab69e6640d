"""Cost of learning from tile-coded observations, compared with a straightforward NumPy class.

Both read the same stream and compute the same: tile indices, values, errors, traces and two weight
vectors. They are timed in one process, alternately. Figures are medians; ratios are medians of the
ratios within a round.
"""

import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))  # for online

import document
import retvar as rv
from online import measure

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
    """Transitions of a car that swings out of a valley with random pushes.

    With `ends`, an episode ends at the top; otherwise the top is a wall.
    """
    rng = np.random.default_rng(seed)
    noise, starts = rng.random((rows, 2)), rng.uniform(-0.6, -0.4, rows)
    before, after = np.empty((2, rows, 2))
    terminated = np.zeros(rows, dtype=bool)
    x, v = -0.5, 0.0
    for t in range(rows):
        before[t] = x, v
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
    return {"state": before, "reward": reward, "next_state": after, "terminated": terminated}


class NumpyClass:
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


def make_estimator() -> rv.OnlineEstimator:
    features = rv.features.TileCoding(LOW, HIGH, tiles=TILES, tilings=TILINGS)
    direct = rv.Direct(alpha=STEP, gamma=GAMMA, lam=LAM, kappa=KAPPA, kappa_bar=KAPPA)
    return direct.online(features=features)


def numpy_class(columns: Columns, steps: int) -> Callable[[], int]:
    reference = NumpyClass()
    rows = list(zip(*(column[:steps] for column in columns.values()), strict=True))

    def run() -> int:
        for row in rows:
            reference.update(*row)
        return steps

    return run


def one_by_one(columns: Columns, steps: int) -> Callable[[], int]:
    estimator = make_estimator()
    rows = list(zip(*(column[:steps] for column in columns.values()), strict=True))

    def run() -> int:
        for state, reward, next_state, terminated in rows:
            estimator.update(state, reward, next_state, terminated=terminated)
        return steps

    return run


def chunk(columns: Columns) -> Callable[[], int]:
    estimator = make_estimator()

    def run() -> int:
        estimator.update_many(columns)
        return ROWS

    return run


def check_agreement(columns: Columns, steps: int = 3_000) -> None:
    """Check that both learn the same weights."""
    estimator, reference = make_estimator(), NumpyClass()
    estimator.update_many({name: column[:steps] for name, column in columns.items()})
    for row in zip(*(column[:steps] for column in columns.values()), strict=True):
        reference.update(*row)
    np.testing.assert_allclose(estimator.weights["value"], reference.w, atol=1e-9)
    np.testing.assert_allclose(estimator.weights["variance"], reference.v, atol=1e-9)


def trace_size(columns: Columns) -> float:
    """Mean number of nonzero trace entries of both nodes after a step."""
    estimator, counts = make_estimator(), []
    for first in range(0, 20_000, 97):
        estimator.update_many(
            {name: column[first : first + 97] for name, column in columns.items()}
        )
        counts.append(
            sum(np.count_nonzero(m.E[0]) for m in estimator._memory.block if m.E is not None)
        )
    return float(np.mean(counts))


def section(rounds: int = ROUNDS) -> str:
    """The section of benchmarks/results.md about tile coding."""
    lines = [
        "## Tile-coded observations",
        "",
        f"A direct learner, κ = κ̄ = {KAPPA:g}, γ = {GAMMA:g}, λ = {LAM:g}; observations of a car "
        f"in a valley, {TILINGS} tilings of {TILES} × {TILES} tiles, "
        f"{TILINGS * (TILES + 1) ** 2:,} features. "
        "The NumPy class has dense traces and computes the indices of tiles with NumPy at every "
        "step; it learns the same weights, which is checked first. `update` is called from a "
        f"Python loop, `update_many` with {ROWS:,} rows; tile coding is included everywhere. All "
        f"are timed alternately in one process; medians of {rounds} rounds.",
        "",
        "| stream | trace entries | NumPy | `update` | `update_many` | NumPy/`update` "
        "| NumPy/`update_many` |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    met = math.inf
    for name, ends in (("episodes", True), ("without end", False)):
        columns = car(ROWS, ends)
        check_agreement(columns)
        runs = {
            "numpy": numpy_class(columns, STEPS),
            "update": one_by_one(columns, 5_000),
            "update_many": chunk(columns),
        }
        cost, faster = measure(runs, rounds)
        met = min(met, faster["update_many"])
        lines.append(
            f"| {name} | {trace_size(columns):,.0f} | {cost['numpy']:,.0f} ns "
            f"| {cost['update']:,.0f} ns | {cost['update_many']:,.0f} ns "
            f"| {faster['update']:.2g}× | {faster['update_many']:,.3g}× |"
        )
    word = "met" if met >= TARGET else "NOT met"
    target = f"Target: `update_many` at least {TARGET}× is {word} ({met:,.1f}×)."
    return "\n".join([*lines, "", target, ""])


def main() -> None:
    options = document.options(__doc__, rounds=(ROUNDS, "number of rounds"))
    document.publish(section(options.rounds), options.out, options.append)


if __name__ == "__main__":
    main()
