"""Figures of MDPs, exact solutions, simulations, estimates and sweeps, and how to save them.

- MDPs: ``graph`` (with ``graph_content``, ``graph_layout`` and ``graph_edges``; for many states
  ``large_graph`` and ``transition_matrix``) draws an MDP as a graph; ``exact_values`` draws its
  solution; ``risk_frontier`` the result of :func:`retvar.frontier`.
- Simulations and experiments: ``learning_curves``, ``final_errors`` and ``paper_figures`` take the
  datasets of :func:`retvar.simulate`, or a mapping of them by name. ``learning_curves`` also takes
  that of :func:`retvar.expected_curve`, and ``step_contours`` the result of
  :func:`retvar.best_steps`.
- Estimates from experience: ``estimates``, ``estimate_maps``, ``layered_maps`` and
  ``observed_returns`` take the dataset of :func:`retvar.estimate`; ``estimate_common`` holds what
  they share.
- Sweeps: ``sensitivity_curves``, ``sweep_heat_maps`` and ``error_ratios`` take a collected sweep;
  ``sweep_errors`` holds what they share.

``style`` (colours, line styles, text, legends, :func:`save`) and ``axes`` (panels, scales, labels
next to data) are shared by all. Drawing functions return a matplotlib ``Figure``.
"""

from retvar.plots import cache_folder as cache_folder  # before matplotlib
from retvar.plots.error_ratios import comparison
from retvar.plots.estimate_maps import estimate_heat_maps, estimate_maps
from retvar.plots.estimates import check, estimate, estimate_figures, estimate_states
from retvar.plots.exact_values import solution
from retvar.plots.final_errors import (
    large_returns,
    sensitivity,
    step_size_ratio,
    value_error_best_step,
    value_error_spread,
)
from retvar.plots.graph import draw_mdp
from retvar.plots.learning_curves import final_estimates, learning_curves, rmse_curves, step_sizes
from retvar.plots.observed_returns import calibration, observed_returns
from retvar.plots.paper_figures import mdp, networks, table_1
from retvar.plots.risk_frontier import frontier
from retvar.plots.sensitivity_curves import sensitivity_curves
from retvar.plots.step_contours import step_contours
from retvar.plots.style import save
from retvar.plots.sweep_heat_maps import sweep_heat_map

__all__ = [
    "calibration",
    "check",
    "comparison",
    "draw_mdp",
    "estimate",
    "estimate_figures",
    "estimate_heat_maps",
    "estimate_maps",
    "estimate_states",
    "final_estimates",
    "frontier",
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
    "step_contours",
    "step_size_ratio",
    "step_sizes",
    "sweep_heat_map",
    "table_1",
    "value_error_best_step",
    "value_error_spread",
]
