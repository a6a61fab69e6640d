"""What retvar promises: files are whole or absent, and results that are kept know their code."""

from __future__ import annotations

import errno
import os
import pickle
import random
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import xarray

import retvar as rv
from retvar.support import cache, files
from tests.oracle import SOAK
from tests.sweeping import command, process, small

SOURCE = Path(rv.__file__).parent


def hidden(folder):
    return [path for path in folder.rglob(".*") if path.is_file()]


# ------------------------------------------------------------------------ files


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path):
    files.write_text(tmp_path / "a.txt", "old")

    def fails(temporary):
        temporary.write_text("half")
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        files.write_with(tmp_path / "a.txt", fails)
    assert (tmp_path / "a.txt").read_text() == "old"
    assert not hidden(tmp_path)


def test_a_full_disk_is_a_write_error_and_what_was_there_stays(tmp_path, monkeypatch):
    files.write_text(tmp_path / "a.txt", "old")

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(rv.WriteError):
        files.write_text(tmp_path / "a.txt", "new")
    assert (tmp_path / "a.txt").read_text() == "old"
    assert not hidden(tmp_path)


def test_a_link_stays_and_its_target_is_replaced(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "link.txt"
    link.symlink_to(tmp_path / "elsewhere" / "target.txt")
    for text in ("one", "two"):
        files.write_text(link, text)
        assert link.is_symlink()
        assert (tmp_path / "elsewhere" / "target.txt").read_text() == text


@pytest.mark.parametrize("name", ["folder", "missing/x", "/dev/null"])
def test_only_files_are_written(tmp_path, name):
    (tmp_path / "folder").mkdir()
    with pytest.raises(rv.InputError) as error:
        files.write_text(tmp_path / name, "text")
    assert error.value.field == "path"


# ------------------------------------------------------------------------ saved results


@pytest.mark.parametrize("classic", [False, True])
@pytest.mark.parametrize("kept", [0, 10, 200, -1])
def test_a_truncated_or_changed_result_is_refused(tmp_path, classic, kept):
    path, data = tmp_path / "a.nc", xarray.Dataset({"x": ("n", [1.5, 2.5]), "s": ("n", ["λ", "b"])})
    cache.write(path, data, "key", classic=classic)
    assert cache.read(path, "key").equals(data)
    whole = path.read_bytes()
    path.write_bytes(whole[:kept])
    with pytest.raises(rv.InputError) as error:
        cache.read(path, "key")
    assert error.value.field == "results"
    assert cache.footer_of(path) is None
    path.write_bytes(whole.replace(b"\xce\xbb", b"\xce\xbc"))
    assert cache.footer_of(path) is None
    path.write_bytes(whole)
    with pytest.raises(rv.InputError):
        cache.read(path, "another key")


def changed(root: Path, name: str) -> str:
    """The digest of the code after a comment was added to one file."""
    copy = root / name.replace("/", "-")
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    with (copy / name).open("a") as file:
        file.write("# a comment\n")
    return cache.code_digest(copy)


def test_results_depend_on_the_code_that_a_simulation_imports_and_on_no_other(tmp_path):
    """A comment in the lab once made a sweep refuse to go on."""
    own = cache.code_digest()
    for name in ("lab/__init__.py", "cli/solve.py", "plots/__init__.py", "domains.py"):
        if (SOURCE / name).exists():
            assert changed(tmp_path, name) == own, name
    for name in ("simulation/run.py", "mdp/model.py", "support/arguments.py"):
        assert changed(tmp_path, name) != own, name


class Payload:
    """Unpickled, it would write a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.write_text, (self.path, "it ran")


@pytest.mark.parametrize("kind", ["npy", "raw"])
def test_no_file_that_is_read_runs_code(tmp_path, kind):
    path = tmp_path / ("a.npy" if kind == "npy" else "a.safetensors")
    if kind == "npy":
        np.save(path, np.array([Payload(tmp_path / "ran")], dtype=object), allow_pickle=True)
    else:
        path.write_bytes(pickle.dumps(Payload(tmp_path / "ran")))
    for read in (
        lambda: files.load_array(path),
        lambda: rv.load(path),
        lambda: cache.read(path, "key"),
        lambda: rv.sweep.Sweep.from_toml(path),
        lambda: rv.MDP.from_toml(path),
    ):
        with pytest.raises(rv.InputError):
            read()
    assert not (tmp_path / "ran").exists()


# ------------------------------------------------------------------------ kills and sockets


def test_two_runs_of_a_sweep_that_are_killed_end_with_the_same_digest(tmp_path):
    """Nothing is half-written, and no lock is held by the dead."""
    sweep, out, rng = small(), tmp_path / "out", random.Random(0)
    whole = rv.sweep.run(sweep, tmp_path / "whole", rv.sweep.Local(threads=1))
    for _ in range(25 if SOAK else 3):
        both = [process(sweep, out, tmp_path / "log") for _ in range(2)]
        time.sleep(rng.uniform(0.05, 0.4))
        for one in both:
            one.kill()
            one.join()
        if (out / "manifest.json").exists():
            found = rv.sweep.status(rv.sweep.Store.open(out))
            assert (found.damaged, found.running) == ((), 0)
    assert rv.sweep.run(sweep, out, rv.sweep.Local(threads=1)).digest == whole.digest


WRITING = {  # the commands that write
    "estimate": "estimate log.csv --gamma 0.9 --out out",
    "reproduce": "reproduce chain-mdp chain-frozen-value --runs 2 --out out",
    "draw": "draw complex-mdp out/a.png",
    "solve": "solve chain --plot out/a.svg",
    "curve": "curve chain --alpha 0.1 --steps 50 --plot out/a.pdf",
    "frontier": "frontier chain --out out/a.json --plot out/a.png",
    "sweep run": "sweep run sweep.toml --threads 1 --out out",
    "sweep collect": "sweep collect swept --out out/a.nc",
    "sweep plot": "sweep plot swept --out out/a.png",
    "sweep compare": "sweep compare swept --plot out/a.png",
}
SPEC = """
runs = 8
steps = 40
domains = [{ random = { states = 4 }, seeds = [1, 2, 3] }]
learners = [{ method = ["direct", "vtd"], alpha = [0.05, 0.4] }]
cell = { learners = 1, runs = 2 }
"""


def place_for(words, folder: Path):
    """A folder with what a command reads; starts the command there."""
    (folder / "out").mkdir(parents=True)
    rows = (f"{k % 3},{k % 5},{int(k % 7 == 6)}\n" for k in range(2_000))
    (folder / "log.csv").write_text("state,reward,terminated\n" + "".join(rows))
    (folder / "sweep.toml").write_text(SPEC)
    if "swept" in words:
        rv.sweep.run(folder / "sweep.toml", folder / "swept", rv.sweep.Local(threads=1))
    return lambda: command(words, folder)


def written(folder: Path) -> dict[str, bytes]:
    paths = [path for path in (folder / "out").rglob("*") if path.is_file()]
    paths = [p for p in paths if not files.is_temporary(p) and "lock" not in p.name + p.parent.name]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.mark.skipif(not SOAK, reason="in make nightly")
@pytest.mark.parametrize("name", WRITING)
def test_a_killed_command_leaves_whole_files_and_the_next_finishes(name, tmp_path):
    """Five kills at random times; files with times of day in them only have to be whole."""
    words, whole, rng = WRITING[name].split(), [], random.Random(0)
    for folder in (tmp_path / "one", tmp_path / "two"):
        start, began = place_for(words, folder), time.monotonic()
        start().join()
        took = time.monotonic() - began
        whole.append(written(folder))
    same = {path for path, data in whole[0].items() if whole[1][path] == data}
    assert same
    start = place_for(words, tmp_path / "killed")
    for _ in range(5):
        one = start()
        time.sleep(rng.uniform(0.05, took))
        one.kill()
        one.join()
        found = written(tmp_path / "killed")
        assert found.keys() <= whole[0].keys()
        assert all(found[path] == whole[0][path] for path in found.keys() & same)
        assert all(found.values())
    last = start()
    last.join()
    found = written(tmp_path / "killed")
    assert found.keys() == whole[0].keys()
    assert all(found[path] == whole[0][path] for path in same)


LISTENS = """
import sys
def hook(event, given):
    if event == "socket.bind" and isinstance(given[1], tuple):
        print("bound", given[1][0])
sys.addaudithook(hook)
from retvar.cli import main
main(sys.argv[1:], standalone_mode=False)
"""


@pytest.mark.parametrize("cluster", [[], ["--cluster", "local", "--workers", "1"]])
def test_only_a_cluster_listens_and_only_on_loopback(tmp_path, cluster):
    if cluster:
        pytest.importorskip("distributed")
    (tmp_path / "sweep.toml").write_text(
        'runs = 2\nsteps = 9\ndomains = [{ id = "chain" }]\n'
        'learners = [{ method = "direct", alpha = 0.1 }]\n'
    )
    words = ["sweep", "run", tmp_path / "sweep.toml", "--out", tmp_path / "out", *cluster]
    ran = subprocess.run([sys.executable, "-c", LISTENS, *words], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    bound = {line.split()[1] for line in ran.stdout.splitlines() if line.startswith("bound ")}
    assert bound == ({"127.0.0.1"} if cluster else set())


def test_the_lab_listens_on_loopback_and_tells_strangers_nothing():
    pytest.importorskip("marimo", reason="marimo: make browser")
    words = [sys.executable, "-u", "-c", LISTENS, "lab", "--no-browser"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as lab:
        lines = [next(lab.stdout) for _ in range(2)]
        url = next(line.split()[-1] for line in lines if "http" in line)
        place = urllib.parse.urlsplit(url)
        try:
            for path in ("/", "/health", "/assets/index.js"):
                with pytest.raises(urllib.error.HTTPError) as refused:
                    urllib.request.urlopen(f"http://{place.netloc}{path}", timeout=60)
                refused.value.close()
                assert refused.value.code == 404
        finally:
            lab.kill()
    assert [line.split()[1] for line in lines if line.startswith("bound ")] == ["127.0.0.1"]
