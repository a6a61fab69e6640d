"""Figures of experiments: draw them, write them to files, and embed them in the page."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from retvar import arguments, plots
from retvar.errors import InputError
from retvar.files import make_folder
from retvar.web.embedding import embed

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

    from retvar.experiments import Experiment

__all__ = ["DrawnFigure", "draw", "plot_function", "validate_formats", "write"]

FORMATS = ("png", "svg", "pdf")


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
    formats = arguments.texts("formats", formats)
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
    embedded = embed(figure)
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        pyplot.close(figure)
    return DrawnFigure(files, embedded.uri, embedded.inches)
