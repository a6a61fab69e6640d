"""Edges of an MDP: rows, names and numbers become validated columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.support.format import listed, literal

if TYPE_CHECKING:
    from retvar.mdp.model import MDP

Array = NDArray[np.float64]
Integers = NDArray[np.intp]
END = -1  #: the next state of an edge that ends the episode; names: ``"end"`` or ``None``
END_NAMES = (None, "end", END)
ONCE = "give γ once: a number, one per state, or one per edge"


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


class Edges(NamedTuple):
    """The edges of an MDP as read-only columns, sorted by the numbers of state and action.

    >>> import retvar as rv
    >>> rv.domains.chain().edges.next_state
    array([ 1,  2,  3, -1])
    """

    state: Integers
    action: Integers
    next_state: Integers  #: ``END`` (−1) where the episode ends
    probability: Array  #: of this edge, given state and action
    reward: Array  #: mean
    reward_std: Array
    gamma: Array  #: discount on arrival; 0 where the episode ends


# ---------------------------------------------------------------------- rows


def columns_of(rows: Iterable[Any], settings: dict[str, Any]) -> tuple[Any, ...]:
    """Columns of rows of edges; `settings` gets the states and actions that the rows mention."""
    if not isinstance(rows, Iterable) or getattr(rows, "ndim", 1) == 0:
        raise InputError("edges", literal(rows), "must be a list of edges")
    edges = [_edge(i, row) for i, row in enumerate(rows)]
    if not edges:
        raise InputError("edges", "[]", "must hold at least one edge")
    states = [k for e in edges for k in (e.state, e.next_state) if k not in END_NAMES]
    mentioned = {"states": states, "actions": [e.action for e in edges]}
    for field, keys in mentioned.items():
        settings.setdefault(field, _infer_names(field, keys))
        parse_names(field, settings[field], ())
    state_of = index_lookup("states", settings["states"])
    action_of = index_lookup("actions", settings["actions"])

    def column(field: str, read: Callable[[str, Any], Any]) -> NDArray[Any]:
        return np.array(
            [read(f"edges[{i}].{field}", getattr(e, field)) for i, e in enumerate(edges)]
        )

    return (
        column("state", state_of),
        column("action", action_of),
        column("next_state", lambda f, key: END if key in END_NAMES else state_of(f, key)),
        *(column(field, parse_number) for field in ("probability", "reward", "reward_std")),
        _gammas(edges),
    )


def _edge(i: int, row: Any) -> Edge:
    """The row with index `i` as an Edge."""
    try:
        edge = Edge(**row) if isinstance(row, Mapping) else Edge(*row)
    except TypeError:
        remedy = f"must be ({', '.join(Edge._fields)}), the last four optional"
        raise InputError(f"edges[{i}]", row, remedy) from None
    for field, key in zip(Edge._fields, edge[:3], strict=False):
        is_key = isinstance(key, str) or arguments.is_integer(key)
        if not is_key and not (key is None and field == "next_state"):
            raise InputError(f"edges[{i}].{field}", literal(key), "must be a name or an index")
    return edge


def _gammas(edges: Sequence[Edge]) -> Array | None:
    """γ of each edge, or None if no edge has one; edges that end an episode may omit it."""
    if all(e.gamma is None for e in edges):
        return None
    for i, e in enumerate(edges):
        if e.gamma is None and e.next_state not in END_NAMES:
            remedy = "give γ for every edge that does not end the episode, or only per state"
            raise InputError(f"edges[{i}].gamma", None, remedy)
    return np.array([parse_number(f"edges[{i}].gamma", e.gamma or 0) for i, e in enumerate(edges)])


def parse_number(field: str, given: Any) -> float:
    """Return a float, or raise an InputError that names the field."""
    try:
        return float(given)
    except (TypeError, ValueError, OverflowError):
        raise InputError(field, literal(given), "must be a number") from None


# ---------------------------------------------------------------------- names


def parse_names(
    field: str, given: int | Sequence[str] | None, used: ArrayLike
) -> tuple[tuple[str, ...] | None, int]:
    """Return the names (None if there are only indices) and the number of states or actions."""
    if given is None:
        index = arguments.floats(field, used, "whole numbers")
        return None, 1 + int(np.max(index, initial=-1)) if np.isfinite(index).all() else 1
    if arguments.is_integer(given):
        return None, arguments.integer(field, given, 1)
    what = "their number or a list of names"
    if isinstance(given, str):
        raise InputError(field, literal(given), f"must be {what}")
    names = tuple(arguments.text(field, name) for name in arguments.entries(field, given, what))
    repeated = [name for name, times in Counter(names).items() if times > 1]
    if repeated:
        raise InputError(field, listed(repeated), "must be distinct")
    if field == "states" and "end" in names:
        raise InputError(field, "end", "is reserved for the end of an episode; use another name")
    if not names:
        raise InputError(field, 0, "must be at least 1")
    return names, len(names)


def _infer_names(field: str, keys: Sequence[Any]) -> int | list[str]:
    """The states or actions that edges mention: their number, or their names in order."""
    named = [isinstance(key, str) for key in keys]
    if all(named):
        return list(dict.fromkeys(keys))
    if any(named):
        raise InputError(field, listed(dict.fromkeys(keys)), "must be all names or all numbers")
    return 1 + max(int(key) for key in keys)


def index_lookup(field: str, names: int | Sequence[str]) -> Callable[[str, object], int]:
    """Return a function (field, key) → index; keys are names or indices."""
    numbered = arguments.is_integer(names)
    table = {} if numbered else {str(name): i for i, name in enumerate(names)}  # type: ignore[arg-type]
    count = int(names) if numbered else len(table)  # type: ignore[arg-type]

    def index(key_field: str, key: object) -> int:
        if isinstance(key, str) and key in table:
            return table[key]
        if isinstance(key, str) and not table and key.isdecimal():
            key = int(key)  # keys of a TOML table are strings
        if arguments.is_integer(key) and 0 <= key < count:
            return int(key)
        known = listed(table, most=8) if table else f"0 to {count - 1}"
        raise InputError(key_field, literal(key), f"unknown; {field} are {known}")

    return index


# ---------------------------------------------------------------------- columns


def validated(mdp: MDP, columns: tuple[Any, ...], gamma: ArrayLike | None) -> Edges:
    """Return valid columns, sorted by state and action, or raise an InputError."""
    state = arguments.indices("edges.state", columns[0], 0, mdp.n_states)
    action = arguments.indices("edges.action", columns[1], 0, mdp.n_actions)
    next_state = arguments.indices("edges.next_state", columns[2], END, mdp.n_states)
    count = state.size
    if count == 0:
        raise InputError("edges", "none", "must hold at least one edge")
    for field, column in (("action", action), ("next_state", next_state)):
        if column.size != count:
            remedy = f"must have {count}, as edges.state has"
            raise InputError(f"edges.{field}", f"{column.size} entries", remedy)

    def label(i: int) -> str:
        to = "end" if next_state[i] == END else mdp.state_name(int(next_state[i]))
        return f"{mdp.state_name(int(state[i]))}, {mdp.action_name(int(action[i]))} → {to}"

    fields = zip(Edge._fields[3:6], columns[3:6], strict=True)
    probability, reward, std = (arguments.numbers(f, x, count, label) for f, x in fields)
    for field, amount in (("probability", probability), ("reward_std", std)):
        arguments.refuse(field, amount, amount < 0, "must not be negative", label)
    if gamma is not None:
        if columns[6] is not None:
            raise InputError("gamma", "given per state and per edge", ONCE)
        arriving = arguments.unit_interval("gamma", gamma, mdp.n_states, mdp.state_name)
        discount = np.where(next_state == END, 0.0, arriving[next_state])
    elif columns[6] is None:
        raise InputError("gamma", "nothing", ONCE)
    else:
        discount = arguments.unit_interval("gamma", columns[6], count, label)
        remedy = "must be 0 where the episode ends; name a state to go on in, or give 0"
        arguments.refuse("gamma", discount, (next_state == END) & (discount != 0), remedy, label)
    order = np.lexsort((action, state))
    mdp._as_given = bool((order[1:] > order[:-1]).all())
    found: Any = (state, action, next_state, probability, reward, std, discount)
    return _normalised(mdp, Edges(*(column[order] for column in found)))


def _normalised(mdp: MDP, e: Edges) -> Edges:
    """Divide probabilities by their sum over each state and action, if it is not 1."""
    pair = e.state * mdp.n_actions + e.action
    starts = np.flatnonzero(np.concatenate([[True], pair[1:] != pair[:-1]]))
    sizes = np.diff(np.append(starts, pair.size))
    with np.errstate(over="ignore"):
        totals = np.add.reduceat(e.probability, starts)
    for i in np.flatnonzero(np.abs(totals - 1) > arguments.TOLERANCE)[:1]:
        s, a = mdp.state_name(int(e.state[starts[i]])), mdp.action_name(int(e.action[starts[i]]))
        remedy = "the edges of a state and action must sum to 1"
        raise InputError(f"sum of probability[{s}, {a}]", f"{totals[i]:.12g}", remedy)
    without_edge = np.flatnonzero(np.bincount(e.state, minlength=mdp.n_states) == 0)
    if without_edge.size:
        remedy = "must have an edge that leaves them; where an episode ends, use next state 'end'"
        raise InputError("states", listed(mdp.state_name(int(s)) for s in without_edge), remedy)
    exact = np.abs(totals - 1) <= arguments.EXACT * sizes
    return e._replace(probability=e.probability / np.repeat(np.where(exact, 1.0, totals), sizes))
