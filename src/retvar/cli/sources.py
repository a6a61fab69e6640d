"""The source of experience that a command line names: an environment with a policy, or a log."""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from retvar.cli.base import key_values, split_commas, whole_number
from retvar.errors import InputError, RetvarError
from retvar.format import did_you_mean

if TYPE_CHECKING:
    from retvar.experience import Experience
    from retvar.experience.recipes import Text
    from retvar.signals import Stop

__all__ = [
    "COLUMNS",
    "STEPS",
    "StopRequested",
    "acting_options",
    "import_function",
    "load_policy",
    "make_stoppable",
    "open_source",
    "option_names",
    "refuse_options",
    "refuse_unknown_policy",
    "with_options",
]

STEPS = 200_000
NAMED_POLICIES = ("random", "greedy")
POLICY = "must be random, greedy, MODULE:FUNCTION, FILE.npy or sb3:ALGORITHM:FILE.zip"
FOLLOW_EVERY = 5.0  # seconds between looks at a log that grows
LONGEST_SIDE, MOST_CELLS = 1_000, 100_000  # of a map
GAMMA = "give the discount per step, such as --gamma 0.99"
COLUMNS = (
    "state", "action", "reward", "cost", "next_state", "terminated", "truncated", "entity", "time",
    "episode", "behaviour", "target", "rho",
)  # fmt: skip
FOR_LOGS = ("target_policy", "duplicates", "force", "stream")  # further options for logs
OPTIONS = (
    *COLUMNS, *FOR_LOGS, "actions", "states", "gamma", "lam", "kappa", "level", "features",
    "bootstrap_samples", "estimand", "method", "seed", "grid", "policy", "envs", "deterministic",
)  # fmt: skip
REPLACED = {  # remedies of the library, as options
    "pass terminated=False": "say --terminated none",
    "states='labels'": "--states labels",
    ", or retvar.features": "",
    "force=True": "--force",
    'truncated="as_end"': "--within-limit",
}
NAMED = re.compile(r"\b(entity|time|episode|next_state|terminated|truncated)=('[^']*')?")


def acting_options(command: Any) -> Any:
    """Add the options that say which policy acts, and in how many environments."""
    for option in (
        click.option(
            "--deterministic/--stochastic", default=None,
            help="Whether a model takes its most probable actions or draws them "
            "[default: --deterministic].",
        ),
        click.option(
            "--envs", type=click.IntRange(1), metavar="N",
            help="Number of copies of the environment that run side by side [default: 1].",
        ),
        click.option(
            "--policy",
            help="Policy in an environment: random, greedy, MODULE:FUNCTION, a FILE.npy of "
            "actions, or sb3:ALGORITHM:FILE.zip, which runs code in the file [default: random].",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


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
        raise InputError(field, error.value, with_options(error.remedy)) from None


def with_options(text: str) -> str:
    """A text of the library with options in place of arguments.

    >>> with_options("name entity='patient' or time=")
    'name --entity patient or --time'
    """
    for python, option in REPLACED.items():
        text = text.replace(python, option)

    def option_of(match: re.Match[str]) -> str:
        column = (match[2] or "").strip("'")
        return f"{_option_name(match[1])} {column}".rstrip()

    return NAMED.sub(option_of, text)


def _option_name(parameter: str) -> str:
    return f"--{parameter.replace('_', '-')}"


class StopRequested(RetvarError):
    """A signal arrived while an environment was being stepped."""


def refuse_options(source: str, args: dict[str, Any]) -> None:
    """Refuse what is missing, misplaced or misspelt, before anything heavy is imported."""
    if args["gamma"] is None and args["gamma_column"] is None and args["resume"] is None:
        raise InputError("--gamma", "missing", GAMMA)
    _refuse_misplaced(source, _kind(source)[0], args)
    refuse_unknown_policy(args["policy"])


def refuse_unknown_policy(name: str | None) -> None:
    """Refuse a value of ``--policy`` that is neither a known name nor the name of a file."""
    if name is not None and name not in NAMED_POLICIES:
        if ":" in name or Path(name).suffix in (".npy", ".zip"):
            return
        hint = did_you_mean(name, NAMED_POLICIES)
        raise InputError("--policy", name, hint + (f"Must{POLICY[4:]}" if hint else POLICY))


def _kind(source: str) -> tuple[str, str]:
    """``gymnasium``, ``minari`` or ``table``, and what follows the colon."""
    kind, colon, name = source.partition(":")
    return kind if colon and kind in ("gymnasium", "minari") else "table", name


def open_source(source: str, args: dict[str, Any], seed: int, stop: Stop) -> Experience:
    """Open SOURCE as a stream of experience; `args` are the options of the command."""
    from retvar import experience

    kind, name = _kind(source)
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
        *COLUMNS, *FOR_LOGS, "states", "gamma_column", "lam_column", "on_error", "cluster",
        "follow",
    )  # fmt: skip
    for_environments = (
        "check", "steps", "episodes", "policy", "envs", "deterministic", "rollouts", "options",
    )  # fmt: skip
    misplaced: list[tuple[str, str]] = []
    if kind != "table":
        misplaced += [(name, f"only for logs in tables; {source} is none") for name in for_tables]
    if kind != "gymnasium":
        misplaced += [(name, f"only for environments; {source} is none")
                      for name in for_environments]  # fmt: skip
    for name, reason in misplaced:
        value = args.get(name)
        stochastic = name == "deterministic" and value is False
        if value or stochastic:
            option = "--option" if name == "options" else _option_name(name)
            option = "--stochastic" if stochastic else option
            shown = "given" if isinstance(value, bool) else _shown(value)
            raise InputError(option, shown, reason)


def _shown(value: Any) -> str:
    """The value of an option as the user typed it."""
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def _environment(name: str, args: dict[str, Any], seed: int, stop: Stop) -> Experience:
    """An environment with its policy, which can be stopped between any two steps."""
    from retvar.experience import from_gymnasium
    from retvar.experience.recipes import Call

    length = {"steps": args["steps"], "episodes": args["episodes"]}
    if args["steps"] is None and args["episodes"] is None:
        length["steps"] = STEPS
    options, policy = key_values(args["options"]), args["policy"] or "random"
    envs = make_stoppable(name, args["envs"], options, stop)
    acting = load_policy(policy, name, args["gamma"], options)
    opened = from_gymnasium(envs, acting, **length, deterministic=args["deterministic"], seed=seed)
    opened.policy = policy if policy == "greedy" else opened.policy
    acting_as = None if policy == "random" else _policy_text(policy, name, args["gamma"], options)
    given = {"policy": acting_as, **length, "envs": args["envs"]}
    given |= {"deterministic": args["deterministic"], "seed": seed or None}
    opened.recipe = Call.of("from_gymnasium", name, given, options)
    return opened


def _policy_text(policy: str, env: str, gamma: float | None, options: dict[str, Any]) -> Text:
    """A policy as it stands in Python, and as an option."""
    from retvar.experience.recipes import Text, as_text

    if policy == "greedy":
        more = "".join(f", {name}={value!r}" for name, value in options.items())
        mdp = f'rv.MDP.from_gymnasium("{env}", gamma={gamma}{more})'
        return Text(f"rv.Policy.greedy({mdp})", policy)
    if policy.endswith(".npy"):
        return Text(f"numpy.load({Path(policy).name!r})", Path(policy).name, "import numpy")
    if policy.startswith("sb3:") or policy.endswith(".zip"):
        return as_text("policy", policy)
    module, _, function = policy.partition(":")
    return Text(function, policy, f"from {module} import {function}")


def make_stoppable(name: str, envs: int | None, options: dict[str, Any], stop: Stop) -> list[Any]:
    """Copies of an environment, which a signal stops between two steps."""
    from retvar.experience.environments import make_copies

    made = make_copies(name, envs, options)
    assert made is not None
    return [stoppable(env, stop) for env in made()]


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
        number = whole_number(args["states"])
        columns["states"] = args["states"] if number is None else number
    if args["stream"] is not None:
        raise InputError("--stream", args["stream"], "is called --entity")
    if args["target_policy"] is not None:
        columns["target_policy"] = _target_policy(args["target_policy"])
    return experience.from_table(
        source, **columns, on_error=args["on_error"] or "skip",
        duplicates=args["duplicates"] or "drop", force=args["force"],
    )  # fmt: skip


def _target_policy(name: str) -> Any:
    """The file or function that ``--target-policy`` names."""
    if Path(name).suffix.lower() in (".npy", ".csv", ".parquet", ".json"):
        return name
    if ":" not in name:
        remedy = "must be FILE.npy, .csv, .parquet or .json, or MODULE:FUNCTION"
        raise InputError("--target-policy", name, remedy)
    return import_function("--target-policy", name)


def import_function(option: str, name: str) -> Any:
    """The object that MODULE:NAME names, also from the current folder."""
    module, _, function = name.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        return getattr(importlib.import_module(module), function)
    except Exception as error:  # a module may raise anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(option, name, f"cannot be imported: {reason}") from None


def load_policy(name: str, env: str, gamma: float | None, options: dict[str, Any]) -> Any:
    """The policy that the option ``--policy`` names."""
    import retvar as rv
    from retvar.reading import load_array

    if name == "random" or name.startswith("sb3:") or name.endswith(".zip"):
        return name
    if name == "greedy":
        if gamma is None:
            raise InputError(
                "--policy", "greedy", "needs --gamma, on which the best actions depend"
            )
        return rv.Policy.greedy(rv.MDP.from_gymnasium(env, gamma=gamma, **options))
    if name.endswith(".npy"):
        return load_array(Path(name), "--policy")
    refuse_unknown_policy(name)
    return import_function("--policy", name)


def _grid(text: str, opened: Experience) -> tuple[int, int]:
    rows, columns = (whole_number(part) for part in text.lower().partition("x")[::2])
    if not rows or not columns:
        raise InputError("--grid", text, "must be ROWSxCOLUMNS, such as 4x12")
    if opened.width is not None:
        raise InputError("--grid", text, f"is for states; {opened.name} has observations")
    cells = rows * columns
    if max(rows, columns) > LONGEST_SIDE or cells > MOST_CELLS:
        most = f"can be drawn up to {LONGEST_SIDE:,} on a side and {MOST_CELLS:,} cells"
        raise InputError("--grid", text, f"{most}; leave it out, or merge states")
    if opened.states is not None and opened.states > cells:
        raise InputError("--grid", text, f"has {cells} cells for {opened.states} states")
    return rows, columns
