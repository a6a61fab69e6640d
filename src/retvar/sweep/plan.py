"""A sweep spelled out: its domains, its learners, and the cells that the work is cut into."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from retvar import domains
from retvar.cache import code_digest
from retvar.engine.streams import stream_of
from retvar.errors import InputError
from retvar.format import listed
from retvar.learners import LEARNERS, Learner
from retvar.mdp import MDP
from retvar.mdp.toml import parse_mdp
from retvar.simulation import simulate
from retvar.simulation.results import labels_of
from retvar.sweep.convert import nearest
from retvar.sweep.grids import Range, steps_of
from retvar.sweep.spec import STEPS, Domain, Learners, Sweep
from retvar.version import __version__

if TYPE_CHECKING:
    import xarray

__all__ = ["Cell", "Place", "Plan", "identity"]

FORMAT = 2  # of what a cell stores: a higher one makes other keys
METHODS = {kind.method: kind for kind in LEARNERS.values()}
MOST_CELLS, MOST_LEARNERS = 10_000_000, 100_000


@cache
def identity() -> dict[str, str]:
    """The versions that numbers may depend on; a store keeps to one set of them.

    >>> sorted(identity())
    ['cells', 'code', 'numba', 'numpy', 'retvar', 'scipy']
    """
    import numba
    import scipy

    return {
        "retvar": __version__,
        "cells": str(FORMAT),
        "code": code_digest()[:16],
        "numpy": np.__version__,
        "numba": numba.__version__,
        "scipy": scipy.__version__,
    }


def digest(plain: Any) -> str:
    """A digest of plain data.

    >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    True
    """
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Place:
    """One MDP of a sweep; it is made where it is needed.

    >>> Place("chain", Domain(id="chain")).mdp().n_states
    4
    """

    label: str
    domain: Domain
    seed: int | None = None  #: of a random MDP

    def mdp(self) -> MDP:
        """Make it."""
        d = self.domain
        if d.random is not None:
            made = domains.random_mdp(**d.random, seed=self.seed or 0)
        elif d.file is not None:
            return parse_mdp(d.text or "", d.file, d.gamma)
        else:
            return domains.find(str(d.id), gamma=d.gamma, **(d.options or {}))
        return made if d.gamma is None else made.replace(gamma=d.gamma)

    @cached_property
    def recipe(self) -> str:
        """A digest of what determines it."""
        d = self.domain
        parts: list[Any] = [d.id, d.random, d.options, d.text, d.gamma, d.target, d.behaviour]
        return digest([*parts, self.seed, _table(self.mdp()) if d.kind == "gymnasium" else ""])


def _table(mdp: MDP) -> str:
    """A digest of an MDP that comes from another package."""
    columns = [*mdp.edges, mdp.lam, mdp.start, *(p.probabilities for p in mdp.policies.values())]
    return hashlib.sha256(b"".join(np.ascontiguousarray(c).tobytes() for c in columns)).hexdigest()


@dataclass(frozen=True)
class Cell:
    """One domain, some neighbouring learners, and a range of runs."""

    number: int
    place: int
    learners: range
    runs: range


@dataclass(frozen=True, eq=False)
class Plan:
    """Everything that a sweep computes.

    >>> from retvar.sweep import Domain, Learners, Sweep
    >>> plan = Sweep(
    ...     runs=2, steps=50, domains=[Domain(id="chain")],
    ...     learners=[Learners(method="direct", alpha=[0.1, 0.2])],
    ... ).plan()
    >>> plan.labels
    ['Direct alpha=0.1', 'Direct alpha=0.2']
    >>> dict(plan.compute(plan.cells[0]).sizes)
    {'learner': 2, 'run': 2, 'step': 16}
    """

    sweep: Sweep
    places: list[Place]
    learners: list[Learner]
    made_with: dict[str, str]  #: versions; see :func:`identity`

    @classmethod
    def of(cls, sweep: Sweep, made_with: dict[str, str] | None = None) -> Plan:
        """Spell out a sweep that has been read; whatever is wrong with it is found here."""
        learners = _learners(sweep)
        places = _places(sweep)
        plan = cls(sweep, places, learners, made_with or identity())
        if plan.count > MOST_CELLS:
            remedy = f"must be at most {MOST_CELLS:,}; let `cell` hold more learners or runs"
            raise InputError("cells", f"{plan.count:,}", remedy)
        return plan

    def __repr__(self) -> str:
        return (
            f"<Sweep {self.sweep.name}: {len(self.places):,} domains × {len(self.learners):,} "
            f"learners × {self.sweep.runs:,} runs of {self.length:,} {self.unit}s, "
            f"{self.count:,} cells>"
        )

    @property
    def unit(self) -> str:
        """What runs are counted in: step or episode."""
        return "step" if self.sweep.steps is not None else "episode"

    @property
    def length(self) -> int:
        """How many of them a run has."""
        return self.sweep.steps or self.sweep.episodes or 0

    @cached_property
    def moments(self) -> Any:
        """When errors are recorded."""
        return self.sweep.record.moments(self.length)

    @cached_property
    def labels(self) -> list[str]:
        """What the learners are called."""
        return labels_of(self.learners)

    @cached_property
    def blocks(self) -> list[range]:
        """Neighbouring learners, about equally many in each, no more than the cut allows."""
        return _cut(len(self.learners), self.sweep.cell.learners)

    @property
    def count(self) -> int:
        """How many cells there are."""
        runs = -(-self.sweep.runs // self.sweep.cell.runs)
        return len(self.places) * len(self.blocks) * runs

    @cached_property
    def cells(self) -> list[Cell]:
        """All of them, in order: by domain, by learners, by runs."""
        size = self.sweep.cell.runs
        firsts = range(0, self.sweep.runs, size)
        parts = [range(first, min(first + size, self.sweep.runs)) for first in firsts]
        crossed = itertools.product(range(len(self.places)), self.blocks, parts)
        return [Cell(number, *parts) for number, parts in enumerate(crossed)]

    @cached_property
    def seeds(self) -> list[int]:
        """Of the streams of each domain: luck on one must be no luck on another."""
        found = (digest([self.sweep.seed, place.recipe]) for place in self.places)
        return [int(each, 16) % 2**53 for each in found]  # whole numbers that floats can hold

    @cached_property
    def keys(self) -> list[str]:
        """Of each cell a digest of everything that determines what it holds."""
        common = digest([self.made_with, self.sweep.seed, self.unit, self.length,
                         self.moments.tolist()])  # fmt: skip
        blocks = {
            block: digest([self.learners[i].to_dict() for i in block]) for block in self.blocks
        }
        recipes = [place.recipe for place in self.places]
        return [
            digest([common, recipes[c.place], blocks[c.learners], c.runs.start, c.runs.stop])[:32]
            for c in self.cells
        ]

    @cached_property
    def digest(self) -> str:
        """A digest of the whole: of the keys of all cells."""
        return digest(self.keys)

    def beyond(self, other: Plan) -> str:
        """What of another plan this one does not hold, in words; empty where it only adds to it."""
        if self.made_with != other.made_with:
            return "the version"
        if (self.unit, self.length) != (other.unit, other.length):
            return f"{other.length:,} {other.unit}s"
        if self.moments.tolist() != other.moments.tolist():
            return "the moments recorded"
        if self.sweep.seed != other.sweep.seed:
            return f"seed {other.sweep.seed}"
        if self.sweep.runs < other.sweep.runs:
            return f"run {other.sweep.runs - 1}"
        recipes = {place.recipe for place in self.places}
        gone = [place.label for place in other.places if place.recipe not in recipes]
        meant = set(map(_meaning, self.learners))
        gone += [label for label, learner in zip(other.labels, other.learners, strict=True)
                 if _meaning(learner) not in meant]  # fmt: skip
        return listed(gone)

    def name(self, cell: Cell) -> str:
        """What people call a cell."""
        learners, runs = cell.learners, cell.runs
        return (
            f"{self.places[cell.place].label}, learners {learners.start}–{learners.stop - 1}, "
            f"runs {runs.start}–{runs.stop - 1}"
        )

    def compute(
        self,
        cell: Cell,
        threads: int | None = 1,
        progress: Callable[[float], None] | None = None,
        length: int | None = None,
    ) -> xarray.Dataset:
        """What a cell stores; `length` makes it shorter, for timing."""
        import xarray

        place = self.places[cell.place]
        record = self.sweep.record.record()
        if length is not None:
            record = dataclasses.replace(record, at=(length,), every=None, points=None, log=False)
        steps = self.length if length is None else length
        data = simulate(
            place.mdp(),
            [self.learners[i] for i in cell.learners],
            steps=steps if self.unit == "step" else None,
            episodes=steps if self.unit == "episode" else None,
            runs=len(cell.runs),
            first_run=cell.runs.start,
            seed=self.seeds[cell.place],
            target=place.domain.target,
            behaviour=place.domain.behaviour,
            record=record,
            keep="runs",
            threads=threads,
            progress=progress or False,
        )
        dims = ("learner", "run", self.unit)
        errors = {
            name: (dims, data[name].transpose(*dims).values)
            for name in ("value_rmse", "variance_rmse")
        }
        died = np.isfinite(data["diverged_by"].transpose(*dims[:2]).values)
        coords = {name: _classic(data[name].values) for name in ("run", self.unit)}
        return xarray.Dataset({**errors, "diverged": (dims[:2], died)}, coords)


def _classic(numbers: Any) -> Any:
    """Whole numbers in a type that classic netCDF has."""
    return numbers.astype(np.int32 if numbers.max() < 2**31 else np.float64)


def _cut(count: int, most: int) -> list[range]:
    parts = -(-count // most)
    ends = [round(count * i / parts) for i in range(parts + 1)]
    return [range(a, b) for a, b in itertools.pairwise(ends)]


# ---------------------------------------------------------------------- learners


def _learners(sweep: Sweep) -> list[Learner]:
    """All learners; methods vary fastest, so that those with equal value nodes are neighbours."""
    found: dict[str, tuple[int, Learner]] = {}
    for i, family in enumerate(sweep.learners):
        for learner in _family(f"learners[{i}]", family):
            key = _meaning(learner)
            if key in found:
                other = found[key][0]
                here = "twice" if other == i else f"in learners[{other}] too"
                told = f"{type(learner).__name__} alpha={learner.alpha}"
                raise InputError(f"learners[{i}]", told, f"is {here}; ranges must not overlap")
            found[key] = (i, learner)
    return [learner for _, learner in found.values()]


def _meaning(learner: Learner) -> str:
    """The same for learners that are the same, whether a default is spelled out or not."""
    nodes = [[repr(node.step), node.kappa, np.asarray(node.initial).tolist()]
             for node in learner.nodes()]  # fmt: skip
    rest = [learner.gamma, learner.lam, learner.estimand, learner.learn_value]
    return digest([learner.method, nodes, rest])


def _family(field: str, family: Learners) -> Iterator[Learner]:
    """The learners of one table."""
    methods = family.method if isinstance(family.method, list) else [family.method]
    if not methods:
        raise InputError(f"{field}.method", "[]", "must hold at least one")
    for method in methods:
        if method not in METHODS:
            raise InputError(f"{field}.method", method, nearest(method, METHODS))
    if len(set(methods)) < len(methods):
        raise InputError(f"{field}.method", methods, "holds one of them twice")
    own = {m: {f.name for f in dataclasses.fields(METHODS[m])} for m in methods}
    spans, equal = _spans(field, family, set().union(*own.values()))
    count = len(methods) * math.prod(map(len, spans.values()))
    if count > MOST_LEARNERS:
        remedy = f"must be at most {MOST_LEARNERS:,}; let settings have fewer values"
        raise InputError(field, f"{count:,} learners", remedy)
    seen = set()
    for values in itertools.product(*spans.values()):
        chosen = dict(zip(spans, values, strict=True))
        chosen |= {name: chosen[other] for name, other in equal.items()}
        for method in methods:
            settings = {name: x for name, x in chosen.items() if name in own[method]}
            known = (method, *settings.items())
            if known in seen:
                continue  # it differs in what only another method has
            seen.add(known)
            try:
                yield METHODS[method](**settings)
            except InputError as error:
                raise InputError(f"{field}.{error.field}", error.value, error.remedy) from None


def _spans(
    field: str, family: Learners, known: set[str]
) -> tuple[dict[str, list[Any]], dict[str, str]]:
    """The values of each setting, and the settings that equal another."""
    given = {n: getattr(family, n) for n in family.__struct_fields__ if n != "method"}
    given = {name: x for name, x in given.items() if x is not None}
    spans: dict[str, list[Any]] = {}
    equal: dict[str, str] = {}
    for name, x in given.items():
        where = f"{field}.{name}"
        if name not in known:
            raise InputError(where, x, "none of the methods chosen has it; leave it out")
        if isinstance(x, str) and name != "estimand":
            equal[name] = x
            continue
        spans[name] = _values(where, steps_of(where, x) if name in STEPS else x)
    for name, other in equal.items():
        if other not in spans:
            remedy = nearest(other, spans).replace("unknown", "is no setting with numbers here")
            raise InputError(f"{field}.{name}", other, remedy)
    return spans, equal


def _values(field: str, given: Any) -> list[Any]:
    values = given.values(field) if isinstance(given, Range) else given
    values = values if isinstance(values, list) else [values]
    if not values:
        raise InputError(field, "[]", "is empty; must hold at least one value")
    if len(set(values)) < len(values):
        twice = next(x for x in values if values.count(x) > 1)
        raise InputError(field, twice, "is there twice; values must differ")
    return values


# ---------------------------------------------------------------------- domains


def _places(sweep: Sweep) -> list[Place]:
    """All MDPs; one of each table is made, to see whether it can be."""
    found: list[Place] = []
    for i, domain in enumerate(sweep.domains):
        seeds = _seeds(domain)
        places = [Place(_label(domain, seed), domain, seed) for seed in seeds]
        _try(f"domains[{i}]", places[0], sweep)
        found += places
    labels: dict[str, int] = {}
    recipes: dict[str, str] = {}
    for number, place in enumerate(found):
        if place.recipe in recipes:
            remedy = f"is the same as {recipes[place.recipe]}; domains must differ"
            raise InputError("domains", place.label, remedy)
        labels[place.label] = labels.get(place.label, 0) + 1
        if labels[place.label] > 1:
            label = f"{place.label} ({labels[place.label]})"
            found[number] = dataclasses.replace(place, label=label)
        recipes[place.recipe] = found[number].label
    return found


def _seeds(domain: Domain) -> list[int | None]:
    if domain.random is None:
        return [None]
    if domain.seeds is None:
        return [0]
    if isinstance(domain.seeds, list):
        return list(domain.seeds)
    return list(range(domain.seeds.first, domain.seeds.first + domain.seeds.count))


def _label(domain: Domain, seed: int | None) -> str:
    if domain.random is not None:
        sizes = [str(domain.random[n]) for n in ("states", "actions", "branching")
                 if n in domain.random]  # fmt: skip
        return f"{domain.name or 'random ' + '×'.join(sizes)} #{seed}"
    if domain.name is not None:
        return domain.name
    return str(domain.id or domain.file).removesuffix(".toml")


def _try(field: str, place: Place, sweep: Sweep) -> None:
    """Make a domain and its stream; what is wrong is told with the path of the field."""
    domain = place.domain
    try:
        mdp = place.mdp()
        stream_of(mdp, domain.target, domain.behaviour, sweep.seed)
    except InputError as error:
        raise _told(field, domain, error) from None
    except (TypeError, ValueError, OverflowError, MemoryError) as error:
        raise InputError(field, domain.kind, f"cannot be made: {error}") from None
    if sweep.episodes is not None and not mdp.episodic:
        remedy = f"{place.label} has no edge that ends an episode; give steps"
        raise InputError("episodes", sweep.episodes, remedy)


def _told(field: str, domain: Domain, error: InputError) -> InputError:
    """The same error with the path of the field in the specification."""
    if error.field == "domain":
        remedy = nearest(str(domain.id), [*domains.BUILT_IN, "gymnasium:ID"])
        return InputError(f"{field}.id", error.value, remedy)
    if domain.file is not None:
        return InputError(f"{field}.file: {error.field}", error.value, error.remedy)
    if error.field == "option":
        return InputError(f"{field}.options", error.value, error.remedy)
    name = re.split(r"[\[.]", error.field)[0]
    below = "random." if domain.random is not None and name in domain.random else ""
    return InputError(f"{field}.{below}{error.field}", error.value, error.remedy)
