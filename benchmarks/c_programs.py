"""The engine against C programs that are written for one purpose each: traces.c and features.c.

Both sides learn from the same random numbers. Before anything is timed, the C programs without
contraction of multiply-adds must give the engine's estimates, bit for bit. Needs gcc.
"""

import ctypes
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import document
import retvar as rv
from retvar.paper.experiments import random_walk
from retvar.simulation.streams import stream_of
from retvar.td.block import aligned_zeros
from timing import Times, ns

CONTRACTION_OFF = "-ffp-contract=off"
LANES = 56
KAPPA = 0.9
SEED = 0
ROUNDS = 7
STEPS = {"traces": 400_000, "features": 3_000_000}
FEW_STEPS = 64  # for the set-up
TARGETS = {"traces": 1.5, "features": 2.0}  # times as long as C


class Stream(ctypes.Structure):
    """The edges in the layout of walk.h."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("first", "fan", "threshold", "other", "next")),
        *((name, ctypes.c_void_p) for name in ("reward", "gamma", "lambda")),
        ("start", ctypes.c_int64),
        ("seed", ctypes.c_uint64),
    ]


class Walk:
    """The walk through an MDP with one start state, for a C program; keeps its arrays alive."""

    def __init__(self, mdp: rv.MDP, seed: int) -> None:
        stream, used = stream_of(mdp, seed=seed)
        e = mdp.edges
        lam = np.broadcast_to(mdp.lam, mdp.n_states)[e.next_state[used]]
        self.columns = [
            stream.first, stream.fan, stream.threshold, stream.other, stream.next_state,
            stream.reward, e.gamma[used].copy(), lam.copy(),
        ]  # fmt: skip
        (start,) = np.flatnonzero(mdp.start)
        self.stream = Stream(*(c.ctypes.data for c in self.columns), int(start), seed)


def compiled_c(name: str, *flags: str, **sizes: int) -> ctypes.CDLL:
    """A C program of this folder, compiled for this machine."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, f"{name}.so")
        macros = (f"-D{macro}={size}" for macro, size in sizes.items())
        options = ("-O3", "-march=native", "-shared", "-fPIC", *flags, *macros)
        source = Path(__file__).with_name(f"{name}.c")
        subprocess.run(["gcc", *options, "-o", library, source], check=True)
        return ctypes.CDLL(str(library))


def pointers(*arrays: Any) -> tuple[ctypes.c_void_p, ...]:
    """Where NumPy arrays begin."""
    return tuple(ctypes.c_void_p(array.ctypes.data) for array in arrays)


class Traces:
    """Direct learners with traces and step sizes of their own, on the complex MDP (traces.c)."""

    name = "traces"
    text = f"{LANES} direct learners, κ = κ̄ = {KAPPA:g}, complex MDP"
    unit = "an update"
    per_step = LANES

    def __init__(self) -> None:
        self.mdp = rv.domains.complex_mdp()
        shares = (1 + np.arange(LANES)) / (1 + LANES)
        self.learners: Any = [
            rv.Direct(alpha=0.01 * share, alpha_bar=0.02 * share, kappa=KAPPA, kappa_bar=KAPPA)
            for share in shares.tolist()
        ]
        self.features: dict[str, Any] = {}
        self.walk = Walk(self.mdp, SEED)
        self.settings = aligned_zeros(4, LANES)  # α, ᾱ, κ, κ̄
        self.settings[0] = [learner.alpha for learner in self.learners]
        self.settings[1] = [learner.alpha_bar for learner in self.learners]
        self.settings[2:] = KAPPA
        self.tables = aligned_zeros(4, self.mdp.n_states, LANES)  # J, V and their traces

    def compiled(self, *flags: str) -> Any:
        """The C function."""
        return compiled_c("traces", *flags, LANES=LANES, STATES=self.mdp.n_states).learn

    def run(self, learn: Any, steps: int) -> None:
        """Learn from the start."""
        self.tables[:] = 0.0
        learn(
            ctypes.byref(self.walk.stream), ctypes.c_int64(0), ctypes.c_int64(steps),
            *pointers(*self.settings, *self.tables),
        )  # fmt: skip

    def learned(self) -> dict[str, Any]:
        """The estimates of the C program [learner, state], by name."""
        return {"value": self.tables[0].T, "variance": self.tables[1].T}


class Features:
    """The three learners of the paper's random walk with linear features (features.c)."""

    name = "features"
    unit = "a step"
    per_step = 1

    def __init__(self) -> None:
        paper = random_walk()[0].simulations[0]
        self.mdp, self.learners, self.features = paper.mdp, paper.learners, paper.features
        self.walk = Walk(self.mdp, SEED)
        learner = paper.learners["direct"]
        settings = learner.alpha, learner.alpha_bar, learner.kappa, learner.kappa_bar
        self.settings = np.array(settings, dtype=float)
        end = ((0, 1), (0, 0))  # a row of zeros for the end of an episode
        self.few = np.pad(self.features["value_features"], end)
        self.many = np.pad(self.features["features"], end)
        self.nodes = np.zeros((5, 2 * self.many.shape[1] + 1))
        self.text = (
            f"direct, VTD and centred, random walk, {self.few.shape[1]} and "
            f"{self.many.shape[1]} features, κ = κ̄ = {learner.kappa:g}"
        )

    def compiled(self, *flags: str) -> Any:
        """The C function."""
        few, many = self.few.shape[1], self.many.shape[1]
        return compiled_c("features", *flags, STATES=self.mdp.n_states, FEW=few, MANY=many).learn

    def run(self, learn: Any, steps: int) -> None:
        """Learn from the start."""
        self.nodes[:] = 0.0
        learn(
            ctypes.byref(self.walk.stream), ctypes.c_int64(0), ctypes.c_int64(steps),
            *pointers(self.settings, self.few, self.many, self.nodes),
        )  # fmt: skip

    def learned(self) -> dict[str, Any]:
        """The estimates of the C program [learner, state], by name."""
        value, _, direct, moment, centred = (
            predictions(table, weights)
            for table, weights in zip(
                (self.few, self.few, self.many, self.many, self.many), self.nodes, strict=True
            )
        )
        by_method = {"direct": direct, "vtd": moment - value * value, "centred": centred}
        return {
            "value": np.array([value] * len(self.learners)),
            "variance": np.array([by_method[name] for name in self.learners]),
        }


def predictions(table: Any, weights: Any) -> Any:
    """Predictions of all states, summed in the order of the features."""
    found = np.zeros(len(table) - 1)
    for column, weight in zip(table[:-1].T, weights, strict=False):
        found += column * weight
    return found


Program = Traces | Features


def simulate(program: Program, steps: int) -> Any:
    """The same learners in the engine: one run on one thread, recorded at its end."""
    return rv.simulate(
        program.mdp, program.learners, steps=steps, runs=1, seed=SEED, threads=1, truth=False,
        record=rv.Record(at=[steps]), keep="runs", **program.features,
    )  # fmt: skip


def check_agreement(program: Program, steps: int) -> None:
    """Check that C without contraction and the engine give the same bits."""
    program.run(program.compiled(CONTRACTION_OFF), steps)
    data = simulate(program, steps).isel(run=0)
    for name, computed in program.learned().items():
        expected = data[name].values[:, -1]
        assert np.isfinite(expected).all(), f"{program.name}: {name}"
        assert np.array_equal(expected, computed), f"{program.name}: {name}"


def timing(program: Program, run: Callable[[int], object], steps: int) -> Callable[[], int]:
    """A run of so many steps, for `Times`."""

    def once() -> int:
        run(steps)
        return steps * program.per_step

    return once


def compare(rounds: int = ROUNDS, share: float = 1.0) -> list[str]:
    """A table of the engine's cost beside that of C; `share` shortens the runs."""
    lines = [
        "| | C | C, the engine's bits | engine | engine, with set-up | engine/C | target | |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for program in (Traces(), Features()):
        steps = max(1_000, int(share * STEPS[program.name]))
        check_agreement(program, steps)
        learn, bits = program.compiled(), program.compiled(CONTRACTION_OFF)
        runs = {
            "c": timing(program, partial(program.run, learn), steps),
            "bits": timing(program, partial(program.run, bits), steps),
            "engine": timing(program, partial(simulate, program), steps),
            "set-up": timing(program, partial(simulate, program), FEW_STEPS),
        }
        times = Times(runs, rounds)
        times.beyond("loop", "engine", "set-up")
        slower, target = times.faster("loop", "c"), TARGETS[program.name]
        costs = (ns(times.cost(name)) for name in ("c", "bits", "loop", "engine"))
        lines.append(
            f"| {program.text}: {program.unit} | {' | '.join(costs)} | {slower:.2f} | "
            f"{target:g} | {'met' if slower <= target else 'NOT met'} |"
        )
    return lines


def main() -> None:
    options = document.options(__doc__, rounds=(ROUNDS, "number of rounds"))
    document.publish("\n".join(compare(options.rounds)), options.out, options.append)


if __name__ == "__main__":
    main()
