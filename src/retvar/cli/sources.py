"""The experience that a command line means: an environment and its policy, or a log."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from retvar.cli.base import options_of, words_of
from retvar.errors import InputError, RetvarError

if TYPE_CHECKING:
    from retvar.experience import Experience
    from retvar.signals import Stop

__all__ = ["COLUMNS", "STEPS", "Asked", "in_options", "opened"]

STEPS = 200_000
GAMMA = "say what a reward is worth one step later, such as --gamma 0.99"
COLUMNS = (
    "state", "action", "reward", "next_state", "terminated", "truncated", "episode", "stream",
    "behaviour", "target", "rho",
)  # fmt: skip
OPTIONS = (
    *COLUMNS, "states", "gamma", "lam", "kappa", "level", "features", "bootstrap_samples",
    "estimand", "method", "seed", "grid",
)  # fmt: skip
WORDS = {
    "pass terminated=False": "say --terminated none",
    "states='labels'": "--states labels",
    ", or retvar.features": "",
}


@contextlib.contextmanager
def in_options(**fields: str) -> Iterator[None]:
    """Errors of the library in the words of the command line."""
    try:
        yield
    except InputError as error:
        if type(error) is not InputError:
            raise
        field = fields.get(error.field, error.field)
        if field in OPTIONS:
            field = f"--{field.replace('_', '-')}"
        remedy = error.remedy
        for python, option in WORDS.items():
            remedy = remedy.replace(python, option)
        raise InputError(field, error.value, remedy) from None


class Asked(RetvarError):
    """Someone asked for an end while an environment was being stepped."""


def opened(source: str, given: dict[str, Any], seed: int, stop: Stop) -> Experience:
    """The experience meant."""
    from retvar import experience

    kind, colon, name = source.partition(":")
    kind = kind if colon and kind in ("gymnasium", "minari") else "table"
    if given["gamma"] is None and given["gamma_column"] is None and given["resume"] is None:
        raise InputError("--gamma", "missing", GAMMA)
    _refuse_misplaced(source, kind, given)
    if kind == "gymnasium":
        opened = _environment(name, given, seed, stop)
    elif kind == "minari":
        opened = experience.from_minari(name)
    else:
        opened = _table(source, given)
    if given["grid"] is not None:
        opened.grid = _grid(given["grid"], opened)
    return opened


def _refuse_misplaced(source: str, kind: str, given: dict[str, Any]) -> None:
    """Refuse options that mean nothing for this source, where they would go unheard."""
    for_tables = (*COLUMNS, "states", "gamma_column", "lam_column", "strict")
    to_act = ("check", "steps", "episodes", "policy", "options")
    wrong: list[tuple[str, str]] = []
    if kind != "table":
        wrong += [(name, f"is for logs in tables; {source} is none") for name in for_tables]
    if kind != "gymnasium":
        wrong += [(name, f"needs an environment to act in; {source} is none") for name in to_act]
    for name, why in wrong:
        if given[name]:
            flag = "--option" if name == "options" else f"--{name.replace('_', '-')}"
            shown = given[name] if isinstance(given[name], str | int) else "given"
            raise InputError(flag, "given" if shown is True else shown, why)


def _environment(name: str, given: dict[str, Any], seed: int, stop: Stop) -> Experience:
    """An environment with its policy, which can be stopped between any two steps."""
    from retvar.experience import from_gymnasium
    from retvar.experience.environments import make_environment

    length = {"steps": given["steps"], "episodes": given["episodes"]}
    if given["steps"] is None and given["episodes"] is None:
        length["steps"] = STEPS
    options, word = options_of(given["options"]), given["policy"] or "random"
    env = make_environment(name, options)
    click.get_current_context().call_on_close(env.close)
    step = env.step

    def stoppable(action: Any) -> Any:
        if stop.number:
            raise Asked
        return step(action)

    env.step = stoppable
    opened = from_gymnasium(env, _policy(word, name, given["gamma"], options), **length, seed=seed)
    opened.policy = word if word == "greedy" else opened.policy
    return opened


def _table(source: str, given: dict[str, Any]) -> Experience:
    from retvar import experience

    columns = {name: given[name] for name in COLUMNS if given[name] is not None}
    columns |= {n: given[f"{n}_column"] for n in ("gamma", "lam") if given[f"{n}_column"]}
    for name in ("state", "next_state"):
        if "," in columns.get(name, ""):
            columns[name] = list(words_of(columns[name]) or ())
    if columns.get("terminated") == "none":
        columns["terminated"] = False
    if given["states"] is not None:
        columns["states"] = int(given["states"]) if given["states"].isdigit() else given["states"]
    on_error = "raise" if given["strict"] else "skip"
    return experience.from_table(source, **columns, on_error=on_error)


def _policy(given: str, env: str, gamma: float | None, options: dict[str, Any]) -> Any:
    """A policy by its name on the command line."""
    import numpy as np

    import retvar as rv

    if given == "random":
        return given
    if given == "greedy":
        if gamma is None:
            raise InputError("--policy", "greedy", "needs --gamma: what is best depends on it")
        return rv.Policy.greedy(rv.MDP.from_gymnasium(env, gamma=gamma, **options))
    if given.endswith(".npy"):
        try:
            return np.load(given, allow_pickle=False)
        except (OSError, ValueError) as error:
            told = getattr(error, "strerror", None) or error
            raise InputError("--policy", given, f"cannot be read: {told}") from None
    module, colon, name = given.partition(":")
    if not colon:
        raise InputError("--policy", given, "must be random, greedy, MODULE:FUNCTION or FILE.npy")
    sys.path.insert(0, str(Path.cwd()))
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # a module may raise anything
        told = " ".join(str(error).split()) or type(error).__name__
        raise InputError("--policy", given, f"cannot be imported: {told}") from None


def _grid(given: str, opened: Experience) -> tuple[int, int]:
    rows, by, columns = given.lower().partition("x")
    if not by or not rows.isdigit() or not columns.isdigit() or not int(rows) * int(columns):
        raise InputError("--grid", given, "must be ROWSxCOLUMNS, such as 4x12")
    if opened.width is not None:
        raise InputError("--grid", given, f"is for states; {opened.name} has observations")
    cells = int(rows) * int(columns)
    if opened.states is not None and opened.states > cells:
        raise InputError("--grid", given, f"has {cells} places for {opened.states} states")
    return int(rows), int(columns)
