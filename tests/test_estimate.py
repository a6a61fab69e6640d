"""`estimate`: from experience to value ± spread, against exact answers and plain loops."""

from collections import Counter
from dataclasses import replace

import gymnasium
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import chi2

import retvar as rv
from retvar import check
from retvar.estimation.episodes import complete
from retvar.estimation.returns import Returns, begin
from retvar.experience import Experience, from_gymnasium, from_table
from retvar.support.errors import InputError, SourceError

ANSWERS = ("value", "variance", "std")
METHODS = {"direct": rv.Direct, "centred": rv.Centred, "vtd": rv.VTD}


def of_method(method, gamma=None, lam=1.0):
    """A learner of this method."""
    traces = {"kappa": 0.9, "kappa_bar": 0.9}
    return METHODS[method](alpha=rv.Averaged(), gamma=gamma, lam=lam, **traces)


# ---------------------------------------------------------------------- returns


def random_rows(rng, n, keys, *, width=2):
    """Columns of trajectories one after the other, with everything in them."""
    ends = rng.choice([0, 0, 0, 0, 0, 0, 1, 2, 3], size=n)
    ends[-1] = 2
    return {
        "key": rng.integers(-1, keys, size=n),
        "state": rng.normal(size=(n, width)),
        "next_state": rng.normal(size=(n, width)),
        "reward": rng.normal(size=n),
        "gamma": np.where(rng.random(n) < 0.1, 0.0, rng.uniform(0.5, 1, n)),
        "lam": np.where(rng.random(n) < 0.5, 1.0, rng.random(n)),
        "eta": np.where(rng.random(n) < 0.5, 1.0, rng.uniform(0, 1, n)),
        "terminated": ends % 2 == 1, "truncated": ends >= 2,
    }  # fmt: skip


def value(rows):
    """A value function."""
    return np.cos(rows).sum(axis=1) * 3


def plain_returns(rows, value=value):
    """Every return by its definition: follow it to its end, then add up backwards."""
    n, follows = len(rows["reward"]), value(rows["next_state"])
    busy, begun = {}, []  # until when a key is taken; of each return what is compared
    for t in range(n):
        k = int(rows["key"][t])
        if k < 0 or busy.get(k, -1) >= t:
            continue
        share, steps = 1.0, []
        for u in range(t, n):
            g = 0.0 if rows["terminated"][u] else rows["gamma"][u]
            share *= rows["eta"][u] * g * rows["lam"][u]
            steps.append((u, g))
            if share < 0.05 or rows["truncated"][u]:
                break
        busy[k], cut = u, share >= 1e-4
        G = follows[u] if cut else 0.0
        for u, g in reversed(steps):
            lam, v = rows["lam"][u], follows[u]
            G = rows["eta"][u] * (rows["reward"][u] + g * ((1 - lam) * v + lam * G))
        end = steps[-1][0]
        begun.append((k, G, share**2 * follows[end] ** 2 if cut else 0.0, cut, t))
    return begun


def collected(rows, most=10_000):
    """`Returns` of these rows."""
    returns = Returns(rows["state"].shape[1], most)
    of_the_data = rv.Direct(alpha=0.0, estimand="off_policy_return")
    complete_rows = complete(of_the_data, rows | {"rho": rows["eta"]})
    (begun,) = begin([rows["key"]], complete_rows, value(rows["next_state"]))
    returns.add(begun, complete_rows)
    return returns


@pytest.mark.parametrize("seed", range(6))
def test_returns_are_those_of_their_definition(seed):
    """Ends, cuts, λ and η: the same returns, in the order in which they begin."""
    rng = np.random.default_rng(seed)
    rows = random_rows(rng, 400, rng.integers(1, 8))
    expected, found = plain_returns(rows), collected(rows)
    assert len(expected) > 20
    assert found.count == len(expected)
    assert_array_equal(found.rest != 0, [cut for *_, cut, _ in expected])
    whole = found.completed(value)
    assert_allclose(whole, [G for _, G, *_ in expected], rtol=1e-9, atol=1e-12)
    missing = found.missing_variance(lambda reached: value(reached) ** 2)
    assert_allclose(missing, [m for _, _, m, *_ in expected], rtol=1e-9, atol=1e-15)
    assert_array_equal(found.start, rows["state"][[t for *_, t in expected]])


@pytest.mark.parametrize(("most", "times"), [(100, 100), (1_000, 20), (4_000, 3)])
def test_where_there_are_more_returns_those_kept_are_a_uniform_sample(most, times):
    """χ² over 20 parts of the stream; three tests at 1e-7 each.

    A choice without replacement varies less than the χ² law by (1 − stored/all), which only makes
    the test stricter towards too even a choice; that is bounded as well.
    """
    n = most * times
    one, zero, found = np.ones(n), np.zeros(n, dtype=np.int64), Returns(1, most)
    number = np.arange(n, dtype=float)
    rows = {"state": number, "next_state": number, "reward": number, "gamma": one,
            "lam": one, "terminated": zero == 0, "truncated": zero == 1}  # fmt: skip
    for part in np.array_split(np.arange(n), 13):
        each = {name: column[part] for name, column in rows.items()}
        found.add(*begin([zero[part]], each), each)
    assert found.count == n
    stored = found.completed(value)
    assert stored.size == np.unique(stored).size == most
    counts = np.histogram(stored, bins=20, range=(0, n))[0]
    statistic = ((counts - most / 20) ** 2 / (most / 20)).sum() / (1 - 1 / times)
    assert chi2.ppf(1e-7, 19) < statistic < chi2.isf(1e-7, 19)


@pytest.mark.parametrize("lam", [1.0, 0.6])
def test_returns_are_unbiased_given_the_state_they_began_in(lam):
    """Means of the returns of each state against the closed form: within 6 standard errors.

    Twelve states: a false alarm has probability 12 × 2e-9. The variance of one key agrees too, to
    a quarter (measured: within 6%).
    """
    mdp = rv.domains.random_mdp(12, 3, 4, gamma=0.9, seed=3)
    steps = rv.replay(mdp, seed=8, steps=300_000)
    truth = rv.solve(mdp, lam=lam)
    n = len(steps["reward"])
    value = np.append(truth.value, 0.0)
    returns = Returns(1, 200_000)
    follows = value[steps["next_state"]]
    ends = {"truncated": np.zeros(n, dtype=bool), "lam": np.full(n, lam)}
    rows = complete(rv.Direct(alpha=0.0), steps | ends)
    returns.add(*begin([steps["state"]], rows, follows), rows)
    observed = returns.completed(lambda rows: value[rows[:, 0].astype(int)])
    for s in range(12):
        mine = observed[returns.start[:, 0] == s]
        assert mine.size > 300
        error = mine.std(ddof=1) / np.sqrt(mine.size)
        assert abs(mine.mean() - truth.value[s]) < 6 * error + 1e-4 * np.abs(value).max()
        assert 0.75 < mine.var() / truth.variance[s] < 1.25


@pytest.mark.parametrize(
    ("lam", "by"), [(1.0, "td"), (0.8, "least_squares"), ("in the data", "td")]
)
def test_observed_returns_are_those_of_the_log_with_the_final_values(lam, by):
    """A noisy walk in three streams, cut off or ended every 30 steps: against a plain loop."""
    rng = np.random.default_rng(11)
    n, states = 1_530, 5
    state, over = rng.integers(states, size=n), np.arange(n) // 3 % 30 == 29
    ended = over & (rng.random(n) < 0.3)
    rows = {
        "state": state, "next_state": rng.integers(states, size=n), "reward": rng.normal(state),
        "truncated": over & ~ended, "terminated": ended, "stream": np.arange(n) % 3,
    }  # fmt: skip
    lams = rng.uniform(0.5, 1, n) if lam == "in the data" else np.full(n, lam)
    if lam == "in the data":
        rows["lam"] = lams

    def source(counts):
        for part in np.array_split(np.arange(n), 7):
            yield {name: column[part] for name, column in rows.items()}

    given = None if lam == "in the data" else lam
    walk = Experience("a walk", source, states=states)
    found = rv.estimate(walk, gamma=0.9, lam=given, by=by)
    final = found.estimator.value()
    plain = {
        "key": state, "next_state": rows["next_state"][:, None], "reward": rows["reward"],
        "gamma": np.full(n, 0.9), "lam": lams, "eta": np.ones(n),
        "terminated": rows["terminated"], "truncated": rows["truncated"],
    }  # fmt: skip
    order = np.argsort(rows["stream"], kind="stable")  # trajectory by trajectory
    plain = {name: column[order] for name, column in plain.items()}
    expected = plain_returns(plain, lambda reached: final[reached[:, 0]])
    returns = found.monitor.returns
    shown = returns.missing_share <= 0.3
    assert np.count_nonzero((returns.rest != 0) & shown) > 20
    assert_allclose(
        found.data["observed"], np.array([G for _, G, *_ in expected])[shown], rtol=1e-9, atol=1e-9
    )
    assert_array_equal(found.data["sample_state"], np.array([k for k, *_ in expected])[shown])


# ---------------------------------------------------------------------- exact answers


@pytest.mark.parametrize("method", ["direct", "centred", "vtd"])
@pytest.mark.parametrize("lam", [0.5])
def test_every_method_comes_close_to_the_exact_answer(method, lam):
    """The complex MDP on its own policy, 60,000 steps: within 5 standard errors of the bootstrap.

    Measured: at most 3.1 over these cases; plain errors below 0.05 of the largest std.
    """
    mdp = rv.domains.complex_mdp()
    log = rv.replay(mdp, seed=4, steps=60_000)
    columns = {name: log[name] for name in ("state", "reward", "next_state", "gamma")}
    experience = from_table(columns, terminated=False, gamma="gamma")
    found = rv.estimate(experience, of_method(method, lam=lam))
    truth = rv.solve(mdp, lam=lam)
    assert found.data.attrs["method"] == method
    assert (found.data.attrs["gamma"], found.data.attrs["lam"]) == ("in the data", lam)
    for what in ("value", "variance"):
        low, high = found.estimator.interval(what=what)
        error = (high - low) / (2 * 1.6449)
        off = np.abs(found.data[what].values - getattr(truth, what)) / error
        assert off.max() < 5, (what, off)


@pytest.mark.parametrize("estimand", ["target_return", "off_policy_return"])
def test_an_off_policy_log_gives_estimates_of_the_target_policy(tmp_path, estimand):
    """Complex MDP, behaviour μ, target π, as Parquet with both probabilities; 200,000 steps.

    Both estimands within 5 standard errors of the closed form; the effective sample size is
    (Σρ)²/Σρ², and returns of the target cannot be observed unless ratios weight them.
    """
    mdp = rv.domains.complex_mdp()
    log = rv.replay(mdp, target="pi", behaviour="mu", steps=200_000, seed=3)
    columns = {name: log[name] for name in ("state", "reward", "next_state", "gamma", "lam")}
    chance = np.full(200_000, 0.25)
    pq.write_table(
        pa.table(columns | {"mu": chance, "pi": chance * log["rho"]}), tmp_path / "a.parquet"
    )
    stream = from_table(
        tmp_path / "a.parquet", terminated=False, gamma="gamma", lam="lam",
        behaviour="mu", target="pi",
    )  # fmt: skip
    found = rv.estimate(stream, estimand=estimand)
    truth = rv.solve(mdp, "pi", "mu", estimand)
    for what in ("value", "variance"):
        low, high = found.estimator.interval(what=what)
        off = np.abs(found.data[what].values - getattr(truth, what)) / ((high - low) / 3.29)
        assert off.max() < 5, (what, off)
    rho = log["rho"]
    attrs = found.data.attrs
    assert_allclose(attrs["effective_sample_size"], rho.sum() ** 2 / (rho**2).sum())
    assert attrs["largest_ratio"] == rho.max()
    assert ("observed" in found.data) == (estimand == "off_policy_return")


def test_a_chunk_in_which_all_ratios_are_one_is_no_fair_sample_of_returns():
    """Where the log is off-policy, returns are not collected from its lucky stretches."""

    def source(counts):
        for rho in (0.5, 1.0):
            n = 100
            yield {
                "state": np.zeros(n, dtype=np.int64), "next_state": np.zeros(n, dtype=np.int64),
                "reward": np.ones(n), "terminated": np.ones(n, dtype=bool), "rho": np.full(n, rho),
            }  # fmt: skip

    found = rv.estimate(Experience("lucky", source, states=1), gamma=0.5)
    assert "observed" not in found.data


# ---------------------------------------------------------------------- what comes out


def test_states_are_labelled_and_those_never_visited_are_nan():
    log = from_table({"state": ["a", "b", "a", "c"], "reward": [1.0, 2.0, 3.0, 4.0],
                      "next_state": ["b", "z", "c", "a"],
                      "terminated": [False, True, False, True]})  # fmt: skip
    data = rv.estimate(log, gamma=0.5).data
    assert data["label"].values.tolist() == ["a", "b", "c"]
    lake = rv.estimate(from_gymnasium("FrozenLake-v1", steps=500, seed=1), gamma=0.9).data
    never = lake["visits"].values == 0
    assert never[[5, 7, 11, 12, 15]].all()
    assert_array_equal(np.isnan(lake["value"].values), never)
    assert np.isnan(lake["std_high"].values[never]).all()
    assert set(lake["note"].values[never]) <= {"never left", "never visited"}


@pytest.mark.parametrize("by", ["td", "least_squares"])
def test_tables_grow_with_new_states(by):
    """States that appear late are learned as if the table had had them from the start."""
    rng = np.random.default_rng(0)
    state = np.concatenate([rng.integers(3, size=2_000), rng.integers(16, size=2_000)])
    ends = rng.random(4_000) < 0.2
    ends[-1] = True
    rows = {"state": state, "reward": rng.normal(size=4_000), "terminated": ends,
            "next_state": np.append(state[1:], 0)}  # fmt: skip

    def source(counts):
        for first in range(0, 4_000, 500):
            yield {name: column[first : first + 500] for name, column in rows.items()}

    late, early = (
        rv.estimate(Experience("a walk", source, states=states), gamma=0.9, by=by)
        for states in (None, 16)
    )
    with pytest.raises(InputError) as caught:
        rv.estimate(Experience("a walk", source, states=5), gamma=0.9, by=by)
    assert caught.value.field == "state"
    for name in early.data.data_vars:
        if early.data[name].dims == ("state",):
            assert_array_equal(late.data[name], early.data[name], err_msg=name)


G_ROWS = {"state": [0, 0], "next_state": [0, 0], "reward": [1.0, 1.0], "g": [0.5, 0.5],
          "terminated": [False, False]}  # fmt: skip


def test_a_gamma_of_the_data_is_used(tmp_path):
    """In a file that retvar wrote its column need not be named; giving the same γ is allowed."""
    path = tmp_path / "own.parquet"
    from_table(G_ROWS, gamma="g").save(path)
    own = rv.estimate(from_table(path), by="td")
    assert own.data.attrs["gamma"] == "in the data"
    same = rv.estimate(from_table(path), of_method("direct", gamma=0.5))
    assert_array_equal(own.estimator.value(), same.estimator.value())
    for name in ("gamma", "lam"):  # another one is refused
        from_table(G_ROWS, **{name: "g"}).save(path)
        with pytest.raises(InputError) as caught:
            rv.estimate(from_table(path), **({"gamma": 0.9} | {name: 0.2}))
        assert caught.value.field == name


def test_a_state_that_was_only_entered_has_a_row():
    row = {"state": [0], "next_state": [1], "reward": [1.0], "truncated": [True]}
    source = iter([{name: np.array(column) for name, column in row.items()}])
    data = rv.estimate(Experience("mine", lambda counts: source), gamma=0.9).data
    assert data["visits"].values.tolist() == [1, 0]
    assert data["note"].values[1] == "never left"


def lake(steps=200, **options):
    return from_gymnasium("FrozenLake-v1", steps=steps, **options)


def car():
    return from_gymnasium("MountainCar-v0", steps=100)


def huge():
    rows = {"state": [0, 5_000_000], "next_state": [1, 1], "reward": [1.0, 1.0]}
    return from_table(rows, terminated=False)


def saved(folder):
    rv.estimate(lake(500, seed=1), gamma=0.9).save(folder / "a.safetensors")
    return folder / "a.safetensors"


OWN = rv.Direct(alpha=rv.Averaged(), gamma=0.9, lam=1.0)
REFUSED = [
    # experience, settings (γ is 0.9 beside them), field
    (lake, {"gamma": None}, "gamma"),
    (lake, {"level": 90}, "level"),
    (lake, {"estimand": "both"}, "estimand"),
    (lake, {"features": "tiles"}, "features"),
    (lake, {"by": "luck"}, "by"),
    (lake, {"by": "least_squares", "learner": OWN, "gamma": None}, "learner"),
    (lake, {"learner": OWN}, "gamma"),
    (lake, {"learner": OWN, "gamma": None, "lam": 1.0}, "lam"),
    (lake, {"learner": OWN.replace(gamma=None), "gamma": None}, "gamma"),
    (lake, {"learner": OWN.replace(lam=None), "gamma": None}, "lam"),
    (lake, {"resume": saved}, "gamma"),
    (lake, {"resume": saved, "gamma": None, "level": 0.5}, "level"),
    (car, {"resume": saved, "gamma": None}, "resume"),
    (car, {"features": "wavelets"}, "features"),
    (car, {"features": "deeper"}, "features"),
    (car, {"features": ["waves"], "by": "td"}, "features"),
    (lambda: from_table(G_ROWS, gamma="g"), {"gamma": [0.5, 0.5]}, "gamma"),
    (lambda: from_table(G_ROWS, lam="g"), {"lam": 0.7}, "lam"),
    (huge, {"by": "td"}, "state"),
    (huge, {}, "state"),
    (lambda: Experience("nothing", lambda counts: iter(()), states=2), {}, "experience"),
]


@pytest.mark.parametrize(("make", "settings", "field"), REFUSED)
def test_what_cannot_be_estimated_is_refused(make, settings, field, tmp_path):
    settings = {"gamma": 0.9} | settings
    if "resume" in settings:
        settings["resume"] = settings["resume"](tmp_path)
    experience = make()
    with pytest.raises(InputError) as caught:
        rv.estimate(experience, **settings)
    assert caught.value.field == field
    assert getattr(caught.value, "estimate", None) is None


def test_observations_give_regions_and_maps_of_two_dimensions():
    car = from_gymnasium("MountainCar-v0", steps=5_000, seed=1)
    data = rv.estimate(car, gamma=0.99, by="td").data
    assert data["centre"].dims == ("region", "axis")
    assert (np.diff(data["visits"]) <= 0).all()
    assert data["value_map"].dims == data["visited_map"].dims == ("y", "x")
    assert np.isfinite(data["value_map"]).all()
    pole = rv.estimate(from_gymnasium("CartPole-v1", steps=5_000, seed=1), gamma=0.99).data
    assert "value_map" not in pole
    assert pole["centre"].shape[1] == 4


def test_what_was_never_seen_is_not_known():
    """By TD learning as well: a state never left, and observations beyond all data, are NaN."""
    lake = rv.estimate(from_gymnasium("FrozenLake-v1", steps=500, seed=1), gamma=0.9, by="td")
    assert np.isnan(lake.value(15))
    assert np.isnan(lake.value()[15])
    assert np.isnan(lake.interval(15)).all()
    assert np.isnan(lake.interval(states=[0, 15])[1][1])
    assert np.isfinite(lake.value(0))
    car = rv.estimate(from_gymnasium("MountainCar-v0", steps=500, seed=1), gamma=0.9, by="td")
    for far in ([5.0, 5.0], [0.5, 0.06]):
        assert np.isnan([car.value(far), car.std(far), *car.interval(far)]).all()
    assert np.isfinite(car.value([-0.5, 0.0]))


@pytest.mark.parametrize("features", ["tiles", "fourier", "polynomial"])
def test_each_kind_of_features_learns_the_value_of_a_line(features):
    """A point on a line earns its place, once: the value is the place, the variance the noise."""
    rng = np.random.default_rng(0)
    x = rng.random(20_000)
    rows = {"x": x, "reward": x + rng.normal(size=x.size) * 0.1, "terminated": np.ones(x.size, int)}
    log = from_table(rows, state=["x"], next_state=None)
    found = rv.estimate(log, gamma=0.9, features=features)
    at = np.array([[0.2], [0.5], [0.8]])
    assert_allclose(found.estimator.predict(at, "value"), at[:, 0], atol=0.04)
    coarse = 0.02 if features == "tiles" else 0.004  # with 512 weights in place of 4 to 6
    assert_allclose(found.estimator.predict(at, "variance"), 0.01, atol=coarse)


# ---------------------------------------------------------------------- going on later


def walk(rng, n, labels=None, states=6):
    """Episodes on a ring of states, the last of which ends with the table."""
    here, rows = 0, []
    for t in range(n):
        after = int((here + rng.integers(1, 3)) % states)
        ended = bool(rng.random() < 0.1) or t == n - 1
        rows.append((here, float(rng.normal(here)), after, ended))
        here = int(rng.integers(states)) if ended else after
    state, reward, after, ended = (np.array(column) for column in zip(*rows, strict=True))
    if labels is not None:
        state, after = np.array(labels)[state], np.array(labels)[after]
    return {"state": state, "reward": reward, "next_state": after, "terminated": ended}


def written(folder, name, columns):
    path = folder / f"{name}.parquet"
    pq.write_table(pa.table(columns), path)
    return path


def settings(found):
    """Attributes but for the check on the data's own returns, which are not saved."""
    left_out = ("self_check", "warnings", "remarks")
    return {name: x for name, x in found.data.attrs.items() if name not in left_out}


def assert_same_estimates(one, other):
    a, b = one.data, other.data
    for name in a.data_vars:
        if name == "centre":  # means, in regions, of other parts
            assert_allclose(a[name], b[name], rtol=1e-12)
        elif name not in ("observed", "predicted", "predicted_std", "sample_state"):
            assert a[name].values.tobytes() == b[name].values.tobytes(), name
    assert_array_equal(a.get("label", []), b.get("label", []))
    assert {**settings(one), "source": ""} == {**settings(other), "source": ""}
    counts, others = (replace(x.experience.counts, missing_rewards=Counter()) for x in (one, other))
    assert counts == others


def resumed(tmp_path, first, second, both, **how):
    """One estimate over two tables, and one that is resumed with the second."""
    how = {"gamma": 0.9} | how
    rv.estimate(first, **how).save(tmp_path / "a.safetensors")
    return rv.estimate(both, **how), rv.estimate(second, resume=tmp_path / "a.safetensors")


@pytest.mark.parametrize("labels", [None, list("pqrstuvwxyz")])
@pytest.mark.parametrize("method", ["direct", "vtd"])
def test_resuming_with_another_file_gives_the_bits_of_one_pass(tmp_path, labels, method):
    """States as numbers and as labels, with states that only the second file has."""
    rng = np.random.default_rng(1)
    parts = [walk(rng, 700, labels), walk(rng, 900, labels, states=11)]
    files = [written(tmp_path, f"part{i}", part) for i, part in enumerate(parts)]
    opened, learner = map(from_table, (files[0], files[1], files)), of_method(method, gamma=0.9)
    whole, later = resumed(tmp_path, *opened, learner=learner, gamma=None)
    assert whole.data.sizes["state"] == 11
    assert_same_estimates(whole, later)


@pytest.mark.parametrize("kind", ["observations", "ratios"])
def test_resuming_continues_regions_ratios_and_counts(tmp_path, kind):
    """Tile coding between the bounds of the first file; rows that are left out."""
    rng, files = np.random.default_rng(2), []
    for i in range(2):
        part = walk(rng, 600) | ({"ratio": rng.uniform(0, 2, 600)} if kind == "ratios" else {})
        part["reward"][5] = np.nan
        for name in ("state", "next_state") if kind == "observations" else ():
            part[f"{name}_0"] = part[name] + 0.25
            part[f"{name}_1"] = np.sin(part.pop(name))
        files.append(written(tmp_path, f"part{i}", part))
    how = {"rho": "ratio"} if kind == "ratios" else {}
    opened = (from_table(x, **how) for x in (files[0], files[1], files))
    whole, later = resumed(tmp_path, *opened, **({} if how else {"by": "td"}))
    assert whole.data.attrs["rejected"] == later.data.attrs["rejected"] == 2
    assert_same_estimates(whole, later)


def test_an_environment_is_resumed_with_its_labels(tmp_path):
    """Blackjack's states are triples, which JSON would make lists."""
    first = rv.estimate(from_gymnasium("Blackjack-v1", steps=500, seed=1), gamma=1.0)
    first.save(tmp_path / "a.safetensors")
    again = from_gymnasium("Blackjack-v1", steps=500, seed=2)
    second = rv.estimate(again, resume=tmp_path / "a.safetensors")
    assert second.estimator.steps == 1_000
    assert_array_equal(first.data["label"], second.data["label"])


# ---------------------------------------------------------------------- interruptions


class Failing(gymnasium.Wrapper):
    """Raises at its step n."""

    def __init__(self, env, n):
        super().__init__(env)
        self.left = n

    def step(self, action):
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("motor 3 does not answer")
        return self.env.step(action)


@pytest.mark.parametrize("n", [0, 1, 4_096, 5_000])
def test_steps_before_an_environment_failed_are_learned(n):
    """To the bit what an estimate over just those steps gives; without a step there is none."""
    env = Failing(gymnasium.make("FrozenLake-v1"), n)
    with pytest.raises(SourceError) as caught:
        rv.estimate(from_gymnasium(env, steps=10_000, seed=3), gamma=0.9)
    if n == 0:
        assert caught.value.estimate is None
    else:
        assert_same_estimates(caught.value.estimate, rv.estimate(lake(n, seed=3), gamma=0.9))


def test_ctrl_c_during_a_fit_keeps_what_was_read(monkeypatch, tmp_path):
    """All of it can be saved without the fit."""

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("retvar.estimation.observations.Stack", interrupt)
    with pytest.raises(KeyboardInterrupt) as caught:
        rv.estimate(from_gymnasium("CartPole-v1", steps=900), gamma=0.9)
    caught.value.estimate.save(tmp_path / "fit.safetensors")
    assert rv.load(tmp_path / "fit.safetensors").estimator.steps == 900


@pytest.mark.parametrize("kind", [KeyboardInterrupt, RuntimeError])
def test_an_interruption_carries_the_estimate_so_far(kind):
    """Raised from progress after two chunks: an estimate over those two, to the bit."""

    def progress(done):
        if done >= 2 * 4_096:
            raise kind("enough")

    with pytest.raises(kind) as caught:
        rv.estimate(lake(50_000, seed=5), gamma=0.9, progress=progress)
    found = caught.value.estimate
    assert 8_192 <= found.estimator.steps < 50_000
    whole = rv.estimate(lake(found.estimator.steps, seed=5), gamma=0.9)
    for name in ("visits", *ANSWERS, "value_low", "std_high"):
        assert_array_equal(found.data[name], whole.data[name])


# ---------------------------------------------------------------------- checks


@pytest.mark.parametrize(("env", "gamma"), [("CartPole-v1", 0.95), ("MountainCar-v0", 0.95)])
def test_the_check_does_not_take_truncation_for_termination(env, gamma):
    """MountainCar is cut at 200 steps and never ends by chance: every return is about −20.

    Cut-off returns are completed by the estimate; taken as ends they would lie far above.
    """
    fresh = lambda seed: from_gymnasium(env, steps=12_000, seed=seed)  # noqa: E731
    found = rv.estimate(fresh(1), gamma=gamma)
    checked = check(found, fresh(2))
    assert checked.value.kind != "disagrees", checked.summary()
    assert len(checked.places) >= 3
    assert all(place.value.kind != "disagrees" for place in checked.places)
    if env == "MountainCar-v0":
        assert checked.lacking > 0.1
        assert_allclose(checked.data["check_mean"].values[:5], -20, atol=0.5)


def test_a_check_with_other_experience_is_refused():
    found = rv.estimate(lake(), gamma=0.9)
    rows = {"state": [0, 0], "reward": [0.0, 0.0], "terminated": [1, 1], "ratio": [0.5, 2.0]}
    for other in (from_gymnasium("CartPole-v1", steps=10), from_table(rows, rho="ratio")):
        with pytest.raises(InputError):
            check(found, other)


def test_labels_of_a_fresh_log_are_numbered_as_before():
    """States come in another order in the fresh log, and keep their names."""
    rng = np.random.default_rng(0)
    state = rng.choice(["poor", "rich"], size=2_000)
    rows = lambda s: {"state": s, "reward": np.where(s == "rich", 10.0, 0.0) + rng.normal(size=s.size),  # noqa: E501, E731
                      "terminated": np.ones(s.size, int)}  # fmt: skip
    found = rv.estimate(from_table(rows(np.append("poor", state))), gamma=0.9)
    checked = check(found, from_table(rows(np.append("rich", state))))
    assert checked.agrees, checked.summary()


def test_rare_returns_that_a_small_sample_lacks_are_no_alarm():
    """One return in fifty is 50, the others 0; 110 fresh ones from each of 30 states.

    Of these a tenth sees none of the rare ones: no spread at all, and no noise either if the sample
    were asked for it.
    """
    rng = np.random.default_rng(3)

    def log(each):
        n = 30 * each
        rows = {"state": np.arange(n) % 30, "reward": 50.0 * (rng.random(n) < 0.02)}
        return from_table(rows | {"terminated": np.ones(n, int)})

    checked = check(rv.estimate(log(4_000), gamma=0.9), log(110))
    assert (checked.data["check_std"] < 1e-9).sum() > 1
    assert len(checked.places) == 30
    assert not checked.disagrees, checked.summary()
    assert checked.value.kind == "agrees"


# ---------------------------------------------------------------------- as text


def test_values_that_rest_on_states_without_a_usable_row_are_doubted():
    """The cost of a rare bad state is never logged: 0.2 of each value is an assumption."""
    log = {"state": ["ok"] * 8 + ["ok", "bad"], "reward": [1.0] * 9 + [np.nan],
           "terminated": [True] * 8 + [False, True]}  # fmt: skip
    found = rv.estimate(from_table({k: v * 50 for k, v in log.items()}), gamma=1)
    assert any("'bad'" in each for each in found.warnings)
    log["reward"][-1] = 9.0
    assert not rv.estimate(from_table({k: v * 50 for k, v in log.items()}), gamma=1).warnings
