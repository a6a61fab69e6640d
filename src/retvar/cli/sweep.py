"""The commands for sweeps: plan, run, status, retry, collect, plot and compare."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from retvar.cli.base import Commands, pair_of, silence
from retvar.errors import RetvarError
from retvar.signals import Interrupted, Stop

if TYPE_CHECKING:
    from retvar.progress import Progress
    from retvar.sweep import Status

__all__ = ["sweep"]

KEPT = "What is finished is kept; the same command goes on from there."
SPEC = click.argument("spec", type=click.Path(path_type=Path), metavar="SPEC.toml")
FOLDER = click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(cls=Commands)
def sweep() -> None:
    """Many learners on many domains: run, interrupt, go on, collect."""


@sweep.command()
@SPEC
@JSON
def plan(spec: Path, as_json: bool) -> None:
    """Show what SPEC.toml asks for: cells, estimated time and size."""
    with Stop() as stop:
        from retvar.engine.runner import usable_threads
        from retvar.format import duration
        from retvar.sweep import Sweep, estimate_cost

        planned = Sweep.from_toml(spec).plan()
        stop.check()
        found = estimate_cost(planned, stop.check)
    sweep, size = planned.sweep, planned.sweep.cell
    if as_json:
        told = {
            "name": sweep.name,
            "domains": len(planned.domains),
            "learners": len(planned.learners),
            "runs": sweep.runs,
            f"{planned.unit}s": planned.length,
            "points": planned.moments.tolist(),
            "cells": planned.count,
            "seconds": found.seconds,
            "seconds_per_cell": found.seconds_per_cell,
            "bytes": found.bytes,
            "digest": planned.digest,
        }
        _answer(json.dumps(told, ensure_ascii=False))
        return
    cores = usable_threads()
    lines = [
        f"{sweep.name}: {_count(len(planned.domains), 'domain')} × "
        f"{_count(len(planned.learners), 'learner')} × "
        f"{_count(sweep.runs, 'run')} of {_count(planned.length, planned.unit)}",
        f"{_count(planned.count, 'cell')} of up to {_count(size.learners, 'learner')} and "
        f"{_count(size.runs, 'run')}",
        f"about {duration(found.seconds_per_cell)} a cell, {duration(found.seconds)} on one core, "
        f"{duration(found.seconds / cores)} on the {cores} here",
        f"about {_size(found.bytes)}, errors at {planned.moments.size} moments",
    ]
    _answer("\n".join(lines))


@sweep.command()
@SPEC
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="Folder of the store."
)  # fmt: skip
@click.option("--cluster", help="local, or the address of a dask scheduler: tcp://host:8786.")
@click.option(
    "--extend", is_flag=True,
    help="Let the folder be that of a smaller sweep, to which SPEC.toml adds runs, say.",
)  # fmt: skip
@click.option("--workers", type=click.IntRange(1), help="Processes of --cluster local.")
@click.option(
    "--threads", type=click.IntRange(1), help="Without a cluster; default: all there are."
)
@click.option(
    "--timeout", type=click.FloatRange(0.1), default=10.0, show_default=True,
    help="Seconds that a scheduler has for answering.",
)  # fmt: skip
@click.option(
    "--stale", type=click.FloatRange(1.0), default=60.0, show_default=True,
    help="Seconds without a sign of life after which a worker's cell goes to another.",
)  # fmt: skip
@JSON
def run(
    spec: Path,
    out: Path,
    cluster: str | None,
    extend: bool,
    workers: int | None,
    threads: int | None,
    timeout: float,
    stale: float,
    as_json: bool,
) -> None:
    """Compute what is missing of SPEC.toml; go on where a run broke off.

    Several runs on one folder share the work.
    """
    with _stopping() as (stop, watch):
        from retvar.errors import InputError
        from retvar.sweep import Dask, Local, Sweep, operations

        if workers is not None and cluster is None:
            raise InputError("workers", workers, "goes with --cluster local")
        if threads is not None and cluster is not None:
            remedy = "goes without --cluster, whose workers have one each; see --workers"
            raise InputError("threads", threads, remedy)
        executor = Local(threads) if cluster is None else Dask(cluster, workers, timeout)
        planned = Sweep.from_toml(spec).plan()
        stop.check()
        found = operations.run(planned, out, executor, progress=watch, stale=stale, extend=extend)
    _answer(json.dumps(found.to_dict()) if as_json else _told(found))
    if not found.complete:
        sys.exit(1)


@sweep.command()
@FOLDER
@JSON
def status(folder: Path, as_json: bool) -> None:
    """How far the sweep in DIR has come; every file is checked."""
    from retvar.sweep import operations

    found = operations.status(_opened(folder))
    _answer(json.dumps(found.to_dict()) if as_json else _told(found))


@sweep.command()
@FOLDER
@JSON
def retry(folder: Path, as_json: bool) -> None:
    """Let cells that were set aside be tried again by the next run."""
    from retvar.sweep import operations

    count = operations.retry(_opened(folder))
    told = json.dumps({"cleared": count})
    _answer(told if as_json else f"{_count(count, 'cell')} will be tried again by the next run")


@sweep.command()
@FOLDER
@click.option(
    "--out", type=click.Path(path_type=Path), required=True,
    help="sweep.nc: a labelled dataset; sweep.parquet: a row for each learner of each cell.",
)  # fmt: skip
@click.option("--partial", is_flag=True, help="Take what is there, though cells are missing.")
@JSON
def collect(folder: Path, out: Path, partial: bool, as_json: bool) -> None:
    """Put all cells of DIR into one file."""
    with Stop() as stop:
        from retvar.sweep import save

        digest = save(_opened(folder), out, partial=partial, check=stop.check, note=_noted)
    told = {"out": str(out), "digest": digest}
    words = "no digest, since cells are missing" if digest is None else f"digest {digest}"
    _answer(json.dumps(told) if as_json else f"{out}: {words}")


def _chosen(command: Any) -> Any:
    """Options that say what of a sweep is drawn or compared."""
    for option in (
        click.option("--partial", is_flag=True, help="Leave out what is not finished."),
        click.option(
            "--over", type=click.Choice(["runs", "domains"]),
            help="What intervals speak of; default: domains if there are ten.",
        ),
        click.option(
            "--at", type=int, default=-1, show_default=True,
            help="A recorded step or episode; −1 is the end.",
        ),
        click.option(
            "--domain", "domains", multiple=True, metavar="LABEL",
            help="Only this domain; may be repeated.",
        ),
        click.option(
            "--where", multiple=True, metavar="SETTING=VALUE",
            help="Only learners with this setting, such as lam=0.9; of several values, with any.",
        ),
        click.option(
            "--what", type=click.Choice(["variance_rmse", "value_rmse"]), default="variance_rmse",
            show_default=True, help="The error.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def _asked(
    folder: Path, check: Callable[[], None], what: str, where: tuple[str, ...],
    domains: tuple[str, ...], at: int, over: str | None, partial: bool,
) -> tuple[Any, dict[str, Any]]:  # fmt: skip
    """What of a sweep is drawn or compared, read alone, and how."""
    from retvar.format import listed
    from retvar.sweep import collect, finished

    only = _where(where)
    data = collect(
        _opened(folder), partial=partial, at=at, what=what, domains=domains or None,
        check=check, note=_noted,
    )  # fmt: skip
    if partial:
        data, *left_out = finished(data, what, only)
        for kind, names in zip(("domain", "learner"), left_out, strict=True):
            if names:
                count = _count(len(names), kind)
                _noted(f"left out, not finished: {count}: {listed(names)}")
    return data, {"what": what, "where": only, "over": over}


def _opened(folder: Path) -> Any:
    """The store in a folder, with what there is to note about it."""
    from retvar.sweep import Store

    store = Store.open(folder)
    for note in store.notes:
        _noted(note)
    return store


def _noted(line: str) -> None:
    click.echo(line, err=True)


@sweep.command()
@FOLDER
@click.option("--out", type=click.Path(path_type=Path), required=True, help="PNG, SVG or PDF.")
@click.option("--x", default="alpha", show_default=True, help="Setting along the axis.")
@click.option("--y", help="A second setting: heat maps, in place of curves.")
@_chosen
def plot(folder: Path, out: Path, x: str, y: str | None, **asked: Any) -> None:
    """Draw errors of DIR against a setting (or two), the best marked, with intervals over seeds."""
    import retvar as rv

    with Stop() as stop:
        data, how = _asked(folder, stop.check, **asked)
        if y is None:
            figure = rv.plots.sensitivity_curves(data, x=x, **how)
        else:
            figure = rv.plots.sweep_heat_map(data, x=x, y=y, **how)
        rv.plots.save(figure, out)
    _answer(f"written: {out}")


@sweep.command()
@FOLDER
@click.option("--domains", "each", is_flag=True, help="Also tell each domain apart.")
@click.option("--plot", "drawn", type=click.Path(path_type=Path), help="Draw it: PNG, SVG or PDF.")
@_chosen
@JSON
def compare(folder: Path, each: bool, drawn: Path | None, as_json: bool, **asked: Any) -> None:
    """Say which method of DIR is better where, and how sure that is."""
    import retvar as rv

    with Stop() as stop:
        data, how = _asked(folder, stop.check, **asked)
        found = rv.sweep.compare(data, **how)
        if drawn is not None:
            rv.plots.save(rv.plots.comparison(found), drawn)
    if as_json:
        _answer(json.dumps(_plain(found.data), ensure_ascii=False, allow_nan=False))
    else:
        _answer(found.summary(domains=each))


def _where(options: tuple[str, ...]) -> dict[str, list[Any]]:
    """Settings with all values that were given."""
    found: dict[str, list[Any]] = {}
    for key, value in map(pair_of, options):
        found.setdefault(key, []).extend(value if isinstance(value, list) else [value])
    return found


def _plain(data: Any) -> dict[str, Any]:
    """A dataset as plain data; what is not a number is null."""

    def finite(given: Any) -> Any:
        if isinstance(given, list):
            return [finite(each) for each in given]
        return given if not isinstance(given, float) or math.isfinite(given) else None

    return {
        str(name): {"dims": list(data[name].dims), "values": finite(data[name].values.tolist())}
        for name in data.variables
    }


def _told(found: Status) -> str:
    lines = [f"{found.done:,} of {_count(found.cells, 'cell')} done"]
    for count, words in (
        (found.computed, "computed by this run"),
        (found.running, "being computed"),
        (found.missing, "to be computed"),
        (found.failed, "set aside, with tracebacks in failed/"),
        (len(found.damaged), "damaged; run the sweep again:"),
    ):
        if count:
            lines.append(f"{count:,} {words}")
    lines += [f"  {path}" for path in found.damaged]
    if found.digest is not None:
        lines.append(f"digest of the contents: {found.digest}")
    return "\n".join(lines)


def _answer(text: str) -> None:
    """Print what was found; whether anybody reads it does not change how it went."""
    try:
        click.echo(text)
    except OSError as error:
        silence(sys.stdout)
        if not isinstance(error, BrokenPipeError):
            raise RetvarError(f"stdout cannot be written: {error.strerror}") from None


def _count(number: int, one: str) -> str:
    from retvar.format import count

    return count(number, one)


def _size(count: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1_000:
            return f"{count:,.0f} {unit}"
        count /= 1_000
    return f"{count:,.1f} TB"


# ---------------------------------------------------------------------- progress


@contextlib.contextmanager
def _stopping() -> Iterator[tuple[Stop, Progress]]:
    """A way to stop within seconds, and something that tells how far it has come."""
    with Stop() as stop:
        from retvar.cli.progress import progress

        watch = progress(sys.stderr, stop.check)
        stop.last = lambda: _abandon(watch)
        with watch:
            try:
                yield stop, watch
            except Interrupted:
                watch.note(KEPT)
                raise


def _abandon(watch: Any) -> None:
    watch.__exit__()
    click.echo(f"{KEPT}\nInterrupted.", err=True)
