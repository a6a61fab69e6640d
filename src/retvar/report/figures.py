"""Figures of experiments: drawn, written in the formats asked for, and put into the page."""

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
from retvar.plots.style import METADATA, RC

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

    from retvar.experiments import Experiment

__all__ = ["Drawn", "draw", "formats_of", "plot_of"]

FORMATS = ("png", "svg", "pdf")
LARGEST = 250_000  # bytes of an SVG in the page; above it a PNG takes its place
DOTS = 200  # an inch, of such a PNG


class Drawn(NamedTuple):
    """A figure: its files, relative to the folder of the reproduction, and itself as a URI."""

    files: dict[str, str]
    uri: str
    inches: tuple[float, float]


def formats_of(given: Sequence[str]) -> tuple[str, ...]:
    """Formats that figures can be written in.

    >>> formats_of(["svg", "pdf"])
    ('svg', 'pdf')
    """
    for name in given:
        if name not in FORMATS:
            raise InputError("format", name, f"must be some of {', '.join(FORMATS)}")
    if not given:
        raise InputError("format", "none", f"must be some of {', '.join(FORMATS)}")
    return tuple(dict.fromkeys(given))


def plot_of(experiment: Experiment) -> Callable[..., Figure] | None:
    """The function that draws an experiment.

    >>> from retvar.experiments import Experiment
    >>> plot_of(Experiment("mine", "Mine", plot="spiral"))
    Traceback (most recent call last):
        ...
    retvar.errors.InputError: plot = spiral: no function of retvar.plots (experiment mine)
    """
    plot: Any = experiment.plot
    if isinstance(plot, str):
        plot = getattr(plots, plot, None)
    if plot is None and experiment.plot is None:
        return None
    if not callable(plot):
        remedy = f"no function of retvar.plots (experiment {experiment.id})"
        raise InputError("plot", experiment.plot, remedy)
    return plot  # type: ignore[no-any-return]


def draw(experiment: Experiment, data: Mapping[str, xarray.Dataset]) -> Figure | None:
    """The figure of an experiment, if it has one."""
    plot = plot_of(experiment)
    if plot is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # one run has no standard deviation
        return plot(data, **experiment.options)


def write(figure: Figure, folder: Path, name: str, formats: Sequence[str]) -> Drawn:
    """Write ``figures/NAME.FORMAT`` in each format."""
    files = {kind: f"figures/{name}.{kind}" for kind in formats}
    for path in files.values():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        plots.save(figure, folder / path)
    uri = embedded(figure)
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        pyplot.close(figure)
    width, height = figure.get_size_inches()
    return Drawn(files, uri, (float(width), float(height)))


def embedded(figure: Figure) -> str:
    """A figure as a data URI: an SVG if that is small, otherwise a PNG.

    >>> import retvar as rv
    >>> embedded(rv.plots.draw_mdp(rv.domains.chain()))[:26]
    'data:image/svg+xml;base64,'
    """
    raw, mime = _rendered(figure, "svg"), "svg+xml"
    if len(raw) > LARGEST:
        raw, mime = _rendered(figure, "png"), "png"
    return f"data:image/{mime};base64,{base64.b64encode(raw).decode()}"


def _rendered(figure: Figure, kind: str) -> bytes:
    room = io.BytesIO()
    with matplotlib.rc_context(RC):
        figure.savefig(room, format=kind, dpi=DOTS, metadata=METADATA["." + kind])
    return room.getvalue()
