"""Odd arguments to deep critics: only typed errors, as `tests.test_fuzzing` has it for the rest."""

import subprocess
import sys
from pathlib import Path

import pytest

import retvar as rv
from tests import fuzzing
from tests.oracle import SOAK, fresh_seed

pytest.importorskip("torch", reason="torch: make test-deep")

from tests.good_critics import EXEMPT, Critics


def test_odd_arguments_raise_typed_errors_only():
    calls, seed = "50000" if SOAK else "1500", str(fresh_seed())
    words = [sys.executable, "-m", "tests.fuzzing", calls, seed, "deep"]
    root = Path(__file__).parents[1]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-2_000:]


def test_the_calls_that_are_fuzzed_succeed_as_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    good = Critics(tmp_path)
    targets = list(fuzzing.targets(good))
    for target in targets:
        with fuzzing.quiet():
            target.call(**good.arguments(target.name, target.required))
    called = {target.name.rpartition(".")[2] for target in targets}
    assert set(rv.deep.__all__) - EXEMPT <= called
