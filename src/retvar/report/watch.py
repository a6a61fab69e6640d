"""Progress: bars with the time left on a terminal, plain lines where one is piped."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from retvar.format import duration

__all__ = ["Bars", "Lines", "Watch", "compiling_told", "watching"]

QUIET = 10.0  # seconds without a line
TRUST = 5.0  # seconds of work before the pace is believed


class Watch:
    """Told how far a reproduction has come; says nothing itself. Work is in seconds expected.

    Whatever it raises stops the reproduction, at a point where that loses nothing.

    >>> watch = Watch()
    >>> watch.begin(["a", "b"], 10.0); watch.start("a", 6.0); watch.advance(3.0)
    >>> watch.share
    0.3
    """

    def __init__(self, check: Callable[[], None] = lambda: None) -> None:
        self.check = check
        self.work = self.before = self.inside = self.within = 0.0
        self.ids: list[str] = []
        self.number = 0
        self.began = time.monotonic()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to put away."""

    def begin(self, ids: list[str], work: float) -> None:
        """All that there is to do."""
        self.ids, self.work, self.began = ids, work, time.monotonic()
        self.check()

    def start(self, name: str, work: float) -> None:
        """An experiment begins."""
        self.number, self.within, self.inside = self.ids.index(name) + 1, work, 0.0
        self.check()

    def advance(self, done: float) -> None:
        """So much of the experiment's work is done."""
        self.inside = min(done, self.within)
        self.check()

    def finish(self, line: str) -> None:
        """The experiment is done."""
        self.before, self.inside, self.within = self.before + self.within, 0.0, 0.0
        self.check()

    def note(self, line: str) -> None:
        """Something people may want to know."""

    def abandon(self) -> None:
        """The program is about to be ended."""

    @property
    def share(self) -> float:
        """How much of the whole is done."""
        return (self.before + self.inside) / self.work if self.work else 1.0

    @property
    def name(self) -> str:
        """The experiment under way."""
        return self.ids[self.number - 1]

    @property
    def left(self) -> str:
        """The time left for the whole, in words."""
        return self._left(self.before + self.inside, self.work)

    def _left(self, done: float, work: float) -> str:
        """What is to come, at the pace so far; at first the pace expected counts for more."""
        if done >= work:
            return ""
        gone = time.monotonic() - self.began
        pace = (gone + TRUST) / (self.before + self.inside + TRUST)
        return f"about {duration((work - done) * pace)} left"


class Lines(Watch):
    """A line for each experiment, and one now and then."""

    def __init__(self, stream: TextIO, check: Callable[[], None] = lambda: None) -> None:
        super().__init__(check)
        self.stream, self.last = stream, time.monotonic()

    def _say(self, line: str) -> None:
        self.last = time.monotonic()
        print(line, file=self.stream, flush=True)

    def advance(self, done: float) -> None:
        """Say so, if nothing was said for long."""
        super().advance(done)
        if time.monotonic() - self.last > QUIET:
            here = self.inside / self.within if self.within else 1.0
            parts = [f"{self.name}: {here:.0%}", f"{self.share:.0%} of the whole", self.left]
            self._say("  " + ", ".join(part for part in parts if part))

    def finish(self, line: str) -> None:
        """Say so."""
        super().finish(line)
        left = f"; {self.left}" if self.left else ""
        self._say(f"[{self.number}/{len(self.ids)}] {line}{left}")

    def note(self, line: str) -> None:
        """Say it."""
        self._say("  " + line)


class Bars(Watch):
    """A bar for the experiment under way and one for the whole; lines for those done."""

    def __init__(self, stream: TextIO, check: Callable[[], None] = lambda: None) -> None:
        super().__init__(check)
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            Progress,
            TaskProgressColumn,
            TextColumn,
            TimeElapsedColumn,
        )  # fmt: skip

        self.stream = stream
        self.bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}", markup=False),
            console=Console(file=stream),
            transient=True,
        )
        self.one: Any = None
        self.all: Any = None

    def __enter__(self) -> Watch:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def begin(self, ids: list[str], work: float) -> None:
        """Show the bars."""
        width = max(map(len, ids), default=0)
        self.one = self.bars.add_task(" " * width, total=1.0, left="")
        self.all = self.bars.add_task("the whole".ljust(width), total=work or 1.0, left="")
        super().begin(ids, work)

    def start(self, name: str, work: float) -> None:
        """Begin its bar anew."""
        self.bars.reset(self.one, total=work or 1.0, description=name, left="")
        super().start(name, work)

    def advance(self, done: float) -> None:
        """Move both bars."""
        super().advance(done)
        left = self._left(self.inside, self.within)
        self.bars.update(self.one, completed=self.inside, left=left)
        self.bars.update(self.all, completed=self.before + self.inside, left=self.left)

    def finish(self, line: str) -> None:
        """Say so above the bars."""
        super().finish(line)
        self.bars.update(self.all, completed=self.before)
        self.note(f"[{self.number}/{len(self.ids)}] {line}")

    def note(self, line: str) -> None:
        """Say it above the bars."""
        self.bars.console.print(line, markup=False, highlight=False)

    def abandon(self) -> None:
        """Give back the cursor, which the bars hide."""
        self.stream.write("\x1b[?25h\n")
        self.stream.flush()


def watching(stream: TextIO, check: Callable[[], None]) -> Watch:
    """Bars on a terminal, lines elsewhere."""
    return Bars(stream, check) if stream.isatty() else Lines(stream, check)


@contextlib.contextmanager
def compiling_told(watch: Watch) -> Iterator[None]:
    """Pass on what is logged: that something is being compiled, which may take seconds."""
    log, handler = logging.getLogger("retvar"), _Handler(watch)
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


class _Handler(logging.Handler):
    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch, self.last = watch, ("", 0.0)

    def emit(self, record: logging.LogRecord) -> None:
        told, now = record.getMessage(), record.created
        if told != self.last[0] or now > self.last[1] + QUIET / 5:  # threads say the same at once
            self.watch.note(told)
        self.last = (told, now)
