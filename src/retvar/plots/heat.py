"""Heat maps over observations of two numbers: the return to expect, and how far it may stray."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from retvar.errors import InputError
from retvar.plots import estimated as e
from retvar.plots.style import INK, RC, Array

if TYPE_CHECKING:
    import xarray

__all__ = ["estimate_heat_maps"]

TABLES = {"value": "expected return", "std": "spread (standard deviation)"}
LEVELS = 6  # lines of equal height, at most
HATCHED = "hatched: never visited"
QUESTION = "what return to expect, and how far it may stray"


def estimate_heat_maps(data: xarray.Dataset, contours: bool = False) -> Figure:
    """Draw what was estimated for observations of two numbers, as two heat maps.

    Parts that were never visited are hatched.

    Parameters
    ----------
    data
        From :func:`retvar.estimate`, of two-dimensional observations.
    contours
        Whether to draw lines of equal height.

    Returns
    -------
    Figure
        See :func:`save`.

    Raises
    ------
    InputError
        Where the dataset has no maps.

    Examples
    --------
    >>> import numpy as np, xarray, retvar as rv
    >>> table = (("y", "x"), np.array([[1.0, 2.0], [3.0, np.nan]]))
    >>> columns = {name: table for name in ("value_map", "std_map", "visited_map")}
    >>> data = xarray.Dataset(columns, {"x": [0, 1], "y": [0, 1]}, {"x_name": "speed"})
    >>> rv.plots.estimate_heat_maps(data).axes[0].get_xlabel()
    'speed'
    """
    why = "must be that of observations of two numbers; see estimate_figures for others"
    e.need(data, "value_map", "std_map", "visited_map", "x", "y", why=why)
    title = e.heading(data, QUESTION)
    seen = _table(data, "visited") > 0
    tables = {name: np.where(seen, _table(data, name), np.nan) for name in TABLES}
    if not np.isfinite(tables["value"]).any():
        return e.sentence(title, "Nothing was visited, so there is nothing to draw.")
    with matplotlib.rc_context(RC):
        figure = e.page(8.6, 3.9)
        axes = figure.subplots(1, 2, sharey=True)
        for ax, (name, table) in zip(axes, tables.items(), strict=True):
            _heat(ax, data, name, table, contours)
            _blank(ax, seen & np.isnan(table))
        axes[0].set_ylabel(str(data.attrs.get("y_name", "y")))
        e.put_title(figure, title)
        below = any(np.isnan(table[seen]).any() for table in tables.values())
        e.put_note(figure, [HATCHED * (not seen.all()), f"white: {e.BELOW}" * below])
    return figure


def _table(data: xarray.Dataset, name: str) -> Array:
    """A map by rows of y and columns of x, both ascending."""
    variable = data[f"{name}_map"]
    if set(variable.dims) != {"x", "y"}:
        raise InputError(f"data.{name}_map", tuple(variable.dims), "must have dimensions y and x")
    table = data[[f"{name}_map"]].sortby(["y", "x"]).transpose("y", "x")
    return e.column(table, f"{name}_map")


def _heat(ax: Axes, data: xarray.Dataset, name: str, table: Array, contours: bool) -> None:
    """One heat map with its colour bar."""
    unit, suffix = e.unit_of(table)
    table = table / unit
    x, y = (np.sort(e.column(data, axis)) for axis in ("x", "y"))
    low, high = e.span(table)
    edges = _edges(x), _edges(y)
    look: Any = {"cmap": e.COLOURS[name], "vmin": low, "vmax": high, "rasterized": True}
    image = ax.pcolormesh(*edges, np.ma.masked_invalid(table), zorder=1, **look)
    ax.set(xlim=edges[0][[0, -1]], ylim=edges[1][[0, -1]])
    ax.set_xlabel(str(data.attrs.get("x_name", "x")))
    ax.set_title(f"{TABLES[name]}{suffix}")
    ax.locator_params(nbins=6)
    ax.add_patch(Rectangle((0, 0), 1, 1, transform=ax.transAxes, zorder=0, **e.UNVISITED))
    bar = ax.figure.colorbar(image, ax=ax, pad=0.02, fraction=0.06)
    bar.outline.set_visible(False)
    bar.ax.locator_params(nbins=6)
    if contours:
        _contours(ax, x, y, table, bar)


def _blank(ax: Axes, cells: NDArray[np.bool_]) -> None:
    """White where something was visited and yet has no estimate."""
    if cells.any():
        edges = ax.collections[0].get_coordinates()  # type: ignore[attr-defined]
        white = np.ma.masked_array(np.ones(cells.shape), ~cells)
        x, y = edges[0, :, 0], edges[:, 0, 1]
        ax.pcolormesh(x, y, white, cmap="gray", vmin=0, vmax=1, zorder=1, rasterized=True)


def _contours(ax: Axes, x: Array, y: Array, table: Array, bar: Any) -> None:
    """Lines of equal height where there are slopes, at heights that the colour bar shows."""
    low, high = e.span(table)
    levels = MaxNLocator(LEVELS).tick_values(low, high)
    known = table[np.isfinite(table)]
    levels = levels[(levels > known.min()) & (levels < known.max())]
    if levels.size and min(table.shape) > 1:
        look: Any = {"colors": INK, "linewidths": 0.7, "linestyles": "solid", "zorder": 2}
        bar.add_lines(ax.contour(x, y, np.ma.masked_invalid(table), levels, **look))


def _edges(centres: Array) -> Array:
    """Where cells about ascending centres begin and end.

    >>> _edges(np.array([0.0, 1.0, 3.0])).tolist(), _edges(np.array([2.0])).tolist()
    ([-0.5, 0.5, 2.0, 4.0], [1.5, 2.5])
    """
    if not centres.size or np.isnan(centres).any():
        raise InputError("data", "x or y", "must be finite numbers")
    if centres.size == 1:
        return np.array(e.span(centres))
    middles = (centres[1:] + centres[:-1]) / 2
    first, last = 2 * centres[0] - middles[0], 2 * centres[-1] - middles[-1]
    return np.concatenate([[first], middles, [last]])
