"""Parse rows of edges, names and numbers into indices and arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retvar import arguments
from retvar.errors import InputError
from retvar.format import listed, literal

if TYPE_CHECKING:
    from retvar.mdp.model import MDP

Array = NDArray[np.float64]
END = -1  #: the next state of an edge that ends the episode; names: ``"end"`` or ``None``
END_NAMES = (None, "end", END)
LONGEST_INDEX = 18  # digits


class Edge(NamedTuple):
    """One edge of an MDP: a transition with its probability and reward.

    States and actions are indices or names. ``next_state`` is ``"end"`` (or ``None``, or ``END``)
    if the episode ends. ``gamma`` is needed only if it depends on the edge instead of the next
    state.

    >>> Edge("home", "walk", "work", probability=0.9, reward=-1.0)
    Edge(state='home', action='walk', next_state='work', probability=0.9, reward=-1.0,
         reward_std=0.0, gamma=None)
    """

    state: int | str
    action: int | str
    next_state: int | str | None
    probability: float = 1.0
    reward: float = 0.0
    reward_std: float = 0.0
    gamma: float | None = None


def parse_names(
    field: str, given: int | Sequence[str] | None, used: ArrayLike
) -> tuple[tuple[str, ...] | None, int]:
    """Return the names (None if there are only indices) and the number of states or actions."""
    if given is None:
        index = arguments.floats(field, used, "whole numbers")
        return None, 1 + int(np.max(index, initial=-1)) if np.isfinite(index).all() else 1
    if arguments.is_integer(given):
        return None, arguments.integer(field, given, 1)
    if isinstance(given, str) or not isinstance(given, Iterable) or getattr(given, "ndim", 1) == 0:
        raise InputError(field, literal(given), "must be their number or a list of names")
    what = "their number or a list of names"
    try:
        names = tuple(arguments.text(field, name) for name in arguments.entries(field, given, what))
    except RecursionError:
        raise InputError(field, literal(given), f"must be {what}") from None
    repeated = [name for name, times in Counter(names).items() if times > 1]
    if repeated:
        raise InputError(field, listed(repeated), "must be distinct")
    if field == "states" and "end" in names:
        raise InputError(field, "end", "is reserved for the end of an episode; use another name")
    return names, len(names)


def infer_names(field: str, keys: Sequence[Any]) -> int | list[str]:
    """The states or actions that edges mention: their number, or their names in order."""
    named = [isinstance(key, str) for key in keys]
    if all(named):
        return list(dict.fromkeys(keys))
    if any(named):
        raise InputError(field, listed(dict.fromkeys(keys)), "must be all names or all numbers")
    return 1 + max(int(key) for key in keys)


def index_lookup(
    field: str, names: int | Sequence[str], special: Mapping[object, int] = MappingProxyType({})
) -> Callable[[str, object], int]:
    """Return a function (field, key) → index; keys are names or indices."""
    count = int(names) if isinstance(names, int | np.integer) else len(names)
    if count < 1:
        raise InputError(field, count, "must be at least 1")
    table = {} if isinstance(names, int | np.integer) else {str(n): i for i, n in enumerate(names)}

    def index(key_field: str, key: object) -> int:
        if (key is None or isinstance(key, str | int | np.integer)) and key in special:
            return special[key]
        if isinstance(key, str) and key in table:
            return table[key]
        if isinstance(key, str) and not table and key.isdecimal() and len(key) <= LONGEST_INDEX:
            key = int(key)  # keys of a TOML table are strings
        if arguments.is_integer(key) and 0 <= key < count:
            return int(key)
        known = listed(table, most=8) if table else f"0 to {count - 1}"
        raise InputError(key_field, literal(key), f"unknown; {field} are {known}")

    return index


def parse_edge(i: int, row: Edge | tuple[Any, ...]) -> Edge:
    """The row with index `i` as an Edge."""
    try:
        if isinstance(row, Mapping):
            edge = Edge(**row)
        else:
            edge = row if isinstance(row, Edge) else Edge(*row)
    except TypeError:
        fields = ", ".join(Edge._fields)
        raise InputError(
            f"edges[{i}]", row, f"must be ({fields}), the last four optional"
        ) from None
    for field, key in zip(Edge._fields, edge[:3], strict=False):
        is_key = isinstance(key, str) or arguments.is_integer(key)
        if not is_key and not (key is None and field == "next_state"):
            raise InputError(f"edges[{i}].{field}", literal(key), "must be a name or an index")
    return edge


def parse_column(
    edges: Sequence[Edge], field: str, read: Callable[[str, Any], Any]
) -> NDArray[Any]:
    """One field of all edges, each entry parsed by `read(field, entry)`."""
    return np.array([read(f"edges[{i}].{field}", getattr(e, field)) for i, e in enumerate(edges)])


def parse_number(field: str, given: object) -> float:
    """Return a float, or raise an InputError that names the field."""
    try:
        return float(given)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise InputError(field, literal(given), "must be a number") from None


def edge_gammas(rows: Sequence[Edge]) -> Array | None:
    """γ of each edge, or None if no edge has one; edges that end an episode may omit it."""
    if all(row.gamma is None for row in rows):
        return None
    missing = [i for i, r in enumerate(rows) if r.gamma is None and r.next_state not in END_NAMES]
    if missing:
        raise InputError(
            f"edges[{missing[0]}].gamma",
            None,
            "give γ for every edge that does not end the episode, or only per state",
        )
    return np.array([parse_number(f"edges[{i}].gamma", r.gamma or 0.0) for i, r in enumerate(rows)])


def expand(field: str, given: ArrayLike, shape: tuple[int, ...]) -> Array:
    """Broadcast R[s], R[s, a] or R[s, a, s′] to R[s, a, s′]."""
    array = arguments.floats(field, given, "an array of numbers")
    if not np.isfinite(array).all():
        raise InputError(field, "not finite", "must hold finite numbers only")
    if array.shape != shape[: array.ndim]:
        raise InputError(
            field,
            f"an array of shape {array.shape}",
            f"must be {field}[s, a, s′] of shape {shape}, or leave out s′, or a and s′",
        )
    return np.broadcast_to(array.reshape(array.shape + (1,) * (3 - array.ndim)), shape)


def choice_by_state(mdp: MDP, table: Mapping[Any, object], field: str) -> Callable[[int], object]:
    """Return a function from state index to its entry in `table`, keyed by name or index."""
    choices = {mdp._state_of(f"{field}.{state}", state): choice for state, choice in table.items()}
    missing = [mdp.state_name(s) for s in range(mdp.n_states) if s not in choices]
    if missing:
        raise InputError(
            field, f"nothing for {listed(missing)}", "must have an entry for every state"
        )
    return choices.__getitem__
