"""Curves of simulations: estimates, step sizes and errors over time, and errors at the end.

Each figure makes its :class:`retvar.plots.panels.Panel` records first, from tables of numbers that
can be looked at without drawing; the paper's claims are checked on the same tables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import xarray

from retvar.plots import panels as p
from retvar.plots import style
from retvar.plots.panels import Line, Panel, XAxis, panels
from retvar.plots.style import METHODS, Array, Entry, Figure, Flags, LineStyle, learner_name, shown
from retvar.support import arguments
from retvar.support.errors import InputError
from retvar.support.format import listed
from retvar.td import networks
from retvar.td.networks import DEFAULT, NETWORKS

Datasets = xarray.Dataset | Mapping[str, xarray.Dataset]

MAX_LEARNERS = 23
MAX_DRAWN = 8  # states; of more, some are chosen
MOMENTS = ("variance", *networks.SHAPES, *networks.SHAPES.values())
FAR = 8.0  # times the scale of the truth; lines beyond are cut off
MAX_DIP = 2.0  # depth below zero relative to the height above; deeper dips leave the panel
CUTOFF = 1e4  # times the least error; larger errors are cut off
LEAST = 0.001  # the least ᾱ of the paper's grid; with less, 80,000 steps do not suffice
SQUARED_ERROR = "squared error, summed over states"
TIME_SCALES = {1e6: " (millions)", 1e3: " (thousands)", 1.0: ""}
EXACT: tuple[Entry] = ((style.sample(**style.TRUTH), "exact truth"),)


def single_dataset(data: Any, *recorded: str) -> xarray.Dataset:
    """The dataset, or the only one of a mapping; single runs become their mean and std."""
    several = [data] if hasattr(data, "data_vars") else list(datasets(data).values())
    if len(several) != 1:
        remedy = "must be a dataset, such as one of retvar.simulate, or a mapping with one"
        raise InputError("data", f"{len(several)} datasets", remedy)
    found: xarray.Dataset = several[0]
    if missing := [name for name in recorded if name not in found]:
        raise InputError("data", f"no {listed(missing)}", "record it: see retvar.Record")
    if "run" not in found.dims:
        return found
    runs = found[[name for name in found.data_vars if "run" in found[name].dims]]
    spread = runs.std("run", ddof=min(1, found.sizes["run"] - 1))
    means = runs.mean("run").assign({f"{name}_std": spread[name] for name in runs})
    if "diverged" in runs:
        means["diverged"] = runs.diverged.sum("run")
    return found.drop_vars(list(runs)).drop_dims("run", errors="ignore").assign(means)


def datasets(data: Any) -> Mapping[str, xarray.Dataset]:
    """Datasets by name."""
    if not isinstance(data, Mapping) or not all(hasattr(x, "data_vars") for x in data.values()):
        raise InputError("data", type(data).__name__, "must be a mapping from names to datasets")
    return data


def _labels(data: xarray.Dataset, most: int = 10_000) -> list[str]:
    """Labels of the learners, the methods first, in the order of legends."""
    labels = [str(label) for label in data.learner.values]
    if len(labels) > most:
        remedy = f"at most {most} fit a figure; choose some with data.sel(learner=[…])"
        raise InputError("learners", len(labels), remedy)
    rank = {name: k for k, name in enumerate(METHODS)}
    return sorted(labels, key=lambda label: rank.get(label.lower(), len(rank)))


def _methods(data: xarray.Dataset) -> list[str]:
    """Methods of the learners, in the order of legends."""
    found = [method for method in METHODS if of_method(data, method).any()]
    if not found:
        remedy = f"labels must begin with the name of a method: {', '.join(NETWORKS)}"
        raise InputError("learners", listed(map(str, data.learner.values), most=5), remedy)
    return found


def of_method(data: xarray.Dataset, method: str) -> Flags:
    """Which learners are of a method, by the first word of their labels or by their class."""
    first = [str(label).split(" ")[0].lower() for label in data.learner.values]
    kinds = data.algorithm.values if "algorithm" in data.coords else first
    names = [x if x in NETWORKS else str(k).lower() for x, k in zip(first, kinds, strict=True)]
    return np.array([name == method for name in names], dtype=bool)


def time_of(data: Any) -> str:
    """The dimension of time: step or episode."""
    return "step" if "step" in data.dims else "episode"


def below_cutoff(values: Array, factor: float) -> Array:
    """Finite values up to `factor` times the least, without those on the way to divergence."""
    finite = values[np.isfinite(values)]
    return np.asarray(finite[finite <= factor * finite.min(initial=np.inf)])


def _column(data: xarray.Dataset, name: str) -> Array:
    """A variable as an array; empty if there is none."""
    return np.asarray(data.get(name, []), dtype=float)


def times_of(data: xarray.Dataset) -> tuple[Array, XAxis]:
    """Moments in steps or episodes, if many in thousands or millions, and their axis."""
    unit = time_of(data)
    x = np.asarray(data[unit].values, dtype=float)
    scale = next(scale for scale in TIME_SCALES if x[-1] >= 2 * scale or scale == 1)
    return x / scale, XAxis(f"{unit}s{TIME_SCALES[scale]}", (0, x[-1] / scale))


def mean_line(data: xarray.Dataset, field: str, x: Array, look: LineStyle, **more: Any) -> Line:
    """The mean over runs, with a band of ± std where that is known."""
    mean, std = _column(data, field), _column(data, f"{field}_std")
    return Line(x, mean, look, (mean - std, mean + std) if std.size else None, **more)


def learner_lines(data: xarray.Dataset, field: str, x: Array, **more: Any) -> list[Line]:
    """A line for each learner."""
    labels, lines = _labels(data), []
    for k, label in enumerate(labels):
        look, more["markers"] = style.learner_style(label, k), _spaced(x.size, k, len(labels))
        own = data.sel(learner=label)
        lines.append(mean_line(own, field, x, look, name=learner_name(label), **more))
    return lines


def _spaced(points: int, k: int, lines: int) -> tuple[int, int]:
    """``markevery`` for the k-th of several lines, so that their markers do not coincide."""
    step = max(1, points // 6)
    return min(points - 1, step // 2 + k * step // lines), step


def state_panel(title: str, data: xarray.Dataset, name: str, **more: Any) -> Panel:
    """A line for each state of one learner, labelled at its end, and exact answers if known."""
    (x, _), lines = times_of(data), []
    for k, state in enumerate(data.state.values):
        end, markers = shown(str(state), style.LONGEST_TICK), _spaced(x.size, k, data.state.size)
        own = data.isel(state=k)
        lines.append(mean_line(own, name, x, style.line_style(k), end=end, markers=markers))
    return Panel(title, lines, _column(data, f"true_{name}").tolist(), **more)


def _panels_over_time(content: list[Panel], data: xarray.Dataset, legend: list[Entry]) -> Figure:
    size = 4, max(0.6, min(len(content) / 4, 1.0)) * 8.8, 2.7
    return panels(content, times_of(data)[1], size, legend)


def learning_curves(data: Datasets, what: str = "variance") -> Figure:
    """Draw the estimates of each learner over time: the mean over runs ± one standard deviation.

    The first panel shows the value, the others the variance of each learner on one scale, or
    another moment. Exact answers are dashed. A curve far from the truth leaves its panel. Of more
    than 8 states those are drawn that tell most, and the legend says so.

    `data` is from :func:`retvar.simulate`, or a mapping with one such dataset. `what` is
    ``"variance"``; of learners with a higher order also ``"third_moment"``, ``"skewness"``,
    ``"fourth_moment"`` or ``"kurtosis"``.

    Examples
    --------
    >>> import retvar as rv
    >>> learners = {"direct": rv.Direct(alpha=0.01), "vtd": rv.VTD(alpha=0.01)}
    >>> data = rv.simulate(rv.domains.complex_mdp(), learners, steps=100, runs=2, seed=0)
    >>> figure = rv.plots.learning_curves(data)
    >>> [ax.get_title(loc="left") for ax in figure.axes]
    ['value', 'variance by VTD', 'variance by direct']
    """
    found = single_dataset(data)
    arguments.choice("what", what, [name for name in MOMENTS if name in found])
    labels = _labels(found, MAX_LEARNERS)
    if what != "variance":  # only those who learn it
        labels = [x for x in labels if np.isfinite(found[what].sel(learner=x)).any()] or labels
    found, words = _telling_states(found.sel(learner=labels), what)
    names = {x: f"by {learner_name(x, style.LONGEST_TITLE)}" for x in labels}
    same, first = bool((found.value == found.value.isel(learner=0)).all()), labels[0]
    limits = low, high = _y_limits(found, what)
    if what == "variance" and high > 0:
        limits = max(low, -MAX_DIP * high), high
    title, own = "value" if same else f"value {names[first]}", found.isel(learner=[0])
    content = [state_panel(title, own.isel(learner=0), "value", limits=_y_limits(own, "value"))]
    for x, by in names.items():
        title, one = f"{what.replace('_', ' ')} {by}", found.sel(learner=x)
        content.append(state_panel(title, one, what, limits=limits))
    legend = [_mean_entry(found, what), *(EXACT if f"true_{what}" in found else ())]
    return _panels_over_time(content, found, legend + words)


def step_sizes(data: Datasets) -> Figure:
    """Draw the step sizes of adaptive rules over time: of the value and of each variance node.

    `data` is as for :func:`learning_curves`, recorded with ``Record(step_sizes=True)``.
    """
    value, variance = fields = ["value_step_size", "variance_step_size"]
    found = single_dataset(data, *fields)
    labels = _labels(found, MAX_LEARNERS)
    found, words = _telling_states(found.sel(learner=labels), "variance")
    found = found.drop_vars([f"{name}_std" for name in fields], errors="ignore")
    content = [state_panel("value", found.sel(learner=labels[0]), value)]
    for label in labels:
        own = found.sel(learner=[label])
        method = next((m for m in NETWORKS if of_method(own, m)), DEFAULT)
        node = NETWORKS[method].nodes[-1].title
        title = f"{node} ({learner_name(label, style.LONGEST_TICK)})"
        content.append(state_panel(title, own.isel(learner=0), variance))
    legend = [_mean_entry(found, variance), *words]
    return _panels_over_time(p.logarithmic(content, "step size"), found, legend)


def rmse_curves(data: Datasets) -> Figure:
    """Draw the root mean squared error of each learner's variance over time, ± std over runs.

    `data` is as for :func:`learning_curves`, recorded with ``Record(rmse=True)``.
    """
    name = "variance_rmse"
    found = single_dataset(data, name)
    x, axis = times_of(found)
    lines = [line._replace(end=line.name) for line in learner_lines(found, name, x)]
    near = below_cutoff(_column(found, name), CUTOFF)
    content = p.logarithmic([Panel("", lines)], "RMSE of the variance", near)
    return panels(content, axis, (1, 7.0, 3.4), [_mean_entry(found, name)])


def _y_limits(data: xarray.Dataset, field: str) -> tuple[float, float]:
    """Limits that contain zero and the bands of all learners but diverging ones."""
    mean, exact = np.asarray(data[field]), _column(data, f"true_{field}")
    known = data.get(f"{field}_std", xarray.zeros_like(data[field]))
    std = np.nan_to_num(np.asarray(known), posinf=0.0)
    sizes = np.nanmax(np.abs(mean), axis=tuple(range(1, mean.ndim)), initial=0.0)
    size = np.nanmax(np.abs(exact), initial=0.0) or sizes.min() or 1.0
    near = sizes <= FAR * size
    every = np.concatenate([*(mean - std)[near], *(mean + std)[near], exact, [0.0]], axis=None)
    every = np.clip(every[np.isfinite(every)], -FAR * size, FAR * size)
    margin = 0.04 * (np.ptp(every) or 1.0)
    return float(every.min() - margin), float(every.max() + margin)


def _telling_states(data: xarray.Dataset, field: str) -> tuple[xarray.Dataset, list[Entry]]:
    """The data of the states to draw, and an entry of the legend that says which these are.

    From the least to the greatest exact answer (or final estimate, if that is not known), and the
    state where a learner is furthest off at the end.
    """
    states = data.sizes["state"]
    if states <= MAX_DRAWN:
        return data, []
    last = data[field].isel({time_of(data): -1}).transpose("learner", "state")
    exact = data.get(f"true_{field}", last).transpose("learner", "state").values
    off = np.nan_to_num(np.abs(last.values - exact), posinf=0.0).max(axis=0)
    order = np.argsort(exact[0], kind="stable")[: max(np.isfinite(exact[0]).sum(), 1)]
    spaced = np.linspace(0, order.size - 1, MAX_DRAWN - 1).round().astype(int)
    chosen = np.unique([*order[spaced], np.argmax(off)])
    words = f"{chosen.size} of {states:,} states: least to greatest {field.replace('_', ' ')}"
    entry = style.sample(alpha=0), f"{words} and the largest final error"
    return data.isel(state=chosen), [entry]


def _mean_entry(data: xarray.Dataset, variable: str) -> Entry:
    """The legend entry of means over runs, with a band if standard deviations are known."""
    runs, std = data.attrs.get("runs", "all"), _column(data, f"{variable}_std")
    band = bool(np.isfinite(std).any())
    text = f"mean{' ± standard deviation' * band} over {runs} runs" if runs != 1 else "one run"
    text = f"exact {text}" if "exact" in data.attrs else text
    return style.legend_line(LineStyle("#777777", ""), band), text


def final_estimates(data: Datasets) -> Figure:
    """Draw the final variance of each learner by state: mean ± std over runs.

    `data` is as for :func:`learning_curves`.
    """
    found = single_dataset(data)
    x, last = np.arange(found.sizes["state"], dtype=float), found.isel({time_of(found): -1})
    lines = learner_lines(last, "variance", x, outlined=True)
    legend, tenth = _band_entries(lines), max(1, x.size // 10)
    if "true_variance" in last:
        look = LineStyle(style.INK, "", style.TRUTH["linestyle"], lift=1.1)
        lines.append(Line(x, last.true_variance.isel(learner=0).values, look))
        legend += EXACT
    names = [shown(str(name), style.LONGEST_TICK) for name in found.state.values[::tenth]]
    axis = XAxis("state", (-0.5, x.size - 0.5), x[::tenth].tolist(), names)
    content = [Panel("", lines, limits=_y_limits(last, "variance"), ylabel="variance")]
    return panels(content, axis, (1, 7.0, 3.6), legend)


def best_learners(data: xarray.Dataset, method: str, errors: Array, *names: str) -> xarray.Dataset:
    """The learners of a method by some settings; of several with the same the one that errs least.

    One setting replaces ``learner``, several become dimensions.
    """
    for name in names:
        if name not in data.coords or data[name].dtype.kind not in "fiu":
            raise InputError(f"data.{name}", "no numbers", "step sizes must be numbers")
    order = np.argsort(errors, kind="stable")  # unknown ones last
    own = data.isel(learner=order[of_method(data, method)[order]])
    table = own.set_index(learner=names if len(names) > 1 else names[0]).drop_duplicates("learner")
    return table.unstack("learner") if len(names) > 1 else table.sortby("learner")


def errors_by_steps(data: xarray.Dataset, method: str) -> xarray.DataArray:
    """Squared error summed over states [alpha, alpha_bar]; the least where several learners fit."""
    own = data[[]].assign(errors=data.variance_window_mse.sum("state"))
    found = best_learners(own, method, own.errors.values, "alpha", "alpha_bar").errors
    return found.transpose("alpha", "alpha_bar")  # type: ignore[no-any-return]


def step_size_ratio(data: Datasets) -> Figure:
    """Draw the squared error of the variance against both step sizes, on logarithmic axes.

    Each ᾱ has a colour; direct is solid, VTD dashed, centred dotted.

    `data` is from :func:`retvar.simulate`, recorded with a window; labels of learners begin
    with the name of a method, and α and ᾱ are numbers. Of several learners with the same steps
    the best is drawn.
    """
    found = single_dataset(data, "variance_window_mse")
    errors = {name: errors_by_steps(found, name) for name in _methods(found)}
    content = []
    for name in [name for name in errors if name != DEFAULT] or [DEFAULT]:
        both = list(dict.fromkeys(other for other in (DEFAULT, name) if other in errors))
        panel = Panel(" and ".join(map(learner_name, both)), [])
        for method, table in [(m, errors[m]) for m in both]:
            x, ends = table.alpha.values, method == both[0]
            for k, text in enumerate(p.tick_labels(table.alpha_bar.values.tolist())):
                own, end = style.line_style(k), f"ᾱ = {text}" if ends else ""
                look = replace(METHODS[method], colour=own.colour, marker=own.marker)
                panel.lines.append(Line(x, table.values[:, k], look, end=end))
        content.append(panel)
    alphas = np.concatenate([table.alpha.values for table in errors.values()])
    looks = {m: LineStyle(style.INK, "", METHODS[m].dash) for m in errors}
    legend = [(style.legend_line(look), learner_name(m)) for m, look in looks.items()]
    axis = p.log_x_axis(alphas, "step size of the value, α")
    size = 2, 0.4 + 4.2 * len(content), 3.9
    return panels(p.logarithmic(content, SQUARED_ERROR), axis, size, legend)


def error_by_return(
    data: Mapping[str, xarray.Dataset], which: str, method: str
) -> dict[float, float]:
    """Squared error summed over states against the mean reward."""
    own = {float(name.split("/")[-1]): x for name, x in data.items() if f"/{which}/" in name}
    return {c: float(x.variance_window_mse.sel(learner=method).sum()) for c, x in own.items()}


def large_returns(data: Mapping[str, xarray.Dataset], means: Sequence[float]) -> Figure:
    """Draw the squared error of the variance against the mean reward, on logarithmic axes.

    `data` has datasets named ``…/frozen/c`` (the value is fixed at the truth) and ``…/learned/c``,
    recorded with a window, for each mean reward c; `means` are those to show.
    """
    data, means = datasets(data), arguments.numbers("means", means).tolist()
    if not data:
        raise InputError("data", "{}", "must hold a dataset")
    cases = {"frozen": "value held at the truth", "learned": "value learned, α = ᾱ"}
    methods, content = _methods(next(iter(data.values()))), list[Panel]()
    for case, title in cases.items():
        found = {m: error_by_return(data, case, m) for m in methods}
        heights = {m: [errors.get(float(c), np.nan) for c in means] for m, errors in found.items()}
        content.append(Panel(title, [method_line(m, means, heights[m]) for m in methods]))
    axis = p.log_x_axis(means, "mean reward, c")
    return panels(p.logarithmic(content, SQUARED_ERROR), axis, (2, 8.0, 3.3))


def method_line(method: str, x: Any, y: Any, std: Any = None, **more: Any) -> Line:
    """The line of a method; named at its end, or with a band of ± std."""
    x, y, look = np.asarray(x), np.asarray(y, dtype=float), METHODS[method]
    if std is None:
        return Line(x, y, look, end=learner_name(method))
    name = learner_name(method)
    return Line(x, y, look, (y - std, y + std), outlined=True, name=name, **more)


def by_ratio(data: xarray.Dataset, method: str, *names: str) -> xarray.Dataset:
    """Some variables of the learners of a method as [ratio, alpha_bar]."""
    own = data[list(names)].isel(learner=of_method(data, method))
    found = [re.findall(r"error=([\d.e+-]+)", str(label)) for label in own.learner.values]
    if [] in found:
        remedy = "labels must be like 'direct error=0.1 ᾱ=0.01'"
        raise InputError("learners", str(own.learner.values[0]), remedy)
    indexed = own.assign_coords(ratio=("learner", [float(x[0]) for x in found]))
    return indexed.set_index(learner=["ratio", "alpha_bar"]).unstack("learner")


def best_per_state(data: xarray.Dataset, method: str) -> xarray.Dataset:
    """Mean and std of the estimate [ratio, state] with the best of the paper's step sizes."""
    found = by_ratio(data, method, "variance_window_mse", "variance_window", "variance_std")
    found = found.sel(alpha_bar=slice(0.999 * LEAST, None)).mean(time_of(data))
    best = found.isel(alpha_bar=found.variance_window_mse.argmin("alpha_bar"))
    return best.rename(variance_window="mean", variance_std="std", alpha_bar="step")


def least_error(data: xarray.Dataset, method: str, against: str = "") -> xarray.DataArray:
    """Least squared errors summed over states [ratio], with their step sizes ``alpha_bar``."""
    name = "variance_window_mse" + against
    mse = by_ratio(data, method, name)[name].sum("state")
    return mse.isel(alpha_bar=mse.argmin("alpha_bar"))


def _ratio_axis(ratios: Sequence[float]) -> XAxis:
    return XAxis("error of the value / max|j|", (min(ratios) - 0.03, max(ratios) + 0.03), ratios)


def value_error_spread(data: Datasets, ratios: Sequence[float]) -> Figure:
    """Draw the estimates of each state against the error of the value: mean ± std over runs.

    For each state and error the step size with the least squared error is used.

    `data` is from :func:`retvar.simulate`, recorded with a window; labels of learners are like
    ``direct error=0.1 ᾱ=0.01``, beginning with the name of a method. `ratios` are the errors to
    show.
    """
    found = single_dataset(data, "variance_window", "variance_window_mse")
    ratios, methods = arguments.numbers("ratios", ratios).tolist(), _methods(found)
    best = {m: best_per_state(found, m).sel(ratio=ratios, method="nearest") for m in methods}
    exact, content = _column(found.isel(learner=0), "true_variance"), []
    for k, state in enumerate(found.state.values):
        own = {m: best[m].isel(state=k) for m in methods}
        lines = [method_line(m, ratios, one["mean"], one["std"]) for m, one in own.items()]
        truth = exact[k : k + 1].tolist()
        content.append(Panel(shown(str(state)), lines, truth, ylabel="variance"))
    return panels(content, _ratio_axis(ratios), (3, 8.0, 2.35), [*_band_entries(lines), *EXACT])


def value_error_best_step(data: Datasets, ratios: Sequence[float]) -> Figure:
    """Draw the least squared error against the error of the value, and below it its step size.

    `data` and `ratios` are as for :func:`value_error_spread`. If the error against the variance for
    the frozen value was recorded too, it has its own panel.
    """
    found = single_dataset(data, "variance_window_mse")
    ratios, methods = arguments.numbers("ratios", ratios).tolist(), _methods(found)
    cases = {"": "against the variance for the true value"}
    if "variance_window_mse_frozen" in found:
        cases["_frozen"] = "against the variance for the frozen value"
    errors, steps = list[Panel](), list[Panel]()
    for case, title in cases.items():
        least = {m: least_error(found, m, case) for m in methods}
        near = {m: x.sel(ratio=ratios, method="nearest") for m, x in least.items()}
        errors.append(Panel(title, [method_line(m, ratios, x) for m, x in near.items()]))
        steps.append(Panel("", [method_line(m, ratios, x.alpha_bar) for m, x in near.items()]))
    content = p.logarithmic(errors, SQUARED_ERROR) + p.logarithmic(steps, "best step size ᾱ")
    return panels(content, _ratio_axis(ratios), (len(cases), 0.4 + 4.2 * len(cases), 2.9))


def _band_entries(lines: Sequence[Line]) -> list[Entry]:
    """Legend entries of lines with bands."""
    return [(style.legend_line(line.look, band=True), f"{line.name} ± std") for line in lines]


def by_step(data: xarray.Dataset, method: str) -> tuple[Array, Array, Array, Array]:
    """ᾱ, final RMSE, its std over runs, and the number of diverged runs; the best for each ᾱ."""
    last, names = data.isel({time_of(data): -1}), ("variance_rmse", "variance_rmse_std", "diverged")
    found = best_learners(last[list(names)], method, last.variance_rmse.values, "alpha_bar")
    return found.learner.values, *(found[name].values for name in names)


def sensitivity(data: Datasets) -> Figure:
    """Draw the final error of each method against ᾱ; above it how many runs diverged.

    `data` is from :func:`retvar.simulate`, recorded with ``Record(rmse=True)``; labels of
    learners begin with the name of a method, and ᾱ is a number. Of several learners with the
    same ᾱ the best is drawn.
    """
    found = single_dataset(data, "variance_rmse")
    tables = {name: by_step(found, name) for name in _methods(found)}
    lines = []
    for m, (x, mean, std, died) in tables.items():
        gone = {step: f"× {n:g}" for step, n in zip(x.tolist(), died, strict=True) if n > 0}
        heights = np.where(died > 0, np.nan, mean)
        lines.append(method_line(m, x, heights, std, diverged=gone))
    steps, means = (np.concatenate([table[k] for table in tables.values()]) for k in (0, 1))
    axis = p.log_x_axis(steps, "step size of the variance, ᾱ", base=2)
    label, near = "final RMSE of the variance", below_cutoff(means, CUTOFF)
    legend = _band_entries(lines)
    if any(line.diverged for line in lines):
        legend.append((style.sample(alpha=0), f"× n: n of {found.attrs.get('runs')} runs diverged"))
    return panels(p.logarithmic([Panel("", lines)], label, near), axis, (1, 7.0, 4.0), legend)
