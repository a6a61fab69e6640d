"""Figures of experiments: draw them, write them to files, and embed them in the page."""

from __future__ import annotations

import base64
import io
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import matplotlib

from retvar import plots
from retvar.errors import InputError
from retvar.files import make_folder
from retvar.plots.style import METADATA, RC

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

    from retvar.experiments import Experiment

__all__ = ["DrawnFigure", "data_uri", "draw", "plot_function", "validate_formats", "write"]

FORMATS = ("png", "svg", "pdf")
MAX_SVG = 250_000  # bytes; larger figures are embedded as PNG
DPI = 200  # of such a PNG


class DrawnFigure(NamedTuple):
    """The files of a figure, relative to the output folder, and the figure as a data URI."""

    files: dict[str, str]
    uri: str
    inches: tuple[float, float]


def validate_formats(formats: Sequence[str]) -> tuple[str, ...]:
    """Return the file formats without repetitions, or raise an error.

    >>> validate_formats(["svg", "pdf"])
    ('svg', 'pdf')
    """
    for name in formats or ["none"]:
        if name not in FORMATS:
            raise InputError("formats", name, f"must be some of {', '.join(FORMATS)}")
    return tuple(dict.fromkeys(formats))


def plot_function(experiment: Experiment) -> Callable[..., Figure] | None:
    """The function that draws an experiment.

    >>> from retvar.experiments import Experiment
    >>> plot_function(Experiment("mine", "Mine", plot="spiral"))
    Traceback (most recent call last):
        ...
    retvar.errors.InputError: plot = spiral: is not a function of retvar.plots (experiment mine)
    """
    plot: Any = experiment.plot
    if isinstance(plot, str):
        plot = getattr(plots, plot, None)
    if plot is None and experiment.plot is None:
        return None
    if not callable(plot):
        remedy = f"is not a function of retvar.plots (experiment {experiment.id})"
        raise InputError("plot", experiment.plot, remedy)
    return plot  # type: ignore[no-any-return]


def draw(experiment: Experiment, data: Mapping[str, xarray.Dataset]) -> Figure | None:
    """Draw the figure of an experiment; None if it has no plot."""
    plot = plot_function(experiment)
    if plot is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the standard deviation of one run
        return plot(data, **experiment.options)


def write(figure: Figure, folder: Path, name: str, formats: Sequence[str]) -> DrawnFigure:
    """Write ``figures/NAME.FORMAT`` in each format and close the figure."""
    files = {kind: f"figures/{name}.{kind}" for kind in formats}
    for path in files.values():
        make_folder((folder / path).parent)
        plots.save(figure, folder / path)
    png = (folder / files["png"]).read_bytes() if "png" in files else None
    uri = data_uri(figure, png)
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        pyplot.close(figure)
    width, height = figure.get_size_inches()
    return DrawnFigure(files, uri, (float(width), float(height)))


def data_uri(figure: Figure, png: bytes | None = None) -> str:
    """A figure as a data URI: SVG if that is small, otherwise PNG; `png` if it is at hand.

    >>> import retvar as rv
    >>> data_uri(rv.plots.draw_mdp(rv.domains.chain()))[:26]
    'data:image/svg+xml;base64,'
    """
    try:
        raw, mime = _rendered(figure, "svg", SmallFile()), "svg+xml"
    except TooLargeError:
        raw, mime = png or _rendered(figure, "png", io.BytesIO()), "png"
    return f"data:image/{mime};base64,{base64.b64encode(raw).decode()}"


class TooLargeError(Exception):
    """A file has more bytes than wanted."""


class SmallFile(io.BytesIO):
    """A file in memory that refuses more bytes than an embedded SVG may have."""

    def write(self, data: Any) -> int:
        """Append, or raise a TooLargeError."""
        if self.tell() + len(data) > MAX_SVG:
            raise TooLargeError
        return super().write(data)


def _rendered(figure: Figure, kind: str, file: io.BytesIO) -> bytes:
    with matplotlib.rc_context(RC):
        figure.savefig(file, format=kind, dpi=DPI, metadata=METADATA["." + kind])
    return file.getvalue()
