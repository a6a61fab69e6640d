"""Heat maps of a sweep over two settings, side by side for the methods, on one scale."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedFormatter, FixedLocator, LogLocator, NullLocator
from numpy.typing import NDArray

from retvar.errors import InputError
from retvar.plots import swept
from retvar.plots.scales import powers
from retvar.plots.style import INK, RC, SOFT, Array
from retvar.sweep import run_errors as c
from retvar.sweep.effects import centre, contenders
from retvar.sweep.options import ComparisonOptions

if TYPE_CHECKING:
    import xarray

__all__ = ["sweep_heat_map"]

FARTHEST = 20.0  # times the least; what is above has the same colour
PANEL = 2.5  # inches
HATCH: Any = {"facecolor": "#f4f4f4", "edgecolor": SOFT, "hatch": "////", "lw": 0, "zorder": 0}
OUTLINE: Any = (  # dark on light, so that it shows on any colour
    {"color": "white", "lw": 2.6, "alpha": 0.8, "zorder": 2, "capstyle": "projecting"},
    {"color": INK, "lw": 1.2, "zorder": 3, "capstyle": "projecting"},
)
CAPTION, LETTER = 8, 0.062  # points, and about the inches that a letter takes
STAR: Any = {"marker": "*", "ms": 11, "mfc": "white", "mec": INK, "mew": 0.9, "ls": "none"}


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
    the runs and shown by the other. Where the axes leave open what is asked (λ, say), each answer
    has a row of maps. The best cell has a star: of each map, or of each row of cells where that is
    a question of its own. Around it an outline holds all cells that are not surely worse than the
    best: the interval of the ratio of errors, paired over runs or domains, holds 1. What is taken
    for the best there is chosen by one half of the runs (or domains) and judged by the other, so
    that the outline holds the truly best cell about as often as `level` says, or more often (with
    fewer than 8 runs, or domains, less). Cells in which more than a quarter of the runs diverged
    are hatched.

    Parameters
    ----------
    data
        What a sweep collected, or a simulation with ``keep="runs"``.
    x, y
        The settings along the axes.
    by
        The setting that tells maps apart.
    options
        :class:`retvar.sweep.ComparisonOptions`; its fields may also be given as keywords. The
        default of ``resamples`` is 1,000 here.

    Returns
    -------
    Figure
        See :func:`save`.

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
    if x == y:
        raise InputError("y", y, "must differ from x")
    options = ComparisonOptions.of(options or swept.DEFAULTS, **keywords)
    sweep = swept.sweep_of(data, by, options)
    across, up = (swept.axis_values(sweep.errors, name) for name in (x, y))
    rows = swept.questions_without(sweep.errors, x, y)
    methods = list(sweep.errors.methods(by))
    maps = {(q, m): _map(sweep, (x, across), (y, up), members, m)
            for q, members in rows.items() for m in methods}  # fmt: skip
    tables = np.array([one.table for one in maps.values()])
    with matplotlib.rc_context(RC):
        size = (1.3 + PANEL * len(methods), 0.75 + 0.9 * PANEL * len(rows))
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(len(rows), len(methods), squeeze=False)
        norm = _norm(tables)
        for ax, ((question, method), one) in zip(axes.ravel(), maps.items(), strict=True):
            title = (swept.method_title(method), swept.question_title(question))
            ax.set_title(", ".join(part for part in title if part))
            _draw(ax, one, norm)
            _label(ax, across, up)
        for ax in axes[-1]:
            ax.set_xlabel(swept.LETTERS.get(x, x))
        for ax in axes[:, 0]:
            ax.set_ylabel(swept.LETTERS.get(y, y))
        _bar(figure, axes, norm, sweep.label, bool((tables[np.isfinite(tables)] > norm.vmax).any()))
        parts = [_told(sweep)] * any(one.stars for one in maps.values())
        parts += ["hatched: more than a quarter of the runs diverged"] * bool(
            np.isinf(tables).any()
        )
        wrapped = textwrap.wrap("; ".join(parts), int(size[0] / LETTER))
        figure.supxlabel("\n".join(wrapped), fontsize=CAPTION)
        return figure


@dataclass(frozen=True, eq=False)
class Map:
    """What is drawn of a method."""

    table: Array  #: errors by y and x: NaN where nothing was computed, infinite where it diverged
    stars: list[tuple[int, int]]  #: the best cells
    near: list[NDArray[np.bool_]]  #: cells that are not surely worse than each of these


def _map(
    sweep: swept.Sweep,
    x: tuple[str, Any],
    y: tuple[str, Any],
    members: c.Indices,
    method: str,
) -> Map:
    own = np.intersect1d(members, sweep.errors.methods(sweep.by)[method])
    columns = {v: np.intersect1d(own, swept.having(sweep.errors, x[0], v)) for v in x[1]}
    lines = {v: swept.having(sweep.errors, y[0], v) for v in y[1]}
    cells = [[np.intersect1d(column, line) for column in columns.values()]
             for line in lines.values()]  # fmt: skip
    split = any(cell.size > 1 for line in cells for cell in line)
    questions = swept.questions_without(sweep.errors)
    table = np.full((len(y[1]), len(x[1])), np.nan)
    runs = np.full((*table.shape, *sweep.errors.values[:, 0].shape), np.inf)
    for at in np.ndindex(table.shape):
        cell = cells[at[0]][at[1]]
        if cell.size:
            same = next(group for group in questions.values() if cell[0] in group)
            runs[at] = sweep.runs(cell)
            shown = sweep.judging(runs[at], split)
            table[at] = np.exp(centre(sweep.logs(shown, same), (-2, -1)))
    stars, near = [], []
    asked = {"x": x[0] in c.QUESTION_SETTINGS, "y": y[0] in c.QUESTION_SETTINGS}
    for places in _rivals(table.shape, asked):
        errors = np.where(np.isfinite(table[places]), table[places], np.inf)
        best = int(np.argmin(errors))
        if np.isfinite(errors[best]):
            stars.append((int(places[0][best]), int(places[1][best])))
            near.append(np.zeros(table.shape, dtype=bool))
            near[-1][places] = contenders(runs[places], sweep.options, split=split)
            near[-1][np.isnan(table)] = False
            near[-1][stars[-1]] = True
    return Map(table, stars, near)


def _rivals(shape: tuple[int, int], asked: dict[str, bool]) -> list[tuple[c.Indices, c.Indices]]:
    """Cells that compete: all, or each line of cells that is a question of its own, or none."""
    rows, columns = np.indices(shape)
    if asked["x"] and asked["y"]:
        return []
    if asked["y"]:
        return [(rows[k], columns[k]) for k in range(shape[0])]
    if asked["x"]:
        return [(rows[:, k], columns[:, k]) for k in range(shape[1])]
    return [(rows.ravel(), columns.ravel())]


def _told(sweep: swept.Sweep) -> str:
    """What stars and outlines are."""
    domains, _, runs = sweep.errors.values.shape
    judging = f"{domains // 2} domains" if sweep.options.over == "domains" else f"{runs // 2} runs"
    return (
        f"star: best; outline: not surely worse ({sweep.options.level:.0%} interval of the ratio "
        f"to the best, over {judging}, holds 1)"
    )


def _norm(tables: Array) -> LogNorm:
    finite = tables[np.isfinite(tables) & (tables > 0)]
    low = finite.min(initial=np.inf) if finite.size else 1.0
    high = min(finite.max(initial=low), FARTHEST * low)
    return LogNorm(float(low), float(max(high, 1.01 * low)))


def _draw(ax: Axes, one: Map, norm: LogNorm) -> None:
    """One map with its stars and the outline around them."""
    for row, column in zip(*np.nonzero(np.isinf(one.table)), strict=True):
        ax.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, gid="diverged", **HATCH))
    shown = np.ma.masked_invalid(one.table)
    grid = [np.arange(n + 1) - 0.5 for n in one.table.shape[::-1]]
    ax.pcolormesh(*grid, shown, cmap="viridis_r", norm=norm, zorder=1, rasterized=True)
    for look in OUTLINE:
        edges = [edge for inside in one.near for edge in _outline(inside)]
        lines = LineCollection(edges, gid="contenders", clip_on=False, **look)
        ax.add_collection(lines, autolim=False)
    for row, column in one.stars:
        ax.plot(column, row, gid="best", zorder=4, **STAR)


def _outline(inside: NDArray[np.bool_]) -> list[list[tuple[float, float]]]:
    """Edges (x, y) between cells that are inside and those that are not.

    >>> len(_outline(np.array([[True, True], [False, True]])))
    8
    """
    framed = np.pad(inside, 1)
    found = []
    for row, column in zip(*np.nonzero(framed[:, 1:] != framed[:, :-1]), strict=True):
        found.append([(column - 0.5, row - 1.5), (column - 0.5, row - 0.5)])
    for row, column in zip(*np.nonzero(framed[1:] != framed[:-1]), strict=True):
        found.append([(column - 1.5, row - 0.5), (column - 0.5, row - 0.5)])
    return [[(float(x), float(y)) for x, y in edge] for edge in found]


def _label(ax: Axes, across: list[float], up: list[float]) -> None:
    """Ticks at cells; inner panels have none."""
    place: Any = ax.get_subplotspec()
    for axis, values, shown in (
        (ax.xaxis, across, place.is_last_row()),
        (ax.yaxis, up, place.is_first_col()),
    ):
        log = swept.spaced_by_factors(values)
        ticks, texts = swept.ticks_of(values, log)
        axis.set_major_locator(FixedLocator(_between(ticks, values, log)))
        axis.set_major_formatter(FixedFormatter(texts if shown else [""] * len(texts)))
    ax.set(xlim=(-0.5, len(across) - 0.5), ylim=(-0.5, len(up) - 0.5))
    ax.spines[:].set_visible(False)
    ax.tick_params(length=2.5)


def _between(ticks: list[float], values: list[float], log: bool) -> list[float]:
    """Where numbers are on an axis of cells.

    >>> _between([0.1, 1.0], [0.1, 10.0], True)
    [0.0, 0.5]
    """
    at, among = (np.log(x) if log else np.asarray(x) for x in (ticks, values))
    return [round(float(x), 9) for x in np.interp(at, among, np.arange(len(values)))]


def _bar(figure: Figure, axes: Any, norm: LogNorm, label: str, beyond: bool) -> None:
    """The scale that all maps share."""
    low, high = float(norm.vmin or 1.0), float(norm.vmax or 1.0)
    look: Any = {"pad": 0.02, "fraction": 0.05, "aspect": 22, "extend": "max" if beyond else None}
    bar = figure.colorbar(axes[0, 0].collections[0], ax=axes, **look)
    bar.set_label(label.replace(", ", ",\n"))
    subs = (1.0, 2.0, 5.0) if high / low > 3 else tuple(np.arange(10.0, 100.0, 5.0) / 10)
    near = LogLocator(subs=subs, numticks=20).tick_values(low, high)
    ticks = [float(t) for t in near if low * 0.999 <= t <= high * 1.001]
    bar.set_ticks(ticks, labels=powers(ticks))
    bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.outline.set_visible(False)
