"""Table 1 as a figure: published and measured, side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from retvar.experiments.claims import COLUMNS, NAMES, measured_row, row_agrees
from retvar.plots.style import INK, ORANGE, RC, SOFT

if TYPE_CHECKING:
    import xarray

__all__ = ["table_1"]

FIRST, WIDE, LAST = 1.75, 1.4, 0.55  # inches: names, a pair of columns, the verdict
PRINTED, MEASURED = 0.55, 1.25  # right edges within a pair
LINE, ROW, HEAD = 0.2, 0.36, 0.5  # inches: from line to line, from row to row, down to the first
SIZE, FINE = 8.0, 7.0  # points


def table_1(data: Mapping[str, xarray.Dataset], published: Mapping[str, Sequence[str]]) -> Figure:
    """Draw a table of the mean absolute change of each estimate, beside published figures.

    Parameters
    ----------
    data
        Datasets by the names of the rows, recorded with ``Record(change=True)``, with learners
        ``direct`` and ``vtd``; what is missing is left blank.
    published
        Figures as they were printed: value, second moment, VTD and direct, for each row.

    Returns
    -------
    Figure
        See :func:`save`.

    Examples
    --------
    >>> import retvar as rv
    >>> learners = {"direct": rv.Direct(alpha=0.01), "vtd": rv.VTD(alpha=0.01)}
    >>> record = rv.Record(points=10, change=True)
    >>> mdp = rv.domains.complex_mdp()
    >>> data = rv.simulate(mdp, learners, steps=100, runs=2, seed=0, record=record)
    >>> figure = rv.plots.table_1({"mine": data}, {"mine": ("0.1", "0.1", "0.1", "0.1")})
    >>> "0.1" in [text.get_text() for text in figure.axes[0].texts]
    True
    """
    width, below = FIRST + WIDE * len(COLUMNS) + LAST, HEAD + ROW * len(published)
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(width, below + 0.3))
        ax = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(below + 0.3, 0))
        ax.set_axis_off()
        _head(ax, width)
        for k, (name, printed) in enumerate(published.items()):
            _row(ax, HEAD + ROW * k + LINE * 0.6, name, data.get(name), printed)
        _rule(ax, below, 0, width, 1.2)
        note = "✓: all within 4 standard errors of the difference and half a unit of the last digit"
        _write(ax, 0.05, below + 0.15, note, size=FINE, color=SOFT)
        return figure


def _head(ax: Axes, width: float) -> None:
    """Names of columns, with rules."""
    _rule(ax, 0.03, 0, width, 1.2)
    _write(ax, 0.05, 0.37, "experiment")
    _write(ax, width - 0.05, 0.37, "agrees", ha="right")
    for k, column in enumerate(COLUMNS):
        left = FIRST + WIDE * k
        title = NAMES.get(column, column.replace("_", " "))
        _write(ax, left + (MEASURED + 0.1) / 2, 0.15, title, ha="center", weight="bold")
        _rule(ax, 0.26, left + 0.1, left + MEASURED, 0.6)
        _write(ax, left + PRINTED, 0.37, "paper", ha="right", color=SOFT)
        _write(ax, left + MEASURED, 0.37, "measured", ha="right")
    _rule(ax, HEAD, 0, width, 0.8)


def _row(
    ax: Axes, y: float, name: str, data: xarray.Dataset | None, printed: Sequence[str]
) -> None:
    """One experiment: two lines, of which the second has the standard errors."""
    row, error = _measured(data)
    _write(ax, 0.05, y, name)
    for k, (column, text) in enumerate(zip(COLUMNS, printed, strict=True)):
        left = FIRST + WIDE * k
        value, spread = with_error(row[column], error[column])
        _write(ax, left + PRINTED, y, text, ha="right", color=SOFT)
        _write(ax, left + MEASURED, y, value, ha="right")
        _write(ax, left + MEASURED, y + 0.75 * LINE, spread, size=FINE, ha="right", color=SOFT)
    if data is not None and not any(math.isnan(error[column]) for column in COLUMNS):
        holds = row_agrees(name, tuple(printed)).check({name: data}).holds
        look: Any = {"color": INK} if holds else {"color": ORANGE, "weight": "bold"}
        x = FIRST + WIDE * len(COLUMNS) + LAST / 2
        _write(ax, x, y, "✓" if holds else "✗", ha="center", **look)


def _measured(data: xarray.Dataset | None) -> tuple[dict[str, float], dict[str, float]]:
    """A row and its standard errors; NaN where a method is missing."""
    if data is None:
        nothing = dict.fromkeys(COLUMNS, math.nan)
        return nothing, nothing
    parts = [f"{node}_change_total" for node in ("value", "variance", "second_moment")]
    wanted = [part + suffix for part in parts for suffix in ("", "_std")]
    table = data[[name for name in wanted if name in data]].reindex(learner=["direct", "vtd"])
    missing = {name: ("learner", [math.nan, math.nan]) for name in wanted if name not in data}
    any_value = {name: table[name].fillna(data[name][0].item()) for name in wanted[:2]}
    return measured_row(table.assign(missing).assign(any_value))


def with_error(value: float, error: float) -> tuple[str, str]:
    """A figure to the digit that its standard error reaches, and that error.

    >>> with_error(0.0041517, 0.0000046), with_error(0.5, float("nan")), with_error(0.0, 0.0)
    (('0.004152', '± 0.000005'), ('0.5', ''), ('0', ''))
    """
    if math.isnan(value):
        return "–", ""
    if not error > 0:
        return f"{value:.3g}", ""
    digits = max(0, -math.floor(math.log10(error)))
    return f"{value:.{digits}f}", f"± {error:.{digits}f}"


def _write(ax: Axes, x: float, y: float, text: str, size: float = SIZE, **look: Any) -> None:
    ax.text(x, y, text, fontsize=size, va="center", **look)


def _rule(ax: Axes, y: float, left: float, right: float, width: float) -> None:
    ax.plot([left, right], [y, y], color=INK, linewidth=width, solid_capstyle="butt")
