"""FrozenLake and CliffWalking both ways: learned from experience, and solved exactly.

A random policy walks each world, several times. The estimates use only the transitions of the
walk; `solve` uses the table of the world. Each estimate comes with a 90% interval: over many walks
nine in ten should contain the exact answer. The errors of one walk's states are correlated, so that
a single walk may do much better or worse.
"""

import sys

import numpy as np

import retvar as rv

GAMMA = 0.9


def main(steps: int = 100_000, walks: int = 10) -> None:
    """Print, for each world, how many of the intervals hold the exact answer."""
    for world in ("FrozenLake-v1", "CliffWalking-v1"):
        truth = rv.solve(rv.MDP.from_gymnasium(world, gamma=GAMMA))
        inside: dict[str, list[float]] = {"value": [], "std": []}
        print(f"\n{world}: {walks} walks of {steps:,} steps of a random policy, γ = {GAMMA}")
        for seed in range(walks):
            walk = rv.experience.from_gymnasium(world, "random", steps=steps, seed=seed)
            data = rv.estimate(walk, gamma=GAMMA).data
            visited = data["visits"].values > 0
            for what, shares in inside.items():
                low, high = data[f"{what}_low"].values, data[f"{what}_high"].values
                exact = getattr(truth, what)
                shares.append(float(np.mean(((low <= exact) & (exact <= high))[visited])))
        start = int(np.argmax(data["visits"].values))
        for what, shares in inside.items():
            found, exact = float(data[what][start]), getattr(truth, what)[start]
            print(
                f"  {what:5}  {np.mean(shares):.0%} of the 90% intervals hold the truth; "
                f"at the start, last walk: learned {found:.4g}, exact {exact:.4g}"
            )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
