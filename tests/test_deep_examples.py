"""The examples and the tutorial of deep critics run, in small; so does the critic beside them."""

import importlib.util
import logging
import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.pages import DOCS, run_page

ROOT = Path(__file__).resolve().parent.parent
SMALLER = {
    ".learn(6_000)": ".learn(2_048)",
    "--steps 50000": "--steps 3000 --rollouts 20",
    "--steps 20000": "--steps 3000",
    "walk(50_000": "walk(3_000",
    "members=3)": "members=2, sweeps=2)",
    "walk(25_000": "walk(3_000",
    "episodes=300": "episodes=32",
}


def program(path):
    """A program that is not part of the package, as a module."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_learned_contours_are_drawn_beside_the_exact_ones(capsys, tmp_path):
    """In small: 20,000 steps and 4 sweeps; the error, of fixed seeds, is 0.093 then."""
    program("examples/deep_contours.py").main(20_000, str(tmp_path / "contours.png"), 4)
    assert float(re.search(r"median ([\d.]+)", capsys.readouterr().out)[1]) < 0.2
    assert (tmp_path / "contours.png").stat().st_size > 10_000


def test_every_block_of_the_tutorial_on_a_trained_policy_runs(tmp_path, monkeypatch):
    """Numbers are those of a smaller run: only that each command ends well is looked at."""
    pytest.importorskip("stable_baselines3")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logging.getLogger("retvar"), "disabled", True)
    text = (DOCS / "tutorial-policy.md").read_text(encoding="utf-8")
    for large, small in SMALLER.items():
        assert large in text
        text = text.replace(large, small)
    told = run_page(text, tmp_path, statuses=(0, 3), compare=False)
    assert not told, told
    assert (tmp_path / "critic.safetensors").exists()
    assert (tmp_path / "estimate" / "check.png").exists()
