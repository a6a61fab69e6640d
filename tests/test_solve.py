"""solve() against the paper's numbers, other closed forms, and enumeration of paths."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import retvar as rv
from tests import oracle

QUESTIONS = [
    ("target", None, "target_return"),
    ("target", "behaviour", "target_return"),
    ("target", "behaviour", "off_policy_return"),
]


def acyclic_mdp(seed: int, states: int = 5) -> rv.MDP:
    """Edges lead to later states or to the end; γ per edge, parallel edges, reward noise."""
    rng = np.random.default_rng(seed)
    edges = []
    for s in range(states):
        for a in range(2):
            p = rng.dirichlet(np.ones(3))
            for k in range(3):
                to = int(rng.integers(s + 1, states + 1))
                to, g = ("end", 0.0) if to == states else (to, rng.choice([1.0, rng.random()]))
                edges.append(rv.Edge(s, a, to, p[k], rng.normal(), rng.random(), g))
    policies = {n: rng.dirichlet(np.ones(2), states) for n in ("target", "behaviour")}
    return rv.MDP.from_edges(edges, lam=rng.random(states), policies=policies, states=states)


def one_state(gamma: float, lam: float = 1.0) -> rv.MDP:
    """E[ρᵏ] = 1.64, 2.92, 5.2496 for k = 2, 3, 4."""
    policies = {"pi": [[0.9, 0.1]], "mu": [[0.5, 0.5]]}
    edges = [(0, 0, 0, 1.0, 1.0), (0, 1, 0, 1.0, 0.0)]
    return rv.MDP.from_edges(edges, gamma=gamma, lam=lam, policies=policies)


def test_complex_mdp_gives_the_numbers_of_the_specification():
    truth = rv.solve(rv.domains.complex_mdp())
    assert_allclose(truth.value, [-0.244176, 0.639560, 1.087791, 1.551165, -0.006654], atol=5e-7)
    assert_allclose(truth.variance, [0.141518, 1.091959, 0.521739, 0.237610, 0.031015], atol=5e-7)


@pytest.mark.parametrize("length", [1, 7, 200, 5_000])
def test_variance_of_a_long_chain_is_a_geometric_sum(length):
    truth = rv.solve(rv.domains.chain(lam=0.9, length=length))
    left = np.arange(length, 0, -1)
    assert_allclose(truth.variance, (1 - 0.81**left) / 0.19, rtol=1e-12)


def test_first_passage_time_of_the_random_walk_has_the_known_mean_and_variance():
    """Far inside, a step to the right takes 1/(p−q) steps with variance 4pq/(p−q)³.

    The last step is free: the return is −(steps − 1), and its variance that of the steps. Near the
    wall at s0 it differs by a term of order (q/p)^i.
    """
    p, q = 0.7, 0.3
    truth = rv.solve(rv.domains.random_walk(60))
    left = np.arange(60, 0, -1)
    inside = slice(40, None)
    assert_allclose(truth.value[inside], 1 - left[inside] / (p - q), rtol=1e-11)
    assert_allclose(truth.variance[inside], left[inside] * 4 * p * q / (p - q) ** 3, rtol=1e-10)


def test_with_lambda_one_the_value_function_does_not_matter():
    mdp = rv.domains.random_mdp(8, seed=3, gamma=(0.5, 0.9), parallel=True)
    wrong = np.random.default_rng(0).normal(size=8)
    a, b = rv.solve(mdp, lam=1.0), rv.solve(mdp, lam=1.0, value=wrong)
    assert_allclose(b.mean, a.value, atol=1e-12)
    assert_allclose(b.variance, a.variance, atol=1e-12)


def test_with_lambda_zero_the_variance_is_that_of_one_step():
    mdp = rv.domains.random_mdp(6, seed=1)
    truth = rv.solve(mdp, lam=0.0)
    rows = oracle.transitions(mdp, "target")
    one, two = np.zeros(6), np.zeros(6)
    for s, s_next, p, _, _, _, r, sd, g, _ in rows:
        target = r + g * truth.value[s_next]
        one[s] += p * target
        two[s] += p * (target**2 + sd**2)
    assert_allclose(truth.variance, two - one**2, atol=1e-12)
    assert truth.spectral_radius == 0


def test_on_policy_the_questions_are_one_and_the_target_does_not_see_the_behaviour():
    mdp = rv.domains.complex_mdp()
    for estimand in ("target_return", "off_policy_return"):
        same = rv.solve(mdp, "mu", "mu", estimand)
        assert_allclose(same.variance, rv.solve(mdp).variance, atol=1e-14)
    assert_allclose(rv.solve(mdp, "pi", "mu").variance, rv.solve(mdp, "pi").variance)


@pytest.mark.parametrize("n", [10, 300, 3_000])
def test_infinite_variance_is_found_at_every_size(n):
    mdp = rv.domains.random_mdp(n, 2, 3, seed=0, gamma=0.99, lam=1.0)
    with pytest.raises(rv.InfiniteVarianceError) as caught:
        rv.solve(mdp, "target", "behaviour", "off_policy_return")
    assert caught.value.radius >= 1
    if n <= 300:
        exact = oracle.radius(mdp, "target", "behaviour", "off_policy_return")
        assert 1 <= caught.value.radius <= exact * (1 + 1e-9)


@pytest.mark.parametrize("n", [20, 64, 65, 400])
def test_radius_is_exact_or_an_upper_bound_below_one(n):
    mdp = rv.domains.random_mdp(n, 2, 2, seed=n, gamma=(0.9, 1.0), lam=(0.9, 1.0), ends=0.02)
    solution = rv.solve(mdp)
    exact = oracle.radius(mdp, "target", None, "target_return")
    assert solution.radius_kind == ("exact" if n <= 64 else "upper bound")
    assert exact * (1 - 1e-9) <= solution.spectral_radius < 1
    if n <= 64:
        assert solution.spectral_radius == pytest.approx(exact)


def test_only_the_target_policy_has_to_end():
    edges = [(0, "stay", 0, 1.0, 1.0), (0, "leave", "end", 1.0, 1.0)]
    policies = {"leave": [[0.0, 1.0]], "stay": [[1.0, 0.0]], "both": [[0.5, 0.5]]}
    mdp = rv.MDP.from_edges(edges, gamma=1.0, policies=policies)
    assert rv.solve(mdp, "leave").value[0] == 1
    assert rv.solve(mdp, "leave", "both", "off_policy_return").value[0] == 1
    with pytest.raises(rv.InputError):
        rv.solve(mdp, "stay", "both", "off_policy_return")


@pytest.mark.parametrize(
    ("n", "solver"), [(100, "dense LU"), (900, "sparse LU"), (3_000, "BiCGSTAB")]
)
def test_the_solver_depends_on_the_size_and_reaches_the_residual(n, solver):
    mdp = rv.domains.random_mdp(n, 1, 3, seed=0, gamma=(0.9, 0.99), lam=(0.5, 1.0))
    solution = rv.solve(mdp, value=np.zeros(n))
    assert solution.solvers == (solver,) * 3
    assert solution.residual <= 1e-14


@pytest.mark.parametrize(("length", "right"), [(30, 0.25), (100, 0.4), (400, 0.45), (30, 0.3)])
def test_on_policy_the_variance_is_never_called_infinite(length, right):
    """Double precision may not suffice; the error then says so instead of reporting infinity."""
    walk = rv.domains.random_walk(length, right=right)
    try:
        solution = rv.solve(walk)
    except rv.ConvergenceError:
        return
    assert solution.spectral_radius < 1
    assert solution.error < 1e-2


def test_the_reported_error_bounds_the_actual_error():
    """Against rational arithmetic: the mean first-passage time of a walk against its drift."""
    walk = rv.domains.random_walk(24, right=0.3)
    solution = rv.solve(walk)
    p, q = 0.3, 0.7
    steps = [(i + 1) / p for i in range(1)]
    difference = 1 / p
    total = difference
    for _ in range(23):
        difference = (1 + q * difference) / p
        total += difference
        steps.append(total)
    assert abs(solution.value[0] + total - 1) / total <= solution.error + 1e-13


def test_averaging_parallel_edges_would_be_wrong_on_the_complex_mdp():
    """A common mistake: merge edges between the same states into their mean reward."""
    mdp = rv.domains.complex_mdp()
    mu = mdp.policy("mu").probabilities
    P, R = np.zeros((5, 1, 5)), np.zeros((5, 1, 5))
    for s, a, s_next, p, r, *_ in zip(*mdp.edges, strict=True):
        P[s, 0, s_next] += mu[s, a] * p
        R[s, 0, s_next] += mu[s, a] * p * r
    merged = rv.MDP.from_dense(P, np.divide(R, P, out=R, where=P > 0), gamma=mdp.gamma, lam=mdp.lam)
    exact, wrong = rv.solve(mdp), rv.solve(merged)
    assert_allclose(wrong.value, exact.value, atol=1e-12)
    assert np.all(wrong.variance < exact.variance - 1e-3)
