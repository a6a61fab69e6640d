"""The commands for the experiments of the paper: experiments and reproduce."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from retvar.cli.base import (
    DEVICE,
    JSON,
    PATH,
    THREADS,
    interruptible,
    print_result,
    split_commas,
    to_json,
)
from retvar.networks import NETWORKS

__all__ = ["experiments", "reproduce"]

FILE = click.option(
    "--file", type=PATH, help="Python file with EXPERIMENTS = [...], to use instead of the paper's."
)


@click.command()
@FILE
@JSON
def experiments(file: Path | None, as_json: bool) -> None:
    """List the experiments that `retvar reproduce` can run."""
    from retvar import report

    found = report.load_experiments(file)
    if as_json:
        listed = [
            {
                "id": experiment.id,
                "title": experiment.title,
                "source": experiment.source,
                "claims": [claim.name for claim in experiment.claims],
            }
            for experiment in found
        ]
        print_result(to_json({"experiments": listed}))
        return
    width = max(len(experiment.id) for experiment in found)
    print_result("\n".join(f"{each.id:{width}}  {each.title}" for each in found))


@click.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option(
    "--out", type=PATH, default="reproduction", show_default=True,
    help="Folder for the report, its figures and data; created if missing.",
)  # fmt: skip
@click.option("--runs", type=click.IntRange(1), help="Number of runs [default: as declared].")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Random seed.")
@click.option("--methods", help=f"Some of {','.join(NETWORKS)} [default: all].")
@click.option(
    "--formats", default="png", show_default=True, help="File formats of figures: png,svg,pdf."
)
@JSON
@click.option("--force", is_flag=True, help="Compute all simulations again.")
@FILE
@THREADS
@DEVICE
def reproduce(
    ids: tuple[str, ...],
    out: Path,
    methods: str | None,
    formats: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Run experiments and write a report: all, or those with the given IDs or groups of IDs.

    Writes index.html (a page without external files), report.md, figures and data. Finished
    simulations are saved: after an interruption, run the same command to continue.
    """

    def clean_up() -> None:
        from retvar.report.output_folder import OutputFolder

        OutputFolder(out).remove_temporary_files()

    with interruptible(clean_up) as (_, progress):
        from retvar import report

        found = report.reproduce(
            ids, out, methods=split_commas(methods), formats=split_commas(formats) or (),
            progress=progress, **options,
        )  # fmt: skip
    print_result(to_json(found.to_dict()) if as_json else found.summary(out))
    if found.problems:
        sys.exit(1)
