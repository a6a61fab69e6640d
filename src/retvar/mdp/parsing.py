"""Rows, names and numbers as people write them, turned into indices and arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retvar import arguments
from retvar.errors import InputError
from retvar.format import listed

if TYPE_CHECKING:
    from retvar.mdp.model import MDP

Array = NDArray[np.float64]
END = -1  #: the next state of an edge that ends the episode; names: ``"end"`` or ``None``
END_NAMES = (None, "end", END)


class Edge(NamedTuple):
    """One way to leave a state: what people write down.

    States and actions are indices or names; ``next_state`` is ``"end"`` (or ``None``, or ``END``)
    where the episode ends. ``gamma`` is needed only where it depends on the edge and not on the
    state arrived in.

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


def names(
    field: str, given: int | Sequence[str] | None, used: ArrayLike
) -> tuple[tuple[str, ...] | None, int]:
    """Return the names (None where there are none) and how many things there are."""
    if given is None:
        index = arguments.floats(field, used, "whole numbers")
        return None, 1 + int(np.max(index, initial=-1)) if np.isfinite(index).all() else 1
    if isinstance(given, int | np.integer) and not isinstance(given, bool):
        if given < 1:
            raise InputError(field, given, "must be at least 1")
        return None, int(given)
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InputError(field, repr(given), "must be how many there are, or their names")
    names = tuple(str(name) for name in given)
    repeated = [name for name, times in Counter(names).items() if times > 1]
    if repeated:
        raise InputError(field, listed(repeated), "must differ from one another")
    if field == "states" and "end" in names:
        raise InputError(field, "end", "is the name of the end of an episode; take another")
    return names, len(names)


def found(field: str, keys: Sequence[Any]) -> int | list[str]:
    """States or actions as edges mention them: a count of numbers, or names in order."""
    named = [isinstance(key, str) for key in keys]
    if all(named):
        return list(dict.fromkeys(keys))
    if any(named):
        raise InputError(field, listed(dict.fromkeys(keys)), "must be all names or all numbers")
    return 1 + max(int(key) for key in keys)


def lookup(
    field: str, names: int | Sequence[str], special: Mapping[object, int] = MappingProxyType({})
) -> Callable[[str, object], int]:
    """Return a function (where, key) → index; keys are names or indices."""
    count = int(names) if isinstance(names, int | np.integer) else len(names)
    if count < 1:
        raise InputError(field, count, "must be at least 1")
    table = {} if isinstance(names, int | np.integer) else {str(n): i for i, n in enumerate(names)}

    def index(where: str, key: object) -> int:
        if (key is None or isinstance(key, str | int | np.integer)) and key in special:
            return special[key]
        if isinstance(key, str) and key in table:
            return table[key]
        if isinstance(key, str) and not table and key.isdecimal():
            key = int(key)  # as in the keys of a TOML table
        if isinstance(key, int | np.integer) and not isinstance(key, bool) and 0 <= key < count:
            return int(key)
        known = listed(table, most=8) if table else f"0 to {count - 1}"
        raise InputError(where, repr(key), f"unknown; {field} are {known}")

    return index


def edge(i: int, row: Edge | tuple[Any, ...]) -> Edge:
    """The i-th row as an Edge."""
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
        no_key = not isinstance(key, int | np.integer | str) or isinstance(key, bool)
        if no_key and not (key is None and field == "next_state"):
            raise InputError(f"edges[{i}].{field}", repr(key), "must be a name or an index")
    return edge


def column(edges: Sequence[Edge], field: str, read: Callable[[str, Any], Any]) -> NDArray[Any]:
    """One field of all edges, read by `read(where, what is given)`."""
    return np.array([read(f"edges[{i}].{field}", getattr(e, field)) for i, e in enumerate(edges)])


def number(field: str, given: object) -> float:
    """A number, or an error that names the field."""
    try:
        return float(given)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise InputError(field, repr(given), "must be a number") from None


def edge_gammas(rows: Sequence[Edge]) -> Array | None:
    """The edges' own γ, if they have any; those of an end may be left out."""
    if all(row.gamma is None for row in rows):
        return None
    missing = [i for i, r in enumerate(rows) if r.gamma is None and r.next_state not in END_NAMES]
    if missing:
        raise InputError(
            f"edges[{missing[0]}].gamma",
            None,
            "give γ for every edge that does not end the episode, or for none and per state",
        )
    return np.array([number(f"edges[{i}].gamma", r.gamma or 0.0) for i, r in enumerate(rows)])


def spread(field: str, given: ArrayLike, shape: tuple[int, ...]) -> Array:
    """R[s], R[s, a] or R[s, a, s′] as R[s, a, s′]."""
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


def by_state(mdp: MDP, table: Mapping[Any, object], field: str) -> Callable[[int], object]:
    """Return a function from state index to what `table` holds for it, by name or index."""
    found = {mdp._state_of(f"{field}.{state}", state): choice for state, choice in table.items()}
    missing = [mdp.state_name(s) for s in range(mdp.n_states) if s not in found]
    if missing:
        raise InputError(field, f"nothing for {listed(missing)}", "must say what every state does")
    return found.__getitem__
