"""A robot's stream of data that breaks off: the estimate is saved, and resumed the next day.

The robot patrols four stations; its battery gives out at random, and its radio fails in the middle
of the first day. Nothing is lost: the estimator resumed from the file has the same bits as one that
learned from everything in one pass.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import retvar as rv

STATIONS = ["dock", "hall", "lab", "roof"]
GAMMA = 0.95


class Radio:
    """Receives the robot's transitions; may fail before the end."""

    def __init__(self, seed: int, steps: int, fails: bool) -> None:
        self.rng, self.steps, self.fails = np.random.default_rng(seed), steps, fails

    def chunks(self, counts: rv.experience.Counts) -> Iterator[dict[str, np.ndarray]]:
        """Messages of a thousand transitions."""
        here = 0
        for first in range(0, self.steps, 1_000):
            n = min(1_000, self.steps - first)
            state, follows = np.zeros(n, dtype=int), np.zeros(n, dtype=int)
            ended = self.rng.random(n) < 0.02
            for t in range(n):
                state[t] = here
                here = 0 if ended[t] else (here + int(self.rng.random() < 0.7)) % 4
                follows[t] = here
            yield {
                "state": state, "next_state": follows, "terminated": ended,
                "truncated": np.zeros(n, dtype=bool),
                "reward": self.rng.normal(state * 0.5, 0.2) - 10.0 * ended,
            }  # fmt: skip
        if self.fails:
            raise rv.SourceError("radio", counts.transitions, "no answer from the robot")


def received(seed: int, steps: int, fails: bool = False) -> rv.experience.Experience:
    """The transitions that the radio receives."""
    radio = Radio(seed, steps, fails)
    return rv.experience.Experience("radio", radio.chunks, states=4, labels=list(STATIONS))


def main(steps: int = 50_000) -> None:
    """Learn until the radio fails, save, resume, and compare."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "robot.safetensors"
        try:
            rv.estimate(received(1, steps, fails=True), gamma=GAMMA)
        except rv.SourceError as error:
            print(f"day 1: {error}")
            error.estimate.save(file)
        second = rv.estimate(received(2, steps), resume=file)
    print(second.summary())

    def both(counts: rv.experience.Counts) -> Iterator[dict[str, np.ndarray]]:
        yield from Radio(1, steps, fails=False).chunks(counts)
        yield from Radio(2, steps, fails=False).chunks(counts)

    whole = rv.estimate(rv.experience.Experience("radio", both, states=4), gamma=GAMMA)
    same = np.array_equal(whole.estimator.variance(), second.estimator.variance())
    print(f"the same bits as without the break: {same}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
