"""All cells of a sweep as one labelled dataset, or as a table for other tools."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from retvar import kept
from retvar.errors import InputError
from retvar.files import write_with
from retvar.learners import Learner
from retvar.step_sizes import StepSize
from retvar.sweep.cells import Cell, Plan
from retvar.sweep.spec import STEPS
from retvar.sweep.store import Store
from retvar.version import __version__

if TYPE_CHECKING:
    import xarray

__all__ = ["collect", "save", "table"]

SETTINGS = ("alpha", "alpha_bar", "lam", "kappa", "kappa_bar")  # always told
ERRORS = ("value_rmse", "variance_rmse")


def collect(
    store: Store, *, partial: bool = False, check: Callable[[], None] = lambda: None
) -> xarray.Dataset:
    """One dataset (domain, learner, step or episode, run) of all that was found.

    With `partial`, cells that are missing are NaN.

    >>> import tempfile
    >>> from retvar.sweep import Domain, Learners, Sweep, run
    >>> sweep = Sweep(runs=2, steps=9, domains=[Domain(id="chain")],
    ...               learners=[Learners(method=["direct", "vtd"], alpha=0.1)])
    >>> out = Path(tempfile.mkdtemp()) / "out"
    >>> _ = run(sweep, out)
    >>> data = collect(Store.opened(out))
    >>> dict(data.value_rmse.sizes), data.algorithm.values.tolist()
    ({'domain': 1, 'learner': 2, 'step': 7, 'run': 2}, ['Direct', 'VTD'])
    """
    import xarray

    plan = store.plan
    dims = ("domain", "learner", plan.unit, "run")
    shape = (len(plan.places), len(plan.learners), plan.moments.size, plan.sweep.runs)
    errors = {name: np.full(shape, np.nan) for name in ERRORS}
    died = np.zeros((*shape[:2], shape[3]), dtype=bool)
    for cell, data in _cells(store, partial, check):
        learners = slice(cell.learners.start, cell.learners.stop)
        runs = slice(cell.runs.start, cell.runs.stop)
        for name in ERRORS:
            part = data[name].transpose("learner", plan.unit, "run").values
            errors[name][cell.place, learners, :, runs] = part
        died[cell.place, learners, runs] = data["diverged"].transpose("learner", "run").values
    variables: dict[str, Any] = {name: (dims, errors[name]) for name in ERRORS}
    variables["diverged"] = (("domain", "learner", "run"), died)
    found = xarray.Dataset(variables, _coords(plan))
    return found.assign_attrs(
        name=plan.sweep.name,
        seed=str(plan.sweep.seed),
        spec=json.dumps(plan.sweep.plain(), ensure_ascii=False),
        digest=kept.contents(found),
        retvar=__version__,
    )


def _cells(
    store: Store, partial: bool, check: Callable[[], None]
) -> Iterator[tuple[Cell, xarray.Dataset]]:
    """Each cell with its data, checked."""
    missing = [cell for cell in store.plan.cells if not store.has(cell)]
    if missing and (not partial or len(missing) == store.plan.count):
        remedy = f"of {store.plan.count:,} are not there yet; run the sweep, or give --partial"
        raise InputError("cells", f"{len(missing):,}", remedy)
    gone = {cell.number for cell in missing}
    for cell in store.plan.cells:
        check()
        if cell.number not in gone:
            yield cell, store.read(cell)


def _coords(plan: Plan) -> dict[str, Any]:
    coords: dict[str, Any] = {
        "domain": [place.label for place in plan.places],
        "learner": plan.labels,
        plan.unit: plan.moments,
        "run": np.arange(plan.sweep.runs),
        "kind": ("domain", [place.domain.kind for place in plan.places]),
        "domain_seed": (
            "domain",
            np.array([np.nan if p.seed is None else float(p.seed) for p in plan.places]),
        ),
        "stream_seed": ("domain", plan.seeds),
        "algorithm": ("learner", [type(learner).__name__ for learner in plan.learners]),
    }
    for name, column in _settings(plan).items():
        coords[name] = ("learner", column)
    return coords


def _settings(plan: Plan) -> dict[str, Any]:
    """Columns of the settings: the usual ones, others that the sweep names, and rules in parts."""
    named = {n for family in plan.sweep.learners for n in family.__struct_fields__
             if getattr(family, n) is not None}  # fmt: skip
    others = sorted(named - {"method", "estimand", "learn_value", *SETTINGS})
    columns: dict[str, Any] = {
        name: np.array([_number(learner, name) for learner in plan.learners])
        for name in (*SETTINGS, *others)
    }
    if "value" in columns:
        columns["initial_value"] = columns.pop("value")
    for name in sorted(named & {"estimand", "learn_value"}):
        columns[name] = [str(getattr(learner, name)) for learner in plan.learners]
    for name in STEPS:
        columns |= _rules(name, [_given(learner, name) for learner in plan.learners])
    return columns


def _rules(name: str, given: list[Any]) -> dict[str, Any]:
    """What step-size rules are and how they are set, if there are any."""
    if not any(isinstance(step, StepSize) for step in given):
        return {}
    parts = dict.fromkeys(f.name for x in given if isinstance(x, StepSize)
                          for f in dataclasses.fields(x) if f.name != "alpha")  # fmt: skip
    kinds = [type(x).__name__.lower() if isinstance(x, StepSize) else "constant" for x in given]
    kinds = ["" if x is None else kind for x, kind in zip(given, kinds, strict=True)]
    columns = {part: np.array([getattr(x, part, np.nan) for x in given]) for part in parts}
    return {f"{name}_rule": kinds, **{f"{name}_{part}": x for part, x in columns.items()}}


def _given(learner: Learner, name: str) -> Any:
    given = getattr(learner, name, None)
    return learner.alpha if name == "alpha_bar" and given is None else given


def _number(learner: Learner, name: str) -> float:
    """A setting as a number, a rule's α, or NaN where it is neither."""
    given = _given(learner, name)
    given = getattr(given, "alpha", None) if isinstance(given, StepSize) else given
    return float(given) if isinstance(given, int | float) else float("nan")


def table(
    store: Store, *, partial: bool = False, check: Callable[[], None] = lambda: None
) -> dict[str, list[Any]]:
    """Columns with a row for each learner of each cell: errors at the end, and over all points.

    Means and standard deviations are over the runs of the cell that have not diverged.

    >>> import tempfile
    >>> from retvar.sweep import Domain, Learners, Sweep, run
    >>> sweep = Sweep(runs=2, steps=9, domains=[Domain(id="chain")],
    ...               learners=[Learners(method=["direct", "vtd"], alpha=0.1)])
    >>> out = Path(tempfile.mkdtemp()) / "out"
    >>> _ = run(sweep, out)
    >>> table(Store.opened(out))["algorithm"]
    ['Direct', 'VTD']
    """
    plan = store.plan
    columns: dict[str, list[Any]] = {}
    settings = {name: list(column) for name, column in _settings(plan).items()}
    for cell, data in _cells(store, partial, check):
        died = data["diverged"].values
        place = plan.places[cell.place]
        for row, learner in enumerate(cell.learners):
            found: dict[str, Any] = {
                "cell": store.key(cell),
                "domain": place.label,
                "kind": place.domain.kind,
                "domain_seed": place.seed,
                "stream_seed": plan.seeds[cell.place],
                "learner": plan.labels[learner],
                "algorithm": type(plan.learners[learner]).__name__,
                **{name: column[learner] for name, column in settings.items()},
                "first_run": cell.runs.start,
                "runs": len(cell.runs),
                "diverged": int(died[row].sum()),
                plan.unit: int(plan.moments[-1]),
            }
            for name in ERRORS:
                kept_runs = data[name].values[row][~died[row]]
                found |= _summary(name, kept_runs)
            for name, entry in found.items():
                columns.setdefault(name, []).append(entry)
    return columns


def _summary(name: str, runs: Any) -> dict[str, float]:
    """Mean and standard deviation at the last point, and the mean over all of them."""
    last = runs[:, -1]
    return {
        f"{name}_mean": float(last.mean()) if last.size else np.nan,
        f"{name}_std": float(last.std(ddof=1)) if last.size > 1 else np.nan,
        f"{name}_mean_over_time": float(runs.mean()) if runs.size else np.nan,
    }


def save(
    store: Store,
    path: str | Path,
    *,
    partial: bool = False,
    check: Callable[[], None] = lambda: None,
) -> str:
    """Write ``.nc``: one dataset, or ``.parquet``: one table; returns the digest of the contents.

    >>> import tempfile
    >>> from retvar.sweep import Domain, Learners, Sweep, run
    >>> sweep = Sweep(runs=2, steps=9, domains=[Domain(id="chain")],
    ...               learners=[Learners(method=["direct", "vtd"], alpha=0.1)])
    >>> out = Path(tempfile.mkdtemp()) / "out"
    >>> _ = run(sweep, out)
    >>> digest = save(Store.opened(out), out / "sweep.nc")
    >>> import xarray
    >>> with xarray.open_dataset(out / "sweep.nc", engine="h5netcdf") as data:
    ...     data.attrs["digest"] == digest
    True
    """
    path = Path(path)
    if path.suffix == ".nc":
        data = collect(store, partial=partial, check=check)
        kept.write(path, data, store.plan.digest)
        return str(data.attrs["digest"])
    if path.suffix != ".parquet":
        raise InputError("out", path, "must end in .nc or .parquet")
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        remedy = 'needs pyarrow: pip install "retvar[data]"'
        raise InputError("out", path, remedy) from None
    columns = pyarrow.table(table(store, partial=partial, check=check))
    attributes = {"name": store.plan.sweep.name, "retvar": __version__, "digest": store.plan.digest}
    columns = columns.replace_schema_metadata(attributes)
    write_with(path, lambda temporary: pyarrow.parquet.write_table(columns, temporary))
    return store.plan.digest
