"""Sweeps: many learners on many domains, computed once, whatever happens, and then compared."""

from retvar.sweep.cells import Plan
from retvar.sweep.collected import Finished, finished
from retvar.sweep.collecting import collect, save
from retvar.sweep.comparing import Comparison, compare, paired_difference
from retvar.sweep.executors import Dask, Local
from retvar.sweep.job import Status, Watch, estimate, retry, run, status
from retvar.sweep.spans import Range
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
    "Watch",
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
