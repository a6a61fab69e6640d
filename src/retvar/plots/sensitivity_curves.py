"""How much an error depends on a setting: a line for each method, its best setting marked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from retvar.plots import legend, swept
from retvar.plots import series as s
from retvar.plots.scales import log_together
from retvar.plots.style import INK, RC, Array
from retvar.sweep import run_errors as c
from retvar.sweep.effects import overall_interval
from retvar.sweep.options import ComparisonOptions

if TYPE_CHECKING:
    import xarray

__all__ = ["sensitivity_curves"]

ACROSS, WIDTH, HEIGHT = 4, 9.2, 2.9
BESIDE = 0.07  # inches at the sides of a panel, so that ticks of two do not touch
FARTHEST = 50.0  # times the least error; what is above is cut off
RING: Any = {"marker": "o", "ms": 10, "mfc": "none", "mew": 1.3, "ls": "none", "zorder": 6}
CROSS: Any = {"marker": "x", "ms": 4.5, "mew": 1.2, "ls": "none", "clip_on": False, "zorder": 6}


@dataclass(frozen=True, eq=False)
class Line:
    """A method's errors by setting."""

    x: Array
    middle: Array
    low: Array
    high: Array
    diverged: Array  #: the share of runs that did


def sensitivity_curves(
    data: xarray.Dataset,
    x: str = "alpha",
    by: str = "algorithm",
    options: ComparisonOptions | None = None,
    **keywords: Any,
) -> Figure:
    """Draw an error against a setting: a line for each method, a panel for each question asked.

    Settings that are neither on the axis nor in `where` are the best for each domain and point,
    chosen by one half of the runs and shown by the other. The best point of a line has a ring;
    crosses above say where runs diverged. With several domains, errors are multiples of that of the
    best learner of each domain, and lines are interquartile means over domains.

    Parameters
    ----------
    data
        What a sweep collected, or a simulation with ``keep="runs"``.
    x
        The setting along the axis, which is logarithmic where its values are spaced so.
    by
        The setting that tells lines apart.
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
    >>> rv.plots.sensitivity_curves(data).axes[0].get_xlabel()
    'step size of the value, α'
    """
    options = ComparisonOptions.of(options or swept.DEFAULTS, **keywords)
    sweep = swept.sweep_of(data, by, options)
    values = swept.axis_values(sweep.errors, x)
    questions = swept.questions_without(sweep.errors, x)
    groups = {q: _groups(sweep, x, values, members) for q, members in questions.items()}
    split = any(
        len(cell) > 1 for lines in groups.values() for g in lines.values() for cell in g.values()
    )
    lines = {q: {m: _line(sweep, g, questions[q], split) for m, g in group.items()}
             for q, group in groups.items()}  # fmt: skip
    with matplotlib.rc_context(RC):
        width = max(0.5, min(len(lines) / ACROSS, 1.0)) * WIDTH
        figure, axes = s.panels(len(lines), ACROSS, width, HEIGHT)
        layout: Any = figure.get_layout_engine()
        layout.set(w_pad=BESIDE)
        every = np.concatenate(
            [np.ravel([a.low, a.middle, a.high]) for p in lines.values() for a in p.values()]
        )
        log_together(axes, _near(every))
        for ax, (question, panel) in zip(axes, lines.items(), strict=True):
            ax.set_title(swept.question_title(question))
            _panel(ax, panel, values)
            ax.set_xlabel(swept.LETTERS.get(x, x) if len(lines) < 3 else swept.SHORT.get(x, x))
        axes[0].set_ylabel(sweep.label.replace(", ", ",\n"))
        s.hide_inner(axes)
        _key(figure, lines, swept.told_intervals(sweep, split))
        return figure


def _groups(
    sweep: swept.Sweep, x: str, values: list[float], members: c.Indices
) -> dict[str, dict[float, c.Indices]]:
    """By method and value, the learners among which the best is taken."""
    found: dict[str, dict[float, c.Indices]] = {}
    for method, own in sweep.errors.methods(sweep.by).items():
        cells = {v: np.intersect1d(np.intersect1d(own, members), swept.having(sweep.errors, x, v))
                 for v in values}  # fmt: skip
        cells = {v: cell for v, cell in cells.items() if cell.size}
        if cells:
            found[method] = cells
    return found


def _line(
    sweep: swept.Sweep, cells: dict[float, c.Indices], question: c.Indices, split: bool
) -> Line:
    errors = np.array([sweep.cell(cell, split) for cell in cells.values()])
    found = overall_interval(sweep.logs(errors, question), sweep.options)
    middle, low, high = (np.exp(end) for end in (found.estimate, found.low, found.high))
    died = np.isinf(errors).mean(axis=(1, 2))
    return Line(np.array(list(cells)), middle, low, high, died)


def _near(values: Array) -> Array:
    """Those not many times the least."""
    finite = values[np.isfinite(values) & (values > 0)]
    return np.asarray(finite[finite <= FARTHEST * finite.min(initial=np.inf)])


def _panel(ax: Axes, lines: dict[str, Line], values: list[float]) -> None:
    log = swept.spaced_by_factors(values)
    if log:
        ax.set_xscale("log")
    ticks, texts = swept.ticks_of(values, log)
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    ax.xaxis.set_major_formatter(FixedFormatter(texts))
    ax.xaxis.set_minor_locator(NullLocator())
    for k, (method, line) in enumerate(lines.items()):
        _draw(ax, line, swept.look_of(method, k), 0.985 - 0.045 * k)


def _draw(ax: Axes, line: Line, look: s.Look, height: float) -> None:
    """A line with its band, a ring at its best, and crosses where runs diverged."""
    middle, low, high = (
        np.where(np.isinf(y), np.nan, y) for y in (line.middle, line.low, line.high)
    )
    above = np.isnan(high) & np.isfinite(middle)
    high = np.where(above, 10 * ax.get_ylim()[1], high)
    ax.fill_between(line.x, low, high, color=look.colour, alpha=s.BAND, lw=0, zorder=2)
    ax.plot(line.x, middle, **look.line())
    if np.isfinite(middle).any():
        best = int(np.nanargmin(middle))
        ax.plot(line.x[best], middle[best], color=look.ink, gid="best", clip_on=False, **RING)
    died = line.x[line.diverged > 0]
    if died.size:
        at: Any = {"transform": ax.get_xaxis_transform(), "gid": "diverged"}
        ax.plot(died, np.full(died.size, height), color=look.colour, **at, **CROSS)


def _key(figure: Figure, lines: dict[str, dict[str, Line]], told: str) -> None:
    methods = list(dict.fromkeys(m for panel in lines.values() for m in panel))
    entries: list[Any] = [
        (legend.swatch(swept.look_of(m, k), band=True), swept.method_title(m))
        for k, m in enumerate(methods)
    ]
    entries.append((Line2D([], [], color=INK, **RING), "best"))
    if any(line.diverged.any() for panel in lines.values() for line in panel.values()):
        entries.append((Line2D([], [], color=INK, **CROSS), "runs diverged"))
    legend.key(figure, entries, title=told, title_fontsize=8)
