"""Shared by all tests; `pytest --shuffle SEED` runs them in a random order."""

import random
from itertools import groupby

import pytest
from hypothesis import settings

from tests import oracle

settings.register_profile("retvar", deadline=None, print_blob=True)
settings.load_profile("retvar")

collect_ignore = ["killwarm.py"]  # imported, it runs every command


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


# ------------------------------------------------------------------------ order


def pytest_addoption(parser):
    what = "run modules, and the tests of each, in the random order of this seed"
    parser.addoption("--shuffle", type=int, metavar="SEED", help=what)


def pytest_report_header(config):
    seed = config.getoption("shuffle")
    return None if seed is None else f"order: --shuffle {seed}"


def pytest_terminal_summary(terminalreporter, config):
    if (seed := config.getoption("shuffle")) is not None:  # with -q there is no header
        terminalreporter.write_line(f"order: --shuffle {seed}")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    if config.getoption("shuffle") is not None:
        items[:] = shuffled(items, config.getoption("shuffle"))


def shuffled(items, seed):
    """The tests of a module stay together: they share its fixtures.

    The order depends only on the seed and on which tests there are, so that all workers of
    pytest-xdist have the same.
    """

    def module(item):
        return item.nodeid.partition("::")[0]

    draw = random.Random(seed)
    ordered = sorted(items, key=lambda item: (module(item), item.nodeid))
    modules = [list(tests) for _, tests in groupby(ordered, module)]
    draw.shuffle(modules)
    for tests in modules:
        draw.shuffle(tests)
    return [item for tests in modules for item in tests]
