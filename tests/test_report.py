"""The report: all experiments on one page without external files, and the same as Markdown."""

import dataclasses
import fcntl
import io
import json
import logging
import math
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import retvar as rv
from retvar import report
from retvar.experiments import Claim, Experiment, Finding, Simulation, all_experiments
from retvar.experiments.sentences import SENTENCES
from retvar.networks import NETWORKS
from retvar.progress import Display
from retvar.report import pages
from retvar.report.table1 import COLUMNS, Cell
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
    assert (out / "figures" / f"{name}.png").stat().st_size > 5_000
    assert f"retvar reproduce {name} --file shrunk.py --runs 2 --out rerun" in page
    markdown = (out / "report.md").read_text(encoding="utf-8")
    assert f"![{experiment.title}](figures/{name}.png)" in markdown.replace("\\", "")


def test_the_page_is_well_formed_and_needs_no_network(everything, page):
    read = read_offline(everything[0] / "index.html")
    assert set(read.ids) >= {name.replace("/", "--") for name in IDS}
    assert len(page) < 1_000_000
    assert len(read.images) == len(IDS)


def test_the_page_has_two_themes_and_its_settings_are_collapsed(page):
    assert "prefers-color-scheme: dark" in page
    assert "[data-theme=dark]" in page
    assert 'id="theme"' in page
    simulated = [e for e in all_experiments() if e.simulations]
    assert page.count('<details class="fold"><summary>Settings</summary>') == len(simulated)


def test_methods_have_the_colours_of_the_figures(page):
    from retvar.plots.style import COLOURS

    for method, network in NETWORKS.items():
        assert f"--method-{method}: {COLOURS[network.look.colour]};" in page
        assert f".method.{method} {{" in page


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
        assert read.inside[name] == [f"#sentence-{claim.sentence}"]
        cited.setdefault(f"sentence-{claim.sentence}", set()).add(f"#{name}")
    there = {each for each in read.ids if each.startswith("sentence-")}
    assert there == set(cited)
    for name in there:
        assert set(read.inside[name]) == cited[name]


def test_every_sentence_is_used_and_has_its_place():
    used = {claim.sentence for e in all_experiments() for claim in e.claims}
    assert used == set(SENTENCES)
    for sentence in SENTENCES.values():
        assert sentence.place
        assert sentence.text.endswith((".", "…"))
        assert not sentence.quoted or sentence.place.startswith(("Section", "Caption", "Appendix"))


def test_the_report_names_no_machine_and_no_user(everything, page):
    markdown = (everything[0] / "report.md").read_text(encoding="utf-8")
    for text in (page, markdown):
        assert str(everything[0].parent) not in text
        assert str(Path.home()) + "/" not in text
        assert len(socket.gethostname()) < 6 or socket.gethostname() not in text


def test_html_and_markdown_have_summary_and_settings(everything, page):
    text_of_page = " ".join(Page(page).texts)
    markdown = (everything[0] / "report.md").read_text(encoding="utf-8")
    for text in (text_of_page, markdown.replace("\\", "")):
        for part in (
            "claims hold",
            "The centred estimator",
            "Everything from the first version of the paper",
            "plain Python loop (estimated)",
            "10 µs an update",
            f"retvar {rv.__version__}, Python",
            "seed 0",
            "κ = 1 for the value, κ̄ = 0 for the variance",
            "target pi, behaviour mu",
            "0.5, 0.4, 0.1, 1, 0 (by state)",
            "α = 2⁻¹¹",
            "40 episodes, 2 runs",
            "nobody has matched",
        ):
            assert part in text, part


def test_table_1_has_measured_and_published_numbers(everything, page):
    rows = everything[1]["rows"]
    published = next(e for e in all_experiments() if e.id == "table-1").options["published"]
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
    assert figures == {"table-1.pdf", "chain-step-size/equal.pdf"}
    read = Page((out / "index.html").read_text(encoding="utf-8"))
    assert len(read.images) == 2  # the page shows figures in any format
    assert "[PDF](figures/table-1.pdf)" in (out / "report.md").read_text(encoding="utf-8")


def test_only_one_method_is_enough(tmp_path):
    each = {
        e.plot: e.id for e in all_experiments() if e.simulations
    }  # one experiment for each plot
    found = shrunk(tmp_path / "a", *each.values(), "--runs", "2", "--methods", "centred")
    assert set(found["experiments"]) == set(each.values())
    assert all(row[column] is None for row in found["rows"] for column in COLUMNS[1:])


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
    return out, report.reproduce([], out, file=DATA / "small.py", formats=["svg", "png"], runs=2)


def test_names_are_escaped_in_html_and_markdown(own):
    out, found = own
    page = (out / "index.html").read_text(encoding="utf-8")
    read = Page(page)
    assert "Own <1> & more" in read.texts
    assert any("the variance is <positive>" in text for text in read.texts)
    assert "<positive>" not in page
    markdown = (out / "report.md").read_text(encoding="utf-8")
    assert "## Own \\<1> & more" in markdown
    assert "[SVG](figures/own/1.svg)" in markdown
    assert found["own/1"].drawn.files == {
        "svg": "figures/own/1.svg",
        "png": "figures/own/1.png",
    }


def test_shared_simulations_count_once(own):
    found = own[1]
    assert len(found.unique) == 5
    separately = sum(outcome.seconds for outcome in found.outcomes)
    shared = sum(found["together"].simulated.values())
    assert found.seconds() == pytest.approx(separately - shared)
    assert found.updates() == sum(s.updates for s in found.unique.values())
    assert found.plain_loop() == pytest.approx(found.updates() * 1e-5)


def test_failures_are_reported_with_their_explanation(own, tmp_path):
    _, found = own
    outcome = found["own/1"]
    failed = tuple(
        dataclasses.replace(each, finding=Finding(False, "−1")) for each in outcome.checked
    )
    worse = dataclasses.replace(found, outcomes=(dataclasses.replace(outcome, checked=failed),))
    summary = worse.summary(tmp_path)
    assert "0 of 1 claims hold; 1 does not and is explained." in summary
    assert "✗ own/1: the variance is <positive>: −1 (explained in the report)" in summary
    assert "by &lt;design&gt;" in pages.html_page(worse)
    assert "by \\<design>" in pages.markdown_page(worse)
    assert "by &lt;design&gt;" not in pages.html_page(found)  # no failure to explain


def test_names_of_simulations_cannot_leave_the_folder(tmp_path):
    from retvar.experiments import SimulationCache

    one = Simulation("../../a b", rv.domains.chain(), {"d": rv.Direct(alpha=0.1)}, episodes=1)
    path = SimulationCache(tmp_path).path(one, 0)
    assert path.parent == tmp_path
    assert not path.name.startswith(".")


def test_claims_about_methods_left_out_are_dropped():
    claims = [Claim(m, lambda data: Finding(True, ""), (m,)) for m in ("direct", "vtd")]
    one = Experiment("a", "A", claims=tuple(claims)).restricted(("vtd", "centred"), None)
    assert [claim.name for claim in one.claims] == ["vtd"]


# ---------------------------------------------------------------------- progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_shows_the_current_experiment_and_the_total(terminal, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal() if terminal else io.StringIO()
    with Display(stream, interval=-1) as progress:
        progress.start(30.0)
        progress.start_part("one", 20.0)
        progress.advance(10.0)
        logging.getLogger("retvar").info("compiling")
        logging.getLogger("retvar").info("compiling")
        progress.advance(20.0)
        progress.finish_part("[1/2] one: done")
        progress.start_part("two", 10.0)
        progress.advance(30.0)
        progress.finish_part("[2/2] two: done")
        progress.restore_terminal()
    text = stream.getvalue()
    assert "[1/2] one: done" in text
    assert "[2/2] two: done" in text
    assert text.count("compiling") == 1
    assert ("\x1b[?25h" in text) == terminal
    if terminal:
        assert "total" in text
    else:
        assert "one: 50%, 33% of the total, about " in text
        assert "[2/2] two: done\n" in text  # no time left


def test_names_in_markdown_are_escaped_wherever_they_appear():
    """Titles, sources, files and rows of tables may hold any character."""
    from retvar.report.outcome import Outcome, Reproduction, Request
    from retvar.report.table1 import Row

    experiment = Experiment("a", "A [b](c) &lt; `d`", "**e**", source="f_g_")
    rows = (Row("h|i`j", {"value": Cell(1.0, 0.1, "1.0", 30)}),)
    outcome = Outcome(experiment, rows=rows)
    text = pages.markdown_page(Reproduction((outcome,), Request(file="my_`file`.py")))
    assert "## A \\[b\\](c) \\&lt; \\`d\\`" in text
    assert "`a`, f\\_g\\_. \\*\\*e\\*\\*" in text
    assert "| ``h\\|i`j`` | value |" in text
    assert "declared in my\\_\\`file\\`.py" in text
    assert "``retvar reproduce a --file 'my_`file`.py' --out rerun``" in text
