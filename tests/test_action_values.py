"""Action values of solve(): augmented MDPs, enumeration of paths, the law of total variance."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import retvar as rv
from tests import oracle
from tests.test_solve import QUESTIONS, acyclic_mdp


def random_mdp(seed: int, states: int = 5) -> rv.MDP:
    """γ and λ per state, parallel edges, reward noise, ends; one action of each state is missing.

    The policies stay close to each other, so that most off-policy variances are finite.
    """
    drawn = rv.domains.random_mdp(
        states, 3, 3, seed=seed, ends=0.15, parallel=True, gamma=(0.3, 0.95)
    )
    rng = np.random.default_rng(seed)
    missing = rng.integers(3, size=states)
    e = drawn.edges
    kept = e.action != missing[e.state]
    policies = {}
    for name in ("target", "behaviour"):
        table = 1.0 + 0.3 * rng.random((states, 3))
        table[np.arange(states), missing] = 0
        policies[name] = table / table.sum(axis=1, keepdims=True)
    columns = [column[kept] for column in e]
    return rv.MDP(tuple(columns), lam=drawn.lam, policies=policies, states=states, actions=3)


def with_first_actions(mdp: rv.MDP) -> tuple[rv.MDP, dict]:
    """An MDP with one more state for each action, which takes it; nothing leads there.

    Policies have probability 1 for the only action of such a state: its ratio is 1.
    """
    rows = [rv.Edge(*map(_plain, row)) for row in zip(*mdp.edges, strict=True)]
    place = {}
    for s, a in np.argwhere(mdp.available).tolist():
        place[s, a] = mdp.n_states + len(place)
    for s, a, *rest in list(rows):
        rows.append(rv.Edge(place[s, a], 0, *rest))
    n = mdp.n_states + len(place)
    lam = np.concatenate([mdp.lam, np.full(len(place), 0.5)])
    first = np.eye(mdp.n_actions)[np.zeros(len(place), dtype=int)]
    policies = {
        name: np.concatenate([policy.probabilities, first]) for name, policy in mdp.policies.items()
    }
    return rv.MDP.from_edges(
        rows, lam=lam, policies=policies, states=n, actions=mdp.n_actions
    ), place


def _plain(x):
    x = x.item()
    return "end" if x == rv.END and isinstance(x, int) else x


@pytest.mark.parametrize(("target", "behaviour", "estimand"), QUESTIONS)
@pytest.mark.parametrize("bootstrap", [False, True], ids=["true value", "any value"])
def test_an_action_has_the_moments_of_a_state_that_takes_it(target, behaviour, estimand, bootstrap):
    """A state that nothing leads to, with one action: its value and variance are q's."""
    for seed in range(20):
        mdp = random_mdp(seed)
        H = np.random.default_rng(seed).normal(size=mdp.n_states) if bootstrap else None
        whole, place = with_first_actions(mdp)
        larger = None if H is None else np.concatenate([H, np.zeros(len(place))])
        try:
            truth = rv.solve(whole, target, behaviour, estimand, larger)
            found = rv.solve(mdp, target, behaviour, estimand, H)
        except rv.InfiniteVarianceError:
            continue
        for (s, a), k in place.items():
            assert_allclose(found.q[s, a], truth.value[k], rtol=0, atol=1e-12)
            assert_allclose(found.q_mean[s, a], truth.mean[k], rtol=0, atol=1e-12)
            assert_allclose(found.q_variance[s, a], truth.variance[k], rtol=1e-11, atol=1e-12)
            assert_allclose(found.q_std[s, a], truth.std[k], rtol=1e-11, atol=1e-7)
        assert np.isnan(found.q[~mdp.available]).all()
        assert np.isnan(found.q_variance[~mdp.available]).all()


@pytest.mark.parametrize(("target", "behaviour", "estimand"), QUESTIONS)
def test_total_variance_is_that_within_and_that_between_actions(target, behaviour, estimand):
    """By their law: v = E[η² Var(G(s, A))] + Var(η q(s, A)), A drawn as the return is sampled."""
    for seed in range(20):
        mdp = random_mdp(seed)
        H = np.random.default_rng(seed + 99).normal(size=mdp.n_states)
        try:
            found = rv.solve(mdp, target, behaviour, estimand, H)
        except rv.InfiniteVarianceError:
            continue
        pi = mdp.policy(target).probabilities
        mu = mdp.policy(behaviour or target).probabilities
        off = estimand == "off_policy_return"
        b = mu if off else pi
        eta = np.divide(pi, mu, out=np.zeros_like(pi), where=mu > 0) if off else np.ones_like(pi)
        q, w = np.nan_to_num(found.q_mean), np.nan_to_num(found.q_variance)
        mean = (b * eta * q).sum(axis=1)
        within = (b * eta**2 * w).sum(axis=1)
        between = (b * (eta * q - mean[:, None]) ** 2).sum(axis=1)
        known = np.isfinite(found.variance)
        assert_allclose(mean, found.mean, atol=1e-12)
        assert_allclose((within + between)[known], found.variance[known], rtol=1e-11)


@pytest.mark.parametrize(("target", "behaviour", "estimand"), QUESTIONS)
def test_action_values_match_the_enumeration_of_paths(target, behaviour, estimand):
    """The oracle walks every path of acyclic MDPs; it shares no code with the package."""
    for seed in range(15):
        mdp = acyclic_mdp(seed)
        H = np.random.default_rng(seed).normal(size=mdp.n_states)
        off = estimand == "off_policy_return"  # the target's return is sampled from the target
        rows = oracle.transitions(mdp, target, behaviour if off else None, estimand)
        found = rv.solve(mdp, target, behaviour, estimand, H)
        for s in range(mdp.n_states):
            for a in range(mdp.n_actions):
                first = [
                    (-1, max(to, 0), p, 1.0, 1.0, 1.0, r, sd, g, 0.0 if to == -1 else mdp.lam[to])
                    for s0, a0, to, p, r, sd, g in zip(*mdp.edges, strict=True)
                    if (s0, a0) == (s, a)
                ]
                mean, second, *_ = oracle.path_moments(mdp, -1, rows + first, H)
                assert_allclose(found.q_mean[s, a], mean, atol=1e-12)
                assert_allclose(found.q_variance[s, a], second, atol=1e-12)


def infinite_in_part() -> rv.MDP:
    """Off-policy, `loop` has an infinite variance; `coin` may enter it, or end."""
    edges = [("loop", a, "loop", 1.0, 1.0 - a) for a in (0, 1)]
    edges += [("coin", 0, "end", 0.5, 1.0), ("coin", 0, "end", 0.5, 3.0), ("coin", 1, "loop", 1, 0)]
    policies = {"pi": [[0.9, 0.1], [1.0, 0.0]], "mu": [[0.5, 0.5], [1.0, 0.0]]}
    return rv.MDP.from_edges(edges, gamma=0.95, policies=policies)


def test_an_action_has_an_infinite_variance_where_it_leads_to_one():
    found = rv.solve(infinite_in_part(), "pi", "mu", "off_policy_return")
    assert_array_equal(np.isnan(found.q_variance), [[True, True], [False, True]])
    assert_allclose([found.q[1, 0], found.q_variance[1, 0]], [2.0, 1.0])
    assert_allclose(found.q[1, 1], 0.95 * 18.0)
    on_policy = rv.solve(infinite_in_part(), "pi")
    assert np.isfinite(on_policy.q_variance).all()


# ------------------------------------------------------------------------ cautious policies


def two_ways(spread: float = 2.0) -> rv.MDP:
    """One state: `safe` earns 1, `risky` 1.5 ± spread."""
    half = [("s", "risky", "end", 0.5, 1.5 + sign * spread) for sign in (-1, 1)]
    return rv.MDP.from_edges([("s", "safe", "end", 1.0, 1.0), *half], gamma=1.0)


@pytest.mark.parametrize(
    ("penalty", "action"), [(0.0, "risky"), (0.12, "risky"), (0.13, "safe"), (-1.0, "risky")]
)
def test_a_cautious_policy_weighs_mean_against_variance(penalty, action):
    """1.5 − c·4 is below 1 for c above 0.125."""
    mdp = two_ways()
    policy = rv.Policy.cautious(mdp, penalty)
    assert policy.probabilities[0, mdp.action_names.index(action)] == 1


def test_it_is_greedy_for_the_policy_given():
    for seed in range(20):
        mdp = random_mdp(seed)
        found = rv.solve(mdp, "behaviour")
        score = np.where(mdp.available, found.q - 0.7 * found.q_variance, -np.inf)
        best = rv.Policy.cautious(mdp, 0.7, "behaviour").probabilities.argmax(axis=1)
        assert_array_equal(best, score.argmax(axis=1))
