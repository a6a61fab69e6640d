"""Heat maps of a sweep over two settings, side by side for the methods, on one scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedFormatter, FixedLocator, LogLocator, NullLocator

from retvar.errors import InputError
from retvar.plots import swept
from retvar.plots.scales import powers
from retvar.plots.style import INK, RC, SOFT, Array
from retvar.sweep import collected as c

if TYPE_CHECKING:
    import xarray

__all__ = ["sweep_heat_map"]

FARTHEST = 20.0  # times the least; what is above has the same colour
PANEL = 2.5  # inches
HATCH: Any = {"facecolor": "#f4f4f4", "edgecolor": SOFT, "hatch": "////", "lw": 0, "zorder": 0}
STAR: Any = {"marker": "*", "ms": 11, "mfc": "white", "mec": INK, "mew": 0.9, "ls": "none"}


def sweep_heat_map(
    data: xarray.Dataset,
    x: str = "alpha",
    y: str = "lam",
    by: str = "algorithm",
    *,
    what: str = "variance_rmse",
    at: int = -1,
    where: Mapping[str, Any] | None = None,
    over: str | None = None,
) -> Figure:
    """Draw an error over two settings: a map for each method, all on one scale.

    Other settings are those in `where`, or the best for each domain and cell, chosen by one half of
    the runs and shown by the other. Where the axes leave open what is asked (λ, say), each answer
    has a row of maps. The best cell has a star: of each map, or of each row of cells where that is
    a question of its own. Cells in which more than a quarter of the runs diverged are hatched.

    Parameters
    ----------
    data
        What a sweep collected, or a simulation with ``keep="runs"``.
    x, y
        The settings along the axes.
    by
        The setting that tells maps apart.
    what, at
        Which error, and when: −1 is the end, otherwise a step or episode that was recorded.
    where
        Settings to hold fixed, like ``{"lam": 0.9}``; of a list, any.

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
    sweep = swept.sweep_of(data, by, what, at, where, over)
    across, up = (swept.axis_values(sweep.errors, name) for name in (x, y))
    rows = swept.questions_without(sweep.errors, x, y)
    methods = list(sweep.errors.methods(by))
    maps = {(q, m): _table(sweep, (x, across), (y, up), members, m)
            for q, members in rows.items() for m in methods}  # fmt: skip
    with matplotlib.rc_context(RC):
        size = (1.3 + PANEL * len(methods), 0.75 + 0.9 * PANEL * len(rows))
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(len(rows), len(methods), squeeze=False)
        norm = _norm(np.array(list(maps.values())))
        for ax, ((question, method), table) in zip(axes.ravel(), maps.items(), strict=True):
            title = (swept.method_title(method), swept.question_title(question))
            ax.set_title(", ".join(part for part in title if part))
            _draw(ax, table, norm, {"x": x in c.ASKED, "y": y in c.ASKED})
            _label(ax, across, up)
        for ax in axes[-1]:
            ax.set_xlabel(swept.LETTERS.get(x, x))
        for ax in axes[:, 0]:
            ax.set_ylabel(swept.LETTERS.get(y, y))
        finite = np.array([x for table in maps.values() for x in table.ravel() if np.isfinite(x)])
        _bar(figure, axes, norm, sweep.label, bool((finite > norm.vmax).any()))
        hatched = "hatched: more than a quarter of the runs diverged" * bool(
            np.isinf(list(maps.values())).any()
        )
        figure.supxlabel("; ".join(t for t in ("star: best", hatched) if t), fontsize=8)
        return figure


def _table(
    sweep: swept.Sweep, x: tuple[str, Any], y: tuple[str, Any], members: c.Indices, method: str
) -> Array:
    """Errors by y and x: NaN where nothing was computed, infinite where it diverged."""
    own = np.intersect1d(members, sweep.errors.methods(sweep.by)[method])
    columns = {v: np.intersect1d(own, swept.having(sweep.errors, x[0], v)) for v in x[1]}
    lines = {v: swept.having(sweep.errors, y[0], v) for v in y[1]}
    cells = [[np.intersect1d(column, line) for column in columns.values()]
             for line in lines.values()]  # fmt: skip
    split = any(cell.size > 1 for line in cells for cell in line)
    questions = swept.questions_without(sweep.errors)
    found = np.full((len(y[1]), len(x[1])), np.nan)
    for at in np.ndindex(found.shape):
        cell = cells[at[0]][at[1]]
        if cell.size:
            same = next(group for group in questions.values() if cell[0] in group)
            found[at] = np.exp(c.centre(sweep.logs(sweep.cell(cell, split), same), (-2, -1)))
    return found


def _norm(tables: Array) -> LogNorm:
    finite = tables[np.isfinite(tables) & (tables > 0)]
    low = finite.min(initial=np.inf) if finite.size else 1.0
    high = min(finite.max(initial=low), FARTHEST * low)
    return LogNorm(float(low), float(max(high, 1.01 * low)))


def _draw(ax: Axes, table: Array, norm: LogNorm, asked: dict[str, bool]) -> None:
    """One map with its stars."""
    for row, column in zip(*np.nonzero(np.isinf(table)), strict=True):
        ax.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, gid="diverged", **HATCH))
    shown = np.ma.masked_invalid(table)
    edges = [np.arange(n + 1) - 0.5 for n in table.shape[::-1]]
    ax.pcolormesh(*edges, shown, cmap="viridis_r", norm=norm, zorder=1, rasterized=True)
    finite = np.where(np.isfinite(table), table, np.inf)
    for row, column in _stars(finite, asked):
        ax.plot(column, row, gid="best", zorder=3, **STAR)


def _stars(table: Array, asked: dict[str, bool]) -> list[tuple[int, int]]:
    """The least of all cells, or of each line of cells that is a question of its own."""
    n, m = table.shape
    if asked["x"] and asked["y"]:
        return []
    if asked["y"]:
        places = [(k, int(np.argmin(table[k]))) for k in range(n)]
    elif asked["x"]:
        places = [(int(np.argmin(table[:, k])), k) for k in range(m)]
    else:
        places = [(int(np.argmin(table)) // m, int(np.argmin(table)) % m)]
    return [at for at in places if np.isfinite(table[at])]


def _label(ax: Axes, across: list[float], up: list[float]) -> None:
    """Ticks at cells; inner panels have none."""
    place: Any = ax.get_subplotspec()
    for axis, values, shown in (
        (ax.xaxis, across, place.is_last_row()),
        (ax.yaxis, up, place.is_first_col()),
    ):
        ticks, texts = swept.ticks_of(values, swept.spaced_by_factors(values))
        axis.set_major_locator(FixedLocator([values.index(t) for t in ticks]))
        axis.set_major_formatter(FixedFormatter(texts if shown else [""] * len(texts)))
    ax.set(xlim=(-0.5, len(across) - 0.5), ylim=(-0.5, len(up) - 0.5))
    ax.spines[:].set_visible(False)
    ax.tick_params(length=2.5)


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
