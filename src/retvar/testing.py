"""What every learner promises, as checks that anyone may run on a learner of their own.

A learner is a description with ``online(states=…)`` and ``replace(…)``, whose estimators are fed
and asked as those of :class:`retvar.Direct` are. Every check is a sentence and a few lines; none
looks inside an estimator: what it holds is what it answers, now and after more experience.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import math
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.domains import random_mdp
from retvar.errors import InfiniteVarianceError, InputError
from retvar.exact import fixed_point, solve
from retvar.learners import load
from retvar.mdp import END, MDP
from retvar.online import Transition
from retvar.step_sizes import Adadelta, AlphaBound, StepSize

__all__ = ["CHECKS", "check_learner"]

Columns = dict[str, NDArray[Any]]
STEP_SIZES = ("alpha", "alpha_bar", "alpha_mean")
DECAYS = ("kappa", "kappa_bar", "kappa_mean")
PER_STATE = ("gamma", "lam", *DECAYS, "value", "initial_variance", "initial_mean")
FEWEST = 3  # states that the checks need
ROOT = math.sqrt(3.0)


class Checks(dict[str, Callable[["Case"], None]]):
    """Checks by name, in the order in which they run; each takes a learner and its experience.

    >>> len(CHECKS) >= 40
    True
    >>> CHECKS["deterministic"].__doc__
    'Two estimators of one description that see one stream hold the same bits.'
    """


CHECKS = Checks()
_APPLIES: dict[str, Callable[[Case], bool]] = {}


def check_learner(description: Any, *, seed: int = 0) -> list[str]:
    """Run every check that applies to a learner; return their names.

    Parameters
    ----------
    description
        A learner for at least 3 states. If its files are not for :func:`retvar.load`, it has a
        method ``load(path)`` that reads them.
    seed
        Of the random experience.

    Raises
    ------
    AssertionError
        Names the check that failed, what it promises and what was seen.

    Examples
    --------
    >>> import retvar as rv
    >>> names = check_learner(rv.Direct(alpha=0.1, gamma=0.9, lam=0.9, kappa=0.8))
    >>> len(names) >= 40, "save_and_load_resume" in names
    (True, True)
    """
    states = _states_of(description)
    ran = []
    for name, check in CHECKS.items():
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        case = Case(description, states, rng)
        if not _APPLIES[name](case):
            continue
        try:
            check(case)
        except Exception as error:
            seen = str(error) if type(error) is AssertionError else repr(error)
            raise AssertionError(f"{name}: {inspect.getdoc(check)} Seen: {seen}") from error
        ran.append(name)
    return ran


# ---------------------------------------------------------------------- what the checks work with


@dataclass
class Case:
    """A learner to be checked, how many states it has, and where its experience comes from."""

    description: Any
    states: int
    rng: np.random.Generator

    def changed(self, **changes: Any) -> Any:
        """The learner with those of the settings changed that it has."""
        return self.description.replace(
            **{name: to for name, to in changes.items() if hasattr(self.description, name)}
        )

    def online(self, **changes: Any) -> Any:
        """A fresh estimator."""
        description = self.changed(**changes) if changes else self.description
        return description.online(states=self.states)

    def blank(self, **changes: Any) -> Any:
        """A fresh estimator that starts from zero."""
        zero = {"value": 0.0, "initial_variance": 0.0, "initial_mean": 0.0}
        return self.online(**zero, **changes)

    def used(self) -> Any:
        """An estimator in the middle of an episode, with traces on several streams."""
        return self.twins()[0]

    def twins(self) -> tuple[Any, Any]:
        """Two such that have seen the same, and were not cloned."""
        before, now = self.stream(streams=2), self.stream(6, streams=2, ends=False)
        pair = self.online(), self.online()
        for estimator in pair:
            estimator.update_many(before)
            estimator.update_many(now)
        return pair

    def stream(self, steps: int = 40, *, streams: int = 1, ends: bool = True) -> Columns:
        """Random transitions; γ and λ are with them where the learner does not have its own."""
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
        for name in self.open():
            columns[name] = rng.choice([0.0, 0.5, 0.9, 1.0], size=steps)
        return columns

    def open(self) -> list[str]:
        """Which of γ and λ must come with each transition."""
        return [n for n in ("gamma", "lam") if getattr(self.description, n, None) is None]

    def step(self, estimator: Any, state: int, reward: float, follows: Any, **more: Any) -> None:
        """One transition, with γ and λ where they must be given."""
        given: dict[str, Any] = dict.fromkeys(self.open(), 0.9)
        estimator.update(state, reward, follows, **{**given, **more})

    def per_state(self, name: str, otherwise: float) -> NDArray[np.float64]:
        """A setting of the learner for every state."""
        given = getattr(self.description, name, None)
        array = np.asarray(otherwise if given is None else given, dtype=np.float64)
        return np.array(np.broadcast_to(array, (self.states,)))


def _states_of(description: Any) -> int:
    """As many states as settings are given for; else 4."""
    given = (getattr(description, name, None) for name in PER_STATE)
    sizes = {int(np.size(x)) for x in given if x is not None and np.size(x) > 1}
    states = max(sizes, default=4)
    if states < FEWEST:
        raise InputError("description", f"for {states} states", f"needs at least {FEWEST}")
    return states


def _expect(holds: Any, seen: str) -> None:
    if not holds:
        raise AssertionError(seen)


def _feed(estimator: Any, columns: Columns) -> None:
    """One by one, as Python's own numbers."""
    for values in zip(*(column.tolist() for column in columns.values()), strict=True):
        row = dict(zip(columns, values, strict=True))
        estimator.update(row.pop("state"), row.pop("reward"), row.pop("next_state"), **row)


def _rows(columns: Columns, which: Any) -> Columns:
    return {name: column[which] for name, column in columns.items()}


def _answers(estimator: Any) -> dict[str, Any]:
    return {
        "value": estimator.value(),
        "variance": estimator.variance(),
        "std": estimator.std(),
        "td_error": estimator.td_error,
        "step_sizes": list(estimator.step_sizes.values()),
        "steps": estimator.steps,
        "rejected": estimator.rejected,
    }


def _alike(a: Any, b: Any, *without: str) -> None:
    """Both answer the same bits."""
    first, second = _answers(a), _answers(b)
    for name, x in first.items():
        y = second[name]
        same = np.asarray(x, dtype=float).tobytes() == np.asarray(y, dtype=float).tobytes()
        _expect(name in without or same, f"{name} is {x} and {y}")


def _same(case: Case, a: Any, b: Any) -> None:
    """Both answer the same bits, now and (as their clones show) after more experience."""
    _alike(a, b)
    more = case.stream(12, streams=2, ends=False)
    futures = a.clone(), b.clone()
    for future in futures:
        _feed(future, more)
    _alike(*futures)


def _saved(estimator: Any, folder: Path) -> bytes:
    path = folder / "estimator.safetensors"
    estimator.save(path)
    return path.read_bytes()


def _loaded(case: Case, estimator: Any) -> Any:
    read = getattr(case.description, "load", load)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "estimator.safetensors"
        estimator.save(path)
        return read(path)


def _unchanged(estimator: Any, before: Any, states: Any) -> None:
    """Value and variance of these states are those of before."""
    for name in ("value", "variance"):
        now, then = getattr(estimator, name)()[states], getattr(before, name)()[states]
        _expect(now.tobytes() == then.tobytes(), f"{name} of states {states} went {then} → {now}")


def _refuses(case: Case, *bad: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
    """Each of these transitions raises, is counted, and changes nothing else."""
    for transition, more in bad:
        estimator = case.used()
        before = estimator.clone()
        try:
            case.step(estimator, *transition, **more)
        except InputError:
            counted = estimator.rejected - before.rejected
            _expect(counted == 1, f"{transition} {more} was counted {counted} times")
            estimator.rejected = before.rejected
            _same(case, estimator, before)
        else:
            raise AssertionError(f"{transition} {more} was accepted")


# ---------------------------------------------------------------------- which checks apply


def _always(case: Case) -> bool:
    return True


def _rules(case: Case) -> list[Any]:
    given = (getattr(case.description, name, None) for name in STEP_SIZES)
    return [rule for rule in given if rule is not None]


def _moves(case: Case) -> bool:
    """Whether no step is 0."""
    alphas = [getattr(r, "alpha", 1.0) if isinstance(r, StepSize) else r for r in _rules(case)]
    return all(alpha > 0 for alpha in alphas)


def _learns_value(case: Case) -> bool:
    return _moves(case) and bool(getattr(case.description, "learn_value", True))


def _has_value_trace(case: Case) -> bool:
    return _learns_value(case) and bool(
        case.per_state("kappa", 0.0).min() > 0 and case.per_state("gamma", 0.9).min() > 0
    )


def _scales(case: Case) -> bool:
    """Whether steps do not depend on how large rewards are."""
    known = all(isinstance(r, int | float | StepSize) for r in _rules(case))
    return known and not any(isinstance(r, Adadelta) for r in _rules(case))


def _local(case: Case) -> bool:
    """Whether a state's step does not depend on other states."""
    known = all(isinstance(r, int | float | StepSize) for r in _rules(case))
    return known and not any(isinstance(r, AlphaBound) for r in _rules(case))


def _for_the_target(case: Case) -> bool:
    return bool(getattr(case.description, "estimand", "target_return") == "target_return")


def _known_method(case: Case) -> bool:
    return getattr(case.description, "method", None) in ("direct", "vtd", "centred")


def _check(
    when: Callable[[Case], bool] = _always,
) -> Callable[[Callable[[Case], None]], Callable[[Case], None]]:
    """Enter a function among the checks."""

    def enter(check: Callable[[Case], None]) -> Callable[[Case], None]:
        CHECKS[check.__name__] = check
        _APPLIES[check.__name__] = when
        return check

    return enter


# ---------------------------------------------------------------------- same bits


@_check()
def input_untouched(case: Case) -> None:
    """Arrays given are left as they are; read-only ones will do."""
    columns = case.stream()
    kept = copy.deepcopy(columns)
    case.online().update_many(columns)
    for name, column in columns.items():
        _expect(np.array_equal(column, kept[name]), f"{name} was changed")
        column.setflags(write=False)
    case.online().update_many(columns)


@_check()
def deterministic(case: Case) -> None:
    """Two estimators of one description that see one stream hold the same bits."""
    columns = case.stream(streams=2)
    a, b = case.online(), case.online()
    for estimator in (a, b):
        estimator.update_many(columns)
    _same(case, a, b)


@_check()
def description_unchanged(case: Case) -> None:
    """A description is the same after use: equal to what it was, with the same hash."""
    before = copy.deepcopy(case.description)
    number = hash(case.description)
    case.used()
    _expect(case.description == before, f"{before} became {case.description}")
    _expect(hash(case.description) == number, "its hash changed")


@_check()
def description_compares_by_its_settings(case: Case) -> None:
    """A description with no setting replaced is equal, with the same hash."""
    twin = case.description.replace()
    _expect(twin == case.description, f"{twin} is not {case.description}")
    _expect(len({twin, case.description}) == 1, "equal descriptions have different hashes")
    _expect(case.changed(alpha=0.625) != case.changed(alpha=0.75), "alpha makes no difference")


@_check()
def starts_as_described(case: Case) -> None:
    """A fresh estimator has seen nothing and answers with the initial estimates."""
    fresh = case.online()
    _expect((fresh.steps, fresh.rejected) == (0, 0), f"{fresh.steps} steps")
    value, variance = case.per_state("value", 0.0), case.per_state("initial_variance", 0.0)
    _expect(np.array_equal(fresh.value(), value), f"value {fresh.value()}")
    close = np.allclose(fresh.variance(), variance, rtol=1e-9, atol=1e-12 + 1e-12 * value**2)
    _expect(close, f"variance {fresh.variance()}")


@_check()
def estimators_share_nothing(case: Case) -> None:
    """An estimator does not learn from what another of the same description sees."""
    a, b = case.online(), case.online()
    a.update_many(case.stream())
    _same(case, b, case.online())


@_check()
def answers_are_copies(case: Case) -> None:
    """Writing into an answer changes nothing."""
    estimator = case.used()
    before = estimator.clone()
    for answer in (estimator.value(), estimator.variance(), estimator.std()):
        answer[:] = 7.0
    _same(case, estimator, before)


@_check()
def asking_changes_nothing(case: Case) -> None:
    """An estimator that is asked at every step learns as one that is not."""
    columns = case.stream(20)
    asked, silent = case.online(), case.online()
    for t in range(20):
        _feed(asked, _rows(columns, slice(t, t + 1)))
        _answers(asked)
        repr(asked)
    _feed(silent, columns)
    _same(case, asked, silent)


# ---------------------------------------------------------------------- copies


@_check()
def clone_equals(case: Case) -> None:
    """A clone holds the same bits and learns the same from then on."""
    estimator = case.used()
    twin = estimator.clone()
    _alike(estimator, twin)
    more = case.stream(streams=2)
    for each in (estimator, twin):
        _feed(each, more)
    _same(case, estimator, twin)


@_check()
def clone_is_independent(case: Case) -> None:
    """Neither a clone nor its original learns from what the other sees."""
    estimator, kept = case.twins()
    twin, more = estimator.clone(), case.stream(streams=2)
    twin.update_many(more)
    _alike(estimator, kept)
    estimator.update_many(more)
    _alike(estimator, twin)
    estimator.update_many(more)
    kept.update_many(more)
    _alike(kept, twin)


@_check()
def save_and_load_resume(case: Case) -> None:
    """Saved at any step and read back, it goes on to the same bits as without the stop."""
    columns = case.stream(30, streams=2)
    for cut in (0, 1, *sorted(case.rng.integers(2, 30, size=4).tolist()), 30):
        stopped, whole = case.online(), case.online()
        _feed(stopped, _rows(columns, slice(None, cut)))
        stopped = _loaded(case, stopped)
        _feed(stopped, _rows(columns, slice(cut, None)))
        _feed(whole, columns)
        _same(case, stopped, whole)


@_check()
def saving_changes_nothing(case: Case) -> None:
    """An estimator is the same after it was saved."""
    estimator = case.used()
    before = estimator.clone()
    _loaded(case, estimator)
    _same(case, estimator, before)


@_check()
def saved_file_is_deterministic(case: Case) -> None:
    """Saved twice, by its clone or after loading, an estimator gives the same file."""
    estimator = case.used()
    with tempfile.TemporaryDirectory() as folder:
        first = _saved(estimator, Path(folder))
        for who, other in (
            ("itself", estimator),
            ("its clone", estimator.clone()),
            ("what was loaded", _loaded(case, estimator)),
        ):
            _expect(_saved(other, Path(folder)) == first, f"another file by {who}")


@_check()
def loaded_copies_are_independent(case: Case) -> None:
    """Two estimators read from one file do not learn from each other."""
    estimator = case.used()
    a, b = _loaded(case, estimator), _loaded(case, estimator)
    a.update_many(case.stream(streams=2))
    _same(case, b, estimator)


# ---------------------------------------------------------------------- forms of experience


@_check()
def chunk_equals_one_by_one(case: Case) -> None:
    """A chunk gives exactly the bits of one update after the other."""
    columns = case.stream(60, streams=3)
    single, chunk = case.online(), case.online()
    _feed(single, columns)
    chunk.update_many(columns)
    _same(case, single, chunk)


@_check()
def split_equals_joined(case: Case) -> None:
    """However a stream is cut into chunks, the bits are the same."""
    columns = case.stream(60, streams=2)
    joined, split = case.online(), case.online()
    joined.update_many(columns)
    edges = [0, *np.sort(case.rng.integers(0, 61, size=5)).tolist(), 60]
    for first, last in itertools.pairwise(edges):
        split.update_many(_rows(columns, slice(first, last)))
    _same(case, joined, split)


@_check()
def empty_chunk_changes_nothing(case: Case) -> None:
    """A chunk without rows changes nothing."""
    estimator = case.used()
    before = estimator.clone()
    estimator.update_many(_rows(case.stream(), slice(0, 0)))
    _same(case, estimator, before)


@_check()
def transitions_are_updates(case: Case) -> None:
    """An object with the fields of a transition gives the bits of a call with them."""
    columns = case.stream(20)
    a, b = case.online(), case.online()
    _feed(a, columns)
    for values in zip(*(column.tolist() for column in columns.values()), strict=True):
        b.update(Transition(**dict(zip(columns, values, strict=True))))
    _same(case, a, b)


@_check()
def records_are_columns(case: Case) -> None:
    """A structured array gives the bits of a mapping from columns to arrays."""
    columns = case.stream(20)
    record = np.zeros(20, dtype=[(name, column.dtype) for name, column in columns.items()])
    for name, column in columns.items():
        record[name] = column
    a, b = case.online(), case.online()
    a.update_many(columns)
    b.update_many(record)
    _same(case, a, b)


@_check()
def numpy_numbers_are_numbers(case: Case) -> None:
    """NumPy's scalars give the bits of Python's numbers."""
    columns = case.stream(20)
    a, b = case.online(), case.online()
    _feed(a, columns)
    for t in range(20):
        row = {name: column[t] for name, column in columns.items()}
        b.update(row.pop("state"), row.pop("reward"), row.pop("next_state"), **row)
    _same(case, a, b)


@_check()
def ratio_defaults_to_one(case: Case) -> None:
    """Without an importance ratio, it is 1."""
    a, b = case.online(), case.online()
    columns = {**case.stream(), "rho": np.ones(40)}
    a.update_many(columns)
    del columns["rho"]
    b.update_many(columns)
    _same(case, a, b)


@_check()
def given_gamma_and_lambda_win(case: Case) -> None:
    """γ and λ given with a transition take the place of the learner's own."""
    columns = case.stream(20)
    columns |= {"gamma": np.full(20, 0.5), "lam": np.full(20, 0.25)}
    a, b = case.online(), case.online(gamma=0.5, lam=0.25)
    for each in (a, b):
        each.update_many(columns)
    del columns["gamma"], columns["lam"]
    c = case.online(gamma=0.5, lam=0.25)
    c.update_many(columns)
    _alike(a, c)
    _alike(b, c)


# ---------------------------------------------------------------------- streams


@_check(_local)
def interleaved_equals_separate(case: Case) -> None:
    """Streams in states of their own learn the same bits together as one after the other."""
    columns = case.stream(60, streams=2)
    half = case.states // 2
    for name in ("state", "next_state"):
        mine, theirs = columns[name] % half, half + columns[name] % (case.states - half)
        columns[name] = np.where(columns["stream"] == 0, mine, theirs)
    together, apart = case.online(), case.online()
    together.update_many(columns)
    for k in range(2):
        apart.update_many(_rows(columns, columns["stream"] == k))
    _alike(together, apart, "td_error", "step_sizes")


@_check()
def stream_numbers_are_names(case: Case) -> None:
    """Which numbers the streams have makes no difference."""
    columns = case.stream(60, streams=3)
    a, b = case.online(), case.online()
    a.update_many(columns)
    b.update_many({**columns, "stream": np.array([4, 0, 1])[columns["stream"]]})
    _alike(a, b)


# ---------------------------------------------------------------------- bad input


@_check()
def refuses_unknown_states(case: Case) -> None:
    """A state that does not exist is refused and counted; nothing else changes."""
    n = case.states
    _refuses(case, *(((s, 1.0, 0), {}) for s in (n, -1, 0.5, "x", None)))
    _refuses(case, *(((0, 1.0, s), {}) for s in (n, -2, 0.5, "x")))


@_check()
def refuses_a_missing_next_state(case: Case) -> None:
    """Only a terminated transition may lack a next state; even a truncated one may not."""
    _refuses(case, ((0, 1.0, None), {}), ((0, 1.0, None), {"truncated": True}))


@_check()
def refuses_bad_rewards(case: Case) -> None:
    """A reward that is not a finite number is refused and counted; nothing else changes."""
    _refuses(case, *(((0, r, 1), {}) for r in (math.nan, math.inf, -math.inf, "much", [1.0, 2.0])))


@_check()
def refuses_bad_ratios(case: Case) -> None:
    """A ratio that is negative, infinite or no number is refused and counted."""
    _refuses(case, *(((0, 1.0, 1), {"rho": rho}) for rho in (-0.5, math.nan, math.inf, "x")))


@_check()
def refuses_bad_gammas_and_lambdas(case: Case) -> None:
    """γ or λ outside [0, 1] is refused and counted; nothing else changes."""
    for bad in (-0.1, 1.1, math.nan, math.inf, "x"):
        _refuses(case, ((0, 1.0, 1), {"gamma": bad}), ((0, 1.0, 1), {"lam": bad}))


@_check()
def refuses_bad_streams(case: Case) -> None:
    """A stream that is not a number from 0 is refused and counted; nothing else changes."""
    _refuses(case, *(((0, 1.0, 1), {"stream": stream}) for stream in (-1, 0.5, "x", None)))


@_check()
def refuses_a_bad_chunk_whole(case: Case) -> None:
    """By default one bad row in a chunk means that none of it is learned from."""
    for name, bad in (("state", case.states), ("reward", np.nan), ("rho", -1.0)):
        estimator = case.used()
        before = estimator.clone()
        columns = case.stream(20)
        columns[name][13] = bad
        try:
            estimator.update_many(columns)
        except InputError:
            _expect(estimator.rejected == before.rejected + 1, f"rejected: {estimator.rejected}")
            estimator.rejected = before.rejected
            _same(case, estimator, before)
        else:
            raise AssertionError(f"a chunk with {name} = {bad} was accepted")


@_check()
def skips_bad_rows_where_asked(case: Case) -> None:
    """With ``on_error="skip"`` a bad row is counted and cuts the trace of its stream."""
    columns = case.stream(20, ends=False) | {"rho": np.ones(20)}
    columns["reward"][7] = np.nan
    skipped, cut = case.online(), case.online()
    skipped.update_many(columns, on_error="skip")
    _expect((skipped.steps, skipped.rejected) == (19, 1), repr(skipped))
    cut.update_many(_rows(columns, slice(0, 7)))
    cut.reset_traces(0)
    cut.update_many(_rows(columns, slice(8, None)))
    cut.rejected = 1
    _same(case, skipped, cut)


@_check()
def refuses_columns_that_do_not_fit(case: Case) -> None:
    """Columns that lack, are unknown or have different lengths are refused; nothing changes."""
    columns = case.stream(5)
    without = {name: column for name, column in columns.items() if name != "next_state"}
    for bad in (without, {**columns, "done": np.zeros(5)}, {**columns, "reward": np.zeros(4)}):
        estimator = case.online()
        try:
            estimator.update_many(bad)
        except InputError:
            estimator.rejected = 0
            _same(case, estimator, case.online())
        else:
            raise AssertionError(f"columns {sorted(bad)} were accepted")


# ---------------------------------------------------------------------- ends of episodes


@_check()
def terminated_does_not_look_ahead(case: Case) -> None:
    """Where an episode terminates, the next state does not matter and need not be given."""
    start = case.used()
    ended = [start.clone() for _ in range(case.states + 1)]
    for follows, estimator in zip([None, *range(case.states)], ended, strict=True):
        case.step(estimator, 0, 2.0, follows, terminated=True)
        _same(case, ended[0], estimator)


@_check()
def terminated_has_no_discount(case: Case) -> None:
    """Where an episode terminates, γ and λ do not matter."""
    start = case.used()
    ended = [start.clone() for _ in range(4)]
    ends = ((None, None), (0.0, 0.0), (1.0, 1.0), (0.5, 0.0))
    for (gamma, lam), estimator in zip(ends, ended, strict=True):
        estimator.update(0, 2.0, 1, terminated=True, gamma=gamma, lam=lam)
        _same(case, ended[0], estimator)


@_check()
def terminated_and_truncated_is_terminated(case: Case) -> None:
    """An end that is both is a termination."""
    a = case.used()
    b = a.clone()
    case.step(a, 0, 2.0, 1, terminated=True, truncated=True)
    case.step(b, 0, 2.0, 1, terminated=True)
    _same(case, a, b)


@_check()
def truncated_bootstraps(case: Case) -> None:
    """A truncated transition teaches what it would have taught had the stream gone on."""
    a = case.used()
    b = a.clone()
    case.step(a, 0, 2.0, 1, truncated=True)
    case.step(b, 0, 2.0, 1)
    _alike(a, b)
    b.reset_traces(0)
    _same(case, a, b)


@_check()
def nothing_crosses_a_termination(case: Case) -> None:
    """States of an episode that terminated are not changed by the next one."""
    _across(case, terminated=True)


@_check()
def nothing_crosses_a_truncation(case: Case) -> None:
    """States of an episode that was truncated are not changed by the next one."""
    _across(case, truncated=True)


def _across(case: Case, **end: bool) -> None:
    estimator = case.online()
    case.step(estimator, 0, 2.0, 1)
    case.step(estimator, 1, 2.0, 2, **end)
    before = estimator.clone()
    case.step(estimator, 2, 5.0, 2)
    case.step(estimator, 2, -3.0, 2)
    _unchanged(estimator, before, [0, 1])


@_check()
def cut_forgets(case: Case) -> None:
    """After a cut, a transition changes the state that it leaves and no other."""
    estimator = case.used()
    estimator.reset_traces()
    before = estimator.clone()
    case.step(estimator, 1, 5.0, 2)
    case.step(estimator, 1, 5.0, 2, stream=1)
    _unchanged(estimator, before, [s for s in range(case.states) if s != 1])


@_check()
def cut_of_a_stream_spares_the_others(case: Case) -> None:
    """To cut one stream changes nothing for another."""
    estimator = case.used()
    cut = estimator.clone()
    cut.reset_traces(1)
    more = {**case.stream(10, ends=False), "stream": np.zeros(10, dtype=int)}
    for each in (estimator, cut):
        each.update_many(more)
    _alike(estimator, cut)


# ---------------------------------------------------------------------- answers


@_check()
def steps_are_counted(case: Case) -> None:
    """Every transition learned from is a step, in chunks or one by one; refused ones are not."""
    estimator = case.online()
    estimator.update_many(case.stream(17))
    _feed(estimator, case.stream(3))
    _expect((estimator.steps, estimator.rejected) == (20, 0), repr(estimator))
    _expect("20 steps" in repr(estimator), repr(estimator))


@_check()
def td_error_is_that_of_the_value(case: Case) -> None:
    """The TD error told is R + γ′J(s′) − J(s) with the values before the update."""
    estimator = case.used()
    for state, follows, reward in ((0, 1, 2.0), (1, 2, -1.0), (2, 2, 0.5)):
        J, gamma = estimator.value(), case.per_state("gamma", 0.9)[follows]
        expected = reward + gamma * J[follows] - J[state]
        case.step(estimator, state, reward, follows)
        close = math.isclose(estimator.td_error, expected, rel_tol=1e-9, abs_tol=1e-9)
        _expect(close, f"{estimator.td_error} instead of {expected}")


@_check()
def vectors_equal_single_answers(case: Case) -> None:
    """The vector of answers for all states holds the answers for each."""
    estimator = case.used()
    for name in ("value", "variance", "std"):
        ask = getattr(estimator, name)
        single = np.array([ask(s) for s in range(case.states)])
        _expect(np.array_equal(ask(), single, equal_nan=True), f"{name}: {ask()} and {single}")


@_check()
def std_is_the_root(case: Case) -> None:
    """The standard deviation is the root of the variance; NaN where that is negative."""
    for start in (0.0, 0.25, -0.25, 4.0):
        estimator = case.online(initial_variance=start)
        estimator.update_many(case.stream(6))
        variance, std = estimator.variance(), estimator.std()
        _expect(np.isnan(std[variance < 0]).all(), f"std {std} of variances {variance}")
        good = variance >= 0
        _expect(np.allclose(std[good] ** 2, variance[good]), f"std {std} of variances {variance}")


@_check()
def unknown_states_have_no_answer(case: Case) -> None:
    """Asked for a state that does not exist, it says so."""
    estimator = case.used()
    for name in ("value", "variance", "std"):
        for state in (case.states, -1, 0.5, "x"):
            try:
                seen = getattr(estimator, name)(state)
            except InputError:
                continue
            raise AssertionError(f"{name}({state!r}) is {seen}")


@_check()
def step_sizes_are_told(case: Case) -> None:
    """The step sizes told are finite numbers of at least 0."""
    estimator = case.online()
    for _ in range(10):
        estimator.update_many(case.stream(5))
        for node, step in estimator.step_sizes.items():
            _expect(math.isfinite(step) and step >= 0, f"{node}: {step}")


# ---------------------------------------------------------------------- learning


@_check(_moves)
def learns(case: Case) -> None:
    """A transition that surprises changes the variance of its state, and the value if learned."""
    estimator = case.online()
    before = estimator.clone()
    case.step(estimator, 0, 37.0, 1)
    _expect(estimator.variance(0) != before.variance(0), "the variance did not move")
    if _learns_value(case):
        _expect(estimator.value(0) > before.value(0), "the value did not rise")


@_check(_learns_value)
def first_step_is_step_size_times_error(case: Case) -> None:
    """The first transition moves the value by step size times ratio times TD error."""
    estimator = case.online()
    before = estimator.value(0)
    case.step(estimator, 0, 2.0, 1, rho=0.5)
    expected = before + estimator.step_sizes["value"] * 0.5 * estimator.td_error
    close = math.isclose(estimator.value(0), expected, rel_tol=1e-9, abs_tol=1e-12)
    _expect(close, f"{estimator.value(0)} instead of {expected}")


@_check(_has_value_trace)
def traces_reach_back(case: Case) -> None:
    """With κ above 0, a surprise changes the value of the state before; means follow at a visit."""
    calm, surprised = case.online(), case.online()
    for estimator, reward in ((calm, 0.0), (surprised, 37.0)):
        case.step(estimator, 0, 0.0, 1)
        case.step(estimator, 1, reward, None, terminated=True)
    risen = surprised.value(0) > calm.value(0)
    for estimator in (calm, surprised):
        case.step(estimator, 0, 0.0, None, terminated=True)
    risen |= surprised.value(0) > calm.value(0)
    _expect(risen, "the value of the state before did not rise")


@_check()
def traces_need_more_than_one_step(case: Case) -> None:
    """In episodes of one step, trace decays make no difference."""
    columns = case.stream() | {"terminated": np.ones(40, dtype=bool)}
    estimators = [case.online(**dict.fromkeys(DECAYS, decay)) for decay in (0.0, 1.0)]
    for estimator in estimators:
        estimator.update_many(columns)
    _alike(*estimators, "step_sizes")


@_check()
def zero_steps_change_nothing(case: Case) -> None:
    """With step sizes of 0 the estimates stay to the bit what they were."""
    estimator = case.online(**dict.fromkeys(STEP_SIZES, 0.0))
    before = estimator.clone()
    estimator.update_many(case.stream(streams=2))
    _unchanged(estimator, before, range(case.states))


@_check()
def held_value_is_held(case: Case) -> None:
    """With ``learn_value=False`` the value stays what it was."""
    value = case.rng.normal(size=case.states)
    estimator = case.online(value=value, learn_value=False)
    estimator.update_many(case.stream())
    _expect(np.array_equal(estimator.value(), value), f"{value} became {estimator.value()}")


@_check()
def unvisited_states_stay(case: Case) -> None:
    """States that were never left keep their estimates."""
    columns = case.stream() | {"state": case.rng.integers(2, size=40)}
    estimator = case.online()
    estimator.update_many(columns)
    _unchanged(estimator, case.online(), range(2, case.states))


@_check()
def ratio_of_zero_leaves_the_value(case: Case) -> None:
    """A transition that the target would never make does not change any value."""
    estimator = case.used()
    before = estimator.value()
    case.step(estimator, 0, 5.0, 1, rho=0.0)
    _expect(np.array_equal(estimator.value(), before), f"{before} became {estimator.value()}")


@_check(_for_the_target)
def ratio_of_zero_clears_the_trace(case: Case) -> None:
    """What came before a transition that the target would never make does not learn any more."""
    estimator = case.online()
    case.step(estimator, 0, 2.0, 1)
    before = estimator.clone()
    case.step(estimator, 1, 2.0, 2, rho=0.0)
    _unchanged(estimator, before, range(case.states))
    case.step(estimator, 2, 5.0, 2)
    _unchanged(estimator, before, [0, 1])


@_check()
def nothing_comes_of_nothing(case: Case) -> None:
    """Without rewards, estimates of zero stay zero."""
    estimator = case.blank()
    estimator.update_many(case.stream() | {"reward": np.zeros(40)})
    for answer in (estimator.value(), estimator.variance()):
        _expect(not answer.any(), f"{answer}")


@_check(_scales)
def rewards_scale(case: Case) -> None:
    """Rewards times 8 give exactly 8 times the value and 64 times the variance."""
    columns = case.stream()
    small, large = case.blank(), case.blank()
    small.update_many(columns)
    large.update_many({**columns, "reward": 8 * columns["reward"]})
    for name, factor in (("value", 8), ("variance", 64)):
        a, b = factor * getattr(small, name)(), getattr(large, name)()
        _expect(np.array_equal(a, b), f"{name}: {b} instead of {a}")


@_check()
def rewards_have_no_preferred_sign(case: Case) -> None:
    """Negated rewards give exactly the negated value and the same variance."""
    columns = case.stream()
    plus, minus = case.blank(), case.blank()
    plus.update_many(columns)
    minus.update_many({**columns, "reward": -columns["reward"]})
    _expect(np.array_equal(plus.value(), -minus.value()), f"{plus.value()}, {minus.value()}")
    same = np.array_equal(plus.variance(), minus.variance())
    _expect(same, f"variances {plus.variance()} and {minus.variance()}")


@_check()
def state_labels_are_names(case: Case) -> None:
    """States in another order, with their settings, give the answers in that order."""
    columns = case.stream()
    order = case.rng.permutation(case.states)  # what was order[k] is now k
    now = np.argsort(order)
    given = {name: getattr(case.description, name, None) for name in PER_STATE}
    moved = {n: np.asarray(x)[order] for n, x in given.items() if x is not None and np.size(x) > 1}
    a, b = case.online(), case.online(**moved)
    a.update_many(columns)
    new = {name: now[columns[name]] for name in ("state", "next_state")}
    b.update_many({**columns, **new})
    for name in ("value", "variance"):
        x, y = getattr(a, name)()[order], getattr(b, name)()
        _expect(np.array_equal(x, y), f"{name}: {y} instead of {x}")


@_check()
def lambda_is_nothing_without_gamma(case: Case) -> None:
    """With γ = 0 every return is a reward, whatever λ."""
    columns = case.stream()
    for name in case.open():
        del columns[name]
    estimators = [case.online(gamma=0.0, lam=lam) for lam in (0.0, 0.5, 1.0)]
    for estimator in estimators:
        estimator.update_many(columns)
        _alike(estimators[0], estimator)


@_check()
def value_does_not_depend_on_lambda(case: Case) -> None:
    """λ is part of the question asked of the variance; the value is the same for all."""
    columns = case.stream()
    columns.pop("lam", None)
    estimators = [case.online(lam=lam) for lam in (0.0, 0.5, 1.0)]
    for estimator in estimators:
        estimator.update_many(columns)
        a, b = estimators[0].value(), estimator.value()
        _expect(np.array_equal(a, b), f"values {a} and {b}")


@_check()
def stays_finite(case: Case) -> None:
    """On a long on-policy stream of bounded rewards and short episodes, estimates stay finite."""
    columns = case.stream(400)
    columns |= {"reward": np.clip(columns["reward"], -1, 1), "rho": np.ones(400)}
    estimator = case.online()
    estimator.update_many(columns)
    for answer in (estimator.value(), estimator.variance()):
        _expect(np.isfinite(answer).all(), f"{answer}")


# ---------------------------------------------------------------------- where learning ends


def _problem(case: Case) -> tuple[MDP, dict[str, Any]]:
    """A small random MDP and a question about it that has an answer."""
    estimand = getattr(case.description, "estimand", "target_return")
    while True:
        mdp = random_mdp(
            3, 2, 2, seed=int(case.rng.integers(2**31)), gamma=(0.0, 0.9), lam=(0.0, 0.9), ends=0.2
        )
        question: dict[str, Any] = {
            "target": "target",
            "behaviour": "behaviour",
            "estimand": estimand,
        }
        try:
            solve(mdp, **question)
        except InfiniteVarianceError:
            continue
        return mdp, question


def _outcomes(mdp: MDP) -> Iterator[tuple[float, dict[str, Any]]]:
    """Every transition of the behaviour, three rewards each (Gauss–Hermite), with its chance."""
    pi, mu = (mdp.policy(name).probabilities for name in ("target", "behaviour"))
    for s, a, t, p, r, sd, gamma in zip(*(c.tolist() for c in mdp.edges), strict=True):
        ahead: dict[str, Any] = {"next_state": None, "terminated": True}
        if t != END:
            ahead = {"next_state": t, "gamma": gamma, "lam": float(mdp.lam[t])}
        for x, weight in ((-ROOT, 1 / 6), (0.0, 2 / 3), (ROOT, 1 / 6)):
            rho = float(pi[s, a] / mu[s, a])
            yield mu[s, a] * p * weight, {"state": s, "reward": r + x * sd, "rho": rho, **ahead}


def _rests(case: Case, mdp: MDP, answer: str, scale: float, **settings: Any) -> None:
    """Steps of 1 from here change an answer by nothing on average."""
    zeros: dict[str, Any] = dict.fromkeys(PER_STATE, 0.0)
    plain = {**zeros, "gamma": None, "lam": None, **dict.fromkeys(STEP_SIZES, 1.0)}
    description = case.changed(**{**plain, **settings})
    start = description.online(states=mdp.n_states)
    change = np.zeros(mdp.n_states)
    for chance, transition in _outcomes(mdp):
        estimator, s = start.clone(), transition["state"]
        estimator.update(Transition(**transition))
        change[s] += chance * (getattr(estimator, answer)(s) - getattr(start, answer)(s))
    ratios = mdp.policy("target").probabilities / mdp.policy("behaviour").probabilities
    limit = 1e-11 * scale * max(1.0, float(ratios.max())) ** 2
    _expect(np.abs(change).max() < limit, f"the {answer} would change by {change} on average")


@_check(_known_method)
def exact_value_is_stationary(case: Case) -> None:
    """At the exact value, its mean update over all transitions of a random MDP is zero."""
    mdp, _ = _problem(case)
    value = solve(mdp, "target").value  # whichever the estimand: the ratio weighs its updates
    _rests(case, mdp, "value", max(1.0, np.abs(value).max()), value=value, learn_value=True)


@_check(_known_method)
def exact_variance_is_stationary(case: Case) -> None:
    """At the exact value and variance, the variance's mean update over all transitions is zero."""
    mdp, question = _problem(case)
    truth = solve(mdp, **question)
    _rests(
        case, mdp, "variance", max(1.0, truth.second_moment.max(), (truth.value**2).max()),
        value=truth.value, initial_variance=truth.variance, initial_mean=truth.mean,
        learn_value=False,
    )  # fmt: skip


@_check(_known_method)
def fixed_point_is_stationary(case: Case) -> None:
    """With a wrong value held, it rests where :func:`retvar.fixed_point` says."""
    mdp, question = _problem(case)
    value = solve(mdp, **question).value + case.rng.normal(size=3)
    exact = solve(mdp, **question, value=value)
    point = fixed_point(case.description.method, mdp, **question, value=value)
    _rests(
        case, mdp, "variance", max(1.0, exact.second_moment.max(), (value**2).max()),
        value=value, initial_variance=point.variance, initial_mean=exact.mean, learn_value=False,
    )  # fmt: skip
