"""Figures of MDPs, exact solutions, simulations, estimates and sweeps, and how to save them.

A figure is made in two steps: its data, as small records that can be looked at without drawing, and
the drawing. ``lines`` has all curves of simulations, ``comparison`` those of sweeps, ``maps`` all
heat maps, ``states`` values and spreads by state, ``calibration`` observed returns, ``graph`` an
MDP, ``risk`` frontiers, laws of returns and where a variance arises, ``paper`` networks.
They share ``panels`` (lines with bands, axes, ticks, labels next to data), ``estimates``
(columns and titles) and ``style`` (colours, text, legends, :func:`save`). All return a matplotlib
``Figure``.

Examples
--------
>>> import retvar as rv
>>> log = {"state": [0, 1] * 20, "reward": [1.0, 2.0] * 20, "terminated": [False, True] * 20}
>>> found = rv.estimate(rv.experience.from_table(log), gamma=0.9)
>>> figures = rv.plots.estimate_figures(found.data)
>>> figures["states"].axes[0].get_xlabel()
'return'
"""

from retvar.plots.comparison import comparison, sensitivity_curves
from retvar.plots.estimates import calibration, check, observed_returns
from retvar.plots.graph import draw_mdp
from retvar.plots.lines import (
    final_estimates,
    large_returns,
    learning_curves,
    rmse_curves,
    sensitivity,
    step_size_ratio,
    step_sizes,
    value_error_best_step,
    value_error_spread,
)
from retvar.plots.maps import estimate_heat_maps, estimate_maps, step_contours
from retvar.plots.paper import mdp, networks
from retvar.plots.risk import attribution, frontier, law
from retvar.plots.states import estimate, estimate_figures, estimate_states, solution
from retvar.plots.style import save

__all__ = [
    "attribution", "calibration", "check", "comparison", "draw_mdp", "estimate",
    "estimate_figures", "estimate_heat_maps", "estimate_maps", "estimate_states",
    "final_estimates", "frontier", "large_returns", "law", "learning_curves", "mdp", "networks",
    "observed_returns", "rmse_curves", "save", "sensitivity", "sensitivity_curves", "solution",
    "step_contours", "step_size_ratio", "step_sizes", "value_error_best_step",
    "value_error_spread",
]  # fmt: skip
