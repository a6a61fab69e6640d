"""MountainCar with tile coding: the cost of the way up, its spread, and their uncertainty.

A policy that pumps energy, but errs three times in ten, drives the car. Values come from least
squares with tile coding, the spread from neighbours in other episodes; both are checked against
fresh Monte Carlo returns. Truncation after 200 steps is not termination.
"""

import sys

import numpy as np

import retvar as rv


def driver(seed: int):
    """Push in the direction of motion, seven times in ten."""
    rng = np.random.default_rng(seed)

    def act(observation: np.ndarray) -> int:
        if rng.random() < 0.3:
            return int(rng.integers(3))
        return 2 if observation[1] >= 0 else 0

    return act


def main(steps: int = 200_000, out: str | None = None) -> None:
    """Print the most visited regions and the check; draw the maps to `out` if given."""

    def drive(seed: int, length: int) -> rv.experience.Experience:
        return rv.experience.from_gymnasium("MountainCar-v0", driver(seed), steps=length, seed=seed)

    found = rv.estimate(drive(1, steps), gamma=0.99)
    print(found.summary(rows=8))
    checked = rv.check(found, drive(2, steps // 2))
    print(checked.summary())
    data = checked.data
    both = np.isfinite(data["std"].values) & (data["check_count"].values >= 30)
    ratio = np.median(data["std"].values[both] / data["check_std"].values[both])
    print(f"learned spread over that of the roll-outs, median of {both.sum()} regions: {ratio:.2f}")
    if out is not None:
        rv.plots.save(rv.plots.estimate_heat_maps(data), out)


if __name__ == "__main__":
    main(*(int(x) if x.isdigit() else x for x in sys.argv[1:]))
