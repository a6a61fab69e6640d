"""Legends: below all panels, where no data are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from retvar.plots.series import BAND, TRUTH, Look

if TYPE_CHECKING:
    import xarray

__all__ = ["key", "mean_entry", "swatch", "truth_entry"]


def key(figure: Figure, entries: Iterable[tuple[Any, str]], **where: Any) -> None:
    """One legend below all panels, where no data are."""
    handles, names = zip(*entries, strict=True)
    place: Any = {"loc": "outside lower center", "ncols": len(names), **where}
    handler: Any = {tuple: HandlerTuple(ndivide=1, pad=0)}
    figure.legend(handles, names, handlelength=2.4, columnspacing=1.6, handler_map=handler, **place)


def swatch(how: Look, band: bool = False, **more: Any) -> Artist | tuple[Artist, ...]:
    """A line, with its band, for a legend."""
    line = Line2D([], [], **how.line(**more))
    return (Patch(facecolor=how.colour, alpha=BAND, lw=0), line) if band else line


def truth_entry() -> tuple[Artist, str]:
    """The dashed line, for a legend."""
    return Line2D([], [], **TRUTH), "exact truth"


def mean_entry(data: xarray.Dataset, field: str, band: bool = True) -> tuple[Any, str]:
    """The line, with its band if it has one, for a legend."""
    runs = data.attrs.get("runs", data.sizes.get("run", "all"))
    band = band and bool(np.isfinite(data[f"{field}_std"]).any())
    text = "mean ± standard deviation" if band else "mean"
    return swatch(Look("#777777", ""), band), "one run" if runs == 1 else f"{text} over {runs} runs"
