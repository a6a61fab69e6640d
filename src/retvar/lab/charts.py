"""Charts of the lab in Altair: lines with bands, dots by state; methods as in all figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from retvar.plots.style import METHODS
from retvar.td.networks import NETWORKS

__all__ = ["dots", "level", "lines"]

SIZE = {"width": 285, "height": 180}
GREY, ORANGE, BLUE = "#777", "#d55e00", "#0072b2"
LABELS = {method: network.label for method, network in NETWORKS.items()}
INKS = {
    **{LABELS[method]: style.colour for method, style in METHODS.items()},
    **{"exact": GREY, "M": BLUE, "J²": ORANGE},
}
CONFIG: dict[str, Any] = {
    "font": "system-ui, sans-serif",
    "background": "transparent",
    "title": {"anchor": "start", "fontSize": 13, "fontWeight": 600},
    "view": {"stroke": None},
    "axis": {"labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": "normal"},
    "axisX": {"grid": False},
    "axisY": {"domain": False, "ticks": False, "gridOpacity": 0.5},
    "legend": {"labelFontSize": 11, "padding": 0},
}


def _finished(chart: Any, title: str, **size: float) -> Any:
    made = chart.properties(
        title=title, **(size or SIZE), usermeta={"embedOptions": {"actions": False}}
    )
    return made.configure(**CONFIG)


def _labelled(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(learner=[LABELS.get(str(x), str(x)) for x in table["learner"]])


def _colour(*tables: pd.DataFrame) -> Any:
    """The colours of the learners in some tables."""
    there = [name for name in INKS if any((table.learner == name).any() for table in tables)]
    scale = alt.Scale(domain=there, range=[INKS[name] for name in there])
    return alt.Color("learner:N", scale=scale, legend=alt.Legend(orient="top", title=None))


def lines(
    title: str,
    *layers: tuple[pd.DataFrame, dict[str, Any]],
    x: str,
    y: str,
    marks: Sequence[Any] = (),
    limits: tuple[float, float] | None = None,
    log: bool = False,
) -> Any:
    """Lines by learner; layers are tables of x, y, learner (low, high: a band), and their looks."""
    down = alt.Scale(domain=list(limits)) if limits else alt.Scale(zero=False)
    across = alt.X("x:Q", title=x, scale=alt.Scale(type="log") if log else alt.Scale(nice=False))
    tables, drawn = [_labelled(table) for table, _ in layers], []
    colour = _colour(*tables)
    for table, (_, look) in zip(tables, layers, strict=True):
        base = alt.Chart(table).encode(across, colour)
        if "low" in table:
            bands = base.mark_area(opacity=0.15, clip=True)
            drawn.append(bands.encode(alt.Y("low:Q", title=y, scale=down), alt.Y2("high:Q")))
        told = [
            alt.Tooltip("learner:N"),
            alt.Tooltip("x:Q", title=x),
            alt.Tooltip("y:Q", format=".3g"),
        ]
        curve = base.mark_line(clip=True, **look)
        drawn.append(curve.encode(alt.Y("y:Q", title=y, scale=down), tooltip=told))
    return _finished(alt.layer(*drawn, *marks), title)


def level(at: float, *, vertical: bool = False, colour: str = GREY) -> Any:
    """A dashed line across a chart."""
    place: Any = {"x": alt.datum(at)} if vertical else {"y": alt.datum(at)}
    one = alt.Chart(pd.DataFrame({"z": [0]}))
    return one.mark_rule(strokeDash=[5, 4], color=colour, clip=True).encode(**place)


def dots(title: str, table: pd.DataFrame, limits: tuple[float, float], y: str) -> Any:
    """Mean ± std by state and learner (x, y, low, high, learner); learner "exact" is a tick."""
    known = _labelled(table)
    exact, known = known[known.learner == "exact"], known[known.learner != "exact"]
    scale = alt.Scale(domain=list(limits))
    across = alt.X("x:N", sort=None, title=None, axis=alt.Axis(labelAngle=0, labelOverlap=True))
    ticks = alt.Chart(exact).mark_tick(thickness=2, color=GREY, clip=True)
    base = alt.Chart(known).encode(across, _colour(known), xOffset=alt.XOffset("learner:N"))
    bars = base.mark_rule(clip=True).encode(alt.Y("low:Q", scale=scale, title=y), alt.Y2("high:Q"))
    points = base.mark_circle(size=55, clip=True).encode(
        alt.Y("y:Q", scale=scale), tooltip=["x", "learner", alt.Tooltip("y:Q", format=".3g")]
    )
    return _finished(ticks.encode(across, alt.Y("y:Q", scale=scale)) + bars + points, title)
