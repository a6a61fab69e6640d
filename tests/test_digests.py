"""Numbers that a change which should change nothing must leave as they were.

Each case is a function that returns arrays by name; ``tests/data/digests`` holds what it returned.
Arrays are compared to the bit. Those that come through a library whose last bits depend on the
machine are compared to 1e-12 of their largest number, and each case says which these are
(``close``): LAPACK (``solve`` and whatever is measured against the truth), BLAS (predictions for
features that are given), ``pow`` of libm (steps α/nᵖ with p < 1), NumPy's ``exp``, ``log`` and
sums (intervals and comparisons).

To record new cases, and to record again those that are named::

    python tests/test_digests.py simulate/ratios online/powers
"""

from __future__ import annotations

import functools
import itertools
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import retvar as rv
from tests.fixed_cases import COMPILED, FEATURES, FIXED_CASES, OFF, domain
from tests.streams import METHODS

DATA = Path(__file__).parent / "data" / "digests"
CLOSE = 1e-12  # of an array's largest number, or of 1
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


def made(name: str) -> Arrays:
    """What a case gives: numbers of 8 bytes, one NaN."""
    found = {}
    for key, given in CASES[name].make().items():
        x = np.array(given, order="C")  # as a file has it
        x = x.astype(np.float64 if x.dtype.kind == "f" else np.int64)
        if x.dtype.kind == "f":
            x[np.isnan(x)] = np.nan
        found[key] = x
    return found


@functools.cache
def recorded(group: str) -> Arrays:
    """Arrays of all cases of a group, as "case|array"."""
    path = DATA / f"{group}.safetensors"
    return load_file(path) if path.exists() else {}


def recorded_of(name: str) -> Arrays:
    """Arrays of a case, as recorded."""
    group, own = name.split("/")
    parts = ((key.split("|"), x) for key, x in recorded(group).items())
    return {array: x for (case_, array), x in parts if case_ == own}


def record(force: list[str]) -> None:
    """Record cases that are new or named; forget those that are gone."""
    groups: dict[str, Arrays] = {}
    for name in CASES:
        group, own = name.split("/")
        arrays = recorded_of(name)
        arrays = made(name) if name in force or not arrays else arrays
        groups.setdefault(group, {}).update({f"{own}|{key}": x for key, x in arrays.items()})
    for group, whole in groups.items():
        save_file({key: whole[key] for key in sorted(whole)}, DATA / f"{group}.safetensors")


# ------------------------------------------------------------------------ what cases are made of


def learner_of(method: str, **settings: Any) -> Any:
    """A learner by the name of its method."""
    if method == "centred":
        settings.setdefault("alpha_mean", settings.get("alpha_bar"))
    return METHODS[method](**settings)


def numbers(data: Any) -> Arrays:
    """All variables of a dataset that are numbers, and the moments along it."""
    names = [*data.data_vars, *({"step", "episode"} & set(data.coords))]
    return {f"{name}": data[name].values for name in names if data[name].dtype.kind in "fiub"}


# ------------------------------------------------------------------------ simulate


def simulated(name: str) -> Arrays:
    """Every run of a fixed case."""
    return numbers(FIXED_CASES[name]().simulate(threads=2))


for each in FIXED_CASES:
    by_pow = each in ("rules", "averaged_traces")  # α/n^0.6
    CASES[f"simulate/{each}"] = Case(functools.partial(simulated, each), ALL if by_pow else TRUTH)


def walk_features() -> dict[str, np.ndarray]:
    x = (np.arange(30) + 1) / 30
    ones = np.ones(30)
    return {"features": np.stack([ones, x, x * x], 1), "value_features": np.stack([ones, x], 1)}


@case("simulate", TRUTH)
def random_walk() -> Arrays:
    """Learners with features on the random walk."""
    settings = {"alpha": 2**-9, "alpha_bar": 2**-8, "kappa": 0.95, "kappa_bar": 0.95}
    learners = {method: learner_of(method, **settings) for method in METHODS}
    record, how = rv.Record(points=3, rmse=True), {"steps": 600, "runs": 3, "seed": 1}
    walk = rv.domains.random_walk()
    data = rv.simulate(walk, learners, record=record, keep="runs", **walk_features(), **how)
    return numbers(data.isel(state=slice(None, None, 3)))


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


def settings_of(method: str, estimand: str) -> dict[str, Any]:
    """A rule for each node of a method, traces, and initial values."""
    steps = {
        "direct": {"alpha": 0.125, "alpha_bar": rv.AlphaBound(0.5)},
        "vtd": {"alpha": rv.Adadelta(0.9, 1e-2), "alpha_bar": 0.0625},
        "centred": {"alpha": rv.Decay(), "alpha_bar": 0.125, "alpha_mean": rv.AlphaBound()},
    }[method]
    traces = {"kappa": 0.75, "kappa_bar": [0.25, 0.5, 0.75, 1.0], "estimand": estimand}
    start = {"value": [0.5, -0.25, 1.0, 0.0], "initial_variance": [0.5, 0.25, 0.0, 1.0]}
    return {**traces, **start, **steps}


def single(method: str) -> Arrays:
    """A table, one by one."""
    learner = learner_of(method, **settings_of(method, "target_return")).online(states=4)
    one_by_one(learner, stream())
    return state_of(learner, **answers(learner))


def chunks(method: str) -> Arrays:
    """Features, in chunks, off-policy."""
    learner = learner_of(method, **settings_of(method, "off_policy_return"))
    learner = learner.online(features=FEATURES[:, [0, 1, 2, 0]])
    in_chunks(learner, stream(seed=1))
    return state_of(learner, **answers(learner))


for each in METHODS:
    CASES[f"online/single_{each}_target"] = Case(functools.partial(single, each), ())
    CASES[f"online/chunks_{each}_weighted"] = Case(functools.partial(chunks, each), ())


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


def vectors(columns: dict[str, Any], table: np.ndarray) -> dict[str, Any]:
    """Features in place of states."""
    return {**columns, **{k: table[columns[k]] for k in ("state", "next_state")}}


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


# ------------------------------------------------------------------------ estimate


def estimated(experience: Any, **how: Any) -> Any:
    """An estimate with few bootstrap samples."""
    return rv.estimate(experience, bootstrap_samples=10, **how)


def lake(seed: int = 1) -> Any:
    return rv.experience.from_gymnasium("FrozenLake-v1", "random", steps=1_500, seed=seed)


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
def columns_off_policy() -> Arrays:
    return thinned(estimated(log(**ratios_of_log()), gamma=0.75).data)


@case("estimate", ALL)
def tiles() -> Arrays:
    return thinned(estimated(log(observed=True), gamma=0.75).data)


# ------------------------------------------------------------------------ the tests


@pytest.mark.parametrize("name", CASES)
def test_the_numbers_are_those_recorded(name):
    found, was, close = made(name), recorded_of(name), CASES[name].close
    assert {k: (x.shape, x.dtype) for k, x in found.items()} == {
        k: (x.shape, x.dtype) for k, x in was.items()
    }
    for array, x in found.items():
        if any(re.search(pattern, array) for pattern in close):
            size = np.abs(was[array][np.isfinite(was[array])]).max(initial=1.0)
            np.testing.assert_allclose(x, was[array], rtol=0, atol=CLOSE * size, err_msg=array)
        else:
            differ = x.view(np.int64) != was[array].view(np.int64)
            assert not differ.any(), (array, x[differ], was[array][differ])


@pytest.mark.compiled
@pytest.mark.parametrize("name", COMPILED)
def test_compiled_code_gives_the_same_numbers(name):
    test_the_numbers_are_those_recorded(f"simulate/{name}")


if __name__ == "__main__":
    record(sys.argv[1:])
