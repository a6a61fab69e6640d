"""Exact learning curves of TD learners with constant steps and no traces."""

from retvar.curves.expected_curves import expected_curve
from retvar.curves.resting import resting_error
from retvar.curves.step_search import BestSteps, best_steps

__all__ = ["BestSteps", "best_steps", "expected_curve", "resting_error"]
