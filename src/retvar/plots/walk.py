"""Function approximation: errors over time, estimates at the end, sensitivity to the step size."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from retvar.experiments.claims import by_step
from retvar.plots import legend, placing
from retvar.plots import series as s
from retvar.plots.scales import log_together, log_x
from retvar.plots.style import RC, Array

__all__ = ["final_estimates", "rmse_curves", "sensitivity"]

FARTHEST = 1e4  # times the least error; what is above is cut off
ROW = 12  # points


def rmse_curves(data: s.Given) -> Figure:
    """Draw the root mean squared error of each learner's variance over time, ± std over runs.

    Parameters
    ----------
    data
        From :func:`retvar.simulate`, recorded with ``Record(rmse=True)``, or a mapping that holds
        one such dataset.

    Returns
    -------
    Figure
        See :func:`save`.

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
    found = s.dataset(data)
    s.need(found, "variance_rmse")
    labels = s.labels_of(found)
    mean, std = found.variance_rmse, found.variance_rmse_std
    with matplotlib.rc_context(RC):
        figure, (ax,) = s.panels(1, 1, 7.0, 3.4)
        x = s.count_axis(ax, found)
        log_together([ax], _usual(np.asarray(mean)))
        for k, label in enumerate(labels):
            lines = np.asarray(mean.sel(learner=label)), np.asarray(std.sel(learner=label))
            s.curve(ax, x, *lines, s.look_of(label, k), s.sparse(x.size, k, len(labels)))
        ax.set_ylabel("RMSE of the variance")
        heights = [float(mean.sel(learner=label)[-1]) for label in labels]
        inks = [s.look_of(label, k).ink for k, label in enumerate(labels)]
        placing.ends(ax, heights, [s.title(label) for label in labels], inks)
        legend.key(figure, [legend.mean_entry(found, "variance_rmse")])
        placing.settle([ax])
        return figure


def final_estimates(data: s.Given) -> Figure:
    """Draw the variance that each learner ends with, state by state: mean ± std over runs.

    Parameters
    ----------
    data
        From :func:`retvar.simulate`, or a mapping that holds one such dataset.

    Returns
    -------
    Figure
        See :func:`save`.

    Examples
    --------
    >>> import retvar as rv
    >>> learners = {"direct": rv.Direct(alpha=0.01), "vtd": rv.VTD(alpha=0.01)}
    >>> data = rv.simulate(rv.domains.complex_mdp(), learners, steps=100, runs=2, seed=0)
    >>> rv.plots.final_estimates(data).axes[0].get_xlabel()
    'state'
    """
    found = s.dataset(data)
    labels = s.labels_of(found)
    last = found.isel({"step" if "step" in found.dims else "episode": -1})
    x = np.arange(found.sizes["state"], dtype=float)
    with matplotlib.rc_context(RC):
        figure, (ax,) = s.panels(1, 1, 7.0, 3.6)
        for k, label in enumerate(labels):
            one = last.sel(learner=label)
            every = (k * max(1, x.size // 30) % max(1, x.size // 10), max(1, x.size // 10))
            lines = one.variance.values, one.variance_std.values
            s.curve(ax, x, *lines, s.look_of(label, k), every, edges=True)
        truth = np.array([])
        if "true_variance" in found:
            truth = last.true_variance.sel(learner=labels[0]).values
            ax.plot(x, truth, **s.TRUTH)
        ax.set_ylim(*s.limits(last.variance.values, last.variance_std.values, truth))
        ax.set(xlabel="state", ylabel="variance")
        step = max(1, x.size // 10)
        ax.set_xlim(-0.5, x.size - 0.5)
        ax.set_xticks(x[::step], [str(name) for name in found.state.values[::step]])
        looks = [s.look_of(label, k) for k, label in enumerate(labels)]
        names = zip(looks, labels, strict=True)
        entries = [
            (legend.swatch(look, band=True), f"{s.title(label)} ± std") for look, label in names
        ]
        legend.key(figure, [*entries, legend.truth_entry()] if truth.size else entries)
        return figure


def sensitivity(data: s.Given) -> Figure:
    """Draw the error at the end against ᾱ for each method, and above it which runs diverged.

    Parameters
    ----------
    data
        From :func:`retvar.simulate`, recorded with ``Record(rmse=True)``; labels of learners begin
        with ``direct``, ``vtd`` or ``centred``, and ᾱ is a number.

    Returns
    -------
    Figure
        See :func:`save`.

    Examples
    --------
    >>> import retvar as rv
    >>> learners = {"direct": rv.Direct(alpha=0.01), "vtd": rv.VTD(alpha=0.01)}
    >>> record = rv.Record(at=[100], rmse=True)
    >>> mdp = rv.domains.complex_mdp()
    >>> data = rv.simulate(mdp, learners, steps=100, runs=2, seed=0, record=record)
    >>> rv.plots.sensitivity(data).axes[0].get_ylabel()
    'final RMSE of the variance'
    """
    found = s.dataset(data)
    s.need(found, "variance_rmse")
    table = {name: by_step(found, name) for name in s.methods_of(found)}
    with matplotlib.rc_context(RC):
        figure, (ax,) = s.panels(1, 1, 7.0, 4.0)
        log_together([ax], _usual(np.concatenate([mean for _, mean, *_ in table.values()])))
        for name, (x, mean, std, diverged) in table.items():
            whole = np.where(diverged > 0, np.nan, mean)
            s.curve(ax, x, whole, std, s.METHODS[name], edges=True)
            some = (diverged > 0) & np.isfinite(mean)  # the runs that are left
            ax.plot(x[some], mean[some], **s.METHODS[name].line(linestyle="none", mfc="none"))
        ax.set_xlabel("step size of the variance, ᾱ")
        ax.set_ylabel("final RMSE of the variance")
        log_x(ax, np.unique(np.concatenate([x for x, *_ in table.values()])).tolist(), base=2)
        _divergence(ax, table, int(found.attrs.get("runs", 0)))
        legend.key(
            figure, [(legend.swatch(s.METHODS[m], band=True), f"{s.title(m)} ± std") for m in table]
        )
        return figure


def _usual(values: Array) -> Array:
    """All that are not many orders above the least, as numbers are on the way to divergence."""
    finite = values[np.isfinite(values)]
    return np.asarray(finite[finite <= FARTHEST * finite.min(initial=np.inf)])


def _divergence(ax: Axes, table: dict[str, tuple[Array, Array, Array, Array]], runs: int) -> None:
    """A row of crosses above the panel for each method that diverged, with how many runs."""
    rows = [name for name, (*_, diverged) in table.items() if (diverged > 0).any()]
    look: Any = {"textcoords": "offset points", "va": "center", "fontsize": 8, "gid": "diverged"}
    for k, name in enumerate(reversed(rows)):
        x, *_, diverged = table[name]
        ink, height = s.METHODS[name].ink, 10 + ROW * k
        ax.annotate(s.title(name), (0, 1), (0, height), "axes fraction", color=ink, **look)
        for place, count in zip(x[diverged > 0], diverged[diverged > 0], strict=True):
            at = "data", "axes fraction"
            ax.annotate(f"× {count}", (place, 1), (0, height), at, color=ink, ha="center", **look)
    if rows:
        text, height = f"× n: n of {runs} runs diverged", 10 + ROW * len(rows)
        ax.annotate(text, (0, 1), (0, height), "axes fraction", **look)
