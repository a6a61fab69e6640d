"""Colours, line styles, text size and legends shared by all figures, and how to save one."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.textpath import TextToPath
from numpy.typing import NDArray

from retvar import arguments
from retvar.errors import InputError
from retvar.files import write_with
from retvar.format import listed, visible
from retvar.networks import NETWORKS, label_of

if TYPE_CHECKING:
    import xarray

__all__ = ["RC", "save", "shown", "text_size"]

Array = NDArray[np.float64]

INK = "#222222"
LINE = "#444444"
SOFT = "#8a8a8a"
BLUE, LIGHT_BLUE = "#0b5394", "#9fc5e8"
ORANGE = "#d55e00"
HANDLE, GAP = 2.4, 1.6  # of legends: length of a line, between columns; in font sizes
POINT = 1 / 72  # inch
LINE_SPACING = 1.2
LONGEST_NAME, LONGEST_TITLE, LONGEST_TICK = 60, 40, 24  # characters of a name in a figure
SHRINK = 0.97  # of lines, until the last one has two words
WRAP_MARGIN = 0.97  # lines may come out a little wider than measured

# Okabe and Ito's colours, ordered so that neighbours differ in lightness too
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#000000", "#b3a800")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.6)), (0, (1, 1.3)), (0, (6, 1.5, 1, 1.5)))
TRUTH: Any = {"color": INK, "linewidth": 0.9, "linestyle": (0, (5, 3.5)), "zorder": 4}
GRID: Any = {"color": "#e8e8e8", "linewidth": 0.6}
SHADE = "#f1f1f1"
BAND_ALPHA = 0.2
LIGHTEN = 0.35  # how far colours on dark pages are from those on white ones, towards white

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
METADATA: dict[str, dict[str, Any]] = {  # without dates, so that files can be compared
    ".png": {"Software": None},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None, "ModDate": None},
}


def save(figure: Figure, path: str | Path) -> None:
    """Save a figure as PNG (200 dots per inch), SVG or PDF.

    The file is replaced in one step, and the same figure always gives the same bytes.

    Parameters
    ----------
    figure
        Any matplotlib figure.
    path
        File name; its suffix sets the format.

    Raises
    ------
    InputError
        If the suffix is not ``.png``, ``.svg`` or ``.pdf``.

    Examples
    --------
    >>> import pathlib, tempfile, retvar as rv
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "chain.svg"
    >>> rv.plots.save(rv.plots.draw_mdp(rv.domains.chain()), path)
    >>> path.read_text()[:5]
    '<?xml'
    """
    arguments.instance("figure", figure, Figure, "a figure of matplotlib")
    path = arguments.path("path", path)
    suffix = path.suffix.lower()
    if suffix not in METADATA:
        raise InputError("path", path, f"must end in one of {listed(METADATA)}")

    drawn = io.BytesIO()  # matplotlib itself may fail in odd ways on a full disk
    with matplotlib.rc_context(RC):
        figure.savefig(drawn, format=suffix[1:], dpi=200, metadata=METADATA[suffix])
    write_with(path, lambda temporary: temporary.write_bytes(drawn.getbuffer()))


def shown(text: str, most: int = LONGEST_NAME) -> str:
    r"""A name as a figure can show it: without characters that the font lacks, and not too long.

    >>> shown("a\x1b[31m\n"), shown("中"), len(shown("a" * 5_000))
    ('a\\x1b[31m\\n', '\\u4e2d', 60)
    """
    known = _letters()
    text = "".join(c if ord(c) in known else ascii(c)[1:-1] for c in visible(text[:most]))
    return text if len(text) <= most else f"{text[: most - 1]}…"


@cache
def _letters() -> frozenset[int]:
    """The characters of the font, both regular and bold."""
    faces = [FontProperties(family="DejaVu Sans", weight=weight) for weight in ("normal", "bold")]
    return frozenset.intersection(*(frozenset(get_font(findfont(f)).get_charmap()) for f in faces))


def text_size(text: str, size: float, weight: str = "normal") -> tuple[float, float]:
    """Width and height of lines of text, in inches.

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
    """Width of a line at font size 1, in points."""
    font = FontProperties(family="DejaVu Sans", weight=weight, size=100)
    width, _, _ = TextToPath().get_text_width_height_descent(line, font, ismath=False)
    return float(width) / 100


def wrap_text(text: str, size: float, width: float, weight: str = "normal") -> str:
    """Break text between words into lines of at most `width` inches; none has a single last word.

    >>> wrap_text("what return to expect", 10, 1.2).splitlines()
    ['what return', 'to expect']
    """
    lines = found = _broken(text, size, width, weight)
    while len(lines) == len(found) > 1 and " " not in lines[-1] and width > 0.1:
        width *= SHRINK
        lines = _broken(text, size, width, weight)
    if len(lines) == len(found):
        return "\n".join(lines)
    before, space, word = found[-2].rpartition(" ")
    if space:
        found[-2:] = [before, f"{word} {found[-1]}"]
    return "\n".join(found)


def _broken(text: str, size: float, width: float, weight: str) -> list[str]:
    """Lines of text, each as long as it can be."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and text_size(longer, size, weight)[0] > WRAP_MARGIN * width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


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
        width = 2.0 - self.lift
        rest = {"ms": 4, "mec": "white", "mew": 0.5, "lw": width, "zorder": 3 + self.lift}
        return {**own, **rest, **more}

    @property
    def text_colour(self) -> Any:
        """A darker colour, for text."""
        return tuple(0.72 * part for part in to_rgb(self.colour))


METHODS = {
    method: LineStyle(COLOURS[look.colour], look.marker, DASHES[look.dash], look.lift)
    for method, look in ((network.method, network.look) for network in NETWORKS.values())
}


def css_colours() -> str:
    """The colours of the methods as CSS variables, for pages; lighter ones for dark pages.

    >>> print(css_colours().splitlines()[1])
      --method-direct: #0072b2; --method-direct-dark: #59a3cd;
    """
    pairs = ((method, style.colour) for method, style in METHODS.items())
    lines = (
        f"  --method-{method}: {colour}; --method-{method}-dark: {_lighter(colour)};"
        for method, colour in pairs
    )
    return "\n".join([":root {", *lines, "}", ""])


def _lighter(colour: str) -> str:
    red, green, blue = (part + LIGHTEN * (1 - part) for part in to_rgb(colour))
    return to_hex((red, green, blue))


def line_style(k: int, dashed: bool = False) -> LineStyle:
    """The k-th style; styles repeat after eight."""
    return LineStyle(COLOURS[k % 8], MARKERS[k % 8], DASHES[k % 4] if dashed else "-", 0.4)


def learner_style(label: str, k: int) -> LineStyle:
    """The style of a method, or the k-th style for other learners.

    >>> learner_style("vtd", 0) == METHODS["vtd"], learner_style("mine", 0).colour
    (True, '#0072b2')
    """
    return METHODS.get(label) or line_style(k, dashed=True)


def learner_name(label: str, most: int = LONGEST_NAME) -> str:
    """The name of a method or learner in a figure.

    >>> learner_name("vtd"), learner_name("mine")
    ('VTD', 'mine')
    """
    return shown(label_of(label), most)


def add_legend(figure: Figure, entries: Iterable[tuple[Any, str]], **options: Any) -> None:
    """Add one legend below all panels, in one row if it fits."""
    handles, names = zip(*entries, strict=True)
    ncols = _legend_columns(names, figure.get_figwidth())
    options = {"loc": "outside lower center", "ncols": ncols, **options}
    handler: Any = {tuple: HandlerTuple(ndivide=1, pad=0)}
    figure.legend(
        handles, names, handlelength=HANDLE, columnspacing=GAP, handler_map=handler, **options
    )


def _legend_columns(names: Sequence[str], width: float) -> int:
    """The most columns of a legend that a page of `width` inches has room for."""
    size = RC["legend.fontsize"]
    for columns in range(len(names), 1, -1):
        rows = -(-len(names) // columns)
        widest = [
            max(text_size(name, size)[0] for name in names[k : k + rows])
            for k in range(0, len(names), rows)
        ]
        if sum(widest) + (HANDLE + GAP + 1) * columns * size * POINT <= width:
            return columns
    return 1


def legend_line(style: LineStyle, band: bool = False) -> Artist | tuple[Artist, ...]:
    """A line, optionally with its band, for a legend."""
    line = Line2D([], [], **style.plot_options())
    return (Patch(facecolor=style.colour, alpha=BAND_ALPHA, lw=0), line) if band else line


def truth_entry() -> tuple[Artist, str]:
    """The legend entry of the exact answers."""
    return Line2D([], [], **TRUTH), "exact truth"


def mean_entry(data: xarray.Dataset, variable: str, band: bool = True) -> tuple[Any, str]:
    """The legend entry of means over runs, with a band if standard deviations are known."""
    runs = data.attrs.get("runs", data.sizes.get("run", "all"))
    band = band and bool(np.isfinite(data[f"{variable}_std"]).any())
    text = "mean ± standard deviation" if band else "mean"
    text = "one run" if runs == 1 else f"{text} over {runs} runs"
    if "exact" in data.attrs:
        text = f"exact {text}"
    return legend_line(LineStyle("#777777", ""), band), text
