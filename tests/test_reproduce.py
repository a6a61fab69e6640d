"""The command `retvar reproduce`: saved data, bad input, and interruptions."""

import base64
import errno
import io
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import xarray
from click.testing import CliRunner
from PIL import Image

import retvar as rv
from retvar import files
from retvar.cli import main
from retvar.experiments import all_experiments
from retvar.experiments.results import contents
from retvar.report import figures
from retvar.report.ahead import Ahead
from tests.oracle import fresh_seed
from tests.patience import patience

DATA = Path(__file__).parent / "data"
SMALL, SHRUNK = DATA / "small.py", DATA / "shrunk.py"
LONG = {**os.environ, "RETVAR_TEST_LENGTH": "400000"}


def run(*arguments: object):
    return CliRunner().invoke(main, ["reproduce", *map(str, arguments)])


def small(out: Path, *arguments: object):
    return run(*arguments, "--file", SMALL, "--out", out)


def program(*arguments: object, **options):
    command = [sys.executable, "-m", "retvar", "reproduce", *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def digests(out: Path) -> dict[str, str]:
    found = {}
    for path in sorted((out / "data").glob("*.nc")):
        with xarray.open_dataset(path, engine="h5netcdf") as data:
            found[path.name] = contents(data.load())
            assert data.attrs["contents"] == found[path.name]
    return found


def leftovers(out: Path) -> list[Path]:
    return [path for path in out.rglob(".*") if path.is_file()]


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


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("chain-adadleta",), "id = chain-adadleta: unknown; did you mean chain-adadelta?"),
        (("complex-trace",), "id = complex-trace: unknown; did you mean complex-traces"),
        (("zzz",), "id = zzz: unknown; there are networks, chain-mdp"),
        (("--methods", "direct,vdt"), "methods = vdt: unknown; give some of direct, vtd, centred"),
        (("--methods", ","), "methods = none"),
        (("--formats", "gif"), "formats = gif: must be some of png, svg, pdf"),
        (("--formats", ""), "formats = none"),
        (("--file", "none.py"), "file = none.py: does not exist"),
        (("--out", __file__), "is a file; name a folder"),
        (("--out", str(DATA)), "holds other files ("),
        (("--out", "/proc/none"), "out = /proc/none: cannot be written: "),
    ],
)
def test_bad_input_ends_with_status_2_and_one_line(arguments, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert text in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", [("--runs", "0"), ("--seed", "-1"), ("--threads", "0")])
def test_numbers_out_of_range_are_refused(option, tmp_path):
    assert run(*option, "--out", tmp_path / "a").exit_code == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n\n1 / 0", "fails in line 3 (ZeroDivisionError: division by zero)"),
        ("def (", "fails in line 1 (SyntaxError"),
        ("EXPERIMENTS = []", "must have EXPERIMENTS = [Experiment(…), …]"),
        ("EXPERIMENTS = [1]", "EXPERIMENTS holds 1, which is not an Experiment"),
        ("EXPERIMENTS = [E('../a', '')]", "id = ../a: must be words"),
        ("EXPERIMENTS = [E('a', '')] * 2", "id = a: is declared twice"),
        (
            "EXPERIMENTS = [E('a', '', plot='spiral')]",
            "plot = spiral: is not a function of retvar.plots",
        ),
    ],
)
def test_files_without_valid_experiments_are_refused(text, message, tmp_path):
    file = tmp_path / "mine.py"
    needed = "from retvar.experiments import Experiment as E; " if "E(" in text else ""
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


def test_data_files_hold_no_run_times(tmp_path):
    small(tmp_path / "a", "own/1")
    small(tmp_path / "b", "own/1")
    (one,), (two,) = ((tmp_path / x / "data").iterdir() for x in "ab")
    assert one.read_bytes() == two.read_bytes()
    times = json.loads((tmp_path / "a" / "times.json").read_text())
    assert times[one.name] > 0
    (tmp_path / "a" / "times.json").write_text("{")  # a damaged file loses only times
    assert small(tmp_path / "a", "own/1").exit_code == 0


@pytest.mark.parametrize("damage", ["cut", "changed", "foreign", "empty"])
def test_a_damaged_file_is_named_and_computed_again_only_with_force(tmp_path, damage):
    out = tmp_path / "a"
    small(out, "own/1", "own/2")
    good = digests(out)
    path, other = sorted((out / "data").iterdir())
    raw = path.read_bytes()
    path.write_bytes(
        {
            "cut": raw[: len(raw) // 2],
            "changed": raw.replace(raw[-800:-792], b"12345678"),
            "foreign": other.read_bytes(),
            "empty": b"",
        }[damage]
    )
    spoilt = path.read_bytes()
    assert spoilt != raw
    result = small(out, "own/1", "own/2")
    assert result.exit_code == 2
    assert path.name in result.stderr
    assert "compute it again with --force" in result.stderr
    assert path.read_bytes() == spoilt
    assert small(out, "own/1", "own/2", "--force").exit_code == 0
    assert digests(out) == good


def test_a_folder_with_other_files_is_refused_and_not_changed(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    (tmp_path / "retvar-reproduction.json").write_text("{}")
    result = small(tmp_path)
    assert result.exit_code == 2
    assert f"out = {tmp_path}: holds other files" in result.stderr
    assert (tmp_path / "thesis.tex").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 2


def test_only_temporary_files_of_a_killed_run_are_removed(tmp_path):
    out = tmp_path / "a"
    small(out, "nothing")
    owner = f"{files._host()}.999999999.01234567"  # host, process and a random number
    stale = [out / "data" / f".own-1-0123456789abcdef-{owner}.nc", out / f".index-{owner}.html"]
    other = out / ".gitignore"
    for path in (*stale, other):
        path.write_text("x")
    assert small(out, "nothing").exit_code == 0
    assert not any(path.exists() for path in stale)
    assert other.exists()


def test_two_runs_do_not_share_a_folder(tmp_path):
    from retvar.report.output_folder import OutputFolder

    with OutputFolder(tmp_path / "a").opened():
        result = small(tmp_path / "a", "nothing")
    assert result.exit_code == 2
    assert "another run is using it" in result.stderr
    assert small(tmp_path / "a", "nothing").exit_code == 0


def test_a_full_disk_loses_no_finished_simulation(tmp_path, monkeypatch):
    out, written, sync = tmp_path / "a", [], os.fsync

    def full(handle):
        if os.readlink(f"/proc/self/fd/{handle}").endswith(".nc"):
            written.append(handle)
            if len(written) == 3:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        result = small(out)
    assert result.exit_code == 1
    assert "cannot be written: No space left on device" in result.stderr
    assert "Written before: " in result.stderr
    assert "Traceback" not in result.stderr
    assert len(digests(out)) == 2
    assert not leftovers(out)
    again = small(out)
    assert again.exit_code == 0
    assert again.stderr.count("simulated in") == 3


def test_a_plot_that_fails_does_not_stop_other_experiments(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from retvar.experiments import *\n"
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


# ---------------------------------------------------------------------- simulations in a thread


class Recorder:
    """Stands for simulations, which are their own names here; what is computed is recorded."""

    def __init__(self, *, fails: str = "", stays: str = "") -> None:
        self.fails, self.stays = fails, stays
        self.computed: list[str] = []
        self.saved: list[str] = []
        self.threads: set[int] = set()
        self.stopped: list[str] = []

    def compute(self, name, report):
        self.computed.append(name)
        if name == self.fails:
            raise OSError(name)
        try:
            while name == self.stays:
                report(0.5)
                time.sleep(0.001)
        except BaseException:
            self.stopped.append(name)
            raise
        return xarray.Dataset({"x": ("i", np.zeros(125))})  # 1,000 bytes

    def save(self, name, data, seconds):
        assert seconds >= 0
        self.saved.append(name)
        self.threads.add(threading.get_ident())
        return data.assign_attrs(name=name)


def ahead_of(recorder: Recorder, names: str) -> Ahead:
    found = Ahead(recorder.compute, recorder.save)
    for name in names:
        found.submit(name, name)
    return found


def test_results_are_saved_once_by_the_caller_in_the_order_of_the_simulations():
    recorder = Recorder()
    with ahead_of(recorder, "abc") as ahead:
        assert ahead.result("c", last=False).attrs["name"] == "c"
        assert ahead.result("c").attrs["name"] == "c"
        assert "c" not in ahead
        assert ahead.result("a").attrs["name"] == "a"
        assert "b" in ahead
    assert recorder.saved == recorder.computed == list("abc")
    assert recorder.threads == {threading.get_ident()}


def test_an_error_is_raised_where_its_result_is_wanted_and_nothing_is_computed_after_it():
    recorder = Recorder(fails="b")
    with ahead_of(recorder, "abc") as ahead:
        assert ahead.result("a") is not None
        time.sleep(0.01)
        ahead.save_finished()
        with pytest.raises(OSError, match="b"):
            ahead.result("b")
    assert recorder.computed == ["a", "b"]
    assert recorder.saved == ["a"]


def test_what_runs_is_stopped_and_what_waits_is_dropped_on_leaving():
    recorder = Recorder(stays="b")

    def interrupt(share: float) -> None:
        assert share in (0.0, 0.5)
        raise KeyboardInterrupt

    with ahead_of(recorder, "abc") as ahead:
        ahead.result("a")
        with pytest.raises(KeyboardInterrupt):
            ahead.result("b", interrupt)
    assert recorder.stopped == ["b"]
    assert recorder.computed == ["a", "b"]
    assert recorder.saved == ["a"]


def test_results_beyond_the_memory_allowed_are_saved_and_not_kept(monkeypatch):
    monkeypatch.setattr("retvar.report.ahead.HELD", 2_500)
    monkeypatch.setattr("retvar.report.ahead.PAUSE", 0.001)
    recorder = Recorder()
    with ahead_of(recorder, "abcdef") as ahead:
        deadline = time.monotonic() + 60
        while len(recorder.computed) < 3 and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.05)
        assert recorder.computed == list("abc")  # the others wait until these are saved
        assert ahead.result("f") is None
        assert [ahead.result(name) is None for name in "abcde"] == [False] * 2 + [True] * 3
    assert recorder.saved == list("abcdef")


def test_the_embedded_figure_shows_what_the_file_shows(tmp_path):
    drawn = figures.write(rv.plots.draw_mdp(rv.domains.chain()), tmp_path, "chain", ["png"])
    head, _, body = drawn.uri.partition(";base64,")
    assert head == "data:image/webp"
    with Image.open(io.BytesIO(base64.b64decode(body))) as embedded:
        small = embedded.convert("L")
    with Image.open(tmp_path / "figures" / "chain.png") as file:
        other = file.convert("L").resize(small.size)
    one, two = (np.asarray(each, dtype=float) for each in (small, other))
    assert np.abs(one - two).mean() < 3  # of 255
    assert np.abs(one - two[::-1]).mean() > 10


# ---------------------------------------------------------------------- interruptions


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_ends_soon_and_can_be_continued(tmp_path, number, status):
    out = tmp_path / "a"
    with program("--file", SMALL, "--out", out, env=LONG) as running:
        first = next(line for line in running.stderr if line.startswith("[1/7]"))
        time.sleep(random.Random(fresh_seed()).uniform(0, 1))
        sent = time.monotonic()
        running.send_signal(number)
        stdout, rest = running.communicate(timeout=patience(60))
    assert time.monotonic() - sent < patience(5)
    assert running.returncode == status, rest
    assert "Traceback" not in rest + first
    assert rest.splitlines()[-1] == "Interrupted."
    assert "run the same command to continue" in rest
    assert stdout == ""
    assert not leftovers(out)
    done = digests(out)
    assert 1 <= len(done) <= 5
    with program("--file", SMALL, "--out", out, env=LONG) as running:
        _, output = running.communicate(timeout=patience(120))
    assert running.returncode == 0
    assert "[1/7] own/1: simulated before" in output
    assert done.items() <= digests(out).items()


# ---------------------------------------------------------------------- progress


def test_piped_progress_is_plain_lines_and_stdout_is_json_alone(tmp_path):
    with program("--file", SMALL, "--out", tmp_path / "a", "--json") as running:
        out, progress = running.communicate(timeout=patience(120))
    assert list(json.loads(out)["experiments"])[-1] == "nothing"
    assert "\x1b" not in progress
    lines = [line for line in progress.splitlines() if line.startswith("[")]
    assert lines[-1] == "[7/7] nothing: nothing to draw"
    assert len(lines) == 7
    assert "s left" in lines[0]
