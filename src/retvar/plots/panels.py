"""The grammar of figures with lines: panels of lines with bands, their axes, ticks and labels.

A figure first makes its data, a list of :class:`Panel` and an :class:`XAxis`; :func:`panels` draws
them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedFormatter, FixedLocator, LogLocator, NullLocator
from scipy.optimize import isotonic_regression

from retvar.plots import style
from retvar.plots.style import Array, Entry, Figure, LineStyle
from retvar.support.format import short_number

SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
MAX_TICKS = 6
LABEL_SIZE = 8.0  # points


class Line(NamedTuple):
    """A line with its band."""

    x: Array
    y: Array
    look: LineStyle
    band: tuple[Array, Array] | None = None  #: lower and upper edge
    end: str = ""  #: text where it ends
    markers: Any = None  #: ``markevery`` of matplotlib
    outlined: bool = False  #: whether the band has outlines, which tell bands apart in grey
    name: str = ""  #: before the texts of diverged runs
    diverged: Mapping[float, str] = MappingProxyType({})  #: where runs diverged: texts above
    points: tuple[Any, Any, Mapping[str, Any]] | None = None  #: more points: x, y, their look


class Panel(NamedTuple):
    """The content of a panel."""

    title: str
    lines: list[Line]
    truth: Sequence[float] = ()  #: heights of dashed lines
    limits: tuple[float, float] | None = None  #: of the y axis; default: of matplotlib
    ylabel: str = ""  #: drawn at the first panel of each row
    log: bool = False  #: whether the y axis is logarithmic; it has limits then


class XAxis(NamedTuple):
    """The x axis of all panels; by default, limits and ticks are those of matplotlib."""

    label: str
    limits: tuple[float, float] | None = None
    ticks: Sequence[float] = ()
    names: Sequence[str] | None = None  #: of the ticks; default: numbers
    base: int = 0  #: of a logarithmic axis, which is linear from a tick at 0 to the next

    def set_up(self, ax: Axes) -> None:
        """Set scale, limits and ticks."""
        if self.base and 0 in self.ticks:
            ax.set_xscale("symlog", base=self.base, linthresh=self.ticks[1])
        elif self.base:
            ax.set_xscale("log", base=self.base)
        if self.limits:
            ax.set_xlim(self.limits)
        if self.ticks:
            fixed_ticks(ax.xaxis, self.ticks, self.names)
        else:
            ax.locator_params(axis="x", nbins=5)


@style.styled
def panels(
    content: Sequence[Panel],
    x_axis: XAxis,
    size: tuple[int, float, float],
    legend: Sequence[Entry] = (),
    **legend_options: Any,
) -> Figure:
    """Draw panels of lines.

    `size` has the columns, the width of the figure and the height of a row in inches. Panels with
    the same limits as the one to the left have no tick labels.
    """
    columns = min(size[0], len(content))
    rows = -(-len(content) // columns)
    figure = Figure(figsize=(size[1], size[2] * rows), layout="constrained")
    for k, panel in enumerate(content):
        ax = figure.add_subplot(rows, columns, k + 1, axisbelow=True)
        ax.grid(axis="y", **style.GRID)
        x_axis.set_up(ax)
        first = k % columns == 0
        if panel.limits is not None:
            ax.set(ylim=panel.limits, yscale="log" if panel.log else "linear")
            if panel.log:
                fixed_ticks(ax.yaxis, log_ticks(*panel.limits))
            else:
                ax.locator_params(axis="y", nbins=round(2.2 * size[2]))
            ax.tick_params(labelleft=first or panel.limits != content[k - 1].limits)
        for line in panel.lines:
            _draw_line(ax, line)
        for height in panel.truth:
            ax.axhline(height, **style.TRUTH)
        _write_above(ax, panel)
        _write_ends(ax, panel.lines, 1.15 * LABEL_SIZE / (50 * size[2]))
        ax.set_xlabel(x_axis.label if k + columns >= len(content) else "")
        ax.set_ylabel(panel.ylabel if first else "")
    figure.align_titles()
    if legend:
        style.add_legend(figure, legend, **legend_options)
    return figure


def _draw_line(ax: Axes, line: Line) -> None:
    """Draw a line with its band; a logarithmic y axis and its limits are set before."""
    ax.plot(line.x, line.y, **line.look.plot_options(markevery=line.markers))
    if line.points is not None:
        x, y, look = line.points
        ax.plot(x, y, **look)
    if line.band is None or not np.isfinite(line.band[1]).any():
        return
    low, high = line.band
    if ax.get_yscale() == "log":  # negative ends run out of the panel
        low = np.where(np.isnan(low), low, np.maximum(low, ax.get_ylim()[0] / 2))
    colour = line.look.colour
    ax.fill_between(line.x, low, high, color=colour, alpha=style.BAND_ALPHA, lw=0, zorder=2)
    for edge in (low, high) if line.outlined else ():
        ax.plot(line.x, edge, color=colour, ls=line.look.dash, lw=0.6, alpha=0.8, zorder=2)


def _write_above(ax: Axes, panel: Panel) -> None:
    """Write the title, and below it a row for each line with diverged runs."""
    rows = [line for line in panel.lines[::-1] if line.diverged]
    ax.set_title(panel.title, pad=6 + 12 * len(rows))
    for k, line in enumerate(rows):
        look: Any = {"color": line.look.text_colour, "fontsize": LABEL_SIZE, "gid": "diverged"}
        at: Any = (0, 4 + 12 * k), "axes fraction", "offset points"
        ax.annotate(line.name, (0, 1), *at, **look)
        for x, text in line.diverged.items():
            at = at[0], ("data", "axes fraction"), "offset points"
            ax.annotate(text, (x, 1), *at, ha="center", **look)


def _write_ends(ax: Axes, lines: Sequence[Line], gap: float) -> None:
    """Write texts where lines end, this share of the panel apart; arrows mark lines beyond it."""
    named = [line for line in lines if line.end and np.isfinite(line.y).any()]
    if not named:
        return
    ends = np.array([line.y[np.isfinite(line.y)][-1] for line in named])
    low, high = ax.get_ylim()
    points = np.stack([np.full(ends.size, ax.get_xlim()[1]), np.clip(ends, low, high)], axis=1)
    wanted = (ax.transScale + ax.transLimits).transform(points)[:, 1]
    order, steps = np.argsort(wanted, kind="stable"), gap * np.arange(ends.size)
    nearest = isotonic_regression(wanted[order] - steps).x  # the nearest that are a gap apart
    heights = np.clip(nearest, 0, max(0, 1 - steps[-1])) + steps
    for k, height in sorted(zip(order.tolist(), heights, strict=True)):
        text = named[k].end + ("↑" if ends[k] > high else "↓" if ends[k] < low else "")
        look: Any = {"fontsize": LABEL_SIZE, "color": named[k].look.text_colour, "va": "center"}
        look |= {"textcoords": "offset points", "annotation_clip": False, "gid": "end"}
        ax.annotate(text, (1, height), (5, 0), "axes fraction", **look)


def largest_magnitude(*values: Array) -> float:
    """The largest absolute value; 0 if there are no numbers."""
    return float(max((np.nanmax(np.abs(v), initial=0.0) for v in values), default=0.0))


def common_factor(*values: Array) -> tuple[float, str]:
    """A power of ten to divide huge or tiny numbers by, and how to write it at an axis."""
    size = largest_magnitude(*values)
    power = math.floor(math.log10(size)) if size else 0
    if -3 <= power < 5:
        return 1.0, ""
    power = power // 3 * 3
    return 10.0**power, f" (×10{str(power).translate(SUPERSCRIPT)})"


def value_range(*values: Array) -> tuple[float, float]:
    """The least and the largest number, moved apart if they are equal."""
    every = np.concatenate([np.ravel(v) for v in values])
    every = every[np.isfinite(every)]
    low, high = (float(every.min()), float(every.max())) if every.size else (0.0, 0.0)
    if high - low > 1e-9 * max(abs(low), abs(high)):
        return low, high
    margin = max(0.25 * abs(low), 0.5 * (low == 0))
    return low - margin, high + margin


def fixed_ticks(axis: Any, ticks: Sequence[float], labels: Sequence[str] | None = None) -> None:
    """Set the ticks of an axis, with their labels (default: numbers) and no minor ticks."""
    axis.set_major_locator(FixedLocator(list(ticks)))
    axis.set_major_formatter(FixedFormatter(list(tick_labels(ticks) if labels is None else labels)))
    axis.set_minor_locator(NullLocator())


def name_rows(ax: Axes, names: Sequence[str], **look: Any) -> None:
    """Set up rows from top to bottom, with their names instead of ticks."""
    ax.set(ylim=(len(names) - 0.4, -0.6), axisbelow=True)
    ax.set_yticks(range(len(names)), names, **look)
    ax.tick_params(axis="y", length=0)


def tick_labels(values: Sequence[float], base: int = 10) -> list[str]:
    """Labels of ticks: powers of the base where all are such and some are long, else numbers.

    >>> tick_labels([0.01, 0.1, 1.0]), tick_labels([0.0, 1e-5, 0.1]), tick_labels([500.0, 2000.0])
    (['0.01', '0.1', '1'], ['0', '10⁻⁵', '10⁻¹'], ['500', '2000'])
    >>> tick_labels([2**-9, 1.0], 2), tick_labels([0.99991, 0.99992])
    (['2⁻⁹', '1'], ['0.99991', '0.99992'])
    """
    powers = [math.log(value, base) for value in values if value > 0]
    long = base != 10 or any(abs(power) > 3 for power in powers)
    if long and all(abs(power - round(power)) <= 1e-9 for power in powers):
        raised = iter(f"{base}{str(round(power)).translate(SUPERSCRIPT)}" for power in powers)
        texts = [next(raised) if value > 0 else "0" for value in values]
        return ["1" if value == 1 else text for value, text in zip(values, texts, strict=True)]
    texts, digits = [short_number(value) for value in values], 4
    while len(set(texts)) < len(set(values)):
        digits += 1
        texts = [f"{value:.{digits}g}".replace("-", "−") for value in values]
    return texts


def log_ticks(low: float, high: float, most: int = 12) -> list[float]:
    """Round numbers on a logarithmic axis: powers of ten; over a short range also others."""
    sets: list[Any] = [(1.0,), (1.0, 2.0, 5.0), np.arange(1, 10, 0.5)]
    found: list[float] = []
    for subs in sets[math.log10(high / low) <= 2.6 and most > MAX_TICKS :]:
        near = LogLocator(subs=subs, numticks=99).tick_values(low, high)
        inside = (t for t in near if low * (1 - 1e-6) <= t <= high * (1 + 1e-6))
        found = list(dict.fromkeys(float(f"{t:.2g}") for t in inside))
        if len(found) > 1:
            break
    return found[:: -(-len(found) // most)]


def axis_ticks(values: Sequence[float], log: bool) -> list[float]:
    """Ticks: at the values, or at round numbers where those are long."""
    ticks = list(values)
    if log and (len(ticks) > MAX_TICKS or any(float(f"{x:.2g}") != x for x in ticks)):
        found = log_ticks(min(ticks), max(ticks), MAX_TICKS)
        ticks = found if len(found) > 1 else ticks
    return ticks[:: -(-len(ticks) // MAX_TICKS)]


def spaced_by_factors(values: Sequence[float]) -> bool:
    """Whether numbers suit a logarithmic axis: positive and evenly spaced by factors, not steps."""
    x = np.asarray(values)
    if (x <= 0).any() or x.size < 2:
        return False
    uneven = [np.ptp(steps) / steps.mean() for steps in (np.diff(np.log(x)), np.diff(x))]
    return bool(uneven[0] < uneven[1] or x[-1] > 50 * x[0])


def logarithmic(content: Sequence[Panel], ylabel: str, values: Array | None = None) -> list[Panel]:
    """Panels with the same logarithmic y axis, wide enough for these values, or for all lines."""
    if values is None:
        values = np.concatenate([line.y for panel in content for line in panel.lines])
    positive = values[np.isfinite(values) & (values > 0)]
    low, high = (positive.min(), positive.max()) if positive.size else (0.1, 1.0)
    margin = max(1.1, (high / low) ** 0.06)
    limits = float(low / margin), float(high * margin)
    return [panel._replace(limits=limits, ylabel=ylabel, log=True) for panel in content]


def log_x_axis(values: Sequence[float] | Array, label: str, base: int = 10) -> XAxis:
    """A logarithmic x axis with ticks at these values, of which the least may be 0."""
    known: list[float] = np.unique(values).tolist()
    low = known[0] / base**0.35 if known[0] > 0 else -0.35 * min(known[1:], default=1.0)
    return XAxis(label, (low, known[-1] * base**0.35), known, tick_labels(known, base), base)
