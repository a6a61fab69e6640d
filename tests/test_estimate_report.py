"""The report of an estimate: one page about everything, the same from Python and the command."""

import csv

import numpy as np
import pytest
from click.testing import CliRunner

import retvar as rv
from retvar.cli import main
from retvar.estimation.files import write_table
from retvar.web import estimate_report
from tests.html_pages import Page, read_offline

LAKE = "gymnasium:FrozenLake-v1"


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(estimate_report, "today", lambda: "1 May 2030")


def run(*words):
    result = CliRunner().invoke(main, ["estimate", *map(str, words)])
    assert result.exit_code == 0, result.output
    return result


def words_of(folder):
    """The page, and its text without tags."""
    read = read_offline(folder / "index.html")
    return read, " ".join(" ".join(read.texts).split())


def test_save_and_the_command_give_the_same_folder(tmp_path):
    run(LAKE, "--gamma", 0.9, "--steps", 2_000, "--out", "a")
    found = rv.estimate(rv.experience.from_gymnasium("FrozenLake-v1", steps=2_000), gamma=0.9)
    found.save(tmp_path / "b")
    first, second = (sorted(path.name for path in (tmp_path / x).iterdir()) for x in "ab")
    assert first == second
    for name in first:
        if not name.endswith((".nc", ".safetensors", ".html")):  # only one has a command
            one, other = ((tmp_path / x / name).read_bytes() for x in "ab")
            assert one == other, name


def test_the_report_of_a_map_has_everything(tmp_path):
    run(LAKE, "--gamma", 0.9, "--steps", 3_000, "--out", "a", "--check")
    read, text = words_of(tmp_path / "a")
    assert len(read.images) == 4
    places = ["summary", "map", "table", "observed", "calibration", "check", "dropped", "again"]
    assert [each for each in read.ids if each in places] == places
    for part in ("3,000 transitions", "The data's own returns:", "Fresh returns:", rv.__version__):
        assert part in text, part


def test_answers_for_single_states_are_in_the_page_as_on_the_screen(tmp_path):
    words = (LAKE, "--gamma", 0.9, "--steps", 2_000, "--at", 14, "--rollouts", 20, "--out", "a")
    shown = run(*words, "--formats", "none").output.split("at ", 1)[1].split("written")[0]
    read, text = words_of(tmp_path / "a")
    assert " ".join(shown.split()) in text
    assert "roll-outs" in shown
    assert "#asked" in read.links
    run(LAKE, "--gamma", 0.9, "--steps", 2_000, "--out", "b", "--formats", "none")
    assert "Single states" not in words_of(tmp_path / "b")[1]


def test_the_command_in_the_page_makes_it_again(tmp_path):
    run(LAKE, "--gamma", 0.9, "--steps", 500, "--seed", 3, "--option", "is_slippery=false",
        "--level", 0.8, "--out", "a", "--formats", "none")  # fmt: skip
    texts = Page((tmp_path / "a" / "index.html").read_text()).texts
    command = next(each for each in texts if each.startswith("retvar estimate "))
    run(*command.replace("--out a", "--out b").split()[2:])
    table = (tmp_path / "a" / "estimate.csv").read_bytes()
    assert (tmp_path / "b" / "estimate.csv").read_bytes() == table


def test_what_was_dropped_and_warnings_are_in_plain_view(tmp_path):
    rows = ["state,reward,terminated", *["a,1,false", "b,2,true"] * 30, *["a,,false"] * 9]
    (tmp_path / "log.csv").write_text("\n".join(rows) + "\n")
    run("log.csv", "--gamma", 0.9, "--out", "a", "--formats", "none")
    read, text = words_of(tmp_path / "a")
    assert "of 69 rows are left out" in text
    assert read.ids.index("warnings") < read.ids.index("summary")
    assert "left out: 9 × reward is missing or not finite" in text
    assert "retvar estimate log.csv --gamma 0.9" in text


def test_observations_have_a_report_too(tmp_path):
    cart = rv.experience.from_gymnasium("CartPole-v1", steps=1_500, seed=1)
    rv.estimate(cart, gamma=0.9).save(tmp_path / "a")
    _, text = words_of(tmp_path / "a")
    assert "position, velocity, angle, spin" in text
    assert "most visited regions" in text
    assert "Spread from neighbours in other episodes" in text


def test_a_large_table_shows_the_most_visited_and_the_file_has_all(tmp_path):
    n = 100_000
    log = {"state": [0, 1] * 20, "reward": [1.0, 2.0] * 20, "terminated": [False, True] * 20}
    found = rv.estimate(rv.experience.from_table(log), gamma=0.9)
    data = found.data.isel(state=np.arange(n) % 2)
    labels = np.array([str(k) for k in range(n)])
    data = data.assign_coords(state=np.arange(n), label=("state", labels))
    data["value"][7] = 123.25
    page = estimate_report.estimate_page(found, data, {}, files=["estimate.csv"])
    assert len(page) < 250_000
    read = Page(page)
    assert "The 300 most visited of 100,000 states; estimate.csv has all." in " ".join(read.texts)
    path = write_table(data, tmp_path / "estimate.csv")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == n
    assert (rows[7]["state"], rows[7]["value"]) == ("7", "123.25")
