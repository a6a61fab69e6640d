"""Odd arguments to everything public: only typed errors, before any work is done."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import retvar as rv
from tests import fuzzing

SOAK = bool(os.environ.get("RETVAR_SOAK"))


@pytest.mark.parametrize(
    ("calls", "seed"),
    [(4_000, [11]), pytest.param(1_000_000, [], marks=pytest.mark.soak)],
    ids=["share", "whole"],
)
def test_odd_arguments_raise_typed_errors_only(calls, seed):
    """In a process of its own, with a limit of memory; the whole has a new seed each time."""
    if not seed and not SOAK:
        pytest.skip("run by make soak")
    root = Path(__file__).parents[1]
    words = [sys.executable, "-m", "tests.fuzzing", str(calls), *map(str, seed)]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-2_000:]
    assert re.search(r"calls with seed \d+: 0 faults", done.stdout)


@pytest.mark.parametrize(
    "call", [lambda x: 1 / x, lambda x: [][x], lambda x: np.array([x]) + "a"], ids=["/", "[]", "+"]
)
def test_the_fuzzer_sees_untyped_errors(call, monkeypatch):
    """Errors inside the package count, whatever their type; typed ones and wrong calls do not."""
    monkeypatch.setattr(fuzzing, "PACKAGE", str(Path(__file__)))
    monkeypatch.setattr(fuzzing.signal, "alarm", lambda seconds: None)
    assert fuzzing.tried(fuzzing.Target("bad", call, ("x",), ("x",)), {"x": 0}) is not None
    assert fuzzing.tried(fuzzing.Target("bad", call, ("x",), ("x",)), {"y": 0}) is None
    typed = fuzzing.Target("typed", lambda x: rv.Constant(x), ("x",), ("x",))
    assert fuzzing.tried(typed, {"x": -1.0}) is None


def test_public_names_are_fuzzed_or_listed(tmp_path):
    """Every public callable is a target, or is named as one that only holds what it is given."""
    names = {t.name for t in fuzzing.targets(fuzzing.good_arguments(tmp_path))}
    for name in rv.__all__:
        thing = getattr(rv, name)
        if callable(thing) and name not in fuzzing.NOT_FUZZED and name[0].isalpha():
            exempt = isinstance(thing, type) and issubclass(thing, Exception)
            assert f"rv.{name}" in names or exempt, name
