"""Checks of what a learner learns from experience."""

from __future__ import annotations

import math

import numpy as np

from retvar.testing import conditions
from retvar.testing.case import (
    PER_STATE,
    STEP_SIZES,
    TRACE_DECAYS,
    Case,
    expect,
    expect_same_answers,
    expect_unchanged,
)


def learns(case: Case) -> None:
    """An unexpected reward changes the variance of its state, and the value if learned."""
    estimator, before = case.online(), case.online()
    case.step(estimator, 0, 37.0, 1)
    expect(estimator.variance(0) != before.variance(0), "the variance did not move")
    if conditions.learns_value(case):
        expect(estimator.value(0) > before.value(0), "the value did not rise")


def first_step_is_step_size_times_error(case: Case) -> None:
    """The first transition moves the value by step size times ratio times TD error."""
    estimator = case.online()
    before = estimator.value(0)
    case.step(estimator, 0, 2.0, 1, rho=0.5)
    expected = before + estimator.step_sizes["value"] * 0.5 * estimator.td_error
    close = math.isclose(estimator.value(0), expected, rel_tol=1e-9, abs_tol=1e-12)
    expect(close, f"{estimator.value(0)} instead of {expected}")


def traces_reach_back(case: Case) -> None:
    """With κ > 0 a reward changes the value of the previous state, at its next visit at latest."""
    estimators = case.online(), case.online()
    for estimator, reward in zip(estimators, (0.0, 37.0), strict=True):
        case.step(estimator, 0, 0.0, 1)
        case.step(estimator, 1, reward, None, terminated=True)
    without, rewarded = estimators
    risen = rewarded.value(0) > without.value(0)
    for estimator in estimators:
        case.step(estimator, 0, 0.0, None, terminated=True)
    risen |= rewarded.value(0) > without.value(0)
    expect(risen, "the value of the state before did not rise")


def traces_need_more_than_one_step(case: Case) -> None:
    """In episodes of one step, trace decays make no difference."""
    columns = case.stream() | {"terminated": np.ones(40, dtype=bool)}
    a, b = (case.after(columns, **dict.fromkeys(TRACE_DECAYS, decay)) for decay in (0.0, 1.0))
    expect_same_answers(a, b, "step_sizes")


def zero_steps_change_nothing(case: Case) -> None:
    """With step sizes of 0 the estimates stay the same to the bit."""
    estimator = case.online(**dict.fromkeys(STEP_SIZES, 0.0))
    before = estimator.clone()
    estimator.update_many(case.stream(streams=2))
    expect_unchanged(estimator, before, range(case.states))


def fixed_value_stays_fixed(case: Case) -> None:
    """With ``learn_value=False`` the value does not change."""
    value = case.rng.normal(size=case.states)
    estimator = case.after(case.stream(), value=value, learn_value=False)
    expect(np.array_equal(estimator.value(), value), f"{value} became {estimator.value()}")


def unvisited_states_stay(case: Case) -> None:
    """States that were never left keep their estimates."""
    columns = case.stream() | {"state": case.rng.integers(2, size=40)}
    expect_unchanged(case.after(columns), case.online(), range(2, case.states))


def ratio_of_zero_leaves_the_value(case: Case) -> None:
    """A transition that the target would never make does not change any value."""
    estimator, before = case.used()
    case.step(estimator, 0, 5.0, 1, rho=0.0)
    same = np.array_equal(estimator.value(), before.value())
    expect(same, f"{before.value()} became {estimator.value()}")


def ratio_of_zero_clears_the_trace(case: Case) -> None:
    """States before a transition that the target would never make do not change any more."""
    estimator = case.online()
    case.step(estimator, 0, 2.0, 1)
    before = estimator.clone()
    case.step(estimator, 1, 2.0, 2, rho=0.0)
    expect_unchanged(estimator, before, range(case.states))
    case.step(estimator, 2, 5.0, 2)
    expect_unchanged(estimator, before, [0, 1])


def zero_rewards_keep_zero_estimates(case: Case) -> None:
    """Without rewards, estimates of zero stay zero."""
    estimator = case.blank()
    estimator.update_many(case.stream() | {"reward": np.zeros(40)})
    for name in ("value", "variance", *case.moments):
        expect(not getattr(estimator, name)().any(), f"{name} {getattr(estimator, name)()}")


def rewards_scale(case: Case) -> None:
    """Rewards times 8 give exactly 8 times the value and 8ᵏ times the moment of order k."""
    _expect_multiplied(case, 8)


def negated_rewards_negate_the_value(case: Case) -> None:
    """Negated rewards give exactly the negated value and third moment, and the same variance."""
    _expect_multiplied(case, -1)


def _expect_multiplied(case: Case, factor: int) -> None:
    """Expect rewards times a factor to multiply the value by it, moments by its powers."""
    columns = case.stream()
    original, multiplied = case.blank(), case.blank()
    original.update_many(columns)
    multiplied.update_many({**columns, "reward": factor * columns["reward"]})
    for name, power in {"value": 1, "variance": 2, **case.moments}.items():
        a, b = factor**power * getattr(original, name)(), getattr(multiplied, name)()
        expect(np.array_equal(a, b), f"{name}: {b} instead of {a}")


def state_order_does_not_matter(case: Case) -> None:
    """States in another order, with their settings, give the answers in that order."""
    columns = case.stream()
    order = case.rng.permutation(case.states)  # old state order[k] becomes state k
    now = np.argsort(order)
    given = {name: getattr(case.description, name, None) for name in PER_STATE}
    moved = {n: np.asarray(x)[order] for n, x in given.items() if x is not None and np.size(x) > 1}
    new = {name: now[columns[name]] for name in ("state", "next_state")}
    a, b = case.after(columns), case.after({**columns, **new}, **moved)
    for name in ("value", "variance", *case.moments):
        x, y = getattr(a, name)()[order], getattr(b, name)()
        expect(np.array_equal(x, y), f"{name}: {y} instead of {x}")


def lambda_has_no_effect_without_gamma(case: Case) -> None:
    """With γ = 0 every return is a reward, for any λ."""
    columns = case.stream()
    for name in case.open_settings():
        del columns[name]
    estimators = [case.after(columns, gamma=0.0, lam=lam) for lam in (0.0, 0.5, 1.0)]
    for estimator in estimators:
        expect_same_answers(estimators[0], estimator)


def value_does_not_depend_on_lambda(case: Case) -> None:
    """λ defines the return whose variance is estimated; the value is the same for all λ."""
    columns = case.stream()
    columns.pop("lam", None)
    values = [case.after(columns, lam=lam).value() for lam in (0.0, 0.5, 1.0)]
    for value in values:
        expect(np.array_equal(values[0], value), f"values {values[0]} and {value}")


def stays_finite(case: Case) -> None:
    """On a long on-policy stream of bounded rewards and short episodes, estimates stay finite."""
    columns = case.stream(400)
    columns |= {"reward": np.clip(columns["reward"], -1, 1), "rho": np.ones(400)}
    estimator = case.after(columns)
    for answer in (estimator.value(), estimator.variance()):
        expect(np.isfinite(answer).all(), f"{answer}")
