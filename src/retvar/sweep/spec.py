"""The specification of a sweep, as frozen objects or in TOML, and its learners and domains.

msgspec checks names, types and limits when a specification is read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from retvar.mdp import MDP, domains
from retvar.mdp.toml import field_and_problem, parse_mdp
from retvar.simulation import Record
from retvar.simulation.streams import stream_of
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.support.files import parse_toml, read_bytes
from retvar.support.format import did_you_mean, literal
from retvar.td.learners import LEARNERS, Learner
from retvar.td.step_sizes import RULES, Constant, StepSize

if TYPE_CHECKING:
    from retvar.sweep.plan import Plan

METHODS = {kind.method: kind for kind in LEARNERS.values()}
RULES_BY_NAME = {name.lower(): rule for name, rule in RULES.items()}
STEPS = ("alpha", "alpha_bar", "alpha_mean")
POINTS = 20
MAX_LEARNERS = 100_000  # of one table
Positive = Annotated[int, Meta(ge=1, le=10**15)]
Seed = Annotated[int, Meta(ge=0)]


class Table(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Base class of TOML tables: frozen, compared by value, without unknown fields."""


class Range(Table, frozen=True):
    """Values between two ends, spaced evenly or logarithmically.

    >>> Range(log=(0.001, 1.0), count=4).values("alpha")
    [0.001, 0.01, 0.1, 1.0]
    """

    count: Annotated[int, Meta(ge=1, le=100_000)]
    linear: tuple[float, float] | None = None
    log: tuple[float, float] | None = None

    def values(self, field: str) -> list[float]:
        """All values; errors name `field`."""
        ends = self.linear or self.log
        if ends is None or (self.linear and self.log):
            raise InputError(field, "both" if ends else "neither", "give one of linear and log")
        low, high = ends
        if not -math.inf < low <= high < math.inf or (self.log and low <= 0):
            remedy = "must go from a number up to a greater one; on a log scale from above 0"
            raise InputError(field, list(ends), remedy)
        if self.linear:
            return [float(x) for x in np.linspace(low, high, self.count)]
        # 0.01 rather than 0.010000000000000002
        return [float(f"{x:.12g}") for x in np.geomspace(low, high, self.count)]


Number = float | str | list[float] | Range  # a string names another setting
Step = Any  # the same, or a rule, or a list of numbers and rules


class Learners(Table, frozen=True):
    """Learners of some methods with every combination of their settings.

    A setting is a number, a list, a :class:`Range`, or the name of another setting it equals.
    Step sizes may be rules (:class:`~retvar.td.step_sizes.Decay`, …; in TOML
    ``{ rule = "decay", power = [0.6, 0.8] }``).

    >>> Learners(method=["direct", "vtd"], alpha=[0.01, 0.1], alpha_bar="alpha").alpha
    [0.01, 0.1]
    """

    method: str | list[str]
    alpha: Step
    alpha_bar: Step = None
    gamma: Number | None = None
    lam: Number | None = None
    kappa: Number | None = None
    kappa_bar: Number | None = None
    value: Number | None = None
    initial_variance: Number | None = None
    alpha_mean: Step = None
    kappa_mean: Number | None = None
    initial_mean: Number | None = None
    estimand: str | list[str] | None = None
    learn_value: bool | list[bool] | None = None
    order: int | list[int] | None = None

    def __post_init__(self) -> None:
        for name in STEPS:
            msgspec.structs.force_setattr(self, name, _rule_table(getattr(self, name)))


def _rule_table(step: Any) -> Any:
    """Rules as tables, as in TOML."""
    if isinstance(step, list):
        return [_rule_table(each) for each in step]
    if not isinstance(step, StepSize):
        return step
    return {"rule": type(step).__name__.lower(), **dataclasses.asdict(step)}


class Seeds(Table, frozen=True):
    """Consecutive seeds of random MDPs."""

    count: Annotated[int, Meta(ge=1, le=1_000_000)]
    first: Seed = 0


class Domain(Table, frozen=True):
    """A built-in domain or Gymnasium table (`id`), an MDP in a file, or random MDPs by seed.

    >>> Domain(random={"states": 20, "actions": 3, "branching": 4}, seeds=[1, 2, 3]).kind
    'random'
    """

    id: str | None = None
    file: str | None = None
    random: dict[str, Any] | None = None
    seeds: Seeds | Annotated[list[Seed], Meta(min_length=1)] | None = None
    gamma: float | None = None
    options: dict[str, Any] | None = None
    target: str | None = None
    behaviour: str | None = None
    name: str | None = None
    text: str | None = None  #: contents of the file, so that workers need not read it

    @property
    def kind(self) -> str:
        """``built-in``, ``gymnasium``, ``random`` or ``file``."""
        if self.id is not None:
            return "gymnasium" if self.id.startswith("gymnasium:") else "built-in"
        return "random" if self.random is not None else "file"

    def instances(self) -> list[DomainInstance]:
        """Its MDPs, one for each seed."""
        if self.random is None:
            label = self.name or str(self.id or self.file).removesuffix(".toml")
            return [DomainInstance(label, self)]
        names = ("states", "actions", "branching")
        sizes = "×".join(str(self.random[name]) for name in names if name in self.random)
        seeds: Iterable[int] = self.seeds if isinstance(self.seeds, list) else [0]
        if isinstance(self.seeds, Seeds):
            seeds = range(self.seeds.first, self.seeds.first + self.seeds.count)
        label = self.name or f"random {sizes}"
        return [DomainInstance(f"{label} #{seed}", self, seed) for seed in seeds]


class Points(Table, frozen=True):
    """When errors are recorded: ``"log"`` or ``"linear"`` spacing, an interval, or a list.

    >>> Points(at="log", points=4).record(1_000).moments(1_000)
    array([   1,   10,  100, 1000])
    """

    at: str | Positive | list[int] = "log"
    points: Positive | None = None

    def record(self, total: int) -> Record:
        """The ``record`` argument of ``simulate`` for a run of length `total`."""
        when: dict[str, Any] = {"at": self.at}
        if isinstance(self.at, str):
            arguments.choice("record.at", self.at, ("log", "linear"))
            when = {"points": self.points or POINTS, "log": self.at == "log"}
        elif self.points is not None:
            raise InputError("record.points", self.points, 'goes with at = "log" or "linear"')
        elif isinstance(self.at, int):
            when = {"every": arguments.integer("record.at", self.at, 1, total)}
        return Record(**when, states=[0], rmse=True)


class CellSize(Table, frozen=True):
    """The largest number of learners and runs of a cell.

    >>> CellSize().learners
    128
    """

    learners: Positive = 128
    runs: Positive = 30


class Sweep(Table, frozen=True):
    """All learners on all domains, with several runs of each.

    Parameters
    ----------
    domains, learners
        Lists of :class:`Domain` and :class:`Learners`; every learner runs on every domain.
    runs, seed
        Runs of each learner on each domain, and the seed. On a domain all learners see the same
        streams; each domain has its own.
    steps, episodes
        Length of a run: give one of the two.
    record
        When errors are recorded: :class:`Points`; default: 20 moments with logarithmic spacing.
    cell
        Size of the cells: :class:`CellSize`. It changes no number.

    Examples
    --------
    >>> sweep = Sweep(
    ...     name="small", runs=40, steps=1_000,
    ...     domains=[Domain(id="chain"), Domain(random={"states": 5}, seeds=[1, 2])],
    ...     learners=[Learners(method=["direct", "vtd"], alpha=Range(log=(0.01, 1), count=3))],
    ... )
    >>> sweep.plan()
    <Sweep small: 3 domains × 6 learners × 40 runs of 1,000 steps, 6 cells>
    """

    runs: Positive
    domains: Annotated[list[Domain], Meta(min_length=1)]
    learners: Annotated[list[Learners], Meta(min_length=1)]
    name: str = "sweep"
    seed: int = 0
    steps: Positive | None = None
    episodes: Positive | None = None
    record: Points = Points()
    cell: CellSize = CellSize()

    @property
    def length(self) -> int:
        """Steps or episodes of a run."""
        return self.steps or self.episodes or 0

    @classmethod
    def from_toml(cls, path: str | Path) -> Sweep:
        """Read a specification; paths in it are relative to its folder."""
        path = arguments.path("path", path)
        data = parse_toml(read_bytes(path), path.name)
        return cls.from_dict({"name": path.stem, **data}, path.parent)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], folder: Path | None = None) -> Sweep:
        """A sweep from the tables of a specification; errors name the path of the field."""
        arguments.instance("data", data, Mapping, "a mapping, as the tables of a specification")
        found: Sweep = convert(dict(data), cls)
        if (found.steps is None) == (found.episodes is None):
            given = "neither" if found.steps is None else "both"
            raise InputError("steps, episodes", given, "give one of the two")
        arguments.integer("seed", found.seed, 0, 2**64 - 1)
        found.record.record(found.length).moments(found.length)
        domains = enumerate(found.domains)
        checked = [_checked(f"domains[{i}]", each, folder or Path()) for i, each in domains]
        return msgspec.structs.replace(found, domains=checked)

    def to_dict(self) -> dict[str, Any]:
        """Data for :meth:`from_dict`; defaults are left out."""
        found: dict[str, Any] = msgspec.to_builtins(self, enc_hook=_builtin)
        return found

    def plan(self) -> Plan:
        """Expand and check the sweep, and divide it into cells."""
        from retvar.sweep.plan import Plan

        return Plan.from_sweep(Sweep.from_dict(self.to_dict()))


def _builtin(given: Any) -> Any:
    if isinstance(given, np.generic | np.ndarray):
        return given.tolist()
    raise InputError("sweep", literal(given), "must be numbers, texts and lists of them")


def _checked(field: str, domain: Domain, folder: Path) -> Domain:
    """A domain of one kind, with the text of its file."""
    kinds = [name for name in ("id", "file", "random") if getattr(domain, name) is not None]
    if len(kinds) != 1:
        raise InputError(field, " and ".join(kinds) or "none", "give one of id, file and random")
    for name, kind in (("seeds", "random"), ("options", "id"), ("text", "file")):
        if getattr(domain, name) is not None and kinds != [kind]:
            raise InputError(f"{field}.{name}", "given", f"goes with {kind}")
    if domain.file is None or domain.text is not None:
        return domain
    try:
        text = read_bytes(folder / domain.file, f"{field}.file").decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{field}.file", domain.file, f"is not text: {error}") from None
    return msgspec.structs.replace(domain, file=Path(domain.file).name, text=text)


def convert(data: Any, kind: Any, field: str = "") -> Any:
    """Convert the data at the path `field` to a type; errors name the path below it.

    >>> convert([1, "b"], list[float], "alpha")
    Traceback (most recent call last):
    ...
    retvar.InputError: alpha[1] = 'b': expected `float`, got `str`
    """
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        below, problem = field_and_problem(error)
    remedy = problem[0].lower() + problem[1:]
    if named := re.search("(missing required|unknown) field `(.*)`", problem):
        below = f"{below}.{named[2]}".lstrip(".")
        known = (name for table in Table.__subclasses__() for name in table.__struct_fields__)
        hint = did_you_mean(named[2], known) or "leave it out"
        remedy = f"unknown; {hint}" if named[1] == "unknown" else "must be given"
    value: Any = data
    for name, number in re.findall(r"([^.\[\]]+)|\[(\d+)\]", below):
        value = value[int(number)] if number else value.get(name, "nothing")
    where = f"{field}.{below}" if field and below[:1] not in ("", "[") else field + below
    raise InputError(where or "sweep", literal(value), remedy)


def digest(data: Any) -> str:
    """A digest of data that JSON can hold."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


# ---------------------------------------------------------------------- learners


def learners_of(sweep: Sweep) -> list[Learner]:
    """All learners, each once; the method varies fastest: equal value nodes are consecutive."""
    tables = enumerate(sweep.learners)
    return list(dict.fromkeys(x for i, t in tables for x in _learners_of(f"learners[{i}]", t)))


def _learners_of(field: str, table: Learners) -> Iterator[Learner]:
    """The learners of one table; several are equal if a method lacks a setting of another."""
    given = {n: x for n in table.__struct_fields__ if (x := getattr(table, n)) is not None}
    methods = _values(f"{field}.method", given.pop("method"))
    kinds = [METHODS[arguments.choice(f"{field}.method", method, METHODS)] for method in methods]
    own = {kind: {f.name for f in dataclasses.fields(kind)} for kind in kinds}
    for name in given.keys() - set().union(*own.values()):
        remedy = "none of the methods has this setting; leave it out"
        raise InputError(f"{field}.{name}", given[name], remedy)
    equal = {n: x for n, x in given.items() if isinstance(x, str) and n != "estimand"}
    spans = {n: _values(f"{field}.{n}", x) for n, x in given.items() if n not in equal}
    for name, other in equal.items():
        arguments.choice(f"{field}.{name}", other, spans)
    count = len(methods) * math.prod(map(len, spans.values()))
    if count > MAX_LEARNERS:
        remedy = f"must be at most {MAX_LEARNERS:,}; let settings have fewer values"
        raise InputError(field, f"{count:,} learners", remedy)
    for values in itertools.product(*spans.values()):
        chosen = dict(zip(spans, values, strict=True))
        chosen |= {name: chosen[other] for name, other in equal.items()}
        for kind in kinds:
            with _below(field):
                learner = kind(**{n: x for n, x in chosen.items() if n in own[kind]})
            yield learner


def _values(field: str, given: Any) -> list[Any]:
    """All values of a setting: of a list, of a range, or of a rule and the values of its own."""
    if isinstance(given, list):
        found = [x for i, each in enumerate(given) for x in _values(f"{field}[{i}]", each)]
        if not found:
            raise InputError(field, "[]", "must have a value")
        return found
    if isinstance(given, Range):
        return list(given.values(field))
    if not isinstance(given, Mapping):
        return [given]
    if "rule" not in given:
        return list(convert(given, Range, field).values(field))
    name = arguments.choice(f"{field}.rule", str(given["rule"]).lower(), RULES_BY_NAME)
    spans = {n: _values(f"{field}.{n}", x) for n, x in given.items() if n != "rule"}
    try:
        crossed = itertools.product(*spans.values())
        with _below(field):
            rules = [RULES_BY_NAME[name](**dict(zip(spans, x, strict=True))) for x in crossed]
    except TypeError as error:
        raise InputError(field, literal(given), f"is no such rule: {error}") from None
    return [rule.alpha if isinstance(rule, Constant) else rule for rule in rules]


@contextlib.contextmanager
def _below(field: str) -> Iterator[None]:
    """Let errors name the path of a field below `field`."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{field}.{error.field}", error.value, error.remedy) from None


# ---------------------------------------------------------------------- domains


@dataclass(frozen=True)
class DomainInstance:
    """One MDP of a sweep; it is built when needed."""

    label: str
    spec: Domain
    seed: int | None = None  #: of a random MDP

    def mdp(self) -> MDP:
        """Build the MDP."""
        spec = self.spec
        if spec.file is not None:
            return parse_mdp(spec.text or "", spec.file, spec.gamma)
        if spec.random is None:
            return domains.find(str(spec.id), gamma=spec.gamma, **(spec.options or {}))
        mdp = domains.random_mdp(**spec.random, seed=self.seed or 0)
        return mdp if spec.gamma is None else mdp.replace(gamma=spec.gamma)

    @cached_property
    def key(self) -> str:
        """A digest of everything that determines the MDP and its policies."""
        d, tables = self.spec, ""
        if d.kind == "gymnasium":  # from another package
            mdp = self.mdp()
            policies = (policy.probabilities for policy in mdp.policies.values())
            columns = map(np.ascontiguousarray, [*mdp.edges, mdp.lam, mdp.start, *policies])
            tables = hashlib.sha256(b"".join(c.tobytes() for c in columns)).hexdigest()
        parts = [d.id, d.random, d.options, d.text, d.gamma, d.target, d.behaviour]
        return digest([*parts, self.seed, tables])


def domains_of(sweep: Sweep) -> list[DomainInstance]:
    """All MDPs, with different labels; one of each table is built to check it."""
    found: dict[str, DomainInstance] = {}  # by key
    labels: Counter[str] = Counter()
    for i, spec in enumerate(sweep.domains):
        instances = spec.instances()
        _check(f"domains[{i}]", instances[0], sweep)
        for domain in instances:
            if other := found.get(domain.key):
                remedy = f"is the same as {other.label}; domains must differ"
                raise InputError("domains", domain.label, remedy)
            labels[domain.label] += 1
            if (number := labels[domain.label]) > 1:
                domain = dataclasses.replace(domain, label=f"{domain.label} ({number})")
            found[domain.key] = domain
    return list(found.values())


def _check(field: str, domain: DomainInstance, sweep: Sweep) -> None:
    """Build a domain and its stream; errors name the path of the field."""
    spec = domain.spec
    try:
        mdp = domain.mdp()
        stream_of(mdp, spec.target, spec.behaviour, sweep.seed)
    except InputError as error:
        below = {"domain": "id", "option": "options"}.get(error.field, error.field)
        random = below.split("[")[0] in (spec.random or ())
        inside = "file." if spec.file else "random." if random else ""
        raise InputError(f"{field}.{inside}{below}", error.value, error.remedy) from None
    except (TypeError, ValueError, OverflowError, MemoryError) as error:
        raise InputError(field, spec.kind, f"cannot be built: {error}") from None
    if sweep.episodes is not None and not mdp.episodic:
        remedy = f"{domain.label} has no edge that ends an episode; give steps"
        raise InputError("episodes", sweep.episodes, remedy)
