"""The command `retvar estimate`."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
import warnings
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


def refused(*arguments, status=2):
    """The error message, which is one line."""
    result = run(*arguments)
    assert result.exit_code == status, result.output
    assert "Traceback" not in result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    return line.removeprefix("Error: ")


def error_lines(result):
    """Lines on stderr, except those about compilation, which depend on the compile cache."""
    return [line for line in result.stderr.splitlines() if not line.startswith("compiling")]


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def answer(*arguments):
    return json.loads(done(*arguments, "--json", "--formats", "none").stdout)


# ---------------------------------------------------------------------- the folder


@pytest.mark.parametrize("option", ["--out", "--log"])
def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_learned(
    tmp_path, monkeypatch, option
):
    (tmp_path / "a").mkdir()
    make = os.open

    def forbidden(path, flags, *args, **options):
        if flags & os.O_CREAT and Path(path).parent.name == "a":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return make(path, flags, *args, **options)

    monkeypatch.setattr(os, "open", forbidden)
    monkeypatch.setattr(rv.Estimate, "learn", None)
    given = {"--out": "a", "--log": "a/log.parquet"}[option]
    message = refused(LAKE, "--gamma", 0.9, "--steps", 9, option, given)
    assert message == f"{option} = a: cannot be written: Permission denied"
    assert files(tmp_path) == ["a"]


@pytest.mark.parametrize("name", ["states.png", "estimate.nc", "index.html"])
def test_a_folder_in_the_place_of_a_file_is_refused_before_anything_is_learned(
    tmp_path, monkeypatch, name
):
    (tmp_path / "a" / name).mkdir(parents=True)
    monkeypatch.setattr(rv.Estimate, "learn", None)
    message = refused(LAKE, "--gamma", 0.9, "--steps", 9, "--out", "a")
    assert message == f"--out = a/{name}: is a folder; a file is written there: move it"
    assert files(tmp_path / "a") == [name]


# ---------------------------------------------------------------------- environments


def test_everything_is_written_and_can_be_read(tmp_path):
    result = done(LAKE, "--gamma", 0.9, "--steps", 5_000, "--out", "a")
    assert files(tmp_path / "a") == [
        "calibration.png", "estimate.csv", "estimate.nc", "estimator.safetensors", "index.html",
        "map.png", "observed.png",
    ]  # fmt: skip
    lines = result.stdout.splitlines()
    assert lines[0] == f"{LAKE}, random policy: γ = 0.9, λ = 1, least squares"
    assert lines[1].startswith("5,000 transitions, ")
    assert lines[2].startswith("11 states, ")
    assert lines[3].startswith("return intervals: returns take few values: 90% intervals held ")
    assert lines[4].startswith("the data's own returns: value ")
    assert lines[6].split() == ["state", "visits", "value", "90%", "std", "90%"]
    assert error_lines(result) == []
    with xarray.open_dataset(tmp_path / "a" / "estimate.nc", engine="h5netcdf") as data:
        assert data.attrs["source"] == LAKE
        assert data.attrs["gamma"] == 0.9
        assert all(isinstance(x, str | int | float | np.generic) for x in data.attrs.values())
        again = rv.estimate(rv.experience.from_gymnasium("FrozenLake-v1", steps=5_000), gamma=0.9)
        for name in again.data.data_vars:
            assert_array_equal(data[name], again.data[name], err_msg=str(name))
    assert rv.load(tmp_path / "a" / "estimator.safetensors").steps == 5_000


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
    assert set(plain["check"]) == set(plain["self_check"]) == {
        "verdict", "value", "std", "returns", "places", "places_agree", "places_disagree",
        "furthest_off",
    }  # fmt: skip
    assert len(plain["check_verdict"]) == 16
    assert len(plain["check_mean"]) == 16


def test_estimates_for_observations_are_by_region():
    plain = answer("gymnasium:CartPole-v1", "--gamma", 0.9, "--episodes", 30)
    assert len(plain["region"]) == len(plain["centre"]) == len(plain["value"])
    assert len(plain["centre"][0]) == 4
    assert plain["episodes"] == 30


def test_a_check_that_agrees_is_printed_and_drawn(tmp_path):
    result = done(CLIFF, "--gamma", 0.9, "--steps", 20_000, "--check", "--out", "a")
    assert "the data's own returns: value agrees (a difference of" in result.stdout
    assert "fresh returns:\nvalue agrees (a difference of" in result.stdout
    assert "check.png" in files(tmp_path / "a")
    with xarray.open_dataset(tmp_path / "a" / "estimate.nc", engine="h5netcdf") as data:
        assert np.isfinite(data["check_mean"][36])
        assert data["check_verdict"][36] == "agrees"
        assert data.attrs["self_check"].startswith("value agrees")


def test_a_check_that_cannot_tell_says_so_and_exits_with_0():
    result = done(LAKE, "--gamma", 0.9, "--steps", 300, "--check", "--formats", "none")
    assert "value too uncertain to tell" in result.stdout


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


def test_estimates_from_the_written_log_are_the_same(tmp_path):
    plain = answer(LAKE, "--gamma", 0.9, "--steps", 2_000, "--log", "lake.parquet")
    again = answer("lake.parquet", "--gamma", 0.9)
    assert again["policy"] == "random"
    assert (again["value"], again["std_high"]) == (plain["value"], plain["std_high"])


def test_the_folder_of_save_is_the_folder_of_out(tmp_path):
    done(LAKE, "--gamma", 0.9, "--steps", 2_000, "--out", "a")
    stream = rv.experience.from_gymnasium("FrozenLake-v1", steps=2_000, seed=0)
    rv.estimate(stream, gamma=0.9).save("b")
    assert files(tmp_path / "a") == files(tmp_path / "b")
    for name in files(tmp_path / "a"):
        if name != "estimator.safetensors":  # the command line has other provenance
            assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert rv.load("a").steps == rv.load("b").steps == 2_000
    assert rv.load(tmp_path / "a").value().tobytes() == rv.load("b").value().tobytes()
    assert rv.estimate(stream, resume="a").estimator.steps == 4_000
    assert answer(LAKE, "--steps", 100, "--resume", "b", "--out", "b")["transitions"] == 2_100
    assert rv.load("b").steps == 2_100  # a run that continues from it may replace it


def test_a_resumed_run_takes_new_experience():
    """With the same seed the second run would repeat the first step by step."""
    answer(LAKE, "--gamma", 0.9, "--steps", 2_000, "--out", "a")
    first = rv.load("a/estimator.safetensors")
    plain = answer(LAKE, "--steps", 2_000, "--resume", "a/estimator.safetensors", "--out", "a")
    assert plain["transitions"] == 4_000
    second = rv.load("a/estimator.safetensors")
    repeated = answer(LAKE, "--gamma", 0.9, "--steps", 2_000, "--seed", 2_000, "--out", "b")
    counts = [np.array(each.notes["estimate"]["visits"]["counts"]) for each in (first, second)]
    assert_array_equal(counts[1] - counts[0], repeated["visits"][: counts[0].size])
    assert plain["gamma"] == 0.9


POLICY = """
import numpy as np
right = lambda observation: 2
def odd(observation): return "north"
not_one = 3.5
"""


def test_policies_are_named_on_the_command_line(tmp_path):
    (tmp_path / "walkers_of_mine.py").write_text(POLICY)
    np.save(tmp_path / "down.npy", np.ones(16, dtype=int))
    common = (LAKE, "--gamma", 0.9, "--steps", 300, "--option", "is_slippery=false")
    right = answer(*common, "--policy", "walkers_of_mine:right")
    assert right["policy"] == "<lambda>"
    assert [s for s, n in enumerate(right["visits"]) if n] == [0, 1, 2, 3]
    down = answer(*common, "--policy", "down.npy")
    assert [s for s, n in enumerate(down["visits"]) if n] == [0, 4, 8]
    greedy = answer(*common, "--policy", "greedy")
    assert greedy["policy"] == "greedy"
    assert greedy["value"][0] == pytest.approx(0.9**5, rel=0.02)
    later = answer(
        *(LAKE, "--steps", 300, "--option", "is_slippery=false", "--policy", "greedy"),
        *("--resume", "estimate/estimator.safetensors"),
    )
    assert later["transitions"] == 600


def test_figures_are_written_in_the_requested_formats(tmp_path):
    done(LAKE, "--gamma", 0.9, "--steps", 500, "--formats", "svg", "--out", "a")
    assert "map.svg" in files(tmp_path / "a")
    assert "map.png" not in files(tmp_path / "a")


# ---------------------------------------------------------------------- logs


def walk(n=600, seed=0):
    """A robot between stations, in named columns."""
    rng = np.random.default_rng(seed)
    at = rng.integers(3, size=n + 1)
    ends = rng.random(n) < 0.1
    ends[-1] = True
    names = np.array(["dock", "hall", "lab"])
    return {
        "place": names[at[:-1]], "then": names[at[1:]], "joy": rng.normal(at[:-1]),
        "over": ends, "discount": np.full(n, 0.5),
    }  # fmt: skip


NAMED = ("--state", "place", "--next-state", "then", "--reward", "joy", "--terminated", "over")


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_a_log_with_columns_of_any_name_is_read(tmp_path, ending):
    table = pa.table(walk())
    write = {"parquet": pq.write_table, "csv": pyarrow.csv.write_csv}[ending]
    write(table, tmp_path / f"log.{ending}")
    plain = answer(f"log.{ending}", *NAMED, "--gamma", 0.5)
    assert sorted(plain["state"]) == ["dock", "hall", "lab"]
    column = answer(f"log.{ending}", *NAMED, "--gamma-column", "discount", "--kappa", 0)
    assert column["gamma"] == "in the data"
    constant = answer(f"log.{ending}", *NAMED, "--gamma", 0.5, "--kappa", 0)
    assert column["value"] == constant["value"]
    done(f"log.{ending}", *NAMED, "--gamma", 0.5)
    assert files(tmp_path / "estimate")[-1] == "states.png"


def test_bad_rows_are_counted_or_refused(tmp_path):
    rows = walk()
    rows["joy"][4] = np.nan
    pq.write_table(pa.table(rows), tmp_path / "log.parquet")
    plain = answer("log.parquet", *NAMED, "--gamma", 0.5)
    assert plain["rejected_by_reason"] == {"joy is missing or not finite": 1}
    result = run("log.parquet", *NAMED, "--gamma", 0.5, "--on-error", "raise", "--out", "b")
    assert result.exit_code == 2
    assert "log.parquet, row 5: joy = nan" in result.stderr.splitlines()[-1]


def test_the_grid_option_draws_states_of_a_log_as_a_map(tmp_path):
    rng = np.random.default_rng(0)
    rows = {"state": rng.integers(6, size=300), "reward": rng.normal(size=300)}
    pq.write_table(pa.table(rows | {"terminated": np.ones(300, int)}), tmp_path / "log.parquet")
    done("log.parquet", "--gamma", 0.5, "--grid", "2x3", "--out", "a")
    assert "map.png" in files(tmp_path / "a")
    assert refused("log.parquet", "--gamma", 0.5, "--grid", "2x2", "--out", "b") == (
        "--grid = 2x2: has 4 cells for 6 states"
    )


def test_numbers_that_are_only_names_can_be_labels(tmp_path):
    rows = {"state": [7_000_000, 12], "reward": [1.0, 2.0], "terminated": [1, 1]}
    pq.write_table(pa.table(rows), tmp_path / "log.parquet")
    message = refused("log.parquet", "--gamma", 0.5, "--out", "a")
    assert message.startswith(
        "--state = numbers up to 7,000,000: are many more than there are transitions (2 so far); "
    )
    assert message.endswith("use numbers with gaps as labels (--states labels)")
    assert not (tmp_path / "a").exists()
    assert answer("log.parquet", "--gamma", 0.5, "--states", "labels")["state"] == ["12", "7000000"]


def test_a_data_set_of_minari_is_read(tmp_path, monkeypatch):
    minari = pytest.importorskip("minari")
    from gymnasium import spaces
    from minari.data_collector.episode_buffer import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    episode = EpisodeBuffer(
        observations=np.array([0, 1, 2]), actions=np.zeros(2, dtype=np.int64),
        rewards=[1.0, 2.0], terminations=[False, True], truncations=[False, False],
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that no author is named
        minari.create_dataset_from_buffers(
            "test/log-v0", [episode] * 20,
            observation_space=spaces.Discrete(3), action_space=spaces.Discrete(2),
        )  # fmt: skip
    plain = answer("minari:test/log-v0", "--gamma", 0.5)
    assert plain["visits"] == [20, 20, 0]
    assert plain["source"] == "minari:test/log-v0"
    assert refused("minari:test/log-v0", "--gamma", 0.5, "--state", "x").startswith(
        "--state = x: only for logs in tables; minari:test/log-v0 is none"
    )
    assert "is not on this disk" in refused("minari:test/lag-v0", "--gamma", 0.5)


# ---------------------------------------------------------------------- refusals

ENV = (LAKE, "--gamma", 0.9, "--steps", 100)
WRONG = {
    (LAKE,): "--gamma = missing: give the discount per step, such as --gamma 0.99",
    (LAKE, "--gamma", 1.5): "--gamma = 1.5: must lie in [0, 1]",
    ("gymnasium:FrozenLake-v9", "--gamma", 0.9):
        "environment = FrozenLake-v9: unknown to Gymnasium; did you mean FrozenLake-v1, ",
    ("missing.parquet", "--gamma", 0.9): "source = missing.parquet: ",
    (*ENV, "--state", "x"): f"--state = x: only for logs in tables; {LAKE} is none",
    (*ENV, "--on-error", "raise"): f"--on-error = raise: only for logs in tables; {LAKE} is none",
    (*ENV, "--episodes", 3): "steps, episodes = both: give one of them: how long to go on",
    (*ENV, "--option", "size"): "option = size: must be KEY=VALUE",
    (*ENV, "--option", "size=4"): "environment = FrozenLake-v1: cannot be made: ",
    (*ENV, "--policy", "nonsense"):
        "--policy = nonsense: must be random, greedy, MODULE:FUNCTION, FILE.npy or sb3:",
    (*ENV, "--policy", "nowhere:f"): "--policy = nowhere:f: cannot be imported: No module named",
    (*ENV, "--policy", "json:nothing"): "--policy = json:nothing: cannot be imported: ",
    (*ENV, "--policy", "missing.npy"): "--policy = missing.npy: does not exist",
    (*ENV, "--out", "file"): "--out = file: is a file; name a folder",
    (*ENV, "--formats", "gif"): "--formats = gif: must be some of png, svg, pdf, or none",
    (*ENV, "--features", "tiles"): f"--features = tiles: are for observations; {LAKE} has states",
    (*ENV, "--level", 90): "--level = 90.0: must lie between 0 and 1, such as 0.9",
    (*ENV, "--estimand", "mine"): "--estimand = 'mine': must be ",
    (*ENV, "--grid", "4"): "--grid = 4: must be ROWSxCOLUMNS, such as 4x12",
    (*ENV, "--grid", "99999999x99999999"):
        "--grid = 99999999x99999999: can be drawn up to 1,000 on a side and 100,000 cells",
    (*ENV, "--log", "a.txt"): "--log = a.txt: must be the name of a .parquet file",
    (*ENV, "--log", "no/a.parquet"): "--log = no/a.parquet: its folder does not exist",
    ("log.parquet", "--gamma", 0.9, "--check"):
        "--check = given: only for environments; log.parquet is none",
    ("log.parquet", "--gamma", 0.9, "--policy", "greedy"):
        "--policy = greedy: only for environments; log.parquet is none",
    ("log.parquet", "--gamma", 0.9): "--terminated = missing: name the column that says where ",
    ("log.parquet", "--gamma", 0.9, "--reward", "prize", "--terminated", "none"):
        "--reward = prize: log.parquet has no such column; it has state, reward",
    ("log.parquet", "--gamma", 0.9, "--gamma-column", "reward", "--terminated", "none",
     "--log", "copy.parquet"):
        "--gamma = 0.9: is in the data, in the column 'reward'; give one of the two",
    ("text.parquet", "--gamma", 0.9): "source = text.parquet: cannot be read: ",
    (LAKE, "--resume", "missing"): "--resume = missing: does not exist",
    (LAKE, "--resume", "text.parquet"): "--resume = text.parquet: is not a checkpoint of retvar",
}  # fmt: skip


@pytest.mark.parametrize("arguments", WRONG, ids=lambda arguments: " ".join(map(str, arguments)))
def test_bad_input_is_an_error_in_one_line_and_nothing_is_written(tmp_path, arguments):
    (tmp_path / "file").write_text("something")
    (tmp_path / "text.parquet").write_text("hello")
    pq.write_table(pa.table({"state": [0, 1], "reward": [1.0, 2.0]}), tmp_path / "log.parquet")
    before = files(tmp_path)
    message = refused(*arguments)
    assert message.startswith(WRONG[arguments]), message
    assert files(tmp_path) == before


def test_the_remedy_for_endless_logs_is_an_option(tmp_path):
    pq.write_table(pa.table({"state": [0, 1], "reward": [1.0, 2.0]}), tmp_path / "log.parquet")
    message = refused("log.parquet", "--gamma", 0.9)
    assert message.endswith("or say --terminated none where they never do")
    assert answer("log.parquet", "--gamma", 0.9, "--terminated", "none")["transitions"] == 1


@pytest.mark.parametrize(
    "option", [("--gamma", 0.9), ("--bootstrap-samples", 10), ("--method", "vtd")]
)
def test_settings_of_a_saved_estimator_cannot_be_changed(tmp_path, option):
    done(*ENV, "--out", "a")
    message = refused(LAKE, "--resume", "a/estimator.safetensors", *option, "--out", "b")
    assert message == f"{option[0]} = {option[1]}: comes from the saved estimator; leave it out"
    assert not (tmp_path / "b").exists()


def test_another_environment_cannot_be_resumed_on(tmp_path):
    done(*ENV, "--out", "a")
    message = refused(
        "gymnasium:CliffWalking-v1", "--resume", "a/estimator.safetensors", "--out", "b"
    )
    assert message == (
        "--resume = a/estimator.safetensors: was learned on a map of 4 × 4; "
        "gymnasium:CliffWalking-v1 has one of 4 × 12"
    )
    assert not (tmp_path / "b").exists()


def test_resuming_on_another_source_is_noted_on_stderr(tmp_path):
    """Run in a separate process; stdout is still valid JSON."""
    done(*ENV, "--out", "a", "--log", "lake.parquet")
    command = [sys.executable, "-m", "retvar", "estimate", "lake.parquet", "--json"]
    command += ["--formats", "none", "--resume", "a/estimator.safetensors", "--out", "b"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert result.stderr.splitlines() == [
        f"a/estimator.safetensors was learned from {LAKE}; it is resumed with lake.parquet"
    ]
    assert json.loads(result.stdout)["transitions"] == 200


# ---------------------------------------------------------------------- interruptions

BREAKS = """
import pathlib, time
count = 0
calls = pathlib.Path("calls").absolute()
def quick(observation):
    global count
    count += 1
    calls.write_text(str(count))
    if count == 10_000:
        pathlib.Path("ready").touch()
    return count % 4
def policy(observation):
    global count
    count += 1
    if count > 3_000:
        raise RuntimeError("motor 3 does not answer")
    return 1
def slow(observation):
    global count
    count += 1
    calls.write_text(str(count))
    if count == 20:
        pathlib.Path("ready").touch()
    time.sleep(0.01)
    return 1
def stuck(observation):
    global count
    count += 1
    if count > 5_000:
        pathlib.Path("ready").touch()
        time.sleep(60)
    return count % 4
"""


def test_the_estimator_is_saved_after_a_failure(tmp_path):
    (tmp_path / "robot_that_breaks.py").write_text(BREAKS)
    result = run(LAKE, "--gamma", 0.9, "--policy", "robot_that_breaks:policy", "--log", "a.parquet")
    assert result.exit_code == 1
    saved, error = error_lines(result)
    assert saved == "The estimator is saved; continue with --resume estimate/estimator.safetensors"
    assert error == (
        f"Error: {LAKE} failed after 3,000 transitions, which are kept: RuntimeError: motor 3 does "
        "not answer"
    )
    assert "3,000 transitions" in result.stdout
    assert "map.png" in files(tmp_path / "estimate")
    assert rv.load("estimate/estimator.safetensors").steps == 3_000
    assert pq.read_table("a.parquet").num_rows == 3_000


def test_a_failure_while_checking_loses_nothing(tmp_path):
    (tmp_path / "robot_that_breaks_later.py").write_text(BREAKS)
    result = run(
        *(LAKE, "--gamma", 0.9, "--policy", "robot_that_breaks_later:policy"),
        *("--steps", 2_000, "--check"),
    )
    assert result.exit_code == 1
    assert "motor 3" in result.stderr
    assert rv.load("estimate/estimator.safetensors").steps == 2_000


def interrupted(tmp_path, policy, *arguments, number=signal.SIGINT):
    """Run the program, send it a signal while it learns; return the estimator and the output."""
    (tmp_path / "robots.py").write_text(BREAKS)
    arguments = (LAKE, "--gamma", "0.9", "--policy", f"robots:{policy}", "--out", "a", *arguments)
    with subprocess.Popen(
        [sys.executable, "-m", "retvar", "estimate", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
    ) as running:  # fmt: skip
        while not (tmp_path / "ready").exists() and running.poll() is None:
            time.sleep(0.05)
        sent = time.monotonic()
        running.send_signal(number)
        stdout, stderr = running.communicate(timeout=patience(60))
    assert time.monotonic() - sent < patience(10)  # 3 s until it is ended
    assert running.returncode == 128 + number, stderr
    assert "Traceback" not in stderr
    assert stderr.splitlines()[-1] == "Interrupted."
    assert "The estimator is saved; continue with --resume a/estimator.safetensors" in stderr
    there = files(tmp_path / "a")
    if policy == "stuck":  # estimates are written if there is time
        there = sorted({*there, "estimate.nc"})
    assert there == ["estimate.nc", "estimator.safetensors"]
    return rv.load(tmp_path / "a" / "estimator.safetensors"), stdout


def test_ctrl_c_ends_it_soon_and_saves_the_estimator(tmp_path):
    """A billion steps, with a log of those taken."""
    steps = ("--steps", "1000000000", "--log", "log.parquet")
    saved, stdout = interrupted(tmp_path, "quick", *steps)
    assert saved.steps == int((tmp_path / "calls").read_text()) - 1 >= 9_999
    assert f"{saved.steps:,} transitions" in stdout
    assert pq.read_table(tmp_path / "log.parquet").num_rows == saved.steps
    assert not [name for name in files(tmp_path) if name.startswith(".")]


def test_a_slow_robot_can_be_stopped_between_steps(tmp_path):
    """At 100 steps a second a chunk of 4,096 takes 40 s; an unfinished chunk is not lost.

    All steps except the last requested one were made, and all of them are used.
    """
    saved, _ = interrupted(tmp_path, "slow", number=signal.SIGTERM)
    assert saved.steps == int((tmp_path / "calls").read_text()) - 1
    assert 19 <= saved.steps < 1_000


def test_the_estimator_is_saved_when_the_environment_hangs(tmp_path):
    """The environment does not return; the program ends without it."""
    saved, _ = interrupted(tmp_path, "stuck", "--log", "log.parquet")
    assert 4_000 < saved.steps < 5_000
    assert 4_000 < pq.read_table(tmp_path / "log.parquet").num_rows <= 5_000


def chain_log(path, broken=False):
    """300 episodes of 5 steps; with `broken`, the next state of 2 is recorded as 0."""
    rng = np.random.default_rng(1)
    state = np.tile(np.arange(5), 300)
    follows = np.minimum(state + 1, 4)
    columns = {
        "state": state, "next_state": np.where(broken & (state == 2), 0, follows),
        "reward": rng.normal(1.0, 1.0, 1_500), "terminated": state == 4, "p": np.full(1_500, 0.5),
    }  # fmt: skip
    pa.csv.write_csv(pa.table(columns), path)


def test_a_run_that_fails_does_not_replace_an_earlier_estimator(tmp_path):
    """Bad input writes nothing; a later failure writes files named unfinished-…."""
    chain_log(tmp_path / "good.csv")
    chain_log(tmp_path / "broken.csv", broken=True)
    done("good.csv", "--gamma", "0.9", "--out", "a", "--formats", "none")
    before = {name: (tmp_path / "a" / name).read_bytes() for name in files(tmp_path / "a")}
    refused("good.csv", "--gamma", "0.9", "--gamma-column", "p", "--out", "a", "--formats", "none")
    assert files(tmp_path / "a") == sorted(before)
    strict = run(
        "broken.csv", "--gamma", "0.9", "--on-error", "raise", "--out", "a", "--formats", "none"
    )
    assert strict.exit_code == 2
    assert "row 3" in strict.stderr
    assert files(tmp_path / "a") == sorted(
        [*before, "unfinished-estimate.nc", "unfinished-estimator.safetensors"]
    )
    for name, content in before.items():
        assert (tmp_path / "a" / name).read_bytes() == content
    assert rv.load(tmp_path / "a" / "unfinished-estimator.safetensors").steps == 3


def test_transitions_that_do_not_chain_are_counted(tmp_path):
    chain_log(tmp_path / "broken.csv", broken=True)
    output = done("broken.csv", "--gamma", "0.9", "--formats", "none").stdout
    assert "truncated without a flag: 300 × next state is not the state of the next row" in output
    assert answer("broken.csv", "--gamma", "0.9")["unmarked_ends_by_reason"] == {
        "next state is not the state of the next row": 300
    }


def test_cells_without_transitions_are_on_the_map(tmp_path):
    chain_log(tmp_path / "good.csv")
    done("good.csv", "--gamma", "0.9", "--grid", "2x4", "--out", "a")
    assert "map.png" in files(tmp_path / "a")
    with xarray.open_dataset(tmp_path / "a" / "estimate.nc", engine="h5netcdf") as data:
        assert data.sizes["state"] == 8
        assert np.isnan(data["value"].values).sum() == 3


def test_figures_of_an_earlier_run_are_removed(tmp_path):
    chain_log(tmp_path / "good.csv")
    done(LAKE, "--gamma", "0.9", "--steps", "2000", "--out", "a")
    done("good.csv", "--gamma", "0.9", "--out", "a")
    assert "map.png" not in files(tmp_path / "a")
    assert "states.png" in files(tmp_path / "a")


def labelled_log(path, labels, rows=200):
    lines = [f"{labels[k % len(labels)]},{k % 3},1" for k in range(rows)]
    path.write_text("state,reward,terminated\n" + "\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["10", "9", "100", "1"], ["1", "9", "10", "100"]),
        (["ward 10", "home", "ward 9"], ["home", "ward 9", "ward 10"]),
    ],
)
def test_the_table_is_sorted_by_label(tmp_path, labels, expected):
    labelled_log(tmp_path / "log.csv", labels)
    ran = CliRunner().invoke(main, ["estimate", str(tmp_path / "log.csv"), "--gamma", "0.9",
                                    "--formats", "none", "--out", str(tmp_path / "o")])  # fmt: skip
    assert ran.exit_code == 0, ran.output
    table = ran.stdout[ran.stdout.index("state  visits") if "state  visits" in ran.stdout else 0 :]
    lines = [line.strip() for line in table.splitlines()]
    found = [label for line in lines for label in expected if line.startswith(f"{label}  ")]
    assert found == expected


def test_warnings_are_on_one_stream(tmp_path):
    rows = [f"{k % 2},{k % 5},{k % 7},0" for k in range(400)]
    (tmp_path / "log.csv").write_text(
        "patient_id,state,reward,terminated\n" + "\n".join(rows) + "\n"
    )
    ran = CliRunner().invoke(main, ["estimate", str(tmp_path / "log.csv"), "--gamma", "0.9",
                                    "--formats", "none", "--out", str(tmp_path / "o")])  # fmt: skip
    assert "WARNING" in ran.stderr
    assert "WARNING" not in ran.stdout


def test_a_wrong_at_is_refused_before_anything_is_read(tmp_path):
    labelled_log(tmp_path / "log.csv", ["0", "1"])
    ran = CliRunner().invoke(main, ["estimate", str(tmp_path / "log.csv"), "--gamma", "0.9",
                                    "--at", "ward", "--out", str(tmp_path / "o")])  # fmt: skip
    assert ran.exit_code == 2
    assert "--at = ward" in ran.stderr
    assert not (tmp_path / "o").exists()
