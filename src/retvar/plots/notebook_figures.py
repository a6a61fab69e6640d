"""Figures that notebooks show where they are the last expression of a cell."""

from __future__ import annotations

import base64
import io

import matplotlib
from matplotlib.figure import Figure as MatplotlibFigure

from retvar.html import escaped
from retvar.plots.style import METADATA, RC

__all__ = ["Figure", "Figures"]

DPI = 160  # drawn
CSS_DPI = 96  # shown: sharp on screens with small pixels, too


class Figure(MatplotlibFigure):
    r"""A matplotlib figure that draws itself for a notebook, without pyplot and its state.

    >>> drawn, size = Figure(figsize=(2, 1))._repr_png_()
    >>> drawn[:4], size
    (b'\x89PNG', {'width': 192, 'height': 96})
    """

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        """The picture, and the size in which to show it."""
        width, height = (round(CSS_DPI * float(inches)) for inches in self.get_size_inches())
        drawn = io.BytesIO()
        with matplotlib.rc_context(RC):
            self.savefig(drawn, format="png", dpi=DPI, metadata=METADATA[".png"])
        return drawn.getvalue(), {"width": width, "height": height}


class Figures(dict[str, Figure]):
    """Figures by name, which a notebook shows one below the other.

    >>> Figures({"a": Figure(figsize=(2, 1))})._repr_html_()[:60]
    '<div><strong>a</strong></div><div><img alt="a" width="192" h'
    """

    def _repr_html_(self) -> str:
        return "".join(_image(name, *figure._repr_png_()) for name, figure in self.items())


def _image(name: str, drawn: bytes, size: dict[str, int]) -> str:
    text, data = escaped(name.replace("_", " ")), base64.b64encode(drawn).decode()
    shape = f'width="{size["width"]}" height="{size["height"]}"'
    image = f'<img alt="{text}" {shape} src="data:image/png;base64,{data}">'
    return f"<div><strong>{text}</strong></div><div>{image}</div>"
