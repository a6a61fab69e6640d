"""Checks of what an estimator reports."""

from __future__ import annotations

import math

import numpy as np

from retvar.errors import InputError
from retvar.testing.case import Case, expect, feed, moments_of


def steps_are_counted(case: Case) -> None:
    """Every transition learned from is a step, in chunks or one by one; refused ones are not."""
    estimator = case.after(case.stream(17))
    feed(estimator, case.stream(3))
    expect((estimator.steps, estimator.rejected) == (20, 0), repr(estimator))
    expect("20 steps" in repr(estimator), repr(estimator))


def td_error_is_that_of_the_value(case: Case) -> None:
    """The reported TD error is R + γ′J(s′) − J(s) with the values before the update."""
    estimator, _ = case.used()
    for state, follows, reward in ((0, 1, 2.0), (1, 2, -1.0), (2, 2, 0.5)):
        J, gamma = estimator.value(), case.per_state("gamma", 0.9)[follows]
        expected = reward + gamma * J[follows] - J[state]
        case.step(estimator, state, reward, follows)
        close = math.isclose(estimator.td_error, expected, rel_tol=1e-9, abs_tol=1e-9)
        expect(close, f"{estimator.td_error} instead of {expected}")


def vectors_equal_single_answers(case: Case) -> None:
    """The answer for all states holds the answers for each state."""
    estimator, _ = case.used()
    for name in ("value", "variance", "std", *moments_of(estimator)):
        answer = getattr(estimator, name)
        single = np.array([answer(s) for s in range(case.states)])
        same = np.array_equal(answer(), single, equal_nan=True)
        expect(same, f"{name}: {answer()} and {single}")


def std_is_the_root(case: Case) -> None:
    """The standard deviation is the root of the variance; NaN where that is negative."""
    for start in (0.0, 0.25, -0.25, 4.0):
        estimator = case.online(initial_variance=start)
        estimator.update_many(case.stream(6))
        variance, std = estimator.variance(), estimator.std()
        expect(np.isnan(std[variance < 0]).all(), f"std {std} of variances {variance}")
        good = variance >= 0
        expect(np.allclose(std[good] ** 2, variance[good]), f"std {std} of variances {variance}")


def moments_are_scaled(case: Case) -> None:
    """Skewness is M₃/V^1.5, kurtosis M₄/V² − 3; NaN where the variance is not above 0."""
    for start in (0.0, -0.25, 4.0):
        estimator = case.online(initial_variance=start)
        estimator.update_many(case.stream(6))
        V, moments = estimator.variance(), moments_of(estimator)
        shapes = {"third_moment": ("skewness", 1.5, 0.0), "fourth_moment": ("kurtosis", 2.0, 3.0)}
        for name in case.moments:
            shape, power, normal = shapes[name]
            found, known = moments[shape], V > 0
            expect(np.isnan(found[~known]).all(), f"{shape} {found} of variances {V}")
            wanted = moments[name][known] / V[known] ** power - normal
            expect(np.allclose(found[known], wanted, rtol=1e-9), f"{shape} {found} not {wanted}")


def unknown_states_have_no_answer(case: Case) -> None:
    """A query for a state that does not exist raises an InputError."""
    estimator, _ = case.used()
    for name in ("value", "variance", "std", *moments_of(estimator)):
        for state in (case.states, -1, 0.5, "x"):
            try:
                answer = getattr(estimator, name)(state)
            except InputError:
                continue
            raise AssertionError(f"{name}({state!r}) is {answer}")


def step_sizes_are_finite(case: Case) -> None:
    """The reported step sizes are finite numbers of at least 0."""
    estimator = case.online()
    for _ in range(10):
        estimator.update_many(case.stream(5))
        for node, step in estimator.step_sizes.items():
            expect(math.isfinite(step) and step >= 0, f"{node}: {step}")
