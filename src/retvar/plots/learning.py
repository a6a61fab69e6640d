"""Learning curves: the value, then the variance by each learner, state by state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from retvar.errors import InputError
from retvar.format import short_number
from retvar.plots import legend, placing
from retvar.plots import series as s
from retvar.plots.scales import SHADE, compress_y, log_together
from retvar.plots.style import RC, Array

if TYPE_CHECKING:
    import xarray

__all__ = ["learning_curves", "step_sizes"]

MOST = 23  # learners
NAMED = 8  # states with a label and a band of their own
ACROSS, WIDTH, HEIGHT = 4, 8.8, 2.7
DEEP = 0.6  # times as far below zero as above it: then what is below is compressed


def learning_curves(data: s.Given, truth: bool = True) -> Figure:
    """Draw what each learner estimated over time: its mean over runs, ± a standard deviation.

    The first panel is the value, the others are the variance by each learner, on one scale. Exact
    answers are dashed. A curve that strays far from the truth runs out of its panel.

    Parameters
    ----------
    data
        From :func:`retvar.simulate`, or a mapping that holds one such dataset.
    truth
        Whether to draw the exact answers.

    Returns
    -------
    Figure
        See :func:`save`.

    Examples
    --------
    >>> import retvar as rv
    >>> learners = {"direct": rv.Direct(alpha=0.01), "vtd": rv.VTD(alpha=0.01)}
    >>> data = rv.simulate(rv.domains.complex_mdp(), learners, steps=100, runs=2, seed=0)
    >>> figure = rv.plots.learning_curves(data)
    >>> [ax.get_title(loc="left") for ax in figure.axes]
    ['value', 'variance by VTD', 'variance by direct']
    """
    found = s.dataset(data)
    labels = s.labels_of(found)
    _refuse_many(labels)
    fields = [("value", labels[0]), *(("variance", label) for label in labels)]
    same = bool((found.value == found.value.isel(learner=0)).all())
    with matplotlib.rc_context(RC):
        figure, axes = s.panels(len(fields), ACROSS, _width(len(fields)), HEIGHT)
        for ax, (field, label) in zip(axes, fields, strict=True):
            plain = field == "value" and same
            ax.set_title(field if plain else f"{field} by {s.title(label)}")
            exact = _truth(found, field, label) if truth else None
            _draw(ax, found.sel(learner=label), field, exact)
        _scale(axes[:1], found.sel(learner=labels[:1]), "value")
        knee = _scale(axes[1:], found, "variance")
        entries = [legend.mean_entry(found, "variance")]
        if truth and "true_variance" in found:
            entries.append(legend.truth_entry())
        if knee is not None:
            entries.append((Patch(facecolor=SHADE), f"scale compressed below {short_number(knee)}"))
        return _finish(figure, axes, entries)


def step_sizes(data: s.Given) -> Figure:
    """Draw the step sizes that a rule found over time: of the value, then of each variance node.

    Parameters
    ----------
    data
        As for :func:`learning_curves`, recorded with ``Record(step_sizes=True)``.

    Returns
    -------
    Figure
        See :func:`save`.

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
    found = s.dataset(data)
    s.need(found, "value_step_size", "variance_step_size")
    labels = s.labels_of(found)
    _refuse_many(labels)
    with matplotlib.rc_context(RC):
        figure, axes = s.panels(1 + len(labels), ACROSS, _width(1 + len(labels)), HEIGHT)
        for k, ax in enumerate(axes):
            label, field = labels[max(0, k - 1)], "variance" if k else "value"
            ax.set_title(f"{_node(found, label)} ({s.title(label)})" if k else field)
            _draw(ax, found.sel(learner=label), f"{field}_step_size", None, band=False)
        every = np.concatenate([found[f"{x}_step_size"].values for x in ("value", "variance")])
        log_together(axes, every)
        axes[0].set_ylabel("step size")
        s.hide_inner(axes)
        return _finish(figure, axes, [legend.mean_entry(found, "variance", band=False)])


def _refuse_many(labels: list[str]) -> None:
    if len(labels) > MOST:
        remedy = f"at most {MOST} fit a figure; choose some with data.sel(learner=[…])"
        raise InputError("learners", len(labels), remedy)


def _width(count: int) -> float:
    return max(0.6, min(count / ACROSS, 1.0)) * WIDTH


def _node(data: xarray.Dataset, label: str) -> str:
    """What a learner's last node learns."""
    kind = data.algorithm.sel(learner=label).item() if "algorithm" in data.coords else label
    return "second moment" if str(kind).lower() == "vtd" else "variance"


def _truth(data: xarray.Dataset, field: str, label: str) -> Array | None:
    name = f"true_{field}"
    return np.asarray(data[name].sel(learner=label)) if name in data else None


def _looks(states: int) -> list[s.Look]:
    """One for each state; many run through a range of colours."""
    if states <= NAMED:
        return [s.look(k) for k in range(states)]
    ramp = colormaps["cividis"](np.linspace(0, 0.9, states))
    return [s.Look(to_hex(colour), "") for colour in ramp]


def _draw(
    ax: Axes, data: xarray.Dataset, field: str, truth: Array | None, band: bool = True
) -> None:
    """A line for each state of one learner, named where it ends."""
    x = s.count_axis(ax, data)
    mean, std = (np.asarray(data[name]) for name in (field, f"{field}_std"))
    states = mean.shape[-1]
    looks = _looks(states)
    named = np.unique(np.linspace(0, states - 1, min(states, NAMED)).round().astype(int))
    for k, look in enumerate(looks):
        spread = std[:, k] if band and states <= NAMED else None
        s.curve(ax, x, mean[:, k], spread, look, s.sparse(x.size, k, states))
    for k in named if truth is not None else []:
        ax.axhline(truth[k], **s.TRUTH)  # type: ignore[index]
    texts = [str(data.state.values[k]) for k in named]
    placing.ends(ax, [_last(mean[:, k]) for k in named], texts, [looks[k].ink for k in named])


def _last(line: Array) -> float:
    """The last number of a line."""
    finite = line[np.isfinite(line)]
    return float(finite[-1]) if finite.size else np.nan


def _scale(axes: Sequence[Axes], data: xarray.Dataset, field: str) -> float | None:
    """The same limits for all; below the knee that is returned, if any, they are compressed."""
    mean, std = np.asarray(data[field]), np.asarray(data[f"{field}_std"])
    exact = np.asarray(data[f"true_{field}"]) if f"true_{field}" in data else np.array([])
    low, high = s.limits(mean, std, exact)
    s.hide_inner(axes)
    if field == "variance" and 0 < DEEP * high < -low:  # a dip would squash all else
        knee = float(f"{-high / 4:.1g}")
        for ax in axes:
            compress_y(ax, low, knee, high)
        return knee
    for ax in axes:
        ax.set_ylim(low, high)
        ax.locator_params(axis="y", nbins=6)
    return None


def _finish(figure: Figure, axes: Sequence[Axes], entries: list[Any]) -> Figure:
    """Legend, then labels in their places."""
    legend.key(figure, entries)
    placing.settle(axes)
    return figure
