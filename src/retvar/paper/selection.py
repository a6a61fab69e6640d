"""Select experiments: by id or group of ids, from the paper or from a file."""

from __future__ import annotations

import dataclasses
import re
import sys
import traceback
import types
from collections.abc import Iterable, Sequence
from pathlib import Path

from retvar.paper.declarations import Experiment
from retvar.paper.experiments import all_experiments
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.support.files import read_bytes
from retvar.support.format import did_you_mean, listed
from retvar.td.networks import NETWORKS

METHODS = tuple(NETWORKS)
ID = re.compile(r"[A-Za-z0-9_][\w.+-]*(/[A-Za-z0-9_][\w.+-]*)*", re.ASCII)


def load_experiments(file: str | Path | None = None) -> tuple[Experiment, ...]:
    """The experiments of the paper, or those in a Python file's list ``EXPERIMENTS``."""
    if file is None:
        return all_experiments()
    path = arguments.path("file", file)
    source = read_bytes(path)
    module = types.ModuleType("retvar_experiments_file")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # needed by dataclasses, for example
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
    except Exception as error:
        raise InputError("file", path, _failure(error, str(path))) from error
    found = getattr(module, "EXPERIMENTS", None)
    if not isinstance(found, list | tuple) or not found:
        raise InputError("file", path, "must have EXPERIMENTS = [Experiment(…), …]")
    return _validated(found, path)


def _failure(error: Exception, path: str) -> str:
    """The error that a file raised, with its line in the file."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == path]
    lines = [error.lineno] if isinstance(error, SyntaxError) else lines
    where = f" in line {lines[-1]}" if lines else ""
    return f"fails{where} ({type(error).__name__}: {error})"


def _validated(found: Sequence[object], path: Path) -> tuple[Experiment, ...]:
    experiments: dict[str, Experiment] = {}
    for each in found:
        if not isinstance(each, Experiment):
            remedy = f"EXPERIMENTS holds {each!r}, which is not an Experiment"
            raise InputError("file", path, remedy)
        if not ID.fullmatch(each.id):
            remedy = "must be words of letters, digits, _ and -, joined by /"
            raise InputError("id", each.id, remedy)
        if each.id in experiments:
            raise InputError("id", each.id, "is declared twice")
        names = [simulation.name for simulation in each.simulations]
        if len(set(names)) < len(names):
            raise InputError("simulations", listed(names), f"must have different names ({each.id})")
        experiments[each.id] = each
    return tuple(experiments.values())


def select(ids: Iterable[str], experiments: Sequence[Experiment]) -> tuple[Experiment, ...]:
    """Experiments with these ids or groups of ids, in the order of their declaration; default: all.

    >>> [e.id for e in select(["chain-step-size"], load_experiments())]
    ['chain-step-size/equal', 'chain-step-size/smaller', 'chain-step-size/larger']
    >>> select(["chain-adadleta"], load_experiments())
    Traceback (most recent call last):
        ...
    retvar.InputError: id = chain-adadleta: unknown; did you mean chain-adadelta? (...)
    """
    wanted = arguments.texts("ids", ids)
    chosen = set()
    for name in wanted:
        group = name.rstrip("/") + "/"
        found = {e.id for e in experiments if e.id == name}
        found = found or {e.id for e in experiments if e.id.startswith(group)}
        if not found:
            known = [e.id for e in experiments]
            hint = did_you_mean(name, known) or f"there are {listed(known)} "
            raise InputError("id", name, f"unknown; {hint}(retvar experiments lists all)")
        chosen |= found
    return tuple(e for e in experiments if not wanted or e.id in chosen)


def restrict(
    experiments: Iterable[Experiment], methods: Sequence[str] | None, runs: int | None
) -> tuple[Experiment, ...]:
    """The experiments with these methods only, and with this number of runs."""
    runs = None if runs is None else arguments.integer("runs", runs, 1)
    chosen = METHODS if methods is None else arguments.texts("methods", methods)
    for method in chosen or ["none"]:
        if method not in METHODS:
            raise InputError("methods", method, f"unknown; give some of {', '.join(METHODS)}")
    return tuple(
        dataclasses.replace(
            each,
            simulations=tuple(s.restricted(chosen, runs) for s in each.simulations),
            claims=tuple(claim for claim in each.claims if set(claim.methods) <= set(chosen)),
        )
        for each in experiments
    )
