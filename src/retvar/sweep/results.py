"""All cells of a sweep as one labelled dataset, or as a table."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from retvar import arguments, cache
from retvar.errors import InputError
from retvar.files import write_with
from retvar.format import listed
from retvar.learners import Learner
from retvar.step_sizes import StepSize
from retvar.sweep.plan import Cell, Plan, digest
from retvar.sweep.run_errors import recorded
from retvar.sweep.spec import STEPS
from retvar.sweep.store import Store, check_store
from retvar.version import __version__

if TYPE_CHECKING:
    import xarray

__all__ = ["collect", "save", "table"]

SETTINGS = ("alpha", "alpha_bar", "lam", "kappa", "kappa_bar")  # columns of every sweep


def collect(
    store: Store,
    *,
    partial: bool = False,
    at: int | None = None,
    what: str | None = None,
    domains: Sequence[str] | None = None,
    check: Callable[[], None] = lambda: None,
    note: Callable[[str], None] = lambda line: None,
) -> xarray.Dataset:
    """Read all cells into one dataset (domain, learner, step or episode, run).

    Parameters
    ----------
    store
        The store of the sweep.
    partial
        Allow missing and damaged cells, which become NaN. See :func:`finished`.
    at, what, domains
        Read only one recorded moment (−1 is the last), one error, or some domains by label;
        default: all.
    check, note
        Functions: one that is called often, and one that is called with each message.

    Returns
    -------
    xarray.Dataset
        The attribute ``digest`` is that of ``status``; it is absent if cells are missing or were
        not read.

    Examples
    --------
    >>> import tempfile
    >>> from retvar.sweep import Domain, Learners, Sweep, run
    >>> sweep = Sweep(runs=2, steps=9, domains=[Domain(id="chain")],
    ...               learners=[Learners(method=["direct", "vtd"], alpha=0.1)])
    >>> out = Path(tempfile.mkdtemp()) / "out"
    >>> _ = run(sweep, out)
    >>> data = collect(Store.open(out))
    >>> dict(data.value_rmse.sizes), data.algorithm.values.tolist()
    ({'domain': 1, 'learner': 2, 'step': 7, 'run': 2}, ['Direct', 'VTD'])
    >>> dict(collect(Store.open(out), at=-1).sizes)["step"]
    1
    """
    import xarray

    check_store(store)
    plan = store.plan
    numbers, moments = _domain_numbers(plan, domains), _moment_slice(plan, at)
    if what is not None and (not isinstance(what, str) or what not in plan.errors):
        raise InputError("what", what, f"must be one of {listed(plan.errors)}")
    coords = _coords(plan, numbers, moments)
    shape = (len(numbers), len(plan.learners), plan.moments[moments].size, plan.sweep.runs)
    errors = {name: np.full(shape, np.nan) for name in plan.errors if what in (None, name)}
    diverged = np.zeros((*shape[:2], shape[3]), dtype=bool)
    cells = _Cells(store, partial, check, note, numbers)
    for cell, data in cells:
        here = (numbers.index(cell.domain), slice(cell.learners.start, cell.learners.stop))
        runs = slice(cell.runs.start, cell.runs.stop)
        for name, array in errors.items():
            part = data[name].transpose("learner", plan.unit, "run").values
            array[(*here, slice(None), runs)] = part[:, moments]
        diverged[(*here, runs)] = data["diverged"].transpose("learner", "run").values
    dims = ("domain", "learner", plan.unit, "run")
    variables: dict[str, Any] = {name: (dims, array) for name, array in errors.items()}
    variables["diverged"] = (("domain", "learner", "run"), diverged)
    attributes = {
        "name": plan.sweep.name,
        "seed": str(plan.sweep.seed),
        "spec": json.dumps(plan.sweep.to_dict(), ensure_ascii=False),
        "retvar": __version__,
    }
    if cells.digest is not None:
        attributes["digest"] = cells.digest
    return xarray.Dataset(variables, coords, attributes)


def _domain_numbers(plan: Plan, domains: Sequence[str] | None) -> list[int]:
    """Indices of the domains with these labels, in the order of the plan."""
    labels = [domain.label for domain in plan.domains]
    domains = None if domains is None else arguments.texts("domains", domains)
    for name in domains or ():
        if name not in labels:
            raise InputError("domain", name, f"is none of the sweep's: {listed(labels)}")
    return [k for k, label in enumerate(labels) if domains is None or label in domains]


def _moment_slice(plan: Plan, at: int | None) -> slice:
    """The recorded moments to read."""
    if at is None:
        return slice(None)
    k = plan.moments.tolist().index(recorded(plan.moments, plan.unit, at))
    return slice(k, k + 1)


class _Cells:
    """Iterates over cells and their checked data; has the digest of all at the end."""

    def __init__(
        self,
        store: Store,
        partial: bool,
        check: Callable[[], None],
        note: Callable[[str], None],
        domains: Sequence[int] | None = None,
    ) -> None:
        self.store, self.partial = store, arguments.flag("partial", partial)
        self.check, self.note = arguments.function("check", check), arguments.function("note", note)
        cells = store.plan.cells
        self.cells = cells if domains is None else [c for c in cells if c.domain in set(domains)]
        self.contents: dict[int, str] = {}  # digest of the data of each cell

    def __iter__(self) -> Iterator[tuple[Cell, xarray.Dataset]]:
        present = [cell for cell in self.cells if self.store.has_file(cell)]
        missing, count = len(self.cells) - len(present), len(self.cells)
        if missing and (not self.partial or not present):
            remedy = f"of {count:,} are missing; run the sweep, or give --partial"
            raise InputError("cells", f"{missing:,}", remedy)
        if missing:
            self.note(f"{missing:,} of {count:,} cells {'is' if missing == 1 else 'are'} missing")
        for cell in present:
            self.check()
            data = self._read(cell)
            if data is not None:
                self.contents[cell.number] = data.attrs["contents"]
                yield cell, data
        if not self.contents:
            raise InputError("cells", f"{count:,}", "are missing or damaged; run the sweep")

    def _read(self, cell: Cell) -> xarray.Dataset | None:
        try:
            return self.store.read(cell)
        except InputError:
            if not self.partial:
                raise
        description = self.store.plan.describe(cell)
        self.note(f"left out: {self.store.path(cell)} is damaged ({description})")
        return None

    @property
    def digest(self) -> str | None:
        """The digest of the store; None if cells are missing."""
        whole = len(self.contents) == self.store.plan.count
        return digest([self.contents[k] for k in sorted(self.contents)]) if whole else None


def _coords(plan: Plan, numbers: list[int], moments: slice) -> dict[str, Any]:
    domains = [plan.domains[k] for k in numbers]
    coords: dict[str, Any] = {
        "domain": [domain.label for domain in domains],
        "learner": plan.labels,
        plan.unit: plan.moments[moments],
        "run": np.arange(plan.sweep.runs),
        "kind": ("domain", [domain.spec.kind for domain in domains]),
        "domain_seed": (
            "domain",
            np.array([np.nan if d.seed is None else float(d.seed) for d in domains]),
        ),
        "stream_seed": ("domain", [plan.seeds[k] for k in numbers]),
        "algorithm": ("learner", [type(learner).__name__ for learner in plan.learners]),
    }
    for name, column in _settings(plan).items():
        coords[name] = ("learner", column)
    return coords


def _settings(plan: Plan) -> dict[str, Any]:
    """Columns of settings: the common ones, others in the sweep, and those of step-size rules."""
    named = {n for table in plan.sweep.learners for n in table.__struct_fields__
             if getattr(table, n) is not None}  # fmt: skip
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
        columns |= _rules(name, [_setting(learner, name) for learner in plan.learners])
    return columns


def _rules(name: str, given: list[Any]) -> dict[str, Any]:
    """Columns of step-size rules and their settings, if there are rules."""
    if not any(isinstance(step, StepSize) for step in given):
        return {}
    parts = dict.fromkeys(f.name for x in given if isinstance(x, StepSize)
                          for f in dataclasses.fields(x) if f.name != "alpha")  # fmt: skip
    kinds = [type(x).__name__.lower() if isinstance(x, StepSize) else "constant" for x in given]
    kinds = ["" if x is None else kind for x, kind in zip(given, kinds, strict=True)]
    columns = {part: np.array([getattr(x, part, np.nan) for x in given]) for part in parts}
    return {f"{name}_rule": kinds, **{f"{name}_{part}": x for part, x in columns.items()}}


def _setting(learner: Learner, name: str) -> Any:
    given = getattr(learner, name, None)
    return learner.alpha if name == "alpha_bar" and given is None else given


def _number(learner: Learner, name: str) -> float:
    """A setting as a number, α if it is a rule, otherwise NaN."""
    given = _setting(learner, name)
    given = getattr(given, "alpha", None) if isinstance(given, StepSize) else given
    return float(given) if isinstance(given, int | float) else float("nan")


def table(
    store: Store,
    *,
    partial: bool = False,
    check: Callable[[], None] = lambda: None,
    note: Callable[[str], None] = lambda line: None,
) -> dict[str, list[Any]]:
    """Columns with a row for each learner of each cell: the last errors, and means over time.

    Means and standard deviations are over the runs of the cell that have not diverged.

    >>> import tempfile
    >>> from retvar.sweep import Domain, Learners, Sweep, run
    >>> sweep = Sweep(runs=2, steps=9, domains=[Domain(id="chain")],
    ...               learners=[Learners(method=["direct", "vtd"], alpha=0.1)])
    >>> out = Path(tempfile.mkdtemp()) / "out"
    >>> _ = run(sweep, out)
    >>> table(Store.open(out))["algorithm"]
    ['Direct', 'VTD']
    """
    check_store(store)
    return _rows(_Cells(store, partial, check, note))


def _rows(cells: _Cells) -> dict[str, list[Any]]:
    store, plan = cells.store, cells.store.plan
    columns: dict[str, list[Any]] = {}
    settings = {name: list(column) for name, column in _settings(plan).items()}
    for cell, data in cells:
        diverged = data["diverged"].values
        domain = plan.domains[cell.domain]
        for row, learner in enumerate(cell.learners):
            found: dict[str, Any] = {
                "cell": store.key(cell),
                "domain": domain.label,
                "kind": domain.spec.kind,
                "domain_seed": domain.seed,
                "stream_seed": plan.seeds[cell.domain],
                "learner": plan.labels[learner],
                "algorithm": type(plan.learners[learner]).__name__,
                **{name: column[learner] for name, column in settings.items()},
                "first_run": cell.runs.start,
                "runs": len(cell.runs),
                "diverged": int(diverged[row].sum()),
                plan.unit: int(plan.moments[-1]),
            }
            for name in plan.errors:
                found |= _summary(name, data[name].values[row][~diverged[row]])
            for name, entry in found.items():
                columns.setdefault(name, []).append(entry)
    return columns


def _summary(name: str, runs: Any) -> dict[str, float]:
    """Mean and standard deviation at the last moment, and the mean over all moments."""
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
    note: Callable[[str], None] = lambda line: None,
) -> str | None:
    """Write one dataset (``.nc``) or one table (``.parquet``) and return the digest of the store.

    The digest is that of ``status`` and is saved in the file; it is None if cells are missing.

    >>> import tempfile
    >>> from retvar.sweep import Domain, Learners, Sweep, run
    >>> sweep = Sweep(runs=2, steps=9, domains=[Domain(id="chain")],
    ...               learners=[Learners(method=["direct", "vtd"], alpha=0.1)])
    >>> out = Path(tempfile.mkdtemp()) / "out"
    >>> _ = run(sweep, out)
    >>> digest = save(Store.open(out), out / "sweep.nc")
    >>> import xarray
    >>> with xarray.open_dataset(out / "sweep.nc", engine="h5netcdf") as data:
    ...     data.attrs["digest"] == digest
    True
    """
    check_store(store)
    path = arguments.path("path", path)
    if path.suffix == ".nc":
        data = collect(store, partial=partial, check=check, note=note)
        cache.write(path, data, store.plan.digest)
        return data.attrs.get("digest")
    if path.suffix != ".parquet":
        raise InputError("out", path, "must end in .nc or .parquet")
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        remedy = 'needs pyarrow: pip install "retvar[data]"'
        raise InputError("out", path, remedy) from None
    cells = _Cells(store, partial, check, note)
    columns = pyarrow.table(_rows(cells))
    attributes = {"name": store.plan.sweep.name, "retvar": __version__}
    if cells.digest is not None:
        attributes["digest"] = cells.digest
    columns = columns.replace_schema_metadata(attributes)
    write_with(path, lambda temporary: pyarrow.parquet.write_table(columns, temporary))
    return cells.digest
