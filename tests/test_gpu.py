"""Simulations on a GPU, in numba's simulator: the bits of the CPU; what is missing is named.

On a GPU: ``make gpu``.
"""

import contextlib
import importlib.metadata
import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import retvar as rv
from retvar.simulation import cuda_device
from tests import cases, gpu_cases

KEEPS = itertools.cycle(["runs", "runs", "stats"])
STEPS = ({"alpha": rv.Averaged(0.5)}, {"alpha": 0.1, "alpha_bar": rv.Averaged(0.5)})


def same_on_a_gpu(case: cases.Case, keep: str) -> None:
    one, other = (case.simulate(keep=keep, device=device) for device in ("cpu", "cuda"))
    assert other.attrs["device"] == "cuda"
    assert not gpu_cases.differing(one, other), keep


@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(cases.cases(longest=12))
def test_any_simulation_on_a_gpu_has_the_bits_of_the_cpu(case):
    with contextlib.suppress(rv.InputError):  # more than 16 weights with features or traces
        same_on_a_gpu(case, next(KEEPS))


def short(family: str) -> cases.Case:
    """A short simulation of a family, with few learners."""
    case = gpu_cases.FAMILIES[family](np.random.default_rng([*family.encode()]))
    length = {next(iter(case.length)): 6}
    record = {**case.record, "at": [0, 2, 6], "window": min(4, case.record.get("window", 0))}
    return replace(case, learners=case.learners[:3], runs=2, length=length, record=record)


@pytest.mark.parametrize("name", gpu_cases.FAMILIES)
def test_every_family_of_cases_on_a_gpu_has_the_bits_of_the_cpu(name):
    if name in gpu_cases.REFUSED:
        with pytest.raises(rv.InputError) as caught:
            short(name).simulate(device="cuda")
        assert caught.value.field == "device"
    else:
        same_on_a_gpu(short(name), "runs")


@pytest.mark.parametrize("steps", STEPS, ids=["all averaged", "variance averaged"])
def test_behind_an_end_lies_zero_on_a_gpu_too(steps):
    learners = [rv.Direct(**steps), rv.Centred(**steps, order=4), rv.VTD(**steps, kappa=0.5)]
    same_on_a_gpu(cases.Case(rv.domains.chain(), learners, {"episodes": 3}, 2), "runs")


@pytest.mark.parametrize("keep", ["runs", "stats"])
@pytest.mark.parametrize(("kappa", "states"), [(0.0, 18), (0.5, 14)])
def test_totals_over_states_on_a_gpu_are_those_of_the_cpu(kappa, states, keep):
    """On the CPU lanes are padded."""
    record = {"at": [0, 20], "window": 10, "change": True, "rmse": True}
    learner = rv.Direct(alpha=0.1, alpha_bar=0.1, kappa=kappa, kappa_bar=kappa)
    mdp = rv.domains.random_mdp(states, seed=0)
    same_on_a_gpu(cases.Case(mdp, [learner], {"steps": 20}, 3, record=record), keep)


def test_a_failure_of_the_gpu_is_typed_and_other_simulations_run(monkeypatch):
    from retvar.simulation import cuda_runner  # needs a GPU or the simulator

    case = short("one learner")
    before = case.simulate(device="cuda")

    def failing(*_: object) -> None:
        raise cuda_device.failures()[0]("an illegal memory access")

    with monkeypatch.context() as broken:
        broken.setattr(cuda_runner.BlockRunner, "launch", failing)
        with pytest.raises(rv.DeviceError):
            case.simulate(device="cuda")
    assert not gpu_cases.differing(before, case.simulate(device="cuda"))


@pytest.fixture
def fresh():
    cuda_device.missing.cache_clear()
    yield
    cuda_device.missing.cache_clear()


@pytest.mark.compiled
@pytest.mark.parametrize("version", [None, "0.29.9", "0.31.0", "unknown"])
def test_a_package_that_is_absent_or_may_contract_is_refused(fresh, monkeypatch, version):
    def asked(name):
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", asked)
    chain = rv.domains.chain()
    with pytest.raises(rv.InputError) as caught:
        rv.simulate(chain, rv.Direct(alpha=0.1), steps=5, runs=1, seed=0, device="cuda")
    assert caught.value.field == "device"


def test_auto_takes_a_gpu_from_the_break_even_on_if_there_is_one(monkeypatch):
    at = cuda_device.BREAK_EVEN
    monkeypatch.setattr(cuda_device, "missing", lambda: None)
    assert cuda_device.chosen_device("auto", at) == "cpu"
    assert cuda_device.chosen_device("auto", at + 1) == "cuda"
    assert cuda_device.chosen_device("auto", 10**9, weights=17) == "cpu"  # a thread holds 16
    assert cuda_device.chosen_device("cuda", 1, weights=16) == "cuda"
    monkeypatch.setattr(cuda_device, "missing", lambda: "nothing is there")
    assert cuda_device.chosen_device("auto", at + 1) == "cpu"
