"""Checkpoints: resumed to the bit, written atomically, and safe to read from any source.

``tests/data/checkpoint-v4.safetensors`` was written by the first version of this format; it and the
numbers that it must go on to were made by ``python -m tests.test_checkpoint``. It stays as it is:
later versions must read it.
"""

import json
import os
import pickle
import struct
import threading
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import retvar as rv
from retvar import files
from retvar.online.checkpoint import _digest
from tests import oracle, streams
from tests.streams import same, stream

TIMES = 5 if oracle.SOAK else 1
DATA = Path(__file__).parent / "data"
FIXTURE = DATA / "checkpoint-v4.safetensors"
NODES = ("value", "mean", "variance")


# ---------------------------------------------------------------------- resuming


def by_states(rng, description, columns):
    return description.online(states=4), columns


def by_table(rng, description, columns):
    return description.online(features=table(rng)), columns


def by_tables(rng, description, columns):
    """Another table for each node."""
    value, mean, variance = (table(rng) for _ in range(3))
    kinds = {"features": variance, "value_features": value, "mean_features": mean}
    return description.online(**kinds), columns


def by_two_tables(rng, description, columns):
    """One for value and mean, one for the variance."""
    return description.online(features=table(rng), value_features=table(rng)), columns


def by_vectors(rng, description, columns):
    given = table(rng)
    return uniform(description).online(features=4), look_up(columns, lambda s: given[s])


def by_vectors_of_their_own(rng, description, columns):
    given = {name: table(rng) for name in NODES}
    online = uniform(description).online(features=4, value_features=4, mean_features=4)
    return online, look_up(columns, lambda s: {name: given[name][s] for name in NODES})


def by_active_sets(rng, description, columns):
    sets = [[0, 1], [1], [2, 3, 3], [3, 0]]
    online = uniform(description).online(features=rv.features.Active(4))
    return online, look_up(columns, lambda s: [sets[k] for k in s])


KINDS = [
    by_states, by_table, by_tables, by_two_tables, by_vectors, by_vectors_of_their_own,
    by_active_sets,
]  # fmt: skip


def table(rng):
    return 0.5 * rng.normal(size=(4, 4)) * (rng.random((4, 4)) < 0.7)


def uniform(description):
    """With features of each transition there are no settings per state."""
    return description.replace(kappa=0.5, kappa_bar=0.25)


def look_up(columns, seen):
    return columns | {name: seen(columns[name]) for name in ("state", "next_state")}


def part(columns, first, last):
    def cut(column):
        if isinstance(column, dict):
            return {name: each[first:last] for name, each in column.items()}
        return column[first:last]

    return {name: cut(column) for name, column in columns.items()}


def a_kind(kind, seed):
    """A random learner with features of a kind, and experience for it."""
    rng = np.random.default_rng(seed)
    columns = stream(rng, 40, streams=3)
    columns["rho"] = np.minimum(columns["rho"], 1.25)
    return kind(rng, streams.learner(rng), columns)


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_saving_and_loading_at_any_step_changes_nothing(kind, tmp_path):
    """Saved, loaded and continued: the same bits. 200 random steps, 1,000 in `make soak`."""
    path = tmp_path / "cut.safetensors"
    base = oracle.fresh_seed()
    for k in range(29 * TIMES):
        seed = [base, k]
        whole, columns = a_kind(kind, seed)
        stopped, _ = a_kind(kind, seed)
        cut = int(np.random.default_rng([base, k, 1]).integers(41))
        whole.update_many(columns)
        stopped.update_many(part(columns, 0, cut))
        stopped.save(path)
        resumed = rv.load(path)
        assert same(resumed, stopped), (seed, cut)
        assert resumed.description == stopped.description
        resumed.update_many(part(columns, cut, 40))
        assert same(resumed, whole), (seed, cut)


def test_saved_again_the_file_is_the_same(tmp_path):
    for kind in KINDS:
        estimator, columns = a_kind(kind, 3)
        estimator.update_many(columns)
        first, second = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
        estimator.save(first)
        rv.load(first).save(second)
        assert first.read_bytes() == second.read_bytes(), kind.__name__


def test_what_diverged_can_be_saved_and_loaded(tmp_path):
    estimator = rv.Direct(alpha=0.1, gamma=0.9, lam=0.9).online(states=2)
    with pytest.raises(rv.DivergenceError):
        estimator.update(0, 1e160, 1)
    estimator.save(tmp_path / "a.safetensors")
    again = rv.load(tmp_path / "a.safetensors")
    again.update(0, 1.0, 1)
    assert np.isfinite(again.value()).all()


# ---------------------------------------------------------------------- writing


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "risk.safetensors"
    estimator = rv.Direct(alpha=0.1, gamma=0.9, lam=0.9).online(states=4)
    estimator.save(path)
    before = path.read_bytes()
    estimator.update(0, 1.0, 1)
    for error in (OSError(28, "No space left on device"), KeyboardInterrupt(), RuntimeError()):

        def half(temporary, contents, error=error):
            with temporary.open("wb") as file:
                file.write(contents[: len(contents) // 2])
            raise error

        monkeypatch.setattr(Path, "write_bytes", half)
        with pytest.raises((OSError, KeyboardInterrupt, RuntimeError, rv.InputError)):
            estimator.save(path)
        assert path.read_bytes() == before
        assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert rv.load(path).steps == 0


def test_a_path_that_cannot_be_written_is_refused(tmp_path):
    estimator = rv.Direct(alpha=0.1, gamma=0.9, lam=0.9).online(states=4)
    with pytest.raises(rv.InputError, match="its folder does not exist"):
        estimator.save(tmp_path / "nowhere" / "risk.safetensors")
    with pytest.raises(rv.InputError, match="is a folder"):
        estimator.save(tmp_path)


def test_features_that_cannot_be_saved_are_refused(tmp_path):
    class Own(rv.features.Active):
        pass

    estimator = rv.Direct(alpha=0.1, gamma=0.9, lam=0.9).online(features=Own(4))
    with pytest.raises(rv.InputError, match="features = Own: cannot be saved"):
        estimator.save(tmp_path / "risk.safetensors")


# ---------------------------------------------------------------------- older versions


def fixture_learner():
    description = rv.Centred(
        alpha=rv.AlphaBound(0.5), alpha_bar=rv.Decay(), alpha_mean=rv.Adadelta(0.9, 1e-4),
        gamma=[0.5, 0.75, 1.0, 0.25], lam=0.5, kappa=[0.5, 1.0, 0.25, 0.75], kappa_bar=0.5,
        kappa_mean=0.75, value=[1.0, -1.0], initial_variance=[0.5, 0.0, 0.25],
        estimand="off_policy_return",
    )  # fmt: skip
    X = np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0], [0.25, -0.5]])
    Phi = np.array([[1.0, 0.0, 0.0], [0.0, 0.5, 0.0], [0.0, 0.25, 1.0], [0.5, 0.0, 0.5]])
    return description.online(features=Phi, value_features=X)


def fixture_stream(first, last):
    """Experience that needs no random numbers, which might not be the same in all versions."""
    t = np.arange(first, last)
    return {
        "state": t * 7 % 4, "reward": (t * 5 % 11) / 4 - 1.0, "next_state": (t * 7 + 1) % 4,
        "terminated": t % 9 == 8, "truncated": t % 13 == 12, "rho": (t * 3 % 5) / 4,
        "stream": t % 2,
    }  # fmt: skip


def fixture_answers(estimator):
    answers = {name: getattr(estimator, name)().tolist() for name in NODES}
    return {name: [x.hex() for x in numbers] for name, numbers in answers.items()}


def make_fixture():
    """Run once, when the format was made."""
    estimator = fixture_learner()
    estimator.update_many(fixture_stream(0, 30))
    DATA.mkdir(exist_ok=True)
    estimator.save(FIXTURE)
    answers = {"at 30": fixture_answers(estimator)}
    estimator.update_many(fixture_stream(30, 60))
    answers["at 60"] = fixture_answers(estimator)
    FIXTURE.with_suffix(".json").write_text(json.dumps(answers, indent=1) + "\n")


def test_a_file_of_this_format_is_read_by_later_versions():
    estimator = rv.load(FIXTURE)
    assert (estimator.steps, estimator.rejected) == (30, 0)
    assert estimator.description == fixture_learner().description
    expected = json.loads(FIXTURE.with_suffix(".json").read_text(encoding="utf-8"))
    assert fixture_answers(estimator) == expected["at 30"]
    estimator.update_many(fixture_stream(30, 60))
    assert fixture_answers(estimator) == expected["at 60"]


@pytest.mark.parametrize("version", [1, 2, 3, 5])
def test_another_format_is_refused(version, tmp_path):
    path = edited(tmp_path, ["format"], version)
    with pytest.raises(rv.InputError, match=f"format = {version}: this version reads 4"):
        rv.load(path)


def test_a_file_names_the_arrays_of_each_node(tmp_path):
    path = tmp_path / "a.safetensors"
    learner = rv.VTD(alpha=rv.Averaged(), gamma=0.9, lam=0.9, kappa=0.5)
    learner.online(states=4, bootstrap_samples=3).save(path)
    found = {name: array.shape for name, array in load_file(path).items()}
    for node in ("value", "second_moment"):
        assert found.pop(f"{node}.weights") == found.pop(f"{node}.learning") == (4, 4)
        assert found.pop(f"{node}.steps") == (4, 2)
        assert found.pop(f"{node}.traces") == (1, 4)
        assert found.pop(f"{node}.discounts") == (1,)
        assert found.pop(f"{node}.report") == (2,)
    assert found == {"draws": (3,)}


# ---------------------------------------------------------------------- hostile files


def a_file(folder, kind=by_states, seed=0):
    """A valid checkpoint."""
    path = folder / "good.safetensors"
    estimator, columns = a_kind(kind, seed)
    estimator.update_many(part(columns, 0, 20))
    estimator.save(path)
    return path


def resealed(raw, folder):
    """The file with the digest of what it holds, so that the other checks are tested."""
    path = folder / "reseal.safetensors"
    path.write_bytes(raw)
    try:
        tensors = load_file(path)

        def seal(ours):
            ours.pop("digest", None)
            return {**ours, "digest": _digest(ours, tensors)}

        return with_settings(raw, seal)
    except Exception:  # not a safetensors file
        return raw


def parts(raw):
    """The header of a safetensors file as data, and what follows it."""
    (length,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def joined(header, payload):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + payload


def with_settings(raw, change):
    """The file with retvar's part of its header changed."""
    header, payload = parts(raw)
    ours = json.loads(header["__metadata__"]["retvar"])
    header["__metadata__"]["retvar"] = json.dumps(change(ours))
    return joined(header, payload)


def edited(folder, place, to, kind=by_states):
    """A valid file except for one entry of its header."""
    path = a_file(folder, kind)

    def change(ours):
        inner = ours
        for name in place[:-1]:
            inner = inner[name]
        inner[place[-1]] = to
        return ours

    path.write_bytes(resealed(with_settings(path.read_bytes(), change), folder))
    return path


def rewritten(folder, kind=by_states, **arrays):
    """A valid file with other tensors; None omits one."""
    path = a_file(folder, kind)
    metadata = parts(path.read_bytes())[0]["__metadata__"]
    tensors = load_file(path)
    for name, change in arrays.items():
        name = name.replace("__", ".")
        array = change(tensors.pop(name)) if callable(change) else change
        if array is not None:
            tensors[name] = np.ascontiguousarray(array)
    save_file(tensors, path, metadata)
    path.write_bytes(resealed(path.read_bytes(), folder))
    return path


def changed(at, to):
    def change(array):
        array = array.copy()
        array[at] = to
        return array

    return change


W, S, E, D, R = (f"value__{part}" for part in ("weights", "steps", "traces", "discounts", "report"))
TENSORS = {
    "no weights": {W: lambda a: None},
    "no steps": {S: lambda a: None},
    "no traces": {E: lambda a: None},
    "no discounts": {D: lambda a: None},
    "no report": {R: lambda a: None},
    "float32": {W: lambda a: a.astype(np.float32)},
    "float32 traces": {E: lambda a: a.astype(np.float32)},
    "whole numbers": {W: lambda a: a.astype(np.int64)},
    "NaN weight": {W: changed(0, np.nan)},
    "infinite weight": {W: changed(1, np.inf)},
    "diverged weight": {W: changed(1, 1e200)},
    "negative count": {S: changed((0, 0), -1.0)},
    "NaN trace": {E: changed((0, 0), np.nan)},
    "negative discount": {D: changed(0, -0.5)},
    "too few weights": {W: lambda a: a[:-1]},
    "too many weights": {W: lambda a: np.concatenate([a, a])},
    "wrong columns": {S: lambda a: a.reshape(-1, 1)},
    "a number for traces": {E: lambda a: np.array(1.0)},
    "no streams": {E: lambda a: a[:0]},
    "narrow traces": {E: lambda a: a[:, :-1]},
    "weights in two dimensions": {W: lambda a: a[:, None]},
    "short report": {R: lambda a: a[:1]},
    "replicates without weights": {"draws": np.zeros(3, dtype=np.uint64)},
}
TABLES = {
    "no values": {"features__value__values": lambda a: None},
    "index too large": {"features__value__indices": changed(0, 4)},
    "index negative": {"features__value__indices": changed(0, -1)},
    "rows run backwards": {"features__value__indptr": changed(1, 10**6)},
    "rows start late": {"features__value__indptr": changed(0, 1)},
    "too few rows": {"features__value__indptr": lambda a: a[:-1]},
    "NaN feature": {"features__value__values": changed(0, np.nan)},
    "float32 features": {"features__value__values": lambda a: a.astype(np.float32)},
    "float indices": {"features__value__indices": lambda a: a.astype(float)},
    "small indices": {"features__value__indices": lambda a: a.astype(np.int8)},
    "features in two dimensions": {"features__value__values": lambda a: a[None]},
}


@pytest.mark.parametrize("fault", [*TENSORS, *TABLES])
def test_wrong_tensors_are_refused(fault, tmp_path):
    arrays = TENSORS.get(fault) or TABLES[fault]
    path = rewritten(tmp_path, by_states if fault in TENSORS else by_table, **arrays)
    with pytest.raises(rv.InputError):
        rv.load(path)


@pytest.mark.parametrize(
    ("part", "change", "text"),
    [
        ("scales", lambda a: a.astype(np.float32), "float32"),
        ("scales", lambda a: a[:2], "must have shape"),
        ("scales", lambda a: 0 * a, "out of range"),
        ("scales", lambda a: a * np.nan, "not finite"),
        ("sums", lambda a: a * np.nan, "not finite"),
        ("sums", lambda a: a + 1e200, "too large"),
    ],
)
def test_scales_that_make_no_sense_are_refused(part, change, text, tmp_path):
    path = rewritten(tmp_path, lazily, **{f"value__{part}": change})
    with pytest.raises(rv.InputError, match=text):
        rv.load(path)


def lazily(rng, description, columns):
    """Vectors with a trace, whose updates are deferred."""
    learner = rv.Direct(alpha=0.1, gamma=0.9, lam=0.9, kappa=0.9)
    return learner.online(features=4), look_up(columns, lambda s: np.eye(4)[s])


HEADERS = [
    (["format"], "1"),
    (["format"], None),
    (["steps"], -1),
    (["steps"], 1.5),
    (["steps"], True),
    (["steps"], 10**30),
    (["rejected"], "many"),
    (["learner"], None),
    (["learner"], ["Direct"]),
    (["learner", "learner"], "Unknown"),
    (["learner", "learner"], "__import__"),
    (["learner", "surprise"], 1),
    (["learner", "alpha"], {"rule": "eval"}),
    (["learner", "alpha"], {"rule": "StepSize"}),
    (["learner", "alpha"], {"rule": "Decay", "surprise": 1}),
    (["learner", "alpha"], {"rule": "Decay", "power": [1]}),
    (["learner", "alpha"], {"rule": "Adadelta", "decay": "x"}),
    (["learner", "alpha"], {}),
    (["learner", "alpha"], None),
    (["learner", "alpha"], float("nan")),
    (["learner", "kappa"], [0.1, 0.2, 0.3]),
    (["learner", "kappa"], "0.5"),
    (["learner", "kappa"], None),
    (["learner", "kappa"], {"a": 1}),
    (["learner", "kappa"], [[0.1], [0.2, 0.3]]),
    (["learner", "gamma"], 7.0),
    (["learner", "gamma"], [0.5] * 3),
    (["learner", "estimand"], "none"),
    (["learner", "estimand"], ["target_return"]),
    (["learner", "learn_value"], "yes"),
    (["learner", "value"], [0.0] * 10),
    (["learner", "value"], "x"),
    (["features"], None),
    (["features"], []),
    (["features"], "same"),
    (["features", "value"], 3),
    (["features", "value"], "same"),
    (["features", "value"], {"same": "value"}),
    (["features", "value"], {"same": []}),
    (["features", "value", "kind"], "table"),
    (["features", "value", "kind"], "pickle"),
    (["features", "value", "kind"], []),
    (["features", "value", "size"], 0),
    (["features", "value", "size"], -4),
    (["features", "value", "size"], 5),
    (["features", "value", "size"], 10**12),
    (["features", "value", "size"], 10**30),
    (["features", "value", "size"], "4"),
    (["features", "mean"], {"kind": "states", "size": 3}),
    (["features", "variance"], {"kind": "states", "size": 1}),
    (["features", "variance"], {"kind": "vector", "size": 4}),
]


@pytest.mark.parametrize(("place", "to"), HEADERS, ids=str)
def test_wrong_headers_are_refused(place, to, tmp_path):
    with pytest.raises(rv.InputError):
        rv.load(edited(tmp_path, place, to))


def test_nodes_of_different_states_are_refused(tmp_path):
    """Sizes that add up to the number of weights, but states out of bounds."""
    path = a_file(tmp_path)

    def change(ours):
        sizes = dict(zip(NODES, (10, 1, 1), strict=True))
        ours["features"] = {n: {"kind": "states", "size": k} for n, k in sizes.items()}
        ours["learner"] |= {"value": 0.0, "initial_variance": 0.0, "kappa": 0.0, "kappa_bar": 0.0}
        return ours

    path.write_bytes(resealed(with_settings(path.read_bytes(), change), tmp_path))
    with pytest.raises(rv.InputError, match="need the same states"):
        rv.load(path)


def test_huge_sizes_are_refused_before_memory_is_allocated(tmp_path):
    path = edited(tmp_path, ["features", "variance"], {"kind": "states", "size": 10**13})
    tracemalloc.start()
    try:
        with pytest.raises(rv.InputError):
            rv.load(path)
        assert tracemalloc.get_traced_memory()[1] < 100e6
    finally:
        tracemalloc.stop()


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def test_pickles_are_not_run(tmp_path):
    mark, path = tmp_path / "mark", tmp_path / "bomb.safetensors"
    bomb = pickle.dumps(Bomb(mark))
    with zipfile.ZipFile(tmp_path / "zipped", "w") as archive:  # as torch and numpy write them
        archive.writestr("archive/data.pkl", bomb)
    array = tmp_path / "array.npy"
    np.save(array, np.array([Bomb(mark)], dtype=object), allow_pickle=True)
    hidden = with_settings(a_file(tmp_path).read_bytes(), lambda ours: [bomb.hex()])
    inside, payload = parts(a_file(tmp_path).read_bytes())
    for raw in (
        bomb, (tmp_path / "zipped").read_bytes(), array.read_bytes(), hidden,
        joined(bomb, payload), joined(inside, bomb),
    ):  # fmt: skip
        path.write_bytes(raw)
        with pytest.raises(rv.InputError):
            rv.load(path)
        assert not mark.exists()
    pickle.loads(bomb)  # it would have
    assert mark.exists()


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "x.safetensors"
    deep = b"[" * 200_000
    _, payload = parts(a_file(tmp_path).read_bytes())
    files = {
        "empty": b"",
        "short": b"\x00" * 7,
        "endless header": struct.pack("<Q", 2**63) + b"{}",
        "no header": struct.pack("<Q", 0),
        "text": b"state,reward\n0,1\n",
        "deep": joined(deep, b""),
        "deep inside": joined({"__metadata__": {"retvar": deep.decode()}}, b""),
        "no metadata": joined({}, b""),
        "metadata of another": joined({"__metadata__": {"format": "pt"}}, b""),
        "no JSON": joined({"__metadata__": {"retvar": "{"}}, b""),
        "a list": joined({"__metadata__": {"retvar": "[1]"}}, b""),
        "a long number": joined({"__metadata__": {"retvar": "1" * 10_000}}, b""),
        "not UTF-8": joined(b'{"\xff": 1}', payload),
    }
    for raw in files.values():
        path.write_bytes(raw)
        with pytest.raises(rv.InputError):
            rv.load(path)
    with pytest.raises(rv.InputError, match="does not exist"):
        rv.load(tmp_path / "nothing")
    with pytest.raises(rv.InputError):
        rv.load(tmp_path)


JUNK = [
    None, True, -1, 0, 1, 2, 3, 5, 10**12, 2**63, 10**40, 0.5, -0.5, 1e300, float("nan"),
    float("inf"), "", "x", "0.5", "value", "table", "Decay", [], [0], [0.5] * 4, [[0.5]], {},
    {"a": 1}, {"rule": "Decay"}, {"rule": "Adadelta", "epsilon": 0}, {"same": "mean"}, [None],
    ["x"] * 4, {"kind": "states", "size": 4}, {"kind": "vector", "size": 4},
    {"kind": "active", "size": 12},
]  # fmt: skip


def flip(rng, raw, first=0, last=None):
    """Change a few bytes."""
    new = bytearray(raw)
    for at in rng.integers(first, last or len(raw), size=rng.integers(1, 6)):
        new[at] ^= int(rng.integers(1, 256))
    return bytes(new)


def flip_header(rng, raw):
    return flip(rng, raw, 0, len(raw) - len(parts(raw)[1]))


def flip_numbers(rng, raw):
    return flip(rng, raw, len(raw) - len(parts(raw)[1]))


def shorten(rng, raw):
    return raw[: rng.integers(len(raw))]


def lengthen(rng, raw):
    return raw + rng.bytes(int(rng.integers(1, 50)))


def noise(rng, raw):
    return rng.bytes(int(rng.integers(300)))


def swap(rng, raw):
    """Swap two ranges of bytes."""
    a, b = np.sort(rng.integers(len(raw), size=2))
    return raw[b:] + raw[a:b] + raw[:a]


def junk_in(rng, data):
    """Data with one entry replaced by junk, doubled or removed."""
    if isinstance(data, dict | list) and data and rng.random() < 0.8:
        keys = list(data) if isinstance(data, dict) else list(range(len(data)))
        key = keys[rng.integers(len(keys))]
        new = data.copy()
        if rng.random() < 0.1:
            new.pop(key)
        else:
            new[key] = junk_in(rng, data[key])
        return new
    return JUNK[rng.integers(len(JUNK))]


def junk_settings(rng, raw):
    return with_settings(raw, lambda ours: junk_in(rng, ours))


def junk_layout(rng, raw):
    """Names, dtypes, shapes and places of the tensors."""
    header, payload = parts(raw)
    names = [name for name in header if name != "__metadata__"]
    name = names[rng.integers(len(names))]
    if rng.random() < 0.2:
        header[str(rng.choice(names))] = header.pop(name)
    else:
        entry = header[name]
        field = rng.choice(["dtype", "shape", "data_offsets"])
        kinds = ["F16", "BF16", "F32", "I64", "U8", "BOOL", "F8_E4M3", "X"]
        entry[field] = str(rng.choice(kinds)) if field == "dtype" else junk_in(rng, entry[field])
    return joined(header, payload)


MUTATIONS = [
    flip, flip_header, flip_numbers, shorten, lengthen, noise, swap, junk_settings, junk_settings,
    junk_layout,
]  # fmt: skip


def use(estimator, rng):
    """A loaded estimator can learn, be queried, be cloned and be saved."""
    tabular = estimator.features[0].states is not None
    given = {"gamma": 0.5, "lam": 0.5}
    for _ in range(6):
        s, t = (int(k) for k in rng.integers(4, size=2))
        if isinstance(estimator.features[0], rv.features.Vector):
            s, t = (rng.normal(size=estimator.features[0].size) for _ in range(2))
        elif not tabular:
            s, t = [s], [t]
        try:
            estimator.update(
                s, float(rng.normal()), t, rho=0.5, **given, stream=int(rng.integers(2))
            )
            estimator.update(s, 1.0, None, terminated=True)
        except (rv.InputError, rv.DivergenceError):
            pass
    if tabular:
        for answer in (estimator.value(), estimator.variance(), estimator.std()):
            assert answer.shape == (estimator.features[0].states,)
    assert same(estimator.clone(), estimator)
    assert repr(estimator)


@pytest.mark.soak
@pytest.mark.parametrize("kind", [by_states, by_table, by_tables, by_vectors, by_active_sets])
def test_damaged_files_load_nothing(kind, tmp_path):
    """200 files, 1,000 in `make soak`: refused, or with nothing changed but white space."""
    base = oracle.fresh_seed()
    path = tmp_path / "bad.safetensors"
    for k in range(40 * TIMES):
        rng = np.random.default_rng([base, k])
        good = a_file(tmp_path, kind, seed=[base, k])
        mutation = MUTATIONS[k % len(MUTATIONS)]
        path.write_bytes(mutation(rng, good.read_bytes()))
        try:
            damaged = rv.load(path)
        except rv.InputError:
            continue
        assert same(damaged, rv.load(good)), f"{mutation.__name__}, seed {[base, k]}"


@pytest.mark.soak
@pytest.mark.parametrize("kind", [by_states, by_table, by_tables, by_vectors, by_active_sets])
def test_damaged_files_are_refused_or_harmless(kind, tmp_path):
    """The same with a digest that matches: an InputError, or an estimator that works."""
    base = oracle.fresh_seed()
    path = tmp_path / "bad.safetensors"
    loaded = 0
    for k in range(40 * TIMES):
        rng = np.random.default_rng([base, k])
        raw = a_file(tmp_path, kind, seed=[base, k]).read_bytes()
        mutation = MUTATIONS[k % len(MUTATIONS)]
        path.write_bytes(resealed(mutation(rng, raw), tmp_path))
        try:
            with np.errstate(all="ignore"):
                try:
                    estimator = rv.load(path)
                except rv.InputError:
                    continue
                use(estimator, rng)
        except Exception as error:
            raise AssertionError(f"{mutation.__name__}, seed {[base, k]}") from error
        loaded += 1
    assert loaded < 25 * TIMES  # most of them are no good


if __name__ == "__main__":
    make_fixture()


def test_no_other_temporary_files_appear_while_saving(tmp_path):
    """A killed process may leave only those that the next one knows and removes."""
    seen, over = set(), threading.Event()

    def watch():
        while not over.is_set():
            seen.update(each.name for each in tmp_path.iterdir())

    risk = rv.Direct(alpha=0.1, gamma=0.9).online(states=500_000)
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for _ in range(5):
            risk.save(tmp_path / "risk.safetensors")
    finally:
        over.set()
        watcher.join()
    assert "risk.safetensors" in seen
    assert all(files.is_temporary(Path(name)) for name in seen - {"risk.safetensors"})
