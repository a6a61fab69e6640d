"""Notebooks: HTML of every result, figures that show themselves, progress, and the tutorial."""

import base64
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import matplotlib.figure
import nbclient
import nbformat
import numpy as np
import pytest

import retvar as rv
from retvar import html
from retvar.curves.step_search import BestSteps
from retvar.experience import Experience
from tests.test_hostile_text import NAME, own_mdp, require_plain

ROOT = Path(__file__).parent.parent
VOID = {"br", "hr", "img"}
EVERYTHING = (rv.MDP, rv.Policy, rv.Solution, rv.FixedPoint, rv.Estimate, rv.OnlineEstimator,
              rv.Direct, rv.VTD, rv.Centred, rv.Frontier, rv.FrontierPoint, rv.Check,
              rv.sweep.Status, rv.sweep.Comparison, BestSteps,
              Experience)  # fmt: skip


class Tree(HTMLParser):
    """Checks that tags are closed in order, and keeps tags, texts, and texts of cells by row."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.texts, self.rows, self.inside = [], [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.inside.append((tag, "details" in self.open))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        for name, given in attrs:
            assert name in ("style", "alt", "width", "height", "src"), name
            if name == "style":
                assert not re.search(r"#[0-9a-f]{3}|rgb|background|(?<!-)\bcolor:", given), given

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data

    @property
    def text(self):
        return "\n".join(self.texts)


def shown(thing):
    """The HTML of a result: well-formed, without colours of its own, and no failure."""
    found = thing._repr_html_()
    tree = Tree(found)
    assert "cannot be shown" not in found
    assert set(tree.tags) <= {"div", "strong", "table", "tbody", "tr", "th", "td", "pre", "details",
                              "summary"}  # fmt: skip
    assert " object at 0x" not in repr(thing)
    return tree


def two_states(labels=None, n=2, times=30):
    state = np.tile(np.arange(n), times)
    column = {"state": state, "next_state": np.roll(state, -1), "reward": np.ones(n * times),
              "terminated": state == n - 1}  # fmt: skip
    return Experience("log", lambda counts: iter([column]), states=n, labels=labels)


# ---------------------------------------------------------------------- tables


def test_every_kind_of_result_shows_itself():
    for kind in EVERYTHING:
        assert issubclass(kind, html.Shown), kind
        assert kind.__repr__ is not object.__repr__, kind


def test_a_solution_is_shown_as_value_and_std_of_each_state():
    tree = shown(rv.solve(rv.domains.chain(lam=1)))
    assert tree.rows[0] == ["state", "value ± std", "variance"]
    assert tree.rows[1] == ["s0", "4.00 ± 2.00", "4.00"]
    assert "details" not in tree.tags
    higher = shown(rv.solve(rv.domains.chain(lam=1), value=[0, 1, 2, 3], order=4))
    assert higher.rows[0] == ["state", "value", "mean ± std", "variance", "skewness", "kurtosis"]


def test_an_infinite_variance_is_said_to_be_infinite():
    edges = [("a", "x", "a", 0.5, 1.0), ("a", "x", "end", 0.5), ("a", "y", "end")]
    mdp = rv.MDP.from_edges([*edges, ("b", "x", "end", 1.0, 1.0)], gamma=1.0)
    seldom = {"a": {"x": 0.2, "y": 0.8}, "b": "x"}  # B of a is 0.2·0.5·5² = 2.5
    tree = shown(rv.solve(mdp, {"a": "x", "b": "x"}, seldom, "off_policy_return"))
    assert [row[1:] for row in tree.rows[1:]] == [["1.00 ± ∞", "∞"], ["1.00 ± 0.00", "0"]]
    assert "the variance is infinite in a" in tree.text


@pytest.mark.parametrize(("states", "collapsed", "said"), [
    (20, 0, None), (21, 1, "1 more state"), (200, 180, "180 more states"),
    (100_000, 180, "99,980 more states"),
])  # fmt: skip
def test_more_than_twenty_states_are_collapsed_and_more_than_200_counted(states, collapsed, said):
    for thing in (
        rv.Direct(alpha=0.1, gamma=0.9, lam=0.9).online(states=states),
        rv.Policy(np.ones((states, 1))),
    ):
        tree = shown(thing)
        inside = sum(tag == "td" and hidden for tag, hidden in tree.inside)
        width = len(tree.rows[0])
        assert inside == collapsed * width
        assert sum(tag == "td" for tag in tree.tags) == (min(states, 20) + collapsed) * width
        assert said is None or said in tree.texts
        assert ("… and 99,800 more states" in tree.texts) == (states == 100_000)


def test_the_edges_of_an_mdp_have_a_gamma_where_it_varies():
    assert shown(rv.domains.complex_mdp()).rows[0][-1] == "γ"
    chain = shown(rv.domains.chain())
    assert chain.rows[0][-1] == "reward"
    assert [row[2] for row in chain.rows if row[0] == "s3"] == ["end"]


def test_a_fixed_point_is_compared_with_the_exact_variance():
    mdp = rv.domains.complex_mdp()
    wrong = rv.solve(mdp).value + 0.5
    direct, centred = (rv.fixed_point(m, mdp, value=wrong) for m in ("direct", "centred"))
    assert shown(direct).rows[0] == ["state", "value", "variance", "exact", "bias"]
    assert shown(direct).rows[1][-1] == "0.119"
    assert shown(centred).rows[0][2] == "mean"
    features = np.vander(np.arange(5.0) / 5, 2)
    assert "stable" in repr(rv.fixed_point("direct", mdp, features=features))


def test_learners_estimators_and_points_tell_their_settings():
    own = rv.Centred(alpha=rv.Decay(0.5), gamma=0.9, lam=0.9, value=np.arange(3.0))
    rows = dict(shown(own).rows)
    assert rows["alpha"].startswith("Decay")
    assert rows["value"] == "3 numbers, 0 … 2"
    assert "alpha_bar" not in rows
    tiles = rv.features.TileCoding(low=[0.0], high=[1.0])
    assert dict(shown(own.replace(value=0.0).online(features=tiles)).rows)["features"]
    sampled = own.online(states=3, bootstrap_samples=5)
    assert shown(sampled).rows[0][-2:] == ["value, 90%", "std, 90%"]
    frontier = rv.frontier(rv.domains.chain(), penalties=[0.1])
    assert shown(frontier).rows[1][:3] == ["0.1", "4.000", "2.000"]
    assert dict(shown(frontier[0]).rows)["mean ± std"] == "4.00 ± 2.00"
    best = rv.best_steps(rv.domains.chain(length=1), rv.Direct, steps=5, points=3)
    assert dict(shown(best).rows)["alpha"] == "0.114"


def test_a_policy_with_many_actions_names_the_likeliest():
    many = np.full((1, 30), 0.4 / 29)
    many[0, 7] = 0.6
    assert shown(rv.Policy(many)).rows[1][1].startswith("7 (0.6), ")


def test_an_estimate_is_shown_with_intervals_and_before_its_first_transition():
    found = rv.estimate(two_states(["rain", "sun"]), gamma=0.9)
    tree = shown(found)
    assert tree.rows[0][:6] == ["state", "visits", "value", "90%", "std", "90%"]
    assert [row[:2] for row in tree.rows[1:]] == [["rain", "30"], ["sun", "30"]]
    assert "60 transitions, 30 episodes" in tree.text
    empty = rv.Estimate(two_states(), None, found.monitor, learner=found.description)
    assert "no transition yet" in shown(empty).text
    assert "0 transitions" in repr(empty)


def test_an_estimate_of_observations_is_not_checked_to_be_shown(monkeypatch):
    car = rv.experience.from_gymnasium("MountainCar-v0", steps=2_000, seed=1)
    found = rv.estimate(car, gamma=0.9, by="td")
    monkeypatch.setattr("retvar.estimation.estimate.self_check", None)
    monkeypatch.setattr("retvar.estimation.results._add_observed", None)
    tree = shown(found)
    assert tree.rows[0][0] == "position, velocity"


def test_experience_is_not_read_to_be_shown():
    def never(counts):
        raise AssertionError

    one = Experience("by hand", never, labels=[f"s{k}" for k in range(10**5)], policy="random")
    assert dict(shown(one).rows)["states"] == "100,000 states"
    assert repr(one) == "Experience(by hand, random policy: 100,000 states; 0 transitions read)"
    wide = Experience("by hand", never, width=2, names=["x", "y"], endless=True)
    rows = dict(shown(wide).rows)
    assert rows["transitions in all"] == "goes on for ever"
    assert (rows["states"], rows["numbers"]) == ("observations of 2 numbers", "x, y")


def test_sweeps_tell_how_far_they_are(tmp_path):
    status = rv.sweep.Status(cells=30, done=15, failed=1, running=2, damaged=("a<b>",))
    tree = shown(status)
    assert dict(tree.rows)["missing"] == "14"
    assert "Sweep: 50% done" in tree.text
    learners = rv.grid(rv.Direct, rv.VTD, alpha=[0.1, 0.2])
    runs = rv.simulate(rv.domains.chain(), learners, steps=20, runs=4, seed=0, keep="runs",
                       record=rv.Record(at=[20], rmse=True))  # fmt: skip
    assert "Direct / VTD" in shown(rv.sweep.compare(runs)).text
    own = [rv.sweep.Learners(method="direct", alpha=0.1)]
    chain = [rv.sweep.Domain(id="chain")]
    plan = rv.sweep.Sweep(runs=1, steps=9, domains=chain, learners=own).plan()
    for thing in (rv.sweep.Store.create(tmp_path / "a", plan), rv.sweep.Local(), plan):
        assert " object at 0x" not in repr(thing)


def test_names_that_people_gave_are_escaped():
    mdp = own_mdp("\0!")
    policy = next(iter(mdp.policies))
    log = two_states(["s" + NAME, "t" + NAME])
    log.name = log.policy = NAME
    found = rv.estimate(log, gamma=0.9)
    things = [mdp, rv.solve(mdp, policy), rv.fixed_point("direct", mdp, policy), log, found,
              found.at("s" + NAME), rv.frontier(mdp, penalties=[0.1]),
              rv.sweep.Status(cells=1, done=0, failed=0, running=0, damaged=(NAME,))]  # fmt: skip
    for thing in things:
        tree = shown(thing)  # tags of a name would not be among those allowed
        require_plain(tree.text)
        require_plain(repr(thing))
        assert "<b>&x;</b>" in tree.text, thing


def test_a_name_of_thousands_of_letters_is_cut():
    long = "x" * 5_000
    mdp = rv.MDP.from_edges([(long, "a", "end", 1.0, 1.0)], gamma=0.9)
    assert shown(rv.solve(mdp)).rows[1][0] == "x" * 59 + "…"


def test_what_cannot_be_shown_says_why(monkeypatch):
    risk = rv.Direct(alpha=0.1, gamma=0.9, lam=0.9).online(states=2)
    monkeypatch.setattr(risk, "predict", lambda *_: 1 / 0)
    assert risk._repr_html_() == (
        "<pre>OnlineEstimator cannot be shown now: division by zero</pre>"
    )


# ---------------------------------------------------------------------- figures


def test_every_figure_shows_itself_without_pyplot():
    script = (
        "import sys, retvar as rv; figure = rv.solve(rv.domains.chain()).plot();"
        "assert figure._repr_png_()[0][:4] == b'\\x89PNG';"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    for path in (ROOT / "src" / "retvar" / "plots").glob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "from matplotlib.figure import Figure\n" in text:  # which does not show itself
            assert not re.search(r"(?<!\.)\bFigure\(", text), path


def test_figures_are_figures_that_can_be_saved(tmp_path):
    mdp = rv.domains.chain()
    best = rv.best_steps(rv.domains.chain(length=1), rv.Direct, steps=5, points=3)
    found = rv.estimate(two_states(["rain", "sun"]), gamma=0.9)
    drawn = [rv.plots.draw_mdp(mdp), rv.solve(mdp).plot(), best.plot(), found.plot(),
             rv.frontier(mdp, penalties=[0.1]).plot([0])]  # fmt: skip
    for figure in drawn:
        assert isinstance(figure, matplotlib.figure.Figure)
        png, size = figure._repr_png_()
        width, height = figure.get_size_inches()
        assert size == {"width": round(96 * width), "height": round(96 * height)}
        assert png[16:24] == b"".join(int(160 * x).to_bytes(4, "big") for x in (width, height))
    rv.plots.save(drawn[0], tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"


def test_a_solution_draws_the_states_it_is_asked_for():
    truth = rv.solve(rv.domains.chain())
    ticks = truth.plot(["s2", "s0"]).axes[0].get_xticklabels()
    assert [tick.get_text() for tick in ticks] == ["s2", "s0"]
    with pytest.raises(rv.InputError, match="states = 5: must be a list of states"):
        truth.plot(5)


def test_the_figures_of_an_estimate_are_shown_one_below_the_other():
    data = rv.estimate(two_states(["rain", "sun"], times=200), gamma=0.9).data
    figures = rv.plots.estimate_figures(data)
    tree = Tree(figures._repr_html_())
    assert tree.texts == [name.replace("_", " ") for name in figures]
    assert tree.tags.count("img") == len(figures) > 1


# ---------------------------------------------------------------------- in a kernel

IN_THE_KERNEL = {  # what else is asked of the kernel in which the tutorial ran
    "bar": """
import sys, time
from retvar.progress import Display
progress = Display(sys.stderr, unit="cells").__enter__()  # stays, since nothing ends it
progress.start(4)
for k in range(5):
    time.sleep(0.11)
    progress.advance(k)
progress.note("half <b>done</b>")
""",
    "simulate": """
_ = rv.simulate(machine, learners, steps=50, runs=4, seed=0, progress=True)
""",
    "pyplot": """
import matplotlib.pyplot
exact.plot()
""",
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The tutorial and the cells above, run in one kernel with folders of its own."""
    notebook = nbformat.read(ROOT / "docs" / "tutorial.ipynb", as_version=4)
    notebook.cells += [nbformat.v4.new_code_cell(text) for text in IN_THE_KERNEL.values()]
    folder = tmp_path_factory.mktemp("jupyter")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
            patch.setenv(name, str(folder / name))
        patch.setenv("JUPYTER_PLATFORM_DIRS", "1")
        patch.delenv("MPLBACKEND", raising=False)
        client = nbclient.NotebookClient(
            notebook, timeout=600, startup_timeout=600, kernel_name="python3"
        )
        client.execute()
    return notebook


def outputs(notebook, source):
    """Outputs of the cell with this text."""
    (cell,) = (cell for cell in notebook.cells if source in cell.source)
    return cell.outputs


def test_the_tutorial_is_stored_without_outputs_and_its_cells_are_short():
    notebook = nbformat.read(ROOT / "docs" / "tutorial.ipynb", as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in code)
    assert all(len(cell.source.splitlines()) <= 12 for cell in notebook.cells)


def test_the_tutorial_runs_and_every_result_shows_itself(ran):
    tutorial = ran.cells[: -len(IN_THE_KERNEL)]
    for cell in tutorial:
        for output in cell.get("outputs", []):
            assert output.output_type == "execute_result", output
            kinds = set(output.data)
            assert " object at 0x" not in output.data["text/plain"]
            assert kinds & {"text/html", "image/png"} or cell.source.startswith(("risk.v", "model"))
            assert not {"text/html", "image/png"} <= kinds
            if "text/html" in kinds:
                Tree(output.data["text/html"])
    for source in ("draw_mdp", "truth.plot", "found.plot", "calmer.plot", "learning_curves"):
        (output,) = outputs(ran, source)
        assert base64.b64decode(output.data["image/png"])[:4] == b"\x89PNG"
        assert output.metadata["image/png"]["width"] > 100


def test_what_the_tutorial_learns_is_near_the_exact_answer(ran):
    """Its seed is fixed. 50,000 transitions: errors near 0.1 in a value of 5 and a std of 5."""
    (output,) = outputs(ran, "risk.value()")
    numbers = [float(x) for x in re.findall(r"-?\d+\.\d*(?:e-?\d+)?", output.data["text/plain"])]
    assert len(numbers) == 4
    assert max(map(abs, numbers)) < 0.5
    (output,) = outputs(ran, "inside[")
    share = float(re.search(r"[\d.]+(?=\)?$)", output.data["text/plain"])[0])
    assert share >= 0.8


def test_progress_is_a_bar_in_a_notebook_without_widgets(ran):
    found = outputs(ran, "progress.note")
    assert not [output for output in found if output.output_type == "stream"], found
    html_of = [output.data["text/html"] for output in found if "text/html" in output.data]
    assert any("half &lt;b&gt;done&lt;/b&gt;" in text for text in html_of)
    assert any("100%" in text and "4 of 4 cells" in text for text in html_of)
    simulated = outputs(ran, "progress=True")
    assert not [output for output in simulated if output.output_type == "stream"], simulated
    left = [output.data["text/html"] for output in simulated if "text/html" in output.data]
    assert "" in left  # the bars have vanished
    assert not [text for text in left if "runs" in text]


def test_a_figure_is_shown_once_where_pyplot_is_imported(ran):
    (output,) = outputs(ran, "import matplotlib.pyplot")
    assert "image/png" in output.data
