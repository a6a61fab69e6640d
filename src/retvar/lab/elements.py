"""Controls and screens of views as elements of a marimo page; marimo itself is an argument."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from retvar.format import short_number
from retvar.html import escaped
from retvar.lab.svg import STYLE
from retvar.lab.views import Control, Screen

__all__ = [
    "CSS",
    "HEAD",
    "element",
    "error_page",
    "panel",
    "readout",
    "row_numbers",
    "screen_page",
    "table_page",
    "text_fields",
]

CSS = """
.rv-lab {color:var(--rv-ink);font:15px/1.5 system-ui,sans-serif}
.rv-title {font:600 1.35rem/1.3 system-ui,sans-serif;margin:0 0 .3rem;color:var(--rv-ink)}
.rv-charts {display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,20rem),1fr));
 gap:.5rem 1rem}
.rv-chart:has(> .rv-maps) {grid-column:1/-1}
.rv-maps {display:flex;flex-wrap:wrap;gap:.6rem 1rem}
.rv-said {margin:0 0 .8rem;padding:.5rem .9rem;border-left:4px solid var(--rv-c4);
 max-width:62rem;background:color-mix(in srgb,var(--rv-c4) 7%,transparent)}
.rv-said p {margin:.25rem 0}
.rv-note {color:var(--rv-soft);font:13px/1.4 system-ui,sans-serif}
.rv-lab .rv-note {margin:.5rem 0;max-width:62rem}
.rv-scroll {overflow-x:auto}
.rv-lab table {border-collapse:collapse;font-variant-numeric:tabular-nums;margin:.2rem 0 .8rem}
.rv-lab th,.rv-lab td {padding:.1rem 1.2rem .1rem 0;text-align:right;border:0;font-size:14px;
 white-space:nowrap}
.rv-lab th:first-child,.rv-lab td:first-child {text-align:left}
.rv-lab th {border-bottom:1px solid var(--rv-soft);font-weight:600}
.rv-error {border-left:4px solid #c00;padding:.6rem .9rem}
[data-testid="notebook-actions-dropdown"] {display:none!important}
#App > div {padding-inline:clamp(.6rem,2vw,2rem)!important;padding-top:.6rem!important}
#App > div:first-child {padding-top:0!important}
div:has(> .marimo-cell) {display:grid!important;grid-template-columns:minmax(0,1fr);gap:.7rem 2rem}
.marimo-cell {min-width:0}
.marimo-cell:empty {display:none}
.marimo-cell .output-area {max-height:none!important;overflow:visible;padding:0!important;
 margin:0!important}
.marimo-cell .output {padding:0!important;margin:0!important}
[data-cell-name=ticks],[data-cell-name=readout] {display:none}
.rv-slider {position:relative}
.rv-slider::after {position:absolute;right:0;top:.35rem;color:var(--rv-ink);white-space:nowrap;
 font:14px/1.6 system-ui,sans-serif;font-variant-numeric:tabular-nums}
@keyframes rv-hide {to {visibility:hidden}}
@keyframes rv-show {to {visibility:visible}}
[data-cell-name=screen]:empty {display:block;visibility:visible!important}
[data-cell-name=screen]:empty::before,[data-cell-name=screen] .marimo-output-loading::before {
 content:"Computing … (some seconds when a kind of learner is used for the first time)";
 display:block;color:var(--rv-ink);font:600 15px/1.5 system-ui,sans-serif}
[data-cell-name=screen] .marimo-output-loading::before {position:sticky;top:1rem;height:0;
 visibility:hidden;animation:rv-show 0s var(--rv-wait,.6s) forwards}
[data-cell-name=screen] .marimo-output-loading > .output {
 animation:rv-hide 0s var(--rv-wait,.6s) forwards}
[data-cell-name=screen] .marimo-output-loading {opacity:1}
:root:has(.rv-playing) {--rv-wait:3s}
@media (max-width:40rem) {
.rv-lab {display:flex;flex-direction:column;align-items:stretch}
.rv-lab > * {min-width:0;flex:none}
.rv-charts {display:contents}
.rv-chart:first-child {order:-1;margin-bottom:.6rem}
}
@media (min-width:60rem) {
div:has(> .marimo-cell) {grid-template-columns:17rem minmax(0,1fr);
 grid-template-rows:auto auto auto auto auto 1fr}
[data-cell-name=heading] {grid-area:1/1/2/3}
[data-cell-name=sources] {grid-area:2/1}
[data-cell-name=controls] {grid-area:3/1/7/2}
[data-cell-name=buttons] {grid-area:2/2}
[data-cell-name=table] {grid-area:3/2}
[data-cell-name=screen] {grid-area:4/2}
[data-cell-name=code] {grid-area:5/2}
}
@media (min-width:80rem) {
div:has(> [data-cell-name=table]:not(:empty)) {grid-template-columns:13rem 37rem minmax(0,1fr)}
div:has(> [data-cell-name=table]:not(:empty)) > [data-cell-name=heading] {grid-area:1/1/2/4}
[data-cell-name=table]:not(:empty) {grid-area:2/2/7/3}
[data-cell-name=table]:not(:empty) ~ [data-cell-name=screen] {grid-area:2/3/4/4}
[data-cell-name=table]:not(:empty) ~ [data-cell-name=code] {grid-area:4/3}
}
"""
HEAD = f"<style>{STYLE}{CSS}</style>"
"""Styles of the page."""


def element(mo: Any, control: Control) -> Any:
    """The element of a page for a control."""
    label = control.label
    options: Any = control.options
    if control.kind == "slider":
        steps = [float(x) for x in options]
        return mo.ui.slider(steps=steps, value=float(control.value), label=label, full_width=True)
    if control.kind == "number":
        low, high = options
        return mo.ui.number(start=low, stop=high, value=control.value, label=label)
    if control.kind == "text":
        return mo.ui.text_area(value=control.value, label=label, full_width=True)
    named = dict(options) if isinstance(options, Mapping) else {str(x): x for x in options}
    keys = {_key(value): name for name, value in named.items()}
    if control.kind == "many":
        several = [keys[_key(value)] for value in control.value]
        return mo.ui.multiselect(options=named, value=several, label=label, full_width=True)
    if control.kind == "choice":
        one = keys[_key(control.value)]
        return mo.ui.dropdown(options=named, value=one, label=label, full_width=True)
    raise ValueError(f"unknown kind of control: {control.kind}")


def _key(value: Any) -> str:
    return repr(value)


def panel(mo: Any, controls: Sequence[Control], elements: Any) -> Any:
    """Controls below each other, each with its help; those that can wait behind a heading."""
    first = [control for control in controls if not control.more]
    later = [control for control in controls if control.more]
    parts = [_stack(mo, first, elements)]
    if later:
        parts.append(mo.accordion({"more settings": _stack(mo, later, elements)}))
    return mo.vstack(parts, gap=0.5)


def _stack(mo: Any, controls: Sequence[Control], elements: Any) -> Any:
    parts = []
    for control in controls:
        shown = [elements[control.name]]
        if control.kind == "slider":
            shown = [mo.Html(f'<div class="rv-slider rv-at-{control.name}">{shown[0]}</div>')]
        if control.help:
            shown.append(mo.Html(f'<div class="rv-note">{escaped(control.help)}</div>'))
        parts.append(mo.vstack(shown, gap=0))
    return mo.vstack(parts, gap=0.6)


def readout(values: Mapping[str, Any]) -> str:
    """A style that writes the numbers of sliders beside their names.

    >>> readout({"alpha": 0.00398, "methods": ["vtd"]})
    '<style>.rv-at-alpha::after{content:"0.00398"}</style>'
    """
    rules = (
        f'.rv-at-{name}::after{{content:"{short_number(x)}"}}'
        for name, x in values.items()
        if isinstance(x, float)
    )
    return f"<style>{''.join(rules)}</style>"


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escaped(cell)}</th>" for cell in heading)
    body = "".join(
        "<tr>" + "".join(f"<td>{escaped(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    table = f'<table class="rv-numbers"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="rv-scroll">{table}</div>'


def screen_page(screen: Screen) -> str:
    """A screen as HTML.

    >>> "a &lt; b" in screen_page(Screen(sentences=["a < b"]))
    True
    """
    said = "".join(f"<p>{escaped(sentence)}</p>" for sentence in screen.sentences)
    charts = "".join(f'<div class="rv-chart">{chart}</div>' for chart in screen.charts)
    parts = [f'<div class="rv-said" aria-live="polite">{said}</div>' if said else ""]
    parts.append(_table(screen.heading, screen.rows) if screen.rows else "")
    parts.append(f'<div class="rv-charts">{charts}</div>')
    if screen.note:
        parts.append(f'<div class="rv-note">{escaped(screen.note)}</div>')
    return f'<div class="rv-lab">{"".join(parts)}</div>'


def error_page(error: Exception) -> str:
    """What is wrong with the settings, in place of a screen.

    >>> "no such" in error_page(ValueError("no such state"))
    True
    """
    told = f'<div class="rv-error" role="alert">{escaped(error)}</div>'
    return f'<div class="rv-lab">{told}</div>'


# ---------------------------------------------------------------------- tables that are edited


def text_fields(mo: Any, view: Any, method: str, values: Mapping[str, Any]) -> Any:
    """Fields for the texts that a view lists by this method; none if it has no such method."""
    listed = getattr(view, method, None)
    texts: Mapping[str, str] = listed(values) if listed is not None else {}
    return mo.ui.dictionary(
        {key: mo.ui.text(value=text, full_width=True) for key, text in texts.items()}
    )


def row_numbers(fields: Any) -> list[int]:
    """Numbers of the rows that fields belong to.

    >>> row_numbers({"edges/0/state": "", "edges/0/action": "", "settings//gamma": ""})
    [0]
    """
    return sorted({int(key.split("/")[1]) for key in fields if key.startswith("edges/")})


def table_page(mo: Any, view: Any, fields: Any, own: Any, removers: Any, adder: Any) -> Any:
    """The tables of a view that has fields; None of others."""
    if not len(fields):
        return None
    view.take(own.value)
    page = view.table(fields, removers, f"{adder}")
    below = mo.accordion({"γ and λ of single states": mo.Html(view.discount_table(own))})
    return mo.vstack([mo.Html(page), below])
