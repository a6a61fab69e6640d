"""Estimates against Monte Carlo returns of fresh roll-outs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from retvar.plots import estimated as e
from retvar.plots.legend import key
from retvar.plots.series import GRID, TRUTH
from retvar.plots.style import BLUE, ORANGE, RC, Array

if TYPE_CHECKING:
    import xarray

__all__ = ["check"]

PANELS = {"value": "expected return", "std": "spread (standard deviation)"}
MANY = 100  # states; more are drawn smaller
QUESTION = "do fresh roll-outs agree with the estimates?"
DOT: Any = {"marker": "o", "color": "#08264a", "mec": "white", "mew": 0.5, "ls": "none"}


def check(data: xarray.Dataset) -> Figure:
    """Draw Monte Carlo returns of fresh roll-outs against the estimates, with the diagonal.

    The standard error of a mean is exact; that of a standard deviation is what it would be if
    returns were normal.

    Parameters
    ----------
    data
        From :func:`retvar.estimate`, with a check by roll-outs.

    Returns
    -------
    Figure
        See :func:`save`.

    Raises
    ------
    InputError
        Where the dataset holds no such check.

    Examples
    --------
    >>> import numpy as np, xarray, retvar as rv
    >>> names = ("value", "std", "check_mean", "check_std", "check_count")
    >>> data = xarray.Dataset({name: ("state", np.array([2.0, 3.0])) for name in names})
    >>> [ax.get_title(loc="left") for ax in rv.plots.check(data).axes]
    ['expected return', 'spread (standard deviation)']
    """
    names = ("check_mean", "check_std", "check_count")
    e.need(data, *PANELS, *names, why="must have been checked by roll-outs")
    place = e.place(data)
    title = e.heading(data, QUESTION)
    compared = np.isfinite(e.column(data, "check_mean")) & np.isfinite(e.column(data, "value"))
    if not compared.any():
        return e.sentence(title, f"No {place} was rolled out from: nothing to compare.")
    with matplotlib.rc_context(RC):
        figure = e.page(8.6, 4.7)
        axes = figure.subplots(1, 2)
        for ax, name in zip(axes, PANELS, strict=True):
            _against(ax, data, name, compared)
        axes[0].set_ylabel(f"Monte Carlo, {compared.sum():,} {place}{'s'[: compared.sum() - 1]}")
        e.put_title(figure, title)
        key(figure, _entries(data))
    return figure


def _against(ax: Axes, data: xarray.Dataset, name: str, compared: Any) -> None:
    """One panel: the estimate along x with its interval, Monte Carlo along y with its error."""
    x = e.column(data, name)[compared]
    low, high = (
        e.column(data, end)[compared] if end in data else x
        for end in (f"{name}_low", f"{name}_high")
    )
    y, error = (column[compared] for column in _rolled(data, name))
    unit, suffix = e.unit_of(x, y)
    x, low, high, y, error = (column / unit for column in (x, low, high, y, error))
    width = 0.6 if x.size > MANY else 1.1
    ax.hlines(y, low, high, color=BLUE, linewidth=width, zorder=2)
    ax.vlines(x, y - error, y + error, color=ORANGE, linewidth=width, zorder=2)
    ax.plot(x, y, **DOT, ms=3.0 if x.size > MANY else 4.5, zorder=5)
    least, most = e.span(x, y)
    room = 0.08 * (most - least)
    limits = least - room, most + room
    ax.plot(limits, limits, **{**TRUTH, "zorder": 1})
    ax.set(xlim=limits, ylim=limits, aspect="equal", axisbelow=True)
    ax.grid(**GRID)
    ax.locator_params(nbins=6)
    ax.set_title(f"{PANELS[name]}{suffix}")
    missing = int(np.sum(np.isnan(x)))
    more = f"\n({missing:,} left out: {e.BELOW})" if missing else ""
    ax.set_xlabel(f"estimate from experience{more}")


def _rolled(data: xarray.Dataset, name: str) -> tuple[Array, Array]:
    """What roll-outs gave and its standard error; NaN where it is unknown."""
    std, count = e.column(data, "check_std"), e.column(data, "check_count")
    if name == "value":
        return e.column(data, "check_mean"), std / np.sqrt(np.maximum(count, 1))
    enough = np.where(count > 1, count, np.nan)
    return np.where(count > 1, std, np.nan), std / np.sqrt(2 * (enough - 1))


def _entries(data: xarray.Dataset) -> list[tuple[Any, str]]:
    """For the legend."""
    state = Line2D([], [], **DOT, ms=4.5)
    intervals = (Line2D([], [], color=BLUE, lw=1.1), f"{e.interval_name(data)} of the estimate")
    return [
        (state, f"a {e.place(data)}"),
        *([intervals] if "value_low" in data else []),
        (Line2D([], [], color=ORANGE, lw=1.1), "± standard error of Monte Carlo"),
        (Line2D([], [], **TRUTH), "equal"),
    ]
