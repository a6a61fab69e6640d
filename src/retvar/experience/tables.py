"""What DuckDB reads as a log: files, tables and data frames; and which of their columns is what."""

from __future__ import annotations

import csv
import glob
import gzip
import json
import logging
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from retvar.experience.moves import Workspace, quoted, text_literal
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.support.files import kind_of
from retvar.support.format import listed, literal

__all__ = [
    "MOST_STATES", "Reading", "Roles", "Table", "find_roles", "open_table", "rejected_lines",
]  # fmt: skip

log = logging.getLogger("retvar")
SUFFIXES = (".parquet", ".csv", ".csv.gz")
SOURCE = "must be a path or pattern of .parquet or .csv files, a list of paths, or a table"
NULLS = ["", "null", "NULL", "nan", "NaN"]  # not NA, which may be the name of a state
ABSENT = "('', 'null', 'nan', 'na', 'n/a', 'none', '-', '.', '?')"  # where numbers are expected
TRUE, FALSE = "('true', '1', '1.0', 't', 'yes')", "('false', '0', '0.0', 'f', 'no')"
KINDS = {
    "nested": r".*\]$|STRUCT|MAP|UNION", "whole": r"U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?$",
    "number": "FLOAT|DOUBLE|DECIMAL", "text": "VARCHAR|ENUM", "time": "DATE|TIME",
    "flag": "BOOLEAN",
}  # fmt: skip  # of DuckDB's types
NUMBERS = ("whole", "number", "flag")
EXACT = 2.0**53
FIRST_ROWS = 65_536  # that decide what a column holds
MOST_STATES = 10_000_000
CODE = "^[+-]?0[0-9]+$"  # a code such as 010, and no number
DAY_FIRST = [f"%d{sign}%m{sign}%Y{time}" for sign in "./-" for time in ("", " %H:%M", " %H:%M:%S")]
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


@dataclass(frozen=True)
class Reading:
    """How text is read."""

    encoding: str | None = None
    decimal: str = "."
    thousands: str = ""
    day_first: bool = False


@dataclass
class Table:
    """A log as DuckDB sees it: types of its columns, queries, and SQL for a column."""

    name: str
    work: Workspace
    reading: Reading
    types: dict[str, str]
    parts: list[str]  #: a relation for each file
    files: list[str] = field(default_factory=list)
    text: bool = False  #: all columns are text, as in CSV
    metadata: dict[str, Any] = field(default_factory=dict)  #: written by retvar into its files
    rows: int | None = None  #: None: not known before it is read

    def query(self, columns: Iterable[str] | None = None, file: int | None = None) -> str:
        """SQL for some columns (all without names) of one file, or of all in any order."""
        wanted = dict.fromkeys(self.types if columns is None else columns)
        names = ", ".join(name if name == "*" else quoted(name) for name in wanted)
        parts = self.parts if file is None else [self.parts[file]]
        return " UNION ALL ".join(f"SELECT {names} FROM {part}" for part in parts)

    def kind(self, column: str) -> str:
        """``whole``, ``number``, ``flag``, ``text``, ``time``, ``nested`` or ``other``."""
        return next((k for k, form in KINDS.items() if re.match(form, self.types[column])), "other")

    def as_text(self, column: str) -> str:
        """A column as text."""
        return f"CAST({quoted(column)} AS VARCHAR)"

    def plain(self, column: str) -> str:
        """A column as text without blanks around it."""
        return f"trim({self.as_text(column)})"

    def number(self, column: str) -> str:
        """A column as DOUBLE; NULL where it is no number."""
        if self.kind(column) in NUMBERS:
            return f"CAST({quoted(column)} AS DOUBLE)"
        plain = self.plain(column)
        if self.reading.thousands:
            plain = f"replace({plain}, {text_literal(self.reading.thousands)}, '')"
        if self.reading.decimal != ".":
            plain = f"replace({plain}, {text_literal(self.reading.decimal)}, '.')"
        truth = f"CASE lower({plain}) WHEN 'true' THEN 1.0 WHEN 'false' THEN 0.0 END"
        return f"coalesce(TRY_CAST({plain} AS DOUBLE), {truth})"

    def finite(self, column: str) -> str:
        """A column as a finite DOUBLE; NULL where it is none."""
        return f"CASE WHEN isfinite({self.number(column)}) THEN {self.number(column)} END"

    def whole(self, column: str, codes: bool = False) -> str:
        """A column as BIGINT; NULL where it is no whole number, or (unless `codes`) such as 010."""
        if self.kind(column) in ("whole", "flag"):
            return f"TRY_CAST({quoted(column)} AS BIGINT)"
        value = self.number(column)  # a plain cast would round 1.5
        good = f"abs({value}) < {EXACT} AND {value} = floor({value})"
        if self.kind(column) == "text" and not codes:
            good += f" AND NOT regexp_matches({self.plain(column)}, '{CODE}')"
        return f"CASE WHEN {good} THEN {value}::BIGINT END"

    def flag(self, column: str) -> str:
        """A column as BOOLEAN; NULL where it is neither true nor false."""
        if self.kind(column) in NUMBERS:
            return f"CASE {quoted(column)}::DOUBLE WHEN 1 THEN true WHEN 0 THEN false END"
        plain = f"lower({self.plain(column)})"
        return f"CASE WHEN {plain} IN {TRUE} THEN true WHEN {plain} IN {FALSE} THEN false END"

    def label(self, column: str) -> str:
        """A column as text that is equal for equal labels: 1.0 is 1."""
        if self.kind(column) != "number":
            return self.as_text(column)
        whole, value = self.whole(column), self.number(column)
        known = f"coalesce(CAST({whole} AS VARCHAR), CAST({value} AS VARCHAR))"
        return f"CASE WHEN NOT isnan({value}) THEN {known} END"

    def time(self, column: str, dates: bool) -> str:
        """A column of times as a number that orders them; dates become nanoseconds of UTC."""
        name, kind = quoted(column), self.kind(column)
        if kind == "time":
            return f"epoch_ns({name}{'::TIMESTAMP' * (self.types[column] == 'DATE')})"
        if dates and self.reading.day_first:
            forms = ", ".join(map(text_literal, DAY_FIRST))
            return f"epoch_ns(try_strptime({self.plain(column)}, [{forms}]))"
        if dates:
            return f"epoch_ns(TRY_CAST({self.plain(column)} AS TIMESTAMP_NS))"
        return f"TRY_CAST({name} AS BIGINT)" if kind == "whole" else self.finite(column)

    def unreadable(self, column: str, value: str) -> str:
        """Whether a text stands where `value`, a number or a time made of it, is NULL."""
        plain = self.plain(column)
        return f"({value} IS NULL AND {plain} IS NOT NULL AND lower({plain}) NOT IN {ABSENT})"

    # ------------------------------------------------------------------ its first rows

    def seen(self, sql: str, query: str = "FROM retvar_first") -> Any:
        """One expression of the first rows, or of a query of them."""
        return self.work.one(f"SELECT {sql} FROM ({query})")

    @property
    def first_rows(self) -> int:
        """How many rows were looked at."""
        return int(self.seen("count(*)"))

    def facts(self, column: str) -> Any:
        """What the first rows hold: how many numbers, fractions, codes such as 010."""
        number = self.number(column) if self.kind(column) in (*NUMBERS, "text") else "NULL::DOUBLE"
        found = self.work.execute(
            f"""SELECT count(x) AS present, count(v) AS numbers,
            count(*) FILTER (isfinite(v) AND v <> floor(v)) AS fractions,
            count(*) FILTER (isfinite(v) AND v NOT BETWEEN 0 AND {MOST_STATES - 1}) AS outside,
            count(*) FILTER (regexp_matches(x, '{CODE}')) AS codes,
            count(*) FILTER (lower(x) IN ('true', 'false')) AS truths,
            first(x) FILTER (x IS NOT NULL) AS example
            FROM (SELECT {self.plain(column)} AS x, {number} AS v FROM retvar_first)"""
        )
        names = [each[0] for each in found.description]
        return SimpleNamespace(**dict(zip(names, found.fetchall()[0], strict=True)))


# ------------------------------------------------------------------ opening


def open_table(source: Any, work: Workspace, reading: Reading) -> Table:
    """Open files, or a table in memory, which is registered in the database.

    Of several files, columns that only some of them have are not used.

    >>> open_table({"state": [0, 1], "reward": [1.0, 2.0]}, Workspace(), Reading()).types
    {'state': 'BIGINT', 'reward': 'DOUBLE'}
    """
    given = [source] if isinstance(source, str | Path) else source
    if isinstance(given, list | tuple):
        found = _files(given, work, reading)
    else:
        found = Table("the table", work, reading, {}, ["retvar_table"])
        found.metadata = json.loads(_registered(source, work).get(b"retvar", b"{}"))
    work.source = found.name
    for part in found.parts:
        own = {row[0]: row[1] for row in work.all(f"DESCRIBE SELECT * FROM {part}")}
        found.types = {c: kind for c, kind in (found.types or own).items() if c in own}
    if not found.text:
        found.rows = sum(int(work.one(f"SELECT count(*) FROM {part}")) for part in found.parts)
        if not found.rows:
            raise InputError("source", found.name, "has no rows")
    query = f"{found.query(file=0)} LIMIT {FIRST_ROWS}"
    work.execute(f"CREATE OR REPLACE TEMP TABLE retvar_first AS {query}")
    rejected_lines(found)
    return found


def _registered(source: Any, work: Workspace) -> dict[bytes, bytes]:
    """Register a table in memory as ``retvar_table``; return the metadata it has."""
    if isinstance(source, Mapping):
        source = _frame(source)
    elif hasattr(source, "columns") and hasattr(source, "index"):  # pandas
        source = source.rename(columns=str)
    elif not (hasattr(source, "columns") or hasattr(source, "schema")):
        raise InputError("source", type(source).__name__, SOURCE)
    columns = getattr(source, "column_names", getattr(source, "columns", ()))  # of any library
    _refuse_twice([str(name) for name in columns], "the table")
    try:
        work.db.register("retvar_table", source)
    except Exception as error:  # a frame may hold anything
        raise InputError("source", type(source).__name__, f"cannot be read: {error}") from None
    return getattr(getattr(source, "schema", None), "metadata", None) or {}


def _frame(columns: Mapping[Any, Any]) -> Any:
    """Columns as a frame; a two-dimensional one becomes one column for each number."""
    import pandas

    found: dict[str, Any] = {}
    for name, given in columns.items():
        arguments.text("column", name)
        column = given if isinstance(given, list | tuple | range) else np.asarray(given)
        wide: Any = np.asarray(column).T if np.ndim(column) == 2 else []
        found |= {f"{name}_{k}": x for k, x in enumerate(wide)} if len(wide) else {name: column}
    try:
        return pandas.DataFrame(found)
    except Exception as error:  # a list may hold anything
        lengths = {name: np.shape(column) for name, column in found.items()}
        raise InputError("columns", lengths, f"cannot be read: {error}") from None


def _files(given: Sequence[Any], work: Workspace, reading: Reading) -> Table:
    """Files of one kind, and what retvar wrote about the first of them."""
    if not given or not all(isinstance(each, str | Path) for each in given):
        raise InputError("source", f"a list of {len(given)}", SOURCE)
    paths = [path for each in given for path in _paths(each)]
    text = not paths[0].name.lower().endswith(".parquet")
    name = str(paths[0]) + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")
    found = Table(name, work, reading, {}, [], [str(path) for path in paths], text)
    for path in paths:
        if text == path.name.lower().endswith(".parquet"):
            raise InputError("source", str(path), "files must be of one kind")
        found.parts.append(_csv(path, work, reading) if text else f"read_parquet({_name(path)})")
    if not text:
        query = f"SELECT value FROM parquet_kv_metadata({_name(paths[0])}) WHERE key = 'retvar'"
        work.source = name
        found.metadata = json.loads((work.execute(query).fetchone() or ["{}"])[0])
    return found


def _paths(given: str | Path) -> list[Path]:
    path = arguments.path("source", given)
    kind = kind_of("source", path)
    if kind == "folder":
        found = sorted(each for each in path.iterdir() if each.name.lower().endswith(SUFFIXES))
    else:
        found = [path] if kind else [Path(each) for each in sorted(glob.glob(str(given)))]
    if not found or not all(each.name.lower().endswith(SUFFIXES) for each in found):
        raise InputError("source", str(given), f"must be files {' or '.join(SUFFIXES)} that exist")
    return found


def _name(path: Path) -> str:
    """The name of a file for DuckDB, which would take ``[1]`` for a pattern."""
    return text_literal(glob.escape(str(path)))


def _csv(path: Path, work: Workspace, reading: Reading) -> str:
    """A relation of a CSV file, or of its copy in UTF-8; the header decides what separates."""
    opener: Any = gzip.open if path.name.lower().endswith(".gz") else open
    encoding, name = reading.encoding or "utf-8", str(path)
    try:
        with opener(path, "rb") as file:
            if reading.encoding is None and b"\0" in file.read(4):
                encoding = "utf-16"
        with opener(path, "rt", encoding=encoding, newline="") as file:
            head, first = file.readline().lstrip("\ufeff"), file.readline()
            if encoding.lower() not in ("utf-8", "utf8"):
                path = Path(work.folder) / f"{len(os.listdir(work.folder))}-{path.stem}.csv"
                with path.open("w", encoding="utf-8", newline="") as copy:
                    copy.write(head + first)
                    shutil.copyfileobj(file, copy)
    except (LookupError, UnicodeError) as error:
        remedy = f"{name} is not so encoded ({error}); say which, such as encoding='latin-1'"
        raise InputError("encoding", encoding, remedy) from None
    except (OSError, EOFError) as error:
        raise InputError("source", name, f"cannot be read: {error}") from None
    sign = max(",;\t|", key=head.count)
    names = next(csv.reader([head], delimiter=sign), [])
    if not first.strip():
        raise InputError("source", name, "has no rows")
    if not names or "" in names:
        raise InputError(f"header of {name}", head[:80], "must hold names of columns")
    _refuse_twice(names, name)
    columns = ", ".join(f"{text_literal(each)}: 'VARCHAR'" for each in names)
    return (
        f"read_csv({_name(path)}, header = true, auto_detect = false, delim = "
        f"{text_literal(sign)}, quote = '\"', escape = '\"', columns = {{{columns}}}, "
        f"nullstr = {NULLS}, store_rejects = true, rejects_limit = 0)"
    )


def _refuse_twice(names: list[str], name: str) -> None:
    """Refuse names of columns that occur twice; case does not tell them apart."""
    twice = [each for each, times in Counter(map(str.casefold, names)).items() if times > 1]
    if twice:
        raise InputError("columns", listed(twice), f"occur in {name} more than once; rename them")


def rejected_lines(table: Table) -> list[int]:
    """Lines of the CSV file read last that are no rows; refuse one that is not UTF-8."""
    known = "SELECT count(*) FROM duckdb_tables() WHERE table_name = 'reject_errors'"
    if not table.work.one(known):
        return []
    query = "SELECT line, bool_or(error_type = 'INVALID ENCODING') FROM reject_errors"
    found = table.work.all(f"{query} GROUP BY line ORDER BY line")
    table.work.execute("DROP TABLE reject_errors; DROP TABLE reject_scans")
    for line, wrong in found:
        if wrong:
            remedy = "is not UTF-8; say encoding='latin-1'"
            raise InputError("encoding", f"{table.name}, line {line:,}", remedy)
    return [int(line) for line, _ in found]


# ------------------------------------------------------------------ which column is what


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


def _state_count(table: Table, several: bool, states: Any) -> int | None:
    """Number of states, where it is given or recorded."""
    if states is None or states == "labels":
        recorded = None if states or several else table.metadata.get("states")
        return recorded if arguments.is_integer(recorded) else None
    if not arguments.is_integer(states) or states < 1 or several:
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
