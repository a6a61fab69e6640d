"""What all pages share: templates, escaping, style, script, colours of methods, figures."""

from __future__ import annotations

import base64
import datetime
import hashlib
import importlib.metadata
import io
import platform
import re
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import jinja2
from markupsafe import Markup

from retvar.support.format import visible
from retvar.td.networks import NETWORKS
from retvar.version import __version__

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LIBRARIES = ("numpy", "scipy", "numba", "xarray", "matplotlib")
DPI = 150  # of a figure in a page
COLOURS = 96
WIDE = 6.0  # inches; wider figures scroll on a phone


@cache
def environment(*packages: str) -> jinja2.Environment:
    r"""The templates of these packages and of this one; all values are escaped as HTML.

    >>> environment().from_string("<b>{{ name }}</b>").render(name="<i>\x1b")
    '<b>&lt;i&gt;\\x1b</b>'
    """
    from retvar.plots.style import css_colours

    loader = jinja2.ChoiceLoader([jinja2.PackageLoader(x) for x in (*packages, "retvar.web")])
    made = jinja2.Environment(
        loader=loader,
        autoescape=True,
        finalize=printable,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    style = made.get_template("style.css").render(colours=Markup(css_colours()), methods=NETWORKS)
    script, _, _ = loader.get_source(made, "script.js")
    made.globals |= {
        "style": Markup(style),
        "script": Markup(script),
        "security": policy_of(style, script),
        "methods": {method: network.label for method, network in NETWORKS.items()},
        "WIDE": WIDE,
    }
    made.filters |= {"anchor": anchor}
    return made


def policy_of(style: str, *scripts: str) -> str:
    """A security policy for a page: nothing from the network, no script but these."""
    parts = {
        "default-src": "'none'",
        "img-src": "data:",
        "style-src": _hash(style),
        "script-src": " ".join(map(_hash, scripts)),
        "connect-src": "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {what}" for name, what in parts.items())


def _hash(text: str) -> str:
    digest = hashlib.sha256(f"\n{text}\n".encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def anchor(*names: object) -> str:
    """An id for a place in a page, of names that may hold any character."""
    text = "-".join(str(name).replace("/", "--") for name in names)
    return re.sub(r"[^\w.-]", lambda found: f"-{ord(found[0]):x}-", text)


def printable(value: Any) -> Any:
    """Text without control characters, for HTML, which is escaped afterwards."""
    plain = isinstance(value, str) and not isinstance(value, Markup)
    return visible(value, lines=True) if plain else value


def today() -> str:
    """The date, such as 7 May 2030."""
    return datetime.datetime.now(datetime.UTC).strftime("%d %B %Y").lstrip("0")


def versions(libraries: Sequence[str] = LIBRARIES) -> str:
    """Versions of retvar, Python and the main libraries."""
    found = [f"{name} {importlib.metadata.version(name)}" for name in libraries]
    return ", ".join([f"retvar {__version__}", f"Python {platform.python_version()}", *found])


class Embedded(NamedTuple):
    """A figure as a data URI, and its size."""

    uri: str
    inches: tuple[float, float]


def embed(figure: Figure) -> Embedded:
    """Compress a figure: a palette of 96 colours, without loss after that."""
    import matplotlib
    from PIL import Image

    from retvar.plots.style import RC

    drawn, small = io.BytesIO(), io.BytesIO()
    with matplotlib.rc_context(RC):
        figure.savefig(drawn, format="png", dpi=DPI)
    few = Image.open(drawn).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    few.convert("RGB").save(small, "webp", lossless=True, quality=80)
    width, height = figure.get_size_inches()
    uri = f"data:image/webp;base64,{base64.b64encode(small.getvalue()).decode()}"
    return Embedded(uri, (float(width), float(height)))
