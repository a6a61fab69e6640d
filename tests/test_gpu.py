"""Simulations on a GPU, in numba's simulator: the bits of the CPU; what is missing is named.

On a GPU: ``make gpu``.
"""

import importlib.metadata

import pytest

import retvar as rv
from retvar.simulation import cuda_device
from tests import uncompiled

LEARNER = rv.Direct(alpha=0.1)
SIMULATOR = {"NUMBA_ENABLE_CUDASIM": "1"}


def test_any_simulation_on_a_gpu_has_the_bits_of_the_cpu():
    uncompiled.run("gpu", 30, **SIMULATOR)


def test_every_family_of_cases_on_a_gpu_has_the_bits_of_the_cpu():
    uncompiled.run("gpu_families", **SIMULATOR)


def test_a_failure_of_the_gpu_is_typed_and_other_simulations_run():
    uncompiled.run("gpu_failure", **SIMULATOR)


@pytest.fixture
def fresh():
    cuda_device.missing.cache_clear()
    yield
    cuda_device.missing.cache_clear()


def simulate(**settings):
    return rv.simulate(rv.domains.complex_mdp(), LEARNER, steps=5, seed=0, **settings)


def test_a_gpu_without_its_package_is_refused_and_the_extra_is_named(fresh, monkeypatch):
    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    with pytest.raises(rv.InputError, match=r"device.*numba-cuda is not installed.*retvar\[cuda12"):
        simulate(runs=1, device="cuda")


@pytest.mark.parametrize("version", ["0.29.9", "0.31.0", "unknown"])
def test_a_version_that_may_contract_is_refused(fresh, monkeypatch, version):
    monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
    with pytest.raises(rv.InputError, match=f"numba-cuda is {version}; must be at least 0.30"):
        simulate(runs=1, device="cuda")


def test_auto_takes_a_gpu_from_the_break_even_on_if_there_is_one(monkeypatch):
    at = cuda_device.BREAK_EVEN
    monkeypatch.setattr(cuda_device, "missing", lambda: None)
    assert cuda_device.chosen_device("auto", at) == "cpu"
    assert cuda_device.chosen_device("auto", at + 1) == "cuda"
    monkeypatch.setattr(cuda_device, "missing", lambda: "nothing is there")
    assert cuda_device.chosen_device("auto", at + 1) == "cpu"


def test_more_weights_than_a_thread_holds_are_refused_by_name_and_auto_takes_the_cpu(monkeypatch):
    """With features or traces at most 16 weights; tables without traces of any size."""
    monkeypatch.setattr(cuda_device, "missing", lambda: None)
    with pytest.raises(rv.InputError, match="device = 'cuda' with 17 weights of a node"):
        cuda_device.chosen_device("cuda", 1, weights=17)
    assert cuda_device.chosen_device("cuda", 1, weights=16) == "cuda"
    assert cuda_device.chosen_device("auto", 10**9, weights=17) == "cpu"
