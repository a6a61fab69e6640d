"""Simulations on a GPU have the CPU's bits: random cases on few compiled kernels.

python -m tests.gpu_cases 300

Needs an NVIDIA GPU. Each family has one kernel; its cases differ in seeds, runs, lengths, step
sizes and MDPs. In the simulator, tests/test_gpu.py tries other kernels, a new one for each case.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np

import retvar as rv
from tests import fixed_cases
from tests.fixed_cases import Case, bits, made_mdp

OFF = {"target": "pi", "behaviour": "mu"}
ALL = {"window": 40, "rmse": True, "change": True, "step_sizes": True}


def differing(one: Any, other: Any) -> list[str]:
    """Names of variables whose bits differ between two datasets."""
    assert set(one.data_vars) == set(other.data_vars)
    return [name for name in one.data_vars if bits(one[name]) != bits(other[name])]


def varied(make: Callable[[], Case], rng: np.random.Generator) -> Case:
    """A fixed case with another seed, length, number of runs, and smaller steps."""
    case, factor = make(), float(rng.uniform(0.3, 1.0))
    total = int(rng.integers(60, 300)) if "steps" in case.length else int(rng.integers(20, 60))
    at = sorted({0, total, *rng.integers(0, total, 5).tolist()})
    learners = [
        learner.replace(alpha_bar=learner.alpha_bar * factor)
        if isinstance(learner.alpha_bar, float) else learner
        for learner in case.learners
    ]  # fmt: skip
    record = {**case.record, "at": at}
    return replace(
        case, learners=learners, length={next(iter(case.length)): total}, record=record,
        runs=int(rng.integers(2, 70)), seed=int(rng.integers(2**63)),
    )  # fmt: skip


def made(
    learners: Callable[[np.random.Generator, int], list], states: int = 5, **settings: Any
) -> Callable[[np.random.Generator], Case]:
    """A family on random MDPs; `settings` are those of `make` below."""

    def make(rng: np.random.Generator) -> Case:
        ends, noisy = settings.get("ends", False), settings.get("noisy", False)
        mdp = made_mdp(rng, states, 2, ends, noisy)
        record = settings.get("record", {"window": 40})
        case = Case(mdp, learners(rng, states), {"steps": 200}, 3, 0, settings.get("policies", {}))
        if "features" in settings:
            tables = {"features": rng.normal(size=(states, settings["features"])) / 3}
            case = replace(case, features=tables)
        return varied(lambda: replace(case, record=record), rng)

    return make


def plain(*kinds: Any, count: int = 1, **settings: Any) -> Callable[..., list]:
    def learners(rng: np.random.Generator, states: int) -> list:
        bars = rng.uniform(0.01, 0.3, count).tolist()
        return rv.grid(*kinds, alpha_bar=bars, **{"alpha": 0.1, **settings})

    return learners


def noisy_start(*kinds: Any, count: int = 3) -> Callable[..., list]:
    def learners(rng: np.random.Generator, states: int) -> list:
        starts = [rv.Noisy(rng.normal(size=states), uniform=x, normal=0.1) for x in (0.1, 0.4)]
        bars = rng.uniform(0.01, 0.3, count).tolist()
        return rv.grid(*kinds, alpha=0.0, value=starts, alpha_bar=bars, learn_value=False)

    return learners


METHODS = (rv.Direct, rv.VTD, rv.Centred)
FAMILIES: dict[str, Callable[[np.random.Generator], Case]] = {
    name: (lambda rng, make=make: varied(make, rng))
    for name, make in fixed_cases.FIXED_CASES.items()
} | {
    "one learner": made(plain(rv.Direct)),
    "54 lanes": made(noisy_start(rv.Direct, rv.VTD, count=27)),
    "three methods": made(plain(*METHODS, count=9)),
    "everything": made(plain(*METHODS, count=3), record=ALL),
    "noise": made(plain(*METHODS, count=2), noisy=True, ends=True),
    "fourth moment": made(plain(rv.Direct, rv.Centred, count=3, order=4), policies=OFF),
    "fourth moment, traces": made(
        plain(rv.Direct, count=2, order=4, kappa=0.5, kappa_bar=0.3), record=ALL
    ),
    "frozen, off-policy": made(noisy_start(*METHODS), policies=OFF, noisy=True),
    "many states": made(plain(rv.Direct, rv.VTD, count=20), states=70),
    "many states, divergence": made(plain(*METHODS, count=9, alpha=1e60), states=70, record=ALL),
    "many states, traces": made(plain(rv.Direct, count=3, kappa=0.9, kappa_bar=0.8), states=70),
    "one learner, traces": made(plain(rv.Direct, kappa=0.9, kappa_bar=0.9)),
    "traces, all methods": made(
        plain(*METHODS, count=3, kappa=0.7, kappa_bar=0.4), policies=OFF, record=ALL
    ),
    "weighted return, traces": made(
        plain(*METHODS, count=2, kappa=0.7, kappa_bar=0.4, estimand="off_policy_return"),
        policies=OFF, ends=True,
    ),
    "features, all methods": made(
        plain(*METHODS, count=3, kappa=0.7, kappa_bar=0.4), features=4, record=ALL
    ),
    "many features": made(plain(*METHODS, count=3), features=20, ends=True),
    "own discounts": made(
        lambda rng, n: [
            learner for gamma, lam in ((0.5, 0.9), (0.9, None), (None, 0.3))
            for learner in rv.grid(*METHODS, alpha=0.1, gamma=gamma, lam=lam, alpha_bar=[0.1, 0.2])
        ]
    ),
    "divergence": made(plain(*METHODS, count=3, alpha=3.0), record=ALL),
    "bounded": made(plain(rv.Direct, alpha=rv.AlphaBound(0.9), kappa=0.8, kappa_bar=0.1)),
}  # fmt: skip


REFUSED = ("features", "frozen_features", "many states, traces", "many features")  # > 16 weights
UNDIVIDED = ("one learner", "54 lanes", "three methods", "fourth moment", "one learner, traces")


def check(name: str, number: int) -> str:
    """Compare one case; the empty text if all bits are equal."""
    rng = np.random.default_rng([number, *name.encode()])
    case, keep = FAMILIES[name](rng), "runs" if number % 2 else "stats"
    first_run = int(rng.integers(0, 1_000)) if not starts_are_given(case) else 0
    one = case.simulate(keep=keep, first_run=first_run)
    other = case.simulate(keep=keep, first_run=first_run, device="cuda")
    assert other.attrs["device"] == "cuda"
    found = differing(one, other)
    return f"{name} {number}, keep={keep!r}: {', '.join(found)}" if found else ""


def fused(names: tuple[str, ...]) -> list[str]:
    """Families without division and roots whose machine code has a fused multiply-add."""
    from retvar.simulation import cuda_runner

    found, launch = [], cuda_runner.BlockRunner.launch
    for name in names:
        kernels: list[Any] = []

        def noted(runner: Any, runs: range, kernels: list[Any] = kernels) -> None:
            launch(runner, runs)
            kernels.append(runner.kernel)

        with mock.patch.object(cuda_runner.BlockRunner, "launch", noted):
            FAMILIES[name](np.random.default_rng(0)).simulate(device="cuda")
        for kernel in kernels:
            code = "".join(kernel.inspect_sass().values())
            assert "DMUL" in code
            found += [name] if "DFMA" in code or "FFMA" in code else []
    return found


def starts_are_given(case: Case) -> bool:
    return any(isinstance(x, rv.PerRun) for d in case.learners for x in vars(d).values())


def check_family(given: tuple[str, int]) -> tuple[str, list[str], float]:
    """Compare all cases of a family."""
    name, count = given
    before, found = time.perf_counter(), []
    for number in range(count):
        try:
            found.append(check(name, number))
        except Exception as error:
            found.append(f"{name} {number}: {type(error).__name__}: {str(error)[:2_000]}")
            break
    return name, [text for text in found if text], time.perf_counter() - before


def main(examples: int, chosen: list[str]) -> int:
    """Compare `examples` cases, spread over the families; the number that differ."""
    names = [n for n in FAMILIES if n not in REFUSED and (not chosen or n in chosen)]
    each = -(-examples // len(names))
    failed = 0
    processes = min(len(names), max(1, (os.cpu_count() or 1) - 1))
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=4) as pool:
        for name, found, seconds in pool.imap_unordered(
            check_family, [(name, each) for name in names]
        ):
            verdict = "; ".join(found) or f"{each} cases, all bits equal"
            sys.stdout.write(f"{name}: {verdict} ({seconds:.0f} s)\n")
            sys.stdout.flush()
            failed += len(found)
    contracted = fused(UNDIVIDED)
    sys.stdout.write(f"{each * len(names)} cases, {len(names)} kernels, {failed} differ\n")
    sys.stdout.write(f"fused multiply-adds in: {', '.join(contracted) or 'none'} of {UNDIVIDED}\n")
    return failed + len(contracted)


if __name__ == "__main__":
    sys.exit(1 if main(int(sys.argv[1]), sys.argv[2:]) else 0)
