"""Calibration: whether returns stray as far as was predicted."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from retvar.plots import estimated as e
from retvar.plots.legend import key
from retvar.plots.observed import NEEDED, WHY, groups
from retvar.plots.scales import SHADE
from retvar.plots.series import GRID, TRUTH
from retvar.plots.style import BLUE, RC, SOFT, Array

if TYPE_CHECKING:
    import xarray

__all__ = ["calibration"]

FEWEST = 20  # returns in a group, and altogether
GROUPS = 10
FARTHEST = 4.0  # std
FAR = 4.0  # times the largest predicted std; groups that stray farther are drawn at the edge
QUESTION = "do {count:,} observed returns stray as far as was predicted?"
NORMAL = "a normal distribution, for reference only: returns need not be normal"
BOUND = "too few, whatever the distribution (Chebyshev), but for chance"
REFERENCE: Any = {"color": SOFT, "lw": 1.2, "ls": (0, (2, 1.5))}


def calibration(data: xarray.Dataset) -> Figure:
    """Draw how far observed returns strayed from their predictions against the predicted std.

    At the left, returns in groups of like predicted std: the root mean square of their deviations
    should equal the std. At the right, how many lie within k std; what a normal distribution
    would give is a reference only, since returns need not be normal.

    Parameters
    ----------
    data
        From :func:`retvar.estimate`, with observed returns.

    Returns
    -------
    Figure
        See :func:`save`; with fewer than 20 returns it holds a sentence that says so.

    Raises
    ------
    InputError
        Where the dataset holds no observed returns.

    Examples
    --------
    >>> import numpy as np, xarray, retvar as rv
    >>> seen = {"observed": np.tile([-1.0, 1.0], 20), "predicted": np.zeros(40)}
    >>> columns = {**seen, "predicted_std": np.ones(40)}
    >>> data = xarray.Dataset({name: ("sample", column) for name, column in columns.items()})
    >>> [ax.get_title(loc="left") for ax in rv.plots.calibration(data).axes]
    ['how far, in groups', 'how many, within k std']
    """
    e.need(data, *NEEDED, why=WHY)
    found = e.samples(data)
    count = found.observed.size
    title = e.heading(data, QUESTION.format(count=count))
    if count < FEWEST:
        text = f"Too few observed returns to judge by: {count}, where {FEWEST} are needed."
        return e.sentence(title, text)
    with matplotlib.rc_context(RC):
        figure = e.page(9.0, 4.8)
        left, right = figure.subplots(1, 2)
        _spread_skill(left, found)
        _coverage(right, found)
        e.put_title(figure, title)
        key(figure, _entries(found.left_out), ncols=2)
    return figure


def _spread_skill(ax: Axes, found: e.Samples) -> None:
    """Root mean square deviations by predicted std, with the diagonal."""
    predicted, seen, error = _grouped(found)
    near = seen <= (FAR * predicted.max() or np.inf)
    top = 1.12 * max(predicted.max(), seen[near].max(initial=0.0)) or 1.0
    unit, suffix = e.unit_of(np.array([top]))
    predicted, seen, error, top = predicted / unit, seen / unit, error / unit, top / unit
    ax.plot([0, top], [0, top], **TRUTH)
    low, high = np.maximum(seen - 2 * error, 0), seen + 2 * error
    ax.vlines(predicted[near], low[near], high[near], color=BLUE, lw=1.2)
    dots: Any = {"color": BLUE, "ls": "none", "mec": "white", "mew": 0.6, "zorder": 5}
    ax.plot(predicted[near], seen[near], "o", ms=5, **dots)
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


def _grouped(found: e.Samples) -> tuple[Array, Array, Array]:
    """Of groups of like predicted std: that std, the observed one, and its standard error."""
    parts = groups(found.std, GROUPS, FEWEST)
    far = found.observed - found.predicted
    size = e.largest(found.std, far) or 1.0  # squares of huge and tiny numbers stay finite
    predicted = np.sqrt([np.mean((found.std[part] / size) ** 2) for part in parts])
    seen, error = np.transpose([_root((far[part] / size) ** 2) for part in parts])
    return size * predicted, size * seen, size * error


def _root(squares: Array) -> tuple[float, float]:
    """The root of a mean, and its standard error."""
    root = float(np.sqrt(squares.mean()))
    error = float(np.std(squares, ddof=1)) / math.sqrt(squares.size)
    return root, error / (2 * root) if root else 0.0


def _coverage(ax: Axes, found: e.Samples) -> None:
    """The share of returns within k std, for every k."""
    k = np.linspace(0, FARTHEST, 161)
    share = np.array([found.within(x).mean() for x in k])
    bound = np.where(k > 1, 1 - 1 / np.maximum(k, 1) ** 2, 0.0)
    normal = [math.erf(x / math.sqrt(2)) for x in k]
    ax.fill_between(k, 0, bound, color=SHADE, lw=0, zorder=0)
    ax.plot(k, normal, **REFERENCE, zorder=3)
    ax.plot(k, share, color=BLUE, lw=2, zorder=4)
    for x in (1, 2, 3):
        y = float(found.within(x).mean())
        ax.plot(x, y, "o", color=BLUE, ms=4.5, mec="white", mew=0.6, zorder=5)
    ax.set(xlim=(0, FARTHEST), ylim=(0, 1.03), axisbelow=True)
    ax.grid(**GRID)
    ax.set_yticks(np.linspace(0, 1, 6), [f"{p}%" for p in range(0, 101, 20)])
    ax.set_title("how many, within k std")
    ax.set_xlabel("k (times the predicted standard deviation)")
    ax.set_ylabel("share of observed returns")


def _entries(left_out: int) -> list[tuple[Any, str]]:
    """For the legend."""
    more = f" ({left_out:,} left out: no valid prediction)" if left_out else ""
    seen = Line2D([], [], color=BLUE, lw=2, marker="o", ms=5, mec="white", mew=0.6)
    return [
        (seen, f"observed returns{more}"),
        (Line2D([], [], **TRUTH), "as predicted"),
        (Line2D([], [], **REFERENCE), NORMAL),
        (Patch(facecolor=SHADE, edgecolor="#d5d5d5", lw=0.6), BOUND),
    ]
