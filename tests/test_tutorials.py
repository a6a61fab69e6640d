"""The tutorials, read from top to bottom in an empty folder, print what they show."""

import logging

import pytest

from tests.pages import DOCS, run_page

TESTED = ["tutorial-log", "tutorial-mdp"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(logging.getLogger("retvar"), "disabled", True)
    return tmp_path


@pytest.mark.parametrize("name", TESTED)
def test_every_command_and_example_of_a_tutorial_prints_what_the_page_shows(name, folder):
    told = run_page((DOCS / f"{name}.md").read_text(encoding="utf-8"), folder)
    assert not told, told
