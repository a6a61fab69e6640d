"""Odd arguments to everything public: only typed errors, before any work is done."""

import importlib
import inspect
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import retvar as rv
from tests import fuzzing
from tests.good_calls import REFUSED, Good
from tests.oracle import SOAK, fresh_seed


@pytest.mark.parametrize(
    "calls", [4_000, pytest.param(1_000_000, marks=pytest.mark.soak)], ids=["share", "whole"]
)
def test_odd_arguments_raise_typed_errors_only(calls):
    """In a process of its own, with a limit of memory, and with a new seed each time."""
    if calls > 10_000 and not SOAK:
        pytest.skip("run by make soak")
    root = Path(__file__).parents[1]
    words = [sys.executable, "-m", "tests.fuzzing", str(calls), str(fresh_seed())]
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
    monkeypatch.setattr(fuzzing.signal, "setitimer", lambda clock, seconds: None)
    assert fuzzing.tried(fuzzing.Target("bad", call, ("x",), ("x",)), {"x": 0}) is not None
    assert fuzzing.tried(fuzzing.Target("bad", call, ("x",), ("x",)), {"y": 0}) is None
    typed = fuzzing.Target("typed", lambda x: rv.Constant(x), ("x",), ("x",))
    assert fuzzing.tried(typed, {"x": -1.0}) is None


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return Good(tmp_path_factory.mktemp("good"))


def documented_methods() -> list[str]:
    """Methods with arguments that the reference lists for single classes; critics need torch."""
    text = (Path(__file__).parents[1] / "docs" / "reference.md").read_text(encoding="utf-8")
    found = []
    for name, members in re.findall(r"autoclass:: (retvar[\w.]+)\n   :members: (.+)", text):
        if name.startswith("retvar.deep"):
            continue
        module, _, kind = name.rpartition(".")
        owner = getattr(importlib.import_module(module), kind)
        for member in members.split(", "):
            thing = getattr(owner, member, None)
            if callable(thing) and len(inspect.signature(thing).parameters) > 1:
                found.append(member)
    return found


def test_public_names_are_fuzzed_or_listed(good):
    """Every public callable is a target, or is named as one that only holds what it is given."""
    names = {t.name for t in fuzzing.targets(good)}
    assert {"rv", "rv.plots", "rv.sweep", "rv.testing"} <= set(good.modules)
    for prefix, module in good.modules.items():
        for name in module.__all__:
            thing = getattr(module, name)
            if callable(thing) and name not in fuzzing.NOT_FUZZED and name[0].isalpha():
                exempt = isinstance(thing, type) and issubclass(thing, Exception)
                assert f"{prefix}.{name}" in names or exempt, name
    for entry in documented_methods():
        assert entry in {name.rpartition(".")[2] for name in names}, entry


def test_the_calls_that_are_fuzzed_succeed_as_they_are(good, monkeypatch, tmp_path):
    """Otherwise the first argument would be refused, and the others never be looked at."""
    monkeypatch.chdir(tmp_path)
    for target in fuzzing.targets(good):
        given = good.arguments(target.name, target.required)
        with fuzzing.quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if target.name in REFUSED:
                with pytest.raises((rv.InputError, TypeError)):
                    target.call(**given)
            else:
                target.call(**given)


RAGGED = [[1.0], [1.0, 2.0]]
DATE = np.datetime64("2020-01-01")
HUGE = np.longdouble("1e4000")


@pytest.mark.parametrize(
    "call",
    [
        lambda: rv.greedy_lam(RAGGED, 0.0, 1.0),
        lambda: rv.greedy_lam(-1e308, 1e308, 1.0),
        lambda: rv.expected_updates("direct", rv.domains.chain(), alpha=DATE),
        lambda: rv.best_steps(rv.domains.chain(), "direct", steps=5, progress=False),
        lambda: rv.domains.windy_cliff(width=np.int64(3), height=2**63),
        lambda: rv.domains.random_mdp(1, 2, parallel=np.array([0.1, 0.2])),
        lambda: rv.VTD(alpha=0.1, gamma=0.9).online(states=2).update(0, 0.0, 1, stream=RAGGED),
        lambda: rv.VTD(alpha=0.1, gamma=0.9).online(states=2).update(0, DATE, 1j),
        lambda: rv.domains.linear_gaussian(0.5, 1.0, 1.0, 0.9).sample(2**31, 5),
        lambda: rv.VTD(alpha=0.1, gamma=0.9).online(states=2**63),
        lambda: rv.VTD(alpha=0.1, gamma=0.9).online(states=2).update(HUGE, 0.0, 1),
        lambda: rv.MDP(rv.domains.chain().edges, start=1e308),
        lambda: rv.MDP.from_edges([("a", "x", "b", 1e308), ("a", "x", "c", 1e308)], gamma=0.9),
        lambda: rv.plots.large_returns({}, 1e308),
        lambda: rv.plots.large_returns({}, [1.0]),
        lambda: type(rv.domains.linear_gaussian(0.5, 1.0, 1.0, 0.9)).controlled(
            1.0, RAGGED, 1.0, 1.0, 1.0, gamma=0.9
        ),
    ],
)
def test_what_the_fuzzer_once_found_is_refused(call):
    with pytest.raises(rv.InputError):
        call()


def test_a_table_of_no_states_and_levels_that_need_no_end_are_refused():
    lake = rv.experience.from_gymnasium("FrozenLake-v1", steps=5_000, seed=1)
    found = rv.estimate(lake, gamma=0.9)
    with pytest.raises(rv.InputError, match="state"):
        found.return_interval(np.zeros((0, 3)))
    with pytest.raises(rv.InputError, match="level"):
        found.return_interval(level=1e-320, above=True)
    with pytest.raises(rv.InputError, match="gamma"):
        rv.estimate(lake, gamma=10**59)
    for wrong in (object(), 0, 2**31):
        with pytest.raises(rv.InputError, match="workers"):
            rv.estimate(lake, gamma=0.9, cluster="local", workers=wrong)


@pytest.mark.parametrize("wrong", [{"states": np.zeros((0, 3))}, {"cost": 1.0, "reward": ["a"]}])
def test_odd_roles_of_columns_are_refused(wrong, tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("state,reward\n0,1\n1,2\n")
    with pytest.raises(rv.InputError):
        rv.experience.from_table(path, **wrong)


def test_greedy_lam_of_tiny_and_huge_numbers_is_that_of_their_ratio():
    """e²/(e² + V) with e = 1e-320 and V = 0, and with e = 1e200 and V = e²."""
    assert rv.greedy_lam(0.0, 1e-320, 0.0) == 1.0
    assert rv.greedy_lam(0.0, 1e150, 1e300) == pytest.approx(0.5)
