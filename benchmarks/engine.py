"""Cost of a simulated update in nanoseconds, compared with NumPy, JAX and C.

The programs are timed alternately, round after round. Figures are medians; ratios are medians of
the ratios within a round. Needs gcc, JAX (the extra ``bench``) and Linux.
"""

import ctypes
import functools
import os
import re
import statistics
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import document
import retvar as rv
from c_programs import CONTRACTION_OFF, Walk, compare, compiled_c
from online import Reference, numpy_class
from retvar.exact.solution import variance_function
from retvar.mdp import weigh_edges
from retvar.simulation.runner import usable_threads
from retvar.td.block import aligned_zeros
from timing import Times, Timing, ns
from value_errors import ALPHAS, RATIOS, SEED, experiment, jax_program

SETTINGS = len(RATIOS) * len(ALPHAS)
LANES = 56  # the settings, padded to whole vectors
RUNS, STEPS, WINDOW = 120, 80_000, 10_000
JAX_STEPS = 8_000  # steps of each run in JAX
ROUNDS = 7
FEW = 3  # rounds if nothing is compared
LONG = 0.15  # least seconds of a timing beyond the set-up
MEBIBYTE = 1024**2
SPAWN = get_context("spawn")


# ---------------------------------------------------------------------- timing


def margin(run: Callable[[int], int]) -> tuple[float, float]:
    """Nanoseconds per update beyond the set-up, and seconds of the set-up; `run` takes steps."""
    few, steps = 64, 16_384
    few_updates = run(few)  # compiles
    fixed, whole = [_seconds(run, few)], 0.0
    while whole < fixed[0] + max(LONG, fixed[0] / 8):
        steps *= 4
        whole = _seconds(run, steps)
    beyond = [whole - fixed[0]]
    for _ in range(FEW - 1):
        fixed.append(_seconds(run, few))
        beyond.append(_seconds(run, steps) - fixed[-1])
    updates = few_updates // few * (steps - few)
    return 1e9 * statistics.median(beyond) / updates, statistics.median(fixed)


def _seconds(run: Callable[[int], int], steps: int) -> float:
    before = time.perf_counter()
    run(steps)
    return time.perf_counter() - before


def cost_table(name: str, runs: dict[str, Callable[[int], int]]) -> list[str]:
    """A table of the cost of an update in each case."""
    lines = [f"| {name} | per update | set-up |", "|---:|---:|---:|"]
    for case, run in runs.items():
        cost, fixed = margin(run)
        lines.append(f"| {case} | {ns(cost)} | {1e3 * fixed:,.0f} ms |")
    return lines


# ---------------------------------------------------------------------- the experiment


def engine(
    threads: int, window: int = 0, points: int = 1, runs: int = RUNS, steps: int = STEPS
) -> Callable[[], int]:
    """The experiment as one call of `simulate`."""
    mdp, learners = experiment()
    record = rv.Record(points=points, window=min(window, steps))

    def run() -> int:
        rv.simulate(
            mdp, learners, steps=steps, runs=runs, seed=SEED, threads=threads, record=record
        )
        return runs * steps * len(learners)

    return run


def frozen_class(steps: int = 1_000) -> Callable[[], int]:
    """The NumPy class, a direct learner and VTD; one-hot features are built for each step."""
    mdp, _ = experiment()
    n, j = mdp.n_states, rv.solve(mdp).value
    columns = rv.replay(mdp, seed=SEED, steps=steps)
    names = ("state", "reward", "next_state", "gamma", "lam")
    rows = list(zip(*(columns[name].tolist() for name in names), strict=True))
    learners = [
        Reference(method, n, alpha=0.0, alpha_bar=0.01, learn_value=False, J=j)
        for method in ("direct", "vtd")
    ]

    def run() -> int:
        for learner in learners:
            for state, reward, next_state, gamma, lam in rows:
                x, x_next = np.zeros(n), np.zeros(n)
                x[state] = x_next[next_state] = 1.0
                learner.update(x, reward, x_next, gamma, lam)
        return len(learners) * steps

    return run


# ---------------------------------------------------------------------- C


class Lanes:
    """The experiment in C (lanes.c), with its tables."""

    def __init__(self, runs: int) -> None:
        mdp, learners = experiment()
        self.walk = Walk(mdp, SEED)
        begin = rv.simulate(
            mdp, learners, steps=1, runs=runs, seed=SEED, record=[0], keep="runs", truth=False
        )
        value = begin.value.values[:, :SETTINGS, 0]  # [run, learner, state]
        variances = variance_function(weigh_edges(mdp))
        frozen = np.array([variances(value[:, i]) for i in range(SETTINGS)])
        self.alpha = _lanes(np.array([learner.alpha_bar for learner in learners[:SETTINGS]]))
        self.J = _lanes(value.transpose(0, 2, 1))
        self.frozen = _lanes(frozen.transpose(1, 2, 0))
        self.truth = _lanes(np.tile(rv.solve(mdp).variance[:, None], SETTINGS))
        self.V, self.M = aligned_zeros(*self.J.shape[1:]), aligned_zeros(*self.J.shape[1:])
        self.windows = aligned_zeros(2, 3, *self.J.shape[1:])  # [method, sort, state, lane]

    def run(self, learn: Any, run: int, steps: int, window: int) -> None:
        """Compute one run from its start."""
        self.V[:] = 0.0
        np.multiply(self.J[run], self.J[run], out=self.M)
        self.windows[:] = 0.0
        arrays = (self.alpha, self.J[run], self.V, self.M, self.truth, self.frozen[run])
        learn(
            ctypes.byref(self.walk.stream),
            *(ctypes.c_int64(number) for number in (run, steps, window)),
            *(ctypes.c_void_p(a.ctypes.data) for a in (*arrays, *self.windows)),
        )

    def timing(self, learn: Any, steps: int, window: int = 0) -> Callable[[], int]:
        """All runs, one after the other."""

        def run() -> int:
            for number in range(len(self.J)):
                self.run(learn, number, steps, window)
            return len(self.J) * steps * 2 * SETTINGS

        return run

    def check_agreement(self, learn: Any, steps: int, window: int) -> None:
        """Check that C without contraction and the engine give the same bits."""
        mdp, learners = experiment()
        record = rv.Record(at=[steps], window=window)
        data = rv.simulate(
            mdp, learners, steps=steps, runs=1, seed=SEED, record=record, keep="runs"
        ).isel(run=0)
        self.run(learn, 0, steps, window)
        tables = {"variance": self.V, "second_moment": self.M}
        for part, (name, table) in enumerate(tables.items()):
            half = data.isel(learner=slice(part * SETTINGS, (part + 1) * SETTINGS))
            assert np.array_equal(half[name].values[:, -1], table[:, :SETTINGS].T), name
            for sort, kind in enumerate(("", "_mse", "_mse_frozen")):
                expected = half["variance_window" + kind].values
                computed = (1.0 / window) * self.windows[part, sort, :, :SETTINGS].T
                # the variance for the frozen value is solved in another order
                same = np.allclose if kind == "_mse_frozen" else np.array_equal
                assert same(expected, computed), f"{name}, window{kind}"


def _lanes(settings: Any) -> Any:
    """Settings (the last axis) as lanes; padding repeats the first."""
    table = aligned_zeros(*settings.shape[:-1], LANES)
    table[:] = settings[..., :1]
    table[..., :SETTINGS] = settings
    return table


def compiled_lanes(*flags: str) -> ctypes.CDLL:
    """lanes.c, compiled for this machine."""
    return compiled_c("lanes", *flags, LANES=LANES, STATES=experiment()[0].n_states)


def gigahertz(library: ctypes.CDLL, count: int = 10_000_000) -> float:
    """Clock frequency: the highest of several measurements."""
    tick = functools.partial(library.ticks, ctypes.c_uint64(count))
    return max(count / _seconds(lambda _: tick(), 0) for _ in range(20)) / 1e9


# ---------------------------------------------------------------------- JAX


def run_jax(rows: bool, runs: int, steps: int) -> int:
    jax_program(rows, runs, steps)()
    return runs * steps * 2 * SETTINGS


class SeparateProcess:
    """A separate process that is bound to some cores."""

    def __init__(self, cores: Iterable[int]) -> None:
        self.pool = ProcessPoolExecutor(
            1, mp_context=SPAWN, initializer=_bind, initargs=(set(cores),)
        )

    def timing(self, rows: bool, runs: int, steps: int) -> Callable[[], int]:
        """The experiment in JAX, run in that process."""
        return lambda: self.pool.submit(run_jax, rows, runs, steps).result()


def _bind(cores: set[int]) -> None:
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.sched_setaffinity(0, cores)


# ---------------------------------------------------------------------- the paper's experiment

ROWS = {  # program: text, threads
    "class": ("NumPy class", "1"),
    "jax": ("JAX, vmap over lanes and runs", "its own"),
    "jax rows": ("JAX, lanes along rows, 8 steps unrolled", "its own"),
    "jax 1": ("JAX, vmap over lanes and runs", "one core"),
    "jax rows 1": ("JAX, lanes along rows, 8 steps unrolled", "one core"),
    "c": ("C", "1"),
    "c bits": ("C, the engine's bits", "1"),
    "c window": ("C, window", "1"),
    "c window bits": ("C, window, the engine's bits", "1"),
    "one": ("engine", "1"),
    "one loop": ("engine, without set-up", "1"),
    "two": ("engine", "2"),
    "two loop": ("engine, without set-up", "2"),
    "one window": ("engine, window", "1"),
    "one window loop": ("engine, window, without set-up", "1"),
    "two window": ("engine, window", "2"),
    "two window loop": ("engine, window, without set-up", "2"),
}


def timings(c: ctypes.CDLL, bits: ctypes.CDLL, runs: int, steps: int, window: int) -> Timing:
    """All programs compared on the paper's experiment."""
    cores = sorted(os.sched_getaffinity(0))
    many, single = SeparateProcess(cores), SeparateProcess(cores[:1])
    lanes = Lanes(runs)
    lanes.check_agreement(bits.learn, steps, window)
    size = (runs, min(JAX_STEPS, steps))
    found: Timing = {
        "class": frozen_class(),
        "jax": many.timing(False, *size),
        "jax rows": many.timing(True, *size),
        "jax 1": single.timing(False, *size),
        "jax rows 1": single.timing(True, *size),
        "c": lanes.timing(c.learn, steps),
        "c bits": lanes.timing(bits.learn, steps),
        "c window": lanes.timing(c.learn, steps, window),
        "c window bits": lanes.timing(bits.learn, steps, window),
    }
    for threads, name in ((1, "one"), (2, "two")):
        for kind, length in (("", 0), (" window", window)):
            found[name + kind] = engine(threads, length, runs=runs, steps=steps)
            found[f"{name}{kind} set-up"] = engine(threads, length, runs=runs, steps=1)
    return found | {"whole": engine(2, window, 100, runs, steps)}


def on_the_experiment(
    c: ctypes.CDLL, runs: int, steps: int, window: int, rounds: int
) -> tuple[list[str], Times]:
    """The table of the paper's experiment, and its timings."""
    times = Times(timings(c, compiled_lanes(CONTRACTION_OFF), runs, steps, window), rounds)
    for name in ("one", "two", "one window", "two window"):
        times.beyond(f"{name} loop", name, f"{name} set-up")
    lines = ["| | threads | per update | class/this |", "|---|---|---:|---:|"]
    for name, (text, threads) in ROWS.items():
        faster = times.faster("class", name)
        lines.append(f"| {text} | {threads} | {ns(times.cost(name))} | {faster:,.0f}× |")
    fixed = 1e3 * statistics.median(times.seconds["one window set-up"])
    whole = statistics.median(times.seconds["whole"])
    return [
        *lines,
        "",
        f"The set-up (lanes, exact solution, initial values of {runs} runs, the dataset) takes "
        f"{fixed:,.0f} ms a call. The whole experiment, {2 * SETTINGS} learners × {runs} runs × "
        f"{steps:,} steps with 100 points and the window recorded, takes {whole:,.2f} s on two "
        "threads.",
    ], times


def targets(times: Times, alone: float) -> list[str]:
    """The targets, and whether they are met."""
    rows = [
        ("NumPy class, two threads", times.faster("class", "two"), 15_000),
        ("NumPy class, one thread", times.faster("class", "one"), 15_000),
        ("JAX, two threads", times.faster("jax", "two"), 8),
        ("JAX, one core each", times.faster("jax 1", "one"), 8),
        ("JAX along rows, two threads", times.faster("jax rows", "two"), 8),
        ("JAX along rows, one core each", times.faster("jax rows 1", "one"), 8),
        ("C, the engine's bits", times.faster("c bits", "one"), 0.7),
        ("C, the engine's bits; without set-up", times.faster("c bits", "one loop"), 0.7),
        ("C", times.faster("c", "one"), 0.7),
        ("C; without set-up", times.faster("c", "one loop"), 0.7),
        (
            "C, window, the engine's bits; without set-up",
            times.faster("c window bits", "one window loop"),
            0.7,
        ),
        ("C, window; without set-up", times.faster("c window", "one window loop"), 0.7),
        ("one thread, on two", times.faster("one", "two"), 1.8),
        ("one thread, on two; without set-up", times.faster("one loop", "two loop"), 1.8),
        (
            "one thread, on two; window, without set-up",
            times.faster("one window loop", "two window loop"),
            1.8,
        ),
        ("NumPy class, one learner alone", alone, 300),
    ]
    lines = ["| engine against | times as fast | target | |", "|---|---:|---:|---|"]
    for name, found, target in rows:
        digits = 0 if target >= 100 else 1 if target >= 8 else 2
        word = "met" if found >= target else "NOT met"
        lines.append(f"| {name} | {found:,.{digits}f}× | {target:,}× | {word} |")
    return lines


def single_learner(steps: int, rounds: int) -> tuple[str, float]:
    """One direct learner whose value is learned, and how much faster than the class it is."""
    mdp, learner = rv.domains.complex_mdp(), rv.Direct(alpha=0.01)

    def run() -> int:
        rv.simulate(mdp, learner, steps=steps, runs=1, seed=SEED, threads=1, record=[steps])
        return steps

    times = Times({"class": numpy_class("direct", 0.0, 2_000), "engine": run}, rounds)
    faster = times.faster("class", "engine")
    text = (
        f"One direct learner that learns its value, one run of {steps:,} steps: "
        f"{ns(times.cost('engine'))} an update, the class {ns(times.cost('class'))}; "
        f"{faster:,.0f}× as fast. Most of it is drawing the next state: a step has to wait for the "
        "state of the previous one."
    )
    return text, faster


def operation_counts(clock: float, cost: float) -> list[str]:
    """Operations and bytes of an update, counted by hand from rules.py, value frozen and η = 1."""
    cycles = 10 / 2 / 4 / 2  # multiplications (or additions): two units of four, two updates
    bound = cycles / clock
    return [
        "| of a lane, at a step | direct | VTD | both |",
        "|---|---:|---:|---:|",
        "| multiplications | δ: 1, δ²: 1, δ̄: 1, V: 1 | Ḡ: 1, R̄: 3, δ̄: 1, M: 1 | 10 |",
        "| additions | δ: 2, δ̄: 2, V: 1 | Ḡ: 1, R̄: 1, δ̄: 2, M: 1 | 10 |",
        "| doubles read | J, J′, V, V′, ᾱ: 5 | J′, M, M′, ᾱ: 4 | 7 |",
        "| doubles written | V: 1 | M: 1 | 2 |",
        "",
        f"The tables of 5 states and {LANES} lanes (value, V and M) take "
        f"{3 * 5 * LANES * 8 / 1024:.1f} KiB and stay in the nearest cache, which moves 72 bytes "
        "for the two updates of a lane. A core that starts two multiplications and two additions "
        "of four doubles, two loads and a store per cycle (Zen 3 and 4) is bound by arithmetic: "
        f"{cycles:.3f} cycles an update against {7 / 2 / 4 / 2:.3f} for the loads and "
        f"{2 / 4 / 2:.3f} for the stores. At the {clock:.2f} GHz measured that is {bound:.3f} ns; "
        f"the engine's {cost:.3f} ns are {cost / bound:.1f} times as much. The difference is "
        "drawing the edge and waiting for its next state.",
    ]


# ---------------------------------------------------------------------- how cost grows


def direct_lanes(count: int, **settings: Any) -> list[rv.Learner]:
    """Direct learners with distinct step sizes, so that no value node is shared."""
    shares = (1 + np.arange(count)) / (1 + count)
    return [
        rv.Direct(alpha=0.01 * share, alpha_bar=0.02 * share, **settings)
        for share in shares.tolist()
    ]


def stepping(mdp: rv.MDP, learners: list[rv.Learner], **options: Any) -> Callable[[int], int]:
    """A function of the number of steps: one run on one thread, recorded at its end."""

    def run(steps: int) -> int:
        record = rv.Record(at=[steps], states=[0])
        settings = {"runs": 1, "seed": SEED, "threads": 1, "truth": False, **options}
        rv.simulate(mdp, learners, steps=steps, record=record, **settings)
        return steps * len(learners)

    return run


def by_lanes(most: int) -> list[str]:
    mdp = rv.domains.complex_mdp()
    counts = [2**k for k in range(13) if 2**k <= most]
    return cost_table("learners", {f"{n:,}": stepping(mdp, direct_lanes(n)) for n in counts})


def by_states(most: int) -> list[str]:
    learners = direct_lanes(8)
    cases = {}
    for n in (5, 100, 1_000, 10_000, 100_000, 1_000_000):
        if n <= most:
            mdp = rv.domains.random_mdp(n, 1, 3, seed=0, gamma=0.9, lam=0.9, reward_std=0.0)
            cases[f"{n:,}"] = stepping(mdp, learners)
    return cost_table("states", cases)


def by_features() -> list[str]:
    mdp, rng, cases = rv.domains.random_walk(30), np.random.default_rng(SEED), {}
    for size in (2, 8, 32, 128):
        table = rng.normal(size=(30, size)) / size
        cases[str(size)] = stepping(mdp, direct_lanes(8, kappa_bar=0.9), features=table)
    return cost_table("features", cases)


def by_traces() -> list[str]:
    mdp = rv.domains.complex_mdp()
    return cost_table(
        "κ = κ̄",
        {
            f"{kappa:g}": stepping(mdp, direct_lanes(LANES, kappa=kappa, kappa_bar=kappa))
            for kappa in (0.0, 0.9)
        },
    )


def by_runs(total: int, most: int) -> list[str]:
    """The cost by number of runs, with `total` steps in all; each case in a separate process."""
    lines = [
        "| runs | steps of each | per update | peak memory grows by |",
        "|---:|---:|---:|---:|",
    ]
    growths = []
    for runs in (1, 10, 100, 1_000, 10_000):
        if runs > most:
            break
        with ProcessPoolExecutor(1, mp_context=SPAWN) as pool:
            cost, growth = pool.submit(many_runs, runs, total // runs).result()
        growths.append(growth)
        lines.append(f"| {runs:,} | {total // runs:,} | {ns(cost)} | {growth:,.1f} MiB |")
    word = "met" if max(growths) * MEBIBYTE < 100e6 else "NOT met"
    return [*lines, "", f"Memory that grows by less than 100 MB is {word}."]


def many_runs(runs: int, steps: int) -> tuple[float, float]:
    """Nanoseconds per update of the experiment, and growth of memory in MiB."""
    engine(2, WINDOW, 1, 2, 64)()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak
    before = memory("VmRSS")
    began = time.perf_counter()
    updates = engine(2, WINDOW, 1, runs, steps)()
    seconds = time.perf_counter() - began
    return 1e9 * seconds / updates, memory("VmHWM") - before


def memory(field: str) -> float:
    """Current (VmRSS) or peak (VmHWM) memory of this process in MiB."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(rf"{field}:\s+(\d+) kB", status)
    assert found, field
    return int(found[1]) / 1024


# ---------------------------------------------------------------------- the page


def section(rounds: int = ROUNDS, runs: int = RUNS, steps: int = STEPS, most: int = 10**6) -> str:
    """The section of benchmarks/results.md about `simulate`; `most` bounds the sizes of cases."""
    c, window = compiled_lanes(), min(WINDOW, steps)
    table, times = on_the_experiment(c, runs, steps, window, rounds)
    alone, alone_faster = single_learner(1_000_000, rounds)
    lines = [
        "## The engine",
        "",
        f"The paper's value-error experiment on the complex MDP: the value frozen at j with a "
        f"uniform error ({len(RATIOS)} sizes), {len(ALPHAS)} step sizes, the direct learner and "
        f"VTD, {runs} runs of {steps:,} steps. Cost of one learner's update, whole calls of "
        "`simulate`; `window` also sums estimates and squared errors over the last "
        f"{window:,} steps. The NumPy class is `tests/reference.py`. JAX uses 64-bit numbers, its "
        f"compilation is not counted, and it runs {min(JAX_STEPS, steps):,} of the steps; it draws "
        "uniform numbers before the scan and edges in it, which is fastest. C is "
        f"`benchmarks/lanes.c`, `gcc -O3 -march=native`, {LANES} lanes fixed at compile time; "
        "with `-ffp-contract=off` its results equal the engine's to the bit, which is "
        f"checked. All are timed alternately; medians of {rounds} rounds. The machine has "
        f"{usable_threads()} cores.",
        "",
        *table,
        "",
        *targets(times, alone_faster),
        "",
        alone,
        "",
        "**Operations of an update**, counted by hand:",
        "",
        *operation_counts(gigahertz(c), times.cost("one loop")),
        "",
        "**With traces and with features**, one run on one thread, against C programs for this "
        "purpose alone: `benchmarks/traces.c` updates the weight and the trace of every state of "
        "every learner at each step, `benchmarks/features.c` has the sizes of the features fixed "
        "at compile time. With `-ffp-contract=off` their results equal the engine's to the bit, "
        "which is checked. The ratio is that of the engine without its set-up to C.",
        "",
        *compare(rounds, min(1.0, steps / STEPS)),
        "",
        "**How the cost grows.** Direct learners with separate value nodes, one run on one thread. "
        "The cost of an update is the difference between long and short runs; set-up is the rest.",
        "",
        "Learners, on the complex MDP:",
        "",
        *by_lanes(most),
        "",
        "States of a random MDP, 8 learners:",
        "",
        *by_states(most),
        "",
        "Dense features on the random walk of 30 states, 8 learners, κ̄ = 0.9:",
        "",
        *by_features(),
        "",
        f"Traces, on the complex MDP, {LANES} learners:",
        "",
        *by_traces(),
        "",
        "Runs of the value-error experiment with window, with a constant total number of steps, "
        "whole calls on two threads:",
        "",
        *by_runs(min(4 * most, 4_000_000), most),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    options = document.options(
        __doc__,
        rounds=(ROUNDS, "number of rounds"),
        runs=(RUNS, "runs of the paper's experiment"),
        steps=(STEPS, "steps of each run"),
        most=(10**6, "largest number of states, runs and learners"),
    )
    text = section(options.rounds, options.runs, options.steps, options.most)
    document.publish(text, options.out, options.append)


if __name__ == "__main__":
    main()
