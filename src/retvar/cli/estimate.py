"""The command that knows no MDP: estimate, from environments and logs."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from retvar.cli.base import words_of
from retvar.cli.sources import COLUMNS, STEPS, in_options, opened
from retvar.errors import InputError, RetvarError
from retvar.signals import Interrupted, Stop

if TYPE_CHECKING:
    import xarray

    from retvar.estimation.estimate import Estimate

__all__ = ["estimate"]

FIGURES = ("map", "heat_map", "states", "observed", "calibration", "check")
LEARNER = "estimator.safetensors"
FORMATS = ("png", "svg", "pdf")
QUIET = 10.0  # seconds without a line
SOURCES = (
    "SOURCE is gymnasium:ID, minari:NAME, or a log: FILE.parquet, FILE.csv, or a pattern of them."
)
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
    "--policy",
    help="In an environment: random, greedy, MODULE:FUNCTION or a FILE.npy of actions "
    "[default: random].",
)  # fmt: skip
@click.option("--steps", type=click.IntRange(1), help=f"Transitions to take [default: {STEPS:,}].")
@click.option("--episodes", type=click.IntRange(1), help="Episodes to take, in place of steps.")
@click.option(
    "--option", "options", multiple=True, metavar="KEY=VALUE",
    help="Setting of the environment, such as is_slippery=false; may be repeated.",
)  # fmt: skip
@_columns
@click.option("--states", metavar="N", help="How many states; 'labels': numbers are only names.")
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
@click.option("--bootstrap-samples", type=click.IntRange(0), default=100, show_default=True,
              help="Bootstrap replicates behind the intervals; 0: no intervals.")  # fmt: skip
@click.option("--level", type=float, default=0.9, show_default=True, help="Of the intervals.")
@click.option("--seed", type=click.IntRange(0), help="Seed [default: 0; with --resume a new one].")
@click.option("--resume", type=click.Path(path_type=Path),
              help="A estimator.safetensors of an earlier estimate, to go on from.")  # fmt: skip
@click.option("--check", is_flag=True, help="Roll out again, and say whether estimates agree.")
@click.option("--out", type=click.Path(path_type=Path), default="estimate", show_default=True,
              help="Folder for figures, estimate.nc and estimator.safetensors.")  # fmt: skip
@click.option("--log", type=click.Path(path_type=Path), help="Also write the experience: .parquet.")
@click.option("--format", "formats", default="png", show_default=True,
              help="Of figures: png,svg,pdf, or none.")  # fmt: skip
@click.option("--rows", type=click.IntRange(1), default=20, show_default=True, help="Of the table.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, all states.")
def estimate(source: str, **given: Any) -> None:
    """Value ± spread of every state of SOURCE, with intervals, from experience alone.

    Writes a table, figures, estimate.nc (netCDF) and estimator.safetensors, from which another run
    goes on with --resume.
    """
    with Stop() as stop, in_options(file="--resume", resume="--resume"):
        from retvar.estimation.estimate import prepare
        from retvar.estimation.monte_carlo_check import check
        from retvar.experience import recorded

        formats, settings = _formats(given["formats"]), _settings(given)
        experience = opened(source, given, given["seed"], stop)
        with _folder(given["out"]) as out:
            if given["log"] is not None:
                with in_options(path="--log"):
                    experience = recorded(experience, given["log"])
            found = prepare(experience, **settings)
            beside = not _ours(out, given["resume"])
            stop.last = functools.partial(_rescue, found, out, beside)
            live = source.startswith("gymnasium:")
            failure = _learned(found, stop, live)
            kept = _keep(found, out, beside=failure is not None and beside)
            checked = None
            if given["check"] and failure is None:
                try:
                    checked = check(found, opened(source, given, given["seed"] + 1, stop))
                except (RetvarError, Interrupted) as error:
                    failure = error
            drawn = (
                [] if stop.number or kept.name != LEARNER else _draw(found, checked, out, formats)
            )
        _tell(found, checked, drawn, kept, given)
        if failure is not None:
            click.echo(f"What was learned is kept; go on with --resume {kept}", err=True)
            raise Interrupted(stop.number) if stop.number else failure
    if checked is not None and not checked.agrees:
        sys.exit(1)


def _learned(found: Estimate, stop: Stop, live: bool) -> BaseException | None:
    """Learn to the end of the stream; what ended it before, where something was learned.

    An environment is stopped between steps, so that all it gave is handed over; to stop between
    chunks as well would lose the last transition, which waits for the one that follows.
    """
    try:
        check = (lambda: None) if live else stop.check
        with _bar(found.experience.length, check) as progress:
            found.learn(progress)
    except (RetvarError, Interrupted) as error:
        if getattr(error, "estimate", None) is None:
            raise Interrupted(stop.number) if stop.number else error from None
        return error
    return None


def _rescue(found: Estimate, out: Path, beside: bool) -> None:
    """Keep what was learned of a program that is about to be ended, such as in a long reset."""
    if not found.updating:
        kept = _keep(found, out, beside=beside)
        click.echo(f"What was learned is kept; go on with --resume {kept}", err=True)
    click.echo("Interrupted.", err=True)


def _settings(given: dict[str, Any]) -> dict[str, Any]:
    """Settings of the learner; those of a saved one where it goes on, and a seed of its own."""
    if given["resume"] is None:
        given["seed"] = given["seed"] or 0
        names = (
            "gamma",
            "lam",
            "method",
            "kappa",
            "features",
            "bootstrap_samples",
            "level",
            "seed",
        )
        estimand = given["estimand"].replace("-", "_")
        return {"estimand": estimand, **{name: given[name] for name in names}}
    from retvar.learners import load

    source = click.get_current_context().get_parameter_source
    for name in (
        "gamma",
        "lam",
        "method",
        "kappa",
        "estimand",
        "features",
        "bootstrap_samples",
        "level",
    ):
        if source(name) is click.core.ParameterSource.COMMANDLINE:
            field = f"--{name.replace('_', '-')}"
            raise InputError(field, given[name], "comes from the saved estimator; leave it out")
    saved = load(given["resume"])
    gamma = saved.description.gamma
    given["gamma"] = float(gamma) if isinstance(gamma, float | int) else None  # for greedy
    if given["seed"] is None:  # not what it has already seen
        given["seed"] = saved.steps
    return {"resume": given["resume"]}


def _formats(given: str) -> tuple[str, ...]:
    formats = words_of(given) or ()
    if formats == ("none",):
        return ()
    for each in formats:
        if each not in FORMATS:
            raise InputError("--format", each, f"must be some of {', '.join(FORMATS)}, or none")
    return formats


@contextlib.contextmanager
def _folder(out: Path) -> Iterator[Path]:
    """The folder to write to; gone again where nothing has been written."""
    before = out.is_dir()
    if out.exists() and not before:
        raise InputError("--out", out, "is a file; name a folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError("--out", out, f"cannot be made: {error.strerror or error}") from None
    try:
        yield out
    finally:
        if not before and not any(out.iterdir()):
            out.rmdir()


def _ours(out: Path, resume: Path | None) -> bool:
    """Whether a run may replace the learner in its folder though it fails: it goes on from it."""
    here = out / LEARNER
    return not here.exists() or (resume is not None and here.resolve() == Path(resume).resolve())


def _keep(
    found: Estimate, out: Path, data: xarray.Dataset | None = None, beside: bool = False
) -> Path:
    """Write the learner and the estimates, `beside` those that are there; where the learner is."""
    from retvar.files import write_with

    data = found.data if data is None else data
    start = "unfinished-" if beside else ""
    found.save(out / (start + LEARNER))
    write_with(out / f"{start}estimate.nc", lambda path: data.to_netcdf(path, engine="h5netcdf"))
    return out / (start + LEARNER)


def _draw(found: Estimate, checked: Any, out: Path, formats: tuple[str, ...]) -> list[Path]:
    """The figures; the estimates once more where they have been checked."""
    import retvar as rv

    data = found.data if checked is None else checked.data
    if checked is not None:
        _keep(found, out, data)
    if not formats:
        return []
    written: list[Path] = []
    for name in FIGURES:  # of an earlier run, which may have had others
        for ending in FORMATS:
            (out / f"{name}.{ending}").unlink(missing_ok=True)
    for name, figure in rv.plots.estimate_figures(data).items():
        for ending in formats:
            written.append(out / f"{name}.{ending}")
            rv.plots.save(figure, written[-1])
    return written


def _tell(
    found: Estimate, checked: Any, drawn: list[Path], kept: Path, given: dict[str, Any]
) -> None:
    if given["as_json"]:
        click.echo(json.dumps(_plain(found, checked), ensure_ascii=False, allow_nan=False))
        return
    click.echo(found.summary(given["rows"]))
    if checked is not None:
        click.echo("\n" + checked.summary())
    whole = [kept.with_name(kept.name.replace(LEARNER, "estimate.nc")), kept]
    click.echo("\nwritten: " + "\n         ".join(map(str, [*drawn, *whole])))


def _plain(found: Estimate, checked: Any) -> dict[str, Any]:
    """Estimates as plain data; what is not known is null."""
    data = found.data if checked is None else checked.data
    dim = "state" if "state" in data.dims else "region"
    columns = {
        str(name): [_finite(x) for x in data[name].values.tolist()]
        for name in data.data_vars
        if data[name].dims == (dim,)
    }
    if dim == "region":
        columns["centre"] = data["centre"].values.tolist()
    plain = {**data.attrs, dim: [str(x) for x in data["label" if dim == "state" else dim].values]}
    counts = found.experience.counts
    plain |= {
        "rejected_by_reason": dict(counts.rejected),
        "unmarked_ends_by_reason": dict(counts.unmarked_ends),
        **columns,
    }
    if checked is not None:
        plain["agrees"] = checked.agrees
        plain["check"] = {
            "places": checked.places, "truncated": checked.truncated, "limit": checked.limit,
            **{name: _finite(z) for name, z in checked.largest.items()},
        }  # fmt: skip
    return plain


def _finite(x: Any) -> Any:
    """A number that JSON has a word for, or none."""
    return x if not isinstance(x, float) or math.isfinite(x) else None


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
