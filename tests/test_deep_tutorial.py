"""The tutorial on trained policies runs from top to bottom, in small."""

import logging

import pytest

pytest.importorskip("torch")
pytest.importorskip("stable_baselines3")

from tests.pages import DOCS, run_page

SMALLER = {
    ".learn(6_000)": ".learn(2_048)",
    "--steps 50000 --members 3": "--steps 3000 --members 2 --sweeps 2 --rollouts 20",
    "--steps 20000 --members 2 --sweeps 25": "--steps 3000 --members 2 --sweeps 2",
    "walk(50_000": "walk(3_000",
    "members=3)": "members=2, sweeps=2)",
    "walk(25_000": "walk(3_000",
    "episodes=300": "episodes=32",
}


@pytest.fixture
def _quiet(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logging.getLogger("retvar"), "disabled", True)


@pytest.mark.usefixtures("_quiet")
def test_every_block_of_the_tutorial_on_a_trained_policy_runs(tmp_path):
    """Numbers are those of a smaller run: only that each command ends well is looked at."""
    text = (DOCS / "tutorial-policy.md").read_text(encoding="utf-8")
    for large, small in SMALLER.items():
        assert large in text
        text = text.replace(large, small)
    told = run_page(text, tmp_path, statuses=(0, 3), compare=False)
    assert not told, told
    assert (tmp_path / "critic.safetensors").exists()
    assert (tmp_path / "estimate" / "check.png").exists()
