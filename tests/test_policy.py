"""Policies: arrays, callables, uniform, greedy, ε-greedy."""

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose

import retvar as rv


def corridor(gamma: float = 0.9) -> rv.MDP:
    """Three rooms; left and right; a reward of 1 for leaving to the right."""
    edges = [
        (s, a, to, 1.0, r)
        for s in range(3)
        for a, to, r in (
            ("left", max(s - 1, 0), 0.0),
            ("right", "end" if s == 2 else s + 1, float(s == 2)),
        )
    ]
    return rv.MDP.from_edges(edges, gamma=gamma)


@pytest.mark.parametrize("gamma", [0.5, 1.0])
def test_greedy_walks_to_the_reward(gamma):
    mdp = corridor(gamma)
    policy = rv.Policy.greedy(mdp)
    assert policy.probabilities.tolist() == [[0, 1]] * 3
    assert_allclose(rv.solve(mdp, policy).value, gamma ** np.array([2, 1, 0]))


def test_greedy_for_a_value_function_looks_one_step_ahead():
    policy = rv.Policy.greedy(corridor(), value=[5.0, 0.0, 0.0])
    assert policy.probabilities.tolist() == [[1, 0], [1, 0], [0, 1]]


def test_greedy_value_is_at_least_that_of_every_deterministic_policy():
    mdp = rv.domains.random_mdp(4, 3, 2, seed=0, gamma=(0.5, 0.95))
    best = rv.solve(mdp, rv.Policy.greedy(mdp)).value
    for actions in np.ndindex(3, 3, 3, 3):
        other = rv.solve(mdp, np.eye(3)[list(actions)]).value
        assert np.all(other <= best + 1e-10)


def test_a_tie_that_would_never_end_is_not_taken():
    """With γ = 1 and no cost, waiting is as good as leaving, but never gets there."""
    mdp = rv.MDP.from_edges([(0, "wait", 0), (0, "leave", "end", 1.0, 1.0)], gamma=1.0)
    policy = rv.Policy.greedy(mdp)
    assert policy.probabilities.tolist() == [[0, 1]]
    assert rv.solve(mdp, policy).value[0] == pytest.approx(1)


def test_epsilon_greedy_mixes_greedy_and_uniform():
    mdp = corridor()
    policy = rv.Policy.epsilon_greedy(mdp, 0.2)
    assert_allclose(policy.probabilities, [[0.1, 0.9]] * 3)
    assert rv.Policy.epsilon_greedy(mdp, 0.0) == rv.Policy.greedy(mdp)
    assert rv.Policy.epsilon_greedy(mdp, 1.0) == rv.Policy.uniform(mdp)


def test_policies_come_in_many_forms():
    mdp = corridor()
    right = rv.Policy.greedy(mdp)
    functions = (lambda s: "right", lambda s: 1, lambda s: {"right": 1.0}, lambda s: [0.0, 1.0])
    tables = ({0: "right", 1: 1, 2: [0, 1]}, [[0, 1]] * 3, [1, 1, 1], np.array([1, 1, 1]))
    for policy in (*functions, *tables, right, scipy.sparse.csr_array(right.probabilities)):
        assert mdp.policy(policy) == right
    assert rv.Policy(right) == right
    assert hash(rv.Policy([[1.0, -0.0]])) == hash(rv.Policy([[1.0, 0.0]]))


def test_a_small_advantage_counts_however_large_values_are_elsewhere():
    """Ties are judged by the terms of the state's own values."""
    edges = [(0, 0, "end", 1.0, 0.0), (0, 1, "end", 1.0, 1.0)]
    edges += [(1, a, "end", 1.0, 1e11) for a in range(2)]
    assert rv.solve(rv.MDP.from_edges(edges, gamma=0.9), "greedy").value.tolist() == [1, 1e11]
    tiny = rv.MDP.from_edges([(0, 0, "end", 1.0, 0.0), (0, 1, "end", 1.0, 1e-11)], gamma=0.9)
    assert rv.Policy.greedy(tiny).probabilities.tolist() == [[0, 1]]


def test_a_tie_to_rounding_goes_to_the_first_action():
    """0.1 + 0.2 and 0.3 differ in the last bit only."""
    edges = [(0, 0, "end", 1.0, 0.3), (0, 1, 1, 1.0, 0.1), (1, 0, "end", 1.0, 0.2)]
    mdp = rv.MDP.from_edges(edges, gamma=1.0, actions=2)
    assert rv.Policy.greedy(mdp).probabilities[0].tolist() == [1, 0]
