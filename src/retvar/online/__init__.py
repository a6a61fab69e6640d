"""Estimators that learn online from a stream of transitions."""

from retvar.online.checkpoint import restore, save
from retvar.online.estimator import OnlineEstimator, Transition
from retvar.online.several import SeveralEstimator

__all__ = ["OnlineEstimator", "SeveralEstimator", "Transition", "restore", "save"]
