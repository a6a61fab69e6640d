"""What the commands share: errors and exit statuses, output, and common options."""

from __future__ import annotations

import contextlib
import difflib
import json
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from retvar.support.errors import InputError, RetvarError, WriteError
from retvar.support.format import ONE_LINE, visible

if TYPE_CHECKING:
    from retvar.mdp import MDP

COMMAND = "retvar.command"  # where the context keeps the command line
FAILED, BAD_INPUT, DISAGREES = 1, 2, 3  # exit statuses
EXIT_STATUSES = """\b
Exit status:
  0    done; with --check: fresh returns agree, or cannot tell
  1    failed: a source broke off, a learner diverged, the disk is full,
       a figure cannot be drawn, cells of a sweep are missing
  2    bad input, named with its remedy; nothing was computed
  3    estimate --check: fresh returns disagree with the estimates
  130  interrupted by Ctrl-C (SIGINT); finished work is saved
  143  ended by SIGTERM; finished work is saved
"""
DOMAIN_HELP = "DOMAIN is chain, complex-mdp, random-walk, windy-cliff, gymnasium:ID or FILE.toml."
PATH = click.Path(path_type=Path)
ONE, COUNT = click.IntRange(1), click.IntRange(0, 2**63 - 1)
Options = dict[str, tuple[Any, str]]  # by name: see `options`
JSON: Options = {"json": (bool, "Print the result as JSON.")}
OPTION: Options = {
    "option": (["KEY=VALUE"], "Setting of the domain or environment, such as is_slippery=false."),
}
DOMAIN: Options = {"gamma": (float, "Discount γ; required for Gymnasium tables."), **OPTION}
QUESTION: Options = {
    "policy": (None, "Policy to follow: uniform, greedy or a NAME of the domain."),
    "target": (None, "Target policy, if it differs from the behaviour policy."),
    "behaviour": (None, "Behaviour policy [default: the target policy]."),
    "estimand": (None, "target-return, or off-policy-return, weighted by importance ratios."),
    "lam": (float, "λ of the return [default: the domain's]."),
}
COMPUTING: Options = {
    "threads": (ONE, "Number of threads [default: all cores]."),
    "device": (None, "cpu; cuda, an NVIDIA GPU; or auto. Results are the same."),
}
DEFAULTS = {"estimand": "target-return", "device": "cpu"}


def options(
    given: Options, required: tuple[str, ...] = (), *, hidden: bool = False, **defaults: Any
) -> Callable[[Any], Any]:
    """Add options to a command, each with its type and help; names are those of the library.

    ``bool`` is a flag, a list an option that may be repeated, a text what stands for a value, and
    one that begins with a slash the flag of the opposite.
    """
    defaults = DEFAULTS | defaults

    def add(command: Any) -> Any:
        for name, (kind, text) in reversed(given.items()):
            flag = f"--{name.replace('_', '-')}"
            how: dict[str, Any] = {"hidden": hidden, "required": name in required}
            if isinstance(kind, list):
                kind, text = kind[0], f"{text[:-1]}; may be repeated."
                how["multiple"] = True
            if kind is bool:
                how["is_flag"] = True
            elif isinstance(kind, str) and kind.startswith("/"):
                flag, how["default"] = flag + kind, None
            else:
                how["metavar" if isinstance(kind, str) else "type"] = kind
            if name in defaults:
                how |= {"default": defaults[name], "show_default": True}
            command = click.option(flag, name, help=text, **how)(command)
        return command

    return add


class Commands(click.Group):
    """Commands that print expected errors in one line; see `EXIT_STATUSES`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, and keep them as they were given for reports."""
        ctx.meta[COMMAND] = shlex.join(["retvar", *args])
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except RetvarError as failure:
            print_note(f"Error: {failure}")
            bad = isinstance(failure, InputError) and not isinstance(failure, WriteError)
            sys.exit(BAD_INPUT if bad else FAILED)
        except click.UsageError as wrong:
            wrong.message = visible(wrong.message, lines=True)  # type: ignore[misc]
            raise
        except KeyboardInterrupt as raised:
            print_note("Interrupted; files are whole, and finished work is saved.")
            sys.exit(getattr(raised, "status", 130))


# ---------------------------------------------------------------------- domains and policies


def find_domain(name: str, args: dict[str, Any], lam: float | None = None) -> MDP:
    """The MDP that DOMAIN names; a missing γ is reported before anything heavy is imported."""
    if name.startswith("gymnasium:") and args["gamma"] is None:
        remedy = "a Gymnasium table has none; give one, such as --gamma 0.99"
        raise InputError("gamma", "missing", remedy)
    from retvar.mdp.domains import find

    mdp = find(name, gamma=args["gamma"], **key_values(args["option"]))
    return mdp if lam is None else mdp.replace(lam=lam)


def state_of(text: str | None, mdp: MDP) -> Any:
    """A state by name, or by number if that is no name."""
    if text is None or text in (mdp.state_names or ()):
        return text
    number = whole_number(text)
    return text if number is None else number


def question_of(args: dict[str, Any]) -> dict[str, Any]:
    """The arguments `target`, `behaviour` and `estimand` of the library."""
    policy, target = args["policy"], args["target"]
    if policy is not None and target is not None:
        raise InputError("policy", policy, "is the target; give --policy or --target, not both")
    return {
        "target": target if policy is None else policy,
        "behaviour": args["behaviour"],
        "estimand": args["estimand"].replace("-", "_"),
    }


# ---------------------------------------------------------------------- texts


def show(args: dict[str, Any], plain: Any, text: str, figure: Any = None) -> None:
    """Draw where ``--plot`` says, and print JSON or text."""
    if args.get("plot") is not None:
        from retvar import plots

        plots.save(figure(), args["plot"])
    print_result(to_json(plain) if args["json"] else text)


def print_result(text: str, err: bool = False) -> None:
    """Print to stdout, or notes to stderr."""
    click.echo(visible(text, lines=True), err=err)


def print_note(text: str) -> None:
    """Print a message to stderr, in the words of the command line."""
    print_result(in_options(text), err=True)


def in_options(text: str) -> str:
    """A message that names arguments of the library, as ``by="td"``, with options: ``--by td``."""
    context = click.get_current_context(silent=True)
    known = set() if context is None else _options_of(context.command)

    def option(found: re.Match[str]) -> str:
        name, value = found[1], found[2].strip("'\"")
        if name not in known:
            return found[0]
        word = {"True": "", "False": "none"}.get(value, value)
        word = found[2] if re.search(r"[^\w.-]", word) else word
        return f"--{name.replace('_', '-')} {word}".rstrip()

    return re.sub(r"""\b([a-z_]+)=('[^']*'|"[^"]*"|\w+|(?=[\s,;]|$))""", option, text)


def _options_of(command: click.Command) -> set[str]:
    """The names of the options of a command, and of those in a group."""
    own = {param.name for param in command.params if param.name is not None}
    return own.union(*map(_options_of, getattr(command, "commands", {}).values()))


def to_json(data: Any) -> str:
    r"""JSON text; NaN and infinity become null, and no control character is printed as it is.

    >>> to_json({"γ": [1.5, float("nan")]}), to_json("\x9b")
    ('{"γ": [1.5, null]}', '"\\u009b"')
    """
    text = msgspec.json.format(msgspec.json.encode(data, enc_hook=lambda x: x.item()), indent=0)
    return ONE_LINE.sub(lambda found: json.dumps(found[0])[1:-1], text.decode())


def split_commas(text: str | None) -> tuple[str, ...] | None:
    """The parts of a text between commas."""
    if text is None:
        return None
    return tuple(part.strip() for part in text.split(",") if part.strip())


def whole_number(text: str) -> int | None:
    """The whole number that a text is; None for another text."""
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None


def key_values(options: tuple[str, ...]) -> dict[str, Any]:
    """``KEY=VALUE`` options as a dictionary."""
    parsed = dict(key_value(option) for option in options)
    if "gamma" in parsed:
        raise InputError("option", "gamma", "γ has an option of its own: --gamma")
    return parsed


def key_value(option: str) -> tuple[str, Any]:
    """The key and the value of ``KEY=VALUE``; the value is parsed as JSON if possible."""
    key, equals, value = option.partition("=")
    if not key or not equals:
        raise InputError("option", option, "must be KEY=VALUE")
    with contextlib.suppress(ValueError, RecursionError):
        return key, json.loads(value)
    for meant in difflib.get_close_matches(value.lower(), ("true", "false"), 1):
        raise InputError(key, value, f"did you mean {meant}?")
    return key, value
