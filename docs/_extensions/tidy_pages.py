"""Small things in every page: no empty lines at the end of code, and cells of a sensible width."""

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

SHORT, LONG = 22, 80  # characters: cells with numbers up to 22 stay on one line, others need room
BREAKS = 38  # characters of code that may break within


def tidy(app: Sphinx, doctree: nodes.document) -> None:
    for block in doctree.findall(nodes.literal_block):
        text = block.astext().rstrip()  # doctests in Markdown need an empty line
        if len(block.children) == 1 and text:
            block.children[0] = nodes.Text(text)
            block.rawsource = text
    for cell in doctree.findall(nodes.entry):
        text = cell.astext()
        if any(len(code.astext()) > BREAKS for code in cell.findall(nodes.literal)):
            cell["classes"].append("breaks")
        if len(text) <= SHORT and any(letter.isdigit() for letter in text):
            cell["classes"].append("short")
        elif len(text) > SHORT:
            cell["classes"].append("long" if len(text) > LONG else "medium")


def drop_docstrings_of_types(
    app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]
) -> None:
    """A constant has no docstring of its own; that of ``int`` says nothing about it."""
    if what == "data" and isinstance(thing, int):
        lines.clear()


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("doctree-read", tidy)
    app.connect("autodoc-process-docstring", drop_docstrings_of_types)
    return {"parallel_read_safe": True}
