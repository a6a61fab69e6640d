"""Ctrl-C and SIGTERM: a program that is asked to stop does so soon, at a point it has chosen."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["Interrupted", "Stop"]

PATIENCE = 3.0  # seconds that the program has for stopping by itself


class Interrupted(KeyboardInterrupt):
    """Someone asked for an end; `status` is what the program should exit with.

    >>> Interrupted(signal.SIGTERM).status
    143
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.status = 128 + number


class Stop:
    """While entered, Ctrl-C and SIGTERM ask for an end; :meth:`check` raises once one did.

    A thread waits for the signal, so that it is heard whatever the main thread is doing (such as
    compiling). A program that has not ended after a few seconds, or is asked twice, is ended;
    `last` is called before that.

    >>> with Stop() as stop:
    ...     stop.check()
    """

    def __init__(self) -> None:
        self.number = 0
        self.last: Callable[[], object] = lambda: None
        self._over = threading.Event()
        self._ending = threading.Lock()  # held while the program is being ended
        self._before: dict[int, Any] = {}

    def check(self) -> None:
        """Raise if an end was asked for."""
        if self.number:
            raise Interrupted(self.number)

    def __enter__(self) -> Stop:
        if threading.current_thread() is not threading.main_thread():
            return self  # signals are the main thread's
        self._ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        self._theirs = theirs
        self._fd = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, lambda *_: None)
        threading.Thread(target=self._listen, name="retvar-signals", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._ending:  # a program that is being ended does not also go on to its own end
            self._over.set()
        if not self._before:
            return
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._fd)
        self._theirs.close()  # which ends the thread

    def _listen(self) -> None:
        """Note the first signal; end it all at the second, or when patience is at an end."""
        with self._ours as ours, contextlib.suppress(TimeoutError):
            while heard := ours.recv(1):
                if heard[0] not in self._before:
                    continue  # another signal that this program listens to
                if self.number:
                    break
                self.number = heard[0]
                ours.settimeout(PATIENCE)
        with self._ending:
            if self.number and not self._over.is_set():
                with contextlib.suppress(Exception):
                    self.last()
                os._exit(128 + self.number)
