"""Observed returns against their predictions, and the calibration of these."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from retvar.plots.estimate_common import (
    Samples,
    add_title,
    common_factor,
    figure_title,
    largest_magnitude,
    message_figure,
    new_figure,
    observed_samples,
    require_columns,
    share_text,
    value_range,
)
from retvar.plots.notebook_figures import Figure
from retvar.plots.style import (
    BLUE,
    GRID,
    INK,
    LIGHT_BLUE,
    ORANGE,
    RC,
    SHADE,
    SOFT,
    TRUTH,
    Array,
    add_legend,
)

if TYPE_CHECKING:
    import xarray

__all__ = ["calibration", "observed_returns"]

SAMPLE_COLUMNS = ("observed", "predicted", "predicted_std")
NEED_SAMPLES = "must hold returns that were observed, each with its prediction"

MAX_BANDS = 60
MAX_POINTS = 4000  # of more returns, every k-th is drawn
TAIL = 0.005  # share of the points on either side that may lie outside the panel
FAR_POINTS = 1.7  # times the height of the other points, from which far ones go to the edge
INSIDE: Any = {"marker": "o", "ms": 2.4, "ls": "none", "color": BLUE, "mew": 0}
OUTSIDE: Any = {"marker": "x", "ms": 3.8, "ls": "none", "color": ORANGE, "mew": 0.9}

MIN_RETURNS = 20  # in a group, and altogether
MAX_GROUPS = 10
MAX_K = 4.0  # std
FAR_GROUPS = 4.0  # times the largest predicted std, from which groups go to the edge
NORMAL = "a normal distribution, for reference only: returns need not be normal"
CHEBYSHEV = "too few, whatever the distribution (Chebyshev), but for chance"
REFERENCE: Any = {"color": SOFT, "lw": 1.2, "ls": (0, (2, 1.5))}


# ---------------------------------------------------------------------- observed returns


def observed_returns(data: xarray.Dataset) -> Figure:
    """Draw observed returns over the band, mean ± 2 std, that was predicted for them.

    Returns are sorted by their predictions. The band is drawn for groups of similar predictions;
    whether a return lies within 2 std depends on its own prediction.

    Parameters
    ----------
    data
        From :func:`retvar.estimate`, with observed returns.

    Raises
    ------
    InputError
        If the dataset holds no observed returns.

    Examples
    --------
    >>> import numpy as np, xarray, retvar as rv
    >>> table = {"observed": [0.0, 1.0, 9.0], "predicted": [1.0] * 3, "predicted_std": [1.0] * 3}
    >>> data = xarray.Dataset({name: ("sample", column) for name, column in table.items()})
    >>> rv.plots.observed_returns(data).axes[0].get_title(loc="left")
    '67% of 3 observed returns lie within 2 std of what was predicted'
    """
    require_columns(data, *SAMPLE_COLUMNS, remedy=NEED_SAMPLES)
    samples = observed_samples(data)
    size = samples.observed.size
    title = figure_title(data, "do observed returns lie where they were predicted?")
    if not size:
        return message_figure(title, "No observed return has a prediction: nothing to compare.")
    factor, suffix = common_factor(_typical_range(samples.observed), samples.predicted, samples.std)
    with matplotlib.rc_context(RC):
        figure = new_figure(7.6, 4.2)
        ax = figure.add_subplot()
        bands = _draw_bands(ax, samples, factor)
        beyond = _draw_points(ax, samples, factor, bands)
        ax.set_title(_share_within(samples), fontsize=9)
        ax.set_xlabel("each observed return, in the order of its prediction")
        ax.set_ylabel(f"return{suffix}")
        ax.grid(axis="y", **GRID)
        ax.set_xlim(-0.005 * size, 1.005 * size)
        ax.set_xticks([])
        add_title(figure, title)
        add_legend(figure, _observed_entries(beyond), ncols=3)
    return figure


def _groups(keys: Array, most: int, least: int = 1) -> list[NDArray[np.intp]]:
    """Indices in at most `most` groups of similar keys and size; equal keys stay together.

    >>> [group.tolist() for group in _groups(np.array([3.0, 1.0, 1.0, 2.0]), most=2)]
    [[1, 2], [3, 0]]
    """
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    wanted = np.linspace(0, keys.size, most + 1)[1:-1].astype(int)
    cuts = [0]
    for cut in np.unique(np.searchsorted(ordered, ordered[wanted])):
        if cut - cuts[-1] >= least and keys.size - cut >= least:
            cuts.append(int(cut))
    return np.split(order, cuts[1:])


def _draw_bands(ax: Axes, samples: Samples, factor: float) -> Array:
    """Draw the mean and the band of each group as steps; return the ends of the bands."""
    groups = _groups(samples.predicted, MAX_BANDS)
    edges = np.concatenate([[0], np.cumsum([group.size for group in groups])])
    mean = np.array([samples.predicted[group].mean() for group in groups]) / factor
    std = np.array([np.sqrt(np.mean((samples.std[group] / factor) ** 2)) for group in groups])
    observed = np.array([samples.observed[group].mean() for group in groups]) / factor
    low, high = mean - 2 * std, mean + 2 * std
    ax.stairs(high, edges, baseline=low, fill=True, color=LIGHT_BLUE, alpha=0.55, lw=0, zorder=1)
    ax.stairs(mean, edges, baseline=None, color=INK, lw=1.5, zorder=4)
    dots: Any = {"mfc": "white", "mec": INK, "mew": 0.9, "ms": 4.2, "ls": "none", "zorder": 5}
    ax.plot((edges[1:] + edges[:-1]) / 2, observed, "D", gid="observed", **dots)
    return np.stack([low, high])


def _draw_points(ax: Axes, samples: Samples, factor: float, bands: Array) -> int:
    """Draw the returns, far ones at the edge of the panel; return how many are far."""
    order = np.argsort(samples.predicted, kind="stable")
    step = -(-order.size // MAX_POINTS)
    x, y = np.arange(order.size)[::step] + 0.5, samples.observed[order][::step] / factor
    inside = samples.within(2)[order][::step]
    low, high = _panel_limits(samples.observed / factor, bands)
    ax.set_ylim(low, high)
    shown = (y >= low) & (y <= high)
    alpha = float(np.clip(400 / x.size, 0.3, 0.9))
    ax.plot(x[inside & shown], y[inside & shown], **INSIDE, alpha=alpha, zorder=2, rasterized=True)
    style: Any = {"alpha": max(alpha, 0.6), "zorder": 3, "rasterized": True}
    ax.plot(x[~inside & shown], y[~inside & shown], **OUTSIDE, **style)
    for marker, beyond, edge in (("^", y > high, high), ("v", y < low, low)):
        ends: Any = {**OUTSIDE, "marker": marker, "ms": 5, "clip_on": False, "gid": "beyond"}
        if beyond.any():
            ax.plot(x[beyond], np.full(int(beyond.sum()), edge), **ends, zorder=6)
    return int(np.sum((samples.observed / factor > high) | (samples.observed / factor < low)))


def _typical_range(observed: Array) -> Array:
    """The range of all returns but the tails."""
    return np.quantile(observed, [TAIL, 1 - TAIL])


def _panel_limits(observed: Array, bands: Array) -> tuple[float, float]:
    """Limits that contain the bands and all points, or all but a few that are far away."""
    low, high = value_range(observed, bands)
    near = value_range(_typical_range(observed), bands)
    if high - low > FAR_POINTS * (near[1] - near[0]):
        low, high = near
    margin = 0.05 * (high - low)
    return low - margin, high + margin


def _share_within(samples: Samples) -> str:
    """The share of returns within 2 std, as a sentence."""
    inside = int(samples.within(2).sum())
    many = share_text(inside, samples.observed.size, "observed returns")
    return f"{many} lie within 2 std of what was predicted{_left_out_text(samples)}"


def _left_out_text(samples: Samples) -> str:
    return f" ({samples.left_out:,} left out: no valid prediction)" if samples.left_out else ""


def _observed_entries(beyond: int) -> list[tuple[Any, str]]:
    """Legend entries of observed returns."""
    band = (Patch(facecolor=LIGHT_BLUE, alpha=0.55, lw=0), Line2D([], [], color=INK, lw=1.5))
    mean = Line2D([], [], marker="D", mfc="white", mec=INK, mew=0.9, ms=4.2, ls="none")
    entries: list[tuple[Any, str]] = [
        (band, "predicted: mean ± 2 std"),
        (mean, "observed: mean of like predictions"),
        (Line2D([], [], **INSIDE), "an observed return"),
        (Line2D([], [], **OUTSIDE), "… beyond 2 std"),
    ]
    if beyond:
        marker = Line2D([], [], **{**OUTSIDE, "marker": "^", "ms": 5})
        entries.append((marker, f"… beyond the panel ({beyond:,})"))
    return entries


# ---------------------------------------------------------------------- calibration


def calibration(data: xarray.Dataset) -> Figure:
    """Draw how far observed returns were from their predictions, against the predicted std.

    Left, returns in groups of similar predicted std: the root mean square of their deviations
    should equal the std. Right, the share of returns within k std; the normal distribution is for
    reference only, since returns need not be normal. With fewer than 20 returns the figure says so.

    Parameters
    ----------
    data
        From :func:`retvar.estimate`, with observed returns.

    Raises
    ------
    InputError
        If the dataset holds no observed returns.

    Examples
    --------
    >>> import numpy as np, xarray, retvar as rv
    >>> table = {"observed": np.tile([-1.0, 1.0], 20), "predicted": np.zeros(40)}
    >>> columns = {**table, "predicted_std": np.ones(40)}
    >>> data = xarray.Dataset({name: ("sample", column) for name, column in columns.items()})
    >>> [ax.get_title(loc="left") for ax in rv.plots.calibration(data).axes]
    ['how far, in groups', 'how many, within k std']
    """
    require_columns(data, *SAMPLE_COLUMNS, remedy=NEED_SAMPLES)
    samples = observed_samples(data)
    size = samples.observed.size
    title = figure_title(data, f"do {size:,} observed returns stray as far as was predicted?")
    if size < MIN_RETURNS:
        text = f"Too few observed returns to judge by: {size}, where {MIN_RETURNS} are needed."
        return message_figure(title, text)
    with matplotlib.rc_context(RC):
        figure = new_figure(9.0, 4.8)
        left, right = figure.subplots(1, 2)
        _draw_deviations(left, samples)
        _draw_coverage(right, samples)
        add_title(figure, title)
        add_legend(figure, _calibration_entries(samples), ncols=2)
    return figure


def _draw_deviations(ax: Axes, samples: Samples) -> None:
    """Draw root mean square deviations against the predicted std, with the diagonal."""
    predicted, observed, error = _grouped_deviations(samples)
    near = observed <= (FAR_GROUPS * predicted.max() or np.inf)
    top = 1.12 * max(predicted.max(), observed[near].max(initial=0.0)) or 1.0
    factor, suffix = common_factor(np.array([top]))
    predicted, observed, error = predicted / factor, observed / factor, error / factor
    top /= factor
    ax.plot([0, top], [0, top], **TRUTH)
    low, high = np.maximum(observed - 2 * error, 0), observed + 2 * error
    ax.vlines(predicted[near], low[near], high[near], color=BLUE, lw=1.2)
    dots: Any = {"color": BLUE, "ls": "none", "mec": "white", "mew": 0.6, "zorder": 5}
    ax.plot(predicted[near], observed[near], "o", ms=5, **dots)
    beyond = int(np.sum(~near))
    if beyond:
        edge = np.full(beyond, top)
        ax.plot(predicted[~near], edge, "^", ms=6, clip_on=False, gid="beyond", **dots)
    ax.set(xlim=(0, top), ylim=(0, top), aspect="equal", axisbelow=True)
    ax.grid(**GRID)
    ax.locator_params(nbins=6)
    ax.set_title("how far, in groups" + (f" (▲ {beyond} beyond the panel)" if beyond else ""))
    ax.set_xlabel(f"predicted standard deviation{suffix}")
    ax.set_ylabel(f"observed deviation{suffix}\n(root mean square, ± 2 standard errors)")


def _grouped_deviations(samples: Samples) -> tuple[Array, Array, Array]:
    """Predicted std, observed std and its standard error of groups of similar predicted std."""
    groups = _groups(samples.std, MAX_GROUPS, MIN_RETURNS)
    deviations = samples.observed - samples.predicted
    scale = largest_magnitude(samples.std, deviations) or 1.0  # so that squares stay finite
    predicted = np.sqrt([np.mean((samples.std[group] / scale) ** 2) for group in groups])
    found = [_root_mean(np.square(deviations[group] / scale)) for group in groups]
    observed, error = np.transpose(found)
    return scale * predicted, scale * observed, scale * error


def _root_mean(squares: Array) -> tuple[float, float]:
    """The root of a mean, and its standard error."""
    root = float(np.sqrt(squares.mean()))
    error = float(np.std(squares, ddof=1)) / math.sqrt(squares.size)
    return root, error / (2 * root) if root else 0.0


def _draw_coverage(ax: Axes, samples: Samples) -> None:
    """Draw the share of returns within k std, for every k."""
    k = np.linspace(0, MAX_K, 161)
    share = np.array([samples.within(x).mean() for x in k])
    bound = np.where(k > 1, 1 - 1 / np.maximum(k, 1) ** 2, 0.0)
    normal = [math.erf(x / math.sqrt(2)) for x in k]
    ax.fill_between(k, 0, bound, color=SHADE, lw=0, zorder=0)
    ax.plot(k, normal, **REFERENCE, zorder=3)
    ax.plot(k, share, color=BLUE, lw=2, zorder=4)
    for x in (1, 2, 3):
        y = float(samples.within(x).mean())
        ax.plot(x, y, "o", color=BLUE, ms=4.5, mec="white", mew=0.6, zorder=5)
    ax.set(xlim=(0, MAX_K), ylim=(0, 1.03), axisbelow=True)
    ax.grid(**GRID)
    ax.set_yticks(np.linspace(0, 1, 6), [f"{p}%" for p in range(0, 101, 20)])
    ax.set_title("how many, within k std")
    ax.set_xlabel("k (times the predicted standard deviation)")
    ax.set_ylabel("share of observed returns")


def _calibration_entries(samples: Samples) -> list[tuple[Any, str]]:
    """Legend entries of the calibration."""
    observed = Line2D([], [], color=BLUE, lw=2, marker="o", ms=5, mec="white", mew=0.6)
    return [
        (observed, f"observed returns{_left_out_text(samples)}"),
        (Line2D([], [], **TRUTH), "as predicted"),
        (Line2D([], [], **REFERENCE), NORMAL),
        (Patch(facecolor=SHADE, edgecolor="#d5d5d5", lw=0.6), CHEBYSHEV),
    ]
