"""Identities between the update equations; many cases, fresh ones each time."""

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

import retvar as rv
from retvar import rules
from tests import oracle
from tests.reference import Reference

CASES = 10_000 if oracle.SOAK else 400  # make soak: all
many = settings(max_examples=CASES, derandomize=False)
pytestmark = pytest.mark.soak

unit = st.floats(0, 1)
ratio = st.floats(0, 4)
number = st.floats(-10, 10)
step = st.floats(0, 1)


def one_update(kind, alpha, J, V, reward, gamma, lam, rho, estimand):
    """V(s) after one transition from state 0 to state 1, V being equal beforehand."""
    learner = kind(
        alpha=alpha, gamma=gamma, lam=lam, estimand=estimand, value=J, initial_variance=V
    ).online(states=2)
    learner.update(0, reward, 1, rho=rho)
    return learner.variance(0)


@many
@given(step, st.tuples(number, number), st.tuples(number, number), number, unit, unit, ratio)
def test_a_vtd_update_is_the_direct_one_less_the_squared_move(alpha, J, V, R, gamma, lam, rho):
    """With α = ᾱ, no traces, s ≠ s′ and equal V beforehand. The three relations of the paper.

    On-policy −(αδ)²; for the target's return −(αρδ)²; for the off-policy return −(αρδ)² +
    2α(ρ−1)J(s)².
    """
    delta = R + gamma * J[1] - J[0]
    move = (alpha * rho * delta) ** 2
    for estimand, ratio_used, expected in (
        ("target_return", 1.0, -((alpha * delta) ** 2)),
        ("target_return", rho, -move),
        ("off_policy_return", rho, -move + 2 * alpha * (rho - 1) * J[0] ** 2),
    ):
        given = (alpha, J, V, R, gamma, lam, ratio_used, estimand)
        difference = one_update(rv.VTD, *given) - one_update(rv.Direct, *given)
        assert difference == pytest.approx(expected, abs=1e-9)


@many
@given(number, unit, unit, number)
def test_the_appendix_and_the_main_text_give_vtd_the_same_reward_on_policy(R, gamma, lam, J):
    """G² + 2γλGJ′ = (R + γJ′)² − (γλ)²J′²."""
    main_text = (R + gamma * J) ** 2 - (gamma * lam) ** 2 * J**2
    assert rules.vtd_reward(R, gamma, lam, J, 1.0) == pytest.approx(main_text, abs=1e-10)


@many
@given(number, unit, unit, st.tuples(number, number), ratio)
def test_the_centred_reward_at_the_value_is_the_direct_one(R, gamma, lam, J, eta):
    """With the mean node at J, its TD error is ηδ + (η−1)J(s)."""
    reward = rules.mean_reward(R, gamma, lam, J[1], eta)
    error = rules.td_error(reward, rules.mean_discount(gamma, lam, eta), J[1], J[0])
    delta = rules.td_error(R, gamma, J[1], J[0])
    assert error**2 == pytest.approx(rules.direct_reward(delta, J[0], eta), abs=1e-9)


episodes = st.lists(
    st.tuples(st.integers(0, 2), number, unit, unit), min_size=1, max_size=6
)  # state, reward, γ and λ on arrival


@many
@given(episodes, st.tuples(number, number, number), unit)
def test_offline_backward_view_equals_forward_view(episode, J, kappa):
    """Σδ_tE_t(s) = Σ over visits of (G^κ − J(s)), with γ of every transition its own."""
    learner = Reference("direct", 3, alpha=1.0, alpha_bar=0.0, kappa=kappa, J=J, offline=True)
    eye = np.eye(3)
    last = len(episode) - 1
    G = 0.0
    forward = np.zeros(3)
    for t, (s, R, gamma, lam) in enumerate(episode):
        s_next = episode[t + 1][0] if t < last else 0
        learner.update(eye[s], R, eye[s_next], gamma, lam, terminated=t == last)
    for t in range(last, -1, -1):
        s, R, gamma, _ = episode[t]
        J_next = 0.0 if t == last else J[episode[t + 1][0]]
        G = R + (0.0 if t == last else gamma) * ((1 - kappa) * J_next + kappa * G)
        forward[s] += G - J[s]
    assert_allclose(learner.pending[0], forward, atol=1e-8)


@many
@given(episodes, st.tuples(number, number, number))
def test_traces_of_one_telescope_to_monte_carlo(episode, J):
    """κ = 1: the changes of an episode add up to the returns minus the values, J' gone."""
    learner = Reference("direct", 3, alpha=1.0, alpha_bar=0.0, kappa=1.0, J=J, offline=True)
    eye = np.eye(3)
    last = len(episode) - 1
    for t, (s, R, gamma, lam) in enumerate(episode):
        s_next = episode[t + 1][0] if t < last else 0
        learner.update(eye[s], R, eye[s_next], gamma, lam, terminated=t == last)
    G, expected = 0.0, np.zeros(3)
    for s, R, gamma, _ in reversed(
        [(*e[:2], 0.0 if k == last else e[2], 0) for k, e in enumerate(episode)]
    ):
        G = R + gamma * G
        expected[s] += G - J[s]
    assert_allclose(learner.pending[0], expected, atol=1e-8)


COMPILED = {name: numba.njit(getattr(rules, name)) for name in rules.__all__}
ARITY = {
    "td_error": 4, "trace": 4, "moved": 4, "direct_reward": 3, "vtd_reward": 5,
    "variance_discount": 1, "third_moment_discount": 1, "fourth_moment_discount": 1,
    "mean_reward": 5, "mean_discount": 3, "decayed_step": 3, "slowed": 2, "running_mean_square": 3,
    "adadelta_step": 3, "bounded_step": 2, "averaged": 3, "direct_deviation": 3,
    "third_moment_reward": 3, "fourth_moment_reward": 4, "actor_error": 5, "greedy_lam": 2,
}  # fmt: skip

UNSIGNED = {
    "decayed_step", "slowed", "adadelta_step", "running_mean_square", "averaged", "greedy_lam",
}  # fmt: skip


@many
@given(
    st.lists(st.floats(1e-3, 1e3), min_size=5, max_size=5),
    st.lists(st.booleans(), min_size=5, max_size=5),
)
def test_compiled_rules_equal_plain_python_to_the_bit(numbers, signs):
    assert set(ARITY) == set(rules.__all__)
    for name, arity in ARITY.items():
        signed = name not in UNSIGNED
        given = [-x if minus and signed else x for x, minus in zip(numbers, signs, strict=True)]
        if name == "decayed_step":
            given[1] = min(given[1], 1.0)
        if name == "slowed":
            given[0] = min(given[0], 1.0)
        plain = getattr(rules, name)(*given[:arity])
        assert COMPILED[name](*given[:arity]) == plain, name
