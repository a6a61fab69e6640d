"""FrozenLake and CliffWalking both ways: learned from experience, and solved exactly.

A random policy walks each world, several times. The estimates use only the transitions of the
walk; `solve` uses the table of the world. Each estimate comes with a 90% interval: over many walks
nine in ten should contain the exact answer. The errors of one walk's states are correlated, so that
a single walk may do much better or worse.
"""

import sys

import numpy as np
from matplotlib.figure import Figure

import retvar as rv

GAMMA = 0.9


def draw(worlds: dict) -> Figure:
    """Learned spread of each state, with its interval, against the exact one."""
    figure = Figure(figsize=(6.6, 3.2), layout="constrained")
    for axes, (world, (data, truth)) in zip(figure.subplots(1, 2), worlds.items(), strict=True):
        std, low, high = (data[name].values for name in ("std", "std_low", "std_high"))
        axes.vlines(truth.std, low, high, color="#0072B2", lw=3, alpha=0.35)
        axes.plot(truth.std, std, "o", color="#0072B2", ms=3.5)
        axes.axline((0, 0), slope=1, color="0.5", lw=0.8, ls="--", zorder=0)
        axes.set(title=world, xlabel="exact std of the return", xlim=(0, None), ylim=(0, None))
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("learned from one walk, 90%")
    return figure


def main(steps: int = 100_000, walks: int = 10, plot: str | None = None) -> None:
    """Print, for each world, how many of the intervals hold the exact answer."""
    worlds = {}
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
        worlds[world] = data, truth
        start = int(np.argmax(data["visits"].values))
        for what, shares in inside.items():
            found, exact = float(data[what][start]), getattr(truth, what)[start]
            print(
                f"  {what:5}  {np.mean(shares):.0%} of the 90% intervals hold the truth; "
                f"at the start, last walk: learned {found:.4g}, exact {exact:.4g}"
            )
    if plot is not None:
        rv.plots.save(draw(worlds), plot)


if __name__ == "__main__":
    main(*(int(x) if x.isdigit() else x for x in sys.argv[1:]))
