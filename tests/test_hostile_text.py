"""Hostile text: typed errors in bounded time and memory, and names escaped in every output."""

import contextlib
import csv
import errno
import gzip
import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
import xml.dom.minidom
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xarray
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.text import Text

import retvar as rv
from retvar import cache, reading
from retvar.cli import main
from retvar.errors import InputError
from retvar.experience import readers
from retvar.format import ONE_LINE, natural_key, visible
from retvar.sweep import Sweep
from tests.html_pages import read_offline

SECONDS = 20.0  # for one call, on a busy machine
MEMORY = 2 << 30  # bytes beyond what is used


@contextlib.contextmanager
def limited():
    """An error if the block takes too long, or needs too much memory."""

    def stop(*_):
        raise TimeoutError

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, before[1]))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)


def refused(*words: object) -> str:
    """The message with which a command refuses what it is given."""
    with limited():
        result = CliRunner().invoke(main, [str(word) for word in words])
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code == 2, result.output[-500:]
    return result.stderr


# ---------------------------------------------------------------------- nesting and digits

MANY = 200_000
SPEC = """runs = 1\nsteps = 9\ndomains = [{ id = "chain" }]
learners = [{ method = "direct", alpha = %s }]\n"""
JSONS = {
    "lists": "[" * MANY,
    "closed lists": "[" * MANY + "]" * MANY,
    "objects": '{"a":' * MANY,
    "mixed": '[{"a":' * MANY,
    "digits": "9" * 5_000,
    "negative": "[-" + "9" * 5_000 + "]",
}
TOMLS = {
    "lists": "x = " + "[" * MANY,
    "closed lists": "x = " + "[" * MANY + "]" * MANY,
    "tables": "x = " + "{a=" * MANY,
    "dotted key": ".".join("a" * MANY) + " = 1",
    "quoted key": ".".join(['"a.b"'] * MANY) + " = 1",
    "spaced key": " . ".join("a" * MANY) + " = 1",
    "header": "[" + ".".join("a" * MANY) + "]",
    "in a table": "x = {" + ".".join("a" * MANY) + " = 1}",
    "after a string": 'y = """a"""" \nx = ["""b""""", ' + "[" * MANY,
    "after a comment": "# [ ' \" [\nx = " + "[" * MANY,
    "digits": "runs = " + "9" * 5_000,
    "hexadecimal": "runs = 0x" + "f" * 5_000,
    "step": SPEC % ("9" * 400),
    "hexadecimal step": SPEC % ("0x" + "f" * 280),
    "control characters": "x = '\x00'",
    "not UTF-8": "x = '\udcff'",
}


@pytest.mark.parametrize("name", TOMLS)
def test_hostile_toml_is_refused_as_an_mdp_and_as_a_sweep(name, tmp_path):
    path = tmp_path / "a.toml"
    path.write_bytes(TOMLS[name].encode("utf-8", "surrogateescape"))
    for words in (["solve", path], ["sweep", "plan", path]):
        assert len(refused(*words)) < 600
    other = (SPEC % "0.1").replace('id = "chain"', 'file = "a.toml"')
    path.with_name("b.toml").write_text(other)
    assert len(refused("sweep", "plan", path.with_name("b.toml"))) < 600


@pytest.mark.parametrize(
    ("states", "actions", "refusal"),
    [(1, 500_000_000, "must not exceed 1,010,000 with 1 edge"), (5_000, 90_000, "5,000 edges")],
)
def test_few_edges_allow_few_pairs_of_state_and_action(states, actions, refusal, tmp_path):
    """A short file needs little memory, however many actions it announces."""
    edges = ",".join(f"{{state={s},next_state={s}}}" for s in range(states))
    (tmp_path / "a.toml").write_text(f"actions={actions}\ngamma=0.9\nedges=[{edges}]")
    assert refusal in " ".join(refused("solve", tmp_path / "a.toml").split())
    with pytest.raises(InputError, match=refusal):
        rv.MDP((range(states), [0] * states, range(states), 1, 0, 0, 0.9), actions=actions)


@pytest.mark.parametrize("name", JSONS)
def test_hostile_json_is_refused_wherever_it_is_parsed(name, tmp_path):
    text, path, log = JSONS[name], tmp_path / "a.json", tmp_path / "log.csv"
    path.write_text(text)
    log.write_text("state,action,reward,next_state,terminated\n" + "a,l,1,b,0\nb,r,2,a,1\n" * 9)
    policy = ["--target-policy", path, "--formats", "none", "--out", tmp_path / "out"]
    refused("solve", "chain", "--option", f"length={text}")
    refused("rollouts", "gymnasium:FrozenLake-v1", "--gamma", "0.9", "--start", text)
    refused("estimate", log, "--gamma", "0.9", *policy)
    assert not (tmp_path / "out").exists()


def test_texts_that_only_look_deep_are_read():
    """Brackets, dots and digits within strings and comments count for nothing."""
    much = "[{." * 500 + "9" * 500
    assert reading.parse_json(json.dumps({"a": [much, much + '\\"']}), "x") == {
        "a": [much, much + '\\"']
    }
    for text in (f"'{much}'", f'"{much}\\" "', f'"""{much}\n"" """""', f"'''\n{much}''''"):
        assert reading.parse_toml(f"a = {text} # {much}\nb = [[1.5, 2.5]]", "x")["b"] == [
            [1.5, 2.5]
        ]
    with pytest.raises(InputError, match="is nested deeper than 100 levels"):
        reading.parse_json("[" * 101 + "]" * 101, "x")
    assert reading.parse_json("[" * 100 + "]" * 100, "x") != []


def test_a_dotted_key_has_at_most_a_hundred_names():
    found, key = reading.parse_toml(".".join("a" * 100) + " = 1", "x"), 0
    while isinstance(found, dict):
        found, key = found["a"], key + 1
    assert (found, key) == (1, 100)
    for text in (".".join("a" * 101) + " = 1", "[" + " . ".join("a" * 101) + "]"):
        with pytest.raises(InputError, match="is nested deeper than 100 levels"):
            reading.parse_toml(text, "x")


def test_a_number_has_at_most_three_hundred_digits():
    found = []
    for digits in (300, 301):
        with contextlib.suppress(InputError):
            found.append(reading.parse_json("9" * digits, "x"))
    assert found == [10**300 - 1]


LEAVES = st.none() | st.booleans() | st.floats(allow_nan=False) | st.text()


@given(st.recursive(LEAVES, lambda x: st.lists(x) | st.dictionaries(st.text(), x), max_leaves=9))
def test_json_that_is_no_deeper_than_allowed_is_read_as_it_is(data):
    assert reading.parse_json(json.dumps(data), "x") == data


@pytest.mark.parametrize("text", ["9" * 5_000, "²", "１２", "-1", "0"])
def test_numbers_in_options_have_few_digits_and_are_plain(text, tmp_path):
    log = tmp_path / "log.csv"
    log.write_text("state,reward,next_state,terminated\n" + "0,1,1,0\n1,2,0,1\n" * 9)
    words = ["estimate", log, "--gamma", "0.9", "--formats", "none", "--out", tmp_path / "out"]
    refused(*words, "--states", text)
    refused(*words, "--grid", f"{text}x{text}")


def test_labels_with_thousands_of_digits_are_sorted_by_size():
    names = ["ward " + "9" * k for k in (5_000, 4_999, 1)] + ["ward 10", "ward 007"]
    assert [len(x) for x in sorted(names, key=natural_key)] == [8, 6, 7, 5_004, 5_005]


# ---------------------------------------------------------------------- devices and pipes


@pytest.mark.parametrize("kind", ["pipe", "zeros"])
def test_devices_and_pipes_are_refused_at_every_place_that_reads_a_file(kind, tmp_path):
    def made(name: str) -> Path:
        path = tmp_path / name
        if kind == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to("/dev/zero")
        return path

    log = tmp_path / "log.csv"
    log.write_text("state,action,reward,next_state,terminated\n" + "0,0,1,1,0\n1,0,2,0,1\n" * 9)
    gamma, out = ["--gamma", "0.9"], ["--out", tmp_path / "out"]
    lake = ["gymnasium:FrozenLake-v1", *gamma]
    wanted = "is a device or a pipe; name a file"
    toml = made("a.toml")
    assert wanted in refused("solve", toml)
    assert wanted in refused("sweep", "plan", toml)
    assert wanted in refused("sweep", "run", toml, *out)
    assert wanted in refused("reproduce", "--file", made("a.py"), *out)
    for name in ("a.csv", "a.csv.gz", "a.parquet"):
        path = made(name)
        assert wanted in refused("estimate", path, *gamma, *out)
        assert wanted in refused("estimate", log, *gamma, "--target-policy", path, *out) or (
            name == "a.csv.gz"
        )
    for name in ("a.npy", "a.json"):
        assert wanted in refused("estimate", log, *gamma, "--target-policy", made(name), *out)
    assert wanted in refused("rollouts", *lake, "--policy", tmp_path / "a.npy")
    assert wanted in refused("estimate", *lake, "--policy", tmp_path / "a.npy", *out)
    assert wanted in refused("estimate", *lake[:1], "--resume", made("a.safetensors"), *out)
    (tmp_path / "store").mkdir()
    made("store/manifest.json")
    refused("sweep", "status", tmp_path / "store")
    (tmp_path / "made").mkdir()
    made("made/retvar-reproduction.json")
    assert "holds other files" in refused("reproduce", "networks", "--out", tmp_path / "made")
    with limited(), pytest.raises(InputError):
        cache.read(made("a.nc"), "key")
    assert not (tmp_path / "out").exists()


def locked(folder: Path, monkeypatch) -> Path:
    """A folder in which nothing may be looked at, not even by root."""
    folder.mkdir()
    look = os.stat

    def forbidden(path, *args, **options):
        if str(folder) + os.sep in str(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return look(path, *args, **options)

    monkeypatch.setattr(os, "stat", forbidden)
    return folder


@pytest.mark.parametrize("kind", ["locked", "long name", "long path"])
def test_paths_that_cannot_be_looked_at_are_refused_wherever_one_is_given(
    kind, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    folder, name = tmp_path, "x"
    if kind == "locked":
        folder = locked(tmp_path / "locked", monkeypatch)
    elif kind == "long name":
        name = "x" * 300
    else:
        folder = tmp_path.joinpath(*["x" * 200] * 30)
    path, log = folder / name, tmp_path / "log.csv"
    log.write_text("state,action,reward,next_state,terminated\n" + "0,0,1,1,0\n1,0,2,0,1\n" * 9)
    gamma = ["--gamma", "0.9"]
    lake = ["estimate", "gymnasium:FrozenLake-v1", "--steps", "9"]
    for words in (
        [*lake, *gamma, "--out", path],
        [*lake, *gamma, "--log", f"{path}.parquet"],
        [*lake, "--resume", path],
        [*lake, *gamma, "--policy", f"{path}.npy"],
        ["estimate", log, *gamma, "--target-policy", f"{path}.csv"],
        ["estimate", f"{path}.csv", *gamma],
        ["estimate", f"{path}.csv", *gamma, "--follow"],
        ["estimate", path, *gamma, "--follow"],
        ["reproduce", "networks", "--out", path],
        ["sweep", "status", path],
        ["sweep", "collect", path, "--out", "a.nc"],
    ):
        message = refused(*words)
        assert len(message) < 600
        assert "cannot be" in message or "must be the path of a file" in message
    found = rv.estimate(rv.experience.from_gymnasium("FrozenLake-v1", steps=9), gamma=0.9)
    with pytest.raises(InputError):
        found.save(path)
    assert {each.name for each in tmp_path.iterdir()} <= {"locked", "log.csv"}


def test_files_larger_than_allowed_are_not_read(tmp_path):
    """A file with holes: a terabyte that takes no room."""
    for name in ("a.toml", "a.json", "a.nc"):
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, 1 << 40)
    assert "is too large" in refused("solve", tmp_path / "a.toml")
    with limited():
        assert cache.footer_of(tmp_path / "a.nc") is None
        with pytest.raises(InputError, match="is too large: more than 268,435,456 bytes"):
            reading.read_json(tmp_path / "a.json")


def test_an_array_that_is_larger_than_its_file_is_refused(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.zeros((4, 4)))
    raw = path.read_bytes()
    for shape in (b"(9999999999, 9999999999)", b"(" + b"9" * 30 + b",)", b"[" * 24):
        path.write_bytes(raw.replace(b"(4, 4), }" + b" " * 15, shape + b", }"))
        with limited(), pytest.raises(InputError, match="cannot be read"):
            reading.load_array(path)
    np.save(path, np.array([{}]), allow_pickle=True)
    with pytest.raises(InputError, match="cannot be read"):
        reading.load_array(path)


def test_the_settings_of_a_model_that_unpack_to_gigabytes_are_not_parsed(tmp_path, monkeypatch):
    from retvar.experience import predictors

    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data", "[" * (1 << 20))
    with limited():
        predictors._refuse_other_algorithm(type("PPO", (), {}), str(path), "sb3:PPO:a.zip")
        monkeypatch.setattr(predictors, "MOST", 1 << 10)
        predictors._refuse_other_algorithm(type("PPO", (), {}), str(path), "sb3:PPO:a.zip")


# ---------------------------------------------------------------------- absurd shapes


def forged(path: Path, raw: bytes) -> Path:
    """A file with the right checksum."""
    footer = cache.Footer("key", "contents", cache._checksum(raw, "key", "contents"))
    path.write_bytes(raw + cache.MARK + " ".join(footer).encode() + b"\n")
    return path


def hdf5(**shapes: tuple[int, ...]) -> bytes:
    """An HDF5 file with variables that were never written."""
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        file.attrs["key"], file.attrs["contents"] = "key", "contents"
        for name, shape in shapes.items():
            file.create_dataset(name, shape, "f8", chunks=(1_000,) * len(shape))
    return buffer.getvalue()


@pytest.mark.parametrize("shapes", [{"x": (10**9,)}, {"x": (10**9, 10**9)}, {"x": (2**40, 2**40)},
                                    {f"x{k}": (10**6,) for k in range(900)}])  # fmt: skip
def test_variables_larger_than_their_file_are_refused_before_they_are_read(shapes, tmp_path):
    path = forged(tmp_path / "a.nc", hdf5(**shapes))
    assert path.stat().st_size < 1_000_000
    with limited(), pytest.raises(InputError, match=r"is damaged .* \(ValueError\)"):
        cache.read(path, "key")


@pytest.mark.parametrize("kind", ["soft", "external", "virtual", "many"])
def test_data_of_other_files_and_data_with_many_names_are_refused(kind, tmp_path):
    buffer, other = io.BytesIO(), tmp_path / "other.h5"
    with h5py.File(other, "w") as file:
        file["secret"] = np.arange(9.0)
    with h5py.File(buffer, "w") as file:
        file["x"] = np.zeros(100_000)
        if kind == "soft":
            file["y"] = h5py.SoftLink("/x")
        elif kind == "external":
            file["y"] = h5py.ExternalLink(str(other), "secret")
        elif kind == "virtual":
            layout = h5py.VirtualLayout((9,), "f8")
            layout[:] = h5py.VirtualSource(str(other), "secret", (9,))
            file.create_virtual_dataset("y", layout)
        else:
            for k in range(100):
                file[f"y{k}"] = file["x"]
    path = forged(tmp_path / "a.nc", buffer.getvalue())
    with limited(), pytest.raises(InputError, match=r"is damaged .* \(ValueError\)"):
        cache.read(path, "key")


def shared_texts(count: int, length: int) -> bytes:
    """An HDF5 file whose texts are all the same bytes of it."""
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        file.create_dataset("x", (count,), h5py.string_dtype())[0] = "A" * length
        file.flush()
        start = file["x"].id.get_offset()
    raw = bytearray(buffer.getvalue())
    raw[start : start + 16 * count] = raw[start : start + 16] * count
    return bytes(raw)


def odd(kind: str) -> bytes:
    """A small HDF5 file with something that retvar never writes."""
    buffer, text = io.BytesIO(), h5py.string_dtype()
    with h5py.File(buffer, "w", track_order=kind == "attributes") as file:
        file.attrs["key"], file.attrs["contents"] = "key", "contents"
        if kind == "chunk":
            file.create_dataset("x", (10,), "f8", chunks=(10**6,), maxshape=(None,))[:] = 1.0
        elif kind == "filter":
            file.create_dataset("x", (10,), "f8", chunks=(10,), compression="gzip")[:] = 1.0
        elif kind == "numbers of any length":
            file.create_dataset("x", (2,), h5py.vlen_dtype(float))[0] = [1.0, 2.0]
        elif kind == "compound":
            file["x"] = np.zeros(3, [("a", "f8"), ("b", "i4")])
        elif kind == "group":
            file["x/y"] = 1.0
        elif kind == "variables":
            for k in range(3_000):
                file.create_dataset(f"x{k}", (), "i1")
        elif kind == "attributes":
            for k in range(3_000):
                file.attrs[f"x{k}"] = 1
        elif kind == "texts of an attribute":
            file.attrs.create("x", ["A", "B"], dtype=text)
        elif kind == "texts never written":
            file.create_dataset("x", (1_000,), text, fillvalue="A" * 10_000)
        elif kind == "scales":
            file["x"], file["y"], file["z"] = [1.0], [2.0], [3.0]
            for name in "yz":
                file[name].make_scale(name)
                file["x"].dims[0].attach_scale(file[name])
    return buffer.getvalue()


KINDS = ["chunk", "filter", "numbers of any length", "compound", "group", "variables", "attributes",
         "texts of an attribute", "texts never written", "scales"]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_what_retvar_never_writes_is_refused_before_it_is_read(kind, tmp_path, monkeypatch):
    path = forged(tmp_path / "a.nc", odd(kind))
    monkeypatch.setattr("xarray.open_dataset", lambda *_, **__: pytest.fail("it was read"))
    with limited(), pytest.raises(InputError, match=r"is damaged .* \(ValueError\)"):
        cache.read(path, "key")


def test_texts_that_share_their_bytes_are_refused_before_they_are_read(tmp_path, monkeypatch):
    """Two thousand texts of 50 kB in a file of 90 kB."""
    path = forged(tmp_path / "a.nc", shared_texts(2_000, 50_000))
    assert path.stat().st_size < 100_000
    monkeypatch.setattr("xarray.open_dataset", lambda *_, **__: pytest.fail("it was read"))
    with pytest.raises(InputError, match=r"is damaged .* \(ValueError\)"):
        cache.read(path, "key")


def test_texts_of_attributes_that_share_their_bytes_are_refused(tmp_path, monkeypatch):
    """Four hundred attributes with the same 50 kB."""
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        for k in range(400):
            about = file.create_dataset(f"x{k}", (), "i1").attrs
            about["several"] = "A" * 50_000 if k == 0 else "B"
    raw = bytearray(buffer.getvalue())
    first, *others = (found.start() + 40 for found in re.finditer(b"several\0", bytes(raw)))
    for place in others:
        raw[place : place + 16] = raw[first : first + 16]
    with h5py.File(io.BytesIO(bytes(raw)), "r") as file:
        assert len(file["x399"].attrs["several"]) == 50_000
    monkeypatch.setattr("xarray.open_dataset", lambda *_, **__: pytest.fail("it was read"))
    with pytest.raises(InputError, match=r"is damaged .* \(ValueError\)"):
        cache.read(forged(tmp_path / "a.nc", bytes(raw)), "key")


def test_one_long_text_among_many_is_refused_before_all_become_as_long(tmp_path, monkeypatch):
    """As an array they would have 4 GB."""
    data = xarray.Dataset({"x": ("a", np.array(["A" * 50_000, *["B"] * 20_000], dtype=object))})
    raw = bytes(cache._hdf5(data))
    monkeypatch.setattr("xarray.open_dataset", lambda *_, **__: pytest.fail("it was read"))
    with pytest.raises(InputError, match=r"is damaged .* \(ValueError\)"):
        cache.read(forged(tmp_path / "a.nc", raw), "key")


def test_everything_that_retvar_writes_is_read_again(tmp_path):
    """Empty variables and texts, dimensions without coordinates, truths, and all records."""
    some = xarray.Dataset(
        {"x": ("a", ["é", ""]), "y": (("a", "b"), np.zeros((2, 3))), "t": ("a", [True, False]),
         "e": (("a", "z", "b"), np.zeros((2, 0, 3))), "s": "one", "f": ("b", np.zeros(3, "f4")),
         "n": 3, "o": ("z", np.zeros(0, "U3"))},
        coords={"a": ["u", "v"]}, attrs={"name": "", "number": 3, "numbers": [1, 2]},
    )  # fmt: skip
    learners = {"direct": rv.Direct(alpha=0.1), "vtd": rv.VTD(alpha=0.1)}
    record = rv.Record(every=10, rmse=True, step_sizes=True)
    full = rv.simulate(rv.domains.chain(), learners, steps=50, runs=2, seed=0, record=record)
    for data in (some, full, xarray.Dataset()):
        cache.write(tmp_path / "a.nc", data, "key")
        assert cache.read(tmp_path / "a.nc", "key").drop_attrs().equals(data)


def test_classic_variables_that_share_their_bytes_are_refused(tmp_path):
    """A thousand variables, each with the same 800 kB of the file."""
    from scipy.io import netcdf_file

    buffer, many = io.BytesIO(), 1_000
    with netcdf_file(buffer, "w", version=2) as file:
        file.createDimension("a", 1)
        for k in range(many):
            file.createVariable(f"v{k:05}", "f8", ("a",))
        file.flush()
        raw = bytearray(buffer.getvalue())
    length = raw.index(b"a\0\0\0") + 4
    raw[length : length + 4] = (100_000).to_bytes(4, "big")
    for found in re.finditer(rb"v\d{5}\0\0", bytes(raw)):
        begin = found.end() + 4 + 4 + 8 + 4 + 4  # dimensions, attributes, type and size
        raw[begin : begin + 8] = (0).to_bytes(8, "big")
    path = forged(tmp_path / "a.nc", bytes(raw) + bytes(800_000))
    with limited(), pytest.raises(InputError, match=r"is damaged .* \(ValueError\)"):
        cache.read(path, "key")


def log_of(labels: pa.Array) -> pa.Table:
    n = len(labels)
    return pa.table({"state": labels, "reward": np.ones(n), "terminated": np.zeros(n, bool)})


def repeated(count: int, length: int) -> pa.Array:
    """A label that is in memory, and in a Parquet file, once."""
    codes = pa.array(np.r_[0, np.ones(count - 1, np.int32)].astype(np.int32))
    return pa.DictionaryArray.from_arrays(codes, pa.array(["b", "A" * length]))


def labels_of(source: object, **roles: str) -> list[str]:
    """The labels of the states of a log, with limits of time and memory."""
    with limited():
        log = rv.experience.from_table(source, **roles)
        assert sum(len(chunk["reward"]) for chunk in log.chunks())
    return log.labels


@pytest.mark.parametrize("categories", [False, True])
def test_a_long_label_in_a_parquet_file_is_not_repeated(categories, tmp_path):
    """2 MB, four thousand times; the types in the file say text, or categories."""
    path, table = tmp_path / "a.parquet", log_of(repeated(4_000, 2_000_000))
    pq.write_table(table, path, store_schema=categories)
    short, long = labels_of(path)
    assert short == "b"
    assert re.fullmatch(r"A{40}… \(2,000,000 bytes, [0-9a-f]{32}\)", long)


@pytest.mark.parametrize("kind", ["string", "large_string", "string_view", "binary_view", "delta"])
def test_texts_of_every_type_and_encoding_are_read(kind, tmp_path):
    """Long ones in a column without a role, too: they tell rows apart, if duplicates are sought."""
    path, plain = tmp_path / "a.parquet", kind == "delta"
    kind_of_text = pa.string() if plain else getattr(pa, kind)()
    names = [b"a", b"b"] if kind == "binary_view" else ["a", "b"]
    table = log_of(pa.array(names * 30, kind_of_text)).append_column("when", [range(60)])
    table = table.append_column("note", [["N" * 20_000 + str(k // 2) for k in range(60)]])
    encoding = {"use_dictionary": False, "column_encoding": {"state": "DELTA_BYTE_ARRAY"}}
    pq.write_table(table, path, **(encoding if plain else {}))
    assert labels_of(path, time="when") == names


def test_repeated_labels_are_decoded_in_batches_that_fit_into_memory(tmp_path, monkeypatch):
    path, table = tmp_path / "a.parquet", log_of(repeated(2_000, 9_000))
    pq.write_table(table, path, store_schema=False, row_group_size=600)
    monkeypatch.setattr(readers, "TEXT_BYTES", 1 << 20)
    found = list(readers.open_file(path).batches(["state"], 1_000))
    assert max(batch.nbytes for batch in found) < 2 << 20
    assert pa.Table.from_batches(found)["state"].to_pylist() == table["state"].to_pylist()


def test_texts_that_are_far_larger_than_their_file_are_refused_before_they_are_read(
    tmp_path, monkeypatch
):
    """A gigabyte of equal texts is a log; here the limit is lower."""
    path, state = tmp_path / "a.parquet", ["A" * 9_000] * 2_000
    pq.write_table(log_of(pa.array(state)), path, compression="zstd", use_dictionary=False)
    assert sum(len(chunk["state"]) for chunk in rv.experience.from_table(path).chunks()) == 1_999
    monkeypatch.setattr(readers, "LARGE_GROUP", 1 << 24)
    with pytest.raises(InputError, match="too much for so small a file"):
        rv.experience.from_table(path)


DAMAGES = """
import sys
from pathlib import Path
from retvar.experience.readers import open_file
path = Path(sys.argv[1])
whole = path.read_bytes()
footer = int.from_bytes(whole[-8:-4], "little")
refused = 0
file = path.open("r+b", buffering=0)
for at in range(len(whole) - footer - 8, len(whole)):
    file.seek(at - 1)
    file.write(bytes([whole[at - 1], whole[at] ^ 2]))
    try:
        reader = open_file(path, threads=False)
        for batch in reader.batches(list(reader.types), 100):
            pass
    except Exception:
        refused += 1
print(refused)
"""


def test_no_damaged_byte_in_the_metadata_of_a_parquet_file_aborts_the_process(tmp_path):
    """In a process of its own, since it would be aborted: no exception would say so."""
    path = tmp_path / "a.parquet"
    pq.write_table(log_of(pa.array(["a", "b"] * 10)), path, store_schema=False)
    command = [sys.executable, "-c", DAMAGES, str(path)]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr[-500:]
    assert int(found.stdout) > 0


def unchecked(texts: list[bytes], kind: pa.DataType) -> pa.Array:
    """A column of text that need not be UTF-8."""
    raw = {pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view()}
    return pa.Array.from_buffers(
        kind, len(texts), pa.array(texts, raw.get(kind, pa.binary())).buffers()
    )


@pytest.mark.parametrize("source", ["file", "table"])
@pytest.mark.parametrize("kind", ["string", "large_string", "string_view", "delta", "categories"])
@pytest.mark.parametrize("role", ["state", "reward", "terminated", "entity", "time", "a note"])
def test_a_text_that_is_not_utf_8_is_refused_with_its_column_and_row(role, kind, source, tmp_path):
    """Not only where the text has a role: any column tells duplicates apart."""
    table = log_of(pa.array(["a", "b"] * 30)).append_column("entity", [["p"] * 60])
    table = table.append_column("time", [range(60)]).append_column("a note", [["n"] * 60])
    texts = [b"1"] * 40 + [b"critica\xf1"] + [b"0"] * 19
    texts = unchecked(texts, getattr(pa, kind, pa.string)())
    texts = texts.dictionary_encode() if kind == "categories" else texts
    table = table.set_column(table.schema.names.index(role), role, texts)
    given: object = table
    if source == "file":
        given = tmp_path / "a.parquet"
        encoding = {"use_dictionary": False, "column_encoding": {role: "DELTA_BYTE_ARRAY"}}
        options = encoding if kind == "delta" else {}
        pq.write_table(table, given, row_group_size=25, **options)
    with pytest.raises(InputError, match=rf"row 41: {role} = critica\\xf1: is not UTF-8; write"):
        rv.experience.from_table(given, entity="entity", time="time")


def test_the_command_line_refuses_a_text_that_is_not_utf_8(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(log_of(unchecked([b"a", b"\xff"] * 30, pa.string())), path)
    message = refused("estimate", path, "--gamma", 0.9)
    assert message.startswith(f"Error: {path}, row 2: state = \\xff: is not UTF-8")


def test_rows_before_a_text_that_is_not_utf_8_are_read(tmp_path):
    """Of a piece of the file, too, whose rows have the numbers that they have in the file."""
    path = tmp_path / "a.parquet"
    texts = unchecked([b"a"] * 90 + [b"\xff"] * 10, pa.string())
    pq.write_table(log_of(texts), path, row_group_size=20)
    for groups, rows in (None, 80), (range(2, 5), 40):
        found = readers.open_file(path, groups).batches(["state"], 20)
        assert sum(len(next(found)) for _ in range(rows // 20)) == rows
        with pytest.raises(InputError, match="row 91: state"):
            next(found)


@pytest.mark.parametrize("index", ["int8", "uint8", "int64", "uint64"])
def test_a_text_that_no_row_has_need_not_be_utf_8(index):
    """Categories that were left over, one of them long enough for a digest."""
    values = unchecked([b"a", b"\xff", b"b", b"c" * 20_000], pa.string())
    rows = pa.array([0, 2, None, 0], getattr(pa, index)())
    table = log_of(pa.DictionaryArray.from_arrays(rows, values))
    found = pa.Table.from_batches(readers.open_readers(table)[0].batches(["state"], 100))
    assert found["state"].to_pylist() == ["a", "b", None, "a"]


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "table"])
def test_long_labels_that_differ_at_their_end_are_different_states(suffix, tmp_path):
    path, long = tmp_path / f"a.{suffix}", "A" * 20_000
    states = ["b", long + "1", "b", long + "2", long + "1", "b"]
    given: object = path
    if suffix == "table":
        given = log_of(pa.array(states))
    else:
        rows = "".join(f"{state},1,0\n" for state in states)
        text = ("state,reward,terminated\n" + rows).encode()
        path.write_bytes(gzip.compress(text) if suffix == "csv.gz" else text)
    found = labels_of(given)
    assert len(found) == len(set(found)) == 3
    assert max(map(len, found)) < 100


# ---------------------------------------------------------------------- names

CONTROL = "\x1b[31m\t\x07\x7f\x9b\u202e\u200b中😀"
NAME = f"<b>&x;</b>|`b`*c*_d_$y$ z$[e](http://f.g) www.h.i{CONTROL}\n# j"
COLUMN = NAME.replace("|", "").replace("\n", "").replace("\t", "")


def require_plain(text: str) -> None:
    """No control character, and no line that a name began."""
    assert {c for c in text if ONE_LINE.match(c)} <= {"\n"}
    assert not [line for line in text.splitlines() if line.startswith("# j")]


def printed(*words: object, status: int = 0) -> str:
    """What a command prints; warnings are errors here."""
    result = CliRunner().invoke(main, [str(word) for word in words], color=True)
    if result.exit_code != status:
        raise AssertionError(result.output[-500:]) from result.exception
    require_plain(result.stdout + result.stderr)
    if "--json" in words:
        json.loads(result.stdout)
    return result.stdout


def require_drawn(figure, folder: Path) -> None:
    """A figure whose texts are plain, saved without a warning; its SVG is well-formed."""
    for suffix in ("svg", "png", "pdf"):
        rv.plots.save(figure, folder / f"a.{suffix}")
    xml.dom.minidom.parse(str(folder / "a.svg"))
    require_plain("".join(text.get_text() for text in figure.findobj(Text)))


def require_harmless(path: Path) -> None:
    """A page in which names are text: well-formed, without their tags and control characters."""
    page = path.read_text(encoding="utf-8").replace("\t", "")
    assert {c for c in page if ONE_LINE.match(c)} <= {"\n"}
    assert "<b>&" not in page
    assert "&lt;b&gt;&amp;x;&lt;/b&gt;" in page
    read_offline(path)


def own_mdp(nul: str = "") -> rv.MDP:
    s, t, a, b = (letter + NAME + nul for letter in "stab")
    edges = [(s, a, t, 1.0, 1.0), (t, b, s, 0.5, 2.0), (t, b, "end", 0.5), (s, b, "end")]
    policies = {"p" + NAME + nul: {s: {a: 0.5, b: 0.5}, t: b}, "q" + NAME: {s: a, t: b}}
    return rv.MDP.from_edges(
        edges, states=[s, t], actions=[a, b], gamma=0.9, start=s, name="m" + NAME + nul,
        policies=policies,
    )  # fmt: skip


def test_names_in_an_mdp_are_escaped_in_texts_and_figures(tmp_path):
    mdp, path, policy = own_mdp("\0!"), tmp_path / "m.toml", "p" + NAME + "\0!"
    mdp.to_toml(path)
    assert rv.MDP.from_toml(path) == mdp
    target = ["--target", "q" + NAME]
    assert visible("s" + NAME + "\0!") in printed("solve", path, *target)
    found = json.loads(printed("solve", path, *target, "--json"))
    assert found["state"][0] == "s" + NAME + "\0!"
    printed("curve", path, *target, "--steps", "9", "--alpha", "0.1")
    bad = [["solve", path, "--target", NAME], ["solve", NAME], [NAME]]
    bad += [["solve", "chain", "--gamma", NAME], ["draw", path, tmp_path / CONTROL]]
    for words in bad:
        printed(*words, status=2)
    require_plain(repr(mdp))
    require_drawn(rv.plots.draw_mdp(mdp), tmp_path)
    require_drawn(rv.plots.solution(rv.solve(mdp, policy)), tmp_path)
    learners = {"L" + NAME: rv.Direct(alpha=0.1), "M" + NAME + "\0!": rv.VTD(alpha=0.1)}
    record = rv.Record(every=10, rmse=True, step_sizes=True)
    data = rv.simulate(mdp, learners, target=policy, steps=50, runs=2, seed=0, record=record)
    for draw in ("learning_curves", "rmse_curves", "final_estimates", "step_sizes"):
        require_drawn(getattr(rv.plots, draw)(data), tmp_path)
    cache.write(tmp_path / "a.nc", data, "key")
    saved = [str(label) for label in cache.read(tmp_path / "a.nc", "key").learner.values]
    assert saved == ["L" + NAME, "M" + NAME + "\\x00!"]


def test_names_in_a_sweep_are_escaped_in_texts_figures_and_files(tmp_path):
    quoted = json.dumps("D" + NAME + "\0", ensure_ascii=False).replace("\x7f", "\\u007f")
    spec, store = tmp_path / "s.toml", tmp_path / "out"
    spec.write_text(
        f'name = {quoted}\nruns = 4\nsteps = 20\ndomains = [{{ id = "chain", name = {quoted} }}]\n'
        'learners = [{ method = ["direct", "vtd"], alpha = [0.1, 0.2] }]\n'
    )
    for words in (["plan", spec], ["plan", spec, "--json"], ["run", spec, "--out", store],
                  ["status", store], ["compare", store], ["compare", store, "--json"],
                  ["collect", store, "--out", tmp_path / "a.nc"],
                  ["collect", store, "--out", tmp_path / "a.parquet"],
                  ["plot", store, "--out", tmp_path / "a.svg"]):  # fmt: skip
        printed("sweep", *words)
    require_plain((tmp_path / "a.svg").read_text(encoding="utf-8"))
    data = rv.sweep.collect(rv.sweep.Store.open(store))
    require_drawn(rv.plots.comparison(rv.sweep.compare(data)), tmp_path)


def test_names_in_a_log_are_escaped_in_texts_and_figures(tmp_path):
    log, out = tmp_path / f"log{COLUMN.replace('/', '')}.csv", tmp_path / "out"

    def write(header, rows):
        with log.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([header, *rows])

    s, t = "s" + NAME, "t" + NAME
    write(["state", "action", "reward", "next_state", "terminated"],
          [[s, NAME, 1, t, 0], [t, NAME, 2, s, 1]] * 30)  # fmt: skip
    words = ["estimate", log, "--gamma", "0.9", "--out", out]
    assert "www.h.i\\x1b[31m" in printed(*words, "--formats", "svg")
    for path in out.glob("*.svg"):
        require_plain(path.read_text(encoding="utf-8"))
    require_harmless(out / "index.html")
    require_plain((out / "estimate.csv").read_text(encoding="utf-8"))
    found = json.loads(printed(*words, "--formats", "none", "--json"))
    assert found["state"] == [s, t]
    printed(*words, "--formats", "none", "--at", s)
    printed(*words, "--formats", "none", "--at", NAME, status=2)
    roles = ["state", "reward", "next-state", "terminated"]
    columns = [role + COLUMN for role in roles]
    write(columns, [[0, 1, 1, 0], [1, 2, 0, 1]] * 30)
    given_roles = [w for r, c in zip(roles, columns, strict=True) for w in (f"--{r}", c)]
    printed(*words, *given_roles, "--formats", "none")
    printed(*words, "--formats", "none", status=2)


def test_names_that_are_logged_are_escaped(tmp_path, caplog):
    """By whatever handler they are printed: a command without a progress display has none."""
    rows = "state,reward,next_state,terminated\n" + "a,1,b,0\nb,2,a,1\n" * 9
    out = ["--formats", "none", "--out", tmp_path / "out"]
    for name in (f"x{COLUMN.replace('/', '')}.csv", "y.csv"):
        (tmp_path / name).write_text(rows)
        more = ["--gamma", "0.9"] if name != "y.csv" else ["--resume", tmp_path / "out"]
        printed("estimate", tmp_path / name, *more, *out)
    assert "\\x1b[31m" in caplog.text
    require_plain(caplog.text)


def test_names_in_a_report_are_escaped_as_html_and_as_markdown(tmp_path):
    file, out = tmp_path / "own.py", tmp_path / "out"
    file.write_text(
        "import retvar as rv\n"
        "from retvar.experiments import Claim, Experiment, Finding, Simulation\n"
        f"B = {NAME + chr(0) + '!'!r}\n"
        "S = Simulation('s' + B, rv.domains.chain(), {'L' + B: rv.Direct(alpha=0.1)}, episodes=9,"
        " runs=2)\n"
        "C = Claim('C' + B, lambda data: Finding(False, 'M' + B), ('direct',), 'E' + B)\n"
        "EXPERIMENTS = [Experiment('one', 'T' + B, 'A' + B, (S,), 'learning_curves', {}, (C,)),\n"
        "    Experiment('two', 'U' + B, 'A' + B, (S,), lambda data: {}[B], source=B)]\n"
    )
    printed("reproduce", "--file", file, "--out", out, "--formats", "svg", status=1)
    require_plain((out / "figures" / "one.svg").read_text(encoding="utf-8"))
    require_harmless(out / "index.html")
    text = (out / "report.md").read_text(encoding="utf-8")
    require_plain(text)
    bare = re.sub(r"`+[^`]*`+", "", text.replace("\\`", ""))
    for mark in ("<b>", "*c*", "_d_", "$y$", "[e](", "http:", "www.h"):
        assert re.search(r"(?<!\\)" + re.escape(mark), bare) is None, mark


def test_a_file_name_in_the_command_of_a_report_cannot_run_another_one():
    from retvar.report.outcome import Request

    command = Request(file="a; rm -rf `b` $(c).py").command("one")
    assert command == "retvar reproduce one --file 'a; rm -rf `b` $(c).py' --out rerun"


@given(st.text())
def test_visible_text_has_no_control_character_and_plain_text_stays(text):
    assert not ONE_LINE.search(visible(text))
    assert visible(visible(text)) == visible(text)
    assert "\n" not in visible(text, lines=True).replace("\n", "") or "\n" in text
    plain = re.sub(r"[^ -~äλ∞]", "", text)
    assert visible(plain) == plain
    visible(text).encode("utf-8")


# ---------------------------------------------------------------------- halves of surrogate pairs

HALF = "a\ud800"
LEARN = [{"method": "direct", "alpha": 0.1}]


def sweep_of(**changes):
    data = {"runs": 1, "steps": 9, "domains": [{"id": "chain"}], "learners": LEARN}
    return Sweep.from_dict({**data, **changes})


NAMED = {
    "MDP": lambda: rv.domains.chain().replace(name=HALF),
    "states": lambda: rv.domains.chain().replace(states=["a", "b", "c", HALF]),
    "actions": lambda: rv.domains.chain().replace(actions=[HALF]),
    "state of an edge": lambda: rv.MDP.from_edges([(HALF, "x", "end")], gamma=1.0),
    "action of an edge": lambda: rv.MDP.from_edges([("x", HALF, "end")], gamma=1.0),
    "policy": lambda: rv.domains.chain().replace(policies={HALF: "uniform"}),
    "learner": lambda: rv.simulate(
        rv.domains.chain(), {HALF: rv.Direct(alpha=0.1)}, steps=1, runs=1, seed=0
    ),
    "sweep": lambda: sweep_of(name=HALF),
    "domain": lambda: sweep_of(domains=[{"id": "chain", "name": HALF}]),
    "option": lambda: sweep_of(domains=[{"id": "chain", "options": {"a": [HALF]}}]),
    "name of an option": lambda: sweep_of(domains=[{"id": "chain", "options": {HALF: 1}}]),
    "number of runs": lambda: sweep_of(runs=HALF),
    "target": lambda: sweep_of(domains=[{"id": "chain", "target": HALF}]),
    "column": lambda: rv.experience.from_table({HALF: [1.0], "state": [0], "reward": [0.0]}),
}


@pytest.mark.parametrize("name", NAMED)
def test_names_with_half_of_a_surrogate_pair_are_refused_where_they_are_given(name):
    """They are no text that a file or a terminal can hold."""
    with pytest.raises(InputError, match="half of a surrogate pair") as refusal:
        NAMED[name]()
    assert str(refusal.value).isascii()


def test_a_sweep_is_named_after_its_file_whatever_the_name_of_the_file(tmp_path):
    path = tmp_path / "a\udcff.toml"
    path.write_text(SPEC % "0.1")
    assert Sweep.from_toml(path).name == "a\\udcff"
