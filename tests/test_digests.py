"""Today's numbers, pinned: what a change that should change nothing must leave as it was.

Each case is a function that returns arrays by name. ``tests/data/digests/digests.json`` holds a
SHA-256 for each case, and beside it lie the arrays themselves, a file for each group, so that a
failure can say which array differs, where, and by how much.

Arrays are compared to the bit. Those that come through a library whose last bits depend on the
machine are compared to 1e-12 of their largest number instead, and each case says which these are
(``close``): LAPACK (``solve`` and whatever is measured against the truth), BLAS (predictions for
features that are given), ``pow`` of libm (steps α/nᵖ with p < 1), NumPy's ``exp``, ``log`` and
sums (intervals and comparisons). On the machine that made the recordings these have the same bits
as well: ``RETVAR_DIGESTS=bits`` asks for them everywhere. ``RETVAR_DIGESTS_THREADS`` sets the
threads of simulations (default 2), on which no bit depends.

To record new cases, and to record again what has changed and is named::

    python tests/test_digests.py --write
    python tests/test_digests.py --write --force simulate/ratios exact/solve_chain

Where names of variables are changed, put the new and the old one into ``RENAMED``: the recordings
keep theirs.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import itertools
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from matplotlib.figure import Figure
from safetensors.numpy import load_file, save_file

import retvar as rv

DATA = Path(__file__).parent / "data" / "digests"
CLOSE = 1e-12  # of an array's largest number, or of 1
EVERY_BIT = os.environ.get("RETVAR_DIGESTS") == "bits"
THREADS = int(os.environ.get("RETVAR_DIGESTS_THREADS", "2"))
RENAMED: dict[str, str] = {}  # a word in the name of an array → what the recordings call it
TRUTH = ("^true", "^frozen", "mse")  # arrays that come through LAPACK
ALL = (".",)

Arrays = dict[str, np.ndarray]


class Case(NamedTuple):
    """A function that returns arrays, and patterns of those that are compared to 1e-12."""

    make: Callable[[], Arrays]
    close: tuple[str, ...]


CASES: dict[str, Case] = {}


def case(group: str, close: tuple[str, ...] = ()) -> Callable[[Any], Any]:
    """Put a function into the table, under its group and its name."""

    def put(make: Callable[[], Arrays]) -> Callable[[], Arrays]:
        CASES[f"{group}/{make.__name__}"] = Case(make, close)
        return make

    return put


# ------------------------------------------------------------------------ comparing


def plain(arrays: dict[str, Any]) -> Arrays:
    """Arrays as they are recorded: names of the recordings, numbers of 8 bytes, one NaN."""
    found = {}
    for name, given in arrays.items():
        x = np.array(given)
        x = x.astype(np.float64 if x.dtype.kind == "f" else np.int64)
        if x.dtype.kind == "f":
            x[np.isnan(x)] = np.nan
        words = [RENAMED.get(word, word) for word in name.split(" ")]
        found[" ".join(words)] = x
    return found


def made(name: str) -> Arrays:
    """What a case gives now."""
    return plain(CASES[name].make())


def is_close(array: str, close: tuple[str, ...]) -> bool:
    """Whether an array is compared to 1e-12."""
    return any(re.search(pattern, array) for pattern in close)


def digest(arrays: Arrays, close: tuple[str, ...]) -> str:
    """SHA-256 of the arrays that are compared to the bit; of the others, of their shapes."""
    found = hashlib.sha256()
    for name in sorted(arrays):
        x = arrays[name]
        found.update(f"{name} {x.dtype.str} {x.shape}\n".encode())
        if not is_close(name, close):
            found.update(np.ascontiguousarray(x).tobytes())
    return found.hexdigest()


def differences(found: Arrays, recorded: Arrays, close: tuple[str, ...]) -> list[str]:
    """A line for each array that differs: where, and by how much."""
    lines = [f"{name}: is gone" for name in recorded if name not in found]
    for name, now in found.items():
        if name not in recorded:
            lines.append(f"{name}: is not in the recordings")
            continue
        was = recorded[name]
        if (now.shape, now.dtype) != (was.shape, was.dtype):
            lines.append(f"{name}: {now.dtype} {now.shape}, was {was.dtype} {was.shape}")
            continue
        tolerance = 0.0
        if is_close(name, close) and was.dtype.kind == "f":
            finite = np.abs(was[np.isfinite(was)])
            tolerance = CLOSE * max(1.0, finite.max(initial=0.0))
        lines += _difference(name, now, was, tolerance)
    return lines


def _difference(name: str, now: np.ndarray, was: np.ndarray, tolerance: float) -> Iterator[str]:
    one, other = (np.ascontiguousarray(x).view(np.int64) for x in (now, was))
    wrong = np.reshape(one != other, now.shape)
    with np.errstate(invalid="ignore", over="ignore"):
        gap = np.abs(now - was) if now.dtype.kind == "f" else abs(now - was)
    if tolerance:
        wrong &= ~(gap <= tolerance) & (now != was)
    if not wrong.any():
        return
    size = np.where(wrong & ~np.isnan(gap), gap, 0)
    first = tuple(map(int, np.argwhere(wrong)[0]))
    worst = tuple(map(int, np.unravel_index(np.argmax(size), size.shape)))
    at = [first] if first == worst else [first, worst]
    where = "; ".join(f"at {p} {now[p]!r}, was {was[p]!r} (by {gap[p]:.3g})" for p in at)
    yield f"{name}: {int(wrong.sum())} of {now.size} numbers differ, {where}"


# ------------------------------------------------------------------------ recordings


def recordings() -> dict[str, Any]:
    """Digests by case, as recorded."""
    path = DATA / "digests.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def recorded_arrays(name: str) -> Arrays:
    """Arrays of a case, as recorded."""
    group, own = name.split("/")
    return {key.split("|")[1]: x for key, x in _file_of(group).items() if key.split("|")[0] == own}


@functools.cache
def _file_of(group: str) -> Arrays:
    path = DATA / f"{group}.safetensors"
    return load_file(path) if path.exists() else {}


def faults(name: str, found: Arrays, bits: bool = EVERY_BIT) -> list[str]:
    """What is not as it was recorded."""
    close = CASES[name].close
    recorded = recorded_arrays(name)
    if not recorded:
        return [f"{name}: has not been recorded; python tests/test_digests.py --write"]
    wanted = recordings().get(name)
    if digest(recorded, close) != wanted:
        return [f"{name}: digests.json and the arrays beside it do not belong together"]
    lines = differences(found, recorded, () if bits else close)
    assert lines or digest(found, close) == wanted
    return [f"{name}: {line}" for line in lines]


def write(force: list[str]) -> list[str]:
    """Record cases that are new or named; the names of others that have changed are returned."""
    digests, groups, changed = recordings(), {}, []
    unknown = set(force) - set(CASES)
    if unknown:
        raise SystemExit(f"no such case: {', '.join(sorted(unknown))}")
    for name in CASES:
        group, own = name.split("/")
        arrays, old = made(name), recorded_arrays(name)
        if old and name not in force:
            if faults(name, arrays, bits=False):
                changed.append(name)
            arrays = old
        else:
            digests[name] = digest(arrays, CASES[name].close)
        groups.setdefault(group, {}).update({f"{own}|{key}": x for key, x in arrays.items()})
    if not changed:
        DATA.mkdir(parents=True, exist_ok=True)
        for group, whole in groups.items():
            save_file({key: whole[key] for key in sorted(whole)}, DATA / f"{group}.safetensors")
        text = json.dumps({name: digests[name] for name in sorted(CASES)}, indent=1)
        (DATA / "digests.json").write_text(text + "\n", encoding="utf-8")
    return changed


# ------------------------------------------------------------------------ what cases are made of

OFF = {"target": "pi", "behaviour": "mu"}
AT = [0, 1, 5, 60]
WIDE = {"at": AT, "window": 20, "rmse": True}
START = np.array([0.5, -0.25, 1.0, 0.125, -1.5])  # a list would span a grid
METHODS = ("direct", "vtd", "centred")


def domain(ends: bool = True) -> Any:
    """Four states, two actions; noise, ends, γ and λ of each state, two policies."""
    last = "end" if ends else 0
    edges = [
        (0, 0, 1, 0.75, 1.0, 0.5), (0, 0, 2, 0.25, -1.0, 0.0), (0, 1, 3, 1.0, 0.5, 1.0),
        (1, 0, 1, 0.5, 0.25, 0.0), (1, 0, 3, 0.5, 2.0, 0.25), (1, 1, 0, 1.0, -0.5, 0.0),
        (2, 0, last, 0.5, 3.0, 1.0), (2, 0, 0, 0.5, 0.0, 0.0), (2, 1, 1, 1.0, 1.0, 0.5),
        (3, 0, last, 0.25, -2.0, 0.0), (3, 0, 2, 0.75, 1.0, 0.125), (3, 1, 2, 1.0, 0.0, 2.0),
    ]  # fmt: skip
    return rv.MDP.from_edges(
        edges, gamma=[0.5, 0.75, 0.9, 0.95], lam=[1.0, 0.25, 0.5, 0.75], states=4, actions=2,
        policies={
            "mu": [[0.5, 0.5], [0.75, 0.25], [0.5, 0.5], [0.25, 0.75]],
            "pi": [[0.75, 0.25], [0.5, 0.5], [1.0, 0.0], [0.5, 0.5]],
        },
    )  # fmt: skip


FEATURES = np.array([[1.0, 0.5, 0.0], [0.0, -1.0, 0.25], [0.5, 0.5, 1.0], [-0.75, 0.0, 0.5]])
VALUE_FEATURES = np.array([[1.0, 0.0], [0.5, -1.0], [0.25, 0.75], [0.0, 1.5]])


def numbers(data: Any) -> Arrays:
    """All variables of a dataset that are numbers, and the moments along it."""
    names = [*data.data_vars, *({"step", "episode"} & set(data.coords))]
    return {f"{name}": data[name].values for name in names if data[name].dtype.kind in "fiub"}


def simulated(mdp: Any, learners: Any, record: Any = None, **how: Any) -> Arrays:
    """What a simulation gives, every run of it unless something else is asked for."""
    how = {"runs": 2, "seed": 3, "keep": "runs", "threads": THREADS, **how}
    if isinstance(record, dict):
        record = rv.Record(**record)
    return numbers(rv.simulate(mdp, learners, record=record, **how))


# ------------------------------------------------------------------------ simulate


def pairs(mdp: Any, record: dict | None = None, how: dict | None = None, **settings: Any) -> Arrays:
    """Direct and VTD on one value node, as in Table 1."""
    learners = rv.grid(rv.Direct, rv.VTD, **{"alpha": 0.1, "alpha_bar": [0.01, 0.1], **settings})
    record = {**WIDE, "change": True, **(record or {})}
    return simulated(mdp, learners, record, **{"steps": 200, **(how or {})})


@case("simulate", TRUTH)
def shared() -> Arrays:
    return pairs(rv.domains.complex_mdp())


@case("simulate", TRUTH)
def shared_statistics() -> Arrays:
    return pairs(rv.domains.complex_mdp(), how={"runs": 7, "keep": "stats"})


@case("simulate", TRUTH)
def shared_batches() -> Arrays:
    return pairs(rv.domains.complex_mdp(), how={"runs": 5, "keep": "stats", "batch": 2})


@case("simulate", TRUTH)
def some_states() -> Arrays:
    return pairs(rv.domains.complex_mdp(), {"states": [3, 1]})


@case("simulate", TRUTH)
def ratios() -> Arrays:
    return pairs(rv.domains.complex_mdp(), how=OFF)


@case("simulate", TRUTH)
def weighted_return() -> Arrays:
    return pairs(rv.domains.complex_mdp(), how=OFF, estimand="off_policy_return")


@case("simulate", TRUTH)
def episodes() -> Arrays:
    return pairs(rv.domains.chain(), how={"episodes": 60, "steps": None})


FROZEN = {"alpha": 0.0, "learn_value": False}


@case("simulate", TRUTH)
def frozen_noisy() -> Arrays:
    held = rv.Noisy([3.5, 3.0, 1.75, 1.25], uniform=0.3, normal=0.1)
    return pairs(rv.domains.chain(), how={"episodes": 60, "steps": None}, **FROZEN, value=held)


@case("simulate", TRUTH)
def frozen_per_run() -> Arrays:
    held = rv.PerRun(np.arange(20.0).reshape(5, 4) / 8)
    how = {"episodes": 60, "steps": None, "first_run": 2, "runs": 3}
    return pairs(rv.domains.chain(), how=how, **FROZEN, value=held)


@case("simulate", TRUTH)
def frozen_statistics() -> Arrays:
    held = rv.Noisy(2.0, uniform=0.5)
    how = {"episodes": 60, "steps": None, "runs": 6, "keep": "stats"}
    return pairs(rv.domains.chain(), how=how, **FROZEN, value=held)


@case("simulate", ALL)  # pow: α/n^0.6
def rules() -> Arrays:
    learners = []
    for alpha, gamma in ((0.7, None), (0.9, 0.5)):
        learners += rv.grid(
            rv.Direct, rv.VTD, rv.Centred, alpha=rv.Decay(alpha, 0.6), gamma=gamma,
            value=START, alpha_bar=rv.Adadelta(alpha, 1e-2), alpha_mean=rv.Decay(),
        )  # fmt: skip
    record = {**WIDE, "step_sizes": True}
    return simulated(rv.domains.complex_mdp(), learners, record, steps=200, seed=4, **OFF)


@case("simulate", ALL)  # pow
def averaged() -> Arrays:
    alphas = [rv.Averaged(), rv.Averaged(0.5)]
    learners = rv.grid(rv.Direct, rv.VTD, rv.Centred, alpha=alphas, value=0.5)
    record = {**WIDE, "step_sizes": True}
    return simulated(rv.domains.complex_mdp(), learners, record, steps=200, seed=14, **OFF)


@case("simulate", ALL)  # pow
def averaged_traces() -> Arrays:
    learners = rv.grid(
        rv.Direct, alpha=rv.Averaged(0.3), alpha_bar=[rv.Averaged(0.1), rv.Averaged(0.2)],
        kappa=0.5, kappa_bar=0.7,
    )  # fmt: skip
    record = {**WIDE, "change": True, "step_sizes": True}
    return simulated(domain(), learners, record, steps=200, seed=15, features=FEATURES)


@case("simulate", TRUTH)
def features() -> Arrays:
    learners = []
    for alpha, lam in ((0.5, None), (0.05, 0.5)):
        learners += rv.grid(
            rv.Direct, rv.VTD, alpha=rv.AlphaBound(alpha), lam=lam, alpha_bar=[0.01, 0.02],
            kappa=0.5, kappa_bar=0.7, value=START[:2], estimand="off_policy_return",
        )  # fmt: skip
    record = {**WIDE, "change": True, "step_sizes": True}
    tables = {"features": FEATURES, "value_features": VALUE_FEATURES}
    return simulated(domain(), learners, record, episodes=60, seed=5, **OFF, **tables)


@case("simulate", TRUTH)
def traces_by_rule() -> Arrays:
    learners = rv.grid(
        rv.Centred, alpha=rv.Adadelta(0.9, 1e-2), alpha_mean=rv.AlphaBound(),
        alpha_bar=[rv.AlphaBound(0.5), rv.AlphaBound(0.1)],
        kappa_mean=np.array([0.25, 0.5, 0.75, 1.0]), kappa_bar=0.9,
    )  # fmt: skip
    record = {**WIDE, "step_sizes": True}
    return simulated(domain(ends=False), learners, record, steps=150, seed=6)


@case("simulate", TRUTH)
def traces_of_tables() -> Arrays:
    learners = rv.grid(
        rv.Direct, rv.VTD, rv.Centred, alpha=[0.1, 0.2], alpha_bar=0.05, kappa=0.9, kappa_bar=0.8,
        initial_variance=abs(START[:4]),
    )  # fmt: skip
    return simulated(domain(), learners, WIDE, steps=150, seed=16, **OFF)


@case("simulate", TRUTH)
def frozen_features() -> Arrays:
    learners = rv.grid(
        rv.VTD, rv.Centred, alpha=0.0, alpha_mean=0.1, alpha_bar=[rv.Decay(), rv.Decay(0.5)],
        value=START[:3], learn_value=False,
    )  # fmt: skip
    table = np.vstack([FEATURES, [0.25, 0.5, -0.5]])
    record = {**WIDE, "change": True}
    return simulated(rv.domains.complex_mdp(), learners, record, steps=150, seed=7, features=table)


def walk_features() -> dict[str, np.ndarray]:
    x = (np.arange(30) + 1) / 30
    ones = np.ones(30)
    return {"features": np.stack([ones, x, x * x], 1), "value_features": np.stack([ones, x], 1)}


def walk(**how: Any) -> Any:
    """Learners with features on the random walk."""
    settings = {"alpha": 2**-9, "kappa": 0.95, "kappa_bar": 0.95}
    learners = {
        "direct": rv.Direct(**settings, alpha_bar=2**-8),
        "vtd": rv.VTD(**settings, alpha_bar=2**-8),
        "centred": rv.Centred(**settings, alpha_bar=2**-8),
    }
    how = {"steps": 600, "runs": 3, "seed": 1, "threads": THREADS, **how}
    record = rv.Record(points=3, rmse=True)
    return rv.simulate(rv.domains.random_walk(), learners, record=record, **walk_features(), **how)


@case("simulate", TRUTH)
def random_walk() -> Arrays:
    return numbers(walk(keep="runs").isel(state=slice(None, None, 3)))


DIRECT = {"alpha": [0.05, 0.5]}


@case("simulate", TRUTH)
def many() -> Arrays:
    learners = rv.grid(rv.Direct, alpha=np.arange(1, 13) / 14)
    return simulated(rv.domains.complex_mdp(), learners, WIDE, steps=150, seed=8, keep="stats")


@case("simulate", TRUTH)
def first_run() -> Arrays:
    learners = rv.grid(rv.Direct, **DIRECT, value=rv.Noisy(START, uniform=0.5))
    how = {"steps": 90, "runs": 4, "first_run": 3}
    return simulated(rv.domains.complex_mdp(), learners, WIDE, **how)


@case("simulate", TRUTH)
def own_questions() -> Arrays:
    own = {"gamma": abs(START) / 2, "lam": 1 - abs(START) / 4}
    learners = rv.grid(rv.Direct, **DIRECT, **own, initial_variance=START[2])
    return simulated(rv.domains.complex_mdp(), learners, WIDE, steps=90, seed=2**64 - 1)


@case("simulate", TRUTH)
def moments() -> Arrays:
    found: Arrays = {}
    for how, record in {"log": "log", "every": 40, "usual": None, "points": {"points": 7}}.items():
        learners = rv.grid(rv.Direct, **DIRECT)
        part = simulated(rv.domains.complex_mdp(), learners, record, steps=120, runs=1)
        found |= {f"{how} {name}": part[name] for name in ("step", "value")}
    return found


@case("simulate", TRUTH)
def diverging() -> Arrays:
    learners = rv.grid(rv.Direct, alpha=[0.1, 1e60, 0.2, 30.0, 0.3])
    record = {**WIDE, "at": [*AT, 700]}
    return simulated(rv.domains.complex_mdp(), learners, record, steps=700, seed=8)


@case("simulate", TRUTH)
def diverging_statistics() -> Arrays:
    learners = rv.grid(rv.Direct, alpha=[0.1, 1e60, 0.2, 30.0, 0.3])
    how = {"steps": 260, "runs": 4, "keep": "stats"}
    return simulated(rv.domains.complex_mdp(), learners, {"at": [10, 130, 260]}, **how)


@case("simulate")
def replayed() -> Arrays:
    found = {}
    for name, how in {
        "steps": {"steps": 80},
        "episodes": {"episodes": 9, "run": 4},
        "ratios": {"steps": 80, "run": 2, **OFF},
    }.items():
        columns = rv.replay(domain(), seed=11, **how)
        found |= {f"{name} {column}": x for column, x in columns.items()}
    return found


# ------------------------------------------------------------------------ online learners

GIVEN = ("^value", "^variance", "^interval")  # w·φ by BLAS; intervals by NumPy's sums


def stream(count: int = 120, streams: int = 3, seed: int = 0) -> dict[str, np.ndarray]:
    """Columns with ends, cuts, ratios, γ and λ of each transition; numbers are k/64."""
    rng = np.random.default_rng(seed)
    whole = lambda low, high: rng.integers(low, high, size=count)  # noqa: E731
    return {
        "state": whole(0, 4),
        "reward": whole(-128, 129) / 64,
        "next_state": whole(0, 4),
        "terminated": whole(0, 7) == 0,
        "truncated": whole(0, 10) == 0,
        "rho": np.maximum(whole(-32, 129), 0) / 64,
        "gamma": np.minimum(whole(0, 80), 64) / 64,
        "lam": np.minimum(whole(0, 80), 64) / 64,
        "stream": whole(0, streams),
    }


def one_by_one(learner: Any, columns: dict[str, Any]) -> None:
    """Feed a learner, row by row."""
    for row in zip(*columns.values(), strict=True):
        given = {k: x if np.ndim(x) else x.item() for k, x in zip(columns, row, strict=True)}
        learner.update(given.pop("state"), given.pop("reward"), given.pop("next_state"), **given)


def in_chunks(learner: Any, columns: dict[str, Any], cuts: tuple[int, ...] = (1, 50, 53)) -> None:
    """Feed a learner, chunk by chunk."""
    ends = (0, *cuts, len(columns["reward"]))
    for first, last in itertools.pairwise(ends):
        learner.update_many({name: x[first:last] for name, x in columns.items()})


def state_of(learner: Any, **answers: Any) -> Arrays:
    """What a learner knows: estimates, weights, last errors and steps."""
    found = {f"weights {node}": x for node, x in learner.weights.items()}
    found |= {f"error {node}": np.array(x) for node, x in learner.td_errors.items()}
    found |= {f"step {node}": np.array(x) for node, x in learner.step_sizes.items()}
    found["counts"] = np.array([learner.steps, learner.rejected])
    return found | answers


def answers(learner: Any) -> Arrays:
    """Estimates of all states."""
    names = ("value", "variance", "std", "mean", "second_moment")
    return {name: getattr(learner, name)() for name in names}


def learner_of(method: str, **settings: Any) -> Any:
    """A learner by the name of its method."""
    kinds = {"direct": rv.Direct, "vtd": rv.VTD, "centred": rv.Centred}
    return kinds[method](**settings)


def put_online(method: str, estimand: str) -> None:
    """Cases of a method and estimand: one by one, and the same in chunks with other settings."""
    steps = {
        "direct": {"alpha": 0.125, "alpha_bar": rv.AlphaBound(0.5)},
        "vtd": {"alpha": rv.Adadelta(0.9, 1e-2), "alpha_bar": 0.0625},
        "centred": {"alpha": rv.Decay(), "alpha_bar": 0.125, "alpha_mean": rv.AlphaBound()},
    }[method]
    settings = {"kappa": 0.75, "kappa_bar": [0.25, 0.5, 0.75, 1.0], "estimand": estimand, **steps}
    settings |= {"value": [0.5, -0.25, 1.0, 0.0], "initial_variance": [0.5, 0.25, 0.0, 1.0]}

    def single() -> Arrays:
        learner = learner_of(method, **settings).online(states=4)
        one_by_one(learner, stream())
        return state_of(learner, **answers(learner))

    def chunks() -> Arrays:
        learner = learner_of(method, **settings).online(features=FEATURES[:, [0, 1, 2, 0]])
        in_chunks(learner, stream(seed=1))
        return state_of(learner, **answers(learner))

    question = {"target_return": "target", "off_policy_return": "weighted"}[estimand]
    for make in (single, chunks):
        CASES[f"online/{make.__name__}_{method}_{question}"] = Case(make, ())


for each in METHODS:
    for question in ("target_return", "off_policy_return"):
        put_online(each, question)


@case("online", ALL)  # pow
def powers() -> Arrays:
    found: Arrays = {}
    for method in METHODS:
        settings = {"alpha": rv.Averaged(), "alpha_bar": rv.Decay(0.7, 0.6), "kappa": 0.5}
        learner = learner_of(method, **settings).online(states=4)
        in_chunks(learner, stream(seed=2))
        part = state_of(learner, **answers(learner))
        found |= {f"{method} {name}": x for name, x in part.items()}
    return found


@case("online")
def own_discounts() -> Arrays:
    own = {"gamma": [0.5, 0.75, 1.0, 0.25], "lam": 0.5, "kappa": 1.0}
    learner = rv.Direct(alpha=0.25, alpha_bar=0.125, **own).online(states=4)
    columns = stream(seed=3)
    del columns["gamma"], columns["lam"], columns["rho"]
    in_chunks(learner, columns)
    return state_of(learner, **answers(learner))


@case("online")
def frozen_value() -> Arrays:
    learner = rv.Centred(alpha=0.0, alpha_bar=0.125, value=1.5, learn_value=False)
    learner = learner.online(states=4)
    in_chunks(learner, stream(seed=4, streams=1))
    return state_of(learner, **answers(learner))


def vectors(columns: dict[str, Any], table: np.ndarray) -> dict[str, Any]:
    """Features in place of states."""
    return {**columns, **{k: table[columns[k]] for k in ("state", "next_state")}}


@case("online", GIVEN)
def vector_features() -> Arrays:
    settings = {"alpha": 0.0625, "kappa": 0.75, "kappa_bar": 0.5}
    learner = rv.VTD(**settings).online(features=3)
    in_chunks(learner, vectors(stream(seed=5), FEATURES))
    one_by_one(learner, vectors(stream(20, seed=6), FEATURES))
    found = {name: learner.predict(FEATURES, name) for name in ("value", "variance")}
    found["value alone"] = np.array([learner.value(row) for row in FEATURES])
    return state_of(learner, **found)


@case("online", GIVEN)
def active_features() -> Arrays:
    """Many weights, few of them active: lazy traces."""
    sets = np.array([[0, 7, 15], [1, 7, 20], [2, 30, 39], [0, 20, 39]])
    found: Arrays = {}
    for method in METHODS:
        settings = {"alpha": 0.125, "alpha_bar": 0.0625, "kappa": 0.75, "kappa_bar": 0.5}
        learner = learner_of(method, **settings).online(features=rv.features.Active(40))
        in_chunks(learner, vectors(stream(seed=7), sets))
        one_by_one(learner, vectors(stream(20, seed=8), sets))
        part = {name: learner.predict(sets, name) for name in ("value", "variance")}
        found |= {f"{k} {method}": x for k, x in state_of(learner, **part).items()}
    return found


@case("online", GIVEN)
def features_of_their_own() -> Arrays:
    learner = rv.Direct(alpha=0.125, kappa=0.5).online(features=3, value_features=2)
    columns = stream(40, seed=9)
    states = [
        {"value": v, "mean": v, "variance": x}
        for v, x in zip(VALUE_FEATURES, FEATURES, strict=True)
    ]
    for row in zip(*columns.values(), strict=True):
        given = {k: x.item() for k, x in zip(columns, row, strict=True)}
        now, reward, then = (given.pop(k) for k in ("state", "reward", "next_state"))
        learner.update(states[now], reward, states[then], **given)
    asked = ("value", "variance")
    found = {name: np.array([getattr(learner, name)(s) for s in states]) for name in asked}
    return state_of(learner, **found)


@case("online", ("^interval",))
def replicates() -> Arrays:
    found: Arrays = {}
    for method in METHODS:
        settings = {"alpha": 0.125, "alpha_bar": rv.Decay(), "kappa": 0.5, "kappa_bar": 0.25}
        learner = learner_of(method, **settings).online(states=4, bootstrap_samples=12, seed=5)
        in_chunks(learner, stream(seed=10))
        one_by_one(learner, stream(20, seed=11))
        part = {
            f"replicate {k}": learner.bootstrap_estimates(what=k)
            for k in ("value", "mean", "variance")
        }
        part |= {f"interval {k}": np.array(learner.interval(what=k)) for k in ("value", "std")}
        part["interval of one"] = np.array(learner.interval(2, "variance", level=0.5))
        found |= {f"{name} {method}": x for name, x in state_of(learner, **part).items()}
    return found


@case("online", ("^interval",))
def replicates_of_active_features() -> Arrays:
    sets = np.array([[0, 7, 15], [1, 7, 20], [2, 30, 39], [0, 20, 39]])
    learner = rv.Direct(alpha=0.125, kappa=0.75, kappa_bar=0.5)
    learner = learner.online(features=rv.features.Active(40), bootstrap_samples=8)
    in_chunks(learner, vectors(stream(seed=12), sets))
    ends = learner.interval(what="variance", states=sets)
    copies = learner.bootstrap_estimates(what="value", states=sets)
    return state_of(learner, **{"interval": np.array(ends), "interval copies": copies})


@case("online")
def saved_and_loaded() -> Arrays:
    found: Arrays = {}
    settings = {"alpha": 0.125, "alpha_bar": rv.Adadelta(0.9, 1e-2), "kappa": 0.75}
    plans = {
        "plain": (settings, {"states": 4}),
        "bound": (
            {**settings, "alpha_bar": rv.AlphaBound()},
            {"states": 4, "bootstrap_samples": 5},
        ),
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, (own, how) in plans.items():
            path = Path(folder) / f"{name}.safetensors"
            learner = rv.Centred(**own).online(**how)
            in_chunks(learner, stream(seed=13))
            learner.save(path)
            learner = rv.load(path)
            in_chunks(learner, stream(seed=14))
            part = state_of(learner, **answers(learner))
            if learner.bootstrap_samples:
                part["replicate"] = learner.bootstrap_estimates(what="variance")
            found |= {f"{name} {k}": x for k, x in part.items()}
    return found


@case("online")
def bad_rows_cuts_and_growth() -> Arrays:
    learner = rv.Direct(alpha=0.125, kappa=0.75, kappa_bar=0.75).online(states=4)
    columns = stream(seed=15)
    columns["reward"][[3, 40, 41]] = np.nan
    learner.update_many(columns, on_error="skip")
    learner.reset_traces(1)
    learner.grow(6)
    more = stream(60, seed=16)
    more["state"] += 2
    learner.update_many(more)
    return state_of(learner, **answers(learner))


# ------------------------------------------------------------------------ estimate


def estimated(experience: Any, **how: Any) -> Any:
    """An estimate with few bootstrap samples."""
    return rv.estimate(experience, bootstrap_samples=10, **how)


def lake(steps: int = 1_500, seed: int = 1, name: str = "FrozenLake-v1") -> Any:
    return rv.experience.from_gymnasium(name, "random", steps=steps, seed=seed)


def log(observed: bool = False, **more: Any) -> Any:
    """A log in memory: states as labels, or observations of two numbers."""
    columns = rv.replay(domain(), seed=21, steps=900, **OFF)
    states = columns["state"]
    found = {"reward": columns["reward"], "terminated": columns["terminated"]}
    if observed:
        found |= {"state_0": states / 4 + np.arange(900) % 5 / 64, "state_1": states % 2 + 0.5}
    else:
        found["state"] = np.array(["north", "east", "south", "west"])[states]
    return rv.experience.from_table(found | more, **{name: name for name in more})


def ratios_of_log() -> dict[str, np.ndarray]:
    """Columns of an off-policy log: probabilities of the actions taken."""
    rho = rv.replay(domain(), seed=21, steps=900, **OFF)["rho"]
    return {"behaviour": np.full(900, 0.5), "target": np.minimum(rho, 2.0) / 2}


def thinned(data: Any) -> Arrays:
    """A dataset of estimates: of its map each tenth point, of the returns seen each fourth."""
    steps = {"x": 10, "y": 10, "sample": 4}
    return numbers(
        data.isel({name: slice(1, None, k) for name, k in steps.items() if name in data.dims})
    )


# Averaged, the step size that is taken where none is given, is α/n^0.6: pow.


@case("estimate", ALL)
def frozen_lake() -> Arrays:
    return thinned(estimated(lake(), gamma=0.9).data)


@case("estimate", ALL)
def frozen_lake_centred() -> Arrays:
    return thinned(estimated(lake(), gamma=0.9, method="centred", lam=0.5).data)


@case("estimate", ALL)
def frozen_lake_vtd() -> Arrays:
    return thinned(estimated(lake(), gamma=0.9, method="vtd", kappa=0.25, level=0.5).data)


@case("estimate", ALL)
def cliff() -> Arrays:
    return thinned(estimated(lake(name="CliffWalking-v1"), gamma=0.9).data)


@case("estimate", ("_low", "_high"))
def frozen_lake_constant_steps() -> Arrays:
    learner = rv.Direct(alpha=0.125, alpha_bar=0.0625, gamma=0.75, lam=1.0, kappa=0.5)
    return thinned(estimated(lake(), learner=learner).data)


@case("estimate", ("_low", "_high"))
def columns_with_constant_steps() -> Arrays:
    learner = rv.VTD(alpha=0.125, alpha_bar=0.0625, gamma=0.75, lam=0.5)
    return thinned(estimated(log(), learner=learner).data)


@case("estimate", ALL)
def columns() -> Arrays:
    return thinned(estimated(log(), gamma=0.75).data)


@case("estimate", ALL)
def columns_off_policy() -> Arrays:
    return thinned(estimated(log(**ratios_of_log()), gamma=0.75).data)


@case("estimate", ALL)
def columns_weighted_return() -> Arrays:
    how = {"gamma": 0.75, "lam": 0.5, "estimand": "off_policy_return"}
    return thinned(estimated(log(**ratios_of_log()), **how).data)


@case("estimate", ALL)
def columns_with_discounts() -> Arrays:
    own = rv.replay(domain(), seed=21, steps=900, **OFF)
    return thinned(estimated(log(gamma=own["gamma"], lam=own["lam"])).data)


@case("estimate", ALL)
def tiles() -> Arrays:
    return thinned(estimated(log(observed=True), gamma=0.75).data)


@case("estimate", ALL)
def tiles_off_policy() -> Arrays:
    learner = rv.Centred(alpha=0.03125, gamma=0.75, lam=1.0, kappa=0.5, kappa_bar=0.5)
    tiles = rv.features.TileCoding([0.0, 0.0], [1.0, 2.0])
    how = {"learner": learner, "features": tiles}
    return thinned(estimated(log(observed=True, **ratios_of_log()), **how).data)


@case("estimate", ALL)
def other_features() -> Arrays:
    found: Arrays = {}
    for kind in ("fourier", "polynomial"):
        part = estimated(log(observed=True), gamma=0.75, features=kind).data
        found |= {f"{kind} {name}": x for name, x in thinned(part).items()}
    return found


@case("estimate", ALL)
def resumed() -> Arrays:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "learner.safetensors"
        estimated(lake(700), gamma=0.9).save(path)
        found = rv.estimate(lake(700, seed=2), resume=path)
    return thinned(found.data)


@case("estimate", ALL)
def checked() -> Arrays:
    found = estimated(lake(), gamma=0.9)
    data = rv.check(found, lake(seed=2)).data
    return thinned(data.drop_vars(["check_value", "check_predicted_std"]))


# ------------------------------------------------------------------------ exact answers

QUESTIONS = {
    "on": {},
    "target": OFF,
    "weighted": {**OFF, "estimand": "off_policy_return"},
}


def solved(mdp: Any, **how: Any) -> Arrays:
    """An exact solution."""
    found = rv.solve(mdp, **how)
    return {name: np.array(getattr(found, name)) for name in ("value", "mean", "variance", "std")}


@case("exact", ALL)
def solutions() -> Arrays:
    found: Arrays = {}
    for question, how in QUESTIONS.items():
        for name, mdp in {"complex": rv.domains.complex_mdp(), "own": domain()}.items():
            for value in (None, START[: mdp.n_states]):
                part = solved(mdp, **how, value=value)
                held = "held" if value is not None else "true"
                found |= {f"{name} {question} {held} {k}": x for k, x in part.items()}
    return found


@case("exact", ALL)
def solutions_of_domains() -> Arrays:
    found: Arrays = {}
    for name, mdp in {
        "chain": rv.domains.chain(),
        "walk": rv.domains.random_walk(),
        "random": rv.domains.random_mdp(states=12, actions=3, seed=4, ends=0.1),
        "sparse": rv.domains.random_walk(200),
        "lake": rv.MDP.from_gymnasium("FrozenLake-v1", gamma=0.9),
    }.items():
        found |= {f"{name} {k}": x for k, x in solved(mdp).items()}
        found[f"{name} shares"] = rv.stationary_distribution(mdp)
    found |= {f"own lam {k}": x for k, x in solved(rv.domains.chain(), lam=0.25).items()}
    return found


def at_rest(method: str, mdp: Any, **how: Any) -> Arrays:
    """Where a learner ends up."""
    found = rv.fixed_point(method, mdp, **how)
    names = ["value", "mean", "variance", "bias", "second_moment", "rmse"]
    if mdp.n_states < 10:  # that of a long walk is known to 11 digits only
        names.append("trace_radius")
    arrays = {name: np.array(getattr(found, name)) for name in names}
    spectrum = found.spectrum  # in no particular order
    arrays["spectrum sums"] = np.array([spectrum.real.sum(), abs(spectrum).sum()])
    return arrays


@case("exact", ALL)
def fixed_points() -> Arrays:
    found: Arrays = {}
    for question, how in QUESTIONS.items():
        for method in METHODS:
            for value in (None, START[:4]):
                part = at_rest(method, domain(), **how, value=value)
                held = "held" if value is not None else "learned"
                found |= {f"{question} {method} {held} {k}": x for k, x in part.items()}
    return found


@case("exact", ALL)
def linear_fixed_points() -> Arrays:
    found: Arrays = {}
    for method in METHODS:
        decays = {"kappa": 0.95, "kappa_bar": 0.95}
        tables = walk_features()
        tables["mean_features"] = tables["features"]
        part = at_rest(method, rv.domains.random_walk(), **tables, **decays)
        found |= {f"walk {method} {k}": x for k, x in part.items()}
        for question, how in QUESTIONS.items():
            tables = {"features": FEATURES, "value_features": VALUE_FEATURES}
            tables["mean_features"] = FEATURES
            part = at_rest(method, domain(), **how, **tables, kappa=0.5, kappa_bar=0.25)
            found |= {f"own {question} {method} {k}": x for k, x in part.items()}
    return found


@case("exact", ALL)
def sampled_returns() -> Arrays:
    found = rv.monte_carlo(domain(), samples=40, seed=3)
    names = ("mean", "variance", "mean_stderr", "variance_stderr")
    return {name: np.array(getattr(found, name)) for name in names}


@case("exact", ALL)
def updates_expected() -> Arrays:
    found: Arrays = {}
    for method in METHODS:
        part = rv.expected_updates(method, domain(), sweeps=3, alpha=0.5, alpha_bar=0.25, **OFF)
        found |= {f"{method} {k}": getattr(part, k) for k in ("value", "mean", "variance")}
    return found


# ------------------------------------------------------------------------ sweeps


@functools.cache
def swept() -> Any:
    """A small sweep, run and collected."""
    s = rv.sweep
    sweep = s.Sweep(
        name="small", seed=3, runs=8, steps=60,
        domains=[
            s.Domain(id="chain"),
            s.Domain(random={"states": 4, "branching": 2}, seeds={"first": 0, "count": 2}),
        ],
        learners=[
            s.Learners(
                method=list(METHODS), alpha=[0.05, 0.1, 0.2, 0.4], alpha_bar=[0.05, 0.2],
                lam=[0.5, 1.0],
            )
        ],
        cell=s.CellSize(learners=24, runs=4),
        record=s.Points(at="log", points=2),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        s.run(sweep, folder, s.Local(threads=THREADS))
        return s.collect(s.Store.open(folder)).load()


@case("sweep", ALL)  # errors are weighted by LAPACK's stationary distribution
def collected() -> Arrays:
    data = swept()
    coords = ("alpha", "alpha_bar", "lam", "domain_seed")
    return numbers(data) | {name: data[name].values for name in coords}


@case("sweep", ALL)
def compared() -> Arrays:
    found: Arrays = {}
    for name, how in {
        "usual": {},
        "domains": {"over": "domains", "resamples": 200},
        "fixed": {"where": {"alpha": 0.1}, "what": "value_rmse", "at": 60, "resamples": 200},
    }.items():
        part = rv.sweep.compare(swept(), **how).data
        found |= {f"{name} {k}": x for k, x in numbers(part).items()}
    return found


@case("sweep", ALL)
def paired_differences() -> Arrays:
    a, b = swept().learner.values[[0, -1]]
    found: Arrays = {}
    for relative in (False, True):
        how = {"relative": relative, "resamples": 200}
        part = rv.sweep.paired_difference(swept(), str(a), str(b), **how)
        found |= {f"{relative} {k}": x for k, x in numbers(part).items()}
    return found


# ------------------------------------------------------------------------ figures


def drawn(figure: Figure) -> Arrays:
    """Data of lines, points, areas, meshes and images, in data coordinates; no pixels."""
    found: Arrays = {}
    for k, ax in enumerate(figure.axes):
        for i, line in enumerate(ax.lines):
            if line.get_transform().contains_branch(ax.transData):
                found[f"axes{k} line{i}"] = line.get_xydata()
        for i, patch in enumerate(ax.patches):
            if patch.get_transform().contains_branch(ax.transData) and patch.get_path():
                path = patch.get_patch_transform().transform(patch.get_path().vertices)
                found[f"axes{k} patch{i}"] = path
        for i, each in enumerate(ax.collections):
            name = f"axes{k} collection{i}"
            if each.get_offset_transform().contains_branch(ax.transData):
                found[f"{name} offsets"] = np.ma.filled(each.get_offsets().astype(float), np.nan)
            elif each.get_transform().contains_branch(ax.transData) and each.get_paths():
                found[f"{name} paths"] = np.vstack([p.vertices for p in each.get_paths()])
            if each.get_array() is not None:
                found[f"{name} numbers"] = np.ma.filled(each.get_array().astype(float), np.nan)
        for i, image in enumerate(ax.images):
            found[f"axes{k} image{i}"] = np.ma.filled(image.get_array().astype(float), np.nan)
    assert found
    return {name: _thin(x) for name, x in found.items()}


def _thin(x: np.ndarray) -> np.ndarray:
    """An array as it is; of large ones, such as meshes, about 250 numbers from all over."""
    return x if x.size <= 500 else x.ravel()[:: x.size // 250 | 1]


@functools.cache
def learned() -> Any:
    """Three methods on the complex MDP, everything recorded that figures want."""
    settings = {"alpha": 0.1, "alpha_bar": 0.05}
    learners = {
        "direct": rv.Direct(**settings),
        "vtd": rv.VTD(**settings),
        "centred": rv.Centred(**settings),
    }
    record = rv.Record(points=10, window=20, rmse=True, step_sizes=True)
    how = {"steps": 200, "runs": 4, "seed": 9, "threads": THREADS}
    return rv.simulate(rv.domains.complex_mdp(), learners, record=record, **how)


@functools.cache
def lake_data() -> Any:
    return estimated(lake(), gamma=0.9).data


@functools.cache
def observed_data() -> Any:
    return estimated(log(observed=True), gamma=0.75).data


def put_figures() -> None:
    """A case for each plot function: all come through NumPy's functions of numbers."""
    p = rv.plots
    table = {
        "learning_curves": lambda: p.learning_curves(learned()),
        "step_sizes": lambda: p.step_sizes(learned()),
        "rmse_curves": lambda: p.rmse_curves(learned()),
        "final_estimates": lambda: p.final_estimates(walk()),
        "solution": lambda: p.solution(rv.solve(domain())),
        "sensitivity_curves": lambda: p.sensitivity_curves(swept(), resamples=200),
        "sweep_heat_map": lambda: p.sweep_heat_map(swept(), resamples=200),
        "sweep_heat_map_steps": lambda: p.sweep_heat_map(
            swept(), y="alpha_bar", where={"lam": 1.0}, resamples=200
        ),
        "comparison": lambda: p.comparison(swept(), resamples=200),
        "estimate_maps": lambda: p.estimate_maps(lake_data()),
        "estimate_states": lambda: p.estimate_states(lake_data()),
        "calibration": lambda: p.calibration(lake_data()),
        "observed_returns": lambda: p.observed_returns(lake_data()),
        "estimate_heat_maps": lambda: p.estimate_heat_maps(observed_data()),
        "calibration_of_observations": lambda: p.calibration(observed_data()),
    }
    for name, draw in table.items():
        CASES[f"figures/{name}"] = Case(lambda draw=draw: drawn(draw()), ALL)


put_figures()


# ------------------------------------------------------------------------ the tests


@pytest.mark.parametrize("name", CASES)
def test_the_numbers_are_those_recorded(name):
    lines = faults(name, made(name))
    assert not lines, "\n".join(lines)


def test_every_recording_has_its_case():
    files = {path.stem for path in DATA.glob("*.safetensors")}
    assert files == {name.split("/")[0] for name in CASES}
    kept = {f"{group}/{key.split('|')[0]}" for group in files for key in _file_of(group)}
    assert kept == set(CASES) == set(recordings())


def test_one_unit_in_the_last_place_is_told():
    """With its case, its array, where it is, and by how much."""
    name = "simulate/shared"
    arrays = {key: x.copy() for key, x in recorded_arrays(name).items()}
    assert faults(name, arrays, bits=True) == []
    x = arrays["variance"]
    place = (1, 2, 3, 1)
    x[place] = np.nextafter(x[place], np.inf)
    (line,) = faults(name, arrays, bits=False)
    assert line.startswith(f"simulate/shared: variance: 1 of {x.size} numbers differ, at {place} ")
    assert "by " in line
    assert digest(arrays, CASES[name].close) != recordings()[name]


def test_what_is_close_may_differ_in_its_last_bits_and_no_more():
    name = "exact/solutions"
    array = "complex on true variance"
    for factor, told in ((1 + 1e-15, 0), (1 + 1e-9, 1)):
        arrays = {key: x.copy() for key, x in recorded_arrays(name).items()}
        arrays[array] *= factor
        lines = faults(name, arrays, bits=False)
        assert len(lines) == told
        assert all(line.startswith(f"{name}: {array}: ") for line in lines)
        assert faults(name, arrays, bits=True)


def test_arrays_that_come_go_or_change_their_shape_are_told():
    name = "simulate/shared"
    arrays = dict(recorded_arrays(name))
    arrays["new"] = arrays.pop("value")
    arrays["variance"] = arrays["variance"][:1]
    told = [line.split(": ", 2)[1:] for line in faults(name, arrays)]
    assert ["value", "is gone"] in told
    assert ["new", "is not in the recordings"] in told
    assert [each[0] for each in told] == ["value", "variance", "new"]


def main() -> None:
    """Record."""
    parser = argparse.ArgumentParser(description="Record today's numbers.")
    parser.add_argument("--write", action="store_true", required=True)
    parser.add_argument("--force", nargs="*", default=[], metavar="CASE")
    changed = write(parser.parse_args().force)
    if changed:
        sys.exit(f"changed, and nothing written; name them after --force: {' '.join(changed)}")


if __name__ == "__main__":
    main()
