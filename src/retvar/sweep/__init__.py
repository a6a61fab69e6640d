"""Sweeps: many learners on many domains, computed once, whatever happens, and then compared."""

from retvar.sweep.comparison import Comparison, compare, paired_difference
from retvar.sweep.executors import Dask, Local
from retvar.sweep.grids import Range
from retvar.sweep.operations import Status, estimate, retry, run, status
from retvar.sweep.plan import Plan
from retvar.sweep.results import collect, save
from retvar.sweep.run_errors import Finished, finished
from retvar.sweep.spec import Cut, Domain, Learners, Points, Sweep
from retvar.sweep.statistics import (
    Interval,
    bootstrap_interval,
    holm,
    interquartile_mean,
    signed_rank,
)
from retvar.sweep.store import Store

__all__ = [
    "Comparison",
    "Cut",
    "Dask",
    "Domain",
    "Finished",
    "Interval",
    "Learners",
    "Local",
    "Plan",
    "Points",
    "Range",
    "Status",
    "Store",
    "Sweep",
    "bootstrap_interval",
    "collect",
    "compare",
    "estimate",
    "finished",
    "holm",
    "interquartile_mean",
    "paired_difference",
    "retry",
    "run",
    "save",
    "signed_rank",
    "status",
]
