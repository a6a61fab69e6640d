"""Figures within a page: few colours, compressed, as data URIs."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Embedded", "embed"]

DPI = 150
COLOURS = 96


class Embedded(NamedTuple):
    """A figure as a data URI, and its size."""

    uri: str
    inches: tuple[float, float]


def embed(figure: Figure) -> Embedded:
    """Compress a figure: a palette of 96 colours, without loss after that.

    >>> import retvar as rv
    >>> embed(rv.plots.draw_mdp(rv.domains.chain())).uri[:23]
    'data:image/webp;base64,'
    """
    import matplotlib

    from retvar.plots.style import RC

    drawn = io.BytesIO()
    with matplotlib.rc_context(RC):
        figure.savefig(drawn, format="png", dpi=DPI)
    raw, kind = _compressed(drawn)
    width, height = figure.get_size_inches()
    uri = f"data:image/{kind};base64,{base64.b64encode(raw).decode()}"
    return Embedded(uri, (float(width), float(height)))


def _compressed(drawn: io.BytesIO) -> tuple[bytes, str]:
    """WebP where Pillow has it, otherwise PNG."""
    from PIL import Image, features

    plain: Any = Image.open(drawn).convert("RGB")
    few = plain.quantize(COLOURS, dither=Image.Dither.NONE)
    found = io.BytesIO()
    if features.check("webp"):
        few.convert("RGB").save(found, "webp", lossless=True, quality=80)
        return found.getvalue(), "webp"
    few.save(found, "png", optimize=True)
    return found.getvalue(), "png"
