"""The folder of an estimate: estimator, estimates, figures, report. It is imported lightly."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retvar.errors import InputError
from retvar.files import (
    kind_of,
    make_folder,
    remove,
    require_writable,
    unwritable,
    write_with,
)
from retvar.format import natural_key, visible

if TYPE_CHECKING:
    import xarray

    from retvar.estimation.answers import Answer
    from retvar.estimation.checks import Check
    from retvar.estimation.estimate import Estimate

__all__ = [
    "DATA",
    "ESTIMATOR",
    "FORMATS",
    "estimator_file",
    "means_folder",
    "open_folder",
    "save_folder",
    "write_data",
    "write_report",
]

ESTIMATOR, DATA, TABLE = "estimator.safetensors", "estimate.nc", "estimate.csv"
PAGE = "index.html"
FORMULAS = ("=", "+", "-", "@", "\t", "\r")  # with which a formula begins
FIGURES = ("map", "heat_map", "states", "observed", "calibration", "check")
FORMATS = ("png", "svg", "pdf")


def means_folder(path: Path) -> bool:
    """Whether a path to save to is that of a folder: one that exists, or has no suffix.

    >>> means_folder(Path("estimate")), means_folder(Path("risk.safetensors"))
    (True, False)
    """
    kind = kind_of("path", path)
    return kind == "folder" or not (path.suffix or kind)


def estimator_file(path: Path) -> Path:
    """The file of the estimator: in a folder, the one that an estimate was saved to.

    >>> estimator_file(Path("risk.safetensors"))
    PosixPath('risk.safetensors')
    """
    return path / ESTIMATOR if kind_of("file", path) == "folder" else path


def open_folder(field: str, out: Path) -> None:
    """Make a folder; raise an InputError where that cannot be, or no file can be written there.

    >>> open_folder("--out", Path(__file__))
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: --out = ...folder.py: is a file; name a folder
    """
    kind = kind_of(field, out)
    if kind not in ("folder", ""):
        raise InputError(field, out, f"is a {kind}; name a folder")
    try:
        make_folder(out)
    except OSError as error:
        raise unwritable(out, error, field) from None
    require_writable(field, out)
    drawn = [f"{name}.{suffix}" for name in FIGURES for suffix in FORMATS]
    for name in (ESTIMATOR, DATA, TABLE, PAGE, *drawn):
        if kind_of(field, out / name) == "folder":
            raise InputError(field, out / name, "is a folder; a file is written there: move it")


def save_folder(found: Estimate, out: Path, formats: Sequence[str] = FORMATS[:1]) -> None:
    """Write estimator, estimates, figures and report, as ``retvar estimate --out`` does.

    >>> import tempfile, retvar as rv
    >>> lake = rv.experience.from_gymnasium("FrozenLake-v1", steps=100)
    >>> out = Path(tempfile.mkdtemp()) / "lake"
    >>> save_folder(rv.estimate(lake, gamma=0.9), out, formats=())
    >>> sorted(path.name for path in out.iterdir())
    ['estimate.csv', 'estimate.nc', 'estimator.safetensors', 'index.html']
    """
    open_folder("path", out)
    path = out / ESTIMATOR
    found.save(path)  # first, since estimates may fail
    data = found.data
    write_data(data, path)
    write_report(found, out, formats, data)


def write_data(data: xarray.Dataset, estimator: Path) -> Path:
    """Write the estimates beside the estimator; return their path.

    >>> import tempfile, xarray
    >>> estimator = Path(tempfile.mkdtemp()) / "unfinished-estimator.safetensors"
    >>> write_data(xarray.Dataset({"value": 1.0}), estimator).name
    'unfinished-estimate.nc'
    """
    from retvar.cache import write_netcdf

    path = estimator.with_name(estimator.name.replace(ESTIMATOR, DATA))
    write_netcdf(path, data)
    return path


def write_report(
    found: Estimate,
    out: Path,
    formats: Sequence[str],
    data: xarray.Dataset,
    checked: Check | None = None,
    asked: Sequence[Answer] = (),
) -> list[Path]:
    """Write the figures, the table as CSV and the page about all; return their paths.

    `asked` are answers for single states, which the page shows as well. Figures of an earlier run
    are removed, unless `formats` is empty: then there are none.
    """
    figures, written = _draw(data, out, formats) if formats else ({}, [])
    written.append(write_table(data, out / TABLE))
    report = importlib.import_module("retvar.web.estimate_report")  # a layer above
    names = [path.name for path in written]
    files = [*names, *(name for name in (DATA, ESTIMATOR) if kind_of("path", out / name))]
    page = report.write_page(out, found, data, figures, checked=checked, asked=asked, files=files)
    return [page, *written]


def _draw(
    data: xarray.Dataset, out: Path, formats: Sequence[str]
) -> tuple[Mapping[str, Any], list[Path]]:
    """Draw the figures that suit a dataset, and remove those of an earlier run."""
    plots = importlib.import_module("retvar.plots")  # late: figures are a layer above
    written: list[Path] = []
    for name in FIGURES:
        for suffix in FORMATS:
            remove(out / f"{name}.{suffix}")
    figures: Mapping[str, Any] = plots.estimate_figures(data)
    for name, figure in figures.items():
        for suffix in formats:
            written.append(out / f"{name}.{suffix}")
            plots.save(figure, written[-1])
    return figures, written


def write_table(data: xarray.Dataset, path: Path) -> Path:
    """Write every state or region with all its columns as CSV; NaN is an empty cell.

    Control characters are escaped. A text that a spreadsheet would take for a formula begins with
    an apostrophe, which makes it a text there.

    >>> import tempfile, numpy, xarray
    >>> columns = {"value": ("state", [1.5, numpy.nan])}
    >>> data = xarray.Dataset(columns, {"label": ("state", ["dock", "sea"])})
    >>> path = write_table(data, Path(tempfile.mkdtemp()) / "a.csv")
    >>> path.read_text(encoding="utf-8").split()
    ['state,value', 'dock,1.5', 'sea,']
    """
    import csv

    dim = "state" if "state" in data.dims else "region"
    columns: dict[str, list[Any]] = {}
    if "label" in data.coords:
        columns["state"] = data["label"].values.tolist()
    elif "centre" in data:
        names, centres = data["axis"].values, data["centre"].values
        columns = {str(name): centres[:, k].tolist() for k, name in enumerate(names)}
    for name in data.data_vars:
        if data[name].dims == (dim,):
            columns[str(name)] = data[name].values.tolist()

    def write(temporary: Path) -> None:
        with temporary.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file:
            lines = csv.writer(file, lineterminator="\n")
            lines.writerow(map(_cell, columns))
            for row in zip(*columns.values(), strict=True):
                lines.writerow(map(_cell, row))

    write_with(path, write)
    return path


def _cell(x: Any) -> Any:
    """What stands in a cell of a CSV file.

    >>> [_cell(x) for x in ("=1+2", "-3", "-a", -1.5, float("nan"))]
    ["'=1+2", '-3', "'-a", -1.5, '']
    """
    if not isinstance(x, str):
        return "" if x != x else x
    formula = x.startswith(FORMULAS) and natural_key(x)[0]  # 0: a number
    return f"'{visible(x)}" if formula else visible(x)
