"""The commands that know the paper: experiments and reproduce."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from retvar.cli.base import words_of
from retvar.signals import Interrupted, Stop

if TYPE_CHECKING:
    from retvar.report.output_folder import Folder
    from retvar.report.watch import Watch

__all__ = ["experiments", "reproduce"]

KEPT = "What is finished is kept; the same command goes on from there."
FILE_HELP = "Python file with EXPERIMENTS = [...], in place of the paper's."


@click.command()
@click.option("--file", type=click.Path(path_type=Path), help=FILE_HELP)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with the claims.")
def experiments(file: Path | None, as_json: bool) -> None:
    """List the experiments that `retvar reproduce` runs."""
    from retvar import report

    found = report.declared(file)
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
        click.echo(json.dumps({"experiments": listed}, ensure_ascii=False))
        return
    width = max(len(experiment.id) for experiment in found)
    for experiment in found:
        click.echo(f"{experiment.id:{width}}  {experiment.title}")


@click.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default="reproduction",
    show_default=True,
    help="Folder of the report, its figures and data; made if it is not there.",
)
@click.option("--runs", type=click.IntRange(1), help="Runs in place of those declared.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed.")
@click.option("--methods", help="Some of direct,vtd,centred; default: all.")
@click.option(
    "--format", "formats", default="png", show_default=True, help="Of figures: png,svg,pdf."
)
@click.option("--json", "as_json", is_flag=True, help="Print claims, and rows of table-1, as JSON.")
@click.option("--force", is_flag=True, help="Compute again what is already there.")
@click.option("--file", type=click.Path(path_type=Path), help=FILE_HELP)
@click.option("--threads", type=click.IntRange(1), help="How many; default: all there are.")
def reproduce(
    ids: tuple[str, ...],
    out: Path,
    runs: int | None,
    seed: int,
    methods: str | None,
    formats: str,
    as_json: bool,
    force: bool,
    file: Path | None,
    threads: int | None,
) -> None:
    """Rerun experiments: all of them, or those with these IDs or below them.

    Writes index.html (a page that needs nothing else), report.md, figures and data. What is
    finished is kept: the same command goes on after an interruption.
    """
    with Stop() as stop:
        from retvar import report
        from retvar.report.output_folder import Folder
        from retvar.report.watch import compiling_told, watching

        with watching(sys.stderr, stop.check) as watch, compiling_told(watch):
            stop.last = functools.partial(_abandon, watch, Folder(out))
            try:
                found = report.reproduce(
                    ids, out, runs=runs, seed=seed, methods=words_of(methods),
                    formats=words_of(formats) or (), force=force, file=file, threads=threads,
                    watch=watch,
                )  # fmt: skip
            except Interrupted:
                watch.note(KEPT)
                raise
    if as_json:
        click.echo(json.dumps(found.plain(), ensure_ascii=False, allow_nan=False))
    else:
        click.echo(report.text(found, out))
    if found.problems:
        sys.exit(1)


def _abandon(watch: Watch, folder: Folder) -> None:
    watch.abandon()
    folder.tidy()
    click.echo(f"{KEPT}\nInterrupted.", err=True)
