"""The command for the live page: lab."""

from __future__ import annotations

import click

from retvar.cli.base import print_note, print_result
from retvar.cli.browser import opened
from retvar.signals import current

__all__ = ["lab"]


@click.command()
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0,
    help="Port on 127.0.0.1 [default: any free one].",
)  # fmt: skip
@click.option("--no-browser", is_flag=True, help="Do not open the page in a browser.")
def lab(port: int, no_browser: bool) -> None:
    """Open a live page on which learners converge: drag step sizes, and see what they do.

    The page is served to this machine alone, under an address that holds a secret. Ctrl-C ends it.
    """
    from retvar.lab.server import LabServer, listen, refuse_missing

    refuse_missing()
    stop = current()
    with listen(port) as listener:
        server = LabServer(listener)
        server.start(stop.check)
        print_result(f"retvar lab: {server.url}")
        with opened(server.url, no_browser) as said:
            print_note(f"{said} Ctrl-C ends the lab.")
            server.wait(stop.check)
