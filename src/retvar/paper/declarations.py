"""Declarations of experiments: simulations, a plot and claims; and the rows of Table 1."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from retvar.mdp import MDP
from retvar.simulation import Record, simulate
from retvar.support.errors import InputError
from retvar.td.learners import Learner

if TYPE_CHECKING:
    import xarray

Data = Mapping[str, "xarray.Dataset"]  # by the name of the simulation


class Finding(NamedTuple):
    """The result of checking a claim: whether it holds, and what was measured."""

    holds: bool
    measured: str


@dataclass(frozen=True)
class Claim:
    """A statement about the data that is checked by a function.

    >>> import xarray
    >>> claim = Claim("the mean is positive", lambda data: Finding(bool(data["a"].x > 0), "1"))
    >>> claim.check({"a": xarray.Dataset({"x": 1.0})})
    Finding(holds=True, measured='1')
    """

    name: str
    check: Callable[[Data], Finding]
    methods: tuple[str, ...] = ("direct", "vtd")  #: the methods that it is about
    explained: str = ""  #: why it fails, if known
    sentence: str = ""  #: key of the sentence that it stands for, in `retvar.paper.sentences`


@dataclass(frozen=True, eq=False)
class Simulation:
    """The arguments of one call of ``simulate``, with a name.

    Results are stored under a digest of the arguments; the name only helps to read file names.

    >>> import retvar as rv
    >>> mdp = rv.domains.complex_mdp()
    >>> one = Simulation("one", mdp, {"direct": rv.Direct(alpha=0.1)}, steps=10)
    >>> one.run(seed=0).sizes["step"]
    10
    """

    name: str
    mdp: MDP
    learners: Mapping[str, Learner]
    steps: int | None = None
    episodes: int | None = None
    runs: int = 30
    record: Record = field(default_factory=Record)
    target: str | None = None
    behaviour: str | None = None
    features: Mapping[str, Any] = field(default_factory=dict)

    @property
    def length(self) -> dict[str, int]:
        """The length of a run in steps or episodes."""
        return {"steps": self.steps} if self.steps is not None else {"episodes": self.episodes}  # type: ignore[dict-item]

    def restricted(self, methods: tuple[str, ...], runs: int | None) -> Simulation:
        """A copy with these methods only, and with this number of runs."""
        learners = {label: d for label, d in self.learners.items() if d.method in methods}
        if not learners:
            raise InputError("methods", ", ".join(methods), f"none of them is in {self.name}")
        return dataclasses.replace(self, learners=learners, runs=runs or self.runs)

    def run(self, seed: int, **options: Any) -> xarray.Dataset:
        """Run the simulation; `options` are further arguments of ``simulate``."""
        return simulate(**self._given(), seed=seed, **options)

    def key(self, seed: int, code: str) -> str:
        """Digest of the arguments and of the code's digest `code`, which identifies the result."""
        given = {**self._given(), "seed": int(seed), "code": code}
        return hashlib.sha256(
            json.dumps(given, sort_keys=True, default=_plain).encode()
        ).hexdigest()

    def _given(self) -> dict[str, Any]:
        """The arguments of ``simulate``."""
        given = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        del given["name"]
        return given | dict(given.pop("features"))

    def shortest(self) -> Simulation:
        """A copy with one step, which needs the same compiled code."""
        when: dict[str, Any] = {"at": (1,), "every": None, "points": None, "log": False}
        window = min(self.record.window, 1)
        record = dataclasses.replace(self.record, **when, window=window)
        length = dict.fromkeys(self.length, 1)
        return dataclasses.replace(self, **length, runs=1, record=record)  # type: ignore[arg-type]


def _plain(argument: Any) -> Any:
    """An argument of ``simulate`` as JSON can hold it."""
    if isinstance(argument, MDP):
        policies = {name: policy.probabilities for name, policy in argument.policies.items()}
        return [*argument.edges, argument.lam, argument.start, policies]
    if isinstance(argument, Learner):
        return argument.to_dict()
    return dataclasses.asdict(argument) if isinstance(argument, Record) else argument.tolist()


@dataclass(frozen=True, eq=False)
class Experiment:
    """A figure or table: its simulations, its plot, and its claims."""

    id: str
    title: str
    about: str = ""  #: a paragraph for the report
    simulations: tuple[Simulation, ...] = ()
    plot: str | Callable[..., Any] | None = None  #: a function, or its name in ``retvar.plots``
    options: Mapping[str, Any] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    source: str = "own"  #: "paper" (first version), "conference" (second version) or "own"
    published: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  #: rows of Table 1


# ---------------------------------------------------------------------- Table 1

COLUMNS = ("value", "second_moment", "vtd", "direct")
PUBLISHED_RUNS = 30


class Cell(NamedTuple):
    """A number of Table 1 beside the published one; NaN if its method was left out."""

    measured: float
    stderr: float
    printed: str
    runs: int

    @property
    def error(self) -> float:
        """Standard error of the difference; the published number is of 30 runs."""
        return self.stderr * math.sqrt(1 + self.runs / PUBLISHED_RUNS)

    @property
    def z(self) -> float:
        """Measured minus published in standard errors of the difference."""
        gap = self.measured - float(self.printed)
        return 0.0 if gap == 0 else gap / self.error if self.error else math.nan

    @property
    def half_unit(self) -> float:
        """Half a unit of the last printed digit."""
        return 0.5 * 10.0 ** -len(self.printed.partition(".")[2])

    @property
    def share(self) -> float:
        """The difference as a share of what is allowed: 4 standard errors, and the rounding."""
        allowed = 4 * self.error + self.half_unit
        return abs(self.measured - float(self.printed)) / allowed


def table_row(data: xarray.Dataset | None, published: tuple[str, ...]) -> dict[str, Cell]:
    """A row of Table 1 by column: mean absolute changes, with published ones as printed."""
    labels = [] if data is None else data.learner.values.tolist()
    runs = 1 if data is None else int(data.attrs["runs"])
    places = {
        "value": ("value_change", "vtd" if "vtd" in labels else [*labels, ""][0]),  # all learn it
        "second_moment": ("second_moment_change", "vtd"),
        "vtd": ("variance_change", "vtd"),
        "direct": ("variance_change", "direct"),
    }

    def number(name: str, learner: str) -> float:
        if data is None or name not in data or learner not in labels:
            return math.nan
        return float(data[name].sel(learner=learner))

    row = {}
    for (column, (name, learner)), printed in zip(places.items(), published, strict=True):
        stderr = number(f"{name}_total_std", learner) / math.sqrt(runs)
        row[column] = Cell(number(f"{name}_total", learner), stderr, printed, runs)
    return row
