"""The command for unknown MDPs: estimate, from environments and logs."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from retvar.cli.base import ESTIMAND, JSON, OPTION, PATH, print_result, split_commas, to_json
from retvar.cli.sources import COLUMNS, STEPS, open_source, option_names
from retvar.errors import InputError, RetvarError
from retvar.networks import DEFAULT, NETWORKS
from retvar.signals import Interrupted, Stop

if TYPE_CHECKING:
    import xarray

    from retvar.estimation.estimate import Estimate

__all__ = ["estimate"]

FIGURES = ("map", "heat_map", "states", "observed", "calibration", "check")
ESTIMATOR, DATA = "estimator.safetensors", "estimate.nc"
FORMATS = ("png", "svg", "pdf")
SETTINGS = (
    "by",
    "gamma",
    "lam",
    "method",
    "kappa",
    "estimand",
    "features",
    "bootstrap_samples",
    "level",
)
SAVED = "The estimator is saved; continue with --resume"
SOURCES = (
    "SOURCE is gymnasium:ID, minari:NAME, or a log: FILE.parquet, FILE.csv, or a pattern of them."
)
COLUMN_HELP = {
    "state": "Column of the state; several, separated by commas, form an observation.",
    "terminated": "Column that marks the end of an episode; 'none' if episodes never end.",
    "truncated": "Column that marks an episode that was cut off before its end.",
    "stream": "Column of the stream, if a log interleaves several.",
    "behaviour": "Column of the action's probability under the behaviour policy.",
    "target": "Column of the action's probability under the target policy.",
    "rho": "Column of the importance ratio, instead of the two probabilities.",
}


def _columns(command: Any) -> Any:
    """Add an option for each column of a log."""
    for name in reversed(COLUMNS):
        text = COLUMN_HELP.get(name, f"Column of the {name.replace('_', ' ')}.")
        option = f"--{name.replace('_', '-')}"
        command = click.option(option, name, metavar="COL", help=text)(command)
    return command


@click.command(epilog=SOURCES)
@click.argument("source")
@click.option("--gamma", type=float, help="Discount γ; required unless it is a column.")
@click.option("--lam", type=float, help="λ of the return [default: 1].")
@click.option(
    "--policy",
    help="Policy in an environment: random, greedy, MODULE:FUNCTION or a FILE.npy of actions "
    "[default: random].",
)
@click.option(
    "--steps", type=click.IntRange(1), help=f"Number of transitions to take [default: {STEPS:,}]."
)
@click.option(
    "--episodes", type=click.IntRange(1), help="Number of episodes to take, instead of --steps."
)
@OPTION
@_columns
@click.option("--states", metavar="N", help="Number of states; 'labels' if numbers are only names.")
@click.option("--gamma-column", metavar="COL", help="Column of γ, instead of --gamma.")
@click.option("--lam-column", metavar="COL", help="Column of λ, instead of --lam.")
@click.option(
    "--on-error", type=click.Choice(["skip", "raise"]),
    help="Skip and count bad rows of a log, or stop at the first [default: skip].",
)  # fmt: skip
@click.option("--grid", metavar="ROWSxCOLS", help="Draw the states as a map of this size.")
@click.option(
    "--by", type=click.Choice(["least_squares", "td"]),
    help="Least squares, or TD learning in one pass [default: least_squares; td with --method, "
    "--kappa or --bootstrap-samples].",
)  # fmt: skip
@click.option(
    "--method", type=click.Choice(list(NETWORKS)), default=DEFAULT,
    show_default=True, help="Method that learns the variance.",
)  # fmt: skip
@click.option("--kappa", type=float, help="Trace decay [default: a fifth of the horizon].")
@ESTIMAND
@click.option(
    "--features", help="Features of observations: tiles, fourier or polynomial [default: tiles]."
)
@click.option(
    "--bootstrap-samples", type=click.IntRange(0),
    help="Number of bootstrap samples for the intervals of td; 0 for none [default: 100].",
)  # fmt: skip
@click.option("--level", type=float, default=0.9, show_default=True, help="Level of the intervals.")
@click.option(
    "--seed", type=click.IntRange(0), help="Random seed [default: 0; with --resume a new one]."
)
@click.option("--resume", type=PATH, help=f"{ESTIMATOR} of an earlier estimate, to continue from.")
@click.option(
    "--check", is_flag=True, help="Compare with fresh Monte Carlo returns of the environment."
)
@click.option(
    "--out", type=PATH, default="estimate", show_default=True,
    help=f"Folder for figures, {DATA} and {ESTIMATOR}; created if missing.",
)  # fmt: skip
@click.option("--log", type=PATH, help="Also write the experience to a .parquet file.")
@click.option(
    "--formats", default="png", show_default=True,
    help="File formats of figures: png,svg,pdf; or none.",
)  # fmt: skip
@click.option(
    "--rows", type=click.IntRange(1), default=20, show_default=True, help="Rows of the table."
)
@JSON
def estimate(source: str, **args: Any) -> None:
    """Estimate the value and the spread of returns in every state of SOURCE, with intervals.

    Prints a table and writes figures, estimate.nc (netCDF) and estimator.safetensors, from which
    another run continues with --resume.
    """
    with Stop() as stop, option_names(file="--resume", resume="--resume"):
        from retvar.estimation.estimate import prepare
        from retvar.estimation.monte_carlo_check import check
        from retvar.experience import recorded

        formats, settings = _formats(args["formats"]), _settings(args)
        experience = open_source(source, args, args["seed"], stop)
        with _folder(args["out"]) as out:
            if args["log"] is not None:
                with option_names(path="--log"):
                    experience = recorded(experience, args["log"])
            found = prepare(experience, **settings)
            separate = not _may_replace(out, args["resume"])
            stop.last = functools.partial(_save_before_exit, found, out, separate)
            failure = _learn(found, stop, live=source.startswith("gymnasium:"))
            saved = _save(found, out, separate=failure is not None and separate)
            checked = None
            if args["check"] and failure is None:
                try:
                    checked = check(found, open_source(source, args, args["seed"] + 1, stop))
                except (RetvarError, Interrupted) as error:
                    failure = error
            drawn: list[Path] = []
            if not stop.number and saved.name == ESTIMATOR:
                drawn = _draw(found, checked, out, formats)
        written = [*drawn, saved.with_name(saved.name.replace(ESTIMATOR, DATA)), saved]
        _print(found, checked, written, args)
        if failure is not None:
            click.echo(f"{SAVED} {saved}", err=True)
            raise Interrupted(stop.number) if stop.number else failure
    if checked is not None and not checked.agrees:
        sys.exit(1)


def _learn(found: Estimate, stop: Stop, live: bool) -> BaseException | None:
    """Learn from the whole stream; return the error that ended it early, if something was learned.

    An environment is stopped between steps, so that all its transitions are used; stopping between
    chunks as well would lose the last transition, which waits for the next one.
    """
    from retvar.progress import Display

    check = (lambda: None) if live else stop.check
    try:
        with Display(sys.stderr, check, unit="transitions") as progress:
            progress.start(found.experience.length)
            found.learn(progress.advance)
    except (RetvarError, Interrupted) as error:
        if getattr(error, "estimate", None) is None:
            raise Interrupted(stop.number) if stop.number else error from None
        return error
    return None


def _save_before_exit(found: Estimate, out: Path, separate: bool) -> None:
    """Save the estimator of a process that is about to be ended, such as during a long reset."""
    if not found.updating:
        click.echo(f"{SAVED} {_save(found, out, separate=separate)}", err=True)
    click.echo("Interrupted.", err=True)


def _settings(args: dict[str, Any]) -> dict[str, Any]:
    """Settings of the estimator; those of the saved one, with a new seed, for ``--resume``."""
    if args["resume"] is None:
        args["seed"] = args["seed"] or 0
        settings = {name: args[name] for name in (*SETTINGS, "seed")}
        return settings | {"estimand": args["estimand"].replace("-", "_")}
    from retvar.estimation.saved_estimators import load

    source = click.get_current_context().get_parameter_source
    for name in SETTINGS:
        if source(name) is click.core.ParameterSource.COMMANDLINE:
            field = f"--{name.replace('_', '-')}"
            raise InputError(field, args[name], "comes from the saved estimator; leave it out")
    saved = load(args["resume"])
    gamma = saved.description.gamma
    args["gamma"] = float(gamma) if isinstance(gamma, float | int) else None  # for greedy
    if args["seed"] is None:  # so that the experience is not the same again
        args["seed"] = saved.steps
    return {"resume": args["resume"]}


def _formats(text: str) -> tuple[str, ...]:
    formats = split_commas(text) or ()
    if formats == ("none",):
        return ()
    for each in formats:
        if each not in FORMATS:
            raise InputError("--formats", each, f"must be some of {', '.join(FORMATS)}, or none")
    return formats


@contextlib.contextmanager
def _folder(out: Path) -> Iterator[Path]:
    """Create the output folder; remove it again if nothing was written to it."""
    existed = out.is_dir()
    if out.exists() and not existed:
        raise InputError("--out", out, "is a file; name a folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError("--out", out, f"cannot be made: {error.strerror or error}") from None
    try:
        yield out
    finally:
        if not existed and not any(out.iterdir()):
            out.rmdir()


def _may_replace(out: Path, resume: Path | None) -> bool:
    """Whether an unfinished run may replace the estimator in `out`: if it continued from it."""
    path = out / ESTIMATOR
    return not path.exists() or (resume is not None and path.resolve() == Path(resume).resolve())


def _save(
    found: Estimate, out: Path, data: xarray.Dataset | None = None, separate: bool = False
) -> Path:
    """Write the estimator and the estimates and return the path of the estimator.

    With `separate`, files of an earlier run are not replaced: names begin with ``unfinished-``.
    """
    from retvar.files import write_with

    data = found.data if data is None else data
    prefix = "unfinished-" if separate else ""
    found.save(out / (prefix + ESTIMATOR))
    write_with(out / (prefix + DATA), lambda path: data.to_netcdf(path, engine="h5netcdf"))
    return out / (prefix + ESTIMATOR)


def _draw(found: Estimate, checked: Any, out: Path, formats: tuple[str, ...]) -> list[Path]:
    """Draw the figures; save the estimates again if they have been checked."""
    import retvar as rv

    data = found.data if checked is None else checked.data
    if checked is not None:
        _save(found, out, data)
    if not formats:
        return []
    written: list[Path] = []
    for name in FIGURES:  # an earlier run may have written others
        for suffix in FORMATS:
            (out / f"{name}.{suffix}").unlink(missing_ok=True)
    for name, figure in rv.plots.estimate_figures(data).items():
        for suffix in formats:
            written.append(out / f"{name}.{suffix}")
            rv.plots.save(figure, written[-1])
    return written


def _print(found: Estimate, checked: Any, written: list[Path], args: dict[str, Any]) -> None:
    if args["as_json"]:
        print_result(to_json(_to_dict(found, checked)))
        return
    print_result(found.summary(args["rows"]))
    if checked is not None:
        print_result("\n" + checked.summary())
    print_result("\nwritten: " + "\n         ".join(map(str, written)))


def _to_dict(found: Estimate, checked: Any) -> dict[str, Any]:
    """Estimates of all states or regions, with settings and counts."""
    data = found.data if checked is None else checked.data
    dim = "state" if "state" in data.dims else "region"
    columns = {
        str(name): data[name].values.tolist()
        for name in data.data_vars
        if data[name].dims == (dim,)
    }
    if dim == "region":
        columns["centre"] = data["centre"].values.tolist()
    counts = found.experience.counts
    result = {
        **data.attrs,
        dim: [str(x) for x in data["label" if dim == "state" else dim].values],
        "rejected_by_reason": dict(counts.rejected),
        "unmarked_ends_by_reason": dict(counts.unmarked_ends),
        **columns,
    }
    if checked is not None:
        result["agrees"] = checked.agrees
        result["check"] = {
            "places": checked.places, "truncated": checked.truncated, "limit": checked.limit,
            **checked.largest,
        }  # fmt: skip
    return result
