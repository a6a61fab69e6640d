"""The report as an HTML page without external files."""

from __future__ import annotations

import math
from functools import cache

import jinja2

from retvar.paper.outcome import SOURCES, Reproduction
from retvar.paper.sentences import CLOSELY
from retvar.paper.settings import describe_settings
from retvar.plots.paper import COLUMNS
from retvar.support.format import digits, duration, minus, z_text
from retvar.td.networks import label_of
from retvar.web import rendering

TITLE = "The variance of the return, reproduced"
ESTIMATES = {column: label_of(column).replace("_", " ") for column in COLUMNS}
FAR = 4.0  # standard errors; measurements farther from the published ones are marked


def html_page(found: Reproduction) -> str:
    """The report as HTML."""
    template = _templates().get_template("report.html")
    return template.render(found=found, today=rendering.today()).lstrip()


@cache
def _templates() -> jinja2.Environment:
    """The templates of the page; all values are escaped."""
    environment = rendering.environment("retvar.paper")
    environment.globals |= {
        "TITLE": TITLE, "ESTIMATES": ESTIMATES, "FAR": FAR, "SOURCES": SOURCES, "CLOSELY": CLOSELY,
        "describe_settings": describe_settings, "versions": rendering.versions,
    }  # fmt: skip
    environment.filters |= {
        "digits": digits, "duration": duration, "finite": math.isfinite, "minus": minus,
        "z_text": z_text, "sentence_anchor": lambda key: rendering.anchor("sentence", key),
    }  # fmt: skip
    return environment
