"""Handle Ctrl-C and SIGTERM: a program stops soon, at a point where it checks for signals."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["Interrupted", "Stop"]

TIMEOUT = 3.0  # seconds in which the program must stop by itself


class Interrupted(KeyboardInterrupt):
    """A signal was received; `status` is the exit status for it.

    >>> Interrupted(signal.SIGTERM).status
    143
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.status = 128 + number


class Stop:
    """Context in which Ctrl-C and SIGTERM are recorded; :meth:`check` raises after one of them.

    A thread waits for the signal, so that it is noticed whatever the main thread does (such as
    compiling). A program that has not stopped after a few seconds, or receives a second signal, is
    ended with its exit status; `last` is called before.

    >>> with Stop() as stop:
    ...     stop.check()
    """

    def __init__(self) -> None:
        self.number = 0
        self.last: Callable[[], object] = lambda: None
        self._left = threading.Event()
        self._ending = threading.Lock()  # held while the program is being ended
        self._before: dict[int, Any] = {}

    def check(self) -> None:
        """Raise :class:`Interrupted` if a signal was received."""
        if self.number:
            raise Interrupted(self.number)

    def __enter__(self) -> Stop:
        if threading.current_thread() is not threading.main_thread():
            return self  # only the main thread can handle signals
        self._receiver, self._sender = socket.socketpair()
        self._sender.setblocking(False)
        self._fd = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, lambda *_: None)
        threading.Thread(target=self._listen, name="retvar-signals", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._ending:  # does not return while the program is being ended
            self._left.set()
        if not self._before:
            return
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._fd)
        self._sender.close()  # ends the thread

    def _listen(self) -> None:
        """Record the first signal; end the program at the second, or after the timeout."""
        with self._receiver as receiver, contextlib.suppress(TimeoutError):
            while received := receiver.recv(1):
                if received[0] not in self._before:
                    continue  # another signal that the program handles
                if self.number:
                    break
                self.number = received[0]
                receiver.settimeout(TIMEOUT)
        with self._ending:
            if self.number and not self._left.is_set():
                with contextlib.suppress(Exception):
                    self.last()
                os._exit(128 + self.number)
