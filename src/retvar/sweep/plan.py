"""The plan of a sweep: its domains, its learners, and the cells into which it is divided."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from retvar.cache import code_digest
from retvar.errors import InputError
from retvar.format import listed, visible
from retvar.learners import Learner
from retvar.networks import error_names
from retvar.simulation import simulate
from retvar.simulation.results import labels_of
from retvar.sweep.expansion import DomainInstance, digest, domains_of, learner_key, learners_of
from retvar.sweep.spec import Sweep
from retvar.version import __version__

if TYPE_CHECKING:
    import xarray

__all__ = ["Cell", "Plan", "digest", "identity"]

FORMAT = 2  # of a cell's data; part of its key
MAX_CELLS = 10_000_000


@cache
def identity() -> dict[str, str]:
    """The versions that numbers may depend on; all cells of a store have the same.

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


@dataclass(frozen=True)
class Cell:
    """One domain, consecutive learners, and a range of runs."""

    number: int
    domain: int  #: index into the domains of the plan
    learners: range
    runs: range


@dataclass(frozen=True, eq=False)
class Plan:
    """All domains, learners and cells of a sweep.

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
    domains: list[DomainInstance]
    learners: list[Learner]
    made_with: dict[str, str]  #: versions; see :func:`identity`

    @classmethod
    def from_sweep(cls, sweep: Sweep, made_with: dict[str, str] | None = None) -> Plan:
        """Expand a sweep into its learners and domains, and check them."""
        learners = learners_of(sweep)
        plan = cls(sweep, domains_of(sweep), learners, made_with or identity())
        if plan.count > MAX_CELLS:
            remedy = f"must be at most {MAX_CELLS:,}; let `cell` hold more learners or runs"
            raise InputError("cells", f"{plan.count:,}", remedy)
        return plan

    def __repr__(self) -> str:
        return (
            f"<Sweep {visible(self.sweep.name)}: {len(self.domains):,} domains × "
            f"{len(self.learners):,} learners × {self.sweep.runs:,} runs of {self.length:,} "
            f"{self.unit}s, {self.count:,} cells>"
        )

    @property
    def unit(self) -> str:
        """The unit of the length of a run: step or episode."""
        return "step" if self.sweep.steps is not None else "episode"

    @property
    def length(self) -> int:
        """Steps or episodes of a run."""
        return self.sweep.steps or self.sweep.episodes or 0

    @cached_property
    def moments(self) -> Any:
        """The steps or episodes at which errors are recorded."""
        return self.sweep.record.moments(self.length)

    @property
    def errors(self) -> tuple[str, ...]:
        """Names of the errors that are recorded: of value, variance and higher moments."""
        return error_names(max(learner.order for learner in self.learners))

    @cached_property
    def labels(self) -> list[str]:
        """The labels of the learners."""
        return labels_of(self.learners)

    @cached_property
    def blocks(self) -> list[range]:
        """Consecutive learners of about equal number, at most as many as a cell may have."""
        return _divide(len(self.learners), self.sweep.cell.learners)

    @property
    def count(self) -> int:
        """The number of cells."""
        runs = -(-self.sweep.runs // self.sweep.cell.runs)
        return len(self.domains) * len(self.blocks) * runs

    @cached_property
    def cells(self) -> list[Cell]:
        """All cells, ordered by domain, then learners, then runs."""
        size = self.sweep.cell.runs
        firsts = range(0, self.sweep.runs, size)
        parts = [range(first, min(first + size, self.sweep.runs)) for first in firsts]
        crossed = itertools.product(range(len(self.domains)), self.blocks, parts)
        return [Cell(number, *parts) for number, parts in enumerate(crossed)]

    @cached_property
    def seeds(self) -> list[int]:
        """The seed of each domain's streams; they differ so that domains are independent."""
        found = (digest([self.sweep.seed, domain.key]) for domain in self.domains)
        return [int(each, 16) % 2**53 for each in found]  # integers that floats represent exactly

    @cached_property
    def keys(self) -> list[str]:
        """For each cell a digest of everything that determines its data."""
        common = digest([self.made_with, self.sweep.seed, self.unit, self.length,
                         self.moments.tolist()])  # fmt: skip
        blocks = {
            block: digest([self.learners[i].to_dict() for i in block]) for block in self.blocks
        }
        domains = [domain.key for domain in self.domains]
        return [
            digest([common, domains[c.domain], blocks[c.learners], c.runs.start, c.runs.stop])[:32]
            for c in self.cells
        ]

    @cached_property
    def digest(self) -> str:
        """A digest of the keys of all cells."""
        return digest(self.keys)

    def missing_from(self, other: Plan) -> str:
        """What another plan has and this one lacks; empty if this one only adds to it."""
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
        domains = {domain.key for domain in self.domains}
        missing = [domain.label for domain in other.domains if domain.key not in domains]
        learners = set(map(learner_key, self.learners))
        missing += [label for label, learner in zip(other.labels, other.learners, strict=True)
                    if learner_key(learner) not in learners]  # fmt: skip
        return listed(missing)

    def describe(self, cell: Cell) -> str:
        """The domain, learners and runs of a cell, for messages."""
        learners, runs = cell.learners, cell.runs
        return (
            f"{visible(self.domains[cell.domain].label)}, "
            f"learners {learners.start}–{learners.stop - 1}, runs {runs.start}–{runs.stop - 1}"
        )

    def compute(
        self,
        cell: Cell,
        threads: int | None = 1,
        progress: Callable[[float], None] | None = None,
        length: int | None = None,
        device: str = "cpu",
    ) -> xarray.Dataset:
        """Compute the data of a cell; `length` shortens the runs, for timing."""
        import xarray

        domain = self.domains[cell.domain]
        record = self.sweep.record.record()
        if length is not None:
            record = dataclasses.replace(record, at=(length,), every=None, points=None, log=False)
        steps = self.length if length is None else length
        data = simulate(
            domain.mdp(),
            [self.learners[i] for i in cell.learners],
            steps=steps if self.unit == "step" else None,
            episodes=steps if self.unit == "episode" else None,
            runs=len(cell.runs),
            first_run=cell.runs.start,
            seed=self.seeds[cell.domain],
            target=domain.spec.target,
            behaviour=domain.spec.behaviour,
            record=record,
            keep="runs",
            threads=threads,
            progress=progress or False,
            device=device,
        )
        dims = ("learner", "run", self.unit)
        unknown = np.full([data.sizes[dim] for dim in dims], np.nan)
        errors = {
            name: (dims, data[name].transpose(*dims).values if name in data else unknown)
            for name in self.errors
        }
        diverged = np.isfinite(data["diverged_by"].transpose(*dims[:2]).values)
        coords = {name: _classic(data[name].values) for name in ("run", self.unit)}
        return xarray.Dataset({**errors, "diverged": (dims[:2], diverged)}, coords)


def _classic(numbers: Any) -> Any:
    """Integers in a type that classic netCDF has."""
    return numbers.astype(np.int32 if numbers.max() < 2**31 else np.float64)


def _divide(count: int, most: int) -> list[range]:
    """Ranges of about equal length, at most `most`, that cover `count` numbers."""
    parts = -(-count // most)
    ends = [round(count * i / parts) for i in range(parts + 1)]
    return [range(a, b) for a, b in itertools.pairwise(ends)]
