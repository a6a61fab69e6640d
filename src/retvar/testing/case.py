"""The learner under test, its random experience, and comparisons of estimators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.errors import InputError

__all__ = [
    "PER_STATE", "STEP_SIZES", "TRACE_DECAYS", "Case", "Columns", "answers_of", "expect",
    "expect_same_answers", "expect_unchanged", "feed", "moments_of", "rows_of", "states_of",
]  # fmt: skip

Columns = dict[str, NDArray[Any]]
STEP_SIZES = ("alpha", "alpha_bar", "alpha_mean")
TRACE_DECAYS = ("kappa", "kappa_bar", "kappa_mean")
PER_STATE = ("gamma", "lam", *TRACE_DECAYS, "value", "initial_variance", "initial_mean")
FEWEST_STATES = 3  # that the checks need


@dataclass
class Case:
    """A learner to check, its number of states, and the source of its random experience."""

    description: Any
    states: int
    rng: np.random.Generator

    def changed(self, **changes: Any) -> Any:
        """Return the learner with new values for those of the settings that it has."""
        return self.description.replace(
            **{name: to for name, to in changes.items() if hasattr(self.description, name)}
        )

    def online(self, **changes: Any) -> Any:
        """Return a fresh estimator."""
        description = self.changed(**changes) if changes else self.description
        return description.online(states=self.states)

    def blank(self, **changes: Any) -> Any:
        """Return a fresh estimator that starts from zero."""
        zero = {"value": 0.0, "initial_variance": 0.0, "initial_mean": 0.0}
        return self.online(**zero, **changes)

    def after(self, columns: Any, **changes: Any) -> Any:
        """Return an estimator that has learned from a chunk."""
        estimator = self.online(**changes)
        estimator.update_many(columns)
        return estimator

    def after_each(self, columns: Columns) -> Any:
        """Return an estimator that has learned from the same rows one by one."""
        estimator = self.online()
        feed(estimator, columns)
        return estimator

    def used(self) -> tuple[Any, Any]:
        """Return an estimator amid an episode, with traces on two streams, and its clone."""
        estimator = self.used_twice()[0]
        return estimator, estimator.clone()

    def used_twice(self) -> tuple[Any, Any]:
        """Return two such estimators with the same experience, neither of them a clone."""
        before, now = self.stream(streams=2), self.stream(6, streams=2, ends=False)
        pair = self.after(before), self.after(before)
        for estimator in pair:
            estimator.update_many(now)
        return pair

    def stream(self, steps: int = 40, *, streams: int = 1, ends: bool = True) -> Columns:
        """Return random transitions, with γ and λ if the learner does not have its own."""
        rng, chance = self.rng, 0.12 * ends
        columns: Columns = {
            "state": rng.integers(self.states, size=steps),
            "reward": rng.normal(size=steps),
            "next_state": rng.integers(self.states, size=steps),
            "terminated": rng.random(steps) < chance,
            "truncated": rng.random(steps) < chance,
            "rho": rng.choice([0.0, 0.5, 1.0, 1.25], size=steps),
            "stream": rng.integers(streams, size=steps),
        }
        for name in self.open_settings():
            columns[name] = rng.choice([0.0, 0.5, 0.9, 1.0], size=steps)
        return columns

    @property
    def moments(self) -> dict[str, int]:
        """Names and orders of the moments beyond the variance that the learner estimates."""
        highest = getattr(self.description, "order", 2)
        return {name: k for k, name in ((3, "third_moment"), (4, "fourth_moment")) if k <= highest}

    def open_settings(self) -> list[str]:
        """Return which of γ and λ must come with each transition."""
        return [n for n in ("gamma", "lam") if getattr(self.description, n, None) is None]

    def step(self, estimator: Any, state: int, reward: float, follows: Any, **more: Any) -> None:
        """Update an estimator with one transition, with γ and λ if the learner needs them."""
        given: dict[str, Any] = dict.fromkeys(self.open_settings(), 0.9)
        estimator.update(state, reward, follows, **{**given, **more})

    def per_state(self, name: str, otherwise: float) -> NDArray[np.float64]:
        """Return a setting of the learner for every state."""
        given = getattr(self.description, name, None)
        array = np.asarray(otherwise if given is None else given, dtype=np.float64)
        return np.array(np.broadcast_to(array, (self.states,)))

    def expect_same(self, a: Any, b: Any) -> None:
        """Expect the same bits now and, in clones, after more experience."""
        expect_same_answers(a, b)
        more = self.stream(12, streams=2, ends=False)
        futures = a.clone(), b.clone()
        for future in futures:
            feed(future, more)
        expect_same_answers(*futures)


def states_of(description: Any) -> int:
    """Return the number of states for which a learner has settings; 4 if it has none."""
    given = (getattr(description, name, None) for name in PER_STATE)
    sizes = {int(np.size(x)) for x in given if x is not None and np.size(x) > 1}
    states = max(sizes, default=4)
    if states < FEWEST_STATES:
        raise InputError("description", f"for {states} states", f"needs at least {FEWEST_STATES}")
    return states


def feed(estimator: Any, columns: Columns) -> None:
    """Update one by one, with Python's own numbers."""
    for values in zip(*(column.tolist() for column in columns.values()), strict=True):
        row = dict(zip(columns, values, strict=True))
        estimator.update(row.pop("state"), row.pop("reward"), row.pop("next_state"), **row)


def rows_of(columns: Columns, which: Any) -> Columns:
    """Return some rows of a chunk."""
    return {name: column[which] for name, column in columns.items()}


def answers_of(estimator: Any) -> dict[str, Any]:
    """Return everything that an estimator reports."""
    return {
        "value": estimator.value(),
        "variance": estimator.variance(),
        "std": estimator.std(),
        **moments_of(estimator),
        "td_error": estimator.td_error,
        "step_sizes": list(estimator.step_sizes.values()),
        "steps": estimator.steps,
        "rejected": estimator.rejected,
    }


def moments_of(estimator: Any) -> dict[str, Any]:
    """The moments beyond the variance that an estimator reports, skewness and kurtosis too."""
    highest = getattr(getattr(estimator, "description", None), "order", 2)
    names = {3: ("third_moment", "skewness"), 4: ("fourth_moment", "kurtosis")}
    return {n: getattr(estimator, n)() for k in names if k <= highest for n in names[k]}


def expect(holds: Any, observed: str) -> None:
    """Raise an AssertionError with what was observed unless a condition holds."""
    if not holds:
        raise AssertionError(observed)


def expect_same_answers(a: Any, b: Any, *without: str) -> None:
    """Expect two estimators to report the same bits."""
    first, second = answers_of(a), answers_of(b)
    for name, x in first.items():
        y = second[name]
        same = np.asarray(x, dtype=float).tobytes() == np.asarray(y, dtype=float).tobytes()
        expect(name in without or same, f"{name} is {x} and {y}")


def expect_unchanged(estimator: Any, before: Any, states: Any) -> None:
    """Expect value and variance of these states to equal those of `before`."""
    moments = (name for name in moments_of(estimator) if name.endswith("moment"))
    for name in ("value", "variance", *moments):
        now, then = getattr(estimator, name)()[states], getattr(before, name)()[states]
        expect(now.tobytes() == then.tobytes(), f"{name} of states {states} went {then} → {now}")
