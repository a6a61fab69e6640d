"""MDP: construction, validation messages, files and immutability."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import retvar as rv

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=6).filter(lambda x: x != "end")
shares = st.floats(0.01, 1.0)
discounts = st.one_of(st.just(0.0), st.just(1.0), st.floats(0, 1))
rewards = st.floats(-1e6, 1e6)


@st.composite
def mdps(draw) -> rv.MDP:
    """Any small MDP: named or numbered, γ per state or edge, ends, parallel edges, policies."""
    n, k = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    named = draw(st.booleans())
    states = draw(st.lists(names, min_size=n, max_size=n, unique=True)) if named else n
    actions = draw(st.lists(names, min_size=k, max_size=k, unique=True)) if named else k
    per_edge = draw(st.booleans())
    rows = []
    for s in range(n):
        for a in range(draw(st.integers(1, k))):
            weights = draw(st.lists(shares, min_size=1, max_size=3))
            for w in weights:
                to = draw(st.integers(-1, n - 1))
                g = (0.0 if to < 0 else draw(discounts)) if per_edge else None
                std = abs(draw(rewards))
                rows.append(rv.Edge(s, a, to, w / sum(weights), draw(rewards), std, g))
    available = [max(r.action for r in rows if r.state == s) + 1 for s in range(n)]
    policies = {}
    for name in draw(st.lists(names, max_size=2, unique=True)):
        table = np.zeros((n, k))
        for s in range(n):
            weights = np.array(draw(st.lists(shares, min_size=available[s], max_size=available[s])))
            table[s, : available[s]] = weights / weights.sum()
        policies[name] = table
    start = np.array(draw(st.lists(shares, min_size=n, max_size=n)))
    return rv.MDP.from_edges(
        rows,
        states=states,
        actions=actions,
        gamma=None if per_edge else draw(st.lists(discounts, min_size=n, max_size=n)),
        lam=draw(st.lists(discounts, min_size=n, max_size=n)),
        start=start / start.sum(),
        policies=policies,
        positions=draw(st.sampled_from([None, np.arange(2.0 * n).reshape(n, 2)])),
        name=draw(st.text(st.characters(codec="utf-8"), max_size=5)),
    )


@given(mdps())
def test_toml_gives_back_the_same_mdp(tmp_path_factory, mdp):
    path = tmp_path_factory.mktemp("toml") / "mdp.toml"
    mdp.to_toml(path)
    assert rv.MDP.from_toml(path) == mdp


@given(mdps())
def test_copies_and_pickles_are_equal_and_hash_alike(mdp):
    for twin in (copy.deepcopy(mdp), pickle.loads(pickle.dumps(mdp)), mdp.replace()):
        assert twin == mdp
        assert hash(twin) == hash(mdp)


@given(mdps())
def test_the_order_of_edges_between_actions_does_not_matter(mdp):
    e = mdp.edges
    order = np.argsort(-(e.state * mdp.n_actions + e.action), kind="stable")
    names = ("lam", "start", "policies", "positions", "name")
    given = {name: getattr(mdp, name) for name in names}
    given["states"] = mdp.state_names or mdp.n_states
    given["actions"] = mdp.action_names or mdp.n_actions
    again = rv.MDP(tuple(column[order] for column in e), **given)
    assert again == mdp


def test_parallel_edges_are_not_merged():
    mdp = rv.MDP.from_edges([(0, 0, 0, 0.5, 1.0), (0, 0, 0, 0.5, -1.0)], gamma=0.5)
    assert mdp.edges.reward.tolist() == [1.0, -1.0]
    assert rv.solve(mdp, lam=0).variance[0] == pytest.approx(1)


def test_dense_arrays_and_edges_give_the_same_mdp():
    rng = np.random.default_rng(0)
    P = rng.dirichlet(np.ones(3), size=(3, 2))
    R = rng.normal(size=(3, 2, 3))
    rows = [(s, a, t, P[s, a, t], R[s, a, t]) for s, a, t in np.ndindex(3, 2, 3)]
    dense = rv.MDP.from_dense(P, R, gamma=0.9, lam=0.5)
    assert dense == rv.MDP.from_edges(rows, gamma=0.9, lam=0.5)
    by_action = rv.MDP.from_dense(P, R[:, :, 0], gamma=0.9)
    assert_allclose(by_action.edges.reward, np.repeat(R[:, :, 0].ravel(), 3))
    by_state = rv.MDP.from_dense(P, R[:, 0, 0], gamma=0.9, reward_std=1.0)
    assert_allclose(by_state.edges.reward, np.repeat(R[:, 0, 0], 6))
    assert_allclose(by_state.edges.reward_std, 1)


def test_an_empty_row_of_dense_arrays_is_an_unavailable_action():
    mdp = rv.MDP.from_dense([[[1.0], [0.0]]], 1.0, gamma=0.5)
    assert mdp.available.tolist() == [[True, False]]
    assert mdp.policy("uniform").probabilities.tolist() == [[1.0, 0.0]]


def test_probabilities_that_sum_to_one_up_to_rounding_are_not_rescaled():
    mdp = rv.MDP.from_edges([(0, 0, 0, 0.1)] * 10, gamma=0.5)
    assert_array_equal(mdp.edges.probability, 0.1)
    nearly = rv.MDP.from_edges([(0, 0, 0, 0.333333333333), (0, 0, 0, 0.666666666666)], gamma=0.5)
    assert nearly.edges.probability.sum() == pytest.approx(1, abs=1e-16)


def test_names_may_be_used_everywhere():
    mdp = rv.MDP.from_edges(
        [("day", "wait", "night"), ("night", "wait", "day"), ("night", "sleep", "end")],
        gamma=0.9,
        start={"day": 0.25, "night": 0.75},
        policies={"lazy": {"day": "wait", "night": {"wait": 0.5, "sleep": 0.5}}},
    )
    assert mdp.state_index("night") == mdp.state_index(1) == 1
    assert mdp.action_names.index("sleep") == 1
    assert mdp.start.tolist() == [0.25, 0.75]
    assert mdp.policy("lazy").probabilities.tolist() == [[1, 0], [0.5, 0.5]]
    assert mdp.episodic


def test_a_file_written_by_hand_needs_little(tmp_path):
    file = tmp_path / "coin.toml"
    file.write_text(
        """
        gamma = 1.0
        edges = [
            { state = "toss", next_state = "toss", probability = 0.5, reward = 1.0 },
            { state = "toss", next_state = "end", probability = 0.5 },
        ]
        """,
        encoding="utf-8",
    )
    assert rv.solve(rv.MDP.from_toml(file)).variance == pytest.approx(2)


def test_edges_may_be_mappings_and_gymnasium_tables_plain_dicts():
    import gymnasium

    row = {"state": 0, "action": 0, "next_state": "end", "reward": 2.0}
    assert rv.solve(rv.MDP.from_edges([row], gamma=1.0)).value[0] == 2
    env = gymnasium.make("FrozenLake-v1")
    table = rv.MDP.from_gymnasium(env.unwrapped.P, gamma=0.9)
    assert_allclose(rv.solve(table).value, rv.solve(rv.MDP.from_gymnasium(env, gamma=0.9)).value)
