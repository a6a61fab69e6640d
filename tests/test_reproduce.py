"""The command `retvar reproduce`: saved data, bad input, and interruptions."""

import json
from pathlib import Path

import pytest
import xarray
from click.testing import CliRunner

from retvar.cli import main
from retvar.paper import all_experiments
from retvar.support.cache import contents

DATA = Path(__file__).parent / "data"
SMALL = DATA / "small.py"


def run(*arguments: object):
    return CliRunner().invoke(main, ["reproduce", *map(str, arguments)])


def small(out: Path, *arguments: object):
    return run(*arguments, "--file", SMALL, "--out", out)


def digests(out: Path) -> dict[str, str]:
    found = {}
    for path in sorted((out / "data").glob("*.nc")):
        with xarray.open_dataset(path, engine="h5netcdf") as data:
            found[path.name] = contents(data.load())
            assert data.attrs["contents"] == found[path.name]
    return found


# ---------------------------------------------------------------------- listing and selecting


def test_experiments_are_listed_one_line_each():
    result = CliRunner().invoke(main, ["experiments"])
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [e.id for e in all_experiments()]
    plain = json.loads(CliRunner().invoke(main, ["experiments", "--json"]).stdout)
    assert [each["id"] for each in plain["experiments"]] == [e.id for e in all_experiments()]
    own = CliRunner().invoke(main, ["experiments", "--file", str(SMALL)])
    assert "own/1     Own <1> & more" in own.stdout


def test_a_group_selects_all_its_experiments_and_an_id_only_itself(tmp_path):
    found = json.loads(small(tmp_path / "a", "own", "--json").stdout)
    assert list(found["experiments"]) == [f"own/{n}" for n in range(1, 6)]
    assert list(found) == ["experiments"]
    found = json.loads(small(tmp_path / "a", "nothing", "own/2", "--json").stdout)
    assert list(found["experiments"]) == ["own/2", "nothing"]  # in the order declared
    claim = found["experiments"]["own/2"]["claims"][0]
    assert (claim["name"], claim["holds"]) == ("the variance is <positive>", True)
    assert claim["measured"].startswith("<")


BAD = {
    "chain-adadleta": "id = chain-adadleta: unknown; did you mean chain-adadelta?",
    "--methods direct,vdt": "methods = vdt: ",
    "--formats gif": "formats = ",
    "--file none.py": "file = ",
    "--out /proc/none": "out = ",
    f"--out {DATA}": "out = ",
}


@pytest.mark.parametrize("words", BAD)
def test_bad_input_ends_with_status_2_and_writes_nothing(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(*words.split())
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"Error: {BAD[words]}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n\n1 / 0", "fails in line 3 (ZeroDivisionError"),
        ("def (", "fails in line 1 (SyntaxError"),
        ("EXPERIMENTS = []", "file = "),
        ("EXPERIMENTS = [E('../a', '')]", "id = ../a"),
        ("EXPERIMENTS = [E('a', '', plot='spiral')]", "plot = spiral"),
    ],
)
def test_files_without_valid_experiments_are_refused(text, message, tmp_path):
    file = tmp_path / "mine.py"
    needed = "from retvar.paper import Experiment as E; " if "E(" in text else ""
    file.write_text(needed + text)
    result = run("--file", file, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "out").exists()


# ---------------------------------------------------------------------- saved data


def test_finished_simulations_are_not_computed_again(tmp_path):
    assert "simulated in" in small(tmp_path / "a").stderr
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "a" / "data").iterdir()}
    assert len(before) == 5  # two simulations are shared
    again = small(tmp_path / "a")
    assert again.exit_code == 0, again.output
    assert "simulated in" not in again.stderr
    assert {p: p.stat().st_mtime_ns for p in before} == before
    forced = small(tmp_path / "a", "--force")
    assert "[6/7] together: simulated before" in forced.stderr  # shared within the run
    assert all(p.stat().st_mtime_ns != was for p, was in before.items())


def test_data_depend_on_seed_and_runs_and_not_on_threads(tmp_path):
    first, same, other = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    for out, options in (
        (first, ()),
        (same, ("--threads", 1)),
        (other, ("--seed", 1, "--runs", 3)),
    ):
        assert small(out, "own", *options).exit_code == 0
    assert digests(first) == digests(same)
    assert not set(digests(first)) & set(digests(other))
    assert not set(digests(first).values()) & set(digests(other).values())


def test_a_damaged_file_is_named_and_computed_again_only_with_force(tmp_path):
    out = tmp_path / "a"
    small(out, "own/1", "own/2")
    good = digests(out)
    path, other = sorted((out / "data").iterdir())
    path.write_bytes(other.read_bytes())
    result = small(out, "own/1", "own/2")
    assert result.exit_code == 2
    assert path.name in result.stderr
    assert path.read_bytes() == other.read_bytes()
    assert small(out, "own/1", "own/2", "--force").exit_code == 0
    assert digests(out) == good


def test_two_runs_do_not_share_a_folder(tmp_path):
    from retvar.paper.reproduce import OutputFolder

    with OutputFolder(tmp_path / "a").opened():
        result = small(tmp_path / "a", "nothing")
    assert result.exit_code == 2
    assert "another run is using it" in result.stderr
    assert small(tmp_path / "a", "nothing").exit_code == 0


def test_a_plot_that_fails_does_not_stop_other_experiments(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from retvar.paper import *\n"
        "def plot(data): raise KeyError('axis')\n"
        "def check(data): return 1 / 0\n"
        "EXPERIMENTS = [Experiment('bad', 'Bad', plot=plot, claims=(Claim('x', check, ()),)),\n"
        "               Experiment('good', 'Good')]\n"
    )
    result = run("--file", file, "--out", tmp_path / "a", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)["experiments"]
    assert found["bad"]["claims"][0]["measured"].startswith("could not be checked (ZeroDivision")
    assert "good" in found
    assert "could not be drawn" in (tmp_path / "a" / "index.html").read_text()
