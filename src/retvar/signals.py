"""Ctrl-C and SIGTERM: a program ends soon, with its exit status, and keeps what is finished.

A thread waits for the signal, so that it is noticed whatever the main thread does. A program that
has nothing to keep is ended at once. Within :meth:`Stop.graceful` it has a moment to reach a point
where it checks for signals; after that it is ended as well.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["Interrupted", "Stop", "current"]

GRACE = 0.6  # seconds in which a program stops by itself, where it asked for that
SAVING = 0.9  # seconds that saving may take after that
LEAVING = 0.3  # seconds for the last words and the removal of temporary files
LOOK = 0.02  # seconds between looks at the clock
NOTHING = "Nothing was written."


class Interrupted(KeyboardInterrupt):
    """A signal was received; `status` is the exit status for it.

    >>> Interrupted(signal.SIGTERM).status
    143
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.status = 128 + number


class Stop:
    """Context in which Ctrl-C and SIGTERM end the program; :meth:`check` raises after one of them.

    The program is ended at once, or within :meth:`graceful` if it has not stopped after a moment,
    or at a second signal. Before that `save` is called, then each function in `leaving`, then
    `tell` with the line that `kept` returns.

    >>> with Stop() as stop:
    ...     stop.check()
    """

    def __init__(self, tell: Callable[[str], object] = lambda line: None) -> None:
        self.number = 0
        self.save: Callable[[], object] = lambda: None
        self.kept: Callable[[], str] = lambda: NOTHING
        self.leaving: list[Callable[[], object]] = []
        self._tell, self._told = tell, False
        self._grace = 0.0
        self._left = False
        self._ending = threading.RLock()  # held while the program is being ended
        self._before: dict[int, Any] = {}

    def check(self) -> None:
        """Raise :class:`Interrupted` if a signal was received."""
        if self.number:
            raise Interrupted(self.number)

    @contextlib.contextmanager
    def graceful(
        self, save: Callable[[], object] = lambda: None, kept: Callable[[], str] | None = None
    ) -> Iterator[Stop]:
        """Context in which the program stops by itself: it calls :meth:`check` often.

        `save` is called in another thread if it has to be ended before that; `kept` says what
        there is afterwards. At the end of the block a signal raises :class:`Interrupted`.

        >>> with Stop() as stop, stop.graceful():
        ...     stop.check()
        """
        before = self.save, self.kept
        with self._ending:  # waits for ever if the program is being ended
            self.save, self.kept, self._grace = save, kept or self.kept, GRACE
        yield self
        with self._ending:
            self.check()
            self._grace = 0.0
            self.save, self.kept = before

    def tell(self) -> None:
        """Say once what was kept."""
        with self._ending:
            if not self._told:
                self._told = True
                _within(LEAVING, lambda: self._tell(self.kept()))

    def end(self) -> None:
        """Clean up and end the program, with the status of the signal.

        Nothing waits for its threads, nor for a terminal or a pipe that nobody reads.
        """
        with self._ending:
            _within(LEAVING, self._leave)
            for stream in (sys.stdout, sys.stderr):
                _within(LEAVING, stream.flush)
            os._exit(128 + self.number)

    def ignore(self) -> None:
        """Ignore signals from now on, since all is done.

        Python itself would take the handlers away and be killed by a signal while it ends.
        """
        with self._ending:  # does not return while the program is being ended
            self._left = True
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)

    def __enter__(self) -> Stop:
        global _current
        if threading.current_thread() is not threading.main_thread():
            return self  # only the main thread can handle signals
        self._receiver, self._sender = socket.socketpair()
        self._sender.setblocking(False)
        self._fd = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, lambda *_: None)
        threading.Thread(target=self._listen, name="retvar-signals", daemon=True).start()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._restore)
        self._outer, _current = _current, self
        return self

    def __exit__(self, *_: object) -> None:
        global _current
        with self._ending:  # does not return while the program is being ended
            self._left = True
        if self._before:
            _current = self._outer
            self._restore()
            self._sender.close()  # ends the thread

    def _restore(self) -> None:
        """Handle signals as before, also in a child process that was forked."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._before:
            signal.set_wakeup_fd(self._fd)
        self._before = {}

    def _listen(self) -> None:
        """Wait for a signal; end the program at the second, or when its time is over."""
        since = 0.0
        with self._receiver as receiver:
            while True:
                try:
                    received = receiver.recv(1)
                except TimeoutError:
                    received = b"\0"
                if not received:
                    return
                asked = received[0] in self._before
                if self.number and (asked or _clock() - since >= self._grace):
                    break
                if asked:
                    self.number, since = received[0], _clock()
                    receiver.settimeout(LOOK)
                    if not self._grace:
                        break
        self._end()

    def _end(self) -> None:
        with self._ending:
            if self._left:
                return
            _within(SAVING, self.save)
            _within(LEAVING, self._leave)
            os._exit(128 + self.number)

    def _leave(self) -> None:
        """Clean up and say what was kept; nothing that fails keeps the program alive."""
        for act in [*self.leaving]:
            with contextlib.suppress(Exception):
                act()
        if not self._told:
            self._told = True
            self._tell(self.kept())


_current: Stop | None = None


def current() -> Stop:
    """The :class:`Stop` of this program; one that nothing ever stops where there is none.

    >>> with Stop() as stop:
    ...     current() is stop
    True
    """
    return Stop() if _current is None else _current


def _clock(thread: int = 0) -> float:
    """Seconds, without those in which a thread (the main one) was ready and got no processor.

    So a busy machine takes nothing of the time in which a program saves its work.
    """
    path = Path(f"/proc/self/task/{thread or os.getpid()}/schedstat")
    waited = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        waited = int(path.read_text(encoding="ascii").split()[1])
    return time.monotonic() - waited * 1e-9


def _within(seconds: float, act: Callable[[], object]) -> None:
    """Call a function in a thread, and wait for its end, but not for ever."""

    def run() -> None:
        with contextlib.suppress(BaseException):
            act()

    thread = threading.Thread(target=run, name="retvar-last", daemon=True)
    thread.start()
    since = _clock(thread.native_id or 0)
    while thread.is_alive() and _clock(thread.native_id or 0) - since < seconds:
        thread.join(LOOK)
