"""Figures: an MDP as a graph, its solution, what simulations gave, and how to save them.

:func:`draw_mdp` (``graph``) goes through five steps, a module each:

1. ``links``: what is drawn (an arrow an edge, or one for several alike), and all its texts;
2. ``layout``: where states, ends and starts stand;
3. ``routing``: how arrows run, so that they keep apart (``curves`` is the geometry);
4. ``labels``: where the texts at arrows go, so that they cover nothing;
5. ``paint``: put it all on the page.

:func:`solution` is ``answers``; ``style`` holds the looks of both, and :func:`save`.

The figures of experiments take datasets by the name of their simulation: ``learning``, ``sweeps``,
``value_error``, ``walk``, ``table`` and ``schematics``. They share ``series`` (looks, lines with
bands, panels), ``scales`` (axes), ``legend`` and ``placing`` (texts beside data).
"""

from retvar.plots.answers import solution
from retvar.plots.graph import draw_mdp
from retvar.plots.learning import learning_curves, step_sizes
from retvar.plots.schematics import mdp, networks
from retvar.plots.style import save
from retvar.plots.sweeps import large_returns, step_size_ratio
from retvar.plots.table import table_1
from retvar.plots.value_error import value_error_best_step, value_error_spread
from retvar.plots.walk import final_estimates, rmse_curves, sensitivity

__all__ = [
    "draw_mdp",
    "final_estimates",
    "large_returns",
    "learning_curves",
    "mdp",
    "networks",
    "rmse_curves",
    "save",
    "sensitivity",
    "solution",
    "step_size_ratio",
    "step_sizes",
    "table_1",
    "value_error_best_step",
    "value_error_spread",
]
