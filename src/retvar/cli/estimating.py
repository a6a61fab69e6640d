"""The command that knows no MDP: estimate, from environments and logs."""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from retvar.cli.base import options_of, words_of
from retvar.errors import InputError, RetvarError
from retvar.signals import Interrupted, Stop

if TYPE_CHECKING:
    from retvar.experience import Estimate, Experience

__all__ = ["estimate"]

STEPS = 200_000
QUIET = 10.0  # seconds without a line
SOURCES = (
    "SOURCE is gymnasium:ID, minari:NAME, or a log: FILE.parquet, FILE.csv, or a pattern of them."
)
COLUMNS = (
    "state", "action", "reward", "next_state", "terminated", "truncated", "episode", "stream",
    "behaviour", "target", "rho",
)  # fmt: skip
COLUMN_HELP = {
    "state": "Column of the state; several, with commas, are an observation.",
    "terminated": "Column telling that the episode ended; 'none' where episodes never end.",
    "behaviour": "Column: probability of the action under the policy that made the log.",
    "target": "Column: probability of the action under the policy asked about.",
    "rho": "Column: importance ratio, in place of the two probabilities.",
}


def _columns(command: Any) -> Any:
    """Attach an option for each column of a log."""
    for name in reversed(COLUMNS):
        told = COLUMN_HELP.get(name, f"Column of the {name.replace('_', ' ')}.")
        command = click.option(f"--{name.replace('_', '-')}", name, metavar="COL", help=told)(
            command
        )
    return command


@click.command(epilog=SOURCES)
@click.argument("source")
@click.option("--gamma", type=float, help="Discount; always asked for, never assumed.")
@click.option("--lam", type=float, help="λ of the return meant; 1, the return itself, by default.")
@click.option(
    "--policy", default="random", show_default=True,
    help="In an environment: random, greedy, MODULE:FUNCTION or a FILE.npy of actions.",
)  # fmt: skip
@click.option("--steps", type=click.IntRange(1), help=f"Transitions to take [default: {STEPS:,}].")
@click.option("--episodes", type=click.IntRange(1), help="Episodes to take, in place of steps.")
@click.option(
    "--option", "options", multiple=True, metavar="KEY=VALUE",
    help="Setting of the environment, such as is_slippery=false; may be repeated.",
)  # fmt: skip
@_columns
@click.option("--gamma-column", metavar="COL", help="Column of γ, in place of --gamma.")
@click.option("--lam-column", metavar="COL", help="Column of λ, in place of --lam.")
@click.option("--strict", is_flag=True, help="Stop at the first bad row, in place of counting it.")
@click.option("--grid", metavar="ROWSxCOLS", help="Draw states as a map of so many rows, columns.")
@click.option(
    "--method", type=click.Choice(["direct", "centred", "vtd"]), default="direct",
    show_default=True, help="How the variance is learned.",
)  # fmt: skip
@click.option("--kappa", type=float, help="Trace decay [default: a fifth of the horizon].")
@click.option(
    "--estimand", default="target-return", show_default=True,
    help="Off-policy: target-return, or off-policy-return, weighted by importance ratios.",
)  # fmt: skip
@click.option("--features", help="Of observations: tiles, fourier or polynomial [default: tiles].")
@click.option("--replicates", type=click.IntRange(0), default=100, show_default=True,
              help="Bootstrap replicates behind the intervals; 0: no intervals.")  # fmt: skip
@click.option("--level", type=float, default=0.9, show_default=True, help="Of the intervals.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed.")
@click.option("--resume", type=click.Path(path_type=Path),
              help="A learner.safetensors of an earlier estimate, to go on from.")  # fmt: skip
@click.option("--check", is_flag=True, help="Roll out again, and say whether estimates agree.")
@click.option("--out", type=click.Path(path_type=Path), default="estimate", show_default=True,
              help="Folder for figures, estimate.nc and learner.safetensors.")  # fmt: skip
@click.option("--log", type=click.Path(path_type=Path), help="Also write the experience: .parquet.")
@click.option("--format", "formats", default="png", show_default=True, help="png,svg,pdf.")
@click.option("--rows", type=click.IntRange(1), default=20, show_default=True, help="Of the table.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, all states.")
def estimate(source: str, **given: Any) -> None:
    """Value ± spread of every state of SOURCE, with intervals, from experience alone.

    Writes a table, figures, estimate.nc (netCDF) and learner.safetensors, from which another run
    goes on with --resume.
    """
    with Stop() as stop:
        from retvar import experience

        opened = _opened(source, given, given["seed"])
        out = _folder(given["out"])
        if given["log"] is not None:
            opened = experience.recorded(opened, given["log"])
        failure: BaseException | None = None
        try:
            with _bar(opened.length, stop.check) as progress:
                found = experience.estimate(opened, **_settings(given), progress=progress)
        except (RetvarError, Interrupted) as error:
            failure, so_far = error, getattr(error, "estimate", None)
            if so_far is None:
                raise
            found = so_far
        checked = None
        if given["check"] and failure is None:
            fresh = _opened(source, given, given["seed"] + 1)
            checked = experience.check(found, fresh)
        written = _write(found, checked, out, words_of(given["formats"]) or ())
    _tell(found, checked, written, given)
    if failure is not None:
        click.echo("What was learned so far is kept in " + str(out) + ".", err=True)
        raise failure
    if checked is not None and not checked.agrees:
        sys.exit(1)


def _settings(given: dict[str, Any]) -> dict[str, Any]:
    if given["resume"] is not None:
        if given["gamma"] is not None or given["lam"] is not None:
            raise InputError("gamma, lam", "with resume", "are those of the saved learner")
        return {"resume": given["resume"]}
    lam = None if given["lam_column"] else 1.0
    return {
        "gamma": given["gamma"],
        "lam": lam if given["lam"] is None else given["lam"],
        **{name: given[name] for name in ("method", "kappa", "features", "replicates", "level")},
        "estimand": given["estimand"].replace("-", "_"),
        "seed": given["seed"],
    }


def _opened(source: str, given: dict[str, Any], seed: int) -> Experience:
    """The experience meant."""
    from retvar import experience

    kind, colon, name = source.partition(":")
    live = kind == "gymnasium" and bool(colon)
    if given["gamma"] is None and given["gamma_column"] is None and given["resume"] is None:
        raise InputError("gamma", "not given", "say what a reward is worth one step later: --gamma")
    named = [
        f"--{n.replace('_', '-')}" for n in (*COLUMNS, "gamma_column", "lam_column") if given[n]
    ]
    if named and (live or kind == "minari"):
        raise InputError(named[0], "given", f"is for logs; {source} has no columns")
    if not live and (given["check"] or given["steps"] or given["episodes"] or given["options"]):
        flag = "check" if given["check"] else "steps, episodes, option"
        raise InputError(flag, "given", f"needs an environment to act in; {source} is a log")
    if live:
        length = {"steps": given["steps"], "episodes": given["episodes"]}
        if given["steps"] is None and given["episodes"] is None:
            length["steps"] = STEPS
        options = options_of(given["options"])
        policy = _policy(given["policy"], name, given["gamma"], options)
        opened = experience.from_gymnasium(name, policy, **length, seed=seed, **options)
        if given["policy"] == "greedy":
            opened.policy = "greedy"
    elif kind == "minari" and colon:
        opened = experience.from_minari(name)
    else:
        opened = _table(source, given)
    if given["grid"] is not None:
        opened.grid = _grid(given["grid"])
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
    return experience.from_table(source, **columns, on_error="raise" if given["strict"] else "skip")


def _policy(given: str, env: str, gamma: float | None, options: dict[str, Any]) -> Any:
    """A policy by its name on the command line."""
    import numpy as np

    import retvar as rv

    if given == "random":
        return given
    if given == "greedy":
        if gamma is None:
            raise InputError("policy", "greedy", "needs --gamma: what is best depends on it")
        return rv.Policy.greedy(rv.MDP.from_gymnasium(env, gamma=gamma, **options))
    if given.endswith(".npy"):
        try:
            return np.load(given, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise InputError("policy", given, f"cannot be read: {error}") from None
    module, colon, name = given.partition(":")
    if not colon:
        raise InputError("policy", given, "must be random, greedy, MODULE:FUNCTION or FILE.npy")
    sys.path.insert(0, str(Path.cwd()))
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InputError("policy", given, f"cannot be imported: {error}") from None


def _grid(given: str) -> tuple[int, int]:
    rows, by, columns = given.lower().partition("x")
    if not by or not rows.isdigit() or not columns.isdigit() or not int(rows) * int(columns):
        raise InputError("grid", given, "must be ROWSxCOLUMNS, such as 4x12")
    return int(rows), int(columns)


def _folder(out: Path) -> Path:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError("out", out, f"cannot be made: {error.strerror or error}") from None
    return out


def _write(found: Estimate, checked: Any, out: Path, formats: tuple[str, ...]) -> list[Path]:
    """Everything into the folder; figures last, since they take longest."""
    import retvar as rv
    from retvar.files import write_with

    data = found.data if checked is None else checked.data
    found.save(out / "learner.safetensors")
    write_with(out / "estimate.nc", lambda path: data.to_netcdf(path, engine="h5netcdf"))
    written = []
    for name, figure in rv.plots.estimate_figures(data).items():
        for ending in formats:
            written.append(out / f"{name}.{ending}")
            rv.plots.save(figure, written[-1])
    return written


def _tell(found: Estimate, checked: Any, written: list[Path], given: dict[str, Any]) -> None:
    if given["as_json"]:
        click.echo(json.dumps(_plain(found, checked), ensure_ascii=False, allow_nan=False))
        return
    click.echo(found.text(given["rows"]))
    if checked is not None:
        click.echo("\n" + checked.text())
    click.echo("\nwritten: " + ", ".join(map(str, written)))
    click.echo(f"         {given['out']}/estimate.nc, {given['out']}/learner.safetensors")


def _plain(found: Estimate, checked: Any) -> dict[str, Any]:
    """Estimates as plain data; what is not known is null."""
    data = found.data if checked is None else checked.data
    dim = "state" if "state" in data.dims else "region"
    columns = {
        str(name): [None if x != x else x for x in data[name].values.tolist()]
        for name in data.data_vars
        if data[name].dims == (dim,)
    }
    if dim == "region":
        columns["centre"] = data["centre"].values.tolist()
    plain = {**data.attrs, dim: [str(x) for x in data["label" if dim == "state" else dim].values]}
    plain |= {"left_out": dict(found.experience.tally.rejected), **columns}
    if checked is not None:
        plain["agrees"] = checked.agrees
    return plain


@contextlib.contextmanager
def _bar(length: int | None, check: Callable[[], None]) -> Iterator[Callable[[int], None]]:
    """Progress on stderr: a bar on a terminal, a line now and then where it is piped."""
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_terminal:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}"), BarColumn(),
            TextColumn("{task.completed:,.0f} transitions"), TimeRemainingColumn(),
        )  # fmt: skip
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("learning", total=length)

            def draw(done: int) -> None:
                check()
                bar.update(task, completed=done)

            yield draw
        return
    last = time.monotonic()

    def say(done: int) -> None:
        nonlocal last
        check()
        if time.monotonic() - last > QUIET:
            last = time.monotonic()
            share = f" ({done / length:.0%})" if length else ""
            click.echo(f"  {done:,} transitions{share}", err=True)

    yield say
