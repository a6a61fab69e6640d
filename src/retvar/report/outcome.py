"""Results of a reproduction."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retvar.experiments import Claim, Experiment, Finding, Simulation
from retvar.experiments.sentences import SENTENCES, Sentence
from retvar.format import count, duration, visible
from retvar.report.figures import DrawnFigure
from retvar.report.table1 import Row, is_table
from retvar.web.rendering import anchor

__all__ = ["CheckedClaim", "Outcome", "Reproduction", "Request"]

PLAIN_LOOP = 10e-6  # seconds of an update in a plain Python loop over numpy scalars


@dataclass(frozen=True)
class Request:
    """The arguments of a reproduction that determine its results."""

    seed: int = 0
    runs: int | None = None
    methods: tuple[str, ...] | None = None
    file: str | None = None  #: its name, without the folder

    def command(self, name: str) -> str:
        """The command that reproduces one experiment.

        >>> Request(seed=3, runs=2).command("table-1")
        'retvar reproduce table-1 --seed 3 --runs 2 --out rerun'
        """
        parts = ["retvar reproduce", name]
        parts += [f"--file {shlex.quote(self.file)}"] if self.file else []
        parts += [f"--seed {self.seed}"] if self.seed else []
        parts += [f"--runs {self.runs}"] if self.runs is not None else []
        parts += [f"--methods {','.join(self.methods)}"] if self.methods is not None else []
        return " ".join([*parts, "--out rerun"])


@dataclass(frozen=True)
class CheckedClaim:
    """A claim and its finding."""

    claim: Claim
    finding: Finding

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as printed by ``--json``."""
        return {
            "name": self.claim.name,
            "holds": bool(self.finding.holds),
            "measured": str(self.finding.measured),
        }


@dataclass(frozen=True)
class Outcome:
    """The result of one experiment."""

    experiment: Experiment
    checked: tuple[CheckedClaim, ...] = ()
    drawn: DrawnFigure | None = None
    rows: tuple[Row, ...] = ()
    simulated: dict[str, float] = field(default_factory=dict)  #: seconds of each data file
    drawing: float = 0.0  #: seconds of drawing and checking
    problem: str = ""  #: why there is no figure

    @property
    def id(self) -> str:
        """The id of the experiment."""
        return self.experiment.id

    @property
    def seconds(self) -> float:
        """Time of simulating (shared simulations included), drawing and checking."""
        return sum(self.simulated.values()) + self.drawing

    def claim_anchor(self, number: int) -> str:
        """The place of a claim in the page.

        >>> Outcome(Experiment("a/b", "A")).claim_anchor(2)
        'claim-a--b-2'
        """
        return anchor("claim", self.id, number)

    @property
    def held(self) -> int:
        """The number of claims that hold."""
        return sum(each.finding.holds for each in self.checked)


@dataclass(frozen=True)
class Reproduction:
    """The results of all experiments, in the order of their declarations.

    >>> found = Reproduction((), Request(), elapsed=2.5)
    >>> found.to_dict()
    {'experiments': {}}
    >>> print(found.summary(Path("mine")))
    No claims were checked.
    0 experiments in 2.5 s; see mine/index.html
    """

    outcomes: tuple[Outcome, ...]
    request: Request
    elapsed: float = 0.0  #: seconds of this run
    unique: dict[str, Simulation] = field(default_factory=dict)  #: by the name of the data file
    computed: int = 0  #: the number of simulations that this run computed

    def __getitem__(self, name: str) -> Outcome:
        return next(outcome for outcome in self.outcomes if outcome.id == name)

    @property
    def checked(self) -> tuple[CheckedClaim, ...]:
        """All claims."""
        return tuple(each for outcome in self.outcomes for each in outcome.checked)

    @property
    def failures(self) -> list[tuple[Outcome, CheckedClaim]]:
        """Claims that do not hold, with their experiments."""
        return [(o, each) for o in self.outcomes for each in o.checked if not each.finding.holds]

    @staticmethod
    def sentence(claim: Claim) -> Sentence | None:
        """The sentence that a claim stands for, if it is one of the paper's."""
        return SENTENCES.get(claim.sentence)

    @property
    def sentences(self) -> list[tuple[Sentence, list[tuple[Outcome, int]]]]:
        """Sentences of the paper, each with the claims that stand for it, by number."""
        found: dict[str, list[tuple[Outcome, int]]] = {}
        for outcome in self.outcomes:
            for number, each in enumerate(outcome.checked):
                found.setdefault(each.claim.sentence, []).append((outcome, number))
        return [(each, found[key]) for key, each in SENTENCES.items() if key in found]

    @property
    def problems(self) -> dict[str, str]:
        """Why figures could not be drawn, by experiment id."""
        return {outcome.id: outcome.problem for outcome in self.outcomes if outcome.problem}

    @property
    def verdict(self) -> str:
        """How many claims hold, as a sentence."""
        total, held = len(self.checked), sum(each.finding.holds for each in self.checked)
        if not total:
            return "No claims were checked."
        if held == total:
            return "The claim holds." if total == 1 else f"All {total} claims hold."
        rest = total - held
        explained = sum(bool(each.claim.explained) for _, each in self.failures)
        reason = f", {explained} explained" if explained else ""
        if explained == rest:
            reason = " and is explained" if rest == 1 else " and are explained"
        fails = "does not" if rest == 1 else "do not"
        return f"{held} of {total} claims hold; {rest} {fails}{reason}."

    def summary(self, out: Path) -> str:
        """The verdict, claims that fail, and where the report in the folder `out` is."""
        lines = [self.verdict]
        for outcome, each in self.failures:
            reason = " (explained in the report)" if each.claim.explained else ""
            text = f"{outcome.id}: {each.claim.name}: {each.finding.measured}{reason}"
            lines.append(f"  ✗ {visible(text)}")
        lines += [
            f"  {visible(f'{name}: the figure {problem}')}"
            for name, problem in self.problems.items()
        ]
        done = count(len(self.outcomes), "experiment")
        return "\n".join([*lines, f"{done} in {duration(self.elapsed)}; see {out / 'index.html'}"])

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as printed by ``--json``."""
        found: dict[str, Any] = {
            "experiments": {
                outcome.id: {"claims": [each.to_dict() for each in outcome.checked]}
                for outcome in self.outcomes
            }
        }
        tables = [outcome for outcome in self.outcomes if is_table(outcome.experiment)]
        if tables:
            found["rows"] = [row.to_dict() for outcome in tables for row in outcome.rows]
        return found

    def seconds(self, *sources: str) -> float:
        """Time of all experiments (from these sources); shared simulations are counted once."""
        chosen = self._from(sources)
        simulated = {name: s for outcome in chosen for name, s in outcome.simulated.items()}
        return sum(simulated.values()) + sum(outcome.drawing for outcome in chosen)

    def updates(self, *sources: str) -> float:
        """The number of learner updates of all experiments (from these sources)."""
        names = {name for outcome in self._from(sources) for name in outcome.simulated}
        return math.fsum(self.unique[name].updates for name in names)

    def plain_loop(self, *sources: str) -> float:
        """Seconds that a plain Python loop would need for these updates."""
        return self.updates(*sources) * PLAIN_LOOP

    def _from(self, sources: tuple[str, ...]) -> list[Outcome]:
        return [o for o in self.outcomes if not sources or o.experiment.source in sources]
