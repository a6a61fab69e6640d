"""All cells of a sweep as one labelled dataset."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from retvar.support import arguments, cache
from retvar.support.errors import InputError
from retvar.support.format import listed
from retvar.sweep.plan import Cell, Plan
from retvar.sweep.run_errors import recorded
from retvar.sweep.spec import digest
from retvar.sweep.store import Store, check_store
from retvar.td.step_sizes import StepSize
from retvar.version import __version__

if TYPE_CHECKING:
    import xarray

SETTINGS = ("alpha", "alpha_bar", "lam", "kappa", "kappa_bar")  # columns of every sweep


def collect(
    store: Store,
    *,
    partial: bool = False,
    at: int | None = None,
    what: str | None = None,
    domains: Sequence[str] | None = None,
) -> xarray.Dataset:
    """Read all cells into one dataset (domain, learner, step or episode, run).

    Parameters
    ----------
    store
        The store of the sweep.
    partial
        Allow missing and damaged cells, which become NaN; :func:`status` says which they are.
    at, what, domains
        Read only one recorded moment (−1 is the last), one error, or some domains by label;
        default: all.

    Returns
    -------
    xarray.Dataset
        The attribute ``digest`` is that of ``status``; it is absent if cells are missing or were
        not read.
    """
    import xarray

    check_store(store)
    plan = store.plan
    labels = [domain.label for domain in plan.domains]
    chosen = labels if domains is None else arguments.texts("domains", domains)
    for name in chosen:
        if name not in labels:
            raise InputError("domain", name, f"is none of the sweep's: {listed(labels)}")
    numbers = [k for k, label in enumerate(labels) if label in chosen]
    moments = slice(None)
    if at is not None:
        k = plan.moments.tolist().index(recorded(plan.moments, plan.unit, at))
        moments = slice(k, k + 1)
    names = plan.errors if what is None else (arguments.choice("what", what, plan.errors),)
    shape = (len(numbers), len(plan.learners), plan.moments[moments].size, plan.sweep.runs)
    errors = {name: np.full(shape, np.nan) for name in names}
    diverged = np.zeros((*shape[:2], shape[3]), dtype=bool)
    contents: dict[int, str] = {}
    for cell, data in _cells(store, arguments.flag("partial", partial), numbers):
        contents[cell.number] = data.attrs["contents"]
        here = (numbers.index(cell.domain), slice(cell.learners.start, cell.learners.stop))
        runs = slice(cell.runs.start, cell.runs.stop)
        for name, array in errors.items():
            part = data[name].transpose("learner", plan.unit, "run").values
            array[(*here, slice(None), runs)] = part[:, moments]
        diverged[(*here, runs)] = data["diverged"].transpose("learner", "run").values
    dims = ("domain", "learner", plan.unit, "run")
    variables: dict[str, Any] = {name: (dims, array) for name, array in errors.items()}
    variables["diverged"] = (("domain", "learner", "run"), diverged)
    attributes = {
        "name": plan.sweep.name,
        "seed": str(plan.sweep.seed),
        "spec": json.dumps(plan.sweep.to_dict(), ensure_ascii=False),
        "retvar": __version__,
    }
    if len(contents) == len(plan.cells):
        attributes["digest"] = digest([contents[k] for k in sorted(contents)])
    return xarray.Dataset(variables, _coords(plan, numbers, moments), attributes)


def _cells(
    store: Store, partial: bool, domains: Sequence[int]
) -> Iterator[tuple[Cell, xarray.Dataset]]:
    """The cells of some domains with their checked data."""
    cells = [cell for cell in store.plan.cells if cell.domain in domains]
    missing = sum(not store.path(cell).exists() for cell in cells)
    if missing == len(cells) or (missing and not partial):
        remedy = f"of {len(cells):,} are missing; run the sweep, or choose what is finished"
        raise InputError("cells", f"{missing:,}", remedy)
    for cell in cells:
        try:
            yield cell, store.read(cell)
        except InputError:
            if not partial:
                raise


def _coords(plan: Plan, numbers: list[int], moments: slice) -> dict[str, Any]:
    domains = [plan.domains[k] for k in numbers]
    seeds = [np.nan if domain.seed is None else float(domain.seed) for domain in domains]
    return {
        "domain": [domain.label for domain in domains],
        "learner": plan.labels,
        plan.unit: plan.moments[moments],
        "run": np.arange(plan.sweep.runs),
        "kind": ("domain", [domain.spec.kind for domain in domains]),
        "domain_seed": ("domain", seeds),
        "stream_seed": ("domain", [plan.seeds[k] for k in numbers]),
        "algorithm": ("learner", [type(learner).__name__ for learner in plan.learners]),
        **{name: ("learner", column) for name, column in _settings(plan).items()},
    }


def _settings(plan: Plan) -> dict[str, Any]:
    """Columns of settings: the common ones, others in the sweep, and those of step-size rules."""
    tables = plan.sweep.learners
    named = (n for x in tables for n in x.__struct_fields__ if getattr(x, n) is not None)
    columns: dict[str, Any] = {}
    for name in dict.fromkeys((*SETTINGS, *sorted({*named} - {"method"}))):
        given = [getattr(learner, name, None) for learner in plan.learners]
        if name == "alpha_bar":
            pairs = zip(given, plan.learners, strict=True)
            given = [learner.alpha if x is None else x for x, learner in pairs]
        if name in ("estimand", "learn_value"):
            columns[name] = [str(x) for x in given]
        else:
            label = "initial_value" if name == "value" else name
            plain = [getattr(x, "alpha", None) if isinstance(x, StepSize) else x for x in given]
            numbers = [x if isinstance(x, int | float) else np.nan for x in plain]
            columns |= {label: np.array(numbers, dtype=float), **_rules(name, given)}
    return columns


def _rules(name: str, given: list[Any]) -> dict[str, Any]:
    """Columns of step-size rules and their settings, if there are rules."""
    rules = [x for x in given if isinstance(x, StepSize)]
    if not rules:
        return {}
    kinds = {type(x): type(x).__name__.lower() for x in rules} | {type(None): ""}
    parts = dict.fromkeys(f.name for x in rules for f in dataclasses.fields(x) if f.name != "alpha")
    named = {
        f"{name}_{part}": np.array([getattr(x, part, np.nan) for x in given]) for part in parts
    }
    return {f"{name}_rule": [kinds.get(type(x), "constant") for x in given], **named}


def save(store: Store, path: str | Path, *, partial: bool = False) -> str | None:
    """Write one dataset (``.nc``) and return the digest of the store.

    The digest is that of ``status`` and is saved in the file; it is None if cells are missing.
    """
    path = arguments.path("path", path)
    if path.suffix != ".nc":
        raise InputError("out", path, "must end in .nc")
    data = collect(store, partial=partial)
    cache.write(path, data, store.plan.digest)
    found: str | None = data.attrs.get("digest")
    return found
