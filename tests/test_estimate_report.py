"""The report of an estimate: one page about everything, the same from Python and the command."""

import csv
import datetime
import os
import re

import numpy as np
import pytest
import xarray
from click.testing import CliRunner

import retvar as rv
from retvar.cli import main
from retvar.experience.recipes import Call, to_command, to_python
from retvar.web import estimate_report, rendering
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
        if not name.endswith((".nc", ".safetensors")):
            one, other = ((tmp_path / x / name).read_bytes() for x in "ab")
            assert one == other, name


def test_the_report_of_a_map_has_everything(tmp_path):
    run(LAKE, "--gamma", 0.9, "--steps", 3_000, "--out", "a", "--check")
    read, text = words_of(tmp_path / "a")
    assert len(read.images) == 4
    places = ["summary", "map", "table", "observed", "calibration", "check", "dropped", "again"]
    assert [each for each in read.ids if each in places] == places
    for part in (
        "FrozenLake-v1: value and spread of the return",
        "3,000 transitions",
        "The data's own returns:",
        "Fresh returns:",
        "states without a visit, and so without an estimate",
        "retvar estimate gymnasium:FrozenLake-v1 --steps 3000 --gamma 0.9 --check",
        f"retvar {rv.__version__}, Python",
        "estimated by least_squares",
    ):
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


def test_the_command_and_the_python_in_the_page_make_it_again(tmp_path):
    run(LAKE, "--gamma", 0.9, "--steps", 500, "--seed", 3, "--option", "is_slippery=false",
        "--level", 0.8, "--out", "a", "--formats", "none")  # fmt: skip
    texts = Page((tmp_path / "a" / "index.html").read_text()).texts
    command = next(each for each in texts if each.startswith("retvar estimate "))
    program = next(each for each in texts if each.startswith("import retvar as rv"))
    result = CliRunner().invoke(main, [*command.split()[1:], "--out", "b", "--formats", "none"])
    assert result.exit_code == 0, result.output
    exec(program.replace('found.save("estimate")', "found.save('c')"), {})
    table = (tmp_path / "a" / "estimate.csv").read_bytes()
    assert (tmp_path / "b" / "estimate.csv").read_bytes() == table
    assert (tmp_path / "c" / "estimate.csv").read_bytes() == table


def test_what_was_dropped_and_warnings_are_in_plain_view(tmp_path):
    rows = ["state,reward,terminated", *["a,1,false", "b,2,true"] * 30, *["a,,false"] * 9]
    (tmp_path / "log.csv").write_text("\n".join(rows) + "\n")
    run("log.csv", "--gamma", 0.9, "--out", "a", "--formats", "none")
    read, text = words_of(tmp_path / "a")
    assert "of 69 rows are left out" in text
    assert read.ids.index("warnings") < read.ids.index("summary")
    assert "left out: reward is missing or not finite 9" in text
    assert "retvar estimate log.csv --gamma 0.9" in text


def test_nothing_left_out_is_said(tmp_path):
    log = {"state": [0, 1] * 20, "reward": [1.0, 2.0] * 20, "terminated": [False, True] * 20}
    rv.estimate(rv.experience.from_table(log), gamma=0.9).save(tmp_path / "a")
    _, text = words_of(tmp_path / "a")
    assert "Nothing: every row was read, and every transition was used." in text
    assert "# log: an object of your own program" in text
    assert "retvar estimate " not in text.partition("Make it again")[2].partition("Made by")[0]


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
    from retvar.estimation.folder import write_table

    path = write_table(data, tmp_path / "estimate.csv")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == n
    assert (rows[7]["state"], rows[7]["value"]) == ("7", "123.25")


def test_no_label_in_the_csv_file_is_a_formula_or_has_control_characters(tmp_path):
    from retvar.estimation.folder import write_table

    labels = {
        "=cmd|'/c calc'!A1": "'=cmd|'/c calc'!A1", "+a": "'+a", "-a": "'-a", "@a": "'@a",
        "\t=a": "'\\t=a", "\r=a": "'\\r=a", "a\x1b[31m\n\r": "a\\x1b[31m\\n\\r",
        "-3": "-3", "+1.5e3": "+1.5e3", "a=b": "a=b", "": "", "a, b": "a, b",
    }  # fmt: skip
    data = xarray.Dataset(
        {"value": ("state", -np.arange(len(labels), dtype=float))},
        {"label": ("state", np.array(list(labels), dtype=object))},
    )
    path = write_table(data, tmp_path / "estimate.csv")
    assert {c for c in path.read_text() if c < " "} == {"\n"}
    with path.open(newline="") as file:
        _, *rows = csv.reader(file)
    assert [row[0] for row in rows] == list(labels.values())
    assert [float(row[1]) for row in rows] == data["value"].values.tolist()


def test_the_names_of_observations_in_the_csv_file_are_no_formulas(tmp_path):
    from retvar.estimation.folder import write_table

    names = {"axis": ("axis", ["=x", "speed"])}
    data = xarray.Dataset({"centre": (("region", "axis"), np.zeros((1, 2)))}, names)
    assert write_table(data, tmp_path / "a.csv").read_text().splitlines()[0] == "'=x,speed"


def test_an_earlier_page_is_replaced_in_one_step(tmp_path, monkeypatch):
    found = rv.estimate(rv.experience.from_gymnasium("FrozenLake-v1", steps=300), gamma=0.9)
    (tmp_path / "index.html").write_text("before")

    def fail(*_args, **_options):
        raise OSError("full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(rv.InputError, match="full"):
        estimate_report.write_page(tmp_path, found, found.data, {})
    assert (tmp_path / "index.html").read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["index.html"]


@pytest.mark.parametrize(
    ("function", "source", "given", "settings", "command"),
    [
        ("from_gymnasium", "ALE/Pong-v5", {"steps": 10}, {"gamma": 0.9}, "gymnasium:ALE/Pong-v5"),
        ("from_minari", "D4RL/door/human-v2", {}, {"gamma": 0.9}, "minari:D4RL/door/human-v2"),
        ("from_table", "/data/me/a b.csv", {"gamma": "g"}, {}, "'a b.csv' --gamma-column g"),
        ("from_table", ["a.csv", "b.csv"], {}, {"gamma": 0.9}, None),
        ("from_gymnasium", "A-v1", {"steps": 9, "seed": 1}, {"gamma": 0.9}, None),
        ("from_gymnasium", "A-v1", {"steps": 9, "policy": len}, {"gamma": 0.9}, None),
        ("from_gymnasium", "A-v1", {"steps": 9, "deterministic": False}, {}, "--steps 9 --sto"),
        ("from_table", "a.csv", {"state": ["x", "y"]}, {"gamma": 0.9}, "a.csv --state x,y"),
        ("from_table", "a.csv", {}, {"gamma": 0.9, "batches": 20}, None),
        ("from_table", "a.csv", {}, {"hidden": (64, 32)}, "a.csv --hidden 64,32"),
        ("from_table", "a.csv", {"terminated": False}, {"gamma": 0.9}, "--terminated none"),
    ],
)  # fmt: skip
def test_a_command_is_given_where_it_can_say_the_same(function, source, given, settings, command):
    call = Call.of(function, source, given)
    made = to_command(call, settings)
    assert made is None if command is None else command in made
    program = to_python(call, settings, function="rv.estimate")
    compile(program, "program", "exec")
    assert "/data" not in program


def test_the_security_policy_names_just_this_style_and_this_script():
    page = estimate_report.environment().get_template("base.html").render()
    import base64
    import hashlib

    for tag in ("style", "script"):
        (inside,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"sha256-{digest}" in page.replace("&#43;", "+")


def test_anchors_differ_and_hold_no_odd_character():
    names = ["a/b", "a--c", "a b", "a<b>", "a-20-b"]
    made = [rendering.anchor(name) for name in names]
    assert all(re.fullmatch(r"[\w.-]+", each) for each in made)


def test_the_date_is_that_of_today():
    assert str(datetime.datetime.now(datetime.UTC).year) in rendering.today()
