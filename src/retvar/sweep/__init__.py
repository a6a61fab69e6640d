"""Sweeps: run many learners on many domains, resume after interruptions, compare the results.

>>> import tempfile
>>> from pathlib import Path
>>> sweep = Sweep(runs=8, steps=50, domains=[Domain(id="random-walk"), Domain(id="complex-mdp")],
...               learners=[Learners(method=["direct", "vtd"], alpha=[0.1, 0.2])])
>>> sweep.plan().labels[:2]
['direct alpha=0.1', 'vtd alpha=0.1']
>>> out = Path(tempfile.mkdtemp()) / "out"
>>> run(sweep, out).computed, run(sweep, out).computed     # the second finds all cells
(2, 0)
>>> store = Store.open(out)
>>> status(store).complete, retry(store)                    # no cell has failed
(True, 0)
>>> cell = store.plan.cells[0]
>>> store.compute(cell), store.read(cell).sizes["run"]
('exists', 8)
>>> data = collect(store)
>>> dict(data.value_rmse.sizes), data.algorithm.values[:2].tolist()
({'domain': 2, 'learner': 4, 'step': 16, 'run': 8}, ['Direct', 'VTD'])
>>> compare(data).data.pair.values.tolist()
['Direct / VTD']
>>> save(store, out / "sweep.nc") == status(store).digest == data.attrs["digest"]
True
"""

from retvar.sweep.comparison import Comparison, compare
from retvar.sweep.plan import Plan
from retvar.sweep.results import collect, save
from retvar.sweep.run_errors import ComparisonOptions
from retvar.sweep.spec import CellSize, Domain, Learners, Points, Range, Sweep
from retvar.sweep.statistics import (
    Interval,
    bootstrap_interval,
    holm,
    interquartile_mean,
    signed_rank,
)
from retvar.sweep.store import Dask, Local, Status, Store, retry, run, status

__all__ = [
    "CellSize", "Comparison", "ComparisonOptions", "Dask", "Domain", "Interval",
    "Learners", "Local", "Plan", "Points", "Range", "Status", "Store", "Sweep",
    "bootstrap_interval", "collect", "compare", "holm", "interquartile_mean",
    "retry", "run", "save", "signed_rank", "status",
]  # fmt: skip
