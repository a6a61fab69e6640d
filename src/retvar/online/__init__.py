"""Estimators that learn online from a stream of transitions."""

from retvar.online.checkpoint import restore, save
from retvar.online.estimator import OnlineEstimator, Transition

__all__ = ["OnlineEstimator", "Transition", "restore", "save"]
