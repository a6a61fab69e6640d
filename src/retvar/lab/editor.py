"""An MDP as a table of edges that can be edited, with an error at every cell that is wrong.

An :class:`Editor` holds what was typed, as text. It is immutable: an edit gives another one.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from retvar import arguments
from retvar.errors import InputError, RetvarError
from retvar.exact import Solution, solve
from retvar.format import count, did_you_mean, joined, listed, minus, number, plus_minus
from retvar.html import escaped
from retvar.lab.mdp_graph import graph_svg
from retvar.lab.svg import ORANGE, Dots, colour, dot_chart
from retvar.mdp import END, MDP, Edge
from retvar.mdp.toml import toml_text

__all__ = [
    "COLUMNS",
    "DISCOUNTS",
    "FIELDS",
    "STYLE",
    "CellError",
    "Discount",
    "Editor",
    "Row",
    "discount_table",
    "editor_table",
    "example",
    "settings_table",
]

MOST_ROWS = 60
LARGEST = 1e150  # reward, whose square is a number
MOST_SHOWN = 12  # states in a chart
COLUMNS = {
    "state": "state",
    "action": "action",
    "next_state": "next state",
    "probability": "probability",
    "reward": "reward",
    "reward_std": "± std",
}
NUMBERS = ("probability", "reward", "reward_std")
DISCOUNTS = {"gamma": "γ", "lam": "λ"}
SETTINGS = {"gamma": "γ", "lam": "λ", "start": "start", "policy": "policy"}
FIELDS = ("gamma", "lam", "start")  # settings that are typed
END_NAME = "end"
ALWAYS = ("uniform", "greedy")  # policies that every MDP has


class Row(NamedTuple):
    """A row of the table, as it was typed.

    >>> Row("home", "walk", "work").probability
    '1'
    """

    state: str = ""
    action: str = ""
    next_state: str = ""
    probability: str = "1"
    reward: str = "0"
    reward_std: str = "0"


class Discount(NamedTuple):
    """γ and λ on arrival in a state, as they were typed; empty: those of all states.

    >>> Discount("0.9").lam
    ''
    """

    gamma: str = ""
    lam: str = ""


class CellError(NamedTuple):
    """What is wrong with a cell, and what to do.

    >>> print(CellError("edges", 0, "probability", "lots", "must be a number"))
    row 1, probability = 'lots': must be a number
    """

    table: str  #: "edges", "states" or "settings"
    row: int | str  #: number of the row, name of the state, or ""
    column: str
    value: str
    remedy: str

    def __str__(self) -> str:
        where = {"edges": f"row {self.row + 1}, " if isinstance(self.row, int) else ""}
        place = where.get(self.table, f"{self.row}, " if self.row else "")
        name = COLUMNS.get(self.column) or SETTINGS.get(self.column, self.column)
        return f"{place}{name} = {self.value!r}: {self.remedy}"


class _Problems(list[CellError]):
    """Errors of cells, collected instead of raised."""

    def add(self, table: str, row: int | str, column: str, value: object, remedy: str) -> None:
        self.append(CellError(table, row, column, str(value), remedy))

    def number(self, table: str, row: int | str, column: str, text: str) -> float:
        """The number in a cell; NaN, and an error, if there is none or it is out of range."""
        try:
            found = _number(column, text)
            if column == "probability" or column in DISCOUNTS:
                arguments.unit_interval(column, found)
            elif column == "reward_std" and found < 0:
                raise InputError(column, text, "must not be negative")
            elif abs(found) > LARGEST:
                raise InputError(column, text, "too large: its square overflows; scale it down")
        except InputError as error:
            self.add(table, row, column, text, error.remedy)
            return math.nan
        return found


@dataclass(frozen=True)
class Editor:
    """The table of edges of an MDP, and γ, λ, start and policy, as they were typed.

    Attributes
    ----------
    rows
        The edges.
    gamma, lam
        γ and λ on arrival in every state; `discounts` has those of single states.
    start
        The state in which episodes start; empty: that of the first row.
    policy
        The policy that is solved for: ``"uniform"``, ``"greedy"``, or a name in `policies`.
    policies
        Name → state → action → probability; those that no longer fit the rows are left out.

    Examples
    --------
    >>> coin = Editor((Row("toss", "go", "toss", "0.5", "1"), Row("toss", "go", "end", "0.4")))
    >>> print(coin.errors[0])
    row 1, probability = '0.5': toss, go sums to 0.9: must sum to 1; 0.6 here would do
    >>> mended = coin.edit(1, "probability", "0.5")
    >>> mended.errors, mended.solution.std
    ((), array([1.41421356]))
    """

    rows: tuple[Row, ...]
    gamma: str = "1"
    lam: str = "1"
    start: str = ""
    policy: str = "uniform"
    discounts: Mapping[str, Discount] = field(default_factory=dict)
    policies: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    positions: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    name: str = ""

    @classmethod
    def from_mdp(cls, mdp: MDP) -> Editor:
        """The table of an MDP whose γ belongs to the next state.

        >>> import retvar as rv
        >>> Editor.from_mdp(rv.domains.chain()).mdp == rv.domains.chain()
        True
        """
        e = mdp.edges
        if e.state.size > MOST_ROWS or mdp.gamma is None:
            what = count(e.state.size, "edge") if mdp.gamma is not None else "γ for each edge"
            raise InputError("mdp", what, f"must have at most {MOST_ROWS} edges, and γ by state")
        columns = zip(*(column.tolist() for column in e[:6]), strict=True)
        rows = tuple(
            Row(
                mdp.state_name(s),
                mdp.action_name(a),
                END_NAME if t == END else mdp.state_name(t),
                *(_typed(x) for x in (p, r, std)),
            )
            for s, a, t, p, r, std in columns
        )
        names = [mdp.state_name(s) for s in range(mdp.n_states)]
        shared = [_most_common(values) for values in (mdp.gamma, mdp.lam)]
        own = {
            name: Discount(
                *("" if x == y else _typed(x) for x, y in zip(pair, shared, strict=True))
            )
            for name, *pair in zip(names, mdp.gamma, mdp.lam, strict=True)
        }
        starts = np.flatnonzero(mdp.start)
        policies = {
            key: _policy_table(mdp, policy.probabilities)
            for key, policy in mdp.policies.items()
            if key not in ALWAYS
        }
        return cls(
            rows,
            gamma=_typed(shared[0]),
            lam=_typed(shared[1]),
            start=names[int(starts[0])] if starts.size == 1 else "",
            policy=next(iter(mdp.policies)),
            discounts={name: each for name, each in own.items() if any(each)},
            policies=policies,
            positions={}
            if mdp.positions is None
            else {n: (float(x), float(y)) for n, (x, y) in zip(names, mdp.positions, strict=True)},
            name=mdp.name,
        )

    # ------------------------------------------------------------------ edits

    def edit(self, row: int, column: str, text: str) -> Editor:
        """The table with another text in one cell.

        >>> Editor((Row("a", "go", "end"),)).edit(0, "reward", "2").rows[0].reward
        '2'
        """
        self._check_row(row)
        arguments.choice("column", column, COLUMNS)
        rows = list(self.rows)
        rows[row] = rows[row]._replace(**{column: str(text)})
        return replace(self, rows=tuple(rows))

    def add(self, row: Row | None = None) -> Editor:
        """The table with one more row; by default another edge of the last one's state.

        >>> Editor((Row("a", "go", "end"),)).add().rows[1]
        Row(state='a', action='go', next_state='end', probability='0', reward='0', reward_std='0')
        """
        if len(self.rows) >= MOST_ROWS:
            raise InputError("rows", len(self.rows), f"must be at most {MOST_ROWS}")
        last = self.rows[-1] if self.rows else Row("a", "go")
        more = Row(last.state, last.action, END_NAME, "0" if self.rows else "1")
        return replace(self, rows=(*self.rows, more if row is None else row))

    def remove(self, row: int) -> Editor:
        """The table without a row.

        >>> len(Editor((Row("a", "go", "end"), Row("b", "go", "end"))).remove(0).rows)
        1
        """
        self._check_row(row)
        return replace(self, rows=self.rows[:row] + self.rows[row + 1 :])

    def discount(self, state: str, column: str, text: str) -> Editor:
        """The table with another γ or λ of one state; empty: that of all states.

        >>> Editor((Row("a", "go", "end"),)).discount("a", "gamma", "0.5").discounts
        {'a': Discount(gamma='0.5', lam='')}
        """
        arguments.choice("column", column, DISCOUNTS)
        own = self.discounts.get(state, Discount())._replace(**{column: str(text)})
        return replace(self, discounts={**self.discounts, state: own})

    def _check_row(self, row: int) -> None:
        arguments.integer("row", row, 0, len(self.rows) - 1)

    def typed(self, texts: Mapping[str, str]) -> Editor:
        """The table with the texts of fields, by ``table/row/column``; others stay.

        >>> example().typed({"edges/0/reward": "7", "settings//gamma": "0.5"}).gamma
        '0.5'
        """
        changed = self
        for key, text in texts.items():
            table, rest = key.split("/", 1)
            row, column = rest.rsplit("/", 1)
            if table == "edges":
                changed = changed.edit(int(row), column, text)
            elif table == "states":
                changed = changed.discount(row, column, text)
            else:
                given: dict[str, Any] = {arguments.choice("column", column, FIELDS): text}
                changed = replace(changed, **given)
        return changed

    # ------------------------------------------------------------------ what follows

    @property
    def states(self) -> list[str]:
        """Names of the states that rows leave, in order.

        >>> Editor((Row("b", "go", "a"), Row("a", "go", "end"))).states
        ['b', 'a']
        """
        return [s for s in dict.fromkeys(row.state.strip() for row in self.rows) if s]

    @property
    def errors(self) -> tuple[CellError, ...]:
        """Everything that is wrong, cell by cell."""
        return self._checked[0]

    @property
    def mdp(self) -> MDP | None:
        """The MDP; None while there are errors."""
        return self._checked[1]

    @property
    def solution(self) -> Solution | None:
        """Exact value and std of each state under the policy; None while there are errors."""
        return self._checked[2]

    @property
    def remarks(self) -> list[str]:
        """What is allowed, but may not be meant.

        >>> Editor((Row("a", "go", "end"), Row("b", "go", "end"))).remarks
        ['b is never reached from the start']
        """
        if self.mdp is None:
            return []
        reached, edges = {self._start}, self._edges
        for _ in self.states:
            reached |= {str(e.next_state) for e in edges if e.state in reached and e.probability}
        lost = [name for name in self.states if name not in reached]
        told = [f"{joined(lost)} {'is' if len(lost) == 1 else 'are'} never reached from the start"]
        gone = [name for name in self.policies if name not in self.mdp.policies]
        told = told if lost else []
        if gone:
            told.append(f"the policies {joined(gone)} no longer fit the rows and are left out")
        return told

    def errors_at(self, table: str, row: int | str, column: str) -> list[str]:
        """Remedies for one cell."""
        return [e.remedy for e in self.errors if e[:3] == (table, row, column)]

    @cached_property
    def _checked(self) -> tuple[tuple[CellError, ...], MDP | None, Solution | None]:
        problems = _Problems()
        self._check_cells(problems)
        if problems:
            return tuple(problems), None, None
        try:
            mdp = self._make()
        except InputError as error:
            problems.add("settings", "", error.field, error.value, error.remedy)
            return tuple(problems), None, None
        try:
            return (), mdp, solve(mdp, self.policy)
        except RetvarError as error:
            remedy = error.remedy if isinstance(error, InputError) else str(error)
            problems.add("settings", "", "policy", self.policy, remedy)
            return tuple(problems), None, None

    @cached_property
    def _edges(self) -> list[Edge]:
        """The rows that have a probability above 0 as edges, once they have no errors."""
        return [
            Edge(
                row.state.strip(),
                row.action.strip(),
                row.next_state.strip(),
                *(_number(column, getattr(row, column)) for column in NUMBERS),
            )
            for row in self.rows
            if _number("probability", row.probability) > 0
        ]

    @property
    def _start(self) -> str:
        return self.start.strip() or self.states[0]

    def _own(self, column: str) -> list[float]:
        """γ or λ of each state."""
        shared = getattr(self, column)
        texts = [getattr(self.discounts.get(s, Discount()), column).strip() for s in self.states]
        return [_number(column, text or shared) for text in texts]

    def _make(self) -> MDP:
        gamma, lam = (self._own(column) for column in DISCOUNTS)
        positions = [self.positions[s] for s in self.states if s in self.positions]
        return MDP.from_edges(
            self._edges,
            gamma=_shared(gamma),
            lam=_shared(lam),
            start=self._start,
            states=self.states,
            policies=self._fitting() or None,
            positions=positions if len(positions) == len(self.states) else None,
            name=self.name,
        )

    def _fitting(self) -> dict[str, Any]:
        """The named policies that choose among the actions of every state."""
        actions: dict[str, set[str]] = defaultdict(set)
        for edge in self._edges:
            actions[str(edge.state)].add(str(edge.action))
        return {
            name: table
            for name, table in self.policies.items()
            if set(table) == set(self.states) and all(set(table[s]) <= actions[s] for s in table)
        }

    # ------------------------------------------------------------------ checks

    def _check_cells(self, problems: _Problems) -> None:
        if not self.rows:
            problems.add("settings", "", "rows", "none", "must hold at least one edge; add a row")
            return
        numbers = [
            {c: problems.number("edges", k, c, getattr(row, c)) for c in NUMBERS}
            for k, row in enumerate(self.rows)
        ]
        self._check_names(problems)
        self._check_sums(problems, [each["probability"] for each in numbers])
        for column in DISCOUNTS:
            problems.number("settings", "", column, getattr(self, column))
            for state in self.states:
                text = getattr(self.discounts.get(state, Discount()), column)
                if text.strip():
                    problems.number("states", state, column, text)
        if self.start.strip() and self.start.strip() not in self.states:
            remedy = f"{did_you_mean(self.start, self.states)}must be one of {listed(self.states)}"
            problems.add("settings", "", "start", self.start, remedy)
        known = [*ALWAYS, *self.policies]
        if self.policy not in known:
            problems.add("settings", "", "policy", self.policy, f"must be one of {listed(known)}")
        if not problems:
            self._check_ends(problems)

    def _check_names(self, problems: _Problems) -> None:
        for k, row in enumerate(self.rows):
            for column in ("state", "action", "next_state"):
                if not getattr(row, column).strip():
                    more = f", or {END_NAME} where the episode ends" * (column == "next_state")
                    problems.add("edges", k, column, getattr(row, column), f"give a name{more}")
            if row.state.strip() == END_NAME:
                remedy = "is reserved for the end of an episode; use another name"
                problems.add("edges", k, "state", row.state, remedy)
            to = row.next_state.strip()
            if to and to != END_NAME and to not in self.states:
                hint = did_you_mean(to, [*self.states, END_NAME])
                remedy = f"{hint}no row leaves {to}: add one with this state, or write {END_NAME}"
                problems.add("edges", k, "next_state", row.next_state, remedy)

    def _check_sums(self, problems: _Problems, probabilities: Sequence[float]) -> None:
        """Each pair of a state and an action must have probabilities that sum to 1."""
        pairs: dict[tuple[str, str], list[int]] = defaultdict(list)
        for k, row in enumerate(self.rows):
            pairs[row.state.strip(), row.action.strip()].append(k)
        for (state, action), members in pairs.items():
            total = math.fsum(probabilities[k] for k in members)
            if math.isnan(total) or abs(total - 1) <= arguments.TOLERANCE or not (state and action):
                continue
            for k in members:
                rest = 1 - (total - probabilities[k])
                hint = f"; {_typed(round(rest, 9))} here would do" if 0 < rest <= 1 else ""
                remedy = f"{state}, {action} sums to {total:.9g}: must sum to 1{hint}"
                problems.add("edges", k, "probability", self.rows[k].probability, remedy)

    def _check_ends(self, problems: _Problems) -> None:
        """From every state the return must be discounted at some time, or end."""
        gamma = dict(zip(self.states, self._own("gamma"), strict=True)) | {END_NAME: 0.0}
        taken = [(e.state, e.next_state) for e in self._edges if e.probability > 0]
        done = {s for s, t in taken if gamma[str(t)] < 1}
        for _ in self.states:
            done |= {s for s, t in taken if t in done}
        for k, row in enumerate(self.rows):
            if row.state.strip() not in done:
                remedy = (
                    f"{row.state.strip()} never ends, and γ is 1: lead to {END_NAME}, or lower γ"
                )
                problems.add("edges", k, "next_state", row.next_state, remedy)

    # ------------------------------------------------------------------ what is shown

    def graph(self) -> str:
        """The MDP drawn with its exact answers, as SVG; while there are errors, a sentence."""
        if self.mdp is None or self.solution is None:
            return f"<p>{escaped(self.status())} The drawing follows once they are mended.</p>"
        numbers = [minus(plus_minus(x.mean, x.std, "∞")) for x in self.solution]
        return graph_svg(self.mdp, self.mdp.policy(self.policy), numbers=numbers)

    def answers(self) -> list[list[str]]:
        """Value, std and variance of each state, as rows of text.

        >>> Editor((Row("a", "go", "end", "1", "2", "3"),)).answers()
        [['a', '2.00 ± 3.00', '9.00']]
        """
        if self.solution is None:
            return []
        return [
            [name, minus(plus_minus(x.mean, x.std, "∞")), number(x.variance)]
            for name, x in zip(self.states, self.solution, strict=True)
        ]

    def chart(self) -> str:
        """Value ± std by state, as SVG."""
        found = self.solution
        if found is None or len(found) > MOST_SHOWN:
            return ""
        value, std = np.asarray(found.value), np.asarray(found.std)
        dots = [Dots("value ± std", value, colour(0), value - std, value + std)]
        return dot_chart("Exact return by state", self.states, dots, y_label="return")

    def status(self) -> str:
        """One sentence: how many cells are wrong, or what the MDP is.

        >>> Editor((Row("a", "go", "end", "x"),)).status()
        '1 cell needs attention.'
        """
        if self.mdp is None:
            wrong = count(len(self.errors), "cell")
            return f"{wrong} need{'s' if len(self.errors) == 1 else ''} attention."
        states, rows = count(len(self.states), "state"), count(len(self._edges), "edge")
        return f"{states}, {rows}. " + " ".join(f"{each}." for each in self.remarks)

    # ------------------------------------------------------------------ exports

    def toml(self) -> str:
        """The file that :meth:`retvar.MDP.from_toml` reads."""
        return toml_text(self._require())

    def json(self) -> str:
        """The same fields as JSON; ``retvar.MDP.from_edges(**data)`` takes them.

        >>> import json, retvar as rv
        >>> editor = Editor.from_mdp(rv.domains.chain())
        >>> rv.MDP.from_edges(**json.loads(editor.json())) == editor.mdp
        True
        """
        return json.dumps(self._settings(), indent=1, ensure_ascii=False)

    def code(self) -> str:
        """Python that makes the MDP and solves it.

        >>> print(Editor((Row("a", "go", "end", "1", "2"),), gamma="0.9").code())
        import retvar as rv
        <BLANKLINE>
        mdp = rv.MDP.from_edges(
            [  # state, action, next state, probability, reward, std of the reward
                ("a", "go", "end", 1.0, 2.0, 0.0),
            ],
            gamma=0.9,
            lam=1.0,
            start="a",
        )
        print(rv.solve(mdp))
        <BLANKLINE>
        """
        first = next(iter(self._require().policies))
        asked = "" if self.policy == first else f", {_source(self.policy)}"
        return f"import retvar as rv\n\n{self.source()}\nprint(rv.solve(mdp{asked}))\n"

    def source(self) -> str:
        """The lines that assign the MDP to ``mdp``."""
        given = self._settings()
        rows = [[edge[column] for column in COLUMNS] for edge in given.pop("edges")]
        lines = [f"        ({', '.join(map(_source, row))})," for row in rows]
        lines += ["    ],", *(f"    {key}={_source(value)}," for key, value in given.items())]
        head = "    [  # state, action, next state, probability, reward, std of the reward"
        return "\n".join(["mdp = rv.MDP.from_edges(", head, *lines, ")"])

    def _settings(self) -> dict[str, Any]:
        """Arguments of ``MDP.from_edges`` that give the MDP, as plain data."""
        mdp = self._require()
        rows = [dict(zip(COLUMNS, edge[:6], strict=True)) for edge in self._edges]
        given: dict[str, Any] = {"edges": rows}
        for column in DISCOUNTS:
            given[column] = _shared(self._own(column))
        if list(dict.fromkeys(_mentioned(self._edges))) != self.states:
            given["states"] = self.states
        given["start"] = self._start
        if self._fitting():
            given["policies"] = {
                name: {s: dict(choice) for s, choice in by_state.items()}
                for name, by_state in self._fitting().items()
            }
        if mdp.positions is not None:
            given["positions"] = mdp.positions.tolist()
        if self.name:
            given["name"] = self.name
        return given

    def _require(self) -> MDP:
        if self.mdp is None:
            first = self.errors[0]
            raise InputError(first.column, first.value, first.remedy)
        return self.mdp


# ---------------------------------------------------------------------- the table as HTML


def editor_table(editor: Editor, fields: Mapping[tuple[int, str], str], ends: Sequence[str]) -> str:
    """The table of edges, with the HTML of a field for each cell, and errors below the fields.

    Parameters
    ----------
    editor
        What was typed.
    fields
        (row, column) → HTML of the field.
    ends
        HTML at the end of each row, such as a button that removes it.

    Examples
    --------
    >>> editor = Editor((Row("a", "go", "end", "x"),))
    >>> shown = editor_table(editor, {(0, column): "<input/>" for column in COLUMNS}, [""])
    >>> shown.count("<input/>"), "must be a number" in shown
    (6, True)
    """
    head = "".join(f"<th>{escaped(title)}</th>" for title in ("", *COLUMNS.values(), ""))
    rows = []
    for k in range(len(editor.rows)):
        cells = "".join(_cell(editor, "edges", k, c, fields[k, c]) for c in COLUMNS)
        rows.append(f"<tr><th>{k + 1}</th>{cells}<td>{ends[k]}</td></tr>")
    return _html_table(head, rows, "edges")


def discount_table(editor: Editor, fields: Mapping[tuple[str, str], str]) -> str:
    """γ and λ of each state, with the HTML of a field for each cell.

    >>> editor = Editor((Row("a", "go", "end"),))
    >>> discount_table(editor, {("a", "gamma"): "<i/>", ("a", "lam"): "<i/>"}).count("<i/>")
    2
    """
    head = "".join(f"<th>{escaped(title)}</th>" for title in ("state", *DISCOUNTS.values()))
    rows = [
        f"<tr><th>{escaped(state)}</th>"
        + "".join(_cell(editor, "states", state, c, fields[state, c]) for c in DISCOUNTS)
        + "</tr>"
        for state in editor.states
    ]
    return _html_table(head, rows, "states")


def settings_table(editor: Editor, fields: Mapping[str, str]) -> str:
    """γ and λ of all states, and the start, with the HTML of a field for each.

    >>> shown = settings_table(example(), dict.fromkeys(FIELDS, "<i/>"))
    >>> shown.count("<i/>")
    3
    """
    head = "".join(f"<th>{escaped(SETTINGS[column])}</th>" for column in FIELDS)
    cells = "".join(_cell(editor, "settings", "", c, fields[c]) for c in FIELDS)
    return _html_table(head, [f"<tr>{cells}</tr>"], "settings")


def _cell(editor: Editor, table: str, row: int | str, column: str, field: str) -> str:
    """A cell with its field and what is wrong with it; the same elements with and without."""
    wrong = editor.errors_at(table, row, column)
    look = ' class="rv-wrong" aria-invalid="true"' if wrong else ' class="rv-right"'
    told = f'<div class="rv-remedy" role="alert">{escaped("; ".join(wrong))}</div>'
    place = f'data-cell="{table}/{escaped(row)}/{column}"'
    return f'<td{look} {place}><div class="rv-field">{field}</div>{told}</td>'


def _html_table(head: str, rows: Sequence[str], name: str) -> str:
    body = f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    table = f'<table class="rv-editor" data-table="{name}">{body}</table>'
    return f'<div style="overflow-x:auto">{table}</div>'


STYLE = (
    ".rv-editor{border-collapse:collapse;font-size:.9rem;color:var(--rv-ink);margin:.2rem 0}"
    ".rv-editor th{font-weight:600;text-align:left;padding:3px 6px;color:var(--rv-soft);"
    "vertical-align:top}"
    ".rv-editor td{padding:1px 2px;vertical-align:top;min-width:4.2rem;width:5.4rem;"
    "max-width:5.8rem}"
    ".rv-editor td:last-child{min-width:0}"
    f".rv-wrong .rv-field{{outline:2px solid {ORANGE};border-radius:5px}}"
    f".rv-remedy{{color:{ORANGE};font-size:.8rem;line-height:1.25;padding:2px 1px}}"
    ".rv-remedy:empty{display:none}"
)
"""CSS of the tables."""


# ---------------------------------------------------------------------- texts and numbers


def example() -> Editor:
    """A small MDP to begin with: a shop with two states and a choice.

    >>> example().errors
    ()
    """
    return Editor(
        (
            Row("full", "sell", "full", "0.6", "2", "0.5"),
            Row("full", "sell", "empty", "0.4", "3", "0.5"),
            Row("full", "keep", "full", "1", "0.5"),
            Row("empty", "wait", "full", "0.9", "-1"),
            Row("empty", "wait", "end", "0.1"),
        ),
        gamma="0.95",
        lam="0.9",
        start="full",
        name="shop",
    )


def _number(column: str, text: str) -> float:
    """A finite number, also a fraction as 1/3."""
    plain = text.strip().replace("−", "-")
    if not plain:
        raise InputError(column, text, "give a number")
    try:
        if "/" in plain:
            return arguments.number(column, float(Fraction(plain.replace(" ", ""))))
        return arguments.number(column, float(plain))
    except (ValueError, ZeroDivisionError, OverflowError) as error:
        if isinstance(error, InputError):
            raise InputError(column, text, "must be a finite number") from None
    hint = "; write a point, not a comma" if "," in plain else ""
    raise InputError(column, text, f"must be a number{hint}")


def _typed(x: float) -> str:
    """A number as one types it, with all its digits."""
    return str(int(x)) if x == int(x) and abs(x) < 1e15 else repr(float(x))


def _shared(values: Sequence[float]) -> float | list[float]:
    """One number if all are equal."""
    return values[0] if len(set(values)) == 1 else list(values)


def _most_common(values: Any) -> float:
    found, times = np.unique(values, return_counts=True)
    return float(found[np.argmax(times)])


def _policy_table(mdp: MDP, pi: Any) -> dict[str, dict[str, float]]:
    return {
        mdp.state_name(s): {
            mdp.action_name(a): float(pi[s, a]) for a in np.flatnonzero(pi[s]).tolist()
        }
        for s in range(mdp.n_states)
    }


def _mentioned(edges: Sequence[Edge]) -> Iterator[str]:
    """States in the order in which an MDP without a list of states numbers them."""
    for edge in edges:
        yield from (str(s) for s in (edge.state, edge.next_state) if s != END_NAME)


def _source(value: Any) -> str:
    """Python source of plain data, with double quotes."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_source(k)}: {_source(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_source, value)) + "]"
    return repr(value)
