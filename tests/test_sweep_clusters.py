"""Workers of a sweep: missing schedulers and workers, leases of others, closed pipes."""

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from retvar import cluster
from retvar.errors import InputError, RetvarError
from retvar.progress import Display, Progress
from retvar.signals import Interrupted
from retvar.sweep import Dask, Store, executors, leases, operations, run, status
from tests.patience import patience
from tests.sweeping import small
from tests.test_sweep import ONE, SPEC, Notes, command

WRITING = """
import os, pathlib
from retvar.files import create_temporary
create_temporary(pathlib.Path("a.nc").absolute())
os._exit(1)
"""
PROGRAM = [sys.executable, "-m", "retvar", "sweep", "run"]


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SPEC)
    return path


class Leaving(Notes):
    """Interrupts the run at the first note that has this word."""

    def __init__(self, word):
        super().__init__()
        self.word = word

    def note(self, line):
        super().note(line)
        if self.word in line:
            raise Interrupted(signal.SIGINT)


# ---------------------------------------------------------------------- no scheduler


@contextlib.contextmanager
def listening(greeting: bytes):
    """A server that accepts connections, sends a greeting, and nothing more; its address."""
    accepted = []

    def accept():
        with contextlib.suppress(OSError):
            while True:
                taken, _ = server.accept()
                accepted.append(taken)
                taken.sendall(greeting)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, daemon=True).start()
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
    for taken in accepted:
        taken.close()


@pytest.mark.parametrize("greeting", [b"", b"SSH-2.0-OpenSSH_9.6\r\n"])
def test_a_server_that_is_no_scheduler_is_an_error_after_the_timeout(spec, tmp_path, greeting):
    """The program itself: it must be able to end, too."""
    pytest.importorskip("distributed")
    with listening(greeting) as address:
        words = [*PROGRAM, spec, "--out", tmp_path / "out", "--cluster", address, "--timeout", "1"]
        ended = subprocess.run(
            words, capture_output=True, text=True, timeout=patience(60), check=False
        )
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1].startswith(
        f"Error: cluster = {address}: no scheduler answered within 1 seconds ("
    )
    assert "Traceback" not in ended.stderr


@pytest.mark.filterwarnings("default")
def test_waiting_for_a_scheduler_can_be_interrupted(tmp_path):
    """With a timeout of an hour."""
    pytest.importorskip("distributed")

    class Impatient(Progress):
        calls = 0

        def check(self):
            self.calls += 1
            if self.calls > 60:  # the first 40 before it waits
                raise Interrupted(signal.SIGINT)

    with listening(b"") as address, pytest.raises(Interrupted):
        run(small(), tmp_path / "out", Dask(address, timeout=3600), progress=Impatient())


@pytest.mark.parametrize(
    "address",
    ["foo://bar:8786", "tcp://127.0.0.1", "tcp://127.0.0.1:", "tcp://:8786", "tcp://a:b",
     "host:8786", "tcp://::1:8786", "tcp://host:8786/x", "://host:8786", ""],
)  # fmt: skip
def test_an_address_that_cannot_be_one_is_refused_before_anything_is_done(spec, tmp_path, address):
    with pytest.raises(InputError, match=r"cluster = .*tcp://host:8786"):
        Dask(address)
    result = command("run", spec, "--out", tmp_path / "out", "--cluster", address)
    assert result.exit_code == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("address", ["tcp://a.b-c:1", "tls://[::1]:8786", "local", "ws://x:80"])
def test_addresses_of_schedulers_are_accepted(address):
    assert Dask(address).address == address


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0, -1.0, 1e300, True, "9", None])
def test_a_duration_that_cannot_be_waited_for_is_refused(tmp_path, value):
    with pytest.raises(InputError, match="timeout"):
        Dask("tcp://127.0.0.1:8786", timeout=value)
    with pytest.raises(InputError, match="stale"):
        run(small(), tmp_path / "out", ONE, stale=value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--cluster", "tcp://127.0.0.1:9", "--timeout", "nan"], "timeout = nan"),
        (["--cluster", "tcp://127.0.0.1:9", "--timeout", "inf"], "timeout = inf"),
        (["--stale", "nan"], "stale = nan"),
        (["--stale", "inf"], "stale = inf"),
        (["--cluster", "local", "--threads", "2"], "threads = 2: only without --cluster"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_is_done(
    spec, tmp_path, words, message
):
    result = command("run", spec, "--out", tmp_path / "out", *words)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "out").exists()


# ---------------------------------------------------------------------- no workers


@pytest.fixture
def scheduler(monkeypatch):
    """The address of a scheduler without workers; notes on waiting come at once."""
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr(executors, "FIRST_NOTE", 0.1)
    quiet = {"dashboard": False}
    with distributed.LocalCluster(
        n_workers=0, dashboard_address=":0", scheduler_kwargs=quiet, silence_logs=50
    ) as cluster:
        yield cluster.scheduler_address


@contextlib.contextmanager
def worker(address: str, **environment: str):
    """A worker process of that scheduler."""
    module = "distributed.cli.dask_worker"
    options = ["--no-nanny", "--nthreads", "1", "--no-dashboard", "--death-timeout", "60"]
    started = subprocess.Popen(
        [sys.executable, "-m", module, address, *options],
        env={**os.environ, **environment},
        stderr=subprocess.DEVNULL,
    )
    try:
        yield started
    finally:
        started.kill()
        started.wait()


@pytest.mark.filterwarnings("default")
def test_missing_workers_are_noted(scheduler, tmp_path):
    leaving = Leaving("no workers")
    with pytest.raises(Interrupted):
        run(small(), tmp_path / "out", Dask(scheduler), progress=leaving)
    assert leaving.lines == [f"no workers yet at {scheduler}; waiting"]


@pytest.mark.filterwarnings("default")
def test_a_worker_without_retvar_is_an_error_and_no_cell_fails(scheduler, tmp_path):
    """Simulated by a package of that name that cannot be imported."""
    (tmp_path / "retvar").mkdir()
    (tmp_path / "retvar" / "__init__.py").write_text("raise ImportError('there is none')")
    with (
        worker(scheduler, PYTHONPATH=str(tmp_path)),
        pytest.raises(RetvarError, match=r"worker cannot load retvar \(there is none\).*install"),
    ):
        run(small(), tmp_path / "out", Dask(scheduler))
    assert status(Store.open(tmp_path / "out")).missing == 40


@pytest.mark.filterwarnings("default")
def test_workers_may_join_late_and_the_digest_is_that_of_a_local_run(scheduler, tmp_path):
    class Late(Notes):
        """Starts a worker when there is none."""

        def note(self, line):
            super().note(line)
            if "no workers" in line:
                stack.enter_context(worker(scheduler))

    sweep, late = small(count=1), Late()
    with contextlib.ExitStack() as stack:
        found = run(sweep, tmp_path / "out", Dask(scheduler), progress=late)
    assert late.lines == [f"no workers yet at {scheduler}; waiting"]
    assert found.digest == run(sweep, tmp_path / "local", ONE).digest


# ---------------------------------------------------------------------- leases of others


def leased(out: Path, *numbers: int) -> Store:
    """A store in which processes on another machine hold the leases of these cells."""
    store = Store.create(out, small().plan())
    for number in numbers:
        text = {"machine": "node17 boot", "pid": 123 + number % 2}
        store.lease_path(store.plan.cells[number]).write_text(json.dumps(text))
    return store


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ([2], "waiting for 1 cell that node17 (process 123) is computing"),
        ([2, 4], "waiting for 2 cells that node17 (process 123) is computing"),
        (
            [2, 3],
            "waiting for 2 cells that node17 (process 123), node17 (process 124) are computing",
        ),
    ],
)
def test_the_workers_that_are_waited_for_are_noted(monkeypatch, tmp_path, numbers, message):
    monkeypatch.setattr(executors, "FIRST_NOTE", 0.1)
    leased(tmp_path / "out", *numbers)
    leaving = Leaving("waiting")
    with pytest.raises(Interrupted):
        run(small(), tmp_path / "out", ONE, progress=leaving)
    assert leaving.lines == [message]
    assert status(Store.open(tmp_path / "out")).done == 40 - len(numbers)


@pytest.mark.filterwarnings("default")
def test_the_workers_that_are_waited_for_are_noted_with_dask_too(monkeypatch, tmp_path):
    pytest.importorskip("distributed")
    monkeypatch.setattr(executors, "FIRST_NOTE", 0.1)
    leased(tmp_path / "out", 2)
    leaving = Leaving("waiting")
    with pytest.raises(Interrupted):
        run(small(), tmp_path / "out", Dask("local", workers=1), progress=leaving)
    assert leaving.lines[-1] == "waiting for 1 cell that node17 (process 123) is computing"
    assert status(Store.open(tmp_path / "out")).done == 39


def test_waiting_is_noted_after_five_seconds_and_then_once_a_minute(monkeypatch):
    clock, printed = [0.0], []
    monkeypatch.setattr(executors.time, "monotonic", lambda: clock[0])
    progress = Notes()
    progress.note = lambda line: printed.append((clock[0], line))
    notes = executors.WaitingNotes(progress)
    for now in range(200):
        clock[0] = float(now)
        if now in (3, 66):  # a cell was finished
            notes.reset()
        notes.waiting("for it")
    assert printed == [(now, "for it") for now in (8.0, 71.0, 131.0, 191.0)]


def test_a_folder_in_place_of_a_lease_is_refused(tmp_path):
    store = Store.create(tmp_path / "out", small().plan())
    path = store.lease_path(store.plan.cells[3])
    path.mkdir()
    with pytest.raises(RetvarError, match=f"{path.name}.*Is a directory; remove it"):
        run(small(), tmp_path / "out", ONE)
    path.rmdir()
    assert run(small(), tmp_path / "out", ONE).complete


def test_a_file_in_place_of_the_folder_of_leases_is_refused(tmp_path):
    out = tmp_path / "out"
    Store.create(out, small().plan())
    (out / "leases").rmdir()
    (out / "leases").write_text("mine")
    result = command("status", out)
    assert result.exit_code == 2
    assert f"lease = {out / 'leases'}" in result.stderr
    assert "cannot be read: Not a directory" in result.stderr


def test_leases_that_cannot_be_written_stop_the_run_with_an_error(tmp_path, monkeypatch):
    def refused(*_):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patch:
        patch.setattr(leases, "_create", refused)
        with pytest.raises(RetvarError, match=r"lease = .*cannot be written: Permission denied"):
            run(small(), tmp_path / "out", ONE)
    assert run(small(), tmp_path / "out", ONE).complete


# ---------------------------------------------------------------------- closed pipes


@pytest.mark.parametrize("buffered", [True, False])
def test_a_closed_pipe_does_not_stop_a_run(spec, tmp_path, buffered):
    """Like ``2>&1 | head -0``: both ends are closed before anything is written."""
    settings = {n: x for n, x in os.environ.items() if n != "PYTHONUNBUFFERED"}
    settings |= {} if buffered else {"PYTHONUNBUFFERED": "1"}
    reading, writing = os.pipe()
    os.close(reading)
    words = [*PROGRAM, spec, "--out", tmp_path / "out"]
    ended = subprocess.run(
        words, stdout=writing, stderr=writing, timeout=patience(120), check=False, env=settings
    )
    os.close(writing)
    assert status(Store.open(tmp_path / "out")).complete
    assert ended.returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_answer_that_cannot_be_written_is_one_line(spec, tmp_path):
    arguments = [*PROGRAM, spec, "--out", tmp_path / "out"]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            arguments,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=patience(120),
            check=False,
        )
    assert ended.returncode == 1
    assert "Error: stdout cannot be written: No space left on device" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "Exception" not in ended.stderr
    assert status(Store.open(tmp_path / "out")).complete


class Stream:
    """Collects what is written, as a terminal or not."""

    def __init__(self, terminal=False, broken=False):
        self.text, self.terminal, self.broken = "", terminal, broken

    def write(self, text):
        if self.broken:
            raise BrokenPipeError
        self.text += text
        return len(text)

    def flush(self):
        pass

    def isatty(self):
        return self.terminal


@pytest.mark.parametrize("terminal", [False, True])
def test_messages_about_compilation_are_shown_once(terminal):
    import logging

    stream = Stream(terminal)
    with Display(stream, unit="cells"):
        for moment in (0.0, 10.0, 20.0):
            record = logging.LogRecord("retvar", logging.INFO, "", 0, "compiling it", (), None)
            record.created = moment
            logging.getLogger("retvar").handle(record)
    assert stream.text.count("compiling it") == 1


@pytest.mark.parametrize("terminal", [False, True])
def test_a_closed_pipe_does_not_stop_the_computation(terminal):
    with Display(Stream(terminal, broken=True), unit="cells", announce=True) as progress:
        progress.start(10)
        progress.note("something")
        progress.advance(1)
        progress.check()
        progress.restore_terminal()


def test_without_a_terminal_a_line_is_written_every_minute_whatever_else_is_noted(monkeypatch):
    clock, stream = [0.0], Stream()
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    with Display(stream, unit="cells", interval=60.0) as progress:
        progress.start(10, done=4)
        for now in range(200):
            clock[0] = float(now)
            if now % 50 == 0:
                progress.note("something else")
            progress.check()
    assert stream.text.count("4 of 10 cells (40%)\n") == 3


def test_count_rate_and_time_left_are_shown(monkeypatch):
    clock, stream = [0.0], Stream()
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    with Display(stream, unit="cells", interval=60.0, announce=True) as progress:
        progress.start(1_000, done=400)
        clock[0] = 100.0
        progress.advance(500)
    assert stream.text.splitlines() == [
        "400 of 1,000 cells (40%)",
        "500 of 1,000 cells (50%), 1.0 a second, about 8 min 20 s left",
    ]


# ---------------------------------------------------------------------- temporary files


def test_a_local_cluster_touches_no_folder_that_others_can_write(tmp_path, monkeypatch):
    """A scheduler of dask takes a folder of a known name, whoever made it, and empties files."""
    pytest.importorskip("distributed")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    planted, mine = tmp_path / "dask-scratch-space", tmp_path / "mine.txt"
    planted.mkdir(mode=0o777)
    mine.write_text("years of work")
    (planted / "global.lock").symlink_to(mine)
    with cluster.local_cluster(1) as found:
        (private,) = tmp_path.glob(".retvar-cluster-*")
        assert private.stat().st_mode & 0o077 == 0
        for part in (found.scheduler, *found.workers.values()):
            assert Path(part.local_directory).is_relative_to(private)
    assert mine.read_text() == "years of work"
    assert {path.name for path in tmp_path.iterdir()} == {planted.name, mine.name}
    assert [path.name for path in planted.iterdir()] == ["global.lock"]


def test_what_killed_workers_have_begun_is_removed_when_a_run_ends(spec, tmp_path, monkeypatch):
    store = tmp_path / "store"

    def killed(*_):
        with subprocess.Popen([sys.executable, "-c", WRITING], cwd=store / "cells") as worker:
            worker.wait()
        assert len(list((store / "cells").iterdir())) == 1
        raise Interrupted(signal.SIGINT)

    monkeypatch.setattr(operations, "_compute", killed)
    with pytest.raises(Interrupted):
        run(spec, store)
    assert list((store / "cells").iterdir()) == []
