"""The server of the lab: on this machine alone, for those who have its address.

A random token is part of the address. A request without it gets a refusal and nothing else, be it
for the page, one of its files, or a websocket. Pages may load nothing from elsewhere.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import importlib.util
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from retvar.errors import InputError, RetvarError
from retvar.files import discard, make_folder, make_temporary_folder, require_writable

__all__ = ["LabServer", "guarded", "listen", "refuse_missing"]

HOST = "127.0.0.1"
NAMES = (HOST, "localhost")
REFUSED = b"retvar lab: open the address that the command has printed.\n"
LOOK = 0.05  # seconds between looks at whether the server is up
PATIENCE = 60.0  # seconds for it to come up
HEADERS = [
    (b"content-security-policy", b"default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; "
                                 b"frame-ancestors 'none'; form-action 'self'"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
]  # fmt: skip


def refuse_missing() -> None:
    """Raise an InputError if marimo is not installed.

    >>> import sys
    >>> sys.modules["marimo"] = None  # as if it were not there
    >>> refuse_missing()
    Traceback (most recent call last):
        ...
    retvar.errors.InputError: lab = marimo: is not installed: pip install "retvar[lab]"
    >>> del sys.modules["marimo"]
    """
    try:
        found = importlib.util.find_spec("marimo")
    except ValueError:  # it has been blocked
        found = None
    if found is None:
        raise InputError("lab", "marimo", 'is not installed: pip install "retvar[lab]"')


def listen(port: int = 0) -> socket.socket:
    """A socket on the loopback device; 0 takes any free port.

    >>> with listen() as found:
    ...     found.getsockname()[0]
    '127.0.0.1'
    """
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((HOST, port))
        made.listen(128)
    except OSError as error:
        made.close()
        if error.errno == errno.EADDRINUSE:
            remedy = "is in use; give another port, or none for any free one"
        else:
            remedy = f"cannot be used ({error.strerror}); give a port above 1023, or none"
        raise InputError("--port", port, remedy) from None
    return made


def guarded(app: Any, token: str) -> Any:
    """An ASGI application that answers only below ``/token/``, to pages of this machine.

    ``/token`` leads there.
    """
    prefix = f"/{token}/".encode()

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            await app(scope, receive, send)
            return
        whole = scope["path"].encode("utf-8", "replace")
        path = whole[: len(prefix)]
        if scope["type"] == "http" and secrets.compare_digest(whole + b"/", prefix):
            await (_redirect(prefix, send) if _local(scope) else _refuse(scope, receive, send))
            return
        if not (secrets.compare_digest(path, prefix) and _local(scope)):
            await _refuse(scope, receive, send)
            return

        async def send_guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *HEADERS]}
            await send(message)

        await app(scope, receive, send_guarded)

    return answer


def _local(scope: Any) -> bool:
    """Whether a request names this machine, and comes from no page of another."""
    headers = {name.lower(): text.decode("latin-1") for name, text in scope["headers"]}
    host, origin = headers.get(b"host", ""), headers.get(b"origin")
    named = host.rpartition(":")[0] or host
    return named in NAMES and (origin is None or origin == f"http://{host}")


async def _refuse(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008})
        return
    headers = [(b"content-type", b"text/plain"), (b"connection", b"close"), *HEADERS]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": REFUSED})


async def _redirect(to: bytes, send: Any) -> None:
    headers = [(b"location", to), (b"content-length", b"0"), *HEADERS]
    await send({"type": "http.response.start", "status": 307, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def _leave_settings_alone() -> None:
    """Let marimo keep its settings, and what it remembers, in retvar's folder for caches.

    So the lab looks the same for everybody, and the user's own settings of marimo stay as they are.
    Where nothing can be written there, they are kept until the program ends.
    """
    from retvar.jit import cache_root

    folder = Path(cache_root(), "retvar", "lab")
    try:
        if not cache_root():
            raise FileNotFoundError
        make_folder(folder)
        require_writable("folder", folder)
    except (OSError, InputError):
        folder = make_temporary_folder("retvar-lab")
        atexit.register(discard, folder)
    os.environ.update({"XDG_CONFIG_HOME": str(folder), "XDG_STATE_HOME": str(folder)})


def warm_up() -> None:
    """Compile what the first view needs, while the browser opens."""
    from retvar.lab.views import VIEWS, Shelf

    view = VIEWS[0](Shelf())
    values = {control.name: control.value for control in view.sources()}
    values |= {control.name: control.value for control in view.controls(values)}
    with contextlib.suppress(RetvarError):  # the page will tell
        view.show(values, 0)


class LabServer:
    """The lab on a socket, served by a thread until the program ends.

    Parameters
    ----------
    listener
        A listening socket; see :func:`listen`.
    token
        The secret of the address; default: a random one.
    """

    def __init__(self, listener: socket.socket, token: str | None = None) -> None:
        refuse_missing()
        self._socket = listener
        self.token = token or secrets.token_urlsafe(24)
        self._thread: threading.Thread | None = None
        self._server: Any = None

    @property
    def url(self) -> str:
        """The address of the page, with its token."""
        return f"http://{HOST}:{self._socket.getsockname()[1]}/{self.token}/"

    def start(self, check: Callable[[], None] = lambda: None) -> None:
        """Serve in a thread; returns when the page can be asked for. `check` is called often."""
        _leave_settings_alone()
        import uvicorn
        from marimo import create_asgi_app

        page = Path(__file__).with_name("app.py")
        pages = create_asgi_app(quiet=True, include_code=False)
        app = pages.with_app(path=f"/{self.token}", root=str(page)).build()
        config = uvicorn.Config(
            guarded(app, self.token), log_level="error", access_log=False, server_header=False,
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=lambda: self._server.run(sockets=[self._socket]), name="retvar-lab", daemon=True
        )
        self._thread.start()
        threading.Thread(target=warm_up, name="retvar-lab-warm-up", daemon=True).start()
        end = time.monotonic() + PATIENCE
        while not self._server.started:
            check()
            if not self._thread.is_alive() or time.monotonic() > end:
                raise RetvarError("the server of the lab did not start")
            time.sleep(LOOK)

    def wait(self, check: Callable[[], None] = lambda: None) -> None:
        """Wait for the end of the server; `check` is called often."""
        while self._thread is not None and self._thread.is_alive():
            check()
            self._thread.join(LOOK)

    def stop(self) -> None:
        """End the server."""
        if self._server is not None:
            self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(PATIENCE)
