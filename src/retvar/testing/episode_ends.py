"""Checks of termination, truncation and cleared traces."""

from __future__ import annotations

import numpy as np

from retvar.testing.case import Case, expect_same_answers, expect_unchanged


def terminated_does_not_look_ahead(case: Case) -> None:
    """After termination the next state does not matter and may be missing."""
    start, _ = case.used()
    ended = [start.clone() for _ in range(case.states + 1)]
    for follows, estimator in zip([None, *range(case.states)], ended, strict=True):
        case.step(estimator, 0, 2.0, follows, terminated=True)
        case.expect_same(ended[0], estimator)


def terminated_has_no_discount(case: Case) -> None:
    """At a termination γ and λ do not matter."""
    start, _ = case.used()
    ended = [start.clone() for _ in range(4)]
    ends = ((None, None), (0.0, 0.0), (1.0, 1.0), (0.5, 0.0))
    for (gamma, lam), estimator in zip(ends, ended, strict=True):
        estimator.update(0, 2.0, 1, terminated=True, gamma=gamma, lam=lam)
        case.expect_same(ended[0], estimator)


def terminated_and_truncated_is_terminated(case: Case) -> None:
    """An end that is both is a termination."""
    a, b = case.used()
    case.step(a, 0, 2.0, 1, terminated=True, truncated=True)
    case.step(b, 0, 2.0, 1, terminated=True)
    case.expect_same(a, b)


def truncated_bootstraps(case: Case) -> None:
    """A truncated transition has the update of one that is not, and then clears the trace."""
    a, b = case.used()
    case.step(a, 0, 2.0, 1, truncated=True)
    case.step(b, 0, 2.0, 1)
    expect_same_answers(a, b)
    b.reset_traces(0)
    case.expect_same(a, b)


def nothing_crosses_a_termination(case: Case) -> None:
    """States of a terminated episode are not changed by the next episode."""
    _expect_no_effect_across(case, terminated=True)


def nothing_crosses_a_truncation(case: Case) -> None:
    """States of a truncated episode are not changed by the next episode."""
    _expect_no_effect_across(case, truncated=True)


def _expect_no_effect_across(case: Case, **end: bool) -> None:
    estimator = case.online()
    case.step(estimator, 0, 2.0, 1)
    case.step(estimator, 1, 2.0, 2, **end)
    before = estimator.clone()
    case.step(estimator, 2, 5.0, 2)
    case.step(estimator, 2, -3.0, 2)
    expect_unchanged(estimator, before, [0, 1])


def reset_traces_clears_all_streams(case: Case) -> None:
    """After ``reset_traces`` a transition changes only the state that it leaves."""
    estimator, _ = case.used()
    estimator.reset_traces()
    before = estimator.clone()
    case.step(estimator, 1, 5.0, 2)
    case.step(estimator, 1, 5.0, 2, stream=1)
    expect_unchanged(estimator, before, [s for s in range(case.states) if s != 1])


def reset_traces_of_a_stream_spares_the_others(case: Case) -> None:
    """Clearing the traces of one stream changes nothing for another."""
    estimator, _ = case.used()
    case.step(estimator, 0, 2.0, 1)
    cleared = estimator.clone()
    cleared.reset_traces(1)
    more = case.stream(10, ends=False) | {"rho": np.ones(10), "stream": np.zeros(10, dtype=int)}
    for each in (estimator, cleared):
        each.update_many(more)
    expect_same_answers(estimator, cleared)
