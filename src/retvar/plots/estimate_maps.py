"""Estimates from experience as maps: of a grid world, or over two-dimensional observations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from retvar import arguments
from retvar.errors import InputError
from retvar.format import literal, short_number
from retvar.plots.estimate_common import (
    COLOUR_MAPS,
    NEGATIVE_VARIANCE,
    TITLES,
    UNVISITED,
    add_note,
    add_title,
    common_factor,
    figure_title,
    finite_column,
    interval_name,
    largest_magnitude,
    message_figure,
    new_figure,
    require_columns,
    text_colours,
    unit_name,
    value_range,
    visited,
    why_unknown,
)
from retvar.plots.layered_maps import draw_layers, layers_of
from retvar.plots.notebook_figures import Figure
from retvar.plots.style import INK, RC, Array, shown, text_size

if TYPE_CHECKING:
    import xarray

__all__ = ["estimate_heat_maps", "estimate_maps"]

NUMBER_SIZE, INTERVAL_SIZE, MIN_SIZE = 8.5, 6.6, 4.6  # points; smaller numbers are omitted
MAX_PLAIN = 1e5  # larger numbers are written with powers of ten
MIN_BAR = 0.6  # inches: height of a colour bar
MAX_FILL = 0.86  # share of the width of a cell that text may take
CELL_TYPES = {"S": "start", "F": "frozen", "H": "hole", "C": "cliff", "G": "goal"}
MAX_LEVELS = 6  # contour lines
MAP_QUESTION = "what return to expect from each cell, and how far it may stray"
HEAT_MAP_QUESTION = "what return to expect, and how far it may stray"
NO_STEP = "hatched: no step was taken from here (never reached, or the end of an episode)"
NOT_VISITED = "hatched: never visited"


# ---------------------------------------------------------------------- grid worlds


def estimate_maps(data: xarray.Dataset) -> Figure:
    """Draw the estimates of a grid world: a map of the value and one of the std.

    Each cell shows its estimate and, below it, half the width of its interval, if they fit. Cells
    from which no step was taken are hatched. Blackjack has maps of the player's sum and the
    dealer's card, one with and one without a usable ace.

    Parameters
    ----------
    data
        From :func:`retvar.estimate`, of a grid world or of Blackjack.

    Raises
    ------
    InputError
        If the dataset is not that of a grid world.

    Examples
    --------
    >>> import numpy as np, xarray, retvar as rv
    >>> names = ("value", "value_low", "value_high", "std", "std_low", "std_high")
    >>> columns = {name: ("state", np.array([1.5, np.nan])) for name in names}
    >>> data = xarray.Dataset(columns, attrs={"grid_rows": 1, "grid_columns": 2})
    >>> figure = rv.plots.estimate_maps(data)
    >>> [ax.get_title(loc="left") for ax in figure.axes[:2]]
    ['expected return', 'spread (standard deviation)']
    """
    remedy = "must be that of a grid world, with its value and std; see estimate_states for others"
    require_columns(data, *TITLES, remedy=remedy)
    layers = layers_of(data)
    if layers is None:
        require_columns(data, "grid_rows", "grid_columns", remedy=remedy)
    title = figure_title(data, MAP_QUESTION)
    known = visited(data)
    if layers is not None and known.any():
        return draw_layers(data, layers, title)
    shape = (1, 1) if layers is not None else _grid_shape(data)
    if not known.any():
        text = "No step was taken from any cell, so there is nothing to draw."
        return message_figure(title, text)
    with matplotlib.rc_context(RC):
        figure, axes, cell = _map_panels(shape)
        for ax, name in zip(axes, TITLES, strict=True):
            _draw_map(ax, data, name, shape, cell)
        add_title(figure, title)
        drawn = {str(text.get_gid()) for ax in axes for text in ax.texts}
        add_note(figure, _map_notes(data, drawn, bool(known.all())))
    return figure


def _grid_shape(data: xarray.Dataset) -> tuple[int, int]:
    """Rows and columns; raise an InputError if they do not fit the states."""
    unit_name(data)
    rows, columns = (data.attrs[f"grid_{side}"] for side in ("rows", "columns"))
    for name, found in (("grid_rows", rows), ("grid_columns", columns)):
        if not arguments.is_integer(found):
            raise InputError(name, found, "must be a whole number")
    count = data.sizes.get("state", 0)
    if min(rows, columns) < 1 or rows * columns != count:
        remedy = f"must have one cell for each of the {count:,} states"
        raise InputError("grid", f"{rows} × {columns}", remedy)
    cells = str(data.attrs.get("cells", ""))
    if cells and len(cells) != count:
        remedy = f"must have one character for each of the {count:,} states"
        raise InputError("cells", literal(cells), remedy)
    return int(rows), int(columns)


def _map_panels(shape: tuple[int, int]) -> tuple[Figure, list[Axes], float]:
    """A figure, two axes (stacked if the grid is wide), and the size of a cell in inches."""
    rows, columns = shape
    stacked = columns >= 2 * rows
    cell = float(np.clip(8.4 / columns if stacked else 4.1 / max(shape), 0.05, 0.85))
    width, height = max(cell * columns + 0.85, 2.7), max(cell * rows, MIN_BAR) + 0.4
    down, across = (2, 1) if stacked else (1, 2)
    figure = new_figure(max(across * width + 0.2, 5.2), down * height + 0.75)
    return figure, list(figure.subplots(down, across)), cell


def _draw_map(
    ax: Axes, data: xarray.Dataset, name: str, shape: tuple[int, int], cell: float
) -> None:
    """Draw one map with its numbers, letters and colour bar."""
    known = visited(data)
    values = np.where(known, finite_column(data, name), np.nan)
    factor, suffix = common_factor(values)
    table = (values / factor).reshape(shape)
    low, high = value_range(table)
    image = ax.imshow(table, cmap=COLOUR_MAPS[name], vmin=low, vmax=high)
    ax.set_title(f"{TITLES[name]}{suffix}")
    ax.set_axis_off()
    ax.set_anchor("W")
    _map_colour_bar(ax, image, cell * shape[1], cell * shape[0])
    colours = text_colours(_cell_colours(image, table.ravel()))
    for row, column, length in _runs(~known.reshape(shape)):
        ax.add_patch(Rectangle((column - 0.5, row - 0.5), length, 1, **UNVISITED))
    _borders(ax, shape, cell)
    _write_numbers(ax, table, _half_widths(data, name) / factor, colours, cell)
    _write_question_marks(ax, known.reshape(shape) & np.isnan(table), cell)
    _write_letters(ax, str(data.attrs.get("cells", "")), shape, colours, cell)


def _runs(cells: NDArray[np.bool_]) -> list[tuple[int, int, int]]:
    """Row, first column and length of each run of cells that are true.

    >>> _runs(np.array([[True, True, False, True], [False, False, False, False]]))
    [(0, 0, 2), (0, 3, 1)]
    """
    edges = np.diff(cells, axis=1, prepend=False, append=False)
    rows, columns = np.nonzero(edges)
    starts, ends = columns[::2], columns[1::2]
    return list(zip(rows[::2].tolist(), starts.tolist(), (ends - starts).tolist(), strict=True))


def _cell_colours(image: Any, values: Array) -> Array:
    """Red, green and blue of each cell; white where the value is unknown."""
    shades = np.asarray(image.cmap(image.norm(values)), dtype=float)[:, :3]
    return np.where(np.isnan(values)[:, None], 1.0, shades)


def _map_colour_bar(ax: Axes, image: Any, width: float, height: float) -> None:
    """Draw a colour bar right of a map of this size in inches, higher than a very low map."""
    tall = max(1.0, MIN_BAR / height)
    place = 1 + 0.08 / width, (1 - tall) / 2, 0.13 / width, tall
    bar = ax.figure.colorbar(image, cax=ax.inset_axes(place))
    bar.outline.set_visible(False)
    bar.ax.locator_params(nbins=int(np.clip(height * tall / 0.25, 2, 6)))


def _borders(ax: Axes, shape: tuple[int, int], cell: float) -> None:
    """Draw white lines between cells, thinner between small ones."""
    style: Any = {"color": "white", "lw": min(1.0, 2.5 * cell), "zorder": 1.5}
    rows, columns = shape
    ax.hlines(np.arange(rows - 1) + 0.5, -0.5, columns - 0.5, **style)
    ax.vlines(np.arange(columns - 1) + 0.5, -0.5, rows - 0.5, **style)


def _half_widths(data: xarray.Dataset, name: str) -> Array:
    """Half the width of each interval; NaN without intervals."""
    low, high = f"{name}_low", f"{name}_high"
    if low not in data or high not in data:
        return np.full(data.sizes["state"], np.nan)
    return (finite_column(data, high) - finite_column(data, low)) / 2


def _write_numbers(ax: Axes, table: Array, halves: Array, colours: Any, cell: float) -> None:
    """Write the estimate in each cell and its interval below, if they are readable."""
    values = table.ravel()
    decimals = _decimals(values)
    texts = [_fixed(value, decimals) for value in values]
    below = [_fixed(half, decimals, "±") for half in np.where(np.isnan(values), np.nan, halves)]
    size, small = _fit(texts, NUMBER_SIZE, cell), _fit(below, INTERVAL_SIZE, 0.9 * cell)
    if size < MIN_SIZE:
        return
    both = small >= MIN_SIZE and any(below)
    style: Any = {"ha": "center", "va": "center"}
    for k in np.flatnonzero(~np.isnan(values)):
        row, column = divmod(k, table.shape[1])
        lift = size * 0.55 / (72 * cell) if both else 0.0
        number: Any = {"fontsize": size, "color": colours[k], "gid": "number", **style}
        ax.text(column, row + 0.03 - lift, texts[k], **number)
        if both and below[k]:
            interval: Any = {"fontsize": small, "color": colours[k], "gid": "interval", **style}
            ax.text(column, row + 0.03 + 1.5 * lift, below[k], **interval)


def _write_question_marks(ax: Axes, cells: NDArray[np.bool_], cell: float) -> None:
    """Write a question mark in visited cells without an estimate."""
    style: Any = {"ha": "center", "va": "center", "fontsize": min(NUMBER_SIZE, 0.5 * 72 * cell)}
    for row, column in np.argwhere(cells):
        ax.text(column, row, "?", color="black", gid="unknown", **style)


def _write_letters(ax: Axes, cells: str, shape: tuple[int, int], colours: Any, cell: float) -> None:
    """Write the type of each cell faintly in its corner."""
    size = min(6.5, 0.2 * 72 * cell)
    if size < MIN_SIZE:
        return
    style: Any = {"ha": "left", "va": "top", "fontsize": size, "alpha": 0.6, "gid": "letter"}
    for k, letter in enumerate(cells):
        row, column = divmod(k, shape[1])
        if letter.strip():
            ax.text(column - 0.45, row - 0.45, letter, color=colours[k], **style)


def _map_notes(data: xarray.Dataset, drawn: set[str], complete: bool) -> list[str]:
    """Explanations of the texts drawn in cells, and of hatching."""
    notes = [f"±: half the width of the {interval_name(data)}"] if "interval" in drawn else []
    letters = sorted(set(str(data.attrs.get("cells", ""))) - {" "}, key="SFHCG".find)
    if "letter" in drawn and set(letters) <= set(CELL_TYPES):
        notes.append(", ".join(f"{letter} {CELL_TYPES[letter]}" for letter in letters))
    unknown = visited(data) & np.isnan(finite_column(data, "std"))
    notes += [f"?: {why_unknown(data, unknown)}"] if "unknown" in drawn else []
    return notes if complete else [*notes, NO_STEP]


def _fit(texts: list[str], size: float, cell: float) -> float:
    """The font size, at most `size`, at which all texts fit into cells of so many inches."""
    widest = max(text_size(text, size)[0] for text in texts)
    return min(size, 0.24 * 72 * cell, size * MAX_FILL * cell / widest if widest else size)


def _decimals(values: Array) -> int:
    """Decimals that give the largest number three digits."""
    size = largest_magnitude(values)
    return int(np.clip(2 - np.floor(np.log10(size)), 0, 5)) if size else 0


def _fixed(value: float, decimals: int, prefix: str = "") -> str:
    """A number with fixed decimals; one digit if it would read as zero, a power of ten if long.

    >>> _fixed(-1.5, 2), _fixed(0.0, 2), _fixed(0.00042, 2, "±"), _fixed(float("nan"), 2)
    ('−1.50', '0.00', '±0.0004', '')
    >>> _fixed(123456.7, 2)
    '1.2e5'
    """
    if np.isnan(value):
        return ""
    rounded = round(float(value), decimals)
    if rounded == 0 and value != 0:
        return prefix + short_number(float(f"{value:.1g}"))
    if abs(rounded) >= MAX_PLAIN:  # an interval may be far wider than the values
        return prefix + f"{value:.1e}".replace("e+0", "e").replace("e+", "e").replace("-", "−")
    return prefix + f"{rounded + 0.0:.{decimals}f}".replace("-", "−")


# ---------------------------------------------------------------------- heat maps


def estimate_heat_maps(data: xarray.Dataset, contours: bool = False) -> Figure:
    """Draw the estimates for two-dimensional observations as two heat maps.

    Parts that were never visited are hatched.

    Parameters
    ----------
    data
        From :func:`retvar.estimate`, of two-dimensional observations.
    contours
        Whether to draw contour lines.

    Raises
    ------
    InputError
        If the dataset has no maps.

    Examples
    --------
    >>> import numpy as np, xarray, retvar as rv
    >>> table = (("y", "x"), np.array([[1.0, 2.0], [3.0, np.nan]]))
    >>> columns = {name: table for name in ("value_map", "std_map", "visited_map")}
    >>> data = xarray.Dataset(columns, {"x": [0, 1], "y": [0, 1]}, {"x_name": "speed"})
    >>> rv.plots.estimate_heat_maps(data).axes[0].get_xlabel()
    'speed'
    """
    remedy = "must be that of observations of two numbers; see estimate_figures for others"
    require_columns(data, "value_map", "std_map", "visited_map", "x", "y", remedy=remedy)
    contours = arguments.flag("contours", contours)
    title = figure_title(data, HEAT_MAP_QUESTION)
    known = _table(data, "visited") > 0
    tables = {name: np.where(known, _table(data, name), np.nan) for name in TITLES}
    if not np.isfinite(tables["value"]).any():
        return message_figure(title, "Nothing was visited, so there is nothing to draw.")
    with matplotlib.rc_context(RC):
        figure = new_figure(8.6, 3.9)
        axes = figure.subplots(1, 2, sharey=True)
        for ax, (name, table) in zip(axes, tables.items(), strict=True):
            _draw_heat_map(ax, data, name, table, contours)
            _draw_white(ax, known & np.isnan(table))
        axes[0].set_ylabel(shown(str(data.attrs.get("y_name", "y"))))
        add_title(figure, title)
        unknown = any(np.isnan(table[known]).any() for table in tables.values())
        why = "too little data nearby" if "note" in data else NEGATIVE_VARIANCE
        notes = [NOT_VISITED * (not known.all()), f"white: {why}" * unknown]
        add_note(figure, notes)
    return figure


def _table(data: xarray.Dataset, name: str) -> Array:
    """A map by rows of y and columns of x, both ascending."""
    variable = data[f"{name}_map"]
    if set(variable.dims) != {"x", "y"}:
        raise InputError(f"data.{name}_map", tuple(variable.dims), "must have dimensions y and x")
    table = data[[f"{name}_map"]].sortby(["y", "x"]).transpose("y", "x")
    return finite_column(table, f"{name}_map")


def _draw_heat_map(ax: Axes, data: xarray.Dataset, name: str, table: Array, contours: bool) -> None:
    """Draw one heat map with its colour bar."""
    factor, suffix = common_factor(table)
    table = table / factor
    x, y = (np.sort(finite_column(data, axis)) for axis in ("x", "y"))
    low, high = value_range(table)
    edges = _cell_edges(x), _cell_edges(y)
    style: Any = {"cmap": COLOUR_MAPS[name], "vmin": low, "vmax": high, "rasterized": True}
    image = ax.pcolormesh(*edges, np.ma.masked_invalid(table), zorder=1, **style)
    ax.set(xlim=edges[0][[0, -1]], ylim=edges[1][[0, -1]])
    ax.set_xlabel(shown(str(data.attrs.get("x_name", "x"))))
    ax.set_title(f"{TITLES[name]}{suffix}")
    ax.locator_params(nbins=6)
    ax.add_patch(Rectangle((0, 0), 1, 1, transform=ax.transAxes, zorder=0, **UNVISITED))
    bar = ax.figure.colorbar(image, ax=ax, pad=0.02, fraction=0.06)
    bar.outline.set_visible(False)
    bar.ax.locator_params(nbins=6)
    if contours:
        _draw_contours(ax, x, y, table, bar)


def _draw_white(ax: Axes, cells: NDArray[np.bool_]) -> None:
    """Cover visited cells without an estimate in white."""
    if cells.any():
        edges = ax.collections[0].get_coordinates()  # type: ignore[attr-defined]
        white = np.ma.masked_array(np.ones(cells.shape), ~cells)
        x, y = edges[0, :, 0], edges[:, 0, 1]
        ax.pcolormesh(x, y, white, cmap="gray", vmin=0, vmax=1, zorder=1, rasterized=True)


def _draw_contours(ax: Axes, x: Array, y: Array, table: Array, bar: Any) -> None:
    """Draw contour lines at levels that the colour bar marks, unless the map is flat."""
    low, high = value_range(table)
    levels = MaxNLocator(MAX_LEVELS).tick_values(low, high)
    known = table[np.isfinite(table)]
    levels = levels[(levels > known.min()) & (levels < known.max())]
    if levels.size and min(table.shape) > 1:
        style: Any = {"colors": INK, "linewidths": 0.7, "linestyles": "solid", "zorder": 2}
        bar.add_lines(ax.contour(x, y, np.ma.masked_invalid(table), levels, **style))


def _cell_edges(centres: Array) -> Array:
    """Edges of cells around ascending centres.

    >>> _cell_edges(np.array([0.0, 1.0, 3.0])).tolist(), _cell_edges(np.array([2.0])).tolist()
    ([-0.5, 0.5, 2.0, 4.0], [1.5, 2.5])
    """
    if not centres.size or np.isnan(centres).any():
        raise InputError("data", "x or y", "must be finite numbers")
    if centres.size == 1:
        return np.array(value_range(centres))
    middles = (centres[1:] + centres[:-1]) / 2
    first, last = 2 * centres[0] - middles[0], 2 * centres[-1] - middles[-1]
    return np.concatenate([[first], middles, [last]])
