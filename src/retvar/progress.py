"""Progress of long computations: a callback class, and its display on terminals and in logs."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable
from typing import Any, TextIO

from retvar.format import duration, visible

__all__ = ["Display", "Progress", "ResilientStream", "discard_output", "escape_log"]

REFRESH = 0.1  # seconds between updates of a bar
PRIOR = 5.0  # expected seconds that count as observed when the time left is estimated
SHOW_CURSOR = "\x1b[?25h\n"


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

    def start_part(self, name: str, size: float) -> None:
        """Begin a named part of the computation; `size` is its share of the total."""
        self.check()

    def finish_part(self, line: str) -> None:
        """Report the end of a part in one line of text."""
        self.check()

    def note(self, line: str) -> None:
        """Report an event in one line of text."""


class Display(Progress):
    r"""Progress on a stream: a bar on a terminal, elsewhere a line now and then.

    Messages of the logger ``retvar``, such as those about compilation, are shown once each. If the
    stream cannot be written any more, such as a closed pipe, the computation goes on without it.

    Parameters
    ----------
    stream
        Where to write, such as ``sys.stderr``.
    check
        Called often; an exception that it raises stops the computation.
    unit
        What is counted, such as ``"cells"``. Without a unit, amounts are expected seconds of work,
        which are used to estimate the time left and are not shown.
    interval
        Seconds between two lines.
    announce
        Write a line at the start as well.

    Examples
    --------
    >>> import io
    >>> stream = io.StringIO()
    >>> with Display(stream, unit="cells", announce=True) as progress:
    ...     progress.start(10, done=4)
    >>> stream.getvalue()
    '4 of 10 cells (40%)\n'
    """

    def __init__(
        self,
        stream: TextIO,
        check: Callable[[], None] = lambda: None,
        *,
        unit: str = "",
        interval: float = 10.0,
        announce: bool = False,
    ) -> None:
        self._stream, self._check = ResilientStream(stream), check
        self._unit, self._announce = unit, announce
        self._bars = _bars(self._stream)
        self._interval = interval if self._bars is None else REFRESH
        self._handler = _LogHandler(self.note)
        self._total: float | None = None
        self._done = self._initial = self._began = self._shown = 0.0
        self._started = False
        self._part, self._part_begin, self._part_size = "", 0.0, 0.0
        self._part_bar = self._bar = None

    def __enter__(self) -> Display:
        self._handler.attach()
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._handler.detach()
        if self._bars is not None:
            self._bars.stop()

    def check(self) -> None:
        """Call the function `check`, then show the progress if it is time to."""
        self._check()
        if self._started and time.monotonic() - self._shown > self._interval:
            self._show()

    def start(self, total: float | None, done: float = 0) -> None:
        """Show the bar, or the first line if that is wanted."""
        self._total, self._done, self._initial = total, done, done
        self._began = self._shown = time.monotonic()
        self._started = True
        if self._bars is not None:
            self._part_bar = self._bars.add_task("", visible=False, state="", left="")
            self._bar = self._bars.add_task("", total=total, completed=done, state="", left="")
        if self._announce or self._bars is not None:
            self._show()
        super().start(total, done)

    def advance(self, done: float) -> None:
        """Move the bar."""
        self._done = done
        super().advance(done)

    def start_part(self, name: str, size: float) -> None:
        """Begin a bar for the part, above that of the total."""
        self._part, self._part_begin, self._part_size = name, self._done, size
        if self._bars is not None:
            self._bars.reset(self._part_bar, total=size, description=visible(name), visible=True)
            self._bars.update(self._bar, description="total")
        super().start_part(name, size)

    def finish_part(self, line: str) -> None:
        """Write the line; with the time left where there is no bar."""
        self._done = self._part_begin + self._part_size
        left = self._time_left(self._done, self._total)
        self.note(f"{line}; {left}" if left and self._bars is None else line)
        self._shown = time.monotonic()
        super().finish_part(line)

    def note(self, line: str) -> None:
        """Write the line, above the bars if there are any."""
        line = visible(line, lines=True)
        if self._bars is None:
            self._stream.write(line + "\n")
            self._stream.flush()
        else:
            self._bars.console.print(line, markup=False, highlight=False)

    def restore_terminal(self) -> None:
        """Show the cursor again, which bars hide; call this if the process is about to be ended."""
        if self._bars is not None:
            self._stream.write(SHOW_CURSOR)
            self._stream.flush()

    def _show(self) -> None:
        self._shown = time.monotonic()
        left = self._time_left(self._done, self._total)
        inside, size = self._done - self._part_begin, self._part_size
        if self._bars is not None:
            state = "  ".join(filter(None, (_percentage(self._done, self._total), self._count())))
            self._bars.update(self._bar, completed=self._done, state=state, left=left)
            if self._part:
                state, left = _percentage(inside, size), self._time_left(inside, size)
                self._bars.update(self._part_bar, completed=inside, state=state, left=left)
            return
        percentage = _percentage(self._done, self._total)
        if self._unit:
            parts = [self._count() + (f" ({percentage})" if percentage else ""), self._rate()]
        else:
            part = f"{self._part}: {_percentage(inside, size)}, " if self._part else ""
            parts = [f"{part}{percentage} of the total"]
        self.note(", ".join(filter(None, [*parts, left])))

    def _count(self) -> str:
        if not self._unit:
            return ""
        total = "" if self._total is None else f" of {self._total:,.0f}"
        return f"{self._done:,.0f}{total} {self._unit}"

    def _rate(self) -> str:
        finished = self._done - self._initial
        if not finished:
            return ""
        return f"{finished / max(time.monotonic() - self._began, 1e-9):,.1f} a second"

    def _time_left(self, done: float, total: float | None) -> str:
        """The time left at the rate so far; expected seconds count for more at first."""
        prior = 0.0 if self._unit else PRIOR
        finished = self._done - self._initial + prior
        if total is None or done >= total or not finished:
            return ""
        pace = (time.monotonic() - self._began + prior) / finished
        return f"about {duration((total - done) * pace)} left"


def _percentage(done: float, total: float | None) -> str:
    return "" if total is None else f"{min(done / total, 1.0) if total else 1.0:.0%}"


def _bars(stream: Any) -> Any:
    """Bars on a terminal or in a notebook, None elsewhere."""
    from rich.console import Console

    console = Console(file=stream)
    if not (stream.isatty() or console.is_jupyter):
        return None
    from rich import progress

    bars = progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(bar_width=24),
        progress.TextColumn("{task.fields[state]}", markup=False),
        progress.TimeElapsedColumn(),
        progress.TextColumn("{task.fields[left]}", markup=False),
        console=console,
        transient=True,
        disable=console.is_jupyter,
    )
    return _NotebookBars(bars) if console.is_jupyter else bars


class _NotebookBars:
    """Rich's bars in a notebook: one output, drawn anew; Rich itself needs ipywidgets for that."""

    def __init__(self, bars: Any) -> None:
        self._bars, self._output = bars, None
        self.console, self.add_task, self.reset = bars.console, bars.add_task, bars.reset

    def start(self) -> None:
        """Make the output."""
        from IPython.display import HTML, display

        self._output = display(HTML(""), display_id=True)

    def update(self, bar: Any, **fields: Any) -> None:
        """Change a bar, and show all."""
        self._bars.update(bar, **fields)
        if self._output is not None:
            self._output.update(self._bars)

    def stop(self) -> None:
        """Empty the output, as bars vanish on a terminal."""
        from IPython.display import HTML

        if self._output is not None:
            self._output.update(HTML(""))


class ResilientStream:
    """A stream that may have no reader any more: output that cannot be written is dropped.

    >>> import io
    >>> closed = io.StringIO()
    >>> closed.write = lambda text: (_ for _ in ()).throw(BrokenPipeError)
    >>> ResilientStream(closed).write("text")
    4
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write the text, or drop it."""
        try:
            self._stream.write(text)
        except OSError:
            discard_output(self._stream)
        return len(text)

    def flush(self) -> None:
        """Flush what is buffered, or drop it."""
        try:
            self._stream.flush()
        except OSError:
            discard_output(self._stream)


def discard_output(stream: TextIO) -> None:
    """Redirect a stream to the null device, since Python would flush its buffer again at exit."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def escape_log() -> None:
    """Escape control characters in what is logged from now on, whatever prints it.

    >>> escape_log()
    """
    logging.getLogger("retvar").addFilter(_escape)


def _escape(record: logging.LogRecord) -> bool:
    record.msg, record.args = visible(record.getMessage()), ()
    return True


class _LogHandler(logging.Handler):
    """Passes on each message of the logger ``retvar`` once."""

    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__()
        self._note, self._messages = note, set[str]()
        self._log, self._level = logging.getLogger("retvar"), logging.NOTSET

    def attach(self) -> None:
        self._level = self._log.level
        escape_log()
        self._log.addHandler(self)
        self._log.setLevel(logging.INFO)

    def detach(self) -> None:
        self._log.removeHandler(self)
        self._log.setLevel(self._level)

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if message not in self._messages:
            self._messages.add(message)
            self._note(message)
