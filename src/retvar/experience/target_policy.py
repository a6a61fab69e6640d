"""Probabilities of logged actions under a target policy: from arrays, tables and functions."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.errors import InputError
from retvar.experience.arrow_columns import LabelEncoder, numbers, plain
from retvar.experience.episodes import describe_error
from retvar.experience.readers import SCAN_ROWS, open_readers
from retvar.format import listed, literal
from retvar.reading import load_array, read_json

__all__ = ["TargetPolicy", "target_policy"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
FIELD = "target_policy"
TOLERANCE = 1e-6  # of sums of probabilities
FORMS = (
    "must be an array [state, action] of probabilities, an array of actions, a table with state, "
    "action and probability (.csv, .parquet, .json, .npy), or a function"
)


class TargetPolicy:
    """The probability of each logged action, given its state; NaN where the policy has none.

    `known` takes lists of states and actions and returns probabilities. It is asked once a chunk
    for each pair of a state and an action; observations are asked row by row.

    >>> import pyarrow as pa
    >>> policy = target_policy({"state": ["a", "a"], "action": [0, 1], "probability": [0.9, 0.1]})
    >>> policy.probabilities(np.array([0, 0, 1]), pa.array([0, 1, 1]), ["a", "b"])
    array([0.9, 0.1, nan])
    """

    def __init__(
        self,
        known: Callable[[list[Any], list[Any]], Array],
        listed: Callable[[Any], dict[Any, float] | None] | None = None,
    ) -> None:
        self._known = known
        self.listed = listed  #: probabilities of the actions in a state, where they are listed
        self._actions = LabelEncoder([], "action")

    def probabilities(
        self,
        state: NDArray[Any],
        action: Any,
        labels: list[Any] | None,
        taken: Counter[tuple[Any, Any]] | None = None,
    ) -> Array:
        """Probabilities for columns of decoded states and of actions; NaN where one is missing.

        States and actions are counted in `taken`, in the form in which the policy lists them.
        """
        code = self._actions.encode([action])[0]
        found = np.full(code.size, np.nan)
        rows = np.flatnonzero(code >= 0)
        if not rows.size:
            return found
        if state.ndim == 2:
            places: list[Any] = list(state[rows])
            found[rows] = self._ask(places, [plain(self._actions.labels[k]) for k in code[rows]])
            return found
        width = len(self._actions.labels)
        pair = state[rows].astype(np.int64) * width + code[rows]
        distinct, index, times = np.unique(pair, return_inverse=True, return_counts=True)
        states = [int(k) if labels is None else labels[int(k)] for k in distinct // width]
        actions = [plain(self._actions.labels[int(k)]) for k in distinct % width]
        found[rows] = self._ask(states, actions)[index.ravel()]
        if taken is not None:
            for s, a, n in zip(states, actions, times.tolist(), strict=True):
                taken[_key(s), _key(a)] += n
        return found

    def _ask(self, states: list[Any], actions: list[Any]) -> Array:
        found = np.asarray(self._known(states, actions), dtype=np.float64)
        wrong = (found < -TOLERANCE) | (found > 1.0 + TOLERANCE)
        if wrong.any():
            raise InputError(FIELD, found[wrong][0], "must give probabilities between 0 and 1")
        return np.clip(found, 0.0, 1.0)


def target_policy(given: Any, state: Sequence[str] = ("state",), action: str = "action") -> Any:
    """Make a TargetPolicy of an array, a table or a function.

    `state` and `action` are the columns of the log, which a table may have, too.

    >>> import pyarrow as pa
    >>> always_right = target_policy(np.array([1, 1]))
    >>> always_right.probabilities(np.array([0, 1]), pa.array([1, 0]), None)
    array([1., 0.])
    """
    if isinstance(given, TargetPolicy):
        return given
    name = "an array"
    if isinstance(given, str | Path):
        name, given = str(given), _read(Path(given))
    if callable(given):
        return TargetPolicy(_of_function(given))
    if isinstance(given, Mapping) and "probability" not in given:
        return _of_pairs(_nested(given))
    if isinstance(given, Mapping) or hasattr(given, "columns") or hasattr(given, "schema"):
        return _of_table(open_readers(given), state, action)
    if isinstance(given, list) and given and isinstance(given[0], Mapping):
        columns = {name: [row.get(name) for row in given] for name in given[0]}
        return _of_table(open_readers(columns), state, action)
    try:
        array = np.asarray(given)
    except Exception:  # rows of different lengths, no memory, or an error of its own
        array = np.zeros(0, dtype=object)
    if array.dtype.kind not in "biuf" or array.ndim not in (1, 2) or not array.size:
        raise InputError(FIELD, type(given).__name__ if name == "an array" else name, FORMS)
    return TargetPolicy(_of_array(array, name), partial(_row_of_array, array))


def _read(path: Path) -> Any:
    """The array, table or mapping in a file."""
    suffix = path.suffix.lower()
    try:
        if suffix == ".npy":
            return load_array(path, FIELD)
        if suffix == ".json":
            return read_json(path, FIELD)
    except InputError as error:
        raise InputError(FIELD, path, error.remedy) from None
    try:
        reader = open_readers(path)[0]
        parts = list(reader.batches(list(reader.types), SCAN_ROWS))
    except InputError as error:
        raise InputError(FIELD, path, error.remedy) from None
    except Exception as error:  # a broken file may raise anything
        raise InputError(FIELD, path, f"cannot be read: {describe_error(error)}") from None
    return {
        name: [value for part in parts for value in part[name].to_pylist()] for name in reader.types
    }


def _of_array(
    array: NDArray[Any], name: str = "an array"
) -> Callable[[list[Any], list[Any]], Array]:
    """Probabilities [state, action], or the action of each state."""
    if array.ndim == 2:
        _require_sums(array.sum(axis=1), array)
    elif np.any(array != np.trunc(array)) or array.min() < 0:
        raise InputError(FIELD, name, "has one dimension: it must hold the action of each state")

    def known(states: list[Any], actions: list[Any]) -> Array:
        try:
            s, a = (np.array([int(x) for x in column]) for column in (states, actions))
        except (TypeError, ValueError):
            remedy = "an array needs states and actions numbered from 0; use a table of labels"
            raise InputError(FIELD, name, remedy) from None
        inside = (s >= 0) & (s < array.shape[0]) & (a >= 0)
        safe = np.where(inside, s, 0)
        if array.ndim == 1:
            found = (array[safe] == a).astype(np.float64)
        else:
            listed_ = a < array.shape[1]
            found = np.where(listed_, array[safe, np.where(listed_ & inside, a, 0)], 0.0)
        return np.where(inside, found, np.nan)

    return known


def _require_sums(total: Array, array: NDArray[Any]) -> None:
    wrong = ~(np.abs(total - 1.0) <= TOLERANCE) | ~(array >= 0).all(axis=1)
    if wrong.any():
        s = int(np.argmax(wrong))
        raise InputError(f"{FIELD}[{s}]", array[s], "must be probabilities that sum to 1")


def _row_of_array(array: NDArray[Any], state: Any) -> dict[Any, float] | None:
    """Probabilities of the actions in a state."""
    if not 0 <= int(state) < len(array):
        return None
    row = array[int(state)]
    if array.ndim == 1:
        return {_key(int(row)): 1.0}
    return {_key(a): float(p) for a, p in enumerate(row)}


def _of_table(readers: list[Any], state: Sequence[str], action: str) -> TargetPolicy:
    """Rows of state, action and probability."""
    types = readers[0].types
    states = list(state) if all(name in types for name in state) else ["state"]
    actions = action if action in types else "action"
    for name in (*states, actions, "probability"):
        if name not in types:
            remedy = f"has no column {name}; it has {listed(types, most=12)}"
            raise InputError(FIELD, "the table", remedy)
    pairs: dict[Any, dict[Any, float]] = {}
    for batch in readers[0].batches([*states, actions, "probability"], SCAN_ROWS):
        columns = [batch[name].to_pylist() for name in states]
        keys = zip(*columns, strict=True) if len(states) > 1 else columns[0]
        probability = numbers(batch["probability"])
        for s, a, p in zip(keys, batch[actions].to_pylist(), probability, strict=True):
            own = pairs.setdefault(_key(s), {})
            if _key(a) in own:
                raise InputError(FIELD, f"{s}, {a}", "occurs more than once")
            own[_key(a)] = float(p)
    return _of_pairs(pairs)


def _nested(given: Mapping[Any, Any]) -> dict[Any, dict[Any, float]]:
    """A mapping of states to mappings of actions to probabilities, or to actions."""
    pairs: dict[Any, dict[Any, float]] = {}
    for state, row in given.items():
        try:
            own = dict(row) if isinstance(row, Mapping) else {row: 1.0}
            pairs[_key(state)] = {_key(action): float(p) for action, p in own.items()}
        except (TypeError, ValueError):
            raise InputError(f"{FIELD}[{state!r}]", literal(row), FORMS) from None
    return pairs


def _of_pairs(pairs: dict[Any, dict[Any, float]]) -> TargetPolicy:
    """Probabilities of actions by state."""
    for state, row in pairs.items():
        total = sum(row.values())
        if not abs(total - 1.0) <= TOLERANCE or min(row.values()) < 0:
            shown = ", ".join(f"{a}: {p:g}" for a, p in list(row.items())[:5])
            remedy = "probabilities of a state must sum to 1; list all its actions"
            raise InputError(f"{FIELD}[{state!r}]", shown, remedy)

    def known(states: list[Any], actions: list[Any]) -> Array:
        rows = (pairs.get(_key(state)) for state in states)
        return np.array(
            [
                np.nan if row is None else row.get(_key(action), 0.0)
                for row, action in zip(rows, actions, strict=True)
            ]
        )

    return TargetPolicy(known, pairs.get)


def _key(label: Any) -> Any:
    """A label in the form in which labels of different files are compared.

    >>> [_key(x) for x in (1, 1.0, "1", "a", True, ("a", 2))]
    ['1', '1', '1', 'a', 'true', ('a', '2')]
    """
    if isinstance(label, tuple | list | np.ndarray):
        return tuple(_key(each) for each in label)
    if isinstance(label, bool | np.bool_):
        return str(bool(label)).lower()
    if isinstance(label, float | np.floating) and float(label).is_integer():
        label = int(label)
    return str(label)


def _of_function(function: Any) -> Callable[[list[Any], list[Any]], Array]:
    """A function of (state, action), or of states, which gives all probabilities or the actions."""

    def known(states: list[Any], actions: list[Any]) -> Array:
        try:
            if _takes_two(function):
                return np.array(
                    [float(function(*pair)) for pair in zip(states, actions, strict=True)]
                )
            found = np.asarray(function(_column(states)))
        except Exception as error:  # a function may raise anything
            raise InputError(FIELD, _name(function), f"fails: {describe_error(error)}") from None
        if found.shape[:1] != (len(states),) or found.ndim not in (1, 2):
            shape = f"an array of shape {found.shape}"
            remedy = (
                f"must return [state, action] probabilities, or the action, of {len(states)} states"
            )
            raise InputError(FIELD, shape, remedy)
        if found.ndim == 1:
            return np.array(
                [float(_key(a) == _key(b)) for a, b in zip(found, actions, strict=True)]
            )
        _require_sums(found.sum(axis=1), found)
        return _of_array(found)(list(range(len(states))), actions)

    return known


def _column(states: list[Any]) -> NDArray[Any]:
    """States as an array; labels that are tuples stay tuples."""
    if states and isinstance(states[0], tuple):
        column = np.empty(len(states), dtype=object)
        column[:] = states
        return column
    return np.array(states)


def _takes_two(function: Any) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    plain = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return sum(p.default is p.empty for p in plain) == 2


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))
