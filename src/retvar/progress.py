"""Progress of long computations: a callback, and a display for terminals and logs."""

from __future__ import annotations

__all__ = ["Progress"]


class Progress:
    """Progress callback; does nothing by default.

    Any exception raised by a method stops the computation at a point where no result is lost.

    >>> progress = Progress()
    >>> progress.start(10, done=3); progress.advance(4); progress.note("compiling")
    """

    def check(self) -> None:
        """Called often; raise to stop the computation."""

    def start(self, total: float, done: float = 0) -> None:
        """Begin a computation of `total` units, `done` of which are finished."""
        self.check()

    def advance(self, done: float) -> None:
        """Report that `done` units of the total are finished."""
        self.check()

    def note(self, line: str) -> None:
        """Report an event in one line of text."""
