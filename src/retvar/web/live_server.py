"""A small server on 127.0.0.1 for the page of a running command.

A random token is part of the address. A request without it gets a refusal and nothing else. What
is served are bytes that the program has put there: a request computes nothing. Connections are few
and short, so that nobody can take the program's files and threads.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
import socket
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from retvar.errors import InputError

__all__ = ["LiveServer", "Served"]

HOST = "127.0.0.1"
NAMES = (HOST, "localhost")
RECENT = 3.0  # seconds since its last request in which a page counts as open
FAREWELL = 1.5  # seconds in which an open page may fetch what is new at the end
LOOK = 0.02
PATIENCE = 5.0  # seconds that a connection may last
MOST = 32  # connections at once


class Served(NamedTuple):
    """What is answered to a path."""

    kind: str
    body: bytes


class LiveServer:
    """Serves what is in `files`, by name below the token, in a thread.

    Parameters
    ----------
    port
        0: any free one.
    security
        The policy that every answer carries.

    Examples
    --------
    >>> import urllib.request
    >>> with LiveServer(security="default-src 'none'") as server:
    ...     server.files[""] = Served("text/plain", b"hello")
    ...     urllib.request.urlopen(server.url).read()
    b'hello'
    """

    def __init__(self, port: int = 0, *, security: str) -> None:
        self.files: dict[str, Served] = {}
        self.token = secrets.token_urlsafe(24)
        self.asked: dict[str, float] = {}  # when each name was last asked for
        self._security = security
        self._served: dict[str, bytes] = {}  # the last body of each name
        self._http = _listen(port, self)
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(LOOK,), name="retvar-live", daemon=True
        )

    @property
    def url(self) -> str:
        """The address of the page, with its token."""
        return f"http://{HOST}:{self._http.server_address[1]}/{self.token}/"

    def __enter__(self) -> LiveServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def answer(self, path: str, host: str, origin: str | None) -> Served | None:
        """What a request gets; None: a refusal."""
        prefix = f"/{self.token}/"
        given, name = path[: len(prefix)], path[len(prefix) :].partition("?")[0]
        known = secrets.compare_digest(given.encode("utf-8", "replace"), prefix.encode())
        local = (host.rpartition(":")[0] or host) in NAMES
        if not known or not local or origin not in (None, f"http://{host}"):
            return None
        found = self.files.get(name)
        if found is not None:
            self.asked[name] = time.monotonic()
            self._served[name] = found.body
        return found

    def farewell(self, name: str, check: Callable[[], None] = lambda: None) -> None:
        """Wait a moment until a page that is open has fetched the newest `name`.

        It does not wait where no page has asked lately, and never long.
        """
        end = time.monotonic() + FAREWELL
        while time.monotonic() < end and not self._up_to_date(name):
            check()
            time.sleep(LOOK)

    def _up_to_date(self, name: str) -> bool:
        last = max(self.asked.values(), default=-RECENT)
        if time.monotonic() - last > RECENT:
            return True
        return name in self.files and self._served.get(name) == self.files[name].body

    def headers(self) -> dict[str, str]:
        """Headers of every answer."""
        return {
            "Content-Security-Policy": f"{self._security}; frame-ancestors 'none'",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-store",
            "Connection": "close",
        }


def _listen(port: int, server: LiveServer) -> ThreadingHTTPServer:
    try:
        made = _Http((HOST, port), _handler(server))
    except (OSError, OverflowError) as error:
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            remedy = "is in use; give another port, or none for any free one"
        else:
            why = getattr(error, "strerror", None) or "out of range"
            remedy = f"cannot be used ({why}); give a port from 1024 to 65535, or none"
        raise InputError("--port", port, remedy) from None
    return made


class _Http(ThreadingHTTPServer):
    daemon_threads, block_on_close = True, False
    allow_reuse_address = False  # a port in use is refused, also by a socket that ends
    request_queue_size = 128

    def __init__(self, *args: Any) -> None:
        self._began: dict[socket.socket, float] = {}  # the open connections, oldest first
        self._free = threading.Semaphore(MOST)
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread; where there are many connections, the oldest makes room.

        A page is answered in a moment. So those that wait for others cannot keep it out.
        """
        if not self._free.acquire(blocking=False):
            self._end(list(self._began)[:1])
            if not self._free.acquire(timeout=LOOK):
                super().shutdown_request(request)
                return
        self._began[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        super().shutdown_request(request)
        if self._began.pop(request, None) is not None:
            self._free.release()

    def service_actions(self) -> None:
        """End connections that have lasted too long; the server calls this often."""
        last = time.monotonic() - PATIENCE
        self._end([request for request, began in list(self._began.items()) if began < last])

    def _end(self, requests: list[socket.socket]) -> None:
        """Wake the threads that wait for these, which then close them."""
        for request in requests:
            with contextlib.suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A page that closes its connection is no error."""


def _handler(server: LiveServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = PATIENCE
        server_version, sys_version = "retvar", ""

        def do_GET(self) -> None:
            host = self.headers.get("Host", "")
            found = server.answer(self.path, host, self.headers.get("Origin"))
            self.send_response(HTTPStatus.FORBIDDEN if found is None else HTTPStatus.OK)
            for name, text in server.headers().items():
                self.send_header(name, text)
            body = b"" if found is None else found.body
            if found is not None:
                self.send_header("Content-Type", found.kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(body)

        def send_error(self, code: int, *_: Any, **__: Any) -> None:
            """Refuse without a word."""
            with contextlib.suppress(OSError, socket.timeout):
                self.send_response(HTTPStatus.FORBIDDEN)
                self.send_header("Content-Length", "0")
                self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    return Handler
