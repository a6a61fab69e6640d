"""Ask a browser to open a page whose address holds a secret."""

from __future__ import annotations

import contextlib
import html
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from retvar.files import create_temporary, discard, remove_abandoned

__all__ = ["opened"]

SCREENS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
NONE = "No browser was found; open the address in one on this machine."
PAGE = """<!doctype html>
<meta charset="utf-8"><meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={0}">
<title>retvar</title><a href="{0}">Open the page.</a>
"""


@contextlib.contextmanager
def opened(url: str, no_browser: bool) -> Iterator[str]:
    """Ask a browser to open an address, unless that is unwanted; what to say about it.

    Every user of a machine sees the command lines of all. So the browser gets the name of a file
    that leads to the address; its owner alone may read it. It is removed when the block ends.
    """
    with contextlib.ExitStack() as stack:
        said = "Open the address in a browser on this machine."
        if not no_browser:
            found = _has_screen() and _open(stack, url)
            said = "A browser was asked to open the address." if found else NONE
        yield said


def _open(stack: contextlib.ExitStack, url: str) -> bool:
    """Whether a browser has been asked."""
    import webbrowser

    try:
        return webbrowser.open(stack.enter_context(_leading_to(url)).as_uri())
    except (webbrowser.Error, OSError):
        return False


@contextlib.contextmanager
def _leading_to(url: str) -> Iterator[Path]:
    """A page of this user that leads to an address."""
    folder = Path(tempfile.gettempdir()).absolute()
    remove_abandoned(folder)
    page = create_temporary(folder / "retvar.html", 0o600)
    try:
        page.write_text(PAGE.format(html.escape(url)), encoding="utf-8")
        yield page
    finally:
        discard(page)


def _has_screen() -> bool:
    """Whether windows can be opened; a browser in the terminal would take it from the command."""
    linux = sys.platform.startswith("linux")
    return not linux or any(os.environ.get(name) for name in SCREENS)
