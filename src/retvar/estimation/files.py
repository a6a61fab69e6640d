"""The files of an estimate: estimator, estimates, figures, report. It is imported lightly."""

from __future__ import annotations

import importlib
import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from retvar.support.errors import InputError
from retvar.support.files import kind_of, remove, require_writable, unwritable, write_with
from retvar.support.format import listed, visible

ESTIMATOR, DATA, TABLE = "estimator.safetensors", "estimate.nc", "estimate.csv"
PAGE = "index.html"
FIGURES = ("map", "heat_map", "states", "observed", "calibration", "check")
FORMATS = ("png", "svg", "pdf")
KIND = ("width", "names", "grid")  # fields of Experience that must be alike
ABOUT = (
    *KIND, "columns", "name", "labels", "states", "fixed_states", "state_names", "cells", "policy",
    "is_log", "cost", "action_count",
)  # fmt: skip  # fields of Experience that are saved
RESUMED = "resumed: the self-check and return intervals rest on the returns of the new rows alone"
REASONS = ("rejected", "unmarked_ends", "logs")  # fields that count by reason


def estimator_file(path: Path) -> Path:
    """The file of the estimator: in a folder, the one that an estimate was saved to."""
    return path / ESTIMATOR if kind_of("file", path) == "folder" else path


def load(path: str | Path) -> Any:
    """Read what its method ``save`` wrote: an estimate, or an estimator, online or least squares.

    An estimate answers as before, without its experience: the law of the return, and the return
    intervals of states, need the rows. Also from what ``retvar estimate --out`` wrote.

    >>> import pathlib, tempfile, retvar as rv
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "risk.safetensors"
    >>> rv.Direct(alpha=0.1, gamma=0.9, lam=1.0).online(states=2).save(path)
    >>> rv.load(path).steps
    0
    """
    from retvar.estimation.estimate import Estimate
    from retvar.estimation.returns import Monitor
    from retvar.experience.stream import Experience
    from retvar.support import arguments

    path = estimator_file(arguments.path("path", path))
    estimator = read_estimator(path)
    notes = estimator.notes.get("estimate")
    if not isinstance(notes, dict):
        return estimator

    def gone(_: Any) -> Any:
        raise InputError("experience", path, "is not saved with an estimate; read it again")

    about = {"name": str(path)} | {name: notes[name] for name in ABOUT if name in notes}
    experience = Experience(source=gone, pairs=notes["actions"], **about)
    if experience.labels is not None:
        experience.labels = [tuple(x) if isinstance(x, list) else x for x in experience.labels]
    rows = getattr(estimator, "moves", None)  # of observations, from which all is counted again
    monitor = Monitor(notes["level"], notes["remarks"]) if rows else _monitor(notes)
    for name, saved in notes["counts"].items():
        setattr(experience.counts, name, Counter(saved) if name in REASONS else saved)
    found = Estimate(experience, estimator, monitor, moves=rows)
    beside = data_file(path)
    if beside != path and kind_of("file", beside) == "file":
        import xarray

        data = xarray.load_dataset(beside, engine="h5netcdf")
        if data.attrs["transitions"] == estimator.steps:  # of the same run
            found.data = data
    return found


def read_estimator(path: Path) -> Any:
    """Read an estimator, with its notes."""
    from retvar.estimation.observations import ObservationEstimator
    from retvar.estimation.states import FORMAT, StateEstimator
    from retvar.online.checkpoint import read_tensors, restore
    from retvar.td.learners import from_dict

    header, arrays = read_tensors(path)
    if header.get("kind") == "deep_critic":
        raise InputError("file", path, "is a deep critic: read it with rv.deep.Critic.load")
    for kind in (StateEstimator, ObservationEstimator):
        if header.get("kind") == kind.file_kind:
            if header.get("format") != FORMAT:
                raise InputError("file", path, f"is not of format {FORMAT}")
            found = kind.restored(from_dict(header["learner"]), header, arrays)
            found.notes = header["notes"]
            return found
    return restore(path)


def to_notes(found: Any) -> dict[str, Any]:
    """JSON data to save with the estimator of an estimate: its experience, visits and counts."""
    monitor, e = found.monitor, found.experience
    return {name: _as_json(getattr(e, name)) for name in ABOUT} | {
        "level": monitor.level,
        "actions": e.pairs,
        "visits": monitor.visits.to_dict(),
        "off_policy": monitor.off_policy,
        "remarks": list(monitor.remarks),
        "counts": {
            name: x
            for name, x in vars(e.counts).items()
            if isinstance(x, int | float) or name in REASONS
        },
    }


def _as_json(given: Any) -> Any:
    """Plain data as JSON gives it back; labels that it does not know as text."""
    return json.loads(json.dumps(given, default=lambda x: getattr(x, "tolist", x.__str__)()))


def _monitor(notes: dict[str, Any]) -> Any:
    """The monitor of a saved estimate, without returns."""
    from retvar.estimation.returns import Monitor, Visits

    found = Monitor(notes["level"], notes["remarks"], Visits(**notes["visits"]))
    found.off_policy = notes["off_policy"]
    return found


def load_estimate(path: Path) -> Any:
    """Read an estimate to go on from."""
    found = load(path)
    if not hasattr(found, "experience"):
        raise InputError("resume", path, "was not written by estimate")
    return found


def resumed(path: Path, experience: Any) -> tuple[Any, Any, Any]:
    """Experience, estimator and monitor of an estimate that goes on from a file.

    Experience of another kind is refused.
    """
    from retvar.experience.action_pairs import by_action

    saved = load_estimate(path)
    notes, kept = saved.estimator.notes["estimate"], saved.experience
    if kept.pairs:
        experience = by_action(experience)
    other = any(getattr(kept, name) != _as_json(getattr(experience, name)) for name in KIND)
    other |= (kept.labels is None) != (experience.labels is None)
    other |= experience.states is not None and experience.labels != kept.labels  # all are known
    if other:
        raise InputError("resume", path, f"has other states than {experience.name}")
    if kept.columns and experience.columns not in (None, kept.columns):
        wrong = f"{listed(kept.columns)}, not {listed(experience.columns)}"
        raise InputError("resume", path, f"has states of the columns {wrong}")
    if bool(kept.cost) != bool(experience.cost):
        raise InputError("resume", path, "is of costs, or of rewards; this log is not")
    if kept.labels is not None:
        experience.known = len(kept.labels)
        experience.labels[:] = kept.labels  # numbered as before
    monitor = _monitor(notes)
    if RESUMED not in monitor.remarks and not monitor.off_policy:
        monitor.remarks.append(RESUMED)
    experience.before = kept.counts
    return experience, saved.estimator, monitor


def open_folder(field: str, out: Path) -> None:
    """Make a folder; raise an InputError where that cannot be, or no file can be written there."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(out, error, field) from None
    require_writable(field, out)


def data_file(estimator: Path) -> Path:
    """The file of the estimates beside that of the estimator."""
    return estimator.with_name(estimator.name.replace(ESTIMATOR, DATA))


def write_data(data: Any, estimator: Path) -> None:
    """Write the estimates beside the estimator."""
    from retvar.support.cache import write_netcdf

    write_netcdf(data_file(estimator), data)


def write_report(
    found: Any, out: Path, formats: Sequence[str], data: Any, checked: Any = None,
    asked: Sequence[Any] = (),
) -> list[Path]:  # fmt: skip
    """Write the figures, the table as CSV and the page about all; return their paths.

    `asked` are answers for single states, which the page shows as well. Figures of an earlier run
    are removed, unless `formats` is empty: then there are none.
    """
    figures: Mapping[str, Any] = {}
    written: list[Path] = []
    if formats:
        plots = importlib.import_module("retvar.plots")  # late: figures are a layer above
        for old in itertools.product(FIGURES, FORMATS):
            remove(out / ".".join(old))
        figures = plots.estimate_figures(data)
        written = [out / f"{name}.{suffix}" for name in figures for suffix in formats]
        for path in written:
            plots.save(figures[path.stem], path)
    written.append(write_table(data, out / TABLE))
    report = importlib.import_module("retvar.web.estimate_report")  # a layer above
    files = [path.name for path in written]
    files += [name for name in (DATA, ESTIMATOR) if kind_of("path", out / name)]
    page = report.write_page(out, found, data, figures, checked=checked, asked=asked, files=files)
    return [page, *written]


def write_table(data: Any, path: Path) -> Path:
    """Write every state or region with all its columns as CSV; NaN is an empty cell."""
    dim = "state" if "state" in data.dims else "region"
    columns = [name for name, x in data.data_vars.items() if x.dims == (dim,)]
    table = data[columns].to_dataframe()[columns]
    if "label" in data.coords:
        table.insert(0, "state", [visible(str(label)) for label in data["label"].values])
    for k, name in enumerate(data["axis"].values if "centre" in data else ()):
        table.insert(k, visible(str(name)), data["centre"].values[:, k])
    write_with(path, lambda temporary: table.to_csv(temporary, index=False))
    return path
