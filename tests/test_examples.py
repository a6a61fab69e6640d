"""The examples run as they are written, in small, and tell what they promise."""

import importlib.util
import re
import warnings
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def run(name, capsys, *arguments):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(*arguments)
    return capsys.readouterr().out


def test_grid_worlds_are_learned_as_they_are_solved(capsys):
    """In small: 2 walks of 20,000 steps; the figures of the full example are in the docs."""
    told = run("grid_worlds", capsys, 20_000, 2)
    assert told.count("of the 90% intervals hold the truth") == 4
    pairs = re.findall(r"learned (-?[\d.]+), exact (-?[\d.]+)", told)
    for learned, exact in pairs[2:]:  # CliffWalking: within a third
        assert abs(float(learned) / float(exact) - 1) < 1 / 3


def test_the_mountain_car_is_checked_against_fresh_returns(capsys, tmp_path):
    told = run("mountain_car", capsys, 20_000, str(tmp_path / "maps.png"))
    assert "with fresh Monte Carlo returns in" in told
    assert "position, velocity" in told
    assert (tmp_path / "maps.png").stat().st_size > 10_000


def test_running_out_of_time_is_not_falling(capsys):
    told = run("cart_pole", capsys, 20_000)
    right, wrong = (float(x) for x in re.findall(r": (\d+\.\d) \(90%", told))
    assert right > wrong + 3


def test_an_off_policy_log_gives_the_answer_for_the_target(capsys):
    """Within 0.1 in every state: the standard errors are below 0.02 at 50,000 rows."""
    told = run("off_policy_log", capsys, 50_000)
    learned = [float(x) for x in re.findall(r"^ +\d +[\d,]+ +(-?[\d.]+)", told, re.MULTILINE)]
    exact = [float(x) for x in re.search(r"exact value: \[(.*?)\]", told)[1].split()]
    assert len(learned) == len(exact) == 5
    assert max(abs(a - b) for a, b in zip(learned, exact, strict=True)) < 0.1
    assert "effective sample size" in told


def test_a_broken_off_stream_goes_on_to_the_bit(capsys):
    told = run("robot_stream", capsys, 3_000)
    assert "failed after 3,000 transitions, which are kept" in told
    assert "the same bits as without the break: True" in told


@pytest.mark.parametrize("name", ["online_frozen_lake", "paper_domains", "readings", "value_error"])
def test_the_other_examples_can_be_imported(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
