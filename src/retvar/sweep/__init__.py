"""Sweeps: many learners on many domains, and what can be said when they are compared."""

from retvar.sweep.comparing import Comparison, compare, paired_difference
from retvar.sweep.statistics import (
    Interval,
    bootstrap_interval,
    holm,
    interquartile_mean,
    signed_rank,
)

__all__ = [
    "Comparison",
    "Interval",
    "bootstrap_interval",
    "compare",
    "holm",
    "interquartile_mean",
    "paired_difference",
    "signed_rank",
]
