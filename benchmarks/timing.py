"""Timing of programs that are run alternately, round after round."""

import statistics
import time
from collections.abc import Callable

Timing = dict[str, Callable[[], int]]  # each runs once and returns its number of updates


class Times:
    """Seconds of programs that are timed alternately, round by round."""

    def __init__(self, runs: Timing, rounds: int) -> None:
        self.updates = {name: run() for name, run in runs.items()}  # compile and warm up
        self.seconds: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(rounds):
            for name, run in runs.items():
                before = time.perf_counter()
                run()
                self.seconds[name].append(time.perf_counter() - before)

    def beyond(self, name: str, whole: str, fixed: str) -> None:
        """Add the difference between `whole` and `fixed` under `name`."""
        pairs = zip(self.seconds[whole], self.seconds[fixed], strict=True)
        self.seconds[name] = [a - b for a, b in pairs]
        self.updates[name] = self.updates[whole]

    def cost(self, name: str) -> float:
        """Nanoseconds per update."""
        return 1e9 * statistics.median(self.seconds[name]) / self.updates[name]

    def faster(self, slow: str, fast: str) -> float:
        """Speed of `fast` relative to `slow`."""
        pairs = zip(self.seconds[slow], self.seconds[fast], strict=True)
        return statistics.median(a / b for a, b in pairs) * self.updates[fast] / self.updates[slow]


def ns(cost: float) -> str:
    """Format nanoseconds with three digits."""
    digits = 3 if cost < 1 else 2 if cost < 10 else 1 if cost < 100 else 0
    return f"{cost:,.{digits}f} ns"
