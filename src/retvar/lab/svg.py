"""Charts as SVG text, for pages that draw many a second: lines with bands, dots by state, maps.

Every chart has a title and a description for screen readers, escapes the names in it, and takes
its colours from CSS variables, which ``STYLE`` sets for light and dark pages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retvar.format import short_number
from retvar.html import escaped
from retvar.networks import NETWORKS
from retvar.plots.style import COLOURS, LIGHTEN

__all__ = [
    "BLUE",
    "GRID",
    "INK",
    "ORANGE",
    "PAPER",
    "SOFT",
    "STYLE",
    "Dots",
    "Level",
    "Line",
    "Mark",
    "colour",
    "dot_chart",
    "heat_map",
    "line_chart",
    "method_colour",
    "method_dash",
    "nice_ticks",
    "svg",
]

Array = NDArray[np.float64]

WIDTH, HEIGHT = 400, 260
FONT, LETTER = 13, 0.56  # size of text; mean width of a letter in sizes
LEFT, RIGHT, TOP, BOTTOM = 52, 20, 30, 42  # margins around the data
ROW = 19  # height of a row of the legend
MOST_POINTS = 240  # of a line; more cannot be seen
LONGEST = 16  # characters of a name along an axis
DASHES = ("", "6 3", "2 2.5", "8 3 2 3")  # as in figures

WHITE = "#ffffff"
INK = "var(--rv-ink, #222222)"
SOFT = "var(--rv-soft, #8a8a8a)"
GRID = "var(--rv-grid, #e4e4e4)"
PAPER = "var(--rv-paper, #ffffff)"


def _shade(share: float, low: str, high: str) -> str:
    """A colour between two."""
    ends = [[int(c[k : k + 2], 16) for k in (1, 3, 5)] for c in (low, high)]
    mixed = (round(a + (b - a) * share) for a, b in zip(*ends, strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)


def colour(k: int) -> str:
    """The k-th colour of retvar's figures; there are eight.

    >>> colour(0), colour(8) == colour(0)
    ('var(--rv-c0, #0072b2)', True)
    """
    return f"var(--rv-c{k % len(COLOURS)}, {COLOURS[k % len(COLOURS)]})"


BLUE, ORANGE = colour(0), colour(4)


def method_colour(method: str) -> str:
    """The colour that a method has in all figures.

    >>> method_colour("direct") == colour(0)
    True
    """
    return colour(NETWORKS[method].look.colour)


def method_dash(method: str) -> str:
    """The dashes that a method has in all figures.

    >>> method_dash("direct"), method_dash("vtd")
    ('', '6 3')
    """
    return DASHES[NETWORKS[method].look.dash]


def _variables(dark: bool) -> str:
    base = ("#e6e6e6", "#9a9a9a", "#3a3f45", "#181c20") if dark else (
        "#222222", "#767676", "#e4e4e4", "#ffffff")  # fmt: skip
    named = dict(zip(("ink", "soft", "grid", "paper"), base, strict=True))
    named |= {f"c{k}": _shade(LIGHTEN, c, WHITE) if dark else c for k, c in enumerate(COLOURS)}
    if dark:
        named["c6"] = "#d0d0d0"  # black
    return ";".join(f"--rv-{name}:{value}" for name, value in named.items())


STYLE = (
    f":root{{{_variables(False)}}}"
    f"@media (prefers-color-scheme:dark){{:root:not(.light){{{_variables(True)}}}}}"
    f":root.dark,.dark,.dark-theme{{{_variables(True)}}}"
)
"""CSS of the colours of charts on light and dark pages."""


class Line(NamedTuple):
    """A line of a chart, optionally with a band around it.

    >>> Line("direct", [0, 1], [2.0, 3.0]).dash
    ''
    """

    name: str  #: in the legend; "" leaves it out
    x: ArrayLike
    y: ArrayLike
    colour: str = INK
    dash: str = ""
    low: ArrayLike | None = None  #: lower end of the band
    high: ArrayLike | None = None
    width: float = 2.0
    opacity: float = 1.0


class Level(NamedTuple):
    """A horizontal line across a chart, such as an exact answer.

    >>> Level("exact", 2.5).dash
    '5 4'
    """

    name: str
    y: float
    colour: str = INK
    dash: str = "5 4"
    vertical: bool = False  #: at x = y instead, such as where a slider stands


class Dots(NamedTuple):
    """A dot for each state, with a bar from `low` to `high` if these are given.

    >>> Dots("direct", [1.0, 2.0]).low is None
    True
    """

    name: str
    y: ArrayLike
    colour: str = INK
    low: ArrayLike | None = None
    high: ArrayLike | None = None
    shape: str = "o"  #: "o": a disc; "s": a square; "ring": a circle
    over: bool = False  #: whether they lie on those before, not beside them


class Mark(NamedTuple):
    """One dot on a chart of lines.

    >>> Mark("now", 0.1, 2.5).shape
    'o'
    """

    name: str
    x: float
    y: float
    colour: str = INK
    shape: str = "o"


class _Axes(NamedTuple):
    """The scales of a chart: from data to pixels."""

    x: tuple[float, float]
    y: tuple[float, float]
    box: tuple[float, float, float, float]  #: left, top, right, bottom
    log_x: bool = False

    def across(self, x: Any) -> Any:
        low, high = self.x
        if self.log_x:
            x, low, high = np.log(np.maximum(x, low / 10)), math.log(low), math.log(high)
        left, _, right, _ = self.box
        return left + (np.asarray(x) - low) / (high - low) * (right - left)

    def down(self, y: Any) -> Any:
        low, high = self.y
        _, top, _, bottom = self.box
        beyond = 2 * (high - low)  # far outside of the frame, where lines are cut off
        y = np.clip(y, low - beyond, high + beyond)
        return bottom - (y - low) / (high - low) * (bottom - top)


def nice_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers between two limits, in steps of 1, 2 or 5 times a power of ten.

    >>> nice_ticks(0, 9.3)
    [0.0, 2.0, 4.0, 6.0, 8.0]
    >>> nice_ticks(-0.1, 0.35, most=4)
    [0.0, 0.2]
    """
    if not (math.isfinite(low) and math.isfinite(high) and high > low):
        return [low] if math.isfinite(low) else []
    rough = (high - low) / max(most - 1, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{k * step:.12g}") for k in range(first, last + 1)]


def _decades(low: float, high: float) -> list[float]:
    """Powers of ten between two limits; with few of them also 2 and 5 times these."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    many = len(powers) > 3
    ticks = [m * 10.0**p for p in powers for m in ((1,) if many else (1, 2, 5))]
    return [float(f"{t:.6g}") for t in ticks if low * (1 - 1e-9) <= t <= high * (1 + 1e-9)]


def _limits(arrays: Iterable[ArrayLike | None], zero: bool, pad: float = 0.06) -> Any:
    """The range of finite numbers, a little widened; from 0 with `zero`."""
    parts = [np.asarray(a, dtype=float).ravel() for a in arrays if a is not None]
    known = np.concatenate(parts) if parts else np.zeros(0)
    known = known[np.isfinite(known)]
    if not known.size:
        return 0.0, 1.0
    low, high = float(known.min()), float(known.max())
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    span = (high - low) or abs(high) or 1.0
    return (low if zero and low == 0 else low - pad * span), high + pad * span


def _point(x: float, y: float) -> str:
    return f"{x:.1f},{y:.1f}"


def _points(xs: Array, ys: Array) -> str:
    return " ".join(map(_point, xs.tolist(), ys.tolist()))


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", ink: str = INK, more: str = ""
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{ink}"{more}>'
        f"{escaped(text)}</text>"
    )


def svg(title: str, description: str, width: float, height: float, parts: Iterable[str]) -> str:
    """An SVG image with a title, a description for those who do not see it, and parts.

    >>> svg("a < b", "", 10, 10, [])[-29:]
    '<title>a &lt; b</title></svg>'
    """
    told = f"<title>{escaped(title)}</title>"
    if description:
        told += f"<desc>{escaped(description)}</desc>"
    style = f"width:100%;max-width:{1.5 * width:.0f}px;height:auto;display:block"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width:g} {height:g}" '
        f'style="{style}" font-family="system-ui, sans-serif" font-size="{FONT}">'
        f"{told}{''.join(parts)}</svg>"
    )


def _frame(axes: _Axes, x_label: str, y_label: str, x_ticks: Sequence[float] | None) -> list[str]:
    """Grid, ticks and labels; `x_ticks` None leaves the ticks along x out."""
    left, top, right, bottom = axes.box
    parts = []
    for tick in nice_ticks(*axes.y):
        y = float(axes.down(tick))
        parts.append(f'<path d="M{left} {y:.1f}H{right}" stroke="{GRID}"/>')
        parts.append(_text(left - 6, y + 4, short_number(tick), anchor="end"))
    for tick in x_ticks or ():
        x = float(axes.across(tick))
        parts.append(f'<path d="M{x:.1f} {bottom}v4" stroke="{SOFT}"/>')
        parts.append(_text(x, bottom + 17, short_number(tick), anchor="middle"))
    parts.append(f'<path d="M{left} {top}V{bottom}H{right}" stroke="{SOFT}" fill="none"/>')
    if x_label:
        parts.append(_text((left + right) / 2, bottom + 35, x_label, anchor="middle"))
    if y_label:
        turned = f' transform="rotate(-90 13 {(top + bottom) / 2:.0f})"'
        parts.append(_text(13, (top + bottom) / 2, y_label, anchor="middle", more=turned))
    return parts


def _legend(entries: Sequence[tuple[str, str]], width: float, y: float) -> tuple[list[str], int]:
    """Samples with names, in rows from `y` down, and how many rows there are.

    An entry is the SVG of a sample 22 pixels wide around (0, 0), and a name.
    """
    x, rows, parts = float(LEFT), 1 if entries else 0, []
    for sample, name in entries:
        needed = 30 + len(name) * FONT * LETTER + 14
        if x > LEFT and x + needed > width:
            x, rows = LEFT, rows + 1
        at = y + ROW * (rows - 1)
        parts.append(f'<g transform="translate({x:.1f} {at:.1f})">{sample}</g>')
        parts.append(_text(x + 28, at + 4, name))
        x += needed
    return parts, rows


def _title(x: float, title: str) -> str:
    return _text(x, 18, title, more=' font-weight="600"')


def _line_sample(line: Line | Level) -> str:
    dash = f' stroke-dasharray="{line.dash}"' if line.dash else ""
    band = ""
    if isinstance(line, Line) and line.low is not None:
        band = f'<rect x="0" y="-6" width="22" height="12" fill="{line.colour}" opacity="0.18"/>'
    width = line.width if isinstance(line, Line) else 1.2
    return f'{band}<path d="M0 0H22" stroke="{line.colour}" stroke-width="{width:g}"{dash}/>'


def _drawn_line(line: Line, axes: _Axes) -> str:
    """A line and its band; gaps where numbers are not finite."""
    x, y = np.asarray(line.x, dtype=float), np.asarray(line.y, dtype=float)
    keep = np.arange(len(x))
    if len(x) > MOST_POINTS:
        keep = np.unique(np.linspace(0, len(x) - 1, MOST_POINTS).astype(int))
    across, parts = axes.across(x[keep]), []
    if line.low is not None and line.high is not None:
        low, high = (np.asarray(end, dtype=float)[keep] for end in (line.low, line.high))
        good = np.isfinite(low) & np.isfinite(high)
        if good.any():
            edge = f"{_points(across[good], axes.down(low[good]))} " + _points(
                across[good][::-1], axes.down(high[good])[::-1]
            )
            parts.append(f'<polygon points="{edge}" fill="{line.colour}" opacity="0.18"/>')
    dash = f' stroke-dasharray="{line.dash}"' if line.dash else ""
    look = f'stroke="{line.colour}" stroke-width="{line.width:g}" opacity="{line.opacity:g}"{dash}'
    y = y[keep]
    for piece in np.split(np.arange(len(y)), np.flatnonzero(~np.isfinite(y))):
        piece = piece[np.isfinite(y[piece])]
        if len(piece):
            points = _points(across[piece], axes.down(y[piece]))
            parts.append(
                f'<polyline points="{points}" fill="none" {look} stroke-linejoin="round"/>'
            )
    return "".join(parts)


def _drawn_level(level: Level, axes: _Axes) -> str:
    left, top, right, bottom = axes.box
    if level.vertical:
        path = f"M{float(axes.across(level.y)):.1f} {top}V{bottom}"
    else:
        path = f"M{left} {float(axes.down(level.y)):.1f}H{right}"
    return (
        f'<path d="{path}" stroke="{level.colour}" stroke-width="1.2" '
        f'stroke-dasharray="{level.dash}" fill="none"/>'
    )


def _clipped(axes: _Axes, parts: Iterable[str], name: str) -> str:
    """Parts, cut off at the frame."""
    left, top, right, bottom = axes.box
    return (
        f'<svg x="{left}" y="{top}" width="{right - left}" height="{bottom - top}" '
        f'viewBox="{left} {top} {right - left} {bottom - top}" data-part="{name}">'
        f"{''.join(parts)}</svg>"
    )


def line_chart(
    title: str,
    lines: Sequence[Line],
    levels: Sequence[Level] = (),
    marks: Sequence[Mark] = (),
    *,
    x_label: str = "",
    y_label: str = "",
    x_range: tuple[float, float] | None = None,
    y_range: tuple[float, float] | None = None,
    zero: bool = False,
    log_x: bool = False,
    description: str = "",
    size: tuple[int, int] = (WIDTH, HEIGHT),
) -> str:
    """Lines with bands over one axis, and levels across.

    Numbers that are not finite leave gaps; lines are cut off at the frame.

    Parameters
    ----------
    title, description
        Above the chart; for those who do not see it.
    lines, levels, marks
        What is drawn; names that repeat are in the legend once.
    x_label, y_label
        Names of the axes.
    x_range, y_range
        Limits of the axes; default: those of the numbers.
    zero
        Whether the vertical axis begins at 0.
    log_x
        Whether the horizontal axis is logarithmic.
    size
        Width and height in pixels; the chart grows and shrinks with the page.

    Examples
    --------
    >>> chart = line_chart("a < b", [Line("direct", [0, 1], [2, 3])], [Level("exact", 2.5)])
    >>> chart[:4], "a &lt; b" in chart, chart.count("<polyline")
    ('<svg', True, 1)
    """
    width, height = size
    entries, named = [], set()
    items: list[Line | Level | Mark] = [*lines, *levels, *marks]
    for item in items:
        if item.name and item.name not in named:
            sample = _dot(11, 0, item, 5) if isinstance(item, Mark) else _line_sample(item)
            entries.append((sample, item.name))
            named.add(item.name)
    legend, rows = _legend(entries, width, TOP + 4)
    ys = [a for line in lines for a in (line.y, line.low, line.high)]
    ys += [[level.y for level in levels if not level.vertical], [mark.y for mark in marks]]
    xs = [line.x for line in lines]
    axes = _Axes(
        x_range or _limits(xs, False, pad=0.0),
        y_range or _limits(ys, zero),
        (LEFT, TOP + ROW * rows, width - RIGHT, height - BOTTOM),
        log_x,
    )
    if not axes.x[1] > axes.x[0]:
        axes = axes._replace(x=(axes.x[0], axes.x[0] + 1.0))
    ticks = _decades(*axes.x) if log_x else nice_ticks(*axes.x)
    drawn = [_drawn_line(line, axes) for line in lines]
    drawn += [_drawn_level(level, axes) for level in levels]
    drawn += [
        _placed(float(axes.across(mark.x)), mark.y, mark, axes, 5)
        for mark in marks
        if math.isfinite(mark.y)
    ]
    parts = [_title(LEFT, title), *legend]
    parts += [*_frame(axes, x_label, y_label, ticks), _clipped(axes, drawn, "lines")]
    return svg(title, description, width, height, parts)


def _dot(x: float, y: float, dots: Dots | Mark, radius: float) -> str:
    look = f'fill="{dots.colour}" stroke="{PAPER}" stroke-width="0.8"'
    if dots.shape == "ring":
        look = f'fill="none" stroke="{dots.colour}" stroke-width="1.8"'
    if dots.shape == "s":
        side = 1.8 * radius
        at = f'x="{x - side / 2:.1f}" y="{y - side / 2:.1f}"'
        return f'<rect {at} width="{side:.1f}" height="{side:.1f}" {look}/>'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" {look}/>'


def dot_chart(
    title: str,
    states: Sequence[str],
    dots: Sequence[Dots],
    exact: ArrayLike | None = None,
    *,
    exact_name: str = "exact",
    y_label: str = "",
    y_range: tuple[float, float] | None = None,
    zero: bool = True,
    description: str = "",
    size: tuple[int, int] = (WIDTH, HEIGHT),
) -> str:
    """Dots for each state, side by side, and the exact answer as a mark across them.

    Parameters
    ----------
    title, description
        Above the chart; for those who do not see it.
    states
        Their names, along the horizontal axis.
    dots
        What is drawn of each state.
    exact, exact_name
        The exact answer of each state, and what the legend calls it.
    y_label, y_range, zero, size
        As in :func:`line_chart`.

    Examples
    --------
    >>> chart = dot_chart("variance", ["a", "b"], [Dots("direct", [1.0, 2.0])], [1.5, 1.5])
    >>> chart.count("<circle") # two, and one in the legend
    3
    """
    width, height = size
    entries = [(_dot(11, 0, d, 4.5), d.name) for d in dots if d.name]
    mark = f'stroke="{INK}" stroke-width="2"'
    if exact is not None:
        entries.append((f'<path d="M0 0H22" {mark}/>', exact_name))
    legend, rows = _legend(entries, width, TOP + 4)
    ys = [a for d in dots for a in (d.y, d.low, d.high)] + [exact]
    box = (LEFT, TOP + ROW * rows, width - RIGHT, height - BOTTOM)
    axes = _Axes((0.0, float(max(len(states), 1))), y_range or _limits(ys, zero), box)
    column = (box[2] - box[0]) / max(len(states), 1)
    places = np.cumsum([not d.over for d in dots]) - 1 if dots else np.zeros(0)
    drawn, apart = [], min(14.0, 0.8 * column / (max(places, default=0) + 1))
    radius = max(1.5, min(4.5, 0.42 * apart))
    for k in range(len(states)):
        middle = box[0] + (k + 0.5) * column
        if exact is not None:
            y, half = float(axes.down(np.asarray(exact, dtype=float)[k])), 0.42 * column
            if math.isfinite(y):
                drawn.append(f'<path d="M{middle - half:.1f} {y:.1f}h{2 * half:.1f}" {mark}/>')
        for place, d in zip(places, dots, strict=True):
            at = middle + (place - places[-1] / 2) * apart
            drawn.append(_drawn_dot(d, k, at, axes, radius))
    parts = [_title(LEFT, title), *legend]
    parts += [*_frame(axes, "", y_label, None), _clipped(axes, drawn, "dots")]
    parts += _state_names(states, box, column)
    return svg(title, description, width, height, parts)


def _drawn_dot(dots: Dots, k: int, at: float, axes: _Axes, radius: float) -> str:
    """The dot of the k-th state, with its bar."""
    y = float(np.asarray(dots.y, dtype=float)[k])
    if not math.isfinite(y):
        return ""
    bar = ""
    if dots.low is not None and dots.high is not None:
        ends = [float(axes.down(np.asarray(e, dtype=float)[k])) for e in (dots.low, dots.high)]
        if all(map(math.isfinite, ends)):
            bar = f'<path d="M{at:.1f} {ends[0]:.1f}V{ends[1]:.1f}" stroke="{dots.colour}" '
            bar += 'stroke-width="1.6" opacity="0.55"/>'
    return bar + _placed(at, y, dots, axes, radius)


def _placed(x: float, y: float, dots: Dots | Mark, axes: _Axes, radius: float) -> str:
    """A dot; beyond the frame an arrow at its edge, which tells the number to who points at it."""
    low, high = axes.y
    if low <= y <= high:
        return _dot(x, float(axes.down(y)), dots, radius)
    _, top, _, bottom = axes.box
    edge, way = (top + 1, 1) if y > high else (bottom - 1, -1)
    half, long = max(radius, 4.0), 2.2 * max(radius, 4.0)
    told = f"{dots.name}: {short_number(float(f'{y:.3g}'))}, off the scale".removeprefix(": ")
    return (
        f'<path data-off="" d="M{x:.1f} {edge:.1f}l{-half:.1f} {way * long:.1f}h{2 * half:.1f}z" '
        f'fill="{dots.colour}" stroke="{PAPER}" stroke-width="0.8">'
        f"<title>{escaped(told)}</title></path>"
    )


def _state_names(states: Sequence[str], box: tuple[float, ...], column: float) -> list[str]:
    """Names below the columns: all of them, or every so many that there is room."""
    cut = [name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…" for name in states]
    widest = max((len(name) for name in cut), default=1) * FONT * LETTER + 8
    each = max(1, math.ceil(widest / column))
    return [
        _text(box[0] + (k + 0.5) * column, box[3] + 17, cut[k], anchor="middle")
        for k in range(0, len(cut), each)
    ]


def heat_map(
    title: str,
    grid: ArrayLike,
    *,
    limits: tuple[float, float] | None = None,
    labels: Sequence[Sequence[str]] | None = None,
    ends: tuple[str, str] = ("#f1f6fb", "#0b5394"),
    unit: str = "",
    description: str = "",
    cell: int = 46,
) -> str:
    """A map of a grid: a coloured square for each number, with the number in it.

    Parameters
    ----------
    title, description
        Above the map; for those who do not see it.
    grid
        A number for each row and column; NaN leaves a square empty.
    limits
        Numbers of the lightest and the darkest colour; default: the smallest and largest.
    labels
        Text in each square; default: its number.
    ends
        The two colours, as ``#rrggbb``.
    unit
        What the colours mean, below the map.
    cell
        Side of a square in pixels.

    Examples
    --------
    >>> heat_map("value", [[0.0, 1.0], [0.5, float("nan")]]).count("<rect")  # one shows the scale
    5
    """
    numbers = np.atleast_2d(np.asarray(grid, dtype=float))
    known = numbers[np.isfinite(numbers)]
    low, high = limits or ((known.min(), known.max()) if known.size else (0.0, 1.0))
    rows, columns = numbers.shape
    width, parts = max(cell * columns + 12, 200), []
    for i in range(rows):
        for j in range(columns):
            text = labels[i][j] if labels is not None else None
            parts.append(_square(numbers[i, j], text, (6 + j * cell, TOP + i * cell), cell,
                                 (low, high), ends))  # fmt: skip
    bottom = TOP + rows * cell
    scale = f'<linearGradient id="{_identity(ends)}">'
    scale += "".join(f'<stop offset="{k}" stop-color="{c}"/>' for k, c in enumerate(ends))
    parts.append(f"<defs>{scale}</linearGradient></defs>")
    bar = f'<rect x="6" y="{bottom + 10}" width="90" height="10" fill="url(#{_identity(ends)})"/>'
    span = f"{short_number(float(low))} to {short_number(float(high))}"
    parts += [bar, _text(102, bottom + 20, f"{span} {unit}".strip())]
    parts.insert(0, _title(6, title))
    return svg(title, description, width, bottom + 30, parts)


def _identity(ends: tuple[str, str]) -> str:
    return f"rv{ends[0][1:]}{ends[1][1:]}"


def _square(
    number: float,
    text: str | None,
    at: tuple[float, float],
    cell: int,
    limits: tuple[float, float],
    ends: tuple[str, str],
) -> str:
    """A square of a map."""
    x, y = at
    if math.isfinite(number):
        span = limits[1] - limits[0]
        share = min(1.0, max(0.0, (number - limits[0]) / span)) if span > 0 else 0.0
        fill = _shade(share, *ends)
        ink = "#ffffff" if share > 0.55 else "#222222"
        told = short_number(float(number)) if text is None else text
    else:
        fill, ink, told = "none", SOFT, text or ""
    square = f'<rect x="{x}" y="{y}" width="{cell - 2}" height="{cell - 2}" rx="3" fill="{fill}"'
    size = f' font-size="{min(FONT, 1.6 * cell / max(len(told), 3)):.1f}"'
    written = _text(x + cell / 2 - 1, y + cell / 2 + 4, told, anchor="middle", ink=ink, more=size)
    return f'{square} stroke="{GRID}"/>{written if told else ""}'
