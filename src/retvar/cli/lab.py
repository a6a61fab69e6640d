"""The command `retvar lab`."""

from __future__ import annotations

import os
import sys

import click

from retvar.cli.base import print_result
from retvar.support.errors import Interrupted


@click.command()
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0,
    help="Port on 127.0.0.1 [default: any free one].",
)  # fmt: skip
@click.option("--no-browser", is_flag=True, help="Do not open the page in a browser.")
def lab(port: int, no_browser: bool) -> None:
    """Open a notebook on which learners converge: drag step sizes, and see what they do.

    The page is served to this machine alone, under an address that holds a secret. Ctrl-C ends it.
    """
    from retvar.lab import listen, serve

    def ready(url: str) -> None:
        print_result(f"retvar lab: {url}\nOpen the address in a browser here; Ctrl-C ends the lab.")
        sys.stdout.flush()
        screen = {"DISPLAY", "WAYLAND_DISPLAY"} & {*os.environ}
        if not no_browser and (screen or not sys.platform.startswith("linux")):
            click.launch(url)

    with listen(port) as listener:
        try:
            serve(listener, ready)
        except Interrupted as stop:  # there is nothing to save, and marimo's threads never end
            os._exit(stop.status)
