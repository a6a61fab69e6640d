"""Updates a second on a GPU, of kernels and of whole calls, and JAX on the same card.

Needs an NVIDIA GPU, numba-cuda (the extra ``cuda12`` or ``cuda13``) and, for the comparison, JAX.
A kernel is timed by events on the device; figures are medians of a few calls after a first one,
which compiles.
"""

import statistics
import time
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

import document
import retvar as rv
from retvar.simulation import cuda_runner
from value_errors import ALPHAS, SEED, frozen, jax_program

STEPS, WINDOW = 80_000, 10_000
ROUNDS = 3
GIGA = 1e9


class Case(NamedTuple):
    """A simulation whose updates are counted."""

    mdp: rv.MDP
    learners: list
    steps: int
    runs: int
    bound: str = ""  #: by what the kernel is bounded
    record: rv.Record = rv.Record(points=1)

    @property
    def updates(self) -> float:
        return float(self.steps) * self.runs * len(self.learners)

    def simulate(self, **changes: Any) -> Any:
        settings = {"steps": self.steps, "runs": self.runs, "seed": SEED, "record": self.record}
        return rv.simulate(self.mdp, self.learners, **{**settings, "device": "cuda", **changes})


def one_learner(**settings: Any) -> list:
    return [rv.Direct(alpha=0.05, alpha_bar=0.01, **settings)]


def cases() -> dict[str, Case]:
    """The simulations, by name."""
    mdp = rv.domains.complex_mdp()
    errors = frozen(mdp)
    three = rv.grid(rv.Direct, rv.VTD, rv.Centred, alpha=ALPHAS[:6], alpha_bar=ALPHAS)
    walks = {n: rv.domains.random_mdp(n, seed=0) for n in (100, 1_000)}
    window = rv.Record(points=1, window=WINDOW)
    return {
        "value errors, 108 learners": Case(mdp, errors, STEPS, 10_000, "latency, FP64"),
        "… with a window": Case(mdp, errors, STEPS, 10_000, "L2 cache", window),
        "three methods learn, 162 learners": Case(mdp, three, STEPS, 10_000, "latency, FP64"),
        "one learner, 10⁶ runs": Case(mdp, one_learner(), 10_000, 1_000_000, "issue"),
        "one learner with traces": Case(
            mdp, one_learner(kappa=0.9, kappa_bar=0.9), 10_000, 1_000_000, "issue, FP64"
        ),
        "100 states, 108 learners": Case(walks[100], frozen(walks[100]), 5_000, 20_000, "L2 cache"),
        "1,000 states, 108 learners": Case(
            walks[1_000], frozen(walks[1_000]), 5_000, 10_000, "DRAM"
        ),
        "one learner, 10⁶ runs, 100 points": Case(
            mdp, one_learner(), STEPS, 1_000_000, "issue", rv.Record(points=100)
        ),
    }


class KernelTimes:
    """Seconds of the kernels that are launched within a block."""

    def __enter__(self) -> "KernelTimes":
        self.launch, self.events = cuda_runner.BlockRunner.launch, []
        times = self

        def timed(runner: Any, runs: range) -> None:
            cuda = runner.device.cuda
            before, after = cuda.event(), cuda.event()
            before.record()
            times.launch(runner, runs)
            after.record()
            times.events.append((cuda, before, after))

        cuda_runner.BlockRunner.launch = timed
        return self

    def __exit__(self, *_: object) -> None:
        cuda_runner.BlockRunner.launch = self.launch
        self.seconds = sum(c.event_elapsed_time(a, b) for c, a, b in self.events) / 1e3


def measure(case: Case, rounds: int = ROUNDS, **changes: Any) -> tuple[float, float]:
    """Median seconds of the kernels, and of the whole call; a first, short call compiles."""
    record = rv.Record(points=1, window=50 if case.record.window else 0)
    case._replace(runs=min(case.runs, 300), steps=100, record=record).simulate(**changes)
    kernel, whole = [], []
    for _ in range(rounds):
        before = time.perf_counter()
        with KernelTimes() as times:
            case.simulate(**changes)
        whole.append(time.perf_counter() - before)
        kernel.append(times.seconds)
    return statistics.median(kernel), statistics.median(whole)


def rate(case: Case, seconds: float) -> str:
    return f"{case.updates / seconds / GIGA:,.3g}"


def main_table() -> list[str]:
    lines = ["| simulation | runs × steps | G updates/s | kernel | whole call | bound by |"]
    lines.append("|---|---|---:|---:|---:|---|")
    for name, case in cases().items():
        kernel, whole = measure(case)
        lines.append(
            f"| {name} | {case.runs:,} × {case.steps:,} | {rate(case, kernel)} | {kernel:.3f} s "
            f"| {whole:.3f} s | {case.bound} |"
        )
        print(lines[-1], flush=True)
    return lines


def jax_lines(runs: int = 10_000, steps: int = 2_000) -> list[str]:
    """The value-error experiment in JAX, the faster of two programs; nothing without JAX."""
    if find_spec("jax") is None:
        return ["JAX is not installed."]
    case = cases()["value errors, 108 learners"]
    kernel, _ = measure(case)
    rates = []
    for rows in (False, True):
        program = jax_program(rows, runs, steps)
        program()
        seconds = []
        for _ in range(ROUNDS):
            before = time.perf_counter()
            program()
            seconds.append(time.perf_counter() - before)
        rates.append(len(case.learners) * runs * steps / min(seconds) / GIGA)
    ours = case.updates / kernel / GIGA
    return [
        f"JAX on the same card, the same experiment ({runs:,} runs, its own random numbers): "
        f"{rates[0]:,.3g} G updates/s with `vmap` over lanes and runs, {rates[1]:,.3g} with lanes "
        f"along rows and 8 steps unrolled. The kernel is {ours / max(rates):,.1f} times as fast."
    ]


def growth() -> list[str]:
    """How the rate grows with runs, settings and states."""
    mdp = rv.domains.complex_mdp()
    one, many = one_learner(), frozen(mdp)
    tables = {
        "runs, one learner": {
            f"10{'³⁴⁵⁶⁷'[k]}": Case(mdp, one, 2_000, 10 ** (3 + k)) for k in range(5)
        },
        "runs, 108 learners": {
            f"10{'²³⁴⁵'[k]}": Case(mdp, many, 8_000, 10 ** (2 + k)) for k in range(4)
        },
        "learners, 10⁴ runs": {
            f"{12 * k}": Case(
                mdp, frozen(mdp, np.geomspace(0.001, 0.05, k).tolist()), 8_000, 10_000
            )
            for k in (1, 3, 9, 27)
        },
        "states, 108 learners": {
            f"{n}": Case(walk, frozen(walk), 4_000, 5_000)
            for n in (10, 30, 300)
            for walk in (rv.domains.random_mdp(n, seed=0),)
        },
    }
    lines = ["| | G updates/s |", "|---|---|"]
    for name, row in tables.items():
        rates = [f"{label}: {rate(case, measure(case, 2)[0])}" for label, case in row.items()]
        lines.append(f"| {name} | {', '.join(rates)} |")
        print(lines[-1], flush=True)
    return lines


def break_even() -> list[str]:
    """Whole calls on CPU and GPU, by the number of runs."""
    case = cases()["value errors, 108 learners"]
    rows = []
    for runs in (3, 10, 30, 100, 300):
        times = []
        for device in ("cpu", "cuda"):
            few = case._replace(runs=runs)
            few.simulate(device=device)
            before = time.perf_counter()
            few.simulate(device=device)
            times.append(time.perf_counter() - before)
        rows.append(f"{runs * len(case.learners):,}: {times[0]:.2f} s and {times[1]:.2f} s")
    return [f"Whole calls on CPU and GPU, by learners × runs: {'; '.join(rows)}."]


def section() -> str:
    from numba import cuda

    card = cuda.get_current_device().name
    card = card.decode() if isinstance(card, bytes) else card
    lines = [
        "## On a GPU", "",
        f"`simulate(…, device=\"cuda\")` on one {card}, float64, with the bits of the CPU "
        "(`benchmarks/gpu.py`). An update is one learner in one step.",
        "What bounds a kernel is estimated from counts of its instructions and bytes.",
        "", *main_table(), "",
        *jax_lines(), "", "G updates/s of the kernel as simulations grow:", "", *growth(), "",
        *break_even(),
    ]  # fmt: skip
    return "\n".join(lines)


if __name__ == "__main__":
    given = document.options(__doc__)
    document.publish(section(), given.out, given.append)
