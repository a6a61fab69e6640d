"""The error of each method against a setting of a sweep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from retvar.plots.axes import fixed_ticks, hide_inner_tick_labels, make_panels, shared_log_y
from retvar.plots.learning_curves import below_cutoff
from retvar.plots.notebook_figures import Figure
from retvar.plots.style import BAND_ALPHA, INK, RC, Array, LineStyle, add_legend, legend_line
from retvar.plots.sweep_errors import (
    LONG_NAMES,
    SYMBOLS,
    Indices,
    SweepErrors,
    axis_ticks,
    load_errors,
    method_name,
    method_style,
    question_title,
    spaced_by_factors,
)
from retvar.sweep.options import ComparisonOptions

if TYPE_CHECKING:
    import xarray

__all__ = ["sensitivity_curves"]

COLUMNS, WIDTH, HEIGHT = 4, 9.2, 2.9
PANEL_PAD = 0.07  # inches, so that tick labels of neighbouring panels do not touch
CUTOFF = 50.0  # times the least error; larger errors are cut off
RING: Any = {"marker": "o", "ms": 10, "mfc": "none", "mew": 1.3, "ls": "none", "zorder": 6}
CROSS: Any = {"marker": "x", "ms": 4.5, "mew": 1.2, "ls": "none", "clip_on": False, "zorder": 6}


@dataclass(frozen=True, eq=False)
class Line:
    """The errors of a method by setting."""

    x: Array
    middle: Array
    low: Array
    high: Array
    diverged: Array  #: share of the runs


def sensitivity_curves(
    data: xarray.Dataset,
    x: str = "alpha",
    by: str = "algorithm",
    options: ComparisonOptions | None = None,
    **keywords: Any,
) -> Figure:
    """Draw an error against a setting: a line per method, a panel per γ, λ and estimand.

    Settings that are neither on the axis nor in `where` are the best for each domain and point,
    chosen by one half of the runs and shown by the other. A ring marks the best point of a line;
    crosses mark settings with diverged runs. With several domains, errors are multiples of that of
    the best learner of each domain, and lines are interquartile means over domains.

    Parameters
    ----------
    data
        A collected sweep, or a simulation with ``keep="runs"``.
    x
        The setting along the axis, which is logarithmic if its values are spaced by factors.
    by
        The setting that distinguishes lines.
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
    >>> rv.plots.sensitivity_curves(data).axes[0].get_xlabel()
    'step size of the value, α'
    """
    sweep = load_errors(data, by, options, **keywords)
    values = sweep.axis_values(x)
    questions = sweep.questions(x)
    cells = {q: _cells(sweep, x, values, members) for q, members in questions.items()}
    split = any(
        len(cell) > 1 for methods in cells.values() for m in methods.values() for cell in m.values()
    )
    panels = {
        q: {name: _line(sweep, cell, questions[q], split) for name, cell in methods.items()}
        for q, methods in cells.items()
    }
    with matplotlib.rc_context(RC):
        width = max(0.5, min(len(panels) / COLUMNS, 1.0)) * WIDTH
        figure, axes = make_panels(len(panels), COLUMNS, width, HEIGHT)
        layout: Any = figure.get_layout_engine()
        layout.set(w_pad=PANEL_PAD)
        lines = [line for panel in panels.values() for line in panel.values()]
        every = np.concatenate([np.ravel([line.low, line.middle, line.high]) for line in lines])
        shared_log_y(axes, below_cutoff(every[every > 0], CUTOFF))
        for ax, (question, panel) in zip(axes, panels.items(), strict=True):
            ax.set_title(question_title(question))
            _draw_panel(ax, panel, values)
            ax.set_xlabel((LONG_NAMES if len(panels) < 3 else SYMBOLS).get(x, x))
        axes[0].set_ylabel(sweep.label.replace(", ", ",\n"))
        hide_inner_tick_labels(axes)
        _add_legend(figure, panels, sweep.interval_text(split))
        return figure


def _cells(
    sweep: SweepErrors, x: str, values: list[float], members: Indices
) -> dict[str, dict[float, Indices]]:
    """By method and value, the learners from which the best is chosen."""
    found: dict[str, dict[float, Indices]] = {}
    for method, own in sweep.method_learners().items():
        among = np.intersect1d(own, members)
        cells = {v: np.intersect1d(among, sweep.learners_with(x, v)) for v in values}
        cells = {v: cell for v, cell in cells.items() if cell.size}
        if cells:
            found[method] = cells
    return found


def _line(sweep: SweepErrors, cells: dict[float, Indices], question: Indices, split: bool) -> Line:
    errors = np.array(
        [sweep.judging_runs(sweep.best_errors(cell), split) for cell in cells.values()]
    )
    ends = sweep.intervals(sweep.log_errors(errors, question))
    return Line(np.array(list(cells)), *ends, np.isinf(errors).mean(axis=(1, 2)))


def _draw_panel(ax: Axes, lines: dict[str, Line], values: list[float]) -> None:
    log = spaced_by_factors(values)
    if log:
        ax.set_xscale("log")
    fixed_ticks(ax.xaxis, *axis_ticks(values, log))
    for k, (method, line) in enumerate(lines.items()):
        _draw_line(ax, line, method_style(method, k), 0.985 - 0.045 * k)


def _draw_line(ax: Axes, line: Line, style: LineStyle, height: float) -> None:
    """Draw a line with its band and a ring at its best; crosses at `height` mark divergence."""
    middle, low, high = (
        np.where(np.isinf(y), np.nan, y) for y in (line.middle, line.low, line.high)
    )
    unbounded = np.isnan(high) & np.isfinite(middle)
    high = np.where(unbounded, 10 * ax.get_ylim()[1], high)
    ax.fill_between(line.x, low, high, color=style.colour, alpha=BAND_ALPHA, lw=0, zorder=2)
    ax.plot(line.x, middle, **style.plot_options())
    if np.isfinite(middle).any():
        best = int(np.nanargmin(middle))
        ring: Any = {"color": style.text_colour, "gid": "best", "clip_on": False, **RING}
        ax.plot(line.x[best], middle[best], **ring)
    diverged = line.x[line.diverged > 0]
    if diverged.size:
        place: Any = {"transform": ax.get_xaxis_transform(), "gid": "diverged"}
        ax.plot(diverged, np.full(diverged.size, height), color=style.colour, **place, **CROSS)


def _add_legend(figure: Figure, panels: dict[str, dict[str, Line]], title: str) -> None:
    methods = list(dict.fromkeys(m for panel in panels.values() for m in panel))
    entries: list[Any] = [
        (legend_line(method_style(m, k), band=True), method_name(m)) for k, m in enumerate(methods)
    ]
    entries.append((Line2D([], [], color=INK, **RING), "best"))
    if any(line.diverged.any() for panel in panels.values() for line in panel.values()):
        entries.append((Line2D([], [], color=INK, **CROSS), "runs diverged"))
    add_legend(figure, entries, title=title, title_fontsize=8)
