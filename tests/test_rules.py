"""Identities between the update equations; many cases, fresh ones each time."""

from inspect import signature

import numba
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import retvar as rv
from retvar.td import rules
from tests import oracle

CASES = 10_000 if oracle.SOAK else 400  # make nightly: all
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


COMPILED = {name: numba.njit(getattr(rules, name)) for name in rules.__all__}
ARITY = {name: len(signature(getattr(rules, name)).parameters) for name in rules.__all__}
UNSIGNED = {"decayed_step", "slowed", "adadelta_step", "running_mean_square", "averaged"}


@many
@given(
    st.lists(st.floats(1e-3, 1e3), min_size=5, max_size=5),
    st.lists(st.booleans(), min_size=5, max_size=5),
)
def test_compiled_rules_equal_plain_python_to_the_bit(numbers, signs):
    for name, arity in ARITY.items():
        signed = name not in UNSIGNED
        given = [-x if minus and signed else x for x, minus in zip(numbers, signs, strict=True)]
        if name == "decayed_step":
            given[1] = min(given[1], 1.0)
        if name == "slowed":
            given[0] = min(given[0], 1.0)
        plain = getattr(rules, name)(*given[:arity])
        assert COMPILED[name](*given[:arity]) == plain, name
