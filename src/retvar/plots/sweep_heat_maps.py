"""Heat maps of the error over two settings of a sweep, one for each method."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import LogNorm
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, NullLocator
from numpy.typing import NDArray

from retvar.errors import InputError
from retvar.plots.axes import fixed_ticks, tick_labels
from retvar.plots.notebook_figures import Figure
from retvar.plots.style import INK, RC, SOFT, Array
from retvar.plots.sweep_errors import (
    LONG_NAMES,
    Indices,
    SweepErrors,
    axis_ticks,
    load_errors,
    method_name,
    question_title,
    spaced_by_factors,
)
from retvar.sweep.options import ComparisonOptions

if TYPE_CHECKING:
    import xarray

__all__ = ["sweep_heat_map"]

CUTOFF = 20.0  # times the least error; larger errors have the same colour
PANEL = 2.5  # inches
HATCH: Any = {"facecolor": "#f4f4f4", "edgecolor": SOFT, "hatch": "////", "lw": 0, "zorder": 0}
OUTLINE: Any = (  # dark on light, visible on any colour
    {"color": "white", "lw": 2.6, "alpha": 0.8, "zorder": 2, "capstyle": "projecting"},
    {"color": INK, "lw": 1.2, "zorder": 3, "capstyle": "projecting"},
)
STAR: Any = {"marker": "*", "ms": 11, "mfc": "white", "mec": INK, "mew": 0.9, "ls": "none"}
CAPTION_SIZE, LETTER_WIDTH = 8, 0.062  # points, and about as many inches per letter


@dataclass(frozen=True, eq=False)
class ErrorMap:
    """The errors of a method over two settings."""

    table: Array  #: [y, x]: NaN where nothing was computed, infinite where runs diverged
    stars: list[tuple[int, int]]  #: the best cells
    contenders: list[NDArray[np.bool_]]  #: cells that are not surely worse than each star


def sweep_heat_map(
    data: xarray.Dataset,
    x: str = "alpha",
    y: str = "lam",
    by: str = "algorithm",
    options: ComparisonOptions | None = None,
    **keywords: Any,
) -> Figure:
    """Draw an error over two settings: a map for each method, all on one scale.

    Other settings are those in `where`, or the best for each domain and cell, chosen by one half of
    the runs and shown by the other. γ, λ and estimands that are not on an axis have a row of maps
    each. A star marks the best cell of each map, or of each line of cells with the same γ, λ and
    estimand. An outline around it holds all cells that are not surely worse than the best: the
    interval of the ratio of errors, paired over runs or domains, contains 1. The best cell of this
    comparison is chosen by one half of the runs (or domains) and judged by the other, so that the
    outline holds the truly best cell at least about as often as `level` says (less often with fewer
    than 8 runs or domains). Cells in which more than a quarter of the runs diverged are hatched.

    Parameters
    ----------
    data
        A collected sweep, or a simulation with ``keep="runs"``.
    x, y
        The settings along the axes.
    by
        The setting that distinguishes maps.
    options
        :class:`retvar.sweep.ComparisonOptions`; its fields may also be given as keywords. The
        default of ``resamples`` is 1,000 here.

    Examples
    --------
    >>> import retvar as rv
    >>> learners = rv.grid(rv.Direct, rv.VTD, alpha=[0.01, 0.1], alpha_bar=[0.01, 0.1])
    >>> record = rv.Record(at=[100], rmse=True)
    >>> mdp = rv.domains.complex_mdp()
    >>> data = rv.simulate(mdp, learners, steps=100, runs=8, seed=0, record=record, keep="runs")
    >>> figure = rv.plots.sweep_heat_map(data, y="alpha_bar")
    >>> [ax.get_title(loc="left") for ax in figure.axes[:2]]
    ['direct', 'VTD']
    """
    sweep = load_errors(data, by, options, **keywords)
    sweep.errors.column(x), sweep.errors.column(y)
    if x == y:
        raise InputError("y", y, "must differ from x")
    values = {name: sweep.axis_values(name) for name in (x, y)}
    methods, rows = sweep.method_learners(), sweep.questions(x, y)
    maps = {
        (question, method): _error_map(sweep, x, y, values, np.intersect1d(members, own))
        for question, members in rows.items()
        for method, own in methods.items()
    }
    tables = np.array([one.table for one in maps.values()])
    with matplotlib.rc_context(RC):
        size = (1.3 + PANEL * len(methods), 0.75 + 0.9 * PANEL * len(rows))
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(len(rows), len(methods), squeeze=False)
        norm = _norm(tables)
        for ax, ((question, method), one) in zip(axes.ravel(), maps.items(), strict=True):
            title = (method_name(method), question_title(question))
            ax.set_title(", ".join(part for part in title if part))
            _draw_map(ax, one, norm)
            _cell_ticks(ax, values[x], values[y])
        for ax in axes[-1]:
            ax.set_xlabel(LONG_NAMES.get(x, x))
        for ax in axes[:, 0]:
            ax.set_ylabel(LONG_NAMES.get(y, y))
        cut_off = bool((tables[np.isfinite(tables)] > norm.vmax).any())
        _colour_bar(figure, axes, norm, sweep.label, cut_off)
        parts = [sweep.contender_text()] * any(one.stars for one in maps.values())
        if np.isinf(tables).any():
            parts.append("hatched: more than a quarter of the runs diverged")
        caption = textwrap.wrap("; ".join(parts), int(size[0] / LETTER_WIDTH))
        figure.supxlabel("\n".join(caption), fontsize=CAPTION_SIZE)
        return figure


def _error_map(
    sweep: SweepErrors, x: str, y: str, values: dict[str, list[float]], members: Indices
) -> ErrorMap:
    """The map of the learners of one method and question."""
    columns = [np.intersect1d(members, sweep.learners_with(x, v)) for v in values[x]]
    lines = [sweep.learners_with(y, v) for v in values[y]]
    cells = [[np.intersect1d(column, line) for column in columns] for line in lines]
    split = any(cell.size > 1 for line in cells for cell in line)
    questions = sweep.questions()
    table = np.full((len(lines), len(columns)), np.nan)
    errors = np.full((*table.shape, *sweep.errors.values[:, 0].shape), np.inf)
    for at in np.ndindex(table.shape):
        cell = cells[at[0]][at[1]]
        if cell.size:
            question = next(group for group in questions.values() if cell[0] in group)
            errors[at] = sweep.best_errors(cell)
            judging = sweep.judging_runs(errors[at], split)
            table[at] = sweep.centre(sweep.log_errors(judging, question))
    stars, contenders = [], []
    for places in _rivals(table.shape, sweep.is_question(x), sweep.is_question(y)):
        finite = np.where(np.isfinite(table[places]), table[places], np.inf)
        best = int(np.argmin(finite))
        if np.isfinite(finite[best]):
            star = int(places[0][best]), int(places[1][best])
            near = np.zeros(table.shape, dtype=bool)
            near[places] = sweep.contenders(errors[places], split)
            near[np.isnan(table)] = False
            near[star] = True
            stars.append(star)
            contenders.append(near)
    return ErrorMap(table, stars, contenders)


def _rivals(
    shape: tuple[int, int], x_is_question: bool, y_is_question: bool
) -> list[tuple[Indices, Indices]]:
    """Cells that can be compared: all, those of each row or column, or none."""
    rows, columns = np.indices(shape)
    if x_is_question and y_is_question:
        return []
    if y_is_question:
        return [(rows[k], columns[k]) for k in range(shape[0])]
    if x_is_question:
        return [(rows[:, k], columns[:, k]) for k in range(shape[1])]
    return [(rows.ravel(), columns.ravel())]


def _norm(tables: Array) -> LogNorm:
    """The colour scale of all maps."""
    finite = tables[np.isfinite(tables) & (tables > 0)]
    low = finite.min(initial=np.inf) if finite.size else 1.0
    high = min(finite.max(initial=low), CUTOFF * low)
    return LogNorm(float(low), float(max(high, 1.01 * low)))


def _draw_map(ax: Axes, one: ErrorMap, norm: LogNorm) -> None:
    """Draw one map with its stars and outlines."""
    for row, column in zip(*np.nonzero(np.isinf(one.table)), strict=True):
        ax.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, gid="diverged", **HATCH))
    shown = np.ma.masked_invalid(one.table)
    grid = [np.arange(n + 1) - 0.5 for n in one.table.shape[::-1]]
    ax.pcolormesh(*grid, shown, cmap="viridis_r", norm=norm, zorder=1, rasterized=True)
    for style in OUTLINE:
        edges = [edge for inside in one.contenders for edge in _outline(inside)]
        lines = LineCollection(edges, gid="contenders", clip_on=False, **style)
        ax.add_collection(lines, autolim=False)
    for row, column in one.stars:
        ax.plot(column, row, gid="best", zorder=4, **STAR)


def _outline(inside: NDArray[np.bool_]) -> list[list[tuple[float, float]]]:
    """Edges (x, y) between cells that are inside and cells that are not.

    >>> len(_outline(np.array([[True, True], [False, True]])))
    8
    """
    padded = np.pad(inside, 1)
    found = []
    for row, column in zip(*np.nonzero(padded[:, 1:] != padded[:, :-1]), strict=True):
        found.append([(column - 0.5, row - 1.5), (column - 0.5, row - 0.5)])
    for row, column in zip(*np.nonzero(padded[1:] != padded[:-1]), strict=True):
        found.append([(column - 1.5, row - 0.5), (column - 0.5, row - 0.5)])
    return [[(float(x), float(y)) for x, y in edge] for edge in found]


def _cell_ticks(ax: Axes, x_values: list[float], y_values: list[float]) -> None:
    """Set ticks at cells, with labels at outer panels only."""
    place: Any = ax.get_subplotspec()
    for axis, values, labelled in (
        (ax.xaxis, x_values, place.is_last_row()),
        (ax.yaxis, y_values, place.is_first_col()),
    ):
        log = spaced_by_factors(values)
        ticks, texts = axis_ticks(values, log)
        texts = texts if labelled else [""] * len(texts)
        fixed_ticks(axis, _cell_positions(ticks, values, log), texts)
    ax.set(xlim=(-0.5, len(x_values) - 0.5), ylim=(-0.5, len(y_values) - 0.5))
    ax.spines[:].set_visible(False)
    ax.tick_params(length=2.5)


def _cell_positions(ticks: list[float], values: list[float], log: bool) -> list[float]:
    """Positions of numbers on an axis of cells.

    >>> _cell_positions([0.1, 1.0], [0.1, 10.0], True)
    [0.0, 0.5]
    """
    at, cells = (np.log(x) if log else np.asarray(x) for x in (ticks, values))
    return [round(float(x), 9) for x in np.interp(at, cells, np.arange(len(values)))]


def _colour_bar(figure: Figure, axes: Any, norm: LogNorm, label: str, cut_off: bool) -> None:
    """Draw the scale that all maps share."""
    low, high = float(norm.vmin or 1.0), float(norm.vmax or 1.0)
    style: Any = {"pad": 0.02, "fraction": 0.05, "aspect": 22, "extend": "max" if cut_off else None}
    bar = figure.colorbar(axes[0, 0].collections[0], ax=axes, **style)
    bar.set_label(label.replace(", ", ",\n"))
    subs = (1.0, 2.0, 5.0) if high / low > 3 else tuple(np.arange(10.0, 100.0, 5.0) / 10)
    near = LogLocator(subs=subs, numticks=20).tick_values(low, high)
    ticks = [float(t) for t in near if low * 0.999 <= t <= high * 1.001]
    bar.set_ticks(ticks, labels=tick_labels(ticks))
    bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.outline.set_visible(False)
