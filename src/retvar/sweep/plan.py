"""The plan of a sweep: its domains, its learners, and the cells into which it is divided."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from retvar.simulation import simulate
from retvar.simulation.question import labels_of
from retvar.support.cache import code_digest
from retvar.support.format import visible
from retvar.sweep.spec import DomainInstance, Sweep, digest, domains_of, learners_of
from retvar.td.learners import Learner
from retvar.td.networks import error_names
from retvar.version import __version__

if TYPE_CHECKING:
    import xarray

FORMAT = 2  # of a cell's data; part of its key


@cache
def identity() -> dict[str, str]:
    """The versions that numbers may depend on; all cells of a store have the same."""
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
    """All domains, learners and cells of a sweep."""

    sweep: Sweep
    domains: list[DomainInstance]
    learners: list[Learner]
    made_with: dict[str, str]  #: versions; see :func:`identity`
    unit: str  #: of the length of a run: step or episode
    moments: Any  #: the steps or episodes at which errors are recorded
    errors: tuple[str, ...]  #: names of those that are recorded: of value, variance, higher moments
    cells: list[Cell]  #: ordered by domain, then learners, then runs

    @classmethod
    def from_sweep(cls, sweep: Sweep, made_with: dict[str, str] | None = None) -> Plan:
        """Expand a sweep into its learners, domains and cells, and check them."""
        domains, learners = domains_of(sweep), learners_of(sweep)
        runs, size = range(sweep.runs), sweep.cell.runs
        parts = itertools.product(
            range(len(domains)),
            _divide(len(learners), sweep.cell.learners),
            [runs[first : first + size] for first in runs[::size]],
        )
        cells = [Cell(number, *part) for number, part in enumerate(parts)]
        unit = "step" if sweep.steps is not None else "episode"
        moments = sweep.record.record(sweep.length).moments(sweep.length)
        errors = error_names(max(learner.order for learner in learners))
        made_with = made_with or identity()
        return cls(sweep, domains, learners, made_with, unit, moments, errors, cells)

    def __repr__(self) -> str:
        return (
            f"<Sweep {visible(self.sweep.name)}: {len(self.domains):,} domains × "
            f"{len(self.learners):,} learners × {self.sweep.runs:,} runs of {self.sweep.length:,} "
            f"{self.unit}s, {len(self.cells):,} cells>"
        )

    @cached_property
    def labels(self) -> list[str]:
        """The labels of the learners."""
        return labels_of(self.learners)

    @cached_property
    def seeds(self) -> list[int]:
        """The seed of each domain's streams; they differ so that domains are independent."""
        found = (digest([self.sweep.seed, domain.key]) for domain in self.domains)
        return [int(each, 16) % 2**53 for each in found]  # integers that floats represent exactly

    @cached_property
    def keys(self) -> list[str]:
        """For each cell a digest of everything that determines its data."""
        length = [self.unit, self.sweep.length, self.moments.tolist()]
        common = digest([self.made_with, self.sweep.seed, *length])
        blocks = {cell.learners for cell in self.cells}
        learners = {k: digest([self.learners[i].to_dict() for i in k]) for k in blocks}
        found = []
        for cell in self.cells:
            domain, runs = self.domains[cell.domain], cell.runs
            parts = [common, domain.key, learners[cell.learners], runs.start, runs.stop]
            found.append(digest(parts)[:32])
        return found

    @cached_property
    def digest(self) -> str:
        """A digest of the keys of all cells."""
        return digest(self.keys)

    def describe(self, cell: Cell) -> str:
        """The domain, learners and runs of a cell, for messages."""
        learners, runs = cell.learners, cell.runs
        return (
            f"{visible(self.domains[cell.domain].label)}, "
            f"learners {learners.start}–{learners.stop - 1}, runs {runs.start}–{runs.stop - 1}"
        )

    def compute(self, cell: Cell, threads: int | None = 1, **how: Any) -> xarray.Dataset:
        """Compute the data of a cell; `how` are further arguments of :func:`retvar.simulate`."""
        import xarray

        domain = self.domains[cell.domain]
        data = simulate(
            domain.mdp(),
            [self.learners[i] for i in cell.learners],
            steps=self.sweep.steps,
            episodes=self.sweep.episodes,
            runs=len(cell.runs),
            first_run=cell.runs.start,
            seed=self.seeds[cell.domain],
            target=domain.spec.target,
            behaviour=domain.spec.behaviour,
            record=self.sweep.record.record(self.sweep.length),
            keep="runs",
            threads=threads,
            **{"progress": False, **how},
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
