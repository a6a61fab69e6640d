"""Shared by all tests: seeds and examples are fixed, but fresh ones in `make nightly`."""

import os
import signal

import pytest
from hypothesis import settings

from tests import oracle

settings.register_profile("push", deadline=None, print_blob=True, derandomize=True)
settings.register_profile("nightly", deadline=None, print_blob=True)
settings.load_profile("nightly" if oracle.SOAK else "push")
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it


# ------------------------------------------------------------------------ seeds


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    oracle.SEEDS.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    report = yield
    if report.failed and oracle.SEEDS:
        repeat = ", ".join(f"RETVAR_SEED={seed}" for seed in oracle.SEEDS)
        report.sections.append(("Seed", f"repeat with {repeat}"))
    return report


# ------------------------------------------------------------------------ plain Python

PLAIN = {  # modules, in groups that take about as long
    "engine": ("engine", "learned_moments", "features"),
    "online": ("bootstrap", "lazy_traces", "checkpoint", "online"),
    "numbers": ("digests", "contract", "refusals"),
    "sweeps": ("sweep", "collecting", "simulate"),
    "gpu": ("gpu",),
}
MODULES = {f"test_{name}" for names in PLAIN.values() for name in names}


def compiling() -> bool:
    """Whether numba compiles; tests/test_heart.py runs the modules in PLAIN without."""
    return os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"


def belongs(item) -> bool:
    """Whether a test runs here: in PLAIN those marked `compiled`, or all others."""
    marked = item.get_closest_marker("compiled") is not None
    return item.path.stem not in MODULES or marked == compiling()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    items[:] = filter(belongs, items)
