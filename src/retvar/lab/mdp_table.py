"""An MDP as a table of edges that is edited in the page, with every error at its row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from retvar import domains
from retvar.mdp import END, MDP

__all__ = ["COLUMNS", "EXAMPLES", "errors", "lam_of", "rows_of", "source", "to_mdp"]

Row = Mapping[str, Any]
COLUMNS = ("state", "action", "next_state", "probability", "reward", "reward_std", "gamma")
NUMBERS = COLUMNS[3:]
END_NAME = "end"
SHOP = [
    ("full", "sell", "full", "0.6", "2", "0.5", "0.95"),
    ("full", "sell", "empty", "0.4", "3", "0.5", "0.95"),
    ("full", "keep", "full", "1", "0.5", "0", "0.95"),
    ("empty", "wait", "full", "0.9", "-1", "0", "0.95"),
    ("empty", "wait", "end", "0.1", "0", "0", "0"),
]
EXAMPLES = ("a shop", "chain", "complex-mdp", "random-walk", "empty")  #: tables to begin with


def rows_of(name: str) -> list[dict[str, str]]:
    """The table of an example, all its cells as text.

    >>> rows_of("chain")[0]["reward_std"], len(rows_of("empty"))
    ('1', 1)
    """
    if name in (EXAMPLES[0], EXAMPLES[-1]):
        given = SHOP if name == EXAMPLES[0] else [("", "", "end", "1", "0", "0", "0.9")]
        return [dict(zip(COLUMNS, row, strict=True)) for row in given]
    mdp, found = domains.find(name), []
    for edge in zip(*mdp.edges, strict=True):
        known = dict(zip(mdp.edges._fields, edge, strict=True))
        to = END_NAME if known["next_state"] == END else mdp.state_name(int(known["next_state"]))
        names = (mdp.state_name(int(known["state"])), mdp.action_name(int(known["action"])), to)
        numbers = (f"{float(known[name]):.12g}" for name in NUMBERS)
        found.append(dict(zip(COLUMNS, (*names, *numbers), strict=True)))
    return found


def lam_of(name: str) -> str:
    """λ of an example as text: one number, or one for each state.

    >>> lam_of("complex-mdp")
    '1, 0.9, 0, 0.5, 0.1'
    """
    if name in (EXAMPLES[0], EXAMPLES[-1]):
        return "0.9"
    lam = [f"{x:g}" for x in domains.find(name).lam]
    return lam[0] if len(set(lam)) == 1 else ", ".join(lam)


def number(text: object) -> float:
    """A finite number, also a fraction; NaN for anything else.

    >>> number("1/4"), number("−2"), number("lots")
    (0.25, -2.0, nan)
    """
    plain = str(text).strip().replace("−", "-").replace(" ", "")
    try:
        found = float(Fraction(plain)) if "/" in plain else float(plain)
    except (ValueError, ZeroDivisionError, OverflowError):
        return math.nan
    return found if math.isfinite(found) else math.nan


def errors(rows: Sequence[Row]) -> list[str]:
    """What is wrong with the cells of a table, by row, each with its remedy.

    >>> errors([dict(zip(COLUMNS, ("a", "go", "end", "1", "lots", "0", "0.9")))])
    ["row 1, reward = 'lots': must be a number"]
    """
    told = [] if rows else ["the table is empty: add a row"]
    for k, row in enumerate(rows, 1):
        for column in COLUMNS:
            text = str(row[column] or "")
            if remedy := _remedy(column, text.strip()):
                told.append(f"row {k}, {column} = {text!r}: {remedy}")
    return told


def _remedy(column: str, text: str) -> str:
    if column in NUMBERS:
        found = number(text)
        if math.isnan(found):
            return "must be a number"
        if column in ("probability", "gamma") and not 0 <= found <= 1:
            return "must lie between 0 and 1"
        return "must not be negative" if column == "reward_std" and found < 0 else ""
    if not text:
        return "give a name" + f", or {END_NAME} where the episode ends" * (column == "next_state")
    if column == "state" and text == END_NAME:
        return "is reserved for the end of an episode; use another name"
    return ""


def to_mdp(rows: Sequence[Row], lam: str) -> MDP:
    """The MDP of a table; it starts in the state of the first row, and has errors of its own.

    >>> to_mdp(rows_of("a shop"), "0.9").n_states
    2
    """
    return MDP.from_edges([_edge(row) for row in rows], **_settings(rows, lam))


def source(rows: Sequence[Row], lam: str) -> str:
    """Python that makes the MDP.

    >>> print(source(rows_of("a shop")[-1:], "0.9"))
    rv.MDP.from_edges(
        [  # state, action, next state, probability, reward, std of the reward, γ on arrival
            ('empty', 'wait', 'end', 0.1, 0.0, 0.0, 0.0),
        ],
        lam=0.9, start='empty',
    )
    """
    lines = [f"        {_edge(row)!r}," for row in rows]
    head = (
        "    [  # state, action, next state, probability, reward, std of the reward, γ on arrival"
    )
    last = ", ".join(f"{name}={value!r}" for name, value in _settings(rows, lam).items())
    return "\n".join(["rv.MDP.from_edges(", head, *lines, "    ],", f"    {last},", ")"])


def _edge(row: Row) -> tuple[Any, ...]:
    names = (str(row[column]).strip() for column in COLUMNS[:3])
    return (*names, *(number(row[column]) for column in NUMBERS))


def _settings(rows: Sequence[Row], lam: str) -> dict[str, Any]:
    found = [number(part) for part in lam.split(",")]
    return {"lam": found[0] if len(found) == 1 else found, "start": _edge(rows[0])[0]}
