"""Calls of every public function, class and method with odd arguments, made from their signatures.

    python -m tests.fuzzing CALLS [SEED [deep]]

A call begins with arguments with which it succeeds (`tests.good_calls`), and one to three of them
are replaced by odd ones. If there are calls enough, every odd value comes first in the place of
every single argument; the others are random. A call may succeed, or raise a RetvarError, or a
TypeError if Python itself refuses the call. Anything else is a fault: another exception, a warning
of another library, or a call that takes too long. What is public is found by walking ``retvar``,
its public modules, and objects that they make.
"""

# ruff: noqa: T201
from __future__ import annotations

import contextlib
import copy
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
from decimal import Decimal
from fractions import Fraction
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import retvar as rv
from retvar.format import literal
from tests.good_calls import Calls, Good

SECONDS = 60  # of computing, for one call, which may have to compile
MEMORY = 16 << 30  # bytes
PACKAGE = str(Path(rv.__file__).parent)
NOT_FUZZED = {  # whatever they are given, they only hold it; or they are data that others make
    "Check", "Estimate", "Estimates", "Experience", "Growing", "FixedPoint", "MonteCarlo", "Node",
    "OnlineEstimator", "Solution", "StateSolution", "Transition", "Comparison", "CostEstimate",
    "Finished", "Interval", "Plan", "Status", "Store", "Counts", "Rows", "Edge", "Edges",
    "Learner", "InitialValues", "Features", "TransitionFeatures", "ObservationFeatures", "StepSize",
    "DivergenceError", "InfiniteVarianceError", "InputError", "SourceError", "Dask", "Local",
    "Frontier", "FrontierPoint", "PolicyGradient",
}  # fmt: skip
RARE = {  # they take long
    "rv.plots": 0.1, "rv.testing": 0.03, "report": 0.05, "found.save": 0.05, "found.plot": 0.1,
    "best.plot": 0.1, "solution.plot": 0.3, "frontier.plot": 0.1, "sample.summary": 0.2,
    "found.action_values": 0.3, "rv.frontier": 0.3, "rv.sweep.run": 0.2,
}  # fmt: skip
WORK = {
    "steps",
    "episodes",
    "sweeps",
    "runs",
    "samples",
    "length",
    "envs",
    "batches",
}  # much is no fault


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


class Odd:
    """An object that nothing can be done with."""

    def __repr__(self) -> str:
        return "Odd()"


def circular() -> list[Any]:
    """A list in itself."""
    found: list[Any] = []
    found.append(found)
    return found


def nested(depth: int) -> list[Any]:
    """A list in a list in a list."""
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


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
    np.int8(127), np.uint8(3), np.uint8(255), np.int16(200), np.uint64(2**64 - 1),
    Fraction(1, 3), Fraction(10**400, 3), Decimal("0.5"), Decimal("NaN"), Decimal("sNaN"),
    np.longdouble(0.3), np.longdouble("1e4000"), [np.longdouble("1e4000")], [Fraction(1, 3)],
    np.timedelta64(3, "s"), np.timedelta64("NaT"), np.void((0.0,), dtype=[("a", "<f8")]),
    circular(), nested(5_000), {"a": nested(5_000)}, range(10**12), [1e200, 1e200], [1e308, -1e308],
    np.full((5, 2), 1e200), np.full((3, 1), 1e308), np.array([1e308, 1e308, -1e308]), ["\ud800"],
    {"\ud800": 1}, [Decimal("sNaN")], np.array("a"),
]  # fmt: skip


def targets(good: Calls) -> Iterator[Target]:
    """All public callables, and those of objects that good calls return."""
    for prefix, module in good.modules.items():
        for name in sorted(module.__all__):
            thing = getattr(module, name)
            if name not in NOT_FUZZED and callable(thing):
                yield from target(f"{prefix}.{name}", thing)
    for name, call in good.functions.items():
        yield from target(name, call)
    for name, make in good.makers.items():  # a learner is made anew for each call
        for method in methods_of(name, make(), good):

            def call(*args: Any, make: Any = make, method: str = method, **kw: Any) -> Any:
                return getattr(make(), method)(*args, **kw)

            yield from target(f"{name}.{method}", getattr(make(), method), call)


def methods_of(name: str, thing: Any, good: Calls) -> list[str]:
    """The public methods of an object; of some, those that the reference lists."""
    every = good.documented.get(name, sorted(dir(type(thing))))
    return [n for n in every if n[0] != "_" and callable(getattr(type(thing), n))]


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


class Call(NamedTuple):
    """A target and what it is given."""

    target: Target
    given: dict[str, Any]


def single_places(every: list[Target]) -> list[tuple[Target, str, Any]]:
    """Every odd value in the place of every single argument."""
    return [
        (target, name, odd)
        for target in every
        for name in target.parameters
        for odd in ODD
        if may_be_given(name, odd)
    ]


def random_replacements(
    every: list[Target], good: Calls, random: np.random.Generator
) -> Iterator[Call]:
    """Random targets with good arguments, of which one to three are odd; without end."""
    weights = chances(every)
    while True:
        for chosen in random.choice(len(every), 1_000, p=weights):
            yield Call(every[chosen], arguments_for(every[chosen], good, random))


def arguments_for(target: Target, good: Calls, random: np.random.Generator) -> dict[str, Any]:
    """Good arguments of which one to three are odd."""
    given = good.arguments(target.name, target.required)
    for name in target.parameters:
        if name not in given and name in good.by_name and random.random() < 0.15:
            given[name] = good.by_name[name]
    for _ in range(random.integers(1, 4) if target.parameters else 0):
        name = target.parameters[random.integers(len(target.parameters))]
        odd = ODD[random.integers(len(ODD))]
        if may_be_given(name, odd):
            given[name] = fresh(odd)
    return given


def may_be_given(name: str, odd: Any) -> bool:
    """Whether this asks for no more work than a test has time for."""
    much = name in WORK and isinstance(odd, int | np.integer) and odd > 1_000
    return not much and not (name == "ids" and is_empty(odd))  # no `ids`: all experiments


def fresh(odd: Any) -> Any:
    """The same again; of an iterator one that nobody has gone through."""
    return copy.copy(odd) if hasattr(odd, "__next__") else odd


def is_empty(given: Any) -> bool:
    """Whether there is nothing in it, or may be nothing any more."""
    return (
        hasattr(given, "__next__")
        or (hasattr(given, "shape") and 0 in given.shape)
        or (isinstance(given, (list, tuple, set, dict)) and not given)
    )


def chances(every: list[Target]) -> np.ndarray:
    """How often each target is chosen."""

    def weight(name: str) -> float:
        return min((w for prefix, w in RARE.items() if name.startswith(prefix)), default=1.0)

    weights = np.array([weight(target.name) for target in every])
    return weights / weights.sum()


def tried(target: Target, given: dict[str, Any]) -> Fault | None:
    """Make a call; return what is wrong with it."""
    try:
        with warnings.catch_warnings(record=True) as caught, quiet():
            warnings.simplefilter("always")
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            signal.alarm(20 * SECONDS)  # for one that only waits
            found = target.call(**given)
            if inspect.isgenerator(found):
                next(found, None)
            stop_clocks()
    except rv.RetvarError:
        pass  # as it should be; but without a warning before it
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        inside = [f for f in frames if f.filename.startswith(PACKAGE)]
        refused = isinstance(error, (TypeError, MemoryError)) and not inside  # by Python itself
        refused |= isinstance(error, AssertionError) and target.name == "rv.testing.check_learner"
        own = frames[-1].filename == __file__ and frames[-1].name == "<lambda>"
        if refused or own:  # `own`: an error of the function that was given
            return None
        last = f"{inside[-1].filename.removeprefix(PACKAGE)}:{inside[-1].lineno}" if inside else ""
        return Fault(target.name, given, type(error).__name__, last, str(error)[:200])
    finally:
        stop_clocks()
    loud = [w for w in caught if not issubclass(w.category, (UserWarning, ResourceWarning))]
    if loud:
        first = loud[0]
        where = f"{first.filename}:{first.lineno}"
        text = str(first.message)[:200]
        return Fault(target.name, given, first.category.__name__, where, text)
    return None


def stop_clocks() -> None:
    """The call has ended."""
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.alarm(0)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Nothing is printed."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


class TooLong(BaseException):
    """A call took too long."""


def _too_long(*_: Any) -> None:
    raise TooLong(f"more than {SECONDS} s")


def faults(
    calls: int, seed: int, make: Callable[[Path], Calls] = Good
) -> Counter[tuple[str, str, str]]:
    """Make so many calls; return how often each fault was met, and print each once."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for number in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(number, _too_long)
    random = np.random.default_rng(seed)
    found: Counter[tuple[str, str, str]] = Counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        good = make(folder)
        os.chdir(folder)
        every = list(targets(good))
        singles = single_places(every)
        print(f"{len(every)} targets, {len(singles):,} single odd arguments", flush=True)
        first = (
            Call(target, good.arguments(target.name, target.required) | {name: fresh(odd)})
            for target, name, odd in (singles if calls >= len(singles) else ())
        )
        others = random_replacements(every, good, random)
        for target, given in islice(chain(first, others), calls):
            fault = tried(target, given)
            if fault is not None:
                key = (fault.name, fault.kind, fault.where)
                if key not in found:
                    shown = {n: literal(x)[:60] for n, x in given.items()}
                    print(f"{' '.join(key)}: {fault.text}\n    {shown}", flush=True)
                found[key] += 1
    return found


def main() -> int:
    calls = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else int.from_bytes(os.urandom(4))
    make: Callable[[Path], Calls] = Good
    if sys.argv[3:] == ["deep"]:
        from tests.good_critics import Critics

        make = Critics
    found = faults(calls, seed, make)
    count = sum(found.values())
    print(f"{calls:,} calls with seed {seed}: {count:,} faults in {len(found)} places")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
