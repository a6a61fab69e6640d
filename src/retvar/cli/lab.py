"""The command for the live page: lab."""

from __future__ import annotations

import os
import sys

import click

from retvar.cli.base import print_note, print_result
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
        print_note(_opened(server.url, no_browser))
        server.wait(stop.check)


def _opened(url: str, no_browser: bool) -> str:
    """Open a browser, unless it is unwanted or there is none; returns what to say about it."""
    end = "Ctrl-C ends the lab."
    if no_browser:
        return f"Open this address in a browser. {end}"
    if _has_screen():
        import webbrowser

        try:
            if webbrowser.open(url):
                return f"A browser was asked to open it. {end}"
        except (webbrowser.Error, OSError):
            pass
    return f"No browser was found here; open this address in one. {end}"


def _has_screen() -> bool:
    """Whether windows can be opened; without a screen text browsers would take the terminal."""
    if sys.platform.startswith("linux"):
        return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    return True
