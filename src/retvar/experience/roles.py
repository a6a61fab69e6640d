"""Which column of a log is what, and what its states are: numbers, labels or observations."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from retvar.experience.moves import quoted
from retvar.experience.tables import MOST_STATES, NUMBERS, Table
from retvar.support.arguments import is_integer
from retvar.support.errors import InputError
from retvar.support.format import listed, literal

__all__ = ["Roles", "find_roles"]

log = logging.getLogger("retvar")
DEFAULT = ("terminated", "truncated", "action")  # where they are called so
BY_NAME = ("entity", "episode")  # without being asked for
FROM_OWN_FILES = ("gamma", "lam", "rho")  # found by name only in files that retvar wrote
ONLY_NAMED = (*FROM_OWN_FILES, "behaviour", "target")
SINGLE = (*DEFAULT, *BY_NAME, "time", *ONLY_NAMED)
LABELLED = ("episode", "entity", "action", "state", "next_state")  # may hold anything
TRUTHS = "true and false, or 0 and 1; write 0 in place of blanks"
TIMES = (
    "numbers, or dates such as 2026-01-31 or 2026-01-31T12:00; for 31.01.2026 say day_first=True"
)
NEEDS = {"terminated": TRUTHS, "truncated": TRUTHS, "time": TIMES}
COUNTED = ("present", "numbers", "fractions", "outside", "codes", "truths")
BINNED = "has fractions beside columns of text; bin or leave out the numbers, or number the text"


@dataclass
class Roles:
    """The column of each role; None: there is no such column."""

    state: list[str]
    next_state: list[str] | None
    reward: str
    terminated: str | None
    truncated: str | None
    action: str | None
    entity: str | None
    time: str | None
    episode: str | None
    gamma: str | None
    lam: str | None
    rho: str | None
    behaviour: str | None
    target: str | None
    kind: str = "number"  #: of states: 'number', 'label' or 'vector'
    states: int | None = None  #: number of states, where they are numbers and it is known
    highest: int | None = None  #: the largest number of a state, where all were looked at
    dates: bool = False  #: whether times are dates, not numbers

    @property
    def used(self) -> set[str]:
        """All columns with a role."""
        names = {x for name, x in vars(self).items() if isinstance(x, str) and name != "kind"}
        return {*names, *self.all_states}

    @property
    def all_states(self) -> list[str]:
        """Columns of the state and of the next one."""
        return [*self.state, *(self.next_state or [])]


def find_roles(table: Table, given: dict[str, Any], policy: bool) -> Roles:
    """Find the columns, and decide by types and by the first rows what the states are."""
    own, cost, states = bool(table.metadata.get("own")), given["cost"], given["states"]
    found: dict[str, Any] = {}
    for role in SINGLE:
        by_name = role in BY_NAME or (own and role in FROM_OWN_FILES)
        name = role if given[role] is None and by_name else given[role]
        found[role] = _column(table, role, name, role in DEFAULT or given[role] is None)
    if own and found["entity"] is None and "stream" in table.types:
        found["entity"] = "stream"
    if cost and given["reward"] != "reward":
        raise InputError("cost", cost, f"reward is given, too ({given['reward']}); name one")
    reward = _column(table, "cost" if cost else "reward", cost or given["reward"])
    if found["terminated"] is None and given["terminated"] is not False:
        remedy = f"name the column that says where episodes end ({_names(table)}), or say"
        raise InputError("terminated", "missing", f"{remedy} terminated=False where they never do")
    names, after, several = _state_columns(table, given["state"], given["next_state"])
    roles = Roles(state=names, next_state=after, reward=str(reward), **found)
    _refuse_conflicts(roles, policy)
    unused = [name for name in ONLY_NAMED if found[name] is None and name in table.types]
    if unused:
        log.warning("columns not used, since not named: %s", listed(unused))
    roles.states = _state_count(table, several, states)
    roles.kind = _kind(table, roles, several, states)
    if roles.time:
        facts, kind = table.facts(roles.time), table.kind(roles.time)
        roles.dates = kind == "time" or (kind == "text" and 2 * facts.numbers < facts.present)
    for name in filter(None, (roles.terminated, roles.truncated)):
        if not table.seen(f"count({table.flag(name)})"):
            raise _wrong(table, name, table.facts(name).example or "blank", TRUTHS)
    return roles


def _names(table: Table) -> str:
    return f"{table.name} has {listed(table.types, most=12)}"


def _column(table: Table, role: str, name: Any, optional: bool = False) -> str | None:
    """The column of a role, with a type that fits; None where one that is optional is absent."""
    if name is None or name is False or (optional and name == role and name not in table.types):
        return None
    if not isinstance(name, str) or name not in table.types:
        raise InputError(role, literal(name), f"must be the name of a column; {_names(table)}")
    kind = table.kind(name)
    fits = role in LABELLED or kind in (*NUMBERS, "text") or (role == "time" and kind == "time")
    if kind == "nested" or not fits:
        need = "one number or text" if role in LABELLED else NEEDS.get(role, "numbers")
        raise _wrong(table, name, table.types[name], need)
    return name


def _wrong(table: Table, name: str, shown: Any, need: str) -> InputError:
    """The error for a column that holds something else."""
    return InputError(f"column {name!r} of {table.name}", shown, f"must hold {need}")


def _state_columns(
    table: Table, state: Any, next_state: Any
) -> tuple[list[str], list[str] | None, bool]:
    """Columns of the state and of the next state, and whether they are several."""
    names = [state] if isinstance(state, str) else list(state or ())
    if state == "state" and "state" not in table.types:
        numbered = (f"state_{k}" for k in range(len(table.types)))
        names = [name for name in numbered if name in table.types] or names
    several = not isinstance(state, str) or names != [state]
    if next_state == "next_state":
        single = not several and "next_state" in table.types
        guessed = ["next_state"] if single else [f"next_{name}" for name in names]
        next_state = guessed if any(name in table.types for name in guessed) else None
    after = [next_state] if isinstance(next_state, str) else list(next_state or ())
    for role, found in (("state", names), ("next_state", after)):
        for name in found:
            _column(table, role, name)
        if len(set(found)) < len(found) or not names or (after and len(after) != len(names)):
            raise InputError(role, listed(found), "must be names of different columns, as many")
    return names, after or None, several


def _refuse_conflicts(r: Roles, policy: bool) -> None:
    """Refuse one column in two roles, one probability without the other, ratios given twice."""
    target, ratio = r.target or policy, "the ratio needs behaviour, and target or target_policy"
    for field, wrong, remedy in (
        ("next_state", r.next_state == r.state, "is the column of the state, too"),
        ("truncated", r.truncated and r.truncated == r.terminated, "is that of terminated, too"),
        ("target", policy and r.target, "target_policy is given, too; leave one out"),
        ("behaviour", target and not r.behaviour, ratio),
        ("target", r.behaviour and not target, ratio),
        ("rho", r.behaviour and r.rho, "give ρ, or the two probabilities, not both"),
        ("action", policy and not r.action, "target_policy needs the column of the action"),
    ):
        if wrong:
            raise InputError(field, getattr(r, field) or "missing", remedy)


def _state_count(table: Table, several: bool, states: Any) -> int | None:
    """Number of states, where it is given or recorded."""
    if states is None or states == "labels":
        recorded = None if states or several else table.metadata.get("states")
        return recorded if is_integer(recorded) else None
    if not is_integer(states) or states < 1 or several:
        remedy = "must be how many there are in one column, or 'labels'"
        raise InputError("states", literal(states), remedy)
    return int(states)


def _kind(table: Table, roles: Roles, several: bool, states: Any) -> str:
    """What the states are; of several columns, observations, or labels that are tuples."""
    columns = roles.all_states
    kinds = {table.kind(name) for name in columns}
    if roles.states is not None and (kinds <= set(NUMBERS) or (table.text and "text" in kinds)):
        return "number"
    if roles.states is not None:
        raise _wrong(table, columns[0], table.types[columns[0]], "numbers of states")
    if isinstance(states, str):
        return "label"
    if kinds <= {"whole", "flag"} and not several:  # all rows are looked at
        ends = ", ".join(f"min({quoted(c)})::DOUBLE, max({quoted(c)})::DOUBLE" for c in columns)
        found = table.work.all(f"SELECT {ends} FROM ({table.query(columns)})")[0]
        known = [each for each in found if each is not None] or [0.0]
        roles.highest = int(max(known)) if min(known) >= 0 and max(known) < MOST_STATES else None
        return "label" if roles.highest is None else "number"
    facts = {name: table.facts(name) for name in columns}
    if several:
        return _kind_of_several(table, roles, facts)
    if kinds & set(NUMBERS) and not kinds <= set(NUMBERS):
        shown = listed(table.types[name] for name in columns)
        raise InputError(f"columns {listed(columns)}", shown, "must be of one kind")
    total = {name: sum(getattr(each, name) for each in facts.values()) for name in COUNTED}
    if not (kinds <= set(NUMBERS) or table.text):
        return "label"
    if total["truths"] == total["present"]:
        return "number"
    if total["numbers"] < total["present"] or (total["codes"] and not total["fractions"]):
        return "label"
    return "vector" if total["fractions"] else "label" if total["outside"] else "number"


def _kind_of_several(table: Table, roles: Roles, facts: dict[str, Any]) -> str:
    """Observations where all columns hold numbers, otherwise labels."""
    fractions, numeric = [], []
    for names in zip(roles.state, roles.next_state or roles.state, strict=True):
        readable = {table.kind(name) for name in names} <= {*NUMBERS, "text"}
        own = [facts[name] for name in names]
        numeric.append(readable and all(2 * f.numbers > f.present or not f.present for f in own))
        fractions += [names[0]] * (numeric[-1] and any(each.fractions for each in own))
    if fractions and not all(numeric):
        raise InputError("state", listed(fractions), BINNED)
    return "vector" if all(numeric) else "label"
