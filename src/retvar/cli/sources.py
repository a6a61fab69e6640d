"""The source of experience that a command line names: an environment with a policy, or a log."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from retvar.cli.base import COMMAND, ONE, OPTION, Options, key_values, split_commas, whole_number
from retvar.support.errors import InputError
from retvar.support.format import did_you_mean

if TYPE_CHECKING:
    from retvar.experience import Experience

STEPS = 200_000
NAMED_POLICIES = ("random", "greedy")
KNOWN = "random, greedy, MODULE:FUNCTION, FILE.npy of actions, or sb3:ALGORITHM:FILE.zip"
LONGEST_SIDE, MOST_CELLS = 1_000, 100_000  # of a map
COLUMNS = (
    "state", "action", "reward", "cost", "next_state", "terminated", "truncated", "entity", "time",
    "episode", "behaviour", "target", "rho",
)  # fmt: skip
READING = (
    "on_error", "duplicates", "force", "states", "decimal", "thousands", "day_first", "encoding",
    "memory",
)  # fmt: skip  # how a log is read: arguments of from_table
LOGGED = (*COLUMNS, *READING, "target_policy", "gamma_column", "lam_column", "cluster", "follow")
ACTING: Options = {
    "policy": (None, f"Policy in an environment: {KNOWN}, which runs code [default: random]."),
    "envs": (ONE, "Number of copies of the environment that run side by side [default: 1]."),
    "deterministic": (
        "/--stochastic",
        "A model takes its most probable actions, or draws them [default: --deterministic].",
    ),
    **OPTION,
}
IN_AN_ENVIRONMENT = (*ACTING, "steps", "episodes", "check", "rollouts")


def kind_of_source(source: str) -> tuple[str, str]:
    """``gymnasium``, ``minari`` or ``table``, and what follows the colon."""
    kind, colon, name = source.partition(":")
    return kind if colon and kind in ("gymnasium", "minari") else "table", name


def refuse_misplaced(source: str, args: dict[str, Any]) -> None:
    """Refuse options that have no effect on this kind of source."""
    kind = kind_of_source(source)[0]
    misplaced = [(name, "logs") for name in LOGGED if kind != "table"]
    misplaced += [(name, "environments") for name in IN_AN_ENVIRONMENT if kind != "gymnasium"]
    for name, which in misplaced:
        given = args.get(name)
        if given not in (None, False, ()) or (name == "deterministic" and given is False):
            raise InputError(name, given, f"only for {which}; {source} is none")
    refuse_unknown_policy(args["policy"])


def refuse_unknown_policy(name: str | None) -> None:
    """Refuse a value of ``--policy`` that is neither a known name nor the name of a file."""
    if name is None or name in NAMED_POLICIES or ":" in name or name.endswith((".npy", ".zip")):
        return
    raise InputError("policy", name, f"{did_you_mean(name, NAMED_POLICIES)}must be {KNOWN}")


def open_source(source: str, args: dict[str, Any], seed: int = 0) -> Experience:
    """Open SOURCE as experience; `args` are the options of the command."""
    from retvar import experience

    kind, name = kind_of_source(source)
    if kind == "gymnasium":
        opened = _environment(source, args, seed)
    else:
        opened = experience.from_minari(name) if kind == "minari" else _table(source, args)
    opened.command = click.get_current_context().meta.get(COMMAND, "")
    if args["grid"] is not None:
        opened.grid = _grid(args["grid"], opened)
    return opened


def _environment(source: str, args: dict[str, Any], seed: int) -> Experience:
    """An environment with its policy."""
    from retvar.experience import from_gymnasium

    length = {"steps": args["steps"], "episodes": args["episodes"]}
    if args["steps"] is None and args["episodes"] is None:
        length["steps"] = STEPS
    envs, policy = acting(source, args, args["envs"])
    opened = from_gymnasium(envs, policy, **length, deterministic=args["deterministic"], seed=seed)
    opened.policy = "greedy" if args["policy"] == "greedy" else opened.policy
    return opened


def acting(source: str, args: dict[str, Any], copies: int | None) -> tuple[list[Any], Any]:
    """Copies of the environment that SOURCE names, closed with the command, and its policy."""
    from retvar.experience.environments import opened

    name, options = source.partition(":")[2], key_values(args["option"])
    envs = click.get_current_context().with_resource(opened(name, copies, options))
    return envs, load_policy(args["policy"] or "random", name, args["gamma"], options)


def _table(source: Any, args: dict[str, Any]) -> Experience:
    """A log, with the options that are arguments of ``from_table``."""
    from retvar import experience

    columns = {name: args[name] for name in (*COLUMNS, *READING) if args.get(name)}
    columns |= {n: args[f"{n}_column"] for n in ("gamma", "lam") if args[f"{n}_column"]}
    for name in ("state", "next_state", "reward"):
        if "," in columns.get(name, ""):
            columns[name] = list(split_commas(columns[name]) or ())
    if columns.get("terminated") == "none":
        columns["terminated"] = False
    if "states" in columns:
        number = whole_number(columns["states"])
        columns["states"] = columns["states"] if number is None else number
    policy = args["target_policy"]
    if policy is not None:
        file = Path(policy).suffix.lower() in (".npy", ".csv", ".parquet")
        columns["target_policy"] = policy if file else import_function("target_policy", policy)
    if args["follow"]:
        source = experience.Growing(source, 5.0 if args["every"] is None else args["every"])
    return experience.from_table(source, **columns)


def import_function(option: str, name: str) -> Any:
    """The object that MODULE:NAME names, also from the current folder."""
    module, _, function = name.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        return getattr(importlib.import_module(module), function)
    except Exception as error:  # a module may raise anything
        remedy = f"must be a file, or MODULE:FUNCTION, and cannot be imported: {error}"
        raise InputError(option, name, remedy) from None


def load_policy(name: str, env: str, gamma: float | None, options: dict[str, Any]) -> Any:
    """The policy that the option ``--policy`` names."""
    import retvar as rv
    from retvar.support.files import load_array

    refuse_unknown_policy(name)
    if name == "random" or name.startswith("sb3:") or name.endswith(".zip"):
        return name
    if name == "greedy":
        if gamma is None:
            raise InputError("policy", "greedy", "needs gamma, on which the best actions depend")
        return rv.Policy.greedy(rv.MDP.from_gymnasium(env, gamma=gamma, **options))
    return (
        load_array(Path(name), "policy")
        if name.endswith(".npy")
        else import_function("policy", name)
    )


def _grid(text: str, opened: Experience) -> tuple[int, int]:
    rows, columns = (whole_number(part) for part in text.lower().partition("x")[::2])
    if not rows or not columns or max(rows, columns) > LONGEST_SIDE or rows * columns > MOST_CELLS:
        remedy = f"must be ROWSxCOLUMNS, such as 4x12, of at most {MOST_CELLS:,} cells"
        raise InputError("grid", text, remedy)
    if opened.width is not None:
        raise InputError("grid", text, f"is for states; {opened.name} has observations")
    if opened.states is not None and opened.states > rows * columns:
        raise InputError("grid", text, f"has {rows * columns} cells for {opened.states} states")
    return rows, columns
