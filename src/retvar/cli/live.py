"""`retvar estimate --live`: a page in the browser that follows the estimate."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from retvar.cli.base import print_note
from retvar.cli.browser import opened
from retvar.errors import InputError

if TYPE_CHECKING:
    from retvar.estimation.checks import Check
    from retvar.estimation.estimate import Estimate
    from retvar.web.live_page import LivePage

__all__ = ["Watch", "live_options", "refuse_beside_live", "watching"]


def live_options(command: Any) -> Any:
    """Add the options of the live page."""
    for option in (
        click.option("--no-browser", is_flag=True, help="With --live: do not open a browser."),
        click.option(
            "--port", type=click.IntRange(0, 65535), metavar="N",
            help="With --live: port on 127.0.0.1 [default: any free one].",
        ),
        click.option(
            "--live", is_flag=True,
            help="Follow the estimate on a page in the browser, on this machine alone.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def refuse_beside_live(args: dict[str, Any]) -> None:
    """Refuse options of the live page where there is none."""
    if not args["live"]:
        for name in ("port", "no_browser"):
            if args[name]:
                shown = args[name] if name == "port" else "given"
                raise InputError(f"--{name.replace('_', '-')}", shown, "only with --live")


class Watch:
    """What the command tells a live page; without one it tells nobody.

    >>> Watch(None).advance(100)
    """

    def __init__(self, page: LivePage | None) -> None:
        self._page = page

    def advance(self, done: float) -> None:
        """So many transitions are done."""
        if self._page is not None:
            self._page.advance(done)

    def sweeps(self, done: float, total: int) -> None:
        """A deep critic has been fitted so long."""
        if self._page is not None:
            self._page.sweeps(done, total)

    def say(self, phase: str) -> None:
        """What is done next."""
        if self._page is not None:
            self._page.say(phase)

    def beside(self, progress: Callable[[float], None]) -> Callable[[float], None]:
        """A function that tells the progress and the page."""

        def advance(done: float) -> None:
            progress(done)
            self.advance(done)

        return progress if self._page is None else advance

    def finish(self, out: Path, checked: Check | None, failure: BaseException | None) -> None:
        """The end, with the report in the folder."""
        if self._page is not None:
            self._page.finish(out, checked, failure)


@contextlib.contextmanager
def watching(found: Estimate, args: dict[str, Any]) -> Iterator[Watch]:
    """A live page on the estimate, if it was asked for."""
    if not args["live"]:
        yield Watch(None)
        return
    from retvar.web.live_page import LivePage

    with LivePage(found, args["port"] or 0) as page:
        print_note(f"live page: {page.url}")
        with opened(page.url, args["no_browser"]) as said:
            print_note(said)
            yield Watch(page)
