"""Checks of the learner interface, for the learners of this package and for your own.

A learner is a description with ``online(states=…)`` and ``replace(…)`` whose estimators behave like
those of :class:`retvar.Direct`. :func:`check_learner` runs every check that applies. Checks use the
public interface only: they compare answers, also after more experience.
"""

from retvar.testing.contract import CHECKS, Check, check_learner

__all__ = ["CHECKS", "Check", "check_learner"]
