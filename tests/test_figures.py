"""Every figure draws and nothing overlaps or is cut off; its records are its data."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations, pairwise

import matplotlib
import numpy as np
import pytest
import xarray
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text

import retvar as rv
from retvar import plots
from retvar.plots import graph, lines, maps, panels, states, style
from retvar.plots.comparison import DEFAULTS, error_lines
from retvar.plots.estimates import Samples, bands_of, checked, deviations_of, observed_samples
from retvar.sweep import bootstrap_interval, compare
from retvar.sweep.run_errors import errors_of
from tests import figure_data as fd
from tests.figure_data import LAKE, METHODS, RATIOS, alone, grid, regions, samples, sweep, table

FIGURES = {f"{name}: {case}": make for name, case, make in fd.every_figure()}
TITLES = ("value", "std")


def drawn(figure: Figure) -> Figure:
    with matplotlib.rc_context(style.RC):
        FigureCanvasAgg(figure).draw()
    return figure


def readable(figure: Figure) -> list[Text]:
    """All that can be read in a figure."""
    found: list[Text] = [text for legend in figure.legends for text in legend.get_texts()]
    found += [text for text in (figure._suptitle, figure._supxlabel) if text]
    for ax in figure.axes:
        found += [*ax.texts, ax._left_title]
        found += [ax.title, ax.xaxis.label, ax.yaxis.label] if ax.axison else []
        bars = [(bar.yaxis, "label2") for bar in ax.child_axes]
        for axis, label in [(ax.xaxis, "label1"), (ax.yaxis, "label1")] * ax.axison + bars:
            low, high = sorted(axis.get_view_interval())
            ticks = [t for t in axis.get_major_ticks() if low <= t.get_loc() <= high]
            found += [getattr(t, label) for t in ticks if getattr(t, label).get_visible()]
    return [text for text in found if text.get_text().strip()]


def text_of(figure: Figure) -> str:
    return " ".join(" ".join(text.get_text() for text in readable(figure)).split())


def titles(figure: Figure) -> list[str]:
    return [ax.get_title(loc="left") for ax in figure.axes]


def by_gid(ax: Axes, gid: str) -> list:
    return [drawn for drawn in (*ax.lines, *ax.collections) if drawn.get_gid() == gid]


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_draws_and_nothing_overlaps_or_is_cut_off(name):
    made = FIGURES[name]()
    graph = name.startswith(("draw_mdp", "mdp", "solution", "frontier"))
    for figure in made.values() if isinstance(made, dict) else [made]:
        renderer = drawn(figure).canvas.get_renderer()
        page = figure.bbox.padded(1)
        boxes = {text: text.get_window_extent(renderer) for text in readable(figure)}
        for text, box in boxes.items():
            assert page.x0 <= box.x0 <= box.x1 <= page.x1, text
            assert page.y0 <= box.y0 <= box.y1 <= page.y1, text
        for (one, a), (other, b) in [] if graph else combinations(boxes.items(), 2):
            assert not a.padded(-1.0).overlaps(b.padded(-1.0)), (one, other)


@pytest.mark.parametrize("name", sorted({n.split(":")[0]: n for n in FIGURES}.values()))
def test_the_same_data_give_the_same_bytes(name):
    made = [FIGURES[name]() for _ in range(2)]
    one, other = (m if isinstance(m, dict) else {"": m} for m in made)
    for key, figure in one.items():
        assert style.picture(figure, ".svg", 72) == style.picture(other[key], ".svg", 72)


def test_figures_leave_the_settings_of_matplotlib_and_the_data_alone():
    before, data = dict(matplotlib.rcParams), grid(cells=LAKE)
    copy = data.copy(deep=True)
    plots.estimate_figures(data)
    assert dict(matplotlib.rcParams) == before
    xarray.testing.assert_identical(data, copy)


@pytest.mark.parametrize(
    ("name", "data", "field"),
    [
        ("learning_curves", {}, "data"),
        ("learning_curves", table([f"d{k}" for k in range(24)]), "learners"),
        ("step_sizes", table(METHODS).drop_vars("variance_step_size"), "data"),
        ("rmse_curves", table(METHODS).drop_vars("variance_rmse"), "data"),
        ("sensitivity", table(METHODS).drop_vars("variance_rmse"), "data"),
        ("sensitivity", table(METHODS), "data.alpha_bar"),
        ("sensitivity", table(["mine"]), "learners"),
        ("step_size_ratio", table(METHODS).drop_vars("variance_window_mse"), "data"),
        ("estimate_maps", fd.states(), "data"),
        ("estimate_maps", {}, "data"),
        ("estimate_maps", grid().assign_attrs(grid_rows=3), "grid"),
        ("estimate_states", fd.states(4).rename(state="place"), "data"),
        ("estimate_heat_maps", regions().drop_vars("std_map"), "data"),
        ("observed_returns", regions().drop_vars("predicted"), "data"),
        ("check", regions().drop_vars("check_std"), "data"),
        ("solution", 1, "solution"),
        ("frontier", 1, "found"),
        ("draw_mdp", 1, "mdp"),
        ("step_contours", 1, "best"),
    ],
)
def test_other_data_are_refused_by_name(name, data, field):
    with pytest.raises(rv.InputError) as error:
        getattr(plots, name)(data)
    assert error.value.field == field


def arranged(mdp, policy=None):
    content = graph.graph_content(mdp, policy)
    return content, graph.arrange(content, mdp.positions)


@pytest.mark.parametrize("name", fd.DRAWN)
def test_arrows_are_apart_and_labels_overlap_neither_each_other_nor_nodes(name):
    """Arrows between the same two nodes, also in opposite directions, have distant middles."""
    content, found = arranged(fd.DRAWN[name]())
    for (a, one), (b, other) in combinations(zip(content.arrows, found.curves, strict=True), 2):
        if {a.source, a.target} == {b.source, b.target}:
            assert np.abs(one[20] - other).min() > 0.1  # inches
    assert len(found.curves) == len(content.arrows) >= 1
    named = [k for k, arrow in enumerate(content.arrows) if arrow.text]
    for i, j in combinations(named, 2):
        away, half = found.labels[i] - found.labels[j], found.half[i] + found.half[j]
        assert abs(away.real) > half.real or abs(away.imag) > half.imag
    for k in named:
        away, half = found.labels[k] - found.nodes.centre, found.half[k]
        x, y = (np.abs(away.real) - half.real, np.abs(away.imag) - half.imag)
        assert np.all(np.hypot(np.maximum(x, 0), np.maximum(y, 0)) > found.nodes.radius)


def test_labels_give_probabilities_of_all_policies_and_rewards_with_a_real_minus():
    mdp = rv.domains.complex_mdp()
    texts = [arrow.text for arrow in graph.graph_content(mdp).arrows]
    assert "μ 0.2  π 0.4\nr = −1" in texts
    edges = sorted(edge for arrow in graph.graph_content(mdp).arrows for edge in arrow.edges)
    assert edges == list(range(mdp.edges.state.size))
    only = [arrow for arrow in graph.graph_content(mdp, "pi").arrows if arrow.edges]
    assert "0.4\nr = −1" in [arrow.text for arrow in only]
    assert len(only) == np.sum(mdp.policy("pi").probabilities > 0) == 13


@pytest.mark.parametrize("states", [31, 600])
def test_many_states_are_a_matrix_of_their_probabilities(states):
    mdp = rv.domains.random_walk(states)
    cells, ends = maps.moves_of(mdp)
    np.testing.assert_allclose(cells.sum(axis=1) + ends, 1.0)
    if states == 31:
        expected = np.diag(np.full(states - 1, 0.7), 1) + np.diag(np.full(states - 1, 0.3), -1)
        expected[0, 0] = 0.3
        np.testing.assert_allclose(cells[:-1], expected[:-1])
    else:
        np.testing.assert_allclose(cells[50, [49, 50, 51]], [0.1, 2 / 3, 0.7 / 3])
    words = plots.draw_mdp(mdp).axes[0].get_title(loc="left")
    assert words.startswith(f"{states} states, so a matrix")
    assert words.endswith("a cell stands for 3 states") == (states == 600)


def test_solutions_are_maps_of_a_grid_or_dots_with_bars():
    solution = rv.solve(fd.DRAWN["lake"]())
    figure = plots.solution(solution)
    assert titles(figure) == ["value", "standard deviation"]
    for ax, field in zip(figure.axes, (solution.value, solution.std), strict=True):
        shown = np.asarray(ax.collections[0].get_array()).reshape(4, 4)
        np.testing.assert_array_equal(np.flipud(shown).ravel(), field)
        assert len(ax.texts) == 16
    solution = rv.solve(rv.domains.complex_mdp())
    ax = drawn(plots.solution(solution)).axes[0]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == list(solution.mdp.state_names)
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), solution.value)
    one = ax.collections[0].get_segments()
    np.testing.assert_allclose([s[1, 1] - s[0, 1] for s in one], 2 * solution.std)


def test_an_infinite_standard_deviation_is_drawn_as_such():
    """A loop whose ratios grow, beside a state that ends; in a row and on a grid."""
    edges = [(s, a, s, 1.0, 1.0 - a) for s in (0, 1) for a in (0, 1)]
    edges += [(s, a, "end", 1.0, 1.0 + a) for s in (2, 3) for a in (0, 1)]
    policies = {"pi": np.tile([0.9, 0.1], (4, 1)), "mu": np.full((4, 2), 0.5)}
    mdp = rv.MDP.from_edges(edges, gamma=0.95, policies=policies)
    figure = plots.solution(rv.solve(mdp, "pi", "mu", "off_policy_return", order=3))
    ring = next(line for line in figure.axes[0].lines if line.get_label() == "std infinite")
    assert ring.get_xdata().tolist() == [0, 1]
    places = mdp.replace(positions=[[0, 0], [1, 0], [0, 1], [1, 1]])
    figure = plots.solution(rv.solve(places, "pi", "mu", "off_policy_return"))
    assert [text.get_text() for text in figure.axes[1].texts][:2] == ["∞", "∞"]


def test_figures_of_two_steps_work_after_grid():
    """Labels are those of files: they begin with the name of the method."""
    learners = rv.grid(rv.Direct, rv.VTD, alpha=[0.01, 0.1], alpha_bar=[0.01, 0.1], lam=[0.0, 0.9])
    record = rv.Record(at=[50, 100], window=50, rmse=True)
    data = rv.simulate(rv.domains.complex_mdp(), learners, steps=100, runs=2, seed=0, record=record)
    own = data.isel(learner=(data.algorithm == "Direct").values)
    errors = lines.errors_by_steps(data, "direct")
    for alpha in (0.01, 0.1):
        cell = own.isel(learner=((own.alpha == alpha) & (own.alpha_bar == 0.1)).values)
        least = float(cell.variance_window_mse.sum("state").min())
        assert float(errors.sel(alpha=alpha, alpha_bar=0.1)) == least
    steps, found, _, _ = lines.by_step(data, "vtd")
    assert steps.tolist() == [0.01, 0.1]
    last = data.variance_rmse.isel(step=-1, learner=(data.algorithm == "VTD").values)
    assert found[0] == float(last.isel(learner=(last.alpha_bar == 0.01).values).min())
    capitals = data.assign_coords(learner=[str(x).capitalize() for x in data.learner.values])
    for one in (data, capitals):
        assert plots.sensitivity(one).axes[0].get_xscale() == "log"
        assert titles(plots.step_size_ratio(one)) == ["direct and VTD"]


def test_single_runs_become_their_mean_std_and_count_of_divergence():
    mean = table(METHODS).drop_vars(["variance_std", "diverged"])
    shifts = xarray.DataArray([-1.0, 0.0, 1.0], dims="run")
    runs = mean.assign(
        variance=mean.variance + shifts, diverged=(shifts > 0) & (mean.learner != "")
    )
    found = lines.single_dataset({"a": runs})
    np.testing.assert_allclose(found.variance, mean.variance.transpose(*found.variance.dims))
    np.testing.assert_allclose(found.variance_std, 1.0)
    assert found.diverged.values.tolist() == [1, 1, 1]
    assert found.true_value.equals(mean.true_value)


def test_methods_differ_in_colour_marker_and_dash_and_others_have_a_style():
    for one, other in combinations(style.METHODS.values(), 2):
        assert one.colour != other.colour
        assert one.marker != other.marker
        assert one.dash != other.dash
    assert style.learner_style("mine", 1) == style.line_style(1, dashed=True)
    greys = [np.dot(to_rgb(colour), [0.299, 0.587, 0.114]) for colour in style.COLOURS[:5]]
    assert np.abs(np.diff(greys)).min() > 0.07


def test_panels_hold_the_mean_a_band_of_one_standard_deviation_and_the_truth():
    data = table(["mine"], unit="episode")
    panel = lines.state_panel("x", data.isel(learner=0), "variance")
    assert [line.end for line in panel.lines] == ["s0", "s1", "s2", "s3"]
    line, exact = panel.lines[2], data.variance.values[0, :, 2]
    np.testing.assert_array_equal(line.y, exact)
    np.testing.assert_allclose(line.band, [exact - 0.1, exact + 0.1])
    figure = plots.learning_curves(data)
    assert figure.axes[0].get_xlabel() == "episodes (thousands)"
    heights = [x.get_ydata()[0] for x in figure.axes[1].lines if x.get_color() == style.INK]
    assert heights == [1, 2, 3, 4]


def test_a_learner_that_blows_up_does_not_squash_the_others():
    data = table(METHODS)
    data["variance"] = data.variance * xarray.DataArray([1.0, 1e6, 1.0], dims="learner")
    for other in (data, data.drop_vars(["true_value", "true_variance"])):
        ax = plots.learning_curves(other).axes[1]
        assert ax.get_ylim()[1] < 6
        assert "s0↑" in [text.get_text() for text in ax.texts]


def test_a_deep_dip_does_not_squash_the_rest():
    data = table(METHODS)
    data["variance"][1, 5] = -15.0
    low, high = plots.learning_curves(data).axes[1].get_ylim()
    assert low == -2 * high
    assert 4 < high < 6


def test_of_many_states_the_telling_ones_are_drawn_and_the_legend_says_so():
    """The least and the greatest variance, and the state furthest from it at the end."""
    data = table(["direct", "vtd"], states=30)
    last, exact = data.variance.isel(step=-1).values, data.true_variance.values
    last[1, 17] = exact[1, 17] + 100.0
    figure = plots.learning_curves(data)
    names = [text.get_text().rstrip("↑↓") for text in figure.axes[1].texts]
    assert {"s0", "s29", "s17"} <= set(names)
    assert 3 <= len(names) <= 8
    words = "of 30 states: least to greatest variance and the largest final error"
    assert f"{len(names)} {words}" in text_of(figure)


def test_direct_is_solid_vtd_dashed_and_centred_dotted_in_the_colour_of_the_step():
    data = fd.swept(METHODS)
    left, right = plots.step_size_ratio(data).axes
    curves = [line for line in left.lines if len(line.get_xdata()) == len(fd.ALPHAS)]
    looks = [(line.get_color(), line.is_dashed()) for line in curves]
    assert looks == [(style.COLOURS[k], dash) for dash in (False, True) for k in (0, 1)]
    errors = data.variance_window_mse.sum("state").sel(learner="vtd α=0.0001 ᾱ=0.01")
    assert curves[3].get_ydata()[1] == pytest.approx(float(errors))
    assert left.get_yscale() == "log"
    assert [text.get_text() for text in left.texts] == ["ᾱ = 0.001", "ᾱ = 0.01"]
    assert titles(right.figure) == ["direct and VTD", "direct and centred"]


def test_errors_of_the_value_have_the_best_step_of_each_state():
    data = fd.swept(METHODS, first=RATIOS, name="error")
    data["variance_window_mse"] = data.variance_window_mse.where(data.alpha_bar == 0.01, 99.0)
    best = lines.best_per_state(data, "vtd")
    labels = [f"vtd error={ratio:g} ᾱ=0.01" for ratio in RATIOS]
    np.testing.assert_allclose(best["mean"].T, data.variance_window.sel(learner=labels))
    assert (best.step == 0.01).all()
    least = lines.least_error(data, "vtd")
    assert least.ratio.values.tolist() == RATIOS
    assert least.alpha_bar.values.tolist() == [0.01] * 4
    np.testing.assert_allclose(least, data.variance_window_mse.sel(learner=labels).sum("state"))
    assert titles(plots.value_error_spread(data, RATIOS)) == ["s0", "s1", "s2", "s3", "s4"]


def test_divergence_is_marked_above_with_how_many_runs():
    ax = plots.sensitivity(fd.sensitive(METHODS)).axes[0]
    texts = [text.get_text() for text in ax.texts]
    assert (texts.count("× 30"), texts.count("× 1")) == (2 * 3, 3)
    assert [texts.count(name) for name in ("direct", "VTD", "centred")] == [1, 1, 1]
    assert "× n: n of 30 runs diverged" in text_of(ax.figure)
    assert np.isnan(ax.lines[0].get_ydata()).tolist() == [False] * 4 + [True] * 3
    calm = fd.sensitive(METHODS).assign(diverged=0 * fd.sensitive(METHODS).diverged)
    assert not plots.sensitivity(calm).axes[0].texts


def direct_line(data, **how):
    errors = errors_of(data, replace(DEFAULTS, **how))
    (found,) = error_lines(errors, "alpha", "algorithm")[0].values()
    return found["Direct"]


def test_curves_are_the_errors_at_the_best_of_the_other_settings():
    """One domain: the interquartile mean of the judging runs, at the ᾱ that the others chose."""
    data = sweep(domains=1, lambdas=[0.5])
    errors = np.log(data.variance_rmse.values[0, :49, 0].reshape(7, 7, 8))
    for k, height in enumerate(direct_line(data).y):
        middle = np.sort(errors[k, :, ::2], axis=-1)[:, 1:-1].mean(axis=-1)
        judged = np.sort(errors[k, np.argmin(middle), 1::2])[1:-1].mean()
        assert height == pytest.approx(np.exp(judged))
    assert plots.sensitivity_curves(data).axes[0].get_ylabel() == "variance RMSE"


def test_bands_are_intervals_over_runs():
    data = sweep(domains=1, lambdas=[0.5], second=[0.1])
    found = direct_line(data, resamples=400)
    expected = bootstrap_interval(np.log(data.variance_rmse.values[0, :7, 0]), resamples=400)
    np.testing.assert_allclose(found.band, np.exp([expected.low, expected.high]))


def test_runs_that_diverged_are_marked_and_leave_gaps():
    data = sweep(domains=2)
    data = fd.broken(data, (data.alpha > 0.5) & (data.algorithm == "VTD") & (data.run < 8))
    figure = plots.sensitivity_curves(data)
    assert [(text.get_text(), text.xy[0]) for text in figure.axes[0].texts] == [
        ("VTD", 0),
        ("×", 1),
    ]
    vtd = [line for line in figure.axes[0].lines if len(line.get_xdata()) == 7][1]
    assert np.isnan(vtd.get_ydata()).tolist() == [False] * 6 + [True]
    assert "runs diverged" in text_of(figure)


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([0.05, 0.1, 0.2], "0.05 0.1 0.2"),
        ([0.0354, 0.0707, 0.1414, 0.2828, 0.5657], "0.05 0.1 0.2 0.5"),
        ([0.9991, 0.9992, 0.9995], "0.9991 0.9992 0.9995"),
        ([1e-6, 1e-4, 1e-2], "10⁻⁶ 10⁻⁴ 10⁻²"),
        ([0.0, 0.25, 0.5], "0 0.25 0.5"),
        ([2.0, 2.5], "2 2.5"),
    ],
)
def test_ticks_are_short_and_distinct(values, labels):
    ticks = panels.axis_ticks(values, panels.spaced_by_factors(values))
    assert " ".join(panels.tick_labels(ticks)) == labels


def test_points_are_the_ratios_of_the_comparison_in_the_colour_of_the_winner():
    found = compare(sweep(domains=12, runs=12, lambdas=[0.0, 1.0], second=[0.1]))
    for k, ax in enumerate(plots.comparison(found).axes[:3]):
        ratios = found.data.ratio.sel(settings="best", domain="all").isel(pair=k).values
        np.testing.assert_allclose([p.get_xdata()[0] for p in by_gid(ax, "ratio")], ratios)
        if k != 1:
            winner = style.METHODS["direct" if k == 0 else "centred"]
            assert ax.lines[-1].get_color() == winner.colour


@pytest.mark.parametrize("reach", [1.0, 1.1, 1.25, 1.45, 1.6, 1.75, 1.9, 2.4, 4.0, 9.0, 25.0, 1e9])
def test_ratios_have_a_scale_on_both_sides_of_one(reach):
    """At least three ticks, whatever the range; their labels apart from each other."""
    figure = drawn(plots.comparison(fd.ratios(reach), resamples=100))
    renderer = figure.canvas.get_renderer()
    for ax in figure.axes:
        low, high = ax.get_xlim()
        ticks = ax.get_xticks()
        assert low <= ticks[0] < 1 < ticks[-1] <= high
        assert 1 in ticks
        boxes = [text.get_window_extent(renderer) for text in ax.get_xticklabels()]
        assert [text.get_text() for text in ax.get_xticklabels()] == [f"{t:g}" for t in ticks]
        assert all(a.x1 + 3 < b.x0 for a, b in pairwise(boxes))


@pytest.mark.parametrize(
    ("name", "first"),
    [("lake", "map"), ("two numbers", "heat_map"), ("five states", "states")],
)
def test_the_figures_suit_the_dataset(name, first):
    """A map of a grid world, a heat map of two numbers, otherwise states; then what data allow."""
    data = fd.ODD[name]()
    assert list(plots.estimate_figures(data)) == [first, "observed", "calibration", "check"]
    assert list(plots.estimate_figures(data.drop_dims("sample"))) == [first, "check"]
    assert list(plots.estimate_figures(alone(data))) == [first]


def test_colours_are_even_in_grey_and_numbers_stand_out_from_them():
    for name, colours in maps.COLOUR_MAPS.items():
        grey = colours(np.linspace(0, 1, 200))[:, :3] @ [0.299, 0.587, 0.114]
        steps = np.diff(grey) * (1 if name == "value" else -1)
        assert steps.min() > -1e-3, name
        assert steps.sum() > 0.6, name
    for ax in plots.estimate_maps(grid(8, 8)).axes[:2]:
        image = ax.collections[0]
        cells = image.get_array().reshape(8, 8)
        for text in (text for text in ax.texts if text.get_text()):
            x, y = (round(z) for z in text.get_position())
            shade = np.array(image.cmap(image.norm(cells[y, x]))[:3])
            light = [
                0.05 + np.power(c, 2.2) @ maps.LUMINANCE for c in (shade, to_rgb(text.get_color()))
            ]
            assert max(light) / min(light) > 3.4  # the contrast of accessibility guidelines


def read(text: str) -> tuple[float, float]:
    """A number as written, and how far it may be from what is meant."""
    plain = text.replace("−", "-").lstrip("±")
    mantissa, _, power = plain.partition("e")
    decimals = len(mantissa.partition(".")[2])
    return float(plain), 0.5000001 * 10.0 ** (int(power or 0) - decimals)


@pytest.mark.parametrize("shape", [(4, 4), (4, 12), (9, 2)])
@pytest.mark.parametrize("scale", [1.0, 0.01, -300.0])
def test_the_numbers_in_a_map_are_those_of_the_dataset(shape, scale):
    """Each stands in its own cell, right to its last digit; cells never visited are hatched."""
    data = grid(*shape, scale=scale)
    visited = data.visits.values > 0
    for name in TITLES:
        _, one = maps.state_map(data, name)
        np.testing.assert_array_equal(one.table.ravel(), data[name].values)
        np.testing.assert_array_equal(one.hatched.ravel(), ~visited)
        halves = (data[f"{name}_high"] - data[f"{name}_low"]).values / 2
        for k, (text, small) in enumerate(zip(one.texts, one.below, strict=True)):
            assert bool(text) == bool(small) == visited[k]
            for written, meant in ((text, data[name].values[k]), (small, halves[k])):
                if written:
                    value, slack = read(written)
                    assert abs(value - meant) <= slack
                    assert value != 0 or meant == 0


def test_a_map_says_what_hatches_and_question_marks_are():
    data = fd.below(grid(cells=LAKE))
    _, one = maps.state_map(data, "std")
    assert [k for k, text in enumerate(one.texts) if text == "?"] == [2]
    assert not one.hatched[0, 2]
    text = text_of(plots.estimate_maps(data))
    assert "?: the variance was estimated below zero" in text
    assert "hatched: no step was taken from here" in text
    assert "hatched" not in text_of(plots.estimate_maps(grid(unvisited=())))
    for figure in (plots.estimate_maps(data), plots.estimate_heat_maps(regions())):
        assert figure._suptitle.get_text().startswith("Some-v1, random policy, γ = 0.9: what")


@settings(max_examples=8)
@given(
    values=st.lists(
        st.floats(-1e150, 1e150) | st.just(math.nan) | st.just(0.0), min_size=6, max_size=6
    ),
    half=st.floats(0, 1e150),
)
def test_any_numbers_can_be_drawn_as_a_map_and_as_states(values, half):
    """Warnings are errors here: no overflow, no empty range, no ticks on top of each other."""
    visits = np.isfinite(values).astype(int)
    data = xarray.Dataset(
        fd.estimates("state", values, np.abs(values), np.full(6, half), visits),
        attrs={"grid_rows": 2, "grid_columns": 3},
    )
    drawn(plots.estimate_maps(data))
    drawn(plots.estimate_states(data))


def test_the_sixty_states_most_visited_are_drawn_with_value_interval_and_band():
    data = fd.states(300)
    rows = states.state_rows(data)
    visits = data.visits.values.tolist()
    chosen = sorted(sorted(range(300), key=lambda k: -visits[k])[:60])
    assert rows.labels == [f"s{k}" for k in chosen]
    columns = {"value": rows.value, "std": rows.std, "value_low": rows.low, "value_high": rows.high}
    for name, found in columns.items():
        np.testing.assert_array_equal(found, data[name].values[chosen])
    figure = plots.estimate_states(data)
    assert "the 60 most visited of 295 states" in text_of(figure)
    counts = [t.get_text() for t in figure.axes[0].texts]
    assert counts[:60] == [f"{visits[k]:,}" for k in chosen]


def test_figures_of_costs_speak_of_costs():
    data = fd.states(4).assign_attrs(reward="charge")
    for figure in (plots.estimate_states(data), plots.observed_returns(xarray.Dataset(
        samples(500), attrs={"reward": "charge"}
    ))):  # fmt: skip
        assert "cost" in text_of(figure)
        assert "return" not in text_of(figure)


@pytest.mark.parametrize("wrong", [0.3, 1.0])
def test_shares_are_those_of_the_data_and_the_title_says_so(wrong):
    data = xarray.Dataset(samples(2000, wrong=wrong))
    data["predicted_std"][:7] = np.nan
    data["predicted"][5:9] = np.nan
    rows = zip(data.observed.values, data.predicted.values, data.predicted_std.values, strict=True)
    rows = [row for row in rows if all(math.isfinite(x) for x in row)]
    found = observed_samples(data)
    for k in (0.5, 1.0, 2.0, 3.5):
        assert found.within(k).sum() == sum(abs(o - p) <= k * s for o, p, s in rows)
    inside = found.within(2)
    share = f"{inside.sum():,} of 1,991 observed returns ({100 * inside.mean():.1f}%)"
    left_out = "9 left out: no valid prediction"
    text = text_of(plots.observed_returns(data))
    assert f"{share} lie within 2 std of what was predicted ({left_out})" in text
    text = text_of(plots.calibration(data))
    assert left_out in text
    assert "for reference only: returns need not be normal" in text


def test_groups_of_equal_predictions_have_their_own_band_and_mean():
    """Three states: three steps of mean ± std, and the means of observed returns."""
    state = np.repeat([2, 0, 1], 20)
    predicted, std = np.array([1.0, 2.0, 4.0])[state], np.array([0.5, 0.0, 1.0])[state]
    observed = predicted + std * np.tile([-1.0, 2.0], 30)
    found = bands_of(Samples(observed, predicted, std))
    assert found.edges.tolist() == [0, 20, 40, 60]
    assert found.mean.tolist() == [1, 2, 4]
    assert found.std.tolist() == [0.5, 0, 1]
    np.testing.assert_allclose(found.observed, [1.25, 2, 4.5])


@pytest.mark.parametrize("wrong", [1.0, 0.5])
def test_right_predictions_lie_on_the_diagonal_and_wrong_ones_do_not(wrong):
    """A std that is half the true one puts every group at twice its prediction."""
    data = xarray.Dataset(samples(20_000, wrong=wrong))
    x, y, error = deviations_of(observed_samples(data))
    assert len(x) == 10
    np.testing.assert_allclose(y / x, 1 / wrong, rtol=0.06)
    assert np.sum(np.abs(y - x / wrong) <= 2 * error) >= 8


def test_the_check_sets_monte_carlo_against_the_estimates():
    data = grid()
    data["check_mean"][0] = np.nan
    keep = np.flatnonzero(np.isfinite(data.check_mean.values) & (data.visits.values > 0))
    for name, found, factor in (("value", "check_mean", 5), ("std", "check_std", math.sqrt(48))):
        one = checked(data, name)
        names = {name: one.estimate, f"{name}_low": one.low, f"{name}_high": one.high}
        for column, numbers in {**names, found: one.found}.items():
            np.testing.assert_array_equal(numbers, data[column].values[keep])
        np.testing.assert_allclose(one.error, data.check_std.values[keep] / factor)
    assert f"Monte Carlo, {keep.size} states" in text_of(plots.check(data))
