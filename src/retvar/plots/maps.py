"""Maps of a grid world: what return to expect from each cell, and how far it may stray."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from retvar.errors import InputError
from retvar.format import short_number
from retvar.plots import estimated as e
from retvar.plots.style import RC, Array, text_size

if TYPE_CHECKING:
    import xarray

__all__ = ["estimate_maps"]

TABLES = {"value": "expected return", "std": "spread (standard deviation)"}
LARGE, SMALL = 8.5, 6.6  # points: an estimate, and its interval below it
LEAST = 4.6  # points; smaller numbers are omitted
LONG = 1e5  # numbers are written as powers of ten from here on
BAR = 0.6  # inches of a colour bar, at least
FILLED = 0.86  # of a cell's width may be text
LETTERS = {"S": "start", "F": "frozen", "H": "hole", "C": "cliff", "G": "goal"}
QUESTION = "what return to expect from each cell, and how far it may stray"
HATCHED = "hatched: no step was taken from here (never reached, or the end of an episode)"


def estimate_maps(data: xarray.Dataset) -> Figure:
    """Draw what was estimated in a grid world: a map of the value and one of the std.

    Each cell tells its estimate and, below it, half the width of its interval, where cells have
    room. Cells that no step was taken from are hatched.

    Parameters
    ----------
    data
        From :func:`retvar.estimate`, of a grid world.

    Returns
    -------
    Figure
        See :func:`save`.

    Raises
    ------
    InputError
        Where the dataset is not that of a grid world.

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
    why = "must be that of a grid world, with its value and std; see estimate_states for others"
    e.need(data, "grid_rows", "grid_columns", *TABLES, why=why)
    shape = _shape(data)
    title = e.heading(data, QUESTION)
    seen = e.visited(data)
    if not seen.any():
        return e.sentence(title, "No step was taken from any cell, so there is nothing to draw.")
    with matplotlib.rc_context(RC):
        figure, axes, cell = _panels(shape)
        for ax, name in zip(axes, TABLES, strict=True):
            _map(ax, data, name, shape, cell)
        e.put_title(figure, title)
        drawn = {str(text.get_gid()) for ax in axes for text in ax.texts}
        e.put_note(figure, _notes(data, drawn, bool(seen.all())))
    return figure


def _shape(data: xarray.Dataset) -> tuple[int, int]:
    """Rows and columns, once they are known to fit the states."""
    e.place(data)
    rows, columns = (_whole(data, f"grid_{side}") for side in ("rows", "columns"))
    count = data.sizes.get("state", 0)
    if min(rows, columns) < 1 or rows * columns != count:
        remedy = f"must have one cell for each of the {count:,} states"
        raise InputError("grid", f"{rows} × {columns}", remedy)
    cells = str(data.attrs.get("cells", ""))
    if cells and len(cells) != count:
        remedy = f"must have one character for each of the {count:,} states"
        raise InputError("cells", repr(cells), remedy)
    return rows, columns


def _whole(data: xarray.Dataset, name: str) -> int:
    """An attribute that counts."""
    try:
        return operator.index(data.attrs[name])
    except TypeError:
        raise InputError(name, data.attrs[name], "must be a whole number") from None


def _panels(shape: tuple[int, int]) -> tuple[Figure, list[Axes], float]:
    """Two places for maps, one above the other if the grid is wide, and the inches of a cell."""
    rows, columns = shape
    stacked = columns >= 2 * rows
    cell = float(np.clip(8.4 / columns if stacked else 4.1 / max(shape), 0.05, 0.85))
    width, height = max(cell * columns + 0.85, 2.7), max(cell * rows, BAR) + 0.4
    down, across = (2, 1) if stacked else (1, 2)
    size = max(across * width + 0.2, 5.2), down * height + 0.75
    figure = e.page(*size)
    return figure, list(figure.subplots(down, across)), cell


def _map(ax: Axes, data: xarray.Dataset, name: str, shape: tuple[int, int], cell: float) -> None:
    """One map with its numbers, its letters and its colour bar."""
    values = np.where(e.visited(data), e.column(data, name), np.nan)
    unit, suffix = e.unit_of(values)
    table = (values / unit).reshape(shape)
    low, high = e.span(table)
    image = ax.imshow(table, cmap=e.COLOURS[name], vmin=low, vmax=high)
    ax.set_title(f"{TABLES[name]}{suffix}")
    ax.set_axis_off()
    ax.set_anchor("W")
    _bar(ax, image, cell * shape[1], cell * shape[0])
    ink = e.inks(_shades(image, table.ravel()))
    for k in np.flatnonzero(~e.visited(data)):
        row, column = divmod(int(k), shape[1])
        ax.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, **e.UNVISITED))
    _borders(ax, shape, cell)
    _numbers(ax, table, _halves(data, name) / unit, ink, cell)
    _unknown(ax, e.visited(data).reshape(shape) & np.isnan(table), cell)
    _letters(ax, str(data.attrs.get("cells", "")), shape, ink, cell)


def _shades(image: Any, values: Array) -> Array:
    """The colour of each cell: red, green and blue; white where it is unknown."""
    shades = np.asarray(image.cmap(image.norm(values)), dtype=float)[:, :3]
    return np.where(np.isnan(values)[:, None], 1.0, shades)


def _bar(ax: Axes, image: Any, width: float, height: float) -> None:
    """A colour bar beside a map of so many inches; a low map has one that is higher."""
    tall = max(1.0, BAR / height)
    place = 1 + 0.08 / width, (1 - tall) / 2, 0.13 / width, tall
    bar = ax.figure.colorbar(image, cax=ax.inset_axes(place))
    bar.outline.set_visible(False)
    bar.ax.locator_params(nbins=int(np.clip(height * tall / 0.25, 2, 6)))


def _borders(ax: Axes, shape: tuple[int, int], cell: float) -> None:
    """Thin white lines between cells that are not tiny."""
    look: Any = {"color": "white", "lw": min(1.0, 2.5 * cell), "zorder": 1.5}
    rows, columns = shape
    ax.hlines(np.arange(rows - 1) + 0.5, -0.5, columns - 0.5, **look)
    ax.vlines(np.arange(columns - 1) + 0.5, -0.5, rows - 0.5, **look)


def _halves(data: xarray.Dataset, name: str) -> Array:
    """Half the width of each interval; NaN where there is none."""
    low, high = f"{name}_low", f"{name}_high"
    if low not in data or high not in data:
        return np.full(data.sizes["state"], np.nan)
    return (e.column(data, high) - e.column(data, low)) / 2


def _numbers(ax: Axes, table: Array, halves: Array, ink: Any, cell: float) -> None:
    """The estimate in each cell and its interval below, if that can be read."""
    values = table.ravel()
    decimals = _decimals(values)
    texts = [_fixed(value, decimals) for value in values]
    below = [_fixed(half, decimals, "±") for half in np.where(np.isnan(values), np.nan, halves)]
    size, small = _fitting(texts, LARGE, cell), _fitting(below, SMALL, 0.9 * cell)
    if size < LEAST:
        return
    both = small >= LEAST and any(below)
    look: Any = {"ha": "center", "va": "center"}
    for k in np.flatnonzero(~np.isnan(values)):
        text, more = texts[k], below[k]
        row, column = divmod(k, table.shape[1])
        lift = size * 0.55 / (72 * cell) if both else 0.0
        ax.text(column, row + 0.03 - lift, text, fontsize=size, color=ink[k], **look, gid="number")
        if both and more:
            y = row + 0.03 + 1.5 * lift
            ax.text(column, y, more, fontsize=small, color=ink[k], **look, gid="interval")


def _unknown(ax: Axes, cells: NDArray[np.bool_], cell: float) -> None:
    """A question mark in cells that were visited and yet have no estimate."""
    look: Any = {"ha": "center", "va": "center", "fontsize": min(LARGE, 0.5 * 72 * cell)}
    for row, column in np.argwhere(cells):
        ax.text(column, row, "?", color="black", gid="unknown", **look)


def _letters(ax: Axes, cells: str, shape: tuple[int, int], ink: Any, cell: float) -> None:
    """What each cell is, faint in its corner."""
    size = min(6.5, 0.2 * 72 * cell)
    if size < LEAST:
        return
    look: Any = {"ha": "left", "va": "top", "fontsize": size, "alpha": 0.6, "gid": "letter"}
    for k, letter in enumerate(cells):
        row, column = divmod(k, shape[1])
        if letter.strip():
            ax.text(column - 0.45, row - 0.45, letter, color=ink[k], **look)


def _notes(data: xarray.Dataset, drawn: set[str], complete: bool) -> list[str]:
    """What the small print in the cells means, as far as it is drawn."""
    notes = [f"±: half the width of the {e.interval_name(data)}"] if "interval" in drawn else []
    letters = sorted(set(str(data.attrs.get("cells", ""))) - {" "}, key="SFHCG".find)
    if "letter" in drawn and set(letters) <= set(LETTERS):
        notes.append(", ".join(f"{letter} {LETTERS[letter]}" for letter in letters))
    notes += [f"?: {e.BELOW}"] if "unknown" in drawn else []
    return notes if complete else [*notes, HATCHED]


def _fitting(texts: list[str], size: float, cell: float) -> float:
    """The size at which all texts fit into cells of so many inches."""
    widest = max(text_size(text, size)[0] for text in texts)
    return min(size, 0.24 * 72 * cell, size * FILLED * cell / widest if widest else size)


def _decimals(values: Array) -> int:
    """As many as the largest needs for three digits."""
    size = e.largest(values)
    return int(np.clip(2 - np.floor(np.log10(size)), 0, 5)) if size else 0


def _fixed(value: float, decimals: int, before: str = "") -> str:
    """With so many decimals; one that would read as zero by its first digit, a long one as a power.

    >>> _fixed(-1.5, 2), _fixed(0.0, 2), _fixed(0.00042, 2, "±"), _fixed(float("nan"), 2)
    ('−1.50', '0.00', '±0.0004', '')
    >>> _fixed(123456.7, 2)
    '1.2e5'
    """
    if np.isnan(value):
        return ""
    rounded = round(float(value), decimals)
    if rounded == 0 and value != 0:
        return before + short_number(float(f"{value:.1g}"))
    if abs(rounded) >= LONG:  # an interval may be far wider than values are large
        return before + f"{value:.1e}".replace("e+0", "e").replace("e+", "e").replace("-", "−")
    return before + f"{rounded + 0.0:.{decimals}f}".replace("-", "−")
