"""How figures look, how numbers are written in them, and how they are saved."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextToPath
from numpy.typing import NDArray

from retvar.errors import InputError
from retvar.files import write_with
from retvar.format import listed

__all__ = ["RC", "save", "text_size"]

Array = NDArray[np.float64]

INK = "#222222"
LINE = "#444444"
SOFT = "#8a8a8a"
BLUE, LIGHT_BLUE = "#0b5394", "#9fc5e8"
ORANGE = "#d55e00"
POINT = 1 / 72  # inch
LINE_SPACING = 1.2
NAME, SMALL, LABEL = 9.0, 6.5, 7.5  # points: names of states, what is below, text at arrows

RC: Any = {  # a dict; matplotlib types its keys one by one
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), LINE),
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), INK),
    **dict.fromkeys(("figure.facecolor", "savefig.facecolor"), "white"),
    "text.parse_math": False,  # names of states may hold dollars
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "pdf.fonttype": 42,
    "svg.hashsalt": "retvar",
    "svg.fonttype": "path",
}
UNDATED: dict[str, dict[str, Any]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None, "ModDate": None},
}


def save(figure: Figure, path: str | Path) -> None:
    """Write a figure as PNG (200 dots an inch), SVG or PDF, whole or not at all.

    The same figure always gives the same bytes.

    Parameters
    ----------
    figure
        Any matplotlib figure.
    path
        Where to; the suffix says the format.

    Raises
    ------
    InputError
        Where the suffix is none of ``.png``, ``.svg`` and ``.pdf``.

    Examples
    --------
    >>> import pathlib, tempfile, retvar as rv
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "chain.svg"
    >>> rv.plots.save(rv.plots.draw_mdp(rv.domains.chain()), path)
    >>> path.read_text()[:5]
    '<?xml'
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in UNDATED:
        raise InputError("path", path, f"must end in one of {listed(UNDATED)}")

    def write(temporary: Path) -> None:
        with matplotlib.rc_context(RC):
            figure.savefig(temporary, format=suffix[1:], dpi=200, metadata=UNDATED[suffix])

    write_with(path, write)


def text_size(text: str, size: float, weight: str = "normal") -> tuple[float, float]:
    """Width and height, in inches, of lines of text.

    >>> width, height = text_size("s0", 10)
    >>> 0.15 < width < 0.25, 0.1 < height < 0.2
    (True, True)
    """
    if not text:
        return 0.0, 0.0
    lines = text.split("\n")
    width = max(_line_width(line, weight) for line in lines)
    return width * size * POINT, (0.95 + LINE_SPACING * (len(lines) - 1)) * size * POINT


@cache
def _line_width(line: str, weight: str) -> float:
    """Width of a line set at size 1."""
    font = FontProperties(family="DejaVu Sans", weight=weight, size=100)
    width, _, _ = TextToPath().get_text_width_height_descent(line, font, ismath=False)
    return float(width) / 100
