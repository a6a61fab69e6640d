"""Estimates of states of three parts as maps over two of them, such as those of Blackjack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from retvar.plots.estimate_common import (
    COLOUR_MAPS,
    TITLES,
    UNVISITED,
    add_note,
    add_title,
    common_factor,
    finite_column,
    new_figure,
    value_range,
    visited,
    why_unknown,
)
from retvar.plots.notebook_figures import Figure
from retvar.plots.style import RC, Array, shown

if TYPE_CHECKING:
    import xarray

__all__ = ["Layers", "draw_layers", "layers_of"]

MOST_LAYERS = 3
MAX_TICKS = 24
NOT_VISITED = "hatched: never visited"


@dataclass(frozen=True)
class Layers:
    """The parts of each state: the row, the column and the layer of its cell."""

    names: tuple[str, str, str]
    parts: NDArray[np.int64]  #: [state, part]

    @property
    def layers(self) -> list[int]:
        """The values of the third part."""
        return np.unique(self.parts[:, 2]).tolist()  # type: ignore[no-any-return]

    def title(self, layer: int) -> str:
        """What a layer is: with and without, or a value.

        >>> parts = np.array([[1, 2, 0], [1, 2, 1]])
        >>> [Layers(("sum", "card", "ace"), parts).title(k) for k in (0, 1)]
        ['no ace', 'ace']
        """
        name = shown(self.names[2])
        if self.layers == [0, 1]:
            return name if layer else f"no {name}"
        return f"{name} {layer}"


def layers_of(data: xarray.Dataset) -> Layers | None:
    """The parts of the states; None unless they are three whole numbers with names.

    >>> import xarray
    >>> about = {"label_names": "sum; card; ace"}
    >>> data = xarray.Dataset(coords={"label": ("state", ["20, 10, 0", "12, 1, 1"])}, attrs=about)
    >>> layers_of(data).parts.tolist()
    [[20, 10, 0], [12, 1, 1]]
    """
    names = str(data.attrs.get("label_names", "")).split("; ")
    if len(names) != 3 or "label" not in data.coords or data.attrs.get("actions"):
        return None
    try:
        rows = [[int(part) for part in str(label).split(", ")] for label in data["label"].values]
        parts = np.array(rows, dtype=np.int64)
    except ValueError:
        return None
    if parts.ndim != 2 or parts.shape[1] != 3 or len(np.unique(parts[:, 2])) > MOST_LAYERS:
        return None
    return Layers((names[0], names[1], names[2]), parts)


def draw_layers(data: xarray.Dataset, layers: Layers, title: str) -> Figure:
    """Draw a map of the value and one of the std for each layer, on shared scales."""
    known = visited(data)
    low, high = layers.parts[known].min(axis=0), layers.parts[known].max(axis=0)
    size = 0.36 * (high[1] - low[1] + 1), 0.2 * (high[0] - low[0] + 1)
    across = len(layers.layers)
    with matplotlib.rc_context(RC):
        figure = new_figure(max(5.2, across * (size[0] + 0.9) + 0.9), 2 * (size[1] + 0.75) + 0.7)
        axes = figure.subplots(2, across, squeeze=False)
        for row, name in zip(axes, TITLES, strict=True):
            factor = common_factor(np.where(known, finite_column(data, name), np.nan))
            for ax, layer in zip(row, layers.layers, strict=True):
                image: Any = _draw_map(ax, data, name, layers, layer, factor[0])
                ax.set_title(f"{TITLES[name]}{factor[1]}: {layers.title(layer)}", fontsize=9)
                _ticks(ax, low, high)
            row[0].set_ylabel(shown(layers.names[0]))
            bar = figure.colorbar(image, ax=list(row), pad=0.01, fraction=0.04)
            bar.outline.set_visible(False)
        for ax in axes[-1]:
            ax.set_xlabel(shown(layers.names[1]))
        add_title(figure, title)
        unknown = known & np.isnan(finite_column(data, "std"))
        add_note(
            figure, [NOT_VISITED, f"white: {why_unknown(data, unknown)}" * bool(unknown.any())]
        )
    return figure


def _ticks(ax: Axes, low: Array, high: Array) -> None:
    """Limits around all visited cells, with a tick at each whole number if they fit."""
    ax.set(xlim=(low[1] - 0.5, high[1] + 0.5), ylim=(low[0] - 0.5, high[0] + 0.5))
    for axis, k in ((ax.xaxis, 1), (ax.yaxis, 0)):
        step = -(-int(high[k] - low[k] + 1) // MAX_TICKS)
        axis.set_ticks(list(range(int(low[k]), int(high[k]) + 1, step)))
    ax.tick_params(labelsize=7)


def _draw_map(
    ax: Axes, data: xarray.Dataset, name: str, layers: Layers, layer: int, factor: float
) -> Any:
    """Draw one layer; cells that were not visited are hatched, those without estimate white."""
    known = visited(data)
    values = np.where(known, finite_column(data, name) / factor, np.nan)
    low, high = value_range(values)
    (y0, x0, _), (y1, x1, _) = layers.parts.min(axis=0), layers.parts.max(axis=0)
    table = np.full((y1 - y0 + 1, x1 - x0 + 1), np.nan)
    white = np.zeros(table.shape, dtype=bool)
    own = layers.parts[:, 2] == layer
    at = layers.parts[own, 0] - y0, layers.parts[own, 1] - x0
    table[at], white[at] = values[own], (known & np.isnan(values))[own]
    edges = np.arange(x0, x1 + 2) - 0.5, np.arange(y0, y1 + 2) - 0.5
    ax.add_patch(Rectangle((0, 0), 1, 1, transform=ax.transAxes, zorder=0, **UNVISITED))
    if white.any():
        blank = np.ma.masked_array(np.ones(table.shape), ~white)
        ax.pcolormesh(*edges, blank, cmap="gray", vmin=0, vmax=1, zorder=1)
    style: Any = {"cmap": COLOUR_MAPS[name], "vmin": low, "vmax": high, "zorder": 1}
    return ax.pcolormesh(*edges, np.ma.masked_invalid(table), edgecolors="white", lw=0.4, **style)
