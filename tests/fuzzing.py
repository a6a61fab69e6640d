"""Calls of every public function, class and method with odd arguments, made from their signatures.

    python -m tests.fuzzing 10000 [SEED]

A call begins with good arguments, chosen by the names of the parameters, and one to three of them
are replaced by odd ones. It may succeed, or raise a RetvarError, or a TypeError if Python itself
refuses the call. Anything else is a fault: another exception, a warning of another library, or a
call that takes too long. What is public is found by walking ``retvar`` and objects that it makes.
"""

# ruff: noqa: T201
from __future__ import annotations

import contextlib
import inspect
import io
import os
import resource
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import retvar as rv

SECONDS = 20  # for one call
MEMORY = 8 << 30  # bytes
PACKAGE = str(Path(rv.__file__).parent)
NOT_FUZZED = {  # whatever they are given, they only hold it; or they are data that others make
    "Check", "Estimate", "Estimates", "Experience", "Growing", "FixedPoint", "MonteCarlo", "Node",
    "OnlineEstimator", "Solution", "StateSolution", "Transition", "Comparison", "CostEstimate",
    "Finished", "Interval", "Plan", "Status", "Store", "Counts", "Rows", "Edge", "Edges", "follow",
    "Learner", "InitialValues", "Features", "TransitionFeatures", "ObservationFeatures", "StepSize",
    "DivergenceError", "InfiniteVarianceError", "InputError", "SourceError", "Dask", "Local",
    "Frontier", "FrontierPoint", "PolicyGradient",
}  # fmt: skip
WORK = {"steps", "episodes", "sweeps", "runs", "samples", "length", "envs"}  # much is no fault


class Target(NamedTuple):
    """Something public that can be called."""

    name: str
    call: Callable[..., Any]
    parameters: tuple[str, ...]
    required: tuple[str, ...]


class Fault(NamedTuple):
    """A call that raised what it must not raise."""

    name: str
    arguments: dict[str, Any]
    kind: str
    where: str  #: the last line of the package in the traceback
    text: str


def good_arguments(folder: Path) -> dict[str, Any]:
    """A good argument for each name of a parameter."""
    mdp = rv.domains.complex_mdp()
    learner = rv.Direct(alpha=0.1, gamma=0.9, lam=0.9)
    log = folder / "log.csv"
    rows = "a,1.0,b,0\nb,2.0,a,0\na,0.5,b,1\n" * 20
    log.write_text(f"state,reward,next_state,terminated\n{rows}")
    table = rv.experience.from_table(log)
    found = rv.estimate(table, gamma=0.9)
    return {
        "mdp": mdp, "gamma": 0.9, "lam": 0.5, "alpha": 0.1, "alpha_bar": 0.1, "alpha_mean": 0.1,
        "kappa": 0.0, "kappa_bar": 0.0, "kappa_mean": 0.0, "value": 0.0, "seed": 1, "order": 2,
        "target": "pi", "behaviour": "mu", "estimand": "target_return", "reward": 1.0, "mean": 0.0,
        "learners": learner, "learner": learner, "episodes": None, "steps": 5, "power": 0.6,
        "learn_value": True, "method": "direct", "states": 5, "initial_variance": 0.0,
        "initial_mean": 0.0, "state": 0, "next_state": 1, "experience": table, "variance": 1.0,
        "name": "chain", "progress": False, "policy": None, "path": folder / "out.png",
        "decay": 0.9, "epsilon": 0.1, "reward_std": 0.1, "at": -1, "source": log, "by": None,
        "level": 0.9, "count": 5, "what": "variance", "x": [1.0, 2.0, 3.0], "points": 3,
        "length": 3, "env": "FrozenLake-v1", "record": 2, "visits": 3.0, "delta": 1.0, "runs": 2,
        "samples": 5, "bootstrap_samples": 0, "values": [1.0, 2.0], "every": 2, "log": False,
        "terminated": False, "truncated": False, "rho": 1.0, "stream": 0, "ends": 0.0,
        "envs": 1, "deterministic": None, "chunk": 100, "given": 5, "max_steps": 100, "w": 0.1,
        "threads": 1, "resamples": 100, "data": [1.0, 2.0, 3.0, 4.0], "found": found,
        "fresh": table, "branching": 2, "actions": 2, "parallel": False, "reward_mean": 0.0,
        "minimise": "variance", "average": False, "degree": 2, "low": [0.0], "high": [1.0],
        "tiles": 2, "tilings": 2, "memory": None, "axis": 0, "differences": [1.0, -2.0, 3.0],
        "p": [0.1, 0.2], "center": 0.0, "uniform": 0.1, "normal": 0.1, "covariance": 1.0,
        "window": 0, "change": False, "rmse": False, "step_sizes": False, "keep": "stats",
        "batch": None, "first_run": 0, "truth": True, "rows": 3, "transitions": [(0, 1.0, 1)],
        "solution": rv.solve(mdp), "described": {"kind": "Polynomial"}, "on_error": "error",
        "probabilities": [[0.5, 0.5]], "edges": [(0, 0, 1), (1, 0, 0)], "start": None,
        "table": [[1.0, 0.0], [0.0, 1.0]], "observation": [0.5], "relative": False,
        "statistic": np.mean, "stratified": False, "reward_range": None, "field": "alpha",
        "P": [[[0.0, 1.0]], [[1.0, 0.0]]], "R": [0.0, 1.0], "quantity": "value", "most": 3,
        "penalties": [0.0, 0.1], "restarts": 0, "height": 3, "width": 3, "wind": 0.1, "fall": -5.0,
    }  # fmt: skip


class Odd:
    """An object that nothing can be done with."""

    def __repr__(self) -> str:
        return "Odd()"


ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2, 10**6, 2**31, 2**63, 2**64, 10**400, -(10**400), 0.0, -0.0, 0.5,
    1.0, -1.0, 1e-320, 1e308, -1e308, float("nan"), float("inf"), -float("inf"), 1j, "", "x", "0.5",
    "a\x00b", "\ud800", "é" * 300, "../..", "/dev/null", "local", b"bytes", [], [1.0], [[1.0]],
    [1.0, 2.0, 3.0, 4.0, 5.0], [[1.0], [1.0, 2.0]], [None], ["a", 1], (), (1, 2), {}, {"a": 1},
    {1: 2}, {"rule": "Decay"}, set(), {1, 2}, range(3), iter([1, 2]), object(), Odd(), int, float,
    lambda *a, **k: None, lambda *a, **k: 1 / 0, np.array(0.5), np.array([]), np.array([0.1, 0.2]),
    np.zeros((2, 2)), np.zeros((5, 3)), np.zeros((0, 3)), np.array([np.nan]), np.array([1, 2]),
    np.array(["a", "b"]), np.array([object()]), np.array([1j]), np.float32(0.5), np.int64(3),
    np.bool_(True), np.datetime64("2020-01-01"), np.ma.masked, slice(None), Ellipsis,
    NotImplemented,
    Path("nowhere"), Exception("x"), rv.Decay(), rv.Direct(alpha=0.1), rv.domains.chain,
    rv.domains.chain(), [rv.Direct(alpha=0.1)] * 2, {"a": rv.VTD(alpha=0.2)}, "direct", "vtd",
]  # fmt: skip


def targets(good: dict[str, Any]) -> Iterator[Target]:
    """All public callables, and those of objects that good calls return."""
    for module, prefix in ((rv, "rv"), (rv.domains, "rv.domains"), (rv.features, "rv.features"),
                           (rv.experience, "rv.experience"), (rv.sweep, "rv.sweep"),
                           (rv.step_sizes, "rv.step_sizes")):  # fmt: skip
        for name in sorted(module.__all__):
            thing = getattr(module, name)
            if name not in NOT_FUZZED and callable(thing):
                yield from target(f"{prefix}.{name}", thing)
    yield from of_objects(good)


def of_objects(good: dict[str, Any]) -> Iterator[Target]:
    """Methods of objects; a learner is made anew for each call."""
    makers: dict[str, Callable[[], Any]] = {
        "Direct": lambda: rv.Direct(alpha=0.1, gamma=0.9, lam=0.9),
        "online": lambda: rv.Direct(alpha=0.1, gamma=0.9, lam=0.9).online(states=5),
        "linear": lambda: rv.Centred(alpha=0.1, gamma=0.9).online(features=3),
        "growing": lambda: rv.VTD(alpha=0.1, gamma=0.9).online(states=2, bootstrap_samples=10),
        "mdp": lambda: good["mdp"],
        "policy": lambda: good["mdp"].policy("pi"),
        "solution": lambda: good["solution"],
        "fixed_point": lambda: rv.fixed_point("direct", good["mdp"]),
        "found": lambda: good["found"],
        "record": lambda: rv.Record(every=2),
        "actor": lambda: rv.ActorCritic(
            rv.Direct(alpha=0.1, gamma=0.9, lam=1.0), actions=2, states=5
        ),
        "world": lambda: rv.domains.linear_gaussian([[0.8]], [[0.3]], [[1.0]], gamma=0.9),
    }
    for name, make in makers.items():
        for method in sorted(dir(type(make()))):
            if not method.startswith("_") and callable(getattr(type(make()), method)):

                def call(*args: Any, make: Any = make, method: str = method, **kw: Any) -> Any:
                    return getattr(make(), method)(*args, **kw)

                yield from target(f"{name}.{method}", getattr(make(), method), call)


def target(name: str, thing: Any, call: Any = None) -> Iterator[Target]:
    """A target, if its signature is known."""
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return
    every = found.parameters.values()
    named = [p for p in every if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    names = tuple(p.name for p in named if not p.name.startswith("_"))
    required = tuple(p.name for p in named if p.default is p.empty)
    yield Target(name, call or thing, names, required)


def arguments_for(
    target: Target, good: dict[str, Any], random: np.random.Generator
) -> dict[str, Any]:
    """Good arguments of which one to three are odd."""
    chosen = [n for n in target.parameters if n in target.required or random.random() < 0.15]
    given = {name: good.get(name, 1.0) for name in chosen}
    for _ in range(random.integers(1, 4) if target.parameters else 0):
        name = target.parameters[random.integers(len(target.parameters))]
        odd = ODD[random.integers(len(ODD))]
        if not (name in WORK and isinstance(odd, int) and odd > 1_000):
            given[name] = odd
    return given


def tried(target: Target, given: dict[str, Any]) -> Fault | None:
    """Make a call; return what is wrong with it."""
    try:
        with warnings.catch_warnings(record=True) as caught, quiet():
            warnings.simplefilter("always")
            signal.alarm(SECONDS)
            found = target.call(**given)
            if inspect.isgenerator(found):
                next(found, None)
            signal.alarm(0)
    except rv.RetvarError:
        return None
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        inside = [f for f in frames if f.filename.startswith(PACKAGE)]
        refused = isinstance(error, TypeError) and not inside  # by Python itself
        own = frames[-1].filename == __file__ and frames[-1].name == "<lambda>"
        if refused or own:  # `own`: an error of the function that was given
            return None
        last = f"{inside[-1].filename.removeprefix(PACKAGE)}:{inside[-1].lineno}" if inside else ""
        return Fault(target.name, given, type(error).__name__, last, str(error)[:200])
    finally:
        signal.alarm(0)
    loud = [w for w in caught if not issubclass(w.category, (UserWarning, ResourceWarning))]
    if loud:
        first = loud[0]
        where = f"{first.filename}:{first.lineno}"
        text = str(first.message)[:200]
        return Fault(target.name, given, first.category.__name__, where, text)
    return None


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Nothing is printed."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


class TooLong(BaseException):
    """A call took too long."""


def _too_long(*_: Any) -> None:
    raise TooLong(f"more than {SECONDS} s")


def faults(calls: int, seed: int) -> Counter[tuple[str, str, str]]:
    """Make so many calls; return how often each fault was met, and print each once."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGALRM, _too_long)
    random = np.random.default_rng(seed)
    found: Counter[tuple[str, str, str]] = Counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        good = good_arguments(folder)
        os.chdir(folder)
        every = list(targets(good))
        print(f"{len(every)} targets", flush=True)
        for _ in range(calls):
            target = every[random.integers(len(every))]
            given = arguments_for(target, good, random)
            fault = tried(target, given)
            if fault is not None:
                key = (fault.name, fault.kind, fault.where)
                if key not in found:
                    shown = {n: repr(x)[:60] for n, x in given.items()}
                    print(f"{' '.join(key)}: {fault.text}\n    {shown}", flush=True)
                found[key] += 1
    return found


def main() -> int:
    calls = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else int.from_bytes(os.urandom(4))
    found = faults(calls, seed)
    count = sum(found.values())
    print(f"{calls:,} calls with seed {seed}: {count:,} faults in {len(found)} places")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
