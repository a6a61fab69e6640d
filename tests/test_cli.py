"""The commands `retvar solve` and `retvar draw`, and the command line as a whole."""

import ast
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner
from numpy.testing import assert_allclose

import retvar as rv
from retvar.cli import main
from retvar.cli.base import Commands
from retvar.signals import Interrupted

ROOT = Path(__file__).resolve().parents[1]


def run(*arguments: str):
    return CliRunner().invoke(main, list(arguments))


def answer(*arguments: str) -> dict:
    result = run("solve", *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_json_holds_the_numbers_of_the_paper():
    found = answer("complex-mdp")
    assert found["state"] == ["s0", "s1", "s2", "s3", "s4"]
    assert_allclose(found["value"], [-0.244176, 0.639560, 1.087791, 1.551165, -0.006654], atol=1e-6)
    assert_allclose(
        found["variance"], [0.141518, 1.091959, 0.521739, 0.237610, 0.031015], atol=1e-6
    )
    assert_allclose(np.square(found["std"]), found["variance"])
    assert_allclose(found["second_moment"], np.add(found["variance"], np.square(found["value"])))
    assert 0 < found["spectral_radius"] < 1
    assert found["residual"] < 1e-14


def test_options_reach_the_solver():
    mdp = rv.domains.complex_mdp()
    off = answer(
        *("complex-mdp", "--target", "pi", "--behaviour", "mu"),
        *("--estimand", "off-policy-return", "--lam", "0.5"),
    )
    expected = rv.solve(mdp, "pi", "mu", "off_policy_return", lam=0.5)
    assert_allclose(off["variance"], expected.variance)
    assert_allclose(answer("complex-mdp", "--policy", "pi")["value"], rv.solve(mdp, "pi").value)
    assert_allclose(
        answer("complex-mdp", "--gamma", "0")["value"], rv.solve(mdp.replace(gamma=0)).value
    )
    assert len(answer("chain", "--option", "length=7")["value"]) == 7
    assert (off["target"], off["behaviour"], off["estimand"]) == ("pi", "mu", "off_policy_return")
    assert off["lam"] == [0.5] * 5
    assert answer("complex_mdp", "--estimand", "off_policy_return")["target"] == "mu"


@pytest.mark.parametrize("policy", ["uniform", "greedy"])
@pytest.mark.parametrize("env", ["FrozenLake-v1", "CliffWalking-v1", "Taxi-v4"])
def test_gymnasium_tables_are_solved(env, policy):
    found = answer(f"gymnasium:{env}", "--gamma", "0.99", "--policy", policy)
    assert found["state"] == list(range(len(found["value"])))
    assert np.isfinite(found["variance"]).all()


def test_options_of_an_environment_are_read_as_json_or_text():
    large = answer(
        *("gymnasium:FrozenLake-v1", "--gamma", "0.9", "--policy", "greedy"),
        *("--option", "map_name=8x8", "--option", "is_slippery=false"),
    )
    assert len(large["value"]) == 64
    assert_allclose(large["variance"], 0, atol=1e-12)


def test_files_are_solved(tmp_path):
    path = tmp_path / "walk.toml"
    rv.domains.random_walk(5).to_toml(path)
    assert answer(str(path))["state"] == ["s0", "s1", "s2", "s3", "s4"]


def test_the_output_names_states_and_the_solver():
    result = run("solve", "chain")
    assert result.exit_code == 0
    assert "state  value  variance" in result.stdout
    assert "s0         4   2.99754" in result.stdout
    assert "spectral radius of B: 0 (below 1: the variance is finite)" in result.stdout
    assert "solved by dense LU; residual" in result.stdout


def test_long_tables_are_shortened_in_the_output():
    result = run("solve", "gymnasium:Taxi-v4", "--gamma", "0.9")
    assert "… and 440 more states" in result.stdout
    assert len(result.stdout.splitlines()) < 80


def test_check_compares_with_sampled_returns():
    result = run("solve", "chain", "--check")
    assert "10,000 sampled returns from each state: largest deviation" in result.stdout
    assert len(answer("chain", "--check")["sampled"]["variance_stderr"]) == 4


def test_plots_are_written(tmp_path):
    for name in ("value.png", "value.svg", "value.pdf"):
        assert run("solve", "chain", "--plot", str(tmp_path / name)).exit_code == 0
        assert (tmp_path / name).stat().st_size > 1_000
    assert run("draw", "complex-mdp", str(tmp_path / "mdp.svg")).exit_code == 0
    assert len(list(tmp_path.iterdir())) == 4


def test_a_drawing_of_many_states_says_in_one_line_what_it_leaves_out(tmp_path):
    for length, words in ((3, None), (31, "its arrows have no labels"), (101, "a matrix")):
        result = run("draw", "random-walk", str(tmp_path / "a.svg"), "--option", f"length={length}")
        assert result.exit_code == 0, result.output
        lines = result.stderr.splitlines()
        assert len(lines) == (words is not None)
        assert all(words in line and line.startswith(f"{length} states ") for line in lines)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("solve", "maze"), "domain = maze: unknown; give one of chain, complex-mdp"),
        (("solve", "none.toml"), "file = none.toml: does not exist"),
        (
            ("solve", "chain", "--policy", "greedyy"),
            "--policy = 'greedyy': unknown policy; did you mean greedy? Known are uniform, greedy",
        ),
        (("solve", "chain", "--target", "p"), "--target = 'p': unknown policy"),
        (("solve", "chain", "--behaviour", "p"), "--behaviour = 'p': unknown policy"),
        (("solve", "chain", "--estimand", "p"), "--estimand = 'p': "),
        (("draw", "chain", "chain.png", "--policy", "unifrom"), "--policy = 'unifrom': unknown"),
        (("solve", "chain", "--policy", "p"), "--policy = 'p': unknown policy; known are uniform"),
        (("solve", "complex-mdp", "--policy", "mu", "--target", "pi"), "not both"),
        (("solve", "complex-mdp", "--target", "mu", "--behaviour", "pi"), "must be positive"),
        (("solve", "gymnasium:FrozenLake-v1"), "--gamma = missing: a Gymnasium table has none"),
        (("solve", "gymnasium:CartPole-v1", "--gamma", "1"), "has no transition table"),
        (("solve", "chain", "--gamma", "1.5"), "gamma = 1.5: must lie in [0, 1]"),
        (("solve", "chain", "--lam", "nan"), "lam = nan: must be a finite number"),
        (("solve", "chain", "--option", "length"), "option = length: must be KEY=VALUE"),
        (("solve", "chain", "--option", "width=3"), "option = width: chain does not have it"),
        (("solve", "chain", "--plot", "a.xyz"), "a.xyz"),
        (("solve", "chain", "--plot", "plot"), "plot"),
        (("solve", "chain", "--plot", "/proc/x.png"), "x.png"),
        (("solve", "chain", "--option", "name=x"), "option = name: chain does not have it; it has"),
        (("solve", "random-walk", "--option", "right=x"), "right = x: must be a number"),
        (
            ("solve", "gymnasium:FrozenLake-v1", "--gamma", "1", "--option", "map_name=9x9"),
            "environment = FrozenLake-v1: cannot be made",
        ),
        (
            ("solve", "gymnasium:FrozenLake-v1", "--gamma", "1", "--option", "gamma=.5"),
            "option = gamma",
        ),
        (("solve", "gymnasium:Taxi-v3", "--gamma", "1"), "environment = Taxi-v3: cannot be made"),
        (("solve", "chain", "--order", "5"), "order = 5: must be a whole number from 2 to 4"),
        (("solve", "chain", "--estimand", "both"), "estimand = 'both': must be 'target_return'"),
        (("solve", "complex-mdp", "--gamma", "1"), "never reach a discount below 1"),
    ],
)
def test_bad_input_ends_with_status_2_and_one_line(arguments, text):
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert text in result.stderr
    assert result.stderr.startswith("Error: ")
    assert len(result.stderr.splitlines()) == 1


def test_infinite_variance_is_an_error(tmp_path):
    mdp = rv.MDP.from_edges(
        [(0, 0, 0, 1.0, 1.0), (0, 1, 0, 1.0, 0.0)],
        gamma=0.95,
        policies={"pi": [[0.9, 0.1]], "mu": [[0.5, 0.5]]},
    )
    mdp.to_toml(tmp_path / "wild.toml")
    result = run(
        *("solve", str(tmp_path / "wild.toml"), "--target", "pi", "--behaviour", "mu"),
        *("--estimand", "off-policy-return"),
    )
    assert result.exit_code == 2
    assert "spectral_radius = 1.4801: the variance is infinite" in result.stderr


def test_higher_moments_are_in_the_table_and_in_json(tmp_path):
    found = answer("complex-mdp", "--order", "4", "--check")
    truth = rv.solve(rv.domains.complex_mdp(), order=4)
    for field in ("third_moment", "fourth_moment", "skewness", "kurtosis"):
        assert_allclose(found[field], getattr(truth, field))
        assert len(found["sampled"][f"{field}_stderr"]) == 5
    assert (found["order"], found["note"]) == (4, [""] * 5)
    assert "kurtosis" not in answer("chain", "--order", "3")
    out = run("solve", "complex-mdp", "--order", "4", "--check").stdout
    assert "second moment   skewness   kurtosis" in out
    assert "in the fourth moment (among 20 comparisons)" in out
    picture = tmp_path / "moments.png"
    assert run("solve", "complex-mdp", "--order", "4", "--plot", str(picture)).exit_code == 0
    assert picture.stat().st_size > 1_000


def test_states_with_infinite_variance_are_named(tmp_path):
    edges = [("in", a, "in", 1.0, 1.0 - a) for a in (0, 1)]
    edges += [("out", a, "end", 1.0, 1.0 + a) for a in (0, 1)]
    policies = {"pi": np.tile([0.9, 0.1], (2, 1)), "mu": np.full((2, 2), 0.5)}
    rv.MDP.from_edges(edges, gamma=0.95, policies=policies).to_toml(tmp_path / "wild.toml")
    question = ("--target", "pi", "--behaviour", "mu", "--estimand", "off-policy-return")
    found = answer(str(tmp_path / "wild.toml"), *question)
    assert found["variance"][0] is None
    assert found["variance"][1] > 0
    assert found["note"] == ["the variance is infinite", ""]
    result = run("solve", str(tmp_path / "wild.toml"), *question, "--check")
    assert result.exit_code == 0, result.output
    assert "the variance is infinite in in\n" in result.stdout
    assert "spectral radius of B: 1.4801\n" in result.stdout
    assert "(among 2 comparisons)" in result.stdout


LIGHT = {
    ("--help",): "Usage: ",
    ("--version",): f"retvar {rv.__version__}",
    ("estimate", "--help"): "Usage: ",
    ("solve", "--help"): "Usage: ",
    ("sweep", "run", "--help"): "Usage: ",
    ("reproduce", "--help"): "Usage: ",
    ("lab", "--help"): "Usage: ",
    ("lab", "--port", "70000"): "70000 is not in the range 0<=x<=65535",
    ("draw", "chain"): "Missing argument 'OUT'",
    ("rollouts", "gymnasium:FrozenLake-v1"): "Missing option '--gamma'",
    ("estimate", "gymnasium:FrozenLake-v1"): "Error: --gamma = missing: ",
    ("estimate", "log.csv"): "Error: --gamma = missing: ",
    ("estimate", "log.csv", "--gamma", "0.9", "--steps", "5"): "Error: --steps = 5: only for env",
    ("estimate", "gymnasium:FrozenLake-v1", "--gamma", "0.9", "--policy", "greedyy"): (
        "Error: --policy = greedyy: did you mean greedy? Must be random, greedy, MODULE:FUNCTION"
    ),
    ("estimate", "log.csv", "--gamma", "0.9", "--formats", "gif"): "Error: --formats = gif: ",
    ("rollouts", "gymnasium:FrozenLake-v1", "--gamma", "0.9", "--policy", "rendom"): (
        "Error: --policy = rendom: did you mean random? "
    ),
    ("solve", "gymnasium:FrozenLake-v1"): "Error: --gamma = missing: a Gymnasium table has none",
    ("draw", "gymnasium:FrozenLake-v1", "a.png"): "Error: --gamma = missing: ",
    ("frontier", "gymnasium:FrozenLake-v1"): "Error: --gamma = missing: ",
    ("curve", "gymnasium:FrozenLake-v1", "--alpha", "0.1"): "Error: --gamma = missing: ",
    ("curve", "chain"): "Error: --alpha = missing: ",
}


def test_help_and_missing_options_import_no_heavy_package():
    """They take a few tenths of a second: NumPy alone would take as long again."""
    heavy = "numpy scipy xarray numba matplotlib gymnasium pyarrow pandas rich jinja2 networkx"
    script = (
        "import sys; from retvar.cli import main; from click.testing import CliRunner\n"
        f"for args in {list(LIGHT)!r}:\n"
        "    result = CliRunner().invoke(main, args)\n"
        f"    print(repr((result.output, sorted(set({heavy.split()!r}) & set(sys.modules)))))"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    lines = out.stdout.splitlines()
    assert len(lines) == len(LIGHT)
    for (args, text), line in zip(LIGHT.items(), lines, strict=True):
        output, imported = ast.literal_eval(line)
        assert text in output, args
        assert imported == [], args


def test_the_module_runs_as_a_program():
    out = subprocess.run(
        [sys.executable, "-m", "retvar", "solve", "chain", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(out.stdout)["value"] == [4, 3, 2, 1]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, 0),
        (rv.RetvarError("the source broke off"), 1),
        (rv.InputError("gamma", 2, "must lie in [0, 1]"), 2),
        (click.UsageError("no such option"), 2),
        (Interrupted(signal.SIGINT), 130),
        (Interrupted(signal.SIGTERM), 143),
    ],
)
def test_each_kind_of_end_has_its_exit_status(error, status):
    """Status 3, of a check that disagrees, is tested with `retvar estimate`."""

    @click.command()
    def one():
        if error is not None:
            raise error

    assert CliRunner().invoke(Commands(commands=[one]), ["one"]).exit_code == status


def test_all_exit_statuses_are_documented():
    """In `retvar --help` and in the documents, with every number that `sys.exit` is given."""
    page = (ROOT / "docs" / "cli.md").read_text()
    text = CliRunner().invoke(main, ["--help"]).output
    for status in (0, 1, 2, 3, 130, 143):
        assert f"  {status} " in text
        assert f"| {status} |" in page
    for path in (ROOT / "src" / "retvar" / "cli").glob("*.py"):
        for given in re.findall(r"sys\.exit\((.*)\)", path.read_text()):
            assert given in ("1", "DISAGREES", "error.status") or "BAD_INPUT" in given, path
