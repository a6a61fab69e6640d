"""The colours of the methods, as figures have them: a style sheet, and a role for their names."""

from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxRole

from retvar.plots.style import css_colours
from retvar.td.networks import NETWORKS, label_of


class Method(SphinxRole):
    """``{method}`direct```: the name of a method after a dot in its colour."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        name = self.text
        if name not in NETWORKS:
            report = self.inliner.reporter.warning(f"no method: {name}", line=self.lineno)
            return [], [report]
        return [nodes.inline(name, label_of(name), classes=["method-name", f"method-{name}"])], []


def style_sheet() -> str:
    """The colours, and which of them a name has on light and dark pages."""
    light = (f".method-{name} {{ --method: var(--method-{name}); }}" for name in NETWORKS)
    dark = "\n".join(
        f".method-{name} {{ --method: var(--method-{name}-dark); }}" for name in NETWORKS
    )
    chosen = f'body[data-theme="dark"] {{\n{dark}\n}}'
    system = f'body:not([data-theme="light"]) {{\n{dark}\n}}'
    media = f"@media (prefers-color-scheme: dark) {{\n{system}\n}}"
    return "\n".join([css_colours(), *light, chosen, media, ""])


def write_colours(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        path = Path(app.outdir) / "_static" / "method-colours.css"
        path.write_text(style_sheet(), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("build-finished", write_colours)
    app.add_css_file("method-colours.css")
    app.add_role("method", Method())
    return {"parallel_read_safe": True}
