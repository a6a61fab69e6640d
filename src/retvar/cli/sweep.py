"""The commands for sweeps: plan, run, status, retry, collect, plot and compare."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from retvar.cli.base import (
    DEVICE,
    JSON,
    PATH,
    THREADS,
    Commands,
    interruptible,
    key_value,
    print_note,
    print_result,
    to_json,
)
from retvar.format import count, duration, listed, visible
from retvar.networks import DEFAULT, NETWORKS, error_names

if TYPE_CHECKING:
    from retvar.sweep import Status

__all__ = ["sweep"]

SPEC = click.argument("spec", type=PATH, metavar="SPEC.toml")
FOLDER = click.argument("folder", type=PATH, metavar="DIR")
PARTIAL = click.option(
    "--partial", is_flag=True, help="Use finished cells only, although others are missing."
)
ERRORS = error_names(NETWORKS[DEFAULT].highest_order)
MINUTE = 60.0  # seconds between lines of progress where output is piped


@click.group(cls=Commands)
def sweep() -> None:
    """Run many learners on many domains, and compare them."""


@sweep.command()
@SPEC
@JSON
def plan(spec: Path, as_json: bool) -> None:
    """Show the number of cells of SPEC.toml, and estimate time and size."""
    from retvar.engine.runner import usable_threads
    from retvar.sweep import Sweep, estimate_cost

    planned = Sweep.from_toml(spec).plan()
    found = estimate_cost(planned)
    sweep, size = planned.sweep, planned.sweep.cell
    if as_json:
        plain = {
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
        print_result(to_json(plain))
        return
    cores = usable_threads()
    lines = [
        f"{visible(sweep.name)}: {count(len(planned.domains), 'domain')} × "
        f"{count(len(planned.learners), 'learner')} × "
        f"{count(sweep.runs, 'run')} of {count(planned.length, planned.unit)}",
        f"{count(planned.count, 'cell')} of up to {count(size.learners, 'learner')} and "
        f"{count(size.runs, 'run')}",
        f"about {duration(found.seconds_per_cell)} a cell, {duration(found.seconds)} on one core, "
        f"{duration(found.seconds / cores)} on the {cores} of this machine",
        f"about {_size(found.bytes)}, errors at {planned.moments.size} moments",
    ]
    print_result("\n".join(lines))


@sweep.command()
@SPEC
@click.option("--out", type=PATH, required=True, help="Folder for the results; created if missing.")
@click.option(
    "--cluster", help="Use Dask: local, or the address of a scheduler such as tcp://host:8786."
)
@click.option(
    "--extend", is_flag=True,
    help="Add the domains, learners or runs of SPEC.toml to the results of a smaller sweep.",
)  # fmt: skip
@click.option("--workers", type=click.IntRange(1), help="Number of processes with --cluster local.")
@THREADS
@DEVICE
@click.option(
    "--timeout", type=click.FloatRange(0.1), default=10.0, show_default=True,
    help="Seconds to wait for the scheduler's answer.",
)  # fmt: skip
@click.option(
    "--stale", type=click.FloatRange(1.0),
    help="Seconds without a heartbeat after which another worker takes over a cell [default: 60].",
)  # fmt: skip
@JSON
def run(
    spec: Path,
    out: Path,
    cluster: str | None,
    extend: bool,
    workers: int | None,
    threads: int | None,
    device: str,
    timeout: float,
    stale: float | None,
    as_json: bool,
) -> None:
    """Compute the missing cells of SPEC.toml; continue an interrupted run.

    Several processes may run on one folder and share the work.
    """
    with interruptible(unit="cells", interval=MINUTE, announce=True) as (stop, progress):
        from retvar.errors import InputError
        from retvar.sweep import Dask, Local, Sweep, operations
        from retvar.sweep.leases import STALE

        if workers is not None and cluster is None:
            raise InputError("workers", workers, "only with --cluster local")
        if threads is not None and cluster is not None:
            remedy = "only without --cluster, whose workers have one thread each; see --workers"
            raise InputError("threads", threads, remedy)
        if device != "cpu" and cluster is not None:
            raise InputError("device", device, "only without --cluster, whose workers use CPUs")
        executor = Local(threads, device) if cluster is None else Dask(cluster, workers, timeout)
        planned = Sweep.from_toml(spec).plan()
        stop.check()
        found = operations.run(
            planned,
            out,
            executor,
            progress=progress,
            extend=extend,
            stale=STALE if stale is None else stale,
        )
    print_result(to_json(found.to_dict()) if as_json else _summary(found))
    if not found.complete:
        sys.exit(1)


@sweep.command()
@FOLDER
@JSON
def status(folder: Path, as_json: bool) -> None:
    """Count the finished, failed and missing cells in DIR; check every file."""
    from retvar.sweep import operations

    found = operations.status(_open(folder))
    print_result(to_json(found.to_dict()) if as_json else _summary(found))


@sweep.command()
@FOLDER
@JSON
def retry(folder: Path, as_json: bool) -> None:
    """Let the next run try failed cells of DIR again."""
    from retvar.sweep import operations

    cleared = operations.retry(_open(folder))
    text = f"{count(cleared, 'cell')} will be tried again by the next run"
    print_result(to_json({"cleared": cleared}) if as_json else text)


@sweep.command()
@FOLDER
@click.option(
    "--out", type=PATH, required=True,
    help="FILE.nc, a labelled dataset; or FILE.parquet, a row for each learner of each cell.",
)  # fmt: skip
@PARTIAL
@JSON
def collect(folder: Path, out: Path, partial: bool, as_json: bool) -> None:
    """Write all cells of DIR to one file."""
    from retvar.sweep import save

    digest = save(_open(folder), out, partial=partial, note=_note)
    plain = {"out": str(out), "digest": digest}
    text = "no digest, since cells are missing" if digest is None else f"digest {digest}"
    print_result(to_json(plain) if as_json else f"{out}: {text}")


def _selection(command: Any) -> Any:
    """Add the options that select what is drawn or compared."""
    for option in (
        PARTIAL,
        click.option(
            "--over", type=click.Choice(["runs", "domains"]),
            help="What intervals are taken over [default: domains if there are ten, else runs].",
        ),
        click.option(
            "--at", type=int, default=-1, show_default=True,
            help="Recorded step or episode; −1 is the last.",
        ),
        click.option(
            "--domain", "domains", multiple=True, metavar="LABEL",
            help="Only this domain; may be repeated.",
        ),
        click.option(
            "--where", multiple=True, metavar="SETTING=VALUE",
            help="Only learners with this setting, such as lam=0.9; may be repeated; values "
            "of the same setting are alternatives.",
        ),
        click.option(
            "--what", type=click.Choice(ERRORS), default="variance_rmse", show_default=True,
            help="Error to use; those of higher moments need learners with `order`.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def _load(
    folder: Path, what: str, where: tuple[str, ...],
    domains: tuple[str, ...], at: int, over: str | None, partial: bool,
) -> tuple[Any, dict[str, Any]]:  # fmt: skip
    """Load the selected data, and return it with the arguments for drawing or comparing."""
    from retvar.sweep import collect, finished

    only = _where(where)
    data = collect(
        _open(folder), partial=partial, at=at, what=what, domains=domains or None, note=_note,
    )  # fmt: skip
    if partial:
        data, *left_out = finished(data, what, only)
        for kind, names in zip(("domain", "learner"), left_out, strict=True):
            if names:
                _note(f"left out, not finished: {count(len(names), kind)}: {listed(names)}")
    return data, {"what": what, "where": only, "over": over}


def _open(folder: Path) -> Any:
    """Open the store in a folder and print its notes."""
    from retvar.sweep import Store

    store = Store.open(folder)
    for note in store.notes:
        _note(note)
    return store


def _note(line: str) -> None:
    print_note(line)


@sweep.command()
@FOLDER
@click.option("--out", type=PATH, required=True, help="PNG, SVG or PDF file.")
@click.option("--x", default="alpha", show_default=True, help="Setting on the x axis.")
@click.option("--y", help="Setting on the y axis; draws heat maps instead of curves.")
@_selection
def plot(folder: Path, out: Path, x: str, y: str | None, **selection: Any) -> None:
    """Draw the errors in DIR against one or two settings, with intervals."""
    import retvar as rv

    data, how = _load(folder, **selection)
    if y is None:
        figure = rv.plots.sensitivity_curves(data, x=x, **how)
    else:
        figure = rv.plots.sweep_heat_map(data, x=x, y=y, **how)
    rv.plots.save(figure, out)
    print_result(f"written: {out}")


@sweep.command()
@FOLDER
@click.option("--domains", "each", is_flag=True, help="Also compare on each domain.")
@click.option("--plot", "drawn", type=PATH, help="Draw the comparison to a PNG, SVG or PDF file.")
@_selection
@JSON
def compare(folder: Path, each: bool, drawn: Path | None, as_json: bool, **selection: Any) -> None:
    """Compare the methods in DIR: which is better, on how many domains, how surely."""
    import retvar as rv

    data, how = _load(folder, **selection)
    found = rv.sweep.compare(data, **how)
    if drawn is not None:
        rv.plots.save(rv.plots.comparison(found), drawn)
    if as_json:
        print_result(to_json(_to_dict(found.data)))
    else:
        print_result(found.summary(domains=each))


def _where(options: tuple[str, ...]) -> dict[str, list[Any]]:
    """Settings, each with all its values."""
    found: dict[str, list[Any]] = {}
    for key, value in map(key_value, options):
        found.setdefault(key, []).extend(value if isinstance(value, list) else [value])
    return found


def _to_dict(data: Any) -> dict[str, Any]:
    """Variables of a dataset with their dimensions."""
    return {
        str(name): {"dims": list(data[name].dims), "values": data[name].values.tolist()}
        for name in data.variables
    }


def _summary(found: Status) -> str:
    lines = [f"{found.done:,} of {count(found.cells, 'cell')} done"]
    for number, text in (
        (found.computed, "computed by this run"),
        (found.running, "being computed"),
        (found.missing, "to be computed"),
        (found.failed, "failed, with tracebacks in failed/"),
        (len(found.damaged), "damaged; run the sweep again:"),
    ):
        if number:
            lines.append(f"{number:,} {text}")
    lines += [f"  {path}" for path in found.damaged]
    if found.digest is not None:
        lines.append(f"digest of the contents: {found.digest}")
    return "\n".join(lines)


def _size(size: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1_000:
            return f"{size:,.0f} {unit}"
        size /= 1_000
    return f"{size:,.1f} TB"
