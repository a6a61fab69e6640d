"""Simulations on a GPU, in numba's simulator: the bits of the CPU; what is missing is named.

On a GPU: ``make gpu``.
"""

import importlib.metadata

import numpy as np
import pytest
from numba import float32, njit

import retvar as rv
from retvar import jit, networks
from retvar.engine import cuda_device, cuda_layout, cuda_single
from retvar.engine.cuda_layout import rows_for
from retvar.random import uniform
from tests import uncompiled

LEARNER = rv.Direct(alpha=0.1)
SIMULATOR = {"NUMBA_ENABLE_CUDASIM": "1"}


def test_any_simulation_on_a_gpu_has_the_bits_of_the_cpu():
    uncompiled.run("gpu", 30, **SIMULATOR)


def test_every_family_of_cases_on_a_gpu_has_the_bits_of_the_cpu():
    uncompiled.run("gpu_families", **SIMULATOR)


def test_statistics_on_a_gpu_are_those_of_the_runs():
    """Means and standard deviations (n − 1), against NumPy."""
    uncompiled.run("gpu_moments", **SIMULATOR)


def test_nothing_is_read_that_was_not_written_behind_the_end_of_an_episode():
    uncompiled.run("gpu_ends", **SIMULATOR)


def test_totals_over_states_have_the_bits_of_the_cpu_with_one_lane():
    uncompiled.run("gpu_totals", **SIMULATOR)


def test_single_precision_is_near_double_precision_and_not_the_same():
    uncompiled.run("gpu_single", **SIMULATOR)


def test_a_failure_of_the_gpu_is_typed_and_other_simulations_run():
    uncompiled.run("gpu_failure", **SIMULATOR)


def test_constants_of_functions_that_are_called_become_single_but_random_numbers_stay_double():
    def scaled(x):
        return 0.1 * x

    @jit.inlined
    def mixed(x, word):
        return scaled(x) + 2.5, uniform(word)

    one, drawn = cuda_single.in_single_precision(mixed).py_func(np.float32(1.0), np.uint64(2**63))
    assert one == np.float32(0.1) + np.float32(2.5)
    assert one.dtype == np.float32
    assert drawn == 0.5
    assert type(drawn) is not np.float32
    assert mixed.py_func(np.float64(1.0), np.uint64(0))[0] == 0.1 + 2.5


@pytest.mark.parametrize("node", networks.NODES, ids=lambda node: node.name)
def test_what_a_node_is_fed_with_is_single_if_all_it_reads_is(node):
    reward, discount = (
        jit.inlined(cuda_single.in_single_precision(f)) for f in (node.reward, node.discount)
    )

    @njit
    def fed(zero):
        x = networks.Transition(zero, zero, zero, zero)
        reading = networks.Reading(zero, zero, zero, zero)
        return reward(x, networks.Readings(reading, reading, reading, reading)), discount(x)

    fed(np.float32(0.5))
    assert set(fed.nopython_signatures[0].return_type) == {float32}


@pytest.mark.parametrize("x", [1e-100, 1e150, -1e150, 0.0, np.inf])
def test_constants_beyond_single_precision_are_bounded_and_keep_their_sign(x):
    found = cuda_single.in_single_precision(lambda: x)()
    assert np.isfinite(found) == np.isfinite(x)
    assert np.sign(found) == np.sign(x)


def test_single_precision_without_a_gpu_is_refused():
    with pytest.raises(rv.InputError, match=r"dtype.*needs a GPU; use device='cuda', or 'float64'"):
        simulate(runs=1, dtype="float32")
    with pytest.raises(rv.InputError, match=r"dtype.*'float64' or 'float32'"):
        simulate(runs=1, dtype="float16")


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


@pytest.mark.parametrize("version", ["0.29.9", "0.31.0", "1.0", "0.31rc1", "unknown"])
def test_a_version_that_may_contract_is_refused(fresh, monkeypatch, version):
    monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
    with pytest.raises(rv.InputError, match=f"numba-cuda is {version}; must be at least 0.30"):
        simulate(runs=1, device="cuda")


def test_a_driver_that_fails_is_named(fresh, monkeypatch):
    def broken():
        raise OSError("no driver")

    monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.30.4")
    monkeypatch.setattr(cuda_device, "load", broken)
    with pytest.raises(rv.InputError, match=r"does not answer \(OSError\); use device='cpu'"):
        simulate(runs=1, device="cuda")


def test_auto_takes_the_cpu_without_a_gpu_and_the_dataset_says_so(monkeypatch):
    monkeypatch.setattr(cuda_device, "missing", lambda: "nothing is there")
    monkeypatch.setattr(cuda_device, "BREAK_EVEN", 1)
    assert simulate(runs=2, device="auto").attrs["device"] == "cpu"


def test_auto_takes_a_gpu_from_the_break_even_on(monkeypatch):
    monkeypatch.setattr(cuda_device, "missing", lambda: None)
    at = cuda_device.BREAK_EVEN
    assert cuda_device.chosen_device("auto", at) == "cpu"
    assert cuda_device.chosen_device("auto", at + 1) == "cuda"


def test_another_device_is_refused():
    with pytest.raises(rv.InputError, match="must be 'cpu', 'cuda' or 'auto'"):
        simulate(runs=1, device="gpu")


def test_rows_of_shared_memory_suffice_and_waste_little():
    rows = np.array([rows_for(n) for n in range(1, 400)])
    needed = np.arange(1, 400)
    assert (rows >= needed).all()
    assert (rows <= 1.25 * needed + 1).all()
    assert len(set(rows.tolist())) < 60


@pytest.mark.parametrize("lanes", [1, 2, 3, 5, 54, 81, 500])
def test_groups_are_powers_of_2_within_a_warp_and_blocks_are_whole_warps(lanes):
    learners = rv.grid(rv.Direct, rv.VTD, alpha=0.1, alpha_bar=np.linspace(0.1, 0.2, lanes))
    block, stream = block_of(learners)
    for states in (5, 60, 2_000):
        layout = cuda_layout.layout_of(block.shape, lanes, states)
        assert layout.group in (1, 2, 4, 8, 16, 32)
        assert layout.threads % 32 == 0
        size = layout.rows * len(block.shape.nodes) * layout.lanes * layout.threads * 8
        assert size <= cuda_layout.SHARED_BYTES
        laid_out = cuda_layout.lay_out(block, stream, layout=layout)
        assert laid_out.lanes % (layout.group * layout.lanes) == 0
        assert laid_out.lanes >= lanes


def block_of(learners):
    from retvar.engine.blocks import Recording, plan_blocks
    from retvar.engine.learner_setup import prepare_learners
    from retvar.engine.streams import stream_of
    from retvar.features import States

    mdp = rv.domains.complex_mdp()
    stream, used = stream_of(mdp)
    setups = prepare_learners(mdp, learners, [States(5)] * 3, used)
    recording = Recording(np.array([5]), True, np.arange(5), 0, np.zeros(0), False, False)
    (block,) = plan_blocks(setups, stream, recording)
    return block, stream
