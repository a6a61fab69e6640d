"""The report: all experiments on one page without external files."""

import fcntl
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from retvar import paper
from retvar.paper import all_experiments
from retvar.paper.declarations import COLUMNS, Cell
from retvar.paper.sentences import SENTENCES
from tests.html_pages import Page, read_offline

DATA = Path(__file__).parent / "data"
PLAIN = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONWARNINGS": "ignore::RuntimeWarning"}
IDS = [experiment.id for experiment in all_experiments()]


def shrunk(out: Path, *arguments: str) -> dict:
    """The JSON output of a very short reproduction of the paper in plain Python, uncompiled."""
    command = [sys.executable, "-m", "retvar", "reproduce", *arguments]
    done = subprocess.run(
        [*command, "--file", str(DATA / "shrunk.py"), "--json", "--out", str(out)],
        env=PLAIN, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="session")
def everything(tmp_path_factory) -> tuple[Path, dict]:
    """Folder and output of `retvar reproduce --runs 2 --json`, run once for all workers."""
    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    saved = root / "everything.json"
    with (root / "everything.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not saved.exists():
            saved.write_text(json.dumps(shrunk(root / "everything", "--runs", "2")))
    return root / "everything", json.loads(saved.read_text())


@pytest.fixture(scope="session")
def page(everything) -> str:
    return (everything[0] / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", IDS)
def test_every_id_has_claims_a_figure_and_a_place_in_the_report(everything, page, name):
    out, found = everything
    experiment = next(e for e in all_experiments() if e.id == name)
    claims = found["experiments"][name]["claims"]
    assert [each["name"] for each in claims] == [claim.name for claim in experiment.claims]
    for each in claims:
        assert isinstance(each["holds"], bool)
        assert each["measured"]
        assert "could not be checked" not in each["measured"]
    if experiment.plot is None:
        assert '<table class="grid table-1">' in page
    else:
        assert (out / "figures" / f"{name}.png").stat().st_size > 5_000
    assert f"retvar reproduce {name} --file shrunk.py --runs 2 --out rerun" in page


def test_the_page_is_well_formed_and_needs_no_network(everything, page):
    read = read_offline(everything[0] / "index.html")
    assert set(read.ids) >= {name.replace("/", "--") for name in IDS}
    assert len(page) < 1_000_000
    assert len(read.images) == sum(e.plot is not None for e in all_experiments())


def test_every_claim_is_linked_with_its_sentence_both_ways(everything):
    """From each claim to a sentence, and from each sentence to just the claims that cite it."""
    read = read_offline(everything[0] / "index.html")
    claims = {
        f"claim-{e.id.replace('/', '--')}-{k}": claim
        for e in all_experiments()
        for k, claim in enumerate(e.claims)
    }
    assert {each for each in read.ids if each.startswith("claim-")} == set(claims)
    cited: dict[str, set[str]] = {}
    for name, claim in claims.items():
        failing = ["#closely"] * ("#closely" in read.inside[name])  # is explained there
        assert read.inside[name] == [f"#sentence-{claim.sentence}", *failing]
        assert not failing or claim.explained
        cited.setdefault(f"sentence-{claim.sentence}", set()).add(f"#{name}")
    there = {each for each in read.ids if each.startswith("sentence-")}
    assert there == set(cited) == {f"sentence-{each}" for each in SENTENCES}
    for name in there:
        assert set(read.inside[name]) == cited[name]


def test_table_1_has_measured_and_published_numbers(everything, page):
    rows = everything[1]["rows"]
    published = next(e for e in all_experiments() if e.id == "table-1").published
    assert [row["experiment"] for row in rows] == list(published)
    for row in rows:
        assert set(row) == {"experiment", *COLUMNS, "stderr", "published"}
        assert list(row["published"].values()) == [float(x) for x in published[row["experiment"]]]
        for column in COLUMNS:
            assert row[column] >= 0
            assert row["stderr"][column] >= 0
    table = page[page.index('<table class="grid table-1">') :]
    table = table[: table.index("</table>")]
    assert table.count("<tbody>") == len(rows)
    assert table.count("<td") == 4 * 4 * len(rows)
    first = table[table.index("<td>") : table.index("</tr>", table.index("<td>"))]
    assert first.startswith("<td>0.00332</td><td>0.00")


def test_one_run_and_fewer_methods_leave_gaps_and_valid_json(tmp_path):
    out = tmp_path / "a"
    arguments = ("--runs", "1", "--methods", "direct,centred", "--formats", "pdf")
    found = shrunk(out, "table-1", "chain-step-size/equal", *arguments)
    assert list(found["experiments"]) == ["chain-step-size/equal", "table-1"]
    assert found["experiments"]["table-1"]["claims"] == []
    for row in found["rows"]:
        assert row["vtd"] is None
        assert row["second_moment"] is None
        assert row["direct"] > 0
        assert row["value"] is not None
        assert row["stderr"] == dict.fromkeys(COLUMNS)
    figures = {p.relative_to(out / "figures").as_posix() for p in (out / "figures").rglob("*.*")}
    assert figures == {"chain-step-size/equal.pdf"}
    read = Page((out / "index.html").read_text(encoding="utf-8"))
    assert len(read.images) == 1  # the page shows figures in any format


def test_z_is_the_difference_over_its_standard_error():
    cell = Cell(measured=0.5, stderr=0.1, printed="0.3", runs=30)
    assert cell.z == pytest.approx(0.2 / math.hypot(0.1, 0.1))
    more = Cell(
        measured=0.5, stderr=0.1, printed="0.3", runs=120
    )  # the published error is twice the measured one
    assert more.z == pytest.approx(0.2 / math.hypot(0.1, 0.2))
    assert math.isnan(Cell(0.5, math.nan, "0.3", 1).z)


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    out = tmp_path_factory.mktemp("own") / "out"
    return out, paper.reproduce([], out, file=DATA / "small.py", formats=["svg", "png"], runs=2)


def test_names_are_escaped(own):
    out, found = own
    page = (out / "index.html").read_text(encoding="utf-8")
    read = Page(page)
    assert "Own <1> & more" in read.texts
    assert any("the variance is <positive>" in text for text in read.texts)
    assert "<positive>" not in page
    assert found["own/1"].drawn.files == {
        "svg": "figures/own/1.svg",
        "png": "figures/own/1.png",
    }
