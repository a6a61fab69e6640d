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
MAX_BANDS, MAX_GROUPS = 60, 10
MIN_RETURNS = 20  # in a group, and altogether
MAX_POINTS = 4000  # of more returns, every k-th is drawn
TAIL = 0.005  # share of the points on either side that may lie outside the panel
FAR_POINTS = 1.7  # times the height of the other points, from which far ones go to the edge
FAR_GROUPS = 4.0  # times the largest predicted std, from which groups go to the edge
MAX_K = 4.0  # std
INSIDE: Any = {"marker": "o", "ms": 2.4, "ls": "none", "color": BLUE, "mew": 0}
OUTSIDE: Any = {"marker": "x", "ms": 3.8, "ls": "none", "color": ORANGE, "mew": 0.9}
BEYOND: Any = {**OUTSIDE, "marker": "^", "ms": 5}
MEANS: Any = {"marker": "D", "mfc": "white", "mec": INK, "mew": 0.9, "ms": 4.2, "ls": "none"}
NORMAL = "a normal distribution, for reference only: returns need not be normal"
CHEBYSHEV = "too few, whatever the distribution (Chebyshev), but for chance"
REFERENCE: Any = {"color": style.SOFT, "lw": 1.2, "ls": (0, (2, 1.5))}
DOT: Any = {"marker": "o", "ls": "none", "color": NAVY, "mec": "white", "mew": 0.5}
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
    groups = groups_of(samples.predicted, MAX_BANDS)
    edges = np.concatenate([[0], np.cumsum([group.size for group in groups])])
    columns = samples.predicted, np.square(samples.std), samples.observed
    mean, variance, observed = (np.array([x[g].mean() for g in groups]) for x in columns)
    return Bands(edges, mean, np.sqrt(variance), observed)


def observed_returns(data: xarray.Dataset) -> Figure:
    """Draw observed returns over the band, mean ± 2 std, that was predicted for them.

    Returns are sorted by their predictions. The band is drawn for groups of similar predictions;
    whether a return lies within 2 std depends on its own prediction.

    `data` is from :func:`retvar.estimate`, with observed returns.
    """
    found = observed_samples(data)
    title = e.figure_title(data, "do observed returns lie where they were predicted?")
    if not found.observed.size:
        text = "No observed return has a prediction: nothing to compare."
        return style.message_figure(title, text)
    typical = np.quantile(found.observed, [TAIL, 1 - TAIL])
    factor, suffix = common_factor(typical, found.predicted, found.std)
    observed, predicted, std = (np.divide(x, factor) for x in found[:3])
    found = Samples(observed, predicted, std, found.left_out)
    return _draw_returns(found, bands_of(found), title, f"return{suffix}")


@style.styled
def _draw_returns(found: Samples, bands: Bands, title: str, label: str) -> Figure:
    """Draw bands and returns, far ones at the edge of the panel."""
    size, edges = found.observed.size, bands.edges
    low, high = bands.mean - 2 * bands.std, bands.mean + 2 * bands.std
    figure = style.new_figure(7.6, 4.2, title)
    ax = figure.add_subplot(xlabel="each observed return, in the order of its prediction")
    ax.stairs(high, edges, baseline=low, fill=True, color=LIGHT_BLUE, alpha=0.55, lw=0, zorder=1)
    ax.stairs(bands.mean, edges, baseline=None, color=INK, lw=1.5, zorder=4)
    ax.plot((edges[1:] + edges[:-1]) / 2, bands.observed, gid="observed", zorder=5, **MEANS)
    bottom, top = value_range(found.observed, low, high)
    near = value_range(np.quantile(found.observed, [TAIL, 1 - TAIL]), low, high)
    if top - bottom > FAR_POINTS * (near[1] - near[0]):
        bottom, top = near
    bottom, top = 1.05 * bottom - 0.05 * top, 1.05 * top - 0.05 * bottom
    shown = np.argsort(found.predicted, kind="stable")[:: -(-size // MAX_POINTS)]
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
    many = share_text(int(inside.sum()), size, "observed returns")
    words = f"{many} lie within 2 std of what was predicted{found.left_out}"
    ax.set_title(words, fontsize=9)
    ax.set(ylabel=label, ylim=(bottom, top), xlim=(-0.005 * size, 1.005 * size), xticks=[])
    ax.grid(axis="y", **style.GRID)
    band = (Patch(facecolor=LIGHT_BLUE, alpha=0.55, lw=0), style.sample(color=INK, lw=1.5))
    looks = {"observed: mean of like predictions": MEANS, "an observed return": INSIDE}
    looks["… beyond 2 std"] = OUTSIDE
    if beyond := int(np.sum((found.observed > top) | (found.observed < bottom))):
        looks[f"… beyond the panel ({beyond:,})"] = BEYOND
    entries: list[Entry] = [(style.sample(**look), text) for text, look in looks.items()]
    style.add_legend(figure, [(band, "predicted: mean ± 2 std"), *entries], ncols=3)
    return figure


def share_text(part: int, whole: int, noun: str) -> str:
    """A share in percent that never rounds to all or none.

    >>> share_text(94, 100, "observed returns"), share_text(1999, 2000, "observed returns")
    ('94% of 100 observed returns', 'more than 99% of 2,000 observed returns')
    >>> share_text(3, 3, "states"), share_text(0, 3, "states")
    ('all 3 states', 'none of 3 states')
    """
    percent, words = round(100 * part / whole), {0: "less than 1% of", 100: "more than 99% of"}
    share = words.get(percent, f"{percent}% of")
    return f"{ {0: 'none of', whole: 'all'}.get(part, share) } {whole:,} {noun}"


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
    return _draw_calibration(found, deviations_of(found), title)


def deviations_of(found: Samples) -> Array:
    """Predicted std, observed std and its standard error of groups of similar predicted std."""
    rows = []
    for group in groups_of(found.std, MAX_GROUPS, MIN_RETURNS):
        squares = np.square(found.observed[group] - found.predicted[group])
        root, error = np.sqrt(squares.mean()), np.std(squares, ddof=1) / math.sqrt(group.size)
        rows.append((np.sqrt(np.mean(found.std[group] ** 2)), root, error / (2 * root or 1.0)))
    return np.transpose(rows)


@style.styled
def _draw_calibration(found: Samples, deviations: Array, title: str) -> Figure:
    figure = style.new_figure(9.0, 4.8, title)
    left, right = figure.subplots(1, 2)
    _draw_deviations(left, *deviations)
    k = np.linspace(0, MAX_K, 161)
    share, whole = np.array([found.within(x).mean() for x in k]), np.isin(k, (1, 2, 3))
    right.fill_between(k, 0, 1 - 1 / np.maximum(k, 1) ** 2, color=style.SHADE, lw=0, zorder=0)
    right.plot(k, erf(k / math.sqrt(2)), **REFERENCE, zorder=3)
    right.plot(k, share, color=BLUE, lw=2, zorder=4)
    right.plot(k[whole], share[whole], "o", color=BLUE, ms=4.5, mec="white", mew=0.6, zorder=5)
    right.set(xlim=(0, MAX_K), ylim=(0, 1.03), axisbelow=True, title="how many, within k std")
    right.grid(**style.GRID)
    right.set_yticks(np.linspace(0, 1, 6), [f"{p}%" for p in range(0, 101, 20)])
    right.set(
        xlabel="k (times the predicted standard deviation)", ylabel="share of observed returns"
    )
    dots = style.sample(color=BLUE, lw=2, marker="o", ms=5, mec="white", mew=0.6)
    few = Patch(facecolor=style.SHADE, edgecolor="#d5d5d5", lw=0.6)
    entries: list[Entry] = [(dots, f"observed returns{found.left_out}")]
    entries += [(style.sample(**style.TRUTH), "as predicted"), (style.sample(**REFERENCE), NORMAL)]
    style.add_legend(figure, [*entries, (few, CHEBYSHEV)], ncols=2)
    return figure


def _draw_deviations(ax: Axes, predicted: Array, observed: Array, error: Array) -> None:
    """Draw root mean square deviations against the predicted std, with the diagonal."""
    near = observed <= (FAR_GROUPS * predicted.max() or np.inf)
    top = 1.12 * max(predicted.max(), observed[near].max(initial=0.0)) or 1.0
    factor, suffix = common_factor(np.array([top]))
    predicted, observed, error = (x / factor for x in (predicted, observed, error))
    top /= factor
    low, high = np.maximum(observed - 2 * error, 0), observed + 2 * error
    ax.vlines(predicted[near], low[near], high[near], color=BLUE, lw=1.2)
    dots: Any = {"color": BLUE, "ls": "none", "mec": "white", "mew": 0.6, "zorder": 5}
    ax.plot(predicted[near], observed[near], "o", ms=5, **dots)
    beyond = int(np.sum(~near))
    if beyond:
        ax.plot(predicted[~near], np.full(beyond, top), "^", ms=6, clip_on=False, **dots)
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
    return _draw_check(found, title, f"Monte Carlo, {count(many, unit)}", entries)


@style.styled
def _draw_check(found: dict[str, Checked], title: str, label: str, entries: list[Entry]) -> Figure:
    """Draw estimates with intervals along x, Monte Carlo with standard errors along y."""
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
    axes[0].set_ylabel(label)
    style.add_legend(figure, entries)
    return figure
