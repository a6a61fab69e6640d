"""More views of the lab: an MDP of one's own, a grid world, and the frontier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from retvar.errors import InputError
from retvar.format import minus, number, plus_minus, short_number
from retvar.lab import editor as tables
from retvar.lab.editor import COLUMNS, DISCOUNTS, FIELDS, Discount, Editor, example
from retvar.lab.frontier import DOMAINS, FrontierChoices
from retvar.lab.grid import METHODS, POLICIES, WORLDS, GridSettings, GridWorld
from retvar.lab.problem import Problem
from retvar.lab.views import Control, Screen, Shelf

__all__ = ["VIEWS", "EditorView", "FrontierView", "GridView"]

BEGIN = ("shop", "chain", "complex-mdp", "random-walk", "empty")  # tables to begin with
EDITED = "your own MDP"
GAMMAS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)
EPSILONS = tuple(round(k / 20, 2) for k in range(21))
ALPHAS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
LENGTHS = (2_000, 20_000, 100_000)


class EditorView:
    """An MDP edited as a table of edges, with its exact answers; other views can choose it.

    >>> view = EditorView(Shelf())
    >>> view.show({"begin": "shop", "policy": "uniform"}, 0).rows[0]
    ['full', '16.49 ± 3.36', '11.3']
    >>> view.shelf.names()[-1]
    'your own MDP'
    """

    title = "Your own MDP"

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf
        self.begin = BEGIN[0]
        self.draft = example()
        self._first = self.draft.mdp  # until it is edited, other views keep their domains

    def sources(self) -> list[Control]:
        """The table to begin with."""
        told = "replaces the table"
        return [Control("begin", "choice", "begin with", BEGIN, self.begin, told)]

    def controls(self, source: Mapping[str, Any]) -> list[Control]:
        """The policy."""
        self._begin(source["begin"])
        known = dict.fromkeys(["uniform", "greedy", *self.draft.policies])
        return [Control("policy", "choice", "policy", list(known), self.draft.policy)]

    def _begin(self, name: str) -> None:
        """Begin with another table, if it is another one."""
        if name != self.begin:
            self.begin, self.draft = name, _begun(name)

    def length(self, values: Mapping[str, Any]) -> int:
        """Nothing moves."""
        return 0

    # ------------------------------------------------------------------ fields

    def fields(self, source: Mapping[str, Any]) -> dict[str, str]:
        """Texts of the fields of edges and settings, by ``table/row/column``."""
        self._begin(source["begin"])
        rows = {
            f"edges/{k}/{column}": getattr(row, column)
            for k, row in enumerate(self.draft.rows)
            for column in COLUMNS
        }
        return rows | {f"settings//{name}": getattr(self.draft, name) for name in FIELDS}

    def discounts(self, texts: Mapping[str, str]) -> dict[str, str]:
        """Texts of the fields of γ and λ of single states, after others were typed."""
        self.take(texts)
        return {
            f"states/{state}/{column}": getattr(self.draft.discounts.get(state, Discount()), column)
            for state in self.draft.states
            for column in DISCOUNTS
        }

    def take(self, texts: Mapping[str, str]) -> None:
        """Take over what was typed into fields; those of rows that are gone are left out."""
        rows = len(self.draft.rows)
        kept = {
            key: text
            for key, text in texts.items()
            if not key.startswith("edges/") or int(key.split("/")[1]) < rows
        }
        self.draft = self.draft.typed(kept)

    def add(self) -> None:
        """Add a row, as long as there is room."""
        if len(self.draft.rows) < tables.MOST_ROWS:
            self.draft = self.draft.add()

    def remove(self, row: int) -> None:
        """Remove a row."""
        if row < len(self.draft.rows):
            self.draft = self.draft.remove(row)

    def table(self, fields: Mapping[str, Any], ends: Sequence[Any], more: str) -> str:
        """The tables as HTML, with the HTML of fields and of what ends each row."""
        rows = range(len(self.draft.rows))
        edges = {(k, c): format(fields[f"edges/{k}/{c}"]) for k in rows for c in COLUMNS}
        own = {name: format(fields[f"settings//{name}"]) for name in FIELDS}
        parts = [
            f"<style>{tables.STYLE}</style>",
            tables.editor_table(self.draft, edges, [format(ends[k]) for k in rows]),
            f"<div>{more}</div>",
            tables.settings_table(self.draft, own),
        ]
        return "".join(parts)

    def discount_table(self, fields: Mapping[str, Any]) -> str:
        """The table of γ and λ of single states as HTML; of those that have fields."""
        cells = {
            (state, c): format(fields[f"states/{state}/{c}"])
            if f"states/{state}/{c}" in fields
            else ""
            for state in self.draft.states
            for c in DISCOUNTS
        }
        return tables.discount_table(self.draft, cells)

    # ------------------------------------------------------------------ answers

    def show(self, values: Mapping[str, Any], step: int) -> Screen:
        """The graph with the exact answers, and the MDP in three formats."""
        self._begin(values["begin"])
        self.draft = draft = replace(self.draft, policy=values["policy"])
        if draft.mdp is None:
            general = [str(e) for e in draft.errors if e.table == "settings"]
            return Screen(sentences=[draft.status(), *general])
        self.shelf.put(EDITED, Problem(draft.mdp, draft.source()), draft.mdp != self._first)
        return Screen(
            charts=[draft.graph(), draft.chart()],
            sentences=[draft.status()],
            heading=["state", "value ± std", "variance"],
            rows=draft.answers(),
            code=draft.code(),
            exports={"mdp.toml": draft.toml(), "mdp.json": draft.json()},
            note="Exact, for the λ-return under this policy. The other views can choose "
            f"“{EDITED}” as their domain.",
        )


def _begun(name: str) -> Editor:
    """A table to begin with, by name."""
    if name == BEGIN[0]:
        return example()
    if name == BEGIN[-1]:
        return Editor(()).add()
    return Editor.from_mdp(Problem.named(name).mdp if name != BEGIN[3] else _short_walk())


def _short_walk() -> Any:
    from retvar.domains import random_walk

    return random_walk(6)


class GridView:
    """A Gymnasium grid world: maps of value and spread fill in beside the exact ones.

    >>> [control.name for control in GridView(Shelf()).sources()]
    ['world']
    """

    title = "A grid world"

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf
        self._world: GridWorld | None = None

    def sources(self) -> list[Control]:
        """The world."""
        return [Control("world", "choice", "world", list(WORLDS), next(iter(WORLDS)))]

    def controls(self, source: Mapping[str, Any]) -> list[Control]:
        """The policy, the method, and the length of the run."""
        own = GridSettings(world=source["world"])
        lengths = {f"{n:,}": n for n in LENGTHS}
        return [
            Control("policy", "choice", "policy", POLICIES, own.policy),
            Control("epsilon", "slider", "ε", EPSILONS, own.epsilon, "share of random actions"),
            Control("method", "choice", "method", METHODS, own.method),
            Control("alpha", "slider", "α", ALPHAS, own.alpha, "step size; least squares has none"),
            Control("gamma", "slider", "γ", GAMMAS, own.gamma),
            Control("steps", "choice", "steps of a run", lengths, LENGTHS[1], more=True),
            Control("seed", "number", "seed", (0, 999_999), 0, more=True),
        ]

    def length(self, values: Mapping[str, Any]) -> int:
        """The length of the run."""
        return int(values["steps"])

    def model(self, values: Mapping[str, Any], step: int) -> GridWorld:
        """The world after some steps; the same one goes on, unless a setting has changed."""
        names = ("world", "policy", "epsilon", "gamma", "method", "alpha")
        given = {name: values[name] for name in names}
        settings = GridSettings(**given, seed=int(values["seed"]))
        if self._world is None or self._world.settings != settings or self._world.steps > step:
            self._world = GridWorld(settings)
        if step > self._world.steps and not self._world.failure:
            self._world.advance(step - self._world.steps)
        return self._world

    def show(self, values: Mapping[str, Any], step: int) -> Screen:
        """Maps, errors and code."""
        world = self.model(values, step)
        value, std = (number(x) for x in world.errors)
        rows = [
            [f"{world.steps:,}", f"{world.episodes:,}", value, std],
        ]
        return Screen(
            charts=[world.page()],
            sentences=[world.status()],
            heading=["steps", "episodes", "value error", "std error"],
            rows=rows,
            code=world.code(),
            note=world.letters(),
        )


class FrontierView:
    """The frontier of mean and variance, under a slider for the penalty.

    >>> [control.label for control in FrontierView(Shelf()).controls({"domain": "a bet"})]
    ['penalty']
    """

    title = "Risk against return"

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf
        self._found: dict[str, tuple[object, FrontierChoices]] = {}

    def sources(self) -> list[Control]:
        """The domain."""
        names = [*DOMAINS, *self.shelf.problems]
        return [Control("domain", "choice", "domain", names, names[0])]

    def model(self, name: str) -> FrontierChoices:
        """The policies found for a domain, searched for once."""
        own = self.shelf.problems.get(name)
        known, choices = self._found.get(name, (None, None))
        if choices is None or known is not own:
            domain = (own.mdp, own.code) if own is not None else DOMAINS[name]
            choices = FrontierChoices.search(*domain)
            self._found[name] = (own, choices)
        return choices

    def controls(self, source: Mapping[str, Any]) -> list[Control]:
        """The penalty; none where there is nothing to search for."""
        try:
            positions = self.model(source["domain"]).slider
        except InputError:
            return []
        told = "c: the policy has the largest mean − c × variance"
        return [Control("penalty", "slider", "penalty", positions, 0.0, told)]

    def length(self, values: Mapping[str, Any]) -> int:
        """Nothing moves."""
        return 0

    def show(self, values: Mapping[str, Any], step: int) -> Screen:
        """The frontier with the chosen policy, where it differs, and its returns."""
        choices, c = self.model(values["domain"]), float(values.get("penalty", 0.0))
        chosen = choices.choice(c)
        heading = ["best for penalties", "", "mean ± std"]
        ending = [choice.point.ending for choice in choices.choices]
        told = any(share is not None and share < 1 for share in ending)
        rows = []
        for choice, share in zip(choices.choices, ending, strict=True):
            mark = "chosen" if choice is chosen else ""
            earns = minus(plus_minus(choice.point.mean, choice.point.std))
            ends = [short_number(float(f"{share or 0.0:.2g}"))] if told else []
            rows.append([choice.span(), mark, earns, *ends])
        return Screen(
            charts=[choices.chart(c), choices.picture(c), choices.histogram(c)],
            sentences=[choices.status(c)],
            heading=[*heading, *(["share that ends"] if told else [])],
            rows=rows,
            code=choices.code(c),
            note=choices.note(c),
        )


VIEWS: list[Any] = [EditorView, GridView, FrontierView]
"""Classes of these views, in the order of their tabs."""
