"""Saved estimators with a digest that matches and contents that do not: refused, or harmless.

Every entry of the header of every kind of file is replaced by odd values, every tensor by others
of another type, shape or range. A file is then refused with an InputError, or what is loaded
answers, learns and is saved without an error that is not retvar's.
"""

from __future__ import annotations

import copy
import warnings
from collections import Counter

import numpy as np
import pytest

import retvar as rv
from retvar.estimation.feature_estimator import FeatureEstimator
from retvar.estimation.tabular import TabularEstimator
from retvar.experience import Experience, from_table
from retvar.online import checkpoint
from retvar.online.checkpoint import read_tensors, write_tensors
from tests import oracle

ODD = [
    None, True, -1, 0, 1, 7, 10**9, 2**62, 10**18, 10**25, 0.5, 1e300, float("nan"), float("inf"),
    "", "x", "1", [], [-1], [0.5, 0.5], [[]], [[0, 1]], {}, {"a": []}, "\x1b[2J",
]  # fmt: skip
LEARNER = rv.Direct(alpha=0.1, gamma=0.9, lam=1.0)
INSIDE = 3  # entries of a list that are replaced by themselves


# ---------------------------------------------------------------------- kinds of files


def tabular(**columns):
    found = TabularEstimator(LEARNER, 4)
    found.update_many(moves(60) | columns)
    return found


def moves(n):
    """Transitions between four states, in two streams."""
    t = np.arange(n)
    return {
        "state": t * 7 % 4, "next_state": (t * 7 + 1) % 4, "reward": (t * 5 % 11) / 4.0,
        "terminated": t % 9 == 8, "stream": t % 2,
    }  # fmt: skip


def points(n):
    """Transitions between points on a line."""
    x = (np.arange(n + 1) * 0.37 % 1.0)[:, None]
    return moves(n) | {"state": x[:-1], "next_state": x[1:]}


def with_features(features):
    found = FeatureEstimator(LEARNER, features)
    found.update_many(points(60))
    return found


def online(chunk, **settings):
    found = LEARNER.replace(kappa=0.5).online(**settings)
    found.update_many(chunk)
    return found


LINE = rv.features.Polynomial([0.0], [1.0], degree=2)
FILES = {
    "sums": tabular,
    "weighted sums": lambda: tabular(rho=np.resize([0.5, 1.5], 60)),
    "polynomial": lambda: with_features(LINE),
    "tiles": lambda: with_features(rv.features.TileCoding([0.0], [1.0], tiles=4, tilings=2)),
    "online states": lambda: online(moves(60), states=4),
    "online replicates": lambda: online(moves(60), states=4, bootstrap_samples=3),
    "online table": lambda: online(moves(60), features=np.eye(4)[:, :3] + 0.5),
    "online observations": lambda: online(points(60), features=LINE),
}


@pytest.fixture(scope="module", params=FILES)
def good(request, tmp_path_factory):
    """A valid file: its header and its tensors."""
    path = tmp_path_factory.mktemp("good") / "a.safetensors"
    FILES[request.param]().save(path)
    rv.load(path)
    return read_tensors(path)


# ---------------------------------------------------------------------- forging


def places(data, at=()):
    """The place of every entry in a header."""
    if at:
        yield at
    keys = data if isinstance(data, dict) else range(min(len(data), INSIDE))
    for key in keys if isinstance(data, dict | list) else ():
        yield from (
            places(data[key], (*at, key)) if isinstance(data[key], dict | list) else [(*at, key)]
        )


def replaced(data, at, to):
    found = copy.deepcopy(data)
    inner = found
    for key in at[:-1]:
        inner = inner[key]
    if to is MISSING:
        del inner[at[-1]]
    else:
        inner[at[-1]] = to
    return found


MISSING = object()
TENSORS = {
    "float32": lambda a: a.astype(np.float32),
    "bytes": lambda a: a.astype(np.uint8),
    "integers": lambda a: a.astype(np.int64),
    "numbers": lambda a: a.astype(np.float64),
    "flags": lambda a: a.astype(bool),
    "one": lambda a: np.ones((), a.dtype),
    "none": lambda a: a[:0],
    "empty but wide": lambda a: np.zeros((0, 10**9), a.dtype),
    "empty but long": lambda a: np.zeros((10**9, 0), a.dtype),
    "a row less": lambda a: a[:-1],
    "twice": lambda a: np.concatenate([a, a]),
    "wider": lambda a: np.stack([a, a], axis=-1),
    "deeper": lambda a: a[None],
    "flat": lambda a: a.reshape(-1),
    "negative": lambda a: (-1 - a.astype(float)).astype(a.dtype),
    "all −1": lambda a: np.full_like(a, -1) if a.dtype != bool else ~a,
    "large": lambda a: np.full_like(a, 10**6),
    "huge": lambda a: np.full_like(a, np.iinfo(a.dtype).max if a.dtype.kind in "iu" else 1e308),
    "NaN": lambda a: np.full_like(a, np.nan) if a.dtype.kind == "f" else a[:0],
    "one NaN": lambda a: spoiled(a, np.nan),
    "one infinite": lambda a: spoiled(a, np.inf),
    "one negative": lambda a: spoiled(a, -3),
    "one large": lambda a: spoiled(a, 10**9),
    "missing": lambda a: None,
}


def spoiled(array, to):
    found = array.copy().astype(float if isinstance(to, float) else array.dtype)
    if found.size and found.dtype != bool:
        found.flat[found.size // 2] = to
    return found if array.dtype.kind == "f" or not isinstance(to, float) else array[:0]


def use(estimator):
    """Whatever may be asked of an estimator that was loaded."""
    points_, n = estimator.features[0].states is None, 12
    asked = np.array([[0.2], [0.9]]) if points_ else np.arange(2)
    for what in ("value", "std"):
        quietly(estimator.predict, asked, what)
        quietly(estimator.interval, states=asked, what=what)
    quietly(estimator.value)
    if isinstance(estimator, TabularEstimator | FeatureEstimator):
        quietly(estimator.return_interval, asked)
        quietly(estimator.return_interval_note)
        quietly(lambda: estimator.possible_returns)
    quietly(estimator.update_many, points(n) if points_ else moves(n))
    quietly(estimator.predict, asked)
    assert repr(estimator)


def quietly(function, *given, **settings):
    """Call it; errors of retvar are fine."""
    try:
        return function(*given, **settings)
    except rv.RetvarError:
        return None


def loaded(path, header, tensors):
    """What is loaded from a file with these contents and their digest; None if it is refused."""
    write_tensors(path, header, tensors)
    try:
        return rv.load(path)
    except rv.InputError:
        return None


@pytest.fixture
def tried(tmp_path, monkeypatch):
    """A function that tries forged files, and counts those that were refused."""
    monkeypatch.setattr(checkpoint, "write_with", lambda path, write: write(path))  # quick
    seen = Counter()

    def attempt(what, header, tensors):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found = loaded(tmp_path / "forged.safetensors", header, tensors)
                if found is not None:
                    use(found)
            except Exception as error:
                raise AssertionError(f"{what}: {error!r}") from error
        seen["refused" if found is None else "loaded"] += 1

    yield attempt
    if oracle.SOAK:  # of a share, few may be refused by chance
        assert seen["refused"] > seen["loaded"]


def some(cases):
    """All of them in `make soak`, otherwise every sixteenth, from a random one on."""
    return cases if oracle.SOAK else cases[oracle.fresh_seed() % 16 :: 16]


@pytest.mark.parametrize(
    ("kind", "at", "to"),
    [
        ("sums", "kind", []),
        ("sums", "steps", float("inf")),
        ("sums", "steps", -1),
        ("sums", "rejected", float("inf")),
        ("sums", "states", 2**31),
        ("sums", "rewards", [1.0, float("nan")]),
        ("sums", "off_policy", []),
        ("polynomial", "steps", 10**18),
        ("polynomial", "steps", 59),
        ("polynomial", "rejected", float("inf")),
    ],
)
def test_numbers_that_learning_does_not_lead_to_are_refused(kind, at, to, tmp_path):
    path = tmp_path / "a.safetensors"
    FILES[kind]().save(path)
    header, tensors = read_tensors(path)
    assert loaded(path, header | {at: to}, tensors) is None


@pytest.mark.parametrize(
    ("kind", "name", "change"),
    [
        ("sums", "fit.keys", lambda a: a + 10**6),
        ("sums", "fit.keys", lambda a: a - 10),
        ("sums", "fit.sums", lambda a: a * np.nan),
        ("sums", "fit.sums", lambda a: a.astype(np.float32)),
        ("sums", "fit.sums", lambda a: np.zeros((0, 10**9))),
        ("sums", "fit.numbers", lambda a: a + 2.0),
        ("sums", "fit.rows", lambda a: a + 1),
        ("sums", "part", lambda a: a - 10),
        ("sums", "part", lambda a: a[:, :2]),
        ("polynomial", "stream", lambda a: a - 10),
        ("polynomial", "stream", lambda a: a + 10**9),
        ("polynomial", "gamma", lambda a: a + 1.0),
        ("polynomial", "state", lambda a: a[:, :0]),
        ("polynomial", "reward", lambda a: a[:-1]),
    ],
)
def test_tensors_that_learning_does_not_lead_to_are_refused(kind, name, change, tmp_path):
    path = tmp_path / "a.safetensors"
    FILES[kind]().save(path)
    header, tensors = read_tensors(path)
    assert loaded(path, header, tensors | {name: change(tensors[name])}) is None


@pytest.mark.soak
def test_any_entry_of_a_header_may_be_odd(good, tried):
    header, tensors = good
    for at, to in some([(at, to) for at in places(header) for to in (*ODD, MISSING)]):
        tried(f"{at} = {to!r}", replaced(header, at, to), tensors)


@pytest.mark.soak
def test_any_tensor_may_be_odd(good, tried):
    header, tensors = good
    for name, fault in some([(name, fault) for name in tensors for fault in TENSORS]):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                array = TENSORS[fault](tensors[name])
        except (IndexError, OverflowError, ValueError):  # no such change of this one
            continue
        rest = {key: each for key, each in tensors.items() if key != name}
        tried(f"{name}: {fault}", header, rest if array is None else rest | {name: array})


# ---------------------------------------------------------------------- notes


def by_label():
    chain = {"state": ["a", "b", "c"] * 20, "next_state": ["b", "c", "a"] * 20}
    return from_table(chain | {"reward": [1.0, 2.0, 4.0, 8.0] * 15, "terminated": [False] * 60})


def by_point():
    x = np.arange(61) * 0.01
    line = {"x": x[:-1], "next_x": x[1:], "reward": np.resize([1.0, 3.0], 60)}
    return from_table(line | {"terminated": np.zeros(60, bool)}, state=["x"], next_state=["next_x"])


def by_number():
    return Experience("by hand", lambda counts: iter([moves(60)]), states=4, fixed_states=True)


SOURCES = {
    "labels": (by_label, {}), "points": (by_point, {}), "numbers": (by_number, {}),
    "online": (by_number, {"by": "td", "bootstrap_samples": 2}),
}  # fmt: skip


@pytest.fixture(scope="module", params=SOURCES)
def estimated(request, tmp_path_factory):
    """A source, and the contents of the file of an estimate from it."""
    source, settings = SOURCES[request.param]
    path = tmp_path_factory.mktemp("estimated") / "a.safetensors"
    rv.estimate(source(), gamma=0.9, **settings).save(path)
    return source, *read_tensors(path)


@pytest.mark.parametrize(
    ("place", "to"),
    [
        (("counts", "transitions"), float("inf")),
        (("counts", "episodes"), 10**25),
        (("counts", "rejected"), {"a reason": "many"}),
        (("visits", "counts"), float("inf")),
        (("visits", "counts"), [[]]),
        (("visits", "counts"), [float("inf")]),
        (("visits", "counts"), [-1]),
        (("began", "name"), []),
        (("labels",), [["a", {}]]),
    ],
)
def test_notes_that_make_no_sense_are_refused(place, to, tmp_path):
    path = tmp_path / "a.safetensors"
    rv.estimate(by_label(), gamma=0.9).save(path)
    header, tensors = read_tensors(path)
    write_tensors(path, replaced(header, ("notes", "estimate", *place), to), tensors)
    with pytest.raises(rv.InputError):
        rv.estimate(by_label(), resume=path)


@pytest.mark.soak
def test_any_entry_of_the_notes_may_be_odd(estimated, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "write_with", lambda path, write: write(path))  # quick
    source, header, tensors = estimated
    path = tmp_path / "forged.safetensors"
    for at, to in some([(at, to) for at in places(header["notes"]) for to in (*ODD, MISSING)]):
        write_tensors(path, header | {"notes": replaced(header["notes"], at, to)}, tensors)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found = quietly(rv.estimate, source(), resume=path)
                if found is not None:
                    quietly(lambda: found.data)  # noqa: B023
                    quietly(found.summary)
                    quietly(found.save, path)
            except Exception as error:
                raise AssertionError(f"{at} = {to!r}: {error!r}") from error
