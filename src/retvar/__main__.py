"""The program ``retvar``, also ``python -m retvar``."""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import select
import sys
from typing import Any

from retvar.signals import Stop

__all__ = ["run"]


def run() -> None:
    """Run the command line; signals are handled before anything else is imported."""
    stdout = _own_streams() if os.name == "posix" else None
    stop = Stop(_tell).__enter__()  # as long as the process lives
    atexit.register(_finish, stop)  # first, so that it is called last
    try:
        from retvar.cli import main

        main()
    except OSError as error:
        if stdout is None or error is not stdout.failure:
            raise
        _fail(error)
    finally:
        if stop.number:
            stop.end()


def _finish(stop: Stop) -> None:
    """Hand over what was printed, while a signal can end that; then all is done."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    stop.ignore()


class _Output(io.FileIO):
    """A standard stream: a reader that goes away changes nothing, other errors are remembered."""

    failure: OSError | None = None

    def write(self, data: Any) -> int:
        """Write all of it, also to a stream that takes only a part of it at a time."""
        left = memoryview(data).cast("B")
        try:
            while left:
                taken = super().write(left)
                if taken is None:  # a stream that does not wait for its reader
                    select.select([], [self], [])
                else:
                    left = left[taken:]
        except BrokenPipeError:
            pass
        except OSError as error:
            self.failure = error
            raise
        return len(data)


class _Notes(_Output):
    """The stream for progress and messages: what cannot be written is dropped."""

    def write(self, data: Any) -> int:
        with contextlib.suppress(OSError):
            io.FileIO.write(self, data)
        return len(data)


def _own_streams() -> _Output:
    """Put streams that can be written in the place of stdout and stderr; return that of stdout.

    One that was closed before the program began is the null device.
    """
    for number, stream in enumerate((sys.stdin, sys.stdout, sys.stderr)):
        if stream is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            os.set_inheritable(number, True)  # as standard streams are
    sys.stdin = sys.stdin or open(0, closefd=False, encoding="utf-8")  # noqa: SIM115
    stdout = _Output(1, "w", closefd=False)
    sys.stdout = _text(stdout, sys.stdout)
    sys.stderr = _text(_Notes(2, "w", closefd=False), sys.stderr)
    return stdout


def _text(raw: io.FileIO, like: Any) -> io.TextIOWrapper:
    """A stream of text with the encoding and the buffers of another one."""
    at_once = getattr(like, "write_through", False)
    return io.TextIOWrapper(
        raw if at_once else io.BufferedWriter(raw),
        encoding=getattr(like, "encoding", "utf-8"),
        errors=getattr(like, "errors", "backslashreplace"),
        line_buffering=getattr(like, "line_buffering", True),
        write_through=at_once,
    )


def _fail(error: OSError) -> None:
    """Say in one line that stdout cannot be written, and end with the status for that."""
    from retvar.progress import discard_output

    sys.stderr.write(f"Error: stdout cannot be written: {error.strerror}\n")
    discard_output(sys.stdout)  # Python would write its buffer again
    sys.exit(1)


def _tell(line: str) -> None:
    """The last words; past Python's buffers, whose locks another thread may hold."""
    os.write(2, f"{line}\nInterrupted.\n".encode())


if __name__ == "__main__":
    run()
