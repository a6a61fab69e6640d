"""Small things in every page: no empty lines at the end of code, and cells of a sensible width."""

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

SHORT, LONG = 22, 40  # characters: cells with numbers that stay on one line, cells that need room


def tidy(app: Sphinx, doctree: nodes.document) -> None:
    for block in doctree.findall(nodes.literal_block):
        text = block.astext().rstrip()  # doctests in Markdown need an empty line
        if len(block.children) == 1 and text:
            block.children[0] = nodes.Text(text)
            block.rawsource = text
    for cell in doctree.findall(nodes.entry):
        text = cell.astext()
        if len(text) <= SHORT and any(letter.isdigit() for letter in text):
            cell["classes"].append("short")
        elif len(text) >= LONG:
            cell["classes"].append("long")


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("doctree-read", tidy)
    return {"parallel_read_safe": True}
