"""Leaves out the empty lines at the end of code, which doctests in Markdown need."""

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx


def trim(app: Sphinx, doctree: nodes.document) -> None:
    for block in doctree.findall(nodes.literal_block):
        text = block.astext().rstrip()
        if len(block.children) == 1 and text:
            block.children[0] = nodes.Text(text)
            block.rawsource = text


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("doctree-read", trim)
    return {"parallel_read_safe": True}
