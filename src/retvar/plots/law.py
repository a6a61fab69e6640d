"""The law of a return: the probability of returns below each limit, with its bracket as a band."""

from __future__ import annotations

import numpy as np

from retvar.exact.law import Law
from retvar.plots import style
from retvar.plots.panels import Line, Panel, XAxis, panels
from retvar.plots.style import Figure
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.support.format import minus, number

SIZE = 1, 5.2, 3.2  # columns, inches
POINTS = 241


def law_panel(found: Law) -> Panel:
    """The data: the middle of each bracket as a line, the bracket as a band.

    The limits go from where nearly no return is below to where nearly all are.

    >>> import retvar as rv
    >>> panel = law_panel(rv.law(rv.domains.chain())["s0"])
    >>> panel.title, bool((panel.lines[0].band[0] <= panel.lines[0].y).all())
    ('s0: 4.00 ± 1.73', True)
    """
    ends = found.quantile(1e-3).low, found.quantile(1 - 1e-3).high
    pad = 0.02 * (ends[1] - ends[0]) or 0.5
    x = np.linspace(ends[0] - pad, ends[1] + pad, POINTS)
    low, high = np.array([found.probability_below(limit) for limit in x]).T
    line = Line(x, (low + high) / 2, style.LineStyle(style.BLUE, ""), (low, high), outlined=True)
    title = minus(f"{found.name}: {number(found.mean)} ± {number(found.std.middle)}")
    return Panel(title, [line], limits=(0.0, 1.0), ylabel="probability of a return below")


def law(found: Law) -> Figure:
    """Draw the law of one state, with CVaR 5% and the mean as vertical lines.

    >>> import retvar as rv
    >>> figure = rv.plots.law(rv.law(rv.domains.chain())["s0"])
    >>> figure.axes[0].get_xlabel()
    'return'
    """
    arguments.instance("found", found, Law, "the law of a state: rv.law(mdp)[state]")
    if found.state is None:
        raise InputError("found", found, "must be the law of a state: rv.law(mdp)[state]")
    panel = law_panel(found)
    limits = float(panel.lines[0].x[0]), float(panel.lines[0].x[-1])
    figure = panels([panel], XAxis("return", limits), SIZE)
    ax = figure.axes[0]
    for x, name in ((found.cvar().middle, "CVaR 5%"), (found.mean, "mean")):
        ax.axvline(x, **style.TRUTH)
        text = minus(f"{name} {number(x)}")
        ax.annotate(text, (x, 1), (3, -10), textcoords="offset points", fontsize=8, color=style.INK)
    return figure
