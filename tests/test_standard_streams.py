"""Streams that are closed, full or have no reader: no command fails for its messages."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from retvar import files
from retvar.cli import main

LAKE = ("estimate", "gymnasium:FrozenLake-v1", "--gamma", "0.9", "--steps", "2000", "--out", "out",
        "--formats", "none")  # fmt: skip
SWEEP = """
runs = 2
steps = 20
domains = [{ random = { states = 4, branching = 2 }, seeds = { first = 0, count = 1 } }]
learners = [{ method = "direct", alpha = 0.1, lam = 0.5 }]
"""
pytestmark = pytest.mark.skipif(os.name != "posix", reason="a POSIX shell")


@pytest.fixture(params=["", "1"], ids=["buffered", "unbuffered"])
def _buffers(request, monkeypatch):
    """Python writes at once, or when a buffer is full; these are different streams."""
    monkeypatch.setenv("PYTHONUNBUFFERED", request.param)


both = pytest.mark.usefixtures("_buffers")


def shell(line: str, words, folder) -> subprocess.CompletedProcess:
    """Run retvar with the redirections of a shell."""
    own = ["sh", "-c", f'exec "$0" -m retvar "$@" {line}', sys.executable, *words]
    return subprocess.run(own, cwd=folder, capture_output=True, text=True, check=False)


def full_pipe() -> tuple[int, int]:
    """Both ends of a pipe that takes nothing more and waits for nobody."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x")
    return reader, writer


@both
def test_a_stream_that_does_not_wait_for_its_reader_gets_everything(tmp_path):
    reader, writer = full_pipe()
    own = [sys.executable, "-m", "retvar", "solve", "chain", "--json"]
    whole = subprocess.run(own, cwd=tmp_path, capture_output=True, check=True).stdout
    with subprocess.Popen(own, cwd=tmp_path, stdout=writer, stderr=subprocess.PIPE) as running:
        os.close(writer)
        with open(reader, "rb") as late:
            time.sleep(1.0)  # so that it finds the pipe full
            got = late.read()
        assert (running.wait(), running.stderr.read()) == (0, b"")
    assert got.lstrip(b"x") == whole


@both
def test_messages_that_nobody_takes_are_dropped(tmp_path):
    reader, writer = full_pipe()
    own = [sys.executable, "-m", "retvar", "solve", "nosuch"]
    assert subprocess.run(own, cwd=tmp_path, stderr=writer, check=False).returncode == 2
    os.close(reader), os.close(writer)


def test_children_have_the_streams_of_the_program(tmp_path):
    """Those that were closed are the null device for them, too."""
    code = (
        "import subprocess, sys; from retvar import __main__ as m; m._own_streams();"
        "own = 'import sys; sys.exit(None in (sys.stdin, sys.stdout, sys.stderr))';"
        "sys.exit(subprocess.call([sys.executable, '-c', own]))"
    )
    own = ["sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, code]
    assert subprocess.run(own, cwd=tmp_path, check=False).returncode == 0


@pytest.mark.parametrize(
    ("streams", "at_once"),
    [("2>&-", ""), (">&-", "1"), ("<&- >&- 2>&-", ""), ("2>/dev/full", "1")],
)
def test_an_estimate_does_not_need_its_streams(streams, at_once, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONUNBUFFERED", at_once)
    ended = shell(streams, LAKE, tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert (tmp_path / "out" / "estimate.nc").exists()


@pytest.mark.parametrize(("streams", "at_once"), [("2>&-", "1"), ("<&- >&- 2>&-", "")])
def test_a_sweep_does_not_need_its_streams(streams, at_once, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONUNBUFFERED", at_once)
    (tmp_path / "a.toml").write_text(SWEEP)
    ended = shell(streams, ["sweep", "run", "a.toml", "--out", "store"], tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert list((tmp_path / "store" / "cells").iterdir())


@both
@pytest.mark.parametrize("streams", ["2>&-", "2>/dev/full"])
@pytest.mark.parametrize("words", [["solve", "nosuch"], ["solve", "chain", "--nosuch"]])
def test_bad_input_has_its_status_though_nobody_can_be_told(streams, words, tmp_path):
    assert shell(streams, words, tmp_path).returncode == 2


@both
@pytest.mark.parametrize("words", [["--help"], ["--version"], ["solve", "chain"], ["solve", "no"]])
def test_readers_that_have_gone_change_nothing(words, tmp_path):
    """Both streams are pipes without a reader."""
    reader, writer = os.pipe()
    os.close(reader)
    own = [sys.executable, "-m", "retvar", *words]
    ended = subprocess.run(own, cwd=tmp_path, stdout=writer, stderr=writer, check=False)
    os.close(writer)
    assert ended.returncode == (2 if words[-1] == "no" else 0)


@both
@pytest.mark.parametrize("words", [["--help"], ["--version"], ["solve", "chain"]])
def test_a_result_that_cannot_be_written_is_an_error_of_one_line(words, tmp_path):
    ended = shell(">/dev/full", words, tmp_path)
    assert ended.returncode == 1
    assert ended.stderr == "Error: stdout cannot be written: No space left on device\n"


def test_a_full_disk_is_no_bad_input_and_what_was_saved_is_said(tmp_path, monkeypatch):
    real = files._sync

    def full(path, how):
        if path.suffix == ".nc":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path, how)

    monkeypatch.setattr(files, "_sync", full)
    monkeypatch.chdir(tmp_path)
    files.written.clear()
    ended = CliRunner().invoke(main, LAKE)
    assert ended.exit_code == 1
    assert "estimate.nc: cannot be written: No space left on device" in ended.stderr
    assert ended.stderr.endswith("Written before: out/estimator.safetensors\n")
    assert (tmp_path / "out" / "estimator.safetensors").exists()


def test_a_log_is_written_through_a_link_to_another_file_system(tmp_path, monkeypatch):
    real = os.replace

    def within(source, target):
        if os.path.dirname(source) != os.path.dirname(target):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        real(source, target)

    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "log.parquet").symlink_to(tmp_path / "elsewhere" / "log.parquet")
    monkeypatch.setattr(os, "replace", within)
    monkeypatch.chdir(tmp_path)
    ended = CliRunner().invoke(main, [*LAKE, "--log", "log.parquet"])
    assert ended.exit_code == 0, ended.output
    assert (tmp_path / "log.parquet").is_symlink()
    assert (tmp_path / "elsewhere" / "log.parquet").stat().st_size > 1_000


def test_figures_are_drawn_without_a_home_and_leave_nothing(tmp_path):
    """Matplotlib would warn of a folder that it makes, and leave it at a signal."""
    own = {
        name: x for name, x in os.environ.items() if name not in ("MPLCONFIGDIR", "XDG_CONFIG_HOME")
    }
    own |= {"HOME": "/proc/none", "TMPDIR": str(tmp_path / "tmp")}
    (tmp_path / "tmp").mkdir()
    words = [sys.executable, "-m", "retvar", "draw", "chain", "a.png"]
    ended = subprocess.run(
        words, cwd=tmp_path, env=own, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert (tmp_path / "a.png").exists()
    assert list((tmp_path / "tmp").iterdir()) == []


def test_without_any_folder_for_temporary_files_the_error_has_a_remedy(tmp_path, monkeypatch):
    def none():
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(files.tempfile, "gettempdir", none)
    (tmp_path / "a.toml").write_text(SWEEP)
    words = [
        "sweep",
        "run",
        str(tmp_path / "a.toml"),
        "--out",
        str(tmp_path / "s"),
        "--cluster",
        "local",
    ]
    ended = CliRunner().invoke(main, words)
    assert ended.exit_code == 2
    assert "set TMPDIR to one" in ended.stderr
