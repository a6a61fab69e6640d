"""Streams that are closed, full or have no reader: no command fails for its messages."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

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


def shell(line: str, words, folder) -> subprocess.CompletedProcess:
    """Run retvar with the redirections of a shell."""
    own = ["sh", "-c", f'exec "$0" -m retvar "$@" {line}', sys.executable, *words]
    return subprocess.run(own, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("streams", ["2>&-", ">&-", "<&- >&- 2>&-", "2>/dev/full"])
def test_an_estimate_does_not_need_its_streams(streams, tmp_path):
    ended = shell(streams, LAKE, tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert (tmp_path / "out" / "estimate.nc").exists()


@pytest.mark.parametrize("streams", ["2>&-", "<&- >&- 2>&-"])
def test_a_sweep_does_not_need_its_streams(streams, tmp_path):
    (tmp_path / "a.toml").write_text(SWEEP)
    ended = shell(streams, ["sweep", "run", "a.toml", "--out", "store"], tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert list((tmp_path / "store" / "cells").iterdir())


@pytest.mark.parametrize("streams", ["2>&-", "2>/dev/full"])
@pytest.mark.parametrize("words", [["solve", "nosuch"], ["solve", "chain", "--nosuch"]])
def test_bad_input_has_its_status_though_nobody_can_be_told(streams, words, tmp_path):
    assert shell(streams, words, tmp_path).returncode == 2


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["solve", "chain"], ["solve", "no"]])
def test_readers_that_have_gone_change_nothing(words, tmp_path):
    """Both streams are pipes without a reader."""
    reader, writer = os.pipe()
    os.close(reader)
    own = [sys.executable, "-m", "retvar", *words]
    ended = subprocess.run(own, cwd=tmp_path, stdout=writer, stderr=writer, check=False)
    os.close(writer)
    assert ended.returncode == (2 if words[-1] == "no" else 0)


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
