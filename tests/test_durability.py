"""What every command writes: whole, synced, and never in the way of another one that lives."""

import errno
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import click
import dask
import distributed
import pytest

from retvar import files, processes
from retvar.cli import main
from retvar.cluster import local_cluster
from retvar.errors import InputError, WriteError
from retvar.estimation.folder import open_folder
from retvar.report.output_folder import LEASE, OutputFolder
from retvar.sweep import leases

ROOT = Path(__file__).parents[1]
SMALL = ROOT / "tests" / "data" / "small.py"
SWEEP = """
runs = 4
steps = 20
domains = [{ id = "chain" }]
learners = [{ method = ["direct", "vtd"], alpha = [0.1, 0.2] }]
"""
LAKE = ["gymnasium:FrozenLake-v1", "--gamma", "0.9"]
ANOTHER = f"{files.crc32(processes.machine().encode() + b' another container'):08x}"


def is_lease(path: str) -> bool:
    """A lease is created under its own name: nothing is lost with it."""
    return os.path.basename(os.path.dirname(path)) == "leases" or os.path.basename(path) == LEASE


def commands(out: Path) -> list[list[str]]:
    """Every command but the lab, which serves a page; those that write have a folder."""
    (out / "spec.toml").write_text(SWEEP)
    (out / "files").mkdir()
    f = out / "files"
    estimate = ["estimate", *LAKE, "--steps", "300", "--log", f / "log.parquet"]
    found = [
        ["sweep", "run", out / "spec.toml", "--out", out / "new" / "sweep", "--threads", "1"],
        ["sweep", "collect", out / "new" / "sweep", "--out", f / "sweep.nc"],
        ["sweep", "collect", out / "new" / "sweep", "--out", f / "sweep.parquet"],
        ["sweep", "plot", out / "new" / "sweep", "--out", f / "sweep.png"],
        ["sweep", "compare", out / "new" / "sweep", "--plot", f / "compare.svg"],
        [*estimate, "--out", out / "estimate", "--formats", "png,svg"],
        ["estimate", f / "log.parquet", "--gamma", "0.9", "--by", "td", "--out", out / "td"],
        ["reproduce", "own/1", "--file", SMALL, "--runs", "2", "--out", out / "report"],
        ["solve", "chain", "--plot", f / "solve.pdf"],
        ["draw", "chain", f / "chain.png"],
        ["curve", "chain", "--episodes", "5", "--alpha", "0.1", "--plot", f / "curve.png"],
        ["frontier", "windy-cliff", "--gamma", "0.99", "--penalties", "0.1", "--restarts", "0",
         "--plot", f / "frontier.svg", "--out", f / "frontier.json"],
        ["rollouts", *LAKE, "--episodes", "20"],
        ["experiments"],
        ["sweep", "plan", out / "spec.toml"],
        ["sweep", "status", out / "new" / "sweep"],
        ["sweep", "retry", out / "new" / "sweep"],
    ]  # fmt: skip
    return [[str(word) for word in words] for words in found]


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """All events of all commands, run in one process."""
    out = tmp_path_factory.mktemp("traced")
    events, words = out / "events.json", out / "commands.json"
    words.write_text(json.dumps(commands(out)))
    process = [sys.executable, "-m", "tests.tracing", str(events), str(words)]
    done = subprocess.run(process, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3_000:]
    given = {str(path) for path in (events, words, out / "spec.toml")}
    every = json.loads(events.read_text())
    found = [e for e in every if e[1].startswith(str(out)) or e[0] == "bind"]
    return out, [e for e in found if e[1] not in given], given


def test_every_command_and_every_option_that_names_a_file_to_write_is_traced(tmp_path):
    lines = [" ".join(words) + " " for words in commands(tmp_path)]
    for name, command in main.commands.items():
        group = command.commands if isinstance(command, click.Group) else {"": command}
        for rest, each in group.items():
            full = f"{name} {rest}".strip()
            if full == "lab":
                continue
            own = [line for line in lines if line.startswith(f"{full} ")]
            assert own, full
            for option in {"--out", "--plot", "--log"} & {o for p in each.params for o in p.opts}:
                assert any(f" {option} " in line for line in own), (full, option)


def test_a_socket_that_is_bound_is_traced():
    program = (
        "import socket, sys\nfrom tests import tracing\nsys.addaudithook(tracing.hook)\n"
        "socket.socket().bind(('127.0.0.1', 0))\nprint(tracing.events)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == """[('bind', "('127.0.0.1', 0)", '')]\n"""


def test_no_command_binds_a_socket(traced):
    """`estimate --live`, the lab and local clusters do, and have tests of their own."""
    assert [address for kind, address, _ in traced[1] if kind == "bind"] == []


def test_no_file_is_opened_for_writing_under_its_own_name(traced):
    _, events, _ = traced
    opened = {path for kind, path, _ in events if kind == "open"}
    assert len(opened) > 30
    assert {p for p in opened if not files.is_temporary(Path(p)) and not is_lease(p)} == set()


def test_every_file_was_moved_into_place_after_it_was_synced(traced):
    """Whoever wrote it: a library in C, too."""
    out, events, given = traced
    arrived = set()
    for k, (kind, path, target) in enumerate(events):
        if kind in ("move", "link") and not files.is_temporary(Path(target)):
            since = [e[0] for e in events[:k] if e[1] == path]
            assert since[-1] == "sync", (path, since)
            assert ("sync", os.path.dirname(target), "") in map(tuple, events[k:]), target
            arrived.add(target)
    present = {str(path) for path in out.rglob("*") if path.is_file()} - given
    assert len(present) > 25
    assert present <= arrived
    assert not [path for path in present if files.is_temporary(Path(path))]


def test_the_entry_of_every_new_folder_is_synced(traced):
    out, events, _ = traced
    made = [(k, path) for k, (kind, path, _) in enumerate(events) if kind == "folder"]
    assert {str(out / "new"), str(out / "report"), str(out / "estimate")} <= {p for _, p in made}
    for k, path in made:
        assert ("sync", os.path.dirname(path), "") in map(tuple, events[k:]), path


# ---------------------------------------------------------------------- temporaries


def test_temporaries_of_a_living_writer_are_never_removed_by_other_commands(tmp_path):
    """Not by a sweep or a reproduction that cleans its folder up; those of a dead one are."""
    from retvar.sweep import Store
    from tests.sweeping import small

    store = Store.create(tmp_path / "sweep", small().plan())
    with OutputFolder(tmp_path / "report").opened():
        pass
    folders = [tmp_path / "sweep", tmp_path / "sweep" / "cells", tmp_path / "report" / "data"]
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as writer:
        living = [f / f".a-{files._host()}.{writer.pid}.00000000.nc" for f in folders]
        for path in living:
            path.write_text("half")
            os.utime(path, (0, 0))
        store.clean_up()
        with OutputFolder(tmp_path / "report").opened():
            pass
        assert all(path.exists() for path in living)
        writer.kill()
    store.clean_up()
    with OutputFolder(tmp_path / "report").opened():
        pass
    assert not any(path.exists() for path in living)


def test_temporaries_of_another_container_with_the_same_name_are_not_taken_for_dead(tmp_path):
    """Process ids differ between containers: only age tells."""
    path = tmp_path / f".a-{ANOTHER}.999999999.00000000.txt"
    path.write_text("half")
    files.remove_abandoned(tmp_path)
    assert path.exists()
    for then in (time.time() - files.OLD - 60, time.time() + files.OLD + 60):
        path.write_text("half")
        os.utime(path, (then, then))
        files.remove_abandoned(tmp_path)
        assert not path.exists()


def test_a_folder_of_another_machine_lives_as_long_as_something_in_it_is_touched(tmp_path):
    """Writing deep inside does not date the folder itself."""
    folder = tmp_path / f".cluster-{ANOTHER}.999999999.00000000"
    (folder / "scratch").mkdir(parents=True)
    written = folder / "scratch" / "spilled"
    written.write_text("data")
    then = time.time() - files.OLD - 60
    for path in (folder, folder / "scratch"):
        os.utime(path, (then, then))
    files.remove_abandoned(tmp_path)
    assert written.exists()
    os.utime(written, (then, then))
    files.remove_abandoned(tmp_path)
    assert not folder.exists()


def test_the_age_of_a_temporary_is_measured_by_the_clock_that_dates_files(tmp_path, monkeypatch):
    """The machine's own clock may be days off that of a file server."""
    path = tmp_path / f".a-{ANOTHER}.999999999.00000000.txt"
    path.write_text("half")
    for days in (-2, 2):
        monkeypatch.setattr(time, "time", lambda days=days, now=time.time: now() + days * 86_400)
        files.remove_abandoned(tmp_path)
        assert path.exists()
        monkeypatch.undo()


def test_clusters_have_their_folder_where_dask_is_told_to_have_it(tmp_path, monkeypatch):
    """The folder is made; one that cannot be made is an error that names the setting."""
    asked = []

    class Cluster:
        def __init__(self, **_):
            asked.append(dask.config.get("temporary-directory"))

        def close(self, timeout):
            pass

    monkeypatch.setattr(distributed, "LocalCluster", Cluster)
    with dask.config.set({"temporary-directory": str(tmp_path / "scratch")}), local_cluster(1):
        assert Path(asked[0]).parent == tmp_path / "scratch"
    assert list((tmp_path / "scratch").iterdir()) == []
    (tmp_path / "file").touch()
    with (
        dask.config.set({"temporary-directory": str(tmp_path / "file" / "scratch")}),
        pytest.raises(
            InputError, match=r"temporary-directory = .*; set temporary-directory to one"
        ),
        local_cluster(1),
    ):
        pass


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_a_killed_process_that_is_still_listed_holds_nothing(tmp_path):
    """Its parent has not asked for its status, as the first process of a container may not."""
    out = tmp_path / "report"
    words = [sys.executable, "-c", HOLDS, str(out), "0"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout.readline() == b"open\n"
        temporary = tmp_path / f".a-{files._host()}.{first.pid}.00000000.txt"
        temporary.write_text("half")
        files.remove_abandoned(tmp_path)
        assert temporary.exists()
        first.kill()
        while "State:\tZ" not in Path(f"/proc/{first.pid}/status").read_text():
            time.sleep(0.01)
        while len(os.listdir(f"/proc/{first.pid}/task")) > 1:  # its threads hold the lock
            time.sleep(0.01)
        assert not processes.lives(first.pid)
        with OutputFolder(out).opened():
            files.remove_abandoned(tmp_path)
        assert not temporary.exists()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
def test_a_disk_that_is_full_is_no_bad_input(code, tmp_path, monkeypatch):
    """Wherever it is met: when a folder, a lease, a marker or a temporary file is made."""
    kind = WriteError if code == errno.ENOSPC else InputError

    def refused(*_, **__):
        raise OSError(code, os.strerror(code))

    places = (
        ("mkdir", lambda: OutputFolder(tmp_path / "a").opened().__enter__()),
        ("mkdir", lambda: open_folder("--out", tmp_path / "b")),
        ("mkdir", lambda: files.make_temporary_folder("a")),
        ("open", lambda: leases.acquire(tmp_path / "lease")),
        ("open", lambda: files.require_writable("--log", tmp_path)),
        ("open", lambda: files.write_text(tmp_path / "text", "text")),
    )
    for name, call in places:
        with monkeypatch.context() as patched:
            patched.setattr(os, name, refused)
            with pytest.raises(InputError) as raised:
                call()
        assert type(raised.value) is kind
        assert str(raised.value).count("cannot be written") <= 1
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------------- two runs in one folder

HOLDS = """
import sys, errno, fcntl
code = int(sys.argv[2])
if code:
    def flock(*arguments):
        raise OSError(code, "no locks")
    fcntl.flock = flock
from retvar.report.output_folder import OutputFolder
with OutputFolder(sys.argv[1]).opened():
    print("open", flush=True)
    input()
"""


@pytest.mark.parametrize("code", [0, errno.ENOTSUP], ids=["locks", "no locks"])
def test_a_second_reproduction_is_refused_and_names_the_first(tmp_path, monkeypatch, code):
    """With locks and without; when the first is killed, the folder is free at once."""
    out = tmp_path / "out"
    words = [sys.executable, "-c", HOLDS, str(out), str(code)]
    if code:

        def flock(*arguments):
            raise OSError(code, "no locks")

        monkeypatch.setattr(fcntl, "flock", flock)
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as first:
        assert first.stdout.readline() == b"open\n"
        half = out / "data" / f".a-{files._host()}.{first.pid}.00000000.nc"
        half.write_text("half")
        before = sorted(path.name for path in out.rglob("*"))
        wanted = rf"another run is using it: .* \(process {first.pid}\); wait until it ends"
        with pytest.raises(InputError, match=wanted), OutputFolder(out).opened():
            pass
        assert sorted(path.name for path in out.rglob("*")) == before
        first.kill()
    with OutputFolder(out).opened():
        assert not half.exists()
    assert not (out / LEASE).exists()


# ---------------------------------------------------------------------- leases


def lease_file(path: Path, age: float, text: str | None = None) -> Path:
    """A lease of a process of another machine, or any text, touched `age` seconds ago."""
    path.write_text(text or json.dumps({"machine": "elsewhere", "pid": 1, "id": "x"}))
    then = time.time() - age
    os.utime(path, (then, then))
    return path


@pytest.mark.parametrize("hours", [-2, 2])
def test_a_reproduction_that_was_stopped_for_a_while_keeps_its_folder(tmp_path, hours):
    """Ctrl-Z, or a clock set back, and no locks: it lives, so a second one is refused."""
    out, then = tmp_path / "out", time.time() + 3600 * hours
    words = [sys.executable, "-c", HOLDS, str(out), str(errno.ENOTSUP)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, **pipes) as first:
        assert first.stdout.readline() == "open\n"
        try:
            first.send_signal(signal.SIGSTOP)
            os.utime(out / LEASE, (then, then))
            second = subprocess.run(words, capture_output=True, text=True, input="", check=False)
            assert second.returncode
            assert f"another run is using it: {socket.gethostname()} (process {first.pid})" in (
                second.stderr
            )
        finally:  # a stopped process would be waited for
            first.kill()
    assert subprocess.run(words, input=b"\n", capture_output=True, check=False).returncode == 0


def test_the_lease_of_a_process_whose_number_another_one_has_now_is_void(tmp_path):
    """Processes are told apart by when they began."""
    path = tmp_path / "cell"
    assert leases.acquire(path, while_alive=True) is not None
    assert leases.is_held(path, while_alive=True)
    owner = json.loads(path.read_text())
    path.write_text(json.dumps(owner | {"began": "12"}))
    assert not leases.is_held(path, while_alive=True)
    assert not leases.is_held(path)


def test_a_lease_from_the_future_is_void_and_one_of_a_clock_a_little_ahead_is_not(tmp_path):
    path = tmp_path / "cell"
    assert leases.is_held(lease_file(path, -30.0))
    assert not leases.is_held(lease_file(path, -3_600.0))
    assert not leases.is_held(lease_file(path, 3_600.0))
    assert leases.acquire(lease_file(path, -86_400.0 * 365)) is not None


def test_a_lease_from_the_future_of_a_dead_process_of_this_machine_is_void(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    text = json.dumps({"machine": processes.machine(), "pid": ended.pid, "id": "x"})
    assert not leases.is_held(lease_file(tmp_path / "cell", -1.0, text))


RUBBISH = {
    "nested": "[" * 200_000,
    "digits": '{"machine": "m", "pid": ' + "9" * 5_000 + "}",
    "infinite": '{"machine": "m", "pid": 1e999}',
    "negative": '{"machine": "m", "pid": -1}',
    "list": "[1, 2]",
    "text": '{"machine": ["\\u001b[31m"], "pid": "1"}',
    "not text": "\udcff",
}


@pytest.mark.parametrize("name", RUBBISH)
def test_rubbish_is_held_while_it_is_young_and_then_replaced(tmp_path, name):
    path = tmp_path / "cell"
    path.write_bytes(RUBBISH[name].encode("utf-8", "surrogateescape"))
    assert leases.is_held(path)
    assert leases.holder(path) == "another worker"
    os.utime(path, (0, 0))
    taken = leases.acquire(path)
    assert taken is not None
    taken.release()
    assert not path.exists()


@pytest.mark.parametrize("kind", ["pipe", "zeros", "large"])
def test_a_lease_that_is_no_file_is_not_waited_for(tmp_path, kind):
    path = tmp_path / "cell"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "zeros":
        path.symlink_to("/dev/zero")
    else:
        path.touch()
        os.truncate(path, 1 << 40)
    began = time.monotonic()
    leases.is_held(path)
    assert leases.holder(path) == "another worker"
    assert time.monotonic() - began < 5.0


def test_names_in_a_lease_are_shown_without_control_characters(tmp_path):
    text = json.dumps({"machine": "\x1b[31mhost\u202e x", "pid": 3})
    path = lease_file(tmp_path / "cell", 0.0, text)
    assert re.fullmatch(r"[ -~]* \(process 3\)", leases.holder(path))
