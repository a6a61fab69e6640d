"""How far a sweep has come, on a terminal or in a log; nobody needs to read it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TextIO

import click

from retvar.cli.base import silence
from retvar.format import duration
from retvar.progress import Progress
from retvar.report.watch import compiling_told

__all__ = ["progress"]

MINUTE = 60.0  # seconds between lines where output is piped


def progress(stream: TextIO, check: Callable[[], None]) -> Any:
    """A bar on a terminal, elsewhere a line a minute; `check` is called often."""
    return (Bar if stream.isatty() else Lines)(Unheard(stream), check)


class Unheard:
    """A stream that may have no reader any more: what cannot be written is dropped."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            self._stream.write(text)
        except OSError:
            silence(self._stream)
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            silence(self._stream)


class Lines(Progress):
    """A line a minute."""

    def __init__(self, stream: Any, check: Callable[[], None]) -> None:
        self.stream, self.interrupted = stream, check
        self.cells = self.before = self.done = 0
        self.began = self.last = time.monotonic()
        self.known: set[str] = set()

    def __enter__(self) -> Lines:
        self.told = contextlib.ExitStack()
        logged: Any = SimpleNamespace(note=self.once)
        self.told.enter_context(compiling_told(logged))
        return self

    def __exit__(self, *_: object) -> None:
        self.told.close()

    def check(self) -> None:
        self.interrupted()
        self.now_and_then()

    def start(self, total: float, done: float = 0) -> None:
        self.cells, self.before, self.done = int(total), int(done), int(done)
        self.began = self.last = time.monotonic()
        self.note(f"{self.done:,} of {self.cells:,} cells are there")

    def advance(self, done: float) -> None:
        self.done = int(done)
        self.now_and_then()

    def now_and_then(self) -> None:
        if self.cells and time.monotonic() - self.last > MINUTE:
            self.last = time.monotonic()
            self.note(f"{self.done:,} of {self.cells:,} cells{self.pace()}")

    def pace(self) -> str:
        gone, more = time.monotonic() - self.began, self.done - self.before
        if not more:
            return ""
        left = duration((self.cells - self.done) * gone / more)
        return f", {more / gone:,.1f} a second, about {left} left"

    def once(self, line: str) -> None:
        if line not in self.known:
            self.known.add(line)
            self.note(line)

    def note(self, line: str) -> None:
        click.echo(line, file=self.stream)


class Bar(Lines):
    """A bar that grows."""

    def __enter__(self) -> Lines:
        from rich import progress as rich
        from rich.console import Console

        self.bar = rich.Progress(
            rich.BarColumn(), rich.TaskProgressColumn(),
            rich.TextColumn("{task.description}", markup=False),
            console=Console(file=self.stream), transient=True,
        )  # fmt: skip
        self.bar.start()
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self.bar.stop()

    def start(self, total: float, done: float = 0) -> None:
        self.task = self.bar.add_task("", total=total, completed=done)
        super().start(total, done)

    def now_and_then(self) -> None:
        if self.cells:
            told = f"{self.done:,} of {self.cells:,} cells{self.pace()}"
            self.bar.update(self.task, completed=self.done, description=told)

    def note(self, line: str) -> None:
        self.bar.console.print(line, markup=False, highlight=False)
