"""Figures of sweeps: what they show, that nothing overlaps, and that odd data can be drawn."""

from __future__ import annotations

from itertools import combinations, pairwise, product

import numpy as np
import pytest
import xarray

import retvar as rv
from retvar import plots
from retvar.plots.style import METHODS as STYLES
from retvar.plots.sweep_errors import axis_ticks, spaced_by_factors
from retvar.sweep import Sweep
from retvar.sweep.comparison import compare
from tests.test_examples import EXAMPLES
from tests.test_experiment_plots import drawn, titles, written

METHODS = ("Direct", "VTD", "Centred")
STEPS = np.logspace(-3, 0, 7).tolist()
LAMBDAS = [0.0, 0.5, 0.9, 1.0]


def swept(methods=METHODS, domains=3, runs=8, lambdas=LAMBDAS, first=STEPS, second=STEPS):
    """Errors that are least where both steps are 0.1, all else equal; VTD twice as large."""
    rows = list(product(methods, first, second, lambdas))
    random = np.random.default_rng(0)
    level = [
        (1 + (m == "VTD")) * np.exp(np.log10(a / 0.1) ** 2 + np.log10(b / 0.1) ** 2)
        for m, a, b, _ in rows
    ]
    noise = random.lognormal(0, 0.02, (domains, len(rows), 1, runs))
    scale = random.uniform(1, 9, (domains, 1, 1, 1))
    names, columns = ("algorithm", "alpha", "alpha_bar", "lam"), zip(*rows, strict=True)
    settings = dict(zip(names, columns, strict=True))
    coords = {name: ("learner", list(column)) for name, column in settings.items()}
    labels = {
        "domain": [f"d{k}" for k in range(domains)],
        "learner": [" ".join(map(str, row)) for row in rows],
        "step": [1000],
    }
    errors = ("domain", "learner", "step", "run"), np.array(level)[:, None, None] * noise * scale
    died = ("domain", "learner", "run"), np.zeros((domains, len(rows), runs), dtype=bool)
    return xarray.Dataset({"variance_rmse": errors, "diverged": died}, labels | coords)


def broken(data, which):
    """The same, with runs that diverged."""
    at = data.variance_rmse.where(~which)
    return data.assign(variance_rmse=at, diverged=data.diverged | which)


SHOWN = {
    "whole": {},
    "one domain": {"domains": 1},
    "many domains": {"domains": 12, "second": STEPS[::3]},
    "one method": {"methods": ("VTD",)},
    "one λ": {"lambdas": [0.9]},
    "few steps": {"first": [0.1, 0.2], "second": [0.1]},
    "evenly spaced": {"first": [0.1, 0.2, 0.3, 0.4], "second": [0.1]},
}
FIGURES = {
    "curves": plots.sensitivity_curves,
    "maps": lambda data: plots.sweep_heat_map(data),
    "steps": lambda data: plots.sweep_heat_map(data, y="alpha_bar"),
    "comparison": plots.comparison,
}


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("shown", SHOWN)
def test_nothing_overlaps_or_is_cut_off_whatever_is_missing(name, shown):
    data = swept(**SHOWN[shown])
    refused = {"maps": ["one λ"], "steps": ["few steps", "evenly spaced"]}
    if shown in refused.get(name, []) or (name, shown) == ("comparison", "one method"):
        with pytest.raises(rv.InputError, match=r"must be a setting that was varied|nothing to"):
            FIGURES[name](data)
        return
    figure = drawn(FIGURES[name](data))
    renderer, page = figure.canvas.get_renderer(), figure.bbox.padded(1)
    boxes = {text: text.get_window_extent(renderer) for text in written(figure)}
    for text, box in boxes.items():
        assert page.x0 <= box.x0 <= box.x1 <= page.x1, text
        assert page.y0 <= box.y0 <= box.y1 <= page.y1, text
    for (one, a), (other, b) in combinations(boxes.items(), 2):
        assert not a.padded(-0.5).overlaps(b.padded(-0.5)), (one, other)


@pytest.mark.parametrize("name", FIGURES)
def test_the_same_data_give_the_same_bytes(name, tmp_path):
    for file in ("a.svg", "b.svg"):
        plots.save(FIGURES[name](swept(lambdas=[0.0, 1.0], second=STEPS[::3])), tmp_path / file)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


# ---------------------------------------------------------------------- curves


def test_a_panel_for_each_question_and_a_ring_at_the_best_setting():
    figure = plots.sensitivity_curves(swept())
    assert titles(figure) == ["λ = 0", "λ = 0.5", "λ = 0.9", "λ = 1"]
    for ax in figure.axes:
        rings = [line for line in ax.lines if line.get_gid() == "best"]
        assert [ring.get_xdata()[0] for ring in rings] == pytest.approx([0.1] * 3)
        assert ax.get_xscale() == ax.get_yscale() == "log"


def test_curves_are_the_errors_at_the_best_of_the_other_settings():
    """One domain: the interquartile mean of the judging runs, at the ᾱ that the others chose."""
    data = swept(domains=1, lambdas=[0.5])
    ax = plots.sensitivity_curves(data).axes[0]
    curve = next(line for line in ax.lines if len(line.get_xdata()) == len(STEPS))
    errors = data.variance_rmse.values[0, : len(STEPS) ** 2, 0].reshape(7, 7, 8)
    for k, height in enumerate(curve.get_ydata()):
        middle = np.sort(np.log(errors[k, :, ::2]), axis=-1)[:, 1:-1].mean(axis=-1)
        judged = np.sort(np.log(errors[k, np.argmin(middle), 1::2]))[1:-1].mean()
        assert height == pytest.approx(np.exp(judged))
    assert ax.get_ylabel() == "variance RMSE"


def test_settings_that_no_learner_has_are_in_no_title():
    data = swept(domains=1, lambdas=[0.5], second=[0.1])
    own = data.assign_coords(lam=("learner", np.full(21, np.nan)))
    assert titles(plots.sensitivity_curves(own)) == [""]
    some = data.assign_coords(
        lam=("learner", np.tile([np.nan, 0.5, 0.9997, 1.0, 0.1, 0.2, 0.3], 3))
    )
    found = titles(plots.sensitivity_curves(some.sel(learner=some.alpha > 0), x="alpha"))
    assert found[:4] == ["λ = the domain's", "λ = 0.5", "λ = 0.9997", "λ = 1"]


def test_bands_are_intervals_over_runs():
    data = swept(domains=1, lambdas=[0.5], second=[0.1])
    ax = plots.sensitivity_curves(data, resamples=400).axes[0]
    heights = ax.collections[0].get_paths()[0].vertices[:, 1]
    errors = np.log(data.variance_rmse.values[0, :7, 0])
    found = rv.sweep.statistics.bootstrap_interval(errors, resamples=400)
    assert heights.max() == pytest.approx(np.exp(found.high.max()))
    assert heights.min() == pytest.approx(np.exp(found.low.min()))


def test_settings_in_where_are_fixed():
    data = swept(domains=1, lambdas=[0.5])
    best, poor = (
        plots.sensitivity_curves(data, where={"alpha_bar": value}).axes[0].lines[0].get_ydata()
        for value in (0.1, 1.0)
    )
    np.testing.assert_allclose(poor / best, np.e, rtol=0.05)
    with pytest.raises(rv.InputError, match=r"where\['alpha_bar'\] = 7: is not in the data"):
        plots.sensitivity_curves(data, where={"alpha_bar": 7})


def test_errors_of_several_domains_are_multiples_of_their_best():
    ax = plots.sensitivity_curves(swept(domains=3)).axes[0]
    assert ax.get_ylabel() == "variance RMSE,\ntimes the best of each domain"
    assert min(ax.lines[0].get_ydata()) == pytest.approx(1.0, abs=0.05)


def test_evenly_spaced_settings_have_a_linear_axis():
    data = swept(first=[0.1, 0.2, 0.3, 0.4], second=[0.1])
    assert plots.sensitivity_curves(data).axes[0].get_xscale() == "linear"


def test_runs_that_diverged_have_crosses_and_gaps():
    data = swept(domains=2)
    data = broken(data, (data.alpha > 0.5) & (data.algorithm == "VTD") & (data.run < 8))
    figure = plots.sensitivity_curves(data)
    crosses = [line for line in figure.axes[0].lines if line.get_gid() == "diverged"]
    assert [line.get_xdata().tolist() for line in crosses] == [[1.0]]
    vtd = [line for line in figure.axes[0].lines if len(line.get_xdata()) == 7][1]
    assert np.isnan(vtd.get_ydata()).tolist() == [False] * 6 + [True]
    assert "runs diverged" in [text.get_text() for text in figure.legends[0].get_texts()]


# ---------------------------------------------------------------------- maps


def test_maps_share_a_scale_and_the_best_cell_has_a_star():
    figure = plots.sweep_heat_map(swept(lambdas=[0.5]), y="alpha_bar")
    maps = figure.axes[:3]
    assert titles(figure)[:3] == ["direct", "VTD", "centred"]
    assert len({ax.collections[0].norm.vmin for ax in maps}) == 1
    for ax in maps:
        stars = [line for line in ax.lines if line.get_gid() == "best"]
        assert [(x.get_xdata()[0], x.get_ydata()[0]) for x in stars] == [(4, 4)]
    cells = [np.asarray(ax.collections[0].get_array()) for ax in maps]
    np.testing.assert_allclose(cells[1] / cells[0], 2.0, rtol=0.05)


def test_every_lambda_has_a_best_of_its_own():
    figure = plots.sweep_heat_map(swept(second=STEPS[::3]))
    for ax in figure.axes[:3]:
        stars = [line.get_ydata()[0] for line in ax.lines if line.get_gid() == "best"]
        assert stars == [0, 1, 2, 3]
    rows = plots.sweep_heat_map(swept(lambdas=[0.0, 1.0]), y="alpha_bar")
    assert titles(rows)[:6] == [
        f"{m}, λ = {x}" for x in (0, 1) for m in ("direct", "VTD", "centred")
    ]


def test_cells_that_diverged_are_hatched():
    data = swept(lambdas=[0.5])
    figure = plots.sweep_heat_map(broken(data, (data.alpha > 0.5) & (data.run < 8)), y="alpha_bar")
    for ax in figure.axes[:3]:
        hatched = [patch for patch in ax.patches if patch.get_gid() == "diverged"]
        assert len(hatched) == 7
        assert {patch.get_x() for patch in hatched} == {5.5}
    assert "hatched" in figure.get_supxlabel()
    assert "hatched" not in plots.sweep_heat_map(data, y="alpha_bar").get_supxlabel()


def outlined(ax):
    """Which cells are within the outline: an odd number of its edges is left of them."""
    lines = [one for one in ax.collections if one.get_gid() == "contenders"]
    edges = [edge for edge in lines[-1].get_segments() if edge[0][0] == edge[1][0]]
    shape = np.asarray(ax.collections[0].get_array()).shape
    found = np.zeros(shape, dtype=bool)
    for row, column in np.ndindex(shape):
        crossed = [x for (x, a), (_, b) in edges if x < column and min(a, b) < row < max(a, b)]
        found[row, column] = len(crossed) % 2
    return found


@pytest.mark.parametrize("domains", [1, 3, 12])
@pytest.mark.parametrize("split", [False, True])
def test_cells_that_may_be_the_best_are_outlined(domains, split):
    """Six cells err alike in every run, the others half as much again: the six are outlined."""
    data = swept(methods=("Direct",), lambdas=[0.5], domains=domains)
    inside = np.zeros((7, 7), dtype=bool)
    inside[2:4, 3:6] = True  # [ᾱ, α]
    one = np.random.default_rng(1).lognormal(0, 0.3, (domains, 1, 1, 8))
    noise = np.random.default_rng(2).lognormal(0, 0.01, (domains, 49, 1, 8))
    flat = inside.T.ravel()[:, None, None]
    errors = data.variance_rmse.copy(data=np.where(flat, 1.0, 1.5 * noise) * one)
    data = data.assign(variance_rmse=errors)
    if split:  # each cell has a second learner, which is worse
        worse = data.assign(variance_rmse=9 * errors)
        data = xarray.concat([data, worse], "learner").assign_coords(
            learner=[f"l{k}" for k in range(98)], kappa=("learner", [0.0] * 49 + [1.0] * 49)
        )
    figure = drawn(plots.sweep_heat_map(data, y="alpha_bar", resamples=200))
    np.testing.assert_array_equal(outlined(figure.axes[0]), inside)
    caption = " ".join(figure.get_supxlabel().split())
    over = "6 domains" if domains == 12 else "4 runs"
    assert f"95% interval of the ratio to the best, over {over}, holds 1" in caption


def test_every_lambda_has_an_outline_of_its_own():
    """Errors are least at α = 0.1 whatever λ, and clearly larger next to it."""
    figure = plots.sweep_heat_map(swept(second=[0.1]))
    for ax in figure.axes[:3]:
        wanted = np.zeros((4, 7), dtype=bool)
        wanted[:, 4] = True
        np.testing.assert_array_equal(outlined(ax), wanted)
    turned = plots.sweep_heat_map(swept(second=[0.1]), x="lam", y="alpha")
    assert all(outlined(ax)[4].all() and outlined(ax).sum() == 4 for ax in turned.axes[:3])


@pytest.mark.parametrize("count", [4, 7, 13])
def test_steps_that_are_no_powers_of_ten_have_ticks_at_those(count):
    """At their places on the axis: of maps, between cells."""
    steps = (np.logspace(-3, 0, count) * 0.707).tolist()
    ax = plots.sensitivity_curves(swept(first=steps, second=[0.1], lambdas=[0.5])).axes[0]
    assert [text.get_text() for text in ax.get_xticklabels()] == ["0.001", "0.01", "0.1"]
    np.testing.assert_allclose(ax.get_xticks(), [0.001, 0.01, 0.1])
    ax = plots.sweep_heat_map(swept(first=steps, second=[0.1])).axes[0]
    places = np.log10(np.array([0.001, 0.01, 0.1]) / steps[0]) * (count - 1) / 3
    np.testing.assert_allclose(ax.get_xticks(), places, atol=1e-9)


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([0.05, 0.1, 0.2], "0.05 0.1 0.2"),
        ([0.0354, 0.0707, 0.1414, 0.2828, 0.5657], "0.05 0.1 0.2 0.5"),
        ([0.9991, 0.9992, 0.9995], "0.9991 0.9992 0.9995"),
        ([1e-6, 1e-4, 1e-2], "1e−6 0.0001 0.01"),
        ([0.0, 0.25, 0.5], "0 0.25 0.5"),
        ([2.0, 2.5], "2 2.5"),
    ],
)
def test_ticks_are_short_and_distinct(values, labels):
    ticks, texts = axis_ticks(values, spaced_by_factors(values))
    assert " ".join(texts) == labels
    assert [float(text.replace("−", "-")) for text in texts] == pytest.approx(ticks)


def test_both_axes_cannot_show_the_same_setting():
    with pytest.raises(rv.InputError, match="y = alpha: must differ from x"):
        plots.sweep_heat_map(swept(), y="alpha")


# ---------------------------------------------------------------------- comparisons


def test_points_are_the_ratios_of_the_comparison_in_the_colour_of_the_winner():
    data = swept(domains=12, runs=12, lambdas=[0.0, 1.0], second=[0.1])
    found = compare(data)
    figure = plots.comparison(found, settings=["best"])
    for k, ax in enumerate(figure.axes):
        points = [line for line in ax.lines if line.get_gid() == "ratio"]
        ratios = found.data.ratio.sel(settings="best", domain="all").isel(pair=k).values
        np.testing.assert_allclose([p.get_xdata()[0] for p in points], ratios)
    colours = [ax.lines[-1].get_color() for ax in figure.axes]
    direct, centred = (STYLES[name].colour for name in ("direct", "centred"))
    assert colours[0] == direct
    assert colours[2] == centred


def test_a_dataset_is_compared_first(tmp_path):
    data = swept(second=[0.1], lambdas=[0.5])
    for name, figure in (
        ("a.svg", plots.comparison(data, level=0.9)),
        ("b.svg", plots.comparison(compare(data, level=0.9))),
    ):
        plots.save(figure, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_few_domains_have_a_row_each_with_a_single_question():
    data = swept(domains=3, second=[0.1], lambdas=[0.5])
    found = compare(data)
    ax = plots.comparison(found, settings=["shared"]).axes[0]
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["d0", "d1", "d2", "all"]
    points = [line.get_xdata()[0] for line in ax.lines if line.get_gid() == "ratio"]
    np.testing.assert_allclose(points, found.data.ratio.sel(settings="shared")[0, 0])
    alone = plots.comparison(data.isel(domain=[1])).axes[0]
    assert [tick.get_text() for tick in alone.get_yticklabels()] == ["d1"]


def test_infinite_ratios_stay_at_the_edge():
    data = swept(second=[0.1], lambdas=[0.5])
    figure = drawn(plots.comparison(broken(data, (data.algorithm == "VTD") & (data.run < 8))))
    ax = figure.axes[0]
    points = [line.get_xdata()[0] for line in ax.lines if line.get_gid() == "ratio"]
    assert points == pytest.approx([ax.get_xlim()[0]] * 4)


def ratios(reach, domains=3, label="d"):
    """A comparison in which VTD errs `reach` times as much on the last domain, equally else."""
    errors = np.ones((domains, 3, 1, 8))
    errors[-1, 1] = reach
    coords = {
        "domain": [f"{label}{k}" for k in range(domains)],
        "learner": list(METHODS),
        "step": [10],
        "algorithm": ("learner", list(METHODS)),
        "alpha": ("learner", [0.1] * 3),
    }
    died = ("domain", "learner", "run"), np.zeros((domains, 3, 8), dtype=bool)
    dims = ("domain", "learner", "step", "run")
    return xarray.Dataset({"variance_rmse": (dims, errors), "diverged": died}, coords)


@pytest.mark.parametrize("label", ["d", "a domain with a long name, number "])
@pytest.mark.parametrize("reach", [1.0, 1.1, 1.25, 1.45, 1.6, 1.75, 1.9, 2.4, 4.0, 9.0, 25.0, 1e9])
def test_ratios_have_a_scale_on_both_sides_of_one(reach, label):
    """At least three ticks, whatever the range; their labels apart from each other."""
    figure = drawn(plots.comparison(ratios(reach, label=label), settings=["best"], resamples=100))
    renderer = figure.canvas.get_renderer()
    for ax in figure.axes:
        low, high = ax.get_xlim()
        ticks = ax.get_xticks()
        assert low <= ticks[0] < 1 < ticks[-1] <= high
        assert 1 in ticks
        boxes = [text.get_window_extent(renderer) for text in ax.get_xticklabels()]
        assert [text.get_text() for text in ax.get_xticklabels()] == [f"{t:g}" for t in ticks]
        assert all(a.x1 + 3 < b.x0 for a, b in pairwise(boxes))


# ---------------------------------------------------------------------- the example


def test_the_sweep_of_the_example_is_as_large_as_the_documents_say():
    plan = Sweep.from_toml(EXAMPLES / "which_method.toml").plan()
    assert "100 domains × 2,028 learners × 40 runs of 20,000 steps, 3,200 cells" in repr(plan)
