"""Collecting a sweep, whole or in part, in Python and by commands."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import xarray
from click.testing import CliRunner

from retvar.cli import main
from retvar.sweep import (
    CellSize,
    Domain,
    Learners,
    Local,
    Points,
    Store,
    Sweep,
    collect,
    compare,
    run,
    save,
    status,
)

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
        "learners": [
            Learners(method=method, alpha=[0.05, 0.2], lam=[0.0, 0.9])
            for method in ("direct", "vtd")
        ],
        "cell": CellSize(learners=4, runs=8),
    }
    return Sweep(**{**settings, **changes})


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("made") / "out"
    assert run(sweep(), out, ONE).complete
    return out


@pytest.fixture
def copy(made, tmp_path):
    """A copy, from which cells are removed."""
    shutil.copytree(made, tmp_path / "copy")
    return tmp_path / "copy"


def command(*arguments):
    return CliRunner().invoke(main, ["sweep", *map(str, arguments)])


def json_of(*arguments):
    """The JSON that a command prints."""
    found = command(*arguments, "--json")
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


# ---------------------------------------------------------------------- some of the learners


def test_some_domains_are_those_alone(made):
    names = collect(Store.open(made)).domain.values.tolist()
    some = json_of("compare", made, "--domain", names[2], "--domain", names[0])
    assert some["domain"]["values"] == [names[0], names[2], "all"]
    wanted = compare(collect(Store.open(made)).isel(domain=[0, 2])).data
    np.testing.assert_allclose(some["ratio"]["values"], wanted.ratio.values)
    wrong = command("compare", made, "--domain", "nowhere")
    assert wrong.exit_code == 2
    assert "domain = nowhere: is none of the sweep's: " in wrong.stderr


@pytest.mark.parametrize("at", [-1, 60, -2, 20])
def test_one_moment_is_that_of_the_whole(made, at):
    whole, one = (collect(Store.open(made), at=when) for when in (None, at))
    assert one.sizes["step"] == 1
    chosen = whole.isel(step=[{-1: 1, 60: 1, -2: 0, 20: 0}[at]])
    assert one.identical(chosen)
    only = collect(Store.open(made), at=at, what="value_rmse")
    assert only.identical(chosen.drop_vars("variance_rmse"))
    wanted = compare(whole, at=at, over="runs").data
    found = json_of("compare", made, "--at", at, "--over", "runs")
    np.testing.assert_array_equal(found["ratio"]["values"], wanted.ratio.values)


# ---------------------------------------------------------------------- one digest


def test_all_outputs_of_a_store_have_its_digest(made, tmp_path):
    """The one of `status` is printed by `collect` and saved in its file."""
    expected = status(Store.open(made)).digest
    path = tmp_path / "all.nc"
    assert json_of("collect", made, "--out", path)["digest"] == expected
    assert digest_in(path) == expected
    assert collect(Store.open(made), at=-1).attrs["digest"] == expected


def digest_in(path):
    with xarray.open_dataset(path, engine="h5netcdf") as data:
        return data.attrs.get("digest")


# ---------------------------------------------------------------------- a part


def remove(store, *cells):
    """Remove these cells."""
    for number in cells:
        store.path(store.plan.cells[number]).unlink()


def test_finished_domains_can_be_compared_while_others_are_missing(copy):
    """Of domain 1 one method is missing; the rest is the comparison of domains 0 and 2."""
    whole = collect(Store.open(copy))
    remove(Store.open(copy), 3)
    names = whole.domain.values.tolist()
    assert command("compare", copy).exit_code == 2
    found = command("compare", copy, "--domain", names[0], "--domain", names[2])
    assert found.exit_code == 0, found.output
    assert found.stdout.strip() == compare(whole.isel(domain=[0, 2])).summary().strip()


def test_a_damaged_cell_counts_as_missing_and_a_part_has_no_digest(copy, tmp_path):
    store, target = Store.open(copy), tmp_path / "all.nc"
    path = store.path(store.plan.cells[3])
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2])
    assert command("collect", copy, "--out", target).exit_code == 2
    assert not (target).exists()
    found = command("collect", copy, "--out", target, "--partial")
    assert found.exit_code == 0, found.output
    assert digest_in(target) is None
    part = collect(store, partial=True)
    path.unlink()
    assert part.identical(collect(store, partial=True))
    assert save(store, target, partial=True) is None
    assert "digest" not in collect(store, domains=[store.plan.domains[2].label]).attrs
