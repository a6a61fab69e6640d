"""CartPole with its limit of 500 steps: truncation is not termination.

A simple controller keeps the pole up for long, so that many episodes are cut off at 500 steps. With
γ = 0.99 a pole that never falls is worth 100. An estimator that took truncation for a fall would
estimate less for the states in which it happens; both are shown.
"""

import sys
from dataclasses import replace

import numpy as np
from matplotlib.figure import Figure

import retvar as rv

GAMMA = 0.99


def controller(observation: np.ndarray) -> int:
    """Push to where the pole is falling; it drifts, and falls at last."""
    position, velocity, angle, spin = observation
    return int(angle + 0.4 * spin + 0.01 * position + 0.05 * velocity > 0)


def as_ends(experience: rv.experience.Experience) -> rv.experience.Experience:
    """The mistake: truncation taken for termination."""

    def source(counts):
        for chunk in experience.chunks():
            yield {**chunk, "terminated": chunk["terminated"] | chunk["truncated"]}

    return replace(experience, source=source, counts=rv.experience.Counts())


def draw(estimates: dict[str, rv.Estimate]) -> Figure:
    """The value along the angle of the pole, at rest in the middle of the track."""
    figure = Figure(figsize=(5.6, 3.2), layout="constrained")
    axes = figure.subplots()
    angles = np.linspace(-0.18, 0.18, 73)
    for (name, found), colour in zip(estimates.items(), ("#0072B2", "#D55E00"), strict=True):
        at = [[0.0, 0.0, angle, 0.0] for angle in angles]
        ends = np.array([found.estimator.interval(where, "value") for where in at])
        axes.fill_between(angles, *ends.T, color=colour, alpha=0.2, lw=0)
        axes.plot(angles, [found.estimator.value(x) for x in at], color=colour, lw=1.6, label=name)
    worth = 1 / (1 - GAMMA)
    axes.axhline(worth, color="0.5", lw=0.8, ls="--", zorder=0)
    axes.annotate("never to fall", (0.18, worth), (0, 3), textcoords="offset points", ha="right")
    axes.set(xlabel="angle of the pole", ylabel="value, with 90% intervals", ylim=(0, worth + 10))
    axes.legend(frameon=False, loc="lower center")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def main(steps: int = 100_000, plot: str | None = None) -> None:
    """Print the value in the middle of the track, learned correctly and with the mistake."""

    def balance() -> rv.experience.Experience:
        return rv.experience.from_gymnasium("CartPole-v1", controller, steps=steps, seed=1)

    low, high = [-2.4, -3.0, -0.21, -3.0], [2.4, 3.0, 0.21, 3.0]
    tiles = rv.features.TileCoding(low, high, tiles=6, tilings=16)
    right = rv.estimate(balance(), gamma=GAMMA, features=tiles)
    wrong = rv.estimate(as_ends(balance()), gamma=GAMMA, features=tiles)
    print(right.summary(rows=5))
    counts = right.experience.counts
    print(f"\n{counts.episodes} episodes in {counts.transitions:,} steps")
    where = [0.0, 0.0, 0.0, 0.0]
    estimates = {"right": right, "truncation taken for an end": wrong}
    for name, found in estimates.items():
        low_end, high_end = found.estimator.interval(where, "value")
        print(
            f"value upright in the middle, {name}: {found.estimator.value(where):.1f} "
            f"(90%: {low_end:.1f} … {high_end:.1f}); never to fall is worth {1 / (1 - GAMMA):.0f}"
        )
    if plot is not None:
        rv.plots.save(draw(estimates), plot)


if __name__ == "__main__":
    main(*(int(x) if x.isdigit() else x for x in sys.argv[1:]))
