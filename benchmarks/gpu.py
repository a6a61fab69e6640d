"""Updates a second on a GPU, kernel time and whole calls, compared with JAX on the same card.

Needs an NVIDIA GPU, numba-cuda (the extra ``cuda12`` or ``cuda13``) and, for the comparison, JAX.
"""

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import document
import retvar as rv
from engine import ALPHAS, RATIOS, SEED, jax_program
from retvar.engine import cuda_runner

STEPS, WINDOW = 80_000, 10_000
ROUNDS = 3
GIGA = 1e9


class Case(NamedTuple):
    """A simulation whose updates are counted."""

    mdp: rv.MDP
    learners: list
    steps: int
    runs: int
    record: Any
    goal: float  #: G updates a second
    bound: str  #: by what the kernel is bounded

    @property
    def updates(self) -> float:
        return float(self.steps) * self.runs * len(self.learners)

    def simulate(self, **changes: Any) -> Any:
        settings = {"steps": self.steps, "runs": self.runs, "seed": SEED, "record": self.record}
        return rv.simulate(self.mdp, self.learners, **{**settings, "device": "cuda", **changes})


def frozen(mdp: rv.MDP) -> list:
    """The value-error experiment: 54 settings of each of two methods."""
    j = rv.solve(mdp).value
    starts = [rv.Noisy(j, uniform=ratio * float(np.abs(j).max())) for ratio in RATIOS]
    return rv.grid(
        rv.Direct, rv.VTD, alpha=0.0, value=starts, alpha_bar=ALPHAS, learn_value=False
    )


def cases() -> dict[str, Case]:
    """The simulations, by name."""
    mdp, end = rv.domains.complex_mdp(), rv.Record(points=1)
    three = rv.grid(rv.Direct, rv.VTD, rv.Centred, alpha=ALPHAS[:6], alpha_bar=ALPHAS)
    one = [rv.Direct(alpha=0.05, alpha_bar=0.01)]
    traced = [rv.Direct(alpha=0.05, alpha_bar=0.01, kappa=0.9, kappa_bar=0.9)]
    walks = {n: rv.domains.random_mdp(n, seed=0) for n in (100, 1_000)}
    return {
        "value errors, 108 learners": Case(
            mdp, frozen(mdp), STEPS, 10_000, end, 500, "shared memory"
        ),
        "… with a window": Case(
            mdp, frozen(mdp), STEPS, 10_000, rv.Record(points=1, window=WINDOW), 400, "shared memory"
        ),
        "three methods learn, 162 learners": Case(
            mdp, three, STEPS, 10_000, end, 450, "shared memory"
        ),
        "one learner, 10⁶ runs": Case(mdp, one, 10_000, 1_000_000, end, 200, "issue"),
        "one learner with traces": Case(mdp, traced, 10_000, 1_000_000, end, 100, "FP64"),
        "100 states, 54 settings": Case(
            walks[100], frozen(walks[100]), 5_000, 20_000, end, 90, "DRAM"
        ),
        "1,000 states, 54 settings": Case(
            walks[1_000], frozen(walks[1_000]), 5_000, 10_000, end, 65, "DRAM"
        ),
        "one learner, 10⁶ runs × 80,000 steps, 100 points": Case(
            mdp, one, STEPS, 1_000_000, rv.Record(points=100), 0, "issue"
        ),
    }


class KernelTimes:
    """Seconds of the kernels that are launched within a block."""

    def __enter__(self) -> "KernelTimes":
        self.launch, self.events = cuda_runner.BlockRunner.launch, []
        times = self

        def timed(runner: Any, first_run: int) -> None:
            cuda = runner.device.cuda
            before, after = cuda.event(), cuda.event()
            before.record()
            times.launch(runner, first_run)
            after.record()
            times.events.append((cuda, before, after))

        cuda_runner.BlockRunner.launch = timed
        return self

    def __exit__(self, *_: object) -> None:
        cuda_runner.BlockRunner.launch = self.launch
        self.seconds = sum(c.event_elapsed_time(a, b) for c, a, b in self.events) / 1e3


def measure(case: Case, rounds: int = ROUNDS, **changes: Any) -> tuple[float, float]:
    """Median seconds of the kernels, and of the whole call; the first call compiles."""
    case._replace(runs=min(case.runs, 300), steps=min(case.steps, 100)).simulate(
        **changes, record=rv.Record(points=1, window=50) if case.record.window else None
    )
    kernel, whole = [], []
    for _ in range(rounds):
        before = time.perf_counter()
        with KernelTimes() as times:
            case.simulate(**changes)
        whole.append(time.perf_counter() - before)
        kernel.append(times.seconds)
    return statistics.median(kernel), statistics.median(whole)


def run_jax(runs: int, steps: int) -> float:
    """Seconds of the value-error experiment in JAX, the faster of two programs."""
    best = float("inf")
    for rows in (False, True):
        program: Callable[[], Any] = jax_program(rows, runs, steps)
        program()
        for _ in range(2):
            before = time.perf_counter()
            program()
            best = min(best, time.perf_counter() - before)
    return best


if __name__ == "__main__":
    given = document.options(__doc__)
    for name, case in cases().items():
        if len(sys.argv) > 1 and given.out is None and False:
            continue
        kernel, whole = measure(case)
        print(name, f"{case.updates / kernel / GIGA:.0f} G/s, whole {whole:.2f} s, kernel {kernel:.2f} s")
