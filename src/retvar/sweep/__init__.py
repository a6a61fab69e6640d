"""Sweeps: many learners on many domains, computed once, wherever, whatever happens."""

from retvar.sweep.cells import Plan
from retvar.sweep.collecting import collect, save
from retvar.sweep.executors import Dask, Local
from retvar.sweep.job import Status, Watch, estimate, retry, run, status
from retvar.sweep.spec import Cut, Domain, Learners, Points, Range, Sweep
from retvar.sweep.store import Store

__all__ = [
    "Cut",
    "Dask",
    "Domain",
    "Learners",
    "Local",
    "Plan",
    "Points",
    "Range",
    "Status",
    "Store",
    "Sweep",
    "Watch",
    "collect",
    "estimate",
    "retry",
    "run",
    "save",
    "status",
]
