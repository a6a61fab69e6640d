"""The folder of an estimate: the estimator, the estimates and figures. It is imported lightly."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from retvar.errors import InputError
from retvar.files import make_folder

if TYPE_CHECKING:
    import xarray

    from retvar.estimation.estimate import Estimate

__all__ = [
    "DATA",
    "ESTIMATOR",
    "FORMATS",
    "draw_figures",
    "estimator_file",
    "means_folder",
    "open_folder",
    "save_folder",
    "write_data",
]

ESTIMATOR, DATA = "estimator.safetensors", "estimate.nc"
FIGURES = ("map", "heat_map", "states", "observed", "calibration", "check")
FORMATS = ("png", "svg", "pdf")


def means_folder(path: Path) -> bool:
    """Whether a path to save to is that of a folder: one that exists, or has no suffix.

    >>> means_folder(Path("estimate")), means_folder(Path("risk.safetensors"))
    (True, False)
    """
    return path.is_dir() or not (path.suffix or path.exists())


def estimator_file(path: Path) -> Path:
    """The file of the estimator: in a folder, the one that an estimate was saved to.

    >>> estimator_file(Path("risk.safetensors"))
    PosixPath('risk.safetensors')
    """
    return path / ESTIMATOR if path.is_dir() else path


def open_folder(field: str, out: Path) -> None:
    """Make a folder; raise an InputError where that cannot be.

    >>> open_folder("--out", Path(__file__))
    Traceback (most recent call last):
    ...
    retvar.errors.InputError: --out = ...folder.py: is a file; name a folder
    """
    if out.exists() and not out.is_dir():
        raise InputError(field, out, "is a file; name a folder")
    try:
        make_folder(out)
    except OSError as error:
        raise InputError(field, out, f"cannot be made: {error.strerror or error}") from None


def save_folder(found: Estimate, out: Path, formats: Sequence[str] = FORMATS[:1]) -> None:
    """Write the estimator, the estimates and the figures, as ``retvar estimate --out`` does.

    >>> import tempfile, retvar as rv
    >>> lake = rv.experience.from_gymnasium("FrozenLake-v1", steps=100)
    >>> out = Path(tempfile.mkdtemp()) / "lake"
    >>> save_folder(rv.estimate(lake, gamma=0.9), out, formats=())
    >>> sorted(path.name for path in out.iterdir())
    ['estimate.nc', 'estimator.safetensors']
    """
    open_folder("path", out)
    path = out / ESTIMATOR
    found.save(path)  # first, since estimates may fail
    data = found.data
    write_data(data, path)
    draw_figures(data, out, formats)


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


def draw_figures(data: xarray.Dataset, out: Path, formats: Sequence[str]) -> list[Path]:
    """Draw the figures that suit a dataset into a folder, and remove those of an earlier run.

    >>> draw_figures(None, Path("."), ())
    []
    """
    if not formats:
        return []
    plots = importlib.import_module("retvar.plots")  # late: figures are a layer above
    written: list[Path] = []
    for name in FIGURES:
        for suffix in FORMATS:
            (out / f"{name}.{suffix}").unlink(missing_ok=True)
    for name, figure in plots.estimate_figures(data).items():
        for suffix in formats:
            written.append(out / f"{name}.{suffix}")
            plots.save(figure, written[-1])
    return written
