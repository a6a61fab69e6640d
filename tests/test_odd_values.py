"""Numbers of every type and size, and values that cannot be shown: typed errors and finite work."""

import ast
import json
import re
import subprocess
import sys
import warnings
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import xarray
from click.testing import CliRunner

import retvar as rv
from retvar.arguments import generator, integer, is_integer, number
from retvar.arguments import level as level_of
from retvar.cli import main
from retvar.errors import InputError
from retvar.estimation.neighbours import Neighbours
from retvar.estimation.return_sample import ReturnSample
from retvar.estimation.setup import make_learner
from retvar.estimation.visits import Regions
from retvar.features import TileCoding

FAR = [1e155, 1e200, 1e308, -1e308]


@pytest.fixture(autouse=True)
def _no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield


# ---------------------------------------------------------------------- places far away

SEARCH = """
import numpy as np
from retvar.estimation.neighbours import Neighbours
r = np.random.default_rng(0)
s = Neighbours(r.random((4_000, 2)), r.normal(size=4_000), np.zeros(4_000), np.arange(4_000) // 10)
for _ in range(20):
    assert s.at([[1e155, 0.5]]).far.all()
"""


def test_places_whose_distance_overflows_leave_the_heap_whole():
    """In a process of its own, since it would be aborted."""
    assert subprocess.run([sys.executable, "-c", SEARCH], capture_output=True).returncode == 0


@pytest.mark.parametrize("far", FAR)
@pytest.mark.parametrize("unit", [1e-200, 1.0, 1e100])
def test_places_far_beyond_all_data_are_said_to_be_far(far, unit):
    rng = np.random.default_rng(0)
    x = unit * rng.uniform(size=(400, 2))
    spread = Neighbours(x, rng.normal(size=400), np.zeros(400), np.arange(400))
    found = spread.at([[far, 0.5 * unit], [0.5 * unit, far], [far, -far], [0.5 * unit] * 2])
    assert found.far.tolist() == [True, True, True, False]
    assert np.isnan(found.std).tolist() == [True, True, True, False]


def test_the_segments_of_equally_far_visits_are_all_found():
    """Each once, although no distance is below another."""
    x = np.zeros((100, 1))
    spread = Neighbours(x, np.arange(100) % 2, np.zeros(100), np.arange(100) // 2)
    near = spread.near(np.array([[1e200]]))
    assert np.unique(near.visits // 2).size == near.visits.shape[1]


def test_an_estimate_with_features_does_not_answer_at_huge_places():
    """Nor do rows with such places keep a check from its answer."""
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(2_000, 2))
    columns = {"x": x[:, 0], "y": x[:, 1], "reward": rng.normal(size=2_000)}
    log = columns | {"terminated": np.arange(2_000) % 5 == 4}
    found = rv.estimate(
        rv.experience.from_table(log, state=["x", "y"]),
        features=TileCoding([0.0, 0.0], [1.0, 1.0], tiles=4),
        gamma=0.9,
    )
    for far in FAR:
        assert np.isnan([found.value([far, far]), found.std([far, 0.5])]).all()
        assert np.isnan(found.interval([0.5, far])).all()
    fresh = {name: column.copy() for name, column in log.items()}
    fresh["x"][::100] = 1e308
    fresh["y"][::70] = -1e308
    assert "agree" in str(rv.check(found, rv.experience.from_table(fresh, state=["x", "y"])))
    rv.estimate(
        rv.experience.from_table(fresh, state=["x", "y"]),
        features=TileCoding([0.0, 0.0], [1.0, 1.0], tiles=4),
        gamma=0.9,
    )


def test_regions_count_huge_observations_at_the_edge():
    regions = Regions(np.array([-1e308]), np.array([1e308]))
    regions.add(np.array([[1.7e308], [1.7e308], [-1.7e308]]))
    assert regions.visits(np.array([[1e308], [0.0], [-1e308]])) == [2, 0, 1]
    assert Regions.from_dict(regions.to_dict()).to_dict() == regions.to_dict()


# ---------------------------------------------------------------------- seeds

SEED = """
import retvar as rv
circular = []
circular.append(circular)
try:
    rv.domains.random_mdp(3, 2, 2, seed=circular)
except rv.InputError:
    print("refused")
"""


def test_a_list_in_itself_is_no_seed():
    """In a process of its own, since it would be aborted."""
    assert subprocess.run([sys.executable, "-c", SEED], capture_output=True).stdout == b"refused\n"


@pytest.mark.parametrize("seed", [[[1]], [], "7", 1.0, True, range(10**12), [-1], np.array(["1"])])
def test_what_is_no_seed_is_refused(seed):
    with pytest.raises(InputError, match="seed"):
        generator("seed", seed)


@pytest.mark.parametrize("seed", [7, np.uint8(7), [7, 1], (7, 1), np.array([7, 1])])
def test_seeds_are_those_of_numpy(seed):
    assert generator("seed", seed).random() == np.random.default_rng(seed).random()
    for made in (np.random.SeedSequence(7), np.random.PCG64(7), np.random.default_rng(7)):
        assert 0 <= generator("seed", made).random() < 1
    assert 0 <= generator("seed", None).random() < 1


# ---------------------------------------------------------------------- narrow integers


def test_narrow_integers_compute_as_python_integers():
    assert rv.Record(every=np.uint8(100)).moments(1_000).size == 10
    narrow = {"states": np.int16(200), "actions": np.int16(100), "branching": np.int16(5)}
    assert rv.domains.random_mdp(**narrow).edges.state.size == 100_000
    world = rv.domains.linear_gaussian(0.5, 1.0, 1.0, 0.9)
    assert world.sample(1, np.int8(127))[1].shape == (127, 1)
    assert world.sample(np.uint8(200), np.uint8(255))[0].shape == (256, 200, 1)
    log = rv.experience.from_linear_gaussian(world, steps=64, streams=np.uint8(1))
    assert sum(len(chunk["reward"]) for chunk in log.chunks()) == 64
    assert type(rv.features.Polynomial([0.0], [1.0], degree=np.int8(3)).degree) is int
    assert type(rv.Direct(alpha=0.1, gamma=0.9).online(states=np.int8(3)).features[0].size) is int


def test_no_checked_integer_is_thrown_away():
    """The result of a check is used; only `CHECKED` need no more than the check."""
    dropped = set()
    for path in sorted(Path(rv.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                name = ast.unparse(node.value.func).removeprefix("arguments.")
                if name in ("integer", "number", "level", "seconds"):
                    dropped.add(f"{path.name}: {ast.unparse(node.value)}")
    assert {d for d in dropped if not d.startswith(CHECKED)} == set()


CHECKED = (  # converted before, or by the reader of a file
    "spec.py: ",
    "cluster.py: arguments.integer('workers'",
    "columns.py: arguments.integer('stream', int(",
    "editor.py: arguments.integer('row'",
    "record.py: arguments.integer('record.at', int(",
    "tabular.py: arguments.integer('streams', len(",
    "estimate.py: seconds('--every'",
)


# ---------------------------------------------------------------------- other types of numbers

RARE = [Fraction(1, 3), np.longdouble(0.3), np.float32(0.5)]


@pytest.mark.parametrize("number", RARE, ids=lambda x: type(x).__name__)
@pytest.mark.parametrize("setting", ["alpha", "gamma", "lam", "kappa", "kappa_bar", "alpha_bar"])
def test_settings_of_learners_are_plain_numbers(setting, number):
    learner = rv.Direct(**{"alpha": 0.1, "gamma": 0.9, "lam": 0.9, setting: number})
    plain = rv.Direct(**{"alpha": 0.1, "gamma": 0.9, "lam": 0.9, setting: float(number)})
    assert type(getattr(learner, setting)) is float
    assert json.dumps(learner.to_dict()) == json.dumps(plain.to_dict())
    learner.online(states=2).update(0, 1.0, 1)
    if setting not in ("gamma", "lam"):
        lists = rv.Direct(alpha=0.1, gamma=[number, number], lam=(number, 1), value=[number, 0.0])
        json.dumps(lists.to_dict())
        lists.online(states=2).update(0, 1.0, 1)


@pytest.mark.parametrize("number", RARE, ids=lambda x: type(x).__name__)
def test_curves_and_sweeps_take_all_types_of_numbers(number):
    chain = rv.domains.chain()
    rv.expected_curve(chain, rv.Direct(alpha=number), steps=3)
    rv.simulate(chain, rv.Direct(alpha=number), steps=3, runs=2, seed=0)
    learners = rv.sweep.Learners(method="direct", alpha=number)
    sweep = rv.sweep.Sweep(
        runs=2, steps=5, domains=[rv.sweep.Domain(id="chain")], learners=[learners]
    )
    assert sweep.to_dict()["learners"][0]["alpha"] == float(number)


def test_whole_numbers_of_learners_stay_whole():
    """Digests of stored learners do not change."""
    assert rv.Direct(alpha=1, gamma=np.int64(1)).to_dict()["gamma"] == 1
    assert '"gamma": 1,' in json.dumps(rv.Direct(alpha=1, gamma=np.int64(1)).to_dict())


@pytest.mark.parametrize("level", [np.longdouble(0.5), Fraction(1, 2), np.float32(0.5)])
def test_levels_are_of_any_type_of_number(level):
    sample = ReturnSample.whole(np.arange(100.0))
    assert sample.quantile(level) == sample.quantile(0.5)
    lake = rv.experience.from_gymnasium("FrozenLake-v1", steps=1_000, seed=1)
    found = rv.estimate(lake, gamma=0.9)
    assert found.interval(0, level=level) == found.interval(0, level=0.5)


@pytest.mark.parametrize("huge", [Fraction(10**400, 3), 10**400, np.longdouble("1e4000")])
def test_numbers_beyond_all_floats_are_refused(huge):
    for make in (lambda: rv.Direct(alpha=huge), lambda: rv.Decay(huge), lambda: number("x", huge)):
        with pytest.raises(InputError, match="finite number"):
            make()


@pytest.mark.parametrize("duration", [np.timedelta64(3, "s"), np.timedelta64(3)])
def test_durations_are_no_numbers(duration):
    assert not is_integer(duration)
    for make in (
        lambda: number("x", duration),
        lambda: integer("x", duration),
        lambda: level_of("x", duration),
        lambda: rv.Decay(duration),
        lambda: rv.Direct(alpha=duration),
        lambda: rv.Direct(alpha=0.1, gamma=0.9).online(states=5).update(duration, 0.0, 1),
        lambda: rv.Direct(alpha=0.1, gamma=0.9).online(states=5).update(1, 0.0, 1, stream=duration),
    ):
        with pytest.raises(InputError):
            make()


class NoBool:
    """What cannot be compared, as pandas' NA."""

    def __eq__(self, other):
        return self

    def __hash__(self):
        return 0

    def __bool__(self):
        raise TypeError("ambiguous")


UNCOMPARABLE = [np.void((0.0,), dtype=[("a", "<f8")]), Decimal("sNaN"), NoBool()]


@pytest.mark.parametrize("odd", UNCOMPARABLE, ids=lambda x: type(x).__name__)
@pytest.mark.parametrize("flag", ["terminated", "truncated"])
def test_flags_that_cannot_be_compared_are_refused(flag, odd):
    learner = rv.Direct(alpha=0.1, gamma=0.9, lam=0.9)
    sampled = learner.online(states=2, bootstrap_samples=20)
    for estimator in (learner.online(states=2), learner.online(features=2), sampled):
        state = [0.0, 1.0] if estimator.features[0].states is None else 0
        with pytest.raises(InputError, match=flag):
            estimator.update(state, 0.0, state, **{flag: odd})
    with pytest.raises(InputError, match=flag):
        learner.online(states=2).update_many(
            {"state": [0], "reward": [0.0], "next_state": [1], flag: [odd]}
        )
    actor = rv.ActorCritic(rv.Direct(alpha=0.1, gamma=0.9, lam=1.0), 2, states=2)
    with pytest.raises(InputError, match=flag):
        actor.update(0, 0, 0.0, 1, **{flag: odd})


# ---------------------------------------------------------------------- values that cannot be shown


def deep_list(depth=5_000):
    found = []
    for _ in range(depth):
        found = [found]
    return found


@pytest.mark.parametrize("odd", [deep_list(), {"a": deep_list()}], ids=["list", "dict"])
def test_what_cannot_be_shown_is_refused(odd):
    chain = rv.domains.chain()
    for call in (
        lambda: integer("x", odd),
        lambda: rv.Direct(alpha=odd),
        lambda: rv.Decay(odd),
        lambda: rv.solve(chain, target=odd),
        lambda: rv.simulate(chain, rv.Direct(alpha=0.1), steps=3, runs=odd, seed=0),
        lambda: rv.estimate(odd),
        lambda: rv.experience.from_table({"state": [0]}, state=odd),
        lambda: rv.domains.random_mdp(3, 2, 2, seed=odd),
    ):
        with pytest.raises(InputError) as caught:
            call()
        assert len(str(caught.value)) < 1_000


def test_errors_show_their_values_by_one_function():
    """No message is made by `repr`, which fails for some values."""
    root = Path(rv.__file__).parent
    for path in root.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"InputError\([^()]*\brepr\(", text), path


# ---------------------------------------------------------------------- sizes


def test_endless_ranges_are_refused_before_an_array_is_made():
    endless = range(10**12)
    tabular = rv.estimate(rv.experience.from_gymnasium("FrozenLake-v1", steps=500), gamma=0.9)
    for call in (
        lambda: rv.PerRun(endless),
        lambda: rv.Direct(alpha=0.1, gamma=endless),
        lambda: make_learner(gamma=endless),
        lambda: rv.Direct(alpha=0.1, gamma=0.9).online(features=2).update(endless, 0.0, [0.0, 1.0]),
        lambda: rv.features.Fourier.from_data([[0.0], [1.0]], margin=endless),
        lambda: rv.features.Fourier.from_data(endless),
        lambda: tabular.estimator.predict(endless),
        lambda: tabular.interval(states=endless),
    ):
        with pytest.raises(InputError):
            call()


class Unruly:
    """Something that cannot be gone through, for a reason of its own."""

    def __iter__(self):
        raise ValueError("not today")


def test_what_cannot_be_gone_through_is_refused():
    for call in (
        lambda: rv.MDP.from_edges([(0, 0, 0, 1.0, 1.0)], states=Unruly()),
        lambda: rv.features.TileCoding([0.0], [1.0], tiles=Unruly()),
        lambda: rv.Record(at=Unruly()),
    ):
        with pytest.raises(InputError):
            call()


@pytest.mark.parametrize("odd", [[1j, 2], np.array([1j, 2]), ["a", 1.0], [np.longdouble("1e4000")]])
def test_features_are_real_numbers(odd):
    learner = rv.Direct(alpha=0.1, gamma=0.9, lam=0.5).online(features=rv.features.Vector(2))
    with pytest.raises(InputError, match="state"):
        learner.update(odd, 1.0, [1.0, 2.0])
    assert learner.steps == 0


@pytest.mark.parametrize("name", ["a\0b.svg", "a\ud800b.svg"])
@pytest.mark.parametrize("words", [["draw", "chain"], ["reproduce", "--out"]], ids=["draw", "out"])
def test_a_name_that_no_file_can_have_is_refused(words, name):
    ended = CliRunner().invoke(main, [*words, name])
    assert (ended.exit_code, type(ended.exception)) == (2, SystemExit)
    assert "is no name of a file" in ended.output


def test_states_of_no_dimension_or_no_array_are_refused():
    found = rv.estimate(rv.experience.from_gymnasium("FrozenLake-v1", steps=500), gamma=0.9)
    for states in (np.array("a"), xarray.Dataset()):
        for call in (found.return_interval, found.interval):
            with pytest.raises(InputError):
                call(states=states)
    with pytest.raises(InputError):
        found.estimator.value(xarray.Dataset())


# ---------------------------------------------------------------------- large numbers


def test_statistics_of_large_numbers_are_finite_and_quiet():
    assert rv.sweep.interquartile_mean([1e308] * 4) == 1e308
    assert rv.sweep.interquartile_mean([1.0, np.inf, np.inf, np.inf]) == np.inf
    found = rv.sweep.bootstrap_interval([1e308, -1e308, 1e308, 1e308], resamples=100)
    assert np.isfinite(found).all()
    assert rv.sweep.bootstrap_interval([1e308, 1e308, -1e308], np.mean).estimate == np.inf
    assert rv.sweep.signed_rank(np.longdouble("1e4000")) == 1.0


@pytest.mark.parametrize("p", [[1e308] * 3, [1.1], [-0.1]])
def test_p_values_lie_between_0_and_1(p):
    with pytest.raises(InputError, match=r"\[0, 1\]"):
        rv.sweep.holm(p)


# ---------------------------------------------------------------------- found by the fuzzer

ENDLESS = range(10**12)
DEEP: list = []
for _ in range(5_000):
    DEEP = [DEEP]


def critic():
    return rv.Direct(alpha=0.1, gamma=0.9, lam=0.9).online(states=2)


@pytest.mark.parametrize(
    "call",
    [
        lambda: rv.simulate(rv.domains.chain(), rv.Direct(alpha=0.1), runs=1, seed=1, steps=5,
                            record=ENDLESS),
        lambda: rv.grid(rv.Direct, alpha=ENDLESS),
        lambda: rv.expected_curve(rv.domains.chain(), rv.Direct(alpha=0.1), steps=5,
                                  features=np.full((4, 2), 1e200)),
        lambda: rv.expected_curve(rv.domains.chain(), rv.Direct(alpha=0.1), steps=5,
                                  features=np.full((4, 2), 1e308)),
        lambda: critic().update_many({"state": [0], "reward": [1.0], "next_state": [1],
                                      "lam": [1j]}),
        lambda: critic().update(0, [1e200], 1, gamma=Decimal("sNaN")),
        lambda: rv.domains.chain().policy([[1.0]], field=DEEP),
        lambda: rv.Policy([[0.5]], field=DEEP),
        lambda: rv.MDP(rv.domains.chain().edges, name=DEEP),
        lambda: rv.experience.from_gymnasium("FrozenLake-v1", steps=5, policy=ENDLESS),
    ],
    ids=range(10),
)  # fmt: skip
def test_endless_nested_and_complex_values_are_refused(call):
    with pytest.raises(InputError):
        call()
