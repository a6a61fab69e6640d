"""The directive ``commands``: a section for every command of a click group, with all its options.

All text is what ``--help`` prints. An option without help is a warning, which ends the build.
"""

import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import click
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

DEFAULT = re.compile(r"\s*\[default: ([^\]]*)\]")
CODE = re.compile(r"`([^`]+)`|((?<![\w-])--[a-z][\w-]*)")
LOG = logging.getLogger(__name__)


class Commands(SphinxDirective):
    """``{commands} MODULE:GROUP NAME``."""

    required_arguments = 2

    def run(self) -> list[nodes.Node]:
        self.env.note_reread()  # commands change without this page
        module, _, attribute = self.arguments[0].partition(":")
        group = getattr(import_module(module), attribute)
        top = click.Context(group, info_name=self.arguments[1])
        return [section(context) for context in subcommands(top)]


def section(context: click.Context) -> nodes.section:
    command, path = context.command, context.command_path
    part = nodes.section(ids=[nodes.make_id(path)], names=[path])
    part += nodes.title(path, "", nodes.literal(path, path))
    part += text_of(command.help or "")
    usage = f"{path} {' '.join(command.collect_usage_pieces(context))}"
    part += nodes.literal_block(usage, usage, language="text")
    if command.epilog:
        part += text_of(command.epilog)
    if isinstance(command, click.Group):
        part += [section(inner) for inner in subcommands(context)]
    else:
        part += options_of(context)
    return part


def options_of(context: click.Context) -> nodes.definition_list:
    found = nodes.definition_list(classes=["options"])
    for option in context.command.get_params(context):
        if isinstance(option, click.Option) and not option.hidden and "--help" not in option.opts:
            found += option_entry(option, context)
    return found


def option_entry(option: click.Option, context: click.Context) -> nodes.definition_list_item:
    names, _ = option.get_help_record(context) or ("", "")
    names = names.replace(" RANGE", "")
    if not option.help:
        LOG.warning("%s %s has no help", context.command_path, names)
    longest = max(option.opts, key=len).lstrip("-")
    label = nodes.make_id(f"{context.command_path}-{longest}")
    term = nodes.term("", "", nodes.literal(names, names), ids=[label])
    help_text, default = without_default(option, context)
    body = nodes.definition("", *text_of(help_text))
    if default:
        body += nodes.paragraph("", "", *inline(default), classes=["default"])
    return nodes.definition_list_item("", term, body)


def subcommands(context: click.Context) -> Iterator[click.Context]:
    group = context.command
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if not command.hidden:
            yield click.Context(command, info_name=name, parent=context)


def without_default(option: click.Option, context: click.Context) -> tuple[str, str]:
    """The help of an option, and in a line of its own the default and limits that it names."""
    told, facts = option.help or "", []
    extra = option.get_help_extra(context)
    stated = DEFAULT.search(told)
    if stated:
        told = DEFAULT.sub("", told)
        facts.append(f"Default: {stated[1]}")
    elif "default" in extra:
        facts.append(f"Default: {extra['default']}")
    if "range" in extra:
        facts.append("Range: " + re.sub("([<>])=?", relation, extra["range"]))
    if extra.get("required"):
        facts.append("Required")
    return told, ". ".join(facts) + "." if facts else ""


def relation(found: re.Match[str]) -> str:
    return {"<=": " ≤ ", ">=": " ≥ "}.get(found[0], f" {found[0]} ")


def text_of(text: str) -> list[nodes.Element]:
    r"""Paragraphs as click knows them: lines after \b stay as they are."""
    found: list[nodes.Element] = []
    for part in re.split(r"\n\s*\n", text.strip()):
        if part.startswith("\b"):
            lines = part.lstrip("\b\n")
            found.append(nodes.literal_block(lines, lines, language="text"))
        else:
            found.append(nodes.paragraph("", "", *inline(" ".join(part.split()))))
    return found


def inline(text: str) -> list[nodes.Node]:
    """Text in which options, and what stands between backticks, are code."""
    found: list[nodes.Node] = []
    at = 0
    for match in CODE.finditer(text):
        code = match[1] or match[2]
        found += [nodes.Text(text[at : match.start()]), nodes.literal(code, code)]
        at = match.end()
    return [*found, nodes.Text(text[at:])]


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True}
