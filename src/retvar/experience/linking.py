"""Logs to moves: one query casts, a second says why a row is left out and sorts, a third links."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retvar.experience.moves import LARGEST_RATIO, Moves, quoted, selected
from retvar.experience.roles import ROLES, Roles
from retvar.experience.stream import Counts
from retvar.experience.suspicions import DUPLICATE, MISMATCH, NO_NEXT
from retvar.experience.tables import MOST_STATES, Table, rejected_lines
from retvar.experience.target_policy import TargetPolicy, compared, plain
from retvar.support.errors import InputError

MALFORMED = "wrong number of fields"
BETWEEN = chr(31)  # separates the parts of labels of several columns
MOST_NAMED = 1_000  # states in which rewards are missing
PROBABILITY = "must be a probability"
NEVER = "must be more than 0, or so large that there is a ratio: the log has this action"
UNREADABLE = "{} in {:,} rows, rarely at random; {}, correct the rows, or say on_error='skip'"
NUMBERS = "say thousands=',' or decimal=',' if numbers are written so"
DATES = "write dates such as 2026-01-31, or say day_first=True for 31.01.2026"


@dataclass
class Log:
    """A log in a database, and how it is read: `rows` are cast, then `sorted`, then linked."""

    table: Table
    roles: Roles
    policy: TargetPolicy | None = None
    on_error: str | None = None
    keep_duplicates: bool = False
    labels: list[Any] = field(default_factory=list)
    actions: list[Any] = field(default_factory=list)

    def moves(self, counts: Counts, *, acting: bool = False) -> Moves:
        """Read all rows and link them; `counts` then says which were left out."""
        self.work, self.counts, self.acting = self.table.work, counts, acting
        self.width = len(self.roles.state) if self.roles.kind == "vector" else 0
        self.states = [f"s{k}" for k in range(max(self.width, 1))]
        self.after = [f"z{k}" for k in range(max(self.width, 1))]
        self._load()
        self._sort()
        if self.roles.time:
            self._count_duplicates()
        return self._link()

    def entities(self) -> NDArray[np.uint64]:
        """A number for each entity and episode, which is equal in all pieces of a log.

        Without entities only neighbouring rows are linked: the first and the last episode.
        """
        names = [name for name in (self.roles.entity, self.roles.episode) if name]
        if not names:
            return np.zeros(0, dtype=np.uint64)
        key = f"hash({', '.join(self.table.sql(name).text for name in names)})"
        ends = "unnest([arg_min(x, n), arg_max(x, n)]) AS x"
        wanted = "DISTINCT x" if self.roles.entity else ends
        query = f"SELECT {key} AS x, row_number() OVER () AS n FROM ({self.table.query(names)})"
        found = self.table.work.execute(f"SELECT {wanted} FROM ({query})").fetchnumpy()
        return np.asarray(found["x"])

    def _load(self) -> None:
        """Cast every column to the type of its role.

        Rows have even numbers; a line that is no row stands before the row that follows it.
        """
        self.columns = self._columns()
        columns = ", ".join(f"{sql} AS {name}" for name, sql in self.columns.items())
        known = f"NOT ({_any_null([*self.states, *['entity'] * bool(self.roles.entity)])})"
        needed = list(self.table.types) if self.roles.time else sorted(self.roles.used)
        rejected_lines(self.table)  # forget those of a first look
        self.starts: list[int] = []  # rows before each file
        self.torn, first = 0, 0
        for file in range(len(self.table.parts)):  # the order of a union is not that of its parts
            start = "INSERT INTO rows" if file else "CREATE OR REPLACE TEMP TABLE rows AS"
            self.work.execute(
                f"{start} SELECT *, {known} AS known, false AS torn FROM ("
                f"SELECT 2 * (row_number() OVER () - 1 + {first}) AS n, {file}::UINTEGER AS file, "
                f"{columns} FROM ({self.table.query(needed, file)}))"
            )
            self.starts.append(first)
            lines = np.array(rejected_lines(self.table), dtype=np.int64)
            if lines.size and self.on_error == "raise":
                where = f"{self.table.files[file]}, row {lines[0] - 1:,}"
                raise InputError(where, MALFORMED, "correct the row")
            self.torn += lines.size
            before = 2 * (first + lines - 2 - np.arange(lines.size)) - 1
            self.work.insert("INSERT INTO rows (n, known, torn)", {"n": before}, "n, false, true")
            first = self.work.one("SELECT count(*) FROM rows") - self.torn

    def _columns(self) -> dict[str, str]:
        """SQL for each internal column, called as its role; states are s0, s1, …, next ones z0."""
        r, t = self.roles, self.table
        columns, numbers = {"terminated": "false", "truncated": "false"}, dict[str, str]()
        for name, role in ROLES.items():
            if (column := getattr(r, name)) and role.holds in ("number", "flag"):
                columns[name] = getattr(t.sql(column), role.holds)
                numbers |= {column: columns[name]} if role.holds == "number" else {}
        for other, column in self._others.items():
            columns[other] = numbers[column] = t.sql(column).number
        if r.kind != "label":
            numbers |= {name: t.sql(name).number for name in r.all_states}
        if r.entity:
            columns["entity"] = quoted(r.entity)
        if r.episode:
            columns["episode"] = t.sql(r.episode).text
        if r.action and (self.acting or self.policy is not None):
            columns["action"] = t.sql(r.action).label
        for names, states in ((self.states, r.state), (self.after, r.next_state or [])):
            columns |= zip(names, self._state(states), strict=False)
        if r.time:
            simple = [quoted(name) for name in t.types if t.kind(name) != "nested"]
            columns["time"] = numbers[r.time] = t.time(r.time, r.dates)
            columns["equal"] = f"hash({', '.join(simple)})"
        self.texts = [x for x in numbers if t.kind(x) == "text"]
        if self.texts:  # the number of the column whose text cannot be read
            columns["u"] = _case(t.unreadable(x, numbers[x]) for x in self.texts)
        return columns

    @property
    def _others(self) -> dict[str, str]:
        """The columns of rewards after the first, by their internal names."""
        return {f"other{k}": name for k, name in enumerate(self.roles.others)}

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

    def _numbered(self, known: list[Any], given: list[str], *names: str) -> dict[str, str]:
        """SQL for labels as numbers, in the order of their appearance.

        These are the labels in a column and, of rows that are no end, in the next. Some that are
        `known`, as those of an earlier log, keep their numbers; new ones are added.
        """
        query = f"SELECT {names[0]} AS x, n AS k FROM rows"
        if len(names) > 1:
            query += f" UNION ALL SELECT {names[1]}, n + 1 FROM rows WHERE terminated IS NOT true"
        query = f"SELECT x FROM ({query}) WHERE x IS NOT NULL GROUP BY x ORDER BY min(k)"
        keys = [key for (key,) in self.work.all(query)]
        if len(keys) > MOST_STATES:
            remedy = "too many to be states; name columns of numbers as observations"
            raise InputError("state", f"more than {MOST_STATES:,} different ones", remedy)
        new = {repr(label): (key, label) for key in keys for label in [self._label(key, given)]}
        absent = ((f"{BETWEEN}{k}", label) for k, label in enumerate(known))  # not in this log
        found = {repr(old[1]): new.pop(repr(old[1]), old) for old in absent} | new
        known[:] = [label for _, label in found.values()]
        texts = {"x": np.array([key for key, _ in found.values()], dtype=object)}
        texts["k"] = np.arange(len(found))
        self.work.insert("CREATE OR REPLACE TEMP TABLE texts AS", texts)
        kind, query = f"enum_{names[0]}", "SELECT x FROM texts ORDER BY k"
        self.work.execute(f"DROP TYPE IF EXISTS {kind}; CREATE TYPE {kind} AS ENUM ({query})")
        return {name: f"enum_code(TRY_CAST({name} AS {kind}))::INTEGER" for name in names}

    def _label(self, key: Any, columns: list[str]) -> Any:
        """The label that a text in the database stands for; of several columns, a tuple."""
        if len(columns) > 1:
            return tuple(plain(part) for part in key.split(BETWEEN))
        kind = self.table.kind(columns[0])
        if kind == "flag":
            return key == "true"
        return int(key) if kind == "whole" else plain(float(key)) if kind == "number" else key

    def _name(self, key: Any) -> Any:
        """The label of a state in a table."""
        return self._label(key, self.roles.state) if self.roles.kind == "label" else key

    def _checks(self) -> list[tuple[str, str, str, str]]:
        """All conditions, the most important first; a row is counted under the first that holds."""
        r, b = self.roles, self.roles.behaviour
        refused = "" if self.on_error else UNREADABLE
        wrong = f"is no whole number from 0 to {(r.states or MOST_STATES) - 1:,}"
        if r.kind != "number":
            wrong = f"is missing{' or not finite' * (r.kind == 'vector')}"
        ratio, after = "target / behaviour", r.all_states[len(r.state) :]
        no_target = f"{r.target} is missing" if r.target else "the target policy has no probability"
        small = f"{b} is so small that the ratio is beyond {LARGEST_RATIO:g}"
        never = f"target IS NOT NULL AND (behaviour = 0 OR NOT isfinite({ratio}))"
        found: list[tuple[Any, ...]] = [("torn", MALFORMED, r.reward, "")]
        for k, name in enumerate(self.texts):
            what = "time" if name == r.time else "number"
            found.append((f"u = {k}", f"{name} is no {what}", name, refused))
        for role in ("behaviour", "target"):
            found.append((f"{role} NOT BETWEEN 0 AND 1", "", getattr(r, role), PROBABILITY))
        found.append((never, "", b, NEVER))
        columns = {role: getattr(r, role) for role in ("reward", "gamma", "lam", "rho")}
        for role, name in (columns | self._others).items():
            least, most = ROLES.get(role, ROLES["reward"]).bounds
            missing = f"{role} IS NULL OR NOT isfinite({role})"
            outside = f"{name} is not within [{least:g}, {most:g}]"
            found.append((missing, f"{name} is missing or not finite", name, ""))
            found.append((f"{role} NOT BETWEEN {least!r} AND {most!r}", outside, name, ""))
        found += [
            ("terminated IS NULL", f"{r.terminated} is neither true nor false", r.terminated, ""),
            ("truncated IS NULL", f"{r.truncated} is neither true nor false", r.truncated, ""),
            (_any_null(self.states), f"state {wrong}", r.state[0], ""),
            (f"({_any_null(self.after)}) AND NOT terminated", f"next_state {wrong}",
             after and after[0], ""),
            ("target IS NULL", no_target, b, ""),
            ("behaviour IS NULL", f"{b} is missing", b, ""),
            (f"{ratio} > {LARGEST_RATIO!r}", small, b, ""),
            ("episode IS NULL", f"{r.episode} is missing", r.episode, ""),
            ("entity IS NULL", f"{r.entity} is missing", r.entity, ""),
            ("action IS NULL", f"{r.action} is missing", self.acting and r.action, ""),
            ("time IS NULL", f"{r.time} is missing or no time", r.time, ""),
        ]  # fmt: skip
        return [each for each in found if each[2]]

    def _sort(self) -> None:
        """Say why a row cannot be used, and count it; order rows by entity and time."""
        r, joins, keys, source, checks = self.roles, "", ["n"], "rows", self._checks()
        if self.policy is not None:
            self._ask(self.policy)
            joins += f" LEFT JOIN retvar_policy USING ({', '.join([*self.states, 'action'])})"
        if r.entity:
            self.work.execute(
                "CREATE OR REPLACE TEMP TABLE firsts AS SELECT entity AS place, min(n) AS e "
                "FROM rows WHERE entity IS NOT NULL GROUP BY ALL"
            )
            self.counts.entities += self.work.one("SELECT count(*) FROM firsts")
            joins += " LEFT JOIN firsts USING (place)"
            keys, place = ["e", "n"], "entity"
            if not r.time and self.work.one("SELECT count(*) - count(entity) FROM rows"):
                before, after = (  # a row without its own stands among the rows of these
                    f"last_value(entity IGNORE NULLS) OVER (ORDER BY n{way})"
                    for way in ("", " DESC")
                )
                place = f"coalesce(entity, CASE WHEN {before} = {after} THEN {before} END)"
            source = f"(SELECT *, {place} AS place FROM rows)"
        if r.time:
            keys.insert(-1, "time")
        ratio = ", target / behaviour AS rho" if r.behaviour else ""
        self.columns |= {"rho": ratio} if ratio else {}
        dropped = " EXCLUDE (entity, place)" * bool(r.entity)
        why = _case(where for where, *_ in checks)
        in_order = keys == ["n"] and not joins and not self.torn
        order = "" if in_order else f"ORDER BY {', '.join(keys)}"
        self.work.execute(
            f"CREATE OR REPLACE TEMP TABLE sorted AS SELECT *{dropped}, {why} AS why{ratio} "
            f"FROM {source} {joins} {order}"
        )
        self.keys = keys[:-1]
        found = self.work.all(
            "SELECT why, count(*), count(*) FILTER (terminated), min(n) FROM sorted "
            "WHERE why IS NOT NULL GROUP BY why ORDER BY min(n)"
        )
        for why, *counted in found:
            self._leave_out(checks[why], f"FROM sorted WHERE why = {why}", *counted)

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
                states = [self._name(s) for s in part["s0"].tolist()]
            actions = [plain(self._label(a, [self.roles.action])) for a in part["action"].tolist()]
            if policy.rows is not None and not self.width:
                self.counts.policy = policy.rows
                for s, a, times in zip(states, actions, part["times"].tolist(), strict=True):
                    self.counts.taken[compared(s), compared(a)] += times
            part["p"] = policy.ask(states, actions)
            self.work.insert("INSERT INTO retvar_policy", part, f"{keys}, nullif(p, 'nan')")

    def _leave_out(self, check: Any, rows: str, times: int, ends: int, n: int) -> None:
        """Count rows that are left out; refuse what is impossible or cannot be read."""
        where, reason, column, remedy = check
        if remedy or self.on_error == "raise":
            ways = DATES if column == self.roles.time else NUMBERS
            remedy = (remedy or f"{reason}; correct the row").format(reason, times, ways)
            raise InputError(*self._value(column, n), remedy)
        if where.startswith("u = "):
            reason += f", such as {self._value(column, n)[1]!r}"
        self.counts.rejected[reason] += times
        self.counts.ends_left_out += ends
        if reason == f"{self.roles.reward} is missing or not finite" and not self.width:
            states = self.work.all(
                f"SELECT s0, count(*) AS k {rows} GROUP BY s0 ORDER BY k DESC, min(n) "
                f"LIMIT {MOST_NAMED}"
            )
            named = {None if s is None else self._name(s): k for s, k in states}
            self.counts.missing_rewards.update(named)

    def _value(self, column: str, n: int) -> tuple[str, Any]:
        """Where a row of the log is, and what it holds."""
        file = int(np.searchsorted(self.starts, n // 2, side="right")) - 1
        row = n // 2 - self.starts[file]
        query = self.table.query([column], file)
        value = self.work.one(f"SELECT COLUMNS(*)::VARCHAR FROM ({query}) LIMIT 1 OFFSET {row}")
        name = self.table.files[file] if self.table.files else self.table.name
        return f"{name}, row {row + 1:,}: {column}", value

    def _count_duplicates(self) -> None:
        """Remove rows that equal another of their entity and time; count ties in time."""
        placed = _all_known(self.keys)
        same, after = (
            " AND ".join(f"{key} = {ahead}({key}) OVER ()" for key in self.keys)
            for ahead in ("lag", "lead")
        )
        tied = f"SELECT *, {same} AS tied, {after} AS next FROM sorted WHERE {placed}"
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

    def _link(self) -> Moves:
        """Give each row the state of the next one, where that goes on from it.

        An episode is cut where the next row is of another one, is left out, or has another state
        than the next state that is logged. Rows without a next state are left out, except those of
        pairs, whose action counts.
        """
        pairs = list(zip(self.states, self.after, strict=True))
        differ, gone = " OR ".join(f"{z} <> lead({s}) OVER ()" for s, z in pairs), "false"
        ahead = [f"({differ}) AS differ", f"coalesce({self._same()}, false) AS same"]
        if not self.roles.next_state:
            ahead[0], gone = "false AS differ", "NOT terminated AND (truncated OR z0 IS NULL)"
            known = "same AND lead(known) OVER ()"
            ahead += [f"CASE WHEN {known} THEN lead({s}) OVER () END AS {z}" for s, z in pairs]
        codes: dict[str, str] = {}
        if self.roles.kind == "label":
            names = ["s0", "z0"] if self.roles.next_state else ["s0"]
            codes |= self._numbered(self.labels, self.roles.state, *names)
        if self.acting:
            codes |= self._numbered(self.actions, [self.roles.action], "action")
        coded = ", ".join(f"{sql} AS {name}" for name, sql in codes.items())
        over = "truncated OR gone OR NOT (terminated OR (same AND NOT lost_next AND NOT differ))"
        columns = {
            "state": self.states, "reward": ["reward", *self._others],
            "next_state": [f"CASE WHEN terminated THEN {s} ELSE coalesce({z}, {s}) END"
                           for s, z in pairs],
            "terminated": ["terminated"], "truncated": [over],
            **{name: [name] for name in ("rho", "gamma", "lam") if name in self.columns},
            **({"action": ["action"]} if self.acting else {}),
        }  # fmt: skip
        widths = {name: self.width * name.endswith("state") for name in columns}
        widths["reward"] = len(columns["reward"]) if self._others else 0
        name = "acting_moves" if self.acting else "moves"
        self.work.execute(
            f"""CREATE OR REPLACE TEMP TABLE {name} AS WITH
            coded AS (SELECT *{f" REPLACE ({coded})" * bool(coded)} FROM sorted
                      WHERE {_all_known(self.keys)}),
            ahead AS (SELECT *, {", ".join(ahead)} FROM coded),
            linked AS (SELECT *, {gone} AS gone, gone AND NOT {self.acting} AS dropped FROM ahead),
            marked AS (SELECT *, coalesce(lead(why IS NOT NULL OR dropped) OVER (), true)
                       AS lost_next FROM linked)
            SELECT {selected(columns, widths)},
            differ AND same AND NOT (lost_next OR terminated OR truncated) AS differs
            FROM marked WHERE why IS NULL AND NOT dropped"""
        )
        found = Moves(self.work, name, widths)
        lost = self.work.one("SELECT count(*) FROM sorted WHERE why IS NULL") - len(found)
        times = self.work.one(f"SELECT count(*) FILTER (differs) FROM {name}")
        self.work.execute("DROP TABLE sorted; DROP TABLE rows")
        if times and self.on_error == "raise":
            remedy = "the next row of the episode has another state; mark where episodes end"
            raise InputError("next_state", f"in {times:,} rows", remedy)
        self.counts.rejected += Counter({NO_NEXT: lost})
        self.counts.unmarked_ends += Counter({MISMATCH: times})
        return found

    def _same(self) -> str:
        """Whether the next row is of the same entity and episode; without these, of the file."""
        named = {"e": self.roles.entity, "episode": self.roles.episode}
        found = [f"lead({key}) OVER () = {key}" for key, name in named.items() if name]
        if not (found or self.roles.time) and len(self.table.parts) > 1:
            border = " OR NOT differ" * bool(self.roles.next_state)
            found.append(f"(lead(file) OVER () = file{border})")
        return " AND ".join(["lead(n) OVER () IS NOT NULL", *found])


def _any_null(names: list[str]) -> str:
    return " OR ".join(f"{name} IS NULL" for name in names)


def _all_known(names: list[str]) -> str:
    return f"NOT ({_any_null(names)})" if names else "true"


def _case(conditions: Iterable[str]) -> str:
    """SQL for the number of the first condition that holds."""
    cases = " ".join(f"WHEN {where} THEN {k}" for k, where in enumerate(conditions))
    return f"(CASE {cases} END)::UTINYINT"
