"""Copies MathJax beside the pages, so that formulas need no network.

The package sphinx-mathjax-offline carries MathJax 3. Of its 24 MB the pages need one file, which
has its fonts within it, and the small files that rare commands load.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.util.fileutil import copy_asset

NEEDED = ("tex-svg.js", "input/tex/extensions")


def copy_files(app: Sphinx, error: Exception | None) -> None:
    if error is not None or app.builder.format != "html":
        return
    spec = find_spec("sphinx-mathjax-offline")
    if spec is None or spec.origin is None:
        raise FileNotFoundError('MathJax is missing: pip install -e ".[docs]"')
    source = Path(spec.origin).parent / "static" / "mathjax"
    target = Path(app.outdir) / "_static" / "mathjax"
    for name in NEEDED:
        path = source / name
        copy_asset(path, target / name if path.is_dir() else target)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("build-finished", copy_files)
    return {"parallel_read_safe": True}
