"""What was predicted against the returns that were seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from retvar.plots import estimated as e
from retvar.plots.legend import key
from retvar.plots.series import GRID
from retvar.plots.style import BLUE, INK, LIGHT_BLUE, ORANGE, RC, Array

if TYPE_CHECKING:
    import xarray

__all__ = ["observed_returns"]

NEEDED = ("observed", "predicted", "predicted_std")
WHY = "must hold returns that were observed, each with its prediction"
BINS = 60
DRAWN = 4000  # points; of more, some
TAIL = 0.005  # of the points on either side may lie beyond the panel
FAR = 1.7  # times the height of all others: then points beyond are drawn at the edge
INSIDE: Any = {"marker": "o", "ms": 2.4, "ls": "none", "color": BLUE, "mew": 0}
OUTSIDE: Any = {"marker": "x", "ms": 3.8, "ls": "none", "color": ORANGE, "mew": 0.9}
QUESTION = "do observed returns lie where they were predicted?"


def observed_returns(data: xarray.Dataset) -> Figure:
    """Draw returns that were observed in the band, mean ± 2 std, that was predicted for them.

    They stand in the order of their predictions, the lowest at the left. The band is drawn for
    groups of like predictions; whether a return lies within 2 std is told by its own.

    Parameters
    ----------
    data
        From :func:`retvar.estimate`, with observed returns.

    Returns
    -------
    Figure
        See :func:`save`.

    Raises
    ------
    InputError
        Where the dataset holds no observed returns.

    Examples
    --------
    >>> import numpy as np, xarray, retvar as rv
    >>> seen = {"observed": [0.0, 1.0, 9.0], "predicted": [1.0] * 3, "predicted_std": [1.0] * 3}
    >>> data = xarray.Dataset({name: ("sample", column) for name, column in seen.items()})
    >>> rv.plots.observed_returns(data).axes[0].get_title(loc="left")
    '67% of 3 observed returns lie within 2 std of what was predicted'
    """
    e.need(data, *NEEDED, why=WHY)
    found = e.samples(data)
    title = e.heading(data, QUESTION)
    if not found.observed.size:
        return e.sentence(title, "No observed return has a prediction: nothing to compare.")
    unit, suffix = e.unit_of(_most(found.observed), found.predicted, found.std)
    with matplotlib.rc_context(RC):
        figure = e.page(7.6, 4.2)
        ax = figure.add_subplot()
        bands = _bands(ax, found, unit)
        outside = _points(ax, found, unit, bands)
        ax.set_title(_told(found), fontsize=9)
        ax.set_xlabel("each observed return, in the order of its prediction")
        ax.set_ylabel(f"return{suffix}")
        ax.grid(axis="y", **GRID)
        ax.set_xlim(-0.005 * found.observed.size, 1.005 * found.observed.size)
        ax.set_xticks([])
        e.put_title(figure, title)
        key(figure, _entries(outside), ncols=3)
    return figure


def groups(keys: Array, most: int, least: int = 1) -> list[NDArray[np.intp]]:
    """Where like keys stand: at most so many groups of about equal size, equal keys together.

    >>> [group.tolist() for group in groups(np.array([3.0, 1.0, 1.0, 2.0]), most=2)]
    [[1, 2], [3, 0]]
    """
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    wished = np.linspace(0, keys.size, most + 1)[1:-1].astype(int)
    cuts = [0]
    for cut in np.unique(np.searchsorted(ordered, ordered[wished])):
        if cut - cuts[-1] >= least and keys.size - cut >= least:
            cuts.append(int(cut))
    return np.split(order, cuts[1:])


def _bands(ax: Axes, found: e.Samples, unit: float) -> Array:
    """The mean and the band of each group, as steps; returns their ends."""
    parts = groups(found.predicted, BINS)
    edges = np.concatenate([[0], np.cumsum([part.size for part in parts])])
    mean = np.array([found.predicted[part].mean() for part in parts]) / unit
    std = np.array([np.sqrt(np.mean((found.std[part] / unit) ** 2)) for part in parts])
    seen = np.array([found.observed[part].mean() for part in parts]) / unit
    look: Any = {"baseline": None, "edges": edges, "color": INK}
    low, high = mean - 2 * std, mean + 2 * std
    ax.stairs(high, edges, baseline=low, fill=True, color=LIGHT_BLUE, alpha=0.55, lw=0, zorder=1)
    ax.stairs(mean, **look, lw=1.5, zorder=4)
    dots: Any = {"mfc": "white", "mec": INK, "mew": 0.9, "ms": 4.2, "ls": "none", "zorder": 5}
    ax.plot((edges[1:] + edges[:-1]) / 2, seen, "D", gid="seen", **dots)
    return np.stack([low, high])


def _points(ax: Axes, found: e.Samples, unit: float, bands: Array) -> int:
    """Each return, at its place in the order; how many lie beyond the panel."""
    order = np.argsort(found.predicted, kind="stable")
    step = -(-order.size // DRAWN)
    x, y = np.arange(order.size)[::step] + 0.5, found.observed[order][::step] / unit
    inside = found.within(2)[order][::step]
    low, high = _limits(found.observed / unit, bands)
    ax.set_ylim(low, high)
    shown = (y >= low) & (y <= high)
    alpha = float(np.clip(400 / x.size, 0.3, 0.9))
    ax.plot(x[inside & shown], y[inside & shown], **INSIDE, alpha=alpha, zorder=2, rasterized=True)
    look: Any = {"alpha": max(alpha, 0.6), "zorder": 3, "rasterized": True}
    ax.plot(x[~inside & shown], y[~inside & shown], **OUTSIDE, **look)
    for mark, beyond, edge in (("^", y > high, high), ("v", y < low, low)):
        ends: Any = {**OUTSIDE, "marker": mark, "ms": 5, "clip_on": False, "gid": "beyond"}
        if beyond.any():
            ax.plot(x[beyond], np.full(int(beyond.sum()), edge), **ends, zorder=6)
    return int(np.sum((found.observed / unit > high) | (found.observed / unit < low)))


def _most(observed: Array) -> Array:
    """The ends of the range that all but a few lie in."""
    return np.quantile(observed, [TAIL, 1 - TAIL])


def _limits(observed: Array, bands: Array) -> tuple[float, float]:
    """Room for the bands and all points, or for all but a few that are far away."""
    low, high = e.span(observed, bands)
    near = e.span(_most(observed), bands)
    if high - low > FAR * (near[1] - near[0]):
        low, high = near
    room = 0.05 * (high - low)
    return low - room, high + room


def _told(found: e.Samples) -> str:
    """How many lie in their bands, in words."""
    inside = int(found.within(2).sum())
    many = e.share(inside, found.observed.size, "observed returns")
    text = f"{many} lie within 2 std of what was predicted"
    if found.left_out:
        text += f" ({found.left_out:,} left out: no valid prediction)"
    return text


def _entries(beyond: int) -> list[tuple[Any, str]]:
    """For the legend."""
    band = (Patch(facecolor=LIGHT_BLUE, alpha=0.55, lw=0), Line2D([], [], color=INK, lw=1.5))
    seen = Line2D([], [], marker="D", mfc="white", mec=INK, mew=0.9, ms=4.2, ls="none")
    entries: list[tuple[Any, str]] = [
        (band, "predicted: mean ± 2 std"),
        (seen, "observed: mean of like predictions"),
        (Line2D([], [], **INSIDE), "an observed return"),
        (Line2D([], [], **OUTSIDE), "… beyond 2 std"),
    ]
    if beyond:
        mark = Line2D([], [], **{**OUTSIDE, "marker": "^", "ms": 5})
        entries.append((mark, f"… beyond the panel ({beyond:,})"))
    return entries
