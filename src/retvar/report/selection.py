"""Which experiments are meant: ids, groups of ids, and people's own files."""

from __future__ import annotations

import difflib
import re
import sys
import types
from collections.abc import Iterable, Sequence
from pathlib import Path

from retvar.errors import InputError
from retvar.experiments import Experiment, all_experiments
from retvar.format import listed

__all__ = ["declared", "restrict", "select"]

METHODS = ("direct", "vtd", "centred")
ID = re.compile(r"[A-Za-z0-9_][\w.+-]*(/[A-Za-z0-9_][\w.+-]*)*", re.ASCII)


def declared(file: str | Path | None = None) -> tuple[Experiment, ...]:
    """The paper's experiments, or those that a Python file declares as ``EXPERIMENTS``.

    >>> [experiment.id for experiment in declared()][:3]
    ['networks', 'chain-mdp', 'complex-mdp']
    """
    if file is None:
        return all_experiments()
    path = Path(file)
    try:
        source = path.read_bytes()
    except OSError as error:
        raise InputError("file", path, f"cannot be read: {error.strerror or error}") from None
    module = types.ModuleType("retvar_own_experiments")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses and the like look themselves up there
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
    except Exception as error:
        raise InputError("file", path, _where(error, str(path))) from error
    found = getattr(module, "EXPERIMENTS", None)
    if not isinstance(found, list | tuple) or not found:
        raise InputError("file", path, "must have EXPERIMENTS = [Experiment(…), …]")
    return _checked(found, path)


def _where(error: Exception, path: str) -> str:
    """What went wrong in a file, and in which line of it."""
    line = error.lineno if isinstance(error, SyntaxError) else None
    at = error.__traceback__
    while at is not None:
        line = at.tb_lineno if at.tb_frame.f_code.co_filename == path else line
        at = at.tb_next
    told = f"{type(error).__name__}: {error}"
    return f"fails{'' if line is None else f' in line {line}'} ({told})"


def _checked(found: Sequence[object], path: Path) -> tuple[Experiment, ...]:
    kept: dict[str, Experiment] = {}
    for each in found:
        if not isinstance(each, Experiment):
            raise InputError("file", path, f"EXPERIMENTS holds {each!r}, which is no Experiment")
        if not ID.fullmatch(each.id):
            raise InputError(
                "id", each.id, "must be words of letters, digits, _ and -, joined by /"
            )
        if each.id in kept:
            raise InputError("id", each.id, "is declared twice")
        names = [simulation.name for simulation in each.simulations]
        if len(set(names)) < len(names):
            raise InputError("simulations", listed(names), f"need names of their own ({each.id})")
        kept[each.id] = each
    return tuple(kept.values())


def select(ids: Iterable[str], experiments: Sequence[Experiment]) -> tuple[Experiment, ...]:
    """Those asked for, in the order declared; the beginning of ids stands for all below it.

    >>> [e.id for e in select(["chain-step-size"], declared())]
    ['chain-step-size/equal', 'chain-step-size/smaller', 'chain-step-size/larger']
    >>> select(["chain-adadleta"], declared())
    Traceback (most recent call last):
        ...
    retvar.errors.InputError: id = chain-adadleta: unknown; did you mean chain-adadelta?
    """
    wanted = list(ids)
    chosen = set()
    for asked in wanted:
        below = asked.rstrip("/") + "/"
        found = {e.id for e in experiments if e.id == asked}
        found = found or {e.id for e in experiments if e.id.startswith(below)}
        if not found:
            raise InputError("id", asked, _suggestion(asked, [e.id for e in experiments]))
        chosen |= found
    return tuple(e for e in experiments if not wanted or e.id in chosen)


def _suggestion(asked: str, known: list[str]) -> str:
    """The nearest ids and groups.

    >>> _suggestion("chain-step", ["chain-step-size/equal", "chain-mdp"])
    'unknown; did you mean chain-step-size?'
    """
    groups = [name.rpartition("/")[0] for name in known if "/" in name]
    names = list(dict.fromkeys([*groups, *known]))
    near = difflib.get_close_matches(asked, names, n=3, cutoff=0.75)
    near = near or [name for name in names if asked.lower() in name][:3]
    near = near or difflib.get_close_matches(asked, names, n=3, cutoff=0.5)
    if near:
        return f"unknown; did you mean {' or '.join(near)}?"
    return f"unknown; there are {listed(known)} (retvar experiments lists them)"


def restrict(
    experiments: Iterable[Experiment], methods: Sequence[str] | None, runs: int | None
) -> tuple[Experiment, ...]:
    """The same with some methods only, and another number of runs.

    >>> experiments = restrict(select(["complex-on-policy"], declared()), ["direct"], runs=2)
    >>> list(experiments[0].simulations[0].learners), experiments[0].simulations[0].runs
    (['direct'], 2)
    """
    if runs is not None and runs < 1:
        raise InputError("runs", runs, "must be at least 1")
    chosen = METHODS if methods is None else tuple(methods)
    for method in chosen:
        if method not in METHODS:
            raise InputError("methods", method, f"unknown; give some of {', '.join(METHODS)}")
    if not chosen:
        raise InputError("methods", "none", f"give some of {', '.join(METHODS)}")
    return tuple(experiment.restricted(chosen, runs) for experiment in experiments)
