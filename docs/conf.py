"""Sphinx settings. Pages are built and read without a network: no CDN, no remote inventories."""

import sys
from pathlib import Path

import retvar

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "retvar"
author = "The retvar developers"
copyright = "2026, the retvar developers"
version = release = retvar.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "command_reference",
    "mathjax_files",
    "method_colours",
    "tidy_pages",
]
exclude_patterns = ["_build", "_extensions"]
html_theme = "furo"
html_title = f"retvar {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_favicon = "_static/favicon.svg"
html_theme_options = {
    "light_logo": "logo.svg",
    "dark_logo": "logo-dark.svg",
    "light_css_variables": {"color-brand-primary": "#0b5394", "color-brand-content": "#0b5394"},
    "dark_css_variables": {"color-brand-primary": "#8fc1f0", "color-brand-content": "#8fc1f0"},
}
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"numpy\..*|xarray\..*|retvar\.(linear|mdp|exact|paper)\..*"),
    ("py:.*", r".*Figure|Reproduction|collections\..*|pathlib\.Path"),
]
autodoc_member_order = "bysource"
autodoc_mock_imports = ["torch", "stable_baselines3"]  # extras: not needed for pages
autodoc_typehints = "none"  # types are described in the text
napoleon_attr_annotations = False
myst_enable_extensions = ["amsmath", "colon_fence", "dollarmath"]
myst_dmath_allow_labels = False
suppress_warnings = ["myst.xref_missing"]

mathjax_path = "mathjax/tex-svg.js"  # put there by mathjax_files
mathjax3_config = {"options": {"enableMenu": False}, "svg": {"fontCache": "global"}}

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_line_continuation_character = "\\"
