"""Probabilities of logged actions under a target policy, and which of its actions a log takes."""

from __future__ import annotations

import difflib
import inspect
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.experience.moves import Workspace, describe_error, quoted
from retvar.experience.tables import Reading, open_table
from retvar.support.errors import InputError
from retvar.support.files import load_array
from retvar.support.format import count, listed, literal

__all__ = ["ActionCoverage", "TargetPolicy", "plain", "target_policy"]

Array = NDArray[np.float64]
Rows = dict[Any, dict[Any, float]]  # probabilities of the actions of each state
FIELD = "target_policy"
TOLERANCE = 1e-6  # of sums of probabilities
RARER = 10.0  # a behaviour that takes an action as many times less often than the target is right
ALPHA = 1e-5  # probability that such a behaviour is warned of, in a log
FORMS = (
    "must be an array [state, action] of probabilities, an array of actions (or .npy), a table "
    "with state, action and probability (or .csv, .parquet), or a function"
)


@dataclass
class TargetPolicy:
    """Probabilities of pairs of a state and an action; NaN where the policy has none.

    >>> policy = target_policy({"state": ["a", "a"], "action": [0, 1], "probability": [0.9, 0.1]})
    >>> policy.ask(["a", "a", "b"], [0, 1, 1])
    array([0.9, 0.1, nan])
    """

    given: Any  #: a function, or the probabilities of the actions of each state
    rows: Rows | None = None

    def ask(self, states: list[Any], actions: list[Any]) -> Array:
        """Probabilities of so many pairs."""
        if self.rows is None:
            return _ask_function(self.given, states, actions)
        pairs = zip(map(self.rows.get, map(_key, states)), map(_key, actions), strict=True)
        return np.array([math.nan if p is None else min(p.get(a, 0.0), 1.0) for p, a in pairs])


def target_policy(
    given: Any, state: Sequence[str] = ("state",), action: str = "action"
) -> TargetPolicy:
    """Make a TargetPolicy; a table may have the log's columns `state` and `action`.

    >>> always_right = target_policy(np.array([1, 1]))
    >>> always_right.ask([0, 1], [1, 0])
    array([1., 0.])
    """
    if callable(given):
        return TargetPolicy(given)
    if isinstance(given, str | Path) and Path(given).suffix.lower() == ".npy":
        given = load_array(Path(given), FIELD)
    try:
        if isinstance(given, Mapping) and "probability" not in given:
            pairs = given
        elif isinstance(given, str | Path | Mapping) or hasattr(given, "columns"):
            pairs = _of_table(given, list(state), action)
        else:
            table = np.asarray(given).tolist()
            pairs = {s: dict(enumerate(p)) if isinstance(p, list) else {int(p): int(p) == p}
                     for s, p in enumerate(table)}  # fmt: skip
        rows = {_key(s): {_key(a): float(p) for a, p in own.items()} for s, own in pairs.items()}
        assert rows
    except InputError as error:
        raise InputError(FIELD, error.value, f"{error.field}: {error.remedy}") from None
    except Exception:  # what is given may hold anything
        raise InputError(FIELD, literal(given), FORMS) from None
    for name, own in rows.items():
        _refuse_row(name, own)
    return TargetPolicy(given, rows)


def _refuse_row(state: Any, row: Mapping[Any, float]) -> None:
    """Refuse what are no probabilities of actions."""
    if not abs(sum(row.values()) - 1.0) <= TOLERANCE or not min(row.values()) >= 0:
        remedy = "probabilities of a state must sum to 1; list all its actions"
        raise InputError(f"{FIELD}[{plain(state)!r}]", literal(row), remedy)


def _of_table(given: Any, state: list[str], action: str) -> Rows:
    """Probabilities in a table or file with state, action and probability."""
    table = open_table(given, Workspace(), Reading())
    states = state if set(state) <= set(table.types) else ["state"]
    names = [*states, action if action in table.types else "action"]
    for name in (*names, "probability"):
        if name not in table.types:
            raise InputError(name, "missing", f"the table has {listed(table.types, most=12)}")
    columns = ", ".join(map(quoted, names))
    query = f"SELECT {columns}, {table.number('probability')} FROM ({table.query()})"
    rows: Rows = {}
    for *s, a, p in table.work.all(query):
        own = rows.setdefault(_key(s[0] if len(s) == 1 else s), {})
        if _key(a) in own:
            raise InputError("state and action", f"{listed(s)}, {a}", "occur more than once")
        own[_key(a)] = math.nan if p is None else p
    return rows


def _ask_function(function: Any, states: list[Any], actions: list[Any]) -> Array:
    """A function of (state, action), or of states, which gives all probabilities or the actions."""
    try:
        if _takes_two(function):
            found = np.array([*map(float, map(function, states, actions))])
        else:
            given = np.array(states)
            if isinstance(states[0], tuple):  # labels of several columns stay tuples
                given = np.empty(len(states), dtype=object)
                given[:] = states
            every = [dict(enumerate(p)) if np.ndim(p) else {p: 1.0} for p in function(given)]
            for state, own in zip(states, every, strict=True):
                _refuse_row(state, own)
            rows = ({_key(action): float(p) for action, p in own.items()} for own in every)
            taken = zip(rows, map(_key, actions), strict=True)
            found = np.array([own.get(action, 0.0) for own, action in taken])
    except InputError:
        raise
    except Exception as error:  # a function may raise anything
        name = getattr(function, "__name__", type(function).__name__)
        raise InputError(FIELD, name, f"fails: {describe_error(error)}") from None
    wrong = found[(found < -TOLERANCE) | (found > 1.0 + TOLERANCE)]
    if wrong.size:
        raise InputError(FIELD, wrong[0], "must give probabilities between 0 and 1")
    return np.asarray(np.clip(found, 0.0, 1.0), dtype=np.float64)


def _takes_two(function: Any) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of a function in C
        return False
    return sum(p.default is p.empty and p.kind < p.VAR_POSITIONAL for p in parameters) == 2


def _key(label: Any) -> Any:
    """A label in the form in which labels of different files are compared.

    >>> [_key(x) for x in (1, 1.0, "1", "a", True, ("a", 2))]
    ['1', '1', '1', 'a', 'true', ('a', '2')]
    """
    if isinstance(label, tuple | list | np.ndarray):
        return tuple(map(_key, label))
    if isinstance(label, bool | np.bool_):
        return str(label).lower()
    whole = isinstance(label, float | np.floating) and float(label).is_integer()
    return str(int(label) if whole else label)


def plain(value: Any) -> Any:
    """A whole number as an integer and a truth as a bool, also where they are written as text.

    >>> plain("12"), plain(3.0), plain("012"), plain(0.5), plain("true")
    (12, 3, '012', 0.5, True)
    """
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and len(value) < 20 and value.removeprefix("-").isdecimal():
        return int(value) if str(int(value)) == value else value
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value


@dataclass
class ActionCoverage:
    """How often a log takes each action in each state, beside what a target policy does.

    >>> policy = {"worn": {"run": 0.4, "Service": 0.6}}
    >>> log = ActionCoverage(policy, Counter({("worn", "run"): 700, ("worn", "service"): 300}))
    >>> print(*log.warnings())
    the log never takes action 'Service' of the target policy; it takes 'run', 'service': spell it
    alike, if it is 'service'
    """

    policy: Rows
    taken: Counter[tuple[Any, Any]] = field(default_factory=Counter)  #: by state and action

    def add(self, state: Any, action: Any, times: int) -> None:
        """Count rows of an action in a state."""
        self.taken[_key(state), _key(action)] += times

    def warnings(self, largest_ratio: float = 1.0) -> list[str]:
        """Actions of the target policy that the log never takes, where that is no chance.

        It could be chance where a behaviour takes an action much less often than the target. How
        much is taken from the largest ratio of the log.
        """
        rows, logged = Counter[Any](), Counter[Any]()
        wanted: defaultdict[Any, float] = defaultdict(float)
        for (state, action), times in self.taken.items():
            rows[state] += times
            logged[action] += times
        expected = {(state, action): n * p for state, n in rows.items()
                    for action, p in self.policy.get(state, {}).items()}  # fmt: skip
        for (_, action), n in expected.items():
            wanted[action] += n
        enough = max(RARER, 2.0 * largest_ratio) * math.log(max(len(expected), 1) / ALPHA)
        others = {str(action).casefold(): action for action in logged if action not in wanted}
        found, takes = [], listed(map(repr, logged))
        for action in (each for each, n in wanted.items() if n > 0 and not logged[each]):
            near = difflib.get_close_matches(str(action).casefold(), others)
            hint = f": spell it alike, if it is {others[near[0]]!r}" if near else ""
            if near or wanted[action] > enough:
                text = f"the log never takes action {action!r} of the target policy; it takes "
                found.append(text + takes + hint)
        missing = [(n, f"{action!r} in state {state!r} (in {count(rows[state], 'row')})")
                   for (state, action), n in expected.items()
                   if n > enough and not self.taken[state, action] and logged[action]]  # fmt: skip
        if missing:
            names = listed(text for _, text in sorted(missing, reverse=True))
            found.append(f"the log never takes these actions of the target policy: {names}; there, "
                         "and before, the answer is not that of the target policy")  # fmt: skip
        return found
