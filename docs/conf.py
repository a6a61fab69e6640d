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
    ("py:.*", r"numpy\..*|xarray\..*|retvar\.(linear|mdp|exact|report|experiments)\..*"),
    ("py:.*", r".*Figure|Reproduction|collections\..*|pathlib\.Path"),
]
autodoc_member_order = "bysource"
autodoc_mock_imports = ["torch", "stable_baselines3"]  # extras: not needed for pages
autodoc_typehints = "none"  # types are described in the text
myst_enable_extensions = ["colon_fence"]
suppress_warnings = ["myst.xref_missing"]
