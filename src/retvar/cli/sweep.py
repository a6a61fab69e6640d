"""The commands for sweeps: plan, run, status, retry, collect, plot and compare."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from retvar.cli import base
from retvar.cli.base import PATH, print_note
from retvar.support.errors import InputError
from retvar.support.format import count
from retvar.support.progress import Display
from retvar.td.networks import DEFAULT, NETWORKS, error_names

SPEC = click.argument("spec", type=PATH, metavar="SPEC.toml")
FOLDER = click.argument("folder", type=PATH, metavar="DIR")
OVER = click.Choice(["runs", "domains"])
ERRORS = error_names(NETWORKS[DEFAULT].highest_order)
RUN: base.Options = {
    "out": (PATH, "Folder for the results; created if missing."),
    "cluster": (None, "Use Dask: local, or the address of a scheduler such as tcp://host:8786."),
    "workers": (base.ONE, "Number of processes with --cluster local."),
    **base.COMPUTING,
    **base.JSON,
}
COLLECT: base.Options = {
    "out": (PATH, "FILE.nc, a dataset."),
    "partial": (bool, "Use finished cells only, although others are missing."),
    **base.JSON,
}
SELECTION: base.Options = {
    "what": (click.Choice(ERRORS), "Error; those of higher moments need learners with `order`."),
    "where": (["SETTING=VALUE"], "Only learners with this, such as lam=0.9, or another value."),
    "domain": (["LABEL"], "Only this domain."),
    "at": (int, "Recorded step or episode; −1 is the last."),
    "over": (OVER, "What intervals are taken over [default: domains if there are ten, else runs]."),
}
PLOT: base.Options = {
    "out": (PATH, "PNG, SVG or PDF file."),
    "x": (None, "Setting on the x axis."),
    **SELECTION,
}
COMPARE: base.Options = {
    "domains": (bool, "Also compare on each domain."),
    "plot": (PATH, "Draw the comparison to a PNG, SVG or PDF file."),
    **SELECTION,
    **base.JSON,
}
CHOSEN: dict[str, Any] = {"what": "variance_rmse", "at": -1}


@click.group(cls=base.Commands)
def sweep() -> None:
    """Run many learners on many domains, and compare them."""


@sweep.command()
@SPEC
@base.options(base.JSON)
def plan(spec: Path, **args: Any) -> None:
    """Show the number of cells, domains and learners of SPEC.toml."""
    from retvar.sweep import Sweep

    planned = Sweep.from_toml(spec).plan()
    plain = {
        "name": planned.sweep.name,
        "domains": len(planned.domains),
        "learners": len(planned.learners),
        "runs": planned.sweep.runs,
        f"{planned.unit}s": planned.sweep.length,
        "points": planned.moments.tolist(),
        "cells": len(planned.cells),
        "digest": planned.digest,
    }
    text = f"{repr(planned).strip('<>')}, errors at {planned.moments.size} moments"
    base.show(args, plain, text)


@sweep.command()
@SPEC
@base.options(RUN, required=("out",))
def run(spec: Path, **args: Any) -> None:
    """Compute the missing cells of SPEC.toml; continue an interrupted run.

    Several processes may run on one folder and share the work.
    """
    from retvar.sweep import Dask, Local, Sweep
    from retvar.sweep import run as compute

    cluster, own = args["cluster"], [args["threads"], args["device"]]
    if args["workers"] is not None and cluster is None:
        raise InputError("workers", args["workers"], "only with --cluster local")
    if cluster is not None and own != [None, "cpu"]:
        field = "device" if args["threads"] is None else "threads"
        remedy = "only without --cluster, whose workers have one thread of a CPU each"
        raise InputError(field, args[field], remedy)
    executor = Dask(cluster, args["workers"]) if cluster else Local(*own)
    with Display(sys.stderr, unit="cells", announce=True) as progress:
        found = compute(Sweep.from_toml(spec), args["out"], executor, progress=progress)
    base.show(args, found.to_dict(), found.summary())
    if not found.complete:
        sys.exit(1)


@sweep.command()
@FOLDER
@base.options(base.JSON)
def status(folder: Path, **args: Any) -> None:
    """Count the finished, failed and missing cells in DIR; check every file."""
    from retvar import sweep

    found = sweep.status(_open(folder))
    base.show(args, found.to_dict(), found.summary())


@sweep.command()
@FOLDER
@base.options(base.JSON)
def retry(folder: Path, **args: Any) -> None:
    """Let the next run try failed cells of DIR again."""
    from retvar import sweep

    cleared = sweep.retry(_open(folder))
    text = f"{count(cleared, 'cell')} will be tried again by the next run"
    base.show(args, {"cleared": cleared}, text)


@sweep.command()
@FOLDER
@base.options(COLLECT, required=("out",))
def collect(folder: Path, out: Path, partial: bool, **args: Any) -> None:
    """Write all cells of DIR to one file."""
    from retvar.sweep import save

    digest = save(_open(folder), out, partial=partial)
    text = "no digest, since cells are missing" if digest is None else f"digest {digest}"
    base.show(args, {"out": str(out), "digest": digest}, f"{out}: {text}")


def _load(
    folder: Path, what: str, where: tuple[str, ...], domain: tuple[str, ...], at: int, **how: Any
) -> tuple[Any, dict[str, Any]]:
    """Load the selected data, and return it with the arguments for drawing or comparing."""
    from retvar.sweep import collect

    only: dict[str, list[Any]] = {}
    for key, value in map(base.key_value, where):
        only.setdefault(key, []).extend(value if isinstance(value, list) else [value])
    data = collect(_open(folder), at=at, what=what, domains=domain or None)
    return data, {"what": what, "where": only, **how}


def _open(folder: Path) -> Any:
    """Open the store in a folder and print its notes."""
    from retvar.sweep import Store

    store = Store.open(folder)
    if store.other_versions:
        print_note(f"{folder} was made with {store.other_versions}")
    return store


@sweep.command()
@FOLDER
@base.options(PLOT, required=("out",), x="alpha", **CHOSEN)
def plot(folder: Path, out: Path, x: str, **selection: Any) -> None:
    """Draw the errors in DIR against a setting, with intervals."""
    import retvar as rv

    data, how = _load(folder, **selection)
    rv.plots.save(rv.plots.sensitivity_curves(data, x=x, **how), out)
    base.print_result(f"written: {out}")


@sweep.command()
@FOLDER
@base.options(COMPARE, **CHOSEN)
def compare(folder: Path, domains: bool, plot: Path | None, json: bool, **selection: Any) -> None:
    """Compare the methods in DIR: which is better, on how many domains, how surely."""
    import retvar as rv

    data, how = _load(folder, **selection)
    found = rv.sweep.compare(data, **how)
    columns = {
        str(name): {"dims": list(x.dims), "values": x.values.tolist()}
        for name, x in found.data.variables.items()
    }
    args = {"json": json, "plot": plot}
    base.show(args, columns, found.summary(domains=domains), lambda: rv.plots.comparison(found))
