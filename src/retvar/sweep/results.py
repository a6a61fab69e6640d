"""All cells of a sweep as one labelled dataset, or as a table for other tools."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from retvar import cache
from retvar.errors import InputError
from retvar.files import write_with
from retvar.format import listed
from retvar.learners import Learner
from retvar.step_sizes import StepSize
from retvar.sweep.plan import Cell, Plan, digest
from retvar.sweep.run_errors import recorded
from retvar.sweep.spec import STEPS
from retvar.sweep.store import Store
from retvar.version import __version__

if TYPE_CHECKING:
    import xarray

__all__ = ["collect", "save", "table"]

SETTINGS = ("alpha", "alpha_bar", "lam", "kappa", "kappa_bar")  # always told
ERRORS = ("value_rmse", "variance_rmse")


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
    """One dataset (domain, learner, step or episode, run) of all that was found.

    Parameters
    ----------
    store
        Where it is.
    partial
        Take what is there: cells that are missing or damaged are NaN. See :func:`finished`.
    at, what, domains
        Only one moment (−1 is the end), one error, some domains by their labels; default: all. What
        is not asked for takes no memory.
    check, note
        Called often; and with what people may want to know.

    Returns
    -------
    xarray.Dataset
        ``digest`` among its attributes is that of the store's contents, which ``status`` tells;
        there is none where cells are missing or were not asked for.

    Examples
    --------
    >>> import tempfile
    >>> from retvar.sweep import Domain, Learners, Sweep, run
    >>> sweep = Sweep(runs=2, steps=9, domains=[Domain(id="chain")],
    ...               learners=[Learners(method=["direct", "vtd"], alpha=0.1)])
    >>> out = Path(tempfile.mkdtemp()) / "out"
    >>> _ = run(sweep, out)
    >>> data = collect(Store.opened(out))
    >>> dict(data.value_rmse.sizes), data.algorithm.values.tolist()
    ({'domain': 1, 'learner': 2, 'step': 7, 'run': 2}, ['Direct', 'VTD'])
    >>> dict(collect(Store.opened(out), at=-1).sizes)["step"]
    1
    """
    import xarray

    plan = store.plan
    places, moments = _places(plan, domains), _moments(plan, at)
    if what is not None and what not in ERRORS:
        raise InputError("what", what, f"must be one of {listed(ERRORS)}")
    coords = _coords(plan, places, moments)
    shape = (len(places), len(plan.learners), plan.moments[moments].size, plan.sweep.runs)
    errors = {name: np.full(shape, np.nan) for name in ERRORS if what in (None, name)}
    died = np.zeros((*shape[:2], shape[3]), dtype=bool)
    cells = _Cells(store, partial, check, note, places)
    for cell, data in cells:
        here = (places.index(cell.place), slice(cell.learners.start, cell.learners.stop))
        runs = slice(cell.runs.start, cell.runs.stop)
        for name, room in errors.items():
            part = data[name].transpose("learner", plan.unit, "run").values
            room[(*here, slice(None), runs)] = part[:, moments]
        died[(*here, runs)] = data["diverged"].transpose("learner", "run").values
    dims = ("domain", "learner", plan.unit, "run")
    variables: dict[str, Any] = {name: (dims, room) for name, room in errors.items()}
    variables["diverged"] = (("domain", "learner", "run"), died)
    told = {
        "name": plan.sweep.name,
        "seed": str(plan.sweep.seed),
        "spec": json.dumps(plan.sweep.plain(), ensure_ascii=False),
        "retvar": __version__,
    }
    if cells.digest is not None:
        told["digest"] = cells.digest
    return xarray.Dataset(variables, coords, told)


def _places(plan: Plan, domains: Sequence[str] | None) -> list[int]:
    """Numbers of the domains that are asked for, in their order."""
    labels = [place.label for place in plan.places]
    for name in domains or ():
        if name not in labels:
            raise InputError("domain", name, f"is none of the sweep's: {listed(labels)}")
    return [k for k, label in enumerate(labels) if domains is None or label in domains]


def _moments(plan: Plan, at: int | None) -> slice:
    """Which recorded moments are asked for."""
    if at is None:
        return slice(None)
    k = plan.moments.tolist().index(recorded(plan.moments, plan.unit, at))
    return slice(k, k + 1)


class _Cells:
    """Cells with their data, checked, one after the other; and then the digest of them all."""

    def __init__(
        self,
        store: Store,
        partial: bool,
        check: Callable[[], None],
        note: Callable[[str], None],
        places: Sequence[int] | None = None,
    ) -> None:
        self.store, self.partial, self.check, self.note = store, partial, check, note
        cells = store.plan.cells
        self.asked = cells if places is None else [c for c in cells if c.place in set(places)]
        self.held: dict[int, str] = {}  # what each cell holds, as a digest

    def __iter__(self) -> Iterator[tuple[Cell, xarray.Dataset]]:
        there = [cell for cell in self.asked if self.store.has(cell)]
        missing, count = len(self.asked) - len(there), len(self.asked)
        if missing and (not self.partial or not there):
            remedy = f"of {count:,} are not there yet; run the sweep, or give --partial"
            raise InputError("cells", f"{missing:,}", remedy)
        if missing:
            self.note(f"{missing:,} of {count:,} cells {'is' if missing == 1 else 'are'} not there")
        for cell in there:
            self.check()
            data = self._read(cell)
            if data is not None:
                self.held[cell.number] = data.attrs["contents"]
                yield cell, data
        if not self.held:
            raise InputError("cells", f"{count:,}", "are missing or damaged; run the sweep")

    def _read(self, cell: Cell) -> xarray.Dataset | None:
        try:
            return self.store.read(cell)
        except InputError:
            if not self.partial:
                raise
        name = self.store.plan.name(cell)
        self.note(f"left out: {self.store.path(cell)} is damaged ({name})")
        return None

    @property
    def digest(self) -> str | None:
        """That of the store's contents; None where some are missing."""
        whole = len(self.held) == self.store.plan.count
        return digest([self.held[k] for k in sorted(self.held)]) if whole else None


def _coords(plan: Plan, chosen: list[int], moments: slice) -> dict[str, Any]:
    places = [plan.places[k] for k in chosen]
    coords: dict[str, Any] = {
        "domain": [place.label for place in places],
        "learner": plan.labels,
        plan.unit: plan.moments[moments],
        "run": np.arange(plan.sweep.runs),
        "kind": ("domain", [place.domain.kind for place in places]),
        "domain_seed": (
            "domain",
            np.array([np.nan if p.seed is None else float(p.seed) for p in places]),
        ),
        "stream_seed": ("domain", [plan.seeds[k] for k in chosen]),
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
    store: Store,
    *,
    partial: bool = False,
    check: Callable[[], None] = lambda: None,
    note: Callable[[str], None] = lambda line: None,
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
    return _rows(_Cells(store, partial, check, note))


def _rows(cells: _Cells) -> dict[str, list[Any]]:
    store, plan = cells.store, cells.store.plan
    columns: dict[str, list[Any]] = {}
    settings = {name: list(column) for name, column in _settings(plan).items()}
    for cell, data in cells:
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
    note: Callable[[str], None] = lambda line: None,
) -> str | None:
    """Write ``.nc``: one dataset, or ``.parquet``: one table; returns the digest of the contents.

    It is the store's, which ``status`` tells, and is kept in the file; a part has none.

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
