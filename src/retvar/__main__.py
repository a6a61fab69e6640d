"""The program ``retvar``, also ``python -m retvar``."""

import os

from retvar.signals import Stop

__all__ = ["run"]


def run() -> None:
    """Run the command line; signals are handled before anything else is imported."""
    stop = Stop(_tell).__enter__()  # as long as the process lives
    try:
        from retvar.cli import main

        main()
    finally:
        if stop.number:
            stop.tell()
            stop.end()


def _tell(line: str) -> None:
    """The last words; past Python's buffers, whose locks another thread may hold."""
    os.write(2, f"{line}\nInterrupted.\n".encode())


if __name__ == "__main__":
    run()
