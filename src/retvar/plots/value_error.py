"""Estimates of the variance against an error in the value function that is held fixed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from retvar.experiments.claims import best_per_state, least_error
from retvar.format import short_number
from retvar.plots import legend, placing
from retvar.plots import series as s
from retvar.plots.scales import log_together
from retvar.plots.style import RC

__all__ = ["value_error_best_step", "value_error_spread"]

AXIS = "error of the value / max|j|"


def value_error_spread(data: s.Given, ratios: Sequence[float]) -> Figure:
    """Draw estimates of each state against the error of the value: mean ± std over runs.

    For each state and error the step size with the least squared error is taken.

    Parameters
    ----------
    data
        From :func:`retvar.simulate`, recorded with a window; labels of learners are like
        ``direct error=0.1 ᾱ=0.01``, beginning with ``direct``, ``vtd`` or ``centred``.
    ratios
        The errors to show.

    Returns
    -------
    Figure
        See :func:`save`.

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
    found = s.dataset(data)
    s.need(found, "variance_window", "variance_window_mse")
    methods = s.methods_of(found)
    best = {name: best_per_state(found, name) for name in methods}
    states = [str(state) for state in found.state.values]
    with matplotlib.rc_context(RC):
        figure, axes = s.panels(len(states), 3, 8.0, 2.35)
        for k, (ax, state) in enumerate(zip(axes, states, strict=True)):
            ax.set_title(state)
            _ratio_axis(ax, ratios)
            for name in methods:
                table = best[name].isel(state=k).sel(ratio=list(ratios), method="nearest")
                lines = np.asarray(ratios), table["mean"].values, table["std"].values
                s.curve(ax, *lines, s.METHODS[name], edges=True)
            if "true_variance" in found:
                ax.axhline(float(found.true_variance.isel(learner=0, state=k)), **s.TRUTH)
            place: Any = ax.get_subplotspec()
            ax.set_ylabel("variance" if place.is_first_col() else "")
        for ax in axes[-3:]:  # the lowest of each column
            ax.set_xlabel(AXIS)
        entries = [(legend.swatch(s.METHODS[m], band=True), f"{s.title(m)} ± std") for m in methods]
        legend.key(figure, [*entries, legend.truth_entry()])
        return figure


def value_error_best_step(data: s.Given, ratios: Sequence[float]) -> Figure:
    """Draw the least squared error against the error of the value, with the step size that gave it.

    Parameters
    ----------
    data, ratios
        As for :func:`value_error_spread`. Where the error against the variance for the frozen value
        was recorded too, it has a panel of its own.

    Returns
    -------
    Figure
        See :func:`save`.

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
    found = s.dataset(data)
    s.need(found, "variance_window_mse")
    cases = {"": "against the variance for the true value"}
    if "variance_window_mse_frozen" in found:
        cases["_frozen"] = "against the variance for the frozen value"
    methods = s.methods_of(found)
    least = {(c, m): _chosen(least_error(found, m, c), ratios) for c in cases for m in methods}
    with matplotlib.rc_context(RC):
        figure, axes = s.panels(len(cases), 2, 0.4 + 4.2 * len(cases), 3.6)
        for ax, (case, about) in zip(axes, cases.items(), strict=True):
            ax.set_title(about)
            ax.set_xlabel(AXIS)
            _ratio_axis(ax, ratios)
            for name in methods:
                ax.plot(ratios, least[case, name][0], **s.METHODS[name].line())
            inks = [s.METHODS[m].ink for m in methods]
            last = [float(least[case, m][0][-1]) for m in methods]
            placing.ends(ax, last, [s.title(m) for m in methods], inks)
        every = np.concatenate([error for error, _ in least.values()])
        log_together(axes, np.concatenate([every / 1.5, every * 1.5]))  # room for texts
        axes[0].set_ylabel("squared error, summed over states")
        s.hide_inner(axes)
        legend.key(figure, [(Line2D([], [], ls="none"), "at each point: the best step size ᾱ")])
        placing.settle(axes)
        for ax, case in zip(axes, cases, strict=True):
            lines = [np.stack([ratios, least[case, m][0]], axis=1) for m in methods]
            texts = [[short_number(step) for step in least[case, m][1]] for m in methods]
            placing.at_points(ax, lines, texts, [s.METHODS[m].ink for m in methods])
        return figure


def _chosen(found: tuple[Any, Any, Any], ratios: Sequence[float]) -> tuple[Any, Any]:
    """Error and step at the ratios asked for."""
    ratio, error, step = found
    at = [int(np.argmin(np.abs(ratio - wanted))) for wanted in ratios]
    return error[at], step[at]


def _ratio_axis(ax: Axes, ratios: Sequence[float]) -> None:
    ax.set_xticks(list(ratios), [short_number(ratio) for ratio in ratios])
    ax.set_xlim(min(ratios) - 0.03, max(ratios) + 0.03)
