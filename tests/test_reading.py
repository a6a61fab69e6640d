"""Estimates read a table of moves: parts, resumed sums, clusters, logs that grow, costs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import retvar as rv
from retvar.experience import Growing, from_gymnasium, from_table
from retvar.support.errors import InputError


def log(n=3_000, seed=0, offset=0):
    rng = np.random.default_rng(seed)
    state = np.array(list("abcde"))[rng.integers(0, 5, n)]
    return {"state": state, "reward": rng.normal(size=n), "terminated": rng.random(n) < 0.1,
            "id": np.repeat(np.arange(n // 100) + offset, 100)}  # fmt: skip


def write(rows, path):
    lines = zip(*(np.asarray(x).tolist() for x in rows.values()), strict=True)
    path.write_text("\n".join([",".join(rows), *(",".join(map(str, row)) for row in lines)]) + "\n")


@pytest.mark.parametrize("lam", [1.0, 0.7])
def test_a_resumed_estimate_is_that_of_all_rows(lam, tmp_path):
    parts = [from_gymnasium("FrozenLake-v1", episodes=200, seed=k) for k in (1, 2)]
    rv.estimate(parts[0], gamma=0.9, lam=lam).save(tmp_path / "first")
    both = rv.estimate(parts[1], resume=tmp_path / "first")
    one, two = (rv.estimate(part, gamma=0.9, lam=lam).estimator for part in parts)
    one.merge(two)
    assert both.estimator.steps == one.steps
    assert_allclose(both.estimator.value(), one.value(), rtol=1e-12)
    assert_allclose(both.estimator.std(), one.std(), rtol=1e-12)
    assert both.self_check.value is not None  # by the new rows
    assert "the new rows alone" in both.summary()
    assert "the new rows alone" not in rv.estimate(parts[0], gamma=0.9, lam=lam).summary()


def small(path, states="xy", columns="zone,cond,reward,terminated"):
    path.write_text(
        columns + "\n" + "".join(f"{s},a,1,{k % 2}\n" for k in range(9) for s in states)
    )
    return path


@pytest.mark.parametrize(
    "how",
    [{"state": ["cond", "zone"]}, {"state": "zone"}, {"cost": "reward"}],
)
def test_another_question_is_not_resumed(how, tmp_path):
    zones = {"state": ["zone", "cond"]}
    rv.estimate(from_table(small(tmp_path / "a.csv"), **zones), gamma=0.9).save(tmp_path / "first")
    with pytest.raises(InputError) as refused:
        rv.estimate(from_table(small(tmp_path / "b.csv"), **zones | how), resume=tmp_path / "first")
    assert refused.value.field == "resume"


@pytest.mark.parametrize(("states", "word"), [("xy", "before"), ("uv", "otherwise"), ("xyz", "")])
def test_rows_that_are_added_twice_and_states_that_are_all_new_are_warned_of(
    states, word, tmp_path
):
    def read(states):
        return from_table(small(tmp_path / "log.csv", states), state="zone")

    rv.estimate(read("xy"), gamma=0.9).save(tmp_path / "first")
    warned = rv.estimate(read(states), resume=tmp_path / "first").warnings
    assert bool(warned) == bool(word)
    assert not word or any(word in each for each in warned)


def test_the_off_policy_return_is_that_of_weighted_rewards_and_discounts():
    rows, rng = log(), np.random.default_rng(7)
    rows |= {"next_state": np.roll(rows["state"], -1), "w": rng.uniform(0.0, 1.2, 3_000)}
    found = rv.estimate(from_table(rows, rho="w"), gamma=0.8, estimand="off_policy_return")
    rows |= {"reward": rows["w"] * rows["reward"], "discount": 0.8 * rows["w"]}
    plain = rv.estimate(from_table(rows, gamma="discount"), lam=1.0)
    for what in ("value", "std"):
        answers = [getattr(one, what)(list("abcde")) for one in (found, plain)]
        assert_allclose(*answers, rtol=1e-12)


@pytest.mark.parametrize("by", ["td", "least_squares"])
@pytest.mark.parametrize("linked", [False, True])
def test_a_log_that_grows_gives_the_answer_of_the_whole_file(tmp_path, by, linked):
    """It grows by pieces that end within a line; rows are linked across pieces."""
    rows = log(400)
    if not linked:
        rows["next_state"] = np.roll(rows["state"], -1)
    write(rows, tmp_path / "whole.csv")
    text, path = (tmp_path / "whole.csv").read_text(), tmp_path / "log.csv"
    pieces = [text[a:b] for a, b in itertools.pairwise((0, 1_000, 1_500, 4_007, len(text)))]
    path.write_text(pieces.pop(0))

    def wait():
        if not pieces:
            return False
        with path.open("a") as file:
            file.write(pieces.pop(0))
        return True

    found = list(rv.follow(from_table(Growing(path, wait=wait), entity="id"), gamma=0.9, by=by))
    once = rv.estimate(from_table(tmp_path / "whole.csv", entity="id"), gamma=0.9, by=by)
    steps = [each.estimator.steps for each in found]
    assert len(steps) == 4
    assert steps == sorted(steps)
    assert found[-1].experience.counts == once.experience.counts
    assert found[-1].experience.name == str(path)
    for what in ("value", "std"):
        answers = [getattr(one, what)(list("abcde")) for one in (found[-1], once)]
        assert_array_equal(*answers)


def test_a_cluster_gives_the_same_answer_and_notices_entities_that_span_files(tmp_path):
    pytest.importorskip("distributed")
    for k in range(2):
        write(log(seed=k, offset=100 * k), tmp_path / f"log_{k}.csv")
    make = lambda: from_table(str(tmp_path / "log_*.csv"), entity="id")  # noqa: E731
    one = rv.estimate(make(), gamma=0.9)
    two = rv.estimate(make(), gamma=0.9, cluster="local", workers=1)
    for what in ("value", "std"):
        answers = [getattr(found, what)(list("abcde")) for found in (one, two)]
        assert_allclose(*answers, rtol=1e-12)
    assert two.self_check.kind == one.self_check.kind
    write(log(seed=1), tmp_path / "log_1.csv")
    with pytest.raises(InputError) as caught:
        rv.estimate(make(), gamma=0.9, cluster="local", workers=1)
    assert caught.value.field == "cluster"


def test_return_intervals_hold_fresh_returns_of_all_states():
    """Most episodes begin far from the goal and give 0."""
    lake = from_gymnasium("FrozenLake-v1", steps=5_000, seed=1)
    found = rv.estimate(lake, gamma=0.9)
    fresh = rv.estimate(from_gymnasium("FrozenLake-v1", steps=20_000, seed=2), gamma=0.9).monitor
    state = fresh.returns.start[:, 0].astype(int)
    returns = fresh.returns.completed(lambda rows: np.zeros(len(rows)))
    low, high = found.return_interval(np.arange(16))
    inside = (low[state] - 1e-9 <= returns) & (returns <= high[state] + 1e-9)
    assert inside[fresh.returns.rest == 0].mean() >= 0.9
