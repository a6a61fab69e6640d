"""Observed returns beside their predictions, their calibration, and the check by roll-outs.

And what all figures of estimates from experience share: their columns, titles and words.
"""

from __future__ import annotations

import math
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np
import xarray
from matplotlib.axes import Axes
from scipy.special import erf

from retvar.plots import style
from retvar.plots.panels import largest_magnitude, value_range
from retvar.plots.style import BLUE, INK, LIGHT_BLUE, NAVY, ORANGE, Array, Figure, Flags, shown
from retvar.support.errors import InputError
from retvar.support.format import count, listed, short_number

TINY = 1e-150  # smaller numbers are drawn as 0, so that others can be divided by them
TITLES = {"value": "expected return", "std": "spread (standard deviation)"}
NEGATIVE_VARIANCE = "the variance was estimated below zero"  # then the std is unknown
NEED_ESTIMATES = "must have the value and the std of each state or region"
SAMPLE_COLUMNS = ("observed", "predicted", "predicted_std")
MIN_RETURNS = 20  # in a group, and altogether
TAIL = 0.005  # share of the points on either side that may lie outside the panel
FAR_POINTS = 1.7  # times the height of the other points, from which far ones go to the edge
FAR_GROUPS = 4.0  # times the largest predicted std, from which groups go to the edge
INSIDE: Any = {"marker": "o", "ms": 2.4, "ls": "none", "color": BLUE, "mew": 0}
OUTSIDE: Any = {"marker": "x", "ms": 3.8, "ls": "none", "color": ORANGE, "mew": 0.9}
BEYOND: Any = {**OUTSIDE, "marker": "d", "ms": 5}
MEANS: Any = {"marker": "D", "mfc": "white", "mec": INK, "mew": 0.9, "ms": 4.2, "ls": "none"}
REFERENCE: Any = {"color": style.SOFT, "lw": 1.2, "ls": (0, (2, 1.5))}
DOT: Any = {"marker": "o", "ls": "none", "color": NAVY, "mec": "white", "mew": 0.5}
GROUP: Any = {**DOT, "color": BLUE, "mew": 0.6, "zorder": 5}
PREDICTED = {"value": "check_value", "std": "check_predicted_std"}  # where fresh returns began


def require_columns(data: Any, *names: str, remedy: str) -> None:
    """Raise an InputError unless this is a dataset with these variables or attributes."""
    if not hasattr(data, "data_vars"):
        raise InputError("data", type(data).__name__, "must be a dataset of estimates")
    missing = [name for name in names if name not in data and name not in data.attrs]
    if missing:
        raise InputError("data", f"no {listed(missing)}", remedy)


def unit_name(data: xarray.Dataset) -> str:
    """``"state"`` or ``"region"``, by the dimension of the value."""
    dims = data["value"].dims if "value" in data else ()
    if dims not in (("state",), ("region",)):
        raise InputError("data", f"value over {dims}", "must have a value for each state or region")
    return str(dims[0])


def column(data: xarray.Dataset, name: str) -> Array:
    """A variable as numbers, NaN if there is none; NaN replaces infinities, 0 tiny numbers."""
    if name not in data:
        return np.full(data["value"].shape, np.nan)
    found = np.asarray(data[name].values, dtype=float)
    found = np.where(np.isfinite(found), found, np.nan)
    return np.where(np.abs(found) < TINY, 0.0, found)


def visited(data: xarray.Dataset) -> Flags:
    """Whether each state or region was visited; without visits, whether it has a value."""
    known = np.isfinite(column(data, "value"))
    return np.asarray(column(data, "visits") > 0) if "visits" in data and known.any() else known


def why_unknown(data: xarray.Dataset, cells: Any) -> str:
    """Why the std of these states or regions is unknown, in the words of their notes."""
    notes: Any = data["note"].values[cells] if "note" in data else []
    found = sorted({str(note).partition(":")[0] for note in notes if note})
    return " or ".join(found) or NEGATIVE_VARIANCE


def figure_title(data: xarray.Dataset, question: str) -> str:
    """The source and settings of the estimates, followed by the question of the figure.

    >>> import xarray
    >>> about = {"source": "gymnasium:CliffWalking-v1", "policy": "random", "gamma": 0.9, "lam": 1}
    >>> figure_title(xarray.Dataset(attrs=about), "what return to expect")
    'CliffWalking-v1, random policy, γ = 0.9: what return to expect'
    """
    source, policy = str(data.attrs.get("source", "")), str(data.attrs.get("policy", ""))
    kind, colon, name = source.partition(":")
    name = name if colon and len(kind) > 1 else PurePath(source.replace("\\", "/")).name
    words = f"policy {shown(policy, 48)}" if policy else ""
    parts = [shown(name, 48), f"{policy} policy" if policy.isalpha() else words]
    gamma, lam = data.attrs.get("gamma", ""), data.attrs.get("lam", 1.0)
    parts += [f"γ {_setting_text(gamma)}"] if gamma != "" else []
    parts += [f"λ {_setting_text(lam)}"] if np.any(lam != 1) else []
    about, question = ", ".join(filter(None, parts)), in_costs(data, question)
    return f"{about}: {question}" if about else question[:1].upper() + question[1:]


def in_costs(data: xarray.Dataset, text: str) -> str:
    """Words of a figure: of costs, where these stand in place of rewards."""
    return text.replace("return", "cost") if data.attrs.get("reward") else text


def _setting_text(setting: Any) -> str:
    """A number in full (0.9999 must not read as 1), or a text such as "in the data"."""
    try:
        return f"= {float(setting):g}"
    except (TypeError, ValueError):
        return shown(str(setting), 48)


def interval_name(data: xarray.Dataset) -> str:
    """The name of the intervals of a dataset."""
    percent = short_number(round(100 * float(data.attrs.get("level", np.nan)), 6))
    usual = f"{percent}% interval" if "level" in data.attrs else "interval"
    return str(data.attrs.get("intervals", usual))


class Samples(NamedTuple):
    """Observed returns with their predictions; all are finite."""

    observed: Array
    predicted: Array
    std: Array
    left_out: str = ""  #: how many returns have no valid prediction

    def within(self, k: float) -> Flags:
        """Whether each return lies within k std of its prediction, ends included."""
        rounding = 1e-9 * largest_magnitude(self.observed, self.predicted)
        return np.abs(self.observed - self.predicted) <= k * self.std + rounding


def observed_samples(data: xarray.Dataset) -> Samples:
    """The observed returns that have a valid prediction."""
    remedy = "must hold returns that were observed, each with its prediction"
    require_columns(data, *SAMPLE_COLUMNS, remedy=remedy)
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
    sums = in_costs(data, "return")
    if not size:
        text = "No observed return has a prediction: nothing to compare."
        return style.message_figure(figure_title(data, title), text)
    edges, mean, std, observed = bands_of(found)
    low, high = mean - 2 * std, mean + 2 * std
    bottom, top = value_range(found.observed, low, high)
    near = value_range(np.quantile(found.observed, [TAIL, 1 - TAIL]), low, high)
    if top - bottom > FAR_POINTS * (near[1] - near[0]):
        bottom, top = near
    bottom, top = 1.05 * bottom - 0.05 * top, 1.05 * top - 0.05 * bottom
    figure = style.new_figure(7.6, 4.2, figure_title(data, title))
    ax = figure.add_subplot(xlabel=f"each observed {sums}, in the order of its prediction")
    ax.set(ylabel=sums, ylim=(bottom, top), xlim=(-0.005 * size, 1.005 * size), xticks=[])
    ax.grid(axis="y", **style.GRID)
    look: Any = {"color": LIGHT_BLUE, "alpha": 0.55, "lw": 0, "zorder": 1}
    ax.stairs(mean, edges, baseline=None, color=INK, lw=1.5, zorder=4, label="predicted: mean")
    ax.stairs(high, edges, baseline=low, fill=True, **look, label="predicted: ± 2 std")
    means: Any = {"gid": "observed", "label": "observed: mean of like predictions", "zorder": 5}
    ax.plot((edges[1:] + edges[:-1]) / 2, observed, **MEANS, **means)
    some = np.argsort(found.predicted, kind="stable")[:: -(-size // 4000)]
    x = np.linspace(0, size, some.size, endpoint=False) + 0.5
    y, inside = found.observed[some], found.within(2)
    far, alpha = (y < bottom) | (y > top), float(np.clip(400 / x.size, 0.3, 0.9))
    for own, dot, opaque, text in (
        (inside, INSIDE, alpha, f"an observed {sums}"),
        (~inside, OUTSIDE, max(alpha, 0.6), "… beyond 2 std"),
    ):
        at = own[some] & ~far
        ax.plot(x[at], y[at], **dot, alpha=opaque, zorder=3, rasterized=True)
        ax.plot([], [], **dot, label=text)
    if far.any():  # at the edge
        beyond = int(np.sum((found.observed < bottom) | (found.observed > top)))
        ends: Any = {"gid": "beyond", "label": f"… beyond the panel ({beyond:,})", "zorder": 6}
        ax.plot(x[far], np.clip(y[far], bottom, top), **BEYOND, **ends, clip_on=False)
    many = f"{inside.sum():,} of {size:,} observed {sums}s ({inside.mean():.1%})"
    words = f"{many} lie within 2 std of what was predicted{found.left_out}"
    ax.set_title(words, fontsize=9)
    style.add_legend(figure, ncols=3)
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
    title = figure_title(data, f"do {size:,} observed returns stray as far as was predicted?")
    if size < MIN_RETURNS:
        text = f"Too few observed returns to judge by: {size}, where {MIN_RETURNS} are needed."
        return style.message_figure(title, text)
    figure = style.new_figure(9.0, 4.8, title)
    left, right = figure.subplots(1, 2)
    _draw_deviations(left, *deviations_of(found))
    k = np.linspace(0, 4, 161)
    share, least = [found.within(x).mean() for x in k], 1 - 1 / np.maximum(k, 1) ** 2
    dots: Any = {"marker": "o", "ms": 4.5, "mec": "white", "mew": 0.6, "markevery": [40, 80, 120]}
    seen = in_costs(data, "observed returns")
    right.plot(k, share, color=BLUE, lw=2, zorder=4, **dots, label=f"{seen}{found.left_out}")
    words = in_costs(data, "a normal distribution, for reference only: returns need not be normal")
    right.plot(k, erf(k / math.sqrt(2)), **REFERENCE, zorder=3, label=words)
    few: Any = {"fc": style.SHADE, "ec": "#d5d5d5", "lw": 0.6, "zorder": 0}
    words = "too few, whatever the distribution (Chebyshev), but for chance"
    right.fill_between(k, 0, least, **few, label=words)
    right.set(xlim=(0, 4), ylim=(0, 1.03), axisbelow=True, title="how many, within k std")
    right.grid(**style.GRID)
    right.set_yticks(np.linspace(0, 1, 6), [f"{p}%" for p in range(0, 101, 20)])
    right.set_xlabel("k (times the predicted standard deviation)")
    right.set_ylabel(f"share of {seen}")
    style.add_legend(figure, ncols=2)
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
    low, high = np.maximum(observed - 2 * error, 0), observed + 2 * error
    ax.vlines(predicted[near], low[near], high[near], color=BLUE, lw=1.2)
    ax.plot(predicted[near], observed[near], ms=5, **GROUP)
    if beyond := int(np.sum(~near)):
        far = GROUP | {"marker": "^"}
        ax.plot(predicted[~near], np.full(beyond, top), ms=6, clip_on=False, **far)
    _draw_diagonal(ax, 0, top, "as predicted")
    ax.set_title("how far, in groups" + (f" (▲ {beyond} beyond the panel)" if beyond else ""))
    ax.set_xlabel("predicted standard deviation")
    ax.set_ylabel("observed deviation\n(root mean square, ± 2 standard errors)")


def _draw_diagonal(ax: Axes, low: float, high: float, label: str) -> None:
    """Draw where both coordinates are equal, and give both axes the same limits."""
    ax.plot([low, high], [low, high], **{**style.TRUTH, "zorder": 1}, label=label)
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
    require_columns(data, *TITLES, *names, remedy="must have been checked by roll-outs")
    unit, found = unit_name(data), {name: checked(data, name) for name in TITLES}
    many = found["value"].found.size
    title = figure_title(data, "do fresh roll-outs agree with the estimates?")
    if not many:
        text = f"No {unit} was rolled out from: nothing to compare."
        return style.message_figure(title, text)
    interval = f"{interval_name(data)} of the estimate" if "value_low" in data else ""
    figure = style.new_figure(8.6, 4.7, title)
    axes = figure.subplots(1, 2)
    for ax, (name, one) in zip(axes, found.items(), strict=True):
        x, low, high, y, error = one
        thin, dot = (0.6, 3.0) if x.size > 100 else (1.1, 4.5)
        ax.plot(x, y, **DOT, ms=dot, zorder=5, label=f"a {unit}")
        ax.hlines(y, low, high, color=BLUE, linewidth=thin, zorder=2, label=interval)
        bars: Any = {"linewidth": thin, "zorder": 2, "label": "± standard error of Monte Carlo"}
        ax.vlines(x, y - error, y + error, color=ORANGE, **bars)
        least, most = value_range(x, y)
        _draw_diagonal(ax, 1.08 * least - 0.08 * most, 1.08 * most - 0.08 * least, "equal")
        missing = int(np.sum(np.isnan(x)))
        more = f"\n({missing:,} left out: {NEGATIVE_VARIANCE})" if missing else ""
        ax.set(title=TITLES[name], xlabel=f"estimate from experience{more}")
    axes[0].set_ylabel(f"Monte Carlo, {count(many, unit)}")
    style.add_legend(figure)
    return figure
