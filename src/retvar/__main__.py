"""The program ``retvar``, also ``python -m retvar``."""

from __future__ import annotations

import logging
import signal
from typing import NoReturn

from retvar.support.errors import Interrupted


def run() -> None:
    """Run the command line; Ctrl-C and SIGTERM are a KeyboardInterrupt with a status."""

    def interrupt(number: int, _: object) -> NoReturn:
        raise Interrupted(number)

    logging.getLogger("retvar.estimate").setLevel(logging.ERROR)  # commands print its warnings
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    from retvar.cli import main

    main()


if __name__ == "__main__":
    run()
