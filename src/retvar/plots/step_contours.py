"""Contours of the exact error over the step sizes of value and variance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.ticker import LogLocator, NullLocator

from retvar import arguments
from retvar.errors import InputError
from retvar.format import short_number
from retvar.plots.axes import fixed_ticks, tick_labels
from retvar.plots.notebook_figures import Figure
from retvar.plots.style import INK, RC, Array, learner_name
from retvar.plots.sweep_errors import LONG_NAMES

if TYPE_CHECKING:
    from retvar.curves import BestSteps

__all__ = ["step_contours"]

CUTOFF = 100.0  # times the least error; larger errors have the same colour
LEVELS = 13
PANEL = 2.9  # inches
STAR: Any = {"marker": "*", "ms": 11, "mfc": "white", "mec": INK, "mew": 0.9, "ls": "none"}


def step_contours(best: BestSteps | Mapping[str, BestSteps]) -> Figure:
    """Draw the exact error over α and ᾱ, a panel for each method, all on one scale.

    A star marks the best steps. With a third step (α_mean) each point has its best value of it.

    Parameters
    ----------
    best
        From :func:`retvar.best_steps`, or a mapping from names to several.

    Examples
    --------
    >>> import retvar as rv
    >>> best = rv.best_steps(rv.domains.chain(length=1), rv.Direct, steps=5, points=3)
    >>> figure = rv.plots.step_contours(best)
    >>> figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()
    ('step size of the value, α', 'step size of the variance, ᾱ')
    """
    from retvar.curves import BestSteps

    several: Any = best if isinstance(best, Mapping) and best else {"": best}
    for name, one in several.items():
        field = f"best[{name!r}]" if name else "best"
        arguments.instance(field, one, BestSteps, "a result of retvar.best_steps")
    found: dict[str, BestSteps] = {
        name or one.learner.network.method: one for name, one in several.items()
    }
    tables = {name: _table(one) for name, one in found.items()}
    norm = _norm(np.concatenate([table.ravel() for _, _, table in tables.values()]))
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(1.3 + PANEL * len(found), 0.6 + PANEL), layout="constrained")
        axes = figure.subplots(1, len(found), squeeze=False, sharex=True, sharey=True)[0]
        for ax, (name, one) in zip(axes, found.items(), strict=True):
            _draw(ax, one, tables[name], norm)
            ax.set_title(learner_name(name))
        axes[0].set_ylabel(LONG_NAMES["alpha_bar"])
        for ax, (x, y, _) in zip(axes, tables.values(), strict=True):
            ax.set_xlabel(LONG_NAMES["alpha"])
            for axis, values in ((ax.xaxis, x), (ax.yaxis, y)):
                ticks = _powers_of_ten(values)
                fixed_ticks(axis, ticks, tick_labels(ticks))
        _colour_bar(figure, axes, norm)
        return figure


def _table(best: BestSteps) -> tuple[Array, Array, Array]:
    """α, ᾱ and the errors [ᾱ, α]."""
    errors = best.errors
    if "alpha" not in errors.dims or "alpha_bar" not in errors.dims:
        remedy = "the error must depend on both alpha and alpha_bar; plot best.errors yourself"
        raise InputError("best", f"errors over {', '.join(map(str, errors.dims))}", remedy)
    others = [name for name in errors.dims if name not in ("alpha", "alpha_bar")]
    table = errors.min(others).transpose("alpha_bar", "alpha")
    return table.alpha.values, table.alpha_bar.values, table.values


def _powers_of_ten(values: Array) -> list[float]:
    """Powers of ten in a range; its ends if there are fewer than two."""
    low, high = np.log10(values[0]), np.log10(values[-1])
    inside = [10.0**k for k in range(int(np.ceil(low - 1e-9)), int(np.floor(high + 1e-9)) + 1)]
    return inside if len(inside) > 1 else [float(values[0]), float(values[-1])]


def _norm(errors: Array) -> LogNorm:
    finite = errors[np.isfinite(errors) & (errors > 0)]
    low = float(finite.min())
    return LogNorm(low, max(min(float(finite.max()), CUTOFF * low), 1.01 * low))


def _draw(ax: Axes, best: BestSteps, table: tuple[Array, Array, Array], norm: LogNorm) -> None:
    """Draw one panel: colours, lines, and the best steps with their error."""
    x, y, errors = table
    low, high = float(norm.vmin or 1.0), float(norm.vmax or 1.0)
    shown = np.clip(np.where(np.isfinite(errors), errors, high), low, high)
    levels = np.geomspace(low, high, LEVELS)
    ax.set(xscale="log", yscale="log")
    ax.contourf(x, y, shown, levels=levels, norm=norm, cmap="viridis_r")
    ax.contour(x, y, shown, levels=levels, colors=INK, linewidths=0.4)
    steps = best.steps
    ax.plot(steps["alpha"], steps["alpha_bar"], gid="best", **STAR)
    text = f"error {short_number(best.error)}"
    ax.text(0.03, 0.97, text, transform=ax.transAxes, va="top", fontsize=8, color="white",
            bbox={"facecolor": INK, "alpha": 0.6, "lw": 0, "pad": 2})  # fmt: skip


def _colour_bar(figure: Figure, axes: Any, norm: LogNorm) -> None:
    low, high = float(norm.vmin or 1.0), float(norm.vmax or 1.0)
    scale = matplotlib.cm.ScalarMappable(norm, "viridis_r")
    bar = figure.colorbar(scale, ax=list(axes), pad=0.02, fraction=0.05, aspect=22)
    bar.set_label("mean squared error, summed over states")
    near = LogLocator(subs=(1.0, 2.0, 5.0), numticks=20).tick_values(low, high)
    ticks = [float(t) for t in near if low * 0.999 <= t <= high * 1.001]
    bar.set_ticks(ticks, labels=tick_labels(ticks))
    bar.ax.yaxis.set_minor_locator(NullLocator())
