# /// script
# [tool.marimo.display]
# theme = "system"
# ///
"""The page of the lab: a marimo notebook that ``retvar lab`` serves.

Cells hold no logic: views (``retvar.lab.views``) list their controls and make their screens. The
style sheet places cells by their names. While a view plays, the page sends a tick four times a
second; each moves the view on by a frame, so that sliders work in between.
"""

import marimo

app = marimo.App(width="full", app_title="retvar lab")


@app.cell
def setup():
    import time

    import marimo as mo

    from retvar.errors import RetvarError
    from retvar.lab import elements, views, world_views

    shelf = views.Shelf()
    _every = (*views.VIEWS, *world_views.VIEWS)
    titled = {view.title: view for view in (make(shelf) for make in _every)}
    clock = {"step": 0, "seen": "", "time": 0.0}
    get_playing, set_playing = mo.state(False, allow_self_loops=True)
    get_rows, set_rows = mo.state(0, allow_self_loops=True)  # grows when fields are made anew
    return (
        RetvarError, clock, elements, get_playing, get_rows, mo, set_playing, set_rows, time,
        titled, views,
    )  # fmt: skip


@app.cell
def heading(elements, mo, titled):
    tabs = mo.ui.tabs(dict.fromkeys(titled, ""))
    mo.vstack([mo.Html(f"{elements.HEAD}<h1 class='rv-title'>retvar lab</h1>"), tabs], gap=0)
    return (tabs,)


@app.cell
def sources(clock, elements, mo, set_playing, tabs, titled):
    view = titled[tabs.value or next(iter(titled))]
    clock["step"] = 0
    set_playing(False)
    _given = view.sources()
    chosen = mo.ui.dictionary({c.name: elements.element(mo, c) for c in _given})
    elements.panel(mo, _given, chosen)
    return chosen, view


@app.cell
def controls(chosen, elements, mo, view):
    _given = view.controls(chosen.value)
    settings = mo.ui.dictionary({c.name: elements.element(mo, c) for c in _given})
    elements.panel(mo, _given, settings)
    return (settings,)


@app.cell
def readout(elements, mo, settings):
    mo.Html(elements.readout(settings.value))
    return


@app.cell
def fields(chosen, elements, get_rows, mo, set_rows, view):
    _ = get_rows()  # a row was added or removed

    def _removing(row):
        def _remove(_):
            view.remove(row)
            set_rows(lambda k: k + 1)

        return mo.ui.button(label="✕", on_change=_remove, tooltip="remove this row")

    def _add(_):
        view.add()
        set_rows(lambda k: k + 1)

    typed = elements.text_fields(mo, view, "fields", chosen.value)
    removers = mo.ui.array([_removing(k) for k in elements.row_numbers(typed)])
    adder = mo.ui.button(label="add a row", on_change=_add)
    pressed = (removers, adder)  # under another name, so that a press runs no cell by itself
    return adder, pressed, removers, typed


@app.cell
def state_fields(elements, mo, typed, view):
    own = elements.text_fields(mo, view, "discounts", typed.value)
    return (own,)


@app.cell
def table(elements, mo, own, pressed, typed, view):
    edited = own.value
    elements.table_page(mo, view, typed, own, *pressed)
    return (edited,)


@app.cell
def buttons(chosen, clock, get_playing, mo, set_playing, settings, time, view, views):
    def _play(_):
        if clock["step"] >= view.length({**chosen.value, **settings.value}):
            clock["step"] = 0
        clock["time"] = time.monotonic()
        set_playing(not get_playing())

    def _move(_):
        clock["step"] += views.frame(view, {**chosen.value, **settings.value})

    def _reset(_):
        clock["step"] = 0
        set_playing(False)

    play = mo.ui.button(label="Pause" if get_playing() else "Play", on_change=_play, kind="success")
    move = mo.ui.button(label="Step", on_change=_move)
    reset = mo.ui.button(label="Reset", on_change=_reset)
    mo.hstack([play, move, reset], justify="start") if view.length(
        {**chosen.value, **settings.value}
    ) else None
    return move, play, reset


@app.cell
def ticks(get_playing, mo, views):
    tick = mo.ui.refresh(
        options=[views.TICK], default_interval=views.TICK if get_playing() else None
    )
    mo.Html(f"<div class='rv-playing'>{tick}</div>" if get_playing() else f"{tick}")
    return (tick,)


@app.cell
def screen(
    RetvarError, chosen, clock, edited, elements, get_playing, mo, move, play, reset, set_playing,
    settings, tick, time, typed, view, views,
):  # fmt: skip
    _values = {**chosen.value, **settings.value}
    _ = (move.value, play.value, reset.value)  # a press shows the view again
    _ = (typed.value, edited)  # and so does an edit
    _end = view.length(_values)
    if get_playing() and tick.value not in ("", clock["seen"]):
        clock["seen"], _now = tick.value, time.monotonic()
        clock["step"] += views.frame(view, _values, _now - clock["time"])
        clock["time"] = _now
    if clock["step"] >= _end:
        clock["step"] = _end
        if get_playing():
            set_playing(False)
    try:
        shown = view.show(_values, clock["step"])
        _page = elements.screen_page(shown)
    except RetvarError as error:
        shown, _page = views.Screen(), elements.error_page(error)
    mo.Html(_page)
    return (shown,)


@app.cell
def code(mo, shown):
    _texts = {"The Python that makes this": ("python", shown.code)}
    _texts |= {name: (name.rpartition(".")[2], text) for name, text in shown.exports.items()}
    mo.accordion(
        {name: mo.md(f"```{kind}\n{text}\n```") for name, (kind, text) in _texts.items()}
    ) if shown.code else None
    return


if __name__ == "__main__":
    app.run()
