"""Probabilities of logged actions under a target policy, and which of its actions a log takes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.experience.moves import Workspace, describe_error, quoted
from retvar.experience.tables import Reading, open_table
from retvar.support.errors import InputError
from retvar.support.files import load_array
from retvar.support.format import count, listed, literal

Rows = dict[Any, dict[Any, float]]  # probabilities of the actions of each state
PLAIN = Reading()
FIELD, PROBABILITY = "target_policy", "probability"
TOLERANCE = 1e-6  # of probabilities and their sums
RARER = 10.0  # a behaviour that takes an action as many times less often than the target is right
ALPHA = 1e-5  # probability that such a behaviour is warned of, in a log
FORMS = (
    "must be an array [state, action] of probabilities, an array of actions (or .npy), a table "
    "with state, action and probability (or .csv, .parquet), or a function of state and action"
)


@dataclass
class TargetPolicy:
    """Probabilities of pairs of a state and an action; NaN where the policy has none.

    It is a function, or rows; a table may have the log's columns `state` and `action`.

    >>> table = {"state": ["a", "a"], "action": [0, 1], "probability": [0.9, 0.1]}
    >>> TargetPolicy.of(table).ask(["a", "a", "b"], [0, 1, 1])
    array([0.9, 0.1, nan])
    >>> always_right = TargetPolicy.of(np.array([1, 1]))
    >>> always_right.ask([0, 1], [1, 0])
    array([1., 0.])
    """

    function: Callable[[Any, Any], Any]
    rows: Rows | None = None  #: where its probabilities are listed

    @classmethod
    def of(
        cls, given: Any, state: Sequence[str] = ("state",), action: str = "action",
        reading: Reading = PLAIN,
    ) -> TargetPolicy:  # fmt: skip
        """The policy that a function, an array, a mapping, a table or a file is."""
        if callable(given):
            return cls(given)
        if isinstance(given, str | Path) and Path(given).suffix.lower() == ".npy":
            given = load_array(Path(given), FIELD)
        try:
            pairs = given
            if isinstance(given, str | Path) or hasattr(given, "columns") or PROBABILITY in given:
                pairs = _of_table(given, list(state), action, reading)
            elif not isinstance(given, Mapping):
                pairs = dict(enumerate(np.asarray(given)))
            rows = {compared(name): _row(name, own) for name, own in pairs.items()}
        except InputError:
            raise
        except Exception:  # what is given may hold anything
            raise InputError(FIELD, literal(given), FORMS) from None
        return cls(lambda s, a: _listed(rows.get(compared(s)), compared(a)), rows)

    def ask(self, states: list[Any], actions: list[Any]) -> NDArray[np.float64]:
        """Probabilities of so many pairs."""
        try:
            found = np.array([float(x) for x in map(self.function, states, actions)])
        except Exception as error:  # a function may raise anything
            name = getattr(self.function, "__name__", type(self.function).__name__)
            raise InputError(FIELD, name, f"fails: {describe_error(error)}") from None
        wrong = found[(found < -TOLERANCE) | (found > 1.0 + TOLERANCE)]
        if wrong.size:
            raise InputError(FIELD, wrong[0], "must give probabilities between 0 and 1")
        return np.asarray(np.clip(found, 0.0, 1.0), dtype=np.float64)


def _listed(row: dict[Any, float] | None, action: Any) -> float:
    return math.nan if row is None else row.get(action, 0.0)


def _row(state: Any, given: Any) -> dict[Any, float]:
    """Probabilities of the actions of a state: a mapping, a list, or one action."""
    if np.ndim(given):
        given = dict(enumerate(given))
    elif not isinstance(given, Mapping):
        given = {given: 1.0}
    row = {compared(action): float(p) for action, p in given.items()}
    if not abs(sum(row.values()) - 1.0) <= TOLERANCE or not min(row.values()) >= 0:
        remedy = "probabilities of a state must sum to 1; list all its actions"
        raise InputError(f"{FIELD}[{plain(state)!r}]", literal(row), remedy)
    return row


def _of_table(given: Any, state: list[str], action: str, reading: Reading) -> Rows:
    """Probabilities in a table or file with state, action and probability."""
    try:
        table = open_table(given, Workspace(), reading)
    except InputError as error:
        raise InputError(FIELD, error.value, f"{error.field}: {error.remedy}") from None
    states = state if set(state) <= set(table.types) else ["state"]
    names = [*states, action if action in table.types else "action", PROBABILITY]
    if missing := [name for name in names if name not in table.types]:
        raise InputError(FIELD, listed(table.types, most=12), f"needs a column {missing[0]!r}")
    rows: Rows = {}
    part, columns = table.parts[0], ", ".join(map(quoted, names))
    query = f"SELECT {columns}::VARCHAR, {table.sql(PROBABILITY).number} FROM {part}"
    for k, (*s, a, text, p) in enumerate(table.work.all(query), 1):
        if p is None and text is not None:
            ways = f"must be a number; {table.remedy(part, PROBABILITY, text)}".rstrip("; ,")
            raise InputError(f"{FIELD}, row {k:,}: {PROBABILITY}", text, ways)
        own = rows.setdefault(compared(s[0] if len(s) == 1 else s), {})
        if compared(a) in own:
            raise InputError(FIELD, f"{listed(s)}, {a}", "state and action occur more than once")
        own[compared(a)] = math.nan if p is None else float(p)
    return rows


def compared(label: Any) -> Any:
    """A label in the form in which labels of different files are compared.

    >>> [compared(x) for x in (1, 1.0, "1", "a", True, ("a", 2))]
    ['1', '1', '1', 'a', 'true', ('a', '2')]
    """
    if isinstance(label, tuple | list | np.ndarray):
        return tuple(map(compared, label))
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


def never_taken(
    policy: Rows, taken: Mapping[tuple[Any, Any], int], largest_ratio: float = 1.0
) -> list[str]:
    """Warnings about actions of a target policy that a log never takes, where that is no chance.

    It could be chance where a behaviour takes an action much less often than the target. How much
    is told by the largest ratio of the log. `taken` counts rows by state and action.

    >>> policy = {"worn": {"run": 0.4, "Service": 0.6}}
    >>> print(*never_taken(policy, {("worn", "run"): 700, ("worn", "service"): 300}))
    the log never takes action 'Service' of the target policy; it takes 'run', 'service'
    """
    rows, wanted, logged = Counter[Any](), dict[Any, float](), {action for _, action in taken}
    for (state, _), times in taken.items():
        rows[state] += times
    expected = {(s, a): n * p for s, n in rows.items() for a, p in policy.get(s, {}).items()}
    enough = max(RARER, 2.0 * largest_ratio) * math.log(max(len(expected), 1) / ALPHA)
    for (_, action), n in expected.items():
        wanted[action] = wanted.get(action, 0.0) + n
    found = [
        f"the log never takes action {action!r} of the target policy; it takes "
        f"{listed(map(repr, sorted(logged)))}"
        for action, n in wanted.items() if n > enough and action not in logged
    ]  # fmt: skip
    pairs = [(n, f"{action!r} in state {state!r} (in {count(rows[state], 'row')})")
             for (state, action), n in expected.items()
             if n > enough and action in logged and (state, action) not in taken]  # fmt: skip
    if pairs:
        names = listed(text for _, text in sorted(pairs, reverse=True))
        found.append(f"the log never takes these actions of the target policy: {names}; there, "
                     "and before, the answer is not that of the target policy")  # fmt: skip
    return found
