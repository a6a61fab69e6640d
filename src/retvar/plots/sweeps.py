"""Errors against a setting: ratios of step sizes, and the size of the return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from retvar.experiments.claims import error_by_return, errors_by_steps
from retvar.plots import legend, placing
from retvar.plots import series as s
from retvar.plots.scales import log_together, log_x, powers
from retvar.plots.style import INK, RC

if TYPE_CHECKING:
    import xarray

__all__ = ["large_returns", "step_size_ratio"]


def step_size_ratio(data: s.Given) -> Figure:
    """Draw the squared error of the variance against both step sizes, on logarithmic axes.

    A colour for each ᾱ; direct is solid, VTD dashed, centred dotted. α = 0 is left of the break.

    Parameters
    ----------
    data
        From :func:`retvar.simulate`, recorded with a window; labels of learners begin with
        ``direct``, ``vtd`` or ``centred``, and α and ᾱ are numbers.

    Returns
    -------
    Figure
        See :func:`save`.

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
    found = s.dataset(data)
    s.need(found, "variance_window_mse")
    errors = {name: errors_by_steps(found, name) for name in s.methods_of(found)}
    rest = [name for name in errors if name != "direct"] or ["direct"]
    with matplotlib.rc_context(RC):
        figure, axes = s.panels(len(rest), 2, 0.4 + 4.2 * len(rest), 3.9)
        for ax, name in zip(axes, rest, strict=True):
            both = [other for other in ("direct", name) if other in errors]
            ax.set_title(" and ".join(s.title(other) for other in dict.fromkeys(both)))
            ax.set_xlabel("step size of the value, α")
            for other in both:
                _by_alpha(ax, errors[other], s.METHODS[other])
            _name_steps(ax, errors[both[0]])
        log_together(axes, np.concatenate([table.values.ravel() for table in errors.values()]))
        axes[0].set_ylabel("squared error, summed over states")
        s.hide_inner(axes)
        legend.key(
            figure,
            [(legend.swatch(s.Look(INK, "", s.METHODS[m].dash)), s.title(m)) for m in errors],
        )
        placing.settle(axes)
        return figure


def _by_alpha(ax: Axes, table: xarray.DataArray, method: s.Look) -> None:
    """A line for each ᾱ, over α."""
    x = log_x(ax, table.alpha.values.tolist())
    for k, column in enumerate(table.transpose("alpha_bar", "alpha").values):
        ax.plot(x, column, **replace(method, colour=s.COLOURS[k % 8], mark=s.MARKS[k % 8]).line())


def _name_steps(ax: Axes, table: xarray.DataArray) -> None:
    """Write each ᾱ where its line ends."""
    steps = table.alpha_bar.values.tolist()
    last = table.transpose("alpha", "alpha_bar").values[-1]
    texts = [f"ᾱ = {text}" for text in powers(steps)]
    placing.ends(ax, last.tolist(), texts, [s.look(k).ink for k in range(len(steps))])


def large_returns(data: Mapping[str, xarray.Dataset], means: Sequence[float]) -> Figure:
    """Draw the squared error of the variance against the mean reward, on logarithmic axes.

    Parameters
    ----------
    data
        Datasets named ``…/frozen/c`` (the value held at the truth) and ``…/learned/c``, recorded
        with a window, for each mean reward c.
    means
        The mean rewards to show; 0 is left of the break.

    Returns
    -------
    Figure
        See :func:`save`.

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
    cases = {"frozen": "value held at the truth", "learned": "value learned, α = ᾱ"}
    methods = s.methods_of(next(iter(data.values())))
    found = {(c, m): error_by_return(data, c, m) for c in cases for m in methods}
    with matplotlib.rc_context(RC):
        figure, axes = s.panels(len(cases), 2, 8.0, 3.3)
        for ax, (case, about) in zip(axes, cases.items(), strict=True):
            ax.set_title(about)
            ax.set_xlabel("mean reward, c")
            x = log_x(ax, means)
            lines = [[found[case, m].get(float(c), np.nan) for c in means] for m in methods]
            for name, line in zip(methods, lines, strict=True):
                ax.plot(x, line, **s.METHODS[name].line())
            inks = [s.METHODS[m].ink for m in methods]
            placing.ends(ax, [line[-1] for line in lines], [s.title(m) for m in methods], inks)
        log_together(axes, np.array([x for line in found.values() for x in line.values()]))
        axes[0].set_ylabel("squared error, summed over states")
        s.hide_inner(axes)
        placing.settle(axes)
        return figure
