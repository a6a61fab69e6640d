"""Stationary distributions, including restarts."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import retvar as rv
from tests import oracle


def test_shares_equal_those_of_a_long_walk_computed_by_squaring():
    rng = np.random.default_rng(oracle.fresh_seed())
    for _ in range(30):
        seed = int(rng.integers(2**31))
        mdp = rv.domains.random_mdp(6, 2, 3, seed=seed, ends=0.2)
        start = rng.dirichlet(np.ones(6))
        mdp = mdp.replace(start=start)
        for policy in ("target", "behaviour"):
            shares = rv.stationary_distribution(mdp, policy)
            assert_allclose(shares, oracle.time_shares(mdp, policy), atol=1e-12, err_msg=str(seed))


def test_the_random_walk_spends_its_time_according_to_the_balance_of_crossings():
    """Each episode crosses every link to the right once more than to the left."""
    walk = rv.domains.random_walk(10)
    d = rv.stationary_distribution(walk)
    ends = 0.7 * d[9]
    assert_allclose(0.7 * d[:-1] - 0.3 * d[1:], ends)
    assert d.sum() == pytest.approx(1)


def test_transient_states_have_no_share():
    mdp = rv.MDP.from_edges([(0, 0, 1), (1, 0, 2), (2, 0, 1)], gamma=0.5)
    assert rv.stationary_distribution(mdp).tolist() == [0, 0.5, 0.5]


def test_several_recurrent_classes_are_named():
    edges = [("x", 0, "a", 0.5), ("x", 0, "b", 0.5), ("a", 0, "a"), ("b", 0, "b")]
    mdp = rv.MDP.from_edges(edges, gamma=0.5)
    with pytest.raises(rv.InputError) as caught:
        rv.stationary_distribution(mdp)
    assert caught.value.field == "policy"
    assert rv.stationary_distribution(mdp.replace(start="b")).tolist() == [0, 0, 1]


def test_large_walks_are_balanced():
    mdp = rv.domains.random_mdp(20_000, 1, 3, seed=0, ends=0.001)
    d = rv.stationary_distribution(mdp)
    e = mdp.edges
    rate = d[e.state] * e.probability
    ended = rate[e.next_state == rv.END].sum()
    inside = e.next_state != rv.END
    arriving = np.bincount(e.next_state[inside], rate[inside], minlength=d.size) + ended * mdp.start
    assert_allclose(arriving, d, atol=1e-14)
