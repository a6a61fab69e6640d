"""Collecting a sweep, whole or in part, and what the commands make of it."""

from __future__ import annotations

import json
import shutil

import pytest
from click.testing import CliRunner

from retvar.cli import main
from retvar.sweep import Cut, Domain, Learners, Local, Points, Sweep, run

ONE = Local(threads=1)


def sweep(**changes) -> Sweep:
    """2 methods × 2 steps × 2 λ on 3 domains, a cell for each domain and method."""
    random = {"states": 4, "actions": 2, "branching": 2, "gamma": 0.9}
    settings = {
        "name": "small",
        "runs": 8,
        "steps": 60,
        "record": Points(at=[20, 60]),
        "domains": [Domain(random=random, seeds={"first": 0, "count": 3})],
        "learners": [Learners(method=["direct", "vtd"], alpha=[0.05, 0.2], lam=[0.0, 0.9])],
        "cell": Cut(learners=4, runs=8),
    }
    return Sweep(**{**settings, **changes})


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("made") / "out"
    assert run(sweep(), out, ONE).complete
    return out


@pytest.fixture
def copy(made, tmp_path):
    """The same, to be spoilt."""
    shutil.copytree(made, tmp_path / "copy")
    return tmp_path / "copy"


def command(*arguments):
    return CliRunner().invoke(main, ["sweep", *map(str, arguments)])


def told(*arguments):
    """What a command prints as JSON."""
    found = command(*arguments, "--json")
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


# ---------------------------------------------------------------------- some of the learners


def test_repeated_values_of_a_setting_are_their_union(made):
    both = told("compare", made, "--where", "lam=0", "--where", "lam=0.9")
    assert both["question"]["values"] == ["lam = 0", "lam = 0.9"]
    assert both == told("compare", made) == told("compare", made, "--where", "lam=[0, 0.9]")
    one = told("compare", made, "--where", "lam=0.9", "--where", "alpha=0.2")
    assert one["question"]["values"] == [""]
