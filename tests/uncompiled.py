"""The properties of tests/cases.py in plain Python, without compilation.

NUMBA_DISABLE_JIT=1 python -W ignore::RuntimeWarning -m tests.uncompiled bits 100
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import retvar as rv
from retvar.online import memory
from retvar.simulation import blocks, cuda_device
from tests import cases, fixed_cases, gpu_cases


def bits(examples: int) -> None:
    """One run equals the online learner, for any simulation."""

    @settings(max_examples=examples)
    @given(cases.cases(), st.sampled_from([0, blocks.FEW]))
    def holds(case, few):  # with 0 all weights are listed
        with mock.patch.object(blocks, "FEW", few), mock.patch.object(memory, "FEW", few):
            cases.check(case)

    holds()


def invariance(examples: int) -> None:
    """Threads, batches, order and other learners do not matter, for any simulation."""

    @settings(max_examples=examples)
    @given(cases.cases(longest=20), st.data())
    def holds(case, data):
        cases.check_invariance(case, data.draw)

    holds()


def fixed(_: int) -> None:
    """All fixed cases; faded traces, errors too large to be squared, other learners."""
    for name in set(fixed_cases.FIXED_CASES) - set(fixed_cases.COMPILED):
        cases.check(fixed_cases.FIXED_CASES[name]())
    cases.check(fixed_cases.faded())
    data = cases.check(fixed_cases.poisoned())
    assert data.diverged.values.tolist() == [1, 0, 1]
    cases.check(fixed_cases.shared_steps())
    data = cases.check(fixed_cases.other_learners())
    for name in data.data_vars:
        one, other = (data[name].isel(learner=k) for k in range(2))
        assert cases.bits(one) == cases.bits(other), name


def gpu(examples: int) -> None:
    """The kernels of a GPU, in numba's simulator, have the CPU's bits, for any simulation."""
    keeps = itertools.cycle(["runs", "runs", "stats"])

    @settings(max_examples=examples)
    @given(cases.cases(longest=12))
    def holds(case):
        with contextlib.suppress(rv.InputError):  # more than 16 weights with features or traces
            same_on_a_gpu(case, next(keeps))

    holds()


def same_on_a_gpu(case: cases.Case, keep: str) -> None:
    one, other = (case.simulate(keep=keep, device=device) for device in ("cpu", "cuda"))
    assert other.attrs["device"] == "cuda"
    assert not gpu_cases.differing(one, other), keep


def gpu_families(_: int) -> None:
    """The same for each family of cases that a GPU is tested with: few states, lanes and steps."""
    for name in gpu_cases.FAMILIES:
        if name in gpu_cases.REFUSED:
            with pytest.raises(rv.InputError, match=r"device = 'cuda' with \d+ weights"):
                short(name).simulate(device="cuda")
        else:
            same_on_a_gpu(short(name), "runs")
    for alphas in ({"alpha": rv.Averaged(0.5)}, {"alpha": 0.1, "alpha_bar": rv.Averaged(0.5)}):
        learners = [rv.Direct(**alphas), rv.Centred(**alphas, order=4)]  # behind an end lies 0
        learners.append(rv.VTD(**alphas, kappa=0.5))  # … also of a trace
        case = cases.Case(rv.domains.chain(), learners, {"episodes": 3}, 2, 0, {})
        same_on_a_gpu(case, "runs")
    record = {"at": [0, 20], "window": 10, "change": True, "rmse": True}
    for kappa, states in ((0.0, 18), (0.5, 14)):  # totals over states; on the CPU lanes are padded
        learner = rv.Direct(alpha=0.1, alpha_bar=0.1, kappa=kappa, kappa_bar=kappa)
        mdp = rv.domains.random_mdp(states, seed=0)
        case = cases.Case(mdp, [learner], {"steps": 20}, 3, 0, {}, record=record)
        for keep in ("runs", "stats"):
            same_on_a_gpu(case, keep)


def short(family: str) -> cases.Case:
    """A short simulation of a family."""
    case = gpu_cases.FAMILIES[family](np.random.default_rng([*family.encode()]))
    length = {next(iter(case.length)): 6}
    record = {**case.record, "at": [0, 2, 6], "window": min(4, case.record.get("window", 0))}
    return replace(case, learners=case.learners[:3], runs=2, length=length, record=record)


def gpu_failure(_: int) -> None:
    """An error of the driver is a typed one; the next simulation tries again."""
    from retvar.simulation import cuda_runner  # needs a GPU or the simulator

    case = short("one learner")
    before = case.simulate(device="cuda")
    failure = cuda_device.failures()[0]

    def failing(*_: object) -> None:
        raise failure("an illegal memory access")

    with (
        mock.patch.object(cuda_runner.BlockRunner, "launch", failing),
        pytest.raises(rv.DeviceError, match=r"the GPU failed: .*illegal.*device='cpu'"),
    ):
        case.simulate(device="cuda")
    assert not gpu_cases.differing(before, case.simulate(device="cuda"))


def digests(_: int) -> None:
    """Print the digests of the simulations that are compiled too."""
    made = fixed_cases.FIXED_CASES
    found = {name: cases.digest(made[name]().simulate()) for name in fixed_cases.COMPILED}
    sys.stdout.write(json.dumps(found))


def run(what: str, examples: int = 0, **more: str) -> str:
    """Run one of the above in a process of plain Python; `more` is its environment."""
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(
        [sys.executable, "-W", "ignore::RuntimeWarning", "-m", "tests.uncompiled", what,
         str(examples)],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1", **more}, cwd=root, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-8_000:]
    return done.stdout


if __name__ == "__main__":
    settings.register_profile(
        "plain", deadline=None, print_blob=True, database=None,
        phases=[Phase.generate, Phase.shrink], suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    settings.load_profile("plain")
    parts = (bits, invariance, fixed, digests, gpu, gpu_families, gpu_failure)
    {f.__name__: f for f in parts}[sys.argv[1]](int(sys.argv[2]))
