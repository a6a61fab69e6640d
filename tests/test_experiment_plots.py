"""Figures of experiments: what they show, that nothing overlaps, and that odd data can be drawn."""

from __future__ import annotations

from itertools import combinations

import matplotlib
import numpy as np
import pytest
import xarray
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text

import retvar as rv
from retvar import plots
from retvar.curves import BestSteps
from retvar.experiments import all_experiments
from retvar.plots import style
from retvar.plots.axes import separate, single_dataset
from retvar.plots.style import RC

METHODS = ("direct", "vtd", "centred")
RATIOS = [0.0, 0.1, 0.2, 0.3]
STEPS = [1e-3, 1e-2]
ALPHAS = [0.0, 1e-4, 1e-2]
PUBLISHED = {"one": ("0.10", "0.20", "0.30", "0.40"), "two": ("0.0", "1.0", "1.0", "1.0")}
SHOWN = [  # methods and runs
    (METHODS, 30),
    (METHODS, 1),
    (("direct",), 1),
    (("vtd",), 30),
    (("centred",), 1),
    (("vtd", "centred"), 30),
]


def table(labels, states=4, points=40, runs=30, unit="step", **coords):
    """What simulate would return: estimates that approach the truth, and everything recorded."""
    labels = list(labels)
    size, shape = (len(labels), states), (len(labels), points, states)
    random = np.random.default_rng(0)
    truth = np.broadcast_to(np.arange(1.0, states + 1), size)
    rise = 1 - np.exp(-np.linspace(0, 5, points))
    spread = np.nan if runs == 1 else 0.1
    curves, flat = ("learner", unit, "state"), ("learner", "state")
    variables = {
        "value": (curves, 2 * truth[:, None] * rise[:, None] * np.ones(shape)),
        "variance": (curves, truth[:, None] * rise[:, None] + 0.01 * random.normal(size=shape)),
        "value_step_size": (curves, random.uniform(0.01, 0.02, shape)),
        "variance_step_size": (curves, random.uniform(0.001, 0.003, shape)),
        "variance_rmse": (curves[:2], random.uniform(1, 9, shape[:2])),
        "variance_window": (flat, truth + random.normal(size=size)),
        "variance_window_mse": (flat, random.uniform(0.1, 10, size)),
        "variance_window_mse_frozen": (flat, random.uniform(0.1, 10, size)),
        "value_change_total": ("learner", np.full(len(labels), 0.1)),
        "variance_change_total": ("learner", [0.4 - 0.1 * ("vtd" in x) for x in labels]),
        "second_moment_change_total": ("learner", np.full(len(labels), 0.2)),
    }
    variables |= {f"{n}_std": (d, np.full(np.shape(v), spread)) for n, (d, v) in variables.items()}
    variables |= {"true_value": (flat, 2 * truth), "true_variance": (flat, truth)}
    variables["diverged"] = ("learner", np.zeros(len(labels), dtype=int))
    moments = 500 * np.arange(1, points + 1)
    coordinates = {"learner": labels, unit: moments, "state": [f"s{k}" for k in range(states)]}
    settings = {name: ("learner", values) for name, values in coords.items()}
    return xarray.Dataset(variables, {**coordinates, **settings}, {"runs": runs})


def swept(methods, runs=30, first=ALPHAS, name="α"):
    """Learners with every combination of two settings."""
    rows = [(m, a, b) for m in methods for a in first for b in STEPS]
    labels = [f"{m} {name}={a:g} ᾱ={b:g}" for m, a, b in rows]
    alpha, alpha_bar = [a for _, a, _ in rows], [b for *_, b in rows]
    return table(labels, 5, 3, runs, alpha=alpha, alpha_bar=alpha_bar)


def sensitive(methods, runs=30):
    """A sweep over ᾱ in which large ones diverge, some in part."""
    powers = range(-6, 1)
    labels = [f"{m} ᾱ=2^{k}" for m in methods for k in powers]
    data = table(labels, 4, 1, runs, alpha_bar=[2.0**k for _ in methods for k in powers])
    large = data.alpha_bar > 0.3
    data["diverged"] = xarray.where(large, runs, xarray.where(data.alpha_bar > 0.2, 1, 0))
    data["variance_rmse"] = data.variance_rmse.where(~large)
    return data


def returns(methods, runs=30):
    names = [f"x/{case}/{mean:g}" for case in ("frozen", "learned") for mean in (0, 1, 1e6)]
    return {name: table(methods, 4, 1, runs) for name in names}


def errors_of_steps(method):
    """What best_steps would return, with some infinite errors."""
    axis = np.geomspace(1e-3, 1.0, 6)
    log = np.log10(axis)
    errors = 0.1 + (log[:, None] + 1.5) ** 2 + (log - log[:, None]) ** 2 * (method == "vtd")
    errors[-1, 0] = np.inf
    kind = {"direct": rv.Direct, "vtd": rv.VTD, "centred": rv.Centred}[method]
    steps = {"alpha": 0.03, "alpha_bar": 0.02}
    dims = ["alpha", "alpha_bar"]
    grid = xarray.DataArray(errors, dict.fromkeys(dims, axis), dims)
    return BestSteps(kind(**steps), 0.1, grid, ())


def dipping(methods):
    """Exact curves, VTD's far below 0: three entries in the legend."""
    kinds = {kind.method: kind for kind in rv.learners.LEARNERS.values()}
    learners = {m: kinds[m](alpha=0.1, alpha_bar=0.05) for m in methods}
    return rv.expected_curve(rv.domains.chain(), learners, steps=200)


FIGURES = {  # of the methods and the number of runs
    "learning_curves": lambda m, n: plots.learning_curves({"a": table(m, runs=n)}),
    "exact_curves": lambda m, n: plots.learning_curves(dipping(m)),
    "step_sizes": lambda m, n: plots.step_sizes({"a": table(m, runs=n, unit="episode")}),
    "step_size_ratio": lambda m, n: plots.step_size_ratio({"a": swept(m, n)}),
    "value_error_spread": lambda m, n: plots.value_error_spread(
        {"a": swept(m, n, RATIOS, "error")}, RATIOS
    ),
    "value_error_best_step": lambda m, n: plots.value_error_best_step(
        {"a": swept(m, n, RATIOS, "error")}, RATIOS
    ),
    "rmse_curves": lambda m, n: plots.rmse_curves({"a": table(m, runs=n)}),
    "final_estimates": lambda m, n: plots.final_estimates({"a": table(m, 30, 3, n)}),
    "step_contours": lambda m, _n: plots.step_contours({k: errors_of_steps(k) for k in m}),
    "sensitivity": lambda m, n: plots.sensitivity({"a": sensitive(m, n)}),
    "large_returns": lambda m, n: plots.large_returns(returns(m, n), [0, 1, 1e6]),
    "table_1": lambda m, n: plots.table_1({"one": table(m, runs=n)}, PUBLISHED),
    "networks": lambda _m, _n: plots.networks({}),
}


def drawn(figure: Figure) -> Figure:
    with matplotlib.rc_context(RC):
        FigureCanvasAgg(figure).draw()
    return figure


def written(figure: Figure) -> list[Text]:
    """All that can be read in a figure."""
    found: list[Text] = [text for legend in figure.legends for text in legend.get_texts()]
    for ax in figure.axes:
        found += ax.texts
        if ax.axison:
            found += [ax.title, ax._left_title, ax.xaxis.label, ax.yaxis.label]
            for axis in (ax.xaxis, ax.yaxis):
                low, high = sorted(axis.get_view_interval())
                ticks = [t for t in axis.get_major_ticks() if low <= t.get_loc() <= high]
                found += [tick.label1 for tick in ticks if tick.label1.get_visible()]
    return [text for text in found if text.get_text().strip()]


def dashed(ax: Axes) -> list[float]:
    """Heights of the truth."""
    return sorted(
        line.get_ydata()[0]
        for line in ax.lines
        if line.get_color() == style.TRUTH["color"] and len(set(line.get_ydata())) == 1
    )


def titles(figure: Figure) -> list[str]:
    return [ax.get_title(loc="left") for ax in figure.axes]


# ---------------------------------------------------------------------- every figure


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize(("methods", "runs"), SHOWN)
def test_nothing_overlaps_or_is_cut_off_whatever_is_missing(name, methods, runs):
    figure = drawn(FIGURES[name](methods, runs))
    renderer = figure.canvas.get_renderer()
    page = figure.bbox.padded(1)
    boxes = {text: text.get_window_extent(renderer) for text in written(figure)}
    for text, box in boxes.items():
        assert page.x0 <= box.x0 <= box.x1 <= page.x1, text
        assert page.y0 <= box.y0 <= box.y1 <= page.y1, text
    for (one, a), (other, b) in combinations(boxes.items(), 2):
        assert not a.padded(-0.5).overlaps(b.padded(-0.5)), (one, other)


@pytest.mark.parametrize("name", FIGURES)
def test_the_same_data_give_the_same_bytes(name, tmp_path):
    for file in ("a.svg", "b.svg"):
        plots.save(FIGURES[name](METHODS, 30), tmp_path / file)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_the_plot_of_every_experiment_exists():
    assert {e.plot for e in all_experiments()} <= set(plots.__all__)


def test_methods_differ_in_colour_grey_or_marker_and_dash():
    for one, other in combinations(style.METHODS.values(), 2):
        assert one.colour != other.colour
        assert one.marker != other.marker
        assert one.dash != other.dash


def test_states_next_to_each_other_differ_in_grey():
    greys = [np.dot(to_rgb(colour), [0.299, 0.587, 0.114]) for colour in style.COLOURS[:5]]
    assert np.abs(np.diff(greys)).min() > 0.07
    assert len(set(style.MARKERS)) == len(style.COLOURS)


# ---------------------------------------------------------------------- labels


def test_labels_move_as_little_as_they_must():
    """Against all orders and a fine grid of shifts: least squares, at least a gap apart."""
    random = np.random.default_rng(1)
    for _ in range(50):
        y = random.uniform(0, 4, 4)
        found = separate(y, 1.0, -9, 9)
        assert np.diff(np.sort(found)).min() >= 1 - 1e-12
        assert (np.argsort(found) == np.argsort(y)).all()
        cost = np.sum((found - y) ** 2)
        for _ in range(200):
            other = np.sort(y) + random.normal(0, 0.5, 4)
            other = np.maximum.accumulate(other - np.arange(4)) + np.arange(4)
            assert np.sum((other - np.sort(y)) ** 2) >= cost - 1e-9


def test_labels_of_lines_that_end_together_are_put_apart():
    data = table(METHODS)
    data["variance"] = 0 * data.variance + 1.0
    figure = drawn(plots.learning_curves(data))
    for ax in figure.axes[1:]:
        boxes = [t.get_window_extent() for t in ax.texts if t.get_gid() == "end"]
        assert len(boxes) == 4
        assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))


def test_curves_of_a_moment_are_those_of_the_learners_that_have_it():
    data = table(("direct", "vtd"))
    known = data.learner == "direct"
    data["skewness"], data["true_skewness"] = data.variance.where(known), data.true_variance
    figure = plots.learning_curves(data, what="skewness")
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["value", "skewness by direct"]
    assert dashed(figure.axes[1])
    with pytest.raises(rv.InputError, match=r"what = .kurtosis.: must be 'variance' or 'skewness'"):
        plots.learning_curves(data, what="kurtosis")


def test_step_sizes_at_points_cover_no_line():
    figure = drawn(FIGURES["value_error_best_step"](METHODS, 30))
    for ax in figure.axes:
        texts = [t for t in ax.texts if t.get_gid() == "point"]
        assert len(texts) == len(METHODS) * len(RATIOS)
        for line in ax.lines:
            way = ax.transData.transform(line.get_xydata())
            t = np.linspace(0, len(way) - 1, 500)
            x, y = (np.interp(t, np.arange(len(way)), way[:, i]) for i in (0, 1))
            for text in texts:
                box = text.get_window_extent().padded(-1)
                inside = (box.x0 < x) & (x < box.x1) & (box.y0 < y) & (y < box.y1)
                assert not inside.any(), text


# ---------------------------------------------------------------------- learning curves


def test_a_panel_for_the_value_and_one_for_each_learner_in_the_papers_order():
    figure = plots.learning_curves(table(METHODS))
    shown = ["value", "variance by VTD", "variance by direct", "variance by centred"]
    assert titles(figure) == shown
    assert len({ax.get_ylim() for ax in figure.axes[1:]}) == 1


def test_a_dataset_and_a_mapping_give_the_same_figure(tmp_path):
    for name, data in (("a.svg", table(METHODS)), ("b.svg", {"x": table(METHODS)})):
        plots.save(plots.learning_curves(data), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


@pytest.mark.parametrize("unit", ["step", "episode"])
def test_the_truth_is_dashed_at_its_height(unit):
    figure = plots.learning_curves(table(METHODS, unit=unit))
    assert dashed(figure.axes[0]) == [2, 4, 6, 8]
    assert all(dashed(ax) == [1, 2, 3, 4] for ax in figure.axes[1:])
    assert figure.axes[0].get_xlabel() == f"{unit}s (thousands)"
    assert not any(dashed(ax) for ax in plots.learning_curves(table(METHODS), truth=False).axes)


def test_the_mean_is_a_line_and_the_band_a_standard_deviation_to_each_side():
    data = table(["mine"])
    ax = plots.learning_curves(data).axes[1]
    np.testing.assert_array_equal(ax.lines[2].get_ydata(), data.variance[0, :, 2])
    heights = ax.collections[2].get_paths()[0].vertices[:, 1]
    assert heights.max() == pytest.approx(float((data.variance + 0.1)[0, :, 2].max()))


def test_single_runs_are_averaged_first():
    runs = [table(METHODS) + 0.1 * k for k in range(3)]
    single_runs = xarray.concat(runs, "run").drop_vars([n for n in runs[0] if n.endswith("_std")])
    single_runs = single_runs.assign(
        true_variance=runs[0].true_variance, true_value=runs[0].true_value
    )
    averaged = single_dataset(single_runs)
    np.testing.assert_allclose(averaged.variance, runs[1].variance)
    np.testing.assert_allclose(averaged.variance_std, 0.1)
    plots.learning_curves(single_runs)


def test_the_value_is_named_after_its_learner_where_learners_differ():
    data = table(["mine", "yours"])
    data["value"] = data.value * xarray.DataArray([1.0, 2.0], dims="learner")
    assert titles(plots.learning_curves(data))[0] == "value by mine"


def test_a_learner_that_blows_up_does_not_squash_the_others():
    data = table(METHODS)
    scale = xarray.DataArray([1.0, 1e6, 1.0], dims="learner")
    data["variance"] = data.variance * scale
    for given in (data, data.drop_vars(["true_value", "true_variance"])):
        ax = plots.learning_curves(given).axes[1]
        assert ax.get_ylim()[1] < 6
        assert "s0↑" in [text.get_text() for text in ax.texts]


def test_a_deep_dip_is_shown_without_squashing_the_rest():
    data = table(METHODS)
    data["variance"][1, 5] = -15.0
    figure = drawn(plots.learning_curves(data))
    ax = figure.axes[1]
    assert ax.get_ylim()[0] < -15
    at = ax.transAxes.inverted().transform(ax.transData.transform([(0, y) for y in (-15, 0, 4)]))
    assert 0 < at[0, 1] < 0.1
    assert at[2, 1] - at[1, 1] > 0.4
    assert any("compressed" in text.get_text() for text in figure.legends[0].get_texts())


def test_runs_that_diverged_leave_gaps():
    data = table(METHODS)
    data["variance"][1, 20:] = np.nan
    data["variance"][2] = np.nan
    figure = plots.learning_curves(data)
    assert [len([t for t in ax.texts if t.get_gid() == "end"]) for ax in figure.axes] == [
        4,
        4,
        4,
        0,
    ]


def test_of_many_states_the_telling_ones_are_drawn_and_the_legend_says_so():
    """The least and the greatest variance, and the state furthest from it at the end."""
    data = table(["direct", "vtd"], states=30)
    last, exact = data.variance.isel(step=-1).values, data.true_variance.values
    last[1, 17] = exact[1, 17] + 100.0
    figure = plots.learning_curves(data)
    names = [text.get_text().rstrip("↑↓") for text in figure.axes[1].texts]
    told = {f"s{k}" for k in (int(exact[0].argmin()), int(exact[0].argmax()), 17)}
    assert told <= set(names)
    assert 3 <= len(names) <= 8
    (words,) = [t.get_text() for t in figure.legends[0].get_texts() if "states" in t.get_text()]
    assert words == (
        f"{len(names)} of 30 states: least to greatest variance and the largest final error"
    )
    few = plots.learning_curves(table(["direct"], states=8)).legends[0].get_texts()
    assert not any("states" in text.get_text() for text in few)


def test_too_many_learners_are_refused():
    with pytest.raises(rv.InputError, match=r"learners = 24: at most 23 .* data\.sel"):
        plots.learning_curves(table([f"d{k}" for k in range(24)]))


def test_the_legend_names_a_single_run():
    figure = plots.learning_curves(table(METHODS, runs=1))
    assert figure.legends[0].get_texts()[0].get_text() == "one run"
    assert not figure.axes[1].collections


def test_step_sizes_are_on_one_logarithmic_scale():
    figure = plots.step_sizes(table(METHODS))
    assert titles(figure)[1:] == ["second moment (VTD)", "variance (direct)", "variance (centred)"]
    assert {ax.get_yscale() for ax in figure.axes} == {"log"}
    assert len({ax.get_ylim() for ax in figure.axes}) == 1


@pytest.mark.parametrize(
    ("plot", "field"),
    [
        (plots.step_sizes, "variance_step_size"),
        (plots.rmse_curves, "variance_rmse"),
        (plots.sensitivity, "variance_rmse"),
        (plots.step_size_ratio, "variance_window_mse"),
    ],
)
def test_variables_that_were_not_recorded_are_named(plot, field):
    with pytest.raises(rv.InputError, match=f"no {field}: record it"):
        plot(table(METHODS).drop_vars(field))


# ---------------------------------------------------------------------- sweeps


def test_a_step_of_zero_has_its_own_tick_left_of_a_break():
    figure = drawn(plots.step_size_ratio(swept(METHODS)))
    ax = figure.axes[0]
    ticks = [tick.get_text() for tick in ax.get_xticklabels()]
    assert ticks == ["0", "10⁻⁴", "10⁻²"]
    assert ax.get_xticks()[0] == pytest.approx(1e-5)
    (strokes,) = [line for line in ax.lines if line.get_gid() == "break"][:1]
    assert (strokes.get_xdata() > 1e-5).all()
    assert (strokes.get_xdata() < 1e-4).all()


def test_direct_is_solid_vtd_dashed_and_centred_dotted_in_the_colour_of_the_step():
    data = swept(METHODS)
    left, right = plots.step_size_ratio(data).axes
    curves = [line for line in left.lines if len(line.get_xdata()) == len(ALPHAS)]
    looks = [(line.get_color(), line.is_dashed()) for line in curves]
    assert looks == [(style.COLOURS[k], dash) for dash in (False, True) for k in (0, 1)]
    errors = data.variance_window_mse.sum("state").sel(learner="vtd α=0.0001 ᾱ=0.01")
    assert curves[3].get_ydata()[1] == pytest.approx(float(errors))
    assert (left.get_xscale(), left.get_yscale()) == ("log", "log")
    assert [text.get_text() for text in left.texts] == ["ᾱ = 0.001", "ᾱ = 0.01"]
    assert titles(right.figure) == ["direct and VTD", "direct and centred"]


def test_large_returns_show_both_cases_on_one_scale():
    data = returns(METHODS)
    figure = plots.large_returns(data, [0, 1, 1e6])
    left, right = figure.axes
    assert left.get_ylim() == right.get_ylim()
    (vtd,) = [x for x in left.lines if x.get_color() == style.METHODS["vtd"].colour]
    error = float(data["x/frozen/1"].variance_window_mse.sel(learner="vtd").sum())
    assert vtd.get_ydata()[1] == pytest.approx(error)


# ---------------------------------------------------------------------- errors of the value


def test_estimates_against_the_error_have_a_panel_a_state_and_the_best_step():
    data = swept(METHODS, first=RATIOS, name="error")
    data["variance_window_mse"] = data.variance_window_mse.where(data.alpha_bar == 0.01, 99.0)
    figure = plots.value_error_spread(data, RATIOS)
    assert titles(figure) == ["s0", "s1", "s2", "s3", "s4"]
    for k, ax in enumerate(figure.axes):
        assert dashed(ax) == [k + 1]
        labels = [f"vtd error={ratio:g} ᾱ=0.01" for ratio in RATIOS]
        best = data.variance_window.sel(learner=labels).isel(state=k)
        np.testing.assert_allclose(ax.lines[0].get_ydata(), best)


def test_the_best_step_is_written_at_each_point():
    data = swept(METHODS, first=RATIOS, name="error")
    data["variance_window_mse"] = data.variance_window_mse.where(data.alpha_bar == 0.01, 99.0)
    figure = plots.value_error_best_step(data.drop_vars("variance_window_mse_frozen"), RATIOS)
    (ax,) = figure.axes
    assert [t.get_text() for t in ax.texts if t.get_gid() == "point"] == ["0.01"] * 12
    assert ax.get_yscale() == "log"


# ---------------------------------------------------------------------- random walk


def test_final_estimates_are_those_of_the_last_moment_with_the_truth():
    data = table(METHODS, 30, 3)
    ax = plots.final_estimates(data).axes[0]
    np.testing.assert_array_equal(ax.lines[1].get_ydata(), data.variance.sel(learner="direct")[-1])
    np.testing.assert_array_equal(ax.lines[-1].get_ydata(), data.true_variance[0])


def test_errors_over_time_are_named_where_they_end():
    ax = plots.rmse_curves(table(METHODS)).axes[0]
    assert [text.get_text() for text in ax.texts] == ["VTD", "direct", "centred"]


def test_errors_begin_at_0_unless_some_are_a_hundred_times_others():
    data = table(METHODS)
    ax = plots.rmse_curves(data).axes[0]
    assert ax.get_yscale() == "linear"
    assert ax.get_ylim()[0] == 0.0
    assert ax.get_ylim()[1] > float(data.variance_rmse.max())
    data["variance_rmse"] = data.variance_rmse.where(
        data.learner != "vtd", 200.0 * data.variance_rmse
    )
    assert plots.rmse_curves(data).axes[0].get_yscale() == "log"


def test_divergence_is_marked_above_with_how_many_runs():
    figure = drawn(plots.sensitivity(sensitive(METHODS)))
    ax = figure.axes[0]
    texts = [text.get_text() for text in ax.texts]
    assert texts.count("× 30") == 2 * 3
    assert texts.count("× 1") == 3
    assert "× n: n of 30 runs diverged" in texts
    top = ax.get_window_extent().y1
    assert all(text.get_window_extent().y0 > top for text in ax.texts)
    whole = ax.lines[0].get_ydata()
    assert np.isnan(whole[-3:]).all()
    assert np.isfinite(whole[:-3]).all()
    calm = sensitive(METHODS).assign(diverged=0 * sensitive(METHODS).diverged)
    assert not plots.sensitivity(calm).axes[0].texts


# ---------------------------------------------------------------------- table and drawings


def test_the_table_has_published_and_measured_side_by_side_and_says_what_agrees():
    data = table(METHODS)
    figure = plots.table_1({"one": data, "two": data}, PUBLISHED)
    rows: dict[float, list[tuple[float, str]]] = {}
    for text in figure.axes[0].texts:
        rows.setdefault(round(text.get_position()[1], 3), []).append(
            (text.get_position()[0], text.get_text())
        )
    lines = [[text for _, text in sorted(row)] for row in rows.values()]
    agree = ["one", "0.10", "0.10", "0.20", "0.20", "0.30", "0.30", "0.40", "0.40", "✓"]
    assert agree in lines
    assert ["± 0.02"] * 4 in lines
    assert next(line for line in lines if line[0] == "two")[-1] == "✗"


def test_what_was_not_measured_is_left_out_of_the_table():
    data = table(["direct"]).drop_vars(["second_moment_change_total"])
    texts = [text.get_text() for text in plots.table_1({"one": data}, PUBLISHED).axes[0].texts]
    assert texts.count("–") == 2 + 4
    assert "✓" not in texts


def test_networks_have_two_two_and_three_nodes_with_all_ports():
    ax = plots.networks({}).axes[0]
    nodes = [patch for patch in ax.patches if patch.get_gid() == "node"]
    assert len(nodes) == 7
    texts = [text.get_text() for text in ax.texts]
    for port in ("reward", "discount", "features", "prediction", "TD error"):
        assert texts.count(port) == 7
    assert {"Direct", "VTD", "Centred", "M − J²"} <= set(texts)


def test_an_mdp_is_drawn_as_a_graph():
    drawing = plots.mdp({}, rv.domains.chain())
    assert len(drawing.axes[0].patches) == len(plots.draw_mdp(rv.domains.chain()).axes[0].patches)
