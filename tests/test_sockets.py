"""What listens while commands run: nothing but loopback, and nothing that a stranger could use."""

import os
import socket
import ssl
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.patience import patience

pytestmark = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads /proc")
PROGRAM = [sys.executable, "-m", "retvar"]
PATHS = ("/json/identity.json", "/json/counts.json", "/metrics", "/info/main/workers.html")
SWEEP = """
runs = 400
steps = 40000000
cell = { runs = 10 }
domains = [{ id = "complex-mdp" }]
learners = [{ method = "direct", alpha = 0.1 }]
"""


def descendants(pid: int) -> set[int]:
    """A process and all processes below it."""
    found = {pid}
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found |= descendants(int(child))
    return found


def inodes(pid: int) -> set[str]:
    """Sockets of a process."""
    found = set()
    for link in Path(f"/proc/{pid}/fd").glob("*"):
        try:
            target = str(link.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            found.add(target[8:-1])
    return found


def listening(pid: int) -> set[tuple[str, int]]:
    """Address and port of every TCP socket on which a process or one below it listens."""
    own: set[str] = set()
    for each in descendants(pid):
        try:
            own |= inodes(each)
        except OSError:  # it has just ended
            continue
    found = set()
    for family, table in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in own:  # 0A: listening
                address, port = fields[1].split(":")
                words = np.frombuffer(bytes.fromhex(address), dtype="<u4").byteswap()
                found.add((socket.inet_ntop(family, words.tobytes()), int(port, 16)))
    return found


@contextmanager
def running(words):
    """A command, while it runs."""
    process = subprocess.Popen(
        [*PROGRAM, *map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def seen(process, least: int) -> set[tuple[str, int]]:
    """Everything on which a command listens, once there are `least` sockets and no new ones."""
    found: set[tuple[str, int]] = set()
    end = time.monotonic() + patience(60)
    while time.monotonic() < end:
        assert process.poll() is None, "the command ended too soon"
        before, found = found, listening(process.pid)
        if found == before and len(found) >= least:
            return found
        time.sleep(1.0)
    raise AssertionError(f"only {found}")


def answer(port: int, path: str) -> bytes:
    """What an HTTP request gets, or nothing."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as stranger:
            stranger.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            return stranger.recv(65536)
    except OSError:
        return b""


def wants_a_certificate(port: int) -> bool:
    """Whether a port speaks TLS; it says nothing to a stranger, who has no certificate."""
    unsure, spoken = ssl.create_default_context(), False
    unsure.check_hostname, unsure.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), timeout=5) as raw:
        raw.settimeout(patience(3))
        try:
            with unsure.wrap_socket(raw) as talk:
                spoken = True
                assert talk.recv(1) == b"", port
        except (ssl.SSLError, OSError) as error:
            spoken |= "CERTIFICATE_REQUIRED" in str(error) or "alert" in str(error)
    return spoken


def test_the_list_of_sockets_has_one_that_is_open():
    with socket.socket() as here:
        here.bind(("0.0.0.0", 0))
        here.listen()
        mine = listening(os.getpid())
        assert ("0.0.0.0", here.getsockname()[1]) in mine


def test_a_local_cluster_listens_on_loopback_and_tells_strangers_nothing(tmp_path):
    """Scheduler, two workers and their nannies: TLS with certificates made for the run."""
    spec = tmp_path / "sweep.toml"
    spec.write_text(SWEEP)
    words = [
        "sweep",
        "run",
        spec,
        "--out",
        tmp_path / "out",
        "--cluster",
        "local",
        "--workers",
        "2",
    ]
    with running(words) as process:
        found = seen(process, least=7)
        assert {address for address, _ in found} <= {"127.0.0.1", "::1"}
        ports = [port for _, port in found]
        asked = [(port, path) for port in ports for path in PATHS]
        with ThreadPoolExecutor(len(asked)) as pool:  # a port with TLS lets strangers wait
            for each, said in zip(asked, pool.map(lambda each: answer(*each), asked), strict=True):
                assert b"200 OK" not in said, (*each, said[:200])
            assert sum(pool.map(wants_a_certificate, ports)) >= 5


def test_the_page_of_a_running_estimate_listens_on_loopback_and_tells_strangers_nothing(tmp_path):
    words = ["estimate", "gymnasium:FrozenLake-v1", "--gamma", "0.9", "--steps", "100000000",
             "--out", tmp_path / "out", "--live", "--no-browser"]  # fmt: skip
    with running(words) as process:
        found = seen(process, least=1)
        assert {address for address, _ in found} == {"127.0.0.1"}
        ((_, port),) = found
        for path in ("/", "/state.json", *PATHS):
            said = answer(port, path)
            assert said.startswith(b"HTTP/1.0 403"), (path, said[:200])
            assert said.endswith(b"\r\n\r\n")


def test_the_lab_listens_on_one_port_of_loopback_and_tells_strangers_nothing():
    pytest.importorskip("marimo", reason="marimo: make browser")
    with running(["lab", "--no-browser"]) as process:
        found = seen(process, least=1)
        ((address, port),) = found
        assert address == "127.0.0.1"
        for path in (*PATHS, "/", "/health", "/ws", "/assets/index.js"):
            said = answer(port, path)
            assert said.startswith(b"HTTP/1.1 403"), (path, said[:200])
            assert len(said) < 1_000


@pytest.mark.parametrize(
    "words",
    [
        ["sweep", "run", "{spec}", "--out", "{out}"],
        ["estimate", "gymnasium:FrozenLake-v1", "--gamma", "0.9", "--steps", "3000000"],
        ["rollouts", "gymnasium:FrozenLake-v1", "--gamma", "0.9", "--episodes", "1000000"],
        ["reproduce", "--out", "{out}"],
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_other_commands_listen_on_nothing(words, tmp_path):
    spec = tmp_path / "sweep.toml"
    spec.write_text(SWEEP)
    given = [w.format(spec=spec, out=tmp_path / "out") for w in words]
    with running(given) as process:
        end = time.monotonic() + 2  # all that it does is traced in test_durability
        while time.monotonic() < end and process.poll() is None:
            assert listening(process.pid) == set()
            time.sleep(0.2)
