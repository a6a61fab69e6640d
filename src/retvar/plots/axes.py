"""Panels, axes, lines with bands and labels next to data, for simulations and sweeps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.text import Annotation
from matplotlib.ticker import FixedFormatter, FixedLocator, LogLocator, MaxNLocator, NullLocator
from matplotlib.transforms import Bbox

from retvar import arguments
from retvar.errors import InputError
from retvar.format import listed, short_number
from retvar.networks import NETWORKS
from retvar.plots.notebook_figures import Figure
from retvar.plots.style import BAND_ALPHA, GRID, LINE, SHADE, Array, LineStyle, text_size

if TYPE_CHECKING:
    import xarray

    Datasets = xarray.Dataset | Mapping[str, xarray.Dataset]

__all__: list[str] = []  # names are imported one by one

METHOD_ORDER = tuple(sorted(NETWORKS, key=lambda method: NETWORKS[method].look.rank))
CUTOFF = 8.0  # times the scale of the truth; lines beyond are cut off
LARGEST = 1e300  # number on an axis
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
COMPRESSED_HEIGHT = 0.3  # share of the height of a panel
PLAIN_POWERS = 3  # powers of ten up to this are written out
LABEL_SIZE = 8.0  # points
LABEL_SPACING = 1.15  # lines of text from one label to the next
LABEL_DISTANCES = (4.0, 7.0, 11.0, 16.0, 22.0)  # points from a data point to its label
LABEL_SIDES = [  # the best first
    (x, y) for x in (0, -0.6, 0.6, -1, 1) for y in (1, -1, 0.6, -0.6, 0) if x or y
]


# ---------------------------------------------------------------------- datasets


def single_dataset(data: Datasets) -> xarray.Dataset:
    """The dataset, or the only one of a mapping; single runs become their mean and std."""
    found = dataset(data)
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


def dataset(data: Any, field: str = "data") -> xarray.Dataset:
    """The dataset, or the only one of a mapping."""
    several = list(data.values()) if isinstance(data, Mapping) and not _is_dataset(data) else [data]
    if len(several) != 1 or not _is_dataset(several[0]):
        remedy = "must be a dataset, such as one of retvar.simulate, or a mapping with one"
        raise InputError(field, type(data).__name__, remedy)
    found: xarray.Dataset = several[0]
    return found


def datasets(data: Any) -> Mapping[str, xarray.Dataset]:
    """Datasets by name."""
    if (
        not isinstance(data, Mapping)
        or _is_dataset(data)
        or not all(map(_is_dataset, data.values()))
    ):
        raise InputError("data", type(data).__name__, "must be a mapping from names to datasets")
    return data


def at_least_one(field: str, given: Any) -> list[float]:
    """Numbers that an axis can show, at least one."""
    found: list[float] = np.atleast_1d(arguments.numbers(field, given)).tolist()
    if not found:
        raise InputError(field, "none", "must be at least one number")
    if max(map(abs, found)) > LARGEST:
        raise InputError(field, f"{max(found, key=abs):g}", f"must not exceed {LARGEST:g}")
    return found


def _is_dataset(data: Any) -> bool:
    return hasattr(data, "data_vars") and not isinstance(data, type)


def require_recorded(data: xarray.Dataset, *names: str) -> None:
    """Raise an InputError if the dataset lacks a variable."""
    missing = [name for name in names if name not in data]
    if missing:
        raise InputError("data", f"no {listed(missing)}", "record it: see retvar.Record")


def learner_labels(data: xarray.Dataset) -> list[str]:
    """Labels of the learners, the three methods first, in the paper's order."""
    labels = [str(label) for label in data.learner.values]
    rank = {name: k for k, name in enumerate(METHOD_ORDER)}
    return sorted(labels, key=lambda label: rank.get(label, len(rank)))


def method_names(data: xarray.Dataset) -> list[str]:
    """Methods that labels of learners begin with, in the paper's order."""
    labels = [str(label) for label in data.learner.values]
    return [name for name in METHOD_ORDER if any(label.startswith(name) for label in labels)]


# ---------------------------------------------------------------------- panels and lines


def make_panels(
    count: int, columns: int, width: float, height: float
) -> tuple[Figure, Sequence[Axes]]:
    """A figure `width` inches wide with panels in rows of `height` inches."""
    columns = min(columns, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(width, height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for ax in axes[:count]:
        ax.set_axisbelow(True)
        ax.grid(axis="y", **GRID)
    for ax in axes[count:]:
        figure.delaxes(ax)
    return figure, list(axes[:count])


def hide_inner_tick_labels(axes: Sequence[Axes]) -> None:
    """Show tick labels of a shared y axis only at the first panel of each row."""
    for ax in axes[1:]:
        place: Any = ax.get_subplotspec()
        ax.tick_params(labelleft=place.is_first_col())


def plot_with_band(
    ax: Axes,
    x: Array,
    mean: Array,
    std: Array | None,
    style: LineStyle,
    markevery: Any = None,
    edges: bool = False,
) -> None:
    """Plot a line with a band of ± std; set a logarithmic y axis and its limits before.

    `edges` outlines the band, so that overlapping bands can be distinguished in grey.
    """
    ax.plot(x, mean, **style.plot_options(markevery=markevery))
    if std is None or not np.isfinite(std).any():
        return
    low, high = mean - std, mean + std
    if ax.get_yscale() == "log":  # negative ends run out of the panel
        low = np.where(np.isnan(low), low, np.maximum(low, ax.get_ylim()[0] / 2))
    ax.fill_between(x, low, high, color=style.colour, alpha=BAND_ALPHA, lw=0, zorder=2)
    if edges:
        edge: Any = {"color": style.colour, "linestyle": style.dash, "lw": 0.6, "alpha": 0.8}
        ax.add_collection(LineCollection([np.stack([x, y], axis=1) for y in (low, high)], **edge))


def staggered_markers(points: int, k: int, lines: int) -> tuple[int, int]:
    """``markevery`` for the k-th of several lines, so that their markers do not coincide."""
    step = max(1, points // 6)
    return min(points - 1, step // 2 + k * step // (2 * lines)), step


def time_axis(ax: Axes, data: xarray.Dataset) -> Array:
    """Label x with steps or episodes, if many in thousands or millions; return the positions."""
    unit = "step" if "step" in data.dims else "episode"
    moments = np.asarray(data[unit].values, dtype=float)
    scales = {1e6: " (millions)", 1e3: " (thousands)", 1.0: ""}
    scale = next(scale for scale in scales if moments[-1] >= 2 * scale or scale == 1)
    ax.set_xlabel(f"{unit}s{scales[scale]}")
    ax.set_xlim(0, moments[-1] / scale)
    ax.locator_params(axis="x", nbins=5)
    return moments / scale


def y_limits(mean: Array, std: Array, truth: Array) -> tuple[float, float]:
    """Limits that contain zero and the bands of all learners [learner, …] but diverging ones.

    >>> mean = np.array([[0.0, 1.0], [5.0, 1e9]])
    >>> low, high = y_limits(mean, np.zeros((2, 2)), np.array([0.0, 1.0]))
    >>> -0.1 < low < 0 and 1 < high < 1.1
    True
    """
    sizes = np.nanmax(np.abs(mean), axis=tuple(range(1, mean.ndim)), initial=0.0)
    size = np.nanmax(np.abs(truth), initial=0.0) or sizes.min() or 1.0
    bounded = sizes <= CUTOFF * size
    spread = np.nan_to_num(std[bounded], posinf=0.0)
    every = np.concatenate(
        [(mean[bounded] - spread).ravel(), (mean[bounded] + spread).ravel(), truth.ravel()]
    )
    every = np.append(every[np.isfinite(every)], 0.0)
    low, high = max(every.min(), -CUTOFF * size), min(every.max(), CUTOFF * size)
    margin = 0.04 * ((high - low) or 1.0)
    return float(low - margin), float(high + margin)


# ---------------------------------------------------------------------- scales and ticks


def tick_labels(values: Sequence[float], base: int = 10) -> list[str]:
    """Labels of ticks: powers of the base where all are such and some are long, else numbers.

    >>> tick_labels([0.01, 0.1, 1.0]), tick_labels([0.0, 1e-5, 0.1]), tick_labels([500.0, 2000.0])
    (['0.01', '0.1', '1'], ['0', '10⁻⁵', '10⁻¹'], ['500', '2000'])
    >>> tick_labels([2**-9, 1.0], 2)
    ['2⁻⁹', '1']
    """
    exponents = [math.log(value, base) for value in values if value > 0]
    short = base == 10 and all(abs(exponent) <= PLAIN_POWERS for exponent in exponents)
    if short or any(abs(exponent - round(exponent)) > 1e-9 for exponent in exponents):
        return [short_number(value) for value in values]
    raised = [str(round(exponent)).translate(SUPERSCRIPT) for exponent in exponents]
    texts = iter("1" if text == "⁰" else f"{base}{text}" for text in raised)
    return [next(texts) if value > 0 else short_number(value) for value in values]


def fixed_ticks(axis: Any, ticks: Sequence[float], labels: Sequence[str]) -> None:
    """Set the ticks of an axis, with their labels and no minor ticks."""
    axis.set_major_locator(FixedLocator(list(ticks)))
    axis.set_major_formatter(FixedFormatter(list(labels)))
    axis.set_minor_locator(NullLocator())


def shared_log_y(axes: Sequence[Axes], values: Array) -> None:
    """Give all panels the same logarithmic y axis, wide enough for these values."""
    positive = values[np.isfinite(values) & (values > 0)]
    low, high = (positive.min(), positive.max()) if positive.size else (0.1, 1.0)
    margin = max(1.1, (high / low) ** 0.06)
    low, high = low / margin, high * margin
    decades = math.log10(high / low)
    subs = (1.0,) if decades > 2.6 else (1.0, 2.0, 5.0)
    ticks = [
        y for y in LogLocator(subs=subs, numticks=20).tick_values(low, high) if low <= y <= high
    ]
    ticks = ticks[:: 1 + len(ticks) // 12]
    for ax in axes:
        ax.set_yscale("log")
        ax.set_ylim(low, high)
        fixed_ticks(ax.yaxis, ticks, tick_labels(ticks))


def compress_y(ax: Axes, low: float, knee: float, high: float) -> None:
    """Set a y axis that is linear above the knee, and compressed and shaded below it."""
    share = COMPRESSED_HEIGHT
    factor = max(1.0, (knee - low) / (high - knee) * (1 - share) / share)

    def forward(y: Array) -> Array:
        return np.where(y >= knee, y, knee + (y - knee) / factor)

    def inverse(y: Array) -> Array:
        return np.where(y >= knee, y, knee + (y - knee) * factor)

    ax.set_yscale("function", functions=(forward, inverse))
    ax.set_ylim(low, high)
    ax.axhspan(low, knee, color=SHADE, lw=0, zorder=0)
    above = [y for y in MaxNLocator(5).tick_values(0, high) if y >= 0]
    below = [y for y in MaxNLocator(3).tick_values(low, 0) if y < knee + (low - knee) / 5]
    ax.yaxis.set_major_locator(FixedLocator([*below, *above]))


def log_x_axis(ax: Axes, values: Sequence[float], base: int = 10) -> Array:
    """Set a logarithmic x axis with ticks at these values, and 0 left of a break.

    Return the position of each value.
    """
    x = np.asarray(values, dtype=float)
    least = float(x[x > 0].min()) if (x > 0).any() else 1.0
    positions = np.where(x > 0, x, least / base)
    ax.set_xscale("log", base=base)
    ax.set_xlim(positions.min() / base**0.35, positions.max() * base**0.35)
    fixed_ticks(ax.xaxis, np.unique(positions).tolist(), tick_labels(np.unique(x).tolist(), base))
    if (x == 0).any():
        _axis_break(ax, least / math.sqrt(base))
    return np.asarray(positions)


def _axis_break(ax: Axes, x: float) -> None:
    """Draw two strokes through the x axis and erase the axis between them."""
    common: Any = {"transform": ax.get_xaxis_transform(), "clip_on": False, "zorder": 10}
    ends = [x / 1.15, x * 1.15]
    ax.plot(ends, [0, 0], color="white", lw=2.5, **common)
    strokes: Any = {"marker": [(-0.5, -1), (0.5, 1)], "ms": 8, "ls": "none", "mew": 0.8}
    ax.plot(ends, [0, 0], color=LINE, gid="break", **strokes, **common)


# ---------------------------------------------------------------------- labels next to data


def label_line_ends(
    ax: Axes, heights: Sequence[float], texts: Sequence[str], colours: Sequence[Any]
) -> None:
    """Write a label right of the end of each line; a line that ends in NaN gets none.

    Call :func:`spread_end_labels` once everything else is drawn.
    """
    for height, text, colour in zip(heights, texts, colours, strict=True):
        if np.isfinite(height):
            ax.annotate(
                text, (1, height), (5, 0), ("axes fraction", "data"),
                textcoords="offset points", fontsize=LABEL_SIZE, color=colour, va="center",
                annotation_clip=False, gid="end",
            )  # fmt: skip


def spread_end_labels(axes: Sequence[Axes]) -> None:
    """Lay out the figure, then move end labels apart; an arrow marks lines that leave the panel."""
    figure: Any = axes[0].figure
    for ax in axes:  # first into the panel: labels outside would widen the layout
        for label in _end_labels(ax):
            low, high = ax.get_ylim()
            height = label.xy[1]
            label.xy = (1, min(max(height, low), high))
            arrow = "↑" if height > high else "↓" if height < low else ""
            label.set_text(label.get_text() + arrow)
    figure.draw_without_rendering()
    point = figure.dpi / 72
    for ax in axes:
        labels = _end_labels(ax)
        if not labels:
            continue
        wanted = ax.transData.transform([(0, label.xy[1]) for label in labels])[:, 1]
        box = ax.get_window_extent()
        found = separate(wanted, LABEL_SPACING * LABEL_SIZE * point, box.y0, box.y1)
        for label, old, new in zip(labels, wanted, found, strict=True):
            label.set_position((5, (new - old) / point))


def _end_labels(ax: Axes) -> list[Annotation]:
    return [text for text in ax.texts if isinstance(text, Annotation) and text.get_gid() == "end"]


def separate(y: Array, gap: float, low: float, high: float) -> Array:
    """The positions nearest to `y` that are at least `gap` apart and, if they fit, in [low, high].

    Least squares under an order constraint, by pooling adjacent violators.

    >>> separate(np.array([0.0, 0.0, 5.0]), 1.0, -9.0, 9.0).tolist()
    [-0.5, 0.5, 5.0]
    >>> separate(np.array([0.0, 0.0]), 1.0, 0.0, 9.0).tolist()
    [0.0, 1.0]
    """
    order = np.argsort(y, kind="stable")
    steps = gap * np.arange(y.size)
    pools: list[list[float]] = []  # mean and size
    for wanted in y[order] - steps:
        pools.append([float(wanted), 1])
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (a, m), (b, n) = pools[-2:]
            pools[-2:] = [[(a * m + b * n) / (m + n), m + n]]
    pooled = np.concatenate([np.full(int(size), mean) for mean, size in pools])
    top = high - (steps[-1] if y.size else 0.0)
    found = np.empty_like(y)
    found[order] = np.clip(pooled, low, max(low, top)) + steps
    return found


def label_points(
    ax: Axes, lines: Sequence[Array], texts: Sequence[Sequence[str]], colours: Sequence[Any]
) -> None:
    """Write a text at each point of lines [point, xy] where it covers no line and no other text.

    The figure must have been laid out.
    """
    figure: Any = ax.figure
    paths = [ax.transData.transform(line) for line in lines]
    ink = np.concatenate([_interpolated(path) for path in paths])
    taken: list[Bbox] = []
    for path, names, colour in zip(paths, texts, colours, strict=True):
        for point, name in zip(path, names, strict=True):
            size = np.array(text_size(name, LABEL_SIZE - 1)) * figure.dpi
            box = _free_box(point, size, ink, taken, ax.get_window_extent(), figure.dpi / 72)
            taken.append(box)
            x, y = ax.transAxes.inverted().transform(box.get_points().mean(axis=0))
            ax.text(
                x, y, name, transform=ax.transAxes, ha="center", va="center", gid="point",
                fontsize=LABEL_SIZE - 1, color=colour,
            )  # fmt: skip


def _free_box(
    point: Array, size: Array, ink: Array, taken: list[Bbox], panel: Bbox, pixels: float
) -> Bbox:
    """The box near a point that covers least; `pixels` is the size of a typographic point."""
    best, least = Bbox.unit(), np.inf
    for distance, side in product(LABEL_DISTANCES, LABEL_SIDES):
        centre = point + np.array(side) * (distance * pixels + size / 2)
        box = Bbox([centre - size / 2, centre + size / 2])
        padded = box.padded(pixels)
        low, high = padded.get_points()
        covered = np.sum(np.all((ink > low) & (ink < high), axis=1))
        overlaps = sum(padded.overlaps(other) for other in taken)
        outside = not all(panel.contains(x, y) for x, y in box.get_points())
        cost = 1000 * overlaps + 20 * int(covered) + 100 * outside + distance
        if cost < least:
            best, least = box, cost
    return best


def _interpolated(path: Array) -> Array:
    """Closely spaced points along a line."""
    t = np.linspace(0, len(path) - 1, 40 * len(path))
    return np.stack([np.interp(t, np.arange(len(path)), path[:, i]) for i in (0, 1)], axis=1)
