"""What figures of simulated data share: looks, lines with bands, panels and their limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from retvar.errors import InputError
from retvar.experiments.claims import NAMES, only
from retvar.format import listed
from retvar.plots.style import INK, Array

if TYPE_CHECKING:
    import xarray

    Given = xarray.Dataset | Mapping[str, xarray.Dataset]

__all__: list[str] = []  # taken by name

# Okabe and Ito's colours, those next to each other far apart in lightness too
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#000000", "#b3a800")
MARKS = ("o", "s", "^", "D", "v", "P", "X", "p")
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.6)), (0, (1, 1.3)), (0, (6, 1.5, 1, 1.5)))
TRUTH: Any = {"color": INK, "linewidth": 0.9, "linestyle": (0, (5, 3.5)), "zorder": 4}
GRID: Any = {"color": "#e8e8e8", "linewidth": 0.6}
ORDER = ("vtd", "direct", "centred")
BAND = 0.2  # opacity
FARTHEST = 8.0  # times the scale of the truth; what strays farther is cut off


@dataclass(frozen=True)
class Look:
    """How one line is told from others: in colour, in grey and by its marker."""

    colour: str
    mark: str
    dash: Any = "-"
    over: float = 0.0  #: lines that coincide with others are above them, so that both show

    def line(self, **more: Any) -> dict[str, Any]:
        """For ``Axes.plot``."""
        own = {"color": self.colour, "marker": self.mark, "linestyle": self.dash}
        width = 2.0 - self.over
        rest = {"ms": 4, "mec": "white", "mew": 0.5, "lw": width, "zorder": 3 + self.over}
        return {**own, **rest, **more}

    @property
    def ink(self) -> Any:
        """The colour, darker, for text."""
        return tuple(0.72 * part for part in to_rgb(self.colour))


def look(k: int, dashed: bool = False) -> Look:
    """The k-th of several."""
    return Look(COLOURS[k % 8], MARKS[k % 8], DASHES[k % 4] if dashed else "-", 0.4)


METHODS = {  # direct solid, VTD dashed, centred dotted, wherever methods share a panel
    "direct": Look(COLOURS[0], "o", DASHES[0], 0.3),
    "vtd": Look(COLOURS[4], "s", DASHES[1], 0.4),
    "centred": Look(COLOURS[2], "^", DASHES[2], 0.5),
}


def dataset(data: Given) -> xarray.Dataset:
    """The one dataset: itself, or in a mapping; of single runs, their mean and std."""
    found: xarray.Dataset = data if hasattr(data, "data_vars") else only(data)  # type: ignore[assignment]
    if "run" not in found.dims:
        return found
    runs = found[[str(name) for name in found.data_vars if "run" in found[name].dims]]
    ddof = 1 if found.sizes["run"] > 1 else 0
    spread = runs.std("run", ddof=ddof).rename({str(name): f"{name}_std" for name in runs})
    return (
        found.drop_vars(list(runs))
        .drop_dims("run", errors="ignore")
        .merge(runs.mean("run"))
        .merge(spread)
    )


def need(data: xarray.Dataset, *names: str) -> None:
    """Refuse a dataset that lacks what is to be drawn."""
    missing = [name for name in names if name not in data]
    if missing:
        raise InputError("data", f"no {listed(missing)}", "record it: see retvar.Record")


def labels_of(data: xarray.Dataset) -> list[str]:
    """Its learners, the three methods in the paper's order."""
    labels = [str(label) for label in data.learner.values]
    rank = {name: k for k, name in enumerate(ORDER)}
    return sorted(labels, key=lambda label: rank.get(label, len(rank)))


def methods_of(data: xarray.Dataset) -> list[str]:
    """The methods that labels begin with, in the paper's order."""
    labels = [str(label) for label in data.learner.values]
    return [name for name in ORDER if any(label.startswith(name) for label in labels)]


def title(label: str) -> str:
    """A learner's name for people.

    >>> title("vtd"), title("mine")
    ('VTD', 'mine')
    """
    return NAMES.get(label, label)


def look_of(label: str, k: int) -> Look:
    """That of a method, or the k-th of other learners."""
    return METHODS.get(label) or look(k, dashed=True)


def curve(
    ax: Axes,
    x: Array,
    mean: Array,
    std: Array | None,
    how: Look,
    every: Any = None,
    edges: bool = False,
) -> None:
    """A line with its band, where there is one; the scale of y must have been set if it is log.

    With edges, bands that overlap are told apart in grey too.
    """
    ax.plot(x, mean, **how.line(markevery=every))
    if std is None or not np.isfinite(std).any():
        return
    low, high = mean - std, mean + std
    if ax.get_yscale() == "log":  # what is negative runs out of the panel
        low = np.where(np.isnan(low), low, np.maximum(low, ax.get_ylim()[0] / 2))
    ax.fill_between(x, low, high, color=how.colour, alpha=BAND, lw=0, zorder=2)
    if edges:
        edge: Any = {"color": how.colour, "linestyle": how.dash, "lw": 0.6, "alpha": 0.8}
        ax.add_collection(LineCollection([np.stack([x, y], axis=1) for y in (low, high)], **edge))


def sparse(points: int, k: int, of: int) -> tuple[int, int]:
    """Markers at some of many points, those of several lines apart."""
    step = max(1, points // 6)
    return min(points - 1, step // 2 + k * step // (2 * of)), step


def count_axis(ax: Axes, data: xarray.Dataset) -> Array:
    """Steps or episodes along x, in thousands or millions if there are many."""
    unit = "step" if "step" in data.dims else "episode"
    moments = np.asarray(data[unit].values, dtype=float)
    scales = {1e6: " (millions)", 1e3: " (thousands)", 1.0: ""}
    scale = next(scale for scale in scales if moments[-1] >= 2 * scale or scale == 1)
    ax.set_xlabel(f"{unit}s{scales[scale]}")
    ax.set_xlim(0, moments[-1] / scale)
    ax.locator_params(axis="x", nbins=5)
    return moments / scale


def limits(mean: Array, std: Array, truth: Array) -> tuple[float, float]:
    """Room for zero and for the lines and bands of all learners [learner, …] but those that stray.

    >>> mean = np.array([[0.0, 1.0], [5.0, 1e9]])
    >>> low, high = limits(mean, np.zeros((2, 2)), np.array([0.0, 1.0]))
    >>> -0.1 < low < 0 and 1 < high < 1.1
    True
    """
    sizes = np.nanmax(np.abs(mean), axis=tuple(range(1, mean.ndim)), initial=0.0)
    size = np.nanmax(np.abs(truth), initial=0.0) or sizes.min() or 1.0
    calm = sizes <= FARTHEST * size  # others are cut off
    wide = np.nan_to_num(std[calm], posinf=0.0)
    every = np.concatenate(
        [(mean[calm] - wide).ravel(), (mean[calm] + wide).ravel(), truth.ravel()]
    )
    every = np.append(every[np.isfinite(every)], 0.0)
    low, high = max(every.min(), -FARTHEST * size), min(every.max(), FARTHEST * size)
    room = 0.04 * ((high - low) or 1.0)
    return float(low - room), float(high + room)


def panels(count: int, across: int, width: float, height: float) -> tuple[Figure, Sequence[Axes]]:
    """A figure with so many panels in rows; places left over stay empty."""
    across = min(across, count)
    down = -(-count // across)
    size = (width, height * down)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(down, across, squeeze=False).ravel()
    for ax in axes[:count]:
        ax.set_axisbelow(True)
        ax.grid(axis="y", **GRID)
    for ax in axes[count:]:
        figure.delaxes(ax)
    return figure, list(axes[:count])


def hide_inner(axes: Sequence[Axes]) -> None:
    """Panels that share a scale show its figures at the first of each row."""
    for ax in axes[1:]:
        place: Any = ax.get_subplotspec()
        ax.tick_params(labelleft=place.is_first_col())
