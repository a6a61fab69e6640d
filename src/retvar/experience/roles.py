"""Which column of a log is what, and what its states are."""

from __future__ import annotations

import logging
import math
from types import SimpleNamespace
from typing import Any, NamedTuple

from retvar.experience.moves import LARGEST_RATIO, LARGEST_REWARD
from retvar.experience.tables import MOST_STATES, NUMBERS, Table
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.support.format import listed, literal

log = logging.getLogger("retvar")


class Role(NamedTuple):
    """What a column must hold, and where it is found by its name without being named.

    That is by 'default' (of the argument), 'always', or in files that retvar wrote: its 'own'.
    """

    holds: str  #: 'number', 'flag', 'time' or 'label'
    found: str = ""
    bounds: tuple[float, float] = (-math.inf, math.inf)  #: of the numbers of a transition


ROLES = {
    "terminated": Role("flag", "default"), "truncated": Role("flag", "default"),
    "action": Role("label", "default"), "entity": Role("label", "always"),
    "episode": Role("label", "always"), "time": Role("time"),
    "gamma": Role("number", "own", (0.0, 1.0)), "lam": Role("number", "own", (0.0, 1.0)),
    "rho": Role("number", "own", (0.0, LARGEST_RATIO)),
    "behaviour": Role("number"), "target": Role("number"),
    "reward": Role("number", "", (-LARGEST_REWARD, LARGEST_REWARD)),
}  # fmt: skip
TRUTHS = "true and false, or 0 and 1; write 0 in place of blanks"
NEEDS = {
    "label": "one number or text", "number": "numbers", "flag": TRUTHS,
    "time": "numbers, or dates such as 2026-01-31 or 2026-01-31T12:00; for 31.01.2026 say "
            "day_first=True",
}  # fmt: skip


class Roles(SimpleNamespace):
    """The column of each role, or None; of `state` and `next_state`, a list of columns.

    `others` are columns of more rewards. And what the states are: `kind` is 'number', 'label' or
    'vector'; `states` their number, where it is given; `highest` the largest, where all were looked
    at. Times are `dates` or numbers.
    """

    @property
    def used(self) -> list[str]:
        """All columns with a role."""
        roles = filter(None, (getattr(self, role) for role in ROLES))
        return [*roles, *self.others, *self.all_states]

    @property
    def all_states(self) -> list[str]:
        """Columns of the state and of the next one."""
        return [*self.state, *(self.next_state or [])]


def find_roles(table: Table, given: dict[str, Any], policy: bool) -> Roles:
    """Find the columns, and decide by types and by the first rows what the states are."""
    own, cost = bool(table.metadata.get("own")), given["cost"]
    rewards = _listed(given["reward"])
    if cost:
        rewards = [cost] if rewards == ["reward"] else [*rewards, cost]
    if not rewards or len(set(rewards)) < len(rewards):
        raise InputError("reward", listed(rewards), "must be names of different columns")
    roles, given = Roles(kind="number", states=None, highest=None, dates=False), dict(given)
    roles.others = [_column(table, "reward", name, "number") for name in rewards[1:]]
    given["reward"] = rewards[0]
    for name, role in ROLES.items():
        shown, column = (
            ("cost", cost) if rewards[0] == cost and name == "reward" else (name, given[name])
        )
        if column is None and (role.found == "always" or (own and role.found == "own")):
            column = name
        optional = role.found == "default" or given[name] is None
        setattr(roles, name, _column(table, shown, column, role.holds, optional))
    if own and roles.entity is None and "stream" in table.types:
        roles.entity = "stream"
    if roles.terminated is None and given["terminated"] is not False:
        remedy = f"name the column that says where episodes end ({_names(table)}), or say"
        raise InputError("terminated", "missing", f"{remedy} terminated=False where they never do")
    several = _find_states(table, roles, given["state"], given["next_state"])
    _refuse_conflicts(roles, policy)
    numbers = [name for name, role in ROLES.items() if role.holds == "number"]
    unused = [name for name in numbers if name in table.types and not getattr(roles, name)]
    if unused:
        log.warning("columns not used, since not named: %s", listed(unused))
    roles.kind = _kind(table, roles, several, given["states"])
    if roles.time:
        facts, kind = table.facts(roles.time), table.kind(roles.time)
        roles.dates = kind == "time" or (kind == "text" and 2 * facts.numbers < facts.present)
    for name in filter(None, (roles.terminated, roles.truncated)):
        if not table.work.one(f"SELECT count({table.sql(name).flag}) FROM retvar_first"):
            raise _wrong(table, name, table.facts(name).example or "blank", TRUTHS)
    return roles


def _names(table: Table) -> str:
    return f"{table.name} has {listed(table.types, most=12)}"


def _column(
    table: Table, role: str, name: Any, holds: str = "label", optional: bool = False
) -> str | None:
    """The column of a role, with a type that fits; None where one that is optional is absent."""
    if name is None or name is False or (optional and name == role and name not in table.types):
        return None
    if not isinstance(name, str) or name not in table.types:
        raise InputError(role, literal(name), f"must be the name of a column; {_names(table)}")
    kind = table.kind(name)
    fits = holds == "label" or kind in {*NUMBERS, "text"} or holds == kind == "time"
    if kind == "nested" or not fits:
        raise _wrong(table, name, table.types[name], NEEDS[holds])
    return name


def _wrong(table: Table, name: str, shown: Any, need: str) -> InputError:
    """The error for a column that holds something else."""
    return InputError(f"column {name!r} of {table.name}", shown, f"must hold {need}")


def _find_states(table: Table, roles: Roles, state: Any, next_state: Any) -> bool:
    """Find the columns of the state and of the next one; return whether they are several."""
    names = _listed(state)
    if state == "state" and "state" not in table.types:
        numbered = (f"state_{k}" for k in range(len(table.types)))
        names = [name for name in numbered if name in table.types] or names
    several = names != [state]
    if next_state == "next_state":
        single = not several and "next_state" in table.types
        guessed = ["next_state"] if single else [f"next_{name}" for name in names]
        next_state = guessed if any(name in table.types for name in guessed) else None
    after = _listed(next_state)
    for role, found in (("state", names), ("next_state", after)):
        for name in found:
            _column(table, role, name)
        if len(set(found)) < len(found) or not names or (after and len(after) != len(names)):
            raise InputError(role, listed(found), "must be names of different columns, as many")
    roles.state, roles.next_state = names, after or None
    return several


def _listed(names: Any) -> list[Any]:
    return list(names) if isinstance(names, list | tuple) else [names] * (names is not None)


def _refuse_conflicts(r: Roles, policy: bool) -> None:
    """Refuse one column in two roles, one probability without the other, ratios given twice."""
    target, ratio = r.target or policy, "the ratio needs behaviour, and target or target_policy"
    for role, wrong, remedy in (
        ("next_state", r.next_state == r.state, "is the column of the state, too"),
        ("truncated", r.truncated and r.truncated == r.terminated, "is that of terminated, too"),
        ("target", policy and r.target, "target_policy is given, too; leave one out"),
        ("behaviour", target and not r.behaviour, ratio),
        ("target", r.behaviour and not target, ratio),
        ("rho", r.behaviour and r.rho, "give ρ, or the two probabilities, not both"),
        ("action", policy and not r.action, "target_policy needs the column of the action"),
    ):
        if wrong:
            raise InputError(role, getattr(r, role) or "missing", remedy)


def _kind(table: Table, roles: Roles, several: bool, states: Any) -> str:
    """What the states are; of several columns, observations, or labels that are tuples."""
    columns = roles.all_states
    kinds = {table.kind(name) for name in columns}
    numeric = kinds <= NUMBERS or (table.text and "text" in kinds)
    if states is None and not several:
        roles.states = table.metadata.get("states")
    elif states not in (None, "labels"):
        if several or not arguments.is_integer(states) or states < 1:
            remedy = "must be how many there are in one column, or 'labels'"
            raise InputError("states", literal(states), remedy)
        roles.states = int(states)
    if roles.states is not None and not numeric:
        raise _wrong(table, columns[0], table.types[columns[0]], "numbers of states")
    if roles.states is not None or states == "labels":
        return "number" if roles.states is not None else "label"
    whole = kinds <= {"whole", "flag"} and not several  # all rows are looked at
    facts = {name: table.facts(name, everywhere=whole) for name in columns}
    if several:
        return _kind_of_several(table, facts)
    if kinds & NUMBERS and not kinds <= NUMBERS:
        shown = listed(table.types[name] for name in columns)
        raise InputError(f"columns {listed(columns)}", shown, "must be of one kind")
    least, most = min(f.least for f in facts.values()), max(f.most for f in facts.values())
    total = {name: sum(getattr(f, name) for f in facts.values())
             for name in ("present", "numbers", "fractions", "codes")}  # fmt: skip
    if not numeric or total["numbers"] < total["present"]:
        return "label"
    if total["fractions"]:
        return "vector"
    if total["codes"] or least < 0 or most >= MOST_STATES:
        return "label"
    roles.highest = int(most) if whole else None
    return "number"


def _kind_of_several(table: Table, facts: dict[str, Any]) -> str:
    """Observations where all columns hold numbers, otherwise labels."""
    readable = [name for name in facts if table.kind(name) in {*NUMBERS, "text"}]
    numeric = {name: name in readable and (2 * f.numbers > f.present or not f.present)
               for name, f in facts.items()}  # fmt: skip
    fractions = [name for name, f in facts.items() if numeric[name] and f.fractions]
    if fractions and not all(numeric.values()):
        remedy = "has fractions beside columns of text; bin or leave out the numbers, or number "
        raise InputError("state", listed(fractions), f"{remedy}the text")
    return "vector" if all(numeric.values()) else "label"
