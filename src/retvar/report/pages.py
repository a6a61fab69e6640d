"""The report as an HTML page without external files, and as Markdown with figures as files."""

from __future__ import annotations

import math
import re
from functools import cache
from typing import Any

import jinja2
from markupsafe import Markup

from retvar.experiments.claims import COLUMNS
from retvar.format import digits, duration, minus, visible, z_text
from retvar.networks import label_of
from retvar.report import summary
from retvar.report.outcome import Reproduction
from retvar.report.settings import describe_settings
from retvar.web import rendering

__all__ = ["html_page", "markdown_page"]

TITLE = "The variance of the return, reproduced"
ESTIMATES = {column: label_of(column).replace("_", " ") for column in COLUMNS}
FAR = 4.0  # standard errors; measurements farther from the published ones are marked
MARKS = re.compile(  # of Markdown, also of addresses and formulas
    r"[\\`*_|<\[\]~$@]|&(?=#?\w+;)|:(?=//)|(?<=www)\.", re.IGNORECASE
)


def html_page(found: Reproduction) -> str:
    """The report as HTML.

    >>> from retvar.report.outcome import Request
    >>> html_page(Reproduction((), Request())).startswith("<!DOCTYPE html>")
    True
    """
    template = _html().get_template("report.html")
    return template.render(found=found, today=rendering.today()).lstrip()


def markdown_page(found: Reproduction) -> str:
    """The report as Markdown.

    >>> from retvar.report.outcome import Request
    >>> markdown_page(Reproduction((), Request())).splitlines()[0]
    '# The variance of the return, reproduced'
    """
    text = _markdown().get_template("report.md").render(found=found)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


@cache
def _html() -> jinja2.Environment:
    """The templates of the page; all values are escaped."""
    environment = rendering.environment("retvar.report")
    _prepare(environment)
    environment.filters["sentence_anchor"] = lambda key: rendering.anchor("sentence", key)
    return environment


@cache
def _markdown() -> jinja2.Environment:
    """The template of the Markdown; all values are escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("retvar.report"),
        finalize=escape_markdown,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    _prepare(environment)
    environment.filters["code"] = code_span
    return environment


def _prepare(environment: jinja2.Environment) -> None:
    """Add what both templates use."""
    environment.globals |= {
        "TITLE": TITLE,
        "ESTIMATES": ESTIMATES,
        "FAR": FAR,
        "describe_settings": describe_settings,
        "summary": summary,
    }
    environment.filters |= {
        "digits": digits,
        "duration": duration,
        "finite": math.isfinite,
        "minus": minus,
        "z_text": z_text,
    }


def escape_markdown(value: Any) -> Any:
    r"""Text without markup, in one line; `Markup` is returned unchanged.

    >>> print(escape_markdown("a*b | c_d <e> &lt;"))
    a\*b \| c\_d \<e> \&lt;
    """
    if isinstance(value, Markup):
        return value
    text = visible(" ".join(str(value).split()))
    return MARKS.sub(r"\\\g<0>", text)


def code_span(text: str, in_table: bool = False) -> Markup:
    r"""Text as code in Markdown.

    >>> print(code_span("a|b"), code_span("a|b", in_table=True), code_span("a`b"))
    `a|b` `a\|b` ``a`b``
    """
    text = visible(text)
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    space = " " if text.startswith("`") or text.endswith("`") else ""
    text = text.replace("|", r"\|") if in_table else text
    return Markup(fence + space + text + space + fence)
