"""Checks that results depend on description and experience only, also in clones and files."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from retvar.learners import load
from retvar.testing.case import Case, answers_of, expect, expect_same_answers, feed, rows_of


def deterministic(case: Case) -> None:
    """Two estimators of one description with the same experience hold the same bits."""
    columns = case.stream(streams=2)
    case.expect_same(case.after(columns), case.after(columns))


def description_unchanged(case: Case) -> None:
    """A description is the same after use: equal to what it was, with the same hash."""
    before = copy.deepcopy(case.description)
    number = hash(case.description)
    case.used()
    expect(case.description == before, f"{before} became {case.description}")
    expect(hash(case.description) == number, "its hash changed")


def description_compares_by_its_settings(case: Case) -> None:
    """A description with no setting replaced is equal, with the same hash."""
    twin = case.description.replace()
    expect(twin == case.description, f"{twin} is not {case.description}")
    expect(len({twin, case.description}) == 1, "equal descriptions have different hashes")
    expect(case.changed(alpha=0.625) != case.changed(alpha=0.75), "alpha makes no difference")


def starts_as_described(case: Case) -> None:
    """A fresh estimator has no steps and returns the initial estimates."""
    fresh = case.online()
    expect((fresh.steps, fresh.rejected) == (0, 0), f"{fresh.steps} steps")
    value, variance = case.per_state("value", 0.0), case.per_state("initial_variance", 0.0)
    expect(np.array_equal(fresh.value(), value), f"value {fresh.value()}")
    close = np.allclose(fresh.variance(), variance, rtol=1e-9, atol=1e-12 + 1e-12 * value**2)
    expect(close, f"variance {fresh.variance()}")
    for name in case.moments:
        expect(not getattr(fresh, name)().any(), f"{name} {getattr(fresh, name)()}")


def estimators_share_nothing(case: Case) -> None:
    """An estimator does not learn from the experience of another of the same description."""
    untouched = case.online()
    case.after(case.stream())
    case.expect_same(untouched, case.online())


def answers_are_copies(case: Case) -> None:
    """Writing into an answer changes nothing."""
    estimator, before = case.used()
    for answer in (estimator.value(), estimator.variance(), estimator.std()):
        answer[:] = 7.0
    case.expect_same(estimator, before)


def queries_change_nothing(case: Case) -> None:
    """An estimator that is queried at every step learns like one that is not."""
    columns = case.stream(20)
    queried = case.online()
    for t in range(20):
        feed(queried, rows_of(columns, slice(t, t + 1)))
        answers_of(queried)
        repr(queried)
    case.expect_same(queried, case.after_each(columns))


def clone_equals(case: Case) -> None:
    """A clone holds the same bits and learns the same from then on."""
    estimator, clone = case.used()
    expect_same_answers(estimator, clone)
    more = case.stream(streams=2)
    for each in (estimator, clone):
        feed(each, more)
    case.expect_same(estimator, clone)


def clone_is_independent(case: Case) -> None:
    """Neither a clone nor its original learns from the experience of the other."""
    estimator, control = case.used_twice()
    clone, more = estimator.clone(), case.stream(streams=2)
    clone.update_many(more)
    expect_same_answers(estimator, control)
    estimator.update_many(more)
    expect_same_answers(estimator, clone)
    estimator.update_many(more)
    control.update_many(more)
    expect_same_answers(control, clone)


def save_and_load_resume(case: Case) -> None:
    """Saved and loaded at any step, an estimator continues to the same bits."""
    columns = case.stream(30, streams=2)
    for cut in (0, 1, *sorted(case.rng.integers(2, 30, size=4).tolist()), 30):
        resumed = _reloaded(case, case.after_each(rows_of(columns, slice(None, cut))))
        feed(resumed, rows_of(columns, slice(cut, None)))
        case.expect_same(resumed, case.after_each(columns))


def saving_changes_nothing(case: Case) -> None:
    """An estimator is the same after it was saved."""
    estimator, before = case.used()
    _reloaded(case, estimator)
    case.expect_same(estimator, before)


def saved_file_is_deterministic(case: Case) -> None:
    """An estimator, its clone and its loaded copy are saved as the same bytes."""
    estimator, clone = case.used()
    first = _saved(estimator)
    for name, other in (
        ("the estimator", estimator),
        ("its clone", clone),
        ("its loaded copy", _reloaded(case, estimator)),
    ):
        expect(_saved(other) == first, f"{name} is saved as another file")


def loaded_copies_are_independent(case: Case) -> None:
    """Two estimators loaded from one file do not learn from each other."""
    estimator, _ = case.used()
    a, b = _reloaded(case, estimator), _reloaded(case, estimator)
    a.update_many(case.stream(streams=2))
    case.expect_same(b, estimator)


def _saved(estimator: Any) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "estimator.safetensors"
        estimator.save(path)
        return path.read_bytes()


def _reloaded(case: Case, estimator: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "estimator.safetensors"
        estimator.save(path)
        return getattr(case.description, "load", load)(path)
