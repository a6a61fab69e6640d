"""Colours, looks of methods, text and legends; how figures are made, shown and saved."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure as MatplotlibFigure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.textpath import TextToPath
from numpy.typing import NDArray

from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.support.files import write_with
from retvar.support.format import listed, visible
from retvar.td.networks import NETWORKS, label_of

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
Flags = NDArray[np.bool_]
Entry = tuple[Any, str]  # of a legend

INK, LINE, SOFT = "#222222", "#444444", "#8a8a8a"
BLUE, LIGHT_BLUE, ORANGE, NAVY = "#0b5394", "#9fc5e8", "#d55e00", "#08264a"
SHADE = "#f1f1f1"
POINT = 1 / 72  # inch
MARGIN = 0.1  # inches
LINE_SPACING = 1.2
LONGEST_NAME, LONGEST_TITLE, LONGEST_TICK = 60, 40, 24  # characters of a name in a figure

# Okabe and Ito's colours, ordered so that neighbours differ in lightness too
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#000000", "#b3a800")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.6)), (0, (1, 1.3)), (0, (6, 1.5, 1, 1.5)))
TRUTH: Any = {"color": INK, "linewidth": 0.9, "linestyle": (0, (5, 3.5)), "zorder": 4}
GRID: Any = {"color": "#e8e8e8", "linewidth": 0.6}
ZERO: Any = {"color": SOFT, "linewidth": 0.9, "linestyle": (0, (4, 3)), "zorder": 1}
BAND_ALPHA = 0.2

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
    "text.parse_math": False,  # names of states may contain dollar signs
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "pdf.fonttype": 42,
    "svg.hashsalt": "retvar",
    "svg.fonttype": "path",
}
styled = matplotlib.rc_context(RC)  # for functions that draw
METADATA: dict[str, dict[str, Any]] = {  # without dates, so that files can be compared
    ".png": {"Software": None},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None, "ModDate": None},
}


@dataclass(frozen=True)
class LineStyle:
    """Colour, marker and dash of a line, so that lines also differ in grey."""

    colour: str
    marker: str
    dash: Any = "-"
    lift: float = 0.0  #: drawn thinner and higher by this, so that coinciding lines all show

    def plot_options(self, **more: Any) -> dict[str, Any]:
        """Keyword arguments of ``Axes.plot``."""
        own = {"color": self.colour, "marker": self.marker, "linestyle": self.dash}
        rest = {"ms": 4, "mec": "white", "mew": 0.5, "lw": 2 - self.lift, "zorder": 3 + self.lift}
        return {**own, **rest, **more}

    @property
    def text_colour(self) -> Any:
        """A darker colour, for text."""
        return tuple(0.72 * part for part in to_rgb(self.colour))


def line_style(k: int, dashed: bool = False) -> LineStyle:
    """The k-th style; styles repeat after eight."""
    return LineStyle(COLOURS[k % 8], MARKERS[k % 8], DASHES[k % 4] if dashed else "-", 0.4)


METHODS = {  # in the order of legends
    "vtd": LineStyle(COLOURS[4], "s", DASHES[1], 0.4),
    "direct": LineStyle(COLOURS[0], "o", DASHES[0], 0.3),
    "centred": LineStyle(COLOURS[2], "^", DASHES[2], 0.5),
}
METHODS |= {m: line_style(k, True) for k, m in enumerate(NETWORKS) if m not in METHODS}


def learner_style(label: str, k: int) -> LineStyle:
    """The style of a method, in capitals or not, or the k-th style for other learners."""
    return METHODS.get(label.lower()) or line_style(k, dashed=True)


def learner_name(label: str, most: int = LONGEST_NAME) -> str:
    """The name of a method or learner in a figure."""
    return shown(label_of(label.lower()) if label.lower() in METHODS else label, most)


def css_colours() -> str:
    """The colours of the methods as CSS variables, for pages; lighter ones for dark pages.

    >>> print(css_colours().splitlines()[1])
      --method-direct: #0072b2; --method-direct-dark: #59a3cd;
    """
    text = ":root {\n"
    for method in NETWORKS:
        colour = METHODS[method].colour
        dark: Any = [0.35 + 0.65 * part for part in to_rgb(colour)]
        text += f"  --method-{method}: {colour}; --method-{method}-dark: {to_hex(dark)};\n"
    return text + "}\n"


class Figure(MatplotlibFigure):
    r"""A matplotlib figure that draws itself for a notebook, without pyplot and its state.

    >>> drawn, size = Figure(figsize=(2, 1))._repr_png_()
    >>> drawn[:4], size
    (b'\x89PNG', {'width': 192, 'height': 96})
    """

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        """The picture, and the size in which to show it."""
        width, height = (round(96 * float(inches)) for inches in self.get_size_inches())
        return picture(self, ".png", 160), {"width": width, "height": height}


@styled
def picture(figure: MatplotlibFigure, suffix: str, dpi: float) -> bytes:
    """The bytes of a file of a figure."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format=suffix[1:], dpi=dpi, metadata=METADATA[suffix])
    return drawn.getvalue()


def save(figure: MatplotlibFigure, path: str | Path) -> None:
    """Save any matplotlib figure as PNG (200 dots per inch), SVG or PDF, by the suffix of `path`.

    The file is replaced in one step, and the same figure always gives the same bytes.

    Examples
    --------
    >>> import retvar as rv
    >>> rv.plots.save(rv.plots.draw_mdp(rv.domains.chain()), "chain.svg")  # doctest: +SKIP
    """
    arguments.instance("figure", figure, MatplotlibFigure, "a figure of matplotlib")
    path = arguments.path("path", path)
    suffix = path.suffix.lower()
    if suffix not in METADATA:
        raise InputError("path", path, f"must end in one of {listed(METADATA)}")
    write_with(path, lambda temporary: temporary.write_bytes(picture(figure, suffix, 200)))


def new_figure(width: float, height: float, title: str) -> Figure:
    """A figure of this size in inches, with a narrow margin and a title, flush left, wrapped."""
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.get_layout_engine().set(w_pad=MARGIN, h_pad=0.09)  # type: ignore[union-attr, call-arg]
    words = wrap_text(title, 10, width - 2 * MARGIN, "bold")
    figure.suptitle(words, fontsize=10, fontweight="bold", x=MARGIN / width, ha="left")
    return figure


@styled
def message_figure(title: str, text: str) -> Figure:
    """A figure that explains why there is nothing to draw."""
    figure = new_figure(6.0, 1.5, title)
    figure.text(0.5, 0.4, wrap_text(text, 9.5, 5.4), ha="center", va="center", fontsize=9.5)
    return figure


@styled
def add_note(figure: Figure, sentences: Iterable[str]) -> None:
    """Write small text below all panels, wrapped; empty sentences are left out."""
    text, width = " · ".join(filter(None, sentences)), figure.get_figwidth()
    if text:
        words = wrap_text(text, 7.5, width - 2 * MARGIN)
        figure.supxlabel(words, fontsize=7.5, x=MARGIN / width, ha="left")


def shown(text: str, most: int = LONGEST_NAME) -> str:
    """A name as a figure can show it: without characters that the font lacks, and not too long."""
    text = "".join(c if _has(ord(c)) else ascii(c)[1:-1] for c in visible(text[: most + 1]))
    return text if len(text) <= most else f"{text[: most - 1]}…"


@cache
def _has(letter: int) -> bool:
    """Whether the font has a character, both regular and bold."""
    faces = (findfont(FontProperties(family="DejaVu Sans", weight=w)) for w in ("normal", "bold"))
    return all(letter in get_font(face).get_charmap() for face in faces)


def text_size(text: str, size: float, weight: str = "normal") -> tuple[float, float]:
    """Width and height of lines of text, in inches."""
    lines = text.split("\n")
    width = max(_line_width(line, weight) for line in lines)
    height = 0.95 + LINE_SPACING * (len(lines) - 1) if text else 0.0
    return width * size * POINT, height * size * POINT


@cache
def _line_width(line: str, weight: str) -> float:
    """Width of a line at font size 1, in points."""
    font = FontProperties(family="DejaVu Sans", weight=weight, size=100)
    width, _, _ = TextToPath().get_text_width_height_descent(line, font, ismath=False)
    return float(width) / 100


def wrap_text(text: str, size: float, width: float, weight: str = "normal") -> str:
    """Break text between words into lines of at most `width` inches."""
    for characters in range(len(text), 1, -1):
        wrapped = textwrap.fill(text, characters, break_on_hyphens=False)
        if text_size(wrapped, size, weight)[0] <= 0.97 * width:
            return wrapped
    return text


sample = partial(Line2D, [], [])  # a line or marker for a legend


def legend_line(style: LineStyle, band: bool = False) -> Any:
    """A line, optionally with its band, for a legend."""
    line = sample(**style.plot_options())
    return (Patch(facecolor=style.colour, alpha=BAND_ALPHA, lw=0), line) if band else line


@styled
def add_legend(figure: MatplotlibFigure, entries: Iterable[Entry] = (), **options: Any) -> None:
    """Add one legend below all panels, in as few rows as fit; default: of what has a label."""
    labelled: dict[str, Any] = {}
    for ax in figure.axes:
        labelled |= dict(zip(*ax.get_legend_handles_labels()[::-1], strict=True))
    handles, names = zip(*(entries or ((x, text) for text, x in labelled.items())), strict=True)
    room = figure.get_figwidth() / (RC["legend.fontsize"] * POINT)  # in font sizes
    widths, ncols = [_line_width(name, "normal") + 5 for name in names], 1
    for rows in range(len(names) - 1, 0, -1):
        widest = [max(widths[k : k + rows]) for k in range(0, len(widths), rows)]
        ncols = len(widest) if sum(widest) <= room else ncols
    look: Any = {"loc": "outside lower center", "ncols": ncols, "handlelength": 2.4} | options
    look["handler_map"] = {tuple: HandlerTuple(ndivide=1, pad=0)}
    figure.legend(handles, names, columnspacing=1.6, **look)
