"""The built-in domains, random ones, and Gymnasium's tables."""

import gymnasium
import numpy as np
import pytest
from numpy.testing import assert_allclose

import retvar as rv
from retvar.mdp.domains import BUILT_IN

TABLES = [
    ("FrozenLake-v1", {"map_name": "4x4", "is_slippery": True}),
    ("FrozenLake-v1", {"map_name": "4x4", "is_slippery": False}),
    ("FrozenLake-v1", {"map_name": "8x8", "is_slippery": True}),
    ("FrozenLake-v1", {"map_name": "8x8", "is_slippery": False}),
    ("CliffWalking-v1", {}),
    ("CliffWalking-v1", {"is_slippery": True}),
    ("Taxi-v4", {}),
]


def dynamic_programming(table, gamma, policy=None):
    """Plain value iteration over Gymnasium's own table; policy None: the best action."""
    V = np.zeros(len(table))
    while True:
        Q = np.array(
            [
                [
                    sum(p * (r + gamma * V[t] * (not done)) for p, t, r, done in table[s][a])
                    for a in table[s]
                ]
                for s in table
            ]
        )
        new = Q.max(axis=1) if policy is None else (policy * Q).sum(axis=1)
        if np.max(np.abs(new - V)) < 1e-13 * max(1.0, np.max(np.abs(new))):
            return new
        V = new


@pytest.mark.parametrize(("name", "options"), TABLES)
def test_tables_solve_as_plain_dynamic_programming_does(name, options):
    gamma = 0.9
    mdp = rv.domains.from_gymnasium(name, gamma=gamma, **options)
    table = gymnasium.make(name, **options).unwrapped.P
    uniform, greedy = rv.solve(mdp, "uniform"), rv.solve(mdp, "greedy")
    actions = mdp.n_actions
    expected = dynamic_programming(table, gamma, np.full((len(table), actions), 1 / actions))
    assert_allclose(uniform.value, expected, rtol=1e-9, atol=1e-11)
    assert_allclose(greedy.value, dynamic_programming(table, gamma), rtol=1e-9, atol=1e-11)
    assert np.all(uniform.variance >= 0)


def test_cliff_walking_undiscounted_takes_thirteen_steps():
    mdp = rv.domains.from_gymnasium("CliffWalking-v1", gamma=1.0)
    assert rv.solve(mdp, "greedy").value[36] == pytest.approx(-13)


def test_gymnasium_tables_keep_starts_names_and_places():
    lake = rv.domains.from_gymnasium(gymnasium.make("FrozenLake-v1"), gamma=0.99)
    assert lake.name == "FrozenLake-v1"
    assert lake.start[0] == 1
    assert lake.action_names == ("left", "down", "right", "up")
    assert lake.positions[6].tolist() == [2, -1]
    taxi = rv.domains.from_gymnasium("Taxi-v4", gamma=0.99)
    assert np.count_nonzero(taxi.start) == 300
    assert taxi.positions is None


def test_the_chain_and_the_walk_are_those_of_the_specification():
    chain = rv.domains.chain()
    assert chain.edges.next_state.tolist() == [1, 2, 3, rv.END]
    assert chain.edges.gamma.tolist() == [1, 1, 1, 0]
    walk = rv.domains.random_walk()
    e = walk.edges
    last = e.state == 29
    assert walk.n_states == 30
    assert sorted(zip(e.next_state[last], e.reward[last], e.gamma[last], strict=True)) == [
        (rv.END, 0.0, 0.0),
        (28, -1.0, 1.0),
    ]
    stays = (e.state == 0) & (e.next_state == 0)
    assert e.probability[stays] == pytest.approx(0.3)


def test_random_mdps_are_those_of_their_seed():
    a, b, c = (rv.domains.random_mdp(10, seed=s) for s in (1, 1, 2))
    assert a == b
    assert a != c


@pytest.mark.parametrize(("states", "branching"), [(3, 3), (5, 3), (50, 4)])
def test_garnet_next_states_are_distinct_unless_parallel(states, branching):
    mdp = rv.domains.random_mdp(states, 2, branching, seed=0)
    groups = mdp.edges.next_state.reshape(-1, branching)
    assert all(len(set(group)) == branching for group in groups.tolist())
    twice = rv.domains.random_mdp(states, 2, branching, seed=0, parallel=True)
    groups = twice.edges.next_state.reshape(-1, branching)
    assert any(len(set(group)) < branching for group in groups.tolist())


def test_a_mean_of_the_rewards_moves_values_and_leaves_variances():
    """With γ the same everywhere, values move by mean/(1 − γ)."""
    low, high = (rv.solve(rv.domains.random_mdp(20, seed=3, gamma=0.9, reward_mean=mean))
                 for mean in (0.0, 2.0))  # fmt: skip
    np.testing.assert_allclose(high.value, low.value + 20.0, rtol=1e-12)
    np.testing.assert_allclose(high.variance, low.variance, rtol=1e-9)


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_built_in_domain_is_found_and_solves(name):
    mdp = rv.domains.find(name)
    assert mdp.name == name
    assert np.isfinite(rv.solve(mdp).variance).all()
    assert rv.domains.find(name, gamma=0.25) == mdp.replace(gamma=0.25)
