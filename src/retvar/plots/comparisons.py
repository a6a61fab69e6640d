"""Ratios of errors between methods, with intervals: who is better, when, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from retvar.errors import InputError
from retvar.plots import legend, swept
from retvar.plots import series as s
from retvar.plots.scales import powers
from retvar.plots.style import INK, LINE, RC, SOFT, Array, text_size
from retvar.sweep.comparison import Comparison, compare
from retvar.sweep.format import TITLES, can_decide

if TYPE_CHECKING:
    import xarray

__all__ = ["comparison"]

ROW, LEAST = 0.2, 3.8  # inches: the height of a line, and the least width of the figure
FARTHEST = 30.0  # a ratio beyond this is at the edge
FEW = 12  # domains that may have a line each
SHARE = 0.98  # of the domains lie within the panel
PANEL, GAP = 2.2, 0.07  # inches: the width of a panel, and the least between labels
LADDERS = (  # ratios for ticks, the closest first
    *([round(1 + k * step, 2) for k in range(-9, 10)] for step in (0.02, 0.05, 0.1)),
    [0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.4, 1.7, 2.0, 2.5],
    [0.4, 0.5, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 2.5],
    [0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0],
    [0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0],
    [0.1, 0.3, 1.0, 3.0, 10.0],
)
POINT: Any = {"marker": "o", "ms": 5, "mec": "white", "mew": 0.5, "ls": "none"}
DOT: Any = {"marker": "|", "ms": 7, "mew": 0.7, "alpha": 0.45, "ls": "none", "zorder": 1}


@dataclass(frozen=True, eq=False)
class Row:
    """A line of the figure."""

    label: str
    ratio: float
    low: float
    high: float
    domains: Array
    winner: str


def comparison(
    data: xarray.Dataset | Comparison, *, settings: Sequence[str] | None = None, **how: Any
) -> Figure:
    """Draw the ratio of errors for each pair of methods: over all domains, and on each.

    A panel for each way of choosing settings and pair of methods, a line for each question asked
    (each λ, say). Points with intervals are over all domains and have the colour of the method that
    is surely better, grey where none is; strokes are single domains. Where one question was asked,
    up to 12 domains have lines of their own.

    Parameters
    ----------
    data
        What a sweep collected, or what :func:`retvar.sweep.compare` made of it.
    settings
        Some of ``"best"``, ``"shared"`` and ``"typical"``; default: all.
    how
        For :func:`retvar.sweep.compare`, which is called for a dataset.

    Returns
    -------
    Figure
        See :func:`save`.

    Examples
    --------
    >>> import retvar as rv
    >>> learners = rv.grid(rv.Direct, rv.VTD, alpha=[0.01, 0.1], lam=[0.0, 0.9])
    >>> record = rv.Record(at=[100], rmse=True)
    >>> mdp = rv.domains.complex_mdp()
    >>> data = rv.simulate(mdp, learners, steps=100, runs=8, seed=0, record=record, keep="runs")
    >>> figure = rv.plots.comparison(data, settings=["best"])
    >>> [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    ['λ = 0', 'λ = 0.9']
    """
    found = (data if isinstance(data, Comparison) else compare(data, **how)).data
    there = [str(way) for way in found.settings.values]
    ways = there if settings is None else list(settings)
    if not ways or not set(ways) <= set(there):
        raise InputError("settings", ways, f"must be some of {', '.join(there)}")
    pairs = [str(pair) for pair in found.pair.values]
    rows = {(way, pair): list(_rows(found.sel(settings=way, pair=pair)))
            for way in ways for pair in pairs}  # fmt: skip
    lines = len(next(iter(rows.values())))
    with matplotlib.rc_context(RC):
        height = 0.6 + (ROW * max(lines, 2) + 0.75) * len(ways)
        widest = max(text_size(row.label, RC["font.size"])[0] for row in next(iter(rows.values())))
        width = 0.3 + widest + (PANEL + 0.25) * len(pairs)
        figure = Figure(figsize=(max(width, LEAST), height), layout="constrained")
        axes = figure.subplots(len(ways), len(pairs), squeeze=False, sharey=True)
        limits = _limits([row for panel in rows.values() for row in panel])
        for ax, ((way, pair), panel) in zip(axes.ravel(), rows.items(), strict=True):
            _panel(ax, panel, limits)
            a, b = (swept.method_title(name) for name in pair.split(" / "))
            if way == ways[-1]:
                ax.set_xlabel(f"error of {a} / error of {b}")
            if pair == pairs[0]:
                ax.set_title(TITLES[way])
        _key(figure, found, rows)
        return figure


def _rows(one: xarray.Dataset) -> Iterator[Row]:
    """By question, with domains as strokes; with one question, a few domains have own lines."""
    single = one.isel(domain=slice(None, -1))
    domains = single.sizes["domain"]
    if one.sizes["question"] == 1 and domains <= FEW:
        lines = one.isel(question=0, domain=slice(None, domains + (domains > 1)))
        for k in range(lines.sizes["domain"]):
            row = lines.isel(domain=k)
            yield _row(str(row.domain.item()), row, np.zeros(0))
        return
    for question in one.question.values:
        row = one.sel(question=question).isel(domain=0 if domains == 1 else -1)
        strokes = single.ratio.sel(question=question).values if domains > 1 else np.zeros(0)
        yield _row(swept.question_title(str(question)) or "all", row, strokes)


def _row(label: str, row: xarray.Dataset, strokes: Array) -> Row:
    ratio, low, high = (float(row[name]) for name in ("ratio", "low", "high"))
    return Row(label, ratio, low, high, strokes, str(row.winner.item()))


def _limits(rows: list[Row]) -> tuple[float, float]:
    """Room for intervals and most domains, the same on both sides of 1."""
    with np.errstate(divide="ignore"):  # a ratio of 0 is infinitely far from 1
        ends = np.abs(np.log([x for row in rows for x in (row.low, row.high)]))
        strokes = np.abs(np.log(np.concatenate([row.domains for row in rows])))
    far = np.append(ends[np.isfinite(ends)], 0.05)
    near = strokes[np.isfinite(strokes)]
    reach = max(far.max(), float(np.quantile(near, SHARE)) if near.size else 0.0)
    reach = min(1.08 * reach, np.log(FARTHEST))
    return float(np.exp(-reach)), float(np.exp(reach))


def _panel(ax: Axes, rows: list[Row], limits: tuple[float, float]) -> None:
    ax.set_xscale("log")
    ax.set_xlim(*limits)
    ticks = _ticks(*limits)
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    ax.xaxis.set_major_formatter(FixedFormatter(powers(ticks)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.grid(axis="x", **s.GRID)
    ax.set_axisbelow(True)
    ax.axvline(1, color=INK, lw=0.8, zorder=2)
    for k, row in enumerate(rows):
        look = swept.look_of(row.winner, k) if row.winner else s.Look(SOFT, "o")
        low, middle, high = np.clip([row.low, row.ratio, row.high], *limits)
        ax.plot(np.clip(row.domains, *limits), np.full(row.domains.size, k), color=LINE, **DOT)
        for colour, lw in (("white", 4.4), (look.colour, 2.4)):  # apart from the strokes
            ax.plot([low, high], [k, k], color=colour, lw=lw, solid_capstyle="butt", zorder=3)
        ax.plot(middle, k, color=look.colour, zorder=4, gid="ratio", **POINT)
    ax.set_yticks(range(len(rows)), [row.label for row in rows])
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)


def _ticks(low: float, high: float) -> list[float]:
    """Round ratios on both sides of 1, as many as have room.

    >>> _ticks(0.55, 1.8), _ticks(0.03, 30.0)
    ([0.6, 0.8, 1.0, 1.25, 1.5], [0.1, 0.3, 1.0, 3.0, 10.0])
    """
    for ladder in LADDERS:
        ticks = [t for t in ladder if low <= t <= high]
        if min(ticks) < 1 < max(ticks) and _apart(ticks, PANEL / np.log(high / low)):
            break
    return ticks


def _apart(ticks: list[float], scale: float) -> bool:
    """Whether labels have room on an axis with so many inches to a factor of e."""
    widths = np.array([text_size(text, RC["font.size"])[0] for text in powers(ticks)])
    return bool(np.all(scale * np.diff(np.log(ticks)) > (widths[1:] + widths[:-1]) / 2 + GAP))


def _key(figure: Figure, found: xarray.Dataset, rows: Any) -> None:
    told = found.attrs
    winners = {row.winner for panel in rows.values() for row in panel}
    methods = list(dict.fromkeys(name for pair in found.pair.values for name in pair.split(" / ")))
    entries: list[Any] = [
        (_swatch(swept.look_of(m, k).colour), f"{swept.method_title(m)} is better")
        for k, m in enumerate(methods)
        if m in winners
    ]
    if "" in winners:
        decided = can_decide(found.isel(domain=0 if found.sizes["domain"] == 2 else -1))
        few = "" if decided else f" (too few {told['over']})"
        entries.append((_swatch(SOFT), f"not sure{few}"))
    if any(row.domains.size for panel in rows.values() for row in panel):
        entries.append((Line2D([], [], color=LINE, **DOT), "single domains"))
    title = f"at {told['at']}, {told['level']:.0%} intervals over {told['over']}"
    legend.key(figure, entries, title=title, title_fontsize=8)


def _swatch(colour: str) -> Line2D:
    return Line2D([], [], color=colour, lw=2.2, marker="o", ms=5, mec="white", mew=0.5)
