"""Observed returns against their predictions, their calibration, and the check by roll-outs."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import xarray
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from scipy.special import erf

from retvar.plots import estimates as e
from retvar.plots import style
from retvar.plots.estimates import TITLES, column
from retvar.plots.panels import common_factor, largest_magnitude, value_range
from retvar.plots.style import BLUE, INK, LIGHT_BLUE, NAVY, ORANGE, Array, Entry, Figure
from retvar.support.format import count

SAMPLE_COLUMNS = ("observed", "predicted", "predicted_std")
MIN_RETURNS = 20  # in a group, and altogether
TAIL = 0.005  # share of the points on either side that may lie outside the panel
FAR_POINTS = 1.7  # times the height of the other points, from which far ones go to the edge
FAR_GROUPS = 4.0  # times the largest predicted std, from which groups go to the edge
INSIDE: Any = {"marker": "o", "ms": 2.4, "ls": "none", "color": BLUE, "mew": 0}
OUTSIDE: Any = {"marker": "x", "ms": 3.8, "ls": "none", "color": ORANGE, "mew": 0.9}
BEYOND: Any = {**OUTSIDE, "marker": "^", "ms": 5}
MEANS: Any = {"marker": "D", "mfc": "white", "mec": INK, "mew": 0.9, "ms": 4.2, "ls": "none"}
REFERENCE: Any = {"color": style.SOFT, "lw": 1.2, "ls": (0, (2, 1.5))}
DOT: Any = {"marker": "o", "ls": "none", "color": NAVY, "mec": "white", "mew": 0.5}
GROUP: Any = {**DOT, "color": BLUE, "mew": 0.6, "zorder": 5}
PREDICTED = {"value": "check_value", "std": "check_predicted_std"}  # where fresh returns began


class Samples(NamedTuple):
    """Observed returns with their predictions; all are finite."""

    observed: Array
    predicted: Array
    std: Array
    left_out: str = ""  #: how many returns have no valid prediction

    def within(self, k: float) -> style.Flags:
        """Whether each return lies within k std of its prediction, ends included."""
        rounding = 1e-9 * largest_magnitude(self.observed, self.predicted)
        return np.abs(self.observed - self.predicted) <= k * self.std + rounding


def observed_samples(data: xarray.Dataset) -> Samples:
    """The observed returns that have a valid prediction."""
    remedy = "must hold returns that were observed, each with its prediction"
    e.require_columns(data, *SAMPLE_COLUMNS, remedy=remedy)
    columns = np.array([column(data, name) for name in SAMPLE_COLUMNS])
    complete = np.all(np.isfinite(columns), axis=0) & (columns[2] >= 0)
    missing = int(np.sum(~complete))
    words = f" ({missing:,} left out: no valid prediction)" if missing else ""
    observed, predicted, std = columns[:, complete]
    return Samples(observed, predicted, std, words)


def groups_of(keys: Array, most: int, least: int = 1) -> list[style.Indices]:
    """Indices in at most `most` groups of similar keys and size; equal keys stay together."""
    order = np.argsort(keys, kind="stable")
    ordered, cuts = keys[order], [0]
    wanted = np.linspace(0, keys.size, most + 1)[1:-1].astype(int)
    for cut in np.unique(np.searchsorted(ordered, ordered[wanted])):
        if cut - cuts[-1] >= least and keys.size - cut >= least:
            cuts.append(int(cut))
    return np.split(order, cuts[1:])


class Bands(NamedTuple):
    """What was predicted for groups of similar predictions, and the mean of what was observed."""

    edges: Array  #: of the groups, in returns
    mean: Array
    std: Array
    observed: Array


def bands_of(samples: Samples) -> Bands:
    """The groups of returns, in the order of their predictions."""
    groups = groups_of(samples.predicted, most=60)
    edges = np.concatenate([[0], np.cumsum([group.size for group in groups])])
    columns = samples.predicted, np.square(samples.std), samples.observed
    mean, variance, observed = (np.array([x[g].mean() for g in groups]) for x in columns)
    return Bands(edges, mean, np.sqrt(variance), observed)


@style.styled
def observed_returns(data: xarray.Dataset) -> Figure:
    """Draw observed returns over the band, mean ± 2 std, that was predicted for them.

    Returns are sorted by their predictions. The band is drawn for groups of similar predictions;
    whether a return lies within 2 std depends on its own prediction.

    `data` is from :func:`retvar.estimate`, with observed returns.
    """
    found = observed_samples(data)
    title, size = "do observed returns lie where they were predicted?", found.observed.size
    if not size:
        text = "No observed return has a prediction: nothing to compare."
        return style.message_figure(e.figure_title(data, title), text)
    typical = np.quantile(found.observed, [TAIL, 1 - TAIL])
    factor, suffix = common_factor(typical, found.predicted, found.std)
    observed, predicted, std = (np.divide(x, factor) for x in found[:3])
    found = Samples(observed, predicted, std, found.left_out)
    edges, mean, std, observed = bands_of(found)
    low, high = mean - 2 * std, mean + 2 * std
    bottom, top = value_range(found.observed, low, high)
    near = value_range(typical / factor, low, high)
    if top - bottom > FAR_POINTS * (near[1] - near[0]):
        bottom, top = near
    bottom, top = 1.05 * bottom - 0.05 * top, 1.05 * top - 0.05 * bottom
    figure = style.new_figure(7.6, 4.2, e.figure_title(data, title))
    ax = figure.add_subplot(xlabel="each observed return, in the order of its prediction")
    ax.stairs(high, edges, baseline=low, fill=True, color=LIGHT_BLUE, alpha=0.55, lw=0, zorder=1)
    ax.stairs(mean, edges, baseline=None, color=INK, lw=1.5, zorder=4)
    ax.plot((edges[1:] + edges[:-1]) / 2, observed, gid="observed", zorder=5, **MEANS)
    shown = np.argsort(found.predicted, kind="stable")[:: -(-size // 4000)]
    x = np.linspace(0, size, shown.size, endpoint=False) + 0.5
    y, inside = found.observed[shown], found.within(2)
    within, alpha = (y >= bottom) & (y <= top), float(np.clip(400 / x.size, 0.3, 0.9))
    for own, look, opaque in ((inside, INSIDE, alpha), (~inside, OUTSIDE, max(alpha, 0.6))):
        at = own[shown] & within
        ax.plot(x[at], y[at], **look, alpha=opaque, zorder=3, rasterized=True)
    for marker, far, edge in (("^", y > top, top), ("v", y < bottom, bottom)):
        ends: Any = {**BEYOND, "marker": marker, "clip_on": False, "gid": "beyond"}
        if far.any():  # an empty line would take up space
            ax.plot(x[far], np.full(int(far.sum()), edge), **ends, zorder=6)
    many = f"{inside.sum():,} of {size:,} observed returns ({inside.mean():.1%})"
    words = f"{many} lie within 2 std of what was predicted{found.left_out}"
    ax.set_title(words, fontsize=9)
    ax.set(
        ylabel=f"return{suffix}", ylim=(bottom, top), xlim=(-0.005 * size, 1.005 * size), xticks=[]
    )
    ax.grid(axis="y", **style.GRID)
    band = (Patch(facecolor=LIGHT_BLUE, alpha=0.55, lw=0), style.sample(color=INK, lw=1.5))
    looks = {"observed: mean of like predictions": MEANS, "an observed return": INSIDE}
    looks["… beyond 2 std"] = OUTSIDE
    if beyond := int(np.sum((found.observed > top) | (found.observed < bottom))):
        looks[f"… beyond the panel ({beyond:,})"] = BEYOND
    entries: list[Entry] = [(style.sample(**look), text) for text, look in looks.items()]
    style.add_legend(figure, [(band, "predicted: mean ± 2 std"), *entries], ncols=3)
    return figure


@style.styled
def calibration(data: xarray.Dataset) -> Figure:
    """Draw how far observed returns were from their predictions, against the predicted std.

    Left, returns in groups of similar predicted std: the root mean square of their deviations
    should equal the std. Right, the share of returns within k std; the normal distribution is for
    reference only, since returns need not be normal. With fewer than 20 returns the figure says so.

    `data` is from :func:`retvar.estimate`, with observed returns.
    """
    found = observed_samples(data)
    size = found.observed.size
    title = e.figure_title(data, f"do {size:,} observed returns stray as far as was predicted?")
    if size < MIN_RETURNS:
        text = f"Too few observed returns to judge by: {size}, where {MIN_RETURNS} are needed."
        return style.message_figure(title, text)
    figure = style.new_figure(9.0, 4.8, title)
    left, right = figure.subplots(1, 2)
    _draw_deviations(left, *deviations_of(found))
    k = np.linspace(0, 4, 161)
    share, whole = np.array([found.within(x).mean() for x in k]), np.isin(k, (1, 2, 3))
    right.fill_between(k, 0, 1 - 1 / np.maximum(k, 1) ** 2, color=style.SHADE, lw=0, zorder=0)
    right.plot(k, erf(k / math.sqrt(2)), **REFERENCE, zorder=3)
    right.plot(k, share, color=BLUE, lw=2, zorder=4)
    right.plot(k[whole], share[whole], "o", color=BLUE, ms=4.5, mec="white", mew=0.6, zorder=5)
    right.set(xlim=(0, 4), ylim=(0, 1.03), axisbelow=True, title="how many, within k std")
    right.grid(**style.GRID)
    right.set_yticks(np.linspace(0, 1, 6), [f"{p}%" for p in range(0, 101, 20)])
    right.set_xlabel("k (times the predicted standard deviation)")
    right.set_ylabel("share of observed returns")
    dots = style.sample(color=BLUE, lw=2, marker="o", ms=5, mec="white", mew=0.6)
    few = Patch(facecolor=style.SHADE, edgecolor="#d5d5d5", lw=0.6)
    entries: list[Entry] = [
        (dots, f"observed returns{found.left_out}"),
        (style.sample(**style.TRUTH), "as predicted"),
        (
            style.sample(**REFERENCE),
            "a normal distribution, for reference only: returns need not be normal",
        ),
        (few, "too few, whatever the distribution (Chebyshev), but for chance"),
    ]
    style.add_legend(figure, entries, ncols=2)
    return figure


def deviations_of(found: Samples) -> Array:
    """Predicted std, observed std and its standard error of groups of similar predicted std."""
    rows = []
    for group in groups_of(found.std, 10, MIN_RETURNS):
        squares = np.square(found.observed[group] - found.predicted[group])
        root, error = np.sqrt(squares.mean()), np.std(squares, ddof=1) / math.sqrt(group.size)
        rows.append((np.sqrt(np.mean(found.std[group] ** 2)), root, error / (2 * root or 1.0)))
    return np.transpose(rows)


def _draw_deviations(ax: Axes, predicted: Array, observed: Array, error: Array) -> None:
    """Draw root mean square deviations against the predicted std, with the diagonal."""
    near = observed <= (FAR_GROUPS * predicted.max() or np.inf)
    top = 1.12 * max(predicted.max(), observed[near].max(initial=0.0)) or 1.0
    factor, suffix = common_factor(np.array([top]))
    predicted, observed, error = (x / factor for x in (predicted, observed, error))
    top /= factor
    low, high = np.maximum(observed - 2 * error, 0), observed + 2 * error
    ax.vlines(predicted[near], low[near], high[near], color=BLUE, lw=1.2)
    ax.plot(predicted[near], observed[near], ms=5, **GROUP)
    if beyond := int(np.sum(~near)):
        far = GROUP | {"marker": "^"}
        ax.plot(predicted[~near], np.full(beyond, top), ms=6, clip_on=False, **far)
    _draw_diagonal(ax, 0, top)
    ax.set_title("how far, in groups" + (f" (▲ {beyond} beyond the panel)" if beyond else ""))
    ax.set_xlabel(f"predicted standard deviation{suffix}")
    ax.set_ylabel(f"observed deviation{suffix}\n(root mean square, ± 2 standard errors)")


def _draw_diagonal(ax: Axes, low: float, high: float) -> None:
    """Draw where both coordinates are equal, and give both axes the same limits."""
    ax.plot([low, high], [low, high], **{**style.TRUTH, "zorder": 1})
    ax.set(xlim=(low, high), ylim=(low, high), aspect="equal", axisbelow=True)
    ax.grid(**style.GRID)
    ax.locator_params(nbins=6)


class Checked(NamedTuple):
    """Estimates beside fresh returns, of the states that have both; NaN where unknown."""

    estimate: Array
    low: Array  #: ends of its interval
    high: Array
    found: Array  #: by roll-outs
    error: Array  #: standard error of that


def checked(data: xarray.Dataset, name: str) -> Checked:
    """The value or the std beside the mean or std of roll-outs."""
    own = np.isfinite(column(data, "check_mean")) & np.isfinite(column(data, "value"))

    def known(field: str, default: str) -> Array:
        return column(data, field if field in data else default)[own]

    estimate, x = known(name, name), known(PREDICTED[name], name)
    low, high = (known(f"{name}_{end}", name) + (x - estimate) for end in ("low", "high"))
    mean, std, rollouts = (known(f"check_{f}", "") for f in ("mean", "std", "count"))
    if name == "value":
        return Checked(x, low, high, mean, std / np.sqrt(np.maximum(rollouts, 1)))
    several = np.where(rollouts > 1, rollouts, np.nan)
    return Checked(x, low, high, std + 0 * several, std / np.sqrt(2 * (several - 1)))


@style.styled
def check(data: xarray.Dataset) -> Figure:
    """Draw Monte Carlo returns of fresh roll-outs against the estimates, with the diagonal.

    The estimates are those for where the returns began, not for the centre of a region. The
    standard error of a mean is exact; that of a standard deviation assumes normal returns.

    `data` is from :func:`retvar.estimate`, with a check by roll-outs.
    """
    names = ("check_mean", "check_std", "check_count")
    e.require_columns(data, *TITLES, *names, remedy="must have been checked by roll-outs")
    unit, found = e.unit_name(data), {name: checked(data, name) for name in TITLES}
    many = found["value"].found.size
    title = e.figure_title(data, "do fresh roll-outs agree with the estimates?")
    if not many:
        text = f"No {unit} was rolled out from: nothing to compare."
        return style.message_figure(title, text)
    entries: list[Entry] = [(style.sample(ms=4.5, **DOT), f"a {unit}")]
    if "value_low" in data:
        words = f"{e.interval_name(data)} of the estimate"
        entries.append((style.sample(color=BLUE, lw=1.1), words))
    entries.append((style.sample(color=ORANGE, lw=1.1), "± standard error of Monte Carlo"))
    entries.append((style.sample(**style.TRUTH), "equal"))
    figure = style.new_figure(8.6, 4.7, title)
    axes = figure.subplots(1, 2)
    for ax, (name, one) in zip(axes, found.items(), strict=True):
        factor, suffix = common_factor(one.estimate, one.found)
        x, low, high, y, error = (column / factor for column in one)
        thin, dot = (0.6, 3.0) if x.size > 100 else (1.1, 4.5)
        ax.hlines(y, low, high, color=BLUE, linewidth=thin, zorder=2)
        ax.vlines(x, y - error, y + error, color=ORANGE, linewidth=thin, zorder=2)
        ax.plot(x, y, **DOT, ms=dot, zorder=5)
        least, most = value_range(x, y)
        _draw_diagonal(ax, 1.08 * least - 0.08 * most, 1.08 * most - 0.08 * least)
        missing = int(np.sum(np.isnan(x)))
        more = f"\n({missing:,} left out: {e.NEGATIVE_VARIANCE})" if missing else ""
        ax.set(title=TITLES[name] + suffix, xlabel=f"estimate from experience{more}")
    axes[0].set_ylabel(f"Monte Carlo, {count(many, unit)}")
    style.add_legend(figure, entries)
    return figure
