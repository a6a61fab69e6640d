"""What the commands share: errors, interruptions, output, and the parsing of options."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from retvar.errors import InputError, RetvarError, WriteError
from retvar.files import remove_unfinished, written
from retvar.format import ONE_LINE, listed, visible
from retvar.progress import Display, discard_output, escape_log
from retvar.reading import json_or_text
from retvar.signals import NOTHING, Interrupted, Stop, current

if TYPE_CHECKING:
    from retvar.mdp import MDP

__all__ = [
    "DEVICE",
    "DISAGREES",
    "ESTIMAND",
    "EXIT_STATUSES",
    "JSON",
    "OPTION",
    "PATH",
    "THREADS",
    "Commands",
    "find_domain",
    "interruptible",
    "key_value",
    "key_values",
    "options_of",
    "print_note",
    "print_result",
    "split_commas",
    "to_json",
    "whole_number",
]

FAILED, BAD_INPUT, DISAGREES = 1, 2, 3  # exit statuses
EXIT_STATUSES = """\b
Exit status:
  0    done; with --check: fresh returns agree, or cannot tell
  1    failed: a source broke off, a learner diverged, the disk is full,
       a claim does not hold, cells of a sweep are missing
  2    bad input, named with its remedy; nothing was computed
  3    estimate --check: fresh returns disagree with the estimates
  130  interrupted by Ctrl-C (SIGINT); finished work is saved
  143  ended by SIGTERM; finished work is saved
"""
SAVED = "Finished work is saved; run the same command to continue."


class FileName(click.Path):
    """A path that a file system can have."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Refuse a NUL and half a character, which only a program can give."""
        try:
            possible = b"\0" not in os.fsencode(value)
        except UnicodeEncodeError:
            possible = False
        if not possible:
            self.fail(f"{value!r} is no name of a file.", param, ctx)
        return super().convert(value, param, ctx)


PATH = FileName(path_type=Path)
ESTIMAND = click.option(
    "--estimand", default="target-return", show_default=True,
    help="target-return, or off-policy-return, which is weighted by importance ratios.",
)  # fmt: skip
JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
OPTION = click.option(
    "--option", "options", multiple=True, metavar="KEY=VALUE",
    help="Setting of the domain or environment, such as is_slippery=false; may be repeated.",
)  # fmt: skip
DOMAIN_HELP = "DOMAIN is chain, complex-mdp, random-walk, windy-cliff, gymnasium:ID or FILE.toml."
THREADS = click.option(
    "--threads", type=click.IntRange(1), help="Number of threads [default: all cores]."
)
DEVICE = click.option(
    "--device", default="cpu", show_default=True,
    help="cpu; cuda, an NVIDIA GPU; or auto. Results are the same.",
)  # fmt: skip


def domain_options(command: Any) -> Any:
    """Add the argument DOMAIN and its options to a command."""
    gamma = click.option("--gamma", type=float, help="Discount γ; required for Gymnasium tables.")
    return click.argument("domain")(gamma(OPTION(command)))


def find_domain(name: str, gamma: float | None, options: tuple[str, ...]) -> MDP:
    """The MDP that DOMAIN names; a missing γ is reported before anything heavy is imported."""
    if name.startswith("gymnasium:") and gamma is None:
        remedy = "a Gymnasium table has none; give one, such as --gamma 0.99"
        raise InputError("--gamma", "missing", remedy)
    from retvar.domains import find

    return find(name, gamma=gamma, **key_values(options))


@contextlib.contextmanager
def options_of(**fields: str) -> Iterator[None]:
    """Rename these arguments in the library's error messages to options of the command line."""
    try:
        yield
    except InputError as error:
        if type(error) is not InputError or error.field not in fields:
            raise
        raise InputError(fields[error.field], error.value, error.remedy) from None


class Commands(click.Group):
    """Commands that print expected errors in one line; see `EXIT_STATUSES`."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; its status after a signal is that of the signal, whatever it returned.

        Signals are those of the program (`retvar.__main__`); another one that calls this keeps its
        own handlers.
        """
        stop = current()
        escape_log()
        stop.kept = _kept
        stop.leaving = [_kill_children, remove_unfinished]
        try:
            found = super().invoke(ctx)
        except RetvarError as failure:
            if str(failure) or not stop.number:
                print_note(f"Error: {failure}")
            _leave_after_signal(stop)
            disk = isinstance(failure, WriteError)
            if disk and written:
                print_note(_kept())
            sys.exit(BAD_INPUT if isinstance(failure, InputError) and not disk else FAILED)
        except click.UsageError as wrong:
            wrong.message = visible(wrong.message, lines=True)  # type: ignore[misc]
            raise
        except KeyboardInterrupt as raised:
            _leave_after_signal(stop)
            click.echo("Interrupted.", err=True)
            error = raised if isinstance(raised, Interrupted) else Interrupted(signal.SIGINT)
            sys.exit(error.status)
        except SystemExit:
            _leave_after_signal(stop)
            raise
        _leave_after_signal(stop)
        return found


def _leave_after_signal(stop: Stop) -> None:
    """Say what was kept, and end with the status of the signal, if there was one."""
    if stop.number:
        stop.tell()
        error = Interrupted(stop.number)
        sys.exit(error.status)


def _kept() -> str:
    """What a command without work to continue leaves behind."""
    return f"Written before: {listed([str(path) for path in written], 4)}" if written else NOTHING


def _kill_children() -> None:
    """Kill worker processes, which have nothing to keep; some have not started to listen yet."""
    if multiprocessing := sys.modules.get("multiprocessing"):
        for child in multiprocessing.active_children():
            child.kill()


@contextlib.contextmanager
def interruptible(
    clean_up: Callable[[], None] = lambda: None, **options: Any
) -> Iterator[tuple[Stop, Display]]:
    """Show progress on stderr, and stop at a safe point when Ctrl-C or SIGTERM arrives.

    `clean_up` is called if the process has to be ended before it reaches such a point; `options`
    are those of :class:`~retvar.progress.Display`.
    """
    stop = current()
    with Display(sys.stderr, stop.check, **options) as progress, stop.graceful(kept=lambda: SAVED):
        stop.leaving += [progress.restore_terminal, clean_up]
        yield stop, progress


def print_result(text: str) -> None:
    """Print to stdout; a closed pipe does not change the exit status."""
    try:
        click.echo(visible(text, lines=True))
    except OSError as error:
        discard_output(sys.stdout)
        if not isinstance(error, BrokenPipeError):
            raise RetvarError(f"stdout cannot be written: {error.strerror}") from None


def print_note(text: str) -> None:
    """Print to stderr."""
    click.echo(visible(text, lines=True), err=True)


def to_json(data: Any) -> str:
    r"""JSON text; NaN and infinity become null, and no control character is printed as it is.

    >>> to_json({"γ": [1.5, math.nan]})
    '{"γ": [1.5, null]}'
    >>> to_json("\x9b \U000e0041")
    '"\\u009b \\udb40\\udc41"'
    """

    def finite(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: finite(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [finite(each) for each in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    text = json.dumps(finite(data), ensure_ascii=False, allow_nan=False)
    return ONE_LINE.sub(lambda found: json.dumps(found[0])[1:-1], text)


def split_commas(text: str | None) -> tuple[str, ...] | None:
    """The parts of a text between commas.

    >>> split_commas("png, svg")
    ('png', 'svg')
    """
    if text is None:
        return None
    return tuple(part.strip() for part in text.split(",") if part.strip())


def whole_number(text: str) -> int | None:
    """The whole number that a text is; None for another text, also for one of too many digits.

    >>> whole_number("12"), whole_number("²"), whole_number("9" * 5_000)
    (12, None, None)
    """
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None


def key_values(options: tuple[str, ...]) -> dict[str, Any]:
    """``KEY=VALUE`` options as a dictionary."""
    parsed = dict(key_value(option) for option in options)
    if "gamma" in parsed:
        option = next(option for option in options if option.startswith("gamma="))
        raise InputError("option", option, "γ has an option of its own: --gamma")
    return parsed


def key_value(option: str) -> tuple[str, Any]:
    """The key and the value of ``KEY=VALUE``; the value is parsed as JSON if possible.

    >>> key_value("length=10"), key_value("map_name=8x8")
    (('length', 10), ('map_name', '8x8'))
    """
    key, equals, value = option.partition("=")
    if not key or not equals:
        raise InputError("option", option, "must be KEY=VALUE")
    return key, json_or_text(value, "option", option)
