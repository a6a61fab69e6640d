"""Notebooks: HTML of every result, figures that show themselves, progress, and the tutorial."""

import base64
import re
from html.parser import HTMLParser
from pathlib import Path

import nbclient
import nbformat
import numpy as np
import pytest

import retvar as rv
from retvar.experience import Experience

ROOT = Path(__file__).parent.parent
VOID = {"br", "hr", "img"}
NAME = "<b>&x;</b>\x1b[31m"


def own_mdp():
    s, t, a, b = (letter + NAME for letter in "stab")
    edges = [(s, a, t, 1.0, 1.0), (t, b, s, 0.5, 2.0), (t, b, "end", 0.5), (s, b, "end")]
    return rv.MDP.from_edges(edges, states=[s, t], actions=[a, b], gamma=0.9, start=s, name=NAME)


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


def test_a_solution_is_shown_as_value_and_std_of_each_state():
    tree = shown(rv.solve(rv.domains.chain(lam=1)))
    assert tree.rows[1] == ["s0", "4.00 ± 2.00", "4.00"]
    higher = shown(rv.solve(rv.domains.chain(lam=1), value=[0, 1, 2, 3], order=4))
    assert len(higher.rows[0]) == len(tree.rows[0]) + 3  # the mean, skewness, kurtosis


def test_an_infinite_variance_is_said_to_be_infinite():
    edges = [("a", "x", "a", 0.5, 1.0), ("a", "x", "end", 0.5), ("a", "y", "end")]
    mdp = rv.MDP.from_edges([*edges, ("b", "x", "end", 1.0, 1.0)], gamma=1.0)
    seldom = {"a": {"x": 0.2, "y": 0.8}, "b": "x"}  # B of a is 0.2·0.5·5² = 2.5
    tree = shown(rv.solve(mdp, {"a": "x", "b": "x"}, seldom, "off_policy_return"))
    assert [row[1:] for row in tree.rows[1:]] == [["1.00 ± ∞", "∞"], ["1.00 ± 0.00", "0"]]
    assert "the variance is infinite in a" in tree.text


def test_every_kind_of_result_shows_itself():
    mdp, own = rv.domains.chain(length=2), rv.Centred(alpha=rv.Decay(0.5), gamma=0.9, lam=0.9)
    points = rv.frontier(mdp, penalties=[0.1])
    runs = rv.simulate(mdp, rv.grid(rv.Direct, rv.VTD, alpha=[0.1, 0.2]), steps=20, runs=4, seed=0,
                       keep="runs", record=rv.Record(at=[20], rmse=True))  # fmt: skip
    things = [
        mdp, mdp.policy(), rv.fixed_point("direct", mdp), own, points, points[0],
        own.online(states=3, bootstrap_samples=5), rv.sweep.compare(runs),
        rv.best_steps(rv.domains.chain(length=1), "direct", steps=5, points=3),
        rv.sweep.Status(cells=30, done=15, failed=1, running=2, damaged=("a<b>",)),
        Experience("by hand", None, width=2, names=["x", "y"], endless=True),
    ]  # fmt: skip
    for thing in things:
        assert shown(thing).texts


def test_an_estimate_is_shown_with_intervals():
    found = rv.estimate(two_states(["rain", "sun"]), gamma=0.9)
    tree = shown(found)
    assert [row[:2] for row in tree.rows[1:]] == [["rain", "30"], ["sun", "30"]]
    assert "60 transitions, 30 episodes" in tree.text


def test_names_that_people_gave_are_escaped():
    mdp = own_mdp()
    policy = next(iter(mdp.policies))
    log = two_states(["s" + NAME, "t" + NAME])
    log.name = log.policy = NAME
    found = rv.estimate(log, gamma=0.9)
    things = [mdp, rv.solve(mdp, policy), rv.fixed_point("direct", mdp, policy), log, found,
              found.at("s" + NAME), rv.frontier(mdp, penalties=[0.1]),
              rv.sweep.Status(cells=1, done=0, failed=0, running=0, damaged=(NAME,))]  # fmt: skip
    for thing in things:
        tree = shown(thing)  # tags of a name would not be among those allowed
        assert "<b>&x;</b>" in tree.text, thing


# ---------------------------------------------------------------------- in a kernel


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The tutorial, run in a kernel with folders of its own."""
    notebook = nbformat.read(ROOT / "docs" / "tutorial.ipynb", as_version=4)
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


def test_the_tutorial_runs_and_every_result_shows_itself(ran):
    for cell in ran.cells:
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
