"""CartPole with its limit of 500 steps: truncation is not termination.

A simple controller keeps the pole up for long, so that many episodes are cut off at 500 steps. With
γ = 0.99 a pole that never falls is worth 100. An estimator that took truncation for a fall would
estimate less for the states in which it happens; both are shown.
"""

import sys
from dataclasses import replace

import numpy as np

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


def main(steps: int = 100_000) -> None:
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
    for name, found in (("right", right), ("truncation taken for an end", wrong)):
        low_end, high_end = found.estimator.interval(where, "value")
        print(
            f"value upright in the middle, {name}: {found.estimator.value(where):.1f} "
            f"(90%: {low_end:.1f} … {high_end:.1f}); never to fall is worth {1 / (1 - GAMMA):.0f}"
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
