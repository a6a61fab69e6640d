"""SIGINT and SIGTERM end every command soon, with the shell's status, and lose nothing finished.

`make test` sends one signal to each command at a random moment, and checks the status, the words
and what is on the disk. How long it takes is checked by `make soak`, with many moments spread over
the life of each command: 2 s on an idle machine. Time in which the tested process was ready and
got no processor does not count.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
import pytest

import retvar as rv
from retvar.cli import main
from retvar.signals import Interrupted, Stop, current
from retvar.sweep import Store, leases, operations
from tests.oracle import SOAK, fresh_seed
from tests.patience import at_work, patience

BOUND = 2.0  # seconds, on an idle machine
MOMENTS = 20  # of each command, in `make soak`
NUMBERS = (signal.SIGINT, signal.SIGTERM)
LAKE = ("gymnasium:FrozenLake-v1", "--gamma", "0.9")
SMALL = Path(__file__).parent / "data" / "small.py"
SWEEP = """
seed = 3
runs = {runs}
steps = {steps}
cell = {{ learners = 1, runs = 2 }}
domains = [{{ random = {{ states = 4, branching = 2 }}, seeds = {{ first = 0, count = 5 }} }}]
learners = [{{ method = ["direct", "vtd"], alpha = [0.05, 0.4], lam = 0.5 }}]
"""
needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
COMMANDS = {  # each with the seconds after which it has seen everything there is to interrupt
    "solve": (2.0, "solve", "gymnasium:CliffWalking-v1", "--gamma", "0.99", "--policy", "uniform",
              "--check", "--plot", "solve.png"),
    "draw": (3.0, "draw", "complex-mdp", "draw.png"),
    "curve": (4.0, "curve", "complex-mdp", "--best", "--steps", "1000", "--plot", "curve.png"),
    "experiments": (1.0, "experiments"),
    "frontier": (2.0, "frontier", "windy-cliff", "--gamma", "0.99", "--plot", "frontier.png"),
    "estimate": (5.0, "estimate", *LAKE, "--steps", "60000", "--check", "--out", "estimate"),
    "estimate, endless": (3.0, "estimate", *LAKE, "--steps", "1000000000", "--log", "lake.parquet"),
    "estimate --by td": (5.0, "estimate", "{data}/log.csv", "--gamma", "0.9", "--by", "td"),
    "estimate LOG": (4.0, "estimate", "{data}/log.csv", "--gamma", "0.9"),
    "estimate --follow": (4.0, "estimate", "{data}/log.csv", "--gamma", "0.9", "--follow"),
    "estimate --cluster": (6.0, "estimate", "{data}/log.csv", "--gamma", "0.9", "--cluster",
                           "local", "--workers", "2"),
    "rollouts": (3.0, "rollouts", *LAKE, "--episodes", "1000000"),
    "reproduce": (5.0, "reproduce", "--file", str(SMALL), "--out", "report"),
    "lab": (3.0, "lab", "--no-browser"),
    "sweep plan": (3.0, "sweep", "plan", "{data}/long.toml"),
    "sweep run": (4.0, "sweep", "run", "{data}/long.toml", "--out", "store"),
    "sweep run --cluster": (7.0, "sweep", "run", "{data}/long.toml", "--out", "store", "--cluster",
                            "local", "--workers", "2"),
    "sweep status": (1.5, "sweep", "status", "{data}/store"),
    "sweep retry": (1.5, "sweep", "retry", "{data}/store"),
    "sweep collect": (2.0, "sweep", "collect", "{data}/store", "--out", "all.nc"),
    "sweep plot": (4.0, "sweep", "plot", "{data}/store", "--out", "plot.png"),
    "sweep compare": (4.0, "sweep", "compare", "{data}/store", "--plot", "compared.png"),
}  # fmt: skip


def case(name: str) -> object:
    """A parameter; without marimo there is no lab that a signal could end."""
    absent = name == "lab" and find_spec("marimo") is None
    return pytest.param(name, marks=pytest.mark.skipif(absent, reason="marimo: make browser"))


SOAKED = ("estimate LOG", "estimate --follow", "sweep retry", "sweep plot")  # in the soak alone


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A log, a specification that takes minutes, and a finished store."""
    folder = tmp_path_factory.mktemp("signals")
    rng = np.random.default_rng(1)
    rows = 300_000 if SOAK else 30_000
    state = np.arange(rows) % 5
    columns = (state, np.minimum(state + 1, 4), rng.normal(1.0, 1.0, rows).round(3), state == 4)
    lines = [f"{a},{b},{c},{int(d)}\n" for a, b, c, d in zip(*columns, strict=True)]
    (folder / "log.csv").write_text("state,next_state,reward,terminated\n" + "".join(lines))
    (folder / "long.toml").write_text(SWEEP.format(runs=200, steps=300_000))
    (folder / "short.toml").write_text(SWEEP.format(runs=100 if SOAK else 8, steps=40))
    operations.run(folder / "short.toml", folder / "store")
    return folder


class End(NamedTuple):
    """How a command ended, and when the signal came: before it began, at its very end, after it."""

    status: int
    stdout: str
    stderr: str
    seconds: float
    early: bool
    leaving: bool
    late: bool


def starvation(pid: int) -> float:
    """Seconds in which the most neglected thread of a process was ready and got no processor."""
    found = [0.0]
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            found.append(int(path.read_text().split()[1]) * 1e-9)
        except (OSError, ValueError, IndexError):
            continue
    return max(found)


def handles_signals(pid: int) -> bool:
    """Whether a process has a handler for SIGTERM, as retvar has from its first line on."""
    found = Path(f"/proc/{pid}/status").read_text().partition("SigCgt:")[2].split()
    return bool(int(found[0], 16) >> (signal.SIGTERM - 1) & 1) if found else False


def heed_interrupts() -> None:
    """Background jobs of a shell ignore Ctrl-C, and so would Python while it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def interrupt(words, folder: Path, number: int, moment: float, group: bool = False) -> End:
    """Run the program and send it a signal; to its whole group, as a terminal does, if asked."""
    process = subprocess.Popen(
        [sys.executable, "-m", "retvar", *words], cwd=folder, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "RETVAR_TEST_LENGTH": "400000"}, preexec_fn=heed_interrupts,
    )  # fmt: skip
    said: dict[str, str] = {}
    readers = [
        threading.Thread(target=lambda n=name: said.update({n: getattr(process, n).read()}))
        for name in ("stdout", "stderr")
    ]
    for reader in readers:
        reader.start()
    begun, until = False, time.monotonic() + moment
    while (left := until - time.monotonic()) > 0:
        begun = begun or (process.poll() is None and handles_signals(process.pid))
        time.sleep(min(left, 0.02))
    late = process.poll() is not None
    early = not late and not begun and not handles_signals(process.pid)
    leaving = not late and begun and not handles_signals(process.pid)
    before = starved = starvation(process.pid)
    sent = time.monotonic()
    if not late:
        (os.killpg if group else os.kill)(process.pid, number)
    while process.poll() is None and time.monotonic() - sent < 60:
        starved = max(starved, starvation(process.pid))
        time.sleep(0.01)
    seconds = time.monotonic() - sent - (starved - before)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise AssertionError(f"{words} did not end")
    for reader in readers:  # they end when the last worker process has closed its stderr
        reader.join(20)
        assert not reader.is_alive(), "worker processes live on"
    process.stdout.close(), process.stderr.close()
    words = said["stdout"], said["stderr"]
    return End(process.returncode, *words, 0.0 if late else seconds, early, leaving, late)


def check_end(name: str, end: End, number: int, folder: Path) -> str:
    """What holds after a signal at any moment; returns what happened in a word."""
    assert "Error: " not in end.stderr  # nothing that is refused tells about signals
    if end.late:
        return "over before"
    if end.early and "Interrupted." not in end.stderr:  # Python itself was starting
        assert end.status
        assert "retvar/cli" not in end.stderr
        assert not written(folder)
        return "not begun"
    if end.leaving and "Interrupted." not in end.stderr:  # all was done, no handler is left
        assert end.status == 0
        assert end.stdout or name == "draw", name
        return "done"
    if end.status == 0:  # it was past its last look: everything has been printed and written
        assert "Interrupted." not in end.stderr
        assert end.stdout or name == "draw", name
        return "done"
    assert end.status == 128 + number, (name, end)
    assert "Traceback" not in end.stderr, (name, end.stderr)
    *_, kept, last = end.stderr.splitlines()
    assert last == "Interrupted."
    assert kept.startswith(("Nothing was written.", "Written before: ", "Finished work is saved;",
                            "The estimator is saved;")), kept  # fmt: skip
    assert [path for path in folder.rglob(".*") if path.is_file()] == []
    check_files(name, folder, kept)
    return "interrupted"


def written(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def check_files(name: str, folder: Path, kept: str) -> None:
    """What is on the disk is whole, and is what the last words say."""
    if name.startswith("estimate"):
        found = list(folder.rglob("estimator.safetensors"))
        assert bool(found) == kept.startswith("The estimator is saved"), (found, kept)
        for path in found:
            assert rv.load(path).steps > 0
        if not found:
            assert not list(folder.iterdir())
    elif name.startswith("sweep run") and (folder / "store" / "manifest.json").exists():
        assert operations.status(Store.open(folder / "store")).damaged == ()
    elif kept.startswith("Written before: "):
        assert written(folder)
        assert all(str(path.name) in kept for path in written(folder))
    elif kept == "Nothing was written.":
        assert not written(folder), name


@needs_proc
@pytest.mark.parametrize("name", [case(name) for name in COMMANDS if name not in SOAKED])
def test_a_signal_ends_every_command_with_its_status(name, data, tmp_path):
    """At a random moment of its first second, in which it starts and begins to work."""
    rng = random.Random(fresh_seed())
    number, (life, *words) = rng.choice(NUMBERS), COMMANDS[name]
    words = [word.format(data=data) for word in words]
    end = interrupt(words, tmp_path, number, rng.uniform(0.1, life / 5), rng.random() < 0.5)
    check_end(name, end, number, tmp_path)


@needs_proc
@pytest.mark.soak
@pytest.mark.skipif(not SOAK, reason="20 moments of 20 commands: make soak")
@pytest.mark.parametrize("name", [case(name) for name in COMMANDS])
def test_a_signal_at_any_moment_ends_a_command_within_two_seconds(name, data, tmp_path):
    rng = random.Random(fresh_seed())
    life, *words = COMMANDS[name]
    words = [word.format(data=data) for word in words]
    took, ends = [], []
    for k in range(MOMENTS):
        folder = tmp_path / str(k)
        folder.mkdir()
        number, moment = NUMBERS[k % 2], life * (k + rng.random()) / MOMENTS
        end = interrupt(words, folder, number, moment, group=k % 4 > 1)
        ends.append(check_end(name, end, number, folder))
        took.append(end.seconds)
    counts = ", ".join(f"{ends.count(word)} {word}" for word in dict.fromkeys(ends))
    sys.stdout.write(f"\n| {name} | {np.median(took):.2f} | {max(took):.2f} | {counts} |\n")
    assert max(took) < BOUND, took


@needs_proc
@pytest.mark.parametrize("name", ["rollouts", "estimate, endless"])
def test_a_signal_ends_a_command_whose_messages_nobody_reads(name, data, tmp_path):
    """Its stderr is a pipe that is full, as with a terminal that Ctrl-S has stopped."""
    words = [word.format(data=data) for word in COMMANDS[name][1:]]
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    with subprocess.Popen(
        [sys.executable, "-m", "retvar", *words], cwd=tmp_path, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=writer,
    ) as process:  # fmt: skip
        try:
            at_work(process.pid, 1.5)
            process.send_signal(signal.SIGINT)
            assert process.wait(patience(20)) == 130
        finally:
            process.kill()
            os.close(reader)
            os.close(writer)


def test_every_command_has_been_thought_of():
    found = set()
    for name, command in main.commands.items():
        groups = command.commands if isinstance(command, click.Group) else {"": None}
        found |= {f"{name} {each}".strip() for each in groups}
    assert found <= set(COMMANDS)
    assert set(SOAKED) < set(COMMANDS)


# ---------------------------------------------------------------------- the mechanism

SCRIPT = """
import os, sys, time
from retvar import signals
stop = signals.Stop(lambda line: os.write(1, (line + "\\n").encode())).__enter__()
{body}
"""
HANGS = {
    "nothing to keep": ("print('ready', flush=True); time.sleep(60)", "Nothing was written.\n"),
    "never checks": (
        "with stop.graceful(lambda: os.write(1, b'saved\\n'), lambda: 'all'):\n"
        "    print('ready', flush=True)\n    time.sleep(60)",
        "saved\nall\n",
    ),
    "saving hangs": (
        "with stop.graceful(lambda: time.sleep(60), lambda: 'half'):\n"
        "    print('ready', flush=True)\n    time.sleep(60)",
        "half\n",
    ),
    "cleaning up fails": (
        "stop.leaving += [lambda: 1 / 0]; print('ready', flush=True); time.sleep(60)",
        "Nothing was written.\n",
    ),
    "busy in C": (
        "import numpy as np\nprint('ready', flush=True)\nnp.linalg.svd(np.ones((4000, 4000)))",
        "Nothing was written.\n",
    ),
    "last words are not read": (
        "stop._tell = lambda line: (time.sleep(30), os.write(1, b'late'))\n"
        "try:\n    with stop.graceful():\n        print('ready', flush=True)\n"
        "        while True:\n            stop.check()\n            time.sleep(0.01)\n"
        "finally:\n    stop.tell()\n    stop.end()",
        "",
    ),
    "stops by itself": (
        "stop.leaving += [lambda: os.write(1, b'cleaned\\n')]\n"
        "try:\n    with stop.graceful(kept=lambda: 'all'):\n        print('ready', flush=True)\n"
        "        while True:\n            stop.check()\n            time.sleep(0.01)\n"
        "finally:\n    stop.end()",
        "cleaned\nall\n",
    ),
    "finishes in time": (
        "with stop.graceful(kept=lambda: 'all'):\n    print('ready', flush=True)\n"
        "    time.sleep(0.3)\n    print('end', flush=True)\nprint('not here')",
        "end\nall\n",
    ),
}


@pytest.mark.parametrize("kind", HANGS)
def test_a_program_that_does_not_stop_is_ended(kind):
    body, words = HANGS[kind]
    if kind == "finishes in time":
        body = "try:\n" + "".join(f"    {line}\n" for line in body.splitlines())
        body += "finally:\n    stop.tell()\n    stop.end()"
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(body=body)], stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout.readline() == "ready\n"
        running.send_signal(signal.SIGTERM)
        out, _ = running.communicate(timeout=60)
    assert running.returncode == 143
    assert out == words


def test_a_program_that_is_ended_releases_its_leases(tmp_path):
    """And only its own: another worker has taken over the second one."""
    body = (
        "from pathlib import Path; from retvar.sweep import leases\n"
        f"mine, theirs = (Path({str(tmp_path)!r}) / name for name in ('mine', 'theirs'))\n"
        "held = leases.acquire(mine), leases.acquire(theirs)\n"
        "with stop.graceful(), held[0].heartbeat(), held[1].heartbeat():\n"
        "    theirs.write_text('taken over')\n    print('ready', flush=True)\n    time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(body=body)], stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout.readline() == "ready\n"
        running.send_signal(signal.SIGTERM)
        running.communicate(timeout=60)
    assert running.returncode == 143
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


def test_leases_that_were_released_are_forgotten(tmp_path):
    with Stop() as stop:
        before = [*stop.leaving]
        lease = leases.acquire(tmp_path / "cell")
        assert len(stop.leaving) == len(before) + 1
        lease.release()
        assert stop.leaving == before


LAST = """
import os, signal, sys

class Last:
    def __del__(self, kill=os.kill, pid=os.getpid(), number={number}):
        kill(pid, number)

sys.last = Last()
sys.argv = ["retvar", "experiments"]
from retvar.__main__ import run
run()
"""


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_after_all_is_done_changes_nothing(number):
    """Python takes handlers away while it ends; what is left then would die of the signal."""
    ended = subprocess.run(
        [sys.executable, "-c", LAST.format(number=int(number))],
        capture_output=True, text=True, timeout=patience(60), check=False,
    )  # fmt: skip
    assert ended.returncode == 0
    assert ended.stdout
    assert ended.stderr == ""


def test_a_second_signal_ends_the_program_at_once():
    body = (
        "signals.GRACE = 1000.0\nwith stop.graceful(kept=lambda: 'all'):\n"
        "    print('ready', flush=True)\n    time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(body=body)], stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout.readline() == "ready\n"
        for _ in range(2):
            running.send_signal(signal.SIGINT)
            time.sleep(0.1)
        out, _ = running.communicate(timeout=60)
    assert running.returncode == 130
    assert out == "all\n"


def test_a_signal_within_a_graceful_block_is_raised_at_its_end():
    with Stop() as stop:
        assert current() is stop
        with pytest.raises(Interrupted), stop.graceful():
            interrupt_myself(stop)
    assert current() is not stop


def test_after_a_graceful_block_what_was_to_be_saved_before_it_is_saved_again():
    with Stop() as stop:
        before = stop.save, stop.kept
        with stop.graceful(lambda: None, lambda: "all"):
            assert (stop.save, stop.kept) != before
        assert (stop.save, stop.kept) == before


def test_a_program_that_has_left_the_block_is_not_ended_by_its_signal(monkeypatch):
    """The thread that listens comes too late."""
    ended = []
    monkeypatch.setattr(os, "_exit", ended.append)
    with Stop() as stop:
        pass
    stop.number = signal.SIGINT
    stop._end()
    assert ended == []


def interrupt_myself(stop):
    signal.raise_signal(signal.SIGINT)
    while not stop.number:
        time.sleep(0.001)


FORKED = """
before = [signal.getsignal(n) for n in (2, 15)]
with signals.Stop():
    child = os.fork()
    if not child:
        os._exit([signal.getsignal(n) for n in (2, 15)] != before)
    assert [signal.getsignal(n) for n in (2, 15)] != before
    assert os.waitpid(child, 0)[1] == 0
assert [signal.getsignal(n) for n in (2, 15)] == before
"""


def test_handlers_are_restored_also_in_forked_children():
    program = "import os, signal\nfrom retvar import signals" + FORKED
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
