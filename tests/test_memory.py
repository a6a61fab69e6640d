"""The memory of an estimator does not grow with the steps."""

import resource

import numpy as np
import pytest

import retvar as rv
from tests import oracle

CHUNKS = 1_000 if oracle.SOAK else 5  # of a million steps: make nightly takes 10⁹


@pytest.mark.soak
def test_memory_is_flat_however_long_it_learns():
    """The peak after the first chunks is the peak after the last, to 8 MiB."""
    rng = np.random.default_rng(0)
    columns = {
        "state": rng.integers(5, size=1_000_000),
        "reward": rng.normal(size=1_000_000),
        "next_state": rng.integers(5, size=1_000_000),
    }
    estimator = rv.Direct(alpha=0.01, gamma=0.9, lam=0.9).online(states=5)
    for _ in range(3):
        estimator.update_many(columns)
    estimator.update(0, 1.0, 1)  # compiled at its first call, which takes memory once
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(CHUNKS):
        estimator.update_many(columns)
    for _ in range(20_000):
        estimator.update(0, 1.0, 1)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 8 * 1024, f"{grown} KiB"
    assert estimator.steps == (CHUNKS + 3) * 1_000_000 + 20_001
