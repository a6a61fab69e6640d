"""Errors of the variance at the end of a simulation, against a setting of the experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from retvar.errors import InputError
from retvar.experiments.claims import (
    best_per_state,
    by_step,
    error_by_return,
    errors_by_steps,
    least_error,
)
from retvar.format import short_number
from retvar.networks import DEFAULT
from retvar.plots.axes import (
    at_least_one,
    datasets,
    hide_inner_tick_labels,
    label_line_ends,
    label_points,
    log_x_axis,
    make_panels,
    method_names,
    plot_with_band,
    require_recorded,
    shared_log_y,
    single_dataset,
    spread_end_labels,
    tick_labels,
)
from retvar.plots.learning_curves import CUTOFF, below_cutoff
from retvar.plots.notebook_figures import Figure
from retvar.plots.style import (
    COLOURS,
    INK,
    MARKERS,
    METHODS,
    RC,
    TRUTH,
    Array,
    LineStyle,
    add_legend,
    learner_name,
    legend_line,
    line_style,
    shown,
    truth_entry,
)

if TYPE_CHECKING:
    import xarray

    from retvar.plots.axes import Datasets

__all__ = [
    "large_returns",
    "sensitivity",
    "step_size_ratio",
    "value_error_best_step",
    "value_error_spread",
]

SQUARED_ERROR = "squared error, summed over states"
VALUE_ERROR = "error of the value / max|j|"
DIVERGED_ROW = 12  # points


def step_size_ratio(data: Datasets) -> Figure:
    """Draw the squared error of the variance against both step sizes, on logarithmic axes.

    Each ᾱ has a colour; direct is solid, VTD dashed, centred dotted. α = 0 is left of the break.

    Parameters
    ----------
    data
        From :func:`retvar.simulate`, recorded with a window; labels of learners begin with
        ``direct``, ``vtd`` or ``centred``, and α and ᾱ are numbers.

    Examples
    --------
    >>> import retvar as rv
    >>> learners = {"direct": rv.Direct(alpha=0.01), "vtd": rv.VTD(alpha=0.01)}
    >>> record = rv.Record(at=[100], window=100)
    >>> mdp = rv.domains.complex_mdp()
    >>> data = rv.simulate(mdp, learners, steps=100, runs=2, seed=0, record=record)
    >>> rv.plots.step_size_ratio(data).axes[0].get_yscale()
    'log'
    """
    found = single_dataset(data)
    require_recorded(found, "variance_window_mse")
    errors = {name: errors_by_steps(found, name) for name in method_names(found)}
    rest = [name for name in errors if name != DEFAULT] or [DEFAULT]
    with matplotlib.rc_context(RC):
        figure, axes = make_panels(len(rest), 2, 0.4 + 4.2 * len(rest), 3.9)
        for ax, name in zip(axes, rest, strict=True):
            both = [other for other in (DEFAULT, name) if other in errors]
            ax.set_title(" and ".join(learner_name(other) for other in dict.fromkeys(both)))
            ax.set_xlabel("step size of the value, α")
            for other in both:
                _plot_by_alpha(ax, errors[other], METHODS[other])
            _label_alpha_bars(ax, errors[both[0]])
        shared_log_y(axes, np.concatenate([table.values.ravel() for table in errors.values()]))
        axes[0].set_ylabel(SQUARED_ERROR)
        hide_inner_tick_labels(axes)
        dashes = {m: LineStyle(INK, "", METHODS[m].dash) for m in errors}
        add_legend(figure, [(legend_line(dashes[m]), learner_name(m)) for m in errors])
        spread_end_labels(axes)
        return figure


def _plot_by_alpha(ax: Axes, table: xarray.DataArray, method: LineStyle) -> None:
    """Plot a line over α for each ᾱ."""
    x = log_x_axis(ax, table.alpha.values.tolist())
    for k, column in enumerate(table.transpose("alpha_bar", "alpha").values):
        style = replace(method, colour=COLOURS[k % 8], marker=MARKERS[k % 8])
        ax.plot(x, column, **style.plot_options())


def _label_alpha_bars(ax: Axes, table: xarray.DataArray) -> None:
    """Write each ᾱ at the end of its line."""
    steps = table.alpha_bar.values.tolist()
    last = table.transpose("alpha", "alpha_bar").values[-1]
    texts = [f"ᾱ = {text}" for text in tick_labels(steps)]
    colours = [line_style(k).text_colour for k in range(len(steps))]
    label_line_ends(ax, last.tolist(), texts, colours)


def large_returns(data: Mapping[str, xarray.Dataset], means: Sequence[float]) -> Figure:
    """Draw the squared error of the variance against the mean reward, on logarithmic axes.

    Parameters
    ----------
    data
        Datasets named ``…/frozen/c`` (the value is fixed at the truth) and ``…/learned/c``,
        recorded with a window, for each mean reward c.
    means
        The mean rewards to show; 0 is left of the break.

    Examples
    --------
    >>> import retvar as rv
    >>> learners = {"direct": rv.Direct(alpha=0.01), "vtd": rv.VTD(alpha=0.01)}
    >>> record = rv.Record(at=[100], window=100)
    >>> mdp = rv.domains.complex_mdp()
    >>> data = rv.simulate(mdp, learners, steps=100, runs=2, seed=0, record=record)
    >>> figure = rv.plots.large_returns({"mine/frozen/1": data, "mine/learned/1": data}, [1])
    >>> [ax.get_title(loc="left") for ax in figure.axes]
    ['value held at the truth', 'value learned, α = ᾱ']
    """
    data, means = datasets(data), at_least_one("means", means)
    if not data:
        raise InputError("data", "{}", "must hold a dataset")
    cases = {"frozen": "value held at the truth", "learned": "value learned, α = ᾱ"}
    methods = method_names(next(iter(data.values())))
    found = {(c, m): error_by_return(data, c, m) for c in cases for m in methods}
    with matplotlib.rc_context(RC):
        figure, axes = make_panels(len(cases), 2, 8.0, 3.3)
        for ax, (case, title) in zip(axes, cases.items(), strict=True):
            ax.set_title(title)
            ax.set_xlabel("mean reward, c")
            x = log_x_axis(ax, means)
            lines = {m: [found[case, m].get(float(c), np.nan) for c in means] for m in methods}
            _plot_methods(ax, x, lines)
        shared_log_y(axes, np.array([x for line in found.values() for x in line.values()]))
        axes[0].set_ylabel(SQUARED_ERROR)
        hide_inner_tick_labels(axes)
        spread_end_labels(axes)
        return figure


def _plot_methods(ax: Axes, x: Any, lines: Mapping[str, Sequence[float]]) -> None:
    """Plot a line for each method, with its name at the end."""
    for name, line in lines.items():
        ax.plot(x, line, **METHODS[name].plot_options())
    heights = [float(line[-1]) for line in lines.values()]
    names = [learner_name(name) for name in lines]
    label_line_ends(ax, heights, names, [METHODS[name].text_colour for name in lines])


def value_error_spread(data: Datasets, ratios: Sequence[float]) -> Figure:
    """Draw the estimates of each state against the error of the value: mean ± std over runs.

    For each state and error the step size with the least squared error is used.

    Parameters
    ----------
    data
        From :func:`retvar.simulate`, recorded with a window; labels of learners are like
        ``direct error=0.1 ᾱ=0.01``, beginning with ``direct``, ``vtd`` or ``centred``.
    ratios
        The errors to show.

    Examples
    --------
    >>> import retvar as rv
    >>> learners = {f"{name} error=0.1": kind(alpha=0.01)
    ...             for name, kind in (("direct", rv.Direct), ("vtd", rv.VTD))}
    >>> record = rv.Record(at=[100], window=100)
    >>> mdp = rv.domains.complex_mdp()
    >>> data = rv.simulate(mdp, learners, steps=100, runs=2, seed=0, record=record)
    >>> len(rv.plots.value_error_spread(data, [0.1]).axes)
    5
    """
    found, ratios = single_dataset(data), at_least_one("ratios", ratios)
    require_recorded(found, "variance_window", "variance_window_mse")
    methods = method_names(found)
    best = {name: best_per_state(found, name) for name in methods}
    states = [shown(str(state)) for state in found.state.values]
    with matplotlib.rc_context(RC):
        figure, axes = make_panels(len(states), 3, 8.0, 2.35)
        for k, (ax, state) in enumerate(zip(axes, states, strict=True)):
            ax.set_title(state)
            _ratio_ticks(ax, ratios)
            for name in methods:
                table = best[name].isel(state=k).sel(ratio=list(ratios), method="nearest")
                lines = np.asarray(ratios), table["mean"].values, table["std"].values
                plot_with_band(ax, *lines, METHODS[name], edges=True)
            if "true_variance" in found:
                ax.axhline(float(found.true_variance.isel(learner=0, state=k)), **TRUTH)
            place: Any = ax.get_subplotspec()
            ax.set_ylabel("variance" if place.is_first_col() else "")
        for ax in axes[-3:]:  # the lowest of each column
            ax.set_xlabel(VALUE_ERROR)
        add_legend(figure, [*_method_entries(methods), truth_entry()])
        return figure


def value_error_best_step(data: Datasets, ratios: Sequence[float]) -> Figure:
    """Draw the least squared error against the error of the value, with its step size.

    Parameters
    ----------
    data, ratios
        As for :func:`value_error_spread`. If the error against the variance for the frozen value
        was recorded too, it has its own panel.

    Examples
    --------
    >>> import retvar as rv
    >>> learners = {f"{name} error=0.1": kind(alpha=0.01)
    ...             for name, kind in (("direct", rv.Direct), ("vtd", rv.VTD))}
    >>> record = rv.Record(at=[100], window=100)
    >>> mdp = rv.domains.complex_mdp()
    >>> data = rv.simulate(mdp, learners, steps=100, runs=2, seed=0, record=record)
    >>> [text.get_text() for text in rv.plots.value_error_best_step(data, [0.1]).axes[0].texts]
    ['VTD', 'direct', '0.01', '0.01']
    """
    found, ratios = single_dataset(data), at_least_one("ratios", ratios)
    require_recorded(found, "variance_window_mse")
    cases = {"": "against the variance for the true value"}
    if "variance_window_mse_frozen" in found:
        cases["_frozen"] = "against the variance for the frozen value"
    methods = method_names(found)
    least = {(c, m): _at_ratios(least_error(found, m, c), ratios) for c in cases for m in methods}
    with matplotlib.rc_context(RC):
        figure, axes = make_panels(len(cases), 2, 0.4 + 4.2 * len(cases), 3.6)
        for ax, (case, title) in zip(axes, cases.items(), strict=True):
            ax.set_title(title)
            ax.set_xlabel(VALUE_ERROR)
            _ratio_ticks(ax, ratios)
            _plot_methods(ax, ratios, {m: least[case, m][0] for m in methods})
        every = np.concatenate([error for error, _ in least.values()])
        shared_log_y(axes, np.concatenate([every / 1.5, every * 1.5]))  # with space for texts
        axes[0].set_ylabel(SQUARED_ERROR)
        hide_inner_tick_labels(axes)
        add_legend(figure, [(Line2D([], [], ls="none"), "at each point: the best step size ᾱ")])
        spread_end_labels(axes)
        for ax, case in zip(axes, cases, strict=True):
            lines = [np.stack([ratios, least[case, m][0]], axis=1) for m in methods]
            texts = [[short_number(step) for step in least[case, m][1]] for m in methods]
            label_points(ax, lines, texts, [METHODS[m].text_colour for m in methods])
        return figure


def _at_ratios(found: tuple[Any, Any, Any], ratios: Sequence[float]) -> tuple[Any, Any]:
    """Error and step size at the given ratios."""
    ratio, error, step = found
    at = [int(np.argmin(np.abs(ratio - wanted))) for wanted in ratios]
    return error[at], step[at]


def _ratio_ticks(ax: Axes, ratios: Sequence[float]) -> None:
    ax.set_xticks(list(ratios), [short_number(ratio) for ratio in ratios])
    ax.set_xlim(min(ratios) - 0.03, max(ratios) + 0.03)


def _method_entries(methods: Sequence[str]) -> list[tuple[Any, str]]:
    """Legend entries of methods with bands."""
    return [(legend_line(METHODS[m], band=True), f"{learner_name(m)} ± std") for m in methods]


def sensitivity(data: Datasets) -> Figure:
    """Draw the final error of each method against ᾱ, and above it how many runs diverged.

    Parameters
    ----------
    data
        From :func:`retvar.simulate`, recorded with ``Record(rmse=True)``; labels of learners begin
        with ``direct``, ``vtd`` or ``centred``, and ᾱ is a number.

    Examples
    --------
    >>> import retvar as rv
    >>> learners = {"direct": rv.Direct(alpha=0.01), "vtd": rv.VTD(alpha=0.01)}
    >>> record = rv.Record(points=10, rmse=True)
    >>> mdp = rv.domains.complex_mdp()
    >>> data = rv.simulate(mdp, learners, steps=100, runs=2, seed=0, record=record)
    >>> rv.plots.sensitivity(data).axes[0].get_ylabel()
    'final RMSE of the variance'
    """
    found = single_dataset(data)
    require_recorded(found, "variance_rmse")
    tables = {name: by_step(found, name) for name in method_names(found)}
    with matplotlib.rc_context(RC):
        figure, (ax,) = make_panels(1, 1, 7.0, 4.0)
        means = np.concatenate([mean for _, mean, *_ in tables.values()])
        shared_log_y([ax], below_cutoff(means, CUTOFF))
        for name, (x, mean, std, diverged) in tables.items():
            complete = np.where(diverged > 0, np.nan, mean)
            plot_with_band(ax, x, complete, std, METHODS[name], edges=True)
            partial = (diverged > 0) & np.isfinite(mean)  # the mean of runs that did not diverge
            style = METHODS[name].plot_options(linestyle="none", mfc="none")
            ax.plot(x[partial], mean[partial], **style)
        ax.set_xlabel("step size of the variance, ᾱ")
        ax.set_ylabel("final RMSE of the variance")
        log_x_axis(ax, np.unique(np.concatenate([x for x, *_ in tables.values()])).tolist(), base=2)
        _write_divergence(ax, tables, int(found.attrs.get("runs", 0)))
        add_legend(figure, _method_entries(list(tables)))
        return figure


def _write_divergence(
    ax: Axes, tables: dict[str, tuple[Array, Array, Array, Array]], runs: int
) -> None:
    """Write a row above the panel for each method that diverged, with numbers of runs."""
    rows = [name for name, (*_, diverged) in tables.items() if (diverged > 0).any()]
    style: Any = {"textcoords": "offset points", "va": "center", "fontsize": 8, "gid": "diverged"}
    for k, name in enumerate(reversed(rows)):
        x, *_, diverged = tables[name]
        height, colour = 10 + DIVERGED_ROW * k, METHODS[name].text_colour
        text = learner_name(name)
        ax.annotate(text, (0, 1), (0, height), "axes fraction", color=colour, **style)
        for place, count in zip(x[diverged > 0], diverged[diverged > 0], strict=True):
            own: Any = {"color": colour, "ha": "center", **style}
            ax.annotate(f"× {count}", (place, 1), (0, height), ("data", "axes fraction"), **own)
    if rows:
        text, height = f"× n: n of {runs} runs diverged", 10 + DIVERGED_ROW * len(rows)
        ax.annotate(text, (0, 1), (0, height), "axes fraction", **style)
