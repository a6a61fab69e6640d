"""A learner living on a stream of transitions."""

from retvar.online.checkpoint import restore, save
from retvar.online.estimator import Online, Transition

__all__ = ["Online", "Transition", "restore", "save"]
