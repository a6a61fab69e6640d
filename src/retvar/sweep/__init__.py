"""Sweeps: run many learners on many domains, resume after interruptions, compare the results."""

from retvar.sweep.comparison import Comparison, compare, paired_difference
from retvar.sweep.dask import Dask
from retvar.sweep.plan import Plan
from retvar.sweep.results import collect, save
from retvar.sweep.run_errors import ComparisonOptions, Finished, finished
from retvar.sweep.spec import CellSize, Domain, Learners, Points, Range, Sweep
from retvar.sweep.statistics import (
    Interval,
    bootstrap_interval,
    holm,
    interquartile_mean,
    signed_rank,
)
from retvar.sweep.store import Local, Status, Store, retry, run, status

__all__ = [
    "CellSize",
    "Comparison",
    "ComparisonOptions",
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
