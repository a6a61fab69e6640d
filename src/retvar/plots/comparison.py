"""Figures of sweeps: the error of each method against a setting, and ratios between methods."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import xarray
from matplotlib.axes import Axes

from retvar.plots import panels as p
from retvar.plots import style
from retvar.plots.lines import below_cutoff
from retvar.plots.panels import Line, Panel, XAxis
from retvar.plots.style import Entry, Figure, learner_name, learner_style
from retvar.sweep.comparison import TITLES, Comparison, can_decide, compare, error_name
from retvar.sweep.run_errors import JUDGING, ComparisonOptions, RunErrors, errors_of

DEFAULTS = ComparisonOptions(resamples=1_000)
LONG_NAMES = {
    "alpha": "step size of the value, α",
    "alpha_bar": "step size of the variance, ᾱ",
    "alpha_mean": "step size of the mean",
    "lam": "λ",
    "gamma": "γ",
    "kappa": "trace decay of the value, κ",
    "kappa_bar": "trace decay of the variance, κ̄",
}
SYMBOLS = {name: words.rpartition(", ")[2] for name, words in LONG_NAMES.items()}
CUTOFF = 50.0  # times the least error; larger errors are cut off
RING: Any = {"marker": "o", "ms": 10, "mfc": "none", "mew": 1.3, "ls": "none", "zorder": 6}
PANEL = 2.2  # inches: the width of a panel
MAX_RATIO = 30.0  # ratios beyond this are drawn at the edge
RATIO_TICKS = {  # by the largest ratio
    1.12: [0.9, 0.95, 1.0, 1.05, 1.1],
    1.3: [0.8, 0.9, 1.0, 1.1, 1.2],
    2.0: [0.6, 0.8, 1.0, 1.25, 1.6],
    2.9: [0.5, 0.7, 1.0, 1.5, 2.0],
    6.0: [0.3, 0.5, 1.0, 2.0, 3.0],
    12.0: [0.2, 0.5, 1.0, 2.0, 5.0],
    np.inf: [0.1, 0.3, 1.0, 3.0, 10.0],
}
POINT: Any = {"marker": "o", "ms": 5, "mec": "white", "mew": 0.5, "ls": "none"}


def question_title(text: str) -> str:
    """Settings with the letters of the paper."""
    parts = (part.partition(" = ") for part in text.split(", "))
    found = (f"{SYMBOLS.get(name, name)} = {value}" for name, _, value in parts if name)
    return style.shown(", ".join(found))


def sensitivity_curves(
    data: xarray.Dataset, x: str = "alpha", by: str = "algorithm", **options: Any
) -> Figure:
    """Draw an error against a setting: a line per method, a panel per γ, λ and estimand.

    Settings that are neither on the axis nor in `where` are the best for each domain and point,
    chosen by one half of the runs and shown by the other. A ring marks the best point of a line;
    crosses mark settings with diverged runs. With several domains, errors are multiples of that of
    the best learner of each domain, and lines are interquartile means over domains.

    `data` is a collected sweep, or a simulation with ``keep="runs"``. `x` is the setting along the
    axis, which is logarithmic if its values are spaced by factors; `by` distinguishes lines.
    `options` are fields of :class:`retvar.sweep.ComparisonOptions`; the default of ``resamples`` is
    1,000 here.

    Examples
    --------
    >>> import retvar as rv
    >>> learners = rv.grid(rv.Direct, rv.VTD, alpha=[0.01, 0.1], alpha_bar=[0.01, 0.1])
    >>> mdp, record = rv.domains.complex_mdp(), rv.Record(at=[100], rmse=True)
    >>> data = rv.simulate(mdp, learners, steps=100, runs=8, seed=0, record=record, keep="runs")
    >>> rv.plots.sensitivity_curves(data).axes[0].get_xlabel()
    'step size of the value, α'
    """
    errors = errors_of(data, DEFAULTS.replace(**options)).relative(x)
    values, how = errors.numbers(x), errors.options
    found, split = error_lines(errors, x, by)
    content = [Panel(question_title(q), list(own.values())) for q, own in found.items()]
    looks = {m: line.look for own in found.values() for m, line in own.items()}
    legend = [(style.legend_line(look, True), learner_name(m)) for m, look in looks.items()]
    legend.append((style.sample(color=style.INK, **RING), "best"))
    lines = [line for panel in content for line in panel.lines]
    if any(line.diverged for line in lines):
        legend.append((style.sample(alpha=0), "×: runs diverged"))
    size, log = (4, max(0.5, min(len(found) / 4, 1.0)) * 9.2, 2.9), p.spaced_by_factors(values)
    label = (LONG_NAMES if len(found) < 3 else SYMBOLS).get(x, x)
    axis = XAxis(label, None, p.axis_ticks(values, log), base=10 * log)
    every = np.concatenate([np.ravel([line.y, *(line.band or ())]) for line in lines])
    domains, _, runs = errors.values.shape
    many = domains if how.over == "domains" else runs // (1 + split)
    about = f"interquartile mean, {how.level:.0%} interval over {many} {how.over}"
    label = error_name(how.what) + ",\ntimes the best of each domain" * (domains > 1)
    content = p.logarithmic(content, label, below_cutoff(every[every > 0], CUTOFF))
    figure = p.panels(content, axis, size, legend, title=about, title_fontsize=8)
    figure.get_layout_engine().set(w_pad=0.07)  # type: ignore[union-attr, call-arg]
    return figure


def error_lines(errors: RunErrors, x: str, by: str) -> tuple[dict[str, dict[str, Line]], bool]:
    """The errors of each question and method; whether half of the runs chose other settings."""
    methods, questions = errors.methods(by), errors.questions(x)
    cells = {
        (q, m): errors.by_number(np.intersect1d(asked, own), x)
        for (q, asked), (m, own) in product(questions.items(), methods.items())
    }
    split = any(cell.size > 1 for row in cells.values() for cell in row.values())
    looks = {m: learner_style(m, k) for k, m in enumerate(methods)}
    found: dict[str, dict[str, Line]] = {q: {} for q in questions}
    for (q, m), row in cells.items():
        if row:
            places = np.array(list(row))
            best = np.array([errors.best_errors(cell) for cell in row.values()])
            best = best[..., JUDGING] if split else best
            died = dict.fromkeys(places[np.isinf(best).any(axis=(1, 2))].tolist(), "×")
            with np.errstate(divide="ignore"):
                ends = errors.options.overall_interval(np.log(best))
            y, low, high = np.exp([ends.estimate, ends.low, ends.high])
            y, high = np.where(np.isinf(y), np.nan, y), np.where(np.isinf(high), 1e9 * y, high)
            least = np.nanargmin(y) if np.isfinite(y).any() else slice(0)
            ring = {**RING, "color": looks[m].text_colour, "gid": "best", "clip_on": False}
            words: Any = {"name": learner_name(m, style.LONGEST_TICK), "diverged": died}
            words["points"] = places[least], y[least], ring
            found[q][m] = Line(places, y, looks[m], (low, high), **words)
    return found, split


@style.styled
def comparison(data: xarray.Dataset | Comparison, **how: Any) -> Figure:
    """Draw the ratio of errors of each pair of methods, over all domains.

    There is a panel for each way of choosing settings and pair of methods, and a row for each γ, λ
    and estimand. Points with intervals have the colour of the method that is surely better, or
    grey.

    `data` is the result of :func:`retvar.sweep.compare`, or a collected sweep that is compared with
    the options `how`.

    Examples
    --------
    >>> import retvar as rv
    >>> learners = rv.grid(rv.Direct, rv.VTD, alpha=[0.01, 0.1], lam=[0.0, 0.9])
    >>> mdp, record = rv.domains.complex_mdp(), rv.Record(at=[100], rmse=True)
    >>> data = rv.simulate(mdp, learners, steps=100, runs=8, seed=0, record=record, keep="runs")
    >>> figure = rv.plots.comparison(data)
    >>> [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    ['λ = 0', 'λ = 0.9']
    """
    found = (data if isinstance(data, Comparison) else compare(data, **how)).data
    found = found.isel(domain=0 if found.sizes["domain"] == 2 else -1)  # that of all domains
    about, choices, pairs = found.attrs, found.settings.values.tolist(), found.pair.values.tolist()
    labels = [question_title(str(question)) or "all" for question in found.question.values]
    methods = dict.fromkeys(name for pair in pairs for name in pair.split(" / "))
    colours = {m: learner_style(m, k).colour for k, m in enumerate(methods)}
    height = 0.6 + (0.2 * max(len(labels), 2) + 0.75) * len(choices)
    widest = max(style.text_size(label, style.RC["font.size"])[0] for label in labels)
    width = max(0.3 + widest + (PANEL + 0.25) * len(pairs), 3.8)
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(len(choices), len(pairs), squeeze=False, sharey=True)
    for ax, (choice, pair) in zip(axes.ravel(), product(choices, pairs), strict=True):
        p.name_rows(ax, labels)
        _draw_ratios(ax, found.sel(settings=choice, pair=pair), largest_ratio(found), colours)
        a, b = (learner_name(name) for name in pair.split(" / "))
        ax.set_xlabel(f"error of {a} / error of {b}" if choice == choices[-1] else "")
        ax.set_title(TITLES[choice] if pair == pairs[0] else "")
    winners = set(found.winner.values.ravel())
    words = [(c, f"{learner_name(m)} is better") for m, c in colours.items() if m in winners]
    if "" in winners:
        few = "" if can_decide(found) else f" (too few {about['over']})"
        words.append((style.SOFT, f"not sure{few}"))
    point: Any = {**POINT, "lw": 2.2, "ls": "-"}
    entries: list[Entry] = [(style.sample(color=c, **point), text) for c, text in words]
    title = f"at {about['at']}, {about['level']:.0%} intervals over {about['over']}"
    style.add_legend(figure, entries, title=title, title_fontsize=8)
    return figure


def largest_ratio(found: xarray.Dataset) -> float:
    """A ratio that, with its inverse, bounds all intervals."""
    with np.errstate(divide="ignore"):  # a ratio of 0 is infinitely far from 1
        ends = np.abs(np.log([found.low, found.high]))
    return min(float(np.exp(1.08 * max(0.05, *ends[np.isfinite(ends)]))), MAX_RATIO)


def _draw_ratios(ax: Axes, one: xarray.Dataset, largest: float, colours: dict[str, str]) -> None:
    """A row with a point and its interval for each question."""
    limits = 1 / largest, largest
    ax.set(xscale="log", xlim=limits)
    chosen = next(ticks for most, ticks in RATIO_TICKS.items() if largest <= most)
    p.fixed_ticks(ax.xaxis, [tick for tick in chosen if limits[0] <= tick <= limits[1]])
    ax.grid(axis="x", **style.GRID)
    ax.axvline(1, color=style.INK, lw=0.8, zorder=2)
    ends = np.clip([one.low, one.ratio, one.high], *limits).T
    for k, (low, middle, high) in enumerate(ends):
        colour = colours.get(str(one.winner.values[k]), style.SOFT)
        ax.plot([low, high], [k, k], color=colour, lw=2.4, solid_capstyle="butt", zorder=3)
        ax.plot(middle, k, color=colour, zorder=4, gid="ratio", **POINT)
    ax.spines["left"].set_visible(False)
