"""Exact learning curves of TD learners with constant steps and no traces."""

from retvar.simulation.curves.expected_curves import expected_curve, resting_error
from retvar.simulation.curves.step_search import BestSteps, best_steps

__all__ = ["BestSteps", "best_steps", "expected_curve", "resting_error"]
