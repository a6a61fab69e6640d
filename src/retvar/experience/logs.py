"""Logs to moves: SQL casts rows, says why one is left out, sorts where need be, and links."""

from __future__ import annotations

import math
import time as clock
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from retvar.experience.moves import LARGEST_RATIO, Moves, Workspace, quoted, selected
from retvar.experience.roles import MOST_STATES, Roles, find_roles, first_doubts, role_of, unused
from retvar.experience.stream import ABOUT, DUPLICATE, MISMATCH, NO_NEXT, Counts, Experience
from retvar.experience.tables import Reading, Table, open_table, paths_of, torn_lines
from retvar.experience.target_policy import TargetPolicy, compared, plain
from retvar.support import arguments
from retvar.support.arguments import choice, flag, is_integer
from retvar.support.errors import InputError

BETWEEN = chr(31)  # separates the parts of labels of several columns
FILE = 2**40  # between the numbers of the first rows of files
MOST_NAMED = 1_000  # states in which rewards are missing
PROBABILITY = "must be a probability"
NEVER = "must be more than 0, or so large that there is a ratio: the log has this action"
UNREADABLE = "{} in {:,} rows, rarely at random; {}correct the rows, or say on_error='skip'"
DATES = {
    False: "write dates such as 2026-01-31, or say day_first=True for 31.01.2026, ",
    True: "write dates such as 31.01.2026, ",
}


class Check(NamedTuple):
    """A condition under which a row cannot be used, and its column; an error, with a remedy."""

    where: str
    reason: str
    column: str
    remedy: str = ""


@dataclass
class Log:
    """A log in a database: its rows are cast, judged, sorted where need be, and linked."""

    table: Table
    roles: Roles
    policy: TargetPolicy | None = None
    on_error: str | None = None
    keep_duplicates: bool = False
    labels: list[Any] = field(default_factory=list)
    actions: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        r, self.work = self.roles, self.table.work
        self.width = len(r.state) if r.kind == "vector" else 0
        self.states = [f"s{k}" for k in range(max(self.width, 1))]
        self.after = [f"z{k}" for k in range(max(self.width, 1)) if r.next_state]  # as logged
        self.keys = [name for name in ("entity", "time") if getattr(r, name)]

    def moves(self, counts: Counts, *, acting: bool = False) -> Moves:
        """Read all rows and link them; `counts` then says which were left out."""
        self.counts, self.acting, self.named = counts, acting, self.roles.named
        if not (acting or self.policy):
            self.named.pop("action", None)
        self._cast()
        self._judge()
        good, in_order = self._survey()
        left_out = self.counts.rejected.total()
        rows = "judged" if in_order else self._sort()
        found = self._linked(rows)
        good -= self.counts.rejected.total() - left_out  # duplicates
        counts.rejected += Counter({NO_NEXT: good - len(found)})
        self.work.execute(f"DROP {self.kind} IF EXISTS rows; DROP TABLE IF EXISTS sorted")
        return found

    def entities(self) -> list[int]:
        """A number for each entity whose rows are linked, which is equal in all pieces of a log."""
        r = self.roles
        if r.next_state or not self.keys:
            return []
        key = f"hash({self.table.sql(r.entity).text if r.entity else 0})"
        return [x for (x,) in self.work.all(f"SELECT DISTINCT {key} FROM {self.table.parts[0]}")]

    # -------------------------------------------------------------- cast

    def _cast(self) -> None:
        """Cast every column to the type of its role: a view, or a table of what is read once.

        Rows have even numbers, from 2 on in the first file, from `FILE` on in the next; a line that
        is no row has the odd one before the row that follows.
        """
        casts, parts, self.torn = _named(self._columns()), self.table.parts, False
        self.kind = "TABLE" if self.table.text or len(parts) > 1 else "VIEW"
        torn_lines(self.work)  # forget those of a first look
        for file, part in enumerate(parts):  # the order of a union is not theirs
            start = "INSERT INTO rows" if file else f"CREATE OR REPLACE TEMP {self.kind} rows AS"
            n = f"{file * FILE} + 2 * row_number() OVER ()"
            self.work.execute(f"{start} SELECT {n} AS n, {casts} FROM {part}")
            if lines := torn_lines(self.work):
                before = file * FILE + 2 * (np.array(lines) - np.arange(len(lines))) - 3
                self.work.insert("INSERT INTO rows (n)", {"n": before})
                self.torn = True

    def _columns(self) -> dict[str, str]:
        """SQL for each role; states are s0, s1, …, and next ones z0."""
        r, t = self.roles, self.table
        columns = {"terminated": "false", "truncated": "false"}
        for name, column in self.named.items():
            columns[name] = getattr(t.sql(column, r.dates), role_of(name).cast)
        for names, states in ((self.states, r.state), (self.after, r.next_state)):
            columns |= zip(names, self._state(states), strict=False)
        if r.time:
            simple = [quoted(name) for name in t.types if t.kind(name) != "nested"]
            columns["equal"] = f"hash({', '.join(simple)})"
        numbers = [x for name, x in self.named.items() if role_of(name).numeric]
        if r.kind != "label":
            numbers += [*r.state, *r.next_state]
        self.texts = [x for x in dict.fromkeys(numbers) if t.kind(x) == "text"]
        columns["unreadable"] = _case(
            f"CASE WHEN {t.sql(x).number if x != r.time else columns['time']} IS NULL "
            f"THEN NOT retvar_absent({quoted(x)}::VARCHAR) END" for x in self.texts
        )  # fmt: skip
        return columns

    def _state(self, columns: list[str]) -> list[str]:
        """SQL for a state: a number, a label as text, or numbers."""
        sql = [self.table.sql(column) for column in columns]
        if not columns or self.width:
            return [each.finite for each in sql]
        if self.roles.kind == "label":
            return [f" || chr({ord(BETWEEN)}) || ".join(each.label for each in sql)]
        value = sql[0].whole if self.roles.states is None else sql[0].codes
        most = (self.roles.states or MOST_STATES) - 1
        return [f"CASE WHEN {value} BETWEEN 0 AND {most} THEN {value}::INTEGER END"]

    # -------------------------------------------------------------- judge

    def _judge(self) -> None:
        """Make a view that says of each row, as `why`, which check it fails first."""
        rows, ratio = "rows", ", target / behaviour AS rho" * bool(self.roles.behaviour)
        if self.policy is not None:
            self._ask(self.policy)
            rows += f" LEFT JOIN retvar_policy USING ({', '.join([*self.states, 'action'])})"
        self.checks = self._checks()
        why = _case(check.where for check in self.checks)
        self.work.execute(
            f"CREATE OR REPLACE TEMP VIEW judged AS SELECT *, {why} AS why "
            f"FROM (SELECT *{ratio} FROM {rows})"
        )

    def _checks(self) -> list[Check]:
        """All checks; a row is counted under the first that it fails."""
        r, b, found = self.roles, self.roles.behaviour, list[Check]()
        if self.torn:
            found.append(Check("n % 2 = 1", "wrong number of fields", r.reward))
        for k, name in enumerate(self.texts):
            what, remedy = "time" if name == r.time else "number", UNREADABLE
            remedy *= not self.on_error
            found.append(Check(f"unreadable = {k}", f"{name} is no {what}", name, remedy))
        if b:
            small = f"{b} is so small that the ratio is beyond {LARGEST_RATIO:g}"
            found += [
                Check("behaviour NOT BETWEEN 0 AND 1", "", b, PROBABILITY),
                Check("target NOT BETWEEN 0 AND 1", "", r.target or b, PROBABILITY),
                Check("target IS NOT NULL AND (behaviour = 0 OR NOT isfinite(rho))", "", b, NEVER),
                Check(f"rho > {LARGEST_RATIO!r}", small, b),
            ]
        for name, column in self.named.items():
            least, most = role_of(name).bounds
            found.append(Check(f"{name} IS NULL", f"{column} {role_of(name).wrong}", column))
            if least > -math.inf:
                outside = f"{column} is not within [{least:g}, {most:g}]"
                found.append(Check(f"{name} NOT BETWEEN {least!r} AND {most!r}", outside, column))
        wrong = {
            "number": f"is no whole number from 0 to {(r.states or MOST_STATES) - 1:,}",
            "vector": "is missing or not finite", "label": "is missing",
        }[r.kind]  # fmt: skip
        for state, column in zip(self.states, r.state, strict=False):
            name = column if self.width > 1 else "state"
            found.append(Check(f"{state} IS NULL", f"{name} {wrong}", column))
        if r.next_state:
            lacking = f"({_any_null(self.after)}) AND NOT terminated"
            found.append(Check(lacking, f"next_state {wrong}", r.next_state[0]))
        if self.policy:
            found.append(Check("target IS NULL", "the target policy has no probability", b))
        return found

    def _ask(self, policy: TargetPolicy) -> None:
        """A table of probabilities under the target policy, which is asked once for each pair."""
        names = [*self.states, "action"]
        keys = ", ".join(names)
        self.work.execute(
            f"""CREATE OR REPLACE TEMP TABLE asked AS SELECT {keys}, count(*) AS times FROM rows
            WHERE NOT ({_any_null(names)}) GROUP BY ALL ORDER BY min(n);
            CREATE OR REPLACE TEMP TABLE retvar_policy AS
            SELECT {keys}, NULL::DOUBLE AS target FROM asked LIMIT 0"""
        )
        for part in Moves(self.work, "asked", dict.fromkeys([*names, "times"], 0)):
            states: list[Any] = list(np.stack([part[s] for s in self.states], axis=1))
            if not self.width:
                states = [self._label(s) for s in part["s0"].tolist()]
            actions = [plain(self._text_label(a, "action")) for a in part["action"].tolist()]
            if policy.rows is not None and not self.width:
                self.counts.policy = policy.rows
                for s, a, times in zip(states, actions, part["times"].tolist(), strict=True):
                    self.counts.taken[compared(s), compared(a)] += times
            part["p"] = policy.ask(states, actions)
            self.work.insert("INSERT INTO retvar_policy", part, f"{keys}, nullif(p, 'nan')")

    def _survey(self) -> tuple[int, bool]:
        """Count rows that can be used, and others by reason; say whether all are in order.

        They are where they come entity by entity, and by times that differ.
        """
        r = self.roles
        apart = "entity <> last_entity" if r.entity else "false"
        later = "time > last_time" if r.time else "true"
        present = " AND ".join(f"{key} IS NOT NULL" for key in self.keys) or "true"
        before = "".join(f", lag({key}) OVER () AS last_{key}" for key in self.keys)
        total, bad, changes, in_order = self.work.all(
            f"""SELECT count(*), count(why), count(*) FILTER ({apart}),
            bool_and({present} AND coalesce({apart} OR {later}, n = 2))
            FROM (SELECT *{before} FROM judged)"""
        )[0]
        if r.entity:
            entities = self.work.one("SELECT count(DISTINCT entity) FROM rows")
            self.counts.entities += entities
            in_order = in_order and changes == entities - 1
        query = "SELECT why, count(*), min(n) AS n FROM judged WHERE why IS NOT NULL"
        for why, times, n in self.work.all(f"{query} GROUP BY why ORDER BY n") if bad else ():
            check = self.checks[why]
            self.counts.rejected[self._explained(check, times, n)] += times
            if check.where == "reward IS NULL" and not self.width:
                states = f"SELECT s0, count(*) AS k FROM judged WHERE why = {why} GROUP BY s0"
                most = self.work.all(f"{states} ORDER BY k DESC, min(n) LIMIT {MOST_NAMED}")
                self.counts.missing_rewards.update({self._label(s): k for s, k in most})
        return total - bad, in_order and not (self.torn or self.policy)

    def _explained(self, check: Check, times: int, n: int) -> str:
        """The reason why rows are left out; an error where they must not be."""
        remedy, t = check.remedy, self.table
        if self.on_error == "raise" and not remedy:
            remedy = f"{check.reason}; correct the row"
        if not (remedy or check.where.startswith("unreadable")):
            return check.reason
        file, row = n // FILE, n % FILE // 2
        query = f"SELECT {quoted(check.column)}::VARCHAR FROM {t.parts[file]}"
        value = self.work.one(f"{query} LIMIT 1 OFFSET {row - 1}")
        ways = DATES[t.reading.day_first]
        if check.column != self.roles.time:
            ways = t.remedy(t.parts[file], check.column, str(value))
        if not remedy:
            return f"{check.reason}, such as {value!r}; {ways}".rstrip(", ;")
        place = f"{t.files[file] if t.files else t.name}, row {row:,}: {check.column}"
        raise InputError(place, value, remedy.format(check.reason, times, ways))

    # -------------------------------------------------------------- sort

    def _sort(self) -> str:
        """A table of the rows by entity and time; without duplicates."""
        order = ", ".join([*self.keys, "n"])
        unknown = "SELECT count(*) > count(entity) FROM rows"
        if self.keys == ["entity"] and self.work.one(unknown):  # these are of the row before
            order = "last_value(entity IGNORE NULLS) OVER (ORDER BY n), n"
        query = f"CREATE OR REPLACE TEMP TABLE sorted AS SELECT * FROM judged ORDER BY {order}"
        self.work.in_parallel(f"{query}; DROP {self.kind} rows")
        if self.roles.time:
            self._count_duplicates()
        return "sorted"

    def _count_duplicates(self) -> None:
        """Remove rows that equal another of their entity and time; count ties in time."""
        same = " AND ".join(f"{key} = {{0}}({key}) OVER ()" for key in self.keys)
        tied = f"SELECT *, {same.format('lag')} AS tied, {same.format('lead')} AS next FROM sorted"
        self.work.execute(
            f"""CREATE OR REPLACE TEMP TABLE again AS SELECT n FROM ({tied})
            WHERE (tied OR next) AND why IS NULL
            QUALIFY row_number() OVER (PARTITION BY {", ".join(self.keys)}, equal ORDER BY n) > 1"""
        )
        twice = self.work.one("SELECT count(*) FROM again")
        self.counts.duplicates += twice
        if twice and not self.keep_duplicates:
            self.counts.rejected[DUPLICATE] += twice
            self.work.execute("DELETE FROM sorted WHERE n IN (SELECT n FROM again)")
        self.counts.ties += self.work.one(f"SELECT count(*) FILTER (tied) FROM ({tied})")

    # -------------------------------------------------------------- link

    def _linked(self, rows: str) -> Moves:
        """Give each row the state of the next one, where that goes on from it.

        An episode is cut where the next row is of another one, is left out, or has another state
        than the next state that is logged. Rows without a next state are left out, except those of
        pairs, whose action counts.
        """
        r, states = self.roles, self.states
        near = [name for name in ("entity", "episode") if getattr(r, name)]
        near += [f"n // {FILE}"] * (not self.keys and len(self.table.parts) > 1)
        same = " AND ".join(f"lead({x}) OVER () = {x}" for x in near or ["true"])
        logged = list(zip(states, self.after, strict=False))
        differ = " OR ".join(f"{z} <> lead({s}) OVER ()" for s, z in logged) or "false"
        after = {f"to_{s}": f"CASE WHEN goes_on THEN lead({s}) OVER () END" for s in states}
        after |= {f"to_{s}": f"coalesce({z}, {after[f'to_{s}']})" for s, z in logged}
        columns = {
            "state": states,
            "reward": ["reward", *(f"other{k}" for k in range(len(r.others)))],
            "next_state": [
                f"CASE WHEN terminated THEN {s} ELSE coalesce(to_{s}, {s}) END" for s in states
            ],
            "terminated": ["terminated"],
            "truncated": [
                "truncated OR NOT (terminated OR goes_on AND NOT lost_next AND NOT differ)"
            ],
        }
        extra = {"rho": r.rho or r.behaviour, "gamma": r.gamma, "lam": r.lam, "action": self.acting}
        columns |= {name: [name] for name, there in extra.items() if there}
        widths = {name: self.width * name.endswith("state") for name in columns}
        widths["reward"] = len(r.others) + 1 if r.others else 0
        name = "acting_moves" if self.acting else "moves"
        self.work.execute(
            f"""CREATE OR REPLACE TEMP TABLE {name} AS WITH
            coded AS (SELECT * REPLACE ({_named({"n": "n"} | self._codes(rows))})
                      FROM {rows} {"WHERE time IS NOT NULL" * bool(r.time)}),
            ahead AS (SELECT *, coalesce({same}, false) AND NOT truncated AS goes_on,
                      coalesce({differ}, false) AS differ FROM coded),
            followed AS (SELECT *, {_named(after)} FROM ahead),
            kept AS (SELECT *, why IS NOT NULL OR NOT terminated AND NOT {self.acting}
                     AND ({_any_null([*after])}) AS dropped FROM followed),
            marked AS (SELECT *, coalesce(lead(dropped) OVER (), true) AS lost_next FROM kept)
            SELECT {selected(columns, widths)},
            {"differ AND goes_on AND NOT (lost_next OR terminated) AS differs" * bool(logged)}
            FROM marked WHERE NOT dropped"""
        )
        found = Moves(self.work, name, widths)
        self.counts.unmarked_ends += Counter({MISMATCH: found.count("differs") if logged else 0})
        return found

    def _codes(self, rows: str) -> dict[str, str]:
        """SQL for labels, as their numbers in the order of their appearance."""
        r, codes = self.roles, dict[str, str]()
        if r.kind == "label":
            query = f"SELECT s0 AS x, n FROM {rows}"
            if r.next_state:  # those of rows that are no end
                query += f" UNION ALL SELECT z0, n + 1 FROM {rows} WHERE terminated IS NOT true"
            codes |= dict.fromkeys(["s0", *self.after], self._number("s0", query, self.labels))
        if self.acting:
            query = f"SELECT action AS x, n FROM {rows}"
            codes["action"] = self._number("action", query, self.actions)
        return {x: code.format(x) for x, code in codes.items()}

    def _number(self, name: str, query: str, labels: list[Any]) -> str:
        """Number the labels x at n, by a type of theirs; return SQL for the number of one."""
        enum = f"enum_{name}"
        self.work.execute(
            f"""DROP TYPE IF EXISTS {enum}; CREATE TYPE {enum} AS ENUM (
            SELECT x FROM ({query}) WHERE x IS NOT NULL GROUP BY x ORDER BY min(n))"""
        )
        texts = self.work.one(f"SELECT enum_range(NULL::{enum})")
        if len(texts) > MOST_STATES:
            remedy = "too many to be states; name columns of numbers as observations"
            raise InputError("state", f"more than {MOST_STATES:,} different ones", remedy)
        own = [self._text_label(text, name) for text in texts]
        number = {label: k for k, label in enumerate(dict.fromkeys([*labels, *own]))}
        code = f"enum_code(TRY_CAST({{}} AS {enum}))"
        if labels:  # numbered before
            code = f"({[number[label] for label in own]})[{code} + 1]"
        labels[:] = number
        return f"{code}::INTEGER"

    def _label(self, state: Any) -> Any:
        """The label of a state in the database; None for no state."""
        return state if state is None or self.roles.kind != "label" else self._text_label(state)

    def _text_label(self, text: Any, role: str = "state") -> Any:
        """The label that a text in the database stands for; of several columns, a tuple."""
        columns = [self.roles.action] if role == "action" else self.roles.state
        if len(columns) > 1:
            return tuple(plain(part) for part in text.split(BETWEEN))
        kind = self.table.kind(columns[0])
        if kind == "flag":
            return text == "true"
        return int(text) if kind == "whole" else plain(float(text)) if kind == "number" else text


def _named(columns: dict[str, str]) -> str:
    return ", ".join(f"{sql} AS {name}" for name, sql in columns.items())


def _any_null(names: list[str]) -> str:
    return " OR ".join(f"{name} IS NULL" for name in names)


def _case(conditions: Iterable[str]) -> str:
    """SQL for the number of the first condition that holds."""
    cases = " ".join(f"WHEN {where} THEN {k}" for k, where in enumerate(conditions))
    return f"(CASE {cases} END)::USMALLINT" if cases else "NULL"


# ------------------------------------------------------------------ what users call


def from_table(
    source: Any,
    *,
    state: str | Sequence[str] = "state",
    action: str = "action",
    reward: str | Sequence[str] = "reward",
    cost: str | None = None,
    next_state: str | Sequence[str] = "next_state",
    terminated: str | bool = "terminated",
    truncated: str = "truncated",
    entity: str | bool | None = None,
    time: str | None = None,
    episode: str | bool | None = None,
    gamma: str | None = None,
    lam: str | None = None,
    behaviour: str | None = None,
    target: str | None = None,
    target_policy: Any = None,
    rho: str | None = None,
    on_error: str | None = None,
    duplicates: str = "drop",
    force: bool = False,
    states: int | str | None = None,
    encoding: str | None = None,
    decimal: str = ".",
    thousands: str = "",
    day_first: bool = False,
    memory: str | None = None,
) -> Experience:
    """Read logged transitions, one per row.

    Rows of an entity follow one another, in the order of the log or of `time`. Where they do not
    (another episode begins, a row is left out, the next state is not the next row's state), the row
    before is marked truncated. Columns are found under the names of the arguments, except those
    that change what is estimated (γ, λ, ρ, probabilities) and `time`: these are used only where
    they are named. Rows are numbered from 1, without the header. ``experience.understood`` says in
    one line what was read, ``experience.warnings`` lists signs that it was not what was meant.

    Parameters
    ----------
    source
        Path or pattern of ``.parquet``, ``.csv`` or ``.csv.gz`` files, a folder, a list of paths,
        or a table: a mapping of columns, a DataFrame of pandas or polars, a ``pyarrow.Table``.
    state, next_state
        One column: whole numbers are states, fractions observations, all else labels. Several (or
        ``state_0``, ``state_1``, …): observations; where one holds text, their combinations are
        labels. Without `next_state` it is the state of the next row; the last row of an episode
        that did not terminate then has none and is left out.
    action
        For `target_policy` and for ``estimate(…, actions=True)``.
    reward, cost
        Columns of rewards, and of costs, in place of rewards: values are then expected sums of
        costs. Several rewards, or both: :func:`retvar.estimate` tells how they vary together.
    terminated, truncated
        Whether the episode terminated there, or was cut off. False: episodes never terminate.
    entity, episode
        Ids of the patient, user or device, whose rows may be mixed with those of others, and of its
        episode. False: there is none, whatever the columns are called.
    time
        Numbers, dates or times by which the rows of an entity are sorted; rows of one time keep
        their order.
    gamma, lam, rho
        γ and λ of the transition, importance ratio.
    behaviour, target
        Probability of the action under either policy, which give ρ.
    target_policy
        In place of `target`: an array of probabilities [state, action] or of actions, a table (or
        file) with state, action and probability, or a function of a state and an action.
    on_error
        By default rows with missing or invalid entries are left out and counted by reason, and
        text where a number is needed is an error. ``"skip"`` leaves such rows out, too;
        ``"raise"`` stops at the first bad row.
    duplicates
        With `time`, rows that equal another in all columns: ``"drop"`` or ``"keep"``.
    force
        Go on where more than half of the rows are left out, which is an error otherwise.
    states
        Number of states; ``"labels"`` to use numbers as labels, which negative ones always are.
    encoding, decimal, thousands, day_first
        How text is written: ``"latin-1"``, ``","``, ``"."``, dates such as 31.01.2026.
    memory
        How much memory reading may take, such as ``"2GB"``; by default a quarter of the machine's.
        What is more goes to a temporary folder.

    Examples
    --------
    >>> log = from_table({"state": ["a", "b", "a"], "reward": [1.0, 2.0, float("nan")],
    ...                   "terminated": [False, True, False]})
    >>> [(t.state, t.reward, t.next_state, t.terminated) for t in log], log.labels
    ([(0, 1.0, 1, False), (1, 2.0, 1, True)], ['a', 'b'])
    >>> log.counts.rejected
    Counter({'reward is missing or not finite': 1})
    """
    given = {name: value for name, value in locals().items() if name != "source"}
    if on_error is not None:
        choice("on_error", on_error, ("skip", "raise"))
    choice("duplicates", duplicates, ("drop", "keep"))
    for name in ("decimal", "thousands"):
        if not isinstance(given[name], str) or len(given[name]) > 1:
            raise InputError(name, given[name], "must be one sign, such as ','")
    if decimal == thousands:
        raise InputError("thousands", thousands, "must not be the sign of decimals, too")
    reading = Reading(encoding, decimal, thousands, flag("day_first", day_first))
    work = Workspace(memory)
    grows = source if isinstance(source, Growing) else None
    table = open_table(grows.complete(work) if grows else source, work, reading)
    table.name = str(grows.source) if grows else table.name
    roles, policy = find_roles(table, given, target_policy is not None), None
    if target_policy is not None:
        policy = TargetPolicy.of(target_policy, roles.state, roles.action or "action", reading)
    settings = roles, policy, on_error, duplicates == "keep"
    found = _experience(Log(table, *settings))
    found.fixed_states, found.force = is_integer(states), flag("force", force)
    found.cost = cost or ""
    found.rewards = (roles.reward, *roles.others) if roles.others else ()
    found.counts.suspicions, found.counts.unused = first_doubts(table, roles), unused(table, roles)
    if grows:
        found.grown = partial(grows.grown, given)
    elif table.files:
        files = [str(Path(each).resolve()) for each in table.files]
        found.pieces = lambda: [Piece(file, memory, reading, settings) for file in files]
    return found


def _experience(log: Log) -> Experience:
    """A log as experience: it is read when the first transition is asked for."""
    roles, known = log.roles, {k: x for k, x in log.table.metadata.items() if k in ABOUT}
    tables: dict[bool, tuple[Moves, Counts]] = {}

    def source(counts: Counts, acting: bool = False) -> Moves:
        if acting not in tables:
            own = Counts()
            tables[acting] = log.moves(own, acting=acting), own
        counts.merge(tables[acting][1])
        return tables[acting][0]

    if roles.kind == "vector":
        known = {"names": list(roles.state)} | known | {"width": len(roles.state)}
        known |= {name: np.array(known[name], float) for name in ("low", "high") if name in known}
    elif roles.kind == "label":
        known["labels"] = log.labels
    else:
        labels = [tuple(x) if isinstance(x, list) else x for x in known.get("labels", ())]
        known |= {"states": roles.states, "labels": labels or None}
    known |= {"grid": tuple(known["grid"])} if "grid" in known else {}
    known["columns"] = list(roles.state)
    if roles.action:
        known |= {"with_actions": partial(source, acting=True), "actions": log.actions}
    found = Experience(log.table.name, source, is_log=True, length=log.table.rows, **known)
    places = {name: getattr(roles, name) for name in ("entity", "time", "episode")}
    found.counts.named = {name: column for name, column in places.items() if column}
    return found


@dataclass
class Growing:
    r"""A log that grows, as the source of :func:`from_table`: a CSV file, a folder or a pattern.

    ``experience.grown()`` waits until something was added, and reads everything again. A CSV file
    is read up to its last complete line. It is looked at `every` so many seconds; `wait` is called
    instead of sleeping, and returns False to end the log.

    >>> import tempfile, retvar as rv
    >>> path = Path(tempfile.mkdtemp()) / "log.csv"
    >>> _ = path.write_text("state,reward,next_state,terminated\n0,1,1,0\n1,2,0,1\n0,5")
    >>> log = rv.experience.from_table(Growing(path, wait=lambda: False))
    >>> [t.reward for t in log]
    [1.0, 2.0]
    """

    source: str | Path
    every: float = 1.0
    wait: Callable[[], bool] | None = None

    def __post_init__(self) -> None:
        self.every = arguments.seconds("every", self.every)

    def _sizes(self) -> dict[Path, int]:
        return {path: path.stat().st_size for path in paths_of(self.source)}

    def complete(self, work: Workspace) -> list[Path]:
        """The files that are there now; of one CSV file, a copy of its complete lines."""
        self._seen = self._sizes()
        first, *others = self._seen
        if others or not first.name.lower().endswith(".csv"):
            return [first, *others]
        copy = Path(work.folder) / first.name
        with first.open("rb") as old, copy.open("wb") as new:
            new.writelines(line for line in old if line.endswith(b"\n"))
        return [copy]

    def grown(self, given: dict[str, Any]) -> Experience | None:
        """Wait until a size has changed, and read all of it; None where it has ended."""
        while self.wait is None or self.wait():
            if self.wait is None:
                clock.sleep(self.every)
            if self._sizes() != self._seen:
                return from_table(self, **given)
        return None


class Piece(NamedTuple):
    """One file of a log, which a worker can read: its columns and states are decided already."""

    file: str
    memory: str | None
    reading: Reading
    settings: tuple[Any, ...]  #: of its Log

    def open(self) -> tuple[Experience, list[int]]:
        """The file as experience, and ids of its entities.

        Labels are numbered in each piece: ``experience.labels`` tells them.
        """
        log = Log(open_table(self.file, Workspace(self.memory), self.reading), *self.settings)
        return _experience(log), log.entities()


def refuse_split(seen: dict[int, str], file: str, ids: list[int]) -> None:
    """Refuse an entity that lies in two files; `seen` are those of the files before."""
    for each in seen.keys() & ids:
        remedy = (
            f"in {seen[each]} and in {file}, which workers read apart; write each entity into one "
            "file, or log next states (next_state)"
        )
        raise InputError("cluster", "an entity", remedy)
    seen |= dict.fromkeys(ids, file)
