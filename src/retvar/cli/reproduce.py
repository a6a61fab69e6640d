"""The commands for the experiments of the paper: experiments and reproduce."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from retvar.cli import base
from retvar.support.progress import Display
from retvar.td.networks import NETWORKS

FILE: base.Options = {
    "file": (base.PATH, "Python file with EXPERIMENTS = [...], to use instead of the paper's."),
}
OPTIONS: base.Options = {
    "out": (base.PATH, "Folder for the report, its figures and data; created if missing."),
    "runs": (base.ONE, "Number of runs [default: as declared]."),
    "seed": (base.COUNT, "Random seed."),
    "methods": (None, f"Some of {','.join(NETWORKS)} [default: all]."),
    "formats": (None, "File formats of figures: png,svg,pdf."),
    **base.JSON,
    "force": (bool, "Compute all simulations again."),
    **FILE,
    **base.COMPUTING,
}


@click.command()
@base.options(FILE | base.JSON)
def experiments(file: Path | None, **args: Any) -> None:
    """List the experiments that `retvar reproduce` can run."""
    from retvar import paper

    found = paper.load_experiments(file)
    listed = [
        {"id": e.id, "title": e.title, "source": e.source, "claims": [c.name for c in e.claims]}
        for e in found
    ]
    width = max(len(experiment.id) for experiment in found)
    text = "\n".join(f"{each.id:{width}}  {each.title}" for each in found)
    base.show(args, {"experiments": listed}, text)


@click.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@base.options(OPTIONS, out="reproduction", seed=0, formats="png")
def reproduce(ids: tuple[str, ...], out: Path, json: bool, **more: Any) -> None:
    """Run experiments and write a report: all, or those with the given IDs or groups of IDs.

    Writes index.html (a page without external files), figures and data. Finished simulations
    are saved: after an interruption, run the same command to continue.
    """
    with Display(sys.stderr) as progress:
        from retvar import paper

        for name in ("methods", "formats"):
            more[name] = base.split_commas(more[name])
        found = paper.reproduce(ids, out, progress=progress, **more)
    base.show({"json": json}, found.to_dict(), found.summary(out))
    if found.problems:
        sys.exit(1)
