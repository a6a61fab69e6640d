"""Sphinx settings. Pages are built and read without a network: no CDN, no remote inventories."""

import retvar

project = "retvar"
author = "The retvar developers"
copyright = "2026, the retvar developers"
version = release = retvar.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"retvar {release}"
nitpicky = True
nitpick_ignore_regex = [
    (r"py:.*", r"(numpy|np|scipy|matplotlib|collections|typing|pathlib)\..*"),
    (r"py:.*", r".*(ArrayLike|NDArray|Array|Integers|Estimand|Method|Figure|Axes|Path)"),
    (r"py:class", r"retvar\.(mdp|exact|linear)\..*"),
    (r"py:class", r"(optional|default.*|(retvar\.rules\.)?T|Literal.*|Any|Callable|Mapping)"),
]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
myst_enable_extensions = ["colon_fence"]
suppress_warnings = ["myst.xref_missing"]
