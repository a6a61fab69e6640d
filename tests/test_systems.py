"""Other users, other systems: no home, no room, another clock, moved folders, Python's options."""

import ast
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import retvar as rv
from retvar import files, jit
from retvar.sweep import Local, Store, leases, operations
from tests.oracle import SOAK
from tests.sweeping import small

ROOT = Path(__file__).parents[1]
OTHER = {"store", "compiled code", "temporary folder"}  # not files of their own
SMALL = ROOT / "tests" / "data" / "small.py"
NO_HOME = "/proc/none/home"  # nobody can make it


def python(*words, **changes) -> subprocess.CompletedProcess:
    """Run Python in an environment with some variables changed, or without them (None)."""
    folder = changes.pop("cwd", ROOT)
    env = {**os.environ, **changes}
    return subprocess.run(
        [sys.executable, *map(str, words)], capture_output=True, text=True, timeout=300, cwd=folder,
        env={name: value for name, value in env.items() if value is not None}, check=False,
    )  # fmt: skip


# ---------------------------------------------------------------------- users without rights

LITTLE = """
import numpy as np, retvar as rv
from retvar.engine.runner import Moments
moments = Moments((3,))
moments.add(np.arange(6.0).reshape(2, 3))
rv.plots.save(rv.plots.draw_mdp(rv.domains.chain()), "chain.svg")
print(moments.average.tolist(), rv.solve(rv.domains.chain()).std.size)
"""


@pytest.mark.parametrize("cache", ["home", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR"])
def test_a_user_without_a_writable_cache_gets_the_same_answers(cache, tmp_path):
    changes = {"HOME": NO_HOME, "XDG_CACHE_HOME": None, "NUMBA_CACHE_DIR": None}
    changes |= {} if cache == "home" else {cache: NO_HOME}
    if cache == "home" or SOAK:
        ended = python("-c", LITTLE, cwd=tmp_path, PYTHONPATH=str(ROOT / "src"), **changes)
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout == f"[1.5, 2.5, 3.5] {rv.domains.chain().n_states}\n"
        assert [path.name for path in tmp_path.iterdir()] == ["chain.svg"]


@pytest.mark.parametrize("root", ["~/.cache", "relative", ""])
def test_nothing_is_cached_in_the_working_folder(root, tmp_path, monkeypatch):
    """A user whom the system does not know has no home: `~` stays as it is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(jit.numba.config, "CACHE_DIR", "")
    if root.startswith("~"):
        monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", root)
        monkeypatch.setenv("HOME", str(tmp_path.parent))
    assert jit.compiled(lambda x: x + 1, key=f"test {root}")(1) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_read_or_written_is_not_missed(tmp_path, monkeypatch):
    def fails(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(jit.numba.config, "CACHE_DIR", str(tmp_path))
    function = jit.compiled(lambda x: x * 2, key="test of a cache")
    for name in ("load", "save"):
        monkeypatch.setattr(function._cache._cache_file, name, fails)
    assert function(2) == 4


SWEEP = """
runs = 2
steps = 5
domains = [{ id = "chain" }]
learners = [{ method = "direct", alpha = 0.1 }]
"""


def test_commands_work_where_nothing_but_the_working_folder_can_be_written(tmp_path):
    """Neither the installation, nor a cache, nor a home, nor /tmp; not compiled, to be quick."""
    lake = ["gymnasium:FrozenLake-v1", "--gamma", "0.9"]
    (tmp_path / "sweep.toml").write_text(SWEEP)
    words = [
        ["solve", "chain", "--plot", "solve.png"],
        ["draw", "chain", "draw.svg"],
        ["estimate", *lake, "--steps", "300", "--log", "log.parquet", "--out", "estimate"],
        ["estimate", "log.parquet", "--gamma", "0.9", "--out", "again", "--formats", "none"],
        ["sweep", "run", str(tmp_path / "sweep.toml"), "--out", "store", "--threads", "1"],
        ["reproduce", "own/1", "--file", str(SMALL), "--runs", "2", "--out", "report"],
    ]
    (tmp_path / "commands.json").write_text(json.dumps(words))
    options, changes = OPTIONS["not compiled"]
    ended = python(*options, "-m", "tests.read_only", tmp_path, tmp_path / "commands.json",
                   RETVAR_TEST_LENGTH="10", **changes)  # fmt: skip
    if ended.returncode == 77:
        pytest.skip("may not mount")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout[ended.stdout.rindex('["') :])
    wanted = {"solve.png", "draw.svg", "log.parquet", "estimate/index.html", "again/estimate.csv",
              "store/manifest.json", "report/index.html"}  # fmt: skip
    assert wanted <= set(found)
    assert not [name for name in found if name.rpartition("/")[2].startswith(".")]
    assert not (ROOT / "tests" / "written").exists()


# ---------------------------------------------------------------------- a full disk


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """What `tests.full_disk` found."""
    folder = tmp_path_factory.mktemp("full")
    operations.run(small(count=2, runs=4), folder / "store", Local(threads=1))
    ended = python("-m", "tests.full_disk", folder)
    if ended.returncode == 77:
        pytest.skip("may not mount a small disk")
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    return json.loads(ended.stdout)


def test_a_write_on_a_full_disk_is_a_typed_error_that_leaves_nothing(full):
    """Each kind of file, with no free page and with a few; with room the same write succeeds."""
    failed = set()
    for name, found in full.items():
        file, _, free = name.partition(", ")
        if file in OTHER:
            continue
        if free == "room":
            assert found["kind"] == "", (name, found)
            assert found["whole"], name
        elif found["kind"]:
            failed.add(file)
            assert found["kind"] == "typed", (name, found)
            assert found["left"] == [], (name, found)
            assert "No space left on device" in found["said"], (name, found)
            assert file in found["said"], (name, found)
            assert "\n" not in found["said"]
        else:
            assert found["left"] == [file], (name, found)  # small enough
    assert failed == {name.partition(", ")[0] for name in full} - OTHER


def test_a_log_that_is_sorted_where_there_is_no_room_names_the_folder(full):
    for free in ("0", "1"):
        found = full[f"temporary folder, {free}"]
        assert found["kind"] == "typed", found
        assert "No space left on device" in found["said"]
        assert "set TMPDIR" in found["said"]
        assert found["left"] == []
    assert full["temporary folder, room"]["kind"] == "", full["temporary folder, room"]


def test_code_is_compiled_although_the_cache_is_full(full):
    assert {found["kind"] for name, found in full.items() if name.startswith("compiled")} == {""}


def test_a_sweep_on_a_full_disk_stops_and_can_be_continued(full):
    found = full["store"]
    assert found["kind"] == "typed"
    assert "No space left on device; finished cells are saved" in found["said"]
    assert found["left"] == found["damaged"] == []
    assert 0 < found["done"] < found["cells"]
    assert found["computed"] == found["cells"] - found["done"]
    assert found["digest"]


# ---------------------------------------------------------------------- clocks


def test_a_clock_that_is_set_back_changes_nothing(tmp_path, monkeypatch):
    """By a day, after each look at it; files are dated by the disk's clock, which stays."""
    real, looks = time.time, []

    def back():
        looks.append(None)
        return real() - 86_400.0 * len(looks)

    sweep = small(count=2, runs=4)
    whole = operations.run(sweep, tmp_path / "whole", Local(threads=1))
    monkeypatch.setattr(time, "time", back)
    assert operations.run(sweep, tmp_path / "back", Local(threads=1)).digest == whole.digest
    for name in ("a", "b"):
        files.write_text(tmp_path / f"{name}.txt", name)
    assert not [path for path in tmp_path.rglob(".*") if path.is_file()]
    assert list((tmp_path / "back" / "leases").iterdir()) == []


@pytest.mark.parametrize("hours", [-1, 1])
def test_the_lease_of_a_lost_machine_expires_whatever_its_clock_said(hours, tmp_path):
    path = tmp_path / "cell"
    path.write_text(json.dumps({"machine": "another", "pid": 1, "id": "x"}))
    assert leases.is_held(path)
    then = time.time() + 3_600 * hours
    os.utime(path, (then, then))
    assert not leases.is_held(path)
    assert leases.acquire(path) is not None


# ---------------------------------------------------------------------- links and moved folders


def test_a_store_behind_a_link_and_one_that_was_moved_go_on(tmp_path):
    sweep, disk = small(count=2, runs=4), tmp_path / "disk"
    whole = operations.run(sweep, tmp_path / "whole", Local(threads=1))
    disk.mkdir()
    (tmp_path / "link").symlink_to(disk, target_is_directory=True)
    operations.run(small(count=1, runs=4), tmp_path / "link", Local(threads=1))
    store = Store.open(tmp_path / "link")
    assert (disk / "manifest.json").exists()
    assert operations.status(store).complete
    disk.rename(tmp_path / "moved")
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to(tmp_path / "moved")
    found = operations.run(sweep, tmp_path / "link", Local(threads=1), extend=True)
    assert found.computed == found.cells // 2
    assert found.digest == operations.status(Store.open(tmp_path / "moved")).digest == whole.digest
    with pytest.raises(rv.InputError, match="holds no sweep"):
        Store.open(disk)


# ---------------------------------------------------------------------- options of Python

SHARE = """
import json, sys, tempfile, pathlib
import numpy as np
import retvar as rv
from retvar.sweep import Local, operations
from tests.sweeping import small
folder = pathlib.Path(tempfile.mkdtemp(dir=sys.argv[1]))
for name in rv.__all__:
    getattr(rv, name)
mdp = rv.domains.complex_mdp()
truth = rv.solve(mdp, order=4)
states = np.arange(60) % 5
columns = {"state": states, "next_state": (states + 1) % 5, "reward": np.sin(states),
           "terminated": states == 4}
online = rv.Direct(gamma=0.9, lam=1.0, alpha=0.1).online(5)
online.update_many(columns)
online.save(folder / "a.safetensors")
data = rv.simulate(mdp, {"a": rv.Direct(alpha=0.1)}, steps=20, runs=2, seed=1)
swept = operations.run(small(count=1, runs=2), folder / "store", Local(threads=1))
rv.plots.save(rv.plots.draw_mdp(mdp), folder / "a.png")
try:
    rv.MDP.from_toml(folder / "none.toml")
except rv.InputError as error:
    refused = error.field
print(json.dumps([truth.std.tolist(), rv.load(folder / "a.safetensors").value().tolist(),
                  data["value"].values.ravel()[-5:].tolist(), swept.done, refused]))
"""
OPTIONS = {
    "warnings are errors": (["-W", "error"], {}),
    "optimised": (["-O", "-W", "error"], {}),
    "not compiled": (
        ["-W", "error", "-W", "ignore:overflow encountered:RuntimeWarning"],  # random numbers wrap
        {"NUMBA_DISABLE_JIT": "1"},
    ),
}


@pytest.fixture(scope="module")
def shares(tmp_path_factory):
    folder = tmp_path_factory.mktemp("options")
    found = {}
    for name, (words, env) in OPTIONS.items():
        if not SOAK and name == "warnings are errors":
            continue  # so are those of the optimised one
        found[name] = python(*words, "-c", SHARE, folder, **env)
    return found


def test_answers_do_not_depend_on_the_options_of_python(shares):
    answers = []
    for name, ended in shares.items():
        assert ended.returncode == 0, (name, ended.stderr)
        assert ended.stderr == "", name
        answers.append(json.loads(ended.stdout))
    for other in answers[1:]:
        for mine, theirs in zip(answers[0], other, strict=True):
            if isinstance(mine, list):
                np.testing.assert_allclose(mine, theirs, rtol=1e-12)
            else:
                assert mine == theirs


def test_no_assertion_does_anything_but_tell_types():
    """Under `python -O` they are not there."""
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "  assert " in text else ():
            if isinstance(node, ast.Assert):
                calls = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
                changes = [each for each in ast.walk(node) if isinstance(each, ast.NamedExpr)]
                names = [getattr(call.func, "id", "") for call in calls]
                told = names == ["isinstance"] or "is not None" in ast.unparse(node)
                assert told, (path, ast.unparse(node))
                assert set(names) <= {"isinstance"}
                assert not changes, (path, ast.unparse(node))
