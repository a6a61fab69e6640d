"""Estimates, step sizes and errors over time, and the estimates at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from retvar import arguments, networks
from retvar.errors import InputError
from retvar.format import literal, short_number
from retvar.networks import NETWORKS
from retvar.plots.axes import (
    compress_y,
    hide_inner_tick_labels,
    label_line_ends,
    learner_labels,
    make_panels,
    plot_with_band,
    require_recorded,
    shared_log_y,
    single_dataset,
    spread_end_labels,
    staggered_markers,
    time_axis,
    y_limits,
)
from retvar.plots.notebook_figures import Figure
from retvar.plots.style import (
    LONGEST_TICK,
    LONGEST_TITLE,
    RC,
    SHADE,
    TRUTH,
    Array,
    add_legend,
    learner_name,
    learner_style,
    legend_line,
    line_style,
    mean_entry,
    shown,
    truth_entry,
)

if TYPE_CHECKING:
    import xarray

    from retvar.plots.axes import Datasets

__all__ = ["final_estimates", "learning_curves", "rmse_curves", "step_sizes"]

MAX_LEARNERS = 23
MAX_DRAWN = 8  # states; of more, some are chosen
COLUMNS, WIDTH, HEIGHT = 4, 8.8, 2.7
MAX_DIP = 0.6  # depth below zero relative to the height above, from which it is compressed
DRAWN = ("variance", *networks.SHAPES, *networks.SHAPES.values())
CUTOFF = 1e4  # times the least error; larger errors are cut off
LINEAR = 100.0  # times the least error, up to which an axis of errors is linear and begins at 0


def learning_curves(data: Datasets, truth: bool = True, what: str = "variance") -> Figure:
    """Draw the estimates of each learner over time: the mean over runs ± one standard deviation.

    The first panel shows the value, the others the variance of each learner on one scale, or
    another moment. Exact answers are dashed. A curve far from the truth leaves its panel. Of more
    than 8 states those are drawn that tell most, and the legend says so.

    Parameters
    ----------
    data
        From :func:`retvar.simulate`, or a mapping that holds one such dataset.
    truth
        Whether to draw the exact answers.
    what
        ``"variance"``; of learners with a higher order also ``"third_moment"``, ``"skewness"``,
        ``"fourth_moment"`` or ``"kurtosis"``.

    Examples
    --------
    >>> import retvar as rv
    >>> learners = {"direct": rv.Direct(alpha=0.01), "vtd": rv.VTD(alpha=0.01)}
    >>> data = rv.simulate(rv.domains.complex_mdp(), learners, steps=100, runs=2, seed=0)
    >>> figure = rv.plots.learning_curves(data)
    >>> [ax.get_title(loc="left") for ax in figure.axes]
    ['value', 'variance by VTD', 'variance by direct']
    """
    found, truth = single_dataset(data), arguments.flag("truth", truth)
    if not isinstance(what, str) or what not in DRAWN or what not in found:
        known = [name for name in DRAWN if name in found]
        raise InputError("what", literal(what), f"must be {' or '.join(map(repr, known))}")
    labels = _few_learners(found)
    if what != "variance":  # only those who learn it
        own = [x for x in labels if bool(np.isfinite(found[what].sel(learner=x)).any())]
        labels = own or labels
    fields = [("value", labels[0]), *((what, label) for label in labels)]
    same_value = bool((found.value == found.value.isel(learner=0)).all())
    chosen, words = _telling_states(found.sel(learner=labels), what)
    found = found.isel(state=chosen)
    with matplotlib.rc_context(RC):
        figure, axes = make_panels(len(fields), COLUMNS, _width(len(fields)), HEIGHT)
        for ax, (field, label) in zip(axes, fields, strict=True):
            plain = field == "value" and same_value
            name = field.replace("_", " ")
            ax.set_title(name if plain else f"{name} by {learner_name(label, LONGEST_TITLE)}")
            exact = _truth(found, field, label) if truth else None
            _plot_states(ax, found.sel(learner=label), field, exact)
        _set_limits(axes[:1], found.sel(learner=labels[:1]), "value")
        knee = _set_limits(axes[1:], found.sel(learner=labels), what)
        entries = [mean_entry(found, what, band=f"{what}_std" in found)]
        if truth and f"true_{what}" in found:
            entries.append(truth_entry())
        if knee is not None:
            entries.append((Patch(facecolor=SHADE), f"scale compressed below {short_number(knee)}"))
        add_legend(figure, [*entries, *_words_entry(words)])
        spread_end_labels(axes)
        return figure


def step_sizes(data: Datasets) -> Figure:
    """Draw the step sizes of adaptive rules over time: of the value and of each variance node.

    Parameters
    ----------
    data
        As for :func:`learning_curves`, recorded with ``Record(step_sizes=True)``.

    Examples
    --------
    >>> import retvar as rv
    >>> learners = {"direct": rv.Direct(alpha=0.01), "vtd": rv.VTD(alpha=0.01)}
    >>> record = rv.Record(points=10, step_sizes=True)
    >>> mdp = rv.domains.complex_mdp()
    >>> data = rv.simulate(mdp, learners, steps=100, runs=2, seed=0, record=record)
    >>> rv.plots.step_sizes(data).axes[1].get_title(loc="left")
    'second moment (VTD)'
    """
    found = single_dataset(data)
    require_recorded(found, "value_step_size", "variance_step_size")
    labels = _few_learners(found)
    chosen, words = _telling_states(found.sel(learner=labels), "variance")
    found = found.isel(state=chosen)
    count = 1 + len(labels)
    with matplotlib.rc_context(RC):
        figure, axes = make_panels(count, COLUMNS, _width(count), HEIGHT)
        for k, ax in enumerate(axes):
            label, field = labels[max(0, k - 1)], "variance" if k else "value"
            by = learner_name(label, LONGEST_TICK)
            ax.set_title(f"{_last_node(found, label)} ({by})" if k else field)
            _plot_states(ax, found.sel(learner=label), f"{field}_step_size", None, band=False)
        every = np.concatenate([found[f"{x}_step_size"].values for x in ("value", "variance")])
        shared_log_y(axes, every)
        axes[0].set_ylabel("step size")
        hide_inner_tick_labels(axes)
        add_legend(figure, [mean_entry(found, "variance", band=False), *_words_entry(words)])
        spread_end_labels(axes)
        return figure


def rmse_curves(data: Datasets) -> Figure:
    """Draw the root mean squared error of each learner's variance over time, ± std over runs.

    The axis of errors begins at 0; it is logarithmic if some are 100 times as large as others.

    Parameters
    ----------
    data
        As for :func:`learning_curves`, recorded with ``Record(rmse=True)``.

    Examples
    --------
    >>> import retvar as rv
    >>> learners = {"direct": rv.Direct(alpha=0.01), "vtd": rv.VTD(alpha=0.01)}
    >>> record = rv.Record(points=10, rmse=True)
    >>> mdp = rv.domains.complex_mdp()
    >>> data = rv.simulate(mdp, learners, steps=100, runs=2, seed=0, record=record)
    >>> rv.plots.rmse_curves(data).axes[0].get_ylabel()
    'RMSE of the variance'
    """
    found = single_dataset(data)
    require_recorded(found, "variance_rmse")
    labels = learner_labels(found)
    styles = [learner_style(label, k) for k, label in enumerate(labels)]
    mean, std = found.variance_rmse, found.variance_rmse_std
    with matplotlib.rc_context(RC):
        figure, (ax,) = make_panels(1, 1, 7.0, 3.4)
        x = time_axis(ax, found)
        _error_axis(ax, np.asarray(mean), np.asarray(std))
        for k, (label, style) in enumerate(zip(labels, styles, strict=True)):
            lines = np.asarray(mean.sel(learner=label)), np.asarray(std.sel(learner=label))
            plot_with_band(ax, x, *lines, style, staggered_markers(x.size, k, len(labels)))
        ax.set_ylabel("RMSE of the variance")
        heights = [float(mean.sel(learner=label)[-1]) for label in labels]
        names = [learner_name(label) for label in labels]
        label_line_ends(ax, heights, names, [style.text_colour for style in styles])
        add_legend(figure, [mean_entry(found, "variance_rmse")])
        spread_end_labels([ax])
        return figure


def final_estimates(data: Datasets) -> Figure:
    """Draw the final variance of each learner by state: mean ± std over runs.

    Parameters
    ----------
    data
        As for :func:`learning_curves`.

    Examples
    --------
    >>> import retvar as rv
    >>> learners = {"direct": rv.Direct(alpha=0.01), "vtd": rv.VTD(alpha=0.01)}
    >>> data = rv.simulate(rv.domains.complex_mdp(), learners, steps=100, runs=2, seed=0)
    >>> rv.plots.final_estimates(data).axes[0].get_xlabel()
    'state'
    """
    found = single_dataset(data)
    labels = learner_labels(found)
    last = found.isel({"step" if "step" in found.dims else "episode": -1})
    x = np.arange(found.sizes["state"], dtype=float)
    tenth = max(1, x.size // 10)
    entries = []
    with matplotlib.rc_context(RC):
        figure, (ax,) = make_panels(1, 1, 7.0, 3.6)
        for k, label in enumerate(labels):
            one, style = last.sel(learner=label), learner_style(label, k)
            every = (k * max(1, x.size // 30) % tenth, tenth)
            lines = one.variance.values, one.variance_std.values
            plot_with_band(ax, x, *lines, style, every, edges=True)
            entries.append((legend_line(style, band=True), f"{learner_name(label)} ± std"))
        truth = np.array([])
        if "true_variance" in found:
            truth = last.true_variance.sel(learner=labels[0]).values
            ax.plot(x, truth, **TRUTH)
        ax.set_ylim(*y_limits(last.variance.values, last.variance_std.values, truth))
        ax.set(xlabel="state", ylabel="variance")
        ax.set_xlim(-0.5, x.size - 0.5)
        ax.set_xticks(
            x[::tenth], [shown(str(name), LONGEST_TICK) for name in found.state.values[::tenth]]
        )
        add_legend(figure, [*entries, truth_entry()] if truth.size else entries)
        return figure


def _error_axis(ax: Axes, mean: Array, std: Array) -> None:
    """An axis from 0 to the largest error; a logarithmic one where errors differ much."""
    near = below_cutoff(mean[mean > 0], LINEAR)
    if near.size < np.sum(np.isfinite(mean) & (mean > 0)) or not near.size:
        shared_log_y([ax], below_cutoff(mean, CUTOFF))
        return
    top = float(np.max(mean + std, where=np.isfinite(mean + std), initial=near.max()))
    ax.set_ylim(0, 1.04 * min(top, 1.5 * float(near.max())))


def below_cutoff(values: Array, factor: float) -> Array:
    """Finite values up to `factor` times the least, without those on the way to divergence."""
    finite = values[np.isfinite(values)]
    return np.asarray(finite[finite <= factor * finite.min(initial=np.inf)])


def _few_learners(data: xarray.Dataset) -> list[str]:
    """Labels of the learners; raise an InputError if there are too many for a figure."""
    labels = learner_labels(data)
    if len(labels) > MAX_LEARNERS:
        remedy = f"at most {MAX_LEARNERS} fit a figure; choose some with data.sel(learner=[…])"
        raise InputError("learners", len(labels), remedy)
    return labels


def _width(panels: int) -> float:
    return max(0.6, min(panels / COLUMNS, 1.0)) * WIDTH


def _last_node(data: xarray.Dataset, label: str) -> str:
    """What the last node of a learner estimates."""
    kind = data.algorithm.sel(learner=label).item() if "algorithm" in data.coords else label
    network = NETWORKS.get(str(kind).lower())
    return "variance" if network is None else network.nodes[-1].title


def _truth(data: xarray.Dataset, field: str, label: str) -> Array | None:
    name = f"true_{field}"
    return np.asarray(data[name].sel(learner=label)) if name in data else None


def _telling_states(data: xarray.Dataset, field: str) -> tuple[NDArray[np.intp], str]:
    """The states to draw, and words that say which these are; empty for all.

    From the least to the greatest exact answer (or final estimate, if that is not known), and the
    state where a learner is furthest off at the end.
    """
    states = data.sizes["state"]
    if states <= MAX_DRAWN:
        return np.arange(states), ""
    last = data.isel({"step" if "step" in data.dims else "episode": -1})
    final = np.asarray(last[field].transpose("learner", "state"))
    name = f"true_{field}"
    exact = np.asarray(data[name].transpose("learner", "state")) if name in data else final
    known = np.flatnonzero(np.isfinite(exact[0]))
    order = known[np.argsort(exact[0][known], kind="stable")] if known.size else np.arange(states)
    spaced = np.linspace(0, order.size - 1, min(MAX_DRAWN - 1, order.size)).round().astype(int)
    chosen = set(order[spaced].tolist())
    words = f"least to greatest {field.replace('_', ' ')}"
    off = np.max(np.abs(final - exact), axis=0, where=np.isfinite(final - exact), initial=0.0)
    if off.any():
        chosen.add(int(np.argmax(off)))
        words += " and the largest final error"
    return np.array(sorted(chosen), dtype=np.intp), f"{len(chosen)} of {states:,} states: {words}"


def _words_entry(words: str) -> list[tuple[Line2D, str]]:
    """An entry of a legend that is text alone, if there is any."""
    return [(Line2D([], [], alpha=0), words)] if words else []


def _plot_states(
    ax: Axes, data: xarray.Dataset, variable: str, truth: Array | None, band: bool = True
) -> None:
    """Plot a line for each state of one learner, labelled at its end."""
    x = time_axis(ax, data)
    mean, band = np.asarray(data[variable]), band and f"{variable}_std" in data
    std = np.asarray(data[f"{variable}_std"]) if band else np.zeros_like(mean)
    states = mean.shape[-1]
    styles = [line_style(k) for k in range(states)]
    for k, style in enumerate(styles):
        spread = std[:, k] if band else None
        plot_with_band(ax, x, mean[:, k], spread, style, staggered_markers(x.size, k, states))
    for height in [] if truth is None else truth:
        ax.axhline(height, **TRUTH)
    heights = [_last_number(mean[:, k]) for k in range(states)]
    texts = [shown(str(name), LONGEST_TICK) for name in data.state.values]
    label_line_ends(ax, heights, texts, [style.text_colour for style in styles])


def _last_number(line: Array) -> float:
    finite = line[np.isfinite(line)]
    return float(finite[-1]) if finite.size else np.nan


def _set_limits(axes: Sequence[Axes], data: xarray.Dataset, field: str) -> float | None:
    """Give all panels the same limits; return the knee below which the scale is compressed."""
    mean, std = np.asarray(data[field]), np.asarray(data.get(f"{field}_std", 0 * data[field]))
    exact = np.asarray(data[f"true_{field}"]) if f"true_{field}" in data else np.array([])
    low, high = y_limits(mean, std, exact)
    hide_inner_tick_labels(axes)
    if field == "variance" and 0 < MAX_DIP * high < -low:  # a deep dip would squash the rest
        knee = float(f"{-high / 4:.1g}")
        for ax in axes:
            compress_y(ax, low, knee, high)
        return knee
    for ax in axes:
        ax.set_ylim(low, high)
        ax.locator_params(axis="y", nbins=6)
    return None
