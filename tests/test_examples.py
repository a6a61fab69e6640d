"""The examples run, in small versions, and print what they promise."""

import importlib.util
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def run(name, capsys, *arguments):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(*arguments)
    return capsys.readouterr().out


def test_estimates_of_grid_worlds_agree_with_exact_solutions(capsys):
    """In small: 2 walks of 20,000 steps; the figures of the full example are in the docs."""
    output = run("grid_worlds", capsys, 20_000, 2)
    assert output.count("of the 90% intervals hold the truth") == 4
    pairs = re.findall(r"learned (-?[\d.]+), exact (-?[\d.]+)", output)
    for learned, exact in pairs[2:]:  # CliffWalking: within a third
        assert abs(float(learned) / float(exact) - 1) < 1 / 3


def test_the_mountain_car_is_compared_with_fresh_returns(capsys, tmp_path):
    output = run("mountain_car", capsys, 20_000, str(tmp_path / "maps.png"))
    assert "regions" in output.split("value ")[-1]  # the verdicts on fresh returns
    assert re.search(r"^std (agrees|disagrees|too uncertain)", output, re.MULTILINE)
    assert "position, velocity" in output
    assert (tmp_path / "maps.png").stat().st_size > 10_000


def test_truncation_is_not_termination_for_the_cart_pole(capsys):
    output = run("cart_pole", capsys, 20_000)
    right, wrong = (float(x) for x in re.findall(r": (\d+\.\d) \(90%", output))
    assert right > wrong + 3


def test_an_off_policy_log_gives_the_answer_for_the_target(capsys):
    """Within 0.1 in every state: the standard errors are below 0.02 at 50,000 rows."""
    output = run("off_policy_log", capsys, 50_000)
    learned = [float(x) for x in re.findall(r"^ +\d +[\d,]+ +(-?[\d.]+)", output, re.MULTILINE)]
    exact = [float(x) for x in re.search(r"exact value: \[(.*?)\]", output)[1].split()]
    assert len(learned) == len(exact) == 5
    assert max(abs(a - b) for a, b in zip(learned, exact, strict=True)) < 0.1
    assert "effective sample size" in output


def test_a_regressor_takes_part_in_a_stack(capsys):
    output = run("regressor_base", capsys, 6_000)
    assert re.search(r"tiles \d+%, waves \d+%, neighbours \d+%, Trees \(4\) \d+%", output)
    far, near = (float(x) for x in re.findall(r"(-?[\d.]+) ±", output))
    assert near > far + 4


def test_an_interrupted_stream_continues_with_the_same_bits(capsys):
    output = run("robot_stream", capsys, 3_000)
    assert "failed after 3,000 transitions, which are kept" in output
    assert "the same bits as without the break: True" in output


OTHERS = ["online_frozen_lake", "paper_domains", "readings", "risk_control"]


@pytest.mark.parametrize("name", [*OTHERS, "value_error"])
def test_the_other_examples_can_be_imported(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_a_firmer_gain_costs_little_and_varies_less(capsys, tmp_path):
    """Sampled means and spreads are near the exact ones: 2,000 flights, within 6 and 20%."""
    output = run("steady_hand", capsys, 2_000, str(tmp_path / "gains.png"))
    assert "costs 7% more than the best on average, and varies 13% less" in output
    rows = re.findall(r"(-[\d.]+) +([\d.]+) +(-[\d.]+), +([\d.]+) +-[\d.]+$", output, re.MULTILINE)
    assert len(rows) == 5
    for mean, std, sampled, spread in (map(float, row) for row in rows):
        assert abs(sampled - mean) < 6 * std / np.sqrt(2_000)
        assert abs(spread / std - 1) < 0.2
    assert (tmp_path / "gains.png").stat().st_size > 10_000


def test_a_calmer_way_costs_little_and_fails_seldom(capsys, tmp_path):
    output = run("calmer_way", capsys, 2_000, str(tmp_path / "ways.png"))
    assert "costs 9% more than the fastest, and varies 45% less" in output
    wrong = [float(x) for x in re.findall(r"([\d.]+)%$", output, re.MULTILINE)]
    assert len(wrong) == 4
    assert wrong[0] > 5 * wrong[-1]
    assert (tmp_path / "ways.png").stat().st_size > 10_000
