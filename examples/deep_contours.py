"""A deep critic beside the exact answer: contours of the std of the return in two dimensions.

A linear-Gaussian world, whose variance is a quadratic function of the state, is walked through for
200,000 steps. The critic sees only the states and rewards. With one network for the value and one
for the variance it takes about 20 s on one core. Needs torch: pip install "retvar[deep]".
"""

import sys
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

import retvar as rv
from retvar.plots.style import INK, ORANGE, RC

GAMMA = 0.95
POINTS = 81  # of the grid, in each dimension
SHOWN = 400  # states
LEVELS = 7


def world() -> Any:
    """The world that `benchmarks/deep.py` measures in; the spectral radius of F is 0.9."""
    F = np.random.default_rng(1).normal(size=(2, 2))
    F *= 0.9 / np.abs(np.linalg.eigvals(F)).max()
    return rv.domains.linear_gaussian(F, 0.3 * np.eye(2), np.eye(2), GAMMA)


def draw(given: Any, critic: Any, steps: int) -> Figure:
    """Exact and learned std on a grid, with the same levels and colours."""
    reach = 3.0 * np.sqrt(np.diag(given.stationary))
    x, y = (np.linspace(-most, most, POINTS) for most in reach)
    grid = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
    exact, learned = (each.std(grid).reshape(POINTS, POINTS) for each in (given, critic))
    levels = MaxNLocator(LEVELS).tick_values(exact.min(), exact.max())
    states = given.sample(SHOWN, 1, seed=9)[0][0]
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(6.2, 3.0), layout="constrained")
        panels = figure.subplots(1, 2, sharex=True, sharey=True)
        titles = "exact", f"learned from {steps:,} transitions"
        for axes, std, title in zip(panels, (exact, learned), titles, strict=True):
            filled = axes.contourf(x, y, std, levels, cmap="Blues", extend="both")
            axes.contour(x, y, std, levels, colors=INK, linewidths=0.9)
            axes.scatter(*states.T, s=3.0, color=INK, alpha=0.5, linewidths=0)
            axes.set(title=title, xlabel="x0", xlim=x[[0, -1]], ylim=y[[0, -1]])
        panels[1].contour(x, y, exact, levels, colors=ORANGE, linewidths=1.0, linestyles="dashed")
        panels[0].set_ylabel("x1")
        bar = figure.colorbar(filled, ax=panels, pad=0.02)
        bar.set_label(f"std of the return, γ = {GAMMA:g}")
        note = "Dots: states of the walk. Dashed: the exact contours."
        figure.supxlabel(note, fontsize=8, x=0.02, ha="left")
    return figure


def main(steps: int = 200_000, out: str | None = None, sweeps: int = 25) -> None:
    """Print how far the learned std is from the exact one; draw the contours to `out` if given."""
    given = world()
    walk = rv.experience.from_linear_gaussian(given, streams=64, steps=steps, seed=0)
    critic = rv.deep.fit(walk, gamma=GAMMA, members=1, sweeps=sweeps)
    states = given.sample(4_000, 1, seed=9)[0][0]
    error = np.abs(critic.std(states) / given.std(states) - 1)
    print(
        f"|std/exact − 1| over {len(states):,} states of the walk: median {np.median(error):.3f}, "
        f"90% point {np.quantile(error, 0.9):.3f}"
    )
    if out is not None:
        rv.plots.save(draw(given, critic, steps), out)


if __name__ == "__main__":
    main(*(int(x) if x.isdigit() else x for x in sys.argv[1:]))
