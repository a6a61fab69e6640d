"""The properties of tests/cases.py in plain Python, without compilation.

NUMBA_DISABLE_JIT=1 python -W ignore::RuntimeWarning -m tests.uncompiled bits 100
"""

from __future__ import annotations

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
from retvar.engine import blocks, cuda_device
from tests import cases, fixed_cases, gpu_cases


def bits(examples: int) -> None:
    """One run equals the online learner, for any simulation."""

    @settings(max_examples=examples)
    @given(cases.cases(), st.sampled_from([0, blocks.MOST_WEIGHTS]))
    def holds(case, most):  # with 0 nothing is dense
        with mock.patch.object(blocks, "MOST_WEIGHTS", most):
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
    """Rare cases: faded traces, errors too large to be squared, other learners, few features."""
    cases.check(fixed_cases.faded())
    data = cases.check(fixed_cases.poisoned())
    assert data.diverged.values.tolist() == [1, 0, 1]
    cases.check(fixed_cases.shared_steps())
    cases.check(replace(fixed_cases.few_features(), length={"steps": 60}, runs=1))
    data = cases.check(fixed_cases.other_learners())
    for name in data.data_vars:
        one, other = (data[name].isel(learner=k) for k in range(2))
        assert cases.bits(one) == cases.bits(other), name


def gpu(examples: int) -> None:
    """The kernels of a GPU, in numba's simulator, have the CPU's bits, for any simulation."""
    keeps = itertools.cycle(["runs", "runs", "stats"])

    @settings(max_examples=examples)
    @given(cases.cases(longest=12), st.sampled_from([0, blocks.MOST_WEIGHTS]))
    def holds(case, most):  # with 0 nothing is dense
        with mock.patch.object(blocks, "MOST_WEIGHTS", most):
            same_on_a_gpu(case, next(keeps))

    holds()


def same_on_a_gpu(case: cases.Case, keep: str) -> None:
    one, other = (case.simulate(keep=keep, device=device) for device in ("cpu", "cuda"))
    assert other.attrs["device"] == "cuda"
    assert not gpu_cases.differing(one, other), keep


def gpu_families(_: int) -> None:
    """The same for each family of cases that a GPU is tested with: few states, lanes and steps."""
    for name in gpu_cases.FAMILIES:
        same_on_a_gpu(short(name), "runs")


def short(family: str) -> cases.Case:
    """A short simulation of a family."""
    case = gpu_cases.FAMILIES[family](np.random.default_rng([*family.encode()]))
    length = {next(iter(case.length)): 6}
    record = {**case.record, "at": [0, 2, 6], "window": min(4, case.record.get("window", 0))}
    return replace(case, learners=case.learners[:3], runs=2, length=length, record=record)


def gpu_ends(_: int) -> None:
    """Averaged weights where episodes end: what lies behind the end is 0, not what memory held."""
    for settings_ in ({"alpha": rv.Averaged(0.5)}, {"alpha": 0.1, "alpha_bar": rv.Averaged(0.5)}):
        learners = [rv.Direct(**settings_), rv.Centred(**settings_, order=4)]
        case = cases.Case(rv.domains.chain(), learners, {"episodes": 3}, 2, 0, {})
        same_on_a_gpu(case, "runs")


def gpu_totals(_: int) -> None:
    """Totals over many states with one lane; on the CPU lanes are padded."""
    mdp = rv.domains.random_mdp(18, seed=0)
    record = {"at": [0, 20], "window": 10, "change": True, "rmse": True}
    for kappa in (0.0, 0.5):
        learner = rv.Direct(alpha=0.1, alpha_bar=0.1, kappa=kappa, kappa_bar=kappa)
        case = cases.Case(mdp, [learner], {"steps": 20}, 3, 0, {}, record=record)
        for keep in ("runs", "stats"):
            same_on_a_gpu(case, keep)


def gpu_single(_: int) -> None:
    """In single precision results are near those in double precision, and are not the same."""
    same = []
    for name in gpu_cases.FAMILIES:
        case = short(name)
        one, other = case.simulate(), case.simulate(device="cuda", dtype="float32")
        assert other.attrs["dtype"] == "float32"
        if other.diverged.any():  # the limit is lower
            continue
        for row in ("value", "variance"):
            x, y = one[row].values, other[row].values
            np.testing.assert_allclose(y, x, rtol=3e-5, atol=3e-5 * np.nanmax(np.abs(x)))
            same.append(np.array_equal(x, y, equal_nan=True))
    assert len(same) > len(gpu_cases.FAMILIES)
    assert np.mean(same) < 0.3


def gpu_moments(_: int) -> None:
    """Statistics over runs, in batches of any size, of runs that may have diverged."""
    device, rng = cuda_device.Device(), np.random.default_rng(0)
    from retvar.engine import cuda_fold  # once numba's simulator is loaded

    for states in (1, 3):
        x = rng.normal(5.0, size=(30, 2, states, 3))
        x[rng.random(x.shape) < 0.1] = np.nan
        x[:, 0, :, 0] = np.nan  # all of them
        moments = cuda_fold.DeviceMoments(device, 2, 3)
        for batch in np.split(x, [1, 8, 17, 29]):  # 1, 7, 9, 12 and 1 runs
            moments.add(batch, len(batch))
        found, total = moments.moments((2, 3)), x.sum(axis=2)
        for part, lane in np.ndindex(2, 3):
            one = total[:, part, lane]
            one = one[np.isfinite(one)]
            assert found.count[part, lane] == one.size
            if one.size:
                np.testing.assert_allclose(found.average[part, lane], one.mean(), rtol=1e-13)
                np.testing.assert_allclose(found.std[part, lane], one.std(ddof=1), rtol=1e-12)


def gpu_failure(_: int) -> None:
    """An error of the driver is a typed one; after a lasting one only the GPU is refused."""
    from retvar.engine import cuda_runner  # needs a GPU or the simulator

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
    no_answer = mock.patch.object(cuda_device.Device, "free_bytes", failing)
    with no_answer, pytest.raises(rv.DeviceError):
        case.simulate(device="cuda")
    with pytest.raises(rv.InputError, match=r"failed in this process \(an illegal.*start a new"):
        case.simulate(device="cuda")
    assert case.simulate(device="auto").attrs["device"] == "cpu"


def digests(_: int) -> None:
    """Print the digests of the fixed simulations."""
    found = {
        name: cases.digest(make().simulate()) for name, make in fixed_cases.FIXED_CASES.items()
    }
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
    parts = (
        bits, invariance, fixed, digests, gpu, gpu_families, gpu_ends, gpu_totals, gpu_single,
        gpu_failure, gpu_moments,
    )  # fmt: skip
    {f.__name__: f for f in parts}[sys.argv[1]](int(sys.argv[2]))
