"""The lab: a notebook in the browser on which learners converge; ``retvar lab`` serves it.

- ``app``: the notebook; its cells are the code that the page shows;
- ``charts``, ``words``: Altair charts, and sentences that follow the numbers;
- ``mdp_table``: an MDP as a table that is edited.

The server listens on this machine alone, for those who have its address.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import socket
from pathlib import Path
from typing import Any

from retvar.support.errors import InputError

__all__ = ["listen", "serve"]

HOST = "127.0.0.1"
HEADERS = [  # nothing from elsewhere, and the address is told to nobody
    (b"content-security-policy", b"default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:"),
    (b"referrer-policy", b"no-referrer"),
]


def listen(port: int = 0) -> socket.socket:
    """A socket on the loopback device; 0 takes any free port.

    >>> with listen() as found:
    ...     found.getsockname()[0]
    '127.0.0.1'
    """
    if importlib.util.find_spec("marimo") is None:
        raise InputError("lab", "marimo", 'is not installed: pip install "retvar[lab]"')
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        remedy = f"cannot be used ({error.strerror}); give another port, or none for any free one"
        raise InputError("port", port, remedy) from None


def serve(listener: socket.socket, ready: Any = print) -> None:
    """Serve the notebook under a random token until Ctrl-C; `ready` is told the address.

    Other paths are not found: the token in the address is what lets one in.
    """
    os.environ["MARIMO_SKIP_UPDATE_CHECK"] = "1"
    import uvicorn
    from marimo import create_asgi_app

    token = secrets.token_urlsafe(24)
    page = str(Path(__file__).with_name("app.py"))
    pages = create_asgi_app(quiet=True, include_code=True).with_app(path=f"/{token}", root=page)
    config = uvicorn.Config(
        _sealed(pages.build()), log_level="error", server_header=False, timeout_graceful_shutdown=1
    )
    ready(f"http://{HOST}:{listener.getsockname()[1]}/{token}/")
    uvicorn.Server(config).run(sockets=[listener])


def _sealed(app: Any) -> Any:
    """An ASGI application whose answers carry `HEADERS`."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        async def told(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *HEADERS]}
            await send(message)

        await app(scope, receive, told)

    return answer
