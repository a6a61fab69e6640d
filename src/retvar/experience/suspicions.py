"""Signs that a log was not read as it was meant, each with the probable remedy."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from retvar.experience.moves import quoted
from retvar.experience.target_policy import never_taken
from retvar.support.format import count, listed, reasons

if TYPE_CHECKING:
    from retvar.experience.roles import Roles
    from retvar.experience.stream import Counts
    from retvar.experience.tables import Table


IDS = re.compile(
    r"(^|_)(?i:patient|user|device|entity|subject|customer|client|person|agent|unit|machine|vehicle|"
    r"session|trajectory|traj|stay|case|player|env|environment|episode|stream|id|ids|uuid|key)$"
    r"|[a-z]I[dD]$"
)
CLOCKS = re.compile(r"(time|timestamp|time_?step|step|t|ts)$", re.IGNORECASE)  # of numbers
DATES = re.compile(r"(?!.*(birth|due|dob)).*(time|timestamp|date|when)$", re.IGNORECASE)
MISMATCH = "next state is not the state of the next row"
NO_NEXT = "no next state"
NO_NEXT_ACTION = "no next action"
DUPLICATE = "duplicate row"
MANY = 0.05  # share of rows whose loss is warned of
MANY_REWARDS = 0.01  # share of rewards whose loss is warned of
OFTEN, LEAST = 0.01, 3  # share, and number, of rows from which on ids alternate, or times go back


def doubts(counts: Counts, rewards: str = "rewards") -> list[str]:
    """Warnings about what was counted in a log of rewards, or of costs."""
    rows, lost, missing = count(counts.rows, "row"), counts.lost, counts.missing_rewards.total()
    broken = counts.unmarked_ends[MISMATCH]
    kept = "left out" if counts.rejected[DUPLICATE] else "kept"
    found = [
        (lost > MANY * counts.rows,
         f"{lost:,} of {rows} {'is' if lost == 1 else 'are'} left out "
         f"({reasons(+counts.rejected)}): {remedy(counts)}"),
        (0 < missing >= MANY_REWARDS * counts.rows,
         f"{rewards} are missing in {missing:,} of {rows} ({counts.where_missing}), and rarely at "
         "random: values there and before are biased"),
        (broken > MANY * max(counts.transitions, 1),
         f"after {broken:,} of {count(counts.transitions, 'row')} the next row does not go on in "
         f"the next state: {_order_remedy(counts)}"),
        (counts.ties > MANY * counts.rows and not counts.suspicions,
         f"{count(counts.ties, 'row')} of {counts.rows:,} have the time of the row before, so that "
         "their order is that of the log: name a finer column time="),
        (counts.duplicates > 0,
         f"{count(counts.duplicates, 'duplicate row')}, {kept}: export the log anew"),
    ]  # fmt: skip
    coverage = never_taken(counts.policy, counts.taken, counts.largest_ratio)
    return [*counts.suspicions, *(text for holds, text in found if holds), *coverage]


def remedy(counts: Counts) -> str:
    """What to do about the most common reason of rows left out."""
    if counts.suspicions:
        return counts.suspicions[0]
    commonest = max(counts.rejected, key=lambda reason: counts.rejected[reason], default="")
    return {
        NO_NEXT: f"{_order_remedy(counts)}; or name the column next_state=",
        NO_NEXT_ACTION: "estimate without actions, which need the row that follows, to use all",
    }.get(commonest, "correct these rows")


def _order_remedy(counts: Counts) -> str:
    """What to do where rows do not follow one another."""
    roles = [f"{role}=" for role in ("entity", "time", "episode") if role not in counts.named]
    if not roles:
        return "check the columns entity=, time= and episode="
    return f"rows may be of several entities, or out of order; name {' or '.join(roles)}"


# ------------------------------------------------------------------ of the first rows


def first_doubts(table: Table, roles: Roles) -> list[str]:
    """Warnings about the first rows: ids that alternate, or times that go back."""
    free = [name for name in table.types if name not in roles.used and table.kind(name) != "nested"]
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
    if kind == "other" or not (DATES.match(name) if dates else CLOCKS.match(name)):
        return False  # numbers may be a duration
    value = table.sql(name, dates).time
    if table.work.one(f"SELECT count(*) > count({value}) FROM retvar_first"):
        return False
    keys = ", ".join(quoted(each) for each in (roles.entity, roles.episode) if each) or "0"
    return _often(table, roles, value, "x < before" + " AND x <> least" * (not dates), keys)


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
