"""Ratios of errors between methods, with intervals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from retvar import arguments
from retvar.errors import InputError
from retvar.plots.axes import fixed_ticks, tick_labels
from retvar.plots.notebook_figures import Figure
from retvar.plots.style import (
    GRID,
    INK,
    LINE,
    RC,
    SOFT,
    Array,
    LineStyle,
    add_legend,
    shown,
    text_size,
)
from retvar.plots.sweep_errors import method_name, method_style, question_title
from retvar.sweep.comparison import Comparison, compare
from retvar.sweep.format import TITLES, can_decide

if TYPE_CHECKING:
    import xarray

__all__ = ["comparison"]

ROW_HEIGHT, MIN_WIDTH = 0.2, 3.8  # inches
PANEL, LABEL_GAP = 2.2, 0.07  # inches: the width of a panel, the least gap between tick labels
MAX_RATIO = 30.0  # ratios beyond this are drawn at the edge
MAX_DOMAIN_ROWS = 12  # domains that may have a row each
SHARE = 0.98  # of the domains lie within the panel
TICK_SETS = (  # the densest first
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
    """A row of a panel."""

    label: str
    ratio: float
    low: float
    high: float
    domains: Array  #: ratios of single domains
    winner: str  #: the method that is surely better, or empty


def comparison(
    data: xarray.Dataset | Comparison, *, settings: Sequence[str] | None = None, **how: Any
) -> Figure:
    """Draw the ratio of errors of each pair of methods, over all domains and on each.

    There is a panel for each way of choosing settings and pair of methods, and a row for each γ, λ
    and estimand. Points with intervals are over all domains and have the colour of the method that
    is surely better, or grey; strokes are single domains. With a single γ, λ and estimand, up to 12
    domains have rows of their own.

    Parameters
    ----------
    data
        A collected sweep, or the result of :func:`retvar.sweep.compare`.
    settings
        Some of ``"best"``, ``"shared"`` and ``"typical"``; default: all.
    how
        Options of :func:`retvar.sweep.compare`, which is called for a dataset.

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
    wanted = None if settings is None else arguments.texts("settings", settings)
    found = (data if isinstance(data, Comparison) else compare(data, **how)).data
    known = [str(choice) for choice in found.settings.values]
    choices = known if wanted is None else list(wanted)
    if not choices or not set(choices) <= set(known):
        raise InputError("settings", choices, f"must be some of {', '.join(known)}")
    pairs = [str(pair) for pair in found.pair.values]
    panels = {
        (choice, pair): list(_rows(found.sel(settings=choice, pair=pair)))
        for choice in choices
        for pair in pairs
    }
    rows = [row for panel in panels.values() for row in panel]
    labels = [row.label for row in next(iter(panels.values()))]
    with matplotlib.rc_context(RC):
        height = 0.6 + (ROW_HEIGHT * max(len(labels), 2) + 0.75) * len(choices)
        widest = max(text_size(label, RC["font.size"])[0] for label in labels)
        width = 0.3 + widest + (PANEL + 0.25) * len(pairs)
        figure = Figure(figsize=(max(width, MIN_WIDTH), height), layout="constrained")
        axes = figure.subplots(len(choices), len(pairs), squeeze=False, sharey=True)
        limits = _limits(rows)
        for ax, ((choice, pair), panel) in zip(axes.ravel(), panels.items(), strict=True):
            _draw_panel(ax, panel, limits)
            a, b = (method_name(name) for name in pair.split(" / "))
            if choice == choices[-1]:
                ax.set_xlabel(f"error of {a} / error of {b}")
            if pair == pairs[0]:
                ax.set_title(TITLES[choice])
        _add_legend(figure, found, rows)
        return figure


def _rows(one: xarray.Dataset) -> Iterator[Row]:
    """A row per question with domains as strokes, or, with one question, a row per domain."""
    single = one.isel(domain=slice(None, -1))
    domains = single.sizes["domain"]
    if one.sizes["question"] == 1 and domains <= MAX_DOMAIN_ROWS:
        table = one.isel(question=0, domain=slice(None, domains + (domains > 1)))
        for k in range(table.sizes["domain"]):
            row = table.isel(domain=k)
            yield _row(shown(str(row.domain.item())), row, np.zeros(0))
        return
    for question in one.question.values:
        row = one.sel(question=question).isel(domain=0 if domains == 1 else -1)
        strokes = single.ratio.sel(question=question).values if domains > 1 else np.zeros(0)
        yield _row(question_title(str(question)) or "all", row, strokes)


def _row(label: str, row: xarray.Dataset, strokes: Array) -> Row:
    ratio, low, high = (float(row[name]) for name in ("ratio", "low", "high"))
    return Row(label, ratio, low, high, strokes, str(row.winner.item()))


def _limits(rows: list[Row]) -> tuple[float, float]:
    """Limits that contain all intervals and most domains, symmetric about 1."""
    with np.errstate(divide="ignore"):  # a ratio of 0 is infinitely far from 1
        ends = np.abs(np.log([x for row in rows for x in (row.low, row.high)]))
        strokes = np.abs(np.log(np.concatenate([row.domains for row in rows])))
    far = np.append(ends[np.isfinite(ends)], 0.05)
    near = strokes[np.isfinite(strokes)]
    reach = max(far.max(), float(np.quantile(near, SHARE)) if near.size else 0.0)
    reach = min(1.08 * reach, np.log(MAX_RATIO))
    return float(np.exp(-reach)), float(np.exp(reach))


def _draw_panel(ax: Axes, rows: list[Row], limits: tuple[float, float]) -> None:
    ax.set_xscale("log")
    ax.set_xlim(*limits)
    ticks = _ticks(*limits)
    fixed_ticks(ax.xaxis, ticks, tick_labels(ticks))
    ax.grid(axis="x", **GRID)
    ax.set_axisbelow(True)
    ax.axvline(1, color=INK, lw=0.8, zorder=2)
    for k, row in enumerate(rows):
        style = method_style(row.winner, k) if row.winner else LineStyle(SOFT, "o")
        low, middle, high = np.clip([row.low, row.ratio, row.high], *limits)
        ax.plot(np.clip(row.domains, *limits), np.full(row.domains.size, k), color=LINE, **DOT)
        for colour, lw in (("white", 4.4), (style.colour, 2.4)):  # white separates it from strokes
            ax.plot([low, high], [k, k], color=colour, lw=lw, solid_capstyle="butt", zorder=3)
        ax.plot(middle, k, color=style.colour, zorder=4, gid="ratio", **POINT)
    ax.set_yticks(range(len(rows)), [row.label for row in rows])
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)


def _ticks(low: float, high: float) -> list[float]:
    """Round ratios on both sides of 1, as many as fit.

    >>> _ticks(0.55, 1.8), _ticks(0.03, 30.0)
    ([0.6, 0.8, 1.0, 1.25, 1.5], [0.1, 0.3, 1.0, 3.0, 10.0])
    """
    for candidates in TICK_SETS:
        ticks = [t for t in candidates if low <= t <= high]
        if min(ticks) < 1 < max(ticks) and _labels_fit(ticks, PANEL / np.log(high / low)):
            break
    return ticks


def _labels_fit(ticks: list[float], scale: float) -> bool:
    """Whether labels do not touch on an axis with `scale` inches per factor of e."""
    widths = np.array([text_size(text, RC["font.size"])[0] for text in tick_labels(ticks)])
    return bool(np.all(scale * np.diff(np.log(ticks)) > (widths[1:] + widths[:-1]) / 2 + LABEL_GAP))


def _add_legend(figure: Figure, found: xarray.Dataset, rows: list[Row]) -> None:
    about = found.attrs
    winners = {row.winner for row in rows}
    methods = list(dict.fromkeys(name for pair in found.pair.values for name in pair.split(" / ")))
    entries: list[Any] = [
        (_legend_point(method_style(m, k).colour), f"{method_name(m)} is better")
        for k, m in enumerate(methods)
        if m in winners
    ]
    if "" in winners:
        decided = can_decide(found.isel(domain=0 if found.sizes["domain"] == 2 else -1))
        few = "" if decided else f" (too few {about['over']})"
        entries.append((_legend_point(SOFT), f"not sure{few}"))
    if any(row.domains.size for row in rows):
        entries.append((Line2D([], [], color=LINE, **DOT), "single domains"))
    title = f"at {about['at']}, {about['level']:.0%} intervals over {about['over']}"
    add_legend(figure, entries, title=title, title_fontsize=8)


def _legend_point(colour: str) -> Line2D:
    return Line2D([], [], color=colour, **{**POINT, "lw": 2.2, "ls": "-"})
