"""What commands have in common: how errors are told, and how options are read."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any, TextIO

import click

from retvar.errors import InputError, RetvarError
from retvar.signals import Interrupted

__all__ = ["Commands", "options_of", "pair_of", "silence", "words_of"]


class Commands(click.Group):
    """Tells expected errors in one line: exit status 2 for bad input, 1 for the rest."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except RetvarError as error:
            click.echo(f"Error: {error}", err=True)
            sys.exit(2 if isinstance(error, InputError) else 1)
        except Interrupted as error:
            click.echo("Interrupted.", err=True)
            sys.exit(error.status)


def silence(stream: TextIO) -> None:
    """Let a stream go nowhere: what is left in it would be tried again at the end, and fail."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def words_of(given: str | None) -> tuple[str, ...] | None:
    """Words between commas."""
    if given is None:
        return None
    return tuple(word.strip() for word in given.split(",") if word.strip())


def options_of(options: tuple[str, ...]) -> dict[str, Any]:
    """``KEY=VALUE`` pairs; values are read as JSON where they can be."""
    parsed: dict[str, Any] = {}
    for option in options:
        key, value = pair_of(option)
        if key == "gamma":
            raise InputError("option", option, "γ has a flag of its own: --gamma")
        parsed[key] = value
    return parsed


def pair_of(option: str) -> tuple[str, Any]:
    """``KEY=VALUE``; the value is read as JSON where it can be."""
    key, equals, value = option.partition("=")
    if not key or not equals:
        raise InputError("option", option, "must be KEY=VALUE")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value
