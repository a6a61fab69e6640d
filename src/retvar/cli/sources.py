"""The source of experience that a command line names: an environment with a policy, or a log."""

from __future__ import annotations

import contextlib
import importlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from retvar.cli.base import key_values, split_commas
from retvar.errors import InputError, RetvarError

if TYPE_CHECKING:
    from retvar.experience import Experience
    from retvar.signals import Stop

__all__ = [
    "COLUMNS",
    "STEPS",
    "StopRequested",
    "load_policy",
    "open_source",
    "option_names",
    "stoppable",
]

STEPS = 200_000
FOLLOW_EVERY = 5.0  # seconds between looks at a log that grows
GAMMA = "give the discount per step, such as --gamma 0.99"
COLUMNS = (
    "state", "action", "reward", "next_state", "terminated", "truncated", "episode", "stream",
    "behaviour", "target", "rho",
)  # fmt: skip
OPTIONS = (
    *COLUMNS, "states", "gamma", "lam", "kappa", "level", "features", "bootstrap_samples",
    "estimand", "method", "seed", "grid",
)  # fmt: skip
REPLACED = {  # remedies of the library, as options
    "pass terminated=False": "say --terminated none",
    "states='labels'": "--states labels",
    ", or retvar.features": "",
}


@contextlib.contextmanager
def option_names(**fields: str) -> Iterator[None]:
    """Rename the arguments in the library's error messages to the options of the command line."""
    try:
        yield
    except InputError as error:
        if type(error) is not InputError:
            raise
        field = fields.get(error.field, error.field)
        if field in OPTIONS:
            field = _option_name(field)
        remedy = error.remedy
        for python, option in REPLACED.items():
            remedy = remedy.replace(python, option)
        raise InputError(field, error.value, remedy) from None


def _option_name(parameter: str) -> str:
    return f"--{parameter.replace('_', '-')}"


class StopRequested(RetvarError):
    """A signal arrived while an environment was being stepped."""


def open_source(source: str, args: dict[str, Any], seed: int, stop: Stop) -> Experience:
    """Open SOURCE as a stream of experience; `args` are the options of the command."""
    from retvar import experience

    kind, colon, name = source.partition(":")
    kind = kind if colon and kind in ("gymnasium", "minari") else "table"
    if args["gamma"] is None and args["gamma_column"] is None and args["resume"] is None:
        raise InputError("--gamma", "missing", GAMMA)
    _refuse_misplaced(source, kind, args)
    if kind == "gymnasium":
        opened = _environment(name, args, seed, stop)
    elif kind == "minari":
        opened = experience.from_minari(name)
    else:
        opened = _table(_growing(source, args, stop) if args.get("follow") else source, args)
    if args["grid"] is not None:
        opened.grid = _grid(args["grid"], opened)
    return opened


def _refuse_misplaced(source: str, kind: str, args: dict[str, Any]) -> None:
    """Refuse options that have no effect on this kind of source."""
    for_tables = (
        *COLUMNS, "states", "gamma_column", "lam_column", "on_error", "cluster", "follow",
    )  # fmt: skip
    for_environments = ("check", "steps", "episodes", "policy", "options")
    misplaced: list[tuple[str, str]] = []
    if kind != "table":
        misplaced += [(name, f"only for logs in tables; {source} is none") for name in for_tables]
    if kind != "gymnasium":
        misplaced += [(name, f"only for environments; {source} is none")
                      for name in for_environments]  # fmt: skip
    for name, reason in misplaced:
        value = args.get(name)
        if value:
            option = "--option" if name == "options" else _option_name(name)
            shown = "given" if value is True else _shown(value)
            raise InputError(option, shown, reason)


def _shown(value: Any) -> str:
    """The value of an option as the user typed it."""
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def _environment(name: str, args: dict[str, Any], seed: int, stop: Stop) -> Experience:
    """An environment with its policy, which can be stopped between any two steps."""
    from retvar.experience import from_gymnasium
    from retvar.experience.environments import make_environment

    length = {"steps": args["steps"], "episodes": args["episodes"]}
    if args["steps"] is None and args["episodes"] is None:
        length["steps"] = STEPS
    options, policy = key_values(args["options"]), args["policy"] or "random"
    env = stoppable(make_environment(name, options), stop)
    acting = load_policy(policy, name, args["gamma"], options)
    opened = from_gymnasium(env, acting, **length, seed=seed)
    opened.policy = policy if policy == "greedy" else opened.policy
    return opened


def stoppable(env: Any, stop: Stop) -> Any:
    """Let a signal stop the environment between two steps, and close it with the command."""
    click.get_current_context().call_on_close(env.close)
    step = env.step

    def step_unless_stopped(action: Any) -> Any:
        if stop.number:
            raise StopRequested
        return step(action)

    env.step = step_unless_stopped
    return env


def _growing(source: str, args: dict[str, Any], stop: Stop) -> Any:
    """A log that grows until a signal arrives."""
    from retvar.experience import Growing

    every = FOLLOW_EVERY if args["every"] is None else args["every"]

    def wait() -> bool:
        until = time.monotonic() + every
        while not stop.number and time.monotonic() < until:
            time.sleep(min(0.1, every))
        return not stop.number

    return Growing(source, every, wait)


def _table(source: Any, args: dict[str, Any]) -> Experience:
    from retvar import experience

    columns = {name: args[name] for name in COLUMNS if args[name] is not None}
    columns |= {n: args[f"{n}_column"] for n in ("gamma", "lam") if args[f"{n}_column"]}
    for name in ("state", "next_state"):
        if "," in columns.get(name, ""):
            columns[name] = list(split_commas(columns[name]) or ())
    if columns.get("terminated") == "none":
        columns["terminated"] = False
    if args["states"] is not None:
        columns["states"] = int(args["states"]) if args["states"].isdigit() else args["states"]
    return experience.from_table(source, **columns, on_error=args["on_error"] or "skip")


def load_policy(name: str, env: str, gamma: float | None, options: dict[str, Any]) -> Any:
    """The policy that the option ``--policy`` names."""
    import numpy as np

    import retvar as rv

    if name == "random":
        return name
    if name == "greedy":
        if gamma is None:
            raise InputError(
                "--policy", "greedy", "needs --gamma, on which the best actions depend"
            )
        return rv.Policy.greedy(rv.MDP.from_gymnasium(env, gamma=gamma, **options))
    if name.endswith(".npy"):
        try:
            return np.load(name, allow_pickle=False)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError("--policy", name, f"cannot be read: {reason}") from None
    module, colon, function = name.partition(":")
    if not colon:
        raise InputError("--policy", name, "must be random, greedy, MODULE:FUNCTION or FILE.npy")
    sys.path.insert(0, str(Path.cwd()))
    try:
        return getattr(importlib.import_module(module), function)
    except Exception as error:  # a module may raise anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError("--policy", name, f"cannot be imported: {reason}") from None


def _grid(text: str, opened: Experience) -> tuple[int, int]:
    rows, by, columns = text.lower().partition("x")
    if not by or not rows.isdigit() or not columns.isdigit() or not int(rows) * int(columns):
        raise InputError("--grid", text, "must be ROWSxCOLUMNS, such as 4x12")
    if opened.width is not None:
        raise InputError("--grid", text, f"is for states; {opened.name} has observations")
    cells = int(rows) * int(columns)
    if opened.states is not None and opened.states > cells:
        raise InputError("--grid", text, f"has {cells} cells for {opened.states} states")
    return int(rows), int(columns)
