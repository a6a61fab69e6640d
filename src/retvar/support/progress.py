"""Progress of long computations: a callback class, and its display on terminals and in logs."""

from __future__ import annotations

import logging
import time
from typing import Any, TextIO

from retvar.support.format import duration, visible

REFRESH, PAUSE = 0.1, 30.0  # seconds between updates of a bar, and between lines
PRIOR = 5.0  # expected seconds that count as observed when the time left is estimated


class Progress:
    """Progress callback; does nothing by default.

    Any exception raised by a method stops the computation at a point where no result is lost.

    >>> progress = Progress()
    >>> progress.start(10, done=3); progress.advance(4); progress.note("compiling")
    """

    def check(self) -> None:
        """Called often; raise to stop the computation."""

    def start(self, total: float | None, done: float = 0) -> None:
        """Begin a computation of `total` units (None: unknown), `done` of which are finished."""
        self.check()

    def advance(self, done: float) -> None:
        """Report that `done` units of the total are finished."""
        self.check()

    def note(self, line: str) -> None:
        """Report an event in one line of text."""


class Display(Progress, logging.Handler):
    r"""Progress on a stream: a bar on a terminal or in a notebook, elsewhere a line now and then.

    Messages of the logger ``retvar``, such as those about compilation, are shown once each.

    `unit` is what is counted, such as ``"cells"``; without one, amounts are expected seconds of
    work, which are used to estimate the time left and are not shown. Lines are 30 seconds apart;
    with `announce` there is one at the start.

    >>> import io
    >>> stream = io.StringIO()
    >>> with Display(stream, unit="cells", announce=True) as progress:
    ...     progress.start(10, done=4)
    >>> stream.getvalue()
    '4 of 10 cells (40%)\n'
    """

    def __init__(self, stream: TextIO, *, unit: str = "", announce: bool = False) -> None:
        super().__init__()
        self._stream, self._unit, self._announce = stream, unit, announce
        self._bar = _Bar.on(stream)
        self._interval = REFRESH if self._bar else PAUSE
        self._log = logging.getLogger("retvar")
        self._messages = set[str]()
        self._total: float | None = None
        self._done = self._initial = self._began = self._shown = 0.0
        self._started = False

    def __enter__(self) -> Display:
        self._log_level = self._log.level
        self._log.addHandler(self)
        self._log.setLevel(logging.INFO)
        return self

    def __exit__(self, *_: object) -> None:
        self._log.removeHandler(self)
        self._log.setLevel(self._log_level)
        if self._bar:
            self._bar.stop()

    def emit(self, record: logging.LogRecord) -> None:
        """Show a message of the logger, once."""
        message = record.getMessage()
        if message not in self._messages:
            self._messages.add(message)
            self.note(message)

    def check(self) -> None:
        """Show the progress if it is time to."""
        if self._started and time.monotonic() - self._shown > self._interval:
            self._show()

    def start(self, total: float | None, done: float = 0) -> None:
        """Show the bar, or the first line if that is wanted."""
        self._total, self._done, self._initial = total, done, done
        self._began = self._shown = time.monotonic()
        self._started = True
        if self._announce or self._bar:
            self._show()

    def advance(self, done: float) -> None:
        """Move the bar."""
        self._done = done
        self.check()

    def note(self, line: str) -> None:
        """Write the line, above the bar if there is one."""
        line = visible(line, lines=True)
        if self._bar:
            self._bar.rich.console.print(line, markup=False, highlight=False)
        else:
            self._stream.write(line + "\n")
            self._stream.flush()

    def _show(self) -> None:
        self._shown = time.monotonic()
        total = "" if self._total is None else f" of {self._total:,.0f}"
        count = f"{self._done:,.0f}{total} {self._unit}" if self._unit else ""
        share = f"{min(self._done / self._total, 1.0):.0%}" if self._total else ""
        shown = f"{count} ({share})" if count and share else count or share
        state = ", ".join(filter(None, (shown, self._time_left())))
        if self._bar:
            self._bar.show(self._done, self._total, state)
        else:
            self.note(state)

    def _time_left(self) -> str:
        """The time left at the rate so far; expected seconds count for more at first."""
        prior = 0.0 if self._unit else PRIOR
        finished = self._done - self._initial + prior
        if self._total is None or self._done >= self._total or not finished:
            return ""
        pace = (time.monotonic() - self._began + prior) / finished
        return f"about {duration((self._total - self._done) * pace)} left"


class _Bar:
    """Rich's bar on a terminal; in a notebook one output, for which Rich would need ipywidgets."""

    def __init__(self, console: Any) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self.rich = Progress(
            BarColumn(bar_width=24),
            TextColumn("{task.fields[state]}", markup=False),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=console.is_jupyter,
        )
        self._task = self.rich.add_task("", visible=False, state="")
        self._output: Any = None
        if console.is_jupyter:
            from IPython.display import HTML, display

            self._output = display(HTML(""), display_id=True)
        else:
            self.rich.start()

    @classmethod
    def on(cls, stream: Any) -> _Bar | None:
        """The bar on a terminal or in a notebook, None elsewhere."""
        from rich.console import Console

        console = Console(file=stream)
        return cls(console) if stream.isatty() or console.is_jupyter else None

    def show(self, done: float, total: float | None, state: str) -> None:
        """Move the bar."""
        self.rich.update(self._task, visible=True, completed=done, total=total, state=state)
        if self._output is not None:
            self._output.update(self.rich)

    def stop(self) -> None:
        """Remove the bar."""
        if self._output is None:
            self.rich.stop()
        else:
            from IPython.display import HTML

            self._output.update(HTML(""))
