"""The command `retvar estimate`."""

import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import xarray
from click.testing import CliRunner
from numpy.testing import assert_array_equal

import retvar as rv
from retvar.cli import main
from tests.patience import patience

LAKE = "gymnasium:FrozenLake-v1"
CLIFF = "gymnasium:CliffWalking-v1"
FICKLE = """
import numpy as np
rng, count = np.random.default_rng(0), 0
def policy(observation):
    global count
    count += 1
    return rng.choice(4, p=[0.25] * 4 if count <= 20_000 else [0.1, 0.1, 0.7, 0.1])
"""


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run(*arguments):
    return CliRunner().invoke(main, ["estimate", *map(str, arguments)])


def done(*arguments):
    result = run(*arguments)
    assert result.exit_code == 0, result.output + result.stderr
    return result


def refused(*arguments):
    """The field that the error message names; it is one line."""
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    (line,) = error_lines(result)
    return line.removeprefix("Error: ").partition(" = ")[0]


def error_lines(result):
    """Lines on stderr, except those about compilation, which depend on the compile cache."""
    return [line for line in result.stderr.splitlines() if not line.startswith("compiling")]


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def answer(*arguments):
    return json.loads(done(*arguments, "--json", "--formats", "none").stdout)


# ---------------------------------------------------------------------- environments


def test_everything_is_written_and_can_be_read(tmp_path):
    result = done(LAKE, "--gamma", 0.9, "--steps", 5_000, "--out", "a")
    assert files(tmp_path / "a") == [
        "calibration.png", "estimate.csv", "estimate.nc", "estimator.safetensors", "index.html",
        "map.png", "observed.png",
    ]  # fmt: skip
    assert "5,000 transitions" in result.stdout
    assert error_lines(result) == []
    with xarray.open_dataset(tmp_path / "a" / "estimate.nc", engine="h5netcdf") as data:
        assert data.attrs["source"] == LAKE
        assert data.attrs["gamma"] == 0.9
        assert all(isinstance(x, str | int | float | np.generic) for x in data.attrs.values())
        again = rv.estimate(rv.experience.from_gymnasium("FrozenLake-v1", steps=5_000), gamma=0.9)
        for name in again.data.data_vars:
            assert_array_equal(data[name], again.data[name], err_msg=str(name))
    assert rv.load(tmp_path / "a" / "estimator.safetensors").estimator.steps == 5_000


def test_json_is_complete_and_unknown_numbers_are_null():
    plain = answer(LAKE, "--gamma", 0.9, "--steps", 3_000, "--check")
    assert plain["state"] == [str(s) for s in range(16)]
    assert (plain["gamma"], plain["lam"], plain["transitions"]) == (0.9, 1.0, 3_000)
    for name in ("value", "variance", "std"):
        for ending in ("", "_low", "_high"):
            assert len(plain[name + ending]) == 16
            assert plain[name + ending][15] is None
    assert plain["visits"][15] == 0
    assert plain["rejected_by_reason"] == {}
    assert plain["check"]["verdict"] == "too uncertain to tell"  # goals are rare
    assert set(plain["check"]) == set(plain["self_check"])
    assert len(plain["check_verdict"]) == len(plain["check_mean"]) == 16


def test_a_check_that_disagrees_exits_with_3(tmp_path):
    """The environment changes its ways after the estimate. All files are written nevertheless."""
    (tmp_path / "fickle_robot.py").write_text(FICKLE)
    arguments = ("--policy", "fickle_robot:policy", "--steps", 20_000, "--check", "--out", "a")
    result = run(CLIFF, "--gamma", 0.9, *arguments, "--formats", "none")
    assert result.exit_code == 3, result.output
    assert "disagrees by" in result.stdout
    assert "written: " in result.stdout
    assert files(tmp_path / "a") == [
        "estimate.csv", "estimate.nc", "estimator.safetensors", "index.html",
    ]  # fmt: skip


def test_a_resumed_run_takes_new_experience():
    """With the same seed the second run would repeat the first step by step."""
    answer(LAKE, "--gamma", 0.9, "--steps", 2_000, "--out", "a")
    first = rv.load("a/estimator.safetensors")
    plain = answer(LAKE, "--steps", 2_000, "--resume", "a/estimator.safetensors", "--out", "a")
    assert plain["transitions"] == 4_000
    second = rv.load("a/estimator.safetensors")
    repeated = answer(LAKE, "--gamma", 0.9, "--steps", 2_000, "--seed", 2_000, "--out", "b")
    counts = [
        np.array(each.estimator.notes["estimate"]["visits"]["counts"]) for each in (first, second)
    ]
    assert_array_equal(counts[1] - counts[0], repeated["visits"][: counts[0].size])
    assert plain["gamma"] == 0.9


# ---------------------------------------------------------------------- refusals

ENV = (LAKE, "--gamma", 0.9, "--steps", 100)
LOG = ("log.parquet", "--gamma", 0.9, "--terminated", "none")
WRONG = [
    ((LAKE,), "gamma"),
    (("gymnasium:FrozenLake-v9", "--gamma", 0.9), "environment"),
    (("missing.parquet", "--gamma", 0.9), "source"),
    (("text.parquet", "--gamma", 0.9), "source"),
    ((*ENV, "--state", "x"), "state"),
    ((*ENV, "--on-error", "raise"), "on_error"),
    ((*ENV, "--option", "size=4"), "environment"),
    ((*ENV, "--policy", "nonsense"), "policy"),
    ((*ENV, "--policy", "nowhere:f"), "policy"),
    ((*ENV, "--policy", "missing.npy"), "policy"),
    ((*ENV, "--out", "text.parquet"), "out"),
    ((*ENV, "--formats", "gif"), "formats"),
    ((*ENV, "--grid", "4"), "grid"),
    ((*ENV, "--log", "a.txt"), "path"),
    ((*ENV, "--every", 3), "every"),
    ((*LOG, "--check"), "check"),
    ((*LOG, "--policy", "greedy"), "policy"),
    ((*LOG[:3],), "terminated"),
    ((*LOG, "--reward", "prize"), "reward"),
    ((*LOG, "--gamma-column", "reward", "--log", "copy.parquet"), "gamma"),
    ((*LOG, "--follow", "--resume", "a"), "resume"),
    ((*LOG, "--at", "ward"), "state"),
    (("labels.csv", "--gamma", 0.9, "--at", "wrad"), "state"),
    ((LAKE, "--resume", "missing"), "file"),
]


@pytest.mark.parametrize(("arguments", "field"), WRONG)
def test_wrong_options_are_named_before_anything_is_written(tmp_path, arguments, field):
    (tmp_path / "text.parquet").write_text("no table")
    (tmp_path / "labels.csv").write_text("state,reward,terminated\nward,1,1\n")
    rows = {"state": [0, 1], "reward": [1.0, 2.0]}
    pq.write_table(pa.table(rows), tmp_path / "log.parquet")
    assert refused(*arguments) == field
    assert files(tmp_path) == ["labels.csv", "log.parquet", "text.parquet"]


REMEDIES = [
    ("state,reward,terminated\nMünchen,2,1\n", "--encoding latin-1"),
    ("state;reward;terminated\na;2,5;0\nb;1,5;1\n", "--decimal ','"),
    ("state,reward,terminated\na,2,0\na,12 EUR,1\nb,1,1\n", "--on-error skip"),
    ("state,reward,terminated,time\na,2,0,31.01.2026\nb,1,1,01.02.2026\n", "--day-first"),
    ("state,reward\na,2\nb,1\n", "--terminated none"),
]


@pytest.mark.parametrize(("log", "option"), REMEDIES)
def test_the_option_that_an_error_names_can_be_typed(log, option):
    """And with it the command succeeds."""
    Path("log.csv").write_bytes(log.encode("latin-1"))
    command = ["log.csv", "--gamma", "0.9", "--formats", "none"]
    command += ["--time", "time"] if "time" in log else []
    (line,) = error_lines(run(*command))
    assert option in line
    done(*command, *shlex.split(option))


# ---------------------------------------------------------------------- interruptions

BREAKS = """
import pathlib
count = 0
def quick(observation):
    global count
    count += 1
    if count == 10_000:
        pathlib.Path("ready").touch()
    return count % 4
def policy(observation):
    global count
    count += 1
    if count > 3_000:
        raise RuntimeError("motor 3 does not answer")
    return 1
"""


def test_the_estimator_is_saved_after_a_failure(tmp_path):
    (tmp_path / "robot_that_breaks.py").write_text(BREAKS)
    result = run(LAKE, "--gamma", 0.9, "--policy", "robot_that_breaks:policy", "--log", "a.parquet")
    assert result.exit_code == 1
    assert "estimate/estimator.safetensors" in result.stderr
    assert "motor 3" in result.stderr
    assert "3,000 transitions" in result.stdout
    assert "estimate.nc" in files(tmp_path / "estimate")
    assert rv.load("estimate/estimator.safetensors").estimator.steps == 3_000
    assert pq.read_table("a.parquet").num_rows == 3_000


def test_ctrl_c_ends_it_soon_and_saves_the_estimator(tmp_path):
    """A billion steps, with a log of those taken."""
    (tmp_path / "robots.py").write_text(BREAKS)
    arguments = (LAKE, "--gamma", "0.9", "--policy", "robots:quick", "--out", "a",
                 "--steps", "1000000000", "--log", "log.parquet")  # fmt: skip
    with subprocess.Popen(
        [sys.executable, "-m", "retvar", "estimate", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
    ) as running:  # fmt: skip
        while not (tmp_path / "ready").exists() and running.poll() is None:
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        stdout, stderr = running.communicate(timeout=patience(60))
    assert running.returncode == 130, stderr
    assert "a/estimator.safetensors" in stderr
    assert files(tmp_path / "a") == ["estimate.nc", "estimator.safetensors"]
    steps = rv.load(tmp_path / "a" / "estimator.safetensors").estimator.steps
    assert steps >= 9_999
    assert f"{steps:,} transitions" in stdout
    assert pq.read_table(tmp_path / "log.parquet").num_rows == steps


def test_at_takes_a_file_of_observations():
    rng = np.random.default_rng(0)
    columns = {"x": rng.random(400), "y": rng.random(400), "reward": rng.normal(size=400)}
    pyarrow.csv.write_csv(pa.table(columns | {"terminated": np.arange(400) % 2 == 1}), "log.csv")
    np.save("places.npy", [[0.25, 0.5], [0.75, 0.5]])
    table = "log.csv", "--state", "x,y", "--gamma", "0.9", "--formats", "none", "--json"
    found = json.loads(done(*table, "--at", "places.npy").stdout)
    both = json.loads(done(*table, "--at", "0.25,0.5", "--at", "0.75,0.5").stdout)
    assert found["at"] == both["at"]
    assert len(found["at"]) == 2
    np.save("places.npy", 3.0)
    assert refused(*table, "--at", "places.npy") == "at"
