"""Sweeps: the store holds the right numbers, each computed once, whatever happens to workers."""

import json
import os
import random
import signal
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import xarray
from click.testing import CliRunner

import retvar as rv
from retvar.cli import main
from retvar.support.errors import InputError
from retvar.support.progress import Progress
from retvar.sweep import (
    CellSize,
    Dask,
    Domain,
    Learners,
    Local,
    Points,
    Range,
    Store,
    Sweep,
    collect,
    compare,
    run,
    status,
)
from retvar.sweep.plan import Plan
from retvar.td.step_sizes import Adadelta, Averaged, Decay
from tests.oracle import fresh_seed
from tests.sweeping import process, small

ONE = Local(threads=1)


class Notes(Progress):
    """Collects notes."""

    def __init__(self):
        self.lines = []

    def note(self, line):
        self.lines.append(line)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The small sweep, never interrupted: its folder and its digest."""
    out = tmp_path_factory.mktemp("whole") / "out"
    found = run(small(), out, ONE)
    assert found.complete
    assert found.computed == 40
    return out, found.digest


@pytest.fixture
def copy(whole, tmp_path):
    """A copy of the small sweep, to be damaged."""
    out = tmp_path / "copy"
    for path in whole[0].rglob("*"):
        if path.is_file():
            target = out / path.relative_to(whole[0])
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    return out


def leftovers(out: Path) -> list[str]:
    """Locks of cells and temporary files in the folder."""
    hidden = [p for p in out.rglob("*") if p.is_file() and p.name.startswith(".")]
    return [p.name for p in (*hidden, *(out / "locks").glob("*")) if p.name != "manifest.json"]


# ---------------------------------------------------------------------- runs by number


def test_runs_in_the_middle_have_the_bits_that_they_have_in_the_whole():
    """Runs 3…6 alone are runs 3…6 of ten, also where initial values differ from run to run."""
    mdp = rv.domains.complex_mdp()
    learners = [rv.Direct(alpha=0.1, value=rv.Noisy(0.0, uniform=0.5)), rv.Direct(alpha=0.2)]
    options = {"steps": 60, "seed": 5, "keep": "runs", "record": rv.Record(points=6, rmse=True)}
    ten = rv.simulate(mdp, learners, runs=10, threads=2, **options)
    four = rv.simulate(mdp, learners, runs=4, first_run=3, threads=1, batch=3, **options)
    assert four.run.values.tolist() == [3, 4, 5, 6]
    for name in ("value", "variance", "value_rmse", "variance_rmse", "diverged_by"):
        assert ten[name].sel(run=[3, 4, 5, 6]).values.tobytes() == four[name].values.tobytes()


# ---------------------------------------------------------------------- what is computed


def test_a_collected_sweep_equals_simulations_whatever_the_cell_size(whole):
    """The oracle is one call of simulate for each domain."""
    data = collect(Store.open(whole[0]))
    assert data.value_rmse.dims == ("domain", "learner", "step", "run")
    sweep = small()
    for number in range(5):
        mdp = rv.domains.random_mdp(states=4, branching=2, seed=number)
        learners = [rv.Direct(alpha=alpha, lam=0.5) for alpha in (0.05, 0.4)]
        record = rv.Record(at=data.step.values.tolist(), rmse=True)
        seed = int(data.stream_seed[number])
        options = {"steps": 40, "runs": 8, "seed": seed, "keep": "runs", "record": record}
        one = rv.simulate(mdp, learners, **options)
        for name in ("value_rmse", "variance_rmse"):
            wanted = one[name].transpose("learner", "step", "run").values
            assert data[name].isel(domain=number).values.tobytes() == wanted.tobytes()
    assert data.alpha.values.tolist() == [0.05, 0.4]
    assert data.alpha_bar.values.tolist() == [0.05, 0.4]
    assert data.domain_seed.values.tolist() == [0, 1, 2, 3, 4]
    assert not data.diverged.any()
    assert json.loads(data.attrs["spec"]) == sweep.plan().sweep.to_dict()


def test_the_cell_size_changes_no_number(whole, tmp_path):
    out = tmp_path / "other"
    assert run(small(cell=CellSize(learners=2, runs=5)), out, ONE).cells == 10
    assert collect(Store.open(out)).identical(
        collect(Store.open(whole[0])).assign_attrs(collect(Store.open(out)).attrs)
    )


def test_the_streams_of_two_domains_are_independent(tmp_path):
    """Intervals over domains assume it.

    One MDP under two names, 100 runs: the correlation of errors is 0 with standard deviation 0.1;
    5 of them are exceeded by chance once in a million times. Common streams have correlation 1.
    """
    twins = [Domain(id="chain"), Domain(id="chain", options={"length": 4}, name="twin")]
    sweep = small(seed=fresh_seed(), domains=twins, runs=100, cell=CellSize(runs=100))
    run(sweep, tmp_path / "out", ONE)
    errors = collect(Store.open(tmp_path / "out")).value_rmse.values[:, 0, -1]
    assert abs(np.corrcoef(errors)[0, 1]) < 5 * 100**-0.5


def test_the_streams_of_a_domain_are_the_same_in_every_sweep():
    """They depend on the seed and on the domain, not on its neighbours or its name."""
    chain, walk = Domain(id="chain"), Domain(id="random-walk")
    both = small(domains=[walk, chain]).plan()
    alone = small(domains=[Domain(id="chain", name="mine")], runs=2).plan()
    assert both.seeds[1] == alone.seeds[0]
    assert both.seeds[0] != both.seeds[1]
    assert small(seed=4, domains=[chain]).plan().seeds != alone.seeds


def test_a_learner_that_diverges_is_marked(tmp_path):
    family = Learners(method="direct", alpha=[0.1, 1e6], lam=1.0)
    sweep = small(
        domains=[Domain(id="complex-mdp")], learners=[family], steps=400, cell=CellSize(), runs=2
    )
    run(sweep, tmp_path / "out", ONE)
    data = collect(Store.open(tmp_path / "out"))
    assert data.diverged.values.tolist() == [[[False, False], [True, True]]]


def test_a_sweep_may_have_all_kinds_of_domains(tmp_path):
    """Built-in, Gymnasium, a file, random: labels, kinds, and the file is read only once."""
    rv.domains.chain(length=3).to_toml(tmp_path / "my.toml")
    (tmp_path / "spec.toml").write_text(
        """
        runs = 2
        episodes = 20
        domains = [
            { id = "chain", options = { length = 5 } },
            { id = "gymnasium:FrozenLake-v1", gamma = 0.9 },
            { file = "my.toml" },
            { random = { states = 4, ends = 0.2 }, seeds = [7, 3], gamma = 0.5 },
        ]
        learners = [{ method = "direct", alpha = 0.1, lam = 0.5 }]
        """
    )
    sweep = Sweep.from_toml(tmp_path / "spec.toml")
    (tmp_path / "my.toml").unlink()
    run(sweep, tmp_path / "out", ONE)
    data = collect(Store.open(tmp_path / "out"))
    assert data.kind.values.tolist() == ["built-in", "gymnasium", "file", "random", "random"]
    assert data.domain.values.tolist() == [
        "chain", "gymnasium:FrozenLake-v1", "my", "random 4 #7", "random 4 #3",
    ]  # fmt: skip
    assert data.value_rmse.dims == ("domain", "learner", "episode", "run")
    assert np.isfinite(data.value_rmse.values).all()


def test_methods_with_the_same_settings_are_consecutive_and_all_combinations_exist_once():
    both = {"method": ["direct", "centred"], "alpha_bar": "alpha"}
    learners = [
        Learners(
            alpha=Range(log=(0.01, 1), count=3), lam=[0.0, 1.0], kappa_mean=[0.0, 0.5], **both
        ),
        Learners(alpha=[0.1, 1.0, 1.0], lam=1.0, kappa_mean=0.5, **both),  # there already
    ]
    found = small(learners=learners).plan().learners
    assert len(found) == 3 * 2 + 3 * 2 * 2  # direct has no kappa_mean
    assert [type(d).__name__ for d in found[:3]] == ["Direct", "Centred", "Centred"]
    assert all(d.alpha_bar == d.alpha for d in found)
    assert {d.alpha for d in found} == {0.01, 0.1, 1.0}


RULED = """
method = ["direct", "vtd"]
alpha = [0.1, { rule = "decay", power = [0.6, 0.8] }, { rule = "Averaged" }]
alpha_bar = { rule = "adadelta", epsilon = { log = [1e-6, 1e-4], count = 2 } }
lam = 0.5
"""


def test_step_size_rules_are_swept_like_numbers(tmp_path):
    """The oracle is simulate with the rules as objects; a rule's settings are columns."""
    path = tmp_path / "small.toml"
    path.write_text(
        "seed = 3\nruns = 4\nsteps = 40\n[[domains]]\nid = 'chain'\n[[learners]]" + RULED
    )
    steps = [0.1, Decay(power=0.6), Decay(power=0.8), Averaged()]
    bars = [Adadelta(epsilon=1e-6), Adadelta(epsilon=1e-4)]
    family = Learners(method=["direct", "vtd"], alpha=steps, alpha_bar=bars, lam=0.5)
    shape = {"runs": 4, "cell": CellSize(), "domains": [Domain(id="chain")]}
    sweep = small(learners=[family], **shape)
    assert Sweep.from_toml(path).plan().digest == sweep.plan().digest
    run(Sweep.from_toml(path), tmp_path / "out", ONE)
    data = collect(Store.open(tmp_path / "out"))
    learners = [kind(alpha=a, alpha_bar=b, lam=0.5) for a in steps for b in bars
                for kind in (rv.Direct, rv.VTD)]  # fmt: skip
    record = rv.Record(at=data.step.values.tolist(), rmse=True)
    options = {"steps": 40, "runs": 4, "seed": int(data.stream_seed[0]), "keep": "runs"}
    one = rv.simulate(rv.domains.chain(), learners, record=record, **options)
    wanted = one.variance_rmse.transpose("learner", "step", "run").values
    assert data.variance_rmse.values[0].tobytes() == wanted.tobytes()
    assert len(set(data.learner.values)) == 16
    assert data.alpha_rule.values[::4].tolist() == ["constant", "decay", "decay", "averaged"]
    assert data.alpha.values[::4].tolist() == [0.1, 1.0, 1.0, 1.0]
    np.testing.assert_array_equal(data.alpha_power.values[::4], [np.nan, 0.6, 0.8, 0.6])
    assert set(data.alpha_bar_rule.values) == {"adadelta"}
    assert data.alpha_bar_epsilon.values[:4].tolist() == [1e-6, 1e-6, 1e-4, 1e-4]
    found = compare(data, by="alpha_rule").data
    assert found.pair.values[0] == "constant / decay"


def test_two_runs_at_once_share_the_work(whole, tmp_path):
    """No cell is computed twice."""
    out, log = tmp_path / "out", tmp_path / "log"
    both = [process(small(), out, log) for _ in range(2)]
    for one in both:
        one.join()
    counted = Counter(log.read_text().split())
    assert [one.exitcode for one in both] == [0, 0]
    assert set(counted.values()) == {1}
    assert len(counted) == 40
    assert status(Store.open(out)).digest == whole[1]
    assert leftovers(out) == []


# ---------------------------------------------------------------------- damaged, full


def test_a_damaged_file_is_named_and_only_that_cell_is_computed_again(copy, whole):
    store, rng = Store.open(copy), random.Random(0)
    other = store.path(store.plan.cells[-1]).read_bytes()
    for damage in (lambda x: b"", lambda x: x[:400], lambda x: x[:-1], lambda x: other,
                   lambda x: x[:300] + bytes([x[300] ^ 1]) + x[301:]):  # fmt: skip
        path = store.path(rng.choice(store.plan.cells[:-1]))
        path.write_bytes(damage(path.read_bytes()))
        with pytest.raises(InputError, match=path.name):
            collect(store)
        assert status(store).damaged == (str(path),)
        notes = Notes()
        found = run(small(), copy, ONE, progress=notes)
        assert any(path.name in line for line in notes.lines)
        assert (found.computed, found.digest) == (1, whole[1])


def test_a_cell_that_fails_is_skipped_until_it_is_retried(monkeypatch, tmp_path, whole):
    compute = Plan.compute

    def failing(self, cell, *arguments, **options):
        if cell.number == 7:
            raise RuntimeError("broken")
        return compute(self, cell, *arguments, **options)

    monkeypatch.setattr(Plan, "compute", failing)
    notes = Notes()
    found = run(small(), tmp_path / "out", ONE, progress=notes)
    assert (found.done, found.failed, found.missing) == (39, 1, 0)
    assert sum("failed and is skipped" in line for line in notes.lines) == 1
    (trace,) = (tmp_path / "out" / "failed").iterdir()
    assert "RuntimeError: broken" in trace.read_text()
    monkeypatch.undo()
    assert run(small(), tmp_path / "out", ONE).computed == 0
    assert rv.sweep.retry(Store.open(tmp_path / "out")) == 1
    assert run(small(), tmp_path / "out", ONE).digest == whole[1]


# ---------------------------------------------------------------------- other stores


def test_the_store_of_another_specification_is_refused_and_the_differences_are_listed(copy):
    with pytest.raises(InputError, match=r"'small'.*differ in runs, learners"):
        run(small(runs=4, learners=[Learners(method="direct", alpha=[0.1], lam=0.5)]), copy, ONE)


def test_the_store_of_another_version_can_be_read_but_not_continued(copy, monkeypatch):
    before = collect(Store.open(copy))
    known = json.loads((copy / "manifest.json").read_text())["made_with"]
    for module in ("store", "plan"):
        name = f"retvar.sweep.{module}.identity"
        monkeypatch.setattr(name, lambda: {**known, "numpy": "9.9"})
    store = Store.open(copy)
    assert store.other_versions == f"numpy {np.__version__}, not 9.9"
    assert collect(store).identical(before)
    assert status(store).complete
    for use in (lambda: run(small(), copy, ONE), lambda: store.compute(store.plan.cells[0])):
        with pytest.raises(InputError) as error:
            use()
        assert error.value.field == "store"


# ---------------------------------------------------------------------- bad specifications

GOOD = """
runs = 2
steps = 10
[[domains]]
id = "complex-mdp"
[[learners]]
method = "direct"
alpha = 0.1
"""
BAD = {
    "runs = 2": {
        "": "runs",
        "runs = 2\nrecord = { at = 11 }": "record.at",
        "runs = 2\nsteeps = 3": "steeps",
        "runs = ": "spec.toml",
    },
    "steps = 10": {"episodes = 10": "episodes"},
    'id = "complex-mdp"': {
        'id = "chian"': "domains[0].id",
        'id = "gymnasium:FrozenLake-v1"': "domains[0].gamma",
        'id = "chain"\noptions = { size = 3 }': "domains[0].options",
        'id = "chain"\ntarget = "best"': "domains[0].target",
        'file = "nowhere.toml"': "domains[0].file",
        "random = { states = 2, branching = 3 }": "domains[0].random.branching",
        "random = { states = 4 }\nseeds = [1, 1]": "domains",
    },
    "alpha = 0.1": {
        "": "learners[0].alpha",
        "alpha = [0.1, 'x']": "learners[0].alpha",
        "alpha = { log = [0.0, 1.0], count = 3 }": "learners[0].alpha",
        "alpha = { linear = ['a', 1.0], count = 2 }": "learners[0].alpha.linear[0]",
        "alpha = { rule = 'decy' }": "learners[0].alpha.rule",
        "alpha = [1, { rule = 'decay', power = [2] }]": "learners[0].alpha[1].power",
        "alpha = 0.1\nalpha_bar = 'alfa'": "learners[0].alpha_bar",
        "alpha = 0.1\nlam = 1.5": "learners[0].lam",
        "alpha = 0.1\nalpha_mean = 0.1": "learners[0].alpha_mean",
        "alpha = { linear = [0, 1], count = 9_999 }\nlam = { linear = [0, 1], count = 999 }": (
            "learners[0]"
        ),
    },
    'method = "direct"': {
        'method = "direkt"': "learners[0].method",
        'method = "vtd"\norder = 4': "learners[0].order",
    },
}


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [(old, *pair) for old, group in BAD.items() for pair in group.items()],
)
def test_a_bad_specification_is_refused_with_the_path_of_the_field(tmp_path, old, new, field):
    assert GOOD.count(old) == 1
    path = tmp_path / "spec.toml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(InputError) as error:
        Sweep.from_toml(path).plan()
    assert error.value.field == field


def test_errors_are_recorded_at_the_points_of_the_specification():
    for given, wanted in (
        (Points(at=10), [10, 20, 30, 40]),
        (Points(at=[0, 40]), [0, 40]),
        (Points(at="linear", points=2), [20, 40]),
        (Points(at="log", points=2), [1, 40]),
    ):
        assert small(record=given).plan().moments.tolist() == wanted


# ---------------------------------------------------------------------- collecting


# ---------------------------------------------------------------------- the commands

SPEC = """
runs = 8
seed = 3
steps = 40
cell = { learners = 1, runs = 2 }
domains = [{ random = { states = 4, branching = 2 }, seeds = { count = 5 } }]
learners = [{ method = "direct", alpha = [0.05, 0.4], lam = 0.5 }]
"""


def command(*arguments):
    return CliRunner().invoke(main, ["sweep", *map(str, arguments)])


def test_the_commands_in_their_order(tmp_path, whole):
    """plan, run, status, retry, collect."""
    spec = tmp_path / "small.toml"
    spec.write_text(SPEC)
    out, target = tmp_path / "out", tmp_path / "all.nc"
    planned = json.loads(command("plan", spec, "--json").stdout)
    assert (planned["cells"], planned["domains"], planned["learners"]) == (40, 5, 2)
    assert "40 cells" in command("plan", spec).stdout
    ran = command("run", spec, "--out", out, "--json")
    assert ran.exit_code == 0
    assert json.loads(ran.stdout)["digest"] == whole[1]
    assert json.loads(command("status", out, "--json").stdout)["complete"]
    assert "40 of 40 cells done" in command("status", out).stdout
    assert json.loads(command("retry", out, "--json").stdout) == {"cleared": 0}
    assert command("collect", out, "--out", target).exit_code == 0
    with xarray.open_dataset(target, engine="h5netcdf") as data:
        assert data.attrs["digest"] == collect(Store.open(whole[0])).attrs["digest"]


# ---------------------------------------------------------------------- dask


def workers_of(pid: int) -> list[int]:
    """The worker processes of a local cluster."""
    found = " ".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children"))
    lines = {int(child): Path(f"/proc/{child}/cmdline").read_bytes() for child in found.split()}
    return [child for child, line in lines.items() if b"spawn_main" in line]


class Killer(Notes):
    """Kills a worker when cells are done."""

    killed = 0

    def advance(self, done):
        if not self.killed and done >= 5:
            self.killed = workers_of(os.getpid())[0]
            os.kill(self.killed, signal.SIGKILL)


@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc")
def test_with_dask_and_a_worker_killed_the_contents_are_those_of_a_local_run(tmp_path, whole):
    pytest.importorskip("distributed")
    killer = Killer()
    found = run(small(), tmp_path / "out", Dask("local", workers=2), progress=killer)
    assert killer.killed
    assert found.digest == whole[1]


def test_a_sweep_is_drawn_and_compared_from_its_folder(tmp_path):
    """Curves and the comparison: the same as from the collected dataset."""
    spec, out = tmp_path / "small.toml", tmp_path / "out"
    spec.write_text(
        """
        runs = 8
        steps = 300
        record = { at = [300] }
        domains = [{ random = { states = 4, actions = 2, branching = 2 }, seeds = { count = 2 } }]
        learners = [{ method = ["direct", "vtd"], alpha = [0.05, 0.2], lam = [0.0, 0.9] }]
        """
    )
    assert command("run", spec, "--out", out).exit_code == 0
    drawn = command("plot", out, "--out", tmp_path / "curves.png")
    assert drawn.exit_code == 0, drawn.output
    assert (tmp_path / "curves.png").stat().st_size > 5_000
    compared = command("compare", out, "--plot", tmp_path / "compared.pdf")
    assert compared.exit_code == 0, compared.output
    assert compared.stdout.strip() == compare(collect(Store.open(out))).summary().strip()
    wrong = command("plot", out, "--x", "beta", "--out", tmp_path / "x.png")
    assert wrong.exit_code == 2
    assert "beta" in wrong.stderr
    assert not (tmp_path / "x.png").exists()


def test_a_sweep_has_the_errors_of_the_moments_that_its_learners_have(tmp_path):
    family = Learners(method=["direct", "centred"], alpha=0.1, order=[2, 4])
    sweep = small(domains=[Domain(id="complex-mdp")], learners=[family], runs=4, cell=CellSize())
    run(sweep, tmp_path / "out", ONE)
    data = collect(Store.open(tmp_path / "out"))
    with_them = data.order.values == 4
    assert with_them.sum() == 2
    for name in ("third_moment_rmse", "fourth_moment_rmse"):
        assert np.isfinite(data[name].values[:, with_them]).all()
        assert np.isnan(data[name].values[:, ~with_them]).all()
    low, high = data.variance_rmse.values[0, data.algorithm.values == "Direct"]
    assert np.array_equal(low, high)
    best = compare(data, what="fourth_moment_rmse", where={"order": 4}, resamples=100)
    assert np.isfinite(best.data.ratio.values).all()
    with pytest.raises(InputError) as error:
        compare(data, what="fourth_moment_rmse", resamples=100)
    assert error.value.field == "data.fourth_moment_rmse"
