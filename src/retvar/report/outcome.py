"""What came out of a reproduction."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from retvar.experiments import Claim, Experiment, Finding, Simulation
from retvar.report.figures import Drawn
from retvar.report.table1 import Row, is_table

__all__ = ["Asked", "Checked", "Outcome", "Reproduction"]

PLAIN_LOOP = 10e-6  # seconds that an update takes in a plain Python loop over numpy scalars


@dataclass(frozen=True)
class Asked:
    """How a reproduction was called, but for the ids and the folder."""

    seed: int = 0
    runs: int | None = None
    methods: tuple[str, ...] | None = None
    file: str | None = None  #: its name, without the folder

    def command(self, name: str) -> str:
        """What to type for one experiment alone.

        >>> Asked(seed=3, runs=2).command("table-1")
        'retvar reproduce table-1 --seed 3 --runs 2 --out rerun'
        """
        parts = ["retvar reproduce", name]
        parts += [f"--file {self.file}"] if self.file else []
        parts += [f"--seed {self.seed}"] if self.seed else []
        parts += [f"--runs {self.runs}"] if self.runs is not None else []
        parts += [f"--methods {','.join(self.methods)}"] if self.methods is not None else []
        return " ".join([*parts, "--out rerun"])


@dataclass(frozen=True)
class Checked:
    """A claim and what was found."""

    claim: Claim
    finding: Finding


@dataclass(frozen=True)
class Outcome:
    """One experiment, done."""

    experiment: Experiment
    checked: tuple[Checked, ...] = ()
    drawn: Drawn | None = None
    rows: tuple[Row, ...] = ()
    simulated: dict[str, float] = field(default_factory=dict)  #: seconds of each data file
    drawing: float = 0.0  #: seconds of drawing and checking
    problem: str = ""  #: why there is no figure

    @property
    def id(self) -> str:
        """The experiment's."""
        return self.experiment.id

    @property
    def seconds(self) -> float:
        """Simulating, even if others share it, drawing and checking."""
        return sum(self.simulated.values()) + self.drawing

    @property
    def held(self) -> int:
        """How many claims hold."""
        return sum(each.finding.holds for each in self.checked)


@dataclass(frozen=True)
class Reproduction:
    """Everything that came out, in the order of the declarations.

    >>> Reproduction((), Asked()).plain()
    {'experiments': {}}
    """

    outcomes: tuple[Outcome, ...]
    asked: Asked
    elapsed: float = 0.0  #: seconds of this run
    unique: dict[str, Simulation] = field(default_factory=dict)  #: by the name of the data file
    computed: int = 0  #: how many simulations were computed now

    def __getitem__(self, name: str) -> Outcome:
        return next(outcome for outcome in self.outcomes if outcome.id == name)

    @property
    def checked(self) -> tuple[Checked, ...]:
        """All claims."""
        return tuple(each for outcome in self.outcomes for each in outcome.checked)

    @property
    def problems(self) -> dict[str, str]:
        """What could not be drawn, and why."""
        return {outcome.id: outcome.problem for outcome in self.outcomes if outcome.problem}

    def plain(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        found: dict[str, Any] = {
            "experiments": {
                outcome.id: {"claims": [_plain(each) for each in outcome.checked]}
                for outcome in self.outcomes
            }
        }
        tables = [outcome for outcome in self.outcomes if is_table(outcome.experiment)]
        if tables:
            found["rows"] = [row.plain() for outcome in tables for row in outcome.rows]
        return found

    def seconds(self, *sources: str) -> float:
        """Time of all experiments (from these sources), shared simulations counted once."""
        chosen = [o for o in self.outcomes if not sources or o.experiment.source in sources]
        simulated = {name: s for outcome in chosen for name, s in outcome.simulated.items()}
        return sum(simulated.values()) + sum(outcome.drawing for outcome in chosen)

    def updates(self, *sources: str) -> float:
        """Updates of a learner that it takes (from these sources)."""
        chosen = [o for o in self.outcomes if not sources or o.experiment.source in sources]
        names = {name for outcome in chosen for name in outcome.simulated}
        return math.fsum(self.unique[name].updates for name in names)

    def plain_loop(self, *sources: str) -> float:
        """Seconds that a plain loop would need for them."""
        return self.updates(*sources) * PLAIN_LOOP


def _plain(each: Checked) -> dict[str, Any]:
    return {
        "name": each.claim.name,
        "holds": bool(each.finding.holds),
        "measured": str(each.finding.measured),
    }


def sources(outcomes: Iterable[Outcome]) -> set[str]:
    """Where the experiments come from."""
    return {outcome.experiment.source for outcome in outcomes}
