"""Exact learning curves of TD learners with constant steps and no traces."""

from retvar.curves.expected_curves import expected_curve

__all__ = ["expected_curve"]
