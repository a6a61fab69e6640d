"""Checks of experience in all its forms, of streams, and of the refusal of invalid input."""

from __future__ import annotations

import copy
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from retvar.errors import InputError
from retvar.online import Transition
from retvar.testing.case import Case, expect, expect_same_answers, rows_of


def input_untouched(case: Case) -> None:
    """Input arrays are not changed and may be read-only."""
    columns = case.stream()
    before = copy.deepcopy(columns)
    case.after(columns)
    for name, column in columns.items():
        expect(np.array_equal(column, before[name]), f"{name} was changed")
        column.setflags(write=False)
    case.after(columns)


def chunk_equals_one_by_one(case: Case) -> None:
    """A chunk gives exactly the bits of one update after the other."""
    columns = case.stream(60, streams=3)
    case.expect_same(case.after_each(columns), case.after(columns))


def split_equals_joined(case: Case) -> None:
    """A stream split into chunks in any way gives the same bits."""
    columns = case.stream(60, streams=2)
    joined, split = case.after(columns), case.online()
    edges = [0, *np.sort(case.rng.integers(0, 61, size=5)).tolist(), 60]
    for first, last in itertools.pairwise(edges):
        split.update_many(rows_of(columns, slice(first, last)))
    case.expect_same(joined, split)


def empty_chunk_changes_nothing(case: Case) -> None:
    """A chunk without rows changes nothing."""
    estimator, before = case.used()
    estimator.update_many(rows_of(case.stream(), slice(0, 0)))
    case.expect_same(estimator, before)


def transitions_are_updates(case: Case) -> None:
    """An object with the fields of a transition gives the bits of a call with them."""
    columns = case.stream(20)
    single = case.online()
    for values in zip(*(column.tolist() for column in columns.values()), strict=True):
        single.update(Transition(**dict(zip(columns, values, strict=True))))
    case.expect_same(case.after_each(columns), single)


def records_are_columns(case: Case) -> None:
    """A structured array gives the bits of a mapping from columns to arrays."""
    columns = case.stream(20)
    record = np.zeros(20, dtype=[(name, column.dtype) for name, column in columns.items()])
    for name, column in columns.items():
        record[name] = column
    case.expect_same(case.after(columns), case.after(record))


def numpy_numbers_are_numbers(case: Case) -> None:
    """NumPy's scalars give the bits of Python's numbers."""
    columns = case.stream(20)
    single = case.online()
    for t in range(20):
        row = {name: column[t] for name, column in columns.items()}
        single.update(row.pop("state"), row.pop("reward"), row.pop("next_state"), **row)
    case.expect_same(case.after_each(columns), single)


def ratio_defaults_to_one(case: Case) -> None:
    """The default importance ratio is 1."""
    columns = {**case.stream(), "rho": np.ones(40)}
    explicit = case.after(columns)
    del columns["rho"]
    case.expect_same(explicit, case.after(columns))


def gamma_and_lambda_of_a_transition_come_first(case: Case) -> None:
    """γ and λ of a transition replace the learner's own."""
    settings = {"gamma": 0.5, "lam": 0.25}
    columns = case.stream(20)
    columns |= {name: np.full(20, x) for name, x in settings.items()}
    a, b = case.after(columns), case.after(columns, **settings)
    del columns["gamma"], columns["lam"]
    c = case.after(columns, **settings)
    expect_same_answers(a, c)
    expect_same_answers(b, c)


def interleaved_equals_separate(case: Case) -> None:
    """Streams with separate states learn the same bits interleaved and one after the other."""
    columns = case.stream(60, streams=2)
    half = case.states // 2
    for name in ("state", "next_state"):
        low, high = columns[name] % half, half + columns[name] % (case.states - half)
        columns[name] = np.where(columns["stream"] == 0, low, high)
    interleaved, separate = case.after(columns), case.online()
    for k in range(2):
        separate.update_many(rows_of(columns, columns["stream"] == k))
    expect_same_answers(interleaved, separate, "td_error", "step_sizes")


def stream_numbers_do_not_matter(case: Case) -> None:
    """Streams with other numbers give the same bits."""
    columns = case.stream(60, streams=3)
    renumbered = {**columns, "stream": np.array([4, 0, 1])[columns["stream"]]}
    expect_same_answers(case.after(columns), case.after(renumbered))


def refuses_unknown_states(case: Case) -> None:
    """A state that does not exist is refused and counted; nothing else changes."""
    n = case.states
    _expect_refused(case, *(((s, 1.0, 0), {}) for s in (n, -1, 0.5, "x", None)))
    _expect_refused(case, *(((0, 1.0, s), {}) for s in (n, -2, 0.5, "x")))


def refuses_a_missing_next_state(case: Case) -> None:
    """Only a terminated transition may lack a next state; even a truncated one may not."""
    _expect_refused(case, ((0, 1.0, None), {}), ((0, 1.0, None), {"truncated": True}))


def refuses_bad_rewards(case: Case) -> None:
    """A reward that is not a finite number is refused and counted; nothing else changes."""
    bad = (math.nan, math.inf, -math.inf, "much", [1.0, 2.0])
    _expect_refused(case, *(((0, reward, 1), {}) for reward in bad))


def refuses_bad_ratios(case: Case) -> None:
    """A ratio that is negative, infinite or no number is refused and counted."""
    _expect_refused(case, *(((0, 1.0, 1), {"rho": rho}) for rho in (-0.5, math.nan, math.inf, "x")))


def refuses_bad_gammas_and_lambdas(case: Case) -> None:
    """γ or λ outside [0, 1] is refused and counted; nothing else changes."""
    for bad in (-0.1, 1.1, math.nan, math.inf, "x"):
        _expect_refused(case, ((0, 1.0, 1), {"gamma": bad}), ((0, 1.0, 1), {"lam": bad}))


def refuses_bad_streams(case: Case) -> None:
    """A stream that is not a number from 0 is refused and counted; nothing else changes."""
    _expect_refused(case, *(((0, 1.0, 1), {"stream": stream}) for stream in (-1, 0.5, "x", None)))


def refuses_a_bad_chunk_whole(case: Case) -> None:
    """By default no row of a chunk with an invalid row is learned from."""
    for name, bad in (("state", case.states), ("reward", np.nan), ("rho", -1.0)):
        estimator, before = case.used()
        columns = case.stream(20)
        columns[name][13] = bad
        _expect_input_error(estimator.update_many, [columns], f"a chunk with {name} = {bad}")
        _expect_only_counted(case, estimator, before, f"a chunk with {name} = {bad}")


def skips_bad_rows(case: Case) -> None:
    """With ``on_error="skip"`` an invalid row is counted and clears the trace of its stream."""
    columns = case.stream(20, ends=False) | {"rho": np.ones(20)}
    columns["reward"][7] = np.nan
    skipped, cleared = case.online(), case.after(rows_of(columns, slice(0, 7)))
    skipped.update_many(columns, on_error="skip")
    expect((skipped.steps, skipped.rejected) == (19, 1), repr(skipped))
    cleared.reset_traces(0)
    cleared.update_many(rows_of(columns, slice(8, None)))
    cleared.rejected = 1
    case.expect_same(skipped, cleared)


def refuses_columns_that_do_not_fit(case: Case) -> None:
    """Missing, unknown or unequal columns are refused; nothing changes."""
    columns = case.stream(5)
    without = {name: column for name, column in columns.items() if name != "next_state"}
    for bad in (without, {**columns, "done": np.zeros(5)}, {**columns, "reward": np.zeros(4)}):
        estimator = case.online()
        _expect_input_error(estimator.update_many, [bad], f"columns {sorted(bad)}")
        estimator.rejected = 0
        case.expect_same(estimator, case.online())


def _expect_refused(case: Case, *bad: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
    """Expect each of these transitions to raise and to be counted, without other effects."""
    for transition, more in bad:
        estimator, before = case.used()
        step = functools.partial(case.step, estimator, **more)
        _expect_input_error(step, transition, f"{transition} {more}")
        _expect_only_counted(case, estimator, before, f"{transition} {more}")


def _expect_input_error(update: Callable[..., None], given: Sequence[Any], what: str) -> None:
    try:
        update(*given)
    except InputError:
        return
    raise AssertionError(f"{what} was accepted")


def _expect_only_counted(case: Case, estimator: Any, before: Any, what: str) -> None:
    counted = estimator.rejected - before.rejected
    expect(counted == 1, f"{what} was counted {counted} times")
    estimator.rejected = before.rejected
    case.expect_same(estimator, before)
