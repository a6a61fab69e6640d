"""Sweeps: run many learners on many domains, resume after interruptions, compare the results."""

from retvar.sweep.comparison import Comparison, compare, paired_difference
from retvar.sweep.dask_executor import Dask
from retvar.sweep.executors import Local
from retvar.sweep.grids import Range
from retvar.sweep.operations import CostEstimate, Status, estimate_cost, retry, run, status
from retvar.sweep.options import ComparisonOptions
from retvar.sweep.plan import Plan
from retvar.sweep.results import collect, save
from retvar.sweep.run_errors import Finished, finished
from retvar.sweep.spec import CellSize, Domain, Learners, Points, Sweep
from retvar.sweep.statistics import (
    Interval,
    bootstrap_interval,
    holm,
    interquartile_mean,
    signed_rank,
)
from retvar.sweep.store import Store

__all__ = [
    "CellSize",
    "Comparison",
    "ComparisonOptions",
    "CostEstimate",
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
    "estimate_cost",
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
