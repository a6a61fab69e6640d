"""Results of a reproduction, and what the report says of them."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from retvar.paper.declarations import Cell, Claim, Experiment, Finding
from retvar.paper.sentences import SENTENCES, Sentence
from retvar.support.format import count, duration, visible
from retvar.web import anchor

SOURCES = {
    "paper": "first version of the paper",
    "conference": "conference version",
    "own": "beyond the paper",
}


@dataclass(frozen=True)
class Request:
    """The arguments of a reproduction that determine its results."""

    seed: int = 0
    runs: int | None = None
    methods: tuple[str, ...] | None = None
    file: str | None = None  #: its name, without the folder

    def command(self, name: str = "") -> str:
        """The command that reproduces one experiment, or all."""
        parts = ["retvar reproduce", name]
        parts += [f"--file {shlex.quote(self.file)}"] if self.file else []
        parts += [f"--seed {self.seed}"] if self.seed else []
        parts += [f"--runs {self.runs}"] if self.runs is not None else []
        parts += [f"--methods {','.join(self.methods)}"] if self.methods is not None else []
        return " ".join(filter(None, parts))


class CheckedClaim(NamedTuple):
    """A claim and its finding."""

    claim: Claim
    finding: Finding

    @property
    def sentence(self) -> Sentence | None:
        """The sentence that the claim stands for, if it is one of the paper's."""
        return SENTENCES.get(self.claim.sentence)


class DrawnFigure(NamedTuple):
    """The files of a figure, relative to the output folder, and the figure as a data URI."""

    files: dict[str, str]
    uri: str
    inches: tuple[float, float]


@dataclass(frozen=True)
class Outcome:
    """The result of one experiment."""

    experiment: Experiment
    checked: tuple[CheckedClaim, ...] = ()
    drawn: DrawnFigure | None = None
    rows: dict[str, dict[str, Cell]] = field(default_factory=dict)  #: of Table 1, by experiment
    problem: str = ""  #: why there is no figure

    @property
    def id(self) -> str:
        """The id of the experiment."""
        return self.experiment.id

    def claim_anchor(self, number: int) -> str:
        """The place of a claim in the page."""
        return anchor("claim", self.id, number)

    @property
    def held(self) -> int:
        """The number of claims that hold."""
        return sum(each.finding.holds for each in self.checked)


@dataclass(frozen=True)
class Reproduction:
    """The results of all experiments, in the order of their declarations."""

    outcomes: tuple[Outcome, ...]
    request: Request
    elapsed: float = 0.0  #: seconds of this run

    def __getitem__(self, name: str) -> Outcome:
        return next(outcome for outcome in self.outcomes if outcome.id == name)

    @property
    def numbered(self) -> list[tuple[Outcome, int, CheckedClaim]]:
        """All claims, with their experiments and their numbers there."""
        return [(o, number, each) for o in self.outcomes for number, each in enumerate(o.checked)]

    @property
    def failures(self) -> list[tuple[Outcome, int, CheckedClaim]]:
        """Claims that do not hold."""
        return [each for each in self.numbered if not each[2].finding.holds]

    @property
    def about_centred(self) -> list[tuple[Outcome, int, CheckedClaim]]:
        """Claims about the centred method."""
        return [each for each in self.numbered if "centred" in each[2].claim.methods]

    @property
    def sentences(self) -> list[tuple[Sentence, list[tuple[Outcome, int]]]]:
        """Sentences of the paper, each with the claims that stand for it, by number."""
        found: dict[str, list[tuple[Outcome, int]]] = {}
        for outcome, number, each in self.numbered:
            found.setdefault(each.claim.sentence, []).append((outcome, number))
        return [(each, found[key]) for key, each in SENTENCES.items() if key in found]

    @property
    def problems(self) -> dict[str, str]:
        """Why figures could not be drawn, by experiment id."""
        return {outcome.id: outcome.problem for outcome in self.outcomes if outcome.problem}

    @property
    def verdict(self) -> str:
        """How many claims hold, as a sentence."""
        total, rest = len(self.numbered), len(self.failures)
        if not total:
            return "No claims were checked."
        if not rest:
            return "The claim holds." if total == 1 else f"All {total} claims hold."
        explained = sum(bool(each.claim.explained) for _, _, each in self.failures)
        reason = f", {explained} explained" if explained else ""
        if explained == rest:
            reason = " and is explained" if rest == 1 else " and are explained"
        fails = "does not" if rest == 1 else "do not"
        return f"{total - rest} of {total} claims hold; {rest} {fails}{reason}."

    def summary(self, out: Path) -> str:
        """The verdict, claims that fail, and where the report in the folder `out` is."""
        lines = [self.verdict]
        for outcome, _, each in self.failures:
            reason = " (explained in the report)" if each.claim.explained else ""
            text = f"{outcome.id}: {each.claim.name}: {each.finding.measured}{reason}"
            lines.append(f"  ✗ {visible(text)}")
        for name, problem in self.problems.items():
            lines.append(f"  {visible(f'{name}: the figure {problem}')}")
        done = count(len(self.outcomes), "experiment")
        return "\n".join([*lines, f"{done} in {duration(self.elapsed)}; see {out / 'index.html'}"])

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as ``--json`` prints them; NaN (there null) was not measured."""
        found: dict[str, Any] = {"experiments": {o.id: {"claims": []} for o in self.outcomes}}
        for outcome, _, (claim, finding) in self.numbered:
            told = {"name": claim.name, "holds": bool(finding.holds)}
            told["measured"] = str(finding.measured)
            found["experiments"][outcome.id]["claims"].append(told)
        tables = [outcome for outcome in self.outcomes if outcome.experiment.published]
        if tables:
            found["rows"] = [_row(*row) for each in tables for row in each.rows.items()]
        return found


def _row(name: str, cells: dict[str, Cell]) -> dict[str, Any]:
    return {
        "experiment": name,
        **{column: cell.measured for column, cell in cells.items()},
        "stderr": {column: cell.stderr for column, cell in cells.items()},
        "published": {column: float(cell.printed) for column, cell in cells.items()},
    }
