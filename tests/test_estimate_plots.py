"""Figures of estimates from experience: they show the dataset, can be read, and refuse others."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations

import matplotlib
import numpy as np
import pytest
import xarray
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from numpy.testing import assert_array_equal

import retvar as rv
from retvar import plots
from retvar.plots.estimate_common import COLOUR_MAPS
from retvar.plots.style import text_size, wrap_text
from tests.test_experiment_plots import drawn, titles, written

SPREADS = ("value", "variance", "std")
LAKE = "SFFFFHFHFFFHHFFG"
CLIFF = " " * 36 + "SCCCCCCCCCCG"
ABOUT = {
    "source": "gymnasium:Some-v1",
    "policy": "random",
    "gamma": 0.9,
    "lam": 1.0,
    "level": 0.9,
    "method": "direct",
    "transitions": 1000,
}


def estimates(place, value, std, half, visits):
    """Value, variance and std of each state or region, with their intervals."""
    value, std, half = (np.asarray(x, dtype=float) for x in (value, std, half))
    columns = {"value": (value, value - half, value + half)}
    columns["std"] = (std, np.maximum(std - half, 0), std + half)
    columns["variance"] = tuple(x**2 for x in columns["std"])
    ends = ("", "_low", "_high")
    found = {
        f"{n}{end}": (place, x) for n in columns for end, x in zip(ends, columns[n], strict=True)
    }
    return found | {"visits": (place, np.asarray(visits))}


def samples(count, seed=0, scale=1.0, wrong=1.0):
    """Returns, normal about their predictions; the std predicted is `wrong` times theirs."""
    random = np.random.default_rng(seed)
    predicted, std = random.normal(size=count) * 5 * scale, random.uniform(1, 4, count) * scale
    observed = predicted + std * random.normal(size=count)
    columns = {"observed": observed, "predicted": predicted, "predicted_std": wrong * std}
    columns["sample_state"] = np.full(count, -1)
    return {name: ("sample", column) for name, column in columns.items()}


def rolled(place, value, std, count=25):
    columns = {"check_mean": value + std / 9, "check_std": 1.1 * std}
    columns["check_count"] = np.full(len(value), count)
    return {name: (place, column) for name, column in columns.items()}


def states(count=16, scale=1.0, seed=0, observed=200, unvisited=(5, 7, 11, 12, 15), **attrs):
    """Tabular estimates; some states were never visited."""
    random = np.random.default_rng(seed)
    value, std = random.normal(size=count) * 10 * scale, random.uniform(0, 5, count) * abs(scale)
    half, visits = random.uniform(0, 1, count) * abs(scale), random.permutation(count) + 1
    missing = [k for k in unvisited if k < count - 1]
    value[missing], visits[missing] = np.nan, 0
    value = np.where(visits, value, np.nan)
    std = np.where(visits, std, np.nan)
    columns = estimates("state", value, std, half, visits) | rolled("state", value, std)
    labels = {"label": ("state", [f"s{k}" for k in range(count)])}
    return xarray.Dataset(columns | samples(observed, seed, abs(scale)), labels, ABOUT | attrs)


def grid(rows=4, columns=4, **more):
    return states(rows * columns, grid_rows=rows, grid_columns=columns, **more)


def regions(axes=2, count=12, side=9, scale=1.0):
    """Estimates over observations; those of two numbers have maps."""
    random = np.random.default_rng(1)
    value, std = random.normal(size=count) * scale, random.uniform(0, 1, count) * scale
    data = estimates("region", value, std, 0.1 * std, np.arange(count) + 1)
    data |= rolled("region", value, std) | samples(100, 1, scale)
    data["centre"] = (("region", "axis"), random.normal(size=(count, axes)))
    names = ["position", "velocity", "angle", "spin"][:axes]
    found = xarray.Dataset(data, {"axis": names}, ABOUT)
    if axes != 2:
        return found
    x, y = np.linspace(-1.2, 0.6, side), np.linspace(-0.07, 0.07, side + 1)
    height = scale * (x[None, :] ** 2 - 30 * y[:, None])
    maps = {"value_map": height, "std_map": abs(height), "visited_map": height > -1.5 * scale}
    found = found.assign({name: (("y", "x"), table) for name, table in maps.items()})
    return found.assign_coords(x=x, y=y).assign_attrs(x_name="position", y_name="velocity")


def same(data):
    """All estimates equal, none uncertain."""
    names = [n for n in data.data_vars if str(n).startswith((*SPREADS, "check", "pred", "obs"))]
    return data.assign({name: xarray.zeros_like(data[name]) + 3.0 for name in names})


def heavy(data):
    """Some observed returns are a million times as far as the others."""
    observed = data.observed.copy()
    observed[::500] = observed[::500] * 1e6
    return data.assign(observed=observed)


def below(data):
    """Some variances were estimated below zero, so that there is no std."""
    place = data.value.dims[0]
    gone = xarray.DataArray(np.arange(data.sizes[place]) == 2, dims=place)
    data = data.assign(std=data["std"].where(~gone))
    if "std_map" in data:
        data["std_map"] = data.std_map.where(data.x < 0.5)
    return data


def alone(data):
    """Estimates only: nothing observed, nothing checked."""
    checked = ["check_mean", "check_std", "check_count"]
    return data.drop_dims("sample", errors="ignore").drop_vars(checked, errors="ignore")


def bare(data):
    """No intervals, no visits, no attributes but those of a grid."""
    names = [n for n in data.data_vars if str(n).endswith(("_low", "_high", "visits"))]
    grid_attrs = {k: v for k, v in data.attrs.items() if k.startswith("grid")}
    return data.drop_vars(names).drop_attrs().assign_attrs(grid_attrs)


ODD = {
    "lake": lambda: grid(cells=LAKE),
    "cliff": lambda: alone(grid(4, 12, cells=CLIFF, unvisited=range(37, 47))),
    "eight": lambda: alone(grid(8, 8)),
    "a row": lambda: alone(grid(1, 7)),
    "a long row": lambda: alone(grid(1, 40)),
    "a column": lambda: alone(grid(9, 1)),
    "one cell": lambda: grid(1, 1),
    "large": lambda: alone(grid(30, 30)),
    "huge": lambda: grid(scale=1e12),
    "enormous": lambda: grid(scale=-1e149),
    "tiny": lambda: alone(grid(scale=1e-12)),
    "negative": lambda: alone(grid(scale=-100.0)),
    "no std at all": lambda: alone(grid().assign(std=("state", np.full(16, np.nan)))),
    "no std on the map": lambda: alone(regions().assign(std_map=regions().std_map * np.nan)),
    "equal": lambda: same(grid()),
    "bare": lambda: bare(grid()),
    "below zero": lambda: below(grid(cells=LAKE)),
    "states below zero": lambda: below(states(9)),
    "regions below zero": lambda: below(regions()),
    "few observed": lambda: grid(observed=3),
    "one state": lambda: states(1),
    "five states": lambda: states(5),
    "many states": lambda: states(300, scale=1000.0),
    "equal states": lambda: same(states(9)),
    "bare states": lambda: alone(bare(states(9))),
    "tiny states": lambda: states(9, scale=1e-9),
    "heavy tails": lambda: heavy(states(9, observed=2000)),
    "one region": lambda: regions(count=1, side=1),
    "two numbers": regions,
    "four numbers": lambda: regions(4),
    "huge regions": lambda: alone(regions(scale=1e9)),
    "equal regions": lambda: same(regions()),
    "long names": lambda: states(
        9,
        source="gymnasium:" + "Long" * 40,
        policy="module.with.long.name:function",
        gamma="column g",
    ).assign_coords(label=("state", ["the state with a name of many words " * 4] * 9)),
}


def readable(figure: Figure) -> list[Text]:
    """All that can be read, also titles of maps, colour bars and what stands above and below."""
    found = written(figure) + [t for t in (figure._suptitle, figure._supxlabel) if t]
    for ax in figure.axes:
        found += [] if ax.axison else [ax._left_title]
        for bar in ax.child_axes:
            low, high = sorted(bar.get_ylim())
            ticks = [t for t in bar.yaxis.get_major_ticks() if low <= t.get_loc() <= high]
            found += [tick.label2 for tick in ticks]
    return [text for text in found if text.get_text().strip()]


def of_kind(ax: Axes, gid: str) -> dict[tuple[int, int], str]:
    """Texts of a map by row and column."""
    places = [(t, t.get_position()) for t in ax.texts if t.get_gid() == gid]
    return {(round(y), round(x)): text.get_text() for text, (x, y) in places}


def read(text: str) -> tuple[float, float]:
    """A number as written, and how far it may be from what is meant."""
    plain = text.replace("−", "-").lstrip("±")
    mantissa, _, power = plain.partition("e")
    decimals = len(mantissa.partition(".")[2])
    return float(plain), 0.5000001 * 10.0 ** (int(power or 0) - decimals)


def text_of(figure: Figure) -> str:
    return " ".join(" ".join(text.get_text() for text in readable(figure)).split())


# ---------------------------------------------------------------------- every figure


@pytest.mark.parametrize("name", ODD)
def test_nothing_overlaps_or_leaves_the_page_whatever_the_data(name):
    for figure in plots.estimate_figures(ODD[name]()).values():
        renderer = drawn(figure).canvas.get_renderer()
        page = figure.bbox.padded(1)
        boxes = [(text, text.get_window_extent(renderer)) for text in readable(figure)]
        for text, box in boxes:
            assert page.x0 <= box.x0 <= box.x1 <= page.x1, text
            assert page.y0 <= box.y0 <= box.y1 <= page.y1, text
        for (one, a), (other, b) in combinations(boxes, 2):
            assert not a.padded(-1.0).overlaps(b.padded(-1.0)), (one, other)


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("lake", "map"),
        ("two numbers", "heat_map"),
        ("five states", "states"),
        ("four numbers", "states"),
    ],
)
def test_the_figures_suit_the_dataset(name, first):
    """A map of a grid world, a heat map of two numbers, otherwise states; then what data allow."""
    data = ODD[name]()
    assert list(plots.estimate_figures(data)) == [first, "observed", "calibration", "check"]
    assert list(plots.estimate_figures(data.drop_dims("sample"))) == [first, "check"]
    assert list(plots.estimate_figures(alone(data))) == [first]


def test_titles_say_where_the_estimates_are_from_and_what_is_shown():
    figure = plots.estimate_maps(grid(source="gymnasium:CliffWalking-v1"))
    assert text_of(figure).count(
        "CliffWalking-v1, random policy, γ = 0.9: what return to expect from each cell, "
        "and how far it may stray"
    )
    text = text_of(plots.estimate_states(states(source="C:\\logs\\old.csv", policy="a:b", lam=0.5)))
    assert "old.csv, policy a:b, γ = 0.9, λ = 0.5: what return to expect from each state" in text


def test_settings_that_are_no_numbers_are_written_as_text():
    text = text_of(plots.estimate_maps(grid(gamma="in the data", lam="one per state")))
    assert "random policy, γ in the data, λ one per state: what" in text


def test_a_gamma_near_one_is_not_rounded_to_one():
    assert "γ = 0.9999" in text_of(plots.estimate_maps(grid(gamma=0.9999)))


@pytest.mark.parametrize("name", ["five states", "cliff", "two numbers"])
def test_the_same_data_give_the_same_bytes(name, tmp_path):
    data = ODD[name]() if name == "five states" else alone(ODD[name]())
    for file in "ab":
        for key, figure in plots.estimate_figures(data).items():
            plots.save(figure, tmp_path / f"{key}-{file}.svg")
    for one in tmp_path.glob("*-a.svg"):
        assert one.read_bytes() == one.with_stem(one.stem[:-1] + "b").read_bytes()


def test_figures_leave_the_settings_of_matplotlib_and_the_data_alone():
    before, data = dict(matplotlib.rcParams), grid(cells=LAKE)
    copy = data.copy(deep=True)
    plots.estimate_figures(data)
    assert dict(matplotlib.rcParams) == before
    xarray.testing.assert_identical(data, copy)


def test_colours_are_even_in_grey_and_numbers_stand_out_from_them():
    for name, colours in COLOUR_MAPS.items():
        shades = colours(np.linspace(0, 1, 200))[:, :3]
        grey = shades @ [0.299, 0.587, 0.114]
        steps = np.diff(grey) * (1 if name == "value" else -1)
        assert steps.min() > -1e-3, name
        assert steps.sum() > 0.6, name
        assert colours.N == 256
    for ax in plots.estimate_maps(grid(8, 8)).axes[:2]:
        image = ax.images[0]
        for text in ax.texts:
            x, y = (round(z) for z in text.get_position())
            shade = image.cmap(image.norm(image.get_array()[y, x]))[:3]
            assert contrast(shade, to_rgb(text.get_color())) > 3.4


def contrast(one, other) -> float:
    """The ratio by which accessibility guidelines (WCAG 2) judge text."""

    def light(colour):
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
        return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


# ---------------------------------------------------------------------- variances below zero


BELOW = "the variance was estimated below zero"


def test_a_cell_visited_without_a_std_has_a_question_mark_and_no_hatch():
    figure = plots.estimate_maps(below(grid()))
    value, std = figure.axes[:2]
    assert of_kind(std, "unknown") == {(0, 2): "?"}
    assert not of_kind(value, "unknown")
    assert (1.5, -0.5) not in [patch.get_xy() for patch in std.patches]
    assert f"?: {BELOW}" in text_of(figure)


def test_a_state_without_a_std_is_hollow_and_the_legend_says_why():
    data = below(states(9))
    figure = plots.estimate_states(data)
    full, hollow = [line for line in figure.axes[0].lines if line.get_marker() == "o"]
    assert hollow.get_xdata() == [data.value.values[2]]
    assert len(full.get_xdata()) == 6
    assert f"no band: {BELOW}" in text_of(figure)
    assert BELOW not in text_of(plots.estimate_states(states(9)))


def test_parts_of_a_heat_map_without_a_std_are_white_not_hatched():
    data = below(regions())
    figure = plots.estimate_heat_maps(data)
    value, std = figure.axes[:2]
    assert len(value.collections) == 1
    white = std.collections[1].get_array()
    expected = data.visited_map.values & np.isnan(data.std_map.values)
    assert expected.any()
    assert (~np.ma.getmaskarray(white) == expected).all()
    assert f"white: {BELOW}" in text_of(figure)


def test_the_check_counts_those_without_a_std():
    figure = plots.check(below(states(9)))
    assert f"(1 left out: {BELOW})" in text_of(figure)


# ---------------------------------------------------------------------- maps


@pytest.mark.parametrize("shape", [(4, 4), (4, 12), (8, 8), (1, 7), (9, 2)])
@pytest.mark.parametrize("scale", [1.0, 0.01, -300.0])
def test_the_numbers_in_a_map_are_those_of_the_dataset(shape, scale):
    """Each stands in its own cell, the first row above, and is right to its last digit."""
    data = grid(*shape, scale=scale)
    for ax, name in zip(plots.estimate_maps(data).axes, ("value", "std"), strict=True):
        middle, low, high = (data[f"{name}{end}"].values for end in ("", "_low", "_high"))
        visited = {divmod(int(k), shape[1]) for k in np.flatnonzero(data.visits.values)}
        numbers, intervals = of_kind(ax, "number"), of_kind(ax, "interval")
        assert set(numbers) == visited == set(intervals)
        for row, column in visited:
            k = row * shape[1] + column
            value, slack = read(numbers[row, column])
            assert abs(value - middle[k]) <= slack
            half, slack = read(intervals[row, column])
            assert abs(half - (high[k] - low[k]) / 2) <= slack
            assert value != 0 or middle[k] == 0
        assert ax.get_ylim()[0] > ax.get_ylim()[1]


@pytest.mark.parametrize(("scale", "factor"), [(1e9, "(×10⁹)"), (1e-7, "(×10⁻⁶)")])
def test_huge_or_tiny_numbers_share_a_factor_written_above_the_map(scale, factor):
    data = grid(scale=scale)
    figure = plots.estimate_maps(data)
    assert titles(figure)[0] == f"expected return {factor}"
    unit = {"(×10⁹)": 1e9, "(×10⁻⁶)": 1e-6}[factor]
    value, slack = read(of_kind(figure.axes[0], "number")[0, 0])
    assert abs(value * unit - data.value.values[0]) <= slack * unit


def test_cells_never_visited_are_hatched_and_the_figure_says_so():
    data = grid(cells=LAKE)
    figure = plots.estimate_maps(data)
    for ax in figure.axes[:2]:
        hatched = {p.get_xy() for p in ax.patches if isinstance(p, Rectangle) and p.get_hatch()}
        assert hatched == {(k % 4 - 0.5, k // 4 - 0.5) for k in (5, 7, 11, 12)}
    assert "hatched: no step was taken from here" in text_of(figure)
    assert "hatched" not in text_of(plots.estimate_maps(grid(unvisited=())))


def test_neighbours_that_were_never_visited_are_hatched_at_once():
    """A patch for each of 10,000 cells takes a minute to draw."""
    data = grid(100, 100, unvisited=range(3, 9_999))
    for ax in plots.estimate_maps(data).axes[:2]:
        hatched = [p for p in ax.patches if isinstance(p, Rectangle) and p.get_hatch()]
        assert len(hatched) == 100
        assert sum(p.get_width() * p.get_height() for p in hatched) == 9_996


def test_a_state_with_a_value_but_no_visit_is_hatched_too():
    data = grid(2, 2, unvisited=())
    data["visits"] = data.visits.copy(data=[1, 2, 0, 4])
    ax = plots.estimate_maps(data).axes[0]
    assert [p.get_xy() for p in ax.patches if p.get_hatch()] == [(-0.5, 0.5)]


def test_letters_of_cells_are_faint_in_their_corners_and_explained():
    figure = plots.estimate_maps(grid(cells=LAKE))
    letters = [t for t in figure.axes[0].texts if t.get_gid() == "letter"]
    assert "".join(t.get_text() for t in letters) == LAKE
    assert all(t.get_alpha() < 1 for t in letters)
    assert "S start, F frozen, H hole, G goal" in text_of(figure)
    assert "start" not in text_of(plots.estimate_maps(grid(cells="SX" * 8)))


def test_small_cells_have_colours_only():
    figure = plots.estimate_maps(grid(30, 30, cells="F" * 900))
    assert not figure.axes[0].texts
    assert "±" not in text_of(figure)


def test_an_empty_map_is_replaced_by_a_message():
    figure = plots.estimate_maps(grid(2, 2, unvisited=()).where(False))
    assert "nothing to draw" in text_of(figure)


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
        estimates("state", values, np.abs(values), np.full(6, half), visits),
        attrs={"grid_rows": 2, "grid_columns": 3},
    )
    drawn(plots.estimate_maps(data))
    drawn(plots.estimate_states(data))


# ---------------------------------------------------------------------- heat maps


def test_heat_maps_show_the_tables_where_they_were_visited_and_hatch_the_rest():
    data = regions()
    figure = drawn(plots.estimate_heat_maps(data))
    for ax, name in zip(figure.axes, ("value", "std"), strict=False):
        shown = ax.collections[0].get_array()
        visited = data.visited_map.values
        assert (~np.ma.getmaskarray(shown) == visited).all()
        assert np.array_equal(shown[visited], data[f"{name}_map"].values[visited])
        assert [p.get_hatch() for p in ax.patches] == ["////"]
        assert ax.get_xlabel() == "position"
    assert figure.axes[0].get_ylabel() == "velocity"
    assert "hatched: never visited" in text_of(figure)


def test_heat_maps_do_not_mind_the_order_of_dimensions_rows_or_counts():
    data = regions()
    other = data.transpose().isel(y=slice(None, None, -1)).assign(visited_map=3 * data.visited_map)
    one, two = (plots.estimate_heat_maps(d).axes[0].collections[0] for d in (data, other))
    assert np.ma.allequal(one.get_array(), two.get_array())
    assert np.array_equal(one.get_coordinates(), two.get_coordinates())


@pytest.mark.parametrize("name", ["two numbers", "equal regions", "one region", "huge regions"])
def test_contour_lines_can_be_drawn_where_there_are_slopes(name):
    data = ODD[name]()
    plain, lined = (plots.estimate_heat_maps(data, contours=c).axes[0] for c in (False, True))
    slopes = name in ("two numbers", "huge regions")
    assert len(lined.collections) - len(plain.collections) == slopes
    drawn(lined.figure)


# ---------------------------------------------------------------------- states


@pytest.mark.parametrize("order", ["state", "visits"])
def test_the_sixty_states_most_visited_are_drawn_with_value_interval_and_band(order):
    data = states(300)
    figure = plots.estimate_states(data, order)
    ax = figure.axes[0]
    visits = data.visits.values.tolist()
    most = sorted(range(300), key=lambda k: -visits[k])[:60]
    chosen = most if order == "visits" else sorted(most)
    assert [t.get_text() for t in ax.get_yticklabels()] == [f"s{k}" for k in chosen]
    dots = next(line for line in ax.lines if line.get_marker() == "o")
    assert np.array_equal(dots.get_xdata(), data.value.values[chosen])
    spans = [(p[0, 0], p[1, 0]) for p in ax.collections[0].get_segments()]
    assert spans == [(data.value_low.values[k], data.value_high.values[k]) for k in chosen]
    widths = [patch.get_width() for patch in ax.patches]
    assert np.allclose(widths, 2 * data["std"].values[chosen])
    assert "the 60 most visited of 295 states" in text_of(figure)
    counts = [t.get_text() for t in ax.texts]
    assert counts[:60] == [f"{visits[k]:,}" for k in chosen]


def test_states_never_visited_are_left_out():
    labels = plots.estimate_states(states(16)).axes[0].get_yticklabels()
    assert len(labels) == 12
    assert "s5" not in [label.get_text() for label in labels]


def test_regions_are_named_by_their_centres_and_axes():
    data = regions(4)
    ax = plots.estimate_states(data).axes[0]
    first = [read(x)[0] for x in ax.get_yticklabels()[0].get_text().strip("()").split(", ")]
    assert np.allclose(first, data.centre.values[0], rtol=0.01)
    text = ax.get_title(loc="left").replace("\n", " ")
    assert text == "each region, by the centre (position, velocity, angle, spin)"


# ---------------------------------------------------------------------- observed returns


def plain_share(data, k):
    """How many lie within k std, by a plain loop over those with a prediction."""
    rows = zip(data.observed.values, data.predicted.values, data.predicted_std.values, strict=True)
    rows = [row for row in rows if all(math.isfinite(x) for x in row)]
    return sum(abs(o - p) <= k * s for o, p, s in rows), len(rows)


@pytest.mark.parametrize("wrong", [0.3, 1.0, 2.0])
def test_the_share_in_the_title_is_that_of_the_data(wrong):
    data = xarray.Dataset(samples(2000, wrong=wrong))
    inside, count = plain_share(data, 2)
    title = plots.observed_returns(data).axes[0].get_title(loc="left")
    expected = f"{100 * inside / count:.0f}% of" if inside < count else "all"
    assert title == f"{expected} 2,000 observed returns lie within 2 std of what was predicted"


def test_every_observed_return_is_a_point_marked_by_its_own_std():
    data = xarray.Dataset(samples(300))
    ax = plots.observed_returns(data).axes[0]
    marks = {line.get_marker(): line for line in ax.lines}
    inside, count = plain_share(data, 2)
    assert len(marks["o"].get_ydata()) == inside
    assert len(marks["x"].get_ydata()) == count - inside
    shown = np.concatenate([marks[m].get_ydata() for m in "ox"])
    assert Counter(shown.tolist()) == Counter(data.observed.values.tolist())


def test_groups_of_equal_predictions_have_their_own_band_and_mean():
    """Three states: three steps of mean ± 2 std, and diamonds at the means of observed returns."""
    state = np.repeat([2, 0, 1], 20)
    predicted, std = np.array([1.0, 2.0, 4.0])[state], np.array([0.5, 0.0, 1.0])[state]
    observed = predicted + std * np.tile([-1.0, 2.0], 30)
    columns = {"observed": observed, "predicted": predicted, "predicted_std": std}
    ax = plots.observed_returns(
        xarray.Dataset({k: ("sample", v) for k, v in columns.items()})
    ).axes[0]
    band, line = (patch.get_data() for patch in ax.patches)
    assert band.edges.tolist() == [0, 20, 40, 60]
    assert band.values.tolist() == [2, 2, 6]
    assert band.baseline.tolist() == [0, 2, 2]
    assert line.values.tolist() == [1, 2, 4]
    means = next(line for line in ax.lines if line.get_gid() == "observed")
    assert np.allclose(means.get_ydata(), [1.25, 2, 4.5])


def test_returns_predicted_with_certainty_count_as_inside():
    """Std 0 and a deviation of rounding only."""
    columns = {"observed": 0.1 + 0.2 + np.zeros(40), "predicted": np.full(40, 0.3)}
    data = xarray.Dataset({k: ("sample", v) for k, v in columns.items()})
    data["predicted_std"] = ("sample", np.zeros(40))
    assert "all 40 observed returns" in text_of(plots.observed_returns(data))
    ax = plots.calibration(data).axes[1]
    assert set(ax.lines[1].get_ydata()) == {1.0}


def test_samples_without_a_prediction_are_left_out_and_counted():
    data = xarray.Dataset(samples(100))
    data["predicted_std"][:7] = np.nan
    data["predicted"][5:9] = np.nan
    inside, count = plain_share(data, 2)
    text = text_of(plots.observed_returns(data))
    assert f"{round(100 * inside / count)}% of 91 observed returns" in text
    assert "9 left out: no valid prediction" in text
    assert "9 left out: no valid prediction" in text_of(plots.calibration(data))


def test_returns_that_are_far_away_do_not_squash_the_others():
    data = heavy(xarray.Dataset(samples(2000)))
    figure = plots.observed_returns(data)
    ax = figure.axes[0]
    low, high = ax.get_ylim()
    assert -100 < low < high < 100
    beyond = sum(len(line.get_ydata()) for line in ax.lines if line.get_gid() == "beyond")
    outside = int(np.sum((data.observed < low) | (data.observed > high)))
    assert beyond == outside > 0
    assert f"beyond the panel ({outside:,})" in text_of(figure)


def test_many_samples_are_thinned_in_the_picture_but_not_in_the_text():
    data = xarray.Dataset(samples(20_000))
    figure = plots.observed_returns(data)
    points = sum(len(x.get_ydata()) for x in figure.axes[0].lines if x.get_marker() in "ox")
    assert points <= 4000
    assert "of 20,000 observed returns" in text_of(figure)


# ---------------------------------------------------------------------- calibration


@pytest.mark.parametrize("wrong", [1.0, 0.5])
def test_right_predictions_lie_on_the_diagonal_and_wrong_ones_do_not(wrong):
    """A std that is half the true one puts every group at twice its prediction."""
    ax = plots.calibration(xarray.Dataset(samples(20_000, wrong=wrong))).axes[0]
    dots = next(line for line in ax.lines if line.get_marker() == "o")
    bars = np.array(ax.collections[0].get_segments())[:, :, 1]
    x, y = dots.get_xdata(), dots.get_ydata()
    assert len(x) == 10
    assert np.allclose(y / x, 1 / wrong, rtol=0.06)
    assert np.allclose(bars.mean(axis=1), y)
    covered = (bars[:, 0] <= x / wrong) & (x / wrong <= bars[:, 1])
    assert covered.sum() >= 8


def test_groups_have_similar_predicted_std_and_exact_deviations():
    std = np.repeat([1.0, 3.0], 40)
    far = std * np.tile([1.0, -2.0], 40)
    columns = {"observed": 7 + far, "predicted": np.full(80, 7.0), "predicted_std": std}
    ax = plots.calibration(xarray.Dataset({k: ("sample", v) for k, v in columns.items()})).axes[0]
    dots = next(line for line in ax.lines if line.get_marker() == "o")
    assert np.allclose(dots.get_xdata(), [1, 3])
    assert np.allclose(dots.get_ydata(), [math.sqrt(2.5), 3 * math.sqrt(2.5)])


def test_groups_that_stray_far_do_not_squash_the_others():
    figure = plots.calibration(heavy(xarray.Dataset(samples(2000))))
    ax = figure.axes[0]
    top = ax.get_ylim()[1]
    dots = next(line for line in ax.lines if line.get_marker() == "o")
    beyond = next(line for line in ax.lines if line.get_gid() == "beyond")
    assert 4 < top < 6
    assert len(beyond.get_xdata()) + len(dots.get_xdata()) == 10
    assert 1 <= len(beyond.get_xdata()) <= 4
    assert f"{len(beyond.get_xdata())} beyond the panel" in text_of(figure)


def test_coverage_is_that_of_the_data_and_the_normal_curve_is_only_a_reference():
    data = xarray.Dataset(samples(1000))
    figure = plots.calibration(data)
    ax = figure.axes[1]
    normal, curve = ax.lines[:2]
    for k in (0.5, 1.0, 2.0, 3.5):
        inside, count = plain_share(data, k)
        at = int(np.argmin(abs(curve.get_xdata() - k)))
        assert curve.get_ydata()[at] == pytest.approx(inside / count)
    at = int(np.argmin(abs(normal.get_xdata() - 2)))
    assert normal.get_ydata()[at] == pytest.approx(0.9545, abs=1e-4)
    assert "for reference only: returns need not be normal" in text_of(figure)


@pytest.mark.parametrize("count", [0, 1, 19])
def test_few_observed_returns_give_a_message(count):
    figure = plots.calibration(xarray.Dataset(samples(count)))
    assert f"Too few observed returns to judge by: {count}, where 20 are needed." in text_of(figure)
    assert not figure.axes[0].lines


def test_no_return_with_a_prediction_gives_a_message():
    data = xarray.Dataset(samples(30))
    data["predicted"] = data.predicted * np.nan
    assert "nothing to compare" in text_of(plots.observed_returns(data))
    assert "Too few" in text_of(plots.calibration(data))


@settings(max_examples=8)
@given(
    seed=st.integers(0, 99),
    scale=st.sampled_from([1e-100, 1e-9, 1.0, 1e9, 1e100]),
    zero=st.floats(0, 1),
    count=st.integers(20, 60),
)
def test_calibration_can_be_drawn_with_certain_missing_and_far_returns(seed, scale, zero, count):
    random = np.random.default_rng(seed)
    data = xarray.Dataset(samples(count, seed, scale))
    data["predicted_std"] = data.predicted_std.where(random.random(count) >= zero, 0.0)
    data["observed"] = data.observed * random.choice([1, 1, 1, 1e4, np.nan], size=count)
    for figure in (plots.calibration(data), plots.observed_returns(data)):
        drawn(figure)


# ---------------------------------------------------------------------- check


def test_the_check_sets_monte_carlo_against_the_estimates():
    data = grid()
    data["check_mean"][0] = np.nan
    figure = plots.check(data)
    keep = np.flatnonzero(np.isfinite(data.check_mean.values) & (data.visits.values > 0))
    for ax, name, found in zip(
        figure.axes, ("value", "std"), ("check_mean", "check_std"), strict=True
    ):
        dots = next(line for line in ax.lines if line.get_marker() == "o")
        assert np.array_equal(dots.get_xdata(), data[name].values[keep])
        assert np.array_equal(dots.get_ydata(), data[found].values[keep])
        diagonal = next(line for line in ax.lines if line.get_marker() == "None")
        assert list(diagonal.get_xdata()) == list(diagonal.get_ydata()) == list(ax.get_xlim())
        across, up = (np.array(c.get_segments()) for c in ax.collections)
        assert np.array_equal(
            across[:, :, 0].T, [data[f"{name}{e}"][keep] for e in ("_low", "_high")]
        )
        error = data.check_std.values[keep] / (5 if name == "value" else math.sqrt(48))
        assert np.allclose(np.ptp(up[:, :, 1], axis=1), 2 * error)
    assert f"Monte Carlo, {keep.size} states" in text_of(figure)


def test_one_roll_out_has_a_mean_but_no_spread():
    data = states(5).assign(
        check_count=("state", np.ones(5)), check_std=("state", np.full(5, np.nan))
    )
    value, std = drawn(plots.check(data)).axes
    assert np.isfinite(value.lines[0].get_ydata()).all()
    assert np.isnan(std.lines[0].get_ydata()).all()


def test_an_empty_check_gives_a_message():
    data = states(5)
    data["check_mean"] = data.check_mean * np.nan
    assert "nothing to compare" in text_of(plots.check(data))


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("plot", "names"),
    [
        ("estimate_maps", ("value", "std")),
        ("estimate_states", ("value", "std")),
        ("estimate_figures", ("value", "std")),
        ("estimate_heat_maps", ("value_map", "std_map", "visited_map", "x")),
        ("observed_returns", ("observed", "predicted", "predicted_std")),
        ("calibration", ("observed", "predicted", "predicted_std")),
        ("check", ("check_mean", "check_std", "check_count", "value")),
    ],
)
def test_datasets_that_lack_what_is_needed_are_refused_by_name(plot, names):
    data = grid() if plot == "estimate_maps" else regions()
    for name in names:
        with pytest.raises(rv.InputError, match=f"data = no {name}"):
            getattr(plots, plot)(data.drop_vars(name))
    with pytest.raises(rv.InputError, match="data = dict: must be a dataset of estimates"):
        getattr(plots, plot)({})


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({"grid_rows": 3}, "grid = 3 × 4: must have one cell for each of the 16 states"),
        ({"grid_rows": 0}, "grid = 0 × 4: must have one cell"),
        ({"grid_rows": "x"}, "grid_rows = x: must be a whole number"),
        ({"cells": "SF"}, "cells = 'SF': must have one character for each of the 16 states"),
    ],
)
def test_grids_that_do_not_fit_their_states_are_refused(attrs, message):
    with pytest.raises(rv.InputError, match=message):
        plots.estimate_maps(grid().assign_attrs(attrs))


def test_datasets_of_other_domains_have_no_map():
    with pytest.raises(rv.InputError, match="no grid_rows, grid_columns: must be that of a grid"):
        plots.estimate_maps(states())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (states(4).rename(state="place"), "must have a value for each state or region"),
        (states(4).assign(std=("state", list("abcd"))), r"data\.std = <U1: must hold numbers"),
    ],
)
def test_estimates_of_another_form_are_refused(data, message):
    with pytest.raises(rv.InputError, match=message):
        plots.estimate_states(data)


def test_blackjack_is_two_maps_of_the_players_sum_and_the_dealers_card():
    """Each cell has the value of its state; the two maps share a scale."""
    stream = rv.experience.from_gymnasium("Blackjack-v1", steps=6_000, seed=0)
    found = rv.estimate(stream, gamma=1.0)
    figures = plots.estimate_figures(found.data)
    assert next(iter(figures)) == "map"
    axes = [ax for ax in figures["map"].axes if ax.get_xlim() == (0.5, 10.5)]
    titles = [ax.get_title(loc="left") for ax in axes]
    assert [title.rpartition(": ")[2] for title in titles] == ["no usable ace", "usable ace"] * 2
    limits = set()
    for ace, ax in enumerate(axes[:2]):
        mesh = ax.collections[-1]
        corner = mesh.get_coordinates()[0, 0] + 0.5
        cells = np.ma.filled(mesh.get_array().reshape(32, 11), np.nan)
        limits.add(mesh.get_clim())
        for total, card in ((20, 10), (13, 1), (18, 6)):
            value = found.value((total, card, ace))
            assert_array_equal(cells[int(total - corner[1]), int(card - corner[0])], value)
    assert len(limits) == 1
    assert axes[0].get_ylabel() == "player's sum"
    assert axes[2].get_xlabel() == "dealer's card"


def test_titles_do_not_end_in_a_line_of_one_word():
    text = (
        "CliffWalking-v1, random policy, γ = 0.9: what return to expect from each cell, and how far"
    )
    for width in np.linspace(2.0, 6.0, 40):
        lines = wrap_text(text, 10, width, "bold").splitlines()
        assert " ".join(lines) == text
        assert len(lines) == 1 or " " in lines[-1]
        assert all(text_size(line, 10, "bold")[0] <= width for line in lines)


def test_an_unknown_order_is_refused():
    with pytest.raises(rv.InputError, match="order = 'x': must be 'state' or 'visits'"):
        plots.estimate_states(states(4), "x")


def test_maps_over_other_dimensions_and_axes_that_are_no_numbers_are_refused():
    data = regions()
    with pytest.raises(rv.InputError, match="must have dimensions y and x"):
        plots.estimate_heat_maps(data.assign(value_map=data.value_map.rename(x="z").drop_vars("z")))
    with pytest.raises(rv.InputError, match="must be finite numbers"):
        plots.estimate_heat_maps(data.assign_coords(x=data.x * np.nan))
