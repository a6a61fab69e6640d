"""What DuckDB reads as a log: files, tables, data frames; and SQL for what a column holds."""

from __future__ import annotations

import csv
import glob
import gzip
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from retvar.experience.moves import Workspace, quoted, text_literal
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.support.files import kind_of
from retvar.support.format import listed

SUFFIXES = (".parquet", ".csv", ".csv.gz")
SOURCE = "must be a path or pattern of .parquet or .csv files, a list of paths, or a table"
NULLS = ["", "null", "NULL", "nan", "NaN"]  # not NA, which may be the name of a state
KINDS = {
    "nested": r".*\]$|STRUCT|MAP|UNION", "whole": r"U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?$",
    "number": "FLOAT|DOUBLE|DECIMAL", "text": "VARCHAR|ENUM", "time": "DATE|TIME",
    "flag": "BOOLEAN",
}  # fmt: skip  # of DuckDB's types
NUMBERS = {"whole", "number", "flag"}
NUMBER = "retvar number of "  # begins the name of a column as numbers
FIRST_ROWS = 65_536  # that decide what a column holds
CODE = "^[+-]?0[0-9]+$"  # a code such as 010, and no number
WAYS = [(d, t) for d in ".," for t in ("", *"., '\u00a0\u202f") if d != t]  # numbers are written
DAY_FIRST = [f"%d{sign}%m{sign}%Y{time}" for sign in "./-" for time in ("", " %H:%M", " %H:%M:%S")]
MACROS = """
CREATE OR REPLACE MACRO retvar_flag(x) AS CASE
    WHEN x = 'true' THEN true WHEN x = 'false' THEN false  -- what follows takes time
    WHEN list_contains(['true', '1', '1.0', 't', 'yes', 'y'], lower(trim(x))) THEN true
    WHEN list_contains(['false', '0', '0.0', 'f', 'no', 'n'], lower(trim(x))) THEN false END;
CREATE OR REPLACE MACRO retvar_absent(x) AS list_contains(
    ['', 'null', 'nan', 'na', 'n/a', 'none', '-', '.', '?'], lower(trim(x)));  -- IN would join
CREATE OR REPLACE MACRO retvar_finite(v) AS CASE WHEN isfinite(v) THEN v END;
CREATE OR REPLACE MACRO retvar_whole(v) AS  -- a cast alone would round 1.5
    CASE WHEN abs(v) < 9007199254740992.0 AND v = floor(v) THEN v::BIGINT END;
"""


class Reading(NamedTuple):
    """How text is read."""

    encoding: str | None = None
    decimal: str = "."
    thousands: str = ""
    day_first: bool = False

    def number(self, text: str) -> str:
        """SQL for a text as a number; NULL where its separators stand otherwise."""
        digits = text  # spaces are no matter, and trim is slow
        if (self.decimal, self.thousands) != (".", ""):
            digits = f"trim({text})"
            point, sign = re.escape(self.decimal), re.escape(self.thousands)
            groups = rf"|[0-9]{{1,3}}({sign}[0-9]{{3}})+" * bool(sign)
            form = rf"[+-]?([0-9]*{groups})({point}[0-9]*)?([eE][+-]?[0-9]+)?"
            fits = f"regexp_full_match({digits}, {text_literal(form)})"
            plain = f"replace({digits}, {text_literal(self.thousands)}, '')" if sign else digits
            plain = f"replace({plain}, {text_literal(self.decimal)}, '.')"
            digits = f"CASE WHEN {fits} THEN {plain} END"
        words = f"CASE lower(trim({text})) WHEN 'true' THEN 1.0 WHEN 'false' THEN 0.0 END"
        value = f"TRY_CAST({digits} AS DOUBLE)"
        return f"CASE WHEN {value} IS NULL THEN {words} ELSE {value} END"  # coalesce is slow


@dataclass
class Table:
    """A log as DuckDB sees it: types of its columns, and SQL for them."""

    name: str
    work: Workspace
    reading: Reading
    parts: list[str]  #: a relation for each file
    files: list[str] = field(default_factory=list)
    text: bool = False  #: all columns are text, as in CSV
    metadata: dict[str, Any] = field(default_factory=dict)  #: written by retvar into its files
    types: dict[str, str] = field(default_factory=dict)
    rows: int | None = None  #: None: not known before it is read

    def kind(self, column: str) -> str:
        """``whole``, ``number``, ``flag``, ``text``, ``time``, ``nested`` or ``other``."""
        return next((k for k, form in KINDS.items() if re.match(form, self.types[column])), "other")

    def number(self, column: str) -> str:
        """SQL for a column as a number, where it is one."""
        kind, name = self.kind(column), quoted(column)
        if kind == "text":
            return self.reading.number(f"CAST({name} AS VARCHAR)")
        return f"CAST({name if kind in NUMBERS else 'NULL'} AS DOUBLE)"

    def sql(self, column: str, dates: bool = False) -> Any:
        """SQL for a column as what a role needs; NULL where a value is nothing of that kind.

        A `whole` number may not be written as 010, one with `codes` may; a `label` is text that is
        equal for equal labels: 1.0 is 1. An `id` is compared as it is. A `time` is a number that
        orders times; `dates` become nanoseconds of UTC.
        """
        kind, name, number = self.kind(column), quoted(column), quoted(NUMBER + column)
        text, integer = f"CAST({name} AS VARCHAR)", f"TRY_CAST({name} AS BIGINT)"
        finite, codes, whole = f"retvar_finite({number})", f"retvar_whole({number})", ""
        label, flag, plain = text, f"retvar_flag({text})", f"trim({text})"
        if kind in NUMBERS:
            codes = codes if kind == "number" else integer
            flag = f"CASE {number} WHEN 1 THEN true WHEN 0 THEN false END"
        elif kind == "text":
            whole = f"CASE WHEN {integer}::VARCHAR = {text} THEN {integer} "
            whole += f"WHEN NOT regexp_matches({plain}, '{CODE}') THEN {codes} END"
        if kind == "number":
            label = f"coalesce({codes}::VARCHAR, {number}::VARCHAR)"
            label = f"CASE WHEN NOT isnan({number}) THEN {label} END"
        time = codes if kind == "whole" else finite
        if kind == "time":
            time = f"epoch_ns({name}{'::TIMESTAMP' * (self.types[column] == 'DATE')})"
        elif dates and self.reading.day_first:
            time = f"TRY(epoch_ns(try_strptime({plain}, {DAY_FIRST})))"  # of 1677 to 2262
        elif dates:
            time = f"epoch_ns(TRY_CAST({plain} AS TIMESTAMP_NS))"
        return SimpleNamespace(
            id=name, text=plain, number=number, codes=codes, label=label, finite=finite,
            flag=name if kind == "flag" else flag, whole=whole or codes, time=time,
        )  # fmt: skip

    def remedy(self, part: str, column: str, text: str) -> str:
        """How to read a text as a number, in a way in which all of the column are read."""
        ways = [self.reading._replace(decimal=d, thousands=t) for d, t in WAYS]
        reads = ", ".join(f"{way.number('x')} IS NOT NULL" for way in ways)
        cells = self.work.all(
            f"""SELECT list_value({reads}) AS reads, min(x), bool_or(x = {text_literal(text)})
            FROM (SELECT {quoted(column)}::VARCHAR AS x FROM {part}) WHERE NOT retvar_absent(x)
            GROUP BY reads HAVING list_bool_or(reads)"""
        )
        own = next((reads for reads, _, here in cells if here), None)
        if own is None:
            return ""  # it is no number in any way
        fits = [way for way, *read in zip(ways, *(x[0] for x in cells), strict=True) if all(read)]
        plain = [way.decimal for way in fits if not way.thousands]
        fits = [way for way in fits if not way.thousands or way.decimal not in plain]
        if not fits or (len(fits) > 1 and not plain):
            other = min(cells, key=lambda cell: sum(map(min, own, cell[0])))[1]
            return f"it is written in two ways, such as {text!r} and {other!r}, "
        said = (
            [f"{name}={getattr(way, name)!r}" for name in ("decimal", "thousands")
             if getattr(way, name) != getattr(self.reading, name)] for way in fits
        )  # fmt: skip
        return f"say {', or '.join(map(' and '.join, said))}, "

    def facts(self, column: str) -> Any:
        """What the first rows hold: how many numbers, fractions, codes such as 010."""
        sql = self.sql(column)
        text = sql.text if self.kind(column) == "text" else "NULL::VARCHAR"
        found = self.work.execute(
            f"""SELECT count(*) AS rows, count(c) AS present, count(v) AS numbers,
            count(*) FILTER (isfinite(v) AND v <> floor(v)) AS fractions,
            coalesce(min(v) FILTER (isfinite(v)), 0) AS least,
            coalesce(max(v) FILTER (isfinite(v)), 0) AS most,
            count(*) FILTER (regexp_matches(x, '{CODE}')) AS codes, any_value(c)::VARCHAR AS example
            FROM (SELECT {sql.id} AS c, {text} AS x, {sql.number} AS v FROM retvar_first)"""
        )
        names = [each[0] for each in found.description]
        return SimpleNamespace(**dict(zip(names, found.fetchone(), strict=True)))


def open_table(source: Any, work: Workspace, reading: Reading) -> Table:
    """Open files, or a table in memory, which is registered in the database."""
    work.execute(MACROS)
    if isinstance(source, str | Path | list | tuple):
        given = source if isinstance(source, list | tuple) else [source]
        found = _files([path for each in given for path in paths_of(each)], work, reading)
    else:
        found = Table("the table", work, reading, ["retvar_table"])
        _register(source, work)
    work.source = found.name
    described = work.all(f"DESCRIBE SELECT * FROM {found.parts[0]}")
    found.types = {name: kind for name, kind, *_ in described}
    for file, part in zip(found.files, found.parts, strict=False):
        theirs = [name for name, *_ in work.all(f"DESCRIBE SELECT * FROM {part}")]
        if lacking := [name for name in found.types if name not in theirs]:
            remedy = f"must have the columns of {found.files[0]}, also {lacking[0]!r}"
            raise InputError(f"columns of {file}", listed(theirs, most=12), remedy)
    numbers = [f"{found.number(x)} AS {quoted(NUMBER + x)}" for x in found.types]
    found.parts = [f"(SELECT *, {', '.join(numbers)} FROM {part})" for part in found.parts]
    if not found.text:
        found.rows = sum(int(work.one(f"SELECT count(*) FROM {part}")) for part in found.parts)
        if not found.rows:
            raise InputError("source", found.name, "has no rows")
    first = f"SELECT * FROM {found.parts[0]} LIMIT {FIRST_ROWS}"
    work.execute(f"CREATE OR REPLACE TEMP TABLE retvar_first AS {first}")
    torn_lines(work)
    return found


def _register(source: Any, work: Workspace) -> None:
    """Register a table in memory as ``retvar_table``; columns of it may be two-dimensional."""
    lengths: Any = {}
    try:
        if isinstance(source, Mapping):
            import pandas

            columns = dict[str, Any]()
            for name, given in source.items():
                column = given if isinstance(given, list | tuple | range) else np.asarray(given)
                wide: Any = np.asarray(column).T if np.ndim(column) == 2 else []
                columns |= {f"{name}_{k}": x for k, x in enumerate(wide)} or {str(name): column}
            lengths = {name: np.shape(column) for name, column in columns.items()}
            source = pandas.DataFrame(columns)
        elif hasattr(source, "columns") and hasattr(source, "index"):  # pandas
            source = source.rename(columns=str)
            if any(min(getattr(source[x].values, "strides", [1])) < 0 for x in source):
                source = source.copy()  # DuckDB reads no column backwards
        elif not (hasattr(source, "columns") or hasattr(source, "schema")):
            raise InputError("source", type(source).__name__, SOURCE)
        work.db.register("retvar_table", source)
    except InputError:
        raise
    except Exception as error:  # a table may hold anything
        field, value = ("columns", lengths) if lengths else ("source", type(source).__name__)
        raise InputError(field, value, f"cannot be read: {error}") from None


# ------------------------------------------------------------------ files


def _files(paths: list[Path], work: Workspace, reading: Reading) -> Table:
    """Files of one kind, and what retvar wrote about the first of them."""
    if len({path.suffix.lower() == ".parquet" for path in paths}) != 1:
        raise InputError("source", listed(paths, most=2), f"{SOURCE}; all of one kind")
    work.source = str(paths[0]) + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")
    files = [str(path) for path in paths]
    if paths[0].suffix.lower() != ".parquet":
        parts = [_csv(path, work, reading) for path in paths]
        return Table(work.source, work, reading, parts, files, text=True)
    query = f"SELECT value FROM parquet_kv_metadata({_name(paths[0])}) WHERE key = 'retvar'"
    about = json.loads((work.execute(query).fetchone() or ["{}"])[0])
    parts = [f"read_parquet({_name(path)})" for path in paths]
    return Table(work.source, work, reading, parts, files, metadata=about)


def paths_of(given: str | Path) -> list[Path]:
    """The files that a path, a folder or a pattern names."""
    path = arguments.path("source", given)
    kind = kind_of("source", path)
    found = [path] if kind else [Path(each) for each in sorted(glob.glob(str(given)))]
    if kind == "folder":
        found = sorted(each for each in path.iterdir() if each.name.lower().endswith(SUFFIXES))
    if not found or not all(each.name.lower().endswith(SUFFIXES) for each in found):
        remedy = f"must end in {' or '.join(SUFFIXES)}" if found else "must exist"
        raise InputError("source", str(given), remedy)
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
            head, first, sign = file.readline().lstrip("\ufeff"), file.readline(), ""
            if told := re.fullmatch(r'"?sep=(.)"?\s*', head):  # by Excel
                head, first, sign = first, file.readline(), told[1]
            if told or encoding.lower() not in ("utf-8", "utf8"):
                path = Path(work.folder) / f"{len(os.listdir(work.folder))}-{path.stem}.csv"
                with path.open("w", encoding="utf-8", newline="") as copy:
                    copy.write(head + first)
                    shutil.copyfileobj(file, copy)
    except (LookupError, UnicodeError) as error:
        remedy = f"{name} is not so encoded ({error}); say which, such as encoding='latin-1'"
        raise InputError("encoding", encoding, remedy) from None
    except (OSError, EOFError) as error:
        raise InputError("source", name, f"cannot be read: {error}") from None
    sign = sign or max(",;\t|", key=head.count)
    names = next(csv.reader([head], delimiter=sign), [])
    if not first.strip():
        raise InputError("source", name, "has no rows")
    if not any(names):
        raise InputError(f"header of {name}", head[:80], "must hold names of columns")
    names = [each or f"column {k}" for k, each in enumerate(names, 1)]  # an index, or a last sign
    columns = ", ".join(f"{text_literal(each)}: 'VARCHAR'" for each in names)
    return (
        f"read_csv({_name(path)}, header = true, auto_detect = false, delim = "
        f"{text_literal(sign)}, quote = '\"', escape = '\"', columns = {{{columns}}}, "
        f"nullstr = {NULLS}, store_rejects = true, rejects_limit = 0)"
    )


def torn_lines(work: Workspace) -> list[int]:
    """Lines of the CSV file read last that are no rows; refuse one that is not UTF-8."""
    if not work.all("SELECT 1 FROM duckdb_tables() WHERE table_name = 'reject_errors'"):
        return []
    query = "SELECT line, bool_or(error_type = 'INVALID ENCODING') FROM reject_errors"
    found = work.all(f"{query} GROUP BY line ORDER BY line")
    work.execute("DROP TABLE reject_errors; DROP TABLE reject_scans")
    for line in (line for line, wrong in found if wrong):
        remedy = "is not UTF-8; say encoding='latin-1'"
        raise InputError("encoding", f"{work.source}, line {line:,}", remedy)
    return [int(line) for line, _ in found]
