"""The commands `retvar solve` and `retvar draw`, and the command line as a whole."""

import ast
import json
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
from retvar.support.errors import Interrupted

ROOT = Path(__file__).resolve().parents[1]


def run(*arguments: str):
    return CliRunner().invoke(main, list(arguments))


def answer(*arguments: str) -> dict:
    result = run("solve", *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def commands(context):
    """Every command that is registered, groups and what is in them."""
    for name in context.command.list_commands(context):
        inner = click.Context(context.command.get_command(context, name), context, name)
        yield inner
        if isinstance(inner.command, click.Group):
            yield from commands(inner)


@pytest.mark.parametrize(
    "context", [*commands(click.Context(main, info_name="retvar"))], ids=lambda c: c.command_path
)
def test_every_command_has_help_and_refuses_what_it_does_not_know(context):
    words = context.command_path.split()[1:]
    helped = run(*words, "--help")
    assert helped.exit_code == 0
    assert helped.output.startswith(f"Usage: main {' '.join(words)}")
    for option in context.command.params:
        if isinstance(option, click.Option) and not option.hidden:
            assert option.help, option.name
    assert len(helped.output.splitlines()) <= 100  # two screens
    unknown = run(*words, "--unknown")
    assert unknown.exit_code == 2
    assert unknown.stdout == ""


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


@pytest.mark.parametrize("env", ["FrozenLake-v1", "CliffWalking-v1", "Taxi-v4"])
def test_gymnasium_tables_are_solved(env):
    found = answer(f"gymnasium:{env}", "--gamma", "0.99", "--policy", "greedy")
    assert found["state"] == list(range(len(found["value"])))
    assert np.isfinite(found["variance"]).all()


def test_options_of_an_environment_are_read_as_json_or_text():
    large = answer(
        *("gymnasium:FrozenLake-v1", "--gamma", "0.9", "--policy", "greedy"),
        *("--option", "map_name=8x8", "--option", "is_slippery=false"),
    )
    assert len(large["value"]) == 64
    assert_allclose(large["variance"], 0, atol=1e-12)


def test_plots_are_written(tmp_path):
    for name in ("value.png", "value.svg", "value.pdf"):
        assert run("solve", "chain", "--plot", str(tmp_path / name)).exit_code == 0
        assert (tmp_path / name).stat().st_size > 1_000
    assert run("draw", "complex-mdp", str(tmp_path / "mdp.svg")).exit_code == 0
    assert len(list(tmp_path.iterdir())) == 4


BAD = {
    "domain": ["solve maze"],
    "file": ["solve none.toml"],
    "policy": ["draw chain a.png --policy unifrom", "solve complex-mdp --policy mu --target pi"],
    "target": ["solve chain --policy greedyy", "curve chain --alpha 0.1 --steps 9 --policy p",
               "solve chain --target p"],
    "behaviour": ["solve chain --behaviour p"],
    "estimand": ["solve chain --estimand both"],
    "gamma": ["solve gymnasium:FrozenLake-v1", "solve chain --gamma 1.5",
              "frontier gymnasium:FrozenLake-v1"],
    "lam": ["solve chain --lam nan"],
    "option": ["solve chain --option length", "solve chain --option width=3",
               "solve gymnasium:FrozenLake-v1 --gamma 1 --option gamma=.5"],
    "environment": ["solve gymnasium:CartPole-v1 --gamma 1", "solve gymnasium:Taxi-v3 --gamma 1"],
    "right": ["solve random-walk --option right=x"],
    "order": ["solve chain --order 5"],
    "penalties": ["frontier chain --penalties a"],
    "alpha": ["curve chain", "curve chain --best --steps 9 --alpha 0.1"],
    "steps": ["curve chain --best", "curve chain --alpha 0.1 --rest --steps 9"],
    "best": ["curve chain --rest --best"],
}  # fmt: skip


@pytest.mark.parametrize(("field", "line"), [(f, x) for f, lines in BAD.items() for x in lines])
def test_bad_input_ends_with_status_2_and_one_line_that_names_the_field(field, line):
    result = run(*line.split())
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"Error: {field} = ")
    assert len(result.stderr.splitlines()) == 1


@pytest.fixture
def short(tmp_path):
    """A file whose λ is not 1."""
    mdp = rv.domains.complex_mdp()
    mdp.replace(lam=0.5).to_toml(tmp_path / "short.toml")
    return str(tmp_path / "short.toml")


def test_frontier_says_that_it_means_the_whole_return(short):
    """It gave numbers of λ = 1 under a file that says λ = 0.5, without a word."""
    found = run("frontier", short, "--penalties", "0", "--start", "0")
    assert "λ = 1" in found.stdout.split("penalty")[0]
    point = json.loads(run("frontier", short, "--penalties", "0", "--start", "0", "--json").stdout)
    assert point["lam"] == 1.0
    mdp = rv.MDP.from_toml(short)
    truth = rv.solve(mdp, np.array(point["points"][0]["policy"]), lam=1.0)
    assert_allclose(point["points"][0]["std"], truth.std[0])
    assert_allclose(answer(short, "--lam", "1")["std"], rv.solve(mdp, lam=1.0).std)


def test_a_curve_follows_the_policy_that_is_named():
    """`curve` had no --policy."""
    words = ("curve", "complex-mdp", "--alpha", "0.1", "--steps", "20", "--json")
    named, target = (json.loads(run(*words, o, "pi").stdout) for o in ("--policy", "--target"))
    assert named == target != json.loads(run(*words).stdout)


def test_higher_moments_are_in_the_table_and_in_json():
    found = answer("complex-mdp", "--order", "4")
    truth = rv.solve(rv.domains.complex_mdp(), order=4)
    for field in ("third_moment", "fourth_moment", "skewness", "kurtosis"):
        assert_allclose(found[field], getattr(truth, field))
    assert (found["order"], found["note"]) == (4, [""] * 5)
    assert "kurtosis" not in answer("chain", "--order", "3")


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
    "--help": "Usage: ",
    "--version": f"retvar {rv.__version__}",
    "estimate --help-all": "Usage: ",
    "draw chain": "Missing argument 'OUT'",
    "rollouts gymnasium:FrozenLake-v1": "--gamma",
    "estimate log.csv": "gamma = missing: ",
    "solve gymnasium:FrozenLake-v1": "gamma = missing: ",
    "curve chain": "alpha = missing: ",
}


def test_help_and_missing_options_import_no_heavy_package():
    """They take a few tenths of a second: NumPy alone would take as long again."""
    heavy = "numpy scipy xarray numba matplotlib gymnasium pyarrow pandas rich jinja2 networkx"
    script = (
        "import sys; from retvar.cli import main; from click.testing import CliRunner\n"
        f"for args in {[line.split() for line in LIGHT]!r}:\n"
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
