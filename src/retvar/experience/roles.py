"""Which column of a log is what, and what its states are."""

from __future__ import annotations

import logging
import math
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

from retvar.experience.moves import LARGEST_RATIO, LARGEST_REWARD, quoted
from retvar.experience.stream import TRUTH
from retvar.experience.tables import NUMBERS, Table
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.support.format import listed, literal

log = logging.getLogger("retvar")
MOST_STATES = 10_000_000
IDS = re.compile(
    r"(?i:(^|[_ -])((patient|user|device|entity|subject|customer|client|person|agent|unit|machine|"
    r"vehicle|session|trajectory|traj|stay|case|player|env|environment|episode|stream|bike|account|"
    r"asset|sensor|trip|serial|vin|plate|rider)([_ -]?(id|no|nr|number))?|id|ids|no|nr|uuid|key))$"
    r"|[a-z](I[dD]|N[or])$"
)
CLOCKS = re.compile(  # of numbers, which may be durations
    r"(time|timestamp|time_?step|step|t|ts|date|datum|zeit|when|.*_at)$", re.IGNORECASE
)
OTHER_DATES = re.compile("birth|due|dob", re.IGNORECASE)
CLOCK_TIMES = "TIME", "TIME WITH TIME ZONE"  # types of times of day
OFTEN, LEAST = 0.01, 3  # share, and number, of rows from which on ids alternate, or times go back


class Role(NamedTuple):
    """What a column holds: how it is cast, NULL where it is wrong, and where it is found unnamed.

    That is by 'default' (of the argument), 'always', or in files that retvar wrote: its 'own'.
    """

    cast: str
    found: str = ""
    bounds: tuple[float, float] = (-math.inf, math.inf)
    wrong: str = "is missing"

    @property
    def numeric(self) -> bool:
        """Whether text that is no number is wrong there."""
        return self.cast in ("finite", "number", "time")


FINITE = "is missing or not finite"
NEEDS = {
    "finite": "numbers", "number": "numbers", "label": "one number or text",
    "id": "one number or text", "flag": "true and false, or 0 and 1; write 0 in place of blanks",
    "time": "numbers, or dates such as 2026-01-31 or 2026-01-31T12:00; for 31.01.2026 say "
            "day_first=True",
}  # fmt: skip
ROLES = {  # in the order in which their entries are judged
    "reward": Role("finite", "", (-LARGEST_REWARD, LARGEST_REWARD), FINITE),
    "gamma": Role("finite", "own", (0.0, 1.0), FINITE),
    "lam": Role("finite", "own", (0.0, 1.0), FINITE),
    "rho": Role("finite", "own", (0.0, LARGEST_RATIO), FINITE),
    "terminated": Role("flag", "default", wrong=TRUTH),
    "truncated": Role("flag", "default", wrong=TRUTH),
    "target": Role("number"), "behaviour": Role("number"),
    "episode": Role("id", "always"), "entity": Role("id", "always"),
    "action": Role("label", "default"), "time": Role("time", wrong="is missing or no time"),
}  # fmt: skip


def role_of(name: str) -> Role:
    """What a column holds; other rewards are rewards, too."""
    return ROLES.get(name, ROLES["reward"])


class Roles(SimpleNamespace):
    """The column of each role, or None; of `state` and `next_state`, a list of columns.

    `others` are columns of more rewards. And what the states are: `kind` is 'number', 'label' or
    'vector'; `states` their number, where it is given. Times are `dates` or numbers.
    """

    @property
    def named(self) -> dict[str, str]:
        """Columns by role, in the order in which they are judged, without states."""
        found = {name: getattr(self, name) for name in ROLES if getattr(self, name)}
        return found | {f"other{k}": name for k, name in enumerate(self.others)}


def find_roles(table: Table, given: dict[str, Any], policy: bool) -> Roles:
    """Find the columns, and decide by types and by the first rows what the states are."""
    own, rewards = bool(table.metadata.get("own")), _listed(given["reward"])
    if given["cost"]:
        rewards = [*(rewards if rewards != ["reward"] else []), given["cost"]]
    if not rewards or len(set(rewards)) < len(rewards):
        raise InputError("reward", listed(rewards), "must be names of different columns")
    roles = Roles(kind="number", states=None, dates=False)
    roles.reward, *roles.others = (_column(table, "reward", name, "finite") for name in rewards)
    for name, role in list(ROLES.items())[1:]:
        column = given[name]
        if column is None and (role.found == "always" or (own and role.found == "own")):
            column = name
        optional = role.found == "default" or given[name] is None
        setattr(roles, name, _column(table, name, column, role.cast, optional))
    if own and roles.entity is None and "stream" in table.types:
        roles.entity = "stream"
    if roles.terminated is None and given["terminated"] is not False:
        remedy = "name the column that says where episodes end, or say terminated=False where they"
        raise InputError("terminated", "missing", f"{remedy} never do; {_names(table)}")
    several = _find_states(table, roles, given["state"], given["next_state"])
    _refuse_conflicts(roles, policy)
    numbers = [name for name, role in ROLES.items() if role.numeric and name != "time"]
    free = [name for name in numbers if name in table.types and not getattr(roles, name)]
    if free:
        log.warning("columns not used, since not named: %s", listed(free))
    _find_kind(table, roles, several, given["states"])
    if roles.time:
        facts, kind = table.facts(roles.time), table.kind(roles.time)
        roles.dates = kind == "time" or (kind == "text" and 2 * facts.numbers < facts.present)
    for name in filter(None, (roles.terminated, roles.truncated)):
        if not table.work.one(f"SELECT count({table.sql(name).flag}) FROM retvar_first"):
            raise _wrong(table, name, table.facts(name).example or "blank", "flag")
    return roles


def _names(table: Table) -> str:
    return f"{table.name} has {listed(table.types, most=12)}"


def _listed(names: Any) -> list[Any]:
    return list(names) if isinstance(names, list | tuple) else [names] * (names is not None)


def _column(
    table: Table, role: str, name: Any, cast: str = "label", optional: bool = False
) -> str | None:
    """The column of a role, with a type that fits; None where one that is optional is absent."""
    if name is None or name is False or (optional and name == role and name not in table.types):
        return None
    if not isinstance(name, str) or name not in table.types:
        raise InputError(role, literal(name), f"must be the name of a column; {_names(table)}")
    kind = table.kind(name)
    fits = cast in ("label", "id") or kind in {*NUMBERS, "text"} or cast == kind == "time"
    if kind == "nested" or not fits:
        raise _wrong(table, name, table.types[name], cast)
    return name


def _wrong(table: Table, name: str, shown: Any, cast: str) -> InputError:
    """The error for a column that holds something else."""
    return InputError(f"column {name!r} of {table.name}", shown, f"must hold {NEEDS[cast]}")


def _find_states(table: Table, roles: Roles, state: Any, next_state: Any) -> bool:
    """Find the columns of the state and of the next one; return whether they are several."""
    names = _listed(state)
    if state == "state" and "state" not in table.types:
        numbered = (f"state_{k}" for k in range(len(table.types)))
        names = [name for name in numbered if name in table.types] or names
    several = names != [state]
    if next_state == "next_state":
        guessed = [f"next_{name}" for name in names] if several else ["next_state"]
        next_state = guessed if any(name in table.types for name in guessed) else None
    roles.state, roles.next_state = names, _listed(next_state)
    for role, found in (("state", names), ("next_state", roles.next_state or names)):
        for name in found:
            _column(table, role, name)
        if len(set(found)) < len(found) or len(found) != max(len(names), 1):
            raise InputError(role, listed(found), "must be names of different columns, as many")
    return several


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


def _find_kind(table: Table, roles: Roles, several: bool, states: Any) -> None:
    """Find what the states are; of several columns, observations, or labels that are tuples."""
    found = {name: _seen(table, name) for name in (*roles.state, *roles.next_state)}
    seen = set(found.values())
    if states is None and not several:
        roles.states = table.metadata.get("states")
    elif states not in (None, "labels"):
        if several or not arguments.is_integer(states) or states < 1 or "text" in seen:
            remedy = "must be how many there are in one column of numbers, or 'labels'"
            raise InputError("states", literal(states), remedy)
        roles.states = int(states)
    if roles.states is not None:
        return
    words = seen & {"text", "word"}
    if (words and "fraction" in seen) if several else ("text" in seen and len(seen) > 1):
        remedy = "must be of one kind; bin or leave out fractions, or number the text"
        raise InputError("state", ", ".join(f"{x}: {kind}" for x, kind in found.items()), remedy)
    if words or states == "labels":
        roles.kind = "label"
    elif several or "fraction" in seen:
        roles.kind = "vector"
    elif "code" in seen:
        roles.kind = "label"


def _seen(table: Table, name: str) -> str:
    """What the first rows hold: whole numbers, fractions, codes, words, or a type of text."""
    kind, facts = table.kind(name), table.facts(name)
    if kind not in NUMBERS and not (kind == "text" and table.text):
        return "text"
    if facts.numbers < facts.present:  # a few words among fractions are unreadable numbers
        return "fraction" if facts.fractions and 2 * facts.numbers > facts.present else "word"
    if facts.fractions:
        return "fraction"
    return "code" if facts.codes or facts.least < 0 or facts.most >= MOST_STATES else "whole"


# ------------------------------------------------------------------ doubts


def unused(table: Table, roles: Roles) -> list[str]:
    """The columns without a role, of which files that retvar wrote have none."""
    own, used = table.metadata.get("own"), [*roles.named.values(), *roles.state, *roles.next_state]
    return [name for name in table.types if name not in used and not own]


def first_doubts(table: Table, roles: Roles) -> list[str]:
    """Warnings about the first rows: ids that alternate, or times that go back."""
    free = [name for name in unused(table, roles) if table.kind(name) != "nested"]
    if roles.time and table.types[roles.time] in CLOCK_TIMES:
        return [f"column {roles.time!r} has times without dates, so that all are of one day: give "
                "both in one column"]  # fmt: skip
    if not roles.entity:
        ids = [*filter(IDS.search, free), *([roles.episode] if roles.episode else [])]
        mixed = [repr(name) for name in ids if _alternates(table, roles, name)]
        if mixed:
            others = f" (or one of {listed(mixed[1:])})" if mixed[1:] else ""
            return [f"column {mixed[0]} alternates, so that rows of several may be mixed: name "
                    f"entity={mixed[0]}{others}"]  # fmt: skip
    if not roles.time:
        for name in free:
            if _goes_back(table, roles, name):
                return [f"column {name!r} goes back between rows that follow one another, so that "
                        f"they may be out of order: name time={name!r}"]  # fmt: skip
    return []


def _alternates(table: Table, roles: Roles, name: str) -> bool:
    """Whether ids come back after others, in the middle of episodes; counters may start anew."""
    facts, sql = table.facts(name), table.sql(name)
    if facts.numbers == facts.rows:
        return _often(table, roles, sql.number, "x <> before AND again AND x <> least")
    return bool(facts.present) and _often(table, roles, f"hash({sql.id})", "x <> before AND again")


def _goes_back(table: Table, roles: Roles, name: str) -> bool:
    """Whether a time falls from a row to the next of the same entity and episode."""
    kind, facts = table.kind(name), table.facts(name)
    dates = kind == "time" or (kind == "text" and not facts.numbers)
    if kind == "other" or bool(OTHER_DATES.search(name) if dates else not CLOCKS.match(name)):
        return False
    keys = ", ".join(quoted(each) for each in (roles.entity, roles.episode) if each) or "0"
    for day_first in (False, True):
        read = replace(table, reading=table.reading._replace(day_first=day_first))
        value = read.sql(name, dates).time
        if table.work.one(f"SELECT count(*) = count({value}) FROM retvar_first"):
            return _often(table, roles, value, "x < before" + " AND x <> least" * (not dates), keys)
    return False


def _often(table: Table, roles: Roles, value: str, where: str, keys: str = "0") -> bool:
    """Whether a condition holds in many rows that follow one that is no end."""
    flags = (table.sql(name).flag for name in (roles.terminated, roles.truncated) if name)
    ended = " OR ".join(f"coalesce({flag}, false)" for flag in flags) or "false"
    return bool(
        table.work.one(
            f"""SELECT count(*) FILTER ({where} AND NOT over)
            >= greatest({LEAST}, {OFTEN} * count(*)) FROM (
            SELECT x, lag(x) OVER w AS before, lag(ended) OVER w AS over, min(x) OVER () AS least,
            row_number() OVER (PARTITION BY x ORDER BY n) > 1 AS again
            FROM (SELECT {value} AS x, {ended} AS ended, hash({keys}) AS entity, rowid AS n
                  FROM retvar_first) WINDOW w AS (PARTITION BY entity ORDER BY n))"""
        )
    )
