"""Sweeps: the store holds the right numbers, each computed once, whatever happens to workers."""

import errno
import gc
import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import msgspec
import numpy as np
import pytest
import xarray
from click.testing import CliRunner

import retvar as rv
from retvar import cache, files
from retvar.cli import main
from retvar.errors import InputError, RetvarError
from retvar.progress import Progress
from retvar.signals import Interrupted
from retvar.step_sizes import Adadelta, Averaged, Decay
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
    executors,
    finished,
    leases,
    retry,
    run,
    save,
    status,
)
from retvar.sweep import manifest as manifest_module
from retvar.sweep import plan as plan_module
from retvar.sweep.plan import Plan
from tests.oracle import SOAK, fresh_seed
from tests.patience import patience
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
    """Leases and temporary files in the folder."""
    hidden = [p for p in out.rglob("*") if p.is_file() and p.name.startswith(".")]
    return [p.name for p in (*hidden, *(out / "leases").iterdir())]


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


def test_statistics_over_the_middle_runs_are_those_of_these_runs():
    mdp, learner = rv.domains.chain(), rv.Direct(alpha=0.1)
    options = {"steps": 30, "seed": 1, "record": [30]}
    every = rv.simulate(mdp, learner, runs=9, keep="runs", **options)
    some = rv.simulate(mdp, learner, runs=4, first_run=5, **options)
    np.testing.assert_allclose(
        some.value.values, every.value.sel(run=slice(5, 8)).mean("run").values, rtol=1e-12
    )


@pytest.mark.parametrize("first", [-1, 1.5, True, "0", 10**15])
def test_a_first_run_that_is_no_number_of_a_run_is_refused(first):
    with pytest.raises(InputError, match="first_run"):
        rv.simulate(
            rv.domains.chain(), rv.Direct(alpha=0.1), steps=5, runs=1, seed=0, first_run=first
        )


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

    One MDP under two names, 400 runs: the correlation of errors is 0 with standard deviation 0.05;
    5 of them are exceeded by chance once in a million times. Common streams have correlation 1.
    """
    twins = [Domain(id="chain"), Domain(id="chain", options={"length": 4}, name="twin")]
    sweep = small(seed=fresh_seed(), domains=twins, runs=400, cell=CellSize(runs=400))
    run(sweep, tmp_path / "out", ONE)
    errors = collect(Store.open(tmp_path / "out")).value_rmse.values[:, 0, -1]
    assert abs(np.corrcoef(errors)[0, 1]) < 5 * 400**-0.5


def test_the_streams_of_a_domain_are_the_same_in_every_sweep():
    """They depend on the seed and on the domain, not on its neighbours or its name."""
    chain, walk = Domain(id="chain"), Domain(id="random-walk")
    both = small(domains=[walk, chain]).plan()
    alone = small(domains=[msgspec.structs.replace(chain, name="mine")], runs=2).plan()
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
        steps = 20
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
    assert np.isfinite(data.value_rmse.values).all()


def test_methods_with_the_same_settings_are_consecutive_and_all_combinations_exist():
    family = Learners(
        method=["direct", "centred"], alpha=Range(log=(0.01, 1), count=3), alpha_bar="alpha",
        lam=[0.0, 1.0], kappa_mean=[0.0, 0.5],
    )  # fmt: skip
    learners = small(learners=[family]).plan().learners
    assert len(learners) == 3 * 2 + 3 * 2 * 2  # direct has no kappa_mean
    assert [type(d).__name__ for d in learners[:3]] == ["Direct", "Centred", "Centred"]
    assert all(d.alpha_bar == d.alpha for d in learners)
    assert {d.alpha for d in learners} == {0.01, 0.1, 1.0}


def test_python_objects_and_toml_make_the_same_sweep(tmp_path):
    (tmp_path / "small.toml").write_text(
        """
        seed = 3
        runs = 8
        steps = 40
        [cell]
        learners = 1
        runs = 2
        [[domains]]
        random = { states = 4, branching = 2 }
        seeds = { first = 0, count = 5 }
        [[learners]]
        method = "direct"
        alpha = [0.05, 0.4]
        lam = 0.5
        """
    )
    assert Sweep.from_toml(tmp_path / "small.toml").plan().digest == small().plan().digest


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


# ---------------------------------------------------------------------- killed


@pytest.mark.soak
def test_a_sweep_killed_at_random_moments_ends_with_the_same_digest(tmp_path):
    """40 cells and 12 kills by SIGKILL; 2,000 cells and 200 kills in `make soak`.

    Every cell is stored once, and a kill costs at most the one cell that was being computed.
    """
    kills, count = (200, 250) if SOAK else (12, 5)
    sweep, rng = small(count), random.Random(fresh_seed())
    plan, out, log = sweep.plan(), tmp_path / "out", tmp_path / "log"
    expected = run(sweep, tmp_path / "whole", ONE).digest
    process(sweep, tmp_path / "whole", tmp_path / "ignored").join()  # starts what forks them

    def kept():  # a kill comes early where the machine is faster than it was
        return len(log.read_text().split()) if log.exists() else 0

    began, done = time.monotonic(), 0
    process(sweep, tmp_path / "rate", tmp_path / "ignored").join()
    pace = 0.4 * (time.monotonic() - began) / kills  # so that all kills come before it is finished
    while done < kills:
        started = process(sweep, out, log)
        end = time.monotonic() + rng.uniform(0, 2 * pace)
        while time.monotonic() < end and kept() * (kills + 1) < plan.count * (done + 1):
            time.sleep(0.001)
        if started.is_alive():
            os.kill(started.pid, signal.SIGKILL)
        started.join()
        if started.exitcode == 0:
            break  # faster than expected
        assert started.exitcode == -signal.SIGKILL
        done += 1
    final = run(sweep, out, ONE)
    computed = log.read_text().split() if log.exists() else []
    assert final.digest == expected
    assert final.complete
    assert len(list((out / "cells").iterdir())) == plan.count == (2_000 if SOAK else 40)
    assert len(computed) + final.computed <= plan.count + done
    assert leftovers(out) == []
    assert done >= (kills if SOAK else kills // 2), "the kills came too late"


def test_two_runs_at_once_share_the_work(whole, tmp_path):
    """No cell is computed twice."""
    out, log = tmp_path / "out", tmp_path / "log"
    sweep = small()
    both = [process(sweep, out, log) for _ in range(2)]
    for one in both:
        one.join()
    counted = Counter(log.read_text().split())
    assert [one.exitcode for one in both] == [0, 0]
    assert set(counted.values()) == {1}
    assert len(counted) == 40
    assert status(Store.open(out)).digest == whole[1]
    assert leftovers(out) == []


def test_a_manifest_that_appears_meanwhile_is_kept(tmp_path, monkeypatch):
    """Of two runs that start together the slower one takes the manifest of the faster one.

    The other run writes its manifest after this one has found none, and before it writes its own.
    """
    plan, out, find = small().plan(), tmp_path / "out", Store._foreign_cells

    def find_late(store):
        monkeypatch.setattr(Store, "_foreign_cells", find)
        Store.create(out, plan)
        kept.append((out / "manifest.json").stat().st_ino)
        return find(store)

    kept = []
    monkeypatch.setattr(Store, "_foreign_cells", find_late)
    store = Store.create(out, plan)
    assert kept == [(out / "manifest.json").stat().st_ino]
    assert store.notes == []


def test_a_run_waits_for_a_leased_cell_and_computes_it_once_the_lease_is_stale(whole, tmp_path):
    store = Store.create(tmp_path / "out", small().plan(), stale=3_600.0)
    leased, free = store.plan.cells[7:9]
    path = store.lease_path(leased)
    path.write_text(json.dumps({"machine": "elsewhere", "pid": 1}))
    assert executors.compute_cell(store, leased).state == "busy"
    assert executors.compute_cell(store, free).state == "done"
    os.utime(path)
    begun = path.stat().st_mtime
    found = run(small(), tmp_path / "out", ONE, stale=1.0)
    assert found.digest == whole[1]
    assert store.path(leased).stat().st_mtime - begun > 0.9  # respected until it was stale


def test_a_lease_is_void_at_once_if_its_process_ran_on_this_machine_and_has_ended(tmp_path):
    path = tmp_path / "lease"
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    lease = leases.acquire(path)
    assert leases.acquire(path) is None  # this process is alive
    owner = json.loads(lease.text)
    path.write_text(json.dumps({**owner, "pid": ended.pid}))
    assert leases.acquire(path) is not None
    path.write_text(json.dumps({**owner, "machine": "elsewhere", "pid": ended.pid}))
    assert leases.acquire(path) is None  # it may be alive there


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"machine": 1}', '{"pid": "x"}', "\0\xff"])
def test_a_lease_file_with_rubbish_expires_when_it_is_stale(tmp_path, text):
    path = tmp_path / "lease"
    path.write_text(text)
    assert leases.acquire(path) is None
    assert leases.holder(path) == "another worker"
    os.utime(path, (time.time() - 100, time.time() - 100))
    assert leases.acquire(path) is not None


def test_the_help_of_stale_names_the_default():
    """The command line cannot import it: `retvar --help` has to be fast."""
    text = CliRunner().invoke(main, ["sweep", "run", "--help"]).output
    assert f"[default: {leases.STALE:g}]" in " ".join(text.split())


def test_a_lease_is_not_stale_while_its_owner_works(tmp_path):
    path = tmp_path / "lease"
    with leases.acquire(path).heartbeat(0.4):
        for _ in range(3):
            os.utime(path, (time.time() - 100, time.time() - 100))
            end = time.monotonic() + patience(20)
            while not leases.is_held(path) and time.monotonic() < end:
                time.sleep(0.01)
            assert leases.is_held(path)
    assert not path.exists()


def test_a_lease_that_was_taken_over_is_not_released_by_its_first_owner(tmp_path):
    path = tmp_path / "lease"
    first = leases.acquire(path)
    os.utime(path, (time.time() - 100, time.time() - 100))
    second = leases.acquire(path)
    first.release()
    assert path.exists()
    second.release()
    assert not path.exists()


@pytest.fixture
def overtaken(tmp_path, monkeypatch):
    """A store with a stale lease, which another worker takes over just before it is removed."""
    store = Store.create(tmp_path / "out", small().plan())
    path = store.lease_path(store.plan.cells[0])
    leases.acquire(path)
    os.utime(path, (time.time() - 100, time.time() - 100))
    winners = []

    def overtake(target, create=leases.create_temporary):
        monkeypatch.setattr(leases, "create_temporary", create)
        winners.append(leases.acquire(path))
        return create(target)

    monkeypatch.setattr(leases, "create_temporary", overtake)
    yield store
    assert path.read_bytes() == winners[0].text
    assert list(path.parent.iterdir()) == [path]


def test_of_two_workers_that_find_a_stale_lease_at_once_one_takes_it_over(overtaken):
    assert overtaken.lease(overtaken.plan.cells[0]) is None


def test_a_clean_up_leaves_a_lease_that_was_taken_over_while_it_looked(overtaken):
    overtaken.clean_up()


def test_a_lease_that_is_put_back_does_not_replace_that_of_a_third_worker(tmp_path, monkeypatch):
    """The first moved aside what the second has taken over; meanwhile the third leases."""
    path, third = tmp_path / "lease", []
    leases.acquire(path)
    os.utime(path, (time.time() - 100, time.time() - 100))

    def look(seen, stale, held=leases.is_held, **options):
        if seen == path:
            return held(seen, stale, **options)
        third.append(leases.acquire(path))  # the second look, at what was moved aside
        return True

    monkeypatch.setattr(leases, "is_held", look)
    assert leases.acquire(path) is None
    assert path.read_bytes() == third[0].text
    assert list(tmp_path.iterdir()) == [path]


def test_a_lease_is_released_however_its_block_ends(tmp_path):
    lease = leases.acquire(tmp_path / "lease")
    with pytest.raises(KeyboardInterrupt), lease.heartbeat():
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_a_lease_that_cannot_be_written_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "write", lambda file, text: len(text) - 1)
    with pytest.raises(InputError, match="No space left"):
        leases.acquire(tmp_path / "lease")
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------- damaged, full


@pytest.mark.soak
def test_a_file_cut_anywhere_is_named_and_only_that_cell_is_computed_again(copy, whole):
    """At 20 random bytes (500 in `make soak`), the first and the last too; no number changes."""
    rng = random.Random(fresh_seed())
    store = Store.open(copy)
    for number in range(500 if SOAK else 20):
        path = store.path(rng.choice(store.plan.cells))
        raw = path.read_bytes()
        at = {0: 0, 1: len(raw) - 1}.get(number, rng.randrange(len(raw)))
        path.write_bytes(raw[:at])
        with pytest.raises(InputError, match=path.name):
            collect(store)
        assert status(store).damaged == (str(path),)
        notes = Notes()
        found = run(small(), copy, ONE, progress=notes)
        assert any(path.name in line for line in notes.lines)
        assert (found.computed, found.digest) == (1, whole[1])


@pytest.mark.soak
def test_a_changed_byte_anywhere_is_found(copy):
    """At 300 random bytes, 5,000 in `make soak`, and each byte of the footer."""
    rng = random.Random(fresh_seed())
    store = Store.open(copy)
    for number in range(5_000 if SOAK else 500):
        path = store.path(rng.choice(store.plan.cells))
        raw = bytearray(path.read_bytes())
        at = len(raw) - 1 - number if number < 200 else rng.randrange(len(raw))
        old, raw[at] = raw[at], raw[at] ^ rng.randrange(1, 256)
        path.write_bytes(raw)
        assert cache.footer_of(path) is None
        with pytest.raises(InputError, match=path.name):
            cache.read(path, path.stem)
        raw[at] = old
        path.write_bytes(raw)


def test_the_file_of_another_cell_is_damaged(copy, whole):
    store = Store.open(copy)
    first, second = store.path(store.plan.cells[0]), store.path(store.plan.cells[1])
    first.write_bytes(second.read_bytes())
    assert status(store).damaged == (str(first),)
    assert run(small(), copy, ONE).digest == whole[1]


def test_a_damaged_manifest_is_named_and_written_again(copy, whole):
    path = copy / "manifest.json"
    raw = path.read_bytes()
    for at in (0, 1, len(raw) // 2, len(raw) - 3):
        path.write_bytes(raw[:at])
        with pytest.raises(InputError, match=r"manifest\.json"):
            Store.open(copy)
        notes = Notes()
        found = run(small(), copy, ONE, progress=notes)
        assert any("manifest.json" in line for line in notes.lines)
        assert (found.computed, found.digest) == (0, whole[1])
        assert path.read_bytes() == raw


@pytest.mark.parametrize(("module", "name"), [(os, "fsync"), (os, "replace"), (os, "write")])
def test_a_disk_that_fills_up_at_any_write_stops_the_run_and_nothing_is_wrong(
    monkeypatch, tmp_path, whole, module, name
):
    """The n-th sync, move or lease fails: no cell is damaged, and the next run finishes."""
    real = getattr(module, name)
    for nth in (1, 2, 5):
        out, count = tmp_path / f"{nth}", iter(range(1, 10**6))

        def failing(*arguments, nth=nth, count=count):
            if next(count) >= nth:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(module, name, failing)
            with pytest.raises(RetvarError, match="No space left"):
                run(small(), out, ONE)
        files = list((out / "cells").iterdir()) if out.exists() else []
        assert all(cache.footer_of(path) is not None for path in files)
        if files:
            assert leftovers(out) == []
        assert run(small(), out, ONE).digest == whole[1]


@pytest.mark.parametrize("classic", [True, False])
def test_a_write_that_fails_lets_go_of_its_memory(monkeypatch, tmp_path, classic):
    """Its traceback may live on; Python 3.13 complains of a buffer that cannot be closed then."""
    before = {id(x) for x in gc.get_objects() if type(x) is io.BytesIO}

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(RetvarError, match="No space left") as held:
            cache.write(tmp_path / "x.nc", xarray.Dataset({"x": 1.0}), "x", classic=classic)
    rooms = [x for x in gc.get_objects() if type(x) is io.BytesIO and id(x) not in before]
    for room in rooms:
        room.close()  # a BufferError where a view of it is left
    assert held.value.__traceback__ is not None


def test_a_disk_on_which_files_cannot_grow_leaves_nothing_half_written(tmp_path, whole):
    """Real writes that end in the middle, at any size of the file."""
    out, log = tmp_path / "out", tmp_path / "log"
    size = next((whole[0] / "cells").iterdir()).stat().st_size
    Store.create(out, small().plan())
    for limit in (1, 200, size // 2, size - 1):
        started = process(small(), out, log, limit)
        started.join()
        assert started.exitcode == 1
        assert list((out / "cells").iterdir()) == []
        assert leftovers(out) == []
    assert run(small(), out, ONE).digest == whole[1]


@pytest.mark.parametrize("problem", [errno.EROFS, errno.EACCES])
def test_a_folder_that_cannot_be_written_is_refused(monkeypatch, tmp_path, problem):
    def refused(*_, **__):
        raise OSError(problem, os.strerror(problem))

    monkeypatch.setattr(Path, "mkdir", refused)
    with pytest.raises(InputError, match=os.strerror(problem)):
        run(small(), tmp_path / "out", ONE)


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(InputError, match="out"):
        run(small(), tmp_path / "out", ONE)
    assert (tmp_path / "out").read_text() == "mine"


# ---------------------------------------------------------------------- failing cells


def test_a_cell_that_fails_three_times_is_skipped_and_the_others_are_computed(
    monkeypatch, tmp_path, whole
):
    compute, tries, out = Plan.compute, Counter(), tmp_path / "out"

    def failing(self, cell, *arguments, **options):
        tries[cell.number] += 1
        if cell.number == 11:
            raise ZeroDivisionError("cannot be computed")
        return compute(self, cell, *arguments, **options)

    notes = Notes()
    with monkeypatch.context() as patch:
        patch.setattr(Plan, "compute", failing)
        found = run(small(), out, ONE, progress=notes)
        assert (found.done, found.failed, found.missing, found.complete) == (39, 1, 0, False)
        assert tries[11] == 3
        assert set(tries.values()) == {1, 3}
        again = run(small(), out, ONE)
        assert (again.computed, tries[11]) == (0, 3)
    store = Store.open(out)
    (trace,) = (out / "failed").iterdir()
    assert trace.stem == store.plan.keys[11]
    assert "ZeroDivisionError: cannot be computed" in trace.read_text()
    assert any("cannot be computed" in line for line in notes.lines)
    assert retry(store) == 1
    last = run(small(), out, ONE)
    assert (last.computed, last.digest) == (1, whole[1])


def test_a_cell_that_fails_twice_is_computed(monkeypatch, tmp_path, whole):
    compute, tries = Plan.compute, Counter()

    def shaky(self, cell, *arguments, **options):
        tries[cell.number] += 1
        if tries[cell.number] < 3 and cell.number % 7 == 0:
            raise MemoryError
        return compute(self, cell, *arguments, **options)

    monkeypatch.setattr(Plan, "compute", shaky)
    assert run(small(), tmp_path / "out", ONE).digest == whole[1]


# ---------------------------------------------------------------------- other stores


def test_the_store_of_another_specification_is_refused_and_the_differences_are_listed(copy):
    with pytest.raises(InputError, match=r"'small'.*differ in runs, learners\[0\]\.alpha"):
        run(small(runs=4, learners=[Learners(method="direct", alpha=[0.1], lam=0.5)]), copy, ONE)


def test_the_store_of_another_version_can_be_read_but_not_continued(copy, monkeypatch):
    before = collect(Store.open(copy))
    known = json.loads((copy / "manifest.json").read_text())["made_with"]
    for module in (manifest_module, plan_module):
        monkeypatch.setattr(module, "identity", lambda: {**known, "numpy": "9.9"})
    message = rf"made with numpy {np.__version__}, not 9\.9"
    store = Store.open(copy)
    assert re.search(message, store.notes[0])
    assert collect(store).identical(before)
    assert status(store).complete
    for use in (
        lambda: run(small(), copy, ONE),
        lambda: run(small(runs=10), copy, ONE, extend=True),
        lambda: store.lease(store.plan.cells[0]),
    ):
        with pytest.raises(InputError, match=message):
            use()


def test_cells_of_another_format_are_refused(copy, monkeypatch):
    known = json.loads((copy / "manifest.json").read_text())["made_with"]
    monkeypatch.setattr(manifest_module, "identity", lambda: {**known, "cells": "99"})
    with pytest.raises(InputError, match=rf"has cells of format {known['cells']}, not 99"):
        Store.open(copy)


def test_a_damaged_manifest_does_not_let_another_sweep_take_the_store_over(copy, whole):
    cut_off = (copy / "manifest.json").read_bytes()[:50]
    (copy / "manifest.json").write_bytes(cut_off)
    with pytest.raises(InputError, match="holds 40 cells of another specification or version"):
        run(small(steps=41), copy, ONE)
    assert (copy / "manifest.json").read_bytes() == cut_off
    found = run(small(), copy, ONE)
    assert (found.digest, found.computed) == (whole[1], 0)


def test_a_manifest_that_is_a_folder_is_refused(tmp_path):
    (tmp_path / "out" / "manifest.json").mkdir(parents=True)
    with pytest.raises(InputError, match=r"manifest\.json: cannot be replaced"):
        run(small(), tmp_path / "out", ONE)


def test_temporary_files_of_killed_workers_are_removed_and_those_of_live_ones_are_not(copy):
    (copy / "failed").mkdir(exist_ok=True)
    store = Store.open(copy)
    first, second = store.plan.cells[:2]
    (copy / "leases").mkdir(exist_ok=True)
    lease = store.lease(first)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    dead, live = (
        [
            copy / f".manifest-{files._host()}.{pid}.00000000.json",
            copy / "failed" / f".b2-{files._host()}.{pid}.00000000.txt",
            copy / "cells" / f".{store.key(second)}-{files._host()}.{pid}.00000000.nc",
        ]
        for pid in (ended.pid, os.getpid())
    )
    live.append(copy / ".notes")  # not of retvar
    for path in (*dead, *live):
        path.write_text("half")
    store.clean_up()
    assert [path.exists() for path in (*dead, *live)] == [False] * 3 + [True] * 4
    assert lease.path.exists()
    assert store.is_finished(first)


# ---------------------------------------------------------------------- extended


@pytest.mark.parametrize("cut", [CellSize(learners=1, runs=2), CellSize(learners=2, runs=3)])
@pytest.mark.parametrize(
    "more",
    [
        {"runs": 12},
        {"count": 7},
        {"learners": [Learners(method="direct", alpha=[0.05, 0.4, 0.1], lam=0.5)]},
    ],
)
def test_a_sweep_that_was_extended_is_the_larger_sweep(tmp_path, cut, more):
    """In contents and in files; what both have is not computed again."""
    smaller, larger = small(cell=cut), small(cell=cut, **more)
    run(smaller, tmp_path / "out", ONE)
    common = len(set(smaller.plan().keys) & set(larger.plan().keys))
    found = run(larger, tmp_path / "out", ONE, extend=True)
    assert found.computed == larger.plan().count - common
    assert found.digest == run(larger, tmp_path / "whole", ONE).digest
    files = {path.stem for path in (tmp_path / "out" / "cells").iterdir()}
    assert files == set(larger.plan().keys)
    assert run(larger, tmp_path / "out", ONE).computed == 0


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"runs": 6}, "has run 7, which this specification lacks"),
        ({"count": 4}, "has random 4×2 #4, which"),
        ({"steps": 41}, "has 40 steps, which"),
        ({"seed": 4}, "has seed 3, which"),
        ({"record": Points(at=[40])}, "has the moments recorded, which"),
        (
            {"learners": [Learners(method="vtd", alpha=[0.05, 0.4])]},
            "has Direct alpha=0.05, Direct",
        ),
    ],
)
def test_extending_can_only_add(copy, whole, other, message):
    with pytest.raises(InputError, match=message):
        run(small(**other), copy, ONE, extend=True)
    assert run(small(), copy, ONE).digest == whole[1]


def test_a_run_takes_the_path_of_a_specification(tmp_path):
    (tmp_path / "spec.toml").write_text(GOOD)
    assert run(tmp_path / "spec.toml", tmp_path / "out", ONE).complete


def test_a_folder_without_a_sweep_is_refused(tmp_path):
    with pytest.raises(InputError, match="holds no sweep"):
        Store.open(tmp_path)


# ---------------------------------------------------------------------- bad specifications

GOOD = """
runs = 2
steps = 10
[[domains]]
id = "chain"
[[learners]]
method = "direct"
alpha = 0.1
"""
BAD = {
    "runs = 2": {
        "runs = 0": "runs = 0: must be a whole number",
        "runs = 'two'": "runs = 'two': must be a whole number, not text",
        "": "runs = nothing: must be given",
        "runs = 2\nrecord = { at = 0 }": "record.at = 0: must be a whole number from 1",
        "runs = 2\nrecord = { at = 11 }": "record.at = 11: is beyond the end",
        "runs = 2\nseed = [1]": "seed = .*: must be a whole number, not a list",
        "runs = 2\nseed = -1": "seed = -1",
        "runs = 2\nsteeps = 3": "steeps = 3: unknown; did you mean steps?",
        "runs = 2\nepisodes = 3": "steps, episodes = both",
        "runs = 2\nrecord = { at = [11] }": "record.at = 11",
        "runs = 2\nrecord = { at = 'often' }": "record.at = often",
        "runs = 2\ncell = { learners = 0 }": r"cell\.learners = 0",
        "runs = ": "not TOML",
    },
    'id = "chain"': {
        'id = "chian"': r"domains\[0\]\.id = chian: unknown; did you mean chain\?",
        'id = "chain"\ngamma = 3.0': r"domains\[0\]\.gamma",
        'id = "gymnasium:FrozenLake-v1"': r"domains\[0\]\.gamma = nothing",
        'id = "chain"\noptions = { size = 3 }': r"domains\[0\]\.options = size",
        'id = "chain"\ntarget = "best"': r"domains\[0\]\.",
        'id = "chain"\nname = " "': r"domains\[0\]\.name = ' ': must not be empty",
        'id = "chain"\ntext = "x"': r"domains\[0\]\.text = 'x': unknown",
        'id = "chain"\nfile = "x.toml"': "id and file: give one of id, file and random",
        "": r"domains\[0\] = none",
        'file = "nowhere.toml"': r"domains\[0\]\.file = .*nowhere.toml: does not exist",
        "random = { sates = 3 }": r"domains\[0\]\.random\.sates = 3: .*did you mean states",
        "random = { actions = 3 }": r"domains\[0\]\.random\.states = nothing",
        "random = { states = 2, branching = 3 }": r"domains\[0\]\.random\.branching = 3",
        "random = { states = true }": r"domains\[0\]\.random\.states = True",
        "random = { states = 4, gamma = 2 }": r"domains\[0\]\.random\.gamma",
        "random = { states = 4 }\nseeds = { count = 10_000_000 }": (
            r"domains\[0\]\.seeds\.count = 10000000: .* to 1,000,000"
        ),
        "random = { states = 'x' }": r"domains\[0\]\.random\.states = 'x'",
        "random = { states = 4 }\nseeds = { count = 0 }": r"domains\[0\]\.seeds\.count = 0",
        "random = { states = 4 }\nseeds = []": r"domains\[0\]\.seeds = \[\]",
        "random = { states = 4 }\nseeds = [1, 1]": "is the same as random 4 #1",
        'id = "chain"\n[[domains]]\nid = "chain"': "domains must differ",
    },
    "alpha = 0.1": {
        "": r"learners\[0\]",
        "alpha = -1.0": r"learners\[0\]\.alpha = -1",
        "alpha = nan": r"learners\[0\]\.alpha = nan",
        "alpha = [0.1, 'x']": r"learners\[0\]\.alpha",
        "alpha = []": r"learners\[0\]\.alpha = \[\]: is empty",
        "alpha = [0.1, 0.1]": r"learners\[0\]\.alpha = 0.1: is there twice",
        "alpha = { log = [0.0, 1.0], count = 3 }": r"learners\[0\]\.alpha\.log",
        "alpha = { log = [1.0, 0.1], count = 3 }": r"learners\[0\]\.alpha = \[1.0, 0.1\]",
        "alpha = { linear = [0.1, 1.0], count = 0 }": r"alpha\.count = 0: must be a whole number",
        "alpha = { linear = [0.1, 0.1], count = 2 }": r"learners\[0\]\.alpha = 0.1: is there twice",
        "alpha = { linear = [0.1, inf], count = 2 }": r"learners\[0\]\.alpha",
        "alpha = { lin = [0.1, 1.0], count = 2 }": r"learners\[0\]\.alpha\.lin = .*did you mean",
        "alpha = { count = 2 }": r"learners\[0\]\.alpha = neither",
        "alpha = { linear = [0.1, 1.0] }": r"learners\[0\]\.alpha\.count = nothing",
        "alpha = true": r"learners\[0\]\.alpha = True: must be a number",
        "alpha = [0.1, [0.2]]": r"learners\[0\]\.alpha\[1\] = \[0.2\]: must be a number",
        "alpha = { linear = ['a', 1.0], count = 2 }": r"learners\[0\]\.alpha\.linear\[0\] = 'a'",
        "alpha = { rule = 'decy' }": r"learners\[0\]\.alpha\.rule = 'decy': .*mean decay",
        "alpha = { rule = 'decay', powr = 1 }": r"alpha\.powr = 1: unknown; did you mean power",
        "alpha = [1, { rule = 'decay', power = [2] }]": r"alpha\[1\]\.power = 2",
        "alpha = { rule = 'decay', power = 'x' }": r"learners\[0\]\.alpha\.power = 'x'",
        "alpha = { rule = 'decay', power = [] }": r"learners\[0\]\.alpha\.power = \[\]",
        "alpha = { rule = 'constant' }": r"learners\[0\]\.alpha = .*must have alpha",
        "alpha = [1.0, { rule = 'constant', alpha = 1 }]": r"alpha = 1.0: is there twice",
        "alpha = 0.1\nalfa_bar = 0.1": r"learners\[0\]\.alfa_bar = 0.1: .*mean alpha_bar",
        "alpha = 0.1\nalpha_bar = 'alfa'": r"learners\[0\]\.alpha_bar = alfa",
        "alpha = 0.1\nlam = 1.5": r"learners\[0\]\.lam",
        "alpha = 0.1\nalpha_mean = 0.1": r"learners\[0\]\.alpha_mean = 0.1: none of the methods",
        "alpha = 0.1\nestimand = 'mine'": r"learners\[0\]\.estimand",
        "alpha = 0.1\n[[learners]]\nmethod = 'direct'\nalpha = 0.1\nalpha_bar = 0.1\nkappa = 0": (
            r"learners\[1\] = .*is in learners\[0\] too; ranges must not overlap"
        ),
        "alpha = { linear = [0, 1], count = 9_999 }\nlam = { linear = [0, 1], count = 999 }": (
            r"learners\[0\] = 9,989,001 learners: must be at most"
        ),
        "alpha = 0.1\n[[learners]]\nmethod = 'direct'\nalpha = 0.1": (
            r"learners\[1\] = .*is in learners\[0\] too; ranges must not overlap"
        ),
    },
    'method = "direct"': {
        'method = "direkt"': r"learners\[0\]\.method = direkt: unknown; did you mean direct",
        "method = []": r"learners\[0\]\.method = \[\]",
        "method = ['vtd', 'vtd']": "twice",
        "method = 3": r"learners\[0\]\.method = 3",
    },
}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [(old, *pair) for old, group in BAD.items() for pair in group.items()],
)
def test_a_bad_specification_is_refused_with_the_path_of_the_field(tmp_path, old, new, message):
    assert GOOD.count(old) == 1
    path = tmp_path / "spec.toml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(InputError, match=message):
        Sweep.from_toml(path).plan()


def test_episodes_need_a_domain_in_which_they_end(tmp_path):
    with pytest.raises(InputError, match="complex-mdp has no edge that ends an episode"):
        small(steps=None, episodes=3, domains=[Domain(id="complex-mdp")]).plan()


def test_a_sweep_can_be_counted_in_episodes(tmp_path):
    sweep = small(steps=None, episodes=12, domains=[Domain(id="chain")], cell=CellSize())
    run(sweep, tmp_path / "out", ONE)
    assert collect(Store.open(tmp_path / "out")).value_rmse.dims[2] == "episode"


def test_errors_are_recorded_at_the_points_of_the_specification():
    for given, wanted in (
        (Points(at=10), [10, 20, 30, 40]),
        (Points(at=[0, 40]), [0, 40]),
        (Points(at="linear", points=2), [20, 40]),
        (Points(at="log", points=2), [1, 40]),
    ):
        assert small(record=given).plan().moments.tolist() == wanted


# ---------------------------------------------------------------------- collecting


def test_collecting_an_unfinished_sweep_is_refused_unless_it_may_be_partial(copy):
    store = Store.open(copy)
    store.path(store.plan.cells[3]).unlink()
    with pytest.raises(InputError, match="cells = 1: of 40 are missing"):
        collect(store)
    part = collect(store, partial=True)
    assert int(np.isnan(part.value_rmse.values).any(axis=2).sum()) == 2  # the runs of that cell


def test_of_an_unfinished_sweep_as_many_results_as_possible_are_kept():
    """One of 2 × 3 is missing: two learners in both domains are more than one domain of three."""
    errors, dims = np.ones((2, 3, 4)), ("domain", "learner", "run")
    errors[1, 2] = np.nan
    variables = {"variance_rmse": (dims, errors), "diverged": (dims, np.zeros(errors.shape, bool))}
    data = xarray.Dataset(variables, {"domain": ["x", "y"], "learner": ["a", "b", "c"]})
    left_out = finished(data)
    assert (left_out.domains, left_out.learners) == ([], ["c"])


def test_the_table_has_a_row_for_each_learner_of_each_cell(copy, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    store = Store.open(copy)
    save(store, tmp_path / "all.parquet")
    rows = parquet.read_table(tmp_path / "all.parquet").to_pylist()
    data = collect(store)
    assert len(rows) == 40
    assert sum(row["runs"] for row in rows) == data.diverged.size
    for row in rows[::7]:
        runs = slice(row["first_run"], row["first_run"] + row["runs"] - 1)
        one = data.sel(domain=row["domain"], learner=row["learner"], run=runs)
        assert row["value_rmse_mean"] == pytest.approx(float(one.value_rmse[-1].mean()))
        assert row["variance_rmse_std"] == pytest.approx(float(one.variance_rmse[-1].std(ddof=1)))


def test_another_ending_is_refused(copy, tmp_path):
    with pytest.raises(InputError, match=r"must end in \.nc or \.parquet"):
        save(Store.open(copy), tmp_path / "all.csv")


# ---------------------------------------------------------------------- the commands

SPEC = """
runs = 8
seed = 3
steps = 40
cell = { learners = 1, runs = 2 }
domains = [{ random = { states = 4, branching = 2 }, seeds = { count = 5 } }]
learners = [{ method = "direct", alpha = [0.05, 0.4], lam = 0.5 }]
"""


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SPEC)
    return path


def command(*arguments):
    return CliRunner().invoke(main, ["sweep", *map(str, arguments)])


def test_the_commands_in_their_order(spec, tmp_path, whole):
    """plan, run, status, retry, collect."""
    out, target = tmp_path / "out", tmp_path / "all.nc"
    planned = json.loads(command("plan", spec, "--json").stdout)
    assert (planned["cells"], planned["domains"], planned["learners"]) == (40, 5, 2)
    assert planned["seconds"] > 0
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
    size = sum(path.stat().st_size for path in (out / "cells").iterdir())
    assert 0.3 < planned["bytes"] / size < 30


def test_errors_are_one_line_and_status_2(spec, tmp_path):
    spec.write_text(SPEC.replace("alpha", "alfa"))
    result = command("run", spec, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert result.stderr.strip().splitlines()[-1].startswith("Error: learners[0].alfa = ")
    assert not (tmp_path / "out").exists()
    assert command("status", tmp_path / "nothing").exit_code == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_a_run_within_five_seconds_and_the_next_run_continues(tmp_path, number):
    """The program itself, during a long cell."""
    spec = tmp_path / "long.toml"
    spec.write_text(SPEC.replace("steps = 40", "steps = 30_000_000"))
    words = [sys.executable, "-m", "retvar", "sweep", "run", spec, "--out", tmp_path / "out"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as started:
        assert "0 of 40 cells" in started.stderr.readline()
        time.sleep(1.0)
        began = time.monotonic()
        started.send_signal(number)
        _, message = started.communicate(timeout=patience(30))
    assert time.monotonic() - began < patience(5)
    assert started.returncode == 128 + number
    assert "run the same command to continue" in message
    assert list((tmp_path / "out" / "cells").iterdir()) == []
    store = Store.create(tmp_path / "out", Sweep.from_toml(spec).plan())  # which tidies
    assert leftovers(store.folder) == []


def test_an_interrupt_releases_the_lease(tmp_path):
    class Impatient(Progress):
        def advance(self, done):
            if done == 3:
                raise Interrupted(signal.SIGTERM)

    with pytest.raises(Interrupted):
        run(small(), tmp_path / "out", ONE, progress=Impatient())
    assert leftovers(tmp_path / "out") == []
    assert status(Store.open(tmp_path / "out")).done == 3


# ---------------------------------------------------------------------- dask


def test_a_scheduler_that_does_not_answer_is_an_error_after_the_timeout(spec, tmp_path):
    pytest.importorskip("distributed")
    began = time.monotonic()
    words = ["run", spec, "--out", tmp_path / "out", "--cluster", "tcp://127.0.0.1:9"]
    result = command(*words, "--timeout", 1)
    assert result.exit_code == 2
    assert "no scheduler answered within 1 seconds" in result.stderr
    assert time.monotonic() - began < patience(15)


@pytest.mark.parametrize("words", [["--cluster", "nowhere"], ["--workers", "2"]])
def test_options_of_clusters_that_make_no_sense_are_refused(spec, tmp_path, words):
    assert command("run", spec, "--out", tmp_path / "out", *words).exit_code == 2


class Killer(Progress):
    """Kills workers by the process ids in their leases."""

    def __init__(self, out: Path, kills: int):
        self.out, self.kills, self.killed, self.last = out, kills, [], 0.0

    def check(self):
        if len(self.killed) == self.kills or time.monotonic() - self.last < 0.5:
            return
        for path in (self.out / "leases").glob("*"):
            try:
                pid = json.loads(path.read_bytes())["pid"]
            except (OSError, ValueError):
                continue
            if pid not in (*self.killed, os.getpid()):
                os.kill(pid, signal.SIGKILL)
                self.killed.append(pid)
                self.last = time.monotonic()
                return


@pytest.mark.soak
@pytest.mark.filterwarnings("default")
def test_with_dask_and_workers_killed_the_contents_are_those_of_a_local_run(tmp_path, whole):
    """One of two workers killed at work (of 6: 2 in `make soak`, over 400 cells)."""
    pytest.importorskip("distributed")
    workers, kills, count = (6, 2, 50) if SOAK else (2, 1, 5)
    sweep, out = small(count), tmp_path / "out"
    killer = Killer(out, kills)
    found = run(sweep, out, Dask("local", workers=workers), progress=killer)
    assert len(killer.killed) == kills
    assert found.complete
    expected = whole[1] if count == 5 else run(sweep, tmp_path / "local", ONE).digest
    assert found.digest == expected
    assert leftovers(out) == []


def test_a_sweep_is_drawn_and_compared_from_its_folder(tmp_path):
    """Curves, heat maps and the comparison: the same as from the collected dataset."""
    text = """
name = "small"
runs = 8
steps = 300
[record]
at = [300]
[[domains]]
random = { states = 4, actions = 2, branching = 2, gamma = 0.9 }
seeds = { first = 0, count = 2 }
[[learners]]
method = ["direct", "vtd"]
alpha = [0.05, 0.2]
alpha_bar = "alpha"
lam = [0.0, 0.9]
"""
    (tmp_path / "small.toml").write_text(text)
    out = str(tmp_path / "out")
    call = CliRunner().invoke
    assert call(main, ["sweep", "run", str(tmp_path / "small.toml"), "--out", out]).exit_code == 0
    for more, name in (([], "curves.png"), (["--y", "lam"], "maps.svg")):
        drawn = call(main, ["sweep", "plot", out, *more, "--out", str(tmp_path / name)])
        assert drawn.exit_code == 0, drawn.output
        assert (tmp_path / name).stat().st_size > 5_000
    message = call(main, ["sweep", "compare", out, "--plot", str(tmp_path / "compared.pdf")])
    assert message.exit_code == 0, message.output
    collected = rv.sweep.collect(rv.sweep.Store.open(tmp_path / "out"))
    assert message.stdout.strip() == rv.sweep.compare(collected).summary().strip()
    one = call(main, ["sweep", "compare", out, "--where", "lam=0.9", "--json"])
    assert "ratio" in json.loads(one.stdout) or json.loads(one.stdout)
    wrong = call(main, ["sweep", "plot", out, "--x", "beta", "--out", str(tmp_path / "x.png")])
    assert wrong.exit_code == 2
    assert "beta" in wrong.stderr
    assert not (tmp_path / "x.png").exists()


def test_a_sweep_has_the_errors_of_the_moments_that_its_learners_have(tmp_path):
    spec = """
    runs = 4
    steps = 40
    domains = [{ id = "complex-mdp" }]
    learners = [{ method = ["direct", "centred"], alpha = 0.1, order = [2, 4] }]
    """
    path = tmp_path / "moments.toml"
    path.write_text(spec)
    sweep = rv.sweep.Sweep.from_toml(path)
    rv.sweep.run(sweep, tmp_path / "out")
    data = rv.sweep.collect(rv.sweep.Store.open(tmp_path / "out"))
    with_them = data.order.values == 4
    assert with_them.sum() == 2
    for name in ("third_moment_rmse", "fourth_moment_rmse"):
        assert np.isfinite(data[name].values[:, with_them]).all()
        assert np.isnan(data[name].values[:, ~with_them]).all()
    low, high = data.variance_rmse.values[0, data.algorithm.values == "Direct"]
    assert np.array_equal(low, high)
    best = rv.sweep.compare(data, what="fourth_moment_rmse", where={"order": 4}, resamples=100)
    assert np.isfinite(best.data.ratio.values).all()
    with pytest.raises(rv.InputError, match="choose others by where, as in order=4"):
        rv.sweep.compare(data, what="fourth_moment_rmse", resamples=100)


def test_vtd_with_moments_is_refused_with_the_path_of_the_field():
    table = rv.sweep.Learners(method="vtd", alpha=0.1, order=4)
    sweep = rv.sweep.Sweep(runs=1, steps=1, domains=[rv.sweep.Domain(id="chain")], learners=[table])
    with pytest.raises(rv.InputError, match=r"learners\[0\].order = 4: VTD has moments up to"):
        sweep.plan()
