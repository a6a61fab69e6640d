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

The figures of estimates from experience take the dataset of :func:`retvar.estimate`:
``maps``, ``heat``, ``states``, ``observed``, ``calibrated`` and ``rollouts``; ``estimates`` draws
those that make sense. They share ``estimated`` (columns, titles, units).

The figures of sweeps take what a sweep collected: ``sensitivity_curves``, ``sweep_maps`` and
``comparisons``. They share ``swept`` (errors by setting).
"""

from retvar.plots.answers import solution
from retvar.plots.calibrated import calibration
from retvar.plots.comparisons import comparison
from retvar.plots.estimates import estimate_figures
from retvar.plots.graph import draw_mdp
from retvar.plots.heat import estimate_heat_maps
from retvar.plots.learning import learning_curves, step_sizes
from retvar.plots.maps import estimate_maps
from retvar.plots.observed import observed_returns
from retvar.plots.rollouts import check
from retvar.plots.schematics import mdp, networks
from retvar.plots.sensitivity_curves import sensitivity_curves
from retvar.plots.states import estimate_states
from retvar.plots.style import save
from retvar.plots.sweep_maps import sweep_heat_map
from retvar.plots.sweeps import large_returns, step_size_ratio
from retvar.plots.table import table_1
from retvar.plots.value_error import value_error_best_step, value_error_spread
from retvar.plots.walk import final_estimates, rmse_curves, sensitivity

__all__ = [
    "calibration",
    "check",
    "comparison",
    "draw_mdp",
    "estimate_figures",
    "estimate_heat_maps",
    "estimate_maps",
    "estimate_states",
    "final_estimates",
    "large_returns",
    "learning_curves",
    "mdp",
    "networks",
    "observed_returns",
    "rmse_curves",
    "save",
    "sensitivity",
    "sensitivity_curves",
    "solution",
    "step_size_ratio",
    "step_sizes",
    "sweep_heat_map",
    "table_1",
    "value_error_best_step",
    "value_error_spread",
]
